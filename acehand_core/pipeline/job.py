"""The main job: recordings in, one dataset and its pictures out.

An input that fails is reported and the next one is taken; what was finished stays.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from acehand_core.errors import AcehandError, InputError, Interrupted, OutputError
from acehand_core.lerobot import format as files
from acehand_core.lerobot.dataset import EpisodeJob, FinishedEpisodes, prepare_output
from acehand_core.lerobot.episode import max_episode_frames
from acehand_core.motion import Recording
from acehand_core.pipeline.dataset import Dataset
from acehand_core.pipeline.pictures import draw
from acehand_core.pipeline.report import EpisodeReport, Failure, JobReport, episode_report
from acehand_core.pipeline.settings import TASK, JobSettings, Span
from acehand_core.pipeline.spans import Tracked, duration_s, find_spans, told_of
from acehand_core.pipeline.steps import Steps
from acehand_core.processes import release_memory
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.narration import Narration, task_of
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import at_rate, hands_at, part
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import open_tracked
from acehand_core.types import Progress, no_progress


def run_job(
    inputs: Sequence[Path],
    settings: JobSettings,
    progress: Progress = no_progress,
    registry: Registry | None = None,
) -> JobReport:
    """Turn every input into an episode of the dataset at ``settings.output``.

    Args:
        registry: what opens the inputs; one that has opened them before need not do it again.

    Returns:
        The report; inputs that gave no episode are in its ``failures``.

    Raises:
        InputError, OutputError: an input does not exist, a setting is not valid or not the one of
            the run that is resumed, or the output is taken: nothing was started.
        Interrupted: by Ctrl-C; holds the report of what was finished.
    """
    started = time.perf_counter()
    registry = registry or Registry()
    paths = registry.expand(inputs)
    narration = _narration(settings, paths)
    steps = Steps.of(settings, progress)
    finished = FinishedEpisodes()
    if not settings.dry_run:
        finished = prepare_output(settings.output, settings.existing, settings.work_dir)
    resumed = settings.existing == "resume"
    fps = settings.fps or (finished.fps if resumed else None)
    if resumed and finished.jobs:
        origins = [(path, registry.sha256(path, settings.reading)) for path in paths]
        # With a task file each episode has its own task.
        shaping = {k: v for k, v in steps.shaping(fps).items() if k != "task" or not narration}
        finished.check_settings(origins, settings.cut, shaping)

    dataset = Dataset(settings.output, steps.robot, settings.existing, fps)
    outcome = _Outcome()
    if settings.hands is None and (side := steps.settings.hands) != "both":
        note = f"robot {steps.robot.label} has a {side} hand only: the other is not looked for"
        progress(note, 0, 0)
        outcome.dropped.remark(note)
    try:
        for path in paths:
            if not _convert_input(path, registry, steps, narration, finished, dataset, outcome):
                break
    except KeyboardInterrupt as stop:
        if not settings.dry_run:
            with contextlib.suppress(AcehandError):  # finished episodes are there all the same
                dataset.finish()
        raise Interrupted(outcome.report(dataset, time.perf_counter() - started)) from stop
    except BaseException:
        dataset.close()
        raise

    release_memory()
    try:
        if not settings.dry_run:
            dataset.finish()
    except AcehandError as error:
        outcome.failures.append(Failure(str(settings.output), error))
    shutil.rmtree(settings.work_dir, ignore_errors=True)
    return outcome.report(dataset, time.perf_counter() - started)


def _narration(settings: JobSettings, paths: Sequence[Path]) -> Narration | None:
    """Read ``--task-file`` and what it says of each input. Raises InputError."""
    if settings.task_file is None:
        return None
    narration = Narration.read(settings.task_file)
    narration.check_inputs(paths)
    for path in paths:
        narration.of(path)
    return narration


def _convert_input(
    path: Path,
    registry: Registry,
    steps: Steps,
    narration: Narration | None,
    finished: FinishedEpisodes,
    dataset: Dataset,
    outcome: _Outcome,
) -> bool:
    """Process one input, keep its failures for the report, and tell whether to take the next."""
    settings, dropped = steps.settings, None
    try:
        opened, tracker = open_tracked(
            path, settings.tracker, settings.tracking, settings.reading, registry, steps.progress,
            settings.cache,
        )  # fmt: skip
        recording, dropped = opened.recording, opened.dropped
        shaping = steps.shaping(dataset.rate_of(recording))
        if settings.split == "auto" and (
            done := finished.all_of(recording.sha256 or "", settings.cut, shaping)
        ):  # the hands need not be found again to know where it was cut
            if settings.existing == "append":
                raise _there_already(path, done[0][0])
            _check_tasks(path, recording, done, settings, narration)
            outcome.skipped.append(str(path))
            outcome.skipped_episodes += [number for number, _ in done]
            return True

        found = find_spans(path, recording, tracker, steps, narration)
        outcome.cuts += [found.cuts] if found.cuts else []
        for note in found.notes:
            outcome.dropped.remark(note)
        for number, span in enumerate(found.spans):
            name = str(path) if len(found.spans) == 1 else f"{path} (clip {number})"
            try:
                plan = _plan(
                    path, recording, span, found.tracked, tracker, steps, finished, dataset, outcome
                )
                if plan.unfinished:
                    _complete(plan, steps, finished, dataset, outcome)
                if plan.jobs:
                    _convert(plan, tracker, steps, dataset, outcome)
            except OutputError:
                raise
            except AcehandError as error:
                outcome.failures.append(Failure(name, error))
    except KeyboardInterrupt:
        outcome.failures.append(Failure(str(path), AcehandError(f"{path}: interrupted.")))
        raise
    except AcehandError as error:
        outcome.failures.append(Failure(str(path), error))
        return not isinstance(error, OutputError)
    finally:
        if dropped is not None:
            outcome.dropped.add(dropped)
    return True


@dataclass(slots=True)
class _Outcome:
    """What a run has done so far."""

    episodes: list[EpisodeReport] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skipped_episodes: list[int] = field(default_factory=list)
    recorded_s: float = 0.0
    dropped: DroppedMessages = field(default_factory=DroppedMessages)
    cuts: list[Mapping[str, Any]] = field(default_factory=list)

    def report(self, dataset: Dataset, seconds: float) -> JobReport:
        """Return the report of the run."""
        there = dataset.has_episodes or bool(self.skipped)
        return JobReport(
            dataset=str(dataset.output) if there else None,
            seconds=seconds,
            recorded_seconds=self.recorded_s,
            episodes=tuple(self.episodes),
            failures=tuple(self.failures),
            skipped=tuple(self.skipped),
            lost_messages=dict(self.dropped.by_topic),
            notes=self.dropped.sentences(),
            skipped_episodes=tuple(self.skipped_episodes),
            cuts=tuple(self.cuts),
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to do of one span of an input.

    ``view`` is the recording at the dataset's rate and size; ``track`` finds its hands; ``jobs``
    are the episodes to make of it, and ``unfinished`` those of the dataset, by number, that lack
    files beside their data. ``cut`` is what reports say of where it was cut.
    """

    recording: Recording
    view: Recording
    task: str
    track: Callable[[], Tracked]
    jobs: tuple[EpisodeJob, ...]
    unfinished: Mapping[int, EpisodeJob]
    cut: Mapping[str, Any] | None


