"""Keypoints of one or two hands in any layout as a checked HandMotion.

Missing knuckles are placed by the rigid palm of the recording, one that is never given by the mean
hand's. The wrist is interpolated over short gaps only, because knuckles are nearly collinear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import KNUCKLES, PALM, TIPS, WRIST
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.recordings.keypoints import checks, mapping
from acehand_core.types import SIDES, Side

#: Entries of a file of keypoints.
ENTRIES = ("joints", "order", "unit", "side", "fps", "timestamps_ns", "confidence", "frame",
           "missing", "wrist_pose")  # fmt: skip
DEFAULT_FPS = 30.0
#: Farthest fingertip from the wrist, metres: a small child's fist to beyond the largest hand.
REACHES_M = (0.02, 0.5)
#: At higher rates, stamps in whole nanoseconds are not distinct.
MAX_FPS = 1e6
#: Prefix of notes on doubtful keypoints.
DOUBT = "doubtful: "
_MINIMUM = "the least is the wrist, two knuckles (MCP) of index to pinky, and the tip of one finger"
#: Longest interpolation of the wrist relative to the knuckles.
WRIST_GAP_S = 0.5
#: Largest rms deviation of a palm from a rigid one.
RIGID_M = 0.010
#: Fewest palm points, with the wrist, that place the others.
LEAST_POINTS = 3
#: Frames used for the rigid palm.
_SAMPLE = 200

PalmPoints = Float[np.ndarray, "T 5 3"]


def motion_from_joints(
    joints: np.ndarray,
    *,
    fps: float | int | None = None,
    timestamps_ns: np.ndarray | None = None,
    side: Side | None = None,
    confidence: np.ndarray | None = None,
    frame: Literal["camera", "wrist", "world"] | None = None,
    order: str | Sequence[str] | None = None,
    unit: Literal["m", "cm", "mm", "in"] = "m",
    missing: float | int | str | Sequence[float | int | str] | None = None,
    wrist_pose: np.ndarray | None = None,
    source: str = "joints",
) -> HandMotion:
    """Return the motion of keypoints in any layout; rotations are NaN.

    Args:
        joints: (T, J, 3) of one hand or (T, 2, J, 3), left first, in ``unit``; or poses, 4 x 4
            instead of 3. NaN: unknown.
        fps: frames per second; default 30, or from the stamps.
        timestamps_ns: (T,) increasing integers; default: steady at ``fps``.
        side: the side of a single hand.
        confidence: (T,) or (T, 2) in 0..1, or one per joint; 0 is an unknown joint.
        frame: OpenCV camera frame, world (z up), or relative to the wrist (no wrist pose). Default:
            wrist, or world with ``wrist_pose``.
        order: a preset or the names of the J joints (docs/my_keypoints.md); default: the 21 of
            docs/conventions.md.
        unit: of lengths.
        missing: numbers that mark an unknown joint, or "zeros" for (0, 0, 0).
        wrist_pose: (T, 4, 4) or (T, 2, 4, 4), metres, for joints relative to the wrist.
        source: name for messages and files.

    Raises:
        SchemaError: another shape, times that do not increase, a missing side, or joints that
            look like another order, unit or hand.
    """
    given = {"joints": joints, "fps": fps, "timestamps_ns": timestamps_ns, "side": side,
             "confidence": confidence, "frame": frame, "order": order, "unit": unit,
             "missing": missing, "wrist_pose": wrist_pose}  # fmt: skip
    entries = {name: np.asarray(value) for name, value in given.items() if value is not None}
    return motion_from_entries(source, entries)


def motion_from_entries(
    source: str,
    entries: Mapping[str, np.ndarray],
    hands: Literal["both", "left", "right"] = "both",
    sha256: str | None = None,
    min_confidence: float = 0.0,
    notes: Sequence[str] = (),
) -> HandMotion:
    """Return the motion of one or two hands; rotations are NaN.

    A missing joint stays NaN, except in the palm (``completed``).

    Args:
        source: name for messages and provenance.
        entries: of ``ENTRIES``, see ``motion_from_joints``.
        hands: the side of a single hand without one.
        min_confidence: joints with a confidence up to this are missing.
        notes: more notes for the provenance.

    Raises:
        SchemaError: an entry is missing, unknown or invalid, or the joints look like another order,
            unit or hand.
    """
    for key in entries:
        if key not in ENTRIES:
            raise SchemaError(f"{source}: unknown entry {key!r}; {nearest(key, ENTRIES)}")

    name = _order_name(entries)
    stated = name if isinstance(name, str) else "that is listed"
    with mapping.naming(source):
        order = mapping.order_named(name)
        raw = _points(entries, len(order), stated)
        if raw.ndim == 3:
            single, raw = raw, np.full((len(raw), 2, *raw.shape[1:]), np.nan)
            raw[:, _slot(entries, hands)] = single
        times, fps = _times(entries, len(raw))
        confidence, of_joints = _confidence(entries, raw)
        trusted = np.where((of_joints > min_confidence)[..., None], raw, np.nan)
        joints = _checked(entries, trusted, order, stated)
        of_size = np.where(_of_possible_size(joints)[..., None, None], joints, np.nan)
        checks.check_sides(of_size)
        frame = _text(entries, "frame", "world" if "wrist_pose" in entries else "wrist")
        if frame not in get_args(mapping.JointFrame):
            raise SchemaError(f"frame is {frame!r}; {nearest(frame, get_args(mapping.JointFrame))}")
        measured = np.isfinite(joints).all(-1)  # (T, 2, 21)
        joints = _placed(entries, joints)

    count, odd = len(joints), checks.doubts(of_size, times)
    estimated = np.zeros_like(measured)
    for slot, side in enumerate(SIDES):
        joints[:, slot], estimated[:, slot] = completed(joints[:, slot], side, fps)

    # A hand needs its palm and a fingertip.
    finite = np.isfinite(joints).all(-1)
    known = finite[..., PALM].all(-1) & finite[..., TIPS].any(-1)
    impossible = known & ~_of_possible_size(joints)
    known &= ~impossible
    # Joints that the file never has do not lower the quality.
    given = np.maximum(measured.any(0).sum(-1), 1)
    quality = measured.sum(-1) / given * confidence

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
        placed=frame != "wrist",
        T_world_camera=np.tile(np.eye(4), (count, 1, 1)) if frame == "world" else None,
        provenance=Provenance(
            source=source,
            source_sha256=sha256,
            tracker="file",
            notes=(
                "joints read from a file; rotations are unknown",
                *_repairs(impossible, estimated & known[..., None]),
                *notes,
                *(DOUBT + sentence for sentence in odd),
            ),
        ),
    )


def _repairs(impossible: np.ndarray, estimated: np.ndarray) -> Iterator[str]:
    """Yield notes on absent hands, (T, 2), and estimated joints of the palm, (T, 2, 21)."""
    if impossible.any():
        yield f"{impossible.sum()} hands of no or impossible size count as absent"
    for point, name in ((slice(0, 1), "wrist"), (slice(1, None), "a knuckle")):
        counts = estimated[..., PALM[point]].any(-1).sum(0)
        for side, count in zip(SIDES, counts, strict=True):
            if count:
                yield f"{name} of the {side} hand was estimated from the palm in {count} frames"


def _checked(
    entries: Mapping[str, Any], raw: np.ndarray, order: tuple[int | None, ...], stated: str
) -> Float[np.ndarray, "T 2 21 3"]:
    """Return joints in metres and in our order, checked."""
    unit = _text(entries, "unit", "m")
    if unit not in mapping.UNITS_M:
        raise SchemaError(f"unit is {unit!r}; {nearest(unit, mapping.UNITS_M)}")
    metres = raw * mapping.UNITS_M[unit]
    metres[_marked_missing(entries, metres, mapping.UNITS_M[unit])] = np.nan
    joints = checks.in_order(metres, order)
    _check_minimum(joints)
    checks.check_unit(joints, unit)
    checks.check_order(metres, joints, stated)
    _check_size(joints)
    return joints


def _order_name(entries: Mapping[str, Any]) -> str | tuple[str, ...]:
    stated = np.ravel(entries.get("order", "openpose"))
    names = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in stated]
    return names[0] if len(names) == 1 else tuple(names)


def _points(entries: Mapping[str, Any], expected: int, stated: str) -> np.ndarray:
    """Return the positions, (T, J, 3) or (T, 2, J, 3), as the file has them."""
    if "joints" not in entries:
        raise SchemaError(f"entry 'joints' is missing; {nearest('joints', entries)}")
    joints = entries["joints"]
    if joints.dtype.kind != "f":
        raise SchemaError(f"joints are {joints.dtype}; valid: floating point.")
    shape = joints.shape
    if shape[-2:] == (4, 4) and joints.ndim >= 4:
        joints = joints[..., :3, 3]
    if joints.shape[1:] not in ((expected, 3), (2, expected, 3)):
        fitting = mapping.presets_of(joints.shape[-2]) if joints.ndim in (3, 4) else ()
        hint = f" Orders with {joints.shape[-2]} joints: {', '.join(fitting)}." if fitting else ""
        raise SchemaError(
            f"joints have shape {shape}; valid in the order {stated}: (T, {expected}, 3) or "
            f"(T, 2, {expected}, 3).{hint}"
        )
    if len(joints) == 0:
        raise SchemaError("joints hold no frame.")
    return joints.astype(np.float64)


def _slot(entries: Mapping[str, Any], hands: str) -> int:
    side = _text(entries, "side", hands)
    if side not in SIDES:
        if "side" in entries:
            raise SchemaError(f"side is {side!r}; {nearest(side, SIDES)}")
        raise SchemaError("one hand needs its side: left or right (`hands=left|right`).")
    return SIDES.index(side)


def _marked_missing(
    entries: Mapping[str, Any], raw: Float[np.ndarray, "T 2 J 3"], metres: float
) -> np.ndarray:
    """Return (T, 2, J) which joints the file marks as unknown.

    The wrist of joints relative to it is (0, 0, 0): "zeros" marks it only with other joints.
    """
    missing = np.zeros(raw.shape[:3], bool)
    for mark in np.ravel(entries.get("missing", ())).tolist():
        if mark == "zeros":
            zeros = (raw == 0).all(-1)
            missing |= zeros & (zeros.sum(-1, keepdims=True) != 1)
        else:
            missing |= np.isclose(raw, float(mark) * metres).any(-1)
    return missing


def _placed(
    entries: Mapping[str, Any], joints: Float[np.ndarray, "T 2 21 3"]
) -> Float[np.ndarray, "T 2 21 3"]:
    """Return joints placed by the wrist's pose, if there is one."""
    if "wrist_pose" not in entries:
        return joints.copy()
    poses = np.asarray(entries["wrist_pose"], float)
    if poses.ndim == 4 and poses.shape[1] == 1:
        poses = poses[:, 0]
    if poses.shape not in ((len(joints), 4, 4), (len(joints), 2, 4, 4)):
        count = len(joints)
        valid = f"({count}, 4, 4) or ({count}, 2, 4, 4)"
        raise SchemaError(f"wrist_pose has shape {poses.shape}; valid: {valid}.")
    poses = poses if poses.ndim == 4 else poses[:, None]
    return frames.apply(np.broadcast_to(poses, (len(joints), 2, 4, 4)), joints)


