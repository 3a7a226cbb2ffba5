"""Builds the skinned mesh of the default hand. Development only: needs scikit-image and SciPy.

``python -m tools.hand_asset.authoring`` rewrites ``assets/acehand_right.npz``: the zero level of
``skin_field``, extracted finely, decimated to even triangles and put back on the field, with skin
weights, shape directions and a tint per vertex. Worked out in the millimetres and anatomical axes
of ``skin_field``; stored in metres in the model's axes, origin at the middle knuckle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from acehand_core.hand.articulation import (
    ANATOMICAL_TO_MODEL,
    Proportions,
    proportion_gradients,
    rest_keypoints,
)
from acehand_core.hand.skeleton import FINGERS, TREE_TO_KEYPOINT
from tools.hand_asset import remeshing, skin_field
from tools.hand_asset.skin_field import Distances, Finger, Points

ROOT = Path(__file__).resolve().parents[2]
ASSET = ROOT / "acehand_core" / "hand" / "assets" / "acehand_right.npz"

Weights = Float[np.ndarray, "N 16"]

#: First joint of each finger in the tree of 16 joints.
_FIRST_JOINT = {"index": 1, "middle": 4, "pinky": 7, "ring": 10, "thumb": 13}
#: Middle and half width in mm of the zone in which the skin passes from one bone to the next.
#: The thumb's first bone is ``_thumb_base``'s matter: what lies on the thumb follows it wholly.
_BLENDS = {
    "thumb": ((-100.0, 1.0), (0.0, 11.0), (0.0, 9.0)),
    "other": ((2.0, 11.0), (0.0, 8.5), (0.0, 6.5)),
}
#: How much further out (mm per mm of depth) the palm side of a joint begins to follow.
_SLANT = {"thumb": (0.0, 0.15, 0.1), "other": (0.55, 0.1, 0.1)}


def build(spacing: float = 2.0, coarseness: float = 1.0) -> dict[str, np.ndarray]:
    """Return the asset's arrays; deterministic.

    Args:
        spacing: grid of the first extraction in mm.
        coarseness: multiplies the edge length of the result.

    Returns:
        vertices (V, 3) float32 metres; faces (F, 3) uint16; joints (V, 4) uint8 tree joints and
        weights (V, 4) float32 that sum to one; shape_directions (10, V, 3) float16 millimetres
        per unit beta; tint (V, 2) uint8, see ``CapsuleHand.tint``.
    """
    points, faces = _surface(spacing, coarseness)
    knuckle = rest_keypoints(Proportions())[9]
    # The model's axes are the mirror image of the anatomical ones: turn the triangles over.
    return {
        "vertices": ((points - knuckle) @ ANATOMICAL_TO_MODEL.T * 1e-3).astype(np.float32),
        "faces": faces[:, ::-1].astype(np.uint16),
        **attributes(points, faces),
    }


def attributes(points: Points, faces: Int[np.ndarray, "F 3"]) -> dict[str, np.ndarray]:
    """Return what the asset holds besides vertices and faces, see ``build``."""
    weights = skin_weights(points, faces)
    joints, values = _strongest_four(weights)
    directions = _shape_directions(points, weights) @ ANATOMICAL_TO_MODEL.T
    tint = _tint(points, remeshing.vertex_normals(points, faces))
    return {
        "joints": joints.astype(np.uint8),
        "weights": values.astype(np.float32),
        "shape_directions": directions.astype(np.float16),
        "tint": np.round(tint * 255).astype(np.uint8),
    }


def main() -> None:
    """Write the asset."""
    ASSET.parent.mkdir(exist_ok=True)
    arrays: dict[str, Any] = dict(build())  # numpy's stub takes any keyword for its own flag
    np.savez_compressed(ASSET, **arrays)


# --- surface --------------------------------------------------------------------------------


def _surface(spacing: float, coarseness: float) -> tuple[Points, Int[np.ndarray, "F 3"]]:
    from skimage.measure import marching_cubes

    low, high = skin_field.BOUNDS
    axes = [np.arange(a, b + spacing, spacing) for a, b in zip(low, high, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    values = skin_field.field(grid.reshape(-1, 3)).reshape(grid.shape[:3])
    points, faces, _, _ = marching_cubes(values, 0.0, spacing=(spacing,) * 3)
    points = points.astype(float) + low
    faces = faces.astype(np.int64)
    if _signed_volume(points, faces) < 0:
        faces = faces[:, ::-1]
    points, faces, _ = remeshing.collapse(points, faces, coarseness * _edge_length(points))
    for _ in range(3):
        points = remeshing.relax(points, faces, skin_field.field, 2)
        faces = remeshing.flip_to_delaunay(points, faces)
    return remeshing.relax(points, faces, skin_field.field, 3), faces


def _signed_volume(points: Points, faces: Int[np.ndarray, "F 3"]) -> float:
    a, b, c = points[faces].transpose(1, 0, 2)
    return float(np.sum(a * np.cross(b, c)) / 6)


def _edge_length(points: Points) -> Distances:
    """Target edge length: long on the forearm, short on fingers, shortest around the nails."""
    length = np.interp(points[:, 0], [-50, -5, 30, 85, 100], [7.0, 6.0, 5.0, 3.6, 3.3])
    for finger in skin_field.fingers().values():
        along, up, side = finger.local(points).T
        close = np.hypot(up, side) < 20
        if finger.name == "thumb":
            length = np.where(close & (along > 40), 3.5, length)
        nail = close & (up > 1) & (along > finger.stations[2] + 3)
        length = np.where(nail, 2.4, length)
    return length


# --- skin weights ---------------------------------------------------------------------------


def skin_weights(points: Points, faces: Int[np.ndarray, "F 3"]) -> Weights:
    """Return how much each of the 16 tree joints carries each vertex; rows sum to one."""
    nearest = _nearest_finger(points)
    weights = np.zeros((len(points), 16))
    unclaimed = np.ones(len(points))
    for name, finger in skin_field.fingers().items():
        mine = nearest == FINGERS.index(name)
        carried = _chain(points, finger) * mine[:, None]
        weights[:, _FIRST_JOINT[name] : _FIRST_JOINT[name] + 3] = carried
        unclaimed -= carried.sum(1)
    weights[:, 13] += unclaimed * _thumb_base(points) * (nearest < 0)
    weights[:, 0] = 1 - weights[:, 1:].sum(1)
    return _smooth(weights, faces)


def _nearest_finger(points: Points) -> Int[np.ndarray, "N"]:
    """Return the finger (order of FINGERS) each vertex lies on, -1 on palm and forearm."""
    table = skin_field.fingers()
    distance = np.stack([skin_field.finger_field(points, table[name]) for name in FINGERS], 1)
    for column, name in enumerate(FINGERS):
        along = table[name].local(points)[:, 0]
        start = table[name].stations[1] - 12 if name == "thumb" else -14
        distance[along < start, column] = np.inf
    nearest = np.argmin(distance, axis=1)
    return np.where(distance[np.arange(len(points)), nearest] < 9.0, nearest, -1)


def _chain(points: Points, finger: Finger) -> Float[np.ndarray, "N 3"]:
    """Return the shares of a finger's three joints at points that lie on it."""
    kind = "thumb" if finger.name == "thumb" else "other"
    along, up, _ = finger.local(points).T
    follows = []
    for station, (middle, half), slant in zip(
        finger.stations, _BLENDS[kind], _SLANT[kind], strict=False
    ):
        depth = np.maximum(-up, 0)
        centre = station + middle + slant * depth
        follows.append(_step(along - centre, -half, half))
    first, second, third = follows
    second = second * first
    third = third * second
    return np.stack([first - second, second - third, third], 1)


