"""A robot from somebody else's MJCF or URDF: other names, other axes, hanging on an arm."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import yaml

from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from helpers.retarget_samples import motion_of, moving_hands
from retarget.check import check_hand
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import MODELS_VARIABLE, load_robot

mujoco = pytest.importorskip("mujoco")

# Their hand: fingers along +x, palm towards +y, thumb at +z; it hangs on an arm with two joints.
# The second joint of the finger turns the other way and off its link's origin.
MJCF = """<mujoco><compiler angle="degree"/><worldbody>
  <body name="arm" pos="0.3 0 1" euler="10 20 30"><joint name="shoulder"/><geom size="0.02"/>
   <body name="flange" pos="0 0 0.2"><joint name="elbow" axis="0 1 0"/>
    <geom type="box" size="0.04 0.01 0.03" pos="0.04 0 0"/>
    <body name="finger" pos="0.09 0 -0.02"><joint name="finger_root" axis="0 0 1" range="0 80"/>
     <geom type="capsule" fromto="0.012 0 0 0.04 0 0" size="0.006"/>
     <body name="finger_end" pos="0.05 0 0">
      <joint name="finger_bend" axis="0 0 -1" pos="0 0.002 0" range="-80 0"/>
      <geom type="capsule" fromto="0.004 0 0 0.035 0 0" size="0.006"/>
      <site name="finger_top" pos="0.04 0 0"/></body></body>
    <body name="opposed" pos="0.03 0 0.05"><joint name="opposed_root" axis="0 0 1" range="0 90"/>
     <geom type="capsule" fromto="0.012 0 0 0.05 0 0" size="0.007"/></body>
   </body></body></worldbody>
  <actuator><motor joint="finger_root"/><position name="turn" joint="shoulder"/></actuator>
  <equality><joint joint1="finger_bend" joint2="finger_root" polycoef="-0.1 -1 0 0 0"/></equality>
  <keyframe><key qpos="0 0 0 0 0"/></keyframe></mujoco>"""
URDF = """<robot name="theirs">
  <link name="flange"/>
  <link name="opposed"><visual><geometry><mesh filename="package://theirs/thumb.dae"/></geometry>
   </visual><collision><geometry><sphere radius="0.004"/></geometry></collision></link>
  <joint name="opposed_root" type="revolute"><parent link="flange"/><child link="opposed"/>
   <origin xyz="0.03 0 0.05"/><axis xyz="0 0 1"/>
   <limit lower="0" upper="1.57" effort="1" velocity="1"/></joint>
  <link name="finger"/>
  <joint name="finger_root" type="revolute"><parent link="flange"/><child link="finger"/>
   <origin xyz="0.09 0 -0.02"/><axis xyz="0 0 1"/>
   <limit lower="0" upper="1.4" effort="1" velocity="1"/></joint>
  <link name="finger_end"><visual><geometry><mesh filename="package://theirs/wedge.obj"/></geometry>
   </visual></link>
  <joint name="finger_bend" type="revolute"><parent link="finger"/><child link="finger_end"/>
   <origin xyz="0.05 0 0"/><axis xyz="0 0 -1"/>
   <limit lower="-1.4" upper="0" effort="1" velocity="1"/></joint>
  <link name="finger_top"/>
  <joint name="end" type="fixed"><parent link="finger_end"/><child link="finger_top"/>
   <origin xyz="0.04 0 0"/></joint></robot>"""
WEDGE = "v 0 0 0\nv 0.03 0 0\nv 0 0.01 0\nv 0 0 0.01\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
ROBOT = {
    "schema": "acehand-robot/1", "name": "theirs", "title": "Their hand", "license": "mine",
    "files": {"mjcf": "{side}.xml", "urdf": "{side}.urdf"},
    "joints": {
        "thumb": {"limits": [0, 1.5], "velocity": 3},
        "knuckle": {"limits": [0, 1.2], "velocity": 3},
        "bend": {"limits": [0.1, 1.3], "follows": "knuckle", "factor": 1.0, "offset": 0.1},
    },
    "commands": {"thumb": {"joint": "thumb", "torque": 1}, "finger": {"joint": "knuckle"}},
    "register_scale": 100, "dropped_fingers": ["middle", "ring", "pinky"],
    "keypoints": {"thumb_tip": "thumb_tip", "index_mcp": "knuckle", "index_pip": "bend",
                  "index_tip": "index_tip"},
    "sides": {"right": {"model": {
        "file": "theirs/hand.xml", "license": "all rights reserved", "root": "flange",
        "rpy": [-np.pi / 2, -np.pi / 2, 0.0],
        "joints": {"thumb": "opposed_root", "knuckle": "finger_root", "bend": "finger_bend"},
        "reversed": ["bend"],
        "frames": {"knuckle": "finger", "bend": "finger_end", "index_tip": "finger_top"},
        "tips": {"thumb_tip": {"link": "opposed", "xyz": [0.05, 0, 0]}},
    }}},
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(MODELS_VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path):
    """A user's folder with both files, and the robot.yaml elsewhere."""
    package = tmp_path / "models" / "theirs"
    package.mkdir(parents=True)
    (package / "hand.xml").write_text(MJCF)
    (package / "hand.urdf").write_text(URDF)
    (package / "wedge.obj").write_text(WEDGE)
    return tmp_path / "models"


