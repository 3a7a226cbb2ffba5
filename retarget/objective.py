"""What a good robot pose is: links and tips near their calibrated human counterparts.

Every term is a vector between two points of the hand, or from the base to one, that should equal
a wanted vector. Residuals come with their derivatives by the driven joints; coupled joints are
eliminated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.motion import Calibration
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree, Posture
from retarget.limits import Commands
from retarget.pinch import Pinches
from retarget.spacing import Gaps, spacing_of
from retarget.targets import HandTargets, finger_bases
from retarget.terms import Terms

#: Parameters of a calibration: rotation, translation, scale, five anchors, five lengths.
ANCHORS, LENGTHS = slice(7, 22), slice(22, 27)
CALIBRATION_SIZE = 27


@dataclass(frozen=True, slots=True)
class Weights:
    """Pull of each term on a frame. Positions count in units of ``length_m``, angles in radians.

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


@dataclass(frozen=True, slots=True, eq=False)
class Follow:
    """Commands to stay near, and the weight of a squared radian (see ``Weights.slide_m``)."""

    commands: Commands
    weight: Float[np.ndarray, "T C"]


@dataclass(frozen=True, slots=True, eq=False)
class Pose:
    """Commands of T frames and what the objective says about them.

    ``cost`` is per frame."""

    commands: Commands
    posture: Posture
    points: Float[np.ndarray, "T K 3"]
    residual: Float[np.ndarray, "T M 3"]
    cost: Float[np.ndarray, "T"]


@dataclass(frozen=True, slots=True, eq=False)
class Quadratic:
    """The objective around a pose: slope, convex curvature, and pairs that are near."""

    gradient: Float[np.ndarray, "T C"]
    hessian: Float[np.ndarray, "T C C"]
    gaps: Gaps


class PoseObjective:
    """Distances of a hand's frames from their targets, for all T frames at once."""

    def __init__(
        self,
        hand: HandSpec,
        tree: KinematicTree,
        targets: HandTargets,
        calibration: Calibration,
        weights: Weights,
        follow: Follow | None = None,
    ) -> None:
        """Prepare the terms; goals are computed for the frames that are asked for."""
        self.follow = follow
        self.hand, self.tree, self.targets = hand, tree, targets
        self.calibration, self.weights = calibration, weights
        self.units = np.array(
            [weights.slide_m if tree.slides(name) else 1.0 for name in hand.command_joints]
        )
        self.spacing = spacing_of(hand, tree)
        pinching = self.spacing.pinching if weights.pinch > 0 else np.zeros(0, int)
        self.pinches = Pinches.of(hand, targets, pinching)
        self._terms = Terms.of(
            hand, tree, pinching,
            (weights.tip, weights.link, weights.direction, weights.pinch), weights.length_m,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.targets.joints_hand)

    def window(self, rows: slice, contact: bool = True) -> Window:
        """Return the objective of some frames, goals computed; with or without contact."""
        return Window(self, self._terms, rows, contact)

    def __call__(
        self, commands: Commands, rows: slice = slice(None)
    ) -> tuple[Float[np.ndarray, "T M"], Float[np.ndarray, "T M C"]]:
        """Return residuals and their derivatives for a run of frames."""
        window = self.window(rows)
        pose = window.at(commands)
        return window.residuals(pose)

    def by_calibration(self) -> Float[np.ndarray, "T M 27"]:
        """Return the residuals' derivatives by the calibration's parameters, see ``Window``."""
        return self.window(slice(None)).by_calibration()


