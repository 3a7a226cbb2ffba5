"""Reading and checking fields of camera files; ``FILE`` in a message is replaced by the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera, CameraModel, opencv_distortion


@dataclass(frozen=True, slots=True)
class CameraHints:
    """Options for what a camera file lacks: the calibrated (width, height), and the model."""

    size: tuple[int, int] | None = None
    model: CameraModel | None = None


#: Makes a camera, or raises CalibrationError.
Make = Callable[[CameraHints], Camera]


def by_name(cameras: Iterable[tuple[str, Make]]) -> Mapping[str, Make]:
    """Return cameras by name. Raises CalibrationError: a name occurs twice."""
    pairs = list(cameras)
    names = [name for name, _ in pairs]
    if double := [name for name in names if names.count(name) > 1]:
        raise CalibrationError(f"camera {double[0]!r} occurs {names.count(double[0])} times.")
    return dict(pairs)


def is_mapping_with(content: Any, *keys: str) -> bool:
    """Return whether a content is a mapping with these keys."""
    return isinstance(content, Mapping) and all(key in content for key in keys)


def field(values: Any, key: str) -> Any:
    """Return a field of a mapping. Raises CalibrationError with the existing ones."""
    if not isinstance(values, Mapping):
        raise CalibrationError(f"a mapping with {key!r} is needed, not {type(values).__name__}.")
    if key not in values:
        present = ", ".join(map(str, values))
        raise CalibrationError(f"{key!r} is missing; the file has: {present or 'nothing'}.")
    return values[key]


def numbers(value: Any, key: str, count: int | None = None) -> list[float]:
    """Return one finite number or several as a list, the rows of a matrix joined.

    Numeric text is valid, because YAML reads 1e-5 as text. Raises CalibrationError.
    """
    entries = value if isinstance(value, list) else [value]
    if entries and all(isinstance(entry, list) for entry in entries):
        entries = [number for row in entries for number in row]
    try:
        if any(isinstance(entry, bool) for entry in entries):
            raise ValueError
        numbers_read = [float(entry) for entry in entries]
        if not all(map(math.isfinite, numbers_read)):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise CalibrationError(f"{key!r} is {str(value)[:80]}; give numbers.") from None
    if count is not None and len(numbers_read) != count:
        raise CalibrationError(f"{key!r} has {len(numbers_read)} numbers; {count} are needed.")
    return numbers_read


def matrix(value: Any, key: str) -> tuple[float, float, float, float]:
    """Return fx, fy, cx, cy of a camera matrix of 3 x 3. Raises CalibrationError."""
    fx, skew, cx, zero, fy, cy, *last = numbers(value, key, 9)
    if last != [0, 0, 1] or zero != 0:
        raise CalibrationError(f"{key!r} is no camera matrix: fx 0 cx, 0 fy cy, 0 0 1 is needed.")
    check_skew(skew, fx, key)
    return fx, fy, cx, cy


def check_skew(skew: float, fx: float, key: str) -> None:
    """Raise CalibrationError unless the skew in pixels is 0 up to rounding."""
    if abs(skew) > 1e-6 * abs(fx):
        raise CalibrationError(f"{key!r} has a skew of {skew:g} px; valid: 0.")


def size(pixels: Sequence[Any], hints: CameraHints, centre: tuple[float, float]) -> tuple[int, int]:
    """Return a picture's size in the file, or the user's if that is None or 0.

    ``centre`` is the principal point. Raises CalibrationError.
    """
    if None in pixels or 0 in pixels:
        if hints.size is not None:
            return hints.size
        raise CalibrationError(
            "the image size is missing (the principal point would be the middle of about "
            f"{2 * centre[0] + 1:.0f} x {2 * centre[1] + 1:.0f} pixels). Give it to "
            "`acehand camera convert` as `size=WxH`."
        )
    width, height = numbers(list(pixels), "image size", 2)
    if not (width.is_integer() and height.is_integer()):
        raise CalibrationError(f"image size {width} x {height}; give whole pixels.")
    return int(width), int(height)


def model_without_name(
    coefficients: Sequence[float], hints: CameraHints
) -> tuple[CameraModel, tuple[float, ...]]:
    """Return model and coefficients for a file without a model. Raises CalibrationError."""
    if hints.model == "kannala_brandt":
        return "kannala_brandt", tuple(coefficients)
    if len(coefficients) == 4 and hints.model is None:
        raise CalibrationError(
            "4 distortion coefficients may be k1 k2 p1 p2 (brown_conrady) or k1 k2 k3 k4 of "
            "cv2.fisheye (kannala_brandt). Choose in `acehand camera convert` with "
            "`model=brown_conrady|kannala_brandt`."
        )
    return opencv_distortion(coefficients)
