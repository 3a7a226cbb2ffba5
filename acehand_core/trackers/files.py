"""Trackers that read a file: a saved hand motion, or anybody's 21 joints.

A joints file is an npz with ``joints`` (T, 21, 3) or (T, 2, 21, 3) in metres and any of ``side``
("left" or "right", needed for one hand), ``fps`` or ``timestamps_ns``, ``confidence`` (T[, 2]) and
``frame`` ("camera" or "wrist", default "wrist": then there is no wrist pose).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.files.safe_files import content_sha256, safe_load_npz
from acehand_core.hand.skeleton import TIPS
from acehand_core.motion import HandMotion, Provenance, Recording
from acehand_core.recordings.hand_table import read_hand_motion
from acehand_core.trackers.base import Hands, Progress, TrackerSettings, no_progress
from acehand_core.types import SIDES

JOINT_FILE_KEYS = ("joints", "side", "fps", "timestamps_ns", "confidence", "frame")
FILE_SUFFIXES = (".parquet", ".npz")
DEFAULT_FPS = 30.0
#: Farthest fingertip from the wrist, metres: from a small child's fist to beyond the largest hand.
REACHES_M = (0.02, 0.5)
#: Above it, stamps in whole nanoseconds would no longer tell frames apart.
MAX_FPS = 1e6


class FileTracker:
    """Gives the hands that a file already holds."""

    name = "file"

    def __init__(self, path: Path, settings: TrackerSettings) -> None:
        """Read the file.

        Raises:
            SchemaError: it does not follow its format.
            UnsafeFileError: it holds pickled objects.
            InputError: it cannot be read, or a hand length is given.
        """
        refuse_flags(path, {"--hand-length": settings.hand_length_m is not None})
        self._path = path
        self._motion = read_motion_file(path, settings.hands)
        self.placed = self._motion.placed
        self.hand_model = self._motion.hand_model

    def recording(self) -> Recording:
        """Return the file's own time axis and camera as a recording without images."""
        motion = self._motion
        camera = motion.camera
        return Recording(
            source=str(self._path),
            sha256=content_sha256(self._path),
            timestamps_ns=motion.timestamps_ns,
            fps=motion.fps,
            width=camera.width if camera else 1280,
            height=camera.height if camera else 720,
            frames=None,
            camera=camera,
            T_world_camera=motion.T_world_camera,
        )

    def track(self, recording: Recording, progress: Progress = no_progress) -> HandMotion:
        """Return the file's motion; it must have one row per frame of a video.

        A recording without images is the file's own time axis, or a part of it.

        Raises:
            InputError: it does not belong to this recording.
        """
        if recording.frames is None:
            return self._at_times_of(recording)
        if len(self._motion) != len(recording):
            raise InputError(
                f"{self._path}: holds {len(self._motion)} frames but {recording.source} has "
                f"{len(recording)}; a tracker file needs one entry per frame."
            )
        camera = recording.camera or self._motion.camera
        if camera is not None:
            camera = camera.rescaled(recording.width, recording.height)
        return replace(
            self._motion,
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            camera=camera,
            T_world_camera=recording.T_world_camera,
        )

    def _at_times_of(self, recording: Recording) -> HandMotion:
        times = self._motion.timestamps_ns
        index = np.minimum(np.searchsorted(times, recording.timestamps_ns), len(times) - 1)
        if not np.array_equal(times[index], recording.timestamps_ns):
            raise InputError(f"{self._path}: has no hands at the times of {recording.source}.")
        motion = self._motion.at(index, recording.timestamps_ns, recording.fps)
        return replace(motion, T_world_camera=recording.T_world_camera)


def refuse_flags(path: Path, given: Mapping[str, bool]) -> None:
    """Raise InputError that names each given flag: they say how to read a video."""
    flags = ", ".join(flag for flag, is_given in given.items() if is_given)
    if flags:
        raise InputError(
            f"{path} holds hands already, so these do not apply to it: {flags}. "
            "Leave them out, or give the video."
        )


