"""Commands that the simulated hand can follow: a second pass, and commands sent ahead.

The limits of the solver know nothing of pads and torques. The replay does: where the
simulated hand stayed away from its command, the second pass asks for what it did instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from retarget.hand_spec import HandSpec
from retarget.limits import Commands
from retarget.objective import Follow
from retarget.simulate import Replay, ReplayOptions, ReplayReport, replay

Latency = Literal["off", "on", "ahead"]

#: A joint that stays this far from all its commands of the last moments did not follow. One that
#: slides has a limit of its own: about what 0.03 rad move a fingertip by.
UNFOLLOWED_RAD, UNFOLLOWED_M, LAG_S = 0.03, 0.003, 0.1
#: Pull to what the hand did, against 1 per (10 mm)^2 of a fingertip on a lever of about 100 mm.
PULL = 300.0


@dataclass(frozen=True, slots=True)
class Physics:
    """How commands are replayed.

    ``latency``: "off" leaves the hand's delay from command to motion out, "on" replays with it,
    "ahead" also sends every command earlier by it. ``second_pass`` lowers what was not followed.
    """

    latency: Latency = "off"
    second_pass: bool = True


def sent_commands(hand: HandSpec, commands: Commands, fps: float, latency: Latency) -> Commands:
    """Return what is to be sent at each frame; the last pose is held where the clip ends.

    Between two frames commands change evenly, so what is sent keeps every limit too.
    """
    if latency != "ahead" or hand.latency_s == 0:
        return commands
    times = np.arange(len(commands)) / fps
    ahead = [np.interp(times + hand.latency_s, times, column) for column in commands.T]
    return np.stack(ahead, axis=1)


def play(
    hand: HandSpec,
    commands: Commands,
    fps: float,
    active: Bool[np.ndarray, "T"],
    latency: Latency,
) -> Replay:
    """Replay wanted angles; the report compares with these, whatever was sent."""
    times = np.arange(len(commands)) / fps
    late = 0.0 if latency == "off" else hand.latency_s
    sent = sent_commands(hand, commands, fps, latency)
    return replay(hand, commands, times, active, ReplayOptions(latency_s=late), sent=sent)


def second_pass(
    hand: HandSpec,
    commands: Commands,
    fps: float,
    active: Bool[np.ndarray, "T"],
    solve: Callable[[Follow], Commands],
) -> Commands:
    """Return commands that are followed better, or the given ones where nothing is gained.

    ``solve`` solves the trajectory again with one more term.
    """
    first = play(hand, commands, fps, active, "off")
    done = hand.reduce(first.joints)
    weight = unfollowed(commands, done, active, fps, first.slides) * PULL
    if not weight.any():
        return commands
    lowered = solve(Follow(np.clip(done, hand.command_lower, hand.command_upper), weight))
    again = play(hand, lowered, fps, active, "off")
    better = _misfit(again.report) < _misfit(first.report)
    return lowered if better else commands


def _misfit(report: ReplayReport) -> float:
    """Return one number for joints that turn and that slide."""
    slid = report.rms_tracking_m * UNFOLLOWED_RAD / UNFOLLOWED_M
    return math.hypot(report.rms_tracking_rad, slid)


def unfollowed(
    commands: Commands,
    done: Commands,
    active: Bool[np.ndarray, "T"],
    fps: float,
    slides: Bool[np.ndarray, "C"],
) -> Float[np.ndarray, "T C"]:
    """Return 0 where a joint followed, rising to 1 where it was twice too far from its command.

    A servo lags: a joint followed where it is at an angle that was commanded within ``LAG_S``.
    ``slides`` says which are in metres.
    """
    window = 1 + math.ceil(LAG_S * fps)
    before = np.concatenate([np.repeat(commands[:1], window - 1, axis=0), commands])
    recent = np.lib.stride_tricks.sliding_window_view(before, window, axis=0)
    limit = np.where(slides, UNFOLLOWED_M, UNFOLLOWED_RAD)
    excess = np.maximum(recent.min(-1) - done, done - recent.max(-1)) / limit - 1
    return np.clip(excess, 0, 1) * active[:, None]
