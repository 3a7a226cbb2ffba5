"""Reading videos: every frame at its exact index and time, whatever the file looks like."""

import hashlib
import pickle
import re
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acehand_core.errors import InputError, VideoError
from acehand_core.recordings.registry import open_recording
from acehand_core.recordings.selection import at_rate
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import encode_video
from acehand_core.recordings.video_index import repair_times
from helpers import video_fixtures
from helpers.video_fixtures import numbered_image, read_number, write_audio, write_video

#: One key frame in 250, and three frames of each four stored out of order.
LONG_GOP = {
    "preset": "ultrafast",
    "x264-params": "keyint=250:min-keyint=250:scenecut=0:bframes=3:b-adapt=0",
}
FAST = {"preset": "ultrafast"}


def numbers(images) -> list[int]:
    return [read_number(image) for image in images]


def check_exact(path: Path, count: int) -> None:
    """Every way of reading gives frame i at index i."""
    frames, expected = open_video(path).frames, list(range(count))
    assert len(frames) == count
    for start, stop in ((0, count), (count // 3, count // 2), (count - 1, count), (0, 0)):
        assert numbers(frames.read(start, stop)) == expected[start:stop]
    shuffled = np.random.default_rng(0).permutation(count)[:25].tolist()
    for order in (shuffled, expected[:40]):
        assert numbers(map(frames.at, order)) == order


@pytest.fixture(scope="module")
def long_gop(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("video") / "long_gop.mp4"
    return write_video(path, 300, options=LONG_GOP, audio=True)


def resampled(path, fps: int, **cut):
    return at_rate(open_recording(path, **cut), fps)[0]


def test_exact_frames_with_long_gop_and_b_frames(long_gop: Path) -> None:
    recording = open_video(str(long_gop))
    raw = list(recording.frames.decode(0, 300))
    kinds = [av.video.frame.PictureType(frame.pict_type).name for frame in raw]
    assert kinds.count("I") == 2 and kinds.count("B") > 150
    assert {frame.format.name for frame in raw} == {"yuv420p"}
    assert numbers(f.to_ndarray(format="rgb24") for f in raw[100:140]) == list(range(100, 140))
    check_exact(long_gop, 300)
    assert recording.sha256 == hashlib.sha256(long_gop.read_bytes()).hexdigest()
    assert recording.source == str(long_gop) and recording.frames.path == long_gop


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt", "options"),
    [
        ("b.mkv", "libx264", "yuv420p", LONG_GOP),
        ("b.ts", "libx264", "yuv420p", LONG_GOP | {"x264-params": "keyint=12:bframes=2"}),
        ("stored_order.avi", "libx264", "yuv420p", LONG_GOP),
        ("no_stamps.h264", "libx264", "yuv420p", LONG_GOP),
        ("b.avi", "mpeg4", "yuv420p", {"bf": "2", "b": "2M"}),
        ("intra.avi", "mjpeg", "yuvj420p", {}),
        ("hidden_frames.webm", "libvpx", "yuv420p", {"auto-alt-ref": "1", "lag-in-frames": "16"}),
        ("vp9.webm", "libvpx-vp9", "yuv420p", {"deadline": "realtime", "cpu-used": "8"}),
        ("open_gop.mp4", "libx265", "yuv420p",
         {"preset": "ultrafast", "x265-params": "keyint=10:open-gop=1:bframes=3:log-level=none"}),
        ("intra_refresh.mp4", "libx264", "yuv420p",
         {"preset": "ultrafast", "x264-params": "intra-refresh=1:keyint=15"}),
        ("lossless.mkv", "ffv1", "yuv444p", {}),
        ("fragments.mp4", "libx264", "yuv420p", FAST | {"g": "10"}),
    ],
)  # fmt: skip
def test_exact_frames_in_every_container(tmp_path, name, codec, pix_fmt, options) -> None:
    flags = {"movflags": "frag_keyframe+empty_moov+default_base_moof"} if "frag" in name else {}
    path = write_video(tmp_path / name, 60, codec=codec, pix_fmt=pix_fmt, options=options,
                       container_options=flags)  # fmt: skip
    check_exact(path, 60)
    recording = open_video(path)
    rate = 25 if name.endswith("h264") else 30
    assert recording.fps == pytest.approx(rate)
    spacing = np.diff(recording.timestamps_ns)
    tolerance = 1e6 if path.suffix in (".mkv", ".webm") else 1  # Matroska keeps milliseconds
    usual = np.abs(spacing - 1e9 / rate) <= tolerance
    assert usual.all() or (name == "stored_order.avi" and usual.mean() > 0.95)


@pytest.mark.parametrize(
    ("size", "codec", "pix_fmt"),
    [
        ((97, 65), "ffv1", "yuv444p"),
        ((97, 65), "mjpeg", "yuvj420p"),
        ((63, 81), "libx264", "yuv444p"),
        ((96, 64), "libx264", "yuv420p10le"),
        ((96, 64), "libx264", "yuv422p"),
        ((96, 64), "ffv1", "gray16le"),
        ((96, 64), "ffv1", "bgra"),
        ((3840, 2160), "libx264", "yuv420p"),
    ],
)
def test_odd_sizes_depths_and_4k(tmp_path, size, codec, pix_fmt) -> None:
    options = FAST if codec == "libx264" else {}
    path = tmp_path / "v.mkv"
    write_video(path, 4, size=size, codec=codec, pix_fmt=pix_fmt, options=options)
    recording = open_video(path)
    assert (recording.width, recording.height) == size
    for i, image in enumerate(recording.frames.read(0, 4)):
        assert image.shape == (size[1], size[0], 3) and image.dtype == np.uint8
        assert image.flags.writeable and image.flags.c_contiguous
        error = np.abs(image.astype(int) - numbered_image(i, *size)).mean()
        assert error < (1.5 if codec == "ffv1" else 4)


@pytest.mark.parametrize("hflip", [False, True])
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_display_matrix_is_applied(tmp_path, rotation: int, hflip: bool) -> None:
    stored = [
        np.rot90(numbered_image(i)[:, :: -1 if hflip else 1], -rotation // 90) for i in range(5)
    ]
    path = write_video(tmp_path / "v.mp4", stored, rotation=rotation, hflip=hflip)
    recording = open_video(path)
    frames = recording.frames
    assert (recording.width, recording.height) == (96, 64)
    assert (frames.rotation, frames.mirrored) == (rotation, hflip)
    check_exact(path, 5)
    raw = next(frames.decode(3, 4))
    assert (raw.width, raw.height) == ((64, 96) if rotation % 180 else (96, 64))
    small = list(frames.read_resized(2, 4, 48, 32))
    assert small[0].shape == (32, 48, 3) and numbers(small) == [2, 3]

    # A selfie is turned back, whether its display matrix mirrors or not.
    selfie = open_video(path, mirrored=True).frames
    assert selfie.mirrored is not hflip
    assert numbers(image[:, ::-1] for image in selfie.read(0, 3)) == [0, 1, 2]


#: OpenCV's reader takes rotation and colour tags into account from 4.13 on.
needs_opencv_4_13 = pytest.mark.skipif(
    tuple(map(int, cv2.__version__.split(".")[:2])) < (4, 13), reason="OpenCV is before 4.13"
)


@needs_opencv_4_13
@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_pictures_agree_with_opencv(tmp_path, rotation: int) -> None:
    rng = np.random.default_rng(0)
    images = [cv2.resize(rng.integers(0, 255, (6, 8, 3), np.uint8), (96, 64)) for _ in range(4)]
    path = write_video(tmp_path / "v.mp4", images, rotation=rotation)
    capture = cv2.VideoCapture(str(path))
    for image in open_video(path).frames.read(0, 4):
        found, expected = capture.read()
        assert found
        np.testing.assert_array_equal(image, expected[..., ::-1])


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "options"),
    [
        ("libx264", "yuv420p", FAST | {"crf": "8"}),
        ("libx264", "yuv420p", FAST | {"crf": "8", "colorspace": "smpte170m", "color_range": "pc"}),
        ("libx264", "yuv444p", FAST | {"crf": "8", "colorspace": "bt709", "color_range": "tv"}),
        ("mjpeg", "yuvj420p", {"qmin": "1", "q": "1"}),
        ("libx264", "yuv420p10le", FAST | {"crf": "8"}),
        ("ffv1", "bgra", {}),
        ("ffv1", "gray", {}),
    ],
)
@pytest.mark.parametrize("size", [(90, 60), (75, 47), (240, 160)])
def test_resized_pictures_agree_with_opencv(tmp_path, codec, pix_fmt, options, size) -> None:
    """Grey ones, as resized colours of 4:2:0 may lie half a pixel off, and a plain colour."""
    rng = np.random.default_rng(0)
    grey = cv2.resize(rng.integers(0, 255, (4, 6), np.uint8), (150, 100))
    plain = np.full((100, 150, 3), (200, 60, 90), np.uint8)
    images = [grey[..., None].repeat(3, axis=2), plain, 255 - plain]
    path = write_video(tmp_path / "v.mkv", images, codec=codec, pix_fmt=pix_fmt, options=options)
    frames = open_video(path).frames
    for small, image in zip(frames.read_resized(0, 3, *size), frames.read(0, 3), strict=True):
        way = cv2.INTER_AREA if size[0] < 150 else cv2.INTER_LINEAR
        wanted = cv2.resize(image, size, interpolation=way)
        assert small.shape == wanted.shape and small.flags.writeable
        assert np.abs(small.astype(int) - wanted).mean() < 2


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("matrix", "red", "blue"), [("bt709", 0.2126, 0.0722), ("smpte170m", 0.299, 0.114)]
)
def test_colours_follow_the_tags(tmp_path, matrix, red, blue, full) -> None:
    """... by the formulas of BT.709 and BT.601, from the planes that are stored."""
    tags = {"colorspace": matrix, "color_range": "pc" if full else "tv"}
    image = np.full((64, 96, 3), (200, 60, 90), np.uint8)
    path = write_video(tmp_path / "v.mkv", [image], options=FAST | tags)
    with av.open(str(path)) as container:
        planes = next(container.decode(video=0)).planes
        y, cb, cr = (float(np.frombuffer(plane, np.uint8)[0]) for plane in planes)
    luma, chroma = (y / 255, 255) if full else ((y - 16) / 219, 224)
    r = luma + 2 * (1 - red) * (cr - 128) / chroma
    b = luma + 2 * (1 - blue) * (cb - 128) / chroma
    g = (luma - red * r - blue * b) / (1 - red - blue)
    wanted = np.clip(np.array([r, g, b]) * 255, 0, 255)
    np.testing.assert_allclose(open_video(path).frames.at(0)[32, 48], wanted, atol=3)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.mkv"])
