"""All tables and plots on one HTML page that needs nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape

from acehand_core.evaluation.plots import Series, Web, bars, plot, radar
from acehand_core.evaluation.summary import METRICS
from acehand_core.evaluation.tables import COLUMNS, Entry, Row, Table, legend, quoted, shown

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;color:#222;
max-width:1240px;margin:24px auto;padding:0 16px}
h1{font-size:24px}h2{font-size:19px;margin:36px 0 6px}h3{font-size:15px;margin:16px 0 4px}
.wide{overflow-x:auto}table{font-size:13px;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid #e4e4e4;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:#f4f4f5}
tr.quoted td{color:#666;font-style:italic}tr.ours td{background:#eef6ff;font-weight:600}
.legend span{margin-right:14px;white-space:nowrap}p.note{color:#555;overflow-wrap:anywhere}
"""
#: The datasets that the paper averages over in its figures.
_MAIN = ("ARCTIC", "HOT3D", "HOI4D")
#: The axes of the radar in the paper's teaser, and how many of its rows are drawn.
_AXES = ("f1", "mpjpe_p", "pa_p", "epe_p", "go_p", "ct_p", "jitter")
_QUOTED_DRAWN = 5
_RADAR_NOTE = (
    "Radar over the metrics of the paper's teaser figure. On every axis the best of the rows drawn "
    "in that radar is at the rim, its value is written there, and the centre is 0: where lower is "
    "better a row stands at best / value of the radius (half way: twice the best error), where "
    "higher is better (F1) at value / best. Rings at a quarter, half and three quarters. So a "
    "radar compares only the rows that are in it. The mean is that of each metric over ARCTIC, "
    "HOT3D and HOI4D, for rows that have all three. Drawn are all rows that were run here "
    "(solid lines, filled points) and, of those quoted from the paper (dashed, hollow), the "
    f"{_QUOTED_DRAWN} with the lowest mean of MPJPE-p. A metric that is not known leaves a gap."
)
_RADIUS_MIDDLES = {"0.00-0.25": 0.125, "0.25-0.50": 0.375, "0.50-0.75": 0.625, ">0.75": 0.875}


def page(tables: Sequence[Table], entries: Sequence[Entry]) -> str:
    """Return the page. Rows of the paper are grey and italic, rows that were run here blue."""
    parts = ["<h1>Evaluation</h1>", *(f'<p class="note">{escape(t)}</p>' for t in legend(entries))]
    speeds = next(table for table in tables if table.name == "throughput")
    extra = next(table for table in tables if table.name == "extra")
    for table in tables:
        if not table.blocks:
            continue
        source = f" <small>(paper, {escape(table.source)})</small>" if table.source else ""
        parts.append(f'<h2 id="{table.name}">{escape(table.title)}{source}</h2>')

        match table.name:
            case "main":
                parts.append(_radar(table, extra) + _speed(table, speeds))
            case "oos":
                parts.append(_strata(table))
            case "radius":
                parts.append(_radius(table))
            case "length":
                parts.append(_length(table))
        for block, rows in table.blocks.items():
            parts.append(f"<h3>{escape(block)}</h3>" + _table(table, rows))

    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Evaluation</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _table(table: Table, rows: Sequence[Row]) -> str:
    heads = "".join(f"<th>{escape(COLUMNS[name][0])}</th>" for name in table.columns)
    lines = [f'<div class="wide"><table><tr><th>Method</th>{heads}<th>source</th></tr>']
    for row in rows:
        cells = "".join(
            f"<td>{shown(table, name, value)}</td>"
            for name, value in zip(table.columns, row.values, strict=True)
        )
        source = "quoted" if row.quoted else escape(row.origin)
        kind = "quoted" if row.quoted else "ours"
        lines.append(
            f'<tr class="{kind}" title="{escape(row.origin)}"><td>{escape(row.label)}</td>{cells}'
            f"<td>{source}</td></tr>"
        )
    return "".join(lines) + "</table></div>"


def _column(table: Table, row: Row, name: str) -> float | None:
    return row.values[table.columns.index(name)]


#: Label, whether it is quoted, and its number among the rows of that label in its block.
_Method = tuple[str, bool, int]
_Values = dict[_Method, dict[str, float | None]]


def _radar(table: Table, extra: Table) -> str:
    """Draw a radar of the main datasets' mean, and one of every dataset with rows to compare."""
    blocks = {
        block: _by_method(source, rows)
        for source in (table, extra) for block, rows in source.blocks.items()
    }  # fmt: skip
    # Means over blocks of the methods in all of them; None where one is not known.
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
    # Ours last: what is drawn last lies on top.
    drawn += dict.fromkeys(m for block in blocks.values() for m in block if not m[1])

    webs = []
    for title, values in {"Mean of " + ", ".join(_MAIN): means, **blocks}.items():
        if sum(method in values for method in drawn) > 1:
            webs.append(_web(table, title, [values.get(method, {}) for method in drawn]))
    names = [label if again == 1 else f"{label} ({again})" for label, _, again in drawn]
    series = [Series(name, (), m[1]) for name, m in zip(names, drawn, strict=True)]
    picture = radar(webs, [COLUMNS[name][0] for name in _AXES], series)
    return f'<div class="wide">{picture}</div><p class="note">{escape(_RADAR_NOTE)}</p>'


