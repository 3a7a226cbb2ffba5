"""Hands in several cameras and with depth: recovery of hands that are known, in metres."""

from dataclasses import replace

import numpy as np
import pytest

from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation, landmark_fit
from acehand_core.hand.evidence import OtherView, SkinDepth, skin_points, thickness
from acehand_core.motion import Depth, HandMotion
from acehand_core.provenance import Provenance
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.linking import landmarks_of
from acehand_core.trackers.mediapipe.reconstruct import reconstruct_hands
from acehand_core.trackers.mediapipe.rig import ViewTrack, estimated_offset, same_hands
from acehand_core.trackers.mediapipe.sightings import ViewHands
from acehand_core.trackers.skin_depth import moved_by_depth, skin_depth
from acehand_core.types import no_progress
from helpers.fake_hands import HAND, PINHOLE, ZERO, exact_evidence, hand_motion, seen, stamps

#: A second camera 300 mm to the right, turned inwards by 30 degrees.
T_CAMERA_VIEW = frames.rigid(rotations.exp(np.array([0.0, -0.5, 0.0])), np.array([0.3, 0.0, 0.1]))
T_VIEW_CAMERA = frames.inverse(T_CAMERA_VIEW)
#: Hands 8 % longer than the mean hand that one camera has to assume.
LARGE = np.array([0.08 / 0.055, *[0.0] * 9])
POSE, _ = hand_motion("right", 20)
UNKNOWN_SIZE = TrackerSettings(palm_calibration=0.0)


def large_hand(side="right"):
    """A moving hand of the shape ``LARGE``: its true joints (T, 21, 3)."""
    return POSE.keypoints(side, HAND.rest_keypoints(side, LARGE))


def wrist_mm(track, joints):
    return 1e3 * float(np.linalg.norm(track.joints[:, 0] - joints[:, 0], axis=-1).mean())


def skin_of(pose, betas=LARGE, side="right"):
    """Readings of the hand's mesh: the nearest of the vertices within 4 mm of a point's ray."""
    joints = pose.keypoints(side, HAND.rest_keypoints(side, betas))
    turns = articulation.angles_to_pose(pose.angles, side)
    vertices = HAND.vertices(side, pose.global_orient, turns, betas)
    vertices = vertices + pose.wrist[:, None] - HAND.rest_keypoints(side, betas)[0]
    points = skin_points(joints)
    z = np.full(points.shape[:2], np.nan)
    for t, k in np.ndindex(*z.shape):
        flat = vertices[t, :, :2] / vertices[t, :, 2:] - points[t, k, :2] / points[t, k, 2]
        near = np.linalg.norm(flat, axis=1) < 0.004 / points[t, k, 2]
        z[t, k] = vertices[t, near, 2].min()
    return SkinDepth(z, np.full(z.shape, 0.002))


def view_of(joints, side="right"):
    there = frames.apply(T_VIEW_CAMERA, joints)
    return ViewHands(PINHOLE, T_VIEW_CAMERA, {side: seen(there, side)})


def test_two_cameras_measure_distance_and_length():
    joints = large_hand()
    hands = {"right": seen(joints, "right")}
    one = reconstruct_hands(hands, PINHOLE, stamps(20), UNKNOWN_SIZE)["right"]
    views = [view_of(joints)]
    two = reconstruct_hands(hands, PINHOLE, stamps(20), UNKNOWN_SIZE, views=views)["right"]
    # One camera sees the mean hand: 8 % too near, 40 mm of 0.5 m.
    assert wrist_mm(one, joints) > 25
    assert wrist_mm(two, joints) < 4
    assert HAND.hand_length(two.betas) == pytest.approx(HAND.hand_length(LARGE), rel=0.015)
    assert np.isnan(one.length_sigma) and 0 < two.length_sigma < 0.01
    assert (two.evidence == 3).all() and (one.evidence == 1).all()
    assert (two.sigma[..., 1] < 0.7 * one.sigma[..., 1]).all()


