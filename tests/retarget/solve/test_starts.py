"""First guesses: the cheapest way through poses of several starts, per group of joints."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from helpers.retarget_samples import FPS, IDENTITY, robot_targets, wide_commands
from retarget.robots.hand_spec import CommandLimits
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import OURS, load_robot
from retarget.solve import trajectory
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective

TRACKING = Weights(pinch=0.0, rest=1e-8, acceleration=0.0, jerk=0.0, contact=0.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_way_is_the_cheapest_of_all(seed):
    """Against every sequence of 3 poses over 6 frames."""
    rng = np.random.default_rng(seed)
    cost, at = rng.random((3, 6)) * 5, rng.normal(size=(3, 6, 2))

    def total(way):
        steps = np.abs(np.diff([at[k, n] for n, k in enumerate(way)], axis=0))
        moving = trajectory.STEP * steps**2 + trajectory.BEYOND * np.maximum(steps - 1, 0) ** 2
        return sum(cost[k, n] for n, k in enumerate(way)) + moving.sum()

    best = min(itertools.product(range(3), repeat=6), key=total)
    assert trajectory._way(cost, at).tolist() == list(best)


def test_joints_that_share_a_term_are_one_group():
    depends = np.array([[1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 0]], bool)
    assert [group.tolist() for group in trajectory._groups(depends)] == [[0, 1, 3], [2], [4]]


@pytest.fixture(scope="module")
def leap():
    """A motion of the LEAP hand over its whole range, every fourth frame of it."""
    hand = load_robot("leap", models=OURS).hand("right")
    tree = KinematicTree.of(hand)
    commands = wide_commands(hand)
    objective = PoseObjective(hand, tree, robot_targets(hand, tree, commands), IDENTITY, TRACKING)
    return hand, commands, objective, np.arange(0, len(commands), 4)


def test_every_frame_is_solved_alone_and_the_true_poses_are_found(leap):
    hand, commands, objective, frames = leap
    limits = CommandLimits.of(hand, FPS).every(4)
    start = np.tile(hand.rest, (len(frames), 1))
    path = trajectory.best_path(objective, limits, start, frames)
    assert np.abs(path - commands[frames]).max() < 1e-2
    assert (np.abs(np.diff(path, axis=0)) <= limits.step).all()


def test_a_start_that_is_right_is_kept(leap):
    hand, commands, objective, frames = leap
    limits = CommandLimits.of(hand, FPS).every(4)
    path = trajectory.best_path(objective, limits, commands[frames], frames)
    assert np.abs(path - commands[frames]).max() < 1e-3


def test_without_anything_to_follow_the_start_is_kept(leap):
    """Only the idle hand pulls, and from every start to the same pose."""
    hand, commands, objective, frames = leap
    unknown = robot_targets(hand, objective.tree, commands)
    unknown.joints_hand[:] = np.nan
    nothing = PoseObjective(hand, objective.tree, unknown, IDENTITY, Weights())
    start = np.tile(hand.rest, (len(frames), 1))
    path = trajectory.best_path(nothing, CommandLimits.of(hand, FPS).every(4), start, frames)
    assert np.abs(path - hand.rest).max() < 1e-6
