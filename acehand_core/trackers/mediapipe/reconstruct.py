"""One hand over the whole recording: from detections to shape, poses, smoothing and filled gaps.

The smoother works in both directions at once, so there is no lag. It is penalised least squares
(Whittaker 1923): weighted squared distance to the data plus lambda times squared second differences
in time. Its half-gain frequency fixes lambda. Frames without data have weight zero and are filled
in from their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.linalg import splu

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand import articulation, landmark_fit
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.landmark_fit import Evidence, Pose
from acehand_core.hand.skeleton import WRIST
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import pnp
from acehand_core.trackers.mediapipe.detector import Detection
from acehand_core.types import Side, TimestampsNs

#: Inside a gap a pull towards equal speed keeps the curve from swinging: it leaves the straight
#: line by at most the speed at the ends times this. (Real and rendered hands with frames withheld
#: are filled best with 0.2 s for bearings and depth, 0.07 s for angles and orientation.)
TENSION_S = 0.13


@dataclass(frozen=True, slots=True)
class Span:
    """Frames ``start`` to ``stop - 1`` between the first and last sighting of one appearance."""

    start: int
    stop: int


def spans(
    observed: Bool[np.ndarray, "T"], timestamps_ns: Int[np.ndarray, "T"], max_gap_s: float
) -> list[Span]:
    """Split the sightings of a hand where it was away for longer than ``max_gap_s``."""
    seen = np.flatnonzero(observed)
    if len(seen) == 0:
        return []
    away = (timestamps_ns[seen[1:]] - timestamps_ns[seen[:-1]]) * 1e-9
    frame = np.median(np.diff(timestamps_ns)) * 1e-9 if len(timestamps_ns) > 1 else 0.0
    cuts = np.flatnonzero(away - frame > max_gap_s)
    starts = seen[np.concatenate([[0], cuts + 1])]
    stops = seen[np.concatenate([cuts, [len(seen) - 1]])] + 1
    return [Span(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def smooth(
    values: Float[np.ndarray, "T D"],
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    cutoff_hz: float,
) -> Float[np.ndarray, "T D"]:
    """Smooth columns over uneven times; values of zero weight are ignored and replaced.

    Straight lines stay as they are, also where part of them is missing.

    Args:
        weights: relative trust, 1 for a normal frame; at least one must be positive.
        cutoff_hz: frequency whose amplitude is halved, at the median frame rate.
    """
    known = weights > 0
    if known.sum() == 1:
        return np.repeat(values[known], len(values), axis=0)
    if len(values) == 2:
        return values.copy()
    step = np.diff(seconds)
    nominal = float(np.median(step))

    # A sine's gain is 1 / (1 + lam (2 sin(pi f nominal))^4); beyond half the frame rate there is
    # nothing to halve, and lam keeps falling.
    half = cutoff_hz * nominal
    root = 2 * np.sin(np.pi * min(half, 0.5)) * max(1.0, 2 * half)
    bends, tension = _penalties(step / nominal, known)
    lam = root**-4
    normal = lam * (bends.T @ bends + tension.T @ tension * (nominal / TENSION_S) ** 2)
    trust = np.zeros(normal.shape[0])  # the unknowns are T values, then one slope per gap
    trust[: len(values)] = weights
    data = np.zeros((len(trust), values.shape[1]))
    data[: len(values)][known] = values[known] * weights[known, None]

    return splu((normal + sparse.diags_array(trust)).tocsc()).solve(data)[: len(values)]


def _penalties(
    step: Float[np.ndarray, "S"], known: Bool[np.ndarray, "T"]
) -> tuple[sparse.sparray, sparse.sparray]:
    """Return what is penalised, rows by (T values, then a slope per gap), steps in frames.

    Everywhere second differences; inside a gap how far a step is from its share of the whole gap.
    """
    count = len(known)
    left = np.flatnonzero(~(known[:-1] & known[1:]))  # the steps that a gap is made of
    gaps, gap = np.unique(np.cumsum(known)[left], return_inverse=True)
    h1, h2, width = step[:-1], step[1:], count + len(gaps)
    bends = sparse.diags_array(
        [2 / (h1 * (h1 + h2)), -2 / (h1 * h2), 2 / (h2 * (h1 + h2))],
        offsets=[0, 1, 2],
        shape=(count - 2, width),
    )
    root = np.sqrt(step[left])
    rows = np.arange(len(left))
    entries = np.concatenate([-1 / root, 1 / root, -root])
    where = np.tile(rows, 3), np.concatenate([left, left + 1, count + gap])
    return bends, sparse.coo_array((entries, where), shape=(len(left), width))


def smooth_rotations(
    rotation: Float[np.ndarray, "T 3 3"],
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    cutoff_hz: float,
) -> Float[np.ndarray, "T 3 3"]:
    """Smooth rotations as unit quaternions of one sign; frames of zero weight are ignored."""
    q = rotations.to_quaternion(rotation)
    known = np.flatnonzero(weights > 0)
    aligned = q[known]
    flips = np.cumprod(np.where(np.sum(aligned[1:] * aligned[:-1], axis=1) < 0, -1.0, 1.0))
    aligned[1:] *= flips[:, None]
    q = np.zeros_like(q)
    q[known] = aligned
    return rotations.from_quaternion(smooth(q, weights, seconds, cutoff_hz))


#: A hand away for longer than this is away: it is not filled in.
MAX_FILL_S = 1.5
#: Half-gain frequencies of the smoother. A camera sees bearings well and depth poorly.
BEARING_HZ, DEPTH_HZ, ORIENT_HZ, ANGLE_HZ = 8.0, 2.5, 6.0, 7.0
#: Landmarks that no possible hand explains (rms over the palm's apparent length) are no sighting.
MAX_MISFIT = 0.25
#: Weakest weight of a sighting in smoothing.
MIN_WEIGHT = 0.05
#: Quality of a filled frame beside a sighting, and the frames over which it falls by e.
FILLED_QUALITY, FILLED_DECAY = 0.4, 10.0
MIN_DEPTH_M = 0.1


@dataclass(frozen=True, slots=True)
class HandTrack:
    """One slot over all T frames; NaN where the hand is not known."""

    global_orient: Float[np.ndarray, "T 3 3"]
    hand_pose: Float[np.ndarray, "T 15 3 3"]
    translation: Float[np.ndarray, "T 3"]
    joints: Float[np.ndarray, "T 21 3"]
    pixels: Float[np.ndarray, "T 21 2"]
    betas: Float[np.ndarray, "10"]
    observed: Bool[np.ndarray, "T"]
    filled: Bool[np.ndarray, "T"]
    quality: Float[np.ndarray, "T"]

    @classmethod
    def absent(cls, frames: int) -> HandTrack:
        """Return a hand that is nowhere."""

        def unknown(*shape: int) -> np.ndarray:
            return np.full((frames, *shape), np.nan)

        never = np.zeros(frames, bool)
        return cls(
            unknown(3, 3), unknown(15, 3, 3), unknown(3), unknown(21, 3), unknown(21, 2),
            np.zeros(10), never, never.copy(), np.zeros(frames),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sightings:
    """The N frames in which the hand was seen."""

    frames: Int[np.ndarray, "N"]
    pixels: Float[np.ndarray, "N 21 2"]
    confidence: Float[np.ndarray, "N"]
    evidence: Evidence

    def rows(self, keep: Bool[np.ndarray, "N"]) -> _Sightings:
        return _Sightings(
            self.frames[keep], self.pixels[keep], self.confidence[keep], self.evidence.rows(keep)
        )


def reconstruct(
    detections: Sequence[Detection | None],
    side: Side,
    camera: Camera,
    timestamps_ns: TimestampsNs,
    settings: TrackerSettings,
) -> HandTrack:
    """Return one hand over the recording from its detections, one entry per frame."""
    track = HandTrack.absent(len(detections))
    sightings = _sightings(detections, camera)
    if sightings is None:
        return track
    pose, betas = _fit(sightings, side, camera, settings)
    rest = CapsuleHand().rest_keypoints(side, betas)

    # Rms distance of fitted and seen bearings over the palm's apparent length.
    keypoints = pose.keypoints(side, rest)
    z = np.maximum(keypoints[..., 2:], 1e-2)
    error = np.sum((keypoints[..., :2] / z - sightings.evidence.bearing) ** 2, axis=-1)
    misfit = np.sqrt(error.mean(1)) / sightings.evidence.scale
    keep = misfit < MAX_MISFIT
    if not keep.any():
        return track
    sightings, pose = sightings.rows(keep), pose.rows(keep)
    sure = np.clip((sightings.confidence - 0.5) / 0.4, 0.2, 1.0)
    track.pixels[sightings.frames] = sightings.pixels
    track.observed[sightings.frames] = True
    track.quality[sightings.frames] = sure * (1 - misfit[keep] / MAX_MISFIT)
    track.betas[:] = betas
    _write_spans(track, pose, side, rest, timestamps_ns)

    return track


def _sightings(detections: Sequence[Detection | None], camera: Camera) -> _Sightings | None:
    """Collect the detections whose landmarks all lie inside the camera's field of view."""
    seen = [(frame, d) for frame, d in enumerate(detections) if d is not None]
    if not seen:
        return None
    frames, hands = zip(*seen, strict=True)
    pixels = np.stack([d.pixels for d in hands])
    bearing = pnp.bearings(camera, pixels)
    inside = np.isfinite(bearing).all((1, 2))
    if not inside.any():
        return None
    world = np.stack([d.world for d in hands])

    return _Sightings(
        np.array(frames)[inside],
        pixels[inside],
        np.array([d.confidence for d in hands])[inside],
        Evidence.from_landmarks(bearing[inside], world[inside]),
    )


