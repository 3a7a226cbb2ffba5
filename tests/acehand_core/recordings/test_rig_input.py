"""Rigs and depth: other cameras of a recording, their poses, and depth pictures."""

import json
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
import yaml

from acehand_core.cli.flags import parse
from acehand_core.errors import AcehandError, CalibrationError
from acehand_core.geometry import frames
from acehand_core.pipeline.batch.folder import key_of
from acehand_core.pipeline.batch.manifest import read_manifest
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings import depth
from acehand_core.recordings.options import RecordingOptions, RigOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.recordings.rig import read_rig
from acehand_core.settings import identity_of
from helpers.camera_samples import Lens, file_storage, kalibr, ros_calibration
from helpers.example_video import example_frames
from helpers.video_fixtures import numbered_image, read_number, write_video

WIDTH, HEIGHT = 96, 64
LENS = {"width": WIDTH, "height": HEIGHT, "fx": 80.0, "fy": 82.0, "cx": 47.0, "cy": 32.0}
HAND = Path(os.environ.get("ACEHAND_SHARED", "none")) / "data/stereo_hand"


def pose(x: float, y: float = 0.0, z: float = 0.0, turn: Sequence[float] = (0, 0, 0)) -> Any:
    T = np.eye(4)
    T[:3, :3] = cv2.Rodrigues(np.array(turn, float))[0]
    T[:3, 3] = x, y, z
    return T


def our_rig(path: Path, *, unit: Any = None, **cameras: Any) -> Path:
    """Our YAML; a camera is its pose, or fields with one."""
    entries = {}
    for name, given in cameras.items():
        more = given if isinstance(given, dict) else {"T_rig_camera": given}
        T = np.asarray(more["T_rig_camera"]).tolist()
        entries[name] = {**LENS, **more, "T_rig_camera": T}
    said = {"cameras": entries} | ({"unit": unit} if unit else {})
    path.write_text(yaml.safe_dump(said))
    return path


def depth_folder(
    folder: Path, values: Sequence[float], names: Sequence[Any] = (), size: Any = (WIDTH, HEIGHT)
) -> Path:
    """16-bit pictures of one value each, with a hole in the corner."""
    folder.mkdir()
    for number, value in enumerate(values):
        image = np.full(size[::-1], value, np.uint16)
        image[0, 0] = 0
        cv2.imwrite(str(folder / f"{names[number] if names else number}.png"), image)
    return folder


