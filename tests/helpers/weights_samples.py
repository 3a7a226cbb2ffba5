"""Small made-up weights in the released layout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from acehand_core.ace.model.config import DecoderConfig, ModelConfig, TrunkConfig, VaeConfig
from acehand_core.ace.model.weights import official, repackaged, sums
from acehand_core.ace.model.weights.state import LoadedWeights

TINY = ModelConfig(
    variant="kfree",
    vae=VaeConfig(base_dim=8, z_dim=4),
    trunk=TrunkConfig(
        dim=48, ffn_dim=64, num_heads=2, num_layers=4, in_channels=20, out_channels=4, text_dim=32,
        text_length=16, freq_dim=16, tap=1, lora_rank=4, lora_alpha=4.0,
    ),
    decoder=DecoderConfig(feature_dim=48, width=48, num_heads=8, num_layers=2, max_latents=8),
)  # fmt: skip
CHECKPOINT = "ace_ego_hand_kfree.pt"
Tensors = dict[str, torch.Tensor]


def random(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype) -> Tensors:
    """Return random tensors; the one buffer has its fixed values."""
    noise = torch.Generator().manual_seed(seed)
    out = {n: torch.randn(shape, generator=noise).to(dtype) for n, shape in shapes.items()}
    for name in out:
        if name.endswith(official.RAY_FREQUENCIES):
            out[name] = 2.0 ** torch.arange(out[name].numel(), dtype=torch.float32)
    return out


@dataclass
class Release:
    """Released parts in memory, as official names; ``write`` puts them on the disk."""

    config: ModelConfig
    dit: Tensors
    vae: Tensors
    checkpoint: dict[str, Any]
    caption: torch.Tensor

    @property
    def parts(self) -> dict[str, Tensors]:
        return {key: self.checkpoint[key] for key in official.CHECKPOINT_KEYS}

    def write(self, folder: Path, shards: int = 1, record: bool = True) -> Path:
        """Write checkpoint, base folder and caption; return the checkpoint's path."""
        base = folder / "Wan2.2-Fun-5B-Control"
        base.mkdir(parents=True, exist_ok=True)
        trunk = self.config.trunk
        settings = {
            "dim": trunk.dim, "ffn_dim": trunk.ffn_dim, "freq_dim": trunk.freq_dim,
            "in_dim": trunk.in_channels, "num_heads": trunk.num_heads,
            "num_layers": trunk.num_layers, "out_dim": trunk.out_channels,
            "text_len": trunk.text_length,
        }  # fmt: skip
        (base / "config.json").write_text(json.dumps(settings))
        write_base(base, self.dit, shards)
        # The released VAE file also holds what decoding needs.
        torch.save({**self.vae, "decoder.conv1.weight": torch.ones(2)}, base / "Wan2.2_VAE.pth")
        torch.save({"embed": self.caption, "caption": "hands"}, folder / "caption_embed.pt")
        data = dict(self.checkpoint)
        if record:
            data["acehand"] = {"config": asdict(self.config)}
        torch.save(data, folder / CHECKPOINT)
        return folder / CHECKPOINT


def write_base(base: Path, dit: Tensors, shards: int = 1) -> None:
    """Write the base transformer as one file, or as shards with an index."""
    stem = "diffusion_pytorch_model"
    if shards == 1:
        save_file(dit, base / f"{stem}.safetensors")
        return
    weight_map, names = {}, sorted(dit)
    for number in range(shards):
        file = f"{stem}-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: dit[name] for name in names[number::shards]}
        save_file(part, base / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (base / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


def release(config: ModelConfig = TINY, seed: int = 0) -> Release:
    """Return a made-up release: base in bfloat16, the rest in float32, as the real one."""
    tap = config.trunk.tap
    checkpoint = {
        "projectors": random(official.projectors(config.decoder, tap), seed + 1, torch.float32),
        "raymap_heads": random(
            official.raymap_heads(config.decoder.feature_dim, tap), seed + 2, torch.float32
        ),
        "backbone_trainable": random(
            official.backbone_trainable(config.trunk), seed + 3, torch.float32
        ),
        "step": 20000,
    }
    caption = torch.randn(5, config.trunk.text_dim, generator=torch.Generator().manual_seed(9))
    return Release(
        config,
        random(official.dit(config.trunk), seed + 4, torch.bfloat16),
        random(official.vae(config.vae), seed + 5, torch.float32),
        checkpoint,
        caption,
    )


def write_repackaged(path: Path, weights: LoadedWeights) -> None:
    """Write the safetensors re-packaging as its maker does: one variant, without a wrist head."""
    config, v = weights.config, weights.config.variant
    parts, trunk = weights.parts(), config.trunk
    files = {file: list_.write(parts) for file, list_ in repackaged.sections(config).items()}
    bands = 2.0 ** torch.arange(config.decoder.ray_frequencies, dtype=torch.float32)
    files[f"{v}/projector/model.safetensors"][repackaged.RAY_FREQUENCIES] = bands
    files[repackaged.CAPTION_FILE] = {"caption_embedding": weights.caption}
    settings = {
        "dit": {"num_layers": trunk.executed}
        | {theirs: getattr(trunk, ours) for theirs, ours in repackaged._DIT.items()},
        "vae": {theirs: getattr(config.vae, ours) for theirs, ours in repackaged._VAE.items()},
        v: {"rank": trunk.lora_rank, "alpha": trunk.lora_alpha},
        f"{v}/projector": {
            theirs: getattr(config.decoder, ours) for theirs, ours in repackaged._PROJECTOR.items()
        },
    }
    for file, tensors in files.items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        save_file({name: t.contiguous() for name, t in tensors.items()}, path / file)
    for folder, values in settings.items():
        (path / folder / "config.json").write_text(json.dumps(values))
    sums.write_sums(path)


def flip_bit(path: Path, at: int) -> None:
    """Change one bit of a file but neither its name, its size nor its time."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two dicts hold the same tensors, names, precisions and bits."""
    return left.keys() == right.keys() and all(
        left[n].dtype == right[n].dtype and torch.equal(left[n], right[n]) for n in left
    )