def _fit(
    sightings: _Sightings, side: Side, camera: Camera, settings: TrackerSettings
) -> tuple[Pose, Float[np.ndarray, "10"]]:
    """Fit one shape, then every pose with it; the first round with the mean hand."""
    model, evidence = CapsuleHand(), sightings.evidence
    rest = model.rest_keypoints(side, np.zeros(10))
    articulated = landmark_fit.articulate(evidence, side, rest)
    pose = _place(articulated, sightings, side, rest, camera, settings)
    refined = landmark_fit.refine(pose, evidence, side, rest, try_relaxed=True)
    betas = landmark_fit.fit_shape(refined, evidence, side, settings.hand_length_m)
    rest = model.rest_keypoints(side, betas)
    if settings.placement == "mixed":
        return _place(articulated, sightings, side, rest, camera, settings), betas
    return landmark_fit.refine(refined, evidence, side, rest), betas


def _place(
    pose: Pose,
    sightings: _Sightings,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    camera: Camera,
    settings: TrackerSettings,
) -> Pose:
    """Place articulated hands, wrists at the origin, before the camera by the chosen PnP."""
    canonical = pose.keypoints(side, rest)
    depth = pnp.weak_perspective_depth(canonical, sightings.pixels, camera)
    depth = np.maximum(depth, MIN_DEPTH_M)
    wrist = pnp.mixed_pnp(canonical, depth, sightings.pixels, camera).translation
    if settings.placement == "mixed":
        return Pose(pose.global_orient, pose.angles, wrist)
    bearing, weights = sightings.evidence.bearing, landmark_fit.KEYPOINT_WEIGHTS
    turn, wrist = pnp.rigid_pnp(canonical, bearing, wrist, np.tile(weights, (len(wrist), 1)))
    return Pose(turn @ pose.global_orient, pose.angles, wrist)


