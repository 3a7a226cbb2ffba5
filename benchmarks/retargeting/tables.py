"""Markdown of the comparison, written from its JSON; see ``benchmarks.documents``."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

Scores = Mapping[str, Any]
Cell = Callable[[Scores], str]


def _share(value: float) -> str:
    return "0" if value == 0 else f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.0f} %"


def _or_dash(value: float | None, text: str) -> str:
    return "-" if value is None else text.format(value)


#: Title of a column, and its cell.
COLUMNS: dict[str, Cell] = {
    "scale": lambda s: _or_dash(s.get("scale"), "{:.2f}"),
    "tip mm, mean / p95": lambda s: (
        f"{s['tip_error_mm']['mean']:.1f} / {s['tip_error_mm']['p95']:.1f}"
    ),
    "directions deg: palm, wrist, knuckle": lambda s: ", ".join(
        f"{s[f'direction_{kind}_deg']:.1f}" for kind in ("palm", "wrist", "knuckle")
    ),
    "flexion deg": lambda s: _or_dash(s.get("flexion_error_deg"), "{:.1f}"),
    "pinch mm, recall, false": lambda s: (
        f"{_or_dash(s['pinch_mm'], '{:.1f}')}, {_or_dash(s['pinch_recall'], '{:.2f}')}, "
        f"{_share(s['false_pinch_share'])}"
    ),
    "beyond limits: 1e-6, 2 mrad": lambda s: (
        f"{_share(s['limit_violation_share'])}, {_share(s['limit_violation_share_2mrad'])}"
    ),
    "over speed, worst": lambda s: (
        f"{_share(s['speed_violation_share'])}, {s['speed_ratio']:.1f} x"
    ),
    "over acceleration, worst": lambda s: (
        f"{_share(s['acceleration_violation_share'])}, {s['acceleration_ratio']:.0f} x"
    ),
    "jerk rad/s3": lambda s: f"{s['jerk_rad_s3']:.0f}",
    "lag": lambda s: str(round(s["lag_frames"])),
    "penetration: frames, worst mm": lambda s: (
        f"{s['penetration_frames']}, {s['penetration_max_mm']:.1f}"
    ),
    "replay rms rad": lambda s: f"{s['tracking_rms_rad']:.3f}",
    "CPU ms": lambda s: (
        f"{s['ms_per_frame']:.2f}"
        + (f" (+{s['calibration_ms_per_frame']:.2f})" if "calibration_ms_per_frame" in s else "")
    ),
}
#: What is compared over all robots and recordings: how to read it, and whether more is better.
MEASURES: dict[str, tuple[Callable[[Scores], float | None], bool]] = {
    "tip error, mean": (lambda s: s["tip_error_mm"]["mean"], False),
    "tip error, p95": (lambda s: s["tip_error_mm"]["p95"], False),
    "direction, palm": (lambda s: s["direction_palm_deg"], False),
    "direction, wrist": (lambda s: s["direction_wrist_deg"], False),
    "direction, knuckle": (lambda s: s["direction_knuckle_deg"], False),
    "flexion": (lambda s: s.get("flexion_error_deg"), False),
    "pinch distance": (lambda s: s["pinch_mm"], False),
    "pinch recall": (lambda s: s["pinch_recall"], True),
    "false pinches": (lambda s: s["false_pinch_share"], False),
    "beyond limits, 1e-6": (lambda s: s["limit_violation_share"], False),
    "beyond limits, 2 mrad": (lambda s: s["limit_violation_share_2mrad"], False),
    "over speed": (lambda s: s["speed_violation_share"], False),
    "over acceleration": (lambda s: s["acceleration_violation_share"], False),
    "jerk": (lambda s: s["jerk_rad_s3"], False),
    "lag": (lambda s: abs(s["lag_frames"]), False),
    "penetrating frames": (lambda s: s["penetration_frames"], False),
    "replay rms": (lambda s: s["tracking_rms_rad"], False),
    "solve time": (lambda s: s["ms_per_frame"], False),
    "solve time with calibration": (
        lambda s: s["ms_per_frame"] + s.get("calibration_ms_per_frame", 0.0), False,
    ),
}  # fmt: skip


#: Tables that the documentation shows.
NAMES = ("retarget run", "inspire joints", "inspire hot3d", "inspire synthetic", "tips",
         "palm directions", "flexion", "better and worse", "ablation")  # fmt: skip


def table(rows: Mapping[str, Scores], first: str = "method") -> str:
    """Return one row per method with every measure; columns that nothing fills are left out."""
    columns = {
        name: cell
        for name, cell in COLUMNS.items()
        if any(cell(row) != "-" for row in rows.values())
    }
    lines = [_line([first, *columns]), _line(["---"] * (len(columns) + 1))]
    lines += [
        _line([name, *(cell(row) for cell in columns.values())]) for name, row in rows.items()
    ]
    return "\n".join(lines)


def overview(robots: Mapping[str, Mapping[str, Mapping[str, Scores]]], cell: Cell) -> str:
    """Return one cell per robot and recording (rows) and method (columns)."""
    methods = list(dict.fromkeys(m for r in robots.values() for rows in r.values() for m in rows))
    lines = [_line(["robot, recording", *methods]), _line(["---"] * (len(methods) + 1))]
    for robot, recordings in robots.items():
        for recording, rows in recordings.items():
            cells = [cell(rows[m]) if m in rows else "-" for m in methods]
            lines.append(_line([f"{robot}, {recording}", *cells]))
    return "\n".join(lines)


def better_and_worse(robots: Mapping[str, Mapping[str, Mapping[str, Scores]]]) -> str:
    """Return in how many of robots x recordings ours is better / worse than each other method.

    Equal is neither. Two values that differ by less than a thousandth of the larger are equal. The
    text below the table says on what ours is behind more often than ahead, and of whom.
    """
    pairs = [rows for recordings in robots.values() for rows in recordings.values()]
    others = [m for m in dict.fromkeys(m for rows in pairs for m in rows) if m != "ours"]
    lines = [_line(["ours better / worse", *others]), _line(["---"] * (len(others) + 1))]
    behind = []
    for name, (read, more) in MEASURES.items():
        cells, ahead = [], []
        for other in others:
            wins = losses = 0
            for rows in pairs:
                if other not in rows:
                    continue
                ours, theirs = read(rows["ours"]), read(rows[other])
                if ours is None or theirs is None:
                    continue
                if abs(ours - theirs) > 1e-3 * max(abs(ours), abs(theirs)):
                    wins, losses = (
                        (wins + 1, losses) if (ours > theirs) == more else (wins, losses + 1)
                    )
            cells.append(f"{wins} / {losses}")
            ahead += [other] if losses > wins else []
        lines.append(_line([name, *cells]))
        if ahead:
            of = "all" if len(ahead) == len(others) else ", ".join(ahead)
            behind.append(f"{name} ({of})")
    text = f"Ours is behind more often than ahead on {'; '.join(behind) or 'none'}."
    return "\n".join([*lines, "", textwrap.fill(text, 120, break_on_hyphens=False)])


def blocks(result: Mapping[str, Any]) -> dict[str, str]:
    """Return every table of a result by name, as the documentation refers to it."""
    robots, out = result["robots"], {}
    made = ", ".join(
        f"`{name}` {one['frames']} frames of {len(one['hands'])} hand"
        f"{'s' if len(one['hands']) > 1 else ''}"
        for name, one in result["recordings"].items()
    )
    out["retarget run"] = f"The run that the tables are from: {made}; {record(result)}."
    for robot, recordings in robots.items():
        for recording, rows in recordings.items():
            out[f"{robot} {recording}"] = table(rows)
    out["tips"] = overview(robots, lambda s: f"{s['tip_error_mm']['mean']:.1f}")
    out["palm directions"] = overview(robots, lambda s: f"{s['direction_palm_deg']:.1f}")
    out["flexion"] = overview(robots, lambda s: _or_dash(s.get("flexion_error_deg"), "{:.1f}"))
    out["better and worse"] = better_and_worse(robots)
    if result.get("gestures"):
        for name, rows in result["gestures"].items():
            out[f"gesture {name}"] = table(rows)
    if result.get("ablation"):
        out["ablation"] = table(result["ablation"], "ours")
    return out


def document(result: Mapping[str, Any]) -> str:
    """Return all tables one below the other."""
    head = (
        "# Retargeting against dex-retargeting: every table\n\n"
        "Written from [retarget.json](retarget.json), made by "
        f"`{result['provenance']['command']}`. "
        "What the columns mean: [retargeting](../../docs/retargeting.md).\n"
    )
    return head + "".join(f"\n## {name}\n\n{text}\n" for name, text in blocks(result).items())


def record(result: Mapping[str, Any]) -> str:
    """Return commit, date and machine of a result in words."""
    made = result["provenance"]
    machine, changed = made["machine"], " with changes" if made["dirty"] else ""
    graphics = ", ".join(machine["gpu"]) or "no GPU"
    others = "idle" if made["idle"] else f"next to other work ({made['others_cores']} cores of it)"
    return (
        f"commit {made['commit'][:7]}{changed}, {made['date'][:10]}, {machine['cores']} cores "
        f"({machine['architecture']}), {graphics}, {others}"
    )


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
