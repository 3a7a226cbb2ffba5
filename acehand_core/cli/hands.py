"""``acehand reconstruct``, ``export``, ``view`` and ``render``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from acehand_core import plugins
from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.drawing.render_inputs import RenderSettings
from acehand_core.errors import InputError, NoHandError
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.options import RecordingOptions
from acehand_core.settings import group, like, setting
from acehand_core.trackers.base import TrackerSettings
from acehand_core.types import Hands, Latency

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

    from acehand_core.motion import Recording
    from acehand_core.review import rerun_view

_TABLE = "HandMotion .parquet, or keypoints (.npz, .npy, .csv, .json, .parquet)"


@dataclass(frozen=True, slots=True)
class Reconstruct:
    """Write the hands of a video as a table."""

    input: Path = setting(..., "a video of hands", metavar="VIDEO", positional=True)
    tracker: str = setting("auto", "as in acehand-retarget", metavar="NAME")
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    output: Path | None = setting(
        None, ".parquet or .csv", metavar="FILE", default_text="VIDEO.hands.parquet"
    )
    overwrite: bool = setting(False, OVERWRITE)
    reading: RecordingOptions = group(RecordingOptions, "recording")
    tracking: TrackerSettings = group(TrackerSettings, "tracking")
    work_dir: Path | None = setting(
        None, "folder for partial results; the same command resumes from them", metavar="DIR"
    )

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.report import format_uncertainty, uncertainty_summary
        from acehand_core.recordings import hands_file
        from acehand_core.trackers.choose import open_tracked

        output = self.output or self.input.with_suffix(".hands.parquet")
        hands_file.check_table_path(output, self.overwrite, hands_file.TABLE_SUFFIXES)
        settings = replace(self.tracking, hands=self.hands, work_dir=self.work_dir)
        settings = settings.with_environment(self.tracker, terminal.bars)
        recording, tracker = open_tracked(self.input, self.tracker, settings, self.reading)
        motion = tracker.track(recording, terminal.bars)
        if not motion.known.any():
            raise NoHandError(f"{self.input}: no hand was found in {len(motion)} frames.")
        hands_file.write_hand_motion(motion, output, self.overwrite)
        left, right = motion.observed.mean(0)
        known, count = uncertainty_summary(motion), len(motion)
        doubts = format_uncertainty(known)
        console.say(f"{output}: {count} frames, left {left:.0%}, right {right:.0%}{doubts}")
        coverage = {"left": left, "right": right}
        report = {"output": str(output), "frames": count, "coverage": coverage}
        terminal.print_json(report | known)
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Export:
    """Write hands in another format, or as robot commands."""

    input: Path = setting(..., _TABLE, metavar="HANDS", positional=True)
    output: Path = setting(..., ".csv, .parquet or joints .npz", metavar="FILE", positional=True)
    robot: str | None = setting(
        None, "write the commands of this robot, in its controller's units (.csv)", metavar="NAME"
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    robot_unchecked: bool = like(JobSettings, "robot_unchecked", False)
    calibration: Path | None = like(JobSettings, "calibration", None)
    latency: Latency = like(JobSettings, "latency", "off")
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    keypoints: str | None = like(RecordingOptions, "keypoints", None)
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        if self.robot is not None:
            return self._commands(self.robot, terminal)
        if self.calibration or self.robot_model or self.latency != "off":
            raise InputError("`robot_model`, `calibration` and `latency` need `robot`.")
        from acehand_core.recordings.hands_file import check_table_path, read_motion_file

        suffixes = tuple(f".{name}" for name in plugins.names("exports"))
        check_table_path(self.output, self.overwrite, suffixes)
        write = plugins.load("exports", self.output.suffix[1:])
        motion = read_motion_file(self.input, self.hands, as_stored=True, keypoints=self.keypoints)
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
        trajectory = retarget_motion(
            motion, robot, calibrations=known, physics=physics, unchecked=self.robot_unchecked
        )
        sides = SIDES if self.hands == "both" else (self.hands,)
        units = next(iter(robot.hands.values())).controller
        columns = write_commands(trajectory, self.output, sides, units.whole, self.overwrite)
        console.say(
            f"{self.output}: {len(motion)} frames, unit: {units.unit}; "
            f"verdict {trajectory.verdict.status if trajectory.verdict else 'none'}"
        )
        report = {"output": str(self.output), "frames": len(motion)}
        terminal.print_json(report | {"robot": robot.label, "unit": units.unit, "columns": columns})
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class ViewHands:
    """Show an episode of a dataset, or a table of hands, in rerun's viewer.

    Without rerun, an episode is written as a page for a browser. With `output`, a table of hands
    is drawn as pictures, without a viewer.
    """

    input: Path = setting(
        ..., f"LeRobot dataset with hands, or {_TABLE}", metavar="WHAT", positional=True
    )
    episode: int | None = setting(
        None, "episode of the dataset", low=0, metavar="N", default_text="0"
    )
    video: Path | None = setting(None, "the video of a table of hands", metavar="VIDEO")
    save: Path | None = setting(
        None, "write a file, open no viewer: .rrd for rerun; episodes also .html", metavar="FILE"
    )
    output: Path | None = setting(
        None, "draw a table of hands as pictures into this folder; no viewer", metavar="DIR"
    )
    hands: Hands | None = like(JobSettings, "hands", None)
    robot: str | None = setting(
        None,
        "robot that follows a table of hands; for a dataset with your own robot, its robot.yaml",
        metavar="NAME",
        default_text="inspire; the dataset's",
    )
    overwrite: bool = setting(False, OVERWRITE)
    overlay: bool = setting(True, "with `output`, also write a video", pair=True)
    reading: RecordingOptions = group(RecordingOptions, "recording")

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.job import check_hands_file, draw_hands
        from acehand_core.recordings.lerobot_video import is_dataset

        if is_dataset(self.input):
            return self._show_episode(terminal)
        check_hands_file(self.input)
        if self.episode is not None:
            raise InputError(f"{self.input}: is a table of hands; `episode` is for datasets.")
        if self.output is None:
            return self._show_table(terminal)
        if self.save is not None:
            raise InputError("`output` and `save` exclude each other.")
        files = draw_hands(self.input, self.video, self._settings(), terminal.bars)
        return console.say_files(files, terminal)

    def _settings(self) -> JobSettings:
        return JobSettings(
            output=self.output or Path(),
            robot=self.robot or "inspire",
            hands=self.hands,
            reading=self.reading,
            existing="overwrite" if self.overwrite else "refuse",
            overlay=self.overlay,
        )

    def _show_episode(self, terminal: console.Terminal) -> int:
        import numpy as np

        from acehand_core.lerobot.episode import DatasetReader
        from acehand_core.review import rerun_view
        from acehand_core.review.inspect import robot_of
        from acehand_core.review.page import write_episode_page
        from retarget.robots.robot import load_stored_robot

        if self.output is not None:
            raise InputError(
                f"{self.input}: `output` is for tables of hands; acehand render draws an episode."
            )
        if self.video or self.hands or self.reading != RecordingOptions():
            raise InputError(
                f"{self.input}: is a dataset, which has its video and hands; `video`, `hands` and "
                "the flags for reading recordings do not apply."
            )
        reader, number = DatasetReader(self.input), self.episode or 0
        title = f"{self.input.resolve().name}, episode {number}"
        page = self.save if self.save and self.save.suffix == ".html" else None
        overwrite = self.overwrite
        if self.save is None and not rerun_view.is_installed():
            console.say("rerun is not installed (pip install 'acehand[view]'): a page instead")
            dataset, overwrite = self.input.resolve(), True
            page = dataset.with_name(f"{dataset.name}.view") / f"episode_{number:06d}.html"
        if page is not None:
            write_episode_page(reader, number, page, overwrite, terminal.bars)
            return console.say_files([page], terminal, viewer="page", episode=number)

        if self.save is not None:
            rerun_view.check_output(self.save, self.overwrite)
        episode = reader.read(number)
        robot = robot_of(reader)
        if self.robot is not None:
            robot = load_stored_robot(reader.robot_label, self.robot, None, str(self.input))
        place = reader.video(number)
        with TemporaryDirectory() as scratch:
            video = times = None
            if place is not None:
                video = place.video
                times = place.start_s + np.arange(len(episode)) / place.fps
                if video.is_file() and not rerun_view.can_decode(video):
                    recording = reader.recording(number)
                    assert recording is not None
                    video, times = _encoded(recording, Path(scratch))
            shown = rerun_view.EpisodeDisplay(title, episode, robot, video, times)
            return self._show(shown, {"episode": number}, terminal)

    def _show_table(self, terminal: console.Terminal) -> int:
        from acehand_core.lerobot.episode import hands_as_episode
        from acehand_core.pipeline.job import follow_hands
        from acehand_core.pipeline.report import episode_provenance
        from acehand_core.review import rerun_view

        if self.save is None:  # before minutes of work
            rerun_view.check_viewer()
        else:
            rerun_view.check_output(self.save, self.overwrite)
        recording, motion, trajectory, robot = follow_hands(
            self.input, self.video, self._settings(), terminal.bars
        )
        origin = episode_provenance(motion, trajectory, robot.license)
        episode = hands_as_episode(self.input, motion, trajectory, origin)
        with TemporaryDirectory() as scratch:
            video = times = None
            if recording.frames is not None:  # upright, undistorted and cut
                video, times = _encoded(recording, Path(scratch))
            shown = rerun_view.EpisodeDisplay(self.input.name, episode, robot, video, times)
            return self._show(shown, {}, terminal)

    def _show(
        self, shown: rerun_view.EpisodeDisplay, entries: dict[str, Any], terminal: console.Terminal
    ) -> int:
        from acehand_core.review import rerun_view

        if self.save is None:
            rerun_view.open_viewer(shown)
        else:
            rerun_view.save(shown, self.save, self.overwrite)
        files, entries = [self.save] if self.save else [], entries | {"frames": len(shown.episode)}
        return console.say_files(files, terminal, viewer="rerun", **entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Render(RenderSettings):
    """Draw a video and a strip of hands and robot."""

    inputs: tuple[Path, ...] = setting(
        ...,
        "HandMotion .parquet, joints .npz, a folder of predictions, or a dataset with `episode`; "
        "several of one recording are drawn side by side",
        metavar="HANDS|DATASET",
        positional=True,
    )
    robot: str | None = like(
        JobSettings, "robot", None, default_text="a dataset's own, else inspire"
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    calibration: Path | None = like(JobSettings, "calibration", None)
    hands: Hands | None = like(JobSettings, "hands", None)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.drawing.render import render

        if self.reading.rigs.depth is not None:
            raise InputError("`depth` is for retargeting; with `scene_depth` it hides the robot.")
        return console.say_files(render(self.inputs, self, terminal.bars), terminal)


def _encoded(recording: Recording, folder: Path) -> tuple[Path, Float[np.ndarray, "T"]]:
    """Write the frames for a viewer; return the video and the time of each frame (s)."""
    import numpy as np

    from acehand_core.recordings.video_encode import VideoEncoding, encode_video

    video, rate = folder / "video.mp4", max(round(recording.fps), 1)
    encode_video(recording, video, rate, VideoEncoding("av1", preset="10", crf=40))
    return video, np.arange(len(recording)) / rate
