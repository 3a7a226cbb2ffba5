"""Bags in, datasets and bags out, through the commands."""

import errno
import functools
import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import yaml
from rosbags.highlevel import AnyReader

from acehand_core.errors import Interrupted
from acehand_core.geometry import rotations
from acehand_core.geometry.frames import rigid
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.motion import HandMotion, Recording
from acehand_core.pipeline.bag_convert import ConvertOptions, convert_bag
from acehand_core.pipeline.bag_write import load_demonstrations, seen_by
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.bags.library import typestore
from acehand_core.recordings.bags.topics import bag_info
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.trackers import choose
from acehand_core.types import Progress, no_progress
from helpers.bag_samples import DELAY, START, TOPIC, SampleBag, pictures, stamps
from helpers.commands import Acehand, Run, hands_file
from helpers.controller_rules import check_bag_limits, check_controller_takes, check_dataset_limits
from helpers.example_video import TRUTH, empty_frames, example_frames
from helpers.lerobot_samples import names_in
from helpers.rgbd_bag import DEPTH_TOPIC, RIGHT_M, SIZE, write_rgbd
from helpers.ros1_samples import Ros1Bag
from retarget.robots.robot import load_robot

COUNT = 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two hands over a table, another topic next to them."""
    path = tmp_path_factory.mktemp("bags") / "recorded"
    write_clip(path, example_frames(COUNT), stamps(COUNT))
    return path


@pytest.fixture(scope="module")
def converted(recorded, tmp_path_factory):
    """The folder of a conversion: dataset/ and out/."""
    folder = tmp_path_factory.mktemp("converted")
    options = ConvertOptions(
        recorded, JobSettings(folder / "dataset", overlay=False), folder / "out"
    )
    report = convert_bag(options)
    (folder / "report.json").write_text(json.dumps(report.to_json()))
    return folder


class TrueHands:
    """A tracker that knows the rendered clip's hands by their time since the clip's beginning."""

    name = "mediapipe"
    placed = True
    hand_model = "acehand"

    def __init__(self) -> None:
        self._truth = read_hand_motion(TRUTH)

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        progress("track", 0, 1)
        truth, times = self._truth, recording.timestamps_ns
        index = np.minimum((times - times[0]) * round(truth.fps) // 10**9, len(truth) - 1)
        motion = truth.at(index, times, recording.fps)
        progress("track", 1, 1)
        return replace(motion, camera=truth.camera.rescaled(recording.width, recording.height))


@pytest.fixture
def known_hands(monkeypatch):
    """The tracker knows the hands; everything else is the main job's own."""
    monkeypatch.setattr(choose, "make_tracker", lambda name, settings: TrueHands())


@pytest.fixture(scope="module")
def calibration(converted):
    """What a first conversion leaves for further recordings of the subject (--calibration)."""
    return converted / "dataset" / "acehand" / "episode_000000" / "calibration.json"


@functools.cache
def small_frames(count: int) -> list[np.ndarray]:
    """The clip at a quarter of its size, for tests of what happens around the hands."""
    return [cv2.resize(image, None, fx=0.25, fy=0.25) for image in example_frames(count)]


def write_clip(path: Path, images: list[np.ndarray], times: list[int], **options: str) -> None:
    with SampleBag(path, **options) as bag:
        for i, (image, ns) in enumerate(zip(images, times, strict=True)):
            bag.image(image, ns)
            bag.raw("/arm", "maker_msgs/msg/Arm", ns, b"\x00\x01\x00\x00" + bytes([i, 0, 0, 0]))


def messages(path: Path, topic: str) -> list[tuple[int, object]]:
    """Read a topic with rosbags' own reader."""
    with AnyReader([path], default_typestore=typestore()) as reader:
        wanted = [c for c in reader.connections if c.topic == topic]
        if not wanted:  # to rosbags no choice is every topic
            return []
        return [
            (time, reader.deserialize(raw, connection.msgtype))
            for connection, time, raw in reader.messages(wanted)
        ]


def stamp_of(message: object) -> int:
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def test_original_topics_pass_unchanged(converted, recorded):
    def read(bag, topic):
        with AnyReader([bag]) as reader:
            connections = [c for c in reader.connections if c.topic == topic]
            return [(c.msgtype, c.msgdef.data, t, bytes(raw))
                    for c, t, raw in reader.messages(connections)]  # fmt: skip

    for topic in (TOPIC, "/arm"):
        before = read(recorded, topic)
        assert before == read(converted / "out", topic) and len(before) == COUNT, topic


