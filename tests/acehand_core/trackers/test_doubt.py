"""How far hands may be off: what a tracker says of it, what is no sighting, where it is kept."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.hand import articulation
from acehand_core.motion import HandMotion
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import only_hands
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import reconstruct as fitting
from acehand_core.trackers.mediapipe.sightings import LANDMARK_OFFSET
from helpers.fake_hands import KNOWN_LENGTH, LENGTH, PINHOLE, hand_motion, reconstruct, seen, stamps
from helpers.fake_motion import random_motion

CROPS = np.broadcast_to(4.0 * np.eye(2), (21, 2, 2)).copy()  # they differ by 2 px


def sightings(count=30, noise_px=0.0, side="right", seed=0):
    pose, joints = hand_motion(side, count)
    rng = np.random.default_rng(seed)
    hands = seen(joints, side, PINHOLE, rng, noise_px)
    return pose, joints, [replace(hand, covariance=CROPS) for hand in hands]


def track(hands, settings=KNOWN_LENGTH, side="right"):
    return reconstruct(hands, side, PINHOLE, stamps(len(hands)), settings)


def test_intervals_hold_hands_with_noise_of_known_size():
    """Noise of 3 px where crops differ by 2: at least as often as they say.

    Real landmarks err alike from frame to frame, which these do not: intervals are too wide here,
    but not six times as wide.
    """
    hits, rms = [], []
    for seed in range(2):
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
    assert np.sqrt(np.mean(rms)) > 1 / 6


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
    # ANSUR 1988: 193.8 +- 9.8 mm (men) and 180.5 +- 9.7 (women), so 6.3 % of both together.
    size = np.hypot(np.sqrt((9.8**2 + 9.7**2) / 2), (193.8 - 180.5) / 2) / 187.15
    more = np.sqrt(unknown.sigma[..., 1] ** 2 - known.sigma[..., 1] ** 2)
    np.testing.assert_allclose(more, size * np.linalg.norm(joints, axis=-1), rtol=0.1)
    np.testing.assert_allclose(unknown.sigma[..., 0], known.sigma[..., 0], rtol=0.05)


def test_it_grows_into_a_gap():
    _, _, hands = sightings(60)
    hands[20:41] = [None] * 21
    found = track(hands)
    assert found.filled[20:41].all()
    wrist = found.sigma[:, 0, 0]
    assert wrist[30] == max(wrist) and (np.diff(wrist[20:31]) > 0).all()
    # 11 frames from either end at 0.7 m/s2: 0.35 x (11 / 30 s)^2 = 47 mm.
    assert np.sqrt(wrist[30] ** 2 - wrist[[19, 41]].mean() ** 2) == pytest.approx(0.047, rel=0.05)


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


@pytest.mark.parametrize("together", [20, 45])
def test_a_long_appearance_is_fitted_in_parts(together, monkeypatch):
    """As all frames together, to a fraction of a millimetre, and each frame once."""
    _, _, hands = sightings(100, 1.0)
    hands[50:57] = [None] * 7
    whole = track(hands)
    monkeypatch.setattr(fitting, "FIT_SIGHTINGS", together)
    parts = track(hands)
    assert np.array_equal(parts.observed, whole.observed)
    assert 1e3 * np.linalg.norm(parts.joints - whole.joints, axis=-1).max() < 1.0
    np.testing.assert_allclose(parts.sigma, whole.sigma, rtol=0.2)


def displaced(side, count=30):
    """Landmarks where the network puts them: wrist and thumb base off, in the palm's own axes."""
    pose, joints = hand_motion(side, count)
    offset = LENGTH * LANDMARK_OFFSET @ articulation.ANATOMICAL_TO_MODEL
    offset = offset * [-1.0, 1.0, 1.0] if side == "left" else offset
    shown = joints + np.einsum("nij,kj->nki", pose.global_orient, offset)
    return joints, seen(shown, side)


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
        with pytest.raises(InputError, match="palm_calibration"):
            TrackerSettings(palm_calibration=share)


def with_sigma(count=5) -> HandMotion:
    sigma = np.random.default_rng(0).uniform(0.001, 0.1, (count, 2, 21, 2))
    sigma[1, 0] = np.nan
    return replace(random_motion(0, count), joint_sigma=sigma)


def test_it_is_kept_in_the_table(tmp_path):
    motion = with_sigma()
    path = tmp_path / "hands.parquet"
    write_hand_motion(motion, path)
    np.testing.assert_array_equal(read_hand_motion(path).joint_sigma, motion.joint_sigma)
    write_hand_motion(replace(motion, joint_sigma=None), path, overwrite=True)
    assert read_hand_motion(path).joint_sigma is None
    assert "joint_sigma" not in pq.read_schema(path).names
    part = motion.at(np.array([3, 1]), motion.timestamps_ns[:2], 30.0)
    np.testing.assert_array_equal(part.joint_sigma, motion.joint_sigma[[3, 1]])
    left = only_hands(motion, "left").joint_sigma
    np.testing.assert_array_equal(left[:, 0], motion.joint_sigma[:, 0])
    assert np.isnan(left[:, 1]).all()


@pytest.mark.parametrize("wrong", [np.zeros((5, 2, 21)), np.full((5, 2, 21, 2), -1.0)])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises((SchemaError, TypeError), match="joint_sigma"):
        replace(with_sigma(), joint_sigma=wrong)
