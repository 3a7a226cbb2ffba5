"""From a crop to the whole image, and from a mirrored right hand to a left one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.geometry.cameras import Camera

#: Mirrors x: left hands were seen as right hands by methods that own one hand model.
MIRROR = np.diag([-1.0, 1.0, 1.0])


def full_translation(
    pred_cam: Float[np.ndarray, "N 3"],
    box_center: Float[np.ndarray, "N 2"],
    box_size: Float[np.ndarray, "N"],
    right: Float[np.ndarray, "N"],
    camera: Camera,
) -> Float[np.ndarray, "N 3"]:
    """Return the translation of the hand model in the camera frame, metres.

    HaMeR, WiLoR and what follows them predict (s, tx, ty) of a square crop. A crop of side b at
    scale s sees the hand at depth 2 f / (b s); tx and ty are metres beside the box's centre, whose
    own offset follows from its distance to the principal point. The hand's size is the hand
    model's, so the depth is metric only with the camera's true focal length: it is taken from
    ``camera``, not from the file.

    Args:
        pred_cam: (s, tx, ty) as the network gave it, of the mirrored crop for a left hand.
        box_center, box_size: pixels of the whole image; the side after enlarging.
        right: 1 for right hands, 0 for left.
        camera: a pinhole.
    """
    sign = 2 * right - 1
    focal = 0.5 * (camera.fx + camera.fy)
    size = box_size * pred_cam[:, 0] + 1e-9
    offset = box_center - (camera.cx, camera.cy)
    x = sign * pred_cam[:, 1] + 2 * offset[:, 0] / size
    y = pred_cam[:, 2] + 2 * offset[:, 1] / size
    return np.stack([x, y, 2 * focal / size], axis=1)


def mirrored(rotation: Float[np.ndarray, "*batch 3 3"]) -> Float[np.ndarray, "*batch 3 3"]:
    """Return the rotation of the mirrored hand: y and z of its rotation vector change sign."""
    return MIRROR @ rotation @ MIRROR
