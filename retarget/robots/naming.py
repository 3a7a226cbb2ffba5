"""What the names in a model file say: which finger a chain of joints is, and of which hand."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from acehand_core.types import SIDES, Side
from retarget.robots.fingers import FoundHand

if TYPE_CHECKING:
    import mujoco

#: How the names of links and joints speak of fingers.
_NAMES = {
    "thumb": r"thumb|(^|[_/])th(?=$|[_/\d]|j\d|base|prox|mid|dist|hub|tip)",
    "index": r"index|(^|[_/])[fi]f(?=$|[_/\d]|[ja]\d|knuckle|base|prox|mid|med|dist|tip)",
    "middle": r"middle|(^|[_/])mf(?=$|[_/\d]|[ja]\d|knuckle|base|prox|mid|med|dist|tip)",
    "ring": r"(^|[_/])ring|(^|[_/])rf(?=$|[_/\d]|[ja]\d|knuckle|base|prox|mid|med|dist|tip)",
    "pinky": r"pinky|little|(^|[_/])[lp]f(?=$|[_/\d]|[ja]\d|meta|knuckle|prox|mid|med|dist|tip)",
}
_SIDE_MARK = r"(?i)(?:^(?:{0})(?:[_/.\- ]|hand)|[_/.\- ](?:{0})(?=$|[_/.\- ]))"
_MARKS = {"left": r"left|lh|l", "right": r"right|rh|r"}


def fingers_named(text: str) -> tuple[str, ...]:
    """Return the human fingers that a joint's or link's name may speak of."""
    return tuple(f for f, names in _NAMES.items() if re.search(names, text, re.IGNORECASE))


def named_fingers(model: mujoco.MjModel, found: FoundHand) -> list[str]:
    """Return the human finger that the names of each chain speak of; "" where none is."""
    fingers = []
    for finger in found.fingers:
        texts = [model.joint(j).name for j in finger.joints]
        texts += [model.body(int(model.jnt_bodyid[j])).name for j in finger.joints]
        votes = Counter(name for text in texts for name in fingers_named(text))
        fingers.append(max(votes, key=lambda name: votes[name], default=""))
    return fingers


def named_side(model: mujoco.MjModel, file: Path, found: FoundHand) -> Side | None:
    """Return the side that every joint's name has, else the link's, the model's or the file's."""
    joints = [model.joint(j).name for j in found.joints]
    root = model.body(found.root).name if found.root else ""
    title = model.names[: model.names.find(b"\0")].decode()
    for texts in (joints, [root], [title], [file.stem], [file.resolve().parent.name]):
        marked = [s for s in SIDES if all(_has_mark(t, s) for t in texts)]
        if len(marked) == 1:
            return marked[0]
    return None


def _has_mark(text: str, side: Side) -> bool:
    return bool(re.search(_SIDE_MARK.format(_MARKS[side]), text))


def our_joints(model: mujoco.MjModel, found: FoundHand, side: Side | None) -> dict[str, int]:
    """Return our name of each joint: theirs without the side, and without odd characters."""
    theirs = {model.joint(j).name: j for j in found.joints}
    mark = None
    if side is not None and all(_has_mark(name, side) for name in theirs):
        mark = _SIDE_MARK.format(_MARKS[side])
    ours: dict[str, int] = {}
    for name, joint in theirs.items():
        plain = name if mark is None else re.sub(mark, "", name, count=1)
        plain = re.sub(r"[^\w.\-]+", "_", plain).strip("_") or f"joint_{joint}"
        ours[plain if plain not in ours else f"{plain}_{joint}"] = joint
    return ours
