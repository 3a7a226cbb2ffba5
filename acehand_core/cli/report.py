"""``acehand report``: tables and plots of evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.settings import setting


@dataclass(frozen=True, slots=True)
class Report:
    """Make tables and plots of evaluations, beside the paper's numbers."""

    evaluations: tuple[Path, ...] = setting(
        (),
        "JSON of acehand evaluate --output; none gives the paper's rows alone",
        metavar="FILE",
        positional=True,
    )
    row: tuple[tuple[str, str, str], ...] = setting(
        (),
        "a row of a study: features, decoder, tap or sigma",
        metavar="STUDY LABEL FILE",
        repeat=True,
    )
    output: Path = setting(Path("acehand_report"), "folder to write", metavar="DIR")
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Write report.md, report.tex and report.html."""
        from acehand_core.atomic import atomic_path, check_free
        from acehand_core.evaluation.page import page, plotly
        from acehand_core.evaluation.run import read_evaluation
        from acehand_core.evaluation.tables import (
            Entry,
            build_tables,
            check_study,
            differences,
            latex,
            markdown,
        )

        plotly()  # missing, nothing is written
        entries = [Entry(path.name, read_evaluation(path)) for path in self.evaluations]
        for study, label, file in self.row:
            path = Path(file)
            entries.append(Entry(path.name, read_evaluation(path), check_study(study), label))
        files = {name: self.output / f"report.{name}" for name in ("md", "tex", "html")}
        for path in files.values():
            check_free(path, self.overwrite)
        tables = build_tables(entries)
        for entry in entries:
            for other in differences(entry):
                console.say(f"warning: {entry.file} does not compare with the quoted rows: {other}")
        for name, render in (("md", markdown), ("tex", latex), ("html", page)):
            with atomic_path(files[name], self.overwrite) as partial:
                partial.write_text(render(tables, entries), "utf-8")
            console.say(str(files[name]))
        rows = sum(not row.quoted for t in tables for rows in t.blocks.values() for row in rows)
        terminal.print_json({"files": [str(p) for p in files.values()], "rows": rows})
        return console.EXIT_OK
