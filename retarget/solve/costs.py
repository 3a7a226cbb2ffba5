"""What a pose of a robot hand costs: the base class of every cost, and what it is given.

A cost of one's own is a subclass of ``Cost`` (any function of pose and commands) or of
``vector_costs.VectorCost`` (two points of the hand should be apart as two of the human's are), and
one entry in ``objective.COSTS``. Residuals are differentiated by the driven joints; coupled joints
are eliminated.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.motion import Calibration
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.kinematics import KinematicTree, Posture
from retarget.solve.pinch import Pinches, pinch_fingers
from retarget.targets import CommandTarget, HandTargets


@dataclass(frozen=True, slots=True)
class Weights:
    """Pull of each cost on a frame. Positions count in units of ``length_m``, angles in radians.

    A joint that slides counts ``slide_m``, about a finger's length, as a radian: a tip goes as far.

    ``direction`` compares unit vectors along the last links; ``pinch`` the vector between two
    tips, 0 switches pinches and the gap of open ones off. ``rest`` keeps joints that no target
    moves near the idle hand; more would bend thumbs of five joints, whose tip several poses
    nearly share. ``acceleration`` and ``jerk`` weigh squared rad/s^2 and rad/s^3, so
    that a motion is smoothed alike at any frame rate: the default passes a finger up to about
    3 Hz, where 40 rad/s^2 leave it 0.1 rad. ``contact`` punishes what would reach into each other.
    """

    tip: float = 1.0
    link: float = 0.1
    direction: float = 0.3
    pinch: float = 50.0
    rest: float = 2e-4
    acceleration: float = 5e-6
    jerk: float = 6e-7
    contact: float = 1e4
    length_m: float = 0.01
    slide_m: float = 0.08


@dataclass(frozen=True, eq=False)
class Problem:
    """One robot hand, what it is to track over T frames, and what counts how much."""

    hand: HandSpec
    tree: KinematicTree
    targets: HandTargets
    calibration: Calibration
    weights: Weights
    near: CommandTarget | None = None
    costs: tuple[type, ...] = ()

    def __len__(self) -> int:
        return len(self.targets.joints_hand)

    @functools.cached_property
    def units(self) -> Float[np.ndarray, "C"]:
        """What counts as a radian of each driven joint: rad, or m where it slides."""
        weights = self.weights
        return np.array(
            [weights.slide_m if self.tree.slides(n) else 1.0 for n in self.hand.command_joints]
        )

    @functools.cached_property
    def pinches(self) -> Pinches:
        """The human's pinches of those fingers that the robot hand can pinch with."""
        able = self.weights.pinch > 0
        fingers = pinch_fingers(self.hand, self.tree) if able else np.zeros(0, int)
        return Pinches.of(self.hand, self.targets, fingers)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Commands of T frames, and where they bring every link."""

    commands: Commands
    posture: Posture


@dataclass(frozen=True, slots=True, eq=False)
class PairGaps:
    """The active set of one-sided costs: N pairs that are near, each in one frame.

    ``room`` is what a pair has left (m, negative where it is too close), ``by_command`` how that
    changes; what is too close costs half of ``weight`` per squared metre.
    """

    frames: Int[np.ndarray, "N"]
    pairs: Int[np.ndarray, "N"]
    room: Float[np.ndarray, "N"]
    by_command: Float[np.ndarray, "N C"]
    weight: Float[np.ndarray, "N"]

    @classmethod
    def of_all(cls, parts: Sequence[PairGaps], size: int) -> PairGaps:
        """Return several active sets as one, for ``size`` driven joints."""
        none = np.zeros(0)
        empty = cls(none.astype(int), none.astype(int), none, np.zeros((0, size)), none)
        names = ("frames", "pairs", "room", "by_command", "weight")
        return cls(*(np.concatenate([getattr(p, n) for p in (empty, *parts)]) for n in names))

    def within_reach(
        self, low: Float[np.ndarray, "T C"], high: Float[np.ndarray, "T C"]
    ) -> PairGaps:
        """Return the pairs that a step between ``low`` and ``high`` can bring too close."""
        ends = (self.by_command * step[self.frames] for step in (low, high))
        tight = self.room + np.minimum(*ends).sum(axis=1) < 0
        return PairGaps(*(a[tight] for a in (self.frames, self.pairs, self.room, self.by_command,
                                         self.weight)))  # fmt: skip


class Cost(abc.ABC):
    """One cost over a run of T frames: half the sum of squares of its M residuals in each.

    A subclass says what its residuals are and how they change with the C driven joints. One whose
    residuals bend with the pose adds ``curvature``, one that depends on the calibration
    ``by_calibration``. A one-sided cost has no residuals; it gives ``value`` and ``gaps``.
    """

    @classmethod
    @abc.abstractmethod
    def over(cls, problem: Problem, rows: slice) -> Cost | None:
        """Return the cost over some frames of a problem, None where it costs nothing."""

    def residual(self, state: State) -> Float[np.ndarray, "T M"]:
        """Return the weighted residuals."""
        return np.zeros((len(state.commands), 0))

    def jacobian(self, state: State) -> Float[np.ndarray, "T M C"]:
        """Return the residuals' derivatives by the driven joints."""
        return np.zeros((len(state.commands), 0, state.commands.shape[1]))

    def value(self, state: State, residual: Float[np.ndarray, "T M"]) -> Float[np.ndarray, "T"]:
        """Return what each frame costs."""
        return 0.5 * np.sum(residual**2, axis=1)

    def normal(
        self, state: State, residual: Float[np.ndarray, "T M"]
    ) -> tuple[Float[np.ndarray, "T C"], Float[np.ndarray, "T C C"]]:
        """Return gradient and curvature of the cost, the latter as Gauss and Newton take it."""
        jacobian = self.jacobian(state)
        transposed = np.swapaxes(jacobian, 1, 2)
        return (transposed @ residual[..., None])[..., 0], transposed @ jacobian

    def curvature(
        self, state: State, residual: Float[np.ndarray, "T M"]
    ) -> Float[np.ndarray, "T C C"] | None:
        """Return what ``normal`` leaves out, the residuals' own curvature; None for none."""
        return None

    def by_calibration(self) -> Float[np.ndarray, "T M P"] | None:
        """Return the residuals' derivatives by ``targets.named_parameters``; None for none."""
        return None

    def gaps(self, state: State) -> PairGaps | None:
        """Return the active set of a one-sided cost, linearised."""
        return None


