"""Gaps under a camera that moves: hands and turns that are known by arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.evidence import Pose
from acehand_core.motion import FILL_FRAMES, CameraMotion, Recording
from acehand_core.pipeline.report import filled_gaps
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import hands_at, only_hands
from acehand_core.trackers.mediapipe import reconstruct as module
from acehand_core.trackers.mediapipe.gaps import smooth_and_fill
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from helpers import fake_hands
from helpers.fake_hands import HAND, KNOWN_LENGTH, PINHOLE, ZERO
from helpers.fake_motion import random_motion

COUNT, GAP = 90, slice(35, 60)
SECONDS = np.arange(COUNT) / 30
STAMPS = np.round(SECONDS * 1e9).astype(np.int64)
SEEN = np.ones(COUNT)
SEEN[GAP] = 0
WRIST = np.array([0.06, 0.1, 0.45])


def there_and_back(angle, start=38, stop=57):
    """Yaw of a head that is still, looks aside within the gap, and is still again: (T,)."""
    share = np.clip((np.arange(COUNT) - start) / (stop - start), 0, 1)
    return angle * np.sin(np.pi * share) ** 2


def yawed(angle):
    return rotations.exp(np.asarray(angle)[:, None] * np.array([0.0, 1.0, 0.0]))


def motion_of(turns, **entries):
    count = len(turns)
    given = {"broken": np.zeros(count, bool), "sigma_rad": np.zeros(count)}
    return CameraMotion(turns, **(given | entries))


def still_hand(T_world_camera):
    """A hand that lies still in the world, in the camera frame."""
    T_world_hand = frames.rigid(rotations.exp(np.array([-1.2, 0.3, 0.2])), WRIST)
    T = frames.inverse(T_world_camera) @ T_world_hand
    angles = np.tile(articulation.comfortable(), (len(T), 1))
    return Pose(T[:, :3, :3], angles, T[:, :3, 3])


def turned_only(angle):
    return frames.rigid(yawed(angle), np.zeros(3))


def unseen(pose):
    """What is not seen holds what was seen last, as in the tracker."""
    last = np.maximum.accumulate(np.where(SEEN > 0, np.arange(COUNT), 0))
    return pose.rows(last)


def fill(pose, motion=None, poses=None):
    return smooth_and_fill(unseen(pose), SEEN, SECONDS, motion, poses)


def off_mm(found, truth):
    return 1e3 * np.linalg.norm(found.wrist - truth.wrist, axis=1)


def same_bits(a, b, rows=slice(None)):
    names = ("global_orient", "angles", "wrist")
    return all(getattr(a, n)[rows].tobytes() == getattr(b, n)[rows].tobytes() for n in names)


@pytest.mark.parametrize("degrees", [20, 60, 130])
def test_a_hand_that_lies_still_is_where_the_turn_says(degrees):
    """Also behind the camera. What the tracker did before turns with the head."""
    T = turned_only(there_and_back(np.radians(degrees)))
    truth = still_hand(T)
    found, gaps = fill(truth, CameraMotion.from_poses(T))
    assert [(gap.start, gap.stop, gap.frame) for gap in gaps] == [(35, 60, "rotation")]
    np.testing.assert_allclose(found.wrist, truth.wrist, atol=1e-9)
    np.testing.assert_allclose(found.global_orient, truth.global_orient, atol=1e-9)
    before, _ = fill(truth)
    assert off_mm(before, truth)[GAP].max() > 900 * 0.45 * 2 * np.sin(np.radians(degrees) / 2)


@pytest.mark.parametrize("speed", [0.0, 0.3])
def test_with_poses_a_hand_is_where_they_say(speed):
    """Also one that crosses the world while the head looks away and moves: on its line.

    Rotation alone is off by about what the head moves.
    """
    T = turned_only(there_and_back(np.radians(50)))
    T[:, :3, 3] = there_and_back(0.2)[:, None] * np.array([0.5, 1.0, 0.0])
    if not speed:
        T[60:, :3, 3] += [0.06, 0.0, 0.0]  # it ends elsewhere, which tells the frames apart
    path = WRIST + np.array([speed, 0.0, speed / 3]) * (SECONDS[:, None] - 1.5)
    truth = replace(still_hand(T), wrist=frames.apply(frames.inverse(T), path))
    motion = CameraMotion.from_poses(T)
    found, (gap,) = fill(truth, motion, T)
    assert gap.frame == "world" and off_mm(found, truth)[GAP].max() < 2.0
    turned, (gap,) = fill(truth, motion)
    assert gap.frame != "world" and off_mm(turned, truth)[GAP].max() > 100


def test_a_carried_hand_turns_with_the_head():
    """It is still in the camera frame: filled as without any motion, to the bit."""
    T = turned_only(np.linspace(0, 1.2, COUNT))
    carried = still_hand(np.tile(np.eye(4), (COUNT, 1, 1)))
    found, (gap,) = fill(carried, CameraMotion.from_poses(T), T)
    before, _ = fill(carried)
    assert gap.frame == "camera" and same_bits(found, before, GAP)
    np.testing.assert_allclose(found.wrist, carried.wrist, atol=2e-4)


def test_each_gap_has_its_own_frame():
    """A hand that lies still through one look aside, and is carried through another."""
    angle = np.concatenate([there_and_back(np.radians(60)), np.linspace(0, 1.2, COUNT)])
    T = turned_only(angle)
    lies, carried = still_hand(T[:COUNT]), still_hand(np.tile(np.eye(4), (COUNT, 1, 1)))
    both = Pose(*(np.concatenate([getattr(p, n) for p in (lies, carried)])
                  for n in ("global_orient", "angles", "wrist")))  # fmt: skip
    weights = np.tile(SEEN, 2)
    last = np.maximum.accumulate(np.where(weights > 0, np.arange(2 * COUNT), 0))
    found, gaps = smooth_and_fill(
        both.rows(last), weights, np.arange(2 * COUNT) / 30, CameraMotion.from_poses(T)
    )
    assert [gap.frame for gap in gaps] == ["rotation", "camera"]
    off = off_mm(found, both)
    assert off[GAP].max() < 1e-3 and off[125:150].max() < 1e-3
    # Nothing jumps where one way of smoothing gives way to the other.
    assert np.abs(np.diff(off)).max() < 3.0


SETTINGS = replace(KNOWN_LENGTH, quality="fast")
AWAY = turned_only(there_and_back(np.radians(60)))
KNOWN = CameraMotion.from_poses(AWAY)


@pytest.mark.parametrize(("motion", "frame"), [
    (replace(KNOWN, broken=np.arange(COUNT) == 45), "camera"),
    (replace(KNOWN, broken=np.arange(COUNT) == GAP.start), "camera"),
    (replace(KNOWN, broken=np.arange(COUNT) == GAP.stop), "camera"),
    (replace(KNOWN, broken=np.arange(COUNT) == 34), "rotation"),
    (replace(KNOWN, broken=np.arange(COUNT) == 61), "rotation"),
    (replace(KNOWN, sigma_rad=np.full(COUNT, np.radians(4.0))), "camera"),
    (replace(KNOWN, sigma_rad=np.full(COUNT, np.radians(0.5))), "rotation"),
    (CameraMotion.from_poses(turned_only(there_and_back(np.radians(4.9)))), "camera"),
    (CameraMotion.from_poses(turned_only(there_and_back(np.radians(5.2)))), "rotation"),
], ids=["broken", "broken first", "broken last", "broken before", "broken after", "unsure",
        "sure enough", "calm", "turned"])  # fmt: skip
def test_a_turn_that_is_not_known_does_not_fill(motion, frame):
    truth = still_hand(turned_only(rotations.log(motion.rotations)[:, 1]))
    found, (gap,) = fill(truth, motion)
    assert gap.frame == frame
    assert same_bits(found, fill(truth)[0], GAP) == (frame == "camera")


@pytest.mark.parametrize("turn", [np.eye(3), rotations.exp(np.array([0.3, -0.8, 0.2]))])
def test_a_camera_that_does_not_turn_changes_no_bit(turn):
    rng = np.random.default_rng(3)
    pose = still_hand(AWAY)
    pose = replace(pose, wrist=pose.wrist + rng.normal(0, 0.01, (COUNT, 3)))
    still = np.broadcast_to(turn, (COUNT, 3, 3)).copy()
    # Unbroken pieces may have references of their own.
    elsewhere = rotations.exp(np.array([0.0, 1.0, 0.0])) @ still[20:]
    pieces = motion_of(np.concatenate([still[:20], elsewhere]), broken=np.arange(COUNT) == 20)
    before, _ = fill(pose)
    for motion in (motion_of(still), pieces):
        assert same_bits(fill(pose, motion)[0], before)


def test_a_still_hand_under_a_shaking_head_is_followed_exactly():
    """Without its turn the smoother takes the head's motion for noise: some millimetres."""
    T = turned_only(0.35 * np.sin(2 * np.pi * 3.0 * SECONDS))
    truth = still_hand(T)
    found, _ = smooth_and_fill(truth, np.ones(COUNT), SECONDS, CameraMotion.from_poses(T))
    np.testing.assert_allclose(found.wrist, truth.wrist, atol=1e-9)
    before, _ = smooth_and_fill(truth, np.ones(COUNT), SECONDS)
    assert off_mm(before, truth).max() > 3


