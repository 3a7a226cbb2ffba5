"""How a moving camera turned, frame by frame, from whole pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import cv2
import numpy as np

from acehand_core.camera.alignment import Aligner, Small, Turn
from acehand_core.camera.masks import DarkBorder, Mask
from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion
from acehand_core.types import Rotation

#: Larger pictures are made smaller: pixels along the longer side.
LONGEST_SIDE = 640
#: Two small pictures that are less alike than this, or share less, are not of one scene.
_LEAST_LIKENESS, _LEAST_OVERLAP = 0.6, 0.25
#: Below this the turn is looked for everywhere, not only near the last one.
_SURE_LIKENESS = 0.75
#: Standard deviation of a turn: a constant in rad, and a share of the turn itself.
_SIGMA, _SIGMA_SHARE = np.radians(0.2), 0.06


def estimate_rotations(
    frames: Iterable[np.ndarray],
    camera: Camera,
    mask_of: Callable[[int], Mask | None] | None = None,
) -> CameraMotion:
    """Estimate how the camera turned; frames are read once, in order, and not kept.

    The model is a camera that only turns. If it also moves, the result is the turn that best
    explains how the whole picture shifted: what is at rest in the room stays in place under it.

    Args:
        frames: (H, W) grey or (H, W, 3) RGB pictures, uint8, of the camera's size.
        camera: of these pictures.
        mask_of: from the number of a frame to the pixels that are not to be looked at, (H, W),
            because hands, forearms and the like are there; None: all may be.

    Raises:
        InputError: a picture or mask of another size.
    """
    scale = min(1.0, LONGEST_SIDE / max(camera.width, camera.height))
    size = (max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))
    seen = camera if scale == 1.0 else camera.rescaled(*size)
    grid = np.stack(np.meshgrid(np.arange(seen.width), np.arange(seen.height)), -1)
    in_view = np.isfinite(seen.unproject(grid.astype(float))).all(-1)

    aligner, border = Aligner(seen), DarkBorder()
    before: Small | None = None
    last = np.eye(3)
    R: list[Rotation] = []
    broken, sigma = [], []
    for number, picture in enumerate(frames):
        mask = mask_of(number) if mask_of is not None else None
        grey, mask = _prepared(number, picture, mask, camera, size)
        usable = in_view & ~border.add(grey)
        if mask is not None:
            usable &= ~mask

        small = aligner.shrink(grey, usable)
        turn = None if before is None else _turn(aligner, before, small, last)
        before, last = small, np.eye(3) if turn is None else turn.R
        broken.append(turn is None and number > 0)
        R.append(last if turn is None else R[-1] @ last)
        turned = np.linalg.norm(rotations.log(last))
        sigma.append(0.0 if turn is None else _SIGMA + _SIGMA_SHARE * turned)
    return CameraMotion(
        np.array(R).reshape(-1, 3, 3), np.array(broken, bool), np.array(sigma, float)
    )


def _turn(aligner: Aligner, before: Small, after: Small, last: Rotation) -> Turn | None:
    """Return the turn between two frames, None where they are not of one scene."""
    turn = aligner.turn(before, after, last, search=False)
    if turn is None or turn.likeness < _SURE_LIKENESS:
        other = aligner.turn(before, after, last, search=True)
        if other is not None and (turn is None or other.likeness > turn.likeness):
            turn = other

    if turn is None or turn.likeness < _LEAST_LIKENESS or turn.overlap < _LEAST_OVERLAP:
        return None
    return turn


def _prepared(
    number: int, picture: np.ndarray, mask: Mask | None, camera: Camera, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return a frame in grey and its mask, both of the size that is worked in."""
    shape = (camera.height, camera.width)
    if picture.shape[:2] != shape or picture.ndim not in (2, 3) or picture.dtype != np.uint8:
        raise InputError(
            f"frame {number}: {picture.dtype} of shape {picture.shape}; the camera's pictures are "
            f"uint8 of {shape[0]} rows and {shape[1]} columns, grey or RGB."
        )
    if mask is not None and mask.shape != shape:
        raise InputError(f"mask of frame {number}: shape {mask.shape}; the picture's is {shape}.")
    grey = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    if size != shape[::-1]:
        grey = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
        if mask is not None:
            small = cv2.resize(mask.astype(np.uint8) * 255, size, interpolation=cv2.INTER_AREA)
            mask = small > 0
    return np.asarray(grey, np.uint8), mask
