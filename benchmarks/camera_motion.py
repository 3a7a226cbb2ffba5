"""Rotation of a moving camera against rendered truth: ours, and plain OpenCV in its best mode.

Clips are those of ``acehand synth``, in stores below ``--clips``, and the example video::

    acehand synth --seed 901 --frames 81 --clips 4 --cameras pinhole --output CLIPS/ordinary_pinhole
    acehand synth --seed 901 --frames 81 --clips 2 --cameras pinhole --head-motion walking ...

Peers, frame to frame with OpenCV: corners followed by optical flow, then the smaller turn of the
essential matrix (``recoverPose`` often takes the other one where the head hardly moves), or of a
homography taken as a pure turn. Both on points through the camera's model, so that fisheyes are no
disadvantage. ``error_deg``: rms over steps, and over all spans of a second, of the camera's own
turn: ours takes a movement for a turn, so that of a head that walks it is large by design;
``error_deg_again``: between frames at least 1.5 s apart that look the same way.
``normalised_error``: rms of the errors of steps by their own standard deviation; 1 is right.
A frame is lost where a step is off by more than ``LOST_DEG``: a flagged one is broken, or doubtful
by its standard deviation; a lost step that is not flagged is what must not be.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.camera.turns import estimate_rotations, hand_mask
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion
from acehand_core.motion.recording import DOUBTFUL_RAD
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.registry import open_recording
from benchmarks import provenance

LOST_DEG = 3.0
#: A view is there again after so many seconds, if it is turned by less than this.
AGAIN_S, AGAIN_DEG = 1.5, 15.0
EXAMPLE = provenance.ROOT / "examples"


@dataclass(frozen=True, slots=True)
class Case:
    """A clip in grey, with its truth; ``masks`` by frame, from the true landmarks."""

    name: str
    head_motion: str
    camera: Camera
    fps: float
    grey: list[np.ndarray]
    R_world_camera: np.ndarray
    masks: list[np.ndarray]
    truth: HandMotion


def main() -> None:
    """Measure all clips; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, help="folder of stores; without it the example alone")
    parser.add_argument("--unmasked", action="store_true", help="ours without masks as well")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    rows = []
    for case in cases(arguments.clips):
        row: dict[str, Any] = {
            "clip": case.name, "head_motion": case.head_motion, "lens": case.camera.model,
            "frames": len(case.grey), "fastest_deg": fastest(case),
        }  # fmt: skip
        for name, method in METHODS.items():
            if name == "ours_without_masks" and not arguments.unmasked:
                continue
            begin = time.process_time()
            R, broken, sigma = method(case)
            spent = (time.process_time() - begin) / len(case.grey)
            row[name] = judged(case, R, broken, sigma) | {"cpu_ms_per_frame": round(1e3 * spent, 1)}
        rows.append(row)
        print(case.name, {name: row[name]["error_deg"] for name in METHODS if name in row})
    result = {"benchmark": "camera_motion", "clips": rows, "summary": summary(rows)}
    provenance.publish(started, result, arguments.output)


def cases(folder: Path | None) -> Iterable[Case]:
    """Yield the example and every clip of the stores below ``folder``."""
    truth = read_hand_motion(EXAMPLE / "two_hands_truth.parquet")
    recording = open_recording(EXAMPLE / "two_hands.mp4")
    frames = recording.frames
    assert frames is not None
    yield case_of("two_hands", "example", truth, frames.read(0, len(frames)))
    for path in sorted(folder.glob("*/store.json")) if folder else ():
        store = ClipStore(path.parent)
        for name in store.ids():
            clip = store.open(name)
            assert clip.frames is not None
            head = clip.info.source.get("head_motion", "ordinary")
            pictures = clip.frames.read(0, len(clip.frames))
            yield case_of(f"{path.parent.name}/{name}", str(head), clip.motion, pictures)


def case_of(name: str, head_motion: str, truth: HandMotion, pictures: Iterable[np.ndarray]) -> Case:
    """Return a clip with masks from its landmarks."""
    camera = truth.camera
    grey = [cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) for picture in pictures]
    masks = [hand_mask(hands, camera.width, camera.height) for hands in truth.joints_image]
    R = truth.T_world_camera[:, :3, :3]
    return Case(name, head_motion, camera, truth.fps, grey, R, masks, truth)