def test_variable_frame_rate_is_read_by_stamps(tmp_path, name: str) -> None:
    times = np.cumsum([0, 33, 33, 100, 5, 7, 400, 33, 33, 34, 33]) / 1000
    path = write_video(tmp_path / name, 11, times=times, options=LONG_GOP)
    recording = open_video(path)
    np.testing.assert_allclose(recording.timestamps_ns / 1e9, times, atol=1e-5)
    assert recording.notes == ()
    check_exact(path, 11)
    ticks = resampled(path, 30)
    expected = [int(np.argmin(np.abs(times - t))) for t in np.arange(len(ticks)) / 30]
    assert numbers(ticks.frames.read(0, len(ticks))) == expected
    assert numbers(map(ticks.frames.at, range(len(ticks)))) == expected


def test_first_frame_keeps_its_own_stamp(tmp_path) -> None:
    times = [Fraction(5, 2) + Fraction(i, 30) for i in range(6)]
    path = write_video(tmp_path / "late.mkv", 6, times=times)
    assert open_video(path).timestamps_ns[0] == 2_500_000_000
    ticks = resampled(path, 15, start_s=0.1)
    assert ticks.timestamps_ns.tolist() == [2_600_000_000, 2_666_666_667]
    path = write_video(tmp_path / "one.mp4", 1)
    check_exact(path, 1)
    assert open_video(path).fps == pytest.approx(30)