def test_our_messages_are_on_the_recordings_clock(converted):
    demo, robot = next(load_demonstrations(converted / "dataset"))
    names = [f"left_{name}" for name in demo.joint_names]
    states = messages(converted / "out", "/left_hand/joint_states")
    assert [stamp_of(m) for _, m in states] == stamps(COUNT)
    assert [time for time, _ in states] == [ns + DELAY for ns in stamps(COUNT)]
    for i, (_, state) in enumerate(states):
        assert state.name == names and len(names) == 12
        assert np.array_equal(state.position, demo.joints[i, 0])
    for side in ("left", "right"):
        ((time, trajectory),) = messages(converted / "out", f"/{side}_hand/joint_trajectory")
        assert time == START + DELAY and stamp_of(trajectory) == 0
        assert len(trajectory.joint_names) == 6 and len(trajectory.points) == COUNT + 1
        check_controller_takes(trajectory, robot.hand(side), times=stamps(COUNT))


def test_the_dataset_remembers_the_camera(converted):
    demo, _ = next(load_demonstrations(converted / "dataset"))
    assert demo.camera_frame == "cam_optical" and not demo.publish_camera_tf
    assert seen_by(converted / "dataset") == ("cam_optical", TOPIC)


def test_the_limits_hold_on_the_stamps(converted):
    assert check_dataset_limits(converted / "dataset") == 2
    assert check_bag_limits(converted / "out") == 2 * (COUNT + 1)
    report = json.loads((converted / "report.json").read_text())
    assert report["bag"] == str(converted / "out") and report["lost_messages"] == {}
    assert report["topics"]["image"] == TOPIC and report["topics"]["written"][TOPIC] == COUNT


def test_the_hands_in_the_messages(converted):
    table = converted / "dataset" / "acehand" / "episode_000000" / "hand_motion.parquet"
    motion = read_hand_motion(table)
    for slot, side in enumerate(("left", "right")):
        poses = messages(converted / "out", f"/{side}_hand/joints")
        assert len(poses) == motion.known[:, slot].sum() == COUNT
        for i, (_, message) in enumerate(poses):
            assert message.header.frame_id == "cam_optical"
            ours = [[p.position.x, p.position.y, p.position.z] for p in message.poses]
            assert np.array_equal(ours, motion.joints_camera[i, slot])
        wrists = messages(converted / "out", f"/{side}_hand/wrist_pose")
        at = [[m.pose.position.x, m.pose.position.y, m.pose.position.z] for _, m in wrists]
        assert np.allclose(at, motion.joints_camera[:, slot, 0])
        _, skeleton = messages(converted / "out", f"/{side}_hand/skeleton")[0]
        assert [len(m.points) for m in skeleton.markers] == [21, 40]


def test_the_transforms_lead_from_the_camera_to_the_robot(converted):
    demo, _ = next(load_demonstrations(converted / "dataset"))
    for i, (_, message) in enumerate(messages(converted / "out", "/tf")):
        links = {t.child_frame_id: t for t in message.transforms}
        for slot, side in enumerate(("left", "right")):
            wrist, base = links[f"{side}_wrist"], links[f"{side}_base"]
            assert wrist.header.frame_id == "cam_optical"
            assert base.header.frame_id == f"{side}_wrist"
            joined = matrix(wrist.transform) @ matrix(base.transform)
            assert np.allclose(joined, demo.T_camera_base[i, slot], atol=1e-6)
    assert messages(converted / "out", "/tf_static") == []  # the bag's own business
    ((_, text),) = messages(converted / "out", "/right_hand/robot_description")
    assert "<robot" in text.data and 'name="right_base"' in text.data
    assert messages(converted / "out", "/acehand/task")[0][1].data == "hand motion"
    final = messages(converted / "out", "/diagnostics")[-1][1]
    assert final.status[0].name == "acehand: verdict"


