"""The released files: checkpoint, base transformer, video VAE and caption embedding.

On export, tensors that the running model lacks are initialised as in training, each from the seed
and its released name alone.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from acehand_core.ace.model.config import InferenceConfig, ModelConfig, Variant
from acehand_core.ace.model.encoder.sources import TRUNK_SOURCES
from acehand_core.ace.model.weights import official, state, storage, sums
from acehand_core.ace.model.weights.sums import sha256s
from acehand_core.ace.model.weights.tables import Tensors, WeightsSection, powers_of_two
from acehand_core.atomic import atomic_folder, atomic_path
from acehand_core.errors import InputError, SchemaError
from acehand_core.user_files import structured

#: Key of a checkpoint under which ours say how they were made; plain types only.
RECORD = "acehand"
VAE_FILE = "Wan2.2_VAE.pth"
CAPTION_KEY = "caption_embedding"
_CAPTION_FILES = ("caption_embed.pt", "caption_embedding.safetensors")
#: The base of 5 B stands in the folder itself; other releases of the family have two of them.
_BASE_FOLDERS = ("", "low_noise_model", "transformer")
_BASE_STEM = "diffusion_pytorch_model.safetensors"
_BASE_PLACES = ("Wan2.2-Fun-5B-Control", _BASE_STEM, _BASE_STEM + storage.INDEX_SUFFIX)

_VARIANT_IN_NAME = re.compile(r"(?:^|[_\-.])(kfree|k)(?=[_\-.]|$)")

#: Last layers that start from fixed values: (end of the stem, biases or None for zeros).
_FIXED = (
    ("head_cam_trans.2", (0.0, 0.0, -0.693)),
    ("head_exists_2d.2", (-1.0,)),
    ("head_exists_3d.2", (-1.0,)),
    ("head_direct_wrist_cam.2", (0.0, 0.0, 0.5)),
    ("head_betas_segment.3", None),
    ("head_betas_hand.3", None),
    ("ray_pe.ray_proj.2", None),
)
_ZERO = ("head.", "patch_embedding.")
_TOKENS = ("_pe", "_pe_grid", "_query", "_token", "slot_embed")
_TOKEN_DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class OfficialCheckpoint:
    """An opened ``ace_ego_hand_*.pt``: its parts, other keys, and our record if it has one."""

    path: Path
    parts: dict[str, storage.TensorStore]
    ignored: tuple[str, ...]
    record: dict[str, Any]

    @property
    def variant(self) -> str | None:
        """The variant in its record or its name."""
        recorded = self.record.get("config", {}).get("variant")
        named = _VARIANT_IN_NAME.findall(self.path.stem)
        return recorded or (named[-1] if named else None)

    def recorded(self) -> tuple[state.TrainingData, InferenceConfig]:
        """Return its training data and how to run it. Raises SchemaError."""
        return state.read_record(self.record, f"{self.path}: {RECORD}")


def open_checkpoint(path: Path) -> OfficialCheckpoint:
    """Open a checkpoint without reading its values.

    Raises SchemaError for a part that is missing or no dict of tensors, else as ``open_pickle``.
    """
    data = storage.open_pickle(path)
    if not isinstance(data, dict) or "projectors" not in data:
        content = ", ".join(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise SchemaError(f"{path}: no checkpoint: key 'projectors' is missing; found: {content}.")

    parts = {}
    for key in official.CHECKPOINT_KEYS:
        if data.get(key) is None:
            keys = ", ".join(map(str, data))
            raise SchemaError(f"{path}: key {key!r} is missing; found: {keys}.")
        if not isinstance(data[key], dict):
            raise SchemaError(f"{path}: {key} is a {type(data[key]).__name__}, not a dict.")
        parts[key] = storage.store_of(data[key], f"{path}, {key}", (path,))

    record = data.get(RECORD, {})
    if not isinstance(record, dict) or not isinstance(record.get("config", {}), dict):
        raise SchemaError(f"{path}: key {RECORD!r} is not a record of ours.")
    others = (str(k) for k in data if k not in (*official.CHECKPOINT_KEYS, RECORD))
    return OfficialCheckpoint(path, parts, tuple(others), record)


def base_file(path: Path) -> Path | None:
    """Return the transformer's file (or index of shards) in a base folder, or None."""
    if path.is_file():
        return path
    names = (_BASE_STEM, _BASE_STEM + storage.INDEX_SUFFIX)
    files = (path / folder / name for folder in _BASE_FOLDERS for name in names)
    return next((file for file in files if file.is_file()), None)


