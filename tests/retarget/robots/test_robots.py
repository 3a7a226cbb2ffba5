"""Every robot of the package: its files, its kinematics, and that it can follow a hand."""

import re
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import yaml
from scipy.spatial.transform import Rotation

from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.types import SIDES
from helpers import SLOW
from helpers.makers_files import edited_copy
from helpers.retarget_samples import (
    FPS,
    assert_within_limits,
    human_joints,
    motion_of,
    robot_targets,
    solved,
    wide_commands,
)
from retarget.check import check_hand
from retarget.replay.simulate import self_penetration
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.robot import OURS, find_robot_file, load_robot, robot_names
from retarget.solve.costs import Weights
from retarget.solve.pinch import CLOSE_M, OPENING_M
from retarget.targets import palm_frames
from tools.robot_models import write_models

NAMES = (*robot_names(), "inspire:other")
#: Their left hands take long; ``test_a_mirrored_hand_is_the_mirror_image`` is there every time.
LARGE = ("allegro", "leap", "shadow")
HANDS = [
    pytest.param((name, side), marks=[pytest.mark.slow] * (name in LARGE and side == "left"))
    for name in NAMES for side in SIDES
]  # fmt: skip
ROBOTS = [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in NAMES]
#: Fingertips from targets that the palm alone turns and sizes: fitting the palm to the clip's
#: fingertips would bring them nearer, at the cost of how fingers are bent.
FOLLOWS_WITHIN_MM = {
    "allegro": 10, "leap": 8, "ability": 16, "shadow": 8, "panda_gripper": 5,
    "inspire": 16, "inspire:other": 16,
}  # fmt: skip


@pytest.fixture(params=HANDS, ids=lambda hand: "-".join(hand))
def named_hand(request):
    name, side = request.param
    return name, load_robot(name, models=OURS).hand(side)


@pytest.fixture(scope="module")
def human(joints_file):
    joints = np.full((120, 2, 21, 3), np.nan)
    joints[:, 1] = np.load(joints_file)["joints"][:120]
    return motion_of(joints, placed=False)


@pytest.mark.parametrize("name", robot_names())
def test_model_files_are_what_the_parameter_file_says(tmp_path, name):
    source = find_robot_file(name)
    shutil.copy(source, tmp_path)
    for path in write_models(tmp_path / "robot.yaml"):
        assert (source.parent / path.name).read_text() == path.read_text(), (
            f"{name}/{path.name} is stale: python -m tools.robot_models {source}"
        )


def test_nothing_is_wrong_with_the_model(named_hand):
    """Joints, limits, couplings, tips, palm frame, servos; FK against MuJoCo and pinocchio."""
    findings = list(check_hand(named_hand[1]))
    assert len(findings) == 14 and not [f for f in findings if f.passed is False]


@pytest.mark.few(4)
def test_recovers_its_own_motions_over_the_whole_range(named_hand):
    """With tracking terms alone, every motion: a robot whose joints bend both ways as well."""
    _, hand = named_hand
    tracking = Weights(pinch=0.0, rest=1e-8, acceleration=0.0, jerk=0.0, contact=0.0)
    for seed in range(8 if SLOW else 3):
        commands = wide_commands(hand, seed)
        assert np.abs(recovered(hand, commands, tracking) - commands).max() < 1e-3, seed


def recovered(hand, commands, weights):
    """Commands -> kinematics -> targets -> commands, from the idle hand; limits are kept."""
    tree = KinematicTree.of(hand)
    found = solved(hand, tree, robot_targets(hand, tree, commands), weights)
    assert_within_limits(hand, found)
    return found


@pytest.mark.few(6)
@pytest.mark.parametrize("seed", range(2))
def test_smoothing_costs_little_over_the_whole_range(named_hand, seed):
    name, hand = named_hand
    commands = wide_commands(hand, seed)
    found = recovered(hand, commands, Weights(pinch=0.0, contact=0.0))
    assert np.abs(found - commands).max() < (0.001 if name == "panda_gripper" else 0.03)


