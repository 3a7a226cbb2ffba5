"""Pictures of one episode: overlay video, contact sheet, views of the robot and its arms."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.drawing.overlay import (
    LEGEND,
    Painter,
    contact_sheet,
    put_caption,
    shrunk,
    write_png,
)
from acehand_core.drawing.panels import NOT_PLACED, Layer, Panels, PanelView
from acehand_core.drawing.robot_renderer import RobotRenderer, camera_poses
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import TIPS
from acehand_core.motion import (
    ChangedFrames,
    FrameSource,
    HandMotion,
    Recording,
    RobotTrajectory,
    View,
)
from acehand_core.recordings.selection import Fit, aligned, resized
from acehand_core.recordings.video_encode import ahead, write_video
from acehand_core.types import SIDES, ImageRgb, Picture, Progress
from retarget.robots.robot import Robot
from retarget.solve.arm import Arm

#: Returns a picture of the robot in a frame of the episode.
RobotPicture = Callable[[int], ImageRgb]

#: Largest width and height of an overlay's pictures, and width of a sheet's thumbnails (px).
MAX_SIZE = 960, 720
THUMB_WIDTH = 300
SHEET_COLUMNS, SHEET_ROWS = 3, 4
#: The sheet shows the hands with this margin, as a share of their extent; where that is nearly all
#: of the picture, the whole.
_MARGIN, _NEARLY_ALL = 0.25, 0.85
_MARKER_WIDTH = 36
_BACKDROP = (38, 41, 47)
_FRAME = (235, 235, 235)
#: Frames of which the outside view shows the arms' links.
_SHOWN_FRAMES = 24


def picture_size(recording: Recording) -> tuple[int, int]:
    """Return (width, height) of one panel: the source's, shrunk to at most ``MAX_SIZE``."""
    shrink = min(1.0, MAX_SIZE[0] / recording.width, MAX_SIZE[1] / recording.height)
    return max(2, round(recording.width * shrink)), max(2, round(recording.height * shrink))


