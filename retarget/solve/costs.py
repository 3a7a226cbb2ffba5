"""Costs of a pose of a robot hand.

A cost of your own subclasses ``Cost`` (any function of pose and commands) or ``VectorCost`` (two
points of the hand follow two of the human's) and is listed in ``objective.COSTS``. Residuals are
differentiated by the driven joints; coupled joints are eliminated.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import DISTALS, INTERMEDIATES, TIPS, finger_keypoints
from acehand_core.motion import Calibration
from retarget.robots.collision_shapes import Posture
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve.pinch import Pinches, pinch_fingers
from retarget.targets import (
    CALIBRATION_SIZE,
    CommandTarget,
    HandTargets,
    finger_bases,
    named_parameters,
)

#: Human vectors (palm frame, NaN where unknown) and their share of the pull.
HumanVectors = tuple[Float[np.ndarray, "T M 3"], float | Float[np.ndarray, "T M"]]


@dataclass(frozen=True, slots=True)
class Weights:
    """Pull of each cost on a frame: positions per ``length_m``, angles per radian.

    A slide of ``slide_m``, about a finger's length, counts as a radian: a tip goes as far.

    ``direction`` compares unit vectors along the last links; ``pinch`` the vector between two
    tips, and 0 disables pinches and the gap of open ones. ``rest`` keeps idle joints near the idle
    hand; more would bend thumbs of five joints, whose redundant poses nearly share a tip.
    ``acceleration`` and ``jerk`` weigh squared rad/s^2 and rad/s^3, so smoothing does not depend on
    the frame rate: the defaults pass a finger up to about 3 Hz, where 40 rad/s^2 leave it 0.1 rad.
    ``contact`` weighs self-penetration.
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
    """One robot hand, its targets over T frames, and the weights of its costs."""

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
        """What counts as a radian of each driven joint: rad, or m for a slide."""
        joints, slide = self.hand.command_joints, self.weights.slide_m
        return np.array([slide if self.tree.slides(name) else 1.0 for name in joints])

    @functools.cached_property
    def pinches(self) -> Pinches:
        """The human's pinches, of fingers with which the robot hand can pinch."""
        able = self.weights.pinch > 0
        fingers = pinch_fingers(self.hand, self.tree) if able else np.zeros(0, int)
        return Pinches.of(self.hand, self.targets, fingers)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Commands of T frames and the resulting poses of all links."""

    commands: Commands
    posture: Posture


@dataclass(frozen=True, slots=True, eq=False)
class PairGaps:
    """The active set of one-sided costs: N near pairs, each in one frame.

    ``room`` is the remaining distance (m, negative where too close), ``by_command`` its derivative;
    what is too close costs ``weight`` / 2 per squared metre.
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
        columns = [[getattr(p, field.name) for p in (empty, *parts)] for field in fields(cls)]
        return cls(*map(np.concatenate, columns))

    def within_reach(
        self, low: Float[np.ndarray, "T C"], high: Float[np.ndarray, "T C"]
    ) -> PairGaps:
        """Return the pairs that a step between ``low`` and ``high`` can bring too close."""
        ends = (self.by_command * step[self.frames] for step in (low, high))
        tight = self.room + np.minimum(*ends).sum(axis=1) < 0
        return PairGaps(*(getattr(self, field.name)[tight] for field in fields(self)))


class Cost(abc.ABC):
    """One cost over T frames: half the sum of squares of its M residuals in each.

    A subclass defines its residuals and their derivatives by the C driven joints, and also
    ``curvature`` if they bend with the pose, ``by_calibration`` if they depend on the calibration.
    A one-sided cost has ``value`` and ``gaps`` in place of residuals.
    """

    @classmethod
    @abc.abstractmethod
    def over(cls, problem: Problem, rows: slice) -> Cost | None:
        """Return the cost over some frames of a problem, or None if it is always 0."""

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
        """Return gradient and Gauss-Newton curvature of the cost."""
        jacobian = self.jacobian(state)
        transposed = np.swapaxes(jacobian, 1, 2)
        return (transposed @ residual[..., None])[..., 0], transposed @ jacobian

    def curvature(
        self, state: State, residual: Float[np.ndarray, "T M"]
    ) -> Float[np.ndarray, "T C C"] | None:
        """Return the residuals' own curvature, which ``normal`` leaves out; None for none."""
        return None

    def by_calibration(self) -> Float[np.ndarray, "T M P"] | None:
        """Return the residuals' derivatives by ``targets.named_parameters``; None for none."""
        return None

    def gaps(self, state: State) -> PairGaps | None:
        """Return the active set of a one-sided cost, linearised."""
        return None


