"""Files of keypoints of other programs, npz, npy, json and jsonl (docs/my_keypoints.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, SchemaError, UnsafeFileError, nearest
from acehand_core.hand.skeleton import KEYPOINT_NAMES, WRIST
from acehand_core.motion import HandMotion
from acehand_core.recordings.keypoint_tables import read_table, stamps_ns
from acehand_core.recordings.keypoints.joints import ENTRIES, motion_from_entries
from acehand_core.recordings.keypoints.mapping import KeypointMap, keypoint_named, load_map, naming
from acehand_core.safe_files import content_sha256, safe_load_npz
from acehand_core.types import SIDES, Hands

#: Names of a frame's time and their unit; None: from the rate.
_TIMES: Mapping[str, str | None] = {
    "timestamps_ns": "ns", "timestamp_ns": "ns", "timestamp": None, "time": None, "t": None,
}  # fmt: skip
#: From ARKit's world (y up) to ours (z up).
_Z_UP = np.array([[1.0, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])


def read_joints_file(path: Path, hands: Hands = "both", keypoints: str | None = None) -> HandMotion:
    """Read the keypoints of one or two hands; rotations are NaN.

    ``hands`` is the side of a single hand without one, ``keypoints`` a mapping file or a preset.

    Raises:
        SchemaError: invalid content, or the joints look like another order, unit or hand.
        UnsafeFileError: pickled objects. InputError: it cannot be read.
    """
    mapping = KeypointMap() if keypoints is None else load_map(keypoints)
    with naming(str(path)):
        if path.suffix in (".csv", ".parquet"):
            entries = read_table(path, mapping)
        elif path.suffix == ".npy":
            entries = read_npy(path)
        else:
            entries = (read_npz if path.suffix == ".npz" else read_json)(path, mapping)
    if path.suffix != ".npz" and entries["joints"].dtype.kind in "iu":
        entries["joints"] = entries["joints"].astype(float)

    if "order" in entries and path.suffix != ".npz":  # joints with names
        entries = replace(mapping, order=None).added_to(str(path), entries)
    else:
        entries = mapping.added_to(str(path), entries)
    notes = () if keypoints is None else (f"keypoints as {keypoints}",)
    sha256, least = content_sha256(path), mapping.min_confidence
    motion = motion_from_entries(str(path), entries, hands, sha256, least, notes)
    return replace(motion, provenance=replace(motion.provenance, source=path.name))


def read_npz(path: Path, mapping: KeypointMap) -> dict[str, Any]:
    """Return the entries of an npz, or those that the mapping names. Raises SchemaError."""
    loaded = safe_load_npz(path)
    if mapping.joints is None:
        return loaded

    entries: dict[str, Any] = {name: loaded[name] for name in ENTRIES if name in loaded}
    named = [mapping.joints] if isinstance(mapping.joints, str) else list(mapping.joints.values())
    present = [name for name in named if name in loaded]
    if not present and "joints" in loaded:  # a preset's names are optional
        return entries
    if not present:
        raise SchemaError(f"has no entry {' or '.join(named)}; {nearest(named[0], loaded)}")
    for entry, where in (("joints", mapping.joints), ("wrist_pose", mapping.wrist)):
        if isinstance(where, str) and where in loaded:
            entries[entry] = loaded[where]
        elif where is not None and not isinstance(where, str):
            entries |= _of_sides(loaded, entry, where)
    return entries


def _of_sides(
    loaded: Mapping[str, np.ndarray], entry: str, where: Mapping[Any, str]
) -> dict[str, Any]:
    """Return one entry from those of each hand; with the side if there is a single one."""
    hands = {side: loaded[name] for side, name in where.items() if name in loaded}
    if not hands:
        return {}
    if len({hand.shape for hand in hands.values()}) > 1:
        raise SchemaError(f"{' and '.join(where.values())} have different shapes.")
    if entry == "wrist_pose":  # some programs write (T, 1, 4, 4)
        hands = {side: pose.reshape(-1, 4, 4) for side, pose in hands.items()}
    if len(hands) == 2:
        return {entry: np.stack([hands[side] for side in SIDES], axis=1)}
    side, values = next(iter(hands.items()))
    return {entry: values} if entry == "wrist_pose" else {entry: values, "side": np.array(side)}


def read_npy(path: Path) -> dict[str, Any]:
    """Return the entries of an array of joints. Raises SchemaError, UnsafeFileError, InputError."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, EOFError) as error:
        if "allow_pickle" in str(error):
            text = "holds pickled Python objects, which could run code; valid: numbers"
            raise UnsafeFileError(f"{path}: {text}.") from error
        raise SchemaError(f"damaged ({error}).") from error
    if not isinstance(array, np.ndarray):
        raise SchemaError("not an array of joints.")
    return {"joints": array}


