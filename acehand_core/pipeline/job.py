"""The main job: recordings in, one dataset and its pictures out.

An input that fails is reported and the next one is taken; what was finished stays.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from acehand_core.bags.records import DroppedMessages
from acehand_core.errors import AcehandError, Interrupted, OutputError
from acehand_core.lerobot import format as files
from acehand_core.lerobot.dataset import (
    EpisodeJob,
    FinishedEpisodes,
    max_episode_frames,
    prepare_output,
)
from acehand_core.motion import Calibration, HandMotion, Recording
from acehand_core.pipeline.dataset import Dataset, release_memory
from acehand_core.pipeline.pictures import draw
from acehand_core.pipeline.report import EpisodeReport, Failure, JobReport, episode_report
from acehand_core.pipeline.settings import JobSettings, Span
from acehand_core.pipeline.steps import Steps
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import at_rate, hands_at, part
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import open_tracked
from acehand_core.types import Progress, Side, no_progress


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
    steps = Steps.of(settings, progress)
    finished = FinishedEpisodes()
    if not settings.dry_run:
        finished = prepare_output(settings.output, settings.existing, settings.work_dir)
    fps = settings.fps or finished.fps
    if finished.jobs:
        origins = [(path, registry.sha256(path, settings.reading)) for path in paths]
        finished.check_settings(origins, settings.cut, steps.shaping(fps))

    dataset = Dataset(settings.output, steps.robot, settings.existing, fps, settings.encoding)
    outcome = _Outcome()
    if settings.hands is None and (side := steps.settings.hands) != "both":
        note = f"robot {steps.robot.label} has a {side} hand only: the other is not looked for"
        progress(note, 0, 0)
        outcome.dropped.remark(note)
    try:
        for path in paths:
            if not _convert_input(path, registry, steps, finished, dataset, outcome):
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


def _convert_input(
    path: Path,
    registry: Registry,
    steps: Steps,
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
        dataset.rate_of(recording)

        spans = settings.split(recording) if settings.split else [Span(0, len(recording))]
        for number, span in enumerate(spans):
            name = str(path) if len(spans) == 1 else f"{path} (clip {number})"
            try:
                plan = _plan(path, recording, span, steps, finished, dataset, outcome)
                if plan.unfinished:
                    _complete(plan, tracker, steps, finished, dataset, outcome)
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
        )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to do of one span of an input.

    ``view`` is the recording at the dataset's rate and size; ``jobs`` the episodes to make of it,
    and ``unfinished`` those of the dataset, by number, that lack files beside their data.
    """

    recording: Recording
    view: Recording
    task: str
    jobs: tuple[EpisodeJob, ...]
    unfinished: Mapping[int, EpisodeJob]


def _plan(
    path: Path,
    recording: Recording,
    span: Span,
    steps: Steps,
    finished: FinishedEpisodes,
    dataset: Dataset,
    outcome: _Outcome,
) -> _Plan:
    """Cut a span into episodes and leave out those that the resumed dataset has already."""
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
    jobs = [
        EpisodeJob(recording.name, recording.sha256 or "", cut, frames, shaping)
        for frames in pairwise([*range(0, len(view), limit), len(view)])
    ]

    made = [(job, finished.numbers_of(job)) for job in jobs]
    todo = tuple(job for job, numbers in made if not numbers)
    # Of one that was appended more than once the last is the interrupted run's.
    outcome.skipped_episodes += [numbers[-1] for _, numbers in made if numbers]
    missing = finished.missing
    unfinished = {n: job for job, numbers in made for n in numbers if n in missing}
    if len(todo) < len(jobs):
        done = len(jobs) - len(todo)
        outcome.skipped.append(f"{path}: {done} of {len(jobs)} parts" if todo else str(path))
    return _Plan(recording, view, task, todo, unfinished)


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
        motion, calibrations = steps.track(tracker, plan.recording)

        for job in plan.jobs:
            shown = part(view, *job.part)
            episode = hands_at(motion, shown.timestamps_ns, shown.fps)
            trajectory = steps.retarget(episode, calibrations)
            outcome.recorded_s += len(shown) / shown.fps
            if settings.dry_run:
                subject = settings.subject
                report = episode_report(shown.source, episode, trajectory, None, subject)
                outcome.episodes.append(report)
                continue

            overlay = settings.overlay and shown.frames is not None
            pictures = (files.SHEET, files.OVERLAY) if overlay else (files.SHEET,)
            text = steps.calibration_text(calibrations, plan.recording)
            report, folder = dataset.store(
                shown, episode, trajectory, next(videos), plan.task, text, pictures, job
            )
            outcome.episodes.append(report)
            draw(shown, episode, trajectory, steps.robot, folder, overlay, steps.progress,
                 steps.arm)  # fmt: skip
            dataset.pictures_done(folder)


def _complete(
    plan: _Plan,
    tracker: Tracker,
    steps: Steps,
    finished: FinishedEpisodes,
    dataset: Dataset,
    outcome: _Outcome,
) -> None:
    """Make what an interrupted run left out beside episodes of the dataset."""
    settings = steps.settings
    tracked: tuple[HandMotion, dict[Side, Calibration]] | None = None
    for number, job in plan.unfinished.items():
        names = finished.missing.pop(number, ())
        shown = part(plan.view, *job.part)

        # The hands kept beside the episode, or tracked again.
        made = steps.stored(dataset.output / files.episode_folder(number))
        if made is None:
            motion, calibrations = tracked = tracked or steps.track(tracker, plan.recording)
            made = hands_at(motion, shown.timestamps_ns, shown.fps), calibrations
        episode, calibrations = made

        trajectory = steps.retarget(episode, calibrations)
        text = steps.calibration_text(calibrations, plan.recording)
        with dataset.held():
            folder = dataset.complete(job, number, episode, trajectory, text)
            if {files.SHEET, files.OVERLAY} & set(names):
                draw(shown, episode, trajectory, steps.robot, folder, settings.overlay,
                     steps.progress, steps.arm)  # fmt: skip
                dataset.pictures_done(folder)
        made_now = f"episode {number} was interrupted; made now: {', '.join(names)}"
        outcome.dropped.remark(f"{plan.recording.source}: {made_now}")
