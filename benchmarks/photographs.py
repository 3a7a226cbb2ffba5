"""Tracked hands on real pictures with truth; MediaPipe with PnP on the same ones.

    python -m benchmarks.photographs --hand-graph hand-graph-cnn/data/real_world_testset
        --without-hands PICTURES

- ``stereo_hand`` of the shared data: a hand over a keyboard from two sides, 177 frames with a
  median reprojection of the truth below 6 px. Both cameras alone, and as a rig. Its unit is known
  to 6 %, and its truth has the network's own wrist: errors are also given about the joints' mean.
- ``fisheye0``, ``fisheye1``: both cameras of it drawn into a fisheye, 65 degrees off its axis.
- ``hand_graph``: 583 pictures of one left hand, metric truth (3d-hand-shape/hand-graph-cnn at
  2f59da3; for non-commercial research, fetched by the user): 256 px crops, put back into 1280 x
  720. Its wrist is 9 % of the palm's length nearer to the fingers than the network's.
- ``without_hands``: hands found in the pictures of a folder that has none, one by one.

``joints_mm``: joints relative to the wrist after one scale per set; ``about_mean_mm``: about their
mean. ``palm_deg`` and ``over_30`` as in ``tracking/score.py``. ``depth_spread_mm``: standard
deviation of the middle knuckle's error along its ray; ``depth_percent``: its mean. ``lateral_mm``:
error of the middle knuckle across its ray. ``covered_*``: share of joints' errors within the
interval of that probability by the stated sigma, along the ray after one scale of distance per set,
and across.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, Int
from scipy.io import loadmat

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.geometry.frames import apply, inverse
from acehand_core.motion import ChangedFrames, HandMotion, Recording, View
from acehand_core.recordings.cameras import undistort
from acehand_core.recordings.registry import open_recording
from acehand_core.recordings.video import PICTURES
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe import search
from acehand_core.trackers.mediapipe.networks import hand_networks
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from acehand_core.types import ImageRgb
from benchmarks import provenance
from benchmarks.tracking import peer
from benchmarks.tracking.score import TURNED_DEG, palm_frame

#: Median reprojection of the truth up to which a frame of ``stereo_hand`` counts, metres per unit.
MOST_PX, UNIT_M = 6.0, 0.0448
_KNUCKLE = 9
FISHEYE = Camera("kannala_brandt", 1400, 1400, 480.0, 480.0, 699.5, 699.5, (0.0, 0.0, 0.0, 0.0))
#: The peer's mode that loses fewest hands.
PEER = peer.MODES[0]
#: Errors over sigma at 68 and 95 %: along a line, and in a plane.
_ALONG, _ACROSS = {"68": 0.99446, "95": 1.95996}, {"68": 1.50959, "95": 2.44775}

Track = Callable[[Recording, float | None], HandMotion]


@dataclass(frozen=True, slots=True)
class Case:
    """A recording of one hand; its true joints in the camera frame, metres, in some frames."""

    recording: Recording
    side: int
    frames: Int[np.ndarray, "N"]
    joints: Float[np.ndarray, "N 21 3"]
    hand_length_m: float | None = None


def main() -> None:
    """Measure all sets that are there; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hand-graph", type=Path, help="folder real_world_testset")
    parser.add_argument("--without-hands", type=Path, help="folder of pictures")
    provenance.add_output(parser)
    options = parser.parse_args()
    result = {"benchmark": "photographs", **measured(options.hand_graph)}
    if options.without_hands:
        result["without_hands"] = invented(options.without_hands)
    provenance.publish(started, result, options.output)


def measured(hand_graph_folder: Path | None = None) -> dict[str, Any]:
    """Return the errors of ours and of MediaPipe by the name of the set; why one is left out."""
    folder = provenance.shared_folder() / "data" / "stereo_hand"
    cases = dict[str, Case]()
    out: dict[str, Any] = {"left_out": []}
    if folder.is_dir():
        cases |= stereo_hand(folder)
    else:
        out["left_out"].append(f"{folder}: not there")
    if hand_graph_folder is not None:
        cases["hand_graph"] = hand_graph(hand_graph_folder)
    for name, case in cases.items():
        out[name] = errors(case, ours(case.recording, case.hand_length_m))
        if not case.recording.views:
            out[name][PEER.name] = errors(case, theirs(case.recording, case.hand_length_m))
        print(name, out[name], flush=True)
    return out


def ours(recording: Recording, hand_length_m: float | None) -> HandMotion:
    """Return the hands by our tracker."""
    return MediaPipeTracker(TrackerSettings(hand_length_m=hand_length_m)).track(recording)


def theirs(recording: Recording, hand_length_m: float | None) -> HandMotion:
    """Return the hands by MediaPipe and PnP, for a mean adult's hand where none is given."""
    return peer.track(recording, hand_length_m or 0.19, PEER)


