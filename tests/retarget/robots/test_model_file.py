"""Makers' files as they are: parts, folders, packages, units, limits, couplings and contact."""

import os
import re

import mujoco
import numpy as np
import pytest

from acehand_core.errors import InputError, SchemaError
from helpers.makers_files import (
    AXES,
    FACTOR,
    FINGERS,
    ROOT_XYZ,
    box_obj,
    plain_values,
    robot_values,
    write_mjcf,
    write_robot,
    write_urdf,
)
from helpers.retarget_samples import motion_of, moving_hands
from retarget.check import check_hand
from retarget.replay.simulate import self_penetration
from retarget.retargeting import retarget_motion
from retarget.robots.draft_text import write_draft
from retarget.robots.kinematics import KinematicTree
from retarget.robots.model_file import compiled_model, files_of, load_spec, unread_meshes
from retarget.robots.robot import MODELS_VARIABLE, load_robot

FOUR, THREE = FINGERS[:4], FINGERS[:3]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in (MODELS_VARIABLE, "ROS_PACKAGE_PATH", "AMENT_PREFIX_PATH"):
        monkeypatch.delenv(variable, raising=False)


def hand_of(tmp_path, file, fingers, change=None, root="palm"):
    values = robot_values(file, fingers, root)
    if change is not None:
        change(values)
    return load_robot(write_robot(file.parent, values)).hand("right")


def reversed_joints(*names):
    def change(values):
        values["sides"]["right"]["model"]["reversed"] = list(names)
        for name in names:
            low, high = values["joints"][name]["limits"]
            values["joints"][name]["limits"] = [-high, -low]

    return change


def findings(hand):
    return {f.name: f for f in check_hand(hand)}


def in_their_model(model, angles):
    """Return every body's place in the palm's frame, by MuJoCo with the maker's file alone."""
    data = mujoco.MjData(model)
    for name, angle in angles.items():
        data.joint(name).qpos = angle
    mujoco.mj_kinematics(model, data)
    palm = data.body("palm")
    return {
        model.body(i).name: palm.xmat.reshape(3, 3).T @ (data.xpos[i] - palm.xpos)
        for i in range(1, model.nbody)
    }


@pytest.mark.parametrize("fingers", [THREE, FOUR, FINGERS], ids=len)
def test_every_link_is_where_the_makers_file_has_it(tmp_path, monkeypatch, fingers):
    """Attached parts in other units, meshdir, includes, classes, a mount above the root."""
    file = write_mjcf(tmp_path / "theirs", fingers)
    turned = ("index_mcp", "index_pip") if len(fingers) == 4 else ()
    hand = hand_of(tmp_path, file, fingers, reversed_joints(*turned))
    assert not [f for f in check_hand(hand) if f.passed is False]
    monkeypatch.chdir("/")  # what is written names its meshes wherever one stands
    ours = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    data, theirs = mujoco.MjData(ours), mujoco.MjModel.from_xml_path(str(file))
    assert (ours.nmesh, ours.nu, ours.neq, ours.nkey) == (1 + len(fingers), *[len(fingers)] * 2, 0)
    assert ours.nexclude >= theirs.nexclude == 1

    share = np.random.default_rng(0).uniform(0, 0.9, (5, len(fingers)))
    for commands in hand.command_lower + share * (hand.command_upper - hand.command_lower):
        joints = dict(zip(hand.joint_names, hand.expand(commands), strict=True))
        for name, angle in joints.items():
            data.joint(f"right_{name}").qpos = angle
        mujoco.mj_kinematics(ours, data)
        angles = {n.replace("_", "/"): -a if n in turned else a for n, a in joints.items()}
        places = in_their_model(theirs, angles)
        for finger in fingers:
            for ours_name, theirs_name in ((f"{finger}_1", "proximal"), (f"{finger}_2", "distal")):
                expected = AXES @ places[f"{finger}/{theirs_name}"] + ROOT_XYZ
                there = data.body(f"right_{ours_name}").xpos
                assert np.abs(there - expected).max() < 1e-6
    # Masses and shapes are the file's.
    for finger in fingers:
        ours_body, their_body = ours.body(f"right_{finger}_1"), theirs.body(f"{finger}/proximal")
        assert ours_body.mass == pytest.approx(their_body.mass)


