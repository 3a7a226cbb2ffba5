"""From landmarks to a hand: rotations within anatomical limits, placement, one shape.

Pixels fix the joints. MediaPipe's "world" landmarks give bone directions alone, since their bone
lengths drift by 5 to 16 % over a clip. Orientation, placement and angles are solved at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.evidence import (
    CHILDREN,
    KEYPOINT_WEIGHTS,
    PARENTS,
    SKIN_POINTS,
    Evidence,
    Pose,
    thickness,
)
from acehand_core.hand.pose_fit import solve
from acehand_core.hand.skeleton import PALM
from acehand_core.types import Side

#: Noise of a bone's direction (unit vectors). MediaPipe flattens hands that reach away from the
#: camera by 20 to 30 degrees, so with pixels a direction only decides what they leave open.
DIRECTION_SIGMA = {"alone": 0.5, "with pixels": 1.0}
#: Prior on the angles around a relaxed hand, radians.
ANGLE_SIGMA = 1.0
#: Landmark errors are correlated over a clip, so all frames together count as one against the
#: population's prior on betas.
SHAPE_FRAMES = 80
SHAPE_EVIDENCE_FRAMES = 1.0
_BETA_STEP = 1e-4  # for differences; keypoints are linear in betas
#: Error of the modelled skin, metres, and the error in standard deviations at which a reading, of
#: something before or behind the hand, has lost most of its influence.
SKIN_SIGMA_M, SKIN_REACH = 0.005, 3.0
#: Error of a measured hand length besides noise: the network's hands are 2 to 6 % short on renders.
LENGTH_SIGMA = 0.04


def articulate(evidence: Evidence, side: Side, rest: Float[np.ndarray, "21 3"]) -> Pose:
    """Fit orientation and angles to bone directions alone, with the wrist at the origin."""
    # The rotation (N, 3, 3) from the rest palm's bones to the observed ones.
    palm = np.flatnonzero(np.isin(CHILDREN, PALM))
    seen = rest + evidence.landmarks(side, rest)
    bones = seen[CHILDREN[palm]] - seen[PARENTS[palm]]
    bones = bones / np.linalg.norm(bones, axis=-1, keepdims=True)
    orient = rotations.project_to_rotation(
        np.einsum("nki,kj->nij", evidence.direction[:, palm], bones)
    )

    problem = FrameProblem(evidence, side, rest, orient, use_pixels=False)
    start = np.zeros((len(orient), 28))
    start[:, 6:] = articulation.comfortable()
    pose = problem.pose(solve(problem, start, *problem.limits(), iterations=8)[0])
    return Pose(pose.global_orient, pose.angles, np.zeros_like(pose.wrist))


def refine(
    pose: Pose,
    evidence: Evidence,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    iterations: int = 8,
    try_relaxed: bool = False,
    others: Sequence[Pose] = (),
) -> Pose:
    """Fit orientation, placement and angles to pixels and bone directions together.

    ``try_relaxed`` also starts each frame from a relaxed hand and keeps the better solution: pixels
    alone cannot unbend a finger that a wrong direction has bent. ``others`` are further starts.
    """
    best, cost = pose, np.full(len(pose.angles), np.inf)
    for first in (pose, *others):
        problem = FrameProblem(evidence, side, rest, first.global_orient, use_pixels=True)
        start = problem.start(first)
        starts = [start]
        if try_relaxed and first is pose:
            relaxed = start.copy()
            relaxed[:, 6:] = articulation.comfortable()
            starts.append(relaxed)
        for x in starts:
            solution, new_cost = solve(problem, x, *problem.limits(), iterations)
            better = new_cost < cost
            best = problem.pose(solution).where(better, best)
            cost = np.where(better, new_cost, cost)
    return best


def reversed_palm(pose: Pose) -> Pose:
    """Return the hand with its palm tilted the other way: much the same picture, another depth."""
    ray = pose.wrist / np.linalg.norm(pose.wrist, axis=1, keepdims=True)
    mirror = np.eye(3) - 2 * ray[:, :, None] * ray[:, None, :]
    # Mirrored along the ray and, to stay a rotation, along the palm's normal.
    return Pose(mirror @ pose.global_orient * [1.0, -1.0, 1.0], pose.angles, pose.wrist)


def fit_shape(
    hands: Sequence[tuple[Pose, Evidence, Side]], hand_length_m: float | None, rounds: int = 4
) -> Float[np.ndarray, "10"]:
    """Fit one shape to the pixels of one hand, or both, in frames spread over the recording.

    Alternates poses and betas. Scale is unobservable from one camera: without ``hand_length_m`` the
    size is that of the mean adult hand.
    """
    model = CapsuleHand()
    chosen = _spread_frames(hands)
    betas = np.zeros(10)
    for _ in range(rounds):
        chosen = [(pose, seen.with_skin_of(pose, side, betas), side) for pose, seen, side in chosen]
        betas = _shape_step(chosen, betas, hand_length_m)
        chosen = [
            (refine(pose, seen, side, model.rest_keypoints(side, betas), iterations=4), seen, side)
            for pose, seen, side in chosen
        ]
    return betas


def spread_rows(count: int, most: int = SHAPE_FRAMES) -> Int[np.ndarray, "M"]:
    """Return up to ``most`` of ``count`` rows, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _spread_frames(
    hands: Sequence[tuple[Pose, Evidence, Side]],
) -> list[tuple[Pose, Evidence, Side]]:
    """Return up to ``SHAPE_FRAMES`` of each hand's frames."""
    chosen = []
    for pose, evidence, side in hands:
        rows = spread_rows(len(pose.angles))
        chosen.append((pose.rows(rows), evidence.rows(rows), side))
    return chosen


