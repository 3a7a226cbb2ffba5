"""Cutting a long recording into demonstrations by the motion of its hands: ``split=auto``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy import ndimage

from acehand_core.hand.skeleton import PALM, TIPS
from acehand_core.motion import CameraMotion, HandMotion, runs
from acehand_core.pipeline.settings import CutRules, Span

#: Speeds are slopes of straight lines through this much of the motion.
WINDOW_S = 0.5
#: Standard deviation of the slope over ``WINDOW_S``, as a multiple of ``joint_sigma / WINDOW_S``,
#: across the line of sight (in each direction) and along it: measured on rendered clips.
NOISE_ACROSS, NOISE_ALONG = 1.3, 0.7
#: Speed is what exceeds this many standard deviations.
SIGNIFICANT = 2.5
#: Noise factor of a hand less of which is in the picture: measured on a rendered head that turns,
#: which puts hands at rest partly out of view.
PARTLY_VISIBLE, PARTLY_NOISE = 0.9, 4.0
#: A window with a smaller share of usable frames has no slope.
_LEAST_SHARE = 0.5
#: A hand is closed while the thumb is nearer than this to another fingertip (m).
CLOSED_M = 0.04
#: Movement over a shorter path is jitter (m).
JITTER_PATH_M = 0.02
#: A rest counts as closed if fingertips meet in this share of it.
_CLOSED_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of both hands over T frames.

    Attributes:
        seconds: since the first frame.
        present: a hand is seen or filled in.
        judged: a hand is seen well enough to measure its speed.
        speed: of the faster hand beyond the noise, m/s; NaN where not judged.
        moving: a hand moves.
        closed: a thumb tip is near another fingertip, or fingertips of both hands meet.
        noise: ``SIGNIFICANT`` standard deviations of speed across the line of sight, m/s, the
            median of all frames; NaN if no hand was seen.
    """

    seconds: Float[np.ndarray, "T"]
    present: Bool[np.ndarray, "T"]
    judged: Bool[np.ndarray, "T"]
    speed: Float[np.ndarray, "T"]
    moving: Bool[np.ndarray, "T"]
    closed: Bool[np.ndarray, "T"]
    noise: float


def activity(
    motion: HandMotion, turns: CameraMotion | None, moves: float, rests: float
) -> Activity:
    """Return the activity of a recording's hands.

    Args:
        turns: the camera's rotation; None: it did not turn. If ``motion`` has camera poses too, a
            hand moves only if it moves both in the world and relative to the camera: neither a hand
            at rest while the head moves counts, nor one that is carried along.
        moves, rests: a hand starts to move above the first and rests below the second, m/s.
    """
    seconds = (motion.timestamps_ns - motion.timestamps_ns[0]) * 1e-9
    points, sigma = _points(motion), _sigma(motion)
    usable = np.isfinite(points).all(-1) & (motion.observed & (motion.quality > 0))[..., None]
    points = np.where(usable[..., None], points, np.nan)
    distance = np.linalg.norm(points, axis=-1, keepdims=True)
    rays = points / np.where(distance > 0, distance, 1.0)

    rotations = np.broadcast_to(np.eye(3), (len(motion), 3, 3))
    piece = np.zeros(len(motion), int)
    if turns is not None:
        rotations, piece = turns.rotations, np.cumsum(turns.doubtful)
    turned = np.einsum("tij,tspj->tspi", rotations, points)
    slope, spread = _slopes(seconds, turned, usable, piece)
    # A hand that is partly out of view within the window is noisier.
    frames = 2 * round(WINDOW_S / 2 * motion.fps) + 1
    shown = ndimage.minimum_filter1d(motion.visible, frames, axis=0, mode="nearest")
    noisier = np.where(shown < PARTLY_VISIBLE, PARTLY_NOISE, 1.0)
    noise = _noise(turned, sigma, spread) * noisier[..., None, None]
    speed = _beyond_noise(slope, np.einsum("tij,tspj->tspi", rotations, rays), noise)

    if (poses := motion.T_world_camera) is not None:
        known = np.isfinite(poses).all((1, 2))
        poses = np.where(known[:, None, None], poses, np.eye(4))
        axes = poses[:, :3, :3]
        world = np.einsum("tij,tspj->tspi", axes, points) + poses[:, None, None, :3, 3]
        slope, _ = _slopes(seconds, world, usable & known[:, None, None], np.zeros_like(piece))
        in_world = _beyond_noise(slope, np.einsum("tij,tspj->tspi", axes, rays), noise)
        speed = np.fmin(speed, in_world)

    # A hand's speed is its palm's, or its second fastest fingertip's if faster: a single fast tip
    # may be a mistake of the tracker.
    second = np.sort(np.nan_to_num(speed[:, :, 1:], nan=-1.0), axis=2)[:, :, -2]
    hands = np.fmax(speed[:, :, 0], np.where(second >= 0, second, np.nan))
    moving = np.zeros(len(motion), bool)
    for slot in range(hands.shape[1]):
        moving |= _moves(seconds, hands[:, slot], moves, rests)
    judged = np.isfinite(hands).any(1)
    fastest = np.where(judged, np.nanmax(np.nan_to_num(hands, nan=-1.0), axis=1), np.nan)
    across = noise[..., 0][np.isfinite(noise[..., 0])]
    return Activity(
        seconds=seconds,
        present=np.asarray(motion.known.any(1)),
        judged=judged,
        speed=fastest,
        moving=moving,
        closed=_closed(motion, points[:, :, 1:]),
        noise=float(SIGNIFICANT * np.median(across)) if len(across) else float("nan"),
    )