def open_base(path: Path) -> storage.TensorStore:
    """Open the base transformer, a folder or its file. Raises InputError if it is missing."""
    file = base_file(path)
    if file is None:
        raise InputError(
            f"{path}: no {_BASE_STEM} or {storage.INDEX_SUFFIX}; valid: the folder of "
            "Wan2.2-Fun-5B-Control (acehand weights fetch wan-base)."
        )
    return storage.open_safetensors(file)


def open_vae(path: Path) -> storage.TensorStore:
    """Open ``Wan2.2_VAE.pth`` or its safetensors; a common prefix ``model.`` is removed."""
    if path.suffix == ".safetensors":
        store = storage.open_safetensors(path)
    else:
        data = storage.open_pickle(path)
        if not isinstance(data, dict):
            raise SchemaError(f"{path}: a {type(data).__name__}, not a dict of tensors.")
        store = storage.store_of(data, str(path), (path,))

    prefix = "model."
    if not store.shapes or not all(name.startswith(prefix) for name in store.shapes):
        return store
    return replace(
        store,
        shapes={name.removeprefix(prefix): shape for name, shape in store.shapes.items()},
        dtypes={name.removeprefix(prefix): dtype for name, dtype in store.dtypes.items()},
        fetch=lambda name: store.fetch(prefix + name),
    )


def read_caption(path: Path) -> state.Caption:
    """Read a caption: safetensors, or a ``.pt`` of a tensor or of ``embed``. Raises SchemaError."""
    if path.suffix == ".safetensors":
        store = storage.open_safetensors(path)
        if set(store.shapes) != {CAPTION_KEY}:
            names = ", ".join(sorted(store.shapes)) or "nothing"
            raise SchemaError(f"{path}: holds {names}; valid: {CAPTION_KEY} alone.")
        tensor: Any = store.fetch(CAPTION_KEY)
    else:
        data = storage.open_pickle(path)
        tensor = data.get("embed") if isinstance(data, dict) else data
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2 or not tensor.is_floating_point():
        raise SchemaError(f"{path}: no caption embedding; a tensor (tokens, width) is needed.")
    return tensor.detach()


def assemble(
    config: ModelConfig,
    stores: Mapping[str, storage.TensorStore],
    caption: state.Caption | None = None,
    complete: bool = True,
) -> state.LoadedWeights:
    """Check every list, then read what runs. Raises as ``state.read_parts``.

    Args:
        stores: opened files by the names of the released parts (``official.sections``).
        complete: tensors that do not run are required too.
    """
    sections = released_sections(config, stores)
    reports = state.compare(sections, stores, complete)
    parts = state.read_parts(sections, stores, reports)
    if caption is not None:
        state.check_caption(config, caption, "the caption")
    return state.LoadedWeights(
        config,
        vae=parts.get("vae"),
        trunk=parts.get("trunk") if "dit" in stores else None,  # else a patch embedding alone
        adapters=parts.get("adapters"),
        decoder=parts.get("decoder"),
        ray_head=parts.get("ray_head"),
        caption=caption,
        report=state.LoadReport(tuple(reports.values())),
    )


def released_sections(
    config: ModelConfig, stores: Mapping[str, storage.TensorStore]
) -> dict[str, WeightsSection]:
    """Return the lists of a released model, given its open files."""
    trained = stores.get("backbone_trainable")
    retrained = trained is not None and f"{official.PATCH}weight" in trained.shapes
    return official.sections(config, retrained)


def load_official(
    checkpoint: Path,
    variant: Variant | None = None,
    base: Path | None = None,
    vae: Path | None = None,
    caption: Path | None = None,
    config: ModelConfig | None = None,
    check_hashes: bool = True,
) -> state.LoadedWeights:
    """Load released files, strictly; by default those next to the checkpoint.

    See ``load.load_weights``, also for what is raised. ``config`` defaults to the sizes in the
    checkpoint's record, else the released ones.
    """
    opened = open_checkpoint(checkpoint)
    variant = choose_variant(variant, opened.variant, str(checkpoint))
    base, vae, caption = pieces_of(checkpoint, base, vae, caption)
    stores = {"dit": open_base(base), "vae": open_vae(vae), **opened.parts}
    embedding = read_caption(caption)
    config = checkpoint_config(opened, variant, config)
    weights = assemble(config, stores, embedding)

    files = {f.name: f for f in (checkpoint, vae, caption, *stores["dit"].files)}
    keys = state.ComponentReport("checkpoint", str(checkpoint), ignored=opened.ignored)
    report = replace(
        weights.report,
        components=(keys, *weights.report.components),
        filled=tuple(opened.record.get("filled_live", ())),
    )
    licence = str(opened.record.get("licence") or sums.RELEASED)
    training, inference = opened.recorded()

    return replace(
        weights,
        report=report,
        licence=licence,
        sha256s=sha256s(files) if check_hashes else {},
        training_data=training,
        inference=inference,
    )


