"""Pictures of the robot as the source camera would see it."""

import dataclasses

import cv2
import numpy as np
import pytest

from acehand_core.drawing.contact_sheet import EpisodePictures, source_view
from acehand_core.errors import MissingDependencyError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import View
from acehand_core.recordings.registry import open_recording
from acehand_core.types import SIDES, no_progress
from helpers.retarget_samples import motion_of, moving_hands
from helpers.video_fixtures import write_video
from retarget.retargeting import retarget_motion
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot

WIDTH, HEIGHT = 160, 120
CAMERA = Camera("pinhole", 320, 240, 260.0, 250.0, 150.0, 125.0)
ROBOT = load_robot("inspire")


@pytest.fixture(scope="module")
def placed():
    motion = motion_of(moving_hands(12), camera=CAMERA)
    return motion, retarget_motion(motion, ROBOT, base_limits=None)


@pytest.fixture(scope="module")
def pictures():
    """Return a function that draws some frames, or skips where there is no OpenGL."""

    def draw(motion, trajectory, shown):
        try:
            with source_view(ROBOT, motion, trajectory, WIDTH, HEIGHT) as picture:
                return [picture(frame) for frame in shown]
        except MissingDependencyError as error:
            pytest.skip(f"no OpenGL here: {error}")

    return draw


def drawn(picture):
    """Where the picture differs from its backdrop (its corner)."""
    return (picture != picture[0, 0]).any(-1)


@pytest.mark.parametrize("slot", [0, 1])
def test_the_robot_stands_where_its_base_pose_says(placed, pictures, slot):
    """One hand at a time: every link's and tip's projection is covered, far pixels are not."""
    motion, trajectory = placed
    active = trajectory.active.copy()
    active[:, 1 - slot] = False
    alone = dataclasses.replace(trajectory, active=active)
    hand = ROBOT.hand(SIDES[slot])
    points = KinematicTree.of(hand).points(trajectory.joints[:, slot], hand.target_frames)
    seen = frames.apply(trajectory.T_frame_base[:, slot], points)
    focal, middle = np.array([260.0, 250.0]) / 2, (np.array([150.0, 125.0]) + 0.5) / 2 - 0.5
    pixels = seen[..., :2] / seen[..., 2:] * focal + middle
    for frame, picture in zip((0, 11), pictures(motion, alone, (0, 11)), strict=True):
        rows, columns = np.nonzero(drawn(picture))
        for u, v in pixels[frame]:
            assert np.hypot(columns - u, rows - v).min() < 2.0
        # The forearm reaches further than any finger link, yet not across the picture.
        assert np.ptp(columns) < 0.6 * WIDTH
        # Human and robot fingertips are close in the picture, too.
        tips = motion.joints_camera[frame, slot][[8, 12, 16, 20]]
        human = tips[:, :2] / tips[:, 2:] * focal + middle
        index = [hand.target_frames.index(name) for name in hand.tip_names[1:]]
        assert np.abs(pixels[frame, index] - human).max() < 8


def test_the_world_frame_gives_the_same_picture(placed, pictures):
    motion, trajectory = placed
    t = np.linspace(0, 1, 12)[:, None]
    poses = frames.rigid(rotations.exp(np.repeat(t, 3, 1)), np.repeat(2 * t, 3, 1))
    moving = dataclasses.replace(motion, T_world_camera=poses)
    in_world = retarget_motion(moving, ROBOT, base_limits=None)
    assert in_world.frame == "world"
    for a, b in zip(pictures(motion, trajectory, (0, 11)), pictures(moving, in_world, (0, 11)),
                    strict=True):  # fmt: skip
        # Rounding may flip a few edge pixels.
        assert (np.abs(a.astype(int) - b) > 8).any(-1).mean() < 0.01


