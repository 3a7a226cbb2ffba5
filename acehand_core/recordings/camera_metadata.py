"""Cameras from metadata of phones, GoPros and photographs, or estimated from the pictures.

A 35 mm equivalent focal length refers to the diagonal of 43.27 mm: focal = mm / 43.27 * diagonal in
pixels. A phone's refers to its 4:3 sensor; a wider video has the sensor's width and less of its
height, and stabilisation crops further.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.camera import FOCAL_LENGTH_VERSION
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.recordings.video_index import boxes, open_container
from acehand_core.types import Progress

#: Relative standard deviation of the focal length of a kind of camera, and of metadata:
#: stabilisation crops by about a tenth.
KIND_SIGMA = 0.1
#: Diagonal of a picture on 35 mm film, 36 x 24 mm.
FILM_MM = math.hypot(36, 24)
_APPLE = "com.apple.quicktime.camera.focal_length.35mm_equivalent"
#: Keys written by phones only: QuickTime of Apple, MP4 of Android.
_PHONE_TAGS = ("com.apple.quicktime.model", "com.android.manufacturer", "com.android.model")
#: 35 mm equivalents of existing lenses; 0 means unknown.
_LENSES_MM = (5.0, 500.0)
#: GoPro's header has some kilobytes.
_MAX_BOX = 1 << 20
#: Nested keys; a GoPro has one or two levels.
_MAX_DEPTH = 8
#: Largest error of the model fitted to the stored lens polynomial, in half diagonals.
_CLOSE = 0.003
#: GoPro's number types -> struct's.
_NUMBERS = dict(zip("bBsSlLjJfd", "bBhHiIqQfd", strict=True))


@dataclass(frozen=True, slots=True)
class CameraDescription:
    """A camera from metadata; None: unusable.

    ``assumed``: the preset of a known kind of camera. ``sigma``: of the focal length, relative.
    """

    camera: Camera | None
    note: str
    assumed: bool = False
    sigma: float = KIND_SIGMA


def descriptions(
    lens: CameraDescription | None, estimated: Callable[[], CameraDescription] | None
) -> Iterator[CameraDescription]:
    """Yield lens metadata, an estimate, a preset of the kind, up to the first with a camera."""
    assumed = lens is not None and lens.assumed
    candidates = (lambda: None if assumed else lens, estimated, lambda: lens if assumed else None)
    for candidate in candidates:
        description = candidate() if candidate is not None else None
        if description is not None:
            yield description
            if description.camera is not None:
                return


def described_by_video(path: Path, width: int, height: int) -> CameraDescription | None:
    """Return the camera in a video's metadata, for upright pictures of a size; None: no metadata.

    Sources: Apple's QuickTime key for the focal length; field of view and lens polynomial in a
    GoPro's header (https://github.com/gopro/gpmf-parser, docs: ZFOV, VFOV, PYCF, POLY). Raises
    VideoError.
    """
    with open_container(path) as container:
        tags = {name.lower(): value for name, value in container.metadata.items()}
    millimetres = _number(tags.get(_APPLE))
    if millimetres is not None:
        across, down = max(width, height), min(width, height)
        sensor = max(across, down * 4 / 3) * 5 / 4  # diagonal of the 4:3 sensor
        camera = _pinhole(millimetres / FILM_MM * sensor, width, height)
        return CameraDescription(
            camera,
            f"focal length of the file's metadata: {millimetres:g} mm by 35 mm film, fx = fy = "
            f"{camera.fx:.1f} px; stabilisation may crop the picture, and the true focal length "
            "is then longer; distances scale with it",
        )

    values = _gopro_header(path)
    if values is not None and {"ZFOV", "VFOV"} <= set(values):
        return _gopro(values, width, height)
    if phone := " ".join(filter(None, (tags.get(name, "").strip() for name in _PHONE_TAGS))):
        from acehand_core.recordings.camera_presets import preset_camera, preset_note

        camera = preset_camera("phone", width, height)
        note = f"the file's metadata name a phone ({phone}) and no focal length"
        return CameraDescription(camera, f"{note}: {preset_note('phone', camera)}", assumed=True)
    return None


def described_by_pictures(
    recording: Recording, work_dir: Path | None, progress: Progress
) -> CameraDescription:
    """Return the camera estimated from a recording's pictures, or why there is none.

    ``work_dir`` keeps it for a second run with the same pictures.
    """
    from acehand_core.camera.focal_length import estimate, field_of_view

    kept = None
    if work_dir is not None and recording.sha256 is not None:
        times = hashlib.sha256(recording.timestamps_ns.tobytes()).hexdigest()
        versions = FOCAL_LENGTH_VERSION, cv2.__version__
        key = [*versions, recording.sha256, times, dict(recording.processing)]
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        kept = work_dir / f"camera_{name}.json"
    if kept is not None and kept.is_file():
        stored = json.loads(kept.read_text("utf-8"))
        camera = None if stored["camera"] is None else Camera.from_json(stored["camera"], str(kept))
        return CameraDescription(camera, stored["note"], sigma=stored.get("sigma", KIND_SIGMA))

    def shown(stage: str, done: int, total: int) -> None:
        progress(f"camera, {stage}", done, total)

    result = estimate(recording, shown, thorough=False)
    camera, note = result.camera, f"`camera_estimate` proposes no camera: {result.reason}"
    if camera is not None:
        angles = ", ".join(
            f"{method.name} {field_of_view(method.focal, method.lens):.1f}"
            for method in result.findings
            if method.focal is not None
        )
        note = (
            f"camera estimated from the pictures: {result.findings[0].lens}, fx = fy = "
            f"{camera.fx:.1f} px +- {100 * result.error:.1f} % (standard error; degrees across by "
            f"{angles}); distances scale with it"
        )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(kept, overwrite=True) as partial:
            content = {"camera": camera and camera.to_json(), "note": note, "sigma": result.error}
            partial.write_text(json.dumps(content), "utf-8")
    return CameraDescription(camera, note, sigma=result.error)


def described_by_picture(path: Path, width: int, height: int) -> CameraDescription | None:
    """Return the camera that a photograph's EXIF describes (FocalLengthIn35mmFilm), or None."""
    try:
        with av.open(f"file:{path}", options={"protocol_whitelist": "file"}) as container:
            frame = next(container.decode(video=0))
    except (av.FFmpegError, OSError, StopIteration):
        return None  # reading the picture raises
    tags: Mapping[str, str] = getattr(frame, "metadata", {})  # not in PyAV before 16
    values = (v for name, v in tags.items() if name.endswith("FocalLengthIn35mmFilm"))
    millimetres = _number(next(values, None))
    if millimetres is None:
        return None
    camera = _pinhole(millimetres / FILM_MM * math.hypot(width, height), width, height)
    note = (
        f"focal length of the pictures' EXIF: {millimetres:g} mm by 35 mm film, fx = fy = "
        f"{camera.fx:.1f} px; distances scale with it"
    )
    return CameraDescription(camera, note)