def _check_minimum(joints: Float[np.ndarray, "T 2 21 3"]) -> None:
    """Refuse too few joints for a hand; a hand without any is absent."""
    given = np.isfinite(joints).all(-1).any(0)  # (2, 21)
    for side, has in zip(SIDES, given, strict=True):
        parts = {
            "the wrist": has[WRIST],
            "knuckles": has[list(KNUCKLES[1:])].sum() >= 2,
            "fingertips": has[list(TIPS)].any(),
        }
        lacking = " and ".join(part for part, present in parts.items() if not present)
        if has.any() and lacking:
            raise SchemaError(f"of the {side} hand {lacking} are never given; {_MINIMUM}.")


def _reach(joints: Float[np.ndarray, "T 2 21 3"]) -> Float[np.ndarray, "T 2"]:
    """Return the distance of the farthest known fingertip from the wrist, or 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        spokes = np.linalg.norm(joints[:, :, TIPS] - joints[:, :, :1], axis=-1)
    return np.nan_to_num(spokes, nan=0.0, posinf=np.inf).max(-1)


def _of_possible_size(joints: Float[np.ndarray, "T 2 21 3"]) -> np.ndarray:
    """Return (T, 2) which hands have a plausible size; zeros may mark absent ones."""
    reach = _reach(joints)
    return (reach >= REACHES_M[0]) & (reach <= REACHES_M[1])


def _check_size(joints: Float[np.ndarray, "T 2 21 3"]) -> None:
    reach = _reach(joints)
    present, (low, high) = reach > 0, REACHES_M
    if present.any() and not low <= np.median(reach[present]) <= high:
        raise SchemaError(
            f"the fingertips lie {np.median(reach[present]):g} from the wrist; valid: "
            f"{low} to {high}. Joints must be in metres, or declare their unit."
        )


def _times(entries: Mapping[str, Any], count: int) -> tuple[np.ndarray, float]:
    """Return stamps (T,) in ns and the nominal rate."""
    fps: float | None = None
    if (rate := entries.get("fps")) is not None:
        if rate.size != 1 or rate.dtype.kind not in "iuf" or not 0 < rate.item() <= MAX_FPS:
            raise SchemaError(f"fps is {rate}; valid: above 0 up to {MAX_FPS:g}.")
        fps = float(rate.item())
    if "timestamps_ns" not in entries:
        fps = fps or DEFAULT_FPS
        return np.round(np.arange(count) * 1e9 / fps).astype(np.int64), fps
    times = entries["timestamps_ns"]
    if times.shape != (count,) or times.dtype.kind not in "iu":
        raise SchemaError(f"timestamps_ns must be {count} integers, one per frame.")
    times = times.astype(np.int64)
    if (np.diff(times) <= 0).any():
        frame = int(np.argmax(np.diff(times) <= 0)) + 1
        raise SchemaError(f"timestamps_ns must increase; frame {frame} does not.")
    if fps is None:
        fps = DEFAULT_FPS if count == 1 else float(1e9 / np.median(np.diff(times)))
    return times, fps


def _confidence(
    entries: Mapping[str, Any], raw: Float[np.ndarray, "T 2 J 3"]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence of hands, (T, 1) or (T, 2), and of joints, (T, 2, J), in 0..1.

    By default a hand's is the mean of its known joints, and a joint's is infinite.
    """
    count, joints = len(raw), raw.shape[2]
    confidence = entries.get("confidence", np.ones(count))
    shapes = ((count,), (count, 2), (count, joints), (count, 2, joints))
    if confidence.shape not in shapes or confidence.dtype.kind not in "biuf":
        valid = ", ".join(map(str, shapes))
        raise SchemaError(
            f"confidence is {confidence.dtype} of shape {confidence.shape}; valid: shapes {valid}."
        )
    confidence = np.clip(np.nan_to_num(confidence.astype(np.float64)), 0, 1)
    if confidence.shape in ((count,), (count, 2)):
        return confidence.reshape(count, -1), np.full(raw.shape[:3], np.inf)
    of_joints = np.broadcast_to(confidence.reshape(count, -1, joints), raw.shape[:3])
    known = np.isfinite(raw).all(-1) & (of_joints > 0)
    return np.sum(of_joints * known, -1) / np.maximum(known.sum(-1), 1), of_joints


