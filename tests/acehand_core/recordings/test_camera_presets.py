"""Presets and metadata against arithmetic by hand, OpenCV's projection and fabricated files."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.camera.focal_length import FocalLengthEstimate, FocalLengthFinding
from acehand_core.cli import console, retarget
from acehand_core.cli.flags import parse
from acehand_core.errors import CalibrationError, InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.lerobot.writer import LeRobotWriter
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.camera_presets import PRESETS, preset_camera, presets_for
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from helpers import ROOT
from helpers.commands import Acehand, Run, hands_file
from helpers.video_fixtures import numbered_image, write_video

APPLE = "com.apple.quicktime.camera.focal_length.35mm_equivalent"
#: The polynomial and angles of a HERO11, from https://github.com/andrei-demidov/python-gpmf-metadata
POLYNOMIAL = (0.0, 1.8229533433914185, 0.1068095788359642, -0.6631866097450256, 0.35631099343299866)


# Presets.


def degrees_at(camera: Camera, pixel: tuple[float, float]) -> float:
    """Angle of a pixel's ray to the axis, by OpenCV."""
    at = np.array([[pixel]], np.float64)
    if camera.model == "pinhole":
        x, y = cv2.undistortPoints(at, camera.K, None)[0, 0]
        return math.degrees(math.atan(math.hypot(x, y)))
    k = np.array(camera.distortion)
    # Of OpenCV's result only the direction counts: angles of 60 degrees are far out.
    x, y = cv2.fisheye.undistortPoints(at, camera.K, k)[0, 0]
    return math.degrees(math.atan(math.hypot(x, y)))


@pytest.mark.parametrize(
    ("name", "view"), [(name, view) for name, p in PRESETS.items() for view in p.views]
)
def test_a_preset_has_the_published_angles(name: str, view) -> None:
    across, down = view.shape or (16, 9)
    width, height = 120 * across, 120 * down
    if across == down:
        width = height = 1408
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


def test_focal_lengths_by_hand() -> None:
    """Of pinholes from the angles; of wide lenses what others calibrated in the middle."""
    for size in ((1280, 720), (480, 640), (500, 500)):
        focal = max(size) / 2 / math.tan(math.radians(30))
        assert preset_camera("webcam", *size).fx == pytest.approx(focal)
    hd = math.hypot(1920, 1080) / 2 / math.tan(math.radians(39))
    assert preset_camera("logitech_c920", 1920, 1080).fx == pytest.approx(hd)
    # Its 4:3 pictures have the same height, and less width.
    assert preset_camera("logitech_c920", 640, 480).fx == pytest.approx(hd * 480 / 1080)
    # 26 mm for a diagonal of 43.27 mm; a 16:9 video has the width of the 4:3 sensor.
    assert preset_camera("phone", 1920, 1440).fx == pytest.approx(26 / 43.267 * 2400, rel=1e-3)
    assert preset_camera("phone", 1920, 1080).fx == pytest.approx(26 / 43.267 * 2400, rel=1e-3)
    assert preset_camera("gopro_wide", 3840, 2160).fx == pytest.approx(1796.3, rel=0.01)
    assert preset_camera("gopro_wide", 5312, 3984).fx == pytest.approx(2373.4, rel=0.01)
    assert preset_camera("gopro_linear", 5312, 2988).fx == pytest.approx(2532.6, rel=0.002)
    assert preset_camera("quest3", 1280, 960).fx == pytest.approx(868.31, rel=0.002)


def test_a_turned_camera_and_a_picture_of_another_shape() -> None:
    upright, level = (
        preset_camera("gopro_wide", 1080, 1920),
        preset_camera("gopro_wide", 1920, 1080),
    )
    assert upright == level.rotated(90)
    assert preset_camera("phone", 1080, 1920) == preset_camera("phone", 1920, 1080).rotated(90)
    with pytest.raises(CalibrationError, match=r"quest3.*1280 x 1280.*published for 4:3 only"):
        preset_camera("quest3", 1280, 1280)
    with pytest.raises(InputError, match="gopro_wide"):
        preset_camera("gopro_wid", 1280, 720)


