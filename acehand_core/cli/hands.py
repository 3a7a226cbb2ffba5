"""``acehand reconstruct``, ``export``, ``view``: hands as tables, robot commands, pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from acehand_core.cli import console
from acehand_core.cli.ace import usable_weights
from acehand_core.cli.console import OVERWRITE
from acehand_core.errors import InputError, NoHandError
from acehand_core.pipeline.settings import JobSettings, WorldSettings
from acehand_core.recordings.options import RecordingOptions
from acehand_core.settings import group, like, setting
from acehand_core.trackers.ace_settings import AceSettings
from acehand_core.types import CameraMotionMode, Hands, Latency, Quality, Switch

_TABLE = "HandMotion .parquet, or keypoints (.npz, .npy, .csv, .json, .parquet)"


@dataclass(frozen=True, slots=True)
class Reconstruct:
    """Write the hands of a video as a table."""

    input: Path = setting(..., "what shows the hands", metavar="VIDEO", positional=True)
    tracker: str = setting("auto", "as of acehand-retarget", metavar="NAME")
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    output: Path | None = setting(
        None, ".parquet or .csv", metavar="FILE", default_text="VIDEO.hands.parquet"
    )
    overwrite: bool = setting(False, OVERWRITE)
    reading: RecordingOptions = group(RecordingOptions)
    hand_length_m: float | None = like(JobSettings, "hand_length_m", None)
    camera_motion: CameraMotionMode = like(JobSettings, "camera_motion", "rotation")
    quality: Quality = like(JobSettings, "quality", "balanced")
    palm_calibration: float = like(JobSettings, "palm_calibration", 1.0)
    prior: Switch = like(JobSettings, "prior", "off")
    world: WorldSettings = group(WorldSettings)
    work_dir: Path | None = setting(
        None,
        "keep partial results there; the same command again resumes from them",
        metavar="DIR",
    )
    ace: AceSettings = group(AceSettings, "tracker ace")

    def run(self, terminal: console.Terminal) -> int:
        """Track and write."""
        from acehand_core.pipeline.report import how_well_known, said
        from acehand_core.pipeline.world import in_world
        from acehand_core.recordings.hands_file import (
            TABLE_SUFFIXES,
            check_table_path,
            write_hand_motion,
        )
        from acehand_core.trackers.base import TrackerSettings
        from acehand_core.trackers.choose import open_input

        self.world.check_used(self.camera_motion)
        output = self.output or self.input.with_suffix(".hands.parquet")
        check_table_path(output, self.overwrite, TABLE_SUFFIXES)
        settings = TrackerSettings(
            hands=self.hands,
            hand_length_m=self.hand_length_m,
            work_dir=self.work_dir,
            ace=usable_weights(self.ace, self.tracker).if_weights,
            camera_motion="off" if self.camera_motion == "off" else "rotation",
            quality=self.quality,
            palm_calibration=self.palm_calibration,
            prior=self.prior,
        )
        recording, tracker = open_input(self.input, self.tracker, settings, self.reading)
        motion = tracker.track(recording, terminal.bars)
        if not motion.known.any():
            raise NoHandError(f"{self.input}: no hand was found in {len(motion)} frames.")
        if self.camera_motion == "full":
            motion = in_world(motion, recording, self.world, self.work_dir, terminal.bars)
        write_hand_motion(motion, output, self.overwrite)
        left, right = motion.observed.mean(0)
        known = how_well_known(motion)
        seen = f"left {left:.0%}, right {right:.0%}{said(known)}"
        console.say(f"{output}: {len(motion)} frames, {seen}")
        terminal.print_json(
            {
                "output": str(output),
                "frames": len(motion),
                "coverage": {"left": left, "right": right},
                **known,
            }
        )
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Export:
    """Write a table of hands in another form, or as robot commands."""

    input: Path = setting(..., _TABLE, metavar="HANDS", positional=True)
    output: Path = setting(..., ".csv, .parquet or joints .npz", metavar="FILE", positional=True)
    robot: str | None = setting(
        None,
        "write this robot's commands instead, in its controller's order and unit (.csv)",
        metavar="NAME",
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    robot_unchecked: bool = like(JobSettings, "robot_unchecked", False)
    calibration: Path | None = like(JobSettings, "calibration", None)
    latency: Latency = like(JobSettings, "latency", "off")
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    keypoints: str | None = like(RecordingOptions, "keypoints", None)
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Write the file."""
        if self.robot is not None:
            return self._commands(self.robot, terminal)
        if self.calibration or self.robot_model or self.latency != "off":
            raise InputError(
                "--robot-model, --calibration and --latency say how a robot follows: they need "
                "--robot."
            )
        from acehand_core.recordings.hands_file import (
            TABLE_SUFFIXES,
            check_table_path,
            read_motion_file,
            write_hand_motion,
            write_joints_file,
        )

        check_table_path(self.output, self.overwrite, (*TABLE_SUFFIXES, ".npz"))
        motion = read_motion_file(self.input, self.hands, as_stored=True, keypoints=self.keypoints)
        write = write_joints_file if self.output.suffix == ".npz" else write_hand_motion
        write(motion, self.output, self.overwrite)
        console.say(f"{self.output}: {len(motion)} frames")
        terminal.print_json({"output": str(self.output), "frames": len(motion)})
        return console.EXIT_OK

    def _commands(self, name: str, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.report import write_commands
        from acehand_core.recordings.hands_file import check_table_path, read_motion_file
        from acehand_core.types import SIDES
        from retarget.replay.simulate import Physics
        from retarget.retargeting import retarget_motion
        from retarget.robots.robot import load_robot
        from retarget.solve.calibration_file import known_calibrations

        robot = load_robot(name, models=self.robot_model)
        known = known_calibrations(self.calibration, robot)
        check_table_path(self.output, self.overwrite, (".csv",))
        motion = read_motion_file(self.input, self.hands, keypoints=self.keypoints)
        physics = Physics(latency=self.latency)
        trajectory = retarget_motion(motion, robot, calibrations=known, physics=physics,
                                     unchecked=self.robot_unchecked)  # fmt: skip
        sides = SIDES if self.hands == "both" else (self.hands,)
        units = next(iter(robot.hands.values())).controller
        columns = write_commands(trajectory, self.output, sides, units.whole, self.overwrite)
        console.say(
            f"{self.output}: {len(motion)} frames, unit: {units.unit}; "
            f"verdict {trajectory.verdict.status if trajectory.verdict else 'none'}"
        )
        terminal.print_json(
            {"output": str(self.output), "frames": len(motion), "robot": robot.label,
             "unit": units.unit, "columns": columns}
        )  # fmt: skip
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class View:
    """Draw a table of hands."""

    input: Path = setting(..., _TABLE, metavar="HANDS", positional=True)
    video: Path | None = setting(None, "what the hands were seen in", metavar="VIDEO")
    hands: Hands | None = like(JobSettings, "hands", None)
    robot: str = like(JobSettings, "robot", "inspire")
    output: Path = setting(Path("acehand_view"), "folder to write", metavar="DIR")
    overwrite: bool = setting(False, OVERWRITE)
    overlay: bool = setting(True, "write a video, not only a contact sheet", pair=True)
    reading: RecordingOptions = group(RecordingOptions)

    def run(self, terminal: console.Terminal) -> int:
        """Draw and name the files."""
        from acehand_core.pipeline.pictures import view_hands
        from acehand_core.pipeline.settings import JobSettings

        settings = JobSettings(
            output=self.output,
            robot=self.robot,
            hands=self.hands,
            reading=self.reading,
            existing="overwrite" if self.overwrite else "refuse",
            overlay=self.overlay,
        )
        files = view_hands(self.input, self.video, settings, terminal.bars)
        for file in files:
            console.say(str(file))
        terminal.print_json({"files": [str(file) for file in files]})
        return console.EXIT_OK