def robot_file(tmp_path, file="hand.xml", change=None):
    values = copy.deepcopy(ROBOT)
    entry = values["sides"]["right"]["model"]
    entry["file"] = f"theirs/{file}"
    if change is not None:
        change(entry)
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def their_points(path, joints):
    """Return their tips in our base frame, computed with their model alone."""
    if path.suffix == ".urdf":
        keep = '<mujoco><compiler fusestatic="false" discardvisual="true"/></mujoco></robot>'
        root = ET.fromstring(path.read_text().replace("</robot>", keep))
        for link in root.iter("link"):
            for visual in link.findall("visual"):
                link.remove(visual)
        model = mujoco.MjModel.from_xml_string(
            ET.tostring(root, encoding="unicode").replace(
                "<compiler ", '<compiler boundmass="0.01" boundinertia="0.0001" '
            )
        )
    else:
        model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    sites = path.suffix == ".xml"
    out = []
    for thumb, knuckle, bend in joints:
        data.joint("opposed_root").qpos, data.joint("finger_root").qpos = thumb, knuckle
        data.joint("finger_bend").qpos = -bend
        mujoco.mj_kinematics(model, data)
        flange = data.body("flange") if sites else data.body("world")
        opposed = data.body("opposed")
        thumb_tip = opposed.xpos + opposed.xmat.reshape(3, 3) @ [0.05, 0, 0]
        top = (data.site if sites else data.body)("finger_top").xpos
        local = (np.stack([thumb_tip, top]) - flange.xpos) @ flange.xmat.reshape(3, 3)
        out.append(local[:, [1, 2, 0]])  # their y, z, x are our x, y, z
    return np.array(out)


@pytest.mark.parametrize("file", ["hand.xml", "hand.urdf"])
def test_their_file_as_our_hand(tmp_path, folder, file):
    change = (lambda entry: entry.pop("root")) if file.endswith("urdf") else None
    robot = load_robot(robot_file(tmp_path, file, change), models=folder)
    hand = robot.hand("right")
    assert hand.user_model == folder / "theirs" / file
    assert "all rights reserved" in robot.license
    assert not [f for f in check_hand(hand) if f.passed is False]
    joints = hand.expand(np.random.default_rng(0).uniform(0, 1.2, (8, 2)))
    ours = KinematicTree.of(hand).points(joints, ["thumb_tip", "index_tip"])
    assert np.abs(ours - their_points(hand.user_model, joints)).max() < 1e-6
    model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    assert (model.nu, model.neq, model.nkey, model.njnt) == (2, 1, 0, 3)
    if file.endswith("urdf"):
        assert model.nmesh == 1  # the .dae cannot be read by MuJoCo
    assert sorted(p.name for p in (folder / "theirs").iterdir()) == [
        "hand.urdf", "hand.xml", "wedge.obj"]  # fmt: skip


def test_a_user_hand_follows_a_human_one(tmp_path, folder):
    robot = load_robot(robot_file(tmp_path), models=folder)
    trajectory = retarget_motion(motion_of(moving_hands(20, sides=("right",))), robot)
    assert trajectory.active[:, 1].all()
    assert trajectory.limit_violations == trajectory.speed_violations == 0


@pytest.mark.parametrize("place", ["folder", "package", "file", "variable", "beside"])
def test_where_their_file_is_found(tmp_path, folder, monkeypatch, place):
    models = {"folder": folder, "package": folder / "theirs",
              "file": folder / "theirs" / "hand.xml"}.get(place)  # fmt: skip
    if place == "variable":
        monkeypatch.setenv(MODELS_VARIABLE, str(folder))
    path = robot_file(folder if place == "beside" else tmp_path)
    assert load_robot(path, models=models).hand("right").user_model is not None


