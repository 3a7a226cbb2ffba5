"""Motions that a robot hand can do exactly, and the human hand that they would come from.

A solver must find them again: nothing about them is out of reach.
"""

from __future__ import annotations

import numpy as np

from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import Calibration
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.targets import HandTargets

#: Share of its range that a thumb uses: it stays where it meets no finger.
THUMB_SHARE = 0.4
SPEED_SHARE = 0.5
RATE_SHARE = 0.9


def slow_commands(hand: HandSpec, fps: float, seconds: float = 10.0, seed: int = 0) -> Commands:
    """Return smooth random waves of 2 to 6 s within all limits."""
    share = _waves(hand, fps, seconds, seed, (2.0, 6.0))
    thumb = [joint.startswith("thumb") for joint in hand.command_joints]
    share[:, thumb] *= THUMB_SHARE
    commands = hand.command_lower + share * (hand.command_upper - hand.command_lower)
    fastest = np.abs(np.diff(commands, axis=0)).max(0, initial=0.0) * fps
    return _about_mean(commands, fastest / (SPEED_SHARE * hand.command_velocity))


def wide_commands(hand: HandSpec, fps: float, seconds: float = 3.0, seed: int = 0) -> Commands:
    """Return random waves of 2 to 4 s from 5 to 95 % of every joint's range.

    Joints that are too slow for it use what they reach at ``RATE_SHARE`` of their speed and
    acceleration. Links may pass through each other.
    """
    share = _waves(hand, fps, seconds, seed, (2.0, 4.0))
    share = 0.05 + 0.9 * (share - share.min(0)) / np.ptp(share, axis=0)
    commands = hand.command_lower + share * (hand.command_upper - hand.command_lower)
    excess = np.ones(commands.shape[1])
    limits = hand.command_velocity * RATE_SHARE, hand.command_acceleration * RATE_SHARE
    for order, limit in enumerate(limits, start=1):
        rate = np.abs(np.diff(commands, order, axis=0)).max(0, initial=0.0) * fps**order
        excess = np.maximum(excess, rate / limit)
    return _about_mean(commands, excess)


def _waves(
    hand: HandSpec, fps: float, seconds: float, seed: int, periods: tuple[float, float]
) -> Commands:
    """Return shares of the range from 0.05 to 0.95, which every joint nearly reaches."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * fps))[:, None] / fps
    waves = np.zeros((len(time), len(hand.rest)))
    for _ in range(3):
        period, phase = rng.uniform(*periods, waves.shape[1]), rng.uniform(0, 6, waves.shape[1])
        strength = rng.uniform(0.3, 1, waves.shape[1])
        waves += strength * np.sin(2 * np.pi * time / period + phase)
    return 0.5 + 0.45 * waves / np.abs(waves).max(0)


def _about_mean(commands: Commands, excess: np.ndarray) -> Commands:
    """Return commands shrunk towards their mean where ``excess`` is above 1."""
    middle = commands.mean(0)
    return middle + (commands - middle) / np.maximum(excess, 1)


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
