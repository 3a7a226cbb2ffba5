"""YAML and JSON files of users, read into frozen dataclasses: what is made is valid.

``structured`` makes a dataclass from a file's values by the annotations of its fields: text, finite
numbers, true or false, ``Literal``, ``X | None``, tuples, mappings and further dataclasses; ``Any``
stays as it is. ``Annotated[X, Valid(...)]`` and ``Annotated[X, OneOf(...)]`` narrow a value, and
``__post_init__`` checks what concerns several. Only numbers for ``float`` are converted. Errors are
as ``FILE: gaps.hands is 'bth'; valid: any, both. Did you mean 'both'?``.

Of the libraries for this, msgspec takes unknown entries and NaN in dataclasses, cattrs converts
"5" and true to numbers, and jsonschema makes no dataclass. pydantic, the best, names neither valid
entries nor one cause for a union: its messages would need the same walk of the annotations, on top
of a compiled 10 MB dependency and 0.2 s at each start.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml

from acehand_core.errors import InputError, SchemaError, nearest

Made = TypeVar("Made")

# The C parser, if available, is ten times faster; both load plain values only.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Metadata of a dataclass' field that is not in files.
NOT_IN_FILES: Mapping[str, Any] = {"in files": None}

_PLAIN = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
}


def called(name: str) -> Any:
    """Return an optional field of a dataclass with another name in files."""
    return field(default=None, metadata={"in files": name})


@dataclass(frozen=True, slots=True)
class Valid:
    """A check of a value, and its words in messages."""

    words: str
    check: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Valid names that are known only at run time."""

    names: Collection[str]


Text = Annotated[str, Valid("text", lambda value: bool(value.strip()))]
Count = Annotated[int, Valid("a whole number, 0 or more", lambda value: value >= 0)]
NonNegative = Annotated[int | float, Valid("a number, 0 or more", lambda value: value >= 0)]


def read_yaml(path: Path, hint: str = "") -> dict[str, Any]:
    """Return a YAML file with a mapping at its top; ``hint`` completes messages.

    Raises InputError if it cannot be read, SchemaError if it is no YAML or no mapping.
    """
    text = _text(path)
    if text.lstrip().startswith("<"):
        raise SchemaError(f"{path}: is XML, not YAML.{hint}")
    try:
        values = yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        raise SchemaError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        kinds = {dict: "keys that are no text", list: "a list", type(None): "nothing"}
        content = kinds.get(type(values), "a single value")
        raise SchemaError(f"{path}: holds {content} instead of a mapping (`key: value`).{hint}")
    return values


def read_json(path: Path) -> Any:
    """Return a JSON file's content. Raises InputError, SchemaError."""
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: is not valid JSON: {error}.") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file. Raises InputError, SchemaError."""
    return structured(dict[str, Any], read_json(path), path)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path}: is not text in UTF-8: {error}.") from error


def without_header(content: Any, form: str, version: int, where: str) -> dict[str, Any]:
    """Return an object without its ``format`` and ``version``. Raises SchemaError: others."""
    if not isinstance(content, Mapping) or content.get("format") != form:
        raise SchemaError(f"{where}: not of format {form!r}.")
    if content.get("version") != version:
        raise SchemaError(f"{where}: version {content.get('version')!r}; valid: {version}.")
    return {key: value for key, value in content.items() if key not in ("format", "version")}


def structured(
    kind: type[Made] | types.GenericAlias | Mapping[str, Any],
    value: Any,
    where: str | Path,
    *at: str,
) -> Made:
    """Return a file's value as ``kind``. Raises SchemaError with ``where`` and the entry.

    ``at`` are the keys that led to the value.
    A mapping of entries to their kinds, or a list of one, is of what stays as it is and may have
    further entries.
    """
    try:
        return _made(kind, value, at)
    except _InvalidError as error:
        raise SchemaError(f"{where}: {error.problem}") from None


class _InvalidError(Exception):
    """A value that is not valid; ``path`` are the keys and numbers that lead to it."""

    def __init__(self, path: tuple[Any, ...], what: str, valid: str) -> None:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        self.path, self.valid = path, valid
        place = f"{''.join(steps).removeprefix('.')} {what}".strip()
        self.problem = "; ".join(filter(None, (place, valid)))


