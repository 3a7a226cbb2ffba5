"""What knowing the camera's turns does to tracked hands, end to end, on rendered clips.

Clips are those of ``acehand synth`` with heads that move, in stores below ``--clips`` (docstring of
``camera_motion.py``: how they are made), and the example video. The mediapipe tracker gets the true
camera and length of the hand, and of the camera's motion: nothing (``off``), its turns as estimated
(``rotation``, the default), or the true poses (``poses``: the best that could be had).

``wrist_mm`` and ``wrist_deg`` are mean errors of wrists, in place and as directions, in frames with
a sighting; ``filled``: frames without one, and the errors in those of them that all methods fill;
``withheld``: the same where runs of 5 to 30 frames of the tracker's own sightings are taken away.
``usable``: share of all frames of both hands whose wrist is known within ``USABLE_MM``.
``wrong_side``: frames whose wrist is nearer to the other true hand. ``acceleration``: rms
acceleration of wrists in the world by the true poses, over the true one: what a robot's base would
have to follow. ``cpu_s_per_frame`` includes the tracker's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.camera.turns import recorded_rotations
from acehand_core.geometry import frames
from acehand_core.motion import CameraMotion, FrameSource, HandMotion, Recording
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.registry import open_recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.reconstruct import reconstruct_hands
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from acehand_core.types import SIDES, Progress, TurnsMode
from benchmarks import provenance

EXAMPLE = provenance.ROOT / "examples"
USABLE_MM = 60.0
METHODS = ("off", "rotation", "poses")


@dataclass(frozen=True, slots=True)
class Case:
    """A clip with its truth."""

    name: str
    head_motion: str
    pictures: FrameSource
    truth: HandMotion


def main() -> None:
    """Measure all clips; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, help="folder of stores; without it the example alone")
    parser.add_argument("--work", type=Path, help="keeps detections for another run")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    rows, errors = [], {}
    for case in cases(arguments.clips):
        row: dict[str, Any] = {"clip": case.name, "head_motion": case.head_motion}
        for method in METHODS:
            begin = time.process_time()
            motion = tracked(case, method, arguments.work)
            spent = (time.process_time() - begin) / len(case.truth)
            errors[case.name, method] = Errors.between(
                motion.joints_camera, motion.filled, case.truth
            )
            row[method] = {"cpu_s_per_frame": round(spent, 3)}
        for method, found in withheld(case, arguments.work).items():
            errors[case.name, f"withheld_{method}"] = found
        for names in (METHODS, [f"withheld_{method}" for method in METHODS]):
            same = np.all([errors[case.name, name].filled for name in names], axis=0)
            for name in names:
                errors[case.name, name] = replace(errors[case.name, name], compared=same)
        for method in METHODS:
            row[method] |= measures([errors[case.name, method]])
        rows.append(row)
        print(case.name, {method: row[method] for method in METHODS}, flush=True)
    result = {"benchmark": "moving_camera", "clips": rows, "summary": summary(rows, errors)}
    provenance.publish(started, result, arguments.output)


def cases(folder: Path | None) -> Iterator[Case]:
    """Yield the example and every clip of the stores below ``folder``."""
    truth = read_hand_motion(EXAMPLE / "two_hands_truth.parquet")
    pictures = open_recording(EXAMPLE / "two_hands.mp4").frames
    assert pictures is not None
    yield Case("two_hands", "example", pictures, truth)
    for path in sorted(folder.glob("*/store.json")) if folder else ():
        store = ClipStore(path.parent)
        for name in store.ids():
            clip = store.open(name)
            assert clip.frames is not None
            head = clip.info.source.get("head_motion", "ordinary")
            yield Case(f"{path.parent.name}/{name}", str(head), clip.frames, clip.motion)


def tracked(case: Case, method: str, work: Path | None) -> HandMotion:
    """Return the hands that the tracker finds."""
    recording, settings = asked(case, method, work)
    return MediaPipeTracker(settings).track(recording, Quiet())


def asked(case: Case, method: str, work: Path | None) -> tuple[Recording, TrackerSettings]:
    """Return what the tracker is given."""
    truth, camera = case.truth, case.truth.camera
    assert camera is not None
    length = np.linalg.norm(
        np.diff(truth.joints_camera[..., [0, 9, 10, 11, 12], :], axis=-2), axis=-1
    )
    recording = Recording(
        case.name, case.name, truth.timestamps_ns, truth.fps, camera.width, camera.height,
        case.pictures, camera, truth.T_world_camera if method == "poses" else None,
    )  # fmt: skip
    mode: TurnsMode = "rotation" if method == "rotation" else "off"
    settings = TrackerSettings(
        hand_length_m=float(np.nanmedian(length.sum(-1))), work_dir=work, camera_motion=mode
    )
    return recording, settings


