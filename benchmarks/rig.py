"""What other cameras and depth win on rendered clips, hand length unknown.

    acehand synth --clips 12 --frames 121 --seed SEED --cameras pinhole --depth aligned
        --rig stereo --output out/rig/stereo
    acehand synth --clips 12 --frames 121 --seed SEED --cameras pinhole --depth aligned
        --rig aria --output out/rig/aria
    python -m benchmarks.rig --worse --clips out/rig/stereo

Each clip is tracked by one camera, with depth, with views, and with both. ``ratio``: that to one
camera over all hands of the same run; measures as in ``tracking/score.py``. With ``--worse`` also
by depth that is 2 % off, 20 ms late, or has 30 % holes. ``cpu``: time over that of one camera, of
the first clip. Photographs: ``benchmarks.photographs``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.motion import HandMotion, Recording
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
    result: dict[str, Any] = {"benchmark": "rig", "rendered": stores}
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


if __name__ == "__main__":
    main()
