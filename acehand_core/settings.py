"""Settings: dataclasses with fields that describe themselves.

A field made with ``setting`` is a flag (``cli/flags.py``), a ROS parameter with its descriptor
(``acehand_ros/parameters.py``), part of the identity of a result (``identity_of``), and
a row in the tables of docs/ (``tools/docs_site.py``). Other fields are for callers in Python.

Messages and help texts name a setting as Python does, in backticks: `hand_length`, or with a value
`hand_length=0.19`. Commands and nodes print it as they spell it (``respelled``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from acehand_core import plugins
from acehand_core.errors import InputError, nearest

_KEY = "acehand"
#: A setting in a message, and its value.
_NAMED = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")

#: Whether a setting is part of the identity of a result: always, where it differs from the default
#: (so that datasets from before the setting can be resumed), or never.
Identity = Literal["always", "given", "never"]

SettingsClass = TypeVar("SettingsClass")

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Description of a field of settings.

    Attributes:
        help: one phrase, for the help, ``ros2 param describe`` and the docs.
        flag: its flag without dashes; None: the field's name.
        metavar: placeholder of its value; None: by type.
        choices: valid texts, where the type is not a ``Literal``.
        low, high: range of a number; None: no limit.
        identity: see ``Identity``.
        positional: an argument without a flag.
        pair: a switch with a flag for on and one for off.
        either: settings of a class with the same word exclude one another.
        switches: values that have a flag each, with its help, instead of one flag with a value.
        parse: turns the typed text into the value. Raises ValueError.
        repeat: a flag that may be given several times, one value each.
        changeable: a ROS parameter that may be set while the node runs.
        short: its one-letter flag.
        default_text: the default as the help shows it; None: the value.
        common: one of the few of a group that the help of a command with many settings shows first.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    low: int | float | None = None
    high: int | float | None = None
    identity: Identity = "given"
    positional: bool = False
    pair: bool = False
    either: str | None = None
    switches: Mapping[str, str] | None = None
    parse: Callable[[str], Any] | None = None
    repeat: bool = False
    changeable: bool = False
    short: str | None = None
    default_text: str | None = None
    common: bool = False


def setting(default: Any, help: str, **options: Any) -> Any:
    """Return a dataclass field with a ``Setting`` of these options; default ``...``: required."""
    described = {_KEY: Setting(help=help, **options)}
    if default is ...:
        return field(metadata=described)
    return field(default=default, metadata=described)


def like(settings: type, name: str, default: Any, help: str | None = None, **changes: Any) -> Any:
    """Return a dataclass field like another class's setting, by field name or ROS parameter."""
    leaf = next(leaf for leaf in leaves(settings) if name in (leaf.name, leaf.parameter))
    changes = {"choices": leaf.choices, "help": help or leaf.setting.help} | changes
    return field(default=default, metadata={_KEY: replace(leaf.setting, **changes)})


def group(
    settings: Callable[[], SettingsClass], title: str = "", identity: bool = True
) -> SettingsClass:
    """Return a dataclass field that holds nested settings (``Group``)."""
    made: Any = field(default_factory=settings, metadata={_KEY: Group(title, identity)})
    return made


