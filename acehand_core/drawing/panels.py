"""Panels of a recording: the source picture, its hands, the robot.

``source``, ``mesh``, ``robot`` and ``both`` are under the source camera, over its picture;
``head`` and ``robot-head`` without the picture, as in the paper's figures; ``third`` and
``robot-third`` from a fixed place outside, with the trails of the wrists. A panel is composed of
layers by depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

import cv2
import numpy as np
from jaxtyping import Float, Float32, Int, UInt8

from acehand_core.drawing.overlay import (
    HAND_COLOURS,
    draw_skeleton,
    hand_vertices,
    lit,
    seen_mesh,
    subpixels,
)
from acehand_core.errors import InputError, nearest
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import HandMotion
from acehand_core.types import SIDES, ImageRgb, Picture

DepthImage = Float32[np.ndarray, "H W"]
Line = Float[np.ndarray, "_ 3"]

#: The scene hides a layer that is farther by this much.
_BEHIND_M = 0.01
_FIELD_OF_VIEW = 35.0
_FRUSTUM_M = 0.08

Panel = Literal["source", "mesh", "robot", "both", "third", "head", "robot-third", "robot-head"]
PANELS: tuple[str, ...] = get_args(Panel)
#: Panels without the source camera.
OUTSIDE_PANELS: tuple[Panel, ...] = ("third", "robot-third")

_BACKDROP = (38, 41, 47)
_GROUND = (74, 79, 88)
_FRUSTUM = (200, 200, 200)
_OVER_SOURCE, _OF_MESH_WITH_ROBOT = 0.75, 0.6
_TRAIL_S = 1.5

#: Wrists of hands without a place, left and right (m, camera frame); captions say so.
NOMINAL_WRISTS = np.array([[-0.15, 0.0, 0.5], [0.15, 0.0, 0.5]])
NOT_PLACED = "wrists at a nominal place"


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Colours with straight alpha, and depth along the axis (m; infinite: nothing)."""

    rgba: UInt8[np.ndarray, "H W 4"]
    depth: DepthImage

    def hidden_by(self, scene: DepthImage) -> Layer:
        """Return the layer without its parts behind a scene; 0 or NaN: unknown depth."""
        behind = (scene > 0) & (self.depth > scene + _BEHIND_M)
        rgba = self.rgba.copy()
        rgba[behind, 3] = 0
        return Layer(rgba, np.where(behind, np.float32(np.inf), self.depth))


@dataclass(frozen=True, slots=True, eq=False)
class PanelView:
    """A pinhole camera in the frame of the hands."""

    camera: Camera
    T_view_frame: Float[np.ndarray, "4 4"]

    def pixels(self, points: Float[np.ndarray, "*N 3"]) -> Float[np.ndarray, "*N 2"]:
        """Return the pixels of points; NaN behind the camera."""
        return self.camera.project(frames.apply(self.T_view_frame, points))


def mesh_layer(
    view: PanelView,
    vertices: Float[np.ndarray, "V 3"],
    faces: Int[np.ndarray, "F 3"],
    colour: tuple[int, int, int],
    opacity: float = 1.0,
) -> Layer:
    """Return a lit mesh; vertices are in the frame of the hands."""
    seen = frames.apply(view.T_view_frame, vertices)
    pixels = view.camera.project(seen)
    size = (view.camera.height, view.camera.width)
    rgba = np.zeros((*size, 4), np.uint8)
    depth = np.full(size, np.inf, np.float32)
    mesh = seen_mesh(seen, pixels, faces, *size[::-1])
    if mesh.places.size:
        depth[mesh.part] = np.append(mesh.depths, np.float32(np.inf))[mesh.places]
        rgba[mesh.part][..., :3] = lit(mesh, colour)
        rgba[..., 3] = np.where(np.isfinite(depth), round(255 * opacity), 0)
    return Layer(rgba, depth)


