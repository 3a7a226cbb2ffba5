"""Depth pictures next to a recording: in files, or in a track of a video."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from acehand_core.errors import CalibrationError, InputError, MissingDependencyError, VideoError
from acehand_core.motion import Depth, DepthSource, Recording
from acehand_core.recordings import lerobot_video
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.options import RigOptions
from acehand_core.recordings.rig import DEPTH, Rig, check_overlap
from acehand_core.recordings.video import VideoFrames, of_frames, pictures_in, times_of_names
from acehand_core.recordings.video_index import open_container, scan
from acehand_core.types import DepthImage, TimestampsNs

_log = logging.getLogger(__name__)

_SUFFIXES = (".png", ".exr", ".tif", ".tiff")
#: Plausible medians of depth, metres.
_LEAST_M, _MOST_M = 0.05, 50.0


def metres(counts: np.ndarray, scale: float | None = None) -> DepthImage:
    """Return z in metres, NaN without a reading.

    ``scale``: metres per count; None: whole numbers are millimetres, others metres.
    """
    scale = scale or (1e-3 if counts.dtype.kind == "u" else 1.0)
    z = (counts * scale).astype(np.float32)
    z[~(np.isfinite(z) & (z > 0))] = np.nan
    return z


def check_metres(depth: DepthSource, hint: str) -> tuple[int, int]:
    """Return the (width, height) of depth, by five of its pictures.

    Raises CalibrationError: several sizes, or a median reading that is not plausible in metres.
    """
    shown = np.unique(np.linspace(0, len(depth) - 1, 5).astype(int)).tolist()
    images = [image for index in shown if (image := depth.at(index)).size]
    if len({image.shape for image in images}) != 1:
        raise CalibrationError("its pictures are damaged, or have several sizes; valid: one.")
    readings = np.concatenate([image[np.isfinite(image)] for image in images])
    median = float(np.median(readings)) if len(readings) else np.nan
    if not _LEAST_M <= median <= _MOST_M:
        raise CalibrationError(
            f"its median reading is {median:.3g} m; valid: {_LEAST_M:g} to {_MOST_M:g}. {hint}"
        )
    height, width = images[0].shape
    return width, height


@dataclass(frozen=True, slots=True)
class DepthFrames:
    """A ``DepthSource`` of T pictures: ``counts`` of one by its index, ``scale`` as ``metres``.

    A damaged picture, or one that has not the ``size`` (width, height), has no readings.
    """

    count: int
    counts: Callable[[int], np.ndarray]
    scale: float | None
    size: tuple[int, int] = (0, 0)

    def __len__(self) -> int:
        return self.count

    def at(self, index: int) -> DepthImage:
        """Return z in metres, NaN without a reading. Raises InputError: not depth."""
        try:
            depth = metres(self.counts(index), self.scale)
            if self.size in ((0, 0), depth.shape[::-1]):
                return depth
        except VideoError as error:
            _log.warning("%s", error)
        return np.full(self.size[::-1], np.nan, np.float32)


def _dequantised(frames: VideoFrames, coding: Mapping[str, float], index: int) -> np.ndarray:
    """Return metres of LeRobot's 12-bit codes; the first and last are of what is out of range."""
    codes, ends = _plane(frames, index), np.array([coding["depth_min"], coding["depth_max"]])
    a, b = np.log(ends + coding["shift"]) if coding["use_log"] else ends
    z = a + codes / 4095 * (b - a)
    z = np.exp(z) - coding["shift"] if coding["use_log"] else z
    return np.where((codes > 0) & (codes < 4095), z, np.nan)


def _is_cut_off(png: Path) -> bool:
    """Return whether a PNG has no end: damage that is known without decoding."""
    with png.open("rb") as file:
        file.seek(max(png.stat().st_size - 64, 0))
        return b"IEND" not in file.read()


