"""Loading a model's weights from any layout, and converting between layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from acehand_core.ace.model.config import AS_RELEASED, InferenceConfig, ModelConfig, Variant
from acehand_core.ace.model.weights import official_files, own, repackaged
from acehand_core.ace.model.weights.official import VAE_DECODER_PREFIXES
from acehand_core.ace.model.weights.state import RELEASED_TRAINING, LoadedWeights
from acehand_core.ace.model.weights.storage import open_pickle, open_safetensors
from acehand_core.ace.model.weights.sums import joint_sha256, sha256, sha256s
from acehand_core.errors import InputError, SchemaError
from acehand_core.user_files import read_object

#: The first three are whole models, the others are pieces of the released one.
Layout = Literal["acehand", "repackaged", "official", "wan-base", "wan-vae", "caption"]
_PIECES: dict[Layout, str] = {"wan-base": "base", "wan-vae": "vae", "caption": "caption"}
_VALID = (
    "a folder in acehand's format, the re-packaging's folder, a checkpoint ace_ego_hand_*.pt or "
    "the folder it is in"
)

Target = Literal["official", "acehand"]


def detect(path: Path) -> Layout:
    """Return the layout of a file or folder. Raises InputError, SchemaError or UnsafeFileError."""
    if path.is_dir():
        if own.is_own(path):
            return "acehand"
        if repackaged.is_repackaged(path):
            return "repackaged"
        if _checkpoints(path):
            return "official"
        if official_files.base_file(path) is not None:
            return "wan-base"
        if is_of_a_run(path):
            raise InputError(f"{path}: a training run; first run acehand weights convert on it.")
        if (path / own.CONFIG_FILE).is_file():
            read_object(path / own.CONFIG_FILE)  # reports a damaged file
        raise InputError(f"{path}: no weights here; valid: {_VALID}.")

    if not path.is_file():
        raise InputError(f"{path}: no such file or folder; valid: {_VALID}.")
    if path.suffix == ".safetensors" or path.name.endswith(".index.json"):
        return _of_names(path, set(open_safetensors(path).shapes))
    data = open_pickle(path)
    if not isinstance(data, dict) or "embed" in data:
        return "caption"
    return _of_names(path, set(map(str, data)))


def _detect_model(path: Path) -> Layout:
    layout = detect(path)
    if layout in _PIECES:
        raise InputError(f"{path}: only a piece of a model ({layout}); valid: {_VALID}.")
    return layout


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
        variant: "k" or "kfree", if the path holds both.
        base, vae, caption: pieces of the released model; default next to the checkpoint.
        config: sizes of a checkpoint that does not state them; default the released ones.
        check_hashes: hash every file, for the record and, in our own format, to compare; else
            hardly more than headers is read.

    Raises:
        InputError: a missing file, or an ambiguous variant.
        SchemaError: names each missing, unexpected or wrong tensor, or the file of a wrong hash.
        UnsafeFileError: a file asks for code to be run.
    """
    layout = _detect_model(path)
    if layout == "acehand":
        return own.load_own(path, variant, check_hashes)
    if layout == "repackaged":
        return repackaged.load_repackaged(path, variant, caption, check_hashes)
    checkpoint = find_checkpoint(path, variant)
    return official_files.load_official(
        checkpoint, variant, base, vae, caption, config, check_hashes
    )


def identity(
    path: Path,
    variant: Variant | None = None,
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
) -> str:
    """Return a hash of the content that ``load_weights`` reads, independent of file names.

    In our own format it is the hash of ``config.json``, which holds those of the other files.
    Raises as ``load_weights``.
    """
    layout = _detect_model(path)
    if layout == "acehand":
        return sha256(path / own.CONFIG_FILE)
    if layout == "repackaged":
        files = repackaged.files_of(path, repackaged.find_variant(path, variant), caption)
    else:
        checkpoint = find_checkpoint(path, variant)
        base, vae, caption = official_files.pieces_of(checkpoint, base, vae, caption)
        files = [checkpoint, vae, caption, *official_files.open_base(base).files]
    return joint_sha256(sha256s({str(file): file for file in files}).values())


def recorded(path: Path, variant: Variant | None = None) -> tuple[Any, InferenceConfig, Variant]:
    """Return training data, how to run weights, and their variant. Raises as ``load_weights``."""
    layout = _detect_model(path)
    if layout == "repackaged":
        return RELEASED_TRAINING, AS_RELEASED, repackaged.find_variant(path, variant)
    if layout == "acehand":
        manifest = own.read_manifest(path)
        return manifest.training_data, manifest.inference, manifest.config.variant
    opened = official_files.open_checkpoint(find_checkpoint(path, variant))
    return *opened.recorded(), official_files.choose_variant(variant, opened.variant, str(path))


def find_checkpoint(path: Path, variant: str | None) -> Path:
    """Return the checkpoint that a path means. Raises InputError if it is ambiguous."""
    if path.is_file():
        return path
    present = _checkpoints(path)
    chosen = [
        p
        for p in present
        if variant is None or official_files.open_checkpoint(p).variant == variant
    ]
    if len(chosen) != 1:
        names = ", ".join(p.name for p in present)
        raise InputError(f"{path}: holds {names}; choose with `variant=k|kfree`.")
    return chosen[0]


def _checkpoints(path: Path) -> list[Path]:
    return sorted(path.glob("ace_ego_hand*.pt"))


def _of_names(path: Path, names: set[str]) -> Layout:
    if names == {official_files.CAPTION_KEY}:
        return "caption"
    if "projectors" in names or "backbone_trainable" in names or "raymap_heads" in names:
        return "official"
    bare = {name.removeprefix("model.") for name in names}
    if any(name.startswith(("encoder.", "conv1.", *VAE_DECODER_PREFIXES)) for name in bare):
        return "wan-vae"
    if any(name.startswith(("blocks.", "patch_embedding.", "text_embedding.")) for name in names):
        return "wan-base"
    raise SchemaError(f"{path}: an unknown file of weights; valid: {_VALID}.")


def sort_sources(
    paths: Sequence[Path],
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
) -> dict[str, Path]:
    """Return "model", "base", "vae" and "caption". Raises InputError for none or two of a kind."""
    pieces: dict[str, Path] = {}
    given = {"base": base, "vae": vae, "caption": caption}
    named = [(name, path) for name, path in given.items() if path is not None]
    for name, path in [*named, *((_PIECES.get(detect(p), "model"), p) for p in paths)]:
        if name in pieces:
            raise InputError(f"{pieces[name]} and {path} are both the {name}; give one.")
        pieces[name] = path
    if "model" not in pieces:
        listed = ", ".join(map(str, paths))
        raise InputError(f"{listed}: only pieces; a checkpoint or a folder of a model is needed.")
    return pieces


def convert(
    sources: Mapping[str, Path],
    target: Target,
    output: Path,
    *,
    variant: Variant | None = None,
    config: ModelConfig | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> tuple[LoadedWeights, dict[str, Any]]:
    """Convert a model into a new folder; return what was read, and the report of an export.

    ``sources`` are those of ``sort_sources``; ``seed`` draws tensors that the released layout needs
    and a running model lacks. Raises as ``load_weights``; OutputError if the folder exists or
    cannot be written.
    """
    pieces: dict[str, Any] = {name: path for name, path in sources.items() if name != "model"}
    weights = load_weights(sources["model"], variant, **pieces, config=config)
    if target == "official":
        return weights, official_files.save_official(
            output, weights, sources.get("base"), seed, overwrite
        )
    own.save_own(output, weights, overwrite=overwrite)
    return weights, {}
