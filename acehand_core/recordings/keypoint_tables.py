"""Tables of keypoints of other programs: a row per frame (wide) or per joint (long)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.hand.skeleton import KEYPOINT_NAMES
from acehand_core.recordings.keypoints.mapping import TIME_UNITS_NS, KeypointMap, order_named
from acehand_core.types import SIDES

AXES = "xyz"
#: Column names without a mapping.
PATTERNS = ("{joint}_{axis}", "{joint}.{axis}", "{axis}{joint}", "{axis}_{joint}")
#: Columns of long tables.
_JOINT_COLUMNS = ("joint", "joint_name", "landmark", "keypoint", "marker", "name", "joint_id")
_FRAME_COLUMNS = ("frame", "frame_id", "frame_index", "index")
_SIDE_COLUMNS = ("hand", "side", "handedness")
_CONFIDENCE = ("confidence", "score", "likelihood", "visibility")
_PARTS = {
    "{axis}": f"(?P<axis>[{AXES}]|{'|'.join(_CONFIDENCE)})",
    "{side}": "(?P<side>left|right)",
    "{joint}": "(?P<joint>.+?)",
}
#: A time column and its unit.
_TIME = re.compile(
    r"(?:.*(?:time|stamp|elapsed).*|t)(?:_in)?_?(?P<unit>ns|us|ms|s|milliseconds|seconds)?"
)
_UNIT_WORDS = {"milliseconds": "ms", "seconds": "s"}
#: Columns of a hand's confidence, after left and right.
_HAND_CONFIDENCE = ("_confidence", "_tracking_confidence")

#: {(slot or None, joint): {axis or confidence: column}}.
_Joints = dict[tuple[int | None, int], dict[str, str]]


def read_table(path: Path, mapping: KeypointMap) -> dict[str, Any]:
    """Return the entries of a csv or parquet table of keypoints. Raises SchemaError, InputError."""
    table = _loaded(path)
    if len(table) == 0:
        raise SchemaError("has no rows.")
    lower = {name.lower(): name for name in table.column_names}
    joint = next((lower[name] for name in _JOINT_COLUMNS if name in lower), None)
    if joint is not None and all(axis in lower for axis in AXES):
        return _long(table, lower, joint, mapping)
    return _wide(table, mapping)


def _loaded(path: Path) -> pa.Table:
    try:
        if path.suffix == ".parquet":
            return pq.read_table(path)
        with path.open(encoding="utf-8-sig") as file:
            skipped, first = 0, file.readline()
            while first.startswith("#"):
                skipped, first = skipped + 1, file.readline()
        delimiter = max(",;\t", key=first.count)
        return pa_csv.read_csv(
            path,
            pa_csv.ReadOptions(skip_rows=skipped),
            pa_csv.ParseOptions(delimiter=delimiter),
            pa_csv.ConvertOptions(
                null_values=["", "nan", "NaN", "NA", "null"], strings_can_be_null=True
            ),
        )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise SchemaError(f"not a table: {error}") from error


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if table.column_names.count(name) > 1:
        raise SchemaError(f"column {name!r} occurs twice; valid: once.")
    return table[name]


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of numbers, NaN for empty cells; integers stay exact."""
    column = _column(table, name).combine_chunks()
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    is_whole = pa.types.is_integer(column.type) and not column.null_count
    try:
        kind = pa.int64() if is_whole else pa.float64()
        return pc.cast(column, kind).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise SchemaError(f"column {name!r} does not hold numbers: {error}") from error


def _found(
    names: Sequence[str], pattern: str, mapping: KeypointMap
) -> list[tuple[bool, _Joints, dict[str, str]]]:
    """Return the complete joints of a pattern's columns, by name and by number in the file's order.

    Each with True for names, and the unknown names by column.
    """
    by_name: _Joints = {}
    by_number: _Joints = {}
    others: dict[str, str] = {}  # other columns, or misspellings
    pieces = re.split(r"(\{axis\}|\{side\}|\{joint\})", pattern)
    regex = re.compile("".join(_PARTS.get(p, re.escape(p)) for p in pieces), re.IGNORECASE)
    for name in names:
        match = regex.fullmatch(name)
        if match is None:
            continue
        parts, what = match.groupdict(), match["axis"].lower()
        what = "confidence" if what in _CONFIDENCE else what
        slot = SIDES.index(parts["side"].lower()) if parts.get("side") else None
        joints, keypoint = by_number, int(parts["joint"]) if parts["joint"].isdecimal() else None
        if keypoint is None:
            try:
                side, keypoint = mapping.joint(parts["joint"])
            except KeyError:
                others[name] = parts["joint"]
                continue
            joints, slot = by_name, slot if side is None else SIDES.index(side)
        if keypoint is not None:
            axes = joints.setdefault((slot, keypoint), {})
            if what in axes and what in AXES:
                both = f"{axes[what]!r} and {name!r}"
                raise SchemaError(f"columns {both} are one joint's; exclude one (names: '-').")
            axes[what] = name

    def complete(joints: _Joints) -> _Joints:
        return {joint: axes for joint, axes in joints.items() if set(AXES) <= set(axes)}

    return [(True, complete(by_name), others), (False, complete(by_number), {})]


