"""A user's own copy of a robot's MJCF or URDF in place of the model that comes with the package.

``sides.SIDE.model`` of a robot.yaml says how the file's names and root correspond to ours. The copy
is rewritten into a cache folder as a hand with our base frame, names, limits, servos and couplings;
meshes are read from where they are.
"""

from __future__ import annotations

import hashlib
import os
import warnings
import xml.etree.ElementTree as ET
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.types import Side
from retarget.robots import kinematics
from retarget.robots.authoring import COLLISION_GROUP, VISUAL_GROUP, skeleton_urdf
from retarget.robots.body import ROOT_LINK, Simulation, Vector
from retarget.robots.hand_spec import HandSpec
from retarget.robots.parameters import Section, unmirrored

if TYPE_CHECKING:
    import mujoco

#: Part of every cache key; to be raised when the rewriting changes.
_FORMAT = "1"
_MESHES = (".obj", ".stl", ".msh")
#: For robots whose file gives no ``simulation``: stiff servos, as for the Inspire hand.
SIMULATION = Simulation(
    0.002, 100.0, 0.6, 0.001, 1e-5, 1e-4, (0.004, 1.0), (0.999, 0.9999, 0.001), (0.004, 1.0)
)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How a foreign model file describes one hand. Names: ours to theirs.

    ``root`` is their link that carries the hand (None: the file's world), at ``xyz``, ``rpy`` in
    our base frame. ``reversed`` joints turn the other way there. ``tips`` are points that the file
    lacks: (their link, position in it).
    """

    file: str
    license: str
    root: str | None
    xyz: Vector
    rpy: Vector
    joints: dict[str, str]
    reversed: tuple[str, ...]
    frames: dict[str, str]
    tips: dict[str, tuple[str, Vector]]


def read_entry(root: Section, side: Side, joint_names: tuple[str, ...]) -> ModelEntry | None:
    """Return one side's ``model`` entry, if it has one. Raises SchemaError."""
    own = unmirrored(root.section("sides"), side)
    if "model" not in own:
        return None
    entry = own.section("model")
    entry.only("file license root xyz rpy joints reversed frames tips")
    joints = entry.section("joints", optional=True)
    joints.known(joint_names)
    frames, tips = (entry.section(name, optional=True) for name in ("frames", "tips"))
    for name in tips:
        tips.section(name).only("link xyz")

    return ModelEntry(
        file=entry.text("file"),
        license=entry.text("license"),
        root=entry.text("root") if "root" in entry else None,
        xyz=entry.vector("xyz", 3, (0.0, 0.0, 0.0)),
        rpy=entry.vector("rpy", 3, (0.0, 0.0, 0.0)),
        joints={n: joints.text(n) if n in joints else n for n in joint_names},
        reversed=entry.choices("reversed", joint_names),
        frames={n: frames.text(n) for n in frames},
        tips={
            n: (tips.section(n).text("link"), tips.section(n).vector("xyz", 3)) for n in tips
        },
    )  # fmt: skip


def find_model(entry: ModelEntry, place: Path) -> Path | None:
    """Return the entry's file at a place: that file itself, or below a folder; None if absent."""
    named = Path(entry.file)
    if place.is_file():
        return place if place.name == named.name else None
    tails = [Path(*named.parts[i:]) for i in range(len(named.parts))]
    return next((place / tail for tail in tails if (place / tail).is_file()), None)


def adopt(hand: HandSpec, entry: ModelEntry, file: Path) -> HandSpec:
    """Return the hand with its model files rewritten from a user's file.

    Raises:
        InputError: the file is missing or MuJoCo cannot read it.
        SchemaError: it lacks a joint or link that the robot.yaml names.
    """
    mujoco = kinematics.import_mujoco()
    if not file.is_file():
        raise InputError(f"{file}: robot model file not found; robot.yaml names {entry.file!r}.")
    sim = hand.body.simulation if hand.body else SIMULATION
    parts = (_FORMAT, mujoco.__version__, file.resolve(), file.read_bytes(), entry, hand, sim)
    key = hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
    folder = cache_folder() / key
    mjcf, urdf = folder / f"{hand.side}.xml", folder / f"{hand.side}.urdf"

    if not (mjcf.is_file() and urdf.is_file()):
        spec = _rewritten(hand, entry, file, sim)
        model = _compiled(spec, file)
        if _part_touching(spec, model, hand):
            model = _compiled(spec, file)
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in ((urdf, skeleton_urdf(model, hand)), (mjcf, spec.to_xml())):
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)

    return replace(hand, mjcf_path=mjcf, urdf_path=urdf, user_model=file)


def _compiled(spec: mujoco.MjSpec, file: Path) -> mujoco.MjModel:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about textures of meshes
            return spec.compile()
    except ValueError as error:
        raise InputError(f"{file}: MuJoCo cannot read this model: {error}") from error


