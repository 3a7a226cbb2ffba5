"""Calibration files, which share a calibration among recordings of one subject.

JSON: ``{"schema": "acehand-calibration/1", "robot", "variant", "source", "source_sha256",
"hands": {"right": {"scale", "rotation" (3 x 3), "translation_m", "residual_m", "anchors_m",
"lengths"}}}``, the last two per finger. ``source`` is the recording that it was fitted to; a side
fitted to another one repeats both source keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS
from acehand_core.motion import Calibration
from acehand_core.provenance import without_folder
from acehand_core.types import SIDES, Side
from acehand_core.user_files import read_json
from retarget.robots.parameters import Section
from retarget.robots.robot import Robot
from retarget.targets import LENGTH_RANGE, SCALE_RANGE

SCHEMA = "acehand-calibration/1"
_ROOT = ("schema", "robot", "variant", "source", "source_sha256", "hands")
_ORIGIN = ("source", "source_sha256")
_KEYS = ("scale", "rotation", "translation_m", "residual_m", "anchors_m", "lengths", *_ORIGIN)
#: Rounding of a rotation in a file.
_ROTATION_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """A calibration and the recording that it was fitted to, if known."""

    calibration: Calibration
    source: str | None
    sha256: str | None


def calibration_text(robot: Robot, fitted: Mapping[Side, StoredCalibration]) -> str:
    """Return the file's text for one or two sides, with all digits."""
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

    made_for = {"schema": SCHEMA, "robot": robot.name, "variant": robot.variant}
    record = {**made_for, **_origin_json(first), "hands": hands}
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _origin_json(fitted: StoredCalibration) -> dict[str, str | None]:
    source = None if fitted.source is None else without_folder(fitted.source)
    return dict(zip(_ORIGIN, (source, fitted.sha256), strict=True))


def read_calibrations(path: Path, robot: Robot) -> dict[Side, StoredCalibration]:
    """Read the calibrations of a file for a robot; see ``read_made_for``."""
    return read_made_for(path, robot.name, robot.variant)


def read_made_for(path: Path, name: str, variant: str) -> dict[Side, StoredCalibration]:
    """Read the calibrations of a file for a robot of this name and variant.

    Raises:
        InputError: the file cannot be read, or was made for another robot.
        SchemaError: it breaks the schema; the message names file and key.
    """
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise SchemaError(f"{path}: is not a calibration file: `schema` must be {SCHEMA!r}.")
    root = Section(path, "", record)
    root.known(_ROOT)
    robot, made_for = record.get("robot"), record.get("variant")
    if (robot, made_for) != (name, variant):
        raise InputError(
            f"{path}: was made for {robot} ({made_for}), not for {name} ({variant}); fit another, "
            "or take that robot."
        )

    hands = root.section("hands")
    if not hands.plain():
        root.fail("hands", "must be a mapping with left, right or both.")
    hands.known(SIDES, "a side")
    fitted: dict[Side, StoredCalibration] = {}
    for side in (side for side in SIDES if side in hands):
        entry = hands.section(side)
        origin = entry if "source" in entry else root
        source, sha256 = (origin.plain().get(key) for key in _ORIGIN)
        for key, value in zip(_ORIGIN, (source, sha256), strict=True):
            if not isinstance(value, str | None):
                origin.fail(key, "must be text or null.")
        fitted[side] = StoredCalibration(_read(entry), source, sha256)
    return fitted


def known_calibrations(path: Path | None, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations of a file without their origin, see ``read_calibrations``."""
    fitted = read_calibrations(path, robot) if path is not None else {}
    return {side: hand.calibration for side, hand in fitted.items()}


def _read(entry: Section) -> Calibration:
    entry.known(_KEYS)
    scale, (low, high) = float(_numbers(entry, "scale")), SCALE_RANGE
    if not low - 1e-9 <= scale <= high + 1e-9:
        entry.fail("scale", f"is {scale:g}; valid: {low} to {high}.")
    rotation = _numbers(entry, "rotation", 3, 3)
    if np.abs(rotations.project_to_rotation(rotation) - rotation).max() > _ROTATION_TOLERANCE:
        entry.fail("rotation", "is not a rotation matrix.")
    translation = _numbers(entry, "translation_m", 3)
    fitted = entry.plain().get("residual_m") is not None
    residual = float(_numbers(entry, "residual_m")) if fitted else float("nan")
    offsets, lengths = _fingers(entry, "anchors_m", 3), _fingers(entry, "lengths")
    low, high = LENGTH_RANGE
    if (lengths < low - 1e-9).any() or (lengths > high + 1e-9).any():
        entry.fail("lengths", f"must be from {low} to {high}.")
    return Calibration(scale, rotation, translation, residual, offsets, lengths)


def _fingers(entry: Section, key: str, *shape: int) -> np.ndarray:
    table = entry.section(key)
    if set(table) != set(FINGERS):
        entry.fail(key, f"must have {', '.join(FINGERS)}.")
    return np.array([_numbers(table, finger, *shape) for finger in FINGERS])


def _numbers(entry: Section, key: str, *shape: int) -> np.ndarray:
    try:
        values = np.asarray(entry.plain().get(key))
    except ValueError:  # rows of different lengths
        values = np.empty(0)
    # Text that looks like a number is none.
    if values.dtype.kind not in "if" or values.shape != shape or not np.isfinite(values).all():
        size = " x ".join(map(str, shape)) or "one"
        entry.fail(key, f"must hold {size} finite number(s).")
    return values.astype(float)
