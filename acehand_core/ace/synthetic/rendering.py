"""Posing and rendering of scripts and episodes, with a HandMotion as exact ground truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
from jaxtyping import Bool, Float, Float16, UInt8, UInt16

from acehand_core.ace.synthetic.appearance import Lens
from acehand_core.ace.synthetic.episode import SyntheticEpisode
from acehand_core.ace.synthetic.layout import solid_parts
from acehand_core.ace.synthetic.rig import read_depth
from acehand_core.ace.synthetic.scene import Appearance, Moment, Quality, Scene
from acehand_core.ace.synthetic.script import (
    HandPath,
    Script,
    Times,
    camera_path,
    elbow_path,
    hand_path,
    prop_paths,
)
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.articulation import angles_to_pose
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion, ObjectTrack, TrackedObject
from acehand_core.provenance import Provenance
from acehand_core.types import SIDES, CameraPoses, ImageRgb, RigidTransform, TimestampsNs

_CUFF_M = 0.034

#: Largest depth of a keypoint below the skin in front of it.
_FLESH_M = 0.024
#: Motion, in pixels, of one of the parts of an exposure, and their largest number; of fast clips.
_BLUR_STEP_PX, _MOST_PARTS = 1.5, 5
_FAST_BLUR_STEP_PX, _FAST_MOST_PARTS = 3.0, 3
#: Shifts, in pixels, of the moments but the middle one, so that edges at rest are smooth.
_SHIFTS = ((0.25, 0.25), (-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25))
#: Distance, in metres, of the points at rest by which the motion of the head counts.
_STILL_M = 0.6
#: Mass of an object, and friction of robot fingers on it (assumed).
_PROP_KG, _PROP_FRICTION = 0.15, 1.0


@dataclass(frozen=True, slots=True)
class PosedClip:
    """A posed script, before drawing."""

    script: Script
    camera: Camera
    truth: HandMotion
    moments: tuple[Moment, ...]
    appearance: Appearance

    def frames(self) -> Iterator[ImageRgb]:
        """Render the frames one by one."""
        with Scene(self.camera, self.script.props, self.appearance) as scene:
            for moment in self.moments:
                yield scene.render(moment)


def pose_clip(
    script: Script, camera: Camera, appearance: Appearance | None = None, times: Times | None = None
) -> PosedClip:
    """Pose a script in each frame, or at ``times`` (seconds) for the moments alone.

    ``visible`` is the share of keypoints inside the image, occluded or not.
    """
    times = script.timestamps_ns * 1e-9 if times is None else times
    paths = [hand_path(keys, times) if keys else None for keys in script.hands]
    T_world_camera = camera_path(script.cameras, times)
    truth = _truth(script, camera, T_world_camera, paths, np.round(times * 1e9).astype(np.int64))
    meshes = [_meshes(truth, slot, T_world_camera) for slot in (0, 1)]
    sleeves = [_sleeves(script, slot, paths[slot], times) for slot in (0, 1)]
    props = prop_paths(script.T_world_prop, script.holds, script.hands, paths, times)
    moments = [
        Moment(
            T_world_camera[t],
            (meshes[0][t], meshes[1][t]),
            np.stack([sleeves[0][t], sleeves[1][t]]),
            {name: poses[t] for name, poses in props.items()},
        )
        for t in range(len(times))
    ]
    return PosedClip(script, camera, truth, tuple(moments), appearance or Appearance())


def _truth(
    script: Script,
    camera: Camera,
    T_world_camera: CameraPoses,
    paths: Sequence[HandPath | None],
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
    visible = camera.contains(pixels).mean(-1).astype(np.float32)
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
            notes=("rendered by acehand synth; joints_image are exact projections",),
        ),
        camera=camera,
        T_world_camera=T_world_camera,
    )


def _meshes(truth: HandMotion, slot: int, T_world_camera: CameraPoses) -> list[np.ndarray | None]:
    if not truth.presence[:, slot].any():
        return [None] * len(truth)
    vertices = CapsuleHand().vertices(
        SIDES[slot], truth.global_orient[:, slot], truth.hand_pose[:, slot], truth.betas[slot]
    )
    return list(frames.apply(T_world_camera, vertices + truth.translation[:, slot, None]))


def _sleeves(script: Script, slot: int, path: HandPath | None, times: Times) -> CameraPoses:
    """Return the cuff's poses: slightly behind the wrist, z towards the elbow."""
    if path is None:
        return np.broadcast_to(np.eye(4), (len(times), 4, 4)).copy()
    elbow_world = elbow_path(script, slot, path, times)
    R_world_hand, wrist = path.T_world_hand[:, :3, :3], path.T_world_hand[:, :3, 3]
    to_elbow = rotations.unit(elbow_world - wrist)
    forearm, across = R_world_hand[..., 0], R_world_hand[..., 2]
    forearm = forearm * np.sign(np.sum(forearm * to_elbow, axis=1, keepdims=True))
    across = rotations.unit(across - np.sum(across * to_elbow, axis=1, keepdims=True) * to_elbow)
    turned = np.stack([across, np.cross(to_elbow, across), to_elbow], axis=-1)
    return frames.rigid(turned, wrist + _CUFF_M * forearm)


