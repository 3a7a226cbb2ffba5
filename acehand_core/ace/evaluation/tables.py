"""The paper's tables in Markdown: its published rows from ``quoted.json``, and ours."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from acehand_core.errors import InputError, nearest

QUOTED = "q"

#: Heading and digits of columns.
COLUMNS: dict[str, tuple[str, int]] = {
    "facc": ("FAcc", 3), "recall": ("Recall", 3), "f1": ("F1", 3),
    "mpjpe_p": ("MPJPE-p mm", 3), "pa_p": ("PA-p mm", 3),
    "mpjpe_plus_oos": ("MPJPE+OOS mm", 3), "epe_p": ("EPE2D-p px", 3), "go_p": ("GO-p deg", 3),
    "ct_p": ("CT-p m", 3), "jitter": ("Jitter mm/f²", 3), "mpjpe_iv": ("in view mm", 3),
    "mpjpe_oos": ("MPJPE-OOS mm", 3), "share": ("share", 3), "mpjpe": ("MPJPE mm", 2),
    "ct": ("CT m", 3), "frames": ("frames", 0), "fps": ("fps", 2),
    "hands_per_frame": ("hands/frame", 2), "ct_iv": ("CT in view m", 3),
    "ct_oos": ("CT out of sight m", 3), "wrist_m": ("wrist m", 3),
    "bearing_deg": ("bearing deg", 1), "range_error_m": ("range m", 3),
    "emitted": ("emitted share", 3), "pa": ("PA mm", 2), "count": ("hands", 0),
}  # fmt: skip
_COMPARED = ("facc", "recall", "f1", "mpjpe_p", "pa_p", "mpjpe_plus_oos", "epe_p", "go_p", "ct_p",
             "jitter")  # fmt: skip
#: Title and columns of tables, in order.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "main": ("Main comparison", _COMPARED),
    "extra": ("H2O and OakInk2", _COMPARED),
    "oos": ("Out-of-sight stratification", ("mpjpe_iv", "mpjpe_oos", "mpjpe_plus_oos")),
    "placement": (
        "Absolute placement out of sight",
        ("emitted", "wrist_m", "bearing_deg", "range_error_m", "ct_iv", "ct_oos"),
    ),
    "matched": ("Matched detections", ("count", "mpjpe", "pa", "ct")),
    "features": ("Feature sources", ("mpjpe_p", "pa_p", "jitter", "mpjpe_oos")),
    "decoder": ("Camera and decoder", ("mpjpe_p", "pa_p", "epe_p", "ct_p", "jitter")),
    "tap": ("Tap depth", ("mpjpe_p", "pa_p", "epe_p", "go_p", "ct_p", "jitter")),
    "sigma": ("Clean and noised latents", ("mpjpe_p", "pa_p", "epe_p", "go_p", "ct_p", "jitter")),
    "radius": ("Error against distance from the image centre", ("share", "mpjpe", "ct")),
    "length": ("Decoded length", ("frames", "mpjpe_p", "jitter")),
    "throughput": ("Throughput", ("fps", "hands_per_frame")),
}
#: Tables and cells in which the paper prints another number of digits.
_TWO_DIGITS = ("features", "tap", "sigma")
_DIGITS = {("features", "mpjpe_oos"): 1, ("placement", "ct_oos"): 2, ("length", "mpjpe_p"): 2}
STUDIES = ("features", "decoder", "tap", "sigma")
_EXTRA = ("H2O", "OakInk2")
_BLOCK_NAMES = ("ARCTIC", "HOT3D", "HOI4D", *_EXTRA)
#: Marks rows not comparable with the quoted ones; see ``differences``.
OTHERWISE = "*"


def legend(entries: Sequence[TableEntry]) -> list[str]:
    """Return the meaning of marks, and method, segments and protocol of each evaluation."""
    notes = [f"{QUOTED}: quoted from {quoted()['source']}; not measured here."]
    for number, entry in enumerate(entries, 1):
        value = entry.json
        segments, method = value["segments"], value["method"]
        origin = ", ".join(map(str, [*method["trackers"], *method["weights"]]))
        anchors = value.get("anchors", "unknown")
        notes.append(
            f"[{number}] {entry.name} ({origin}): {segments['count']} segments of the list "
            f"{segments['name']}, sha256 {segments['sha256']}; protocol {value['protocol']}, hand "
            f"model {value['hand_model']}, 2D joints {anchors}; {entry.file}"
        )
        if other := differences(entry):
            notes.append(
                f"[{number}]{OTHERWISE} was not made like the quoted rows: " + "; ".join(other)
            )

    return notes


def markdown(tables: Sequence[Table], entries: Sequence[TableEntry]) -> str:
    """Return all tables as Markdown."""
    parts = ["# Evaluation", *legend(entries)]
    for table in tables:
        head = ["Method", *(COLUMNS[name][0] for name in table.columns), "source"]
        lines = [f"## {table.title}" + (f" (paper, {table.source})" if table.source else "")]
        for block, rows in table.blocks.items():
            lines += [f"\n**{_pipe(block)}**\n", _line(head), _line(["---"] * len(head))]
            for row in rows:
                values = zip(table.columns, row.values, strict=True)
                shown = [_shown(table, name, value) for name, value in values]
                origin = f"{QUOTED}: {row.origin}" if row.quoted else row.origin
                lines.append(_line([row.label, *shown, origin]))
        if table.blocks:
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_pipe(cell) for cell in cells) + " |"


def _pipe(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


@dataclass(frozen=True, slots=True)
class Row:
    """One line. ``origin``: the paper's source of a quoted row, or the evaluation's number."""

    label: str
    values: tuple[float | None, ...]
    quoted: bool
    origin: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: rows in blocks, one per dataset."""

    name: str
    title: str
    source: str | None
    columns: tuple[str, ...]
    blocks: dict[str, list[Row]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """An evaluation for a report: file name, JSON, and a row of a study if it is for one."""

    file: str
    json: Mapping[str, Any]
    study: str | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """Label of its rows."""
        return self.label or str(self.json["method"]["label"])

    @property
    def block(self) -> str:
        """The dataset's name, as spelled in the paper."""
        dataset = str(self.json["dataset"])
        known = {name.lower(): name for name in _BLOCK_NAMES}
        return known.get(dataset.lower(), dataset)


@functools.cache
def quoted() -> dict[str, Any]:
    """Return the paper's numbers, each row with its origin."""
    return json.loads(resources.files(__package__).joinpath("quoted.json").read_text("utf-8"))


def differences(entry: TableEntry) -> list[str]:
    """Return how an evaluation's conditions differ from the paper's; empty for other datasets.

    The paper's lists of segments are not published: a list of equal length may still differ.
    """
    paper = quoted()["conditions"].get(entry.block)
    if paper is None:
        return []

    listed, notes = entry.json["segments"], []
    for name, what in (("count", "segments"), ("frames", "frames a segment"), ("split", "split")):
        papers = paper["segments" if name == "count" else name]
        if listed.get(name) != papers:
            ours = "not recorded" if listed.get(name) is None else listed[name]
            notes.append(f"{what}: {ours}, the paper {papers}")

    sizes = entry.json.get("pictures") or []
    shown = ", ".join(f"{size['width']} x {size['height']}" for size in sizes) or "not recorded"
    if "picture" in paper and shown != " x ".join(map(str, paper["picture"])):
        notes.append(f"pictures: {shown}, the paper {' x '.join(map(str, paper['picture']))}")
    elif "width" in paper and {size["width"] for size in sizes} != {paper["width"]}:
        notes.append(f"pictures: {shown}, the paper {paper['width']} wide")
    elif "picture" not in paper and "width" not in paper:
        notes.append(f"pictures: {shown}, the paper does not say")

    return notes


def check_study(name: str) -> str:
    """Return the name of a study. Raises InputError for an unknown one."""
    if name not in STUDIES:
        raise InputError(f"no study is named {name!r}; {nearest(name, STUDIES)}")
    return name


def build_tables(entries: Sequence[TableEntry]) -> list[Table]:
    """Return every table of the paper, with quoted rows before the entries'.

    Evaluations for no study enter the main table (or that of H2O and OakInk2).
    """
    tables = []
    for name, (title, columns) in TABLES.items():
        data = quoted()["tables"].get(name)
        table = Table(name, title, data and data["label"], columns)
        if data is not None:
            for block, rows in data["blocks"].items():
                table.blocks[block] = []
                for row in rows:
                    values = dict(zip(data["columns"], row["values"], strict=True))
                    label = f"{row['method']}, r {row['bin']}" if "bin" in row else row["method"]
                    table.blocks[block].append(
                        Row(label, _numbers(values, columns), True, row["origin"])
                    )
        for number, entry in enumerate(entries, 1):
            mark = f"[{number}]{OTHERWISE if differences(entry) else ''}"
            block = entry.block
            if name == "throughput":
                block += f", {(entry.json.get('throughput') or {}).get('machine')}"
            for row in _rows_of(entry, name, columns, mark):
                table.blocks.setdefault(block, []).append(row)
        tables.append(table)

    return tables


def _rows_of(entry: TableEntry, table: str, columns: Sequence[str], origin: str) -> list[Row]:
    """Return an entry's rows of one table."""
    if entry.study is not None:
        belongs = table == entry.study
    elif table in ("main", "extra"):
        belongs = (table == "extra") == (entry.block in _EXTRA)
    else:
        belongs = table not in STUDIES
    if not belongs:
        return []
    return [
        Row(entry.name + suffix, _numbers(values, columns), False, origin)
        for suffix, values in _lines(table, entry.json)
    ]


def _numbers(values: Mapping[str, Any], names: Sequence[str]) -> tuple[float | None, ...]:
    entries = (values.get(name) for name in names)
    return tuple(None if value is None else float(value) for value in entries)


def _lines(table: str, value: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return an evaluation's rows of a table: label endings, and values by column."""
    if table == "oos":
        return [("", value["metrics"])] if value["counts"]["oos"] else []
    if table in ("matched", "throughput"):
        return [("", value[table])] if value.get(table) else []

    if table == "placement":
        block = value.get("out_of_sight_placement") or {}
        if not block.get("count"):
            return []
        translation = value.get("translation_m") or {}
        means = {"ct_iv": translation.get("iv"), "ct_oos": translation.get("oos")}
        return [("", {**block, **means, "emitted": block["emitted"] / block["count"]})]

    if table == "radius":
        rows = []
        for row in value.get("radius") or []:
            low, high = row["from"], row["to"]
            ends = f">{low:g}" if high is None else f"{low:.2f}-{high:.2f}"
            rows.append((f", r {ends}", row))
        return rows

    if table == "length":
        rows = []
        for row in value.get("decoded_length") or []:
            whole = ", whole recordings" if row.get("whole") else ""
            rows.append((f"{whole}, {row['segments']} segments", row))
        return rows
    return [("", value["metrics"])]


def _shown(table: Table, column: str, value: float | None) -> str:
    """Return a cell with as many digits as in the paper, or a dash."""
    two = table.name in _TWO_DIGITS and not column.startswith("ct")
    digits = _DIGITS.get((table.name, column), 2 if two else COLUMNS[column][1])
    return "–" if value is None else f"{value:.{digits}f}"