class PostureCost(Cost):
    """Joints that nothing moves stay at the idle hand, or near the commands of ``Problem.near``.

    Both are one weighted mean per frame and joint.
    """

    def __init__(self, near: Commands, pull: Float[np.ndarray, "T C"]) -> None:
        """Pull each joint to ``near``."""
        self._near, self._pull = near, pull

    @classmethod
    def over(cls, problem: Problem, rows: slice) -> PostureCost:
        """Return the cost; see ``Cost``."""
        rest = problem.weights.rest / problem.units**2
        idle = problem.hand.rest
        near = np.broadcast_to(idle, (len(problem.targets.weight[rows]), len(idle)))
        if problem.near is None:
            return cls(near, np.broadcast_to(rest, near.shape))

        weight = problem.near.weight[rows] / problem.units**2
        pull = rest + weight
        mean = (rest * near + weight * problem.near.commands[rows]) / np.maximum(pull, 1e-12)
        return cls(np.where(pull > 0, mean, near), pull)

    def residual(self, state: State) -> Float[np.ndarray, "T C"]:
        """Return the distance of every joint from where it should stay."""
        return np.sqrt(self._pull) * (state.commands - self._near)

    def jacobian(self, state: State) -> Float[np.ndarray, "T C C"]:
        """Return diagonal matrices."""
        return np.sqrt(self._pull)[..., None] * np.eye(self._pull.shape[1])

    def value(self, state: State, residual: Float[np.ndarray, "T C"]) -> Float[np.ndarray, "T"]:
        """Return what each frame costs."""
        return 0.5 * np.sum(self._pull * (state.commands - self._near) ** 2, axis=1)

    def normal(
        self, state: State, residual: Float[np.ndarray, "T C"]
    ) -> tuple[Float[np.ndarray, "T C"], Float[np.ndarray, "T C C"]]:
        """Return the same as ``Cost.normal``, without products of diagonal matrices."""
        gradient = self._pull * (state.commands - self._near)
        return gradient, self._pull[..., None] * np.eye(self._pull.shape[1])
