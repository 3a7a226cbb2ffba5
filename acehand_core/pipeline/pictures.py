"""Pictures of an episode, of a file of hands, and of a robot."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from acehand_core.atomic import check_free
from acehand_core.drawing.contact_sheet import (
    EpisodePictures,
    RobotPicture,
    arm_view,
    picture_size,
    source_view,
)
from acehand_core.drawing.overlay import write_png
from acehand_core.errors import (
    InputError,
    MissingDependencyError,
)
from acehand_core.lerobot.format import OVERLAY, SHEET
from acehand_core.motion import HandMotion, Recording, RobotTrajectory
from acehand_core.pipeline.report import Demonstration
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.registry import HandsFile, format_of
from acehand_core.trackers.choose import open_input
from acehand_core.types import Progress, no_progress
from retarget.retargeting import retarget_motion
from retarget.robots.robot import Robot, load_robot
from retarget.solve.arm import Arm


def view_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> list[Path]:
    """Draw a file of hands, over its video if there is one; return the files written.

    Of the settings output, robot, hands, reading, overlay and existing count.

    Raises:
        InputError: ``hands`` is no file of hands, or does not fit the video or the settings.
        OutputError: the pictures exist and may not be overwritten.
    """
    check_hands_file(hands)
    for name in (SHEET, OVERLAY):
        check_free(settings.output / name, settings.existing == "overwrite")
    recording, motion, trajectory, robot = follow_hands(hands, video, settings, progress)
    shown = Demonstration(recording, motion, trajectory)
    return draw(shown, robot, settings.output, settings.overlay, progress)


def check_hands_file(path: Path) -> None:
    """Raise InputError where a path names no file of hands."""
    if format_of(path) is not HandsFile:
        raise InputError(f"{path}: give a HandMotion table (.parquet) or a joints file (.npz).")


def follow_hands(
    hands: Path, video: Path | None, settings: JobSettings, progress: Progress = no_progress
) -> tuple[Recording, HandMotion, RobotTrajectory, Robot]:
    """Return a file of hands, its video if there is one, and a robot that follows.

    Of the settings robot, hands and reading count.

    Raises:
        InputError: ``hands`` does not fit the video or the settings.
    """
    robot = load_robot(settings.robot)
    settings = replace(settings, hands=robot.hands_to_follow(settings.hands))
    name = "auto" if video is None else str(hands)
    recording, tracker = open_input(video or hands, name, settings.tracking, settings.reading)
    motion = tracker.track(recording, progress)
    return recording, motion, retarget_motion(motion, robot, unchecked=True), robot


def draw_robot(robot: Robot, path: Path, overwrite: bool = False) -> None:
    """Write a picture of a robot's hands, open and closed, with their base frames.

    Raises:
        MissingDependencyError: there is no OpenGL. OutputError: the file exists, or cannot be
            written.
    """
    from acehand_core.drawing.robot_sheet import robot_sheet

    check_free(path, overwrite)
    write_png(robot_sheet(robot), path)


def draw(
    episode: Demonstration,
    robot: Robot,
    folder: Path,
    overlay: bool,
    progress: Progress,
    arm: Arm | None = None,
) -> list[Path]:
    """Write the contact sheet and, if wanted and possible, the overlay video."""
    view, motion, trajectory = episode.view, episode.hands, episode.trajectory
    with contextlib.ExitStack() as stack:
        try:
            shown = source_view(robot, motion, trajectory, *picture_size(view))
            draw: RobotPicture | None = stack.enter_context(shown)
            arms: RobotPicture | None = None
            if arm is not None and any(trajectory.arms):
                shown = arm_view(robot, arm, motion, trajectory, *picture_size(view))
                arms = stack.enter_context(shown)
        except MissingDependencyError as error:
            progress(f"no pictures of the robot: {error}", 0, 0)
            draw = arms = None
        pictures = EpisodePictures(view, motion, trajectory, draw, arms)
        if not overlay or view.frames is None:
            pictures.write_contact_sheet(folder / SHEET)
            return [folder / SHEET]
        pictures.write(folder / SHEET, folder / OVERLAY, progress)
        return [folder / SHEET, folder / OVERLAY]
