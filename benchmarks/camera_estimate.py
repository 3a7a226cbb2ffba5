"""How far ``acehand camera estimate`` is off on synthetic clips, how often it accepts, how wrongly.

Clips of ``acehand synth``, in stores below ``--clips``, made for example by::

    acehand synth --seed 901 --frames 81 --clips 4 --cameras pinhole --output CLIPS/ordinary_pinhole
    acehand synth --seed 912 --frames 241 --fast --size 640x480 --clips 2 --cameras pinhole
        --head-motion walking --output CLIPS/long_walking_pinhole

or, without it, rendered here with fields of view of our choosing: head-mounted, over a table, 8 s.
The peer is what is assumed where nothing is known: 60 degrees across. "wrong" is an accepted
focal length that is more than 5 % off. That of a fisheye is compared with the one that fits its
pixels best over the width of the picture; ``curve_percent`` says how far the distance of a pixel
from the middle is off at most, over the angle to the axis.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import render_episode, truth_of
from acehand_core.camera.focal_length import FocalLengthEstimate, estimate
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from benchmarks import provenance

WIDTH, HEIGHT, FRAMES, FPS = 480, 352, 121, 15.0
PINHOLE = (50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 55.0, 65.0, 75.0, 85.0, 95.0, 105.0)
FISHEYE = (110.0, 130.0)
_WRONG = 0.05

#: Name, recording and true camera.
Case = tuple[str, Recording, Camera]


class Frames:
    """Pictures in memory as a ``FrameSource``."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int):
        return iter(self.images[start:stop])

    def at(self, index: int):
        return self.images[index]


#: What each method says by itself, in the result.
ALONE = {"motion": "motion_alone", "lines": "lines_alone"}


def main() -> None:
    """Estimate every clip, print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, help="folder of stores; without it they are rendered")
    parser.add_argument("--pinhole", type=int, default=len(PINHOLE), help="clips of pinholes")
    parser.add_argument("--fisheye", type=int, default=len(FISHEYE), help="clips of fisheyes")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument(
        "--folder", type=Path, help="keep the clips there, and take them from there"
    )
    provenance.add_output(parser)
    arguments = parser.parse_args()
    cases = stored(arguments.clips) if arguments.clips else made(arguments)
    rows = [{"clip": name, **measured(recording, true)} for name, recording, true in cases]
    result = summary(rows) | {"by_frames": {
        frames: summary([row for row in rows if row["frames"] == frames])
        for frames in sorted({row["frames"] for row in rows})
    }}  # fmt: skip
    result = {"benchmark": "camera_estimate", **result, "clips": rows}
    provenance.publish(started, result, arguments.output)


def stored(folder: Path) -> Iterator[Case]:
    """Yield the clips of all stores below a folder."""
    for path in sorted(folder.glob("*/store.json")):
        store = ClipStore(path.parent)
        for name in store.ids():
            clip = store.open(name)
            assert clip.frames is not None
            camera, times = clip.info.camera, clip.motion.timestamps_ns
            size = camera.width, camera.height
            recording = Recording(name, None, times, clip.info.fps, *size, clip.frames)
            yield f"{path.parent.name}/{name}", recording, camera


def made(arguments: argparse.Namespace) -> Iterator[Case]:
    """Render clips, or take them from where they are kept, and yield them."""
    todo = [("pinhole", arguments.seed, n, PINHOLE[n]) for n in range(arguments.pinhole)]
    todo += [("equidistant", arguments.seed + 1, n, FISHEYE[n]) for n in range(arguments.fisheye)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for lens, seed, index, angle in todo:
            images = rendered(folder, lens, seed, index, angle)
            times = np.round(np.arange(len(images)) * 1e9 / FPS).astype(np.int64)
            recording = Recording("clip", None, times, FPS, WIDTH, HEIGHT, Frames(images))
            yield f"{lens} {angle:g}", recording, lens_of(lens, angle)


def lens_of(lens: str, angle: float) -> Camera:
    """Return a camera that sees so many degrees across."""
    half = math.radians(angle) / 2
    focal = WIDTH / 2 / (math.tan(half) if lens == "pinhole" else half)
    place = focal, focal, (WIDTH - 1) / 2, (HEIGHT - 1) / 2
    if lens == "pinhole":
        return Camera("pinhole", WIDTH, HEIGHT, *place)
    return Camera("kannala_brandt", WIDTH, HEIGHT, *place, (0.0,) * 4)


def rendered(folder: Path, lens: str, seed: int, index: int, angle: float) -> np.ndarray:
    """Return the pictures of a clip (T, H, W, 3)."""
    kept = folder / f"{lens}_{seed}_{index}.npz"
    if not kept.is_file():
        options = SynthOptions(WIDTH, HEIGHT, FRAMES, FPS, cameras="pinhole", fast=True)
        episode = replace(make_episode(seed, index, options), camera=lens_of(lens, angle))
        clip = render_episode(episode, *truth_of(episode))
        np.savez_compressed(kept, frames=np.stack(list(clip.frames)))
    with np.load(kept) as file:
        return file["frames"]


def measured(recording: Recording, true: Camera) -> dict:
    """Return what is said of a clip, and how far it is off, in percent."""
    begun = time.process_time()
    found: FocalLengthEstimate = estimate(recording)
    spent = time.process_time() - begun
    lens = found.findings[0].lens
    best = best_focal(true, lens)
    camera = found.camera
    row = {
        "frames": len(recording),
        "true_lens": "pinhole" if true.model == "pinhole" else "fisheye",
        "true_field_of_view_deg": math.degrees(true.field_of_view()[0]),
        "lens": lens,
        "accepted": camera is not None,
        "off_percent": None if camera is None else 100 * (camera.fx / best - 1),
        "curve_percent": None if camera is None else 100 * curve(camera, true),
        "said_error_percent": 100 * found.error,
        "reason": found.reason,
        "assumed_60_degrees_off_percent":
            100 * (Camera.nominal(true.width, true.height).fx / best_focal(true, "pinhole") - 1),
        "cpu_seconds": spent,
    }  # fmt: skip
    for method in found.findings:
        off = None if method.focal is None else math.log(method.focal * true.width / best)
        row[method.name] = {
            "off_percent": None if off is None else 100 * math.expm1(off),
            "said_error_percent": 100 * method.error,
            "within_95": None if off is None else abs(off) < 1.96 * method.error,
            "counts": not method.reason,
        }
    return row


def across(camera: Camera) -> tuple[np.ndarray, np.ndarray]:
    """Return angles to the axis and pixels from it, along the middle row of a picture."""
    pixels = np.stack([np.arange(camera.width), np.full(camera.width, camera.cy)], axis=-1)
    rays = camera.unproject(pixels.astype(float))
    known = np.isfinite(rays).all(axis=-1) & (np.abs(pixels[:, 0] - camera.cx) > 8)
    angles = np.arctan2(np.abs(rays[known, 0]), rays[known, 2])
    return angles, np.abs(pixels[known, 0] - camera.cx)


def best_focal(true: Camera, lens: str) -> float:
    """Return the focal length with which a lens fits the pixels of a camera best, in pixels."""
    if true.model == "pinhole" and lens == "pinhole":
        return math.sqrt(true.fx * true.fy)
    angles, pixels = across(true)
    reach = np.tan(angles) if lens == "pinhole" else angles
    return float(reach @ pixels / (reach @ reach))


def curve(camera: Camera, true: Camera) -> float:
    """Return the largest relative difference of a pixel's distance from the middle."""
    angles, pixels = across(true)
    reach = np.tan(angles) if camera.model == "pinhole" else angles
    return float(np.abs(camera.fx * reach / pixels - 1).max())


