"""Measures of a clip: implausible human hands, and a robot that does not follow them.

``EpisodeArrays`` have the form of a dataset's columns, so that a conversion and ``acehand
inspect``, which reads them back, measure the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import BONES, FINGERS, KNUCKLES, TIPS, WRIST, finger_keypoints
from acehand_core.motion import HandMotion, RobotTrajectory, runs
from acehand_core.types import SIDES, JointsCamera, PerHand, PerHandFlag, Side, TimestampsNs
from retarget.replay.checks import Measure
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.targets import palm_frames, palm_sigma

#: Wrist to middle fingertip of a mean adult hand, m.
ADULT_HAND_M = 0.187
LEAST_FRAMES = 10
#: Unused share of what never saw a hand: a note, since nothing contradicts it.
BLIND_SHARE = 0.5
#: Speeds that no wrist reaches: m/s, degrees per second.
FAST_M_S, FAST_DEG_S = 6.0, 2000.0
#: A joint that bends backwards by more is out of its range.
BACKWARDS_RAD = np.radians(30.0)
#: A measured hand moves by more than this from frame to frame, if only by noise (m).
STILL_M = 2e-5
#: Hands swap where that shortens their paths to this share, and these are this long (m).
SWAP_SHARE, SWAP_M = 0.4, 0.08
#: A wrong side: this share of strong bends leads out of the palm, over so many seconds.
OUTWARD, SIDE_S = 0.7, 1.0
#: A robot fingertip further from its goal is far, a human one with more deviation uncertain (m).
FAR_TIP_M = 0.030
#: The robot stands still where in half a second human fingertips move by more than the first (m)
#: and its joints by less than the second (rad).
_MOVED_M, _STOOD_RAD, _WINDOW_S = 0.02, 0.002, 0.5
#: Rounding of angles that are stored as float32 (rad, m).
_FLOAT32_ROUNDING = 1e-4

_Poses = Float[np.ndarray, "T 4 4"]
_HandJoints = Float[np.ndarray, "T 21 3"]


@dataclass(frozen=True, slots=True, eq=False)
class RobotColumns:
    """Both robot hands over T frames: Q joints and C commands (rad, slides m); names without side.

    ``T_frame_base`` (in ``frame``) is None without a placement, ``arm_reached`` without arms.
    """

    joint_names: tuple[str, ...]
    command_joints: tuple[str, ...]
    joints: Float[np.ndarray, "T 2 Q"]
    commands: Float[np.ndarray, "T 2 C"]
    registers: Float[np.ndarray, "T 2 C"]
    frame: str
    T_frame_base: Float[np.ndarray, "T 2 4 4"] | None
    arm_reached: Bool[np.ndarray, "T 2"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeArrays:
    """Both hands of T frames, and the robot that follows them.

    ``joints`` are NaN where a hand is not valid, and relative to the wrist unless ``placed``.
    ``camera`` has fx, fy, cx, cy, width and height of each frame, ``sigma`` is
    ``HandMotion.joint_sigma``, ``source_ns`` the time stamps of the source's frames.
    """

    fps: float
    source_ns: TimestampsNs
    joints: JointsCamera
    placed: bool
    valid: PerHandFlag
    filled: PerHandFlag
    confidence: PerHand
    sigma: Float[np.ndarray, "T 2 21 2"] | None
    camera: Float[np.ndarray, "T 6"] | None
    motion: HandMotion | None
    robot: RobotColumns | None

    def __len__(self) -> int:
        return len(self.source_ns)

    @property
    def observed(self) -> PerHandFlag:
        """Frames with a measured and trusted hand."""
        return self.valid & ~self.filled & (self.confidence > 0)


def clip_of(
    motion: HandMotion, trajectory: RobotTrajectory, source_ns: TimestampsNs | None = None
) -> dict[str, Any]:
    """Return the fields of ``EpisodeArrays``; ``source_ns`` defaults to the motion's times."""
    camera, pinhole = motion.camera, None
    if camera is not None and camera.model == "pinhole":
        row = camera.fx, camera.fy, camera.cx, camera.cy, camera.width, camera.height
        pinhole = np.tile(np.array(row, float), (len(motion), 1))
    reached = None
    if any(trajectory.arms):
        always = np.ones(len(motion), bool)
        reached = np.stack([always if a is None else a.reached for a in trajectory.arms], axis=1)
    active = trajectory.active
    return {
        "fps": float(motion.fps),
        "source_ns": motion.timestamps_ns if source_ns is None else source_ns,
        "joints": np.where(active[..., None, None], motion.joints_camera, np.nan),
        "placed": motion.placed,
        "valid": active,
        "filled": motion.filled,
        "confidence": np.where(active, motion.quality, 0.0).astype(float),
        "sigma": motion.joint_sigma,
        "camera": pinhole,
        "motion": motion,
        "robot": RobotColumns(
            joint_names=trajectory.joint_names,
            command_joints=trajectory.command_joints,
            joints=trajectory.joints,
            commands=trajectory.commands,
            registers=trajectory.registers,
            frame=trajectory.frame,
            T_frame_base=trajectory.T_frame_base,
            arm_reached=reached,
        ),
    }


