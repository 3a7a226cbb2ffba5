"""``acehand camera motion``: the table, the picture, and what they are refused for."""

import csv

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from acehand_core.drawing.motion_view import angles_deg, turns_drawn
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import CameraMotion
from acehand_core.recordings.hands_file import write_hand_motion
from helpers.commands import Acehand
from helpers.fake_motion import random_motion
from helpers.video_fixtures import write_video

CAMERA = Camera.nominal(160, 120, 70.0)
#: Of a camera's axes (x right, y down, z ahead): right is about y, up about x, clockwise about z.
AXES = {"yaw": "y", "pitch": "x", "roll": "z"}


def motion(R, broken=()):
    return CameraMotion(
        R, np.zeros(len(R), int), np.isin(np.arange(len(R)), broken), np.zeros(len(R))
    )


@pytest.mark.parametrize("name", AXES)
def test_angles_about_one_axis(name):
    degrees = np.array([0.0, 5.0, -20.0, 60.0])
    turned = motion(Rotation.from_euler(AXES[name], degrees[:, None], degrees=True).as_matrix())
    expected = np.zeros((4, 3))
    expected[:, list(AXES).index(name)] = degrees
    np.testing.assert_allclose(angles_deg(turned), expected, atol=1e-9)


def test_angles_begin_anew_behind_a_broken_step():
    R = Rotation.from_euler("y", [[10], [20], [50], [55]], degrees=True).as_matrix()
    np.testing.assert_allclose(angles_deg(motion(R, [2]))[:, 0], [0, 10, 0, 5], atol=1e-9)


def test_broken_steps_are_coloured():
    R = np.tile(np.eye(3), (60, 1, 1))
    whole, torn = turns_drawn(motion(R), 30.0), turns_drawn(motion(R, [30]), 30.0)
    assert whole.shape == torn.shape
    columns = np.flatnonzero((whole != torn).any((0, 2)))
    middle = torn.shape[1] / 2
    assert len(columns) and (abs(columns - middle) < 20).all()


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """A plane that the camera pans over, by two degrees a frame."""
    rng = np.random.default_rng(0)
    wall = cv2.resize(rng.integers(0, 255, (40, 160), np.uint8), (960, 240))
    frames = []
    K = np.array([[CAMERA.fx, 0, CAMERA.cx], [0, CAMERA.fy, CAMERA.cy], [0, 0, 1]])
    for t in range(12):
        R = Rotation.from_euler("y", 2.0 * t - 11, degrees=True).as_matrix()
        # Wall pixels to rays of the first camera, turned into this one.
        H = K @ R.T @ np.array([[1 / 150, 0, -480 / 150], [0, 1 / 150, -120 / 150], [0, 0, 1]])
        view = cv2.warpPerspective(wall, H, (160, 120))
        frames.append(cv2.cvtColor(view, cv2.COLOR_GRAY2RGB))
    return write_video(tmp_path_factory.mktemp("video") / "pan.mp4", frames)


def intrinsics():
    return f"{CAMERA.fx},{CAMERA.fy},{CAMERA.cx},{CAMERA.cy}"


def test_the_table_has_the_turn(video, tmp_path, capsys):
    out, picture = tmp_path / "motion.csv", tmp_path / "motion.png"
    run = Acehand(capsys, "camera", "motion", video, "--intrinsics", intrinsics(), "--output", out,
              "--picture", picture)  # fmt: skip
    assert run.code == 0 and run.json["broken"] == 0 and run.json["frames"] == 12
    rows = list(csv.DictReader(out.open()))
    q = np.array([[float(row[name]) for name in ("qx", "qy", "qz", "qw")] for row in rows])
    turned = Rotation.from_quat(q[0]).inv() * Rotation.from_quat(q[-1])
    # Of 22 degrees; how well the estimate does is measured elsewhere.
    assert np.degrees(turned.as_rotvec())[1] == pytest.approx(22.0, abs=2.0)
    assert cv2.imread(str(picture)).shape[1] == 960


def test_hands_of_another_recording_are_refused(video, tmp_path, capsys):
    write_hand_motion(random_motion(0, 30), tmp_path / "hands.parquet")
    run = Acehand(capsys, "camera", "motion", video, "--hands", tmp_path / "hands.parquet")
    assert run.code == 2 and "30 frames" in run.err and "has 12" in run.err


def test_hands_are_drawn_over_later_frames(video, tmp_path, capsys):
    hands = random_motion(0, 12, camera=CAMERA)
    write_hand_motion(hands, tmp_path / "hands.parquet")
    out = tmp_path / "motion.png"
    run = Acehand(
        capsys, "camera", "motion", video, "--hands", tmp_path / "hands.parquet", "--picture", out
    )
    assert run.code == 0 and cv2.imread(str(out)).shape[0] > 290
