"""When frames are due: rate, pause, seek and loop, against a clock that the test turns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import InputError
from acehand_ros.playback import Timeline

START = 1_700_000_000_000_000_000
S = 1_000_000_000


def stamps(gaps_ms: list[int]) -> np.ndarray:
    return START + np.cumsum([0, *gaps_ms]).astype(np.int64) * 1_000_000


def play(timeline: Timeline, until_ns: int, start_ns: int = 0) -> list[tuple[int, int]]:
    """Sleep as long as it asks until a time; return (time, frame) of everything that came."""
    now, out = start_ns, []
    while True:
        due = timeline.due(now)
        out += [(now, frame) for frame in due.frames]
        wait = timeline.wait_s(now)
        if wait is None:
            return out
        now += max(1, round(wait * S))
        if now > until_ns:
            return out


@given(
    st.lists(st.integers(5, 100), min_size=1, max_size=20),
    st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0]),
)
@settings(max_examples=50, deadline=None)
def test_every_frame_comes_once_in_order_and_on_time(gaps: list[int], rate: float) -> None:
    times = stamps(gaps)
    timeline = Timeline(times, rate, loop=False, paused=False)
    timeline.start(0)
    played = play(timeline, 10**15)
    assert [frame for _, frame in played] == list(range(len(times)))
    due = (times - times[0]) / rate
    late = np.array([now for now, _ in played]) - due
    assert (late >= -1).all() and (late <= 10).all()  # ns


def test_it_ends_one_mean_frame_after_the_last() -> None:
    timeline = Timeline(stamps([40, 20]), 2.0, loop=False, paused=False)
    timeline.start(0)
    assert timeline.length_ns == 90_000_000
    assert not timeline.due(44_000_000).ended
    assert timeline.due(45_000_000).ended
    assert timeline.wait_s(45_000_000) is None
    timeline.resume(50_000_000)  # at the end: from the start
    assert timeline.due(50_000_000).frames == (0,)


def test_a_loop_keeps_the_rate_and_says_where_it_begins() -> None:
    timeline = Timeline(stamps([50] * 9), 1.0, loop=True, paused=False)
    timeline.start(0)
    played = play(timeline, 3 * S)
    times = np.array([now for now, _ in played])
    assert np.abs(np.diff(times) - 50_000_000).max() <= 5
    assert [frame for _, frame in played[:23]] == [*range(10), *range(10), 0, 1, 2]
    again = Timeline(stamps([50] * 9), 1.0, loop=True, paused=False)
    again.start(0)
    assert again.due(0).restarted and not again.due(50_000_000).restarted
    again.due(450_000_000)
    assert again.due(500_000_000).restarted


def test_pause_stops_time_and_resume_goes_on() -> None:
    timeline = Timeline(stamps([100] * 9), 1.0, loop=False, paused=False)
    timeline.start(0)
    assert timeline.due(250_000_000).frames == (0, 1, 2)
    timeline.pause(260_000_000)
    assert timeline.wait_s(10 * S) is None and timeline.due(10 * S).frames == ()
    assert timeline.position_ns(10 * S) == 260_000_000
    assert timeline.stamp_ns(10 * S) == START + 260_000_000
    timeline.resume(20 * S)
    assert timeline.wait_s(20 * S) == pytest.approx(0.04)
    assert timeline.due(20 * S + 40_000_000).frames == (3,)


def test_seek_while_paused_shows_one_frame() -> None:
    timeline = Timeline(stamps([100] * 9), 1.0, loop=False, paused=True)
    timeline.start(0)
    assert timeline.due(S).frames == ()
    timeline.seek(0.45, S)
    due = timeline.due(S)
    assert due.frames == (5,) and due.restarted
    assert timeline.due(2 * S).frames == ()
    timeline.resume(3 * S)
    assert timeline.due(3 * S + 150_000_000).frames == (6,)


def test_seek_back_and_another_rate_while_playing() -> None:
    timeline = Timeline(stamps([100] * 9), 1.0, loop=False, paused=False)
    timeline.start(0)
    timeline.due(550_000_000)
    timeline.seek(0.2, 550_000_000)
    due = timeline.due(550_000_000)
    assert due.frames == (2,) and due.restarted
    timeline.set_rate(0.5, 550_000_000)
    assert timeline.wait_s(550_000_000) == pytest.approx(0.2)
    assert timeline.due(750_000_000).frames == (3,)


@pytest.mark.parametrize("seconds", [-0.1, 0.901, float("1e5")])
def test_seek_outside_is_refused_and_changes_nothing(seconds: float) -> None:
    timeline = Timeline(stamps([100] * 9), 1.0, loop=False, paused=False)
    timeline.start(0)
    timeline.due(0)
    with pytest.raises(InputError, match=r"valid: 0 to 0\.900 s"):
        timeline.seek(seconds, 50_000_000)
    assert timeline.due(100_000_000).frames == (1,)


def test_nothing_to_play() -> None:
    with pytest.raises(InputError, match="no frame"):
        Timeline(np.zeros(0, np.int64), 1.0, loop=False, paused=False)
