"""dex-retargeting as its author would run it offline: shipped settings, tuned scale, filters.

The library filters what its optimiser answers and goes on from the unfiltered answer, so one run
without a filter (``solved``) gives every variant (``filtered``).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jaxtyping import Float
from scipy.signal import filtfilt, lfilter

from acehand_core.errors import InputError
from acehand_core.types import Side
from benchmarks.retargeting.recordings import Take
from retarget.replay import metrics
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve import methods

#: Names of the robots in the library's own settings.
SHIPPED_NAMES = {
    "inspire": "inspire_hand", "allegro": "allegro_hand", "leap": "leap_hand",
    "shadow": "shadow_hand", "ability": "ability_hand",
}  # fmt: skip
#: What is compared by default: these, and the other coupling and limits of Inspire's joints.
ROBOTS = ("inspire", "inspire:other", "allegro", "leap", "shadow", "ability")
#: Scales that are tried, times the human's vectors; then ``FINER`` to both sides of the best.
SCALES = (0.7, 0.9, 1.1, 1.3, 1.5, 1.7)
FINER = 0.1
#: Scales are compared on every so many frames; with the best one all frames are solved.
TUNING_STRIDE = 4
#: The library's filter of its vector and DexPilot settings; its position settings have none.
ALPHA = 0.2
VARIANTS = ("shipped", "filtered", "unfiltered", "offline")

Commands = Float[np.ndarray, "T C"]


@dataclass(frozen=True, slots=True)
class Shipped:
    """What the library ships for a robot and mode, by human keypoint instead of link name."""

    file: str
    scale: float
    alpha: float
    keypoints: tuple[int, ...] | None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@functools.cache
def shipped(robot: str, side: Side, mode: str) -> Shipped:
    """Read the library's own settings of a robot; variants (``NAME:VARIANT``) share them.

    Links are taken over by the human keypoint that they stand for: our models name them otherwise.

    Raises:
        InputError: the library has no such robot.
    """
    import dex_retargeting

    robot = robot.partition(":")[0]
    if robot not in SHIPPED_NAMES:
        raise InputError(f"dex-retargeting ships no settings for {robot}: {list(SHIPPED_NAMES)}.")
    folder = "offline" if mode == "position" else "teleop"
    name = f"{SHIPPED_NAMES[robot]}_{side}{'_dexpilot' if mode == 'dexpilot' else ''}.yml"
    assert dex_retargeting.__file__ is not None
    path = Path(dex_retargeting.__file__).parent / "configs" / folder / name
    settings = yaml.safe_load(path.read_text("utf-8"))["retargeting"]
    indices = settings.get("target_link_human_indices")
    if mode == "vector" and any(indices[0]):
        raise InputError(f"{name}: vectors that do not begin at the wrist are not taken over.")
    keypoints = indices[1] if mode == "vector" else indices
    return Shipped(
        f"{folder}/{name}",
        float(settings.get("scaling_factor", 1.0)),
        float(settings["low_pass_alpha"]),
        None if keypoints is None else tuple(keypoints),
    )


def solved(hand: HandSpec, take: Take, mode: str, scale: float) -> tuple[Commands, float]:
    """Return the unfiltered answer to all frames and its CPU seconds.

    Position mode has no scale of its own: the keypoints are scaled about the wrist instead.
    """
    targets = take.targets
    if mode == "position":
        targets = dataclasses.replace(targets, joints_hand=targets.joints_hand * scale)
    keypoints = shipped(hand.robot, hand.side, mode).keypoints
    retargeting = methods.build_dex(hand, mode, False, scale, keypoints)
    started = time.process_time()
    commands = methods.drive_dex(retargeting, hand, targets)
    return np.asarray(commands, float), time.process_time() - started


def filtered(hand: HandSpec, take: Take, commands: Commands, alpha: float, how: str) -> Commands:
    """Filter an unfiltered answer; frames that are not followed repeat the last pose.

    Args:
        how: "filtered" (the library's: causal), "unfiltered" (as it is), or "offline" (the same
            filter forwards and backwards, so without lag, then clamped to the angle limits).
    """
    seen = take.targets.usable
    values = commands[seen]
    if how == "filtered":
        first = (1 - alpha) * values[:1]
        values, _ = lfilter([alpha], [1, alpha - 1], values, axis=0, zi=first)
    elif how == "offline":
        pad = min(6, len(values) - 1)
        values = filtfilt([alpha], [1, alpha - 1], values, axis=0, padlen=pad)
        values = np.clip(values, hand.command_lower, hand.command_upper)
    out = commands.copy()
    out[seen] = values
    for frame in np.flatnonzero(~seen):
        out[frame] = out[frame - 1] if frame else commands[0]
    return out


def variants(hand: HandSpec, take: Take, mode: str) -> dict[str, dict[str, Any]]:
    """Return commands, CPU seconds and scale of every variant of a mode.

    ``shipped`` is the library's own scale and filter. The others have the scale that gives them the
    least mean tip error on this recording.
    """
    default = shipped(hand.robot, hand.side, mode)
    solve = functools.cache(lambda scale: solved(hand, take, mode, scale))
    ways = [way for way in VARIANTS[1:] if way != "filtered" or default.alpha < 1]
    tuned = _tuned_scales(hand, take, mode, ways)
    commands, seconds = solve(default.scale)
    if default.alpha < 1:
        commands = filtered(hand, take, commands, default.alpha, "filtered")
    out = {"shipped": {"commands": commands, "seconds": seconds, "scale": default.scale}}
    for way in ways:
        # The shipped scale is tried on all frames too: tuning must never make it worse.
        answers = []
        for scale in dict.fromkeys((tuned[way], default.scale)):
            commands, seconds = solve(scale)
            commands = filtered(hand, take, commands, ALPHA, way)
            answers.append({"commands": commands, "seconds": seconds, "scale": scale})
        out[way] = min(answers, key=lambda answer: _tip_error(hand, take, answer["commands"]))
    return out


def _tip_error(hand: HandSpec, take: Take, commands: Commands) -> float:
    """Return the mean distance of the tips after the one similarity that fits them best, m."""
    seen = take.targets.usable
    human = take.targets.tips_of(hand.fingers)[seen]
    tips = KinematicTree.of(hand).points(hand.expand(commands), hand.tip_names)[seen]
    ground = metrics.CommonGround.fit(human, tips)
    return float(metrics.tip_error(human, tips, ground).mean())


def _tuned_scales(hand: HandSpec, take: Take, mode: str, ways: list[str]) -> dict[str, float]:
    """Return the best scale for each way, by every ``TUNING_STRIDE``-th frame."""
    part = take.every(TUNING_STRIDE)
    alpha = 1 - (1 - ALPHA) ** TUNING_STRIDE  # the same filter at the lower rate

    @functools.cache
    def errors(scale: float) -> dict[str, float]:
        commands, _ = solved(hand, part, mode, scale)
        return {
            way: _tip_error(hand, part, filtered(hand, part, commands, alpha, way)) for way in ways
        }

    best = {}
    for way in ways:
        near = min(SCALES, key=lambda scale: errors(scale)[way])
        finer = (near, round(near - FINER, 2), round(near + FINER, 2))
        best[way] = min(finer, key=lambda scale: errors(scale)[way])
    return best
