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
from typing import Annotated, Any, Literal

import numpy as np

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS
from acehand_core.motion import Calibration
from acehand_core.provenance import without_folder
from acehand_core.types import SIDES, Side
from acehand_core.user_files import Valid, read_json, structured
from retarget.robots.robot import Robot
from retarget.targets import LENGTH_RANGE, SCALE_RANGE

SCHEMA = "acehand-calibration/1"
_ORIGIN = ("source", "source_sha256")
#: Rounding of a rotation in a file.
_ROTATION_TOLERANCE = 1e-6

_Vector = tuple[float, float, float]
_EACH_FINGER = Valid(f"an entry for each of {', '.join(FINGERS)}", lambda t: {*t} == {*FINGERS})


def _between(limits: tuple[float, float]) -> Valid:
    low, high = limits
    words = f"a number from {low} to {high}"
    return Valid(words, lambda value: low - 1e-9 <= value <= high + 1e-9)


def _is_rotation(rows: tuple[_Vector, ...]) -> bool:
    rotation = np.array(rows)
    away = np.abs(rotations.project_to_rotation(rotation) - rotation).max()
    return bool(away <= _ROTATION_TOLERANCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HandEntry:
    """The entry of a side."""

    scale: Annotated[float, _between(SCALE_RANGE)]
    rotation: Annotated[tuple[_Vector, _Vector, _Vector], Valid("a rotation matrix", _is_rotation)]
    translation_m: _Vector
    residual_m: float | None = None
    anchors_m: Annotated[dict[str, _Vector], _EACH_FINGER]
    lengths: Annotated[dict[str, Annotated[float, _between(LENGTH_RANGE)]], _EACH_FINGER]
    source: str | None = None
    source_sha256: str | None = None

    def calibration(self) -> Calibration:
        residual = float("nan") if self.residual_m is None else self.residual_m
        offsets, lengths = (
            np.array([table[finger] for finger in FINGERS])
            for table in (self.anchors_m, self.lengths)
        )
        rotation, translation = np.array(self.rotation), np.array(self.translation_m)
        return Calibration(self.scale, rotation, translation, residual, offsets, lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CalibrationFile:
    """The content of a file; ``source`` is of sides without their own."""

    schema: Literal["acehand-calibration/1"]
    robot: str
    variant: str
    source: str | None = None
    source_sha256: str | None = None
    hands: Annotated[dict[Side, _HandEntry], Valid("left, right or both", bool)]


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

    header = {"schema": SCHEMA, "robot": robot.name, "variant": robot.variant}
    record = {**header, **_origin_json(first), "hands": hands}
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _origin_json(fitted: StoredCalibration) -> dict[str, str | None]:
    source = None if fitted.source is None else without_folder(fitted.source)
    return dict(zip(_ORIGIN, (source, fitted.sha256), strict=True))


def read_calibrations(path: Path, robot: Robot) -> dict[Side, StoredCalibration]:
    """Read the calibrations of a file for a robot; see ``calibrations_for``."""
    return calibrations_for(path, robot.name, robot.variant)


def calibrations_for(path: Path, name: str, variant: str) -> dict[Side, StoredCalibration]:
    """Read the calibrations of a file for a robot of this name and variant.

    Raises:
        InputError: the file cannot be read, or was made for another robot.
        SchemaError: it breaks the schema; the message names file and key.
    """
    record = read_json(path)
    stored = structured(_CalibrationFile, record, path)
    if (stored.robot, stored.variant) != (name, variant):
        raise InputError(
            f"{path}: was made for {stored.robot} ({stored.variant}), not for {name} ({variant}); "
            "fit another, or take that robot."
        )

    fitted: dict[Side, StoredCalibration] = {}
    for side in (side for side in SIDES if side in stored.hands):
        hand = stored.hands[side]
        origin = hand if "source" in record["hands"][side] else stored
        fitted[side] = StoredCalibration(hand.calibration(), origin.source, origin.source_sha256)
    return fitted


def known_calibrations(path: Path | None, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations of a file without their origin, see ``read_calibrations``."""
    fitted = read_calibrations(path, robot) if path is not None else {}
    return {side: hand.calibration for side, hand in fitted.items()}
