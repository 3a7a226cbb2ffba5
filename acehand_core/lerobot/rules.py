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
from typing import Any

import yaml

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.assemble import Row

_KINDS = ("min", "max", "matches")


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry: one of ``values``, within limits, or matching a pattern."""

    entry: str
    values: tuple[Any, ...] | None = None
    low: int | float | None = None
    high: int | float | None = None
    pattern: str | None = None

    @classmethod
    def of(cls, entry: str, wanted: Any, where: str) -> Rule:
        """Return the rule of a file for an entry. Raises SchemaError."""
        if isinstance(wanted, list):
            return cls(entry, values=tuple(wanted))
        if not isinstance(wanted, Mapping):
            return cls(entry, values=(wanted,))
        unknown = [key for key in wanted if key not in _KINDS]
        if unknown or not wanted:
            said = nearest(str(unknown[0]), _KINDS) if unknown else f"valid: {', '.join(_KINDS)}."
            raise SchemaError(f"{where}: {entry}: {wanted}: {said}")
        for key in ("min", "max"):
            if key in wanted and not _is_number(wanted[key]):
                raise SchemaError(f"{where}: {entry}: {key} is {wanted[key]!r}; give a number.")
        pattern = wanted.get("matches")
        try:
            re.compile(pattern or "")
        except (re.error, TypeError) as error:
            raise SchemaError(
                f"{where}: {entry}: {pattern!r} is no regular expression: {error}."
            ) from error
        return cls(entry, low=wanted.get("min"), high=wanted.get("max"), pattern=pattern)

    def broken_by(self, value: Any) -> str | None:
        """Return how a value breaks the rule; None: it does not."""
        name = self.entry
        if value is None:
            return f"{name} is not known"
        if self.values is not None:
            wanted = ", ".join(map(str, self.values))
            return None if value in self.values else f"{name} is {value}, not one of {wanted}"
        if self.pattern is not None and re.fullmatch(self.pattern, str(value)) is None:
            return f"{name} is {value!r}, which does not match {self.pattern!r}"
        if self.low is None and self.high is None:
            return None
        if not _is_number(value):
            return f"{name} is {value!r}, no number"
        if self.low is not None and value < self.low:
            return f"{name} is {value:g}, less than {self.low:g}"
        if self.high is not None and value > self.high:
            return f"{name} is {value:g}, more than {self.high:g}"
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file. Raises InputError, SchemaError."""
    content = read_mapping(path, "verdict: [pass, warn]")
    return tuple(Rule.of(str(entry), wanted, str(path)) for entry, wanted in content.items())


def read_mapping(path: Path, example: str) -> dict[Any, Any]:
    """Return the non-empty mapping of a file of rules. Raises InputError, SchemaError."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (yaml.YAMLError, ValueError) as error:  # not UTF-8, or an impossible date
        raise SchemaError(f"{path}: not YAML: {error}.") from error
    if not isinstance(content, dict) or not content:
        raise SchemaError(f"{path}: a file of rules is a mapping, as in {example!r}.")
    return content


def broken_rules(
    root: Path, info: Mapping[str, Any], rows: Sequence[Row], rules: Sequence[Rule]
) -> dict[int, tuple[str, ...]]:
    """Return the episodes that break rules, by number, and how.

    Raises InputError for an entry that no episode has, SchemaError for a damaged report.
    """
    said = {row["episode_index"]: entries_of(root, info, row) for row in rows}
    there = {entry for entries in said.values() for entry in entries}
    for rule in rules:
        if rule.entry not in there:
            raise InputError(f"{root}: no episode has {rule.entry!r}; {nearest(rule.entry, there)}")

    broken = {}
    for number, entries in said.items():
        reasons = [rule.broken_by(entries.get(rule.entry)) for rule in rules]
        if found := tuple(reason for reason in reasons if reason is not None):
            broken[number] = found
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
