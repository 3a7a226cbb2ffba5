"""Our solver: as it is, and without each of its parts."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.motion import Calibration
from benchmarks.retargeting.recordings import Take
from retarget.replay import metrics
from retarget.robots import hand_spec
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve.calibration import calibrate
from retarget.solve.costs import Weights
from retarget.solve.methods import solve_hand

#: Rounds of the search for the least tip error.
REFITS = 14


@dataclass(frozen=True, slots=True)
class Solved:
    """Commands, and CPU seconds of solving and, apart, of the calibration."""

    commands: Float[np.ndarray, "T C"]
    seconds: float
    calibration_seconds: float = 0.0


def solve(
    hand: HandSpec,
    take: Take,
    weights: Weights = Weights(),
    calibration: Calibration | None = None,
) -> Solved:
    """Solve one take; a calibration that is given is not fitted."""
    tree, begun = KinematicTree.of(hand), time.process_time()
    calibration = calibration or calibrate(hand, tree, take.targets, weights)
    started = time.process_time()
    bounds = hand_spec.CommandLimits.of(hand, take.fps)
    commands = solve_hand(hand, tree, take.targets, calibration, bounds, weights)
    return Solved(commands, time.process_time() - started, started - begun)


def ablations(hand: HandSpec, take: Take) -> dict[str, Solved]:
    """Return our solver with one part left out at a time; see docs/retargeting.md."""
    full = Weights()
    changes: dict[str, dict[str, float]] = {
        "all terms": {},
        **{f"without {name}": {name: 0.0} for name in
           ("link", "direction", "pinch", "rest", "acceleration", "jerk", "contact")},
    }  # fmt: skip
    runs = {
        name: solve(hand, take, dataclasses.replace(full, **change))
        for name, change in changes.items()
    }
    fitted = calibrate(hand, KinematicTree.of(hand), take.targets, full)
    alike = dataclasses.replace(fitted, finger_offsets=np.zeros((5, 3)), lengths=np.ones(5))
    runs["without anchors, lengths"] = solve(hand, take, full, alike)
    sized = Calibration(1.0, np.eye(3), np.zeros(3), 0.0)
    runs["without calibration"] = solve(hand, take, full, sized)
    runs["tips only, refitted"] = tips_only(hand, take, limited=True)
    runs["same, no rate limits"] = tips_only(hand, take, limited=False)
    return runs


def tips_only(hand: HandSpec, take: Take, limited: bool) -> Solved:
    """Follow fingertips and nothing else, on the similarity that fits what was reached best.

    Solving and fitting take turns ``REFITS`` times; the round of the least mean error counts. It is
    a search for what the hand can reach, from one start, and no proof. Without ``limited`` speed
    and acceleration are free.
    """
    targets = take.targets
    tree, bounds = KinematicTree.of(hand), hand_spec.CommandLimits.of(hand, take.fps)
    bounds = bounds if limited else bounds.without_rate()
    off = {name: 0.0 for name in ("link", "direction", "pinch", "contact", "acceleration", "jerk")}
    weights = Weights(rest=1e-8, **off)
    calibration = calibrate(hand, tree, targets, Weights())
    human = targets.tips_of(hand.fingers)[targets.usable]
    best, least, started = np.zeros(0), np.inf, time.process_time()
    for _ in range(REFITS):
        commands = solve_hand(hand, tree, targets, calibration, bounds, weights)
        tips = tree.points(hand.expand(commands), hand.tip_names)[targets.usable]
        ground = metrics.CommonGround.fit(human, tips)
        error = float(metrics.tip_error(human, tips, ground).mean())
        if error < least:
            best, least = commands, error
        calibration = Calibration(ground.scale, ground.rotation, ground.translation, 0.0)
    return Solved(best, time.process_time() - started)
