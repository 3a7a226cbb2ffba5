"""A training run from its settings to its weights. Interrupted or killed, it resumes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import math
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.model.encoder.sources import source_kind
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.own import save_own
from acehand_core.ace.model.weights.state import LoadedWeights
from acehand_core.ace.training import batches, build, checkpoints
from acehand_core.ace.training.batches import Batch, ClipReader, LatentCache, Plan, encoder_key
from acehand_core.ace.training.config import TrainConfig
from acehand_core.ace.training.run_folder import (
    NOT_WRITTEN,
    alone,
    check_folder,
    keep_description,
    run_as,
    trained_on,
)
from acehand_core.ace.training.step import (
    SCORE,
    DivergedError,
    StepReport,
    TrainingModel,
    make_optimizer,
    optimise,
    validate,
)
from acehand_core.errors import InputError, MissingDependencyError, OutputError
from acehand_core.types import Progress

METRICS = "metrics.jsonl"


class Logs:
    """Writes numbers by step; only the first process has one. Resuming drops later lines."""

    def __init__(self, run: Path, config: TrainConfig, first_step: int) -> None:
        self.run = run
        self._file = run / METRICS
        #: Steps without an update, those before a resume included.
        self.skipped = 0.0
        self._keep_before(first_step)
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=first_step)
        self._wandb = _start_wandb(run, config) if config.log.wandb else None
        self._started = time.monotonic()

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Add one line of numbers. Raises OutputError."""
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        except OSError as error:
            raise OutputError(f"{self._file}: cannot write: {error.strerror or error}.") from error
        numbers = {name: v for name, v in values.items() if not isinstance(v, str)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def skip(self, step: int, clips: str) -> None:
        """Add a line for a step that updated nothing, with its clips. Raises OutputError."""
        self.skipped += 1
        self.write(step, {"train/skipped_steps": self.skipped, "skipped": clips})

    def close(self) -> None:
        """Finish the files."""
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()

    def _keep_before(self, first_step: int) -> None:
        if not self._file.exists():
            return
        lines = []
        for line in self._file.read_text("utf-8").splitlines():
            try:
                row = json.loads(line)
                if row["step"] < first_step or first_step < 0:
                    lines.append(line)
                    self.skipped = row.get("train/skipped_steps", self.skipped)
            except (ValueError, KeyError):  # the line that a killed process was writing
                continue
        temporary = self._file.with_suffix(".partial")
        temporary.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        temporary.replace(self._file)


def _start_wandb(run: Path, config: TrainConfig) -> Any:
    if importlib.util.find_spec("wandb") is None:
        raise MissingDependencyError(
            "log.wandb needs wandb: pip install wandb, or log.wandb=false."
        )
    import wandb

    # A resumed run draws into the same curves.
    name = run / "wandb_id"
    if not name.exists():
        name.write_text(secrets.token_hex(8), "utf-8")
    return wandb.init(project="acehand", name=config.name, id=name.read_text("utf-8").strip(),
                      dir=str(run), config=config.to_json(), resume="allow")  # fmt: skip


_VALIDATION_SEED = 1_000_003


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended: steps done, the last step's loss, the best checkpoint, the weights.

    ``signal`` is the one that asked it to stop before its last step, after saving; else None.
    """

    run: Path
    steps: int
    loss: float | None
    best: Path | None
    weights: Path | None
    signal: int | None = None


class Run:
    """Everything of a run that lives in memory; ``go`` trains to the last step.

    Raises:
        InputError: settings that do not fit each other, the data or the run's own earlier steps.
    """

    def __init__(
        self, config: TrainConfig, progress: Progress, start: LoadedWeights | None = None
    ) -> None:
        self.config, self.progress = config, progress
        self.folder = Path(config.run)

        # Before processes meet: afterwards the first one may already have written to it.
        check_folder(self.folder)
        used = config.data.used()
        if start is None:
            build.check_start(config)
        self.accelerator = _accelerator(config)
        self.plan_sizes()
        self.stores = batches.open_stores(used)
        mixture = batches.make_mixture(config.data, used, self.stores, config.data.leave_out or ())
        watched = {n: s for n, s in config.validation.sources.items() if s.root and s.weight > 0}
        self.watched: tuple[Any, dict[str, ClipStore]] | None = None
        if watched:
            opened = batches.open_stores(watched)
            self.watched = batches.make_mixture(config.data, watched, opened), opened
        for stores in (self.stores, self.watched[1] if self.watched else {}):
            batches.check_hand_models(stores, config.hand)
        self.hands = build.build_hands(config)
        self.start = build.read_start(config.model, config.start) if start is None else start
        self.reader = self._reader(self.stores, mixture)
        self.plan = Plan(
            mixture, config.seed, config.optim.steps, config.optim.clips_per_process,
            self.accelerator.num_processes, config.optim.accumulation,
            self.accelerator.process_index,
        )  # fmt: skip
        ace = build.build_model(config, self.start)
        self.bare = TrainingModel(ace, build.build_hands(config), config.solver.options())
        optimizer = make_optimizer(ace, config.optim)
        self.step = 0
        self.skipped = 0  # steps in a row, up to this one
        self.asked = 0  # by which signal to stop
        self._resume(optimizer)
        self.model, self.optimizer = self.accelerator.prepare(self.bare, optimizer)

        #: Step and score of the newest validation; a checkpoint takes it only at that very step.
        self.score: tuple[int, float] | None = None
        scores = [c.score for c in checkpoints.listed(self.folder) if c.score is not None]
        self.best = min(scores, default=math.inf)

    def plan_sizes(self) -> None:
        """Raise InputError unless the processes make the effective batch of the settings."""
        optim, running = self.config.optim, self.accelerator.num_processes
        if optim.processes != running:
            parts, rest = divmod(optim.processes * optim.accumulation, running)
            hint = "" if rest else f" (then optim.accumulation={parts} keeps the batch)"
            raise InputError(
                f"optim.processes is {optim.processes}, but {running} run; launch with torchrun "
                f"--nproc-per-node, or set optim.processes={running}{hint}."
            )

    def go(self, stop_at: int | None = None) -> RunReport:
        """Train until the last step, or ``stop_at``; write checkpoints, logs and weights.

        Where ``asked`` is set, in any process, it ends after the step at hand, with a checkpoint.

        Raises:
            DivergedError: more steps in a row than ``optim.max_skipped`` had to be skipped.
        """
        config, main = self.config, self.accelerator.is_main_process
        last = min(config.optim.steps, stop_at or config.optim.steps)
        book = Logs(self.folder, config, self.step + 1) if main else None
        for name, count in self.plan.mixture.skipped.items():
            if count and main:
                self.progress(f"{name}: {count} recordings are shorter than a window", 0, 0)
        watched = self._watched_batches()
        report: StepReport | None = None
        stopped = 0
        self.model.train()

        stream = batches.batches(self.reader, self.plan, self.step, config.data.workers)
        while self.step < last:
            report = optimise(
                self.accelerator, self.model, self.optimizer, next(stream), config.losses,
                config.optim, self.step, config.seed,
            )  # fmt: skip
            self.step += 1
            self._count_skipped(report)
            if stopped := self._asked_by_any():
                last = self.step  # it is saved below
            done = self.step == config.optim.steps
            if book is not None:
                self._log(book, report, done)
            if watched and (self.step % config.validation.every == 0 or done):
                values = validate(self.accelerator, self.model, watched, self.config.losses)
                self.score = self.step, values[SCORE]
                if book is not None:
                    book.write(self.step, {f"validation/{name}": v for name, v in values.items()})
            if self.step % config.checkpoints.every == 0 or self.step == last or self._new_best():
                self._save()

        weights = self._finish() if self.step == config.optim.steps else None
        if book is not None:
            book.close()
        best = checkpoints.best(self.folder)

        return RunReport(
            self.folder, self.step, report.loss if report else None,
            best.path if best else None, weights,
            stopped if stopped and self.step < config.optim.steps else None,
        )  # fmt: skip

    @contextlib.contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Let SIGTERM and SIGINT ask ``go`` to stop; a second one ends the process at once."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = number
            signal.signal(number, before[signal.Signals(number)])

        try:
            for number in before:
                signal.signal(number, ask)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked_by_any(self) -> int:
        """Return the signal that any process got, or 0: all must leave after the same step."""
        asked = torch.tensor([self.asked], device=self.accelerator.device)
        return int(self.accelerator.gather(asked).max())

    def _reader(self, stores: dict[str, ClipStore], mixture: Any) -> ClipReader:
        """Return what reads samples; for sources of latents, after encoding what is missing."""
        config = self.config
        source = config.model.source

        cache = None
        if source_kind(source).needs == "latents":
            if config.data.latent_cache is None:
                raise InputError(f"source {source!r} reads latents; set data.latent_cache=FOLDER.")
            if self.start is None or self.start.vae is None:
                raise InputError(f"start.weights={config.start.weights}: has no video encoder.")
            key = encoder_key(self.start.vae, config.optim.precision)
            cache = LatentCache(
                Path(config.data.latent_cache), key, config.data.window.image_frames
            )
            self._encode(cache, stores, mixture)
            if self.watched is not None:
                val_mixture, val_stores = self.watched
                self._encode(cache, val_stores, val_mixture)

        return ClipReader(stores, source, self.hands, config.left_shapedirs_fixed, cache)

    def _encode(self, cache: LatentCache, stores: dict[str, ClipStore], mixture: Any) -> None:
        clips_and_sizes = [
            (stores[name], clip, bucket.size)
            for name, buckets in mixture.buckets.items()
            for bucket in buckets
            for clip in bucket.clips
        ]
        own = clips_and_sizes[self.accelerator.process_index :: self.accelerator.num_processes]
        missing = [w for w in own if not cache.path(w[0].info_of(w[1]), w[2]).exists()]

        if missing:
            encoder = build.build_encoder(self.config, self.start).to(self.accelerator.device)
            clips = ((store.open(clip), size) for store, clip, size in missing)
            cache.ensure(
                clips, encoder, batches.resized,
                lambda done: self.progress("encoding recordings", done, len(missing)),
            )  # fmt: skip

        self.accelerator.wait_for_everyone()

    def _watched_batches(self) -> list[tuple[Batch, bool]]:
        """Return this process's part of validation; of a part that does not count, see
        ``batches.shares``."""
        if self.watched is None:
            return []
        mixture, stores = self.watched
        reader = ClipReader(
            stores, self.config.model.source, self.reader.hands, self.reader.fixed,
            self.reader.cache,
        )  # fmt: skip
        part = batches.shares(
            mixture.fixed(_VALIDATION_SEED, self.config.validation.windows),
            self.accelerator.num_processes, self.accelerator.process_index,
        )  # fmt: skip
        return [(reader.read([sample]), counts) for sample, counts in part]

    def _count_skipped(self, report: StepReport) -> None:
        self.skipped = self.skipped + 1 if report.skipped else 0
        if self.skipped > (most := self.config.optim.max_skipped):
            raise DivergedError(
                f"step {self.step}: the gradient is not finite, for the {self.skipped}. time in a "
                f"row; optim.max_skipped is {most}. Clips: {', '.join(report.skipped)}. The same "
                "command resumes from the last checkpoint, with lower rates (optim.lr_...) or "
                "without a clip (data.leave_out=[SOURCE/CLIP]) or source (weight=0) if you like."
            )

    def _log(self, book: Logs, report: StepReport, done: bool) -> None:
        if report.skipped:
            clips = ", ".join(report.skipped)
            book.skip(self.step, clips)
            self.progress(f"step {self.step} skipped, gradient not finite: {clips}", 0, 0)
            return
        self.progress(f"training, loss {report.loss:.3f}", self.step, self.config.optim.steps)
        if self.step % self.config.log.every == 0 or done or self.step == 1:
            values: dict[str, float | str] = {"train/loss": report.loss, "dataset": report.dataset}
            values["train/skipped_steps"] = book.skipped
            values |= {f"train/{name}": value for name, value in report.terms.items()}
            values |= {f"rate/{name}": value for name, value in report.rates.items()}
            book.write(self.step, values | {"gradient_norm": report.gradient_norm})

    def _new_best(self) -> bool:
        """Whether this step was validated, and is the best so far; then it is to be kept."""
        score = self._score_now()
        return self.config.checkpoints.keep_best > 0 and score is not None and score < self.best

    def _score_now(self) -> float | None:
        """Return the validation's score of this very step, if checkpoints are chosen by it.

        Where it is measured on test recordings it only is logged: a choice by them would be one of
        the results, and the newest checkpoint counts as the best.
        """
        if self.watched and any(s.info.split == "test" for s in self.watched[1].values()):
            return None
        return self.score[1] if self.score is not None and self.score[0] == self.step else None

    def _save(self) -> None:
        score = self._score_now()
        if score is not None:
            self.best = min(self.best, score)

        if self.accelerator.is_main_process:
            trained = {
                name: checkpoints.plain(parameter)
                for name, parameter in self.bare.named_parameters()
                if parameter.requires_grad
            }
            state = checkpoints.optimizer_tensors(self.bare, self.optimizer)
            checkpoints.save(
                self.folder, self.step, score, trained, state, self.config.checkpoints,
                self._write_weights if self.config.checkpoints.whole else None,
            )  # fmt: skip
        self.accelerator.wait_for_everyone()

    def _resume(self, optimizer: torch.optim.Optimizer) -> None:
        if self.accelerator.is_main_process:
            checkpoints.clean(self.folder)
            watched = {} if self.watched is None else self.watched[1]
            for change in keep_description(self.folder, self.config, self.stores, watched):
                self.progress(f"{self.folder}: resumes with {change}", 0, 0)
        self.accelerator.wait_for_everyone()
        if present := checkpoints.listed(self.folder):
            trained, state = checkpoints.read(present[-1])
            checkpoints.set_trained(self.bare, trained)
            checkpoints.set_optimizer(self.bare, optimizer, state)
            self.step = present[-1].step

    def _finish(self) -> Path | None:
        """Write the weights of the best and of the last checkpoint; every process takes part."""
        path, last = self.folder / "weights", self.folder / "weights-last"
        if self.accelerator.is_main_process:
            best = checkpoints.best(self.folder)
            if best is not None:
                newest = checkpoints.listed(self.folder)[-1]
                self._write_weights(path, self._filled(checkpoints.read(best)[0]))
                self._write_weights(last, self._filled(checkpoints.read(newest)[0]))
                if (source := self.config.model.source) in NOT_WRITTEN:
                    self.progress(f"{path}: what was learned; {source} itself is not in it", 0, 0)
        self.accelerator.wait_for_everyone()
        return path if path.exists() else None

    def _filled(self, trained: checkpoints.Tensors) -> AceModel:
        """Return a model of its own with what was learned."""
        model = build.build_model(self.config, self.start)
        holder = TrainingModel(model, self.bare.hands, self.bare.options)
        checkpoints.set_trained(holder, trained)
        return model

    def _write_weights(self, path: Path, model: AceModel | None = None) -> None:
        model = model or self.bare.model
        run = Path(self.config.run)
        data, usage = trained_on(run, self.start), run_as(run, self.config)
        save_own(path, build.weights_of(model, self.start, data, usage), overwrite=True)


def train(config: TrainConfig, progress: Progress, stop_at: int | None = None) -> RunReport:
    """Run training, or resume it. Raises AcehandError."""
    with alone(Path(config.run)):
        run = Run(config, progress)
        with run.heeding_signals():
            return run.go(stop_at)


def _accelerator(config: TrainConfig) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', and torch finds none; use device=auto or cpu.")

    # Readouts that no term of a source sees get no gradient in its batches.
    kwargs = [DistributedDataParallelKwargs(find_unused_parameters=True)]
    return Accelerator(
        cpu=config.device == "cpu", mixed_precision="no", kwargs_handlers=kwargs,
        step_scheduler_with_optimizer=False,
    )  # fmt: skip