def test_depth_measures_distance_and_length():
    joints = large_hand()
    hands = {"right": seen(joints, "right")}
    skin = {"right": skin_of(POSE)}
    track = reconstruct_hands(hands, PINHOLE, stamps(20), UNKNOWN_SIZE, skin=skin)["right"]
    assert wrist_mm(track, joints) < 8
    assert HAND.hand_length(track.betas) == pytest.approx(HAND.hand_length(LARGE), rel=0.03)
    assert (track.evidence == 5).all()


def test_readings_of_something_else_pull_nowhere():
    """A third of the readings are of an object 150 mm before or behind the hand."""
    joints = large_hand()
    skin = skin_of(POSE)
    wrong = np.random.default_rng(0).random(skin.z.shape) < 1 / 3
    z = np.where(wrong, skin.z + 0.15 * (-1.0) ** np.arange(20)[:, None], skin.z)
    hands = {"right": seen(joints, "right")}
    skins = {"right": SkinDepth(z, skin.sigma)}
    track = reconstruct_hands(hands, PINHOLE, stamps(20), UNKNOWN_SIZE, skin=skins)["right"]
    assert wrist_mm(track, joints) < 10


def test_depth_places_a_hand_whose_landmarks_fit_no_hand():
    """From the ninth frame on they are jumbled, and their hand is half as large as it was."""
    joints, skin = large_hand(), {"right": skin_of(POSE)}
    wrong, middle = slice(8, 20), joints.mean(1, keepdims=True)
    jumbled = np.random.default_rng(2).normal(0, 0.007, joints.shape)
    landmarks = joints.copy()
    landmarks[wrong] = (0.5 * joints + 0.5 * middle + jumbled)[wrong]
    hands, clip = {"right": seen(landmarks, "right")}, (PINHOLE, stamps(20), UNKNOWN_SIZE)

    alone = reconstruct_hands(hands, *clip)["right"]
    track = reconstruct_hands(hands, *clip, skin=skin)["right"]
    by_size, by_depth = (
        np.linalg.norm(one.joints[wrong, 0] - joints[wrong, 0], axis=1) for one in (alone, track)
    )
    assert by_size.max() > 0.4 and by_depth.max() < 0.06
    assert (track.quality[wrong] == 0).sum() >= 11


def test_a_hand_that_only_the_other_camera_sees_stays_one_hand():
    joints = large_hand()
    own = seen(joints, "right")
    own[5:12] = [None] * 7
    views = [view_of(joints)]
    clip = PINHOLE, stamps(20), UNKNOWN_SIZE
    track = reconstruct_hands({"right": own}, *clip, views=views)["right"]
    assert track.observed.all()
    np.testing.assert_array_equal(track.evidence[[4, 5, 11, 12]], [3, 2, 2, 3])
    assert np.isnan(track.pixels[5:12]).all() and np.isfinite(track.pixels[:5]).all()
    # Alone that camera tells no distance, but the neighbours and the known shape do.
    assert wrist_mm(track, joints) < 8

    nowhere = {"right": [None] * 20}
    alone = reconstruct_hands(nowhere, *clip, views=views)["right"]
    assert alone.observed.all() and (alone.evidence == 2).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_jacobian_against_finite_differences(side):
    rng = np.random.default_rng(8)
    pose, keypoints = hand_motion(side, 5)
    keypoints = keypoints + rng.normal(0, 0.01, keypoints.shape)
    other = exact_evidence(frames.apply(T_VIEW_CAMERA, keypoints))
    other = replace(other, seen=np.array([True, False, True, True, False]))
    z = skin_points(keypoints)[..., 2] + rng.normal(0, 0.02, (5, 41))
    sigma = np.where(rng.random((5, 41)) < 0.3, np.inf, 0.004)
    evidence = replace(
        exact_evidence(keypoints),
        seen=np.array([True, True, False, True, True]),
        others=(OtherView(other, T_VIEW_CAMERA),),
        skin=SkinDepth(z, sigma, weight=rng.uniform(0.2, 5, 5)),
    )
    rest = HAND.rest_keypoints(side, rng.normal(size=10))
    problem = landmark_fit.FrameProblem(evidence, side, rest, pose.global_orient, True)
    x = problem.start(pose) + rng.normal(0, 0.05, (5, 28))
    rows, steps = np.array([0, 3, 1, 4, 2]), 1e-6 * np.eye(28)
    x = x[rows]
    columns = [(problem(x + s, rows)[0] - problem(x - s, rows)[0]) / 2e-6 for s in steps]
    np.testing.assert_allclose(problem(x, rows)[1], np.stack(columns, -1), atol=2e-5, rtol=1e-5)


