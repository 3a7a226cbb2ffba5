"""Focal length from the pictures, proposed only if two independent methods agree.

Motion (a rigid scene) and straight lines (right angles) each give curves of misfit, per window of
keyframes or picture. The product of their tempered likelihoods is a method's density, and the
product of both densities the proposal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import cv2
import numpy as np
from jaxtyping import Float
from scipy.interpolate import CubicSpline

from acehand_core.camera import structure
from acehand_core.camera.structure import Lens
from acehand_core.camera.tracks import Gray, Tracks, windows
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.processes import one_blas_thread
from acehand_core.types import ImageRgb, Progress, no_progress

#: Longer side of the analysed pictures, in pixels.
_SIDE = 640
#: Fields of view across the longer side, in degrees, and the number of focal lengths between them:
#: for lines, for motion, and to decide on the lens.
FIELDS_OF_VIEW: Mapping[Lens, tuple[float, float]] = MappingProxyType(
    {"pinhole": (40.0, 125.0), "equidistant": (60.0, 160.0)}
)
_STEPS, _MOTION_STEPS, _COARSE = 21, 15, 7
#: Stretches read from a long recording, and their frames.
_STRETCHES, _STRETCH = 6, 60
_WINDOWS, _PICTURES, _FEWEST_LINES = 8, 24, 12
#: Windows that decide on the lens.
_LENS_WINDOWS = 2
#: Standard deviation of a track's pixel.
_NOISE_PX = 1.0
#: Largest relative standard error of one method and of both: 95 % of accepted focal lengths shall
#: be within 5 %. Largest distance of the two methods: in their errors, and in all.
MOST_OF_ONE, MOST_ERROR = 0.08, 0.025
_APART_ERRORS, MOST_APART = 2.0, 0.12
#: Least relative error: the principal point and the lens model are not exact.
_LEAST_ERROR = 0.01
#: Log-likelihood by which a lens must beat the other.
_LENS_CLEAR = 3.0
_FINE = 801

Curves = Float[np.ndarray, "P F"]
Density = Float[np.ndarray, "801"]


@dataclass(frozen=True, slots=True)
class _Trust:
    """Weight of a method's curves, tuned on rendered clips (benchmarks).

    Attributes:
        temperature: misfit per unit of log-likelihood, above 1: errors are correlated.
        blur: relative error of one part; ``stray``: probability of an outlier.
        most, overlap: largest number of parts that count, and the share that the next repeats.
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
    """The focal length by one method.

    Attributes:
        name: "motion" or "lines".
        focal: in widths of the longer side, or None; ``error``: its relative standard error.
        parts: number of windows or pictures.
        density: of the log focal length, over the candidates.
        reason: why it is rejected, or "".
    """

    name: str
    lens: Lens
    focal: float | None
    error: float
    parts: int
    density: Density
    reason: str


#: By motion and by lines.
Findings = tuple[FocalLengthFinding, FocalLengthFinding]


@dataclass(frozen=True, slots=True)
class FocalLengthEstimate:
    """A proposed camera.

    Attributes:
        camera: a pinhole, None if rejected; ``error``: relative standard error of the focal length.
        reason: why it is rejected, or "".
        picture, segments, directions: the picture with most lines, its segments (L, 4) in pixels
            and their three directions (3, 3).
    """

    camera: Camera | None
    error: float
    findings: Findings
    reason: str
    picture: ImageRgb
    segments: structure.Segments
    directions: Float[np.ndarray, "3 3"] | None


def focal_lengths(lens: Lens = "pinhole", steps: int = _STEPS) -> Float[np.ndarray, "F"]:
    """Return the candidate focal lengths, ascending, in widths of the longer side."""
    halves = [math.radians(angle) / 2 for angle in FIELDS_OF_VIEW[lens][::-1]]
    wide, narrow = (0.5 / (math.tan(half) if lens == "pinhole" else half) for half in halves)
    return np.geomspace(wide, narrow, steps)