# --- the tracker ---------------------------------------------------------------------------------


def detections(poses):
    """A perfect network's sightings of a hand that lies still; none in the gap."""
    joints = still_hand(poses).keypoints("right", HAND.rest_keypoints("right", ZERO))
    found = fake_hands.seen(joints, "right")
    return [d if seen else None for d, seen in zip(found, SEEN, strict=True)], joints


def tracked(motion=None, poses=None):
    clip = (PINHOLE, STAMPS, SETTINGS, motion, poses)
    return fake_hands.reconstruct(detections(AWAY)[0], "right", *clip)


def test_the_tracker_fills_in_the_frame_it_says():
    _, joints = detections(AWAY)
    found, before = tracked(KNOWN, AWAY), tracked()
    off = 1e3 * np.linalg.norm(found.joints - joints, axis=-1)
    assert off[GAP].max() < 15  # what the fit itself is off
    assert 1e3 * np.linalg.norm(before.joints - joints, axis=-1)[GAP].max() > 300
    assert (found.fill_frame[GAP] == 3).all() and (tracked(KNOWN).fill_frame[GAP] == 2).all()
    assert (before.fill_frame[GAP] == 1).all()
    assert (found.fill_frame[~found.filled] == 0).all()
    # A turn that is known exactly takes nothing from the quality: 0.4, less by e in ten frames.
    np.testing.assert_array_equal(found.quality, before.quality)
    assert before.quality[GAP][0] == module.FILLED_QUALITY == 0.4
    assert before.quality[GAP][12] == pytest.approx(0.4 * np.exp(-1.2))


