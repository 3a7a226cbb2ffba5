"""What the main job can be told, and what tells one episode from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from acehand_core.errors import (
    InputError,
)
from acehand_core.lerobot.features import Layout
from acehand_core.lerobot.resume import Existing, identity
from acehand_core.motion import Recording
from acehand_core.recordings.registry import RecordingOptions
from acehand_core.recordings.video_encode import VideoEncoding, even_size
from acehand_core.trackers.ace_settings import AceSettings
from acehand_core.trackers.base import Hands, Tracker, TrackerSettings, resolved_name
from acehand_core.types import SIDES
from retarget.replay.simulate import Latency
from retarget.robots.robot import Robot, find_robot_file, robot_names, split_variant
from retarget.solve.arm import Arm
from retarget.solve.arm_attachment import ArmSettings
from retarget.solve.methods import retargeter_named

#: What hands do where nobody says it.
TASK = "hand motion"


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames ``start`` to ``stop - 1`` of an input; ``task`` None: that of the settings."""

    start: int
    stop: int
    task: str | None = None


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything the main job can be told. ``fps`` None: the first source's nearest integer.

    ``task`` None: what the recording says, else ``TASK``.

    ``split`` cuts an input into clips, each tracked on its own and an episode of its own. ``ace``
    is what the tracker of that name needs beside the rest.
    """

    output: Path
    robot: str = "inspire"
    robot_model: Path | None = None
    arm: ArmSettings | None = None
    solver: str = "trajectory"
    tracker: str = "auto"
    hands: Hands = "both"
    hand_length_m: float | None = None
    ace: AceSettings | None = None
    task: str | None = None
    reading: RecordingOptions = field(default_factory=RecordingOptions)
    fps: int | None = None
    existing: Existing = "refuse"
    overlay: bool = True
    dry_run: bool = False
    calibration: Path | None = None
    gates: Path | None = None
    latency: Latency = "off"
    second_pass: bool = True
    encoding: VideoEncoding = field(default_factory=VideoEncoding)
    split: Callable[[Recording], Sequence[Clip]] | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise InputError(f"--fps {self.fps}: a whole number from 1 on is needed.")
        if self.task is not None and not self.task.strip():
            raise InputError("--task is empty; say in a few words what the hands do.")
        if self.output.absolute().name in ("", ".."):
            raise InputError(f"--output {self.output}: give the name of a folder to make.")
        if self.calibration is not None and not retargeter_named(self.solver).calibrates:
            raise InputError(f"--calibration goes with --solver trajectory, not {self.solver}.")
        _ = self.tracking  # its values are checked on construction

    def task_of(self, clip: Clip, recording: Recording) -> str:
        """Return the task of an episode: the clip's, the wanted, the recording's, or ``TASK``."""
        return clip.task or self.task or recording.task or TASK

    @property
    def work_dir(self) -> Path:
        """Where partial results of this output wait for ``resume``."""
        output = self.output.absolute()
        return output.with_name(f".{output.name}.acehand-work")

    @property
    def cut(self) -> tuple[float, float | None]:
        """Which seconds of an input are read: tells two cuts of one file apart."""
        return self.reading.start_s or 0.0, self.reading.duration_s

    def shaping(self, fps: int | None) -> dict[str, Any]:
        """Return the settings that change an episode, by flag; files count by their content."""
        reading = self.reading
        name, variant = split_variant(self.robot)
        robot = name if name in robot_names() else identity(find_robot_file(name))

        return {
            "robot": f"{robot}:{variant}" if variant else robot,
            "arm": identity(self.arm.path) if self.arm else None,
            "arm-link": self.arm.link if self.arm else None,
            "arm-mount": list(self.arm.mount) if self.arm else None,
            "arm-up": list(self.arm.up) if self.arm and self.arm.up else None,
            "hands": self.hands,
            "tracker": identity(self.tracker_name),
            "ace": self.ace.identity() if self.ace and self.tracker_name == "ace" else None,
            "solver": self.solver,
            "task": self.task,
            "fps": fps,
            "hand-length": self.hand_length_m,
            "mirrored": reading.mirrored,
            "intrinsics": reading.intrinsics,
            "camera": identity(reading.camera),
            "camera-poses": identity(reading.camera_poses),
            "calibration": identity(self.calibration),
            "gates": identity(self.gates),
            "latency": self.latency,
            "second-pass": self.second_pass,
            **({"video-key": reading.video_key} if reading.video_key else {}),
            **({"frame-rate": reading.frame_rate} if reading.frame_rate else {}),
            **reading.bag.to_json(),
        }

    def layout(
        self, recording: Recording, tracker: Tracker, robot: Robot, arm: Arm | None
    ) -> Layout:
        """Return what all episodes of a dataset share that begins with this recording."""
        frame: Literal["camera", "world", "none"] = "camera"
        if not tracker.placed:
            frame = "none"
        elif recording.T_world_camera is not None:
            frame = "world"

        hand = robot.hand(SIDES[1])
        ahead = hand.latency_s if self.latency == "ahead" else 0.0
        return Layout(
            hand.joint_names,
            hand.command_names,
            hand.command_joints,
            frame,
            tracker.hand_model,
            even_size(recording.width, recording.height) if recording.frames else None,
            hand.controller.unit,
            arm.joint_names if arm else (),
            ahead,
        )

    @property
    def tracker_name(self) -> str:
        """The tracker that will be used: ``auto`` resolved."""
        return resolved_name(self.tracker, self.tracking)

    @property
    def tracking(self) -> TrackerSettings:
        """The tracker's share of the settings."""
        return TrackerSettings(
            hands=self.hands,
            hand_length_m=self.hand_length_m,
            ace=self.ace,
            work_dir=None if self.dry_run else self.work_dir,
        )