@pytest.mark.few(4)
def test_contact_and_pinches_leave_the_rest_alone(named_hand):
    """Default weights on the largest motion near the idle hand where nothing touches or pinches.

    An idle gripper is closed: there it is the open one.
    """
    _, hand = named_hand
    home = hand.command_upper if hand.tracks == "opening" else hand.rest
    tree = KinematicTree.of(hand)
    wide = wide_commands(hand)
    for share in np.arange(1.0, 0.0, -0.1):
        reach = share * np.ptp(wide, axis=0) / 2
        center = np.clip(home, hand.command_lower + reach, hand.command_upper - reach)
        commands = center + share * (wide - (wide.max(0) + wide.min(0)) / 2)
        joints = hand.expand(commands)
        tips = tree.points(joints, hand.tip_names)
        gap = np.linalg.norm(tips[:, 1:] - tips[:, :1], axis=-1).min()
        if self_penetration(hand, joints).max() == 0 and gap > OPENING_M[1]:
            break
    else:
        pytest.fail("touches or pinches even close to the idle hand")
    assert np.abs(recovered(hand, commands, Weights()) - commands).max() < 0.03


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ROBOTS)
def test_follows_a_recorded_hand(name, human):
    robot = load_robot(name, models=OURS)
    trajectory = retarget_motion(human, robot)
    hand = robot.hand("right")
    assert trajectory.robot == name
    assert trajectory.limit_violations == trajectory.speed_violations == 0
    assert trajectory.coupling_residual_rad < 1e-6
    assert trajectory.tip_error_m.shape[-1] == len(hand.fingers)
    assert np.nanmean(trajectory.tip_error_m) * 1e3 < FOLLOWS_WITHIN_MM[name]
    assert np.ptp(trajectory.commands[:, 1], axis=0).max() > 0.003  # it does move
    back = hand.controller.to_angles(trajectory.registers[:, 1])
    assert np.abs(back - trajectory.commands[:, 1]).max() < 1e-9


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [r for r in ROBOTS if ":" not in r.values[0]])
def test_the_order_of_joints_in_the_model_file_does_not_matter(tmp_path, name, human):
    path = edited_copy(tmp_path, name)
    model = path.parent / "right.xml"
    tree = ET.parse(model)
    for body in tree.getroot().iter("body"):
        children = body.findall("body")
        for child in children:
            body.remove(child)
        body.extend(reversed(children))
    tree.write(model)
    robot, shuffled = load_robot(name, models=OURS), load_robot(path, models=OURS)
    names = [KinematicTree(load_mjcf(path), path).joint_names
             for path in (model, robot.hand("right").mjcf_path)]  # fmt: skip
    assert names[0] != names[1] and sorted(names[0]) == sorted(names[1])
    short = human.at(np.arange(40), human.timestamps_ns[:40], human.fps)
    ours, theirs = retarget_motion(short, robot), retarget_motion(short, shuffled)
    assert theirs.command_names == ours.command_names
    assert np.abs(theirs.commands - ours.commands).max() < 1e-6


#: Joint: parent joint, xyz (mm) and rpy of its link's origin, in PSYONIC's ability_hand_right.urdf.
PSYONIC = {
    "palm": (None, (-24.0476665, 3.78124745, 32.32964923), (3.14148426, -0.08848813, -3.14036612)),
    "index_proximal": ("palm", (9.49, -13.04, -62.95), (-1.1595426536, 1.284473, -1.0510016536)),
    "pinky_proximal": (
        "palm", (-49.521293, -11.004583, -63.029065), (-1.3764826536, 1.32222, -1.4832096536)),
    "index_distal": ("index_proximal", (38.472723, 3.257695, 0), (0, 0, 0.084474)),
    "pinky_distal": ("pinky_proximal", (38.472723, 3.257695, 0), (0, 0, 0.084474)),
    "thumb_rotation": ("palm", (0, 0, 0), (3.141592653589793, 0, -0.18884434641)),
    "thumb_flexion": ("thumb_rotation", (27.8283501, 0, 14.7507), (1.832595714594045, 0, 0)),
}  # fmt: skip


