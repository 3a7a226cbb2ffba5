"""Panels of one recording, frame by frame: what was seen, the hands found in it, the robot.

``source``, ``mesh``, ``robot`` and ``both`` are under the source camera, over its picture.
``third`` and ``robot-third`` stand beside it for the whole recording, with the trails of the
wrists; ``head`` and ``robot-head`` look from the source camera's place without its picture, as in
the paper's figures. Of everything that is drawn the nearer part covers the farther.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

import cv2
import numpy as np
from jaxtyping import Float32

from acehand_core.drawing.overlay import HAND_COLOURS, draw_skeleton
from acehand_core.drawing.scene import (
    DepthImage,
    Layer,
    View,
    camera_lines,
    draw_lines,
    ground_lines,
    mesh_layer,
    moved,
    outside_view,
    stack,
)
from acehand_core.errors import InputError, nearest
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import Camera, HandMotion
from acehand_core.types import SIDES, ImageRgb, Picture

Panel = Literal["source", "mesh", "robot", "both", "third", "head", "robot-third", "robot-head"]
PANELS: tuple[str, ...] = get_args(Panel)
#: Draws the robot hands of a frame as a view sees them.
RobotLayer = Callable[[View, int], Layer]

_BACKDROP = (38, 41, 47)
_GROUND = (74, 79, 88)
_FRUSTUM = (200, 200, 200)
_OVER_SOURCE, _OF_MESH_WITH_ROBOT = 0.75, 0.6
_TRAIL_S = 1.5


def panel_names(text: str) -> tuple[Panel, ...]:
    """Return the panels named in a list with commas; InputError for an unknown one."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in PANELS:
            raise InputError(f"Unknown panel {name!r}; {nearest(name, PANELS)}")
    if not names:
        raise InputError(f"Name at least one panel of {', '.join(PANELS)}.")
    return tuple(panel for name in names for panel in get_args(Panel) if panel == name)


