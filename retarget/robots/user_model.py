"""A user's own MJCF or URDF of a robot in place of the packaged model.

``sides.SIDE.model`` of a robot.yaml maps the file's names and root to ours. The file is rewritten
into a cache folder with our base frame, names, limits, servos and couplings; meshes stay in place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acehand_core.errors import SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from acehand_core.types import Side
from acehand_core.user_files import Text, structured
from retarget.robots.anatomy import HandPosture
from retarget.robots.hand_spec import ROOT_LINK, HandSpec, Tip
from retarget.robots.model_file import compiled, files_of, load_spec, skeleton_urdf
from retarget.robots.parameters import ZERO, Pairs, RobotFile, Simulation, Vector

if TYPE_CHECKING:
    import mujoco

#: Geom groups of the MJCF files: for rendering and for contact.
VISUAL_GROUP, COLLISION_GROUP = 2, 3
#: Part of every cache key; increase it when the rewriting changes.
_FORMAT = "4"
#: Joints closer than this (m) leave no room for a link between them.
CLUSTER_M = 0.02
#: Elements of the user's file that are dropped or replaced.
_DROPPED = ("keys", "sensors", "actuators", "equalities", "tendons", "lights", "cameras", "skins",
              "flexes", "texts", "tuples", "numerics")  # fmt: skip
#: MuJoCo's viewers show geom groups 0 to this one by default.
_SHOWN_GROUPS = 2
#: For robot.yaml files without ``simulation``: stiff servos, as for the Inspire hand.
SIMULATION = Simulation(
    0.002, 100.0, 0.6, 0.001, 1e-5, 1e-4, (0.004, 1.0), (0.999, 0.9999, 0.001), (0.004, 1.0)
)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How a user's model file describes one hand. Names: ours to theirs.

    ``root`` is the link that carries the hand (None: the world), at ``xyz``, ``rpy`` in our base
    frame. ``reversed`` joints turn the opposite way. ``tips`` are points missing in the file:
    (link, position in it). ``no_contact`` are pairs of links, by either name, without contact.
    """

    file: Text
    license: Text
    root: Text | None = None
    xyz: Vector = ZERO
    rpy: Vector = ZERO
    joints: dict[str, str] = field(default_factory=dict)
    reversed: tuple[str, ...] = ()
    frames: dict[str, Text] = field(default_factory=dict)
    tips: dict[str, Tip] = field(default_factory=dict)
    no_contact: Pairs = ()


def read_entry(file: RobotFile, side: Side, joint_names: tuple[str, ...]) -> ModelEntry:
    """Return one side's ``model`` entry. Raises SchemaError."""
    own, place = file.side(side), ("sides", side, "model")
    entry = structured(ModelEntry, own.model, file.path, *place)
    for key, names in (("joints", entry.joints), ("reversed", entry.reversed)):
        for name in names:
            file.choose(".".join((*place, key, name)), name, joint_names)
    # In a robot.yaml with links, the pairs at its top are pairs of these.
    no_contact = () if own.links is not None else file.no_contact
    return replace(
        entry,
        joints={name: entry.joints.get(name, name) for name in joint_names},
        no_contact=(*no_contact, *entry.no_contact),
    )


def find_model(entry: ModelEntry, place: Path) -> Path | None:
    """Return the entry's file if it is ``place`` or below it, otherwise None."""
    named = Path(entry.file)
    if place.is_file():
        return place if place.name == named.name else None
    tails = [Path(*named.parts[i:]) for i in range(len(named.parts))]
    return next((place / tail for tail in tails if (place / tail).is_file()), None)


