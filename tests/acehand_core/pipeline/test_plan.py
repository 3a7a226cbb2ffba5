"""The plan: a pure function of an input, the settings, and what the dataset has."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.lerobot.dataset import EpisodeKey, FinishedEpisodes
from acehand_core.motion import FrameSource, HandMotion, Recording
from acehand_core.pipeline import plan
from acehand_core.pipeline.converter import Converter, Input, TrackedHands
from acehand_core.pipeline.cutting import cut_demonstrations
from acehand_core.pipeline.narration import Narration
from acehand_core.pipeline.plan import Plan, cut_input
from acehand_core.pipeline.settings import JobSettings, Span
from acehand_core.recordings.options import RecordingOptions
from acehand_core.trackers.base import TrackerSettings
from helpers.drawn_hands import drawn

CLIP = Path("clip.mp4")
WHOLE = Span(0, 30)
SHAPING = {"robot": "inspire", "task": None}


class Absent:
    name, placed, hand_model = "absent", True, "none"

    def track(self, recording, progress=None):
        raise AssertionError("not tracked to be planned")


def stamps(*seconds: float) -> np.ndarray:
    return np.round(np.array(seconds) * 1e9).astype(np.int64)


#: The recording's clock does not begin at 0.
BEGINS_NS = 7_000_000_000


def recording(times=None, task=None, **more) -> Recording:
    times = stamps(*np.arange(30) / 30) if times is None else times
    more = {"frames": None, **more}
    return Recording("clip.mp4", "ab", BEGINS_NS + times, 30.0, 64, 48, task=task, **more)


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
    np.testing.assert_array_equal(
        episode.view.timestamps_ns, BEGINS_NS + stamps(*np.arange(12, 21) / 30)
    )


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
    np.testing.assert_array_equal(
        episode.view.timestamps_ns, BEGINS_NS + stamps(*np.arange(10) / 10)
    )


def test_pictures_of_another_size_are_fitted():
    pictures = Mock(spec=FrameSource, __len__=lambda _: 30)
    (episode,) = plan_of(image_size=(32, 32)).episodes(CLIP, recording(frames=pictures), WHOLE)
    assert (episode.view.width, episode.view.height) == (32, 32)


def test_long_recordings_are_divided_and_resumed(monkeypatch):
    monkeypatch.setattr(plan, "max_episode_frames", lambda fps: 12)
    made = {4: key((12, 24)), 7: key((24, 30))}
    episodes = plan_of(made, {7: ("overlay.mp4",)}).episodes(CLIP, recording(), WHOLE)
    assert [one.key.part for one in episodes] == [(0, 12), (12, 24), (24, 30)]
    assert [one.number for one in episodes] == [None, 4, 7]
    assert [one.missing for one in episodes] == [(), (), ("overlay.mp4",)]
    np.testing.assert_array_equal(
        episodes[1].view.timestamps_ns, BEGINS_NS + stamps(*np.arange(12, 24) / 30)
    )


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

    # The file's second 1 is the first of what is read.
    reading = RecordingOptions(start_s=1.0)
    later = {n: replace(k, extent=(k.extent[0] + 1, 1.0), within=(1.0, None))
             for n, k in demonstrations("wipe", "wipe").items()}  # fmt: skip
    made = plan_of(later, split="auto", task_file="tasks.csv", reading=reading)
    assert made.converted(source(2.0), tasks) == [10, 11]

    other = plan_of(demonstrations("pour", "pour"), split="auto", task_file="tasks.csv")
    with pytest.raises(InputError, match=r"episode 11 .*'wipe'"):
        other.converted(source(), tasks)


def test_the_only_demonstration_has_the_task_of_the_whole(tmp_path):
    """Its length may be unknown: that of all of the recording counts."""
    tasks = narration(tmp_path, "task,start,end\npour,0,1\nwipe,1,3\n")
    only = {0: key((0, 90), "wipe", within=(0.0, None), one_of=(0, 1))}
    made = plan_of(only, split="auto", task_file="tasks.csv")
    assert made.converted(source(), tasks) == [0]


def cut(opened: Input, tasks: Narration | None = None, tracked=None, **settings):
    def track(tracker, whole):
        assert (tracker, whole) == (opened.tracker, opened.recording)
        return tracked

    converter = Mock(spec=Converter, settings=JobSettings(**settings), track=track, progress=None)
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


def test_parts_between_holes_have_the_task_of_their_times(tmp_path):
    tasks = narration(tmp_path, "task,start,end\npour,0,1\nwipe,3.98,5\n")
    times = stamps(*np.arange(30) / 30, *(np.arange(30) / 30 + 4))
    spans = cut(Input(CLIP, recording(times), Absent()), tasks, task_file="tasks.csv").spans
    assert [one.task for one in spans] == ["pour", "wipe"]

    # A row of the last frame alone: a frame lasts until the next.
    last = narration(tmp_path, "task,start,end\npour,0.98,1.0\n")
    spans = cut(source(1.0), last, task_file="tasks.csv").spans
    assert [one.task for one in spans] == ["pour"]


@pytest.mark.parametrize("kind", ["hands and pictures", "hands", "pictures"])
def test_parts_of_hands_next_to_pictures_share_a_calibration(kind):
    times = stamps(*np.arange(30) / 30, *(np.arange(30) / 30 + 4))
    more = {}
    if "hands" in kind:
        more["hands"] = Mock(spec=HandMotion)
    if "pictures" in kind:
        more["frames"] = Mock(spec=FrameSource, __len__=lambda _: 60)
    tracked = object()
    spans = cut(Input(CLIP, recording(times, **more), Absent()), tracked=tracked)
    assert spans.tracked is (tracked if kind == "hands and pictures" else None)
    assert len(spans.spans) == 2
    whole = cut(Input(CLIP, recording(times[:30] * 1, **more | {"frames": None}), Absent()))
    assert whole.tracked is None


def test_spans_of_the_settings_count_alone(tmp_path):
    spans = (Span(3, 9, "pour"), Span(20, 22))
    assert cut(source(), spans=spans).spans == spans
    outside = narration(tmp_path, "task,start,end\npour,0,1\nwipe,8,9\n")
    (note,) = cut(source(), outside, spans=spans, task_file="tasks.csv").notes
    assert "line 3" in note


#: A right hand moves twice, or rests.
MOVES = ((1.0, 2.0), (2.2, 3.2), (5.5, 6.5), (6.7, 7.7))


def moving(*moves: tuple[float, float]) -> TrackedHands:
    return TrackedHands(drawn(9.0, moves), {})


def test_a_recording_is_cut_by_the_motion_of_its_hands(tmp_path):
    tracked, opened = moving(*MOVES), source(9.0)
    tasks = narration(tmp_path, "task,start,end\npour,0,4\n")
    settings = {"split": "auto", "task_file": "tasks.csv"}
    spans = cut(opened, tasks, tracked, **settings)
    cutting = cut_demonstrations(tracked.motion, JobSettings().cutting)
    assert [(s.start, s.stop) for s in spans.spans] == [(s.start, s.stop) for s in cutting.spans]
    assert [one.number for one in spans.spans] == [(0, 2), (1, 2)]
    assert [one.task for one in spans.spans] == ["pour", None]
    assert spans.tracked is tracked
    entries = spans.report.pop("demonstrations")
    assert {"source": "clip.mp4", "split": "auto"}.items() <= spans.report.items()
    assert [one.report for one in spans.spans] == [
        {"number": n, "of": 2, **entry} for n, entry in enumerate(entries)
    ]
    (note,) = spans.notes
    assert "demonstrations 1" in note
    assert cut(opened, None, tracked, split="auto").notes == ()


def test_nothing_that_moves_is_no_demonstration():
    with pytest.raises(InputError, match=r"clip.mp4: `split=auto`.*`cut_min`"):
        cut(source(9.0), None, moving(), split="auto")


def test_known_poses_of_the_camera_take_its_motion_off():
    """A hand that the camera turns away from rests in the world."""
    tracked = moving()
    angle = np.interp(np.arange(270) / 30, [2, 3, 5, 6], [0, 0.5, 0.5, 0])
    poses = frames.rigid(rotations.exp(angle[:, None] * [0, 1.0, 0]), np.zeros(3))
    seen = frames.apply(frames.inverse(poses)[:, None], tracked.motion.joints_camera)
    unknown = replace(tracked.motion, joints_camera=seen)
    known = replace(unknown, T_world_camera=poses)
    off = TrackerSettings(camera_motion="off")
    auto = {"split": "auto", "tracking": off}
    assert len(cut(source(9.0), None, TrackedHands(unknown, {}), **auto).spans) > 0
    with pytest.raises(InputError):
        cut(source(9.0), None, TrackedHands(known, {}), **auto)


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
    del spans.report["demonstrations"]
    assert spans.report == {"source": "clip.mp4", "split": "tasks", "left_out": []}

    two_frames = narration(tmp_path, "task,start,end\npour,0.5,0.566\nwipe,,\n")
    (span,) = cut(source(), two_frames, split="tasks", task_file="tasks.csv").spans
    assert (span.start, span.stop) == (15, 17)

    whole = narration(tmp_path, "task\npour\n")
    with pytest.raises(InputError, match="no row with start and end"):
        cut(source(), whole, split="tasks", task_file="tasks.csv")
    short = narration(tmp_path, "task,start,end\npour,0.5,0.51\n")
    with pytest.raises(InputError, match="line 2"):
        cut(source(), short, split="tasks", task_file="tasks.csv")
