"""Checks of what the robot does: is it this one, within its limits, and does it follow the hand?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from acehand_core.errors import AcehandError
from acehand_core.geometry import frames
from acehand_core.hand.skeleton import FINGERS, TIPS
from acehand_core.lerobot.format import CALIBRATION
from acehand_core.motion import Calibration
from acehand_core.review.checks import Measure
from acehand_core.review.episode import Episode, RobotColumns, in_camera
from acehand_core.types import SIDES, Side
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.calibration_file import read_calibrations
from retarget.solve.targets import calibrated, palm_frames

#: A fingertip further from its goal is far (m), as in the verdict of the conversion.
FAR_TIP_M = 0.030
#: Rounding of float32 columns, and of the limits themselves (rad).
_ROUNDING = 1e-4
#: Over half a second human fingertips moved by more than the first (m), the robot's joints by no
#: more than the second (rad): it stands still.
_MOVED_M, _STOOD_RAD, _WINDOW_S = 0.02, 0.002, 0.5


def robot_measures(episode: Episode, robot: Robot | None) -> list[Measure]:
    """Measure both robot hands of an episode; ``robot`` None: the dataset's is not known here."""
    columns = episode.robot
    if columns is None:
        return []
    made_for = str(episode.origin.get("robot") or episode.robot_label)
    other = made_for != episode.robot_label
    text = f"made for the robot {made_for}, the dataset is of {episode.robot_label}"
    if robot is not None and columns.joint_names != next(iter(robot.hands.values())).joint_names:
        other, text = True, f"its joints are not those of the robot {episode.robot_label}"
    measures = [Measure("robot", float(other), text)]
    if robot is None or other:
        return measures

    fitted, missing = calibrations_of(episode, robot)
    if episode.origin.get("solver", "trajectory") == "trajectory":
        text = f"the calibration of hand to robot cannot be trusted: {missing}"
        measures.append(Measure("calibration", 0 if missing is None else 1, text))

    errors = tip_errors(episode, robot, fitted)
    bases = in_camera(episode)
    for slot, side in enumerate(SIDES):
        active = episode.valid[:, slot]
        if side not in robot.hands or not active.any():
            continue
        hand = robot.hands[side]

        measures += _limits(columns, hand, slot, side)
        tips = errors[active, slot]
        if np.isfinite(tips).any():
            far = float((tips[np.isfinite(tips)] > FAR_TIP_M).mean())
            worst = np.nan_to_num(errors[:, slot]).max(-1)
            measures.append(
                Measure("tips", far,
                        f"{far:.0%} of the {side} robot fingertips are over 30 mm from the human "
                        "ones", side, int(np.argmax(worst)))
            )  # fmt: skip
        if bases is not None:
            measures += _base(episode, columns, bases[:, slot], hand, slot)
        measures.append(_stands_still(episode, columns, slot, side))
        if columns.arm_reached is not None:
            beyond = active & ~columns.arm_reached[:, slot]
            share = float(beyond.sum() / active.sum())
            text = f"in {share:.0%} of the frames the {side} arm does not reach the hand's place"
            measures.append(Measure("reach", share, text, side, int(np.argmax(beyond))))
    return measures


def calibrations_of(episode: Episode, robot: Robot) -> tuple[dict[Side, Calibration], str | None]:
    """Return the calibrations that an episode was made with, and what is wrong with them, if so.

    Those of its provenance count where the file beside it is missing.
    """
    told: dict[Side, Calibration] = {}
    for side, entry in (episode.origin.get("calibration") or {}).items():
        if entry is not None and side in SIDES:
            told[side] = Calibration(
                float(entry["scale"]), np.array(entry["rotation"], float),
                np.array(entry["translation"], float), float(entry["residual_m"] or 0.0),
                np.array([entry["anchors_m"][finger] for finger in FINGERS], float),
                np.array([entry["lengths"][finger] for finger in FINGERS], float),
            )  # fmt: skip

    path = episode.folder / CALIBRATION
    if not path.is_file():
        return told, f"{CALIBRATION} is missing"
    try:
        kept = {side: f.calibration for side, f in read_calibrations(path, robot).items()}
    except AcehandError as error:
        return told, str(error)
    for side, calibration in told.items():
        same = side in kept and np.allclose(
            kept[side].apply(np.eye(3)), calibration.apply(np.eye(3)), atol=1e-3
        )
        if not same:
            return told, f"{CALIBRATION} is not the one that the {side} hand was made with"
    return {**kept, **told}, None