def agreeing_readings(
    pose: Pose, evidence: Evidence, side: Side, rest: Float[np.ndarray, "21 3"]
) -> Int[np.ndarray, "N"]:
    """Return how many depth readings of each frame are of the hand's skin."""
    if (skin := evidence.skin) is None:
        return np.zeros(len(pose.angles), int)
    offset = evidence.landmarks(side, rest) @ np.swapaxes(pose.global_orient, 1, 2)
    points = SKIN_POINTS @ (pose.keypoints(side, rest) + offset)
    below = thickness(pose.global_orient, side, rest) if skin.below is None else skin.below
    near = np.abs(points[..., 2] - below - skin.z) < SKIN_REACH * np.hypot(skin.sigma, SKIN_SIGMA_M)
    return np.asarray((near & np.isfinite(skin.sigma)).sum(1))


def length_sigma(
    hands: Sequence[tuple[Pose, Evidence, Side]], betas: Float[np.ndarray, "10"]
) -> float:
    """Return the standard deviation of the length of a fitted hand, metres."""
    normal, _ = _all_shape_equations(_spread_frames(hands), betas)
    model = CapsuleHand()
    length = model.hand_length(betas)
    slope = np.array([model.hand_length(betas + b) - length for b in np.eye(10)])
    own = np.sqrt(slope @ np.linalg.solve(normal + np.eye(10), slope))
    return float(np.hypot(own, LENGTH_SIGMA * length))


def _shape_step(
    hands: Sequence[tuple[Pose, Evidence, Side]], betas: np.ndarray, hand_length_m: float | None
) -> np.ndarray:
    """One Gauss-Newton step on betas, poses eliminated."""
    model = CapsuleHand()
    normal, gradient = _all_shape_equations(hands, betas)
    prior = np.ones(10)
    if hand_length_m is not None:
        prior[0] = 0.0  # unusual proportions would otherwise share in the known size
    normal, gradient = normal + np.diag(prior), gradient + prior * betas
    if hand_length_m is not None:
        length = model.hand_length(betas)
        slope = np.array([model.hand_length(betas + b) - length for b in np.eye(10)]) / 5e-4
        normal += np.outer(slope, slope)
        gradient += slope * (length - hand_length_m) / 5e-4
    step = np.linalg.solve(normal, -gradient)
    limit = np.where(prior, 3.0, np.inf)
    return np.clip(betas + step, -limit, limit)


