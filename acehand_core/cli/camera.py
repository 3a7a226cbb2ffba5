"""``acehand camera show|presets|estimate|convert``."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.recordings.options import RecordingOptions
from acehand_core.settings import like, pixels, setting

if TYPE_CHECKING:
    from acehand_core.camera.focal_length import FocalLengthEstimate as FocalEstimate
    from acehand_core.motion import Recording
    from acehand_core.recordings.camera_fields import CameraHints
    from acehand_core.recordings.camera_files import CameraFile

_FILE = "a camera file (:NAME selects one of several cameras), or a preset"
#: Distortion coefficients by model, in the order of a camera file (docs/formats.md).
_COEFFICIENTS = {
    "pinhole": "",
    "brown_conrady": "k1 k2 p1 p2 k3 k4 k5 k6",
    "kannala_brandt": "k1 k2 k3 k4",
    "fisheye624": "k1 k2 k3 k4 k5 k6 p1 p2 s1 s2 s3 s4",
}


@dataclass(frozen=True, slots=True)
class ShowCamera:
    """Print a camera file or preset, and draw it.

    `output` shows VIDEO's first frame, or a grid, before and after undistortion. Lines that are
    straight in the world must be straight in the right half; otherwise the camera is another one.
    """

    file: Path = setting(..., _FILE, metavar="FILE[:NAME]", positional=True)
    video: Path | None = setting(
        None, "a recording of this camera", metavar="VIDEO", positional=True
    )
    size: tuple[int, int] | None = setting(
        None, "size of the calibrated pictures, if the file lacks it", metavar="WxH", parse=pixels
    )
    output: Path | None = setting(None, "the picture", metavar="PNG")
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.atomic import check_free
        from acehand_core.drawing.camera_view import before_and_after
        from acehand_core.drawing.overlay import write_png
        from acehand_core.recordings.camera_fields import CameraHints
        from acehand_core.recordings.cameras import fit_camera_to

        if self.output is not None:
            check_free(self.output, self.overwrite)
        image = shown = None
        if self.video is not None and (frames := _raw(self.video).frames) is not None:
            image = frames.at(0)
            shown = image.shape[1], image.shape[0]
        file = _read(self.file, CameraHints(self.size), self.size or shown)
        camera = file.camera
        if shown is not None:
            camera = fit_camera_to(camera, *shown)

        report = _report(self.file, file)
        _describe(report)
        if self.output is not None:
            write_png(before_and_after(camera, image), self.output)
            report["output"] = str(self.output)
            console.say(str(self.output))
        terminal.print_json(report)
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class ConvertCamera:
    """Write a camera file of any format, or a preset, in acehand's format (docs/formats.md).

    `size` and `model` supply what a file lacks; an error message asks for them.
    """

    file: Path = setting(..., _FILE, metavar="FILE[:NAME]", positional=True)
    size: tuple[int, int] | None = like(ShowCamera, "size", None)
    model: Literal["pinhole", "brown_conrady", "kannala_brandt"] | None = setting(
        None, "camera model of the coefficients, if the file lacks it"
    )
    rotate: Literal["0", "90", "180", "270"] = setting(
        "0", "degrees by which the video was turned clockwise after recording"
    )
    output: Path | None = setting(
        None, "the camera file", metavar="JSON", default_text="standard output"
    )
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.atomic import atomic_path
        from acehand_core.recordings.camera_fields import CameraHints

        read = _read(self.file, CameraHints(self.size, self.model), self.size)
        values = read.camera.rotated(int(self.rotate)).to_json()
        if read.note:
            console.say(read.note)
        if self.output is not None:
            with atomic_path(self.output, self.overwrite) as partial:
                partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
            console.say(f"{self.output}: {read.format}, {values['model']}")
        elif not terminal.json:
            console.print_json(values)
        report = {"camera": values, "format": read.format, "name": read.name}
        terminal.print_json(report | {"output": self.output and str(self.output)})
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Presets:
    """List the presets of cameras, with fields of view and sources."""

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.recordings.camera_presets import PRESETS

        for name, preset in PRESETS.items():
            console.say(f"{name}: {preset.title}")
            for view in preset.views:
                console.say(f"  {view.stated()}{', distorted' if preset.wide else ''}")
            console.say(f"  {preset.source}")
        terminal.print_json({"presets": {name: asdict(preset) for name, preset in PRESETS.items()}})
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate the focal length of a video from its pictures.

    Two methods must agree: the motion of a rigid scene, and straight lines at right angles.
    Otherwise the exit code is 1. A fisheye is recognised, but not estimated; the principal point is
    the middle of the picture.
    """

    video: Path = setting(..., "a recording of this camera", metavar="VIDEO", positional=True)
    output: Path | None = setting(None, "the camera file, if the methods agree", metavar="JSON")
    picture: Path | None = setting(None, "picture of the straight lines", metavar="PNG")
    start_s: float | None = like(RecordingOptions, "start_s", None)
    duration_s: float | None = like(RecordingOptions, "duration_s", None)
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.atomic import atomic_path, check_free
        from acehand_core.camera.focal_length import estimate
        from acehand_core.drawing.camera_view import lines_in
        from acehand_core.drawing.overlay import write_png

        for path in filter(None, (self.output, self.picture)):
            check_free(path, self.overwrite)
        result = estimate(_raw(self.video, self.start_s, self.duration_s), terminal.bars)
        report = _estimate_report(self.video, result)
        if self.output is not None and result.camera is not None:
            with atomic_path(self.output, self.overwrite) as partial:
                text = json.dumps(result.camera.to_json(), indent=1)
                partial.write_text(text + "\n", encoding="utf-8")
            report["output"] = str(self.output)
        if self.picture is not None:
            drawn = lines_in(result.picture, result.segments, result.camera, result.directions)
            write_png(drawn, self.picture)
            report["picture"] = str(self.picture)

        _say_estimate(report)
        terminal.print_json(report)
        return console.EXIT_OK if result.camera is not None else console.EXIT_SOME_FAILED


