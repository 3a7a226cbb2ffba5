"""How far from the truth hands are filled while they are not seen: in which frame, at what cost.

    python -m benchmarks.gap_filling [--episodes 40]

Hands and cameras of ``acehand synth`` episodes (nothing is rendered), under heads that move: as the
generator moves them, turning, looking back, bending down, walking with the hands before the chest;
and, by itself, hands that are carried as if fixed to the head while the person walks and turns. A
hand is seen where 60 % of its keypoints are in the picture. What is measured are wrists in filled
frames:

- out_of_sight: gaps as the camera makes them;
- random: runs of 5 to 30 frames withheld of what was seen;
- carried: the same of carried hands;
- in_sight: the frames that are seen, smoothed.

Errors are means over frames, mm, and pixels: the angle between both directions times the focal
length, since most of it is outside of the picture. Methods: ``camera`` ignores the
camera's motion; ``rotation`` and ``world`` fill every gap in that frame, ``chosen`` chooses by
rotation alone and ``chosen_poses`` also with the camera's place. ``..._noisy``: rotations with the
errors of an estimator, 0.2 degrees a frame and 2.2 over a second (rms). ``sightings``: "true"
hands, or "tracked": directions with 3 px of noise and distances with 6 % that last for 0.3 s.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.script import camera_path, hand_path
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.evidence import Pose
from acehand_core.motion import CameraMotion
from acehand_core.trackers.mediapipe import gaps
from acehand_core.trackers.mediapipe.gaps import smooth_pose, smooth_turning_pose, spans
from acehand_core.trackers.mediapipe.reconstruct import MAX_FILL_S, MIN_DEPTH_M
from acehand_core.types import SIDES
from benchmarks import provenance

FPS, FRAMES = 30.0, 241
TIMES = np.arange(FRAMES) / FPS
STAMPS = np.round(TIMES * 1e9).astype(np.int64)
STEP_DEG, DRIFT_DEG = 0.2, 2.2
SEEN_SHARE = 0.6


@dataclass(frozen=True)
class Hand:
    """One hand's true pose in the camera frame, and where the picture shows it."""

    pose: Pose
    seen: np.ndarray


@dataclass(frozen=True)
class Clip:
    """Both hands under one camera that moves."""

    kind: str
    camera: Camera
    T_world_camera: np.ndarray
    hands: tuple[Hand, ...]


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=17)
    provenance.add_output(parser)
    options = parser.parse_args()
    clips = [clip for index in range(options.episodes) for clip in posed(options.seed, index)]
    result: dict = {"clips": {}, "sightings": {}}
    for clip in clips:
        result["clips"][clip.kind] = result["clips"].get(clip.kind, 0) + 1
    for sightings in ("true", "tracked"):
        rng = np.random.default_rng(options.seed)
        result["sightings"][sightings] = measured(clips, rng, sightings == "tracked")
    provenance.publish(run, result, options.output)
    return 0


# --- clips --------------------------------------------------------------------------------------

KINDS = ("own", "turn", "back", "bend", "walk", "carried")


def posed(seed: int, index: int) -> Iterator[Clip]:
    """Yield the episode under two of the heads."""
    episode = make_episode(seed, index, SynthOptions(frames=FRAMES, fps=FPS))
    script, rng = episode.script, np.random.default_rng((seed, index, 5))
    head = camera_path(script.cameras, TIMES)
    slow = {kind: 0.25 if kind == "walk" else 1.0 for kind in KINDS}
    for kind in (KINDS[index % 6], KINDS[(index + 3) % 6]):
        paths = [hand_path(k, TIMES * slow[kind]) if k else None for k in script.hands]
        camera_poses, body = moved(kind, rng, head)
        hands = []
        for slot, (side, path) in enumerate(zip(SIDES, paths, strict=True)):
            if path is None:
                continue
            if kind == "carried":
                T_camera_hand = held_before_camera(rng, head, path.T_world_hand)
            else:
                T_camera_hand = frames.inverse(camera_poses) @ body @ path.T_world_hand
            pose = Pose(T_camera_hand[:, :3, :3], path.angles, T_camera_hand[:, :3, 3])
            rest = CapsuleHand().rest_keypoints(side, script.betas[slot])
            pixels = episode.camera.project(pose.keypoints(side, rest))
            seen = episode.camera.contains(pixels).mean(-1) >= SEEN_SHARE
            hands.append(Hand(pose, seen & (pose.wrist[:, 2] > MIN_DEPTH_M)))
        yield Clip(kind, episode.camera, camera_poses, tuple(hands))


