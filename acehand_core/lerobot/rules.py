"""Rules that select episodes by their reports.

A file of rules (YAML) names entries of ``report.json``, inner ones with a dot::

    verdict: [pass, warn]          # one of these
    seconds: {min: 1.0}            # frames, seconds and task come of the dataset itself
    filled_share: {max: 0.2}
    reprojection_px.median: {max: 4}
    task: {matches: "pour.*"}      # a regular expression for all of it

An episode is kept if all of them hold. An unknown value breaks any rule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import Row
from acehand_core.user_files import Valid, read_yaml, structured


def _is_pattern(text: str) -> bool:
    try:
        return re.compile(text) is not None
    except re.error:
        return False


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a number, and a pattern that all of a text matches."""

    min: int | float | None = None
    max: int | float | None = None
    matches: Annotated[str, Valid("a regular expression", _is_pattern)] | None = None

    def __post_init__(self) -> None:
        if (self.min, self.max, self.matches) == (None, None, None):
            raise SchemaError("valid: min, max, matches.")

    def broken_by(self, name: str, value: Any) -> str | None:
        """Return how a known value breaks them; None: it does not."""
        if self.matches is not None and re.fullmatch(self.matches, str(value)) is None:
            return f"{name} is {value!r}, which does not match {self.matches!r}"
        if self.min is None and self.max is None:
            return None
        if not _is_number(value):
            return f"{name} is {value!r}, no number"
        if self.min is not None and value < self.min:
            return f"{name} is {value:g}, less than {self.min:g}"
        if self.max is not None and value > self.max:
            return f"{name} is {value:g}, more than {self.max:g}"
        return None


@dataclass(frozen=True, slots=True)
class Rule:
    """What is wanted of one entry: one of several values, or limits."""

    entry: str
    wanted: tuple[Any, ...] | Limits

    @classmethod
    def of(cls, entry: str, wanted: Any, where: str) -> Rule:
        """Return the rule of a file for an entry. Raises SchemaError."""
        if isinstance(wanted, Mapping):
            return cls(entry, structured(Limits, wanted, f"{where}: {entry}"))
        return cls(entry, tuple(wanted) if isinstance(wanted, list) else (wanted,))

    def broken_by(self, value: Any) -> str | None:
        """Return how a value breaks the rule; None: it does not."""
        if value is None:
            return f"{self.entry} is not known"
        if isinstance(self.wanted, Limits):
            return self.wanted.broken_by(self.entry, value)
        wanted = ", ".join(map(str, self.wanted))
        return None if value in self.wanted else f"{self.entry} is {value}, not one of {wanted}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file. Raises InputError, SchemaError."""
    content = read_rules_file(path)
    return tuple(Rule.of(entry, wanted, str(path)) for entry, wanted in content.items())


def read_rules_file(path: Path) -> dict[str, Any]:
    """Return the non-empty mapping of a file of rules. Raises InputError, SchemaError."""
    content = read_yaml(path)
    if not content:
        raise SchemaError(f"{path}: has no rule.")
    return content


def broken_rules(
    root: Path, info: Mapping[str, Any], rows: Sequence[Row], rules: Sequence[Rule]
) -> dict[int, tuple[str, ...]]:
    """Return the episodes that break rules, by number, and how.

    Raises InputError for an entry that no episode has, SchemaError for a damaged report.
    """
    by_episode = {row["episode_index"]: entries_of(root, info, row) for row in rows}
    known = {entry for entries in by_episode.values() for entry in entries}
    for rule in rules:
        if rule.entry not in known:
            raise InputError(f"{root}: no episode has {rule.entry!r}; {nearest(rule.entry, known)}")

    broken = {}
    for number, entries in by_episode.items():
        reasons = [rule.broken_by(entries.get(rule.entry)) for rule in rules]
        if broken_by := tuple(reason for reason in reasons if reason is not None):
            broken[number] = broken_by
    return broken


def entries_of(root: Path, info: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return an episode's entries for rules: its report, flat, and those of the dataset."""
    report = layout.read_report(root, row["episode_index"])
    report.pop("provenance", None)
    flat: dict[str, Any] = {}

    def add(prefix: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(value, Mapping):
                add(f"{prefix}{key}.", value)
            elif not isinstance(value, list):
                flat[f"{prefix}{key}"] = value

    add("", report)
    own = {"frames": row["length"], "seconds": row["length"] / info["fps"]}
    return flat | own | {"task": row["tasks"][0]}
