"""Smoothing in time, and in which frame a hand moves least while it is out of sight.

A hand at work stays where it is in the room when the head turns away; one that is carried turns
with the head. Which of the two it is, its path before and after a gap shows.
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
from acehand_core.hand.landmark_fit import Pose
from acehand_core.motion import CameraMotion, FillFrame
from acehand_core.types import CameraPoses

# Smoothing in time, in both directions at once, so that there is no lag.
#
# It is penalised least squares (Whittaker 1923): weighted squared distance to the data plus lambda
# times squared second differences in time. Its half-gain frequency fixes lambda. Frames without
# data have weight zero and are filled in from their neighbours.

#: Half-gain frequencies of the smoother. A camera sees bearings well and depth poorly.
BEARING_HZ, DEPTH_HZ, ORIENT_HZ, ANGLE_HZ = 8.0, 2.5, 6.0, 7.0
#: Inside a gap a pull towards equal speed keeps the curve from swinging: it leaves the straight
#: line by at most the speed at the ends times this. (Real and rendered hands with frames withheld
#: are filled best with 0.2 s for bearings and depth, 0.07 s for angles and orientation.)
TENSION_S = 0.13


def spans(
    observed: Bool[np.ndarray, "T"], timestamps_ns: Int[np.ndarray, "T"], max_gap_s: float
) -> list[slice]:
    """Return the frames of each appearance of a hand, from its first to its last sighting.

    One ends where the hand was away for longer than ``max_gap_s``.
    """
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


def smooth_pose(
    pose: Pose, weights: Float[np.ndarray, "T"], seconds: Float[np.ndarray, "T"]
) -> Pose:
    """Smooth a hand in the camera frame; frames of zero weight are filled."""
    z = pose.wrist[:, 2:]
    bearing = smooth(pose.wrist[:, :2] / z, weights, seconds, BEARING_HZ)
    depth = np.exp(smooth(np.log(z), weights, seconds, DEPTH_HZ))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = depth * np.concatenate([bearing, np.ones_like(depth)], axis=1)
    return Pose(orient, np.clip(angles, *articulation.limits()), wrist)


def smooth_turning_pose(
    pose: Pose,
    turns: Float[np.ndarray, "T 3 3"],
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
) -> Pose:
    """Smooth a hand in a frame that its camera turns in; frames of zero weight are filled.

    Directions from the camera, which may lie anywhere in that frame, take the place of bearings,
    and the distance that of depth: a turn of the camera changes neither.

    Args:
        pose: in the camera frame, as is the result.
        turns: takes vectors of the camera frame to the one in which the hand is to be smooth.
    """
    back = np.swapaxes(turns, 1, 2)
    far = np.linalg.norm(pose.wrist, axis=1, keepdims=True)
    direction = smooth(
        (turns @ (pose.wrist / far)[..., None])[..., 0], weights, seconds, BEARING_HZ
    )
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    distance = np.exp(smooth(np.log(far), weights, seconds, DEPTH_HZ))
    angles = smooth(pose.angles, weights, seconds, ANGLE_HZ)
    orient = smooth_rotations(turns @ pose.global_orient, weights, seconds, ORIENT_HZ)
    wrist = distance * (back @ direction[..., None])[..., 0]
    return Pose(back @ orient, np.clip(angles, *articulation.limits()), wrist)


#: A camera that turns by less than this across a gap makes no difference to it.
MIN_TURN_RAD = np.radians(5.0)
#: A turn across a gap that is known no better than this is not known. (Up to it the calmer frame
#: decides: a turn that is wrong by more than the head's makes no path calm.)
MAX_SIGMA_RAD = np.radians(15.0)
#: What the turn's uncertainty takes from the quality of filled frames.
HALF_TRUST_RAD, BROKEN_TRUST = np.radians(5.0), 0.5
#: A hand's path is looked at for so long before and after a gap, and its speed there counts as the
#: way of that time. (On posed clips 0.1 to 0.25 s and 0.2 to 0.35 s choose about as well.)
WINDOW_S, SPEED_S = 0.2, 0.25
#: Where frames differ by less, as when a head looks aside and back, a hand lies still in the room.
EVEN_M = 0.01
#: So long before and after a gap in the camera frame both ways of smoothing are blended.
BLEND_S = 0.2


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames ``start`` to ``stop - 1`` without a sighting, and in which frame they are filled."""

    start: int
    stop: int
    frame: FillFrame = "camera"


