"""Rotation of a moving camera from its pictures alone, and with a gyroscope beside it.

Clips are those of ``benchmarks.camera_motion``. Their sensor is made of the true rotation (SciPy's
spline through the frames) with the noise of a BMI270's data sheet, 0.5 degrees a second of bias on
each axis, mounted at random and up to 0.1 s off; none of this is told, but for the mounting where
it is ``stated``. There is no accelerometer.
``unrelated``: whether the sensor of the clip before is taken for this one's, which must not be.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from scipy.spatial.transform import Rotation, RotationSpline

from acehand_core.camera_motion import estimate_rotations
from acehand_core.camera_motion.gyroscope import from_gyroscope
from acehand_core.motion import Imu
from benchmarks import provenance
from benchmarks.camera_motion import Case, cases, judged

RATE_HZ, NOISE_DEG, BIAS_DEG, OFFSET_S = 200.0, 0.007, 0.5, 0.1
#: Of the splined truth: seconds between the two poses that tell a rate.
_APART_S = 1e-4


def main() -> None:
    """Measure all clips; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, help="folder of stores; without it the example alone")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    rows, before = [], None
    for number, case in enumerate(cases(arguments.clips)):
        frames_ns = np.round(np.arange(len(case.grey)) * 1e9 / case.fps).astype(np.int64)
        visual = estimate_rotations(case.grey, case.camera, case.fps, lambda t, c=case: c.masks[t])
        imu, mounting, offset = sensor_of(case, number)
        begin = time.process_time()
        made = from_gyroscope(imu, frames_ns, visual)
        spent = (time.process_time() - begin) / len(case.grey)
        stated = from_gyroscope(replace(imu, R_camera_imu=mounting), frames_ns, visual)
        row: dict[str, Any] = {
            "clip": case.name, "head_motion": case.head_motion, "lens": case.camera.model,
            "frames": len(case.grey), "used": made.imu is not None,
            "pictures": judged(case, visual.rotations, visual.broken, visual.sigma_rad),
            "both": judged(case, made.motion.rotations, made.motion.broken, made.motion.sigma_rad),
            "stated_used": stated.imu is not None,
            "stated": judged(
                case, stated.motion.rotations, stated.motion.broken, stated.motion.sigma_rad
            ),
            "cpu_ms_per_frame": round(1e3 * spent, 2),
        }  # fmt: skip
        if made.imu is not None and made.imu.R_camera_imu is not None:
            away = Rotation.from_matrix(made.imu.R_camera_imu.T @ mounting).magnitude()
            late = (imu.timestamps_ns[0] - made.imu.timestamps_ns[0]) * 1e-9 - offset
            row |= {"mounting_deg": float(np.degrees(away)), "clock_ms": 1e3 * float(late)}
        if before is not None:
            row["unrelated"] = from_gyroscope(before, frames_ns, visual).imu is not None
        rows.append(row)
        before = imu
        print(case.name, made.note)
    result = {"benchmark": "gyroscope", "clips": rows, "summary": summary(rows)}
    provenance.publish(started, result, arguments.output)


def sensor_of(case: Case, seed: int) -> tuple[Imu, np.ndarray, float]:
    """Return a clip's sensor, its mounting and what its clock is ahead, s."""
    rng = np.random.default_rng(seed)
    times = np.arange(len(case.grey)) / case.fps
    way = RotationSpline(times, Rotation.from_matrix(case.R_world_camera))
    at = np.arange(times[0] + _APART_S, times[-1] - _APART_S, 1 / RATE_HZ)
    turns = way(at - _APART_S).inv() * way(at + _APART_S)
    mounting = Rotation.random(random_state=seed).as_matrix()
    rates = turns.as_rotvec() / (2 * _APART_S) @ mounting
    rates += np.radians(BIAS_DEG) * rng.normal(size=3)
    rates += np.radians(NOISE_DEG) * np.sqrt(RATE_HZ) * rng.normal(size=rates.shape)
    offset = float(rng.uniform(-OFFSET_S, OFFSET_S))
    stamps = np.round((at + offset) * 1e9).astype(np.int64)
    return Imu(stamps, rates, None, None, case.name), mounting, offset


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over the clips in which the sensor was used, and how many these were."""
    used = [row for row in rows if row["used"]]
    stated = [row for row in rows if row["stated_used"]]
    out: dict[str, Any] = {
        "clips": len(rows),
        "used": len(used),
        "stated_used": len(stated),
        "unrelated_used": sum(row.get("unrelated", False) for row in rows),
    }
    for name in ("mounting_deg", "clock_ms"):
        values = [abs(row[name]) for row in used]
        out[name] = {"median": float(np.median(values)), "worst": max(values)} if used else None
    for group, names in ((used, ("pictures", "both")), (stated, ("pictures", "stated"))):
        of = "of_used" if group is used else "of_stated"
        out[of] = {by: medians([row[by] for row in group]) for by in names}
    return out


def medians(judgements: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median errors of clips, and how many steps are broken in all."""
    out: dict[str, Any] = {"broken": sum(one["broken"] for one in judgements)}
    for error in ("error_deg", "error_deg_second"):
        values = [one[error] for one in judgements if one[error] is not None]
        out[error] = float(np.median(values)) if values else None
    return out


if __name__ == "__main__":
    main()
