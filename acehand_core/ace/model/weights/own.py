"""Our own format: one folder of the tensors that run, their config, hashes and licence.

``config.json`` holds ``format`` and ``version``, the model's sizes, the licence, the source files
with SHA-256, the training data, how to run the model, and size and SHA-256 of every other file.
Tensors have the running model's names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acehand_core import __version__
from acehand_core.ace.model.config import InferenceConfig, ModelConfig
from acehand_core.ace.model.encoder.sources import TRUNK_SOURCES
from acehand_core.ace.model.weights import state, sums, tables
from acehand_core.ace.model.weights.official_files import CAPTION_KEY, choose_variant, read_caption
from acehand_core.ace.model.weights.storage import (
    TensorStore,
    open_safetensors,
    save_safetensors,
)
from acehand_core.ace.model.weights.sums import sha256, sha256s
from acehand_core.atomic import atomic_folder
from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.user_files import read_json, read_object, structured, without_header

FORMAT = "acehand-weights"
VERSION = 1
CONFIG_FILE = "config.json"
CAPTION_FILE = f"{CAPTION_KEY}.safetensors"
LICENCE_FILE = "LICENSE.txt"
#: Ray head and decoder share a file; all others are parts as they are.
_TABLES = {
    "decoder": {
        "ray_head": tables.WeightsTable(prefix="ray_head."),
        "decoder": tables.WeightsTable(),
    }
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``config.json``."""

    path: Path
    config: ModelConfig
    licence: str
    sources: dict[str, str]
    filled: tuple[str, ...]
    files: dict[str, dict[str, Any]]
    training_data: state.TrainingData
    inference: InferenceConfig


def is_own(path: Path) -> bool:
    """Return whether a folder is in this format."""
    try:
        return read_object(path / CONFIG_FILE).get("format") == FORMAT
    except InputError:  # SchemaError included
        return False


def read_manifest(path: Path) -> Manifest:
    """Read ``config.json``. Raises SchemaError naming the field, UnsafeFileError for a bad path."""
    where = path / CONFIG_FILE
    data = without_header(read_json(where), FORMAT, VERSION, str(where))
    files = dict[str, dict[str, Any]]
    structured(
        {"licence": str, "sources": dict, "filled": tuple[str, ...], "files": files}, data, where
    )
    for name, entry in data["files"].items():
        if Path(name).name != name:
            raise UnsafeFileError(f"{where}: names the file {name!r}; valid are plain file names.")
        if not isinstance(entry.get("sha256"), str):
            raise SchemaError(f"{where}: files: {name}: sha256 is missing.")

    config = structured(ModelConfig, data.get("config"), f"{where}: config")
    filled = tuple(map(str, data["filled"]))
    origin = data["licence"], data["sources"], filled, data["files"]
    return Manifest(path, config, *origin, *state.read_record(data, str(where)))


def unlisted_files(manifest: Manifest) -> list[str]:
    """Return a sentence for every needed file that is not listed."""
    caption = (CAPTION_FILE,) if manifest.config.source in TRUNK_SOURCES else ()
    needed = (*sections(manifest.config), *caption, LICENCE_FILE)
    where = f"{manifest.path / CONFIG_FILE}: files"
    return [f"{where}: {name!r} is missing." for name in needed if name not in manifest.files]


def sections(config: ModelConfig) -> dict[str, tables.WeightsSection]:
    """Return the list of each file of tensors."""
    inside = {part: tables.meta(listed) for part, listed in state.state_shapes(config).items()}
    lists = {}
    for part in inside:
        if part != "ray_head":
            section = tables.WeightsSection(
                part, {}, _TABLES.get(part, {part: tables.WeightsTable()})
            )
            shapes = tables.shapes_of(section.write(inside))
            lists[f"{part}.safetensors"] = replace(section, shapes=shapes)
    return lists


