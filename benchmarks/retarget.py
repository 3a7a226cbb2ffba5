# ruff: noqa: E402
"""Our retargeting beside dex-retargeting's three modes, on one hand's recorded joints.

    python benchmarks/retarget.py --json [--joints FILE.npz] [--save DIR] [--ablation]

Every method gets the same joints and the same robot, runs on one thread, and is scored by
``retarget.metrics`` on common ground: after the one similarity of the human tips that fits its own
output best. dex-retargeting is scored as it answers, limits or not. Times are solve time only, the
best of ``--repeat`` runs. Beside the recorded hand synthetic ones are scored: pinches that close to
0 mm, motions that the robot can do exactly, and fingers faster than any robot's. Tables go to
standard error, one JSON object to standard output.
"""

from __future__ import annotations

import os
import sys

# This file is named like the package it measures: start again without its folder on the path, and
# with one thread for everybody.
_SINGLE = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
if __name__ == "__main__" and not (sys.flags.safe_path and os.environ.items() >= _SINGLE.items()):
    arguments = [sys.executable, "-P", __file__, *sys.argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **_SINGLE})

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.data.synthetic.gestures import fast_hand, pinching_hand
from acehand_core.errors import AcehandError, InputError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import FINGERS, KNUCKLES, WRIST
from acehand_core.motion import Calibration
from acehand_core.trackers.files import read_joints_file
from acehand_core.types import SIDES
from retarget import dex, limits, metrics, trials
from retarget.calibration import calibrate
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.objective import Weights
from retarget.pipeline import solve_hand
from retarget.robot import load_robot
from retarget.simulate import PENETRATION_LIMIT_M, ReplayOptions, replay, self_penetration
from retarget.targets import HandTargets, hand_targets, palm_frames

DEFAULT_INPUT = "data/human_joint_right.npz"
#: Synthetic tips nearer than this touch.
TOUCHING_M = 1e-3
#: Files whose own axes are further from the palm's than this need --palm-frame.
FOREIGN_AXES_RAD = np.radians(45)
#: Rounds of the search for the least tip error (``--ablation``).
REFITS = 14

Solve = Callable[[], tuple[np.ndarray, float]]


def main() -> int:
    options = _options()
    try:
        path = options.joints or _default_input()
        hand, targets, fps = load_hand(path, options)
        methods = _methods(hand, targets, fps)
        runs = {name: _best(solve, options.repeat) for name, solve in methods.items()}
        scores = {
            name: score(hand, targets, fps, commands, seconds)
            for name, (commands, seconds) in runs.items()
        }
        _print_table(path.name, scores)
        synthetic = score_synthetic(hand, fps) if options.synthetic else {}
        ablation = score_ablation(hand, targets, fps) if options.ablation else {}
    except AcehandError as error:
        print(f"benchmarks/retarget.py: {error}", file=sys.stderr)
        return 2
    if options.save:
        _save(options.save, hand, fps, {name: commands for name, (commands, _) in runs.items()})
    ratio = scores["dex_vector"]["ms_per_frame"] / scores["ours"]["ms_per_frame"]
    report = {
        "input": path.name,
        "frames": len(targets.joints_hand),
        "side": hand.side,
        "fps": fps,
        "methods": scores,
        "speed_ratio_vs_dex_vector": ratio,
        "synthetic": synthetic,
        "ablation": ablation,
    }
    if options.json:
        print(json.dumps(_without_nan(report)))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as last line")
    parser.add_argument(
        "--joints", type=Path, metavar="FILE.npz",
        help=f"a joints file (docs/formats.md); default $ACEHAND_SHARED/{DEFAULT_INPUT}",
    )  # fmt: skip
    parser.add_argument("--side", choices=SIDES, help="which hand; default the one in the file")
    parser.add_argument(
        "--palm-frame", action="store_true",
        help="turn the joints into the palm frame; default: the file's axes are x out of the palm "
        "and z from the wrist to the fingers",
    )  # fmt: skip
    parser.add_argument("--frames", type=int, metavar="N", help="only the first N frames")
    parser.add_argument("--robot", default="inspire", help="robot name or robot.yaml")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs to time")
    parser.add_argument(
        "--synthetic", action=argparse.BooleanOptionalAction, default=True,
        help="score synthetic motions as well (on)",
    )  # fmt: skip
    parser.add_argument("--ablation", action="store_true", help="score ours without each part")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write each method's joints, npz")
    return parser.parse_args()


