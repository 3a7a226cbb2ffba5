"""Reads any MJCF or URDF with MuJoCo's parser, and writes a hand's kinematics as URDF.

Mesh paths of a URDF are resolved as in ROS, and meshes that MuJoCo cannot read are ignored.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from retarget.robots.hand_spec import HandSpec

if TYPE_CHECKING:
    import mujoco


#: Mesh formats that MuJoCo reads.
MESH_SUFFIXES = (".obj", ".stl", ".msh")

Numbers = Sequence[int | float] | np.ndarray


def load_spec(file: Path) -> mujoco.MjSpec:
    """Read an MJCF or URDF. Raises InputError.

    Assets get absolute paths, so that the spec can be attached or written anywhere. Unnamed links
    and joints become ``link3`` and ``link3_joint``.
    """
    mujoco = import_mujoco()
    spec, model = _read(file), compiled_model(file)
    kinds = mujoco.mjtObj
    for items, kind, addresses in (
        (spec.meshes, kinds.mjOBJ_MESH, model.mesh_pathadr),
        (spec.textures, kinds.mjOBJ_TEXTURE, model.tex_pathadr),
        (spec.hfields, kinds.mjOBJ_HFIELD, model.hfield_pathadr),
        (spec.skins, kinds.mjOBJ_SKIN, model.skin_pathadr),
    ):
        for item in items:
            row = mujoco.mj_name2id(model, kind, item.name)
            if item.file and row >= 0:
                item.file = model.paths[addresses[row] :].split(b"\0", 1)[0].decode()
    return spec


def compiled_model(file: Path) -> mujoco.MjModel:
    """Compile an MJCF or URDF unchanged; names and errors as in ``load_spec``."""
    return compiled(_read(file), file)


def compiled(spec: mujoco.MjSpec, file: Path) -> mujoco.MjModel:
    """Compile a spec; InputError with the ``file`` if MuJoCo refuses it."""
    try:
        with quiet_mujoco():
            model = spec.compile()
    except ValueError as error:
        raise _unreadable(file, error) from error

    for links, places in (
        (np.arange(model.nbody), np.hstack([model.body_pos, model.body_quat])),
        (model.jnt_bodyid, np.hstack([model.jnt_pos, model.jnt_axis])),
        (model.geom_bodyid, model.geom_pos),
    ):
        for link in links[~np.isfinite(places).all(axis=1)]:
            name = model.body(link).name
            raise InputError(f"{file}: a position or axis of link {name!r} is not finite.")
    return model


def files_of(file: Path) -> tuple[Path, ...]:
    """Return the file with its includes, attached files, meshes and textures. Raises InputError."""
    mujoco = import_mujoco()
    if not _is_urdf(file):
        try:
            return tuple(sorted(map(Path, mujoco.mju_getXMLDependencies(str(file.absolute())))))
        except mujoco.FatalError as error:
            raise _unreadable(file, error) from error
    names = [mesh.get("filename", "") for _, _, mesh in _meshes(_urdf(file))]
    meshes = {path for name in names if not _why_left_out(path := _mesh_path(name, file))}
    return (file, *sorted(path for path in meshes if path is not None))


def unread_meshes(file: Path) -> dict[str, set[str]]:
    """Return the links of a URDF's ignored meshes, by mesh and reason."""
    unread: dict[str, set[str]] = defaultdict(set)
    for link, _, mesh in _meshes(_urdf(file)) if _is_urdf(file) else ():
        if reason := _why_left_out(_mesh_path(name := mesh.get("filename", ""), file)):
            unread[f"{name}: {reason}"].add(link.get("name", ""))
    return unread


def urdf_limits(file: Path, kind: str) -> dict[str, float]:
    """Return the nonzero ``velocity`` or ``effort`` of a URDF's joints."""
    if file.suffix.lower() != ".urdf":
        return {}
    limits = {joint.get("name", ""): joint.find("limit") for joint in ET.parse(file).iter("joint")}
    values = {n: float(limit.get(kind, 0)) for n, limit in limits.items() if limit is not None}
    return {name: value for name, value in values.items() if value > 0}


def _read(file: Path) -> mujoco.MjSpec:
    mujoco = import_mujoco()
    if not file.is_file():
        raise InputError(f"{file}: robot model file not found.")
    try:
        with quiet_mujoco():
            if _is_urdf(file):
                spec = mujoco.MjSpec.from_string(_readable_urdf(file))
            else:  # MuJoCo opens this suffix only
                name = str(file.absolute().with_suffix(".xml"))
                spec = mujoco.MjSpec.from_file(name, include={name: file.read_bytes()})
    except (OSError, ValueError, ET.ParseError) as error:
        raise _unreadable(file, error) from error

    for index, body in enumerate(spec.bodies):
        body.name = body.name or f"link{index}"
        for number, joint in enumerate(body.joints):
            joint.name = joint.name or f"{body.name}_joint{number or ''}"
    return spec


def _unreadable(file: Path, error: Exception) -> InputError:
    problem = " ".join(str(error).split())
    return InputError(f"{file}: MuJoCo cannot read this model: {problem}")


def _is_urdf(file: Path) -> bool:
    """Whether the root element is a URDF's, whatever the suffix."""
    try:
        with file.open("rb") as stream:
            return next(ET.iterparse(stream, events=("start",)))[1].tag == "robot"
    except (OSError, ET.ParseError, StopIteration):
        return file.suffix.lower() == ".urdf"


def _urdf(file: Path) -> ET.Element:
    root = ET.parse(file).getroot()
    if any("ros.org/wiki/xacro" in element.tag for element in root.iter()):
        raise InputError(f"{file}: a xacro file; expand it first: xacro {file.name} > hand.urdf")
    return root