#: Rotations, broken flags and, where the method gives one, the standard deviation of each step.
Result = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def ours(case: Case) -> Result:
    """Return what the package says."""
    made = estimate_rotations(case.grey, case.camera, lambda t: case.masks[t])
    return made.rotations, made.broken, made.sigma_rad


def ours_without_masks(case: Case) -> Result:
    """The same, looking at hands as well."""
    made = estimate_rotations(case.grey, case.camera)
    return made.rotations, made.broken, made.sigma_rad


def frame_to_frame(turn: Callable[[np.ndarray, np.ndarray], np.ndarray | None], masked: bool):
    """Return a method that follows corners from each frame to the next and chains the turns."""

    def method(case: Case) -> Result:
        R, broken = [np.eye(3)], [False]
        for t in range(1, len(case.grey)):
            step = None
            a, b = flow(case.grey[t - 1], case.grey[t], case.masks[t - 1] if masked else None)
            if masked and len(b):
                at = b.round().astype(int)
                free = ~case.masks[t][at[:, 1], at[:, 0]]
                a, b = a[free], b[free]
            if len(a) >= 8:
                rays = [case.camera.unproject(points) for points in (a, b)]
                ahead = np.isfinite(rays[0] + rays[1]).all(1)
                ahead &= (rays[0][:, 2] > 0.2) & (rays[1][:, 2] > 0.2)
                flat = [(r[:, :2] / r[:, 2:])[ahead] for r in rays]
                step = turn(flat[0], flat[1]) if ahead.sum() >= 8 else None
            broken.append(step is None)
            R.append(np.eye(3) if step is None else R[-1] @ step)
        return np.stack(R), np.array(broken), None

    return method


