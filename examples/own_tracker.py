"""A tracker of one's own: ``python examples/own_tracker.py``.

It stands for your network: where skin is bright in either half of a picture, it puts an open hand,
40 cm before the camera. A package of your own makes it available to ``--tracker skin`` by two lines
of its pyproject.toml:

    [project.entry-points."acehand.trackers"]
    skin = "own_tracker:SkinTracker"
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import acehand_core as ah
import retarget

DEPTH_M, HAND_PX = 0.4, 120


class SkinTracker:
    """Any object with ``name``, ``placed``, ``hand_model`` and ``track`` is a tracker."""

    name = "skin"
    placed = True  # its hands have a place before the camera
    hand_model = "none"  # it gives joints alone

    def __init__(self, settings: ah.TrackerSettings | None = None) -> None:
        """``settings`` are what the command line says: which hands, and how long a hand is."""
        length = (settings and settings.hand_length_m) or 0.187
        # A right hand seen from its back, x to the right and y down: wrist, thumb, four fingers.
        flat = [(0.0, 0.0), *((-0.02 - 0.015 * j, -0.03 - 0.025 * j) for j in range(4))]
        flat += [(0.02 * f - 0.03, -0.09 - 0.03 * j) for f in range(4) for j in range(4)]
        self.hand = np.array([(x, y, 0.0) for x, y in flat]) * length / 0.18
        self.hand -= self.hand.mean(0)

    def track(self, recording, progress=None):
        """Return both hands of all frames, NaN where one is not seen."""
        camera = recording.camera
        joints = np.full((len(recording), 2, 21, 3), np.nan)
        for number, image in enumerate(recording.frames.read(0, len(recording))):
            red, green, blue = np.moveaxis(image.astype(int), 2, 0)
            skin = (red > 170) & (red - green > 40) & (green - blue > 15) & (green - blue < 60)
            for side, first in enumerate((0, camera.width // 2)):
                y, x = np.nonzero(skin[:, first : first + camera.width // 2])
                if len(x) < 200:
                    continue
                hand = y < y.min() + HAND_PX  # below it is the arm
                u, v = first + x[hand].mean(), y[hand].mean()
                ray = np.array([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy, 1.0])
                joints[number, side] = self.hand * (2 * side - 1, 1, 1) + DEPTH_M * ray
            if progress is not None:
                progress(self.name, number + 1, len(recording))
        return ah.motion_from_joints(
            joints, timestamps_ns=recording.timestamps_ns, fps=recording.fps, frame="camera"
        )


if __name__ == "__main__":
    recording = ah.open_recording(
        Path(__file__).with_name("two_hands.mp4"), intrinsics=(474.4, 474.4, 319.5, 239.5)
    )
    motion = ah.track(recording, SkinTracker())
    trajectory = retarget.retarget(motion, retarget.load_robot("inspire"))
    for side, name in enumerate(("left", "right")):
        print(f"{name} hand: in {motion.known[:, side].mean():.0%} of {len(motion)} frames")
    print(trajectory.verdict, *trajectory.verdict.reasons, sep="\n  - ")
