"""What the nodes do, without ROS: options, diagnostics, clips, playing to a list."""

import errno
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acehand_core import atomic
from acehand_core.cli import console
from acehand_core.errors import (
    AcehandError,
    InputError,
    MissingDependencyError,
    NoHandError,
    OutputError,
)
from acehand_core.pipeline.bag_convert import ConvertReport
from acehand_core.pipeline.bag_write import courses, load_demonstrations, seen_by
from acehand_core.pipeline.report import Failure, JobReport
from acehand_core.recordings.bags.messages import (
    TOPICS,
    Demonstration,
    PlainMessage,
    frame_messages,
    latched_messages,
    quality_status,
    with_frame_prefix,
)
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.types import SIDES
from acehand_ros import clip_recorder, launching, offline_bag
from acehand_ros.messages import in_namespace, live_topic
from acehand_ros.parameters import (
    CLIP_RECORDER,
    OFFLINE_BAG,
    PLAYER,
    as_parameters,
    check,
    clip_options,
    offline_options,
)
from acehand_ros.playback import Playback, PlayerSettings, Timeline, at_rate, rest_of
from acehand_ros.trajectory_player import load_episode
from acehand_ros.worker import JobStatus, diagnostics, job_diagnostics
from helpers import ROOT
from helpers.outlets import Collected, wait
from retarget.robots.robot import load_robot

TRUTH = ROOT / "examples" / "two_hands_truth.parquet"


ROBOT = load_robot("inspire")


@pytest.fixture(scope="module")
def whole() -> Demonstration:
    return next(iter(load_demonstrations(TRUTH)))[0]


@pytest.fixture(scope="module")
def demonstration(whole) -> Demonstration:
    # The first 13 frames, at 100 Hz: a test must not last.
    rows = ("log_ns", "joints", "commands", "confidence", "T_camera_base", "T_camera_wrist",
            "T_world_camera")  # fmt: skip
    first = {name: None if (all_ := getattr(whole, name)) is None else all_[:13] for name in rows}
    stamps = 10**18 + 10_000_000 * np.arange(13)
    short = replace(whole, stamps_ns=stamps, fps=100.0, motion=None, **first)
    return replace(short, courses=courses(ROBOT, short.commands, short.known, 100.0))


def playback(demonstration, outlet, clock=None, settings=None, **timeline) -> Playback:
    options = {"rate": 1.0, "loop": False, "paused": False, **timeline}
    line = Timeline(demonstration.stamps_ns, **options)
    settings = settings or PlayerSettings(clock_rate=None if clock is None else 200.0)
    ticks = [] if clock is None else clock
    return Playback(demonstration, ROBOT, line, outlet, settings, lambda: 42, ticks.append)


def played(player: Playback) -> Playback:
    player.start()
    try:
        wait(lambda: player.ended)
    finally:
        player.close()
    return player


def stamp_of(message: PlainMessage) -> int:
    stamp = message.fields["header"]["stamp"]
    return stamp["sec"] * 10**9 + stamp["nanosec"]


def test_everything_is_played_once_with_its_own_stamps(demonstration: Demonstration) -> None:
    outlet, clock = Collected(), []
    player = playback(demonstration, outlet, clock)
    player.prepare()
    played(player)
    for side in ("left", "right"):
        states = outlet.of(f"/{side}_hand/joint_states")
        assert [stamp_of(m) for m in states] == demonstration.stamps_ns.tolist()
        trajectories = outlet.of(f"/{side}_hand/joint_trajectory")
        assert len(trajectories) == 1 and len(trajectories[0].fields["points"]) == 14
    assert len(clock) >= 3 and clock == sorted(clock)
    assert clock[0] >= 10**18 and clock[-1] <= 10**18 + 130_000_000
    latched = [m.topic for m, _ in outlet.all[:4]]
    assert "/left_hand/robot_description" in latched


