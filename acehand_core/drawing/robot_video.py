"""The recording's pictures with the robot in place of hands and forearms.

The person (``person.py``) is filled with what other frames show behind (``background.py``), and the
robot is drawn through the recording's own camera. What is in front of the robot stays: by depth,
else by what covers the tracked hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from jaxtyping import Bool, Float32, UInt8

from acehand_core.drawing.background import DOUBTFUL, LIT, Background
from acehand_core.drawing.person import LONGEST_SIDE, PersonFinder, SeenPerson
from acehand_core.drawing.robot_renderer import RobotRenderer, camera_poses
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.lerobot.columns import ROBOT_KEYS
from acehand_core.motion import Depth, HandMotion, Recording, RobotTrajectory
from acehand_core.recordings.selection import aligned
from acehand_core.recordings.video_encode import ahead, even_size, write_videos
from acehand_core.types import DepthImage, ImageRgb, Picture, Progress
from retarget.robots.robot import Robot
from retarget.solve.arm import Arm

IN_SCENE, ALONE, MASK = ROBOT_KEYS
#: Values of the mask: the picture as it was, filled from other frames, filled by guess, the robot.
KEPT, SEEN, GUESSED, ROBOT = 0, 85, 170, 255
#: Margin around a person, in longest sides of a picture, and difference to the background (0..255)
#: of what is in front of a hand.
_MARGIN, _DIFFERENT = 0.009, 28
#: Pixels of the masks' pictures around a person that show some of it.
_EDGE = 1.5
#: Width of shadows around a person, in longest sides of a picture.
_SHADOW = 0.15
#: How much nearer something must be to hide the robot (m); further, the hand itself is measured.
_NEARER_M = 0.015
#: Mean of a picture that is lit like our robot, and the range of the robot's brightness.
_BRIGHTNESS, _DIMMEST, _BRIGHTEST = 115.0, 0.6, 1.25
#: Share of the time between frames for which a shutter is open (assumed); the most blur (px).
_SHUTTER, _MOST_BLUR = 0.3, 2.5
#: Blur of our renders, which are averaged over pixels (px).
_RENDERED_BLUR = 0.5
#: Frames over which light and sharpness are measured.
_MEASURED = 12
_BACKDROP = (38, 41, 47)
#: How far blur reaches (px).
_BEYOND = 24

Mask = Bool[np.ndarray, "H W"]


@dataclass(frozen=True, slots=True, eq=False)
class Erased:
    """A frame without the person.

    Attributes:
        kinds: KEPT, SEEN or GUESSED of each pixel.
        person: pixels of hands and forearms.
        front: pixels of things in front of a hand.
    """

    image: ImageRgb
    kinds: UInt8[np.ndarray, "H W"]
    person: Mask
    front: Mask


class Eraser:
    """Removes hands and forearms from the pictures of a recording."""

    def __init__(self, recording: Recording, motion: HandMotion) -> None:
        """``motion``: placed hands of this recording, with their pinhole camera."""
        assert recording.frames is not None
        self._finder = PersonFinder(recording.frames, motion)
        self._background = Background(recording.frames, self._clear, recording.fps)

    def erase(self, image: ImageRgb, frame: int) -> Erased:
        """Return a frame with the background in place of the person."""
        seen, size = self._finder.find(self._finder.small(image), frame), image.shape[1::-1]
        hole = _hole(seen, size)
        filled = self._background.fill(image, hole, frame)
        kinds = np.where(hole, np.uint8(SEEN), np.uint8(KEPT))
        kinds[filled.unseen] = GUESSED

        front = _enlarged(seen.covered, size)
        if front.any():
            front &= cv2.absdiff(image, filled.image).max(axis=-1) > _DIFFERENT
            small = cv2.morphologyEx(front.astype(np.uint8), cv2.MORPH_OPEN, np.ones((5, 5)))
            front = small > 0
            filled.image[front] = image[front]
            kinds[front] = KEPT
        return Erased(filled.image, kinds, _enlarged(seen.person, size), front)

    def _clear(self, image: ImageRgb, frame: int) -> UInt8[np.ndarray, "H W"]:
        """Return what of a frame is background, by ``Background``'s values."""
        seen, size = self._finder.find(self._finder.small(image), frame), image.shape[1::-1]
        hole, margin = _hole(seen, size), round(_SHADOW * max(size))
        near = cv2.blur(hole.astype(np.float32), (margin, margin)) > 0
        # Somebody may be in a frame without tracked hands.
        clear = np.full(hole.shape, LIT if seen.swept.any() else DOUBTFUL, np.uint8)
        clear[near] = DOUBTFUL
        clear[_enlarged(seen.alike, size) | hole] = 0
        return clear


