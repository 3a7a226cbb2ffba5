"""Even triangles from a fine closed mesh: edge collapse, edge flips, smoothing along a surface.

Small and plain, for meshes built once (``authoring``); nothing at run time needs it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Points = Float[np.ndarray, "N 3"]
Triangles = Int[np.ndarray, "M 3"]
Field = Callable[[np.ndarray], np.ndarray]
#: A mesh of another size than the one that went in.
Coarser = tuple[Float[np.ndarray, "K 3"], Int[np.ndarray, "L 3"], Float[np.ndarray, "K"]]


def collapse(
    vertices: Points, faces: Triangles, size: Float[np.ndarray, "N"], shortest: float = 0.75
) -> Coarser:
    """Merge edges, the relatively shortest first, until none is below ``shortest`` of its size.

    Args:
        vertices, faces: a closed manifold.
        size: target edge length at each vertex, same unit as the vertices.

    Returns:
        vertices, faces and sizes of the coarser manifold, same topology.
    """
    points = np.array(vertices)
    sizes = [float(s) for s in size]
    corners: list[tuple[int, ...]] = [tuple(int(i) for i in f) for f in faces]

    around: list[set[int]] = [set() for _ in points]
    for index, face in enumerate(corners):
        for vertex in face:
            around[vertex].add(index)

    version = [0] * len(points)
    heap: list[tuple[float, int, int, int, int]] = []

    fresh = [(face[i - 1], face[i]) for face in corners for i in range(3)]
    while fresh or heap:
        for a, b in fresh:
            length = math.dist(points[a], points[b]) * 2 / (sizes[a] + sizes[b])
            if length < shortest:
                heapq.heappush(heap, (length, a, b, version[a], version[b]))
        fresh = []
        if not heap:
            break
        _, a, b, version_a, version_b = heapq.heappop(heap)
        if version[a] != version_a or version[b] != version_b:
            continue
        rings = [{v for index in around[end] for v in corners[index]} - {a, b} for end in (a, b)]
        middle = 0.5 * (points[a] + points[b])
        gone = around[a] & around[b]
        touched = sorted((around[a] | around[b]) - gone)
        if len(rings[0] & rings[1]) != 2 or _turns_over(points, corners, touched, (a, b), middle):
            continue
        points[a], sizes[a] = middle, 0.5 * (sizes[a] + sizes[b])
        for index in gone:
            for vertex in corners[index]:
                around[vertex].discard(index)
        for index in around[b]:
            corners[index] = tuple(a if v == b else v for v in corners[index])
            around[a].add(index)
        around[b] = set()
        version[a] += 1
        version[b] += 1
        fresh = [(min(a, v), max(a, v)) for v in sorted(rings[0] | rings[1])]

    return _compact(points, corners, around, sizes)


def _turns_over(
    points: np.ndarray,
    corners: list[tuple[int, ...]],
    touched: list[int],
    edge: tuple[int, int],
    middle: np.ndarray,
) -> bool:
    """True when moving both ends of ``edge`` to ``middle`` turns a face by more than 60 degrees."""
    triangles = np.array([corners[index] for index in touched])
    before = points[triangles]
    after = np.where(np.isin(triangles, edge)[..., None], middle, before)
    both = np.stack([before, after])
    old, new = np.cross(both[:, :, 1] - both[:, :, 0], both[:, :, 2] - both[:, :, 0])
    cosine = np.sum(old * new, axis=1)
    return bool((cosine <= 0.5 * np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)).any())


def _compact(
    points: np.ndarray,
    corners: list[tuple[int, ...]],
    around: list[set[int]],
    sizes: list[float],
) -> Coarser:
    kept = [v for v, owned in enumerate(around) if owned]
    place = {v: i for i, v in enumerate(kept)}
    alive = sorted({index for owned in around for index in owned})
    faces = np.array([[place[v] for v in corners[index]] for index in alive])
    return points[kept], faces, np.array([sizes[v] for v in kept])


def flip_to_delaunay(vertices: Points, faces: Triangles) -> Triangles:
    """Flip edges once where the two angles opposite to them sum to more than a half turn."""
    corners = faces.copy()
    edges, opposite, owners = _edges(faces)
    known = {(int(a), int(b)) for a, b in edges}
    u = vertices[edges[:, :1]] - vertices[opposite]
    v = vertices[edges[:, 1:]] - vertices[opposite]
    angle = np.arctan2(np.linalg.norm(np.cross(u, v), axis=2), np.sum(u * v, axis=2))

    dirty: set[int] = set()
    for edge in np.flatnonzero(angle.sum(1) > np.pi + 1e-6):
        (a, b), (c, d) = edges[edge], opposite[edge]
        first, second = (int(face) for face in owners[edge])
        new = (int(min(c, d)), int(max(c, d)))
        turned = np.array([[a, d, c], [b, c, d]])
        if {first, second} & dirty or new in known or _folds(vertices, turned, faces[first]):
            continue
        corners[[first, second]] = turned
        known.add(new)
        dirty |= {first, second}

    return corners


def _edges(faces: Triangles) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, per edge of a closed mesh, its ends (a < b), the vertices across it, and its faces.

    The first face runs from a to b, the second from b to a.
    """
    start, stop = faces.ravel(), np.roll(faces, -1, axis=1).ravel()
    across = np.roll(faces, -2, axis=1).ravel()
    owner = np.repeat(np.arange(len(faces)), 3)
    order = np.lexsort((start > stop, np.maximum(start, stop), np.minimum(start, stop)))
    pairs = order.reshape(-1, 2)
    ends = np.stack([start[pairs[:, 0]], stop[pairs[:, 0]]], axis=1)
    return ends, across[pairs], owner[pairs]


