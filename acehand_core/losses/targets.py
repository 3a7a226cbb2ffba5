"""The truth of a batch and what of it may teach; what a model said, ready to be compared. torch.

Axes: B clips, N video frames, 2 slots, 21 joints, h w tokens. Camera frame, metres. A number that
is not known is 0 and masked; NaN never gets here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float

from acehand_core.batch import PinholeBatch, Readout

PerHand = Float[torch.Tensor, "B N 2"]
HandFlag = Bool[torch.Tensor, "B N 2"]
ClipFlag = Bool[torch.Tensor, "B"]


@dataclass(frozen=True, slots=True)
class Targets:
    """The truth of B clips.

    Attributes:
        hand_pose: relative to the hand model's mean pose, as the network says it.
        anchors: keypoints in the image, 0..1 of it as the solver counts (``bearings_torch``).
        hand: the hand is there, labelled, and its slot may teach; out-of-sight hands included.
        joints_known, inside: per keypoint: it has a label; and it projects inside the image.
        presence, visible: 0 or 1.
        rays: unit directions through the token centres under the calibrated camera.
        camera: pinhole of the encoded image; meaningless where ``pinhole`` is False.
        rotations, translation_taught, joints_taught, anchors_taught, rays_taught: what may
            be supervised; ``shape`` also per slot, ``presence_taught`` also per frame: not where a
            hand may be there without a label. ``pinhole_fit`` is False for fisheye clips.
    """

    global_orient: Float[torch.Tensor, "B N 2 3 3"]
    hand_pose: Float[torch.Tensor, "B N 2 15 3 3"]
    betas: Float[torch.Tensor, "B 2 10"]
    translation: Float[torch.Tensor, "B N 2 3"]
    joints: Float[torch.Tensor, "B N 2 21 3"]
    anchors: Float[torch.Tensor, "B N 2 21 2"]
    hand: HandFlag
    joints_known: Bool[torch.Tensor, "B N 2 21"]
    inside: Bool[torch.Tensor, "B N 2 21"]
    presence: PerHand
    visible: PerHand
    rays: Float[torch.Tensor, "B 3 h w"]
    camera: PinholeBatch
    rotations: ClipFlag
    shape: Bool[torch.Tensor, "B 2"]
    translation_taught: ClipFlag
    joints_taught: ClipFlag
    anchors_taught: ClipFlag
    presence_taught: HandFlag
    rays_taught: ClipFlag
    pinhole: ClipFlag
    pinhole_fit: ClipFlag

    def to(self, device: torch.device | str) -> Targets:
        """Return the targets on a device."""
        return _map(lambda tensors: tensors[0].to(device), [self])

    @classmethod
    def stack(cls, targets: Sequence[Targets]) -> Targets:
        """Return the clips of several as one batch; all of one length and size."""
        return _map(torch.cat, list(targets))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model said about a batch, with its hands posed and placed.

    ``joints`` are canonical: of the hand model, turned to the camera, not placed. ``translation``
    comes out of the solve. The fit (shares of the image) is there in the K-free configuration;
    ``fit_within``: the paper's two guards hold (``FittedPinhole.within``).
    """

    readout: Readout
    joints: Float[torch.Tensor, "B N 2 21 3"]
    translation: Float[torch.Tensor, "B N 2 3"]
    fit_focal: Float[torch.Tensor, "B 2"] | None = None
    fit_centre: Float[torch.Tensor, "B 2"] | None = None
    fit_within: ClipFlag | None = None

    @property
    def joints_camera(self) -> Float[torch.Tensor, "B N 2 21 3"]:
        """The hand model's joints in the camera frame."""
        return self.joints + self.translation[..., None, :]


def _map(merge: Callable[[list[torch.Tensor]], torch.Tensor], targets: list[Targets]) -> Targets:
    values = {}
    for field in fields(Targets):
        parts = [getattr(target, field.name) for target in targets]
        if field.name == "camera":
            cameras = [
                merge([getattr(part, f.name) for part in parts]) for f in fields(PinholeBatch)
            ]
            values["camera"] = PinholeBatch(*cameras)
        else:
            values[field.name] = merge(parts)
    return Targets(**values)
