"""Depth and other cameras that contradict the pictures are not used, and said.

Truth: photographs of a hand from two sides (``stereo_hand``), depth painted from its triangulated
joints, and geometry by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.evidence import SkinDepth, skin_points
from acehand_core.motion import ChangedFrames, Depth, HandMotion, Recording
from acehand_core.recordings.selection import part
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.agreement import of_depth, scale_doubt
from acehand_core.trackers.mediapipe.reconstruct import HandAlone, hands_alone
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from acehand_core.trackers.skin_depth import outline_share
from acehand_core.types import Side
from benchmarks import photographs, provenance
from helpers.fake_hands import PINHOLE, hand_motion, seen, stamps

FRAMES = 45
FOLDER = provenance.shared_folder() / "data" / "stereo_hand"
photographed = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs stereo_hand of the shared data"
)


@pytest.fixture(scope="module")
def stereo():
    return photographs.stereo_hand(FOLDER)


@pytest.fixture(scope="module")
def painted(tmp_path_factory) -> np.ndarray:
    """Depth of camera0 in metres, NaN without a reading."""
    out = tmp_path_factory.mktemp("depth")
    words = [FOLDER / "paint_depth.py", FOLDER, out / "good", out / "far", FRAMES]
    subprocess.run([sys.executable, *map(str, words)], check=True)
    images = [cv2.imread(str(p), cv2.IMREAD_UNCHANGED) for p in sorted((out / "good").iterdir())]
    counts = np.stack(images).astype(np.float32)
    return np.where(counts > 0, counts / 1000, np.nan).astype(np.float32)


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    """Detections, made once."""
    return tmp_path_factory.mktemp("work")


class Pictures:
    def __init__(self, images: np.ndarray) -> None:
        self.at, self.count = images.__getitem__, len(images)

    def __len__(self) -> int:
        return self.count


def first(recording: Recording) -> Recording:
    """Return the first frames, with those of the views."""
    views = tuple(replace(v, recording=part(v.recording, 0, FRAMES)) for v in recording.views)
    return replace(part(recording, 0, FRAMES), views=views)


def tracked(recording: Recording, work: Path, length: float | None) -> HandMotion:
    return MediaPipeTracker(TrackerSettings(hand_length_m=length, work_dir=work)).track(recording)


def wrist_errors(case, motion: HandMotion) -> tuple[float, float]:
    """Return medians of the wrist's error along its ray, m, and of that over its sigma."""
    rows = case.frames < FRAMES
    at, true = case.frames[rows], case.joints[rows, 0]
    away = np.linalg.norm(true, axis=1)
    off = motion.joints_camera[at, 1, 0] - true
    deep = np.abs(np.sum(off * true, axis=1) / away)
    known = motion.known[at, 1]
    sigma = motion.joint_sigma[at, 1, 0, 1]
    return float(np.median(deep[known])), float(np.median((deep / sigma)[known]))


def shifted(z: np.ndarray) -> np.ndarray:
    return np.roll(z, 60, axis=2)


def late(z: np.ndarray) -> np.ndarray:
    return np.roll(z, 15, axis=0)


DEPTHS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "right": (lambda z: z, ""),
    "x 1.25": (lambda z: 1.25 * z, "unit"),
    "x 0.8": (lambda z: 0.8 * z, "unit"),
    "x 2": (lambda z: 2 * z, "unit"),
    "x 0.25": (lambda z: 0.25 * z, "unit"),
    "150 mm nearer": (lambda z: z - 0.15, "unit"),
    "60 px unregistered": (shifted, "registration"),
    "half a second late": (late, ""),
    "disparity": (lambda z: 0.28 / z, "unit"),
}


@photographed
@pytest.mark.few(3)
@pytest.mark.parametrize("length", [0.19, None])
@pytest.mark.parametrize("name", DEPTHS)
def test_no_wrong_depth_is_believed(stereo, painted, work, name, length):
    change, cause = DEPTHS[name]
    case = stereo["camera0"]
    recording = first(case.recording)
    said = json.loads((FOLDER / "calibration.json").read_text())["cameras"][0]
    numbers = (said[n] for n in ("width", "height", "fx", "fy", "cx", "cy"))
    lens = Camera("brown_conrady", *numbers, tuple(said["distortion_k1k2p1p2k3"]))
    depth = Depth(Pictures(change(painted)), recording.timestamps_ns, lens, np.eye(4))
    motion = tracked(replace(recording, depth=depth), work, length)
    (one,) = motion.provenance.agreement

    error, sigmas = wrist_errors(case, motion)
    assert sigmas < 2
    if name == "right":
        assert not one.doubt and one.used > 0.95 * one.frames and error < 0.02
    elif length is not None or name not in ("x 0.8", "150 mm nearer"):
        assert one.doubt and one.used == 0 and cause in one.doubt
        assert not (motion.evidence & 4).any()


