"""Proposes a focal length where two methods that share nothing agree on it.

One moves (``structure``: tracked corners of a rigid scene), one stands (``lines``: directions at
right angles in single pictures). Each gives a curve of misfit over the focal length, made of
parts: windows of keyframes, or pictures. What the parts disagree on is the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.self_calibration import lines, structure
from acehand_core.self_calibration.structure import Lens
from acehand_core.self_calibration.tracks import Gray, Window, windows
from acehand_core.types import ImageRgb, Progress, no_progress

#: Pictures are made this wide (their longer side) before they are looked at.
_SIDE = 640
#: The fields of view across the longer side that are tried, in degrees, and in how many steps.
FIELDS_OF_VIEW: Mapping[Lens, tuple[float, float]] = MappingProxyType(
    {"pinhole": (40.0, 125.0), "equidistant": (60.0, 160.0)}
)
_STEPS = 29
#: Of a long recording so many stretches of so many frames are read.
_STRETCHES, _STRETCH = 6, 150
_WINDOWS, _PICTURES, _FEWEST_LINES = 8, 24, 12
#: A method counts where another focal length, this much longer or shorter, fits worse by so much.
_ASIDE = 1.15
_SUPPORT = {"motion": 25.0, "lines": 8.0}
#: Largest relative standard error of a method, and how far two may be apart.
MOST_ERROR, MOST_APART = 0.05, 0.06

Curves = Float[np.ndarray, "P F"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one method says.

    Attributes:
        name: "motion" or "lines".
        lens: for which it looked.
        focal: in widths of the picture's longer side; None: it does not say.
        error: relative standard error of it.
        parts: windows or pictures that were used.
        misfit: over the focal lengths tried, 0 at the best (F,).
        reason: why it does not count; empty where it does.
    """

    name: str
    lens: Lens
    focal: float | None
    error: float
    parts: int
    misfit: Float[np.ndarray, "F"]
    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """A proposal.

    Attributes:
        camera: a pinhole of the recording's size, or an equidistant lens (Kannala-Brandt without
            coefficients); None: not accepted.
        error: relative standard error of its focal length.
        findings: of both methods.
        reason: why there is no camera; empty where there is one.
        picture, segments, directions: the picture with most lines, its segments (L, 4) in its
            pixels and, where the focal length is known, their three directions (3, 3).
    """

    camera: Camera | None
    error: float
    findings: tuple[Finding, Finding]
    reason: str
    picture: ImageRgb
    segments: lines.Segments
    directions: Float[np.ndarray, "3 3"] | None


def focal_lengths(lens: Lens = "pinhole") -> Float[np.ndarray, "F"]:
    """Return the focal lengths that are tried, ascending, in widths of the longer side."""
    wide, narrow = (_focal_of(angle, lens) for angle in FIELDS_OF_VIEW[lens][::-1])
    return np.geomspace(wide, narrow, _STEPS)


def estimate(recording: Recording, progress: Progress = no_progress) -> Estimate:
    """Return what the pictures of a recording say of its focal length.

    The principal point is taken for the middle of the picture, and the lens for the one of a
    pinhole and an equidistant fisheye with which the motion fits better.

    Raises:
        InputError: there are no pictures.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: it has no pictures; give a video.")
    seen = _Seen(recording, progress)
    motions = {lens: seen.motion(lens, progress) for lens in FIELDS_OF_VIEW}
    lowest = {lens: curves.sum(axis=0).min() for lens, curves in motions.items()}
    lens: Lens = "pinhole"
    if lowest["equidistant"] < lowest["pinhole"] - _SUPPORT["motion"]:
        lens = "equidistant"

    focals = focal_lengths(lens)
    curves, directions = seen.lines(lens, progress)
    findings = finding("motion", motions[lens], lens), finding("lines", curves, lens)
    focal, error, reason = agreed(*findings)
    if focal is None:
        return Estimate(None, error, findings, reason, seen.shown, seen.segments, None)

    pixels = focal * max(recording.width, recording.height)
    size = recording.width, recording.height
    place = pixels, pixels, (size[0] - 1) / 2, (size[1] - 1) / 2
    camera = Camera("pinhole", *size, *place)
    if lens == "equidistant":
        camera = Camera("kannala_brandt", *size, *place, (0.0,) * 4)
    nearest = int(np.abs(np.log(focals / focal)).argmin())
    corner = None if directions is None else directions[nearest]
    return Estimate(camera, error, findings, "", seen.shown, seen.segments, corner)


class _Seen:
    """What both methods look at, in pictures of ``_SIDE`` pixels, relative to their middle."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        found, pictures = _looked_at(recording, progress)
        scale = min(1.0, _SIDE / max(recording.width, recording.height))
        size = round(recording.width * scale), round(recording.height * scale)
        self._side, self._middle = max(size), (np.array(size) - 1) / 2
        self._windows = [found[at].tracks - self._middle for at in _spread(len(found), _WINDOWS)]
        cut = [lines.segments_in(_gray(picture, size)) for picture in pictures]
        self._best = int(np.argmax([len(segments) for segments in cut]))
        self._cut = [(at, segments) for at, segments in enumerate(cut)
                     if len(segments) >= _FEWEST_LINES]  # fmt: skip
        self.shown = pictures[self._best]
        self.segments = (cut[self._best] + 0.5) / scale - 0.5

    def motion(self, lens: Lens, progress: Progress) -> Curves:
        """Return the misfit of every window."""
        focals = focal_lengths(lens) * self._side
        curves = np.zeros((len(self._windows), _STEPS))
        for row, tracks in enumerate(self._windows):
            progress(f"motion, {lens}", row, len(curves))
            curves[row] = structure.profile(tracks, focals, lens)
        progress(f"motion, {lens}", len(curves), len(curves))
        return curves

    def lines(
        self, lens: Lens, progress: Progress
    ) -> tuple[Curves, Float[np.ndarray, "F 3 3"] | None]:
        """Return the misfit of every picture, and the directions in the one that is shown."""
        focals, rng = focal_lengths(lens) * self._side, np.random.default_rng(0)
        curves, shown = np.zeros((len(self._cut), _STEPS)), None
        for row, (at, segments) in enumerate(self._cut):
            progress("lines", row, len(curves))
            relative = segments - np.tile(self._middle, 2)
            likely, corners = lines.agreement(relative, focals, rng, lens)
            curves[row] = -likely
            shown = corners if at == self._best else shown
        progress("lines", len(curves), len(curves))
        return curves, shown