def find_gaps(known: Bool[np.ndarray, "T"]) -> list[Gap]:
    """Return the gaps between the first and the last sighting."""
    seen = np.flatnonzero(known)
    ends = np.flatnonzero(np.diff(seen) > 1)
    return [Gap(int(seen[i]) + 1, int(seen[i + 1])) for i in ends]


def smooth_and_fill(
    pose: Pose,
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    motion: CameraMotion | None = None,
    T_world_camera: CameraPoses | None = None,
) -> tuple[Pose, list[Gap]]:
    """Smooth one appearance of a hand and fill its gaps, each in the frame that suits it.

    Args:
        pose: camera frame; what it holds in frames of zero weight does not count.
        weights: relative trust of each frame, 0 where the hand was not seen.
        motion: how the camera turned; None: all is done in the camera frame.
        T_world_camera: where it was, if that is to be trusted; NaN where it is not known.

    Returns:
        The pose in the camera frame, and its gaps.
    """
    gaps = find_gaps(weights > 0)
    in_camera = smooth_pose(pose, weights, seconds)
    if motion is None:
        return in_camera, gaps
    turns = room_turns(motion)
    if (turns == turns[0]).all():
        return in_camera, gaps
    in_room = smooth_turning_pose(pose, turns, weights, seconds)
    paths = _paths(in_room.wrist, motion, T_world_camera)
    gaps = [_chosen(gap, paths, weights > 0, seconds, motion) for gap in gaps]

    return blended(in_camera, in_room, weights, seconds, motion, T_world_camera, gaps), gaps


def room_turns(motion: CameraMotion) -> Float[np.ndarray, "T 3 3"]:
    """Return what takes vectors of the camera frame to one that it turns in, over all frames.

    A step that is not known counts as none.
    """
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
    weights: Float[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    motion: CameraMotion,
    T_world_camera: CameraPoses | None,
    gaps: list[Gap],
) -> Pose:
    """Return the pose with every gap in its frame, all in the camera frame.

    Args:
        in_camera, in_room: smoothed and filled in the camera frame, and in one that it turns in.
    """
    wrist = in_room.wrist.copy()
    for gap in gaps:
        if gap.frame == "world" and T_world_camera is not None:
            low, high = _window(gap, seconds, motion.broken)
            rows = slice(low, high)
            _fill_in_world(
                wrist[rows], replace(gap, start=gap.start - low, stop=gap.stop - low),
                weights[rows] > 0, seconds[rows], T_world_camera[rows],
            )  # fmt: skip

    share = _share_of_camera(gaps, seconds)
    orient = in_room.global_orient.copy()
    mixed = (share > 0) & (share < 1)
    orient[mixed] = rotations.slerp(orient[mixed], in_camera.global_orient[mixed], share[mixed])
    wrist[mixed] += share[mixed, None] * (in_camera.wrist - wrist)[mixed]
    orient[share == 1], wrist[share == 1] = (
        in_camera.global_orient[share == 1], in_camera.wrist[share == 1]
    )  # fmt: skip
    return Pose(orient, in_camera.angles, wrist)


def _share_of_camera(gaps: list[Gap], seconds: Float[np.ndarray, "T"]) -> Float[np.ndarray, "T"]:
    """Return 1 in gaps filled in the camera frame, 0 in others, and what leads from 1 to 0."""
    in_camera, in_other = np.zeros((2, len(seconds)), bool)
    for gap in gaps:
        (in_camera if gap.frame == "camera" else in_other)[gap.start : gap.stop] = True
    to_camera = _time_to(in_camera, seconds)
    reach = np.minimum(BLEND_S, to_camera + _time_to(in_other, seconds))
    return np.clip(1 - to_camera / reach, 0, 1)


def _time_to(
    marked: Bool[np.ndarray, "T"], seconds: Float[np.ndarray, "T"]
) -> Float[np.ndarray, "T"]:
    """Return how far from each frame the nearest marked one is; infinite where there is none."""
    there = np.flatnonzero(marked)
    if len(there) == 0:
        return np.full(len(seconds), np.inf)
    after = np.searchsorted(there, np.arange(len(seconds)))
    before, after = there[np.maximum(after - 1, 0)], there[np.minimum(after, len(there) - 1)]
    return np.minimum(np.abs(seconds - seconds[before]), np.abs(seconds[after] - seconds))