def test_edit_list_hides_frames(long_gop: Path, tmp_path) -> None:
    """An edit list that starts ten frames later and lasts one second."""
    data = bytearray(long_gop.read_bytes())
    at = data.find(b"elst") + 12
    _, media_time = struct.unpack(">Ii", data[at : at + 8])
    data[at : at + 8] = struct.pack(">Ii", 1000, media_time + 10 * 3000)
    path = tmp_path / "edited.mp4"
    path.write_bytes(data)
    recording = open_video(path)
    frames = recording.frames
    assert recording.notes == ()
    shown = numbers(frames.read(0, len(frames)))
    assert shown == list(range(10, 10 + len(frames))) and abs(len(frames) - 30) <= 1
    assert recording.timestamps_ns[0] == 0
    assert read_number(frames.at(20)) == 30


def test_threads_and_iterators_read_at_once(long_gop: Path) -> None:
    frames, barrier = open_video(long_gop).frames, threading.Barrier(4)

    def work(seed: int) -> bool:
        barrier.wait()
        picks = np.random.default_rng(seed).integers(0, 300, 12).tolist()
        ahead = range(seed * 20, seed * 20 + 40)
        read = numbers(frames.read(ahead.start, ahead.stop))
        return numbers(map(frames.at, picks)) == picks and read == list(ahead)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    pairs = zip(frames.read(0, 300), frames.read(150, 300), strict=False)
    assert [numbers(next(pairs)) for _ in range(5)] == [[i, 150 + i] for i in range(5)]


