"""Retargeting methods: how the commands of a robot hand are computed, and on which calibration.

``trajectory`` solves all frames at once. The others are those of dex-retargeting (MIT,
https://github.com/dexsuite/dex-retargeting) as shipped, with its objectives, scale and filter:
causal, frame by frame, so they lag, may leave limits until these are enforced, and scale the human
hand themselves. A plug-in adds a method with an entry point ``second_pass -> Retargeter`` in the
group ``acehand.methods`` (``plugins``).
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from acehand_core import plugins
from acehand_core.errors import InputError, MissingDependencyError, nearest
from acehand_core.hand.skeleton import WRIST, finger_keypoints
from acehand_core.motion import Calibration, HandMotion
from acehand_core.types import SIDES, Side
from retarget.replay import metrics
from retarget.replay.simulate import second_pass
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.calibration import calibrate, pooled, sampled
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.trajectory import solve_trajectory
from retarget.targets import (
    CommandTarget,
    HandTargets,
    hand_targets,
    opening_calibration,
    opening_targets,
)

DEX_MODES = ("vector", "dexpilot", "position")
#: The library's values for this hand: length of the robot's vectors over the human's, and filter.
DEX_SCALING = 1.15
LOW_PASS_ALPHA = {"vector": 0.2, "dexpilot": 0.2, "position": 1.0}


def solve_dex(hand: HandSpec, targets: HandTargets, mode: str, filtered: bool = True) -> Commands:
    """Return the driven joints of every frame; frames without all joints repeat the last pose.

    Args:
        mode: "vector" (wrist to tips), "dexpilot" (also tips to tips) or "position" (tips, without
            scale, on a floating base whose pose is dropped).
        filtered: use the library's exponential filter, on by default there.

    Raises:
        MissingDependencyError: dex-retargeting is not installed.
    """
    return drive_dex(build_dex(hand, mode, filtered), hand, targets)


def drive_dex(retargeting: Any, hand: HandSpec, targets: HandTargets) -> Commands:
    """Drive what ``build_dex`` returned through all frames; nothing is clipped to limits."""
    order = [retargeting.joint_names.index(hand.full_name(name)) for name in hand.command_joints]
    indices = retargeting.optimizer.target_link_human_indices
    commands = np.tile(hand.rest, (len(targets.joints_hand), 1))
    last, usable = hand.rest, targets.usable
    # Vectors from the first to the second row of keypoints, or tips from the wrist.
    origin, task = indices if indices.ndim == 2 else (WRIST, indices)
    for frame, joints in enumerate(targets.joints_hand):
        vectors = joints[task] - joints[origin]
        if usable[frame] and np.isfinite(vectors).all():
            last = retargeting.retarget(vectors)[order]
        commands[frame] = last
    return commands


def build_dex(
    hand: HandSpec,
    mode: str,
    filtered: bool = True,
    scaling: float = DEX_SCALING,
    keypoints: Sequence[int] | None = None,
) -> Any:
    """Return the library's ``SeqRetargeting`` for a hand; see ``solve_dex``.

    Args:
        scaling: length of the robot's vectors over the human's; not in position mode.
        keypoints: OpenPose indices of the targets, from ``hand.target_keypoints``; default the
            fingertips, which is all that DexPilot takes.
    """
    try:
        from dex_retargeting.retargeting_config import RetargetingConfig
    except ImportError as error:
        raise MissingDependencyError(
            f"`method=dex-{mode}` needs dex-retargeting: {error}. In the checkout: "
            "pip install torch==2.13.0 && pip install '.[dex]'; or use the default solver."
        ) from error

    base = hand.full_name("base")
    tips = [finger_keypoints(finger)[-1] for finger in hand.fingers]
    keypoints = tips if keypoints is None else list(keypoints)
    links = [hand.full_name(hand.frame_of_keypoint[keypoint]) for keypoint in keypoints]
    vectors = {
        "target_origin_link_names": [base] * len(links),
        "target_task_link_names": links,
        "target_link_human_indices": np.array([[WRIST] * len(links), keypoints]),
        "scaling_factor": scaling,
    }
    tip_vectors = {
        "wrist_link_name": base,
        "finger_tip_link_names": [hand.full_name(name) for name in hand.tip_names],
        "scaling_factor": scaling,
    }
    positions = {
        "target_link_names": links,
        "target_link_human_indices": np.array(keypoints),
        "add_dummy_free_joint": True,
    }
    settings = dict(zip(DEX_MODES, (vectors, tip_vectors, positions), strict=True))[mode]

    # The library leaves its rewritten URDF behind; it goes with the folder.
    with tempfile.TemporaryDirectory(prefix="acehand-dex-") as folder:
        default, tempfile.tempdir = tempfile.tempdir, str(Path(folder))
        try:
            return RetargetingConfig(
                type=mode,
                urdf_path=str(hand.urdf_path),
                target_joint_names=[hand.full_name(name) for name in hand.command_joints],
                low_pass_alpha=LOW_PASS_ALPHA[mode] if filtered else 1.0,
                **settings,
            ).build()
        finally:
            tempfile.tempdir = default


@dataclass(frozen=True, slots=True)
class HandSolution:
    """Commands of one hand over T frames, its calibration, and the solver's time."""

    commands: Commands
    calibration: Calibration
    seconds: float


