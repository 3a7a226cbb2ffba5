"""What a set of weights is: sizes, which configuration it serves, and how it is to be run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from acehand_core.decoder.config import DecoderConfig
from acehand_core.encoder.config import TinyConfig, TrunkConfig, VaeConfig
from acehand_core.errors import SchemaError, nearest

#: "k" takes bearings from the given intrinsics, "kfree" from the predicted rays.
Variant = Literal["k", "kfree"]
BearingSource = Literal["intrinsics", "rays", "pinhole", "radial"]
SolveKind = Literal["mixed", "rigid", "inverse", "direct"]
Fallback = Literal["released", "paper"]
#: Which fitted pinholes place hands: ``solver.radial_torch.guarded_pinhole``.
FitGuards = Literal["paper", "excess"]
#: Where cells stand when bearings are read off the ray field.
RayCells = Literal["edges", "centres"]
TrainedHand = Literal["mano", "acehand"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model."""

    variant: Variant = "k"
    #: Where the decoder's features come from; see ``encoder.sources``.
    source: str = "wan"
    vae: VaeConfig = field(default_factory=VaeConfig)
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    #: Read where ``source`` is "tiny".
    tiny: TinyConfig = field(default_factory=TinyConfig)

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, where: str) -> ModelConfig:
        """Read a config file's object. Raises SchemaError naming the field and what is valid."""
        parts = {
            "vae": VaeConfig,
            "trunk": TrunkConfig,
            "decoder": DecoderConfig,
            "tiny": TinyConfig,
        }
        values = _checked(cls, data, where)
        for name, kind in parts.items():
            if name in values:
                values[name] = kind(**_checked(kind, values[name], f"{where}: {name}"))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How a trained model is run unless told otherwise: as it was trained.

    None means not recorded: then as the released code does.

    Attributes:
        bearings, solve, fallback: see ``model.SolveOptions``.
        hand_model: whose rotations it learned.
        encode_width: pixels that pictures were encoded at; 0 for their own width.
        window_latents: length of the windows that it learned from.
        fit_guards, ray_cells: see ``model.SolveOptions``.
    """

    bearings: BearingSource | None = None
    solve: SolveKind | None = None
    fallback: Fallback | None = None
    hand_model: TrainedHand | None = None
    encode_width: int | None = None
    window_latents: int | None = None
    fit_guards: FitGuards | None = None
    ray_cells: RayCells | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, where: str) -> InferenceConfig:
        """Read a config file's object, absent in files written before it was recorded.

        Raises SchemaError naming the field and what is valid.
        """
        if data is None:
            return cls()
        values = _checked(cls, data, where)
        least = {"encode_width": 0, "window_latents": 2}
        for name, value in least.items():
            if values.get(name) is not None and values[name] < value:
                raise SchemaError(f"{where}: {name} is {values[name]}; {value} or more is needed.")
        return cls(**values)

    def describe(self) -> str:
        """Return what is recorded in one line."""
        recorded = {name: value for name, value in asdict(self).items() if value is not None}
        if not recorded:
            return "run as: not recorded; as the released code does"
        return "run as: " + ", ".join(f"{k} {v}" for k, v in recorded.items())


#: Of weights that say nothing.
AS_RELEASED = InferenceConfig()


def _checked(kind: type, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise SchemaError(f"{where}: an object is needed, not {type(data).__name__}.")
    hints = get_type_hints(kind)
    for name, value in data.items():
        if name not in hints:
            raise SchemaError(f"{where}: unknown field {name!r}; {nearest(name, hints)}")
        hint = hints[name]
        if get_origin(hint) in (Union, UnionType):  # a value or nothing
            if value is None:
                continue
            hint = get_args(hint)[0]
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                raise SchemaError(
                    f"{where}: {name} is {value!r}; {nearest(str(value), get_args(hint))}"
                )
            continue
        expected = {float: (int, float)}.get(hint, dict if is_dataclass(hint) else hint)
        if not isinstance(value, expected) or (hint is not bool and isinstance(value, bool)):
            raise SchemaError(f"{where}: {name} is {value!r}; {_NAMES[hint]} is needed.")
    return dict(data)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_NAMES |= {kind: "an object" for kind in (VaeConfig, TrunkConfig, DecoderConfig, TinyConfig)}


def tiny_config(variant: Variant = "k", temporal_attention: bool = True) -> ModelConfig:
    """Return the sizes of the small model, for images of about 128 x 96 pixels.

    Without ``temporal_attention`` neither transformer nor decoder attends across latent frames; the
    parameters are the same.
    """
    return ModelConfig(
        variant=variant,
        source="tiny",
        decoder=DecoderConfig(
            feature_dim=TinyConfig().dim, width=96, num_heads=4, num_layers=2, spatial_grid=8,
            temporal_attention=temporal_attention,
        ),
        tiny=TinyConfig(temporal_attention=temporal_attention),
    )  # fmt: skip
