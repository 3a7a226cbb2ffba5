"""Proposes a focal length where two methods that share nothing agree on it.

One moves (``structure``: tracked corners of a rigid scene), one stands (``lines``: directions at
right angles in single pictures). Each gives curves of misfit over the focal length: of windows of
keyframes, or of pictures. Of a curve comes how likely each focal length is, less sure than the
misfit alone says, and maybe all wrong; the product over the parts is what a method says, and the
product of both methods is the proposal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import cv2
import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline

from acehand_core.camera import structure
from acehand_core.camera.structure import Lens
from acehand_core.camera.tracks import Gray, Tracks, TrackWindow, windows
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.processes import one_blas_thread
from acehand_core.types import ImageRgb, Progress, no_progress

#: Pictures are made this wide (their longer side) before they are looked at.
_SIDE = 640
#: The fields of view across the longer side that are tried, in degrees, and in how many steps:
#: for lines, for motion, and to tell the lens by it.
FIELDS_OF_VIEW: Mapping[Lens, tuple[float, float]] = MappingProxyType(
    {"pinhole": (40.0, 125.0), "equidistant": (60.0, 160.0)}
)
_STEPS, _MOTION_STEPS, _COARSE = 21, 15, 7
#: Of a long recording so many stretches of so many frames are read.
_STRETCHES, _STRETCH = 6, 60
_WINDOWS, _PICTURES, _FEWEST_LINES = 8, 24, 12
#: Windows by which the lens is told.
_LENS_WINDOWS = 2
#: Standard deviation of a sighting, in pixels.
_NOISE_PX = 1.0
#: Largest relative standard error of one method and of both together: 95 % of what is accepted
#: shall be within 5 %. How far two methods may be apart: in their errors, and at most.
MOST_OF_ONE, MOST_ERROR = 0.08, 0.025
_APART_ERRORS, MOST_APART = 2.0, 0.12
#: No focal length is known better: the axis is not quite in the middle, no lens is quite ideal.
_LEAST_ERROR = 0.01
#: A lens must be likelier than the other by so much (logarithm).
_LENS_CLEAR = 3.0
_FINE = 801

Curves = Float[np.ndarray, "P F"]
Density = Float[np.ndarray, "801"]


@dataclass(frozen=True, slots=True)
class _Trust:
    """How much a method's curves are worth; measured on rendered clips (benchmarks).

    Attributes:
        temperature: misfit that makes a focal length e times less likely: far more than 1, since
            what is off is off alike in many places.
        blur: relative error of one part, however sharp its curve is.
        stray: how likely a part is wrong altogether.
        most, overlap: parts that count at most, and the share of one that the next repeats.
    """

    temperature: float
    blur: float
    stray: float
    most: float
    overlap: float


_TRUST = {
    "motion": _Trust(temperature=7.0, blur=0.07, stray=0.15, most=math.inf, overlap=0.5),
    "lines": _Trust(temperature=2.0, blur=0.02, stray=0.2, most=6.0, overlap=0.0),
}


@dataclass(frozen=True, slots=True)
class FocalLengthFinding:
    """What one method says.

    Attributes:
        name: "motion" or "lines".
        lens: for which it looked.
        focal: in widths of the picture's longer side; None: it does not say.
        error: relative standard error of it.
        parts: windows or pictures that were used.
        density: how likely the logarithm of a focal length is, from the shortest tried to the
            longest.
        reason: why it does not count; empty where it does.
    """

    name: str
    lens: Lens
    focal: float | None
    error: float
    parts: int
    density: Density
    reason: str


@dataclass(frozen=True, slots=True)
class FocalLengthEstimate:
    """A proposal.

    Attributes:
        camera: a pinhole of the recording's size; None: not accepted.
        error: relative standard error of its focal length.
        findings: of both methods.
        reason: why there is no camera; empty where there is one.
        picture, segments, directions: the picture with most lines, its segments (L, 4) in its
            pixels and, where the focal length is known, their three directions (3, 3).
    """

    camera: Camera | None
    error: float
    findings: tuple[FocalLengthFinding, FocalLengthFinding]
    reason: str
    picture: ImageRgb
    segments: structure.Segments
    directions: Float[np.ndarray, "3 3"] | None


def focal_lengths(lens: Lens = "pinhole", steps: int = _STEPS) -> Float[np.ndarray, "F"]:
    """Return the focal lengths that are tried, ascending, in widths of the longer side."""
    wide, narrow = (_focal_of(angle, lens) for angle in FIELDS_OF_VIEW[lens][::-1])
    return np.geomspace(wide, narrow, steps)


@one_blas_thread()
def estimate(
    recording: Recording, progress: Progress = no_progress, thorough: bool = True
) -> FocalLengthEstimate:
    """Return what the pictures of a recording say of its focal length.

    The principal point is taken for the middle of the picture. A fisheye is told from a pinhole,
    but none is proposed: two methods that agree on an equidistant one are both wrong of another.

    Args:
        thorough: look at the motion also where the lines, which cost less, have said too little.

    Raises:
        InputError: there are no pictures.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: it has no pictures; give a video.")
    seen = _Evidence(recording, progress)
    still = {lens: seen.lines(lens, progress) for lens in FIELDS_OF_VIEW}
    if not thorough and all(finding("lines", still[lens][0], lens).reason for lens in still):
        return seen.refused(still["pinhole"][0])
    # How much likelier, as a logarithm, an equidistant fisheye is than a pinhole.
    best = {lens: c.min(axis=1, initial=0.0).sum() for lens, (c, _) in still.items()}
    bent = seen.bent(progress) / _TRUST["motion"].temperature
    bent += (best["pinhole"] - best["equidistant"]) / _TRUST["lines"].temperature
    lens: Lens = "equidistant" if bent > 0 else "pinhole"

    focals = focal_lengths(lens)
    curves, directions = still[lens]
    findings = finding("motion", seen.motion(lens, progress), lens), finding("lines", curves, lens)
    focal, error, reason = agreed(*findings)
    if not reason and abs(bent) < _LENS_CLEAR:
        focal, error, reason = None, math.inf, "a pinhole and a fisheye fit about as well"
    elif not reason and focal is not None and lens == "equidistant":
        # Real ones bend by up to 15 % more or less than an equidistant one at the edge.
        angle = field_of_view(focal, lens)
        focal, error, reason = None, math.inf, (
            f"it is a fisheye, some {angle:.0f} degrees across, and how it bends is not known"
        )  # fmt: skip
    if focal is None:
        return FocalLengthEstimate(None, error, findings, reason, seen.shown, seen.segments, None)

    pixels = focal * max(recording.width, recording.height)
    size = recording.width, recording.height
    camera = Camera("pinhole", *size, pixels, pixels, (size[0] - 1) / 2, (size[1] - 1) / 2)
    nearest = int(np.abs(np.log(focals / focal)).argmin())
    corner = None if directions is None else directions[nearest]
    return FocalLengthEstimate(camera, error, findings, "", seen.shown, seen.segments, corner)


