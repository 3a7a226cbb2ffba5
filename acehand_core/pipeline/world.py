"""Hands in the world, by camera poses that are found in a recording's own pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

from acehand_core.camera_motion import (
    CameraPath,
    Scale,
    from_gyroscope,
    gravity_aligned,
    gravity_in_camera,
    metric_scale,
    recorded_path,
    recorded_rotations,
    scale_of_two_points,
    scaled,
)
from acehand_core.errors import InputError
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import CameraMotion, HandMotion, Imu, Recording
from acehand_core.pipeline.settings import WorldSettings
from acehand_core.types import CameraMotionMode, Progress

_INSTEAD = "--camera-motion rotation leaves the hands before the camera; --camera-poses takes poses"


def in_world(
    motion: HandMotion,
    recording: Recording,
    settings: WorldSettings,
    work_dir: Path | None,
    progress: Progress,
) -> HandMotion:
    """Return hands with the camera poses that the pictures tell (metres, z up), or their own.

    The first camera whose pose is known is at the origin. Hands that were filled in stay as they
    were filled.

    Raises:
        InputError: the poses, their scale or what is up are not to be trusted; says why.
    """
    camera = motion.camera
    if motion.T_world_camera is not None:
        return motion
    if not motion.placed or camera is None:
        raise InputError(
            f"{recording.source}: --camera-motion full: the hands have no place before the camera, "
            "so that they have none in the world."
        )
    if recording.frames is None:
        raise InputError(
            f"{recording.source}: --camera-motion full: it has no pictures to tell the camera's "
            "poses by; --camera-poses takes them."
        )

    landmarks = motion.joints_image
    rotation = recorded_rotations(recording, camera, landmarks, None, work_dir, progress)
    imu, notes = None, list(motion.provenance.notes)
    if recording.imu is not None:
        measured = from_gyroscope(recording.imu, recording.timestamps_ns, rotation)
        rotation, imu = measured.motion, measured.imu
        notes += [measured.note] if measured.note not in notes else []
    path = recorded_path(recording, camera, landmarks, rotation, progress)
    if path.reason:
        raise _refused(recording, path.reason)

    scale = _scale(path, motion, recording, settings)
    if scale.reason:
        raise _refused(
            recording, f"the scale is not known: {scale.reason} (--scene-scale tells it)"
        )
    up, told_by = _up(path, recording, rotation, imu, settings)
    try:
        path = gravity_aligned(scaled(path, scale), up)
    except InputError as error:
        raise _refused(recording, f"{error} (--camera-up tells it)") from error

    measure = "two points" if settings.scene_scale else "hands"
    notes.append(
        f"camera poses from pictures: {int(path.known.sum())} of {len(motion)} frames; metres by "
        f"{measure}, give or take {100 * scale.spread:.0f} %; up by {told_by}"
    )
    return replace(
        motion, T_world_camera=path.T_world_camera, pose_confidence=path.confidence,
        provenance=replace(motion.provenance, notes=tuple(notes)),
    )  # fmt: skip


def camera_turns(
    motion: HandMotion,
    recording: Recording,
    mode: CameraMotionMode,
    work_dir: Path | None,
    progress: Progress,
) -> CameraMotion | None:
    """Return how the camera turned in all frames with a hand; None where nobody knows or wants it.

    Args:
        recording: of the pictures that ``motion.joints_image`` and ``motion.camera`` belong to.
    """
    if motion.T_world_camera is not None:
        return CameraMotion.from_poses(motion.T_world_camera)
    if mode == "off" or recording.frames is None or motion.camera is None:
        return None
    wanted = np.asarray(motion.known.any(axis=1))
    turns = recorded_rotations(
        recording, motion.camera, motion.joints_image, wanted, work_dir, progress
    )
    if recording.imu is None:
        return turns
    return from_gyroscope(recording.imu, recording.timestamps_ns, turns).motion


def _scale(
    path: CameraPath, motion: HandMotion, recording: Recording, settings: WorldSettings
) -> Scale:
    if settings.scene_scale is not None:
        frame, u1, v1, u2, v2, metres = settings.scene_scale
        pixels = np.array([[u1, v1], [u2, v2]])
        try:
            return scale_of_two_points(path, int(frame), pixels, metres)
        except InputError as error:
            raise InputError(f"{recording.source}: --scene-scale: {error}") from error
    seen = motion.observed[..., None]
    wrists = np.where(seen, motion.joints_camera[:, :, WRIST], np.nan)
    return metric_scale(path, wrists, motion.joints_image)


def _up(
    path: CameraPath,
    recording: Recording,
    rotation: CameraMotion,
    imu: Imu | None,
    settings: WorldSettings,
) -> tuple[Float[np.ndarray, "3"] | None, str]:
    """Return up in the path's world, None where only a table may tell it, and by what it is known.

    Raises:
        InputError: what the user says is of another frame, and cannot be turned into that world.
    """
    # The path's world is the camera of the first frame that it knows.
    first = int(np.argmax(path.known))
    turn = rotation.between(first, 0)
    if settings.camera_up is not None:
        if turn is None:
            raise InputError(
                f"{recording.source}: --camera-up is of frame 0, but the first camera pose is that "
                f"of frame {first}, and how the camera turned between them is not known."
            )
        return turn @ np.array(settings.camera_up), "the user"
    found = None if imu is None else gravity_in_camera(imu, recording.timestamps_ns, rotation)
    if found is None or turn is None:
        return None, "the largest plane seen from above"
    return turn @ found.up, "an accelerometer"


def _refused(recording: Recording, reason: str) -> InputError:
    return InputError(f"{recording.source}: --camera-motion full is refused: {reason}. {_INSTEAD}.")
