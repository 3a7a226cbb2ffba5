"""Columns of a demonstration dataset: each is declared once, and all are written and read here.

Statistics (``stats``) are over all frames of every column, those of absent hands too.

Every column is a flat vector: lerobot's edit tools fail on more axes. ``axes`` in its ``info`` has
the original ones: values (T, N) reshaped to (T, *lengths of the axes). Older datasets have those
axes in their shape, or lack columns that were ``added``; they are appended to as they are.

Both hands are always present. An absent hand is not ``VALID``, keeps its last valid pose (its first
before it appears) and has confidence 0; one that never appears is the flat default hand at the
origin. Unknown rotations are the identity; nothing is NaN.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import FINGER_JOINT_NAMES, KEYPOINT_NAMES, WRIST
from acehand_core.lerobot.format import IMAGE_AXES, FeatureDtype, FeatureSpec, video_feature
from acehand_core.motion import HandModelName, HandMotion, Recording, RobotTrajectory, held_index
from acehand_core.recordings.selection import check_together
from acehand_core.recordings.video_encode import DEPTH_INFO, even_size
from acehand_core.types import SIDES, JointsCamera

UNKNOWN_SIGMA = -1.0
_AXES = ("x", "y", "z")
_ROTATION = ("r11", "r21", "r31", "r12", "r22", "r32")
_BASE = tuple(f"base_{name}" for name in (*_AXES, *_ROTATION))
_BETAS = tuple(f"beta{i}" for i in range(10))
_CAMERA = ("fx", "fy", "cx", "cy", "width", "height")
_HAND = {"hand": SIDES}

Frame = Literal["camera", "world", "none"]

_KEYPOINTS = {**_HAND, "joint": KEYPOINT_NAMES, "axis": _AXES}
_FINGERS = {**_HAND, "joint": FINGER_JOINT_NAMES, "rotation": _ROTATION}
_MODEL = {"hand_model": attrgetter("hand_model")}

_ARM_JOINTS = {**_HAND, "joint": "arm_joints"}

_TIME = {"time": ("timestamp_ns",)}

_FOLLOWED = {"meaning": "the hand was seen or tracked, so that its robot hand follows it"}

_DIRECTIONS = {**_HAND, "joint": KEYPOINT_NAMES, "direction": ("across", "along")}
_SIGMA = {
    "meaning": "standard deviation of the joints across the line of sight, in each of two "
    f"directions, and along it; {UNKNOWN_SIGMA:.0f} where not known"
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Properties shared by all episodes of a dataset.

    Attributes:
        frame: of base poses; "none": no poses.
        image_size: (width, height) of the video; None: no video.
        register_unit: of the robot's controller.
        arm_joints: of the arm that carries each hand, if any.
        sent_ahead_s: how much earlier than the motion registers are to be sent.
        other_videos: key and (width, height) of the video of each other camera, of depth, and of
            the robot.

    Raises InputError for videos of the robot without pictures or places.
    """

    joint_names: tuple[str, ...]
    command_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    frame: Frame
    hand_model: HandModelName
    image_size: tuple[int, int] | None
    register_unit: str = "vendor register"
    arm_joints: tuple[str, ...] = ()
    sent_ahead_s: float = 0.0
    other_videos: tuple[tuple[str, tuple[int, int]], ...] = ()

    def __post_init__(self) -> None:
        if self.robot_videos and (self.image_size is None or self.frame == "none"):
            raise InputError(
                "`robot_video`, `robot_alone` and `robot_mask` need pictures, and hands with a "
                "place in front of the camera."
            )

    @property
    def robot_videos(self) -> dict[str, tuple[int, int]]:
        """Those of ``other_videos`` that show the robot."""
        return {key: size for key, size in self.other_videos if key in ROBOT_KEYS}

    @property
    def state_names(self) -> tuple[str, ...]:
        """Entries of a hand's state."""
        return self.command_joints if self.frame == "none" else (*_BASE, *self.command_joints)