def test_without_a_place_both_hands_are_shown_side_by_side(pictures):
    motion = motion_of(moving_hands(4), placed=False, camera=CAMERA)
    trajectory = retarget_motion(motion, ROBOT)
    (picture,) = pictures(motion, trajectory, [2])
    mask = drawn(picture)
    assert mask[:, : WIDTH // 2].mean() > 0.05 and mask[:, WIDTH // 2 :].mean() > 0.05
    assert not mask[[0, -1]].any() and not mask[:, [0, -1]].any()  # nothing is cut off
    left_only = dataclasses.replace(
        trajectory, active=np.broadcast_to([True, False], (4, 2)).copy()
    )
    (one,) = pictures(motion, left_only, [2])
    assert drawn(one)[:, : WIDTH // 2].any() and not drawn(one)[:, WIDTH // 2 :].any()


def test_a_distorted_camera_is_taken_without_its_distortion(placed, pictures):
    """A saved motion may carry a fisheye camera; robots are drawn by a pinhole."""
    motion, trajectory = placed
    fisheye = Camera("kannala_brandt", 320, 240, 260.0, 250.0, 150.0, 125.0, (0.1, 0.0, 0.0, 0.0))
    seen = dataclasses.replace(motion, camera=fisheye)
    (a,), (b,) = pictures(motion, trajectory, [5]), pictures(seen, trajectory, [5])
    assert (a == b).all()


def test_other_cameras_show_the_hands_where_they_see_them(placed, tmp_path):
    """A second camera 50 mm to the right of the first, and one that looks away."""
    black = [np.zeros((240, 320, 3), np.uint8)] * 12
    source = open_recording(write_video(tmp_path / "v.mp4", black))
    seen = dataclasses.replace(source, camera=CAMERA)
    right, away = np.eye(4), frames.rigid(rotations.exp(np.array([0, np.pi, 0])), np.zeros(3))
    right[0, 3] = 0.05
    rig = dataclasses.replace(source, views=(View("r", seen, right), View("a", seen, away)))
    pictures = EpisodePictures(rig, placed[0], placed[1], None)
    pictures.write(tmp_path / "sheet.png", tmp_path / "o.mp4", no_progress)
    overlay = open_recording(tmp_path / "o.mp4")
    assert (overlay.width, overlay.height) == (320 + 160, 240)
    image = overlay.frames.at(5)
    there = frames.apply(frames.inverse(right), placed[0].joints_camera[5])
    for x, y in CAMERA.rescaled(160, 120).project(there).reshape(-1, 2).round().astype(int):
        assert not (0 <= x < 160 and 0 <= y < 120) or image[y, 320 + x].max() > 60
    assert (image[20:120, 320:].max(-1) > 60).any()
    assert (image[140:, 320:].max(-1) < 60).all()
    # As wide on the sheet: a thumbnail and half of one.
    assert cv2.imread(str(tmp_path / "sheet.png")).shape[1] == 3 * (450 + 6) + 6


@pytest.mark.parametrize(("spread", "share", "middle"), [(1.0, 0.3125, 0.6), (6.0, 1.0, 0.5)])
def test_the_sheet_shows_where_the_hands_are(placed, spread, share, middle, tmp_path):
    """Red grows with x and green with y, so that the edges of a thumbnail say what it shows.

    The panel is 960 px wide, a thumbnail 300: no smaller part is shown, 0.3125 of the width. Six
    times the box and a quarter of that on each side is 0.9: then it is all.
    """
    across, down = np.meshgrid(np.arange(1000) / 1000, np.arange(800) / 800)
    image = np.stack([across * 250, down * 250, np.full_like(across, 60)], -1).astype(np.uint8)
    recording = open_recording(write_video(tmp_path / "v.mp4", [image] * 12))
    # All joints within 100 x 80 px around (600, 340), or six times that.
    joints = np.array([[-50.0, -40.0], [50.0, 40.0]]) * spread + [600, 340]
    joints = np.resize(joints, (12, 2, 21, 2))
    motion = dataclasses.replace(placed[0], camera=None, joints_image=joints)
    sheet = tmp_path / "sheet.png"
    EpisodePictures(recording, motion, placed[1], None).write_contact_sheet(sheet)
    thumb = cv2.imread(str(sheet))[40:280, 6:306, ::-1]
    left, right = thumb[120, 2, 0] / 250, thumb[120, -3, 0] / 250
    top, bottom = thumb[30, 20, 1] / 250, thumb[-3, 20, 1] / 250
    assert right - left == pytest.approx(share, abs=0.03)
    assert bottom - top == pytest.approx(share * 207 / 240, abs=0.03)
    assert (left + right) / 2 == pytest.approx(middle, abs=0.02)


def test_the_column_of_other_cameras_fits_every_crop(placed, tmp_path):
    """Square pictures, halves of them in the column, and crops of odd sizes."""
    image = np.full((1000, 1000, 3), 90, np.uint8)
    recording = open_recording(write_video(tmp_path / "v.mp4", [image] * 12))
    recording = dataclasses.replace(recording, views=(View("right", recording, np.eye(4)),))
    sheet = tmp_path / "sheet.png"
    for spread in range(400, 406):
        joints = np.resize(np.array([[0.0, 0.0], [spread, spread]]) + 200, (12, 2, 21, 2))
        motion = dataclasses.replace(placed[0], camera=None, joints_image=joints)
        EpisodePictures(recording, motion, placed[1], None).write_contact_sheet(sheet)
        # As wide as a thumbnail and half of one, and as high as a thumbnail.
        assert cv2.imread(str(sheet)).shape[1] == 3 * (450 + 6) + 6