def _made(kind: Any, value: Any, path: tuple[Any, ...]) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, dict | list):
        return _checked(kind, value, path)
    if origin is Annotated:
        return _narrowed(kind, value, path)
    if origin in (Union, types.UnionType):
        return _one_of(kind, value, path)
    if is_dataclass(kind):
        return _dataclass(kind, value, path)
    if origin is Literal:
        return _narrowed(Annotated[Any, OneOf(inner)], value, path)

    if origin in (tuple, list) and isinstance(value, list | tuple):
        kinds = inner if len(inner) > 1 and inner[-1] is not Ellipsis else inner[:1] * len(value)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return origin(_made(own, entry, (*path, number)) for number, (own, entry) in pairs)
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {
            _key(inner[0], key, path): _made(inner[1], entry, (*path, key))
            for key, entry in value.items()
        }
    elif kind is float:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    elif kind is type(value) or (kind is types.NoneType and value is None):
        return value
    _refuse(kind, value, path)


def _checked(form: Any, value: Any, path: tuple[Any, ...]) -> Any:
    if not isinstance(value, type(form)):
        _refuse(form, value, path)
    if isinstance(form, list):
        for number, entry in enumerate(value):
            _made(form[0], entry, (*path, number))
        return value
    for name, own in form.items():
        if name not in value:
            raise _InvalidError((*path, name), "is missing", f"valid: {_words(own)}.")
        _made(own, value[name], (*path, name))
    return value


def _key(kind: Any, key: Any, path: tuple[Any, ...]) -> Any:
    try:
        return _made(kind, key, path)
    except _InvalidError as error:
        raise _InvalidError((*path, str(key)), "is not known here", error.valid) from None


def _narrowed(kind: Any, value: Any, path: tuple[Any, ...]) -> Any:
    base, *rules = get_args(kind)
    try:
        made = _made(base, value, path)
    except _InvalidError as error:
        if error.path == path:
            _refuse(kind, value, path)
        raise
    for rule in rules:
        if isinstance(rule, OneOf) and made not in rule.names:
            raise _InvalidError(path, f"is {_shown(value)}", nearest(str(value), rule.names))
        if isinstance(rule, Valid) and not rule.check(made):
            _refuse(kind, value, path)
    return made


def _one_of(kind: Any, value: Any, path: tuple[Any, ...]) -> Any:
    """Return a value as the first kind of a union that takes it."""
    errors = []
    for member in get_args(kind):
        try:
            return _made(member, value, path)
        except _InvalidError as error:
            errors += [] if member is types.NoneType else [error]
    deepest = max(errors, key=lambda error: len(error.path))
    if len(errors) == 1 or len(deepest.path) > len(path):
        raise deepest
    _refuse(kind, value, path)


def _dataclass(kind: Any, value: Any, path: tuple[Any, ...]) -> Any:
    if not isinstance(value, Mapping):
        _refuse(kind, value, path)
    entries, made = _entries(kind), {}
    for name, own in value.items():
        if name not in entries:
            raise _InvalidError((*path, name), "is not known here", nearest(str(name), entries))
        entry, kind_of = entries[name]
        made[entry.name] = _made(kind_of, own, (*path, name))
    for name, (entry, own) in entries.items():
        required = entry.default is MISSING and entry.default_factory is MISSING
        if required and name not in value:
            raise _InvalidError((*path, name), "is missing", f"valid: {_words(own)}.")
    try:
        return kind(**made)
    except InputError as error:
        name, _, problem = str(error).partition(" ")
        if name.partition(".")[0] in entries:
            raise _InvalidError((*path, name), problem, "") from error
        raise _InvalidError(path, "is not valid" if path else "", str(error)) from error


@cache
def _entries(kind: type) -> dict[str, tuple[Field[Any], Any]]:
    """Return the fields of a dataclass by their name in files, and their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    entries = {f.metadata.get("in files", f.name): (f, hints[f.name]) for f in fields(kind)}
    return {name: entry for name, entry in entries.items() if name is not None}


def _refuse(kind: Any, value: Any, path: tuple[Any, ...]) -> NoReturn:
    raise _InvalidError(path, f"is {_shown(value)}", f"valid: {_words(kind)}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _words(kind: Any) -> str:
    """Return what is valid, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next((r.words for r in inner[1:] if isinstance(r, Valid)), _words(inner[0]))
    if origin in (Union, types.UnionType):
        members = [own for own in inner if not (own is int and float in inner)]
        return " or ".join(map(_words, members))
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"[{', '.join(map(_words, inner))}]"
    if origin in (tuple, list):
        return "a list"
    if isinstance(kind, dict | list):
        return "a mapping" if isinstance(kind, dict) else "a list"
    return _PLAIN.get(kind, "a mapping")
