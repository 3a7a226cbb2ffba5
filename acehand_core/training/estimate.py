"""How large a training step is before anything is loaded: parameters, activations, operations.

Parameters are counted on the meta device. Activations are what autograd keeps, by formula; a run on
a GPU reports what it really took (``python -m benchmarks.train_step``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from acehand_core.model.config import (
    SPATIAL_STRIDE,
    TEMPORAL_STRIDE,
    TOKEN_PIXELS,
    ModelConfig,
    TrunkConfig,
)
from acehand_core.model.weights import accounting

#: Width and height.
Size = tuple[int, int]

_FLOAT, _HALF = 4, 2
#: Matrix products of attention's backward pass for the two of its forward pass: fused kernels make
#: one again and have four of their own.
_ATTENTION_BACKWARD = 5 / 2
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


@dataclass(frozen=True, slots=True)
class Flops:
    """Floating-point operations of one clip in the truncated transformer, two per multiply-add.

    ``linear``, ``adapters``, ``attention`` and ``patches`` are the forward pass. ``recomputed`` is
    the second one that checkpointing makes.
    """

    linear: int
    adapters: int
    attention: int
    patches: int
    backward: int
    recomputed: int

    @property
    def forward(self) -> int:
        """The forward pass alone."""
        return self.linear + self.adapters + self.attention + self.patches

    @property
    def total(self) -> int:
        """Everything that a training step does for a clip."""
        return self.forward + self.backward + self.recomputed


def trunk_flops(
    trunk: TrunkConfig, channels: int, latents: int, size: Size, checkpointing: bool
) -> Flops:
    """Count one clip. Norms, modulation and other work per element are left out.

    Per block, with N tokens, a context of M, width D, feed-forward width E and adapters of rank r:
    linear layers 2 N (6 D^2 + 2 D E) + 2 M (2 D^2), attention 4 N (N + M) D, adapters 2 r times the
    sum over the ten layers of rows (inputs + outputs). Backwards a frozen layer gives the gradient
    of its input alone (as much again), an adapter that of its weights too; nothing goes back into
    the context, nor below the patch embedding, of which the latents' channels are multiplied.
    """
    tokens = latents * (size[0] // TOKEN_PIXELS) * (size[1] // TOKEN_PIXELS)
    dim, wide, rank, context = trunk.dim, trunk.ffn_dim, trunk.lora_rank, trunk.text_length
    blocks = trunk.executed
    on_context = 2 * context * 2 * dim**2 * blocks
    linear = 2 * tokens * (6 * dim**2 + 2 * dim * wide) * blocks + on_context
    attention = 4 * tokens * (tokens + context) * dim * blocks
    down_on_context = 2 * rank * context * 2 * dim * blocks
    adapters = 2 * rank * tokens * (6 * 2 * dim + 2 * (dim + wide)) * blocks + 2 * down_on_context
    patches = 2 * tokens * dim * channels * (TOKEN_PIXELS // SPATIAL_STRIDE) ** 2
    backward = (
        (linear - on_context)
        + (2 * adapters - down_on_context)
        + round(_ATTENTION_BACKWARD * attention)
        + patches
    )
    recomputed = linear + adapters + attention if checkpointing else 0

    return Flops(linear, adapters, attention, patches, backward, recomputed)
