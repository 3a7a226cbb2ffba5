"""A video of one's own into a dataset: ``python examples/own_video.py VIDEO``."""

from __future__ import annotations

import argparse
from pathlib import Path

import acehand_core as ah
import retarget

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("video", type=Path)
parser.add_argument("--hand-length", type=float, help="wrist to middle fingertip in metres")
parser.add_argument("--task", default="hand motion")
parser.add_argument("--output", type=Path, default=Path("my_dataset"))
given = parser.parse_args()

recording = ah.open_recording(given.video)
motion = ah.track(recording, hand_length=given.hand_length)
robot = retarget.load_robot("inspire")
trajectory = retarget.retarget(motion, robot)
with ah.Dataset.open(given.output, robot) as dataset:
    dataset.add(recording, motion, trajectory, task=given.task)
print(given.output, trajectory.verdict, *trajectory.verdict.reasons, sep="\n  - ")
