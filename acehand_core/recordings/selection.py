"""Views of a recording and its hands: a part, another rate or size; pictures are not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, FrameSource, HandMotion, Recording
from acehand_core.recordings.video import VideoFrames
from acehand_core.types import SIDES, ImageFit, ImageRgb, TimestampsNs

#: Largest repetition of frames in a view, plus an hour of one frame.
_REPEATS, _HELD_S = 100, 3600
#: A higher ratio to the source's rate is a mistake.
_FASTER = 10
#: Times closer than this are equal: stamps are often rounded to milliseconds.
SAME_TIME_NS = 1_000_000
#: Longest gap to interpolate hands across.
_BRIDGED_NS = 500_000_000
#: In longer gaps of the recording, hands are absent.
HOLE_NS = 1_500_000_000


def at_rate(recording: Recording, fps: int) -> tuple[Recording, Int[np.ndarray, "N"]]:
    """Return the recording, without hands, at ``1 / fps`` and the source frame of its N frames.

    Frame k, k / fps after the first, is the source frame nearest in time (the earlier of two).
    Raises InputError: rate below 1 or far above the source's, or a pause of hours.
    """
    highest = max(1, min(1000, int(_FASTER * recording.fps)))
    if not 1 <= fps <= highest:
        rates = f"{fps} frames per second, where the source has {recording.fps:.4g}"
        raise InputError(f"{recording.source}: {rates}; valid: 1 to {highest}.")
    times = recording.timestamps_ns

    # Stamps are rounded, so the last tick may be slightly after the last frame.
    reach = int(times[-1] - times[0]) + round(0.5e9 / max(fps, recording.fps))
    count = reach * fps // 10**9 + 1
    if count > _REPEATS * len(times) + _HELD_S * fps:
        raise InputError(
            f"{recording.source}: {len(times)} frames lie in {reach / 8.64e13:.3g} days: the "
            "clock was set, or the pause is very long. Take a part (`start`, `duration`)."
        )

    at = ticks(int(times[0]), count, float(fps))
    index = np.searchsorted(times[:-1] + np.diff(times) // 2, at)
    return _selected(recording, index, at, float(fps)), index


def resample(recording: Recording, motion: HandMotion, fps: int) -> tuple[Recording, HandMotion]:
    """Return a recording and its hands at ``1 / fps``; see ``at_rate`` and ``hands_at``."""
    view, _ = at_rate(recording, fps)
    return view, hands_at(motion, view.timestamps_ns, view.fps)


@dataclass(frozen=True, slots=True)
class _Between:
    """N times among stamps: the nearest frame, and for ``rows`` of them the two around."""

    near: Int[np.ndarray, "N"]
    rows: Int[np.ndarray, "M"]
    first: Int[np.ndarray, "M"]
    second: Int[np.ndarray, "M"]
    share: Float[np.ndarray, "M"]

    @classmethod
    def of(cls, stamps_ns: TimestampsNs, times_ns: Int[np.ndarray, "N"]) -> _Between:
        last = len(stamps_ns) - 1
        after = np.clip(np.searchsorted(stamps_ns, times_ns), min(1, last), last)
        before = np.maximum(after - 1, 0)
        gap, into = stamps_ns[after] - stamps_ns[before], times_ns - stamps_ns[before]
        near = np.where(2 * into > gap, after, before)
        off = np.abs(times_ns - stamps_ns[near]) > SAME_TIME_NS
        rows = np.flatnonzero(off & (into > 0) & (into < gap) & (gap <= _BRIDGED_NS))
        return cls(near, rows, before[rows], after[rows], into[rows] / gap[rows])


def hands_at(motion: HandMotion, timestamps_ns: TimestampsNs, fps: float) -> HandMotion:
    """Return a motion at other times.

    Between two frames with a known hand, rotations are interpolated by slerp and positions
    linearly. Elsewhere, in gaps of more than half a second, and within a millisecond of a frame,
    the nearest frame is used, as always for flags, scores and 2D joints, which belong to a picture.
    In gaps of more than 1.5 s hands are absent.
    """
    stamps = motion.timestamps_ns
    place = _Between.of(stamps, timestamps_ns)
    nearest = motion.at(place.near, timestamps_ns, fps)
    holes = np.append(np.diff(stamps) > HOLE_NS, False)
    last = np.maximum(np.searchsorted(stamps, timestamps_ns, side="right") - 1, 0)
    away = np.abs(timestamps_ns - stamps[place.near]) > 1e9 / motion.fps
    if (lost := holes[last] & away).any():
        nearest = _with_hands(nearest, np.repeat(~lost[:, None], len(SIDES), axis=1))
    if not len(place.rows):
        return nearest
    both = motion.known[place.first] & motion.known[place.second]

    def mixed(name: str, mix: Callable[..., np.ndarray]) -> np.ndarray:
        values, kept = getattr(motion, name), getattr(nearest, name).copy()
        a, b = values[place.first], values[place.second]
        between = mix(a, b, place.share.reshape(-1, *[1] * (a.ndim - 1)))
        per_hand = both.reshape(*both.shape, *[1] * (a.ndim - 2))
        kept[place.rows] = np.where(per_hand, between, kept[place.rows])
        return kept

    poses = motion.T_world_camera
    return replace(
        nearest,
        global_orient=mixed("global_orient", _slerp),
        hand_pose=mixed("hand_pose", _slerp),
        translation=mixed("translation", _on_line),
        joints_camera=mixed("joints_camera", _on_line),
        T_world_camera=None if poses is None else poses_at(poses, stamps, timestamps_ns),
    )


def poses_at(
    poses: Float[np.ndarray, "T *n 4 4"], stamps_ns: TimestampsNs, times_ns: Int[np.ndarray, "N"]
) -> Float[np.ndarray, "N *n 4 4"]:
    """Return rigid transforms at other times, as ``hands_at`` does; unknown ones are NaN."""
    place = _Between.of(stamps_ns, times_ns)
    result, a, b = poses[place.near], poses[place.first], poses[place.second]
    share = place.share.reshape(-1, *[1] * (a.ndim - 1))
    between = frames.rigid(
        _slerp(a[..., :3, :3], b[..., :3, :3], share),
        _on_line(a[..., :3, 3], b[..., :3, 3], share[..., 0]),
    )
    known = np.isfinite(a).all((-1, -2)) & np.isfinite(b).all((-1, -2))
    result[place.rows] = np.where(known[..., None, None], between, result[place.rows])
    return result


def _slerp(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return interpolated rotations, the first if one is unknown."""
    known = np.isfinite(a).all((-1, -2)) & np.isfinite(b).all((-1, -2))
    result = a.copy()
    shares = np.broadcast_to(share[..., 0, 0], known.shape)
    result[known] = rotations.slerp(a[known], b[known], shares[known])
    return result


