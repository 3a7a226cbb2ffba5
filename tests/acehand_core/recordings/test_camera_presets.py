"""Presets and metadata against arithmetic by hand, OpenCV's projection and fabricated files."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.camera.focal_length import FocalLengthEstimate, FocalLengthFinding
from acehand_core.errors import CalibrationError, InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.camera_presets import PRESETS, preset_camera, presets_for
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from helpers.commands import Acehand, hands_file
from helpers.commands import GripperRun as Run
from helpers.dying_runs import stop_at
from helpers.video_fixtures import numbered_image, write_video

APPLE = "com.apple.quicktime.camera.focal_length.35mm_equivalent"
#: The polynomial and angles of a HERO11, from https://github.com/andrei-demidov/python-gpmf-metadata
POLYNOMIAL = (0.0, 1.8229533433914185, 0.1068095788359642, -0.6631866097450256, 0.35631099343299866)


def degrees_at(camera: Camera, pixel: tuple[float, float]) -> float:
    """Angle of a pixel's ray to the axis, by OpenCV."""
    bent = camera.model != "pinhole"
    undistort = cv2.fisheye.undistortPoints if bent else cv2.undistortPoints
    at, k = np.array([[pixel]], np.float64), np.array(camera.distortion) if bent else None
    # Of OpenCV's result only the direction counts: angles of 60 degrees are far out.
    return math.degrees(math.atan(math.hypot(*undistort(at, camera.K, k)[0, 0])))


@pytest.mark.parametrize(
    ("name", "view"), [(name, view) for name, p in PRESETS.items() for view in p.views]
)
def test_a_preset_has_the_published_angles(name: str, view) -> None:
    across, down = view.shape or (16, 9)
    width, height = (1408, 1408) if across == down else (120 * across, 120 * down)
    camera = preset_camera(name, width, height)
    assert (camera.width, camera.height) == (width, height)
    right, bottom = width - 0.5, height - 0.5
    cx, cy = (width - 1) / 2, (height - 1) / 2
    edges = {"horizontal": (right, cy), "vertical": (cx, bottom), "diagonal": (right, bottom)}
    stated = {n: getattr(view, n) for n in edges if getattr(view, n) is not None}
    assert stated
    for edge, angle in stated.items():
        assert 2 * degrees_at(camera, edges[edge]) == pytest.approx(angle, abs=0.5), edge
    if view.focal is not None:
        assert camera.fx == pytest.approx(view.focal * width)


WEBCAM, HD = math.tan(math.radians(30)), math.hypot(1920, 1080) / 2 / math.tan(math.radians(39))
#: 26 mm for a diagonal of 43.27 mm; a 16:9 video has the width of the 4:3 sensor.
PHONE = 26 / 43.267 * 2400


@pytest.mark.parametrize(
    ("name", "size", "focal", "rel"),
    [
        ("webcam", (1280, 720), 640 / WEBCAM, 1e-6),
        ("webcam", (480, 640), 320 / WEBCAM, 1e-6),
        ("logitech_c920", (1920, 1080), HD, 1e-6),
        ("logitech_c920", (640, 480), HD * 480 / 1080, 1e-6),  # as high, and less wide
        ("phone", (1920, 1440), PHONE, 1e-3),
        ("phone", (1920, 1080), PHONE, 1e-3),
        # What others calibrated in the middle of wide lenses.
        ("gopro_wide", (3840, 2160), 1796.3, 0.01),
        ("gopro_wide", (5312, 3984), 2373.4, 0.01),
        ("gopro_linear", (5312, 2988), 2532.6, 0.002),
        ("quest3", (1280, 960), 868.31, 0.002),
    ],
)
def test_focal_lengths_by_hand(name: str, size: tuple[int, int], focal: float, rel: float) -> None:
    assert preset_camera(name, *size).fx == pytest.approx(focal, rel=rel)


