"""Our own format: one folder of safetensors that run, their config, hashes and licence.

``config.json`` holds ``format`` and ``version``, the model's sizes, the licence, where the weights
came from (file names and SHA-256), what they were trained on, how they are to be run, and size and
SHA-256 of every other file. Tensors have the running model's names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acehand_core import __version__
from acehand_core.atomic import atomic_folder
from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.model.config import InferenceConfig, ModelConfig
from acehand_core.model.weights import layouts, storage, training_data
from acehand_core.model.weights.loaded import (
    PARTS,
    ComponentReport,
    LoadedWeights,
    LoadReport,
    check,
    check_caption,
)
from acehand_core.model.weights.official_files import CAPTION_KEY, choose_variant, read_caption
from acehand_core.model.weights.storage import (
    TensorStore,
    open_safetensors,
    read_json,
    save_safetensors,
    sha256s,
)
from acehand_core.model.weights.training_data import TrainingData

FORMAT = "acehand-weights"
VERSION = 1
CONFIG_FILE = "config.json"
CAPTION_FILE = f"{CAPTION_KEY}.safetensors"
LICENCE_FILE = "LICENSE.txt"
#: Ray head and decoder share a file.
_RAY_HEAD = "ray_head."


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``config.json``."""

    path: Path
    config: ModelConfig
    licence: str
    sources: dict[str, str]
    filled: tuple[str, ...]
    files: dict[str, dict[str, Any]]
    training_data: TrainingData
    inference: InferenceConfig


def is_own(path: Path) -> bool:
    """Whether a folder is in this format."""
    try:
        return read_json(path / CONFIG_FILE).get("format") == FORMAT
    except InputError:  # SchemaError included
        return False


def read_manifest(path: Path) -> Manifest:
    """Read ``config.json``. Raises SchemaError naming the field, UnsafeFileError for a bad path."""
    where = path / CONFIG_FILE
    data = read_json(where)
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise SchemaError(
            f"{where}: format {data.get('format')!r}, version {data.get('version')!r}; valid: "
            f"{FORMAT!r}, {VERSION}."
        )
    kinds = {"licence": str, "sources": dict, "filled": list, "files": dict}
    for name, kind in kinds.items():
        if not isinstance(data.get(name), kind):
            raise SchemaError(f"{where}: {name} must be a {kind.__name__}.")
    for name, entry in data["files"].items():
        if Path(name).name != name:
            raise UnsafeFileError(f"{where}: names the file {name!r}; valid are plain file names.")
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise SchemaError(f"{where}: files: {name}: sha256 is missing.")
    config = ModelConfig.from_json(data.get("config"), f"{where}: config")
    return Manifest(
        path, config, data["licence"], data["sources"], tuple(map(str, data["filled"])),
        data["files"], training_data.from_json(data.get("training_data"), str(where)),
        InferenceConfig.from_json(data.get("inference"), f"{where}: inference"),
    )  # fmt: skip


def wrong_hashes(manifest: Manifest) -> tuple[dict[str, str], list[str]]:
    """Return the SHA-256 of every file that is there, and a sentence per file that is not right."""
    paths = {name: manifest.path / name for name in manifest.files}
    there = {name: path for name, path in paths.items() if path.is_file()}
    problems = [f"{path}: the file is missing." for n, path in paths.items() if n not in there]
    for name in needed_files(manifest.config):
        if name not in paths:
            problems.append(f"{manifest.path / CONFIG_FILE}: files: {name!r} is missing.")
    digests = sha256s(there)
    for name, digest in digests.items():
        stated = manifest.files[name]["sha256"]
        if digest != stated:
            problems.append(
                f"{paths[name]}: SHA-256 is {digest}, not {stated}: damaged or changed."
            )
    return digests, problems