def _points(motion: HandMotion) -> Float[np.ndarray, "T 2 6 3"]:
    """Return the centre of each palm and the five fingertips, camera frame."""
    joints = motion.joints_camera
    return np.concatenate([joints[:, :, PALM].mean(2, keepdims=True), joints[:, :, TIPS]], axis=2)


def _sigma(motion: HandMotion) -> Float[np.ndarray, "T 2 6 2"]:
    """Return standard deviations of ``_points`` across and along the line of sight, 0: unknown.

    Errors of a palm's joints correlate: their mean is no better known than one of them.
    """
    sigma = motion.joint_sigma
    if sigma is None:
        return np.zeros((len(motion), 2, 6, 2))
    palm = sigma[:, :, PALM].mean(2, keepdims=True)
    return np.nan_to_num(np.concatenate([palm, sigma[:, :, TIPS]], axis=2))


def _slopes(
    seconds: Float[np.ndarray, "T"],
    points: Float[np.ndarray, "T 2 6 3"],
    usable: Bool[np.ndarray, "T 2 6"],
    piece: np.ndarray,
) -> tuple[Float[np.ndarray, "T 2 6 3"], Float[np.ndarray, "T 2 6"]]:
    """Return slopes of lines through a window about each frame, m/s, and their spread, s.

    The spread is the root of the sum of squared times: the slope's noise is the points' divided by
    it. NaN where the frame or too much of its window is unusable. No window crosses from one piece
    of the camera's motion to the next.
    """
    count = len(seconds)
    step = float(np.median(np.diff(seconds))) if count > 1 else WINDOW_S
    half = max(WINDOW_S / 2, step) + step / 4
    reach = min(int(half / step), count - 1)
    known = np.where(usable[..., None], points, 0.0)
    n, t, tt = (np.zeros(usable.shape) for _ in range(3))
    x, tx = np.zeros(points.shape), np.zeros(points.shape)
    frames = np.arange(count)
    for lag in range(-reach, reach + 1):
        other = np.clip(frames + lag, 0, count - 1)
        delta = seconds[other] - seconds
        near = (frames + lag == other) & (np.abs(delta) <= half)
        counts = usable[other] & (near & (piece[other] == piece))[:, None, None]
        delta = np.where(counts, delta[:, None, None], 0.0)
        n, t, tt = n + counts, t + delta, tt + delta**2
        x += np.where(counts[..., None], known[other], 0.0)
        tx += delta[..., None] * known[other]

    enough = usable & (n >= max(2.0, _LEAST_SHARE * (2 * reach + 1)))
    mean = t / np.maximum(n, 1)
    square = np.where(enough, tt - n * mean**2, np.nan)
    return (tx - mean[..., None] * x) / square[..., None], np.sqrt(square)


def _noise(
    points: Float[np.ndarray, "T 2 6 3"],
    sigma: Float[np.ndarray, "T 2 6 2"],
    spread: Float[np.ndarray, "T 2 6"],
) -> Float[np.ndarray, "T 2 6 2"]:
    """Return standard deviations of the slopes, m/s: across the line of sight and along it.

    Two parts: the tracker's own standard deviations, and jitter from frame to frame by third
    differences, which movement hardly affects.
    """
    jitter = np.zeros(points.shape[1:3])
    if len(points) > 3:
        third = np.abs(np.diff(points, 3, axis=0))
        for hand, point in np.ndindex(jitter.shape):
            values = third[:, hand, point][np.isfinite(third[:, hand, point])]
            # Third differences of white noise have 1 + 9 + 9 + 1 times its variance.
            jitter[hand, point] = 1.4826 * np.median(values) / np.sqrt(20) if len(values) else 0.0
    white = (jitter / spread)[..., None]
    return np.hypot(white, np.array([NOISE_ACROSS, NOISE_ALONG]) * sigma / WINDOW_S)