def matrix(transform):
    at = transform.translation
    turn = np.array([getattr(transform.rotation, n) for n in "wxyz"])
    return rigid(rotations.from_quaternion(turn), np.array([at.x, at.y, at.z]))


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_bag_write_of_a_dataset(converted, tmp_path, capsys, storage):
    write = ("bag", "write", converted / "dataset", "--output", tmp_path / "bag")
    run = Acehand(capsys, *write, "--storage", storage, "--distro", "humble")
    assert run.code == 0 and run.json["topics"]["/left_hand/joint_states"] == COUNT
    assert "/tf_static" not in run.json["topics"]  # the pictures named their camera's frame
    made, _ = next(load_demonstrations(converted / "dataset"))
    for slot, side in enumerate(("left", "right")):
        states = messages(tmp_path / "bag", f"/{side}_hand/joint_states")
        assert np.array_equal([m.position for _, m in states], made.joints[:, slot])
        assert [stamp_of(m) for _, m in states] == made.stamps_ns.tolist()
    assert Acehand(capsys, *write).code == 4 and Acehand(capsys, *write, "--overwrite").code == 0
    run = Acehand(capsys, *write, "--overwrite", "--episode", 5)
    assert run.code == 2 and "no episode 5" in run.messages
    assert bag_info(tmp_path / "bag").messages > 0  # what was there stays


def test_bag_write_of_a_table(tmp_path, capsys):
    table, bag = hands_file(tmp_path / "hands.npz"), tmp_path / "out.mcap"
    run = Acehand(capsys, "bag", "write", table, "--output", bag)
    assert run.code == 0 and run.json["topics"]["/right_hand/joint_states"] == COUNT
    assert bag.is_file() and list(tmp_path.glob(".*")) == []
    static = messages(bag, "/tf_static")[0][1].transforms[0]
    frames = (static.header.frame_id, static.child_frame_id)
    assert frames == ("camera_link", "camera_optical_frame")
    # z of the optical frame looks along x of the camera's body, x to the right, y down.
    turn = matrix(static.transform)[:3, :3]
    assert np.allclose(turn, [[0, 0, 1], [-1, 0, 0], [0, -1, 0]])
    (tmp_path / "empty").mkdir()
    run = Acehand(capsys, "bag", "write", tmp_path / "empty", "--output", tmp_path / "b")
    assert run.code == 2 and "LeRobot dataset" in run.messages


@pytest.mark.usefixtures("known_hands")
def test_the_main_job_takes_bags(recorded, calibration, tmp_path, capsys):
    run = Run(capsys, recorded, "--dry-run", "--calibration", calibration)
    assert run.code == 0 and run.json["episodes"][0]["frames"] == COUNT
    run = Run(capsys, recorded, "--dry-run", "--image-topic", "/cam/image_row")
    assert run.code == 2 and "Did you mean '/cam/image_raw'" in run.messages


def episode_run(capsys, path: Path, output: Path, *arguments: object) -> Acehand:
    return Acehand(capsys, "bag", "convert", path, "--output", output, "--no-overlay", *arguments)


@pytest.mark.usefixtures("known_hands")
def test_episodes_at_pauses_and_resumed(calibration, tmp_path, capsys):
    images = small_frames(8)
    times = [*stamps(4), *stamps(4, start=START + 5 * 10**9)]
    write_clip(tmp_path / "bag", images, times)
    arguments = (
        tmp_path / "bag", tmp_path / "out", "--calibration", calibration
    )  # fmt: skip
    run = episode_run(capsys, *arguments, "--bag-output", tmp_path / "bag_out")
    assert run.code == 0 and [e["frames"] for e in run.json["episodes"]] == [4, 4]
    states = messages(tmp_path / "bag_out", "/left_hand/joint_states")
    assert [stamp_of(m) for _, m in states] == times
    run = episode_run(capsys, *arguments, "--resume")
    assert run.code == 0 and run.json["episodes"] == [] and len(run.json["skipped"]) == 2


