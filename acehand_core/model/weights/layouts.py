"""Whole sets of tensors from one layout to another: renamed, split into rows, fused, reshaped.

Every function takes and returns a dict and copies no values but where rows are fused. They also run
on tensors of the ``meta`` device, which is how the lists of names and shapes of the running model
and of the re-packaging are made: there is one rule for values and for lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from acehand_core.errors import InputError, SchemaError
from acehand_core.model.config import DecoderConfig, ModelConfig, TinyConfig, TrunkConfig, VaeConfig
from acehand_core.model.encoder.tiny import TinySource
from acehand_core.model.weights import names, official
from acehand_core.model.weights.official import Shapes

Tensors = dict[str, torch.Tensor]

#: Feature sources that read the transformer, with and without adapters.
WAN_SOURCES = ("wan", "wan_frozen")
_THREE = ("query", "key", "value")
_RAY_HEAD = "ray_head."


def meta(shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return tensors of these shapes that take no memory."""
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def shapes_of(tensors: Mapping[str, torch.Tensor]) -> Shapes:
    """Return the shapes of tensors."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def rename(tensors: Mapping[str, torch.Tensor], to: Callable[[str], str | None]) -> Tensors:
    """Return the tensors under new names. Raises SchemaError for one that has none."""
    out = {}
    for name, tensor in tensors.items():
        target = to(name)
        if target is None or target in out:
            raise SchemaError(f"tensor {name!r} has no place in the other layout.")
        out[target] = tensor
    return out


# --- from and to the released names ---


def trunk_from_official(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return transformer tensors or adapters under the running trunk's names."""
    return rename(tensors, names.DIT.forward)


