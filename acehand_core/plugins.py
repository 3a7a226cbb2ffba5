"""Plug-ins: what a package adds to acehand, ours like any other, found by its entry points.

=======================  ========================================================================
group                    what an entry names
=======================  ========================================================================
``acehand.recordings``   a ``recordings.registry.RecordingFormat``: something that can be opened
``acehand.trackers``     ``TrackerSettings -> trackers.base.Tracker``
``acehand.robots``       a package whose folders with a robot.yaml are robots, by their names
``acehand.methods``      ``second_pass -> retarget.solve.methods.Retargeter``
``acehand.exports``      ``(HandMotion, Path, overwrite) -> None``, by a file's suffix
``acehand.commands``     a table of commands: ``{"name": ("what it does", "module:Class")}``
=======================  ========================================================================

An entry in the group with ``.settings`` behind it, of the same name, is a dataclass made with
``settings.setting``: the flags that the plug-in adds to the commands. It is loaded whenever flags
are parsed, the plug-in only when it is used.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_args

from acehand_core.errors import InputError, MissingDependencyError, nearest

_OURS = ("acehand_core", "acehand_ros", "retarget", "robots")

Kind = Literal["recordings", "trackers", "robots", "methods", "exports", "commands"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry point and where it is from."""

    point: EntryPoint

    @property
    def ours(self) -> bool:
        # Asking for the name of the package reads its whole metadata, which takes as long as
        # everything else that `acehand --help` does.
        return self.point.value.partition(":")[0].partition(".")[0] in _OURS

    @property
    def package(self) -> str:
        return self.point.dist.name if self.point.dist else "an unknown package"

    def load(self) -> Any:
        """Return what it names. Raises MissingDependencyError."""
        try:
            return self.point.load()
        except Exception as error:  # importing third-party code may raise anything
            raise MissingDependencyError(
                f"The plug-in {self.point.name!r} ({self.point.group}) of {self.package} cannot be "
                f"loaded from {self.point.value!r}: {error}. Repair or uninstall that package."
            ) from error


@functools.cache
def _entries(group: str) -> dict[str, _Entry]:
    """Return the entries of a group by name; those of this package come first and stay."""
    points = map(_Entry, entry_points(group=group))
    found: dict[str, _Entry] = {}
    for entry in sorted(points, key=lambda entry: (not entry.ours, entry.point.name)):
        other = found.setdefault(entry.point.name, entry)
        if other is not entry and not other.ours:
            raise InputError(
                f"{group}: {entry.point.name!r} is installed twice, by {other.package} and "
                f"{entry.package}; uninstall one of them."
            )
    return found


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names of the plug-ins of a kind, this package's first.

    Raises:
        MissingDependencyError: this package's own are not among them.
        InputError: two packages have one of the same name.
    """
    entries = _entries(f"acehand.{kind}")
    if not any(entry.ours for entry in entries.values()):
        raise MissingDependencyError(
            f"acehand's own {kind} are missing from its installed metadata: install it again "
            "(in a checkout: pip install -e .)."
        )
    return tuple(entries)


def load(kind: Kind, name: str) -> Any:
    """Return what the entry of that name names.

    Raises:
        InputError: there is none. MissingDependencyError: it cannot be loaded; also as ``names``.
    """
    if name not in names(kind):
        raise InputError(f"{kind}: there is no {name!r}; {nearest(name, names(kind))}")
    return _entries(f"acehand.{kind}")[name].load()


def settings_of(kind: Kind) -> dict[str, type]:
    """Return the settings that plug-ins of a kind bring, by plug-in. Raises as ``load``."""
    names(kind)  # metadata from before an update has neither
    found = {name: entry.load() for name, entry in _entries(f"acehand.{kind}.settings").items()}
    for name, own in found.items():
        if not is_dataclass(own):
            raise unfit(f"{kind}.settings", name, "is not a dataclass of settings")
    return found


def unfit(group: str, name: str, why: str) -> InputError:
    """Return the error for an entry that is not what its group asks for."""
    entry = _entries(f"acehand.{group}")[name]
    return InputError(
        f"The plug-in {name!r} (acehand.{group}) of {entry.package}: {entry.point.value!r} {why}."
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
                found[f"{group} {name}"] = _state(entry)
    return found


def _state(entry: _Entry) -> str:
    try:
        entry.load()
    except MissingDependencyError as error:
        return str(error)
    return f"{entry.point.value} of {entry.package}"