def test_a_video_with_a_preset(tmp_path: Path) -> None:
    video = write_video(tmp_path / "v.mp4", frames=2, size=(640, 360))
    recording = open_recording(video, camera_preset="phone")
    assert recording.camera == preset_camera("phone", 640, 360)
    assert any("camera preset phone" in note for note in recording.notes)
    wide = open_recording(video, camera_preset="gopro_wide")
    assert wide.camera == preset_camera("gopro_wide", 640, 360).whole_view()
    assert wide.processing["undistorted"] == preset_camera("gopro_wide", 640, 360).to_json()
    mirrored = open_recording(video, camera_preset="gopro_wide", mirrored=True)
    assert mirrored.processing["undistorted"] == wide.processing["undistorted"]
    with pytest.raises(InputError, match="one of --intrinsics, --camera and --camera-preset"):
        open_recording(video, camera_preset="phone", intrinsics=(500, 500, 320, 180))


def test_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = parse(
        "acehand-retarget", ["v.mp4", "--camera-preset", "aria"], retarget.Retarget, console.Common
    )
    assert command.job.reading.camera_preset == "aria"
    with pytest.raises(SystemExit):
        words = ["v.mp4", "--camera-preset", "aria", "--camera", "c.json"]
        parse("acehand-retarget", words, retarget.Retarget, console.Common)
    # Datasets from before it was there can be resumed; with another preset none.
    given = JobSettings(reading=RecordingOptions(camera_preset="aria")).shaping(30)
    assert given["camera-preset"] == "aria" and "camera-preset" not in JobSettings().shaping(30)

    run = Acehand(
        capsys, "reconstruct", hands_file(tmp_path / "h.npz"), "--camera-preset", "aria",
        "--output", tmp_path / "o.parquet",
    )  # fmt: skip
    assert run.code == 2 and "do not apply to it: --camera-preset" in run.err


def test_show_convert_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = write_video(tmp_path / "v.mp4", frames=2, size=(640, 480))
    picture = tmp_path / "p.png"
    run = Acehand(capsys, "camera", "show", "gopro_wide", video, "--output", picture)
    assert run.code == 0 and picture.is_file()
    assert Camera.from_json(run.json["camera"]) == preset_camera("gopro_wide", 640, 480)
    assert run.json["format"] == "preset" and "gyroflow" in run.json["note"]
    output = tmp_path / "c.json"
    run = Acehand(capsys, "camera", "convert", "phone", "--size", "1280x720", "--output", output)
    assert run.code == 0
    assert Camera.from_json(json.loads(output.read_text())) == preset_camera("phone", 1280, 720)

    run = Acehand(capsys, "camera", "presets")
    assert run.code == 0 and set(run.json["presets"]) == set(PRESETS)
    assert "gopro_wide" in run.err and "115.7 horizontal" in run.err


def test_without_a_camera_the_note_names_what_to_give(tmp_path: Path) -> None:
    """The whole tracker runs on a picture without hands: the note is in its provenance."""
    video = write_video(tmp_path / "v.mp4", frames=2, size=(96, 64))
    recording = open_recording(video)
    tracker = MediaPipeTracker(TrackerSettings())
    notes = tracker._provenance(recording, Camera.nominal(96, 64)).notes
    (note,) = [note for note in notes if "60 degrees" in note]
    for name in ("--camera-preset", "--camera", "--camera-estimate"):
        assert name in note
    # Of 3:2 pictures: those whose pictures may be cropped; Aria's are square.
    assert "this shape webcam, logitech_c920, phone)" in note
    square = presets_for(1408, 1408)
    assert "aria" in square and "gopro_wide" not in square


# Metadata.


