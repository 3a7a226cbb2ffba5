"""Bone directions that a small network of ours expects behind 2D landmarks over time.

It saw joints of generated motions alone, projected and spoilt in many ways
(``training.hand_prior``): no picture and no landmark network had a part in it. docs/hand_prior.md
says what it is worth.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry import rotations
from acehand_core.hand.articulation import MIRROR
from acehand_core.hand.landmark_fit import DIRECTION_SIGMA, Evidence
from acehand_core.motion import CameraMotion
from acehand_core.trackers.mediapipe.gaps import room_turns
from acehand_core.trackers.mediapipe.smoothing import spans
from acehand_core.types import Side, TimestampsNs

#: What the network is told of a frame: 21 landmarks (x, y), their noise, and five more numbers
#: (``features``). What it says: 20 directions and the logarithms of their standard deviations.
FEATURES, BONES = 42 + 21 + 7, 20
DILATIONS = (1, 2, 4, 8, 16)
#: Its errors last: a frame counts as if they were so many times as large.
SIGMA_FACTOR = 2.0
_ASSET = "hand_prior.npz"

Weights = Mapping[str, Float[np.ndarray, "..."]]


@dataclass(frozen=True, slots=True)
class Directions:
    """Unit bone directions in camera axes and their standard deviations (radians, each way)."""

    direction: Float[np.ndarray, "T 20 3"]
    sigma: Float[np.ndarray, "T 20"]


@functools.cache
def weights() -> Weights:
    """Return the network's weights."""
    with resources.as_file(resources.files(__package__) / "assets" / _ASSET) as path:
        return {k: v.astype(np.float32) for k, v in np.load(path, allow_pickle=False).items()}


def features(
    bearing: Float[np.ndarray, "T 21 2"],
    sigma: Float[np.ndarray, "T 21"] | None,
    known: Bool[np.ndarray, "T"],
    turns: Float[np.ndarray, "T 3 3"],
) -> tuple[Float[np.ndarray, "T 70"], Float[np.ndarray, "T 3 3"]]:
    """Return what the network is told of a right hand, and what takes its axes to the camera's.

    Args:
        bearing: (x/z, y/z) of the landmarks; anything where the hand is not known.
        sigma: their standard deviations; None where there was one crop only.
        known: in which frames, at least one.
        turns: take vectors of the camera frame to one in which the camera turns.
    """
    frames = np.arange(len(bearing))
    seen = np.flatnonzero(known)
    centre = bearing[seen].mean(1)
    ray = np.stack([np.interp(frames, seen, column) for column in centre.T] + [0 * frames + 1.0], 1)
    ray /= np.linalg.norm(ray, axis=1, keepdims=True)
    R_camera_ray = rotations.between(np.broadcast_to([0.0, 0.0, 1.0], ray.shape), ray)

    # The hand as a camera that looks at its middle sees it, at a size of one.
    points = np.concatenate([bearing, np.ones((*bearing.shape[:2], 1))], axis=-1) @ R_camera_ray
    flat = points[..., :2] / np.maximum(points[..., 2:], 0.05)
    flat = flat - flat.mean(1, keepdims=True)
    size = np.maximum(np.sqrt(np.sum(flat**2, axis=-1).mean(-1)), 1e-6)

    out = np.zeros((len(bearing), FEATURES))
    out[:, :42] = (flat / size[:, None, None]).reshape(-1, 42)
    if sigma is not None:
        out[:, 42:63] = np.log(np.clip(sigma / size[:, None], 0.003, 0.5)) + 3.5
        out[:, 64] = 1.0
    out[:, 63] = 1.0
    out[:, 65] = 2 * (np.log(size) + 2.3)
    out[~known] = 0.0
    R_room_ray = turns @ R_camera_ray
    out[1:, 66:69] = 5 * rotations.log(np.swapaxes(R_room_ray[:-1], 1, 2) @ R_room_ray[1:])
    return out, R_camera_ray


