"""Ground truth of a batch of windows with its supervision, and the prediction to compare.

Axes: B clips, N video frames, 2 slots, 21 joints, h w tokens. Camera frame, metres. Unknown numbers
are 0 and masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float

from acehand_core.ace.labelled.clips.schema import ClipInfo
from acehand_core.ace.model.batch import PinholeBatch, Readout
from acehand_core.geometry import rotations_torch
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.motion import HandMotion

PerHand = Float[torch.Tensor, "B N 2"]
HandFlag = Bool[torch.Tensor, "B N 2"]
ClipFlag = Bool[torch.Tensor, "B"]


@dataclass(frozen=True, slots=True)
class Targets:
    """The ground truth of B clips.

    Attributes:
        hand_pose: relative to the hand model's mean pose.
        anchors: 2D keypoints as shares of the image (``model.pnp``).
        hand: present, labelled and supervised, also out of sight.
        joints_known, inside: labelled keypoints; those that project inside the image.
        rays: unit rays of the calibrated camera through the token centres.
        camera: pinhole of the encoded image; meaningless where ``pinhole`` is False.
        rotations, shape, *_taught: what is supervised; ``presence_taught`` is False where an
            unlabelled hand may be. ``pinhole_fit`` is False for fisheye clips.
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
        return mapped(lambda tensors: tensors[0].to(device), [self])

    @classmethod
    def stack(cls, targets: Sequence[Targets]) -> Targets:
        """Concatenate targets of one length and size."""
        return mapped(torch.cat, list(targets))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A batch's prediction with posed and placed hands.

    ``joints``: of the hand model, rotated into the camera frame; ``translation``: of the solve. The
    fit (shares of the image) is K-free; ``fit_within``: it passes the paper's two guards.
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


def mapped(merge: Callable[[list[torch.Tensor]], torch.Tensor], parts: list[Any]) -> Any:
    """Merge equal dataclasses of tensors field by field; None stays None."""
    if parts[0] is None or isinstance(parts[0], torch.Tensor):
        return None if parts[0] is None else merge(parts)
    values = ([getattr(part, f.name) for part in parts] for f in fields(parts[0]))
    return type(parts[0])(*(mapped(merge, value) for value in values))


def targets_of(
    info: ClipInfo,
    motion: HandMotion,
    size: tuple[int, int],
    grid: tuple[int, int],
    hands: TorchHands,
    left_shapedirs_fixed: bool = False,
) -> Targets:
    """Return the ground truth of one window of N frames.

    As in placement, intrinsics scale by plain ratios: anchors are ``(f X / Z + c) / size``, token
    centres ``(j + 0.5) / w`` of the image.

    Args:
        size: width and height of the encoded pictures; ``grid``: rows and columns of tokens.
        left_shapedirs_fixed: of ``hands``; left shapes with the other flag are not supervised.
    """
    taught = info.supervision
    slots = np.array(taught.slots)
    present = (motion.presence > 0.5) & motion.observed

    # Without a label a possible hand is neither positive nor negative.
    unlabelled = ~motion.observed & (motion.presence > 0)
    joints = motion.joints_camera
    known = np.isfinite(joints).all(-1) & present[..., None]
    # Keypoints as shares of the image; NaN where unknown or behind the camera.
    anchors = motion.joints_image / (info.width, info.height)
    if info.camera is not None:
        pixels = info.camera.project(joints)
        ahead = (joints[..., 2:] > 0) | (info.camera.model != "pinhole")
        anchors = np.where(ahead, pixels, np.nan) / (info.width, info.height)
    inside = np.asarray(((anchors >= 0) & (anchors < 1)).all(-1))
    same_left = motion.hand_model == "acehand" or info.left_shapedirs_fixed == left_shapedirs_fixed
    shape = slots & taught.shape & np.array([same_left, True])
    orient, pose = _rotations(motion, present, hands)

    return Targets(
        global_orient=orient,
        hand_pose=pose,
        betas=_known(motion.betas, np.isfinite(motion.betas)),
        translation=_known(motion.translation, present[..., None]),
        joints=_known(joints, known[..., None]),
        anchors=_known(anchors, inside[..., None]),
        hand=torch.from_numpy(present & slots)[None],
        joints_known=torch.from_numpy(known)[None],
        inside=torch.from_numpy(inside)[None],
        presence=torch.from_numpy(present).float()[None],
        visible=torch.from_numpy(present & (motion.visible > 0)).float()[None],
        rays=_rays(info.camera, grid),
        camera=_pinhole(info, size),
        rotations=_flag(taught.rotations and info.hand_model != "none"),
        shape=torch.from_numpy(shape)[None],
        translation_taught=_flag(taught.translation and info.hand_model != "none"),
        joints_taught=_flag(taught.joints),
        anchors_taught=_flag(taught.anchors),
        presence_taught=torch.from_numpy(slots & taught.presence & ~unlabelled)[None],
        rays_taught=_flag(taught.camera and info.camera is not None),
        pinhole=_flag(info.camera is not None and info.camera.model == "pinhole"),
        pinhole_fit=_flag(taught.pinhole_fit),
    )


def _rotations(
    motion: HandMotion, present: Bool[np.ndarray, "N 2"], hands: TorchHands
) -> tuple[Float[torch.Tensor, "1 N 2 3 3"], Float[torch.Tensor, "1 N 2 15 3 3"]]:
    """Return orientation and finger rotations minus the mean pose; identity where unknown."""
    orient, pose = (
        np.where(known[..., None, None] & np.isfinite(R).all((-1, -2), keepdims=True), R, np.eye(3))
        for R, known in ((motion.global_orient, present), (motion.hand_pose, present[..., None]))
    )
    fingers = torch.from_numpy(pose)[None]
    if hands.name == "mano":
        fingers = rotations_torch.exp(rotations_torch.log(fingers) - hands.mean.to(fingers))
    return torch.from_numpy(orient).float()[None], fingers.float()


def _rays(camera: Camera | None, grid: tuple[int, int]) -> Float[torch.Tensor, "1 3 h w"]:
    """Return the calibrated unit rays through the token centres; 0 where undefined."""
    h, w = grid
    if camera is None:
        return torch.zeros(1, 3, h, w)
    x = (np.arange(w) + 0.5) / w * camera.width
    y = (np.arange(h) + 0.5) / h * camera.height
    rays = camera.unproject(np.stack(np.meshgrid(x, y), -1))
    return torch.from_numpy(np.nan_to_num(rays, nan=0.0)).float().permute(2, 0, 1)[None]


def _pinhole(info: ClipInfo, size: tuple[int, int]) -> PinholeBatch:
    sides = torch.tensor([size], dtype=torch.float32)
    camera = info.camera
    if camera is None:
        return PinholeBatch(sides.clone(), sides / 2, sides)
    ratio = sides / torch.tensor([[info.width, info.height]])
    focal = torch.tensor([[camera.fx, camera.fy]], dtype=torch.float32)
    centre = torch.tensor([[camera.cx, camera.cy]], dtype=torch.float32)
    return PinholeBatch(focal * ratio, centre * ratio, sides)


def _known(values: np.ndarray, mask: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.where(mask, values, 0.0)).float()[None]


def _flag(value: bool) -> Bool[torch.Tensor, "1"]:
    return torch.tensor([bool(value)])
