"""The main job: recordings in, one dataset and its pictures out.

An input that fails is reported and the next one is taken; what was finished stays.
"""

from __future__ import annotations

import contextlib
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
from acehand_core.motion import Calibration, HandMotion, Recording
from acehand_core.pipeline.dataset import Dataset
from acehand_core.pipeline.report import (
    Demonstration,
    EpisodeReport,
    Failure,
    JobReport,
    episode_report,
)
from acehand_core.pipeline.run import Run, Source, Tracked
from acehand_core.pipeline.settings import TASK, JobSettings, Span
from acehand_core.pipeline.spans import cut, duration_s, told_of
from acehand_core.processes import release_memory
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.narration import task_of
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import at_rate, hands_at, part
from acehand_core.trackers.base import Tracker
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
    job = _Job.of(inputs, settings, progress, registry)
    try:
        for path in job.paths:
            if not job.convert_input(path):
                break
    except KeyboardInterrupt as stop:
        if not settings.dry_run:
            with contextlib.suppress(AcehandError):  # finished episodes are there all the same
                job.dataset.finish()
        raise Interrupted(job.report()) from stop
    except BaseException:
        job.dataset.close()
        raise

    release_memory()
    try:
        if not settings.dry_run:
            job.dataset.finish()
    except AcehandError as error:
        job.failures.append(Failure(str(settings.output), error))
    shutil.rmtree(settings.work_dir, ignore_errors=True)
    return job.report()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to do of one span of an input.

    ``track`` finds its hands. ``todo`` are the episodes to make of it, each with the recording at
    the dataset's rate and size, and ``unfinished`` those of the dataset, by number, that lack files
    beside their data. ``cut`` is what reports say of where it was cut.
    """

    recording: Recording
    task: str
    track: Callable[[], Tracked]
    todo: tuple[tuple[EpisodeJob, Recording], ...]
    unfinished: Mapping[int, tuple[EpisodeJob, Recording]]
    cut: Mapping[str, Any] | None


@dataclass(slots=True)
class _Job:
    """The main job at work: what it has loaded, the dataset, and what it has done so far."""

    run: Run
    paths: list[Path]
    finished: FinishedEpisodes
    dataset: Dataset
    started: float
    episodes: list[EpisodeReport] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skipped_episodes: list[int] = field(default_factory=list)
    recorded_s: float = 0.0
    dropped: DroppedMessages = field(default_factory=DroppedMessages)
    cuts: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        inputs: Sequence[Path],
        settings: JobSettings,
        progress: Progress,
        registry: Registry | None,
    ) -> _Job:
        """Load and check everything before anything is begun. Raises as ``run_job``."""
        started, registry = time.perf_counter(), registry or Registry()
        paths = registry.expand(inputs)
        run = Run.of(settings, progress, registry)
        if run.narration is not None:
            run.narration.check_inputs(paths)
            for path in paths:
                run.narration.of(path)

        finished = FinishedEpisodes()
        if not settings.dry_run:
            finished = prepare_output(settings.output, settings.existing, settings.work_dir)
        resumed = settings.existing == "resume"
        fps = settings.fps or (finished.fps if resumed else None)
        if resumed and finished.jobs:
            origins = [(path, registry.sha256(path, settings.reading)) for path in paths]
            # With a task file each episode has its own task.
            own_task = run.narration is not None
            shaping = {k: v for k, v in run.shaping(fps).items() if k != "task" or not own_task}
            finished.check_settings(origins, settings.cut, shaping)

        dataset = Dataset(settings.output, run.robot, settings.existing, fps)
        job = cls(run, paths, finished, dataset, started)
        if settings.hands is None and (side := run.settings.hands) != "both":
            note = f"robot {run.robot.label} has a {side} hand only: the other is not looked for"
            progress(note, 0, 0)
            job.dropped.remark(note)
        return job

    def convert_input(self, path: Path) -> bool:
        """Process one input, keep its failures, and tell whether to take the next."""
        dropped = None
        try:
            source = self.run.open(path)
            dropped = source.dropped
            if self._is_all_there(source):
                return True
            found = cut(self.run, source)
            self.cuts += [found.cuts] if found.cuts else []
            for note in found.notes:
                self.dropped.remark(note)
            for number, span in enumerate(found.spans):
                name = str(path) if len(found.spans) == 1 else f"{path} (clip {number})"
                try:
                    plan = self._plan(source, span, found.tracked)
                    if plan.unfinished:
                        self._complete(plan)
                    if plan.todo:
                        self._convert(plan, source.tracker)
                except OutputError:
                    raise
                except AcehandError as error:
                    self.failures.append(Failure(name, error))
        except KeyboardInterrupt:
            self.failures.append(Failure(str(path), AcehandError(f"{path}: interrupted.")))
            raise
        except AcehandError as error:
            self.failures.append(Failure(str(path), error))
            return not isinstance(error, OutputError)
        finally:
            if dropped is not None:
                self.dropped.add(dropped)
        return True

    def _is_all_there(self, source: Source) -> bool:
        """Tell whether all demonstrations of an input are in the dataset already.

        The hands need not be found again to know where it was cut.

        Raises:
            InputError: they are, but it is appended, or they have another task by now.
        """
        run, recording, settings = self.run, source.recording, self.run.settings
        if settings.split != "auto":
            return False
        shaping = run.shaping(self.dataset.rate_of(recording))
        done = self.finished.all_of(recording.sha256 or "", settings.cut, shaping)
        if not done:
            return False
        if settings.existing == "append":
            raise _there_already(source.path, done[0][0])

        told = told_of(run, source.path)
        for number, job in done:
            start = job.cut[0] - settings.cut[0]
            lasts = duration_s(recording) if job.one_of == (0, 1) else job.cut[1] or 0.0
            task = task_of(told, start, start + lasts) or settings.task
            if task != job.settings["task"]:
                raise _other_task(source.path, number, task)
        self.skipped.append(str(source.path))
        self.skipped_episodes += [number for number, _ in done]
        return True

    def _plan(self, source: Source, span: Span, tracked: Tracked | None) -> _Plan:
        """Cut a span into episodes and leave out those that the resumed dataset has already.

        ``tracked``: the hands of the whole recording, where they are known.

        Raises:
            InputError: the dataset has one of them with another task, or one that is appended.
        """
        run, path, recording, finished = self.run, source.path, source.recording, self.finished
        settings, fps = run.settings, self.dataset.rate_of(recording)
        times, task = settings.cut, settings.task_of(span, recording)
        if (span.start, span.stop) != (0, len(recording)):
            whole = recording
            recording = part(whole, span.start, span.stop)
            first, last = recording.timestamps_ns[[0, -1]] - whole.timestamps_ns[0]
            length = float(last - first) / 1e9 + 1 / recording.fps
            times = (times[0] + float(first) / 1e9, length)

        view, _ = at_rate(recording, fps)
        if fit := settings.fit_of(recording):
            view = fit.recording(view)
        limit = max_episode_frames(fps)
        shaping = run.shaping(fps) | {"task": span.task or settings.task}
        within = settings.cut if span.number else None
        jobs = [
            EpisodeJob(
                recording.name, recording.sha256 or "", times, frames, shaping, within, span.number
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
        todo = tuple((job, part(view, *job.part)) for job, numbers in made if not numbers)
        # Of one that was appended more than once the last is the interrupted run's.
        self.skipped_episodes += [numbers[-1] for _, numbers in made if numbers]
        missing = finished.missing
        unfinished = {
            n: (job, part(view, *job.part))
            for job, numbers in made
            for n in numbers
            if n in missing
        }
        if len(todo) < len(jobs):
            done = len(jobs) - len(todo)
            self.skipped.append(f"{path}: {done} of {len(jobs)} parts" if todo else str(path))

        def track() -> Tracked:
            return tracked or run.track(source.tracker, recording)

        return _Plan(recording, task, track, todo, unfinished, span.cut)

    def _convert(self, plan: _Plan, tracker: Tracker) -> None:
        """Track a span, and make each of its episodes."""
        run, dataset, settings = self.run, self.dataset, self.run.settings
        views = [view for _, view in plan.todo]
        with contextlib.ExitStack() as stack:
            if not settings.dry_run:
                layout = settings.layout(plan.recording, tracker, run.robot, run.arm)
                dataset.begin(layout, views[0])
                # Encoding does not wait for the tracker.
                videos = stack.enter_context(dataset.encoded(views))
            motion, calibrations = plan.track()

            for job, view in plan.todo:
                hands = hands_at(motion, view.timestamps_ns, view.fps)
                episode = self._demonstration(plan, job, view, hands, calibrations)
                self.recorded_s += len(view) / view.fps
                if settings.dry_run:
                    self.episodes.append(episode_report(episode, None))
                    continue
                report, folder = dataset.store(episode, next(videos), settings.overlay)
                self.episodes.append(report)
                dataset.draw(episode, folder, settings.overlay, run.progress, run.arm)

    def _complete(self, plan: _Plan) -> None:
        """Make what an interrupted run left out beside episodes of the dataset."""
        run, dataset, overlay = self.run, self.dataset, self.run.settings.overlay
        tracked: Tracked | None = None
        for number, (job, view) in plan.unfinished.items():
            names = self.finished.missing.pop(number, ())
            # The hands kept beside the episode, or tracked again.
            made = run.stored(dataset.output / files.episode_folder(number))
            if made is None:
                motion, calibrations = tracked = tracked or plan.track()
                made = hands_at(motion, view.timestamps_ns, view.fps), calibrations
            episode = self._demonstration(plan, job, view, *made)
            with dataset.held():
                folder = dataset.complete(episode, number)
                if {files.SHEET, files.OVERLAY} & set(names):
                    dataset.draw(episode, folder, overlay, run.progress, run.arm)
            made_now = f"episode {number} was interrupted; made now: {', '.join(names)}"
            self.dropped.remark(f"{plan.recording.source}: {made_now}")

    def _demonstration(
        self,
        plan: _Plan,
        job: EpisodeJob,
        view: Recording,
        hands: HandMotion,
        calibrations: dict[Side, Calibration],
    ) -> Demonstration:
        """Let the robot do what hands did."""
        trajectory = self.run.retarget(hands, calibrations, view.source_timestamps_ns)
        text = self.run.calibration_text(calibrations, plan.recording)
        return Demonstration(view, hands, trajectory, plan.task, text, job, plan.cut)

    def report(self) -> JobReport:
        """Return the report of the run."""
        there = self.dataset.has_episodes or bool(self.skipped)
        return JobReport(
            dataset=str(self.dataset.output) if there else None,
            seconds=time.perf_counter() - self.started,
            recorded_seconds=self.recorded_s,
            episodes=tuple(self.episodes),
            failures=tuple(self.failures),
            skipped=tuple(self.skipped),
            lost_messages=dict(self.dropped.by_topic),
            notes=self.dropped.sentences(),
            skipped_episodes=tuple(self.skipped_episodes),
            cuts=tuple(self.cuts),
        )


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
