"""The shapes of arms in a MuJoCo scene whose world is the camera."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from acehand_core.geometry import frames, rotations
from acehand_core.motion import RobotTrajectory
from acehand_core.types import SIDES, Side
from retarget.robots.collision_shapes import link_places
from retarget.solve.arm import Arm
from retarget.solve.arm_shapes import Places, add_shape, visible_shapes

if TYPE_CHECKING:
    import mujoco

_PREFIX = "arm:"
#: Of an arm in a frame in which it collides.
_COLLIDES = (0.85, 0.15, 0.12, 1.0)


def add_arms(spec: mujoco.MjSpec, arm: Arm, group: int) -> None:
    """Add the shapes of a left and a right arm to the world of a scene, in their own colours."""
    model = arm.model
    for side, shape in itertools.product(SIDES, visible_shapes(arm).tolist()):
        geom = add_shape(spec, spec.worldbody, model, shape, f"{_PREFIX}{side} {shape}")
        geom.group, material = group, int(model.geom_matid[shape])
        geom.rgba = model.geom_rgba[shape] if material < 0 else model.mat_rgba[material]


class DrawnArms:
    """The shapes that ``add_arms`` put into a scene."""

    def __init__(self, arm: Arm, model: mujoco.MjModel) -> None:
        """Find them in the compiled scene."""
        self._arm, self._links = arm, arm.model.geom_bodyid[visible_shapes(arm)] - 1
        names = [model.geom(i).name for i in range(model.ngeom)]
        self._geoms = {
            side: np.array(
                [i for i, n in enumerate(names) if n.startswith(f"{_PREFIX}{side} ")], int
            )
            for side in SIDES
        }
        self._colours = model.geom_rgba.copy()
        one = self._geoms[SIDES[0]]
        self._local = model.geom_pos[one], rotations.from_quaternion(model.geom_quat[one])

    def of(
        self,
        model: mujoco.MjModel,
        trajectory: RobotTrajectory,
        frame: int,
        T_camera_base: Float[np.ndarray, "2 4 4"],
    ) -> dict[Side, Places]:
        """Return where the arms of one frame are before the camera; those that collide turn red."""
        places: dict[Side, Places] = {}
        if trajectory.T_frame_base is None:
            return places
        for slot, (side, motion) in enumerate(zip(SIDES, trajectory.arms, strict=True)):
            if motion is None:
                continue
            geoms, T_frame_base = self._geoms[side], trajectory.T_frame_base[frame, slot]
            collides = motion.clearance_m[frame] < 0
            model.geom_rgba[geoms] = _COLLIDES if collides else self._colours[geoms]
            T_camera_arm = T_camera_base[slot] @ frames.inverse(T_frame_base) @ motion.T_frame_arm
            joints = motion.joints[frame : frame + 1]
            own = Places(*link_places(self._arm.posture_at(joints), self._links, *self._local))
            places[side] = own.moved(T_camera_arm[None])
        return places

    def place(self, data: mujoco.MjData, places: Mapping[Side, Places]) -> list[np.ndarray]:
        """Put arms where they are, others behind the camera; return the geoms of the former."""
        for side, geoms in self._geoms.items():
            data.geom_xpos[geoms] = (0, 0, -10)
            if side in places:
                data.geom_xpos[geoms] = places[side].centres[0]
                data.geom_xmat[geoms] = places[side].turns[0].reshape(-1, 9)
        return [self._geoms[side] for side in places]