class PostureCost(Cost):
    """Idle joints stay at the idle hand, or near the commands of ``Problem.near``.

    Both are one weighted mean per frame and joint.
    """

    def __init__(self, near: Commands, pull: Float[np.ndarray, "T C"]) -> None:
        self._near, self._pull = near, pull

    @classmethod
    def over(cls, problem: Problem, rows: slice) -> PostureCost:
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
        return np.sqrt(self._pull) * (state.commands - self._near)

    def jacobian(self, state: State) -> Float[np.ndarray, "T C C"]:
        return np.sqrt(self._pull)[..., None] * np.eye(self._pull.shape[1])

    def value(self, state: State, residual: Float[np.ndarray, "T C"]) -> Float[np.ndarray, "T"]:
        return 0.5 * np.sum(self._pull * (state.commands - self._near) ** 2, axis=1)

    def normal(
        self, state: State, residual: Float[np.ndarray, "T C"]
    ) -> tuple[Float[np.ndarray, "T C"], Float[np.ndarray, "T C C"]]:
        # Without products of diagonal matrices.
        gradient = self._pull * (state.commands - self._near)
        return gradient, self._pull[..., None] * np.eye(self._pull.shape[1])


# Costs of vectors: two points of the robot hand follow two of the human's.


@dataclass(frozen=True, slots=True)
class VectorTerm:
    """Robot frame ``first`` minus ``second`` (None: the base) that follows one human vector.

    ``pull`` weighs a squared metre. ``finger`` (position in ``FINGERS``, -1 for none) selects
    offset and length of the calibration.
    """

    first: str
    second: str | None
    pull: float
    finger: int = -1


class VectorCost(abc.ABC):
    """Vectors of the robot hand that follow human ones, carried over by the calibration.

    Its rotation turns all human vectors, its scale applies to ``scaled`` and its translation to
    ``translated`` ones (1 or 0 each). ``terms`` and ``human`` are of equal length.
    """

    scaled: float
    translated: float

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abc.abstractmethod
    def terms(self) -> list[VectorTerm]:
        """Return the M vectors of the robot hand."""

    @abc.abstractmethod
    def human(self, rows: slice) -> HumanVectors:
        """Return the M vectors of the human hand."""


class KeypointCost(VectorCost):
    """Fingertips and other links follow the human's keypoints, from the wrist."""

    scaled = translated = 1.0

    def terms(self) -> list[VectorTerm]:
        hand, weights = self.problem.hand, self.problem.weights
        per_metre = 1 / weights.length_m**2
        terms = []
        for keypoint, frame in hand.frame_of_keypoint.items():
            known = keypoint in (*INTERMEDIATES, *DISTALS)
            pull = weights.tip if keypoint in TIPS else weights.link * known
            finger = (keypoint - 1) // 4 if keypoint > 0 else -1
            terms.append(VectorTerm(frame, None, pull * per_metre, finger))
        return terms

    def human(self, rows: slice) -> HumanVectors:
        targets, keypoints = self.problem.targets, self.problem.hand.target_keypoints
        return targets.joints_hand[rows][:, keypoints], targets.share_of(rows, keypoints)


