"""Features of a demonstration dataset, with names, and their columns for one episode.

Every feature is a flat vector: lerobot's edit tools fail on more axes. ``axes`` in its ``info`` has
the original ones: values (T, N) reshaped to (T, *lengths of the axes). Older datasets have those
axes in their shape, or lack ``ADDED_KEYS``; they are appended to as they are (``of_same_shape``).

Both hands are always present. An absent hand is not valid (``VALID_KEY``), keeps its last valid
pose (its first before it appears) and has confidence 0; one that never appears is the flat default
hand at the origin. Unknown rotations are the identity; nothing is NaN.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import FINGER_JOINT_NAMES, KEYPOINT_NAMES, WRIST
from acehand_core.lerobot.format import IMAGE_AXES, FeatureSpec, video_feature
from acehand_core.motion import HandModelName, HandMotion, Recording, RobotTrajectory, held_index
from acehand_core.recordings.selection import check_together
from acehand_core.recordings.video_encode import DEPTH_INFO, even_size
from acehand_core.types import SIDES, JointsCamera

IMAGE_KEY = "observation.images.ego"
DEPTH_KEY = "observation.images.depth"
CONFIDENCE_KEY = "observation.hand.confidence"
#: Without "observation.", which marks inputs of lerobot's policies: their normalization cannot
#: subtract booleans.
VALID_KEY = "hand.valid"
ARM_CLEARANCE_KEY = "observation.arm.clearance"
#: No policy input either: ``UNKNOWN_SIGMA`` is not a measurement.
SIGMA_KEY = "hand.joint_sigma"
UNKNOWN_SIGMA = -1.0
#: Features that older datasets may lack.
ADDED_KEYS = (VALID_KEY, ARM_CLEARANCE_KEY, SIGMA_KEY)
_AXES = ("x", "y", "z")
_ROTATION = ("r11", "r21", "r31", "r12", "r22", "r32")
_BETAS = tuple(f"beta{i}" for i in range(10))
_CAMERA = ("fx", "fy", "cx", "cy", "width", "height")


@dataclass(frozen=True, slots=True)
class Layout:
    """Properties shared by all episodes of a dataset.

    Attributes:
        frame: of base poses; "none": no poses.
        image_size: (width, height) of the video; None: no video.
        register_unit: of the robot's controller.
        arm_joints: of the arm that carries each hand, if any.
        sent_ahead_s: how much earlier than the motion registers are to be sent.
        other_videos: key and (width, height) of the video of each other camera, and of depth.
    """

    joint_names: tuple[str, ...]
    command_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    frame: Literal["camera", "world", "none"]
    hand_model: HandModelName
    image_size: tuple[int, int] | None
    register_unit: str = "vendor register"
    arm_joints: tuple[str, ...] = ()
    sent_ahead_s: float = 0.0
    other_videos: tuple[tuple[str, tuple[int, int]], ...] = ()


def kept(recording: Recording, views: bool, depth: bool) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Return ``Layout.other_videos`` of a recording whose views or depth are to be kept.

    Raises InputError: there are none, a name is taken or no part of a key, or no pictures are near
    most frames.
    """
    source, found = recording.source, dict[str, tuple[int, int]]()
    if views and not recording.views:
        raise InputError(
            f"{source}: --keep-views needs other cameras (--view, --stereo; --views of a bag); "
            "there is one only."
        )
    for view in recording.views if views else ():
        key, own = f"observation.images.{view.name}", view.recording
        taken = key in (IMAGE_KEY, DEPTH_KEY, *found)
        if taken or not re.fullmatch(r"[A-Za-z0-9_-]+", view.name):
            raise InputError(
                f"{source}: --keep-views: the view {view.name!r} cannot be stored as {key}; valid: "
                "letters, digits, '_' and '-', not ego, depth or another view's."
            )
        check_together(recording, own.timestamps_ns, f"the view {view.name!r}")
        found[key] = even_size(own.width, own.height)
    if depth and recording.depth is None:
        raise InputError(
            f"{source}: --keep-depth needs depth (--depth, a bag's depth topic); there is none."
        )
    if depth and recording.depth is not None:
        check_together(recording, recording.depth.timestamps_ns, "the depth")
        found[DEPTH_KEY] = recording.depth.camera.width, recording.depth.camera.height
    return tuple(found.items())


def features(layout: Layout) -> tuple[FeatureSpec, ...]:
    """Return the features of a dataset, in the order of docs/formats.md."""
    return tuple(_flat(spec) for spec in _by_axes(layout))


