"""Every measure of one method on one take, and their means over takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.hand.skeleton import FINGERS, KNUCKLES, WRIST
from benchmarks.retargeting import measures
from benchmarks.retargeting.recordings import Take
from retarget.replay import metrics
from retarget.replay.metrics import flexion_report
from retarget.replay.simulate import PENETRATION_LIMIT_M, replay, self_penetration
from retarget.robots import hand_spec
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.targets import HandTargets

#: Beyond the joint limits by more than this: dex-retargeting's own margin is 1 mrad.
CLEARLY_BEYOND_RAD = 2e-3
#: Over several takes: the largest of these, the sum of those; all else is a mean over frames, of
#: pinches over frames of pinches.
LARGEST = ("limit_excess_rad", "coupling_residual_rad", "speed_ratio", "acceleration_ratio",
           "penetration_max_mm")  # fmt: skip
SUMS = ("frames", "n_pinch", "penetration_frames", "unstable_steps")
PINCHES = ("pinch_mm", "pinch_recall")

Commands = Float[np.ndarray, "T C"]


def score(hand: HandSpec, take: Take, commands: Commands, seconds: float) -> dict[str, Any]:
    """Return every metric of commands (T, C); see ``measures`` and ``retarget.replay.metrics``."""
    tree, targets, active = KinematicTree.of(hand), take.targets, take.targets.usable
    joints = hand.expand(commands)
    robot = tree.points(joints, hand.tip_names)[active]
    human = targets.tips_of(hand.fingers)[active]
    ground = metrics.CommonGround.fit(human, robot)
    error = metrics.tip_error(human, robot, ground) * 1e3
    pinch = measures.pinch(human, robot)
    bent = flexion_report(hand, tree, targets, commands)
    return {
        "frames": len(commands),
        "tip_error_mm": {
            **_summary(error),
            "per_finger": dict(zip(hand.fingers, error.mean(0).tolist(), strict=True)),
        },
        "tip_error_human_mm": _summary(error / ground.scale),
        "similarity_scale": ground.scale,
        **_directions(hand, tree, targets, joints, ground),
        "flexion_error_deg": math.nan if bent is None else float(bent.error_deg.mean()),
        "pinch_mm": pinch.robot_m * 1e3,
        "pinch_recall": pinch.recall,
        "false_pinch_share": pinch.false_share,
        "n_pinch": pinch.frames,
        **_limits(hand, take.fps, commands),
        "lag_frames": measures.lag_frames(human, robot),
        "jerk_rad_s3": measures.rms_jerk(commands, take.fps),
        **_physics(hand, tree, take.fps, commands, active),
        "ms_per_frame": seconds / len(commands) * 1e3,
    }


def pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the scores of several takes as one: see ``LARGEST``, ``SUMS`` and ``PINCHES``."""
    out: dict[str, Any] = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        if isinstance(first, dict):
            inner = [{"frames": row["frames"], **row[key]} for row in rows]
            out[key] = {k: v for k, v in pooled(inner).items() if k != "frames"}
        elif key in LARGEST:
            out[key] = max(values)
        elif key in SUMS:
            out[key] = sum(values)
        else:
            counts = [row["n_pinch"] if key in PINCHES else row["frames"] for row in rows]
            pairs = [(v, n) for v, n in zip(values, counts, strict=True) if math.isfinite(v) and n]
            total = sum(n for _, n in pairs)
            out[key] = sum(v * n for v, n in pairs) / total if total else math.nan
    return out


def touching_mm(hand: HandSpec, take: Take, commands: Commands, near_m: float) -> dict[str, float]:
    """Return the robot's mean gap between thumb and each finger where the human's tips touch."""
    tips = KinematicTree.of(hand).points(hand.expand(commands), hand.tip_names)
    human = take.targets.tips_of(hand.fingers)
    out = {}
    for k in range(1, len(hand.fingers)):
        shut = np.linalg.norm(human[:, k] - human[:, 0], axis=-1) < near_m
        if shut.any():
            gap = np.linalg.norm(tips[shut, k] - tips[shut, 0], axis=-1)
            out[hand.fingers[k]] = float(gap.mean() * 1e3)
    return out