def stack(background: ImageRgb, layers: Sequence[Layer]) -> ImageRgb:
    """Return the layers over a picture, sorted by depth in each pixel."""
    stacked = background.copy()
    if not layers:
        return stacked
    shown = np.any([layer.rgba[..., 3] > 0 for layer in layers], axis=0)
    rows, columns = (np.flatnonzero(shown.any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return stacked

    part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    mixed = background[part].astype(np.float32)
    colours = np.stack([layer.rgba[part] for layer in layers])
    if len(layers) > 1:
        order = np.argsort([-layer.depth[part] for layer in layers], axis=0, kind="stable")
        colours = np.take_along_axis(colours, order[..., None], axis=0)
    for top in colours:
        alpha = top[..., 3:].astype(np.float32) / 255
        mixed += alpha * (top[..., :3] - mixed)
    stacked[part] = np.clip(mixed + 0.5, 0, 255)
    return stacked


def outside_view(
    points: Float[np.ndarray, "N 3"],
    forward: Float[np.ndarray, "3"],
    up: Float[np.ndarray, "3"],
    width: int,
    height: int,
) -> PanelView:
    """Return a third-person view of all points, from behind, above and to the right.

    ``forward`` is the viewing direction of the source camera.
    """
    up = up / np.linalg.norm(up)
    forward = forward - (forward @ up) * up
    if np.linalg.norm(forward) < 1e-6:  # straight up or down: take any side
        forward = np.roll(up, 1) - (np.roll(up, 1) @ up) * up
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, up)
    looking = -(0.75 * right + 0.55 * up - 0.2 * forward)
    looking /= np.linalg.norm(looking)
    x = np.cross(looking, up)
    x /= np.linalg.norm(x)
    turn = np.stack([x, np.cross(looking, x), looking])
    camera = Camera.nominal(width, height, _FIELD_OF_VIEW)
    middle = (points.min(0) + points.max(0)) / 2
    seen = (points - middle) @ turn.T
    wide = np.abs(seen[:, :2]) * (camera.fx, camera.fy) / (0.46 * np.array([width, height]))
    distance = max(float((wide.max(axis=1) - seen[:, 2]).max()), 0.3)
    return PanelView(camera, frames.rigid(turn, np.array([0, 0, distance]) - turn @ middle))


def draw_lines(
    image: ImageRgb, view: PanelView, lines: Sequence[Line], colour: tuple[int, int, int]
) -> None:
    """Draw lines of the frame, without parts behind the camera."""
    width = max(1, round(max(image.shape[:2]) / 640))
    for line in lines:
        pixels = view.pixels(line)
        known = np.isfinite(pixels).all(1)
        points = subpixels(pixels).tolist()
        for i in range(len(line) - 1):
            if known[i] and known[i + 1]:
                cv2.line(image, points[i], points[i + 1], colour, width, cv2.LINE_AA, 4)


def camera_lines(camera: Camera, T_frame_camera: Float[np.ndarray, "4 4"]) -> list[Line]:
    """Return the outline of a camera's pyramid."""
    plain = camera.pinhole_like()
    size = np.array([plain.width, plain.height])
    pixels = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]) * size - 0.5
    rays = (pixels - [plain.cx, plain.cy]) / [plain.fx, plain.fy]
    far = np.concatenate([rays, np.ones((5, 1))], axis=1) * _FRUSTUM_M
    outline = frames.apply(T_frame_camera, far)
    eye = T_frame_camera[:3, 3]
    return [outline, *(np.stack([eye, corner]) for corner in outline[:4])]


def ground_lines(
    points: Float[np.ndarray, "N 3"], up: Float[np.ndarray, "3"], below: float = 0.1
) -> list[Line]:
    """Return a grid across ``up``, ``below`` (m) all points."""
    spacing = 0.1
    up = up / np.linalg.norm(up)
    across = np.cross(up, [1.0, 0.0, 0.0] if abs(up[0]) < 0.9 else [0.0, 1.0, 0.0])
    across /= np.linalg.norm(across)
    along = np.cross(up, across)
    frame = np.stack([across, along, up])
    local = points @ frame.T
    low, high = local.min(0) - 0.1, local.max(0) + 0.1
    level = low[2] + 0.1 - below
    first, last = np.floor(low / spacing), np.ceil(high / spacing) + 1
    xs, ys = (np.arange(first[axis], last[axis]) * spacing for axis in (0, 1))
    lines = [np.array([[x, ys[0], level], [x, ys[-1], level]]) for x in xs]
    lines += [np.array([[xs[0], y, level], [xs[-1], y, level]]) for y in ys]
    return [line @ frame for line in lines]


#: Draws the robot of a frame for a view; from outside, with its arms.
RobotLayer = Callable[[PanelView, int, bool], Layer]