def _hole(seen: SeenPerson, size: tuple[int, int]) -> Mask:
    """Return the pixels to fill: where the person is, and with a margin may be."""
    person, may_be = (
        _enlarged(mask, size).astype(np.uint8) for mask in (seen.person, seen.person | seen.swept)
    )
    across = 2 * max(1, round(_MARGIN * max(size))) + 1
    may_be_near = cv2.dilate(may_be, np.ones((across, across), np.uint8)) > 0
    edge = 2 * round(_EDGE * max(size) / LONGEST_SIDE) + 1
    surely = cv2.dilate(person, np.ones((edge, edge), np.uint8)) > 0
    return surely | (may_be_near & ~_enlarged(seen.other, size))


def _enlarged(mask: Bool[np.ndarray, "_ _"], size: tuple[int, int]) -> Mask:
    return cv2.resize(255 * mask.astype(np.uint8), size, interpolation=cv2.INTER_LINEAR) > 127


class RobotLayer(NamedTuple):
    """The robot in a part of a picture: colours times alpha, and alpha (0 to 1)."""

    box: tuple[slice, slice]
    rgba: Float32[np.ndarray, "h w 4"]


class RobotPictures:
    """Pictures of the robot in a recording, frame by frame; a context manager."""

    def __init__(
        self,
        recording: Recording,
        motion: HandMotion,
        trajectory: RobotTrajectory,
        robot: Robot,
        arm: Arm | None = None,
    ) -> None:
        """Open an OpenGL context, for hands with a place. Raises MissingDependencyError."""
        assert recording.frames is not None and motion.camera is not None
        self._trajectory = trajectory
        camera = replace(motion.camera, model="pinhole", distortion=())
        self._camera, self._poses = camera, camera_poses(motion, trajectory)
        self._with_arms = arm is not None and any(trajectory.arms)
        self._depth = aligned(recording).depth
        shown = np.unique(np.linspace(0, len(recording) - 1, _MEASURED).round().astype(int))
        looks = [recording.frames.at(frame) for frame in shown.tolist()]
        self._gain, self._blur = _light(looks), _blur(looks)
        size = camera.width, camera.height
        self._renderer = RobotRenderer(robot, *size, arm if self._with_arms else None)

    def __enter__(self) -> RobotPictures:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()

    def render(self, frame: int) -> tuple[UInt8[np.ndarray, "H W 4"], Float32[np.ndarray, "H W"]]:
        """Return colours with straight alpha, and depths in metres, as ``RobotRenderer.render``."""
        return self._renderer.render_frame(
            self._camera, self._trajectory, frame, self._poses[frame], self._with_arms
        )

    def layer(self, frame: int, person: Mask, front: Mask) -> RobotLayer:
        """Return the robot, lit and blurred like the recording.

        ``person`` is where depth is of a hand, ``front`` what is in front of the robot.
        """
        rgba, metres = self.render(frame)
        left, top, width, height = cv2.boundingRect(rgba[..., 3])
        x, y = max(left - _BEYOND, 0), max(top - _BEYOND, 0)
        box = np.s_[y : top + height + _BEYOND, x : left + width + _BEYOND]
        hidden = front[box]
        if self._depth is not None:
            scene = seen_depth(self._depth, frame, self._camera)[box]
            hidden = hidden | ((scene < metres[box] - _NEARER_M) & ~person[box])

        layer: np.ndarray = rgba[box].astype(np.float32)
        layer[..., :3] = np.minimum(layer[..., :3] * self._gain, 255)
        layer[..., 3] /= 255
        layer[hidden, 3] = 0
        if not width:
            return RobotLayer(box, layer)
        layer[..., :3] *= layer[..., 3:]
        if self._blur > 0:
            layer = cv2.GaussianBlur(layer, (0, 0), self._blur)
        return RobotLayer(box, self._streaked(layer, frame, np.array([x, y])))

    def _streaked(
        self, layer: Float32[np.ndarray, "h w 4"], frame: int, corner: np.ndarray
    ) -> Float32[np.ndarray, "h w 4"]:
        """Return a layer blurred along the motion of the nearest hand."""
        shown = np.flatnonzero(self._trajectory.active[frame])
        around = [max(frame - 1, 0), min(frame + 1, len(self._poses) - 1)]
        bases = self._poses[[*around, frame], :, :3, 3][:, shown]
        spots = self._camera.project(bases)
        moved = _SHUTTER * (spots[1] - spots[0]) / max(around[1] - around[0], 1)
        fast = np.isfinite(moved).all(axis=-1) & (np.linalg.norm(moved, axis=-1) > 1)
        if not fast.any():
            return layer
        rows, columns = np.ogrid[: layer.shape[0], : layer.shape[1]]
        distances = [np.hypot(columns - x, rows - y) for x, y in (spots[2] - corner).tolist()]
        nearest, streaked = np.argmin(distances, axis=0), layer.copy()
        for hand in np.flatnonzero(fast).tolist():
            own = nearest == hand
            streaked[own] = cv2.filter2D(layer, -1, _streak(*moved[hand].tolist()))[own]
        return streaked


