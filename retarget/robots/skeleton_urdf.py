"""A compiled hand's kinematics as URDF, and the elements that every URDF here is made of.

Links, joints and tips only: for tools that read nothing else.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.hand_spec import HandSpec

if TYPE_CHECKING:
    import mujoco

Numbers = Sequence[int | float] | np.ndarray


def _exact(value: float) -> str:
    return repr(float(value))


def joined(values: Numbers, number: Callable[[float], str]) -> str:
    """Return numbers with blanks between them."""
    return " ".join(number(v) for v in np.asarray(values, float).tolist())


def skeleton_urdf(model: mujoco.MjModel, hand: HandSpec) -> str:
    """Return links, joints with limits and couplings, and sites as fixed links.

    URDF turns a link about its own origin, so a joint beside it gets a link of its own.
    """
    root = ET.Element("robot", name=f"{hand.robot}_{hand.side}")
    names = {hand.full_name(name): row for row, name in enumerate(hand.joint_names)}

    slide = int(import_mujoco().mjtJoint.mjJNT_SLIDE)
    for body in range(1, model.nbody):
        name = model.body(body).name
        parent = model.body(model.body_parentid[body]).name
        position, turn = model.body_pos[body], rotations.from_quaternion(model.body_quat[body])
        if not model.body_jntnum[body]:
            if model.body_parentid[body] == 0:
                ET.SubElement(root, "link", name=name)
            else:
                _fixed_link(root, name, parent, position, turn)
            continue

        joint = int(model.body_jntadr[body])
        anchor = model.jnt_pos[joint]
        moving = f"{name}_joint" if anchor.any() else name
        label = model.joint(joint).name
        kind = "prismatic" if model.jnt_type[joint] == slide else "revolute"
        ET.SubElement(root, "link", name=moving)
        element = urdf_joint(root, label, kind, parent, moving, position + turn @ anchor,
                              rotations.to_rpy(turn), _exact)  # fmt: skip
        urdf_limits(element, hand, names[label], model.jnt_axis[joint], _exact)
        if anchor.any():
            _fixed_link(root, name, moving, -anchor, np.eye(3))

    for site in range(model.nsite):
        parent = model.body(model.site_bodyid[site]).name
        turn = rotations.from_quaternion(model.site_quat[site])
        _fixed_link(root, model.site(site).name, parent, model.site_pos[site], turn)
    return xml_text(root)


def _fixed_link(
    root: ET.Element, name: str, parent: str, xyz: np.ndarray, turn: np.ndarray
) -> None:
    ET.SubElement(root, "link", name=name)
    rpy = rotations.to_rpy(turn)
    urdf_joint(root, f"{name}_fixed", "fixed", parent, name, xyz, rpy, _exact)


def urdf_joint(
    root: ET.Element,
    label: str,
    kind: str,
    parent: str,
    child: str,
    xyz: Numbers,
    rpy: Numbers,
    number: Callable[[float], str],
) -> ET.Element:
    """Add a joint between two links; ``number`` writes each of its numbers."""
    joint = ET.SubElement(root, "joint", name=label, type=kind)
    ET.SubElement(joint, "parent", link=parent)
    ET.SubElement(joint, "child", link=child)
    ET.SubElement(joint, "origin", xyz=joined(xyz, number), rpy=joined(rpy, number))
    return joint


def urdf_limits(
    joint: ET.Element, hand: HandSpec, row: int, axis: Numbers, number: Callable[[float], str]
) -> None:
    """Add axis, limits and coupling of the hand's joint ``row``."""
    source = int(np.abs(hand.coupling[row]).argmax())
    factor = hand.coupling[row, source]
    ET.SubElement(joint, "axis", xyz=joined(axis, number))

    # URDF demands effort and velocity; where nothing is known a bound no hand reaches.
    speed = min(abs(factor) * hand.command_velocity[source], 100.0)
    effort = min(hand.command_torque[source], 100.0)
    ET.SubElement(joint, "limit", lower=number(hand.lower[row]), upper=number(hand.upper[row]),
                  effort=number(effort), velocity=number(speed))  # fmt: skip

    if hand.joint_names[row] not in hand.command_joints:
        ET.SubElement(joint, "mimic", joint=hand.full_name(hand.command_joints[source]),
                      multiplier=number(factor),
                      offset=number(hand.coupling_offset[row]))  # fmt: skip


def xml_text(root: ET.Element) -> str:
    """Return an XML file's text."""
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"
