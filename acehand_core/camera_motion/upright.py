"""Turns the world of a camera path upright, z up: by what is said of up, or by a table."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.camera_motion.poses import CameraPath
from acehand_core.errors import InputError
from acehand_core.geometry import rotations

#: A plane holds the points within this share of the distance to it from the camera, and so many.
_PLANE_WIDTH, _PLANE_SHARE, _PLANE_POINTS = 0.015, 0.25, 60
_TRIES = 400
#: A table is seen from above: the cosine of its upward normal with up in the picture (-y), at
#: least. Heads look down by up to 70 degrees.
_LEAST_UPWARD = 0.2


def gravity_aligned(path: CameraPath, up: Float[np.ndarray, "3"] | None = None) -> CameraPath:
    """Return the path in a world whose z is up, with the same first camera at its origin.

    Args:
        path: that was not refused.
        up: in the world of the path. None: the largest plane of the structure is taken for a table
            that is seen from above.

    Raises:
        InputError: ``up`` is no direction, the path was refused, or no plane stands out.
    """
    if path.reason:
        raise InputError(f"gravity: there are no camera poses: {path.reason}")
    if up is not None:
        length = float(np.linalg.norm(up))
        if not (np.isfinite(up).all() and length > 1e-6):
            raise InputError(f"up {up}: it must be a direction (x, y, z).")
        upward = up / length
    else:
        upward = _of_plane(path)
    turn = rotations.between(upward, np.array([0.0, 0.0, 1.0]))
    T = np.eye(4)
    T[:3, :3] = turn
    return path.moved(1.0, T)


def _of_plane(path: CameraPath) -> Float[np.ndarray, "3"]:
    """Return the normal of the plane that holds most points, towards the cameras."""
    points = path.points
    eyes = path.T_world_camera[path.known][:, :3, 3]
    eye = eyes.mean(0)
    refusal = InputError(
        "gravity: no table stands out in what the camera saw; give the direction of up, or an IMU."
    )
    if len(points) < _PLANE_POINTS:
        raise refusal
    # Nearness counts: a point's error grows with its distance.
    width = _PLANE_WIDTH * np.linalg.norm(points - eye, axis=1)
    rng = np.random.default_rng(0)
    picks = points[rng.integers(0, len(points), (_TRIES, 3))]
    normals = np.cross(picks[:, 1] - picks[:, 0], picks[:, 2] - picks[:, 0])
    sizes = np.linalg.norm(normals, axis=1)
    normals = normals[sizes > 1e-9] / sizes[sizes > 1e-9, None]
    picks = picks[sizes > 1e-9]
    normals *= np.sign(np.einsum("ni,ni->n", normals, eye - picks[:, 0]))[:, None]

    # Up in the picture, in the world: a table's normal is not far below it, a ceiling's is.
    upwards = -path.T_world_camera[path.known][:, :3, 1].mean(0)
    picks, normals = (v[normals @ upwards > _LEAST_UPWARD] for v in (picks, normals))
    if not len(normals):
        raise refusal
    off = np.abs(points @ normals.T - np.einsum("ni,ni->n", normals, picks[:, 0]))
    inside = off < width[:, None]
    best = int(np.argmax(inside.sum(0)))
    on = inside[:, best]
    if on.sum() < max(_PLANE_POINTS, _PLANE_SHARE * len(points)):
        raise refusal
    weight = 1 / width[on]
    middle = weight @ points[on] / weight.sum()
    normal = np.linalg.svd((points[on] - middle) * weight[:, None], full_matrices=False)[2][2]
    return np.asarray(normal * np.sign(normal @ normals[best]))
