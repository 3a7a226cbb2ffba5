"""Origin of a result."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from acehand_core import __version__

#: Name of the focal length in ``Provenance.assumed``, and the sigma of a distance that is anything.
LENS, UNKNOWN_SIGMA = "lens", 1.0


@functools.cache
def library_versions() -> Mapping[str, str]:
    """Return the versions of the libraries that shape a result."""
    versions = {"acehand": __version__}
    for name in ("av", "mediapipe", "mujoco", "numpy", "opencv-python-headless", "piqp"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@functools.cache
def code_sha256(*patterns: str) -> str:
    """Return a hash of our files of some patterns, from the folder of ``acehand_core`` on."""
    root, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def without_folder(source: str) -> str:
    """Return the last part of an absolute path, for privacy; other names are unchanged."""
    for kind in (PurePosixPath, PureWindowsPath):
        if kind(source).is_absolute():
            return kind(source).name
    return source


@dataclass(frozen=True, slots=True)
class Agreement:
    """How depth, or another camera of a rig, agrees with the hands that the first camera sees.

    Attributes:
        source: "depth", or the camera's name.
        frames: those in which it and the first camera see a hand; ``used``: of these, those in
            which it places the hand.
        scale: median over the frames of a hand's distance by it, over that by the hand's size in
            the first camera; ``spread``: robust standard deviation of the logarithm.
        gap: of another camera, median distance of its landmarks from the first one's epipolar
            planes, over the palm's length; of depth, share of the readings off the hand's surface.
        doubt: what disagrees and the likely cause, as a sentence; "" if it agrees.
    """

    source: str
    frames: int
    used: int
    scale: float | None = None
    spread: float | None = None
    gap: float | None = None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a result, written into every file.

    ``source`` is the recording's name; absolute paths lose their folders. ``licenses`` has a line
    per licence that binds users of the result (weights, hand model, robot model). ``notes`` are
    sentences about what was found in the recording and assumed. ``assumed``: relative standard
    deviation of the hands' distance by each thing that was not known. ``agreement``: of all that
    was given next to the first camera.
    """

    source: str
    source_sha256: str | None
    tracker: str
    weights: str | None = None
    licenses: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: dict(library_versions()))
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    assumed: Mapping[str, float] = field(default_factory=dict)
    agreement: tuple[Agreement, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", without_folder(self.source))
