"""The files that calibrations are kept in, so that every recording of one subject gets the same.

JSON: ``{"schema": "acehand-calibration/1", "robot", "variant", "source", "source_sha256",
"hands": {"right": {"scale", "rotation" (3 x 3), "translation_m", "residual_m", "anchors_m",
"lengths"}}}``, the last two per finger. ``source`` says which recording it was fitted to, also
where it was used for another one since; a side that was fitted to a different one has both keys of
its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS
from acehand_core.motion import Calibration
from acehand_core.provenance import without_folder
from acehand_core.types import SIDES, Side
from retarget.robots.robot import Robot
from retarget.targets import LENGTH_RANGE, SCALE_RANGE

SCHEMA = "acehand-calibration/1"
_ROOT = ("schema", "robot", "variant", "source", "source_sha256", "hands")
_ORIGIN = ("source", "source_sha256")
_KEYS = ("scale", "rotation", "translation_m", "residual_m", "anchors_m", "lengths", *_ORIGIN)
#: Largest difference from a rotation that rounding in a file explains.
_ROTATION_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """A calibration, and the recording that it was fitted to, where that is known."""

    calibration: Calibration
    source: str | None
    sha256: str | None


def calibration_text(robot: Robot, fitted: Mapping[Side, StoredCalibration]) -> str:
    """Return the file's text for one or two sides, all digits kept."""
    hands: dict[str, dict[str, Any]] = {}
    first = fitted[min(fitted)]
    for side in sorted(fitted):
        hand = fitted[side].calibration
        hands[side] = {
            "scale": hand.scale,
            "rotation": hand.rotation.tolist(),
            "translation_m": hand.translation.tolist(),
            "residual_m": hand.residual_m if math.isfinite(hand.residual_m) else None,
            "anchors_m": dict(zip(FINGERS, hand.finger_offsets.tolist(), strict=True)),
            "lengths": dict(zip(FINGERS, hand.lengths.tolist(), strict=True)),
        }
        if (fitted[side].source, fitted[side].sha256) != (first.source, first.sha256):
            hands[side] |= _origin_json(fitted[side])

    record = {
        "schema": SCHEMA, "robot": robot.name, "variant": robot.variant,
        **_origin_json(first), "hands": hands,
    }  # fmt: skip
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _origin_json(fitted: StoredCalibration) -> dict[str, str | None]:
    source = None if fitted.source is None else without_folder(fitted.source)
    return dict(zip(_ORIGIN, (source, fitted.sha256), strict=True))


def read_calibrations(path: Path, robot: Robot) -> dict[Side, StoredCalibration]:
    """Read the calibrations for a robot, those sides that the file has; see ``read_made_for``."""
    return read_made_for(path, robot.name, robot.variant)


def read_made_for(path: Path, name: str, variant: str) -> dict[Side, StoredCalibration]:
    """Read the calibrations for a robot of this name and variant.

    Raises:
        InputError: the file cannot be read, or was made for another robot.
        SchemaError: it breaks the schema; the message names file and key.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise SchemaError(f"{path}: is not valid JSON: {error}") from error

    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise SchemaError(f"{path}: is not a calibration file: `schema` must be {SCHEMA!r}.")
    for key in record:
        if key not in _ROOT:
            raise SchemaError(f"{path}: {key} is unknown; {nearest(key, _ROOT)}")

    made_for = (record.get("robot"), record.get("variant"))
    if made_for != (name, variant):
        raise InputError(
            f"{path}: was made for {made_for[0]} ({made_for[1]}), not for {name} "
            f"({variant}); fit another, or take that robot."
        )

    hands = record.get("hands")
    if not isinstance(hands, dict) or not hands:
        raise SchemaError(f"{path}: hands must be a mapping with left, right or both.")

    for side in hands:
        if side not in SIDES:
            raise SchemaError(f"{path}: hands.{side} is not a side; {nearest(side, SIDES)}")

    calibrations = {side: _read(path, side, hands[side]) for side in SIDES if side in hands}
    fitted = {}
    for side, calibration in calibrations.items():
        origin = hands[side] if _ORIGIN[0] in hands[side] else record
        for key in _ORIGIN:
            if not isinstance(origin.get(key), str | None):
                raise SchemaError(f"{path}: {key} must be text or null.")
        fitted[side] = StoredCalibration(calibration, *(origin.get(key) for key in _ORIGIN))
    return fitted


def known_calibrations(path: Path | None, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations of a file without their origin, see ``read_calibrations``."""
    fitted = read_calibrations(path, robot) if path is not None else {}
    return {side: hand.calibration for side, hand in fitted.items()}


def _read(path: Path, side: Side, entry: Any) -> Calibration:
    if not isinstance(entry, dict):
        raise SchemaError(f"{path}: hands.{side} must be a mapping.")
    for key in entry:
        if key not in _KEYS:
            raise SchemaError(f"{path}: hands.{side}.{key} is unknown; {nearest(key, _KEYS)}")

    scale = float(_numbers(path, side, entry, "scale", ()))
    if not SCALE_RANGE[0] - 1e-9 <= scale <= SCALE_RANGE[1] + 1e-9:
        low, high = SCALE_RANGE
        raise SchemaError(f"{path}: hands.{side}.scale is {scale:g}; valid: {low} to {high}.")

    rotation = _numbers(path, side, entry, "rotation", (3, 3))
    if np.abs(rotations.project_to_rotation(rotation) - rotation).max() > _ROTATION_TOLERANCE:
        raise SchemaError(f"{path}: hands.{side}.rotation is not a rotation matrix.")
    translation = _numbers(path, side, entry, "translation_m", (3,))
    residual = float("nan")
    if entry.get("residual_m") is not None:
        residual = float(_numbers(path, side, entry, "residual_m", ()))
    offsets = _fingers(path, side, entry, "anchors_m", (3,))
    lengths = _fingers(path, side, entry, "lengths", ())
    low, high = LENGTH_RANGE
    if (lengths < low - 1e-9).any() or (lengths > high + 1e-9).any():
        raise SchemaError(f"{path}: hands.{side}.lengths must be from {low} to {high}.")

    return Calibration(scale, rotation, translation, residual, offsets, lengths)


def _fingers(
    path: Path, side: Side, entry: dict[str, Any], key: str, shape: tuple[int, ...]
) -> np.ndarray:
    table = entry.get(key)
    if not isinstance(table, dict) or set(table) != set(FINGERS):
        raise SchemaError(f"{path}: hands.{side}.{key} must have {', '.join(FINGERS)}.")
    where = f"{side}.{key}"
    return np.array([_numbers(path, where, table, finger, shape) for finger in FINGERS])


def _numbers(
    path: Path, where: str, entry: dict[str, Any], key: str, shape: tuple[int, ...]
) -> np.ndarray:
    try:
        values = np.asarray(entry[key])
        if values.dtype.kind not in "if":  # text that looks like a number is none
            raise TypeError
        values = values.astype(float)
    except (KeyError, TypeError, ValueError):
        values = np.asarray(np.nan)
    if values.shape != shape or not np.isfinite(values).all():
        size = " x ".join(map(str, shape)) or "one"
        raise SchemaError(f"{path}: hands.{where}.{key} must hold {size} finite number(s).")
    return values
