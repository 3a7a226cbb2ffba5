"""Rigs: files with cameras and their poses (docs/my_camera.md), and recordings with their views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import CalibrationError, InputError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, Recording, View
from acehand_core.recordings.camera_fields import CameraHints, field, is_mapping_with, numbers
from acehand_core.recordings.camera_files import content_of, file_and_name, format_of
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.options import RigOptions, Stereo
from acehand_core.types import ImageRgb, RigidTransform, TimestampsNs

#: The camera of a rig that took the depth pictures.
DEPTH = "depth"
#: Metres between two cameras: more are millimetres, less is one place.
_LEAST_M, _MOST_M = 1e-3, 5.0
_UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3}
#: Largest difference of entries from those of a rotation; files are rounded.
_ROTATION_ERROR = 1e-2


@dataclass(frozen=True, slots=True)
class Rig:
    """Cameras of a rig file by name, each with its pose ``T_rig_camera`` in metres.

    ``main`` is the camera of the input; "": not chosen.
    """

    file: Path
    cameras: Mapping[str, tuple[Camera, RigidTransform]]
    main: str = ""

    def fitted(self, name: str, width: int, height: int) -> Camera:
        """Return a camera for pictures of a size. Raises CalibrationError: unknown, or no fit."""
        if name not in self.cameras:
            raise CalibrationError(
                f"{self.file}: no camera {name!r}; {nearest(name, self.cameras)}"
            )
        try:
            return fit_camera_to(self.cameras[name][0], width, height)
        except CalibrationError as error:
            raise CalibrationError(f"{self.file}, camera {name!r}: {error}") from None

    def T_main(self, name: str) -> RigidTransform:
        """Return the pose of a camera in the main one. Raises CalibrationError: far away."""
        pose = frames.inverse(self.cameras[self.main][1]) @ self.cameras[name][1]
        _check_distance(name, pose)
        return pose


def read_rig(path: Path, size: tuple[int, int]) -> Rig:
    """Return the rig of a file, or of ``FILE:NAME`` with NAME as its main camera.

    Args:
        path: ours, Kalibr's camchain, or OpenCV's stereo calibration. Lengths are metres, or what
            a field ``unit`` of the file says: mm, cm, m, or a number of metres.
        size: (width, height) of cameras without a size in the file.

    Raises CalibrationError: no rig, a camera without pose, or a matrix that is no rigid transform.
    """
    file, main = file_and_name(str(path))
    content = content_of(file)
    try:
        if is_mapping_with(content, "cameras"):
            cameras = _our_cameras(content["cameras"])
        else:
            made = format_of(file, content).cameras(content)
            poses = _chained(content, sorted(made, key=lambda name: (len(name), name)))
            cameras = {name: (made[name](CameraHints(size)), poses[name]) for name in poses}
        unit = content.get("unit", "m") if isinstance(content, Mapping) else "m"
        metres = _UNITS[unit] if unit in _UNITS else numbers(unit, "unit (mm, cm, m)", 1)[0]
    except CalibrationError as error:
        text = str(error).replace("FILE", str(file))
        raise CalibrationError(text if str(file) in text else f"{file}: {text}") from None
    for _, pose in cameras.values():
        pose[:3, 3] *= metres
    return Rig(file, cameras, main)


def _our_cameras(entries: Any) -> dict[str, tuple[Camera, RigidTransform]]:
    cameras = {}
    for name, entry in entries.items() if isinstance(entries, Mapping) else ():
        pose = _pose(field(entry, "T_rig_camera"), f"T_rig_camera of {name}")
        values = {key: value for key, value in entry.items() if key != "T_rig_camera"}
        camera = Camera.from_json({"model": "pinhole", **values}, f"camera {name}")
        cameras[str(name)] = camera, pose
    if not cameras:
        raise CalibrationError("'cameras' must map names to cameras.")
    return cameras


def _chained(content: Mapping[str, Any], names: list[str]) -> dict[str, RigidTransform]:
    """Return T_rig_camera of cameras with the pose of the one before in each; rig: the first."""
    poses = dict.fromkeys(names[:1], np.eye(4))
    for before, name in pairwise(names):
        if is_mapping_with(content, name) and is_mapping_with(content[name], "T_cn_cnm1"):
            step = _pose(content[name]["T_cn_cnm1"], f"T_cn_cnm1 of {name}")
        elif is_mapping_with(content, "R", "T") and len(names) == 2:
            rotation = np.reshape(numbers(content["R"], "R", 9), (3, 3))
            top = np.c_[rotation, numbers(content["T"], "T", 3)]
            step = _pose([*top.ravel().tolist(), 0, 0, 0, 1], "R, T")
        else:
            raise CalibrationError(
                f"camera {name!r} has no pose; valid: T_cn_cnm1 of each camera after cam0 "
                "(Kalibr), R and T of two (OpenCV), or T_rig_camera of each in our `cameras:`."
            )
        poses[name] = poses[before] @ frames.inverse(step)
    return poses


def _pose(value: Any, key: str) -> RigidTransform:
    """Return a rigid transform of 16 numbers, row-major. Raises CalibrationError: it is none."""
    pose = np.reshape(numbers(value, key, 16), (4, 4))
    rotation = rotations.project_to_rotation(pose[:3, :3])
    if np.abs(rotation - pose[:3, :3]).max() > _ROTATION_ERROR or (pose[3] != [0, 0, 0, 1]).any():
        raise CalibrationError(
            f"{key} is no rigid transform: a rotation (right-handed), and 0 0 0 1 in the last row."
        )
    return frames.rigid(rotation, pose[:3, 3])


def _check_distance(name: str, pose: RigidTransform) -> None:
    if (away := float(np.linalg.norm(pose[:3, 3]))) > _MOST_M:
        raise CalibrationError(
            f"Camera {name!r} is {away:g} m from the input's; valid: up to {_MOST_M:g} m. For a "
            "rig in millimetres add `unit: mm` to its file; --baseline is in metres."
        )
    if name != DEPTH and away < _LEAST_M:
        raise CalibrationError(
            f"Camera {name!r} is {1000 * away:g} mm from the input's; valid: at least "
            f"{1000 * _LEAST_M:g} mm. Lengths are metres, or what a field `unit` of the file says."
        )


def open_views(
    recording: Recording, options: RigOptions, open_view: Callable[[str], Recording]
) -> tuple[Recording, Rig | None]:
    """Return a recording with its camera and views by the options, and the rig of their file.

    Without a rig, the right view of a pair has no camera yet. Views have all of their frames, with
    times on the recording's clock.

    Args:
        open_view: opens what ``--view`` names.

    Raises:
        CalibrationError: see ``read_rig``; a camera is unknown or of another shape; cameras at the
            same place or more than 5 m apart; left and right exchanged.
        InputError: rotated or mirrored pictures, a view at other times than the recording.
    """
    _refuse_turned(recording)
    sources: dict[str, Recording] = {}
    if options.stereo is not None:
        recording, right = _halves(recording, options.stereo)
    if options.baseline_m is not None:
        pose = frames.rigid(np.eye(3), np.array([options.baseline_m, 0.0, 0.0]))
        _check_distance("right", pose)
        views = [View("right", right, pose)]
        _check_sides(views[0], options.stereo)
        return replace(recording, views=tuple(views)), None
    if options.rig is None:
        return recording, None

    rig = read_rig(options.rig, (recording.width, recording.height))
    rig = replace(rig, main=rig.main or _first(rig, options))
    camera = rig.fitted(rig.main, recording.width, recording.height)
    note = f"camera {rig.main} of the rig {rig.file.name}"
    recording = replace(recording, camera=camera, notes=(*recording.notes, note))
    if options.stereo is not None:
        sources = {_second(rig): right}
    for name, value in options.views.items():
        view = open_view(value)
        _refuse_turned(view)
        if name == rig.main or view.sha256 == recording.sha256:
            raise InputError(f"--view {name}={value} is the input or its camera; give another's.")
        times = view.timestamps_ns - round(options.offsets_s.get(name, 0.0) * 1e9)
        check_overlap(recording, times, f"--view {name}={value}")
        sources[name] = replace(view, timestamps_ns=times)

    views = []
    for name, source in sources.items():
        camera = rig.fitted(name, source.width, source.height)
        views.append(View(name, replace(source, camera=camera), rig.T_main(name)))
        _check_sides(views[-1], options.stereo)
    return replace(recording, views=tuple(views)), rig


def check_overlap(recording: Recording, times_ns: TimestampsNs, what: str) -> None:
    """Raise InputError for times that are all before or after those of the recording."""
    own = recording.timestamps_ns
    if times_ns[-1] < own[0] or own[-1] < times_ns[0]:
        a, b, c, d = (f"{int(time) / 1e9:.3f}" for time in (*times_ns[[0, -1]], *own[[0, -1]]))
        raise InputError(
            f"{what} is of {a} to {b} s, {recording.source} of {c} to {d} s: no time in common. "
            "Both must have one clock; for a view, give --view-offset NAME=SECONDS."
        )


def _refuse_turned(recording: Recording) -> None:
    changes = recording.processing
    if recording.frames is None:
        raise InputError(f"{recording.source} has no pictures; rigs and depth do not apply to it.")
    if changes.get("mirrored") or changes.get("rotation"):
        raise InputError(
            f"{recording.source} is mirrored or rotated when it is read (--mirrored, or by its "
            "metadata), but rigs and depth are of the camera's own pictures. Write it upright "
            "(ffmpeg -i IN OUT) and calibrate that."
        )


def _halves(recording: Recording, stereo: Stereo) -> tuple[Recording, Recording]:
    """Return the left and the right recording of a video with both pictures."""
    axis = 0 if stereo == "top-bottom" else 1
    shape = [recording.height, recording.width]
    if shape[axis] % 2:
        raise InputError(f"{recording.source} has {shape[axis]} pixels, which cannot be halved.")
    shape[axis] //= 2
    said, halves = {**recording.processing, "stereo": stereo}, []
    for start in (0, shape[axis]):
        assert recording.frames is not None
        cut = partial(_cut, axis, start, start + shape[axis])
        half = replace(recording, frames=ChangedFrames(recording.frames, cut), processing=said)
        halves.append(replace(half, height=shape[0], width=shape[1]))
    left, right = halves if stereo != "right-left" else halves[::-1]
    return left, right


def _cut(axis: int, start: int, stop: int, image: ImageRgb) -> ImageRgb:
    return np.ascontiguousarray(image[start:stop] if axis == 0 else image[:, start:stop])


def _first(rig: Rig, options: RigOptions) -> str:
    """Return the camera of the input: the left one of a pair, else the first without a view."""
    free = [name for name in rig.cameras if name not in (*options.views, DEPTH)]
    if not free:
        raise CalibrationError(f"{rig.file}: all cameras are views; one must be the input's.")
    return "left" if options.stereo and "left" in free else free[0]


def _second(rig: Rig) -> str:
    """Return the right camera of a side-by-side video."""
    others = [name for name in rig.cameras if name not in (rig.main, DEPTH)]
    if len(others) != 1:
        there = ", ".join(rig.cameras)
        raise CalibrationError(f"{rig.file} has {there}; --stereo needs a left and a right one.")
    return others[0]


def _check_sides(view: View, stereo: Stereo | None) -> None:
    """Raise CalibrationError for a right camera that is to the left of the input's."""
    moved = view.T_camera_view[:3, 3]
    if stereo is not None and moved[0] < -0.5 * np.linalg.norm(moved):
        other = "left-right" if stereo == "right-left" else "right-left"
        raise CalibrationError(
            f"--stereo {stereo}: {view.name!r}, the right camera, is {-moved[0]:.3f} m left of "
            f"the other: they are exchanged. Valid: --stereo {other}, or --rig FILE:NAME of the "
            "camera whose picture comes first."
        )