def only_hands(motion: HandMotion, hands: Hands) -> HandMotion:
    """Return the motion without the hand that is not wanted."""
    if hands == "both":
        return motion
    wanted = np.array([side == hands for side in SIDES])
    joints = wanted[:, None, None]
    return replace(
        motion,
        joints_camera=np.where(joints, motion.joints_camera, np.nan),
        joints_image=np.where(joints, motion.joints_image, np.nan),
        presence=motion.presence * wanted,
        visible=motion.visible * wanted,
        quality=motion.quality * wanted,
        observed=motion.observed & wanted,
        filled=motion.filled & wanted,
    )


def read_motion_file(path: Path, hands: Hands = "both", as_stored: bool = False) -> HandMotion:
    """Read the wanted hands of a HandMotion table (.parquet) or a joints file (.npz).

    ``hands`` also gives the side of a one-handed joints file that does not say it. Camera poses
    that some frames lack are not used, for one motion has one frame; ``as_stored`` keeps them.
    """
    if path.suffix == ".parquet":
        motion = only_hands(read_hand_motion(path), hands)
        return motion if as_stored else _posed_throughout(motion)
    if path.suffix == ".npz":
        return only_hands(read_joints_file(path, hands), hands)
    raise InputError(f"{path}: a file of hands is a HandMotion table (.parquet) or joints (.npz).")


def _posed_throughout(motion: HandMotion) -> HandMotion:
    poses = motion.T_world_camera
    missing = 0 if poses is None else int(np.isnan(poses).any((-1, -2)).sum())
    if not missing:
        return motion
    note = f"{missing} of {len(motion)} frames have no camera pose: the camera frame is used"
    provenance = replace(motion.provenance, notes=(*motion.provenance.notes, note))
    return replace(motion, T_world_camera=None, provenance=provenance)


def read_joints_file(path: Path, hands: Hands = "both") -> HandMotion:
    """Read joints of one or two hands; rotations are not known, so they are NaN.

    ``hands`` gives the side of one hand that the file does not say; errors as in ``FileTracker``.
    """
    data = _load(path)
    joints = _joints(path, data, hands)
    count = len(joints)
    times, fps = _times(path, data, count)
    finite = np.isfinite(joints).all(-1)  # (T, 2, 21)
    # Without the wrist or any tip there is nothing to follow.
    known = finite[..., 0] & finite[..., TIPS].any(-1)
    impossible = known & ~_of_possible_size(path, joints, known)
    known &= ~impossible
    notes = ["joints read from a file; rotations are not known"]
    if impossible.any():
        notes.append(f"{impossible.sum()} hands of no or impossible size count as absent")
    quality = finite.mean(-1) * _confidence(path, data, count)
    frame = _text(data, "frame", "wrist")
    if frame not in ("camera", "wrist"):
        raise SchemaError(f"{path}: frame is {frame!r}; {nearest(frame, ('camera', 'wrist'))}")
    return HandMotion(
        timestamps_ns=times,
        fps=fps,
        presence=known.astype(float),
        visible=known.astype(float),
        quality=np.where(known, quality, 0.0),
        observed=known,
        filled=np.zeros_like(known),
        global_orient=np.full((count, 2, 3, 3), np.nan),
        hand_pose=np.full((count, 2, 15, 3, 3), np.nan),
        betas=np.zeros((2, 10)),
        translation=np.full((count, 2, 3), np.nan),
        joints_camera=np.where((known[..., None] & finite)[..., None], joints, np.nan),
        joints_image=np.full((count, 2, 21, 2), np.nan),
        hand_model="none",
        placed=frame == "camera",
        provenance=Provenance(
            source=path.name,
            source_sha256=content_sha256(path),
            tracker="file",
            notes=tuple(notes),
        ),
    )


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        data = safe_load_npz(path)
    except EOFError as error:
        raise SchemaError(f"{path}: damaged: {error}.") from error
    for key in data:
        if key not in JOINT_FILE_KEYS:
            raise SchemaError(f"{path}: unknown entry {key!r}; {nearest(key, JOINT_FILE_KEYS)}")
    return data