def adopt(hand: HandSpec, entry: ModelEntry, file: Path) -> HandSpec:
    """Return the hand with model files rewritten from a user's file.

    Raises InputError if MuJoCo cannot read it, SchemaError if it lacks a joint or link.
    """
    sim = hand.body.simulation if hand.body else SIMULATION
    # Rewritten models can be deleted at any time.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "acehand" / "robots" / _cache_key(hand, entry, file, sim)
    mjcf, urdf = folder / f"{hand.side}.xml", folder / f"{hand.side}.urdf"

    if not (mjcf.is_file() and urdf.is_file()):
        with quiet_mujoco():
            spec = _rewritten(hand, entry, file, sim)
            _exclude_touching(spec, compiled(spec, file), hand)
            model = compiled(spec, file)
            texts = {urdf: skeleton_urdf(model, hand), mjcf: spec.to_xml()}
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)

    signs = tuple((entry.joints[n], -1 if n in entry.reversed else 1) for n in hand.joint_names)
    files: dict[str, Any] = {"mjcf_path": mjcf, "urdf_path": urdf}
    return replace(hand, **files, user_model=file, user_joints=signs, user_rpy=entry.rpy)


def _cache_key(hand: HandSpec, entry: ModelEntry, file: Path, sim: Simulation) -> str:
    """Hash all inputs of the rewritten model, meshes included."""
    parts = (_FORMAT, import_mujoco().__version__, file.absolute(), entry, hand, sim)
    key = hashlib.sha256("\0".join(map(str, parts)).encode())
    for part in files_of(file):
        key.update(f"\0{part}\0".encode())
        key.update(part.read_bytes() if part.is_file() else b"")
    return key.hexdigest()[:16]


def _rewritten(hand: HandSpec, entry: ModelEntry, file: Path, sim: Simulation) -> mujoco.MjSpec:
    mujoco = import_mujoco()
    theirs = load_spec(file)
    _place_at_zero(theirs, file)
    unwanted = [element for part in _DROPPED for element in getattr(theirs, part)]
    unwanted += [site for site in theirs.sites if not site.name]
    unwanted += [joint for joint in theirs.joints if joint.type == mujoco.mjtJoint.mjJNT_FREE]
    for element in unwanted:
        theirs.delete(element)

    spec = mujoco.MjSpec()
    spec.modelname = f"{hand.robot}_{hand.side}"
    spec.option.timestep, spec.option.gravity = sim.timestep, (0, 0, 0)
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.compiler.degree, spec.compiler.balanceinertia = False, True

    # Some published links lack the mass that MuJoCo requires of moving bodies.
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
        # The hand is everything below the root; its place on an arm does not matter.
        body.pos, body.quat = (0, 0, 0), (1, 0, 0, 0)
        body.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT  # an euler would take precedence
        for joint in body.joints:
            theirs.delete(joint)
        with quiet_mujoco():
            frame.attach_body(body, _prefix(hand), "")

    _rename_joints(spec, hand, entry, file, sim)
    links = {body.name.removeprefix(_prefix(hand)): body for body in spec.bodies}
    _rename_frames(spec, hand, entry, file, links)
    _exclude_stated(spec, hand, entry, file, links)

    # Sort geoms into the groups. A link's contact shapes are shown if it has no others, and so are
    # meshes that MuJoCo's viewer shows.
    for body in spec.bodies:
        seen = [geom for geom in body.geoms if not (geom.contype or geom.conaffinity)]
        for geom in body.geoms:
            mesh = geom.type == mujoco.mjtGeom.mjGEOM_MESH and geom.group <= _SHOWN_GROUPS
            shown = geom in seen or not seen or (mesh and file.suffix.lower() != ".urdf")
            geom.group = VISUAL_GROUP if shown else COLLISION_GROUP
    _drive(spec, hand, sim)
    return spec


def _place_at_zero(spec: mujoco.MjSpec, file: Path) -> None:
    """Move links to their place at joint value 0 if the file has a reference value (ref)."""
    joints = [joint for joint in spec.joints if joint.ref]
    if not joints:
        return
    model = compiled(spec, file)
    posture = HandPosture(model, np.zeros(model.njnt))
    for joint in joints:
        body, link = joint.parent, model.joint(joint.name).bodyid[0]
        above = model.body_parentid[link]
        turn = posture.turns[above].T
        body.set_frame(body.parent.add_frame())  # the place below includes the file's own frame
        body.pos = turn @ (posture.positions[link] - posture.positions[above])
        body.quat = rotations.to_quaternion(turn @ posture.turns[link])
        body.alt.type = import_mujoco().mjtOrientation.mjORIENTATION_QUAT
        joint.ref = 0


