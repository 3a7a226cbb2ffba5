"""The configuration of a set of weights: sizes, variant, and how to run it.

Default sizes are those of the released model; tests use tiny ones. Needs no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from acehand_core.errors import InputError
from acehand_core.user_files import Count, Valid, structured

Precision = Literal["bfloat16", "float32"]

#: Frames per latent after the first, and pixels per latent cell.
TEMPORAL_STRIDE = 4
SPATIAL_STRIDE = 16
#: One decoder token covers this many pixels: the trunk's patches are 2 x 2 latent cells.
TOKEN_PIXELS = 32
#: The same of the tiny encoder (latents of 8 pixels).
TINY_TOKEN_PIXELS = 16

SLOTS = 2
JOINTS = 21
FINGER_JOINTS = 15
BETAS = 10

#: "k" takes bearings from the given intrinsics, "kfree" from the predicted rays.
Variant = Literal["k", "kfree"]
BearingSource = Literal["intrinsics", "rays", "pinhole", "radial"]
SolveKind = Literal["mixed", "rigid", "inverse", "direct"]
Fallback = Literal["released", "paper"]
#: Which fitted pinholes place hands: ``camera_fit.guarded_pinhole``.
FitGuards = Literal["paper", "excess"]
#: Cell positions of the ray field when bearings are read off it.
RayCells = Literal["edges", "centres"]
TrainedHand = Literal["mano", "acehand"]


@dataclass(frozen=True, slots=True)
class VaeConfig:
    """The Wan 2.2 video VAE; only its encoder is built."""

    base_dim: int = 160
    z_dim: int = 48


@dataclass(frozen=True, slots=True)
class TrunkConfig:
    """The Wan 2.2 diffusion transformer, read after block ``tap`` (zero-indexed)."""

    dim: int = 3072
    ffn_dim: int = 14336
    num_heads: int = 24
    num_layers: int = 30
    in_channels: int = 148
    out_channels: int = 48
    text_dim: int = 4096
    text_length: int = 512
    freq_dim: int = 256
    tap: int = 15
    #: 0 builds no adapters.
    lora_rank: int = 64
    lora_alpha: float = 64.0
    #: Noise level at which the latents are read; the paper's table "Clean versus noised" tries 0.5.
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.tap < self.num_layers:
            raise InputError(f"tap {self.tap}: valid: 0 to {self.num_layers - 1}.")
        if not 0 <= self.sigma <= 1:
            raise InputError(f"sigma {self.sigma}: valid: 0 to 1.")
        _check_heads(self.dim, self.num_heads)

    @property
    def executed(self) -> int:
        """Number of blocks that run; the others are neither loaded nor allocated."""
        return self.tap + 1


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """The small trainable encoder in place of the Wan ones (``encoder.sources``)."""

    #: Channels of the encoder's first convolution.
    stem: int = 32
    z_dim: int = 48
    dim: int = 96
    ffn_dim: int = 288
    num_heads: int = 3
    num_layers: int = 2
    #: Off: tokens attend within their own latent frame only, with the same parameters.
    temporal_attention: bool = True

    def __post_init__(self) -> None:
        _check_heads(self.dim, self.num_heads)
        if self.dim // self.num_heads < 6:
            raise InputError(f"heads of {self.dim // self.num_heads} channels; valid: 6 or more.")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The Bidirectional Spatiotemporal Decoder (paper section 3.2).

    ``spatial_encoding`` to ``temporal_encoding`` are the ablations of the paper's table "Camera and
    decoder ablations".
    """

    feature_dim: int = 3072
    width: int = 384
    num_heads: int = 8
    num_layers: int = 4
    mlp_ratio: int = 4
    num_registers: int = 4
    ray_frequencies: int = 8
    #: Side of the learned grid that is resized to the tokens.
    spatial_grid: int = 16
    spatial_encoding: bool = True
    queries: Literal["joint", "pooled"] = "joint"
    shape_from: Literal["hands", "registers"] = "hands"
    temporal_encoding: Literal["rotary", "absolute"] = "rotary"
    #: Longest clip, in latent frames, that absolute positions are learned for.
    max_latents: int = 64
    #: Off: tokens attend within their own latent frame only, with the same parameters.
    temporal_attention: bool = True

    def __post_init__(self) -> None:
        _check_heads(self.width, self.num_heads)

    @property
    def head_width(self) -> int:
        """Hidden width of the readout heads."""
        return max(128, self.width // 2)


def _check_heads(width: int, heads: int) -> None:
    if width % heads or width // heads % 2:
        raise InputError(f"width {width} with {heads} heads: heads of an even width are needed.")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model."""

    variant: Variant = "k"
    #: The feature source; see ``encoder.sources``.
    source: str = "wan"
    vae: VaeConfig = VaeConfig()
    trunk: TrunkConfig = TrunkConfig()
    decoder: DecoderConfig = DecoderConfig()
    #: For the source "tiny".
    tiny: TinyConfig = TinyConfig()


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a trained model is run by default: as it was trained.

    None means not recorded, and as the released code does. ``bearings``, ``solve``, ``fallback``,
    ``fit_guards``, ``ray_cells``: see ``network.SolveOptions``. ``encode_width`` is in pixels, 0
    for the video's own; ``window_latents`` is the length of the training windows.
    """

    bearings: BearingSource | None = None
    solve: SolveKind | None = None
    fallback: Fallback | None = None
    hand_model: TrainedHand | None = None
    encode_width: Count | None = None
    window_latents: Annotated[int, Valid("2 or more", lambda n: n >= 2)] | None = None
    fit_guards: FitGuards | None = None
    ray_cells: RayCells | None = None

    @classmethod
    def from_json(cls, data: Any, where: str) -> InferenceConfig:
        """Read a config file's object, None in older files. Raises SchemaError naming the field."""
        return cls() if data is None else structured(cls, data, where)

    def describe(self) -> str:
        """Return the recorded values in one line."""
        recorded = [f"{k} {v}" for k, v in asdict(self).items() if v is not None]
        return f"run as: {', '.join(recorded) or 'not recorded; as the released code does'}"


#: Of weights without a record.
AS_RELEASED = InferenceConfig()
