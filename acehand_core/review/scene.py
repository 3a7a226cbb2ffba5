"""An episode as shapes in a scene, for viewers: where things are, and their surfaces."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from acehand_core.drawing.robot_parts import RobotParts
from acehand_core.geometry import frames
from acehand_core.hand.skeleton import BONES
from acehand_core.review.episode import DOUBTFUL, Episode
from acehand_core.types import Faces, Vertices
from retarget.replay.clip import in_camera
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree

#: Parts of a doubtful hand's bones that are drawn, as in the overlay.
_DASHES = ((0.0, 0.2), (0.4, 0.6), (0.8, 1.0))
#: Vertices of the hand's mesh that lie this close together (m) are sent as one: a mesh is sent
#: anew in every frame.
_CELL_M = 0.008
#: Hands whose place is not known lie apart (m), the robot's below them.
APART_M, BELOW_M = 0.15, 0.25


def world_poses(episode: Episode) -> Float[np.ndarray, "T 4 4"] | None:
    """Return ``T_world_camera``; None where the scene is in the camera frame."""
    poses = None if episode.motion is None else episode.motion.T_world_camera
    if poses is None or not episode.placed or not np.isfinite(poses).all():
        return None
    return poses


def scene_bases(episode: Episode) -> Float[np.ndarray, "T 2 4 4"] | None:
    """Return the robots' base poses in the scene's frame; NaN where they are not known."""
    if episode.robot is None:
        return None
    bases, poses = in_camera(episode), world_poses(episode)
    if bases is None:
        if episode.robot.T_frame_base is not None:
            return None
        bases = np.tile(np.eye(4), (len(episode), 2, 1, 1))
        bases[:, :, :3, 3] = [[side * APART_M, BELOW_M, 0] for side in (-1, 1)]
    return bases if poses is None else poses[:, None] @ bases


def link_poses(hand: HandSpec, joints: Float[np.ndarray, "T Q"]) -> Float[np.ndarray, "T L 4 4"]:
    """Return where links are in the base frame, in the order of ``robot_parts(hand).links``."""
    posture = KinematicTree.of(hand).posture(joints)
    turns, positions = (np.swapaxes(a, 0, 1) for a in (posture.turns, posture.positions))
    return frames.rigid(turns, positions)


def link_surface(
    parts: RobotParts, link: int
) -> tuple[Float[np.ndarray, "V 3"], Float[np.ndarray, "V 3"]]:
    """Return the corners of a link's triangles, three by three, and a normal for each corner.

    In the link's frame, metres; corners are not shared, so that edges are seen.
    """
    corners = parts.vertices[parts.faces[parts.vertex_links[parts.faces[:, 0]] == link]]
    across = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    size = np.linalg.norm(across, axis=1)
    real = size > 1e-15  # a sphere drawn out to a capsule of no length has triangles of no size
    normals = np.repeat(across[real] / size[real, None], 3, axis=0)
    return corners[real].reshape(-1, 3), normals


def thinned(
    vertices: Vertices, faces: Faces
) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "M 3"]]:
    """Return which vertices of a mesh stand for it, and its triangles between those."""
    cells = np.floor(vertices / _CELL_M).astype(int)
    _, kept, group = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    joined = group.reshape(-1)[faces]
    different = (joined != np.roll(joined, 1, axis=1)).all(1)
    return kept, joined[different]


def mesh_normals(
    vertices: Float[np.ndarray, "N V 3"], faces: Int[np.ndarray, "M 3"]
) -> Float[np.ndarray, "N V 3"]:
    """Return the vertices' normals in N frames."""
    a, b, c = (vertices[:, faces[:, corner]] for corner in range(3))
    across = np.cross(b - a, c - a)  # as long as a triangle is large: it counts for as much
    count, size = len(vertices), vertices.shape[1]
    rows, columns = faces.reshape(-1), np.repeat(np.arange(len(faces)), 3)
    around = sparse.csr_array((np.ones(len(rows)), (rows, columns)), (size, len(faces)))
    summed = around @ across.transpose(1, 0, 2).reshape(len(faces), -1)
    normals = summed.reshape(size, count, 3).transpose(1, 0, 2)
    return normals / np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)


def strips(joints: Float[np.ndarray, "21 D"], state: int) -> Float[np.ndarray, "S 2 D"]:
    """Return the bones that are known as pairs of points; a doubtful hand's are dashed."""
    ends = joints[np.array(BONES)]
    ends = ends[np.isfinite(ends).all((1, 2))]
    if state == DOUBTFUL:
        start, along = ends[:, :1], ends[:, 1:] - ends[:, :1]
        ends = np.concatenate([start + along * np.array(dash)[:, None] for dash in _DASHES])
    return ends