def _write_spans(
    track: HandTrack,
    pose: Pose,
    side: Side,
    rest: Float[np.ndarray, "21 3"],
    timestamps_ns: TimestampsNs,
) -> None:
    """Smooth each appearance of the hand, fill its short gaps, and write both into the track."""
    row = np.cumsum(track.observed) - 1
    for span in spans(track.observed, timestamps_ns, MAX_FILL_S):
        frames = np.arange(span.start, span.stop)
        known = track.observed[frames]
        weights = np.where(known, np.maximum(track.quality[frames], MIN_WEIGHT), 0.0)
        seconds = (timestamps_ns[frames] - timestamps_ns[frames[0]]) * 1e-9
        smoothed = _smooth(pose.rows(row[frames]), weights, seconds)
        track.global_orient[frames] = smoothed.global_orient
        track.hand_pose[frames] = articulation.angles_to_pose(smoothed.angles, side)
        track.joints[frames] = smoothed.keypoints(side, rest)
        track.translation[frames] = smoothed.wrist - rest[WRIST]
        track.filled[frames] = ~known
        # The quality of a filled frame falls with the distance to the nearest sighting.
        gaps, sightings = np.flatnonzero(~known), np.flatnonzero(known)
        after = np.searchsorted(sightings, gaps)
        distance = np.minimum(gaps - sightings[after - 1], sightings[after] - gaps)
        track.quality[frames[~known]] = FILLED_QUALITY * np.exp(-(distance - 1) / FILLED_DECAY)


def _smooth(pose: Pose, weights: Float[np.ndarray, "M"], seconds: Float[np.ndarray, "M"]) -> Pose:
    z = pose.wrist[:, 2:]
    bearing = smooth(pose.wrist[:, :2] / z, weights, seconds, BEARING_HZ)
    depth = np.exp(smooth(np.log(z), weights, seconds, DEPTH_HZ))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = depth * np.concatenate([bearing, np.ones_like(depth)], axis=1)
    return Pose(orient, np.clip(angles, *articulation.limits()), wrist)
