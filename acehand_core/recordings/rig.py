"""Rigs: files with cameras and their poses (docs/my_camera.md), and recordings with their views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from acehand_core.errors import CalibrationError, InputError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, Recording, View
from acehand_core.recordings import camera_files
from acehand_core.recordings.camera_fields import CameraHints, field, is_mapping_with, numbers
from acehand_core.recordings.camera_files import content_of, file_and_name, format_of, json_of
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.options import RigOptions, Stereo
from acehand_core.recordings.video import FolderFrames, VideoFrames, of_frames
from acehand_core.recordings.video_index import open_container
from acehand_core.types import ImageRgb, Picture, RigidTransform, TimestampsNs

#: The camera of a rig that took the depth pictures.
DEPTH = "depth"
#: Metres between two cameras: more are millimetres, less is one place.
_LEAST_M, _MOST_M = 1e-3, 5.0
_UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3}
#: Least width over height of two pictures in one, and share of corners that both halves have.
#: (Of 271 wide crops of videos and photographs at most 5 %, but for a chessboard; of pairs 34 %.)
_WIDE, _EQUAL = 1.9, 0.15
#: Largest difference of entries from those of a rotation; files are rounded.
_ROTATION_ERROR = 1e-2


@dataclass(frozen=True, slots=True)
class Rig:
    """Cameras of a file by name, with ``T_rig_camera`` in metres; ``main`` is the input's."""

    file: Path
    cameras: Mapping[str, tuple[Camera, RigidTransform]]
    main: str

    def fitted(self, name: str, width: int, height: int) -> Camera:
        """Return a camera for pictures of a size. Raises CalibrationError: unknown, or no fit."""
        if name not in self.cameras:
            raise CalibrationError(f"{self.file}: camera {name!r}; {nearest(name, self.cameras)}")
        camera = self.cameras[name][0]
        if (camera.width, camera.height) == (1024, 1024) and 9 * width == 10 * height:
            camera = camera.cropped(192, 180, 640, 576)  # an Azure Kinect's narrow depth
        try:
            return fit_camera_to(camera, width, height)
        except CalibrationError as error:
            raise CalibrationError(f"{self.file}, camera {name!r}: {error}") from None

    def T_main(self, name: str) -> RigidTransform:
        """Return a camera's pose in the main one. Raises CalibrationError: too near or far."""
        pose = frames.inverse(self.cameras[self.main][1]) @ self.cameras[name][1]
        away = float(np.linalg.norm(pose[:3, 3]))
        if away > _MOST_M or (away < _LEAST_M and name != DEPTH):
            raise CalibrationError(
                f"{self.file}: {name!r} is {away:g} m from {self.main!r}; valid: {_LEAST_M:g} to "
                f"{_MOST_M:g} m. Of a rig in millimetres, set `unit: mm` in its file."
            )
        return pose


def read_rig(path: Path, size: tuple[int, int]) -> Rig:
    """Return the rig of a file, or of ``FILE:NAME`` with NAME as its main camera, else "".

    Lengths are metres, or what a field ``unit`` of the file says: mm, cm, m, or a number of metres.

    Args:
        path: ours, Kalibr's, OpenCV's, or an Azure Kinect's, also as attached to its .mkv.
        size: (width, height) of cameras without a size in the file.

    Raises CalibrationError: no rig, a camera without pose, or a matrix that is no rigid transform.
    """
    file, main = file_and_name(str(path))
    content = _attached(file) if file.suffix == ".mkv" else content_of(file)
    try:
        if is_mapping_with(content, "CalibrationInformation"):
            cameras = _kinect(field(content["CalibrationInformation"], "Cameras"), size)
        elif is_mapping_with(content, "cameras"):
            cameras = _ours(content["cameras"], file.parent)
        else:
            makers = format_of(file, content).cameras(content)
            poses = _chained(content, sorted(makers, key=lambda name: (len(name), name)))
            cameras = {name: (makers[name](CameraHints(size)), poses[name]) for name in poses}
        unit = content["unit"] if is_mapping_with(content, "unit") else "m"
        metres = _UNITS[unit] if unit in _UNITS else numbers(unit, "unit (mm, cm, m)", 1)[0]
    except CalibrationError as error:
        raise CalibrationError(f"{file}: {str(error).removeprefix(f'{file} ')}") from None
    for _, pose in cameras.values():
        pose[:3, 3] *= metres
    return Rig(file, cameras, main)


def _attached(file: Path) -> Any:
    with open_container(file) as container:
        for stream in container.streams.attachments:
            if stream.name == "calibration.json":
                return json_of(file, bytes(stream.data).rstrip(b"\0").decode("utf-8", "replace"))
    raise CalibrationError(f"{file} has no calibration.json attached; give another `rig`.")


def _ours(entries: Any, folder: Path) -> dict[str, tuple[Camera, RigidTransform]]:
    """Return our cameras; ``file`` of one, from ``folder``, is a camera file of any format."""
    cameras = {}
    for name, entry in entries.items():
        pose = _pose(field(entry, "T_rig_camera"), f"T_rig_camera of {name}")
        if "file" in entry:
            cameras[str(name)] = camera_files.load_camera(folder / str(entry["file"])), pose
            continue
        values = {"model": "pinhole", **entry}
        del values["T_rig_camera"]
        cameras[str(name)] = Camera.from_json(values, f"camera {name}"), pose
    return cameras


