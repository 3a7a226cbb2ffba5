"""Grasps of tracked objects: the robot's fingertips touch where the human's do.

Robot and human hand differ in shape, so a robot that follows fingertips closes in front of an
object or inside it. For each grasp a bounded least-squares problem over the commands and a small
shift of the base brings the surfaces of the fingertips whose human counterparts touch the object
onto its surface at those points, keeps the rest of the hand out of object and support, and stays
near the plain solution. The hand then comes with these fingers open, closes on the object, and
squeezes until the human puts it down. ``trajectory`` makes commands of it that keep all limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares, lsq_linear

from acehand_core.geometry import frames, rotations
from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.motion import Calibration
from acehand_core.types import RigidTransform
from retarget.replay.grasps import Grasp, GraspScene, Joints, Poses
from retarget.robots.hand_spec import CommandLimits, Commands, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.solve.collision import CollisionCost, HullCost
from retarget.solve.costs import PostureCost, Weights
from retarget.solve.objective import PoseObjective
from retarget.solve.trajectory import solve_trajectory
from retarget.targets import CommandTarget, HandTargets

#: Largest shift and turn of the base.
SHIFT_M, TURN_RAD = 0.02, np.radians(15)
#: Fingertips nearer to the surface touch it: true ones are 3 to 9 mm inside the finger (24 rendered
#: grasps, seed 700). Of tracked hands the two nearest count up to the second distance.
TOUCH_M, LIKELY_M = 0.010, 0.025
#: Opening before and after a grasp, and squeeze, of the joints that close on the object.
OPEN_RAD, SQUEEZE_RAD = 0.4, 0.1
#: Times before and after the object moves: the hand leaves the plain motion, is open, touches.
_LEAVE_S, _OPEN_S, _TOUCH_S, _SQUEEZED_S = 0.6, 0.3, 0.06, 0.02
#: Share of its speed with which a joint closes.
_PACE = 0.7
_RELEASE_S, _RETURN_S = 0.2, 0.5
#: Scales of the residuals.
_GAP_M, _POINT_M, _INSIDE_M = 0.0015, 0.01, 0.001
_COMMAND_RAD, _PLACE_M, _ANGLE_RAD = 0.35, 0.012, 0.15
#: Clearance of the rest of the hand from the object and from what it stands on.
_CLEAR_OBJECT_M, _CLEAR_SUPPORT_M = 0.001, 0.002
#: Distances beyond this are not measured.
_FAR_M = 0.06
#: Steps of derivatives of gaps, the lever of moments, and the least force of a mean of 1.
_STEP_RAD, _STEP_M, _LEVER_M, _LEAST_FORCE = 0.02, 0.001, 0.05, 0.2
#: Joints with less than this share of the largest torque are not opened.
_OPENS = 0.15
#: Weight of a squared radian from the planned commands.
_NEAR = 3000.0


@dataclass(frozen=True, slots=True, eq=False)
class Contacts:
    """A fitted grasp.

    ``T_base_shifted``: correction of the base, in its own frame. ``closing``: torques of the driven
    joints that press the fingertips on the object in balance, the largest 1.
    """

    commands: Float[np.ndarray, "C"]
    T_base_shifted: RigidTransform
    closing: Float[np.ndarray, "C"]


class _Fit:
    """The least-squares problem of one grasp."""

    def __init__(
        self,
        scene: GraspScene,
        T_object: RigidTransform,
        T_base: RigidTransform,
        commands: Float[np.ndarray, "C"],
        tips: Float[np.ndarray, "K 3"],
    ) -> None:
        self.scene, self.hand = scene, scene.hand
        self._T_object, self._T_base, self._plain = T_object, T_base, commands
        scene.start(commands, T_base, T_object)
        self.pads: list[list[int]] = []
        self.points: list[np.ndarray] = []
        near = [scene.point_to_object(tip) for tip in tips]
        second = sorted(away for away, _ in near)[1]
        for finger, (away, point) in enumerate(near):
            if away < TOUCH_M or away <= min(second, LIKELY_M):
                self.pads.append(scene.fingertip(finger))
                self.points.append(point)
        touching = {geom for pad in self.pads for geom in pad}
        self._others = [geom for geom in scene.hand_geoms if geom not in touching]

    def pose(self, x: np.ndarray) -> None:
        self.scene.pose(x[:-6], self._T_base @ shift(x[-6:]), self._T_object)

    def gaps(self, x: np.ndarray) -> np.ndarray:
        """Return the signed distances of touching fingertips from the object."""
        self.pose(x)
        return np.array([self._nearest(pad)[0] for pad in self.pads])

    def _nearest(self, geoms: Sequence[int]) -> tuple[float, Float[np.ndarray, "3"]]:
        """Return the distance of some geoms from the object, and its nearest point."""
        near = [self.scene.to_object(geom, _FAR_M) for geom in geoms]
        return min(near, key=lambda found: found[0])

    def residuals(self, x: np.ndarray) -> np.ndarray:
        self.pose(x)
        scene, rows = self.scene, []
        for pad, point in zip(self.pads, self.points, strict=True):
            gap, nearest = self._nearest(pad)
            rows += [gap / _GAP_M, *(nearest - point) / _POINT_M]
        for geom in self._others:
            room = scene.to_object(geom, _CLEAR_OBJECT_M)[0] - _CLEAR_OBJECT_M
            rows.append(min(0.0, room) / _INSIDE_M)
        for geom in scene.hand_geoms:
            room = scene.distance(geom, scene.support, _CLEAR_SUPPORT_M)[0] - _CLEAR_SUPPORT_M
            rows.append(min(0.0, room) / _INSIDE_M)
        rows += [*(x[:-6] - self._plain) / _COMMAND_RAD]
        rows += [*x[-6:-3] / _PLACE_M, *x[-3:] / _ANGLE_RAD]
        return np.array(rows)

    def solve(self) -> Contacts:
        hand, count = self.hand, len(self._plain)
        reach = np.repeat([SHIFT_M, TURN_RAD], 3)
        lower = np.concatenate([hand.command_lower, -reach])
        upper = np.concatenate([hand.command_upper, reach])
        start = np.concatenate([self._plain, np.zeros(6)])
        start = np.clip(start, lower + 1e-6, upper - 1e-6)
        scale = np.concatenate([np.full(count, 0.3), np.repeat([0.01, 0.1], 3)])
        x = least_squares(
            self.residuals, start, bounds=(lower, upper), diff_step=1e-4, max_nfev=25, x_scale=scale
        ).x

        contacts = Contacts(x[:count], shift(x[count:]), self._closing(x))
        self.pose(x)
        return contacts

    def _closing(self, x: np.ndarray) -> Float[np.ndarray, "C"]:
        """Return joint torques of contact forces that balance, the largest 1.

        The derivative of a gap by the base's place is the contact's normal, by its turn the moment
        of a unit force, and by a joint the torque against it.
        """
        gaps, slopes = self.gaps(x), []
        for number, step in enumerate(
            [*[_STEP_RAD] * (len(x) - 6), *[_STEP_M] * 3, *[_STEP_RAD] * 3]
        ):
            slopes.append((self.gaps(x + step * np.eye(len(x))[number]) - gaps) / step)
        by_joint, wrench = np.split(np.array(slopes), [len(x) - 6])
        wrench[3:] /= _LEVER_M
        total = np.ones((1, len(gaps)))
        forces = lsq_linear(
            np.concatenate([wrench, total]), [0.0] * 6 + [len(gaps)], bounds=(_LEAST_FORCE, np.inf)
        ).x
        torque = -by_joint @ forces
        return torque / max(float(np.abs(torque).max()), 1e-9)


def shift(values: Float[np.ndarray, "6"]) -> RigidTransform:
    """Return a transform of a translation and a rotation vector."""
    return frames.rigid(rotations.exp(values[3:]), values[:3])


def fit_contacts(
    scene: GraspScene,
    grasp: Grasp,
    commands: Commands,
    T_frame_base: Poses,
    joints: Joints,
    fps: float,
    T_up_frame: RigidTransform,
) -> Contacts | None:
    """Return the robot's grasp as the object starts to move; None: no human fingertip touches it.

    The mean of the first half second, in the object's frame, evens out tracking noise. The scene is
    left in the fitted pose.
    """
    rows = slice(grasp.first, min(grasp.last + 1, grasp.first + max(1, round(0.5 * fps))))
    T_object_frame = frames.inverse(grasp.T_frame_object[rows])
    bases = T_object_frame @ T_frame_base[rows]
    T_object_base = frames.rigid(
        rotations.project_to_rotation(bases[:, :3, :3].mean(0)), np.median(bases[:, :3, 3], axis=0)
    )
    ends = [finger_keypoints(finger)[-1] for finger in scene.hand.fingers]
    tips = np.nanmedian(frames.apply(T_object_frame, joints[rows, grasp.slot][:, ends]), axis=0)

    T_object = T_up_frame @ grasp.T_frame_object[grasp.first]
    near = np.median(commands[rows], axis=0)
    tips = np.nan_to_num(frames.apply(T_object, tips), nan=1e3)
    fit = _Fit(scene, T_object, T_object @ T_object_base, near, tips)
    return fit.solve() if fit.pads else None


def plan_grasp(
    hand: HandSpec,
    grasp: Grasp,
    contacts: Contacts,
    commands: Commands,
    fps: float,
) -> tuple[Commands, Poses]:
    """Return commands that approach, close, squeeze and release, and the base's corrections.

    An object that is held from the first frame on is never let go before it is put down.
    """
    touch, closing = contacts.commands, contacts.closing
    # A slow joint opens only as far as it closes again in time: fingers touch together.
    reach = np.minimum(OPEN_RAD, _PACE * hand.command_velocity * (_OPEN_S - _TOUCH_S))
    opening = reach * np.sign(closing) * (np.abs(closing) > _OPENS)
    opened = np.clip(touch - opening, hand.command_lower, hand.command_upper)
    squeezed = np.clip(touch + SQUEEZE_RAD * closing, hand.command_lower, hand.command_upper)
    first, last = grasp.first / fps, grasp.last / fps
    keys = [
        (first - _LEAVE_S, opened, 0.0),
        (first - _OPEN_S, opened, 1.0),
        (first - _TOUCH_S, touch, 1.0),
        (first + _SQUEEZED_S, squeezed, 1.0),
        (last, squeezed, 1.0),
        (last + _RELEASE_S, opened, 1.0),
        (last + _RETURN_S, opened, 0.0),
    ]
    if grasp.first == 0:
        keys = [(0.0, squeezed, 1.0), *keys[4:]]

    at, poses, weights = zip(*keys, strict=True)
    times = np.arange(len(commands)) / fps
    share = np.interp(times, at, weights)[:, None]
    wanted = np.stack([np.interp(times, at, joint) for joint in np.transpose(poses)], axis=1)
    eased = share**2 * (3 - 2 * share)
    turn = rotations.exp(eased * rotations.log(contacts.T_base_shifted[:3, :3]))
    corrections = frames.rigid(turn, eased * contacts.T_base_shifted[:3, 3])
    return commands + eased * (wanted - commands), corrections


def within_limits(
    hand: HandSpec, targets: HandTargets, fitted: Calibration, planned: Commands, fps: float
) -> Commands:
    """Return the commands nearest to the planned ones that keep all limits and touch no link."""
    near = CommandTarget(planned, np.full(planned.shape, _NEAR))
    costs = (PostureCost, CollisionCost, HullCost)
    tree = KinematicTree.of(hand)
    objective = PoseObjective(hand, tree, targets, fitted, Weights(), near, costs)
    return solve_trajectory(objective, CommandLimits.of(hand, fps), planned)
