"""One hand over a clip: hands that are known, seen by a perfect or a poor network."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.geometry.cameras import Camera
from acehand_core.hand.clip_fit import HalfGain
from acehand_core.hand.contact import GIVE_M, overlap
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import gaps
from acehand_core.trackers.mediapipe import reconstruct as module
from acehand_core.trackers.mediapipe.reconstruct import reconstruct_hands
from acehand_core.trackers.mediapipe.search import Detection
from helpers.fake_hands import (
    HAND,
    KNOWN_LENGTH,
    LENGTH,
    PINHOLE,
    hand_motion,
    reconstruct,
    seen,
    stamps,
)

FISHEYE = Camera(
    "kannala_brandt", 1280, 1280, 420.0, 420.0, 639.5, 639.5, (0.05, -0.01, 0.002, -0.0005)
)


def error_mm(track, joints):
    return 1e3 * np.linalg.norm(track.joints - joints, axis=-1)


def assert_consistent(track, side):
    """What HandMotion promises: joints are the hand's own, moved by the translation."""
    known = track.observed | track.filled
    assert not (track.observed & track.filled).any()
    joints = HAND.joints(side, track.global_orient[known], track.hand_pose[known], track.betas)
    np.testing.assert_allclose(
        joints + track.translation[known][:, None], track.joints[known], atol=1e-9
    )
    for value in (track.joints, track.translation, track.global_orient, track.hand_pose):
        assert np.isnan(value[~known]).all() and np.isfinite(value[known]).all()
    assert np.isnan(track.pixels[~track.observed]).all()
    assert np.isfinite(track.pixels[track.observed]).all()
    assert not track.quality[~known].any() and (track.quality <= 1).all()
    assert (track.quality[track.filled] > 0).all()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("camera", [PINHOLE, FISHEYE], ids=["pinhole", "fisheye"])
def test_a_hand_seen_perfectly_comes_back(side, camera):
    """What remains is the pull to a relaxed hand and the smoothing: millimetres."""
    _, joints = hand_motion(side)
    detections = seen(joints, side, camera)
    track = reconstruct(detections, side, camera, stamps(60), KNOWN_LENGTH)
    assert track.observed.all() and not track.filled.any()
    assert_consistent(track, side)
    error = error_mm(track, joints)
    assert np.median(error) < 4.0  # 2.6 measured
    assert np.percentile(error, 95) < 12.0
    np.testing.assert_array_equal(track.pixels, np.stack([d.pixels for d in detections]))
    assert track.quality.min() > 0.7 and np.abs(track.betas).max() < 0.3


