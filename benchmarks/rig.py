"""What other cameras and depth win: rendered clips and photographs with truth, hand length unknown.

    acehand synth --clips 12 --frames 121 --seed SEED --cameras pinhole --depth aligned
        --rig stereo --output out/rig/stereo
    acehand synth --clips 12 --frames 121 --seed SEED --cameras pinhole --depth aligned
        --rig aria --output out/rig/aria
    python -m benchmarks.rig --worse --clips out/rig/stereo

Each clip is tracked by one camera, with depth, with views, and with both. ``ratio``: that to one
camera over all hands of the same run; measures as in ``tracking/score.py``. With ``--worse`` also
by depth that is 2 % off, 20 ms late, or has 30 % holes. ``cpu``: time over that of one camera, of
the first clip.

``photographs``: ``stereo_hand`` of the shared data, both cameras as a rig. Its truth has the
network's own wrist, so joints are also given about their mean; one scale per clip.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.geometry.cameras import Camera
from acehand_core.geometry.frames import inverse
from acehand_core.motion import HandMotion, Recording, View
from acehand_core.recordings.cameras import undistort
from acehand_core.recordings.registry import open_recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from benchmarks import provenance
from benchmarks.tracking.depth import with_worse_depth
from benchmarks.tracking.score import Comparison, Truth, measures

NAMES = (
    "joints_mm", "wrist_mm", "wrist_depth_mm", "wrist_lateral_mm", "palm_deg", "over_30", "recall",
    "recall_mostly_seen", "precision", "wrong_side", "nothing_there", "good", "jitter",
    "covered_68", "covered_95", "covered_68_depth", "covered_95_depth",
)  # fmt: skip
#: Median reprojection of the photographs' truth up to which a frame counts, and metres per unit.
MOST_PX, UNIT_M = 6.0, 0.0448

Change = Callable[[Recording], Recording]
MODES: dict[str, Change] = {
    "camera": lambda one: replace(one, views=(), depth=None),
    "depth": lambda one: replace(one, views=()),
    "views": lambda one: replace(one, depth=None),
    "views and depth": lambda one: one,
}
WORSE: dict[str, Change] = {
    "2 % off": lambda one: with_worse_depth(replace(one, views=()), scale=1.02),
    "20 ms late": lambda one: with_worse_depth(replace(one, views=()), late_s=0.02),
    "30 % holes": lambda one: with_worse_depth(replace(one, views=()), holes=0.3),
}


def main() -> None:
    """Measure all clips and the photographs; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clips", type=Path, nargs="*", default=[], help="stores with rigs")
    parser.add_argument("--worse", action="store_true", help="also depth that is worse")
    provenance.add_output(parser)
    options = parser.parse_args()
    modes = MODES | (WORSE if options.worse else {})
    stores = {store.name: rendered(store, modes) for store in options.clips}
    folder = provenance.shared_folder() / "data" / "stereo_hand"
    result: dict[str, Any] = {"benchmark": "rig", "rendered": stores}
    result["photographs"] = photographs(folder) if folder.is_dir() else f"{folder}: not there"
    provenance.publish(started, result, options.output)


def rendered(store: Path, modes: dict[str, Change]) -> dict[str, Any]:
    """Return the measures of every mode over all clips of a store."""
    found: dict[str, list[Comparison]] = {name: [] for name in modes}
    clips, seconds = ClipStore(store), dict[str, float]()
    for name in clips.ids():
        recording = replace(open_recording(store / "clips" / name), T_world_camera=None)
        truth = Truth.of(clips.open(name).motion, clips.extra(name, "sight")["joints_seen"])
        with tempfile.TemporaryDirectory() as folder:  # detections of all modes
            for mode, change in modes.items():
                changed = replace(change(recording), sha256=recording.sha256)
                motion, _ = tracked(changed, Path(folder))
                found[mode].append(Comparison.of(motion, truth))
                one = measures(found[mode][-1:])
                print(store.name, name, mode, {key: one[key] for key in NAMES[:6]}, flush=True)
        if name == clips.ids()[0]:
            seconds = {mode: tracked(change(recording))[1] for mode, change in MODES.items()}
    out: dict[str, Any] = {"clips": len(clips.ids())}
    for mode, clip in found.items():
        all_of = measures(clip)
        out[mode] = {key: all_of[key] for key in NAMES}
        first = out["camera"]
        out[mode]["ratio"] = {
            key: out[mode][key] / first[key] for key in NAMES[:7] if first[key] and out[mode][key]
        }
    out["cpu"] = {mode: spent / seconds["camera"] for mode, spent in seconds.items()}
    return out


def tracked(recording: Recording, work_dir: Path | None = None) -> tuple[HandMotion, float]:
    """Return the hands and the CPU seconds it took."""
    begin = time.process_time()
    motion = MediaPipeTracker(TrackerSettings(work_dir=work_dir)).track(recording)
    return motion, time.process_time() - begin


def photographs(folder: Path) -> dict[str, Any]:
    """Return the errors of the hand by each camera alone and by both."""
    said = json.loads((folder / "calibration.json").read_text("utf-8"))
    cameras = []
    for number, one in enumerate(said["cameras"]):
        numbers = (one[name] for name in ("width", "height", "fx", "fy", "cx", "cy"))
        lens = Camera("brown_conrady", *numbers, tuple(one["distortion_k1k2p1p2k3"]))
        video = open_recording(folder / f"camera{number}.mp4")
        cameras.append(undistort(replace(video, camera=lens)))
    T_second_first = np.array(said["T_camera1_camera0"])
    T_second_first[:3, 3] *= UNIT_M
    truth = np.load(folder / "truth.npz")
    kept = np.nanmedian(truth["reprojection_px"], axis=(1, 2)) < MOST_PX
    frames, joints = truth["frames"][kept], truth["joints"][kept] * UNIT_M
    rig = replace(cameras[0], views=(View("camera1", cameras[1], inverse(T_second_first)),))
    of_second = joints @ T_second_first[:3, :3].T + T_second_first[:3, 3]
    return {
        "camera0": compared(cameras[0], frames, joints),
        "camera1": compared(cameras[1], frames, of_second),
        "both": compared(rig, frames, joints),
    }


def compared(recording: Recording, frames: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Return the errors of the right hand, joints after one scale per clip."""
    motion, _ = tracked(recording)
    known = motion.known[frames, 1]
    found, true = motion.joints_camera[frames, 1][known], true[known]
    out: dict[str, float] = {"lost_frames": int((~known).sum()), "frames": len(frames)}
    out["wrist_mm"] = 1e3 * float(np.linalg.norm(found[:, 0] - true[:, 0], axis=1).mean())
    out["depth_spread_mm"] = 1e3 * float((found[:, 9, 2] - true[:, 9, 2]).std())
    for name, origin in (("joints_mm", found[:, :1]), ("about_mean_mm", found.mean(1)[:, None])):
        ours = found - origin
        theirs = true - (true[:, :1] if name == "joints_mm" else true.mean(1)[:, None])
        scale = np.sum(ours * theirs) / np.sum(theirs**2)
        out[name] = 1e3 * float(np.linalg.norm(ours - scale * theirs, axis=-1).mean())
    return out


if __name__ == "__main__":
    main()