@runtime_checkable
class Retargeter(Protocol):
    """A retargeting method; all keep limits exactly."""

    name: str
    #: Whether it uses calibrations, which recordings of one subject can share.
    calibrates: bool

    def check(self, robot: str, hands: Sequence[HandSpec]) -> None:
        """Raise InputError for hands that cannot be driven this way; default: accept any."""
        return None

    def calibrate(
        self, motions: Iterable[HandMotion], robot: Robot, known: Mapping[Side, Calibration]
    ) -> dict[Side, Calibration]:
        """Return known calibrations, and fitted ones of the other hands in recordings of a subject.

        Default: none.
        """
        return {}

    def solve(
        self, hand: HandSpec, targets: HandTargets, fps: float, calibration: Calibration | None
    ) -> HandSolution:
        """Return the commands of one hand, ``1 / fps`` apart; ``calibration`` None: fit one.

        Raises:
            MissingDependencyError: a library that the method needs is not installed.
        """
        ...


class TrajectoryRetargeter(Retargeter):
    """Sequential quadratic programming over all frames, see ``trajectory.py``."""

    name = "trajectory"
    calibrates = True

    def __init__(self, second_pass: bool = True) -> None:
        """``second_pass`` lowers commands that were not followed (``simulate.second_pass``)."""
        self._second_pass = second_pass

    def calibrate(
        self, motions: Iterable[HandMotion], robot: Robot, known: Mapping[Side, Calibration]
    ) -> dict[Side, Calibration]:
        shown: dict[Side, list[HandTargets]] = {side: [] for side in SIDES}
        for motion in motions:
            for side in SIDES:
                targets = robot_targets(motion, robot, side)
                if targets is not None and side not in known:
                    shown[side].append(sampled(targets))
        fitted: dict[Side, Calibration] = {
            side: self._fitted(robot.hand(side), pooled(samples))
            for side, samples in shown.items()
            if samples
        }
        return {**known, **fitted}

    def solve(
        self, hand: HandSpec, targets: HandTargets, fps: float, calibration: Calibration | None
    ) -> HandSolution:
        tree, limits = KinematicTree.of(hand), CommandLimits.of(hand, fps)
        fitted = calibration or self._fitted(hand, targets)
        solve = functools.partial(solve_hand, hand, tree, targets, fitted, limits)
        started = time.perf_counter()
        commands = solve()
        seconds = time.perf_counter() - started
        if self._second_pass:
            commands = second_pass(
                hand, commands, fps, targets.active, lambda near: solve(near=near)
            )
        return HandSolution(commands, fitted, seconds)

    def _fitted(self, hand: HandSpec, targets: HandTargets) -> Calibration:
        tree = KinematicTree.of(hand)
        if hand.tracks == "opening":
            return opening_calibration(hand, tree, targets)
        return calibrate(hand, tree, targets, Weights())


class DexRetargeter(Retargeter):
    """dex-retargeting as shipped, see ``solve_dex``; it has no calibration.

    The one in its solution is the similarity in which its error is smallest.
    """

    calibrates = False

    def __init__(self, mode: str, second_pass: bool = False) -> None:
        """Use one of ``DEX_MODES``, without a second pass."""
        self.name, self._mode = f"dex-{mode}", mode

    def check(self, robot: str, hands: Sequence[HandSpec]) -> None:
        if any(hand.tracks == "opening" for hand in hands):
            raise InputError(
                f"`method={self.name}` follows fingers, but {robot} the opening between thumb and "
                "index: use the default solver."
            )

    def solve(
        self, hand: HandSpec, targets: HandTargets, fps: float, calibration: Calibration | None
    ) -> HandSolution:
        started = time.perf_counter()
        commands = solve_dex(hand, targets, self._mode)
        commands = CommandLimits.of(hand, fps).enforce(commands)
        seconds = time.perf_counter() - started

        robot = KinematicTree.of(hand).points(hand.expand(commands), hand.tip_names)
        human = targets.tips_of(hand.fingers)
        ground = metrics.CommonGround.fit(human, robot)
        residual = float(np.sqrt(np.nanmean(metrics.tip_error(human, robot, ground) ** 2)))
        best = Calibration(ground.scale, ground.rotation, ground.translation, residual)
        return HandSolution(commands, best, seconds)


dex_vector, dex_dexpilot, dex_position = (
    functools.partial(DexRetargeter, mode) for mode in DEX_MODES
)


def retargeter_named(method: str, second_pass: bool = True) -> Retargeter:
    """Return a method by its name. Raises InputError, or MissingDependencyError of its plug-in."""
    if method not in (known := plugins.names("methods")):
        raise InputError(f"Unknown solver {method!r}; {nearest(method, known)}")
    retargeter = plugins.load("methods", method)(second_pass)
    if not isinstance(retargeter, Retargeter):
        raise plugins.unfit("methods", method, "returns no Retargeter")
    return retargeter


def robot_targets(motion: HandMotion, robot: Robot, side: Side) -> HandTargets | None:
    """Return the targets of a robot hand, fingers or an opening; None without a human hand.

    Raises:
        InputError: the robot has no such hand, or its targets are never known.
    """
    targets = hand_targets(motion, side)
    if targets is None:
        return None
    if side not in robot.hands:
        (only,) = robot.hands
        raise InputError(
            f"Robot {robot.label!r} has no {side} hand, but the motion has one; look for the "
            f"{only} one only (`hands={only}`)."
        )

    hand = robot.hand(side)
    known = np.isfinite(targets.tips_of(hand.fingers)).all(-1)
    opening = hand.tracks == "opening"
    if not (known.all(1) if opening else known).any():
        names = (" and " if opening else " or ").join(hand.fingers)
        raise InputError(
            f"{robot.label} follows the tips of {names}, but the {side} hand's are never known"
            f"{' together' if opening else ''}."
        )
    return opening_targets(targets, motion.fps) if opening else targets


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
