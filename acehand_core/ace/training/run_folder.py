"""The folder of a run: its lock, its record of settings and data, and its exported weights."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.model.config import InferenceConfig
from acehand_core.ace.model.weights.own import save_own
from acehand_core.ace.model.weights.state import (
    LoadedWeights,
    TrainingData,
    TrainingSource,
    join_training,
)
from acehand_core.ace.training import build, checkpoints
from acehand_core.ace.training.checkpoints import Checkpoint
from acehand_core.ace.training.config import StartConfig, TrainConfig
from acehand_core.atomic import DirectoryLock, atomic_path, output_errors
from acehand_core.errors import InputError, OutputError
from acehand_core.safe_files import content_sha256
from acehand_core.user_files import structured

#: Settings that may differ when a run resumes; "parallel" is of older versions.
_FREE_OPTIM = ("clips_per_process", "processes", "accumulation", "parallel", "checkpointing")
_FREE = {"run", "device", "log", "checkpoints", "name", *(f"optim.{n}" for n in _FREE_OPTIM)}
#: Names in config.json that identify the folder of a run.
_OURS = {"hand", "solver", "losses", "optim", "checkpoints", "left_shapedirs_fixed"}

_LIBRARIES = ("acehand", "torch", "accelerate", "diffusers", "peft", "numpy", "hydra-core", "av")

#: Errors of a missing, damaged or older provenance.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError)

#: Sources with frozen weights that are not written.
NOT_WRITTEN = ("vjepa2", "videomae")


@contextlib.contextmanager
def alone(run: Path) -> Iterator[None]:
    """Lock a run's folder against a second training."""
    if os.environ.get("RANK", "0") != "0":  # the first process of a launch holds the lock
        yield
        return
    with output_errors(run):
        run.mkdir(parents=True, exist_ok=True)
    try:
        with DirectoryLock(run):
            yield
    finally:
        with contextlib.suppress(OSError):  # only an empty folder
            run.rmdir()


