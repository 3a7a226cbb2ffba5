"""`acehand robots init`: what a model file says of a hand, against files whose truth is known."""

import json
import re
import shlex

import mujoco
import numpy as np
import pytest
import yaml

from acehand_core.cli.main import main as acehand
from acehand_core.cli.retarget import main as retarget
from acehand_core.errors import InputError, OutputError
from acehand_core.geometry import rotations
from helpers import ROOT
from helpers.robot_models import FINGERS, HEIGHT, LINKS, SPACING, hand_mjcf
from retarget.check import check_hand
from retarget.retargeting import faults
from retarget.robots.draft import draft_hands
from retarget.robots.draft_text import checks_of, write_draft
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.robot import OURS, load_robot, robot_names


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "drafts_cache"))


def drafted(tmp_path, text, name="made.xml", **options):
    file = tmp_path / name
    file.write_text(text)
    path = write_draft(file, tmp_path / "robot", **options)
    return load_robot(path), yaml.safe_load(path.read_text()), checks_of(path.read_text())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("count", "names"), [(3, False), (4, True), (5, False)])
def test_fingers_frame_and_side_of_a_made_up_hand(tmp_path, side, names, count):
    fingers = FINGERS[:count]
    robot, values, _ = drafted(tmp_path, hand_mjcf(fingers, side=side, names=names))
    assert list(robot.hands) == [side]
    hand = robot.hand(side)
    assert hand.fingers == fingers
    assert values["dropped_fingers"] == list(FINGERS[count:])
    # The file's palm looks along -x, its fingers point along z: half a turn about z.
    assert values["sides"][side]["model"]["rpy"] == pytest.approx([0, 0, np.pi], abs=1e-5)
    assert values["sides"][side]["model"]["root"] == f"{side[0]}h_palm"

    tips = KinematicTree.of(hand).points(np.zeros((1, len(hand.joint_names))), hand.tip_names)[0]
    sign = 1 if side == "right" else -1
    for i, tip in enumerate(tips[1:]):
        row = i - (count - 2) / 2
        expected = [0, -sign * SPACING * row, HEIGHT + sum(LINKS) + 0.007]
        assert tip == pytest.approx(expected, abs=0.002)
    assert not [f for f in check_hand(hand, quick=True) if f.passed is False]


@pytest.mark.parametrize("degrees", [True, False])
def test_joints_that_an_equality_couples(tmp_path, degrees):
    robot, values, _ = drafted(tmp_path, hand_mjcf(degrees=degrees))
    hand = robot.hand("right")
    assert len(hand.joint_names) == 15 and len(hand.command_names) == 10
    for finger in FINGERS:
        entry = values["joints"][f"{finger}_2"]
        assert (entry["follows"], entry["factor"]) == (f"{finger}_1", 0.8)
    assert values["joints"]["index_0"]["limits"] == pytest.approx([0, 1.5])
    unit = "degrees" if degrees else "radians"
    assert f"there in {unit}" in (tmp_path / "robot/robot.yaml").read_text()
    assert hand.command_torque.tolist() == [2.0] * 10  # forcerange of the actuators


def test_joints_that_a_tendon_couples_are_marked(tmp_path):
    robot, values, open_questions = drafted(tmp_path, hand_mjcf(coupling="tendon"))
    assert set(robot.hand("right").command_joints) == {f"{f}_{i}" for f in FINGERS for i in (0, 1)}
    assert values["joints"]["ring_2"] == {
        "limits": [0, 1.5], "follows": "ring_1", "factor": 1, "offset": 0
    }  # fmt: skip
    assert sum("tendon" in question for question in open_questions) == 5


def test_a_knuckle_that_spreads_is_no_keypoint_of_its_own(tmp_path):
    _, values, _ = drafted(tmp_path, hand_mjcf(spread=True, coupling="none"))
    frames = values["sides"]["right"]["model"]["frames"]
    for joint, link in (("mcp", "rh_index_0"), ("pip", "rh_index_1"), ("dip", "rh_index_2")):
        assert frames[f"index_{joint}"] == link


