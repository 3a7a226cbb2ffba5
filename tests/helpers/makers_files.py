"""Hands as makers publish them: an MJCF in parts with meshes in a folder, or a URDF in a package.

Fingers along +x, palm towards +z, thumb at -y. Fingers are the same part, attached several times;
it is in degrees and the whole in radians.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import yaml

from retarget.robots.robot import find_robot_file

#: Carries a maker's axes to ours: x is their z, y their -y, z their x.
AXES = np.array([[0.0, 0.0, 1.0], [0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
ROOT_XYZ = (0.0, 0.0, 0.02)
FINGERS = ("thumb", "index", "middle", "ring", "pinky")
#: Where each finger hangs on the palm; the thumb leans out of it.
PLACES = {
    "thumb": (0.02, -0.045, 0.015), "index": (0.08, -0.03, 0), "middle": (0.08, -0.01, 0),
    "ring": (0.08, 0.01, 0), "pinky": (0.08, 0.03, 0),
}  # fmt: skip
FACTOR = 0.9  # pip per mcp

PART = """<mujoco model="finger">
  <compiler angle="degree" meshdir="parts"/>
  <asset><mesh name="bone" file="bone.stl"/></asset>
  <worldbody><body name="proximal"><joint name="mcp" axis="0 -1 0" range="0 90"/>
    <geom type="mesh" mesh="bone"/>
    <body name="distal" pos="0.04 0 0"><joint name="pip" axis="0 -1 0"
        pos="0 0 0.002" range="0 100"/>
      <geom type="capsule" fromto="0.006 0 0 0.02 0 0" size="0.005"/>
      <site name="tip" pos="0.025 0 0"/></body></body></worldbody>
