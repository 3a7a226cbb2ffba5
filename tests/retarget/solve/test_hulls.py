"""Meshes, boxes, cylinders and ellipsoids stay apart: by hand arithmetic, MuJoCo, differences."""

import mujoco
import numpy as np
import pytest

from helpers.makers_files import box_stl, plain_values, write_robot
from helpers.retarget_samples import FPS, robot_targets, solved
from retarget.replay.simulate import play, self_penetration
from retarget.robots.collision_shapes import colliding_pairs
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve.collision import CONTACT_M, NEAR_M, HullPairs
from retarget.solve.costs import Weights

ASSETS = '<asset><mesh name="block" file="block.stl"/></asset>'
#: Shapes that reach 10 mm to either side of their origin along x.
SHAPES = {
    "sphere": 'type="sphere" size="0.01"',
    "capsule": 'type="capsule" size="0.01 0.02"',
    "cylinder": 'type="cylinder" size="0.01 0.02"',
    "ellipsoid": 'type="ellipsoid" size="0.01 0.02 0.03"',
    "box": 'type="box" size="0.01 0.02 0.03"',
    "mesh": 'type="mesh" mesh="block"',
}


def write_block(folder, half=(0.01, 0.02, 0.02)):
    low = np.array([-half[0], 0.0, 0.0])
    (folder / "block.stl").write_bytes(box_stl(tuple(low), (half[0], 2 * half[1], 2 * half[2])))


def hand_of(folder, mjcf, joints, adopted=False):
    (folder / "right.xml").write_text(mjcf)
    frames = {f"{finger}_tip": f"right_{finger}_tip" for finger in ("thumb", "index")}
    model = {"file": "right.xml", "root": "right_palm", "frames": frames} if adopted else {}
    rates = {"velocity": 6, "acceleration": 100}
    values = plain_values({n: {"limits": ends, **rates} for n, ends in joints.items()}, model)
    return load_robot(write_robot(folder, values)).hand("right")


def on_slides(first, second, wall=False):
    """Return a model of two shapes on slides along x, 50 mm apart at 0, the first fixed if wall."""
    thumb = f'<geom {SHAPES[first]}/><site name="right_thumb_tip"/>'
    carried = '<body name="right_thumb"><joint name="right_a" type="slide" axis="1 0 0"/>'
    rider = '<geom size="0.001" pos="0 0.3 0"/><site name="right_thumb_tip"/></body>'
    return f"""<mujoco>{ASSETS}<worldbody>
      {f"<geom {SHAPES[first]}/>{carried}{rider}" if wall else f"{carried}{thumb}</body>"}
      <body name="right_index" pos="0.05 0 0"><joint name="right_b" type="slide" axis="1 0 0"/>
        <geom {SHAPES[second]}/><site name="right_index_tip"/></body></worldbody></mujoco>"""


ENDS = {"a": [-0.03, 0.03], "b": [-0.04, 0.03]}


@pytest.mark.parametrize("first, second", [
    ("mesh", "mesh"), ("mesh", "box"), ("box", "box"), ("cylinder", "sphere"), ("mesh", "capsule"),
    ("capsule", "ellipsoid"), ("box", "ellipsoid"), ("sphere", "mesh"),
])  # fmt: skip
def test_distance_by_hand(tmp_path, first, second):
    """Two shapes face each other along x: 50 mm between their middles, 10 mm of each in between."""
    write_block(tmp_path)
    hand = hand_of(tmp_path, on_slides(first, second), ENDS)
    tree = KinematicTree.of(hand)
    pairs = HullPairs(hand, tree)
    assert len(pairs) == 1 and not len(tree.capsules.pairs) + len(tree.capsules.box_pairs)
    # 4 mm apart, 3 mm inside each other, and too far to be looked at.
    commands = np.array([[0.016, -0.01], [0.013, -0.02], [0.0, 0.0]])
    posture = tree.posture(commands)
    close = pairs.close(posture, NEAR_M)
    assert close.frames.tolist() == [0, 1]
    assert close.distance == pytest.approx([0.004, -0.003], abs=2e-6)
    # The thumb's shape comes first; the way from the index to it is -x, also inside.
    assert close.normal == pytest.approx(np.tile([-1.0, 0, 0], (2, 1)), abs=2e-3)
    assert close.points[0, :, 0] == pytest.approx([0.026, 0.03], abs=2e-6)
    gaps = pairs.gaps(posture, close, 7.0)
    assert gaps.room == pytest.approx([0.004 + CONTACT_M, -0.003 + CONTACT_M], abs=2e-6)
    assert gaps.by_command == pytest.approx(np.tile([-1.0, 1.0], (2, 1)), abs=2e-3)
    assert (gaps.weight == 7).all()