class Panels:
    """Draws panels of one size; ``robot`` is needed for those with the robot only."""

    def __init__(
        self,
        motion: HandMotion,
        width: int,
        height: int,
        robot: RobotLayer | None = None,
        beside: Sequence[HandMotion] = (),
    ) -> None:
        """Prepare the cameras.

        Args:
            beside: other hands of the same frames. The view from outside shows theirs too, so that
                the panels of all of them have one view.

        Raises:
            InputError: the hands have no place before a camera.
        """
        if not motion.placed:
            raise InputError("These joints are relative to the wrist: no camera sees them.")
        camera = motion.camera.rescaled(width, height) if motion.camera else None
        self._motion, self._robot = motion, robot
        self._size = (width, height)
        self._camera = camera or Camera.nominal(width, height)
        self._pinhole = replace(self._camera, model="pinhole", distortion=())
        self._model = CapsuleHand() if motion.hand_model == "acehand" else None
        poses = motion.T_world_camera
        self._poses = np.tile(np.eye(4), (len(motion), 1, 1)) if poses is None else poses

        self._wrists = self._wrist_trails(motion)
        trails = np.concatenate([self._wrists, *map(self._wrist_trails, beside)])
        points = trails[np.isfinite(trails).all(-1)]
        eyes = self._poses[:, :3, 3]
        room = np.array([0.0, 0.0, 0.1])
        shown = np.concatenate([points + room, points - room, eyes[:1]])
        self._up = -self._poses[0, :3, 1] if poses is None else np.array([0.0, 0.0, 1.0])
        self._third = outside_view(shown, self._poses[0, :3, 2], self._up, width, height)
        self._ground = ground_lines(points if len(points) else np.zeros((1, 3)), self._up)

    def draw(
        self,
        panel: Panel,
        frame: int,
        image: ImageRgb | None = None,
        scene: Float32[np.ndarray, "_ _"] | None = None,
    ) -> Picture:
        """Return one panel of one frame.

        Args:
            image: the source picture, any size; None where there is none.
            scene: depth of the scene in metres in the panel's size, 0 where it is not known. It
                hides what lies behind it, the human hand itself excepted.
        """
        if panel in ("third", "robot-third"):
            return self._outside(panel, frame)
        eye = View(self._pinhole, np.linalg.inv(self._poses[frame]))
        width, height = self._size
        backdrop = np.full((height, width, 3), _BACKDROP, np.uint8)

        if panel in ("head", "robot-head"):
            layers = self._robots(eye, frame) if panel == "robot-head" else self._hands(eye, frame)
            return self._with_skeleton(stack(backdrop, layers), eye, frame, panel == "head")

        if image is None:
            image = backdrop
        elif (image.shape[1], image.shape[0]) != self._size:
            image = cv2.resize(image, self._size, interpolation=cv2.INTER_AREA)

        layers = []
        if panel == "mesh":
            layers = self._hands(eye, frame, _OVER_SOURCE)
        elif panel == "both":
            layers = self._hands(eye, frame, _OF_MESH_WITH_ROBOT) + self._robots(eye, frame)
        elif panel == "robot":
            layers = self._robots(eye, frame)
            if scene is not None:
                hands = self._hands(eye, frame)
                layers = [layer.hidden_by(_without(scene, hands)) for layer in layers]

        return self._with_skeleton(stack(image, layers), eye, frame, panel == "mesh")

    def _outside(self, panel: Panel, frame: int) -> ImageRgb:
        width, height = self._size
        image = np.full((height, width, 3), _BACKDROP, np.uint8)
        view = self._third
        draw_lines(image, view, self._ground, _GROUND)
        draw_lines(image, view, camera_lines(self._camera, self._poses[frame]), _FRUSTUM)
        first = max(0, frame - round(_TRAIL_S * self._motion.fps))
        for slot, side in enumerate(SIDES):
            draw_lines(image, view, [self._wrists[first : frame + 1, slot]], HAND_COLOURS[side])
        human = panel == "third"
        layers = self._hands(view, frame) if human else self._robots(view, frame)
        return self._with_skeleton(stack(image, layers), view, frame, human)

    def _hands(self, view: View, frame: int, opacity: float = 1.0) -> list[Layer]:
        motion = self._motion
        if self._model is None:
            return []

        layers = []
        for slot, side in enumerate(SIDES):
            if motion.known[frame, slot]:
                vertices = self._model.vertices(
                    side,
                    motion.global_orient[frame, slot],
                    motion.hand_pose[frame, slot],
                    motion.betas[slot],
                )
                placed = moved(self._poses[frame], vertices + motion.translation[frame, slot])
                shown = opacity * (1.0 if motion.observed[frame, slot] else 0.5)
                faces = self._model.faces(side)
                layers.append(mesh_layer(view, placed, faces, HAND_COLOURS[side], shown))

        return layers

    def _robots(self, view: View, frame: int) -> list[Layer]:
        if self._robot is None:
            raise InputError("Panels with the robot need a robot.")
        return [self._robot(view, frame)]

    def _with_skeleton(self, image: ImageRgb, view: View, frame: int, wanted: bool) -> ImageRgb:
        """Draw bones where hands are to be shown and there is no mesh of them."""
        if wanted and self._model is None:
            for slot in np.flatnonzero(self._motion.known[frame]):
                joints = moved(self._poses[frame], self._motion.joints_camera[frame, slot])
                draw_skeleton(image, view.pixels(joints))
        return image

    def _wrist_trails(self, motion: HandMotion) -> np.ndarray:
        """Return wrists in the frame, (T, 2, 3), NaN where a hand is not known."""
        wrists = motion.joints_camera[:, :, WRIST]
        wrists = np.einsum("tij,tsj->tsi", self._poses[:, :3, :3], wrists)
        wrists = wrists + self._poses[:, None, :3, 3]
        return np.where(motion.known[..., None], wrists, np.nan)


def _without(scene: DepthImage, hands: list[Layer]) -> DepthImage:
    """Return the scene without the human hands, whose place the robot takes."""
    own = np.zeros(scene.shape, bool)
    for hand in hands:
        own |= np.isfinite(hand.depth) & (np.abs(scene - hand.depth) < 0.03)
    grown = cv2.dilate(own.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    return np.where(grown, np.float32(0), scene)