def _default_input() -> Path:
    folder = os.environ.get("ACEHAND_SHARED")
    default = Path(__file__).resolve().parents[2] / "shared"
    path = Path(folder or default) / DEFAULT_INPUT
    if not path.is_file():
        raise InputError(f"{path}: no such file; give --joints FILE.npz, or set ACEHAND_SHARED.")
    return path


def load_hand(path: Path, options: argparse.Namespace) -> tuple[HandSpec, HandTargets, float]:
    """Read the one hand to retarget.

    Raises:
        InputError: no such hand, or axes that are not the palm's.
    """
    motion = read_joints_file(path, options.side or "right")
    present = [side for slot, side in enumerate(SIDES) if motion.known[:, slot].any()]
    side = options.side or (present[-1] if present else "right")
    targets = hand_targets(motion, side)
    if targets is None:
        raise InputError(f"{path}: no {side} hand in it; found: {', '.join(present) or 'none'}.")
    if not options.palm_frame:
        joints = motion.joints_camera[:, SIDES.index(side)]
        joints = joints - joints[:, [WRIST]]
        axes = palm_frames(joints[targets.followed], side)[:, :3, :3].mean(0)
        off = rotations.angle_between(rotations.project_to_rotation(axes)[None], np.eye(3)[None])[0]
        if off > FOREIGN_AXES_RAD:
            raise InputError(
                f"{path}: its axes are {np.degrees(off):.0f} degrees from the palm's (x out of the "
                "palm, z wrist to fingers); add --palm-frame."
            )
        joints = np.where(targets.followed[:, None, None], joints, np.nan)
        targets = dataclasses.replace(targets, joints_hand=joints)
    if options.frames:
        keep = slice(options.frames)
        targets = dataclasses.replace(
            targets,
            joints_hand=targets.joints_hand[keep],
            weight=targets.weight[keep],
            active=targets.active[keep],
        )
    targets = dataclasses.replace(targets, T_camera_hand=None)
    return load_robot(options.robot).hand(side), targets, motion.fps


def _methods(hand: HandSpec, targets: HandTargets, fps: float) -> dict[str, Solve]:
    """Return a function per method that runs it once: commands (T, C) and seconds."""

    def with_dex(mode: str, filtered: bool = True) -> Solve:
        def solve() -> tuple[np.ndarray, float]:
            retargeting = dex.build(hand, mode, filtered)
            _one_torch_thread()
            started = time.perf_counter()
            commands = dex.follow(retargeting, hand, targets)
            return np.asarray(commands, float), time.perf_counter() - started

        return solve

    return {
        "ours": lambda: _solve_ours(hand, targets, fps),
        "dex_vector": with_dex("vector"),
        "dex_dexpilot": with_dex("dexpilot"),
        "dex_position": with_dex("position"),
        "dex_vector_unfiltered": with_dex("vector", filtered=False),
        "dex_dexpilot_unfiltered": with_dex("dexpilot", filtered=False),
    }


def _solve_ours(hand: HandSpec, targets: HandTargets, fps: float) -> tuple[np.ndarray, float]:
    return _timed(hand, targets, fps, Weights())


def score_synthetic(hand: HandSpec, fps: float) -> dict[str, dict[str, Any]]:
    """Return the scores of ours and dex-retargeting's main modes on motions that are made here."""
    tree, out = KinematicTree.of(hand), {}
    for name, targets in _synthetic_targets(hand, tree, fps).items():
        methods = _methods(hand, targets, fps)
        scores = {}
        for method in ("ours", "dex_vector", "dex_dexpilot"):
            commands, seconds = _best(methods[method], 1)
            row = score(hand, targets, fps, commands, seconds)
            touching = row["touch_mm"] = {}
            tips = tree.points(hand.expand(commands), hand.tip_names)
            human = targets.tips_of(hand.fingers)
            for k in range(1, len(hand.fingers)):
                shut = np.linalg.norm(human[:, k] - human[:, 0], axis=-1) < TOUCHING_M
                if shut.any():
                    gap = np.linalg.norm(tips[shut, k] - tips[shut, 0], axis=-1)
                    touching[hand.fingers[k]] = float(gap.mean() * 1e3)
            scores[method] = row
        _print_table(f"synthetic: {name}", scores)
        out[name] = scores
    return out