def test_a_urdf_in_its_package(tmp_path):
    file = write_urdf(tmp_path, THREE)
    hand = hand_of(tmp_path, file, THREE, root=None)
    found = findings(hand)
    assert not [f for f in found.values() if f.passed is False]
    assert "bone.dae" in found["joints"].detail
    assert "3 of the file" in found["coupling"].detail
    # The tip of a straight index: 0.08 + 0.04 + 0.025 along their x, and 0.03 to their -y.
    tip = KinematicTree.of(hand).points(np.zeros((1, 6)), ["index_tip"])[0, 0]
    assert tip == pytest.approx(AXES @ [0.145, -0.03, 0] + ROOT_XYZ, abs=1e-6)


@pytest.mark.parametrize(
    "place", ["package.xml", "next to it", "ROS_PACKAGE_PATH", "AMENT_PREFIX_PATH"]
)
def test_where_a_package_is_found(tmp_path, monkeypatch, place):
    file = write_urdf(tmp_path, THREE)
    package = file.parents[1]
    if place == "package.xml":  # a checkout whose folder has another name
        (package / "package.xml").write_text("<package><name>makers</name></package>")
        file = package.rename(tmp_path / "checkout") / "urdf" / "hand.urdf"
    else:
        away = tmp_path / "away"
        meshes = {"next to it": tmp_path / "makers", "AMENT_PREFIX_PATH": away / "share" / "makers"}
        target = meshes.get(place, away / "makers") / "meshes"
        other = tmp_path / "description" / "hand.urdf"
        other.parent.mkdir()
        file = file.rename(other)
        if place != "next to it":
            target.parent.mkdir(parents=True)
            (package / "meshes").rename(target)
            monkeypatch.setenv(place, f"/nowhere{os.pathsep}{away}")
    assert compiled_model(file).nmesh == 1
    assert [mesh.split(":")[0] for mesh in unread_meshes(file)] == ["package"]
    assert files_of(file)[1].name == "bone.stl"


@pytest.mark.parametrize("name", ["package://other/meshes/bone", "bone"])
@pytest.mark.parametrize("place", [".", "meshes", "..", "../meshes"])
def test_meshes_are_found_where_people_put_them(tmp_path, name, place):
    file = write_urdf(tmp_path, THREE)
    file.write_text(file.read_text().replace("package://makers/meshes/bone", name))
    bone = file.parent.parent / "meshes" / "bone.stl"
    (file.parent / place).mkdir(exist_ok=True)
    bone = bone.rename(file.parent / place / "bone.stl")
    assert compiled_model(file).nmesh == 1
    assert files_of(file)[1] == bone.resolve()


def lost_meshes(tmp_path, names):
    """Return what fails of a drafted hand whose palm and last links are meshes, without some.

    The palm reaches 80 mm down from its link, at which the fingers begin.
    """
    folder = tmp_path / "hand"
    folder.mkdir()
    for name, low, high in (("palm", (-0.01, -0.04, -0.08), (0.01, 0.04, 0.0)),
                            ("end", (-0.004, -0.004, 0.0), (0.004, 0.004, 0.03))):  # fmt: skip
        if name not in names:
            (folder / f"{name}.obj").write_text(box_obj(low, high))
    shape = '<visual><geometry><mesh filename="meshes/{}.obj"/></geometry></visual></link>'
    text = f'<robot name="lost"><link name="palm">{shape.format("palm")}'
    for finger, y, roll in (("thumb", 0.05, -0.9), ("index", 0.02, 0), ("middle", -0.02, 0)):
        for joint, parent, place in (
            ("mcp", "palm", f'xyz="0 {y} 0.01" rpy="{roll} 0 {-2.2 * roll}"'),
            ("pip", f"{finger}_mcp", 'xyz="0 0 0.04"'),
        ):
            link = f"{finger}_{joint}"
            box = '<visual><geometry><box size="0.01 0.01 0.03"/></geometry></visual></link>'
            text += (
                f'<link name="{link}">{shape.format("end") if joint == "pip" else box}'
                f'<joint name="{link}" type="revolute"><parent link="{parent}"/>'
                f'<child link="{link}"/><origin {place}/><axis xyz="0 1 0"/>'
                '<limit lower="0" upper="1.4" velocity="1" effort="1"/></joint>'
            )
    (folder / "hand.urdf").write_text(text + "</robot>")
    hand = load_robot(write_draft(folder / "hand.urdf", tmp_path / "robot")).hand("right")
    tip = KinematicTree.of(hand).points(np.zeros((1, 6)), ["index_tip"])[0, 0]
    return {f.name: f.detail for f in check_hand(hand, quick=True) if f.passed is False}, tip