@pytest.mark.usefixtures("known_hands")
def test_episodes_by_topic(calibration, tmp_path, capsys):
    times, known = stamps(10), ("--calibration", calibration)
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(small_frames(10), times, strict=True):
            bag.image(image, ns)
        bag.text("/episode", times[1] + DELAY - 1, "pick up")
        bag.text("/episode", times[4] + DELAY - 1, "")
        bag.text("/episode", times[6] + DELAY - 1, "put down")
    run = episode_run(
        capsys, tmp_path / "bag", tmp_path / "topic", "--episode-topic", "/episode", *known
    )
    assert run.code == 0 and [e["frames"] for e in run.json["episodes"]] == [3, 4]
    demos = [demo for demo, _ in load_demonstrations(tmp_path / "topic")]
    assert [d.task for d in demos] == ["pick up", "put down"]
    assert np.abs(demos[0].stamps_ns - times[1:4]).max() <= 1  # ticks, rounded to ns
    run = episode_run(capsys, tmp_path / "bag", tmp_path / "none", "--episode-topic", "/episodes")
    assert run.code == 2 and "Did you mean '/episode'" in run.messages
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("known_hands")
def test_a_ros_1_bag(calibration, tmp_path, capsys):
    """The written bag is of ROS 2, without topics whose types it lacks."""
    images, times = small_frames(6), stamps(6)
    with Ros1Bag(tmp_path / "old.bag") as bag:
        for image, ns in zip(images, times, strict=True):
            bag.image(image, ns)
            bag.text("/note", ns, "a note")
            bag.raw("/arm", "maker_msgs/msg/Arm", ns, bytes([7, 0, 0, 0]))
    arguments = ("--bag-output", tmp_path / "new", "--calibration", calibration)
    run = episode_run(capsys, tmp_path / "old.bag", tmp_path / "out", *arguments)
    assert run.code == 0 and [e["frames"] for e in run.json["episodes"]] == [6]
    assert any("not copied: /arm" in note for note in run.json["notes"])
    seen = messages(tmp_path / "new", TOPIC)
    assert [time for time, _ in seen] == [ns + DELAY for ns in times]
    assert [stamp_of(m) for _, m in seen] == times
    for (_, message), image in zip(seen, images, strict=True):
        np.testing.assert_array_equal(message.data.reshape(image.shape), image)
    assert [m.data for _, m in messages(tmp_path / "new", "/note")] == ["a note"] * 6
    assert messages(tmp_path / "new", "/arm") == []
    states = messages(tmp_path / "new", "/left_hand/joint_states")
    assert [stamp_of(m) for _, m in states] == times


@pytest.mark.slow
def test_unregistered_depth_measures_the_distance(tmp_path, capsys):
    bag, off = write_rgbd(tmp_path / "bag"), {}
    for name, *arguments in (("depth", "--keep-depth"), ("none", "--depth-topic", "none")):
        run = episode_run(capsys, bag, tmp_path / name, *arguments)
        assert run.code == 0, run.err
        used = name == "depth"
        assert run.json["topics"]["depth"] == (DEPTH_TOPIC if used else None)
        counts = {"one_camera": COUNT, "several_cameras": 0, "depth": COUNT}
        evidence = {"left": counts, "right": counts} if used else None
        assert run.json["episodes"][0].get("evidence") == evidence
        hands = read_hand_motion(tmp_path / name / "acehand/episode_000000/hand_motion.parquet")
        wrists = hands.joints_camera[:, :, 0] - read_hand_motion(TRUTH).joints_camera[:COUNT, :, 0]
        off[name] = np.linalg.norm(wrists, axis=-1).mean()
    assert off["depth"] < 0.013 and off["depth"] < 0.7 * off["none"]
    (record,) = read_provenance(tmp_path / "depth")
    assert np.allclose(np.array(record["depth"]["T_camera_depth"])[:3, 3], [RIGHT_M, 0, 0])
    assert record["depth"]["camera"]["width"] == SIZE[0]


@pytest.mark.usefixtures("known_hands")
def test_depth_that_is_used_is_no_loss(calibration, tmp_path):
    job = JobSettings(tmp_path / "out", overlay=False, calibration=calibration)
    report = convert_bag(ConvertOptions(write_rgbd(tmp_path / "bag"), job))
    assert report.notes == (f"depth of {DEPTH_TOPIC} is used",) and report.losses == ()


def test_an_episode_without_a_hand_does_not_stop_the_others(tmp_path, capsys):
    hands = example_frames(4)
    height, width = hands[0].shape[:2]
    images = [*empty_frames(4, width, height), *hands]
    write_clip(tmp_path / "bag", images, [*stamps(4), *stamps(4, start=START + 5 * 10**9)])
    run = episode_run(capsys, tmp_path / "bag", tmp_path / "out")
    assert run.code == 1 and len(run.json["episodes"]) == 1
    assert "no hand" in run.messages and run.json["errors"][0]["source"].endswith("(clip 0)")