def _folds(vertices: Points, triangles: np.ndarray, before: np.ndarray) -> bool:
    """True when a new triangle is turned by more than 60 degrees from the old one."""
    corner = vertices[np.concatenate([triangles, before[None]])]
    normal = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    normal = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
    return bool((normal[:2] @ normal[2] <= 0.5).any())


def relax(
    vertices: Points, faces: Triangles, field: Field, steps: int, strength: float = 0.4
) -> Points:
    """Even out the triangles by moving vertices along the surface, and put them on the surface."""
    matrix = neighbour_mean(faces, len(vertices))
    for _ in range(steps):
        normal = vertex_normals(vertices, faces)
        move = strength * (matrix @ vertices - vertices)
        move -= np.sum(move * normal, 1, keepdims=True) * normal
        vertices = project(vertices + move, field)
    return vertices


def project(points: Points, field: Field, steps: int = 2, delta: float = 0.05) -> Points:
    """Move points to the zero level of ``field`` by damped Newton steps along its gradient."""
    for _ in range(steps):
        value = field(points)
        gradient = np.stack(
            [field(points + e) - field(points - e) for e in delta * np.eye(3)], axis=1
        ) / (2 * delta)
        step = value / np.maximum(np.sum(gradient * gradient, 1), 0.05)
        points = points - np.clip(step, -1.0, 1.0)[:, None] * gradient
    return points


def neighbour_mean(faces: Triangles, count: int) -> Any:
    """Return the sparse matrix (count, count) that averages each vertex's neighbours."""
    from scipy import sparse

    a = np.concatenate([faces[:, 0], faces[:, 1], faces[:, 2]])
    b = np.concatenate([faces[:, 1], faces[:, 2], faces[:, 0]])
    both = sparse.coo_matrix((np.ones(len(a)), (a, b)), (count, count))
    matrix = ((both + both.T) > 0).astype(float).tocsr()
    return sparse.diags(1 / np.asarray(matrix.sum(1))[:, 0]) @ matrix


def vertex_normals(vertices: Points, faces: Triangles) -> Points:
    """Return unit normals, faces weighted by area."""
    corner = vertices[faces]
    normal = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
    normals = np.zeros_like(vertices)
    for column in range(3):
        np.add.at(normals, faces[:, column], normal)
    return normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