def test_a_turned_camera_and_a_picture_of_another_shape() -> None:
    for name in ("gopro_wide", "phone"):
        assert preset_camera(name, 1080, 1920) == preset_camera(name, 1920, 1080).rotated(90)
    with pytest.raises(CalibrationError, match=r"quest3.*1280 x 1280.*4:3"):
        preset_camera("quest3", 1280, 1280)
    with pytest.raises(InputError, match="gopro_wide"):
        preset_camera("gopro_wid", 1280, 720)


def test_a_video_with_a_preset(tmp_path: Path) -> None:
    video = write_video(tmp_path / "v.mp4", frames=2, size=(640, 360))
    phone, lens = preset_camera("phone", 640, 360), preset_camera("gopro_wide", 640, 360)
    recording = open_recording(video, camera_preset="phone")
    assert recording.camera == phone
    assert any("camera preset phone" in note for note in recording.notes)
    for mirrored in (False, True):
        wide = open_recording(video, camera_preset="gopro_wide", mirrored=mirrored)
        assert wide.camera == lens.whole_view() and wide.processing["undistorted"] == lens.to_json()
    with pytest.raises(InputError, match=r"`intrinsics`.*`camera`.*`camera_preset`"):
        open_recording(video, camera_preset="phone", intrinsics=(500, 500, 320, 180))
    # Datasets from before it was there can be resumed, but not with another preset.
    given = JobSettings(reading=RecordingOptions(camera_preset="aria")).shaping(30)
    assert given["camera-preset"] == "aria" and "camera-preset" not in JobSettings().shaping(30)


def test_show_convert_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = write_video(tmp_path / "v.mp4", frames=2, size=(640, 480))
    run = Acehand(capsys, "camera", "show", "gopro_wide", video, "--output", tmp_path / "p.png")
    assert run.code == 0 and run.json["format"] == "preset"
    assert Camera.from_json(run.json["camera"]) == preset_camera("gopro_wide", 640, 480)
    words = ("phone", "--size", "1280x720", "--output", tmp_path / "c.json")
    assert Acehand(capsys, "camera", "convert", *words).code == 0
    written = Camera.from_json(json.loads((tmp_path / "c.json").read_text()))
    assert written == preset_camera("phone", 1280, 720)
    run = Acehand(capsys, "camera", "presets")
    assert run.code == 0 and set(run.json["presets"]) == set(PRESETS)
    assert "gopro_wide" in run.err and "115.7 horizontal" in run.err


def test_without_a_camera_the_note_names_what_to_give(tmp_path: Path) -> None:
    recording = open_recording(write_video(tmp_path / "v.mp4", frames=2, size=(96, 64)))
    tracker = MediaPipeTracker(TrackerSettings())
    notes = tracker._provenance(recording, Camera.nominal(96, 64)).notes
    (note,) = [note for note in notes if "60 degrees" in note]
    for name in ("`camera_preset`", "`camera`", "`camera_estimate`"):
        assert name in note
    # Of 3:2 pictures: those whose pictures may be cropped; Aria's are square.
    assert "webcam, logitech_c920, phone" in note
    square = presets_for(1408, 1408)
    assert "aria" in square and "gopro_wide" not in square


def phone_video(path: Path, size: tuple[int, int], value: str, key: str = APPLE) -> Path:
    """A video with Apple's key or another, which PyAV writes with an option only."""
    flags = {"movflags": "use_metadata_tags"}
    return write_video(path, 2, size=size, metadata={key: value}, container_options=flags)