def _synthetic_targets(hand: HandSpec, tree: KinematicTree, fps: float) -> dict[str, HandTargets]:
    """Return named targets: human gestures in their palm frame, and the robot's own motion."""
    gestures = {f"pinch_{f}": pinching_hand(hand.side, f, fps) for f in ("index", "middle")}
    gestures["fast"] = fast_hand(hand.side, fps)
    joints = {
        name: frames.apply(frames.inverse(palm_frames(hands, hand.side)), hands)
        for name, hands in gestures.items()
    }
    out = {}
    for name, values in joints.items():
        count = len(values)
        out[name] = HandTargets(hand.side, values, np.ones(count), np.ones(count, bool), None)
    # A human hand is smaller than this robot's: the similarity has something to find.
    size = Calibration(1.1, np.eye(3), np.zeros(3), 0.0)
    out["feasible"] = trials.targets_of(hand, tree, trials.slow_commands(hand, fps), size)
    return out


def score_ablation(hand: HandSpec, targets: HandTargets, fps: float) -> dict[str, dict[str, Any]]:
    """Score our solver with one part left out at a time; see docs/retargeting.md."""
    full = Weights()
    changes: dict[str, dict[str, float]] = {
        "all terms": {},
        **{f"without {name}": {name: 0.0} for name in
           ("link", "direction", "pinch", "rest", "acceleration", "jerk", "contact")},
    }  # fmt: skip
    tree = KinematicTree.of(hand)
    runs = {
        name: _timed(hand, targets, fps, dataclasses.replace(full, **change))
        for name, change in changes.items()
    }
    fitted = calibrate(hand, tree, targets, full)
    alike = dataclasses.replace(fitted, anchors=np.zeros((5, 3)), lengths=np.ones(5))
    runs["without anchors, lengths"] = _timed(hand, targets, fps, full, alike)
    sized = Calibration(1.0, np.eye(3), np.zeros(3), 0.0)
    runs["without calibration"] = _timed(hand, targets, fps, full, sized)
    for name, limited in (("tips only, refitted", True), ("same, no rate limits", False)):
        runs[name] = _tips_only(hand, targets, fps, limited)
    scores = {name: score(hand, targets, fps, *run) for name, run in runs.items()}
    _print_table("ablation", scores)
    return scores


def _tips_only(
    hand: HandSpec, targets: HandTargets, fps: float, limited: bool
) -> tuple[np.ndarray, float]:
    """Follow fingertips and nothing else, on the similarity that fits what was reached best.

    Solving and fitting take turns ``REFITS`` times; the round of the least mean error counts. It is
    a search for what the hand can reach, from one start, and no proof. Without ``limited`` speed
    and acceleration are free.
    """
    tree, bounds = KinematicTree.of(hand), limits.CommandLimits.of(hand, fps)
    bounds = bounds if limited else bounds.without_rate()
    off = {name: 0.0 for name in ("link", "direction", "pinch", "contact", "acceleration", "jerk")}
    weights = Weights(rest=1e-8, **off)
    calibration = calibrate(hand, tree, targets, Weights())
    human = targets.tips_of(hand.fingers)[targets.followed]
    best, least = np.zeros(0), np.inf
    started = time.perf_counter()
    for _ in range(REFITS):
        commands = solve_hand(hand, tree, targets, calibration, bounds, weights)
        tips = tree.points(hand.expand(commands), hand.tip_names)[targets.followed]
        ground = metrics.CommonGround.fit(human, tips)
        error = float(metrics.tip_error(human, tips, ground).mean())
        if error < least:
            best, least = commands, error
        calibration = Calibration(ground.scale, ground.rotation, ground.translation, 0.0)
    return best, time.perf_counter() - started


