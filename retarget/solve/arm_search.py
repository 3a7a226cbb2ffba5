"""Placement of arm bases: most of the clip in reach, without collisions.

Searched bases stand at one height, on a table if there is one. Stands around each hand's path are
tried with few poses, the best of every direction and height with more, then several joint paths
along the clip; the best pair of paths without collision wins. A given base is the only stand of its
arm. Everything is seeded, so the same clip gives the same bases.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import frames, rotations
from acehand_core.types import RigidTransform
from retarget.solve.arm import Arm, BasePath, pose_points
from retarget.solve.arm_path import descend, mean_error, sweep
from retarget.solve.arm_scene import ArmScene, ArmTable, Places

#: A frame is reached when the hand's base is this near.
REACHED_M, REACHED_RAD = 0.005, np.radians(3.0)
#: Least distance of searched bases.
APART_M = 0.4
#: Heights of bases and distances from the middle of the paths, in shares of the reach.
_HEIGHTS, _DISTANCES = (-0.55, -0.4, -0.2, 0.0, 0.2), (0.45, 0.6, 0.75)
_SECTORS = 12
#: Directions per height tried with more poses; best heights, stands and frames tried along the
#: clip; joint paths kept of each.
_DIRECTIONS, _TRIED_HEIGHTS, _TRIED_STANDS, _TRIED_FRAMES, _KEPT_CANDIDATES = 8, 3, 12, 60, 2
#: Pairs of paths compared in few and in all tried frames; results returned.
_TRIED_PAIRS, _CHECKED_PAIRS, _RETURNED = 300, 30, 3
#: Costs against 1 of an unreached frame: of a collision and per metre of missing distance. Between
#: arms, missing room up to ``_ROOMY_M`` costs a little, since only some frames are tried.
COLLIDES, _LACKS, _ROOMY_M, _LACKS_ROOM = 3.0, 30.0, 0.1, 1.0

Stands = Float[np.ndarray, "N 4 4"]
Poses = Float[np.ndarray, "K 4 4"]
Vector = Float[np.ndarray, "3"]


@dataclass(frozen=True, slots=True, eq=False)
class ArmTask:
    """Poses of the hand's base in the trajectory's frame, active frames, and a given arm base."""

    poses: BasePath
    active: Bool[np.ndarray, "T"]
    base: RigidTransform | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A height of bases along ``up``, with a table or without."""

    height_m: float
    table: ArmTable | None


@dataclass(frozen=True, slots=True, eq=False)
class ArmPlacement:
    """Bases and first postures of all arms, the table, and the cost."""

    bases: dict[int, RigidTransform]
    postures: dict[int, Float[np.ndarray, "J"]]
    table: ArmTable | None
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A joint path along the clip from one stand; ``cost``: its misses and own distances."""

    level: Level
    base: RigidTransform
    posture: Float[np.ndarray, "J"]
    places: Places
    cost: float


def levels_of(
    arm: Arm, tasks: Sequence[ArmTask], up: Vector, table_m: float | None, assumed: bool
) -> list[Level]:
    """Return the possible heights of bases; ``assumed``: on a table if ``table_m`` is None."""
    known = [task.base for task in tasks if task.base is not None]
    if table_m is not None:
        return [Level(table_m, ArmTable(up, table_m))]
    if known:
        heights = [float(min(up @ base[:3, 3] for base in known))]
        assumed = assumed and len(known) < len(tasks)
    else:
        middle = np.concatenate([task.poses[task.active, :3, 3] for task in tasks]).mean(axis=0)
        heights = [float(up @ middle) + share * reach_of(arm) for share in _HEIGHTS]
    return [Level(height, ArmTable(up, height) if assumed else None) for height in heights]


def reach_of(arm: Arm) -> float:
    """Return the largest distance of the hand from the arm's base, metres."""
    joints = np.random.default_rng(0).uniform(arm.lower, arm.upper, (500, len(arm.lower)))
    return float(np.linalg.norm(arm.base_poses(joints)[:, :3, 3], axis=1).max())