def phone_video(path: Path, size: tuple[int, int], value: str, key: str = APPLE) -> Path:
    """A video with Apple's key or another, which PyAV writes where it is asked to."""
    with av.open(str(path), "w", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata[key] = value
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(2):
            image = numbered_image(number, *size)
            frame = av.VideoFrame.from_ndarray(image, "rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_a_phones_focal_length(tmp_path: Path) -> None:
    """26 mm for the 43.267 mm of film, on the diagonal of the 4:3 picture: 5/4 of the width."""
    video = phone_video(tmp_path / "a.mov", (640, 360), "26")
    recording = open_recording(video)
    assert recording.camera is not None
    assert recording.camera.fx == pytest.approx(26 / math.hypot(36, 24) * 640 * 1.25)
    assert any("26 mm by 35 mm film" in note for note in recording.notes)
    tall = open_recording(phone_video(tmp_path / "b.mov", (360, 640), "13"))
    assert tall.camera is not None and tall.camera.fx == pytest.approx(recording.camera.fx / 2)

    # What the user says counts more.
    assert open_recording(video, camera_metadata=False).camera is None
    given = open_recording(video, camera_preset="webcam")
    assert given.camera == preset_camera("webcam", 640, 360)
    assert not any("35 mm" in note for note in given.notes)
    for text in ("0", "nan", "none", "-26"):
        assert open_recording(phone_video(tmp_path / "c.mov", (96, 64), text)).camera is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("com.apple.quicktime.model", "iPhone 12"), ("com.android.manufacturer", "Google")],
)
def test_a_phone_that_does_not_say_its_focal_length(tmp_path: Path, key: str, value: str) -> None:
    recording = open_recording(phone_video(tmp_path / "a.mov", (640, 360), value, key))
    assert recording.camera == preset_camera("phone", 640, 360)
    (note,) = [note for note in recording.notes if value in note]
    assert "no focal length" in note and "camera preset phone" in note
    raw = open_recording(tmp_path / "a.mov", camera_metadata=False)
    assert raw.camera is None and raw.notes == ()


def estimated(camera: Camera | None) -> FocalLengthEstimate:
    """What the pictures are made to say: a camera +- 2 %, or that lines are too few."""
    findings = tuple(
        FocalLengthFinding(name, "pinhole", 0.8, 0.02, 3, np.ones(801), "")
        for name in ("motion", "lines")
    )
    reason = "" if camera else "lines: there are too few straight lines"
    picture = np.zeros((8, 8, 3), np.uint8)
    return FocalLengthEstimate(camera, 0.02, findings, reason, picture, np.zeros((0, 4)), None)


@pytest.fixture
def estimates(monkeypatch: pytest.MonkeyPatch):
    """Replace the estimator: it says what is put in, and counts its calls."""

    class Stub:
        calls = 0
        camera: Camera | None = Camera("pinhole", 640, 480, 512.0, 512.0, 319.5, 239.5)

        def __call__(self, recording, progress, thorough=True) -> FocalLengthEstimate:
            self.calls += 1
            progress("tracks", 1, 2)
            return estimated(self.camera)

    stub = Stub()
    monkeypatch.setattr("acehand_core.camera.focal_length.estimate", stub)
    return stub


def test_a_camera_of_the_pictures(tmp_path: Path, estimates) -> None:
    video = write_video(tmp_path / "v.mp4", frames=2, size=(640, 480))
    assert open_recording(video).camera is None and estimates.calls == 0
    shown: list[str] = []
    options = RecordingOptions(camera_estimate=True, work_dir=tmp_path / "work")

    def opened(options: RecordingOptions):
        return Registry().open(video, options, lambda stage, *_: shown.append(stage)).recording

    found = opened(options)
    assert found.camera == estimates.camera and shown == ["camera, tracks"]
    (note,) = found.notes
    # 0.8 widths: 2 atan(0.5 / 0.8) = 64.0 degrees.
    for text in ("estimated", "fx = fy = 512.0 px +- 2.0 %", "motion 64.0, lines 64.0"):
        assert text in note

    # The same pictures again: what was kept. Another part of them: estimated anew.
    again = opened(options)
    assert (again.camera, again.notes) == (found.camera, found.notes) and estimates.calls == 1
    opened(replace(options, duration_s=0.03))
    assert estimates.calls == 2

    # What the user or the file says goes first.
    given = opened(replace(options, camera_preset="webcam"))
    assert given.camera == preset_camera("webcam", 640, 480) and estimates.calls == 2
    phone = phone_video(tmp_path / "a.mov", (640, 360), "26")
    said = Registry().open(phone, options).recording
    assert said.camera is not None and said.camera.fx != 512 and estimates.calls == 2