def _streak(x: float, y: float) -> Float32[np.ndarray, "K K"]:
    """Return a kernel that blurs along a motion in pixels."""
    half = min(20, int(np.ceil(np.hypot(x, y) / 2)))
    kernel = np.zeros((2 * half + 1, 2 * half + 1), np.float32)
    end = half * np.array([x, y]) / np.hypot(x, y)
    start, stop = ((16 * (half + sign * end)).round().astype(int).tolist() for sign in (-1, 1))
    cv2.line(kernel, start, stop, 1.0, 1, cv2.LINE_8, 4)
    return kernel / kernel.sum()


def _light(looks: Sequence[ImageRgb]) -> Float32[np.ndarray, "3"]:
    """Return what to multiply the robot's colours by: the recording's brightness, half its tint."""
    means = np.mean([look.reshape(-1, 3).mean(axis=0) for look in looks], axis=0)
    grey = max(float(means.mean()), 1.0)
    tint = np.sqrt(np.maximum(means, 1.0) / grey)
    gain = np.clip(grey / _BRIGHTNESS, _DIMMEST, _BRIGHTEST)
    return (gain * tint).astype(np.float32)


def _blur(looks: Sequence[ImageRgb]) -> float:
    """Return the standard deviation (px) that makes rendered edges as soft as the recording's.

    A step blurred with sigma has a slope of 1 / sigma, and blurred again by 1 px, a slope of
    1 / sqrt(sigma^2 + 1); slopes of the steepest pixels are compared.
    """
    sigmas = []
    for look in looks:
        grey = cv2.cvtColor(look, cv2.COLOR_RGB2GRAY).astype(np.float32)
        steep = [
            np.percentile(np.hypot(cv2.Sobel(g, -1, 1, 0), cv2.Sobel(g, -1, 0, 1)), 99.5)
            for g in (grey, cv2.GaussianBlur(grey, (0, 0), 1.0))
        ]
        ratio = steep[0] / max(steep[1], 1e-6)
        sigmas.append(1 / np.sqrt(max(ratio**2 - 1, 1e-3)))
    more = np.median(sigmas) ** 2 - _RENDERED_BLUR**2
    return float(np.sqrt(np.clip(more, 0, _MOST_BLUR**2)))