def panel_names(text: str) -> tuple[Panel, ...]:
    """Return the panels of a list with commas. Raises InputError for an unknown name."""
    names = [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in PANELS:
            raise InputError(f"Unknown panel {name!r}; {nearest(name, PANELS)}")
    if not names:
        raise InputError(f"`panels` is empty; valid: {', '.join(PANELS)}.")
    return cast(tuple[Panel, ...], tuple(names))


def placed_nominally(motion: HandMotion) -> HandMotion:
    """Return wrist-relative joints at ``NOMINAL_WRISTS``, placed ones unchanged."""
    if motion.placed:
        return motion
    joints = motion.joints_camera - motion.joints_camera[:, :, [WRIST]] + NOMINAL_WRISTS[:, None]
    return replace(motion, joints_camera=joints, placed=True, camera=None, T_world_camera=None)


class Panels:
    """Panels of one size; those with the robot need ``robot``."""

    def __init__(
        self,
        motion: HandMotion,
        width: int,
        height: int,
        robot: RobotLayer | None = None,
        others: Sequence[HandMotion] = (),
        arms: Float[np.ndarray, "N 3"] | None = None,
        table: Float[np.ndarray, "4 4"] | None = None,
    ) -> None:
        """Prepare the cameras.

        Args:
            others: other hands of the same frames, included in the view from outside so that all
                have the same one.
            arms: points of arms, also included.
            table: pose of the arms' table, z axis up.
        """
        self._has_place = motion.placed
        motion, others = placed_nominally(motion), [placed_nominally(other) for other in others]
        camera = motion.camera.rescaled(width, height) if motion.camera else None
        self._motion, self._robot = motion, robot
        self._size = (width, height)
        self._backdrop = np.full((height, width, 3), _BACKDROP, np.uint8)
        self._camera = camera or Camera.nominal(width, height)
        self._pinhole = replace(self._camera, model="pinhole", distortion=())
        self._model = CapsuleHand() if motion.hand_model == "acehand" else None
        poses = motion.T_world_camera
        self._poses = np.tile(np.eye(4), (len(motion), 1, 1)) if poses is None else poses

        self._wrists = self._wrist_trails(motion)
        trails = np.concatenate([self._wrists, *map(self._wrist_trails, others)])
        points = trails[np.isfinite(trails).all(-1)]
        eyes = self._poses[:, :3, 3]
        room = np.array([0.0, 0.0, 0.1])
        reaching = np.zeros((0, 3)) if arms is None else arms
        shown = np.concatenate([points + room, points - room, eyes[:1], reaching])
        if not self._has_place:  # without camera and arms
            shown = np.concatenate([one.joints_camera[one.known] for one in (motion, *others)])
            shown = shown[np.isfinite(shown).all(-1)]
        self._up = -self._poses[0, :3, 1] if poses is None else np.array([0.0, 0.0, 1.0])
        self._third = outside_view(shown, self._poses[0, :3, 2], self._up, width, height)
        if table is not None:
            above = (reaching - table[:3, 3]) @ table[:3, 2]
            below = reaching - above[:, None] * table[:3, 2]
            self._ground = ground_lines(below, table[:3, 2], 0.0)
        else:
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
            image: the source picture, any size.
            scene: depth of the scene in the panel's size (m, 0: unknown). It hides the robot,
                except where it is the human hand.

        Raises InputError: a panel under the camera, of hands without a place.
        """
        if panel in OUTSIDE_PANELS:
            return self._outside(panel, frame)
        if not self._has_place:
            raise InputError(
                f"Panel {panel}: joints relative to the wrist are in no picture; valid: "
                f"{', '.join(OUTSIDE_PANELS)}."
            )
        eye = PanelView(self._pinhole, np.linalg.inv(self._poses[frame]))
        backdrop = self._backdrop.copy()

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
        image, view = self._backdrop.copy(), self._third
        draw_lines(image, view, self._ground, _GROUND)
        if self._has_place:
            draw_lines(image, view, camera_lines(self._camera, self._poses[frame]), _FRUSTUM)
        first = max(0, frame - round(_TRAIL_S * self._motion.fps))
        for slot, side in enumerate(SIDES):
            draw_lines(image, view, [self._wrists[first : frame + 1, slot]], HAND_COLOURS[side])
        human = panel == "third"
        layers = self._hands(view, frame) if human else self._robots(view, frame, outside=True)
        return self._with_skeleton(stack(image, layers), view, frame, human)

    def _hands(self, view: PanelView, frame: int, opacity: float = 1.0) -> list[Layer]:
        motion = self._motion
        if self._model is None:
            return []

        layers = []
        for slot, side in enumerate(SIDES):
            if motion.known[frame, slot]:
                vertices = hand_vertices(self._model, motion, frame, slot)
                vertices = frames.apply(self._poses[frame], vertices)
                shown = opacity * (1.0 if motion.observed[frame, slot] else 0.5)
                faces = self._model.faces(side)
                layers.append(mesh_layer(view, vertices, faces, HAND_COLOURS[side], shown))
        return layers

    def _robots(self, view: PanelView, frame: int, outside: bool = False) -> list[Layer]:
        if self._robot is None:
            raise InputError("Panels with the robot need a robot.")
        return [self._robot(view, frame, outside)]

    def _with_skeleton(self, image: ImageRgb, view: PanelView, frame: int, human: bool) -> ImageRgb:
        """Draw the bones of human hands without a mesh."""
        if human and self._model is None:
            for slot in np.flatnonzero(self._motion.known[frame]):
                joints = frames.apply(self._poses[frame], self._motion.joints_camera[frame, slot])
                draw_skeleton(image, view.pixels(joints))
        return image

    def _wrist_trails(self, motion: HandMotion) -> np.ndarray:
        """Return wrists (T, 2, 3), NaN for unknown hands."""
        wrists = motion.joints_camera[:, :, WRIST]
        wrists = np.einsum("tij,tsj->tsi", self._poses[:, :3, :3], wrists)
        wrists = wrists + self._poses[:, None, :3, 3]
        return np.where(motion.known[..., None], wrists, np.nan)


def _without(scene: DepthImage, hands: list[Layer]) -> DepthImage:
    """Return the scene without the human hands."""
    own = np.zeros(scene.shape, bool)
    for hand in hands:
        own |= np.isfinite(hand.depth) & (np.abs(scene - hand.depth) < 0.03)
    grown = cv2.dilate(own.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
    return np.where(grown, np.float32(0), scene)
