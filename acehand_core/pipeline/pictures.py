"""Pictures of a file of hands and of a robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from acehand_core.atomic import check_free
from acehand_core.drawing.overlay import write_png
from acehand_core.errors import InputError
from acehand_core.lerobot.format import OVERLAY, SHEET
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline.dataset import draw
from acehand_core.pipeline.report import Demonstration
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.registry import HandsFile, format_of
from acehand_core.trackers.choose import open_input
from acehand_core.types import Progress, no_progress
from retarget.retargeting import retarget_motion
from retarget.robots.robot import Robot, load_robot


def view_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> list[Path]:
    """Draw a file of hands, over its video if given; return the files written.

    Reads the settings output, robot, hands, reading, overlay and existing. Raises InputError if
    ``hands`` does not fit the video or the settings, OutputError for existing pictures.
    """
    check_hands_file(hands)
    for name in (SHEET, OVERLAY):
        check_free(settings.output / name, settings.existing == "overwrite")
    recording, motion, trajectory, robot = follow_hands(hands, video, settings, progress)
    shown = Demonstration(recording, motion, trajectory)
    return draw(shown, robot, settings.output, settings.overlay, progress)


def check_hands_file(path: Path) -> None:
    """Raise InputError for a path that is no file of hands."""
    if format_of(path) is not HandsFile:
        raise InputError(f"{path}: give a HandMotion table (.parquet) or a joints file (.npz).")


def follow_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> tuple[Recording, HandMotion, RobotTrajectory, Robot]:
    """Return a file's recording, its hands and a robot that follows them.

    Reads the settings robot, hands and reading. Raises InputError if ``hands`` does not fit the
    video or the settings.
    """
    robot = load_robot(settings.robot)
    settings = replace(settings, hands=robot.hands_to_follow(settings.hands))
    name = "auto" if video is None else str(hands)
    recording, tracker = open_input(video or hands, name, settings.tracking, settings.reading)
    motion = tracker.track(recording, progress)
    return recording, motion, retarget_motion(motion, robot, unchecked=True), robot


def draw_robot(robot: Robot, path: Path, overwrite: bool = False) -> None:
    """Write a picture of a robot's hands, open and closed, with their base frames.

    Raises MissingDependencyError without OpenGL, OutputError.
    """
    from acehand_core.drawing.robot_sheet import robot_sheet

    check_free(path, overwrite)
    write_png(robot_sheet(robot), path)
