"""Smoothing in time, and the coordinate frame in which a gap of an occluded hand is filled.

A hand at work stays in place in the room when the head turns away, a carried one turns with the
head; the path before and after a gap shows which. The smoother runs in both directions at once, so
there is no lag: penalised least squares (Whittaker 1923) of weighted squared distance to the data
plus lambda times squared second differences, lambda from the half-gain frequency. Frames without
data have zero weight and follow from their neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.sparse.linalg import splu

from acehand_core.geometry import frames, rotations
from acehand_core.hand import articulation
from acehand_core.hand.evidence import Pose
from acehand_core.motion import CameraMotion, FillFrame
from acehand_core.types import CameraPoses

_PerFrame = Float[np.ndarray, "T"]
_Flags = Bool[np.ndarray, "T"]
_Turns = Float[np.ndarray, "T 3 3"]
_Path = Float[np.ndarray, "T 3"]

#: Half-gain frequencies of the smoother. A camera sees bearings well and depth poorly.
BEARING_HZ, DEPTH_HZ, ORIENT_HZ, ANGLE_HZ = 8.0, 2.5, 6.0, 7.0
#: Of depth that is measured.
METRIC_DEPTH_HZ = 6.0
#: A pull towards equal speed keeps curves in gaps from swinging: they leave the straight line by at
#: most the speed at the ends times this. (Best for withheld frames: 0.2 s for bearings and depth,
#: 0.07 s for angles and orientation.)
TENSION_S = 0.13

#: Smaller turns of the camera across a gap make no difference.
MIN_TURN_RAD = np.radians(5.0)
#: Less certain turns across a gap count as unknown. (Up to this the calmer frame decides: a turn
#: that is off by more than the head's own makes no path calm.)
MAX_SIGMA_RAD = np.radians(15.0)
#: Uncertainty of the turn that halves the quality of filled frames, and quality without a turn.
HALF_TRUST_RAD, BROKEN_TRUST = np.radians(5.0), 0.5
#: Path of a hand before and after a gap that counts, and the time that weighs its speed. (On posed
#: clips 0.1 to 0.25 s and 0.2 to 0.35 s choose about as well.)
WINDOW_S, SPEED_S = 0.2, 0.25
#: A smaller difference of frames, as after a look aside and back, leaves the hand in the room.
EVEN_M = 0.01
#: Time of blending before and after a gap in the camera frame.
BLEND_S = 0.2


def spans(observed: _Flags, timestamps_ns: Int[np.ndarray, "T"], max_gap_s: float) -> list[slice]:
    """Return the frames of each appearance: sightings with gaps of up to ``max_gap_s``."""
    seen = np.flatnonzero(observed)
    if len(seen) == 0:
        return []
    away = (timestamps_ns[seen[1:]] - timestamps_ns[seen[:-1]]) * 1e-9
    frame = np.median(np.diff(timestamps_ns)) * 1e-9 if len(timestamps_ns) > 1 else 0.0
    cuts = np.flatnonzero(away - frame > max_gap_s)
    starts = seen[np.concatenate([[0], cuts + 1])]
    stops = seen[np.concatenate([cuts, [len(seen) - 1]])] + 1
    return [slice(int(a), int(b)) for a, b in zip(starts, stops, strict=True)]


def smooth(
    values: Float[np.ndarray, "T D"], weights: _PerFrame, seconds: _PerFrame, cutoff_hz: float
) -> Float[np.ndarray, "T D"]:
    """Smooth columns over uneven times; values of zero weight are filled, straight lines kept.

    Args:
        weights: relative trust, 1 for a normal frame; at least one must be positive.
        cutoff_hz: half-gain frequency, at the median frame rate.
    """
    known = weights > 0
    if known.sum() == 1:
        return np.repeat(values[known], len(values), axis=0)
    if len(values) == 2:
        return values.copy()
    step = np.diff(seconds)
    nominal = float(np.median(step))

    # A sine's gain is 1 / (1 + lam (2 sin(pi f nominal))^4); beyond half the frame rate lam keeps
    # falling.
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
    step: Float[np.ndarray, "S"], known: _Flags
) -> tuple[sparse.sparray, sparse.sparray]:
    """Return the penalised differences of (T values, then a slope per gap), steps in frames.

    Second differences, and inside gaps the deviation of each step from its share of the gap.
    """
    count = len(known)
    left = np.flatnonzero(~(known[:-1] & known[1:]))  # the steps in gaps
    gaps, gap = np.unique(np.cumsum(known)[left], return_inverse=True)
    h1, h2, width = step[:-1], step[1:], count + len(gaps)
    second = [2 / (h1 * (h1 + h2)), -2 / (h1 * h2), 2 / (h2 * (h1 + h2))]
    bends = sparse.diags_array(second, offsets=[0, 1, 2], shape=(count - 2, width))
    root, rows = np.sqrt(step[left]), np.arange(len(left))
    entries = np.concatenate([-1 / root, 1 / root, -root])
    where = np.tile(rows, 3), np.concatenate([left, left + 1, count + gap])
    return bends, sparse.coo_array((entries, where), shape=(len(left), width))


def smooth_rotations(
    rotation: _Turns, weights: _PerFrame, seconds: _PerFrame, cutoff_hz: float
) -> _Turns:
    """Smooth rotations as unit quaternions of one sign; frames of zero weight are ignored."""
    q = rotations.to_quaternion(rotation)
    known = np.flatnonzero(weights > 0)
    aligned = q[known]
    flips = np.cumprod(np.where(np.sum(aligned[1:] * aligned[:-1], axis=1) < 0, -1.0, 1.0))
    aligned[1:] *= flips[:, None]
    q = np.zeros_like(q)
    q[known] = aligned
    return rotations.from_quaternion(smooth(q, weights, seconds, cutoff_hz))


def smooth_pose(
    pose: Pose, weights: _PerFrame, seconds: _PerFrame, depth_hz: float = DEPTH_HZ
) -> Pose:
    """Smooth a hand in the camera frame; frames of zero weight are filled."""
    z = pose.wrist[:, 2:]
    bearing = smooth(pose.wrist[:, :2] / z, weights, seconds, BEARING_HZ)
    depth = np.exp(smooth(np.log(z), weights, seconds, depth_hz))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = depth * np.concatenate([bearing, np.ones_like(depth)], axis=1)
    return Pose(orient, np.clip(angles, *articulation.limits()), wrist)


def smooth_turning_pose(
    pose: Pose,
    turns: _Turns,
    weights: _PerFrame,
    seconds: _PerFrame,
    depth_hz: float = DEPTH_HZ,
) -> Pose:
    """Smooth a hand of the camera frame in one that the camera turns in; zero weights are filled.

    Directions and distances, which turns of the camera keep, take the place of bearings and depth.

    Args:
        turns: of vectors of the camera frame to the other.
    """
    back = np.swapaxes(turns, 1, 2)
    far = np.linalg.norm(pose.wrist, axis=1, keepdims=True)
    turned = (turns @ (pose.wrist / far)[..., None])[..., 0]
    direction = smooth(turned, weights, seconds, BEARING_HZ)
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    distance = np.exp(smooth(np.log(far), weights, seconds, depth_hz))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(turns @ pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = distance * (back @ direction[..., None])[..., 0]
    return Pose(back @ orient, np.clip(angles, *articulation.limits()), wrist)


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames ``start`` to ``stop - 1`` without a sighting, and the coordinate frame to fill in."""

    start: int
    stop: int
    frame: FillFrame = "camera"