def test_quality_falls_with_the_length_of_the_gap_and_the_turns_uncertainty():
    quality = [
        tracked(replace(KNOWN, sigma_rad=np.full(COUNT, np.radians(sigma)))).quality
        for sigma in (0.0, 0.1, 0.5)
    ]
    seen = SEEN > 0
    for less, more in zip(quality[1:], quality, strict=False):
        np.testing.assert_array_equal(less[seen], more[seen])
        assert (less[GAP] < more[GAP]).all()
    # Thirteen steps of half a degree in the middle: a half at five degrees.
    expected = quality[0][47] / (1 + 13 * 0.5**2 / 5**2)
    assert quality[2][47] == pytest.approx(expected)
    np.testing.assert_allclose(quality[2][GAP], quality[2][GAP][::-1])
    assert (np.diff(quality[2][35:48]) < 0).all()
    broken = tracked(replace(KNOWN, broken=np.arange(COUNT) == 45)).quality
    np.testing.assert_array_equal(broken[GAP], 0.5 * quality[0][GAP])


class Black:
    """Frames that are never read."""

    def __len__(self):
        return COUNT

    def read(self, start, stop):
        raise AssertionError

    at = read


def track(monkeypatch, poses):
    tracker = MediaPipeTracker(SETTINGS)
    slots = [[None, d] for d in detections(AWAY)[0]]
    motion = None if poses is None else CameraMotion.from_poses(poses)
    monkeypatch.setattr(tracker, "_detect", lambda *_: (slots, motion, ""))
    return tracker.track(
        Recording("clip", None, STAMPS, 30.0, 1280, 720, Black(), PINHOLE, T_world_camera=poses)
    )


def test_poses_of_a_recording_are_used_and_kept(monkeypatch, tmp_path):
    """From the recording to the file of hands, parts of it, and the report."""
    motion = track(monkeypatch, AWAY)
    assert filled_gaps(motion) == {"camera": 0, "rotation": 0, "world": 1}
    assert (motion.fill_frame[:, 0] == 0).all()
    write_hand_motion(motion, tmp_path / "hands.parquet")
    read = read_hand_motion(tmp_path / "hands.parquet")
    np.testing.assert_array_equal(read.fill_frame, motion.fill_frame)
    assert read.fill_frame.dtype == motion.fill_frame.dtype
    assert filled_gaps(only_hands(read, "left")) == dict.fromkeys(FILL_FRAMES, 0)
    shown = hands_at(read, STAMPS[40:50], 30.0)
    assert sum(filled_gaps(shown).values()) == 1 and len(shown.fill_frame) == 10
    write_hand_motion(motion, tmp_path / "hands.csv")
    header = (tmp_path / "hands.csv").read_text("utf-8").splitlines()[0]
    assert '"fill_frame"' in header.split(",")


def test_gaps_are_counted_by_hand_and_frame():
    frame = np.zeros((12, 2), np.int8)
    frame[1:4, 0], frame[6:8, 0], frame[8:9, 0], frame[0:12, 1] = 1, 3, 2, 3
    motion = replace(random_motion(0, 12), fill_frame=frame)
    assert filled_gaps(motion) == {"camera": 1, "rotation": 1, "world": 2}


def test_poses_that_are_not_known_break_the_motion():
    T = AWAY.copy()
    T[10:12] = np.nan
    motion = CameraMotion.from_poses(T)
    assert np.flatnonzero(motion.broken).tolist() == [10, 11, 12]
    assert np.isfinite(motion.rotations).all()
    truth = still_hand(AWAY)
    found, (gap,) = fill(truth, motion, T)
    assert gap.frame != "camera" and off_mm(found, truth).max() < 1e-3


@pytest.mark.parametrize(("change", "words"), [
    ({"sigma_rad": np.full(COUNT, np.nan)}, "a step that is not known is broken"),
    ({"broken": np.arange(COUNT) == 0}, "nothing comes before frame 0"),
])  # fmt: skip
def test_a_motion_that_is_not_one_is_refused(change, words):
    for frame in (4, -1):
        with pytest.raises(SchemaError, match="fill_frame"):
            replace(random_motion(), fill_frame=np.full((5, 2), frame))
    with pytest.raises(SchemaError, match=words):
        replace(KNOWN, **change)
