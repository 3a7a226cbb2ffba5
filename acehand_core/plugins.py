"""Plug-ins: what packages, this one included, add to acehand by entry points.

=======================  ========================================================================
group                    object of an entry
=======================  ========================================================================
``acehand.recordings``   a ``recordings.registry.RecordingFormat``: something that can be opened
``acehand.trackers``     ``TrackerSettings -> trackers.base.Tracker``
``acehand.robots``       a package of robots: folders with a robot.yaml, named after the robot
``acehand.methods``      ``second_pass -> retarget.solve.methods.Retargeter``
``acehand.exports``      ``(HandMotion, Path, overwrite) -> None``, named by file suffix
``acehand.commands``     a table of commands: ``{"name": ("what it does", "module:Class")}``
=======================  ========================================================================

An entry of the same name in the group ``GROUP.settings`` is a dataclass made with
``settings.setting``: the flags of the plug-in. It is loaded whenever flags are parsed, the plug-in
only when it is used.
"""

from __future__ import annotations

import functools
import importlib
import operator
import re
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from acehand_core.errors import InputError, MissingDependencyError, nearest

_OURS = ("acehand_core", "acehand_ros", "retarget", "robots")

Kind = Literal["recordings", "trackers", "robots", "methods", "exports", "commands"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry point; ``value`` is MODULE or MODULE:OBJECT."""

    group: str
    name: str
    value: str
    package: str

    @property
    def ours(self) -> bool:
        return re.split("[:.]", self.value)[0] in _OURS

    def load(self) -> Any:
        """Return the object. Raises MissingDependencyError."""
        module, _, path = self.value.partition(":")
        try:
            found = importlib.import_module(module)
            return operator.attrgetter(path)(found) if path else found
        except Exception as error:  # importing third-party code may raise anything
            raise MissingDependencyError(
                f"The plug-in {self.name!r} ({self.group}) of {self.package} cannot be loaded from "
                f"{self.value!r}: {error}. Repair or uninstall that package."
            ) from error


@functools.cache
def _installed(folders: tuple[str, ...]) -> tuple[_Entry, ...]:
    """Return the entries of the packages in ``folders``; the first of several copies counts.

    ``importlib.metadata`` takes as long as the rest of ``acehand --help``.
    """
    packages: dict[str, Path] = {}
    for file in (f for folder in folders for f in Path(folder).glob("*-info/entry_points.txt")):
        packages.setdefault(file.parent.stem.partition("-")[0].replace("_", "-"), file)
    found = []
    for package, file in packages.items():
        group = ""
        for line in map(str.strip, file.read_text("utf-8").splitlines()):
            if line.startswith("["):
                group = line.strip("[]")
            elif group.startswith("acehand.") and "=" in line:
                name, value = (part.strip() for part in line.split("=", 1))
                found.append(_Entry(group, name, value, package))
    return tuple(found)


def _entries(group: str) -> dict[str, _Entry]:
    """Return the entries of a group by name, this package's first. Raises InputError."""
    found: dict[str, _Entry] = {}
    entries = (entry for entry in _installed(tuple(sys.path)) if entry.group == group)
    for entry in sorted(entries, key=lambda entry: (not entry.ours, entry.name)):
        other = found.setdefault(entry.name, entry)
        if other is not entry and not other.ours:
            raise InputError(
                f"{group}: {entry.name!r} is installed twice, by {other.package} and "
                f"{entry.package}; uninstall one of them."
            )
    return found


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of the plug-ins of a kind, this package's first.

    Raises MissingDependencyError: this package's own are missing. InputError: two packages have one
    of the same name.
    """
    entries = _entries(f"acehand.{kind}")
    if not any(entry.ours for entry in entries.values()):
        raise MissingDependencyError(
            f"acehand's own {kind} are missing from its installed metadata: install it again "
            "(in a checkout: pip install -e .)."
        )
    return tuple(entries)


def load(kind: Kind, name: str) -> Any:
    """Return the object of an entry. Raises InputError for an unknown name; as ``names``."""
    if name not in names(kind):
        raise InputError(f"{kind}: there is no {name!r}; {nearest(name, names(kind))}")
    return _entries(f"acehand.{kind}")[name].load()


def settings_of(kind: Kind) -> dict[str, type]:
    """Return the settings of the plug-ins of a kind, by plug-in. Raises as ``load``."""
    names(kind)  # metadata from before an update has neither
    found = {name: entry.load() for name, entry in _entries(f"acehand.{kind}.settings").items()}
    for name, own in found.items():
        if not is_dataclass(own):
            raise unfit(f"{kind}.settings", name, "is not a dataclass of settings")
    return found


def unfit(group: str, name: str, why: str) -> InputError:
    """Return the error for an entry that does not fit its group."""
    entry = _entries(f"acehand.{group}")[name]
    return InputError(
        f"The plug-in {name!r} (acehand.{group}) of {entry.package}: {entry.value!r} {why}."
    )


def is_ours(kind: Kind, name: str) -> bool:
    """Whether a plug-in comes with this package."""
    entry = _entries(f"acehand.{kind}").get(name)
    return entry is not None and entry.ours


def of_others() -> dict[str, str]:
    """Return the plug-ins of other packages: where each is from, or why it does not load."""
    found = {}
    for group in (f"acehand.{kind}{end}" for kind in get_args(Kind) for end in ("", ".settings")):
        for name, entry in _entries(group).items():
            if not entry.ours:
                state = f"{entry.value} of {entry.package}"
                try:
                    entry.load()
                except MissingDependencyError as error:
                    state = str(error)
                found[f"{group} {name}"] = state
    return found