def check_folder(run: Path) -> None:
    """Raise OutputError for a folder that holds anything but a run."""
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
    folder: Path, config: TrainConfig, stores: dict[str, ClipStore], watched: dict[str, ClipStore]
) -> list[str]:
    """Write settings and provenance, or check them against an earlier start of the run.

    Returns the permitted changes of settings as text; provenance has one entry per start.
    """
    starts: list[dict[str, Any]] = []
    now = json.loads(json.dumps(config.to_json()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = checkpoints.listed(folder)
        entry = _start_entry(config, stores, watched, earlier[-1].step if earlier else 0)
        if earlier:
            starts = json.loads((folder / "provenance.json").read_text("utf-8"))["starts"]
            before = json.loads((folder / "config.json").read_text("utf-8"))
            differences, entry["changes"] = _differences(before, now)
            dropped = {n for n, s in now["data"]["sources"].items() if s["weight"] == 0}
            differences += _other_data(starts[0], entry, dropped)
            if differences:
                raise InputError(
                    f"{folder}: holds a run with other settings ({'; '.join(differences)}); use "
                    "the same, or another run=FOLDER."
                )
        provenance = {"starts": [*starts, entry]}
        for name, value in (("config.json", now), ("provenance.json", provenance)):
            with atomic_path(folder / name, overwrite=True) as partial:
                partial.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
        return entry.get("changes", [])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OutputError(f"{folder}: cannot be used for a run: {error}.") from error


def _start_entry(
    config: TrainConfig, stores: dict[str, ClipStore], watched: dict[str, ClipStore], step: int
) -> dict[str, Any]:
    """Return the provenance of a start at ``step``: code, versions, machine, seed, data."""
    versions = {}
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "step": step,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": config.seed,
        "git": _git(),
        "versions": versions,
        "python": sys.version.split()[0],
        "machine": {"system": platform.platform(), "processor": platform.machine(), "gpus": gpus},
        "data": _described(stores),
        "validation": _described(watched),
    }


def _described(stores: Mapping[str, ClipStore]) -> dict[str, Any]:
    described = {}
    for name, store in stores.items():
        infos = store.infos()
        # Hashes as listed in clip.json: the files themselves may be terabytes.
        files = json.dumps([[n, sorted(info.files.items())] for n, info in infos.items()])
        described[name] = {
            "root": str(store.root),
            "store_sha256": content_sha256(store.root / "store.json"),
            "clips": len(store),
            "clips_sha256": hashlib.sha256(files.encode()).hexdigest(),
            "pictures": store.info.pictures,
            "widths": sorted({info.width for info in infos.values()}),
            "license": store.info.license,
        }
    return described


def _other_data(
    old: Mapping[str, Any], new: Mapping[str, Any], dropped: Collection[str]
) -> list[str]:
    """Return the differences of two starts' data by name, except roots and ``dropped`` sources."""
    differences = []
    for group in ("data", "validation"):
        then, now = old.get(group, {}), new[group]
        if group == "validation" and not (then and now):
            continue  # validation started or ended: no scores to compare
        for name in sorted({*then, *now}):
            where = f"{group}.sources.{name}"
            a, b = then.get(name), now.get(name)
            if group == "data" and b is None and name in dropped:
                continue
            if a is None or b is None:
                differences.append(f"{where}: only {'now' if a is None else 'then'}")
            elif any(a[key] != b[key] for key in ("store_sha256", "clips_sha256")):
                differences.append(
                    f"{where}: other clips ({a['clips']} in {a['root']} then, {b['clips']} in "
                    f"{b['root']} now)"
                )
    return differences


def _git(file: Path = Path(__file__)) -> dict[str, Any] | None:
    """Return the package's commit and whether files differ; None outside its own checkout."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(file.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", "--", file.name)
        changed = ask("status", "--porcelain", "--", str(file.parents[2]))
        return {"commit": ask("rev-parse", "HEAD"), "changed": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None


def trained_on(folder: Path, start: LoadedWeights | None) -> TrainingData:
    """Return the datasets of a run and of its initial weights; None without a provenance."""
    try:
        sources = [
            TrainingSource(
                name, entry.get("pictures", "unknown"), entry["store_sha256"],
                entry["clips_sha256"], entry["clips"], entry["license"],
            )
            for name, entry in sorted(_first_data(folder).items())
        ]  # fmt: skip
    except _UNREADABLE:
        return None

    before: tuple[TrainingSource, ...] = ()
    if start is not None and start.decoder is not None:
        before = start.training_data or (TrainingSource("weights that it started from", "unknown"),)
    return join_training(before, sources)


def run_as(folder: Path, config: TrainConfig) -> InferenceConfig:
    """Return the inference settings of a run: those of training, and a width if all have one."""
    try:
        stored = {name: data["widths"] for name, data in _first_data(folder).items()}
    except _UNREADABLE:
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


def _first_data(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "provenance.json").read_text("utf-8"))["starts"][0]["data"]


def _differences(
    old: dict[str, Any], new: dict[str, Any], where: str = ""
) -> tuple[list[str], list[str]]:
    """Return the forbidden and the permitted differences of two settings, as text."""
    differences: list[str] = []
    changes: list[str] = []
    for name in {**old, **new}:
        full = f"{where}{name}"
        if full in _FREE or name in ("workers", "latent_cache", "root"):
            continue
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            inner = _differences(a, b, f"{full}.")
            differences, changes = differences + inner[0], changes + inner[1]
        elif a != b:
            kind = changes if _may_change(full, a, b) else differences
            kind.append(f"{full}: {a!r} then, {b!r} now")

    if where == "optim.":
        batch = [v["clips_per_process"] * v["processes"] * v["accumulation"] for v in (old, new)]
        if batch[0] != batch[1]:
            differences.append(f"clips per step: {batch[0]} then, {batch[1]} now")
    return differences, changes


def _may_change(name: str, old: Any, new: Any) -> bool:
    """Whether a resumed run may change a setting, to get past gradients that are not finite."""
    if name == "data.leave_out":
        return set(new or ()) >= set(old or ())
    if name.startswith("data.sources.") and name.endswith(".weight"):
        return new == 0
    # Older runs lack max_skipped.
    return name == "optim.max_skipped" or (name.startswith("optim.lr_") and new < old)


def export(
    path: Path,
    output: Path,
    step: int | None = None,
    moved: StartConfig | None = None,
    overwrite: bool = False,
) -> Checkpoint:
    """Write the weights of a checkpoint in acehand's format; return the checkpoint.

    Args:
        path: a run's folder, or one of its checkpoints.
        step: default the best by validation, else the newest.
        moved: new locations of the start's frozen parts.

    Raises:
        InputError: no run, no such checkpoint, or frozen parts are missing.
        SchemaError: the checkpoint is damaged or of another model. OutputError.
    """
    run, named = path, checkpoints.step_of(path)
    if named is not None:
        run, step = path.resolve().parent.parent, named
    try:
        settings = json.loads((run / "config.json").read_text("utf-8"))
        settings["optim"].pop("parallel", None)
        for name in ("pictures", "pictures_every"):  # of older versions
            settings["log"].pop(name, None)
        config = structured(TrainConfig, settings, "settings")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run / 'config.json'}: not the configuration of a run: {error}."
        ) from error

    available = checkpoints.listed(run)
    checkpoint = checkpoints.best(run)
    if step is not None:
        checkpoint = next((c for c in available if c.step == step), None)
    if checkpoint is None:
        steps = ", ".join(str(c.step) for c in available) or "none"
        raise InputError(f"{run}: no checkpoint {'' if step is None else step}; there: {steps}.")

    elsewhere = {name: path for name, path in asdict(moved or StartConfig()).items() if path}
    start = build.read_start(config.model, replace(config.start, **elsewhere))
    model = build.build_model(config, start)
    trained, _ = checkpoints.read(checkpoint)
    checkpoints.set_trained(nn.ModuleDict({"model": model}), trained)
    weights = build.weights_of(model, start, trained_on(run, start), run_as(run, config))
    save_own(output, weights, overwrite=overwrite)
    return checkpoint
