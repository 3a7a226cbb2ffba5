"""What a run leaves to read: metrics.jsonl, TensorBoard, wandb if asked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acehand_core.ace.training.config import TrainConfig
from acehand_core.errors import MissingDependencyError, OutputError

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