def _plan(
    path: Path,
    recording: Recording,
    span: Span,
    tracked: Tracked | None,
    tracker: Tracker,
    steps: Steps,
    finished: FinishedEpisodes,
    dataset: Dataset,
    outcome: _Outcome,
) -> _Plan:
    """Cut a span into episodes and leave out those that the resumed dataset has already.

    ``tracked``: the hands of the whole recording, where they are known.

    Raises:
        InputError: the dataset has one of them with another task, or one that is appended.
    """
    settings, fps = steps.settings, dataset.rate_of(recording)
    cut, task = settings.cut, settings.task_of(span, recording)
    if (span.start, span.stop) != (0, len(recording)):
        whole = recording
        recording = part(whole, span.start, span.stop)
        first, last = recording.timestamps_ns[[0, -1]] - whole.timestamps_ns[0]
        cut = (cut[0] + float(first) / 1e9, float(last - first) / 1e9 + 1 / recording.fps)

    view, _ = at_rate(recording, fps)
    if fit := settings.fit_of(recording):
        view = fit.recording(view)
    limit = max_episode_frames(fps)
    shaping = steps.shaping(fps) | {"task": span.task or settings.task}
    within = settings.cut if span.number else None
    jobs = [
        EpisodeJob(
            recording.name, recording.sha256 or "", cut, frames, shaping, within, span.number
        )
        for frames in pairwise([*range(0, len(view), limit), len(view)])
    ]

    made = [(job, finished.numbers_of(job)) for job in jobs]
    for job, numbers in made:
        if numbers and settings.existing == "append":
            raise _there_already(path, numbers[0])
        other = None if numbers else finished.of_other_task(job)
        if other is not None and settings.existing == "resume":
            raise _other_task(path, other, shaping["task"])
    todo = tuple(job for job, numbers in made if not numbers)
    # Of one that was appended more than once the last is the interrupted run's.
    outcome.skipped_episodes += [numbers[-1] for _, numbers in made if numbers]
    missing = finished.missing
    unfinished = {n: job for job, numbers in made for n in numbers if n in missing}
    if len(todo) < len(jobs):
        done = len(jobs) - len(todo)
        outcome.skipped.append(f"{path}: {done} of {len(jobs)} parts" if todo else str(path))
    track = (
        functools.partial(steps.track, tracker, recording) if tracked is None else lambda: tracked
    )
    return _Plan(recording, view, task, track, todo, unfinished, span.cut)


