"""The joints of a hand as its controller or driver calls, orders and counts them. No ROS.

A file says it per hand; ``config/controllers/inspire.yaml`` documents the schema.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, nearest
from acehand_core.motion import Course
from acehand_core.types import SIDES, Side
from retarget.robots.hand_spec import HandSpec
from retarget.robots.parameters import Section, read_yaml
from retarget.robots.robot import Robot

SCHEMA = "acehand-controllers/1"
UNITS = ("rad", "register")

Commands = Float[np.ndarray, "*batch C"]


@dataclass(frozen=True, slots=True, eq=False)
class JointMap:
    """One hand's controller: its name, joints in its order, and their unit.

    ``commands[i]`` is the place among the hand's driven joints (``HandSpec.command_joints``) of the
    controller's joint i. ``joint_states`` is the topic of the measured joints, named as the
    controller names them and in its unit.
    """

    hand: HandSpec
    controller: str
    joints: tuple[str, ...]
    commands: tuple[int, ...]
    unit: str = "rad"
    joint_states: str = "joint_states"

    def values(self, commands: Commands) -> Commands:
        """Return driven angles (rad) as the controller's values, whole where it takes registers."""
        if self.unit == "rad":
            return commands[..., list(self.commands)]
        found = self.hand.controller.of(commands)[..., list(self.commands)]
        return np.round(found) if self.hand.controller.whole else found

    def course(self, course: Course) -> Course:
        """Return a trajectory in the controller's order and unit.

        Registers are not rounded here: positions would no longer fit their speeds.
        """
        positions, velocities = course.positions, course.velocities
        if self.unit == "register":
            registers = self.hand.controller
            travel = registers.at_upper - registers.at_lower
            velocities = velocities * travel / (registers.upper - registers.lower)
            positions = registers.of(positions)
        order = list(self.commands)
        return Course(course.seconds, positions[:, order], velocities[:, order])

    def measured(self, positions: Mapping[str, float]) -> Commands:
        """Return the driven angles (C,) out of measured joints by the controller's names."""
        out = np.empty(len(self.joints))
        out[list(self.commands)] = [positions[name] for name in self.joints]
        return out if self.unit == "rad" else self.hand.controller.inverse(out)


def own_names(robot: Robot) -> dict[Side, JointMap]:
    """Return the maps of controllers that name joints as our URDF and datasets do, in radians."""
    return {
        side: JointMap(
            hand,
            f"{side}_hand",
            tuple(hand.full_name(name) for name in hand.command_joints),
            tuple(range(len(hand.command_joints))),
        )
        for side, hand in robot.hands.items()
    }


def read_joint_maps(name_or_path: str, robot: Robot) -> dict[Side, JointMap]:
    """Read a file of joint maps.

    Args:
        name_or_path: of a file of ours or the user's; empty: ``own_names``.

    Raises:
        InputError: there is no such file.
        SchemaError: it breaks the schema, names a joint that the robot's hand does not drive, or
            leaves one out.
    """
    if not name_or_path:
        return own_names(robot)
    root = read_yaml(_find(name_or_path))
    if (schema := root.text("schema")) != SCHEMA:
        root.fail("schema", f"is {schema!r}; this version reads {SCHEMA!r}.")
    root.only("schema hands")
    hands = root.section("hands")
    hands.known(robot.hands)
    if not tuple(hands):
        hands.fail("", f"holds no hand; valid: {', '.join(robot.hands)}.")
    return {side: _read_hand(hands.section(side), robot.hand(side)) for side in SIDES
            if side in hands}  # fmt: skip


def choose_hands(
    maps: Mapping[Side, JointMap],
    hands: str,
    controllers: Mapping[str, str],
) -> dict[Side, JointMap]:
    """Return the maps of the hands that are to be driven.

    Args:
        hands: both, left or right.
        controllers: other names of controllers than those of the file, by side; empty: the file's.

    Raises:
        InputError: there is no map of a hand that was asked for, or one controller for both.
    """
    wanted = tuple(maps) if hands == "both" else (hands,)
    out: dict[Side, JointMap] = {}
    for side in SIDES:
        if side in wanted:
            if side not in maps:
                raise InputError(f"hands: no controller of a {side} hand; {nearest(side, maps)}")
            name = controllers.get(side) or maps[side].controller
            out[side] = replace(maps[side], controller=name)
    names = [one.controller for one in out.values()]
    if len(set(names)) < len(names):
        raise InputError(
            f"Both hands have the controller {names[0]!r}. Choose hands:=left or hands:=right, or "
            "name each one's: left_controller:=NAME right_controller:=NAME."
        )
    return out


def _find(name_or_path: str) -> Path:
    folder = Path(str(importlib.resources.files("acehand_ros"))) / "config" / "controllers"
    names = sorted(file.stem for file in folder.glob("*.yaml"))
    if name_or_path in names:
        return folder / f"{name_or_path}.yaml"
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise InputError(
            f"controllers: no file {name_or_path!r}; {nearest(name_or_path, names)} "
            "Or give the path of a YAML file."
        )
    return path


def _read_hand(entry: Section, hand: HandSpec) -> JointMap:
    entry.only("controller joint_states unit joints")
    joints = entry.section("joints")
    driven = [joints.choice(name, hand.command_joints) for name in joints]
    missing = [name for name in hand.command_joints if name not in driven]
    twice = sorted({name for name in driven if driven.count(name) > 1})
    if missing:
        entry.fail("joints", f"has none for {', '.join(missing)}, which the {hand.side} hand of "
                             f"{hand.robot} drives.")  # fmt: skip
    if twice:
        entry.fail("joints", f"names {', '.join(twice)} twice.")
    return JointMap(
        hand=hand,
        controller=entry.text("controller"),
        joints=tuple(joints),
        commands=tuple(hand.command_joints.index(name) for name in driven),
        unit=entry.choice("unit", UNITS) if "unit" in entry else "rad",
        joint_states=entry.text("joint_states", "joint_states"),
    )
