"""The default hand: kinematics, shape, sides."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import (
    BONES,
    FINGERS,
    KEYPOINT_PARENTS,
    KEYPOINT_TO_TREE,
    TREE_PARENTS,
    finger_keypoints,
)

HAND = CapsuleHand()
MIRROR = np.array([-1.0, 1.0, 1.0])
ZERO = np.zeros(10)
SEEDS = st.integers(0, 2**32 - 1)


def random_pose(rng, side, batch=()):
    low, high = articulation.limits()
    angles = rng.uniform(low, high, (*batch, 22))
    orient = rotations.exp(rng.uniform(-2, 2, (*batch, 3)))
    return orient, articulation.angles_to_pose(angles, side)


def slow_joints(side, orient, pose, betas):
    """Recursive forward kinematics, keypoint by keypoint."""
    rest = HAND.rest_keypoints(side, betas)

    def world(tree):
        return orient if tree == 0 else world(TREE_PARENTS[tree]) @ pose[tree - 1]

    def place(keypoint):
        parent = KEYPOINT_PARENTS[keypoint]
        if parent < 0:
            return rest[0]
        return place(parent) + world(KEYPOINT_TO_TREE[parent]) @ (rest[keypoint] - rest[parent])

    return np.stack([place(k) for k in range(21)])


@pytest.mark.parametrize("side", ["left", "right"])
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_joints_match_recursive_kinematics(side, seed):
    rng = np.random.default_rng(seed)
    orient, pose = random_pose(rng, side)
    betas = rng.normal(size=10)
    expected = slow_joints(side, orient, pose, betas)
    assert np.allclose(HAND.joints(side, orient, pose, betas), expected, atol=1e-12)


def test_leading_axes_broadcast():
    rng = np.random.default_rng(0)
    orient, pose = random_pose(rng, "left", (4, 3))
    betas = rng.normal(size=(3, 10))
    joints = HAND.joints("left", orient, pose, betas)
    vertices = HAND.vertices("left", orient, pose, betas[0])
    for i, j in np.ndindex(4, 3):
        one = (orient[i, j], pose[i, j], betas[j])
        assert np.allclose(joints[i, j], HAND.joints("left", *one), atol=1e-12)
        mesh = HAND.vertices("left", *one[:2], betas[0])
        assert np.allclose(vertices[i, j], mesh, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_left_is_the_mirror_image_of_right(seed):
    rng = np.random.default_rng(seed)
    betas = rng.normal(size=10)
    angles = rng.uniform(*articulation.limits())
    orient = rotations.exp(rng.uniform(-2, 2, 3))
    flip = np.diag(MIRROR)
    right = (orient, articulation.angles_to_pose(angles, "right"), betas)
    left = (flip @ orient @ flip, articulation.angles_to_pose(angles, "left"), betas)
    joints, vertices = HAND.joints("left", *left), HAND.vertices("left", *left)
    assert np.allclose(joints, HAND.joints("right", *right) * MIRROR, atol=1e-12)
    assert np.allclose(vertices, HAND.vertices("right", *right) * MIRROR, atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_turning_the_hand_turns_joints_and_mesh_about_the_wrist(seed):
    rng = np.random.default_rng(seed)
    _, pose = random_pose(rng, "right")
    turn, betas = rotations.exp(rng.uniform(-2, 2, 3)), rng.normal(size=10)
    wrist = HAND.rest_keypoints("right", betas)[0]
    for part in (HAND.joints, HAND.vertices):
        still, turned = (part("right", R, pose, betas) for R in (np.eye(3), turn))
        assert np.allclose(turned, (still - wrist) @ turn.T + wrist, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_joints_and_mesh_are_linear_in_betas(seed):
    rng = np.random.default_rng(seed)
    orient, pose = random_pose(rng, "right")
    a, b = rng.normal(size=(2, 10))
    for part in (HAND.joints, HAND.vertices):
        mean, at_a, at_b, both = (part("right", orient, pose, x) for x in (ZERO, a, b, a + b))
        assert np.allclose(both - mean, (at_a - mean) + (at_b - mean), atol=1e-12)


def bone_lengths(betas):
    rest = HAND.rest_keypoints("right", betas)
    return {bone: np.linalg.norm(rest[bone[1]] - rest[bone[0]]) for bone in BONES}


def unit(beta):
    return np.eye(10)[beta]


def test_mean_hand_has_the_published_proportions():
    assert HAND.hand_length(ZERO) == pytest.approx(0.187, abs=0.004)
    lengths = bone_lengths(ZERO)
    for finger in FINGERS:
        chain = finger_keypoints(finger)
        for part, expected in enumerate(articulation.SEGMENT_LENGTHS_MM[finger]):
            assert lengths[chain[part], chain[part + 1]] == pytest.approx(expected * 1e-3)


@pytest.mark.parametrize(
    ("beta", "finger", "factors"),
    [
        (3, "thumb", (1.06,) * 3),
        (5, "pinky", (1.06,) * 3),
        (6, "middle", (1.04,) * 3),
        (4, "index", (1.03,) * 3),
        (4, "ring", (0.97,) * 3),
        (2, "index", (1.045,) * 3),
        (7, "ring", (1.06, 0.95, 0.95)),
    ],
)
def test_a_beta_changes_its_bones_by_the_stated_share(beta, finger, factors):
    before, after = bone_lengths(ZERO), bone_lengths(unit(beta))
    bones = list(itertools.pairwise(finger_keypoints(finger)))
    assert [after[b] / before[b] for b in bones] == pytest.approx(factors, abs=1e-9)


def test_size_breadth_and_thickness_betas():
    mean, grown, wide, thick = (
        HAND.rest_keypoints("right", betas) for betas in (ZERO, unit(0), unit(1), unit(8))
    )
    assert np.allclose(grown, 1.055 * mean, atol=1e-12)
    mesh, larger = (HAND.rest_vertices("right", betas) for betas in (ZERO, unit(0)))
    assert np.allclose(larger, 1.055 * mesh, atol=2e-5)  # directions are stored in float16
    knuckles = [rest[5, 2] - rest[17, 2] for rest in (mean, wide)]
    assert knuckles[1] / knuckles[0] == pytest.approx(1.055, abs=1e-9)
    assert np.allclose(thick, mean)  # the skin alone changes


def test_flexing_moves_tips_to_the_palm_side():
    angles = np.zeros(22)
    for index, freedom in enumerate(articulation.freedoms()):
        if freedom.kind == "flex":
            angles[index] = 0.3
    for side in ("left", "right"):
        pose = articulation.angles_to_pose(angles, side)
        bent = HAND.joints(side, np.eye(3), pose, ZERO)
        rest = HAND.rest_keypoints(side, ZERO)
        assert (bent[[8, 12, 16, 20], 1] < rest[[8, 12, 16, 20], 1] - 0.02).all()
