"""Controllers of robot hands: joint maps, and URDF and parameters for ros2_control. No ROS.

A joint map gives a controller's names, order and unit of a hand's joints;
``config/controllers/inspire.yaml`` documents the file.
"""

from __future__ import annotations

import importlib.resources
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.motion import Course
from acehand_core.types import SIDES, Side
from acehand_core.user_files import Text, Valid, read_yaml, structured
from acehand_ros.launching import MOCK
from retarget.robots.hand_spec import HandSpec
from retarget.robots.robot import Robot

#: Half the distance between two hands on the link ``hands``, in metres.
_HALF_APART_M = 0.15
KINDS = {
    "action": "joint_trajectory_controller/JointTrajectoryController",
    "forward": "forward_command_controller/ForwardCommandController",
    "position_group": "position_controllers/JointGroupPositionController",
}

Commands = Float[np.ndarray, "*batch C"]


@dataclass(frozen=True, slots=True, eq=False)
class JointMap:
    """The controller of one hand: its name, joints in its order, and their unit.

    ``commands[i]`` is the index of the controller's joint i in ``HandSpec.command_joints``.
    ``joint_states`` is the topic of the measured joints, in the controller's names and unit.
    """

    hand: HandSpec
    controller: str
    joints: tuple[str, ...]
    commands: tuple[int, ...]
    unit: str = "rad"
    joint_states: str = "joint_states"

    def values(self, commands: Commands) -> Commands:
        """Return driven angles (rad) as the controller's values, rounded to whole registers."""
        if self.unit == "register":
            commands = self.hand.controller.to_registers(commands)
            commands = np.round(commands) if self.hand.controller.whole else commands
        return commands[..., list(self.commands)]

    def course(self, course: Course) -> Course:
        """Return a trajectory in the controller's order and unit, registers not rounded."""
        positions, velocities = course.positions, course.velocities
        if self.unit == "register":
            registers = self.hand.controller
            travel = registers.at_upper - registers.at_lower
            velocities = velocities * travel / (registers.upper - registers.lower)
            positions = registers.to_registers(positions)
        order = list(self.commands)
        return Course(course.seconds, positions[:, order], velocities[:, order])

    def measured(self, positions: Mapping[str, float]) -> Commands:
        """Return the driven angles (C,) of joints measured under the controller's names."""
        out = np.empty(len(self.joints))
        out[list(self.commands)] = [positions[name] for name in self.joints]
        return out if self.unit == "rad" else self.hand.controller.to_angles(out)


@dataclass(frozen=True, slots=True)
class _Map:
    """A hand in a file of joint maps; ``joints`` are the robot's by the controller's name."""

    controller: Text
    joints: dict[str, str]
    joint_states: Text = "joint_states"
    unit: Literal["rad", "register"] = "rad"


@dataclass(frozen=True, slots=True)
class _Maps:
    """A file of joint maps."""

    schema: Literal["acehand-controllers/1"]
    hands: Annotated[dict[Side, _Map], Valid("left, right or both", bool)]


def own_names(robot: Robot) -> dict[Side, JointMap]:
    """Return maps with the joint names of our URDF and datasets, in radians."""
    maps: dict[Side, JointMap] = {}
    for side, hand in robot.hands.items():
        joints = tuple(hand.full_name(name) for name in hand.command_joints)
        maps[side] = JointMap(hand, f"{side}_hand", joints, tuple(range(len(joints))))
    return maps


def read_joint_maps(name_or_path: str, robot: Robot) -> dict[Side, JointMap]:
    """Read a packaged or a user's file of joint maps; "" returns ``own_names``.

    Raises InputError for an unknown file, SchemaError if it does not map each driven joint once.
    """
    if not name_or_path:
        return own_names(robot)
    folder = Path(str(importlib.resources.files("acehand_ros"))) / "config" / "controllers"
    files = {file.stem: file for file in folder.glob("*.yaml")}
    path = files.get(name_or_path, Path(name_or_path).expanduser())
    if not path.is_file():
        raise InputError(
            f"controllers: no file {name_or_path!r}; {nearest(name_or_path, files)} "
            "Or give the path of a YAML file."
        )
    hands = structured(_Maps, read_yaml(path), path).hands
    for side in hands:
        if side not in robot.hands:
            raise SchemaError(f"{path}: hands.{side}: {nearest(side, robot.hands)}")
    return {s: _read_map(hands[s], robot.hand(s), f"{path}: hands.{s}.joints") for s in hands}


def _read_map(entry: _Map, hand: HandSpec, where: str) -> JointMap:
    driven = [*entry.joints.values()]
    for joint, name in entry.joints.items():
        if name not in hand.command_joints:
            raise SchemaError(f"{where}.{joint} is {name!r}; {nearest(name, hand.command_joints)}")
    if missing := [name for name in hand.command_joints if name not in driven]:
        owner = f"the {hand.side} hand of {hand.robot}"
        raise SchemaError(f"{where} lacks driven joints of {owner}: {', '.join(missing)}.")
    if twice := sorted({name for name in driven if driven.count(name) > 1}):
        raise SchemaError(f"{where} names {', '.join(twice)} twice.")

    commands = tuple(map(hand.command_joints.index, driven))
    names = entry.controller, tuple(entry.joints)
    return JointMap(hand, *names, commands, entry.unit, entry.joint_states)