@pytest.mark.parametrize("names", [(), ("end",), ("palm",), ("palm", "end")], ids="-".join)
def test_what_would_come_from_a_missing_mesh_fails(tmp_path, names):
    """Tips at the last joints, 50 mm over the palm's link, and a base at the knuckles."""
    found, tip = lost_meshes(tmp_path, names)
    if not names:
        assert not found and tip == pytest.approx([0, 0.02, 0.08 + 0.01 + 0.04 + 0.03], abs=2e-3)
        return
    assert list(found) == ["tips"]
    assert ("index_tip is" in found["tips"]) is ("end" in names)
    assert ("knuckles" in found["tips"]) is ("palm" in names)
    assert all(f"meshes/{name}.obj" in found["tips"] for name in names)


def test_what_has_no_name_gets_one(tmp_path):
    path = tmp_path / "bare.xml"
    path.write_text("""<mujoco><worldbody><body><freejoint/><geom size="0.01"/>
      <body pos="0 0 0.1"><joint/><geom size="0.01"/></body></body></worldbody></mujoco>""")
    spec, model = load_spec(path), compiled_model(path)
    assert [body.name for body in spec.bodies] == ["world", "link1", "link2"]
    assert [model.joint(i).name for i in range(2)] == ["link1_joint", "link2_joint"]


def test_a_xacro_is_named(tmp_path):
    path = tmp_path / "hand.urdf.xacro"
    path.write_text('<robot xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:hand/></robot>')
    with pytest.raises(InputError, match=r"xacro hand\.urdf\.xacro"):
        compiled_model(path)


@pytest.mark.parametrize("part", ["finger/finger.xml", "classes.xml", "finger/parts/bone.stl"])
def test_a_change_in_any_of_its_files_is_seen(tmp_path, part):
    file = write_mjcf(tmp_path / "theirs", THREE)
    before = hand_of(tmp_path, file, THREE).mjcf_path
    assert hand_of(tmp_path, file, THREE).mjcf_path == before
    changed = file.parent / part
    data = changed.read_bytes()  # another header of a .stl, or a comment
    changed.write_bytes(b"x" + data[1:] if part.endswith("stl") else data + b"<!-- new -->")
    assert hand_of(tmp_path, file, THREE).mjcf_path != before


# The file's range of every mcp is [0, 90] degrees, [0, 1.5708] rad.
@pytest.mark.parametrize(
    ("ends", "passed", "named"),
    [
        ([0, 1.571], True, "within the file's"),
        ([0.1, 1.2], True, "narrower for index_mcp"),
        ([-0.2, 1.5], False, r"index_mcp has \[-0.2, 1.5\] rad, the file \[0, 1.571\] rad$"),
        ([0, 80], False, "robot.yaml's look like degrees"),
        ([-1.4, 0], False, "other sense"),
    ],
)
def test_limits_are_compared_with_the_files_own(tmp_path, ends, passed, named):
    file = write_mjcf(tmp_path / "theirs", THREE)

    def alone(values):
        values["joints"]["index_mcp"]["limits"] = ends
        values["joints"]["index_pip"]["follows"] = "thumb_mcp"  # coupling is another question

    finding = findings(hand_of(tmp_path, file, THREE, alone))["limits"]
    assert finding.passed is passed
    assert re.search(named, finding.detail), finding.detail


def test_units_of_the_files_ranges(tmp_path):
    path = tmp_path / "hand.xml"
    path.write_text("""<mujoco><worldbody><body name="palm"><geom size="0.01"/>
      <body name="thumb" pos="0.05 0.02 0"><joint name="thumb" range="0 1.2" axis="0 -1 0"/>
        <geom size="0.01" pos="0.05 0 0"/></body>
      <body name="index" pos="0.05 -0.02 0"><joint name="index" type="slide" range="0 0.03"/>
        <geom size="0.01" pos="0.05 0 0"/></body>
      <body name="middle" pos="0.05 -0.06 0"><joint name="middle" axis="0 -1 0"/>
        <geom size="0.01" pos="0.05 0 0"/></body></body></worldbody></mujoco>""")

    def limits_of(thumb, index):
        joints = {"thumb": [0, thumb], "index": [0, index], "middle": [0, 1.0]}
        tips = {f"{f}_tip": {"link": f, "xyz": [0.06, 0, 0]} for f in joints}
        values = plain_values(joints, {"file": "hand.xml", "tips": tips}, tuple(tips))
        return findings(load_robot(write_robot(tmp_path, values)).hand("right"))["limits"]

    thumb, index = limits_of(1.2, 30).detail.split("; ")
    # 1.2 degrees are 0.02094 rad.
    assert "[0, 1.2] rad" in thumb and "[0, 0.02094] rad" in thumb and "file's look" in thumb
    assert "[0, 30] m" in index and "[0, 0.03] m" in index and "millim" in index
    finding = limits_of(0.02, 0.03)
    assert finding.passed and "none for middle" in finding.detail


