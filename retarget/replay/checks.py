"""All that clips are judged by: what is measured, its limits, and what exceeds them.

A check is a number of a hand or of the clip with two limits, warn and fail. ``checks.yaml`` lists
them. ``clip.clip_measures`` serves the verdict of a conversion, which adds replay, and ``acehand
inspect``, which adds files, pictures and other episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from acehand_core.errors import SchemaError
from acehand_core.types import Side
from acehand_core.user_files import OneOf, read_yaml, structured

Level = Literal["note", "warn", "fail"]
Status = Literal["pass", "warn", "fail"]
#: Measured in both, in a conversion, or in an inspection of files, pictures or batches.
Source = Literal["clip", "replay", "dataset", "pictures", "batch"]

_NEVER = float("inf")
#: Changed limits of a check; null: never.
_Limits = dict[Literal["warn", "fail"], float | None]


@dataclass(frozen=True, slots=True)
class Check:
    """A measure and its limits; ``noted``: a value other than 0 is reported within them too."""

    warn: int | float
    fail: int | float
    source: Source
    meaning: str
    unit: str = ""
    noted: bool = False


Checks = Mapping[str, Check]


def _built_in() -> Checks:
    entries = read_yaml(Path(__file__).with_name("checks.yaml"))
    never = {name: {k: _NEVER for k in e if e[k] is None} for name, e in entries.items()}
    return {name: Check(**entry | never[name]) for name, entry in entries.items()}


CHECKS = _built_in()


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


def findings(measures: Iterable[Measure], checks: Checks = CHECKS) -> list[Finding]:
    """Return measures beyond a limit, the worst first."""
    exceeding = []
    for measure in measures:
        limit = checks[measure.check]
        if measure.value > limit.fail:
            level: Level = "fail"
        elif measure.value > limit.warn:
            level = "warn"
        elif limit.noted and measure.value:
            level = "note"
        else:
            continue
        exceeding.append(Finding(**asdict(measure), level=level))
    order = ("fail", "warn", "note")
    return sorted(exceeding, key=lambda finding: order.index(finding.level))


def status_of(results: Sequence[Finding]) -> Status:
    """Return the worst level of findings."""
    levels = {finding.level for finding in results}
    if "fail" in levels:
        return "fail"
    return "warn" if "warn" in levels else "pass"


def read_limits(path: Path) -> dict[str, Check]:
    """Return all checks with the limits that a YAML file changes; null is no limit.

    ``{name: {warn, fail}}``. Raises InputError for an unreadable file, SchemaError for unknown
    names or invalid limits.
    """
    changes = structured(dict[Annotated[str, OneOf(CHECKS)], _Limits], read_yaml(path), path)
    checks = dict(CHECKS)
    for name, limits in changes.items():
        values = asdict(checks[name])
        values |= {level: _NEVER if one is None else one for level, one in limits.items()}
        check = checks[name] = Check(**values)
        if not 0 <= check.warn <= check.fail:
            raise SchemaError(
                f"{path}: {name} is {check.warn:g} and {check.fail:g}; valid: 0 <= warn <= fail."
            )
    return checks
