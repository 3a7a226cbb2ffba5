"""Files of hands as trackers, and trackers of third parties."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import (
    AcehandError,
    InputError,
    MissingDependencyError,
    SchemaError,
    UnsafeFileError,
)
from acehand_core.motion import Recording
from acehand_core.recordings.hands_file import read_motion_file, with_hands, write_hand_motion
from acehand_core.recordings.keypoint_files import read_joints_file
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import HandsFile, format_of
from acehand_core.safe_files import safe_load_npz
from acehand_core.trackers.base import Tracker, TrackerSettings, make_tracker, tracker_names
from acehand_core.trackers.choose import FileTracker, open_tracked
from helpers.fake_motion import CAMERA, assert_same_bits, random_motion
from helpers.plugins import installed
from helpers.video_fixtures import Images

BOTH = TrackerSettings()


def joints_file(tmp_path, **entries):
    path = tmp_path / "joints.npz"
    np.savez(path, **entries)
    return path


def hands(*shape):
    """Points as far apart as those of a hand, metres."""
    return np.random.default_rng(0).normal(size=(*shape, 21, 3)) * 0.05


def one_hand():
    return hands(4)


def two_hands(count=4):
    return hands(count, 2)


def read(tmp_path, *arguments, **entries):
    return read_joints_file(joints_file(tmp_path, **entries), *arguments)


@pytest.mark.parametrize("side", ["left", "right"])
def test_one_hand_goes_to_its_slot(tmp_path, side):
    joints, slot = one_hand(), ("left", "right").index(side)
    for stored in (side, np.array([side]), np.array(side.encode())):
        motion = read(tmp_path, joints=joints, side=stored)
        np.testing.assert_array_equal(motion.joints_camera[:, slot], joints)
        assert motion.observed[:, slot].all() and not motion.observed[:, 1 - slot].any()
        assert np.isnan(motion.joints_camera[:, 1 - slot]).all()
    assert read(tmp_path, side, joints=joints).observed[:, slot].all()
    # The file counts more than the command line.
    other = "right" if side == "left" else "left"
    assert read(tmp_path, other, joints=joints, side=side).observed[:, slot].all()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f8"])
def test_defaults(tmp_path, kind):
    joints = two_hands(5).astype(kind)
    motion = read(tmp_path, joints=joints)
    np.testing.assert_array_equal(motion.joints_camera, joints.astype(float))
    assert motion.joints_camera.dtype == np.float64
    assert motion.fps == 30.0 and not motion.placed and motion.hand_model == "none"
    assert motion.timestamps_ns.tolist() == [0, 33333333, 66666667, 100000000, 133333333]
    assert (motion.quality == 1).all() and motion.observed.all() and not motion.filled.any()
    assert np.isnan(motion.hand_pose).all() and np.isnan(motion.joints_image).all()
    assert motion.provenance.source.endswith("joints.npz")
    assert len(motion.provenance.source_sha256) == 64


def test_rate_and_stamps(tmp_path):
    motion = read(tmp_path, joints=two_hands(), fps=120)
    assert motion.fps == 120.0 and motion.timestamps_ns[3] == 25_000_000
    stamps = np.array([5, 20_000_005, 41_000_005, 60_000_005])
    motion = read(tmp_path, joints=two_hands(), timestamps_ns=stamps)
    np.testing.assert_array_equal(motion.timestamps_ns, stamps)
    assert motion.fps == pytest.approx(50.0)
    assert read(tmp_path, joints=two_hands(), timestamps_ns=stamps, fps=48.0).fps == 48.0
    motion = read(tmp_path, joints=two_hands(1), timestamps_ns=stamps[:1].astype(np.uint64))
    assert motion.fps == 30.0 and motion.timestamps_ns.tolist() == [5]


def test_confidence_and_missing_joints_lower_the_quality(tmp_path):
    joints = two_hands(4)
    joints[0, 0, [1, 2, 3, 4, 6, 7, 8]] = np.nan  # seven joints of 21
    joints[1, 0, 0] = np.nan  # no wrist
    joints[2, 0, [4, 8, 12, 16, 20]] = np.nan  # no tip
    joints[3, 0, 7, 1] = np.inf
    motion = read(tmp_path, joints=joints, confidence=np.array([0.5, 1.0, 1.0, 0.25]))
    assert motion.observed[:, 0].tolist() == [True, False, False, True]
    np.testing.assert_allclose(motion.quality[:, 0], [0.5 * 14 / 21, 0, 0, 0.25 * 20 / 21])
    np.testing.assert_allclose(motion.quality[:, 1], [0.5, 1.0, 1.0, 0.25])
    assert np.isnan(motion.joints_camera[[1, 2], 0]).all()
    # A joint that is not finite is unknown; the rest stays.
    assert np.isnan(motion.joints_camera[3, 0, 7]).all()
    assert np.isfinite(np.delete(motion.joints_camera[3, 0], 7, axis=0)).all()
    per_hand = np.array([[1.0, 0.2], [np.nan, 2.0], [0.3, -1.0], [1, np.inf]])
    quality = read(tmp_path, joints=two_hands(), confidence=per_hand).quality
    np.testing.assert_allclose(quality, [[1.0, 0.2], [0, 1], [0.3, 0], [1, 1]])


BOTH_HANDS, ONE_HAND = {"joints": two_hands()}, {"joints": one_hand()}
WRONG = [
    ({"side": "left"}, "'joints' is missing; valid: side"),
    (BOTH_HANDS | {"timestamp_ns": 1}, "Did you mean 'timestamps_ns'?"),
    (BOTH_HANDS | {"wings": 1}, "'wings'; valid: confidence"),
    ({"joints": np.ones((4, 2, 21, 3), int)}, "joints are int64"),
    ({"joints": np.ones((4, 20, 3)), "side": "left"}, "shape (4, 20, 3)"),
    ({"joints": np.ones((4, 3, 21, 3))}, "shape (4, 3, 21, 3)"),
    ({"joints": np.ones((4, 63))}, "(T, 21, 3) or (T, 2, 21, 3)"),
    ({"joints": np.float64(3.0)}, "shape ()"),
    ({"joints": np.ones((0, 2, 21, 3))}, "no frame"),
    (ONE_HAND, "hands=left|right"),
    (ONE_HAND | {"side": "both"}, "'both'; valid: left, right"),
    (ONE_HAND | {"side": "rigth"}, "Did you mean 'right'?"),
    (BOTH_HANDS | {"frame": "cam"}, "Did you mean 'camera'?"),
    (BOTH_HANDS | {"fps": 0.0}, "fps is 0.0"),
    (BOTH_HANDS | {"fps": -30}, "fps is -30"),
    (BOTH_HANDS | {"fps": np.inf}, "fps is inf"),
    (BOTH_HANDS | {"fps": np.nan}, "fps is nan"),
    (BOTH_HANDS | {"fps": 3e9}, "above 0 up to 1e+06"),
    (BOTH_HANDS | {"fps": "fast"}, "fps is fast"),
    (BOTH_HANDS | {"fps": [30.0, 30.0]}, "fps is [30. 30.]"),
    (BOTH_HANDS | {"fps": -1.0, "timestamps_ns": np.arange(4)}, "fps is -1.0"),
    (BOTH_HANDS | {"timestamps_ns": np.arange(4.0)}, "4 integers"),
    (BOTH_HANDS | {"timestamps_ns": np.arange(3)}, "4 integers"),
    (BOTH_HANDS | {"timestamps_ns": [0, 10, 5, 20]}, "frame 2"),
    (BOTH_HANDS | {"timestamps_ns": [0, 1, 2, 2]}, "frame 3"),
    (BOTH_HANDS | {"confidence": np.ones((4, 2, 20))}, "shape (4, 2, 20)"),
    (BOTH_HANDS | {"confidence": ["a"] * 4}, "confidence is <U1"),
]


@pytest.mark.parametrize(("entries", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_joints_file_is_refused(tmp_path, entries, message):
    path = joints_file(tmp_path, **entries)
    with pytest.raises(SchemaError) as error:
        read_motion_file(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


def test_pickles_are_refused_unopened(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    bomb = np.array([Bomb()])
    for entries in ({"joints": bomb}, {"joints": two_hands(), "side": bomb}):
        with pytest.raises(UnsafeFileError, match="pickled"):
            read_motion_file(joints_file(tmp_path, **entries))
    assert not (tmp_path / "run").exists()


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "joints.npz"
    with pytest.raises(InputError, match=r"joints\.npz: cannot be read"):
        read_motion_file(path)
    np.save(tmp_path / "plain.npy", two_hands())
    np.savez_compressed(path, joints=two_hands(50))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x55
    plain = (tmp_path / "plain.npy").read_bytes()
    for content in (b"", b"no zip", plain, whole[:100], whole[:-40], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(SchemaError, match=r"joints\.npz: "):
            read_motion_file(path)
    path.write_bytes(whole[:29] + b"\xff" + whole[30:])  # an array that begins after the file's end
    with pytest.raises(SchemaError, match=r"joints\.npz: "):
        safe_load_npz(path)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_damage_is_never_a_traceback(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("npz")
    np.savez(folder / "j.npz", joints=two_hands(2), fps=30.0, frame="camera", side="left")
    content = bytearray((folder / "j.npz").read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "j.npz").write_bytes(content[: data.draw(st.integers(1, len(content)))])
    try:
        read_motion_file(folder / "j.npz")
    except AcehandError as error:
        assert "j.npz" in str(error)


def video(count, camera=None, poses=None, width=1280, height=960):
    stamps = np.arange(count, dtype=np.int64) * 40_000_000
    pictures = Images([None] * count)  # never read
    return Recording("v.mp4", "00", stamps, 25.0, width, height, pictures, camera, poses)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "hands.parquet"
    write_hand_motion(random_motion(3, 6), path)
    return path


def test_a_table_alone_comes_back_as_it_is(table):
    recording, tracker = open_tracked(table, "auto", BOTH, RecordingOptions())
    assert isinstance(tracker, Tracker)
    assert len(recording) == 6 and recording.frames is None
    assert (recording.width, recording.height) == (640, 480) and recording.camera == CAMERA
    assert_same_bits(tracker.track(recording), random_motion(3, 6))


def test_with_a_video_its_time_and_camera_count(table):
    stored, same = random_motion(3, 6), np.array_equal

    def tracked(recording):
        recording = with_hands(recording, table, read_motion_file(table))
        return FileTracker(recording.hands).track(recording)

    mine = replace(CAMERA, model="pinhole", distortion=(), fx=700.0)
    poses = np.tile(np.eye(4), (6, 1, 1))
    motion = tracked(video(6, mine, poses))
    assert motion.fps == 25.0 and motion.timestamps_ns[1] == 40_000_000
    assert motion.camera == mine.rescaled(1280, 960) and same(motion.T_world_camera, poses)
    # Without a camera and poses of its own the video has the file's, the camera at its size.
    motion = tracked(video(6))
    assert motion.camera == CAMERA.rescaled(1280, 960)
    assert same(motion.T_world_camera, stored.T_world_camera)
    assert same(motion.joints_camera, stored.joints_camera, equal_nan=True)
    with pytest.raises(InputError, match=r"6 frames but v\.mp4 has 7"):
        tracked(video(7))


@pytest.mark.parametrize("hands", ["left", "right"])
def test_only_the_wanted_hand_is_given(table, hands):
    opened = open_tracked(table, "auto", TrackerSettings(hands=hands), RecordingOptions())
    motion, whole = opened[1].track(opened[0]), random_motion(3, 6)
    slot = ("left", "right").index(hands)
    np.testing.assert_array_equal(motion.known[:, slot], whole.known[:, slot])
    np.testing.assert_array_equal(motion.quality[:, slot], whole.quality[:, slot])
    for name in ("presence", "visible", "quality", "observed", "filled"):
        assert not getattr(motion, name)[:, 1 - slot].any()


def test_choosing_by_name_or_file(table, tmp_path):
    assert format_of(Path("a.npz")) is HandsFile and format_of(table) is HandsFile
    assert format_of(Path("video.mp4")) is not HandsFile
    assert isinstance(open_tracked(table, "auto", BOTH, RecordingOptions())[1], FileTracker)
    assert make_tracker("auto", BOTH).name == "mediapipe"
    with pytest.raises(InputError, match=r"none\.npz"):
        open_tracked(tmp_path / "none.npz", "auto", BOTH, RecordingOptions())
    with pytest.raises(InputError, match=r"'mediapip'.*'mediapipe'"):
        make_tracker("mediapip", BOTH)


PLUGIN = """
class Mine:
    name, placed, hand_model = "mine", True, "none"
    def __init__(self, settings):
        self.settings = settings
    def track(self, recording, progress=None):
        return self.settings.hands

