"""Scores of tracked hands: hands that are off by a known amount, all numbers by arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Depth, HandMotion, Recording
from benchmarks import tracker
from benchmarks.tracking import peer
from benchmarks.tracking.depth import with_worse_depth
from benchmarks.tracking.robot_tips import RobotTips, tip_measures
from benchmarks.tracking.score import Comparison, Truth, errors_of, measures, same_hands, score
from helpers.retarget_samples import motion_of, moving_hands
from retarget.robots.robot import load_robot

PINHOLE = Camera("pinhole", 640, 480, 500.0, 500.0, 319.5, 239.5)
FISHEYE = Camera("kannala_brandt", 640, 480, 250.0, 250.0, 319.5, 239.5, (0.02, -0.01, 0.0, 0.0))
COUNT = 12
#: Wrist, then five straight fingers 2 cm apart, four joints each 4 cm apart: 16 cm long.
FLAT = np.array([[0.0, 0.0, 0.0]] + [
    [0.02 * finger - 0.04, -0.04 * joint, 0.0] for finger in range(5) for joint in (1, 2, 3, 4)
])  # fmt: skip
LENGTH_M = 0.16
#: On the optical axis, so that depth is z; the left hand 20 cm next to it.
WRISTS = np.array([[-0.2, 0.05, 0.5], [0.0, 0.0, 0.5]])


def hands(joints, camera=PINHOLE, filled=None) -> HandMotion:
    filled = np.zeros(joints.shape[:2], bool) if filled is None else filled
    observed = np.isfinite(joints).all((2, 3)) & ~filled
    seen = {"camera": camera, "joints_image": camera.project(joints)}
    return motion_of(joints, observed=observed, filled=filled, **seen)


def still(wrists=WRISTS, camera=PINHOLE) -> HandMotion:
    return hands(np.tile(wrists[:, None] + FLAT, (COUNT, 1, 1, 1)), camera)


TRUTH = Truth.of(still())


def moved(by, slot=None) -> HandMotion:
    joints = still().joints_camera.copy()
    joints[:, slice(None) if slot is None else slot] += by
    return hands(joints)


def same(found, **expected):
    """Assert that these numbers of a score are exactly the expected ones."""
    assert {name: found[name] for name in expected} == expected


def test_the_truth_itself_has_no_error():
    found = score(still(), TRUTH)
    same(found, joints_mm=0, wrist_mm=0, palm_deg=0, recall=1, precision=1, good=1, over_30=0)
    same(found, hands=2 * COUNT, true_hands=2 * COUNT, covered_68=None, filled_wrist_mm=None)
    assert found["jitter"] is None  # nothing moves


def test_moved_hands():
    same(score(moved([0, 0, 0.010], slot=1), TRUTH), wrist_mm=5, joints_mm=0)  # the other is exact
    nearer = score(moved([0, 0, -0.010], slot=1), TRUTH)
    same(nearer, depth_percent=-1.0, wrist_depth_mm=5)
    aside = score(moved([0.006, 0.008, 0], slot=1), TRUTH)
    same(aside, wrist_mm=5, wrist_depth_mm=0, wrist_lateral_mm=5)
    assert aside["wrist_mm_median"] == 5  # of as many hands with 0 as with 10
    joints = moved([0, 0, 0.010]).joints_camera
    joints[:, 0] = np.nan
    only = score(hands(joints), TRUTH)
    same(only, wrist_mm=10, wrist_depth_mm=10, wrist_lateral_mm=0, depth_percent=2.0)
    same(only, recall=0.5, precision=1)


@pytest.mark.parametrize(("degrees", "over"), [(14.0, 0.0), (29.0, 0.0), (31.0, 0.5)])
def test_turned_hands(degrees, over):
    joints = still().joints_camera.copy()
    turn = rotations.exp(np.radians(degrees) * np.array([0.0, 0.0, 1.0]))
    joints[:, 1] = (joints[:, 1] - WRISTS[1]) @ turn.T + WRISTS[1]
    found = score(hands(joints), TRUTH)
    assert found["palm_deg"] == pytest.approx(degrees / 2, abs=0.01)
    assert found["over_30"] == over and found["within_30"] == 1 - over

    # Each joint goes along a chord of the circle about the wrist.
    chord = 2 * np.sin(np.radians(degrees) / 2) * np.hypot(FLAT[:, 0], FLAT[:, 1])
    assert found["joints_mm"] == pytest.approx(1e3 * chord.mean() / 2, abs=0.01)
    assert found["good"] == (0.5 if degrees > 15 or chord.mean() > 0.020 else 1.0)
    assert found["wrist_mm"] == 0


def test_hands_of_the_wrong_side_and_no_hands():
    swapped = score(hands(still().joints_camera[:, ::-1]), TRUTH)
    same(swapped, wrong_side=2 * COUNT, nothing_there=0, precision=0, recall=0, joints_mm=None)

    # So it is where each is within a hand's length of the other.
    near = Truth.of(still(np.array([[-0.06, 0, 0.5], [0.06, 0, 0.5]])))
    found = score(hands(near.motion.joints_camera[:, ::-1]), near)
    same(found, wrong_side=2 * COUNT, precision=0)

    # Hands are 20.6 cm apart and 16 long. Beyond one's own, away from the other:
    assert score(moved([0.15, 0, 0], slot=1), TRUTH)["precision"] == 1
    away = score(moved([0.18, 0, 0], slot=1), TRUTH)
    same(away, precision=0.5, nothing_there=COUNT, recall=0.5, wrist_mm=0)  # of the right ones
    # What lies twice as far on the same ray is a wrong depth, not a false hand.
    assert score(hands(2 * still().joints_camera), TRUTH)["precision"] == 1


def test_a_hand_where_there_is_none():
    joints = still().joints_camera.copy()
    joints[:, 0] = np.nan
    alone = Truth.of(hands(joints))
    found = score(still(), alone)
    same(found, true_hands=COUNT, nothing_there=COUNT, recall=1, precision=0.5)
    both = hands(np.repeat(joints[:, 1:], 2, axis=1))  # the right hand found as left as well
    assert score(both, alone)["wrong_side"] == COUNT
    present = np.tile([0.0, 1.0], (COUNT, 1))
    absent = Truth.of(replace(still(), presence=present))
    assert score(still(), absent)["nothing_there"] == COUNT


def test_recall_counts_what_can_be_seen():
    seen = np.ones((COUNT, 2, 21), bool)
    seen[:4, 1, 13:] = False  # 13 of 21
    seen[4:8, 1, 14:] = False  # 14 of 21: two thirds
    seen[8:, 1] = False
    joints = still().joints_camera.copy()
    joints[:8, 1] = np.nan
    found = score(hands(joints), Truth.of(still(), seen))
    assert found["recall"] == pytest.approx(12 / 20)
    assert found["recall_mostly_seen"] == pytest.approx(12 / 16)
    assert found["known"] == pytest.approx(16 / 24, abs=1e-4)
    assert found["good"] == pytest.approx(12 / 20)


def test_jitter():
    time = np.arange(COUNT)[:, None, None, None]
    base = still().joints_camera
    pulled = base + 0.001 * time**2 * [1.0, 0, 0]  # 2 mm per frame^2
    truth = Truth.of(hands(pulled))
    found = score(hands(base + 0.0015 * time**2 * [1.0, 0, 0]), truth)
    assert (found["jitter"], found["jitter_error"]) == (1.5, 0.5)
    steady = score(hands(base + 0.01 * time * [1.0, 0, 0]), truth)
    assert (steady["jitter"], steady["jitter_error"]) == (0, 1)

    # Fingers alone shake: of 21 joints 20, by 1 mm to either side; of the wrist nothing.
    shaken = pulled.copy()
    shaken[:, :, 1:, 1] += 0.001 * (-1) ** time[..., 0]
    bent = pulled.copy()
    bent[:, :, 1:, 1] += 0.0005 * time[..., 0] ** 2
    found = score(hands(shaken), Truth.of(hands(bent)))
    assert found["jitter_relative"] == pytest.approx(4.0)

    # A gap of a frame takes it and its neighbours out: here all that is wrong.
    gap = pulled.copy()
    gap[5, :, :, 0] += 0.003
    gap[4] = gap[6] = np.nan
    assert score(hands(gap), truth)["jitter"] == 1


def test_coverage_of_intervals():
    """Errors of 2 mm across the ray and 30 mm along it, as wide as their intervals or half."""
    rng = np.random.default_rng(1)
    base = np.tile(still().joints_camera, (50, 1, 1, 1))
    ray = base / np.linalg.norm(base, axis=-1, keepdims=True)
    off = rng.normal(0, 0.002, base.shape)
    off += (rng.normal(0, 0.030, base.shape[:-1]) - np.sum(off * ray, axis=-1))[..., None] * ray
    filled = np.zeros(base.shape[:2], bool)
    filled[:, 0] = True
    off[:, 0] = 0.1  # of the filled hand each coordinate is off by 10 cm
    motion, truth = hands(base + off, filled=filled), Truth.of(hands(base))
    sigma = np.tile([0.002, 0.030], (len(base), 2, 21, 1))

    found = score(replace(motion, joint_sigma=sigma), truth)
    for name in ("covered_68", "covered_68_depth", "covered_68_length"):
        assert found[name] == pytest.approx(0.68, abs=0.015)
        assert found[name.replace("68", "95")] == pytest.approx(0.95, abs=0.008)
    same(found, filled_covered_68=0, filled_covered_95=0)
    # Twice as wide: a normal variable is within 1.98892 deviations with probability 0.9533.
    found = score(replace(motion, joint_sigma=2 * sigma), truth)
    assert found["covered_68"] == pytest.approx(0.9533, abs=0.008)


def test_subsets():
    # Hand lengths: 16 cm at 0.5 m with f 500 are 160 px, a third of the picture's 480.
    def subsets(motion, seen=None):
        found = score(motion, Truth.of(motion, seen))["subsets"]
        return {name: row["hands"] for name, row in found.items() if row["hands"]}

    everything = 2 * COUNT
    assert subsets(still()) == {"mostly_seen": everything, "easy": everything}
    far = np.array([[-0.2, 0.05, 0.8], [0.0, 0.0, 0.8]])
    assert subsets(still(far))["far"] == everything  # 100 px
    close = np.array([[-0.12, 0.05, 0.3], [0.05, 0.05, 0.3]])
    assert subsets(still(close)) == {"mostly_seen": everything, "close": everything}  # 267 px
    cut = np.array([[-0.2, 0.05, 0.5], [0.3, 0.0, 0.5]])  # the thumb's x at 559.5, pinky's at 639.5
    assert subsets(still(cut))["close"] == COUNT and subsets(still(cut))["easy"] == COUNT

    seen = np.ones((COUNT, 2, 21), bool)
    seen[:, 1, 13:] = False
    assert subsets(still(), seen) == {"mostly_seen": COUNT, "easy": COUNT, "occluded": COUNT}
    time = np.arange(COUNT)[:, None, None, None]
    # 10 and 14 mm per frame of 160 are below and above 8 %; all stays in the picture.
    drift = np.array([[0.010, 0, 0], [0.014, 0, 0]])[:, None]
    assert subsets(hands(still().joints_camera + drift * time))["blurred"] == COUNT
    assert subsets(still(camera=FISHEYE))["fisheye"] == everything
    assert "fisheye" not in subsets(still())


def test_hands_out_of_sight_are_filled():
    joints = still().joints_camera.copy()
    joints[5:9, 0, :, 0] -= 1.0
    truth = Truth.of(hands(joints))
    filled = np.zeros((COUNT, 2), bool)
    filled[5:8, 0] = filled[2, 1] = True
    tracked = joints.copy()
    tracked[filled, :, 0] += 0.030
    tracked[8, 0] = np.nan
    found = score(hands(tracked, filled=filled), truth)
    same(found, filled=4, filled_wrist_mm=30, filled_joints_mm=0, wrist_mm=0, recall=0.95)
    assert found["precision"] == 1
    assert found["subsets"]["mostly_seen"]["wrist_mm"] == 0  # only those that were observed
    away = found["subsets"]["out_of_sight"]
    same(away, true_hands=4, hands=3, wrist_mm=30, known=0.75, recall=None)


def test_doubtful_hands_are_found_but_not_kept():
    """A quarter of the left hands is doubtful and 50 mm off."""
    joints = still().joints_camera.copy()
    joints[:3, 0, :, 2] += 0.050
    tracked = hands(joints)
    tracked.quality[:3, 0] = 0.0
    found = score(tracked, TRUTH)
    same(found, recall=1, precision=1, wrist_mm=0, doubtful=0.125, good=0.875, within_30=0.875)
    assert found["hands"] == 2 * COUNT - 3


def test_measures_of_clips_are_those_of_all_their_hands():
    short = still().joints_camera[:3] + np.array([0, 0, 0.008])
    other = Comparison.of(hands(short), Truth.of(hands(still().joints_camera[:3])))
    pair = [Comparison.of(still(), TRUTH), other]
    assert measures(pair)["wrist_mm"] == pytest.approx(8 * 3 / 15)


def test_errors_of_the_same_hands(tmp_path):
    # One method has both hands, off by 4 and 8 mm, the other only the second, off by 6 and turned.
    joints = still().joints_camera + np.array([[0, 0, 0.004], [0, 0, 0.008]])[:, None]
    other = still().joints_camera.copy()
    turn = rotations.exp(np.radians(40.0) * np.array([0.0, 0.0, 1.0]))
    other[:, 1] = (other[:, 1] - WRISTS[1]) @ turn.T + WRISTS[1] + [0, 0, 0.006]
    other[:, 0] = np.nan
    ours, theirs = (errors_of(Comparison.of(hands(j), TRUTH)) for j in (joints, other))
    tracker.write_hands(tmp_path / "kept.npz", ["a", "b"], [ours, theirs])
    kept = tracker.read_hands(tmp_path / "kept.npz", ["b"])
    found = same_hands([ours], kept)
    assert found["hands"] == COUNT and found["wrist_mm"] == [8, 6]
    assert found["palm_deg"] == [0, pytest.approx(40)] and found["over_30"] == [0, 1]
    with pytest.raises(KeyError, match="c/kept"):
        tracker.read_hands(tmp_path / "kept.npz", ["c"])


def test_a_robot_that_follows_the_truth_has_no_excess():
    joints = moving_hands(12)
    true = hands(joints)
    robot, truth = load_robot("inspire"), Truth.of(true)
    farther = replace(true, joints_camera=joints + np.array([0.01, 0.0, 0.1]))
    same = RobotTips.of(farther, truth, robot)
    assert np.abs(same.excess).max() < 1e-6 and 1 < same.by_truth.mean() < 20

    # A hand that stays open while the true one closes; the other is not found.
    stiff, known = joints.copy(), np.tile([False, True], (12, 1))
    stiff[:, 1] = joints[-1:, 1]
    stiff[:, 0] = np.nan
    made = replace(true, joints_camera=stiff, observed=known, quality=known.astype(float))
    found = RobotTips.of(made, truth, robot)
    assert np.isnan(found.excess[:, 0]).all() and found.in_sight.all()
    assert np.isfinite(found.excess[:, 1]).all() and found.excess[:, 1].mean() > 1


def test_tips_of_a_robot_by_hand():
    flags = np.ones((2, 2), bool)
    unknown = np.nan
    one = RobotTips(np.array([[4, 6], [unknown] * 2]), np.array([[9, 7], [unknown] * 2]), flags)
    two = RobotTips(np.full((1, 2), 5.0), np.full((1, 2), 14.0), flags[:1])
    assert tip_measures([one, two]) == {
        "tips_mm": 11.0, "true_tips_mm": 5.0, "excess_tips_mm": 6.0, "followed": 4 / 6,
    }  # fmt: skip
    none = RobotTips(np.full((1, 2), unknown), np.full((1, 2), unknown), flags[:1])
    assert tip_measures([none])["excess_tips_mm"] is None and tip_measures([none])["followed"] == 0

    # Over the hands followed in both: 5 and 1 mm against 2 and 3.
    first = hands(still().joints_camera[:2])
    errors = errors_of(Comparison.of(first, Truth.of(first)))
    pair = (one.excess, np.array([[2.0, 3.0], [50.0, 60.0]]))
    found = same_hands(*([errors | {"excess_tips_mm": excess}] for excess in pair))
    assert found["excess_tips_mm"] == [3.0, 2.5]


@pytest.mark.parametrize("camera", [PINHOLE, FISHEYE], ids=lambda camera: camera.model)
def test_the_peer_places_a_hand_as_it_was_seen(camera):
    bent = FLAT + [[0.0, 0.0, 0.02 * (k % 4)] for k in range(21)]
    true = bent @ rotations.exp(np.array([0.4, -0.9, 0.3])).T + [0.1, 0.05, 0.4]
    length = np.linalg.norm(np.diff(true[[0, 9, 10, 11, 12]], axis=0), axis=1).sum()
    # World landmarks are turned, of another size and origin.
    world = 0.7 * bent @ rotations.exp(np.array([0.0, 0.0, 1.0])).T + [0.01, 0.02, -0.03]
    found = peer.place(peer.Found(camera.project(true), world, True, 0.9), camera, float(length))
    np.testing.assert_allclose(found, true, atol=1e-5)
    nowhere = peer.Found(np.full((21, 2), np.nan), world, True, 0.9)
    assert peer.place(nowhere, camera, float(length)) is None


def test_of_two_right_hands_the_peer_keeps_the_surer_one(monkeypatch):
    places = [WRISTS[1] + FLAT, WRISTS[1] + [0.1, 0, 0] + FLAT]
    seen = [peer.Found(PINHOLE.project(place), FLAT, True, sure)
            for place, sure in zip(places, (0.9, 0.6), strict=True)]  # fmt: skip
    monkeypatch.setattr(peer, "found", lambda recording, mode: iter([seen, [], seen[::-1]]))
    times = np.arange(3) * 33_333_333
    recording = Recording("clip", None, times, 30.0, 640, 480, None, PINHOLE)
    motion = peer.track(recording, LENGTH_M, peer.MODES[0])
    np.testing.assert_array_equal(motion.observed, [[False, True], [False] * 2, [False, True]])
    np.testing.assert_allclose(motion.joints_camera[0, 1], places[0], atol=1e-4)
    np.testing.assert_allclose(motion.joints_camera[2, 1], places[0], atol=1e-4)


def test_ratios():
    made = {"joints_mm": 8.0, "over_30": None, "recall": 0.9}
    was = {"joints_mm": 10.0, "over_30": 0.1, "recall": 0.0}
    rows = [{"method": "fast", "all": made, "rendered_only": made}]
    (row,) = tracker.compared(rows, {"all": was, "rendered_only": made})
    assert row["method"] == "fast" and row["all"]["joints_mm"] == 0.8
    assert row["all"]["over_30"] is None and row["all"]["recall"] is None
    assert row["rendered_only"]["joints_mm"] == 1.0


class ConstantDepth:
    def __len__(self):
        return 3

    def at(self, index):
        read = np.full((96, 128), 0.5, np.float32)
        read[:, :10] = np.nan
        return read


def test_depth_is_made_worse_by_as_much_as_asked():
    times = np.arange(3) * 33_000_000
    depth = Depth(ConstantDepth(), times, PINHOLE, np.eye(4))
    recording = Recording("x", None, times, 30.0, 128, 96, None, depth=depth)
    same = with_worse_depth(recording).depth
    assert np.array_equal(same.frames.at(1), depth.frames.at(1), equal_nan=True)
    assert np.array_equal(same.timestamps_ns, times)
    worse = with_worse_depth(recording, scale=1.02, late_s=0.02, holes=0.3).depth
    assert np.array_equal(worse.timestamps_ns, times + 20_000_000)
    read = worse.frames.at(1)
    assert np.isnan(read[:, :10]).all() and np.nanmin(read) == np.nanmax(read)
    assert np.nanmax(read) == pytest.approx(0.51) and read.dtype == np.float32
    assert np.isnan(read[:, 10:]).mean() == pytest.approx(0.3, abs=0.03)
    assert np.array_equal(read, worse.frames.at(1), equal_nan=True)
    assert not np.array_equal(read, worse.frames.at(2), equal_nan=True)