@dataclass(frozen=True, slots=True)
class RenderedClip:
    """A rendered clip.

    ``masks``: 0 nothing, 1 left hand, 2 right hand, without forearms; None for fast clips.
    ``depth``: metres along the optical axis, 0 outside the image circle. ``seen``: see
    ``unoccluded_joints``. ``views``: T pictures of each further camera of the rig by name.
    ``readings``: of the depth camera, see ``rig.read_depth``.
    """

    motion: HandMotion
    frames: tuple[ImageRgb, ...]
    masks: UInt8[np.ndarray, "T H W"] | None
    depth: Float16[np.ndarray, "T H W"]
    seen: Bool[np.ndarray, "T 2 21"]
    views: Mapping[str, list[ImageRgb]] = field(default_factory=dict)
    readings: UInt16[np.ndarray, "T H W"] | None = None

    @property
    def out_of_sight(self) -> Bool[np.ndarray, "T 2"]:
        """Hands without a keypoint in the image."""
        return (self.motion.presence > 0) & (self.motion.visible == 0)


def truth_of(episode: SyntheticEpisode) -> tuple[PosedClip, HandMotion]:
    """Return the posed clip and its hands as stored.

    ``visible`` includes the image circle; an absent hand has identity rotations and no joints.
    """
    clip = pose_clip(episode.script, episode.camera, episode.appearance)
    truth = clip.truth
    visible = Lens.of(episode.camera, 1).sees(truth.joints_camera).mean(-1).astype(np.float32)
    present = truth.presence > 0
    eye = np.eye(3)
    motion = replace(
        truth,
        visible=visible * present,
        quality=truth.presence,
        global_orient=np.where(present[..., None, None], truth.global_orient, eye),
        hand_pose=np.where(present[..., None, None, None], truth.hand_pose, eye),
        provenance=replace(
            truth.provenance,
            notes=("rendered; joints_image are exact projections at the middle of the exposure",),
        ),
    )
    return clip, motion


def objects_of(clip: PosedClip) -> ObjectTrack | None:
    """Return the objects of a posed clip, of assumed mass; None without any."""
    objects = []
    for prop in clip.script.props:
        parts = solid_parts(prop)
        poses = np.stack([moment.T_world_prop[prop.name] for moment in clip.moments])
        times = clip.truth.timestamps_ns
        objects.append(TrackedObject(prop.name, parts, _PROP_KG, _PROP_FRICTION, times, poses))
    return ObjectTrack("world", np.array([0.0, 0.0, 1.0]), tuple(objects)) if objects else None