def test_now_stamps_no_frames_no_human_hand(demonstration: Demonstration) -> None:
    outlet = Collected()
    settings = PlayerSettings(stamps="now", clock_rate=None, tf=False, markers=False)
    played(playback(demonstration, outlet, settings=settings))
    # A trajectory keeps its stamp of zero: a controller starts it when it comes.
    stamped = [(m, at) for m, at in outlet.all if not m.topic.endswith("joint_trajectory")]
    assert {stamp for _, stamp in stamped} == {42}
    topics = {message.topic for message, _ in outlet.all}
    assert not topics & {"/tf", "/tf_static", "/left_hand/skeleton", "/left_hand/wrist_pose"}
    assert "/left_hand/joint_states" in topics


def frames_of(demo: Demonstration) -> set[str]:
    messages = [*latched_messages(demo), *frame_messages(demo, 20)]
    texts = (str(message.fields) for message in messages)
    return {name for text in texts for name in re.findall(r"frame_id': '([^']+)'", text)}


def test_a_prefix_goes_before_every_frame(whole: Demonstration) -> None:
    poses = np.tile(np.eye(4), (len(whole), 1, 1))
    moving = replace(whole, T_world_camera=poses, world_frame="map")
    without = frames_of(moving)
    assert without >= {"map", "camera_link", "camera_optical_frame", "left_wrist", "right_wrist"}
    assert frames_of(with_frame_prefix(moving, "a/")) == {f"a/{frame}" for frame in without}


def test_topics_are_relative_to_the_node_but_for_the_shared_ones() -> None:
    found = {name for name in TOPICS if live_topic(name).startswith("/")}
    assert found == {"/diagnostics", "/tf", "/tf_static"}
    assert live_topic("/left_hand/joint_states") == "left_hand/joint_states"
    plain = diagnostics("n", 0, "m", {}, 5)
    assert in_namespace(plain, "/") == plain
    status = in_namespace(plain, "/cell/one").fields["status"][0]
    assert status == {**plain.fields["status"][0], "name": "cell/one/n"}


def test_a_table_says_which_frame_its_pictures_named(tmp_path: Path) -> None:
    motion = read_hand_motion(TRUTH)
    stated = {"camera_frame": "head_optical", "image_topic": "/head/image"}
    named = replace(motion, provenance=replace(motion.provenance, settings=stated))
    write_hand_motion(named, tmp_path / "hands.parquet", False)
    demo = next(iter(load_demonstrations(tmp_path / "hands.parquet")))[0]
    assert demo.camera_frame == "head_optical" and not demo.publish_camera_tf
    assert seen_by(tmp_path / "hands.parquet") == ("head_optical", "/head/image")
    assert seen_by(TRUTH) == ("camera_link", None) == seen_by(tmp_path / "nothing")


def test_rviz_shows_topics_and_frames_that_there_are(whole: Demonstration) -> None:
    scene = launching.LaunchScene("one", "one/", "camera_link", "/head/image")
    config = launching.rviz_config(scene)["Visualization Manager"]
    frames = frames_of(with_frame_prefix(whole, "one/"))
    assert config["Global Options"]["Fixed Frame"] in frames
    topics = [d.get("Topic") or d.get("Description Topic") for d in config["Displays"]]
    *topics, picture = (topic["Value"] for topic in topics if topic)
    assert picture == "/head/image" and all(topic.startswith("/one/") for topic in topics)
    assert len(topics) == 4 and {t.removeprefix("/one") for t in topics} <= TOPICS.keys()
    assert {d["TF Prefix"] for d in config["Displays"] if "TF Prefix" in d} == {"one"}
    without = launching.rviz_config(launching.LaunchScene())["Visualization Manager"]
    assert not [d for d in without["Displays"] if d["Class"].endswith("/Image")]


