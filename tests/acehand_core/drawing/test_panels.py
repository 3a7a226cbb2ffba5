"""Panels and strips: layers cover each other by depth, cameras are where they should be."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.ace.labelled.clips.schema import ClipInfo, StoreInfo
from acehand_core.ace.labelled.clips.store import ClipWriter
from acehand_core.ace.labelled.segments import segment_place
from acehand_core.drawing import render_inputs
from acehand_core.drawing.overlay import FINGER_COLOURS
from acehand_core.drawing.panels import (
    Layer,
    Panels,
    PanelView,
    mesh_layer,
    outside_view,
    stack,
)
from acehand_core.drawing.render_inputs import RenderSettings
from acehand_core.drawing.robot_renderer import RobotRenderer
from acehand_core.errors import InputError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.hands_file import write_hand_motion
from helpers.commands import Acehand, Run, hands_file
from helpers.fake_motion import random_motion
from helpers.retarget_samples import motion_of, moving_hands
from helpers.video_fixtures import write_video
from retarget.robots.robot import load_robot
from retarget.solve.calibration_file import known_calibrations

SIZE = (64, 48)
BLACK = np.zeros((48, 64, 3), np.uint8)


def layer(depth: float, colour: tuple[int, int, int], columns: slice, alpha: int = 255) -> Layer:
    rgba = np.zeros((48, 64, 4), np.uint8)
    away = np.full((48, 64), np.inf, np.float32)
    rgba[:, columns], away[:, columns] = (*colour, alpha), depth
    return Layer(rgba, away)


def test_the_nearer_layer_covers_the_farther_whatever_the_order():
    red = layer(0.5, (255, 0, 0), np.s_[:40])
    green = layer(0.4, (0, 255, 0), np.s_[20:])
    for layers in ([red, green], [green, red]):
        out = stack(BLACK, layers)
        assert out[0, 10].tolist() == [255, 0, 0] and out[0, 30].tolist() == [0, 255, 0]
    behind = layer(0.6, (0, 255, 0), np.s_[20:], alpha=128)
    assert stack(BLACK, [behind, red])[0, 30].tolist() == [255, 0, 0]
    assert stack(BLACK, [behind])[0, 50].tolist() == [0, 128, 0]
    assert (stack(BLACK + 7, []) == 7).all()


def test_a_scene_hides_what_lies_behind_it():
    scene = np.zeros((48, 64), np.float32)
    scene[:, :10], scene[:, 10:20], scene[:, 20:30] = 0.3, 0.9, 0.505
    out = stack(BLACK, [layer(0.5, (255, 0, 0), np.s_[:]).hidden_by(scene)])
    assert [int(out[0, x, 0]) for x in (5, 15, 25, 50)] == [0, 255, 255, 255]


def cube(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float) - 0.5
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [f for a, b, c, d in quads for f in ((a, b, c), (a, c, d))]
    return 0.1 * corners + place, np.array(faces)


def test_depth_of_a_mesh_from_any_view():
    camera = Camera.nominal(320, 240)
    vertices, faces = cube(np.array([0.0, 0.0, 0.6]))
    for pose in (
        np.eye(4),
        frames.rigid(rotations.exp(np.array([0, np.pi, 0])), np.array([0, 0, 1.2])),
    ):
        seen = mesh_layer(PanelView(camera, pose), vertices, faces, (10, 200, 30))
        middle = seen.depth[120, 160]
        assert middle == pytest.approx(0.55, abs=0.01), "the near face, 5 cm before the centre"
        inside = np.isfinite(seen.depth)
        half = camera.fx * 0.05 / 0.55
        assert 2 * half - 1 <= np.sqrt(inside.sum()) <= 2 * half + 2  # edges are painted too
        assert (seen.rgba[..., 3] > 0).sum() == inside.sum()


def test_robot_depth_is_metric():
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
            picture, depth = renderer.render(camera, {"right": joints}, {"right": pose})
            assert (np.isfinite(depth) == (picture[..., 3] > 0)).all()
            nearest.append(float(depth.min()))
    assert nearest[1] - nearest[0] == pytest.approx(0.3, abs=0.003) and 0.3 < nearest[0] < 0.75


def test_the_outside_view_sees_all_and_stands_apart():
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


def test_panels_under_and_beside_the_source_camera(panels):
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
        Panels(motion_of(moving_hands(3), placed=False), 320, 240).draw("mesh", 0, image)


def test_head_view_follows_a_moving_camera(panels):
    """With camera poses the hands are in the world, and the head view is what the camera saw."""
    motion, drawn = panels
    turn = rotations.exp(np.linspace([0, 0, 0], [0.2, 0.5, 0], 6))
    poses = frames.rigid(turn, np.linspace([0, 0, 0], [0.3, 0, 0], 6))
    moving = Panels(replace(motion, T_world_camera=poses), 320, 240)
    difference = np.abs(moving.draw("head", 5).astype(int) - drawn.draw("head", 5)).max(-1)
    assert (difference > 40).mean() < 0.002
    assert (moving.draw("third", 5) != drawn.draw("third", 5)).any()


def test_render_command(tmp_path, capsys):
    from acehand_core.recordings.registry import open_recording

    hands, out = hands_file(tmp_path / "hands.npz", 6), tmp_path / "out"
    video = write_video(tmp_path / "v.mp4", [np.full((96, 128, 3), 120, np.uint8)] * 6)
    words = (hands, "--video", video, "--output", out)
    run = Acehand(capsys, "render", *words)
    assert run.code == 0, run.err
    assert [Path(f).name for f in run.json["files"]] == ["strip.png", "render.mp4"]
    strip = cv2.imread(str(out / "strip.png"))
    assert strip.shape == (4 * 240 + 3 * 4, 6 * 320 + 5 * 4, 3)
    film = open_recording(out / "render.mp4")
    assert len(film) == 6 and film.width > film.height * 1.2
    for more, code, message in (
        (words, 4, "--overwrite"),
        ((video, "--output", tmp_path / "no"), 2, "HandMotion"),
        ((hands, "--panels", "thrid", "--output", tmp_path / "no"), 2, "'third'"),
        ((hands, "--panels", " ,", "--output", tmp_path / "no"), 2, "source"),
    ):
        run = Acehand(capsys, "render", *more)
        assert run.code == code and message in run.err and not (tmp_path / "no").exists()


@pytest.mark.slow
def test_render_part_of_an_episode(tmp_path, capsys):
    """Start and duration count within the episode, not within its video file."""
    hands, out = hands_file(tmp_path / "hands.npz", 6), tmp_path / "set"
    grey = [np.full((96, 128, 3), 40 + 30 * i, np.uint8) for i in range(6)]
    more = ("--tracker", hands, "--output", out, "--no-overlay")
    video = write_video(tmp_path / "v.mp4", grey)
    assert Run(capsys, video, *more).code == 0
    assert Run(capsys, video, *more, "--append", "--task", "again").code == 0
    drawn = ("render", out, "--episode", 1, "--panels", "source", "--no-moving")
    part = ("--start", 0.1, "--duration", 0.07, "--output", tmp_path / "part")
    assert Acehand(capsys, *drawn, *part).code == 0
    strip = cv2.imread(str(tmp_path / "part" / "strip.png"))
    assert strip.shape[1] == 3 * 320 + 2 * 4
    corner = strip[-60, [160, 484, 808], 0].astype(int)
    assert np.abs(corner - [130, 160, 190]).max() < 12
    late = Acehand(capsys, *drawn, "--start", 5, "--output", tmp_path / "late")
    assert late.code == 2 and "valid: 0 to 0.2" in late.err

    kept = out / "acehand" / "episode_000001" / "calibration.json"
    for robot, used in (("inspire", known_calibrations(kept, load_robot("inspire"))), ("leap", {})):
        settings = RenderSettings(output=out, episode=1)
        found = render_inputs.calibrations_of(out, settings, load_robot(robot))
        assert found.keys() == used.keys()
        assert all(np.array_equal(found[s].rotation, used[s].rotation) for s in used)


@pytest.mark.slow
def test_a_dataset_is_drawn_with_its_own_robot(tmp_path, capsys):
    hands, out = hands_file(tmp_path / "hands.npz", 4), tmp_path / "set"
    assert Run(capsys, hands, "--robot", "allegro", "--output", out).code == 0

    def drawn(name, *more):
        words = ("render", out, "--panels", "robot", "--no-moving", "--output", tmp_path / name)
        run = Acehand(capsys, *words, *more)
        return cv2.imread(str(tmp_path / name / "strip.png")), run

    own, _ = drawn("own")
    assert np.array_equal(own, drawn("same", "--robot", "allegro")[0])
    other, run = drawn("other", "--robot", "inspire", "-v")
    assert (own != other).any(-1).mean() > 0.005
    assert "inspire" in run.err and "allegro" in run.err
    # A robot of one's own is not found by its name alone.
    info = json.loads((out / "meta" / "info.json").read_text())
    (out / "meta" / "info.json").write_text(json.dumps({**info, "robot_type": "myhand"}))
    _, run = drawn("none")
    assert run.code == 2 and "'myhand'" in run.messages and "robot.yaml" in run.messages


def test_joints_relative_to_the_wrist_are_drawn_from_outside(tmp_path, capsys):
    hands = hands_file(tmp_path / "hands.npz", 4, frame="wrist")

    def colours(picture):
        """How many pixels have each finger's colour: none is outside the picture."""
        return [(np.abs(picture - c).max(-1) < 40).sum() for c in FINGER_COLOURS]

    run = Acehand(capsys, "render", hands, "--no-moving", "--output", tmp_path / "r")
    assert run.code == 0, run.err
    strip = cv2.imread(str(tmp_path / "r" / "strip.png"))[..., ::-1].astype(int)
    human, robot = np.split(strip[: strip.shape[0] // 2 * 2], 2)
    assert min(colours(human)) > 4 * 10
    assert (robot.min(-1) > 150).mean() > 0.01  # the white hands
    run = Acehand(capsys, "render", hands, "--panels", "mesh", "--output", tmp_path / "m")
    assert run.code == 2 and "valid: third, robot-third" in run.messages
    assert Acehand(capsys, "view", hands, "--output", tmp_path / "v").code == 0
    sheet = cv2.imread(str(tmp_path / "v" / "contact_sheet.png"))[..., ::-1].astype(int)
    assert min(colours(sheet)) > 4 * 10


@pytest.mark.slow
def test_render_an_episode_with_depth(tmp_path, capsys):
    """The episode's own video is used; a wall before the hands hides the robot, one behind not."""
    hands, out = hands_file(tmp_path / "hands.npz", 5), tmp_path / "set"
    video = write_video(tmp_path / "v.mp4", [np.full((96, 128, 3), 120, np.uint8)] * 5)
    job = Run(capsys, video, "--tracker", hands, "--output", out, "--no-overlay")
    assert job.code == 0, job.err
    shown, wall = {}, tmp_path / "wall"
    wall.mkdir()
    for millimetres in (100, 5000):
        for i in range(5):
            cv2.imwrite(str(wall / f"{i}.png"), np.full((96, 128), millimetres, np.uint16))
        run = Acehand(capsys, "render", out, "--panels", "source,robot", "--no-moving",
                      "--scene-depth", wall, "--output", tmp_path / f"{millimetres}")  # fmt: skip
        assert run.code == 0, run.err
        strip = cv2.imread(str(tmp_path / f"{millimetres}" / "strip.png")).astype(int)
        half = (strip.shape[0] - 4) // 2
        difference = np.abs(strip[:half] - strip[half + 4 :]).max(-1)
        shown[millimetres] = (difference[20:] > 60).mean()  # the time is written over the first row
    assert shown[100] == 0 and shown[5000] > 0.01
    (wall / "4.png").unlink()
    for more, message in (
        (("--scene-depth", wall), "4 depth"),
        (("--depth", wall), "--scene-depth"),
        (("--episode", 3), "no episode 3"),
    ):
        run = Acehand(capsys, "render", out, *more, "--output", tmp_path / "n")
        assert run.code == 2 and message in run.err


def columns_of(path: Path, count: int, panels: int) -> list[list[np.ndarray]]:
    """Return the pictures of a strip of ``count`` columns: of each moment and panel one row."""
    strip = cv2.imread(str(path))[30:]
    height = (len(strip) + 4) // round((len(strip) + 4) / (240 + 4)) - 4
    assert strip.shape[1] == count * 320 + (count - 1) * 4
    rows = [strip[top : top + height] for top in range(0, len(strip), height + 4)]
    assert len(rows) % panels == 0
    return [[row[:, 324 * k : 324 * k + 320] for k in range(count)] for row in rows]


def test_inputs_stand_side_by_side(tmp_path, capsys):
    one, same = (hands_file(tmp_path / f"{name}.npz", 6) for name in ("one", "same"))
    aside = moving_hands(6) + np.array([0.1, 0, 0])
    other = hands_file(tmp_path / "aside.npz", 6, joints=aside)
    grey = [np.full((96, 128, 3), 60 + 20 * i, np.uint8) for i in range(6)]
    video, out = write_video(tmp_path / "v.mp4", grey), tmp_path / "out"
    run = Acehand(capsys, "render", one, same, other, "--video", video, "--output", out,
                  "--label", "ours", "--label", "ours", "--label", "theirs")  # fmt: skip
    assert run.code == 0, run.err
    rows = columns_of(out / "strip.png", 3, 2)
    assert len(rows) == 2 * 4, "four moments of two panels"
    for number, (first, second, third) in enumerate(rows):
        body = np.s_[24:] if number % 2 == 0 else np.s_[:]  # the time is in the first picture
        assert (first[body] == second[body]).all() and (first[body] != third[body]).any()
    for first, _, third in rows[1::2]:
        coloured = [np.argwhere(np.ptp(shot, axis=-1) > 60).mean(0) for shot in (first, third)]
        shift = np.linalg.norm(coloured[1] - coloured[0])
        assert shift > 15, "from outside, hands that are elsewhere are seen elsewhere"
    corners = np.array([row[0][-8, 8].astype(int) for row in rows[::2]])
    assert np.abs(corners - [[60], [100], [120], [160]]).max() < 12, "one time axis"

    strip = cv2.imread(str(out / "strip.png"))
    bands = [strip[:30, 324 * k : 324 * k + 320] for k in range(3)]
    assert (bands[0] == bands[1]).all() and (bands[0] != bands[2]).any()
    lit = np.flatnonzero((bands[2] > 120).any((0, 2)))
    assert abs(lit.min() - (319 - lit.max())) <= 4, "a label is in the middle of its column"
    film = cv2.VideoCapture(str(out / "render.mp4"))
    size = (film.get(cv2.CAP_PROP_FRAME_WIDTH), film.get(cv2.CAP_PROP_FRAME_HEIGHT))
    assert size == (3 * 86, 30 + 2 * 64) and film.get(cv2.CAP_PROP_FRAME_COUNT) == 6


def test_what_does_not_belong_side_by_side_is_refused(tmp_path, capsys):
    one, folder = hands_file(tmp_path / "one.npz", 6), tmp_path / "p"
    short = hands_file(tmp_path / "short.npz", 5)
    slow = hands_file(tmp_path / "slow.npz", 6, fps=15)
    made, poses = motion_of(moving_hands(6)), np.tile(np.eye(4), (6, 1, 1))
    tables = {}
    for name, tracker, sha256, pose in (
        ("a", "mediapipe", "1" * 64, None), ("b", "mediapipe", "2" * 64, None),
        ("c", "ace", None, poses), ("d", "ace", None, poses + 0.1 * np.eye(4, k=3)),
    ):  # fmt: skip
        origin = replace(made.provenance, source=f"{name}.mp4", tracker=tracker,
                         source_sha256=sha256)  # fmt: skip
        tables[name] = folder / f"{name}.parquet"
        write_hand_motion(replace(made, provenance=origin, T_world_camera=pose), tables[name])
    for inputs, message in (
        ((one, short), "5 frames"),
        ((one, slow), "frame 1 is 33 ms"),
        ((tables["a"], tables["b"]), "b.mp4"),
        ((tables["c"], tables["d"]), "--camera-poses"),
        ((one, one, "--label", "x"), "1 labels for 2 inputs"),
        ((one, one, "--label", "x", "--label", "ü"), "'ü'"),
        ((folder, one), "--segment a"),
        ((folder, one, "--segment", "e"), "valid: a, b, c, d"),
        ((one, "--segment", "a"), "--segment"),
        ((tmp_path / "none", one), "HandMotion"),
    ):
        run = Acehand(capsys, "render", *inputs, "--no-moving", "--output", tmp_path / "no")
        assert run.code == 2 and message in run.err, run.err
    (folder / "sub").mkdir()
    write_hand_motion(made, folder / "sub" / "a.parquet")
    run = Acehand(capsys, "render", folder, "--segment", "a", "--output", tmp_path / "no")
    assert run.code == 2 and "twice" in run.err and not (tmp_path / "no").exists()


def test_the_path_of_the_camera_that_one_input_knows_counts_for_all(tmp_path):
    made = motion_of(moving_hands(6))
    turn = rotations.exp(np.linspace([0, 0, 0], [0, 1.0, 0], 6))
    poses = frames.rigid(turn, np.linspace([0, 0, 0], [1.0, 0, 0], 6))
    known, unknown = tmp_path / "known.parquet", tmp_path / "unknown.parquet"
    write_hand_motion(replace(made, T_world_camera=poses), known)
    write_hand_motion(made, unknown)
    video = write_video(tmp_path / "v.mp4", [np.full((96, 128, 3), 60, np.uint8)] * 6)
    for settings in (RenderSettings(output=tmp_path), RenderSettings(output=tmp_path, video=video)):
        _, columns = render_inputs.open_columns([unknown, known], settings, lambda *_: None)
        assert [c.label for c in columns] == ["unknown", "known"]
        for column in columns:
            np.testing.assert_allclose(column.motion.T_world_camera, poses)


def test_predictions_over_the_frames_of_their_segment(tmp_path, capsys):
    """Kept predictions of an evaluation: the store gives pictures, camera and the true hands."""
    stamps, camera = np.arange(9) * 33_333_333, Camera("pinhole", 32, 24, 30.0, 30.0, 15.5, 11.5)
    hands = replace(random_motion(seed=3, frames=9, camera=camera), timestamps_ns=stamps)
    images = np.random.default_rng(1).integers(0, 255, (9, 24, 32, 3)).astype(np.uint8)
    info = ClipInfo("s01__box__0", "arctic", "train", "video", 9, 30.0, 32, 24, camera, "acehand",
                    left_shapedirs_fixed=hands.left_shapedirs_fixed)  # fmt: skip
    writer = ClipWriter(tmp_path / "store", StoreInfo("arctic", "train", "test", "none", {}))
    writer.write(info, hands, images, quality="lossless")
    assert segment_place("arctic--s01__box--0--000004", "arctic") == ("s01__box--0", 4)
    name = "arctic--s01__box__0--000004"
    guess = hands.at(np.arange(4, 9), stamps[:5], hands.fps)
    write_hand_motion(guess, tmp_path / "kept" / "sub" / f"{name}.parquet")
    write_hand_motion(guess, tmp_path / "kept" / "other.parquet")

    def drawn(*more):
        return Acehand(capsys, "render", tmp_path / "kept", "--clips", tmp_path / "store",
                       "--panels", "source,mesh", "--output", tmp_path / "out", "--overwrite",
                       *more)  # fmt: skip

    run = drawn("--segment", name)
    assert run.code == 0, run.err
    rows = columns_of(tmp_path / "out" / "strip.png", 2, 2)
    for row, frame in zip(rows[::2], (4, 5, 7, 8), strict=True):
        wanted = cv2.resize(images[frame][..., ::-1], (320, 240), interpolation=cv2.INTER_AREA)
        assert (row[1] == wanted).all()
    # The guess is the truth itself, so its column is the same but for the time in the corner.
    assert all((row[0][24:] == row[1][24:]).all() for row in rows)
    late = "arctic--s01__box__0--000005"
    write_hand_motion(guess, tmp_path / "kept" / f"{late}.parquet")
    for more, message in (
        (("--segment", "other"), "segment 'other'"),
        (("--segment", name, "--video", "v.mp4"), "--video"),
        (("--segment", name, "--start", "1"), "--clips"),
        (("--segment", late), f"{late}.parquet"),
    ):
        run = drawn(*more)
        assert run.code == 2 and message in run.err, run.err
