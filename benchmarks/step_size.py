"""How large a training step is before anything is loaded: parameters and activations.

Parameters are counted on the meta device. Activations are what autograd keeps, by formula; a run on
a GPU reports what it really took (``python -m benchmarks.train_step``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from acehand_core.model.config import TEMPORAL_STRIDE, TOKEN_PIXELS, ModelConfig
from acehand_core.model.weights import accounting

_FLOAT, _HALF = 4, 2
#: AdamW: gradient and two moments beside the float32 weight.
_PER_TRAINED = 4 * _FLOAT


@dataclass(frozen=True, slots=True)
class StepSize:
    """Counts of parameters and bytes on one GPU.

    ``registered`` is what the paper's optimiser is given, ``reached`` what a gradient can reach and
    all that is held here, ``frozen`` the rest that is held. ``activations`` is the sum of block
    inputs kept by checkpointing (``kept``), the one block recomputed at a time (``block``) and the
    decoder (``decoder``).
    """

    registered: int
    reached: int
    frozen: int
    tokens: int
    kept: int
    block: int
    decoder: int
    weights: int
    optimiser: int

    @property
    def activations(self) -> int:
        """Bytes of activations at the worst moment."""
        return self.kept + self.block + self.decoder

    @property
    def total(self) -> int:
        """Bytes in all, without the allocator's slack and temporary buffers of kernels."""
        return self.activations + self.weights + self.optimiser

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {**asdict(self), "activations": self.activations, "total": self.total}


def step_size(
    config: ModelConfig, clips: int, frames: int, width: int, height: int, checkpointing: bool
) -> StepSize:
    """Estimate a step of the model that reads the transformer, frozen weights in bfloat16.

    Attention does not keep its matrix (fused kernels). A block keeps, per token and channel, in
    bfloat16 unless noted: two modulated inputs, queries, keys, values and output of self-attention
    (with float32 copies for norm and rotation), the same without keys and values for
    cross-attention, its residuals in float32, and three times the feed-forward width.
    """
    counted = accounting.account(config)
    latents = (frames - 1) // TEMPORAL_STRIDE + 1
    tokens = latents * (width // TOKEN_PIXELS) * (height // TOKEN_PIXELS)
    dim, wide = config.trunk.dim, config.trunk.ffn_dim
    rank = config.trunk.lora_rank
    channels = (
        (2 * _HALF + 4 * _HALF + 4 * _FLOAT + 3 * _HALF + 2 * _FLOAT + 4 * _FLOAT) * dim
        + 3 * _HALF * wide
        + 10 * _HALF * rank
    )
    block = clips * tokens * channels
    stream = clips * tokens * dim * _FLOAT
    executed = config.trunk.executed
    kept = stream * executed if checkpointing else block * (executed - 1)
    decoder = config.decoder
    queries = 2 + 42 + decoder.num_registers
    per_round = tokens * 4 + latents * queries * (10 + 2 * decoder.mlp_ratio)
    attention = decoder.num_heads * latents * queries * (tokens // latents)
    video_frames = frames * 2 * 8
    decoding = (
        clips
        * _FLOAT
        * (
            decoder.width * (per_round * decoder.num_layers + 6 * tokens + video_frames)
            + attention * (decoder.num_layers + 1)
            + tokens * decoder.feature_dim
        )
    )
    reached, live = counted["live_trained"], counted["live"]

    return StepSize(
        registered=counted["optimiser"],
        reached=reached,
        frozen=live - reached,
        tokens=tokens,
        kept=kept,
        block=block,
        decoder=decoding,
        weights=(live - reached) * _HALF,
        optimiser=reached * _PER_TRAINED,
    )