def errors(case: Case, motion: HandMotion) -> dict[str, float]:
    """Return the errors of a hand (docstring of the module)."""
    known = motion.known[case.frames, case.side]
    rows = case.frames[known]
    found, true = motion.joints_camera[rows, case.side], case.joints[known]
    out: dict[str, float] = {"frames": len(case.frames), "lost_frames": int((~known).sum())}

    for name, middle in (("joints_mm", [0]), ("about_mean_mm", list(range(21)))):
        a, b = (joints - joints[:, middle].mean(1, keepdims=True) for joints in (found, true))
        scale = np.sum(a * b) / np.sum(b**2)
        out[name] = 1e3 * float(np.linalg.norm(a - scale * b, axis=-1).mean())
    turn = np.swapaxes(palm_frame(found), 1, 2) @ palm_frame(true)
    angle = np.degrees(np.arccos(np.clip((np.trace(turn, axis1=1, axis2=2) - 1) / 2, -1, 1)))
    out |= {"palm_deg": float(angle.mean()), "over_30": float((angle > TURNED_DEG).mean())}

    off = found - true
    away = np.linalg.norm(true, axis=-1, keepdims=True)
    deep = np.sum(off * true / away, axis=-1)
    lateral = np.linalg.norm(off - deep[..., None] * true / away, axis=-1)
    out["wrist_mm"] = 1e3 * float(np.linalg.norm(off[:, 0], axis=1).mean())
    out["depth_spread_mm"] = 1e3 * float(deep[:, _KNUCKLE].std())
    out["depth_percent"] = 100 * float((deep / away[..., 0])[:, _KNUCKLE].mean())
    out["lateral_mm"] = 1e3 * float(lateral[:, _KNUCKLE].mean())
    if motion.joint_sigma is not None:
        sigma = motion.joint_sigma[rows, case.side]
        share = np.median(np.linalg.norm(found[:, _KNUCKLE], axis=-1) / away[:, _KNUCKLE, 0])
        along = np.abs(deep - (share - 1) * away[..., 0]) / sigma[..., 1]
        for percent in _ALONG:
            out[f"covered_{percent}_along"] = float((along < _ALONG[percent]).mean())
            across = lateral / sigma[..., 0] < _ACROSS[percent]
            out[f"covered_{percent}_across"] = float(across.mean())
    return out


def stereo_hand(folder: Path) -> dict[str, Case]:
    """Return both cameras of ``stereo_hand`` alone, and the first one with the other as a view."""
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
    one = Case(cameras[0], 1, frames, joints)
    two = Case(cameras[1], 1, frames, apply(T_second_first, joints))
    return {
        "camera0": one,
        "camera1": two,
        "fisheye0": at_the_edge(one),
        "fisheye1": at_the_edge(two),
        "both": Case(rig, 1, frames, joints),
    }


def at_the_edge(case: Case) -> Case:
    """Return a case in a fisheye camera that looks 65 degrees past the hand."""
    lens, camera = FISHEYE, case.recording.camera
    assert camera is not None and case.recording.frames is not None
    middle = case.joints.mean((0, 1))
    axis = np.array([0.6, -0.8, 0.0])
    ahead = rotations.between(middle / np.linalg.norm(middle), np.array([0.0, 0.0, 1.0]))
    R = rotations.exp(np.radians(65.0) * axis) @ ahead
    at = camera.project(np.nan_to_num(lens.all_rays(), nan=-1.0) @ R)
    at = np.nan_to_num(at, nan=-1e4).astype(np.float32)

    def drawn(image: ImageRgb) -> ImageRgb:
        return cv2.remap(image, at[..., 0], at[..., 1], cv2.INTER_LINEAR)

    frames = ChangedFrames(case.recording.frames, drawn)
    size = {"width": lens.width, "height": lens.height}
    recording = replace(case.recording, frames=frames, camera=lens, sha256=None, **size)
    return replace(case, recording=recording, joints=case.joints @ R.T)


def hand_graph(folder: Path) -> Case:
    """Return the pictures of ``real_world_testset`` as one clip, 30 frames per second."""
    data = loadmat(folder / "params.mat")
    joints = loadmat(folder / "pose_gt.mat")["pose_gt"].astype(float) / 100
    (fx, fy, cx, cy), count = data["cam_param"][0].astype(float), len(joints)
    frames = _Crops(sorted((folder / "images").glob("*.jpg")), data["bbox"].astype(int))
    bones = np.linalg.norm(np.diff(joints[:, [0, 9, 10, 11, 12]], axis=1), axis=-1)
    recording = Recording(
        source=str(folder),
        sha256=None,
        timestamps_ns=np.round(np.arange(count) * 1e9 / 30).astype(np.int64),
        fps=30.0,
        width=1280,
        height=720,
        frames=frames,
        camera=Camera("pinhole", 1280, 720, fx, fy, cx, cy),
    )
    return Case(recording, 0, np.arange(count), joints, float(np.median(bones.sum(1))))


def invented(folder: Path) -> dict[str, int]:
    """Return the number of pictures, and of hands found in them by ours and by MediaPipe."""
    out = {"pictures": 0, "ours": 0, "mediapipe stills 0.5": 0}
    networks, still = hand_networks(), peer.MODES[1]
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in PICTURES:
            continue
        recording = open_recording(path)
        assert recording.frames is not None
        image = next(iter(recording.frames.read(0, 1)))
        squares = [search.whole(image), *search.squares(image, "balanced")]
        out["pictures"] += 1
        out["ours"] += len(search.new_hands(networks, image, squares, (), search.MAX_HANDS))
        out[still.name] += len(next(iter(peer.found(recording, still))))
    return out


@dataclass(frozen=True, slots=True)
class _Crops:
    """Pictures of a hand where they were in the whole one, which is black elsewhere."""

    paths: list[Path]
    boxes: Int[np.ndarray, "T 4"]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, start: int, stop: int) -> Iterator[ImageRgb]:
        return map(self.at, range(start, stop))

    def at(self, index: int) -> ImageRgb:
        x, y, width, height = self.boxes[index]
        crop = cv2.imread(str(self.paths[index]))
        crop = cv2.resize(crop, (width, height), interpolation=cv2.INTER_AREA)
        # A box may reach out of the picture.
        whole = np.zeros((720 + 2 * 720, 1280 + 2 * 1280, 3), np.uint8)
        whole[720 + y : 720 + y + height, 1280 + x : 1280 + x + width] = crop
        return np.ascontiguousarray(whole[720:1440, 1280:2560, ::-1])


if __name__ == "__main__":
    main()