def summary(rows: list[dict]) -> dict:
    """Return shares and errors over all clips."""
    accepted = [row for row in rows if row["accepted"]]
    off = [abs(row["off_percent"]) for row in accepted]
    wrong = [
        row
        for row in accepted
        if abs(row["off_percent"]) > 100 * _WRONG
        or (row["lens"] == "pinhole") != (row["true_lens"] == "pinhole")
    ]
    within = [abs(row["off_percent"]) < 1.96 * row["said_error_percent"] for row in accepted]
    result = {
        "count": len(rows),
        "accepted": len(accepted),
        "share_accepted": len(accepted) / len(rows),
        "wrong": len(wrong),
        "within_95_percent_interval": sum(within),
        "largest_off_percent": max(off, default=None),
        "median_off_percent": float(np.median(off)) if off else None,
        "assumed_60_degrees_median_off_percent": float(np.median([
            abs(row["assumed_60_degrees_off_percent"]) for row in rows
        ])),
        "median_cpu_seconds": float(np.median([row["cpu_seconds"] for row in rows])),
        "cpu_ms_per_frame": 1e3 * float(np.mean([r["cpu_seconds"] / r["frames"] for r in rows])),
    }  # fmt: skip
    for name in ("motion", "lines"):
        said = [row[name] for row in rows if row[name]["off_percent"] is not None]
        alone = [abs(method["off_percent"]) for method in said if method["counts"]]
        result[ALONE[name]] = {
            "says": len(said),
            "within_95_percent_interval": sum(method["within_95"] for method in said),
            "counts": len(alone),
            "wrong": sum(value > 100 * _WRONG for value in alone),
            "largest_off_percent": max(alone, default=None),
        }
    return result


if __name__ == "__main__":
    main()
