"""Encoding keeps every frame, its place in time, its pixel grid and its colours."""

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
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import (
    EncodingCancelledError,
    VideoEncoding,
    copy_parts,
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
            # PyAV before 17 looks at a frame's tags only on request.
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


def assert_kept(recording: Recording, path: Path, wanted: np.ndarray | None = None) -> None:
    """Encoding moves no pixel and shifts no colour of frame 1."""
    done = encode_video(recording, path, 30, VideoEncoding(crf=5))
    wanted, found = recording.frames.at(1) if wanted is None else wanted, decoded(done.path)[1]
    assert found.shape == wanted.shape == (done.height, done.width, 3)
    difference = found.astype(float) - wanted
    assert np.abs(difference).mean() < 3 and np.abs(difference.mean(axis=(0, 1))).max() < 2.5


@pytest.mark.parametrize("codec", ["h264", "av1"])
@pytest.mark.parametrize(("count", "from_file"), [(25, True), (25, False), (1, False)])
def test_frame_k_is_shown_at_k_over_fps(tmp_path, codec, count, from_file) -> None:
    recording = numbered(count)
    if from_file:
        recording = open_video(fixtures.write_video(tmp_path / "source.mp4", count))
    done = encode_video(recording, tmp_path / "out.mp4", 30, VideoEncoding(codec=codec, gop=5))
    assert (done.width, done.height, len(done.times_s), done.codec) == (96, 64, count, codec)
    facts = probe_video(tmp_path / "out.mp4")
    np.testing.assert_allclose(facts.times_s, np.arange(count) / 30, atol=1e-9)
    assert (facts.pix_fmt, facts.has_audio) == ("yuv420p", False)
    assert [fixtures.read_number(image) for image in decoded(done.path)] == list(range(count))


@pytest.mark.parametrize(("timescale", "kept"), [(600, 600), (1000, 30 * 2**9), (0, 30 * 2**9)])
def test_a_timescale_that_has_every_frame_is_kept(tmp_path, timescale, kept) -> None:
    """Else FFmpeg takes the rate, doubled up to at least 10000."""
    ticks = {"video_track_timescale": str(timescale or 30 * 2**9)}
    source = fixtures.write_video(tmp_path / "source.mp4", 10, container_options=ticks)
    copy_parts(source, [(0.0, 10)], tmp_path / "copied.mp4", 30)
    encode_video(open_video(source), tmp_path / "again.mp4", 30, VideoEncoding(timescale=timescale))
    for name in ("copied.mp4", "again.mp4"):
        facts = probe_video(tmp_path / name)
        assert facts.timescale == kept
        np.testing.assert_allclose(facts.times_s, np.arange(10) / 30, atol=1e-9)


def test_there_are_no_b_frames_and_key_frames_are_where_they_belong(tmp_path: Path) -> None:
    """Of a source with B-frames and key frames elsewhere."""
    images = [np.roll(picture(96, 64), k, axis=1) for k in range(30)]
    source = fixtures.write_video(tmp_path / "source.mp4", images, options={"g": "7", "bf": "3"})
    encode_video(open_video(source), tmp_path / "out.mp4", 30, VideoEncoding(gop=10))
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert stream.average_rate == 30 and stream.codec_context.has_b_frames == 0
        packets = [packet for packet in container.demux(stream) if packet.size]
    assert [packet.pts for packet in packets] == [packet.dts for packet in packets]
    assert [n for n, packet in enumerate(packets) if packet.is_keyframe] == [0, 10, 20]


def test_variable_rates_and_repeated_frames_become_constant(tmp_path: Path) -> None:
    times = [Fraction(k * k, 90) for k in range(8)]
    source = fixtures.write_video(tmp_path / "source.mp4", 8, times=times)
    recording, wanted = at_rate(open_video(source), 30)
    assert len(set(wanted)) < len(wanted)
    done = encode_video(recording, tmp_path / "out.mp4", 30)
    times = probe_video(done.path).times_s
    np.testing.assert_allclose(times, np.arange(len(wanted)) / 30, atol=1e-9)
    assert [fixtures.read_number(image) for image in decoded(done.path)] == wanted.tolist()


@pytest.mark.parametrize("size", [(97, 65), (96, 65), (97, 64)])
@pytest.mark.parametrize("from_file", [True, False])
def test_odd_sizes_lose_the_last_row_or_column_and_nothing_moves(tmp_path, size, from_file) -> None:
    image = picture(*size)
    image[10:20, 10:20] = 250
    recording = in_memory([image] * 3)
    if from_file:
        source = tmp_path / "source.mkv"
        fixtures.write_video(source, [image] * 3, codec="ffv1", pix_fmt="yuv420p")
        recording = open_video(source)
    assert even_size(*size) == (96, 64)
    assert_kept(recording, tmp_path / "out.mp4", image[:64, :96])


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
@pytest.mark.parametrize("hflip", [False, True])
def test_turned_and_mirrored_sources_come_out_as_they_are_read(tmp_path, rotation, hflip) -> None:
    source = fixtures.write_video(
        tmp_path / "source.mp4", [picture(96, 50)] * 3, rotation=rotation, hflip=hflip,
        options={"crf": "5"},
    )  # fmt: skip
    assert_kept(open_video(source), tmp_path / "out.mp4")
    assert open_video(tmp_path / "out.mp4").frames.rotation == 0  # it must not be turned again


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "options"),
    [
        ("libx264", "yuv420p", {"colorspace": "bt709", "color_range": "tv"}),
        ("libx264", "yuv420p", {"colorspace": "smpte170m"}),
        ("libx264", "yuv420p", {"color_range": "pc"}),
        ("libx264", "yuv420p", {}),
        ("libx264", "yuv444p", {}),
        ("libx264", "yuv420p10le", {}),
        ("mjpeg", "yuvj420p", {"qmin": "1", "qmax": "1"}),
        (None, "", {}),
    ],
)
def test_colours_do_not_shift(tmp_path: Path, codec: str, pix_fmt: str, options: dict) -> None:
    source, images = tmp_path / "source.mkv", [picture(96, 64)] * 3
    recording = in_memory(images)
    if codec:
        options = {"crf": "5"} | options if codec == "libx264" else options
        fixtures.write_video(source, images, codec=codec, pix_fmt=pix_fmt, options=options)
        recording = open_video(source)
    assert_kept(recording, tmp_path / "out.mp4")