def cache_folder() -> Path:
    """Return where rewritten models are kept; they can be deleted at any time."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "acehand" / "robots"


def _rewritten(hand: HandSpec, entry: ModelEntry, file: Path, sim: Simulation) -> mujoco.MjSpec:
    mujoco = kinematics.import_mujoco()
    theirs = _load(file)
    for part in ("keys", "sensors", "actuators", "equalities", "tendons"):
        for element in list(getattr(theirs, part)):
            theirs.delete(element)

    spec = mujoco.MjSpec()
    spec.modelname = f"{hand.robot}_{hand.side}"
    spec.option.timestep, spec.option.gravity = sim.timestep, (0, 0, 0)
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.compiler.degree, spec.compiler.balanceinertia = False, True

    # Some published links have no mass; MuJoCo wants some on whatever moves.
    spec.compiler.boundmass, spec.compiler.boundinertia = 1e-3, 1e-7
    base = spec.worldbody.add_body(name=hand.full_name(ROOT_LINK))
    quat = rotations.to_quaternion(rotations.from_rpy(np.array(entry.rpy)))
    frame = base.add_frame(pos=entry.xyz, quat=quat)

    if entry.root is None:
        spec.attach(theirs, frame=frame, prefix=_prefix(hand))
    else:
        body = theirs.body(entry.root)
        if body is None:
            names = [b.name for b in theirs.bodies]
            raise SchemaError(f"{file}: no link {entry.root!r}; {nearest(entry.root, names)}")
        # Only what hangs on the root is the hand: its own place in an arm does not matter.
        body.pos, body.quat = (0, 0, 0), (1, 0, 0, 0)
        for joint in body.joints:
            theirs.delete(joint)
        frame.attach_body(body, _prefix(hand), "")

    _rename_joints(spec, hand, entry, file, sim, in_degrees=bool(theirs.compiler.degree))
    _rename_frames(spec, hand, entry, file)

    # Put geoms into the groups for pictures and contact; show contact shapes if nothing else.
    seen = [geom for geom in spec.geoms if not (geom.contype or geom.conaffinity)]
    for geom in spec.geoms:
        geom.group = VISUAL_GROUP if geom in seen or not seen else COLLISION_GROUP

    _drive(spec, hand, sim)

    return spec


def _prefix(hand: HandSpec) -> str:
    """Return what marks their names; both sides of a robot must be able to stand in one scene."""
    return f"{hand.side}_user:"


def _load(file: Path) -> mujoco.MjSpec:
    mujoco = kinematics.import_mujoco()
    try:
        if file.suffix.lower() == ".urdf":
            return mujoco.MjSpec.from_string(_readable_urdf(file))
        spec = mujoco.MjSpec.from_file(str(file))
    except (ValueError, ET.ParseError) as error:
        raise InputError(f"{file}: MuJoCo cannot read this model: {error}") from error
    folder = file.resolve().parent
    spec.meshdir, spec.texturedir = str(folder / spec.meshdir), str(folder / spec.texturedir)
    return spec


def compiled_model(file: Path) -> mujoco.MjModel:
    """Compile somebody's MJCF or URDF as it is.

    Raises:
        InputError: the file is missing or MuJoCo cannot read it.
    """
    if not file.is_file():
        raise InputError(f"{file}: robot model file not found.")
    return _compiled(_load(file), file)


def _readable_urdf(file: Path) -> str:
    """Return a URDF with absolute mesh paths, without meshes that MuJoCo cannot read."""
    root = ET.parse(file).getroot()
    folder = file.resolve().parent
    for link in root.iter("link"):
        for part in (*link.findall("visual"), *link.findall("collision")):
            mesh = part.find("geometry/mesh")
            if mesh is None:
                continue
            path = _mesh_path(mesh.get("filename", ""), folder)
            if path is None or path.suffix.lower() not in _MESHES:
                link.remove(part)
            else:
                mesh.set("filename", str(path))

    for old in root.findall("mujoco"):
        root.remove(old)
    extension = ET.SubElement(root, "mujoco")
    ET.SubElement(extension, "compiler", fusestatic="false", discardvisual="false",
                  strippath="false", boundmass="0.001", boundinertia="1e-7",
                  balanceinertia="true")  # fmt: skip

    return ET.tostring(root, encoding="unicode")


def _mesh_path(name: str, folder: Path) -> Path | None:
    """Resolve a mesh beside the file, or ``package://NAME/...`` in a parent folder called NAME."""
    if "://" in name:
        package, _, tail = name.partition("://")[2].partition("/")
        places = [p / tail for p in (folder, *folder.parents) if p.name == package]
    else:
        places = [folder / name]
    return next((p.resolve() for p in places if p.is_file()), None)


