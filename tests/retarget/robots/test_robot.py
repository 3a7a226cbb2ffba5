"""The parameter file of a robot: what it promises, what it refuses, the files written from it."""

import copy
import functools
from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from acehand_core.errors import InputError, SchemaError
from retarget.robots.hand_spec import Link, Shape
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.robot import OURS, find_robot_file, load_robot
from tools.robot_models import link_inertia, write_models

SIDES = ("left", "right")
VALUES = yaml.safe_load(find_robot_file("inspire").read_text())


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


def test_known_couplings():
    named = {}
    for variant in ("default", "other"):
        hand = load_robot("inspire", variant).hand("right")
        named[variant] = dict(zip(hand.joint_names, hand.expand(hand.command_upper), strict=True))
    assert named["default"]["index_intermediate"] == pytest.approx(1.06399 * 1.47 - 0.04545)
    assert named["default"]["thumb_intermediate"] == pytest.approx(1.334 * 0.6)
    assert named["default"]["thumb_distal"] == pytest.approx(0.667 * 0.6)
    assert named["other"]["pinky_intermediate"] == pytest.approx(1.7)
    assert named["other"]["thumb_distal"] == pytest.approx(2.4 * 0.5)


def test_tight_coupled_limits_and_speeds_bind_the_driven_joint(tmp_path):
    values = copy.deepcopy(VALUES)
    values["joints"]["index_intermediate"] |= {"limits": [-0.04545, 0.5], "velocity": 1.6}
    hand = load_robot(write(tmp_path, values)).hand("left")
    index = hand.command_names.index("index")
    assert hand.command_upper[index] == pytest.approx((0.5 + 0.04545) / 1.06399)
    assert hand.command_velocity[index] == pytest.approx(1.6 / 1.06399)


def test_registers_are_zero_closed_and_thousand_open(hand):
    assert hand.controller.to_registers(hand.command_upper) == pytest.approx(0)
    assert hand.controller.to_registers(hand.command_lower) == pytest.approx(1000)


@settings(deadline=None)  # the first example reads the file
@given(arrays(float, (3, 6), elements=st.floats(0, 1000)))
def test_registers_round_trip(registers):
    hand = inspire_right()
    commands = hand.controller.to_angles(registers)
    assert hand.controller.to_registers(commands) == pytest.approx(registers, abs=1e-9)
    assert (commands >= hand.command_lower).all() and (commands <= hand.command_upper).all()


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InputError, match="'inspire'"):
        load_robot("inspir")
    with pytest.raises(InputError, match="some/folder"):
        load_robot("some/folder/robot.yaml")


THUMB = "sides.left.links.thumb_distal"


@pytest.mark.parametrize(("keys", "value", "named"), [
    ("schema", "acehand-robot/9", "schema"), ("latncy", 0.1, "'latency'"),
    ("commands.pinky.joint", "pinky_proximl", "commands.pinky.joint"),
    ("commands.ring.joint", "ring_intermediate", "follows"),
    ("commands.ring.joint", "index_proximal", "two commands"),
    ("joints.thumb_distal.follows", "thumb", "thumb_distal.follows"),
    ("joints.index_proximal.limits", [1.4, 0.0], "lower < upper"),
    ("joints.index_proximal.limits", [1.4], "index_proximal.limits is [1.4]"),
    ("joints.index_proximal.velocity", -3.2, "greater than 0"),
    ("joints.index_proximal.velocity", "fast", "index_proximal.velocity"),
    ("joints.thumb_distal.factor", float("nan"), "joints.thumb_distal.factor"),
    ("keypoints.thumb_top", "thumb_tip", "keypoints.thumb_top"),
    ("keypoints.thumb_tip", "thumb_tipp", "'thumb_tip'"),
    ("sides.middle", {}, "sides.middle"), ("commands.ring.register_zero", "open", "register_zero"),
    (f"{THUMB}.axis", [0, 0, 2], "thumb_distal.axis"),
    (f"{THUMB}.parent", "wrist", "thumb_distal.parent"),
    (f"{THUMB}.mass", -1, "thumb_distal.mass"),
    (f"{THUMB}.joint", "index_proximal", "exactly one link"),
    ("sides.left.tips.thumb_tip.link", "x", "tips.thumb_tip.link"),
    ("variants.other.joints.elbow", {"limits": [0, 1]}, "joints.elbow"),
    *((key, None, f"{key} is missing") for key in (
        "name", "joints", "commands", "keypoints", "sides", "license", "register_range",
        "simulation")),
])  # fmt: skip
def test_broken_files_are_refused_with_file_and_key(tmp_path, keys, value, named):
    values = copy.deepcopy(VALUES)
    *way, last = keys.split(".")
    entry = functools.reduce(lambda inner, key: inner[key], way, values)
    entry[last] = value
    if value is None:
        del entry[last]
    path = write(tmp_path, values)
    with pytest.raises(SchemaError) as caught:
        load_robot(path, "other" if way[:1] == ["variants"] else None)
    assert str(path) in str(caught.value) and named in str(caught.value)