def _text(entries: Mapping[str, Any], name: str, default: str) -> str:
    """Return a text entry, which may be stored as bytes or in a list."""
    value = np.ravel(entries.get(name, default))
    text = value[0] if len(value) == 1 else value
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def completed(
    joints: Float[np.ndarray, "T 21 3"], side: Side, fps: float
) -> tuple[Float[np.ndarray, "T 21 3"], Bool[np.ndarray, "T 21"]]:
    """Return the joints (m, any frame) with estimated wrist and knuckles, and which these are."""
    points = joints[:, PALM]
    known = np.all(np.isfinite(points), axis=-1)
    template = None if known.all() else _template(points, known, side)
    if template is None:
        return joints, np.zeros(joints.shape[:2], bool)
    points = _wrist_bridged(points, known, fps)
    known = np.all(np.isfinite(points), axis=-1)

    # Place the frames with the same missing points at once.
    able = known[:, 0] & (known.sum(1) >= LEAST_POINTS) & ~known.all(1)
    for pattern in np.unique(known[able], axis=0):
        rows = np.flatnonzero(able & (known == pattern).all(1))
        seen = points[rows][:, pattern]
        moves = _moves(np.broadcast_to(template[pattern], seen.shape), seen)
        placed = frames.apply(moves, np.broadcast_to(template, points[rows].shape))
        points[np.ix_(rows, ~pattern)] = placed[:, ~pattern]

    complete = joints.copy()
    complete[:, PALM] = points
    estimated = np.isfinite(complete).all(-1) & ~np.isfinite(joints).all(-1)
    return complete, estimated


