"""The main job on a real video of a hand, and on clips derived from it.

The video is one right hand before a webcam, 621 frames at 30 fps; it is shared data, not part of
the project.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from acehand_core.cli import retarget
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.motion import HandMotion
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.video import open_video
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from helpers.controller_rules import check_dataset_limits
from helpers.lerobot_samples import check_every_frame
from helpers.video_fixtures import write_video

X264 = {"preset": "ultrafast", "crf": "20"}
RIGHT = 1


@pytest.fixture(scope="module")
def video(shared: Path) -> Path:
    return shared / "data" / "human_hand_video.mp4"


@pytest.fixture(scope="module")
def job(video: Path, tmp_path_factory: pytest.TempPathFactory):
    """The main job on the whole video: dataset, JSON entry, hand motion."""
    out = tmp_path_factory.mktemp("job") / "out"
    arguments = ["--robot", "inspire", "--task", "hand gestures", "--no-overlay", "--quiet"]
    assert retarget.main([str(video), *arguments, "--output", str(out)]) == 0
    extras = out / "acehand" / "episode_000000"
    entry = json.loads((extras / "report.json").read_text())
    return out, entry, read_hand_motion(extras / "hand_motion.parquet")


@pytest.mark.slow
def test_the_whole_video(job) -> None:
    out, entry, motion = job
    assert entry["frames"] == len(motion) == 621 and entry["fps"] == 30
    assert entry["coverage"]["right"] >= 0.97
    assert motion.known[:, 0].mean() <= 0.02  # no left hand invented
    assert entry["reprojection_px"]["median"] <= 6.0
    assert entry["limit_violations"] == entry["speed_violations"] == 0
    assert check_dataset_limits(out) == 1
    assert entry["coupling_residual_rad"] < 1e-6
    assert entry["physics"]["rms_tracking_rad"] < 0.05
    assert entry["physics"]["max_penetration_mm"] < 1.0
    assert check_every_frame(out) == []
    info = json.loads((out / "meta" / "info.json").read_text())
    assert info["total_frames"] == 621 and info["total_episodes"] == 1
    turns = motion.global_orient[:, RIGHT], motion.hand_pose[:, RIGHT]
    hand = CapsuleHand().joints("right", *turns, motion.betas[RIGHT])
    rebuilt = hand + motion.translation[:, RIGHT, None]
    np.testing.assert_allclose(rebuilt, motion.joints_camera[:, RIGHT], atol=1e-9)
    assert (np.abs(motion.betas[RIGHT]) <= 3).all()


def track(frames: Sequence[np.ndarray], folder: Path) -> HandMotion:
    recording = open_video(write_video(folder / "derived.mp4", frames, options=X264))
    return MediaPipeTracker(TrackerSettings()).track(recording)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "length"), [(60, 10), (150, 20), (290, 30)])
def test_a_masked_hand_is_filled_and_marked(start, length, job, video, tmp_path) -> None:
    """Error: distance of projected joints from the unmasked clip's landmarks, in pixels."""
    first, last = start - 40, start + length + 40
    frames = list(open_video(video).frames.read(first, last))
    for frame in frames[40 : 40 + length]:
        frame[:] = frame[:20, :20].mean((0, 1))
    motion = track(frames, tmp_path)
    gap = np.arange(40, 40 + length)
    assert motion.filled[gap, RIGHT].all() and not motion.observed[gap, RIGHT].any()
    others = np.delete(np.arange(len(frames)), gap)
    assert motion.observed[others, RIGHT].mean() > 0.97 and not motion.known[:, 0].any()
    assert motion.quality[gap, RIGHT].max() < np.median(motion.quality[others, RIGHT])
    truth = job[2].joints_image[first:last, RIGHT]
    assert motion.camera is not None
    projected = motion.camera.project(motion.joints_camera[:, RIGHT])
    error = np.nanmean(np.linalg.norm(projected - truth, axis=-1), axis=1)
    most = 2 * np.median(error[others])
    assert error[gap[-1]] <= most and np.median(error[gap[-1] + 1 : gap[-1] + 4]) <= most


@pytest.mark.slow
def test_a_hand_and_its_mirror_image(video: Path, tmp_path: Path) -> None:
    half = [frame[::2, ::2] for frame in open_video(video).frames.read(0, 180)]
    motion = track([np.hstack([frame, frame[:, ::-1]]) for frame in half], tmp_path)
    assert len(motion) == 180 and motion.observed.mean(0).min() >= 0.97
    centre = np.nanmean(motion.joints_image[..., 0], axis=-1)
    # The mirror image stands on the right half and is the left hand.
    assert np.nanmin(centre[:, 0]) > 640 > np.nanmax(centre[:, 1])


@pytest.mark.slow
def test_absent_is_absent(video: Path, tmp_path: Path) -> None:
    """A crop that slides away from the hand for seconds and comes back."""
    frames, count = [], 240
    for index, frame in enumerate(open_video(video).frames.read(0, count)):
        away = 0.5 - 0.5 * np.cos(2 * np.pi * index / (count - 1))
        wide = np.hstack([frame, np.broadcast_to(frame[:, -1:], frame.shape)])
        left = int(320 + 1200 * np.clip(2.5 * away - 0.7, 0, 1))
        frames.append(wide[120:600, left : left + 640])
    hidden = [i for i, f in enumerate(frames) if np.ptp(f[:, :, 0].astype(int), axis=1).max() < 12]
    assert len(hidden) > 60
    motion = track(frames, tmp_path)
    assert not motion.known[hidden].any() and not motion.known[:, 0].any()
    assert motion.observed[:30, RIGHT].all() and motion.observed[-30:, RIGHT].all()
    assert np.isnan(motion.joints_camera[hidden]).all()
    assert (motion.presence[hidden] == 0).all()