def find_gaps(known: _Flags) -> list[Gap]:
    """Return the gaps between the first and the last sighting."""
    seen = np.flatnonzero(known)
    ends = np.flatnonzero(np.diff(seen) > 1)
    return [Gap(int(seen[i]) + 1, int(seen[i + 1])) for i in ends]


def smooth_and_fill(
    pose: Pose,
    weights: _PerFrame,
    seconds: _PerFrame,
    motion: CameraMotion | None = None,
    T_world_camera: CameraPoses | None = None,
    metric: bool = False,
) -> tuple[Pose, list[Gap]]:
    """Smooth one appearance of a hand and fill its gaps, each in the frame that suits it.

    Args:
        pose: in the camera frame, as is the result.
        weights: relative trust of each frame, 0 without a sighting.
        motion: the camera's turns; None: smooth and fill in the camera frame.
        T_world_camera: trusted poses of the camera, NaN where unknown.
        metric: depth is measured, so it is smoothed lightly.
    """
    gaps = find_gaps(weights > 0)
    depth_hz = METRIC_DEPTH_HZ if metric else DEPTH_HZ
    in_camera = smooth_pose(pose, weights, seconds, depth_hz)
    if motion is None:
        return in_camera, gaps
    turns = room_turns(motion)
    if (turns == turns[0]).all():
        return in_camera, gaps
    in_room = smooth_turning_pose(pose, turns, weights, seconds, depth_hz)
    paths = _paths(in_room.wrist, motion, T_world_camera)
    gaps = [_chosen(gap, paths, weights > 0, seconds, motion) for gap in gaps]

    return blended(in_camera, in_room, weights, seconds, motion, T_world_camera, gaps), gaps


