"""An episode becomes a clip: pictures through lens and sensor, and the truth about each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Float16, UInt8

from acehand_core.motion import HandMotion
from acehand_core.synthetic.clip import Clip, pose_clip
from acehand_core.synthetic.episode import Episode
from acehand_core.synthetic.lens import Lens, displacement
from acehand_core.synthetic.scene import Moment, Quality, Scene
from acehand_core.types import ImageRgb

#: A keypoint lies inside the hand, this far at most from the skin in front of it.
_FLESH_M = 0.024
#: A picture that moves by more than this many pixels while light is gathered is drawn in parts.
_BLUR_STEP_PX = 1.5
_MOST_PARTS = 5
_FAST_BLUR_STEP_PX, _FAST_MOST_PARTS = 3.0, 3


@dataclass(frozen=True, slots=True)
class Film:
    """A clip as drawn.

    ``masks``: 0 nothing, 1 left hand, 2 right hand, without sleeves or forearms; None of fast
    clips. ``depth``: metres
    along the optical axis, half precision, 0 where a fisheye sees nothing. ``seen``: keypoints in
    the picture with nothing but their own flesh before them.
    """

    motion: HandMotion
    frames: tuple[ImageRgb, ...]
    masks: UInt8[np.ndarray, "T H W"] | None
    depth: Float16[np.ndarray, "T H W"]
    seen: Bool[np.ndarray, "T 2 21"]

    @property
    def out_of_sight(self) -> Bool[np.ndarray, "T 2"]:
        """Hands that exist with no keypoint in the picture."""
        return (self.motion.presence > 0) & (self.motion.visible == 0)


def truth_of(shot: Episode) -> tuple[Clip, HandMotion]:
    """Return the posed clip and its hands as a store keeps them; nothing is drawn.

    ``visible`` is the share of keypoints in the picture (in the circle, for a fisheye), occluded or
    not; a hand that is not there has identity rotations and no joints.
    """
    clip = pose_clip(shot.script, shot.camera, shot.look)
    truth = clip.truth
    visible = Lens.of(shot.camera, 1).sees(truth.joints_camera).mean(-1).astype(np.float32)
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


def film(shot: Episode, clip: Clip, motion: HandMotion) -> Film:
    """Draw a clip."""
    small = shot.camera.width * shot.camera.height <= 200 * 200
    quality = Quality(2, 512) if small else Quality(1, 2048)
    lens = Lens.of(shot.camera, quality.oversampling)
    parts = _parts(shot, motion)
    rng = np.random.default_rng(shot.noise_seed)
    count = len(motion)
    frames, masks, depth = [], [], []
    with Scene(lens.drawn, shot.script.props, shot.look, quality) as scene:
        for frame, moments in enumerate(_moments(shot, clip, parts)):
            light = np.zeros((shot.camera.height, shot.camera.width, 3))
            for number, moment in enumerate(moments):
                colour, metres = scene.samples(moment)
                light += lens.pixels(lens.bend(colour)).mean((1, 3)) / len(moments)
                if number == len(moments) // 2:
                    if not shot.fast:
                        masks.append(_centre(lens, scene.labels(moment)))
                    depth.append(_centre(lens, metres).astype(np.float16))
            frames.append(shot.sensor.expose(light, frame / max(count - 1, 1), rng))
    everything = np.stack(depth)
    labels = np.stack(masks) if masks else None
    return Film(motion, tuple(frames), labels, everything, _seen(lens, motion, everything))


def _centre(lens: Lens, samples: np.ndarray) -> np.ndarray:
    """Return one sample per pixel: the one nearest its centre, past it where there is none."""
    middle = lens.samples // 2
    return lens.pixels(lens.bend(samples))[:, middle, :, middle].copy()


def _parts(shot: Episode, motion: HandMotion) -> list[int]:
    """Return into how many moments each exposure is split."""
    span = shot.sensor.shutter / shot.script.fps
    if not span:
        return [1] * len(motion)
    step, most = (_BLUR_STEP_PX, _MOST_PARTS)
    if shot.fast:
        step, most = _FAST_BLUR_STEP_PX, _FAST_MOST_PARTS
    camera, poses = shot.camera, motion.T_world_camera
    assert poses is not None
    joints = motion.joints_camera.reshape(len(motion), 42, 3)
    # What does not move in the world moves in the picture when the head does.
    still = np.array([[x, y, 0.0] for x in (-0.3, 0.0, 0.3) for y in (0.0, 0.3)] + [[0, 1.5, 0.5]])
    parts = []
    for frame in range(len(motion)):
        other = frame + 1 if frame + 1 < len(motion) else frame - 1
        table = [_camera_points(poses[i], still) for i in (frame, other)]
        moved = max(
            displacement(camera.project(joints[frame]), camera.project(joints[other])),
            displacement(camera.project(table[0]), camera.project(table[1])),
        )
        blur = moved * span * shot.script.fps
        parts.append(int(np.clip(math.ceil(blur / step), 1, most)))
    return parts


def _camera_points(pose: np.ndarray, points: np.ndarray) -> np.ndarray:
    return (points - pose[:3, 3]) @ pose[:3, :3]


def _moments(shot: Episode, clip: Clip, parts: list[int]) -> Iterator[list[Moment]]:
    """Yield the moments of each exposure; the middle of an exposure is the frame's own time."""
    span = shot.sensor.shutter / shot.script.fps
    centres = shot.script.timestamps_ns * 1e-9
    for frame, count in enumerate(parts):
        if count == 1:
            yield [clip.moments[frame]]
            continue
        count += 1 - count % 2  # odd, so that the middle one is the truth's
        share = (np.arange(count) + 0.5) / count - 0.5
        times = centres[frame] + share * span
        moments = list(pose_clip(shot.script, shot.camera, shot.look, times).moments)
        moments[count // 2] = clip.moments[frame]
        yield moments


def _seen(
    lens: Lens, motion: HandMotion, depth: Float[np.ndarray, "T H W"]
) -> Bool[np.ndarray, "T 2 21"]:
    inside = lens.sees(motion.joints_camera)
    pixels = np.where(inside[..., None], np.round(motion.joints_image), 0).astype(int)
    frame = np.arange(len(motion))[:, None, None]
    surface = depth[frame, pixels[..., 1], pixels[..., 0]].astype(float)
    with np.errstate(invalid="ignore"):
        return inside & (motion.joints_camera[..., 2] - surface < _FLESH_M)
