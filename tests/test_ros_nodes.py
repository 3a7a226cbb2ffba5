"""What the nodes do, without ROS: options, diagnostics, clips, playing to a list."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acehand_core.bag_jobs.convert import ConvertReport
from acehand_core.bag_jobs.demonstrations import courses, load_demonstrations
from acehand_core.cli import console
from acehand_core.errors import (
    AcehandError,
    InputError,
    MissingDependencyError,
    NoHandError,
    OutputError,
)
from acehand_core.export.bag_messages import TOPICS, Demonstration, PlainMessage
from acehand_core.export.report import Failure, JobReport
from acehand_core.types import SIDES
from acehand_ros import clips, launching, offline_bag
from acehand_ros.options import clip_options, offline_options
from acehand_ros.parameters import CLIP_RECORDER, OFFLINE_BAG, PLAYER
from acehand_ros.playback import Playback, PlayerSettings, at_rate, choose_episode, rest_of
from acehand_ros.status import diagnostics, job_diagnostics
from acehand_ros.timeline import Timeline
from acehand_ros.worker import JobStatus
from retarget.robot import load_robot

TRUTH = Path(__file__).parents[1] / "examples" / "two_hands_truth.parquet"


@pytest.fixture(scope="module")
def demonstration() -> Demonstration:
    whole, robot = next(iter(load_demonstrations(TRUTH)))
    # The first 13 frames, at 100 Hz: a test must not last.
    short = replace(cut(whole, 13), stamps_ns=10**18 + 10_000_000 * np.arange(13), fps=100.0)
    return replace(short, courses=courses(robot, short.commands, short.known, 100.0))


def cut(demonstration: Demonstration, frames: int) -> Demonstration:
    names = ("T_camera_base", "T_camera_wrist", "T_world_camera")
    poses = {name: getattr(demonstration, name) for name in names}
    return replace(
        demonstration,
        stamps_ns=demonstration.stamps_ns[:frames],
        log_ns=demonstration.log_ns[:frames],
        joints=demonstration.joints[:frames],
        commands=demonstration.commands[:frames],
        confidence=demonstration.confidence[:frames],
        **{name: None if pose is None else pose[:frames] for name, pose in poses.items()},
        motion=None,
    )


class Collected:
    """An outlet that keeps what it is given."""

    def __init__(self, fail_on: str = "") -> None:
        self.all: list[tuple[PlainMessage, int | None]] = []
        self.fail_on = fail_on

    def prepare(self, messages) -> None:
        assert {m.topic for m in messages} >= {f"/{s}_hand/joint_states" for s in ("left", "right")}

    def publish(self, messages, stamp_ns=None) -> None:
        for message in messages:
            if self.fail_on and message.topic.endswith(self.fail_on):
                raise OSError("the network is gone")
            self.all.append((message, stamp_ns))

    def of(self, topic: str) -> list[PlainMessage]:
        return [message for message, _ in self.all if message.topic == topic]


def playback(demonstration, outlet, clock=None, settings=None, **timeline) -> Playback:
    options = {"rate": 1.0, "loop": False, "paused": False, **timeline}
    line = Timeline(demonstration.stamps_ns, **options)
    settings = settings or PlayerSettings(clock_rate=None if clock is None else 200.0)
    ticks = [] if clock is None else clock
    robot = load_robot("inspire")
    return Playback(demonstration, robot, line, outlet, settings, lambda: 42, ticks.append)


def wait(condition, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def stamp_ns(message: PlainMessage) -> int:
    stamp = message.fields["header"]["stamp"]
    return stamp["sec"] * 10**9 + stamp["nanosec"]


def test_everything_is_played_once_with_its_own_stamps(demonstration: Demonstration) -> None:
    outlet, clock = Collected(), []
    player = playback(demonstration, outlet, clock)
    player.prepare()
    player.start()
    wait(lambda: player.ended)
    player.close()
    for side in ("left", "right"):
        states = outlet.of(f"/{side}_hand/joint_states")
        assert [stamp_ns(m) for m in states] == demonstration.stamps_ns.tolist()
        trajectories = outlet.of(f"/{side}_hand/joint_trajectory")
        assert len(trajectories) == 1 and len(trajectories[0].fields["points"]) == 14
    assert len(clock) >= 10 and clock == sorted(clock)
    assert clock[0] >= 10**18 and clock[-1] <= 10**18 + 130_000_000
    latched = [m.topic for m, _ in outlet.all[:4]]
    assert "/left_hand/robot_description" in latched


def test_now_stamps_no_frames_no_human_hand(demonstration: Demonstration) -> None:
    outlet = Collected()
    settings = PlayerSettings(stamps="now", clock_rate=None, tf=False, markers=False)
    player = playback(demonstration, outlet, settings=settings)
    player.start()
    wait(lambda: player.ended)
    player.close()
    assert {stamp for _, stamp in outlet.all} == {42}
    topics = {message.topic for message, _ in outlet.all}
    assert not topics & {"/tf", "/tf_static", "/left_hand/skeleton", "/left_hand/wrist_pose"}
    assert "/left_hand/joint_states" in topics


def test_pause_seek_and_close_in_time(demonstration: Demonstration) -> None:
    outlet = Collected()
    player = playback(demonstration, outlet, paused=True)
    player.start()
    player.set("position", 0.05)
    wait(lambda: outlet.of("/left_hand/joint_states"))
    assert [stamp_ns(m) for m in outlet.of("/left_hand/joint_states")] == [10**18 + 50_000_000]
    assert len(outlet.of("/left_hand/joint_trajectory")[0].fields["points"]) == 9
    with pytest.raises(InputError, match="valid"):
        player.set("position", 1.0)
    player.set("paused", False)
    wait(lambda: player.ended)
    assert len(outlet.of("/left_hand/joint_states")) == 8
    player.set("position", 0.0)
    assert not player.ended
    player.close()


def test_a_failed_publish_ends_play_and_is_kept(demonstration: Demonstration) -> None:
    player = playback(demonstration, Collected(fail_on="joint_states"))
    player.start()
    wait(lambda: player.ended)
    assert isinstance(player.error, OSError)
    player.close()


def test_the_rest_is_stretched(demonstration: Demonstration) -> None:
    rest = rest_of(demonstration, load_robot("inspire"), 3, 0.5).courses["left"]
    assert len(rest.seconds) == 11 and np.allclose(np.diff(rest.seconds), 0.02)
    assert np.allclose(rest.positions[0], demonstration.commands[3, 0])
    assert not rest.velocities[[0, -1]].any()


@pytest.mark.parametrize("rate", [1.5, 2.0, 4.0])
def test_faster_than_the_hand_it_follows_as_fast_as_it_can(rate: float) -> None:
    """The recorded hand closes at the limit of 3.2 rad/s; played faster it would break it."""
    demonstration, robot = next(iter(load_demonstrations(TRUTH)))
    hand = robot.hand("right")
    seconds = 1 / (demonstration.fps * rate)
    recorded = np.abs(np.diff(demonstration.commands[:, 1], axis=0)) / seconds
    assert (recorded > hand.command_velocity).any()
    played = at_rate(demonstration, robot, rate)
    speed = np.abs(np.diff(played.commands, axis=0)) / seconds
    assert (speed <= hand.command_velocity * (1 + 1e-6)).all()
    for slot, side in enumerate(SIDES):
        expected = robot.hand(side).expand(played.commands[:, slot])
        np.testing.assert_allclose(played.joints[:, slot], expected)
    assert at_rate(demonstration, robot, 1.0) is demonstration


def test_no_such_episode(demonstration: Demonstration) -> None:
    found = demonstration, load_robot("inspire")
    assert choose_episode([found], 0, "x") is found
    with pytest.raises(InputError, match="no episode 3; valid: 0, 1"):
        choose_episode([found, found], 3, "x")


def values(table) -> dict:
    return {parameter.name: parameter.default for parameter in table}


def test_options_of_offline_bag(tmp_path: Path) -> None:
    given = values(OFFLINE_BAG) | {"bag": "in.mcap", "output_dir": str(tmp_path / "out")}
    options = offline_options(given)
    assert options.bag == Path("in.mcap") and options.job.output == tmp_path / "out"
    assert options.bag_output == tmp_path / "out_bag"
    assert options.job.hand_length_m is None
    assert options.job.reading.bag.image_topic is None
    more = {"bag_output": "none", "hand_length": 0.19, "image_topic": "/a", "existing": "append"}
    options = offline_options(given | more)
    assert options.bag_output is None and options.job.hand_length_m == 0.19
    assert options.job.reading.bag.image_topic == "/a" and options.job.existing == "append"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bag": " "}, "give bag:=PATH"),
        ({"output_dir": ""}, "give output_dir:=PATH"),
        ({"device": "cuda"}, "runs on the CPU"),
        ({"tracker": "ace"}, "give weights:=PATH"),
        ({"weights": "x.safetensors"}, "they belong to 'ace'"),
        ({"hand_length": 0.01}, "hand length"),
    ],
)
def test_options_that_cannot_be(change: dict, message: str) -> None:
    given = values(OFFLINE_BAG) | {"bag": "in.mcap", "output_dir": "out"}
    with pytest.raises(InputError, match=message):
        offline_options(given | change)


def test_the_model_gets_its_weights_and_device() -> None:
    given = values(OFFLINE_BAG) | {"bag": "in.mcap", "output_dir": "out", "tracker": "ace"}
    ace = offline_options(given | {"weights": "w", "device": "cuda"}).job.tracking.ace
    assert (ace.weights, ace.device) == (Path("w"), "cuda")
    assert offline_options(given | {"weights": "w"}).job.tracking.ace.device is None


def test_clips_are_appended_to_one_dataset(tmp_path: Path) -> None:
    given = values(CLIP_RECORDER) | {"output_dir": str(tmp_path)}
    first = clip_options(given, tmp_path / "clip", tmp_path / "bag", "")
    assert first.job.existing == "refuse" and first.job.reading.bag.camera_info_topic is None
    first.job.output.mkdir()
    assert clip_options(given, tmp_path / "c", tmp_path / "b", "").job.existing == "append"


def test_clip_names_are_never_used_twice(tmp_path: Path) -> None:
    assert clips.next_clip(tmp_path / "none").name == "clip_000000"
    (tmp_path / "clip_000000").mkdir()
    (tmp_path / "clip_000001").touch()
    assert clips.next_clip(tmp_path).name == "clip_000002"


def test_what_the_camera_publishes() -> None:
    graph = {"/a": ["std_msgs/msg/String"], "/b": [clips.COMPRESSED]}
    assert clips.image_msgtype("/b", "auto", graph) == clips.COMPRESSED
    assert clips.image_msgtype("/b", "raw", graph) == clips.IMAGE
    assert clips.image_msgtype("/none", "auto", graph) is None
    with pytest.raises(InputError, match="carries std_msgs/msg/String"):
        clips.image_msgtype("/a", "auto", graph)
    assert clips.camera_info_topic("/cam/image_raw") == "/cam/camera_info"
    assert clips.camera_info_topic("/cam/image_raw/compressed") == "/cam/camera_info"


def test_a_recorded_clip_holds_the_bytes_as_they_came(tmp_path: Path) -> None:
    from rosbags.rosbag2 import Reader

    recorder = clips.ClipRecorder()
    with pytest.raises(InputError, match="~/start"):
        recorder.stop()
    recorder.add("/camera", clips.IMAGE, 1, b"dropped: no clip is open")
    recorder.start(tmp_path / "clips" / "clip_000000")
    with pytest.raises(InputError, match="already"):
        recorder.start(tmp_path / "other")
    for index in range(3):
        recorder.add("/camera", clips.IMAGE, 10**18 + index * 10**8, bytes([index] * 40))
    recorder.add("/info", clips.CAMERA_INFO, 10**18, b"1234")
    assert (recorder.images, recorder.camera_infos) == (3, 1)
    assert recorder.length_s(10**18 + 5 * 10**8) == 0.5
    path = recorder.stop()
    assert not recorder.recording
    with Reader(path) as reader:
        found = [(c.topic, t, bytes(d)) for c, t, d in reader.messages() if c.topic == "/camera"]
    assert found == [("/camera", 10**18 + i * 10**8, bytes([i] * 40)) for i in range(3)]


def test_diagnostics_say_how_far_and_how_it_ended() -> None:
    running = job_diagnostics("n", JobStatus("running", "track", 3, 9), 5).fields["status"][0]
    assert (running["level"], running["message"]) == (0, "track: 3 of 9")
    failed = job_diagnostics("n", JobStatus("failed", message="no topic"), 5).fields["status"][0]
    assert (failed["level"], failed["message"]) == (2, "no topic")
    plain = diagnostics("n", 1, "m", {"a": 1}, 3 * 10**9 + 7)
    assert plain.fields["header"]["stamp"] == {"sec": 3, "nanosec": 7}
    assert plain.fields["status"][0]["values"] == [{"key": "a", "value": "1"}]


ERRORS = (
    (InputError("x"), 2), (NoHandError("x"), 3), (OutputError("x"), 4),
    (MissingDependencyError("x"), 2),
)  # fmt: skip


@pytest.mark.parametrize(("error", "code"), ERRORS)
def test_exit_codes_are_those_of_bag_convert(error: AcehandError, code: int) -> None:
    def command(arguments: argparse.Namespace, bars: object) -> int:
        raise error

    arguments = argparse.Namespace(json=False, verbose=True, quiet=True)
    assert console.run(arguments, command) == code
    assert offline_bag.exit_code(JobStatus("failed", error=error)) == code
    job = JobReport(None, 0.0, 0.0, (), (Failure("bag", error),))
    report = ConvertReport(job, None, {}, {}, ())
    assert offline_bag.exit_code(JobStatus("done", report=report)) == code == job.exit_code


def test_exit_codes_of_what_is_no_error_of_ours() -> None:
    assert offline_bag.exit_code(JobStatus("cancelled")) == 130
    assert offline_bag.exit_code(JobStatus("failed", error=OSError())) == 1
    assert offline_bag.exit_code(JobStatus("done")) == 0


@pytest.mark.skipif(importlib.util.find_spec("rclpy") is not None, reason="rclpy is installed")
def test_without_ros_the_nodes_say_what_is_missing() -> None:
    code = "from acehand_ros.offline_bag import main\nraise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "needs ROS 2" in done.stderr


def test_the_documentation_names_every_topic_and_argument() -> None:
    root = Path(__file__).parents[1]
    text = (root / "docs" / "ros2.md").read_text("utf-8")
    rows = re.findall(r"^\| `(/[\w/{},]+)`(?:, `(/\w+)`)? \| ([\w/]+) \|", text, re.MULTILINE)
    stated = {}
    for first, second, kind in rows:
        for name in filter(None, (first, second)):
            for side in ("left", "right") if "{left,right}" in name else ("",):
                package, _, short = kind.partition("/")
                stated[name.replace("{left,right}", side)] = f"{package}/msg/{short}"
    assert stated.pop("/clock") == "rosgraph_msgs/msg/Clock"
    assert stated == {name: spec.msgtype for name, spec in TOPICS.items()}
    tables = {"offline_bag": OFFLINE_BAG, "clip": CLIP_RECORDER, "replay": PLAYER}
    for name, table in tables.items():
        source = (root / "launch" / f"{name}.launch.py").read_text("utf-8")
        shown = re.findall(r'"(\w+)"', source[source.index("SHOWN =") : source.index("# fmt")])
        launching.pick(table, shown)  # refuses what is no parameter
        if name == "offline_bag":
            assert [argument for argument in shown if f"`{argument}`" not in text] == []
