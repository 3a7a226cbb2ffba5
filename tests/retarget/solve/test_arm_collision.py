"""Two arms keep apart, and the verdict says where they do not."""

import json
from pathlib import Path

import numpy as np
import pytest

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.columns import ARM_CLEARANCE
from helpers.arm_samples import RADIUS, TwoArms, along, capsule_arm, few_stands
from helpers.commands import Run, hands_file
from helpers.retarget_samples import motion_of, moving_hands
from retarget.retargeting import retarget_motion
from retarget.robots.robot import load_robot
from retarget.solve.arm import ArmSettings, load_arm
from retarget.solve.arm_attachment import attach_arms
from retarget.solve.arm_path import refine
from retarget.solve.arm_scene import ArmScene, ArmTable

COUNT = 40
WORLD_UP = (0.0, 0.0, 1.0)
ROBOT = load_robot("inspire")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    few_stands(monkeypatch)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory):
    return load_arm(capsule_arm(tmp_path_factory.mktemp("arm") / "arm.xml"))


@pytest.fixture(scope="module")
def hands():
    return retarget_motion(motion_of(moving_hands(COUNT)), ROBOT)


def stand(x: float, y: float = 0.0, z: float = 0.0, yaw: float = 0.0) -> np.ndarray:
    return frames.rigid(rotations.exp(np.array([0, 0, yaw])), np.array([x, y, z]))


def flags(pose: np.ndarray) -> tuple[float, ...]:
    return (*pose[:3, 3].tolist(), 0.0, 0.0, float(np.arctan2(pose[1, 0], pose[0, 0])))


def swinging(arm, base: np.ndarray, lean: float) -> np.ndarray:
    """Return poses of a hand that an arm at ``base`` reaches: it leans and turns to and fro."""
    wave = np.sin(np.linspace(0, 2 * np.pi, COUNT))[:, None]
    middle = np.array([0.0, lean, 0.0, 0.9, 0.0, 0.7, 0.0])
    return base @ arm.base_poses(middle + 0.15 * wave * [1, 1, 1, 1, 1, 1, 1])


def test_parallel_arms_by_hand(arm, hands) -> None:
    """Upright 0.5 m apart: radii of 0.05 m leave 0.4 m, bases of radius 0.08 m 0.34 m.

    The lowest shape that moves is the capsule of link 1: it begins at 0.06 + 0.06 m.
    """
    scene = ArmScene(arm, hands, None, (0, 1), 0.02)
    sides = {
        slot: scene.places(slot, stand(0.5 * slot), np.zeros((1, 7)), slice(0, 1))
        for slot in (0, 1)
    }
    distances = scene.distances(sides, ArmTable(np.array(WORLD_UP), 0.02))
    for slot in (0, 1):
        assert distances[slot].other[0] == pytest.approx(0.34, abs=1e-6)
        assert distances[slot].table[0] == pytest.approx(0.12 - RADIUS - 0.02, abs=1e-6)
    # Of links next but one link 5, whose axis ends at 1.10 m, and link 7 at 1.26 m are nearest.
    assert distances[0].own[0] == pytest.approx(1.26 - 1.10 - 2 * RADIUS, abs=1e-6)


def test_distances_are_those_of_attached_models(arm, hands) -> None:
    """MuJoCo attaches arms and hands; all pairs are measured, none is left out beforehand."""
    bases = [stand(-0.15, yaw=0.4), stand(0.15, yaw=2.0)]
    joints = np.random.default_rng(4).uniform(-1.2, 1.2, (2, 12, 7))
    scene = ArmScene(arm, hands, ROBOT, (0, 1), 0.02)
    rows = slice(0, 12)
    sides = {slot: scene.places(slot, bases[slot], joints[slot], rows) for slot in (0, 1)}
    ours = scene.distances(sides, None)[0].other
    both = TwoArms(arm.path, ROBOT, bases)
    theirs = []
    for frame in range(12):
        both.set(hands, frame, joints[:, frame])
        theirs.append(both.between())
    assert ours == pytest.approx(np.array(theirs), abs=1e-5)
    assert min(theirs) < 0 < max(theirs)


