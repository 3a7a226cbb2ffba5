"""Camera files of others project points as their makers do; what they leave open is asked for."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.camera_fields import CameraHints
from acehand_core.recordings.camera_files import load_camera, read_camera
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import open_recording
from helpers import camera_samples as samples
from helpers.bag_samples import SampleBag, pictures
from helpers.camera_samples import Lens
from helpers.video_fixtures import write_video

TANGENTIAL = ("radial_distortion_1", "radial_distortion_2", "tangential_distortion_1",
              "tangential_distortion_2", "radial_distortion_3")  # fmt: skip
RADIAL = tuple(f"radial_distortion_{number}" for number in (1, 2, 3, 4))


def a_lens(rng: np.random.Generator, coefficients: int, size: float = 0.03) -> Lens:
    focal = rng.uniform(500, 900)
    return Lens(
        width=int(rng.integers(600, 2000)),
        height=int(rng.integers(400, 1200)),
        fx=focal,
        fy=focal * rng.uniform(0.98, 1.02),
        cx=rng.uniform(300, 800),
        cy=rng.uniform(200, 500),
        d=tuple(rng.uniform(-size, size, coefficients).round(9).tolist()),
    )


def points(rng: np.random.Generator, degrees: float) -> np.ndarray:
    """Points up to an angle from the axis."""
    angle, turn = np.radians(rng.uniform(0, degrees, 60)), rng.uniform(0, 2 * np.pi, 60)
    ray = [np.sin(angle) * np.cos(turn), np.sin(angle) * np.sin(turn), np.cos(angle)]
    return np.stack(ray, axis=-1) * rng.uniform(0.3, 2, (60, 1))


def by_opencv(lens: Lens, at: np.ndarray) -> np.ndarray:
    return cv2.projectPoints(at, np.zeros(3), np.zeros(3), lens.K, np.array(lens.d))[0][:, 0]


def by_opencv_fisheye(lens: Lens, at: np.ndarray) -> np.ndarray:
    d = np.array(lens.d)
    return cv2.fisheye.projectPoints(at[:, None], np.zeros(3), np.zeros(3), lens.K, d)[0][:, 0]


# Each format with what its maker's library makes of the same numbers.


def headed(path: Path) -> Path:
    """Put the line before a camchain with which OpenCV reads it, too."""
    path.write_text("%YAML:1.0 # need to specify the file type at the top!\n\n" + path.read_text())
    return path


BROWN: dict[str, tuple[int, Callable[[Path, Lens], Path]]] = {
    "ros plumb_bob": (5, lambda f, lens: samples.ros_calibration(f / "o.yaml", lens, "plumb_bob")),
    "ros without a model": (5, lambda f, lens: samples.ros_calibration(f / "old.yaml", lens, None)),
    "ros rational_polynomial": (
        8,
        lambda f, lens: samples.ros_calibration(f / "ost.yaml", lens, "rational_polynomial"),
    ),
    "kalibr radtan": (
        4,
        lambda f, lens: samples.kalibr(f / "c.yaml", {"cam0": (lens, "pinhole", "radtan")}),
    ),
    "kalibr in OpenVINS": (4, lambda f, lens: headed(
        samples.kalibr(f / "c.yaml", {"cam0": (lens, "pinhole", "radtan")}))),
    "euroc": (4, lambda f, lens: samples.euroc(f / "sensor.yaml", lens)),
    "opencv yaml": (5, lambda f, lens: samples.opencv(f / "out_camera_data.yml", lens)),
    "opencv xml": (8, lambda f, lens: samples.opencv(f / "out_camera_data.xml", lens)),
    "opencv json": (4, lambda f, lens: samples.opencv(f / "out_camera_data.json", lens)),
    "opencv interactive-calibration": (
        5,
        lambda f, lens: samples.opencv(
            f / "defaultConfig.xml", lens, image_width=None, image_height=None, fisheye_model=None,
            camera_matrix=None, distortion_coefficients=None, cameraMatrix=lens.K,
            cameraResolution=(lens.width, lens.height), dist_coeffs=np.array([lens.d]),
        ),
    ),
    "gyroflow opencv_standard": (
        8,
        lambda f, lens: samples.gyroflow(f / "p.json", lens, distortion_model="opencv_standard"),
    ),
    "OpenImuCameraCalibrator": (
        5,
        lambda f, lens: samples.theia(f / "t.json", lens, "PINHOLE_RADIAL_TANGENTIAL", TANGENTIAL),
    ),
    "orb-slam": (5, lambda f, lens: samples.orb_slam(f / "o.yaml", {"Camera": lens}, "PinHole")),
    "orb-slam3": (4, lambda f, lens: samples.orb_slam(f / "o.yaml", {"Camera1": lens}, "PinHole")),
}  # fmt: skip

FISHEYE: dict[str, Callable[[Path, Lens], Path]] = {
    "ros": lambda f, lens: samples.ros_calibration(f / "ost.yaml", lens, "equidistant"),
    "kalibr": lambda f, lens: samples.kalibr(f / "c.yaml", {"cam0": (lens, "pinhole", "equi")}),
    "opencv": lambda f, lens: samples.opencv(f / "fisheye.yml", lens, fisheye_model=1),
    "gyroflow": lambda f, lens: samples.gyroflow(f / "p.json", lens),
    "orb-slam3": lambda f, lens: samples.orb_slam(f / "o", {"Camera1": lens}, "KannalaBrandt8"),
    "umi": lambda f, lens: samples.theia(f / "gopro_intrinsics_2_7k.json", lens, "FISHEYE", RADIAL),
}


def raw_of(path: Path) -> Camera:
    """The camera of the raw picture, where a file has another for the rectified one."""
    try:
        return load_camera(path)
    except CalibrationError as error:
        assert "say which" in str(error)
        return load_camera(f"{path}:raw")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", BROWN)
def test_brown_conrady(tmp_path: Path, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, write = BROWN[kind]
    lens = a_lens(rng, count)
    at = points(rng, 30)
    camera = raw_of(write(tmp_path, lens))
    assert (camera.model, camera.width, camera.height) == ("brown_conrady", lens.width, lens.height)
    np.testing.assert_allclose(camera.project(at), by_opencv(lens, at), atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", FISHEYE)
def test_kannala_brandt(tmp_path: Path, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lens = a_lens(rng, 4, size=0.01)
    at = points(rng, 75)
    camera = raw_of(FISHEYE[kind](tmp_path, lens))
    assert camera.model == "kannala_brandt" and (camera.width, camera.height) == (
        lens.width,
        lens.height,
    )
    np.testing.assert_allclose(camera.project(at), by_opencv_fisheye(lens, at), atol=1e-5)


@pytest.mark.parametrize(
    ("model", "order"),
    [
        ("SIMPLE_PINHOLE", "f"), ("PINHOLE", ""), ("SIMPLE_RADIAL", "f 0"), ("RADIAL", "f 0 1"),
        ("OPENCV", "0 1 2 3"), ("FULL_OPENCV", "0 1 2 3 4 5 6 7"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("write", [samples.colmap_text, samples.colmap_binary])
def test_colmap(tmp_path: Path, write: Callable, model: str, order: str) -> None:
    """``order``: which of OpenCV's coefficients the model has; f: one focal length."""
    rng = np.random.default_rng(len(model))
    lens = a_lens(rng, 8)
    used = [int(word) for word in order.split() if word != "f"]
    lens = replace(lens, d=tuple(k if i in used else 0.0 for i, k in enumerate(lens.d)))
    lens = replace(lens, fy=lens.fx) if "f" in order else lens
    focal = [lens.fx] if "f" in order else [lens.fx, lens.fy]
    values = [*focal, lens.cx, lens.cy, *(lens.d[i] for i in used)]
    path = write(tmp_path / "cameras", [(3, model, lens.width, lens.height, values)])
    at = points(rng, 30)
    # OpenCV's pixel centres are at whole numbers, COLMAP's are half a pixel further.
    np.testing.assert_allclose(load_camera(path).project(at), by_opencv(lens, at) - 0.5, atol=1e-8)


