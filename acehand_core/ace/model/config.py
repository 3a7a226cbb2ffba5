"""The configuration of a set of weights: sizes, variant, and how to run it.

Default sizes are those of the released model; tests use tiny ones. Needs no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

from acehand_core.errors import InputError
from acehand_core.settings import like, setting
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
class SolveOptions:
    """How hands are placed before the camera. Defaults are those of the released code.

    ``solve``: "mixed" PnP of the paper; "rigid" PnP of all joints against the anchors; or the
    ablations "inverse" and "direct", without joints; see ``pnp``. For ``fit_guards`` see
    ``camera_fit.guarded_pinhole``; clips with a rejected fit read the rays, cells at their centres.
    """

    bearings: BearingSource = setting(
        "intrinsics",
        "source of the bearings: the given intrinsics, the ray field, or a lens fitted to it",
    )
    solve: SolveKind = setting(
        "mixed", "how hands are placed; without MANO files rigid replaces mixed"
    )
    fallback: Fallback = setting("released", "placement of a hand with rejected anchors")
    fit_guards: FitGuards = setting(
        "excess",
        "with `bearings=pinhole`: the paper's two guards on a fit, or also no excess over a radial "
        "lens",
    )
    ray_cells: RayCells = setting(
        "edges",
        "with `bearings=rays`: outer cells on the image's edges, as released, or all at their "
        "centres",
    )


#: As the released code decodes.
RELEASED: dict[Variant, SolveOptions] = {
    "k": SolveOptions("intrinsics"),
    "kfree": SolveOptions("rays"),
}
_AS_TRAINED = "as trained, else as released"
#: Encode width of a video's own size, in text.
NATIVE = "native"


def _encode_width(text: str) -> int:
    """Return a width in pixels, 0 for the video's own. Raises ValueError."""
    if text != NATIVE and not text.isdecimal():
        raise ValueError(f"{text!r} is neither {NATIVE} nor a width in pixels (832 as released)")
    return 0 if text == NATIVE else int(text)


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a trained model is run: as recorded in its weights, or as asked for instead.

    None means not recorded, and as the released code does. ``encode_width`` is in pixels, 0 for the
    video's own; ``window_latents`` is the length of the training windows.
    """

    bearings: BearingSource | None = like(SolveOptions, "bearings", None, default_text=_AS_TRAINED)
    solve: SolveKind | None = like(SolveOptions, "solve", None, default_text=_AS_TRAINED)
    fallback: Fallback | None = like(SolveOptions, "fallback", None, default_text=_AS_TRAINED)
    hand_model: TrainedHand | None = setting(
        None, "hand model of the training", default_text="as trained, else mano"
    )
    encode_width: Count | None = setting(
        None,
        "width of the video for the model, or native",
        default_text="as trained, else 832",
        metavar="PIXELS",
        parse=_encode_width,
        low=0,
        high=4096,  # beyond it the trunk sees far more tokens than in training
    )
    window_latents: Annotated[int, Valid("2 or more", lambda n: n >= 2)] | None = setting(
        None,
        "latents of a window; below 22, adjacent windows share one latent",
        default_text="as trained, else 22",
        low=2,
        high=1024,
    )
    fit_guards: FitGuards | None = like(
        SolveOptions, "fit_guards", None, default_text="as trained, else excess"
    )
    ray_cells: RayCells | None = like(
        SolveOptions, "ray_cells", None, default_text="as trained, else edges"
    )

    @classmethod
    def from_json(cls, data: Any, where: str) -> InferenceConfig:
        """Read a config file's object, None in older files. Raises SchemaError naming the field."""
        return cls() if data is None else structured(cls, data, where)

    def applied_to(self, trained: InferenceConfig) -> tuple[InferenceConfig, tuple[str, ...]]:
        """Return ``trained`` with what is given here, and a sentence per value that differs."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        notes = tuple(
            f"{name} {value}; these weights were trained with {was}"
            for name, value in given.items()
            if (was := getattr(trained, name)) is not None and was != value
        )
        return replace(trained, **given), notes

    def describe(self) -> str:
        """Return the recorded values in one line."""
        recorded = [f"{k} {v}" for k, v in asdict(self).items() if v is not None]
        return f"run as: {', '.join(recorded) or 'not recorded; as the released code does'}"


#: Of weights without a record.
AS_RELEASED = InferenceConfig()