class _Evidence:
    """What both methods look at, in pictures of ``_SIDE`` pixels, relative to their middle."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        found, pictures = _looked_at(recording, progress)
        scale = min(1.0, _SIDE / max(recording.width, recording.height))
        size = round(recording.width * scale), round(recording.height * scale)
        self._side, self._middle = max(size), (np.array(size) - 1) / 2
        self._windows = [found[at].tracks - self._middle for at in _spread(len(found), _WINDOWS)]
        cut = [structure.segments_in(_gray(picture, size)) for picture in pictures]
        self._best = int(np.argmax([len(segments) for segments in cut]))
        self._cut = [(at, segments) for at, segments in enumerate(cut)
                     if len(segments) >= _FEWEST_LINES]  # fmt: skip
        self.shown = pictures[self._best]
        self.segments = (cut[self._best] + 0.5) / scale - 0.5

    def refused(self, curves: Curves) -> FocalLengthEstimate:
        """Return that the lines alone rule out a proposal."""
        flat = finding("motion", np.zeros((0, _COARSE))).density
        motion = FocalLengthFinding("motion", "pinhole", None, math.inf, 0, flat, "not looked at")
        still = finding("lines", curves)
        reason = f"lines: {still.reason}"
        return FocalLengthEstimate(
            None, math.inf, (motion, still), reason, self.shown, self.segments, None
        )

    def motion(self, lens: Lens, progress: Progress) -> Curves:
        """Return the misfit of every window."""
        return self._profiles(self._windows, lens, _MOTION_STEPS, progress)

    def bent(self, progress: Progress) -> float:
        """Return how much less the motion's misfit is with a fisheye than with a pinhole."""
        most = sorted(self._windows, key=lambda tracks: -int(np.isfinite(tracks).sum()))
        tried = {lens: self._profiles(most[:_LENS_WINDOWS], lens, _COARSE, progress)
                 for lens in FIELDS_OF_VIEW}  # fmt: skip
        least = {lens: curves.min(axis=1, initial=np.inf) for lens, curves in tried.items()}
        return float((least["pinhole"] - least["equidistant"]).sum())

    def _profiles(self, tracks: list[Tracks], lens: Lens, steps: int, progress: Progress) -> Curves:
        focals = focal_lengths(lens, steps) * self._side
        curves = np.zeros((len(tracks), steps))
        for row, window in enumerate(tracks):
            progress(f"motion, {lens}", row, len(curves))
            curves[row] = structure.profile(window, focals, lens, _NOISE_PX)
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
            likely, corners = structure.agreement(relative, focals, rng, lens)
            curves[row] = -likely
            shown = corners if at == self._best else shown
        progress("lines", len(curves), len(curves))
        return curves, shown


