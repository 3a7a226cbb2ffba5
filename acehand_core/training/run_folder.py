"""The folder of a run: one training at a time, of one configuration and one set of data."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acehand_core.atomic import DirectoryLock, atomic_path, output_errors
from acehand_core.datasets.clips.store import ClipStore
from acehand_core.errors import InputError, OutputError
from acehand_core.model.config import InferenceConfig
from acehand_core.model.weights.state import (
    LoadedWeights,
    TrainingData,
    TrainingSource,
    join_training,
)
from acehand_core.training import checkpoints, logs
from acehand_core.training.config import TrainConfig

#: What may differ between a run and its continuation.
_FREE = ("run", "device", "log", "checkpoints", "name")
_FREE_OPTIM = ("clips_per_process", "processes", "accumulation", "parallel", "checkpointing")
#: Some names of a run's config.json, by which its folder is known.
_OURS = {"hand", "solver", "losses", "optim", "checkpoints", "left_shapedirs_fixed"}


@contextlib.contextmanager
def alone(run: Path) -> Iterator[None]:
    """Keep a second training, which would mix its steps into ours, out of a run's folder."""
    if os.environ.get("RANK", "0") != "0":  # the first process of a launch holds it for all
        yield
        return
    with output_errors(run):
        run.mkdir(parents=True, exist_ok=True)
    try:
        with DirectoryLock(run):
            yield
    finally:
        with contextlib.suppress(OSError):  # refused before anything was written
            run.rmdir()


def check_folder(run: Path) -> None:
    """Raise OutputError for a folder that holds something else than a run of ours."""
    if run.exists() and not run.is_dir():
        raise OutputError(f"{run}: a file; give run=FOLDER.")
    if not run.is_dir() or all(path.name.startswith(".") for path in run.iterdir()):
        return
    try:
        known = set(json.loads((run / "config.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        known = set()
    if not known >= _OURS:
        raise OutputError(f"{run}: not empty and not a training run; choose another run=FOLDER.")


def keep_description(
    folder: Path,
    config: TrainConfig,
    stores: dict[str, ClipStore],
    watched: dict[str, ClipStore],
) -> None:
    """Write config and provenance of a new run; of an old one, check that it is the same.

    Provenance has one entry per start, each with the step that it went on from.
    """
    path = folder / "config.json"
    starts: list[dict[str, Any]] = []
    now = json.loads(json.dumps(config.to_json()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = checkpoints.listed(folder)
        entry = logs.describe(config, stores, watched, there[-1].step if there else 0)
        if there:
            starts = json.loads((folder / "provenance.json").read_text("utf-8"))["starts"]
            differences = _differences(json.loads(path.read_text("utf-8")), now)
            differences += logs.other_data(starts[0], entry)
            if differences:
                raise InputError(
                    f"{folder}: holds a run with other settings ({'; '.join(differences)}); use "
                    "the same, or another run=FOLDER."
                )
        for name, value in (
            ("config.json", now),
            ("provenance.json", {"starts": [*starts, entry]}),
        ):
            with atomic_path(folder / name, overwrite=True) as partial:
                partial.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OutputError(f"{folder}: cannot be used for a run: {error}.") from error


def trained_on(folder: Path, start: LoadedWeights | None) -> TrainingData:
    """Return the datasets of a run, and of the weights that it started from.

    None without a provenance. A start without a decoder is a backbone, which never saw hands.
    """
    try:
        found = json.loads((folder / "provenance.json").read_text("utf-8"))["starts"][0]["data"]
        sources = [
            TrainingSource(
                name, entry.get("pictures", "unknown"), entry["store_sha256"],
                entry["clips_sha256"], entry["clips"], entry["license"],
            )
            for name, entry in sorted(found.items())
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    before: TrainingData = ()
    if start is not None and start.decoder is not None:
        before = start.training_data or (TrainingSource("weights that it started from", "unknown"),)
    return join_training(before, sources)


def run_as(folder: Path, config: TrainConfig) -> InferenceConfig:
    """Return how the model of a run is to be run: as it was trained.

    The width is told where all pictures were encoded at one.
    """
    try:
        entry = json.loads((folder / "provenance.json").read_text("utf-8"))["starts"][0]["data"]
        stored = {name: data["widths"] for name, data in entry.items()}
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        stored = {}
    widths = set()
    for name, source in config.data.sources.items():
        if source.weight > 0:
            own = stored.get(name, (None,))
            widths |= {source.encode_width} if source.encode_width else set(own)
    return InferenceConfig(
        **asdict(config.solver),
        hand_model=config.hand,
        encode_width=widths.pop() if len(widths) == 1 else None,
        window_latents=config.data.window.latents,
    )


def _differences(old: dict[str, Any], new: dict[str, Any], where: str = "") -> list[str]:
    out = []
    for name in {**old, **new}:
        full = f"{where}{name}"
        if full in _FREE or name in ("workers", "latent_cache", "root"):
            continue
        if where == "optim." and name in _FREE_OPTIM:
            continue
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            out += _differences(a, b, f"{full}.")
        elif a != b:
            out.append(f"{full}: {a!r} then, {b!r} now")
    if where == "optim.":
        batch = [v["clips_per_process"] * v["processes"] * v["accumulation"] for v in (old, new)]
        if batch[0] != batch[1]:
            out.append(f"clips per step: {batch[0]} then, {batch[1]} now")
    return out