def test_ability_links_are_where_the_makers_file_has_them():
    hand = load_robot("ability", models=OURS).hand("right")
    rng = np.random.default_rng(2)
    commands = hand.command_lower + rng.random(6) * (hand.command_upper - hand.command_lower)
    angles = dict(zip(hand.joint_names, hand.expand(commands), strict=True))
    driven = angles["index_proximal"]
    assert angles["index_distal"] == pytest.approx(1.05851325 * driven + 0.72349796)

    def pose(joint):
        parent, xyz, rpy = PSYONIC[joint]
        turn = Rotation.from_euler("xyz", rpy)  # fixed axes
        if joint in angles:
            turn = turn * Rotation.from_rotvec([0, 0, angles[joint]])
        before = pose(parent) if parent else np.eye(4)
        return before @ frames.rigid(turn.as_matrix(), np.array(xyz) / 1e3)

    links = {
        "index_proximal": "index_proximal", "index_distal": "index_distal",
        "pinky_distal": "pinky_distal", "thumb_flexion": "thumb_flexor",
    }  # fmt: skip
    found = KinematicTree.of(hand).points(hand.expand(commands)[None], list(links.values()))[0]
    for joint, at in zip(links, found, strict=True):
        x, y, z = pose(joint)[:3, 3]
        # Our base frame is theirs, turned by -90 degrees about z.
        assert at == pytest.approx([y, -x, z], abs=1e-6), joint


def test_the_gripper_is_the_makers():
    """Franka's description: fingertips at 0.1034 m (its hand_tcp), 0 to 0.04 m a jaw, masses."""
    hand = load_robot("panda_gripper", models=OURS).hand("right")
    tips = KinematicTree.of(hand).points(hand.expand(np.array([[0.0], [0.04]])), hand.tip_names)
    assert tips[0] == pytest.approx(np.array([[0, 0, 0.1034], [0, 0, 0.1034]]))
    assert tips[1] == pytest.approx(np.array([[0, 0.04, 0.1034], [0, -0.04, 0.1034]]))
    assert (hand.command_lower, hand.command_upper) == (0, 0.04)
    masses = [float(one.get("mass")) for one in ET.parse(hand.mjcf_path).iter("inertial")]
    assert sorted(masses) == [0.0291, 0.0291, 0.6544]
    # The hand's product manual.
    assert (hand.command_velocity, hand.command_torque) == (0.05, 70)


def test_every_robot_names_a_source_under_a_permissive_licence():
    for name in robot_names():
        if name == "inspire":  # a table of published numbers, no file
            continue
        source = yaml.safe_load(find_robot_file(name).read_text())["source"]
        assert re.search(r"\((MIT|BSD-[23]-Clause|Apache-2\.0)", source), f"{name}: {source}"


@pytest.mark.parametrize("name", ["shadow", "ability", "allegro", "panda_gripper"])
def test_a_mirrored_hand_is_the_mirror_image(name):
    robot = load_robot(name, models=OURS)
    left, right = (robot.hand(side) for side in SIDES)
    rng = np.random.default_rng(1)
    joints = right.lower + rng.random((9, len(right.lower))) * (right.upper - right.lower)
    tips = [f for f in right.target_frames if not (name == "allegro" and "thumb" in f)]
    a, b = KinematicTree.of(left).points(joints, tips), KinematicTree.of(right).points(joints, tips)
    # The published halves are rounded, and this right angle is 1.57079.
    assert np.abs(a * (1, -1, 1) - b).max() < 1e-9


@pytest.mark.parametrize(
    ("name", "command", "angle", "vendors"),
    [
        ("leap", "index_pip", np.pi / 4, 2560),
        ("ability", "thumb_rotator", -np.pi / 2, -90),
        ("shadow", "FFJ0", 0.5, 1.0),
        ("panda_gripper", "gripper", 0.03, 0.06),
        ("inspire", "index", 0.0, 1000),
    ],
)
def test_native_units(name, command, angle, vendors):
    hand = load_robot(name, models=OURS).hand("right")
    commands, index = hand.rest.copy(), hand.command_names.index(command)
    commands[index] = angle
    assert hand.controller.to_registers(commands)[index] == pytest.approx(vendors, abs=1e-6)


def test_allegros_left_hand_counts_abduction_the_other_way():
    left, right = (load_robot("allegro", models=OURS).hand(side) for side in SIDES)
    commands = 0.3 * np.ones(16)
    a, b = left.controller.to_registers(commands), right.controller.to_registers(commands)
    signs = [-1 if name.endswith("abduction") and "thumb" not in name else 1
             for name in right.command_names]  # fmt: skip
    assert a == pytest.approx(b * signs)


