"""Panels and strips: layers cover each other by depth, cameras are where they should be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from retarget_samples import motion_of, moving_hands
from runs import Acehand, Run, hands_file
from video_fixtures import write_video

from acehand_core import rendering
from acehand_core.errors import InputError
from acehand_core.export.panels import Panels, panel_names
from acehand_core.export.scene import Layer, View, mesh_layer, outside_view, stack
from acehand_core.geometry import frames, rotations
from acehand_core.motion import Camera
from acehand_core.rendering import RenderSettings
from retarget.calibration_file import known_calibrations
from retarget.render import RobotRenderer
from retarget.robot import load_robot

SIZE = (64, 48)
BLACK = np.zeros((48, 64, 3), np.uint8)


def layer(depth: float, colour: tuple[int, int, int], columns: slice, alpha: int = 255) -> Layer:
    rgba = np.zeros((48, 64, 4), np.uint8)
    away = np.full((48, 64), np.inf, np.float32)
    rgba[:, columns], away[:, columns] = (*colour, alpha), depth
    return Layer(rgba, away)


def test_the_nearer_layer_covers_the_farther_whatever_the_order() -> None:
    red = layer(0.5, (255, 0, 0), np.s_[:40])
    green = layer(0.4, (0, 255, 0), np.s_[20:])
    for layers in ([red, green], [green, red]):
        out = stack(BLACK, layers)
        assert out[0, 10].tolist() == [255, 0, 0] and out[0, 30].tolist() == [0, 255, 0]
    behind = layer(0.6, (0, 255, 0), np.s_[20:], alpha=128)
    assert stack(BLACK, [behind, red])[0, 30].tolist() == [255, 0, 0]
    assert stack(BLACK, [behind])[0, 50].tolist() == [0, 128, 0]
    assert (stack(BLACK + 7, []) == 7).all()


def test_a_scene_hides_what_lies_behind_it() -> None:
    scene = np.zeros((48, 64), np.float32)
    scene[:, :10], scene[:, 10:20], scene[:, 20:30] = 0.3, 0.9, 0.505
    out = stack(BLACK, [layer(0.5, (255, 0, 0), np.s_[:]).hidden_by(scene)])
    assert [int(out[0, x, 0]) for x in (5, 15, 25, 50)] == [0, 255, 255, 255]


def cube(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float) - 0.5
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [f for a, b, c, d in quads for f in ((a, b, c), (a, c, d))]
    return 0.1 * corners + place, np.array(faces)


def test_depth_of_a_mesh_from_any_view() -> None:
    camera = Camera.nominal(320, 240)
    vertices, faces = cube(np.array([0.0, 0.0, 0.6]))
    for pose in (
        np.eye(4),
        frames.rigid(rotations.exp(np.array([0, np.pi, 0])), np.array([0, 0, 1.2])),
    ):
        seen = mesh_layer(View(camera, pose), vertices, faces, (10, 200, 30))
        middle = seen.depth[120, 160]
        assert middle == pytest.approx(0.55, abs=0.01), "the near face, 5 cm before the centre"
        inside = np.isfinite(seen.depth)
        half = camera.fx * 0.05 / 0.55
        assert 2 * half - 1 <= np.sqrt(inside.sum()) <= 2 * half + 2  # edges are painted too
        assert (seen.rgba[..., 3] > 0).sum() == inside.sum()


def test_robot_depth_is_metric() -> None:
    """The nearest point of the drawn hand is the nearest of its shapes, and moves with it."""
    robot = load_robot("inspire")
    hand = robot.hand("right")
    camera = Camera.nominal(160, 120)
    turn = rotations.exp(np.array([0.3, 0.2, 0.1]))
    nearest = []
    with RobotRenderer(robot, 160, 120) as renderer:
        for distance in (0.5, 0.8):
            pose = frames.rigid(turn, np.array([0, 0, distance]))
            joints = hand.expand(hand.rest)
            picture, depth = renderer.render_with_depth(camera, {"right": joints}, {"right": pose})
            assert (np.isfinite(depth) == (picture[..., 3] > 0)).all()
            assert (renderer.render(camera, {"right": joints}, {"right": pose}) == picture).all()
            nearest.append(float(depth.min()))
    assert nearest[1] - nearest[0] == pytest.approx(0.3, abs=0.003)
    assert 0.3 < nearest[0] < 0.75


def test_the_outside_view_sees_all_and_stands_apart() -> None:
    random = np.random.default_rng(0)
    points = random.uniform((-0.3, -0.3, 0.3), (0.3, 0.3, 0.9), (50, 3))
    up = np.array([0.0, -1.0, 0.0])
    view = outside_view(points, np.array([0.0, 0.0, 1.0]), up, 320, 240)
    pixels = view.pixels(points)
    assert view.camera.contains(pixels).all()
    assert np.ptp(pixels[:, 0]) > 120 or np.ptp(pixels[:, 1]) > 90
    eye = np.linalg.inv(view.T_view_frame)[:3, 3]
    assert eye @ up > points[:, 1].max() * -1, "above the hands"
    above = view.pixels(np.array([[0, 0, 0.6], [0, -0.1, 0.6]]))
    assert above[1, 1] < above[0, 1], "up in the frame is up in the picture"


@pytest.fixture(scope="module")
def panels():
    motion = replace(motion_of(moving_hands(6)), camera=Camera.nominal(320, 240))
    return motion, Panels(motion, 320, 240)


def test_panels_under_and_beside_the_source_camera(panels) -> None:
    motion, drawn = panels
    image = np.full((480, 640, 3), 90, np.uint8)
    source = drawn.draw("source", 2, image)
    assert source.shape == (240, 320, 3) and (source == 90).all()
    mesh = drawn.draw("mesh", 2, image)
    head = drawn.draw("head", 2)
    wrist = motion.camera.project(motion.joints_camera[2, 1, 0]).round().astype(int)
    box = np.s_[wrist[1] - 4 : wrist[1] + 5, wrist[0] - 4 : wrist[0] + 5]
    assert (mesh[box] != 90).any() and (head[box] != head[0, 0]).any()
    # The bones are the same and so is the camera; only the ground differs.
    assert ((mesh != 90).any(-1) == (head != head[0, 0]).any(-1)).mean() > 0.99
    first, last = drawn.draw("third", 0), drawn.draw("third", 5)
    assert (first != last).any() and (first == last).mean() > 0.8, "the view is fixed"
    with pytest.raises(InputError, match="need a robot"):
        drawn.draw("robot", 0, image)
    with pytest.raises(InputError, match="relative to the wrist"):
        Panels(motion_of(moving_hands(3), placed=False), 320, 240)


def test_head_view_follows_a_moving_camera(panels) -> None:
    """With camera poses the hands are in the world, and the head view is what the camera saw."""
    motion, drawn = panels
    turn = rotations.exp(np.linspace([0, 0, 0], [0.2, 0.5, 0], 6))
    poses = frames.rigid(turn, np.linspace([0, 0, 0], [0.3, 0, 0], 6))
    moving = Panels(replace(motion, T_world_camera=poses), 320, 240)
    difference = np.abs(moving.draw("head", 5).astype(int) - drawn.draw("head", 5)).max(-1)
    assert (difference > 40).mean() < 0.002
    assert (moving.draw("third", 5) != drawn.draw("third", 5)).any()


def test_panel_names() -> None:
    assert panel_names("mesh, robot-third") == ("mesh", "robot-third")
    with pytest.raises(InputError, match="Did you mean 'third'"):
        panel_names("thrid")
    with pytest.raises(InputError, match="at least one"):
        panel_names(" ,")


def test_render_command(tmp_path: Path, capsys) -> None:
    from acehand_core.data.recordings import RecordingOptions, open_recording

    hands = hands_file(tmp_path / "hands.npz", 6)
    frames_of = [np.full((96, 128, 3), 120, np.uint8)] * 6
    video, out = write_video(tmp_path / "v.mp4", frames_of), tmp_path / "out"
    run = Acehand(capsys, "render", hands, "--video", video, "--output", out)
    assert run.code == 0, run.err
    assert [Path(f).name for f in run.json["files"]] == ["strip.png", "render.mp4"]
    strip = cv2.imread(str(out / "strip.png"))
    assert strip.shape == (4 * 240 + 3 * 4, 6 * 320 + 5 * 4, 3)
    film = open_recording(out / "render.mp4", RecordingOptions())
    assert len(film) == 6 and film.width > film.height * 1.2
    again = Acehand(capsys, "render", hands, "--video", video, "--output", out)
    assert again.code == 4 and "--overwrite" in again.err
    wrong = Acehand(capsys, "render", video, "--output", tmp_path / "no")
    assert wrong.code == 2 and "HandMotion" in wrong.err and not (tmp_path / "no").exists()


def test_render_part_of_an_episode(tmp_path: Path, capsys) -> None:
    """Start and duration count within the episode, not within its video file."""
    hands = hands_file(tmp_path / "hands.npz", 6)
    grey = [np.full((96, 128, 3), 40 + 30 * i, np.uint8) for i in range(6)]
    video, out = write_video(tmp_path / "v.mp4", grey), tmp_path / "set"
    more = ("--tracker", hands, "--output", out, "--no-overlay")
    assert Run(capsys, video, *more).code == 0
    assert Run(capsys, video, *more, "--append").code == 0
    drawn = ("render", out, "--episode", 1, "--panels", "source", "--no-moving")
    part = ("--start", 0.1, "--duration", 0.07)
    run = Acehand(capsys, *drawn, *part, "--output", tmp_path / "part")
    assert run.code == 0, run.err
    strip = cv2.imread(str(tmp_path / "part" / "strip.png"))
    assert strip.shape[1] == 3 * 320 + 2 * 4
    corner = strip[-60, [160, 484, 808], 0].astype(int)
    assert np.abs(corner - [130, 160, 190]).max() < 12
    kept = out / "acehand" / "episode_000001" / "calibration.json"
    for robot, used in (("inspire", known_calibrations(kept, load_robot("inspire"))), ("leap", {})):
        found = rendering._calibrations(out, RenderSettings(out, episode=1), load_robot(robot))
        assert found.keys() == used.keys()
        assert all(np.array_equal(found[s].rotation, used[s].rotation) for s in used)
    late = Acehand(capsys, *drawn, "--start", 5, "--output", tmp_path / "late")
    assert late.code == 2 and "valid: 0 to 0.2" in late.err


def test_render_an_episode_with_depth(tmp_path: Path, capsys) -> None:
    """The episode's own video is used; a wall before the hands hides the robot, one behind not."""
    hands = hands_file(tmp_path / "hands.npz", 5)
    video = write_video(tmp_path / "v.mp4", [np.full((96, 128, 3), 120, np.uint8)] * 5)
    out = tmp_path / "set"
    job = Run(capsys, video, "--tracker", hands, "--output", out, "--no-overlay")
    assert job.code == 0, job.err
    shown = {}
    for name, millimetres in (("before", 100), ("behind", 5000)):
        folder = tmp_path / name
        folder.mkdir()
        for i in range(5):
            cv2.imwrite(str(folder / f"{i:04d}.png"), np.full((96, 128), millimetres, np.uint16))
        run = Acehand(capsys, "render", out, "--panels", "source,robot", "--no-moving",
                      "--depth", folder, "--output", tmp_path / f"r-{name}")  # fmt: skip
        assert run.code == 0, run.err
        strip = cv2.imread(str(tmp_path / f"r-{name}" / "strip.png")).astype(int)
        half = (strip.shape[0] - 4) // 2
        difference = np.abs(strip[:half] - strip[half + 4 :]).max(-1)
        difference[:20] = 0  # the time is written over the first row
        shown[name] = (difference > 60).mean()
    assert shown["before"] == 0 and shown["behind"] > 0.01
    (folder / "0004.png").unlink()
    run = Acehand(capsys, "render", out, "--depth", folder, "--output", tmp_path / "n")
    assert run.code == 2 and "4 depth pictures (.png) for 5 frames" in run.err
    run = Acehand(capsys, "render", out, "--episode", 3, "--output", tmp_path / "n")
    assert run.code == 2 and "no episode 3" in run.err
