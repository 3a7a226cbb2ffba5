"""The skinned mesh of the default hand: closed, hand-like, and the one that authoring builds."""

from collections import Counter

import numpy as np
import pytest
from scipy.spatial import cKDTree

from acehand_core.hand import articulation
from acehand_core.hand.articulation import Proportions, rest_keypoints
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import DISTALS, FINGER_JOINT_NAMES, TIPS
from helpers import SLOW
from helpers.call_counts import calls
from tools.hand_asset import authoring, skin_field

HAND = CapsuleHand()
ZERO = np.zeros(10)
SIDES = ("left", "right")


def signed_volume(vertices, faces):
    a, b, c = vertices[faces].transpose(1, 0, 2)
    return np.sum(a * np.cross(b, c)) / 6


def winding(points, vertices, faces):
    """Generalised winding number: 1 inside a closed outward surface, 0 outside."""
    total = np.zeros(len(points))
    for i, point in enumerate(points):
        a, b, c = (vertices[faces] - point).transpose(1, 0, 2)
        la, lb, lc = (np.linalg.norm(x, axis=1) for x in (a, b, c))
        top = np.sum(a * np.cross(b, c), 1)
        bottom = (la * lb * lc + np.sum(a * b, 1) * lc + np.sum(b * c, 1) * la
                  + np.sum(c * a, 1) * lb)  # fmt: skip
        total[i] = np.sum(2 * np.arctan2(top, bottom)) / (4 * np.pi)
    return total


@pytest.fixture(scope="module")
def asset():
    return dict(np.load(authoring.ASSET, allow_pickle=False))


@pytest.mark.parametrize("side", SIDES)
def test_closed_manifold_sphere_facing_out(side):
    faces = HAND.faces(side)
    vertices = HAND.rest_vertices(side, ZERO)
    directed = Counter((int(f[i]), int(f[i - 2])) for f in faces for i in range(3))
    assert set(directed.values()) == {1}  # no edge used twice in one direction
    assert all(directed[b, a] == 1 for a, b in directed)  # each has its opposite
    assert len(vertices) - len(directed) // 2 + len(faces) == 2
    assert sorted(np.unique(faces)) == list(range(len(vertices)))
    assert signed_volume(vertices, faces) > 0


def test_size_like_a_human_hand():
    vertices, faces = HAND.rest_vertices("right", ZERO), HAND.faces("right")
    rest = HAND.rest_keypoints("right", ZERO)
    cut = vertices.copy()
    cut[:, 0] = np.minimum(cut[:, 0], rest[0, 0])  # flatten the forearm onto the wrist's plane
    # Hughes and Lau 2008 immersed two hands: 312 and 494 ml.
    assert 312e-6 < signed_volume(cut, faces) < 494e-6
    assert 2000 <= len(vertices) <= 4000
    assert 0.185 < rest[0, 0] - vertices[:, 0].min() < 0.197
    assert 0.03 < vertices[:, 0].max() - rest[0, 0] < 0.07  # a forearm to put a sleeve on


def test_keypoints_lie_inside_and_tips_close_under_the_skin():
    vertices, faces = HAND.rest_vertices("right", ZERO), HAND.faces("right")
    rest = HAND.rest_keypoints("right", ZERO)
    assert np.allclose(winding(rest, vertices, faces), 1, atol=1e-6)
    depth, _ = cKDTree(vertices).query(rest)
    assert (depth[list(TIPS)] > 0.002).all() and (depth[list(TIPS)] < 0.007).all()
    inner = [k for k in range(21) if k not in TIPS]
    assert (depth[inner] > 0.006).all() and (depth[inner] < 0.022).all()