def test_range_and_polarity_can_be_set_per_joint(tmp_path):
    def change(values):
        values["commands"]["thumb_rotation"]["register_zero"] = "lower"
        values["commands"]["pinky"]["register_range"] = [100, 900]
        values["commands"]["ring"] = {"joint": "ring_proximal", "register_scale": -10,
                                      "register_offset": 20}  # fmt: skip
        values["sides"]["left"]["commands"] = {"thumb_rotation": {"register_zero": "upper"}}

    robot = load_robot(edited_copy(tmp_path, "inspire", change))
    right, left = robot.hand("right"), robot.hand("left")
    assert right.controller.to_registers(right.command_lower).tolist() == [
        900,
        20,
        1000,
        1000,
        1000,
        0,
    ]
    assert left.controller.to_registers(left.command_lower)[-1] == 1000


@pytest.mark.parametrize(("keys", "value", "named"), [
    ("dropped_fingers", ["ring"], "dropped_fingers are ring"),
    ("dropped_fingers", ["pinkie"], "'pinky'"),
    ("register_scale", 0, "register_scale"),
    ("sides.left.mirror", "left", "right"),
    ("sides.left.links.thumb", {"xyz": [0, 0, 0]}, "links.thumb"),
    ("sides.right.links.index_distal.motion", "screw", "hinge, slide"),
    ("sides.right.model.joints.index_knuckle", "x", "joints.index_knuckle"),
])  # fmt: skip
def test_broken_files_are_refused_with_the_key(tmp_path, keys, value, named):
    def change(values):
        *way, last = keys.split(".")
        for key in way:
            values = values[key]
        values[last] = value

    with pytest.raises(SchemaError, match=named):
        load_robot(edited_copy(tmp_path, "allegro", change))


def test_a_variant_can_follow_the_name():
    other = load_robot("inspire:other")
    assert (other.variant, other.label) == ("other", "inspire:other")
    assert load_robot("inspire").label == "inspire"
    with pytest.raises(InputError, match="'other'"):
        load_robot("inspire:othr")


def _hand():
    joints = human_joints("right")
    pose = np.linalg.inv(palm_frames(joints, "right"))[0]
    return joints[0] @ pose[:3, :3].T + pose[:3, 3]


@pytest.fixture(scope="module")
def pinching():
    """A right hand whose pinch opens from 0 to 100 mm while it travels and turns."""
    count = 90
    motion = np.full((count, 2, 21, 3), np.nan)
    rest = _hand()
    gap = 0.05 * (1 - np.cos(np.arange(count) * 2 * np.pi / count))
    joints = np.tile(rest, (count, 1, 1))
    middle = (rest[4] + rest[8]) / 2
    joints[:, 4] = middle + np.array([0, 1, 0]) * gap[:, None] / 2
    joints[:, 8] = middle - np.array([0, 1, 0]) * gap[:, None] / 2
    turn = rotations.exp(np.linspace(0, 0.8, count)[:, None] * [0.3, 1.0, -0.2])
    place = np.linspace([0, 0, 0.4], [0.1, 0.05, 0.5], count)
    poses = frames.rigid(turn, place)
    motion[:, 1] = frames.apply(poses, joints)
    robot = load_robot("panda_gripper", models=OURS)
    return motion_of(motion), gap, retarget_motion(motion_of(motion), robot), robot


def test_a_gripper_closes_on_a_pinch_and_opens_as_far_as_it_can(pinching):
    """The human's 100 mm are beyond its 80; from closed to there its 100 mm/s take 24 frames."""
    _, gap, trajectory, _ = pinching
    opening = trajectory.registers[:, 1, 0]
    assert opening[gap < CLOSE_M].max() < 15e-3
    assert opening[45] == pytest.approx(0.08, abs=2e-3)
    assert trajectory.speed_violations == 0


def tapping(closing, held, opened, taps=4, width=0.07):
    """Gap of thumb and index (m) that closes to 6 mm again and again; lengths are in frames."""
    way = np.linspace(width, 0.006, closing + 1)[1:-1]
    one = np.concatenate([np.full(opened, width), way, np.full(held, 0.006), way[::-1]])
    return np.concatenate([np.tile(one, taps), np.full(opened, width)])