def clip_measures(
    clip: EpisodeArrays, robot: Robot | None, tip_error_m: Float[np.ndarray, "T 2 K"] | None
) -> list[Measure]:
    """Return the measures that need only hands and robot.

    Args:
        robot: the robot of ``clip.robot``; None leaves out what needs its kinematics.
        tip_error_m: distance of robot from human fingertips, NaN where unknown.
    """
    measures = [*_frames(clip), *hand_measures(clip)]
    columns = clip.robot
    if columns is None:
        return measures
    bases = in_camera(clip)
    for slot, side in enumerate(SIDES):
        active = clip.valid[:, slot]
        if not active.any():
            continue
        measures += _stands_still(clip, columns, slot, side)
        measures += _acceleration(clip, columns, slot)

        tips = None if tip_error_m is None else tip_error_m[:, slot]
        if tips is not None and (known := np.isfinite(tips) & active[:, None]).any():
            far = float((tips[known] > FAR_TIP_M).mean())
            text = f"{far:.0%} of the {side} robot fingertips are over 30 mm off"
            worst = int(np.argmax(np.nan_to_num(tips).max(-1)))
            measures.append(Measure("far_tips", far, text, side, worst))

        if columns.arm_reached is not None:
            text = "in {:.0%} of the frames the {} arm does not reach the hand's place"
            beyond = active & ~columns.arm_reached[:, slot]
            measures.append(_share("reach", beyond, active, text, side))

        if robot is not None and side in robot.hands:
            measures += _limits(columns, robot.hands[side], slot, side)
            if bases is not None:
                measures += _base(clip, columns, bases[:, slot], robot.hands[side], slot)
    return measures


def evidence_measures(origin: Mapping[str, Any]) -> Iterator[Measure]:
    """Measure how what was given agrees, and what was assumed, by a provenance as JSON."""
    for source in origin.get("agreement", ()):
        used, count = source["used"], source["frames"]
        text = source["doubt"] or f"{source['source']} places hands in {used} of {count} frames"
        text += f"; not used in {count - used} of {count} frames" if source["doubt"] else ""
        share = 1 - used / count if count else BLIND_SHARE
        yield Measure("unused_evidence", share, text)
    if assumed := origin.get("assumed"):
        names = " and ".join(f"{name} (+-{sigma:.0%})" for name, sigma in assumed.items())
        text = f"distances by an assumed {names}"
        yield Measure("assumed", float(np.hypot.reduce([*assumed.values()])), text)


def in_camera(clip: EpisodeArrays) -> Float[np.ndarray, "T 2 4 4"] | None:
    """Return the robots' base poses in the camera frame, NaN where the camera pose is unknown."""
    robot, motion = clip.robot, clip.motion
    if robot is None or robot.T_frame_base is None:
        return None
    if robot.frame == "camera":
        return robot.T_frame_base
    if motion is None or motion.T_world_camera is None:
        return None
    return frames.inverse(motion.T_world_camera)[:, None] @ robot.T_frame_base


def _share(
    check: str, flags: Bool[np.ndarray, "T"], among: Bool[np.ndarray, "T"], text: str, side: Side
) -> Measure:
    """Return the share of ``flags`` among other frames; ``text`` takes the share and the side."""
    share = float(flags.sum() / among.sum())
    return Measure(check, share, text.format(share, side), side, int(np.argmax(flags)))


# The frames, and which of them show hands.


