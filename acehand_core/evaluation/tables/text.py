"""Tables as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from acehand_core.evaluation.tables.build import (
    COLUMNS,
    OTHERWISE,
    Entry,
    Row,
    Table,
    differences,
    quoted,
    shown,
)

QUOTED = "q"
_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
          "²": "$^2$", "–": "--", "~": r"\textasciitilde{}", "\\": r"\textbackslash{}",
          "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}  # fmt: skip


def legend(entries: Sequence[Entry]) -> list[str]:
    """Return what the marks mean, and which list of segments each evaluation was made on."""
    out = [f"{QUOTED}: quoted from {quoted()['source']}; not measured here."]
    for number, entry in enumerate(entries, 1):
        value = entry.json
        segments, method = value["segments"], value["method"]
        made_by = ", ".join(map(str, [*method["trackers"], *method["weights"]]))
        anchors = value.get("anchors", "unknown")
        out.append(
            f"[{number}] {entry.name} ({made_by}): {segments['count']} segments of the list "
            f"{segments['name']}, sha256 {segments['sha256']}; protocol {value['protocol']}, hand "
            f"model {value['hand_model']}, 2D joints {anchors}; {entry.file}"
        )
        if other := differences(entry):
            out.append(
                f"[{number}]{OTHERWISE} was not made as the quoted rows beside it: "
                + "; ".join(other)
            )
    return out


def markdown(tables: Sequence[Table], entries: Sequence[Entry]) -> str:
    """Return all tables as Markdown."""
    parts = ["# Evaluation", *legend(entries)]
    for table in tables:
        head = ["Method", *(COLUMNS[name][0] for name in table.columns), "source"]
        lines = [f"## {table.title}" + (f" (paper, {table.source})" if table.source else "")]
        for block, rows in table.blocks.items():
            lines += [f"\n**{_pipe(block)}**\n", _line(head), _line(["---"] * len(head))]
            lines += [_line(_cells(table, row)) for row in rows]
        if table.blocks:
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def latex(tables: Sequence[Table], entries: Sequence[Entry]) -> str:
    """Return all tables as LaTeX for the package booktabs."""
    parts = ["% " + line for line in legend(entries)]
    for table in tables:
        if not table.blocks:
            continue
        columns = "l" + "r" * len(table.columns) + "l"
        lines = [
            r"\begin{table}",
            rf"\caption{{{_tex(table.title)}. $^q$ quoted from {_tex(quoted()['source'])}.}}",
            rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
            " & ".join(_tex(c) for c in ["Method", *(COLUMNS[n][0] for n in table.columns), ""])
            + r" \\",
        ]  # fmt: skip
        for block, rows in table.blocks.items():
            lines += [r"\midrule", rf"\multicolumn{{{len(columns)}}}{{l}}{{{_tex(block)}}} \\"]
            for row in rows:
                cells = [_tex(cell) for cell in _cells(table, row)]
                cells[-1] = "$^q$" if row.quoted else cells[-1]
                lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _cells(table: Table, row: Row) -> list[str]:
    values = [
        shown(table, name, value) for name, value in zip(table.columns, row.values, strict=True)
    ]
    return [row.label, *values, f"{QUOTED}: {row.origin}" if row.quoted else row.origin]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_pipe(cell) for cell in cells) + " |"


def _pipe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _tex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in text)