def test_an_interrupted_encoding_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path, answers = tmp_path / "out.mp4", iter([False, False, True])
    with pytest.raises(EncodingCancelledError, match=r"memory.*frame 2 of 4"):
        encode_video(numbered(4), path, 30, cancelled=lambda: next(answers))
    assert list(tmp_path.iterdir()) == []

    def interrupt() -> bool:
        raise KeyboardInterrupt

    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        encode_video(numbered(4), path, 30, cancelled=interrupt)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_settings_and_places_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="gop 0"):
        VideoEncoding(gop=0)
    (tmp_path / "file").write_text("")
    bare = Recording("joints", None, np.arange(3, dtype=np.int64), 30.0, 8, 8, None)
    wrong = VideoEncoding(preset="fastest")
    for recording, name, encoding, message in (
        (numbered(3), "out.mp4", wrong, r"encoding failed|cannot write"),
        (numbered(3), "file/out.mp4", VideoEncoding(), "cannot write"),
        (bare, "out.mp4", VideoEncoding(), "no frames"),
    ):
        with pytest.raises(OutputError, match=message):
            encode_video(recording, tmp_path / name, 30, encoding)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


_FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from acehand_core.errors import OutputError
from acehand_core.motion import Recording
from acehand_core.recordings.video_encode import encode_video
from helpers.video_fixtures import Images
noise = np.random.default_rng(0).integers(0, 255, (30, 128, 128, 3), dtype=np.uint8)
recording = Recording("memory", None, np.arange(30) * 33_333_333, 30.0, 128, 128, Images(noise))
sys.dont_write_bytecode = True  # a cut-off .pyc would break every later process
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    encode_video(recording, Path(sys.argv[1]), 30)
except OutputError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [100, 50_000])
def test_a_full_disk_is_an_output_error_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    words = [sys.executable, "-c", _FULL_DISK, str(tmp_path / "out.mp4"), str(limit)]
    printed = subprocess.check_output(words, env=os.environ | path, text=True, timeout=60)
    assert "out.mp4" in printed and "File too large" in printed
    assert list(tmp_path.iterdir()) == []