def _frames(clip: EpisodeArrays) -> Iterator[Measure]:
    yield Measure("no_hand", float(not clip.valid.any()), "no hand was found")
    frames = f"{len(clip)} frames are" if len(clip) > 1 else "one frame is"
    yield Measure("few_frames", float(len(clip) < LEAST_FRAMES), f"{frames} no trajectory")
    if len(clip) > 1:
        text = f"{clip.fps:g} frames per second do not show a motion"
        yield Measure("frame_s", 1 / clip.fps, text)
        steps = np.diff(clip.source_ns) / 1e9
        at = int(np.argmax(steps))
        gap, repeats = float(steps[at]), float((steps <= 0).mean())
        # A clip slower than its source skips frames, a faster one shows them several times.
        usual = max(float(np.median(steps)), 1 / clip.fps)
        text = f"{gap:.2f} s lie between two frames of the source: frames are missing"
        yield Measure("stamp_gaps", max(gap - usual, 0.0), text, frame=at)
        text = f"{repeats:.0%} of the frames show the source frame before again, or their stamps "
        yield Measure("stamp_repeats", repeats, f"{text}go back", frame=int(np.argmin(steps)))

    for slot, side in enumerate(SIDES):
        valid, filled = clip.valid[:, slot], clip.filled[:, slot]
        if not valid.any():
            continue
        seen = float((valid & ~filled).mean())
        text = f"{side} hand was seen in only {seen:.0%} of the frames"
        yield Measure("absent", 1 - seen, text, side)
        # Filled and untrusted frames are both guesses.
        guessed = valid & ~clip.observed[:, slot]
        share = float(guessed.sum() / valid.sum())
        text = f"{share:.0%} of the {side} hand's frames are filled in or of confidence 0"
        yield Measure("filled", share, text, side, _longest(guessed)[0])
        doubtful = valid & ~filled & (clip.confidence[:, slot] == 0)
        text = "{:.1%} of the {} hand's frames have confidence 0 and are not followed"
        yield _share("untrusted", doubtful, valid, text, side)


def _longest(flags: Bool[np.ndarray, "T"]) -> tuple[int, int]:
    """Return first and stop frame of the longest run of true frames."""
    return max(runs(flags), key=lambda run: run[1] - run[0], default=(0, 0))


# Implausible hands: faults of tracking.


def hand_measures(clip: EpisodeArrays) -> list[Measure]:
    """Measure both hands of a clip."""
    measures: list[Measure] = []
    for slot, side in enumerate(SIDES):
        seen = clip.observed[:, slot] & np.isfinite(clip.joints[:, slot]).all((1, 2))
        measures += _uncertain_tips(clip, slot)
        if seen.sum() < 3:
            continue
        hand = clip.joints[:, slot]
        measures += [
            *_shape(hand, seen, side),
            _jitter(hand, seen, side),
            *_motion(clip, hand, seen, side),
            *_bends(clip, hand, seen, side),
            _frozen(clip, slot),
            *_placement(clip, slot, seen),
        ]
    return [*measures, *_swaps(clip)]


def hand_length(clip: EpisodeArrays) -> float | None:
    """Return the length of the more visible hand along its bones (m)."""
    seen = clip.observed & np.isfinite(clip.joints).all((2, 3))
    if not seen.any():
        return None
    slot = int(np.argmax(seen.sum(0)))
    return _length(clip.joints[seen[:, slot], slot])


def _length(hand: Float[np.ndarray, "N 21 3"]) -> float:
    chain = hand[:, [WRIST, *finger_keypoints("middle")]]
    return float(np.median(np.linalg.norm(np.diff(chain, axis=1), axis=-1).sum(1)))


def _shape(hand: _HandJoints, seen: Bool[np.ndarray, "T"], side: Side) -> Iterator[Measure]:
    length = _length(hand[seen])
    factor = max(length / ADULT_HAND_M, ADULT_HAND_M / max(length, 1e-9))
    text = f"the {side} hand is {1e3 * length:.0f} mm long: another unit, or depths that are off"
    yield Measure("hand_size", factor, text, side)

    parents, children = np.array(BONES).T
    bones = np.linalg.norm(hand[seen][:, children] - hand[seen][:, parents], axis=-1)
    low, middle, high = np.percentile(bones, [10, 50, 90], axis=0)
    spread = (high - low) / 2.563 / np.maximum(middle, 1e-9)  # of a normal distribution: its std
    varies = float(np.median(spread))
    text = f"bones of the {side} hand change their length by {varies:.1%}"
    yield Measure("bone_length", varies, text, side)


