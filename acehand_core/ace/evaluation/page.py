"""Tables and plotly plots on one self-contained HTML page."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

from acehand_core.ace.evaluation.summary import METRICS
from acehand_core.ace.evaluation.tables import (
    COLUMNS,
    Row,
    Table,
    TableEntry,
    legend,
    shown,
    values_shown,
)
from acehand_core.errors import MissingDependencyError

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;
max-width:1240px;margin:24px auto;padding:0 16px}
h1{font-size:24px}h2{font-size:19px;margin:36px 0 6px}h3{font-size:15px;margin:16px 0 4px}
.wide{overflow-x:auto}table{font-size:13px;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:#f4f4f5}
tr.quoted td{color:#666;font-style:italic}tr.ours td{background:#eef6ff;font-weight:600}
.plots{display:flex;flex-wrap:wrap}p.note{color:#555;overflow-wrap:anywhere}
"""
#: Datasets averaged in the paper's figures.
_MAIN = ("ARCTIC", "HOT3D", "HOI4D")
#: Axes of the radar in the paper's teaser, and the number of quoted rows drawn.
_AXES = ("f1", "mpjpe_p", "pa_p", "epe_p", "go_p", "ct_p", "jitter")
_QUOTED_DRAWN = 5
_RADAR_NOTE = (
    "Radar of the metrics in the paper's teaser figure. On every axis the best row is at the rim, "
    "with its value; others are at best / value of the radius where lower is better, "
    "at value / best where higher is better (F1). Rings at a quarter, half and three quarters. A "
    "radar compares only its own rows. The mean is over ARCTIC, HOT3D and HOI4D, for rows that "
    "have all three. All rows run here are drawn (solid, filled) and the "
    f"{_QUOTED_DRAWN} quoted ones of lowest mean MPJPE-p (dashed, hollow). Unknown metrics leave "
    "a gap."
)


#: Points (x, y) by method: its label, and whether it is quoted.
_Lines = dict[tuple[str, bool], list[tuple[float, float]]]
#: Heading and plotly figure.
_Plot = tuple[str, Any]


def plotly() -> tuple[Any, str]:
    """Return plotly's figures and script. Raises MissingDependencyError."""
    try:
        from plotly import graph_objects, offline
    except ImportError as error:
        raise MissingDependencyError(
            "The plots of a report need plotly: pip install 'acehand[view]'."
        ) from error
    return graph_objects, offline.get_plotlyjs()


def page(tables: Sequence[Table], entries: Sequence[TableEntry]) -> str:
    """Return the page, quoted rows in grey italics, own in blue. Raises MissingDependencyError."""
    _, script = plotly()
    parts = ["<h1>Evaluation</h1>", *(f'<p class="note">{escape(t)}</p>' for t in legend(entries))]
    numbers = itertools.count()
    for table in (table for table in tables if table.blocks):
        source = f" <small>(paper, {escape(table.source)})</small>" if table.source else ""
        parts.append(f'<h2 id="{table.name}">{escape(table.title)}{source}</h2><div class="plots">')
        for heading, figure in plots(table, tables):
            drawn = figure.to_html(
                full_html=False, include_plotlyjs=False, div_id=f"plot{next(numbers)}"
            )
            parts.append(f"<div><h3>{escape(heading)}</h3>{drawn}</div>")
        parts.append("</div>")
        if table.name == "main":
            parts.append(f'<p class="note">{escape(_RADAR_NOTE)}</p>')
        for block, rows in table.blocks.items():
            parts.append(f"<h3>{escape(block)}</h3>" + _table(table, rows))

    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Evaluation</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<script>{script}</script></head><body>" + "\n".join(parts) + "</body></html>\n"
    )


def plots(table: Table, tables: Sequence[Table]) -> list[_Plot]:
    """Return the plots of a table; those of "main" use other ``tables`` too."""
    if table.name == "main":
        by_name = {other.name: other for other in tables}
        return [*_radars(table, by_name["extra"]), *_speed(table, by_name["throughput"])]
    return _length(table) if table.name == "length" else []


def _look(was_quoted: bool) -> dict[str, Any]:
    """Return a trace's style; quoted rows are dashed and hollow."""
    return {
        "line": {"dash": "dash" if was_quoted else "solid"},
        "marker": {"symbol": "circle-open" if was_quoted else "circle", "size": 8},
    }


def _plot(
    heading: str, lines: _Lines, x_label: str, y_label: str, joined: bool = True, log: bool = False
) -> list[_Plot]:
    """Return a plot of lines or points; empty without any."""
    figure = plotly()[0].Figure()
    for (label, was_quoted), points in lines.items():
        x, y = zip(*points, strict=True)
        mode = "lines+markers" if joined else "markers"
        figure.add_scatter(x=x, y=y, name=escape(label), mode=mode, **_look(was_quoted))
    figure.update_layout(template="none", width=620, height=380)
    figure.update_xaxes(title=x_label, type="log" if log else "linear")
    figure.update_yaxes(title=y_label, rangemode="tozero")
    return [(heading, figure)] if lines else []


