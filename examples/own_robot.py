"""A robot of one's own: ``python examples/own_robot.py``.

own_robot/ has a made-up hand of three fingers: its MJCF, and the robot.yaml that says what is what.
"""

from __future__ import annotations

from pathlib import Path

import acehand_core as ah
import retarget

HERE = Path(__file__).resolve().parent
robot = retarget.load_robot(HERE / "own_robot")
for finding in retarget.check_hand(robot.hand("right")):
    print(f"{finding.name}: {'FAILED, ' if finding.passed is False else ''}{finding.detail}")

truth = ah.read_hand_motion(HERE / "two_hands_truth.parquet")
motion = ah.motion_from_joints(
    truth.joints_camera[:, 1], timestamps_ns=truth.timestamps_ns, side="right", frame="camera"
)
trajectory = retarget.retarget(motion, robot)
print(trajectory.verdict, *trajectory.verdict.reasons, sep="\n  - ")
for name, angles in zip(trajectory.command_names, trajectory.registers[:, 1].T, strict=True):
    print(f"{name}: {angles.min():.0f} to {angles.max():.0f} degrees")