def _jitter(hand: _HandJoints, seen: Bool[np.ndarray, "T"], side: Side) -> Measure:
    """Measure noise by third differences: those of white noise are sqrt(20) times as large.

    Smooth motion has hardly any, and the median leaves out the moments with more.
    """
    third = np.diff(hand, n=3, axis=0)
    usable = np.lib.stride_tricks.sliding_window_view(seen, 4).all(1) if len(seen) > 3 else seen[:0]
    if not usable.any():
        return Measure("jitter", 0.0, "", side)

    # The median length of a vector of three normal numbers is 1.538 times their deviation.
    size = np.median(np.linalg.norm(third, axis=-1), axis=1) / np.sqrt(20) / 1.538
    value = 1e3 * float(np.median(size[usable]))
    at = int(np.argmax(np.where(usable, size, 0))) + 1
    return Measure("jitter", value, f"joints of the {side} hand jitter by {value:.1f} mm", side, at)


def _motion(
    clip: EpisodeArrays, hand: _HandJoints, seen: Bool[np.ndarray, "T"], side: Side
) -> Iterator[Measure]:
    """Measure jumps of the wrist and turns of the palm between consecutive frames."""
    both = seen[1:] & seen[:-1]
    palms = palm_frames(hand, side)[:, :3, :3]
    turn = np.degrees(rotations.angle_between(palms[:-1], palms[1:])) * clip.fps
    turn = np.where(both & np.isfinite(turn), turn, 0.0)
    flips, at = int((turn > FAST_DEG_S).sum()), int(np.argmax(turn)) + 1
    text = f"frames in which the {side} palm turns over: {flips}, at up to {turn.max():.0f} "
    yield Measure("flips", flips, f"{text}degrees a second", side, at)
    if clip.placed:
        speed = np.linalg.norm(np.diff(hand[:, WRIST], axis=0), axis=-1) * clip.fps
        speed = np.where(both, speed, 0.0)
        fast, at = int((speed > FAST_M_S).sum()), int(np.argmax(speed)) + 1
        text = f"jumps of the {side} wrist: {fast}, at up to {speed.max():.0f} m/s"
        yield Measure("speed", fast, text, side, at)


def _bends(
    clip: EpisodeArrays, hand: _HandJoints, seen: Bool[np.ndarray, "T"], side: Side
) -> Iterator[Measure]:
    """Measure finger joints that bend backwards; where most do at once the side is wrong."""
    sign = 1 if side == "right" else -1
    across = _unit(hand[:, KNUCKLES[1]] - hand[:, KNUCKLES[4]]) * sign
    angles = []
    for finger in FINGERS[1:]:
        bones = _unit(np.diff(hand[:, list(finger_keypoints(finger))], axis=1))
        axis = np.cross(bones[:, :-1], bones[:, 1:])
        into = np.sum(axis * across[:, None], axis=-1)
        angles.append(np.arctan2(into, np.sum(bones[:, :-1] * bones[:, 1:], axis=-1)))

    bent = np.concatenate(angles, axis=1)[seen]
    backwards = bent < -BACKWARDS_RAD
    share = float(backwards.mean())
    frames = np.flatnonzero(seen)
    at = int(frames[np.argmax(backwards.sum(1))])
    text = f"{share:.0%} of the {side} hand's finger joints bend backwards"
    yield Measure("bends", share, text, side, at)

    # The fingers of the other hand all bend out of the palm, in every frame.
    strong = (np.abs(bent) > BACKWARDS_RAD).sum(1)
    out, into = np.zeros((2, len(hand)), bool)
    out[frames] = (strong >= 2) & (backwards.sum(1) >= OUTWARD * strong)
    into[frames] = (strong >= 2) & ~out[frames]
    window = np.ones(max(round(SIDE_S * clip.fps), 1))
    outward, inward = (np.convolve(flags, window, "same") for flags in (out, into))
    wrong = out.sum() >= SIDE_S * clip.fps and (outward >= OUTWARD * len(window)).any()
    wrong = wrong and (outward > 4 * inward).any()
    other = SIDES[1 - SIDES.index(side)]
    text = f"the fingers of the {side} hand bend out of its palm: it is a {other} one, or mirrored"
    yield Measure("wrong_side", float(wrong), text, side, int(np.argmax(out)))


