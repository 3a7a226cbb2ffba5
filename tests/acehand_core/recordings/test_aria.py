"""Aria recordings (.vrs): a stand-in for projectaria-tools, and real files of ``$ACEHAND_VRS``."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from acehand_core.errors import CalibrationError, InputError, MissingDependencyError, VideoError
from acehand_core.recordings.options import RecordingOptions, RigOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.recordings.vrs import open_aria

WIDTH, HEIGHT = 60, 40
FOCAL, CX, CY = 30.0, 31.0, 18.0
LIBC = ctypes.CDLL(None)


@dataclass
class Stream:
    """A camera: pictures in the order of the file, and the calibration in the stored picture."""

    times: tuple[int, ...]
    pose: np.ndarray
    grey: bool = False
    model: str = "FISHEYE624"
    valid: bool = True
    recorded: bool = True
    dtype: Any = np.uint8
    size: tuple[int, int] = (WIDTH, HEIGHT)

    def calibration(self) -> SimpleNamespace:
        transform = SimpleNamespace(to_matrix=lambda: self.pose)
        return SimpleNamespace(
            get_model_name=lambda: SimpleNamespace(name=self.model),
            get_image_size=lambda: np.array(self.size),
            get_projection_params=lambda: np.array([FOCAL, CX, CY, *[0.0] * 12]),
            get_transform_device_camera=lambda: transform,
        )

    def picture(self, row: int) -> np.ndarray:
        """Black, but for the pixel 5 to the right of the principal point, which is 10 + row."""
        if not self.valid:
            raise RuntimeError("bad optional access")
        image = np.zeros((HEIGHT, WIDTH) if self.grey else (HEIGHT, WIDTH, 3), self.dtype)
        image[int(CY), int(CX) + 5] = 10 + row
        return image


@dataclass
class Glasses:
    """What the stand-in finds in every file, and what it does with it."""

    streams: dict[str, Stream]
    version: str = "Gen1"
    printed: str = "[VrsDataProvider][INFO]: streamId 214-1/camera-rgb activated\n"
    readable: bool = True
    calibrated: tuple[str, ...] | None = ()
    opened: list[threading.Thread] = field(default_factory=list)

    def create(self, path: str) -> SimpleNamespace | None:
        os.write(2, self.printed.encode())
        LIBC.puts(b"on standard output, buffered")
        self.opened.append(threading.current_thread())
        if not self.readable:
            return None
        labels = self.calibrated or tuple(self.streams)
        device = SimpleNamespace(
            get_camera_labels=lambda: list(labels),
            get_camera_calib=lambda label: self.streams[label].calibration(),
            get_device_version=lambda: SimpleNamespace(name=self.version),
        )
        return SimpleNamespace(
            get_device_calibration=lambda: None if self.calibrated is None else device,
            get_stream_id_from_label=lambda label: label if self.streams[label].recorded else None,
            get_timestamps_ns=lambda stream, domain: list(self.streams[stream].times),
            get_image_data_by_index=self.data,
        )

    def data(self, stream: str, row: int) -> tuple[SimpleNamespace, None]:
        return SimpleNamespace(to_numpy_array=lambda: self.streams[stream].picture(row)), None


def at(x: float, y: float, z: float) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, 3] = x, y, z
    return pose


@pytest.fixture
def glasses(monkeypatch: pytest.MonkeyPatch) -> Glasses:
    """The RGB camera in the device's origin; slam-left 0.1 m along the stored picture's x."""
    found = Glasses(
        {
            "camera-rgb": Stream((3_000, 1_000, 1_000, 2_000), at(0, 0, 0)),
            "camera-slam-left": Stream((1_500, 2_500), at(0.1, 0, 0), grey=True),
            "camera-slam-right": Stream((1_500, 2_500), at(0, 0.2, 0.3), grey=True),
            "camera-et-left": Stream((1_500,), at(0, 0, 0), model="KANNALA_BRANDT_K3"),
        }
    )
    modules: dict[str, Any] = {
        "projectaria_tools": {},
        "projectaria_tools.core": {},
        "projectaria_tools.core.data_provider": {
            "create_vrs_data_provider": lambda path: found.create(path)
        },
        "projectaria_tools.core.sensor_data": {"TimeDomain": SimpleNamespace(DEVICE_TIME=0)},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return found


@pytest.fixture
def vrs(tmp_path: Path) -> Path:
    path = tmp_path / "walk.vrs"
    path.write_bytes(b"content")
    return path


def with_views(views: str | None, **more: Any) -> RecordingOptions:
    return RecordingOptions(views=views, **more)


def test_pictures_in_the_order_of_device_time(glasses: Glasses, vrs: Path) -> None:
    """Of two pictures with one time the first is kept; the hash is that of the file."""
    recording = open_aria(vrs, None)
    assert recording.timestamps_ns.tolist() == [1_000, 2_000, 3_000]
    assert [int(image.max()) for image in recording.frames.read(0, 3)] == [11, 13, 10]
    assert recording.views == () and recording.name == "walk.vrs"
    known = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"  # sha256sum
    assert recording.sha256 == known


def test_gen_1_is_turned_upright(glasses: Glasses, vrs: Path) -> None:
    """The stored right is the upright bottom: by hand, with an equidistant lens."""
    recording = open_aria(vrs, None)
    assert (recording.width, recording.height) == (HEIGHT, WIDTH)
    image = recording.frames.at(0)
    # Stored (36, 18): 36 from the left becomes 36 from the top, 18 from the top 21 from the left.
    assert np.argwhere(image[..., 0]).tolist() == [[36, 21]]
    angle = math.radians(40)
    down = recording.camera.project(np.array([0.0, math.sin(angle), math.cos(angle)]))
    assert down == pytest.approx([HEIGHT - 1 - CY, CX + FOCAL * angle], abs=1e-9)
    left = recording.camera.project(np.array([-math.sin(angle), 0.0, math.cos(angle)]))
    assert left == pytest.approx([HEIGHT - 1 - CY - FOCAL * angle, CX], abs=1e-9)
    assert recording.processing["rotation"] == 90


def test_gen_2_is_upright_as_stored(glasses: Glasses, vrs: Path) -> None:
    glasses.version = "Gen2"
    recording = open_aria(vrs, "slam-left")
    assert np.argwhere(recording.frames.at(0)[..., 0]).tolist() == [[18, 36]]
    angle = math.radians(40)
    right = recording.camera.project(np.array([math.sin(angle), 0.0, math.cos(angle)]))
    assert right == pytest.approx([CX + FOCAL * angle, CY], abs=1e-9)
    np.testing.assert_allclose(recording.views[0].T_camera_view, at(0.1, 0, 0), atol=1e-12)


def test_views_have_their_place_in_the_upright_camera(glasses: Glasses, vrs: Path) -> None:
    """The stored x is the upright y, the stored y the upright -x."""
    recording = open_aria(vrs, "slam_right, left")
    assert [view.name for view in recording.views] == ["slam_right", "slam_left"]
    right, left = recording.views
    np.testing.assert_allclose(left.T_camera_view, at(0, 0.1, 0), atol=1e-12)
    np.testing.assert_allclose(right.T_camera_view, at(-0.2, 0, 0.3), atol=1e-12)
    assert left.recording.timestamps_ns.tolist() == [1_500, 2_500] and left.synchronised
    image = left.recording.frames.at(1)
    assert image.shape == (WIDTH, HEIGHT, 3) and image[36, 21].tolist() == [11, 11, 11]
    assert [view.name for view in open_aria(vrs, "slam").views] == ["slam_left", "slam_right"]


def test_a_turned_camera_seen_from_another(glasses: Glasses, vrs: Path) -> None:
    """A point keeps its ray: slam-left is turned about the stored y, and 0.1 m away."""
    turn = np.array([[0.0, 0, 1, 0.1], [0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1]])
    glasses.streams["camera-slam-left"].pose = turn
    view = open_aria(vrs, "slam-left").views[0]
    # In the stored cameras: (0.1, 0.2, -1) of slam-left is (-0.9, 0.2, -0.1) of RGB.
    stored = {"rgb": (-0.9, 0.2, -0.1), "slam": (0.1, 0.2, -1.0)}
    upright = {name: (-y, x, z, 1) for name, (x, y, z) in stored.items()}
    np.testing.assert_allclose(view.T_camera_view @ upright["slam"], upright["rgb"], atol=1e-12)


def test_every_thread_opens_the_file_itself(glasses: Glasses, vrs: Path) -> None:
    recording = open_aria(vrs, "slam")
    assert len(glasses.opened) == 1
    other = threading.Thread(target=lambda: recording.frames.at(2))
    other.start()
    other.join()
    assert glasses.opened == [threading.current_thread(), other]


def test_the_library_is_silent(glasses: Glasses, vrs: Path, capfd: Any) -> None:
    """What it says of a file that was cut off becomes a note; C buffers its standard output."""
    LIBC.setvbuf(ctypes.c_void_p.in_dll(LIBC, "stdout"), None, 0, 4096)
    assert open_aria(vrs, None).notes == ("factory calibration",)
    said = "[VRSIndexRecord][WARNING]: 7 records are beyond the end of the file. Dropping them.\n"
    glasses.printed += said
    kept = ("factory calibration", "7 records are beyond the end of the file")
    assert open_aria(vrs, None).notes == kept
    LIBC.fflush(None)
    assert capfd.readouterr() == ("", "")
    for fd in (1, 2):
        os.write(fd, b"ours")
    assert capfd.readouterr() == ("ours", "ours")


def test_files_that_cannot_be_read(glasses: Glasses, vrs: Path) -> None:
    glasses.readable = False
    glasses.printed = "\x1b[38m[RecordFileReader][ERROR]: File 'x' is too small.\x1b[0m\n"
    with pytest.raises(InputError, match=r"walk\.vrs: .*File 'x' is too"):
        open_aria(vrs, None)


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_damaged_calibrations(
    glasses: Glasses, vrs: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(path: str) -> None:
        raise error("parse error at 7")

    monkeypatch.setattr(glasses, "create", fail)
    with pytest.raises(InputError, match=r"VRS .*parse error at 7"):
        open_aria(vrs, None)


def test_what_a_file_must_have(glasses: Glasses, vrs: Path) -> None:
    rgb = glasses.streams["camera-rgb"]
    for calibrated in (None, ("camera-slam-left",)):
        glasses.calibrated = calibrated
        with pytest.raises(CalibrationError, match="calibration of camera-rgb"):
            open_aria(vrs, None)
    glasses.calibrated = ()
    glasses.streams["camera-rgb"] = replace(rgb, model="LINEAR")
    with pytest.raises(CalibrationError, match=r"camera-rgb .* LINEAR; valid: FISHEYE624"):
        open_aria(vrs, None)
    glasses.streams["camera-rgb"] = replace(rgb, size=(2 * WIDTH, 2 * HEIGHT))
    with pytest.raises(CalibrationError, match=r"80 x 120.* 40 x 60"):
        open_aria(vrs, None)
    for without in (replace(rgb, times=()), replace(rgb, recorded=False)):
        glasses.streams["camera-rgb"] = without
        with pytest.raises(InputError, match="pictures of camera-rgb"):
            open_aria(vrs, None)
    for without in (replace(rgb, valid=False), replace(rgb, dtype=np.uint16)):
        glasses.streams["camera-rgb"] = without
        with pytest.raises(VideoError, match="picture 1 of camera-rgb"):
            open_aria(vrs, None)


@pytest.mark.parametrize("word", ["rgb", "et-left", "slam-lef", "lam"])
def test_views_that_do_not_exist(glasses: Glasses, vrs: Path, word: str) -> None:
    with pytest.raises(InputError, match=f"`views='{word}'` .*valid: slam-left, slam-right"):
        open_aria(vrs, word)


def test_options(glasses: Glasses, vrs: Path, tmp_path: Path) -> None:
    """``--views`` applies, other options of bags and rigs do not."""
    opened = Registry().open(vrs, with_views("slam-left", start_s=1e-6))
    assert opened.timestamps_ns.tolist() == [2_000, 3_000]
    assert [view.name for view in opened.views] == ["slam_left"]
    assert opened.camera.model == opened.views[0].recording.camera.model == "pinhole"
    assert len(open_recording(vrs, views="slam-left", start_s=0).views) == 1
    with pytest.raises(InputError, match=r"'vews'.*start_s.*'views'"):
        open_recording(vrs, vews="slam-left")
    with pytest.raises(InputError, match="leave out: `views`"):
        open_recording("a.mp4", views="slam-left")
    with pytest.raises(InputError, match="an Aria recording, so leave out: `mirrored`"):
        open_recording(vrs, mirrored=True)
    with pytest.raises(InputError, match=r"leave out: `image_topic` \(for a bag\)"):
        open_recording(vrs, image_topic="/a")
    with pytest.raises(InputError, match="an Aria recording, so leave out: `depth`"):
        Registry().open(vrs, RecordingOptions(rigs=RigOptions(depth=tmp_path)))
    (tmp_path / ".hidden.vrs").touch()
    assert Registry().expand([tmp_path]) == [vrs]


def test_without_the_library(vrs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "projectaria_tools", None)
    with pytest.raises(MissingDependencyError, match=r"'acehand\[vrs\]'"):
        open_recording(vrs)


def real_files() -> list[Path]:
    return sorted(Path(os.environ.get("ACEHAND_VRS", "/nonexistent")).glob("*.vrs"))


@pytest.fixture
def library() -> Any:
    if not real_files():
        pytest.skip("ACEHAND_VRS names no folder with .vrs files")
    return pytest.importorskip("projectaria_tools.core.data_provider")


def test_real_files_agree_with_the_library(library: Any, capfd: Any) -> None:
    """Every camera's pictures, projections and place, by projectaria-tools itself."""
    rng = np.random.default_rng(0)
    for path in real_files():
        recording = open_aria(path, "slam")
        assert capfd.readouterr() == ("", "")
        provider = library.create_vrs_data_provider(str(path))
        capfd.readouterr()
        device = provider.get_device_calibration()
        T_device_rgb = device.get_camera_calib("camera-rgb").get_transform_device_camera()
        assert len(recording.views) == (4 if "Gen2" in str(device.get_device_version()) else 2)
        seen = [(recording, np.eye(4)), *((v.recording, v.T_camera_view) for v in recording.views)]
        for camera, T_rgb_camera in seen:
            label, turned = camera.processing["stream"], camera.processing["rotation"] == 90
            stored, _ = provider.get_image_data_by_index(
                provider.get_stream_id_from_label(label), 0
            )
            stored = stored.to_numpy_array()
            picture = camera.frames.at(0)
            for channel in range(3):
                grey = stored if stored.ndim == 2 else stored[..., channel]
                # Clockwise: the last row is the first column.
                expected = grey[::-1].T if turned else grey
                np.testing.assert_array_equal(picture[..., channel], expected)
            theirs, count = device.get_camera_calib(label), 0
            T_device_camera = theirs.get_transform_device_camera()
            for _ in range(500):
                point = rng.normal(size=3) * (1, 1, 0.3) + (0, 0, 1)
                pixel = theirs.project(point)
                if pixel is None:
                    continue
                x, y, z = (T_device_rgb.inverse() @ T_device_camera) @ point.reshape(3, 1)
                in_rgb = np.array([-y[0], x[0], z[0]] if turned else [x[0], y[0], z[0]])
                ours = camera.camera.project((np.linalg.inv(T_rgb_camera) @ [*in_rgb, 1])[:3])
                if turned:
                    pixel = np.array([theirs.get_image_size()[1] - 1 - pixel[1], pixel[0]])
                assert ours == pytest.approx(pixel, abs=0.01)
                count += 1
            assert count > 50


def test_real_files_that_are_cut_off(library: Any, tmp_path: Path) -> None:
    """Either the first pictures, with a note, or an error."""
    for path in real_files():
        data, whole = path.read_bytes(), len(open_aria(path, None))
        for share in (0, 10, 50, 90):
            cut = tmp_path / f"{path.stem}_{share}.vrs"
            cut.write_bytes(data[: len(data) * share // 100])
            try:
                recording = open_aria(cut, None)
            except InputError as error:
                assert str(cut) in str(error)
            else:
                assert len(recording) <= whole and "beyond the end" in recording.notes[1]
                list(recording.frames.read(0, len(recording)))
