"""The kinematics of a compiled hand as a URDF without shapes: for tools that read nothing else."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np

from acehand_core.geometry import rotations
from retarget.hand_spec import HandSpec
from retarget.kinematics import import_mujoco

if TYPE_CHECKING:
    import mujoco


def text(model: mujoco.MjModel, hand: HandSpec) -> str:
    """Return links, joints with limits and couplings, and sites as fixed links.

    URDF turns a link about its own origin, so a joint beside it gets a link of its own.
    """
    root = ET.Element("robot", name=f"{hand.robot}_{hand.side}")
    names = {hand.full_name(name): row for row, name in enumerate(hand.joint_names)}
    slide = int(import_mujoco().mjtJoint.mjJNT_SLIDE)
    for body in range(1, model.nbody):
        name = model.body(body).name
        parent = model.body(model.body_parentid[body]).name
        turn, anchor = model.body_quat[body], np.zeros(3)
        place = model.body_pos[body]
        if not model.body_jntnum[body]:
            if model.body_parentid[body] == 0:
                ET.SubElement(root, "link", name=name)
            else:
                _fixed(root, name, parent, place, turn)
            continue
        joint = int(model.body_jntadr[body])
        anchor = model.jnt_pos[joint]
        moving = f"{name}_joint" if anchor.any() else name
        start = place + rotations.from_quaternion(turn) @ anchor
        label = model.joint(joint).name
        kind = "prismatic" if model.jnt_type[joint] == slide else "revolute"
        element = _joint(root, label, kind, moving, parent, start, turn)
        _limit(element, hand, names[label], model.jnt_axis[joint])
        if anchor.any():
            _fixed(root, name, moving, -anchor, np.array([1.0, 0.0, 0.0, 0.0]))
    for site in range(model.nsite):
        parent = model.body(model.site_bodyid[site]).name
        _fixed(root, model.site(site).name, parent, model.site_pos[site], model.site_quat[site])
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _fixed(root: ET.Element, name: str, parent: str, xyz: np.ndarray, quat: np.ndarray) -> None:
    _joint(root, f"{name}_fixed", "fixed", name, parent, xyz, quat)


def _joint(
    root: ET.Element, label: str, kind: str, name: str, parent: str, xyz: np.ndarray,
    quat: np.ndarray,
) -> ET.Element:  # fmt: skip
    """Add a link and the joint that carries it."""
    ET.SubElement(root, "link", name=name)
    element = ET.SubElement(root, "joint", name=label, type=kind)
    ET.SubElement(element, "parent", link=parent)
    ET.SubElement(element, "child", link=name)
    rpy = rotations.to_rpy(rotations.from_quaternion(quat))
    ET.SubElement(element, "origin", xyz=_numbers(xyz), rpy=_numbers(rpy))
    return element


def _limit(joint: ET.Element, hand: HandSpec, row: int, axis: np.ndarray) -> None:
    source = int(np.flatnonzero(hand.coupling[row])[0])
    factor = hand.coupling[row, source]
    ET.SubElement(joint, "axis", xyz=_numbers(axis))
    # URDF demands effort and velocity; where nothing is known a bound no hand reaches.
    speed = min(abs(factor) * hand.command_velocity[source], 100.0)
    effort = min(hand.command_torque[source], 100.0)
    ET.SubElement(joint, "limit", lower=repr(float(hand.lower[row])),
                  upper=repr(float(hand.upper[row])), effort=repr(float(effort)),
                  velocity=repr(float(speed)))  # fmt: skip
    if hand.joint_names[row] not in hand.command_joints:
        ET.SubElement(joint, "mimic", joint=hand.full_name(hand.command_joints[source]),
                      multiplier=repr(float(factor)),
                      offset=repr(float(hand.coupling_offset[row])))  # fmt: skip


def _numbers(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)