def _number(text: str | None) -> float | None:
    """Return a focal length in millimetres; None: implausible."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if _LENSES_MM[0] <= value <= _LENSES_MM[1] else None


def _pinhole(focal: float, width: int, height: int) -> Camera:
    return Camera("pinhole", width, height, focal, focal, (width - 1) / 2, (height - 1) / 2)


def _gopro(values: Mapping[str, Any], width: int, height: int) -> CameraDescription | None:
    """Return the camera of a GoPro's header.

    ZFOV is the diagonal angle. POLY is the angle to the axis over the distance from the centre,
    whose unit follows from the corner's angle.
    """
    style, diagonal = str(values["VFOV"]).strip("\0 "), _first(values["ZFOV"])
    zoomed = str(values.get("DZOM", "N")).startswith("Y") and _first(values.get("DZST", (0,))) != 0
    why = "the digital zoom was on" if zoomed else f"its lens is {style!r}, not W or L"
    if zoomed or style not in ("W", "L"):
        note = f"the file is a GoPro's, but {why}: its field of view is not used"
        return CameraDescription(None, note)
    from acehand_core.recordings.camera_presets import PRESETS, lens_through, same_shape

    output = _first(values.get("ARWA", (0,)))
    if output and not same_shape((max(width, height), min(width, height)), (output, 1)):
        return None  # a cropped copy
    half, corner = math.radians(diagonal) / 2, math.hypot(width, height) / 2
    if not 0.1 < half < math.radians(88 if style == "L" else 120):
        return None

    stabilised = str(values.get("EISE", "N")).startswith("Y")
    moves = "; stabilisation was on, so the picture is cropped and moves" if stabilised else ""
    note = (
        f"field of view of the GoPro's metadata: {diagonal:.1f} degrees diagonal, lens {style}"
        f"{moves}; distances scale with it"
    )
    if style == "L":
        return CameraDescription(_pinhole(corner / math.tan(half), width, height), note)

    _, k1 = lens_through(PRESETS["gopro_wide"].views[0], wide=True)
    fitted = _polynomial_lens(values.get("POLY"), half)
    focal, k = fitted or (1 / (half + k1 * half**3), (k1, 0.0, 0.0, 0.0))
    centre = (width - 1) / 2, (height - 1) / 2
    lens = Camera("kannala_brandt", width, height, focal * corner, focal * corner, *centre, k)
    return CameraDescription(lens, note)


def _polynomial_lens(
    polynomial: Any, half: float
) -> tuple[float, tuple[float, float, float, float]] | None:
    """Return focal length in half diagonals and k1..k4 of a polynomial; None: not a lens.

    ``polynomial``: coefficients of the angle to the axis over the distance from the centre;
    ``half``: the corner's angle in radians.
    """
    usable = isinstance(polynomial, tuple) and len(polynomial) >= 2
    if not usable or not np.isfinite(polynomial).all() or abs(polynomial[0]) > 1e-3:
        return None
    reach = np.linspace(0, 2, 2001)
    angles = np.polynomial.Polynomial(polynomial)(reach)
    end = int(np.searchsorted(angles, half))
    if end in (0, len(reach)) or (np.diff(angles[: end + 1]) <= 0).any():
        return None

    corner = np.interp(half, angles[end - 1 : end + 1], reach[end - 1 : end + 1])
    angles, radius = angles[1:end], reach[1:end] / corner
    powers = angles[:, None] ** np.arange(1, 10, 2)
    focal, *rest = np.linalg.lstsq(powers, radius, rcond=None)[0].tolist()
    if np.abs(powers @ [focal, *rest] - radius).max() > _CLOSE:
        return None
    k1, k2, k3, k4 = (value / focal for value in rest)
    return focal, (k1, k2, k3, k4)


def _first(value: Any) -> float:
    """Return a key's first number, or NaN."""
    return float(value[0]) if isinstance(value, tuple) and value else math.nan


