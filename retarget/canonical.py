"""The calibration that a robot starts from: fitted to canonical poses of the mean human hand.

A recording that hardly moves says little of how palms compare. What is known of a robot beforehand
therefore comes from poses that show every finger straight and bent (``human_poses.json``, written
by ``python -m acehand_core.synthetic.gestures``). The result is kept as ``calibration.json``
beside the robot.yaml (``acehand robots calibrate``) with a fingerprint of what it was fitted to;
where that does not fit, as with a model of the user's own, it is fitted again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import json
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.hand.skeleton import FINGERS, KNUCKLES
from acehand_core.motion import Calibration
from acehand_core.types import Side
from retarget.calibration_file import Fitted, read_made_for
from retarget.calibration_fit import SCALE_RANGE, Spread, fit
from retarget.hand_spec import HandSpec
from retarget.kinematics import KinematicTree
from retarget.objective import Weights
from retarget.targets import HandTargets, palm_frames

SOURCE = "canonical poses"
#: One similarity for all fingers. Size and place are free; palm frame and base share their axes.
SPREAD = Spread(turn=0.1, place=0.1, size=0.5, anchor=1e-4, length=1e-3)


@functools.lru_cache(maxsize=16)
def robot_calibration(hand: HandSpec, tree: KinematicTree) -> Calibration:
    """Return a robot's own calibration: the one that is kept with it, else fitted here.

    Raises:
        SchemaError: the kept file is broken.
    """
    kept = kept_calibration(hand)
    if kept is not None and kept.sha256 == fingerprint(hand, tree):
        return kept.calibration
    return fit_robot(hand, tree)


def kept_calibration(hand: HandSpec) -> Fitted | None:
    """Return what is kept beside the robot.yaml for this hand, whatever it was fitted to."""
    path = hand.calibration_path
    if path is None or not path.is_file():
        return None
    try:
        return read_made_for(path, hand.robot, hand.variant).get(hand.side)
    except InputError:  # a folder that was copied for another robot
        return None


def fitted_robot(hand: HandSpec, tree: KinematicTree) -> Fitted:
    """Return a robot's own calibration, fitted now, with what it was fitted to."""
    return Fitted(fit_robot(hand, tree), SOURCE, fingerprint(hand, tree))


def fit_robot(hand: HandSpec, tree: KinematicTree, first: Calibration | None = None) -> Calibration:
    """Fit a robot hand to the canonical poses, beginning at ``first`` where that is known."""
    joints = canonical_joints(hand.side)
    count = len(joints)
    targets = HandTargets(hand.side, joints, np.ones(count), np.ones(count, bool), None)
    start = _from_knuckles(hand, tree, joints)
    found = fit(hand, tree, targets, Weights(), start, SPREAD, first)
    return replace(found, anchors=np.zeros((len(FINGERS), 3)), lengths=np.ones(len(FINGERS)))


def fingerprint(hand: HandSpec, tree: KinematicTree) -> str:
    """Return the SHA-256 of poses, settings and kinematics; lengths count to 0.01 mm."""
    commands = np.stack([hand.command_lower, hand.rest, hand.command_upper])
    points = tree.points(hand.expand(commands), hand.target_frames)
    said = (repr(SPREAD), repr(Weights()), hand.target_keypoints, hand.fingers)
    digest = hashlib.sha256(repr((said, _poses())).encode())
    for values in (commands, hand.coupling, points):
        digest.update((np.round(values * 1e5).astype(np.int64)).tobytes())
    return digest.hexdigest()


@functools.cache
def pose_names() -> tuple[str, ...]:
    """Return the names of the canonical poses."""
    return tuple(_poses())


@functools.cache
def canonical_joints(side: Side) -> Float[np.ndarray, "P 21 3"]:
    """Return the canonical poses of the mean hand in its palm frame, metres."""
    right = np.array(list(_poses().values()))
    poses = palm_frames(right, "right")
    local = (right - poses[:, None, :3, 3]) @ poses[:, :3, :3]
    return local if side == "right" else local * np.array([1.0, -1.0, 1.0])


@functools.cache
def _poses() -> dict[str, list]:
    file = importlib.resources.files("retarget").joinpath("human_poses.json")
    return json.loads(file.read_text(encoding="utf-8"))


def _from_knuckles(
    hand: HandSpec, tree: KinematicTree, joints: Float[np.ndarray, "N 21 3"]
) -> Calibration:
    """Start from where the fingers begin: they hardly move in either hand.

    Palm and base frame share their axes, so only size and place are taken from the knuckles.
    """
    pairs = [
        (keypoint, frame)
        for keypoint, frame in zip(hand.target_keypoints, hand.target_frames, strict=True)
        if keypoint in KNUCKLES[1:]
    ]
    if len(pairs) < 2:
        return Calibration(1.0, np.eye(3), np.zeros(3), float("nan"))
    human = np.median(joints[:, [k for k, _ in pairs]], axis=0)
    robot = tree.points(hand.expand(hand.rest[None]), [f for _, f in pairs])[0]
    scale = float(np.clip(_spread(robot) / _spread(human), *SCALE_RANGE))
    translation = robot.mean(0) - scale * human.mean(0)
    return Calibration(scale, np.eye(3), translation, float("nan"))


def _spread(points: Float[np.ndarray, "N 3"]) -> float:
    return float(np.linalg.norm(points - points.mean(0)))