def turned(T: np.ndarray, degrees: float) -> np.ndarray:
    return T @ frames.rigid(rotations.exp(np.radians([degrees, 0, 0])), np.zeros(3))


def moved(T: np.ndarray, factor: float) -> np.ndarray:
    return frames.rigid(T[:3, :3], factor * T[:3, 3])


POSES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "right": (lambda T: T, ""),
    "baseline 0.125 for 0.56": (lambda T: moved(T, 0.223), "baseline"),
    "twice the baseline": (lambda T: moved(T, 2.0), "baseline"),
    "inverse": (frames.inverse, "inverse"),
    "turned by 5 degrees": (lambda T: turned(T, 5.0), "calibration"),
}


@photographed
@pytest.mark.few(2)
@pytest.mark.parametrize("name", POSES)
def test_no_wrong_rig_is_believed(stereo, work, name):
    change, cause = POSES[name]
    case = stereo["both"]
    recording = first(case.recording)
    view = recording.views[0]
    wrong = replace(view, T_camera_view=change(view.T_camera_view))
    motion = tracked(replace(recording, views=(wrong,)), work, 0.19)
    (one,) = motion.provenance.agreement

    error, sigmas = wrist_errors(case, motion)
    assert sigmas < 2
    if name == "right":
        assert not one.doubt and one.used == one.frames and error < 0.02
    else:
        assert (
            one.used == 0 and cause in one.doubt and motion.known[:, 1].mean() > 0.7
        )  # as by one camera


def mirrored(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image[:, ::-1])


@photographed
@pytest.mark.few(1)
@pytest.mark.parametrize("wrong", ["mirrored", "exchanged"])
def test_pictures_of_another_camera_are_named(stereo, work, wrong):
    recording = first(stereo["both"].recording)
    (view,) = recording.views
    own, other = recording.frames, view.recording.frames
    if wrong == "mirrored":
        other = ChangedFrames(other, mirrored)
    else:
        own, other = other, own
    # Their detections are not those that the other tests keep.
    there = replace(view.recording, frames=other, sha256=f"{wrong} 1")
    views = (replace(view, recording=there, synchronised=True),)
    motion = tracked(replace(recording, frames=own, views=views, sha256=wrong), work, 0.19)
    (one,) = motion.provenance.agreement
    assert one.used == 0 and wrong in one.doubt and motion.known[:, 1].mean() > 0.7


@photographed
@pytest.mark.few(1)
@pytest.mark.parametrize("seconds", [0.5, 0.0, 1.0])
def test_a_stated_clock_that_is_wrong_is_named(stereo, work, seconds):
    recording = first(stereo["both"].recording)
    view = recording.views[0]
    other = replace(
        view.recording, timestamps_ns=view.recording.timestamps_ns + round(seconds * 1e9)
    )
    views = (replace(view, recording=other, synchronised=True),)
    motion = tracked(replace(recording, views=views), work, 0.19)
    (one,) = motion.provenance.agreement
    assert bool(one.doubt) == (seconds > 0)
    if seconds:
        stated = float(one.doubt.split("view_offset=camera1=")[1].rstrip("`)"))
        assert stated == pytest.approx(seconds, abs=0.03)


def flat_hand(count: int, away: float) -> HandAlone:
    """Return a flat hand ``away`` metres from the camera, its skin 10 mm nearer."""
    rng = np.random.default_rng(0)
    landmarks = np.concatenate([rng.uniform(-0.09, 0.09, (21, 2)), np.full((21, 1), away)], 1)
    below, landmarks = np.full((count, 41), 0.01), np.tile(landmarks, (count, 1, 1))
    pixels, misfit = np.zeros((count, 21, 2)), np.zeros(count)
    return HandAlone(np.arange(count), pixels, landmarks, below, misfit)


def skin_at(factor: float) -> dict[Side, SkinDepth]:
    """Return readings of the skin of ``flat_hand`` at 0.5 m, farther by a factor."""
    return {"right": SkinDepth(np.full((5, 41), factor * 0.5 - 0.01), np.full((5, 41), 0.002))}


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_the_scale_of_depth_is_that_of_its_readings(factor):
    hand = flat_hand(5, away=0.5)
    one, sigma = of_depth({"right": hand}, skin_at(factor), [1.0], known_size=True)
    assert one.frames == 5 and one.scale == pytest.approx(factor) and one.spread == pytest.approx(0)
    assert bool(one.doubt) == (factor in (0.5, 2.0))
    assert (sigma > 0.01) == (factor in (0.9, 1.1))


