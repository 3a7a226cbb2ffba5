"""``acehand camera show|convert``: what a camera file says, and any such file as ours."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.settings import setting

if TYPE_CHECKING:
    from acehand_core.recordings.camera_files import CameraFile
    from acehand_core.types import ImageRgb

_FILE = "a camera file; :NAME says which of several cameras"
#: Coefficients by model, in the order of a camera file (docs/formats.md).
_COEFFICIENTS = {
    "pinhole": "",
    "brown_conrady": "k1 k2 p1 p2 k3 k4 k5 k6",
    "kannala_brandt": "k1 k2 k3 k4",
    "fisheye624": "k1 k2 k3 k4 k5 k6 p1 p2 s1 s2 s3 s4",
}
#: A model need not reach the very corners of a picture.
_ALL = 0.999


def _size(text: str) -> tuple[int, int]:
    width, height = text.lower().split("x")
    return int(width), int(height)


@dataclass(frozen=True, slots=True)
class Show:
    """Say what a camera file holds, whatever format it has, and draw it.

    With --output a picture before and after undistortion: of VIDEO's first frame, or of a grid.
    What is straight in the world is straight in the right half, or it is not this camera.
    """

    file: Path = setting(..., _FILE, metavar="FILE[:NAME]", positional=True)
    video: Path | None = setting(
        None, "a recording of this camera", metavar="VIDEO", positional=True
    )
    output: Path | None = setting(None, "the picture", metavar="PNG")
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Describe it; draw it if wanted."""
        from acehand_core.atomic import check_free
        from acehand_core.drawing.camera_view import before_and_after
        from acehand_core.drawing.overlay import write_png
        from acehand_core.recordings.camera_files import read_camera
        from acehand_core.recordings.cameras import fit_camera_to

        found = read_camera(self.file)
        if self.output is not None:
            check_free(self.output, self.overwrite)
        camera, image = found.camera, None
        if self.video is not None:
            image = _first_frame(self.video)
            camera = fit_camera_to(camera, image.shape[1], image.shape[0])

        report = _report(self.file, found)
        _describe(report)
        if self.output is not None:
            write_png(before_and_after(camera, image), self.output)
            report["output"] = str(self.output)
            console.say(str(self.output))
        terminal.print_json(report)
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Convert:
    """Write a camera file of any format as ours (docs/formats.md).

    --size and --model say what a file leaves open; its message says when they are needed.
    """

    file: Path = setting(..., _FILE, metavar="FILE[:NAME]", positional=True)
    size: tuple[int, int] | None = setting(
        None, "of the calibrated pictures, in pixels", metavar="WxH", parse=_size
    )
    model: Literal["pinhole", "brown_conrady", "kannala_brandt"] | None = setting(
        None, "what the file's coefficients are of, where it does not say"
    )
    rotate: Literal["0", "90", "180", "270"] = setting(
        "0", "of a video that was turned clockwise by so many degrees after recording"
    )
    output: Path | None = setting(
        None, "the camera file", metavar="JSON", default_text="standard output"
    )
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Read, check and write it."""
        from acehand_core.atomic import atomic_path
        from acehand_core.recordings.camera_fields import Said
        from acehand_core.recordings.camera_files import read_camera

        found = read_camera(self.file, Said(self.size, self.model))
        values = found.camera.rotated(int(self.rotate)).to_json()
        if found.note:
            console.say(found.note)
        if self.output is not None:
            with atomic_path(self.output, self.overwrite) as partial:
                partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
            console.say(f"{self.output}: {found.format}, {values['model']}")
        elif not terminal.json:
            console.print_json(values)
        output = None if self.output is None else str(self.output)
        terminal.print_json(
            {"camera": values, "format": found.format, "name": found.name, "output": output}
        )
        return console.EXIT_OK


def _first_frame(video: Path) -> ImageRgb:
    from acehand_core.errors import InputError
    from acehand_core.recordings.options import RecordingOptions
    from acehand_core.recordings.registry import open_recording

    recording = open_recording(video, RecordingOptions())
    if recording.frames is None:
        raise InputError(f"{video} has no pictures; give a video.")
    if "undistorted" in recording.processing:
        raise InputError(
            f"{video} brings its own calibration, with which it is undistorted on reading; give a "
            "video without, or leave it away."
        )
    return recording.frames.at(0)


def _report(file: Path, found: CameraFile) -> dict[str, Any]:
    import numpy as np

    camera = found.camera
    across, down = np.meshgrid(np.arange(camera.width)[::8], np.arange(camera.height)[::8])
    rays = camera.unproject(np.stack([across, down], axis=-1).astype(float))
    angles = zip(("horizontal", "vertical", "diagonal"), camera.field_of_view(), strict=True)
    return {
        "file": str(file),
        "format": found.format,
        "name": found.name,
        "names": list(found.names),
        "note": found.note,
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
    others = [name for name in report["names"] if name != report["name"]]
    console.say(f"{report['file']}: {report['format']}" + (
        f", camera {report['name']} (others: {', '.join(others)})" if others else ""
    ))  # fmt: skip
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
    if report["described"] < _ALL:
        console.say(
            f"  the model describes {100 * report['described']:.0f} % of the picture, up to "
            f"{report['max_angle_deg']:.0f} degrees from the axis"
        )
    if report["note"]:
        console.say(f"  {report['note']}")
