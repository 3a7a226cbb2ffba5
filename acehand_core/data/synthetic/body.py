"""The person around the hands: shoulders, elbows, and what a wrist can do.

World frame of ``furnish``; metres.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import rotations
from acehand_core.types import SIDES, Rotation, Side

Points = Float[np.ndarray, "*batch 3"]

#: Shoulder to elbow and elbow to wrist of an adult.
UPPER_ARM_M, FOREARM_M = 0.30, 0.26
#: A wrist bends about 80 degrees towards the palm, 70 to the back, 20 to 35 sideways; one round
#: limit between them is used.
MAX_WRIST_BEND = np.radians(55.0)


@dataclass(frozen=True, slots=True)
class Body:
    """Where the person sits."""

    shoulders_world: Float[np.ndarray, "2 3"]

    @classmethod
    def below(cls, head_world: Float[np.ndarray, "3"]) -> Body:
        """Return a body whose shoulders are a little below and behind the camera."""
        out = np.array([[-0.18, -0.06, -0.20], [0.18, -0.06, -0.20]])
        return cls(head_world + out)

    def elbow(self, side: Side, wrist_world: Points) -> Points:
        """Return the elbow of an arm that reaches the wrist, bent down and outwards.

        A wrist beyond the arm's length gets a longer upper arm, which nobody sees.
        """
        out = -1.0 if side == "left" else 1.0
        shoulder = self.shoulders_world[SIDES.index(side)]
        reach = wrist_world - shoulder
        distance = np.linalg.norm(reach, axis=-1, keepdims=True)
        along = reach / distance
        # Law of cosines: how far along the line to the wrist the elbow's foot lies.
        reached = np.clip(distance, 0.08, 0.995 * (UPPER_ARM_M + FOREARM_M))
        foot = (UPPER_ARM_M**2 - FOREARM_M**2 + reached**2) / (2 * reached)
        rise = np.sqrt(np.maximum(UPPER_ARM_M**2 - foot**2, 0.0))
        pole = np.array([0.6 * out, -0.2, -1.0])
        pole = pole - np.sum(pole * along, axis=-1, keepdims=True) * along
        pole = pole / np.linalg.norm(pole, axis=-1, keepdims=True)
        elbow = shoulder + foot * along + rise * pole
        elbow[..., 2] = np.maximum(elbow[..., 2], 0.045)  # it rests on the table
        return elbow


def elbow_within_limits(elbow_world: Points, wrist_world: Points, fingers_world: Points) -> Points:
    """Return the elbow moved about the wrist to where the wrist need not bend too far.

    The hand's motion is what matters, and the upper arm is not drawn. ``fingers_world``: unit, the
    direction of the hand's straight fingers.
    """
    arm = wrist_world - elbow_world
    length = np.linalg.norm(arm, axis=-1, keepdims=True)
    axis = np.cross(arm / length, fingers_world)
    sine = np.linalg.norm(axis, axis=-1, keepdims=True)
    cosine = np.sum(arm / length * fingers_world, axis=-1, keepdims=True)
    excess = np.maximum(np.arctan2(sine, cosine) - MAX_WRIST_BEND, 0.0)
    turn = rotations.exp(axis / np.maximum(sine, 1e-9) * excess)
    return wrist_world - FOREARM_M * (turn @ (arm / length)[..., None])[..., 0]


def bent_within_limits(
    side: Side,
    R_world_hand: Rotation,
    forearm_world: Float[np.ndarray, "3"],
    most: float = MAX_WRIST_BEND,
) -> Rotation:
    """Return the hand turned towards the forearm where the wrist would bend by more than ``most``.

    ``forearm_world`` points from the elbow to the wrist.
    """
    fingers = R_world_hand[:, 0] * (1.0 if side == "left" else -1.0)
    along = forearm_world / np.linalg.norm(forearm_world)
    axis = np.cross(fingers, along)
    sine = np.linalg.norm(axis)
    angle = np.arctan2(sine, fingers @ along)
    if angle <= most or sine < 1e-6:
        return R_world_hand
    return rotations.exp(axis / sine * (angle - most)) @ R_world_hand