def finding(name: str, curves: Curves, lens: Lens = "pinhole") -> FocalLengthFinding:
    """Return what curves of misfit say together, one of each part."""
    focals = np.log(focal_lengths(lens, curves.shape[1]))
    fine, trust, parts = np.linspace(focals[0], focals[-1], _FINE), _TRUST[name], len(curves)
    flat = np.full(_FINE, 1 / (fine[-1] - fine[0]))
    if not parts:
        why = "the camera hardly moves" if name == "motion" else "there are too few straight lines"
        return FocalLengthFinding(name, lens, None, math.inf, 0, flat, why)

    total = np.zeros(_FINE)
    near = np.exp(-0.5 * ((fine - fine[_FINE // 2]) / trust.blur) ** 2)
    for curve in curves:
        misfit = CubicSpline(focals, curve)(fine)
        likely = np.convolve(np.exp((misfit.min() - misfit) / trust.temperature), near, "same")
        total += np.log((1 - trust.stray) * _normal(likely, fine) + trust.stray * flat)
    alone = min(parts - trust.overlap * (parts - 1), trust.most)
    density = _normal(np.exp((total - total.max()) * alone / parts), fine)

    focal, error = _mean(density, fine)
    reason = ""
    best = fine[density.argmax()]
    if min(best - fine[0], fine[-1] - best) < 2 * trust.blur:
        ends = f"{FIELDS_OF_VIEW[lens][0]:g} to {FIELDS_OF_VIEW[lens][1]:g}"
        reason = f"no focal length between those of {ends} degrees fits best"
    elif error > MOST_OF_ONE:
        reason = f"other focal lengths fit nearly as well (+- {100 * error:.0f} %)"
    return FocalLengthFinding(name, lens, focal, error, parts, density, reason)


def agreed(
    motion: FocalLengthFinding, still: FocalLengthFinding
) -> tuple[float | None, float, str]:
    """Return the focal length that both findings allow and its relative error, or why not."""
    weak = [f"{finding.name}: {finding.reason}" for finding in (motion, still) if finding.reason]
    if weak or motion.focal is None or still.focal is None:
        return None, math.inf, "; ".join(weak)
    apart = abs(math.log(motion.focal / still.focal))
    if apart > min(_APART_ERRORS * math.hypot(motion.error, still.error), MOST_APART):
        return None, math.inf, f"the methods disagree by {100 * apart:.0f} %"

    shortest, *_, longest = np.log(focal_lengths(motion.lens)).tolist()
    fine = np.linspace(shortest, longest, _FINE)
    focal, error = _mean(_normal(motion.density * still.density, fine), fine)
    if error > MOST_ERROR:
        return None, math.inf, (
            f"both together are no surer than +- {100 * error:.1f} %; {100 * MOST_ERROR:.1f} % are "
            "asked for"
        )  # fmt: skip
    return focal, max(error, _LEAST_ERROR), ""


def _normal(density: np.ndarray, fine: np.ndarray) -> Density:
    return density / (density.sum() * (fine[1] - fine[0]))


def _mean(density: Density, fine: np.ndarray) -> tuple[float, float]:
    """Return the focal length of a density's mean logarithm, and the standard deviation."""
    weight = density / density.sum()
    mean = float(weight @ fine)
    return math.exp(mean), math.sqrt(float(weight @ (fine - mean) ** 2))


def field_of_view(focal: float, lens: Lens) -> float:
    """Return the angle across the longer side, in degrees, of a focal length in its widths."""
    half = 0.5 / focal
    return 2 * math.degrees(math.atan(half) if lens == "pinhole" else half)


def _focal_of(angle: float, lens: Lens) -> float:
    half = math.radians(angle) / 2
    return 0.5 / (math.tan(half) if lens == "pinhole" else half)


def _looked_at(
    recording: Recording, progress: Progress
) -> tuple[list[TrackWindow], list[ImageRgb]]:
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
    found: list[TrackWindow] = []

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
