"""The truth of a window of a clip as tensors: ``losses.targets.Targets`` of one clip."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float

from acehand_core.batch import PinholeBatch
from acehand_core.data.clips.schema import ClipInfo
from acehand_core.errors import InputError
from acehand_core.geometry import rotations_torch
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.losses.targets import Targets
from acehand_core.motion import HandMotion


def targets_of(
    info: ClipInfo,
    motion: HandMotion,
    size: tuple[int, int],
    grid: tuple[int, int],
    hands: TorchHands,
    left_shapedirs_fixed: bool = False,
) -> Targets:
    """Return the truth of one window.

    A camera is taken as its numbers stand, scaled by plain ratios, as the solver does: anchors are
    ``(f X / Z + c) / size`` and token centres ``(j + 0.5) / w`` of the image.

    Args:
        motion: the window's N frames.
        size: width and height of the encoded pictures.
        grid: rows and columns of tokens.
        left_shapedirs_fixed: of ``hands``; left shapes under the other flag teach nothing.

    Raises:
        InputError: the clip's hands are those of another hand model.
    """
    if info.hand_model not in ("none", hands.name):
        raise InputError(
            f"{info.dataset}/{info.id}: its hands are {info.hand_model!r}, this run's "
            f"{hands.name!r}; use hand={info.hand_model}, or leave the source out."
        )
    taught = info.supervision
    slots = np.array(taught.slots)
    there = (motion.presence > 0.5) & motion.observed
    # A hand that may be there, but has no label, is neither a hand to learn from nor an absence.
    unlabelled = ~motion.observed & (motion.presence > 0)
    joints = motion.joints_camera
    known = np.isfinite(joints).all(-1) & there[..., None]
    anchors = _anchors(info, motion)
    inside = np.isfinite(anchors).all(-1)
    with np.errstate(invalid="ignore"):
        inside &= ((anchors >= 0) & (anchors < 1)).all(-1)
    same_left = motion.hand_model == "acehand" or (
        info.left_shapedirs_fixed == left_shapedirs_fixed
    )
    shape = slots & taught.shape & np.array([same_left, True])
    orient, pose = _rotations(motion, there, hands)
    return Targets(
        global_orient=orient,
        hand_pose=pose,
        betas=_known(motion.betas, np.isfinite(motion.betas)),
        translation=_known(motion.translation, there[..., None]),
        joints=_known(joints, known[..., None]),
        anchors=_known(anchors, inside[..., None]),
        hand=torch.from_numpy(there & slots)[None],
        joints_known=torch.from_numpy(known)[None],
        inside=torch.from_numpy(inside)[None],
        presence=torch.from_numpy(there).float()[None],
        visible=torch.from_numpy(there & (motion.visible > 0)).float()[None],
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


def _anchors(info: ClipInfo, motion: HandMotion) -> Float[np.ndarray, "N 2 21 2"]:
    """Return keypoints in shares of the image; NaN where unknown or behind the camera."""
    pixels = motion.joints_image
    if info.camera is not None:
        pixels = info.camera.project(motion.joints_camera)
        with np.errstate(invalid="ignore"):
            behind = ~(motion.joints_camera[..., 2] > 0)
        pixels = np.where(behind[..., None] & (info.camera.model == "pinhole"), np.nan, pixels)
    return pixels / (info.width, info.height)


def _rotations(
    motion: HandMotion, there: Bool[np.ndarray, "N 2"], hands: TorchHands
) -> tuple[Float[torch.Tensor, "1 N 2 3 3"], Float[torch.Tensor, "1 N 2 15 3 3"]]:
    """Return orientation, and finger rotations relative to the mean pose; identity if unknown."""
    eye = np.eye(3)
    orient = np.where(there[..., None, None], motion.global_orient, eye)
    pose = np.where(there[..., None, None, None], motion.hand_pose, eye)
    orient, pose = (np.where(np.isfinite(R).all((-1, -2), keepdims=True), R, eye)
                    for R in (orient, pose))  # fmt: skip
    fingers = torch.from_numpy(pose)[None]
    if hands.name == "mano":
        fingers = rotations_torch.exp(rotations_torch.log(fingers) - hands.mean.to(fingers))
    return torch.from_numpy(orient).float()[None], fingers.float()


def _rays(camera: Camera | None, grid: tuple[int, int]) -> Float[torch.Tensor, "1 3 h w"]:
    """Return calibrated unit rays through the token centres; 0 where there is none."""
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
