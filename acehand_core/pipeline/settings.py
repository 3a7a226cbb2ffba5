"""Settings of the main job, and the spans that a recording is cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from acehand_core.camera import FOCAL_LENGTH_VERSION
from acehand_core.errors import InputError
from acehand_core.motion import Recording
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.selection import Fit, part
from acehand_core.recordings.video_encode import even_size
from acehand_core.settings import (
    file_identity,
    group,
    identity_of,
    numbers,
    pixels,
    setting,
)
from acehand_core.trackers.base import Tracker, TrackerSettings, resolved_name
from acehand_core.types import (
    Existing,
    Hands,
    ImageFit,
    Latency,
    Progress,
    SplitMode,
    no_progress,
)
from retarget.robots.robot import Robot, comes_with_us, find_robot_file, split_variant
from retarget.solve.arm import ArmSettings

if TYPE_CHECKING:
    from acehand_core.lerobot.columns import Layout
    from retarget.solve.arm import Arm


#: Task without any task text.
TASK = "hand motion"

#: Longer episodes are divided (docs/formats.md).
LONGEST_S = 1800.0


@dataclass(frozen=True, slots=True)
class Span:
    """Frames ``start`` to ``stop - 1`` of an input, which become an episode.

    Attributes:
        task: None: that of the settings.
        starts, ends: why it does there.
        number: index and count of the input's spans; None: unknown.
        report: entry of the episode's report: where and why it was cut.
    """

    start: int
    stop: int
    task: str | None = None
    starts: str = ""
    ends: str = ""
    number: tuple[int, int] | None = None
    report: Mapping[str, Any] | None = None

    def of(self, recording: Recording) -> Recording:
        """Return these frames of a recording."""
        whole = (self.start, self.stop) == (0, len(recording))
        return recording if whole else part(recording, self.start, self.stop)

    def entry(self, start_s: float, end_s: float) -> dict[str, Any]:
        """Return its entry of the run's report."""
        return {
            "first_frame": self.start,
            "last_frame": self.stop - 1,
            "start_s": round(float(start_s), 3),
            "end_s": round(float(end_s), 3),
            "starts": self.starts,
            "ends": self.ends,
        }


