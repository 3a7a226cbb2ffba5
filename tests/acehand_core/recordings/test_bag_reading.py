"""Bags of known content read back: every encoding, both storages, exact frames and stamps."""

import struct
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from acehand_core.errors import CalibrationError, InputError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.bag import frame_rate, frame_times, index_bag, missing_frames
from acehand_core.recordings.bags import scan
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.images import ENCODINGS
from acehand_core.recordings.bags.library import COMPRESSED_VIDEO, DISTROS, FFMPEG_PACKET
from acehand_core.recordings.bags.records import BagOptions, is_bag
from acehand_core.recordings.bags.topics import bag_info
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from helpers.bag_samples import (
    DELAY,
    START,
    TOPIC,
    SampleBag,
    assert_same,
    encoded,
    index_of,
    pictures,
    read_images,
    simple_bag,
    stamps,
)


@pytest.mark.parametrize(
    ("storage", "compression"),
    [("mcap", "none"), ("mcap", "storage"), ("mcap", "file"), ("mcap", "message"),
     ("sqlite3", "none"), ("sqlite3", "file"), ("sqlite3", "message")],
)  # fmt: skip
def test_frames_and_stamps_come_back_exactly(tmp_path, storage, compression) -> None:
    images = simple_bag(tmp_path / "bag", storage=storage, compression=compression)
    index = index_of(tmp_path / "bag")
    assert_same(index, images)
    assert index.whole.timestamps_ns.tolist() == stamps(12)
    assert (index.log_ns - index.header_ns == DELAY).all()
    assert index.whole.fps == 30 and index.whole.camera_frame == "cam_optical"
    assert (index.whole.camera.fx, index.whole.camera.cy) == (40, 11.5)
    assert index.dropped.by_topic.total() == 0 and index.whole.notes == ()
    for i in (11, 0, 5, 4, 11):
        assert np.array_equal(index.whole.frames.at(i), images[i])
    with pytest.raises(IndexError, match="0 to 11"):
        index.whole.frames.at(12)
    if compression == "message":
        (tmp_path / "bag" / "metadata.yaml").unlink()
        index = index_of(tmp_path / "bag")
        assert_same(index, images)
        assert index.dropped.by_topic.total() == 0


def test_a_folder_of_bags_and_videos_gives_both(tmp_path: Path) -> None:
    many = tmp_path / "many"
    simple_bag(many / "one", 2)
    simple_bag(many / "two", 2)
    (many / "video.mp4").touch()
    assert [path.name for path in Registry().expand([many])] == ["one", "two", "video.mp4"]
    (many / "one" / "video.mp4").touch()
    assert Registry().expand([many / "one"]) == [many / "one"]
    (many / "one" / "metadata.yaml").unlink()
    with pytest.raises(InputError, match=r"video\.mp4.*one by one"):
        Registry().expand([many / "one"])


