"""Arms, hands and the table as shapes, and the distances between these.

The shapes are those that collide in their files. MuJoCo measures the distances, with convex hulls
for meshes, of pairs with near bounding spheres.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.geometry import frames, rotations
from acehand_core.motion import RobotTrajectory
from acehand_core.mujoco_gl import import_mujoco
from acehand_core.types import SIDES, RigidTransform
from retarget.robots.collision_shapes import link_places
from retarget.robots.kinematics import KinematicTree, load_mjcf
from retarget.robots.robot import Robot
from retarget.solve.arm import Arm, ArmJoints
from retarget.solve.arm_path import Avoid, Shortfalls
from retarget.solve.collision import volumes

if TYPE_CHECKING:
    import mujoco

#: Distances are measured up to here; larger ones count as this.
FAR_M = 1.0
#: Distance that shapes of one arm and its hand keep where the solver can choose.
OWN_M = 0.005
#: Extra clearance: a soft cost leaves a small violation.
_MARGIN_M = 0.003
#: Frames whose pairs are compared at once, to bound the memory.
_BLOCK = 256

ShapePairs = Int[np.ndarray, "_ 2"]

_Rows = slice | Int[np.ndarray, "N"]
#: Metres in T frames, and where shapes are inside each other.
_Shortfall = tuple[Float[np.ndarray, "T"], Bool[np.ndarray, "T"]]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Places of G shapes in T frames: centres in metres, and turns."""

    centres: Float[np.ndarray, "T G 3"]
    turns: Float[np.ndarray, "T G 3 3"]

    def at(self, rows: slice | Int[np.ndarray, "N"]) -> Places:
        return Places(self.centres[rows], self.turns[rows])

    def moved(self, poses: Float[np.ndarray, "T 4 4"]) -> Places:
        """Return the places in the frame in which their frames have ``poses``."""
        turns = poses[:, None, :3, :3]
        centres = (turns @ self.centres[..., None])[..., 0] + poses[:, None, :3, 3]
        return Places(centres, turns @ self.turns)


def solid_shapes(model: mujoco.MjModel, left_out: Collection[int]) -> Int[np.ndarray, "G"]:
    """Return the shapes that collide, or all if none does; without planes and some bodies."""
    shapes = volumes(model)
    shapes = shapes[~np.isin(model.geom_bodyid[shapes], list(left_out))]
    solid = shapes[(model.geom_contype[shapes] | model.geom_conaffinity[shapes]) != 0]
    return solid if len(solid) else shapes


def visible_shapes(arm: Arm) -> Int[np.ndarray, "G"]:
    """Return an arm's visible shapes: those that do not collide, if any."""
    model = arm.model
    solid = solid_shapes(model, arm.carried)
    shapes = np.flatnonzero(~np.isin(model.geom_bodyid, list(arm.carried)))
    silent = (model.geom_contype[shapes] | model.geom_conaffinity[shapes]) == 0
    shown = np.intersect1d(shapes[silent], volumes(model))
    return shown if len(shown) else solid


def add_shape(
    spec: mujoco.MjSpec, body: mujoco.MjsBody, model: mujoco.MjModel, shape: int, name: str
) -> mujoco.MjsGeom:
    """Add a copy of a model's shape to a body, in the link's frame; return it."""
    mujoco = import_mujoco()
    keys = ("type", "size", "pos", "quat")
    geom = body.add_geom(name=name, **{key: getattr(model, f"geom_{key}")[shape] for key in keys})
    if model.geom_type[shape] == int(mujoco.mjtGeom.mjGEOM_MESH):
        number = int(model.geom_dataid[shape])
        first, count = model.mesh_vertadr[number], model.mesh_vertnum[number]
        vertices = model.mesh_vert[first : first + count]
        mesh = spec.add_mesh(name=name, uservert=vertices.astype(float).reshape(-1))
        first, count = model.mesh_faceadr[number], model.mesh_facenum[number]
        mesh.userface = model.mesh_face[first : first + count].reshape(-1)
        # Flat meshes have no volume.
        mesh.inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_SHELL
        geom.meshname = name
    return geom


