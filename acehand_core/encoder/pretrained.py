"""Loading video transformers through transformers: safetensors only, every tensor accounted for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from acehand_core.errors import InputError, MissingDependencyError, SchemaError

#: Model type as config.json says it -> class, and what published files hold beyond it: the
#: decoder that masked pre-training needed.
_CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "vjepa2": ("VJEPA2Model", ()),
    "videomae": ("VideoMAEModel", ("decoder.", "encoder_to_decoder.", "mask_token")),
}


def load_pretrained(kind: str, location: str, revision: str | None = None) -> nn.Module:
    """Return a model of transformers with its weights, float32.

    Args:
        kind: "vjepa2" or "videomae".
        location: a folder with config.json and safetensors, or a name on the hub; HF_HUB_OFFLINE
            and the hub's cache are honoured.
        revision: commit, tag or branch on the hub.

    Raises:
        MissingDependencyError: transformers is absent or too old.
        InputError: nothing is there, it cannot be reached, or the files cannot be read.
        SchemaError: another kind of model, or a tensor missing, unexpected or of another shape.
    """
    class_name, extras = _CLASSES[kind]
    model_class, config_class, broken = _transformers(kind, class_name)
    try:
        config = config_class.from_pretrained(location, revision=revision)
    except (OSError, ValueError) as error:
        raise InputError(_unreadable(kind, location, error)) from error
    if config.model_type != kind:
        raise SchemaError(f"{location}: holds a {config.model_type} model; valid: {kind}.")
    try:
        model, report = model_class.from_pretrained(
            location,
            config=config,
            revision=revision,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, broken) as error:
        raise InputError(_unreadable(kind, location, error)) from error
    unexpected = {k for k in report["unexpected_keys"] if not k.startswith(extras)}
    for problem, names in (
        ("missing", report["missing_keys"]),
        ("unexpected", unexpected),
        ("of another shape", report["mismatched_keys"]),
    ):
        if names:
            raise SchemaError(f"{location}: {_some(names)} {problem} for a {kind} model.")
    return model.float()


def _transformers(kind: str, class_name: str) -> tuple[Any, Any, type[Exception]]:
    try:
        import transformers
        from safetensors import SafetensorError

        return getattr(transformers, class_name), transformers.AutoConfig, SafetensorError
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"The feature source {kind!r} needs transformers 5.0 or newer ({error}): "
            "pip install 'acehand[ace]'."
        ) from error


def _some(names: Iterable[Any]) -> str:
    # Names of another shape come as (name, shape in the file, shape needed).
    listed = sorted(n if isinstance(n, str) else f"{n[0]} {tuple(n[1])}" for n in names)
    rest = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"{', '.join(listed[:3])}{rest} {'is' if len(listed) == 1 else 'are'}"


def _unreadable(kind: str, location: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()
    return (
        f"{location}: no weights of the feature source {kind!r} could be read here "
        f"({reason[0] if reason else type(error).__name__}). Valid: a folder with config.json and "
        "model.safetensors, or the name of such a model on the hub or in its cache."
    )
