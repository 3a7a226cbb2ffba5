"""Where hands are absolutely: wrist-aligned errors leave it out, and so does the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acehand_core.types import JointsCamera, PerHand, PerHandFlag


@dataclass(frozen=True, slots=True)
class Placement:
    """Errors of the wrist of one segment's hand-frames; NaN where the tracker emits nothing.

    Attributes:
        wrist_m: distance of the wrists. camera_m: mean distance of the 21 joints, nothing aligned.
        bearing_deg: angle between the directions to the wrists.
        range_m: predicted minus true distance of the wrist from the camera.
    """

    wrist_m: PerHand
    camera_m: PerHand
    bearing_deg: PerHand
    range_m: PerHand


def placement(predicted: JointsCamera, truth: JointsCamera, wanted: PerHandFlag) -> Placement:
    """Return the absolute errors of the wanted hand-frames, camera frame, metres."""
    values = {name: np.full(wanted.shape, np.nan) for name in Placement.__slots__}
    a, b = predicted[wanted], truth[wanted]
    wrist_a, wrist_b = a[:, 0], b[:, 0]
    far_a, far_b = np.linalg.norm(wrist_a, axis=-1), np.linalg.norm(wrist_b, axis=-1)
    values["wrist_m"][wanted] = np.linalg.norm(wrist_a - wrist_b, axis=-1)
    values["camera_m"][wanted] = np.linalg.norm(a - b, axis=-1).mean(-1)
    sine = np.linalg.norm(np.cross(wrist_a, wrist_b), axis=-1)
    angle = np.arctan2(sine, (wrist_a * wrist_b).sum(-1))
    values["bearing_deg"][wanted] = np.degrees(angle)
    values["range_m"][wanted] = far_a - far_b
    return Placement(**values)
