"""Hands that pinch and hands that move fast, made from joint angles: known motions to score on."""

from __future__ import annotations

import json

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from acehand_core.hand import articulation
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import FINGERS, finger_keypoints
from acehand_core.types import Side

Gesture = Float[np.ndarray, "T 21 3"]

#: Flexion in degrees at MCP, PIP and DIP of all fingers: around something wide to narrow.
_GRIPS = {
    "wide grip": (25.0, 30.0, 15.0),
    "grip": (45.0, 50.0, 25.0),
    "narrow grip": (65.0, 75.0, 40.0),
}
_FIST, _ALONE = (80.0, 100.0, 60.0), (70.0, 85.0, 45.0)
#: The thumb in the plane of the palm, and over the middle phalanges of index and middle finger.
_THUMB_BESIDE = {"cmc_spread": -20.0, "cmc_flex": -15.0, "mcp_flex": 0.0, "ip_flex": 0.0}
_THUMB_OVER = {
    "cmc_spread": -1.0,
    "cmc_flex": 15.0,
    "cmc_twist": 7.0,
    "mcp_flex": 53.0,
    "ip_flex": 41.0,
}


def pinching_hand(
    side: Side, finger: str, fps: float, touches: int = 3, seconds_each: float = 2.0
) -> Gesture:
    """Return a hand whose thumb and one finger touch again and again, wrist at rest, metres.

    Each time the tips close to 0 mm, stay together for a quarter of the time, and open.
    """
    closed = _touching_angles(side, finger)
    opened = articulation.comfortable()
    phase = np.arange(round(touches * seconds_each * fps)) / (seconds_each * fps) % 1
    # Up in 3/8 of the time, closed for 2/8, down in 3/8.
    share = np.clip(np.minimum(phase, 1 - phase) / 0.375, 0, 1)
    share = (share * share * (3 - 2 * share))[:, None]
    return _joints(side, opened + share * (closed - opened))


def canonical_hands(side: Side) -> dict[str, Float[np.ndarray, "21 3"]]:
    """Return the poses that a robot's own calibration is fitted to, by name; metres.

    Flat, relaxed, three grips from wide to narrow, a fist, each finger bent alone, and each finger
    touching the thumb.
    """
    straight = dict.fromkeys(FINGERS[1:], (0.0, 0.0, 0.0))
    angles = {"flat": _bent(straight, _THUMB_BESIDE), "relaxed": articulation.comfortable()}
    for name, flexion in _GRIPS.items():
        angles[name] = _bent(dict.fromkeys(FINGERS[1:], flexion))
    angles["fist"] = _bent(dict.fromkeys(FINGERS[1:], _FIST), _THUMB_OVER)
    for finger in FINGERS[1:]:
        angles[f"{finger} bent"] = _bent(straight | {finger: _ALONE}, _THUMB_BESIDE)
    for finger in FINGERS[1:]:
        angles[f"{finger} pinch"] = _touching_angles(side, finger)
    return dict(zip(angles, _joints(side, np.stack(list(angles.values()))), strict=True))


def _bent(
    flexion: dict[str, tuple[float, float, float]], thumb: dict[str, float] | None = None
) -> Float[np.ndarray, "22"]:
    """Return a comfortable hand with these angles instead, degrees from MCP to DIP."""
    degrees = {f"thumb_{name}": angle for name, angle in (thumb or {}).items()}
    for finger, bends in flexion.items():
        for joint, angle in zip(("mcp", "pip", "dip"), bends, strict=True):
            degrees[f"{finger}_{joint}_flex"] = angle
    angles = articulation.comfortable().copy()
    for index, freedom in enumerate(articulation.freedoms()):
        if freedom.name in degrees:
            angles[index] = np.radians(degrees[freedom.name])
    return angles


def fast_hand(side: Side, fps: float, seconds: float = 6.0) -> Gesture:
    """Return a hand whose fingers bend one after the other, faster and faster, 0.5 to 3 Hz.

    From about 1 Hz on robot hands cannot follow.
    """
    low, high = articulation.limits()
    time = np.arange(round(seconds * fps)) / fps
    angles = np.tile(articulation.comfortable(), (len(time), 1))
    for index, freedom in enumerate(articulation.freedoms()):
        if freedom.kind == "flex":
            turns = 0.5 * time + 2.5 / (2 * seconds) * time**2
            wave = 0.5 - 0.5 * np.cos(2 * np.pi * turns + 0.6 * (freedom.joint // 3))
            angles[:, index] = 0.1 * low[index] + 0.8 * wave * high[index]
    return _joints(side, angles)


def _joints(side: Side, angles: Float[np.ndarray, "T 22"]) -> Gesture:
    turn = np.broadcast_to(np.eye(3), (len(angles), 3, 3))
    pose = articulation.angles_to_pose(angles, side)
    return CapsuleHand().joints(side, turn, pose, np.zeros(10))


def _touching_angles(side: Side, finger: str) -> Float[np.ndarray, "22"]:
    """Return the angles nearest to comfortable ones at which the two tips coincide."""
    low, high = articulation.limits()
    rest = articulation.comfortable()
    moving = [
        index
        for index, freedom in enumerate(articulation.freedoms())
        if freedom.name.split("_")[0] in ("thumb", finger)
    ]
    tips = [finger_keypoints(name)[-1] for name in (FINGERS[0], finger)]

    def errors(values: np.ndarray) -> np.ndarray:
        angles = rest.copy()
        angles[moving] = values
        thumb, other = _joints(side, angles[None])[0, tips]
        return np.concatenate([(thumb - other) / 1e-4, values - rest[moving]])

    fit = least_squares(errors, rest[moving], bounds=(low[moving], high[moving]))
    out = rest.copy()
    out[moving] = fit.x
    return out


def canonical_text() -> str:
    """Return what ``retarget/human_poses.json`` holds: the right hand's poses, to 0.01 mm."""
    poses = {name: joints.round(5).tolist() for name, joints in canonical_hands("right").items()}
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(rows)}" for name, rows in poses.items())
    return f"{{\n{rows}\n}}\n"


if __name__ == "__main__":
    print(canonical_text(), end="")