def _kinect(entries: Any, size: tuple[int, int]) -> dict[str, tuple[Camera, RigidTransform]]:
    """Return an Azure Kinect's cameras: shares of the sensor with pixel edges at 0, T_camera_depth.

    ``size`` is that of colour, the middle of the sensor at 16:9.
    """
    cameras = {}
    for entry in entries:
        values = numbers(field(field(entry, "Intrinsics"), "ModelParameters"), "parameters", 14)
        cx, cy, fx, fy, k1, k2, k3, k4, k5, k6, _, _, p2, p1 = values
        of_depth = str(field(entry, "Location")).endswith("D0")
        w, h = (1024, 1024) if of_depth else (size[0], size[0] * 3 // 4)
        lens = (fx * w, fy * h, cx * w - 0.5, cy * h - 0.5, (k1, k2, p1, p2, k3, k4, k5, k6))
        camera = Camera("brown_conrady", w, h, *lens)
        pose = _moved(field(entry, "Rt"), "Rotation", "Translation")
        camera = camera if of_depth else camera.cropped(0, (h - size[1]) // 2, *size)
        cameras[DEPTH if of_depth else "color"] = camera, frames.inverse(pose)
    return cameras


def _chained(content: Any, names: list[str]) -> dict[str, RigidTransform]:
    """Return T_rig_camera of cameras with the pose of the one before in each; rig: the first."""
    poses = dict.fromkeys(names[:1], np.eye(4))
    for before, name in pairwise(names):
        if is_mapping_with(content, name) and is_mapping_with(content[name], "T_cn_cnm1"):
            step = _pose(content[name]["T_cn_cnm1"], f"T_cn_cnm1 of {name}")
        elif is_mapping_with(content, "R", "T") and len(names) == 2:
            step = _moved(content, "R", "T")
        else:
            raise CalibrationError(
                f"camera {name!r} has no pose; valid: T_cn_cnm1 of each camera after cam0 "
                "(Kalibr), R and T of two (OpenCV), or T_rig_camera of each in our `cameras:`."
            )
        poses[name] = poses[before] @ frames.inverse(step)
    return poses


def _moved(values: Any, turn: str, move: str) -> RigidTransform:
    rotation = np.reshape(numbers(field(values, turn), turn, 9), (3, 3))
    top = np.c_[rotation, numbers(field(values, move), move, 3)]
    return _pose([*top.ravel().tolist(), 0, 0, 0, 1], f"{turn}, {move}")


def _pose(value: Any, key: str) -> RigidTransform:
    pose = np.reshape(numbers(value, key, 16), (4, 4))
    rotation = rotations.project_to_rotation(pose[:3, :3])
    if np.abs(rotation - pose[:3, :3]).max() > _ROTATION_ERROR or (pose[3] != [0, 0, 0, 1]).any():
        raise CalibrationError(
            f"{key} is no rigid transform: a rotation (right-handed), and 0 0 0 1 in the last row."
        )
    return frames.rigid(rotation, pose[:3, 3])


def open_views(
    recording: Recording, options: RigOptions, open_view: Callable[[str], Recording]
) -> tuple[Recording, Rig | None]:
    """Return a recording with camera and views by the options, and their rig.

    Views have all of their frames, with times on the recording's clock; without a rig, the right
    one has no camera yet. ``open_view`` opens what ``view`` names. Raises as ``Rig``; InputError:
    rotated or mirrored pictures, another time; CalibrationError: left and right swapped.
    """
    _refuse_turned(recording)
    stereo, sources = options.stereo, dict[str, Recording]()
    if stereo is not None:
        recording, sources["right"] = _halves(recording, stereo)
    if options.rig is None:
        pose = frames.rigid(np.eye(3), np.array([options.baseline_m or 0.0, 0.0, 0.0]))
        views = [View(name, source, pose) for name, source in sources.items()]
        return replace(recording, views=tuple(views)), None

    rig = read_rig(options.rig, (recording.width, recording.height))
    if rig.cameras.keys() == {"1", "2"} and {"left", "right"} & {rig.main, *options.views}:
        # OpenCV's M1 is the left camera.
        rig = replace(rig, cameras={"left": rig.cameras["1"], "right": rig.cameras["2"]})
    free = [name for name in rig.cameras if name not in (rig.main, DEPTH, *options.views)]
    first = "left" if stereo and "left" in free else "".join(free[:1])
    rig = replace(rig, main=rig.main or first)
    own = rig.fitted(rig.main, recording.width, recording.height)
    note = f"camera {rig.main} of the rig {rig.file.name}"
    recording = replace(recording, camera=own, notes=(*recording.notes, note))
    if stereo is not None:
        others = [name for name in free if name != rig.main]
        if len(others) != 1:
            raise CalibrationError(f"{rig.file}: {[*rig.cameras]}; `stereo` needs left and right.")
        sources = {others[0]: sources["right"]}
    for name, value in options.views.items():
        view = open_view(value)
        _refuse_turned(view)
        if view.sha256 == recording.sha256 or name == rig.main:
            raise InputError(f"`view={name}={value}` is the input or its camera; give another.")
        pictures = view.frames
        if isinstance(pictures, FolderFrames) and (placed := of_frames(pictures.paths, recording)):
            pictures = FolderFrames(placed[0], pictures.size)
            view = replace(view, frames=pictures, timestamps_ns=placed[1], fps=recording.fps)
        times = view.timestamps_ns - round(options.offsets_s.get(name, 0.0) * 1e9)
        check_overlap(recording, times, f"`view={name}={value}`")
        if len(times) < len(recording):
            note = f"view {name}: {len(times)} pictures for {len(recording)} frames"
            recording = replace(recording, notes=(*recording.notes, note))
        sources[name] = replace(view, timestamps_ns=times)

    views = []
    for name, source in sources.items():
        camera, pose = rig.fitted(name, source.width, source.height), rig.T_main(name)
        if stereo is not None and pose[0, 3] < -0.5 * np.linalg.norm(pose[:3, 3]):
            raise CalibrationError(
                f"`stereo={stereo}`: {name!r}, the right camera, is {-pose[0, 3]:g} m left of "
                f"{rig.main!r}: swapped. Valid: another `stereo`, or `rig=FILE:NAME` of the left."
            )
        # Two files that begin at 0 have two clocks.
        stamped = bool(source.timestamps_ns[0] and recording.timestamps_ns[0])
        known = stamped or source.source == recording.source or name in options.offsets_s
        views.append(View(name, replace(source, camera=camera), pose, synchronised=known))
    return replace(recording, views=tuple(views)), rig


def check_overlap(recording: Recording, times_ns: TimestampsNs, what: str) -> None:
    """Raise InputError for times that are all before or after those of the recording."""
    own = recording.timestamps_ns
    if times_ns[-1] < own[0] or own[-1] < times_ns[0]:
        a, b, c, d = (f"{int(time) / 1e9:.3f}" for time in (*times_ns[[0, -1]], *own[[0, -1]]))
        raise InputError(
            f"{what} covers {a} to {b} s, {recording.source} {c} to {d} s: no time in common. "
            "Both must have one clock; for a view, give `view_offset=NAME=SECONDS`."
        )


def _refuse_turned(recording: Recording) -> None:
    changes = recording.processing
    if recording.frames is None or changes.get("mirrored") or changes.get("rotation"):
        raise InputError(
            f"{recording.source} has no pictures, or rotated ones (`mirrored`, or metadata). A rig "
            "and depth need a video that is stored upright: ffmpeg -i IN OUT, and calibrate that."
        )


def _halves(recording: Recording, stereo: Stereo) -> tuple[Recording, Recording]:
    """Return the left and the right recording of a video with both pictures."""
    axis, processing = int(stereo != "top-bottom"), {**recording.processing, "stereo": stereo}
    shape = [recording.height, recording.width]
    if shape[axis] % 2:
        raise InputError(f"{recording.source}: {shape[axis]} pixels cannot be halved.")
    shape[axis] //= 2
    assert recording.frames is not None
    cuts = [ChangedFrames(recording.frames, partial(_half, axis, part)) for part in (0, 1)]
    left, right = cuts[::-1] if stereo == "right-left" else cuts
    recording = replace(recording, height=shape[0], width=shape[1], processing=processing)
    return replace(recording, frames=left), replace(recording, frames=right)


def shows_two_pictures(recording: Recording) -> bool:
    """Return whether it has two pictures in one, by the file, or by equal halves if it is wide."""
    frames, size = recording.frames, (recording.width, recording.height)
    if isinstance(frames, VideoFrames) and frames.two_pictures:
        return True
    if frames is None or size[0] < _WIDE * size[1]:
        return False
    shown = np.linspace(0, len(recording) - 1, 3).astype(int).tolist()
    return all(_alike(next(iter(frames.read(index, index + 1)))) for index in shown)


def _alike(image: ImageRgb) -> bool:
    """Return whether many corners of the left half are found in the same rows of the right one."""
    width, height = 320, round(640 * image.shape[0] / image.shape[1])
    small = cv2.resize(image, (2 * width, height), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)
    orb = cv2.ORB.create(600, edgeThreshold=8, patchSize=15, fastThreshold=5)
    (a, left), (b, right) = (orb.detectAndCompute(half, None) for half in np.split(grey, 2, 1))
    if min(len(a), len(b)) < 20:
        return False
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(left, right)
    moved = np.array([np.subtract(b[p.trainIdx].pt, a[p.queryIdx].pt) for p in pairs])
    near = (np.abs(moved) < [0.2 * width, 0.02 * height + 1]).all(1)
    return bool(near.sum() > _EQUAL * min(len(a), len(b)))


def _half(axis: int, part: int, image: ImageRgb) -> Picture:
    return np.ascontiguousarray(np.split(image, 2, axis)[part])
