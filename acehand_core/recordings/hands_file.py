"""Files of hands: a saved HandMotion table, or anybody's 21 joints.

A joints file is an npz with ``joints`` (T, 21, 3) or (T, 2, 21, 3) in metres and any of ``side``
("left" or "right", needed for one hand), ``fps`` or ``timestamps_ns``, ``confidence`` (T[, 2]) and
``frame`` ("camera" or "wrist", default "wrist": then there is no wrist pose).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from acehand_core.errors import InputError, SchemaError
from acehand_core.files.safe_files import content_sha256, safe_load_npz
from acehand_core.joints import motion_from_joints
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.hand_table import read_hand_motion
from acehand_core.types import SIDES

Hands = Literal["both", "left", "right"]

SUFFIXES = (".parquet", ".npz")


def is_motion_file(path: Path) -> bool:
    """Tell whether a path names a file of hands rather than a recording."""
    return path.suffix in SUFFIXES


def motion_recording(path: Path, motion: HandMotion) -> Recording:
    """Return the time axis and camera of a file of hands as a recording without pictures."""
    camera = motion.camera
    return Recording(
        source=str(path),
        sha256=content_sha256(path),
        timestamps_ns=motion.timestamps_ns,
        fps=motion.fps,
        width=camera.width if camera else 1280,
        height=camera.height if camera else 720,
        frames=None,
        camera=camera,
        T_world_camera=motion.T_world_camera,
    )


def refuse_flags(path: Path, given: dict[str, bool]) -> None:
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

    ``hands`` gives the side of one hand that the file does not say.

    Raises:
        SchemaError: it does not follow its format. UnsafeFileError: it holds pickled objects.
        InputError: it cannot be read.
    """
    try:
        entries = safe_load_npz(path)
    except EOFError as error:
        raise SchemaError(f"{path}: damaged: {error}.") from error
    motion = motion_from_joints(str(path), entries, hands, content_sha256(path))
    provenance = replace(motion.provenance, source=path.name)
    return replace(motion, provenance=provenance)
