"""``--camera-motion full``: from camera poses in unknown units to hands in an upright world."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from acehand_core.camera_motion import CameraPath, Scale
from acehand_core.errors import InputError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion, HandMotion, Recording
from acehand_core.pipeline import world
from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.settings import JobSettings, WorldSettings
from acehand_core.pipeline.steps import Steps
from acehand_core.pipeline.world import in_world
from acehand_core.recordings.options import RecordingOptions
from acehand_core.types import no_progress
from helpers.fake_motion import random_motion
from helpers.retarget_samples import moving_hands
from helpers.video_fixtures import write_video

CAMERA = Camera.nominal(640, 480, 80.0)
COUNT = 10
STAMPS = np.arange(COUNT) * 33_333_333
#: Two pixels of frame 0 that are 0.5 m apart in the scene: 1 unit, on a wall 2 units away.
LEFT, RIGHT = (CAMERA.project(np.array([x, 0.0, 2.0])) for x in (-0.5, 0.5))
KNOWN = WorldSettings(
    scene_scale=(0.0, *LEFT.tolist(), *RIGHT.tolist(), 0.5), camera_up=(0.0, -1.0, 0.0)
)


class NoPictures:
    def __len__(self):
        return COUNT

    def read(self, start, stop):
        raise AssertionError

    read_reversed = at = read


def poses():
    """A camera that goes two units to its right and turns, unknown in the last frame."""
    T = np.tile(np.eye(4), (COUNT, 1, 1))
    T[:, 0, 3] = np.linspace(0, 2, COUNT)
    T[:, :3, :3] = rotations.exp(np.stack([0 * T[:, 0, 3], 0.1 * T[:, 0, 3], 0 * T[:, 0, 3]], -1))
    T[-1] = np.nan
    return T


@pytest.fixture
def found(monkeypatch):
    """What the pictures are made to tell."""
    grid = np.stack(np.meshgrid(np.linspace(-2, 2, 40), np.linspace(-2, 2, 40)), -1).reshape(-1, 2)
    points = np.concatenate([grid, np.full((len(grid), 1), 2.0)], axis=1)
    path = CameraPath(
        poses(), np.r_[np.full(COUNT - 1, 0.9), 0.0], points,
        np.tile([0, COUNT - 1], (len(points), 1)), CAMERA, "",
    )  # fmt: skip
    told = {"path": path}
    R = np.where(np.isfinite(poses()[:, :3, :3]), poses()[:, :3, :3], np.eye(3))
    turns = CameraMotion(R, np.ones(COUNT, int), np.zeros(COUNT, bool), np.zeros(COUNT))
    monkeypatch.setattr(world, "recorded_rotations", lambda *_: turns)
    monkeypatch.setattr(world, "recorded_path", lambda *_: told["path"])
    return told


def recording(frames=None):
    frames = NoPictures() if frames is None else frames
    return Recording("clip.mp4", None, STAMPS, 30.0, 640, 480, frames, CAMERA)


def hands(**changes):
    motion = random_motion(0, COUNT, posed=False, camera=CAMERA)
    return replace(motion, timestamps_ns=STAMPS, fps=30.0, **changes)


def test_the_world_is_metric_and_upright(found):
    motion = in_world(hands(), recording(), KNOWN, None, no_progress)
    T = motion.T_world_camera
    # The camera goes 1 m to the right; what was down is -z, and right and the origin stay.
    np.testing.assert_allclose(T[0, :3, 3], 0, atol=1e-9)
    assert np.linalg.norm(T[8, :3, 3]) == pytest.approx(8 / 9, abs=1e-3)
    np.testing.assert_allclose(T[0, :3, :3] @ [0, 1, 0], [0, 0, -1], atol=1e-9)
    assert np.isnan(T[-1]).all()
    np.testing.assert_array_equal(motion.pose_confidence, [0.9] * 9 + [0.0])
    assert motion.provenance.notes[-1].startswith("camera poses from pictures: 9 of 10 frames")
    before = hands()
    np.testing.assert_array_equal(motion.joints_camera, before.joints_camera)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("the camera only turns", "refused: the camera only turns. --camera-motion rotation"),
        ("no scale", "the scale is not known: hands are hardly ever near"),
        ("not placed", "the hands have no place before the camera"),
        ("no pictures", "it has no pictures"),
    ],
)
def test_what_cannot_be_trusted_is_refused(found, change, message):
    motion, settings, shown = hands(), KNOWN, recording()
    if change == "the camera only turns":
        found["path"] = replace(found["path"], reason=change)
    if change == "no scale":
        settings = replace(KNOWN, scene_scale=None)
    if change == "not placed":
        motion = replace(motion, placed=False)
    if change == "no pictures":
        shown = replace(shown, frames=None)
    with pytest.raises(InputError, match=message):
        in_world(motion, shown, settings, None, no_progress)


def test_what_is_said_of_the_world_is_checked():
    with pytest.raises(InputError, match="--scene-scale: 3 numbers; 6 are needed"):
        WorldSettings(scene_scale=(1.0, 2.0, 3.0))
    with pytest.raises(InputError, match="--camera-up: 2 numbers; 3 are needed"):
        JobSettings(world=WorldSettings(camera_up=(0.0, 1.0)))
    with pytest.raises(InputError, match="go with --camera-motion full"):
        JobSettings(world=KNOWN)


class Tracked:
    """A tracker that has seen the hands already."""

    name, placed, hand_model = "seen", True, "acehand"

    def __init__(self, motion):
        self.motion = motion

    def track(self, recording, progress):
        return self.motion


def test_a_job_puts_hands_and_dataset_into_the_world(found, monkeypatch, tmp_path):
    seen = HandMotion.from_joints(moving_hands(COUNT), fps=30.0, frame="camera")
    seen = replace(seen, camera=CAMERA, timestamps_ns=STAMPS)
    monkeypatch.setattr(world, "metric_scale", lambda *_: Scale(0.5, 0.06, 9, ""))
    settings = JobSettings(
        tmp_path, camera_motion="full", world=replace(KNOWN, scene_scale=None), dry_run=True
    )
    steps = Steps.of(settings, no_progress)
    motion, calibrations = steps.track(Tracked(seen), recording())
    trajectory = steps.retarget(motion, calibrations)
    assert trajectory.frame == "world" and motion.pose_confidence is not None
    layout = settings.layout(recording(), Tracked(seen), steps.robot, None)
    assert layout.frame == "world"
    only_turns = JobSettings(tmp_path, dry_run=True)
    assert only_turns.layout(recording(), Tracked(seen), steps.robot, None).frame == "camera"


def test_a_camera_that_stands_still_is_refused_and_nothing_is_written(tmp_path):
    """With nothing made up: pictures in, reason out."""
    wall = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    wall = cv2.resize(wall, (160, 120), interpolation=cv2.INTER_CUBIC)
    video = write_video(tmp_path / "still.mp4", [wall] * 40)
    hands = tmp_path / "hands.npz"
    np.savez(hands, joints=moving_hands(40), fps=30, frame="camera")
    settings = JobSettings(
        tmp_path / "out", tracker=str(hands), camera_motion="full",
        reading=RecordingOptions(intrinsics="120,120,79.5,59.5"),
    )  # fmt: skip
    report = run_job([video], settings)
    (failure,) = report.failures
    assert "--camera-motion full is refused" in str(failure.error)
    assert report.dataset is None and not (tmp_path / "out").exists()


def test_up_is_of_the_first_frame_and_the_world_of_the_first_known_one(found):
    """The camera rolls by 90 degrees clockwise before its pose is known: up is at its left."""
    T = poses()
    T[:3] = np.nan
    path = replace(found["path"], T_world_camera=T)
    R = np.tile(np.eye(3), (COUNT, 1, 1))
    R[3:] = [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    turns = CameraMotion(R, np.ones(COUNT, int), np.zeros(COUNT, bool), np.zeros(COUNT))
    up, told_by = world._up(path, recording(), turns, None, KNOWN)
    np.testing.assert_allclose(up, [-1, 0, 0], atol=1e-12)
    assert told_by == "the user"
    lost = replace(turns, broken=np.arange(COUNT) == 2)
    with pytest.raises(InputError, match=r"--camera-up is of frame 0, .* of frame 3"):
        world._up(path, recording(), lost, None, KNOWN)


def test_points_that_nothing_is_known_of_are_named(found):
    corner = WorldSettings(scene_scale=(0.0, 1.0, 1.0, 639.0, 479.0, 0.5))
    points = found["path"].points[:, :2]
    near = (np.abs(points) < 0.5).all(1)
    path = found["path"]
    found["path"] = replace(path, points=path.points[near], seen=path.seen[near])
    with pytest.raises(InputError, match=r"clip.mp4: --scene-scale: pixel 1, 1 of frame 0"):
        in_world(hands(), recording(), corner, None, no_progress)