def moved(kind: str, rng: np.random.Generator, head: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``T_world_camera`` and what moves the hands with the body, both (T, 4, 4)."""
    yaw, pitch, shift = (np.zeros(FRAMES), np.zeros(FRAMES), np.zeros((FRAMES, 3)))
    body = np.tile(np.eye(4), (FRAMES, 1, 1))
    if kind == "turn":
        for start in np.arange(rng.uniform(0.3, 1.2), TIMES[-1], 2.2):
            there = held_for(rng, start, rng.uniform(0.3, 1.1))
            yaw += there * np.radians(rng.uniform(30, 80)) * rng.choice([-1, 1])
            pitch += there * np.radians(rng.uniform(-20, 35))
    elif kind == "back":
        for start in (rng.uniform(0.5, 2.5), rng.uniform(4.0, 6.0)):
            there = held_for(rng, start, rng.uniform(0.2, 0.5))
            yaw += there * np.radians(rng.uniform(90, 140)) * rng.choice([-1, 1])
    elif kind == "bend":
        for start in np.arange(rng.uniform(0.3, 1.2), TIMES[-1], 2.5):
            there = held_for(rng, start, rng.uniform(0.3, 1.0))
            pitch += there * np.radians(rng.uniform(20, 50)) * rng.choice([-1, 1])
            shift += there[:, None] * rng.uniform([-0.25, -0.1, -0.15], [0.25, 0.25, 0.1])
    elif kind in ("walk", "carried"):
        # Steps of two a second: up and down, to and fro; the way turns now and then.
        heading = np.zeros(FRAMES)
        for start in np.arange(rng.uniform(0.5, 1.5), TIMES[-1], 2.5):
            turn = np.radians(rng.uniform(30, 100)) * rng.choice([-1, 1])
            heading += turn * ramp((TIMES - start) / rng.uniform(0.7, 1.2))
        speed = rng.uniform(0.7, 1.3)
        forward = np.stack([-np.sin(heading), np.cos(heading), 0 * heading], axis=-1)
        walked = np.cumsum(forward, axis=0) * speed / FPS
        walked[:, 2] += 0.02 * np.sin(2 * np.pi * 2.0 * TIMES)
        body = frames.rigid(about(heading, 2), walked)
        pitch += np.radians(1.2) * np.sin(2 * np.pi * 2.0 * TIMES + 1.0)
        for start in np.arange(rng.uniform(0.3, 2.0), TIMES[-1], 3.0):
            glance = held_for(rng, start, rng.uniform(0.2, 0.8))
            yaw += glance * np.radians(rng.uniform(15, 60)) * rng.choice([-1, 1])
    # Yaw about the world's vertical, pitch about the camera's own axis to the right.
    rotation = about(yaw, 2) @ head[:, :3, :3] @ about(pitch, 0)
    return body @ frames.rigid(rotation, head[:, :3, 3] + shift), body


def held_before_camera(
    rng: np.random.Generator, head: np.ndarray, T_world_hand: np.ndarray
) -> np.ndarray:
    """Return the hand of one moment before the camera, swaying by a centimetre or two."""
    at = int(rng.integers(FRAMES))
    T = np.tile(frames.inverse(head[at]) @ T_world_hand[at], (FRAMES, 1, 1))
    for axis in range(3):
        phase, hz = rng.uniform(0, 2 * np.pi), rng.uniform(0.4, 1.2)
        T[:, axis, 3] += 0.012 * np.sin(2 * np.pi * hz * TIMES + phase)
    return T


def held_for(rng: np.random.Generator, start: float, seconds: float) -> np.ndarray:
    """Return 0, up to 1 for so long, and back to 0."""
    rise = rng.uniform(0.25, 0.5)
    return ramp((TIMES - start) / rise) - ramp((TIMES - start - rise - seconds) / rise)


def ramp(share: np.ndarray) -> np.ndarray:
    """Return a smooth step from 0 to 1."""
    x = np.clip(share, 0, 1)
    return x * x * x * (10 - 15 * x + 6 * x * x)


def about(angle: np.ndarray, axis: int) -> np.ndarray:
    return rotations.exp(angle[:, None] * np.eye(3)[axis])


# --- filling ------------------------------------------------------------------------------------


def measured(clips: list[Clip], rng: np.random.Generator, tracked: bool) -> dict:
    """Return the errors of every method for each kind of gap, and over those of ``camera``."""
    errors: dict = defaultdict(lambda: defaultdict(list))
    frame_counts: dict = defaultdict(lambda: defaultdict(int))
    for clip in clips:
        methods = ways(clip, rng)
        for hand in clip.hands:
            sightings = as_tracked(hand.pose, clip.camera, rng) if tracked else hand.pose
            withheld = hand.seen & random_runs(rng)
            cases = {"random": (hand.seen & ~withheld, withheld)}
            if clip.kind == "carried":
                cases = {"carried": cases["random"]}
            else:
                cases["out_of_sight"] = (hand.seen, ~hand.seen)
                cases["in_sight"] = (hand.seen, hand.seen)
            for case, (seen, wanted) in cases.items():
                for span in spans(seen, STAMPS, MAX_FILL_S):
                    rows = slice(span.start, span.stop)
                    where = wanted[rows]
                    if not where.any():
                        continue
                    truth = hand.pose.wrist[rows][where]
                    for method, fill in methods.items():
                        pose, frames_of_gaps = fill(sightings, seen, rows)
                        errors[case][method].append(off(pose.wrist[where], truth, clip.camera))
                        if method == "chosen_poses":
                            for frame in frames_of_gaps:
                                frame_counts[case][frame] += 1
    out = {}
    for case, found in errors.items():
        rows = {name: np.concatenate(parts) for name, parts in found.items()}
        alone = rows["camera"].mean(0)
        out[case] = {
            "frames": len(rows["camera"]),
            "gaps_by_frame": dict(frame_counts[case]),
            "mm": {name: row[:, 0].mean() for name, row in rows.items()},
            "median_mm": {name: np.median(row[:, 0]) for name, row in rows.items()},
            "px": {name: row[:, 1].mean() for name, row in rows.items()},
            "mm_over_camera": {name: row[:, 0].mean() / alone[0] for name, row in rows.items()},
            "px_over_camera": {name: row[:, 1].mean() / alone[1] for name, row in rows.items()},
        }
    return out


def ways(clip: Clip, rng: np.random.Generator) -> dict[str, Callable]:
    """Return every method as (pose, seen, rows) -> pose of the rows and the frames of its gaps."""
    true = CameraMotion.from_poses(clip.T_world_camera)
    noisy = replace(
        true, rotations=true.rotations @ rotation_errors(rng),
        sigma_rad=np.full(FRAMES, np.radians(STEP_DEG)),
    )  # fmt: skip
    place = clip.T_world_camera

    def forced(frame, motion, poses=None):
        def fill(pose, seen, rows):
            weights = seen[rows].astype(float)
            all_gaps = [replace(gap, frame=frame) for gap in gaps.find_gaps(seen[rows])]
            part, shown = motion.part(rows.start, rows.stop), held(pose, seen, rows)
            smoothed = smooth_turning_pose(shown, part.rotations, weights, TIMES[rows])
            filled = gaps.blended(
                smooth_pose(shown, weights, TIMES[rows]), smoothed, weights, TIMES[rows], part,
                None if poses is None else poses[rows], all_gaps,
            )  # fmt: skip
            return filled, [gap.frame for gap in all_gaps]

        return fill

    def chosen(motion, poses=None):
        def fill(pose, seen, rows):
            filled, found = gaps.smooth_and_fill(
                held(pose, seen, rows), seen[rows].astype(float), TIMES[rows],
                motion.part(rows.start, rows.stop), None if poses is None else poses[rows],
            )  # fmt: skip
            return filled, [gap.frame for gap in found]

        return fill

    def camera(pose, seen, rows):
        return smooth_pose(held(pose, seen, rows), seen[rows].astype(float), TIMES[rows]), []

    return {
        "camera": camera,
        "rotation": forced("rotation", true),
        "world": forced("world", true, place),
        "chosen": chosen(true),
        "chosen_poses": chosen(true, place),
        "rotation_noisy": forced("rotation", noisy),
        "chosen_noisy": chosen(noisy),
    }


def held(pose: Pose, seen: np.ndarray, rows: slice) -> Pose:
    """Return the rows with the last sighting where there is none, as the tracker has them."""
    last = np.maximum.accumulate(np.where(seen, np.arange(len(seen)), 0))
    return pose.rows(last[rows])


def random_runs(rng: np.random.Generator) -> np.ndarray:
    """Return runs of 5 to 30 frames, about one in two seconds, that are withheld."""
    withheld, at = np.zeros(FRAMES, bool), int(rng.integers(15, 45))
    while at < FRAMES:
        length = int(rng.integers(5, 31))
        withheld[at : at + length] = True
        at += length + int(rng.integers(20, 60))
    return withheld


def rotation_errors(rng: np.random.Generator) -> np.ndarray:
    """Return errors of rotations that add up: white steps and slow drift, as of an estimator."""
    per_axis = 1 / np.sqrt(3)
    # A drift that lasts for a second takes most of what a second's error is; steps the rest.
    keep = np.exp(-1 / FPS)
    white = np.sqrt(STEP_DEG**2 - _DRIFT_STEP_DEG**2)
    drift = rng.normal(0, _DRIFT_STEP_DEG, 3)
    turn, out = np.eye(3), []
    for _ in range(FRAMES):
        out.append(turn)
        drift = keep * drift + np.sqrt(1 - keep**2) * rng.normal(0, _DRIFT_STEP_DEG, 3)
        step = drift + rng.normal(0, white, 3)
        turn = turn @ rotations.exp(np.radians(step) * per_axis)
    return np.stack(out)


def _drift_step() -> float:
    """Return the share of a step's error that lasts, so that a second drifts as it should."""
    count = round(FPS)
    lag = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    lasting = np.exp(-lag / FPS).sum()  # variance of a second's sum for a step's of 1
    return float(np.sqrt((DRIFT_DEG**2 - count * STEP_DEG**2) / (lasting - count)))


_DRIFT_STEP_DEG = _drift_step()


def as_tracked(pose: Pose, camera: Camera, rng: np.random.Generator) -> Pose:
    """Return wrists with the errors of a tracker: directions of every frame, slow distances."""
    far = np.linalg.norm(pose.wrist, axis=1, keepdims=True)
    direction = pose.wrist / far + rng.normal(0, 3.0 / camera.fx, pose.wrist.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    keep, error, errors = np.exp(-1 / (0.3 * FPS)), rng.normal(0, 0.06), []
    for _ in range(len(far)):
        error = keep * error + np.sqrt(1 - keep**2) * rng.normal(0, 0.06)
        errors.append(error)
    return replace(pose, wrist=direction * far * np.exp(np.array(errors))[:, None])


def off(found: np.ndarray, truth: np.ndarray, camera: Camera) -> np.ndarray:
    """Return how far off each place is, (N, 2): mm, and pixels of angle."""
    mm = 1e3 * np.linalg.norm(found - truth, axis=1)
    across = np.linalg.norm(np.cross(found, truth), axis=1)
    return np.stack([mm, camera.fx * np.arctan2(across, np.sum(found * truth, axis=1))], axis=1)


if __name__ == "__main__":
    sys.exit(main())
