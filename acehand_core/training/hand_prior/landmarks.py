"""What a landmark network might make of a hand: wrong in far more ways than rendered hands show.

How bad a stretch is, is drawn once (``severity``); errors last for some frames, and what is
reported of them is right up to a factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations
from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import BONES, FINGERS, KEYPOINT_PARENTS, KEYPOINT_TO_TREE
from acehand_core.trackers.mediapipe.prior import FEATURES, features
from acehand_core.trackers.mediapipe.reconstruct import LANDMARK_OFFSET
from acehand_core.training.hand_prior.motions import Views

_PARENTS, _CHILDREN = (list(column) for column in zip(*BONES, strict=True))
#: The tree's joint that each keypoint is carried by, and the finger of each (0: none).
_CARRIED_BY = [0 if p <= 0 else KEYPOINT_TO_TREE[p] for p in KEYPOINT_PARENTS]
_FINGER = np.array([0, *np.repeat(np.arange(1, 6), 4)])
#: How far each landmark's own offset is from that of a fingertip's neighbours.
_VAGUE = np.array([1.7, *[1.3] * 4, *[0.8, 1.0, 1.0, 1.0] * 4])


@dataclass(frozen=True, slots=True)
class Batch:
    """What the network is told of B stretches of T frames, and the bones that are true."""

    told: Float[np.ndarray, "B T 70"]
    direction: Float[np.ndarray, "B T 20 3"]  # axes of the hand's ray
    known: Bool[np.ndarray, "B T"]


def observed(rng: np.random.Generator, views: Views, wide: float = 1.0) -> Batch:
    """Return landmarks of the views; ``wide`` scales how bad they may be."""
    count, frames = views.angles.shape[:2]
    severity = wide * rng.beta(1.3, 2.0, (count, 1, 1))
    lasting = _Lasting(rng, count, frames)
    rest = _bones_of_their_own(rng, views)
    length = np.linalg.norm(rest[:, 12], axis=-1)[:, None, None]

    true = _posed(views, views.angles, views.R_camera_hand, rest, np.zeros_like(rest))
    own = LANDMARK_OFFSET @ articulation.ANATOMICAL_TO_MODEL.T
    calibrated = true + (own * length)[:, None] @ np.swapaxes(views.R_camera_hand, 2, 3)
    bones = calibrated[:, :, _CHILDREN] - calibrated[:, :, _PARENTS]
    bones = bones / np.linalg.norm(bones, axis=-1, keepdims=True)

    # Fingers drawn towards a relaxed hand or away, bent wrongly; hands seen edge-on turned wrongly.
    drawn = 2 * severity * rng.normal(0.05, 0.2, (count, 1, 5)) + 0.15 * severity * lasting(5)
    finger = [freedom.joint // 3 for freedom in articulation.freedoms()]
    towards = np.clip(drawn, -0.2, 0.7)[..., finger] * (articulation.comfortable() - views.angles)
    low, high = articulation.limits()
    bent = views.angles + towards + np.radians(14) * severity * lasting(22)
    ray = views.wrist_camera / np.linalg.norm(views.wrist_camera, axis=-1, keepdims=True)
    facing = np.abs(np.sum(views.R_camera_hand[..., 1] * ray, axis=-1, keepdims=True))
    turn = np.radians(5 + 22 * (1 - facing) ** 2) * severity * lasting(3)
    R = rotations.exp(turn) @ views.R_camera_hand

    # Landmarks are not joints: offsets that move with the bones, the same all along.
    offset = rng.normal(size=(count, 21, 3)) * (0.010 + 0.05 * severity) * _VAGUE[:, None]
    offset += (rng.normal(size=(count, 6, 3)) * (0.005 + 0.025 * severity))[:, _FINGER]
    offset += own * rng.uniform(0, 1.6, (count, 1, 1))
    wrong = _posed(views, np.clip(bent, low - 0.2, high + 0.2), R, rest, offset * length)

    moved = np.linalg.norm(wrong - true, axis=-1) / length
    bearing = wrong[..., :2] / np.maximum(wrong[..., 2:], 0.03)
    away = np.maximum(np.linalg.norm(views.wrist_camera, axis=-1, keepdims=True), 0.03)
    size = length / away
    loud = 1 + 1.5 * _hidden(bearing / size[..., None], wrong[..., 2] / length)
    loud = (loud + _bursts(rng, severity, frames)) * np.exp(rng.normal(0, 0.3, (count, 1, 21)))
    slow = (0.004 + 0.03 * severity * rng.uniform(0.3, 1, severity.shape)) * loud
    fast = (0.002 + 0.012 * severity * rng.uniform(0.2, 1, severity.shape)) * loud
    noise = slow[..., None] * lasting(21, 2)
    noise += fast[..., None] * rng.normal(size=(count, frames, 21, 2))
    bearing = bearing + size[..., None] * noise

    sigma = np.sqrt(slow**2 + fast**2 + (0.25 * moved) ** 2 + 0.003**2) * size
    sigma *= np.exp(rng.normal(-0.7, 0.5, (count, 1, 1)) + rng.normal(0, 0.35, sigma.shape))
    sigma *= np.sqrt(rng.gamma(3, 1 / 3, sigma.shape))  # as of four crops
    focal = np.exp(rng.normal(0, 0.12, (count, 1, 1)))  # that of the camera is not known
    known = (true[..., 2].min(-1) > 0.1) & _in_sight(rng, count, frames)
    known[~known.any(1)] = True
    return _told(rng, views, bearing * focal[..., None], sigma * focal, known, bones)


def _told(
    rng: np.random.Generator, views: Views, bearing: np.ndarray, sigma: np.ndarray,
    known: Bool[np.ndarray, "B T"], bones: np.ndarray,
) -> Batch:  # fmt: skip
    """Return the batch; some stretches have one crop only, or a camera of unknown motion."""
    count, frames = known.shape
    told, direction = np.empty((count, frames, FEATURES)), np.empty_like(bones)
    one_crop, blind = rng.random((2, count)) < np.array([[0.25], [0.15]])
    turns = np.swapaxes(views.R_camera_world, 2, 3).copy()
    turns[blind] = np.eye(3)
    for i in range(count):
        told[i], R_camera_ray = features(
            bearing[i], None if one_crop[i] else sigma[i], known[i], turns[i]
        )
        direction[i] = bones[i] @ R_camera_ray
    return Batch(told, direction, known)


class _Lasting:
    """Noise of unit variance that lasts: for 3 to 25 frames, one time of each stretch."""

    def __init__(self, rng: np.random.Generator, count: int, frames: int) -> None:
        self._rng, self._shape = rng, (count, frames)
        self._kept = np.exp(-1 / (3 * (25 / 3) ** rng.random(count)))

    def __call__(self, *each: int) -> np.ndarray:
        out = self._rng.normal(size=(*self._shape, *each))
        kept = self._kept.reshape(-1, *[1] * len(each))
        for t in range(1, self._shape[1]):
            out[:, t] = kept * out[:, t - 1] + np.sqrt(1 - kept**2) * out[:, t]
        return out


def _bones_of_their_own(rng: np.random.Generator, views: Views) -> Float[np.ndarray, "B 21 3"]:
    """Return rest keypoints from the wrist, of shapes beyond those of the hand model."""
    model = CapsuleHand()
    shaped = np.stack([model.rest_keypoints("right", betas) for betas in views.betas])
    longer = np.exp(rng.normal(0, 0.06, (len(shaped), 20, 1)))
    bones = (shaped[:, _CHILDREN] - shaped[:, _PARENTS]) * longer
    rest = np.zeros_like(shaped)
    for bone, (parent, child) in enumerate(BONES):
        rest[:, child] = rest[:, parent] + bones[:, bone]
    return rest


def _posed(
    views: Views, angles: np.ndarray, R: np.ndarray, rest: np.ndarray, offset: np.ndarray
) -> Float[np.ndarray, "B T 21 3"]:
    """Return keypoints and what hangs on their bones, camera frame."""
    count, frames = angles.shape[:2]
    rest, offset = (np.repeat(points, frames, axis=0) for points in (rest, offset))
    points, turned, _ = articulation.chain(angles.reshape(-1, 22), "right", rest)
    points = points + np.einsum("njab,njb->nja", turned[:, _CARRIED_BY], offset)
    points = points.reshape(count, frames, 21, 3) @ np.swapaxes(R, 2, 3)
    return points + views.wrist_camera[:, :, None]


def _hidden(flat: np.ndarray, depth: np.ndarray) -> Bool[np.ndarray, "B T 21"]:
    """Return which landmarks lie behind another one; all in hand lengths."""
    hidden = np.zeros(depth.shape, bool)
    for k in range(21):
        others = np.flatnonzero(np.abs(np.arange(21) - k) > 1)
        near = np.sum((flat[:, :, others] - flat[:, :, k, None]) ** 2, axis=-1) < 0.09**2
        before = depth[:, :, others] < depth[:, :, k, None] - 0.08
        hidden[..., k] = (near & before).any(-1)
    return hidden


def _bursts(rng: np.random.Generator, severity: np.ndarray, frames: int) -> np.ndarray:
    """Return extra noise of some fingers for a while."""
    out = np.zeros((len(severity), frames, 21))
    for i in range(len(severity)):
        for _ in range(rng.poisson(1.5)):
            begin, last = rng.integers(frames), rng.integers(2, 20)
            some = rng.choice(len(FINGERS) + 1, rng.integers(1, 4), replace=False)
            louder = rng.uniform(0.5, 3) * (0.2 + severity[i, 0, 0])
            out[i, begin : begin + last] += louder * np.isin(_FINGER, some)
    return out


def _in_sight(rng: np.random.Generator, count: int, frames: int) -> Bool[np.ndarray, "B T"]:
    """Return in which frames hands are found: single ones lack, and in half of the cases spans."""
    found = rng.random((count, frames)) > rng.choice([0, 0, 0.05, 0.2], (count, 1))
    for row in found:
        for _ in range(rng.integers(1, 3) if rng.random() < 0.5 else 0):
            begin = rng.integers(frames)
            row[begin : begin + rng.integers(2, 40)] = False
    return found
