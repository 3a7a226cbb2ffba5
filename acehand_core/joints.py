"""Anybody's 21 joints per hand as a HandMotion, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from acehand_core.errors import SchemaError, nearest
from acehand_core.hand.skeleton import TIPS
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.types import SIDES

#: What keypoints may come with.
ENTRIES = ("joints", "side", "fps", "timestamps_ns", "confidence", "frame")
DEFAULT_FPS = 30.0
#: Farthest fingertip from the wrist, metres: from a small child's fist to beyond the largest hand.
REACHES_M = (0.02, 0.5)
#: Above it, stamps in whole nanoseconds would no longer tell frames apart.
MAX_FPS = 1e6


def motion_from_joints(
    source: str,
    entries: Mapping[str, np.ndarray],
    hands: Literal["both", "left", "right"] = "both",
    sha256: str | None = None,
) -> HandMotion:
    """Return the motion of one or two hands; rotations are not known, so they are NaN.

    Args:
        source: what messages call it; its provenance keeps the name without folders.
        entries: of ``ENTRIES``, as ``HandMotion.from_joints`` describes them.
        hands: the side of one hand whose entries do not say it.

    Raises:
        SchemaError: an entry is missing, unknown, or not as described.
    """
    for key in entries:
        if key not in ENTRIES:
            raise SchemaError(f"{source}: unknown entry {key!r}; {nearest(key, ENTRIES)}")

    joints = _joints(source, entries, hands)
    count = len(joints)
    times, fps = _times(source, entries, count)
    finite = np.isfinite(joints).all(-1)  # (T, 2, 21)

    # Without the wrist or any tip there is nothing to follow.
    known = finite[..., 0] & finite[..., TIPS].any(-1)
    impossible = known & ~_of_possible_size(source, joints, known)
    known &= ~impossible
    notes = ["joints read from a file; rotations are not known"]
    if impossible.any():
        notes.append(f"{impossible.sum()} hands of no or impossible size count as absent")
    quality = finite.mean(-1) * _confidence(source, entries, count)
    frame = _text(entries, "frame", "wrist")
    if frame not in ("camera", "wrist"):
        raise SchemaError(f"{source}: frame is {frame!r}; {nearest(frame, ('camera', 'wrist'))}")

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
            source=source,
            source_sha256=sha256,
            tracker="file",
            notes=tuple(notes),
        ),
    )


def _joints(source: str, entries: Mapping[str, Any], hands: str) -> np.ndarray:
    """Return (T, 2, 21, 3) with NaN in the slot that is not there."""
    if "joints" not in entries:
        raise SchemaError(f"{source}: entry 'joints' is missing; {nearest('joints', entries)}")
    joints = entries["joints"]
    if joints.dtype.kind != "f":
        raise SchemaError(f"{source}: joints are {joints.dtype}; floating point metres are needed.")

    if joints.shape[1:] not in ((21, 3), (2, 21, 3)):
        raise SchemaError(
            f"{source}: joints have shape {joints.shape}; (T, 21, 3) or (T, 2, 21, 3) is needed."
        )
    if len(joints) == 0:
        raise SchemaError(f"{source}: joints hold no frame.")
    joints = joints.astype(np.float64)
    if joints.ndim == 4:
        return joints

    side = _text(entries, "side", hands)
    if side not in SIDES:
        if "side" in entries:
            raise SchemaError(f"{source}: side is {side!r}; {nearest(side, SIDES)}")
        raise SchemaError(
            f"{source}: one hand needs an entry side = 'left' or 'right', or --hands left|right."
        )

    both = np.full((len(joints), 2, 21, 3), np.nan)
    both[:, SIDES.index(side)] = joints
    return both


def _of_possible_size(source: str, joints: np.ndarray, known: np.ndarray) -> np.ndarray:
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
            f"{source}: the fingertips lie {np.median(reach[there]):g} from the wrist; valid: "
            f"{low} to {high}. Joints must be in metres."
        )
    return (low <= reach) & (reach <= high)


def _times(source: str, entries: Mapping[str, Any], count: int) -> tuple[np.ndarray, float]:
    """Return stamps (T,) in ns and the nominal rate."""
    fps: float | None = None
    if (rate := entries.get("fps")) is not None:
        if rate.size != 1 or rate.dtype.kind not in "iuf" or not 0 < rate.item() <= MAX_FPS:
            raise SchemaError(
                f"{source}: fps is {rate}; a number above 0 up to {MAX_FPS:g} is needed."
            )
        fps = float(rate.item())
    if "timestamps_ns" not in entries:
        fps = fps or DEFAULT_FPS
        return np.round(np.arange(count) * 1e9 / fps).astype(np.int64), fps
    times = entries["timestamps_ns"]
    if times.shape != (count,) or times.dtype.kind not in "iu":
        raise SchemaError(f"{source}: timestamps_ns must be {count} integers, one per frame.")
    times = times.astype(np.int64)
    if (np.diff(times) <= 0).any():
        frame = int(np.argmax(np.diff(times) <= 0)) + 1
        raise SchemaError(f"{source}: timestamps_ns must increase; frame {frame} does not.")
    if fps is None:
        fps = DEFAULT_FPS if count == 1 else float(1e9 / np.median(np.diff(times)))
    return times, fps


def _confidence(source: str, entries: Mapping[str, Any], count: int) -> np.ndarray:
    """Return (T, 1) or (T, 2) in 0..1."""
    confidence = entries.get("confidence", np.ones(count))
    if confidence.shape not in ((count,), (count, 2)) or confidence.dtype.kind not in "biuf":
        raise SchemaError(
            f"{source}: confidence is {confidence.dtype} of shape {confidence.shape}; numbers of "
            f"shape ({count},) or ({count}, 2) are needed."
        )
    confidence = np.clip(np.nan_to_num(confidence.astype(np.float64)), 0, 1)
    return confidence if confidence.ndim == 2 else confidence[:, None]


def _text(entries: Mapping[str, Any], name: str, default: str) -> str:
    """Return a text entry; one stored as a list of one text or as bytes counts too."""
    value = np.ravel(entries.get(name, default))
    text = value[0] if len(value) == 1 else value
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