def test_pictures_that_give_no_camera(tmp_path: Path, estimates) -> None:
    """The reason is a note; a phone's preset is then taken, and a bent lens is undistorted."""
    estimates.camera = None
    refused = open_recording(write_video(tmp_path / "v.mp4", frames=2), camera_estimate=True)
    assert refused.camera is None
    assert refused.notes == ("--camera-estimate proposes no camera: lines: there are too few "
                             "straight lines",)  # fmt: skip
    video = phone_video(tmp_path / "a.mov", (640, 480), "iPhone 12", "com.apple.quicktime.model")
    phone = open_recording(video, camera_estimate=True)
    assert phone.camera == preset_camera("phone", 640, 480) and len(phone.notes) == 2
    estimates.camera = Camera("kannala_brandt", 640, 480, 300.0, 300.0, 319.5, 239.5, (0.0,) * 4)
    bent = open_recording(video, camera_estimate=True)
    assert bent.camera is not None and bent.camera.model == "pinhole" and bent.camera.fx < 300
    assert "undistorted" in bent.processing and "estimated" in bent.notes[0]
    with pytest.raises(InputError, match="--camera-estimate"):
        open_recording(hands_file(tmp_path / "h.npz"), camera_estimate=True)


@pytest.mark.slow
def test_a_resumed_run_has_the_camera_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, estimates
) -> None:
    """Its second episode is interrupted: the camera is kept, though it would now be another."""
    video = write_video(tmp_path / "v.mp4", frames=12, size=(640, 480))
    hands = hands_file(tmp_path / "h.npz", 12)
    monkeypatch.setattr("acehand_core.pipeline.job.max_episode_frames", lambda fps: 6)
    out = tmp_path / "out"
    usual = ("--tracker", hands, "--output", out, "--no-overlay")
    flags = (*usual, "--camera-estimate")
    with monkeypatch.context() as patch:
        add = LeRobotWriter.add_episode

        def interrupted(writer: LeRobotWriter, *arguments: object) -> int:
            if writer.total_episodes == 1:
                raise KeyboardInterrupt
            return add(writer, *arguments)

        patch.setattr(LeRobotWriter, "add_episode", interrupted)
        assert Run(capsys, video, *flags).code == 130
    assert estimates.calls == 1
    estimates.camera = None
    other = Run(capsys, video, *usual, "--resume")
    assert other.code == 2 and "--camera-estimate" in other.messages
    assert Run(capsys, video, *flags, "--resume").code == 0
    assert estimates.calls == 1 and len(read_provenance(out)) == 2
    tables = [pq.read_table(file) for file in out.glob("data/*/*.parquet")]
    cameras = np.concatenate([t["observation.camera"].to_pylist() for t in tables])
    np.testing.assert_allclose(cameras[:, :2], 512.0)
    assert len(cameras) == 12
    assert not list(tmp_path.glob(".*work*"))


def exif(millimetres: int) -> bytes:
    """EXIF by hand: a directory with a pointer to the one that has FocalLengthIn35mmFilm."""
    first = struct.pack("<HHHII", 1, 0x8769, 4, 1, 26) + bytes(4)
    second = struct.pack("<HHHIHH", 1, 0xA405, 3, 1, millimetres, 0) + bytes(4)
    return b"Exif\0\0II*\0" + struct.pack("<I", 8) + first + second


def test_photographs(tmp_path: Path) -> None:
    _, encoded = cv2.imencode(".jpg", numbered_image(1, 400, 300))
    plain, block = encoded.tobytes(), exif(28)
    marked = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]
    for name, data in (("a", marked), ("b", plain)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(data)
    camera = open_recording(tmp_path / "a").camera
    assert camera is not None
    assert camera.fx == pytest.approx(28 / math.hypot(36, 24) * 500)
    assert open_recording(tmp_path / "b").camera is None


def key(name: bytes, kind: bytes, size: int, count: int, body: bytes) -> bytes:
    return struct.pack(">4scBH", name, kind, size, count) + body + bytes(-len(body) % 4)


def box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body) + 8, name) + body


def gopro(
    path: Path, size: tuple[int, int], *, style: bytes, diagonal: float, **more: bytes
) -> Path:
    """A video whose header has GoPro's keys, in a udta of its own at the end of moov."""
    write_video(path, frames=2, size=size)
    keys = key(b"DVNM", b"c", 1, 15, b"Global Settings") + more.pop("first", b"")
    keys += key(b"VFOV", b"c", 1, 1, style)
    keys += key(b"ZFOV", b"f", 4, 1, struct.pack(">f", diagonal))
    keys += b"".join(more.values())
    header = key(b"DEVC", b"\0", 1, len(keys), keys)
    data = path.read_bytes()
    at = data.rindex(b"moov") - 4
    content = data[at + 8 :]
    assert int.from_bytes(data[at : at + 4]) == len(content) + 8  # the last box
    content = content.replace(b"udta", b"free")  # FFmpeg's own
    content += box(b"udta", box(b"GPMF", header))
    path.write_bytes(data[:at] + box(b"moov", content))
    return path