def test_a_file_of_two_hands_on_arms(tmp_path):
    arms = []
    for side, x in (("left", -0.5), ("right", 0.5)):
        hand = hand_mjcf(side=side, coupling="none")
        palm = re.search(r"<worldbody>(.*)</worldbody>", hand, re.DOTALL)[1]
        arms.append(
            f'<body name="{side}_upper" pos="{x} 0 0"><joint name="{side}_a" axis="0 0 1"/><geom '
            f'size="0.05"/><body name="{side}_fore" pos="0 0 0.3"><joint name="{side}_b" '
            f'axis="0 1 0"/><geom size="0.05"/>{palm}</body></body>'
        )
    text = (
        '<mujoco><compiler angle="radian" autolimits="true"/><default><default class="collision"/>'
        f"</default><worldbody>{''.join(arms)}</worldbody></mujoco>"
    )
    robot, values, _ = drafted(tmp_path, text, "arms.xml")
    assert {s: e["model"]["root"] for s, e in values["sides"].items()} == {
        "left": "lh_palm", "right": "rh_palm"
    }  # fmt: skip
    assert all(len(hand.joint_names) == 15 for hand in robot.hands.values())
    one, values, _ = drafted(tmp_path, text, "arms.xml", root="right_fore", overwrite=True)
    assert list(one.hands) == ["right"]
    assert values["sides"]["right"]["model"]["root"] == "right_fore"


URDF = """<robot name="claw"><link name="base"/>{parts}</robot>"""


def urdf_finger(name, y, mimic):
    """Return two links of a finger that closes about +y of the file, its palm along +x."""
    follow = f'<mimic joint="{name}_a" multiplier="1.2" offset="0.1"/>' if mimic else ""
    return f"""
<link name="{name}_1"><visual><origin xyz="0 0 0.02"/><geometry>
<box size="0.01 0.01 0.04"/></geometry></visual></link><link name="{name}_2">
<visual><origin xyz="0 0 0.015"/><geometry><box size="0.01 0.01 0.03"/></geometry></visual></link>
<link name="{name}_tip"/>
<joint name="{name}_a" type="revolute"><parent link="base"/><child link="{name}_1"/>
<origin xyz="0 {y} 0.08"/><axis xyz="0 1 0"/><limit lower="0" upper="1" velocity="4" effort="0.7"/>
</joint><joint name="{name}_b" type="revolute"><parent link="{name}_1"/><child link="{name}_2"/>
<origin xyz="0 0 0.04"/><axis xyz="0 1 0"/><limit lower="0" upper="1.4" velocity="4" effort="0.7"/>
{follow}</joint><joint name="{name}_end" type="fixed"><parent link="{name}_2"/>
<child link="{name}_tip"/><origin xyz="0 0 0.03"/></joint>"""


def urdf_claw(mimic=True, thumb=""):
    parts = [urdf_finger(n, y, mimic) for n, y in (("ff", 0.03), ("mf", 0.0), ("rf", -0.03))]
    if thumb:
        stated = urdf_finger("th", 0.05, False).replace(
            'xyz="0 0.05 0.08"', 'xyz="0 0.05 0.02" rpy="-0.9 0 2.2"'
        )
        parts.append(stated.replace("</joint>", f"{thumb}</joint>", 1))
    return URDF.format(parts="".join(parts))


def test_a_urdf_with_mimic_speeds_and_tips(tmp_path):
    robot, values, open_questions = drafted(tmp_path, urdf_claw(thumb=" "), "claw.urdf")
    hand = robot.hand("right")
    assert hand.fingers == ("thumb", "index", "middle", "ring")
    assert values["joints"]["ff_b"] == {
        "limits": [0, 1.4], "follows": "ff_a", "factor": 1.2, "offset": 0.1,
        "velocity": 4,
    }  # fmt: skip
    assert hand.command_velocity.min() == pytest.approx(4 / 1.2)  # the followers' limit
    assert hand.command_torque.tolist() == [0.7] * 5
    frames = values["sides"]["right"]["model"]["frames"]
    assert frames["index_tip"] == "ff_tip" and "tips" not in values["sides"]["right"]["model"]
    assert values["sides"]["right"]["model"]["rpy"] == [0, 0, 0]
    assert [question.partition(":")[0] for question in open_questions] == ["license"]


