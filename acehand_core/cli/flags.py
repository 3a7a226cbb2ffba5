"""From a command line to settings: flags and help from the fields, parsed by tyro."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro
from tyro import conf
from tyro.constructors import PrimitiveConstructorSpec

from acehand_core.cli.console import described, flag
from acehand_core.errors import InputError
from acehand_core.settings import Group, Leaf, built, default_text, leaves, respelled

#: Settings of a command up to which ``--help`` shows all of them.
_FEW = 40
#: Placeholders of values, by type.
_METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}


def parse(program: str, words: Sequence[str], *kinds: type[Any]) -> tuple[Any, ...]:
    """Return settings of each kind from one command line; the help is the first one's docstring.

    Of many settings ``--help`` shows the command's own and the common ones, ``--help-all`` all.

    Raises SystemExit: 2 for flags that are unknown, misspelt or without their value, 0 for
    ``--help``. InputError: the settings refuse a value, an argument is missing, or two settings
    have the same flag.
    """
    trees = {kind: leaves(kind) for kind in kinds}
    flat = [leaf for tree in trees.values() for leaf in tree]
    by_flag: dict[str, list[Leaf]] = {}
    for leaf in flat:
        by_flag.setdefault(leaf.flag, []).append(leaf)
    for name, twice in by_flag.items():
        if len(twice) > 1:
            places = " and ".join(".".join(other.path) for other in twice)
            raise InputError(f"--{name} is the flag of two settings: {places}; rename one.")
    either = {leaf.setting.either for leaf in flat if leaf.setting.either}
    exclusive = {title: conf.create_mutex_group(required=False, title=title) for title in either}

    hidden: list[Leaf] = []
    if {"-h", "--help"} & {*words} and len(flat) > _FEW:
        nested = [leaf for leaf in flat if len(leaf.path) > 1]
        hidden = [x for x in nested if not (x.setting.common or x.setting.positional)]

    # A dataclass of flags per title, across the classes of settings.
    boxes: dict[Group, list[tuple[str, Any, Any]]] = {Group(): []}
    for leaf in flat:
        shown = replace(leaf, setting=described(leaf, flat))
        marks = (conf.Suppress,) if leaf in hidden else ()
        boxes.setdefault(leaf.group, []).extend(_fields(shown, exclusive, marks))
    main = boxes.pop(Group())
    for number, (group, entries) in enumerate(boxes.items()):
        box: Any = make_dataclass("Box", entries, kw_only=True)
        named = Annotated[box, conf.arg(name=group.title)]
        main.append((f"box{number}", named, field(default_factory=box)))

    description = respelled(inspect.cleandoc(kinds[0].__doc__ or ""), flat, flag)
    if hidden:
        description += f"\n\n{program} --help-all shows {len(hidden)} more flags."
    flags: Any = tyro.cli(
        make_dataclass("Flags", main, kw_only=True),
        prog=program,
        description=description,
        args=["--help"] if "--help-all" in words else list(words),
        config=(conf.DisallowNone,),
    )
    given = dict(vars(flags))
    for number in range(len(boxes)):
        given |= vars(given[f"box{number}"])
    return tuple(
        built(kind, {leaf.path: _value(leaf, given) for leaf in tree})
        for kind, tree in trees.items()
    )


def _fields(
    leaf: Leaf, exclusive: dict[str, object], marks: tuple[Any, ...]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the flags of a setting as dataclass fields for tyro, with ``marks``."""
    about, name = leaf.setting, _attribute(leaf)
    kind: Any
    if about.switches is not None:
        only_one = conf.create_mutex_group(required=False, title=about.help)
        for value, text in about.switches.items():
            shown = conf.arg(name=value, help=text, help_behavior_hint="")
            own = (shown, conf.FlagCreatePairsOff, conf.OmitArgPrefixes, only_one)
            yield f"{name}_{value}", Annotated[bool, *own, *marks], False
        return

    kind = Literal[leaf.choices] if leaf.choices else leaf.type
    several = get_origin(leaf.type) is tuple and about.parse is None
    if several and leaf.choices:
        kind = tuple[kind, ...]
    plain = (_METAVARS[kind] for kind in (leaf.type, *get_args(leaf.type)) if kind in _METAVARS)
    metavar = about.metavar or (None if leaf.choices else next(plain, None))
    if several and metavar and not about.repeat:
        metavar = f"{metavar} [{metavar} ...]"

    marks = (*marks, conf.OmitArgPrefixes)
    if leaf.type is bool and not about.pair:
        marks += (conf.FlagCreatePairsOff,)
    if about.parse is not None:
        parse = about.parse
        constructor: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar or "TEXT",
            instance_from_str=lambda words: parse(words[0]),
            is_instance=lambda value: True,
            str_from_instance=lambda value: [str(value)],
        )
        marks += (constructor,)
    if about.repeat:
        marks += (conf.UseAppendAction,)
    if about.positional:
        marks += (conf.Positional,)
    if about.either:
        marks += (exclusive[about.either],)

    required, hint = leaf.default is MISSING, default_text(leaf)
    shown = conf.arg(
        name=leaf.flag,
        aliases=(f"-{about.short}",) if about.short else None,
        metavar=None if leaf.type is bool else metavar,
        help=about.help,
        help_behavior_hint="(required)" if required else f"(default: {hint})" if hint else "",
    )
    kind = kind if leaf.default is not None else kind | None
    yield name, Annotated[kind, shown, *marks], field() if required else field(default=leaf.default)


def _attribute(leaf: Leaf) -> str:
    return "flag_" + leaf.flag.replace("-", "_")


def _value(leaf: Leaf, given: Mapping[str, Any]) -> Any:
    """Return the value of a setting. Raises InputError: an argument is missing."""
    name, about = _attribute(leaf), leaf.setting
    if about.switches is not None:
        return next((v for v in about.switches if given[f"{name}_{v}"]), leaf.default)
    value = given[name]
    if value == () and leaf.default is MISSING:
        raise InputError(f"{about.metavar or leaf.flag} is missing; see --help.")
    return value
