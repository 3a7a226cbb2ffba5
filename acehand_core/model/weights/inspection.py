"""What a path holds, and whether all of it is right: names, shapes, precisions and hashes.

Values are read only to be hashed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.model.config import AS_RELEASED, InferenceConfig, ModelConfig, Variant
from acehand_core.model.weights import own, repackaged, sums
from acehand_core.model.weights.load import Layout, detect, find_checkpoint
from acehand_core.model.weights.official_files import (
    CAPTION_KEY,
    VAE_FILE,
    checkpoint_config,
    open_base,
    open_checkpoint,
    open_vae,
    read_caption,
    released_sections,
)
from acehand_core.model.weights.state import (
    RELEASED_TRAINING,
    ComponentReport,
    LoadReport,
    TrainingData,
    compare,
    training_to_json,
)
from acehand_core.model.weights.storage import TensorStore, store_of
from acehand_core.model.weights.sums import read_sums, sha256s


@dataclass(frozen=True, slots=True)
class Part:
    """One list of tensors of what was looked at."""

    name: str
    where: str
    tensors: int
    parameters: int
    dtypes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a path holds. ``files`` are all that belong to it, ``stated`` their SHA-256 if given."""

    layout: Layout
    config: ModelConfig | None
    licence: str
    parts: tuple[Part, ...]
    report: LoadReport
    files: dict[str, Path]
    stated: dict[str, str]
    #: What is wrong beyond single tensors.
    others: tuple[str, ...] = ()
    #: Of a whole model; None where it was not recorded.
    trained_on: TrainingData = None
    #: How to run it; what is not recorded is as released.
    inference: InferenceConfig = AS_RELEASED

    @property
    def problems(self) -> list[str]:
        """A sentence for everything that is not right; hashes are not compared here."""
        return [*self.report.problems, *self.others]

    @property
    def variant(self) -> str | None:
        """Which configuration it serves; None for a piece that serves both."""
        return self.config.variant if self.config and self.layout in _MODELS else None

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "layout": self.layout,
            "variant": self.variant,
            "tap": self.config.trunk.tap if self.config and self.variant else None,
            "config": self.config.to_json() if self.config else None,
            "licence": self.licence,
            "training_data": training_to_json(self.trained_on),
            "inference": self.inference.to_json(),
            "parts": [asdict(part) for part in self.parts],
            "report": self.report.to_json(),
            "problems": self.problems,
        }


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of ``verify``; all is right when there is no problem."""

    problems: tuple[str, ...]
    sha256s: dict[str, str]
    #: Labels of the files whose hash was compared with a stated one.
    compared: tuple[str, ...]
    inspection: Inspection | None


_MODELS = ("acehand", "repackaged", "official")


def inspect(path: Path, variant: Variant | None = None) -> Inspection:
    """Look at a path without reading values.

    Raises InputError, SchemaError or UnsafeFileError when it is nothing known or cannot be opened.
    """
    layout = detect(path)
    if layout == "acehand":
        return _own(path)
    if layout == "repackaged":
        return _repackaged(path, variant)
    if layout == "official":
        return _checkpoint(find_checkpoint(path, variant), whole=path.is_dir())
    return _piece(path, layout)


def verify(path: Path, variant: Variant | None = None) -> Verification:
    """Check everything that can be checked and list what is wrong.

    Hashes are compared where somebody states them: our format's config, ``SHA256SUMS`` beside the
    files, or the hub's cache.

    Raises InputError when there is nothing to look at.
    """
    inspection = None
    try:
        inspection = inspect(path, variant)
        problems, files, stated = inspection.problems, inspection.files, dict(inspection.stated)
    except (SchemaError, UnsafeFileError) as error:
        # The hashes still say which file it is that is damaged.
        problems = [str(error)]
        files, stated = _stated_without_opening(path)

    digests = sha256s({name: file for name, file in files.items() if file.is_file()})
    for label, digest in stated.items():
        if label not in digests:
            problems.append(f"{files[label]}: the file is missing.")
        elif digests[label] != digest:
            problems.append(
                f"{files[label]}: SHA-256 is {digests[label]}, not {digest}: damaged or changed."
            )

    return Verification(tuple(problems), digests, tuple(stated), inspection)


def _stated_without_opening(path: Path) -> tuple[dict[str, Path], dict[str, str]]:
    folder = path if path.is_dir() else path.parent
    try:
        if own.is_own(folder):
            entries = own.read_manifest(folder).files
            stated = {name: entry["sha256"] for name, entry in entries.items()}
        else:
            stated = read_sums(folder)
    except InputError:  # the list itself is what is damaged
        stated = {}
    files = {name: folder / name for name in stated}
    if path.is_file():
        files = {path.name: path}
        stated = {name: digest for name, digest in stated.items() if name == path.name}
    return files, stated


def _own(path: Path) -> Inspection:
    manifest = own.read_manifest(path)
    stores, reports = own.open_own(manifest)
    stated = {name: entry["sha256"] for name, entry in manifest.files.items()}
    caption = path / own.CAPTION_FILE
    if caption.name in stated:
        stores[caption.name] = _caption_store(caption)

    return Inspection(
        "acehand", manifest.config, manifest.licence, _parts(stores),
        LoadReport(tuple(reports.values()), manifest.filled),
        {name: path / name for name in stated}, stated, tuple(own.unlisted_files(manifest)),
        manifest.training_data, manifest.inference,
    )  # fmt: skip


def _repackaged(path: Path, variant: Variant | None) -> Inspection:
    variant = repackaged.find_variant(path, variant)
    config, stores, reports = repackaged.open_repackaged(path, variant)
    stores["caption"] = _caption_store(path / repackaged.CAPTION_FILE)
    files = {name: path / name for name in stores if name != "caption"}
    files |= {repackaged.CAPTION_FILE: path / repackaged.CAPTION_FILE, **_listed(path)}
    return Inspection(
        "repackaged", config, sums.RELEASED, _parts(stores), LoadReport(tuple(reports.values())),
        files, _stated(files, path), trained_on=RELEASED_TRAINING,
    )  # fmt: skip


def _checkpoint(path: Path, whole: bool) -> Inspection:
    opened = open_checkpoint(path)
    # Which variant it is does not change what it holds; one is needed.
    variant: Variant = "kfree" if opened.variant == "kfree" else "k"
    config = checkpoint_config(opened, variant)
    reports = compare(released_sections(config, opened.parts), opened.parts)
    keys = ComponentReport("checkpoint", str(path), ignored=opened.ignored)
    files = {path.name: path} | (_listed(path.parent) if whole else {})
    training, inference = opened.recorded()
    return Inspection(
        "official", config, str(opened.record.get("licence") or sums.CHECKPOINT),
        _parts(opened.parts), LoadReport((keys, *reports.values())), files,
        _stated(files, path.parent), trained_on=training, inference=inference,
    )  # fmt: skip


def _piece(path: Path, layout: Layout) -> Inspection:
    if layout == "caption":
        store = _caption_store(path)
        files = {path.name: path}
        return Inspection(
            layout, None, sums.BASE, _parts({"caption": store}), LoadReport(), files,
            _stated(files, path.parent),
        )  # fmt: skip

    opened: dict[str, TensorStore] = {}
    if layout == "wan-base":
        opened["dit"] = open_base(path)
        if (path / VAE_FILE).is_file():
            opened["vae"] = open_vae(path / VAE_FILE)
    else:
        opened["vae"] = open_vae(path)

    config = ModelConfig()
    files = {file.name: file for store in opened.values() for file in store.files}
    report = LoadReport(tuple(compare(released_sections(config, opened), opened).values()))

    return Inspection(
        layout, config, sums.BASE, _parts(opened), report, files,
        _stated(files, path if path.is_dir() else path.parent),
    )  # fmt: skip


def _caption_store(path: Path) -> TensorStore:
    return replace(store_of({CAPTION_KEY: read_caption(path)}, str(path)), files=(path,))


def _parts(stores: Mapping[str, TensorStore]) -> tuple[Part, ...]:
    return tuple(
        Part(
            name.removesuffix(".safetensors").removesuffix("/model"),
            store.where,
            len(store.shapes),
            sum(math.prod(shape) for shape in store.shapes.values()),
            dict(sorted(Counter(store.dtypes.values()).items())),
        )
        for name, store in stores.items()
    )


def _listed(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in read_sums(folder)}


def _stated(files: Mapping[str, Path], folder: Path) -> dict[str, str]:
    """Return the SHA-256 that ``SHA256SUMS`` or the hub's cache states for files."""
    stated = {name: digest for name, digest in read_sums(folder).items() if name in files}
    for name, file in files.items():
        blob = file.resolve()
        # The cache stores a large file under its hash.
        if blob.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{64}", blob.name):
            stated.setdefault(name, blob.name)
    return stated
