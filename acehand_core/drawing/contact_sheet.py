"""The pictures of one episode: an overlay video and a contact sheet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from acehand_core.drawing.overlay import (
    LEGEND,
    Painter,
    contact_sheet,
    put_caption,
    shrunk,
    write_png,
)
from acehand_core.drawing.panels import NOT_PLACED, Panels
from acehand_core.drawing.robot_view import RobotRenderer
from acehand_core.drawing.video import ahead, write_video
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import TIPS
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.recordings.selection import resized
from acehand_core.types import SIDES, ImageRgb, Picture, Progress
from retarget.robots.robot import Robot

#: Gives the robot as the source camera would see it in a frame of the episode.
RobotPicture = Callable[[int], ImageRgb]

#: Pictures in the overlay are no larger than this (px), sheet thumbnails as wide as that.
MAX_SIDE = 960
THUMB_WIDTH = 300
SHEET_COLUMNS, SHEET_ROWS = 3, 4
#: The sheet shows the part of the picture that the hands are in, and this share of it around them;
#: the whole where that is not much larger.
_MARGIN, _NEARLY_ALL = 0.25, 0.85
_MARKER_WIDTH = 36
_BACKDROP = (38, 41, 47)
_FRAME = (235, 235, 235)


def picture_size(recording: Recording) -> tuple[int, int]:
    """Return (width, height) of one panel: the source's, shrunk to at most ``MAX_SIDE``."""
    shrink = min(1.0, MAX_SIDE / max(recording.width, recording.height))
    return max(2, round(recording.width * shrink)), max(2, round(recording.height * shrink))


