"""Keypoints of one's own into commands of a robot hand: ``python examples/own_keypoints.py``.

Any array of 21 joints will do; here it is the right hand of the example clip's truth, turned into
what another program might give: millimetres, and 30 frames a second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import acehand_core as ah
import retarget

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=Path, default=Path("registers.csv"))
output = parser.parse_args().output
truth = ah.read_hand_motion(Path(__file__).with_name("two_hands_truth.parquet"))
theirs = 1000 * truth.joints_camera[:, 1]  # (T, 21, 3), NaN where a joint is not known

# Metres, in the order of docs/conventions.md; in the camera's frame, so that there is a wrist pose.
motion = ah.HandMotion.from_joints(theirs / 1000, fps=30, side="right", frame="camera")
robot = retarget.load_robot("inspire")
trajectory = retarget.retarget(motion, robot)
print(trajectory.verdict, *trajectory.verdict.reasons, sep="\n  - ")

# What the hand's controller takes, 0 closed to 1000 open; side 1 is right.
names = ",".join(trajectory.command_names)
np.savetxt(output, trajectory.registers[:, 1], "%.0f", ",", header=names, comments="")
print(f"{len(motion)} rows of {names}: {output}")