@pytest.mark.few(1)
@pytest.mark.parametrize(("namespace", "prefix"), [("", ""), ("one", "one/"), ("/a/b/", "b_")])
def test_foxglove_shows_topics_and_frames_that_there_are(whole, namespace, prefix) -> None:
    scene = launching.LaunchScene(namespace, prefix, "camera_link", "/head/image")
    layout = launching.foxglove_layout(scene)["configById"]
    assert layout["3D!hands"]["followTf"] in frames_of(with_frame_prefix(whole, prefix))
    layers = [one for one in layout["3D!hands"]["layers"].values() if "topic" in one]
    assert len(layers) == 2 and {one["framePrefix"] for one in layers} == {prefix}
    picture = layout["Image!recording"]["imageMode"]
    assert picture["imageTopic"] == "/head/image"
    values = [p["value"] for n in ("left", "right") for p in layout[f"Plot!{n}"]["paths"]]
    shown = {
        *layout["3D!hands"]["topics"], *layout["Image!recording"]["topics"],
        *(one["topic"] for one in layers), *(value.partition(".")[0] for value in values),
        picture["calibrationTopic"], layout["DiagnosticSummary!quality"]["topicToRender"],
    }  # fmt: skip
    # As ROS expands the names that our nodes publish on.
    published = {
        name if (name := live_topic(topic)).startswith("/")
        else "/".join(["", *filter(None, [namespace.strip("/"), name])])
        for topic in TOPICS
    }  # fmt: skip
    assert len(shown) == 12 and shown <= published


def test_the_player_leaves_descriptions_to_others_and_has_a_status(demonstration) -> None:
    outlet = Collected()
    settings = PlayerSettings(clock_rate=None, descriptions=False)
    player = playback(demonstration, outlet, settings=settings, paused=True)
    player.start()
    player.close()
    assert [m.topic for m, _ in outlet.all if m.topic.endswith("robot_description")] == []
    left, right, verdict = player.status()
    assert left["name"] == "acehand: left hand" and right["message"] == "followed"
    assert verdict["name"] == "acehand: verdict"


def test_a_status_is_followed_only_where_the_hand_is(whole: Demonstration) -> None:
    quality, observed = whole.motion.quality.copy(), whole.motion.observed.copy()
    quality[3, 1] = quality[4, 0] = 0.0
    observed[4, 0] = False
    seen = replace(whole, motion=replace(whole.motion, quality=quality, observed=observed))
    found = [[s["message"].split(";")[0] for s in quality_status(seen, i)] for i in (2, 3, 4)]
    assert found == [["followed"] * 2, ["followed", "doubtful"], ["absent", "followed"]]


def test_pause_seek_and_close_in_time(demonstration: Demonstration) -> None:
    outlet = Collected()
    player = playback(demonstration, outlet, paused=True)
    player.start()
    player.set("position", 0.05)
    wait(lambda: outlet.of("/left_hand/joint_states"))
    assert [stamp_of(m) for m in outlet.of("/left_hand/joint_states")] == [10**18 + 50_000_000]
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
    player = played(playback(demonstration, Collected(fail_on="joint_states")))
    assert isinstance(player.error, OSError)


def test_play_ends_though_the_last_frame_is_published_beyond_the_end(demonstration) -> None:
    class Slow(Collected):
        def publish(self, messages, stamp_ns=None) -> None:
            super().publish(messages, stamp_ns)
            states = [m for m in messages if m.topic == "/left_hand/joint_states"]
            if states and stamp_of(states[0]) == demonstration.stamps_ns[-1]:
                time.sleep(0.03)  # of frames 0.01 s apart

    assert played(playback(demonstration, Slow())).error is None


def test_the_rest_is_stretched(demonstration: Demonstration) -> None:
    rest = rest_of(demonstration, ROBOT, 3, 0.5).courses["left"]
    assert len(rest.seconds) == 11 and np.allclose(np.diff(rest.seconds), 0.02)
    assert np.allclose(rest.positions[0], demonstration.commands[3, 0])
    assert not rest.velocities[[0, -1]].any()