class DirectionCost(VectorCost):
    """The last link of every finger points as the human's does, both as unit vectors."""

    scaled = translated = 0.0

    @functools.cached_property
    def _links(self) -> list[tuple[int, int, float, VectorTerm]]:
        """Each finger's last two keypoints, the length between the robot's, and its term."""
        hand, links = self.problem.hand, []
        frame_of = hand.frame_of_keypoint
        rest = hand.expand(hand.rest[None])
        for finger in hand.fingers:
            known = [k for k in finger_keypoints(finger) if k in frame_of]
            if len(known) >= 2:
                start, end = known[-2:]
                ends = self.problem.tree.points(rest, [frame_of[end], frame_of[start]])[0]
                length = float(np.linalg.norm(ends[0] - ends[1]))
                pull = self.problem.weights.direction / max(length, 1e-3) ** 2
                term = VectorTerm(frame_of[end], frame_of[start], pull)
                links.append((start, end, length, term))
        return links

    def terms(self) -> list[VectorTerm]:
        return [term for *_, term in self._links]

    def human(self, rows: slice) -> HumanVectors:
        joints = self.problem.targets.joints_hand[rows]
        vectors = np.empty((len(joints), len(self._links), 3))
        for row, (start, end, length, _) in enumerate(self._links):
            vectors[:, row] = joints[:, end] - joints[:, start]
            size = np.linalg.norm(vectors[:, row], axis=-1, keepdims=True)
            vectors[:, row] *= length / np.where(size > 0, size, np.nan)
        return vectors, self.problem.targets.share_of(rows, [end for _, end, *_ in self._links])


class PinchCost(VectorCost):
    """Tips meet where the human pinches, see ``Pinches``."""

    scaled, translated = 1.0, 0.0

    def terms(self) -> list[VectorTerm]:
        tips, weights = self.problem.hand.tip_names, self.problem.weights
        pull = weights.pinch * (1 / weights.length_m**2)
        return [VectorTerm(tips[k], tips[0], pull) for k in self.problem.pinches.fingers]

    def human(self, rows: slice) -> HumanVectors:
        pinches, share_of = self.problem.pinches, self.problem.targets.share_of
        tips = [finger_keypoints(finger)[-1] for finger in self.problem.hand.fingers]
        fingers = share_of(rows, [tips[k] for k in pinches.fingers])
        # Variances add up; a share of 1 / (1 + v) is one of a variance v.
        both = 1 / (1 / fingers + 1 / share_of(rows, tips[:1]) - 1)
        return pinches.vector[rows], pinches.closing[rows] * both


