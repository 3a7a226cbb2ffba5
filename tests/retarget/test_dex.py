"""dex-retargeting as a backend: driven as by hand, optimal by its formulas, as published."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tempfile

import numpy as np
import pytest

from acehand_core.errors import MissingDependencyError
from acehand_core.geometry import frames, rotations
from acehand_core.types import SIDES
from helpers.retarget_samples import human_joints, motion_of, moving_hands, targets_of
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve import methods
from retarget.solve.methods import solve_dex
from retarget.targets import hand_targets, palm_frames

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
    """The library used as its own examples do, with its shipped settings written out."""
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
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("mode", "filtered", "alpha"),
    [("vector", True, 0.2), ("vector", False, 1.0), ("dexpilot", True, 0.2),
     ("dexpilot", False, 1.0), ("position", True, 1.0), ("position", False, 1.0)],
)  # fmt: skip
def test_same_as_driving_the_library(side, mode, filtered, alpha, capsys):
    targets = sample(side)
    ours = solve_dex(ROBOT.hand(side), targets, mode, filtered)
    assert capsys.readouterr().out == ""
    theirs = driven_by_hand(side, mode, alpha, targets.joints_hand)
    assert np.abs(ours - theirs).max() < 1e-9
    assert np.ptp(ours, axis=0).max() > 0.3  # it moved


def smooth_l1(x, beta):
    x = np.abs(x)
    return np.where(x < beta, 0.5 * x**2 / beta, x - 0.5 * beta)


def vector_loss(tips, human):
    return smooth_l1(np.linalg.norm(tips - 1.15 * human[TIPS], axis=-1), 0.02).mean()


def position_loss(tips, human):
    return smooth_l1(tips - human[TIPS], 0.02).mean()


def dexpilot_loss(tips, human):
    """Ten pairs of tips, thumb first, then wrist to tips; smooth L1 with beta 0.03."""
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    wanted = {pair: human[TIPS[pair[0]]] - human[TIPS[pair[1]]] for pair in pairs}
    length = {pair: np.linalg.norm(vector) for pair, vector in wanted.items()}
    close = {(0, j): length[0, j] < 0.03 for j in range(1, 5)}
    for i, j in pairs[4:]:
        close[i, j] = close[0, i] and close[0, j] and length[i, j] <= 0.03
    total = 0.0
    for i, j in pairs:
        goal, weight = 1.15 * wanted[i, j], 1.0
        if close[i, j]:
            shrunk = 1e-4 if i == 0 else 3e-2
            goal = shrunk * wanted[i, j] / (length[i, j] + 1e-6)
            weight = 200.0 if i == 0 else 400.0
        total += weight * smooth_l1(np.linalg.norm(tips[i] - tips[j] - goal), 0.03)
    for finger in range(5):
        total += 15.0 * smooth_l1(np.linalg.norm(tips[finger] - 1.15 * human[TIPS[finger]]), 0.03)
    return total / 15


def still_hands():
    """An open hand, a bent one, and one whose thumb comes within 30 mm of the index tip."""
    joints = human_joints("right", 2, seed=4)
    local = frames.apply(frames.inverse(palm_frames(joints, "right")), joints)
    pinching = local[1].copy()
    pinching[4] = pinching[8] + [0.0, 0.02, -0.005]
    return {"open": local[0], "bent": local[1], "pinching": pinching}


@installed
@pytest.mark.parametrize("mode", methods.DEX_MODES)
@pytest.mark.parametrize("name", ["open", "bent", "pinching"])
def test_optimum_of_the_published_formula(mode, name):
    """The same frame again and again, so that the pull towards the last pose vanishes.

    Then no small move inside the library's limits (1 mrad wider than ours) makes the loss smaller.
    """
    human = still_hands()[name]
    hand = ROBOT.hand("right")
    tree = KinematicTree.of(hand)
    targets = targets_of("right", np.tile(human, (60, 1, 1)))
    retargeting = methods.build_dex(hand, mode, filtered=False)
    commands = methods.drive_dex(retargeting, hand, targets)[-1]
    loss = {"vector": vector_loss, "position": position_loss, "dexpilot": dexpilot_loss}[mode]
    base = np.zeros(6)
    if mode == "position":
        # Six joints of the floating base come first: place, then turns about x, y, z.
        base = np.asarray(retargeting.last_qpos[:6], float)

    def value(q, place):
        turns = [rotations.exp(place[3 + i] * np.eye(3)[i]) for i in range(3)]
        tips = tree.points(hand.expand(q[None]), hand.tip_names)[0]
        return loss(tips @ (turns[0] @ turns[1] @ turns[2]).T + place[:3], human)

    best = value(commands, base)
    rng = np.random.default_rng(0)
    low, high = hand.command_lower - 1e-3, hand.command_upper + 1e-3
    for size in (0.003, 0.03):
        for _ in range(100):
            q = np.clip(commands + rng.normal(0, size, 6), low, high)
            place = base
            if mode == "position":
                place = base + rng.normal(0, size, 6) * [0.1, 0.1, 0.1, 1, 1, 1]
            # 1e-5: the library stops where the loss changes by less.
            assert value(q, place) > best - 1e-5 * max(1.0, best)


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
    with pytest.raises(MissingDependencyError, match=rf"{method} needs dex-retargeting.*pip"):
        retarget_motion(motion_of(moving_hands(3)), ROBOT, method)
