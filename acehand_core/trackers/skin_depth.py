"""Depth of the skin at a hand's points, from depth pictures of any camera of the rig.

Pictures need not be registered to the colour camera, nor taken at its frames' times.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from jaxtyping import Float, Float32, Int
from scipy.spatial import cKDTree

from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.evidence import LEAST_READINGS, SkinDepth, skin_points, thickness
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import Depth, HandMotion, neighbours
from acehand_core.trackers.mediapipe.agreement import OTHER_UNIT, depth_agreement
from acehand_core.trackers.mediapipe.gaps import METRIC_DEPTH_HZ, smooth, spans
from acehand_core.types import SIDES, DepthImage, Progress, TimestampsNs

#: Where hands are searched in depth pictures, metres.
NEAREST_M, FARTHEST_M = 0.1, 2.0
#: Radius around a point in which readings count, in shares of the hand's size in the picture, and
#: at least in pixels of either camera; readings further behind the nearest are of something else.
RADIUS, LEAST_RADIUS_PX, SAME_SURFACE_M = 0.03, 1.5, 0.015
LEAST_SHARE = 0.2
#: So far outside of a hand's outline, in shares of its size, depth steps back by more than so many
#: metres, but at the landmarks beyond which the forearm follows.
OUTSIDE, STEP_M, _AT_THE_ARM = 0.25, 0.008, (0, 1)
#: Pixels of a depth picture looked at around a hand.
MOST_PIXELS = 40_000
#: Hands without readings are moved like those before and after, over up to so long.
MOST_BRIDGED_S = 0.5
#: Readings are interpolated between pictures that are at most so many of their periods apart.
MOST_PERIODS = 2.5

Landmarks = Float[np.ndarray, "T S 21 2"]


def skin_depth(
    depth: Depth, camera: Camera, landmarks: Landmarks, times: TimestampsNs, progress: Progress
) -> list[SkinDepth]:
    """Return the readings of each of S hands at T times.

    Args:
        landmarks: pixels of ``camera``, NaN where a hand is not seen.
        times: of the landmarks, on the clock of the depth pictures.
    """
    taken = depth.timestamps_ns
    period = float(np.median(np.diff(taken))) if len(taken) > 1 else np.inf
    reach = MOST_PERIODS * period
    steps = np.clip(np.searchsorted(times, taken, side="right") - 1, 0, max(len(times) - 2, 0))
    z = np.full((len(taken), landmarks.shape[1], 41), np.nan)
    sigma = np.full_like(z, np.inf)
    reader = _Reader(depth, camera)

    for k, step in enumerate(steps.tolist()):
        # The hands at the picture's time.
        after = min(step + 1, len(times) - 1)
        wait = max(float(times[after] - times[step]), 1.0)
        share = float(taken[k] - times[step]) / wait
        if not -0.75 <= share <= 1.75:  # before the first or after the last frame
            continue
        hands = landmarks[step] + share * (landmarks[after] - landmarks[step])
        near = landmarks[step if share < 0.5 else after]
        hands = np.where(np.isnan(hands), near, hands)
        seen = np.isfinite(hands).all((1, 2))
        if seen.any():
            z[k, seen], sigma[k, seen] = reader.read(k, hands[seen])
        progress("depth", k + 1, len(taken))
    return [_at_times(z[:, s], sigma[:, s], taken, times, reach) for s in range(z.shape[1])]


def _at_times(
    z: Float[np.ndarray, "D 41"],
    sigma: Float[np.ndarray, "D 41"],
    taken: Int[np.ndarray, "D"],
    times: TimestampsNs,
    reach: float,
) -> SkinDepth:
    """Interpolate readings between the pictures before and after each time."""
    before, after, share = neighbours(taken, times)
    near = np.where(share < 0.5, before, after)
    bridged = (after > before) & (taken[after] - taken[before] <= reach)
    both = bridged[:, None] & np.isfinite(z[before]) & np.isfinite(z[after])
    between = z[before] + share[:, None] * (z[after] - z[before])
    depth = np.where(both, between, z[near])
    close = (np.abs(taken[near] - times) <= reach / MOST_PERIODS / 2 + 1)[:, None]
    known = (both | close) & np.isfinite(depth)
    return SkinDepth(np.where(known, depth, 0.0), np.where(known, sigma[near], np.inf))


def outline_share(
    depth: Depth, camera: Camera, hands: Float[np.ndarray, "N 21 2"], times: TimestampsNs
) -> float:
    """Return at which share of its outline a hand stands out from what is behind it.

    The median of N hands, pixels of ``camera`` at N times; NaN: no readings on both sides. Depth
    that shows something else at the hands steps back at about half.
    """
    reader, shares = _Reader(depth, camera), list[float]()
    before, after, way = neighbours(depth.timestamps_ns, times)
    for index, hand in zip(np.where(way < 0.5, before, after).tolist(), hands, strict=True):
        away = hand - hand.mean(0)
        away *= OUTSIDE * np.ptp(hand, axis=0).max() / np.linalg.norm(away, axis=1, keepdims=True)
        z, _ = reader.read(index, np.stack([hand, hand + away]))
        outline = cv2.convexHull(hand.astype(np.float32), returnPoints=False).ravel()
        step = np.diff(z[:, np.setdiff1d(outline, _AT_THE_ARM)], axis=0)
        step = step[np.isfinite(step)]
        if len(step) > 1:
            shares.append(float((step > STEP_M).mean()))
    return float(np.median(shares)) if shares else np.nan


def moved_by_depth(motion: HandMotion, depth: Depth, progress: Progress) -> HandMotion:
    """Return hands moved along their rays to their depth readings; their shape stays.

    For trackers that do not use depth themselves; only the distance is corrected, unless it is in
    another unit.
    """
    assert motion.camera is not None
    pixels = motion.camera.project(motion.joints_camera)
    pixels[~motion.known] = np.nan
    read = skin_depth(depth, motion.camera, pixels, motion.timestamps_ns, progress)
    seconds = (motion.timestamps_ns - motion.timestamps_ns[0]) * 1e-9
    shift, logs = np.zeros_like(motion.translation), [np.zeros(0)]
    evidence = motion.known.astype(np.int8)

    for slot, (side, skin) in enumerate(zip(SIDES, read, strict=True)):
        joints = motion.joints_camera[:, slot]
        rest = CapsuleHand().rest_keypoints(side, np.zeros(10))
        below = thickness(motion.global_orient[:, slot], side, rest)
        placed = np.isfinite(skin.sigma).sum(1) >= LEAST_READINGS
        if not placed.any():
            continue
        further = np.where(np.isfinite(skin.sigma), skin.z + below, np.nan)
        further = further[placed] - skin_points(joints[placed])[..., 2]
        share = np.zeros(len(joints))
        share[placed] = np.nanmedian(further, axis=1) / joints[placed, WRIST, 2]
        logs.append(np.log1p(np.maximum(share[placed], -0.99)))
        for rows in spans(placed, motion.timestamps_ns, MOST_BRIDGED_S):
            weights = placed[rows].astype(float)
            smoothed = smooth(share[rows, None], weights, seconds[rows], METRIC_DEPTH_HZ)
            shift[rows, slot] = smoothed * joints[rows, WRIST]
            evidence[rows, slot] |= 4

    shift[~motion.known] = 0.0
    log, used = np.concatenate(logs), int((evidence & 4 > 0).any(1).sum())
    unknown = np.zeros_like(log)
    one, _ = depth_agreement(log, unknown, unknown, used, known_size=False)

    # How well other trackers know a distance is unknown: only another unit contradicts them.
    wrong = one.scale is not None and abs(np.log(one.scale)) > OTHER_UNIT
    one = replace(one, used=0 if wrong else used, doubt=one.doubt if wrong else "")
    motion = replace(motion, provenance=replace(motion.provenance, agreement=(one,)))
    if wrong:
        return motion
    return replace(
        motion,
        translation=motion.translation + shift,
        joints_camera=motion.joints_camera + shift[:, :, None],
        evidence=evidence * motion.known,
    )


class _Reader:
    """Reads depth pictures around hands, in the colour camera's axes and pixels."""

    def __init__(self, depth: Depth, camera: Camera) -> None:
        self._depth, self._camera = depth, camera
        rays = depth.camera.all_rays()
        with np.errstate(divide="ignore", invalid="ignore"):
            self._rays = (rays / rays[..., 2:]).astype(np.float32)
        # At least the depth camera's own pixels around a point.
        self._least_px = max(LEAST_RADIUS_PX, LEAST_RADIUS_PX * camera.fx / depth.camera.fx)

    def read(
        self, index: int, hands: Float[np.ndarray, "S 21 2"]
    ) -> tuple[Float[np.ndarray, "S 41"], Float[np.ndarray, "S 41"]]:
        """Return z and its standard deviation, NaN and infinite without a reading."""
        picture = self._depth.frames.at(index)
        points = skin_points(hands)
        z, sigma = np.full(points.shape[:2], np.nan), np.full(points.shape[:2], np.inf)

        for s, hand in enumerate(points):
            size = float(np.ptp(hand, axis=0).max())
            radius = max(RADIUS * size, self._least_px)
            cloud = self._around(picture, hand, radius)
            if len(cloud) == 0:
                continue
            tree = cKDTree(self._camera.project(cloud))
            for k, near in enumerate(tree.query_ball_point(hand, radius)):
                if not near:
                    continue
                deep = np.sort(cloud[near, 2])
                front = deep[int(LEAST_SHARE * len(deep))]
                z[s, k] = np.median(deep[np.abs(deep - front) < SAME_SURFACE_M])
                sigma[s, k] = self._depth.sigma_per_m * z[s, k] ** 2
        return z, sigma

    def _around(
        self, picture: DepthImage, hand: Float[np.ndarray, "41 2"], radius: float
    ) -> Float[np.ndarray, "N 3"]:
        """Return the points around a hand in the colour camera's axes."""
        low, high = hand.min(0) - 2 * radius, hand.max(0) + 2 * radius
        corners = np.array([[x, y] for x in (low[0], high[0]) for y in (low[1], high[1])])
        rays = self._camera.unproject(corners)
        box = np.concatenate([rays * far for far in (NEAREST_M, FARTHEST_M)])
        T_depth_camera = frames.inverse(self._depth.T_camera_depth)
        pixels = self._depth.camera.project(frames.apply(T_depth_camera, box))
        if not np.isfinite(pixels).any():
            return np.empty((0, 3))
        height, width = picture.shape
        x0, y0 = np.clip(np.floor(np.nanmin(pixels, axis=0)), 0, [width, height]).astype(int)
        x1, y1 = np.clip(np.ceil(np.nanmax(pixels, axis=0)) + 1, 0, [width, height]).astype(int)

        # Far more pixels than the points need only cost time.
        step = max(1, int(np.sqrt((x1 - x0) * (y1 - y0) / MOST_PIXELS)))
        z: Float32[np.ndarray, "_ _"] = picture[y0:y1:step, x0:x1:step]
        cloud = (self._rays[y0:y1:step, x0:x1:step] * z[..., None])[np.isfinite(z)]
        cloud = frames.apply(self._depth.T_camera_depth, cloud.astype(float))
        if len(cloud):
            pixels = self._camera.project(cloud)
            cloud = cloud[((pixels > low) & (pixels < high)).all(1)]
        return cloud