def test_left_and_right_are_mirror_images():
    left, right = (
        reconstruct(
            seen(hand_motion(side, 30)[1], side), side, PINHOLE, stamps(30), TrackerSettings()
        )
        for side in ("left", "right")
    )
    np.testing.assert_allclose(left.joints, right.joints * [-1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(left.quality, right.quality, atol=1e-6)


def test_noise_is_smoothed(monkeypatch):
    """Three pixels of noise: nearer to the truth than the landmarks, and much calmer."""
    rng = np.random.default_rng(0)
    _, joints = hand_motion("right", 60)
    detections = seen(joints, "right", rng=rng, noise_px=3.0)

    def track():
        return reconstruct(detections, "right", PINHOLE, stamps(60), KNOWN_LENGTH)

    smooth = track()
    off = np.linalg.norm(PINHOLE.project(smooth.joints) - PINHOLE.project(joints), axis=-1)
    assert np.median(off) < 2.5  # of 3.5 px in the landmarks themselves
    monkeypatch.setattr(gaps, "smooth_pose", lambda pose, *_: pose)
    monkeypatch.setattr(module, "HALF_GAIN_HZ", HalfGain(300.0, 300.0, 300.0, 300.0))
    rough = track()

    def jitter(found):
        """Third differences of the wrist: across the ray, and along it."""
        change = np.abs(np.diff(found.joints[:, 0], 3, axis=0)).mean(0)
        return np.array([change[:2].max(), change[2]])

    assert (jitter(smooth) < [0.6 * jitter(rough)[0], 0.1 * jitter(rough)[1]]).all()


def test_a_known_length_sets_the_scale_and_an_unknown_one_the_mean():
    _, joints = hand_motion("right", 20)
    detections = seen(joints, "right")
    wrists = {}
    for length in (None, LENGTH, 0.9 * LENGTH):
        track = reconstruct(
            detections, "right", PINHOLE, stamps(20), TrackerSettings(hand_length_m=length)
        )
        assert HAND.hand_length(track.betas) == pytest.approx(length or LENGTH, abs=2e-3)
        wrists[length] = np.median(track.joints[:, 0, 2])
    assert wrists[None] == pytest.approx(wrists[LENGTH], rel=0.01)
    assert wrists[0.9 * LENGTH] == pytest.approx(0.9 * wrists[LENGTH], rel=0.02)


def with_gap(detections, start, stop):
    return [None if start <= t < stop else d for t, d in enumerate(detections)]


def right(detections, fps=30.0, camera=PINHOLE):
    """The reconstruction of a right hand, which is what HandMotion promises."""
    track = reconstruct(detections, "right", camera, stamps(len(detections), fps), KNOWN_LENGTH)
    assert_consistent(track, "right")
    return track


def test_a_short_gap_is_filled_and_marked():
    _, joints = hand_motion("right", 90)
    track = right(with_gap(seen(joints, "right"), 40, 55))
    gap = slice(40, 55)
    assert track.filled[gap].all() and track.filled.sum() == 15
    # Filled from both sides: half a second of a grasping, turning hand within 2 cm.
    assert error_mm(track, joints)[gap].max() < 25
    quality = track.quality[gap]
    assert quality[0] == module.FILLED_QUALITY < track.quality[30]
    np.testing.assert_allclose(quality, quality[::-1])
    assert (np.diff(quality[:8]) < 0).all()
    step = np.linalg.norm(np.diff(track.joints[:, 0], axis=0), axis=1)
    assert step.max() < 3 * np.linalg.norm(np.diff(joints[:, 0], axis=0), axis=1).max()


@pytest.mark.parametrize(("fps", "frames", "filled"), [
    (30.0, 45, True), (30.0, 46, False), (10.0, 15, True), (10.0, 16, False),
])  # fmt: skip
def test_a_gap_is_filled_up_to_one_and_a_half_seconds(fps, frames, filled):
    count = frames + 12
    _, joints = hand_motion("right", count, fps)
    track = right(with_gap(seen(joints, "right"), 6, 6 + frames), fps)
    assert track.filled[6:-6].all() if filled else not track.filled.any()


def test_before_the_first_and_after_the_last_sighting_there_is_no_hand():
    _, joints = hand_motion("right", 40)
    track = right(with_gap(with_gap(seen(joints, "right"), 0, 10), 30, 40))
    assert (track.observed | track.filled).tolist() == [10 <= t < 30 for t in range(40)]


@pytest.mark.parametrize("camera", [PINHOLE, FISHEYE], ids=["garbage", "outside"])
def test_what_no_hand_can_explain_is_no_sighting(camera):
    """Landmarks thrown together, or outside the field of view: filled from the neighbours."""
    rng = np.random.default_rng(1)
    _, joints = hand_motion("right", 30)
    detections = seen(joints, "right", camera)
    pixels, world = detections[12].pixels.copy(), detections[12].world
    if camera is FISHEYE:
        pixels[8] = [5000.0, 640.0]
    else:
        pixels = pixels.mean(0) + rng.normal(0, 60, (21, 2))
        world = rng.normal(0, 0.05, (21, 3))
    detections[12] = Detection(pixels, world, 0.97, "forward")
    track = right(detections, camera=camera)
    assert track.filled[12] and track.observed.sum() == 29
    assert error_mm(track, joints)[12].mean() < 12
    only = right([detections[12]], camera=camera)
    assert not only.observed.any() and np.isnan(only.pixels).all()


def test_a_clip_of_one_frame():
    _, joints = hand_motion("right", 1)
    track = right(seen(joints, "right"))
    assert track.observed.all() and np.median(error_mm(track, joints)) < 8


def test_an_unsure_network_lowers_the_quality():
    _, joints = hand_motion("right", 12)
    quality = [
        right(seen(joints, "right", confidence=sure)).quality.mean() for sure in (0.99, 0.8, 0.55)
    ]
    assert quality[0] > quality[1] > quality[2] > 0.1


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 25))
def test_any_detections_give_a_consistent_track(seed, count):
    """Noise in the shape of hands, coming and going, at uneven times."""
    rng = np.random.default_rng(seed)
    _, joints = hand_motion("right", count)
    detections = seen(joints, "right", rng=rng, noise_px=rng.choice([1.0, 20.0, 100.0]))
    detections = [d if rng.random() < 0.6 else None for d in detections]
    times = np.cumsum(rng.integers(1_000_000, 900_000_000, count))
    track = reconstruct(detections, "right", PINHOLE, times, TrackerSettings())
    assert_consistent(track, "right")
    assert not track.observed[[d is None for d in detections]].any()


def test_both_hands_have_one_shape():
    """Found apart, noise gives each hand one of its own."""
    hands = {}
    for side, seed in (("left", 1), ("right", 2)):
        _, joints = hand_motion(side, 12)
        hands[side] = seen(joints, side, rng=np.random.default_rng(seed), noise_px=6.0)
    both = reconstruct_hands(hands, PINHOLE, stamps(12), KNOWN_LENGTH)
    alone = {
        side: reconstruct(hand, side, PINHOLE, stamps(12), KNOWN_LENGTH)
        for side, hand in hands.items()
    }
    np.testing.assert_array_equal(both["left"].betas, both["right"].betas)
    assert np.abs(alone["left"].betas - alone["right"].betas).max() > 0.1
    assert HAND.hand_length(both["left"].betas) == pytest.approx(LENGTH, abs=1e-3)
    for side in hands:
        assert both[side].observed.all()
        assert_consistent(both[side], side)


def test_hands_that_a_network_sees_in_one_place_do_not_pass_through_each_other():
    """Landmarks of two hands whose middle knuckles are 6 cm apart: their fingers cross."""
    _, left = hand_motion("left", 12)
    right = left * [-1.0, 1.0, 1.0]
    right = right - right[:, 9:10] + left[:, 9:10] + [0.06, 0.0, 0.0]
    hands = {side: seen(joints, side) for side, joints in (("left", left), ("right", right))}
    assert overlap(left, right).min() > GIVE_M
    found = reconstruct_hands(hands, PINHOLE, stamps(12), KNOWN_LENGTH)
    apart = {
        side: reconstruct(hand, side, PINHOLE, stamps(12), KNOWN_LENGTH).joints
        for side, hand in hands.items()
    }
    before = overlap(apart["left"], apart["right"])
    assert before.min() > GIVE_M + 0.002
    after = overlap(found["left"].joints, found["right"].joints)
    assert (after < before).all() and after.mean() < 0.5 * before.mean()
    assert (after < GIVE_M + 0.001).sum() >= 5  # in the others fingers are between fingers
    for side in hands:
        assert_consistent(found[side], side)