def _thumb_base(points: Points) -> Distances:
    """Share of the thumb's metacarpal on palm and web: high over it, fading towards the palm."""
    thumb = skin_field.fingers()["thumb"]
    own = skin_field.segment_distance(points, thumb.joints[0], thumb.joints[1])
    palm = np.full(len(points), np.inf)
    for name in ("index", "middle", "ring"):
        knuckle = skin_field.fingers()[name].joints[0]
        palm = np.minimum(palm, skin_field.segment_distance(points, 0.15 * knuckle, knuckle))
    share = _step(palm / (palm + own), 0.38, 0.72)
    return share * _step(thumb.local(points)[:, 0], -10.0, 24.0)


def _smooth(weights: Weights, faces: Int[np.ndarray, "F 3"], steps: int = 4) -> Weights:
    """Even the weights out over the mesh; only first phalanges may share skin (the webs)."""
    matrix = remeshing.neighbour_mean(faces, len(weights))
    finger_of = np.array([-1] + [(joint - 1) // 3 for joint in range(1, 16)])
    owner = np.argmax(np.stack([weights[:, finger_of == f].sum(1) for f in range(5)], 1), axis=1)
    outer = np.array([joint > 0 and (joint - 1) % 3 > 0 for joint in range(16)])
    for _ in range(steps):
        weights = 0.5 * weights + 0.5 * (matrix @ weights)
        foreign = (finger_of >= 0) & (finger_of != owner[:, None])
        # Of another finger's share and the share beyond the first phalanx, the larger stays.
        beyond = weights[:, outer].sum(1) > np.sum(weights * foreign, axis=1)
        drop = np.where(beyond[:, None], foreign, outer & (foreign & (weights > 0)).any(1)[:, None])
        weights = np.where(drop, 0.0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    return weights


def _strongest_four(weights: Weights) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-weights, axis=1, kind="stable")[:, :4]
    values = np.take_along_axis(weights, order, 1)
    values[values < 0.004] = 0
    return order, values / values.sum(1, keepdims=True)


def _step(x: np.ndarray, low: float, high: float) -> np.ndarray:
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


# --- shape and colour -----------------------------------------------------------------------


def _shape_directions(points: Points, weights: Weights) -> Float[np.ndarray, "10 N 3"]:
    """Return the move in mm of each vertex per unit of each beta.

    Every bone stretches along itself and thickens across itself with its own multipliers and is
    carried along by its joint; the skin weights mix the bones as in posing.
    """
    mean = rest_keypoints(Proportions())
    moves = []
    for gradient in proportion_gradients():
        moved = rest_keypoints(gradient)  # linear without a constant: the gradient itself
        palm = np.array([gradient.palm_length, gradient.palm_thickness, gradient.palm_breadth])
        move = weights[:, :1] * (points * palm)
        for name, finger in skin_field.fingers().items():
            lengths = gradient.segments[FINGERS.index(name)]
            for part in range(3):
                joint = _FIRST_JOINT[name] + part
                keypoint = TREE_TO_KEYPOINT[joint]
                offset = points - mean[keypoint]
                along = (offset @ finger.along)[:, None] * finger.along
                stretch = lengths[part] * along + gradient.finger_thickness * (offset - along)
                move += weights[:, joint : joint + 1] * (moved[keypoint] + stretch)
        moves.append(move - moved[9])

    return np.stack(moves)


def _tint(points: Points, normals: Points) -> Float[np.ndarray, "N 2"]:
    """Return (palmar paleness, mark) per vertex in 0..1; mark: 0 crease, 0.5 plain, 1 nail."""
    table = skin_field.fingers()
    nearest = _nearest_finger(points)
    facing = -normals[:, 1].copy()

    mark = np.zeros(len(points))
    for name, finger in table.items():
        mine = nearest == FINGERS.index(name)
        along, up, side = finger.local(points).T
        facing = np.where(mine, -(normals @ finger.nail), facing)
        breadth = skin_field.HALF_BREADTHS[name][3]
        end = finger.stations[3] + skin_field.FLESH_MM
        length = 1.7 * breadth
        centre = end - 1.2 - length / 2
        shape = ((along - centre) / (length / 2)) ** 4 + (side / (0.80 * breadth)) ** 4
        nail = mine & (up > 0) & (normals @ finger.nail > 0.25)
        mark = np.where(nail, np.maximum(mark, _step(1.45 - shape, 0.0, 0.8)), mark)
        for part, station in enumerate(finger.stations[1:3]):
            width = np.where(up < 0, 1.8, 4.0)
            crease = np.exp(-(((along - station) / width) ** 2)) * np.clip(np.abs(up) / 4, 0, 1)
            amount = 0.12 if name == "thumb" and part == 0 else 0.28
            mark = np.where(mine & ~nail, mark - amount * crease, mark)
        pulp = _step(along, finger.stations[2] + 4, end) * _step(-up, -1.0, 4.0)
        mark = np.where(mine & ~nail, mark - 0.12 * pulp, mark)

    knuckles = rest_keypoints(Proportions())[[5, 9, 13, 17]]
    close = np.min(np.linalg.norm(points[:, None] - knuckles, axis=2), axis=1)
    mark -= 0.14 * (1 - _step(close, 9.0, 20.0)) * _step(-facing, 0.0, 0.6)

    return np.stack([_step(facing, -0.35, 0.55), 0.5 + 0.5 * np.clip(mark, -1, 1)], 1)


if __name__ == "__main__":
    main()