def withheld(case: Case, work: Path | None) -> dict[str, Errors]:
    """Return the errors where sightings were taken away, every other frame counted as unknown."""
    truth, camera = case.truth, case.truth.camera
    assert camera is not None
    recording, settings = asked(case, "off", work)
    slots, *_ = MediaPipeTracker(settings)._detect(recording, camera, Quiet())
    rng = np.random.default_rng(0)
    gone = np.zeros((len(truth), 2), bool)
    for slot in range(2):
        at = int(rng.integers(10, 30))
        while at < len(truth) - 10:
            run = int(rng.integers(5, 31))
            if at + run < len(truth) - 5:
                gone[at : at + run, slot] = [
                    slots[t][slot] is not None for t in range(at, at + run)
                ]
            at += run + int(rng.integers(15, 30))
    pixels = np.full((len(truth), 2, 21, 2), np.nan)
    for t, pair in enumerate(slots):
        for slot, hand in enumerate(pair):
            if hand is not None:
                pixels[t, slot] = hand.pixels
    poses = truth.T_world_camera
    assert poses is not None
    known = {
        "off": (None, None),
        "rotation": (recorded_rotations(recording, camera, pixels, work_dir=work), None),
        "poses": (CameraMotion.from_poses(poses), poses),
    }
    out = {}
    for method, (motion, T_world_camera) in known.items():
        clip = camera, truth.timestamps_ns, settings, motion, T_world_camera
        tracks = []
        for slot, side in enumerate(SIDES):
            seen = [None if gone[t, slot] else slots[t][slot] for t in range(len(truth))]
            tracks.append(reconstruct_hands({side: seen}, *clip)[side])
        filled = np.stack([track.filled for track in tracks], axis=1) & gone
        joints = np.stack([track.joints for track in tracks], axis=1)
        joints[~filled] = np.nan
        out[method] = Errors.between(joints, filled, truth)
    return out


class Quiet(Progress):
    """No progress."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Errors:
    """Wrists of T frames and 2 hands against the truth; NaN where either is not known.

    ``compared``: the filled ones that all methods fill.
    """

    mm: np.ndarray
    degrees: np.ndarray
    filled: np.ndarray
    compared: np.ndarray
    wrong_side: np.ndarray
    acceleration: np.ndarray
    true_acceleration: np.ndarray

    @classmethod
    def between(cls, joints: np.ndarray, filled: np.ndarray, truth: HandMotion) -> Errors:
        """Compare joints (T, 2, 21, 3) with the truth."""
        wrist, true = joints[:, :, 0], truth.joints_camera[:, :, 0]
        off = np.linalg.norm(wrist - true, axis=-1)
        other = np.linalg.norm(wrist - true[:, ::-1], axis=-1)
        unit = [p / np.linalg.norm(p, axis=-1, keepdims=True) for p in (wrist, true)]
        angle = np.degrees(np.arccos(np.clip((unit[0] * unit[1]).sum(-1), -1, 1)))
        world = truth.T_world_camera
        assert world is not None
        dt = 1 / truth.fps
        acceleration = [
            np.linalg.norm(np.diff(frames.apply(world[:, None], p), n=2, axis=0), axis=-1) / dt**2
            for p in (wrist, true)
        ]
        return cls(1e3 * off, angle, filled, filled, other < off, *acceleration)


def measures(some: list[Errors]) -> dict[str, Any]:
    """Return the measures over all frames of some clips."""
    mm, degrees, filled, compared, wrong = (
        np.concatenate([getattr(e, name).ravel() for e in some])
        for name in ("mm", "degrees", "filled", "compared", "wrong_side")
    )
    made, true = (
        np.concatenate([getattr(e, name).ravel() for e in some])
        for name in ("acceleration", "true_acceleration")
    )
    both = np.isfinite(made) & np.isfinite(true)
    known = np.isfinite(mm)
    seen, gap = known & ~filled, known & compared

    def mean(values: np.ndarray) -> float | None:
        return round(float(values.mean()), 2) if len(values) else None

    return {
        "wrist_mm": mean(mm[seen]), "wrist_deg": mean(degrees[seen]),
        "filled": int((known & filled).sum()), "filled_compared": int(gap.sum()),
        "filled_mm": mean(mm[gap]), "filled_deg": mean(degrees[gap]),
        "usable": round(float((mm < USABLE_MM).mean()), 4),
        "wrong_side": int((wrong & known).sum()),
        "acceleration": round(float(rms(made[both]) / rms(true[both])), 3) if both.any() else None,
    }  # fmt: skip


def rms(values: np.ndarray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt((values**2).mean()))


def summary(rows: list[dict[str, Any]], errors: dict[tuple[str, str], Errors]) -> dict[str, Any]:
    """Return the measures over all clips, and over those of each kind of head motion."""
    kinds = list(dict.fromkeys(row["head_motion"] for row in rows))
    out: dict[str, Any] = {}
    for kind in ("all", *kinds):
        names = [row["clip"] for row in rows if kind in ("all", row["head_motion"])]
        out[kind] = {"clips": len(names)} | {
            method: measures([errors[name, method] for name in names]) for method in METHODS
        }
        out[kind]["withheld"] = {
            method: {key: value for key, value in
                     measures([errors[name, f"withheld_{method}"] for name in names]).items()
                     if key.startswith("filled")}
            for method in METHODS
        }  # fmt: skip
    return out


if __name__ == "__main__":
    main()
