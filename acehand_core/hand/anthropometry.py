"""The shape of the default hand: published segment lengths and how they vary.

Lengths of metacarpals and phalanges are the means of A. Buryanov and V. Kotiuk, "Proportions of
hand segments", Int. J. Morphol. 28(3), 2010 (radiographs of 66 adults). The last phalanx includes
the soft tissue of the fingertip. What that table does not give (the carpal distance from the wrist
centre to the metacarpal bases, the arches, the rest directions) is set here so that the hand is
187 mm long and 63 mm wide between the outer knuckle centres.

Everything is in millimetres in the anatomical axes of a right hand: distal, dorsal, radial.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acehand_core.hand.skeleton import FINGERS

#: Phalanges from proximal to distal; the thumb's row starts with its metacarpal.
SEGMENT_LENGTHS_MM = {
    "thumb": (46.22, 31.57, 21.67 + 5.67),
    "index": (39.78, 22.38, 15.82 + 3.84),
    "middle": (44.63, 26.33, 17.40 + 3.95),
    "ring": (41.37, 25.65, 17.30 + 3.95),
    "pinky": (32.74, 18.11, 15.96 + 3.73),
}

#: Knuckles (thumb: CMC joint) from the wrist centre: distal, dorsal, radial.
KNUCKLES_MM = {
    "thumb": (25.5, -9.0, 25.0),
    "index": (92.5, -1.0, 25.0),
    "middle": (95.0, 1.5, 4.0),
    "ring": (88.5, -1.0, -16.5),
    "pinky": (79.5, -6.5, -36.0),
}

#: Rest direction of the straight finger and the direction its nail faces.
DIRECTIONS = {
    "thumb": ((0.72, -0.28, 0.635), (-0.45, 0.48, 0.75)),
    "index": ((0.995, -0.02, 0.10), (0.02, 1.0, 0.0)),
    "middle": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
    "ring": ((0.992, -0.02, -0.125), (0.02, 1.0, 0.0)),
    "pinky": ((0.968, -0.05, -0.245), (0.05, 1.0, 0.0)),
}

#: Relative change of each dimension per standard deviation of one beta.
SHAPE_NAMES = (
    "size",
    "palm breadth",
    "finger to palm length",
    "thumb length",
    "index to ring length",
    "pinky length",
    "middle finger length",
    "proximal to distal phalanges",
    "finger thickness",
    "palm thickness",
)


@dataclass(frozen=True, slots=True)
class Proportions:
    """Multipliers of the mean hand; all one at zero betas."""

    palm_length: float = 1.0
    palm_breadth: float = 1.0
    palm_thickness: float = 1.0
    finger_thickness: float = 1.0
    segments: tuple[tuple[float, float, float], ...] = ((1.0, 1.0, 1.0),) * 5


def proportion_gradients() -> list[Proportions]:
    """Return, per beta, the change of every multiplier for one standard deviation.

    Size is 5.5 % per standard deviation (hand length of adults of both sexes: coefficient of
    variation 5 to 6 % in the ANSUR and ACOPLA surveys). The residual variation of a single
    segment in Buryanov and Kotiuk, once the common size is taken out, is 5 to 8 %; it is spread
    over the remaining betas.
    """

    def segments(**fingers: tuple[float, float, float]) -> tuple[tuple[float, float, float], ...]:
        return tuple(fingers.get(name, (0.0, 0.0, 0.0)) for name in FINGERS)

    def same(change: float) -> tuple[float, float, float]:
        return (change, change, change)

    still = segments()
    everywhere = {name: same(0.055) for name in FINGERS}
    four = ("index", "middle", "ring", "pinky")
    return [
        Proportions(0.055, 0.055, 0.055, 0.055, segments(**everywhere)),
        Proportions(0.0, 0.055, 0.0, 0.02, still),
        Proportions(-0.03, 0.0, 0.0, 0.0, segments(**{name: same(0.045) for name in four})),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(thumb=same(0.06))),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(index=same(0.03), ring=same(-0.03))),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(pinky=same(0.06))),
        Proportions(0.0, 0.0, 0.0, 0.0, segments(middle=same(0.04))),
        Proportions(
            0.0, 0.0, 0.0, 0.0, segments(**{name: (0.06, -0.05, -0.05) for name in FINGERS})
        ),
        Proportions(0.0, 0.0, 0.0, 0.08, still),
        Proportions(0.0, 0.0, 0.08, 0.0, still),
    ]


def rest_keypoints(proportions: Proportions) -> np.ndarray:
    """Return the 21 rest keypoints from the wrist, anatomical axes, mm, shape (21, 3).

    Linear in the proportions, so the joints of the shaped hand are linear in betas.
    """
    palm = np.array([proportions.palm_length, proportions.palm_thickness, proportions.palm_breadth])
    points = [np.zeros(3)]
    for finger, multipliers in zip(FINGERS, proportions.segments, strict=True):
        direction = np.array(DIRECTIONS[finger][0])
        direction = direction / np.linalg.norm(direction)
        point = np.array(KNUCKLES_MM[finger]) * palm
        points.append(point)
        for length, multiplier in zip(SEGMENT_LENGTHS_MM[finger], multipliers, strict=True):
            point = point + direction * length * multiplier
            points.append(point)
    return np.array(points)