def finding(name: str, curves: Curves, lens: Lens = "pinhole") -> Finding:
    """Return where the sum of curves of misfit is least, with its error by resampling them."""
    focals = focal_lengths(lens)
    total = curves.sum(axis=0)
    misfit = total - (total.min() if len(curves) else 0.0)
    if not len(curves):
        why = "the camera hardly moves" if name == "motion" else "there are too few straight lines"
        return Finding(name, lens, None, math.inf, 0, misfit, why)
    best = _lowest(total, focals)
    if best is None:
        ends = f"{FIELDS_OF_VIEW[lens][0]:g} to {FIELDS_OF_VIEW[lens][1]:g}"
        why = f"no focal length between those of {ends} degrees fits best"
        return Finding(name, lens, None, math.inf, len(curves), misfit, why)

    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(curves), (200, len(curves)))
    others = [_lowest(curves[picks].sum(axis=0), focals) for picks in drawn]
    logs = np.array([math.log(other / best) if other else 0.5 for other in others])
    # One part alone has nothing to disagree with: it gets no error, and does not count.
    parts = len(curves)
    error = float(np.sqrt(np.mean(logs**2) * parts / (parts - 1))) if parts > 1 else math.inf
    aside = np.interp(np.log([best / _ASIDE, best * _ASIDE]), np.log(focals), misfit)
    reason = ""
    if parts < 2:
        reason = "there is one stretch of motion only" if name == "motion" else "only one has lines"
    elif aside.min() < _SUPPORT[name]:
        reason = "other focal lengths fit nearly as well"
    elif error > MOST_ERROR:
        reason = f"parts of the video disagree by {100 * error:.0f} %"
    return Finding(name, lens, best, error, parts, misfit, reason)


def agreed(motion: Finding, still: Finding) -> tuple[float | None, float, str]:
    """Return the focal length that both findings allow and its relative error, or why not."""
    weak = [f"{finding.name}: {finding.reason}" for finding in (motion, still) if finding.reason]
    if weak or motion.focal is None or still.focal is None:
        return None, math.inf, "; ".join(weak)
    apart = abs(math.log(motion.focal / still.focal))
    if apart > MOST_APART:
        return None, math.inf, (
            f"the methods disagree by {100 * apart:.0f} %, more than {100 * MOST_APART:.0f} %"
        )  # fmt: skip
    weights = np.array([1 / max(f.error, 0.01) ** 2 for f in (motion, still)])
    both = np.log([motion.focal, still.focal])
    focal = math.exp(float(weights @ both / weights.sum()))
    return focal, max(float(weights.sum() ** -0.5), apart / 2), ""


def field_of_view(focal: float, lens: Lens) -> float:
    """Return the angle across the longer side, in degrees, of a focal length in its widths."""
    half = 0.5 / focal
    return 2 * math.degrees(math.atan(half) if lens == "pinhole" else half)


def _focal_of(angle: float, lens: Lens) -> float:
    half = math.radians(angle) / 2
    return 0.5 / (math.tan(half) if lens == "pinhole" else half)


def _lowest(curve: Float[np.ndarray, "F"], focals: Float[np.ndarray, "F"]) -> float | None:
    """Return the focal length at the bottom of a parabola through the least of a curve."""
    at = int(np.argmin(curve))
    if at in (0, len(curve) - 1):
        return None
    before, here, after = curve[at - 1 : at + 2]
    shift = 0.5 * (before - after) / max(before - 2 * here + after, 1e-12)
    return float(focals[at] * (focals[1] / focals[0]) ** np.clip(shift, -0.5, 0.5))


def _looked_at(recording: Recording, progress: Progress) -> tuple[list[Window], list[ImageRgb]]:
    """Return windows of keyframes, and pictures for the lines."""
    assert recording.frames is not None
    count = len(recording)
    stretches = [(0, count)]
    if count > _STRETCHES * _STRETCH:
        starts = np.linspace(0, count - _STRETCH, _STRETCHES).astype(int)
        stretches = [(int(start), int(start) + _STRETCH) for start in starts]
    scale = min(1.0, _SIDE / max(recording.width, recording.height))
    size = round(recording.width * scale), round(recording.height * scale)

    total, done = sum(stop - start for start, stop in stretches), 0
    wanted = set(_spread(total, _PICTURES))
    pictures: list[ImageRgb] = []
    found: list[Window] = []

    def read(start: int, stop: int) -> Iterator[Gray]:
        nonlocal done
        assert recording.frames is not None
        for picture in recording.frames.read(start, stop):
            if done in wanted:
                pictures.append(picture)
            done += 1
            progress("tracks", done, total)
            yield _gray(picture, size)

    for start, stop in stretches:
        found += windows(read(start, stop))
    return found, pictures


def _spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` of ``count`` numbers, evenly apart."""
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def _gray(picture: ImageRgb, size: tuple[int, int]) -> Gray:
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    same = gray.shape[::-1] == size
    return gray if same else cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
