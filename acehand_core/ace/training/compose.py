"""hydra and OmegaConf: overrides and files of settings in, a checked ``TrainConfig`` out.

OmegaConf checks names and types, by a schema made of the dataclasses of ``config.py``. These are
built of what was composed; they check ranges themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_args, get_origin, get_type_hints

from acehand_core.ace.model.config import ModelConfig
from acehand_core.ace.training.config import TrainConfig
from acehand_core.errors import InputError, MissingDependencyError, nearest

CONF = Path(__file__).with_name("conf")


def compose(overrides: Sequence[str]) -> TrainConfig:
    """Return the settings of some overrides, as the command line would. Raises InputError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return checked(hydra_compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise readable(error) from error


def register() -> None:
    """Make the schema known to hydra: conf/config.yaml starts from it."""
    from hydra.core.config_store import ConfigStore

    # "+data.sources.NAME.root=FOLDER" first makes an empty group, which a typed one could not be.
    ConfigStore.instance().store(name="schema", node=schema(TrainConfig, named_groups=False))


def schema(kind: type, named_groups: bool = True) -> type:
    """Return a settings class as OmegaConf 2.3 can read it, with the same names and defaults.

    It has no Literal types, which become their values' own type, and makes frozen dataclasses
    read-only, so that nothing could override them. ``named_groups``: groups whose names the user
    chooses (``data.sources``) are typed too.
    """
    hints = get_type_hints(kind)
    rows = []
    for f in dataclasses.fields(kind):
        hint = hints[f.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            group = schema(hint, named_groups)
            rows.append((f.name, group, dataclasses.field(default_factory=group)))
            continue

        if get_origin(hint) is Literal:
            hint = type(get_args(hint)[0])
        elif get_origin(hint) is dict:
            hint = GenericAlias(dict, (str, schema(get_args(hint)[1]) if named_groups else Any))
        default = dataclasses.field(default=f.default, default_factory=f.default_factory)
        rows.append((f.name, hint, default))
    return dataclasses.make_dataclass(kind.__name__, rows)


def checked(composed: Any) -> TrainConfig:
    """Return what hydra composed, checked. Raises InputError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return read_settings(OmegaConf.to_container(composed, resolve=True))
    except OmegaConfBaseException as error:
        raise readable(error) from error


def read_settings(data: Any) -> TrainConfig:
    """Return settings of plain types, such as a run's config.json.

    Raises:
        InputError, SchemaError: names the field and what is valid.
        MissingDependencyError: OmegaConf is not installed.
    """
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        raise MissingDependencyError(
            "settings of training are read with OmegaConf: pip install 'acehand[train]'."
        ) from error

    if not isinstance(data, Mapping):
        raise InputError(f"configuration: {data!r}; a group of settings is needed.")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema(TrainConfig)), data)
        values = OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise readable(error) from error
    return _build(TrainConfig, values, "")


def _build(kind: Any, values: Any, where: str) -> Any:
    """Return settings of plain values whose names and types are right."""
    if kind is ModelConfig:
        return ModelConfig.from_json(values, where)
    if get_origin(kind) is dict:
        group = get_args(kind)[1]
        return {name: _build(group, value, f"{where}.{name}") for name, value in values.items()}
    if get_origin(kind) is Literal and values not in get_args(kind):
        raise InputError(f"{where} is {values!r}; {nearest(str(values), get_args(kind))}")
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return values

    hints = get_type_hints(kind)
    prefix = f"{where}." if where else ""
    parts = {name: _build(hints[name], value, prefix + name) for name, value in values.items()}
    try:
        return kind(**parts)
    except InputError as error:
        # A class knows its own fields, not where they stand.
        raise InputError(f"{prefix}{error}") from error


def readable(error: Exception) -> InputError:
    """Return what hydra or OmegaConf found in one line, with the names that are valid."""
    from omegaconf import errors

    # hydra wraps OmegaConf's errors, and leaves out what was wrong.
    inner = error if isinstance(error, errors.OmegaConfBaseException) else error.__cause__
    if not isinstance(inner, errors.OmegaConfBaseException):
        text = str(error).partition("Config search path")[0]
        return InputError(f"configuration: {' '.join(text.split())}")

    name, text = inner.full_key or "", str(inner).partition("\n")[0]
    if isinstance(inner, errors.ConfigKeyError | errors.ConfigAttributeError):
        names = {str(key) for key in inner.parent_node or ()}
        if "." not in name and inner is not error:  # an override may also choose a file of conf/
            names |= {path.name for path in CONF.iterdir() if path.is_dir()}
        new = f" To add it: +{name}.root=FOLDER." if name.split(".")[-2:-1] == ["sources"] else ""
        return InputError(f"unknown setting {name!r}; {nearest(str(inner.key), names)}{new}")
    if "is not a subclass" in text or "Cannot merge" in text:
        text = "a group of settings is needed"
    elif "Optional" in text or "'None'" in text:
        text = "null; a value is needed"
    return InputError(f"{name}: {text.rstrip('.')}.")