def test_the_reversed_palm_looks_alike_from_far():
    """Its tilt is the other one: the palm moves in depth, and far less across."""
    pose, _ = hand_motion("right", 6)
    flat = replace(pose, angles=np.zeros_like(pose.angles), wrist=pose.wrist * 20)
    back = landmark_fit.reversed_palm(flat)
    np.testing.assert_allclose(np.linalg.det(back.global_orient), 1.0)
    palm, rest = [0, 5, 9, 13, 17], HAND.rest_keypoints("right", ZERO)
    one, two = (p.keypoints("right", rest)[:, palm] for p in (flat, back))
    ray = flat.wrist[:, None] / np.linalg.norm(flat.wrist, axis=1)[:, None, None]
    along = np.sum((two - one) * ray, axis=-1)
    across = np.linalg.norm(two - one - along[..., None] * ray, axis=-1)
    assert np.abs(along).max() > 0.08 and across.max() < 0.012


class Wall:
    """Depth pictures of a wall at z = 0.6 + 0.1 x metres in the depth camera, and holes."""

    camera = Camera("pinhole", 320, 240, 200.0, 200.0, 159.5, 119.5)

    def __len__(self):
        return 4

    def at(self, index):
        x = (np.arange(320) - 159.5) / 200
        z = np.tile(0.6 / (1 - 0.1 * x), (240, 1)).astype(np.float32)
        z[::7] = np.nan
        return z + np.float32(0.02 * index)


def test_depth_of_another_camera_is_read_at_the_landmarks():
    """The wall moves back by 20 mm a picture; the depth camera is 50 mm left and turned."""
    turn = rotations.exp(np.array([0.0, 0.1, 0.0]))
    T_camera_depth = frames.rigid(turn, np.array([-0.05, 0.0, 0.0]))
    times = stamps(4)
    depth = Depth(Wall(), times, Wall.camera, T_camera_depth)
    rng = np.random.default_rng(1)
    pixels = np.array([640.0, 360.0]) + rng.uniform(-60, 60, (4, 1, 21, 2))
    between = (times[1:] + times[:-1]) // 2
    found = skin_depth(depth, PINHOLE, pixels[1:], between, no_progress)[0]

    # By hand: the ray p = s u of a pixel meets the wall n (R' (p - t)) = 0.6, n = (-0.1, 0, 1).
    normal = turn @ [-0.1, 0.0, 1.0]
    for number in range(3):
        points = skin_points(pixels[1 + number, 0])
        rays = np.concatenate([(points - [639.5, 359.5]) / 900.0, np.ones((41, 1))], axis=1)
        expected = (0.6 + normal @ T_camera_depth[:3, 3]) / (rays @ normal)
        read = np.isfinite(found.sigma[number])
        assert read.mean() > 0.9
        # Between two pictures the wall has moved on by half of 20 mm along the depth camera's z.
        shift = 0.02 * (number + 0.5)
        np.testing.assert_allclose(found.z[number, read], expected[read] + shift, atol=4e-3)
    np.testing.assert_allclose(found.sigma[2, read], 0.004 * 0.6**2, rtol=0.25)


