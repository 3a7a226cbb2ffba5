"""When frames were taken: header stamps in order, repaired where they cannot be right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from scipy.ndimage import median_filter

from acehand_core.types import TimestampsNs

#: A stamp that is off by more than this is wrong; less is a late message.
JUMP_NS = 1_000_000_000
#: Rates closer to a usual one than this are taken for it.
_RATE_TOLERANCE = 2e-4


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Increasing times of T frames, made from N >= T stamps.

    ``stamps_ns`` (T,) are the stamps of the frames on the clock that set them, unset and wrong ones
    replaced; they jump where that clock was set. ``order`` (T,) says which message each frame is.
    ``breaks`` are frames before which the recording's clock was set back. ``duplicates`` counts
    messages left out because another has the same stamp; ``late`` those that came after a later
    one; ``repaired`` stamps that were replaced.
    """

    timestamps_ns: TimestampsNs
    stamps_ns: Int[np.ndarray, "T"]
    order: Int[np.ndarray, "T"]
    breaks: tuple[int, ...]
    duplicates: int
    late: int
    repaired: int
    from_log: bool


def frame_times(stamps_ns: Int[np.ndarray, "N"], log_ns: Int[np.ndarray, "N"]) -> FrameTimes:
    """Order frames by header stamp.

    ``stamps_ns`` and ``log_ns`` (time of receipt) are given as stored. Where no stamp was set, the
    time of receipt counts. A single stamp that is off by more than a second is replaced by its time
    of receipt and the usual delay. Where the clock was set back, what follows is moved on, so that
    the times of receipt decide how long the break was; the stamps themselves are not lost, they
    stay with the messages.
    """
    from_log = len(stamps_ns) > 1 and (
        not stamps_ns.any() or bool((stamps_ns == stamps_ns[0]).all())
    )
    stamps = np.array(log_ns if from_log else stamps_ns, np.int64)
    repaired, jumps, said = 0, [], stamps
    if not from_log and len(stamps) > 2:
        delay = stamps - log_ns
        origin = delay[0]
        usual = median_filter((delay - origin).astype(np.float64), 5, mode="nearest")
        usual = usual.astype(np.int64) + origin
        wrong = np.abs(delay - usual) > JUMP_NS
        repaired = int(wrong.sum())
        stamps[wrong] = (log_ns + usual)[wrong]
        said = stamps.copy()
        step = int(np.median(np.diff(stamps)))
        for i in np.flatnonzero(np.diff(stamps) < -JUMP_NS) + 1:
            pause = max(int(log_ns[i] - log_ns[i - 1]), step, 1)
            stamps[i:] += stamps[i - 1] + pause - stamps[i]
            jumps.append(int(i))
    late = int((stamps < np.maximum.accumulate(stamps)).sum())
    order = np.argsort(stamps, kind="stable")
    times = stamps[order]
    first = np.concatenate([[True], np.diff(times) > 0])
    order, times = order[first], times[first]
    breaks = tuple(int(np.searchsorted(times, stamps[i])) for i in jumps)
    return FrameTimes(
        timestamps_ns=times,
        stamps_ns=said[order],
        order=order,
        breaks=breaks,
        duplicates=int((~first).sum()),
        late=late,
        repaired=repaired,
        from_log=from_log,
    )


def frame_rate(timestamps_ns: TimestampsNs) -> float:
    """Return the nominal rate that stamps show; gaps do not count. 30 for a single frame."""
    if len(timestamps_ns) < 2:
        return 30.0
    steps = np.diff(timestamps_ns)
    typical = float(np.median(steps))
    rate = 1e9 / float(steps[steps < 1.5 * typical].mean())
    if round(rate) >= 1:
        for usual in (float(round(rate)), round(rate) * 1000 / 1001):
            if abs(rate / usual - 1) < _RATE_TOLERANCE:
                return usual
    return rate


def missing_frames(timestamps_ns: TimestampsNs, fps: float) -> int:
    """Return how many frames the gaps of up to a second had room for."""
    steps = np.diff(timestamps_ns) * fps / 1e9
    steps = steps[(steps > 1.5) & (steps <= fps)]
    return int((np.round(steps) - 1).sum())
