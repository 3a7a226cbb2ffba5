"""Typed access to YAML parameter files; every error names the file and the key.

A side of a hand may mirror the other in the y of every link's frame; it then states only what
differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from acehand_core.errors import SchemaError, nearest
from acehand_core.types import SIDES, Side

Name = TypeVar("Name", bound=str)

_MISSING = object()


class Section:
    """One mapping of a parameter file, with its file and key."""

    def __init__(self, file: Path, key: str, values: dict[str, Any]) -> None:
        self.file = file
        self.key = key
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise a SchemaError about a key."""
        raise SchemaError(f"{self.file}: {self._path(name)} {problem}")

    def only(self, names: str) -> None:
        """Refuse keys other than the blank-separated names."""
        self.known(names.split(), "a known key")

    def known(self, valid: Iterable[str], what: str = "known here") -> None:
        """Refuse keys that are not ``valid``, with a message that they are not ``what``."""
        valid = tuple(valid)
        for name in self._values:
            if name not in valid:
                self.fail(name, f"is not {what}; {nearest(name, valid)}")

    def section(self, name: str, optional: bool = False) -> Section:
        """Return a mapping; an absent optional one is empty."""
        value = self._get(name, {} if optional else _MISSING)
        if not isinstance(value, dict) or not all(isinstance(k, str) for k in value):
            self.fail(name, "must be a mapping with text keys.")
        return Section(self.file, self._path(name), value)

    def sections(self, name: str) -> Iterator[Section]:
        """Yield the mappings of a list; none if the key is absent."""
        values = self._get(name, [])
        if not isinstance(values, list):
            self.fail(name, "must be a list.")
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                self.fail(f"{name}[{index}]", "must be a mapping.")
            yield Section(self.file, self._path(f"{name}[{index}]"), value)

    def text(self, name: str, default: Any = _MISSING) -> str:
        """Return non-empty text."""
        value = self._get(name, default)
        if not isinstance(value, str) or not value.strip():
            self.fail(name, f"must be text, not {value!r}.")
        return value.strip()

    def choice(self, name: str, valid: Iterable[Name]) -> Name:
        """Return text that is one of the valid names."""
        value, names = self.text(name), tuple(valid)
        if value not in names:
            self.fail(name, f"is {value!r}; {nearest(value, names)}")
        return names[names.index(value)]

    def number(self, name: str, default: Any = _MISSING) -> float:
        """Return a finite number, or the default."""
        value = self._get(name, default)
        return value if value is default else self._number(name, value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            self.fail(name, f"must be true or false, not {value!r}.")
        return value

    def choices(self, name: str, valid: Iterable[str]) -> tuple[str, ...]:
        """Return a list of valid names; none if the key is absent."""
        values, valid = self._get(name, []), tuple(valid)
        if not isinstance(values, list):
            self.fail(name, f"must be a list, not {values!r}.")
        for value in values:
            if value not in valid:
                self.fail(name, f"names {value!r}; {nearest(str(value), valid)}")
        return tuple(values)

    def positive(self, name: str, default: Any = _MISSING) -> float:
        """Return a number above zero."""
        value = self.number(name, default)
        if not value > 0:
            self.fail(name, f"must be greater than 0, not {value}.")
        return value

    def vector(self, name: str, length: int, default: Any = _MISSING) -> tuple[float, ...]:
        """Return ``length`` finite numbers."""
        value = self._get(name, default)
        if not isinstance(value, list | tuple) or len(value) != length:
            self.fail(name, f"must be a list of {length} numbers, not {value!r}.")
        return tuple(self._number(name, v) for v in value)

    def interval(self, name: str) -> tuple[float, float]:
        """Return two ascending numbers."""
        low, high = self.vector(name, 2)
        if not low < high:
            self.fail(name, f"must be [lower, upper] with lower < upper, not [{low}, {high}].")
        return low, high

    def pairs(self, name: str, valid: Iterable[str] | None = None) -> tuple[tuple[str, str], ...]:
        """Return pairs of names, of the valid ones if given; none if the key is absent."""
        pairs = []
        values = self._get(name, [])
        for pair in values if isinstance(values, list) else [values]:
            if not isinstance(pair, list) or len(pair) != 2:
                self.fail(name, f"must be a list of pairs, not {pair!r}.")
            for item in pair:
                if not isinstance(item, str) or (valid is not None and item not in valid):
                    hint = nearest(str(item), valid) if valid is not None else "It must be text."
                    self.fail(name, f"names {item!r}; {hint}")
            pairs.append((pair[0], pair[1]))
        return tuple(pairs)

    def plain(self) -> dict[str, Any]:
        """Return the values as read."""
        return self._values

    def _get(self, name: str, default: Any) -> Any:
        value = self._values.get(name, default)
        if value is _MISSING:
            self.fail(name, f"is missing; present: {', '.join(self._values) or 'nothing'}.")
        return value

    def _number(self, name: str, value: Any) -> float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value):
            self.fail(name, f"must be a finite number, not {value!r}.")
        return float(value)

    def _path(self, name: str) -> str:
        return f"{self.key}.{name}" if self.key else name


def merged(base: Section, change: Section) -> Section:
    """Return ``base`` updated with the entries of ``change``, two levels deep."""
    values = dict(base.plain())
    for name in change:
        values[name] = {**base.section(name).plain(), **change.section(name).plain()}
    return Section(base.file, base.key, values)


#: Signs of vectors in the mirror y -> -y; rotation axes mirror unlike directions.
_DIRECTION = (1.0, -1.0, 1.0)
_TURN = (-1.0, 1.0, -1.0)
_SIGNS = dict.fromkeys(("xyz", "com", "from", "to", "center"), _DIRECTION) | {"rpy": _TURN}


def unmirrored(sides: Section, side: Side) -> Section:
    """Return one side's entry; ``mirror: OTHER`` takes the other's, mirrored, as defaults.

    Joints keep their names and signs: flexion is positive on both sides or on none.
    """
    own = sides.section(side)
    own.only("joints commands links tips model mirror")
    if "mirror" not in own:
        return own
    other = sides.section(own.choice("mirror", (s for s in SIDES if s in sides and s != side)))
    if "mirror" in other:
        own.fail("mirror", f"is {other.key!r}, which is a mirror image itself.")

    values = dict(own.plain())
    for table in ("links", "tips"):
        if table in other:
            mirrored = {k: _mirrored(v) for k, v in other.section(table).plain().items()}
            base = Section(own.file, f"{own.key}.{table}", mirrored)
            change = own.section(table, optional=True)
            change.known(mirrored)
            values[table] = merged(base, change).plain()

    return Section(own.file, own.key, values)


def _mirrored(entry: Any) -> Any:
    """Return a link, tip or shape in the mirror; malformed values are left to the reader."""
    if isinstance(entry, list):
        return [_mirrored(item) for item in entry]
    if not isinstance(entry, dict):
        return entry
    signs = _SIGNS | {"axis": _DIRECTION if entry.get("motion") == "slide" else _TURN}
    image = {}
    for key, value in entry.items():
        image[key] = _mirrored(value)
        vector = key in signs and isinstance(value, list) and len(value) == 3
        if vector and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
            image[key] = [v * s for v, s in zip(value, signs[key], strict=True)]
    return image