class VectorCosts(Cost):
    """All ``VectorCost`` of an objective together: they share points, hence kinematics."""

    def __init__(self, problem: Problem, rows: slice, costs: Sequence[VectorCost]) -> None:
        """Compute the goals of these frames, without terms of no weight."""
        self._tree, self._coupling = problem.tree, problem.hand.coupling
        listed = [(cost, *entry) for cost in costs for entry in enumerate(cost.terms())]
        terms = [entry for entry in listed if entry[2].pull > 0]
        # Every point is computed once, however many terms it belongs to.
        names = [n for *_, term in terms for n in (term.first, term.second) if n is not None]
        place: dict[str | None, int] = {name: i for i, name in enumerate(dict.fromkeys(names))}
        self._frames = self._tree.frames(list(dict.fromkeys(names)))
        place[None] = -1
        self._first = np.array([place[term.first] for *_, term in terms], int)
        self._second = np.array([place[term.second] for *_, term in terms], int)
        self._pairs = self._second >= 0
        self._finger = np.array([term.finger for *_, term in terms], int)
        self._scaled = np.array([cost.scaled for cost, *_ in terms], float)
        self._translated = np.array([cost.translated for cost, *_ in terms], float)
        pull = np.array([term.pull for *_, term in terms], float)

        weight = problem.targets.weight[rows]
        vectors = np.empty((len(weight), len(terms), 3))
        share = np.ones(vectors.shape[:2])
        human = {cost: cost.human(rows) for cost in costs}
        for row, (cost, column, _) in enumerate(terms):
            values, shares = human[cost]
            vectors[:, row] = values[:, column]
            share[:, row] = shares if isinstance(shares, float) else shares[:, column]
        known = np.all(np.isfinite(vectors), axis=-1)
        self._scale = np.sqrt(pull * weight[:, None] * share * known)
        self._set_goals(problem, rows, np.where(known[..., None], vectors, 0.0))

    @classmethod
    def over(cls, problem: Problem, rows: slice) -> VectorCosts | None:
        costs = [kind(problem) for kind in problem.costs if issubclass(kind, VectorCost)]
        return cls(problem, rows, costs) if costs else None

    def _set_goals(
        self, problem: Problem, rows: slice, vectors: Float[np.ndarray, "T M 3"]
    ) -> None:
        """Carry human vectors over to the robot's base frame, with their derivatives."""
        calibration, finger = problem.calibration, self._finger
        of_finger = finger >= 0
        bases = finger_bases(problem.targets.joints_hand[rows])
        reach = vectors[:, of_finger] - bases[:, finger[of_finger]]
        reach = np.where(np.isfinite(reach), reach, 0.0)
        vectors[:, of_finger] += (calibration.lengths[finger[of_finger], None] - 1) * reach

        stretch = 1 + self._scaled * (calibration.scale - 1)
        turn = calibration.rotation.T
        self._rotated = vectors @ turn * stretch[:, None]
        self._goal = self._rotated + calibration.translation * self._translated[:, None]
        self._goal[:, of_finger] += calibration.finger_offsets[finger[of_finger]]
        #: Derivative of each finger's terms by its log length.
        self._reach = np.zeros_like(vectors)
        by_length = calibration.lengths[finger[of_finger], None] * calibration.scale
        self._reach[:, of_finger] = reach @ turn * by_length

    def residual(self, state: State) -> Float[np.ndarray, "T M"]:
        """Return how far each vector is from its goal, three numbers per term."""
        points = state.posture.points(self._frames)
        reached = points[:, self._first]
        reached[:, self._pairs] -= points[:, self._second[self._pairs]]
        return ((reached - self._goal) * self._scale[..., None]).reshape(len(points), -1)

    def jacobian(self, state: State) -> Float[np.ndarray, "T M C"]:
        """Return the vectors' derivatives."""
        points = state.posture.points(self._frames)
        by_point = self._tree.jacobian(state.posture, self._frames.links, points, self._coupling)
        jacobian = by_point[:, self._first]
        jacobian[:, self._pairs] -= by_point[:, self._second[self._pairs]]
        jacobian = jacobian * self._scale[..., None, None]
        return jacobian.reshape(len(points), -1, state.commands.shape[1])

    def curvature(
        self, state: State, residual: Float[np.ndarray, "T M"]
    ) -> Float[np.ndarray, "T C C"]:
        """Return the curvature of the points' paths: hinges move them on circles."""
        points = state.posture.points(self._frames)
        force = residual.reshape(self._goal.shape) * self._scale[..., None]
        forces = np.zeros_like(points)
        for term, (first, second) in enumerate(zip(self._first, self._second, strict=True)):
            forces[:, first] += force[:, term]
            if second >= 0:
                forces[:, second] -= force[:, term]
        return self._tree.curvature(
            state.posture, self._frames.links, points, forces, self._coupling
        )

    def by_calibration(self) -> Float[np.ndarray, "T M P"]:
        """Return the residuals' derivatives by ``targets.named_parameters``."""
        columns = np.zeros((*self._rotated.shape, CALIBRATION_SIZE))
        by = named_parameters(columns)
        by["rotation"][...] = rotations.skew(self._rotated)
        by["translation"][...] = -np.eye(3) * self._translated[:, None, None]
        by["log_scale"][..., 0] = -self._rotated * self._scaled[:, None]
        for term, finger in enumerate(self._finger):
            if finger >= 0:
                by["finger_offsets"][:, term, :, 3 * finger : 3 * finger + 3] = -np.eye(3)
                by["log_lengths"][:, term, :, finger] = -self._reach[:, term]
        weighted = columns * self._scale[..., None, None]
        return weighted.reshape(len(columns), -1, CALIBRATION_SIZE)
