"""The steps of the main job that make a demonstration: open, track, retarget and judge.

Cutting is in ``spans.py``, writing and drawing in ``dataset.py``; ``job.py`` puts them in order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import AcehandError, NoHandError
from acehand_core.lerobot import format as files
from acehand_core.motion import (
    Calibration,
    CameraMotion,
    HandMotion,
    Recording,
    RobotTrajectory,
)
from acehand_core.pipeline.settings import JobSettings
from acehand_core.processes import release_memory
from acehand_core.recordings.bags.records import DroppedMessages
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.narration import Narration
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import only_hands
from acehand_core.settings import file_identity
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import cached, open_tracked
from acehand_core.types import SIDES, Progress, Side, TimestampsNs
from retarget.replay.judgements import JUDGEMENTS, Judgements, read_gates
from retarget.replay.simulate import Physics
from retarget.retargeting import refuse_faulty, retarget_motion
from retarget.robots.robot import Robot, load_robot
from retarget.solve.arm import Arm
from retarget.solve.calibration_file import (
    StoredCalibration,
    calibration_text,
    known_calibrations,
    read_calibrations,
)
from retarget.solve.methods import Retargeter, retargeter_named
from retarget.targets import hand_targets

#: Hands and the calibrations of the robot to them.
Tracked = tuple[HandMotion, dict[Side, Calibration]]


@dataclass(frozen=True, slots=True)
class Source:
    """An opened input: what is to be tracked, and by whom. ``dropped``: see ``InputPart``."""

    path: Path
    recording: Recording
    tracker: Tracker
    dropped: DroppedMessages | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run's settings, robot and files, and the steps that need them."""

    settings: JobSettings
    progress: Progress
    registry: Registry
    narration: Narration | None
    robot: Robot
    retargeter: Retargeter
    arm: Arm | None
    given: Mapping[Side, StoredCalibration]
    gates: Judgements

    @classmethod
    def of(cls, settings: JobSettings, progress: Progress, registry: Registry | None = None) -> Run:
        """Load what the settings name. Raises InputError."""
        robot = load_robot(settings.robot, models=settings.robot_model)
        hands = robot.hands_to_follow(settings.hands)
        if not settings.robot_unchecked:
            refuse_faulty(robot, SIDES if hands == "both" else (hands,))
        return cls(
            replace(settings, hands=hands), progress, registry or Registry(),
            Narration.read(settings.task_file) if settings.task_file else None,
            robot,
            retargeter=retargeter_named(settings.method, settings.second_pass),
            arm=settings.arm.load(),
            given=read_calibrations(settings.calibration, robot) if settings.calibration else {},
            gates=read_gates(settings.gates) if settings.gates else JUDGEMENTS,
        )  # fmt: skip

    def shaping(self, fps: int | None) -> dict[str, Any]:
        """Return the settings that change an episode: see ``JobSettings.shaping``."""
        models = [file_identity(hand.user_model) for hand in self.robot.hands.values()]
        return self.settings.shaping(fps) | {"robot-model": models if any(models) else None}

    def open(self, path: Path) -> Source:
        """Open an input and choose who tracks it. Raises as ``open_tracked``."""
        settings, tracking = self.settings, self.settings.tracking
        opener = functools.partial(self.registry.open, progress=self.progress)
        opened, tracker = open_tracked(path, settings.tracker, tracking, settings.reading, opener)
        tracker = cached(tracker, tracking, settings.cache)
        return Source(path, opened.recording, tracker, opened.dropped)

    def track(self, tracker: Tracker, recording: Recording) -> Tracked:
        """Return the hands of a recording, and the calibrations all its episodes share.

        Raises:
            NoHandError: there is none that could be followed.
        """
        motion = only_hands(tracker.track(recording, self.progress), self.settings.hands or "both")
        topic = recording.processing.get("topic")
        if topic is not None:  # which topic and frame of a bag the pictures are of
            said = {"image_topic": topic, "camera_frame": recording.camera_frame}
            kept = {**motion.provenance.settings, **said}
            motion = replace(motion, provenance=replace(motion.provenance, settings=kept))
        if fit := self.settings.fit_of(recording):
            motion = fit.hands(motion)
        release_memory()

        if all(hand_targets(motion, side) is None for side in SIDES):
            known = int(motion.known.any(axis=1).sum())
            doubt = f" The joints of {known} frames have confidence 0." if known else ""
            raise NoHandError(
                f"{recording.source}: no hand was found in {len(motion)} frames.{doubt}"
            )
        # Of the whole recording: all its episodes show the same subject.
        given = {side: fitted.calibration for side, fitted in self.given.items()}
        return motion, self.retargeter.calibrate([motion], self.robot, given)

    def turns(self, recording: Recording, motion: HandMotion) -> CameraMotion | None:
        """Return how the camera turned while hands that ``track`` found were there.

        None where nobody knows or wants it.
        """
        settings = self.settings
        if motion.T_world_camera is not None:
            return CameraMotion.from_poses(motion.T_world_camera)
        if settings.camera_motion == "off" or recording.frames is None or motion.camera is None:
            return None
        from acehand_core.camera.recorded import recorded_rotations

        fit = settings.fit_of(recording)
        return recorded_rotations(
            fit.recording(recording) if fit else recording, motion.camera, motion.joints_image,
            np.asarray(motion.known.any(axis=1)), settings.tracking.work_dir, self.progress,
        )  # fmt: skip

    def retarget(
        self,
        episode: HandMotion,
        calibrations: Mapping[Side, Calibration],
        source_ns: TimestampsNs | None = None,
    ) -> RobotTrajectory:
        """Return the robot's motion, with its verdict and the arms that carry it.

        ``source_ns``: stamps of the source's frames that it shows; None: its own.
        """
        settings = self.settings
        physics = Physics(latency=settings.latency, second_pass=settings.second_pass)
        self.progress("retarget", 0, 1)
        trajectory = retarget_motion(
            episode, self.robot, self.retargeter, calibrations=calibrations, physics=physics,
            gates=self.gates, unchecked=settings.robot_unchecked, source_ns=source_ns,
        )  # fmt: skip
        if self.arm is not None:
            from retarget.solve.arm_attachment import attach_arms

            trajectory = attach_arms(trajectory, self.arm, settings.arm, self.robot)
        self.progress("retarget", 1, 1)
        return trajectory

    def stored(self, folder: Path) -> Tracked | None:
        """Return the hands and calibrations kept beside an episode, None where they are not."""
        try:
            motion = read_hand_motion(folder / files.HANDS)
            if not self.retargeter.calibrates:
                return motion, {}
            return motion, known_calibrations(folder / files.CALIBRATION, self.robot)
        except AcehandError:
            return None

    def calibration_text(
        self, calibrations: Mapping[Side, Calibration], recording: Recording
    ) -> str | None:
        """Return the file of calibrations, so that other recordings of the subject can use them."""
        if not self.retargeter.calibrates:
            return None
        origin = recording.name, recording.sha256
        fitted = {
            side: self.given.get(side, StoredCalibration(calibration, *origin))
            for side, calibration in calibrations.items()
        }
        return calibration_text(self.robot, fitted)
