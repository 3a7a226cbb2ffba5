"""How far hands may be off: what a tracker says of it, what is no sighting, where it is kept."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_reconstruct import KNOWN_LENGTH, LENGTH, PINHOLE, motion, reconstruct, seen, stamps

from acehand_core.errors import InputError, SchemaError
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.clip_fit import ClipFit
from acehand_core.hand.landmark_fit import Evidence
from acehand_core.motion import HandMotion
from acehand_core.pipeline.report import how_well_known, said
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import only_hands
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import reconstruct as fitting
from acehand_core.trackers.mediapipe.reconstruct import LANDMARK_OFFSET
from helpers.fake_motion import random_motion
from helpers.retarget_samples import motion_of, moving_hands

HAND = CapsuleHand()
CROPS = np.broadcast_to(4.0 * np.eye(2), (21, 2, 2)).copy()  # they differ by 2 px


def sightings(count=30, noise_px=0.0, side="right", seed=0):
    pose, joints = motion(side, count)
    rng = np.random.default_rng(seed)
    hands = seen(joints, PINHOLE, side, rng, noise_px)
    return pose, joints, [replace(hand, covariance=CROPS) for hand in hands]


def track(hands, settings=KNOWN_LENGTH, side="right"):
    return reconstruct(hands, side, PINHOLE, stamps(len(hands)), settings)


def test_intervals_hold_hands_with_noise_of_known_size():
    """Noise of 3 px where crops differ by 2: at least as often as they say.

    Real landmarks err alike from frame to frame, which these do not: intervals are too wide here,
    but not five times as wide.
    """
    hits, rms = [], []
    for seed in range(3):
        _, joints, hands = sightings(60, 3.0, seed=seed)
        found = track(hands)
        error = found.joints - joints
        ray = joints / np.linalg.norm(joints, axis=-1, keepdims=True)
        along = np.sum(error * ray, axis=-1)
        across = np.sqrt((np.sum(error**2, axis=-1) - along**2) / 2)
        parts = np.stack([across, np.abs(along)], axis=-1)
        hits.append(parts < 1.96 * found.sigma)
        rms.append((parts**2 / found.sigma**2)[..., 0])
    assert np.mean(hits) > 0.9
    assert np.sqrt(np.mean(rms)) > 0.2


def test_it_grows_with_what_crops_differ_by():
    _, _, hands = sightings()
    near, far = (
        track([replace(hand, covariance=scale * CROPS) for hand in hands]).sigma[..., 0].mean()
        for scale in (1.0, 9.0)
    )
    assert 1.3 * near < far < 3 * near


def test_distance_is_known_less_well_without_the_hands_length():
    _, joints, hands = sightings()
    known, unknown = (
        track(hands, replace(KNOWN_LENGTH, hand_length_m=length)) for length in (LENGTH, None)
    )
    # Hands of adults: 5.5 % (docs of hand.articulation), 0.5 m away, so some 27 mm more.
    more = np.sqrt(unknown.sigma[..., 1] ** 2 - known.sigma[..., 1] ** 2)
    np.testing.assert_allclose(more, 0.055 * np.linalg.norm(joints, axis=-1), rtol=0.1)
    np.testing.assert_allclose(unknown.sigma[..., 0], known.sigma[..., 0], rtol=0.05)


def test_what_is_common_to_a_hand_in_numbers():
    """Landmarks that fix a hand exactly, crops that differ by 5 % of the palm."""
    pose, joints = motion("right", 3)
    nothing = np.zeros((3, 28, 28))
    fit = ClipFit(pose, nothing, nothing)
    rest = HAND.rest_keypoints("right", np.zeros(10))
    found = fitting.joint_sigma(fit, "right", rest, np.array([0.0, 0.05, 0.05]), True)
    assert (found[0] == 0).all()
    # Knuckles of the mean hand from its wrist, mm (hand.articulation).
    knuckles = [(92.5, -1, 25), (95, 1.5, 4), (88.5, -1, -16.5), (79.5, -6.5, -36)]
    palm = 1e-3 * np.sqrt(np.mean(np.sum(np.square(knuckles), axis=-1)))
    np.testing.assert_allclose(found[1:, :, 0], 1.4 * 0.05 * palm, rtol=1e-9)
    distance = np.linalg.norm(joints[1:], axis=-1)
    np.testing.assert_allclose(found[1:, :, 1], 1.8 * 0.05 * distance, rtol=1e-9)
    unknown = fitting.joint_sigma(fit, "right", rest, np.zeros(3), False)
    np.testing.assert_allclose(unknown[..., 1], 0.055 * np.linalg.norm(joints, axis=-1), rtol=1e-9)


def test_what_crops_differ_by_in_numbers():
    """Knuckles 0.1 from the wrist, on the axis, ellipses of 3 and 4 mrad: rms 3.54 mrad."""
    bearing = np.zeros((2, 21, 2))
    bearing[:, [5, 9, 13, 17], 0] = 0.1
    spread = np.broadcast_to(np.diag([9e-6, 16e-6]), (2, 21, 2, 2)).copy()
    evidence = Evidence(bearing, np.zeros((2, 20, 3)), spread)
    found = fitting.disagreement(evidence, np.array([False, True]))
    chord = 2 * np.sin(np.arctan(0.1) / 2)
    np.testing.assert_allclose(found, [np.sqrt(12.5e-6) / chord, 0.035], rtol=1e-9)
    alone = fitting.disagreement(replace(evidence, spread=None), np.array([True, True]))
    np.testing.assert_array_equal(alone, [0.035, 0.035])


def test_it_grows_into_a_gap():
    _, _, hands = sightings(60)
    hands[20:41] = [None] * 21
    found = track(hands)
    assert found.filled[20:41].all()
    wrist = found.sigma[:, 0, 0]
    assert wrist[30] == max(wrist) and (np.diff(wrist[20:31]) > 0).all()
    # 11 frames from either end at 0.7 m/s2: 0.35 x (11 / 30 s)^2 = 47 mm.
    assert np.sqrt(wrist[30] ** 2 - wrist[[19, 41]].mean() ** 2) == pytest.approx(0.047, rel=0.05)


def test_bridges_in_numbers():
    ends = np.stack([np.full((21, 2), 0.003), np.full((21, 2), 0.004)])
    found = fitting.sigma_in_gap(ends, np.array([0.1, 0.2]), np.array([0.3, 0.2]))
    # Three quarters and a half of the first variance; 0.35 x 0.03 and 0.35 x 0.04 m.
    expected = [
        np.sqrt(0.75 * 9e-6 + 0.25 * 16e-6 + 0.0105**2),
        np.sqrt(0.5 * 9e-6 + 0.5 * 16e-6 + 0.014**2),
    ]
    np.testing.assert_allclose(found[:, 3, 1], expected, rtol=1e-12)


def test_a_hand_that_the_network_doubts_is_doubtful():
    """It was seen, so it is observed; nothing is trusted of it."""
    _, joints, hands = sightings(40)
    hands[20] = replace(hands[20], presence=0.4)
    found = track(hands)
    doubtful = found.observed & (found.quality == 0)
    assert found.observed.all() and np.flatnonzero(doubtful).tolist() == [20]
    assert 1e3 * np.linalg.norm(found.joints[20] - joints[20], axis=-1).max() < 20


def test_a_palm_turned_anyhow_is_doubtful():
    """Crops that differ by half the hand, all through: nothing tells how its palm is turned."""
    _, _, hands = sightings(10)
    lost = [replace(hand, covariance=100**2 * np.tile(np.eye(2), (21, 1, 1))) for hand in hands]
    sure, lost = track(hands), track(lost)
    assert sure.observed.all() and (sure.quality > 0).all()
    assert lost.observed.all() and (lost.quality == 0).all()


def test_which_hands_are_doubtful():
    motion = random_motion(frames=30)
    quality = motion.quality.copy()
    quality[::2] = 0.0
    doubtful = replace(motion, quality=quality).doubtful
    assert doubtful[::2].sum() == motion.observed[::2].sum() > 0
    assert not doubtful[1::2][motion.quality[1::2] > 0].any()
    assert not doubtful[~motion.observed].any()


@pytest.mark.parametrize("together", [20, 45])
def test_a_long_appearance_is_fitted_in_parts(together, monkeypatch):
    """As all frames together, to a fraction of a millimetre, and each frame once."""
    _, _, hands = sightings(100, 1.0)
    hands[50:57] = [None] * 7
    whole = track(hands)
    monkeypatch.setattr(fitting, "TOGETHER", together)
    parts = track(hands)
    assert np.array_equal(parts.observed, whole.observed)
    assert 1e3 * np.linalg.norm(parts.joints - whole.joints, axis=-1).max() < 1.0
    np.testing.assert_allclose(parts.sigma, whole.sigma, rtol=0.2)


def displaced(side, count=30):
    """Landmarks where the network puts them: wrist and thumb base off, in the palm's own axes."""
    pose, joints = motion(side, count)
    offset = LENGTH * LANDMARK_OFFSET @ articulation.ANATOMICAL_TO_MODEL
    offset = offset * [-1.0, 1.0, 1.0] if side == "left" else offset
    shown = joints + np.einsum("nij,kj->nki", pose.global_orient, offset)
    return joints, seen(shown, PINHOLE, side)