@pytest.mark.parametrize(
    ("method", "indices"),
    [("at", [300]), ("at", [-1]), ("read", [290, 301]), ("read", [5, 3]), ("decode", [-1, 3])],
)
def test_indices_outside_are_refused(long_gop: Path, method: str, indices: list[int]) -> None:
    with pytest.raises(IndexError, match="0 to 299"):
        list(getattr(open_video(long_gop).frames, method)(*indices))


def test_selected_frames(long_gop: Path) -> None:
    chosen = np.array([3, 3, 10, 11, 250, 299, 299])
    frames = resampled(long_gop, 30, start_s=0.1).frames.select(chosen[:5])
    assert numbers(frames.read(0, 5)) == [6, 6, 13, 14, 253]
    frames = open_video(long_gop).frames.select(chosen)
    copy = pickle.loads(pickle.dumps(frames))
    assert numbers(frames.read(0, 7)) == numbers(map(copy.at, range(7))) == chosen.tolist()
    first, second = frames.read(0, 2)
    first[:] = 0
    assert read_number(second) == 3  # repeated frames share no memory


def test_ntsc_to_thirty(tmp_path) -> None:
    path = write_video(tmp_path / "ntsc.mp4", 60, fps=Fraction(30000, 1001))
    recording = resampled(path, 30)
    assert recording.fps == 30 and len(recording) == 60
    np.testing.assert_array_equal(np.diff(recording.timestamps_ns) // 10**6, 33)
    assert numbers(recording.frames.read(0, 60)) == list(range(60))
    assert recording.source_timestamps_ns[-1] == round(59 * 1001 / 30000 * 1e9)
    assert open_video(path).fps == pytest.approx(30000 / 1001)


def test_start_and_duration_cut_exactly(long_gop: Path) -> None:
    recording = open_recording(long_gop, start_s=2.0, duration_s=1.5)
    assert numbers(recording.frames.read(0, len(recording))) == list(range(60, 105))
    assert recording.timestamps_ns[0] == 2_000_000_000
    assert read_number(recording.frames.at(44)) == 104
    assert len(open_recording(long_gop, start_s=9.99)) == 1
    assert len(open_recording(long_gop, duration_s=1e-6)) == 1
    assert len(open_recording(long_gop, start_s=1, duration_s=1e6)) == 270
    both = resampled(long_gop, 10, start_s=2.0, duration_s=1.0)
    assert numbers(both.frames.read(0, len(both))) == list(range(60, 90, 3))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("start_s", -1.0, "0 to 10.000 s"),
        ("start_s", 10.0, "0 to 10.000 s"),
        ("start_s", float("nan"), "0 to 10.000 s"),
        ("duration_s", 0.0, "above 0"),
        ("duration_s", float("nan"), "above 0"),
    ],
)
def test_impossible_cuts(long_gop: Path, name: str, value: float, message: str) -> None:
    with pytest.raises(InputError, match=f"{long_gop}.*{message}"):
        open_recording(long_gop, **{name: value})