@pytest.mark.few(1)
@pytest.mark.parametrize("rate", [1.5, 2.0, 4.0])
def test_faster_than_the_hand_it_follows_as_fast_as_it_can(whole, rate: float) -> None:
    """The recorded hand closes at the limit of 3.2 rad/s; played faster it would break it."""
    limit = ROBOT.hand("right").command_velocity / (whole.fps * rate)
    assert (np.abs(np.diff(whole.commands[:, 1], axis=0)) > limit).any()
    faster = at_rate(whole, ROBOT, rate)
    assert (np.abs(np.diff(faster.commands, axis=0)) <= limit * (1 + 1e-6)).all()
    for slot, side in enumerate(SIDES):
        expected = ROBOT.hand(side).expand(faster.commands[:, slot])
        np.testing.assert_allclose(faster.joints[:, slot], expected)
    assert at_rate(whole, ROBOT, 1.0) is whole


def test_no_such_episode() -> None:
    demonstration, robot = load_episode(str(TRUTH), "panda_gripper", 0)
    assert demonstration.fps > 0 and robot.name == "panda_gripper"
    with pytest.raises(InputError, match="no episode 3; valid: 0"):
        load_episode(str(TRUTH), "panda_gripper", 3)


def values(table) -> dict:
    return {leaf.parameter: leaf.default for leaf in table}


def test_options_of_offline_bag(tmp_path: Path) -> None:
    given = values(OFFLINE_BAG) | {"bag": "in.mcap", "output_dir": str(tmp_path / "out")}
    options = offline_options(given)
    job, bag = options.job, options.job.reading.own["bag"]
    assert (options.bag, job.output) == (Path("in.mcap"), tmp_path / "out")
    assert options.bag_output == tmp_path / "out_bag"
    assert (job.tracking.hand_length_m, bag.image_topic) == (None, None)
    more = {"bag_output": "none", "hand_length": 0.19, "image_topic": "/a", "existing": "append"}
    options = offline_options(given | more)
    job, bag = options.job, options.job.reading.own["bag"]
    assert (options.bag_output, job.tracking.hand_length_m, job.existing) == (None, 0.19, "append")
    assert bag.image_topic == "/a"


@pytest.mark.parametrize(
    ("name", "choices"),
    [("camera_motion", ("off", "rotation")), ("quality", ("fast", "balanced", "best"))],
)
@pytest.mark.parametrize("node", [OFFLINE_BAG, CLIP_RECORDER])
def test_what_the_tracker_is_told(node, name: str, choices: tuple[str, ...]) -> None:
    for choice in choices:
        given = values(node) | {"bag": "in.mcap", "output_dir": "out", name: choice}
        check(node, {name: choice})
        if node is OFFLINE_BAG:
            job = offline_options(given).job
        else:
            job = clip_options(given, Path("clip"), Path("bag"), "").job
        assert getattr(job.tracking, name) == choice
    for wrong in ("fasst", ""):
        with pytest.raises(InputError, match=rf"{name}:='{wrong}'; .*{choices[0]}"):
            check(node, {name: wrong})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bag": " "}, "bag:=PATH"),
        ({"output_dir": ""}, "output_dir:=PATH"),
        ({"device": "cuda"}, "CPU"),
        ({"tracker": "ace"}, "weights:=PATH"),
        ({"weights": "x.safetensors"}, "'ace'"),
        ({"hand_length": 0.01}, "hand_length"),
    ],
)
def test_options_that_cannot_be(change: dict, message: str) -> None:
    given = values(OFFLINE_BAG) | {"bag": "in.mcap", "output_dir": "out"}
    with pytest.raises(InputError, match=message):
        offline_options(given | change)


def test_the_model_gets_its_weights_and_device() -> None:
    given = values(OFFLINE_BAG) | {"bag": "in.mcap", "output_dir": "out", "tracker": "ace"}
    ace = offline_options(given | {"weights": "w", "device": "cuda"}).job.tracking.own["ace"]
    assert (ace.weights, ace.device) == (Path("w"), "cuda")
    assert offline_options(given | {"weights": "w"}).job.tracking.own["ace"].device is None