def test_landmarks_that_fit_no_hand_do_not_contradict_depth():
    """In three frames of five they are jumbled, and their hand is half as large as it was."""
    _, joints = hand_motion("right", 20)
    wrong, rng = np.arange(20) % 5 < 3, np.random.default_rng(3)
    landmarks = joints.copy()
    smaller = 0.5 * (joints + joints.mean(1, keepdims=True)) + rng.normal(0, 0.012, joints.shape)
    landmarks[wrong] = smaller[wrong]
    settings = TrackerSettings(palm_calibration=0.0)
    detections = {"right": seen(landmarks, "right")}
    hands = hands_alone(detections, PINHOLE, stamps(20), settings)
    skin = {"right": SkinDepth(skin_points(joints)[..., 2] - 0.01, np.full((20, 41), 0.002))}
    one, _ = of_depth(hands, skin, [1.0], known_size=True)
    assert not one.doubt and one.spread < 0.05


def test_depth_without_readings_at_the_hand_is_said():
    skin = {"right": SkinDepth(np.zeros((5, 41)), np.full((5, 41), np.inf))}
    one, sigma = of_depth({"right": flat_hand(5, 0.5)}, skin, [np.nan], known_size=True)
    assert one.frames == 0 and "no readings" in one.doubt and sigma == 0


@pytest.mark.parametrize(("known_size", "less", "more"), [(True, 0.11, 0.13), (False, 0.17, 0.19)])
def test_a_scale_is_contradicted_from_12_or_18_percent_on(known_size, less, more):
    doubts = [
        of_depth({"right": flat_hand(5, 0.5)}, skin_at(np.exp(log)), [1.0], known_size)[0].doubt
        for log in (-more, -less, less, more)
    ]
    assert [bool(doubt) for doubt in doubts] == [True, False, False, True]


def test_a_known_size_decides_sooner_and_both_signs_alike():
    """By hand: 12 % more is 2.3 sigma of a known hand (5 %), and 1.4 of an unknown one (8 %)."""
    for log in (-0.12, 0.12):
        known, unknown = (scale_doubt(log, size) for size in (True, False))
        density = [0.6 / s * np.exp(-0.5 * (0.12 / s) ** 2) for s in (0.05, 0.08043)]
        wrong = [0.4 / s * np.exp(-0.5 * (0.12 / s) ** 2) for s in (0.30414, 0.31060)]
        assert known[0] == pytest.approx(wrong[0] / (wrong[0] + density[0]), abs=0.01)
        assert unknown[0] == pytest.approx(wrong[1] / (wrong[1] + density[1]), abs=0.02)
        assert known[1] > unknown[1] > 0
    assert scale_doubt(0.0, True)[1] == 0


def test_depth_that_may_be_of_the_background_is_believed_less():
    """By hand: it may be off by its scale, 10 %, and the 5 % of a known hand."""
    hand = {"right": flat_hand(5, 0.5)}
    _, stands_out = of_depth(hand, skin_at(1.1), [1.0], known_size=True)
    one, does_not = of_depth(hand, skin_at(1.1), [0.5], known_size=True)
    assert not one.doubt
    assert np.hypot(stands_out, np.log(1.1) + 0.05) == pytest.approx(does_not, rel=1e-3)
    assert of_depth(hand, skin_at(1.1), [np.nan], known_size=True)[1] == stands_out


def _disc(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(np.hypot(x - 60, y - 60) < 45, 0.5, 0.8)


@pytest.mark.parametrize(
    ("picture", "share"),
    [
        (_disc, 1.0),
        (lambda x, y: np.full(x.shape, 0.8), 0.0),
        (lambda x, y: 0.8 - 0.004 * (x - 60), 10 / 19),  # a wall, nearer to the right
        (lambda x, y: np.where(_disc(x, y) < 0.6, 0.5, np.nan), np.nan),
    ],
)
def test_a_hand_stands_out_from_what_is_behind_it(picture, share):
    """A round hand of radius 40 px; outside is 60 px from its middle, but at the wrist."""
    pictures = [picture(*np.meshgrid(np.arange(120.0), np.arange(120.0))).astype(np.float32)]
    camera = Camera("pinhole", 120, 120, 100.0, 100.0, 60.0, 60.0)
    depth = Depth(Pictures(pictures), np.array([0]), camera, np.eye(4))
    angle = np.linspace(0, 2 * np.pi, 21, endpoint=False)
    hand = 60 + 40 * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    found = outline_share(depth, camera, hand[None], np.array([0]))
    assert found == pytest.approx(share, nan_ok=True)