def tracks(joints, sides=("left", "right")):
    """Slots (T) of [left, right] detections of hands (T, 21, 3)."""
    pairs = {side: seen(hand, side) for side, hand in zip(sides, joints, strict=True)}
    none = [None] * len(joints[0])
    both = pairs.get("left", none), pairs.get("right", none)
    return [list(pair) for pair in zip(*both, strict=True)]


def both_hands(count=20):
    left, right = (hand_motion(side, count)[1] for side in ("left", "right"))
    apart = np.array([0.15, 0.0, 0.0])
    return left - apart, right + apart


def there(joints):
    return [frames.apply(T_VIEW_CAMERA, hand) for hand in joints]


def test_exchanged_sides_of_a_camera_are_put_right():
    joints, times = both_hands(), stamps(20)
    own = tracks(joints)
    exchanged = [pair[::-1] for pair in tracks(there(joints))]
    view = ViewTrack(PINHOLE, T_CAMERA_VIEW, times, exchanged)
    found, (other,) = same_hands(PINHOLE, own, times, [view])
    assert found == own
    for pair, before in zip(other, exchanged, strict=True):
        assert pair[0] is before[1] and pair[1] is before[0]


def test_an_invented_hand_loses_against_the_other_camera():
    joints, times = both_hands(), stamps(20)
    own = tracks(joints)
    for pair in own:  # something else where the right hand is not
        pair[1] = replace(pair[1], pixels=pair[1].pixels * [1.0, -1.0] + [0, 760], presence=0.6)
    view = ViewTrack(PINHOLE, T_CAMERA_VIEW, times, tracks(there(joints)))
    found, (other,) = same_hands(PINHOLE, own, times, [view])
    assert all(pair[0] is not None and pair[1] is None for pair in found)
    assert all(pair[0] is not None and pair[1] is not None for pair in other)


@pytest.mark.parametrize(("presence", "kept"), [(0.73, False), (0.88, True)])
def test_a_hand_that_the_other_camera_misses_is_kept_if_sure(presence, kept):
    joints, times = both_hands(), stamps(20)
    own = [[left, replace(right, presence=presence)] for left, right in tracks(joints)]
    left_alone = [[left, None] for left, _ in tracks(there(joints))]
    view = ViewTrack(PINHOLE, T_CAMERA_VIEW, times, left_alone)
    found, _ = same_hands(PINHOLE, own, times, [view])
    assert all((right is not None) == kept for _, right in found)


def test_two_different_right_hands_are_a_left_and_a_right_one():
    """One camera sees the left hand and is unsure of its side, the other one the right hand."""
    (left, right), times = both_hands(), stamps(20)
    unsure = [[None, hand] for hand in seen(left, "right", confidence=0.7)]
    sure = [[None, hand] for hand in seen(frames.apply(T_VIEW_CAMERA, right), "right")]
    view = ViewTrack(PINHOLE, T_CAMERA_VIEW, times, sure)
    found, (other,) = same_hands(PINHOLE, unsure, times, [view])
    for pair, before in zip(found, unsure, strict=True):
        assert pair[0] is before[1] and pair[1] is None
    assert other == sure