def test_clips_are_appended_to_one_dataset(tmp_path: Path) -> None:
    given = values(CLIP_RECORDER) | {"output_dir": str(tmp_path)}
    first = clip_options(given, tmp_path / "clip", tmp_path / "bag", "")
    assert first.job.existing == "refuse" and first.job.reading.own["bag"].camera_info_topic is None
    first.job.output.mkdir()
    assert clip_options(given, tmp_path / "c", tmp_path / "b", "").job.existing == "append"


def test_clip_names_are_never_used_twice(tmp_path: Path) -> None:
    assert clip_recorder.next_clip(tmp_path / "none").name == "clip_000000"
    (tmp_path / "clip_000000").mkdir()
    (tmp_path / "clip_000001").touch()
    assert clip_recorder.next_clip(tmp_path).name == "clip_000002"
    (tmp_path / ".clip_000002.partial-17").mkdir()
    (tmp_path / "clip_000003_unreadable").mkdir()
    assert clip_recorder.next_clip(tmp_path).name == "clip_000004"


def test_what_the_camera_publishes() -> None:
    graph = {"/a": ["std_msgs/msg/String"], "/b": [clip_recorder.COMPRESSED]}
    assert clip_recorder.image_msgtype("/b", "auto", graph) == clip_recorder.COMPRESSED
    assert clip_recorder.image_msgtype("/b", "raw", graph) == clip_recorder.IMAGE
    assert clip_recorder.image_msgtype("/none", "auto", graph) is None
    with pytest.raises(InputError, match="carries std_msgs/msg/String"):
        clip_recorder.image_msgtype("/a", "auto", graph)
    assert clip_recorder.camera_info_topic("/cam/image_raw") == "/cam/camera_info"
    assert clip_recorder.camera_info_topic("/cam/image_raw/compressed") == "/cam/camera_info"
    assert clip_recorder.camera_info_topic("/image") == "/camera_info"


def recorded(path: Path) -> list[tuple[str, int, bytes]]:
    """Read a bag with rosbags' own reader, which wants metadata.yaml and an index."""
    from rosbags.rosbag2 import Reader

    with Reader(path) as reader:
        return [(c.topic, time, bytes(data)) for c, time, data in reader.messages()]


def test_a_recorded_clip_holds_the_bytes_as_they_came(tmp_path: Path) -> None:
    recorder = clip_recorder.ClipRecorder()
    with pytest.raises(InputError, match="~/start"):
        recorder.stop()
    recorder.add("/camera", clip_recorder.IMAGE, 1, b"dropped: no clip is open")
    recorder.start(tmp_path / "clips" / "clip_000000")
    with pytest.raises(InputError, match="already"):
        recorder.start(tmp_path / "other")
    for index in range(3):
        recorder.add("/camera", clip_recorder.IMAGE, 10**18 + index * 10**8, bytes([index] * 40))
    recorder.add("/info", clip_recorder.CAMERA_INFO, 10**18, b"1234")
    assert (recorder.images, recorder.camera_infos) == (3, 1)
    assert recorder.length_s(10**18 + 5 * 10**8) == 0.5
    path = recorder.stop()
    assert not recorder.recording
    images = [("/camera", 10**18 + i * 10**8, bytes([i] * 40)) for i in range(3)]
    assert [message for message in recorded(path) if message[0] == "/camera"] == images


def test_a_clip_without_an_image_leaves_nothing(tmp_path: Path) -> None:
    recorder = clip_recorder.ClipRecorder()
    recorder.start(tmp_path / "clip_000000")
    recorder.add("/info", clip_recorder.CAMERA_INFO, 10**18, b"1234")
    assert recorder.stop() is None and not recorder.recording
    assert list(tmp_path.iterdir()) == []
    assert clip_recorder.next_clip(tmp_path).name == "clip_000000"


