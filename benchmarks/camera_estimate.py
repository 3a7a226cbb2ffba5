"""How far ``acehand camera estimate`` is off on synthetic clips, how often it accepts, how wrongly.

Clips of ``acehand synth`` with fields of view of our choosing: head-mounted, over a table, 8 s.
The peer is what is assumed where nothing is known: 60 degrees across. "wrong" is an accepted
focal length that is more than 5 % off.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import Recording
from acehand_core.self_calibration.estimate import Estimate, estimate
from acehand_core.synthetic.episode import SynthOptions, make_episode
from acehand_core.synthetic.rendering import render_episode, truth_of
from benchmarks import provenance

WIDTH, HEIGHT, FRAMES, FPS = 480, 352, 121, 15.0
PINHOLE = (50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 110.0, 55.0, 65.0, 75.0, 85.0, 95.0, 105.0)
FISHEYE = (110.0, 130.0)
_WRONG = 0.05


class Frames:
    """Pictures in memory as a ``FrameSource``."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def read(self, start: int, stop: int):
        return iter(self.images[start:stop])

    def read_reversed(self, start: int, stop: int):
        return iter(self.images[start:stop][::-1])

    def at(self, index: int):
        return self.images[index]


def main() -> None:
    """Estimate every clip, print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pinhole", type=int, default=len(PINHOLE), help="clips of pinholes")
    parser.add_argument("--fisheye", type=int, default=len(FISHEYE), help="clips of fisheyes")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument(
        "--folder", type=Path, help="keep the clips there, and take them from there"
    )
    provenance.add_output(parser)
    arguments = parser.parse_args()
    todo = [("pinhole", arguments.seed, n, PINHOLE[n]) for n in range(arguments.pinhole)]
    todo += [("equidistant", arguments.seed + 1, n, FISHEYE[n]) for n in range(arguments.fisheye)]

    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        for lens, seed, index, angle in todo:
            rows.append(measured(lens, angle, rendered(folder, lens, seed, index, angle)))
    provenance.publish(started, summary(rows) | {"clips": rows}, arguments.output)


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


def measured(lens: str, angle: float, images: np.ndarray) -> dict:
    """Return what is said of a clip, and how far it is off, in percent."""
    times = np.round(np.arange(len(images)) * 1e9 / FPS).astype(np.int64)
    recording = Recording("clip", None, times, FPS, WIDTH, HEIGHT, Frames(images))
    begun = time.perf_counter()
    found: Estimate = estimate(recording)
    true = lens_of(lens, angle).fx / WIDTH
    row = {
        "true_lens": lens,
        "true_field_of_view_deg": angle,
        "lens": found.findings[0].lens,
        "accepted": found.camera is not None,
        "off_percent": None if found.camera is None else 100 * (found.camera.fx / WIDTH / true - 1),
        "said_error_percent": 100 * found.error,
        "reason": found.reason,
        "seconds": time.perf_counter() - begun,
    }
    for method in found.findings:
        row[method.name] = {
            "off_percent": None if method.focal is None else 100 * (method.focal / true - 1),
            "said_error_percent": 100 * method.error,
            "counts": not method.reason,
        }
    return row


def summary(rows: list[dict]) -> dict:
    """Return shares and errors over all clips."""
    accepted = [row for row in rows if row["accepted"]]
    off = [abs(row["off_percent"]) for row in accepted]
    wrong = [
        row
        for row in accepted
        if abs(row["off_percent"]) > 100 * _WRONG or row["lens"] != row["true_lens"]
    ]
    result = {
        "benchmark": "camera_estimate",
        "count": len(rows),
        "accepted": len(accepted),
        "share_accepted": len(accepted) / len(rows),
        "wrong": len(wrong),
        "largest_off_percent": max(off, default=None),
        "median_off_percent": float(np.median(off)) if off else None,
        "assumed_60_degrees_median_off_percent": float(np.median([
            abs(100 * (lens_of("pinhole", 60.0).fx / lens_of(r["true_lens"],
                r["true_field_of_view_deg"]).fx - 1)) for r in rows
        ])),
    }  # fmt: skip
    for name in ("motion", "lines"):
        alone = [abs(row[name]["off_percent"]) for row in rows if row[name]["counts"]]
        result[f"{name}_alone"] = {
            "counts": len(alone),
            "wrong": sum(value > 100 * _WRONG for value in alone),
            "largest_off_percent": max(alone, default=None),
        }
    return result


if __name__ == "__main__":
    main()
