"""Arms that carry robot hands, seen from outside, on their table."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Float

from acehand_core.drawing.panels import Layer, Panels, PanelView
from acehand_core.drawing.robot_view import RobotRenderer
from acehand_core.geometry import frames
from acehand_core.motion import HandMotion, RobotTrajectory
from acehand_core.types import ImageRgb
from retarget.robots.robot import Robot
from retarget.solve.arm import Arm

#: Frames whose links the view is to show.
_SHOWN_FRAMES = 24


class ArmView:
    """A function from frame number to picture; a context manager."""

    def __init__(
        self,
        robot: Robot,
        arm: Arm,
        motion: HandMotion,
        trajectory: RobotTrajectory,
        width: int,
        height: int,
    ) -> None:
        """Open a renderer. Raises MissingDependencyError where there is no OpenGL."""
        self._renderer = RobotRenderer(robot, width, height, arm)
        layer = functools.partial(robot_layer, self._renderer, trajectory)
        points, table = arm_room(arm, trajectory)
        self._panels = Panels(motion, width, height, layer, (), points, table)

    def __enter__(self) -> ArmView:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()

    def __call__(self, frame: int) -> ImageRgb:
        """Return the picture of one frame."""
        return self._panels.draw("robot-third", frame)


def arm_room(
    arm: Arm | None, trajectory: RobotTrajectory
) -> tuple[Float[np.ndarray, "N 3"] | None, Float[np.ndarray, "4 4"] | None]:
    """Return points that arms pass through, in the trajectory's frame, and where the table is."""
    motions = [motion for motion in trajectory.arms if motion is not None]
    if arm is None or not motions:
        return None, None
    rows = np.unique(np.linspace(0, len(trajectory) - 1, _SHOWN_FRAMES).astype(int))
    points = []
    for motion in motions:
        posture = arm.tree.posture(arm.all_joints(motion.joints[rows]))
        links = posture.positions.reshape(-1, 3)
        points += [frames.apply(motion.T_frame_arm, links), motion.T_frame_arm[None, :3, 3]]
    return np.concatenate(points), motions[0].T_frame_table


def robot_layer(
    renderer: RobotRenderer, trajectory: RobotTrajectory, view: PanelView, frame: int, outside: bool
) -> Layer:
    """Return the robot in one frame as a view sees it; from outside with its arms."""
    assert trajectory.T_frame_base is not None  # of motions with a place before a camera
    poses = view.T_view_frame @ trajectory.T_frame_base[frame]
    return Layer(*renderer.render_frame(view.camera, trajectory, frame, poses, outside))