def tapping_motion(gap):
    """A right hand that stands still but for thumb and index, whose tips are ``gap`` apart."""
    rest = _hand() + np.array([0, 0, 0.4])
    motion = np.full((len(gap), 2, 21, 3), np.nan)
    motion[:, 1] = rest
    middle = (rest[4] + rest[8]) / 2
    for keypoint, sign in ((4, 1), (8, -1)):
        motion[:, 1, keypoint] = middle + sign * gap[:, None] / 2 * [0, 1, 0]
    return motion_of(motion)


@pytest.mark.parametrize(
    ("closing", "held", "opened"), [(40, 20, 40), (10, 10, 30), (3, 6, 12)], ids=str
)
def test_a_gripper_is_closed_when_the_human_is(closing, held, opened):
    """70 mm in 1.3, 0.3 and 0.1 s; the jaws need 0.64: they start early and come back late."""
    gap = tapping(closing, held, opened)
    robot = load_robot("panda_gripper", models=OURS)
    trajectory = retarget_motion(tapping_motion(gap), robot)
    opening = trajectory.registers[:, 1, 0]
    assert (gap == 0.006).sum() == 4 * held
    assert opening[gap == 0.006].max() < 15e-3
    assert opening[gap > 0.05].min() > 15e-3
    assert trajectory.speed_violations == 0
    assert not any("misses" in reason for reason in trajectory.verdict.reasons)


def test_a_gripper_too_slow_for_the_pinches_says_which_it_misses(tmp_path):
    def slower(values):
        values["joints"]["thumb_jaw"]["velocity"] = 0.002

    gap = tapping(10, 5, 30)
    path = edited_copy(tmp_path, "panda_gripper", slower)
    trajectory = retarget_motion(tapping_motion(gap), load_robot(path, models=OURS))
    opening = trajectory.registers[:, 1, 0]
    closed = np.flatnonzero(gap < CLOSE_M)
    assert opening[closed].min() > 15e-3
    assert trajectory.verdict.status == "fail"  # its jaws hardly move where the human's do
    first = np.split(closed, np.flatnonzero(np.diff(closed) > 1) + 1)[0]
    (reason,) = (reason for reason in trajectory.verdict.reasons if "misses" in reason)
    assert "right" in reason and "4 of 4 thumb-index" in reason
    assert f"frames {first[0]} to {first[-1]}, " in reason
    assert f"{opening[closed].max() * 1e3:.0f} mm" in reason


def test_a_grippers_jaws_are_where_the_fingertips_are(pinching):
    motion, gap, trajectory, robot = pinching
    hand, human = robot.hand("right"), motion.joints_camera[:, 1, [4, 8]]
    tips = KinematicTree.of(hand).points(trajectory.joints[:, 1], hand.tip_names)
    placed = frames.apply(trajectory.T_frame_base[:, 1], tips)
    assert np.abs(placed.mean(1) - human.mean(1)).max() < 2e-3
    across, wanted = (np.diff(one[gap > 0.03], axis=1)[:, 0] for one in (placed, human))
    lengths = np.linalg.norm(across, axis=-1) * np.linalg.norm(wanted, axis=-1)
    cosine = np.sum(across * wanted, -1) / lengths
    assert np.degrees(np.arccos(np.clip(cosine, -1, 1))).max() < 6


@pytest.mark.parametrize("side", SIDES)
def test_a_gripper_is_smoothed_like_a_finger(side):
    """Its metres are weighed as a finger's radians: noise of 1 mm must not shake it."""
    hand = load_robot("panda_gripper", models=OURS).hand(side)
    tree = KinematicTree.of(hand)
    clean = 0.02 + 0.01 * np.sin(2 * np.pi * np.arange(90) / 60)[:, None]
    noisy = clean + np.random.default_rng(0).normal(0, 1e-3, clean.shape)
    followed = [solved(hand, tree, robot_targets(hand, tree, c)) for c in (clean, noisy)]
    assert np.abs(followed[0] - clean).max() < 1e-4
    assert np.sqrt(np.mean((followed[1] - clean) ** 2)) < 0.6e-3
    jerk = np.diff(followed[1], 3, axis=0) * FPS**3
    assert np.sqrt(np.mean(jerk**2)) < 4  # m/s3; 40 where a metre counts as a radian


def test_dex_cannot_drive_a_gripper(pinching):
    with pytest.raises(InputError, match="opening"):
        retarget_motion(pinching[0], pinching[3], "dex-vector")