def _frozen(clip: EpisodeArrays, slot: int) -> Measure:
    hand, side = clip.joints[:, slot], SIDES[slot]
    measured = clip.valid[:, slot] & ~clip.filled[:, slot]  # whatever its confidence
    with np.errstate(invalid="ignore"):
        still = measured[1:] & measured[:-1] & (np.abs(np.diff(hand, axis=0)).max((1, 2)) < STILL_M)
    first, stop = _longest(still)
    seconds = (stop - first) / clip.fps
    text = f"the {side} hand is marked as seen but motionless for {seconds:.1f} s"
    return Measure("frozen", seconds, text, side, first)


def _uncertain_tips(clip: EpisodeArrays, slot: int) -> Iterator[Measure]:
    """Measure the share of uncertain fingertips in followed frames."""
    if clip.sigma is None or not (seen := clip.observed[:, slot]).any():
        return
    sigma = palm_sigma(clip.sigma[seen, slot])[:, TIPS]
    if np.isfinite(sigma).any():
        uncertain, side = float((sigma > FAR_TIP_M).mean()), SIDES[slot]
        text = f"{uncertain:.0%} of the {side} human fingertips are not known to 30 mm in the palm"
        yield Measure("uncertain_tips", uncertain, text, side)


def _placement(clip: EpisodeArrays, slot: int, seen: Bool[np.ndarray, "T"]) -> Iterator[Measure]:
    """Measure the distance from the camera, and how joints fit the tracker's landmarks."""
    if not clip.placed:
        return
    motion, side = clip.motion, SIDES[slot]
    far = float(np.median(np.linalg.norm(clip.joints[seen, slot, WRIST], axis=-1)))
    text = f"the {side} wrist is {far:.2f} m from the camera: another unit, or a wrong camera"
    yield Measure("distance", far, text, side)

    if motion is None or clip.camera is None:
        return
    pixels = motion.joints_image[:, slot]
    usable = seen & np.isfinite(pixels).all((1, 2)) & (clip.joints[:, slot, :, 2] > 0).all(1)
    if usable.sum() < 3:
        return
    projected = project(clip.camera, clip.joints)[:, slot]
    size = extent(pixels)
    away = np.linalg.norm(projected - pixels, axis=-1).mean(1) / np.maximum(size, 1e-6)
    value, at = float(np.median(away[usable])), int(np.argmax(np.where(usable, away, 0)))
    text = f"joints of the {side} hand, seen through the camera, are {value:.0%} of its size from "
    yield Measure("reprojection", value, f"{text}where they were in the picture", side, at)
    ratio = float(np.median((extent(projected) / np.maximum(size, 1e-6))[usable]))
    factor = max(ratio, 1 / max(ratio, 1e-6))
    text = f"the {side} hand is {ratio:.2f} times as large in the picture as it was seen: its "
    yield Measure("depth_size", factor, f"{text}depth, size and camera do not agree", side, at)


def _swaps(clip: EpisodeArrays) -> list[Measure]:
    """Count swaps of both hands by what explains the paths of their wrists."""
    if not clip.placed:
        return []
    wrist = clip.joints[:, :, WRIST]
    known = clip.valid & np.isfinite(wrist).all(-1)
    both = np.flatnonzero(known.all(1))
    before, after = both[:-1], both[1:]
    near = after - before <= max(round(0.5 * clip.fps), 1)
    before, after = before[near], after[near]
    if not len(before):
        return []

    straight = np.linalg.norm(wrist[after] - wrist[before], axis=-1).sum(1)
    crossed = np.linalg.norm(wrist[after][:, ::-1] - wrist[before], axis=-1).sum(1)
    swapped = (crossed < SWAP_SHARE * straight) & (straight > SWAP_M)
    count, at = int(swapped.sum()), int(after[np.argmax(swapped)])
    return [
        Measure("identity_swaps", count, f"swaps of the left and the right hand: {count}", frame=at)
    ]


def project(
    camera: Float[np.ndarray, "T 6"], joints: Float[np.ndarray, "T *n 3"]
) -> Float[np.ndarray, "T *n 2"]:
    """Return the pixels at which a pinhole camera sees points of its frame."""
    shape = (len(camera),) + (1,) * (joints.ndim - 2)
    fx, fy, cx, cy = (camera[:, k].reshape(shape) for k in range(4))
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = joints[..., 0] / joints[..., 2], joints[..., 1] / joints[..., 2]
    return np.stack([fx * x + cx, fy * y + cy], axis=-1)