def of_same_shape(layout: Layout, stored: Mapping[str, Any]) -> tuple[FeatureSpec, ...]:
    """Return the features in the form of an existing dataset.

    Features of older datasets keep their axes, and missing ``ADDED_KEYS`` are left out. ``stored``
    is ``features`` of its info.json; the writer reports other differences.
    """

    def has_axes(key: str) -> bool:
        feature = stored.get(key)
        shape = feature.get("shape") if isinstance(feature, Mapping) else None
        return isinstance(shape, list) and len(shape) > 1

    return tuple(
        spec if has_axes(spec.key) else _flat(spec)
        for spec in _by_axes(layout)
        if spec.key not in ADDED_KEYS or spec.key in stored
    )


def _flat(spec: FeatureSpec) -> FeatureSpec:
    """Return a feature of several axes as a vector with a name for every entry."""
    if not isinstance(spec.names, Mapping):
        return spec
    names = tuple("_".join(labels) for labels in itertools.product(*spec.names.values()))
    axes = {axis: list(labels) for axis, labels in spec.names.items()}
    return FeatureSpec(spec.key, spec.dtype, (len(names),), names, {**spec.info, "axes": axes})


def _by_axes(layout: Layout) -> tuple[FeatureSpec, ...]:
    placed = layout.frame != "none"
    model = {"hand_model": layout.hand_model}
    base = tuple(f"base_{name}" for name in (*_AXES, *_ROTATION)) if placed else ()
    state, registers = _sided((*base, *layout.command_joints)), _sided(layout.command_names)
    register_info: dict[str, str | float] = {"unit": layout.register_unit}
    if layout.sent_ahead_s:  # not to be mixed with others in one dataset
        register_info["sent_ahead_s"] = layout.sent_ahead_s

    unit = {"unit": "base: m and rotation columns; joints: rad", "frame": layout.frame}
    next_state = {**unit, "meaning": "observation.state of the next frame"}
    joints = f"observation.hand.joints_{'camera' if placed else 'wrist'}"
    specs = [
        FeatureSpec("observation.state", "float32", (len(state),), state, unit),
        FeatureSpec("action", "float32", (len(state),), state, next_state),
        _vector("observation.joints.robot", _sided(layout.joint_names), "rad"),
        FeatureSpec("action.register", "float32", (len(registers),), registers, register_info),
        _of_hands(joints, {"unit": "m"}, joint=KEYPOINT_NAMES, axis=_AXES),
    ]
    if placed:
        specs += [
            _of_hands("observation.hand.global_orient", model, rotation=_ROTATION),
            _of_hands(
                "observation.hand.hand_pose", model, joint=FINGER_JOINT_NAMES, rotation=_ROTATION
            ),
            _of_hands("observation.hand.betas", model, beta=_BETAS),
            _of_hands("observation.hand.translation", {**model, "unit": "m"}, axis=_AXES),
        ]
    specs += [
        _vector(CONFIDENCE_KEY, SIDES, "0 to 1; 0 where the hand is absent"),
        _vector("observation.hand.visible", SIDES, "share of the hand inside the image"),
        _vector("observation.hand.filled", SIDES, "1 where gap filling wrote the hand"),
    ]
    if layout.arm_joints:
        specs += [
            _vector("observation.arm.joints", _sided(layout.arm_joints), "rad, of slides m"),
            _vector("observation.arm.reached", SIDES, "1 where the arm reaches the pose"),
            _vector(ARM_CLEARANCE_KEY, SIDES, "m, at most 1; negative where the arm collides"),
        ]
    if placed:
        specs.append(_vector("observation.camera", _CAMERA, "px"))
    followed = {"meaning": "the hand was seen or tracked, so that its robot hand follows it"}
    sigma = {
        "unit": "m",
        "meaning": "standard deviation of the joints across the line of sight, in each of two "
        f"directions, and along it; {UNKNOWN_SIGMA:.0f} where not known",
    }
    specs += [
        FeatureSpec(
            "observation.source_timestamp_ns", "int64", (1,), ("timestamp_ns",), {"unit": "ns"}
        ),
        FeatureSpec(VALID_KEY, "bool", (2,), SIDES, followed),
        _of_hands(SIGMA_KEY, sigma, joint=KEYPOINT_NAMES, direction=("across", "along")),
    ]
    if layout.image_size is not None:
        width, height = layout.image_size
        specs.append(video_feature(IMAGE_KEY, height, width))
    for key, (width, height) in layout.other_videos:
        spec = FeatureSpec(key, "video", (height, width, 1), IMAGE_AXES, DEPTH_INFO)
        specs.append(spec if key == DEPTH_KEY else video_feature(key, height, width))
    return tuple(specs)


