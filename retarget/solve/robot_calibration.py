"""The calibration that a robot starts from, and the files that calibrations are kept in.

A recording that hardly moves says little of how palms compare. What is known of a robot beforehand
therefore comes from canonical poses of the mean human hand that show every finger straight and bent
(``human_poses.json``, written by ``python -m tools.gestures``). The result is kept
as ``calibration.json`` beside the robot.yaml (``acehand robots calibrate``) with a fingerprint of
what it was fitted to; where that does not fit, as with a model of the user's own, it is fitted
again.

A user keeps calibrations in files of the same form, so that every recording of one subject gets the
same. JSON: ``{"schema": "acehand-calibration/1", "robot", "variant", "source", "source_sha256",
"hands": {"right": {"scale", "rotation" (3 x 3), "translation_m", "residual_m", "anchors_m",
"lengths"}}}``, the last two per finger. ``source`` says which recording it was fitted to, also
where it was used for another one since; a side that was fitted to a different one has both keys of
its own.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.hand.skeleton import FINGERS, KNUCKLES
from acehand_core.motion import Calibration
from acehand_core.provenance import without_folder
from acehand_core.types import SIDES, Side
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.calibration_fit import LENGTH_RANGE, SCALE_RANGE, Spread, fit
from retarget.solve.costs import Weights
from retarget.solve.targets import HandTargets, palm_frames

SOURCE = "canonical poses"
#: One similarity for all fingers. Size and place are free; palm frame and base share their axes.
SPREAD = Spread(turn=0.1, place=0.1, size=0.5, offset=1e-4, length=1e-3)


@functools.lru_cache(maxsize=16)
def robot_calibration(hand: HandSpec, tree: KinematicTree) -> Calibration:
    """Return a robot's own calibration: the one that is kept with it, else fitted here.

    Raises:
        SchemaError: the kept file is broken.
    """
    kept = kept_calibration(hand)
    if kept is not None and kept.sha256 == fingerprint(hand, tree):
        return kept.calibration
    return fit_robot(hand, tree)


def kept_calibration(hand: HandSpec) -> Fitted | None:
    """Return what is kept beside the robot.yaml for this hand, whatever it was fitted to."""
    path = hand.calibration_path
    if path is None or not path.is_file():
        return None
    try:
        return read_made_for(path, hand.robot, hand.variant).get(hand.side)
    except InputError:  # a folder that was copied for another robot
        return None


def fitted_robot(hand: HandSpec, tree: KinematicTree) -> Fitted:
    """Return a robot's own calibration, fitted now, with what it was fitted to."""
    return Fitted(fit_robot(hand, tree), SOURCE, fingerprint(hand, tree))


def fit_robot(hand: HandSpec, tree: KinematicTree, first: Calibration | None = None) -> Calibration:
    """Fit a robot hand to the canonical poses, beginning at ``first`` where that is known."""
    joints = canonical_joints(hand.side)
    count = len(joints)
    targets = HandTargets(hand.side, joints, np.ones(count), np.ones(count, bool), None)
    start = _from_knuckles(hand, tree, joints)
    found = fit(hand, tree, targets, Weights(), start, SPREAD, first)
    return replace(found, finger_offsets=np.zeros((len(FINGERS), 3)), lengths=np.ones(len(FINGERS)))


def fingerprint(hand: HandSpec, tree: KinematicTree) -> str:
    """Return the SHA-256 of poses, settings and kinematics; lengths count to 0.01 mm."""
    commands = np.stack([hand.command_lower, hand.rest, hand.command_upper])
    points = tree.points(hand.expand(commands), hand.target_frames)
    # In the words of the version that made the fingerprints that are kept beside robots.
    spread = repr(SPREAD).replace("offset=", "anchor=")
    said = (spread, repr(Weights()), hand.target_keypoints, hand.fingers)
    digest = hashlib.sha256(repr((said, _poses())).encode())
    for values in (commands, hand.coupling, points):
        digest.update((np.round(values * 1e5).astype(np.int64)).tobytes())
    return digest.hexdigest()


@functools.cache
def pose_names() -> tuple[str, ...]:
    """Return the names of the canonical poses."""
    return tuple(_poses())


@functools.cache
def canonical_joints(side: Side) -> Float[np.ndarray, "P 21 3"]:
    """Return the canonical poses of the mean hand in its palm frame, metres."""
    right = np.array(list(_poses().values()))
    poses = palm_frames(right, "right")
    local = (right - poses[:, None, :3, 3]) @ poses[:, :3, :3]
    return local if side == "right" else local * np.array([1.0, -1.0, 1.0])