#: A recorder in a process of its own: it opens the folder, says so, and records until it is killed.
RECORDER = """
import random, sys, time
from pathlib import Path
from acehand_ros.clip_recorder import IMAGE, ClipFolder, ClipRecorder

folder = ClipFolder(Path(sys.argv[1]))
recorder = ClipRecorder()
recorder.start(folder.next_clip())
for index in range(int(sys.argv[2])):
    recorder.add("/camera", IMAGE, 10**18 + index * 10**8, random.Random(index).randbytes(400_000))
print("recording", flush=True)
time.sleep(600)
"""


def test_a_clip_survives_the_kill_of_its_recorder(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "clip_000000").touch()
    command = [sys.executable, "-c", RECORDER, str(tmp_path), "7"]
    other = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "recording\n"
    with pytest.raises(OutputError, match="another clip_recorder"):
        clip_recorder.ClipFolder(tmp_path)
    other.kill()
    other.communicate()
    mine = clip_recorder.ClipFolder(tmp_path)
    assert mine.next_clip().name == "clip_000002"  # not the one that is to be recovered
    (report,) = mine.recover()
    # A chunk is written once it holds more than 1 MiB: here three of these images.
    path = tmp_path / "clips" / "clip_000001"
    assert report.startswith(f"{path}: recovered 6 images")
    assert recorded(path) == [
        ("/camera", 10**18 + i * 10**8, random.Random(i).randbytes(400_000)) for i in range(6)
    ]
    assert sorted(p.name for p in path.parent.iterdir()) == ["clip_000000", "clip_000001"]
    assert list(mine.recover()) == []
    mine.close()