def test_a_phones_focal_length(tmp_path: Path) -> None:
    """26 mm for the 43.267 mm of film, on the diagonal of the 4:3 picture: 5/4 of the width."""
    path = tmp_path / "a.mov"
    recording = open_recording(phone_video(path, (640, 360), "26"))
    assert recording.camera.fx == pytest.approx(26 / math.hypot(36, 24) * 640 * 1.25)
    assert any("26 mm by 35 mm film" in note for note in recording.notes)
    # The tracker takes it: no assumption is noted.
    notes = MediaPipeTracker(TrackerSettings())._provenance(recording, recording.camera).notes
    assert any("26 mm" in note for note in notes) and not any("60 degrees" in n for n in notes)
    # The user's choice comes first.
    assert open_recording(path, camera_metadata=False).camera is None
    given = open_recording(path, camera_preset="webcam")
    assert given.camera == preset_camera("webcam", 640, 360)
    assert not any("35 mm" in note for note in given.notes)

    tall = open_recording(phone_video(path, (360, 640), "13"))
    assert tall.camera.fx == pytest.approx(recording.camera.fx / 2)
    for text in ("0", "nan", "none", "-26"):
        assert open_recording(phone_video(path, (96, 64), text)).camera is None
    # Of a phone without a focal length the preset is taken.
    for name, value in (("apple.quicktime.model", "iPhone 12"), ("android.manufacturer", "Google")):
        recording = open_recording(phone_video(path, (640, 360), value, f"com.{name}"))
        assert recording.camera == preset_camera("phone", 640, 360)
        (note,) = [note for note in recording.notes if value in note]
        assert "no focal length" in note and "camera preset phone" in note
        raw = open_recording(path, camera_metadata=False)
        assert raw.camera is None and raw.notes == ()


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch):
    """Stands in for the estimator: a camera +- 2 % or too few lines; counts its calls."""

    class Stub:
        calls = 0
        camera: Camera | None = Camera("pinhole", 640, 480, 512.0, 512.0, 319.5, 239.5)

        def __call__(self, recording, progress, thorough=True) -> FocalLengthEstimate:
            self.calls += 1
            progress("tracks", 1, 2)
            findings = tuple(
                FocalLengthFinding(name, "pinhole", 0.8, 0.02, 3, np.ones(801), "")
                for name in ("motion", "lines")
            )
            reason = "" if self.camera else "lines: there are too few straight lines"
            picture, lines = np.zeros((8, 8, 3), np.uint8), np.zeros((0, 4))
            return FocalLengthEstimate(self.camera, 0.02, findings, reason, picture, lines, None)

    stub = Stub()
    monkeypatch.setattr("acehand_core.camera.focal_length.estimate", stub)
    return stub


def test_a_camera_of_the_pictures(tmp_path: Path, estimates) -> None:
    video = write_video(tmp_path / "v.mp4", frames=2, size=(640, 480))
    assert open_recording(video).camera is None and estimates.calls == 0
    shown: list[str] = []
    options = RecordingOptions(camera_estimate=True, work_dir=tmp_path / "work")

    def opened(options: RecordingOptions, path: Path = video):
        return Registry().open(path, options, lambda stage, *_: shown.append(stage))

    found = opened(options)
    assert found.camera == estimates.camera and shown == ["camera, tracks"]
    (note,) = found.notes
    # 0.8 widths: 2 atan(0.5 / 0.8) = 64.0 degrees.
    for text in ("estimated", "fx = fy = 512.0 px +- 2.0 %", "motion 64.0, lines 64.0"):
        assert text in note

    # The same pictures again: from the cache. Another part of them: estimated anew.
    again = opened(options)
    assert (again.camera, again.notes) == (found.camera, found.notes) and estimates.calls == 1
    opened(replace(options, duration_s=0.03))
    assert estimates.calls == 2

    # The user's choice and the file's own lens come first.
    given = opened(replace(options, camera_preset="webcam"))
    assert given.camera == preset_camera("webcam", 640, 480) and estimates.calls == 2
    phone = opened(options, phone_video(tmp_path / "a.mov", (640, 360), "26"))
    assert phone.camera.fx != 512 and estimates.calls == 2