def _prefix(hand: HandSpec) -> str:
    """Return the prefix of the user's names; both hands must fit into one scene."""
    return f"{hand.side}_user:"


def _rename_joints(
    spec: Any, hand: HandSpec, entry: ModelEntry, file: Path, sim: Simulation
) -> None:
    mujoco = import_mujoco()
    joints = {joint.name.removeprefix(_prefix(hand)): joint for joint in spec.joints}
    for row, name in enumerate(hand.joint_names):
        named = entry.joints[name]
        theirs = next((n for n in (named, hand.full_name(name)) if n in joints), None)
        if theirs is None:
            raise SchemaError(f"{file}: no joint {named!r} for {name}; {nearest(named, joints)}")
        joint = joints.pop(theirs)
        turns = joint.type == mujoco.mjtJoint.mjJNT_HINGE
        slides = joint.type == mujoco.mjtJoint.mjJNT_SLIDE
        if not (turns or slides) or len(joint.parent.joints) > 1:
            raise SchemaError(f"{file}: joint {theirs!r}: only one hinge or slide per link.")
        joint.name = hand.full_name(name)
        if name in entry.reversed:
            joint.axis = -joint.axis
        driven = name in hand.command_joints
        joint.limited = mujoco.mjtLimited.mjLIMITED_TRUE
        # An attached part keeps the angle unit of its file.
        unit = np.degrees(1.0) if joint.compiler.degree and turns else 1.0
        joint.range = (unit * hand.lower[row], unit * hand.upper[row])

        # Servos, friction and armature are ours.
        joint.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE
        joint.frictionloss, joint.armature = 0.0, sim.armature if driven else sim.coupled_armature
        joint.stiffness = np.zeros_like(joint.stiffness)
        damping = np.zeros_like(joint.damping)  # coefficients of a polynomial
        damping[:1] = 0.0 if driven else sim.coupled_damping
        joint.damping = damping

    if joints:
        raise SchemaError(
            f"{file}: joints {', '.join(joints)} are not in robot.yaml; add them to its joints, or "
            "name a `root` below them."
        )


def _named(items: dict[str, Any], name: str, use: str, file: Path) -> Any:
    if name not in items:
        raise SchemaError(f"{file}: no link {name!r} for {use}; {nearest(name, items)}")
    return items[name]


def _rename_frames(
    spec: Any, hand: HandSpec, entry: ModelEntry, file: Path, links: dict[str, Any]
) -> None:
    items = {site.name.removeprefix(_prefix(hand)): site for site in spec.sites} | links
    for ours, theirs in entry.frames.items():
        item = _named(items, theirs, ours, file)
        if item.name.startswith(_prefix(hand)):
            item.name = hand.full_name(ours)
        else:  # a link already has one of our names
            body, pos = (item, (0, 0, 0)) if theirs in links else (item.parent, item.pos)
            body.add_site(name=hand.full_name(ours), pos=pos)
    for ours, tip in entry.tips.items():
        _named(links, tip.link, ours, file).add_site(name=hand.full_name(ours), pos=tip.xyz)

    taken = {item.name for item in (*spec.sites, *spec.bodies)}
    for name, item in items.items():
        if item.name.startswith(_prefix(hand)):
            free = hand.full_name(name) not in taken
            item.name = hand.full_name(name if free else f"user_{name}")

    present = {item.name for item in (*spec.sites, *spec.bodies)}
    for name in hand.target_frames:
        if hand.full_name(name) not in present:
            hint = f"{nearest(name, items)} Map it to a link of the file in `model: frames`."
            raise SchemaError(f"{file}: no link {name!r}; {hint}")


