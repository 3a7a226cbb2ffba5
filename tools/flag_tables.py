"""Write tables in docs/ anew, of flags, ROS parameters, limits: ``python tools/flag_tables.py``.

A table stands between ``<!-- settings NAME -->`` and ``<!-- /settings -->``; tests/test_docs.py
compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path

from acehand_core.cli.console import Common
from acehand_core.cli.hands import View
from acehand_core.cli.review import Inspect, Review
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import Leaf, default_text, leaves
from retarget.replay.judgements import JUDGEMENTS

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


def limit_table() -> str:
    """Return a Markdown table of the checks of acehand inspect: meaning and limits."""
    rows = ["| check | in | doubtful above | rejected above | measures |", "|---|---|---|---|---|"]
    where = {"clip": "both", "replay": "verdict"}
    for name, limit in JUDGEMENTS.items():
        unit = f" {limit.unit}" if limit.unit else ""
        ends = [f"{end:g}{unit}" if isfinite(end) else "never"
                for end in (limit.doubtful, limit.rejected)]  # fmt: skip
        seen = where.get(limit.source, "report")
        rows.append(f"| `{name}` | {seen} | {ends[0]} | {ends[1]} | {limit.meaning} |")
    return "\n".join(rows) + "\n"


def tables() -> Mapping[str, Callable[[], str]]:
    """Return what makes each table, by the name in its marker."""
    job = [leaf for leaf in leaves(JobSettings) if leaf.group.title != "tracker ace"]
    ace = [leaf for leaf in leaves(JobSettings) if leaf.group.title == "tracker ace"]
    inspect = [leaf for leaf in leaves(Inspect) if not leaf.setting.positional]
    return {
        "job": lambda: flag_table([*job, *leaves(Common)]),
        "tracker ace": lambda: flag_table(ace),
        "inspect": lambda: flag_table(inspect),
        "view": lambda: flag_table(
            leaf for leaf in leaves(View) if len(leaf.path) == 1 and not leaf.setting.positional
        ),
        "review": lambda: flag_table(
            leaf
            for leaf in leaves(Review)
            if leaf.spelled not in {other.spelled for other in leaves(Inspect)}
        ),
        "limits": limit_table,
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