class Window:
    """A ``PoseObjective`` over a run of frames."""

    def __init__(
        self, objective: PoseObjective, terms: Terms, rows: slice, contact: bool = True
    ) -> None:
        """Compute the goals of these frames; without ``contact`` links may pass each other."""
        self._hand, self._tree = objective.hand, objective.tree
        self._weights, self._spacing = objective.weights, objective.spacing
        self._terms = terms
        vectors, self._scale = terms.wanted(objective.targets, objective.pinches, rows)
        # The idle hand and what else to stay near: one weighted mean per frame and joint.
        rest = objective.weights.rest / objective.units**2
        self._near = np.broadcast_to(self._hand.rest, (len(self._scale), len(self._hand.rest)))
        self._pull = np.broadcast_to(rest, self._near.shape)
        if objective.follow is not None:
            weight = objective.follow.weight[rows] / objective.units**2
            wanted = objective.follow.commands[rows]
            self._pull = rest + weight
            mean = (rest * self._near + weight * wanted) / np.maximum(self._pull, 1e-12)
            self._near = np.where(self._pull > 0, mean, self._near)
        calibration = objective.calibration
        of_finger = terms.finger
        anchored = of_finger >= 0
        reach = vectors[:, anchored] - _bases(objective.targets, rows)[:, of_finger[anchored]]
        reach = np.where(np.isfinite(reach), reach, 0.0)
        vectors[:, anchored] += (calibration.lengths[of_finger[anchored], None] - 1) * reach
        stretch = 1 + terms.scaled * (calibration.scale - 1)
        turn = calibration.rotation.T
        self._turned = vectors @ turn * stretch[:, None]
        self._goal = self._turned + calibration.translation * terms.placed[:, None]
        self._goal[:, anchored] += calibration.anchors[of_finger[anchored]]
        #: What one unit of a finger's log length adds to its terms.
        self._reach = np.zeros_like(vectors)
        by_length = calibration.lengths[of_finger[anchored], None] * calibration.scale
        self._reach[:, anchored] = reach @ turn * by_length
        self._clearance = objective.spacing.clearance(objective.pinches.apart[rows])
        guarded = contact and objective.weights.contact > 0
        self._guarded = guarded and np.isfinite(self._clearance).any()

    def __len__(self) -> int:
        return len(self._goal)

    def at(self, commands: Commands) -> Pose:
        """Evaluate commands."""
        terms, weights = self._terms, self._weights
        posture = self._tree.posture(self._hand.expand(commands))
        points = posture.points(terms.frames)
        reached = points[:, terms.first]
        pairs = terms.second >= 0
        reached[:, pairs] -= points[:, terms.second[pairs]]
        residual = (reached - self._goal) * self._scale[..., None]
        cost = 0.5 * np.sum(residual**2, axis=(1, 2))
        cost += 0.5 * np.sum(self._pull * (commands - self._near) ** 2, axis=1)
        if self._guarded:
            shortfall = self._spacing.shortfall(posture, self._clearance)
            deep = np.maximum(shortfall, 0) / weights.length_m
            cost += 0.5 * weights.contact * np.sum(deep**2, axis=1)
        return Pose(commands, posture, points, residual, cost)

    def residuals(self, pose: Pose) -> tuple[Float[np.ndarray, "T M"], Float[np.ndarray, "T M C"]]:
        """Return all residuals of a pose and their derivatives, rest last, contact apart."""
        count, size = pose.commands.shape
        jacobian = self._jacobian(pose).reshape(count, -1, size)
        idle = np.sqrt(self._pull)
        residual = pose.residual.reshape(count, -1)
        return (
            np.concatenate([residual, idle * (pose.commands - self._near)], axis=1),
            np.concatenate([jacobian, idle[..., None] * np.eye(size)], axis=1),
        )

    def quadratic(self, pose: Pose, curved: bool = True) -> Quadratic:
        """Return the objective's second-order model, with the curvature of the motion or without.

        Targets that no pose meets leave large residuals; without the curvature of the motion the
        solution is then approached by a constant share per round only.
        """
        jacobian = self._jacobian(pose).reshape(len(pose.commands), -1, pose.commands.shape[1])
        transposed = np.swapaxes(jacobian, 1, 2)
        hessian = transposed @ jacobian
        gradient = (transposed @ pose.residual.reshape(len(hessian), -1, 1))[..., 0]
        gradient += self._pull * (pose.commands - self._near)
        hessian += self._pull[..., None] * np.eye(hessian.shape[1])
        if curved:
            hessian += self._curvature(pose)
            hessian = _convex(hessian, self._weights.rest + 1e-6)
        none = np.full_like(self._clearance, -np.inf)
        gaps = self._spacing.gaps(pose.posture, self._clearance if self._guarded else none)
        return Quadratic(gradient, hessian, gaps)

    def by_calibration(self) -> Float[np.ndarray, "T M 27"]:
        """Return the residuals' derivatives by the calibration's parameters.

        Rotation vector, translation, log scale; per finger anchor; per finger log length.
        """
        terms = self._terms
        columns = np.zeros((*self._turned.shape, CALIBRATION_SIZE))
        columns[..., :3] = rotations.skew(self._turned)
        columns[..., 3:6] = -np.eye(3) * terms.placed[:, None, None]
        columns[..., 6] = -self._turned * terms.scaled[:, None]
        for term, finger in enumerate(terms.finger):
            if finger >= 0:
                columns[:, term, :, 7 + 3 * finger : 10 + 3 * finger] = -np.eye(3)
                columns[:, term, :, LENGTHS.start + finger] = -self._reach[:, term]
        columns = (columns * self._scale[..., None, None]).reshape(len(self), -1, CALIBRATION_SIZE)
        idle = np.zeros((len(self), len(self._hand.rest), CALIBRATION_SIZE))
        return np.concatenate([columns, idle], axis=1)

    def _jacobian(self, pose: Pose) -> Float[np.ndarray, "T M 3 C"]:
        terms = self._terms
        by_point = self._tree.jacobian(
            pose.posture, terms.frames.links, pose.points, self._hand.coupling
        )
        jacobian = by_point[:, terms.first]
        pairs = terms.second >= 0
        jacobian[:, pairs] -= by_point[:, terms.second[pairs]]
        return jacobian * self._scale[..., None, None]

    def _curvature(self, pose: Pose) -> Float[np.ndarray, "T C C"]:
        terms = self._terms
        force = pose.residual * self._scale[..., None]
        forces = np.zeros_like(pose.points)
        for term, (first, second) in enumerate(zip(terms.first, terms.second, strict=True)):
            forces[:, first] += force[:, term]
            if second >= 0:
                forces[:, second] -= force[:, term]
        return self._tree.curvature(
            pose.posture, terms.frames.links, pose.points, forces, self._hand.coupling
        )


def _bases(targets: HandTargets, rows: slice) -> Float[np.ndarray, "T 5 3"]:
    return finger_bases(targets.joints_hand[rows])


def _convex(hessian: Float[np.ndarray, "T C C"], least: float) -> Float[np.ndarray, "T C C"]:
    """Return the matrices with eigenvalues of at least ``least``."""
    off = np.abs(hessian).sum(-1)
    diagonal = np.einsum("tcc->tc", hessian)
    # Rows that dominate (Gershgorin) need no eigenvalues: most fingers are independent.
    doubtful = np.flatnonzero((diagonal - (off - np.abs(diagonal)) < least).any(1))
    if len(doubtful):
        values, vectors = np.linalg.eigh(hessian[doubtful])
        clipped = vectors * np.maximum(values, least)[:, None, :]
        hessian[doubtful] = clipped @ np.swapaxes(vectors, 1, 2)
    return hessian