def _readable_urdf(file: Path) -> str:
    """Return a URDF with absolute mesh paths and without meshes that MuJoCo cannot read."""
    root = _urdf(file)
    for link, part, mesh in _meshes(root):
        path = _mesh_path(mesh.get("filename", ""), file)
        if _why_left_out(path):
            link.remove(part)
        else:
            mesh.set("filename", str(path))

    for old in root.findall("mujoco"):
        root.remove(old)
    flags = {"fusestatic": "false", "discardvisual": "false", "strippath": "false"}
    flags |= {"boundmass": "0.001", "boundinertia": "1e-7", "balanceinertia": "true"}
    ET.SubElement(ET.SubElement(root, "mujoco"), "compiler", flags)
    return ET.tostring(root, encoding="unicode")


def _meshes(root: ET.Element) -> Iterator[tuple[ET.Element, ET.Element, ET.Element]]:
    """Yield the meshes of a URDF with their links and visual or collision elements."""
    for link in root.iter("link"):
        for part in (*link.findall("visual"), *link.findall("collision")):
            mesh = part.find("geometry/mesh")
            if mesh is not None:
                yield link, part, mesh


def _why_left_out(mesh: Path | None) -> str:
    if mesh is None:
        return "not found there, next to the URDF, in `meshes` next to it or one folder up"
    if mesh.suffix.lower() not in MESH_SUFFIXES:
        return f"MuJoCo reads {', '.join(MESH_SUFFIXES)} only"
    return ""


def _mesh_path(name: str, file: Path) -> Path | None:
    """Resolve a mesh path of a URDF; None if there is no such file.

    ``package://NAME/...`` is searched in folders around the file named NAME or with a package.xml
    of that name, their siblings, and ROS's paths; then next to the file, in ``meshes`` there, or
    one folder up.
    """
    folder = file.absolute().parent
    scheme, separator, rest = name.partition("://")
    named = Path(unquote(rest) if scheme == "file" else rest or name)
    places = [folder / named]
    if separator and scheme != "file":
        around = _package_folders(named.parts[0], folder)
        places = [place / Path(*named.parts[1:]) for place in around]
    for near in (folder, folder / "meshes", folder.parent, folder.parent / "meshes"):
        places += [near / Path(*named.parts[i:]) for i in range(len(named.parts))]
    return next((place.resolve() for place in places if place.is_file()), None)


def _package_folders(package: str, folder: Path) -> Iterator[Path]:
    around = (folder, *folder.parents)
    yield from (place for place in around if place.name == package)
    yield from (place for place in around if _package_name(place) == package)
    yield from (place / package for place in around)
    for variable, inside in (("ROS_PACKAGE_PATH", ""), ("AMENT_PREFIX_PATH", "share")):
        for text in filter(None, os.environ.get(variable, "").split(os.pathsep)):
            yield Path(text) / inside / package
            if _package_name(Path(text)) == package:
                yield Path(text)


def _package_name(folder: Path) -> str | None:
    """Return the name in a folder's package.xml, if any."""
    try:
        return (ET.parse(folder / "package.xml").getroot().findtext("name") or "").strip()
    except (OSError, ET.ParseError):
        return None


# A compiled hand's kinematics as URDF: links, joints and tips only.


def joined(values: Numbers, number: Callable[[float], str]) -> str:
    """Return numbers separated by blanks."""
    return " ".join(number(v) for v in np.asarray(values, float).tolist())


def skeleton_urdf(model: mujoco.MjModel, hand: HandSpec) -> str:
    """Return links, joints with limits and couplings, and sites as fixed links.

    URDF rotates a link about its origin, so a joint with an anchor gets an extra link.
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
        place, rpy = position + turn @ anchor, rotations.to_rpy(turn)
        element = urdf_joint(root, label, kind, parent, moving, place, rpy, repr)
        add_limits(element, hand, names[label], model.jnt_axis[joint], repr)
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
    urdf_joint(root, f"{name}_fixed", "fixed", parent, name, xyz, rpy, repr)


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
    """Add a joint between two links; ``number`` formats its numbers."""
    joint = ET.SubElement(root, "joint", name=label, type=kind)
    ET.SubElement(joint, "parent", link=parent)
    ET.SubElement(joint, "child", link=child)
    ET.SubElement(joint, "origin", xyz=joined(xyz, number), rpy=joined(rpy, number))
    return joint


def add_limits(
    joint: ET.Element, hand: HandSpec, row: int, axis: Numbers, number: Callable[[float], str]
) -> None:
    """Add axis, limits and coupling of the hand's joint ``row``."""
    source = int(np.abs(hand.coupling[row]).argmax())
    factor = hand.coupling[row, source]
    # URDF requires effort and velocity; unknown ones get a bound that no hand reaches.
    limits = {
        "lower": hand.lower[row],
        "upper": hand.upper[row],
        "effort": min(hand.command_torque[source], 100.0),
        "velocity": min(abs(factor) * hand.command_velocity[source], 100.0),
    }
    ET.SubElement(joint, "axis", xyz=joined(axis, number))
    ET.SubElement(joint, "limit", {key: number(float(value)) for key, value in limits.items()})
    if hand.joint_names[row] not in hand.command_joints:
        mimic = ET.SubElement(joint, "mimic", joint=hand.full_name(hand.command_joints[source]))
        mimic.set("multiplier", number(float(factor)))
        mimic.set("offset", number(float(hand.coupling_offset[row])))


def xml_text(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"