class Sources(NamedTuple):
    """What the columns of T frames are made of; ``times_ns`` are those of the source's pictures."""

    hands: HandMotion
    robot: RobotTrajectory | None = None
    times_ns: Int[np.ndarray, "T"] | None = None


class Form(NamedTuple):
    """How values become stored numbers, and those values again."""

    write: Callable[[np.ndarray], np.ndarray]
    read: Callable[[np.ndarray], np.ndarray]


_NUMBERS = Form(np.asarray, np.asarray)
_FLAGS = Form(np.asarray, lambda stored: stored > 0.5)
_ROTATIONS = Form(rotations.to_6d, rotations.from_6d)
_SIGMAS = Form(
    lambda values: np.where(np.isfinite(values), values, UNKNOWN_SIGMA),
    lambda stored: np.where(stored < 0, np.nan, stored),
)


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column.

    Attributes:
        name: in info.json and the data files.
        source: makes the values (T, *axes) of ``Sources``; a string: that attribute of them.
        axes: labels of each axis; a string: that entry of the layout.
        info: more than the unit, such as frame and meaning; functions take the layout.
        of: which datasets have it, as in ``features``.
        added: older datasets may lack it.
    """

    name: str
    source: str | Callable[[Sources], np.ndarray]
    unit: str = ""
    axes: Mapping[str, str | Sequence[str]] = field(default_factory=lambda: _HAND)
    info: Mapping[str, Any] = field(default_factory=dict)
    form: Form = _NUMBERS
    dtype: FeatureDtype = "float32"
    of: Literal["all", "placed", "unplaced", "arms"] = "all"
    added: bool = False

    def spec(self, layout: Layout, flat: bool = True) -> FeatureSpec:
        """Return the feature; not ``flat`` in the form of older datasets."""
        axes = {k: getattr(layout, v) if isinstance(v, str) else v for k, v in self.axes.items()}
        unit = {"unit": self.unit} if self.unit else {}
        info = unit | {k: v(layout) if callable(v) else v for k, v in self.info.items()}
        info = {name: entry for name, entry in info.items() if entry}

        # Axes with the robot's labels were never stored.
        if len(axes) > 1 and not any(isinstance(labels, str) for labels in self.axes.values()):
            if not flat:
                shape = tuple(len(labels) for labels in axes.values())
                return FeatureSpec(self.name, self.dtype, shape, axes, info)
            info["axes"] = {axis: list(labels) for axis, labels in axes.items()}
        names = tuple("_".join(labels) for labels in itertools.product(*axes.values()))
        return FeatureSpec(self.name, self.dtype, (len(names),), names, info)

    def make(self, sources: Sources) -> np.ndarray:
        """Return the values of an episode."""
        make = attrgetter(self.source) if isinstance(self.source, str) else self.source
        return make(sources)

    def write(self, values: np.ndarray) -> Shaped[np.ndarray, "T N"]:
        """Return values as stored numbers."""
        return np.ascontiguousarray(self.form.write(values), self.dtype).reshape(len(values), -1)

    def read(self, stored: np.ndarray) -> np.ndarray:
        """Return the values of stored numbers (T, ...), flat or with the axes of older datasets."""
        stored = stored.astype(float) if self.dtype == "float32" else stored
        lengths = (-1 if isinstance(labels, str) else len(labels) for labels in self.axes.values())
        return self.form.read(stored.reshape(len(stored), *lengths))


def write(specs: Sequence[FeatureSpec], sources: Sources) -> dict[str, np.ndarray]:
    """Return the columns of an episode, (T, *shape) each, for every feature but the videos."""
    columns = {column.name: column for column in COLUMNS}
    return {
        spec.key: column.write(column.make(sources)).reshape(-1, *spec.shape)
        for spec in specs
        if (column := columns.get(spec.key)) is not None
    }


def read(stored: Mapping[str, np.ndarray], columns: Sequence[Column]) -> dict[Column, np.ndarray]:
    """Return the values of those of ``columns`` that are stored.

    An export with other names and forms is a table of columns on top of this: each has one of ours,
    what it selects of the values, and the ``Form`` that writes them (rotations as quaternions).
    """
    values = {c: c.read(stored[c.name]) for c in columns if c.name in stored}
    if VALID in columns and VALID not in values and CONFIDENCE in values:  # of older versions
        values[VALID] = (values[CONFIDENCE] > 0) | values.get(FILLED, np.False_)
    return values


def features(layout: Layout, stored: Mapping[str, Any] | None = None) -> tuple[FeatureSpec, ...]:
    """Return the features of a dataset, in the order of docs/formats.md.

    With ``stored``, ``features`` of an existing dataset's info.json, in its form: those of older
    datasets keep their axes or are left out. The writer reports other differences.
    """
    placed = layout.frame != "none"
    applies = {"all": True, "placed": placed, "unplaced": not placed, "arms": layout.arm_joints}
    shapes = {k: f.get("shape", 0) for k, f in (stored or {}).items() if isinstance(f, Mapping)}
    specs = [
        column.spec(layout, flat=np.size(shapes.get(column.name, 0)) < 2)
        for column in COLUMNS
        if applies[column.of] and (stored is None or not column.added or column.name in shapes)
    ]

    main = () if layout.image_size is None else ((IMAGE_KEY, layout.image_size),)
    for key, (width, height) in (*main, *layout.other_videos):
        depth = FeatureSpec(key, "video", (height, width, 1), IMAGE_AXES, DEPTH_INFO)
        specs.append(depth if key == DEPTH_KEY else video_feature(key, height, width))
    return tuple(specs)


def frame_of(stored: Mapping[str, Any]) -> Frame:
    """Return ``Layout.frame`` of the features of info.json."""
    frame: Frame = stored.get(STATE.name, {}).get("info", {}).get("frame", "camera")
    return frame


def joints_of(feature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the left hand's names of a feature of info.json, without the side."""
    names = feature["names"]
    if isinstance(names, Mapping):  # of other programs
        names = next(iter(names.values()))
    return tuple(name.removeprefix(f"{SIDES[0]}_") for name in names[: len(names) // 2])


def view_key(name: str) -> str:
    """Return the key of a camera's video."""
    return f"observation.images.{name}"


IMAGE_KEY, DEPTH_KEY = view_key("ego"), view_key("depth")
#: Keys of the videos that show the robot: instead of the person, alone, and what that changes.
ROBOT_KEYS = view_key("robot"), view_key("robot_alone"), view_key("robot_mask")


def kept(recording: Recording, views: bool, depth: bool) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Return ``Layout.other_videos`` of a recording whose views or depth are to be kept.

    Raises InputError: there are none, a name is taken or no part of a key, or no pictures are near
    most frames.
    """
    source, sizes = recording.source, dict[str, tuple[int, int]]()
    if views and not recording.views:
        raise InputError(
            f"{source}: `keep_views` needs other cameras (`view`, `stereo`; `views` of a bag); "
            "there is one only."
        )
    for view in recording.views if views else ():
        key, own = view_key(view.name), view.recording
        taken = key in (IMAGE_KEY, DEPTH_KEY, *ROBOT_KEYS, *sizes)
        if taken or not re.fullmatch(r"[A-Za-z0-9_-]+", view.name):
            raise InputError(
                f"{source}: `keep_views`: the view {view.name!r} cannot be stored as {key}; valid: "
                "letters, digits, '_' and '-', not ego, depth, robot or another view's."
            )
        check_together(recording, own.timestamps_ns, f"the view {view.name!r}")
        sizes[key] = even_size(own.width, own.height)
    if not depth:
        return tuple(sizes.items())

    if recording.depth is None:
        raise InputError(
            f"{source}: `keep_depth` needs depth (`depth`, a bag's depth topic); there is none."
        )
    check_together(recording, recording.depth.timestamps_ns, "the depth")
    sizes[DEPTH_KEY] = recording.depth.camera.width, recording.depth.camera.height
    return tuple(sizes.items())


def _states(sources: Sources) -> Float[np.ndarray, "T 2 N"]:
    """Return base position, base rotation and driven joints; the joints alone without placement."""
    assert sources.robot is not None
    poses, parts = sources.robot.T_frame_base, [sources.robot.commands]
    if poses is not None:
        parts = [poses[..., :3, 3], rotations.to_6d(poses[..., :3, :3]), *parts]
    return np.concatenate(parts, axis=2)


def split_states(
    states: Float[np.ndarray, "T 2 N"], frame: Frame
) -> tuple[Float[np.ndarray, "T 2 4 4"] | None, Float[np.ndarray, "T 2 C"]]:
    """Return the base poses (None without placement) and driven joints of ``STATE``."""
    if frame == "none":
        return None, states
    place, turn, joints = np.split(states, [3, len(_BASE)], axis=2)
    return frames.rigid(rotations.from_6d(turn), place), joints


def _next_states(sources: Sources) -> Float[np.ndarray, "T 2 N"]:
    states = _states(sources)
    return np.concatenate([states[1:], states[-1:]])


def _of_arms(name: str, absent: float = 0.0) -> Callable[[Sources], np.ndarray]:
    """Return a function: an attribute of both arms, ``absent`` for a hand that never appears."""

    def value(sources: Sources) -> np.ndarray:
        assert sources.robot is not None
        values = [None if arm is None else getattr(arm, name) for arm in sources.robot.arms]
        known = next(value for value in values if value is not None)
        return np.stack([np.full_like(known, absent) if v is None else v for v in values], axis=1)

    return value


def _camera(sources: Sources) -> Float[np.ndarray, "T 6"]:
    row = [getattr(sources.hands.camera, name, 0.0) for name in _CAMERA]
    return np.broadcast_to(np.array(row), (len(sources.hands), len(row)))


def _betas(sources: Sources) -> Float[np.ndarray, "T 2 10"]:
    return np.broadcast_to(sources.hands.betas, (len(sources.hands), 2, len(_BETAS)))


def _sigmas(sources: Sources) -> Float[np.ndarray, "T 2 21 2"]:
    sigma = sources.hands.joint_sigma
    return np.full((len(sources.hands), 2, 21, 2), np.nan) if sigma is None else sigma


def _joints(sources: Sources) -> JointsCamera:
    """Return held joints of both hands; a hand that never appears is the flat default hand."""
    motion, joints = sources.hands, _held("joints_camera")(sources)
    for slot, side in enumerate(SIDES):
        if not motion.known[:, slot].any():
            betas = motion.betas[slot] if motion.hand_model == "acehand" else np.zeros(10)
            rest = CapsuleHand().rest_keypoints(side, betas)
            joints[:, slot] = rest if motion.placed else rest - rest[WRIST]
    return joints


def _held(
    name: str, unknown: float | Float[np.ndarray, "3 3"] = 0.0
) -> Callable[[Sources], np.ndarray]:
    """Return a function: the last known value of each hand, ``unknown`` if there is none."""

    def value(sources: Sources) -> np.ndarray:
        known = sources.hands.known
        index = np.stack([held_index(known[:, slot]) for slot in range(2)], axis=1)
        last = getattr(sources.hands, name)[index, np.arange(2)]
        last[:, ~known.any(0)] = np.nan
        return np.where(np.isfinite(last), last, unknown)

    return value


STATE = Column(
    "observation.state",
    _states,
    "base: m and rotation columns; joints: rad",
    {**_HAND, "entry": "state_names"},
    {"frame": attrgetter("frame")},
)
_NEXT = {**STATE.info, "meaning": f"{STATE.name} of the next frame"}
ACTION = replace(STATE, name="action", source=_next_states, info=_NEXT)
ROBOT_JOINTS = Column(
    "observation.joints.robot", "robot.joints", "rad", {**_HAND, "joint": "joint_names"}
)
REGISTERS = Column(
    "action.register",
    "robot.registers",
    axes={**_HAND, "command": "command_names"},
    info={"unit": attrgetter("register_unit"), "sent_ahead_s": attrgetter("sent_ahead_s")},
)
JOINTS = Column("observation.hand.joints_camera", _joints, "m", _KEYPOINTS, of="placed")
WRIST_JOINTS = replace(JOINTS, name="observation.hand.joints_wrist", of="unplaced")
GLOBAL_ORIENT = Column(
    "observation.hand.global_orient",
    _held("global_orient", np.eye(3)),
    axes={**_HAND, "rotation": _ROTATION},
    info=_MODEL,
    form=_ROTATIONS,
    of="placed",
)
_POSE = _held("hand_pose", np.eye(3))
HAND_POSE = replace(GLOBAL_ORIENT, name="observation.hand.hand_pose", source=_POSE, axes=_FINGERS)
BETAS = Column(
    "observation.hand.betas", _betas, axes={**_HAND, "beta": _BETAS}, info=_MODEL, of="placed"
)
TRANSLATION = Column(
    "observation.hand.translation",
    _held("translation"),
    axes={**_HAND, "axis": _AXES},
    info={**_MODEL, "unit": "m"},
    of="placed",
)
CONFIDENCE = Column(
    "observation.hand.confidence", "robot.confidence", "0 to 1; 0 where the hand is absent"
)
VISIBLE = Column("observation.hand.visible", "hands.visible", "share of the hand inside the image")
FILLED = Column(
    "observation.hand.filled", "hands.filled", "1 where gap filling wrote the hand", form=_FLAGS
)
ARM_JOINTS = Column(
    "observation.arm.joints", _of_arms("joints"), "rad, of slides m", _ARM_JOINTS, of="arms"
)
ARM_REACHED = Column(
    "observation.arm.reached",
    _of_arms("reached"),
    "1 where the arm reaches the pose",
    form=_FLAGS,
    of="arms",
)
ARM_CLEARANCE = Column(
    "observation.arm.clearance",
    _of_arms("clearance_m", 1.0),
    "m, at most 1; negative where the arm collides",
    of="arms",
    added=True,
)
CAMERA = Column("observation.camera", _camera, "px", {"entry": _CAMERA}, of="placed")
SOURCE_TIMES = Column("observation.source_timestamp_ns", "times_ns", "ns", _TIME, dtype="int64")
#: Without "observation.", which marks inputs of lerobot's policies: their normalization cannot
#: subtract booleans.
VALID = Column("hand.valid", "robot.active", info=_FOLLOWED, dtype="bool", added=True)
#: No policy input either: ``UNKNOWN_SIGMA`` is not a measurement.
JOINT_SIGMA = Column(
    "hand.joint_sigma", _sigmas, "m", _DIRECTIONS, _SIGMA, form=_SIGMAS, added=True
)

#: In the order of info.json and the data files.
COLUMNS = (
    STATE, ACTION, ROBOT_JOINTS, REGISTERS, JOINTS, WRIST_JOINTS, GLOBAL_ORIENT, HAND_POSE, BETAS,
    TRANSLATION, CONFIDENCE, VISIBLE, FILLED, ARM_JOINTS, ARM_REACHED, ARM_CLEARANCE, CAMERA,
    SOURCE_TIMES, VALID, JOINT_SIGMA,
)  # fmt: skip
#: Those that the table of hands next to an episode tells, too.
HAND_COLUMNS = (
    JOINTS, WRIST_JOINTS, VISIBLE, FILLED, GLOBAL_ORIENT, HAND_POSE, BETAS, TRANSLATION, JOINT_SIGMA
)  # fmt: skip