def test_skin_weights(asset):
    weights = np.zeros((len(asset["vertices"]), 16))
    np.put_along_axis(weights, asset["joints"].astype(int), asset["weights"].astype(float), 1)
    assert np.allclose(weights.sum(1), 1, atol=1e-6)
    assert (weights >= 0).all()
    assert (weights > 0).sum(1).max() <= 4
    assert (weights.max(0) > 0.9).all()  # every bone carries something almost alone
    # Only first phalanges may share skin with another finger: in the webs.
    finger = np.array([-1] + [(joint - 1) // 3 for joint in range(1, 16)])
    outer = np.array([name.endswith(("pip", "dip")) for name in ("wrist", *FINGER_JOINT_NAMES)])
    for joint in np.flatnonzero(outer):
        others = (finger >= 0) & (finger != finger[joint])
        assert weights[weights[:, joint] > 0.01][:, others].max() < 0.01


@pytest.mark.parametrize("side", SIDES)
def test_random_poses_do_not_tear_the_skin(side):
    rng = np.random.default_rng(3)
    angles = rng.uniform(*articulation.limits(), (60, 22))
    pose = articulation.angles_to_pose(angles, side)
    orient = np.broadcast_to(np.eye(3), (60, 3, 3))
    betas = np.clip(rng.normal(size=10), -2, 2)
    vertices = HAND.vertices(side, orient, pose, betas)
    assert np.isfinite(vertices).all()
    faces = HAND.faces(side)
    edges = vertices[:, faces] - vertices[:, np.roll(faces, 1, axis=1)]
    assert np.linalg.norm(edges, axis=-1).max() < 0.03
    joints = HAND.joints(side, orient, pose, betas)
    for mesh, points in zip(vertices, joints, strict=True):
        depth, _ = cKDTree(mesh).query(points[[*TIPS, *DISTALS]])
        assert (depth < 0.016).all()  # the skin stays with its bones


def test_posing_a_recording_takes_no_more_calls_than_a_frame():
    """All frames are posed at once, in blocks that keep memory flat."""

    def posed(count):
        orient = np.broadcast_to(np.eye(3), (count, 3, 3))
        pose = np.broadcast_to(np.eye(3), (count, 15, 3, 3))
        return lambda: HAND.vertices("right", orient, pose, ZERO)

    posed(2)()  # what is kept from the first call on
    assert calls(posed(621)) <= calls(posed(2))


def half_girth(betas, keypoint, other):
    """Mean distance of the skin half way along a bone from that bone's line."""

    def around(shape):
        rest, skin = HAND.rest_keypoints("right", shape), HAND.rest_vertices("right", shape)
        axis, offset = rest[other] - rest[keypoint], skin - rest[keypoint]
        length = np.linalg.norm(axis)
        along = offset @ axis / length
        return along - length / 2, np.linalg.norm(offset - np.outer(along, axis / length), axis=1)

    along, across = around(ZERO)
    ring = (np.abs(along) < 0.004) & (across < 0.014)  # no neighbouring finger
    return around(betas)[1][ring].mean()


def test_thickness_betas_change_the_skin_by_the_stated_share():
    betas = np.eye(10)[8]
    for keypoint, other in ((6, 7), (10, 11), (3, 4)):
        ratio = half_girth(betas, keypoint, other) / half_girth(ZERO, keypoint, other)
        assert ratio == pytest.approx(1.08, abs=0.01)
    betas = np.eye(10)[9]
    rest = HAND.rest_vertices("right", ZERO)
    palm = (rest[:, 0] > 0.03) & (np.abs(rest[:, 2] + 0.015) < 0.015)  # next to the thumb
    grown = np.ptp(HAND.rest_vertices("right", betas)[palm, 1])
    assert grown / np.ptp(rest[palm, 1]) == pytest.approx(1.08, abs=0.005)


def test_asset_is_what_authoring_makes(asset):
    """Field, weights, shape directions and tint are recomputed on the committed vertices."""
    assert authoring.ASSET.stat().st_size < 400_000
    points = asset["vertices"].astype(float) * 1e3 @ articulation.ANATOMICAL_TO_MODEL
    points = points + rest_keypoints(Proportions())[9]
    assert np.abs(skin_field.field(points)).max() < 1e-3
    faces = asset["faces"][:, ::-1].astype(np.int64)
    made = authoring.attributes(points, faces)
    for name in ("weights", "shape_directions"):
        assert np.allclose(made[name].astype(float), asset[name].astype(float), atol=5e-3), name
    assert (np.abs(made["tint"].astype(int) - asset["tint"]) <= 2).all()


def test_authoring_is_deterministic_and_comes_out_the_same_when_coarser(asset):
    pytest.importorskip("skimage")
    first, *again = (authoring.build(spacing=4.0, coarseness=2.2) for _ in range(1 + SLOW))
    assert all(np.array_equal(first[name], other[name]) for other in again for name in first)
    assert set(first) == set(asset)
    coarse, fine = (
        signed_volume(made["vertices"].astype(float), made["faces"].astype(int))
        for made in (first, asset)
    )
    assert coarse == pytest.approx(fine, rel=0.05)
    edges = np.sort([(f[i], f[i - 1]) for f in first["faces"] for i in range(3)], axis=1)
    assert set(np.unique(edges, axis=0, return_counts=True)[1]) == {2}
    distance, _ = cKDTree(asset["vertices"]).query(first["vertices"])
    assert distance.max() < 0.006
