"""In which order programs write the joints of a hand, and what they call them.

Sources:
    openpose: keypoints of OpenPose's hand model; the same in MediaPipe (``HandLandmark``),
        FreiHAND, DexYCB and H2O.
    mano: joints of the MANO model (Romero et al. 2017), then the fingertips as smplx appends them
        (https://github.com/vchoutas/smplx), also in HO-3D; mano16 without, as the model has none.
    minimal_hand: the same joints with the tips in MANO's order of fingers, as in
        https://github.com/CalciferZh/Minimal-IK.
    avp25, avp27: ``HandSkeleton.JointName`` of ARKit for visionOS in the order of avp_stream
        (https://github.com/Improbable-AI/VisionProTeleop): 25, or 27 with the forearm.
    openxr26: ``XrHandJointEXT`` of XR_EXT_hand_tracking, https://registry.khronos.org/OpenXR;
        webxr25: https://immersive-web.github.io/webxr-hand-input, the same without the palm.
    manus: nodes of the skeleton that MANUS Core exports as csv, https://docs.manus-meta.com.
    aria: landmarks of Project Aria's hand tracking (MPS) and of UmeTrack,
        https://facebookresearch.github.io/projectaria_tools.
    interhand: joints of InterHand2.6M, https://mks0601.github.io/InterHand2.6M.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from acehand_core.errors import SchemaError, nearest
from acehand_core.hand.skeleton import (
    FINGER_JOINT_NAMES,
    FINGERS,
    KEYPOINT_NAMES,
    TIPS,
    finger_keypoints,
)
from acehand_core.types import Side

#: The keypoint (0..20) that each joint of a file is; None: one that is not used.
Order = tuple[int | None, ...]

_TIP_NAMES = tuple(KEYPOINT_NAMES[tip] for tip in TIPS)


def _order(*names: str) -> Order:
    return tuple(KEYPOINT_NAMES.index(name) if name in KEYPOINT_NAMES else None for name in names)


_MANO16 = _order("wrist", *FINGER_JOINT_NAMES)
#: Wrist, thumb, then each finger with the base of its metacarpal.
_WITH_METACARPALS: Order = (
    *(0, *finger_keypoints("thumb")),
    *(joint for finger in FINGERS[1:] for joint in (None, *finger_keypoints(finger))),
)

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

#: Words of a joint's name, by what they stand for.
_SIDES: Mapping[str, Side] = {"left": "left", "l": "left", "right": "right", "r": "right"}
_FINGER_WORDS = {
    **{finger: finger for finger in FINGERS},
    "mid": "middle", "little": "pinky", "pinkie": "pinky",
}  # fmt: skip
#: Filling words, of ARKit, WebXR, OpenXR, and of tables.
_FILLERS = {"finger", "phalanx", "joint", "xr", "hand", "ext", "bone", "hands", "pos", "position"}
#: Joints that are not among the 21.
_UNUSED = {"palm", "forearm", "center", "centre", "arm", "elbow"}
#: Place in a finger, base first; None: below its knuckle.
_FINGER_JOINTS: Mapping[str, int | None] = {
    "cmc": None, "metacarpal": None, "mcp": 0, "knuckle": 0, "proximal": 0, "1": 0,
    "pip": 1, "intermediate": 1, "intermediate base": 1, "2": 1,
    "dip": 2, "distal": 2, "intermediate tip": 2, "3": 2, "tip": 3, "fingertip": 3, "4": 3, "": 3,
}  # fmt: skip
_THUMB_JOINTS: Mapping[str, int | None] = {
    "cmc": 0, "metacarpal": 0, "knuckle": 0, "1": 0,
    "mcp": 1, "proximal": 1, "intermediate base": 1, "2": 1,
    "ip": 2, "dip": 2, "distal": 2, "intermediate tip": 2, "3": 2,
    "tip": 3, "fingertip": 3, "4": 3, "": 3,
}  # fmt: skip


def keypoint_named(name: str) -> tuple[Side | None, int | None]:
    """Return the side, if it is said, and the keypoint that a joint's name means.

    Taken are the names of this project, MediaPipe, MANO, ARKit, OpenXR, WebXR, MANUS and
    InterHand2.6M, however they are written: ``right_index_mcp``, ``rightIndexFingerKnuckle``,
    ``Thumb_CMC``, ``XR_HAND_JOINT_WRIST_EXT``, ``Index_1``. The keypoint of a joint that is not
    among the 21, as the palm, is None.

    Raises:
        KeyError: it is the name of no joint.
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


def order_named(where: str, order: str | Sequence[str]) -> Order:
    """Return the keypoint of each joint for a preset's name, or for a list of joint names.

    A list may leave joints out, and has "-" where one is not to be used.

    Raises:
        SchemaError: there is no such preset or joint, or a joint stands twice.
    """
    if isinstance(order, str):
        if order not in PRESETS:
            raise SchemaError(f"{where}: order is {order!r}; {nearest(order, PRESETS)}")
        return PRESETS[order]

    joints: list[int | None] = []
    for name in order:
        try:
            joints.append(None if name == "-" else keypoint_named(name)[1])
        except KeyError:
            raise SchemaError(
                f"{where}: order has {name!r}, which is no joint; {nearest(name, KEYPOINT_NAMES)} "
                'Write "-" for a joint that is not used.'
            ) from None
    used = [joint for joint in joints if joint is not None]
    if twice := {KEYPOINT_NAMES[joint] for joint in used if used.count(joint) > 1}:
        raise SchemaError(f"{where}: order has {', '.join(sorted(twice))} more than once.")
    return tuple(joints)


def presets_of(count: int) -> tuple[str, ...]:
    """Return the presets with that many joints."""
    return tuple(name for name, order in PRESETS.items() if len(order) == count)
