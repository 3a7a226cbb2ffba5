"""Distances between shapes of a hand: against brute force, MuJoCo and finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from acehand_core.types import SIDES
from helpers.retarget_samples import robot_targets, smooth_commands, solved
from retarget.replay.simulate import self_penetration
from retarget.robots.collision_shapes import closest_points, nearest_to_boxes
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.collision import CONTACT_M, NEAR_M, collision_pairs
from retarget.solve.costs import Weights

HANDS = {side: load_robot("inspire").hand(side) for side in SIDES}
TREES = {side: KinematicTree.of(hand) for side, hand in HANDS.items()}
coordinates = hnp.arrays(float, (4, 3), elements=st.integers(-4, 4).map(float))


@settings(max_examples=300, deadline=None)
@given(coordinates)
def test_closest_points_of_two_segments(corners):
    """Whole numbers: parallel, crossing, touching and point-like segments are all common."""
    a, b, c, d = corners
    first, second = closest_points(*(x[None] for x in corners))
    for point, start, end in ((first[0], a, b), (second[0], c, d)):
        around = np.linalg.norm(point - start) + np.linalg.norm(point - end)
        assert around == pytest.approx(np.linalg.norm(end - start), abs=1e-9)
    share = np.linspace(0, 1, 41)[:, None]
    grid = np.linalg.norm((a + share * (b - a))[:, None] - (c + share * (d - c))[None], axis=-1)
    found = np.linalg.norm(first - second)
    assert found <= grid.min() + 1e-9
    # A grid of 41 points misses the nearest by half a pairs along each segment at most.
    assert found >= grid.min() - (np.linalg.norm(b - a) + np.linalg.norm(d - c)) / 80 - 1e-9


@pytest.mark.parametrize("turned", [False, True])
def test_nearest_to_boxes_by_hand(turned):
    """A box of half sizes 1, 2, 3: beyond an edge, inside, on a face's side, and right through."""
    a = np.array([[2, 3, 0], [0.5, 0, 0], [0.2, 1.9, 0.5], [-5, 0, 0]], float)
    b = np.array([[2, 5, 0], [0.5, 0, 0], [0.2, 1.5, 0.5], [5, 0, 0]], float)
    surface = np.array([[1, 2, 0], [1, 0, 0], [0.2, 2, 0.5]])
    normal = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0]]) / np.array([[2**0.5], [1], [1]])
    axes = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]]) if turned else np.eye(3)
    centre = np.array([0.1, -0.2, 0.3])

    def placed(points):
        return points @ axes.T + centre

    point, nearest, outward, signed = nearest_to_boxes(
        placed(a), placed(b), np.tile(axes, (4, 1, 1)), np.tile(centre, (4, 1)),
        np.tile([1.0, 2.0, 3.0], (4, 1)),
    )  # fmt: skip
    # Inside, the third segment is deepest at its end: 0.5 under the side face, 0.8 the next.
    assert signed == pytest.approx([2**0.5, -0.5, -0.5, -1], abs=1e-4)
    assert nearest[:3] == pytest.approx(placed(surface), abs=1e-4)
    assert outward[:3] == pytest.approx(normal @ axes.T, abs=1e-4)
    assert point[[0, 3]] == pytest.approx(placed(np.array([[2, 3, 0], [0, 0, 0]])), abs=1e-4)


def random_commands(hand, count, seed=0):
    rng = np.random.default_rng(seed)
    return hand.command_lower + (hand.command_upper - hand.command_lower) * rng.random(
        (count, len(hand.rest))
    )


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("robot", ["inspire", "ability", "shadow"])
def test_shortfall_is_the_penetration_that_mujoco_finds(robot, side):
    """Capsules meet each other in all three; in two of them fingers also meet the palm's boxes."""
    hand = load_robot(robot).hand(side)
    tree = KinematicTree.of(hand)
    pairs = collision_pairs(hand, tree)
    joints = hand.expand(random_commands(hand, 600))
    clearance = pairs.clearance(np.full((600, len(pairs.pinching)), -np.inf))
    ours = pairs.shortfall(tree.posture(joints), clearance).max(1) + CONTACT_M
    theirs = self_penetration(hand, joints)
    assert (theirs > 1e-3).sum() > 30
    assert np.maximum(ours, 0) == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("robot", ["inspire", "ability", "shadow"])
def test_gradients(robot):
    hand = load_robot(robot).hand("right")
    tree = KinematicTree.of(hand)
    pairs = collision_pairs(hand, tree)
    commands = random_commands(hand, 60, seed=1)
    clearance = pairs.clearance(np.full((60, len(pairs.pinching)), 0.04))

    def room(x):
        return -pairs.shortfall(tree.posture(hand.expand(x)), clearance)

    gaps = pairs.gaps(tree.posture(hand.expand(commands)), clearance)
    near = room(commands) < NEAR_M
    assert near[gaps.frames, gaps.pairs].all() and len(gaps.room) == near.sum() > 20
    assert gaps.room == pytest.approx(room(commands)[gaps.frames, gaps.pairs])
    step, smooth = 1e-6, np.ones(len(gaps.room), bool)
    for column in range(len(hand.rest)):
        move = step * np.eye(len(hand.rest))[column]
        ahead, behind = ((room(commands + s * move) - room(commands))[gaps.frames, gaps.pairs]
                         for s in (1, -1))  # fmt: skip
        smooth &= np.abs(ahead + behind) < 1e-10  # not where another end gets nearest
        numeric = (ahead - behind) / (2 * step)
        assert gaps.by_command[smooth, column] == pytest.approx(numeric[smooth], abs=1e-5)
    assert smooth.mean() > 0.9


@pytest.mark.parametrize("robot", ["ability", "leap"])
def test_fingers_stay_out_of_the_palm(robot):
    """Commands that press fingertips into the palm's boxes, which no driver's limits forbid."""
    hand = load_robot(robot).hand("right")
    tree = KinematicTree.of(hand)
    bent = 0.5 - 0.5 * np.cos(np.arange(60) / 60 * 2 * np.pi)
    commands = hand.rest + bent[:, None] * (hand.command_upper - hand.rest)
    for row, name in enumerate(hand.command_names):
        if "thumb" in name or "side" in name or "spread" in name:
            commands[:, row] = hand.rest[row]
    assert self_penetration(hand, hand.expand(commands)).max() > 3e-3

    found = solved(hand, tree, robot_targets(hand, tree, commands))
    assert self_penetration(hand, hand.expand(found)).max() < 1e-3


@pytest.mark.few(1)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("seed", range(2))
def test_a_motion_that_collides_is_led_around(side, seed):
    hand, tree = HANDS[side], TREES[side]
    commands = smooth_commands(hand, 150, seed, speed=0.9)
    thumb, index = (hand.command_names.index(n) for n in ("thumb_bend", "index"))
    commands[:, thumb] = 0.35 + 0.2 * np.sin(np.arange(150) / 25)
    commands[:, index] = 0.9 + 0.4 * np.sin(np.arange(150) / 18)
    commands[:, hand.command_names.index("thumb_rotation")] = 1.1
    assert self_penetration(hand, hand.expand(commands)).max() > 3e-3
    targets = robot_targets(hand, tree, commands)
    free, apart = (solved(hand, tree, targets, w) for w in (Weights(contact=0.0), Weights()))
    assert self_penetration(hand, hand.expand(free)).max() > 3e-3
    assert self_penetration(hand, hand.expand(apart)).max() < 1e-3