def _all_shape_equations(
    hands: Sequence[tuple[Pose, Evidence, Side]], betas: np.ndarray
) -> tuple[Float[np.ndarray, "10 10"], Float[np.ndarray, "10"]]:
    """Return the normal equations of betas by all hands, weighted as ``SHAPE_EVIDENCE_FRAMES``."""
    normal, gradient, frames = np.zeros((10, 10)), np.zeros(10), 0.0
    for pose, evidence, side in hands:
        by_hand = _shape_equations(pose, evidence, side, betas)
        normal, gradient, frames = normal + by_hand[0], gradient + by_hand[1], frames + by_hand[2]
    share = min(1.0, SHAPE_EVIDENCE_FRAMES / frames)
    return normal * share, gradient * share


def _shape_equations(
    pose: Pose, evidence: Evidence, side: Side, betas: np.ndarray
) -> tuple[Float[np.ndarray, "10 10"], Float[np.ndarray, "10"], float]:
    """Return the normal equations of betas by one hand, and the sum of its frames' weights.

    Poses are eliminated: held fixed they would freeze the size and slow convergence.
    """
    model = CapsuleHand()
    rows, start = np.arange(len(pose.angles)), FrameProblem.start(pose)

    def problem(shape: np.ndarray) -> FrameProblem:
        at = model.rest_keypoints(side, shape)
        return FrameProblem(evidence, side, at, pose.global_orient, use_pixels=True)

    residual, by_pose = problem(betas)(start, rows)
    # Frames that fit far worse than most are misdetections and lose their weight.
    cost = np.sum(residual**2, axis=1)
    usual = max(float(np.median(cost)), 2.0 * len(KEYPOINT_WEIGHTS))
    weight = 1 / (1 + cost / (2 * usual)) ** 2
    stepped = (problem(betas + b).residuals(start, rows) for b in _BETA_STEP * np.eye(10))
    by_shape = np.stack([(other - residual) / _BETA_STEP for other in stepped], -1)
    # Project onto the complement of each frame's pose.
    q, _ = np.linalg.qr(by_pose)
    by_shape = by_shape - q @ (np.swapaxes(q, 1, 2) @ by_shape)
    residual = residual - (q @ (np.swapaxes(q, 1, 2) @ residual[..., None]))[..., 0]
    normal = np.einsum("n,nrb,nrc->bc", weight, by_shape, by_shape, optimize=True)
    gradient = np.einsum("n,nrb,nr->b", weight, by_shape, residual, optimize=True)
    return normal, gradient, float(weight.sum())