@pytest.mark.parametrize("first, second", [("sphere", "capsule"), ("mesh", "box")])
def test_what_is_fixed_to_the_world(tmp_path, first, second):
    """A shape on no link stays where it is; a pair of capsules with one is MuJoCo's affair too."""
    write_block(tmp_path)
    hand = hand_of(tmp_path, on_slides(first, second, wall=True), ENDS)
    tree = KinematicTree.of(hand)
    pairs = HullPairs(hand, tree)
    posture = tree.posture(np.array([[0.02, -0.027]]))
    close = pairs.close(posture, NEAR_M)
    assert close.distance == pytest.approx([0.003], abs=2e-6)
    assert pairs.gaps(posture, close, 1.0).by_command == pytest.approx(np.array([[0.0, 1.0]]))


def test_pairs_are_those_that_mujoco_collides():
    """All shapes in one place: whatever may touch does."""
    model = mujoco.MjModel.from_xml_string("""<mujoco><worldbody>
      <geom name="floor" type="box" size="1 1 1"/>
      <body name="a"><geom name="a" type="box" size="1 1 1"/>
        <body name="welded"><geom name="welded" size="1"/></body>
        <body name="b"><joint/><geom name="b" size="1"/><geom name="b2" type="cylinder" size="1 1"/>
          <body name="c"><joint/><geom name="c" size="1"/>
            <body name="d"><joint/><geom name="d" type="capsule" size="1 1"/></body></body></body>
        <body name="e"><joint/><geom name="e" size="1" contype="2" conaffinity="4"/></body>
        <body name="f"><joint/><geom name="f" size="1" contype="4" conaffinity="0"/>
          <geom name="seen" size="1" contype="0" conaffinity="0"/></body>
        <body name="g"><joint/><geom name="g" size="1"/></body></body>
      <body name="free"><joint/><geom name="free" size="1"/></body></worldbody>
      <contact><exclude body1="g" body2="b"/><exclude body1="d" body2="free"/>
        <pair geom1="e" geom2="c"/><pair geom1="g" geom2="b2"/></contact></mujoco>""")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    touching = {tuple(sorted(contact.geom.tolist())) for contact in data.contact}
    assert {tuple(pair) for pair in colliding_pairs(model).tolist()} == touching
    assert len(touching) > 15


# Two fingers on spreading knuckles cross over each other; each is a mesh and a link with more.
def crossing(fingertip):
    links = "".join(
        f"""<body name="right_{name}_1" pos="0 {y} 0">
          <joint name="right_{name}_s" axis="1 0 0"/>
          <geom type="mesh" mesh="block" pos="0 -0.006 0.01"/>
          <body name="right_{name}_2" pos="0 0 0.04"><joint name="right_{name}_b" axis="0 1 0"/>
            <geom {fingertip} pos="0 0 0.016" euler="{turn} 0.1 0.3"/>
            <site name="right_{name}_tip" pos="0 0 0.03"/></body></body>"""
        for name, y, turn in (("thumb", 0.02, 3.3), ("index", -0.02, 0.2))
    )
    servos = "".join(f'<position name="right_{j}" joint="right_{j}"/>' for j in HINGES)
    return f"""<mujoco><compiler angle="radian"/>{ASSETS}
      <asset><mesh name="pyramid" vertex="{PYRAMID}"/></asset><worldbody><body name="right_palm">
      <geom type="box" size="0.02 0.04 0.02" pos="0 0 -0.04"/>{links}</body></worldbody>
      <actuator>{servos}</actuator></mujoco>"""


HINGES = {"thumb_s": [-0.4, 1.2], "index_s": [-1.2, 0.4], "thumb_b": [-0.3, 1.2],
          "index_b": [-0.3, 1.2]}  # fmt: skip
