"""Camera files of others project points as their makers do; what they leave open is asked for."""

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


def a_lens(rng: np.random.Generator, coefficients: int, size: float) -> Lens:
    d = rng.uniform(-size, size, coefficients).round(9).tolist()
    focal, aspect = rng.uniform(500, 900), rng.uniform(0.98, 1.02)
    cx, cy = rng.uniform(300, 800), rng.uniform(200, 500)
    return Lens(1000 + coefficients, 700, focal, focal * aspect, cx, cy, tuple(d))


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


def headed(path: Path) -> Path:
    """Put the line before a camchain with which OpenCV reads it, too."""
    path.write_text("%YAML:1.0 # need to specify the file type at the top!\n\n" + path.read_text())
    return path


def in_kalibr(path: Path, lens: Lens, distortion: str) -> Path:
    return samples.kalibr(path, {"cam0": (lens, "pinhole", distortion)})


def interactive(path: Path, lens: Lens) -> Path:
    """What OpenCV's interactive-calibration writes."""
    usual = ("image_width", "image_height", "fisheye_model", "camera_matrix")
    values = dict.fromkeys((*usual, "distortion_coefficients"))
    values |= {"cameraMatrix": lens.K, "dist_coeffs": np.array([lens.d])}
    return samples.opencv(path, lens, **values, cameraResolution=(lens.width, lens.height))