def cut_off(path: Path, share: float = 0.7, **flags: str) -> Path:
    """A video of 100 frames of which this share of the bytes is left."""
    data = write_video(path, 100, options=LONG_GOP, container_options=flags).read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    return path


def test_file_cut_off_after_its_table_yields_what_is_there(tmp_path) -> None:
    recording = open_video(cut_off(tmp_path / "v.mp4", movflags="faststart"))
    count = len(recording)
    assert 5 < count < 100 and recording.fps == 30
    (note,) = recording.notes
    assert f"at least {100 - count} of 100 frames" in note
    shown = numbers(recording.frames.read(0, count))
    assert shown == sorted(set(shown)) and shown[:5] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(recording.timestamps_ns / 1e9 * 30, shown, atol=1e-3)
    assert numbers(map(recording.frames.at, range(count))) == shown


def test_matroska_cut_off_yields_what_is_there(tmp_path) -> None:
    recording = open_video(cut_off(tmp_path / "v.mkv"))
    lost = int(re.search(r"at least (\d+) of", recording.notes[0])[1])
    assert 100 - len(recording) - 4 <= lost <= 100 - len(recording)
    shown = numbers(recording.frames.read(0, len(recording)))
    assert shown == sorted(set(shown)) and shown[:50] == list(range(50))
    np.testing.assert_allclose(recording.timestamps_ns / 1e9 * 30, shown, atol=0.02)


def blanked(path: Path, number: int) -> Path:
    """Overwrite a packet with zeros."""
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    position, size = packets[number]
    data = bytearray(path.read_bytes())
    data[position : position + size] = bytes(size)
    path.write_bytes(data)
    return path


def test_hole_in_a_file_repeats_the_frame_before(tmp_path, caplog) -> None:
    options = {"g": "20", "bf": "0", **FAST}
    frames = open_video(blanked(write_video(tmp_path / "v.mp4", 60, options=options), 25)).frames
    shown = numbers(frames.read(0, 60))
    assert shown[:26] == [*range(25), 24] and shown[40:] == list(range(40, 60))
    assert "frame 25 cannot be decoded" in caplog.text
    assert read_number(frames.at(25)) == 24


def test_file_removed_while_in_use(tmp_path) -> None:
    frames = open_video(write_video(tmp_path / "v.mp4", 5)).frames
    (tmp_path / "v.mp4").unlink()
    for _ in range(2):
        with pytest.raises(VideoError, match="does not exist"):
            list(frames.read(0, 5))
        with pytest.raises(VideoError, match="does not exist"):
            frames.at(3)


