"""The layout of a file of keypoints, ``keypoints``: a YAML mapping or a preset."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.hand.skeleton import (
    FINGER_JOINT_NAMES,
    FINGERS,
    KEYPOINT_NAMES,
    TIPS,
    finger_keypoints,
)
from acehand_core.types import SIDES, Side
from acehand_core.user_files import NOT_IN_FILES, Valid, read_yaml, structured

# Joint orders of other programs. Sources:
#     openpose: keypoints of OpenPose's hand model; the same in MediaPipe (``HandLandmark``),
#         FreiHAND, DexYCB and H2O.
#     mano: joints of the MANO model (Romero et al. 2017), then the fingertips as smplx appends them
#         (https://github.com/vchoutas/smplx), also in HO-3D; mano16 without, as the model has none.
#     minimal_hand: the same joints with the tips in MANO's order of fingers, as in
#         https://github.com/CalciferZh/Minimal-IK.
#     avp25, avp27: ``HandSkeleton.JointName`` of ARKit for visionOS in the order of avp_stream
#         (https://github.com/Improbable-AI/VisionProTeleop): 25, or 27 with the forearm.
#     openxr26: ``XrHandJointEXT`` of XR_EXT_hand_tracking, https://registry.khronos.org/OpenXR;
#         webxr25: https://immersive-web.github.io/webxr-hand-input, the same without the palm.
#     manus: nodes of the skeleton that MANUS Core exports as csv, https://docs.manus-meta.com.
#     aria: landmarks of Project Aria's hand tracking (MPS) and of UmeTrack,
#         https://facebookresearch.github.io/projectaria_tools.
#     interhand: joints of InterHand2.6M, https://mks0601.github.io/InterHand2.6M.

#: The keypoint (0..20) of each joint of a file; None: unused.
Order = tuple[int | None, ...]

_TIP_NAMES = tuple(KEYPOINT_NAMES[tip] for tip in TIPS)

#: Wrist, thumb, then each finger with the base of its metacarpal.
_WITH_METACARPALS: Order = (
    *(0, *finger_keypoints("thumb")),
    *(joint for finger in FINGERS[1:] for joint in (None, *finger_keypoints(finger))),
)

#: Words in joint names and their meaning.
_SIDES: Mapping[str, Side] = {"left": "left", "l": "left", "right": "right", "r": "right"}
_FINGER_WORDS = {
    **{finger: finger for finger in FINGERS},
    "mid": "middle",
    "little": "pinky",
    "pinkie": "pinky",
}
#: Ignored words of ARKit, WebXR, OpenXR and tables.
_FILLERS = {"finger", "phalanx", "joint", "xr", "hand", "ext", "bone", "hands", "pos", "position"}
#: Joints that are not among the 21.
_UNUSED = {"palm", "forearm", "center", "centre", "arm", "elbow"}

UNITS_M: Mapping[str, float] = {"m": 1.0, "cm": 0.01, "mm": 0.001, "in": 0.0254}
TIME_UNITS_NS: Mapping[str, int] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
JointFrame = Literal["camera", "wrist", "world"]

#: Entries of an npz or json file by side.
_Entries = Mapping[Side, str]
_Order = Annotated[tuple[str, ...], Valid("a list of joints", bool)]
_Marker = Annotated[
    Any,
    Valid("a number, or 'zeros'", lambda mark: mark == "zeros" or type(mark) in (int, float)),
]
_Pattern = Annotated[
    str,
    Valid(
        "a pattern with {joint} and {axis}, for example '{side}_{joint}_{axis}'",
        lambda pattern: "{joint}" in pattern and "{axis}" in pattern,
    ),
]
_AVP_ENTRIES = {
    "joints": {side: f"{side}_fingers" for side in SIDES},
    "wrist": {side: f"{side}_wrist" for side in SIDES},
}
#: Settings of a preset besides the order.
_PRESET_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "avp25": _AVP_ENTRIES,
    "avp27": {**_AVP_ENTRIES, "joints": {side: f"{side}_arm" for side in SIDES}},
    "manus": {"columns": "{joint}_{axis}", "time": "Elapsed_Time_In_Milliseconds",
              "time_unit": "ms"},
    "aria": {"columns": "t{axis}_{side}_landmark_{joint}_device", "missing": ("zeros",),
             "time": "tracking_timestamp_us", "time_unit": "us"},
}  # fmt: skip


def _order(*names: str) -> Order:
    return tuple(KEYPOINT_NAMES.index(name) if name in KEYPOINT_NAMES else None for name in names)


_MANO16 = _order("wrist", *FINGER_JOINT_NAMES)

PRESETS: Mapping[str, Order] = {
    "openpose": _order(*KEYPOINT_NAMES),
    "mediapipe": _order(*KEYPOINT_NAMES),
    "mano": _MANO16 + _order(*_TIP_NAMES),
    "mano16": _MANO16,
    "minimal_hand": _MANO16
    + _order("index_tip", "middle_tip", "pinky_tip", "ring_tip", "thumb_tip"),
    "avp25": _WITH_METACARPALS,
    "avp27": (*_WITH_METACARPALS, None, None),
    "openxr26": (None, *_WITH_METACARPALS),
    "webxr25": _WITH_METACARPALS,
    "manus": _WITH_METACARPALS,
    "aria": (
        *_order(*_TIP_NAMES, "wrist", "thumb_mcp", "thumb_ip"),
        *(joint for finger in FINGERS[1:] for joint in finger_keypoints(finger)[:3]),
        None,
    ),
    "interhand": (*(j for f in FINGERS for j in reversed(finger_keypoints(f))), 0),
}


def _places(words: Mapping[int | None, str]) -> Mapping[str, int | None]:
    return {word: place for place, listed in words.items() for word in listed.split(",")}


#: Place in a finger, base first; None: below its knuckle.
_FINGER_JOINTS = _places(
    {
        None: "cmc,metacarpal",
        0: "mcp,knuckle,proximal,1",
        1: "pip,intermediate,intermediate base,2",
        2: "dip,distal,intermediate tip,3",
        3: "tip,fingertip,4,",
    }
)
_THUMB_JOINTS = _places(
    {
        0: "cmc,metacarpal,knuckle,1",
        1: "mcp,proximal,intermediate base,2",
        2: "ip,dip,distal,intermediate tip,3",
        3: "tip,fingertip,4,",
    }
)


def keypoint_named(name: str) -> tuple[Side | None, int | None]:
    """Return the side, if given, and the keypoint of a joint's name.

    Names of this project, MediaPipe, MANO, ARKit, OpenXR, WebXR, MANUS and InterHand2.6M are valid
    in any spelling: ``right_index_mcp``, ``rightIndexFingerKnuckle``, ``Thumb_CMC``,
    ``XR_HAND_JOINT_WRIST_EXT``, ``Index_1``. The keypoint of a joint that is not among the 21, such
    as the palm, is None.

    Raises KeyError: not the name of a joint.
    """
    spaced = re.sub(r"([a-z])([A-Z0-9])|([0-9])([A-Za-z])", r"\1\3 \2\4", name)
    words = re.split(r"[^a-z0-9]+", spaced.lower())
    sides = [_SIDES[word] for word in words if word in _SIDES]
    side = sides[0] if sides else None
    bare = [word for word in words if word and word not in _SIDES]
    content = [word for word in bare if word not in _FILLERS]
    if len(sides) > 1:
        raise KeyError(name)

    if content == ["wrist"] or (bare == ["hand"]):
        return side, 0
    if content and set(content) <= {*_UNUSED, "wrist"}:
        return side, None
    if not content or content[0] not in _FINGER_WORDS:
        raise KeyError(name)

    finger = _FINGER_WORDS[content[0]]
    joints = _THUMB_JOINTS if finger == "thumb" else _FINGER_JOINTS
    place = joints[" ".join(content[1:])]
    return side, None if place is None else finger_keypoints(finger)[place]


def order_named(order: str | Sequence[str], entry: str = "order") -> Order:
    """Return the keypoint of each joint for a preset, or for a list of joint names.

    "-" in a list is an unused joint; ``entry`` is for messages. Raises SchemaError: unknown preset
    or joint, or a joint twice.
    """
    if isinstance(order, str):
        if order not in PRESETS:
            raise SchemaError(f"{entry} is {order!r}; {nearest(order, PRESETS)}")
        return PRESETS[order]

    joints: list[int | None] = []
    for name in order:
        try:
            joints.append(None if name == "-" else keypoint_named(name)[1])
        except KeyError:
            raise SchemaError(
                f"{entry} has {name!r}, which is no joint; {nearest(name, KEYPOINT_NAMES)} "
                'Write "-" for a joint that is not used.'
            ) from None
    used = [joint for joint in joints if joint is not None]
    if twice := {KEYPOINT_NAMES[joint] for joint in used if used.count(joint) > 1}:
        raise SchemaError(f"{entry} has {', '.join(sorted(twice))} more than once.")
    return tuple(joints)


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Name the source in a SchemaError; raise one for values of another type, too."""
    try:
        yield
    except SchemaError as error:
        if str(error).startswith(source):
            raise
        raise SchemaError(f"{source}: {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"{source}: an entry is not as documented: {error}.") from error


def presets_of(count: int) -> tuple[str, ...]:
    """Return the presets with that many joints."""
    return tuple(name for name, order in PRESETS.items() if len(order) == count)


@dataclass(frozen=True, slots=True)
class KeypointMap:
    """The layout of a file of keypoints. None: from the file, or else the default.

    Attributes:
        order: a preset, or the joints' names in the file's order; default openpose.
        names: keypoint by the file's name of a joint; "-": unused.
        unit: of lengths; default metres.
        side: the side of a single hand.
        rate: frames per second; default 30, or from the times.
        frame: camera (OpenCV), wrist (default; no wrist pose), or world (z up).
        missing: numbers that mark an unknown joint, or "zeros" for (0, 0, 0), besides NaN and empty
            cells.
        min_confidence: joints with a confidence up to this are unknown.
        joints, wrist: entries of npz and json with the joints, and with the wrist's 4 x 4 pose in
            the world for joints relative to it; one per side, or one for both.
        columns: pattern of a table's columns with {joint}, {axis} and maybe {side}.
        time, time_unit: the times of tables and json.
        where: name for messages.
    """

    order: str | _Order | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    unit: Literal["m", "cm", "mm", "in"] | None = None
    side: Side | None = None
    rate: float | None = None
    frame: JointFrame | None = None
    missing: tuple[_Marker, ...] = ()
    min_confidence: float = 0.0
    joints: _Entries | str | None = None
    wrist: _Entries | str | None = None
    columns: _Pattern | None = None
    time: str | None = None
    time_unit: Literal["ns", "us", "ms", "s"] | None = None
    where: str = field(default="", compare=False, metadata=NOT_IN_FILES)

    def __post_init__(self) -> None:
        if self.order is not None:
            order_named(self.order)
        order_named(tuple(self.names.values()), "names")

    def joint(self, name: str) -> tuple[Side | None, int | None]:
        """Return the side, if given, and the keypoint of a name in the file. Raises KeyError."""
        keypoint = self.names.get(name, name)
        return (None, None) if keypoint == "-" and name in self.names else keypoint_named(keypoint)

    def added_to(self, source: str, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a file and of the mapping. Raises SchemaError: they differ."""
        given = {name: getattr(self, name) for name in ("order", "unit", "side", "frame")}
        given |= {"fps": self.rate, "missing": self.missing or None}
        merged = dict(entries)
        for name, value in given.items():
            if value is None:
                continue
            stated = np.asarray(value)
            if name in entries and not np.array_equal(np.ravel(entries[name]), np.ravel(stated)):
                raise SchemaError(
                    f"{source}: {name} is {np.ravel(entries[name]).tolist()} in the file and "
                    f"{np.ravel(stated).tolist()} in {self.where}; leave one out."
                )
            merged.setdefault(name, stated)
        return merged


def load_map(name: str) -> KeypointMap:
    """Return the mapping of a preset, or of a YAML file, which may extend one as ``order``.

    Raises InputError: no such file or preset; SchemaError: invalid content.
    """
    where = f"`keypoints={name}`"
    values: dict[str, Any] = {"order": name}
    if name not in PRESETS:
        if not Path(name).is_file():
            raise InputError(f"{where}: not a file or preset; {nearest(name, PRESETS)}")
        where, values = name, read_yaml(Path(name))

    order = values.get("order")
    preset = _PRESET_SETTINGS.get(order, {}) if isinstance(order, str) else {}
    if isinstance(values.get("missing", []), int | float | str):
        values["missing"] = [values["missing"]]
    return replace(structured(KeypointMap, {**preset, **values}, where), where=where)