class EpisodePictures:
    """Draws frames of one episode.

    ``robot`` is None where no robot picture can be made, ``arms`` where no arm is to be seen.
    """

    def __init__(
        self,
        recording: Recording,
        motion: HandMotion,
        trajectory: RobotTrajectory,
        robot: RobotPicture | None,
        arms: RobotPicture | None = None,
    ) -> None:
        self._recording, self._trajectory = recording, trajectory
        self._views = [view for view in (robot, arms) if view is not None]
        self._size, self._across = picture_size(recording), 1 + len(self._views)
        camera = motion.camera.rescaled(*self._size) if motion.camera else None
        scale = np.array(self._size) / [recording.width, recording.height]
        self._motion = replace(
            motion, camera=camera, joints_image=(motion.joints_image + 0.5) * scale - 0.5
        )
        model = CapsuleHand() if motion.hand_model == "acehand" else None
        self._paint = Painter(self._motion, model)
        # Joints relative to the wrist are in no picture.
        self._outside: Panels | None = None
        if not motion.placed and recording.frames is None:
            self._outside = Panels(motion, *self._size)

    def __len__(self) -> int:
        return len(self._motion)

    def picture(self, image: ImageRgb | None, frame: int) -> Picture:
        """Return one frame: source with hands, robot beside it, then its arms from outside."""
        if image is None:
            image = np.full((*self._size[::-1], 3), _BACKDROP, np.uint8)
        elif (image.shape[1], image.shape[0]) != self._size:
            image = cv2.resize(image, self._size, interpolation=cv2.INTER_AREA)
        else:
            image = image.copy()
        return self._beside_hands(self._hands(image, frame), frame)

    def _hands(self, image: ImageRgb, frame: int) -> ImageRgb:
        """Draw the hands of a frame into its picture, or all anew; return that."""
        if self._outside is not None:
            return self._outside.draw("third", frame)
        self._paint(image, frame)
        return image

    def _beside_hands(self, hands: ImageRgb, frame: int) -> Picture:
        return np.hstack([hands, *(view(frame) for view in self._views)])

    def write(self, sheet: Path, overlay: Path, progress: Progress) -> None:
        """Write every frame as a video and the contact sheet, of one pass over the frames.

        Hands are drawn beside the robot and the encoding. OpenGL stays in the caller's thread.
        """
        images = enumerate(resized(self._recording, self._size))
        hands = ahead((self._hands(image, frame) for frame, image in images))
        count, chosen, thumbs = len(self), self._chosen(), []

        def pictures() -> Iterator[Picture]:
            for frame, panel in enumerate(hands):
                picture = self._beside_hands(panel, frame)
                if frame in chosen:
                    thumbs.append(self._thumb(picture, frame))
                if frame == chosen[-1]:  # the last one: before the video is whole
                    self._write_thumbs(thumbs, sheet)
                put_caption(picture, self._caption(frame))
                if self._motion.joint_sigma is not None:
                    put_caption(picture, LEGEND, below=True)
                yield picture
                progress("overlay", frame + 1, count)

        width = self._size[0] * self._across
        write_video(self._recording, pictures(), (width, self._size[1]), self._motion.fps, overlay)

    def write_contact_sheet(self, path: Path) -> None:
        """Write frames spread over the episode as one picture, cut to where the hands are."""
        source, thumbs = self._recording.frames, []
        for frame in self._chosen():
            image = source.at(frame) if source is not None else None
            thumbs.append(self._thumb(self.picture(image, frame), frame))
        self._write_thumbs(thumbs, path)

    def _chosen(self) -> list[int]:
        """Return the frames on the contact sheet."""
        count = min(SHEET_COLUMNS * SHEET_ROWS, len(self))
        return np.unique(np.linspace(0, len(self) - 1, count).round().astype(int)).tolist()

    def _thumb(self, picture: Picture, frame: int) -> Picture:
        """Return a frame's picture for the contact sheet."""
        left, top, right, bottom = self._region
        width = self._size[0]
        panels = [
            picture[top:bottom, x + left : x + right] for x in range(0, picture.shape[1], width)
        ]
        thumb = shrunk(np.hstack(panels), THUMB_WIDTH * self._across)
        put_caption(thumb, self._caption(frame))
        if right - left < width:
            self._mark_region(thumb)
        return thumb

    def _write_thumbs(self, thumbs: Sequence[Picture], path: Path) -> None:
        left, _, right, _ = self._region
        width, verdict = self._size[0], self._trajectory.verdict
        status = verdict.status if verdict else "not judged"
        title = f"{Path(self._recording.source).name}   {len(self)} frames   {status}"
        if right - left < width:
            title += f"   cropped to {(right - left) / width:.0%} of the width"
        if self._motion.joint_sigma is not None:
            title += f"\n{LEGEND}"
        write_png(contact_sheet(thumbs, min(SHEET_COLUMNS, len(thumbs)), title), path)

    @functools.cached_property
    def _region(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the part of a panel that the contact sheet shows.

        It has the panel's proportions, and no fewer pixels than a thumbnail.
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

    def _mark_region(self, thumb: Picture) -> None:
        """Draw into a corner which part of the whole picture a thumbnail shows."""
        size = np.array(self._size) * _MARKER_WIDTH // self._size[0]
        corner = np.array([THUMB_WIDTH, thumb.shape[0]]) - size - 4
        cut = np.array(self._region).reshape(2, 2) * _MARKER_WIDTH // self._size[0] + corner
        cv2.rectangle(thumb, corner.tolist(), (corner + size).tolist(), _FRAME, 1)
        cv2.rectangle(thumb, cut[0].tolist(), cut[1].tolist(), _FRAME, -1)

    def _caption(self, frame: int) -> str:
        motion = self._motion
        words = []
        for slot, side in enumerate(SIDES):
            quality = motion.quality[frame, slot]
            if motion.observed[frame, slot] and quality == 0:
                words.append(f"{side} doubtful")
                continue
            if motion.observed[frame, slot]:
                words.append(f"{side} {quality:.2f}")
            elif motion.filled[frame, slot]:
                words.append(f"{side} filled")
            else:
                continue
            if motion.joint_sigma is not None:
                across, along = 1e3 * np.median(motion.joint_sigma[frame, slot, TIPS], axis=0)
                words[-1] += f" +-{across:.0f}/{along:.0f} mm"
        if self._outside is not None:
            words.append(NOT_PLACED)
        arms = [arm for arm in self._trajectory.arms if arm is not None]
        gap = min((float(arm.clearance_m[frame]) for arm in arms), default=0.0)
        if gap < 0:
            words.append(f"arms collide {-1e3 * gap:.0f} mm")
        return f"{frame}   " + "   ".join(words or ["no hand"])


class SourceView:
    """A function from frame number to picture; a context manager.

    Where the hands have no place before a camera, each hand is shown from a fixed viewpoint.
    """

    def __init__(
        self, robot: Robot, motion: HandMotion, trajectory: RobotTrajectory, width: int, height: int
    ) -> None:
        """Open a renderer. Raises MissingDependencyError where there is no OpenGL."""
        self._trajectory = trajectory
        self._poses = _camera_poses(motion, trajectory)
        self._camera = Camera.nominal(width, height)
        if motion.camera is not None and trajectory.T_frame_base is not None:
            camera = motion.camera.rescaled(width, height)
            self._camera = replace(camera, model="pinhole", distortion=())
        depths = self._poses[..., 2, 3][trajectory.active]
        nearest = max(float(depths.min(initial=np.inf)), 1e-3)
        largest = self._camera.fx / nearest
        self._renderer = RobotRenderer(robot, width, height, None, largest)
        self._backdrop = np.full((height, width, 3), _BACKDROP, np.uint8)

    def __enter__(self) -> SourceView:
        return self

    def __exit__(self, *_: object) -> None:
        self._renderer.close()

    def __call__(self, frame: int) -> ImageRgb:
        """Return the picture of one frame; absent hands are not drawn."""
        picture, poses = self._backdrop.copy(), self._poses[frame]
        self._renderer.paint_frame(picture, self._camera, self._trajectory, frame, poses)
        return picture


def _camera_poses(motion: HandMotion, trajectory: RobotTrajectory) -> np.ndarray:
    """Return the bases in the camera frame, (T, 2, 4, 4)."""
    if trajectory.T_frame_base is None:
        # Side by side: base x (out of the palm) to the viewer, y to the image's right, z (fingers)
        # up.
        turn = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0], [-1.0, 0.0, 0.0]])
        fixed = [frames.rigid(turn, np.array([x, 0.08, 0.45])) for x in (-0.12, 0.12)]
        return np.broadcast_to(np.stack(fixed), (len(trajectory), 2, 4, 4))
    if trajectory.frame == "world" and motion.T_world_camera is not None:
        return frames.inverse(motion.T_world_camera)[:, None] @ trajectory.T_frame_base
    return trajectory.T_frame_base