def _summary(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "p95": float(np.percentile(values, 95))}


def _directions(
    hand: HandSpec,
    tree: KinematicTree,
    targets: HandTargets,
    joints: np.ndarray,
    ground: metrics.CommonGround,
) -> dict[str, float]:
    """Compare wrist-to-tip and knuckle-to-tip vectors; a knuckle that is not known is left out.

    ``direction_palm_deg`` turns nothing: the human's palm frame is taken for the robot's base, as
    dex-retargeting takes it. The others are compared after the similarity's rotation.
    """
    active = targets.usable
    frame_of = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    human_tips = targets.tips_of(hand.fingers)[active]
    robot_tips = tree.points(joints, hand.tip_names)[active]
    human = human_tips - targets.joints_hand[active][:, [WRIST]]
    wrist = measures.direction_error(human, robot_tips, ground)
    same = metrics.CommonGround(1.0, np.eye(3), np.zeros(3))
    palm = measures.direction_error(human, robot_tips, same)
    knuckle = []
    for k, finger in enumerate(hand.fingers):
        keypoint = KNUCKLES[FINGERS.index(finger)]
        if keypoint in frame_of:
            base = tree.points(joints, [frame_of[keypoint]])[active]
            human = human_tips[:, [k]] - targets.joints_hand[active][:, [keypoint]]
            knuckle.append(measures.direction_error(human, robot_tips[:, [k]] - base, ground))
    return {
        "direction_palm_deg": float(np.degrees(palm.mean())),
        "direction_wrist_deg": float(np.degrees(wrist.mean())),
        "direction_knuckle_deg": float(np.degrees(np.nanmean(np.concatenate(knuckle, axis=1)))),
    }


def _limits(hand: HandSpec, fps: float, commands: Commands) -> dict[str, float]:
    joints = hand.expand(commands)
    excess = np.maximum(hand.lower - joints, joints - hand.upper)
    speed = measures.rate_excess(commands, hand.command_velocity, fps, 1)
    acceleration = measures.rate_excess(commands, hand.command_acceleration, fps, 2)
    return {
        "limit_violation_share": hand_spec.limit_violations(hand, joints) / joints.size,
        "limit_violation_share_2mrad": float((excess > CLEARLY_BEYOND_RAD).mean()),
        "limit_excess_rad": float(max(0.0, excess.max())),
        "coupling_residual_rad": hand.coupling_residual(joints),
        "speed_violation_share": speed[0],
        "speed_ratio": speed[1],
        "acceleration_violation_share": acceleration[0],
        "acceleration_ratio": acceleration[1],
    }


def _physics(
    hand: HandSpec,
    tree: KinematicTree,
    fps: float,
    commands: Commands,
    active: Bool[np.ndarray, "T"],
) -> dict[str, float]:
    """Collide the commands with themselves, and play them to the simulated hand."""
    depth = self_penetration(hand, hand.expand(commands))
    times = np.arange(len(commands)) / fps
    played = replay(hand, commands, times, active)
    commanded = tree.points(hand.expand(commands), hand.tip_names)
    gap = np.linalg.norm(tree.points(played.joints, hand.tip_names) - commanded, axis=-1)[active]
    return {
        "penetration_frames": int((depth > PENETRATION_LIMIT_M).sum()),
        "penetration_max_mm": float(depth.max() * 1e3),
        "penetration_mean_mm": float(depth.mean() * 1e3),
        "tracking_rms_rad": played.report.rms_tracking_rad,
        "tracking_tip_rms_mm": float(np.sqrt(np.mean(gap**2)) * 1e3),
        "saturation_share": played.report.saturation_share,
        "unstable_steps": played.report.unstable_steps,
    }
