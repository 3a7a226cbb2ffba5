"""Presets of uncalibrated cameras: published fields of view, which differ by some percent."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from acehand_core.errors import CalibrationError, InputError, nearest
from acehand_core.geometry.cameras import Camera
from acehand_core.user_files import read_yaml, structured

#: Image shapes are equal up to this relative difference of their aspect ratios.
_ASPECT_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetView:
    """The field of view in pictures of one shape.

    Attributes:
        shape: aspect ratio of the picture (width, height); None: any, angles of the longer side.
        horizontal, vertical, diagonal: whole angles in degrees; None: not published.
        focal: focal length in the centre, in widths of the picture; None: not published.
    """

    shape: tuple[int, int] | None
    horizontal: int | float | None = None
    vertical: int | float | None = None
    diagonal: int | float | None = None
    focal: int | float | None = None

    def stated(self) -> str:
        """Return the published angles as text."""
        names = ("horizontal", "vertical", "diagonal")
        angles = [f"{getattr(self, n):g} {n}" for n in names if getattr(self, n) is not None]
        focal = [] if self.focal is None else [f"focal length {self.focal:g} widths"]
        shape = "any shape" if self.shape is None else f"{self.shape[0]}:{self.shape[1]}"
        return f"{', '.join([*angles, *focal])} at {shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A kind of camera.

    ``wide``: a wide-angle lens with distortion. ``crops``: pictures of other shapes are crops of
    the first view's; else only the listed shapes are valid.
    """

    title: str
    source: str
    views: tuple[PresetView, ...]
    wide: bool = False
    crops: bool = False


def _published() -> Mapping[str, Preset]:
    path = Path(__file__).with_suffix(".yaml")
    return structured(dict[str, Preset], read_yaml(path), path)


#: Presets by name.
PRESETS = _published()


def same_shape(
    one: tuple[int | float, int | float], other: tuple[int | float, int | float]
) -> bool:
    """Return whether two (width, height) have the same ratio, up to 1 %."""
    return abs(math.log(one[0] / one[1] / (other[0] / other[1]))) <= _ASPECT_TOLERANCE


def preset_camera(name: str, width: int, height: int) -> Camera:
    """Return a preset's camera for pictures of a size, with a centred principal point.

    Upright pictures are those of a rotated camera. A wide lens is Kannala-Brandt with k1 alone, by
    least squares through the published angles; equidistant (k1 = 0) for a single angle.

    Raises:
        InputError: no such preset.
        CalibrationError: no published angles for this shape.
    """
    if name not in PRESETS:
        raise InputError(f"`camera_preset={name!r}`; {nearest(name, PRESETS)}")
    preset = PRESETS[name]
    upright = height > width
    across, down = (height, width) if upright else (width, height)
    view, whole = _view_of(name, preset, across, down)
    focal, k1 = lens_through(view, preset.wide)
    focal *= whole
    centre = (width - 1) / 2, (height - 1) / 2
    if preset.wide:
        return Camera("kannala_brandt", width, height, focal, focal, *centre, (k1, 0.0, 0.0, 0.0))
    return Camera("pinhole", width, height, focal, focal, *centre)


def _view_of(name: str, preset: Preset, across: int, down: int) -> tuple[PresetView, float]:
    """Return the view of a picture, or that it is a crop of, and the view's width in pixels."""
    for view in preset.views:
        if view.shape is None or same_shape(view.shape, (across, down)):
            return replace(view, shape=(across, down)), float(across)
    if preset.crops:
        view = preset.views[0]
        assert view.shape is not None
        return view, float(max(across, down * view.shape[0] / view.shape[1]))
    shapes = ", ".join(f"{v.shape[0]}:{v.shape[1]}" for v in preset.views if v.shape is not None)
    raise CalibrationError(
        f"`camera_preset={name}`: the video has {across} x {down} pixels, but its field of view is "
        f"published for {shapes} only. Give a calibration (`camera`)."
    )


def presets_for(width: int, height: int) -> list[str]:
    """Return the names of the presets that support a picture size."""
    names = []
    for name in PRESETS:
        with contextlib.suppress(CalibrationError):
            preset_camera(name, width, height)
            names.append(name)
    return names


def preset_note(name: str, camera: Camera) -> str:
    """Return a recording's note on a preset camera."""
    return (
        f"camera preset {name} ({PRESETS[name].title}; fx = fy = {camera.fx:.1f} px): of this kind "
        "of camera, not calibrated; distances scale with it"
    )


def lens_through(view: PresetView, wide: bool) -> tuple[float, float]:
    """Return the focal length in widths of the picture, and k1, through a view's angles."""
    assert view.shape is not None
    aspect = view.shape[1] / view.shape[0]
    edges = (
        (view.horizontal, 0.5),
        (view.vertical, aspect / 2),
        (view.diagonal, math.hypot(1, aspect) / 2),
    )
    known = [(math.radians(angle) / 2, radius) for angle, radius in edges if angle is not None]
    angle, radius = np.array(known).T
    if not wide:
        slope = np.tan(angle)
        return float(slope @ radius / (slope @ slope)), 0.0
    if view.focal is not None:  # radius = focal (angle + k1 angle^3)
        cubic = view.focal * angle**3
        return view.focal, float(cubic @ (radius - view.focal * angle) / (cubic @ cubic))
    if len(known) == 1:
        return float(radius[0] / angle[0]), 0.0
    linear, cubic_part = np.linalg.lstsq(np.stack([angle, angle**3], axis=1), radius, rcond=None)[0]
    return float(linear), float(cubic_part / linear)
