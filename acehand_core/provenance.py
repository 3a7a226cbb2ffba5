"""Origin of a result."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from acehand_core import __version__


@functools.cache
def library_versions() -> Mapping[str, str]:
    """Return the versions of the libraries that shape a result."""
    versions = {"acehand": __version__}
    for name in ("av", "mediapipe", "mujoco", "numpy", "opencv-python-headless", "piqp"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def without_folder(source: str) -> str:
    """Return the last part of an absolute path, for privacy; other names are unchanged."""
    for kind in (PurePosixPath, PureWindowsPath):
        if kind(source).is_absolute():
            return kind(source).name
    return source


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a result, written into every file.

    ``source`` is the recording's name; absolute paths lose their folders. ``licenses`` has a line
    per licence that binds users of the result (weights, hand model, robot model). ``notes`` are
    assumptions, such as a nominal field of view.
    """

    source: str
    source_sha256: str | None
    tracker: str
    weights: str | None = None
    licenses: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: dict(library_versions()))
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", without_folder(self.source))