def pieces_of(
    checkpoint: Path, base: Path | None, vae: Path | None, caption: Path | None
) -> tuple[Path, Path, Path]:
    """Return base, VAE and caption, by default next to the checkpoint. Raises InputError."""
    base = base or _beside(checkpoint, _BASE_PLACES, "`base=DIR`", "wan-base")
    if vae is None:
        folder = base if base.is_dir() else base.parent
        vae = folder / VAE_FILE
        if not vae.is_file():
            raise InputError(f"{folder}: no {VAE_FILE} here; give it with `vae=FILE`.")
    return base, vae, caption or _beside(checkpoint, _CAPTION_FILES, "`caption=FILE`", "caption")


def checkpoint_config(
    checkpoint: OfficialCheckpoint, variant: Variant, config: ModelConfig | None = None
) -> ModelConfig:
    """Return the sizes of a checkpoint: those given, of its record, or the released ones."""
    if config is not None:
        return replace(config, variant=variant)
    if "config" in checkpoint.record:
        where = f"{checkpoint.path}: {RECORD}: config"
        return structured(ModelConfig, checkpoint.record["config"], where)
    return ModelConfig(variant=variant)


def choose_variant(asked: str | None, recorded: str | None, where: str) -> Variant:
    """Return the variant. Raises InputError if it is unknown or the two disagree."""
    if asked is not None and recorded is not None and asked != recorded:
        raise InputError(f"{where}: holds the variant {recorded}, not {asked}.")
    variant = asked or recorded
    if variant not in ("k", "kfree"):
        raise InputError(f"{where}: unknown variant; give `variant=k|kfree`.")
    return cast(Variant, variant)


def _beside(checkpoint: Path, candidates: tuple[str, ...], flag: str, fetched: str) -> Path:
    for name in candidates:
        if (checkpoint.parent / name).exists():
            return checkpoint.parent / name
    names = " or ".join(candidates)
    raise InputError(
        f"{checkpoint.parent}: no {names}; give it with {flag} (acehand weights fetch {fetched})."
    )


def initial(name: str, shapes: Mapping[str, tuple[int, ...]], seed: int) -> torch.Tensor:
    """Return the initial value of a tensor, float32.

    Adapters start as identities: A like a linear layer, B zero (paper, appendix "Optimization").
    The ray head is zero, learned tokens and tables are normal with deviation 0.02, the rest as
    PyTorch's layers. Other tensors of the transformer are zero. ``shapes``: the list of the tensor;
    its scale depends on its neighbours' sizes.
    """
    shape, stem, kind = shapes[name], *name.rpartition(".")[::2]
    bare = re.sub(r"^l\d+\.", "", name)

    # The layers of an unused stack start as copies of one.
    key = re.sub(r"temporal_encoder\.layers\.\d+", "temporal_encoder.layers.0", name)
    noise = torch.Generator().manual_seed(zlib.crc32(key.encode()) ^ seed)
    if bare.endswith(_TOKENS):
        return torch.randn(shape, generator=noise) * _TOKEN_DEVIATION
    if bare == official.RAY_FREQUENCIES:
        return powers_of_two(shape[0])
    if bare in ("weight", "bias") or bare.startswith(_ZERO) or ".lora_B." in name:
        return torch.zeros(shape)

    for end, biases in _FIXED:
        if stem.endswith(end):
            is_bias = kind == "bias" and biases is not None
            return torch.tensor(biases) if is_bias else torch.zeros(shape)
    if kind.startswith("in_proj"):
        bound = math.sqrt(6 / sum(shape)) if kind.endswith("weight") else 0.0
        return _uniform(shape, bound, noise)

    weight = shapes.get(f"{stem}.weight", shape)
    if len(weight) == 1:
        return torch.ones(shape) if kind == "weight" else torch.zeros(shape)
    if kind == "bias" and stem.endswith("out_proj"):
        return torch.zeros(shape)
    return _uniform(shape, 1 / math.sqrt(math.prod(weight[1:])), noise)