def room_turns(motion: CameraMotion) -> _Turns:
    """Return the turns of the camera frame to one that it turns in; unknown steps count as none."""
    R = motion.rotations
    turns, before = np.empty_like(R), np.eye(3)
    starts = [0, *np.flatnonzero(motion.broken), len(R)]
    for start, stop in pairwise(starts):
        turns[start:stop] = before @ R[start].T @ R[start:stop]
        turns[start:stop][(R[start:stop] == R[start]).all((1, 2))] = before
        before = turns[stop - 1]
    return turns


def blended(
    in_camera: Pose,
    in_room: Pose,
    weights: _PerFrame,
    seconds: _PerFrame,
    motion: CameraMotion,
    T_world_camera: CameraPoses | None,
    gaps: list[Gap],
) -> Pose:
    """Return the pose with every gap filled in its frame; all poses are in the camera frame."""
    wrist = in_room.wrist.copy()
    for gap in gaps:
        if gap.frame == "world" and T_world_camera is not None:
            low, high = _window(gap, seconds, motion.broken)
            rows, inside = slice(low, high), slice(gap.start - low, gap.stop - low)
            known, poses = weights[rows] > 0, T_world_camera[rows]
            _fill_in_world(wrist[rows], inside, known, seconds[rows], poses)

    share = _share_of_camera(gaps, seconds)
    orient = in_room.global_orient.copy()
    mixed = (share > 0) & (share < 1)
    orient[mixed] = rotations.slerp(orient[mixed], in_camera.global_orient[mixed], share[mixed])
    wrist[mixed] += share[mixed, None] * (in_camera.wrist - wrist)[mixed]
    whole = share == 1
    orient[whole], wrist[whole] = in_camera.global_orient[whole], in_camera.wrist[whole]
    return Pose(orient, in_camera.angles, wrist)


def _share_of_camera(gaps: list[Gap], seconds: _PerFrame) -> _PerFrame:
    """Return 1 in gaps filled in the camera frame, 0 in others, blended in between."""
    in_camera, in_other = np.zeros((2, len(seconds)), bool)
    for gap in gaps:
        (in_camera if gap.frame == "camera" else in_other)[gap.start : gap.stop] = True
    to_camera = _time_to(in_camera, seconds)
    reach = np.minimum(BLEND_S, to_camera + _time_to(in_other, seconds))
    return np.clip(1 - to_camera / reach, 0, 1)


def _time_to(marked: _Flags, seconds: _PerFrame) -> _PerFrame:
    """Return the time to the nearest marked frame, infinite for none."""
    rows = np.flatnonzero(marked)
    if len(rows) == 0:
        return np.full(len(seconds), np.inf)
    after = np.searchsorted(rows, np.arange(len(seconds)))
    before, after = rows[np.maximum(after - 1, 0)], rows[np.minimum(after, len(rows) - 1)]
    return np.minimum(np.abs(seconds - seconds[before]), np.abs(seconds[after] - seconds))


