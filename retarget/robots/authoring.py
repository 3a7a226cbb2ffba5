"""Write a robot's MJCF and URDF files from its robot.yaml.

``python -m retarget.robots.authoring robots/inspire/robot.yaml`` rewrites every side and variant.
Both formats get the same tree, limits, masses, couplings and primitive shapes. URDF has no capsule:
there it becomes a cylinder between two spheres. ``skeleton_urdf`` writes the kinematics of any
compiled hand without shapes: for tools that read nothing else.
"""

from __future__ import annotations

import argparse
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.body import (
    ROOT_LINK,
    HandBody,
    Link,
    Shape,
    Vector,
    link_inertia,
    shape_center,
    shape_rpy,
)
from retarget.robots.hand_spec import HandSpec
from retarget.robots.robot import OURS, load_robot

if TYPE_CHECKING:
    import mujoco

Numbers = Sequence[int | float] | np.ndarray
_NOTICE = " Written by retarget.robots.authoring from robot.yaml; change that file instead. "
#: Geom groups of the MJCF files: what pictures show, and what touches.
VISUAL_GROUP, COLLISION_GROUP = 2, 3


def _n(value: float) -> str:
    # Twelve digits: kinematics of both files agree to 1e-12, and rounding noise does not show.
    return f"{float(value):.12g}" if abs(value) > 1e-15 else "0"


def _exact(value: float) -> str:
    return repr(float(value))


def _v(values: Numbers, number: Callable[[float], str] = _n) -> str:
    return " ".join(number(v) for v in np.asarray(values, float).tolist())


def write_models(robot_file: Path) -> list[Path]:
    """Write the model files of every side and variant beside ``robot_file``; return their paths."""
    written = []
    for variant in load_robot(robot_file, models=OURS).variants:
        for hand in load_robot(robot_file, variant, models=OURS).hands.values():
            if hand.body is None:
                raise InputError(f"{robot_file}: sides.{hand.side} has no links to write from.")
            hand.mjcf_path.write_text(mjcf_text(hand), encoding="utf-8")
            hand.urdf_path.write_text(urdf_text(hand), encoding="utf-8")
            written += [hand.mjcf_path, hand.urdf_path]
    return written


def mjcf_text(hand: HandSpec) -> str:
    """Return the hand's MJCF: fixed base, servos, couplings; no gravity, as an arm carries it."""
    body, name = _body(hand), hand.full_name
    sim = body.simulation
    root = ET.Element("mujoco", model=f"{hand.robot}_{hand.side}")
    root.append(ET.Comment(_NOTICE))

    # Upper case: turns about the fixed axes, the same rpy as URDF's.
    ET.SubElement(root, "compiler", angle="radian", autolimits="true", eulerseq="XYZ")
    ET.SubElement(
        root, "option", timestep=_n(sim.timestep), gravity="0 0 0", integrator="implicitfast"
    )
    _mjcf_defaults(root, hand, body)

    asset = ET.SubElement(root, "asset")
    for key, m in body.materials.items():
        ET.SubElement(asset, "material", name=name(key), rgba=_v(m.rgba),
                      specular=_n(m.specular), shininess=_n(m.shininess))  # fmt: skip

    world = ET.SubElement(root, "worldbody")
    parents = {ROOT_LINK: ET.SubElement(world, "body", name=name(ROOT_LINK))}
    for link in body.links:
        parents[link.name] = _mjcf_link(parents[link.parent], hand, link, body)

    for tip in body.tips:
        ET.SubElement(parents[tip.link], "site", name=name(tip.name), pos=_v(tip.xyz),
                      size="0.002", group="4")  # fmt: skip

    contact = ET.SubElement(root, "contact")
    neighbours = [(k.parent, k.name) for k in body.links if k.parent != ROOT_LINK]
    for first, second in (*neighbours, *body.no_contact):
        ET.SubElement(contact, "exclude", body1=name(first), body2=name(second))
    _mjcf_couplings(root, hand)

    actuator = ET.SubElement(root, "actuator")
    for i, (command, joint) in enumerate(zip(hand.command_names, hand.command_joints, strict=True)):
        torque = hand.command_torque[i]
        limits = {"forcerange": _v((-torque, torque))} if np.isfinite(torque) else {}
        ET.SubElement(actuator, "position", {"class": name("servo")}, name=name(command),
                      joint=name(joint), ctrlrange=_v((hand.command_lower[i],
                      hand.command_upper[i])), **limits)  # fmt: skip

    return _text(root)