def kinect_video(path: Path, count: int) -> Path:
    """Colour, and depth of 1000 + frame + row as an Azure Kinect stores it: 16 bits, big-endian."""
    with av.open(str(path), "w", options={"allow_raw_vfw": "1"}) as container:
        colour, depth = (container.add_stream(c, rate=30) for c in ("mjpeg", "rawvideo"))
        colour.width, colour.height, colour.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
        depth.width, depth.height, depth.pix_fmt = 34, 24, "gray16be"
        for number in range(count):
            image = av.VideoFrame.from_ndarray(numbered_image(number), format="rgb24")
            below = av.VideoFrame(34, 24, "gray16be")
            rows = np.zeros((24, below.planes[0].line_size // 2), ">u2")
            rows[:] = 1000 + number + np.arange(24)[:, None]
            below.planes[0].update(rows.tobytes())
            for stream, frame in ((colour, image), (depth, below)):
                frame.pts = number
                container.mux(stream.encode(frame))
        for stream in (colour, depth):
            container.mux(stream.encode(None))
    data = path.read_bytes()  # PyAV cannot write its code: the header says width, height, code
    at = data.index(struct.pack("<Ii", 40, 34))
    path.write_bytes(data[: at + 8] + struct.pack("<iHH4s", 24, 1, 16, b"b16g") + data[at + 20 :])
    return path


@pytest.fixture
def videos(tmp_path: Path) -> tuple[Path, Path]:
    return write_video(tmp_path / "a.mp4", 10), write_video(tmp_path / "b.mp4", 12)


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    return our_rig(tmp_path / "rig.yaml", left=pose(0.0), right=pose(0.1))


def test_views_and_depth_of_a_rig(videos, tmp_path):
    turned = pose(0.1, 0.02, 0.0, (0, 0.3, 0))
    rig = our_rig(tmp_path / "rig.yaml", first=pose(1.0, 0.5), second=pose(1.0, 0.5) @ turned)
    depth = depth_folder(tmp_path / "depth", [500 + i for i in range(10)])
    opened = open_recording(
        str(videos[0]),
        rig=str(rig),
        view=(f"second={videos[1]}",),
        view_offset=("second=0.1",),
        depth=depth,
        start_s=0.2,
        duration_s=0.1,
    )
    assert [read_number(image) for image in opened.frames.read(0, 3)] == [6, 7, 8]
    assert (opened.camera.fx, opened.camera.cy) == (80.0, 32.0)

    (view,) = opened.views
    assert view.name == "second" and view.synchronised
    np.testing.assert_allclose(view.T_camera_view, turned, atol=1e-12)
    assert view.recording.timestamps_ns[0] == 200_000_000  # 0.3 s by its own clock
    assert [read_number(image) for image in view.recording.frames.read(0, 3)] == [9, 10, 11]

    assert len(opened.depth.frames) == 10 and opened.depth.timestamps_ns[6] == 200_000_000
    image = opened.depth.frames.at(6)
    assert np.isnan(image[0, 0]) and (image[1:] == np.float32(0.506)).all()
    np.testing.assert_array_equal(opened.depth.T_camera_depth, np.eye(4))

    swapped = open_recording(videos[1], rig=f"{rig}:second", view=(f"first={videos[0]}",))
    np.testing.assert_allclose(swapped.views[0].T_camera_view, np.linalg.inv(turned), atol=1e-12)
    assert len(swapped.views[0].recording) == 10 and not swapped.views[0].synchronised


def test_cameras_of_a_rig_in_files_of_their_own(tmp_path):
    """ROS writes one file per camera; it is looked up next to the rig's."""
    (tmp_path / "rig").mkdir()
    lens = Lens(WIDTH, HEIGHT, 80.0, 82.0, 47.0, 32.0, (0.1, -0.2, 0.01, 0.02, 0.0))
    ros_calibration(tmp_path / "rig/right.yaml", lens, "plumb_bob")
    entry = {"file": "right.yaml:raw", "T_rig_camera": pose(0.1).tolist()}
    cameras = {"left": {**LENS, "T_rig_camera": pose(0.0).tolist()}, "right": entry}
    rig = tmp_path / "rig/rig.yaml"
    rig.write_text(yaml.safe_dump({"cameras": cameras}))
    camera, T_rig_camera = read_rig(rig, (1, 1)).cameras["right"]
    assert (camera.model, camera.width, camera.cx) == ("brown_conrady", WIDTH, 47.0)
    assert camera.distortion[:5] == (0.1, -0.2, 0.01, 0.02, 0.0)
    np.testing.assert_allclose(T_rig_camera, pose(0.1))
    entry["file"] = "none.yaml"
    rig.write_text(yaml.safe_dump({"cameras": cameras}))
    with pytest.raises(CalibrationError, match=r"rig\.yaml: .*rig/none\.yaml does not exist"):
        read_rig(rig, (1, 1))


@pytest.mark.parametrize("order", ["left-right", "right-left", "top-bottom"])
def test_both_halves_of_a_video(order, rig, tmp_path):
    """The left camera, which sees frame n as n and the right one as 100 + n, is the main one."""
    lefts, rights = ([numbered_image(n + k) for n in range(4)] for k in (0, 100))
    pairs = zip(*((rights, lefts) if order == "right-left" else (lefts, rights)), strict=True)
    axis = 0 if order == "top-bottom" else 1
    video = write_video(tmp_path / "pair.mp4", [np.concatenate(pair, axis) for pair in pairs])
    ways = ({"rig": rig}, {"baseline_m": 0.1, "intrinsics": (80.0, 82.0, 47.0, 32.0)})
    for options in ways:
        opened = open_recording(video, stereo=order, **options)
        (view,) = opened.views
        assert (view.name, opened.width, view.recording.height) == ("right", WIDTH, HEIGHT)
        assert [read_number(image) for image in opened.frames.read(1, 4)] == [1, 2, 3]
        assert read_number(view.recording.frames.at(2)) == 102
        assert opened.camera == view.recording.camera and opened.camera.cx == 47.0
        assert view.synchronised
        np.testing.assert_allclose(view.T_camera_view, pose(0.1))


def test_pictures_of_every_camera_are_undistorted_but_not_depth(videos, tmp_path):
    """A view is undistorted as a recording with its camera is; depth keeps the stored pixels."""
    bent = {**LENS, "model": "brown_conrady", "distortion": [0.2, 0.0, 0.0, 0.0]}
    rig = our_rig(
        tmp_path / "rig.yaml",
        a={**bent, "T_rig_camera": pose(0.0)},
        b={**bent, "T_rig_camera": pose(0.1)},
    )
    (camera := tmp_path / "camera.json").write_text(json.dumps(bent))
    depth = depth_folder(tmp_path / "depth", [500] * 10)
    opened = open_recording(videos[0], rig=rig, view=(f"b={videos[1]}",), depth=depth)
    alone = open_recording(videos[1], camera=camera)
    view = opened.views[0].recording
    assert view.camera == alone.camera == opened.camera and view.camera.model == "pinhole"
    np.testing.assert_array_equal(view.frames.at(3), alone.frames.at(3))
    assert opened.depth.camera.distortion[0] == 0.2 and opened.depth.camera.fx == 80.0


def test_opencv_stereo_calibration(tmp_path):
    """cv2.stereoCalibrate's file projects a point of the left camera where OpenCV does."""
    true = pose(-0.12, 0.01, 0.02, (0.02, -0.2, 0.05))
    K, size = np.array([[500.0, 0, 322], [0, 505, 239], [0, 0, 1]]), (640, 480)
    board = np.array([[x, y, 0] for y in range(5) for x in range(7)], np.float32) * 0.04
    random, seen = np.random.default_rng(3), ([], [])
    for _ in range(12):
        T = pose(*random.uniform((-0.2, -0.1, 0.6), (0.0, 0.0, 1.0)), random.uniform(-0.4, 0.4, 3))
        for points, now in zip(seen, (T, true @ T), strict=True):
            turn = cv2.Rodrigues(now[:3, :3])[0]
            points.append(cv2.projectPoints(board, turn, now[:3, 3], K, None)[0].astype(np.float32))
    flags, d = cv2.CALIB_FIX_INTRINSIC, np.zeros((1, 5))
    found = cv2.stereoCalibrate([board] * 12, *seen, K, d, K, d, size, flags=flags)
    M2, D2, R, T = found[3:7]
    for said, scale in ({}, 1), ({"unit": "mm"}, 1000):
        written = (*found[1:6], T * scale)
        content = dict(zip(("M1", "D1", "M2", "D2", "R", "T"), written, strict=True))
        file = file_storage(tmp_path / "stereo.yml", content | said)
        rig = read_rig(Path(f"{file}:1"), size)
        point = np.array([[0.1, -0.05, 0.9]])
        T_right_left = frames.inverse(rig.T_main("2"))
        pixels = rig.fitted("2", *size).project(frames.apply(T_right_left, point))
        theirs = cv2.projectPoints(point, R, T, M2, D2)[0][0]
        np.testing.assert_allclose(pixels, theirs, atol=1e-6)
        np.testing.assert_allclose(T_right_left, true, atol=1e-3)


@pytest.mark.parametrize(("main", "view", "away"), [("", "right", 0.1), ("", "2", 0.1),
                                                  (":right", "left", -0.1)])  # fmt: skip
def test_cameras_of_an_opencv_file_are_left_and_right_too(main, view, away, videos, tmp_path):
    """OpenCV's T is the origin of the left camera in the right one."""
    lens = [[100.0, 0, 47.5], [0, 100.0, 31.5], [0, 0, 1]]
    content = {"image_width": 96, "image_height": 64, "R": np.eye(3), "T": np.c_[[-0.1, 0, 0]]}
    content |= {key: np.array(lens) for key in ("M1", "M2")}
    file = file_storage(
        tmp_path / "sized.yml", content | {key: np.zeros((1, 5)) for key in ("D1", "D2")}
    )
    (seen,) = open_recording(videos[0], rig=f"{file}{main}", view=(f"{view}={videos[1]}",)).views
    assert seen.name == view
    np.testing.assert_allclose(seen.T_camera_view[:3, 3], [away, 0, 0], atol=1e-12)


def test_kalibr_camchain(tmp_path):
    """Of three cameras each has the one before in its own frame: x_cam2 = T21 T10 x_cam0."""
    lens = Lens(d=(0.1, 0.01, 0.0, 0.0))
    steps = {"cam1": pose(-0.11, 0, 0, (0, 0.1, 0)), "cam2": pose(-0.2, 0.1, 0, (0.2, 0, 0))}
    names = ("cam0", *steps)
    file = kalibr(tmp_path / "camchain.yaml", dict.fromkeys(names, (lens, "pinhole", "equi")))
    content = yaml.safe_load(file.read_text())
    for name, T in steps.items():
        content[name]["T_cn_cnm1"] = T.tolist()
    file.write_text(yaml.safe_dump(content))
    rig = read_rig(Path(f"{file}:cam0"), (1, 1))
    assert rig.fitted("cam2", 640, 360).fx == 306.25  # half of 612.5
    T_cam2_cam0 = steps["cam2"] @ steps["cam1"]
    np.testing.assert_allclose(np.linalg.inv(rig.T_main("cam2")), T_cam2_cam0, atol=1e-12)


@pytest.mark.skipif(not HAND.is_dir(), reason="the shared photographs are not there")
def test_two_photographed_views_of_a_hand(tmp_path):
    """The triangulated hand lies in both pictures; the file states the pose of 0 in 1, and mm."""
    said = json.loads((HAND / "calibration.json").read_text())
    keys, cameras = ("fx", "fy", "cx", "cy", "width", "height"), {}
    poses = (np.eye(4), np.linalg.inv(said["T_camera1_camera0"]))
    for number, T in enumerate(poses):
        entry = said["cameras"][number]
        lens = {"model": "brown_conrady", "distortion": entry["distortion_k1k2p1p2k3"]}
        lens |= {key: entry[key] for key in keys}
        cameras[f"camera{number}"] = {**lens, "T_rig_camera": T}
    metres = said["unit_mm_if_hand_is_190_mm"] / 1000
    rig = our_rig(tmp_path / "rig.yaml", unit=metres, **cameras)
    opened = open_recording(HAND / "camera0.mp4", rig=rig, view=(f"camera1={HAND}/camera1.mp4",))
    truth = dict(np.load(HAND / "truth.npz"))
    good = np.median(np.linalg.norm(truth["reprojection_px"], axis=-1), axis=-1) < 6
    joints = truth["joints"][good] * metres
    (view,) = opened.views
    assert opened.camera.contains(opened.camera.project(joints)).mean() > 0.95
    there = frames.apply(frames.inverse(view.T_camera_view), joints)
    assert view.recording.camera.contains(view.recording.camera.project(there)).mean() > 0.95
    moved = np.linalg.norm(np.array(said["T_camera1_camera0"])[:3, 3]) * metres
    np.testing.assert_allclose(np.linalg.norm(view.T_camera_view[:3, 3]), moved)


def test_depth_camera_of_a_kinect(tmp_path):
    """Depth of a second track, in a camera of its own whose distortion stays."""
    video = kinect_video(tmp_path / "kinect.mkv", 6)
    own = {"width": 34, "height": 24, "fx": 30.0, "fy": 30.0, "cx": 16.5, "cy": 11.5}
    own |= {"model": "brown_conrady", "distortion": [0.1, 0, 0, 0]}
    T = pose(-0.03, 0, 0, (0.1, 0, 0))
    rig = our_rig(tmp_path / "r.yaml", color=pose(0.0), depth={**own, "T_rig_camera": T})
    opened = open_recording(video, rig=rig, depth=video, start_s=0.1)
    assert read_number(opened.frames.at(0)) == 3
    depth = opened.depth
    stamps = [round(1000 * n / 30) * 10**6 for n in range(6)]
    assert depth.timestamps_ns.tolist() == stamps
    for index in (4, 1, 2):
        metres = (1000 + index + np.arange(24)) / 1000
        image = depth.frames.at(index)
        np.testing.assert_allclose(image, np.broadcast_to(metres[:, None], (24, 34)), rtol=1e-6)
    assert depth.camera.distortion[0] == 0.1 and depth.camera.width == 34
    np.testing.assert_allclose(depth.T_camera_depth, T)


def test_calibration_of_a_kinect(tmp_path):
    """Shares of the sensor: depth is the part of 1024 pixels at (192, 180), colour of 4:3 at 16:9.

    Pixel edges are at 0 there, so a principal point loses half a pixel.
    """
    bend = [3.1, 2.3, 0.13, 3.4, 3.3, 0.66, 0, 0, -5e-5, 8e-5]  # k1 to k6, 0, 0, p2, p1
    depth, colour = [0.51, 0.49, 0.4921, 0.4922, *bend], [0.497, 0.511, 0.47, 0.627, *bend]
    T_colour_depth = pose(-0.032, -0.002, 0.004, (0.1, 0, 0))
    moves = {"D0": np.eye(4), "PV0": T_colour_depth}
    entries = [
        {
            "Location": f"CALIBRATION_CameraLocation{name}",
            "Intrinsics": {"ModelParameters": values},
            "Rt": {
                "Rotation": moves[name][:3, :3].ravel().tolist(),
                "Translation": moves[name][:3, 3].tolist(),
            },
        }
        for name, values in (("D0", depth), ("PV0", colour))
    ]
    said = json.dumps({"CalibrationInformation": {"Cameras": entries}})
    video = tmp_path / "k.mkv"
    with av.open(str(video), "w") as container:
        stream = container.add_stream("ffv1", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.add_attachment("calibration.json", "application/json", said.encode())
        container.mux(stream.encode(av.VideoFrame(64, 48, "yuv420p")))
        container.mux(stream.encode(None))
    rig = read_rig(Path(f"{video}:color"), (1920, 1080))
    narrow, wide = rig.fitted("depth", 640, 576), rig.fitted("color", 1920, 1080)
    shown = (narrow.fx, narrow.fy, narrow.cx, narrow.cy)
    np.testing.assert_allclose(shown, (503.9104, 504.0128, 522.24 - 192.5, 501.76 - 180.5))
    shown = (wide.fx, wide.fy, wide.cx, wide.cy)
    np.testing.assert_allclose(shown, (902.4, 902.88, 954.24 - 0.5, 735.84 - 180.5))
    assert wide.distortion == narrow.distortion == (3.1, 2.3, 8e-5, -5e-5, 0.13, 3.4, 3.3, 0.66)
    np.testing.assert_allclose(rig.T_main("depth"), T_colour_depth, atol=1e-12)


def test_depth_named_by_time(videos, rig, tmp_path):
    """On the pictures' clock stamps count; on another one, as many pictures as frames do."""
    intrinsics = (80.0, 82.0, 47.0, 32.0)
    names = ["0.050000", "0.150000", "0.250000"]
    stamped = depth_folder(tmp_path / "stamped", [700, 800, 900], names)
    depth = open_recording(videos[0], intrinsics=intrinsics, depth=stamped).depth
    assert depth.timestamps_ns.tolist() == [50_000_000, 150_000_000, 250_000_000]
    late = depth_folder(tmp_path / "late", [700] * 10, [10**18 + n for n in range(10)])
    depth = open_recording(videos[0], intrinsics=intrinsics, depth=late, depth_unit=0.0001).depth
    assert depth.timestamps_ns[3] == 100_000_000
    np.testing.assert_allclose(depth.frames.at(3)[1, 1], 0.07, rtol=1e-6)


def test_pictures_that_are_missing(videos, rig, tmp_path):
    """Numbers in names are of frames, from 0 or up to 10, or those of the pictures themselves."""
    lens = {"intrinsics": (80.0, 82.0, 47.0, 32.0)}
    times = write_pictures(tmp_path / "frames", {n: f"rgb_{n:06d}" for n in (3, 4, 6, 7, 8, 9)})
    cases = (
        (videos[0], range(10), (0, 1, 2, 4, 5, 6, 7, 8, 9), (0, 1, 2, 4, 5, 6, 7, 8, 9)),
        (videos[0], range(10), range(11), range(10)),
        (videos[0], range(1, 11), (1, 2, 4, 5, 6, 7, 8, 9, 10), (0, 1, 3, 4, 5, 6, 7, 8, 9)),
        (times, (3, 4, 6, 7, 8, 9), (3, 4, 5, 6, 7, 9), (0, 1, 2, 3, 5)),
    )
    for case, (path, own, numbers, rows) in enumerate(cases):
        names = [f"d_{number:06d}" for number in numbers]
        folder = depth_folder(tmp_path / f"depth{case}", [500 + n for n in numbers], names)
        opened = open_recording(path, depth=folder, **lens)
        stamps = opened.timestamps_ns[list(rows)]
        assert opened.depth.timestamps_ns.tolist() == stamps.tolist()
        for index, frame in enumerate(rows):
            expected = np.float32((500 + list(own)[frame]) / 1000)
            assert opened.depth.frames.at(index)[1, 1] == expected
        said = f"{len(rows)} pictures, 0 damaged, for {len(own)} frames"
        assert len(rows) == len(own) or any(said in note for note in opened.notes)

    pictures = write_pictures(tmp_path / "view", {n: n for n in range(10) if n != 4})
    video = write_video(tmp_path / "slow.mp4", 10, fps=10)
    (view,) = (opened := open_recording(video, rig=rig, view=(f"right={pictures}",))).views
    assert (view.recording.timestamps_ns // 100_000_000).tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert read_number(view.recording.frames.at(4)) == 5
    assert any("right: 9 pictures for 10 frames" in note for note in opened.notes)


def write_pictures(folder: Path, names: dict[int, Any]) -> Path:
    folder.mkdir()
    for number, name in names.items():
        cv2.imwrite(str(folder / f"{name}.png"), numbered_image(number))
    return folder


def test_damaged_depth_has_no_readings(videos, tmp_path, caplog):
    """Cut off pictures are counted when opened, others are named when read."""
    folder = depth_folder(tmp_path / "depth", [500] * 10)
    (folder / "0.png").write_bytes(b"")
    (folder / "3.png").write_bytes((folder / "3.png").read_bytes()[:-20])
    data = bytearray((folder / "5.png").read_bytes())
    data[len(data) // 2] ^= 255
    (folder / "5.png").write_bytes(data)
    cv2.imwrite(str(folder / "7.png"), np.full((HEIGHT, WIDTH + 1), 500, np.uint16))
    lens = {"intrinsics": (80.0, 82.0, 47.0, 32.0), "depth": folder}
    opened = open_recording(videos[0], **lens)
    assert any("10 pictures, 2 damaged, for 10 frames" in note for note in opened.notes)
    depth = [opened.depth.frames.at(index) for index in range(10)]
    assert {image.shape for image in depth} == {(HEIGHT, WIDTH)}
    assert [n for n, image in enumerate(depth) if np.isnan(image).all()] == [0, 3, 5, 7]
    assert "5.png: damaged" in caplog.text
    for number in range(10):
        (folder / f"{number}.png").write_bytes(b"")
    with pytest.raises(AcehandError, match="damaged"):
        open_recording(videos[0], **lens)


def test_depth_in_exr(videos, tmp_path):
    """Metres of a float channel, with OpenEXR if it is installed."""
    (folder := tmp_path / "exr").mkdir()
    options = {"intrinsics": (80.0, 82.0, 47.0, 32.0), "depth": folder}
    (folder / "0.exr").write_bytes(b"")
    try:
        import OpenEXR
    except ImportError:
        with pytest.raises(AcehandError, match="pip install OpenEXR"):
            open_recording(write_video(tmp_path / "one.mp4", 1), **options)
        pytest.skip("OpenEXR is not installed")
    for number in range(10):
        channels = {"Z": np.full((HEIGHT, WIDTH), 0.5 + number / 10, np.float32)}
        header = {"type": OpenEXR.scanlineimage}
        OpenEXR.File(header, channels).write(str(folder / f"{number}.exr"))
    opened = open_recording(videos[0], **options)
    assert (opened.depth.frames.at(7) == np.float32(1.2)).all()


def test_hash_covers_all_files(videos, rig, tmp_path):
    """Registry.sha256 is that of the recording; another view, its name or depth changes it."""
    depth = depth_folder(tmp_path / "depth", [500] * 10)
    both, hashes = {"rig": rig, "view": (f"right={videos[1]}",)}, set()

    def add(**given: Any) -> None:
        options = RecordingOptions(rigs=RigOptions(**given))
        sha256 = Registry().sha256(videos[0], options)
        assert Registry().open(videos[0], options).sha256 == sha256
        hashes.add(sha256)

    add()
    add(**both)
    add(**both, depth=depth)
    (depth / "0.png").write_bytes((depth / "1.png").read_bytes()[:-1] + b"x")
    add(**both, depth=depth)
    write_video(videos[1], 8)
    add(**both)
    assert len(hashes) == 5


def test_a_manifest_gives_a_rig(videos, rig, tmp_path):
    """Files are relative to the table; another file of a view makes the result out of date."""
    table = tmp_path / "table.csv"
    row = "recording,rig,view,view_offset\na.mp4,rig.yaml,right=b.mp4,right=0.25\n"
    table.write_text(row)
    (entry,) = read_manifest(table, JobSettings(output=tmp_path / "out"))
    rigs = entry.settings.reading.rigs
    assert rigs.views == {"right": str(videos[1])} and rigs.offsets_s == {"right": 0.25}
    said = identity_of(entry.settings)
    assert said["rig"].startswith("file ") and said["view-offset"] == ["right=0.25"]
    assert "rig" not in identity_of(JobSettings(output=tmp_path / "out"))
    before = key_of(entry.path, entry.settings)
    write_video(videos[1], 8)
    assert key_of(entry.path, entry.settings) != before
    words = [f"a.mp4 --rig {rig}:right --view left=b.mp4 --view x=c.mp4 --depth-unit m --depth d"]
    flags = parse("test", words[0].split()[1:], RecordingOptions)[0].rigs
    assert flags.views == {"left": "b.mp4", "x": "c.mp4"} and flags.depth_unit == 1.0
    assert flags.rig == Path(f"{rig}:right")


#: What is wrong, the options (of a.mp4), and words of the message.
Case = tuple[str, Callable[[Path], dict[str, Any]], str]


def _rig(folder: Path, **cameras: Any) -> Path:
    return our_rig(folder / "wrong.yaml", **cameras)


def _view(folder: Path, rig: Path, name: str = "b", **more: Any) -> dict[str, Any]:
    return {"rig": rig, "view": (f"{name}={folder}/b.mp4",), **more}


def _pair(folder: Path, **more: Any) -> dict[str, Any]:
    half = {"width": WIDTH // 2, "cx": 23.5}
    a, b = ({**half, "T_rig_camera": pose(x)} for x in (0.0, 0.1))
    return {"rig": _rig(folder, a=a, b=b), "stereo": "left-right", **more}


def _depth(folder: Path, values: Sequence[float] = (500,) * 10, **more: Any) -> dict[str, Any]:
    lens = {"intrinsics": (80.0, 82.0, 47.0, 32.0), **more.pop("options", {})}
    return {"depth": depth_folder(folder / "wrong", values, **more), **lens}


MIRROR = np.diag([1.0, -1.0, 1.0, 1.0])
CASES: list[Case] = [
    ("no rig", lambda f: {"view": (f"b={f}/b.mp4",)}, "`view` needs `rig`"),
    ("no name", lambda f: _view(f, f / "rig.yaml", "") | {}, "give NAME=VALUE"),
    ("rig alone", lambda f: {"rig": _rig(f, a=pose(0))}, "else `camera`"),
    ("two cameras", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), camera_preset="phone"),
     "camera by `rig`"),
    ("unknown camera", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), "c"), "valid: a, b"),
    ("unknown main", lambda f: _view(f, Path(f"{_rig(f, a=pose(0), b=pose(1))}:c")), "valid: a, b"),
    ("millimetres", lambda f: _view(f, _rig(f, a=pose(0), b=pose(60))), "unit: mm"),
    ("one place", lambda f: _view(f, _rig(f, a=pose(0), b=pose(0))), "0 m from 'a'; valid: 0.001"),
    ("mirrored pose", lambda f: _view(f, _rig(f, a=pose(0), b=MIRROR)), "right-handed"),
    ("scaled pose", lambda f: _view(f, _rig(f, a=pose(0), b=2 * pose(1))), "no rigid transform"),
    ("unknown unit", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1), unit="ft")), "mm, cm, m"),
    ("no poses", lambda f: _view(f, kalibr(f / "k.yaml", dict.fromkeys(
        ("cam0", "cam1"), (Lens(d=(0, 0, 0, 0)), "pinhole", "equi"))), "cam1"), "T_cn_cnm1"),
    ("other shape", lambda f: _view(f, _rig(f, a=pose(0), b={**LENS, "width": 64,
        "T_rig_camera": pose(1)})), "camera 'b': The camera was calibrated at 64 x 64"),
    ("itself", lambda f: {"rig": _rig(f, a=pose(0), b=pose(1)), "view": (f"b={f}/a.mp4",)},
     "is the input"),
    ("its camera", lambda f: _view(f, Path(f"{_rig(f, a=pose(0), b=pose(1))}:b")), "its camera"),
    ("another time", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), view_offset=("b=100",)),
     "no time in common"),
    ("offset of none", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), view_offset=("c=1",)),
     "names no `view`"),
    ("no offset", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), view_offset=("b=x",)), "NAME="),
    ("endless offset", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), view_offset=("b=inf",)),
     "below a day"),
    ("missing file", lambda f: _view(f / "none", _rig(f, a=pose(0), b=pose(1))), "no such file"),
    ("mirrored", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1)), mirrored=True), "`mirrored`"),
    ("hands", lambda f: _view(f, _rig(f, a=pose(0), b=pose(1))), ""),
    ("exchanged", lambda f: _pair(f, rig=Path(f"{_pair(f)['rig']}:b")), "0.1 m left of 'b'"),
    ("exchanged halves", lambda f: _pair(f, baseline_m=-0.1), "`baseline=-0.1`; valid"),
    ("baseline and rig", lambda f: _pair(f, baseline_m=0.1), "`stereo` without `rig`"),
    ("baseline of 0", lambda f: {"stereo": "left-right", "baseline_m": 0.0}, "valid: 0.001 to 5"),
    ("baseline in mm", lambda f: {"stereo": "left-right", "baseline_m": 63.0}, "valid: 0.001 to 5"),
    ("baseline alone", lambda f: {"stereo": "left-right", "baseline_m": 0.1}, "by `camera`"),
    ("pair alone", lambda f: {"stereo": "left-right"}, "`rig` or `baseline`"),
    ("three cameras", lambda f: {**_pair(f), "rig": _rig(f, **{name: {
        "width": WIDTH // 2, "T_rig_camera": pose(x)} for x, name in enumerate("abc")})},
     "needs left and right"),
    ("whole pictures", lambda f: {"stereo": "left-right", "rig": _rig(f, a=pose(0), b=pose(1))},
     "the video is 48 x 64"),
    ("depth alone", lambda f: _depth(f, options={"intrinsics": None, "camera_metadata": False}),
     "`depth` needs the camera"),
    ("depth size", lambda f: _depth(f, size=(48, 32)), "camera named depth"),
    ("few pictures", lambda f: _depth(f, (500, 500)), "2 pictures, the input 10 frames"),
    ("numbers from 0 or 1", lambda f: _depth(f, (500,) * 9, names=range(1, 10)), "9 pictures, the"),
    ("no pictures", lambda f: _depth(f, ()), "give a folder of"),
    ("no track", lambda f: {"depth": f / "b.mp4", "intrinsics": (80.0, 82.0, 47.0, 32.0)},
     "track of 16-bit"),
    ("metres as mm", lambda f: _depth(f, (2,) * 10), "0.002 m; valid: 0.05 to 50"),
    ("mm as metres", lambda f: _depth(f, options={"depth_unit": 1.0}), "500 m; valid"),
    ("empty", lambda f: _depth(f, (0,) * 10), "median reading is nan"),
    ("depth unit", lambda f: {"depth_unit": 1.0}, "`depth_unit` needs `depth`"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "options", "message"), CASES, ids=[case[0] for case in CASES])
def test_what_does_not_fit_is_refused(wrong, options, message, videos, tmp_path):
    path = videos[0]
    if wrong == "hands":
        path, message = tmp_path / "hands.npz", "hands"
        np.savez(path, joints=np.random.default_rng(1).normal(size=(10, 2, 21, 3)))
    with pytest.raises(AcehandError) as caught:
        open_recording(path, **options(tmp_path))
    assert message in str(caught.value)


def test_turned_videos_are_refused(rig, tmp_path):
    turned = write_video(tmp_path / "t.mp4", 4, rotation=180)
    other = write_video(tmp_path / "b.mp4", 4)
    for video, view in (turned, other), (other, turned):
        with pytest.raises(AcehandError, match="stored upright"):
            open_recording(video, rig=rig, view=(f"right={view}",))


def test_two_pictures_without_the_option_are_noticed(rig, tmp_path):
    """By what the file says, and a photographed scene seen twice, 10 px apart; halves are not."""

    def noticed(path: Path, **options: Any) -> bool:
        recording = open_recording(path, **options)
        named = any("`stereo`" in note for note in recording.notes)
        assert named == ("single picture" in recording.assumed)
        return named

    images = example_frames(3)
    pairs = [np.concatenate([image[:, 10:], image[:, :-10]], 1) for image in images]
    pair = write_video(tmp_path / "pair.mp4", pairs)
    assert noticed(pair) and not noticed(pair, stereo="left-right", baseline_m=0.1, intrinsics=(
        600.0, 600.0, 314.5, 239.5))  # fmt: skip
    assert not noticed(write_video(tmp_path / "one.mp4", images))
    assert not noticed(write_video(tmp_path / "wide.mp4", [image[:160] for image in images]))
    packed = {"x264-params": "frame-packing=4"}  # top and bottom
    assert noticed(write_video(tmp_path / "packed.mp4", 3, options=packed))


def test_an_odd_video_has_no_halves(rig, tmp_path):
    (folder := tmp_path / "odd").mkdir()
    cv2.imwrite(str(folder / "0.png"), np.zeros((64, 97, 3), np.uint8))
    with pytest.raises(AcehandError, match="97 pixels cannot be halved"):
        open_recording(folder, rig=rig, stereo="left-right")


def test_bags_have_views_of_their_own(rig, tmp_path):
    (bag := tmp_path / "bag").mkdir()
    (bag / "metadata.yaml").write_text("")
    with pytest.raises((AcehandError, CalibrationError)):
        open_recording(bag, rig=rig, view=("right=b.mp4",))


def test_a_depth_format_is_one_entry(videos, tmp_path, monkeypatch):
    """CONTRIBUTING.md: a stack of arrays, of which nothing in the package knows."""

    def stack(path, place, scale, whole):
        if place.suffix != ".stack":
            return None
        counts = np.load(place.open("rb"))
        return depth.DepthFrames(len(counts), counts.__getitem__, scale), None

    with (tmp_path / "d.stack").open("wb") as file:
        np.save(
            file,
            np.full((10, HEIGHT, WIDTH), 500, np.uint16)
            + np.arange(10, dtype=np.uint16)[:, None, None],
        )
    lens = {"intrinsics": (80.0, 82.0, 47.0, 32.0), "depth": tmp_path / "d.stack"}
    with pytest.raises(AcehandError, match=r"d\.stack is not a video"):
        open_recording(videos[0], **lens)
    ours = depth.DepthFormat("a stack of arrays", stack)
    monkeypatch.setattr(depth, "FORMATS", (ours, *depth.FORMATS))
    opened = open_recording(videos[0], **lens).depth
    np.testing.assert_allclose(opened.frames.at(7), 0.507, rtol=1e-6)
    assert opened.timestamps_ns[6] == 200_000_000
