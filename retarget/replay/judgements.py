"""All that clips are judged by: what is measured, its limits, and what exceeds them.

A judgement is a number of a hand or of the clip with two limits: above the first the clip is
doubtful (``warn`` in a verdict), above the second rejected (``fail``). ``judgements.yaml`` lists
them. ``clip.clip_measures`` serves the verdict of a conversion, which adds replay, and ``acehand
inspect``, which adds files, pictures and other episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from acehand_core.errors import SchemaError
from acehand_core.types import Side
from acehand_core.user_files import OneOf, read_yaml, structured

Level = Literal["note", "doubtful", "rejected"]
Status = Literal["accepted", "doubtful", "rejected"]
#: Measured in both, in a conversion, or in an inspection of files, pictures or batches.
Source = Literal["clip", "replay", "dataset", "pictures", "batch"]

_NEVER = float("inf")
#: Changed limits of a judgement; null: never.
_Limits = dict[Literal["doubtful", "rejected", "warn", "fail"], float | None]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A measure and its limits; ``noted``: a value other than 0 is reported within them too."""

    doubtful: int | float
    rejected: int | float
    source: Source
    meaning: str
    unit: str = ""
    noted: bool = False


Judgements = Mapping[str, Judgement]


def _built_in() -> Judgements:
    entries = read_yaml(Path(__file__).with_name("judgements.yaml"))
    never = {name: {k: _NEVER for k in e if e[k] is None} for name, e in entries.items()}
    return {name: Judgement(**entry | never[name]) for name, entry in entries.items()}


JUDGEMENTS = _built_in()


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured value of a hand or, ``side`` None, of the clip; ``frame`` shows it best."""

    check: str
    value: int | float
    text: str
    side: Side | None = None
    frame: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of report.json."""
        return {**asdict(self), "value": round(float(self.value), 5)}


@dataclass(frozen=True, slots=True)
class Finding(Measure):
    """A measure beyond a limit."""

    level: Level = "note"


def findings(measures: Iterable[Measure], judgements: Judgements = JUDGEMENTS) -> list[Finding]:
    """Return measures beyond a limit, the worst first."""
    found = []
    for measure in measures:
        limit = judgements[measure.check]
        if measure.value > limit.rejected:
            level: Level = "rejected"
        elif measure.value > limit.doubtful:
            level = "doubtful"
        elif limit.noted and measure.value:
            level = "note"
        else:
            continue
        found.append(Finding(**asdict(measure), level=level))
    order = ("rejected", "doubtful", "note")
    return sorted(found, key=lambda finding: order.index(finding.level))


def status_of(found: Sequence[Finding]) -> Status:
    """Return the worst level of findings."""
    levels = {finding.level for finding in found}
    if "rejected" in levels:
        return "rejected"
    return "doubtful" if "doubtful" in levels else "accepted"


def read_gates(path: Path) -> dict[str, Judgement]:
    """Return all judgements with the limits that a YAML file changes; null is no limit.

    ``{name: {doubtful, rejected}}`` or, with the same meaning, ``{name: {warn, fail}}``. Raises
    InputError for an unreadable file, SchemaError for unknown names or invalid limits.
    """
    changes = structured(dict[Annotated[str, OneOf(JUDGEMENTS)], _Limits], read_yaml(path), path)
    judgements = dict(JUDGEMENTS)
    for name, limits in changes.items():
        low, high = judgements[name].doubtful, judgements[name].rejected
        for key, limit in limits.items():
            value = _NEVER if limit is None else limit
            low, high = (value, high) if key in ("doubtful", "warn") else (low, value)
        if not 0 <= low <= high:
            words = "warn <= fail" if {"warn", "fail"} & {*limits} else "doubtful <= rejected"
            raise SchemaError(f"{path}: {name} is {low:g} and {high:g}; valid: 0 <= {words}.")
        judgements[name] = replace(judgements[name], doubtful=low, rejected=high)
    return judgements