def test_names_of_model_files(tmp_path):
    """Without ``files`` they are SIDE.xml and SIDE.urdf; either can be named."""
    for files, mjcf in (({}, "left.xml"), ({"mjcf": "a/{side}_hand.xml"}, "a/left_hand.xml")):
        hand = load_robot(write(tmp_path, VALUES | {"files": files}), models=OURS).hand("left")
        assert (hand.mjcf_path, hand.urdf_path) == (tmp_path / mjcf, tmp_path / "left.urdf")


@pytest.mark.parametrize("text", ["", "- a\n", "a: [1\n", "\x00"])
def test_files_that_are_not_mappings_are_refused(tmp_path, text):
    (tmp_path / "robot.yaml").write_text(text)
    with pytest.raises(SchemaError, match=r"robot\.yaml"):
        load_robot(tmp_path)


SHAPES = {
    "capsule": Shape("capsule", (0.01, -0.02, 0.03), (0.03, 0.05, 0.0), radius=0.012),
    "cylinder": Shape("cylinder", (0.0, 0.0, 0.0), (-0.02, 0.01, 0.05), radius=0.02),
    "sphere": Shape("sphere", (0.01, 0.02, 0.03), radius=0.04),
    "box": Shape("box", (0.1, 0.0, 0.0), size=(0.02, 0.04, 0.09), rpy=(0.3, -0.5, 0.9)),
}
MJCF = {
    "capsule": 'fromto="0.01 -0.02 0.03 0.03 0.05 0" size="0.012"',
    "cylinder": 'fromto="0 0 0 -0.02 0.01 0.05" size="0.02"',
    "sphere": 'pos="0.01 0.02 0.03" size="0.04"',
    "box": 'pos="0.1 0 0" size="0.01 0.02 0.045" euler="0.3 -0.5 0.9"',
}


@pytest.mark.parametrize("kinds", [("capsule",), ("cylinder",), ("sphere",), ("box",),
                                   ("capsule", "box"), ("sphere", "cylinder")])  # fmt: skip
def test_inertia_agrees_with_mujocos_own(kinds):
    body = "".join(f'<geom type="{kind}" {MJCF[kind]}/>' for kind in kinds)
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><compiler angle="radian" eulerseq="XYZ"/><worldbody><body>'
        f"<freejoint/>{body}</body></worldbody></mujoco>"
    )
    mass = float(model.body_mass[1])
    shapes, origin = tuple(SHAPES[kind] for kind in kinds), (0.0, 0.0, 0.0)
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
    hand = load_robot("inspire").hand(side)
    joints = hand.expand(np.zeros((1, 6)))
    _, jacobian = KinematicTree.of(hand).points_and_jacobian(joints, hand.tip_names)
    travel = np.linalg.norm(jacobian[0] @ hand.coupling, axis=1).max(axis=0)
    stated = [VALUES["commands"][name]["lever"] for name in hand.command_names]
    assert travel == pytest.approx(stated, rel=0.03)


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
    (tmp_path / "right.xml").write_text(GRIPPER_XML)
    robot = load_robot(write(tmp_path, GRIPPER).parent)
    hand = robot.hand("right")
    with pytest.raises(InputError, match="no left hand"):
        robot.hand("left")
    with pytest.raises(InputError, match="no links"):
        write_models(robot.path)
    assert hand.command_velocity.tolist() == [np.inf] and hand.fingers == ("index",)
    assert hand.controller.to_registers(np.array([0.05])).tolist() == [255]
    tree = KinematicTree.of(hand)
    joints = hand.expand(np.array([[0.01], [0.04]]))
    model = mujoco.MjModel.from_xml_string(GRIPPER_XML)
    data = mujoco.MjData(model)
    for row in joints:
        data.joint("right_nail").qpos, data.joint("right_jaw").qpos = row
        mujoco.mj_forward(model, data)
        assert tree.points(row[None], ["tip"])[0, 0] == pytest.approx(data.site("right_tip").xpos)


def test_a_missing_model_file_and_a_foreign_joint_are_named(tmp_path):
    hand, model = load_robot(write(tmp_path, GRIPPER)).hand("right"), tmp_path / "right.xml"
    with pytest.raises(InputError, match=r"right\.xml.*not found"):
        KinematicTree.of(hand)
    for text, error, named in (
        (GRIPPER_XML.replace('name="right_nail" axis', 'name="x" axis'), SchemaError, "'x'.*nail"),
        (GRIPPER_XML.replace("right_nail", "right_nal"), SchemaError, "'nal' .*'nail'"),
        ("<mujoco>", InputError, r"right\.xml"),
    ):
        model.write_text(text)
        with pytest.raises(error, match=named):
            KinematicTree.of(hand)
    model.write_text(GRIPPER_XML)
    for names, named in ((hand.joint_names[:-1], f"'{hand.joint_names[-1]}'.*valid: "),
                         ((*hand.joint_names, "nale"), "'nale'.*'nail'")):  # fmt: skip
        with pytest.raises(SchemaError, match=named):
            KinematicTree(load_mjcf(model), model, names, "right_")
