"""Full poses of a moving camera, and their metric scale, against rendered truth.

Clips are those of ``benchmarks.camera_motion``, whose docstring says how they are made. Errors are
rms over the frames with a pose, after one similarity of poses: its rotation fits the turns best,
its scale and shift the places. A path is wrongly accepted where it is off by more than
``MOST_DEG`` or ``MOST_MM``; a scale, by more than ``MOST_SCALE``. Hands are the true ones where
half of their landmarks are in the picture: a tracker's own error of a hand's size comes on top.

The reference is a camera that does not move: the rms distance of the true path from its middle.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from acehand_core.camera_motion import (
    CameraPath,
    estimate_path,
    estimate_rotations,
    gravity_aligned,
    metric_scale,
)
from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from benchmarks import provenance
from benchmarks.camera_motion import Case, cases

MOST_DEG, MOST_MM, MOST_SCALE = 1.0, 10.0, 0.15


def main() -> None:
    """Measure all clips; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, help="folder of stores; without it the example alone")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    rows = []
    for case in cases(arguments.clips):
        rows.append(measured(case))
        print(rows[-1], flush=True)
    result = {"benchmark": "camera_path", "clips": rows, "summary": summary(rows)}
    provenance.publish(started, result, arguments.output)


def measured(case: Case) -> dict[str, Any]:
    """Return what became of one clip."""
    rotation = estimate_rotations(case.grey, case.camera, case.fps, lambda t: case.masks[t])
    begin = time.process_time()
    path = estimate_path(case.grey, case.camera, case.fps, rotation, lambda t: case.masks[t])
    spent = (time.process_time() - begin) / len(case.grey)
    places = case.truth.T_world_camera[:, :3, 3]
    extent = 1e3 * float(np.sqrt(((places - places.mean(0)) ** 2).sum(1).mean()))
    row: dict[str, Any] = {
        "clip": case.name, "head_motion": case.head_motion, "lens": case.camera.model,
        "extent_mm": round(extent, 1), "broken": int(rotation.broken.sum()),
        "accepted": path.reason == "", "reason": path.reason,
        "cpu_ms_per_frame": round(1e3 * spent, 1),
    }  # fmt: skip
    return row | (_errors(case, path) if path.reason == "" else {})


def _errors(case: Case, path: CameraPath) -> dict[str, Any]:
    """Return errors of an accepted path, of its scale and of its up."""
    true, known = case.truth.T_world_camera, path.known
    degrees, off, metres = after_similarity(path.T_world_camera[known], true[known])
    row: dict[str, Any] = {
        "known_frames": int(known.sum()), "error_deg": round(degrees, 3),
        "error_mm": round(1e3 * off, 2), "wrong": degrees > MOST_DEG or 1e3 * off > MOST_MM,
    }  # fmt: skip
    wrists, landmarks = case.truth.joints_camera[:, :, 0].copy(), case.truth.joints_image
    with np.errstate(invalid="ignore"):
        shown = case.camera.contains(landmarks).mean(-1) >= 0.5
    wrists[~shown] = np.nan
    scale = metric_scale(path, wrists, landmarks)
    row |= {"scale_accepted": scale.reason == "", "scale_reason": scale.reason}
    if scale.reason == "":
        error = scale.value / metres - 1
        row |= {"scale_error": round(error, 4), "scale_wrong": abs(error) > MOST_SCALE}
    try:
        upright = gravity_aligned(path)
    except InputError:
        return row | {"up_error_deg": None}
    first = int(np.flatnonzero(known)[0])
    up = [poses[first, :3, :3].T @ [0.0, 0.0, 1.0] for poses in (upright.T_world_camera, true)]
    angle = np.degrees(np.arccos(np.clip(up[0] @ up[1], -1, 1)))
    return row | {"up_error_deg": round(float(angle), 2)}


def after_similarity(made: np.ndarray, true: np.ndarray) -> tuple[float, float, float]:
    """Return rms errors in degrees and in metres, and the metres of a unit of ``made``."""
    R, S = made[:, :3, :3], true[:, :3, :3]
    turn = rotations.project_to_rotation((S @ np.swapaxes(R, 1, 2)).sum(0))
    degrees = np.degrees(rotations.angle_between(turn @ R, S))
    a, b = made[:, :3, 3] @ turn.T, true[:, :3, 3]
    a, b = a - a.mean(0), b - b.mean(0)
    scale = float((a * b).sum() / (a * a).sum())
    off = np.sqrt(((scale * a - b) ** 2).sum(1).mean())
    return float(np.sqrt((degrees**2).mean())), float(off), scale


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return shares and worst errors over all clips and by kind of head motion."""
    out = {"all": _of(rows)}
    for kind in dict.fromkeys(row["head_motion"] for row in rows):
        out[kind] = _of([row for row in rows if row["head_motion"] == kind])
    return out


def _of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    good = [row for row in rows if row["accepted"]]
    scales = [row for row in good if row["scale_accepted"]]
    ups = [row["up_error_deg"] for row in good if row["up_error_deg"] is not None]
    return {
        "count": len(rows),
        "accepted": len(good),
        "wrongly_accepted": sum(row["wrong"] for row in good),
        "median_deg": _middle([row["error_deg"] for row in good]),
        "worst_deg": max((row["error_deg"] for row in good), default=None),
        "median_mm": _middle([row["error_mm"] for row in good]),
        "worst_mm": max((row["error_mm"] for row in good), default=None),
        "scales_accepted": len(scales),
        "scales_wrongly_accepted": sum(row["scale_wrong"] for row in scales),
        "worst_scale_error": max((abs(row["scale_error"]) for row in scales), default=None),
        "ups_found": len(ups),
        "worst_up_deg": max(ups, default=None),
        "cpu_ms_per_frame": _middle([row["cpu_ms_per_frame"] for row in rows]),
        "refused": dict(Counter(row["reason"] for row in rows if not row["accepted"])),
    }


def _middle(values: list[float]) -> float | None:
    return round(float(np.median(values)), 3) if values else None


if __name__ == "__main__":
    main()