def _estimate_report(video: Path, result: FocalEstimate) -> dict[str, Any]:
    from acehand_core.camera.focal_length import field_of_view

    def number(value: float, digits: int = 4) -> float | None:
        return round(value, digits) if math.isfinite(value) else None

    return {
        "video": str(video),
        "accepted": result.camera is not None,
        "reason": result.reason,
        "camera": None if result.camera is None else result.camera.to_json(),
        "error": number(result.error),
        "lens": result.findings[0].lens,
        "methods": {
            method.name: {
                "field_of_view_deg": None if method.focal is None
                else number(field_of_view(method.focal, method.lens), 2),
                "error": number(method.error),
                "parts": method.parts,
                "reason": method.reason,
            }
            for method in result.findings
        },
        "output": None,
        "picture": None,
    }  # fmt: skip


def _say_estimate(report: dict[str, Any]) -> None:
    for name, method in report["methods"].items():
        angle, error, why = method["field_of_view_deg"], method["error"], method["reason"]
        result = "nothing" if angle is None else f"{angle:.1f} degrees across the longer side"
        result += "" if error is None else f", focal length +- {100 * error:.1f} %"
        console.say(f"  {name:<8} {result}" + (f" ({why})" if why else ""))
    camera = report["camera"]
    if camera is None:
        console.say(f"{report['video']}: no estimate: {report['reason']}")
        console.say("Calibrate the camera, or use one of `acehand camera presets`.")
        return
    console.say(
        f"{report['video']}: fx = fy = {camera['fx']:.1f} px +- {100 * report['error']:.1f} %, "
        f"{report['lens']}; check with acehand camera show: edges must be straight"
    )
    for path in filter(None, (report["output"], report["picture"])):
        console.say(path)


def _read(file: Path, hints: CameraHints, size: tuple[int, int] | None) -> CameraFile:
    """Read a camera file, or return a preset's camera of this size (None: its own shape)."""
    from acehand_core.recordings.camera_files import CameraFile, read_camera
    from acehand_core.recordings.camera_presets import PRESETS, preset_camera

    preset = PRESETS.get(str(file))
    if preset is None or file.exists():
        return read_camera(file, hints)
    shape = preset.views[0].shape or (16, 9)
    camera = preset_camera(str(file), *(size or (1920, round(1920 * shape[1] / shape[0]))))
    return CameraFile(camera, "preset", str(file), (str(file),), f"{preset.title}: {preset.source}")


def _raw(video: Path, start_s: float | None = None, duration_s: float | None = None) -> Recording:
    """Open a recording with its original pictures."""
    from acehand_core.errors import InputError
    from acehand_core.recordings.registry import open_recording

    options = RecordingOptions(camera_metadata=False, start_s=start_s, duration_s=duration_s)
    recording = open_recording(video, options)
    if recording.frames is None:
        raise InputError(f"{video} has no pictures; give a video.")
    if "undistorted" in recording.processing:
        raise InputError(
            f"{video} has its own calibration and is undistorted on reading; give a video without "
            "one, or none."
        )
    return recording


def _report(file: Path, read: CameraFile) -> dict[str, Any]:
    import numpy as np

    camera = read.camera
    across, down = np.meshgrid(np.arange(camera.width)[::8], np.arange(camera.height)[::8])
    rays = camera.unproject(np.stack([across, down], axis=-1).astype(float))
    angles = zip(("horizontal", "vertical", "diagonal"), camera.field_of_view(), strict=True)
    return {
        "file": str(file),
        "format": read.format,
        "name": read.name,
        "names": list(read.names),
        "note": read.note,
        "camera": camera.to_json(),
        "field_of_view_deg": {
            name: round(math.degrees(angle), 2) if math.isfinite(angle) else None
            for name, angle in angles
        },
        "max_angle_deg": round(math.degrees(camera.max_angle), 2),
        "described": round(float(np.isfinite(rays).all(axis=-1).mean()), 4),
        "output": None,
    }


def _describe(report: dict[str, Any]) -> None:
    camera, view = report["camera"], report["field_of_view_deg"]
    others = ", ".join(name for name in report["names"] if name != report["name"])
    which = f", camera {report['name']} (others: {others})" if others else ""
    console.say(f"{report['file']}: {report['format']}{which}")
    console.say(f"  model           {camera['model']}")
    console.say(f"  size            {camera['width']} x {camera['height']} px")
    console.say(f"  focal length    {camera['fx']:.2f}, {camera['fy']:.2f} px")
    off = [camera[c] - (camera[size] - 1) / 2 for c, size in (("cx", "width"), ("cy", "height"))]
    console.say(
        f"  principal point {camera['cx']:.2f}, {camera['cy']:.2f} px "
        f"({off[0]:+.1f}, {off[1]:+.1f} from the middle)"
    )

    angles = ", ".join(
        f"{name} {'beyond the model' if angle is None else f'{angle:.1f} degrees'}"
        for name, angle in view.items()
    )
    console.say(f"  field of view   {angles}")
    names = _COEFFICIENTS[camera["model"]].split()
    pairs = (f"{name} {value:.6g}" for name, value in zip(names, camera["distortion"], strict=True))
    console.say(f"  distortion      {', '.join(pairs) or 'none'}")
    if report["described"] < 0.999:  # it need not reach the very corners
        console.say(
            f"  the model covers {100 * report['described']:.0f} % of the picture, up to "
            f"{report['max_angle_deg']:.0f} degrees from the axis"
        )
    if report["note"]:
        console.say(f"  {report['note']}")