def _timed(
    hand: HandSpec,
    targets: HandTargets,
    fps: float,
    weights: Weights,
    calibration: Calibration | None = None,
) -> tuple[np.ndarray, float]:
    tree = KinematicTree.of(hand)
    calibration = calibration or calibrate(hand, tree, targets, weights)
    started = time.perf_counter()
    bounds = limits.CommandLimits.of(hand, fps)
    commands = solve_hand(hand, tree, targets, calibration, bounds, weights)
    return commands, time.perf_counter() - started


def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _best(solve: Solve, repeat: int) -> tuple[np.ndarray, float]:
    runs = [solve() for _ in range(max(1, repeat))]
    return runs[0][0], min(seconds for _, seconds in runs)


def score(
    hand: HandSpec, targets: HandTargets, fps: float, commands: np.ndarray, seconds: float
) -> dict[str, Any]:
    """Return every metric of one method's commands (T, C); see ``retarget.metrics``."""
    tree, active = KinematicTree.of(hand), targets.followed
    joints = hand.expand(commands)
    robot = tree.points(joints, hand.tip_names)[active]
    human = targets.tips_of(hand.fingers)[active]
    ground = metrics.CommonGround.fit(human, robot)
    error = metrics.tip_error(human, robot, ground) * 1e3
    pinch = metrics.pinch(human, robot)
    return {
        "tip_error_mm": {
            **_summary(error),
            "per_finger": dict(zip(hand.fingers, error.mean(0).tolist(), strict=True)),
        },
        "tip_error_human_mm": _summary(error / ground.scale),
        **_directions(hand, tree, targets, joints, ground),
        "pinch_mm": pinch.robot_m * 1e3,
        "pinch_recall": pinch.recall,
        "false_pinch_share": pinch.false_share,
        "n_pinch": pinch.frames,
        **_limits(hand, fps, commands),
        "lag_frames": metrics.lag_frames(human, robot),
        "jerk_rad_s3": metrics.rms_jerk(commands, fps),
        **_physics(hand, tree, fps, commands, active),
        "ms_per_frame": seconds / len(commands) * 1e3,
        "calibration": {
            "scale": ground.scale,
            "rotation": ground.rotation.tolist(),
            "translation": ground.translation.tolist(),
        },
    }


def _summary(values: np.ndarray) -> dict[str, float]:
    return {"mean": float(values.mean()), "p95": float(np.percentile(values, 95))}


def _directions(
    hand: HandSpec,
    tree: KinematicTree,
    targets: HandTargets,
    joints: np.ndarray,
    ground: metrics.CommonGround,
) -> dict[str, float]:
    """Compare wrist-to-tip and knuckle-to-tip vectors; a knuckle that is not known is left out."""
    active = targets.followed
    frame_of = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
    human_tips = targets.tips_of(hand.fingers)[active]
    robot_tips = tree.points(joints, hand.tip_names)[active]
    human_wrist = targets.joints_hand[active][:, [WRIST]]
    wrist = metrics.direction_error(human_tips - human_wrist, robot_tips, ground)
    knuckle = []
    for k, finger in enumerate(hand.fingers):
        keypoint = KNUCKLES[FINGERS.index(finger)]
        if keypoint in frame_of:
            base = tree.points(joints, [frame_of[keypoint]])[active]
            human = human_tips[:, [k]] - targets.joints_hand[active][:, [keypoint]]
            knuckle.append(metrics.direction_error(human, robot_tips[:, [k]] - base, ground))
    both = np.concatenate([wrist, *knuckle], axis=1)
    return {
        "direction_deg": float(np.degrees(np.nanmean(both))),
        "direction_wrist_deg": float(np.degrees(wrist.mean())),
    }