Sides = Mapping[int, Places]


@dataclass(frozen=True, slots=True, eq=False)
class ArmTable:
    """The plane of points p of the trajectory's frame with ``up @ p == height_m``."""

    up: Float[np.ndarray, "3"]
    height_m: float


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """Smallest distances of one arm in T frames, metres, negative inside, ``FAR_M`` at most.

    ``other``: arm and hand to the other arm, and arm to the other hand. ``own``: between its links,
    and to its own hand. ``table``: of its moving links.
    """

    other: Float[np.ndarray, "T"]
    own: Float[np.ndarray, "T"]
    table: Float[np.ndarray, "T"]


@dataclass(frozen=True, slots=True, eq=False)
class _Close:
    """N near pairs: frame, shapes, missing distance, and their nearest points.

    ``normal`` leads from the second to the first, also where they penetrate.
    """

    frame: Int[np.ndarray, "N"]
    shapes: Int[np.ndarray, "N 2"]
    shortfall: Float[np.ndarray, "N"]
    points: Float[np.ndarray, "N 2 3"]
    normal: Float[np.ndarray, "N 3"]


class ArmScene:
    """The shapes of one or two arms and their hands, in the order arm, hand, arm, hand."""

    def __init__(
        self,
        arm: Arm,
        trajectory: RobotTrajectory,
        robot: Robot | None,
        slots: Sequence[int],
        clearance_m: float,
    ) -> None:
        """Read the shapes.

        Args:
            robot: its hands; None: none.
            slots: the sides with an arm.
            clearance_m: distance between arms and to the table.
        """
        self._mujoco: Any = import_mujoco()
        self.arm, self.clearance_m = arm, clearance_m
        spec = self._mujoco.MjSpec()
        shapes = solid_shapes(arm.model, arm.carried)
        self._arm_bodies = arm.model.geom_bodyid[shapes]
        self._arm_range, self._hand_range, read = {}, {}, {}
        count = 0
        for slot in slots:
            self._arm_range[slot] = range(count, count + len(shapes))
            hand = None if robot is None else robot.hands.get(SIDES[slot])
            model = None if hand is None else load_mjcf(hand.mjcf_path)
            read[slot] = hand, model, np.zeros(0, int) if model is None else solid_shapes(model, ())
            count += len(shapes)
            self._hand_range[slot] = range(count, count + len(read[slot][2]))
            count = self._hand_range[slot].stop
            for model, which in ((arm.model, shapes), read[slot][1:]):
                for shape in which:
                    add_shape(spec, spec.worldbody, model, int(shape), f"{slot} {len(spec.geoms)}")
        plane = self._mujoco.mjtGeom.mjGEOM_PLANE
        spec.worldbody.add_geom(type=plane, size=[1, 1, 1])
        self._model = spec.compile()
        self._data = self._mujoco.MjData(self._model)
        self._plane, self._radii = count, self._model.geom_rbound.copy()

        # Compiling may have moved the frame of a mesh, so places are read only now.
        turns = rotations.from_quaternion(self._model.geom_quat)
        self._local = self._model.geom_pos[: len(shapes)], turns[: len(shapes)]
        self._hands = {}
        for slot, (hand, model, which) in read.items():
            places = Places(np.zeros((len(trajectory), 0, 3)), np.zeros((len(trajectory), 0, 3, 3)))
            if hand is not None and model is not None:
                own, tree = self._hand_range[slot], KinematicTree.of(hand)
                links, joints = model.geom_bodyid[which] - 1, trajectory.joints[:, slot]
                centres, posture = self._model.geom_pos[own], tree.posture(joints)
                places = Places(*link_places(posture, links, centres, turns[own]))
            self._hands[slot] = places

        self._between = self._pairs_between(slots)
        self._self_pairs = {slot: self._pairs_of(slot) for slot in slots}
        self._on_table = {slot: self._pairs_with_table(slot) for slot in slots}

    @property
    def has_hands(self) -> bool:
        """Whether shapes of hands are known."""
        return any(len(own) for own in self._hand_range.values())

    def _pairs_between(self, slots: Sequence[int]) -> ShapePairs:
        """Return the pairs of both sides, without those of the two hands, whose motion is given."""
        if len(slots) < 2:
            return np.zeros((0, 2), int)
        arm_a, arm_b = (self._arm_range[slot] for slot in slots)
        hand_a, hand_b = (self._hand_range[slot] for slot in slots)
        pairs = [*itertools.product(arm_a, [*arm_b, *hand_b]), *itertools.product(hand_a, arm_b)]
        return np.array(pairs, int).reshape(-1, 2)

    def _pairs_of(self, slot: int) -> ShapePairs:
        """Return the pairs of one side that may touch.

        Left out are neighbouring links, exclusions of the file, links that touch at rest, and pairs
        of the hand with its mount.
        """
        model, start = self.arm.model, self._arm_range[slot].start
        weld, bodies = model.body_weldid, self._arm_bodies
        above = weld[model.body_parentid[weld]]
        excluded = {(int(s) >> 16, int(s) & 0xFFFF) for s in model.exclude_signature}
        shapes = solid_shapes(model, self.arm.carried)
        types, affinities = model.geom_contype[shapes], model.geom_conaffinity[shapes]
        silent = not (types.any() or affinities.any())  # the file disables all contacts
        pairs = []
        for i, j in itertools.combinations(range(len(bodies)), 2):
            a, b = int(weld[bodies[i]]), int(weld[bodies[j]])
            near = a == b or above[a] == b or above[b] == a
            named = {(int(bodies[i]), int(bodies[j])), (int(bodies[j]), int(bodies[i]))}
            meets = types[i] & affinities[j] or types[j] & affinities[i]
            if not near and (meets or silent) and not named & excluded:
                pairs.append((start + i, start + j))

        apart = self._apart_at_rest(slot, np.array(pairs, int).reshape(-1, 2), None)
        free = np.flatnonzero(weld[bodies] != weld[self.arm.body]) + start
        of_hand = list(itertools.product(free.tolist(), self._hand_range[slot]))
        return np.concatenate([apart, np.array(of_hand, int).reshape(-1, 2)])

    def _pairs_with_table(self, slot: int) -> ShapePairs:
        """Return the pairs with the table of moving links; not of the first one if so at rest."""
        model, start = self.arm.model, self._arm_range[slot].start
        weld = model.body_weldid[self._arm_bodies]
        first = (weld > 0) & (model.body_weldid[model.body_parentid[weld]] == 0)
        pairs = np.stack([np.arange(len(weld)) + start, np.full(len(weld), self._plane)], axis=1)
        level = ArmTable(np.array([0.0, 0.0, 1.0]), 0.0)
        at_base = self._apart_at_rest(slot, pairs[first], level)
        return np.concatenate([at_base, pairs[(weld > 0) & ~first]])

    def _apart_at_rest(self, slot: int, pairs: ShapePairs, table: ArmTable | None) -> ShapePairs:
        """Return the pairs that do not touch at rest."""
        for rest in self.arm.rests:
            sides = {slot: self.places(slot, np.eye(4), rest[None], slice(0, 1))}
            touching = self._close(sides, pairs, 0.0, table).shapes
            pairs = pairs[~(pairs[:, None] == touching).all(-1).any(-1)]
        return pairs

    def places(
        self, slot: int, T_frame_arm: RigidTransform, joints: ArmJoints, rows: _Rows
    ) -> Places:
        """Return the places of an arm and its hand; ``rows`` are the frames of these joints."""
        links = self._arm_bodies - 1
        own = link_places(self.arm.posture_at(joints), links, *self._local)
        hand = self._hands[slot].at(rows).moved(self.arm.base_poses(joints))
        parts = zip(own, (hand.centres, hand.turns), strict=True)
        both = Places(*(np.concatenate(part, axis=1) for part in parts))
        return both.moved(np.broadcast_to(T_frame_arm, (len(joints), 4, 4)))

    def distances(self, sides: Sides, table: ArmTable | None) -> dict[int, Distances]:
        """Return the smallest distances of every arm."""
        other = self._smallest(sides, self._between, None)
        result = {}
        for slot in sides:
            on_table = np.zeros((0, 2), int) if table is None else self._on_table[slot]
            own = self._smallest(sides, self._self_pairs[slot], None)
            result[slot] = Distances(other, own, self._smallest(sides, on_table, table))
        return result

    def own_shortfall(self, slot: int, places: Places, table: ArmTable | None) -> _Shortfall:
        """Return the distance that an arm lacks to itself and the table, and its collisions."""
        return self._shortfall({slot: places}, self._own_pairs(slot, table))

    def mutual_shortfall(self, sides: Sides, keep_m: float) -> _Shortfall:
        """Return the distance that two arms lack to each other, and their collisions."""
        return self._shortfall(sides, [(self._between, keep_m, None)])

    def avoidance(
        self, slot: int, T_frame_arm: RigidTransform, others: Sides, table: ArmTable | None
    ) -> Avoid:
        """Return what reports to a solver where an arm is too close to anything."""
        arm = self.arm
        kinds = self._own_pairs(slot, table)
        if others:
            kinds.append((self._between, self.clearance_m, None))

        def avoid(joints: ArmJoints, rows: slice) -> Shortfalls:
            sides = {slot: self.places(slot, T_frame_arm, joints, rows)}
            sides |= {other: places.at(rows) for other, places in others.items()}
            near = [self._close(sides, pairs, keep + _MARGIN_M, of) for pairs, keep, of in kinds]
            parts = [[getattr(close, part.name) for close in near] for part in fields(_Close)]
            close = _Close(*map(np.concatenate, parts))

            normal = close.normal @ T_frame_arm[:3, :3]
            points = frames.apply(frames.inverse(T_frame_arm), close.points)
            gradient = np.zeros((len(normal), joints.shape[1]))
            mine = (*self._arm_range[slot], *self._hand_range[slot])
            links = np.full(self._plane + 1, arm.body - 1)
            links[self._arm_range[slot]] = self._arm_bodies - 1

            for end, sign in ((0, -1.0), (1, 1.0)):
                here = np.flatnonzero(np.isin(close.shapes[:, end], mine))
                moving = links[close.shapes[here, end]]
                rates = arm.point_rates(joints, close.frame[here], moving, points[here, end])
                gradient[here] += sign * np.einsum("nx,nxj->nj", normal[here], rates)
            return Shortfalls(close.frame, close.shortfall, gradient)

        return avoid

    def _own_pairs(
        self, slot: int, table: ArmTable | None
    ) -> list[tuple[ShapePairs, float, ArmTable | None]]:
        """Return pairs, distance to keep and table of one arm alone."""
        kinds: list[tuple[ShapePairs, float, ArmTable | None]] = [
            (self._self_pairs[slot], OWN_M, None)
        ]
        if table is not None:
            kinds.append((self._on_table[slot], self.clearance_m, table))
        return kinds

    def _shortfall(
        self, sides: Sides, kinds: Sequence[tuple[ShapePairs, float, ArmTable | None]]
    ) -> _Shortfall:
        count = len(next(iter(sides.values())).centres)
        lacking, inside = np.zeros(count), np.zeros(count, bool)
        for pairs, keep, table in kinds:
            close = self._close(sides, pairs, keep, table)
            np.maximum.at(lacking, close.frame, close.shortfall)
            inside[close.frame[close.shortfall > keep]] = True
        return lacking, inside

    def _close(
        self, sides: Sides, pairs: ShapePairs, keep_m: float, table: ArmTable | None
    ) -> _Close:
        """Return the pairs nearer than ``keep_m``."""
        whole = self._whole(sides)
        frame, which, distance, ends = [], [], [], []
        for first in range(0, len(whole.centres), _BLOCK):
            block = whole.at(slice(first, first + _BLOCK))
            near = self._bounds(block, pairs, table) < keep_m
            for row in np.flatnonzero(near.any(axis=1)).tolist():
                self._set(block, row, table)
                for pair in np.flatnonzero(near[row]).tolist():
                    distance_m, points = self._distance(pairs[pair], keep_m)
                    if distance_m < keep_m:
                        frame.append(first + row)
                        which.append(pair)
                        distance.append(distance_m)
                        ends.append(points)

        points, gap = np.array(ends).reshape(-1, 2, 3), np.array(distance)
        # Inside, the points are the deepest and the distance is negative.
        far = np.where(np.abs(gap) < 1e-9, np.inf, gap)
        normal = (points[:, 0] - points[:, 1]) / far[:, None]
        shapes = pairs[np.array(which, int)]
        return _Close(np.array(frame, int), shapes, keep_m - gap, points, normal)

    def _smallest(
        self, sides: Sides, pairs: ShapePairs, table: ArmTable | None
    ) -> Float[np.ndarray, "T"]:
        """Return the smallest distance among pairs in every frame."""
        whole = self._whole(sides)
        smallest = np.full(len(whole.centres), FAR_M)
        for first in range(0, len(smallest), _BLOCK):
            block = whole.at(slice(first, first + _BLOCK))
            bounds = self._bounds(block, pairs, table)
            for row, order in enumerate(np.argsort(bounds, axis=1, kind="stable")):
                self._set(block, row, table)
                best = FAR_M
                for pair in order.tolist():
                    if bounds[row, pair] >= best:
                        break
                    best = min(best, self._distance(pairs[pair], best)[0])
                smallest[first + row] = best
        return smallest

    def _bounds(
        self, places: Places, pairs: ShapePairs, table: ArmTable | None
    ) -> Float[np.ndarray, "T P"]:
        """Return lower bounds of distances, by bounding spheres."""
        first, second = pairs.T
        if table is not None:
            return (places.centres[:, first] @ table.up - table.height_m) - self._radii[first]
        between = np.linalg.norm(places.centres[:, first] - places.centres[:, second], axis=-1)
        return between - self._radii[first] - self._radii[second]

    def _whole(self, sides: Sides) -> Places:
        """Return the places of all shapes; zeros for an absent side."""
        count = len(next(iter(sides.values())).centres)
        whole = Places(np.zeros((count, self._plane, 3)), np.zeros((count, self._plane, 3, 3)))
        for slot, places in sides.items():
            columns = slice(self._arm_range[slot].start, self._hand_range[slot].stop)
            whole.centres[:, columns], whole.turns[:, columns] = places.centres, places.turns
        return whole

    def _set(self, places: Places, row: int, table: ArmTable | None) -> None:
        self._data.geom_xpos[: self._plane] = places.centres[row]
        self._data.geom_xmat[: self._plane] = places.turns[row].reshape(-1, 9)
        if table is not None:
            upright = rotations.between(np.array([0.0, 0.0, 1.0]), table.up)
            self._data.geom_xpos[self._plane] = table.height_m * table.up
            self._data.geom_xmat[self._plane] = upright.reshape(9)

    def _distance(
        self, pair: Int[np.ndarray, "2"], within: float
    ) -> tuple[float, Float[np.ndarray, "2 3"]]:
        points = np.zeros(6)
        first, second = pair.tolist()
        distance = self._mujoco.mj_geomDistance(
            self._model, self._data, first, second, within, points
        )
        return float(distance), points.reshape(2, 3)