def place_arms(
    scene: ArmScene, tasks: Mapping[int, ArmTask], fps: float, up: Vector, levels: Sequence[Level]
) -> list[ArmPlacement]:
    """Return placements with different bases, the best first; ``up`` is a unit vector."""
    tried = {}
    for slot, task in tasks.items():
        if task.base is None:
            tried[slot] = _stands(scene.arm, task, up, [level.height_m for level in levels])
        else:  # it goes with every height
            middle = (scene.arm.lower + scene.arm.upper) / 2
            tried[slot] = [_Stands(task.base[None], np.zeros(1), middle[None])] * len(levels)
    best = np.sum([[one.score[0] for one in own] for own in tried.values()], axis=0)
    chosen = np.argsort(-best, kind="stable")[:_TRIED_HEIGHTS].tolist()

    candidates: dict[int, list[_Candidate]] = {slot: [] for slot in tasks}
    for slot, at in itertools.product(tasks, chosen):
        candidates[slot] += _candidates(scene, slot, tasks[slot], fps, tried[slot][at], levels[at])
    searched = any(task.base is None for task in tasks.values())
    return _best_teams(scene, candidates, APART_M if searched else 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Stands:
    """N stands of one height, the best first, with a posture of each for the first pose.

    The score is the share of reached poses, less for poses that are far off.
    """

    stands: Stands
    score: Float[np.ndarray, "N"]
    postures: Float[np.ndarray, "N J"]


def _stands(arm: Arm, task: ArmTask, up: Vector, heights: Sequence[float]) -> list[_Stands]:
    """Return the best stands of several directions from the path at every height."""
    random = np.random.default_rng(0)
    poses = task.poses[task.active]
    rows = (np.linspace(0, len(poses) - 1, count).round().astype(int) for count in (5, 16))
    few, many = (poses[np.unique(one)] for one in rows)
    around = [_around(poses[:, :3, 3].mean(0), reach_of(arm), up, height) for height in heights]
    coarse = _try(arm, np.concatenate(around), few, random, starts=2, rounds=12)
    score = coarse.score.reshape(len(heights), _SECTORS, -1)

    near = []
    for level in range(len(heights)):
        stands = around[level].reshape(_SECTORS, -1, 4, 4)
        best = stands[np.arange(_SECTORS), score[level].argmax(axis=1)]
        order = np.argsort(-score[level].max(axis=1), kind="stable")[:_DIRECTIONS]
        near.append(np.concatenate([best[order], _jittered(best[order], up, random)]))
    fine = _try(arm, np.concatenate(near), many, random, starts=3, rounds=25)

    tried, size = [], 2 * _DIRECTIONS
    for level, stands in enumerate(near):
        own = slice(level * size, (level + 1) * size)
        order = np.argsort(-fine.score[own], kind="stable")[:_TRIED_STANDS]
        tried.append(_Stands(stands[order], fine.score[own][order], fine.postures[own][order]))
    return tried


def _around(middle: Vector, reach: float, up: Vector, height: float) -> Stands:
    """Return upright poses at a height around a point by sectors, with four headings."""
    upright = rotations.between(np.array([0.0, 0.0, 1.0]), up)
    above = height - float(up @ middle)
    stands = []
    for side in 2 * np.pi / _SECTORS * np.arange(_SECTORS):
        for distance in _DISTANCES:
            level = np.sqrt(max((distance * reach) ** 2 - above**2, (0.2 * reach) ** 2))
            away = np.array([level * np.cos(side), level * np.sin(side), above])
            for heading in (0, np.pi / 2, np.pi, -np.pi / 2):
                turn = rotations.exp(np.array([0, 0, side + np.pi + heading]))
                stands.append(frames.rigid(upright @ turn, middle + upright @ away))
    return np.stack(stands)


def _jittered(stands: Stands, up: Vector, random: np.random.Generator) -> Stands:
    """Return stands nearby, as high and as upright."""
    near = stands.copy()
    moves = random.normal(0, 0.06, (len(stands), 3))
    near[:, :3, 3] += moves - (moves @ up)[:, None] * up
    turn = rotations.exp(random.normal(0, 0.3, (len(stands), 1)) * up)
    near[:, :3, :3] = turn @ near[:, :3, :3]
    return near


def _try(
    arm: Arm, stands: Stands, poses: Poses, random: np.random.Generator, starts: int, rounds: int
) -> _Stands:
    """Return how well each stand reaches the poses, from several postures each."""
    goals = frames.inverse(stands)[:, None] @ poses
    flat = np.repeat(goals.reshape(-1, 4, 4), starts, axis=0)
    postures = random.uniform(0.25, 0.75, (starts, len(arm.lower)))
    postures[0] = 0.5
    joints = arm.lower + (arm.upper - arm.lower) * np.tile(postures, (len(flat) // starts, 1))
    joints = descend(arm, joints, pose_points(flat), rounds)
    error = mean_error(arm, joints, pose_points(flat)).reshape(len(stands), len(poses), starts)
    first = joints.reshape(len(stands), len(poses), starts, -1)[:, 0]
    posture = first[np.arange(len(stands)), error[:, 0].argmin(axis=-1)]
    error = error.min(axis=-1)
    share = (error <= REACHED_M).mean(axis=1)
    return _Stands(stands, share - 0.2 * np.minimum(error.mean(axis=1) / 0.1, 1), posture)


def _candidates(
    scene: ArmScene, slot: int, task: ArmTask, fps: float, tried: _Stands, level: Level
) -> list[_Candidate]:
    """Return joint paths along some frames of the clip from these stands."""
    arm = scene.arm
    stride = -(-len(task.poses) // _TRIED_FRAMES)
    rows = np.arange(0, len(task.poses), stride)
    weights = task.active[rows].astype(float)
    if not weights.any():
        rows, weights = np.flatnonzero(task.active)[:1], np.ones(1)
    targets = pose_points(frames.inverse(tried.stands)[:, None] @ task.poses[rows])
    joints, errors = sweep(arm, targets, weights, arm.speed * stride / fps, tried.postures)

    candidates = []
    for stand, own in enumerate(joints):
        best = np.argsort(errors[stand], kind="stable")
        for index in best[: _KEPT_CANDIDATES if task.base is None else None].tolist():
            base, path = tried.stands[stand], own[index]
            off = mean_error(arm, path, targets[stand])[weights > 0]
            places = scene.places(slot, base, path, rows)
            alone = _cost_of(*scene.own_shortfall(slot, places, level.table))
            missed = float((off > REACHED_M).mean() + np.minimum(off, 0.1).mean())
            candidates.append(_Candidate(level, base, path[0], places, missed + alone))
    return sorted(candidates, key=lambda candidate: candidate.cost)


def _cost_together(
    scene: ArmScene, slots: Sequence[int], team: Sequence[_Candidate], rows: slice
) -> float:
    """Return the cost of a path of each arm, with collisions of both in some frames."""
    sides = {slot: candidate.places.at(rows) for slot, candidate in zip(slots, team, strict=True)}
    roomy = max(_ROOMY_M, scene.clearance_m)
    shortfall, inside = scene.mutual_shortfall(sides, roomy)
    lacks = np.maximum(shortfall - (roomy - scene.clearance_m), 0)
    room = _LACKS_ROOM * float(shortfall.mean())
    return sum(candidate.cost for candidate in team) + _cost_of(lacks, inside) + room


def _cost_of(shortfall: Float[np.ndarray, "T"], inside: Bool[np.ndarray, "T"]) -> float:
    return float(COLLIDES * inside.mean() + _LACKS * shortfall.mean())


def _best_teams(
    scene: ArmScene, candidates: Mapping[int, list[_Candidate]], apart_m: float
) -> list[ArmPlacement]:
    """Return the best teams of paths, one of each arm."""

    def cost(team: Sequence[_Candidate]) -> float:
        return sum(candidate.cost for candidate in team)

    slots, every = tuple(candidates), itertools.product(*candidates.values())
    level = [team for team in every if all(candidate.level is team[0].level for candidate in team)]
    steps = (np.linalg.norm(team[0].base[:3, 3] - team[-1].base[:3, 3]) for team in level)
    apart = [t for t, step in zip(level, steps, strict=True) if len(t) < 2 or step >= apart_m]
    teams = sorted(apart or level, key=cost)

    # Few frames of many, then all frames of the best.
    costs = np.array([cost(team) for team in teams])
    if len(slots) > 1:
        for count, rows in ((_TRIED_PAIRS, slice(None, None, 6)), (_CHECKED_PAIRS, slice(None))):
            order = np.argsort(costs, kind="stable")[:count].tolist()
            teams = [teams[index] for index in order]
            costs = np.array([_cost_together(scene, slots, team, rows) for team in teams])

    placements: list[ArmPlacement] = []
    seen: set[bytes] = set()
    for index in np.argsort(costs, kind="stable").tolist():
        team = teams[index]
        # With given bases, placements differ in their postures.
        key = b"".join(
            (candidate.base if apart_m else candidate.posture).tobytes() for candidate in team
        )
        if key not in seen and len(placements) < _RETURNED:
            seen.add(key)
            bases = dict(zip(slots, (candidate.base for candidate in team), strict=True))
            postures = dict(zip(slots, (candidate.posture for candidate in team), strict=True))
            table = team[0].level.table
            placements.append(ArmPlacement(bases, postures, table, float(costs[index])))
    return placements
