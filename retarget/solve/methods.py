"""Retargeting methods: how the commands of a robot hand are found, and on which calibration.

``trajectory`` is ours: all frames at once, on a calibration that is known or fitted. The others are
dex-retargeting's, frame by frame; they scale the human hand themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, nearest
from acehand_core.motion import Calibration, HandMotion
from acehand_core.types import SIDES, Side
from retarget.replay import metrics
from retarget.replay.simulate import second_pass
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve import dex
from retarget.solve.calibration import calibrate
from retarget.solve.costs import CommandTarget, Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.targets import (
    HandTargets,
    hand_targets,
    opening_calibration,
    opening_targets,
)
from retarget.solve.trajectory import solve_trajectory


@dataclass(frozen=True, slots=True)
class Solution:
    """Commands of one hand over T frames, how the human's was carried over, and how long it took.

    ``seconds`` are those of the solver alone.
    """

    commands: Commands
    calibration: Calibration
    seconds: float


@runtime_checkable
class Retargeter(Protocol):
    """A retargeting method. Limits are kept exactly, whatever it is."""

    name: str
    #: Whether it uses calibrations, so that recordings of one subject can share them.
    calibrates: bool

    def check(self, robot: str, hands: Sequence[HandSpec]) -> None:
        """Raise InputError where a robot's hands cannot be driven this way."""
        ...

    def calibrate(
        self, motion: HandMotion, robot: Robot, known: Mapping[Side, Calibration]
    ) -> dict[Side, Calibration]:
        """Return the calibration of every hand that appears: the known one, else fitted to it."""
        ...

    def solve(
        self, hand: HandSpec, targets: HandTargets, fps: float, calibration: Calibration | None
    ) -> Solution:
        """Return the commands of one hand, ``1 / fps`` apart; without a calibration it is fitted.

        Raises:
            MissingDependencyError: a library that the method needs is not installed.
        """
        ...


class TrajectoryRetargeter:
    """Sequential quadratic programming over all frames, see ``trajectory.py``."""

    name = "trajectory"
    calibrates = True

    def __init__(self, weights: Weights = Weights(), lower_unfollowed: bool = True) -> None:
        """Use these weights; ``lower_unfollowed`` adds a second pass (``simulate.second_pass``)."""
        self._weights, self._lower_unfollowed = weights, lower_unfollowed

    def check(self, robot: str, hands: Sequence[HandSpec]) -> None:
        """Accept any hand."""

    def calibrate(
        self, motion: HandMotion, robot: Robot, known: Mapping[Side, Calibration]
    ) -> dict[Side, Calibration]:
        """Return the calibration of every hand that appears, see ``Retargeter``."""
        calibrations = dict(known)
        for side in SIDES:
            targets = robot_targets(motion, robot, side)
            if targets is not None and side not in calibrations:
                calibrations[side] = self._fitted(robot.hand(side), targets)
        return calibrations

    def solve(
        self, hand: HandSpec, targets: HandTargets, fps: float, calibration: Calibration | None
    ) -> Solution:
        """Return the commands of one hand, see ``Retargeter``."""
        tree, limits = KinematicTree.of(hand), CommandLimits.of(hand, fps)
        fitted = calibration or self._fitted(hand, targets)
        started = time.perf_counter()
        commands = solve_hand(hand, tree, targets, fitted, limits, self._weights)
        seconds = time.perf_counter() - started
        if self._lower_unfollowed:
            commands = second_pass(
                hand, commands, fps, targets.active,
                lambda near: solve_hand(hand, tree, targets, fitted, limits, self._weights, near),
            )  # fmt: skip
        return Solution(commands, fitted, seconds)

    def _fitted(self, hand: HandSpec, targets: HandTargets) -> Calibration:
        tree = KinematicTree.of(hand)
        if hand.tracks == "opening":
            return opening_calibration(hand, tree, targets)
        return calibrate(hand, tree, targets, self._weights)


class DexRetargeter:
    """dex-retargeting, as shipped; see ``dex.py``. It knows no calibration.

    The one that is returned says from where the hand that it posed is best measured.
    """

    calibrates = False

    def __init__(self, mode: str) -> None:
        """Use one of ``dex.MODES``."""
        self.name, self._mode = f"dex-{mode}", mode

    def check(self, robot: str, hands: Sequence[HandSpec]) -> None:
        """Refuse grippers."""
        if any(hand.tracks == "opening" for hand in hands):
            raise InputError(
                f"--solver {self.name} follows fingers, but {robot} the opening between thumb and "
                "index: use the default solver."
            )

    def calibrate(
        self, motion: HandMotion, robot: Robot, known: Mapping[Side, Calibration]
    ) -> dict[Side, Calibration]:
        """Return none."""
        return {}

    def solve(
        self, hand: HandSpec, targets: HandTargets, fps: float, calibration: Calibration | None
    ) -> Solution:
        """Return the commands of one hand, see ``Retargeter``."""
        started = time.perf_counter()
        commands = dex.solve_dex(hand, targets, self._mode)
        commands = CommandLimits.of(hand, fps).enforce(commands)
        seconds = time.perf_counter() - started

        robot = KinematicTree.of(hand).points(hand.expand(commands), hand.tip_names)
        human = targets.tips_of(hand.fingers)
        ground = metrics.CommonGround.fit(human, robot)
        residual = float(np.sqrt(np.nanmean(metrics.tip_error(human, robot, ground) ** 2)))
        best = Calibration(ground.scale, ground.rotation, ground.translation, residual)
        return Solution(commands, best, seconds)


METHODS = (TrajectoryRetargeter.name, *(f"dex-{mode}" for mode in dex.MODES))


def retargeter_named(
    method: str, weights: Weights = Weights(), lower_unfollowed: bool = True
) -> Retargeter:
    """Return a method by its name; the other arguments are those of ``TrajectoryRetargeter``.

    Raises:
        InputError: unknown method.
    """
    if method not in METHODS:
        raise InputError(f"Unknown solver {method!r}; {nearest(method, METHODS)}")
    if method == TrajectoryRetargeter.name:
        return TrajectoryRetargeter(weights, lower_unfollowed)
    return DexRetargeter(method.removeprefix("dex-"))


def robot_targets(motion: HandMotion, robot: Robot, side: Side) -> HandTargets | None:
    """Return what the robot's hand is to track, fingers or an opening; None without a human hand.

    Raises:
        InputError: the robot has no such hand.
    """
    targets = hand_targets(motion, side)
    if targets is not None and robot.hand(side).tracks == "opening":
        return opening_targets(targets, motion.fps)
    return targets


def solve_hand(
    hand: HandSpec,
    tree: KinematicTree,
    targets: HandTargets,
    calibration: Calibration,
    limits: CommandLimits,
    weights: Weights = Weights(),
    near: CommandTarget | None = None,
) -> Float[np.ndarray, "T C"]:
    """Return the commands of one hand, from the idle hand as first guess."""
    objective = PoseObjective(hand, tree, targets, calibration, weights, near)
    start = np.tile(hand.rest, (len(targets.joints_hand), 1))
    return solve_trajectory(objective, limits, start)