@pytest.mark.parametrize(
    ("model", "count"),
    [("OPENCV_FISHEYE", 4), ("FISHEYE", 0), ("RADIAL_FISHEYE", 2), ("SIMPLE_RADIAL_FISHEYE", 1),
     ("SIMPLE_FISHEYE", 0)],
)  # fmt: skip
def test_colmap_fisheyes(tmp_path: Path, model: str, count: int) -> None:
    rng = np.random.default_rng(count)
    lens = a_lens(rng, count, size=0.01)
    lens = replace(lens, fy=lens.fx, d=(*lens.d, *(0.0,) * (4 - count)))
    focal = [lens.fx, lens.fy] if model in ("OPENCV_FISHEYE", "FISHEYE") else [lens.fx]
    values = [*focal, lens.cx, lens.cy, *lens.d[:count]]
    path = samples.colmap_binary(tmp_path / "c.bin", [(1, model, lens.width, lens.height, values)])
    at = points(rng, 75)
    camera = load_camera(path)
    assert camera.model == "kannala_brandt"
    np.testing.assert_allclose(camera.project(at), by_opencv_fisheye(lens, at) - 0.5, atol=1e-8)


def test_colmaps_half_pixel_by_hand(tmp_path: Path) -> None:
    """The middle of 4 x 2 pixels is (2, 1) there; between our pixels 1 and 2 it is (1.5, 0.5)."""
    path = samples.colmap_text(tmp_path / "cameras.txt", [(1, "PINHOLE", 4, 2, [8, 9, 2, 1])])
    assert load_camera(path) == Camera("pinhole", 4, 2, 8.0, 9.0, 1.5, 0.5)