def _wrist_bridged(points: PalmPoints, known: Bool[np.ndarray, "T 5"], fps: float) -> PalmPoints:
    """Interpolate short gaps of the wrist relative to the known knuckles."""
    points, given = points.copy(), np.asarray(known.any(0))[1:]
    knuckles = known[:, 1:][:, given].all(1)
    at = np.flatnonzero(known[:, 0] & knuckles)
    gap = np.flatnonzero(~known[:, 0] & knuckles)
    after = np.searchsorted(at, gap)
    inside = (after > 0) & (after < len(at))
    gap, after = gap[inside], after[inside]
    short = at[after] - at[after - 1] - 1 <= WRIST_GAP_S * fps
    gap = gap[short]
    if len(gap) == 0:
        return points

    # The knuckles' line is known; the palm's rotation about it is interpolated.
    line = points[:, 1:][:, given]
    middle, along = line.mean(1), rotations.unit(line[:, 0] - line[:, -1])
    offset = points[:, 0] - middle
    part = np.sum(offset * along, axis=-1)
    across = offset - part[:, None] * along
    length = np.linalg.norm(across, axis=-1)

    axis = along[gap]
    toward = np.stack([np.interp(gap, at, column) for column in across[at].T], axis=1)
    toward = rotations.unit(toward - np.sum(toward * axis, axis=-1, keepdims=True) * axis)
    part, length = np.interp(gap, at, part[at]), np.interp(gap, at, length[at])
    points[gap, 0] = middle[gap] + part[:, None] * axis + length[:, None] * toward
    return points