def _on_line(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    return (a + share * (b - a)).astype(a.dtype)


def ticks(first_ns: int, count: int, fps: float) -> TimestampsNs:
    """Return ``count`` times ``1 / fps`` apart, rounded to nanoseconds."""
    return first_ns + np.round(np.arange(count) * 1e9 / fps).astype(np.int64)


def steady(motion: HandMotion) -> HandMotion:
    """Return the motion at times exactly ``1 / fps`` apart, as speed limits need it."""
    stamps = motion.timestamps_ns
    count = 1 + int((stamps[-1] - stamps[0]) * motion.fps / 1e9 + 0.5)
    times = ticks(int(stamps[0]), count, motion.fps)
    if np.array_equal(times, stamps):
        return motion
    return hands_at(motion, times, motion.fps)


def only_hands(motion: HandMotion, hands: Literal["both", "left", "right"]) -> HandMotion:
    """Return the motion with only the given hands present."""
    if hands == "both":
        return motion
    return _with_hands(motion, np.tile([side == hands for side in SIDES], (len(motion), 1)))


def _with_hands(motion: HandMotion, kept: Bool[np.ndarray, "T 2"]) -> HandMotion:
    """Return the motion with the other hands absent."""
    joints = kept[..., None, None]
    sigma = motion.joint_sigma
    return replace(
        motion,
        joints_camera=np.where(joints, motion.joints_camera, np.nan),
        joints_image=np.where(joints, motion.joints_image, np.nan),
        presence=motion.presence * kept,
        visible=motion.visible * kept,
        quality=motion.quality * kept,
        observed=motion.observed & kept,
        filled=motion.filled & kept,
        fill_frame=None if motion.fill_frame is None else motion.fill_frame * kept,
        joint_sigma=None if sigma is None else np.where(joints, sigma, np.nan),
        evidence=None if motion.evidence is None else motion.evidence * kept,
    )


def part(recording: Recording, start: int, stop: int) -> Recording:
    """Return frames ``start`` to ``stop - 1``, their hands, and views and depth around.

    Raises InputError.
    """
    if not 0 <= start < stop <= len(recording):
        raise InputError(
            f"{recording.source}: no frames {start} to {stop - 1}; "
            f"valid: 0 to {len(recording) - 1}."
        )
    times = recording.timestamps_ns[start:stop]
    selected = _selected(recording, np.arange(start, stop), times, recording.fps)
    views, depth = [], recording.depth
    for view in recording.views:
        span = _around(view.recording.timestamps_ns, times)
        views.append(replace(view, recording=part(view.recording, *span)))
    if depth is not None:
        first, end = _around(depth.timestamps_ns, times)
        frames = _Selected(depth.frames, np.arange(first, end))
        depth = replace(depth, frames=frames, timestamps_ns=depth.timestamps_ns[first:end])
    hands = recording.hands and recording.hands.at(np.arange(start, stop), times, recording.fps)
    return replace(selected, views=tuple(views), depth=depth, hands=hands)


def aligned(recording: Recording) -> Recording:
    """Return a recording with a frame of each view and of depth for each of its N frames.

    They are the nearest in time (the earlier of two), and get the recording's times; those of the
    views stay in their ``source_timestamps_ns``.
    """
    times, views, depth = recording.timestamps_ns, [], recording.depth
    for view in recording.views:
        near = _Between.of(view.recording.timestamps_ns, times).near
        selected = _selected(view.recording, near, times, recording.fps)
        views.append(replace(view, recording=selected))
    if depth is not None:
        frames = _Selected(depth.frames, _Between.of(depth.timestamps_ns, times).near)
        depth = replace(depth, frames=frames, timestamps_ns=times)
    return replace(recording, views=tuple(views), depth=depth)


def check_together(recording: Recording, stamps_ns: TimestampsNs, what: str) -> None:
    """Raise InputError unless most frames have a stamp within half a frame of the slower."""
    times = recording.timestamps_ns
    away = np.abs(times - stamps_ns[_Between.of(stamps_ns, times).near])
    own = float(np.median(np.diff(stamps_ns))) if len(stamps_ns) > 1 else 0.0
    slower = max(1e9 / recording.fps, own)
    apart = int((away > slower / 2 + SAME_TIME_NS).sum())
    if 2 * apart >= len(away):
        raise InputError(
            f"{recording.source}: {apart} of {len(away)} frames have no picture of {what} within "
            f"{slower / 2e6:.0f} ms (up to {away.max() / 1e6:.0f} ms); valid: fewer than half."
        )


def _around(stamps_ns: TimestampsNs, times_ns: Int[np.ndarray, "N"]) -> tuple[int, int]:
    """Return start and stop of the stamps from the last before some times to the first after."""
    first = int(np.searchsorted(stamps_ns, times_ns[0], side="right")) - 1
    last = int(np.searchsorted(stamps_ns, times_ns[-1]))
    return max(first, 0), min(last + 1, len(stamps_ns))


def _selected(
    recording: Recording, index: Int[np.ndarray, "N"], timestamps_ns: TimestampsNs, fps: float
) -> Recording:
    poses, shown = recording.T_world_camera, recording.source_timestamps_ns
    shown = recording.timestamps_ns if shown is None else shown
    source = recording.frames
    if source is not None and not np.array_equal(index, np.arange(len(source))):
        source = frames_at(source, index)
    return replace(
        recording,
        timestamps_ns=timestamps_ns,
        fps=fps,
        frames=source,
        T_world_camera=None if poses is None else poses[index],
        source_timestamps_ns=shown[index],
        hands=None,
    )


def frames_at(frames: FrameSource, index: Int[np.ndarray, "N"]) -> FrameSource:
    """Return the frames of a source at a non-decreasing index."""
    return frames.select(index) if isinstance(frames, VideoFrames) else _Selected(frames, index)


@dataclass(frozen=True, slots=True)
class _Selected:
    """Frames, or depth pictures, of another source by a non-decreasing index."""

    frames: Any
    index: Int[np.ndarray, "N"]

    def __len__(self) -> int:
        return len(self.index)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        index = self.index[start:stop].tolist()
        if not index:
            return
        images, at = self.frames.read(index[0], index[-1] + 1), index[0] - 1
        for wanted in index:
            while at < wanted:
                image, at = next(images), at + 1
            yield image

    def at(self, index: int) -> Any:
        return self.frames.at(int(self.index[index]))


def resized(recording: Recording, size: tuple[int, int]) -> Iterator[ImageRgb]:
    """Yield all frames of a recording in a size (width, height), as new arrays."""
    source = recording.frames
    assert source is not None
    if isinstance(source, VideoFrames):
        yield from source.read_resized(0, len(recording), *size)
        return
    for image in source.read(0, len(recording)):
        same = (image.shape[1], image.shape[0]) == size
        yield image.copy() if same else cv2.resize(image, size, interpolation=cv2.INTER_AREA)


@dataclass(frozen=True, slots=True)
class Fit:
    """The change of pictures of ``source`` (width, height) to ``size``.

    They are scaled uniformly, up to rounding to whole pixels, and centred: with black bars
    (letterbox), or cropped.
    """

    source: tuple[int, int]
    size: tuple[int, int]
    mode: ImageFit

    @property
    def scaled(self) -> tuple[int, int]:
        """Size of the scaled picture: at most ``size`` (letterbox), or at least (crop)."""
        ratios = [new / old for new, old in zip(self.size, self.source, strict=True)]
        ratio = min(ratios) if self.mode == "letterbox" else max(ratios)
        return max(1, round(self.source[0] * ratio)), max(1, round(self.source[1] * ratio))

    @property
    def corner(self) -> tuple[int, int]:
        """Place of the scaled picture's first pixel; negative if cropped."""
        return (self.size[0] - self.scaled[0]) // 2, (self.size[1] - self.scaled[1]) // 2

    def image(self, image: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "h w 3"]:
        """Return a picture in the new size."""
        shrinks = self.scaled[0] < self.source[0]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        scaled = cv2.resize(image, self.scaled, interpolation=how)
        fitted = np.zeros((self.size[1], self.size[0], 3), np.uint8)
        x, y = self.corner
        left, top = max(-x, 0), max(-y, 0)
        shown = scaled[top : top + self.size[1], left : left + self.size[0]]
        x, y = max(x, 0), max(y, 0)
        fitted[y : y + shown.shape[0], x : x + shown.shape[1]] = shown
        return fitted

    def camera(self, camera: Camera) -> Camera:
        """Return the camera of the picture in the new size."""
        x, y = self.corner
        return camera.rescaled(*self.scaled).cropped(-x, -y, *self.size)

    def recording(self, recording: Recording) -> Recording:
        """Return the recording with pictures and camera in the new size."""
        assert recording.frames is not None
        camera = recording.camera
        return replace(
            recording,
            width=self.size[0],
            height=self.size[1],
            frames=ChangedFrames(recording.frames, self.image),
            camera=None if camera is None else self.camera(camera),
        )

    def hands(self, motion: HandMotion) -> HandMotion:
        """Return the hands with camera, pixels and visible shares for the new pictures."""
        if motion.camera is None:
            return motion
        camera = self.camera(motion.camera)
        scale = np.divide(self.scaled, self.source)
        pixels = (motion.joints_image + 0.5) * scale - 0.5 + self.corner
        visible = motion.visible
        if self.mode == "crop" and motion.placed:
            inside = camera.contains(camera.project(motion.joints_camera)).mean(-1)
            visible = np.where(visible > 0, inside, 0.0)
        kept = {**motion.provenance.settings, "source_size": list(self.source)}
        provenance = replace(motion.provenance, settings=kept)
        return replace(
            motion, camera=camera, joints_image=pixels, visible=visible, provenance=provenance
        )