def _wide(table: pa.Table, mapping: KeypointMap) -> dict[str, Any]:
    names = table.column_names
    patterns = (mapping.columns,) if mapping.columns else PATTERNS
    tried = [found for pattern in patterns for found in _found(names, pattern, mapping)]
    named, columns, others = max(tried, key=lambda found: len(found[1]))
    if not columns:
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise SchemaError(
            f"no columns of joints among {shown}. Valid: a column per joint and axis, "
            f"named {', '.join(patterns)} (joints by name, or by number in the order of "
            "`keypoints`), or a row per joint with joint, x, y, z and frame. Describe other names "
            "in a mapping: columns, names (docs/my_keypoints.md)."
        )

    if named:
        _check_spelling(columns, others)
    order: str | Sequence[str] = KEYPOINT_NAMES if named else mapping.order or "openpose"
    count = len(order_named(order))
    numbers = {joint for _, joint in columns}
    first = int(not named and min(numbers) == 1 and max(numbers) == count)
    if max(numbers) - first >= count:
        raise SchemaError(f"column of joint {max(numbers)}, but the order has {count}.")
    slots = {slot for slot, _ in columns}
    if None in slots and len(slots) > 1:
        raise SchemaError("some columns of joints name a hand, and others do not.")

    joints = np.full((len(table), 2, count, 3), np.nan)
    confidence = np.full(joints.shape[:3], np.nan)
    for (slot, joint), axes in columns.items():
        place = (slice(None), slot or 0, joint - first)
        joints[place] = np.stack([_numbers(table, axes[axis]) for axis in AXES], axis=1)
        if "confidence" in axes:
            confidence[place] = _numbers(table, axes["confidence"])
    of_hands, times = _hand_confidence(table), _times(table, mapping)
    return _entries(joints, confidence, None in slots, order, of_hands, times)


def _check_spelling(present: _Joints, others: dict[str, str]) -> None:
    """Raise SchemaError for a column whose name is close to that of a missing joint."""
    hands = {slot for slot, _ in present}
    absent = [n for j, n in enumerate(KEYPOINT_NAMES) if any((s, j) not in present for s in hands)]
    for column, written in others.items():
        plain = re.sub(r"^(left|right)_", "", written.lower())
        if close := difflib.get_close_matches(plain, absent, 1, 0.85):
            raise SchemaError(
                f"column {column!r} is of no joint, and {close[0]} has no columns. Did you "
                f"mean {close[0]}? Else exclude it by a mapping: names: {{{written}: '-'}}."
            )


def _hand_confidence(table: pa.Table) -> np.ndarray | None:
    """Return the confidence of hands: (T,) or (T, 2)."""
    lower = {name.lower(): name for name in table.column_names}
    for names in (["confidence"], *([f"{s}{kind}" for s in SIDES] for kind in _HAND_CONFIDENCE)):
        if all(name in lower for name in names):
            columns = np.stack([_numbers(table, lower[name]) for name in names], axis=1)
            return columns if len(names) > 1 else columns[:, 0]
    return None


def _entries(
    joints: np.ndarray,
    of_joints: np.ndarray,
    one_hand: bool,
    order: str | Sequence[str],
    of_hands: np.ndarray | None,
    times: np.ndarray | None,
) -> dict[str, Any]:
    if one_hand:
        joints, of_joints = joints[:, 0], of_joints[:, 0]
    entries = {"joints": joints, "order": np.array(order)}
    if np.isfinite(of_joints).any():
        # The default of a joint is 1.
        entries["confidence"] = np.where(np.isfinite(of_joints), of_joints, 1.0)
    elif of_hands is not None:
        entries["confidence"] = of_hands
    return entries if times is None else {**entries, "timestamps_ns": times}


