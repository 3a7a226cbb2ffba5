"""What every hand model offers; the rest of the project never asks which one it has."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from acehand_core.types import Betas, Faces, GlobalOrient, HandPose, Keypoints, Side, Vertices


@runtime_checkable
class HandModel(Protocol):
    """A parametric hand: rotations and shape in, joints and mesh out.

    ``global_orient`` turns the hand about its own rest-pose wrist J0(betas), which is not the
    origin; ``hand_pose`` holds the rotation of each finger joint relative to its parent in MANO's
    order, any mean pose already included. Nothing here adds a translation.
    """

    @property
    def name(self) -> str:
        """ "mano" or "acehand"; parameters of two models must never be mixed."""
        ...

    def joints(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Keypoints:
        """Return the 21 keypoints in metres; leading axes broadcast."""
        ...

    def vertices(
        self, side: Side, global_orient: GlobalOrient, hand_pose: HandPose, betas: Betas
    ) -> Vertices:
        """Return the skinned mesh in metres; leading axes broadcast."""
        ...

    def faces(self, side: Side) -> Faces:
        """Return the triangles, counter-clockwise seen from outside."""
        ...