# A parallelogram: the pad's link turns back as far as its crank turns. The file closes it by a
# constraint between two links and states no factor.
PARALLELOGRAM = """<mujoco model="cranks"><compiler angle="radian" autolimits="true"/>
  <option timestep="0.002"/><worldbody><body name="base">
  <geom type="box" size="0.02 0.03 0.02" pos="0 0 -0.02"/>{jaws}</body></worldbody>
  <contact><exclude body1="left_pad" body2="right_pad"/></contact>
  <equality>
    <connect body1="left_pad" body2="left_rod" anchor="0 {left_rod} 0"/>
    <connect body1="right_pad" body2="right_rod" anchor="0 {right_rod} 0"/>
    <joint joint1="right_crank" joint2="left_crank"/></equality>
  <actuator><position name="drive" joint="left_crank" kp="50" kv="1" ctrlrange="0 0.5"/></actuator>
</mujoco>"""


def crank(side, sign):
    """Return one jaw: a crank and a rod of 50 mm side by side, the pad's link across their ends."""
    return f"""
<body name="{side}_crank" pos="0 {sign * 0.04} 0">
  <joint name="{side}_crank" axis="{sign} 0 0" range="0 0.6" damping="0.1" armature="0.01"/>
  <geom type="capsule" fromto="0 0 0 0 0 0.05" size="0.004" contype="0" conaffinity="0"/>
  <body name="{side}_pad" pos="0 0 0.05">
    <joint name="{side}_pad" axis="{sign} 0 0" range="-1 1" damping="0.01" armature="0.01"/>
    <geom type="box" size="0.008 0.004 0.03" pos="0 0 0.03"/></body></body>
<body name="{side}_rod" pos="0 {sign * 0.025} 0">
  <joint name="{side}_rod" axis="{sign} 0 0" range="-1 1" damping="0.01" armature="0.01"/>
  <geom type="capsule" fromto="0 0 0 0 0 0.05" size="0.004" contype="0" conaffinity="0"/></body>"""


def test_a_linkage_is_closed_in_simulation(tmp_path):
    text = PARALLELOGRAM.format(
        jaws=crank("left", 1) + crank("right", -1), left_rod=-0.015, right_rod=0.015
    )
    robot, values, _ = drafted(tmp_path, text)
    joints = values["joints"]
    assert list(values["commands"]) == ["left_crank"]
    for name, factor in (("left_pad", -1), ("left_rod", 1), ("right_pad", -1), ("right_crank", 1)):
        assert joints[name]["factor"] == pytest.approx(factor, abs=0.02)
        assert joints[name]["offset"] == pytest.approx(0, abs=0.01)
    hand = robot.hand("right")
    assert hand.tracks == "opening"
    assert not [f for f in check_hand(hand) if f.passed is False]
    # The faces of the pads are 72 mm apart at 0 and come nearer by the sine of the cranks' angle.
    tree = KinematicTree.of(hand)
    for angle in (0.0, 0.3):
        first, second = tree.points(hand.expand(np.array([[angle]])), hand.tip_names)[0]
        expected = 0.072 - 2 * 0.05 * np.sin(angle)
        assert np.linalg.norm(first - second) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("kind", ["mjcf", "urdf"])
@pytest.mark.parametrize("name", robot_names())
def test_what_our_robots_files_say_is_what_robot_yaml_says(tmp_path, name, kind):
    """Fingers, tips, drives, couplings, limits, side and frame, drafted from the files alone."""
    for side, hand in load_robot(name, models=OURS).hands.items():
        file = hand.mjcf_path if kind == "mjcf" else hand.urdf_path
        one = draft_hands(file, side=side if hand.tracks == "opening" else None)[side]
        assert set(one.names) == {*hand.fingers}
        off = np.degrees(rotations.angle_between(one.turn[None], np.eye(3)[None])[0])
        assert off == pytest.approx(0, abs=0.1)

        model = one.facts.model
        driven = {model.joint(j).name for j in one.drive.actuators}
        assert driven == {hand.full_name(n) for n in hand.command_joints}
        for joint, follow in one.drive.couplings.items():
            row = hand.joint_names.index(model.joint(joint).name.removeprefix(f"{side}_"))
            driver = model.joint(follow.driver).name.removeprefix(f"{side}_")
            factor = hand.coupling[row, hand.command_joints.index(driver)]
            assert (follow.factor, follow.offset) == pytest.approx(
                (factor, hand.coupling_offset[row]), abs=1e-4
            )
        for row, joint in enumerate(hand.joint_names):
            number = model.joint(hand.full_name(joint)).id
            low, high = one.facts.model.jnt_range[number]
            assert (low, high) == pytest.approx((hand.lower[row], hand.upper[row]), abs=1e-5)

        tree = KinematicTree(
            load_mjcf(hand.mjcf_path), hand.mjcf_path, hand.joint_names, f"{side}_"
        )
        zero = np.zeros((1, len(hand.joint_names)))
        for finger, tip in zip(hand.fingers, hand.tip_names, strict=True):
            chain = one.parts.fingers[one.names.index(finger)]
            link = model.body(chain.link).name.removeprefix(f"{side}_")
            pose = tree.poses(zero, [link])[0, 0]
            found = pose[:3, :3] @ chain.tip + pose[:3, 3]
            # Tips that the files have are taken; a gripper's are found by the faces of its jaws.
            within = 0.001 if hand.tracks == "keypoints" else 0.003
            assert found == pytest.approx(tree.points(zero, [tip])[0, 0], abs=within)