def test_what_is_left_of_a_clip_that_cannot_be_recovered(tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    empty, torn = (folder / f".clip_{n:06d}.partial-17" / f"clip_{n:06d}" for n in (0, 1))
    for path, content in ((empty, b""), (torn, b"\x89MCAP0")):
        path.mkdir(parents=True)
        (path / f"{path.name}.mcap").write_bytes(content)
    mine = clip_recorder.ClipFolder(tmp_path)
    first, second = mine.recover()
    assert f"{empty.parent}: removed" in first and not empty.parent.exists()
    assert [path.name for path in folder.iterdir()] == ["clip_000001_unreadable"]
    assert str(folder / "clip_000001_unreadable") in second
    (kept,) = folder.rglob("*.mcap")
    assert kept.read_bytes() == b"\x89MCAP0"
    mine.close()


def test_without_locks_open_clips_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock an open clip may still be being recorded."""
    monkeypatch.setattr(atomic, "fcntl", None)
    left = tmp_path / "clips" / ".clip_000000.partial-17"
    left.mkdir(parents=True)
    first, second = clip_recorder.ClipFolder(tmp_path), clip_recorder.ClipFolder(tmp_path)
    for folder in (first, second):
        (report,) = folder.recover()
        assert str(left) in report and "left alone" in report
        assert folder.next_clip().name == "clip_000001"
    assert [path.name for path in left.parent.iterdir()] == [left.name]


def test_a_clip_that_fills_the_disk_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rosbags.rosbag2 import storage_mcap

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    mine, recorder = clip_recorder.ClipFolder(tmp_path), clip_recorder.ClipRecorder()
    recorder.start(mine.next_clip())
    for index in range(4):
        image = random.Random(index).randbytes(400_000)
        recorder.add("/camera", clip_recorder.IMAGE, 10**18 + index, image)
    with monkeypatch.context() as patch:
        patch.setattr(storage_mcap.McapWriter, "close_chunk", full)
        with pytest.raises(OutputError, match=r"No space left.*clip_recorder"):
            recorder.stop()
    assert not (tmp_path / "clips" / "clip_000000").exists()
    mine.close()
    again = clip_recorder.ClipFolder(tmp_path)
    (report,) = again.recover()
    assert "recovered 3 images" in report
    assert len(recorded(tmp_path / "clips" / "clip_000000")) == 3
    again.close()


def test_diagnostics_say_how_far_and_how_it_ended() -> None:
    running = job_diagnostics("n", JobStatus("running", "track", 3, 9), 5).fields["status"][0]
    assert (running["level"], running["message"]) == (0, "track: 3 of 9")
    failed = job_diagnostics("n", JobStatus("failed", message="no topic"), 5).fields["status"][0]
    assert (failed["level"], failed["message"]) == (2, "no topic")
    plain = diagnostics("n", 1, "m", {"a": 1}, 3 * 10**9 + 7)
    assert plain.fields["header"]["stamp"] == {"sec": 3, "nanosec": 7}
    assert plain.fields["status"][0]["values"] == [{"key": "a", "value": "1"}]


@pytest.mark.parametrize(
    ("message", "of_parameters"),
    [
        (
            "use `existing=append` or `existing=resume`.",
            "use existing:=append or existing:=resume.",
        ),
        ("allow it (`overwrite`).", "allow it (existing:=overwrite)."),
        ("choose one with `image_topic`.", "choose one with image_topic:=."),
        ("`hand_length=9`: too long", "hand_length:=9: too long"),
        ("`camera_info_topic='/a'`: none", "camera_info_topic:='/a': none"),
        ("`keep_depth` needs depth", "keep_depth:=true needs depth"),
        ("`overlay=False`", "overlay:=false"),
        ("give it an `output` of its own.", "give it an output_dir:= of its own."),
        ("/hand_length/`x`.mcap: no such bag.", "/hand_length/`x`.mcap: no such bag."),
    ],
)
def test_messages_name_parameters(message: str, of_parameters: str) -> None:
    assert as_parameters(message) == of_parameters
    unknown = as_parameters("give `camera`, or `tracker=FILE`.")
    assert "tracker:=FILE" in unknown and "(camera: only for" in unknown


@pytest.mark.parametrize(
    ("kind", "code"),
    [(InputError, 2), (NoHandError, 3), (OutputError, 4), (MissingDependencyError, 2)],
)
def test_exit_codes_are_those_of_bag_convert(kind: type[AcehandError], code: int) -> None:
    error = kind("x")

    def load() -> type[console.Runnable]:
        raise error

    assert console.run("acehand", ["--verbose", "--quiet"], load) == code
    assert offline_bag.exit_code(JobStatus("failed", error=error)) == code
    job = JobReport(None, 0.0, 0.0, (), (Failure("bag", error),))
    report = ConvertReport(job, None, {}, {}, ())
    assert offline_bag.exit_code(JobStatus("done", report=report)) == code == job.exit_code


def test_exit_codes_of_what_is_no_error_of_ours() -> None:
    assert offline_bag.exit_code(JobStatus("cancelled")) == 130
    assert offline_bag.exit_code(JobStatus("failed", error=OSError())) == 1
    assert offline_bag.exit_code(JobStatus("done")) == 0


def test_the_documentation_names_every_topic_and_argument() -> None:
    text = (ROOT / "docs" / "ros2.md").read_text("utf-8")
    rows = re.findall(r"^\| `(/[\w/{},]+)`(?:, `(/\w+)`)? \| ([\w/]+) \|", text, re.MULTILINE)
    stated = {}
    for first, second, kind in rows:
        for name in filter(None, (first, second)):
            for side in ("left", "right") if "{left,right}" in name else ("",):
                package, _, short = kind.partition("/")
                stated[name.replace("{left,right}", side)] = f"{package}/msg/{short}"
    assert stated.pop("/clock") == "rosgraph_msgs/msg/Clock"
    assert stated == {name: spec.msgtype for name, spec in TOPICS.items()}
    source = (ROOT / "launch" / "inspire_ros2_control.launch.py").read_text("utf-8")
    shown = re.findall(r'"(\w+)"', source[source.index("SHOWN =") : source.index("# fmt")])
    assert {*shown} <= {p.parameter for p in PLAYER}
    unnamed = {p.parameter for p in OFFLINE_BAG if f"`{p.parameter}`" not in text}
    assert unnamed == {"autostart", "exit_when_done"}  # the launch file leaves them out
