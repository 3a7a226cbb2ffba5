"""A script becomes frames and a HandMotion that is exactly what the frames show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.articulation import angles_to_pose
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion, Provenance
from acehand_core.synthetic.scene import Look, Moment, Scene
from acehand_core.synthetic.script import (
    HandPath,
    Script,
    Times,
    camera_path,
    elbow_path,
    hand_path,
    prop_paths,
)
from acehand_core.types import SIDES, CameraPoses, ImageRgb, PointsImage, TimestampsNs

#: A keypoint lies inside the hand, this far at most from the skin in front of it.
_FLESH_M = 0.024
_CUFF_M = 0.034


@dataclass(frozen=True, slots=True)
class Clip:
    """A posed script: everything known before the first pixel is drawn."""

    script: Script
    camera: Camera
    truth: HandMotion
    moments: tuple[Moment, ...]
    look: Look

    def frames(self) -> Iterator[ImageRgb]:
        """Draw the frames one by one."""
        with Scene(self.camera, self.script.props, self.look) as scene:
            for moment in self.moments:
                yield scene.render(moment)

    def joints_visible(self) -> Bool[np.ndarray, "T 2 21"]:
        """Return which keypoints lie in the image with nothing but their own flesh before them."""
        out = np.zeros((len(self.moments), 2, 21), bool)
        with Scene(self.camera, self.script.props, self.look) as scene:
            for frame, moment in enumerate(self.moments):
                depth = scene.depth(moment)
                pixels = np.round(self.truth.joints_image[frame])
                inside = _inside(pixels, self.camera)
                columns, rows = np.where(inside[..., None], pixels, 0).astype(int).reshape(-1, 2).T
                surface = depth[rows, columns].reshape(2, 21)
                behind = self.truth.joints_camera[frame, ..., 2] - surface
                out[frame] = inside & (behind < _FLESH_M)
        return out


def pose_clip(
    script: Script, camera: Camera, look: Look | None = None, times: Times | None = None
) -> Clip:
    """Work out where everything is in each frame, or at ``times`` (seconds) for the moments alone.

    The truth holds ``joints_image`` as exact projections; ``visible`` is the share of keypoints
    inside the image, whether or not something is before them (see ``Clip.joints_visible``).
    """
    times = script.timestamps_ns * 1e-9 if times is None else times
    paths = (_path(script, 0, times), _path(script, 1, times))
    T_world_camera = camera_path(script.cameras, times)
    truth = _truth(script, camera, T_world_camera, paths, np.round(times * 1e9).astype(np.int64))
    meshes = [_meshes(truth, slot, T_world_camera) for slot in (0, 1)]
    sleeves = [_sleeves(script, slot, paths[slot], len(times)) for slot in (0, 1)]
    props = prop_paths(script, paths, times)
    moments = [
        Moment(
            T_world_camera[t],
            (meshes[0][t], meshes[1][t]),
            np.stack([sleeves[0][t], sleeves[1][t]]),
            {name: poses[t] for name, poses in props.items()},
        )
        for t in range(len(times))
    ]
    return Clip(script, camera, truth, tuple(moments), look or Look())


def render_clip(
    script: Script, camera: Camera, look: Look | None = None
) -> tuple[Iterator[ImageRgb], HandMotion]:
    """Return the frames of a script, drawn as they are asked for, and the truth about them."""
    clip = pose_clip(script, camera, look)
    return clip.frames(), clip.truth


def write_video(path: Path, frames: Iterator[ImageRgb], fps: float, crf: int = 20) -> None:
    """Encode frames as h264. ``path`` is replaced only once the whole clip is there."""
    import av

    partial = path.with_name(path.name + ".partial")
    try:
        with av.open(str(partial), "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
            stream.pix_fmt = "yuv420p"
            stream.options = {"crf": str(crf), "preset": "slow"}
            for index, image in enumerate(frames):
                if index == 0:
                    stream.height, stream.width = image.shape[:2]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _path(script: Script, slot: int, times: Times) -> HandPath | None:
    return hand_path(script.hands[slot], times) if script.hands[slot] else None


def _truth(
    script: Script,
    camera: Camera,
    T_world_camera: CameraPoses,
    paths: tuple[HandPath | None, HandPath | None],
    timestamps_ns: TimestampsNs,
) -> HandMotion:
    count = len(T_world_camera)
    hand = CapsuleHand()
    presence = np.zeros((count, 2), np.float32)
    orient = np.full((count, 2, 3, 3), np.nan)
    pose = np.full((count, 2, 15, 3, 3), np.nan)
    translation = np.full((count, 2, 3), np.nan)
    joints = np.full((count, 2, 21, 3), np.nan)
    for slot, (side, path) in enumerate(zip(SIDES, paths, strict=True)):
        if path is None:
            continue
        T_camera_hand = frames.inverse(T_world_camera) @ path.T_world_hand
        presence[:, slot] = 1
        orient[:, slot] = T_camera_hand[:, :3, :3]
        pose[:, slot] = angles_to_pose(path.angles, side)
        rest_wrist = hand.rest_keypoints(side, script.betas[slot])[0]
        translation[:, slot] = T_camera_hand[:, :3, 3] - rest_wrist
        local = hand.joints(side, orient[:, slot], pose[:, slot], script.betas[slot])
        joints[:, slot] = local + translation[:, slot, None]
    pixels = camera.project(joints)
    visible = _inside(pixels, camera).mean(-1).astype(np.float32)
    return HandMotion(
        timestamps_ns=timestamps_ns,
        fps=script.fps,
        presence=presence,
        visible=visible,
        quality=visible,
        observed=presence > 0,
        filled=np.zeros((count, 2), bool),
        global_orient=orient,
        hand_pose=pose,
        betas=script.betas,
        translation=translation,
        joints_camera=joints,
        joints_image=pixels,
        hand_model="acehand",
        provenance=Provenance(
            source=script.name,
            source_sha256=None,
            tracker="ground truth",
            notes=("rendered by acehand_core.synthetic; joints_image are exact projections",),
        ),
        camera=camera,
        T_world_camera=T_world_camera,
    )


def _inside(pixels: PointsImage, camera: Camera) -> Bool[np.ndarray, "*batch"]:
    """Return which pixels lie in the image; NaN does not."""
    limit = np.array([camera.width, camera.height]) - 0.5
    with np.errstate(invalid="ignore"):
        return ((pixels > -0.5) & (pixels < limit)).all(-1)


def _meshes(truth: HandMotion, slot: int, T_world_camera: CameraPoses) -> list[np.ndarray | None]:
    """Return the hand's vertices in the world for each frame, None where there is no hand."""
    if not truth.presence[:, slot].any():
        return [None] * len(truth)
    vertices = CapsuleHand().vertices(
        SIDES[slot], truth.global_orient[:, slot], truth.hand_pose[:, slot], truth.betas[slot]
    )
    return list(frames.apply(T_world_camera, vertices + truth.translation[:, slot, None]))


def _sleeves(script: Script, slot: int, path: HandPath | None, count: int) -> CameraPoses:
    """Return the cuff's pose: a little behind the wrist, its axis towards the elbow."""
    if path is None:
        return np.broadcast_to(np.eye(4), (count, 4, 4)).copy()
    elbow_world = elbow_path(script, slot, path)
    R_world_hand, wrist = path.T_world_hand[:, :3, :3], path.T_world_hand[:, :3, 3]
    to_elbow = elbow_world - wrist
    to_elbow = to_elbow / np.linalg.norm(to_elbow, axis=1, keepdims=True)
    forearm = R_world_hand[..., 0]
    forearm = forearm * np.sign(np.sum(forearm * to_elbow, axis=1, keepdims=True))
    across = R_world_hand[..., 2]
    across = across - np.sum(across * to_elbow, axis=1, keepdims=True) * to_elbow
    across = across / np.linalg.norm(across, axis=1, keepdims=True)
    turned = np.stack([across, np.cross(to_elbow, across), to_elbow], axis=-1)
    return frames.rigid(turned, wrist + _CUFF_M * forearm)
