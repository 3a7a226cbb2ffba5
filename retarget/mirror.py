"""One side of a hand as the mirror image of the other, in the y of every link's frame.

A parameter file then states one side only, and for the other side only what differs.
"""

from __future__ import annotations

from typing import Any

from acehand_core.types import SIDES, Side
from retarget.parameters import Section, merged

#: Which components of a vector change sign in the mirror y -> -y. A turn changes sense as well, so
#: an axis of rotation behaves unlike a direction.
_DIRECTION = (1.0, -1.0, 1.0)
_TURN = (-1.0, 1.0, -1.0)
_SIGNS = {
    "xyz": _DIRECTION, "com": _DIRECTION, "from": _DIRECTION, "to": _DIRECTION,
    "center": _DIRECTION, "rpy": _TURN,
}  # fmt: skip


def unmirrored(sides: Section, side: Side) -> Section:
    """Return one side's entry; with ``mirror: OTHER`` the other's, mirrored, its own laid over it.

    Joints keep their names and the signs of their angles: flexion is positive on both sides if it
    is on one.
    """
    own = sides.section(side)
    own.only("joints commands links tips model mirror")
    if "mirror" not in own:
        return own
    other = sides.section(own.choice("mirror", (s for s in SIDES if s in sides and s != side)))
    if "mirror" in other:
        own.fail("mirror", f"is {other.key!r}, which is a mirror image itself.")
    values = dict(own.plain())
    for table in ("links", "tips"):
        if table in other:
            mirrored = {k: _mirrored(v) for k, v in other.section(table).plain().items()}
            base = Section(own.file, f"{own.key}.{table}", mirrored)
            change = own.section(table, optional=True)
            change.known(mirrored)
            values[table] = merged(base, change).plain()
    return Section(own.file, own.key, values)


def _mirrored(entry: Any) -> Any:
    """Return a link, tip or shape in the mirror; what is malformed is left for the reader."""
    if isinstance(entry, list):
        return [_mirrored(item) for item in entry]
    if not isinstance(entry, dict):
        return entry
    axis = _DIRECTION if entry.get("motion") == "slide" else _TURN
    out = {}
    for key, value in entry.items():
        signs = axis if key == "axis" else _SIGNS.get(key)
        out[key] = _mirrored(value) if signs is None else _signed(value, signs)
    return out


def _signed(value: Any, signs: tuple[float, ...]) -> Any:
    if not isinstance(value, list) or len(value) != len(signs):
        return value
    good = all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    return [v * s for v, s in zip(value, signs, strict=True)] if good else value