def read_json(path: Path, mapping: KeypointMap) -> dict[str, Any]:
    """Return the entries of a json or jsonl file. Raises SchemaError, InputError."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            content: Any = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            content = json.loads(text)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not JSON: {error}.") from error

    stated: dict[str, Any] = {}
    if isinstance(content, dict):
        stated = {name: np.array(content[name]) for name in ENTRIES[1:] if name in content}
        content = content.get("frames", content.get("joints"))
    if not isinstance(content, list) or not content:
        raise SchemaError(
            "no frames; valid: a list of frames, alone or as 'frames', each with the "
            "joints of one hand ('joints') or of each ('left', 'right')."
        )
    times = _times(content, mapping)
    entries = _frames(content, mapping) | stated
    return entries if times is None else {**entries, "timestamps_ns": times}


def _times(content: list[Any], mapping: KeypointMap) -> np.ndarray | None:
    first = content[0]
    if not isinstance(first, dict):
        return None
    name = mapping.time or next((name for name in _TIMES if name in first), None)
    if name is None or (mapping.time is None and mapping.rate is not None):
        return None
    values: list[Any] = [frame.get(name) if isinstance(frame, dict) else None for frame in content]
    if not all(type(value) in (int, float) and not abs(value) >= 2**63 for value in values):
        raise SchemaError(f"{name!r} must be a number in every frame.")
    return stamps_ns(repr(name), np.array(values), mapping.time_unit or _TIMES.get(name))


def _frames(content: list[Any], mapping: KeypointMap) -> dict[str, Any]:
    """Return joints of one hand or both, their order, and the wrist's poses if given."""
    hands: dict[int | None, list[Any]] = {}
    for number, frame in enumerate(content):
        for slot, joints in _hands_of(frame):
            hands.setdefault(slot, [None] * len(content))[number] = joints
    if not hands or (None in hands and len(hands) > 1):
        raise SchemaError("frames need a list of joints, 'joints', or 'left' and 'right'.")

    read = {slot: _one_hand(frames, mapping) for slot, frames in hands.items()}
    orders = {order for order, _ in read.values()}
    if len(orders) > 1 or len({values.shape[1:] for _, values in read.values()}) > 1:
        raise SchemaError("the two hands have different joints.")
    order = orders.pop()
    some = next(iter(read.values()))[1]
    joints = some if None in read else np.full((len(content), 2, *some.shape[1:]), np.nan)
    for slot, (_, values) in read.items():
        if slot is not None:
            joints[:, slot] = values

    entries: dict[str, Any] = {"joints": joints}
    if order is not None:
        entries["order"] = np.array(order)
    is_avp = isinstance(mapping.order, str) and mapping.order.startswith("avp")
    if is_avp and order is not None and joints.shape[-2:] == (4, 4):
        # ARKit's wrist is the hand's pose; the other joints are relative to it.
        wrist = order.index(KEYPOINT_NAMES[WRIST])
        entries["wrist_pose"] = _Z_UP @ joints[..., wrist, :, :]
        known = np.asarray(np.isfinite(joints[..., wrist, :, :]).all((-1, -2)))
        joints[..., wrist, :, :] = np.where(known[..., None, None], np.eye(4), np.nan)
    return entries


def _hands_of(frame: Any) -> list[tuple[int | None, Any]]:
    """Return the hands of a frame: (slot or None, joints)."""
    if not isinstance(frame, dict):
        return [(None, frame)]
    if "joints" in frame:
        named = str(frame.get("side", frame.get("hand"))).lower()
        return [(SIDES.index(named) if named in SIDES else None, frame["joints"])]
    hands: list[tuple[int | None, Any]] = []
    for key, value in frame.items():
        try:
            side, keypoint = keypoint_named(key if key.lower() not in SIDES else f"{key}_hand")
        except KeyError:
            continue
        if side is not None and keypoint == WRIST and isinstance(value, dict | list):
            joints = value.get("joints", value) if isinstance(value, dict) else value
            hands.append((SIDES.index(side), joints))
    return hands or [(None, frame)]


def _one_hand(
    frames: Sequence[Any], mapping: KeypointMap
) -> tuple[tuple[str, ...] | None, np.ndarray]:
    """Return the joints' names, if any, and (T, J, 3) or (T, J, 4, 4)."""
    given = [frame for frame in frames if frame]
    if given and all(isinstance(frame, dict) for frame in given):
        names = dict.fromkeys(name for frame in given for name in frame)
        keypoints = {name: _keypoint(mapping, name) for name in names}
        used = {name: keypoint for name, keypoint in keypoints.items() if keypoint != "-"}
        if not used:
            raise SchemaError(
                f"no joint among {', '.join(list(keypoints)[:8])}; "
                f"{nearest('', KEYPOINT_NAMES)} A mapping may name them (names)."
            )
        rows = [[frame.get(name) for name in used] if frame else None for frame in frames]
        return tuple(used.values()), _array(rows)
    return None, _array(frames)


def _keypoint(mapping: KeypointMap, name: str) -> str:
    try:
        keypoint = mapping.joint(name)[1]
    except KeyError:
        return "-"
    return "-" if keypoint is None else KEYPOINT_NAMES[keypoint]


def _array(rows: Sequence[Any]) -> np.ndarray:
    """Return rows of joints as numbers; null is NaN."""

    def known(joint: Any) -> Any:
        if joint is None:
            return empty
        return [np.nan if n is None else n for n in joint] if len(shape) == 1 else joint

    try:
        whole: Sequence[Any] = next((row for row in rows if row), [])
        shape = next((np.shape(joint) for joint in whole if joint is not None), (3,))
        empty = np.full(shape, np.nan).tolist()
        values = np.array([[known(j) for j in row or [None] * len(whole)] for row in rows], float)
    except (ValueError, TypeError, OverflowError) as error:
        raise SchemaError(
            f"every frame must hold the same number of joints, each of three numbers: {error}."
        ) from error

    if values.shape[2:] == (16,):
        values = values.reshape(*values.shape[:2], 4, 4)
    if values.shape[2:] not in ((3,), (4, 4)):
        raise SchemaError(f"joints are {values.shape[2:]}; valid: three numbers, or 16.")
    if values.ndim == 4:
        # ARKit writes column-major matrices, with the position in the last row.
        column_major = np.isclose(np.nan_to_num(values[..., :3, 3]), 0).all()
        values = np.swapaxes(values, -1, -2) if column_major else values
    return values