@pytest.mark.parametrize("side", ["left", "right"])
def test_palm_calibration_allows_for_where_the_network_puts_a_palm(side):
    joints, hands = displaced(side)
    errors, depths = {}, {}
    for share in (0.0, 1.0):
        found = track(hands, replace(KNOWN_LENGTH, palm_calibration=share), side)
        errors[share] = np.linalg.norm(found.joints - joints, axis=-1)
        depths[share] = np.median(found.joints[:, 0, 2] / joints[:, 0, 2]) - 1
    assert 1e3 * np.median(errors[1.0]) < 4.0  # as without any displacement
    assert np.percentile(errors[0.0], 90) > 2 * np.percentile(errors[1.0], 90)
    # A wrist seen too near to the fingers makes the hand small, so far.
    assert depths[0.0] > depths[1.0] + 0.01


def test_shares_of_the_calibration_are_checked():
    for share in (-0.1, 1.5):
        with pytest.raises(InputError, match="palm calibration"):
            TrackerSettings(palm_calibration=share)


def with_sigma(count=5) -> HandMotion:
    sigma = np.random.default_rng(0).uniform(0.001, 0.1, (count, 2, 21, 2))
    sigma[1, 0] = np.nan
    return replace(random_motion(0, count), joint_sigma=sigma)


