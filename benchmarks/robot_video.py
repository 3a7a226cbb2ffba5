"""How well the robot replaces the person in a video, against rendered truth.

    python -m benchmarks.robot_video [--clips 8] [--frames 61] [--seed 5400]

Clips of ``acehand synth`` scenes at 640x480, rendered with the person and without. Hands are true,
or found by MediaPipe's tracker with the true camera. Lights cast no shadows, except in one row: a
person's shadow stays in our pictures, and is in none without the person. Medians over clips:

- ``iou``: of the person's pixels, the median over frames; ``person_left``: their share not filled.
- ``psnr_seen``: of pixels that other frames show, against the picture without the person, dB;
  ``psnr_guessed``: of those that no frame shows.
- ``order``: share of the robot's pixels whose order with the scene is right, by the depth of the
  scene without the person; ``order_near_objects``: of those within 60 mm of it.
- ``flicker``: change between frames of what was filled, over that of the source within 20 px.
- ``fps``: frames a second, erasing and drawing in two threads, without encoding.

Peers: OpenCV's Telea inpainting of the same holes (``psnr_telea``, ``psnr_ours``), and the hull of
hand and forearm that the estimate of camera motion leaves out (``iou_hull``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

import cv2
import numpy as np

from acehand_core import track
from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import PosedClip, pose_clip
from acehand_core.ace.synthetic.scene import Moment, Quality, Scene
from acehand_core.camera.turns import hand_mask
from acehand_core.drawing.robot_video import GUESSED, KEPT, SEEN, Eraser, RobotPictures
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion, Recording
from acehand_core.recordings.video_encode import ahead
from acehand_core.types import ImageRgb
from benchmarks import provenance
from retarget import load_robot, retarget

SIZE = 640, 480
NEAR_M = 0.06


class Pictures:
    """Pictures in memory."""

    def __init__(self, images: list[ImageRgb]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        yield from self.images[start:stop]

    def at(self, index: int) -> ImageRgb:
        return self.images[index]


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--frames", type=int, default=61)
    parser.add_argument("--seed", type=int, default=5400)
    provenance.add_output(parser)
    options = parser.parse_args()

    robot = load_robot("inspire")
    rows: dict[str, list[dict]] = {}
    for clip, found in clips(options.seed, options.clips, options.frames):
        for row in ("true hands, shadows", "true hands", "tracked"):
            posed = clip if row.endswith("shadows") else without_shadows(clip)
            recording, truth = rendered(posed)
            motion = track(recording) if row == "tracked" else clip.truth
            values = measured(recording, motion, truth, robot) | {"clip": found}
            rows.setdefault(row, []).append(values)
    result = {
        "clips": options.clips,
        "seed": options.seed,
        "rows": {
            row: {
                key: float(np.nanmedian([one[key] for one in several]))
                for key in several[0]
                if key != "clip"
            }
            for row, several in rows.items()
        },
        "by_clip": rows,
    }
    provenance.publish(run, result, options.output)
    return 0


def clips(seed: int, count: int, frames: int) -> Iterator[tuple[PosedClip, str]]:
    """Yield clips of objects, gestures and both hands, through a pinhole camera."""
    camera, done, index = Camera.nominal(*SIZE, 80), 0, 0
    while done < count:
        episode = make_episode(seed, index, SynthOptions(frames=frames))
        index += 1
        clip = pose_clip(episode.script, camera, episode.appearance)
        if clip.truth.visible.max() > 0.8:
            done += 1
            yield clip, episode.scenario


def without_shadows(clip: PosedClip) -> PosedClip:
    lights = tuple(replace(light, shadow=False) for light in clip.appearance.lights)
    return replace(clip, appearance=replace(clip.appearance, lights=lights))


def rendered(clip: PosedClip) -> tuple[Recording, dict[str, list[np.ndarray]]]:
    """Return a recording; pictures with the person, without, its pixels, depth without (m)."""
    names = "with", "without", "person", "depth"
    rows: dict[str, list[np.ndarray]] = {name: [] for name in names}
    with Scene(clip.camera, clip.script.props, clip.appearance, Quality(1, 2048)) as scene:
        for moment in clip.moments:
            nobody: Moment = replace(moment, vertices_world=(None, None))
            _, before = scene.samples(moment)
            _, after = scene.samples(nobody)
            pictures = scene.render(moment), scene.render(nobody), before < after - 1e-3, after
            for name, picture in zip(names, pictures, strict=True):
                rows[name].append(picture)
    recording = Recording(
        source=clip.script.name,
        sha256=None,
        timestamps_ns=clip.truth.timestamps_ns,
        fps=clip.script.fps,
        width=SIZE[0],
        height=SIZE[1],
        frames=Pictures(rows["with"]),
        camera=clip.camera,
        T_world_camera=clip.truth.T_world_camera,
    )
    return recording, rows


def measured(recording: Recording, motion: HandMotion, truth: dict, robot) -> dict:
    """Return the measures of one clip."""
    trajectory = retarget(motion, robot)
    values: dict[str, list[float]] = {}
    hard, hard_right, easy, easy_right = 0, 0, 0, 0
    changes = []
    with RobotPictures(recording, motion, trajectory, robot) as pictures:
        eraser, started = Eraser(recording, motion), time.perf_counter()
        erased = ahead(eraser.erase(x, k) for k, x in enumerate(truth["with"]))
        made = [(one, pictures.layer(k, one.person, one.front)) for k, one in enumerate(erased)]
        seconds = time.perf_counter() - started

        for frame, (one, layer) in enumerate(made):
            image, clean, person, depth = (
                truth[k][frame] for k in ("with", "without", "person", "depth")
            )
            hull = hand_mask(motion.joints_image[frame], *SIZE)
            if person.any() and motion.known[frame].any():
                add(values, "iou", iou(one.person, person))
                add(values, "iou_hull", iou(hull, person))
            hole = one.kinds != KEPT
            add(values, "psnr_seen", psnr(one.image, clean, one.kinds == SEEN))
            add(values, "psnr_guessed", psnr(one.image, clean, one.kinds == GUESSED))
            if frame % 10 == 0 and hole.any():
                telea = cv2.inpaint(image, hole.astype(np.uint8), 5, cv2.INPAINT_TELEA)
                add(values, "psnr_telea", psnr(telea, clean, hole))
                add(values, "psnr_ours", psnr(one.image, clean, hole))
            left = person & ~hole
            add(values, "person_left", float(left.sum() / max(person.sum(), 1)))

            rgba, metres = pictures.render(frame)
            drawn, hidden = rgba[..., 3] > 127, depth < metres
            alpha = np.zeros(drawn.shape, np.float32)
            alpha[layer.box] = layer.rgba[..., 3]
            right = drawn & (hidden == (alpha < 0.5))
            near = drawn & (np.abs(depth - metres) < NEAR_M)
            easy, easy_right = easy + int(drawn.sum()), easy_right + int(right.sum())
            hard, hard_right = hard + int(near.sum()), hard_right + int((right & near).sum())
            if frame:
                last = made[frame - 1][0]
                rim = cv2.dilate((hole | (last.kinds != KEPT)).astype(np.uint8), np.ones((41, 41)))
                around = (rim > 0) & ~hole & (last.kinds == KEPT)
                inside = hole & (last.kinds != KEPT)
                ours = (
                    np.abs(one.image.astype(int) - last.image)[inside].mean()
                    if inside.any()
                    else np.nan
                )
                theirs = np.abs(image.astype(int) - truth["with"][frame - 1])
                changes.append((ours, theirs[around].mean() if around.any() else np.nan))

    result = {key: float(np.nanmedian(several)) for key, several in values.items()}
    result |= {"order": easy_right / max(easy, 1), "order_near_objects": hard_right / max(hard, 1)}
    ours, theirs = np.nanmean(changes, axis=0)
    result |= {"flicker": float(ours / theirs), "fps": len(made) / seconds}
    return result


def add(values: dict[str, list[float]], key: str, value: float) -> None:
    values.setdefault(key, []).append(value)


def iou(one: np.ndarray, other: np.ndarray) -> float:
    return float((one & other).sum() / max((one | other).sum(), 1))


def psnr(image: np.ndarray, truth: np.ndarray, where: np.ndarray) -> float:
    """Return the peak signal-to-noise ratio of some pixels, dB; NaN for fewer than 50."""
    if where.sum() < 50:
        return float("nan")
    squares = (image[where].astype(float) - truth[where]) ** 2
    return float(10 * np.log10(255**2 / max(squares.mean(), 1e-3)))


if __name__ == "__main__":
    raise SystemExit(main())