def _template(
    points: PalmPoints, known: Bool[np.ndarray, "T 5"], side: Side
) -> Float[np.ndarray, "5 3"] | None:
    """Return the rigid palm of a recording, or None."""
    mean = CapsuleHand().rest_keypoints(side, np.zeros(10))[list(PALM)]
    ever = np.asarray(known.any(0))
    whole = np.flatnonzero(known[:, ever].all(1))
    if not ever[0] or ever.sum() < LEAST_POINTS or len(whole) == 0:
        return None

    chosen = whole[np.unique(np.linspace(0, len(whole) - 1, _SAMPLE).round().astype(int))]
    shapes = points[np.ix_(chosen, ever)]
    rigid = shapes[0]
    for _ in range(2):  # the first frame may be bad
        moved = frames.apply(_moves(shapes, rigid), shapes)
        rigid = np.median(moved, axis=0)
    rms = np.sqrt(np.mean(np.sum((moved - rigid) ** 2, axis=-1), axis=1))
    if np.median(rms) > RIGID_M:
        return None

    scale, turn, shift = frames.similarity_fit(mean[ever], rigid)
    template = scale * mean @ turn.T + shift
    template[ever] = rigid
    return template


def _moves(
    source: Float[np.ndarray, "T K 3"], target: Float[np.ndarray, "*T K 3"]
) -> Float[np.ndarray, "T 4 4"]:
    """Return the rigid transforms of each frame's points to the target's (Kabsch)."""
    from_, to = source.mean(-2, keepdims=True), target.mean(-2, keepdims=True)
    turn = rotations.project_to_rotation(np.swapaxes(target - to, -1, -2) @ (source - from_))
    return frames.rigid(turn, to[..., 0, :] - (turn @ from_[..., 0, :, None])[..., 0])
