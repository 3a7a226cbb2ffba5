"""The example clip through the public API, and how far the result is from the truth.

The clip and its truth were rendered by this project (render_clip.py). Camera intrinsics and hand
length are given, as a user would who has calibrated the camera and measured the hand.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import acehand_core as ah
import retarget

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description="A rendered clip becomes a dataset.")
    parser.add_argument("--output", type=Path, default=Path("demo_out"))
    output = parser.parse_args().output
    truth = ah.read_hand_motion(HERE / "two_hands_truth.parquet")
    camera = truth.camera
    middle = truth.joints_camera[0, 1, [0, 9, 10, 11, 12]]  # from the wrist to the tip
    length = float(np.linalg.norm(np.diff(middle, axis=0), axis=1).sum())

    recording = ah.open_recording(
        HERE / "two_hands.mp4", intrinsics=(camera.fx, camera.fy, camera.cx, camera.cy)
    )
    print(f"{recording.name}: looking for hands in {len(recording)} frames")
    motion = ah.track(recording, hand_length=round(length, 4))
    robot = retarget.load_robot("inspire")
    trajectory = retarget.retarget(motion, robot)
    with ah.Dataset.open(output, robot, existing="overwrite") as dataset:
        dataset.add(recording, motion, trajectory, task="lift and turn two blocks")

    episode = output / "acehand" / "episode_000000"
    print(f"dataset:       {output}")
    print(f"overlay:       {episode / 'overlay.mp4'}")
    print(f"contact sheet: {episode / 'contact_sheet.png'}")
    print(f"verdict:       {trajectory.verdict}")
    for reason in trajectory.verdict.reasons:
        print(f"  - {reason}")
    for line in compare(motion, truth):
        print(line)
    return 0


def compare(found: ah.HandMotion, truth: ah.HandMotion) -> list[str]:
    """Return one line per hand: mean errors in millimetres against the rendered truth.

    The wrist's error is also split at each frame into the part along the ray from the camera to the
    true wrist (depth) and the rest (sideways). Both are means of lengths, so their squares do not
    add up to that of the whole.
    """
    lines = []
    for slot, side in enumerate(("left", "right")):
        known = found.observed[:, slot] & truth.known[:, slot]
        if not known.any():
            lines.append(f"{side:<5} hand: not found")
            continue
        a, b = found.joints_camera[known, slot], truth.joints_camera[known, slot]
        off = a[:, 0] - b[:, 0]
        wrist = np.linalg.norm(off, axis=-1)
        ray = b[:, 0] / np.linalg.norm(b[:, 0], axis=-1, keepdims=True)
        depth = np.sum(off * ray, axis=-1)
        sideways = np.linalg.norm(off - depth[:, None] * ray, axis=-1)
        relative = np.linalg.norm((a - a[:, :1]) - (b - b[:, :1]), axis=-1)
        mm = [1e3 * part.mean() for part in (relative, wrist, np.abs(depth), sideways)]
        lines.append(
            f"{side:<5} hand: seen in {known.mean():.0%} of the frames; joints relative to the "
            f"wrist {mm[0]:.1f} mm, wrist {mm[1]:.1f} mm off the truth "
            f"({mm[2]:.1f} in depth, {mm[3]:.1f} sideways)"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
