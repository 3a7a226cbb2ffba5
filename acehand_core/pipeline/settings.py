"""What the main job can be told, and what tells one episode from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from acehand_core.camera import FOCAL_LENGTH_VERSION
from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.selection import Fit
from acehand_core.recordings.video_encode import even_size
from acehand_core.settings import (
    file_identity,
    group,
    identity_of,
    numbers,
    pixels,
    plugin_groups,
    setting,
)
from acehand_core.trackers.base import Tracker, TrackerSettings, resolved_name
from acehand_core.types import (
    Existing,
    Hands,
    ImageFit,
    Latency,
    Quality,
    SplitMode,
    TurnsMode,
)
from retarget.robots.robot import Robot, comes_with_us, find_robot_file, split_variant
from retarget.solve.arm import ArmSettings

if TYPE_CHECKING:
    from acehand_core.lerobot.features import Layout
    from retarget.solve.arm import Arm


#: What hands do where nobody says it.
TASK = "hand motion"


@dataclass(frozen=True, slots=True)
class Span:
    """Frames ``start`` to ``stop - 1`` of an input, an episode of its own.

    Attributes:
        task: None: that of the settings.
        number: which of how many spans of the input it is, from 0; None: of unknown many.
        cut: what reports say of where it was cut.
    """

    start: int
    stop: int
    task: str | None = None
    number: tuple[int, int] | None = None
    cut: Mapping[str, Any] | None = None


#: Beyond it an episode would be divided again (docs/formats.md).
LONGEST_S = 1800.0


@dataclass(frozen=True, slots=True)
class CutRules:
    """Where ``--split auto`` cuts. Times in seconds, speeds in m/s beyond the tracker's noise."""

    pause_s: float = setting(
        1.5,
        "with --split auto: a rest of this many seconds, or no hand for as long, ends a "
        "demonstration",
        flag="cut-pause",
        metavar="S",
        low=0.1,
    )
    hold_s: float = setting(
        3.0,
        "with --split auto: the same where fingertips meet, since such a hand may hold something",
        flag="cut-hold",
        metavar="S",
        low=0.1,
    )
    min_s: float = setting(
        1.0,
        "with --split auto: hands that move for less are no demonstration",
        flag="cut-min",
        metavar="S",
        low=0.0,
    )
    max_s: float = setting(
        60.0,
        "with --split auto: a longer demonstration is divided where hands are slowest",
        flag="cut-max",
        metavar="S",
        low=1.0,
        high=LONGEST_S,
    )
    margin_s: float = setting(
        0.3,
        "with --split auto: rest that is kept before and after a demonstration",
        flag="cut-margin",
        metavar="S",
        low=0.0,
    )
    speeds: tuple[float, ...] = setting(
        (0.06, 0.03),
        "with --split auto: a hand begins to move above the first speed (m/s) and rests below the "
        "second",
        flag="cut-speeds",
        metavar="MOVES,RESTS",
        parse=numbers,
        default_text="0.06,0.03",
    )

    def __post_init__(self) -> None:
        if len(self.speeds) != 2 or not 0 < self.speeds[1] <= self.speeds[0] < np.inf:
            given = ",".join(f"{speed:g}" for speed in self.speeds)
            raise InputError(
                f"--cut-speeds {given}: two speeds in m/s are needed, the first at least as high "
                "as the second."
            )
        if 2 * self.margin_s > self.pause_s:
            raise InputError(
                f"--cut-margin {self.margin_s:g}: at most half of --cut-pause {self.pause_s:g}, or "
                "two demonstrations would share frames."
            )
        if self.hold_s < self.pause_s:
            raise InputError(
                f"--cut-hold {self.hold_s:g}: at least --cut-pause {self.pause_s:g} is needed."
            )
        if self.max_s < 2 * self.min_s:
            raise InputError(
                f"--cut-max {self.max_s:g}: at least twice --cut-min {self.min_s:g} is needed."
            )


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything the main job can be told.

    ``spans_of`` cuts an input into spans, each tracked on its own and an episode of its own.
    """

    output: Path = setting(
        Path("acehand_dataset"), "folder of the dataset", metavar="DIR", identity="never"
    )
    robot: str = setting(
        "inspire",
        "robot name, NAME:VARIANT, or path of a robot.yaml",
        metavar="NAME",
        identity="always",
    )
    robot_model: Path | None = setting(
        None,
        "your own MJCF or URDF of the robot, or a folder that has it (else the folder in "
        "ACEHAND_ROBOT_MODELS)",
        identity="never",
    )  # see ``Run``
    robot_unchecked: bool = setting(
        False, "go on with a robot of your own that does not pass its checks", identity="never"
    )
    arm: ArmSettings = group(ArmSettings)
    hands: Hands | None = setting(
        None,
        "which hands to look for; a robot with one hand follows that one",
        identity="always",
        default_text="both",
    )
    tracker: str = setting(
        "auto",
        "auto (ace where weights are configured that were trained on recordings, else mediapipe), "
        "an installed tracker, or a file of hands",
        metavar="NAME|FILE",
        identity="always",
    )
    method: str = setting(
        "trajectory",
        "how commands are found: trajectory, dex-vector, dex-dexpilot or dex-position",
        metavar="NAME",
        identity="always",
    )
    calibration: Path | None = setting(
        None,
        "a calibration.json of the same subject and robot; without it every recording gets its "
        "own, which starts from the robot's",
        metavar="FILE",
        identity="always",
    )
    gates: Path | None = setting(
        None,
        "YAML with other limits for the verdict (docs/formats.md)",
        metavar="FILE",
        identity="always",
    )
    latency: Latency = setting(
        "off",
        "replay without (off) or with (on) the hand's delay, or send commands ahead by it (ahead)",
        identity="always",
    )
    second_pass: bool = setting(
        True, "keep commands that the replay could not follow", identity="always"
    )
    reading: RecordingOptions = group(RecordingOptions)
    hand_length_m: float | None = setting(
        None,
        "wrist to middle fingertip in metres: the scale a single camera cannot know",
        flag="hand-length",
        metavar="M",
        identity="always",
    )
    camera_motion: TurnsMode = setting(
        "rotation",
        "what to find out of the camera's motion where the recording has no camera poses: nothing, "
        "or how it turns, so that hands out of sight are filled where they stayed",
        identity="always",
    )
    quality: Quality = setting(
        "balanced",
        "of the mediapipe tracker, against its time: in how many crops the landmark network sees "
        "each hand again (0, 1 to 3, or 12), and how thoroughly hands are searched for",
        identity="always",
    )
    palm_calibration: float = setting(
        1.0,
        "of the mediapipe tracker: how much of the measured difference between the network's wrist "
        "and thumb base and the hand model's is allowed for",
        low=0.0,
        high=1.0,
        identity="always",
    )
    trackers: Mapping[str, Any] = plugin_groups("trackers", "tracker {}", identity=False)
    task: str | None = setting(
        None,
        "what the hands do; LeRobot's task",
        identity="always",
        default_text="that of the recording, else 'hand motion'",
    )
    subject: str | None = setting(
        None,
        "who is recorded, best a pseudonym: it is kept with every episode, so that datasets can be "
        "split by subject",
        metavar="NAME",
        default_text="not known",
    )
    task_file: str | None = setting(
        None,
        "what is done in each recording, and when: a table (.csv, docs/cutting.md), or beside: one "
        "beside each recording",
        metavar="FILE|beside",
        identity="never",  # the task that an episode gets of it counts
    )
    split: SplitMode = setting(
        "none",
        "episodes of a recording: one; one of each demonstration, by what the hands do "
        "(docs/cutting.md); or one of each row of --task-file",
    )
    cutting: CutRules = group(CutRules)
    fps: int | None = setting(
        None,
        "rate of the dataset, a whole number",
        identity="always",
        default_text="the source's",
    )
    image_size: tuple[int, int] | None = setting(
        None,
        "size of the dataset's pictures, so that recordings of other sizes fit in: both even",
        metavar="WxH",
        default_text="the first recording's",
        parse=pixels,
    )
    image_fit: ImageFit = setting(
        "letterbox",
        "with --image-size, pictures of another shape get black bars, or are cut off",
    )
    existing: Existing = setting(
        "refuse",
        "where the dataset exists",
        identity="never",
        switches={
            "append": "add episodes to the dataset at --output",
            "overwrite": "replace the dataset at --output, when the first new episode is complete",
            "resume": "resume an interrupted run: finished episodes and segments are kept",
        },
    )
    cache: Path | None = setting(
        None,
        "keep tracked hands in this folder: a run with other settings of the robot or the dataset "
        "takes them from there",
        metavar="DIR",
        identity="never",
    )
    overlay: bool = setting(True, "write an overlay video per episode", pair=True, identity="never")
    dry_run: bool = setting(False, "track, retarget and judge, but write nothing", identity="never")
    spans_of: Callable[[Recording], Sequence[Span]] | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise InputError(f"--fps {self.fps}: a whole number from 1 on is needed.")
        if self.task is not None and not self.task.strip():
            raise InputError("--task is empty; say in a few words what the hands do.")
        if self.subject is not None and not self.subject.strip():
            raise InputError("--subject is empty; give a name, or leave it out.")
        if (size := self.image_size) and (min(size) < 16 or size[0] % 2 or size[1] % 2):
            raise InputError(
                f"--image-size {size[0]}x{size[1]}: even numbers of at least 16 pixels are needed."
            )
        if self.split == "tasks" and self.task_file is None:
            raise InputError("--split tasks cuts by the rows of --task-file; give it.")
        if self.split != "auto" and self.cutting != CutRules():
            raise InputError("--cut-... are rules of --split auto; give both or neither.")
        if self.output.absolute().name in ("", ".."):
            raise InputError(f"--output {self.output}: give the name of a folder to make.")
        if self.calibration is not None:
            from retarget.solve.methods import retargeter_named

            if not retargeter_named(self.method).calibrates:
                raise InputError(f"--calibration goes with --method trajectory, not {self.method}.")
        _ = self.tracking  # its values are checked on construction

    def fit_of(self, recording: Recording) -> Fit | None:
        """Return how a recording's pictures are brought to ``image_size``; None: they stay."""
        source = recording.width, recording.height
        if recording.frames is None or self.image_size in (None, even_size(*source)):
            return None
        assert self.image_size is not None
        return Fit(source, self.image_size, self.image_fit)

    def task_of(self, span: Span, recording: Recording) -> str:
        """Return the task of an episode: the span's, the wanted, the recording's, or ``TASK``."""
        return span.task or self.task or recording.task or TASK

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
        name, variant = split_variant(self.robot)
        robot = name if comes_with_us(name) else file_identity(find_robot_file(name))
        mapping = self.reading.keypoints
        said: dict[str, Any] = {"keypoints": file_identity(mapping)} if mapping else {}
        if self.split == "auto":
            from acehand_core.pipeline.cutting import VERSION as CUTTING_VERSION

            said["split"] = f"auto {CUTTING_VERSION}"
        if self.reading.camera_estimate:  # another version may find another camera
            said["camera-estimate"] = FOCAL_LENGTH_VERSION
        own = self.trackers.get(self.tracker_name)
        return (
            identity_of(self)
            | said
            | {
                "robot": f"{robot}:{variant}" if variant else robot,
                "arm-mount": list(self.arm.mount or (0.0,) * 6) if self.arm.path else None,
                "tracker": file_identity(self.tracker_name),
                **dict.fromkeys(self.trackers),
                **({self.tracker_name: identity_of(own)} if own else {}),
                "fps": fps,
            }
        )

    def layout(
        self, recording: Recording, tracker: Tracker, robot: Robot, arm: Arm | None
    ) -> Layout:
        """Return what all episodes of a dataset share that begins with this recording."""
        from acehand_core.lerobot.features import Layout

        frame: Literal["camera", "world", "none"] = "camera"
        if not tracker.placed:
            frame = "none"
        elif (
            recording.T_world_camera is not None
            or getattr(tracker, "posed", False)  # a table of hands may have poses of its own
        ):
            frame = "world"

        size = self.image_size or even_size(recording.width, recording.height)
        hand = next(iter(robot.hands.values()))
        ahead = hand.latency_s if self.latency == "ahead" else 0.0
        return Layout(
            hand.joint_names,
            hand.command_names,
            hand.command_joints,
            frame,
            tracker.hand_model,
            size if recording.frames else None,
            hand.controller.unit,
            arm.joint_names if arm else (),
            ahead,
        )

    @property
    def tracker_name(self) -> str:
        """The tracker that will be used: ``auto`` resolved."""
        return resolved_name(self.tracker, self.trackers)

    @property
    def tracking(self) -> TrackerSettings:
        """The tracker's share of the settings."""
        return TrackerSettings(
            hands=self.hands or "both",
            hand_length_m=self.hand_length_m,
            own=self.trackers,
            work_dir=None if self.dry_run else self.work_dir,
            camera_motion=self.camera_motion,
            quality=self.quality,
            palm_calibration=self.palm_calibration,
        )
