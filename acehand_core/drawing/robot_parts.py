"""A robot hand as links with triangles, for viewers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.geometry import rotations
from acehand_core.mujoco_gl import import_mujoco
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import load_mjcf

_VISUAL_GROUP = 2
#: Segments around a round shape, and from pole to pole.
_SLICES, _STACKS = 8, 4


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLink:
    """One link, posed in its parent's frame (``parent`` -1: the base) with its joint at 0.

    ``column`` is the joint's index in ``HandSpec.joint_names``, -1 for a fixed link. It turns about
    ``axis`` through ``anchor`` (link frame), or slides along it. Quaternions are wxyz.
    """

    name: str
    parent: int
    position: Float[np.ndarray, "3"]
    quaternion: Float[np.ndarray, "4"]
    column: int
    axis: Float[np.ndarray, "3"]
    anchor: Float[np.ndarray, "3"]
    slides: bool


@dataclass(frozen=True, slots=True, eq=False)
class RobotParts:
    """Links of one hand, and V vertices (m), each in the frame of its link."""

    links: tuple[DrawnLink, ...]
    vertices: Float[np.ndarray, "V 3"]
    vertex_links: Int[np.ndarray, "V"]
    faces: Int[np.ndarray, "F 3"]


def robot_parts(hand: HandSpec) -> RobotParts:
    """Return a hand's links and the triangles of its visible shapes.

    Raises InputError: the model file is missing or MuJoCo refuses it.
    """
    mujoco, model = import_mujoco(), load_mjcf(hand.mjcf_path)
    links = []
    for body in range(1, model.nbody):
        joint = int(model.body_jntadr[body])
        moves = joint >= 0
        name = model.joint(joint).name.removeprefix(f"{hand.side}_") if moves else ""
        links.append(
            DrawnLink(
                name=model.body(body).name,
                parent=int(model.body_parentid[body]) - 1,
                position=model.body_pos[body].copy(),
                quaternion=model.body_quat[body].copy(),
                column=hand.joint_names.index(name) if moves else -1,
                axis=model.jnt_axis[joint].copy() if moves else np.zeros(3),
                anchor=model.jnt_pos[joint].copy() if moves else np.zeros(3),
                slides=moves and model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_SLIDE,
            )
        )

    parts, count = [], 0
    for geom in np.flatnonzero(model.geom_group == _VISUAL_GROUP).tolist():
        shape, triangles = _triangles(mujoco, model, geom)
        turn = rotations.from_quaternion(model.geom_quat[geom])
        owners = np.full(len(shape), model.geom_bodyid[geom] - 1)
        parts.append((shape @ turn.T + model.geom_pos[geom], owners, triangles + count))
        count += len(shape)
    return RobotParts(tuple(links), *map(np.concatenate, zip(*parts, strict=True)))


def _triangles(
    mujoco: Any, model: Any, geom: int
) -> tuple[Float[np.ndarray, "V 3"], Int[np.ndarray, "F 3"]]:
    """Return the surface of a shape in its frame."""
    kinds = mujoco.mjtGeom
    kind, size = model.geom_type[geom], model.geom_size[geom]
    if kind == kinds.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first, faces = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
        points = model.mesh_vert[first : first + model.mesh_vertnum[mesh]]
        count = model.mesh_facenum[mesh]
        return points.astype(float), model.mesh_face[faces : faces + count].astype(int)
    if kind == kinds.mjGEOM_BOX:
        corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * size
        sides = np.array(
            [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
        )
        return corners, np.concatenate([sides[:, [0, 1, 2]], sides[:, [0, 2, 3]]])

    points, faces = _sphere()
    if kind == kinds.mjGEOM_CAPSULE:
        half = np.where(points[:, 2:] >= 0, size[1], -size[1])
        return points * size[0] + half * [0, 0, 1], faces
    if kind == kinds.mjGEOM_CYLINDER:
        # Poles become the centres of the ends, all other points lie on one of the two rims.
        rim = np.abs(points[:, 2]) < 1 - 1e-9
        flat = points.copy()
        flat[rim, :2] /= np.linalg.norm(points[rim, :2], axis=1, keepdims=True)
        flat[:, 2] = np.where(points[:, 2] >= 0, 1, -1)
        return flat * [size[0], size[0], size[1]], faces
    return points * (size if kind == kinds.mjGEOM_ELLIPSOID else size[0]), faces


def _sphere() -> tuple[Float[np.ndarray, "V 3"], Int[np.ndarray, "F 3"]]:
    """Return a unit sphere with two rings on its equator, to stretch into a capsule."""
    upper = np.linspace(0, np.pi / 2, _STACKS // 2 + 1)
    tilt = np.concatenate([upper[1:], np.pi - upper[1:][::-1]])
    turn = np.linspace(0, 2 * np.pi, _SLICES, endpoint=False)
    rings = np.stack([
        np.outer(np.sin(tilt), np.cos(turn)), np.outer(np.sin(tilt), np.sin(turn)),
        np.repeat(np.cos(tilt)[:, None], _SLICES, axis=1),
    ], axis=-1)  # fmt: skip
    # The lower of the two rings on the equator belongs to the lower half.
    rings[len(upper) - 1, :, 2] = -1e-12
    points = np.concatenate([[[0, 0, 1.0]], rings.reshape(-1, 3), [[0, 0, -1.0]]])
    after = (np.arange(_SLICES) + 1) % _SLICES
    here, zero = np.arange(_SLICES), np.zeros(_SLICES, int)
    faces = [np.stack([zero, 1 + here, 1 + after], axis=1)]
    for a in range(1, 1 + (len(tilt) - 1) * _SLICES, _SLICES):
        b = a + _SLICES
        faces.append(np.stack([a + here, b + here, b + after], axis=1))
        faces.append(np.stack([a + here, b + after, a + after], axis=1))
    last, ring = len(points) - 1, len(points) - 1 - _SLICES
    faces.append(np.stack([ring + here, zero + last, ring + after], axis=1))
    return points, np.concatenate(faces)