</mujoco>"""
CLASSES = """<mujoco><default><default class="shell">
  <geom type="mesh" mesh="palm" contype="0" conaffinity="0"/></default></default></mujoco>"""


def write_mjcf(folder: Path, fingers: tuple[str, ...], coupling: str = "equality") -> Path:
    """Write hand.xml with its parts; ``coupling``: by "equality", or by a "tendon" with a motor."""
    (folder / "assets").mkdir(parents=True)
    (folder / "finger" / "parts").mkdir(parents=True)
    (folder / "assets" / "palm.obj").write_text(box_obj((0.0, -0.04, -0.01), (0.08, 0.04, 0.01)))
    (folder / "finger" / "parts" / "bone.stl").write_bytes(
        box_stl((0.004, -0.005, -0.005), (0.036, 0.005, 0.005))
    )
    (folder / "finger" / "finger.xml").write_text(PART)
    (folder / "classes.xml").write_text(CLASSES)

    frames = "".join(
        f'<frame pos="{" ".join(map(str, PLACES[f]))}"{_lean(f)}>'
        f'<attach model="finger" body="proximal" prefix="{f}/"/></frame>'
        for f in fingers
    )
    ties, tendons, motors = "", "", ""
    for f in fingers:
        if coupling == "equality":
            ties += f'<joint joint1="{f}/pip" joint2="{f}/mcp" polycoef="0 {FACTOR} 0 0 0"/>'
            motors += f'<position name="{f}" joint="{f}/mcp" kp="1"/>'
        else:
            tendons += (f'<fixed name="{f}"><joint joint="{f}/mcp" coef="1"/>'
                        f'<joint joint="{f}/pip" coef="1"/></fixed>')  # fmt: skip
            motors += f'<position name="{f}" tendon="{f}" kp="1"/>'
    angles = " ".join(["0 0"] * len(fingers))
    (folder / "hand.xml").write_text(f"""<mujoco model="makers">
  <compiler angle="radian" meshdir="assets" autolimits="true"/>
  <option cone="elliptic" impratio="10"/>
  <include file="classes.xml"/>
  <asset><mesh file="palm.obj"/><model name="finger" file="finger/finger.xml"/></asset>
  <worldbody><light name="spot" mode="targetbody" target="mount"/>
    <body name="mount" pos="0.3 0 1" euler="0.1 0.2 0.3">
     <body name="palm"><geom class="shell"/>
      <geom type="box" size="0.04 0.04 0.01" pos="0.04 0 0"/>{frames}</body></body></worldbody>
  <contact><exclude body1="palm" body2="{fingers[-1]}/distal"/></contact>
  <tendon>{tendons}</tendon><equality>{ties}</equality><actuator>{motors}</actuator>
  <sensor><jointpos joint="{fingers[0]}/mcp"/></sensor>
  <keyframe><key qpos="{angles}"/></keyframe></mujoco>""")
    return folder / "hand.xml"


def write_urdf(folder: Path, fingers: tuple[str, ...]) -> Path:
    """Write a package ``makers`` with urdf/hand.urdf, the same hand with mimic joints."""
    (folder / "makers" / "urdf").mkdir(parents=True)
    (folder / "makers" / "meshes").mkdir()
    (folder / "makers" / "meshes" / "bone.stl").write_bytes(
        box_stl((0.004, -0.005, -0.005), (0.036, 0.005, 0.005))
    )
    (folder / "makers" / "meshes" / "bone.dae").write_text("<COLLADA/>")
    bone = '<geometry><mesh filename="package://makers/meshes/bone.{}"/></geometry>'
    text = '<robot name="makers"><link name="palm"/>'
    for f in fingers:
        lean = "0 -0.6 0" if f == "thumb" else "0 0 0"
        text += (
            f'<link name="{f}/proximal"><visual>{bone.format("dae")}</visual>'
            f'<collision>{bone.format("stl")}</collision></link><link name="{f}/distal"/>'
            f'<link name="{f}/tip"/>'
            f'<joint name="{f}/mcp" type="revolute"><parent link="palm"/>'
            f'<child link="{f}/proximal"/><axis xyz="0 -1 0"/>'
            f'<origin xyz="{" ".join(map(str, PLACES[f]))}" rpy="{lean}"/>'
            '<limit lower="0" upper="1.5708" effort="0" velocity="0"/></joint>'
            f'<joint name="{f}/pip" type="revolute"><parent link="{f}/proximal"/>'
            f'<child link="{f}/distal"/><axis xyz="0 -1 0"/><origin xyz="0.04 0 0"/>'
            '<limit lower="0" upper="1.7453" effort="0" velocity="0"/>'
            f'<mimic joint="{f}/mcp" multiplier="{FACTOR}"/></joint>'
            f'<joint name="{f}/end" type="fixed"><parent link="{f}/distal"/>'
            f'<child link="{f}/tip"/><origin xyz="0.025 0 0"/></joint>'
        )
    file = folder / "makers" / "urdf" / "hand.urdf"
    file.write_text(text + "</robot>")
    return file


def robot_values(file: Path, fingers: tuple[str, ...], root: str | None = "palm") -> dict:
    """Return a robot.yaml for such a hand: limits in radians, pip follows mcp."""
    joints, frames = {}, {}
    for f in fingers:
        joints[f"{f}_mcp"] = {"limits": [0, 1.5708], "velocity": 4, "acceleration": 60}
        joints[f"{f}_pip"] = {"limits": [0, 1.7453], "follows": f"{f}_mcp", "factor": FACTOR}
        frames |= {f"{f}_1": f"{f}/proximal", f"{f}_2": f"{f}/distal", f"{f}_tip": f"{f}/tip"}
    knuckles = {f: ("mcp", "ip") if f == "thumb" else ("mcp", "pip") for f in fingers}
    model = {
        "file": file.name, "license": "the maker's", "xyz": list(ROOT_XYZ),
        "rpy": [np.pi, -np.pi / 2, 0.0],
        "joints": {f"{f}_{j}": f"{f}/{j}" for f in fingers for j in ("mcp", "pip")},
        "frames": frames,
    }  # fmt: skip
    return {
        "schema": "acehand-robot/1", "name": "makers", "title": "Makers' hand", "license": "mine",
        "joints": joints,
        "commands": {f: {"joint": f"{f}_mcp", "torque": 1} for f in fingers},
        "register_scale": 1,
        "dropped_fingers": [f for f in FINGERS if f not in fingers],
        "keypoints": {key: frame for f in fingers for key, frame in (
            (f"{f}_{knuckles[f][0]}", f"{f}_1"), (f"{f}_{knuckles[f][1]}", f"{f}_2"),
            (f"{f}_tip", f"{f}_tip"))},
        "sides": {"right": {"model": model | ({"root": root} if root else {})}},
    }  # fmt: skip


def plain_values(joints: dict, model: dict, keypoints: tuple = ("thumb_tip", "index_tip")) -> dict:
    """Return a robot.yaml of a right hand; joints are entries, or limits alone."""
    entries = {n: j if isinstance(j, dict) else {"limits": j, "velocity": 4}
               for n, j in joints.items()}  # fmt: skip
    return {
        "schema": "acehand-robot/1", "name": "plain", "title": "plain", "license": "mine",
        "joints": entries, "register_scale": 1, "keypoints": {k: k for k in keypoints},
        "commands": {n: {"joint": n} for n, j in entries.items() if "follows" not in j},
        "sides": {"right": {"model": {"license": "mine"} | model} if model else {}},
    }  # fmt: skip


def write_robot(folder: Path, values: dict) -> Path:
    """Write a robot.yaml next to the model."""
    path = folder / "robot.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def edited_copy(folder: Path, name: str, change=lambda values: None) -> Path:
    """Copy a packaged robot; return its robot.yaml after ``change`` to the values."""
    copy = Path(shutil.copytree(find_robot_file(name).parent, folder / name))
    values = yaml.safe_load((copy / "robot.yaml").read_text())
    change(values)
    return write_robot(copy, values)


def box_obj(low: tuple[float, ...], high: tuple[float, ...]) -> str:
    """Return a box as an .obj."""
    corners, faces = _box(low, high)
    lines = [f"v {x} {y} {z}" for x, y, z in corners]
    return "\n".join(lines + ["f " + " ".join(str(i + 1) for i in face) for face in faces]) + "\n"


def box_stl(low: tuple[float, ...], high: tuple[float, ...]) -> bytes:
    """Return a box as a binary .stl."""
    corners, faces = _box(low, high)
    text = bytes(80) + struct.pack("<I", len(faces))
    for face in faces:
        text += struct.pack("<12f", 0, 0, 0, *np.ravel([corners[i] for i in face])) + bytes(2)
    return text


def _box(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[list, list]:
    corners = [[(low, high)[(i >> k) & 1][k] for k in range(3)] for i in range(8)]
    quads = [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)]
    return corners, [t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]


def _lean(finger: str) -> str:
    return ' euler="0 -0.6 0"' if finger == "thumb" else ""