class FrameProblem:
    """Residuals and Jacobian of N independent frames in 28 unknowns each.

    Unknowns: rotation vector on top of the start (3), bearing and log depth of the wrist (3),
    angles (22). Log depth keeps the hand before the camera and makes steps relative.
    """

    UNKNOWNS = 28

    def __init__(
        self, evidence: Evidence, side: Side, rest: np.ndarray, orient: np.ndarray, use_pixels: bool
    ) -> None:
        self._evidence, self._side, self._rest = evidence, side, rest
        self._orient, self._use_pixels = orient, use_pixels
        self._offset = evidence.landmarks(side, rest)
        seen = rest + self._offset
        bones = seen[CHILDREN] - seen[PARENTS]
        self._bone_length = np.linalg.norm(bones, axis=-1)[None, :, None]
        self._direction_sigma = DIRECTION_SIGMA["with pixels" if use_pixels else "alone"]
        self._whitening = evidence.whitening()
        self._others = [(one, one.evidence.whitening()) for one in evidence.others]
        if evidence.skin is not None:
            below = evidence.skin.below
            self._below = thickness(orient, side, rest) if below is None else below
            self._skin_sigma = np.hypot(evidence.skin.sigma, SKIN_SIGMA_M)
            weight = evidence.skin.weight
            gain = np.ones(len(orient)) if weight is None else np.sqrt(weight)
            self._skin_gain = gain[:, None]

    def pose(self, x: np.ndarray) -> Pose:
        """Return the poses of all N frames."""
        return Pose(self.orient(x), x[:, 6:], np.exp(x[:, 5:6]) * _ray(x))

    def orient(self, x: np.ndarray) -> np.ndarray:
        """Return the orientations (N, 3, 3)."""
        return rotations.exp(x[:, :3]) @ self._orient

    @staticmethod
    def start(pose: Pose) -> np.ndarray:
        """Return the unknowns of a pose at the problem's own orientation."""
        z = np.maximum(pose.wrist[:, 2:], 1e-3)
        turn = np.zeros((len(z), 3))
        return np.concatenate([turn, pose.wrist[:, :2] / z, np.log(z), pose.angles], axis=1)

    @staticmethod
    def limits() -> tuple[np.ndarray, np.ndarray]:
        """Return the lowest and highest unknowns, (28,) each."""
        low, high = articulation.limits()
        free = np.array([*[np.inf] * 5, 5.0])  # log depth: 7 mm to 148 m
        return np.concatenate([-free, low]), np.concatenate([free, high])

    def __call__(self, x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return residuals (n, M) of the given frames and their derivatives (n, M, 28)."""
        turn, points, axes = self._turned(x, rows)
        arms = points + self._offset @ np.swapaxes(turn, 1, 2)
        residuals, by_points, by_z = self._residuals(x, rows, arms)
        by_turn = -rotations.skew(arms) @ rotations.left_jacobian(x[:, :3])[:, None]
        jacobian = np.zeros((*residuals.shape, self.UNKNOWNS))

        # An angle turns the keypoints beyond its joint, and a bone by the bone's far end.
        angle, moved, joint = articulation.moves()
        near = np.stack([joint, PARENTS[moved - 1]])
        bent = rotations.cross(axes[:, None, angle], points[:, None, moved] - points[:, near])
        bones = jacobian[:, :60].reshape(-1, 20, 3, self.UNKNOWNS)
        scale = (self._bone_length * self._direction_sigma)[..., None]
        bones[..., :3] = (by_turn[:, CHILDREN] - by_turn[:, PARENTS]) / scale
        bones[:, moved - 1, :, 6 + angle] = np.swapaxes(bent[:, 1] / scale[:, moved - 1, 0], 0, 1)
        if self._evidence.seen is not None:
            bones *= self._evidence.seen[rows, None, None, None]

        if by_points:
            by_point = by_points[0]
            pixels = jacobian[:, 60:102].reshape(-1, 21, 2, self.UNKNOWNS)
            pixels[..., :3] = by_point @ by_turn
            depth = np.exp(x[:, 5])[:, None, None]
            pixels[..., 3:5] = depth[..., None] * by_point[..., :2]
            # The wrist is at depth times (x, y, 1).
            pixels[..., 5] = depth * (by_point @ _ray(x)[:, None, :, None])[..., 0]
            pixels[:, moved, :, 6 + angle] = np.swapaxes(
                (by_point[:, moved] @ bent[:, 0, ..., None])[..., 0], 0, 1
            )

        if len(by_points) > 1 or by_z is not None:
            # The derivatives of all points, (n, 21, 3, 28).
            slopes = np.zeros((*arms.shape, self.UNKNOWNS))
            slopes[..., :3] = by_turn
            slopes[:, :, 0, 3] = slopes[:, :, 1, 4] = depth[..., 0]
            slopes[..., 5] = depth * _ray(x)[:, None]
            slopes[:, moved, :, 6 + angle] = np.swapaxes(bent[:, 0], 0, 1)
            at = 102
            for (view, _), by_point in zip(self._others, by_points[1:], strict=True):
                R, seen = view.T_view_camera[:3, :3], view.evidence.seen_in[rows]
                bone = R @ (slopes[:, CHILDREN] - slopes[:, PARENTS]) / scale
                bone *= seen[:, None, None, None]
                jacobian[:, at : at + 60] = bone.reshape(len(x), 60, -1)
                pixel = (by_point @ R @ slopes).reshape(len(x), 42, -1)
                jacobian[:, at + 60 : at + 102] = pixel
                at += 102
            if by_z is not None:
                jacobian[:, at : at + 41] = by_z[..., None] * (SKIN_POINTS @ slopes[:, :, 2])

        jacobian[:, -22:, 6:] = np.eye(22) / ANGLE_SIGMA
        return residuals, jacobian

    def residuals(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the residuals of a call, without the derivatives."""
        turn, points, _ = self._turned(x, rows)
        return self._residuals(x, rows, points + self._offset @ np.swapaxes(turn, 1, 2))[0]

    def _turned(self, x: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return orientations, turned wrist-relative keypoints and turned axes of the angles."""
        turn = rotations.exp(x[:, :3]) @ self._orient[rows]
        points, _, axes = articulation.chain(x[:, 6:], self._side, self._rest)
        to_camera = np.swapaxes(turn, 1, 2)
        return turn, points @ to_camera, axes @ to_camera

    def _residuals(
        self, x: np.ndarray, rows: np.ndarray, arms: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray], np.ndarray | None]:
        """Return residuals for landmarks ``arms`` (n, 21, 3) from the wrist, and derivatives.

        Those of the pixel residuals of each view by its landmarks (n, 21, 2, 3), in the view's
        axes, and of the depth residuals by their points' z (n, 41).
        """
        evidence, by_points, by_z = self._evidence, list[np.ndarray](), None
        bones = (arms[:, CHILDREN] - arms[:, PARENTS]) / self._bone_length
        off = bones - evidence.direction[rows]
        if evidence.seen is not None:
            off = off * evidence.seen[rows, None, None]
        parts = [off / self._direction_sigma]

        if self._use_pixels:
            points = arms + (np.exp(x[:, 5:6]) * _ray(x))[:, None]
            residual, by_point = _pixel_residual(
                points, evidence.bearing[rows], self._whitening[rows]
            )
            parts.append(residual)
            by_points.append(by_point)
            for view, whitening in self._others:
                T, seen = view.T_view_camera, view.evidence.seen_in[rows, None, None]
                off = (bones @ T[:3, :3].T - view.evidence.direction[rows]) * seen
                residual, by_point = _pixel_residual(
                    frames.apply(T, points), view.evidence.bearing[rows], whitening[rows]
                )
                parts += [off / self._direction_sigma, residual]
                by_points.append(by_point)
            if evidence.skin is not None:
                below = SKIN_POINTS @ points[..., 2:] - self._below[rows, :, None]
                sigma = self._skin_sigma[rows]
                off = (below[..., 0] - evidence.skin.z[rows]) / sigma
                # Geman-McClure: a reading of something else pulls nowhere.
                bent = np.sqrt(1 + (off / SKIN_REACH) ** 2)
                gain = self._skin_gain[rows]
                parts.append(gain * off / bent)
                by_z = gain * bent**-3 / sigma

        parts.append((x[:, 6:] - articulation.comfortable()) / ANGLE_SIGMA)
        residuals = np.concatenate([part.reshape(len(x), -1) for part in parts], axis=1)
        return residuals, by_points, by_z


def _pixel_residual(
    points: np.ndarray, bearing: np.ndarray, whitening: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted bearing residuals (N, 21, 2) and their derivative by the point (N, 21, 2, 3)."""
    z = np.maximum(points[..., 2:], 1e-2)
    predicted = points[..., :2] / z
    residual = (whitening @ (predicted - bearing)[..., None])[..., 0]
    by_bearing = whitening / z[..., None]
    return residual, np.concatenate([by_bearing, -by_bearing @ predicted[..., None]], axis=-1)


def _ray(x: np.ndarray) -> np.ndarray:
    """Return (x/z, y/z, 1) of the wrists (n, 3)."""
    return np.concatenate([x[:, 3:5], np.ones((len(x), 1))], axis=1)