def _exclude_stated(
    spec: Any, hand: HandSpec, entry: ModelEntry, file: Path, links: dict[str, Any]
) -> None:
    """Exclude the contacts stated in the user's file and in the robot.yaml."""
    for exclude in spec.excludes:
        exclude.bodyname1, exclude.bodyname2 = (
            links[name.removeprefix(_prefix(hand))].name
            for name in (exclude.bodyname1, exclude.bodyname2)
        )

    new = {body.name for body in spec.bodies}
    names = {theirs: body.name for theirs, body in links.items()}
    names |= {ours: hand.full_name(ours) for ours in entry.frames if hand.full_name(ours) in new}
    own = hand.body.no_contact if hand.body else ()
    for pair in (*entry.no_contact, *(pair for pair in own if {*pair} <= {*names})):
        first, second = (_named(names, name, "no_contact", file) for name in pair)
        spec.add_exclude(bodyname1=first, bodyname2=second)


def _exclude_touching(spec: Any, model: mujoco.MjModel, hand: HandSpec) -> None:
    """Exclude contact between neighbouring links and links that touch in the idle pose.

    Meshes collide as convex hulls, which overlap around most joints.
    """
    mujoco = import_mujoco()
    data: Any = mujoco.MjData(model)
    for name, angle in zip(hand.joint_names, hand.expand(hand.rest), strict=True):
        data.joint(hand.full_name(name)).qpos = angle
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_collision(model, data)

    pairs = {tuple(sorted(model.geom_bodyid[list(contact.geom)])) for contact in data.contact}
    for body in range(2, model.nbody):
        pairs |= {(link, body) for link in _neighbours(model, data.xanchor, body)}
    for first, second in sorted(pairs):
        spec.add_exclude(bodyname1=model.body(first).name, bodyname2=model.body(second).name)

    # Excludes do not apply to explicit geom pairs.
    for pair in list(spec.pairs):
        links = (int(model.geom(g).bodyid[0]) for g in (pair.geomname1, pair.geomname2))
        if tuple(sorted(links)) in pairs:
            spec.delete(pair)


def _neighbours(model: mujoco.MjModel, anchors: np.ndarray, body: int) -> Iterator[int]:
    """Yield the ancestors of ``body`` separated from it by one joint or one cluster of joints.

    Joints at one place form a cluster, as at the base of a thumb, and so do joints without a
    collision shape between them.
    """
    place, solid = None, False
    while body > 1:
        if model.body_jntnum[body]:
            here = anchors[model.body_jntadr[body]]
            if place is not None and solid and np.linalg.norm(here - place) > CLUSTER_M:
                return
            place, solid = here, False
        body = int(model.body_parentid[body])
        first, count = model.body_geomadr[body], model.body_geomnum[body]
        solid |= bool(model.geom_contype[first : first + count].any())
        yield body


def _drive(spec: Any, hand: HandSpec, sim: Simulation) -> None:
    mujoco = import_mujoco()
    for row, joint in enumerate(hand.joint_names):
        if joint in hand.command_joints:
            continue
        source = int(np.abs(hand.coupling[row]).argmax())
        pair = hand.full_name(joint), hand.full_name(hand.command_joints[source])
        kind = mujoco.mjtEq.mjEQ_JOINT
        equality = spec.add_equality(type=kind, name1=pair[0], name2=pair[1])
        equality.data[:5] = (hand.coupling_offset[row], hand.coupling[row, source], 0, 0, 0)
        equality.solref[:] = sim.coupling_solref
        equality.solimp[:3] = sim.coupling_solimp

    for i, (command, joint) in enumerate(zip(hand.command_names, hand.command_joints, strict=True)):
        names = {"name": hand.full_name(command), "target": hand.full_name(joint)}
        servo = spec.add_actuator(**names, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=sim.stiffness, kv=sim.damping)
        servo.ctrllimited = mujoco.mjtLimited.mjLIMITED_TRUE
        servo.ctrlrange = (hand.command_lower[i], hand.command_upper[i])
        if np.isfinite(hand.command_torque[i]):
            servo.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
            servo.forcerange = (-hand.command_torque[i], hand.command_torque[i])
