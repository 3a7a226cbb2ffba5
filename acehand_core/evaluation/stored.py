"""The form of an evaluation's JSON, checked where it is read back (docs/evaluation.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from acehand_core.errors import SchemaError
from acehand_core.evaluation.summary import METRICS

#: Returns what is needed instead, or None where the value will do.
Check = Callable[[Any], str | None]


def _number(value: Any) -> str | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return None if value is None or (plain and math.isfinite(value)) else "a number or null"


def _some_number(value: Any) -> str | None:
    return "a number" if value is None else _number(value) and "a number"


def _count(value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if whole else "a whole number, 0 or more"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


def _texts(value: Any) -> str | None:
    listed = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return None if listed else "a list of texts"


_COUNTS = dict.fromkeys(("tp", "fp", "fn", "iv", "oos"), _count)
_PLACES = ("wrist_m", "wrist_median_m", "camera_mm", "bearing_deg", "range_error_m", "range_bias_m")
_PLACEMENT = {"count": _count, "emitted": _count} | dict.fromkeys(_PLACES, _number)
#: What every evaluation has. A dict is an object with at least these entries.
_NEEDED: dict[str, Any] = {
    "protocol": _text,
    "dataset": _text,
    "hand_model": _text,
    "segments": {"name": _text, "sha256": _text, "count": _count},
    "method": {"label": _text, "trackers": _texts, "weights": _texts},
    "metrics": {name: _number for name, _, _ in METRICS},
    "counts": _COUNTS | {"frames": _count},
}
#: What it may have. A list of one dict is a list of any number of such objects.
_FURTHER: dict[str, Any] = {
    "anchors": _text,
    "pictures": [{"width": _count, "height": _count, "segments": _count}],
    "matched": {"count": _count} | dict.fromkeys(("mpjpe", "pa", "epe", "go", "ct"), _number),
    "translation_m": {"iv": _number, "oos": _number},
    "out_of_sight_placement": _PLACEMENT,
    "in_view_placement": _PLACEMENT,
    "radius": [
        {"from": _some_number, "to": _number, "count": _count}
        | dict.fromkeys(("share", "mpjpe", "ct"), _number)
    ],
    "decoded_length": [
        {"frames": _count, "segments": _count, "mpjpe_p": _number, "jitter": _number}
    ],
    "throughput": {"machine": _text, "fps": _number, "hands_per_frame": _number},
}


def check_evaluation(value: Mapping[str, Any], where: str) -> None:
    """Raise SchemaError, naming ``where`` and the entry, unless tables can be made of it."""
    for name, form in _NEEDED.items():
        if name not in value:
            raise SchemaError(f"{where}: {name!r} is missing.")
        _check(value[name], form, name, where)
    for name, form in _FURTHER.items():
        if value.get(name) is not None:
            _check(value[name], form, name, where)


def _check(value: Any, form: Any, name: str, where: str) -> None:
    if isinstance(form, list):
        if not isinstance(value, list):
            _refuse(value, name, "a list", where)
        for number, entry in enumerate(value):
            _check(entry, form[0], f"{name}[{number}]", where)
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            _refuse(value, name, "an object", where)
        for key, inner in form.items():
            if key not in value:
                raise SchemaError(f"{where}: '{name}.{key}' is missing.")
            _check(value[key], inner, f"{name}.{key}", where)
    elif needed := form(value):
        _refuse(value, name, needed, where)


def _refuse(value: Any, name: str, needed: str, where: str) -> None:
    raise SchemaError(f"{where}: {name!r} is {str(value)[:60]!r}; {needed} is needed.")