def tip_errors(
    episode: Episode, robot: Robot, fitted: dict[Side, Calibration]
) -> Float[np.ndarray, "T 2 5"]:
    """Return how far the robot's fingertips are from the human's, thumb first (m).

    The human's are carried over by the calibration; NaN where either is not known.
    """
    errors = np.full((len(episode), 2, len(TIPS)), np.nan)
    for slot, side in enumerate(SIDES):
        hand = robot.hands.get(side)
        if hand is None or side not in fitted or episode.robot is None or hand.tracks == "opening":
            continue
        tree = KinematicTree.of(hand)
        ours = tree.points(episode.robot.joints[:, slot], hand.tip_names)

        with np.errstate(invalid="ignore", divide="ignore"):
            palms = palm_frames(episode.joints[:, slot], side)
        known = np.isfinite(palms).all((1, 2)) & episode.valid[:, slot]
        known &= episode.confidence[:, slot] > 0
        local = np.full((len(episode), 21, 3), np.nan)
        local[known] = frames.apply(frames.inverse(palms[known]), episode.joints[known, slot])

        goals = calibrated(local, fitted[side])[:, list(TIPS)]
        fingers = [FINGERS.index(finger) for finger in hand.fingers]
        errors[:, slot, fingers] = np.linalg.norm(ours - goals[:, fingers], axis=-1)
    return errors


def _limits(columns: RobotColumns, hand: HandSpec, slot: int, side: Side) -> Sequence[Measure]:
    joints = columns.joints[:, slot]
    outside = (joints < hand.lower - _ROUNDING) | (joints > hand.upper + _ROUNDING)
    share, at = float(outside.mean()), int(np.argmax(outside.any(1)))

    residual = np.abs(joints - hand.expand(columns.commands[:, slot])).max(1)
    off = np.abs(columns.registers[:, slot] - hand.to_controller(columns.commands[:, slot]))
    range_ = np.abs(hand.controller.at_upper - hand.controller.at_lower)
    wrong = float((off > 0.05 * range_).mean())
    return (
        Measure("joint_limits", share,
                f"{share:.1%} of the {side} robot hand's joint angles are outside its limits",
                side, at),
        Measure("coupling", float(residual.max()),
                f"coupled joints of the {side} robot hand are up to {residual.max():.2f} rad from "
                "where its driven ones put them", side, int(np.argmax(residual))),
        Measure("register", wrong,
                f"{wrong:.0%} of the {side} hand's register values are not those of its commands",
                side, int(np.argmax((off > 0.05 * range_).any(1)))),
    )  # fmt: skip


def _base(
    episode: Episode,
    columns: RobotColumns,
    T_camera_base: Float[np.ndarray, "T 4 4"],
    hand: HandSpec,
    slot: int,
) -> Sequence[Measure]:
    """Measure how far the robot hand is from the human one, by the middle of their fingertips."""
    tips = KinematicTree.of(hand).points(columns.joints[:, slot], hand.tip_names)
    human = [TIPS[FINGERS.index(finger)] for finger in hand.fingers]
    apart = frames.apply(T_camera_base, tips).mean(1) - episode.joints[:, slot, human].mean(1)
    away = np.linalg.norm(apart, axis=1)
    known = np.isfinite(away) & episode.observed[:, slot]
    if not known.any():
        return ()
    median, at = float(np.median(away[known])), int(np.argmax(np.where(known, away, 0)))
    text = f"the {hand.side} robot hand is {median:.2f} m from the human one"
    return (Measure("base", median, text, hand.side, at),)


def _stands_still(episode: Episode, columns: RobotColumns, slot: int, side: Side) -> Measure:
    """Measure for how much of the time in which the fingers move the robot's do not."""
    with np.errstate(invalid="ignore", divide="ignore"):
        palms = palm_frames(episode.joints[:, slot], side)
    window = max(round(_WINDOW_S * episode.fps), 1)
    seen = episode.observed[:, slot] & np.isfinite(palms).all((1, 2))
    both = seen[window:] & seen[:-window]
    if not both.any():
        return Measure("still", 0.0, "", side)

    tips = np.full((len(episode), len(TIPS), 3), np.nan)
    tips[seen] = frames.apply(frames.inverse(palms[seen]), episode.joints[seen, slot])[
        :, list(TIPS)
    ]
    moved = np.linalg.norm(tips[window:] - tips[:-window], axis=-1).max(1) > _MOVED_M
    stood = np.abs(columns.joints[window:, slot] - columns.joints[:-window, slot]).max(1)
    moving = both & moved
    if moving.sum() < window:
        return Measure("still", 0.0, "", side)

    still = moving & (stood < _STOOD_RAD)
    share = float(still.sum() / moving.sum())
    text = f"the {side} robot hand stands still for {share:.0%} of the time its human one moves"
    return Measure("still", share, text, side, int(np.argmax(still)))
