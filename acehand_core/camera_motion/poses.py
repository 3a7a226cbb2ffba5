"""Full poses of a moving camera from its pictures, or why they are not to be trusted.

Windows of frames are solved one by one (``recall`` follows points, ``adjustment`` fits poses) and
joined where they overlap, so that memory is bounded. Each is then solved again from halves of its
points: where the halves tell of different paths, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from acehand_core.camera_motion.adjustment import (
    ACCELERATION,
    Scene,
    Sightings,
    between_nodes,
    cleaned,
    grown,
)
from acehand_core.camera_motion.estimate import LONGEST_SIDE, prepared
from acehand_core.camera_motion.pose import tangents
from acehand_core.camera_motion.recall import Follower, Tracks
from acehand_core.camera_motion.tracks import Grey, Mask
from acehand_core.errors import InputError
from acehand_core.geometry import frames as rigid
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion
from acehand_core.types import CameraPoses, Progress, no_progress

#: Frames of a window, how many of them the next one has as well, and how many are solved at first.
WINDOW, OVERLAP, _NODES = 160, 50, 90
#: A pose of fewer points is not known.
_FEWEST = 12
#: What a path must keep to be trusted; chosen on clips of ``acehand synth --seed 902``.
LEAST_AGREEING = 0.75  # share of sightings that agree with a rigid scene
LEAST_POINTS = 40  # in nine of ten frames
LEAST_KNOWN = 0.8  # share of the frames
LEAST_PARALLAX_DEG = 1.0  # median over points, of the rays to them
MOST_ANGLE_DEG = 0.15  # standard deviation of a turn
#: Of paths from halves of the points, at random so many times (rms), and from either side; in their
#: extent. The path from all points is about half as far off as its halves are from each other.
_SPLITS = 3
MOST_APART_DEG, MOST_APART, MOST_APART_SIDES = 0.5, 0.04, 0.12
#: Neighbours of two windows are points this close by, rad; so many at least give a scale.
_NEIGHBOURS, _FEWEST_NEIGHBOURS = 0.02, 30
#: How far two windows may be apart where they overlap, in extents of the path, and in turn.
_JOIN_APART, _JOIN_APART_DEG = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class CameraPath:
    """Where a camera was over T frames, and some of what it saw.

    Attributes:
        T_world_camera: the world is the camera frame of the first known frame, its unit of length
            unknown until ``scale.scaled`` was called; NaN where the pose is not known.
        confidence: 0 to 1 per frame; 0 where the pose is not known.
        points: world points of the scene that does not move.
        seen: first and last frame that shows each.
        camera: of the frames.
        reason: empty where the path is to be trusted, else why it is refused; every pose is then
            NaN, for a rotation is no pose.
    """

    T_world_camera: CameraPoses
    confidence: Float[np.ndarray, "T"]
    points: Float[np.ndarray, "P 3"]
    seen: Int[np.ndarray, "P 2"]
    camera: Camera
    reason: str

    @property
    def known(self) -> np.ndarray:
        """Which frames have a pose (T,)."""
        return np.asarray(np.isfinite(self.T_world_camera).all((1, 2)))

    def moved(self, scale: float, T_new_world: np.ndarray) -> CameraPath:
        """Return the path in another world: lengths times ``scale``, then a rigid motion."""
        poses = self.T_world_camera.copy()
        poses[:, :3, 3] *= scale
        points = rigid.apply(T_new_world, scale * self.points)
        return replace(self, T_world_camera=T_new_world @ poses, points=points)


@dataclass(frozen=True, slots=True)
class Solved:
    """A window: numbers of its known frames, their poses and confidence, points; why not."""

    frame: Int[np.ndarray, "F"]
    poses: Float[np.ndarray, "F 4 4"]
    confidence: Float[np.ndarray, "F"]
    points: Float[np.ndarray, "P 3"]
    seen: Int[np.ndarray, "P 2"]
    reason: str

    def moved(self, scale: float, R: np.ndarray, t: np.ndarray) -> Solved:
        poses = self.poses.copy()
        poses[:, :3, 3] *= scale
        motion = rigid.rigid(R, t)
        return replace(self, poses=motion @ poses, points=rigid.apply(motion, scale * self.points))


def estimate_path(
    frames: Iterable[np.ndarray],
    camera: Camera,
    fps: float,
    rotation: CameraMotion,
    mask_of: Callable[[int], Mask | None] | None = None,
    progress: Progress = no_progress,
) -> CameraPath:
    """Estimate the poses of a camera, or say why they cannot be known from these pictures.

    Args:
        frames: (H, W) grey or (H, W, 3) RGB pictures, uint8, of the camera's size; read once.
        camera: of these pictures.
        fps: their rate.
        rotation: of the same frames, as ``estimate_rotations`` returns it; doubtful steps do not
            count.
        mask_of: from the number of a frame to the pixels that move by themselves, (H, W).
        progress: told of frames.

    Raises:
        InputError: pictures or masks of another size, not as many frames as rotations, or a rate
            that is not positive.
    """
    if not (np.isfinite(fps) and fps > 0):
        raise InputError(f"fps {fps}: the rate of the frames must be a positive number.")
    count = len(rotation)
    # No pose is built on a step that may be lost.
    rotation = replace(rotation, broken=rotation.doubtful)
    scale = min(1.0, LONGEST_SIDE / max(camera.width, camera.height))
    size = (max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))
    small = camera if scale == 1.0 else camera.rescaled(*size)
    solved: list[Solved] = []

    def shown() -> Iterator[tuple[Grey, Mask | None]]:
        number = -1
        for number, picture in enumerate(frames):
            if number >= count:
                raise InputError(f"frame {number}: there are rotations of {count} frames only.")
            progress("camera poses", number, count)
            mask = mask_of(number) if mask_of is not None else None
            yield prepared(number, picture, mask, camera, size)
        if number + 1 < count:
            raise InputError(f"{number + 1} frames: there are rotations of {count}.")

    for start, window in windows(shown()):
        part = rotation.part(start, start + len(window))
        follower = Follower(small, part)
        for number, (grey, mask) in enumerate(window):
            follower.step(number, grey, mask)
        one = solve(follower.tracks(), part, fps)
        solved.append(replace(one, frame=one.frame + start, seen=one.seen + start))
    progress("camera poses", count, count)
    return joined(solved, count, camera)


def windows(
    frames: Iterable[tuple[Grey, Mask | None]],
) -> Iterator[tuple[int, list[tuple[Grey, Mask | None]]]]:
    """Yield the first frame of each window, and its frames."""
    start, kept, fresh = 0, [], 0
    for frame in frames:
        kept.append(frame)
        fresh += 1
        if len(kept) == WINDOW:
            yield start, kept
            start, kept, fresh = start + WINDOW - OVERLAP, kept[-OVERLAP:], 0
    if fresh:
        yield start, kept


def solve(tracks: Tracks, rotation: CameraMotion, fps: float) -> Solved:
    """Return the poses of a window from what was followed in it; ``reason`` says why not."""
    start = _begun(tracks, rotation, fps)
    total = len(rotation)
    if len(start.R) < 3 or len(start.host) < LEAST_POINTS:
        return _nothing("there is too little texture to follow")
    nodes = _nodes(start)
    everything = np.ones(len(start.seen.frame), bool)
    coarse = grown(start.only(everything, nodes, least=2)[0])
    for scale in (4.0, 2.0):
        coarse = coarse.adjusted(scale, rounds=8, gain=1e-4)
    if len(coarse.seen.frame) == 0:
        return _nothing("there is too little texture to follow")
    agreeing = float((coarse.off() < 4.0).mean())
    coarse = _settled(cleaned(coarse))

    reason = _doubt(coarse, agreeing)
    if reason:
        return _nothing(reason)
    scene = coarse
    if len(nodes) < len(start.R):
        scene = cleaned(between_nodes(start, coarse)).adjusted(5.0, rounds=4)
    angle, place = scene.uncertainty()
    known = scene.shown >= _FEWEST
    if known.sum() < LEAST_KNOWN * total:
        return _nothing("too few frames show what the others show")
    sure = 1 / (1 + (angle / 0.5) ** 2 + (place / 0.1) ** 2)
    confidence = sure * np.minimum(scene.shown / 60, 1.0)

    T = np.tile(np.eye(4), (len(scene.R), 1, 1))
    T[:, :3, :3], T[:, :3, 3] = scene.R, scene.centre
    first = np.full(len(scene.host), total)
    last = scene.number[scene.host].copy()
    at = scene.number[scene.seen.frame]
    np.minimum.at(first, scene.seen.point, at)
    np.maximum.at(last, scene.seen.point, at)
    first = np.minimum(first, scene.number[scene.host])
    sharp = scene.inverse_distance > 0.05  # others are too far to have a place
    return Solved(
        scene.number[known], T[known], confidence[known], scene.points[sharp],
        np.stack([first, last], axis=1)[sharp], "",
    )  # fmt: skip


def _nothing(reason: str) -> Solved:
    empty = np.zeros((0, 4, 4))
    return Solved(
        np.zeros(0, int), empty, np.zeros(0), np.zeros((0, 3)), np.zeros((0, 2), int), reason
    )


def _begun(tracks: Tracks, rotation: CameraMotion, fps: float) -> Scene:
    """Return a scene of the frames whose rotation is known: a camera that only turns."""
    R, piece = rotation.rotations.copy(), rotation.piece
    joined = piece == np.bincount(piece).argmax()
    waiting = list(tracks.links)
    while True:
        link = next((link for link in waiting if joined[link[0]] != joined[link[1]]), None)
        if link is None:
            break
        a, b, turn = link
        new, fix = (
            (piece[b], R[a] @ turn @ R[b].T) if joined[a] else (piece[a], R[b] @ turn.T @ R[a].T)
        )
        R[piece == new] = fix @ R[piece == new]
        joined = joined | (piece == new)

    count, K = len(R), len(tracks.host)
    across = tracks.known @ tangents(tracks.bearing)
    scene = Scene(
        np.arange(count), np.arange(K), R, np.zeros((count, 3)), tracks.host, tracks.bearing_host,
        np.ones(K), R, piece, Sightings(tracks.frame, tracks.point, tracks.bearing, across),
        ACCELERATION * (30.0 / fps) ** 2,
    )  # fmt: skip
    return scene.only(np.ones(len(tracks.frame), bool), np.flatnonzero(joined))[0]


def _nodes(scene: Scene) -> np.ndarray:
    """Return the frames that are solved at first: evenly, and all hosts."""
    F = len(scene.R)
    stride = -(-F // _NODES)
    return np.unique(np.concatenate([np.arange(0, F, stride), scene.host, [F - 1]]))


def _settled(scene: Scene) -> Scene:
    # Outliers are gone: a wide scale lets every sighting count.
    for scale in (6.0, 5.0):
        scene = scene.adjusted(scale, gain=1e-4)
    return scene


def _doubt(scene: Scene, agreeing: float) -> str:
    """Return why the poses of a window are not to be trusted; empty where they are."""
    if np.quantile(scene.shown, 0.1) < LEAST_POINTS:
        return "too few points can be followed through the pictures"
    if agreeing < LEAST_AGREEING:
        return f"only {100 * agreeing:.0f} % of what is followed moves as a scene at rest would"
    if parallax(scene) < LEAST_PARALLAX_DEG:
        return "the camera turns but hardly moves, so that distances are not seen"
    angle, _ = scene.uncertainty()
    if np.median(angle) > MOST_ANGLE_DEG:
        return "the pictures leave the turn of the camera too uncertain"

    # Points at random, a few times, and those to the one side and to the other.
    ahead = np.einsum("kij,kj->ki", scene.R[scene.host], scene.bearing_host)
    widest = np.linalg.svd(ahead - ahead.mean(0), full_matrices=False)[2][0]
    side = ahead @ widest
    rng = np.random.default_rng(0)
    shuffled = [rng.random(len(scene.host)) < 0.5 for _ in range(_SPLITS)]
    for halves, most_degrees, most in (
        (shuffled, MOST_APART_DEG, MOST_APART),
        (
            [side > np.median(side)],
            np.inf,
            MOST_APART_SIDES,
        ),  # half a picture hardly tells of turns
    ):
        pairs = np.array([_apart(scene, half) for half in halves])
        degrees, apart = np.sqrt((pairs**2).mean(0)).tolist()
        if not (degrees < most_degrees and apart < most):
            return (
                f"two halves of the scene tell of paths that are {100 * min(apart, 9.99):.0f} % "
                f"and {min(degrees, 180.0):.1f} degrees apart"
            )
    return ""


def parallax(scene: Scene) -> float:
    """Return the median over points of the largest angle between two rays to it, degrees."""
    seen = scene.seen
    host = scene.host[seen.point]
    there = np.einsum("nij,nj->ni", scene.R[seen.frame], seen.bearing)
    here = np.einsum("nij,nj->ni", scene.R[host], scene.bearing_host[seen.point])
    angle = np.linalg.norm(np.cross(there, here), axis=1)
    largest = np.zeros(len(scene.host))
    np.maximum.at(largest, seen.point, angle)
    return float(np.degrees(np.median(largest)))


def _apart(scene: Scene, half: np.ndarray) -> tuple[float, float]:
    """Return how far paths from the points in ``half`` and from the others are apart.

    In degrees, and in extents of the path, both rms after the best similarity.
    """
    paths = []
    for which in (half, ~half):
        part = scene.only(which[scene.seen.point])[0]
        if not len(part.seen.frame):
            return np.inf, np.inf
        for scale in (6.0, 5.0):
            part = part.adjusted(scale, rounds=8, gain=1e-4)
        paths.append((part.R, part.centre))
    return paths_apart(*paths[0], *paths[1])


def paths_apart(
    R_a: Float[np.ndarray, "F 3 3"],
    centre_a: Float[np.ndarray, "F 3"],
    R_b: Float[np.ndarray, "F 3 3"],
    centre_b: Float[np.ndarray, "F 3"],
) -> tuple[float, float]:
    """Return the rms distance of path a from path b after one similarity of poses.

    Turns in degrees; places in extents of path b (its rms distance from its middle). The
    similarity's rotation is the one that fits turns best, not places: of a short path these say
    nothing of it.
    """
    turn = rotations.project_to_rotation((R_b @ np.swapaxes(R_a, 1, 2)).sum(0))
    degrees = np.degrees(rotations.angle_between(turn @ R_a, R_b))
    a, b = (centre_a - centre_a.mean(0)) @ turn.T, centre_b - centre_b.mean(0)
    scale = float((a * b).sum() / max(float((a * a).sum()), 1e-18))
    off = np.sqrt(((scale * a - b) ** 2).sum(1).mean())
    extent = np.sqrt((b * b).sum(1).mean())
    return float(np.sqrt((degrees**2).mean())), float(off / max(extent, 1e-12))


def joined(solved: list[Solved], count: int, camera: Camera) -> CameraPath:
    """Return the path of windows that follow each other, each with frames of the one before."""
    refused = next((one for one in solved if one.reason), None)
    if refused is not None or not solved:
        if refused is None:
            return _refused("there are no frames", count, camera)
        number = next(i for i, one in enumerate(solved, 1) if one is refused)
        where = f"window {number} of {len(solved)}: " if len(solved) > 1 else ""
        return _refused(where + refused.reason, count, camera)
    whole = [solved[0]]
    for one in solved[1:]:
        placed = _placed(whole[-1], one)
        if placed is None:
            return _refused(
                f"from frame {one.frame[0]} on the place is not the one seen before", count, camera
            )
        whole.append(placed)

    T, confidence = np.full((count, 4, 4), np.nan), np.zeros(count)
    for one in reversed(whole):  # where two overlap the earlier counts
        T[one.frame], confidence[one.frame] = one.poses, one.confidence
    first = rigid.inverse(T[np.flatnonzero(confidence > 0)[0]])
    return CameraPath(
        first @ T,
        confidence,
        rigid.apply(first, np.concatenate([one.points for one in whole])),
        np.concatenate([one.seen for one in whole]),
        camera,
        "",
    )


def _refused(reason: str, count: int, camera: Camera) -> CameraPath:
    nothing = np.full((count, 4, 4), np.nan)
    return CameraPath(
        nothing, np.zeros(count), np.zeros((0, 3)), np.zeros((0, 2), int), camera, reason
    )


def _placed(before: Solved, after: Solved) -> Solved | None:
    """Return the later window in the world of the one before, or None where they do not fit."""
    both, i, j = np.intersect1d(before.frame, after.frame, return_indices=True)
    if len(both) < 3:
        return None
    a, b = before.poses[i], after.poses[j]

    # How far neighbouring points are, as either window says, also of a camera that rests.
    ratios = []
    for t, pose_a, pose_b in zip(both[::5].tolist(), a[::5], b[::5], strict=True):
        near = [_rays(window, pose, t) for window, pose in ((before, pose_a), (after, pose_b))]
        if min(len(rays) for rays, _ in near) == 0:
            continue
        apart, which = cKDTree(near[0][0]).query(near[1][0])
        close = apart < _NEIGHBOURS
        ratios.append(np.log(near[0][1][which[close]] / near[1][1][close]))
    ratio = np.concatenate(ratios) if ratios else np.zeros(0)
    if len(ratio) < _FEWEST_NEIGHBOURS:
        return None
    scale = float(np.exp(np.median(ratio)))

    R = rotations.project_to_rotation((a[:, :3, :3] @ np.swapaxes(b[:, :3, :3], 1, 2)).sum(0))
    t = (a[:, :3, 3] - scale * b[:, :3, 3] @ R.T).mean(0)
    moved = after.moved(scale, R, t)
    turned = np.degrees(rotations.angle_between(moved.poses[j][:, :3, :3], a[:, :3, :3]))
    off = np.linalg.norm(moved.poses[j][:, :3, 3] - a[:, :3, 3], axis=1)
    places = np.concatenate([before.poses[:, :3, 3], moved.poses[:, :3, 3]])
    extent = np.sqrt(((places - places.mean(0)) ** 2).sum(1).mean())
    apart_share = np.sqrt((off**2).mean()) / max(float(extent), 1e-12)
    fits = apart_share < _JOIN_APART and np.sqrt((turned**2).mean()) < _JOIN_APART_DEG
    return moved if fits else None


def _rays(window: Solved, pose: np.ndarray, frame: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit directions of the points that a frame may show, and their distances."""
    shown = (window.seen[:, 0] <= frame) & (window.seen[:, 1] >= frame)
    at = rigid.apply(rigid.inverse(pose), window.points[shown])
    distance = np.linalg.norm(at, axis=1)
    return at / distance[:, None], distance