def _no_packets(path: Path, kind: str) -> None:
    with av.open(str(path), "w", format=kind) as container:
        stream = container.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        container.start_encoding()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("This is a note, not a film. Übung.\n" * 200), "text file"),
        (lambda path: path.write_text("ffconcat version 1.0\nfile other.mp4\n"), "text file"),
        (lambda path: path.write_text("#EXTM3U\n#EXTINF:10,\nother.ts\n"), "text file"),
        (lambda path: path.write_bytes(bytes(range(256)) * 20), "is not a video"),
        (lambda path: cut_off(path, 0.5), "'moov'"),
        (write_audio, "only audio"),
        (lambda path: _no_packets(path, "mp4"), "no stream"),
        (lambda path: _no_packets(path, "matroska"), "before its first frame"),
        (lambda path: _no_packets(path, "avi"), "no frame"),
        (lambda path: blanked(write_video(path, 1), 0), "no frame"),
    ],
)
def test_unusable_files_are_named(tmp_path, make, message: str) -> None:
    path = tmp_path / "clip.mp4"
    make(path)
    with pytest.raises(VideoError, match=message) as error:
        open_video(path)
    assert str(path) in str(error.value)


def test_odd_file_names(tmp_path) -> None:
    for name in ("pipe:0.mp4", "a b#%20?.mp4", "hände.mp4"):
        assert len(open_video(write_video(tmp_path / "x.mp4", 3).rename(tmp_path / name))) == 3


def test_stamps_are_repaired() -> None:
    for times, expected, changed in (
        ([0, 10, 20], [0, 10, 20], 0),
        ([0, 10, 10, 30], [0, 10, 20, 30], 1),
        ([0, None, 20, 30], [0, 10, 20, 30], 1),
        ([900, 10, 20, 30], [0, 10, 20, 30], 1),
        ([0, 10, 20, None], [0, 10, 20, 30], 1),
        ([0, 10, 20, -500], [0, 10, 20, 30], 1),
        ([5], [5], 0),
    ):
        assert repair_times(times) == (expected, changed)


@given(
    st.lists(st.none() | st.integers(-1000, 1000), min_size=1, max_size=60).filter(any),
    st.integers(0, 10**18),
)
def test_any_stamps_become_increasing(times: list, origin: int) -> None:
    """What is kept is the longest strictly increasing subsequence, here by its definition."""
    times = [None if time is None else origin + time * 10**6 for time in times]
    given_times, longest = [t for t in times if t is not None], []
    for i, value in enumerate(given_times):
        before = (longest[j] for j in range(i) if given_times[j] < value)
        longest.append(1 + max(before, default=0))
    repaired, changed = repair_times(times)
    assert (np.diff(repaired) > 0).all() and changed == len(times) - max(longest)
    # A time that was changed may by chance be what it was.
    kept = sum(a == b for a, b in zip(times, repaired, strict=True))
    assert kept >= len(times) - changed


@needs_opencv_4_13
def test_real_video(shared) -> None:
    path = shared / "data" / "human_hand_video.mp4"
    if not path.is_file():
        pytest.skip("human_hand_video.mp4 not found")
    recording = open_video(path)
    assert (len(recording), recording.fps, recording.notes) == (621, 30.0, ())
    assert (recording.width, recording.height) == (1280, 720)
    assert recording.timestamps_ns[-1] == round(620e9 / 30)
    assert len(resampled(path, 30)) == 621
    capture = cv2.VideoCapture(str(path))
    expected = [capture.read()[1][..., ::-1] for _ in range(40)]
    for image, other in zip(recording.frames.read(0, 40), expected, strict=True):
        np.testing.assert_array_equal(image, other)
    np.testing.assert_array_equal(recording.frames.at(17), expected[17])


