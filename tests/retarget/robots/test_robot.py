"""The parameter file of a robot: what it promises, what it refuses, the files written from it."""

from __future__ import annotations

import copy
import functools
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from acehand_core.errors import InputError, SchemaError
from helpers import ROOT
from retarget.robots.hand_spec import Link, Shape
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.robot import OURS, find_robot_file, load_robot, robot_names
from tools.robot_models import link_inertia, write_models

SIDES = ("left", "right")
HANDS = [(side, variant) for side in SIDES for variant in ("default", "other")]
VALUES = yaml.safe_load(find_robot_file("inspire").read_text())


@pytest.fixture(scope="module", params=HANDS, ids="-".join)
def hand(request):
    side, variant = request.param
    return load_robot("inspire", variant).hand(side)


@functools.cache
def inspire_right():
    return load_robot("inspire").hand("right")


def write(folder: Path, values: dict) -> Path:
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_vendor_order_and_names():
    robot = load_robot("inspire")
    hand = robot.hand("right")
    assert "inspire" in robot_names()
    assert hand.command_names == ("pinky", "ring", "middle", "index", "thumb_bend",
                                  "thumb_rotation")  # fmt: skip
    assert len(hand.joint_names) == 12
    assert hand.full_name("thumb_proximal_yaw") == "right_thumb_proximal_yaw"
    assert hand.tip_names == ("thumb_tip", "index_tip", "middle_tip", "ring_tip", "pinky_tip")
    assert robot.hand("left").joint_names == hand.joint_names
    assert hand.command_velocity.tolist() == [3.2, 3.2, 3.2, 3.2, 0.8, 2.2]


def test_expand_is_the_coupling_and_reduce_its_inverse(hand):
    rng = np.random.default_rng(0)
    commands = rng.normal(size=(7, 6))
    joints = hand.expand(commands)
    assert np.array_equal(hand.reduce(joints), commands)
    assert hand.coupling_residual(joints) == 0
    joints[3, hand.joint_names.index("thumb_distal")] += 0.25
    assert hand.coupling_residual(joints) == pytest.approx(0.25)


def test_command_limits_keep_every_joint_within_its_own(hand):
    for commands in (hand.command_lower, hand.command_upper):
        joints = hand.expand(commands)
        assert (joints >= hand.lower - 1e-12).all() and (joints <= hand.upper + 1e-12).all()


def test_driven_joints_can_use_their_whole_range(hand):
    """What the widened thumb limits are for."""
    rows = [hand.joint_names.index(name) for name in hand.command_joints]
    assert hand.command_lower == pytest.approx(hand.lower[rows], abs=1e-12)
    assert hand.command_upper == pytest.approx(hand.upper[rows], abs=1e-12)


def test_known_couplings():
    right = load_robot("inspire").hand("right")
    named = dict(zip(right.joint_names, right.expand(right.command_upper), strict=True))
    assert named["index_intermediate"] == pytest.approx(1.06399 * 1.47 - 0.04545)
    assert named["thumb_intermediate"] == pytest.approx(1.334 * 0.6)
    assert named["thumb_distal"] == pytest.approx(0.667 * 0.6)
    other = load_robot("inspire", "other").hand("right")
    named = dict(zip(other.joint_names, other.expand(other.command_upper), strict=True))
    assert named["pinky_intermediate"] == pytest.approx(1.7)
    assert named["thumb_distal"] == pytest.approx(2.4 * 0.5)


def test_tight_coupled_limits_and_speeds_bind_the_driven_joint(tmp_path):
    values = copy.deepcopy(VALUES)
    values["joints"]["index_intermediate"] |= {"limits": [-0.04545, 0.5], "velocity": 1.6}
    hand = load_robot(write(tmp_path, values)).hand("left")
    index = hand.command_names.index("index")
    assert hand.command_upper[index] == pytest.approx((0.5 + 0.04545) / 1.06399)
    assert hand.command_velocity[index] == pytest.approx(1.6 / 1.06399)


def test_registers_are_zero_closed_and_thousand_open(hand):
    assert hand.controller.of(hand.command_upper) == pytest.approx(0)
    assert hand.controller.of(hand.command_lower) == pytest.approx(1000)


def test_register_polarity_is_configurable(tmp_path):
    values = copy.deepcopy(VALUES)
    values["commands"]["thumb_rotation"]["register_zero"] = "lower"
    hand = load_robot(write(tmp_path, values)).hand("right")
    assert hand.controller.of(hand.command_upper).tolist() == [0, 0, 0, 0, 0, 1000]