def by_aria(parameters: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Fisheye624 as Project Aria's documentation has it, one point after the other."""
    f, cu, cv, k0, k1, k2, k3, k4, k5, p0, p1, s0, s1, s2, s3 = parameters
    pixels = []
    for x, y, z in at:
        r = np.hypot(x, y)
        theta = np.arctan2(r, z)
        powers = (k * theta ** (2 * i + 3) for i, k in enumerate((k0, k1, k2, k3, k4, k5)))
        r_theta = theta + sum(powers)
        u, v = r_theta * x / r, r_theta * y / r
        m = u * u + v * v
        u_t = u + (2 * u * u + m) * p0 + 2 * u * v * p1 + s0 * m + s1 * m * m
        v_t = v + (2 * v * v + m) * p1 + 2 * u * v * p0 + s2 * m + s3 * m * m
        pixels.append((f * u_t + cu, f * v_t + cv))
    return np.array(pixels)


def aria(rng: np.random.Generator) -> np.ndarray:
    f, u, v = rng.uniform(590, 620), rng.uniform(690, 720), rng.uniform(690, 720)
    return np.array([f, u, v, *rng.uniform(-0.01, 0.01, 6), *rng.uniform(-1e-3, 1e-3, 6)])


def test_aria(tmp_path: Path) -> None:
    """Lines of MPS's online calibration; the one in the middle counts, and that is said."""
    rng = np.random.default_rng(5)
    rgb = [aria(rng) for _ in range(3)]
    slam = np.array([242.1, 320.1, 241.9, *np.zeros(12)])
    lines = [
        samples.aria_line(
            {"camera-slam-left": (slam, (640, 480)), "camera-rgb": (one, (1408, 1408))}, sizes=True
        )
        for one in rgb
    ]
    path = tmp_path / "online_calibration.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    found = read_camera(f"{path}:camera-rgb")
    at = points(rng, 60)
    assert found.camera.model == "fisheye624" and found.camera.width == 1408
    np.testing.assert_allclose(found.camera.project(at), by_aria(rgb[1], at), atol=1e-8)
    assert "3 calibrations over time" in found.note
    left = load_camera(f"{path}:camera-slam-left")
    assert (left.width, left.height, left.fx) == (640, 480, 242.1)

    size = rgb[0][1] * 2 + 1
    path.write_text(json.dumps(samples.aria_line({"camera-rgb": (rgb[0], (0, 0))}, sizes=False)))
    with pytest.raises(CalibrationError, match=f"image size is missing.*about {size:.0f} x"):
        load_camera(path)
    assert read_camera(path, CameraHints(size=(1408, 1408))).camera.width == 1408


def test_colmaps_name_of_arias_lens(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    parameters = aria(rng)
    values = [parameters[0], *parameters]
    model = "RAD_TAN_THIN_PRISM_FISHEYE"
    path = samples.colmap_text(tmp_path / "cameras.txt", [(1, model, 1408, 1408, values)])
    at = points(rng, 60)
    np.testing.assert_allclose(
        load_camera(path).project(at), by_aria(parameters, at) - 0.5, atol=1e-8
    )


def test_a_zed_is_told_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "SN17471.conf"
    path.write_text("[LEFT_CAM_HD]\r\nfx=699.78\r\nfy=699.78\r\ncx=660.19\r\ncy=365.36\r\n")
    with pytest.raises(CalibrationError, match="is of a ZED") as error:
        load_camera(path)
    text = str(error.value).split("as JSON: ")[1].rstrip(".").replace("..", "700")
    for name, number in (("k1", -0.17), ("k2", 0.03), ("p1", 0), ("p2", 0), ("k3", 0)):
        text = text.replace(name, str(number))
    path.write_text(text)
    assert load_camera(path).distortion[:2] == (-0.17, 0.03)


def test_orb_slams_cameras(tmp_path: Path) -> None:
    """The size is said once for both; their coefficients are their own."""
    lenses = {"Camera1": Lens(d=(-0.1, 0.02, 1e-3, 0.0)), "Camera2": Lens(fx=700.0)}
    path = samples.orb_slam(tmp_path / "s.yaml", lenses, "PinHole")
    size = (lenses["Camera2"].width, lenses["Camera2"].height)
    camera = load_camera(f"{path}:Camera2")
    assert (camera.model, camera.fx, camera.width, camera.height) == ("pinhole", 700.0, *size)
    assert load_camera(f"{path}:Camera1").distortion[:3] == (-0.1, 0.02, 1e-3)
    path = samples.orb_slam(tmp_path / "s.yaml", {"Camera": Lens()}, "KannalaBrand8")
    with pytest.raises(CalibrationError, match="Did you mean 'KannalaBrandt8'"):
        load_camera(path)


@pytest.mark.parametrize("name", ["plain.json", "plain.yaml"])
def test_numbers_without_a_model_are_of_a_pinhole(tmp_path: Path, name: str) -> None:
    values = {"fx": 600, "fy": 610, "cx": 319.5, "cy": 239.5, "width": 640, "height": 480}
    path = tmp_path / name
    path.write_text(json.dumps(values) if "json" in name else yaml.safe_dump(values))
    assert load_camera(path) == Camera("pinhole", 640, 480, 600.0, 610.0, 319.5, 239.5)
    # Coefficients that no model is named for are no pinhole's.
    path.write_text(json.dumps(values | {"distortion": [0.1, 0, 0, 0]}))
    with pytest.raises(CalibrationError, match="pinhole camera has 0 distortion"):
        load_camera(path)
    path.write_text(json.dumps(values | {"k1": 0.1}))
    with pytest.raises(CalibrationError, match="unknown camera field 'k1'"):
        load_camera(path)


def test_cameras_of_hot3d_are_named(tmp_path: Path) -> None:
    """cameras.json of a clip: https://huggingface.co/datasets/bop-benchmark/hot3d."""
    entry = {"T_world_from_camera": {}, "calibration": {"label": "camera-rgb"}}
    (tmp_path / "cameras.json").write_text(json.dumps({"214-1": entry}))
    with pytest.raises(CalibrationError, match="acehand data convert hot3d"):
        load_camera(tmp_path / "cameras.json")


# ROS.


def camera_info(tmp_path: Path, **fields: object) -> str:
    """A real CameraInfo, as rosbags makes it, in the words of ``ros2 topic echo``."""
    with SampleBag(tmp_path / "bag") as bag:
        bag.image(pictures(1)[0], 10**9)
        message = bag.camera_info(10**9, **fields)
    return samples.echoed(message) + "\n---\n"


def test_an_echoed_camera_info(tmp_path: Path) -> None:
    """What the topic says, once or for a while, is what a bag with these messages says."""
    d = (-0.31, 0.09, 1e-3, -2e-3, 0.01)
    text = camera_info(tmp_path, model="plumb_bob", d=d)
    of_bag = open_recording(tmp_path / "bag").processing["undistorted"]
    path = tmp_path / "camera_info.yaml"
    path.write_text(text * 3)
    assert load_camera(f"{path}:raw").to_json() == of_bag
    path.write_text(text + text.replace("-0.31", "-0.32"))
    with pytest.raises(CalibrationError, match="message 2 is of another camera"):
        load_camera(f"{path}:raw")


@pytest.mark.parametrize("model", ["plumb_bob", "equidistant"])
def test_raw_or_rectified_is_asked(tmp_path: Path, model: str) -> None:
    lens = Lens(d=(-0.3, 0.1, 1e-3, 2e-3, 0.0)[: 5 if model == "plumb_bob" else 4])
    p = [500.0, 0, 640.5, 0, 0, 510.0, 360.25, 0, 0, 0, 1, 0]
    path = samples.ros_calibration(tmp_path / "ost.yaml", lens, model, p)
    with pytest.raises(
        CalibrationError, match=r"raw, rectified; say which.*ost\.yaml:raw.*image_r"
    ):
        load_camera(path)
    assert load_camera(f"{path}:raw").fx == lens.fx
    rectified = load_camera(f"{path}:rectified")
    assert rectified == Camera("pinhole", 1280, 720, 500.0, 510.0, 640.5, 360.25)
    # Without distortion and with the same matrix there is nothing to ask.
    path = samples.ros_calibration(tmp_path / "o.yaml", Lens(d=(0.0,) * 5), "plumb_bob")
    assert load_camera(path).model == "pinhole"


# What is left open.


def test_several_cameras_are_asked_for(tmp_path: Path) -> None:
    """One that cannot be read does not stand in the way of the others."""
    one, two = Lens(d=(-0.1, 0.02, 0.0, 0.0)), Lens(fx=700.0, d=(0.0, 0.0, 0.0, 0.0))
    cameras = {"cam0": (one, "pinhole", "radtan"), "cam1": (two, "omni", "radtan")}
    path = samples.kalibr(tmp_path / "camchain.yaml", cameras)
    with pytest.raises(CalibrationError, match=r"2 cameras, cam0, cam1; say which.*yaml:cam0"):
        load_camera(path)
    assert load_camera(f"{path}:cam0").fx == one.fx
    with pytest.raises(CalibrationError, match="no camera 'cam2'; valid: cam0, cam1"):
        load_camera(f"{path}:cam2")
    with pytest.raises(CalibrationError, match=r"yaml:cam1.*'omni' is the unified.*pinhole-equi"):
        load_camera(f"{path}:cam1")

    values = {"M1": one.K, "D1": np.zeros((1, 5)), "M2": two.K, "D2": np.full((1, 5), 0.01)}
    path = samples.file_storage(tmp_path / "intrinsics.yml", values | {"image_size": (1280, 720)})
    with pytest.raises(CalibrationError, match="2 cameras, 1, 2; say which"):
        load_camera(path)
    assert load_camera(f"{path}:2").distortion[:5] == (0.01,) * 5
    names = {"left_camera_matrix": one.K, "left_dist_coeffs": np.zeros((5, 1)),
             "right_camera_matrix": two.K, "right_dist_coeffs": np.zeros((5, 1))}  # fmt: skip
    path = samples.file_storage(tmp_path / "s.xml", names | {"image_size": (1280, 720)})
    assert load_camera(f"{path}:right").fx == 700.0

    entries = [(n, "PINHOLE", 640, 480, [500, 500, 320, 240]) for n in (1, 7)]
    path = samples.colmap_binary(tmp_path / "cameras.bin", entries)
    with pytest.raises(CalibrationError, match="2 cameras, 1, 7; say which"):
        load_camera(path)
    assert load_camera(f"{path}:7").cx == 319.5


def test_a_name_with_a_colon_is_a_file_first(tmp_path: Path) -> None:
    path = tmp_path / "a:b.json"
    path.write_text(json.dumps(Camera.nominal(64, 48).to_json()))
    assert load_camera(path).width == 64 and load_camera(f"{path}:camera").width == 64


def test_four_coefficients_without_a_model_are_asked_for(tmp_path: Path) -> None:
    lens = Lens(d=(-0.02, 0.01, 0.002, -0.001))
    path = samples.opencv(tmp_path / "c.yml", lens, fisheye_model=None)
    with pytest.raises(CalibrationError, match=r"brown_conrady.*kannala_brandt.*convert .*--model"):
        load_camera(path)
    at = points(np.random.default_rng(1), 40)
    for model, truth in (("brown_conrady", by_opencv), ("kannala_brandt", by_opencv_fisheye)):
        camera = read_camera(path, CameraHints(model=model)).camera
        assert camera.model == model
        np.testing.assert_allclose(camera.project(at), truth(lens, at), atol=1e-5)


def test_what_the_file_says_is_not_contradicted(tmp_path: Path) -> None:
    path = samples.opencv(tmp_path / "c.yml", Lens(d=(0.1, 0.0, 0.0, 0.0, 0.0)))
    with pytest.raises(CalibrationError, match=r"--size 640x480, but the file says 1280 x 720"):
        read_camera(path, CameraHints(size=(640, 480)))
    with pytest.raises(CalibrationError, match="--model pinhole, but by the file it is brown_con"):
        read_camera(path, CameraHints(model="pinhole"))
    assert read_camera(path, CameraHints((1280, 720), "brown_conrady")).camera.width == 1280


def test_missing_size_and_distortion(tmp_path: Path) -> None:
    lens = Lens(d=(0.1, 0.0, 0.0, 0.0, 0.0))
    path = samples.opencv(tmp_path / "c.yml", lens, image_width=None, image_height=None)
    with pytest.raises(CalibrationError, match=r"size is missing.*1268 x 738.*--size WxH"):
        load_camera(path)
    assert read_camera(path, CameraHints(size=(1280, 720))).camera.height == 720
    path = samples.opencv(tmp_path / "d.yml", lens, distortion_coefficients=None)
    with pytest.raises(CalibrationError, match=r"no distortion coefficients.*there is: calibr"):
        load_camera(path)
    assert read_camera(path, CameraHints(model="pinhole")).camera.model == "pinhole"


def test_lists_of_ones_own(tmp_path: Path) -> None:
    """JSON and YAML that people write with OpenCV's names; YAML reads 1e-5 as text."""
    values = {"camera_matrix": Lens().K.tolist(), "dist_coeff": [[-0.3, 0.1, 1e-3, 2e-3, 0.0]],
              "image_size": [1280, 720], "model": "HERO11"}  # fmt: skip
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values))
    camera = load_camera(path)
    assert camera.distortion == (-0.3, 0.1, 1e-3, 2e-3, 0.0, 0.0, 0.0, 0.0)
    path = tmp_path / "c.yaml"
    path.write_text(
        "K: [[612.5, 0, 633.75], [0, 615.25, 368.5], [0, 0, 1]]\n"
        "D: [-0.3, 0.1, 1e-3, 2e-3, 0.0]\nwidth: 1280\nheight: 720\n"
    )
    assert load_camera(path) == camera