def _fill_in_world(
    wrist: _Path, inside: slice, known: _Flags, seconds: _PerFrame, T_world_camera: CameraPoses
) -> None:
    """Write the wrist inside a gap from the sightings around it, and meet both ends."""
    path = frames.apply(T_world_camera, wrist)
    filled = smooth(path, known.astype(float), seconds, BEARING_HZ)
    ends = [inside.start - 1, inside.stop]
    share = (seconds[inside] - seconds[ends[0]]) / np.ptp(seconds[ends])
    off = (path - filled)[ends]
    place = filled[inside] + off[0] + share[:, None] * (off[1] - off[0])
    wrist[inside] = frames.apply(frames.inverse(T_world_camera[inside]), place)


def _paths(
    wrist: _Path, motion: CameraMotion, T_world_camera: CameraPoses | None
) -> dict[FillFrame, _Path]:
    """Return the wrist's path in every known coordinate frame, metres, the likeliest first."""
    paths: dict[FillFrame, np.ndarray] = {}
    if T_world_camera is not None:
        paths["world"] = frames.apply(T_world_camera, wrist)
    paths["rotation"] = (motion.rotations @ wrist[..., None])[..., 0]
    return {**paths, "camera": wrist}


def _chosen(
    gap: Gap, paths: dict[FillFrame, _Path], known: _Flags, seconds: _PerFrame, motion: CameraMotion
) -> Gap:
    """Return the gap with the coordinate frame in which the hand's path across it is calmest."""
    a, b = gap.start - 1, gap.stop
    steps = slice(a + 1, b + 1)
    if motion.broken[steps].any():
        return gap
    turn = np.linalg.norm(rotations.log(motion.rotations[a].T @ motion.rotations[steps]), axis=-1)
    sigma = np.sqrt(np.sum(motion.sigma_rad[steps] ** 2))
    if turn.max() < MIN_TURN_RAD or sigma > MAX_SIGMA_RAD:
        return gap

    low, high = _window(gap, seconds, motion.broken)
    before, after = np.arange(low, a + 1), np.arange(b, high)
    before, after = before[known[before]], after[known[after]]

    def unrest(path: _Path) -> float:
        p, v = _at_end(path[before], seconds[before] - seconds[a])
        q, w = _at_end(path[after], seconds[after] - seconds[b])
        return float(np.sum((q - p) ** 2) + SPEED_S**2 * (np.sum(v**2) + np.sum(w**2)))

    doubt: dict[FillFrame, int] = {"world": 0, "rotation": 1, "camera": 2}
    costs = {frame: unrest(path) + doubt[frame] * EVEN_M**2 for frame, path in paths.items()}
    return replace(gap, frame=min(costs, key=lambda frame: costs[frame]))


def _window(gap: Gap, seconds: _PerFrame, broken: _Flags) -> tuple[int, int]:
    """Return first and stop frame of the paths around a gap, within known camera steps."""
    a, b = gap.start - 1, gap.stop
    low = int(np.searchsorted(seconds, seconds[a] - WINDOW_S))
    high = int(np.searchsorted(seconds, seconds[b] + WINDOW_S, side="right"))
    cuts = np.flatnonzero(broken)
    return int(max([low, *cuts[cuts <= a]])), int(min([high, *cuts[cuts > b]]))


def _at_end(
    path: Float[np.ndarray, "N 3"], seconds: Float[np.ndarray, "N"]
) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Return place and velocity at time 0 of a straight line through places."""
    if len(path) == 1:
        return path[0], np.zeros(3)
    slope, place = np.polyfit(seconds, path, 1)
    return place, slope


def trust_in_motion(gap: Gap, motion: CameraMotion) -> Float[np.ndarray, "N"]:
    """Return the factor of each filled frame's quality for the certainty of the camera's turn.

    1 for an exact turn from the nearer sighting, 0.5 at a standard deviation of ``HALF_TRUST_RAD``,
    ``BROKEN_TRUST`` for an unknown step.
    """
    if motion.broken[gap.start : gap.stop + 1].any():
        return np.full(gap.stop - gap.start, BROKEN_TRUST)
    variance = np.cumsum(motion.sigma_rad[gap.start : gap.stop + 1] ** 2)
    nearer = np.minimum(variance[:-1], variance[-1] - variance[:-1])
    return 1 / (1 + nearer / HALF_TRUST_RAD**2)