def trunk_to_official(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return trunk tensors or adapters under the released names."""
    return rename(tensors, names.DIT.backward)


def vae_from_official(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the VAE's encoder under the running names."""
    return rename(tensors, names.VAE.forward)


def decoder_from_official(
    config: DecoderConfig, tensors: Mapping[str, torch.Tensor], tap: int
) -> Tensors:
    """Return the part of ``projectors`` that the model has, under the running names."""
    bare = {name.removeprefix(f"l{tap}."): tensor for name, tensor in tensors.items()}
    kept = {name: tensor for name, tensor in bare.items() if _is_live(name, config)}
    return _split_rows(rename(kept, names.decoder(config).forward), r"layers\.\d+\.temporal")


def decoder_to_official(
    config: DecoderConfig, tensors: Mapping[str, torch.Tensor], tap: int
) -> Tensors:
    """Return a running decoder under the released names; what it lacks is not there."""
    fused = dict(tensors)
    if config.temporal_encoding == "absolute":
        fused = _fuse_rows(fused, r"layers\.\d+\.temporal")
    bare = rename(fused, names.decoder(config).backward)
    return {f"l{tap}.{name}": tensor for name, tensor in bare.items()}


def ray_head_from_official(tensors: Mapping[str, torch.Tensor], tap: int) -> Tensors:
    """Return ``raymap_heads`` as ``weight`` and ``bias``."""
    return {name.removeprefix(f"l{tap}."): tensor for name, tensor in tensors.items()}


def ray_head_to_official(tensors: Mapping[str, torch.Tensor], tap: int) -> Tensors:
    """Return a ray head as ``raymap_heads``."""
    return {f"l{tap}.{name}": tensor for name, tensor in tensors.items()}


def _is_live(name: str, config: DecoderConfig) -> bool:
    return name != official.RAY_FREQUENCIES and official.runs_in_projectors(name, config)


# --- from and to the re-packaging ---


def trunk_to_repackaged(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return a running trunk as ``dit/`` stores it."""
    return rename(trunk_to_official(tensors), names.DIT_REPACKAGED.forward)


def trunk_from_repackaged(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return ``dit/`` under the running names."""
    return trunk_from_official(rename(tensors, names.DIT_REPACKAGED.backward))


def delta_to_repackaged(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return adapters and patch embedding as ``backbone_delta`` stores them."""
    plain = {name.replace(".default.", "."): t for name, t in tensors.items()}
    return trunk_to_repackaged(plain)


def delta_from_repackaged(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return ``backbone_delta`` under the running names."""
    return {
        re.sub(r"(\.lora_[AB])\.", r"\1.default.", name): tensor
        for name, tensor in trunk_from_repackaged(tensors).items()
    }


def vae_to_repackaged(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return a running VAE as ``vae/`` stores it: gains of the norms are flat."""
    flat = {n: t.reshape(-1) if n.endswith(".gamma") else t for n, t in tensors.items()}
    return rename(flat, names.VAE_REPACKAGED.forward)


def vae_from_repackaged(config: VaeConfig, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return ``vae/`` under the running names, gains of the norms in their broadcast shape."""
    shapes = live_vae(config)
    out = rename(tensors, names.VAE_REPACKAGED.backward)
    return {n: t.reshape(shapes[n]) if n.endswith(".gamma") else t for n, t in out.items()}


def decoder_to_repackaged(
    tensors: Mapping[str, torch.Tensor], ray_head: Mapping[str, torch.Tensor]
) -> tuple[Tensors, Tensors]:
    """Return the projector file, and the tensors that the re-packaging has no place for."""
    split = _split_rows(dict(tensors), r"readout|layers\.\d+\.spatial")
    out = {_RAY_HEAD + name: tensor for name, tensor in ray_head.items()}
    rest = {}
    for name, tensor in split.items():
        if name.startswith(names.NOT_REPACKAGED):
            rest[name] = tensor
        else:
            out[names.DECODER_REPACKAGED.forward(name) or name] = tensor
    return out, rest


def decoder_from_repackaged(tensors: Mapping[str, torch.Tensor]) -> tuple[Tensors, Tensors]:
    """Return decoder and ray head of a projector file, without what it has no place for."""
    ray_head, out = {}, {}
    for name, tensor in tensors.items():
        if name.startswith(_RAY_HEAD):
            ray_head[name.removeprefix(_RAY_HEAD)] = tensor
        elif name != names.REPACKAGED_RAY_FREQUENCIES:
            out[names.DECODER_REPACKAGED.backward(name) or name] = tensor
    return _fuse_rows(out, r"readout|layers\.\d+\.spatial"), ray_head


def _split_rows(tensors: Tensors, stems: str) -> Tensors:
    """Replace fused query, key and value rows under the matching stems by three tensors."""
    fused = re.compile(rf"({stems})\.in_proj_(weight|bias)")
    out = {}
    for name, tensor in tensors.items():
        found = fused.fullmatch(name)
        if found is None:
            out[name] = tensor
            continue
        for part, rows in zip(_THREE, tensor.chunk(3), strict=True):
            out[f"{found[1]}.{part}.{found[2]}"] = rows
    return out


def _fuse_rows(tensors: Tensors, stems: str) -> Tensors:
    """Undo ``_split_rows``; the dict is emptied of what is fused, so nothing is held twice."""
    part = re.compile(rf"({stems})\.query\.(weight|bias)")
    out = dict(tensors)
    for name in tensors:
        found = part.fullmatch(name)
        if found is not None:
            rows = [out.pop(f"{found[1]}.{which}.{found[2]}") for which in _THREE]
            out[f"{found[1]}.in_proj_{found[2]}"] = torch.cat(rows)
    return out


# --- lists of the running model ---


def live_vae(config: VaeConfig) -> Shapes:
    """Return names and shapes of the running VAE."""
    return shapes_of(vae_from_official(meta(official.vae(config))))


def live_trunk(config: TrunkConfig) -> Shapes:
    """Return names and shapes of the trunk up to its tap, the layers of its constants included."""
    return shapes_of(trunk_from_official(meta(run_part(official.dit(config), config))))


def live_adapters(config: TrunkConfig) -> Shapes:
    """Return names and shapes of the adapters of the executed blocks."""
    return shapes_of(trunk_from_official(meta(run_part(official.lora(config), config))))


def live_decoder(config: DecoderConfig) -> Shapes:
    """Return names and shapes of the running decoder."""
    tap = 0
    return shapes_of(decoder_from_official(config, meta(official.projectors(config, tap)), tap))


def live_ray_head(config: DecoderConfig) -> Shapes:
    """Return names and shapes of the ray head."""
    return shapes_of(ray_head_from_official(meta(official.raymap_heads(config.feature_dim, 0)), 0))


def live_tiny(config: TinyConfig) -> Shapes:
    """Return names and shapes of the source "tiny"."""
    with torch.device("meta"):
        return shapes_of(TinySource(config).state_dict())


def live_parts(config: ModelConfig) -> dict[str, Shapes]:
    """Return the lists of all parts that a model with this feature source has."""
    wan = config.source in WAN_SOURCES
    out = {}
    if wan or config.source == "vae_latent":
        out["vae"] = live_vae(config.vae)
    if wan:
        out["trunk"] = live_trunk(config.trunk)
    if config.source == "wan" and config.trunk.lora_rank:
        out["adapters"] = live_adapters(config.trunk)
    if config.source == "tiny":
        out["tiny"] = live_tiny(config.tiny)
    out["decoder"] = live_decoder(config.decoder)
    return out | {"ray_head": live_ray_head(config.decoder)}


def run_part(shapes: Mapping[str, tuple[int, ...]], config: TrunkConfig) -> Shapes:
    """Return what takes part up to the tap of a list in released transformer names."""
    return {name: shape for name, shape in shapes.items() if official.runs_in_dit(name, config)}


# --- lists of the re-packaging ---


def repackaged(config: ModelConfig) -> dict[str, Shapes]:
    """Return the list of each file of the re-packaging, with the variant's folder filled in.

    Raises InputError for a decoder that it cannot describe.
    """
    refuse_ablations(config.decoder)
    trunk, v = config.trunk, config.variant
    patch = {n: s for n, s in live_trunk(trunk).items() if n.startswith("patch_embedding.")}
    projector, _ = decoder_to_repackaged(
        meta(live_decoder(config.decoder)), meta(live_ray_head(config.decoder))
    )
    frequencies = {names.REPACKAGED_RAY_FREQUENCIES: (config.decoder.ray_frequencies,)}
    return {
        "dit/model.safetensors": shapes_of(trunk_to_repackaged(meta(live_trunk(trunk)))),
        "vae/model.safetensors": shapes_of(vae_to_repackaged(meta(live_vae(config.vae)))),
        f"{v}/backbone_delta.safetensors": shapes_of(
            delta_to_repackaged(meta(patch | live_adapters(trunk)))
        ),
        f"{v}/projector/model.safetensors": shapes_of(projector) | frequencies,
    }


def refuse_ablations(config: DecoderConfig) -> None:
    """Raise InputError for a decoder other than the paper's, which the re-packaging cannot hold."""
    plain = DecoderConfig()
    ablated = ("spatial_encoding", "queries", "shape_from", "temporal_encoding")
    for field in (*ablated, "temporal_attention"):
        if getattr(config, field) != getattr(plain, field):
            raise InputError(
                f"the re-packaging holds only {field} = {getattr(plain, field)!r}, not "
                f"{getattr(config, field)!r}; valid: the layouts acehand and official."
            )