def _limits(hand: HandSpec, fps: float, commands: np.ndarray) -> dict[str, float]:
    joints = hand.expand(commands)
    driven = (commands < hand.command_lower - limits.ANGLE_EPS) | (
        commands > hand.command_upper + limits.ANGLE_EPS
    )
    excess = np.maximum(hand.lower - joints, joints - hand.upper).max()
    speed = metrics.rate_excess(commands, hand.command_velocity, fps, 1)
    acceleration = metrics.rate_excess(commands, hand.command_acceleration, fps, 2)
    return {
        "limit_violation_share": limits.limit_violations(hand, joints) / joints.size,
        "limit_violation_share_driven": float(driven.mean()),
        "limit_excess_rad": float(max(0.0, excess)),
        "coupling_residual_rad": hand.coupling_residual(joints),
        "speed_violation_share": speed[0],
        "speed_ratio": speed[1],
        "acceleration_violation_share": acceleration[0],
        "acceleration_ratio": acceleration[1],
    }


def _physics(
    hand: HandSpec, tree: KinematicTree, fps: float, commands: np.ndarray, active: np.ndarray
) -> dict[str, float]:
    """Collide the commands with themselves, and play them to the simulated hand."""
    depth = self_penetration(hand, hand.expand(commands))
    times = np.arange(len(commands)) / fps
    played = replay(hand, commands, times, active)
    late = replay(hand, commands, times, active, ReplayOptions(latency_s=hand.latency_s))
    commanded = tree.points(hand.expand(commands), hand.tip_names)
    gap = np.linalg.norm(tree.points(played.joints, hand.tip_names) - commanded, axis=-1)[active]
    return {
        "penetration_frames": int((depth > PENETRATION_LIMIT_M).sum()),
        "penetration_share": float((depth > PENETRATION_LIMIT_M).mean()),
        "penetration_max_mm": float(depth.max() * 1e3),
        "penetration_mean_mm": float(depth.mean() * 1e3),
        "tracking_rms_rad": played.report.rms_tracking_rad,
        "tracking_rms_late_rad": late.report.rms_tracking_rad,
        "tracking_tip_rms_mm": float(np.sqrt(np.mean(gap**2)) * 1e3),
        "saturation_share": played.report.saturation_share,
        "unstable_steps": played.report.unstable_steps,
    }


def _save(folder: Path, hand: HandSpec, fps: float, commands: dict[str, np.ndarray]) -> None:
    """Write ``<method>.npz``: joints (T, Q) in rad, their names with side, and the rate."""
    folder.mkdir(parents=True, exist_ok=True)
    names = np.array([hand.full_name(name) for name in hand.joint_names])
    for method, angles in commands.items():
        np.savez_compressed(
            folder / f"{method}.npz", joints=hand.expand(angles), joint_names=names, fps=fps
        )


def _print_table(title: str, scores: dict[str, dict[str, Any]]) -> None:
    print(
        f"{title}\n{'method':<24}"
        f"{'tip mean/p95 mm':>16}{'human':>7}{'dir':>6}{'pinch mm, recall':>18}"
        f"{'false':>7}{'over limit':>11}{'speed, ratio':>14}{'lag':>5}{'jerk':>6}{'pen.':>6}"
        f"{'track':>7}{'ms':>6}",
        file=sys.stderr,
    )
    for name, row in scores.items():
        tip = row["tip_error_mm"]
        print(
            f"{name:<24}{tip['mean']:>9.1f} / {tip['p95']:4.1f}"
            f"{row['tip_error_human_mm']['mean']:>7.1f}{row['direction_deg']:>6.1f}"
            f"{row['pinch_mm']:>11.1f}, {row['pinch_recall']:5.2f}{row['false_pinch_share']:>7.3f}"
            f"{row['limit_violation_share']:>11.1%}{row['speed_violation_share']:>8.1%},"
            f"{row['speed_ratio']:5.1f}{row['lag_frames']:>5}{row['jerk_rad_s3']:>6.0f}"
            f"{row['penetration_frames']:>6}{row['tracking_rms_rad']:>7.3f}"
            f"{row['ms_per_frame']:>6.2f}"
            + "".join(f"  touch {f} {v:.1f}" for f, v in row.get("touch_mm", {}).items()),
            file=sys.stderr,
        )


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: what could not be measured is null."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
