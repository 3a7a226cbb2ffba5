"""A tracker: joint angles of a data glove, in a CSV file next to the recording."""

from dataclasses import dataclass

import numpy as np

import acehand_core as ah
from acehand_core.settings import setting


@dataclass(frozen=True)
class GloveSettings:
    """Flags for the glove."""

    glove_depth_m: float = setting(
        0.4, "how far before the camera the hand is", flag="glove-depth", metavar="M"
    )


class GloveTracker:
    """Bends the fingers of a right hand before the camera by as much as the file says.

    The file has a row per frame and one number, 0 for an open hand, 1 for a fist.
    """

    name = "glove"
    placed = True  # its hands have a place before the camera
    hand_model = "none"  # it gives joints alone

    def __init__(self, settings: ah.TrackerSettings) -> None:
        self.depth = settings.own.get("glove", GloveSettings()).glove_depth_m

    def track(self, recording, progress=None) -> ah.HandMotion:
        table = f"{recording.source}.csv"
        bends = np.loadtxt(table, ndmin=1)
        if len(bends) != len(recording):
            raise ah.InputError(
                f"{table}: {len(bends)} rows for {len(recording)} frames; one per frame is needed."
            )
        joints = np.array([right_hand(bend) for bend in bends])
        joints[..., 2] += self.depth
        return ah.motion_from_joints(
            joints, timestamps_ns=recording.timestamps_ns, side="right", frame="camera"
        )


def right_hand(bend: float) -> np.ndarray:
    """Return 21 joints in metres, wrist first, seen from the back with its fingers upwards."""
    angles = np.cumsum([0, 1.2, 1.2, 0.8]) * bend
    steps = np.stack([np.zeros(4), -np.cos(angles), np.sin(angles)], axis=1) * 0.03
    thumb = np.array([[-0.03 - 0.02 * j, -0.03 - 0.02 * j, 0.02 * bend * j] for j in range(4)])
    fingers = [np.cumsum(steps, 0) + np.array([0.02 * f - 0.03, -0.06, 0]) for f in range(4)]
    return np.concatenate([np.zeros((1, 3)), thumb, *fingers])
