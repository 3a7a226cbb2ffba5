"""The terms of the pose objective: which points of a robot hand should form which human vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from acehand_core.hand.skeleton import DISTALS, INTERMEDIATES, TIPS, finger_keypoints
from retarget.hand_spec import HandSpec
from retarget.kinematics import FrameSet, KinematicTree
from retarget.pinch import Pinches
from retarget.targets import HandTargets

#: Stands for the origin: the base's for robot points, the palm's for human keypoints.
ORIGIN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """M terms: robot point ``first`` minus ``second`` meets human keypoint ``end`` minus ``start``.

    Points are positions in ``frames``. ``pinch`` is the pinch that sets the vector instead, or -1.
    Goals are the human vector as it is, or of fixed ``length`` where that is not NaN; ``scaled``
    ones grow with the calibration's scale and ``placed`` ones move with its translation (1 or 0).
    ``pull`` is the weight of a squared metre.
    """

    frames: FrameSet
    first: Int[np.ndarray, "M"]
    second: Int[np.ndarray, "M"]
    end: Int[np.ndarray, "M"]
    start: Int[np.ndarray, "M"]
    pinch: Int[np.ndarray, "M"]
    length: Float[np.ndarray, "M"]
    pull: Float[np.ndarray, "M"]
    scaled: Float[np.ndarray, "M"]
    placed: Float[np.ndarray, "M"]

    @property
    def finger(self) -> Int[np.ndarray, "M"]:
        """Position in ``FINGERS`` of the finger that a placed term belongs to, else -1."""
        return np.where((self.placed > 0) & (self.end > 0), (self.end - 1) // 4, -1)

    @classmethod
    def of(
        cls,
        hand: HandSpec,
        tree: KinematicTree,
        pinching: Int[np.ndarray, "P"],
        weights: tuple[float, float, float, float],
        length_m: float,
    ) -> Terms:
        """Return the terms with any weight.

        Args:
            hand, tree: the robot hand.
            pinching: fingers that can pinch, as positions in ``hand.tip_names``.
            weights: of tips, other links, directions (per radian) and pinches.
            length_m: the unit in which positions count.
        """
        tip, link, direction, pinch = weights
        per_metre = 1 / length_m**2
        frame_of = dict(zip(hand.target_keypoints, hand.target_frames, strict=True))
        rows: list[tuple] = []  # first, second (frame names), end, start, pinch, length, pull, ...
        for keypoint, frame in frame_of.items():
            pull = tip if keypoint in TIPS else link * (keypoint in (*INTERMEDIATES, *DISTALS))
            rows.append((frame, None, keypoint, ORIGIN, -1, np.nan, pull * per_metre, 1.0, 1.0))
        rest = hand.expand(hand.rest[None])
        for finger in hand.fingers:
            known = [k for k in finger_keypoints(finger) if k in frame_of]
            if len(known) < 2:
                continue
            start, end = known[-2:]
            ends = tree.points(rest, [frame_of[end], frame_of[start]])[0]
            length = float(np.linalg.norm(ends[0] - ends[1]))
            pull = direction / max(length, 1e-3) ** 2
            rows.append((frame_of[end], frame_of[start], end, start, -1, length, pull, 0.0, 0.0))
        for index, finger in enumerate(pinching):
            ends = hand.tip_names[finger], hand.tip_names[0]
            rows.append((*ends, ORIGIN, ORIGIN, index, np.nan, pinch * per_metre, 1.0, 0.0))
        rows = [row for row in rows if row[6] > 0]
        names = list(dict.fromkeys(n for row in rows for n in row[:2] if n is not None))
        place: dict[str | None, int] = {name: i for i, name in enumerate(names)} | {None: ORIGIN}
        columns = list(zip(*rows, strict=True)) if rows else [()] * 9
        first, second = ([place[n] for n in column] for column in columns[:2])
        whole = (np.array(c, int) for c in (first, second, *columns[2:5]))
        return cls(tree.frames(names), *whole, *(np.array(c, float) for c in columns[5:]))

    def wanted(
        self, targets: HandTargets, pinches: Pinches, rows: slice
    ) -> tuple[Float[np.ndarray, "T M 3"], Float[np.ndarray, "T M"]]:
        """Return each term's vector in the palm frame, and the root of its weight."""
        joints, weight = targets.joints_hand[rows], targets.weight[rows]
        vector = np.empty((len(joints), len(self.first), 3))
        share = np.ones(vector.shape[:2])
        for term, (end, start, pinch) in enumerate(
            zip(self.end, self.start, self.pinch, strict=True)
        ):
            if pinch >= 0:
                vector[:, term] = pinches.vector[rows, pinch]
                share[:, term] = pinches.closing[rows, pinch]
                continue
            vector[:, term] = joints[:, end] if start < 0 else joints[:, end] - joints[:, start]
            if np.isfinite(self.length[term]):
                size = np.linalg.norm(vector[:, term], axis=-1, keepdims=True)
                vector[:, term] *= self.length[term] / np.where(size > 0, size, np.nan)
        known = np.isfinite(vector).all(-1)
        scale = np.sqrt(self.pull * weight[:, None] * share * known)
        return np.where(known[..., None], vector, 0.0), scale