def choose_hands(
    maps: Mapping[Side, JointMap], hands: str, controllers: Mapping[str, str] = MappingProxyType({})
) -> dict[Side, JointMap]:
    """Return the maps of the hands to drive (both, left or right), with other controllers if given.

    Raises InputError if a hand has no map, or both have one controller.
    """
    if hands != "both" and hands not in maps:
        raise InputError(f"hands: no {hands} hand; {nearest(hands, maps)}")
    out = {
        side: replace(one, controller=controllers.get(side) or one.controller)
        for side, one in maps.items()
        if hands in ("both", side)
    }
    names = [one.controller for one in out.values()]
    if len(set(names)) < len(names):
        raise InputError(
            f"Both hands have the controller {names[0]!r}. Choose hands:=left or hands:=right, or "
            "name each one's: left_controller:=NAME right_controller:=NAME."
        )
    return out


def hardware_parameters(text: str) -> dict[tuple[str, str], str]:
    """Return ``(side or "", name): value`` from ``NAME=VALUE,SIDE.NAME=VALUE``; else InputError."""
    out = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        side, dot, rest = name.partition(".")
        if not equals or not name.strip():
            raise InputError(
                f"hardware_parameters: {part!r} is not NAME=VALUE; valid: "
                "serial_port=/dev/ttyUSB0,baudrate=115200, or left.NAME=VALUE for one hand."
            )
        own = dot and side in SIDES
        out[(side, rest.strip()) if own else ("", name.strip())] = value.strip()
    return out


def description(
    robot: Robot,
    hands: str,
    plugin: str = MOCK,
    parameters: Mapping[tuple[str, str], str] | None = None,
) -> str:
    """Return one URDF of the hands, with a ros2_control system each; two hang on a link ``hands``.

    Only driven joints have a command interface. Coupled joints (mimic tags) go to mock hardware
    only: a driver may take all its joints for driven ones.
    """
    chosen = {side: one.hand for side, one in choose_hands(own_names(robot), hands).items()}
    roots = {s: ElementTree.parse(hand.urdf_path).getroot() for s, hand in chosen.items()}

    out = next(iter(roots.values()))
    if len(roots) > 1:
        out = ElementTree.Element("robot", name=robot.name)
        ElementTree.SubElement(out, "link", name="hands")
        for side, root in roots.items():
            y = _HALF_APART_M if side == "left" else -_HALF_APART_M
            carried = {e.get("link") for e in root.iter("child")}
            links = (str(e.get("name")) for e in root.findall("link"))
            base = next(name for name in links if name not in carried)
            fixed = ElementTree.SubElement(out, "joint", name=f"{side}_hand_place", type="fixed")
            ElementTree.SubElement(fixed, "parent", link="hands")
            ElementTree.SubElement(fixed, "child", link=base)
            ElementTree.SubElement(fixed, "origin", xyz=f"0 {y:g} 0", rpy="0 0 0")
            known = {(e.tag, e.get("name")) for e in out}
            out.extend(e for e in root if (e.tag, e.get("name")) not in known)

    for side, hand in chosen.items():
        given = {n: v for (of, n), v in (parameters or {}).items() if of in ("", side)}
        out.append(_system(hand, plugin, given))
    ElementTree.indent(out)
    return ElementTree.tostring(out, encoding="unicode")


def controller_parameters(
    robot: Robot, hands: str, kind: str, rate_hz: int, path_tolerance: float, goal_tolerance: float
) -> dict[str, Any]:
    """Return the parameters of controller_manager, joint states and a controller per hand.

    Controllers are named like the topics, so that a bag's ``/left_hand/joint_trajectory`` reaches
    its controller, and found in any namespace (``/**``).

    Args:
        kind: a key of ``KINDS``.
        path_tolerance, goal_tolerance: largest errors on the way and at the end, in radians.
    """
    manager: dict[str, Any] = {
        "update_rate": rate_hz,
        "joint_state_broadcaster": {"type": "joint_state_broadcaster/JointStateBroadcaster"},
    }
    out: dict[str, Any] = {"/**/controller_manager": {"ros__parameters": manager}}
    for one in choose_hands(own_names(robot), hands).values():
        manager[one.controller] = {"type": KINDS[kind]}
        values: dict[str, Any] = {"joints": list(one.joints)}
        if kind == "action":
            allowed = {"trajectory": path_tolerance, "goal": goal_tolerance}
            values |= {
                "command_interfaces": ["position"],
                "state_interfaces": ["position", "velocity"],
                "constraints": {"goal_time": 1.0, **{name: {**allowed} for name in one.joints}},
            }
        elif kind == "forward":  # a position group knows its interface
            values["interface_name"] = "position"
        out[f"/**/{one.controller}"] = {"ros__parameters": values}
    return out


def _system(hand: HandSpec, plugin: str, parameters: Mapping[str, str]) -> ElementTree.Element:
    add = ElementTree.SubElement
    system = ElementTree.Element("ros2_control", name=f"{hand.robot}_{hand.side}", type="system")
    hardware = add(system, "hardware")
    add(hardware, "plugin").text = plugin
    for name, value in parameters.items():
        add(hardware, "param", name=name).text = value

    for name, start in zip(hand.joint_names, hand.expand(hand.rest), strict=True):
        driven = name in hand.command_joints
        if not driven and plugin != MOCK:
            continue
        joint = add(system, "joint", name=hand.full_name(name))
        if driven:
            command = add(joint, "command_interface", name="position")
            at = hand.command_joints.index(name)
            for end, limit in (("min", hand.command_lower), ("max", hand.command_upper)):
                add(command, "param", name=end).text = f"{limit[at]:.9g}"
        position = add(joint, "state_interface", name="position")
        add(position, "param", name="initial_value").text = f"{start:.9g}"
        add(joint, "state_interface", name="velocity")
    return system