def test_the_command_writes_draws_and_checks(tmp_path, capsys):
    (tmp_path / "my_hand.xml").write_text(hand_mjcf())
    (tmp_path / "LICENSE").write_text("Made-up License 1.0\n")
    folder = tmp_path / "out"
    words = ["robots", "init", str(tmp_path / "my_hand.xml"), "--output", str(folder), "--json"]
    assert acehand(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] == 0 and report["file"] == str(folder / "robot.yaml")
    assert any("speed" in question for question in report["open"])
    values = yaml.safe_load((folder / "robot.yaml").read_text())
    assert values["license"].startswith("Made-up License 1.0")
    assert values["name"] == "my_hand"
    before = (folder / "robot.yaml").read_bytes()
    assert acehand(words) == 4 and (folder / "robot.yaml").read_bytes() == before
    assert acehand([*words, "--overwrite"]) == 0
    assert acehand(["robots", "check", str(folder / "robot.yaml")]) == 0
    for wrong in (["check", "--left", "x.xml"], ["init"]):
        with pytest.raises(SystemExit, match="2"):
            acehand(["robots", *wrong])


def test_files_without_a_hand_are_refused(tmp_path):
    def refused(text, match, **options):
        with pytest.raises(InputError, match=match):
            drafted(tmp_path, text, **options)

    one = '<body name="a"><joint name="a"/><geom size="0.1"/>{}</body>'
    refused(f"<mujoco><worldbody>{one.format('')}</worldbody></mujoco>", "No hand: ")
    refused(hand_mjcf(), "'lh_palm'; .*'rh_palm'", root="lh_palm")
    legs = "".join(one.format("").replace('"a"', f'"leg{i}"') for i in range(6))
    refused(f"<mujoco><worldbody>{legs}</worldbody></mujoco>", "6 chains of joints .*`root")
    left = tmp_path / "other.xml"
    left.write_text(hand_mjcf(side="left", coupling="none"))
    refused(hand_mjcf(), "different joints", left=left)
    assert not (tmp_path / "robot").exists()
    (tmp_path / "robot").mkdir()
    (tmp_path / "robot" / "robot.yaml").write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        drafted(tmp_path, hand_mjcf())


def test_ball_joints_are_named_and_targets_are_no_fingers(tmp_path):
    target = '<body name="target" mocap="true"><geom size="0.01"/></body></worldbody>'
    text = hand_mjcf(coupling="none").replace("</worldbody>", target)
    assert drafted(tmp_path, text)[0].hand("right").fingers == FINGERS

    ball = re.sub(r'(joint name="rh_ring_1") axis="[^"]*" range="[^"]*"', r'\1 type="ball"', text)
    for root in (None, "rh_palm"):
        with pytest.raises(InputError, match=r"Ball joints.*: rh_ring_1"):
            drafted(tmp_path, ball, "ball.xml", root=root, overwrite=True)