def _rename_joints(
    spec: Any, hand: HandSpec, entry: ModelEntry, file: Path, sim: Simulation, in_degrees: bool
) -> None:
    mujoco = kinematics.import_mujoco()
    joints = {joint.name.removeprefix(_prefix(hand)): joint for joint in spec.joints}
    for row, name in enumerate(hand.joint_names):
        named = entry.joints[name]
        theirs = next((n for n in (named, hand.full_name(name)) if n in joints), None)
        if theirs is None:
            raise SchemaError(f"{file}: no joint {named!r} for {name}; {nearest(named, joints)}")
        joint = joints.pop(theirs)
        joint.name = hand.full_name(name)
        if name in entry.reversed:
            joint.axis = -joint.axis
        driven = name in hand.command_joints
        joint.limited = mujoco.mjtLimited.mjLIMITED_TRUE
        turns = joint.type == mujoco.mjtJoint.mjJNT_HINGE
        # An attached part is still read in the unit of the file that it comes from.
        unit = np.degrees(1.0) if in_degrees and turns else 1.0
        joint.range = (unit * hand.lower[row], unit * hand.upper[row])
        joint.frictionloss, joint.armature = 0.0, sim.armature if driven else sim.coupled_armature

        value = 0.0 if driven else sim.coupled_damping
        # MuJoCo 3.8 has one number here, later versions a polynomial's coefficients.
        if np.ndim(joint.damping):
            joint.damping = np.eye(1, np.size(joint.damping))[0] * value
        else:
            joint.damping = value

    if joints:
        raise SchemaError(
            f"{file}: joints {', '.join(joints)} have no place in robot.yaml; name a `root` below "
            "them, or add them to its joints."
        )


def _rename_frames(spec: Any, hand: HandSpec, entry: ModelEntry, file: Path) -> None:
    items = {item.name.removeprefix(_prefix(hand)): item for item in (*spec.sites, *spec.bodies)}
    tip_links = {ours: link for ours, (link, _) in entry.tips.items()}
    for ours, theirs in (*entry.frames.items(), *tip_links.items()):
        if theirs not in items:
            raise SchemaError(f"{file}: no link {theirs!r} for {ours}; {nearest(theirs, items)}")
    for ours, theirs in entry.frames.items():
        items[theirs].name = hand.full_name(ours)
    for ours, (theirs, xyz) in entry.tips.items():
        items[theirs].add_site(name=hand.full_name(ours), pos=xyz)

    taken = {item.name for item in (*spec.sites, *spec.bodies)}
    for name, item in items.items():
        if item.name.startswith(_prefix(hand)):
            free = hand.full_name(name) not in taken
            item.name = hand.full_name(name if free else f"user_{name}")

    present = {item.name for item in (*spec.sites, *spec.bodies)}
    for name in hand.target_frames:
        if hand.full_name(name) not in present:
            raise SchemaError(f"{file}: no link {name!r}; {nearest(name, items)} "
                              "Say in `model: frames` what the file calls it.")  # fmt: skip


def _part_touching(spec: Any, model: mujoco.MjModel, hand: HandSpec) -> int:
    """Exclude contact of a link with its parent and of links that touch in the idle pose.

    Meshes collide as their convex hulls, which overlap around most joints. Returns their number.
    """
    mujoco = kinematics.import_mujoco()
    data: Any = mujoco.MjData(model)
    for name, angle in zip(hand.joint_names, hand.expand(hand.rest), strict=True):
        data.joint(hand.full_name(name)).qpos = angle
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_collision(model, data)
    pairs = {tuple(sorted(model.geom_bodyid[list(contact.geom)])) for contact in data.contact}
    pairs |= {(int(model.body_parentid[body]), body) for body in range(2, model.nbody)}
    for first, second in sorted(pairs):
        spec.add_exclude(bodyname1=model.body(first).name, bodyname2=model.body(second).name)
    return len(pairs)


def _drive(spec: Any, hand: HandSpec, sim: Simulation) -> None:
    mujoco = kinematics.import_mujoco()
    for row, joint in enumerate(hand.joint_names):
        if joint in hand.command_joints:
            continue
        source = int(np.flatnonzero(hand.coupling[row])[0])
        equality = spec.add_equality(
            type=mujoco.mjtEq.mjEQ_JOINT,
            name1=hand.full_name(joint),
            name2=hand.full_name(hand.command_joints[source]),
        )
        equality.data[:5] = (hand.coupling_offset[row], hand.coupling[row, source], 0, 0, 0)
        equality.solref[:] = sim.coupling_solref
        equality.solimp[:3] = sim.coupling_solimp

    for i, (command, joint) in enumerate(zip(hand.command_names, hand.command_joints, strict=True)):
        servo = spec.add_actuator(
            name=hand.full_name(command), target=hand.full_name(joint),
            trntype=mujoco.mjtTrn.mjTRN_JOINT,
        )  # fmt: skip
        servo.set_to_position(kp=sim.stiffness, kv=sim.damping)
        servo.ctrllimited = mujoco.mjtLimited.mjLIMITED_TRUE
        servo.ctrlrange = (hand.command_lower[i], hand.command_upper[i])
        if np.isfinite(hand.command_torque[i]):
            servo.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
            servo.forcerange = (-hand.command_torque[i], hand.command_torque[i])