def _check_tasks(
    path: Path,
    recording: Recording,
    done: Sequence[tuple[int, EpisodeJob]],
    settings: JobSettings,
    narration: Narration | None,
) -> None:
    """Raise InputError where demonstrations that are all there have another task by now."""
    told = told_of(path, settings, narration)
    for number, job in done:
        start = job.cut[0] - settings.cut[0]
        lasts = duration_s(recording) if job.one_of == (0, 1) else job.cut[1] or 0.0
        task = task_of(told, start, start + lasts) or settings.task
        if task != job.settings["task"]:
            raise _other_task(path, number, task)


def _there_already(path: Path, number: int) -> InputError:
    return InputError(
        f"{path}: episode {number} of the dataset is this recording already, cut and made alike. "
        "--append adds it with another --task, --start, --duration or other settings; --resume "
        "finishes an interrupted run."
    )


def _other_task(path: Path, number: int, task: str | None) -> InputError:
    return InputError(
        f"{path}: episode {number} of the dataset has another task than {task or TASK!r}. "
        "Resume with the same task text (lerobot-edit-dataset changes it later: docs/formats.md), "
        "or --append it as another episode."
    )


def _convert(
    plan: _Plan, tracker: Tracker, steps: Steps, dataset: Dataset, outcome: _Outcome
) -> None:
    """Track a span, and make each of its episodes."""
    settings, view = steps.settings, plan.view
    with contextlib.ExitStack() as stack:
        if not settings.dry_run:
            dataset.begin(settings.layout(plan.recording, tracker, steps.robot, steps.arm), view)
            # Encoding does not wait for the tracker.
            videos = stack.enter_context(dataset.encoded(view, [job.part for job in plan.jobs]))
        motion, calibrations = plan.track()

        for job in plan.jobs:
            shown = part(view, *job.part)
            episode = hands_at(motion, shown.timestamps_ns, shown.fps)
            trajectory = steps.retarget(episode, calibrations, shown.source_timestamps_ns)
            outcome.recorded_s += len(shown) / shown.fps
            if settings.dry_run:
                report = episode_report(
                    shown.source, episode, trajectory, None, settings.subject, plan.cut
                )
                outcome.episodes.append(report)
                continue

            overlay = settings.overlay and shown.frames is not None
            pictures = (files.SHEET, files.OVERLAY) if overlay else (files.SHEET,)
            text = steps.calibration_text(calibrations, plan.recording)
            report, folder = dataset.store(
                shown, episode, trajectory, next(videos), plan.task, text, pictures, job, plan.cut
            )
            outcome.episodes.append(report)
            draw(shown, episode, trajectory, steps.robot, folder, overlay, steps.progress,
                 steps.arm)  # fmt: skip
            dataset.pictures_done(folder)


def _complete(
    plan: _Plan,
    steps: Steps,
    finished: FinishedEpisodes,
    dataset: Dataset,
    outcome: _Outcome,
) -> None:
    """Make what an interrupted run left out beside episodes of the dataset."""
    settings = steps.settings
    tracked: Tracked | None = None
    for number, job in plan.unfinished.items():
        names = finished.missing.pop(number, ())
        shown = part(plan.view, *job.part)

        # The hands kept beside the episode, or tracked again.
        made = steps.stored(dataset.output / files.episode_folder(number))
        if made is None:
            motion, calibrations = tracked = tracked or plan.track()
            made = hands_at(motion, shown.timestamps_ns, shown.fps), calibrations
        episode, calibrations = made

        trajectory = steps.retarget(episode, calibrations, shown.source_timestamps_ns)
        text = steps.calibration_text(calibrations, plan.recording)
        with dataset.held():
            folder = dataset.complete(job, number, episode, trajectory, text, plan.cut)
            if {files.SHEET, files.OVERLAY} & set(names):
                draw(shown, episode, trajectory, steps.robot, folder, settings.overlay,
                     steps.progress, steps.arm)  # fmt: skip
                dataset.pictures_done(folder)
        made_now = f"episode {number} was interrupted; made now: {', '.join(names)}"
        outcome.dropped.remark(f"{plan.recording.source}: {made_now}")
