"""Hooks of the documentation site (``make docs``): reference tables from the code, checked links.

A line that ends in ``<!-- table NAME -->`` becomes a table of flags, settings or limits. Links out
of ``docs`` must name a file of the repository; on the site they become its path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from acehand_core.cli.console import Common, described, flag
from acehand_core.cli.hands import ViewHands
from acehand_core.cli.review import Inspect, Review
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import Leaf, default_text, leaves
from retarget.replay.checks import CHECKS

DOCS = Path(__file__).resolve().parent.parent / "docs"
_TABLE = re.compile(r"^.*<!-- table ([\w ]+) -->$", re.MULTILINE)
_OUTWARD = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page as the site has it. Called by mkdocs.

    Raises:
        KeyError: no such table.
        FileNotFoundError: a link out of ``docs`` names no file.
    """

    def path_of(link: re.Match[str]) -> str:
        path = (DOCS / link[2]).resolve(strict=True).relative_to(DOCS.parent)
        return link[1] if str(path) in link[1] else f"{link[1]} (`{path}`)"

    return _OUTWARD.sub(path_of, with_tables(markdown))


def with_tables(markdown: str) -> str:
    """Return a page with its reference tables. Raises KeyError: no such table."""
    made = tables()
    return _TABLE.sub(lambda match: made[match[1]]().rstrip(), markdown)


def flag_table(settings: Iterable[Leaf]) -> str:
    """Return a Markdown table of flags: name, default, meaning."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    known = tuple(settings)
    for leaf in known:
        about = described(leaf, known)
        if about.switches is not None:
            rows += [f"| `{flag(leaf, v)}` | off | {text} |" for v, text in about.switches.items()]
            continue
        default = default_text(leaf)
        if about.default_text is None and default:
            default = f"`{default}`"
        if isinstance(leaf.default, bool):
            default = "on" if leaf.default and about.pair else "off"
        choices = f": {', '.join(f'`{c}`' for c in leaf.choices)}" if leaf.choices else ""
        text = f"{about.help}{choices}".replace("|", "\\|")
        rows.append(f"| `{flag(leaf)}` | {default} | {text} |")
    return "\n".join(rows) + "\n"


def limit_table() -> str:
    """Return a Markdown table of the checks of acehand inspect: meaning and limits."""
    rows = ["| check | in | warn above | fail above | measures |", "|---|---|---|---|---|"]
    where = {"clip": "both", "replay": "verdict"}
    for name, limit in CHECKS.items():
        unit = f" {limit.unit}" if limit.unit else ""
        ends = [f"{end:g}{unit}" if isfinite(end) else "never"
                for end in (limit.warn, limit.fail)]  # fmt: skip
        seen = where.get(limit.source, "report")
        rows.append(f"| `{name}` | {seen} | {ends[0]} | {ends[1]} | {limit.meaning} |")
    return "\n".join(rows) + "\n"


def training_table() -> str:
    """Return a Markdown table of the settings of ``acehand-train``."""
    from acehand_core.ace.training.config import TrainConfig

    settings = documented(TrainConfig())
    rows = [f"| `{name}` | {default} | {text} |" for name, default, text in settings]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows]) + "\n"


def documented(defaults: Any, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, default and text of every field.

    Raises:
        KeyError: a field has no text.
    """
    hints = get_type_hints(type(defaults))
    for field in fields(defaults):
        hint, name, default = hints[field.name], where + field.name, getattr(defaults, field.name)
        if is_dataclass(hint) and not field.metadata:
            yield from documented(default, f"{name}.")
            continue
        about = field.metadata["acehand"]
        if get_origin(hint) is dict:
            yield f"{name}.NAME", "", about.title
            yield from documented(get_args(hint)[1](), f"{name}.NAME.")
        elif is_dataclass(hint):  # documented with its own package
            yield f"{name}.*", "", about.title
        else:
            if default is None or isinstance(default, bool):
                default = {None: "null", True: "true", False: "false"}[default]
            choices = f" ({', '.join(get_args(hint))})" if get_origin(hint) is Literal else ""
            yield name, f"`{default}`{choices}", about.help


def tables() -> Mapping[str, Callable[[], str]]:
    """Return what makes each table, by the name in its marker."""
    job = [leaf for leaf in leaves(JobSettings) if leaf.group.title != "tracker ace"]
    ace = [leaf for leaf in leaves(JobSettings) if leaf.group.title == "tracker ace"]
    own = [leaf for leaf in leaves(ViewHands) if len(leaf.path) == 1]
    view = [leaf for leaf in own if not leaf.setting.positional]
    shared = {flag(leaf) for leaf in leaves(Inspect)}
    return {
        "job": lambda: flag_table([*job, *leaves(Common)]),
        "tracker ace": lambda: flag_table(ace),
        "inspect": lambda: flag_table(
            leaf for leaf in leaves(Inspect) if not leaf.setting.positional
        ),
        "view": lambda: flag_table(view),
        "review": lambda: flag_table(leaf for leaf in leaves(Review) if flag(leaf) not in shared),
        "limits": limit_table,
        "training": training_table,
    }