@pytest.mark.usefixtures("known_hands")
def test_lost_messages_are_reported(calibration, tmp_path, capsys):
    with SampleBag(tmp_path / "bag") as bag:
        for i, (image, ns) in enumerate(zip(small_frames(8), stamps(8), strict=True)):
            bag.image(image if i != 3 else pictures(1)[0], ns)
    known = ("--calibration", calibration)
    run = episode_run(
        capsys, tmp_path / "bag", tmp_path / "out", "--bag-output", tmp_path / "o", *known
    )
    assert run.code == 0 and run.json["lost_messages"] == {TOPIC: 1}
    assert "1 messages were lost" in run.err and "pictures of another size" in run.err
    assert run.json["topics"]["written"][TOPIC] == 8  # copied anyway
    assert run.json["topics"]["written"]["/left_hand/joint_states"] == 7
    run = Run(capsys, tmp_path / "bag", "--dry-run", "--quiet", *known)
    assert run.code == 0 and run.json["lost_messages"] == {TOPIC: 1}
    assert "1 messages were lost" in run.err and TOPIC in run.err
    assert any("1 lost" in note for note in run.json["notes"])


@pytest.mark.slow
def test_bag_write_of_episodes_with_the_same_stamps(calibration, tmp_path, capsys):
    """Every video begins at 0; in the bag the episodes follow each other and none is lost."""
    tables = [hands_file(tmp_path / f"{name}.npz") for name in "ab"]
    known = ("--calibration", calibration)
    run = Run(capsys, *tables, "--output", tmp_path / "set", "--no-overlay", *known)
    assert run.code == 0 and len(run.json["episodes"]) == 2
    run = Acehand(capsys, "bag", "write", tmp_path / "set", "--output", tmp_path / "bag")
    assert run.code == 0 and len(run.json["notes"]) == 1 and "episode 1" in run.json["notes"][0]
    states = messages(tmp_path / "bag", "/left_hand/joint_states")
    assert [stamp_of(m) for _, m in states] == [time for time, _ in states]
    steps = np.diff([time for time, _ in states])
    assert len(states) == 2 * COUNT and (steps > 0).all() and steps[COUNT - 1] == 2 * 10**9
    made = [demo for demo, _ in load_demonstrations(tmp_path / "set")]
    found = [m.position for _, m in states]
    np.testing.assert_array_equal(found, np.concatenate([demo.joints[:, 0] for demo in made]))


@pytest.mark.slow
@pytest.mark.usefixtures("known_hands")
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_messages_of_humble_keep_their_definition(calibration, tmp_path, storage):
    """Range has gained a field since; Humble's metadata.yaml does not name the distribution."""
    kind, path = "sensor_msgs/msg/Range", tmp_path / "bag"
    with SampleBag(path, distro="humble", storage=storage) as bag:
        for image, ns in zip(small_frames(2), stamps(2), strict=True):
            bag.image(image, ns)
            message = bag.make(
                kind, header=bag.header(ns), radiation_type=0, field_of_view=0.1, min_range=0.1,
                max_range=2.0, range=1.5,
            )  # fmt: skip
            bag.put("/range", kind, ns, message)
    if storage == "mcap":
        path = path / "bag.mcap"
    else:  # as Humble's recorder leaves it: version 5, no definitions, no distribution
        metadata = path / "metadata.yaml"
        content = yaml.safe_load(metadata.read_text())
        content["rosbag2_bagfile_information"]["version"] = 5
        content["rosbag2_bagfile_information"].pop("ros_distro", None)
        metadata.write_text(yaml.safe_dump(content))
        with sqlite3.connect(path / "bag.db3") as database:
            database.execute("DROP TABLE message_definitions")
    job = JobSettings(tmp_path / "dataset", overlay=False, calibration=calibration)
    convert_bag(ConvertOptions(path, job, tmp_path / "out"))
    with AnyReader([tmp_path / "out"]) as reader:
        (connection,) = [c for c in reader.connections if c.topic == "/range"]
        assert "variance" not in connection.msgdef.data
        read = [reader.deserialize(raw, kind).range for _, _, raw in reader.messages([connection])]
    assert read == [1.5, 1.5]