def _fill_in_world(
    wrist: Float[np.ndarray, "N 3"],
    gap: Gap,
    known: Bool[np.ndarray, "N"],
    seconds: Float[np.ndarray, "N"],
    T_world_camera: CameraPoses,
) -> None:
    """Write the wrist inside a gap, from the sightings about it; both ends meet what was seen."""
    path = frames.apply(T_world_camera, wrist)
    filled = smooth(path, known.astype(float), seconds, BEARING_HZ)
    ends, inside = [gap.start - 1, gap.stop], slice(gap.start, gap.stop)
    share = (seconds[inside] - seconds[ends[0]]) / np.ptp(seconds[ends])
    off = (path - filled)[ends]
    place = filled[inside] + off[0] + share[:, None] * (off[1] - off[0])
    wrist[inside] = frames.apply(frames.inverse(T_world_camera[inside]), place)


def _paths(
    wrist: Float[np.ndarray, "T 3"], motion: CameraMotion, T_world_camera: CameraPoses | None
) -> dict[FillFrame, Float[np.ndarray, "T 3"]]:
    """Return the wrist's path in every frame that is known, metres."""
    paths: dict[FillFrame, np.ndarray] = {
        "camera": wrist,
        "rotation": (motion.rotations @ wrist[..., None])[..., 0],
    }
    if T_world_camera is not None:
        paths["world"] = frames.apply(T_world_camera, wrist)
    return paths


def _chosen(
    gap: Gap,
    paths: dict[FillFrame, Float[np.ndarray, "T 3"]],
    known: Bool[np.ndarray, "T"],
    seconds: Float[np.ndarray, "T"],
    motion: CameraMotion,
) -> Gap:
    """Return the gap with the frame in which the hand's path across it is calmest."""
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

    def unrest(path: Float[np.ndarray, "T 3"]) -> float:
        p, v = _at_end(path[before], seconds[before] - seconds[a])
        q, w = _at_end(path[after], seconds[after] - seconds[b])
        return float(np.sum((q - p) ** 2) + SPEED_S**2 * (np.sum(v**2) + np.sum(w**2)))

    likely: tuple[FillFrame, ...] = ("world", "rotation", "camera")
    costs = {
        frame: unrest(paths[frame]) + doubt * EVEN_M**2
        for doubt, frame in enumerate(likely) if frame in paths
    }  # fmt: skip
    return replace(gap, frame=min(costs, key=lambda frame: costs[frame]))


def _window(
    gap: Gap, seconds: Float[np.ndarray, "T"], broken: Bool[np.ndarray, "T"]
) -> tuple[int, int]:
    """Return the frames about a gap, from the first to behind the last, that tell how it is left.

    None lies beyond a step that is not known.
    """
    a, b = gap.start - 1, gap.stop
    low = int(np.searchsorted(seconds, seconds[a] - WINDOW_S))
    high = int(np.searchsorted(seconds, seconds[b] + WINDOW_S, side="right"))
    cuts = np.flatnonzero(broken)
    return int(max([low, *cuts[cuts <= a]])), int(min([high, *cuts[cuts > b]]))


def _at_end(
    path: Float[np.ndarray, "N 3"], seconds: Float[np.ndarray, "N"]
) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Return place and speed at time 0 of a hand on a straight line through its places."""
    if len(path) == 1:
        return path[0], np.zeros(3)
    slope, place = np.polyfit(seconds, path, 1)
    return place, slope


def trust_in_motion(gap: Gap, motion: CameraMotion) -> Float[np.ndarray, "N"]:
    """Return by what factor the quality of each frame of a gap falls for the camera's turn.

    It is 1 where the turn from the nearer sighting is known exactly, a half where one standard
    deviation of it is ``HALF_TRUST_RAD``, and ``BROKEN_TRUST`` where a step is not known.
    """
    if motion.broken[gap.start : gap.stop + 1].any():
        return np.full(gap.stop - gap.start, BROKEN_TRUST)
    variance = np.cumsum(motion.sigma_rad[gap.start : gap.stop + 1] ** 2)
    nearer = np.minimum(variance[:-1], variance[-1] - variance[:-1])
    return 1 / (1 + nearer / HALF_TRUST_RAD**2)
