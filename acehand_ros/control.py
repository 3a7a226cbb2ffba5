"""What ros2_control is told about a robot's hands: description and parameters. No ROS."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

from acehand_core.errors import InputError, nearest
from acehand_core.types import SIDES, Side
from acehand_ros.joint_maps import own_names
from retarget.robots.hand_spec import HandSpec
from retarget.robots.robot import Robot

MOCK = "mock_components/GenericSystem"
#: Half of what lies between two hands that stand beside each other, in metres.
_BESIDE_M = 0.15
KINDS = {
    "action": "joint_trajectory_controller/JointTrajectoryController",
    "forward": "forward_command_controller/ForwardCommandController",
    "position_group": "position_controllers/JointGroupPositionController",
}


def chosen_sides(robot: Robot, hands: str) -> list[Side]:
    """Return the sides that ``both``, ``left`` or ``right`` means for a robot.

    Raises:
        InputError: the robot has no such hand.
    """
    if hands != "both" and hands not in robot.hands:
        raise InputError(f"hands: {robot.label} has no {hands} hand; {nearest(hands, robot.hands)}")
    return [side for side in SIDES if side in robot.hands and hands in ("both", side)]


def hardware_parameters(text: str) -> dict[tuple[str, str], str]:
    """Return ``(side or empty, name): value`` out of ``NAME=VALUE,SIDE.NAME=VALUE``.

    Raises:
        InputError: a part is not of that form.
    """
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
    """Return one URDF of the hands, with a ros2_control system each.

    Only driven joints have a command interface. Coupled joints, which follow by the URDF's mimic
    tags, are given to mock hardware alone: a driver may take all its joints for driven ones.
    Two hands hang on a link ``hands``, beside each other.
    """
    sides = chosen_sides(robot, hands)
    roots = [
        ElementTree.fromstring(robot.hand(side).urdf_path.read_text("utf-8")) for side in sides
    ]
    out = roots[0]
    if len(sides) > 1:
        out = ElementTree.Element("robot", name=robot.name)
        ElementTree.SubElement(out, "link", name="hands")
        for side, root in zip(sides, roots, strict=True):
            place = _BESIDE_M if side == "left" else -_BESIDE_M
            fixed = ElementTree.SubElement(out, "joint", name=f"{side}_hand_place", type="fixed")
            ElementTree.SubElement(fixed, "parent", link="hands")
            ElementTree.SubElement(fixed, "child", link=_root_link(root))
            ElementTree.SubElement(fixed, "origin", xyz=f"0 {place:g} 0", rpy="0 0 0")
            known = {(e.tag, e.get("name")) for e in out}
            out.extend(e for e in root if (e.tag, e.get("name")) not in known)
    for side in sides:
        given = {n: v for (of, n), v in (parameters or {}).items() if of in ("", side)}
        out.append(_system(robot.hand(side), plugin, given))
    ElementTree.indent(out)
    return ElementTree.tostring(out, encoding="unicode")


def controller_parameters(
    robot: Robot,
    hands: str,
    kind: str,
    rate_hz: int,
    path_tolerance: float,
    goal_tolerance: float,
) -> dict[str, Any]:
    """Return the parameters of controller_manager, joint states and a controller per hand.

    The controllers are called as topics of ours begin, so that ``/left_hand/joint_trajectory`` of a
    bag reaches its controller. They and the manager are found in any namespace (``/**``).

    Args:
        kind: of ``KINDS``: for goals, or for one of the two that only forward commands.
        path_tolerance, goal_tolerance: largest errors on the way and at the end, in radians.
    """
    maps = own_names(robot)
    chosen = {side: maps[side] for side in chosen_sides(robot, hands)}
    manager: dict[str, Any] = {
        "update_rate": rate_hz,
        "joint_state_broadcaster": {"type": "joint_state_broadcaster/JointStateBroadcaster"},
    }
    out: dict[str, Any] = {"/**/controller_manager": {"ros__parameters": manager}}
    for one in chosen.values():
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
    system = ElementTree.Element("ros2_control", name=f"{hand.robot}_{hand.side}", type="system")
    hardware = ElementTree.SubElement(system, "hardware")
    ElementTree.SubElement(hardware, "plugin").text = plugin
    for name, value in parameters.items():
        ElementTree.SubElement(hardware, "param", name=name).text = value
    start = hand.expand(hand.rest)
    for index, name in enumerate(hand.joint_names):
        driven = name in hand.command_joints
        if not driven and plugin != MOCK:
            continue
        joint = ElementTree.SubElement(system, "joint", name=hand.full_name(name))
        if driven:
            command = ElementTree.SubElement(joint, "command_interface", name="position")
            at = hand.command_joints.index(name)
            for end, limit in (("min", hand.command_lower), ("max", hand.command_upper)):
                ElementTree.SubElement(command, "param", name=end).text = f"{limit[at]:.9g}"
        position = ElementTree.SubElement(joint, "state_interface", name="position")
        initial = ElementTree.SubElement(position, "param", name="initial_value")
        initial.text = f"{start[index]:.9g}"
        ElementTree.SubElement(joint, "state_interface", name="velocity")
    return system


def _root_link(root: ElementTree.Element) -> str:
    children = {e.get("link") for e in root.iter("child")}
    return next(str(e.get("name")) for e in root.findall("link") if e.get("name") not in children)