BACK = [ns if i < 6 else ns - 5 * 10**9 for i, ns in enumerate(stamps(COUNT))]


@pytest.mark.few(1)
@pytest.mark.usefixtures("known_hands")
@pytest.mark.parametrize(
    ("said", "right"),
    [
        ([0] * COUNT, [ns + DELAY for ns in stamps(COUNT)]),
        ([ns + (i == 5) * 3600 * 10**9 for i, ns in enumerate(stamps(COUNT))], stamps(COUNT)),
        (BACK, BACK),
    ],
    ids=["not set", "one wild", "set back"],
)
def test_bad_stamps_in_the_written_bag(calibration, tmp_path, said, right):
    """Headers keep good stamps; times in a trajectory only ever increase."""
    with SampleBag(tmp_path / "bag") as bag:
        for image, stamp, ns in zip(small_frames(COUNT), said, stamps(COUNT), strict=True):
            bag.image(image, stamp, log_ns=ns + DELAY)
    job = JobSettings(tmp_path / "dataset", overlay=False, calibration=calibration)
    convert_bag(ConvertOptions(tmp_path / "bag", job, tmp_path / "out"))
    states = messages(tmp_path / "out", "/left_hand/joint_states")
    assert [stamp_of(m) for _, m in states] == right
    ((_, trajectory),) = messages(tmp_path / "out", "/left_hand/joint_trajectory")
    check_controller_takes(trajectory, load_robot("inspire").hand("left"), times=stamps(COUNT))
    made, _ = next(load_demonstrations(tmp_path / "dataset"))
    np.testing.assert_allclose([m.position for _, m in states], made.joints[:, 0], atol=1e-6)


@pytest.mark.usefixtures("known_hands")
def test_topics_that_are_taken(converted, calibration, tmp_path):
    """A converted bag converted again keeps the first result under its names."""
    job = JobSettings(tmp_path / "dataset", overlay=False, calibration=calibration)
    options = ConvertOptions(converted / "out", job, tmp_path / "out")
    written = convert_bag(options).topics["written"]
    assert written["/left_hand/joint_states"] == COUNT
    assert written["/acehand/left_hand/joint_states"] == COUNT
    assert written["/tf"] == 2 * COUNT


@pytest.mark.usefixtures("known_hands")
def test_a_full_disk(recorded, calibration, tmp_path, capsys, monkeypatch):
    from rosbags.rosbag2 import storage_mcap

    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(storage_mcap.McapWriter, "close_chunk", Mock(side_effect=full))
    words = (capsys, recorded, tmp_path / "out", "--bag-output", tmp_path / "bag_out.mcap")
    run = episode_run(*words, "--calibration", calibration)
    assert run.code == 4 and "No space left on device" in run.messages
    assert run.json["dataset"] == str(tmp_path / "out") and len(run.json["episodes"]) == 1
    assert run.json["bag"] is None and run.json["topics"]["image"] == TOPIC
    assert len(list(load_demonstrations(tmp_path / "out"))) == 1  # the dataset stays
    assert names_in(tmp_path) == ["out"]
    for place in (recorded, recorded / "more"):  # nor is the input replaced
        run = episode_run(capsys, recorded, tmp_path / "o", "--bag-output", place, "--overwrite")
        assert run.code == 4 and str(place) in run.messages
    assert bag_info(recorded).messages == 2 * COUNT


@pytest.mark.few(1)
@pytest.mark.usefixtures("known_hands")
@pytest.mark.parametrize("stage", ["index the bag", "track", "copy the bag", "write messages"])
def test_stopped_midway(recorded, calibration, tmp_path, stage):
    cancel = threading.Event()
    job = JobSettings(tmp_path / "out", overlay=False, calibration=calibration)
    options = ConvertOptions(recorded, job, tmp_path / "bag_out")
    with pytest.raises(Interrupted) as stopped:
        convert_bag(options, lambda name, *_: name == stage and cancel.set(), cancel)
    report = stopped.value.report.to_json()
    assert report["bag"] is None and not (tmp_path / "bag_out").exists()
    assert len(report["episodes"]) == (0 if stage in ("index the bag", "track") else 1)
    assert not [p for p in tmp_path.iterdir() if "partial" in p.name]
