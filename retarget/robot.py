"""Robots: which there are, and what a robot.yaml and its model files say of one.

The file's schema is documented at the top of ``robots/inspire/robot.yaml``.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from acehand_core.errors import InputError, nearest
from acehand_core.types import SIDES, Side
from retarget.hand_file import read_hand
from retarget.hand_spec import HandSpec
from retarget.parameters import Section, read_yaml

SCHEMA = "acehand-robot/1"
MODELS_VARIABLE = "ACEHAND_ROBOT_MODELS"
OURS: Literal["ours"] = "ours"


@dataclass(frozen=True, slots=True, eq=False)
class Robot:
    """A robot hand model with one or two sides; ``license`` is a note for provenance."""

    name: str
    title: str
    license: str
    variant: str
    variants: tuple[str, ...]
    path: Path
    hands: Mapping[Side, HandSpec]

    @property
    def label(self) -> str:
        """The name, with the variant after a colon unless it is the default one."""
        return self.name if self.variant == "default" else f"{self.name}:{self.variant}"

    def hand(self, side: Side) -> HandSpec:
        """Return one side's hand; InputError if this robot has no such side."""
        if side not in self.hands:
            raise InputError(f"Robot {self.name!r} has no {side} hand; {nearest(side, self.hands)}")
        return self.hands[side]


def robot_names() -> tuple[str, ...]:
    """Return the robots that come with the package."""
    folder = importlib.resources.files("robots")
    return tuple(sorted(f.name for f in folder.iterdir() if f.joinpath("robot.yaml").is_file()))


def find_robot_file(name_or_path: str | Path) -> Path:
    """Return the robot.yaml of a packaged robot, or of a file or folder given as a path."""
    if str(name_or_path) in robot_names():
        return Path(str(importlib.resources.files("robots"))) / str(name_or_path) / "robot.yaml"
    path = Path(name_or_path)
    if path.is_dir() and (path / "robot.yaml").is_file():
        return path / "robot.yaml"
    if path.is_file():
        return path
    looks_like_path = path.suffix in (".yaml", ".yml") or len(path.parts) > 1
    where = "There is no such robot file or folder" if looks_like_path else "Unknown robot"
    raise InputError(
        f"{where}: {str(name_or_path)!r}; {nearest(str(name_or_path), robot_names())} "
        "Or give the path of a robot.yaml."
    )


def split_variant(name_or_path: str | Path) -> tuple[str, str | None]:
    """Return a robot's name or path and the variant after the colon, if there is one."""
    text = str(name_or_path)
    if ":" not in text or Path(text).exists():
        return text, None
    name, _, variant = text.rpartition(":")
    return name, variant


def load_robot(
    name_or_path: str | Path,
    variant: str | None = None,
    models: Path | Literal["ours"] | None = None,
) -> Robot:
    """Read a robot.

    Args:
        name_or_path: a packaged robot's name, or the path of a robot.yaml or its folder; a variant
            may follow after a colon.
        variant: one of the file's variants; None takes "default".
        models: the user's own model file, or a folder that has it; None looks into the folder that
            ACEHAND_ROBOT_MODELS names; OURS takes the files beside the robot.yaml.

    Raises:
        InputError: unknown robot or variant, or no model file.
        SchemaError: the file breaks the schema, or a model file lacks what it names.
    """
    name, named = split_variant(name_or_path)
    variant = variant or named
    path = find_robot_file(name)
    root = read_yaml(path)
    if (schema := root.text("schema")) != SCHEMA:
        root.fail("schema", f"is {schema!r}; this version reads {SCHEMA!r}.")
    variants = root.section("variants", optional=True)
    names = ("default", *variants)
    variant = variant or "default"
    if variant not in names:
        raise InputError(f"Unknown variant {variant!r} of robot {path}; {nearest(variant, names)}")
    changes = variants.section(variant).section("joints") if variant != "default" else None
    sides = root.section("sides")
    if not tuple(sides):
        root.fail("sides", "must hold left, right or both.")
    for side in sides:
        if side not in SIDES:
            sides.fail(side, f"is not a side; {nearest(side, SIDES)}")
    hands = {side: read_hand(root, side, variant, changes) for side in SIDES if side in sides}
    robot = Robot(
        name=root.text("name"),
        title=root.text("title"),
        license=root.text("license"),
        variant=variant,
        variants=names,
        path=path,
        hands=hands,
    )
    root.only("schema name title license source files joints commands register_range "
              "register_scale register_offset register_unit register_whole latency follows "
              "keypoints dropped_fingers variants simulation materials no_contact "
              "sides")  # fmt: skip
    return robot if models == OURS else _with_users_models(robot, root, models)


def _with_users_models(robot: Robot, root: Section, place: Path | None) -> Robot:
    """Return the robot with the user's own model files where they are asked for or needed."""
    from retarget.user_model import adopt, find_model, read_entry

    asked = place is not None
    if place is not None and not place.exists():
        raise InputError(f"{place}: no such file or folder; --robot-model needs one that exists.")
    if place is None and os.environ.get(MODELS_VARIABLE):
        place = Path(os.environ[MODELS_VARIABLE])
    hands, licenses, files = dict(robot.hands), [robot.license], []
    for side, hand in robot.hands.items():
        entry = read_entry(root, side, hand.joint_names)
        if entry is None:
            continue
        files.append(entry.file)
        places = [p for p in (place, None if hand.body else robot.path.parent) if p is not None]
        file = next((f for p in places if (f := find_model(entry, p))), None)
        if file is not None:
            hands[side] = adopt(hand, entry, file)
            licenses.append(f"{side} model file: {entry.license}")
        elif hand.body is None:
            looked = ", ".join(map(str, places))
            raise InputError(
                f"Robot {robot.name!r}: the {side} hand's model file {entry.file!r} is not in "
                f"{looked}. It does not come with the package ({entry.license}): get your own copy "
                f"and give its place with --robot-model or {MODELS_VARIABLE}."
            )
    if asked and not files:
        raise InputError(
            f"{place}: robot {robot.name!r} reads no other model file than its own; its robot.yaml "
            "would have to name one (docs/robots.md)."
        )
    if asked and not any(hand.user_model for hand in hands.values()):
        raise InputError(
            f"{place}: has no model file of robot {robot.name!r}; valid: {' or '.join(files)}, by "
            "that name, or a folder that has it there."
        )
    return replace(robot, hands=hands, license="; ".join(licenses))
