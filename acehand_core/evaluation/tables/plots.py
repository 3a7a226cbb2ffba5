"""Plots as SVG text, drawn here so that a report needs no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 560.0, 330.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 14.0, 48.0
#: Told apart also without colour: quoted points are hollow.
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
    low_x, high_x = _widened(min(xs), max(xs))
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
    for value in _decades(low_x, high_x) if log_x else _ticks(low_x, high_x):
        x, _ = at(value, 0.0)
        parts.append(_text(x, _HEIGHT - _BOTTOM + 16, f"{value:g}", "middle"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 8, x_label, "middle"))
    parts.append(f'<text transform="translate(14 {_HEIGHT / 2}) rotate(-90)" '
                 f'text-anchor="middle">{escape(y_label)}</text>')  # fmt: skip
    for number, one in enumerate(series):
        parts += _drawn(one, COLOURS[number % len(COLOURS)], at)
    return _svg(parts) + _legend(series)


def _drawn(series: Series, colour: str, at) -> list[str]:
    places = [at(x, y) for x, y in series.points]
    out = []
    if series.joined and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="5 4"' if series.quoted else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"'
                   f"{dash}/>")  # fmt: skip
    fill = "#fff" if series.quoted else colour
    for x, y in places:
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" stroke="{colour}" '
                   'stroke-width="2"/>')  # fmt: skip
    return out


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


def _svg(parts: Sequence[str], height: float = _HEIGHT) -> str:
    return (f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" width="{_WIDTH:g}" height="{height:g}" '
            'role="img" font-size="12" font-family="sans-serif" fill="#222">'
            + "".join(parts) + "</svg>")  # fmt: skip


def _legend(series: Sequence[Series]) -> str:
    keys = []
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        mark = "○" if one.quoted else "●"
        keys.append(f'<span><b style="color:{colour}">{mark}</b> {escape(one.name)}</span>')
    return f'<p class="legend">{" ".join(keys)}</p>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _warp(x: float, log_x: bool) -> float:
    return math.log10(x) if log_x else x


def _widened(low: float, high: float) -> tuple[float, float]:
    pad = 0.06 * (high - low) or 0.5
    return low - pad, high + pad


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    values = [m * 10.0**k for k in range(-3, 5) for m in (1, 2, 5)]
    return [v for v in values if low <= math.log10(v) <= high]
