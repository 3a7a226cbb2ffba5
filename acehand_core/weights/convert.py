"""From one layout to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from acehand_core.atomic import atomic_folder
from acehand_core.errors import InputError
from acehand_core.weights import licences, own, repackaged
from acehand_core.weights.config import ModelConfig, Variant
from acehand_core.weights.hashes import SUMS_FILE, write_sums
from acehand_core.weights.load import Layout, detect, load_weights
from acehand_core.weights.loaded import LoadedWeights
from acehand_core.weights.official_export import export_caption, export_official

Target = Literal["official", "repackaged", "acehand"]
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
    found: dict[str, Path] = {}
    given = {"base": base, "vae": vae, "caption": caption}
    named = [(name, path) for name, path in given.items() if path is not None]
    for name, path in [*named, *((_PIECES.get(detect(p), "model"), p) for p in paths)]:
        if name in found:
            raise InputError(f"{found[name]} and {path} are both the {name}; give one.")
        found[name] = path
    if "model" not in found:
        listed = ", ".join(map(str, paths))
        raise InputError(f"{listed}: pieces alone; a checkpoint or a folder of a model is needed.")
    return Sources(**found)


def convert(
    sources: Sources,
    target: Target,
    output: Path,
    *,
    variant: Variant | None = None,
    dtype: torch.dtype | None = None,
    config: ModelConfig | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> tuple[LoadedWeights, dict[str, Any]]:
    """Convert a model into a new folder; return what was read, and the report of an export.

    Args:
        dtype: precision of the frozen parts, VAE and transformer; what was trained keeps its own.
        seed: of what the released layout needs and a running model does not hold.

    Raises what ``load_weights`` raises; OutputError when the folder exists or cannot be written.
    """
    weights = load_weights(
        sources.model, variant, sources.base, sources.vae, sources.caption, config=config
    )
    if dtype is not None:
        weights = weights.cast(dtype)
    if target == "acehand":
        own.save_own(output, weights, overwrite=overwrite)
    elif target == "repackaged":
        repackaged.save_repackaged(output, weights, overwrite)
    else:
        return weights, save_official(output, weights, sources.base, seed, overwrite)
    return weights, {}


def save_official(
    output: Path,
    weights: LoadedWeights,
    base: Path | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a folder with a checkpoint in the released layout and the caption beside it.

    The base transformer and the VAE are not written: they are frozen and stay as released. Returns
    the report of the export as plain types. Raises see ``export_official``.
    """
    parts = weights.parts()
    if "trunk" not in parts:
        raise InputError("the released layout needs a model that reads the transformer.")
    name = f"ace_ego_hand_{weights.config.variant}.pt"
    with atomic_folder(output, overwrite, _is_official) as folder:
        report = export_official(
            folder / name,
            weights.config,
            trunk=parts["trunk"],
            adapters=weights.adapters,
            decoder=parts["decoder"],
            ray_head=parts["ray_head"],
            base=base,
            seed=seed,
            licence=weights.licence,
            filled_live=weights.report.filled,
            trained_on=weights.training_data,
            inference=weights.inference,
        )
        if weights.caption is not None:
            export_caption(folder / "caption_embed.pt", weights.caption)
        (folder / "LICENSE.txt").write_text(licences.text(weights.licence), "utf-8")
        write_sums(folder)
    return report.to_json()


def _is_official(path: Path) -> bool:
    return (path / SUMS_FILE).is_file() and any(path.glob("ace_ego_hand_*.pt"))
