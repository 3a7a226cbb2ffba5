"""Rotation of a moving camera from whole pictures; in segments, with masked hands."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

from acehand_core.errors import AcehandError, InputError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, Recording, runs
from acehand_core.processes import SharedProgress, in_threads, one_blas_thread
from acehand_core.safe_files import ArrayCache
from acehand_core.types import Progress, Rotation, no_progress

Mask = Bool[np.ndarray, "H W"]
Landmarks = Float[np.ndarray, "T S 21 2"]
#: A frame at each of ``_WIDTHS``: blurred picture, and its usable pixels.
Small = list[tuple[Float[np.ndarray, "_ _"], Bool[np.ndarray, "_ _"]]]

#: Dark borders: largest grey level, and dilation as a share of the width.
_BLACK, _BORDER = 18, 0.02
#: Dilation of a hand as a share of its length (wrist to middle fingertip when stretched).
_MARGIN = 0.25
#: Covered length of a forearm, and half its width, in palm lengths (wrist to knuckles).
_FOREARM, _HALF_WIDTH = 3.5, 0.55

#: Widths of the small pictures, the first for the search, the last for the result.
_WIDTHS = (40, 80, 160)
#: Range and step of the search.
_REACH_DEG, _STEP_DEG = 30.0, 3.0
#: Scale of brightness differences from other causes than the camera.
_SCALE = 12.0
_MOST_PIXELS, _SEARCHED_PIXELS = 1500, 400
#: Least share of the pixels in both pictures.
_LEAST_SHARED = 0.25
#: Largest turn of an iteration, and the turn that ends them, rad.
_STRIDE, _CLOSE = np.radians([6.0, 0.03])

#: Longer side of the pictures, in pixels; larger ones are reduced.
LONGEST_SIDE = 640
#: Least correlation and overlap of frames of one scene.
_LEAST_LIKENESS, _LEAST_OVERLAP = 0.6, 0.25
#: Below this correlation of the turn near the last one, all turns are searched.
_SURE_LIKENESS = 0.75
#: Standard deviation of a turn: a constant in rad, and a share of the turn.
_SIGMA, _SIGMA_SHARE = np.radians(0.2), 0.06

#: Part of the cache key; raise it with every change of results.
_CACHE_VERSION = 4
#: Frames of a segment, and of its lead into the segment before, which finds the dark border.
SEGMENT_FRAMES, LEAD_FRAMES = 320, 30
#: Margin around the wanted frames.
MARGIN_S = 0.5
#: Longest gap between sightings of a hand that is masked, and the margin around sightings.
_MISSED_S, _BEYOND_S = 1.0, 0.2


def hand_mask(landmarks: Float[np.ndarray, "S 21 2"], width: int, height: int) -> Mask:
    """Return the pixels (height, width) that S hands in view and their forearms may cover.

    A hand is the dilated hull of its landmarks (OpenPose order, pixels); one with a NaN is ignored.
    A forearm widens by 27 degrees each way, for bent wrists.
    """
    mask = np.zeros((height, width), np.uint8)
    for hand in landmarks:
        inside = (hand >= -0.5).all(1) & (hand < (width - 0.5, height - 0.5)).all(1)
        if not np.isfinite(hand).all() or not inside.any():
            continue

        wrist, knuckles = hand[0], hand[[5, 9, 13, 17]].mean(0)
        palm = float(np.linalg.norm(knuckles - wrist))
        length = max(palm * 2.0, float(np.linalg.norm(np.ptp(hand, axis=0))))
        # Clipped: far coordinates would overflow.
        hull = cv2.convexHull(np.clip(hand, -1e4, 1e4).round().astype(np.int32))
        grown = max(1, round(_MARGIN * length))
        cv2.fillConvexPoly(mask, hull, 255)
        cv2.polylines(mask, [hull], True, 255, thickness=min(2 * grown, 32_000))

        if palm < 1.0:
            continue
        away = (wrist - knuckles) / palm
        across = np.array([-away[1], away[0]])
        half, far = _HALF_WIDTH * palm, _FOREARM * palm
        near = [wrist + half * across, wrist - half * across]
        end = [wrist + far * away + s * (half + 0.5 * far) * across for s in (-1.0, 1.0)]
        arm = np.clip(np.array([*near, *end]), -1e4, 1e4).round().astype(np.int32)
        cv2.fillConvexPoly(mask, cv2.convexHull(arm), 255)
    return np.asarray(mask > 0)


class DarkBorder:
    """Pixels that stay dark and touch the edge: bars, the outside of a lens."""

    def __init__(self) -> None:
        self._brightest: np.ndarray | None = None

    def add(self, grey: UInt8[np.ndarray, "H W"]) -> Mask:
        """Add a picture; return the border of all pictures so far."""
        height, width = grey.shape
        small_size = max(1, width // 4), max(1, height // 4)
        small = cv2.resize(grey, small_size, None, 0, 0, cv2.INTER_AREA)
        bright = cv2.blur(small, (3, 3))
        if self._brightest is not None:
            bright = np.maximum(bright, self._brightest)
        self._brightest = bright

        dark = (bright < _BLACK).astype(np.uint8)
        if not dark.any():
            return np.zeros(grey.shape, bool)
        # A rim of darkness connects all parts outside.
        outside = cv2.copyMakeBorder(dark, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=1)
        _, labels = cv2.connectedComponents(outside, connectivity=4)
        border = (labels == labels[0, 0])[1:-1, 1:-1].astype(np.uint8)
        reach = 2 * max(1, round(_BORDER * width / 4)) + 1
        border = cv2.dilate(border, np.ones((reach, reach), np.uint8))
        return np.asarray(cv2.resize(border, (width, height), None, 0, 0, cv2.INTER_NEAREST) > 0)


@dataclass(frozen=True, slots=True)
class Turn:
    """``R_before_after``, correlation of the aligned pictures (0 to 1), and share in both."""

    R: Rotation
    likeness: float
    overlap: float


class Aligner:
    """Finds turns between frames by brightness, also in blur and fast turns without corners."""

    def __init__(self, camera: Camera) -> None:
        self._cameras: list[Camera] = []
        self._rays, self._slopes = [], []
        for width in _WIDTHS:
            width = min(width, camera.width)
            small = camera.rescaled(width, max(1, round(camera.height * width / camera.width)))
            rays = small.all_rays().reshape(-1, 3)
            self._cameras.append(small)
            self._rays.append(rays)
            # Motion of pixels per turn about each axis.
            step = 1e-3
            turned = [small.project(rays @ rotations.exp(step * e).T) for e in np.eye(3)]
            back = [small.project(rays @ rotations.exp(-step * e).T) for e in np.eye(3)]
            self._slopes.append((np.stack(turned, -1) - np.stack(back, -1)) / (2 * step))

    def shrink(self, grey: UInt8[np.ndarray, "H W"], usable: Bool[np.ndarray, "_ _"]) -> Small:
        """Return the small pictures of a frame; ``usable`` may have another size."""
        result = []
        for camera in self._cameras:
            size = camera.width, camera.height
            picture = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
            share = cv2.resize(usable.astype(np.uint8) * 255, size, interpolation=cv2.INTER_AREA)
            blurred = cv2.GaussianBlur(picture, (0, 0), 1.0).astype(np.float32)
            result.append((blurred, share > 230))
        return result

    def turn(self, before: Small, after: Small, start: Rotation, search: bool) -> Turn | None:
        """Return the turn near ``start``, or with ``search`` anywhere; None without texture."""
        R = self._search(before, after, start) if search else start
        result = None
        for level in range(0 if search else 1, len(self._cameras)):
            result = None if R is None else self._refine(before, after, R, level)
            R = None if result is None else result.R
        return result

    def _search(self, before: Small, after: Small, start: Rotation) -> Rotation | None:
        """Return the best of many turns about the picture's axes, at the smallest size."""
        picture, usable = before[0][0].ravel(), before[0][1].ravel()
        which = np.flatnonzero(usable & np.isfinite(self._slopes[0]).all((1, 2)))
        if len(which) < 50:
            return None
        which = which[:: -(-len(which) // _SEARCHED_PIXELS)]
        angles = np.radians(np.arange(-_REACH_DEG, _REACH_DEG + 1e-6, _STEP_DEG))
        pitch, yaw = (a.ravel() for a in np.meshgrid(angles, angles))
        tries = [start, *rotations.exp(np.stack([pitch, yaw, 0 * yaw], -1))]
        likeness = [
            self._likeness(picture, *self._sample(after, R, 0, which), which)[0] for R in tries
        ]
        best = int(np.argmax(likeness))
        return None if np.isneginf(likeness[best]) else tries[best]

    def _likeness(
        self, picture: np.ndarray, value: np.ndarray, ok: np.ndarray, which: np.ndarray
    ) -> tuple[float, float]:
        """Return correlation and overlap of two pictures; -inf for too little overlap."""
        if ok.sum() < _LEAST_SHARED * len(which):
            return -np.inf, 0.0
        a, b = picture[which[ok]], value[ok]
        a, b = a - a.mean(), b - b.mean()
        return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b) + 1e-9)), float(ok.mean())

    def _sample(
        self, after: Small, R: Rotation, level: int, which: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the later picture at pixels of the earlier one, and which of them it shows."""
        camera = self._cameras[level]
        pixel = camera.project(self._rays[level][which] @ R).astype(np.float32)
        ok = np.all((pixel >= 0) & (pixel <= (camera.width - 1, camera.height - 1)), axis=1)
        at = np.where(ok[:, None], pixel, 0)
        x, y = at[None, :, 0], at[None, :, 1]
        value = cv2.remap(after[level][0], x, y, cv2.INTER_LINEAR)[0]
        near = np.round(at).astype(int)
        ok &= after[level][1][near[:, 1], near[:, 0]]
        return value, ok

    def _refine(self, before: Small, after: Small, R: Rotation, level: int) -> Turn | None:
        """Return the turn near ``R`` with the least brightness error, by Gauss-Newton."""
        picture, usable = before[level]
        slopes = [cv2.Scharr(picture, cv2.CV_32F, *axis).ravel() for axis in ((1, 0), (0, 1))]
        gradient = np.stack(slopes, -1) / 32
        fine = usable.ravel() & np.isfinite(self._slopes[level]).all((1, 2))
        which = np.flatnonzero(fine & ((gradient**2).sum(1) > 1.0))
        if len(which) < 60:
            return None

        which = which[:: -(-len(which) // _MOST_PIXELS)]
        J = (gradient[which][:, None] @ self._slopes[level][which])[:, 0]
        value = picture.ravel()[which]
        for _ in range(8):
            sampled, ok = self._sample(after, R, level, which)
            if ok.sum() < 40:
                return None

            # Brightness may differ by a constant.
            r = (sampled - value)[ok]
            r = r - r.mean()
            r = r - np.average(r, weights=1 / (1 + (r / _SCALE) ** 2))
            weight = 1 / (1 + (r / _SCALE) ** 2) ** 2
            weighted = J[ok] * weight[:, None]
            H = weighted.T @ J[ok]
            change = np.linalg.solve(H + 1e-6 * np.trace(H) * np.eye(3), weighted.T @ r)
            size = float(np.linalg.norm(change))
            R = rotations.exp(change * min(1.0, _STRIDE / max(size, 1e-12))) @ R
            if size < _CLOSE:
                break

        likeness, overlap = self._likeness(picture.ravel(), sampled, ok, which)
        return None if np.isneginf(likeness) else Turn(R, likeness, overlap)


def estimate_rotations(
    frames: Iterable[np.ndarray],
    camera: Camera,
    mask_of: Callable[[int], Mask | None] | None = None,
) -> CameraMotion:
    """Estimate the rotation of a camera; frames are read once, in order.

    If the camera also translates, the result is the turn that best keeps the scene in place.

    Args:
        frames: (H, W) grey or (H, W, 3) RGB pictures, uint8, of the camera's size.
        mask_of: returns the pixels of a frame, (H, W), to ignore, such as hands; None: none.

    Raises InputError for a picture or mask of another size.
    """
    scale = min(1.0, LONGEST_SIDE / max(camera.width, camera.height))
    size = (max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))
    pictures = _grey_pictures(frames, mask_of, (camera.height, camera.width), size)

    seen = camera if scale == 1.0 else camera.rescaled(*size)
    in_view = np.isfinite(seen.all_rays()).all(-1)
    aligner, border = Aligner(seen), DarkBorder()
    before: Small | None = None
    last = np.eye(3)

    R: list[Rotation] = []
    broken, sigma = [], []
    for number, (grey, mask) in enumerate(pictures):
        usable = in_view & ~border.add(grey) & ~mask
        small = aligner.shrink(grey, usable)
        turn = None if before is None else _turn(aligner, before, small, last)
        before, last = small, np.eye(3) if turn is None else turn.R
        broken.append(turn is None and number > 0)
        R.append(last if turn is None else R[-1] @ last)
        turned = np.linalg.norm(rotations.log(last))
        sigma.append(0.0 if turn is None else _SIGMA + _SIGMA_SHARE * turned)
    turns = np.array(R).reshape(-1, 3, 3)
    return CameraMotion(turns, np.array(broken, bool), np.array(sigma, float))


def _turn(aligner: Aligner, before: Small, after: Small, last: Rotation) -> Turn | None:
    turn = aligner.turn(before, after, last, search=False)
    if turn is None or turn.likeness < _SURE_LIKENESS:
        other = aligner.turn(before, after, last, search=True)
        if other is not None and (turn is None or other.likeness > turn.likeness):
            turn = other
    if turn is None or turn.likeness < _LEAST_LIKENESS or turn.overlap < _LEAST_OVERLAP:
        return None
    return turn


def _grey_pictures(
    frames: Iterable[np.ndarray],
    mask_of: Callable[[int], Mask | None] | None,
    shape: tuple[int, int],
    size: tuple[int, int],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each picture and its mask, grey and of ``size``, checked to be of ``shape``."""
    for number, picture in enumerate(frames):
        mask = mask_of(number) if mask_of is not None else None
        mask = np.zeros(shape, bool) if mask is None else mask
        if picture.shape[:2] != shape or picture.ndim not in (2, 3) or picture.dtype != np.uint8:
            raise InputError(
                f"frame {number}: {picture.dtype} of shape {picture.shape}; the camera's pictures "
                f"are uint8 of {shape[0]} rows and {shape[1]} columns, grey or RGB."
            )
        if mask.shape != shape:
            raise InputError(
                f"mask of frame {number}: shape {mask.shape}; the picture's is {shape}."
            )

        grey = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        if size != shape[::-1]:
            grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
            mask = cv2.resize(mask.astype(np.uint8) * 255, size, interpolation=cv2.INTER_AREA) > 0
        yield np.asarray(grey, np.uint8), mask


@dataclass(frozen=True, slots=True)
class FrameSegment:
    """Frames ``start`` to ``stop - 1``; those before ``first`` are the lead."""

    start: int
    first: int
    stop: int


@one_blas_thread()
def recorded_rotations(
    recording: Recording,
    camera: Camera,
    landmarks: Landmarks,
    wanted: Bool[np.ndarray, "T"] | None = None,
    work_dir: Path | None = None,
    progress: Progress = no_progress,
) -> CameraMotion:
    """Estimate the rotation of a recording's camera from its pictures.

    Args:
        camera: overrides the recording's.
        landmarks: pixels of the hands, which are masked; NaN for hands out of view.
        wanted: frames to estimate, plus a margin; other steps are broken. None: all frames.
        work_dir: cache of finished segments, or None.
        progress: called with ("camera", frames done, frames in all).

    Raises InputError without pictures, OutputError if ``work_dir`` cannot be written.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: it has no pictures to estimate camera motion from.")

    frames, hands = recording.frames, bridged(landmarks, recording.fps)
    key = {
        "version": _CACHE_VERSION,
        "source": recording.sha256,
        "processing": dict(recording.processing),
        "times": hashlib.sha256(recording.timestamps_ns.tobytes()).hexdigest(),
        "camera": repr(camera),
        "hands": hashlib.sha256(hands.tobytes()).hexdigest(),
    }
    cache = ArrayCache(work_dir, "camera", key)

    if wanted is None:
        wanted = np.ones(len(recording), bool)
    segments = segments_of(wanted, round(MARGIN_S * recording.fps))
    shared = SharedProgress(progress, "camera", sum(s.stop - s.start for s in segments))

    def pictures(segment: FrameSegment, stop: threading.Event) -> Iterator[np.ndarray]:
        for picture in frames.read(segment.start, segment.stop):
            if stop.is_set():
                raise AcehandError("stopped")
            yield picture
            shared.advance()

    def estimate(segment: FrameSegment, stop: threading.Event) -> CameraMotion:
        stored = cache.get(segment.start, segment.stop)
        if stored is not None:
            with contextlib.suppress(TypeError, ValueError):  # other arrays
                motion = CameraMotion(**stored)
                if len(motion) == segment.stop - segment.start:
                    shared.advance(len(motion))
                    return motion

        def mask(number: int) -> Bool[np.ndarray, "H W"]:
            return hand_mask(hands[segment.start + number], recording.width, recording.height)

        motion = estimate_rotations(pictures(segment, stop), camera, mask)
        cache.put(segment.start, segment.stop, asdict(motion))
        return motion

    motions = dict(zip(segments, in_threads(estimate, segments), strict=True))
    return joined(motions, len(recording))


def segments_of(wanted: Bool[np.ndarray, "T"], margin: int) -> list[FrameSegment]:
    """Return segments that cover the wanted frames and a margin on both sides."""
    count = len(wanted)
    near = np.convolve(wanted, np.ones(2 * margin + 1))[margin : margin + count] > 0.5
    segments = []
    for first, stop in runs(near):
        pieces = -(-(stop - first) // SEGMENT_FRAMES)
        cuts = np.linspace(first, stop, pieces + 1).round().astype(int).tolist()
        segments += [
            FrameSegment(a if a == first else max(first, a - LEAD_FRAMES), a, b)
            for a, b in itertools.pairwise(cuts)
        ]
    return segments


def joined(segments: Mapping[FrameSegment, CameraMotion], count: int) -> CameraMotion:
    """Return one motion over ``count`` frames, broken outside the segments and where one starts."""
    rotations = np.tile(np.eye(3), (count, 1, 1))
    broken, sigma = np.arange(count) > 0, np.zeros(count)
    for segment, motion in segments.items():
        own, at = segment.first - segment.start, slice(segment.first, segment.stop)
        carry = rotations[segment.first - 1] @ motion.rotations[own - 1].T if own else np.eye(3)
        rotations[at] = carry @ motion.rotations[own:]
        broken[at], sigma[at] = motion.broken[own:], motion.sigma_rad[own:]
        broken[segment.first] |= not own and segment.first > 0
    return CameraMotion(rotations, broken, sigma)


def bridged(landmarks: Landmarks, fps: float) -> Landmarks:
    """Return landmarks with short gaps interpolated, and held for a moment before and after."""
    out = landmarks.copy()
    longest, beyond = round(_MISSED_S * fps), max(1, round(_BEYOND_S * fps))
    for hand in range(landmarks.shape[1]):
        seen = np.flatnonzero(np.isfinite(landmarks[:, hand]).all((1, 2)))
        for a, b in itertools.pairwise(seen):
            if 1 < b - a <= longest:
                share = np.linspace(0, 1, b - a + 1)[1:-1, None, None]
                ends = landmarks[a, hand], landmarks[b, hand]
                out[a + 1 : b, hand] = (1 - share) * ends[0] + share * ends[1]
        known = np.isfinite(out[:, hand]).all((1, 2))
        for at in np.flatnonzero(known & ~np.roll(known, 1)):
            out[max(0, at - beyond) : at, hand] = out[at, hand]
        for at in np.flatnonzero(known & ~np.roll(known, -1)):
            out[at + 1 : at + 1 + beyond, hand] = out[at, hand]
    return out