def _beyond_noise(
    slope: Float[np.ndarray, "T 2 6 3"],
    rays: Float[np.ndarray, "T 2 6 3"],
    noise: Float[np.ndarray, "T 2 6 2"],
) -> Float[np.ndarray, "T 2 6"]:
    """Return the speed that exceeds the noise, across the line of sight and along it."""
    along = (slope * rays).sum(-1)
    across = np.sqrt(np.maximum((slope**2).sum(-1) - along**2, 0))
    limit = SIGNIFICANT * noise
    return np.hypot(
        np.maximum(across - limit[..., 0], 0), np.maximum(np.abs(along) - limit[..., 1], 0)
    )


def _moves(
    seconds: Float[np.ndarray, "T"], speed: Float[np.ndarray, "T"], moves: float, rests: float
) -> Bool[np.ndarray, "T"]:
    """Return where a hand moves: faster than ``rests``, and than ``moves`` at some moment."""
    known = np.nan_to_num(speed)
    labels, count = ndimage.label(known > rests)
    out = np.zeros(len(speed), bool)
    steps = np.diff(seconds, append=seconds[-1:])
    for (inside,) in ndimage.find_objects(labels, max_label=count):
        path = float((known[inside] * steps[inside]).sum())
        out[inside] = known[inside].max() > moves and path > JITTER_PATH_M
    return out


def _closed(motion: HandMotion, tips: Float[np.ndarray, "T 2 5 3"]) -> Bool[np.ndarray, "T"]:
    """Return where fingertips meet, over half a window's median."""
    thumb = np.linalg.norm(tips[:, :, 1:] - tips[:, :, :1], axis=-1).min(-1)
    nearest = np.nan_to_num(thumb, nan=np.inf).min(1)
    if motion.placed:
        both = np.linalg.norm(tips[:, 0, :, None] - tips[:, 1, None], axis=-1).min((1, 2))
        nearest = np.minimum(nearest, np.nan_to_num(both, nan=np.inf))
    near = (nearest < CLOSED_M).astype(np.uint8)
    reach = max(1, round(WINDOW_S / 4 * motion.fps))
    return ndimage.median_filter(near, size=2 * reach + 1, mode="nearest").astype(bool)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Frames ``start`` to ``stop - 1`` outside of demonstrations, and why."""

    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a recording was cut: its demonstrations and what lies between, in order."""

    spans: tuple[Span, ...]
    left_out: tuple[LeftOut, ...]
    activity: Activity
    rules: CutRules

    def to_json(self) -> dict[str, Any]:
        """Return a recording's entry of the report (docs/cutting.md)."""
        acts, noise = self.activity, self.activity.noise
        ends = acts.seconds + _steps(acts)

        def entry(part: Span) -> dict[str, Any]:
            return part.entry(acts.seconds[part.start], ends[part.stop - 1])

        left_out = []
        for gap in self.left_out:
            place = entry(Span(gap.start, gap.stop))
            del place["starts"], place["ends"]
            left_out.append({**place, "reason": gap.reason})
        return {
            "rules": asdict(self.rules) | {"speeds": list(self.rules.speeds)},
            "noise_m_s": None if np.isnan(noise) else round(noise, 4),
            "demonstrations": [entry(span) for span in self.spans],
            "left_out": left_out,
        }


