"""Arms: a user's file, placement, inverse kinematics with limits, what is reported."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from acehand_core.cli import retarget
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.lerobot.check import check_dataset
from helpers import ROOT
from helpers.arm_samples import AXES, LENGTHS, along, few_stands, menagerie_arm, wandering
from helpers.commands import Run, hands_file
from helpers.retarget_samples import FPS, motion_of, moving_hands
from retarget.retargeting import retarget_motion
from retarget.robots.robot import load_robot
from retarget.solve import arm_search
from retarget.solve.arm import ASSUMED_SPEED, ArmSettings, load_arm, pose_points
from retarget.solve.arm_attachment import attach_arms
from retarget.solve.arm_path import follow_path

UP = (0.0, -1.0, 0.0)


def urdf(path: Path, speed: float = 3.0) -> Path:
    parts = ['<link name="base"/>']
    for i, (length, axis) in enumerate(zip(LENGTHS, AXES, strict=True)):
        parent = "base" if i == 0 else f"link{i}"
        parts.append(
            f'<link name="link{i + 1}"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1"'
            f' ixy="0" ixz="0" iyz="0"/></inertial></link><joint name="j{i + 1}" type="revolute">'
            f'<parent link="{parent}"/><child link="link{i + 1}"/><axis xyz="{axis}"/>'
            f'<origin xyz="0 0 {length}"/>'
            f'<limit lower="-2.8" upper="2.8" effort="1" velocity="{speed}"/></joint>'
        )
    parts.append(
        '<link name="tool0"/><joint name="mount" type="fixed"><parent link="link7"/>'
        '<child link="tool0"/><origin xyz="0 0 0.1" rpy="0 0 0.5"/></joint>'
        '<link name="finger"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" '
        'ixz="0" iyz="0"/></inertial></link><joint name="grip" type="prismatic"><parent '
        'link="tool0"/><child link="finger"/><axis xyz="1 0 0"/><limit lower="0.01" upper="0.04" '
        'effort="1" velocity="1"/></joint>'
    )
    path.write_text(f'<robot name="arm">{"".join(parts)}</robot>')
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    few_stands(monkeypatch, sectors=6)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory):
    return load_arm(urdf(tmp_path_factory.mktemp("arm") / "arm.urdf"))


def test_the_chain_is_read_from_a_urdf(arm) -> None:
    assert arm.link == "tool0" and arm.joint_names == tuple(f"j{i}" for i in range(1, 8))
    assert (arm.speed == 3.0).all() and arm.notes == () and (arm.upper == 2.8).all()


def test_kinematics_are_pinocchios(arm) -> None:
    pin = pytest.importorskip("pinocchio", reason="not installed (extra: dex)")
    model = pin.buildModelFromUrdf(str(arm.path))
    joints = np.random.default_rng(0).uniform(arm.lower, arm.upper, (5, 7))
    data = model.createData()
    for row, pose in zip(joints, arm.base_poses(joints), strict=True):
        pin.framesForwardKinematics(model, data, np.append(row, 0.01))
        theirs = data.oMf[model.getFrameId("tool0")].homogeneous
        assert pose == pytest.approx(theirs, abs=1e-9)


def test_points_and_jacobian(arm) -> None:
    """With a mount that is turned and moved, against poses and finite differences."""
    mount = frames.rigid(rotations.exp(np.array([0.4, -0.2, 1.0])), np.array([0.01, 0.02, 0.05]))
    mounted = load_arm(arm.path, mount=mount)
    joints = np.random.default_rng(1).uniform(arm.lower, arm.upper, (3, 7))
    points, jacobian = mounted.points_and_jacobian(joints)
    assert points == pytest.approx(pose_points(mounted.base_poses(joints)), abs=1e-12)
    assert mounted.base_poses(joints) == pytest.approx(arm.base_poses(joints) @ mount)
    for column in range(7):
        step = np.zeros(7)
        step[column] = 1e-6
        numeric = mounted.points_and_jacobian(joints + step)[0] - points
        assert jacobian[..., column] == pytest.approx(numeric / 1e-6, abs=1e-5)


def test_an_mjcf_without_ranges_and_speeds(tmp_path: Path) -> None:
    text = """<mujoco><worldbody><body name="a"><joint name="one" axis="0 0 1"/><geom size=".1"/>
      <body name="b" pos="0 0 .3"><joint name="two" axis="0 1 0"/><geom size=".1"/>
      <body name="jaw" pos="0 0 .2"><joint type="slide" name="grip"/><geom size=".1"/></body>
      </body></body></worldbody></mujoco>"""
    file = tmp_path / "arm.xml"
    file.write_text(text)
    arm = load_arm(file)
    assert arm.link == "b" and arm.joint_names == ("one", "two")
    assert (arm.speed == ASSUMED_SPEED).all() and arm.upper == pytest.approx(2 * np.pi)
    assert any("2 per second" in note for note in arm.notes) and len(arm.notes) == 2
    assert load_arm(file, "jaw").joint_names == ("one", "two", "grip")
    with pytest.raises(InputError, match="'jaw'"):
        load_arm(file, "jay")
    with pytest.raises(InputError, match=r"none\.xml"):
        load_arm(tmp_path / "none.xml")
    file.write_text(re.sub("<joint[^>]*>", "", text))
    with pytest.raises(SchemaError, match="no joint moves"):
        load_arm(file)


def feasible(arm, count: int = 60) -> np.ndarray:
    random = np.random.default_rng(3)
    time = np.arange(count)[:, None] / FPS
    joints = 0.5 * np.sin(1.5 * time + random.uniform(0, 6, 7)) + [0.2, 0.6, 0, 0.8, 0, 0.5, 0]
    return arm.base_poses(joints)


def test_a_feasible_path_is_followed(arm) -> None:
    path = feasible(arm)
    joints = follow_path(arm, path, np.ones(len(path), bool), FPS, np.zeros(7))
    off = np.linalg.norm((arm.base_poses(joints) - path)[:, :3, 3], axis=1)
    assert off.max() < 1e-3
    turned = rotations.angle_between(arm.base_poses(joints)[:, :3, :3], path[:, :3, :3])
    assert np.degrees(turned).max() < 0.5
    assert (joints >= arm.lower).all() and (joints <= arm.upper).all()
    assert (np.abs(np.diff(joints, axis=0)) * FPS <= arm.speed + 1e-9).all()


@pytest.fixture(scope="module")
def still():
    return retarget_motion(motion_of(moving_hands(60)), load_robot("inspire"))


@pytest.mark.slow
def test_placement_is_found_and_upright(arm, still) -> None:
    poses = wandering(45)
    both = along(still, [poses[:, 0], poses[:, 1]])
    first, second = attach_arms(both, arm, ArmSettings(arm.path)).arms
    assert first.reached.all() and first.position_error_m.max() < 0.005
    for motion in (first, second):
        assert motion.T_frame_arm[:3, 2] == pytest.approx(UP, abs=1e-9)
    again = attach_arms(both, arm, ArmSettings(arm.path)).arms
    assert (again[0].T_frame_arm == first.T_frame_arm).all()
    assert (again[1].joints == second.joints).all()
    between = second.T_frame_arm[:3, 3] - first.T_frame_arm[:3, 3]
    assert np.linalg.norm(between) >= arm_search.APART_M
    assert between[1] == pytest.approx(0, abs=1e-9)  # both on one table


def test_frames_out_of_reach_are_marked(arm, still) -> None:
    """A jump of two metres for ten frames: not reached, nor while the arm is on its way."""
    path = feasible(arm)
    path[30:40, :3, 3] += [2.0, 0, 0]
    settings = ArmSettings(arm.path, up=(0.0, 0.0, 1.0), base_right=(0.0,) * 6)
    motion = attach_arms(along(still, [path]), arm, settings).arms[1]
    assert not motion.reached[30:40].any() and motion.reached[:20].all()
    assert np.nanmin(motion.position_error_m[30:40]) > 0.005
    assert (np.abs(np.diff(motion.joints, axis=0)) * FPS <= arm.speed + 1e-9).all()
    absent = np.ones(60, bool)
    absent[30:40] = False
    motion = attach_arms(along(still, [path], absent), arm, settings).arms[1]
    assert motion.reached[absent].all() and not motion.reached[30:40].any()
    assert np.isnan(motion.position_error_m[30:40]).all()


def test_the_verdict_names_what_is_not_reached(arm, tmp_path: Path) -> None:
    hands = motion_of(moving_hands(15, sides=("right",)))
    trajectory = retarget_motion(hands, load_robot("inspire"))
    settings = ArmSettings(arm.path)
    good = attach_arms(trajectory, settings.load(), settings)
    assert good.arms[0] is None and good.arms[1].reached.all()
    assert good.verdict == trajectory.verdict
    short = ArmSettings(urdf(tmp_path / "short.urdf", speed=0.001))
    bad = attach_arms(trajectory, short.load(), short)
    assert bad.verdict.status == "fail"  # more than 20 %
    assert "right arm" in bad.verdict.reasons[-1]
    with pytest.raises(InputError, match="relative to the"):
        unplaced = retarget_motion(motion_of(moving_hands(5), placed=False), load_robot("inspire"))
        attach_arms(unplaced, settings.load(), settings)


def test_the_main_job_writes_arms(arm, tmp_path: Path, capsys) -> None:
    import pyarrow.parquet as pq

    joints = moving_hands(12)
    joints[:, 0] = np.nan
    hands, out = hands_file(tmp_path / "h.npz", joints=joints), tmp_path / "out"
    run = Run(capsys, hands, "--output", out, "--arm", arm.path, "--arm-mount", "0,0,0.05,0,0,0")
    assert run.code == 0 and check_dataset(out) == []
    entry = run.json["episodes"][0]["arm"]
    assert entry["left"] is None and entry["right"]["reached_share"] == 1.0
    assert entry["right"]["unreached_frames"] == 0 and entry["right"]["link"] == "tool0"
    info = json.loads((out / "meta" / "info.json").read_text())["features"]
    names = info["observation.arm.joints"]["names"]
    assert info["observation.arm.joints"]["shape"] == [14]
    flat = names if isinstance(names, list) else next(iter(names.values()))
    assert list(flat) == [f"{side}_j{i}" for side in ("left", "right") for i in range(1, 8)]
    table = pq.read_table(next(out.glob("data/*/*.parquet")))
    reached = np.stack(table["observation.arm.reached"].to_numpy())
    assert (reached == [0, 1]).all()
    for flags, words in (
        (["--arm-link", "tool0"], "--arm FILE"),
        (["--arm", arm.path, "--arm-up", "0,0,0"], "not all 0"),
        (["--arm", tmp_path / "none.urdf"], "not found"),
    ):
        run = Run(capsys, hands, "--output", tmp_path / "no", *flags)
        assert run.code == 2 and words in run.err


def test_a_file_of_menageries_structure_is_read_as_it_is(tmp_path: Path) -> None:
    """What the page says of meshdir, classes, keyframe and the link that carries the hand."""
    arm = load_arm(menagerie_arm(tmp_path / "arm"))
    assert arm.link == "attachment_site" and len(arm.joint_names) == 7
    assert len(arm.rests) == 2 and arm.rests[1] == pytest.approx([0, 0.3, 0, 0.6, 0, 0.6, 0])
    assert arm.shapeless == () and "2 per second" in arm.notes[0]
    # Seven links of 0.2 m, the first at 0.06 m, the site at 0.17 m of the last.
    assert arm.base_poses(np.zeros((1, 7)))[0, 2, 3] == pytest.approx(0.06 + 6 * 0.2 + 0.17)


@pytest.mark.slow
def test_the_page_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    menagerie_arm(tmp_path / "arm").rename(tmp_path / "arm.xml")
    (tmp_path / "arm" / "assets").rename(tmp_path / "assets")
    hands_file(tmp_path / "joints.npz", joints=moving_hands(8))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "my_arm.md").read_text("utf-8")
    commands = re.search(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()
    entries = {}
    for line in commands:
        program, *words = shlex.split(line)
        if program == "acehand-retarget":
            assert retarget.main([*words, "--json", "--quiet"]) == 0, line
            episode = json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"][0]
            entries[words[words.index("--output") + 1]] = episode
        else:
            assert acehand([*words, "--no-moving", "--quiet"]) == 0, line

    assert (tmp_path / "pictures" / "strip.png").is_file()
    for name in ("with_arms", "mounted"):
        arms = entries[name]["arm"]
        tables = [np.array(arm["T_frame_table"])[1, 3] for arm in arms.values()]
        bases = [np.array(arm["T_frame_arm"])[1, 3] for arm in arms.values()]
        assert tables == pytest.approx(bases) and bases[0] == pytest.approx(bases[1])
        assert any("`arm_table`" in note for note in arms["left"]["notes"])
        assert all(arm["collision_frames"] == 0 for arm in arms.values())
    # Given: 0.35 m below the camera, upright, on a table that is there.
    stood = np.array(entries["our_stand"]["arm"]["left"]["T_frame_arm"])
    assert stood[:3, 3] == pytest.approx([-0.35, 0.35, 0.5])
    assert stood[:3, 2] == pytest.approx([0, -1, 0], abs=1e-5)
    assert np.array(entries["our_stand"]["arm"]["left"]["T_frame_table"])[1, 3] == 0.35