def open_own(manifest: Manifest) -> tuple[dict[str, TensorStore], dict[str, state.ComponentReport]]:
    """Open every file of tensors and compare it with its list, without reading values."""
    lists = sections(manifest.config)
    stores = {file: open_safetensors(manifest.path / file) for file in lists}
    reports = state.compare(lists, stores)
    for file, store in stores.items():
        stated = manifest.files.get(file, {}).get("dtypes")
        if stated is not None and stated != _dtypes(store.dtypes):
            wrong = (f"of {file}", f"are {_dtypes(store.dtypes)}; config.json states {stated}")
            reports[file] = replace(reports[file], wrong=(*reports[file].wrong, wrong))
    return stores, reports


def load_own(
    path: Path, variant: str | None = None, check_hashes: bool = True
) -> state.LoadedWeights:
    """Load a folder of this format, strictly. Raises as ``load.load_weights``."""
    manifest = read_manifest(path)
    config = manifest.config
    choose_variant(variant, config.variant, str(path))
    stated = {name: entry["sha256"] for name, entry in manifest.files.items()}
    problems = [f"{path / n}: the file is missing." for n in stated if not (path / n).is_file()]
    problems += unlisted_files(manifest)
    if problems:
        raise SchemaError(" ".join(problems))

    stores, reports = open_own(manifest)
    parts = state.read_parts(sections(config), stores, reports)

    caption = None
    if config.source in TRUNK_SOURCES:
        caption = read_caption(path / CAPTION_FILE)
        state.check_caption(config, caption, str(path / CAPTION_FILE))

    if check_hashes:  # last: what headers show needs no reading of whole files
        digests = sha256s({name: path / name for name in stated})
        problems = [
            f"{path / name}: SHA-256 is {digest}, not {stated[name]}: damaged or changed."
            for name, digest in digests.items()
            if digest != stated[name]
        ]
        if problems:
            raise SchemaError(" ".join(problems))

    return state.LoadedWeights(
        config,
        **parts,
        caption=caption,
        report=state.LoadReport(tuple(reports.values()), manifest.filled),
        licence=manifest.licence,
        sha256s={**stated, CONFIG_FILE: sha256(path / CONFIG_FILE)},
        training_data=manifest.training_data,
        inference=manifest.inference,
    )


def save_own(path: Path, weights: state.LoadedWeights, overwrite: bool = False) -> None:
    """Write a folder of this format, atomically. Raises SchemaError or OutputError."""
    config, parts = weights.config, weights.parts()
    state.check_parts(parts, state.state_shapes(config))
    lists = sections(config)
    names = [f"{part}.safetensors" for part in parts if part != "ray_head"]
    files = {name: lists[name].write(parts) for name in names}
    if config.source in TRUNK_SOURCES:
        if weights.caption is None:
            raise SchemaError("the model: the caption embedding is missing.")
        state.check_caption(config, weights.caption, "the model")
        files[CAPTION_FILE] = {CAPTION_KEY: weights.caption}

    with atomic_folder(path, overwrite, is_own) as folder:
        entries: dict[str, dict[str, Any]] = {}
        for file, tensors in files.items():
            save_safetensors(folder / file, tensors)
            dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
            entries[file] = {"tensors": len(tensors), "dtypes": _dtypes(dtypes)}

        (folder / LICENCE_FILE).write_text(sums.licence_text(weights.licence), "utf-8")
        entries[LICENCE_FILE] = {}
        digests = sha256s({name: folder / name for name in entries})
        for name, entry in entries.items():
            entry |= {"bytes": (folder / name).stat().st_size, "sha256": digests[name]}

        data = {
            "format": FORMAT,
            "version": VERSION,
            "acehand": __version__,
            **weights.record(),
            "sources": weights.sha256s,
            "filled": list(weights.report.filled),
            "files": entries,
        }
        (folder / CONFIG_FILE).write_text(json.dumps(data, indent=2) + "\n", "utf-8")


def _dtypes(dtypes: Mapping[str, str]) -> dict[str, int]:
    return dict(sorted(Counter(dtypes.values()).items()))