def _uniform(shape: tuple[int, ...], bound: float, noise: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=noise) * (2 * bound) - bound


def save_official(
    output: Path,
    weights: state.LoadedWeights,
    base: Path | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a folder with a checkpoint in the released layout, and the caption.

    The frozen base transformer and VAE are not written. Returns the report of the export. Raises as
    ``export_official``.
    """
    if weights.trunk is None:
        raise InputError("the released layout needs a model with a transformer.")
    with atomic_folder(output, overwrite, _is_official) as folder:
        name = f"ace_ego_hand_{weights.config.variant}.pt"
        report = export_official(folder / name, weights, base, seed)
        if weights.caption is not None:
            torch.save({"embed": weights.caption.detach().clone()}, folder / "caption_embed.pt")
        (folder / "LICENSE.txt").write_text(sums.licence_text(weights.licence), "utf-8")
        sums.write_sums(folder)
    return report


def _is_official(path: Path) -> bool:
    return (path / sums.SUMS_FILE).is_file() and any(path.glob("ace_ego_hand_*.pt"))


def export_official(
    path: Path,
    weights: state.LoadedWeights,
    base: Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write ``ace_ego_hand_*.pt``, atomically; return a report of its tensors' origins.

    The released layout also has adapters after the tap, unused readouts (both as at the start of
    training) and the output head of the base (from ``base``, else zeros). The report, also stored
    under the key ``acehand``, holds the seed, the number ``from_model``, and by name those
    ``from_base`` and ``drawn``, of which ``zero`` are all zeros, and ``filled_live``, which the
    model's own source lacked.

    Raises:
        InputError: a feature source outside the layout.
        SchemaError: names each missing, unexpected or wrong tensor.
        OutputError: it exists, or cannot be written.
    """
    config = weights.config
    if config.source not in TRUNK_SOURCES:
        raise InputError(f"source {config.source!r}: the released layout holds only wan.")
    parts = _trained_parts(weights)
    head: Tensors = {}
    if base is not None:
        store, wanted = open_base(base), official.dit_head(config.trunk)
        store = replace(store, shapes={n: s for n, s in store.shapes.items() if n in wanted})
        state.check(WeightsSection("head", wanted), store).require()
        # Released checkpoints keep everything trainable in float32.
        head = {name: store.fetch(name).float() for name in wanted}

    data: dict[str, Any] = {}
    from_model, drawn, zero = 0, [], []
    sections = official.sections(config)

    for name in official.CHECKPOINT_KEYS:
        shapes, data[name] = sections[name].shapes, {}
        given = sections[name].write(parts)
        from_model += len(given)
        for tensor, shape in shapes.items():
            value = given.get(tensor, head.get(tensor))
            if value is None:
                value = initial(tensor, shapes, seed)
                drawn.append(f"{name}: {tensor}")
                if not value.any():
                    zero.append(f"{name}: {tensor}")
            # A clone, since a view would be saved with its whole storage.
            data[name][tensor] = value.detach().clone().reshape(shape)

    report = {
        "seed": seed,
        "from_model": from_model,
        "from_base": list(head),
        "drawn": drawn,
        "zero": zero,
        "filled_live": list(weights.report.filled),
    }
    data[RECORD] = {"format": 1, **weights.record(), **report}
    with atomic_path(path) as temporary:
        torch.save(data, temporary)
    return report


def _trained_parts(weights: state.LoadedWeights) -> dict[str, Tensors]:
    """Return a model's part of a checkpoint, checked: of the trunk its patch embedding."""

    def patch(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {n: value for n, value in tensors.items() if n.startswith(official.PATCH)}

    trained = ("trunk", "adapters", "decoder", "ray_head")
    shapes = state.state_shapes(weights.config)
    listed = {part: shapes[part] for part in trained if part in shapes}
    parts = {part: tensors for part, tensors in weights.parts().items() if part in trained}
    listed["trunk"], parts["trunk"] = patch(listed["trunk"]), patch(parts.get("trunk", {}))
    state.check_parts(parts, listed)
    return parts