@functools.cache
def _poses() -> dict[str, list]:
    file = importlib.resources.files("retarget").joinpath("human_poses.json")
    return json.loads(file.read_text(encoding="utf-8"))


def _from_knuckles(
    hand: HandSpec, tree: KinematicTree, joints: Float[np.ndarray, "N 21 3"]
) -> Calibration:
    """Start from where the fingers begin: they hardly move in either hand.

    Palm and base frame share their axes, so only size and place are taken from the knuckles.
    """
    pairs = [
        (keypoint, frame)
        for keypoint, frame in zip(hand.target_keypoints, hand.target_frames, strict=True)
        if keypoint in KNUCKLES[1:]
    ]
    if len(pairs) < 2:
        return Calibration(1.0, np.eye(3), np.zeros(3), float("nan"))
    human = np.median(joints[:, [k for k, _ in pairs]], axis=0)
    robot = tree.points(hand.expand(hand.rest[None]), [f for _, f in pairs])[0]
    scale = float(np.clip(_spread(robot) / _spread(human), *SCALE_RANGE))
    translation = robot.mean(0) - scale * human.mean(0)
    return Calibration(scale, np.eye(3), translation, float("nan"))


def _spread(points: Float[np.ndarray, "N 3"]) -> float:
    return float(np.linalg.norm(points - points.mean(0)))


SCHEMA = "acehand-calibration/1"
_ROOT = ("schema", "robot", "variant", "source", "source_sha256", "hands")
_ORIGIN = ("source", "source_sha256")
_KEYS = ("scale", "rotation", "translation_m", "residual_m", "anchors_m", "lengths", *_ORIGIN)
#: Largest difference from a rotation that rounding in a file explains.
_ROTATION_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Fitted:
    """A calibration, and the recording that it was fitted to, where that is known."""

    calibration: Calibration
    source: str | None
    sha256: str | None


def calibration_text(robot: Robot, fitted: Mapping[Side, Fitted]) -> str:
    """Return the file's text for one or two sides, all digits kept."""
    hands: dict[str, dict[str, Any]] = {}
    first = fitted[min(fitted)]
    for side in sorted(fitted):
        one = fitted[side].calibration
        hands[side] = {
            "scale": one.scale,
            "rotation": one.rotation.tolist(),
            "translation_m": one.translation.tolist(),
            "residual_m": one.residual_m if math.isfinite(one.residual_m) else None,
            "anchors_m": dict(zip(FINGERS, one.finger_offsets.tolist(), strict=True)),
            "lengths": dict(zip(FINGERS, one.lengths.tolist(), strict=True)),
        }
        if (fitted[side].source, fitted[side].sha256) != (first.source, first.sha256):
            hands[side] |= _origin_json(fitted[side])

    record = {
        "schema": SCHEMA, "robot": robot.name, "variant": robot.variant,
        **_origin_json(first), "hands": hands,
    }  # fmt: skip
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _origin_json(fitted: Fitted) -> dict[str, str | None]:
    source = None if fitted.source is None else without_folder(fitted.source)
    return dict(zip(_ORIGIN, (source, fitted.sha256), strict=True))


def read_calibrations(path: Path, robot: Robot) -> dict[Side, Fitted]:
    """Read the calibrations for a robot, those sides that the file has; see ``read_made_for``."""
    return read_made_for(path, robot.name, robot.variant)


def read_made_for(path: Path, name: str, variant: str) -> dict[Side, Fitted]:
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
        raise SchemaError(f"{path}: is no calibration file: `schema` must be {SCHEMA!r}.")
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

    found = {side: _read(path, side, hands[side]) for side in SIDES if side in hands}
    own = {side: hands[side] if _ORIGIN[0] in hands[side] else record for side in found}
    return {side: Fitted(one, *_origin(path, own[side])) for side, one in found.items()}


def known_calibrations(path: Path | None, robot: Robot) -> dict[Side, Calibration]:
    """Return the calibrations of a file without their origin, see ``read_calibrations``."""
    found = read_calibrations(path, robot) if path is not None else {}
    return {side: one.calibration for side, one in found.items()}


def _origin(path: Path, entry: dict[str, Any]) -> tuple[str | None, str | None]:
    for key in _ORIGIN:
        if not isinstance(entry.get(key), str | None):
            raise SchemaError(f"{path}: {key} must be text or null.")
    return entry.get(_ORIGIN[0]), entry.get(_ORIGIN[1])


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
