"""Shapes of links: which a model has, copies of them in another model, where they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from acehand_core.mujoco_gl import import_mujoco
from retarget.solve.arm import Arm

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where G shapes are in T frames: centres in metres, and turns."""

    centres: Float[np.ndarray, "T G 3"]
    turns: Float[np.ndarray, "T G 3 3"]

    def at(self, rows: slice | Int[np.ndarray, "N"]) -> Places:
        """Return some frames of it."""
        return Places(self.centres[rows], self.turns[rows])

    def moved(self, poses: Float[np.ndarray, "T 4 4"]) -> Places:
        """Return them where frames at ``poses`` have them."""
        turns = poses[:, None, :3, :3]
        centres = (turns @ self.centres[..., None])[..., 0] + poses[:, None, :3, 3]
        return Places(centres, turns @ self.turns)

    def beside(self, other: Places) -> Places:
        """Return these shapes and others."""
        centres = np.concatenate([self.centres, other.centres], axis=1)
        return Places(centres, np.concatenate([self.turns, other.turns], axis=1))


def solid_shapes(model: mujoco.MjModel, left_out: Collection[int]) -> Int[np.ndarray, "G"]:
    """Return the shapes that collide, or all if none does; not planes, nor those of some bodies."""
    there = _volumes(model)
    there = there[~np.isin(model.geom_bodyid[there], list(left_out))]
    solid = there[(model.geom_contype[there] | model.geom_conaffinity[there]) != 0]
    return solid if len(solid) else there


def _volumes(model: mujoco.MjModel) -> Int[np.ndarray, "G"]:
    kinds = import_mujoco().mjtGeom
    volumes = [kinds.mjGEOM_SPHERE, kinds.mjGEOM_CAPSULE, kinds.mjGEOM_ELLIPSOID,
               kinds.mjGEOM_CYLINDER, kinds.mjGEOM_BOX, kinds.mjGEOM_MESH]  # fmt: skip
    return np.flatnonzero(np.isin(model.geom_type, [int(kind) for kind in volumes]))


def visible_shapes(arm: Arm) -> Int[np.ndarray, "G"]:
    """Return the shapes that an arm's file shows: those that do not collide, if there are any."""
    model = arm.model
    solid = solid_shapes(model, arm.carried)
    there = np.flatnonzero(~np.isin(model.geom_bodyid, list(arm.carried)))
    silent = (model.geom_contype[there] | model.geom_conaffinity[there]) == 0
    shown = np.intersect1d(there[silent], _volumes(model))
    return shown if len(shown) else solid


def add_shape(
    spec: mujoco.MjSpec, body: mujoco.MjsBody, model: mujoco.MjModel, shape: int, name: str
) -> mujoco.MjsGeom:
    """Add a copy of a model's shape to a body, in its own link's frame; return it."""
    mujoco = import_mujoco()
    geom = body.add_geom(
        name=name,
        type=model.geom_type[shape],
        size=model.geom_size[shape],
        pos=model.geom_pos[shape],
        quat=model.geom_quat[shape],
    )
    if model.geom_type[shape] == int(mujoco.mjtGeom.mjGEOM_MESH):
        number = int(model.geom_dataid[shape])
        first, count = model.mesh_vertadr[number], model.mesh_vertnum[number]
        vertices = model.mesh_vert[first : first + count]
        mesh = spec.add_mesh(name=name, uservert=vertices.astype(float).reshape(-1))
        first, count = model.mesh_faceadr[number], model.mesh_facenum[number]
        mesh.userface = model.mesh_face[first : first + count].reshape(-1)
        # Of flat meshes no volume can be taken.
        mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        geom.meshname = name
    return geom