def _picture(paths: Sequence[Path], index: int) -> np.ndarray:
    path = paths[index]
    if path.suffix.lower() == ".exr":
        return _exr(path)
    data = np.fromfile(path, np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if len(data) else None
    if image is None:
        raise VideoError(f"{path}: damaged, not used.")
    if image.ndim != 2 or image.dtype not in (np.uint16, np.float32):
        form = f"{image.dtype} of shape {image.shape}"
        raise InputError(f"{path}: {form}; depth has one channel, of 16 bits or of floats.")
    return image


def _exr(path: Path) -> np.ndarray:
    try:
        channels = importlib.import_module("OpenEXR").File(str(path)).channels()
        return next(channels[name].pixels for name in ("Z", "Y", "V", "R") if name in channels)
    except ImportError:
        raise MissingDependencyError(f"{path}: needs pip install OpenEXR; or write PNG.") from None
    except Exception as error:  # RuntimeError, StopIteration and others
        raise VideoError(f"{path}: no EXR with a channel Z, Y, V or R ({error}).") from error


def _plane(frames: VideoFrames, index: int) -> np.ndarray:
    """Return the luma of a picture of 10 to 16 bits."""
    frame = frames.decoded_at(index)
    order = ">u2" if frame.format.name.endswith("be") else "<u2"
    rows = np.frombuffer(bytes(frame.planes[0]), order).reshape(-1, frame.planes[0].line_size // 2)
    return rows[: frame.height, : frame.width]


#: Pictures, and their times if they are known.
Opened = tuple[DepthFrames, TimestampsNs | None]


@dataclass(frozen=True, slots=True)
class DepthFormat:
    """One kind of depth.

    ``open`` gets the input, where its depth is, metres per count, and all frames of the input. It
    returns None for another kind.
    """

    noun: str
    open: Callable[[Path, Path, float | None, Recording], Opened | None]


def _of_lerobot(path: Path, place: Path, scale: float | None, whole: Recording) -> Opened | None:
    if place.exists() or not lerobot_video.is_episode(path):
        return None
    episode, coding = lerobot_video.open_depth(path, place.name)
    assert isinstance(episode.frames, VideoFrames)
    dequantised = partial(_dequantised, episode.frames, coding)
    return DepthFrames(len(episode), dequantised, None), episode.timestamps_ns


def _of_folder(path: Path, place: Path, scale: float | None, whole: Recording) -> Opened | None:
    if not place.is_dir() or not (paths := pictures_in(place, _SUFFIXES)):
        return None
    times = times_of_names(place, [path.stem for path in paths])
    paths, times = of_frames(paths, whole) or (paths, times)
    return DepthFrames(len(paths), partial(_picture, paths), scale), times


def _of_video(path: Path, place: Path, scale: float | None, whole: Recording) -> Opened | None:
    if not place.is_file() or not (tracks := _tracks(place)):
        return None
    index = scan(place, tracks[0])
    counts = partial(_plane, VideoFrames(index, np.arange(len(index))))
    return DepthFrames(len(index), counts, scale), index.timestamps_ns


FORMATS = (
    DepthFormat(f"a folder of {', '.join(_SUFFIXES)}", _of_folder),
    DepthFormat("a video with a track of 16-bit grey", _of_video),
    DepthFormat("the key of a LeRobot episode's depth", _of_lerobot),
)


def _tracks(video: Path) -> list[int]:
    """Return the video streams of 16-bit grey; an Azure Kinect's infrared has that too."""
    with open_container(video) as container:
        streams = enumerate(container.streams.video)
        grey = [(n, s) for n, s in streams if str(s.codec_context.pix_fmt).startswith("gray16")]
        return [number for number, stream in grey if stream.metadata.get("title") != "IR"]


def with_depth(
    path: Path, recording: Recording, options: RigOptions, rig: Rig | None, whole: Recording
) -> Recording:
    """Return a recording with depth; it has its camera, and pictures as stored.

    ``whole`` has all frames of the input ``path``, for depth without times. Raises InputError: no
    depth, of unknown times, or at other times; CalibrationError: no camera of its size, or not
    plausible in its unit.
    """
    place, whole_ns = options.depth, whole.timestamps_ns
    assert place is not None
    opened = (kind.open(path, place, options.depth_unit, whole) for kind in FORMATS)
    depth, times = next(filter(None, opened), (None, None))
    if depth is None:
        nouns = ", or ".join(kind.noun for kind in FORMATS)
        raise InputError(f"`depth={place}`: give {nouns}.")
    own_clock = times is None or times[0] > whole_ns[-1] or times[-1] < whole_ns[0]
    if len(depth) == len(whole_ns) and own_clock:
        times = whole_ns
    if times is None:
        raise InputError(
            f"`depth={place}` has {len(depth)} pictures, the input {len(whole_ns)} frames; valid: "
            "as many, or names that are times (12.345678 s, or nanoseconds), or numbers of frames: "
            f"few missing, from 0, or up to {len(whole_ns)}."
        )
    check_overlap(recording, times, f"`depth={place}`")
    try:
        size = check_metres(depth, "Give `depth_unit` mm, m, or metres per count.")
    except CalibrationError as error:
        raise CalibrationError(f"`depth={place}`: {error}") from None

    depth = replace(depth, size=size)
    broken = sum(map(_is_cut_off, pictures_in(place, (".png",)))) if place.is_dir() else 0

    pose, note = np.eye(4), f"depth of {place.name}"
    if broken or len(depth) != len(whole_ns):
        note += f" ({len(depth)} pictures, {broken} damaged, for {len(whole_ns)} frames)"
    pictures = recording.width, recording.height
    if rig is not None and DEPTH in rig.cameras:
        camera, pose = rig.fitted(DEPTH, *size), rig.T_main(DEPTH)
    elif recording.camera is None:
        raise CalibrationError("`depth` needs the camera: `camera`, `intrinsics`, or a `rig`.")
    elif size != pictures:
        raise CalibrationError(
            f"`depth={place}` has the size {size}, the pictures {pictures}; valid: registered, "
            "or a `rig` with a camera named depth."
        )
    else:
        camera = fit_camera_to(recording.camera, *size)
        note += ", taken as registered to the pictures"
    notes = (*recording.notes, note)
    return replace(recording, depth=Depth(depth, times, camera, pose), notes=notes)