# GoPro's header: box moov/udta/GPMF with keys, lengths and values.


def _gopro_header(path: Path) -> dict[str, Any] | None:
    """Return the first value of every key in a GoPro's header; None: no header."""
    with path.open("rb") as file:
        start, end = 0, path.stat().st_size
        for name in (b"moov", b"udta", b"GPMF"):
            ends = next(((a, b) for kind, a, b in boxes(file, start, end) if kind == name), None)
            if ends is None or ends[1] > end:
                return None
            start, end = ends
        if end - start > _MAX_BOX:
            return None
        file.seek(start)
        data = file.read(end - start)
    values: dict[str, Any] = {}
    for key, value in gpmf_keys(data):
        values.setdefault(key, value)
    return values


def gpmf_keys(data: bytes, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield keys and values: text, numbers as a tuple, None for the parent of the next keys."""
    at = 0
    while at + 8 <= len(data):
        key, kind, size, count = struct.unpack_from(">4sBBH", data, at)
        body = data[at + 8 : at + 8 + size * count]
        if len(body) < size * count or key == b"\0\0\0\0":
            return
        name, letter = key.decode("latin-1"), chr(kind)
        if kind == 0 and depth < _MAX_DEPTH:
            yield name, None
            yield from gpmf_keys(body, depth + 1)
        elif letter in "cF":
            yield name, body.decode("latin-1")
        elif letter in _NUMBERS and len(body) % struct.calcsize(">" + _NUMBERS[letter]) == 0:
            number = len(body) // struct.calcsize(">" + _NUMBERS[letter])
            yield name, struct.unpack(f">{number}{_NUMBERS[letter]}", body)
        at += 8 + -(-size * count // 4) * 4
