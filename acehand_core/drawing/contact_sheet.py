"""The pictures of one episode: an overlay video and a contact sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from acehand_core.drawing.overlay import ArrayFrames, Painter, contact_sheet, put_caption, write_png
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.recordings.video_encode import VideoEncoding, encode_video
from acehand_core.types import SIDES, ImageRgb, Picture, Progress

#: Gives the robot as the source camera would see it in a frame of the episode.
RobotPicture = Callable[[int], ImageRgb]

#: Pictures in the overlay are no larger than this, sheet thumbnails no wider.
MAX_SIDE = 960
THUMB_WIDTH = 300
SHEET_COLUMNS, SHEET_ROWS = 3, 4
_BACKDROP = (38, 41, 47)


def picture_size(recording: Recording) -> tuple[int, int]:
    """Return (width, height) of one panel: the source's, shrunk to at most ``MAX_SIDE``."""
    shrink = min(1.0, MAX_SIDE / max(recording.width, recording.height))
    return max(2, round(recording.width * shrink)), max(2, round(recording.height * shrink))


class EpisodePictures:
    """Draws frames of one episode; ``robot`` is None where no robot picture can be made."""

    def __init__(
        self,
        recording: Recording,
        motion: HandMotion,
        trajectory: RobotTrajectory,
        robot: RobotPicture | None,
    ) -> None:
        self._recording, self._trajectory, self._robot = recording, trajectory, robot
        self._size = picture_size(recording)
        camera = motion.camera.rescaled(*self._size) if motion.camera else None
        scale = np.array(self._size) / [recording.width, recording.height]
        self._motion = replace(
            motion, camera=camera, joints_image=(motion.joints_image + 0.5) * scale - 0.5
        )
        model = CapsuleHand() if motion.hand_model == "acehand" else None
        self._paint = Painter(self._motion, model)

    def __len__(self) -> int:
        return len(self._motion)

    def picture(self, image: ImageRgb | None, frame: int) -> Picture:
        """Return one frame: source with hands, robot beside it."""
        width, height = self._size
        if image is None:
            image = np.full((height, width, 3), _BACKDROP, np.uint8)
        elif (image.shape[1], image.shape[0]) != self._size:
            image = cv2.resize(image, self._size, interpolation=cv2.INTER_AREA)
        painted = self._paint(image, frame)
        return painted if self._robot is None else np.hstack([painted, self._robot(frame)])

    def write_overlay(self, path: Path, progress: Progress) -> None:
        """Write every frame as a video."""
        assert self._recording.frames is not None
        images = self._recording.frames.read(0, len(self))
        count = len(self)

        def pictures() -> Iterator[Picture]:
            for frame, image in enumerate(images):
                picture = self.picture(image, frame)
                put_caption(picture, self._caption(frame))
                yield picture
                progress("overlay", frame + 1, count)

        width = self._size[0] * (1 if self._robot is None else 2)
        canvas = replace(
            self._recording,
            width=width,
            height=self._size[1],
            camera=None,
            frames=ArrayFrames(pictures(), count),
        )
        encode_video(canvas, path, round(self._motion.fps), VideoEncoding(gop=30))

    def write_contact_sheet(self, path: Path) -> None:
        """Write frames spread over the episode as one picture."""
        count = min(SHEET_COLUMNS * SHEET_ROWS, len(self))
        chosen = np.unique(np.linspace(0, len(self) - 1, count).round().astype(int)).tolist()
        frames = self._recording.frames

        thumbs = []
        for frame in chosen:
            picture = self.picture(frames.at(frame) if frames is not None else None, frame)
            panels = 1 if self._robot is None else 2
            height = round(picture.shape[0] * THUMB_WIDTH * panels / picture.shape[1])
            size = (THUMB_WIDTH * panels, height)
            thumb = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
            put_caption(thumb, self._caption(frame))
            thumbs.append(thumb)

        verdict = self._trajectory.verdict
        status = verdict.status if verdict else "not judged"
        title = f"{Path(self._recording.source).name}   {len(self)} frames   {status}"
        write_png(contact_sheet(thumbs, min(SHEET_COLUMNS, len(thumbs)), title), path)

    def _caption(self, frame: int) -> str:
        motion = self._motion
        words = []
        for slot, side in enumerate(SIDES):
            if motion.observed[frame, slot]:
                words.append(f"{side} {motion.quality[frame, slot]:.2f}")
            elif motion.filled[frame, slot]:
                words.append(f"{side} filled")
        return f"{frame}   " + "   ".join(words or ["no hand"])