def coupling(factor, offset=0.0):
    return lambda values: values["joints"]["index_pip"].update(factor=factor, offset=offset)


def driven_apart(values):
    values["joints"]["index_pip"] = {"limits": [0, 1.7453], "velocity": 4}
    values["commands"]["index_end"] = {"joint": "index_pip", "torque": 1}


# The largest angle is where index_mcp is at its limit, pip's or its own: 1.5708 rad.
@pytest.mark.parametrize(
    ("ties", "change", "passed", "named"),
    [
        ("equality", coupling(FACTOR), True, "3 of the file's own are kept"),
        ("equality", coupling(1.0), False, r"is 0.9 \* index_mcp .*1 \* index_mcp .*0.16"),
        ("equality", coupling(FACTOR, 0.1), False, r"0.9 \* index_mcp \+0.1 .* 0.1 rad"),
        ("equality", coupling(0.0, 0.3), False, "index_pip is 0.9 .* not tied to index_mcp"),
        ("equality", driven_apart, False, "not tied to index_mcp"),
        ("tendon", coupling(1.1), True, "joints stay within their limits$"),
        ("tendon", driven_apart, False, "one motor .* index_mcp and index_pip"),
    ],
)
def test_couplings_are_compared_with_the_files_own(tmp_path, ties, change, passed, named):
    file = write_mjcf(tmp_path / "theirs", THREE, ties)
    finding = findings(hand_of(tmp_path, file, THREE, change))["coupling"]
    assert finding.passed is passed
    assert re.search(named, finding.detail), finding.detail


def test_couplings_of_reversed_joints_and_of_urdfs(tmp_path):
    file = write_urdf(tmp_path, THREE)
    turned = reversed_joints("index_mcp", "index_pip")
    both = findings(hand_of(tmp_path, file, THREE, turned, None))
    assert (both["limits"].passed, both["coupling"].passed) == (True, True)

    def one(values):
        reversed_joints("index_pip")(values)
        values["joints"]["index_pip"]["factor"] = -FACTOR

    assert findings(hand_of(tmp_path, file, THREE, one, None))["coupling"].passed


def test_a_loop_of_links_is_compared(tmp_path):
    """A bar on two cranks of equal length: the second must turn as the first does."""
    path = tmp_path / "hand.xml"
    path.write_text("""<mujoco><worldbody><body name="palm"><geom size="0.01"/>
      <body name="crank" pos="0 0.02 0"><joint name="crank" axis="0 0 1" range="0 60"/>
        <geom size="0.004" pos="0.05 0 0"/>
        <body name="bar" pos="0.05 0 0"><joint name="bar" axis="0 0 1" range="-60 0"/>
          <geom size="0.004"/></body></body>
      <body name="other" pos="0 -0.02 0"><joint name="other" axis="0 0 1" range="0 60"/>
        <geom size="0.004" pos="0.05 0 0"/></body></body></worldbody>
      <equality><connect body1="bar" body2="other" anchor="0 -0.04 0"/></equality></mujoco>""")

    def check(other):
        joints = {"crank": [0, 1], "bar": {"limits": [-1, 0], "follows": "crank", "factor": -1.0},
                  "other": {"limits": [0, 1], "follows": "crank", "factor": other}}  # fmt: skip
        tips = {"thumb_tip": {"link": "other", "xyz": [0.05, 0, 0]},
                "index_tip": {"link": "bar", "xyz": [0, 0, 0]}}  # fmt: skip
        values = plain_values(joints, {"file": "hand.xml", "tips": tips})
        return findings(load_robot(write_robot(tmp_path, values)).hand("right"))["coupling"]

    assert check(1.0).passed
    wrong = check(0.5)
    # At 1 rad the two ends are 0.05 m from their pivots: 2 * 0.05 * sin(0.25) = 24.7 mm apart.
    assert not wrong.passed and re.search("connect .* 0.025 m", wrong.detail)


