"""An episode as shapes in a scene, for viewers: where things are, and their surfaces."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from acehand_core.drawing.overlay import DASHES
from acehand_core.drawing.robot_parts import RobotParts
from acehand_core.geometry import frames
from acehand_core.hand.skeleton import BONES
from acehand_core.review.episode import DOUBTFUL, Episode
from retarget.replay.clip import in_camera
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree

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


def strips(joints: Float[np.ndarray, "21 D"], state: int) -> Float[np.ndarray, "S 2 D"]:
    """Return the bones that are known as pairs of points; a doubtful hand's are dashed."""
    ends = joints[np.array(BONES)]
    ends = ends[np.isfinite(ends).all((1, 2))]
    if state == DOUBTFUL:
        start, along = ends[:, :1], ends[:, 1:] - ends[:, :1]
        ends = np.concatenate([start + along * np.array(dash)[:, None] for dash in DASHES])
    return ends