def test_pictures_that_give_no_camera(tmp_path: Path, estimates) -> None:
    """The reason is a note; a phone's preset is then taken, and a bent lens is undistorted."""
    estimates.camera = None
    refused = open_recording(write_video(tmp_path / "v.mp4", frames=2), camera_estimate=True)
    (note,) = refused.notes
    assert refused.camera is None and "too few straight lines" in note
    video = phone_video(tmp_path / "a.mov", (640, 480), "iPhone 12", "com.apple.quicktime.model")
    phone = open_recording(video, camera_estimate=True)
    assert phone.camera == preset_camera("phone", 640, 480) and len(phone.notes) == 2
    estimates.camera = Camera("kannala_brandt", 640, 480, 300.0, 300.0, 319.5, 239.5, (0.0,) * 4)
    bent = open_recording(video, camera_estimate=True)
    assert bent.camera.model == "pinhole" and bent.camera.fx < 300
    assert "undistorted" in bent.processing and "estimated" in bent.notes[0]
    with pytest.raises(InputError, match="`camera_estimate`"):
        open_recording(hands_file(tmp_path / "h.npz"), camera_estimate=True)


@pytest.mark.slow
def test_a_resumed_run_has_the_camera_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, estimates
) -> None:
    """Its second episode is interrupted: the camera is kept, though it would now be another."""
    video = write_video(tmp_path / "v.mp4", frames=12, size=(640, 480))
    monkeypatch.setattr("acehand_core.pipeline.plan.max_episode_frames", lambda fps: 6)
    hands, out = hands_file(tmp_path / "h.npz", 12), tmp_path / "out"
    usual = ("--tracker", hands, "--output", out, "--no-overlay")
    flags = (*usual, "--camera-estimate")
    with monkeypatch.context() as patch:
        stop_at(patch, 1)
        assert Run(capsys, video, *flags).code == 130
    assert estimates.calls == 1
    estimates.camera = None
    other = Run(capsys, video, *usual, "--resume")
    assert other.code == 2 and "`camera_estimate`" in other.messages
    assert Run(capsys, video, *flags, "--resume").code == 0
    assert estimates.calls == 1 and len(read_provenance(out)) == 2
    tables = [pq.read_table(file) for file in out.glob("data/*/*.parquet")]
    cameras = np.concatenate([t["observation.camera"].to_pylist() for t in tables])
    np.testing.assert_allclose(cameras[:, :2], 512.0)
    assert len(cameras) == 12 and not list(tmp_path.glob(".*work*"))


def exif(millimetres: int) -> bytes:
    """EXIF by hand: a directory with a pointer to the one that has FocalLengthIn35mmFilm."""
    first = struct.pack("<HHHII", 1, 0x8769, 4, 1, 26) + bytes(4)
    second = struct.pack("<HHHIHH", 1, 0xA405, 3, 1, millimetres, 0) + bytes(4)
    return b"Exif\0\0II*\0" + struct.pack("<I", 8) + first + second


def test_photographs(tmp_path: Path) -> None:
    _, encoded = cv2.imencode(".jpg", numbered_image(1, 400, 300))
    plain, block = encoded.tobytes(), exif(28)
    marked = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]
    cameras = []
    for name, data in (("a", marked), ("b", plain)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(data)
        cameras.append(open_recording(tmp_path / name).camera)
    assert cameras[0].fx == pytest.approx(28 / math.hypot(36, 24) * 500) and cameras[1] is None


def key(name: bytes, kind: bytes, size: int, count: int, body: bytes) -> bytes:
    return struct.pack(">4scBH", name, kind, size, count) + body + bytes(-len(body) % 4)


def box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body) + 8, name) + body


def gopro(
    path: Path, size: tuple[int, int], style: bytes, diagonal: float, first=b"", last=b""
) -> Path:
    """A video whose header has GoPro's keys, in a udta of its own at the end of moov."""
    write_video(path, frames=2, size=size)
    keys = key(b"DVNM", b"c", 1, 15, b"Global Settings") + first + key(b"VFOV", b"c", 1, 1, style)
    keys += key(b"ZFOV", b"f", 4, 1, struct.pack(">f", diagonal)) + last
    header = key(b"DEVC", b"\0", 1, len(keys), keys)
    data = path.read_bytes()
    at = data.rindex(b"moov") - 4
    content = data[at + 8 :]
    assert int.from_bytes(data[at : at + 4]) == len(content) + 8  # the last box
    content = content.replace(b"udta", b"free")  # FFmpeg's own
    content += box(b"udta", box(b"GPMF", header))
    path.write_bytes(data[:at] + box(b"moov", content))
    return path


