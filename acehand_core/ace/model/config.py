"""The configuration of a set of weights: sizes, variant, and how to run it.

Default sizes are those of the released model; tests use tiny ones. Needs no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from acehand_core.errors import InputError, SchemaError, nearest

Precision = Literal["bfloat16", "float32"]

#: Frames per latent after the first, and pixels per latent cell.
TEMPORAL_STRIDE = 4
SPATIAL_STRIDE = 16
#: One decoder token covers this many pixels: the trunk's patches are 2 x 2 latent cells.
TOKEN_PIXELS = 32
#: The same of the tiny encoder (latents of 8 pixels).
TINY_TOKEN_PIXELS = 16


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


SLOTS = 2
JOINTS = 21
FINGER_JOINTS = 15
BETAS = 10


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
    encode_width: int | None = None
    window_latents: int | None = None
    fit_guards: FitGuards | None = None
    ray_cells: RayCells | None = None

    @classmethod
    def from_json(cls, data: Any, where: str) -> InferenceConfig:
        """Read a config file's object, None in older files. Raises SchemaError naming the field."""
        if data is None:
            return cls()
        values = checked(cls, data, f"{where}: ")
        for name, least in (("encode_width", 0), ("window_latents", 2)):
            if values.get(name) is not None and values[name] < least:
                raise SchemaError(f"{where}: {name} is {values[name]}; {least} or more is needed.")
        return cls(**values)

    def describe(self) -> str:
        """Return the recorded values in one line."""
        recorded = [f"{k} {v}" for k, v in asdict(self).items() if v is not None]
        return f"run as: {', '.join(recorded) or 'not recorded; as the released code does'}"


#: Of weights without a record.
AS_RELEASED = InferenceConfig()


T = TypeVar("T")


def read(kind: type[T], data: Any, prefix: str = "") -> T:
    """Return a JSON object as a dataclass, with the dataclasses in it.

    ``prefix`` is the file or group, with its separator, before a field's name in errors. Raises
    SchemaError, InputError.
    """
    values, hints = checked(kind, data, prefix), get_type_hints(kind)
    for name, value in values.items():
        hint, inside = hints[name], f"{prefix}{name}."
        if isinstance(hint, type) and is_dataclass(hint):
            values[name] = read(hint, value, inside)
        elif get_origin(hint) is dict:  # of names to dataclasses
            entry = get_args(hint)[1]
            values[name] = {key: read(entry, one, f"{inside}{key}.") for key, one in value.items()}
        elif hint is float:
            values[name] = float(value)
    try:
        return kind(**values)
    except InputError as error:  # names the field alone
        raise type(error)(f"{prefix}{error}") from error


def checked(kind: type, data: Any, prefix: str) -> dict[str, Any]:
    """Return a JSON object as the fields of a dataclass, whose own dataclasses stay objects.

    Raises SchemaError naming the field after ``prefix``.
    """
    if not isinstance(data, dict):
        where = prefix.rstrip(".: ") or "configuration"
        raise SchemaError(f"{where}: an object is needed, not {type(data).__name__}.")
    hints = get_type_hints(kind)
    for name, value in data.items():
        if name not in hints:
            raise SchemaError(f"{prefix}{name} is unknown; {nearest(name, hints)}")
        hint = hints[name]
        if get_origin(hint) in (Union, UnionType):  # a value or nothing
            if value is None:
                continue
            hint = get_args(hint)[0]
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                raise SchemaError(
                    f"{prefix}{name} is {value!r}; {nearest(str(value), get_args(hint))}"
                )
            continue
        hint = dict if is_dataclass(hint) else get_origin(hint) or hint
        expected = (int, float) if hint is float else hint
        if not isinstance(value, expected) or (hint is not bool and isinstance(value, bool)):
            raise SchemaError(f"{prefix}{name} is {value!r}; {_NAMES[hint]} is needed.")

    return dict(data)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text",
          dict: "an object", list: "a list"}  # fmt: skip