def test_a_root_that_is_advised_works(tmp_path):
    hand = hand_mjcf(FINGERS[:3], coupling="none")
    palm = re.search(r"<worldbody>(.*)</worldbody>", hand, re.DOTALL)[1]
    leg = '<body name="leg{0}" pos="0 0.{0} 0"><joint name="leg{0}"/><geom size="0.02"/></body>'
    legs = "".join(leg.format(i) for i in (1, 2, 3))
    text = f"""<mujoco><compiler angle="radian" autolimits="true"/><default><default
      class="collision"/></default><worldbody><body name="trunk"><geom size="0.1"/>{palm}{legs}
      </body></worldbody></mujoco>"""
    with pytest.raises(InputError, match=r"6 chains .*`root=LINK` .*rh_palm\)"):
        drafted(tmp_path, text)
    assert drafted(tmp_path, text, root="rh_palm")[0].hand("right").fingers == FINGERS[:3]

    one = PARALLELOGRAM.format(jaws=crank("left", 1), left_rod=-0.015, right_rod=0.015)
    one = re.sub("<contact>.*</contact>|<[a-z]+ [^<]*right_[^<]*/>", "", one)
    with pytest.raises(InputError, match="No hand: "):  # they close to one finger
        drafted(tmp_path, one, "one.xml", root="base", overwrite=True)


@pytest.mark.parametrize(("place", "link"), [("0.3 0 0.2", "rh_palm"), ("0 0 0.045", "rh_index_1")])
def test_a_place_that_is_no_number_is_named(tmp_path, place, link):
    text = hand_mjcf(names=True).replace(f'"{link}" pos="{place}"', f'"{link}" pos="0 nan 0"')
    with pytest.raises(InputError, match=rf"made\.xml: .*link '{link}' is not"):
        drafted(tmp_path, text)
    with pytest.raises(InputError, match=r"made\.urdf: .*link 'ff_1' is not"):
        drafted(tmp_path, URDF.format(parts=urdf_finger("ff", "nan", False)), "made.urdf")


def test_reference_angles_are_what_mujoco_makes_of_them(tmp_path):
    """Links whose file has them at another angle than 0: hinges, a slide, in a turned frame."""
    text = hand_mjcf(degrees=True, coupling="equality")
    for name, ref in (("index_1", "25"), ("index_2", "30"), ("ring_0", "-30"), ("middle_0", "15")):
        text = text.replace(f'<joint name="rh_{name}"', f'<joint name="rh_{name}" ref="{ref}"')
    text = text.replace('<body name="rh_middle_0"', '<frame euler="0 0 4"><body name="rh_middle_0"')
    text = text.replace('<body name="rh_ring_0"', '</frame><body name="rh_ring_0"')
    text = text.replace('ref="15"', 'ref="15" pos="0 0 .01"')
    robot, values, _ = drafted(tmp_path, text)
    hand = robot.hand("right")
    assert not [f for f in check_hand(hand) if f.passed is False]
    # In MuJoCo q - 30 = 0.8 (q_1 - 25): 10 degrees are left over, 0.1745 rad.
    assert values["joints"]["index_2"]["offset"] == pytest.approx(0.174533, abs=1e-6)
    values["joints"]["index_2"]["offset"] = 0.1
    (tmp_path / "robot" / "robot.yaml").write_text(yaml.safe_dump(values))
    other = load_robot(tmp_path / "robot" / "robot.yaml").hand("right")
    coupling = next(f for f in check_hand(other, quick=True) if f.name == "coupling")
    assert "0.8 * index_1 +0.1745 in the file" in coupling.detail

    model = mujoco.MjModel.from_xml_path(str(tmp_path / "made.xml"))
    data, tree = mujoco.MjData(model), KinematicTree.of(hand)
    assert np.count_nonzero(model.qpos0) == 4
    links = [f"{f}_dip" for f in FINGERS[1:]]
    for commands in np.random.default_rng(1).uniform(0, 1.2, (4, 10)):
        joints = hand.expand(commands)
        for name, angle in zip(hand.joint_names, joints, strict=True):
            data.joint(f"rh_{name}").qpos = angle
        mujoco.mj_kinematics(model, data)
        palm = data.body("rh_palm")
        theirs = np.stack([data.body(f"rh_{f}_2").xpos for f in FINGERS[1:]])
        theirs = (theirs - palm.xpos) @ palm.xmat.reshape(3, 3) * (-1, -1, 1)  # half a turn
        assert tree.points(joints[None], links)[0] == pytest.approx(theirs, abs=1e-6)