def needed_files(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of all files beside ``config.json``."""
    caption = (CAPTION_FILE,) if config.source in layouts.WAN_SOURCES else ()
    return (*_lists(config), *caption, LICENCE_FILE)


def compare(manifest: Manifest) -> tuple[dict[str, TensorStore], dict[str, ComponentReport]]:
    """Open every file of tensors and compare it with its list; nothing is read."""
    stores, reports = {}, {}
    for file, expected in _lists(manifest.config).items():
        store = stores[file] = open_safetensors(manifest.path / file)
        part = file.removesuffix(".safetensors")
        reports[file] = check(part, store.where, store.shapes, store.dtypes, expected)
        stated = manifest.files.get(file, {}).get("dtypes")
        if stated is not None and stated != _dtypes(store.dtypes):
            wrong = (f"of {file}", f"are {_dtypes(store.dtypes)}, not {stated} as config.json says")
            reports[file] = replace(reports[file], wrong=(*reports[file].wrong, wrong))
    return stores, reports


def load_own(path: Path, variant: str | None = None, check_hashes: bool = True) -> LoadedWeights:
    """Load a folder of this format, strictly.

    Raises:
        SchemaError: a wrong hash, or a missing, unexpected or wrong tensor, with its file.
        InputError: a file is missing, or it holds another variant.
    """
    manifest = read_manifest(path)
    config = manifest.config
    choose_variant(variant, config.variant, str(path))
    digests = {name: entry["sha256"] for name, entry in manifest.files.items()}
    if check_hashes:
        digests, problems = wrong_hashes(manifest)
        if problems:
            raise SchemaError(" ".join(problems))
    stores, reports = compare(manifest)
    for report in reports.values():
        report.require()
    read = {
        file.removesuffix(".safetensors"): stores[file].read(report.read)
        for file, report in reports.items()
    }
    both = read.pop("decoder")
    ray_head = {n.removeprefix(_RAY_HEAD): t for n, t in both.items() if n.startswith(_RAY_HEAD)}
    decoder = {name: t for name, t in both.items() if not name.startswith(_RAY_HEAD)}
    caption = None
    if config.source in layouts.WAN_SOURCES:
        caption = read_caption(path / CAPTION_FILE)
        check_caption(config, caption, str(path / CAPTION_FILE))
    return LoadedWeights(
        config, read.get("vae"), read.get("trunk"), read.get("adapters"), decoder, ray_head,
        caption, LoadReport(tuple(reports.values()), manifest.filled), manifest.licence,
        {**digests, CONFIG_FILE: sha256s({"": path / CONFIG_FILE})[""]}, read.get("tiny"),
        manifest.training_data, manifest.inference,
    )  # fmt: skip


def save_own(
    path: Path,
    weights: LoadedWeights,
    sources: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a folder of this format; it appears whole or not at all.

    Args:
        sources: file name -> SHA-256 of what the weights were made from; default those they were
            read from.

    Raises:
        SchemaError: names each missing, unexpected or wrong tensor.
        OutputError: it exists, or cannot be written.
    """
    config, parts = weights.config, weights.parts()
    lists = layouts.live_parts(config)
    for part in PARTS:
        tensors = parts.get(part, {})
        shapes = layouts.shapes_of(tensors)
        dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
        check(part, "the model", shapes, dtypes, lists.get(part, {})).require()
    ray_head = {_RAY_HEAD + name: tensor for name, tensor in parts.pop("ray_head").items()}
    parts["decoder"] = parts["decoder"] | ray_head
    if config.source in layouts.WAN_SOURCES:
        if weights.caption is None:
            raise SchemaError("the model: the caption embedding is missing.")
        check_caption(config, weights.caption, "the model")
        parts[CAPTION_KEY] = {CAPTION_KEY: weights.caption}
    with atomic_folder(path, overwrite, is_own) as folder:
        files = {}
        for part, tensors in parts.items():
            file = folder / f"{part}.safetensors"
            save_safetensors(file, tensors)
            dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in tensors.items()}
            files[file.name] = {"tensors": len(tensors), "dtypes": _dtypes(dtypes)}
        (folder / LICENCE_FILE).write_text(storage.text(weights.licence), "utf-8")
        files[LICENCE_FILE] = {}
        digests = sha256s({name: folder / name for name in files})
        for name, entry in files.items():
            entry |= {"bytes": (folder / name).stat().st_size, "sha256": digests[name]}
        data = {
            "format": FORMAT, "version": VERSION, "acehand": __version__,
            "config": config.to_json(), "licence": weights.licence,
            "sources": dict(weights.sha256s if sources is None else sources),
            "filled": list(weights.report.filled),
            "training_data": training_data.to_json(weights.training_data),
            "inference": weights.inference.to_json(), "files": files,
        }  # fmt: skip
        (folder / CONFIG_FILE).write_text(json.dumps(data, indent=2) + "\n", "utf-8")


def _lists(config: ModelConfig) -> dict[str, layouts.Shapes]:
    lists = layouts.live_parts(config)
    ray_head = {_RAY_HEAD + name: shape for name, shape in lists.pop("ray_head").items()}
    lists["decoder"] = lists["decoder"] | ray_head
    return {f"{part}.safetensors": shapes for part, shapes in lists.items()}


def _dtypes(dtypes: Mapping[str, str]) -> dict[str, int]:
    return dict(sorted(Counter(dtypes.values()).items()))