class EpisodePictures:
    """Overlay and contact sheet of one episode; ``robot`` and ``arms`` are drawn next to hands.

    ``robot_video`` has the pictures of the video with the robot in the person's place, if any.

    The other cameras of a rig are a column of smaller pictures next to the first, with bones.
    """

    def __init__(
        self,
        recording: Recording,
        motion: HandMotion,
        trajectory: RobotTrajectory,
        robot: RobotPicture | None,
        arms: RobotPicture | None = None,
        robot_video: FrameSource | None = None,
    ) -> None:
        self._recording, self._trajectory = recording, trajectory
        self._views = [view for view in (robot, arms) if view is not None]
        self._size = picture_size(recording)
        if robot_video is not None:
            self._views.append(lambda frame: cv2.resize(robot_video.at(frame), self._size))
        self._across = 1 + len(self._views)
        camera = motion.camera.rescaled(*self._size) if motion.camera else None
        scale = np.array(self._size) / [recording.width, recording.height]
        self._motion = replace(
            motion, camera=camera, joints_image=(motion.joints_image + 0.5) * scale - 0.5
        )
        model = CapsuleHand() if motion.hand_model == "acehand" else None
        self._paint = Painter(self._motion, model)
        cells = max(2, len(recording.views))
        self._cell = (self._size[0] // cells if recording.views else 0, self._size[1] // cells)
        self._others = [self._other(view) for view in aligned(recording).views]
        # Joints relative to the wrist are in no picture.
        self._outside: Panels | None = None
        if not motion.placed and recording.frames is None:
            self._outside = Panels(motion, *self._size)

    def _other(self, view: View) -> tuple[str, ChangedFrames, Painter]:
        """Return name, pictures of a cell's size, and painter of the bones in another camera."""
        seen, camera = view.recording, view.recording.camera
        assert seen.frames is not None
        fit = Fit((seen.width, seen.height), self._cell, "letterbox")
        there = replace(
            self._motion,
            camera=camera and fit.camera(camera),
            joints_camera=frames.apply(
                frames.inverse(view.T_camera_view), self._motion.joints_camera
            ),
            joints_image=np.full_like(self._motion.joints_image, np.nan),  # of the first camera
            joint_sigma=None,  # along other directions
        )
        return view.name, ChangedFrames(seen.frames, fit.image), Painter(there, None)

    def _hands(self, image: ImageRgb, frame: int) -> ImageRgb:
        """Return the picture of a frame with its hands; ``image`` is drawn into."""
        if self._outside is not None:
            return self._outside.draw("third", frame)
        self._paint(image, frame)
        return image

    def _with_robot(self, hands: ImageRgb, others: Picture, frame: int) -> Picture:
        return np.hstack([hands, others, *(view(frame) for view in self._views)])

    def _column(self, frame: int) -> Picture:
        """Return the pictures of the other cameras, with bones, below one another."""
        width, height = self._cell
        column: Picture = np.full((self._size[1], width, 3), _BACKDROP, np.uint8)
        for row, (name, pictures, paint) in enumerate(self._others):
            image = pictures.at(frame)
            paint(image, frame)
            put_caption(image, name)
            column[row * height :][:height] = image
        return column

    def write(self, sheet: Path, overlay: Path, progress: Progress) -> None:
        """Write the video of every frame and the contact sheet, in one pass over the frames.

        Hands, robot and encoding run in parallel; OpenGL stays in the caller's thread.
        """
        images = enumerate(resized(self._recording, self._size))
        hands = ahead((self._hands(image, frame) for frame, image in images))
        others = ahead(map(self._column, range(len(self._motion))))
        count, chosen, thumbs = len(self._motion), self._chosen(), []

        def pictures() -> Iterator[Picture]:
            for frame, (panel, column) in enumerate(zip(hands, others, strict=True)):
                picture = self._with_robot(panel, column, frame)
                if frame in chosen:
                    thumbs.append(self._thumb(picture, frame))
                if frame == chosen[-1]:  # before the video is complete
                    self._write_thumbs(thumbs, sheet)
                put_caption(picture, self._caption(frame))
                if self._motion.joint_sigma is not None:
                    put_caption(picture, LEGEND, below=True)
                yield picture
                progress("overlay", frame + 1, count)

        width = self._size[0] * self._across + self._cell[0]
        write_video(self._recording, pictures(), (width, self._size[1]), self._motion.fps, overlay)

    def write_contact_sheet(self, path: Path) -> None:
        """Write frames spread over the episode as one picture, cropped to the hands."""
        source, thumbs = self._recording.frames, []
        for frame in self._chosen():
            image: Picture = np.full((*self._size[::-1], 3), _BACKDROP, np.uint8)
            if source is not None:
                image = source.at(frame).copy()
            if (image.shape[1], image.shape[0]) != self._size:
                image = cv2.resize(image, self._size, interpolation=cv2.INTER_AREA)
            picture = self._with_robot(self._hands(image, frame), self._column(frame), frame)
            thumbs.append(self._thumb(picture, frame))
        self._write_thumbs(thumbs, path)

    def _chosen(self) -> list[int]:
        """Return the frames on the contact sheet."""
        count, last = SHEET_COLUMNS * SHEET_ROWS, len(self._motion) - 1
        return np.unique(np.linspace(0, last, min(count, last + 1)).round().astype(int)).tolist()

    def _thumb(self, picture: Picture, frame: int) -> Picture:
        left, top, right, bottom = self._region
        width, column = self._size[0], self._cell[0]
        corners = [0, *range(width + column, picture.shape[1], width)]
        panels = [picture[top:bottom, x + left : x + right] for x in corners]
        if column:
            fitted = column * (right - left) // width, bottom - top
            panels.insert(1, cv2.resize(picture[:, width : width + column], fitted))
        across = self._across + column / width
        thumb = shrunk(np.hstack(panels), round(THUMB_WIDTH * across))
        put_caption(thumb, self._caption(frame))
        if right - left < width:
            # The crop's place in the whole picture, in a corner.
            size = np.array(self._size) * _MARKER_WIDTH // width
            corner = np.array([THUMB_WIDTH, thumb.shape[0]]) - size - 4
            cut = np.array(self._region).reshape(2, 2) * _MARKER_WIDTH // width + corner
            cv2.rectangle(thumb, corner.tolist(), (corner + size).tolist(), _FRAME, 1)
            cv2.rectangle(thumb, cut[0].tolist(), cut[1].tolist(), _FRAME, -1)
        return thumb

    def _write_thumbs(self, thumbs: Sequence[Picture], path: Path) -> None:
        left, _, right, _ = self._region
        width, verdict = self._size[0], self._trajectory.verdict
        status = verdict.status if verdict else "not judged"
        frames = "1 frame" if len(self._motion) == 1 else f"{len(self._motion)} frames"
        title = f"{Path(self._recording.source).name}   {frames}   {status}"
        if right - left < width:
            title += f"   cropped to {(right - left) / width:.0%} of the width"
        if self._motion.joint_sigma is not None:
            title += f"\n{LEGEND}"
        write_png(contact_sheet(thumbs, min(SHEET_COLUMNS, len(thumbs)), title), path)

    @functools.cached_property
    def _region(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop of a panel on the contact sheet.

        It has the panel's proportions, and at least a thumbnail's pixels.
        """
        motion, size, chosen = self._motion, np.array(self._size), self._chosen()
        joints = motion.joints_image[chosen]
        if motion.camera is not None and motion.placed:
            joints = motion.camera.project(motion.joints_camera[chosen])
        points = joints[motion.known[chosen]].reshape(-1, 2)
        points = points[np.isfinite(points).all(axis=1)].clip(0, size - 1)
        if self._outside is not None or not len(points):
            return 0, 0, *self._size

        low, high = points.min(axis=0), points.max(axis=0)
        share = max(((high - low) / size).max() * (1 + 2 * _MARGIN), THUMB_WIDTH / self._size[0])
        if share > _NEARLY_ALL:
            return 0, 0, *self._size
        cut = np.round(size * share).astype(int)
        corner = np.clip(np.round((low + high - cut) / 2).astype(int), 0, size - cut)
        return (*corner.tolist(), *(corner + cut).tolist())

    def _caption(self, frame: int) -> str:
        motion = self._motion
        words = []
        for slot, side in enumerate(SIDES):
            quality, observed = motion.quality[frame, slot], motion.observed[frame, slot]
            if not observed and not motion.filled[frame, slot]:
                continue
            doubtful = observed and quality == 0
            state = "doubtful" if doubtful else f"{quality:.2f}" if observed else "filled"
            words.append(f"{side} {state}")
            if motion.joint_sigma is not None and not doubtful:
                across, along = 1e3 * np.median(motion.joint_sigma[frame, slot, TIPS], axis=0)
                words[-1] += f" +-{across:.0f}/{along:.0f} mm"
        if self._outside is not None:
            words.append(NOT_PLACED)
        arms = [arm for arm in self._trajectory.arms if arm is not None]
        gap = min((float(arm.clearance_m[frame]) for arm in arms), default=0.0)
        if gap < 0:
            words.append(f"arms collide {-1e3 * gap:.0f} mm")
        return f"{frame}   " + "   ".join(words or ["no hand"])


@contextlib.contextmanager
def source_view(
    robot: Robot, motion: HandMotion, trajectory: RobotTrajectory, width: int, height: int
) -> Iterator[RobotPicture]:
    """Yield a function that draws the robot's active hands under the source camera.

    Hands without a place are drawn side by side. Raises MissingDependencyError without OpenGL.
    """
    poses, camera = trajectory.T_frame_base, Camera.nominal(width, height)
    if poses is None:
        # Base x (out of the palm) to the viewer, y to the image's right, z (fingers) up.
        turn = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0], [-1.0, 0.0, 0.0]])
        fixed = [frames.rigid(turn, np.array([x, 0.08, 0.45])) for x in (-0.12, 0.12)]
        poses = np.broadcast_to(np.stack(fixed), (len(trajectory), 2, 4, 4))
    else:
        if motion.camera is not None:
            camera = replace(motion.camera.rescaled(width, height), model="pinhole", distortion=())
        poses = camera_poses(motion, trajectory)
    nearest = max(float(poses[..., 2, 3][trajectory.active].min(initial=np.inf)), 1e-3)
    backdrop = np.full((height, width, 3), _BACKDROP, np.uint8)

    scale = camera.fx / nearest
    with RobotRenderer(robot, width, height, None, scale, supersampled=False) as renderer:

        def picture(frame: int) -> ImageRgb:
            drawn = backdrop.copy()
            renderer.paint_frame(drawn, camera, trajectory, frame, poses[frame])
            return drawn

        yield picture


@contextlib.contextmanager
def arm_view(
    robot: Robot, arm: Arm, motion: HandMotion, trajectory: RobotTrajectory, width: int, height: int
) -> Iterator[RobotPicture]:
    """Yield a function that draws arms with robot hands on their table, from outside.

    Raises MissingDependencyError without OpenGL.
    """
    with RobotRenderer(robot, width, height, arm, supersampled=False) as renderer:
        layer = functools.partial(robot_layer, renderer, trajectory)
        panels = Panels(motion, width, height, layer, (), *arm_room(arm, trajectory))
        yield functools.partial(panels.draw, "robot-third")


def arm_room(
    arm: Arm | None, trajectory: RobotTrajectory
) -> tuple[Float[np.ndarray, "N 3"] | None, Float[np.ndarray, "4 4"] | None]:
    """Return points on the arms' paths and the pose of the table, in the trajectory's frame."""
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
    """Return the robot of one frame as a view sees it; from outside, with its arms."""
    assert trajectory.T_frame_base is not None  # of placed hands
    poses = view.T_view_frame @ trajectory.T_frame_base[frame]
    return Layer(*renderer.render_frame(view.camera, trajectory, frame, poses, outside))