# What is wrong.


def bad_files(folder: Path) -> dict[str, tuple[Path | str, str]]:
    """Files that are wrong, by kind, each with what the message must say."""
    five, four = Lens(d=(0.1, 0, 0, 0, 0)), Lens(d=(0.1, 0.0, 0.0, 0.0))
    text = folder / "text"
    text.mkdir()

    def edited(name: str, path: Path, old: str, new: str) -> Path:
        before = path.read_text()
        assert old in before, (name, old)
        (text / name).write_text(before.replace(old, new))
        return text / name

    ros = samples.ros_calibration(folder / "ost.yaml", five, "plumb_bob")
    chain = samples.kalibr(folder / "chain.yaml", {"cam0": (four, "pinhole", "radtan")})
    fisheye = Lens(d=(0.1, 0.0, 0.0, 0.0))
    profile = samples.gyroflow(folder / "gyro.json", fisheye)
    umi = samples.theia(folder / "umi.json", fisheye, "FISHEYE", RADIAL)
    rgb = samples.aria_line({"camera-rgb": (np.ones(15), (1408, 1408))}, sizes=True)
    aria_file = folder / "aria.json"
    aria_file.write_text(json.dumps(rgb))
    colmap = samples.colmap_text(folder / "cameras.txt", [(1, "PINHOLE", 64, 48, [50, 50, 32, 24])])
    binary = samples.colmap_binary(folder / "c.bin", [(1, "PINHOLE", 64, 48, [50, 50, 32, 24])])
    (folder / "cut.bin").write_bytes(binary.read_bytes()[:-9])
    (folder / "long.bin").write_bytes(binary.read_bytes() + b"\0")
    (folder / "video.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(range(256)))
    yml = samples.opencv(folder / "opencv.yml", five)
    raw = f"{folder}/ost.yaml:raw"

    return {
        "ros fields": (edited("a.yaml", ros, "distortion_coefficients", "dist"),
                       "'distortion_coefficients' is missing; there is: image_width"),
        "ros numbers": (edited("b.yaml", ros, "612.5", "f"), "'camera_matrix: data' is.*numbers"),
        "ros count": (edited("c.yaml", ros, ", 1.000000000]", "]"), "'k' has 8 numbers; 9"),
        "ros model": (f"{edited('d.yaml', ros, 'plumb_bob', 'plum_bob')}:raw",
                      "distortion model 'plum_bob'.*Did you mean 'plumb_bob'"),
        "ros uncalibrated": (samples.ros_calibration(
            folder / "zero.yaml", replace(five, fx=0.0, fy=0.0, cx=0.0, cy=0.0), "plumb_bob"),
            "not calibrated"),
        "ros other": (raw.replace(":raw", ":rect"), "no camera 'rect'.*'rectified'"),
        "kalibr fields": (edited("e.yaml", chain, "intrinsics", "intr"),
                          "Kalibr camchain.*'intrinsics' is missing; there is: cam_overlaps"),
        "kalibr ds": (samples.kalibr(folder / "ds.yaml", {"cam0": (four, "ds", "none")}),
                      "'ds' is the double sphere camera model.*valid: pinhole"),
        "kalibr eucm": (samples.kalibr(folder / "eu.yaml", {"cam0": (four, "eucm", "none")}),
                        "'eucm' is the extended unified"),
        "kalibr fov": (samples.kalibr(folder / "fov.yaml", {
            "cam0": (Lens(d=(0.9,)), "pinhole", "fov")}), "'fov' is not read; valid: equi"),
        "kalibr count": (samples.kalibr(folder / "k5.yaml", {"cam0": (five, "pinhole", "radtan")}),
                         "'distortion_coeffs' has 5 numbers; 4"),
        "kalibr size": (edited("f.yaml", chain, "  resolution: [1280, 720]\n", ""),
                        "image size is missing.*--size"),
        "opencv prism": (samples.opencv(folder / "prism.yml", Lens(d=(0.1,) * 12)),
                         "thin prism or tilt coefficients.*valid: up to 8"),
        "opencv skew": (edited("g.yml", yml, "612.5, 0.", "612.5, 3."), "skew of 3 px"),
        "opencv matrix": (samples.opencv(folder / "t.yml", five, camera_matrix=five.K.T),
                          "'camera_matrix' is no camera matrix"),
        "opencv two": (samples.opencv(folder / "two.yml", five, K=five.K + 1),
                       "'camera_matrix' and 'K' differ"),
        "opencv shape": (edited("h.yml", yml, "rows: 3", "rows: 2"), "2 x 3 that holds 9"),
        "opencv syntax": (edited("i.yml", yml, "data: [", "data: {"), "no.* OpenCV FileStorage"),
        "opencv huge": (edited("j.yml", yml, "rows: 3", "rows: 300000000"), "300000000 x 3 that"),
        "opencv size": (edited("k.yml", yml, "1280", "1280.5"), "give whole pixels"),
        "colmap model": (edited("l.txt", colmap, "PINHOLE", "FOV"), "COLMAP's FOV is not read"),
        "colmap count": (edited("m.txt", colmap, " 24.0", ""), "4 parameters.*got 3"),
        "colmap line": (edited("n.txt", colmap, "50.0", "f"), "line 4 of COLMAP"),
        "colmap cut": (folder / "cut.bin", "cut off after 0 of 1"),
        "colmap long": (folder / "long.bin", "1 bytes"),
        "a video": (folder / "video.mp4", "neither text nor COLMAP"),
        "aria model": (edited("o.json", aria_file, '"FisheyeRadTanThinPrism"', '"KB3"'),
                       "projection 'KB3' is not read"),
        "aria count": (edited("p.json", aria_file, "[1.0, 1.0, ", "[1.0, "),
                       "'Params' has 14 numbers; 15"),
        "aria sizes": (edited("q.json", aria_file, "[[1408, 1408]]", "[]"), "'ImageSizes' must"),
        "gyroflow model": (samples.gyroflow(folder / "r.json", fisheye, distortion_model="poly5"),
                           "'poly5' is not read; valid: opencv_fisheye"),
        "gyroflow stretch": (samples.gyroflow(
            folder / "s.json", fisheye, input_horizontal_stretch=1.21), "anamorphic"),
        "gyroflow superview": (samples.gyroflow(
            folder / "u.json", fisheye, digital_lens="gopro_superview"), "gopro_superview.*Wide"),
        "gyroflow fields": (edited("v.json", profile, "distortion_coeffs", "coeffs"),
                            "'distortion_coeffs' is missing; there is: RMS_error"),
        "umi type": (edited("w.json", umi, "FISHEYE", "DOUBLE_SPHERE"), "'DOUBLE_SPHERE' is not"),
        "umi fields": (edited("x.json", umi, "principal_pt_x", "px"), "'principal_pt_x' is mis"),
        "two formats": (edited("y.json", umi, '"fps"', '"fx"'),
                        "could be acehand camera file or OpenImuCameraCalibrator"),
        "no format": (edited("z.json", umi, "intrinsic", "extrinsic"),
                      "no known camera file; it has final_reproj_error.*Kalibr camchain"),
        "yaml": (edited("aa.yaml", chain, "cam0:", "cam0: ["), "is not YAML"),
        "own fields": (edited("ab.json", umi, '"intrinsic_type"', '"model"'),
                       "unknown camera field 'final_reproj_error'"),
    }  # fmt: skip


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    for kind, (path, message) in bad_files(tmp_path).items():
        with pytest.raises(CalibrationError, match=message) as error:
            load_camera(path)
        assert str(path).removesuffix(":rect") in str(error.value), kind
        assert "\n" not in str(error.value), kind


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """Places in nested mappings and lists; of a list one."""
    yield path
    if isinstance(value, dict):
        entries = list(value.items())
    else:
        entries = list(enumerate(value))[-2:][:1] if isinstance(value, list) else []
    for key, entry in entries:
        yield from places(entry, (*path, key))


ODD = (None, "x", [], {}, -1, 0, float("nan"), [1, 2], {"a": 1}, True, 1e300)


@pytest.mark.parametrize("kind", ["ros", "message", "kalibr", "opencv", "aria", "gyroflow", "umi"])
def test_odd_values_anywhere_are_answered(tmp_path: Path, kind: str) -> None:
    """Whatever stands in a place: a camera, or a message that names the file."""
    fisheye = Lens(d=(0.1, 0.0, 0.0, 0.0))
    file, content = tmp_path / "odd.json", None
    if kind == "ros":
        content = yaml.safe_load(samples.ros_calibration(file, fisheye, "equidistant").read_text())
    elif kind == "message":
        content = yaml.safe_load(camera_info(tmp_path).split("---")[0])
    elif kind == "kalibr":
        content = yaml.safe_load(
            samples.kalibr(file, {"cam0": (fisheye, "pinhole", "equi")}).read_text()
        )
    elif kind == "opencv":
        content = {"K": fisheye.K.tolist(), "D": [0.1] * 5, "image_size": [640, 480]}
    elif kind == "aria":
        content = samples.aria_line({"camera-rgb": (np.ones(15), (1408, 1408))}, sizes=True)
    elif kind == "gyroflow":
        content = json.loads(samples.gyroflow(file, fisheye).read_text())
    else:
        content = json.loads(samples.theia(file, fisheye, "FISHEYE", RADIAL).read_text())

    answers = 0
    for path in list(places(content))[1:]:
        for odd in ODD:
            changed = copy.deepcopy(content)
            at = functools.reduce(operator.getitem, path[:-1], changed)
            at[path[-1]] = odd
            file.write_text(json.dumps(changed))
            for name in ("", ":raw"):
                try:
                    load_camera(f"{file}{name}")
                except CalibrationError as error:
                    answers += 1
                    assert str(file) in str(error)
    assert answers > 50


def test_fisheye_in_our_own_file_is_asked_for(tmp_path: Path) -> None:
    values = Camera.nominal(64, 48).to_json() | {"model": "fisheye", "distortion": [0.1] * 4}
    path = tmp_path / "cam.json"
    path.write_text(json.dumps(values))
    with pytest.raises(CalibrationError, match=r"kannala_brandt \(4 .*OpenCV.*fisheye624 \(12 "):
        load_camera(path)
    del values["fx"], values["cy"]
    path.write_text(json.dumps(values))
    with pytest.raises(CalibrationError, match="'fx' is missing; there is: model, width, height"):
        load_camera(path)


# Where it is used.


def test_a_recording_with_a_chosen_camera(tmp_path: Path) -> None:
    lens = Lens(64, 48, 60.0, 60.0, 31.0, 24.0, (-0.1, 0.02, 0.0, 0.0))
    cameras = {"cam0": (lens, "pinhole", "radtan"), "cam1": (lens, "ds", "none")}
    chain = samples.kalibr(tmp_path / "camchain.yaml", cameras)
    write_video(tmp_path / "a.mp4", frames=3, size=(64, 48))
    options = RecordingOptions(camera=Path(f"{chain}:cam0"))
    recording = open_recording(tmp_path / "a.mp4", options)
    assert recording.camera.model == "pinhole" and 55.0 < recording.camera.fx < 60.0
    assert recording.processing["undistorted"]["distortion"][:2] == [-0.1, 0.02]
    assert "camera cam0 of a Kalibr camchain" in recording.notes
