"""Two hands that do not pass through each other: another solver, hands in known places."""

import numpy as np
from scipy.optimize import lsq_linear

from acehand_core.geometry import rotations
from acehand_core.hand import articulation, contact
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.contact import GIVE_M, PlacedHand, overlap, shifts_apart
from acehand_core.hand.evidence import Pose

HAND, FLAT = CapsuleHand(), np.zeros(10)


def test_distances_of_segments_by_another_solver():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 8, 2, 3))
    distance, away = contact._between(one, other)
    for a in range(8):
        for b in range(8):
            u, v = np.diff(one[a], axis=0), np.diff(other[b], axis=0)
            from_one = other[b, 0] - one[a, 0]
            found = lsq_linear(np.concatenate([u, -v]).T, from_one, bounds=(0, 1), tol=1e-14)
            np.testing.assert_allclose(distance[a, b], np.sqrt(2 * found.cost), atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(away, axis=-1), 1.0)


def crossing(count=30, gap_m=0.05):
    """The right hand passes in front of the left one, which rests: joints of both (N, 21, 3)."""
    angles = np.tile(articulation.comfortable(), (count, 1))
    turn = np.tile(rotations.exp(np.array([-np.pi / 2, 0.0, 0.0])), (count, 1, 1))
    x = np.linspace(-0.15, 0.15, count)
    joints = []
    for side, place in (
        ("left", np.stack([0 * x + 0.03, 0 * x, 0 * x + 0.5], 1)),
        ("right", np.stack([x, 0 * x + 0.02, 0 * x + 0.5 - gap_m], 1)),
    ):
        rest = HAND.rest_keypoints(side, FLAT)
        joints.append(Pose(turn, angles, place).keypoints(side, rest))
    return joints


def placed(left, right, left_sigma=(0.003, 0.02), right_sigma=(0.003, 0.02)):
    frames = np.arange(len(left))
    return {
        side: PlacedHand(frames, joints, np.tile(sigma, (len(left), 1)))
        for side, joints, sigma in (("left", left, left_sigma), ("right", right, right_sigma))
    }


def test_hands_that_are_seen_too_near_each_other_are_moved_apart_in_depth():
    """The hand in front is seen 4 cm too far: into the other, of which the place is known."""
    left, right = crossing()
    assert overlap(left, right).max() < GIVE_M
    wrong = right * (1 + 0.04 / right[:, :1, 2:])
    through = overlap(left, wrong) > GIVE_M
    assert 5 < through.sum() < 30
    shifts = shifts_apart(placed(left, wrong, left_sigma=(0.001, 0.001)))
    mended = wrong + shifts["right"][:, None]
    assert overlap(left + shifts["left"][:, None], mended).max() < GIVE_M + 0.001
    before, after = (np.linalg.norm(j - right, axis=-1).mean(1)[through] for j in (wrong, mended))
    assert after.mean() < 0.75 * before.mean() and (after < before + 1e-3).all()
    depth = np.abs(shifts["right"][through, 2]).mean()
    assert depth > 5 * np.abs(shifts["right"][through, :2]).mean()
    assert (shifts["right"][~through] == 0).all()


def test_what_is_known_worse_moves_more():
    left, right = crossing(gap_m=0.01)
    shifts = shifts_apart(placed(left, right, (0.003, 0.01), (0.003, 0.03)))
    moved = {side: np.abs(shift[:, 2]).max() for side, shift in shifts.items()}
    # Nine times the variance.
    np.testing.assert_allclose(moved["right"] / moved["left"], 9, rtol=0.15)


def test_only_frames_with_both_hands_count():
    left, right = crossing(gap_m=0.01)
    both = placed(left, right)
    part = PlacedHand(np.arange(12, 18), right[12:18], both["right"].sigma[12:18])
    whole, some = shifts_apart(both), shifts_apart({"left": both["left"], "right": part})
    np.testing.assert_allclose(some["right"], whole["right"][12:18])
    assert (some["left"][:12] == 0).all() and (some["left"][18:] == 0).all()
    assert (shifts_apart({"left": both["left"]})["left"] == 0).all()
