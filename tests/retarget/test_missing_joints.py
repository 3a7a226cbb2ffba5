"""Joints that are missing cost their own finger, not the hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import retarget
from acehand_core import motion_from_joints
from acehand_core.errors import InputError
from acehand_core.motion import RobotTrajectory
from helpers import ROOT
from helpers.commands import Run, hands_file
from helpers.retarget_samples import motion_of, moving_hands
from retarget.targets import hand_targets

#: Four seconds; a tip that is missing for two of them.
COUNT, GAP = 120, slice(30, 90)
MOVING = moving_hands(COUNT)
OWN_ROBOT = ROOT / "examples/own_robot"


def without(*keypoints: int, rows: slice = slice(None)) -> np.ndarray:
    joints = MOVING.copy()
    joints[rows, :, list(keypoints)] = np.nan
    return joints


def followed(joints: np.ndarray, robot: str) -> RobotTrajectory:
    motion = motion_from_joints(joints, fps=30, frame="camera")
    return retarget.retarget(motion, retarget.load_robot(robot))


@pytest.fixture(scope="module")
def whole() -> RobotTrajectory:
    return followed(MOVING, "inspire")


def test_a_finger_missing_for_two_seconds_leaves_the_others(whole: RobotTrajectory) -> None:
    trajectory = followed(without(6, 7, 8, rows=GAP), "inspire")
    assert trajectory.active.all()
    names = trajectory.joint_names
    others = [i for i, name in enumerate(names) if name.startswith(("middle", "ring", "pinky"))]
    away = np.degrees(np.abs(trajectory.joints - whole.joints))
    assert len(others) == 6 and away[:, :, others].max() < 1.0
    assert any("left index fingertip" in r and "50%" in r for r in trajectory.verdict.reasons)


@pytest.mark.parametrize(
    "robot", [str(OWN_ROBOT), pytest.param("leap", marks=pytest.mark.slow)], ids=["own", "leap"]
)
def test_a_robot_without_a_pinky_needs_none(robot: str) -> None:
    """The human's pinky is never known, its knuckle neither: the robot does not notice."""
    right = np.array([[np.nan], [1.0]])[..., None]  # without the left hand
    full, lacking = (
        followed(joints[:60] * right, robot) for joints in (MOVING, without(17, 18, 19, 20))
    )
    assert lacking.active[:, 1].all()
    assert np.degrees(np.abs(lacking.joints - full.joints)).max() < 1.0
    assert lacking.verdict == full.verdict


def test_a_pinky_that_is_never_known_idles_and_is_named() -> None:
    trajectory = followed(without(18, 19, 20), "inspire")
    assert trajectory.active.all() and trajectory.verdict.status == "warn"
    for slot, side in enumerate(("left", "right")):
        assert any(f"{side} pinky" in reason for reason in trajectory.verdict.reasons)
        hand = retarget.load_robot("inspire").hand(side)
        pinky = hand.command_names.index("pinky")
        assert np.abs(trajectory.commands[:, slot, pinky] - hand.rest[pinky]).max() < 0.05
        assert trajectory.flexion[slot].fingers == ("index", "middle", "ring")
        assert np.isfinite(trajectory.flexion[slot].error_deg).all()
    assert np.isnan(trajectory.tip_error_m[..., 4]).all()
    assert np.isfinite(trajectory.tip_error_m[..., :4]).all()


def test_a_gripper_needs_thumb_and_index_together() -> None:
    full = followed(MOVING, "panda_gripper")
    trajectory = followed(without(8, rows=slice(40, 50)), "panda_gripper")
    assert trajectory.active.all()
    assert np.abs(trajectory.joints - full.joints).max() < 0.01  # metres
    lacking = without(8)
    with pytest.raises(InputError, match=r"thumb and index.*left hand"):
        followed(lacking, "panda_gripper")


def test_short_gaps_are_lines_in_the_palm() -> None:
    """Straight motion in the palm comes back exactly, whatever the hand does in space."""
    full = hand_targets(motion_of(MOVING), "right")
    joints = MOVING.copy()
    joints[40:50, 1, 12] = np.nan  # 10 frames at 30 per second
    joints[60:80, 1, 11:13] = np.nan  # 20 are too many
    joints[60:80, 1, 10] = np.nan
    targets = hand_targets(motion_of(joints), "right")
    line = np.linspace(0, 1, 12)[1:-1, None]
    ends = full.joints_hand[[39, 50], 12]
    expected = ends[0] + line * (ends[1] - ends[0])
    np.testing.assert_allclose(targets.joints_hand[40:50, 12], expected, atol=1e-12)
    assert np.isnan(targets.joints_hand[60:80, 10:13]).all()
    known = np.ones(COUNT, bool)
    known[40:50] = known[60:80] = False
    np.testing.assert_array_equal(targets.joints_hand[known], full.joints_hand[known])


def test_a_finger_tells_where_its_tip_is() -> None:
    """The tip is estimated from the other joints; it was seen in the rest of the recording."""
    full = hand_targets(motion_of(MOVING), "right")
    targets = hand_targets(motion_of(without(8, rows=GAP)), "right")
    away = np.linalg.norm(targets.joints_hand[GAP, 8] - full.joints_hand[GAP, 8], axis=-1)
    assert away.max() < 0.003
    few = replace(motion_of(without(8, rows=slice(20, None))))
    assert np.isnan(hand_targets(few, "right").joints_hand[20:, 8]).all()


def test_the_report_says_what_was_seen(tmp_path: Path, capsys) -> None:
    joints = without(8, rows=GAP)
    joints[:, 1, 18:] = np.nan
    joints[100:, 0] = np.nan
    path = hands_file(tmp_path / "h.npz", COUNT, joints=joints)
    run = Run(capsys, path, "--output", tmp_path / "out", "--no-overlay", "--dry-run")
    episode = run.json["episodes"][0]
    assert episode["coverage"] == {"left": pytest.approx(100 / 120, abs=1e-4), "right": 1.0}
    left, right = episode["finger_coverage"]["left"], episode["finger_coverage"]["right"]
    assert right == {
        "thumb": 1,
        "index": pytest.approx(1 - 0.5 / 3, abs=1e-4),
        "middle": 1,
        "ring": 1,
        "pinky": 0,
    }
    assert left["pinky"] == pytest.approx(100 / 120, abs=1e-4)
    assert left["index"] == pytest.approx((100 - 60 / 3) / 120, abs=1e-4)