@one_blas_thread()
def estimate(
    recording: Recording, progress: Progress = no_progress, thorough: bool = True
) -> FocalLengthEstimate:
    """Estimate a recording's focal length, with the principal point at the image centre.

    Fisheyes are detected, but not proposed: both methods would agree on a wrong lens model.

    Args:
        thorough: analyse motion, which is slow, even if the lines decide nothing.

    Raises InputError without pictures.
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: it has no pictures; give a video.")
    seen = _Evidence(recording, progress)
    still = {lens: seen.lines(lens) for lens in FIELDS_OF_VIEW}

    def rejected(findings: Findings, reason: str) -> FocalLengthEstimate:
        shown = seen.shown, seen.segments
        return FocalLengthEstimate(None, math.inf, findings, reason, *shown, None)

    if not thorough and all(finding("lines", still[lens][0], lens).reason for lens in still):
        motion = replace(finding("motion", np.zeros((0, _COARSE))), reason="not analysed")
        lines = finding("lines", still["pinhole"][0])
        return rejected((motion, lines), f"lines: {lines.reason}")

    # Log-likelihood ratio of an equidistant fisheye to a pinhole.
    best = {lens: c.min(axis=1, initial=0.0).sum() for lens, (c, _) in still.items()}
    bent = seen.bent() / _TRUST["motion"].temperature
    bent += (best["pinhole"] - best["equidistant"]) / _TRUST["lines"].temperature
    lens: Lens = "equidistant" if bent > 0 else "pinhole"

    curves, directions = still[lens]
    findings = finding("motion", seen.motion(lens), lens), finding("lines", curves, lens)
    focal, error, reason = agreed(*findings)
    if focal is None:
        return rejected(findings, reason)
    if abs(bent) < _LENS_CLEAR:
        return rejected(findings, "a pinhole and a fisheye fit about as well")
    if lens == "equidistant":  # real fisheyes differ from it by up to 15 % at the edge
        angle = field_of_view(focal, lens)
        reason = f"it is a fisheye, some {angle:.0f} degrees across, with unknown distortion"
        return rejected(findings, reason)

    width, height = recording.width, recording.height
    pixels = focal * max(width, height)
    camera = Camera("pinhole", width, height, pixels, pixels, (width - 1) / 2, (height - 1) / 2)
    nearest = int(np.abs(np.log(focal_lengths(lens) / focal)).argmin())
    corner = None if directions is None else directions[nearest]
    return FocalLengthEstimate(camera, error, findings, "", seen.shown, seen.segments, corner)


class _Evidence:
    """Tracks and segments of a recording, at ``_SIDE`` pixels, relative to the image centre."""

    def __init__(self, recording: Recording, progress: Progress) -> None:
        self._progress, count = progress, len(recording)
        scale = min(1.0, _SIDE / max(recording.width, recording.height))
        size = round(recording.width * scale), round(recording.height * scale)
        self._side, self._middle = max(size), (np.array(size) - 1) / 2
        stretches = [(0, count)]
        if count > _STRETCHES * _STRETCH:
            starts = np.linspace(0, count - _STRETCH, _STRETCHES).astype(int).tolist()
            stretches = [(start, start + _STRETCH) for start in starts]

        total, done = sum(stop - start for start, stop in stretches), 0
        wanted, pictures = set(_spread(total, _PICTURES)), []

        def read(start: int, stop: int) -> Iterator[Gray]:
            nonlocal done
            assert recording.frames is not None
            for picture in recording.frames.read(start, stop):
                if done in wanted:
                    pictures.append(picture)
                done += 1
                progress("tracks", done, total)
                yield _gray(picture, size)

        tracked = [window for stretch in stretches for window in windows(read(*stretch))]
        chosen = _spread(len(tracked), _WINDOWS)
        self._windows = [tracked[at].tracks - self._middle for at in chosen]

        cut = [structure.segments_in(_gray(picture, size)) for picture in pictures]
        self._best = int(np.argmax([len(segments) for segments in cut]))
        self._cut = [
            (at, segments) for at, segments in enumerate(cut) if len(segments) >= _FEWEST_LINES
        ]
        self.shown = pictures[self._best]
        self.segments = (cut[self._best] + 0.5) / scale - 0.5

    def motion(self, lens: Lens) -> Curves:
        return self._profiles(self._windows, lens, _MOTION_STEPS)

    def bent(self) -> float:
        """Return the motion's misfit with a pinhole minus that with a fisheye."""
        most = sorted(self._windows, key=lambda tracks: -int(np.isfinite(tracks).sum()))
        tried = {
            lens: self._profiles(most[:_LENS_WINDOWS], lens, _COARSE) for lens in FIELDS_OF_VIEW
        }
        least = {lens: curves.min(axis=1, initial=np.inf) for lens, curves in tried.items()}
        return float((least["pinhole"] - least["equidistant"]).sum())

    def _profiles(self, tracks: list[Tracks], lens: Lens, steps: int) -> Curves:
        focals = focal_lengths(lens, steps) * self._side
        curves = np.zeros((len(tracks), steps))
        for row, window in enumerate(tracks):
            self._progress(f"motion, {lens}", row, len(curves))
            curves[row] = structure.profile(window, focals, lens, _NOISE_PX)
        self._progress(f"motion, {lens}", len(curves), len(curves))
        return curves

    def lines(self, lens: Lens) -> tuple[Curves, Float[np.ndarray, "F 3 3"] | None]:
        """Return the misfit of every picture, and the directions in the shown one."""
        focals, rng = focal_lengths(lens) * self._side, np.random.default_rng(0)
        curves, shown = np.zeros((len(self._cut), _STEPS)), None
        for row, (at, segments) in enumerate(self._cut):
            self._progress("lines", row, len(curves))
            relative = segments - np.tile(self._middle, 2)
            likely, corners = structure.agreement(relative, focals, rng, lens)
            curves[row] = -likely
            shown = corners if at == self._best else shown
        self._progress("lines", len(curves), len(curves))
        return curves, shown