def test_a_known_base_is_kept(arm, hands) -> None:
    bases = [stand(-0.6, yaw=0.2), stand(0.6, yaw=-0.3)]
    paths = [swinging(arm, bases[0], -0.3), swinging(arm, bases[1], 0.3)]
    known = ArmSettings(arm.path, base_left=flags(bases[0]), base_right=flags(bases[1]))
    result = attach_arms(along(hands, paths), arm, known, ROBOT)
    for motion, base, path in zip(result.arms, bases, paths, strict=True):
        assert motion.T_frame_arm == pytest.approx(base, abs=1e-12)
        assert motion.reached.all() and motion.T_frame_table is None
        assert motion.T_frame_arm @ arm.base_poses(motion.joints) == pytest.approx(path, abs=0.005)
    assert result.verdict == hands.verdict
    assert any("`arm_table`" in note for note in result.arms[0].notes)
    # The right arm 3 m away: the verdict says so, with the share.
    far = ArmSettings(arm.path, base_left=flags(bases[0]), base_right=flags(stand(3.0)))
    result = attach_arms(along(hands, paths), arm, far, ROBOT)
    assert result.verdict.status == "fail"
    assert any("right arm" in r and "100.0%" in r for r in result.verdict.reasons)


@pytest.mark.slow
def test_crossing_arms_are_said_and_searched_bases_are_free(
    arm, hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hands pass each other, and so do the arms behind them; searched bases are elsewhere.

    MuJoCo's own scene says what touches. The whole search, seconds: this is what it is for.
    """
    monkeypatch.undo()
    near = [stand(-0.35), stand(0.35)]
    paths = [swinging(arm, near[0], 0.8), swinging(arm, near[1], -0.8)]
    crossed = ArmSettings(arm.path, base_left=flags(near[0]), base_right=flags(near[1]))
    bad = attach_arms(along(hands, paths), arm, crossed, ROBOT)
    between = truth(bad, arm, near)
    assert bad.arms[0].to_other_m == pytest.approx(between, abs=1e-5)
    inside, reasons = np.mean(between < 0), str(bad.verdict.reasons)
    assert 0 < inside < 1 and bad.verdict.status == "fail"
    assert f"{-1e3 * between.min():.1f} mm" in reasons and f"{inside:.1%}" in reasons
    # They draw back before each other, from poses that each reaches alone.
    missed = 1 - bad.arms[0].reached.mean()
    assert bad.arms[0].reached_alone.all() and 0 < missed < 1
    assert f"{missed:.1%}" in reasons and "`arm_base_left`" in reasons

    free = attach_arms(along(hands, paths), arm, ArmSettings(arm.path, up=WORLD_UP), ROBOT)
    bases = [motion.T_frame_arm for motion in free.arms]
    assert truth(free, arm, bases).min() > 0.02
    assert all(motion.reached.all() for motion in free.arms)
    assert free.verdict == hands.verdict


def truth(trajectory, arm, bases) -> np.ndarray:
    both = TwoArms(arm.path, ROBOT, bases)
    found = []
    for frame in range(len(trajectory)):
        both.set(trajectory, frame, np.stack([m.joints[frame] for m in trajectory.arms]))
        found.append(both.between())
    return np.array(found)


def test_an_elbow_moves_aside(arm, hands) -> None:
    """Seven joints: an upright arm in the way of the elbow is passed without leaving the path."""
    base = stand(0.0)
    path = base @ arm.base_poses(np.tile([0.0, 0.7, 0.0, 1.4, 0.0, 0.6, 0.0], (COUNT, 1)))
    scene = ArmScene(arm, hands, None, (0, 1), 0.05)
    joints = np.tile([0.0, 0.7, 0.0, 1.4, 0.0, 0.6, 0.0], (COUNT, 1))
    elbow = (base @ arm.tree.poses(joints[:1], ("link4",))[0, 0])[:3, 3]
    aside = stand(elbow[0], elbow[1] - 0.11)  # upright: 0.01 m between the capsules
    other = {1: scene.places(1, aside, np.zeros((COUNT, 7)), slice(None))}

    def gap(joints: np.ndarray) -> float:
        sides = other | {0: scene.places(0, base, joints, slice(None))}
        return float(scene.distances(sides, None)[0].other.min())

    avoid = scene.avoidance(0, base, other, None)
    solved = refine(arm, joints, path, np.ones(COUNT, bool), 30.0, avoid)
    off = np.linalg.norm((arm.base_poses(solved) - path)[:, :3, 3], axis=1)
    assert gap(joints) < 0.02 and gap(solved) > 0.045 and off.max() < 0.005


def test_the_table(arm, hands) -> None:
    base = stand(0.6)
    path = swinging(arm, base, 0.3)
    for height, status in (("-0.5", hands.verdict.status), ("0.9", "fail")):
        settings = ArmSettings(arm.path, up=WORLD_UP, base_right=flags(base), table=height)
        result = attach_arms(along(hands, [path]), arm, settings, ROBOT)
        motion = result.arms[1]
        assert result.verdict.status == status
        # The lowest point of link 1 is at 0.07 m and cannot move away.
        expected = min(0.07 - float(height), 1.0)
        assert motion.to_table_m.min() <= expected + 1e-6
        assert motion.T_frame_table[:3, 3] == pytest.approx([0.6, 0, float(height)])
    assert "into the table in 100.0%" in str(result.verdict.reasons)


def test_a_gripper_of_the_file_is_taken_off(tmp_path: Path, hands) -> None:
    """What hangs on the link that carries the hand gives way to it; excluded links may touch."""
    file = capsule_arm(tmp_path / "arm.xml")
    text = file.read_text().replace(
        '<site name="attachment_site" pos="0 0 0.1"/>',
        '<site name="attachment_site" pos="0 0 0.1"/><body name="gripper" pos="0 0 0.1">'
        '<geom type="box" size=".3 .3 .3"/></body>',
    )
    file.write_text(text)
    arm = load_arm(file)
    assert [arm.model.body(body).name for body in arm.carried] == ["gripper"]
    scene = ArmScene(arm, hands, ROBOT, (1,), 0.02)
    place = {1: scene.places(1, np.eye(4), np.zeros((1, 7)), slice(0, 1))}
    assert scene.distances(place, None)[1].own[0] > 0

    bent = np.array([[0, 0, 0, 2.75, 0, 2.4, 0]])  # folded back onto link 3
    folded = {1: scene.places(1, np.eye(4), bent, slice(0, 1))}
    assert scene.distances(folded, None)[1].own[0] < 0


def test_flags_that_cannot_be_meant(arm) -> None:
    for given, words in (
        ({"path": None, "table": "none"}, "arm=FILE"),
        ({"path": arm.path, "base_right": (0.0,) * 5}, "arm_base_right"),
        ({"path": arm.path, "table": "low"}, "arm_table=.low"),
        ({"path": arm.path, "table": "nan"}, "arm_table=.nan"),
    ):
        with pytest.raises(InputError, match=words):
            ArmSettings(**given)


def test_the_main_job_says_where_arms_collide(arm, tmp_path: Path, capsys) -> None:
    import pyarrow.parquet as pq

    file, out = hands_file(tmp_path / "h.npz", joints=moving_hands(10)), tmp_path / "out"
    same = "--arm-base-left=0,0.5,0.6,1.5708,0,0", "--arm-base-right=0.1,0.5,0.6,1.5708,0,0"
    run = Run(capsys, file, "--output", out, "--arm", arm.path, *same)
    assert run.code == 0 and check_dataset(out) == []
    entry = run.json["episodes"][0]
    # Bases of radius 0.08 m, 0.1 m apart, are 60 mm inside each other whatever the joints do.
    for side in ("left", "right"):
        assert entry["arm"][side]["collision_frames"] == 10
        assert entry["arm"][side]["smallest_distance_mm"]["other_arm"] <= -60
        assert entry["arm"][side]["T_frame_table"] is None
    assert entry["verdict"] == "fail"
    assert "100.0% of the frames (0 to 9)" in " ".join(entry["reasons"])
    table = pq.read_table(next(out.glob("data/*/*.parquet")))
    assert (np.stack(table[ARM_CLEARANCE.name].to_numpy()) < -0.0599).all()
    info = json.loads((out / "meta" / "info.json").read_text())["features"]
    assert info[ARM_CLEARANCE.name]["names"] == ["left", "right"]
