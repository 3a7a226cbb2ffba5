"""The hands that retargeting is measured on, each in its own palm frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import truth_of
from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import WRIST
from acehand_core.motion import Calibration
from acehand_core.recordings.keypoint_files import read_joints_file
from acehand_core.types import SIDES, Side
from benchmarks.retargeting import trials
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.targets import HandTargets, hand_targets, palm_frames
from tools.gestures import fast_hand, pinching_hand

JOINTS_FILE = "data/human_joint_right.npz"
HOT3D_FILE = "data/hot3d_bimanual_joints.npz"
#: Files whose own axes are further from the palm's than this need --palm-frame.
FOREIGN_AXES_RAD = np.radians(45)


@dataclass(frozen=True, slots=True)
class Take:
    """One hand of one recording. ``unit`` tells hands of the same recording apart."""

    recording: str
    unit: str
    targets: HandTargets
    fps: float

    @property
    def side(self) -> Side:
        return self.targets.side

    def first(self, count: int | None) -> Take:
        """Return the first ``count`` frames; None: all."""
        return dataclasses.replace(self, targets=_rows(self.targets, slice(count)))

    def every(self, stride: int) -> Take:
        """Return every ``stride``-th frame at the lower rate."""
        kept = _rows(self.targets, slice(None, None, stride))
        return dataclasses.replace(self, targets=kept, fps=self.fps / stride)


def from_joints_file(path: Path, side: Side | None = None, palm_frame: bool = False) -> Take:
    """Read the one hand of a joints file (docs/formats.md).

    Without ``palm_frame`` the file's axes are used as they are, x out of the palm and z from the
    wrist to the fingers, as dex-retargeting's own recording has them.

    Raises:
        InputError: no such file or hand, or axes that are not the palm's.
    """
    motion = read_joints_file(path, side or "right")
    present = [s for slot, s in enumerate(SIDES) if motion.known[:, slot].any()]
    side = side or (present[-1] if present else "right")
    targets = hand_targets(motion, side)
    if targets is None:
        raise InputError(f"{path}: no {side} hand in it; found: {', '.join(present) or 'none'}.")
    if not palm_frame:
        joints = motion.joints_camera[:, SIDES.index(side)]
        joints = joints - joints[:, [WRIST]]
        axes = palm_frames(joints[targets.usable], side)[:, :3, :3].mean(0)
        off = rotations.angle_between(rotations.project_to_rotation(axes)[None], np.eye(3)[None])[0]
        if off > FOREIGN_AXES_RAD:
            raise InputError(
                f"{path}: its axes are {np.degrees(off):.0f} degrees from the palm's (x out of the "
                "palm, z wrist to fingers); add --palm-frame."
            )
        joints = np.where(targets.usable[:, None, None], joints, np.nan)
        targets = dataclasses.replace(targets, joints_hand=joints)
    return Take("joints", side, dataclasses.replace(targets, T_camera_hand=None), motion.fps)


def hot3d_pair(path: Path) -> list[Take]:
    """Read both hands of an npz of ``joints_world`` (T, 2, 21, 3) and ``timestamps_ns``."""
    with np.load(path, allow_pickle=False) as file:
        joints, times = file["joints_world"], file["timestamps_ns"]
    fps = float(1e9 / np.median(np.diff(times)))
    return [
        Take("hot3d", side, _in_palm(joints[:, slot], side), fps) for slot, side in enumerate(SIDES)
    ]


def synthetic_hands(seed: int, hands: int, length: int) -> list[Take]:
    """Return the first hands that are there throughout of ``acehand synth --seed SEED``'s clips.

    One of every clip, left and right in turn; nothing is drawn.
    """
    return list(_synthetic(seed, hands, length))


def _synthetic(seed: int, hands: int, length: int) -> Iterator[Take]:
    options, index, found = SynthOptions(frames=length), 0, 0
    while found < hands:
        _, motion = truth_of(make_episode(seed, index, options))
        side = SIDES[found % 2]
        slot = SIDES.index(side)
        if (motion.presence[:, slot] > 0).all():
            targets = _in_palm(motion.joints_camera[:, slot], side)
            yield Take("synthetic", f"clip {index} {side}", targets, options.fps)
            found += 1
        index += 1


def gestures(hand: HandSpec, tree: KinematicTree, fps: float) -> list[Take]:
    """Return pinches that close to 0 mm, fingers faster than any robot's, and a robot's motion."""
    made = {f"pinch_{f}": pinching_hand(hand.side, f, fps) for f in ("index", "middle")}
    made["fast"] = fast_hand(hand.side, fps)
    takes = [
        Take("gestures", name, _in_palm(joints, hand.side), fps) for name, joints in made.items()
    ]
    # A human hand is smaller than this robot's: the similarity has something to find.
    size = Calibration(1.1, np.eye(3), np.zeros(3), 0.0)
    feasible = trials.targets_of(hand, tree, trials.slow_commands(hand, fps), size)
    return [*takes, Take("gestures", "feasible", feasible, fps)]


def _in_palm(joints: Float[np.ndarray, "T 21 3"], side: Side) -> HandTargets:
    count = len(joints)
    local = frames.apply(frames.inverse(palm_frames(joints, side)), joints)
    return HandTargets(side, local, np.ones(count), np.ones(count, bool), None)


def _rows(targets: HandTargets, rows: slice) -> HandTargets:
    filled = None if targets.filled is None else targets.filled[rows]
    return dataclasses.replace(
        targets,
        joints_hand=targets.joints_hand[rows],
        weight=targets.weight[rows],
        active=targets.active[rows],
        filled=filled,
    )