def finding(name: str, curves: Curves, lens: Lens = "pinhole") -> FocalLengthFinding:
    """Return the focal length of a method from its curves of misfit, one per part."""
    focals = np.log(focal_lengths(lens, curves.shape[1]))
    fine, trust, parts = np.linspace(focals[0], focals[-1], _FINE), _TRUST[name], len(curves)
    flat = np.full(_FINE, 1 / (fine[-1] - fine[0]))
    if not parts:
        why = "the camera hardly moves" if name == "motion" else "too few straight lines"
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
        reason = f"the best focal length is outside of fields of view of {ends} degrees"
    elif error > MOST_OF_ONE:
        reason = f"other focal lengths fit nearly as well (+- {100 * error:.0f} %)"
    return FocalLengthFinding(name, lens, focal, error, parts, density, reason)


def agreed(
    motion: FocalLengthFinding, still: FocalLengthFinding
) -> tuple[float | None, float, str]:
    """Return focal length and relative error if both findings agree, else the reason."""
    weak = [f"{finding.name}: {finding.reason}" for finding in (motion, still) if finding.reason]
    if weak or motion.focal is None or still.focal is None:
        return None, math.inf, "; ".join(weak)
    apart = abs(math.log(motion.focal / still.focal))
    if apart > min(_APART_ERRORS * math.hypot(motion.error, still.error), MOST_APART):
        return None, math.inf, f"the methods disagree by {100 * apart:.0f} %"

    shortest, longest = np.log(focal_lengths(motion.lens)[[0, -1]]).tolist()
    fine = np.linspace(shortest, longest, _FINE)
    focal, error = _mean(_normal(motion.density * still.density, fine), fine)
    if error > MOST_ERROR:
        needed = f"{100 * MOST_ERROR:.1f} % is needed"
        return None, math.inf, f"their combined error is {100 * error:.1f} %; {needed}"
    return focal, max(error, _LEAST_ERROR), ""


def _normal(density: np.ndarray, fine: np.ndarray) -> Density:
    return density / (density.sum() * (fine[1] - fine[0]))


def _mean(density: Density, fine: np.ndarray) -> tuple[float, float]:
    weight = density / density.sum()
    mean = float(weight @ fine)
    return math.exp(mean), math.sqrt(float(weight @ (fine - mean) ** 2))


def field_of_view(focal: float, lens: Lens) -> float:
    """Return the field of view in degrees across the longer side of a focal length in widths."""
    half = 0.5 / focal
    return 2 * math.degrees(math.atan(half) if lens == "pinhole" else half)


def _spread(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def _gray(picture: ImageRgb, size: tuple[int, int]) -> Gray:
    gray = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    same = gray.shape[::-1] == size
    return gray if same else cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