def render_episode(episode: SyntheticEpisode, clip: PosedClip, motion: HandMotion) -> RenderedClip:
    """Render a clip."""
    small = episode.camera.width * episode.camera.height <= 200 * 200
    quality = Quality(2, 512) if small else Quality(1, 2048)
    lens = Lens.of(episode.camera, quality.oversampling)
    parts = _parts(episode, clip, lens)
    rng = np.random.default_rng(episode.noise_seed)

    rig, sensed = episode.rig, episode.depth_camera
    lenses = [Lens.of(view.camera, quality.oversampling) for view in rig.values()]
    sensed_lens = Lens.of(sensed.camera, quality.oversampling) if sensed else lens
    # Noise of their own: the first camera's pictures are the same without a rig.
    depth_rng, *view_rngs = (
        np.random.default_rng((*episode.noise_seed, k)) for k in range(1, len(rig) + 2)
    )

    frames, masks, depth, readings = [], [], [], []
    views: dict[str, list[ImageRgb]] = {name: [] for name in rig}
    others = (*(other.drawn for other in lenses), sensed_lens.drawn)
    with Scene(lens.drawn, episode.script.props, episode.appearance, quality, others) as scene:
        for frame, moments in enumerate(_moments(episode, clip, parts)):
            middle = moments[len(moments) // 2]
            light, metres = _exposure(scene, lens, moments)
            if not episode.fast:
                masks.append(_centre(lens, scene.labels(middle)))
            depth.append(metres.astype(np.float16))
            progress = frame / max(len(motion) - 1, 1)
            frames.append(episode.sensor.expose(light, progress, rng))

            for (name, view), other, view_rng in zip(rig.items(), lenses, view_rngs, strict=True):
                # Three moments of five are blurred enough.
                fewer = [middle] if view.grey else moments[:: 1 + len(moments) // 5]
                light, _ = _exposure(scene, other, _seen_from(view.T_camera_view, fewer))
                image = episode.sensor.expose(light, progress, view_rng)
                if view.grey:
                    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
                    image = cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
                views[name].append(image)
            if sensed is not None:
                if sensed.camera != episode.camera:
                    seen_from = _seen_from(sensed.T_camera_view, [middle])
                    _, metres = _exposure(scene, sensed_lens, seen_from)
                readings.append(read_depth(metres, sensed.camera, depth_rng, sensed.sigma_per_m))

    stacked = np.stack(depth)
    labels, seen = np.stack(masks) if masks else None, unoccluded_joints(lens, motion, stacked)
    read = np.stack(readings) if readings else None
    return RenderedClip(motion, tuple(frames), labels, stacked, seen, views, read)


def _exposure(
    scene: Scene, lens: Lens, moments: list[Moment]
) -> tuple[Float[np.ndarray, "H W 3"], Float[np.ndarray, "H W"]]:
    """Return the mean picture of moments (0..255), and z in metres at the middle one."""
    middle, drawn = len(moments) // 2, lens.drawn
    colour, metres = scene.samples(moments[middle], drawn)
    light = colour.astype(np.uint16)
    others = moments[:middle] + moments[middle + 1 :]
    shifts = _SHIFTS if lens.samples == 1 else ((0.0, 0.0),) * len(_SHIFTS)
    for moment, (x, y) in zip(others, shifts[: len(others)], strict=True):
        light += scene.colours(moment, replace(drawn, cx=drawn.cx + x, cy=drawn.cy + y))
    mean = lens.pixels(lens.bend(light)).mean((1, 3), np.float32) / len(moments)
    return mean, _centre(lens, metres)


def _seen_from(T_camera_view: RigidTransform, moments: Sequence[Moment]) -> list[Moment]:
    return [replace(m, T_world_camera=m.T_world_camera @ T_camera_view) for m in moments]


def _centre(lens: Lens, samples: np.ndarray) -> np.ndarray:
    """Return the sample nearest to each pixel's centre, or just past it."""
    middle = lens.samples // 2
    return lens.pixels(lens.bend(samples))[:, middle, :, middle].copy()


def _parts(episode: SyntheticEpisode, clip: PosedClip, lens: Lens) -> list[int]:
    """Return the number of parts of each exposure, by what moves in the picture."""
    camera, count = episode.camera, len(clip.moments)
    step, most = _BLUR_STEP_PX, _MOST_PARTS
    if episode.fast:
        step, most = _FAST_BLUR_STEP_PX, _FAST_MOST_PARTS
    other = np.arange(1, count + 1)
    other[-1] = count - 2  # of a single frame: itself
    T_world_camera = np.stack([moment.T_world_camera for moment in clip.moments])
    props = [[T[:3, 3] for T in moment.T_world_prop.values()] for moment in clip.moments]
    props_world = np.array(props).reshape(count, -1, 3)
    joints = clip.truth.joints_camera.reshape(count, 42, 3)
    # What rests in the world moves in the picture with the head.
    across, down = np.linspace(0, camera.width - 1, 5), np.linspace(0, camera.height - 1, 5)
    still = _STILL_M * camera.unproject(np.stack(np.meshgrid(across, down), -1).reshape(-1, 2))
    still_world = frames.apply(T_world_camera, np.broadcast_to(still, (count, 25, 3)))

    def seen(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pixels of everything at frames ``at``, and which of them are in the picture."""
        world = np.concatenate([props_world[at], still_world], axis=1)
        local = frames.apply(frames.inverse(T_world_camera[at]), world)
        points = np.concatenate([joints[at], local], axis=1)
        return camera.project(points), lens.sees(points)

    (before, seen_before), (after, seen_after) = seen(np.arange(count)), seen(other)
    moved = np.linalg.norm(after - before, axis=-1)
    moved = np.where((seen_before | seen_after) & np.isfinite(moved), moved, 0.0).max(axis=1)
    parts = np.ceil(moved * episode.sensor.shutter / step).clip(1, most).astype(int)
    return parts.tolist()


def _moments(
    episode: SyntheticEpisode, clip: PosedClip, parts: list[int]
) -> Iterator[list[Moment]]:
    """Yield the moments of each exposure; its middle is the frame's time."""
    span = episode.sensor.shutter / episode.script.fps
    centres = episode.script.timestamps_ns * 1e-9
    for frame, count in enumerate(parts):
        if count == 1:
            yield [clip.moments[frame]]
            continue
        count += 1 - count % 2  # odd: the middle moment is the ground truth's
        share = (np.arange(count) + 0.5) / count - 0.5
        times = centres[frame] + share * span
        moments = list(pose_clip(episode.script, episode.camera, episode.appearance, times).moments)
        moments[count // 2] = clip.moments[frame]
        yield moments


def unoccluded_joints(
    lens: Lens, motion: HandMotion, depth: Float[np.ndarray, "T H W"]
) -> Bool[np.ndarray, "T 2 21"]:
    """Return the keypoints in the image with only their own flesh in front."""
    inside = lens.sees(motion.joints_camera)
    pixels = np.where(inside[..., None], np.round(motion.joints_image), 0).astype(int)
    frame = np.arange(len(motion))[:, None, None]
    surface = depth[frame, pixels[..., 1], pixels[..., 0]].astype(float)
    return inside & (motion.joints_camera[..., 2] - surface < _FLESH_M)
