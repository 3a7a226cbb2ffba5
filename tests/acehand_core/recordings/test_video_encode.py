"""Encoding keeps every frame, its place in time, its pixel grid and its colours."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from acehand_core.errors import OutputError, SchemaError
from acehand_core.motion import Recording
from acehand_core.recordings.selection import at_rate
from acehand_core.recordings.video import VideoFrames, open_video
from acehand_core.recordings.video_encode import (
    EncodingCancelledError,
    VideoEncoding,
    encode_video,
    even_size,
    probe_video,
)
from helpers import ROOT
from helpers import video_fixtures as fixtures


def in_memory(images: list[np.ndarray]) -> Recording:
    height, width = images[0].shape[:2]
    stamps = np.arange(len(images), dtype=np.int64) * 33_333_333
    return Recording("memory", None, stamps, 30.0, width, height, fixtures.Images(images))


def numbered(count: int, width: int = 96, height: int = 64) -> Recording:
    return in_memory([fixtures.numbered_image(k, width, height) for k in range(count)])


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [
            # PyAV before 17 looks at a frame's tags only where it is told to.
            frame.to_ndarray(
                format="rgb24", src_colorspace=frame.colorspace, dst_colorspace="DEFAULT",
                src_color_range=frame.color_range,
            )
            for frame in container.decode(video=0)
        ]  # fmt: skip


def picture(width: int, height: int) -> np.ndarray:
    """Return a smooth picture, every corner another colour."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return np.stack([40 + 160 * x, 40 + 160 * y, 200 - 120 * x * y], axis=-1).astype(np.uint8)


def assert_close(found: np.ndarray, wanted: np.ndarray) -> None:
    difference = found.astype(float) - wanted
    assert found.shape == wanted.shape
    assert np.abs(difference).mean() < 3 and np.abs(difference.mean(axis=(0, 1))).max() < 2.5


# Time and structure


@pytest.mark.parametrize("codec", ["h264", "av1"])
@pytest.mark.parametrize("from_file", [True, False])
def test_frame_k_is_shown_at_k_over_fps(tmp_path: Path, codec: str, from_file: bool) -> None:
    recording = numbered(25)
    if from_file:
        recording = open_video(fixtures.write_video(tmp_path / "source.mp4", 25))
    done = encode_video(recording, tmp_path / "out.mp4", 30, VideoEncoding(codec=codec, gop=5))
    assert (done.width, done.height, len(done.times_s), done.codec) == (96, 64, 25, codec)
    facts = probe_video(tmp_path / "out.mp4")
    np.testing.assert_allclose(facts.times_s, np.arange(25) / 30, atol=1e-9)
    assert (facts.pix_fmt, facts.has_audio) == ("yuv420p", False)
    assert [fixtures.read_number(image) for image in decoded(done.path)] == list(range(25))


def test_there_are_no_b_frames_and_key_frames_are_where_they_were_asked_for(
    tmp_path: Path,
) -> None:
    # A source with B-frames and key frames elsewhere: neither may be inherited.
    images = [np.roll(picture(96, 64), k, axis=1) for k in range(30)]
    source = fixtures.write_video(tmp_path / "source.mp4", images, options={"g": "7", "bf": "3"})
    encode_video(open_video(source), tmp_path / "out.mp4", 30, VideoEncoding(gop=10))
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 30 and stream.codec_context.has_b_frames == 0
        packets = [packet for packet in container.demux(stream) if packet.size]
    assert [packet.pts for packet in packets] == [packet.dts for packet in packets]
    keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    assert keys == [0, 10, 20]


def test_one_frame_is_a_video(tmp_path: Path) -> None:
    done = encode_video(numbered(1), tmp_path / "out.mp4", 30)
    assert probe_video(done.path).times_s.tolist() == [0.0]


def test_variable_rates_and_repeated_frames_become_constant(tmp_path: Path) -> None:
    times = [Fraction(k * k, 90) for k in range(8)]
    source = fixtures.write_video(tmp_path / "source.mp4", 8, times=times)
    recording, _ = at_rate(open_video(source), 30)
    wanted = recording.frames.source_indices.tolist()
    assert len(set(wanted)) < len(wanted)
    done = encode_video(recording, tmp_path / "out.mp4", 30)
    np.testing.assert_allclose(
        probe_video(done.path).times_s, np.arange(len(wanted)) / 30, atol=1e-9
    )
    assert [fixtures.read_number(image) for image in decoded(done.path)] == wanted


# Pixels