def plugin_groups(kind: plugins.Kind, title: str, identity: bool = True) -> Any:
    """Return a dataclass field that maps each plug-in of a kind to its settings.

    ``title`` has braces for the plug-in's name.
    """
    return field(
        default_factory=lambda: {name: own() for name, own in plugins.settings_of(kind).items()},
        metadata={_KEY: Group(title, identity, kind)},
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Nested settings, or with ``plugins`` a group per plug-in of that kind.

    ``title`` is for help and docs; empty: the title of the settings around them. Without
    ``identity`` none of them is part of ``identity_of`` the whole.
    """

    title: str = ""
    identity: bool = True
    plugins: plugins.Kind | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting in a tree of settings, at ``path``; ``default`` MISSING: required."""

    path: tuple[str, ...]
    type: Any
    default: Any
    setting: Setting
    group: Group

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def flag(self) -> str:
        """The flag without dashes, and without the ``no-`` of a switch that only turns off."""
        return self.setting.flag or self.name.replace("_", "-")

    @property
    def parameter(self) -> str:
        """The name in Python, in messages, as a ROS parameter and as a column of a table."""
        return self.flag.replace("-", "_")

    @property
    def choices(self) -> tuple[str, ...]:
        """Valid texts; empty: any."""
        for kind in (self.type, *get_args(self.type)):
            if get_origin(kind) is Literal:
                return get_args(kind)
        return self.setting.choices

    def value(self, settings: Any) -> Any:
        for name in self.path:
            if isinstance(settings, Mapping):
                settings = settings.get(name)
                if settings is None:  # the plug-in has no settings there
                    return self.default
            else:
                settings = getattr(settings, name)
        return settings


def leaves(settings: type) -> tuple[Leaf, ...]:
    """Return all settings of a class and its groups, in the order of the fields."""
    return tuple(_leaves(settings, (), Group()))


def _leaves(settings: type, path: tuple[str, ...], around: Group) -> Iterator[Leaf]:
    types = get_type_hints(settings)
    for entry in fields(settings):
        about, here = entry.metadata.get(_KEY), (*path, entry.name)
        if isinstance(about, Setting):
            yield Leaf(here, types[entry.name], entry.default, about, around)
        elif isinstance(about, Group):
            if about.plugins is None:
                members = [(types[entry.name], here, about if about.title else around)]
            else:
                members = [
                    (own, (*here, name), Group(about.title.format(name)))
                    for name, own in plugins.settings_of(about.plugins).items()
                ]
            for leaf in (leaf for member in members for leaf in _leaves(*member)):
                never = replace(leaf.setting, identity="never")
                yield leaf if about.identity else replace(leaf, setting=never)


def respelled(text: str, settings: Iterable[Leaf], spell: Callable[[Leaf, str | None], str]) -> str:
    """Return a message with the settings that it names as ``spell(leaf, value)`` writes them.

    A value with a flag of its own counts as a name too. Other texts in backticks stay.
    """
    if "`" not in text:
        return text
    known = {leaf.parameter: leaf for leaf in settings}
    values = {value: leaf for leaf in known.values() for value in leaf.setting.switches or ()}

    def written(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name in known:
            return spell(known[name], value)
        return spell(values[name], name) if name in values else match[0]

    return _NAMED.sub(written, text)


def built(settings: type[SettingsClass], values: Mapping[tuple[str, ...], Any]) -> SettingsClass:
    """Return settings with these values, by path, and defaults for the rest.

    Raises InputError: the settings refuse a value, or it is not a choice or out of range.
    """
    direct, nested = _nested(values)
    for entry in fields(cast(Any, settings)):
        if inner := nested.get(entry.name):
            about: Group = entry.metadata[_KEY]
            if about.plugins is None:
                direct[entry.name] = built(get_type_hints(settings)[entry.name], inner)
            else:
                own, (_, given) = plugins.settings_of(about.plugins), _nested(inner)
                direct[entry.name] = {n: built(own[n], given.get(n, {})) for n in own}
    made = settings(**direct)
    check_values(made)
    return made


def changed(settings: SettingsClass, values: Mapping[tuple[str, ...], Any]) -> SettingsClass:
    """Return settings with some values changed, by path. Raises as ``built``."""
    direct, nested = _nested(values)
    for name, inner in nested.items():
        old = getattr(settings, name)
        if isinstance(old, Mapping):
            given = _nested(inner)[1]
            direct[name] = {**old, **{n: changed(old[n], own) for n, own in given.items()}}
        else:
            direct[name] = changed(old, inner)
    made: Any = replace(settings, **direct)  # type: ignore[type-var]
    check_values(made)
    return cast(SettingsClass, made)


def _nested(
    values: Mapping[tuple[str, ...], Any],
) -> tuple[dict[str, Any], dict[str, dict[tuple[str, ...], Any]]]:
    """Return the values of fields, and those of nested settings by field."""
    direct = {path[0]: value for path, value in values.items() if len(path) == 1}
    nested: dict[str, dict[tuple[str, ...], Any]] = {}
    for path, value in values.items():
        if len(path) > 1:
            nested.setdefault(path[0], {})[path[1:]] = value
    return direct, nested


def value_of(leaf: Leaf, text: str, folder: Path) -> Any:
    """Return a setting's value from a cell of a table; files are relative to ``folder``.

    A flag that may be given several times has its values separated by semicolons.

    Raises ValueError: the text is not of the setting's type.
    """
    if leaf.setting.parse is not None:
        return leaf.setting.parse(text)
    if leaf.setting.repeat:
        pairs = (entry.strip().partition("=") for entry in text.split(";"))
        return tuple(
            f"{name}={folder / value}" if value and (folder / value).exists() else name + by + value
            for name, by, value in pairs
        )
    kinds = {leaf.type, *get_args(leaf.type)}
    if bool in kinds:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() in _TRUE
    if Path in kinds:
        return folder / text
    for kind in (int, float):
        if kind in kinds:
            return kind(text)
    # A tracker or a mapping is a name or a file.
    return str(folder / text) if (folder / text).is_file() else text


def numbers(text: str) -> tuple[float, ...]:
    """Return numbers separated by commas. Raises ValueError."""
    return tuple(float(word) for word in text.split(","))


def pixels(text: str) -> tuple[int, int]:
    """Return (width, height) of "1280x720". Raises ValueError."""
    width, by, height = text.lower().partition("x")
    if not by:
        raise ValueError(f"{text!r} is not WIDTHxHEIGHT, as in 1280x720")
    return int(width), int(height)


def check_values(settings: Any) -> None:
    """Raise InputError for a field that is not one of its choices or is out of range."""
    for leaf in leaves(type(settings)):
        if len(leaf.path) == 1 and (value := getattr(settings, leaf.name)) is not None:
            check_value(leaf, value)


def check_value(leaf: Leaf, value: Any) -> None:
    """Raise InputError for a value, or one of several, that is no choice or is out of range."""
    low, high = leaf.setting.low, leaf.setting.high
    for entry in value if isinstance(value, tuple) else (value,):
        if leaf.choices and entry not in leaf.choices:
            wrong = f"`{leaf.parameter}={entry!r}`"
            raise InputError(f"{wrong}; {nearest(str(entry), leaf.choices)}")
        if not (low is None or low <= entry) or not (high is None or entry <= high):
            valid = f"{low:g} or more" if high is None else f"{low:g} to {high:g}"
            raise InputError(f"`{leaf.parameter}={entry:g}`; valid: {valid}.")


def identity_of(settings: Any) -> dict[str, Any]:
    """Return the values that tell results of these settings apart, by flag; files by content.

    A method ``identity`` of the settings takes precedence.
    """
    if hasattr(settings, "identity"):
        return dict(settings.identity())
    values: dict[str, Any] = {}
    for leaf in leaves(type(settings)):
        value = leaf.value(settings)
        rule = leaf.setting.identity
        if rule == "always" or (rule == "given" and value != leaf.default):
            values[leaf.flag] = identity(value)
    return values


def identity(value: Any) -> Any:
    """Return a setting's value for JSON, a path by the file's content."""
    if isinstance(value, tuple):
        return [identity(entry) for entry in value]
    return file_identity(value) if isinstance(value, Path) else value


def file_identity(value: str | Path | None) -> str | None:
    """Return a hash of the content of FILE, or FILE:NAME with the name; other texts unchanged."""
    if value is None:
        return None
    file, name = str(value), ""
    if not Path(file).is_file():
        file, _, name = file.rpartition(":")
        if not name or not Path(file).is_file():
            return str(value)
    from acehand_core.safe_files import content_sha256

    return f"file {content_sha256(Path(file))[:16]}" + (f":{name}" if name else "")


def default_text(leaf: Leaf) -> str:
    """Return the default as help and docs show it; empty: none."""
    if leaf.setting.default_text is not None:
        return leaf.setting.default_text
    if leaf.default is MISSING or leaf.default is None or isinstance(leaf.default, bool | tuple):
        return ""
    return str(leaf.default)