def test_a_gopros_polynomial(tmp_path: Path) -> None:
    """The angle of any pixel is the polynomial at its distance, in a unit by the corner's angle."""
    keys = key(b"POLY", b"f", 4, 5, struct.pack(">5f", *POLYNOMIAL)) + key(
        b"EISE", b"c", 1, 1, b"Y"
    )
    recording = open_recording(gopro(tmp_path / "g.mp4", (640, 480), b"W", 147.8, last=keys))
    assert recording.camera.model == "pinhole"
    lens = Camera.from_json(recording.processing["undistorted"])
    half = math.radians(147.8 / 2)
    roots = np.roots([*POLYNOMIAL[:0:-1], -half])
    corner = min(root.real for root in roots if abs(root.imag) < 1e-9 and root.real > 0)
    for pixels in (40, 120, 200, 280, 360, 399):
        ray = lens.unproject(np.array([319.5 + 0.8 * pixels, 239.5 + 0.6 * pixels]))
        expected = np.polyval(POLYNOMIAL[::-1], corner * pixels / 400)
        assert math.acos(ray[2]) == pytest.approx(expected, abs=0.004), pixels
    # Gyroflow calibrated another copy of this camera: 2373.4 px of 5312.
    assert lens.fx / 640 == pytest.approx(2373.4 / 5312, rel=0.01)
    (note,) = [note for note in recording.notes if "GoPro" in note]
    assert "147.8 degrees diagonal" in note and "stabilisation was on" in note


def test_a_gopros_lenses(tmp_path: Path) -> None:
    path, size = tmp_path / "g.mp4", (640, 360)
    linear = open_recording(gopro(path, size, b"L", 100.7))
    assert linear.processing.get("undistorted") is None
    focal = math.hypot(*size) / 2 / math.tan(math.radians(50.35))
    assert linear.camera.fx == pytest.approx(focal)
    # Without a polynomial the lens bends as gopro_wide does; the corner is where ZFOV says.
    wide = open_recording(gopro(path, size, b"W", 130.1)).processing["undistorted"]
    lens = Camera.from_json(wide)
    assert lens.fx == pytest.approx(preset_camera("gopro_wide", *size).fx, rel=0.005)
    assert math.degrees(lens.field_of_view()[2]) == pytest.approx(130.1, abs=0.1)

    zoom = key(b"DZOM", b"c", 1, 1, b"Y") + key(b"DZST", b"L", 4, 1, struct.pack(">I", 50))
    for style, keys in ((b"S", b""), (b"W", zoom)):
        recording = open_recording(gopro(path, size, style, 130.1, last=keys))
        assert recording.camera is None
        assert any("field of view" in note for note in recording.notes)
    # A polynomial that turns back is no lens.
    bad = key(b"POLY", b"f", 4, 3, struct.pack(">3f", 0, 1, -1))
    turned = open_recording(gopro(path, size, b"W", 130.1, last=bad))
    assert turned.processing["undistorted"] == wide


def deep() -> bytes:
    nested = b""
    while len(nested) < 60_000:
        nested = key(b"DEVC", b"\0", 1, len(nested), nested)
    return nested


@pytest.mark.parametrize(
    "keys",
    [
        key(b"ZFOV", b"c", 1, 3, b"abc"),
        key(b"ZFOV", b"f", 4, 0, b""),
        key(b"ZFOV", b"f", 4, 1, struct.pack(">f", math.nan)),
        key(b"ARWA", b"c", 1, 1, b"x"),
        deep(),
    ],
    ids=["text", "nothing", "nan", "shape", "deep"],
)
def test_a_strange_header_gives_no_lens(tmp_path: Path, keys: bytes) -> None:
    """The video opens anyway."""
    camera = open_recording(gopro(tmp_path / "g.mp4", (640, 360), b"W", 130.1, keys)).camera
    assert (camera is None) == (len(keys) < 1000)