def test_a_camera_sees_nothing_before_and_after_its_frames():
    """Of frames 5 to 14, with 9 missing: hands at them, between them, and just outside of them."""
    _, joints = hand_motion("right", 20)
    own, times = tracks([joints], ["right"]), stamps(20)
    kept = [5, 6, 7, 8, 10, 11, 12, 13, 14]
    view = ViewTrack(PINHOLE, np.eye(4), times[kept], [own[k] for k in kept])
    at = np.concatenate([times, [(times[6] + times[7]) // 2, times[14] + 5_000_000]])
    found = view.at(at)
    assert [pair[1] is not None for pair in found] == [
        *[5 <= k <= 14 for k in range(20)],
        True,
        True,
    ]
    assert found[14][1] is own[14][1] is found[21][1]
    middle = (own[6][1].pixels + own[7][1].pixels) / 2
    np.testing.assert_allclose(found[20][1].pixels, middle, atol=1e-4)

    depth = Depth(Plane(), times[5:10], PINHOLE, np.eye(4))
    read = skin_depth(depth, PINHOLE, landmarks_of(own), times, no_progress)[1]
    known = np.isfinite(read.sigma).any(1)
    np.testing.assert_array_equal(np.flatnonzero(known), [5, 6, 7, 8, 9])


@pytest.mark.parametrize("late_s", [0.0, 0.12, -0.2])
def test_the_offset_of_a_clock_is_found(late_s):
    _, joints = hand_motion("right", 90)
    own = tracks([joints], ["right"])
    times = stamps(90)
    clock = times + round(late_s * 1e9)
    view = ViewTrack(PINHOLE, T_CAMERA_VIEW, clock, tracks(there([joints]), ["right"]))
    found = estimated_offset(PINHOLE, own, times, view)
    assert (found or 0.0) == pytest.approx(late_s, abs=0.01)


class Plane:
    """Depth pictures of a plane at 0.45 m, in the colour camera."""

    def __len__(self):
        return 5

    def at(self, index):
        return np.full((PINHOLE.height, PINHOLE.width), 0.45, np.float32)


def test_hands_without_depth_of_their_own_are_moved_along_their_rays():
    """The middle of a hand's points comes to lie behind the plane by their thickness."""
    times = stamps(5)
    pose, joints = hand_motion("right", 5)
    hands = np.full((5, 2, 21, 3), np.nan)
    hands[:, 1] = joints * 1.2
    orient = np.tile(np.eye(3), (5, 2, 1, 1))
    orient[:, 1] = pose.global_orient
    motion = replace(blank_motion(times, PINHOLE), joints_camera=hands, global_orient=orient)
    depth = Depth(Plane(), times, PINHOLE, np.eye(4))
    moved = moved_by_depth(motion, depth, no_progress)

    before, after = hands[:, 1], moved.joints_camera[:, 1]
    shift = after - before
    np.testing.assert_allclose(shift, np.repeat(shift[:, :1], 21, axis=1), atol=1e-12)
    ray = before[:, 0] / before[:, 0, 2:]
    np.testing.assert_allclose(after[:, 0], ray * after[:, 0, 2:], atol=1e-12)
    below = thickness(pose.global_orient, "right", HAND.rest_keypoints("right", ZERO))
    middle = np.median(skin_points(after)[..., 2] - below, axis=1)
    np.testing.assert_allclose(middle, 0.45, atol=4e-3)
    np.testing.assert_array_equal(moved.evidence, [[0, 5]] * 5)
    np.testing.assert_allclose(moved.translation[:, 1] - motion.translation[:, 1], shift[:, 0])

    third = replace(motion, joints_camera=hands * 3)
    kept = moved_by_depth(third, depth, no_progress)
    np.testing.assert_array_equal(kept.joints_camera, third.joints_camera)
    (one,) = kept.provenance.agreement
    assert one.used == 0 and "unit" in one.doubt


def blank_motion(times, camera):
    """A motion whose right hand is observed."""
    count, right = len(times), np.tile([False, True], (len(times), 1))
    return HandMotion(
        times, 30.0, right * 1.0, right * 1.0, right * 1.0, right, np.zeros_like(right),
        np.zeros((count, 2, 3, 3)), np.zeros((count, 2, 15, 3, 3)), np.zeros((2, 10)),
        np.zeros((count, 2, 3)), np.zeros((count, 2, 21, 3)), np.zeros((count, 2, 21, 2)),
        "acehand", Provenance("a", None, "ace"), camera=camera,
    )  # fmt: skip