def flow(
    before: np.ndarray, after: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return corners of one frame and where they are in the next, checked backwards."""
    free = None if mask is None else np.where(mask, 0, 255).astype(np.uint8)
    corners = cv2.goodFeaturesToTrack(before, 300, 0.005, 10, mask=free)
    if corners is None:
        return np.zeros((0, 2)), np.zeros((0, 2))
    there, found, _ = cv2.calcOpticalFlowPyrLK(before, after, corners, None, maxLevel=4)
    back, found_back, _ = cv2.calcOpticalFlowPyrLK(after, before, there, None, maxLevel=4)
    corners, there, back = (v.reshape(-1, 2).astype(float) for v in (corners, there, back))
    size = (before.shape[1] - 1, before.shape[0] - 1)
    ok = (found.ravel() > 0) & (found_back.ravel() > 0)
    ok &= np.linalg.norm(back - corners, axis=1) < 1.0
    ok &= (there >= 0).all(1) & (there <= size).all(1)
    return corners[ok], there[ok]


def essential(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return R_before_after from the essential matrix."""
    E, inliers = cv2.findEssentialMat(
        a, b, np.eye(3), method=cv2.RANSAC, prob=0.999, threshold=1.5e-3
    )
    if E is None or E.shape != (3, 3) or inliers.sum() < 8:
        return None
    # The smaller of the two turns: with hardly any movement recoverPose often takes the other.
    both = cv2.decomposeEssentialMat(E)[:2]
    return max(both, key=np.trace).T


def homography(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Return R_before_after of a homography, as if the camera only turned."""
    H, inliers = cv2.findHomography(a, b, cv2.RANSAC, 3e-3)
    if H is None or inliers.sum() < 8:
        return None
    H = H / np.cbrt(np.linalg.det(H))
    return rotations.project_to_rotation(H).T


METHODS = {
    "ours": ours,
    "ours_without_masks": ours_without_masks,
    "opencv_essential": frame_to_frame(essential, masked=True),
    "opencv_homography": frame_to_frame(homography, masked=True),
    "opencv_homography_without_masks": frame_to_frame(homography, masked=False),
}


def fastest(case: Case) -> float:
    """Return the fastest turn from one frame to the next, degrees."""
    R = case.R_world_camera
    return round(float(np.degrees(rotations.angle_between(R[:-1], R[1:]).max())), 1)


def judged(
    case: Case, R: np.ndarray, broken: np.ndarray, sigma: np.ndarray | None
) -> dict[str, Any]:
    """Return errors over spans without a broken step, what was lost, and what is doubtful."""
    second = round(case.fps)
    step, usable = errors(case, R, broken, 1)
    over, whole = errors(case, R, broken, second)
    normalised, doubtful = None, broken
    if sigma is not None:
        doubtful = broken | (sigma > DOUBTFUL_RAD)
        normalised = rms(step[usable] / np.degrees(np.maximum(sigma[1:][usable], 1e-9)))
    return {
        "error_deg": rms(step[usable]),
        "error_deg_second": rms(over[whole]),
        "seconds": int(whole.sum()),
        "error_deg_again": again(case, R, broken),
        "normalised_error": normalised,
        "broken": int(broken.sum()),
        "doubtful": int(doubtful.sum()),
        "error_deg_sure": rms(step[~doubtful[1:]]),
        "lost_not_flagged": int((step[~doubtful[1:]] > LOST_DEG).sum()),
    }


def errors(
    case: Case, R: np.ndarray, broken: np.ndarray, lag: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the error of each span of ``lag`` frames in degrees, and which have no broken step."""
    true, lag = case.R_world_camera, min(lag, len(R) - 1)
    made = np.swapaxes(R[:-lag], 1, 2) @ R[lag:]
    exact = np.swapaxes(true[:-lag], 1, 2) @ true[lag:]
    piece = np.cumsum(broken)
    return np.degrees(rotations.angle_between(made, exact)), piece[lag:] == piece[:-lag]


def again(case: Case, R: np.ndarray, broken: np.ndarray) -> float | None:
    """Return the error between frames far apart that look the same way, as after a look away."""
    true, piece = case.R_world_camera, np.cumsum(broken)
    off = []
    for a in range(len(R)):
        for b in range(a + round(AGAIN_S * case.fps), len(R)):
            turned = rotations.angle_between(true[a][None], true[b][None])[0]
            if piece[a] == piece[b] and np.degrees(turned) < AGAIN_DEG:
                exact = true[a].T @ true[b]
                off.append(rotations.angle_between((R[a].T @ R[b])[None], exact[None])[0])
    return rms(np.degrees(off))


def rms(values: np.ndarray) -> float | None:
    """Return the root of the mean square; None of nothing."""
    return round(float(np.sqrt((values**2).mean())), 4) if len(values) else None


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and worst clips of each kind of head motion and method."""
    out: dict[str, Any] = {}
    for kind in dict.fromkeys(row["head_motion"] for row in rows):
        of = [row for row in rows if row["head_motion"] == kind]
        out[kind] = {"count": len(of)}
        for name in (name for name in METHODS if name in of[0]):
            steps = [row[name]["error_deg"] for row in of if row[name]["error_deg"] is not None]
            over = [row[name]["error_deg_second"] for row in of]
            spans = [value for value in over if value is not None]
            out[kind][name] = {
                "median_deg": float(np.median(steps)) if steps else None,
                "worst_deg": max(steps) if steps else None,
                "median_deg_second": float(np.median(spans)) if spans else None,
                "worst_deg_second": max(spans) if spans else None,
                **{
                    f"median_{key}": median([row[name][key] for row in of])
                    for key in ("error_deg_again", "error_deg_sure", "normalised_error")
                },
                "broken": sum(row[name]["broken"] for row in of),
                "doubtful": sum(row[name]["doubtful"] for row in of),
                "lost_not_flagged": sum(row[name]["lost_not_flagged"] for row in of),
                "cpu_ms_per_frame": round(
                    float(np.median([row[name]["cpu_ms_per_frame"] for row in of])), 1
                ),
            }
    return out


def median(values: list[float | None]) -> float | None:
    """Return the median of what is known."""
    known = [value for value in values if value is not None]
    return round(float(np.median(known)), 4) if known else None


if __name__ == "__main__":
    main()