def answer(
    told: Float[np.ndarray, "T 70"], w: Weights
) -> tuple[Float[np.ndarray, "T 20 3"], Float[np.ndarray, "T 20"]]:
    """Return directions in the axes of the hand's ray, and their standard deviations.

    A perceptron of each frame, then residual blocks of a convolution over time of three frames that
    lie ``DILATIONS`` apart, and one of each frame.
    """
    x = np.maximum(told.astype(np.float32) @ w["a.weight"].T + w["a.bias"], 0)
    x = x @ w["b.weight"].T + w["b.bias"]
    for number, apart in enumerate(DILATIONS):
        conv = w[f"blocks.{number}.conv.weight"]
        padded = np.pad(np.maximum(x, 0), ((apart, apart), (0, 0)))
        hidden = w[f"blocks.{number}.conv.bias"] + sum(
            padded[k * apart : k * apart + len(x)] @ conv[:, :, k].T for k in range(3)
        )
        x = x + np.maximum(hidden, 0) @ w[f"blocks.{number}.out.weight"][:, :, 0].T
        x = x + w[f"blocks.{number}.out.bias"]
    said = np.maximum(x, 0) @ w["o.weight"].T + w["o.bias"]
    direction = said[:, : 3 * BONES].reshape(-1, BONES, 3)
    direction = direction / np.maximum(np.linalg.norm(direction, axis=-1, keepdims=True), 1e-6)
    return direction.astype(float), np.exp(np.clip(said[:, 3 * BONES :], -5, 1)).astype(float)


def directions(
    bearing: Float[np.ndarray, "T 21 2"],
    sigma: Float[np.ndarray, "T 21"] | None,
    known: Bool[np.ndarray, "T"],
    turns: Float[np.ndarray, "T 3 3"],
    side: Side,
    w: Weights | None = None,
) -> Directions:
    """Return the bones of a hand in all frames; arguments as of ``features``, of either hand."""
    flip = MIRROR if side == "left" else np.ones(3)
    told, R_camera_ray = features(bearing * flip[:2], sigma, known, turns * flip[:, None] * flip)
    unit, spread = answer(told, weights() if w is None else w)
    return Directions(unit @ np.swapaxes(R_camera_ray, 1, 2) * flip, spread)


def with_expected(
    evidence: Evidence,
    frames: Int[np.ndarray, "N"],
    side: Side,
    timestamps_ns: TimestampsNs,
    motion: CameraMotion | None,
    longest_gap_s: float,
) -> Evidence:
    """Return a hand's evidence with what the network expects in it.

    Args:
        evidence: of N sightings, in these ``frames`` of the T of the recording.
        motion: how the camera turned; None: as if it had not.
        longest_gap_s: after a longer one the hand appears anew.
    """
    count = len(timestamps_ns)
    seen = np.zeros(count, bool)
    seen[frames] = True
    bearing, sigma = np.zeros((count, 21, 2)), None
    bearing[frames] = evidence.bearing
    if evidence.spread is not None:
        sigma = np.zeros((count, 21))
        sigma[frames] = np.sqrt(np.trace(evidence.spread, axis1=2, axis2=3) / 2)

    direction, spread = np.zeros((count, 20, 3)), np.ones((count, 20))
    for span in spans(seen, timestamps_ns, longest_gap_s):
        turns = np.tile(np.eye(3), (span.stop - span.start, 1, 1))
        if motion is not None:
            turns = room_turns(motion.part(span.start, span.stop))
        rows = slice(span.start, span.stop)
        noise = None if sigma is None else sigma[rows]
        found = directions(bearing[rows], noise, seen[rows], turns, side)
        direction[rows], spread[rows] = found.direction, found.sigma
    return merged(evidence, Directions(direction[frames], spread[frames]))


def merged(evidence: Evidence, found: Directions) -> Evidence:
    """Return the evidence whose directions are those of both, by how well each is known.

    The sum of two squares about two vectors is, but for a constant, one about their weighted mean.
    """
    world = DIRECTION_SIGMA["beside pixels"] ** -2
    own = (SIGMA_FACTOR * found.sigma) ** -2
    mean = world * evidence.direction + own[..., None] * found.direction
    return replace(
        evidence,
        direction=mean / (world + own)[..., None],
        direction_sigma=(world + own) ** -0.5,
    )