@settings(deadline=None)  # the first example reads the file
@given(arrays(float, (3, 6), elements=st.floats(0, 1000)))
def test_registers_round_trip(registers):
    hand = inspire_right()
    commands = hand.controller.inverse(registers)
    assert hand.controller.of(commands) == pytest.approx(registers, abs=1e-9)
    assert (commands >= hand.command_lower).all() and (commands <= hand.command_upper).all()


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'inspire'"):
        load_robot("inspir")
    with pytest.raises(InputError, match=r"[Nn]o such robot file"):
        load_robot("some/folder/robot.yaml")
    with pytest.raises(InputError, match="Did you mean 'other'"):
        load_robot("inspire", "othr")


BROKEN = {
    "wrong schema": (("schema",), "acehand-robot/9", "schema"),
    "misspelt key": (("latncy",), 0.1, "Did you mean 'latency'"),
    "no such joint": (("commands", "pinky", "joint"), "pinky_proximl", "commands.pinky.joint"),
    "coupled joint driven": (("commands", "ring", "joint"), "ring_intermediate", "follows"),
    "driven twice": (("commands", "ring", "joint"), "index_proximal", "two commands"),
    "follows nothing": (("joints", "thumb_distal", "follows"), "thumb", "thumb_distal.follows"),
    "limits reversed": (("joints", "index_proximal", "limits"), [1.4, 0.0], "lower < upper"),
    "limits short": (("joints", "index_proximal", "limits"), [1.4], "list of 2 numbers"),
    "negative speed": (("joints", "index_proximal", "velocity"), -3.2, "greater than 0"),
    "not a number": (("joints", "index_proximal", "velocity"), "fast", "finite number"),
    "nan": (("joints", "thumb_distal", "factor"), float("nan"), "joints.thumb_distal.factor"),
    "no keypoint": (("keypoints", "thumb_top"), "thumb_tip", "keypoints.thumb_top"),
    "no such frame": (("keypoints", "thumb_tip"), "thumb_tipp", "Did you mean 'thumb_tip'"),
    "third side": (("sides", "middle"), {}, "sides.middle"),
    "axis length": (
        ("sides", "left", "links", "thumb_distal", "axis"), [0, 0, 2], "thumb_distal.axis"),
    "parent unknown": (
        ("sides", "left", "links", "thumb_distal", "parent"), "wrist", "thumb_distal.parent"),
    "negative mass": (
        ("sides", "left", "links", "thumb_distal", "mass"), -1, "thumb_distal.mass"),
    "link used twice": (
        ("sides", "left", "links", "thumb_distal", "joint"), "index_proximal", "exactly one link"),
    "tip on air": (("sides", "left", "tips", "thumb_tip", "link"), "x", "tips.thumb_tip.link"),
    "register side": (("commands", "ring", "register_zero"), "open", "register_zero"),
    "variant joint": (
        ("variants", "other", "joints", "elbow"), {"limits": [0, 1]}, "joints.elbow"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_broken_files_are_refused_with_file_and_key(tmp_path, case):
    keys, value, expected = BROKEN[case]
    values = copy.deepcopy(VALUES)
    entry = values
    for key in keys[:-1]:
        entry = entry[key]
    entry[keys[-1]] = value
    path = write(tmp_path, values)
    with pytest.raises(SchemaError) as caught:
        load_robot(path, "other" if keys[0] == "variants" else None)
    assert str(path) in str(caught.value) and expected in str(caught.value)


@pytest.mark.parametrize("key", ["name", "joints", "commands", "keypoints", "sides", "license",
                                 "register_range", "simulation"])  # fmt: skip
def test_missing_keys_are_named(tmp_path, key):
    path = write(tmp_path, {k: v for k, v in VALUES.items() if k != key})
    with pytest.raises(SchemaError, match=f"{key} is missing"):
        load_robot(path)


def test_names_of_model_files(tmp_path):
    """Without ``files`` they are SIDE.xml and SIDE.urdf; either can be named."""
    path = write(tmp_path, {k: v for k, v in VALUES.items() if k != "files"})
    hand = load_robot(path, models=OURS).hand("left")
    assert (hand.mjcf_path, hand.urdf_path) == (tmp_path / "left.xml", tmp_path / "left.urdf")
    path = write(tmp_path, VALUES | {"files": {"mjcf": "a/{side}_hand.xml"}})
    hand = load_robot(path, models=OURS).hand("left")
    assert hand.mjcf_path == tmp_path / "a/left_hand.xml"
    assert hand.urdf_path == tmp_path / "left.urdf"


@pytest.mark.parametrize("text", ["", "- a\n", "a: [1\n", "\x00"])
def test_files_that_are_not_mappings_are_refused(tmp_path, text):
    path = tmp_path / "robot.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=r"robot\.yaml"):
        load_robot(path)


def test_model_files_are_what_the_parameter_file_says(tmp_path):
    source = find_robot_file("inspire")
    shutil.copy(source, tmp_path)
    written = write_models(tmp_path / "robot.yaml")
    assert len(written) == 8
    for path in written:
        committed = source.parent / path.name
        assert committed.read_text() == path.read_text(), (
            f"{committed.name} is stale: python -m tools.robot_models {source}"
        )


def test_urdf_says_what_the_parameters_say(hand):
    joints = {j.get("name"): j for j in ET.parse(hand.urdf_path).getroot().iter("joint")}
    for row, name in enumerate(hand.joint_names):
        joint = joints[hand.full_name(name)]
        limit = joint.find("limit")
        assert float(limit.get("lower")) == pytest.approx(hand.lower[row], abs=1e-10)
        assert float(limit.get("upper")) == pytest.approx(hand.upper[row], abs=1e-10)
        mimic = joint.find("mimic")
        assert (mimic is None) == (name in hand.command_joints)
        if mimic is not None:
            source = hand.command_joints.index(mimic.get("joint").removeprefix(f"{hand.side}_"))
            assert float(mimic.get("multiplier")) == pytest.approx(hand.coupling[row, source])
            assert float(mimic.get("offset")) == pytest.approx(hand.coupling_offset[row])


def test_mjcf_says_what_the_parameters_say(hand):
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    rows = [model.joint(hand.full_name(n)).id for n in hand.joint_names]
    assert model.jnt_range[rows] == pytest.approx(np.stack([hand.lower, hand.upper], 1), abs=1e-10)
    servos = [model.actuator(hand.full_name(n)).id for n in hand.command_names]
    assert model.actuator_ctrlrange[servos, 1] == pytest.approx(hand.command_upper)
    assert model.actuator_forcerange[servos, 1] == pytest.approx(hand.command_torque)
    driven = [model.joint(model.actuator_trnid[i, 0]).name for i in servos]
    assert driven == [hand.full_name(n) for n in hand.command_joints]
    assert model.neq == 6 and np.abs(model.opt.gravity).max() == 0


def test_urdf_loads_in_mujoco_with_the_same_masses(hand):
    mujoco = pytest.importorskip("mujoco")
    ours = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    text = hand.urdf_path.read_text()
    keep = '<mujoco><compiler fusestatic="false"/></mujoco></robot>'
    theirs = mujoco.MjModel.from_xml_string(text.replace("</robot>", keep))
    assert theirs.njnt == ours.njnt == 12
    for link in hand.body.links:
        a, b = ours.body(hand.full_name(link.name)), theirs.body(hand.full_name(link.name))
        assert a.mass == pytest.approx(b.mass)
        assert a.ipos == pytest.approx(b.ipos)
        assert np.sort(a.inertia) == pytest.approx(np.sort(b.inertia), rel=1e-6)


SHAPES = {
    "capsule": Shape("capsule", (0.01, -0.02, 0.03), (0.03, 0.05, 0.0), radius=0.012),
    "cylinder": Shape("cylinder", (0.0, 0.0, 0.0), (-0.02, 0.01, 0.05), radius=0.02),
    "sphere": Shape("sphere", (0.01, 0.02, 0.03), radius=0.04),
    "box": Shape("box", (0.1, 0.0, 0.0), size=(0.02, 0.04, 0.09), rpy=(0.3, -0.5, 0.9)),
}
MJCF = {
    "capsule": '<geom type="capsule" fromto="0.01 -0.02 0.03 0.03 0.05 0" size="0.012"/>',
    "cylinder": '<geom type="cylinder" fromto="0 0 0 -0.02 0.01 0.05" size="0.02"/>',
    "sphere": '<geom type="sphere" pos="0.01 0.02 0.03" size="0.04"/>',
    "box": '<geom type="box" pos="0.1 0 0" size="0.01 0.02 0.045" euler="0.3 -0.5 0.9"/>',
}


@pytest.mark.parametrize("kinds", [("capsule",), ("cylinder",), ("sphere",), ("box",),
                                   ("capsule", "box"), ("sphere", "cylinder")])  # fmt: skip
def test_inertia_agrees_with_mujocos_own(kinds):
    mujoco = pytest.importorskip("mujoco")
    body = "".join(MJCF[kind] for kind in kinds)
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><compiler angle="radian" eulerseq="XYZ"/><worldbody><body>'
        f"<freejoint/>{body}</body></worldbody></mujoco>"
    )
    mass = float(model.body_mass[1])
    shapes = tuple(SHAPES[kind] for kind in kinds)
    origin = (0.0, 0.0, 0.0)
    link = Link("part", "base", None, origin, origin, (0.0, 0.0, 1.0), mass, None, (), shapes)
    com, inertia = link_inertia(link)
    assert com == pytest.approx(model.body_ipos[1], abs=1e-9)
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, model.body_iquat[1])
    turn = turn.reshape(3, 3)
    expected = turn @ np.diag(model.body_inertia[1]) @ turn.T
    assert inertia == pytest.approx(expected, rel=1e-6, abs=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("side", SIDES)
def test_levers_are_those_of_the_straight_hand(side):
    pytest.importorskip("mujoco")
    hand = load_robot("inspire").hand(side)
    joints = hand.expand(np.zeros((1, 6)))
    _, jacobian = KinematicTree.of(hand).points_and_jacobian(joints, hand.tip_names)
    travel = np.linalg.norm(jacobian[0] @ hand.coupling, axis=1).max(axis=0)
    stated = [VALUES["commands"][name]["lever"] for name in hand.command_names]
    assert travel == pytest.approx(stated, rel=0.03)


def test_loading_a_robot_imports_no_simulator():
    code = (
        "import sys, retarget, retarget.robots.robot, retarget.robots.kinematics\n"
        "import retarget.replay.simulate\n"
        "retarget.robots.robot.load_robot('inspire')\n"
        "heavy = {'mujoco', 'pinocchio', 'torch', 'dex_retargeting'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    root = ROOT
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


GRIPPER_XML = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="right_palm"><geom size="0.02"/>
    <body name="right_jaw" pos="0 0 0.1">
      <joint name="right_jaw" type="slide" axis="0 1 0" range="0 0.05"/><geom size="0.01"/>
      <body name="right_nail" pos="0 0 0.02">
        <joint name="right_nail" axis="1 0 0" range="-1 1" pos="0 0 0.005"/><geom size="0.01"/>
        <site name="right_tip" pos="0 0 0.03"/></body></body></body></worldbody></mujoco>"""
GRIPPER = {
    "schema": "acehand-robot/1", "name": "pincer", "title": "A pincer", "license": "none",
    "files": {"mjcf": "{side}.xml", "urdf": "{side}.urdf"},
    "joints": {"nail": {"limits": [-1, 1], "follows": "jaw", "factor": -10, "offset": 0.5},
               "jaw": {"limits": [0, 0.05]}},
    "commands": {"close": {"joint": "jaw", "register_zero": "lower"}},
    "register_range": [0, 255], "keypoints": {"index_tip": "tip"}, "sides": {"right": {}},
}  # fmt: skip


def test_a_users_own_robot_with_one_side_and_its_own_model(tmp_path):
    mujoco = pytest.importorskip("mujoco")
    (tmp_path / "right.xml").write_text(GRIPPER_XML)
    robot = load_robot(write(tmp_path, GRIPPER).parent)
    hand = robot.hand("right")
    with pytest.raises(InputError, match="no left hand"):
        robot.hand("left")
    with pytest.raises(InputError, match="no links"):
        write_models(robot.path)
    assert hand.command_velocity.tolist() == [np.inf] and hand.fingers == ("index",)
    assert hand.controller.of(np.array([0.05])).tolist() == [255]
    tree = KinematicTree.of(hand)
    joints = hand.expand(np.array([[0.01], [0.04]]))
    model = mujoco.MjModel.from_xml_string(GRIPPER_XML)
    data = mujoco.MjData(model)
    for row in joints:
        data.joint("right_nail").qpos, data.joint("right_jaw").qpos = row
        mujoco.mj_forward(model, data)
        assert tree.points(row[None], ["tip"])[0, 0] == pytest.approx(data.site("right_tip").xpos)


def test_a_missing_model_file_and_a_foreign_joint_are_named(tmp_path):
    pytest.importorskip("mujoco")
    hand = load_robot(write(tmp_path, GRIPPER)).hand("right")
    with pytest.raises(InputError, match=r"right\.xml: robot model file not found"):
        KinematicTree.of(hand)
    (tmp_path / "right.xml").write_text(
        GRIPPER_XML.replace('name="right_nail" axis', 'name="x" axis')
    )
    with pytest.raises(SchemaError, match=r"joint 'x' has no place.*; valid: nail\."):
        KinematicTree.of(hand)
    (tmp_path / "right.xml").write_text(GRIPPER_XML.replace("right_nail", "right_nal"))
    with pytest.raises(
        SchemaError, match=r"joint 'nal' has no .*valid: nail\. Did you mean 'nail'"
    ):
        KinematicTree.of(hand)
    shorter = hand.joint_names[:-1]
    spare = f"joint '{hand.joint_names[-1]}' has no place in the joint order; valid: "
    model = tmp_path / "right.xml"
    model.write_text(GRIPPER_XML)
    with pytest.raises(SchemaError, match=spare + ", ".join(sorted(shorter))):
        KinematicTree(load_mjcf(model), model, shorter, "right_")
    longer = (*hand.joint_names, "nale")
    with pytest.raises(SchemaError, match=r"joint 'nale' is not in the model.*mean 'nail'"):
        KinematicTree(load_mjcf(model), model, longer, "right_")
    (tmp_path / "right.xml").write_text("<mujoco>")
    with pytest.raises(InputError, match="cannot read"):
        KinematicTree.of(hand)
