"""The steps of the main job that make an episode: open, track, retarget and judge.

``plan.py`` cuts an input into episodes, ``dataset.py`` writes and draws them; ``job.py`` puts the
steps in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acehand_core.errors import AcehandError, NoHandError
from acehand_core.lerobot.format import CALIBRATION, HANDS
from acehand_core.motion import Calibration, HandMotion, Recording
from acehand_core.mujoco_gl import open_context
from acehand_core.pipeline.report import PlannedEpisode, RetargetedEpisode
from acehand_core.pipeline.settings import JobSettings
from acehand_core.processes import release_memory
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.registry import Registry
from acehand_core.recordings.selection import hands_at, only_hands
from acehand_core.settings import file_identity
from acehand_core.trackers.base import Tracker
from acehand_core.trackers.choose import cached, open_tracked
from acehand_core.types import SIDES, Progress, Side
from retarget.replay.checks import CHECKS, Checks, read_limits
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


@dataclass(frozen=True, slots=True)
class Input:
    """An opened input."""

    path: Path
    recording: Recording
    tracker: Tracker


@dataclass(frozen=True, slots=True)
class TrackedHands:
    """The hands of a recording, and the robot's calibrations to them."""

    motion: HandMotion
    calibrations: Mapping[Side, Calibration]


@dataclass(frozen=True, slots=True)
class Converter:
    """What the settings name, loaded, and the steps that need it."""

    settings: JobSettings
    progress: Progress
    registry: Registry
    robot: Robot
    retargeter: Retargeter
    arm: Arm | None
    given: Mapping[Side, StoredCalibration]
    limits: Checks

    @classmethod
    def of(
        cls, settings: JobSettings, progress: Progress, registry: Registry | None = None
    ) -> Converter:
        """Load what the settings name. Raises InputError, MissingDependencyError."""
        robot = load_robot(settings.robot, models=settings.robot_model)
        hands = robot.hands_to_follow(settings.hands)
        if settings.robot_videos:  # before any work: pictures of the robot come last
            open_context(16, 16).free()
        if not settings.robot_unchecked:
            refuse_faulty(robot, SIDES if hands == "both" else (hands,))
        return cls(
            replace(settings, hands=hands).with_environment(progress),
            progress,
            registry or Registry(),
            robot,
            retargeter=retargeter_named(settings.method, settings.second_pass),
            arm=settings.arm.load(),
            given=read_calibrations(settings.calibration, robot) if settings.calibration else {},
            limits=read_limits(settings.limits) if settings.limits else CHECKS,
        )

    def shaping(self, fps: int | None) -> dict[str, Any]:
        """Return the settings that change an episode: see ``JobSettings.shaping``."""
        models = [file_identity(hand.user_model) for hand in self.robot.hands.values()]
        return self.settings.shaping(fps) | {"robot-model": models if any(models) else None}

    def open(self, path: Path) -> Input:
        """Open an input and choose its tracker. Raises as ``open_tracked``."""
        settings, tracking = self.settings, self.settings.tracker_settings
        recording, tracker = open_tracked(
            path, settings.tracker, tracking, settings.reading, self.registry, self.progress
        )
        return Input(path, recording, cached(tracker, tracking, settings.cache))

    def track(self, tracker: Tracker, recording: Recording) -> TrackedHands:
        """Return the hands of an input's recording, or of a part of it. Raises NoHandError."""
        motion = tracker.track(recording, self.progress)
        motion = only_hands(motion, self.settings.hands or "both")
        topic = recording.processing.get("topic")
        if topic is not None:  # the topic and frame of a bag's pictures
            topics = {"image_topic": topic, "camera_frame": recording.camera_frame}
            kept = {**motion.provenance.settings, **topics}
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
        given = {side: fitted.calibration for side, fitted in self.given.items()}
        return TrackedHands(motion, self.retargeter.calibrate([motion], self.robot, given))

    def retarget(self, episode: PlannedEpisode, tracked: TrackedHands) -> RetargetedEpisode:
        """Let the robot follow the hands at the times of an episode, and judge."""
        settings, view = self.settings, episode.view
        hands = hands_at(tracked.motion, view.timestamps_ns, view.fps)
        self.progress("retarget", 0, 1)
        trajectory = retarget_motion(
            hands,
            self.robot,
            self.retargeter,
            calibrations=tracked.calibrations,
            physics=Physics(latency=settings.latency, second_pass=settings.second_pass),
            limits=self.limits,
            unchecked=settings.robot_unchecked,
            source_ns=view.source_timestamps_ns,
            objects=view.objects,
            contacts=settings.contacts,
        )
        if self.arm is not None:
            from retarget.solve.arm_attachment import attach_arms

            trajectory = attach_arms(trajectory, self.arm, settings.arm, self.robot)
        self.progress("retarget", 1, 1)

        text = None
        if self.retargeter.calibrates:
            fitted = {
                side: self.given.get(side, StoredCalibration(one, view.name, view.sha256))
                for side, one in tracked.calibrations.items()
            }
            text = calibration_text(self.robot, fitted)
        return RetargetedEpisode(episode, hands, trajectory, text)

    def stored(self, folder: Path) -> TrackedHands | None:
        """Return the hands and calibrations kept in an episode's folder; None: incomplete."""
        try:
            motion = read_hand_motion(folder / HANDS)
            if not self.retargeter.calibrates:
                return TrackedHands(motion, {})
            return TrackedHands(motion, known_calibrations(folder / CALIBRATION, self.robot))
        except AcehandError:
            return None
