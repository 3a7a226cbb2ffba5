"""A training run from its settings to its weights. Interrupted or killed, it resumes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import secrets
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.clips.windows import Mixture
from acehand_core.ace.model.encoder.sources import source_kind
from acehand_core.ace.model.encoder.vae import VideoEncoder
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.own import save_own
from acehand_core.ace.model.weights.state import LoadedWeights
from acehand_core.ace.model.weights.tables import Tensors
from acehand_core.ace.training import batches, build, checkpoints, run_folder, step
from acehand_core.ace.training.batches import Batch, ClipReader, LatentCache, SamplingPlan
from acehand_core.ace.training.config import TrainConfig
from acehand_core.ace.training.step import SCORE, DivergedError, StepReport, TrainingModel
from acehand_core.atomic import atomic_path, output_errors
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.types import Progress

_VALIDATION_SEED = 1_000_003


class Logs:
    """Metrics by step, of the first process; a resumed run replaces later lines."""

    def __init__(self, run: Path, config: TrainConfig, first_step: int) -> None:
        self._file = run / "metrics.jsonl"
        #: Steps without an update, also before a resume.
        self.skipped = 0.0
        self._keep_before(first_step)
        self._board: Any = None
        if importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=first_step)
        self._wandb: Any = None

        if config.log.wandb:
            try:
                import wandb
            except ImportError as error:
                raise MissingDependencyError(
                    "log.wandb needs wandb: pip install wandb, or log.wandb=false."
                ) from error
            name = run / "wandb_id"  # a resumed run continues its curves
            if not name.exists():
                name.write_text(secrets.token_hex(8), "utf-8")
            self._wandb = wandb.init(
                project="acehand", name=config.name, id=name.read_text("utf-8").strip(),
                dir=str(run), config=config.to_json(), resume="allow",
            )  # fmt: skip

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """Add one line of metrics. Raises OutputError."""
        with output_errors(self._file), self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        numbers = {name: v for name, v in values.items() if not isinstance(v, str)}
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
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
                if row["step"] < first_step:
                    lines.append(line)
                    self.skipped = row.get("train/skipped_steps", self.skipped)
            except (ValueError, KeyError):  # cut off when the process was killed
                continue
        with atomic_path(self._file, overwrite=True) as partial:
            partial.write_text("".join(f"{line}\n" for line in lines), "utf-8")


@dataclass(frozen=True, slots=True)
class RunReport:
    """The outcome of a run; ``loss`` of its last step, ``signal`` that stopped it, or None."""

    run: Path
    steps: int
    loss: float | None
    best: Path | None
    weights: Path | None
    signal: int | None = None


class Run:
    """A training run in memory; ``go`` trains. Raises InputError for contradictory settings."""

    def __init__(
        self, config: TrainConfig, progress: Progress, start: LoadedWeights | None = None
    ) -> None:
        self.config, self.progress = config, progress
        self.folder = Path(config.run)

        # Before the processes synchronise: afterwards the first may already write to it.
        run_folder.check_folder(self.folder)
        used = config.data.used()
        if start is None:
            build.check_start(config)
        self.accelerator = _accelerator(config)
        optim, running = config.optim, self.accelerator.num_processes
        if optim.processes != running:
            parts, rest = divmod(optim.processes * optim.accumulation, running)
            hint = "" if rest else f" (then optim.accumulation={parts} keeps the batch)"
            raise InputError(
                f"optim.processes is {optim.processes}, but {running} run; launch with torchrun "
                f"--nproc-per-node, or set optim.processes={running}{hint}."
            )

        self.stores = batches.open_stores(used)
        mixture = batches.make_mixture(config.data, used, self.stores, config.data.leave_out or ())
        watched = {n: s for n, s in config.validation.sources.items() if s.root and s.weight > 0}
        self.watched_stores = batches.open_stores(watched)
        self.watched = None
        if watched:
            self.watched = batches.make_mixture(config.data, watched, self.watched_stores)
        for stores in (self.stores, self.watched_stores):
            batches.check_hand_models(stores, config.hand)

        self.hands = build.build_hands(config)
        self.start = build.read_start(config.model, config.start) if start is None else start
        self.cache = self._latents(mixture)
        self.reader = self._reader(self.stores)
        self.plan = SamplingPlan(
            mixture, config.seed, optim.steps, optim.clips_per_process, running,
            optim.accumulation, self.accelerator.process_index,
        )  # fmt: skip
        ace = build.build_model(config, self.start)
        self.bare = TrainingModel(ace, self.hands, config.solver)
        optimizer = step.make_optimizer(ace, optim)
        self.step = 0
        self.skipped = 0  # consecutive steps, up to this one
        self.asked = 0  # the signal that asks to stop
        self._resume(optimizer)
        self.model, self.optimizer = self.accelerator.prepare(self.bare, optimizer)

        #: Step and score of the newest validation.
        self.score: tuple[int, float] | None = None
        scores = [c.score for c in checkpoints.listed(self.folder) if c.score is not None]
        self.best = min(scores, default=math.inf)

    def go(self, stop_at: int | None = None) -> RunReport:
        """Train to the last step or ``stop_at``; write checkpoints, logs and weights.

        When any process sets ``asked``, the run stops after that step. Raises DivergedError for
        more than ``optim.max_skipped`` skipped steps in a row.
        """
        config, main = self.config, self.accelerator.is_main_process
        last = min(config.optim.steps, stop_at or config.optim.steps)
        book = Logs(self.folder, config, self.step + 1) if main else None
        for name, count in self.plan.mixture.skipped.items():
            if count and main:
                self.progress(f"{name}: {count} recordings are shorter than a window", 0, 0)

        # This process's validation windows and whether each counts.
        watched: list[tuple[Batch, bool]] = []
        if self.watched is not None:
            reader = self._reader(self.watched_stores)
            part = batches.shares(
                self.watched.fixed(_VALIDATION_SEED, config.validation.windows),
                self.accelerator.num_processes,
                self.accelerator.process_index,
            )
            watched = [(reader.read([sample]), counts) for sample, counts in part]
        report: StepReport | None = None
        stopped = 0
        self.model.train()

        stream = batches.batches(self.reader, self.plan, self.step, config.data.workers)
        trained = self.accelerator, self.model, self.optimizer
        while self.step < last:
            report = step.optimise(
                *trained, next(stream), config.losses, config.optim, self.step, config.seed
            )
            self.step += 1
            self._count_skipped(report)
            # When any process was asked, all stop after the same step.
            asked = torch.tensor([self.asked], device=self.accelerator.device)
            if stopped := int(self.accelerator.gather(asked).max()):
                last = self.step
            done = self.step == config.optim.steps
            if book is not None:
                self._log(book, report, done)
            if watched and (self.step % config.validation.every == 0 or done):
                values = step.validate(self.accelerator, self.model, watched, self.config.losses)
                self.score = self.step, values[SCORE]
                if book is not None:
                    book.write(self.step, {f"validation/{name}": v for name, v in values.items()})
            score, keep = self._score_now(), config.checkpoints
            new_best = keep.keep_best > 0 and score is not None and score < self.best
            if self.step % keep.every == 0 or self.step == last or new_best:
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
        """Let SIGTERM and SIGINT stop ``go`` after a step; a second one ends the process."""
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

    def _reader(self, stores: dict[str, ClipStore]) -> ClipReader:
        config = self.config
        source, fixed = config.model.source, config.left_shapedirs_fixed
        return ClipReader(stores, source, self.hands, fixed, self.cache)

    def _latents(self, mixture: Mixture) -> LatentCache | None:
        """Return the cache of latents, complete; None for sources that read pictures."""
        config, data = self.config, self.config.data
        if source_kind(config.model.source).needs != "latents" or data.latent_cache is None:
            return None
        if self.start is None or self.start.vae is None:
            raise InputError(f"start.weights={config.start.weights}: has no video encoder.")
        key = batches.encoder_key(self.start.vae, config.optim.precision)
        cache = LatentCache(Path(data.latent_cache), key, data.window.image_frames)
        self._encode(cache, self.start.vae, self.stores, mixture)
        if self.watched is not None:
            self._encode(cache, self.start.vae, self.watched_stores, self.watched)
        return cache

    def _encode(
        self, cache: LatentCache, vae: Tensors, stores: dict[str, ClipStore], mixture: Mixture
    ) -> None:
        clips_and_sizes = [
            (stores[name], clip, bucket.size)
            for name, buckets in mixture.buckets.items()
            for bucket in buckets
            for clip in bucket.clips
        ]
        own = clips_and_sizes[self.accelerator.process_index :: self.accelerator.num_processes]
        missing = [w for w in own if not cache.path(w[0].info_of(w[1]), w[2]).exists()]

        if missing:
            config, device = self.config, self.accelerator.device
            encoder = VideoEncoder.from_tensors(config.model.vae, vae, config.optim.precision)
            cache.ensure(
                ((store.open(clip), size) for store, clip, size in missing),
                encoder.to(device),
                lambda done: self.progress("encoding recordings", done, len(missing)),
            )
        self.accelerator.wait_for_everyone()

    def _count_skipped(self, report: StepReport) -> None:
        self.skipped = self.skipped + 1 if report.skipped else 0
        if self.skipped > (most := self.config.optim.max_skipped):
            raise DivergedError(
                f"step {self.step}: the gradient is not finite for the {self.skipped}. consecutive "
                f"step; optim.max_skipped is {most}. Clips: {', '.join(report.skipped)}. The same "
                "command resumes from the last checkpoint; you may lower the rates (optim.lr_...), "
                "drop a clip (data.leave_out=[SOURCE/CLIP]) or a source (weight=0)."
            )

    def _log(self, book: Logs, report: StepReport, done: bool) -> None:
        if report.skipped:
            book.skipped += 1
            clips = ", ".join(report.skipped)
            book.write(self.step, {"train/skipped_steps": book.skipped, "skipped": clips})
            self.progress(f"step {self.step} skipped, gradient not finite: {clips}", 0, 0)
            return
        self.progress(f"training, loss {report.loss:.3f}", self.step, self.config.optim.steps)
        if self.step % self.config.log.every == 0 or done or self.step == 1:
            values: dict[str, float | str] = {"train/loss": report.loss, "dataset": report.dataset}
            values["train/skipped_steps"] = book.skipped
            values |= {f"train/{name}": value for name, value in report.terms.items()}
            values |= {f"rate/{name}": value for name, value in report.rates.items()}
            book.write(self.step, values | {"gradient_norm": report.gradient_norm})

    def _score_now(self) -> float | None:
        """Return this step's validation score; None on test recordings, which select nothing."""
        if any(store.info.split == "test" for store in self.watched_stores.values()):
            return None
        return self.score[1] if self.score is not None and self.score[0] == self.step else None

    def _save(self) -> None:
        score = self._score_now()
        if score is not None:
            self.best = min(self.best, score)

        if self.accelerator.is_main_process:
            trained = checkpoints.plain(dict(step.trained(self.bare)))
            state = checkpoints.optimizer_tensors(self.bare, self.optimizer)
            settings = self.config.checkpoints
            whole = self._write_weights if settings.whole else None
            checkpoints.save(self.folder, self.step, score, trained, state, settings, whole)
        self.accelerator.wait_for_everyone()

    def _resume(self, optimizer: torch.optim.Optimizer) -> None:
        if self.accelerator.is_main_process:
            checkpoints.clean(self.folder)
            stores = self.stores, self.watched_stores
            for change in run_folder.keep_description(self.folder, self.config, *stores):
                self.progress(f"{self.folder}: resumes with {change}", 0, 0)
        self.accelerator.wait_for_everyone()
        if present := checkpoints.listed(self.folder):
            trained, state = checkpoints.read(present[-1])
            checkpoints.set_trained(self.bare, trained)
            checkpoints.set_optimizer(self.bare, optimizer, state)
            self.step = present[-1].step

    def _finish(self) -> Path | None:
        """Write the weights of the best and of the last checkpoint; every process takes part."""
        path = self.folder / "weights"
        if self.accelerator.is_main_process and (best := checkpoints.best(self.folder)) is not None:
            newest = checkpoints.listed(self.folder)[-1]
            for name, checkpoint in (("weights", best), ("weights-last", newest)):
                model = build.build_model(self.config, self.start)
                holder = torch.nn.ModuleDict({"model": model})
                checkpoints.set_trained(holder, checkpoints.read(checkpoint)[0])
                self._write_weights(self.folder / name, model)
            if (source := self.config.model.source) in run_folder.NOT_WRITTEN:
                self.progress(f"{path}: what was learned; {source} itself is not in it", 0, 0)
        self.accelerator.wait_for_everyone()
        return path if path.exists() else None

    def _write_weights(self, path: Path, model: AceModel | None = None) -> None:
        run = Path(self.config.run)
        data, usage = run_folder.trained_on(run, self.start), run_folder.run_as(run, self.config)
        weights = build.weights_of(model or self.bare.model, self.start, data, usage)
        save_own(path, weights, overwrite=True)


def train(config: TrainConfig, progress: Progress, stop_at: int | None = None) -> RunReport:
    """Start training or resume it. Raises AcehandError."""
    with run_folder.alone(Path(config.run)):
        run = Run(config, progress)
        with run.heeding_signals():
            return run.go(stop_at)


def _accelerator(config: TrainConfig) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device is 'cuda', but torch finds no GPU; use device=auto or cpu.")

    # Heads without a loss term for a source get no gradient in its batches.
    kwargs = [DistributedDataParallelKwargs(find_unused_parameters=True)]
    return Accelerator(
        cpu=config.device == "cpu",
        mixed_precision="no",
        kwargs_handlers=kwargs,
        step_scheduler_with_optimizer=False,
    )
