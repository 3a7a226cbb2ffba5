"""``acehand report``: tables and plots of evaluations."""

from __future__ import annotations

import argparse
from pathlib import Path

from acehand_core.cli import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "evaluations", nargs="*", type=Path, metavar="FILE",
        help="JSON of acehand evaluate --output; none gives the paper's rows alone",
    )  # fmt: skip
    parser.add_argument(
        "--row", nargs=3, action="append", default=[], metavar=("STUDY", "LABEL", "FILE"),
        help="a row of a study: features, decoder, tap or sigma",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("acehand_report"), metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Write report.md, report.tex and report.html."""
    from acehand_core.atomic import atomic_path, check_free
    from acehand_core.evaluation.page import page
    from acehand_core.evaluation.run import read_evaluation
    from acehand_core.evaluation.tables import (
        Entry,
        build_tables,
        check_study,
        differences,
        latex,
        markdown,
    )

    entries = [Entry(path.name, read_evaluation(path)) for path in arguments.evaluations]
    for study, label, file in arguments.row:
        path = Path(file)
        entries.append(Entry(path.name, read_evaluation(path), check_study(study), label))
    files = {name: arguments.output / f"report.{name}" for name in ("md", "tex", "html")}
    for path in files.values():
        check_free(path, arguments.overwrite)
    tables = build_tables(entries)
    for entry in entries:
        for other in differences(entry):
            console.say(f"warning: {entry.file} does not compare with the quoted rows: {other}")
    for name, render in (("md", markdown), ("tex", latex), ("html", page)):
        with atomic_path(files[name], arguments.overwrite) as partial:
            partial.write_text(render(tables, entries), "utf-8")
        console.say(str(files[name]))
    if arguments.json:
        rows = sum(not row.quoted for t in tables for rows in t.blocks.values() for row in rows)
        console.print_json({"files": [str(p) for p in files.values()], "rows": rows})
    return console.EXIT_OK