#: A pyramid: its mass is nearer to the base than the middle of a box around it is.
PYRAMID = "-.006 -.009 -.014  .006 -.009 -.014  .006 .009 -.014  -.006 .009 -.014  0 0 .02"
FINGERTIPS = {
    "mesh": 'type="mesh" mesh="pyramid"',
    "ellipsoid": 'type="ellipsoid" size="0.006 0.008 0.016"',
    "cylinder": 'type="cylinder" size="0.006 0.013"',
}


def crossing_hand(tmp_path, fingertip, adopted=False):
    write_block(tmp_path, (0.006, 0.006, 0.013))
    return hand_of(tmp_path, crossing(FINGERTIPS[fingertip]), HINGES, adopted)


def random_commands(hand, count):
    share = np.random.default_rng(3).random((count, len(hand.rest)))
    return hand.command_lower + share * (hand.command_upper - hand.command_lower)


@pytest.mark.parametrize("fingertip", FINGERTIPS)
def test_depth_is_the_penetration_that_mujoco_finds(tmp_path, fingertip):
    hand = crossing_hand(tmp_path, fingertip)
    tree = KinematicTree.of(hand)
    pairs = HullPairs(hand, tree)
    commands = random_commands(hand, 800)
    close = pairs.close(tree.posture(commands), 0.0)
    depth = np.zeros(len(commands))
    np.maximum.at(depth, close.frames, -close.distance)
    theirs = self_penetration(hand, commands)
    assert (theirs > 1e-3).sum() > 60
    # MuJoCo's search for the depth ends at another face once in a while.
    assert (np.abs(depth - theirs) > 3e-4).sum() <= 3


@pytest.mark.parametrize("fingertip", FINGERTIPS)
def test_gradients(tmp_path, fingertip):
    hand = crossing_hand(tmp_path, fingertip)
    tree = KinematicTree.of(hand)
    pairs = HullPairs(hand, tree)
    commands = random_commands(hand, 300)
    close = pairs.close(tree.posture(commands), NEAR_M)
    gaps = pairs.gaps(tree.posture(commands), close, 1.0)
    assert len(gaps.room) > 100 and (gaps.room < 0).sum() > 30

    def rooms(step):
        at = tree.posture(commands[gaps.frames] + step)
        found = pairs.close(at, 2 * NEAR_M)
        table = np.full((len(gaps.frames), len(pairs)), np.nan)
        table[found.frames, found.pairs] = found.distance + CONTACT_M
        return table[np.arange(len(table)), gaps.pairs]

    # Inside a round shape MuJoCo takes a polytope in its place.
    tolerance = 1e-4 if fingertip == "mesh" else 4e-3
    size, smooth = 1e-4, np.ones(len(gaps.room), bool)
    for column, move in enumerate(size * np.eye(len(hand.rest))):
        ahead, behind = (rooms(sign * move) - gaps.room for sign in (1, -1))
        smooth &= np.abs(ahead + behind) < 3e-7  # not where another corner gets nearest
        numeric = (ahead - behind) / (2 * size)
        assert gaps.by_command[smooth, column] == pytest.approx(numeric[smooth], abs=tolerance)
    assert smooth.mean() > 0.9


@pytest.mark.parametrize("fingertip", FINGERTIPS)
def test_fingers_that_would_cross_are_kept_apart(tmp_path, monkeypatch, fingertip):
    """Both fingertips on the other's side at the same time, on a maker's hand that is replayed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hand = crossing_hand(tmp_path, fingertip, adopted=True)
    assert hand.user_model is not None
    tree = KinematicTree.of(hand)
    swing = 0.5 - 0.5 * np.cos(np.arange(60) / 60 * 2 * np.pi)
    commands = swing[:, None] * [{"thumb_s": 0.9, "index_s": -0.9, "thumb_b": 0.3}.get(n, 0.0)
                                 for n in hand.command_names]  # fmt: skip
    targets = robot_targets(hand, tree, commands)

    deepest = {}
    for contact in (0.0, Weights().contact):
        found = solved(hand, tree, targets, Weights(contact=contact, pinch=0.0))
        report = play(hand, found, FPS, np.ones(60, bool), "off").report
        deepest[contact] = report.commanded_penetration_mm, report.max_penetration_mm
    assert deepest[0.0][0] > 5
    assert max(deepest[Weights().contact]) < 1
