"""The robot as the source camera would see it, frame by frame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from acehand_core.drawing.robot_view import RobotRenderer, composite
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion, RobotTrajectory
from acehand_core.types import SIDES, ImageRgb
from retarget.robots.robot import Robot

_BACKDROP = (38, 41, 47)


class SourceView:
    """A function from frame number to picture; a context manager.

    Where the hands have no place before a camera, each hand is shown from a fixed viewpoint.
    """

    def __init__(
        self, robot: Robot, motion: HandMotion, trajectory: RobotTrajectory, width: int, height: int
    ) -> None:
        """Open a renderer. Raises MissingDependencyError where there is no OpenGL."""
        self._trajectory = trajectory
        self._camera = _pinhole(motion, trajectory, width, height)
        self._poses = _camera_poses(motion, trajectory)
        self._renderer = RobotRenderer(robot, width, height)
        self._backdrop = np.full((height, width, 3), _BACKDROP, np.uint8)

    def __enter__(self) -> SourceView:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()

    def __call__(self, frame: int) -> ImageRgb:
        """Return the picture of one frame; absent hands are not drawn."""
        trajectory = self._trajectory
        shown = [(slot, side) for slot, side in enumerate(SIDES) if trajectory.active[frame, slot]]
        picture = self._renderer.render(
            self._camera,
            {side: trajectory.joints[frame, slot] for slot, side in shown},
            {side: self._poses[frame, slot] for slot, side in shown},
        )
        return composite(picture, self._backdrop)


def _pinhole(motion: HandMotion, trajectory: RobotTrajectory, width: int, height: int) -> Camera:
    """Return the source camera without its distortion, or a nominal one."""
    if motion.camera is None or trajectory.T_frame_base is None:
        return Camera.nominal(width, height)
    camera = motion.camera.rescaled(width, height)
    return replace(camera, model="pinhole", distortion=())


def _camera_poses(motion: HandMotion, trajectory: RobotTrajectory) -> np.ndarray:
    """Return the bases in the camera frame, (T, 2, 4, 4)."""
    if trajectory.T_frame_base is None:
        return np.broadcast_to(_fixed_poses(), (len(trajectory), 2, 4, 4))
    if trajectory.frame == "world" and motion.T_world_camera is not None:
        return frames.inverse(motion.T_world_camera)[:, None] @ trajectory.T_frame_base
    return trajectory.T_frame_base


def _fixed_poses() -> np.ndarray:
    """Left and right hand side by side, fingers up, palms to the viewer."""
    # Base x (out of the palm) to the viewer, y to the image's right, z (fingers) up.
    turn = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0], [-1.0, 0.0, 0.0]])
    return np.stack([frames.rigid(turn, np.array([x, 0.08, 0.45])) for x in (-0.12, 0.12)])
