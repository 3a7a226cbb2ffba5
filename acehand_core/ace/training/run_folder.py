"""The folder of a run: one training at a time, of the same settings and data; its weights.

``alone`` and ``keep_description`` guard it, ``trained_on`` and ``run_as`` read what weights must
say about themselves, and ``export`` writes the weights of any checkpoint, finished run or not.
"""

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
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.own import save_own
from acehand_core.ace.model.weights.state import (
    LoadedWeights,
    TrainingData,
    TrainingSource,
    join_training,
)
from acehand_core.ace.training import build, checkpoints
from acehand_core.ace.training.checkpoints import Checkpoint
from acehand_core.ace.training.compose import read_settings
from acehand_core.ace.training.config import StartConfig, TrainConfig
from acehand_core.atomic import DirectoryLock, atomic_path, output_errors
from acehand_core.errors import InputError, OutputError
from acehand_core.safe_files import content_sha256

#: What may differ between a run and its continuation.
_FREE = ("run", "device", "log", "checkpoints", "name")
#: "parallel" is a setting of older runs.
_FREE_OPTIM = ("clips_per_process", "processes", "accumulation", "parallel", "checkpointing")
#: Some names of a run's config.json, by which its folder is known.
_OURS = {"hand", "solver", "losses", "optim", "checkpoints", "left_shapedirs_fixed"}