def _table(table: Table, rows: Sequence[Row]) -> str:
    heads = "".join(f"<th>{escape(COLUMNS[name][0])}</th>" for name in table.columns)
    lines = [f'<div class="wide"><table><tr><th>Method</th>{heads}<th>source</th></tr>']
    for row in rows:
        cells = "".join(f"<td>{value}</td>" for value in values_shown(table, row))
        source = "quoted" if row.quoted else escape(row.origin)
        kind = "quoted" if row.quoted else "ours"
        lines.append(
            f'<tr class="{kind}" title="{escape(row.origin)}"><td>{escape(row.label)}</td>{cells}'
            f"<td>{source}</td></tr>"
        )
    return "".join(lines) + "</table></div>"


def _column(table: Table, row: Row, name: str) -> float | None:
    return row.values[table.columns.index(name)]


#: Label, whether it is quoted, and its number among equal labels in its block.
_Method = tuple[str, bool, int]
_Values = dict[_Method, dict[str, float | None]]


def _radars(table: Table, extra: Table) -> list[_Plot]:
    """Return radars of the main datasets' mean and of every dataset with rows to compare."""
    blocks: dict[str, _Values] = {}
    for source in (table, extra):
        for block, rows in source.blocks.items():
            values: _Values = {}
            for row in rows:
                again = 1 + sum(method[:2] == (row.label, row.quoted) for method in values)
                values[row.label, row.quoted, again] = {n: _column(source, row, n) for n in _AXES}
            blocks[block] = values
    # Means of methods in all main blocks; None if a value is unknown.
    means: _Values = {}
    main = [blocks.get(name, {}) for name in _MAIN]
    for method in main[0]:
        if all(method in block for block in main):
            means[method] = {}
            for name in _AXES:
                known = [v for block in main if (v := block[method][name]) is not None]
                whole = len(known) == len(main)
                means[method][name] = sum(known) / len(known) if whole else None

    rated = {m: v["mpjpe_p"] for m, v in means.items() if m[1] and v["mpjpe_p"] is not None}
    drawn = sorted(rated, key=lambda method: rated[method])[:_QUOTED_DRAWN]
    # Own rows last, on top.
    drawn += dict.fromkeys(m for block in blocks.values() for m in block if not m[1])

    found = []
    for title, values in {"Mean of " + ", ".join(_MAIN): means, **blocks}.items():
        if sum(method in values for method in drawn) > 1:
            found.append((title, _radar(table, {m: values.get(m, {}) for m in drawn})))
    return found


def _radar(table: Table, rows: _Values) -> Any:
    """Return a radar of methods, with the best value of every axis at its rim."""
    better = {name: direction for name, _, direction in METRICS}
    axes, columns = [], []
    for name in _AXES:
        values = [row.get(name) for row in rows.values()]
        known = [value for value in values if value is not None]
        best = (max if better[name] > 0 else min)(known) if known else None
        axes.append(f"{COLUMNS[name][0]}<br>{shown(table, name, best)}")
        columns.append(
            [None if v is None or best is None else _share(v, best, better[name]) for v in values]
        )

    figure = plotly()[0].Figure()
    for (label, was_quoted, again), far in zip(rows, zip(*columns, strict=True), strict=True):
        name = escape(label if again == 1 else f"{label} ({again})")
        # Closed; lines join known neighbours only.
        figure.add_scatterpolar(
            r=[*far, far[0]], theta=[*axes, axes[0]], name=name, mode="lines+markers",
            connectgaps=False, **_look(was_quoted),
        )  # fmt: skip
    figure.update_layout(template="none", width=560, height=430)
    figure.update_polars(
        angularaxis={"direction": "clockwise", "rotation": 90},
        radialaxis={"range": [0, 1], "tickvals": [0.25, 0.5, 0.75, 1], "showticklabels": False},
    )
    return figure


def _share(value: float, best: float, direction: int) -> float:
    """Return the radius of a value, 1 for the best; an error of 0 is always best."""
    over, under = (value, best) if direction > 0 else (best, value)
    return over / under if under else float(direction < 0)


def _speed(table: Table, speeds: Table) -> list[_Plot]:
    """Return a plot of mean MPJPE-p over the main datasets against speed, if both are known."""
    fps_of = {
        (row.label, row.quoted): _column(speeds, row, "fps")
        for rows in speeds.blocks.values() for row in rows
    }  # fmt: skip
    points: _Lines = {}
    for method, fps in fps_of.items():
        errors = [
            _column(table, row, "mpjpe_p")
            for block in _MAIN
            for row in table.blocks.get(block, [])
            if (row.label, row.quoted) == method
        ]
        known = [error for error in errors if error is not None]
        if fps and len(known) == 3:
            points[method] = [(fps, sum(known) / 3)]
    x_label = "frames per second (quoted: one A100)"
    return _plot("", points, x_label, "MPJPE-p mm, mean of 3 datasets", joined=False, log=True)


def _length(table: Table) -> list[_Plot]:
    """Return plots of error and jitter against frames decoded in one pass (as in the paper)."""
    found = []
    for (block, rows), (column, heading) in itertools.product(
        table.blocks.items(), (("mpjpe_p", "MPJPE-p mm"), ("jitter", "Jitter mm/frame²"))
    ):
        lines: _Lines = {}
        for row in rows:
            frames, error = _column(table, row, "frames"), _column(table, row, column)
            method = row.label if row.quoted else row.label.rpartition(", ")[0]
            if frames is not None and error is not None:
                lines.setdefault((method, row.quoted), []).append((frames, error))
        if any(len(points) > 1 for points in lines.values()):
            ordered = {method: sorted(points) for method, points in lines.items()}
            found += _plot(block, ordered, "frames decoded in one pass", heading)
    return found
