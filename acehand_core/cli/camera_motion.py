"""``acehand camera motion``: how the camera of a recording turned, as a table and a picture."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.errors import InputError
from acehand_core.recordings.options import RecordingOptions
from acehand_core.settings import group, setting

#: Quaternions are of R_reference_camera; each piece has a reference of its own.
COLUMNS = ("timestamp_ns", "piece", "qw", "qx", "qy", "qz", "inliers", "sigma_deg")


@dataclass(frozen=True, slots=True)
class Motion:
    """Find out how the camera of a recording turned, and show it.

    With --hands the hands are left out of what is looked at, and the picture shows hands that were
    filled in while they were out of sight, over later frames that show their place.
    """

    video: Path = setting(..., "a recording", metavar="VIDEO", positional=True)
    hands: Path | None = setting(
        None, "its hands, as acehand reconstruct writes them", metavar="FILE"
    )
    output: Path | None = setting(None, "a row per frame", metavar="CSV")
    picture: Path | None = setting(None, "the camera's angles over time", metavar="PNG")
    reading: RecordingOptions = group(RecordingOptions)
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Estimate, write and draw."""
        from acehand_core.atomic import atomic_path, check_free
        from acehand_core.camera_motion import recorded_rotations
        from acehand_core.drawing.motion_view import filled_hands_drawn, turns_drawn
        from acehand_core.drawing.overlay import write_png
        from acehand_core.geometry import rotations
        from acehand_core.geometry.cameras import Camera
        from acehand_core.motion import CameraMotion
        from acehand_core.recordings.hands_file import read_hand_motion
        from acehand_core.recordings.registry import open_recording

        for path in (self.output, self.picture):
            if path is not None:
                check_free(path, self.overwrite)
        recording = open_recording(self.video, self.reading)
        hands = None if self.hands is None else read_hand_motion(self.hands)
        if hands is not None and len(hands) != len(recording):
            raise InputError(
                f"{self.hands}: {len(hands)} frames, but {self.video} has {len(recording)}; give "
                "the hands of the same recording, and --start and --duration as they were."
            )
        camera = recording.camera or Camera.nominal(recording.width, recording.height)
        if recording.T_world_camera is not None:
            motion = CameraMotion.from_poses(recording.T_world_camera)
        else:
            pixels = np.full((len(recording), 2, 21, 2), np.nan)
            landmarks = pixels if hands is None else hands.joints_image
            motion = recorded_rotations(recording, camera, landmarks, progress=terminal.bars)

        if self.output is not None:
            q = rotations.to_quaternion(motion.rotations)
            with (
                atomic_path(self.output, self.overwrite) as partial,
                partial.open("w", encoding="utf-8", newline="") as file,
            ):
                table = csv.writer(file)
                table.writerow(COLUMNS)
                for row in zip(
                    recording.timestamps_ns.tolist(), motion.piece.tolist(),
                    *q.round(9).T.tolist(), motion.inliers.tolist(),
                    np.degrees(motion.sigma_rad).round(5).tolist(), strict=True,
                ):  # fmt: skip
                    table.writerow(row)
        if self.picture is not None:
            drawn = turns_drawn(motion, recording.fps)
            if hands is not None and recording.frames is not None:
                below = filled_hands_drawn(recording, hands, motion)
                drawn = np.vstack([drawn, below[:, : drawn.shape[1]]])
            write_png(drawn, self.picture)

        steps = motion.rotations[:-1].swapaxes(1, 2) @ motion.rotations[1:]
        turn = np.degrees(np.linalg.norm(rotations.log(steps), axis=-1))[~motion.broken[1:]]
        report = {
            "video": str(self.video),
            "frames": len(motion),
            "broken": int(motion.broken.sum()),
            "fastest_deg_per_s": round(float(turn.max()) * recording.fps, 1) if len(turn) else 0.0,
            "output": None if self.output is None else str(self.output),
            "picture": None if self.picture is None else str(self.picture),
        }
        console.say(
            f"{self.video}: {len(motion)} frames, turns of up to {report['fastest_deg_per_s']} "
            f"degrees a second; not known at {report['broken']} steps"
        )
        terminal.print_json(report)
        return console.EXIT_OK