def test_it_is_kept_in_the_table(tmp_path):
    motion = with_sigma()
    for given in (motion, replace(motion, joint_sigma=None)):
        path = tmp_path / f"{given.joint_sigma is None}.parquet"
        write_hand_motion(given, path)
        found = read_hand_motion(path).joint_sigma
        if given.joint_sigma is None:
            assert found is None and "joint_sigma" not in pq.read_schema(path).names
        else:
            np.testing.assert_array_equal(found, given.joint_sigma)
    part = motion.at(np.array([3, 1]), motion.timestamps_ns[:2], 30.0)
    np.testing.assert_array_equal(part.joint_sigma, motion.joint_sigma[[3, 1]])
    left = only_hands(motion, "left").joint_sigma
    np.testing.assert_array_equal(left[:, 0], motion.joint_sigma[:, 0])
    assert np.isnan(left[:, 1]).all()


@pytest.mark.parametrize("wrong", [np.zeros((5, 2, 21)), np.full((5, 2, 21, 2), -1.0)])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises((SchemaError, TypeError), match="joint_sigma"):
        replace(with_sigma(), joint_sigma=wrong)


def test_a_report_says_how_well_fingertips_are_known() -> None:
    """Ten known hands: one filled, five doubtful, of which no number counts."""
    joints = moving_hands(10, sides=("right",))
    quality, filled = np.tile([0.0, 1.0], (10, 1)), np.zeros((10, 2), bool)
    quality[:5, 1], filled[5, 1] = 0, True
    sigma = np.full((10, 2, 21, 2), [0.5, 0.9])
    sigma[6:, 1, [4, 8, 12, 16, 20]] = [0.0061, 0.0274]
    made = motion_of(
        joints, quality=quality, filled=filled, observed=(quality >= 0) & [False, True] & ~filled,
        joint_sigma=sigma,
    )  # fmt: skip
    known = how_well_known(made)
    assert known == {"doubtful_share": 0.5, "tip_sigma_mm": {"across": 6.1, "along": 27.4}}
    words = "; fingertips +-6 mm across the line of sight, +-27 along it; 50.0% doubtful"
    assert said(known) == words
    unknown = how_well_known(motion_of(joints))
    assert unknown == {"doubtful_share": 0.0, "tip_sigma_mm": None} and said(unknown) == ""
