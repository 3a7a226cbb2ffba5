"""Plots as SVG text, drawn here so that a report needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 14.0, 48.0
#: Quoted points are hollow, so that they differ without colour too.
COLOURS = ("#0b5fa5", "#c2410c", "#15803d", "#7e22ce", "#475569", "#0e7490", "#be123c", "#4d7c0f")


@dataclass(frozen=True, slots=True)
class Series:
    """Named points (x, y), in order of x where they are joined."""

    name: str
    points: tuple[tuple[float, float], ...]
    quoted: bool
    joined: bool = True


def plot(series: Sequence[Series], x_label: str, y_label: str, log_x: bool = False) -> str:
    """Return a plot with its legend below. Empty series are left out."""
    series = [s for s in series if s.points]
    if not series:
        return ""
    xs = [_warp(x, log_x) for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    low, high = min(xs), max(xs)
    pad = 0.06 * (high - low) or 0.5
    low_x, high_x = low - pad, high + pad
    high_y = max(ys) * 1.08 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = (_warp(x, log_x) - low_x) / (high_x - low_x)
        return (_LEFT + across * (_WIDTH - _LEFT - _RIGHT),
                _HEIGHT - _BOTTOM - y / high_y * (_HEIGHT - _TOP - _BOTTOM))  # fmt: skip

    parts = []
    for value in _ticks(0.0, high_y):
        _, y = at(10**low_x if log_x else low_x, value)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                     'stroke="#ddd"/>')  # fmt: skip
        parts.append(_text(_LEFT - 6, y + 4, f"{value:g}", "end"))
    ticks = _ticks(low_x, high_x)
    if log_x:
        decades = [m * 10.0**k for k in range(-3, 5) for m in (1, 2, 5)]
        ticks = [value for value in decades if low_x <= math.log10(value) <= high_x]
    for value in ticks:
        x, _ = at(value, 0.0)
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{value:g}", "middle"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 8, x_label, "middle"))
    parts.append(f'<text transform="translate(14 {_HEIGHT / 2}) rotate(-90)" '
                 f'text-anchor="middle">{escape(y_label)}</text>')  # fmt: skip
    for number, line in enumerate(series):
        parts += _drawn(line, COLOURS[number % len(COLOURS)], at)
    return _svg(parts) + _legend(series)


def _drawn(
    series: Series, colour: str, at: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    places = [at(x, y) for x, y in series.points]
    parts = []
    if series.joined and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if series.quoted else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"'
                   f"{dash}/>")  # fmt: skip
    fill = "#fff" if series.quoted else colour
    for x, y in places:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}" '
                   'stroke-width="2"/>')  # fmt: skip
    return parts


def bars(groups: Sequence[tuple[str, Sequence[float], bool]], names: Sequence[str]) -> str:
    """Return horizontal bars: per group a label, one value per name, and whether it is quoted."""
    if not groups:
        return ""
    high = max(max(values) for _, values, _ in groups) or 1.0
    step, thick, left = 15.0 * len(names) + 8, 13, 190.0
    height = step * len(groups) + 8

    parts = []
    for row, (label, values, quoted) in enumerate(groups):
        top = 4 + row * step
        parts.append(_text(left - 8, top + step / 2, label, "end"))
        for index, value in enumerate(values):
            y, width = top + index * 15, value / high * (_WIDTH - left - 60)
            colour = COLOURS[index]
            fill = f'fill="none" stroke="{colour}"' if quoted else f'fill="{colour}"'
            parts.append(f'<rect x="{left}" y="{y:.1f}" width="{width:.1f}" height="{thick}" '
                         f"{fill}/>")  # fmt: skip
            parts.append(_text(left + width + 5, y + 11, f"{value:.1f}", "start"))

    keys = [Series(name, (), False) for name in names]
    return _svg(parts, height) + _legend(keys)


@dataclass(frozen=True, slots=True)
class Web:
    """One radar: ``rims`` says at every axis what its rim stands for.

    ``values`` has one row per series and one number per axis: 0 in the middle, 1 at the rim, None
    where nothing is known.
    """

    title: str
    rims: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


def radar(webs: Sequence[Web], axes: Sequence[str], series: Sequence[Series]) -> str:
    """Return radars side by side as one picture, with one legend for all of them.

    The first axis points up, the others follow clockwise. A line runs only between neighbours that
    are both known.
    """
    if not webs:
        return ""
    across, side = min(3, len(webs)), 330.0

    parts = []
    for number, web in enumerate(webs):
        row, column = divmod(number, across)
        spokes = _Spokes((column + 0.5) * side, (row + 0.54) * side, 0.29 * side, len(axes))
        title = escape(web.title)
        parts.append(f'<text x="{spokes.x:.1f}" y="{row * side + 18:.1f}" text-anchor="middle" '
                     f'font-weight="600">{title}</text>')  # fmt: skip
        parts += _frame(spokes, axes, web.rims)
        for index, (line, values) in enumerate(zip(series, web.values, strict=True)):
            parts += _strand(line, COLOURS[index % len(COLOURS)], values, spokes)

    height = -(-len(webs) // across) * side
    return _svg(parts, height, across * side) + _legend(series)


@dataclass(frozen=True, slots=True)
class _Spokes:
    """Where a radar is in the picture."""

    x: float
    y: float
    radius: float
    count: int

    def at(self, axis: int, value: float) -> tuple[float, float]:
        """Return the place of a value, 1 at the rim, on an axis."""
        turn, distance = 2 * math.pi * axis / self.count, self.radius * value
        return self.x + distance * math.sin(turn), self.y - distance * math.cos(turn)


def _frame(spokes: _Spokes, axes: Sequence[str], rims: Sequence[str]) -> list[str]:
    parts = []
    for ring in (0.25, 0.5, 0.75, 1.0):
        outline = _points(spokes.at(axis, ring) for axis in range(spokes.count))
        parts.append(f'<polygon points="{outline}" fill="none" stroke="#ddd"/>')
    for axis, (name, rim) in enumerate(zip(axes, rims, strict=True)):
        (tip_x, tip_y), (x, y) = spokes.at(axis, 1.0), spokes.at(axis, 1.12)
        parts.append(f'<line x1="{spokes.x:.1f}" y1="{spokes.y:.1f}" x2="{tip_x:.1f}" '
                   f'y2="{tip_y:.1f}" stroke="#ddd"/>')  # fmt: skip
        beside = (x - spokes.x) / spokes.radius
        anchor = "middle" if abs(beside) < 0.1 else "start" if beside > 0 else "end"
        top = y - 10 if axis == 0 else y + 2
        parts += [_text(x, top, name, anchor), _text(x, top + 13, rim, anchor)]
    return parts


def _strand(
    series: Series, colour: str, values: Sequence[float | None], spokes: _Spokes
) -> list[str]:
    places = [None if v is None else spokes.at(axis, v) for axis, v in enumerate(values)]
    known = [place for place in places if place is not None]
    dash, thick = (' stroke-dasharray="5 4"', 1.5) if series.quoted else ("", 2.5)

    parts = []
    if len(known) == len(places):
        parts.append(f'<polygon points="{_points(known)}" fill="none" stroke="{colour}" '
                   f'stroke-width="{thick}"{dash}/>')  # fmt: skip
    else:
        for start, end in zip(places, places[1:] + places[:1], strict=True):
            if start is not None and end is not None:
                parts.append(f'<polyline points="{_points((start, end))}" fill="none" '
                           f'stroke="{colour}" stroke-width="{thick}"{dash}/>')  # fmt: skip

    fill = "#fff" if series.quoted else colour
    for x, y in known:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{fill}" '
                   f'stroke="{colour}" stroke-width="1.5"/>')  # fmt: skip

    return parts


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _svg(parts: Sequence[str], height: float = _HEIGHT, width: float = _WIDTH) -> str:
    return (f'<svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
            'role="img" font-size="12" font-family="sans-serif" fill="#222">'
            + "".join(parts) + "</svg>")  # fmt: skip


def _legend(series: Sequence[Series]) -> str:
    keys = []
    for number, line in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        mark = "○" if line.quoted else "●"
        keys.append(f'<span><b style="color:{colour}">{mark}</b> {escape(line.name)}</span>')
    return f'<p class="legend">{" ".join(keys)}</p>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _warp(x: float, log_x: bool) -> float:
    return math.log10(x) if log_x else x


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]
