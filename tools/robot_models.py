"""Write a robot's MJCF and URDF files from its robot.yaml.

``python -m tools.robot_models robots/inspire/robot.yaml`` rewrites every side and variant.
Both formats get the same tree, limits, masses, couplings and primitive shapes. URDF has no capsule:
there it becomes a cylinder between two spheres.
"""

from __future__ import annotations

import argparse
import math
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from retarget.robots.hand_spec import ROOT_LINK, HandBody, HandSpec, Link, Shape
from retarget.robots.model_file import Numbers, add_limits, joined, urdf_joint, xml_text
from retarget.robots.parameters import Vector
from retarget.robots.robot import OURS, load_robot
from retarget.robots.user_model import COLLISION_GROUP, VISUAL_GROUP

#: Word for word what the committed files have.
_NOTICE = " Written by tools.robot_models from robot.yaml; change that file instead. "


def _n(value: float) -> str:
    # Twelve digits: kinematics of both files agree to 1e-12, and rounding noise does not show.
    return f"{float(value):.12g}" if abs(value) > 1e-15 else "0"


def _v(values: Numbers) -> str:
    return joined(values, _n)


def write_models(robot_file: Path) -> list[Path]:
    """Write the model files of every side and variant next to ``robot_file``; return paths."""
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

    return xml_text(root)


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
        joint = urdf_joint(root, name(link.joint or f"{link.name}_fixed"), kind, name(link.parent),
                            name(link.name), link.xyz, link.rpy, _n)  # fmt: skip
        if link.joint:
            add_limits(joint, hand, hand.joint_names.index(link.joint), link.axis, _n)

    for tip in body.tips:
        ET.SubElement(root, "link", name=name(tip.name))
        urdf_joint(root, name(f"{tip.name}_fixed"), "fixed", name(tip.link), name(tip.name),
                    tip.xyz, (0.0, 0.0, 0.0), _n)  # fmt: skip
    return xml_text(root)


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
    parts = [(tuple(_shape_center(shape)), _shape_rpy(shape), rod)]
    if shape.kind == "capsule":
        parts += [(end, none, ET.Element("sphere", ball)) for end in (shape.start, shape.end)]
    return parts


def _body(hand: HandSpec) -> HandBody:
    if hand.body is None:
        raise InputError(f"Robot {hand.robot!r}: the {hand.side} hand has no links to write from.")
    return hand.body


def link_inertia(link: Link) -> tuple[np.ndarray, Float[np.ndarray, "3 3"]]:
    """Return a link's centre of mass (3,) and inertia about it in the link's axes (kg m2).

    The mass is spread evenly over the collision shapes (their overlaps count twice, which matters
    little); a measured centre of mass moves the result without changing the inertia about it.
    """
    shapes = link.collisions or link.visuals
    if not shapes:
        raise InputError(f"Link {link.name!r} needs shapes: its inertia comes from them.")
    volumes = np.array([_solid(s)[0] for s in shapes])
    masses = link.mass * volumes / volumes.sum()
    centers = np.array([_shape_center(s) for s in shapes])
    com = masses @ centers / link.mass
    inertia = np.zeros((3, 3))

    for shape, mass, center in zip(shapes, masses, centers, strict=True):
        turn = np.eye(3)
        if shape.kind != "sphere":
            turn = rotations.from_rpy(np.array(_shape_rpy(shape)))
        arm = center - com
        inertia += mass * (turn @ np.diag(_solid(shape)[1]) @ turn.T)
        inertia += mass * (arm @ arm * np.eye(3) - np.outer(arm, arm))

    return (com if link.com is None else np.array(link.com)), inertia


def _solid(shape: Shape) -> tuple[float, tuple[float, float, float]]:
    """Return the volume and the principal moments per unit mass, long axis z."""
    if shape.kind == "box":
        x, y, z = shape.size
        return x * y * z, ((y * y + z * z) / 12, (x * x + z * z) / 12, (x * x + y * y) / 12)

    r, length = shape.radius, math.dist(shape.start, shape.end)
    ball = 4 / 3 * math.pi * r**3
    if shape.kind == "sphere":
        return ball, (0.4 * r * r,) * 3
    rod = math.pi * r * r * length
    across, along = rod * (3 * r * r + length * length) / 12, rod * r * r / 2
    if shape.kind == "cylinder":
        return rod, (across / rod, across / rod, along / rod)

    # The two half balls sit at the ends: parallel axes from their own centres of mass, 3/8 r out.
    across += ball * (0.4 * r * r + length * length / 4 + 3 / 8 * r * length)
    along += ball * 0.4 * r * r
    volume = rod + ball

    return volume, (across / volume, across / volume, along / volume)


def _shape_center(shape: Shape) -> np.ndarray:
    if shape.kind in ("box", "sphere"):
        return np.array(shape.start)
    return (np.array(shape.start) + np.array(shape.end)) / 2


def _shape_rpy(shape: Shape) -> Vector:
    """Return the turn that carries z to the long axis of a capsule or cylinder; a box's own."""
    if shape.kind == "box":
        return shape.rpy
    x, y, z = np.subtract(shape.end, shape.start)
    return (0.0, math.atan2(math.hypot(x, y), z), math.atan2(y, x))


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description="Write MJCF and URDF files from a robot.yaml.")
    _parser.add_argument("robot_file", type=Path)
    write_models(_parser.parse_args().robot_file)