@pytest.mark.parametrize("size", [(97, 65), (96, 65), (97, 64)])
@pytest.mark.parametrize("from_file", [True, False])
def test_odd_sizes_lose_the_last_row_or_column_and_nothing_moves(
    tmp_path: Path, size: tuple[int, int], from_file: bool
) -> None:
    image = picture(*size)
    image[10:20, 10:20] = 250
    recording = in_memory([image] * 3)
    if from_file:
        source = fixtures.write_video(
            tmp_path / "source.mkv", [image] * 3, codec="ffv1", pix_fmt="yuv420p"
        )
        recording = open_video(source)
    done = encode_video(recording, tmp_path / "out.mp4", 30, VideoEncoding(crf=5))
    assert (done.width, done.height) == even_size(*size) == (96, 64)
    assert_close(decoded(done.path)[1], image[:64, :96])


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("hflip", [False, True])
def test_turned_and_mirrored_sources_come_out_as_they_are_read(
    tmp_path: Path, rotation: int, hflip: bool
) -> None:
    source = fixtures.write_video(
        tmp_path / "source.mp4", [picture(96, 50)] * 3, rotation=rotation, hflip=hflip,
        options={"crf": "5"},
    )  # fmt: skip
    recording = open_video(source)
    assert isinstance(recording.frames, VideoFrames)
    done = encode_video(recording, tmp_path / "out.mp4", 30, VideoEncoding(crf=5))
    assert (done.width, done.height) == (recording.width, recording.height)
    assert_close(decoded(done.path)[1], recording.frames.at(1))
    again = open_video(done.path)
    assert again.frames.rotation == 0, "it must not be turned a second time"


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "options"),
    [
        ("libx264", "yuv420p", {"colorspace": "bt709", "color_range": "tv"}),
        ("libx264", "yuv420p", {"colorspace": "smpte170m"}),
        ("libx264", "yuv420p", {"color_range": "pc"}),
        ("libx264", "yuv420p", {}),
        ("libx264", "yuv444p", {}),
        ("libx264", "yuv420p10le", {}),
        ("mjpeg", "yuvj420p", {}),
    ],
)
def test_colours_do_not_shift(tmp_path: Path, codec: str, pix_fmt: str, options: dict) -> None:
    source = fixtures.write_video(
        tmp_path / "source.mkv", [picture(96, 64)] * 3, codec=codec, pix_fmt=pix_fmt,
        options={"crf": "5", **options} if codec == "libx264" else {"qmin": "1", "qmax": "1"},
    )  # fmt: skip
    recording = open_video(source)
    done = encode_video(recording, tmp_path / "out.mp4", 30, VideoEncoding(crf=5))
    assert_close(decoded(done.path)[1], recording.frames.at(1))


def test_colours_of_images_do_not_shift(tmp_path: Path) -> None:
    image = picture(96, 64)
    done = encode_video(in_memory([image] * 3), tmp_path / "out.mp4", 30, VideoEncoding(crf=5))
    assert_close(decoded(done.path)[1], image)


# Going wrong


def test_cancelling_leaves_nothing(tmp_path: Path) -> None:
    asked: list[int] = []

    def cancelled() -> bool:
        asked.append(1)
        return len(asked) == 3

    with pytest.raises(
        EncodingCancelledError, match="memory: encoding was stopped at frame 2 of 4"
    ):
        encode_video(numbered(4), tmp_path / "b.mp4", 30, cancelled=cancelled)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_encoding_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    path.write_text("old")

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_video(numbered(4), path, 30, cancelled=interrupt)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_settings_and_places_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="gop 0"):
        VideoEncoding(gop=0)
    recording = numbered(3)
    with pytest.raises(OutputError, match=r"encoding failed|cannot write"):
        encode_video(recording, tmp_path / "out.mp4", 30, VideoEncoding(preset="fastest"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        encode_video(recording, tmp_path / "file" / "out.mp4", 30)
    without = Recording("joints", None, np.arange(3, dtype=np.int64), 30.0, 8, 8, None)
    with pytest.raises(OutputError, match="has no frames"):
        encode_video(without, tmp_path / "out.mp4", 30)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


_FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
import test_video_encode as tests
from acehand_core.errors import OutputError
noise = np.random.default_rng(0).integers(0, 255, (30, 128, 128, 3), dtype=np.uint8)
sys.dont_write_bytecode = True  # a cut-off .pyc would break every later process
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    tests.encode_video(tests.in_memory(list(noise)), Path(sys.argv[1]), 30)
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [100, 50_000])
def test_a_full_disk_is_an_output_error_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path / "out.mp4"), str(limit)],
        env=os.environ
        | {"PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "out.mp4: cannot write: File too large" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []
