"""Wrong and right depth and rigs: how often a wrong one is believed, and a right one called wrong.

    acehand synth --clips 8 --frames 61 --seed SEED --cameras pinhole --depth aligned --rig stereo
        --output out/stereo
    python -m benchmarks.agreement --trials 40 --clips out/stereo

On ``stereo_hand`` of the shared data (its own rig; depth painted from its truth) and rendered clips
depth and the rig's poses get a random fault each, with and without the hand's length, on a random
part of the recording. Wrong evidence is ``believed`` where no verdict would warn of it and the
wrist is further than two stated sigma from the truth along the line of sight in most frames. Right
evidence (depth with noise and holes, rigs as calibrated) is ``called_wrong`` where it is doubted.
Faults are counted by their size over that from which they matter: 12 % of scale, 40 px of
registration, a degree, 67 ms between cameras, 150 ms between hand and depth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Depth, Recording
from acehand_core.recordings.registry import open_recording
from acehand_core.recordings.selection import part
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from acehand_core.types import DepthImage
from benchmarks import photographs, provenance

Random = np.random.Generator
Change = Callable[[int, DepthImage], np.ndarray]
Fault = tuple[str, float, Recording]


@dataclass(frozen=True, slots=True)
class Case:
    """A recording with depth, views or both; true wrists (T, 2, 3), NaN where unknown."""

    name: str
    recording: Recording
    wrists: Float[np.ndarray, "T 2 3"]
    length_m: float


@dataclass(frozen=True, slots=True)
class Changed:
    """Depth pictures changed by ``change`` of index and picture."""

    pictures: Any
    change: Change

    def __len__(self) -> int:
        return len(self.pictures)

    def at(self, index: int) -> DepthImage:
        return self.change(index, self.pictures.at(index)).astype(np.float32)


def main() -> None:
    """Try faults on all cases; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10, help="of each fault")
    parser.add_argument("--clips", type=Path, help="a store with depth and rigs")
    parser.add_argument("--seed", type=int, default=0)
    provenance.add_output(parser)
    options = parser.parse_args()

    rng, counts = np.random.default_rng(options.seed), defaultdict[str, list[bool]](list)
    with tempfile.TemporaryDirectory() as folder:
        clips = rendered(options.clips) if options.clips else ()
        groups = [group for group in (list(photographed(Path(folder))), list(clips)) if group]
        for trial in range(options.trials):
            turn, group = divmod(trial, len(groups))
            case = groups[group][turn % len(groups[group])]
            for fault in faults(case, rng):
                kind, length = fault[0], rng.choice([0.0, case.length_m])
                names, wrong = tried(case, fault, float(length) or None, Path(folder))
                for name in names:
                    counts[name].append(wrong)
                print(trial, case.name, kind, f"{fault[1]:.3g}", length, wrong, flush=True)
    shares = {
        name: {"share": float(np.mean(found)), "of": len(found)} for name, found in counts.items()
    }
    provenance.publish(started, {"benchmark": "agreement", "shares": shares}, options.output)


def tried(
    case: Case, fault: Fault, length_m: float | None, work: Path
) -> tuple[tuple[str, ...], bool]:
    """Return where it counts, and whether it was believed or, if right, called wrong."""
    kind, size, recording = fault
    settings = TrackerSettings(hand_length_m=length_m, work_dir=work)
    motion = MediaPipeTracker(settings).track(recording)
    # As the verdict warns.
    doubted = any(one.doubt or 2 * one.used < one.frames for one in motion.provenance.agreement)
    where = "photographs" if case.name.startswith("camera") else "rendered"
    if size == 0:
        return (f"{where}: called wrong", f"{kind}: called wrong"), doubted

    assert motion.joint_sigma is not None
    true = case.wrists[np.searchsorted(case.recording.timestamps_ns, recording.timestamps_ns)]
    away = np.linalg.norm(true, axis=-1)
    deep = np.abs(np.sum((motion.joints_camera[:, :, 0] - true) * true, axis=-1)) / away
    outside = deep / motion.joint_sigma[:, :, 0, 1]
    outside = outside[motion.observed & np.isfinite(outside)]
    sizes = "below 1" if abs(size) < 1 else "1 to 2" if abs(size) < 2 else "from 2"
    believed = not doubted and len(outside) > 0 and float(np.median(outside)) > 2
    return tuple(f"{what}, size {sizes}: believed" for what in (where, kind)), believed


def faults(case: Case, rng: Random) -> Iterator[Fault]:
    """Yield a recording with each fault; its size: from 1 on it matters."""
    count = len(case.recording)
    start = int(rng.choice([0, max(count - 60, 0)]))  # hands are detected once in each part
    some = part(case.recording, start, min(start + 60, count))
    if some.depth is not None:
        alone = replace(some, views=())
        depth = some.depth

        def with_depth(
            change: Callable[[int, DepthImage], np.ndarray], late_s: float = 0
        ) -> Recording:
            times = depth.timestamps_ns + round(late_s * 1e9)
            pictures = Changed(depth.frames, change)
            return replace(alone, depth=replace(depth, frames=pictures, timestamps_ns=times))

        noise = rng.uniform(0, 0.004)
        holes = rng.uniform(0, 0.3)
        yield "depth", 0.0, with_depth(lambda i, z: _noisy(i, z, noise, holes))
        log = float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.05), np.log(2.3))))
        yield "depth's scale", log / 0.12, with_depth(lambda i, z: z * np.exp(log))
        off = float(rng.uniform(-0.4, 0.4))
        nearest = float(np.nanmedian(np.linalg.norm(case.wrists, axis=-1)))
        log = float(np.log(max(1 + off / nearest, 0.05)))
        yield "depth's offset", log / 0.12, with_depth(lambda i, z: z + off)
        pixels = int(rng.choice([-1, 1]) * rng.uniform(5, 150))
        yield "registration", pixels / 40, with_depth(lambda i, z: np.roll(z, pixels, axis=1))
        late = float(rng.choice([-1, 1]) * rng.uniform(0.03, 1.5))
        yield "depth's clock", late / 0.15, with_depth(lambda i, z: z, late)
    if some.views:
        view = some.views[0]
        T, alone = view.T_camera_view, replace(some, depth=None, views=some.views[:1])

        def with_pose(T: np.ndarray, late_s: float = 0) -> Recording:
            own = view.recording
            own = replace(own, timestamps_ns=own.timestamps_ns + round(late_s * 1e9))
            changed = replace(view, T_camera_view=T, recording=own, synchronised=True)
            return replace(alone, views=(changed,))

        yield "rig", 0.0, alone
        log = float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.05), np.log(2.3))))
        yield "baseline", log / 0.12, with_pose(frames.rigid(T[:3, :3], np.exp(log) * T[:3, 3]))
        axis = rng.normal(size=3)
        degrees = float(np.exp(rng.uniform(np.log(0.3), np.log(90))))
        R = rotations.exp(np.radians(degrees) * axis / np.linalg.norm(axis))
        yield "pose", degrees, with_pose(frames.rigid(T[:3, :3] @ R, T[:3, 3]))
        yield "inverse pose", np.inf, with_pose(frames.inverse(T))
        late = float(rng.choice([-1, 1]) * rng.uniform(0.03, 1.5))
        yield "rig's clock", late / 0.067, with_pose(T, late)


def _noisy(index: int, z: DepthImage, noise: float, holes: float) -> np.ndarray:
    rng = np.random.default_rng(index)
    z = z + noise * z**2 * rng.normal(size=z.shape)
    return np.where(rng.random(z.shape) < holes, np.nan, z)


def photographed(folder: Path) -> Iterator[Case]:
    """Yield ``stereo_hand`` with depth of its first camera, and as a rig."""
    place = provenance.shared_folder() / "data" / "stereo_hand"
    if not place.is_dir():
        return
    both = photographs.stereo_hand(place)["both"]
    words = [place / "paint_depth.py", place, folder / "good", folder / "far", 190]
    subprocess.run([sys.executable, *map(str, words)], check=True)
    said = json.loads((place / "calibration.json").read_text("utf-8"))["cameras"][0]
    numbers = (said[n] for n in ("width", "height", "fx", "fy", "cx", "cy"))
    lens = Camera("brown_conrady", *numbers, tuple(said["distortion_k1k2p1p2k3"]))
    times = both.recording.timestamps_ns
    pictures = _Painted(sorted((folder / "good").iterdir()))
    depth = Depth(pictures, times, lens, np.eye(4))
    wrists = np.full((len(times), 2, 3), np.nan)
    wrists[both.frames, 1] = both.joints[:, 0]
    yield Case("camera0", replace(both.recording, depth=depth), wrists, 0.19)


@dataclass(frozen=True, slots=True)
class _Painted:
    paths: list[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def at(self, index: int) -> DepthImage:
        counts = cv2.imread(str(self.paths[index]), cv2.IMREAD_UNCHANGED).astype(np.float32)
        return np.where(counts > 0, counts / 1000, np.nan).astype(np.float32)


def rendered(store: Path) -> Iterator[Case]:
    """Yield the clips of a store."""
    clips = ClipStore(store)
    for name in clips.ids():
        recording = replace(open_recording(store / "clips" / name), T_world_camera=None)
        joints = clips.open(name).motion.joints_camera
        fingers = np.linalg.norm(np.diff(joints[:, :, [0, 9, 10, 11, 12]], axis=2), axis=-1)
        length = float(np.nanmedian(fingers.sum(-1)))
        yield Case(name, recording, joints[:, :, 0], length)


if __name__ == "__main__":
    main()
