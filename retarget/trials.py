"""Motions that a robot hand can do exactly, and the human hand that they would come from.

A solver must find them again: nothing about them is out of reach.
"""

from __future__ import annotations

import numpy as np

from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import Calibration
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.limits import Commands
from retarget.targets import HandTargets

#: Share of its range that a thumb uses: it stays where it meets no finger.
THUMB_SHARE = 0.4
SPEED_SHARE = 0.5


def slow_commands(hand: HandSpec, fps: float, seconds: float = 10.0, seed: int = 0) -> Commands:
    """Return smooth random waves of 2 to 6 s within all limits."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * fps))[:, None] / fps
    waves = np.zeros((len(time), len(hand.rest)))
    for _ in range(3):
        period, phase = rng.uniform(2, 6, waves.shape[1]), rng.uniform(0, 6, waves.shape[1])
        strength = rng.uniform(0.3, 1, waves.shape[1])
        waves += strength * np.sin(2 * np.pi * time / period + phase)
    share = 0.5 + 0.45 * waves / np.abs(waves).max(0)
    thumb = [joint.startswith("thumb") for joint in hand.command_joints]
    share[:, thumb] *= THUMB_SHARE
    commands = hand.command_lower + share * (hand.command_upper - hand.command_lower)
    fastest = np.abs(np.diff(commands, axis=0)).max(0, initial=0.0) * fps
    middle = commands.mean(0)
    allowed = SPEED_SHARE * hand.command_velocity
    return middle + (commands - middle) / np.maximum(fastest / allowed, 1)


def targets_of(
    hand: HandSpec, tree: KinematicTree, commands: Commands, calibration: Calibration
) -> HandTargets:
    """Return the human hand whose calibrated keypoints these commands meet; others are NaN."""
    points = tree.points(hand.expand(commands), hand.target_frames)
    joints = np.full((len(commands), 21, 3), np.nan)
    joints[:, list(hand.target_keypoints)] = (
        (points - calibration.translation) @ calibration.rotation / calibration.scale
    )
    joints[:, WRIST] = 0.0
    count = len(commands)
    return HandTargets(hand.side, joints, np.ones(count), np.ones(count, bool), None)