def columns(
    motion: HandMotion, trajectory: RobotTrajectory, source_timestamps_ns: Int[np.ndarray, "T"]
) -> Mapping[str, np.ndarray]:
    """Return every feature but the video for one episode of T frames, each (T, N)."""
    count, poses = len(motion), trajectory.T_frame_base
    placed = poses is not None
    # Base position, base rotation and driven joints, left then right.
    parts = [trajectory.commands]
    if poses is not None:
        parts = [poses[..., :3, 3], rotations.to_6d(poses[..., :3, :3]), trajectory.commands]
    state = np.concatenate(parts, axis=2).reshape(count, -1)
    values = {
        "observation.state": state,
        "action": np.concatenate([state[1:], state[-1:]]),
        "observation.joints.robot": trajectory.joints.reshape(count, -1),
        "action.register": trajectory.registers.reshape(count, -1),
    }
    arm = next((arm for arm in trajectory.arms if arm is not None), None)
    if arm is not None:
        still = np.zeros_like(arm.joints)  # of a hand that never appears
        arms = [arm.joints if arm else still for arm in trajectory.arms]
        values["observation.arm.joints"] = np.concatenate(arms, axis=1)
        reached = [arm.reached if arm else np.zeros(count, bool) for arm in trajectory.arms]
        values["observation.arm.reached"] = np.stack(reached, axis=1)
        clearance = [arm.clearance_m if arm else np.ones(count) for arm in trajectory.arms]
        values[ARM_CLEARANCE_KEY] = np.stack(clearance, axis=1)
    if placed:
        row = [getattr(motion.camera, name, 0.0) for name in _CAMERA]
        values["observation.camera"] = np.broadcast_to(np.array(row), (count, 6))
    values = _flattened(values)
    values |= hand_columns(motion, placed, trajectory.confidence, trajectory.active)
    values["observation.source_timestamp_ns"] = source_timestamps_ns.astype(np.int64)[:, None]
    return values


def hand_columns(
    motion: HandMotion,
    placed: bool,
    confidence: Float[np.ndarray, "T 2"],
    valid: Bool[np.ndarray, "T 2"],
) -> dict[str, np.ndarray]:
    """Return the columns of the human hands for one episode of T frames, each (T, N)."""
    count, known = len(motion), motion.known
    values: dict[str, np.ndarray] = {
        "observation.hand.joints_camera" if placed else "observation.hand.joints_wrist": _joints(
            motion
        ),
        CONFIDENCE_KEY: confidence,
        "observation.hand.visible": motion.visible,
        "observation.hand.filled": motion.filled.astype(float),
    }
    if placed:
        orient, pose = motion.global_orient, motion.hand_pose
        values |= {
            "observation.hand.global_orient": rotations.to_6d(_held(orient, known, np.eye(3))),
            "observation.hand.hand_pose": rotations.to_6d(_held(pose, known, np.eye(3))),
            "observation.hand.betas": np.broadcast_to(motion.betas, (count, 2, 10)),
            "observation.hand.translation": _held(motion.translation, known),
        }
    sigma = np.full((count, 2, 21, 2), UNKNOWN_SIGMA)
    if motion.joint_sigma is not None:
        sigma = np.where(np.isfinite(motion.joint_sigma), motion.joint_sigma, UNKNOWN_SIGMA)
    return _flattened(values | {SIGMA_KEY: sigma}) | {VALID_KEY: valid}


def _flattened(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        key: np.ascontiguousarray(value, np.float32).reshape(len(value), -1)
        for key, value in values.items()
    }


def _sided(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{side}_{name}" for side in SIDES for name in names)


def _of_hands(key: str, info: Mapping[str, Any], **axes: tuple[str, ...]) -> FeatureSpec:
    """Return a feature of both hands with the labels of its other axes."""
    names = {"hand": SIDES, **axes}
    shape = tuple(len(labels) for labels in names.values())
    return FeatureSpec(key, "float32", shape, names, info)


def _vector(key: str, names: tuple[str, ...], unit: str) -> FeatureSpec:
    return FeatureSpec(key, "float32", (len(names),), names, {"unit": unit})


def _joints(motion: HandMotion) -> JointsCamera:
    """Return held joints of both hands; a hand that never appears is the flat default hand."""
    joints = _held(motion.joints_camera, motion.known)
    for slot, side in enumerate(SIDES):
        if not motion.known[:, slot].any():
            betas = motion.betas[slot] if motion.hand_model == "acehand" else np.zeros(10)
            rest = CapsuleHand().rest_keypoints(side, betas)
            joints[:, slot] = rest if motion.placed else rest - rest[WRIST]
    return joints


def _held(
    values: Float[np.ndarray, "T 2 ..."],
    known: Bool[np.ndarray, "T 2"],
    unknown: float | Float[np.ndarray, "3 3"] = 0.0,
) -> np.ndarray:
    """Return the last known value of each hand; ``unknown`` if there is none."""
    index = np.stack([held_index(known[:, slot]) for slot in range(2)], axis=1)
    held = values[index, np.arange(2)]
    held[:, ~known.any(0)] = np.nan
    return np.where(np.isfinite(held), held, unknown)