def cut_demonstrations(
    motion: HandMotion, rules: CutRules, turns: CameraMotion | None = None
) -> Cutting:
    """Return the demonstrations, if any, of a recording; ``turns`` is the camera's rotation."""
    acts = activity(motion, turns, *rules.speeds)
    active = [
        run
        for run in _joined(acts, rules)
        if acts.seconds[run.stop - 1] - acts.seconds[run.start] >= rules.min_s
    ]
    cuts: list[Span] = []
    for number, run in enumerate(active):
        following = active[number + 1].start if number + 1 < len(active) else len(motion)
        previous = cuts[-1].stop if cuts else 0
        whole = _with_margins(acts, run, rules.margin_s, previous)
        cuts += _divided(acts, whole, run, following, rules)

    edges = [0, *(edge for cut in cuts for edge in (cut.start, cut.stop)), len(motion)]
    gaps = [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    left_out = tuple(LeftOut(gap.start, gap.stop, _what_was(acts, gap)) for gap in gaps)
    return Cutting(tuple(cuts), left_out, acts, rules)


def _joined(acts: Activity, rules: CutRules) -> list[slice]:
    """Return the runs of movement, joined over rests too short to end a demonstration."""
    out: list[slice] = []
    for run in (slice(*edges) for edges in runs(acts.moving)):
        if out:
            rest = slice(out[-1].stop, run.start)
            lasts = acts.seconds[run.start] - acts.seconds[rest.start - 1]
            if lasts < (rules.hold_s if _is_closed(acts, rest) else rules.pause_s):
                out[-1] = slice(out[-1].start, run.stop)
                continue
        out.append(run)
    return out


def _is_closed(acts: Activity, rest: slice) -> bool:
    """Return whether a hand is present and fingertips meet throughout a rest."""
    present, closed = acts.present[rest].all(), acts.closed[rest].mean()
    return bool(present and closed >= _CLOSED_SHARE)


def _with_margins(acts: Activity, run: slice, margin_s: float, earliest: int) -> slice:
    """Return a run of movement with its margins, without frames that have no hand."""
    t, start, stop = acts.seconds, run.start, run.stop
    while start > earliest and t[run.start] - t[start - 1] <= margin_s and acts.present[start - 1]:
        start -= 1
    while stop < len(t) and t[stop] - t[run.stop - 1] <= margin_s and acts.present[stop]:
        stop += 1
    return slice(start, stop)


def _divided(
    acts: Activity, whole: slice, run: slice, following: int, rules: CutRules
) -> Iterator[Span]:
    """Yield a demonstration, or parts of a long one; hands move again in ``following``."""
    longest = f"longest allowed length, {rules.max_s:g} s"
    edges, t = [whole.start], acts.seconds
    pace = np.where(acts.judged, np.nan_to_num(acts.speed), np.inf)
    while t[whole.stop - 1] - t[edges[-1]] > rules.max_s:
        begun = t[edges[-1]]
        latest = min(begun + rules.max_s, t[whole.stop - 1] - rules.min_s)
        allowed = np.flatnonzero((t >= begun + rules.max_s / 2) & (t <= latest))
        if not len(allowed):
            break
        # Of several at rest the last.
        slowest = np.flatnonzero(pace[allowed] == pace[allowed].min())[-1]
        edges.append(int(allowed[slowest]))

    begins = "the recording begins"
    if whole.start > 0:
        begins = "hands began to move" if acts.present[whole.start - 1] else "hands came"
    starts = [begins, *[longest] * (len(edges) - 1)]
    ends = [*[longest] * (len(edges) - 1), _why_it_ends(acts, run.stop, whole.stop, following)]
    for (start, stop), first, last in zip(
        pairwise([*edges, whole.stop]), starts, ends, strict=True
    ):
        yield Span(start, stop, starts=first, ends=last)


def _why_it_ends(acts: Activity, moved: int, stop: int, following: int) -> str:
    """Return why a demonstration ends: hands move until ``moved``, its margin until ``stop``."""
    if stop == len(acts.seconds):
        return "the recording ends"
    if not acts.present[stop]:
        return "hands left"
    rest = slice(moved, following)
    gone = np.flatnonzero(~acts.present[rest])
    if len(gone):
        rest = slice(moved, moved + int(gone[0]))
    lasts = _steps(acts)[rest].sum()
    if acts.judged[rest].mean() < 0.5:
        return f"hands not seen well enough to tell for {lasts:.1f} s"
    return f"still{' and closed' if _is_closed(acts, rest) else ''} for {lasts:.1f} s"


def _what_was(acts: Activity, gap: slice) -> str:
    """Return what the hands did between demonstrations, and for how long."""
    absent, moving = ~acts.present[gap], acts.moving[gap]
    judged = acts.judged[gap]
    kinds = {
        "no hands": absent,
        "moved too briefly": moving & ~absent,
        "not seen well enough to tell": ~absent & ~moving & ~judged,
        "still": ~absent & ~moving & judged,
    }
    steps = _steps(acts)[gap]
    parts = [f"{kind} {steps[rows].sum():.1f} s" for kind, rows in kinds.items() if rows.any()]
    return ", ".join(parts)


def _steps(acts: Activity) -> np.ndarray:
    """Return how long each frame lasts; the last one as long as the median."""
    steps = np.diff(acts.seconds)
    return np.append(steps, np.median(steps) if len(steps) else 0.0)
