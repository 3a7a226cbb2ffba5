"""dex-retargeting as a backend: driven as by hand, optimal by its formulas, as published."""

import dataclasses
import importlib.util
import sys
import tempfile

import numpy as np
import pytest

from acehand_core.errors import MissingDependencyError
from helpers.retarget_samples import motion_of, moving_hands, targets_of
from retarget.retargeting import retarget_motion
from retarget.robots.robot import load_robot
from retarget.solve import methods
from retarget.solve.methods import solve_dex
from retarget.targets import hand_targets

installed = pytest.mark.skipif(
    importlib.util.find_spec("dex_retargeting") is None,
    reason="dex-retargeting is not installed (extra: dex)",
)
ROBOT = load_robot("inspire")
TIPS = [4, 8, 12, 16, 20]
COMMANDS = ["pinky_proximal", "ring_proximal", "middle_proximal", "index_proximal",
            "thumb_proximal_pitch", "thumb_proximal_yaw"]  # fmt: skip
LINKS = ["thumb_tip", "index_tip", "middle_tip", "ring_tip", "pinky_tip"]


def sample(side, count=40):
    return hand_targets(motion_of(moving_hands(count)), side)


def driven_by_hand(side, mode, alpha, joints):
    from dex_retargeting.retargeting_config import RetargetingConfig

    settings = {
        "type": mode,
        "urdf_path": str(ROBOT.hand(side).urdf_path),
        "target_joint_names": [f"{side}_{name}" for name in COMMANDS],
        "low_pass_alpha": alpha,
    }
    links = [f"{side}_{name}" for name in LINKS]
    if mode == "vector":
        settings |= {
            "target_origin_link_names": [f"{side}_base"] * 5,
            "target_task_link_names": links,
            "scaling_factor": 1.15,
            "target_link_human_indices": np.array([[0, 0, 0, 0, 0], TIPS]),
        }
    elif mode == "dexpilot":
        settings |= {
            "wrist_link_name": f"{side}_base",
            "finger_tip_link_names": links,
            "scaling_factor": 1.15,
        }
    else:
        settings |= {
            "target_link_names": links,
            "target_link_human_indices": np.array(TIPS),
            "add_dummy_free_joint": True,
        }
    retargeting = RetargetingConfig(**settings).build()
    out = []
    for frame in joints:
        indices = retargeting.optimizer.target_link_human_indices
        value = frame[indices] if mode == "position" else frame[indices[1]] - frame[indices[0]]
        answer = retargeting.retarget(value)
        named = dict(zip(retargeting.joint_names, answer, strict=True))
        out.append([named[f"{side}_{name}"] for name in COMMANDS])
    return np.array(out)


@installed
@pytest.mark.parametrize(
    ("side", "mode", "filtered", "alpha"),
    [("left", "vector", True, 0.2), ("right", "vector", False, 1.0),
     ("right", "dexpilot", True, 0.2), ("left", "dexpilot", False, 1.0),
     ("left", "position", True, 1.0), ("right", "position", False, 1.0)],
)  # fmt: skip
def test_same_as_driving_the_library(side, mode, filtered, alpha, capsys):
    targets = sample(side)
    ours = solve_dex(ROBOT.hand(side), targets, mode, filtered)
    assert capsys.readouterr().out == ""
    theirs = driven_by_hand(side, mode, alpha, targets.joints_hand)
    assert np.abs(ours - theirs).max() < 1e-9
    assert np.ptp(ours, axis=0).max() > 0.3  # it moved


@installed
def test_inactive_frames_hold_the_last_pose():
    targets = sample("left", 20)
    hand = ROBOT.hand("left")
    active = np.ones(20, bool)
    active[:3] = active[8:12] = False
    joints = np.where(active[:, None, None], targets.joints_hand, np.nan)
    part = dataclasses.replace(targets, joints_hand=joints, active=active, weight=active * 1.0)
    solved = solve_dex(hand, part, "vector")
    assert (solved[:3] == hand.rest).all()
    assert (solved[8:12] == solved[7]).all()
    assert (solved[3:8] == solve_dex(hand, targets_of("left", joints[3:8]), "vector")).all()


@installed
def test_no_files_stay_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    methods.build_dex(ROBOT.hand("right"), "vector")
    assert list(tmp_path.iterdir()) == []
    assert tempfile.gettempdir() == str(tmp_path)


@pytest.mark.parametrize("method", ["dex-vector", "dex-dexpilot", "dex-position"])
def test_missing_library_is_named(method, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "dex_retargeting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dex_retargeting", None)
    with pytest.raises(MissingDependencyError, match=rf"{method}` needs dex-retargeting.*pip"):
        retarget_motion(motion_of(moving_hands(3)), ROBOT, method)