def test_a_follower_nearer_to_the_palm_than_its_driver(tmp_path):
    """So the makers of some thumbs state it; the coupling is the file's own."""
    text = urdf_claw(thumb='<mimic joint="th_b" multiplier="0.58"/>')
    robot, values, _ = drafted(tmp_path, text, "c.urdf")
    assert values["joints"]["th_a"]["follows"] == "th_b"
    assert values["joints"]["th_a"]["factor"] == pytest.approx(0.58)
    assert not [f for f in check_hand(robot.hand("right")) if f.passed is False]


@pytest.mark.parametrize(
    ("upper", "named"), [("0", "ff_a has no range"), ("80", r"ff_a has \[0, 80\] rad: .* degrees")]
)
def test_limits_that_are_none_or_in_another_unit(tmp_path, capsys, upper, named):
    text = re.sub(r'upper="[\d.]+"', f'upper="{upper}"', urdf_claw(mimic=False))
    (tmp_path / "claw.urdf").write_text(text)
    words = ["robots", "init", str(tmp_path / "claw.urdf"), "--output", str(tmp_path / "out")]
    assert acehand(words) == 1
    printed = capsys.readouterr().err
    assert re.search(f"limits: FAILED, .*{named}", printed)
    assert "acehand robots check" in printed and "then: `acehand retarget`" not in printed


def test_fingers_of_both_hands_are_compared(tmp_path):
    (tmp_path / "left.xml").write_text(hand_mjcf(side="left"))
    robot, values, _ = drafted(tmp_path, hand_mjcf(), left=tmp_path / "left.xml")
    hands = tuple(robot.hands.values())
    assert not [f for hand in hands for f in check_hand(hand, True, hands) if f.passed is False]

    # A straight finger is 45 + 30 + 22 mm long and its round end 7 mm; without the last link 75.
    values["sides"]["right"]["model"]["tips"]["index_tip"]["xyz"] = [0, 0, 0]
    (tmp_path / "robot" / "robot.yaml").write_text(yaml.safe_dump(values))
    robot = load_robot(tmp_path / "robot" / "robot.yaml")
    wrong = faults(robot, ("right",))
    assert re.match("right size: the index is 75 mm long, .*104 mm", *wrong)
    assert acehand(["robots", "check", str(tmp_path / "robot" / "robot.yaml")]) == 1


def test_both_names_and_place_of_a_side_are_compared(tmp_path):
    text = hand_mjcf(side="right").replace("rh_", "lh_").replace("right_made", "left_made")
    _, _, open_questions = drafted(tmp_path, text)
    assert any("looks like a right hand" in question for question in open_questions)


def test_a_misspelt_thumb_is_one(tmp_path):
    text = hand_mjcf(names=True).replace("thumb", "trumb")
    assert "trumb" in text
    robot, _, open_questions = drafted(tmp_path, text)
    assert "by position" not in " ".join(open_questions)
    assert robot.hand("right").fingers == FINGERS


PALM_OBJ = """v -0.012 -0.045 0
v 0.012 -0.045 0
v 0 0.045 0
v 0 0 0.09
f 1 3 2
f 1 2 4
f 2 3 4
f 3 1 4
"""


def test_the_page_about_ones_own_robot(tmp_path, monkeypatch, joints_file):
    """Its commands, on a model with the structure of a public one: meshdir, classes, excludes."""
    folder = tmp_path / "my_hand"
    (folder / "assets").mkdir(parents=True)
    (folder / "assets" / "palm.obj").write_text(PALM_OBJ)
    (folder / "LICENSE").write_text("Made-up License 1.0\n")
    for side in ("left", "right"):
        (folder / f"{side}_hand.xml").write_text(hand_mjcf(side=side, mesh="palm.obj"))
    joints = np.load(joints_file)
    np.savez(tmp_path / "hands.npz", joints=joints["joints"][:24])

    page = (ROOT / "docs/my_robot.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
    assert [words[2] for words in commands[:3]] == ["init", "show", "check"] and len(commands) == 4
    monkeypatch.chdir(tmp_path)
    for name, *words in commands:
        assert {"acehand": acehand, "acehand-retarget": retarget}[name](words) == 0
    assert (tmp_path / "my_robot" / "robot.png").stat().st_size > 10_000
    info = json.loads((tmp_path / "my_dataset" / "meta" / "info.json").read_text())
    assert info["total_frames"] == 24
    model = load_robot("my_robot/robot.yaml").hand("right").mjcf_path
    assert mujoco.MjModel.from_xml_path(str(model)).nmesh == 1
