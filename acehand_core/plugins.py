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
import re
import sys
from dataclasses import is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from acehand_core.errors import InputError, MissingDependencyError, nearest

_OURS = ("acehand_core", "acehand_ros", "retarget", "robots")

Kind = Literal["recordings", "trackers", "robots", "methods", "exports", "commands"]


@functools.cache
def _installed(path: tuple[str, ...]) -> Any:
    """Return the entries of all packages on ``path``, which is ``sys.path``.

    Until Python 3.12 they are no ``EntryPoints``, but have its ``select``.
    """
    return entry_points()


def _entries(group: str) -> dict[str, EntryPoint]:
    """Return the entries of a group by name, this package's first. Raises InputError."""
    return _entries_of(group, tuple(sys.path))


@functools.cache
def _entries_of(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    entries = _installed(path).select(group=group)
    for entry in sorted(entries, key=lambda entry: (not _ours(entry), entry.name)):
        other = found.setdefault(entry.name, entry)
        if other is not entry and not _ours(other):
            raise InputError(
                f"{group}: {entry.name!r} is installed twice, by {_package(other)} and "
                f"{_package(entry)}; uninstall one of them."
            )
    return found


def _ours(entry: EntryPoint) -> bool:
    return re.split("[:.]", entry.value)[0] in _OURS


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "an unknown package"


def _load(entry: EntryPoint) -> Any:
    """Return the object of an entry. Raises MissingDependencyError."""
    try:
        return entry.load()
    except Exception as error:  # importing third-party code may raise anything
        raise MissingDependencyError(
            f"The plug-in {entry.name!r} ({entry.group}) of {_package(entry)} cannot be loaded "
            f"from {entry.value!r}: {error}. Repair or uninstall that package."
        ) from error


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of the plug-ins of a kind, this package's first.

    Raises MissingDependencyError: this package's own are missing. InputError: two packages have one
    of the same name.
    """
    entries = _entries(f"acehand.{kind}")
    if not any(_ours(entry) for entry in entries.values()):
        raise MissingDependencyError(
            f"acehand's own {kind} are missing from its installed metadata: install it again "
            "(in a checkout: pip install -e .)."
        )
    return tuple(entries)


def load(kind: Kind, name: str) -> Any:
    """Return the object of an entry. Raises InputError for an unknown name; as ``names``."""
    if name not in names(kind):
        raise InputError(f"{kind}: there is no {name!r}; {nearest(name, names(kind))}")
    return _load(_entries(f"acehand.{kind}")[name])


def settings_of(kind: Kind) -> dict[str, type]:
    """Return the settings of the plug-ins of a kind, by plug-in. Raises as ``load``."""
    names(kind)  # metadata from before an update has neither
    found = {name: _load(entry) for name, entry in _entries(f"acehand.{kind}.settings").items()}
    for name, own in found.items():
        if not is_dataclass(own):
            raise unfit(f"{kind}.settings", name, "is not a dataclass of settings")
    return found


def unfit(group: str, name: str, why: str) -> InputError:
    """Return the error for an entry that does not fit its group."""
    entry = _entries(f"acehand.{group}")[name]
    return InputError(
        f"The plug-in {name!r} (acehand.{group}) of {_package(entry)}: {entry.value!r} {why}."
    )


def is_ours(kind: Kind, name: str) -> bool:
    """Whether a plug-in comes with this package."""
    entry = _entries(f"acehand.{kind}").get(name)
    return entry is not None and _ours(entry)


def of_others() -> dict[str, str]:
    """Return the plug-ins of other packages: where each is from, or why it does not load."""
    found = {}
    for group in (f"acehand.{kind}{end}" for kind in get_args(Kind) for end in ("", ".settings")):
        for name, entry in _entries(group).items():
            if not _ours(entry):
                state = f"{entry.value} of {_package(entry)}"
                try:
                    _load(entry)
                except MissingDependencyError as error:
                    state = str(error)
                found[f"{group} {name}"] = state
    return found