def extent(pixels: Float[np.ndarray, "*n 21 2"]) -> Float[np.ndarray, "*n"]:
    """Return the rms distance of a hand's landmarks from their mean."""
    away = pixels - pixels.mean(-2, keepdims=True)
    return np.asarray(np.sqrt((away**2).sum(-1).mean(-1)))


def wrist_paths(clip: EpisodeArrays) -> Sequence[float]:
    """Return the lengths of the left and the right wrist's path while seen (m)."""
    seen = clip.observed[1:] & clip.observed[:-1]
    step = np.linalg.norm(np.diff(clip.joints[:, :, WRIST], axis=0), axis=-1)
    return [float(v) for v in np.where(seen & np.isfinite(step), step, 0).sum(0)]


def _unit(vectors: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


# The robot.


def _limits(columns: RobotColumns, hand: HandSpec, slot: int, side: Side) -> Iterator[Measure]:
    joints, commands = columns.joints[:, slot], columns.commands[:, slot]
    outside = (joints < hand.lower - _FLOAT32_ROUNDING) | (joints > hand.upper + _FLOAT32_ROUNDING)
    count, at = int(outside.sum()), int(np.argmax(outside.any(1)))
    text = f"{count} joint-frames of the {side} robot hand are outside the joint limits"
    yield Measure("joint_limits", count, text, side, at)

    residual = np.abs(joints - hand.expand(commands)).max(1)
    text = f"coupled joints of the {side} robot hand are up to {residual.max():.2f} rad from where "
    text += "its driven ones put them"
    yield Measure("coupling", float(residual.max()), text, side, int(np.argmax(residual)))


def _acceleration(clip: EpisodeArrays, columns: RobotColumns, slot: int) -> Iterator[Measure]:
    """Measure the largest acceleration of the base over three consecutive frames with a hand."""
    if columns.T_frame_base is None or len(clip) < 3:
        return
    valid = clip.valid[:, slot]
    throughout = valid[:-2] & valid[1:-1] & valid[2:]
    second = np.diff(columns.T_frame_base[:, slot, :3, 3], 2, axis=0) * clip.fps**2
    sizes = np.where(throughout, np.nan_to_num(np.linalg.norm(second, axis=1)), 0.0)
    text = f"the {SIDES[slot]} wrist accelerates with {sizes.max():.0f} m/s2"
    at = int(np.argmax(sizes)) + 1
    yield Measure("wrist_acceleration", float(sizes.max()), text, SIDES[slot], at)


def _base(
    clip: EpisodeArrays, columns: RobotColumns, T_camera_base: _Poses, hand: HandSpec, slot: int
) -> Iterator[Measure]:
    """Measure the distance of robot and human hand between the middles of their fingertips."""
    tips = KinematicTree.of(hand).points(columns.joints[:, slot], hand.tip_names)
    human = [TIPS[FINGERS.index(finger)] for finger in hand.fingers]
    apart = frames.apply(T_camera_base, tips).mean(1) - clip.joints[:, slot, human].mean(1)
    away = np.linalg.norm(apart, axis=1)
    known = np.isfinite(away) & clip.observed[:, slot]
    if known.any():
        median, at = float(np.median(away[known])), int(np.argmax(np.where(known, away, 0)))
        text = f"the {hand.side} robot hand is {median:.2f} m from the human one"
        yield Measure("base", median, text, hand.side, at)


def _stands_still(
    clip: EpisodeArrays, columns: RobotColumns, slot: int, side: Side
) -> Iterator[Measure]:
    """Measure the share of the time in which human fingers move and the robot's do not."""
    palms = palm_frames(clip.joints[:, slot], side)
    window = max(round(_WINDOW_S * clip.fps), 1)
    seen = clip.observed[:, slot] & np.isfinite(palms).all((1, 2))
    tips = np.full((len(clip), len(TIPS), 3), np.nan)
    tips[seen] = frames.apply(frames.inverse(palms[seen]), clip.joints[seen, slot])[:, list(TIPS)]
    moved = np.linalg.norm(tips[window:] - tips[:-window], axis=-1).max(1) > _MOVED_M
    stood = np.abs(columns.joints[window:, slot] - columns.joints[:-window, slot]).max(1)
    moving = seen[window:] & seen[:-window] & moved
    if moving.sum() < window:
        yield Measure("still", 0.0, "", side)
        return
    text = "the {1} robot hand stands still for {0:.0%} of the time its human one moves"
    yield _share("still", moving & (stood < _STOOD_RAD), moving, text, side)