def test_a_joint_may_stand_still(tmp_path):
    file = write_mjcf(tmp_path / "theirs", THREE, "tendon")
    hand = hand_of(tmp_path, file, THREE, coupling(0.0, 0.3))
    found = findings(hand)
    assert found["coupling"].passed and found["pinocchio"].passed is not False
    assert found["servos"].passed
    still = hand.expand(np.zeros((1, 3)))[0][hand.joint_names.index("index_pip")]
    assert still == pytest.approx(0.3)
    with pytest.raises(SchemaError, match=r"index_pip\.offset is 2"):
        hand_of(tmp_path, file, THREE, coupling(0.0, 2.0))


# Two balls of 10 mm: on links that one cluster of joints parts, on fingers, and on a far link.
SELF = """<mujoco><compiler angle="radian"/><worldbody><body name="palm">
  <geom type="box" size="0.03 0.03 0.01"/>
  <body name="hub" pos="0.04 0 0"><geom size="0.004"/>
    <joint name="swing" axis="0 0 1" range="-1 1"/>
    <body name="base" pos="0.005 0 0"><joint name="roll" axis="1 0 0" range="-1 1"/>
      <geom size="0.006"/>
      <body name="thumb" pos="0.012 0 0"><joint name="thumb" axis="0 -1 0" range="0 3"/>
        <geom type="capsule" fromto="0 0 0 0.06 0 0" size="0.006"/></body></body></body>
  <body name="index" pos="0.06 0.04 0"><joint name="index" axis="0 0 1" range="-1.5 1"/>
    <geom type="capsule" fromto="0.02 0 0 0.07 0 0" size="0.006"/></body>
  </body></worldbody></mujoco>"""


def self_contact(tmp_path, joints, no_contact=()):
    (tmp_path / "hand.xml").write_text(SELF)
    names = {"swing": [-1, 1], "roll": [-1, 1], "thumb": [0, 3], "index": [-1.5, 1]}
    model = {"file": "hand.xml", "frames": {"finger": "index"}, "tips": {
        "thumb_tip": {"link": "thumb", "xyz": [0.06, 0, 0]},
        "index_tip": {"link": "index", "xyz": [0.07, 0, 0]}}}  # fmt: skip
    if no_contact:
        model["no_contact"] = no_contact
    hand = load_robot(write_robot(tmp_path, plain_values(names, model))).hand("right")
    angles = np.array([[joints.get(name, 0.0) for name in names]])
    depth = float(self_penetration(hand, angles)[0])
    pairs = KinematicTree.of(hand).capsules
    return depth, len(pairs.pairs) + len(pairs.box_pairs)


def test_one_joint_or_cluster_parts_neighbours(tmp_path):
    # Bent back over 3 rad the thumb goes through the palm, from which its base's joints part it.
    bent, _ = self_contact(tmp_path, {"thumb": 3.0})
    assert bent == 0.0
    # The index swung by -1.2 rad lies across the thumb, axes in one plane: 6 + 6 mm deep.
    crossed, before = self_contact(tmp_path, {"index": -1.2})
    assert crossed == pytest.approx(0.012, abs=1e-4)
    # Excluded by either name, the pair counts neither in contact nor in collision avoidance.
    for first in ("index", "finger"):
        apart, after = self_contact(tmp_path, {"index": -1.2}, [[first, "thumb"]])
        assert apart == 0.0
        assert after == before - 1
    with pytest.raises(SchemaError, match=r"'thum' for no_contact.*'thumb'"):
        self_contact(tmp_path, {}, [["index", "thum"]])


def test_a_makers_hand_follows_a_human_one(tmp_path):
    file = write_mjcf(tmp_path / "theirs", FOUR)
    robot = load_robot(write_robot(file.parent, robot_values(file, FOUR)))
    trajectory = retarget_motion(motion_of(moving_hands(20, sides=("right",))), robot)
    assert trajectory.active[:, 1].all()
    assert trajectory.limit_violations == trajectory.speed_violations == 0


def test_a_model_given_as_robot_yaml_is_recognized(tmp_path):
    file = write_mjcf(tmp_path / "theirs", THREE)
    with pytest.raises(SchemaError, match=r"hand\.xml: .*acehand robots init"):
        load_robot(file)