@dataclass(frozen=True, slots=True)
class CutRules:
    """Where ``split=auto`` cuts. Times in seconds, speeds in m/s beyond the tracker's noise.

    ``VERSION`` counts up with every change that moves a cut: no run resumes one of an older rule.
    """

    VERSION: ClassVar[int] = 1
    pause_s: float = setting(
        1.5,
        "with `split=auto`: a rest, or no hand, for this many seconds ends a demonstration",
        flag="cut-pause",
        metavar="S",
        low=0.1,
    )
    hold_s: float = setting(
        3.0,
        "with `split=auto`: the same while fingertips meet: the hand may hold something",
        flag="cut-hold",
        metavar="S",
        low=0.1,
    )
    min_s: float = setting(
        1.0,
        "with `split=auto`: shorter motions are no demonstration",
        flag="cut-min",
        metavar="S",
        low=0.0,
    )
    max_s: float = setting(
        60.0,
        "with `split=auto`: a longer demonstration is divided where hands are slowest",
        flag="cut-max",
        metavar="S",
        low=1.0,
        high=LONGEST_S,
    )
    margin_s: float = setting(
        0.3,
        "with `split=auto`: rest that is kept before and after a demonstration",
        flag="cut-margin",
        metavar="S",
        low=0.0,
    )
    speeds: tuple[float, ...] = setting(
        (0.06, 0.03),
        "with `split=auto`: a hand starts to move above the first speed (m/s), rests below the "
        "second",
        flag="cut-speeds",
        metavar="MOVES,RESTS",
        parse=numbers,
        default_text="0.06,0.03",
    )

    def __post_init__(self) -> None:
        speeds, pause = self.speeds, self.pause_s
        wrong = ""
        if len(speeds) != 2 or not 0 < speeds[1] <= speeds[0] < np.inf:
            given = ",".join(f"{speed:g}" for speed in speeds)
            wrong = f"speeds={given}`: two speeds in m/s, the first not below the second"
        elif 2 * self.margin_s > pause:  # demonstrations would share frames
            wrong = f"margin={self.margin_s:g}`: at most half of `cut_pause={pause:g}`"
        elif self.hold_s < pause:
            wrong = f"hold={self.hold_s:g}`: at least `cut_pause={pause:g}`"
        elif self.max_s < 2 * self.min_s:
            wrong = f"max={self.max_s:g}`: at least twice `cut_min={self.min_s:g}`"
        if wrong:
            raise InputError(f"`cut_{wrong}.")


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of the main job; ``spans`` are those of its only input, None: by ``split``."""

    output: Path = setting(
        Path("acehand_dataset"),
        "folder of the dataset",
        metavar="DIR",
        identity="never",
        common=True,
    )
    robot: str = setting(
        "inspire",
        "robot name, NAME:VARIANT, or path of a robot.yaml",
        metavar="NAME",
        identity="always",
        common=True,
    )
    robot_model: Path | None = setting(
        None,
        "your own MJCF or URDF of the robot, or its folder (else the folder in "
        "ACEHAND_ROBOT_MODELS)",
        identity="never",
    )  # see ``Run.shaping``
    robot_unchecked: bool = setting(
        False, "continue with your own robot even if it fails its checks", identity="never"
    )
    arm: ArmSettings = group(ArmSettings, "arm")
    hands: Hands | None = setting(
        None,
        "hands to track; a robot with one hand follows that one",
        identity="always",
        default_text="both",
        common=True,
    )
    tracker: str = setting(
        "auto",
        "auto (ace if weights trained on recordings are configured, else mediapipe), an installed "
        "tracker, or a file of hands",
        metavar="NAME|FILE",
        identity="always",
        common=True,
    )
    method: str = setting(
        "trajectory",
        "retargeting method: trajectory, dex-vector, dex-dexpilot or dex-position",
        metavar="NAME",
        identity="always",
    )
    calibration: Path | None = setting(
        None,
        "a calibration.json of the same subject and robot; default: fitted to each recording",
        metavar="FILE",
        identity="always",
    )
    limits: Path | None = setting(
        None, "YAML with limits of the verdict (docs/formats.md)", metavar="FILE", identity="always"
    )
    latency: Latency = setting(
        "off",
        "replay without (off) or with (on) the hand's delay, or send commands ahead by it (ahead)",
        identity="always",
    )
    contacts: bool = setting(
        True, "do not close the robot's fingers on tracked `objects`", identity="always"
    )
    second_pass: bool = setting(
        True, "lower commands that the replay could not follow", identity="always"
    )
    reading: RecordingOptions = group(RecordingOptions, "recording")
    tracking: TrackerSettings = group(TrackerSettings, "tracking")
    task: str | None = setting(
        None,
        "what the hands do; LeRobot's task",
        identity="always",
        default_text="that of the recording, else 'hand motion'",
        common=True,
    )
    subject: str | None = setting(
        None,
        "who is recorded, preferably a pseudonym; stored with every episode to split datasets by "
        "subject",
        metavar="NAME",
        default_text="unknown",
    )
    task_file: str | None = setting(
        None,
        "tasks of each recording, with times: a table (.csv, docs/cutting.md), or sidecar: one "
        "next to each recording",
        metavar="FILE|sidecar",
        identity="never",  # the episode's task counts
    )
    split: SplitMode = setting(
        "none",
        "episodes of a recording: one; one per demonstration, found by the hands' motion "
        "(docs/cutting.md); or one per row of `task_file`",
        common=True,
    )
    cutting: CutRules = group(CutRules, "cutting")
    fps: int | None = setting(
        None,
        "rate of the dataset, a whole number",
        identity="always",
        default_text="the source's",
        common=True,
    )
    image_size: tuple[int, int] | None = setting(
        None,
        "size of the dataset's pictures, both even: recordings of other sizes are fitted",
        metavar="WxH",
        default_text="the first recording's",
        parse=pixels,
    )
    image_fit: ImageFit = setting(
        "letterbox", "with `image_size`, pictures of another shape get black bars or are cropped"
    )
    keep_views: bool = setting(
        False, "keep the pictures of the other cameras of a rig, as videos of the dataset"
    )
    keep_depth: bool = setting(
        False, "keep the depth pictures, as a video of the dataset in whole millimetres"
    )
    robot_video: bool = setting(
        False,
        "add a video with the robot in place of hands and forearms (observation.images.robot; "
        "docs/robot_video.md)",
        common=True,
    )
    robot_alone: bool = setting(
        False,
        "add a video of the robot before a plain background (observation.images.robot_alone)",
    )
    robot_mask: bool = setting(
        False,
        "add a video of what is not the source (observation.images.robot_mask): 0 the source, 85 "
        "filled from other frames, 170 by guess, 255 the robot",
    )
    robot_size: tuple[int, int] | None = setting(
        None,
        "size of the videos of the robot, both even",
        metavar="WxH",
        default_text="the pictures'",
        parse=pixels,
    )
    existing: Existing = setting(
        "refuse",
        "if the dataset exists",
        identity="never",
        switches={
            "append": "add episodes to the dataset at `output`",
            "overwrite": "replace the dataset at `output`, once the first new episode is complete",
            "resume": "resume an interrupted run: finished episodes and segments are kept",
        },
        common=True,
    )
    cache: Path | None = setting(
        None,
        "keep tracked hands in this folder, for runs with other robot or dataset settings",
        metavar="DIR",
        identity="never",
    )
    overlay: bool = setting(
        True, "write an overlay video per episode", pair=True, identity="never", common=True
    )
    dry_run: bool = setting(
        False, "track, retarget and judge, but write nothing", identity="never", common=True
    )
    spans: tuple[Span, ...] | None = None

    def __post_init__(self) -> None:
        if self.fps is not None and self.fps < 1:
            raise InputError(f"`fps={self.fps}`: valid: whole numbers from 1.")
        if self.robot_size and not self.robot_videos:
            raise InputError("`robot_size` needs `robot_video`, `robot_alone` or `robot_mask`.")
        if self.task is not None and not self.task.strip():
            raise InputError("`task` is empty; describe in a few words what the hands do.")
        if self.subject is not None and not self.subject.strip():
            raise InputError("`subject` is empty; give a name, or omit it.")
        for name in ("image_size", "robot_size"):
            size = getattr(self, name)
            if size and (min(size) < 16 or size[0] % 2 or size[1] % 2):
                raise InputError(
                    f"`{name}={size[0]}x{size[1]}`: valid: even numbers of at least 16 pixels."
                )
        if self.split == "tasks" and self.task_file is None:
            raise InputError("`split=tasks` needs `task_file`.")
        if self.split != "auto" and self.cutting != CutRules():
            raise InputError("The settings `cut_...` need `split=auto`.")
        if self.output.absolute().name in ("", ".."):
            raise InputError(f"`output={self.output}`: give the name of a new folder.")
        if self.calibration is not None:
            from retarget.solve.methods import retargeter_named

            if not retargeter_named(self.method).calibrates:
                raise InputError(f"`calibration` needs `method=trajectory`, not {self.method}.")

    def fit_of(self, recording: Recording) -> Fit | None:
        """Return how a recording's pictures are fitted to ``image_size``; None: unchanged."""
        source = recording.width, recording.height
        if recording.frames is None or self.image_size in (None, even_size(*source)):
            return None
        assert self.image_size is not None
        return Fit(source, self.image_size, self.image_fit)

    @property
    def robot_videos(self) -> tuple[str, ...]:
        """Keys of the videos that show the robot."""
        from acehand_core.lerobot.columns import ROBOT_KEYS

        wanted = self.robot_video, self.robot_alone, self.robot_mask
        return tuple(key for key, add in zip(ROBOT_KEYS, wanted, strict=True) if add)

    @property
    def work_dir(self) -> Path:
        """Folder of partial results, for ``resume``."""
        output = self.output.absolute()
        return output.with_name(f".{output.name}.acehand-work")

    @property
    def extent(self) -> tuple[float, float | None]:
        """Start and duration (None: to the end) of what is read of an input, seconds."""
        return self.reading.start_s or 0.0, self.reading.duration_s

    def shaping(self, fps: int | None) -> dict[str, Any]:
        """Return the settings that change an episode, by flag; files by their content."""
        name, variant = split_variant(self.robot)
        robot = name if comes_with_us(name) else file_identity(find_robot_file(name))
        mapping = self.reading.keypoints
        tracker = resolved_name(self.tracker, self.tracking.own)
        entries = identity_of(self)
        if mapping:
            entries["keypoints"] = file_identity(mapping)
        if self.split == "auto":
            entries["split"] = f"auto {CutRules.VERSION}"
        if self.reading.camera_estimate:  # another version may find another camera
            entries["camera-estimate"] = FOCAL_LENGTH_VERSION
        entries |= {
            "robot": f"{robot}:{variant}" if variant else robot,
            "arm-mount": list(self.arm.mount or (0.0,) * 6) if self.arm.path else None,
            "tracker": file_identity(tracker),
            **dict.fromkeys(self.tracking.own),
            "fps": fps,
        }
        if own := self.tracking.own.get(tracker):
            entries[tracker] = identity_of(own)
        return entries

    def layout(
        self, recording: Recording, tracker: Tracker, robot: Robot, arm: Arm | None
    ) -> Layout:
        """Return the layout of a dataset that starts with this recording.

        Raises InputError for views or depth to keep that the recording lacks, and as ``Layout``.
        """
        from acehand_core.lerobot.columns import Layout, kept

        frame: Literal["camera", "world", "none"] = "camera"
        if not tracker.placed:
            frame = "none"
        elif recording.T_world_camera is not None:
            frame = "world"

        size = self.image_size or even_size(recording.width, recording.height)
        robot_size = self.robot_size or size
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
            (
                *kept(recording, self.keep_views, self.keep_depth),
                *((key, robot_size) for key in self.robot_videos),
            ),
        )

    def with_environment(self, progress: Progress = no_progress) -> JobSettings:
        """Return settings as ``TrackerSettings.with_environment``."""
        return replace(self, tracking=self.tracking.with_environment(self.tracker, progress))

    @property
    def tracker_settings(self) -> TrackerSettings:
        """The tracker's settings in this job."""
        work_dir = None if self.dry_run else self.work_dir
        return replace(self.tracking, hands=self.hands or "both", work_dir=work_dir)
