"""Does the solver find a robot's own motions again, over the whole range of its joints?

    python -m benchmarks.recovery [--robots inspire leap] [--seeds 8]

Random motions of 90 frames at 30 fps over 90 % of every joint's range, less where 90 % of its speed
and acceleration do not reach so far, both sides, seeds 0 to N - 1. Their links and fingertips are
the targets. A motion is found where no joint is ever further off than the tolerance.

- tracking: with the tracking terms alone; within 1e-3 rad (a gripper: m).
- smooth: with the default weights but those of pinches and contact; within 0.03.

Motions in which links touch or fingertips pinch count as well: what contact and pinches ask for
other than the targets is not looked at here.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from acehand_core.motion import Calibration
from benchmarks import provenance
from benchmarks.retargeting import trials
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import OURS, load_robot, robot_names
from retarget.solve.costs import Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.trajectory import solve_trajectory

FPS, SECONDS = 30.0, 3.0
SAME = Calibration(1.0, np.eye(3), np.zeros(3), 0.0)
TRACKING = Weights(pinch=0.0, rest=1e-8, acceleration=0.0, jerk=0.0, contact=0.0)
SMOOTH = Weights(pinch=0.0, contact=0.0)
EXACT, NEAR = 1e-3, 0.03


def main() -> int:
    begun = provenance.start(__file__)
    names = [*robot_names(), "inspire:other"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--robots", nargs="+", default=sorted(names), metavar="ROBOT")
    parser.add_argument("--seeds", type=int, default=8)
    provenance.add_output(parser)
    options = parser.parse_args()
    robots = {}
    for name in options.robots:
        robots[name] = measure(name, options.seeds)
        print(name, robots[name], file=sys.stderr, flush=True)
    result = {"motions_per_robot": 2 * options.seeds, "robots": robots}
    provenance.publish(begun, result, options.output)
    return 0


def measure(name: str, seeds: int) -> dict[str, float]:
    """Return shares of motions and the largest errors of one robot."""
    used, exact, smooth = [], [], []
    for hand in load_robot(name, models=OURS).hands.values():
        tree = KinematicTree.of(hand)
        for seed in range(seeds):
            commands = trials.wide_commands(hand, FPS, SECONDS, seed)
            used.append(np.ptp(commands, axis=0) / (hand.command_upper - hand.command_lower))
            exact.append(_error(hand, tree, commands, TRACKING).max())
            smooth.append(_error(hand, tree, commands, SMOOTH).max())
    return {
        "range_used": float(np.mean(used)),
        "tracking_found": float(np.mean(np.array(exact) < EXACT)),
        "tracking_error": float(max(exact)),
        "smooth_found": float(np.mean(np.array(smooth) < NEAR)),
        "smooth_error": float(max(smooth)),
    }


def _error(hand: HandSpec, tree: KinematicTree, commands: Commands, weights: Weights) -> Commands:
    targets = trials.targets_of(hand, tree, commands, SAME)
    objective = PoseObjective(hand, tree, targets, SAME, weights)
    start = np.tile(hand.rest, (len(commands), 1))
    return np.abs(solve_trajectory(objective, CommandLimits.of(hand, FPS), start) - commands)


if __name__ == "__main__":
    sys.exit(main())
