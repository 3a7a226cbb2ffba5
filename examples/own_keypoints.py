"""Keypoints of one's own into commands of a robot hand: ``python examples/own_keypoints.py``.

Any array of joints will do; here it is the right hand of the example clip's truth, turned into what
another program might give: MANO's order, millimetres, a fingertip that is lost for a while.
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
order = (0, 5, 6, 7, 9, 10, 11, 17, 18, 19, 13, 14, 15, 1, 2, 3, 4, 8, 12, 16, 20)  # of smplx
theirs = 1000 * truth.joints_camera[:, 1, order]  # (T, 21, 3)
theirs[30:60, 17] = np.nan  # the tip of the index finger; a joint that is not known is NaN

# Said instead of computed; in the camera's frame, so that there is a wrist pose.
motion = ah.motion_from_joints(
    theirs, order="mano", unit="mm", fps=30, side="right", frame="camera"
)
robot = retarget.load_robot("inspire")
trajectory = retarget.retarget(motion, robot)
print(trajectory.verdict, *trajectory.verdict.reasons, sep="\n  - ")

# What the hand's controller takes, 0 closed to 1000 open; side 1 is right.
names = ",".join(trajectory.command_names)
np.savetxt(output, trajectory.registers[:, 1], "%.0f", ",", header=names, comments="")
print(f"{len(motion)} rows of {names}: {output}")
