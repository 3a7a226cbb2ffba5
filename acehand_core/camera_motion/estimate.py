"""Rotations of a moving camera, frame by frame, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import cv2
import numpy as np

from acehand_core.camera_motion.bundle import Done, Window
from acehand_core.camera_motion.odometry import Odometry
from acehand_core.camera_motion.tracks import Mask
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion

#: Larger pictures are made smaller: pixels along the longer side.
LONGEST_SIDE = 640


def estimate_rotations(
    frames: Iterable[np.ndarray],
    camera: Camera,
    fps: float,
    mask_of: Callable[[int], Mask | None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> CameraMotion:
    """Estimate how the camera turned; frames are read once, in order, and not kept.

    Args:
        frames: (H, W) grey or (H, W, 3) RGB pictures, uint8, of the camera's size.
        camera: of these pictures.
        fps: their rate, from which follows how much a head's velocity may change between two.
        mask_of: from the number of a frame to the pixels that are not to be looked at, (H, W),
            because hands, forearms and the like are there; None: all may be.
        progress: called after each frame with how many are done.

    Raises:
        InputError: a picture or mask of another size, or a rate that is not positive.
    """
    if not (np.isfinite(fps) and fps > 0):
        raise InputError(f"fps {fps}: the rate of the frames must be a positive number.")
    scale = min(1.0, LONGEST_SIDE / max(camera.width, camera.height))
    size = (max(1, round(camera.width * scale)), max(1, round(camera.height * scale)))
    odometry = Odometry(camera if scale == 1.0 else camera.rescaled(*size), fps)
    done: list[Done] = []
    window: Window | None = None
    for number, picture in enumerate(frames):
        mask = mask_of(number) if mask_of is not None else None
        seen = odometry.step(number, *prepared(number, picture, mask, camera, size))

        # Where the step is not known the piece ends, and the next begins.
        if window is not None and seen.turn is None:
            done += window.finish()
        if window is None or seen.turn is None:
            window = Window(fps)
        done += window.add(seen)
        if progress is not None:
            progress(number + 1)
    if window is not None:
        done += window.finish()
    return CameraMotion(
        np.array([frame.pose.R for frame in done]).reshape(-1, 3, 3),
        np.array([frame.begins and number > 0 for number, frame in enumerate(done)], bool),
        np.array([frame.sigma for frame in done], float),
    )


def prepared(
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