def write_flagged(
    path: Path, images, codec="libx264", aspect=None, flags=0, **options: str
) -> Path:
    """Write images with an aspect of their pixels, and FFmpeg's flags of the encoder."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30, options=options)
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt, context = "yuv420p", stream.codec_context
        context.bit_rate, context.flags = 8_000_000, context.flags | flags
        if aspect is not None:
            context.sample_aspect_ratio = aspect
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("aspect", "turned"), [((4, 3), 0), ((8, 9), 0), ((4, 3), 90)])
def test_pixels_are_made_square(aspect, turned, tmp_path: Path) -> None:
    """Pictures have the size and place of things of FFmpeg's display aspect ratio."""
    stored = np.zeros((96, 144, 3), np.uint8)
    stored[:, 36:72] = 255
    path = write_flagged(tmp_path / "v.mp4", [stored] * 4, aspect=Fraction(*aspect), crf="5")
    with av.open(str(path)) as container:
        display = container.streams.video[0].display_aspect_ratio
    if turned:
        video_fixtures._set_display_matrix(path, turned, False)
    recording = open_recording(path, camera_preset="phone")
    size = (round(96 * display), 96)
    assert (recording.width, recording.height) == (size[::-1] if turned else size)
    image = np.rot90(recording.frames.at(2), -turned // 90)
    bright = np.flatnonzero(image[48, :, 0] > 127)
    np.testing.assert_allclose((bright[0], bright[-1] + 1), (size[0] / 4, size[0] / 2), atol=1)
    assert any("square" in note for note in recording.notes)
    small = next(recording.frames.read_resized(1, 2, recording.width // 2, recording.height // 2))
    assert small.shape[:2] == (recording.height // 2, recording.width // 2)
    facts = encode_video(recording, tmp_path / "out.mp4", 30)
    with av.open(str(facts.path)) as container:
        assert container.streams.video[0].sample_aspect_ratio in (None, 1)
    assert (facts.width, facts.height) == (recording.width, recording.height)


def test_sizes_of_players_are_square(tmp_path: Path) -> None:
    """854 x 480 is often said to be 16:9, with pixels of 1280:1281."""
    images = [np.zeros((48, 86, 3), np.uint8)]
    path = write_flagged(tmp_path / "v.mp4", images, aspect=Fraction(1280, 1281))
    assert open_video(path).width == 86 and not open_video(path).notes


@pytest.mark.parametrize(("codec", "suffix"), [("libx264", "mp4"), ("mpeg2video", "mpg")])
def test_interlaced_video_has_no_combs(codec: str, suffix: str, tmp_path: Path) -> None:
    """Each frame shows the time of its first field, however it is read."""
    progressive = []
    for step in range(40):
        image = np.full((96, 128, 3), 40, np.uint8)
        image[:, 20 + 2 * step : 44 + 2 * step] = 200
        progressive.append(cv2.GaussianBlur(image, (9, 1), 2))
    woven = [image.copy() for image in progressive[::2]]
    for image, later in zip(woven, progressive[1::2], strict=True):
        image[::2] = later[::2]  # the encoders store the bottom field first
    interlaced = {"flags": 1 << 18 | 1 << 29, "x264-params": "keyint=5:bframes=2"}
    kinds = {"true": (progressive[::2], {}), "combed": (woven, {}), "v": (woven, interlaced)}
    shown = {}
    for name, (images, options) in kinds.items():
        path = write_flagged(tmp_path / f"{name}.{suffix}", images, codec, **options)
        recording = open_recording(path)
        shown[name] = np.stack(list(recording.frames.read(0, 20))).astype(int)
        assert any("interlaced" in note for note in recording.notes) == (name == "v")
    off, combs = (np.abs(shown[name] - shown["true"])[1:-1].mean() for name in ("v", "combed"))
    assert off < 0.4 * combs

    frames, images = recording.frames, shown["v"]
    for index in np.random.default_rng(0).permutation(20).tolist():
        np.testing.assert_array_equal(frames.at(index), images[index])
        (alone,) = frames.read(index, index + 1)
        np.testing.assert_array_equal(alone, images[index])