def half(settings):
    return type("Half", (), {"name": "half"})()

def broken(settings):
    raise ValueError("its own affair")
"""


@pytest.fixture
def plugin(tmp_path):
    (tmp_path / "hand_plugin.py").write_text(PLUGIN)
    trackers = {name: f"hand_plugin:{name}" for name in ("half", "broken", "gone")}
    trackers |= dict.fromkeys(("mine", "mediapipe"), "hand_plugin:Mine")
    with installed(tmp_path, {"acehand.trackers": trackers | {"absent": "no_such_module:Tracker"}}):
        yield
    sys.modules.pop("hand_plugin", None)


def test_a_third_partys_tracker_is_found_by_name(plugin):
    assert " ".join(tracker_names()) == "absent ace auto broken gone half mediapipe mine"
    tracker = make_tracker("mine", TrackerSettings(hands="left"))
    assert tracker.name == "mine" and tracker.track(None) == "left"
    assert make_tracker("mediapipe", BOTH).name == "mediapipe"  # ours cannot be replaced
    for name, error, message in (
        ("yours", InputError, "valid: absent, ace, auto, broken"),
        ("gone", MissingDependencyError, "'gone' .acehand.trackers."),
        ("absent", MissingDependencyError, "'absent' .acehand.trackers."),
        ("half", InputError, "'half'.*placed, hand_model, track"),
        ("broken", ValueError, "its own affair"),
    ):
        with pytest.raises(error, match=message):
            make_tracker(name, BOTH)