def urdf_text(hand: HandSpec) -> str:
    """Return the hand's URDF: the same tree with mimic joints and tips as fixed links."""
    body, name = _body(hand), hand.full_name
    root = ET.Element("robot", name=f"{hand.robot}_{hand.side}")
    root.append(ET.Comment(_NOTICE))
    for key, m in body.materials.items():
        ET.SubElement(ET.SubElement(root, "material", name=name(key)), "color", rgba=_v(m.rgba))
    ET.SubElement(root, "link", name=name(ROOT_LINK))

    for link in body.links:
        _urdf_link(root, hand, link)
        kind = ("prismatic" if link.slides else "revolute") if link.joint else "fixed"
        # A moving joint has its own name; a fixed one is called after the link it carries.
        joint = _urdf_joint(root, name(link.joint or f"{link.name}_fixed"), kind, name(link.parent),
                            name(link.name), link.xyz, link.rpy)  # fmt: skip
        if link.joint:
            _urdf_limits(joint, hand, hand.joint_names.index(link.joint), link.axis)

    for tip in body.tips:
        ET.SubElement(root, "link", name=name(tip.name))
        _urdf_joint(root, name(f"{tip.name}_fixed"), "fixed", name(tip.link), name(tip.name),
                    tip.xyz, (0.0, 0.0, 0.0))  # fmt: skip
    return _text(root)


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
        element = _urdf_joint(root, label, kind, parent, moving, position + turn @ anchor,
                              rotations.to_rpy(turn), _exact)  # fmt: skip
        _urdf_limits(element, hand, names[label], model.jnt_axis[joint], _exact)
        if anchor.any():
            _fixed_link(root, name, moving, -anchor, np.eye(3))

    for site in range(model.nsite):
        parent = model.body(model.site_bodyid[site]).name
        turn = rotations.from_quaternion(model.site_quat[site])
        _fixed_link(root, model.site(site).name, parent, model.site_pos[site], turn)
    return _text(root)


def _fixed_link(
    root: ET.Element, name: str, parent: str, xyz: np.ndarray, turn: np.ndarray
) -> None:
    ET.SubElement(root, "link", name=name)
    rpy = rotations.to_rpy(turn)
    _urdf_joint(root, f"{name}_fixed", "fixed", parent, name, xyz, rpy, _exact)


def _mjcf_defaults(root: ET.Element, hand: HandSpec, body: HandBody) -> None:
    sim, name = body.simulation, hand.full_name
    defaults = ET.SubElement(root, "default")

    collision = {"group": str(COLLISION_GROUP), "rgba": "0.9 0.4 0.2 0.5"}
    for key, settings in (
        ("visual", {"group": str(VISUAL_GROUP), "contype": "0", "conaffinity": "0"}),
        ("collision", collision | {"solref": _v(sim.contact_solref)}),
    ):
        ET.SubElement(ET.SubElement(defaults, "default", {"class": name(key)}), "geom", settings)

    for key, armature, damping in (
        ("driven", sim.armature, 0.0),
        ("coupled", sim.coupled_armature, sim.coupled_damping),
    ):
        ET.SubElement(ET.SubElement(defaults, "default", {"class": name(key)}), "joint",
                      armature=_n(armature), damping=_n(damping))  # fmt: skip

    ET.SubElement(ET.SubElement(defaults, "default", {"class": name("servo")}), "position",
                  kp=_n(sim.stiffness), kv=_n(sim.damping))  # fmt: skip


def _mjcf_link(parent: ET.Element, hand: HandSpec, link: Link, body: HandBody) -> ET.Element:
    name = hand.full_name
    element = ET.SubElement(parent, "body", name=name(link.name), pos=_v(link.xyz),
                            euler=_v(link.rpy))  # fmt: skip
    com, inertia = link_inertia(link)
    ET.SubElement(element, "inertial", pos=_v(com), mass=_n(link.mass),
                  fullinertia=_v(inertia[(0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)]))  # fmt: skip

    if link.joint:
        index = hand.joint_names.index(link.joint)
        kind = "driven" if link.joint in hand.command_joints else "coupled"
        ET.SubElement(element, "joint", {"class": name(kind)}, name=name(link.joint),
                      axis=_v(link.axis), range=_v((hand.lower[index], hand.upper[index])),
                      **({"type": "slide"} if link.slides else {}))  # fmt: skip

    for shape in link.visuals:
        geom = {"class": name("visual"), "material": name(shape.material or "")}
        ET.SubElement(element, "geom", geom | _mjcf_shape(shape))

    for i, shape in enumerate(link.collisions):
        geom = {"class": name("collision"), "name": name(f"{link.name}_{i}")}
        ET.SubElement(element, "geom", geom | _mjcf_shape(shape))
    return element


def _mjcf_shape(shape: Shape) -> dict[str, str]:
    if shape.kind == "box":
        turn = {"euler": _v(shape.rpy)} if any(shape.rpy) else {}
        half = tuple(s / 2 for s in shape.size)
        return {"type": "box", "pos": _v(shape.start), "size": _v(half)} | turn
    if shape.kind == "sphere":
        return {"type": "sphere", "pos": _v(shape.start), "size": _n(shape.radius)}
    ends = _v((*shape.start, *shape.end))
    return {"type": shape.kind, "fromto": ends, "size": _n(shape.radius)}


