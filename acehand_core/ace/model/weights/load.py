"""Loading a model's weights from whatever layout a path is in, and converting between layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig, Variant
from acehand_core.ace.model.weights import own, repackaged
from acehand_core.ace.model.weights.official import VAE_DECODER_PREFIXES
from acehand_core.ace.model.weights.official_export import save_official
from acehand_core.ace.model.weights.official_files import (
    CAPTION_KEY,
    base_file,
    load_official,
    open_base,
    open_checkpoint,
    pieces_of,
)
from acehand_core.ace.model.weights.state import RELEASED_TRAINING, LoadedWeights, TrainingData
from acehand_core.ace.model.weights.storage import open_pickle, open_safetensors, read_json
from acehand_core.ace.model.weights.sums import joint_sha256, sha256, sha256s
from acehand_core.errors import InputError, SchemaError

#: The first three are whole models, the others are pieces of the released one.
Layout = Literal["acehand", "repackaged", "official", "wan-base", "wan-vae", "caption"]

_VALID = (
    "a folder in acehand's format, the re-packaging's folder, a checkpoint ace_ego_hand_*.pt or "
    "the folder it is in"
)


def detect(path: Path) -> Layout:
    """Return the layout of a file or folder.

    Raises:
        InputError: nothing there, or nothing known. SchemaError, UnsafeFileError: a bad file.
    """
    if path.is_dir():
        if own.is_own(path):
            return "acehand"
        if repackaged.is_repackaged(path):
            return "repackaged"
        if _checkpoints(path):
            return "official"
        if base_file(path) is not None:
            return "wan-base"
        if is_of_a_run(path):
            raise InputError(
                f"{path}: of a training run, which keeps what learns; make weights of it with "
                "acehand weights convert."
            )
        if (path / own.CONFIG_FILE).is_file():
            read_json(path / own.CONFIG_FILE)  # a damaged one is named
        raise InputError(f"{path}: no weights here; valid: {_VALID}.")

    if not path.is_file():
        raise InputError(f"{path}: no such file or folder; valid: {_VALID}.")
    if path.suffix == ".safetensors" or path.name.endswith(".index.json"):
        return _of_names(path, set(open_safetensors(path).shapes))
    data = open_pickle(path)
    if not isinstance(data, dict) or "embed" in data:
        return "caption"

    return _of_names(path, set(map(str, data)))


def is_of_a_run(path: Path) -> bool:
    """Return whether a folder is that of a training run, or one of its checkpoints."""
    return (path / "checkpoints").is_dir() or (path / "trained.safetensors").is_file()


def load_weights(
    path: Path,
    variant: Variant | None = None,
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
    *,
    config: ModelConfig | None = None,
    check_hashes: bool = True,
) -> LoadedWeights:
    """Load a whole model, strictly; only tensors that run are read.

    Args:
        path: see ``detect``; a folder of released checkpoints needs ``variant``.
        variant: "k" or "kfree", where the path does not say.
        base, vae, caption: pieces of the released model, where they are not beside the checkpoint.
        config: sizes of a checkpoint that does not state them, in place of the released ones.
        check_hashes: hash every file, for the record and, in our own format, to compare.

    Raises:
        InputError: a file is missing, or the variant is not known.
        SchemaError: names each missing, unexpected or wrong tensor, or the file of a wrong hash.
        UnsafeFileError: a file asks for code to be run.
    """
    layout = detect(path)
    if layout == "acehand":
        return own.load_own(path, variant, check_hashes)
    if layout == "repackaged":
        return repackaged.load_repackaged(path, variant, caption, check_hashes)
    if layout == "official":
        checkpoint = find_checkpoint(path, variant)
        return load_official(checkpoint, variant, base, vae, caption, config, check_hashes)
    raise InputError(_only_a_piece(path, layout))


def identity(
    path: Path,
    variant: Variant | None = None,
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
) -> str:
    """Return a hash of the content that ``load_weights`` would read, whatever the files are called.

    Of our own format it is the hash of ``config.json``, which states those of the other files:
    ``load_weights`` refuses files that differ from it.

    Raises what ``load_weights`` raises where a file is missing or the layout is not known.
    """
    layout = detect(path)
    if layout == "acehand":
        return sha256(path / own.CONFIG_FILE)

    if layout == "repackaged":
        files = repackaged.files_of(path, repackaged.find_variant(path, variant), caption)
    elif layout == "official":
        checkpoint = find_checkpoint(path, variant)
        base, vae, caption = pieces_of(checkpoint, base, vae, caption)
        files = [checkpoint, vae, caption, *open_base(base).files]
    else:
        raise InputError(_only_a_piece(path, layout))

    return joint_sha256(sha256s({str(file): file for file in files}).values())


def recorded(path: Path, variant: Variant | None = None) -> tuple[TrainingData, InferenceConfig]:
    """Return what the weights at a path were trained on, and how they are to be run.

    Values are not read. Raises what ``load_weights`` raises where nothing is there or the layout is
    not known.
    """
    layout = detect(path)
    if layout == "repackaged":
        return RELEASED_TRAINING, AS_RELEASED
    if layout == "acehand":
        manifest = own.read_manifest(path)
        return manifest.training_data, manifest.inference
    if layout == "official":
        return open_checkpoint(find_checkpoint(path, variant)).recorded()
    raise InputError(_only_a_piece(path, layout))


def _only_a_piece(path: Path, layout: Layout) -> str:
    return f"{path}: only a piece of a model ({layout}); valid: {_VALID}."


def find_checkpoint(path: Path, variant: str | None) -> Path:
    """Return the checkpoint that a path means. Raises InputError when that is not clear."""
    if path.is_file():
        return path
    present = _checkpoints(path)
    chosen = [p for p in present if variant is None or open_checkpoint(p).variant == variant]
    if len(chosen) != 1:
        names = ", ".join(p.name for p in present)
        raise InputError(f"{path}: holds {names}; say which with --variant k|kfree.")
    return chosen[0]


def _checkpoints(path: Path) -> list[Path]:
    return sorted(path.glob("ace_ego_hand*.pt"))


def _of_names(path: Path, names: set[str]) -> Layout:
    if names == {CAPTION_KEY}:
        return "caption"
    if "projectors" in names or "backbone_trainable" in names or "raymap_heads" in names:
        return "official"
    bare = {name.removeprefix("model.") for name in names}
    if any(name.startswith(("encoder.", "conv1.", *VAE_DECODER_PREFIXES)) for name in bare):
        return "wan-vae"
    if any(name.startswith(("blocks.", "patch_embedding.", "text_embedding.")) for name in names):
        return "wan-base"
    raise SchemaError(f"{path}: not a file of weights that is known; valid: {_VALID}.")


Target = Literal["official", "acehand"]
_PIECES: dict[Layout, str] = {"wan-base": "base", "wan-vae": "vae", "caption": "caption"}


@dataclass(frozen=True, slots=True)
class Sources:
    """What to convert: a whole model, and pieces of the released one where it needs them."""

    model: Path
    base: Path | None = None
    vae: Path | None = None
    caption: Path | None = None


def sort_sources(
    paths: Sequence[Path],
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
) -> Sources:
    """Tell the model from its pieces by what they hold.

    Raises InputError when there is no model or more than one, or two of the same piece.
    """
    pieces: dict[str, Path] = {}
    given = {"base": base, "vae": vae, "caption": caption}
    named = [(name, path) for name, path in given.items() if path is not None]
    for name, path in [*named, *((_PIECES.get(detect(p), "model"), p) for p in paths)]:
        if name in pieces:
            raise InputError(f"{pieces[name]} and {path} are both the {name}; give one.")
        pieces[name] = path
    if "model" not in pieces:
        listed = ", ".join(map(str, paths))
        raise InputError(f"{listed}: pieces alone; a checkpoint or a folder of a model is needed.")
    return Sources(**pieces)


def convert(
    sources: Sources,
    target: Target,
    output: Path,
    *,
    variant: Variant | None = None,
    config: ModelConfig | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> tuple[LoadedWeights, dict[str, Any]]:
    """Convert a model into a new folder; return what was read, and the report of an export.

    Args:
        seed: of what the released layout needs and a running model does not hold.

    Raises what ``load_weights`` raises; OutputError when the folder exists or cannot be written.
    """
    weights = load_weights(
        sources.model, variant, sources.base, sources.vae, sources.caption, config=config
    )
    if target == "acehand":
        own.save_own(output, weights, overwrite=overwrite)
    else:
        return weights, save_official(output, weights, sources.base, seed, overwrite)
    return weights, {}