#: Each format with the model, the number of coefficients, a file name, and what writes it.
FORMATS: dict[str, tuple[str, int, str, Callable[[Path, Lens], Path]]] = {
    "ros": ("brown", 5, "o.yaml", lambda f, lens: samples.ros_calibration(f, lens, "plumb_bob")),
    "ros old": ("brown", 5, "o.yaml", lambda f, lens: samples.ros_calibration(f, lens, None)),
    "ros rational": ("brown", 8, "ost.yaml",
                     lambda f, lens: samples.ros_calibration(f, lens, "rational_polynomial")),
    "ros fisheye": ("kannala", 4, "ost.yaml",
                    lambda f, lens: samples.ros_calibration(f, lens, "equidistant")),
    "kalibr": ("brown", 4, "c.yaml", lambda f, lens: in_kalibr(f, lens, "radtan")),
    "kalibr fisheye": ("kannala", 4, "c.yaml", lambda f, lens: in_kalibr(f, lens, "equi")),
    "OpenVINS": ("brown", 4, "c.yaml", lambda f, lens: headed(in_kalibr(f, lens, "radtan"))),
    "euroc": ("brown", 4, "sensor.yaml", samples.euroc),
    "opencv yaml": ("brown", 5, "out_camera_data.yml", samples.opencv),
    "opencv xml": ("brown", 8, "out_camera_data.xml", samples.opencv),
    "opencv json": ("brown", 4, "out_camera_data.json", samples.opencv),
    "opencv interactive": ("brown", 5, "defaultConfig.xml", interactive),
    "opencv fisheye": ("kannala", 4, "f.yml",
                       lambda f, lens: samples.opencv(f, lens, fisheye_model=1)),
    "gyroflow standard": ("brown", 8, "p.json", lambda f, lens: samples.gyroflow(
        f, lens, distortion_model="opencv_standard")),
    "gyroflow": ("kannala", 4, "p.json", samples.gyroflow),
    "OpenImuCameraCalibrator": ("brown", 5, "t.json", lambda f, lens: samples.theia(
        f, lens, "PINHOLE_RADIAL_TANGENTIAL", TANGENTIAL)),
    "umi": ("kannala", 4, "gopro_intrinsics_2_7k.json",
            lambda f, lens: samples.theia(f, lens, "FISHEYE", RADIAL)),
    "orb-slam": ("brown", 5, "o.yaml",
                 lambda f, lens: samples.orb_slam(f, {"Camera": lens}, "PinHole")),
    "orb-slam3": ("brown", 4, "o.yaml",
                  lambda f, lens: samples.orb_slam(f, {"Camera1": lens}, "PinHole")),
    "orb-slam3 fisheye": ("kannala", 4, "o",
                          lambda f, lens: samples.orb_slam(f, {"Camera1": lens}, "KannalaBrandt8")),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", FORMATS)
def test_projection_is_that_of_the_makers_library(tmp_path: Path, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model, count, name, write = FORMATS[kind]
    wide = model == "kannala"
    lens = a_lens(rng, count, 0.005 if wide else 0.03)
    path, at = write(tmp_path / name, lens), points(rng, 75 if wide else 30)
    # A calibration of ROS has another camera for the rectified picture.
    camera = load_camera(f"{path}:raw" if kind.startswith("ros") else path)
    assert camera.model.startswith(model)
    assert (camera.width, camera.height) == (lens.width, lens.height)
    theirs = by_opencv_fisheye if wide else by_opencv
    np.testing.assert_allclose(camera.project(at), theirs(lens, at), atol=1e-5)


@pytest.mark.parametrize("write", [samples.colmap_text, samples.colmap_binary])
@pytest.mark.parametrize(
    ("model", "focals", "used", "wide"),
    [
        ("SIMPLE_PINHOLE", 1, 0, False),
        ("PINHOLE", 2, 0, False),
        ("SIMPLE_RADIAL", 1, 1, False),
        ("RADIAL", 1, 2, False),
        ("OPENCV", 2, 4, False),
        ("FULL_OPENCV", 2, 8, False),
        ("OPENCV_FISHEYE", 2, 4, True),
        ("FISHEYE", 2, 0, True),
        ("RADIAL_FISHEYE", 1, 2, True),
        ("SIMPLE_RADIAL_FISHEYE", 1, 1, True),
        ("SIMPLE_FISHEYE", 1, 0, True),
    ],
)
def test_colmap(tmp_path, write, model, focals, used, wide) -> None:
    """Each model has the first of OpenCV's coefficients, and one focal length or two."""
    rng = np.random.default_rng(len(model))
    lens = a_lens(rng, used, 0.005 if wide else 0.03)
    focal = [lens.fx, lens.fy][:focals]
    values = [*focal, lens.cx, lens.cy, *lens.d]
    path = write(tmp_path / "cameras", [(3, model, lens.width, lens.height, values)])
    lens = replace(lens, fy=focal[-1], d=(*lens.d, *(0.0,) * (4 - used)))
    at = points(rng, 75 if wide else 30)
    theirs = by_opencv_fisheye if wide else by_opencv
    # OpenCV's pixel centres are at whole numbers, COLMAP's are half a pixel further.
    np.testing.assert_allclose(load_camera(path).project(at), theirs(lens, at) - 0.5, atol=1e-8)


def test_aria(tmp_path: Path) -> None:
    """Lines of MPS's online calibration; the one in the middle counts, with a note."""
    lenses = [(610.0 + i, 701.0, 702.0, *(0.01 * np.arange(i, i + 12))) for i in range(3)]
    slam = np.array([242.1, 320.1, 241.9, *np.zeros(12)])
    path = tmp_path / "online_calibration.jsonl"
    with path.open("w") as file:
        for rgb in lenses:
            cameras = {"camera-slam-left": (slam, (640, 480)), "camera-rgb": (rgb, (1408, 1408))}
            file.write(json.dumps(samples.aria_line(cameras, sizes=True)) + "\n")
    found = read_camera(f"{path}:camera-rgb")
    f, cx, cy, *distortion = lenses[1]
    assert found.camera == Camera("fisheye624", 1408, 1408, f, f, cx, cy, tuple(distortion))
    assert "3 calibrations over time" in found.note
    left = load_camera(f"{path}:camera-slam-left")
    assert (left.width, left.height, left.fx) == (640, 480, 242.1)

    # COLMAP's name of this lens.
    colmap = [(1, "RAD_TAN_THIN_PRISM_FISHEYE", 1408, 1408, [f, *lenses[1]])]
    camera = load_camera(samples.colmap_text(tmp_path / "cameras.txt", colmap))
    assert camera == replace(found.camera, cx=cx - 0.5, cy=cy - 0.5)

    path.write_text(json.dumps(samples.aria_line({"camera-rgb": (lenses[0], (0, 0))}, sizes=False)))
    with pytest.raises(CalibrationError, match=f"image size.*about {2 * cx + 1:.0f} x"):
        load_camera(path)
    assert read_camera(path, CameraHints(size=(1408, 1408))).camera.width == 1408


def test_orb_slams_cameras(tmp_path: Path) -> None:
    """Both have the one size of the file, and coefficients of their own."""
    lenses = {"Camera1": Lens(d=(-0.1, 0.02, 1e-3, 0.0)), "Camera2": Lens(fx=700.0)}
    path = samples.orb_slam(tmp_path / "s.yaml", lenses, "PinHole")
    size = (lenses["Camera2"].width, lenses["Camera2"].height)
    camera = load_camera(f"{path}:Camera2")
    assert (camera.model, camera.fx, camera.width, camera.height) == ("pinhole", 700.0, *size)
    assert load_camera(f"{path}:Camera1").distortion[:3] == (-0.1, 0.02, 1e-3)
    path = samples.orb_slam(tmp_path / "s.yaml", {"Camera": Lens()}, "KannalaBrand8")
    with pytest.raises(CalibrationError, match="Did you mean 'KannalaBrandt8'"):
        load_camera(path)


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
    with pytest.raises(CalibrationError, match="message 2 describes another camera"):
        load_camera(f"{path}:raw")


@pytest.mark.parametrize("model", ["plumb_bob", "equidistant"])
def test_raw_or_rectified_is_asked(tmp_path: Path, model: str) -> None:
    lens = Lens(d=(-0.3, 0.1, 1e-3, 2e-3, 0.0)[: 5 if model == "plumb_bob" else 4])
    p = [500.0, 0, 640.5, 0, 0, 510.0, 360.25, 0, 0, 0, 1, 0]
    path = samples.ros_calibration(tmp_path / "ost.yaml", lens, model, p)
    with pytest.raises(CalibrationError, match=r"raw, rectified.*ost\.yaml:raw.*image_r"):
        load_camera(path)
    assert load_camera(f"{path}:raw").fx == lens.fx
    rectified = load_camera(f"{path}:rectified")
    assert rectified == Camera("pinhole", 1280, 720, 500.0, 510.0, 640.5, 360.25)
    # Without distortion and with the same matrix there is nothing to ask.
    path = samples.ros_calibration(tmp_path / "o.yaml", Lens(d=(0.0,) * 5), "plumb_bob")
    assert load_camera(path).model == "pinhole"


def test_several_cameras_are_asked_for(tmp_path: Path) -> None:
    """One that cannot be read does not stand in the way of the others."""
    one, two = Lens(d=(-0.1, 0.02, 0.0, 0.0)), Lens(fx=700.0, d=(0.0, 0.0, 0.0, 0.0))
    cameras = {"cam0": (one, "pinhole", "radtan"), "cam1": (two, "omni", "radtan")}
    path = samples.kalibr(tmp_path / "camchain.yaml", cameras)
    for name, message in (
        ("", r"cam0, cam1; say which.*yaml:cam0"),
        (":cam2", "'cam2'; valid: cam0, cam1"),
        (":cam1", r"yaml:cam1.*'omni'.*pinhole-equi"),
    ):
        with pytest.raises(CalibrationError, match=message):
            load_camera(f"{path}{name}")
    assert load_camera(f"{path}:cam0").fx == one.fx

    zeros, size = np.zeros((1, 5)), {"image_size": (1280, 720)}
    values = {"M1": one.K, "D1": zeros, "M2": two.K, "D2": zeros + 0.01, **size}
    path = samples.file_storage(tmp_path / "intrinsics.yml", values)
    with pytest.raises(CalibrationError, match="1, 2; say which"):
        load_camera(path)
    assert load_camera(f"{path}:2").distortion[:5] == (0.01,) * 5
    names = {"left_camera_matrix": one.K, "left_dist_coeffs": zeros, **size}
    names |= {"right_camera_matrix": two.K, "right_dist_coeffs": zeros}
    path = samples.file_storage(tmp_path / "s.xml", names)
    assert load_camera(f"{path}:right").fx == 700.0

    entries = [(n, "PINHOLE", 640, 480, [500, 500, 320, 240]) for n in (1, 7)]
    path = samples.colmap_binary(tmp_path / "cameras.bin", entries)
    with pytest.raises(CalibrationError, match="1, 7; say which"):
        load_camera(path)
    assert load_camera(f"{path}:7").cx == 319.5


def test_hints_may_fill_in_but_not_contradict(tmp_path: Path) -> None:
    five = Lens(d=(0.1, 0.0, 0.0, 0.0, 0.0))
    path = samples.opencv(tmp_path / "c.yml", five)
    with pytest.raises(CalibrationError, match=r"`size=640x480`.* 1280 x 720"):
        read_camera(path, CameraHints(size=(640, 480)))
    with pytest.raises(CalibrationError, match=r"`model=pinhole`.*brown_con"):
        read_camera(path, CameraHints(model="pinhole"))
    assert read_camera(path, CameraHints((1280, 720), "brown_conrady")).camera.width == 1280

    four = Lens(d=(-0.02, 0.01, 0.002, -0.001))
    samples.opencv(path, four, fisheye_model=None)
    with pytest.raises(CalibrationError, match=r"brown_conrady.*kannala_brandt.*`model="):
        load_camera(path)
    for model in ("brown_conrady", "kannala_brandt"):
        camera = read_camera(path, CameraHints(model=model)).camera
        assert camera.model == model and camera.distortion[:4] == four.d

    path = samples.opencv(path, five, image_width=None, image_height=None)
    with pytest.raises(CalibrationError, match=r"size.*1268 x 738.*`size=WxH`"):
        load_camera(path)
    assert read_camera(path, CameraHints(size=(1280, 720))).camera.height == 720
    path = samples.opencv(path, five, distortion_coefficients=None)
    with pytest.raises(CalibrationError, match=r"distortion.*the file has: calibr"):
        load_camera(path)
    assert read_camera(path, CameraHints(model="pinhole")).camera.model == "pinhole"


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_files_of_ones_own(tmp_path: Path, suffix: str) -> None:
    """JSON and YAML that people write; YAML reads 1e-5 as text."""
    path = tmp_path / f"a:b.{suffix}"  # a colon also separates the name of a camera

    def loaded(values: dict) -> Camera:
        text = json.dumps(values) if suffix == "json" else yaml.safe_dump(values)
        path.write_text(text.replace("1.0e-05", "1e-05"))
        assert load_camera(path) == load_camera(f"{path}:camera")
        return load_camera(path)

    plain = {"fx": 600, "fy": 610, "cx": 319.5, "cy": 239.5, "width": 640, "height": 480}
    assert loaded(plain) == Camera("pinhole", 640, 480, 600.0, 610.0, 319.5, 239.5)
    # Coefficients without a model.
    with pytest.raises(CalibrationError, match="pinhole camera has 0 distortion"):
        loaded(plain | {"distortion": [0.1, 0, 0, 0]})
    with pytest.raises(CalibrationError, match="'k1'"):
        loaded(plain | {"k1": 0.1})

    d, K = [-0.3, 0.1, 1e-5, 2e-3, 0.0], Lens().K.tolist()
    values = {"camera_matrix": K, "dist_coeff": [d], "image_size": [1280, 720], "model": "HERO11"}
    if suffix == "yaml":
        values = {"K": K, "D": d, "width": 1280, "height": 720}
    assert loaded(values).distortion == (*d, 0.0, 0.0, 0.0)


FIVE, FOUR = Lens(d=(0.1, 0, 0, 0, 0)), Lens(d=(0.1, 0.0, 0.0, 0.0))

#: A file that is right, what is replaced in it, and what the message must name.
EDITED = [
    ("ost.yaml", "distortion_coefficients", "dist", "distortion_coefficients.*image_width"),
    ("ost.yaml", "612.5", "f", "camera_matrix: data"),
    ("ost.yaml", ", 1.000000000]", "]", "'k' has 8 numbers; 9"),
    ("ost.yaml:raw", "plumb_bob", "plum_bob", "plum_bob.*Did you mean 'plumb_bob'"),
    ("ost.yaml:rect", "", "", "'rect'.*'rectified'"),
    ("chain.yaml", "intrinsics", "intr", "Kalibr camchain.*'intrinsics'.*cam_overlaps"),
    ("chain.yaml", "  resolution: [1280, 720]\n", "", "size is missing.*`size="),
    ("chain.yaml", "cam0:", "cam0: [", "not YAML"),
    ("opencv.yml", "612.5, 0.", "612.5, 3.", "skew of 3 px"),
    ("opencv.yml", "rows: 3", "rows: 2", "2 x 3 that holds 9"),
    ("opencv.yml", "data: [", "data: {", "OpenCV FileStorage"),
    ("opencv.yml", "rows: 3", "rows: 300000000", "300000000 x 3"),
    ("opencv.yml", "1280", "1280.5", "whole pixels"),
    ("cameras.txt", "PINHOLE", "FOV", "COLMAP's FOV"),
    ("cameras.txt", " 24.0", "", "4 parameters.*got 3"),
    ("cameras.txt", "50.0", "f", "line 4 of COLMAP"),
    ("aria.json", '"FisheyeRadTanThinPrism"', '"KB3"', "'KB3'"),
    ("aria.json", "[1.0, 1.0, ", "[1.0, ", "'Params' has 14 numbers; 15"),
    ("aria.json", "[[1408, 1408]]", "[]", "'ImageSizes'"),
    ("gyro.json", "distortion_coeffs", "coeffs", "'distortion_coeffs'.*RMS_error"),
    ("umi.json", "FISHEYE", "DOUBLE_SPHERE", "'DOUBLE_SPHERE'"),
    ("umi.json", "principal_pt_x", "px", "'principal_pt_x'"),
    ("umi.json", '"fps"', '"fx"', "acehand camera file or OpenImuCameraCalibrator"),
    ("umi.json", "intrinsic", "extrinsic", "it has final_reproj_error.*Kalibr camchain"),
    ("umi.json", '"intrinsic_type"', '"model"', "'final_reproj_error'"),
]


@pytest.fixture(scope="module")
def right_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("right")
    samples.ros_calibration(folder / "ost.yaml", FIVE, "plumb_bob")
    in_kalibr(folder / "chain.yaml", FOUR, "radtan")
    samples.opencv(folder / "opencv.yml", FIVE)
    samples.colmap_text(folder / "cameras.txt", [(1, "PINHOLE", 64, 48, [50, 50, 32, 24])])
    samples.gyroflow(folder / "gyro.json", FOUR)
    samples.theia(folder / "umi.json", FOUR, "FISHEYE", RADIAL)
    rgb = samples.aria_line({"camera-rgb": (np.ones(15), (1408, 1408))}, sizes=True)
    (folder / "aria.json").write_text(json.dumps(rgb))
    return folder


def check_refused(path: Path | str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera(path)
    assert str(path).removesuffix(":rect") in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "old", "new", "message"), EDITED)
def test_mistakes_in_files_are_named(right_files, tmp_path, name, old, new, message) -> None:
    file = name.partition(":")[0]
    text = (right_files / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    check_refused(f"{tmp_path / name}", message)


def test_cameras_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    binary = samples.colmap_binary(tmp_path / "c.bin", [(1, "PINHOLE", 64, 48, [50, 50, 32, 24])])
    # cameras.json of a clip: https://huggingface.co/datasets/bop-benchmark/hot3d
    hot3d = {"214-1": {"T_world_from_camera": {}, "calibration": {"label": "camera-rgb"}}}
    for name, content, message in (
        ("cut.bin", binary.read_bytes()[:-9], "cut off after 0 of 1"),
        ("long.bin", binary.read_bytes() + b"\0", "1 bytes"),
        ("SN17471.conf", b"[LEFT_CAM_HD]\r\nfx=699.78\r\nfy=699.78\r\n", "a ZED.*as JSON"),
        ("v.mp4", b"\0\0\0\x18ftypmp42" + bytes(range(256)), "neither text nor COLMAP"),
        ("cameras.json", json.dumps(hot3d).encode(), "acehand data convert hot3d"),
    ):
        (tmp_path / name).write_bytes(content)
        check_refused(tmp_path / name, message)

    file, uncalibrated = tmp_path / "file.yml", replace(FIVE, fx=0.0, fy=0.0, cx=0.0, cy=0.0)
    for write, message in (
        (lambda: samples.ros_calibration(file, uncalibrated, "plumb_bob"), "not calibrated"),
        (lambda: samples.kalibr(file, {"cam0": (FOUR, "ds", "none")}), "'ds'.*valid: pinhole"),
        (lambda: samples.kalibr(file, {"cam0": (FOUR, "eucm", "none")}), "'eucm'"),
        (lambda: in_kalibr(file, Lens(d=(0.9,)), "fov"), "'fov'.*valid: equi"),
        (lambda: in_kalibr(file, FIVE, "radtan"), "'distortion_coeffs' has 5 numbers; 4"),
        (lambda: samples.opencv(file, Lens(d=(0.1,) * 12)), "thin prism or tilt.*up to 8"),
        (lambda: samples.opencv(file, FIVE, camera_matrix=FIVE.K.T), "'camera_matrix'"),
        (lambda: samples.opencv(file, FIVE, K=FIVE.K + 1), "'camera_matrix' and 'K' differ"),
        (lambda: samples.gyroflow(file, FOUR, distortion_model="poly5"), "'poly5'.*opencv_fisheye"),
        (lambda: samples.gyroflow(file, FOUR, input_horizontal_stretch=1.21), "anamorphic"),
        (lambda: samples.gyroflow(file, FOUR, digital_lens="gopro_superview"), "gopro_superview"),
    ):
        write()
        check_refused(file, message)


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


@pytest.mark.parametrize(
    "kind", ["ros fisheye", "message", "kalibr fisheye", "opencv", "aria", "gyroflow", "umi"]
)
def test_odd_values_anywhere_are_answered(tmp_path: Path, kind: str) -> None:
    """Whatever stands in a place: a camera, or a message that names the file."""
    fisheye, file = Lens(d=(0.1, 0.0, 0.0, 0.0)), tmp_path / "odd.json"
    if kind == "message":
        file.write_text(camera_info(tmp_path).split("---")[0])
    elif kind == "opencv":
        values = {"K": fisheye.K.tolist(), "D": [0.1] * 5, "image_size": [640, 480]}
        file.write_text(json.dumps(values))
    elif kind == "aria":
        line = samples.aria_line({"camera-rgb": (np.ones(15), (1408, 1408))}, sizes=True)
        file.write_text(json.dumps(line))
    else:
        FORMATS[kind][3](file, fisheye)
    content = yaml.safe_load(file.read_text())  # JSON, too

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


def test_a_recording_with_a_chosen_camera(tmp_path: Path) -> None:
    lens = Lens(64, 48, 60.0, 60.0, 31.0, 24.0, (-0.1, 0.02, 0.0, 0.0))
    cameras = {"cam0": (lens, "pinhole", "radtan"), "cam1": (lens, "ds", "none")}
    chain = samples.kalibr(tmp_path / "camchain.yaml", cameras)
    write_video(tmp_path / "a.mp4", frames=3, size=(64, 48))
    options = RecordingOptions(camera=Path(f"{chain}:cam0"))
    recording = open_recording(tmp_path / "a.mp4", options)
    assert recording.camera.model == "pinhole" and 55.0 < recording.camera.fx < 60.0
    assert recording.processing["undistorted"]["distortion"][:2] == [-0.1, 0.02]
    assert any("cam0" in note and "Kalibr" in note for note in recording.notes)
