"""The on-screen gate and the boxes around projected meshes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry.cameras import Camera

#: x0 y0 x1 y1 in pixels; NaN where nothing lies in front of the camera.
Boxes = Float[np.ndarray, "*batch 4"]


def joints_in_image(
    joints: Float[np.ndarray, "*batch 21 3"], camera: Camera, z_min_m: float
) -> Bool[np.ndarray, "*batch 21"]:
    """Return which joints project into [0, W) x [0, H) at a depth above ``z_min_m``.

    Source: paper, "On-screen gate", taken by the letter: pixel coordinates from 0 to the size,
    although the image of integer pixel centres begins at -0.5. NaN joints are not in the image.
    """
    pixels = camera.project(joints)
    with np.errstate(invalid="ignore"):
        inside = (pixels >= 0).all(-1) & (pixels < (camera.width, camera.height)).all(-1)
        return inside & (joints[..., 2] > z_min_m)


def boxes_around(
    points: Float[np.ndarray, "N V 3"], camera: Camera, z_min_m: float
) -> Float[np.ndarray, "N 4"]:
    """Return the box of each row's projected points in front of the camera, not cut at the image.

    Points are in metres in the camera frame. Those not deeper than ``z_min_m`` have no meaningful
    pixel and are left out; a row without any other is NaN.
    """
    out = np.full((len(points), 4), np.nan)
    if not len(points):
        return out
    front = points[..., 2] > z_min_m
    if camera.model == "pinhole":
        inverse = 1 / np.where(front, points[..., 2], 1.0)
        coordinates = [
            points[..., axis] * inverse * focal + centre
            for axis, focal, centre in ((0, camera.fx, camera.cx), (1, camera.fy, camera.cy))
        ]
    else:
        pixels = camera.project(points)
        front = front & np.isfinite(pixels).all(-1)
        coordinates = [pixels[..., 0], pixels[..., 1]]
    whole = front.all(-1)
    some = front.any(-1)
    for axis, values in enumerate(coordinates):
        low, high = values, values
        if not whole.all():
            low, high = np.where(front, values, np.inf), np.where(front, values, -np.inf)
        out[some, axis] = low.min(-1)[some]
        out[some, axis + 2] = high.max(-1)[some]
    return out


def dilated(boxes: Boxes, share: float) -> Boxes:
    """Return boxes whose width and height grew by ``share`` about their centres."""
    low, high = boxes[..., :2], boxes[..., 2:]
    grow = 0.5 * share * (high - low)
    return np.concatenate([low - grow, high + grow], axis=-1)


def overlap(a: Boxes, b: Boxes) -> Float[np.ndarray, "*batch"]:
    """Return the intersection over union; 0 where a box is NaN or has no area."""
    size = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    with np.errstate(invalid="ignore"):
        shared = np.where((size > 0).all(-1), size.prod(-1), 0.0)
    areas = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1)
    return np.asarray(np.where(shared > 0, shared / np.where(shared > 0, areas - shared, 1), 0.0))