@pytest.mark.parametrize("kind", ["mcap", "sqlite3", "no index", "file"])
def test_indexing_reports_its_progress_and_can_be_stopped(tmp_path: Path, kind: str) -> None:
    options = {"storage": "sqlite3"} if kind == "sqlite3" else {}
    options |= {"compression": "file"} if kind == "file" else {}
    images = simple_bag(tmp_path / "bag", 6, **options)
    if kind == "no index":
        file = tmp_path / "bag" / "bag.mcap"
        data = file.read_bytes()
        # The footer's offset of the summary: 0 means that there is none.
        file.write_bytes(data[:-28] + struct.pack("<QQI", 0, 0, 0) + data[-8:])
    steps: list[tuple[str, int, int]] = []
    index = index_bag(tmp_path / "bag", BagOptions(), lambda *step: steps.append(step))
    stages, done, totals = zip(*steps, strict=True)
    size = sum(file.stat().st_size for file in (tmp_path / "bag").iterdir())
    assert set(stages) == {"index the bag"} and set(totals) == {2 * size}
    assert list(done) == sorted(done) and done[0] == 0 and done[-1] == 2 * size
    assert len(set(done)) > 3
    for stop in range(len(steps)):
        left = iter(range(stop))

        def stopping(*step: object, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            index_bag(tmp_path / "bag", BagOptions(), stopping)
    again = index_of(tmp_path / "bag")
    assert again is not index and again.whole.sha256 == index.whole.sha256
    assert_same(again, images)
    assert again.dropped.by_topic.total() == 0
    assert any("no index" in note for note in again.whole.notes) == (kind == "no index")


@pytest.mark.parametrize("distro", DISTROS)
def test_every_distribution_is_read(tmp_path: Path, distro: str) -> None:
    images = simple_bag(tmp_path / "bag", 3, distro=distro, version=8, storage="sqlite3")
    assert_same(index_of(tmp_path / "bag"), images)


def test_a_bare_file_is_a_bag(tmp_path: Path) -> None:
    for storage, name in (("mcap", "bag.mcap"), ("sqlite3", "bag.db3")):
        images = simple_bag(tmp_path / storage / "bag", 3, storage=storage)
        bare = tmp_path / name
        (tmp_path / storage / "bag" / name).rename(bare)
        assert is_bag(bare)
        assert_same(index_of(bare), images)
    assert Registry().expand([tmp_path]) == [tmp_path / "bag.db3", tmp_path / "bag.mcap"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding(tmp_path: Path, encoding: str) -> None:
    images, eight = pictures(2), encoding.replace("16", "8")
    with SampleBag(tmp_path / "bag") as bag:
        bag.images(images, encoding=encoding, padding=6)
    for ours, truth in zip(read_images(index_of(tmp_path / "bag")), images, strict=True):
        error = np.abs(ours.astype(int) - truth)
        if "bayer" in encoding:
            # What the sensor saw is exact; the other colours are interpolated.
            seen, shown = (encoded(image, eight)[2:-2, 2:-2] for image in (truth, ours))
            assert np.array_equal(seen, shown) and np.median(error[4:-4, 4:-4]) <= 2
        elif "mono" in encoding or encoding == "8UC1":
            assert np.array_equal(ours, np.repeat(truth[..., :1], 3, -1))
        else:  # of YUV colour is halved, and rounded twice
            assert np.median(error) <= 6 if encoding[:2] in ("yu", "uy", "nv") else not error.any()


@pytest.mark.parametrize("big_endian", [0, 1])
@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        # sensor_msgs/image_encodings: channels in the order of the name, 16 bits each.
        ("mono16", [[0x1234, 0xAB01], [0x00FF, 0xFF00]]),
        ("rgb16", [[[0x1234, 0x5678, 0x9ABC]], [[0x01FE, 0xFE01, 0x80FF]]]),
        ("bgr16", [[[0x9ABC, 0x5678, 0x1234]], [[0x80FF, 0xFE01, 0x01FE]]]),
        ("rgba16", [[[0x1234, 0x5678, 0x9ABC, 0xFFEE]], [[0x01FE, 0xFE01, 0x80FF, 0x1122]]]),
    ],
)
def test_of_16_bits_the_upper_8_in_either_byte_order(tmp_path, encoding, values, big_endian):
    stored = np.array(values, ">u2" if big_endian else "<u2")
    with SampleBag(tmp_path / "bag") as bag:
        bag.pixels(stored, stored.shape, START, encoding, big_endian=big_endian)
    truth = [[[0x12, 0x56, 0x9A]], [[0x01, 0xFE, 0x80]]]
    if encoding == "mono16":
        truth = [[[0x12] * 3, [0xAB] * 3], [[0x00] * 3, [0xFF] * 3]]
    assert index_of(tmp_path / "bag").whole.frames.at(0).tolist() == truth


@pytest.mark.parametrize(("kind", "worst"), [("png", 0), ("jpeg", 12)])
def test_compressed_images(tmp_path: Path, kind: str, worst: int) -> None:
    images = pictures(3)
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(images, stamps(3), strict=True):
            bag.compressed(image, ns, kind)
    index = index_of(tmp_path / "bag")
    assert index.topics["image"] == f"{TOPIC}/compressed"
    for ours, truth in zip(read_images(index), images, strict=True):
        assert np.median(np.abs(ours.astype(int) - truth)) <= worst


def h264_packets(images: list[np.ndarray], group: int) -> list[tuple[bytes, bool]]:
    height, width = images[0].shape[:2]
    context = av.CodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base = Fraction(1, 30)
    context.gop_size = group
    context.options = {"tune": "zerolatency", "crf": "12", "repeat-headers": "1"}
    out = []
    for i, image in enumerate(images):
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts = i
        out += [(bytes(p), p.is_keyframe) for p in context.encode(frame)]
    return out + [(bytes(p), p.is_keyframe) for p in context.encode(None)]


def grey(count: int) -> list[np.ndarray]:
    return [np.full((48, 64, 3), 20 * i, np.uint8) for i in range(count)]


def shown(images: Iterable[np.ndarray]) -> list[int]:
    return [round(float(image.mean()) / 20) for image in images]