def _joints(path: Path, data: dict[str, Any], hands: Hands) -> np.ndarray:
    """Return (T, 2, 21, 3) with NaN in the slot that is not there."""
    if "joints" not in data:
        raise SchemaError(f"{path}: entry 'joints' is missing; {nearest('joints', data)}")
    joints = data["joints"]
    if joints.dtype.kind != "f":
        raise SchemaError(f"{path}: joints are {joints.dtype}; floating point metres are needed.")
    if joints.shape[1:] not in ((21, 3), (2, 21, 3)):
        raise SchemaError(
            f"{path}: joints have shape {joints.shape}; (T, 21, 3) or (T, 2, 21, 3) is needed."
        )
    if len(joints) == 0:
        raise SchemaError(f"{path}: joints hold no frame.")
    joints = joints.astype(np.float64)
    if joints.ndim == 4:
        return joints
    side = _text(data, "side", hands)
    if side not in SIDES:
        if "side" in data:
            raise SchemaError(f"{path}: side is {side!r}; {nearest(side, SIDES)}")
        raise SchemaError(
            f"{path}: one hand needs an entry side = 'left' or 'right', or --hands left|right."
        )
    out = np.full((len(joints), 2, 21, 3), np.nan)
    out[:, SIDES.index(side)] = joints
    return out


def _of_possible_size(path: Path, joints: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Tell (T, 2) which hands have a size that hands have; some programs write zeros for none.

    Raises:
        SchemaError: most do not: the unit is another.
    """
    tips = joints[:, :, TIPS]
    with np.errstate(over="ignore", invalid="ignore"):
        spokes = np.linalg.norm(tips - joints[:, :, :1], axis=-1)
    spokes = np.where(np.isfinite(tips).all(-1), spokes, 0.0)
    reach = np.where(known, spokes.max(-1), 0.0)
    low, high = REACHES_M
    there = reach > 0
    if there.any() and not low <= np.median(reach[there]) <= high:
        raise SchemaError(
            f"{path}: the fingertips lie {np.median(reach[there]):g} from the wrist; valid: {low} "
            f"to {high}. Joints must be in metres."
        )
    return (low <= reach) & (reach <= high)


def _times(path: Path, data: dict[str, Any], count: int) -> tuple[np.ndarray, float]:
    """Return stamps (T,) in ns and the nominal rate."""
    fps = _fps(path, data["fps"]) if "fps" in data else None
    if "timestamps_ns" not in data:
        fps = fps or DEFAULT_FPS
        return np.round(np.arange(count) * 1e9 / fps).astype(np.int64), fps
    times = data["timestamps_ns"]
    if times.shape != (count,) or times.dtype.kind not in "iu":
        raise SchemaError(f"{path}: timestamps_ns must be {count} integers, one per frame.")
    times = times.astype(np.int64)
    if (np.diff(times) <= 0).any():
        frame = int(np.argmax(np.diff(times) <= 0)) + 1
        raise SchemaError(f"{path}: timestamps_ns must increase; frame {frame} does not.")
    if fps is None:
        fps = DEFAULT_FPS if count == 1 else float(1e9 / np.median(np.diff(times)))
    return times, fps


def _fps(path: Path, value: np.ndarray) -> float:
    if value.size != 1 or value.dtype.kind not in "iuf" or not 0 < value.item() <= MAX_FPS:
        raise SchemaError(f"{path}: fps is {value}; a number above 0 up to {MAX_FPS:g} is needed.")
    return float(value.item())


def _confidence(path: Path, data: dict[str, Any], count: int) -> np.ndarray:
    """Return (T, 1) or (T, 2) in 0..1."""
    confidence = data.get("confidence", np.ones(count))
    if confidence.shape not in ((count,), (count, 2)) or confidence.dtype.kind not in "biuf":
        raise SchemaError(
            f"{path}: confidence is {confidence.dtype} of shape {confidence.shape}; numbers of "
            f"shape ({count},) or ({count}, 2) are needed."
        )
    confidence = np.clip(np.nan_to_num(confidence.astype(np.float64)), 0, 1)
    return confidence if confidence.ndim == 2 else confidence[:, None]


def _text(data: dict[str, Any], name: str, default: str) -> str:
    """Return a text entry; one stored as a list of one text or as bytes counts too."""
    value = np.ravel(data.get(name, default))
    text = value[0] if len(value) == 1 else value
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