def test_a_missing_file_says_whose_it_is_and_where_to_put_it(tmp_path):
    with pytest.raises(InputError, match=r"all rights reserved.*--robot-model.*ROBOT_MODELS"):
        load_robot(robot_file(tmp_path))
    with pytest.raises(InputError, match=r"/nope: .*--robot-model"):
        load_robot("leap", models=tmp_path / "nope")
    with pytest.raises(InputError, match="robot 'inspire' takes no user model"):
        load_robot("inspire", models=tmp_path)
    valid = r"has no model file of robot 'allegro'; valid: \S+\.\w+ or \S+\.\w+"
    with pytest.raises(InputError, match=valid):
        load_robot("allegro", models=tmp_path)


WRONG = {
    "joint": (lambda e: e["joints"].update(bend="finger_bent"),
              "no joint 'finger_bent' for bend.*Did you mean 'finger_bend'"),
    "link": (lambda e: e["frames"].update(bend="finger_ent"),
             "no link 'finger_ent' for bend.*Did you mean 'finger_end'"),
    "root": (lambda e: e.update(root="flang"), "no link 'flang'.*Did you mean 'flange'"),
    "joints left over": (lambda e: e.pop("root"), "shoulder, elbow"),
    "tip": (lambda e: e["tips"]["thumb_tip"].update(link="oposed"), "Did you mean 'opposed'"),
    "frame not named": (lambda e: e["frames"].pop("index_tip"), "no link 'index_tip'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_name_is_named_with_the_nearest(tmp_path, folder, case):
    change, message = WRONG[case]
    with pytest.raises(SchemaError, match=message):
        load_robot(robot_file(tmp_path, change=change), models=folder)


def test_a_broken_file_is_named(tmp_path, folder):
    (folder / "theirs" / "hand.xml").write_text("<mujoco>")
    with pytest.raises(InputError, match=r"hand\.xml: MuJoCo cannot read"):
        load_robot(robot_file(tmp_path), models=folder)


def test_a_changed_file_is_read_again(tmp_path, folder):
    path = robot_file(tmp_path)
    before = load_robot(path, models=folder).hand("right")
    model = Path(folder / "theirs" / "hand.xml")
    model.write_text(MJCF.replace('pos="0.09 0 -0.02"', 'pos="0.10 0 -0.02"'))
    after = load_robot(path, models=folder).hand("right")
    assert after.mjcf_path != before.mjcf_path
    zero = np.zeros((1, 3))
    moved = KinematicTree.of(after).points(zero, ["index_tip"]) - KinematicTree.of(before).points(
        zero, ["index_tip"]
    )
    assert moved[0, 0] == pytest.approx([0, 0, 0.01])


def test_folders_of_assets_includes_and_excludes_are_kept(tmp_path, folder):
    """Meshes below meshdir, default classes of an included file, contact excluded by the maker."""
    package = folder / "theirs"
    (package / "assets").mkdir()
    (package / "wedge.obj").rename(package / "assets" / "wedge.obj")
    (package / "classes.xml").write_text(
        '<mujoco><default><default class="wedge"><geom type="mesh" mesh="wedge"/></default>'
        "</default></mujoco>"
    )
    text = MJCF.replace('angle="degree"', 'angle="degree" meshdir="assets"')
    text = text.replace(
        "<worldbody>",
        '<include file="classes.xml"/><asset><mesh file="wedge.obj"/></asset><worldbody>',
    ).replace('<site name="finger_top"', '<geom class="wedge"/><site name="finger_top"')
    text = text.replace(
        "</worldbody>",
        '</worldbody><contact><exclude body1="opposed" body2="finger_end"/></contact>',
    )
    (package / "hand.xml").write_text(text)
    hand = load_robot(robot_file(tmp_path), models=folder).hand("right")

    model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    assert (model.nmesh, model.mesh_vertnum[0]) == (1, 4)
    pair = sorted(model.body(n).id for n in ("right_opposed", "right_bend"))
    assert (pair[0] << 16) + pair[1] in model.exclude_signature


@pytest.mark.parametrize("pitch", [0.3, -1.2, np.pi / 2, -np.pi / 2])
def test_roll_pitch_yaw_round_trip(pitch):
    rpy = np.array([[0.4, pitch, -0.7], [-2.5, pitch, 3.0]])
    turn = rotations.from_rpy(rpy)
    assert np.abs(rotations.from_rpy(rotations.to_rpy(turn)) - turn).max() < 1e-8