@pytest.mark.parametrize("kind", [FFMPEG_PACKET, COMPRESSED_VIDEO])
def test_video_packets_by_index_in_any_order(tmp_path: Path, kind: str) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for (data, key), ns in zip(h264_packets(grey(12), 5), stamps(12), strict=True):
            bag.packet(data, ns, key, kind, (64, 48))
    index = index_of(tmp_path / "bag")
    source = index.whole.frames
    assert (index.whole.width, index.whole.height, len(source)) == (64, 48, 12)
    assert shown(source.read(0, 12)) == list(range(12)) and shown(source.read(7, 9)) == [7, 8]
    assert shown(map(source.at, (11, 3, 4, 0))) == [11, 3, 4, 0]
    assert index.dropped.by_topic.total() == 0


def test_packets_without_their_key_frame_are_counted(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for i, (data, key) in enumerate(h264_packets(grey(10), 5)[2:]):
            bag.packet(data, START + i * 10**8, key, FFMPEG_PACKET, (64, 48))
    index = index_of(tmp_path / "bag")
    assert index.dropped.by_topic == {"/cam/image_raw/ffmpeg": 3}
    assert shown(read_images(index)) == [5, 6, 7, 8, 9]


def test_late_and_dropped_frames(tmp_path: Path) -> None:
    images, times, kept = pictures(10), stamps(10), [0, 1, 2, 3, 5, 6, 9]
    with SampleBag(tmp_path / "bag") as bag:
        for place, i in enumerate((0, 2, 1, 3, 6, 5, 9)):
            bag.image(images[i], times[i], log_ns=times[0] + place * 33_000_000)
    index = index_of(tmp_path / "bag")
    assert index.whole.timestamps_ns.tolist() == [times[i] for i in kept]
    assert_same(index, [images[i] for i in kept])
    notes = " ".join(index.whole.notes)
    assert "2 frames were out" in notes and "about 3 frames" in notes
    assert index.whole.fps == 30 and index.dropped.by_topic.total() == 0


def test_a_part_and_a_mirror_image(tmp_path: Path) -> None:
    images = simple_bag(tmp_path / "bag")
    options = RecordingOptions(start_s=0.1, duration_s=0.1, mirrored=True)
    recording = open_recording(tmp_path / "bag", options)
    assert recording.timestamps_ns.tolist() == stamps(12)[3:6]
    assert np.array_equal(recording.frames.at(0), images[3][:, ::-1])
    assert recording.camera.cx == 31 - 15.5
    with pytest.raises(InputError, match=r"leave out: `image_topic` \(for a bag\)"):
        open_recording(Path("a.mp4"), RecordingOptions(own={"bag": BagOptions(image_topic="/x")}))


@pytest.mark.parametrize(
    ("model", "d", "ours"),
    [
        ("plumb_bob", (0.1, -0.02, 1e-3, 2e-3, 3e-3), "brown_conrady"),
        ("rational_polynomial", (0.1, -0.02, 1e-3, 2e-3, 3e-3, 0.01, 0.02, 0.03), "brown_conrady"),
        ("equidistant", (0.1, 0.02, -0.01, 0.001), "kannala_brandt"),
        ("plumb_bob", (0, 0, 0, 0, 0), "pinhole"),
        ("plumb_bob", (0.1, -0.02, 1e-3, 2e-3, 3e-3, 0.01, 0.02, 0.03, 0, 0), "brown_conrady"),
        ("", (), "pinhole"),
    ],
)
def test_camera_models(tmp_path: Path, model: str, d: tuple[float, ...], ours: str) -> None:
    camera = camera_of_bag(tmp_path / "bag", model=model, d=d)
    assert camera.model == ours
    if ours != "pinhole":
        assert camera.distortion[: len(d)] == pytest.approx(d[:8])


def camera_of_bag(path: Path, name: str = "image_raw", **fields: object) -> Camera:
    with SampleBag(path) as bag:
        bag.image(pictures(1)[0], START, topic=f"/cam/{name}")
        bag.camera_info(START, **fields)
    return index_of(path).whole.camera


def test_binning_region_and_rectified_pictures(tmp_path: Path) -> None:
    fields = {"k": (80, 82, 40.5, 33.5), "size": (96, 64), "binning": 2, "roi": (10, 8, 64, 48)}
    camera = camera_of_bag(tmp_path / "binned", **fields)
    assert (camera.width, camera.height, camera.fx) == (32, 24, 40)
    assert camera.cx == (30.5 + 0.5) / 2 - 0.5
    p = (33, 0, 15, 0, 0, 34, 11, 0, 0, 0, 1, 0)
    for model, d in (("plumb_bob", (0.3, 0, 0, 0, 0)), ("equidistant", (0.1, 0, 0, 0))):
        camera = camera_of_bag(tmp_path / model, "image_rect", model=model, d=d, p=p)
        assert (camera.model, camera.fx, camera.fy, camera.cx) == ("pinhole", 33, 34, 15)


@pytest.mark.parametrize("prune_every", [4, 1000])
def test_camera_poses_from_transforms(tmp_path, monkeypatch, prune_every) -> None:
    """Also where transforms that lead elsewhere are thrown away now and then."""
    monkeypatch.setattr(scan, "_PRUNE_EVERY", prune_every)
    times, turn = stamps(6), rotations.exp(np.array([0.0, 0.3, 0.0]))
    q = rotations.to_quaternion(turn)
    with SampleBag(tmp_path / "bag") as bag:
        bag.tf(START, "base", "cam_optical", (0.1, 0, 0), q, topic="/tf_static")
        bag.images(pictures(6))
        for i in range(5):
            bag.tf(START - 10**7 + i * 50_000_000, "map", "base", (i, 2 * i, 0), (1, 0, 0, 0))
            bag.tf(START + i, "base", "elsewhere", (i, 0, 0), (1, 0, 0, 0))
    index = index_of(tmp_path / "bag")
    assert index.topics["world_frame"] == "map"
    share = (np.array(times) - START + 10**7) / 50_000_000
    truth = frames.rigid(turn, np.stack([share + 0.1, 2 * share, 0 * share], -1))
    assert np.allclose(index.whole.T_world_camera, truth, atol=1e-9)
    assert index_of(tmp_path / "bag", world_frame="none").whole.T_world_camera is None
    with pytest.raises(CalibrationError, match=r"'mop'.*'map'"):
        index_of(tmp_path / "bag", world_frame="mop")


@pytest.mark.parametrize("sign", [1, -1])
def test_between_transforms_rotations_are_interpolated_as_tf2_does(tmp_path, sign) -> None:
    """Shortest arc at constant speed; q and -q are one rotation. Columns worked out by hand."""
    half = np.sqrt(0.5)
    with SampleBag(tmp_path / "bag") as bag:
        # The camera looks along the base's y, 2 m in front of it: z -> y, x -> x, y -> -z.
        bag.tf(START, "base", "cam_optical", (0, 2, 0), (half, -half, 0, 0), topic="/tf_static")
        # A quarter turn about z, then another about the base's own x within 0.4 s.
        bag.tf(START, "map", "base", (0, 0, 0), (half, 0, 0, half))
        second = sign * np.array([0.5, 0.5, 0.5, 0.5])
        bag.tf(START + 400_000_000, "map", "base", (4, 8, 0), second)
        for i in range(5):
            bag.image(pictures(5)[i], START + i * 100_000_000)
    poses = index_of(tmp_path / "bag").whole.T_world_camera

    for i, pose in enumerate(poses):
        angle = i / 4 * np.pi / 2
        c, s = np.cos(angle), np.sin(angle)
        # The base's axes in the map: x -> y, y -> (-c, 0, s), z -> (s, 0, c).
        x, y, z, at = [0, 1, 0], [-c, 0, s], [s, 0, c], [i - 2 * c, 2 * i, 2 * s]
        assert np.allclose(pose[:3].T, [x, np.negative(z), y, at], atol=1e-9)


def test_camera_poses_from_odometry(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        bag.tf(START, "base_link", "cam_optical", (0, 0, 1), (1, 0, 0, 0), topic="/tf_static")
        bag.images(pictures(4))
        for i, ns in enumerate(stamps(4)):
            bag.odometry(ns, "odom", "base_link", (i, 0, 0), (1, 0, 0, 0))
    index = index_of(tmp_path / "bag")
    assert index.topics["world_frame"] == "odom"
    assert np.allclose(index.whole.T_world_camera[:, :3, 3], [[i, 0, 1] for i in range(4)])


def test_transforms_that_do_not_cover_the_pictures_are_left_out(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        bag.images(pictures(30))
        for i, ns in enumerate(stamps(5)):
            bag.tf(ns, "map", "cam_optical", (i, 0, 0), (1, 0, 0, 0))
    whole = index_of(tmp_path / "bag").whole
    assert whole.T_world_camera is None
    assert any("no camera poses" in n and "map -> cam_optical" in n for n in whole.notes)
    with pytest.raises(CalibrationError, match="known from"):
        index_of(tmp_path / "bag", world_frame="map")


def test_of_two_eyes_the_left_is_read_and_depth_is_no_choice(tmp_path: Path) -> None:
    eyes = {"right": (pictures(2, seed=90), 55), "left": (pictures(2), 44)}
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(stamps(2)):
            for eye, (images, focal) in eyes.items():
                bag.image(images[i], ns, topic=f"/stereo/{eye}/image_raw")
                bag.image(images[i], ns, topic=f"/stereo/{eye}/depth/image_raw")
                bag.compressed(images[i], ns, "jpeg", f"/stereo/{eye}/image_raw/compressed")
                info = f"/stereo/{eye}/camera_info"
                bag.camera_info(ns, k=(focal, focal, 15, 11), topic=info)
    index = index_of(tmp_path / "bag")
    assert_same(index, eyes["left"][0])
    assert index.whole.camera.fx == 44
    assert any("stereo" in note for note in index.whole.notes)
    other = index_of(tmp_path / "bag", image_topic="/stereo/right/image_raw")
    assert_same(other, eyes["right"][0])
    assert other.whole.camera.fx == 55


def test_bag_info_counts(tmp_path: Path) -> None:
    """A message of an unknown type is listed."""
    with SampleBag(tmp_path / "bag") as bag:
        bag.images(pictures(5))
        bag.camera_info(START)
        bag.raw("/arm", "maker_msgs/msg/Arm", START + DELAY, b"\x00\x01\x00\x00\x05\x00\x00\x00")
    info = bag_info(tmp_path / "bag")
    assert info.messages == 7 and info.storage == "mcap" and info.image == TOPIC
    assert info.camera_info == "/cam/camera_info"
    assert info.duration_s == pytest.approx(4 / 30, abs=1e-6)
    topics = info.to_json()["topics"]
    topic = {"type": "sensor_msgs/msg/Image", "messages": 5, "known_type": True}
    assert topics[TOPIC] == topic and topics["/arm"]["known_type"] is False
    assert len(index_of(tmp_path / "bag").whole.frames) == 5


def test_a_split_bag_is_one_recording(tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    images = simple_bag(folder, 6)
    with SampleBag(tmp_path / "more") as more:
        more.images(images, START + 10**9)
    (folder / "bag.mcap").rename(folder / "bag_0.mcap")
    (tmp_path / "more" / "more.mcap").rename(folder / "bag_1.mcap")
    (folder / "metadata.yaml").unlink()
    index = index_of(folder)
    assert_same(index, images + images)
    assert any("metadata.yaml is missing" in note for note in index.whole.notes)
    with Bag(folder) as bag:
        assert [p.name for p in bag.storage_paths] == ["bag_0.mcap", "bag_1.mcap"]


def test_times_against_a_plain_rule() -> None:
    """Late messages, one wild stamp, a clock set back: by hand."""
    log = np.arange(12) * 100_000_000
    stamps_ns = log + 5 * 10**9
    stamps_ns[[3, 4]] = stamps_ns[[4, 3]]
    stamps_ns[6] += 70 * 10**9
    times = frame_times(stamps_ns, log)
    assert times.timestamps_ns.tolist() == (log + 5 * 10**9).tolist()
    assert (times.late, times.repaired, times.breaks) == (1, 1, ())
    stamps_ns = log + 50 * 10**9
    stamps_ns[5:] -= 45 * 10**9
    times = frame_times(stamps_ns, log)
    assert times.timestamps_ns.tolist() == (log + 50 * 10**9).tolist()
    assert times.breaks == (5,)
    assert frame_times(np.zeros(12, np.int64), log).from_log
    assert frame_rate(np.array(stamps(40, 30000 / 1001))) == 30000 / 1001


def test_missing_frames_by_arithmetic() -> None:
    """At 10 Hz a step of n tenths of a second has room for n - 1 frames, up to a whole second."""
    steps_ms = [100, 200, 100, 140, 160, 1000, 1040, 1060, 100, 5000, 300]
    room = [0, 1, 0, 0, 1, 9, 0, 0, 0, 0, 2]
    times = START + np.concatenate([[0], np.cumsum(steps_ms)]) * 1_000_000
    assert missing_frames(times, 10.0) == sum(room) == 13
    # One frame of 40 left out at 29.97 Hz.
    times = np.array(stamps(40, 30000 / 1001))
    assert missing_frames(np.delete(times, 20), 30000 / 1001) == 1
    assert missing_frames(times, 30000 / 1001) == 0
