"""Costs of vectors: two points of the robot hand should be apart as two of the human's are.

A cost of this kind names its points and the human vectors. All of an objective's are evaluated
together, since they share points.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import DISTALS, INTERMEDIATES, TIPS, finger_keypoints
from retarget.solve.costs import Cost, Problem, State
from retarget.targets import CALIBRATION_SIZE, finger_bases, named_parameters


@dataclass(frozen=True, slots=True)
class VectorTerm:
    """Robot frame ``first`` minus ``second`` (None: the base) should be one human vector.

    ``pull`` is the weight of a squared metre. ``finger`` (position in ``FINGERS``) is the one whose
    offset and length in the calibration apply, -1 for none.
    """

    first: str
    second: str | None
    pull: float
    finger: int = -1


class VectorCost(abc.ABC):
    """Vectors of the robot hand that should equal human ones, carried over by the calibration.

    Human vectors that are ``scaled`` grow with the calibration's scale, and ``translated`` ones
    move with its translation (1 or 0 each). All are rotated by its rotation.
    """

    scaled: float
    translated: float

    def __init__(self, problem: Problem) -> None:
        """Keep the problem; ``terms`` and ``human`` are of equal length."""
        self.problem = problem

    @abc.abstractmethod
    def terms(self) -> list[VectorTerm]:
        """Return the M vectors of the robot hand."""

    @abc.abstractmethod
    def human(
        self, rows: slice
    ) -> tuple[Float[np.ndarray, "T M 3"], float | Float[np.ndarray, "T M"]]:
        """Return the human vectors (palm frame, NaN where unknown) and their share of the pull."""


class KeypointCost(VectorCost):
    """Fingertips and other links are where the human's keypoints are."""

    scaled = translated = 1.0

    def terms(self) -> list[VectorTerm]:
        """Return one vector per link, from the base."""
        hand, weights = self.problem.hand, self.problem.weights
        per_metre = 1 / weights.length_m**2
        terms = []
        for keypoint, frame in zip(hand.target_keypoints, hand.target_frames, strict=True):
            known = keypoint in (*INTERMEDIATES, *DISTALS)
            pull = weights.tip if keypoint in TIPS else weights.link * known
            finger = (keypoint - 1) // 4 if keypoint > 0 else -1
            terms.append(VectorTerm(frame, None, pull * per_metre, finger))
        return terms

    def human(
        self, rows: slice
    ) -> tuple[Float[np.ndarray, "T M 3"], float | Float[np.ndarray, "T M"]]:
        """Return the keypoints, from the wrist."""
        targets, keypoints = self.problem.targets, self.problem.hand.target_keypoints
        return targets.joints_hand[rows][:, keypoints], targets.share_of(rows, keypoints)


class DirectionCost(VectorCost):
    """The last link of every finger points where the human's does."""

    scaled = translated = 0.0

    def _links(self) -> list[tuple[int, int]]:
        """Return the last two keypoints of each finger that the robot has."""
        hand = self.problem.hand
        fingers = ([k for k in finger_keypoints(finger) if k in hand.target_keypoints]
                   for finger in hand.fingers)  # fmt: skip
        return [(known[-2], known[-1]) for known in fingers if len(known) >= 2]

    @functools.cached_property
    def _lengths(self) -> list[float]:
        hand, lengths = self.problem.hand, []
        rest = hand.expand(hand.rest[None])
        for pair in self._links():
            start, end = (hand.target_frames[hand.target_keypoints.index(k)] for k in pair)
            ends = self.problem.tree.points(rest, [end, start])[0]
            lengths.append(float(np.linalg.norm(ends[0] - ends[1])))
        return lengths

    def terms(self) -> list[VectorTerm]:
        """Return the last links, which count as unit vectors."""
        hand, terms = self.problem.hand, []
        for pair, length in zip(self._links(), self._lengths, strict=True):
            start, end = (hand.target_frames[hand.target_keypoints.index(k)] for k in pair)
            pull = self.problem.weights.direction / max(length, 1e-3) ** 2
            terms.append(VectorTerm(end, start, pull))
        return terms

    def human(
        self, rows: slice
    ) -> tuple[Float[np.ndarray, "T M 3"], float | Float[np.ndarray, "T M"]]:
        """Return the human's last links, as long as the robot's."""
        joints = self.problem.targets.joints_hand[rows]
        vectors = np.empty((len(joints), len(self._lengths), 3))
        for term, ((start, end), length) in enumerate(
            zip(self._links(), self._lengths, strict=True)
        ):
            vectors[:, term] = joints[:, end] - joints[:, start]
            size = np.linalg.norm(vectors[:, term], axis=-1, keepdims=True)
            vectors[:, term] *= length / np.where(size > 0, size, np.nan)
        return vectors, self.problem.targets.share_of(rows, [end for _, end in self._links()])


class PinchCost(VectorCost):
    """Tips meet where the human pinches, see ``Pinches``."""

    scaled, translated = 1.0, 0.0

    def terms(self) -> list[VectorTerm]:
        """Return the vectors from the thumb's tip to the fingers'."""
        tips, weights = self.problem.hand.tip_names, self.problem.weights
        pull = weights.pinch * (1 / weights.length_m**2)
        return [VectorTerm(tips[k], tips[0], pull) for k in self.problem.pinches.fingers]

    def human(
        self, rows: slice
    ) -> tuple[Float[np.ndarray, "T M 3"], float | Float[np.ndarray, "T M"]]:
        """Return the wanted vectors, pulled to as far as the pinch is closed."""
        pinches, hand = self.problem.pinches, self.problem.hand
        tips = [finger_keypoints(finger)[-1] for finger in hand.fingers]
        fingers, thumb = (
            self.problem.targets.share_of(rows, joints)
            for joints in ([tips[k] for k in pinches.fingers], tips[:1])
        )
        # Variances add up; a share of 1 / (1 + v) is one of a variance v.
        both = 1 / (1 / fingers + 1 / thumb - 1)
        return pinches.vector[rows], pinches.closing[rows] * both


class VectorCosts(Cost):
    """All ``VectorCost`` of an objective at once: they share points, so also their kinematics."""

    def __init__(self, problem: Problem, rows: slice, costs: Sequence[VectorCost]) -> None:
        """Compute the goals of these frames; terms without any weight are left out."""
        self._tree, self._coupling = problem.tree, problem.hand.coupling
        terms = [(cost, column, term) for cost in costs
                 for column, term in enumerate(cost.terms()) if term.pull > 0]  # fmt: skip

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
        """Return the vector costs that the problem lists, see ``Cost``."""
        costs = [kind(problem) for kind in problem.costs if issubclass(kind, VectorCost)]
        return cls(problem, rows, costs) if costs else None

    def _set_goals(
        self, problem: Problem, rows: slice, vectors: Float[np.ndarray, "T M 3"]
    ) -> None:
        """Carry human vectors over to the robot's base frame, and say how each parameter does."""
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
        #: What one unit of a finger's log length adds to its terms.
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
