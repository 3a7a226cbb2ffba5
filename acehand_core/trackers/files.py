"""The tracker that has no work left: it gives the hands that a file holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from acehand_core.errors import InputError
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hands_file import motion_recording, read_motion_file, refuse_flags
from acehand_core.trackers.base import TrackerSettings
from acehand_core.types import Progress, no_progress


class FileTracker:
    """Gives the hands that a file already holds."""

    name = "file"

    def __init__(
        self, path: Path, settings: TrackerSettings, motion: HandMotion | None = None
    ) -> None:
        """Read the file, unless its ``motion`` is known already.

        Raises:
            SchemaError: it does not follow its format.
            UnsafeFileError: it holds pickled objects.
            InputError: it cannot be read, or a hand length is given.
        """
        refuse_flags(path, {"--hand-length": settings.hand_length_m is not None})
        self._path = path
        self._motion = motion or read_motion_file(
            path, settings.hands, keypoints=settings.keypoints
        )
        self.placed = self._motion.placed
        self.hand_model = self._motion.hand_model

    @property
    def posed(self) -> bool:
        """Whether the file says where the camera is, so that hands end up in the world."""
        return self._motion.T_world_camera is not None

    @property
    def in_world(self) -> bool:
        """Whether the joints are in the world frame, as if the camera stood in its origin."""
        poses = self._motion.T_world_camera
        return poses is not None and bool((poses == np.eye(4)).all())

    def recording(self) -> Recording:
        """Return the file's own time axis and camera as a recording without images."""
        return motion_recording(self._path, self._motion)

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the file's motion; it must have one row per frame of a video.

        A recording without images is the file's own time axis, or a part of it.

        Raises:
            InputError: it does not belong to this recording.
        """
        if recording.frames is None:
            return self._at_times_of(recording)
        if len(self._motion) != len(recording):
            raise InputError(
                f"{self._path}: holds {len(self._motion)} frames but {recording.source} has "
                f"{len(recording)}; a tracker file needs one entry per frame."
            )

        camera = recording.camera or self._motion.camera
        if camera is not None:
            camera = camera.rescaled(recording.width, recording.height)
        poses = recording.T_world_camera
        return replace(
            self._motion,
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            camera=camera,
            T_world_camera=self._motion.T_world_camera if poses is None else poses,
        )

    def _at_times_of(self, recording: Recording) -> HandMotion:
        times = self._motion.timestamps_ns
        index = np.minimum(np.searchsorted(times, recording.timestamps_ns), len(times) - 1)
        if not np.array_equal(times[index], recording.timestamps_ns):
            raise InputError(f"{self._path}: has no hands at the times of {recording.source}.")
        motion = self._motion.at(index, recording.timestamps_ns, recording.fps)
        return replace(motion, T_world_camera=recording.T_world_camera)