def seen_depth(depth: Depth, frame: int, camera: Camera) -> DepthImage:
    """Return a depth picture as another camera sees it, m; infinite without a reading."""
    metres, nothing = depth.frames.at(frame), np.float32(np.inf)
    if depth.camera == camera and np.allclose(depth.T_camera_depth, np.eye(4)):
        return np.where(metres > 0, metres, nothing)

    rows, columns = np.nonzero(metres > 0)
    rays = depth.camera.unproject(np.stack([columns, rows], axis=-1).astype(float))
    points = rays / rays[:, 2:] * metres[rows, columns][:, None]
    points = frames.apply(depth.T_camera_depth, points)

    # As coarse as the readings, so that there are no gaps between them.
    step = max(1, round(camera.fx / depth.camera.fx))
    small = camera.rescaled(max(1, camera.width // step), max(1, camera.height // step))
    places = small.project(points)
    inside = small.contains(places)
    x, y = places[inside].round().astype(int).T
    seen = np.full((small.height, small.width), nothing)
    np.minimum.at(seen, (y, x), points[inside, 2].astype(np.float32))

    nearest = cv2.erode(seen, np.ones((3, 3), np.uint8), borderValue=float(nothing))
    seen = np.where(np.isfinite(seen), seen, nearest)
    return cv2.resize(seen, (camera.width, camera.height), interpolation=cv2.INTER_NEAREST)


def write_robot_videos(
    recording: Recording,
    motion: HandMotion,
    trajectory: RobotTrajectory,
    robot: Robot,
    arm: Arm | None,
    paths: Mapping[str, Path],
    size: tuple[int, int],
    progress: Progress,
) -> None:
    """Write videos of an episode, by key (``ROBOT_KEYS``), in one pass over its frames.

    People are erased in a thread while the robot is rendered. Raises as ``RobotPictures``, and
    OutputError.
    """
    source, count = recording.frames, len(recording)
    with RobotPictures(recording, motion, trajectory, robot, arm) as pictures:
        assert source is not None
        eraser = Eraser(recording, motion)
        images = enumerate(source.read(0, count))
        erased = ahead(eraser.erase(image, frame) for frame, image in images)

        def drawn() -> Iterator[list[Picture]]:
            for frame, one in enumerate(erased):
                layer = pictures.layer(frame, one.person, one.front)
                yield [_resized(_shown(key, one, layer), size, key) for key in paths]
                progress("robot video", frame + 1, count)

        fps = round(recording.fps)
        write_videos(recording, drawn(), size, fps, list(paths.values()))


def over(image: ImageRgb, layer: RobotLayer) -> ImageRgb:
    """Return a layer over a picture."""
    picture, colours, alpha = image.copy(), layer.rgba[..., :3], layer.rgba[..., 3:]
    part = picture[layer.box]
    part[:] = (colours + (1 - alpha) * part + 0.5).clip(0, 255)
    return picture


def _shown(key: str, erased: Erased, layer: RobotLayer) -> Picture:
    """Return a frame of a video with the robot."""
    if key == IN_SCENE:
        return over(erased.image, layer)
    if key == ALONE:
        return over(np.full_like(erased.image, _BACKDROP), layer)
    kinds = erased.kinds.copy()
    kinds[layer.box][layer.rgba[..., 3] > 0.5] = ROBOT
    return cv2.cvtColor(kinds, cv2.COLOR_GRAY2RGB)


def _resized(picture: Picture, size: tuple[int, int], key: str) -> Picture:
    if size == even_size(*picture.shape[1::-1]):
        return picture[: size[1], : size[0]]
    how = cv2.INTER_NEAREST if key == MASK else cv2.INTER_AREA
    return cv2.resize(picture, size, interpolation=how)
