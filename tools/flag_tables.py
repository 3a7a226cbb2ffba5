"""Write the tables of flags and ROS parameters in docs/ anew: ``python tools/flag_tables.py``.

A table stands between ``<!-- settings NAME -->`` and ``<!-- /settings -->``; tests/test_docs.py
compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from acehand_core.cli.console import Common
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import Leaf, default_text, leaves

DOCS = Path(__file__).resolve().parent.parent / "docs"
_MARKED = re.compile(r"(<!-- settings ([\w ]+) -->\n).*?(<!-- /settings -->)", re.DOTALL)


def flag_table(settings: Iterable[Leaf]) -> str:
    """Return a Markdown table of flags: name, default, meaning."""
    rows = ["| flag | default | meaning |", "|---|---|---|"]
    for leaf in settings:
        about = leaf.setting
        if about.switches is not None:
            rows += [f"| `--{name}` | off | {text} |" for name, text in about.switches.items()]
            continue
        default = default_text(leaf)
        if about.default_text is None and default:
            default = f"`{default}`"
        if isinstance(leaf.default, bool):
            default = "on" if leaf.default and about.pair else "off"
        choices = f": {', '.join(f'`{c}`' for c in leaf.choices)}" if leaf.choices else ""
        text = f"{about.help}{choices}".replace("|", "\\|")
        rows.append(f"| `{leaf.spelled}` | {default} | {text} |")
    return "\n".join(rows) + "\n"


def tables() -> Mapping[str, Callable[[], str]]:
    """Return what makes each table, by the name in its marker."""
    job = [leaf for leaf in leaves(JobSettings) if leaf.group.title != "tracker ace"]
    ace = [leaf for leaf in leaves(JobSettings) if leaf.group.title == "tracker ace"]
    return {
        "job": lambda: flag_table([*job, *leaves(Common)]),
        "tracker ace": lambda: flag_table(ace),
    }


def renewed(text: str) -> str:
    """Return a page with its tables made anew. Raises KeyError for a marker of no table."""
    made = tables()
    return _MARKED.sub(lambda match: f"{match[1]}{made[match[2]]()}{match[3]}", text)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text("utf-8")
        if (after := renewed(before)) != before:
            page.write_text(after, "utf-8")
            print(page.name)
