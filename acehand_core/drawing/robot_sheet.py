"""A picture to check a robot.yaml by eye.

Each hand, open and closed, from the palm and from the thumb's side, with the axes of its base, and
the names and paths of its fingertips.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.atomic import check_free
from acehand_core.drawing.overlay import write_png
from acehand_core.drawing.robot_renderer import RobotRenderer
from acehand_core.geometry.cameras import Camera
from acehand_core.types import ImageRgb, RigidTransform, Side
from retarget.robots.check_anatomy import open_and_closed
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot

_PANEL = 560
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_AXES = {"x": (214, 39, 40), "y": (34, 139, 34), "z": (31, 80, 210)}
_TIPS = {
    "thumb": (200, 60, 30), "index": (180, 120, 0), "middle": (20, 130, 60), "ring": (0, 110, 170),
    "pinky": (130, 50, 160),
}  # fmt: skip
_INK, _HALO = (40, 40, 40), (255, 255, 255)
#: Length of the axes, as a share of the hand's.
_AXIS_SHARE = 0.35
_PATH_STEPS = 24
#: Share of a panel that the hand fills.
_FILLED = 0.82


def draw_robot(robot: Robot, path: Path, overwrite: bool = False) -> None:
    """Write the picture. Raises MissingDependencyError without OpenGL, OutputError."""
    check_free(path, overwrite)
    write_png(robot_sheet(robot), path)


def robot_sheet(robot: Robot) -> ImageRgb:
    """Return the hands of a robot, a row each. Raises MissingDependencyError without OpenGL."""
    with RobotRenderer(robot, _PANEL, _PANEL) as renderer:
        return np.vstack([_row(renderer, robot, side) for side in robot.hands])


def _row(renderer: RobotRenderer, robot: Robot, side: Side) -> ImageRgb:
    """Return one hand, open and closed, from two sides."""
    hand = robot.hands[side]
    opened, closed = open_and_closed(hand)
    share = np.linspace(0, 1, _PATH_STEPS)[:, None]
    paths = KinematicTree.of(hand).points(opened + share * (closed - opened), hand.tip_names)
    length = _AXIS_SHARE * float(np.linalg.norm(paths[0], axis=-1).max())
    axes = np.vstack([np.zeros(3), length * np.eye(3)])

    towards_thumb = 1.0 if side == "right" else -1.0
    views = {
        "before the palm": np.array([1.0, 0.25 * towards_thumb, 0.30]),
        "from the thumb's side": np.array([0.30, towards_thumb, 0.30]),
    }
    panels, camera = [], renderer.portrait_camera
    for name, viewer in views.items():
        pose = renderer.framed(side, [opened, closed], viewer, 1.15 * axes, _FILLED)
        for state, joints, tips in (("open", opened, paths[0]), ("closed", closed, paths[-1])):
            image = renderer.seen(side, joints, pose)
            if state == "open":
                _draw_paths(image, _pixels(camera, pose, paths), hand.fingers)
            _draw_axes(image, _pixels(camera, pose, axes))
            _draw_names(image, _pixels(camera, pose, tips), hand.fingers)
            _write(image, f"{robot.label} {side}, {state}, {name}", (12, 24), _INK, 0.55)
            panels.append(image)
    return np.hstack(panels)


def _pixels(
    camera: Camera, pose: RigidTransform, points: Float[np.ndarray, "*n 3"]
) -> Float[np.ndarray, "*n 2"]:
    seen = points @ pose[:3, :3].T + pose[:3, 3]
    return seen[..., :2] / seen[..., 2:] * (camera.fx, camera.fy) + (camera.cx, camera.cy)


def _draw_axes(image: ImageRgb, axes: Float[np.ndarray, "4 2"]) -> None:
    origin, *ends = map(_whole, axes)
    for (name, colour), end in zip(_AXES.items(), ends, strict=True):
        cv2.arrowedLine(image, origin, end, _HALO, 7, cv2.LINE_AA, tipLength=0.12)
        cv2.arrowedLine(image, origin, end, colour, 3, cv2.LINE_AA, tipLength=0.12)
        away = np.subtract(end, origin)
        place = np.add(np.add(end, (-6, 6)), 18 * away / max(float(np.linalg.norm(away)), 1.0))
        _write(image, name, _whole(place), colour, 0.8)


def _draw_paths(
    image: ImageRgb, paths: Float[np.ndarray, "S K 2"], fingers: tuple[str, ...]
) -> None:
    """Draw the path of each fingertip, with an arrow at its end."""
    for k, finger in enumerate(fingers):
        line = np.round(paths[:, k]).astype(np.int32)
        cv2.polylines(image, [line], False, _HALO, 5, cv2.LINE_AA)
        cv2.polylines(image, [line], False, _TIPS[finger], 2, cv2.LINE_AA)
        along = (line[-1] - line[-4]).astype(float)
        if np.linalg.norm(along) > 0.5:
            back = line[-1] - 14 * along / np.linalg.norm(along)
            cv2.arrowedLine(
                image, _whole(back), _whole(line[-1]), _TIPS[finger], 2, cv2.LINE_AA, tipLength=0.9
            )


def _draw_names(image: ImageRgb, tips: Float[np.ndarray, "K 2"], fingers: tuple[str, ...]) -> None:
    """Write the names next to the fingertips, without overlap."""
    taken: list[tuple[float, float]] = []
    for finger, (u, v) in sorted(zip(fingers, tips.tolist(), strict=True), key=lambda p: p[1][1]):
        center = _whole((u, v))
        cv2.circle(image, center, 6, _HALO, -1, cv2.LINE_AA)
        cv2.circle(image, center, 4, _TIPS[finger], -1, cv2.LINE_AA)
        (width, _), _ = cv2.getTextSize(finger, _FONT, 0.55, 1)
        left = min(u + 10, image.shape[1] - width - 6)
        top = v - 8
        while any(abs(top - y) < 18 and abs(left - x) < 62 for x, y in taken):
            top += 18
        taken.append((left, top))
        _write(image, finger, _whole((left, top)), _TIPS[finger], 0.55)


def _write(
    image: ImageRgb, text: str, place: tuple[int, int], colour: tuple[int, int, int], size: float
) -> None:
    # Thicker letters would be wider, so the halo is the same letters, moved.
    thickness = 1 if size < 0.7 else 2
    for right, down in itertools.product((-2, 0, 2), repeat=2):
        moved = (place[0] + right, place[1] + down)
        cv2.putText(image, text, moved, _FONT, size, _HALO, thickness, cv2.LINE_AA)
    cv2.putText(image, text, place, _FONT, size, colour, thickness, cv2.LINE_AA)


def _whole(point: object) -> tuple[int, int]:
    u, v = np.round(np.asarray(point, float)).astype(int).tolist()
    return u, v
