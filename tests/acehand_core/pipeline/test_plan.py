"""The plan: a pure function of an input, the settings, and what the dataset has."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from acehand_core.errors import InputError
from acehand_core.lerobot.dataset import EpisodeKey, FinishedEpisodes
from acehand_core.motion import Recording
from acehand_core.pipeline import plan
from acehand_core.pipeline.converter import Converter, Input
from acehand_core.pipeline.narration import Narration
from acehand_core.pipeline.plan import Plan, cut_input
from acehand_core.pipeline.settings import JobSettings, Span
from acehand_core.recordings.options import RecordingOptions

CLIP = Path("clip.mp4")
WHOLE = Span(0, 30)
SHAPING = {"robot": "inspire", "task": None}


class Absent:
    name, placed, hand_model = "absent", True, "none"

    def track(self, recording, progress=None):
        raise AssertionError("not tracked to be planned")


def stamps(*seconds: float) -> np.ndarray:
    return np.round(np.array(seconds) * 1e9).astype(np.int64)


def recording(times=None, task=None) -> Recording:
    times = stamps(*np.arange(30) / 30) if times is None else times
    return Recording("clip.mp4", "ab", times, 30.0, 64, 48, None, task=task)


def key(part=(0, 30), task=None, extent=(0.0, None), **more) -> EpisodeKey:
    return EpisodeKey("clip.mp4", "ab", extent, part, SHAPING | {"task": task}, **more)


def plan_of(keys=(), missing=(), fps=30, **settings) -> Plan:
    finished = FinishedEpisodes(dict(keys), 30, dict(missing))
    return Plan(JobSettings(**settings), finished, fps, SHAPING)


def test_an_episode_of_a_whole_recording():
    (episode,) = plan_of().episodes(CLIP, recording(), WHOLE)
    assert (episode.key, episode.number, episode.missing) == (key(), None, ())
    assert (episode.task, episode.cut, len(episode.view)) == ("hand motion", None, 30)


def test_an_episode_of_a_span():
    reading = RecordingOptions(start_s=2.0, duration_s=5.0)
    report = {"number": 1, "of": 3}
    span = Span(12, 21, "pour", number=(1, 3), report=report)
    (episode,) = plan_of(reading=reading).episodes(CLIP, recording(), span)
    start, lasts = episode.key.extent
    assert (start, lasts) == (pytest.approx(2.4), pytest.approx(0.3))
    within = {"within": (2.0, 5.0), "one_of": (1, 3)}
    assert episode.key == key((0, 9), "pour", (start, lasts), **within)
    assert (episode.task, episode.cut) == ("pour", report)
    np.testing.assert_array_equal(episode.view.timestamps_ns, stamps(*np.arange(12, 21) / 30))


@pytest.mark.parametrize(
    ("span", "settings", "own", "task", "stored"),
    [("a", "b", "c", "a", "a"), (None, "b", "c", "b", "b"), (None, None, "c", "c", None)],
)
def test_the_task_of_an_episode(span, settings, own, task, stored):
    (episode,) = plan_of(task=settings).episodes(CLIP, recording(task=own), Span(0, 30, span))
    assert (episode.task, episode.key.settings["task"]) == (task, stored)


def test_another_rate():
    (episode,) = plan_of(fps=10).episodes(CLIP, recording(), WHOLE)
    assert episode.key == key((0, 10))
    np.testing.assert_array_equal(episode.view.timestamps_ns, stamps(*np.arange(10) / 10))


def test_long_recordings_are_divided_and_resumed(monkeypatch):
    monkeypatch.setattr(plan, "max_episode_frames", lambda fps: 12)
    made = {4: key((12, 24)), 7: key((24, 30))}
    episodes = plan_of(made, {7: ("overlay.mp4",)}).episodes(CLIP, recording(), WHOLE)
    assert [one.key.part for one in episodes] == [(0, 12), (12, 24), (24, 30)]
    assert [one.number for one in episodes] == [None, 4, 7]
    assert [one.missing for one in episodes] == [(), (), ("overlay.mp4",)]
    np.testing.assert_array_equal(episodes[1].view.timestamps_ns, stamps(*np.arange(12, 24) / 30))


def test_appended_copies_are_all_completed():
    made = {1: key(), 2: key(task="pour"), 3: key()}
    episodes = plan_of(made, {1: ("report.json",)}).episodes(CLIP, recording(), WHOLE)
    assert [(one.number, one.missing) for one in episodes] == [(1, ("report.json",)), (3, ())]


def test_what_is_there_is_not_appended():
    with pytest.raises(InputError, match=r"clip.mp4: episode 5 .*`existing=append`"):
        plan_of({5: key()}, existing="append").episodes(CLIP, recording(), WHOLE)


def test_another_task_is_appended_but_does_not_resume():
    made = {5: key(task="pour")}
    with pytest.raises(InputError, match=r"episode 5 .*'hand motion'"):
        plan_of(made, existing="resume").episodes(CLIP, recording(), WHOLE)
    (episode,) = plan_of(made, existing="append").episodes(CLIP, recording(), WHOLE)
    assert episode.number is None


def demonstrations(*tasks: str | None) -> dict[int, EpisodeKey]:
    """Second n of the recording, with a task."""
    count = len(tasks)
    return {
        n + 10: key((0, 30), task, (n + 0.0, 1.0), within=(0.0, None), one_of=(n, count))
        for n, task in enumerate(tasks)
    }


def source(seconds: float = 3.0) -> Input:
    return Input(CLIP, recording(stamps(*np.arange(seconds * 30) / 30)), Absent())


def narration(folder: Path, text: str) -> Narration:
    (folder / "tasks.csv").write_text(text)
    return Narration.read(str(folder / "tasks.csv"))


def test_demonstrations_that_are_all_there():
    made = demonstrations("pour", "pour")
    auto = {"split": "auto", "task": "pour"}
    assert plan_of(made, **auto).converted(source(), None) == [10, 11]
    assert plan_of(made, task="pour").converted(source(), None) == []
    assert plan_of({10: made[10]}, **auto).converted(source(), None) == []
    assert plan_of(made, {11: ("report.json",)}, **auto).converted(source(), None) == []
    assert plan_of(demonstrations(), **auto).converted(source(), None) == []
    with pytest.raises(InputError, match="episode 10"):
        plan_of(made, existing="append", **auto).converted(source(), None)
    with pytest.raises(InputError, match=r"episode 10 .*'wipe'"):
        plan_of(made, split="auto", task="wipe").converted(source(), None)


def test_demonstrations_keep_the_task_of_their_times(tmp_path):
    tasks = narration(tmp_path, "task,start,end\npour,0,1\nwipe,1,3\n")
    made = plan_of(demonstrations("pour", "wipe"), split="auto", task_file="tasks.csv")
    assert made.converted(source(), tasks) == [10, 11]
    other = plan_of(demonstrations("pour", "pour"), split="auto", task_file="tasks.csv")
    with pytest.raises(InputError, match=r"episode 11 .*'wipe'"):
        other.converted(source(), tasks)


def test_the_only_demonstration_has_the_task_of_the_whole(tmp_path):
    """Its length may be unknown: that of all of the recording counts."""
    tasks = narration(tmp_path, "task,start,end\npour,0,1\nwipe,1,3\n")
    only = {0: key((0, 90), "wipe", within=(0.0, None), one_of=(0, 1))}
    made = plan_of(only, split="auto", task_file="tasks.csv")
    assert made.converted(source(), tasks) == [0]


def cut(opened: Input, tasks: Narration | None = None, **settings):
    converter = Mock(spec=Converter, settings=JobSettings(**settings))
    return cut_input(converter, tasks, opened)


def test_a_recording_is_cut_at_its_holes():
    whole = cut(source())
    assert (whole.spans, whole.notes, whole.report) == ((Span(0, 90),), (), None)

    times = stamps(*np.arange(30) / 30, *(np.arange(30) / 30 + 4), *(np.arange(30) / 30 + 6.4))
    holes = cut(Input(CLIP, recording(times), Absent()))
    parts = [(one.start, one.stop, one.number) for one in holes.spans]
    assert parts == [(0, 30, (0, 2)), (30, 90, (1, 2))]  # 1.4 s are no hole
    (note,) = holes.notes
    assert "3.0 s" in note and "90 frames" in note and "2 episodes" in note


def test_spans_of_the_settings_count_alone():
    spans = (Span(3, 9, "pour"), Span(20, 22))
    assert cut(source(), spans=spans).spans == spans


def test_a_recording_is_cut_by_the_rows_of_its_tasks(tmp_path):
    tasks = narration(tmp_path, "task,start,end\npour,0.5,1.0\nwipe,1.2,1.21\nfold,2.0,9\n")
    spans = cut(source(), tasks, split="tasks", task_file="tasks.csv")
    rows = [(one.start, one.stop, one.task, one.number) for one in spans.spans]
    assert rows == [(15, 30, "pour", (0, 2)), (60, 90, "fold", (1, 2))]
    entry = {"first_frame": 15, "last_frame": 29, "start_s": 0.5, "end_s": 1.0}
    where = f"{tmp_path / 'tasks.csv'}, line 2"
    assert spans.report["demonstrations"][0] == entry | {"starts": where, "ends": where}
    assert spans.spans[0].report == {"number": 0, "of": 2, **spans.report["demonstrations"][0]}
    (note,) = spans.notes
    assert "line 3" in note

    whole = narration(tmp_path, "task\npour\n")
    with pytest.raises(InputError, match="no row with start and end"):
        cut(source(), whole, split="tasks", task_file="tasks.csv")
    short = narration(tmp_path, "task,start,end\npour,0.5,0.51\n")
    with pytest.raises(InputError, match="line 2"):
        cut(source(), short, split="tasks", task_file="tasks.csv")
