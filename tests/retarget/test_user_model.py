"""A robot from somebody else's MJCF or URDF: other names, other axes, hanging on an arm."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from helpers.makers_files import write_robot
from retarget.check import check_hand
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
    """A user's folder with the model file; the robot.yaml is elsewhere."""
    (tmp_path / "models" / "theirs").mkdir(parents=True)
    (tmp_path / "models" / "theirs" / "hand.xml").write_text(MJCF)
    return tmp_path / "models"


def robot_file(folder, change=None):
    values = copy.deepcopy(ROBOT)
    if change is not None:
        change(values["sides"]["right"]["model"])
    return write_robot(folder, values)


def their_points(path, joints):
    """Return their tips in our base frame, computed with their model alone."""
    model = mujoco.MjModel.from_xml_path(str(path))
    data, out = mujoco.MjData(model), []
    for thumb, knuckle, bend in joints:
        data.joint("opposed_root").qpos, data.joint("finger_root").qpos = thumb, knuckle
        data.joint("finger_bend").qpos = -bend
        mujoco.mj_kinematics(model, data)
        flange, opposed = data.body("flange"), data.body("opposed")
        thumb_tip = opposed.xpos + opposed.xmat.reshape(3, 3) @ [0.05, 0, 0]
        tips = np.stack([thumb_tip, data.site("finger_top").xpos])
        local = (tips - flange.xpos) @ flange.xmat.reshape(3, 3)
        out.append(local[:, [1, 2, 0]])  # their y, z, x are our x, y, z
    return np.array(out)


def test_their_file_as_our_hand(tmp_path, folder):
    robot = load_robot(robot_file(tmp_path), models=folder)
    hand = robot.hand("right")
    assert hand.user_model == folder / "theirs" / "hand.xml"
    assert "all rights reserved" in robot.license
    assert not [f for f in check_hand(hand) if f.passed is False]
    joints = hand.expand(np.random.default_rng(0).uniform(0, 1.2, (8, 2)))
    ours = KinematicTree.of(hand).points(joints, ["thumb_tip", "index_tip"])
    assert np.abs(ours - their_points(hand.user_model, joints)).max() < 1e-6
    model = mujoco.MjModel.from_xml_path(str(hand.mjcf_path))
    assert (model.nu, model.neq, model.nkey, model.njnt) == (2, 1, 0, 3)
    assert [p.name for p in (folder / "theirs").iterdir()] == ["hand.xml"]


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
    for name, models, named in (
        ("leap", tmp_path / "nope", r"/nope: .*--robot-model"),
        ("inspire", tmp_path, "'inspire' takes no user model"),
        ("allegro", tmp_path, r"'allegro'; valid: \S+\.\w+ or \S+\.\w+"),
    ):
        with pytest.raises(InputError, match=named):
            load_robot(name, models=models)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda e: e["joints"].update(bend="finger_bent"), "'finger_bent' for bend.*'finger_bend'"),
        (lambda e: e["frames"].update(bend="finger_ent"), "'finger_ent' for bend.*'finger_end'"),
        (lambda e: e.update(root="flang"), "'flang'.*'flange'"),
        (lambda e: e.pop("root"), "shoulder, elbow"),
        (lambda e: e["tips"]["thumb_tip"].update(link="oposed"), "'opposed'"),
        (lambda e: e["frames"].pop("index_tip"), "'index_tip'"),
    ],
)
def test_a_wrong_name_is_named_with_the_nearest(tmp_path, folder, change, named):
    with pytest.raises(SchemaError, match=named):
        load_robot(robot_file(tmp_path, change), models=folder)


def test_a_broken_file_is_named(tmp_path, folder):
    (folder / "theirs" / "hand.xml").write_text("<mujoco>")
    with pytest.raises(InputError, match=r"hand\.xml"):
        load_robot(robot_file(tmp_path), models=folder)


@pytest.mark.parametrize("pitch", [0.3, -1.2, np.pi / 2, -np.pi / 2])
def test_roll_pitch_yaw_round_trip(pitch):
    rpy = np.array([[0.4, pitch, -0.7], [-2.5, pitch, 3.0]])
    turn = rotations.from_rpy(rpy)
    assert np.abs(rotations.from_rpy(rotations.to_rpy(turn)) - turn).max() < 1e-8