def _mjcf_couplings(root: ET.Element, hand: HandSpec) -> None:
    sim, name = _body(hand).simulation, hand.full_name
    equality = ET.SubElement(root, "equality")
    for row, joint in enumerate(hand.joint_names):
        if joint in hand.command_joints:
            continue
        source = int(np.abs(hand.coupling[row]).argmax())
        polynomial = (hand.coupling_offset[row], hand.coupling[row, source], 0, 0, 0)
        ET.SubElement(equality, "joint", joint1=name(joint),
                      joint2=name(hand.command_joints[source]), polycoef=_v(polynomial),
                      solref=_v(sim.coupling_solref), solimp=_v(sim.coupling_solimp),
                      )  # fmt: skip


def _urdf_link(root: ET.Element, hand: HandSpec, link: Link) -> None:
    element = ET.SubElement(root, "link", name=hand.full_name(link.name))
    com, inertia = link_inertia(link)
    inertial = ET.SubElement(element, "inertial")
    ET.SubElement(inertial, "origin", xyz=_v(com), rpy="0 0 0")
    ET.SubElement(inertial, "mass", value=_n(link.mass))
    entries = {"xx": (0, 0), "xy": (0, 1), "xz": (0, 2), "yy": (1, 1), "yz": (1, 2), "zz": (2, 2)}
    ET.SubElement(inertial, "inertia", {f"i{k}": _n(inertia[i]) for k, i in entries.items()})

    for tag, shapes in (("visual", link.visuals), ("collision", link.collisions)):
        for shape in shapes:
            for xyz, rpy, geometry in _urdf_shapes(shape):
                part = ET.SubElement(element, tag)
                ET.SubElement(part, "origin", xyz=_v(xyz), rpy=_v(rpy))
                ET.SubElement(part, "geometry").append(geometry)
                if shape.material:
                    ET.SubElement(part, "material", name=hand.full_name(shape.material))


def _urdf_shapes(shape: Shape) -> list[tuple[Vector, Vector, ET.Element]]:
    """Return position, rpy and element of each URDF primitive that makes up a shape."""
    ball = {"radius": _n(shape.radius)}
    none = (0.0, 0.0, 0.0)
    if shape.kind == "box":
        return [(shape.start, shape.rpy, ET.Element("box", size=_v(shape.size)))]
    if shape.kind == "sphere":
        return [(shape.start, none, ET.Element("sphere", ball))]
    length = math.dist(shape.start, shape.end)
    rod = ET.Element("cylinder", ball | {"length": _n(length)})
    parts = [(tuple(shape_center(shape)), shape_rpy(shape), rod)]
    if shape.kind == "capsule":
        parts += [(end, none, ET.Element("sphere", ball)) for end in (shape.start, shape.end)]
    return parts


def _urdf_joint(
    root: ET.Element,
    label: str,
    kind: str,
    parent: str,
    child: str,
    xyz: Numbers,
    rpy: Numbers,
    number: Callable[[float], str] = _n,
) -> ET.Element:
    joint = ET.SubElement(root, "joint", name=label, type=kind)
    ET.SubElement(joint, "parent", link=parent)
    ET.SubElement(joint, "child", link=child)
    ET.SubElement(joint, "origin", xyz=_v(xyz, number), rpy=_v(rpy, number))
    return joint


def _urdf_limits(
    joint: ET.Element, hand: HandSpec, row: int, axis: Numbers, number: Callable[[float], str] = _n
) -> None:
    """Add axis, limits and coupling of the hand's joint ``row``."""
    source = int(np.abs(hand.coupling[row]).argmax())
    factor = hand.coupling[row, source]
    ET.SubElement(joint, "axis", xyz=_v(axis, number))

    # URDF demands effort and velocity; where nothing is known a bound no hand reaches.
    speed = min(abs(factor) * hand.command_velocity[source], 100.0)
    effort = min(hand.command_torque[source], 100.0)
    ET.SubElement(joint, "limit", lower=number(hand.lower[row]), upper=number(hand.upper[row]),
                  effort=number(effort), velocity=number(speed))  # fmt: skip

    if hand.joint_names[row] not in hand.command_joints:
        ET.SubElement(joint, "mimic", joint=hand.full_name(hand.command_joints[source]),
                      multiplier=number(factor),
                      offset=number(hand.coupling_offset[row]))  # fmt: skip


def _body(hand: HandSpec) -> HandBody:
    if hand.body is None:
        raise InputError(f"Robot {hand.robot!r}: the {hand.side} hand has no links to write from.")
    return hand.body


def _text(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description="Write MJCF and URDF files from a robot.yaml.")
    _parser.add_argument("robot_file", type=Path)
    write_models(_parser.parse_args().robot_file)
