"""Peak memory and time of the trajectory solver over an hour, and its seams.

    python -m benchmarks.retarget_hour [--minutes 6 60]

Each length runs in a process of its own: a synthetic hand at 30 fps whose thumb and index pinch
again and again. ``seam_rad`` compares a clip of two chunks with one solve of all its frames.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from acehand_core.motion import Calibration
from benchmarks import provenance
from benchmarks.retargeting import trials
from retarget.robots.hand_spec import CommandLimits, speed_violations
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve import trajectory
from retarget.solve.methods import solve_hand
from retarget.targets import HandTargets

FPS = 30.0
#: Beyond a limit by less than this share is rounding.
EXACT = 1 + 1e-6
SAME = Calibration(1.0, np.eye(3), np.zeros(3), 0.0)


def main() -> int:
    begun = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # always printed
    parser.add_argument("--minutes", type=float, nargs="+", default=[6.0, 60.0])
    parser.add_argument("--one", type=float, help=argparse.SUPPRESS)
    provenance.add_output(parser)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one)))
        return 0
    runs = []
    for minutes in options.minutes:
        command = [sys.executable, "-m", "benchmarks.retarget_hour", "--one", str(minutes)]
        done = subprocess.run(
            command, cwd=provenance.ROOT, check=True, capture_output=True, text=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        print(runs[-1], file=sys.stderr)
    report = {
        "runs": runs,
        "memory_ratio": runs[-1]["peak_mb"] / runs[0]["peak_mb"],
        "memory_allowed_mb": 1.1 * runs[0]["peak_mb"] + 50,
        "seam_rad": seam(),
    }
    provenance.publish(begun, report, options.output)
    return 0


def pinching_targets(count: int) -> HandTargets:
    """Return slow random motions; thumb and index tips meet every six seconds."""
    hand = load_robot("inspire").hand("right")
    commands = trials.slow_commands(hand, FPS, count / FPS)
    targets = trials.targets_of(hand, KinematicTree.of(hand), commands, SAME)
    joints = targets.joints_hand
    share = np.clip(1.3 * np.sin(2 * np.pi * np.arange(count) / 180), 0, 1)[:, None]
    middle = (joints[:, 4] + joints[:, 8]) / 2
    for keypoint in (4, 8):
        joints[:, keypoint] += share * (middle - joints[:, keypoint])
    return targets


def measure(minutes: float) -> dict[str, float]:
    """Solve one recording; the peak includes the targets themselves."""
    hand = load_robot("inspire").hand("right")
    tree, count = KinematicTree.of(hand), round(minutes * 60 * FPS)
    targets = pinching_targets(count)
    made_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    commands = solve_hand(hand, tree, targets, SAME, CommandLimits.of(hand, FPS))
    seconds = time.perf_counter() - started
    acceleration = np.abs(np.diff(commands, 2, axis=0)) * FPS**2
    return {
        "minutes": minutes,
        "frames": count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peak_before_solving_mb": made_kb / 1024,
        "seconds": seconds,
        "ms_per_frame": seconds / count * 1e3,
        "speed_violations": speed_violations(hand, commands, FPS),
        "acceleration_violations": int((acceleration > hand.command_acceleration * EXACT).sum()),
    }


def seam() -> float:
    """Return the largest difference between chunks and one solve, radians."""
    hand = load_robot("inspire").hand("right")
    tree, limits = KinematicTree.of(hand), CommandLimits.of(hand, FPS)
    targets = pinching_targets(trajectory.CHUNK_FRAMES + 1000)
    parts = solve_hand(hand, tree, targets, SAME, limits)
    trajectory.CHUNK_FRAMES = len(targets.joints_hand)
    return float(np.abs(parts - solve_hand(hand, tree, targets, SAME, limits)).max())


if __name__ == "__main__":
    sys.exit(main())