_LIBRARIES = ("acehand", "torch", "accelerate", "diffusers", "peft", "numpy", "hydra-core", "av")


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
    folder: Path, config: TrainConfig, stores: dict[str, ClipStore], watched: dict[str, ClipStore]
) -> list[str]:
    """Write config and provenance of a new run; of an old one, check that it is the same.

    Provenance has one entry per start, each with the step that it resumed from and what changed of
    the settings that may: those changes are returned, in words.
    """
    path = folder / "config.json"
    starts: list[dict[str, Any]] = []

    now = json.loads(json.dumps(config.to_json()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = checkpoints.listed(folder)
        entry = describe(config, stores, watched, there[-1].step if there else 0)
        if there:
            starts = json.loads((folder / "provenance.json").read_text("utf-8"))["starts"]
            before = json.loads(path.read_text("utf-8"))
            differences, entry["changes"] = _differences(before, now)
            dropped = {n for n, s in now["data"]["sources"].items() if s["weight"] == 0}
            differences += other_data(starts[0], entry, dropped)
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
        return entry.get("changes", [])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OutputError(f"{folder}: cannot be used for a run: {error}.") from error


def describe(
    config: TrainConfig,
    stores: Mapping[str, ClipStore],
    watched: Mapping[str, ClipStore] | None = None,
    step: int = 0,
) -> dict[str, Any]:
    """Return what makes a start of a run repeatable: code, versions, machine, seed, data.

    ``watched``: the stores of validation. ``step``: steps that were done already.
    """
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue

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
        "validation": _described(watched or {}),
    }  # fmt: skip


def _described(stores: Mapping[str, ClipStore]) -> dict[str, Any]:
    return {
        name: {
            "root": str(store.root),
            "store_sha256": content_sha256(store.root / "store.json"),
            "clips": len(store),
            # The files' hashes as clip.json states them; the files themselves may be terabytes.
            "clips_sha256": hashlib.sha256(
                json.dumps(
                    [[n, sorted(i.files.items())] for n, i in store.infos().items()]
                ).encode()
            ).hexdigest(),
            "pictures": store.info.pictures,
            "widths": sorted({info.width for info in store.infos().values()}),
            "license": store.info.license,
        }
        for name, store in stores.items()
    }


def other_data(
    old: Mapping[str, Any], new: Mapping[str, Any], dropped: Collection[str] = ()
) -> list[str]:
    """Return what differs between the data of two starts, by name.

    Where it lies does not count, nor does a source of training that was ``dropped`` since.
    """
    differences = []
    for group in ("data", "validation"):
        then, now = old.get(group, {}), new[group]
        if group == "validation" and not (then and now):
            continue  # begun or given up meanwhile: no two scores to compare
        where = "data.sources" if group == "data" else "validation.sources"
        for name in sorted({*then, *now}):
            a, b = then.get(name), now.get(name)
            if group == "data" and b is None and name in dropped:
                continue
            if a is None or b is None:
                differences.append(
                    f"{where}.{name}: {'not there' if a is None else 'there'} then, "
                    f"{'not there' if b is None else 'there'} now"
                )
            elif any(a[key] != b[key] for key in ("store_sha256", "clips_sha256")):
                differences.append(
                    f"{where}.{name}: other clips ({a['clips']} in {a['root']} then, "
                    f"{b['clips']} in {b['root']} now)"
                )

    return differences


def _git(file: Path = Path(__file__)) -> dict[str, Any] | None:
    """Return commit and whether the package differs from it; None outside a checkout of it.

    A package installed below someone else's checkout does not belong to that one.
    """

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
    """Return the datasets of a run, and of the weights that it started from.

    None without a provenance. A start without a decoder is a backbone, which never saw hands.
    """
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
    """Return how the model of a run is to be run: as it was trained.

    The width is recorded where all pictures were encoded at the same one.
    """
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


#: What a provenance that is missing, damaged or of another form raises.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError)


def _first_data(folder: Path) -> dict[str, Any]:
    """Return the datasets of a run's first start."""
    return json.loads((folder / "provenance.json").read_text("utf-8"))["starts"][0]["data"]


def _differences(
    old: dict[str, Any], new: dict[str, Any], where: str = ""
) -> tuple[list[str], list[str]]:
    """Return what differs between two settings: what must not, and what may but is to be told."""
    differences: list[str] = []
    changes: list[str] = []
    for name in {**old, **new}:
        full = f"{where}{name}"
        if full in _FREE or name in ("workers", "latent_cache", "root"):
            continue
        if where == "optim." and name in _FREE_OPTIM:
            continue
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            inner = _differences(a, b, f"{full}.")
            differences, changes = differences + inner[0], changes + inner[1]
        elif a != b:
            told = changes if _may_change(full, a, b) else differences
            told.append(f"{full}: {a!r} then, {b!r} now")

    if where == "optim.":
        batch = [v["clips_per_process"] * v["processes"] * v["accumulation"] for v in (old, new)]
        if batch[0] != batch[1]:
            differences.append(f"clips per step: {batch[0]} then, {batch[1]} now")
    return differences, changes


def _may_change(name: str, old: Any, new: Any) -> bool:
    """Whether a change is one that a run may need to get past gradients that are not finite."""
    if name == "data.leave_out":
        return set(new or ()) >= set(old or ())
    if name.startswith("data.sources.") and name.endswith(".weight"):
        return new == 0
    # Settings of an older run lack it.
    return name == "optim.max_skipped" or (name.startswith("optim.lr_") and new < old)


#: Sources whose own weights are not written: they are frozen and read from where they came from.
NOT_WRITTEN = ("vjepa2", "videomae")


def export(
    path: Path,
    output: Path,
    step: int | None = None,
    moved: StartConfig | None = None,
    overwrite: bool = False,
) -> Checkpoint:
    """Write the weights of a checkpoint, in our format; return the checkpoint.

    Args:
        path: a run's folder, or one of its checkpoints.
        step: which checkpoint of a run; default the best by validation, else the newest.
        moved: where frozen pieces of the start lie now, if not where the run found them.

    Raises:
        InputError: no run or no such checkpoint, or the frozen pieces are not there.
        SchemaError: the checkpoint is damaged, or of another model. OutputError.
    """
    run, named = path, checkpoints.step_of(path)
    if named is not None:
        run, step = path.resolve().parent.parent, named
    try:
        settings = json.loads((run / "config.json").read_text("utf-8"))
        settings["optim"].pop("parallel", None)
        for name in ("pictures", "pictures_every"):  # they were drawn by older versions
            settings["log"].pop(name, None)
        config = read_settings(settings)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{run / 'config.json'}: not the configuration of a run: {error}."
        ) from error

    there = checkpoints.listed(run)
    checkpoint = checkpoints.best(run)
    if step is not None:
        checkpoint = next((c for c in there if c.step == step), None)
    if checkpoint is None:
        steps = ", ".join(str(c.step) for c in there) or "none"
        raise InputError(f"{run}: no checkpoint {'' if step is None else step}; there: {steps}.")

    elsewhere: dict[str, Any] = {
        name: path for name, path in asdict(moved or StartConfig()).items() if path
    }
    start = build.read_start(config.model, replace(config.start, **elsewhere))
    model = build.build_model(config, start)
    trained, _ = checkpoints.read(checkpoint)
    checkpoints.set_trained(_Holder(model), trained)
    weights = build.weights_of(model, start, trained_on(run, start), run_as(run, config))
    save_own(output, weights, overwrite=overwrite)
    return checkpoint


class _Holder(nn.Module):
    """Gives a model's parameters the names that checkpoints have, without hands."""

    def __init__(self, model: AceModel) -> None:
        super().__init__()
        self.model = model
