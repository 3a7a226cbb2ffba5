"""What a set of weights is: sizes of the encoder and decoder, and which configuration it serves."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from acehand_core.decoder.config import DecoderConfig
from acehand_core.encoder.config import TrunkConfig, VaeConfig
from acehand_core.errors import SchemaError, nearest

#: "k" takes bearings from the given intrinsics, "kfree" from the predicted rays.
Variant = Literal["k", "kfree"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of one model."""

    variant: Variant = "k"
    #: Where the decoder's features come from; see ``encoder.sources``.
    source: str = "wan"
    vae: VaeConfig = field(default_factory=VaeConfig)
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, where: str) -> ModelConfig:
        """Read a config file's object. Raises SchemaError naming the field and what is valid."""
        parts = {"vae": VaeConfig, "trunk": TrunkConfig, "decoder": DecoderConfig}
        values = _checked(cls, data, where)
        for name, kind in parts.items():
            if name in values:
                values[name] = kind(**_checked(kind, values[name], f"{where}: {name}"))
        config = cls(**values)
        if config.variant not in ("k", "kfree"):
            raise SchemaError(f"{where}: variant is {config.variant!r}; valid: k, kfree.")
        return config


def _checked(kind: type, data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise SchemaError(f"{where}: an object is needed, not {type(data).__name__}.")
    defaults = {f.name: f for f in fields(kind)}
    for name, value in data.items():
        if name not in defaults:
            raise SchemaError(f"{where}: unknown field {name!r}; {nearest(name, defaults)}")
        expected = type(value) if isinstance(value, dict) else _kind_of(defaults[name])
        if not isinstance(value, expected) or (expected is not bool and isinstance(value, bool)):
            raise SchemaError(f"{where}: {name} is {value!r}; a {_name(expected)} is needed.")
    return dict(data)


def _kind_of(f: Any) -> Any:
    kinds = {"int": int, "float": (int, float), "bool": bool, "str": str}
    return kinds.get(f.type, str if str(f.type).startswith(("Literal", "Variant")) else dict)


def _name(kind: Any) -> str:
    return "number" if isinstance(kind, tuple) else kind.__name__