def polynomial_key() -> bytes:
    return key(b"POLY", b"f", 4, 5, struct.pack(">5f", *POLYNOMIAL))


def test_a_gopros_polynomial(tmp_path: Path) -> None:
    """The angle of any pixel is the polynomial at its distance, in a unit by the corner's angle."""
    video = gopro(
        tmp_path / "g.mp4", (640, 480), style=b"W", diagonal=147.8, poly=polynomial_key(),
        eis=key(b"EISE", b"c", 1, 1, b"Y"),
    )  # fmt: skip
    recording = open_recording(video)
    assert recording.camera is not None and recording.camera.model == "pinhole"
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
    linear = open_recording(gopro(tmp_path / "l.mp4", (640, 360), style=b"L", diagonal=100.7))
    assert linear.camera is not None and linear.processing.get("undistorted") is None
    focal = math.hypot(640, 360) / 2 / math.tan(math.radians(50.35))
    assert linear.camera.fx == pytest.approx(focal)
    # Without a polynomial the lens bends as gopro_wide does; the corner is where ZFOV says.
    wide = open_recording(gopro(tmp_path / "w.mp4", (640, 360), style=b"W", diagonal=130.1))
    lens = Camera.from_json(wide.processing["undistorted"])
    assert lens.fx == pytest.approx(preset_camera("gopro_wide", 640, 360).fx, rel=0.005)
    assert math.degrees(lens.field_of_view()[2]) == pytest.approx(130.1, abs=0.1)

    for name, style, more in (
        ("s", b"S", {}),
        ("z", b"W", {"on": key(b"DZOM", b"c", 1, 1, b"Y"),
                     "level": key(b"DZST", b"L", 4, 1, struct.pack(">I", 50))}),
    ):  # fmt: skip
        video = gopro(tmp_path / f"{name}.mp4", (640, 360), style=style, diagonal=130.1, **more)
        recording = open_recording(video)
        assert recording.camera is None
        assert any("field of view is not used" in note for note in recording.notes)
    # A header that is cut off, and a polynomial that turns back, are no lens.
    bad = key(b"POLY", b"f", 4, 3, struct.pack(">3f", 0, 1, -1))
    turned = open_recording(
        gopro(tmp_path / "b.mp4", (640, 360), style=b"W", diagonal=130.1, poly=bad)
    )
    assert Camera.from_json(turned.processing["undistorted"]) == lens


@pytest.mark.parametrize("case", ["text", "nothing", "nan", "shape", "deep"])
def test_a_strange_header_says_nothing(tmp_path: Path, case: str) -> None:
    """Whoever wrote it: the video opens, and no lens is made of what is no number."""
    strange = {
        "text": key(b"ZFOV", b"c", 1, 3, b"abc"),
        "nothing": key(b"ZFOV", b"f", 4, 0, b""),
        "nan": key(b"ZFOV", b"f", 4, 1, struct.pack(">f", math.nan)),
        "shape": key(b"ARWA", b"c", 1, 1, b"x"),
    }  # fmt: skip
    if case == "deep":
        nested = b""
        while len(nested) < 60_000:
            nested = key(b"DEVC", b"\0", 1, len(nested), nested)
        strange[case] = nested
    video = gopro(tmp_path / "g.mp4", (640, 360), style=b"W", diagonal=130.1, first=strange[case])
    camera = open_recording(video).camera
    assert (camera is None) == (case != "deep")


def test_hands_in_a_video_of_a_phone_are_placed_with_its_lens(tmp_path: Path) -> None:
    """The tracker takes it: no assumption is noted."""
    recording = open_recording(phone_video(tmp_path / "a.mov", (640, 360), "26"))
    notes = MediaPipeTracker(TrackerSettings())._provenance(recording, recording.camera).notes
    assert not any("60 degrees" in note for note in notes)
    assert any("26 mm" in note for note in notes)


def test_the_page_has_every_preset_as_it_is() -> None:
    page = (ROOT / "docs/my_camera.md").read_text("utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(PRESETS)
    for name, preset in PRESETS.items():
        for view in preset.views:
            angles = (view.horizontal, view.vertical, view.diagonal)
            for angle in (angle for angle in angles if angle is not None):
                assert f"{angle:g}" in rows[name], (name, angle)