def _by_method(table: Table, rows: Sequence[Row]) -> _Values:
    values: _Values = {}
    for row in rows:
        again = 1 + sum(method[:2] == (row.label, row.quoted) for method in values)
        values[row.label, row.quoted, again] = {n: _column(table, row, n) for n in _AXES}
    return values


def _web(table: Table, title: str, rows: Sequence[dict[str, float | None]]) -> Web:
    better = {name: direction for name, _, direction in METRICS}
    rims, columns = [], []
    for name in _AXES:
        values = [row.get(name) for row in rows]
        known = [value for value in values if value is not None]
        best = (max if better[name] > 0 else min)(known) if known else None
        rims.append(shown(table, name, best))
        columns.append(
            [None if v is None or best is None else _share(v, best, better[name]) for v in values]
        )
    return Web(title, tuple(rims), tuple(zip(*columns, strict=True)))


def _share(value: float, best: float, direction: int) -> float:
    """Return how far out a value lies: 1 for the best; an error of 0 is the best of any."""
    over, under = (value, best) if direction > 0 else (best, value)
    return over / under if under else float(direction < 0)


def _speed(table: Table, speeds: Table) -> str:
    """Accuracy against speed: MPJPE-p averaged over the main datasets, where both are known."""
    fps_of = {
        (row.label, row.quoted): _column(speeds, row, "fps")
        for rows in speeds.blocks.values() for row in rows
    }  # fmt: skip
    series = []
    for (label, was_quoted), fps in fps_of.items():
        errors = [
            _column(table, row, "mpjpe_p")
            for block in _MAIN
            for row in table.blocks.get(block, [])
            if (row.label, row.quoted) == (label, was_quoted)
        ]
        known = [error for error in errors if error is not None]
        if fps and len(known) == 3:
            series.append(Series(label, ((fps, sum(known) / 3),), was_quoted, joined=False))

    return plot(
        series, "frames per second (quoted: one A100)", "MPJPE-p mm, mean of 3 datasets", True
    )


def _strata(table: Table) -> str:
    parts = []
    for block, rows in table.blocks.items():
        groups = []
        for row in rows:
            pair = [_column(table, row, "mpjpe_iv"), _column(table, row, "mpjpe_oos")]
            known = [value for value in pair if value is not None]
            if len(known) == 2:
                groups.append((row.label, known, row.quoted))
        counts = quoted()["tables"]["oos"]["counts"].get(block)
        note = (
            f": quoted rows {counts['iv']} in view, {counts['oos']} out of sight" if counts else ""
        )
        if groups:
            drawn = bars(groups, ("in view mm", "out of sight mm"))
            parts.append(f"<h3>{escape(block)}{note}</h3>" + drawn)

    return "".join(parts)


def _radius(table: Table) -> str:
    parts = []
    for block, rows in table.blocks.items():
        lines: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for row in rows:
            method, _, ends = row.label.rpartition(", r ")
            ct = _column(table, row, "ct")
            if ct is not None and ends in _RADIUS_MIDDLES:
                place = _RADIUS_MIDDLES[ends]
                lines.setdefault((method, row.quoted), []).append((place, ct))
        series = [Series(m, tuple(points), q) for (m, q), points in lines.items()]
        parts.append(f"<h3>{escape(block)}</h3>" + plot(series, "middle of the bin of r", "CT m"))
    return "".join(parts)


def _length(table: Table) -> str:
    """Error and smoothness against the frames that are decoded in one pass (paper, its figure)."""
    parts = []
    for (block, rows), (column, heading) in itertools.product(
        table.blocks.items(), (("mpjpe_p", "MPJPE-p mm"), ("jitter", "Jitter mm/frame²"))
    ):
        lines: dict[tuple[str, bool], list[tuple[float, float]]] = {}
        for row in rows:
            frames, error = _column(table, row, "frames"), _column(table, row, column)
            method = row.label if row.quoted else row.label.rpartition(", ")[0]
            if frames is not None and error is not None:
                lines.setdefault((method, row.quoted), []).append((frames, error))
        series = [Series(m, tuple(sorted(points)), q) for (m, q), points in lines.items()]
        if any(len(line.points) > 1 for line in series):  # a single length shows nothing
            drawn = plot(series, "frames decoded in one pass", heading)
            parts.append(f"<h3>{escape(block)}</h3>{drawn}")

    return "".join(parts)