def _long(
    table: pa.Table, lower: Mapping[str, str], joint: str, mapping: KeypointMap
) -> dict[str, Any]:
    """Return the entries of a table with a row per joint, in any order."""
    frame = next((lower[name] for name in _FRAME_COLUMNS if name in lower), None)
    times = _times(table, mapping)
    if frame is None and times is None:
        raise SchemaError("a row per joint needs a column frame, or one of times.")
    for name in filter(None, (joint, frame)):
        if empty := pc.sum(pc.is_null(_column(table, name), nan_is_null=True)).as_py():
            raise SchemaError(f"column {name!r} has {empty} empty cells; every row needs one.")
    key = times if frame is None else _numbers(table, frame)
    assert key is not None
    frames, rows, frame_of = np.unique(key, return_index=True, return_inverse=True)

    # Few names, many rows: parse each name once.
    encoded = _column(table, joint).combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    is_text = all(isinstance(name, str) for name in names)
    order: str | Sequence[str] = KEYPOINT_NAMES if is_text else mapping.order or "openpose"
    count = len(order_named(order))
    slots, places = np.full(len(names), -1), np.full(len(names), -1)
    for index, name in enumerate(names):
        if order is not KEYPOINT_NAMES:
            places[index] = name
            continue
        try:
            side, keypoint = mapping.joint(str(name))
        except KeyError:
            raise SchemaError(
                f"{joint} has {name!r}, which is no joint; "
                f"{nearest(str(name), KEYPOINT_NAMES)} A mapping may name it (names)."
            ) from None
        slots[index] = -1 if side is None else SIDES.index(side)
        places[index] = -1 if keypoint is None else keypoint
    if places.max(initial=-1) >= count:
        raise SchemaError(f"has joint {places.max()}, but the order has {count} joints.")

    codes = encoded.indices.to_numpy(zero_copy_only=False)
    slot_of, place_of = slots[codes], places[codes]
    side_column = next((lower[name] for name in _SIDE_COLUMNS if name in lower), None)
    if side_column is not None:
        words = pc.utf8_lower(pc.cast(_column(table, side_column), pa.string())).to_numpy()
        sides = [np.isin(words, ("left", "l")), np.isin(words, ("right", "r"))]
        slot_of = np.select(sides, [0, 1], -1)
        if (slot_of < 0).any():
            wrong = words[np.argmax(slot_of < 0)]
            raise SchemaError(f"{side_column} is {wrong!r}; valid: left, right.")

    used, one_hand = place_of >= 0, bool((slot_of < 0).all())
    at = (frame_of[used], np.maximum(slot_of[used], 0), place_of[used])
    joints = np.full((len(frames), 2, count, 3), np.nan)
    confidence = np.full(joints.shape[:3], np.nan)
    place = np.ravel_multi_index(at, joints.shape[:3])
    _, first, counts = np.unique(place, return_index=True, return_counts=True)
    for row in first[counts > 1]:
        name, where = names[codes[used][row]], frames[at[0][row]]
        raise SchemaError(f"{joint} {name!r} occurs twice in frame {where}; valid: once per hand.")
    joints[at] = np.stack([_numbers(table, lower[a])[used] for a in AXES], axis=1)
    if (own := next((lower[name] for name in _CONFIDENCE if name in lower), None)) is not None:
        confidence[at] = _numbers(table, own)[used]
    times = None if times is None else times[rows]
    return _entries(joints, confidence, one_hand, order, None, times)


def _times(table: pa.Table, mapping: KeypointMap) -> np.ndarray | None:
    """Return the times of the rows in ns, or None."""
    name = mapping.time
    if name is not None and name not in table.column_names:
        raise SchemaError(f"no column {name!r}; {nearest(name, table.column_names)}")
    if name is None and mapping.rate is not None:
        return None
    matches = ((n, _TIME.fullmatch(n.lower())) for n in table.column_names)
    named = {n: match["unit"] for n, match in matches if match is not None}
    if name is None:
        kinds = {n: _column(table, n).type for n in named}
        numeric = [n for n, k in kinds.items() if pa.types.is_integer(k) or pa.types.is_floating(k)]
        if not numeric:
            return None
        name = max(numeric, key=lambda n: named[n] is not None)  # preferably with a unit

    unit = mapping.time_unit or _UNIT_WORDS.get(named.get(name) or "", named.get(name))
    return stamps_ns(f"column {name!r}", _numbers(table, name), unit)


def stamps_ns(where: str, times: np.ndarray, unit: str | None) -> np.ndarray:
    """Return times in ns; the default unit is that with 1 to 1000 frames per second.

    Raises SchemaError: a time is missing, or no unit gives such a rate.
    """
    if not np.isfinite(times).all():
        raise SchemaError(f"{where}: frame {int(np.argmin(np.isfinite(times)))} has no time.")
    if unit is None:
        steps = np.diff(np.unique(times))
        step = float(np.median(steps)) if len(steps) else 1.0
        rates = {name: 1e9 / (step * ns) for name, ns in TIME_UNITS_NS.items()}
        unit = next((name for name, rate in rates.items() if 1 <= rate <= 1000), None)
        if unit is None:
            raise SchemaError(
                f"{where}: steps of {step:g} do not fit a clip in any unit; give time_unit "
                f"({', '.join(TIME_UNITS_NS)})."
            )
    return np.round(times * TIME_UNITS_NS[unit]).astype(np.int64)
