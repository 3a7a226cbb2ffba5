"""Bags of known content read back: every encoding, both storages, exact frames and stamps."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from acehand_core.errors import CalibrationError, InputError
from acehand_core.geometry import frames, rotations
from acehand_core.recordings.bag import (
    BagIndex,
    frame_rate,
    frame_times,
    index_bag,
    missing_frames,
)
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
    encoded,
    pictures,
    simple_bag,
    stamps,
)


def index_of(path: Path, **reading: str) -> BagIndex:
    return index_bag(path, BagOptions(**reading))


def assert_same(index: BagIndex, images: list[np.ndarray]) -> None:
    read = list(index.whole.frames.read(0, len(index.whole.frames)))
    assert len(read) == len(images)
    for number, (ours, truth) in enumerate(zip(read, images, strict=True)):
        assert np.array_equal(ours, truth), number


@pytest.mark.parametrize(
    ("storage", "compression"),
    [("mcap", "none"), ("mcap", "storage"), ("mcap", "file"), ("mcap", "message"),
     ("sqlite3", "none"), ("sqlite3", "file"), ("sqlite3", "message")],
)  # fmt: skip
def test_frames_and_stamps_come_back_exactly(
    tmp_path: Path, storage: str, compression: str
) -> None:
    images = simple_bag(tmp_path / "bag", storage=storage, compression=compression)
    index = index_of(tmp_path / "bag")
    assert_same(index, images)
    assert index.whole.timestamps_ns.tolist() == stamps(12)
    assert (index.log_ns - index.header_ns == DELAY).all()
    assert index.whole.fps == 30 and index.whole.camera_frame == "cam_optical"
    assert (index.whole.camera.fx, index.whole.camera.cy) == (40, 11.5)
    assert index.dropped.by_topic.total() == 0 and index.whole.notes == ()


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_compressed_messages_without_metadata(tmp_path: Path, storage: str) -> None:
    images = simple_bag(tmp_path / "bag", storage=storage, compression="message")
    (tmp_path / "bag" / "metadata.yaml").unlink()
    index = index_of(tmp_path / "bag")
    assert_same(index, images)
    assert index.dropped.by_topic.total() == 0


def test_a_folder_of_bags_and_videos_gives_both(tmp_path: Path) -> None:
    simple_bag(tmp_path / "many" / "one", 2)
    simple_bag(tmp_path / "many" / "two", 2)
    (tmp_path / "many" / "video.mp4").touch()
    names = [path.name for path in Registry().expand([tmp_path / "many"])]
    assert names == ["one", "two", "video.mp4"]
    folder = tmp_path / "many" / "one"
    (folder / "video.mp4").touch()
    assert Registry().expand([folder]) == [folder]
    (folder / "metadata.yaml").unlink()
    with pytest.raises(InputError, match=r"videos \(video.mp4\).*one by one"):
        Registry().expand([folder])


@pytest.mark.parametrize("kind", ["mcap", "sqlite3", "no index", "file"])
def test_indexing_says_how_far_it_is_and_can_be_stopped(tmp_path: Path, kind: str) -> None:
    options = {"storage": "sqlite3"} if kind == "sqlite3" else {}
    options |= {"compression": "file"} if kind == "file" else {}
    simple_bag(tmp_path / "bag", 6, **options)
    if kind == "no index":
        file = tmp_path / "bag" / "bag.mcap"
        file.write_bytes(file.read_bytes()[:-30])
    told: list[tuple[str, int, int]] = []
    index = index_bag(tmp_path / "bag", BagOptions(), lambda *step: told.append(step))
    stages, done, totals = (set(column) for column in zip(*told, strict=True))
    size = sum(file.stat().st_size for file in (tmp_path / "bag").iterdir())
    assert stages == {"index the bag"} and totals == {2 * size}
    assert [step[1] for step in told] == sorted(step[1] for step in told)
    assert min(done) == 0 and max(done) == 2 * size and len(done) > 3
    for stop in range(len(told)):
        steps = iter(range(stop))

        def stopping(stage: str, done: int, total: int, steps: Iterator[int] = steps) -> None:
            if next(steps, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            index_bag(tmp_path / "bag", BagOptions(), stopping)
    again = index_bag(tmp_path / "bag", BagOptions())
    assert again is not index and again.whole.sha256 == index.whole.sha256


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
    images = pictures(2)
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(images, stamps(2), strict=True):
            bag.image(image, ns, encoding, padding=6)
    read = list(index_of(tmp_path / "bag").whole.frames.read(0, 2))
    for ours, truth in zip(read, images, strict=True):
        if "bayer" in encoding:
            # What the sensor saw is exact; the other colours are interpolated.
            again = encoded(ours, encoding.replace("16", "8"))[2:-2, 2:-2]
            assert np.array_equal(again, encoded(truth, encoding.replace("16", "8"))[2:-2, 2:-2])
            error = np.abs(ours.astype(int) - truth)[4:-4, 4:-4]
            assert np.median(error) <= 2
        elif "mono" in encoding or encoding == "8UC1":
            assert np.array_equal(ours, np.repeat(truth[..., :1], 3, -1))
        elif encoding.startswith(("yu", "uy", "nv")):
            error = np.abs(ours.astype(int) - truth)
            assert np.median(error) <= 6  # colour is halved, and rounded twice
        else:
            assert np.array_equal(ours, truth)


@pytest.mark.parametrize("is_bigendian", [0, 1])
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
def test_of_16_bits_the_upper_8_in_either_byte_order(
    tmp_path: Path, encoding: str, values: list, is_bigendian: int
) -> None:
    stored = np.array(values, ">u2" if is_bigendian else "<u2")
    rows = stored.reshape(len(stored), -1).view(np.uint8)
    with SampleBag(tmp_path / "bag") as bag:
        message = bag.make(
            "sensor_msgs/msg/Image", header=bag.header(START), height=stored.shape[0],
            width=stored.shape[1], encoding=encoding, is_bigendian=is_bigendian,
            step=rows.shape[1], data=rows.reshape(-1),
        )  # fmt: skip
        bag.put(TOPIC, "sensor_msgs/msg/Image", START, message)
    if encoding == "mono16":
        truth = [[[0x12] * 3, [0xAB] * 3], [[0x00] * 3, [0xFF] * 3]]
    else:
        truth = [[[0x12, 0x56, 0x9A]], [[0x01, 0xFE, 0x80]]]
    assert index_of(tmp_path / "bag").whole.frames.at(0).tolist() == truth


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_compressed_images(tmp_path: Path, kind: str) -> None:
    images = pictures(3)
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(images, stamps(3), strict=True):
            bag.compressed(image, ns, kind)
    index = index_of(tmp_path / "bag")
    assert index.topics["image"] == f"{TOPIC}/compressed"
    for ours, truth in zip(index.whole.frames.read(0, 3), images, strict=True):
        worst = 0 if kind == "png" else 12
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


@pytest.mark.parametrize("kind", [FFMPEG_PACKET, COMPRESSED_VIDEO])
def test_video_packets_by_index_in_any_order(tmp_path: Path, kind: str) -> None:
    images = [np.full((48, 64, 3), 20 * i, np.uint8) for i in range(12)]
    with SampleBag(tmp_path / "bag") as bag:
        for (data, key), ns in zip(h264_packets(images, 5), stamps(12), strict=True):
            bag.packet(data, ns, key, kind, (64, 48))
    index = index_of(tmp_path / "bag")
    source = index.whole.frames
    assert (index.whole.width, index.whole.height, len(source)) == (64, 48, 12)

    def shown(image: np.ndarray) -> int:
        return round(float(image.mean()) / 20)

    assert [shown(i) for i in source.read(0, 12)] == list(range(12))
    assert [shown(i) for i in source.read(7, 9)] == [7, 8]
    assert [shown(source.at(i)) for i in (11, 3, 4, 0)] == [11, 3, 4, 0]
    assert index.dropped.by_topic.total() == 0


def test_packets_without_their_key_frame_are_counted(tmp_path: Path) -> None:
    images = [np.full((48, 64, 3), 20 * i, np.uint8) for i in range(10)]
    with SampleBag(tmp_path / "bag") as bag:
        for i, (data, key) in enumerate(h264_packets(images, 5)):
            if i >= 2:
                bag.packet(data, START + i * 10**8, key, FFMPEG_PACKET, (64, 48))
    index = index_of(tmp_path / "bag")
    assert index.dropped.by_topic == {"/cam/image_raw/ffmpeg": 3}
    assert [round(float(i.mean()) / 20) for i in index.whole.frames.read(0, 5)] == [5, 6, 7, 8, 9]


def test_frames_are_sought_in_any_order(tmp_path: Path) -> None:
    images = simple_bag(tmp_path / "bag")
    source = index_of(tmp_path / "bag").whole.frames
    for i in (11, 0, 5, 4, 11):
        assert np.array_equal(source.at(i), images[i])
    read = list(source.read(3, 9))
    assert all(np.array_equal(a, b) for a, b in zip(read, images[3:9], strict=True))
    with pytest.raises(IndexError, match="valid: 0 to 11"):
        source.at(12)


def test_late_and_dropped_frames(tmp_path: Path) -> None:
    images, times = pictures(10), stamps(10)
    with SampleBag(tmp_path / "bag") as bag:
        for place, i in enumerate((0, 2, 1, 3, 6, 5, 9)):
            bag.image(images[i], times[i], log_ns=times[0] + place * 33_000_000)
    index = index_of(tmp_path / "bag")
    kept = [0, 1, 2, 3, 5, 6, 9]
    assert index.whole.timestamps_ns.tolist() == [times[i] for i in kept]
    assert_same(index, [images[i] for i in kept])
    assert index.whole.fps == 30
    assert any("2 frames were out of order" in note for note in index.whole.notes)
    assert any("about 3 frames were dropped" in note for note in index.whole.notes)
    assert index.dropped.by_topic.total() == 0


def test_a_part_and_a_mirror_image(tmp_path: Path) -> None:
    images = simple_bag(tmp_path / "bag")
    options = RecordingOptions(start_s=0.1, duration_s=0.1, mirrored=True)
    recording = open_recording(tmp_path / "bag", options)
    assert recording.timestamps_ns.tolist() == stamps(12)[3:6]
    assert np.array_equal(recording.frames.at(0), images[3][:, ::-1])
    assert recording.camera.cx == 31 - 15.5
    with pytest.raises(InputError, match=r"is not a bag.*--image-topic"):
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
    with SampleBag(tmp_path / "bag") as bag:
        bag.image(pictures(1)[0], START)
        bag.camera_info(START, model, d)
    camera = index_of(tmp_path / "bag").whole.camera
    assert camera.model == ours
    if ours != "pinhole":
        assert camera.distortion[: len(d)] == pytest.approx(d[:8])


def test_binning_region_and_rectified_pictures(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "binned") as bag:
        bag.image(pictures(1)[0], START)
        bag.camera_info(START, k=(80, 82, 40.5, 33.5), size=(96, 64), binning=2,
                        roi=(10, 8, 64, 48))  # fmt: skip
    camera = index_of(tmp_path / "binned").whole.camera
    assert (camera.width, camera.height, camera.fx) == (32, 24, 40)
    assert camera.cx == (30.5 + 0.5) / 2 - 0.5
    with SampleBag(tmp_path / "rect") as bag:
        bag.image(pictures(1)[0], START, topic="/cam/image_rect")
        bag.camera_info(START, d=(0.3, 0, 0, 0, 0), p=(33, 0, 15, 0, 0, 34, 11, 0, 0, 0, 1, 0))
    camera = index_of(tmp_path / "rect").whole.camera
    assert (camera.model, camera.fx, camera.fy, camera.cx) == ("pinhole", 33, 34, 15)
    with SampleBag(tmp_path / "fisheye") as bag:
        bag.image(pictures(1)[0], START, topic="/cam/image_rect")
        bag.camera_info(START, "equidistant", (0.1, 0, 0, 0),
                        p=(33, 0, 15, 0, 0, 34, 11, 0, 0, 0, 1, 0))  # fmt: skip
    camera = index_of(tmp_path / "fisheye").whole.camera
    assert (camera.model, camera.fx, camera.fy, camera.cx) == ("pinhole", 33, 34, 15)


@pytest.mark.parametrize(
    ("model", "d", "message"),
    [("rational_polynomial", (0.1,) * 12, "thin prism or tilt coefficients"),
     ("rational_polynomial", (0.1,) * 6, "6 distortion coefficients; valid: 4, 5, 8")],
)  # fmt: skip
def test_coefficients_that_no_model_has_are_not_left_out(
    tmp_path: Path, model: str, d: tuple[float, ...], message: str
) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        bag.image(pictures(1)[0], START)
        bag.camera_info(START, model, d)
    index = index_of(tmp_path / "bag")
    assert index.whole.camera is None
    assert any(message in note for note in index.whole.notes)


@pytest.mark.parametrize("prune_every", [4, 1000])
def test_camera_poses_from_transforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prune_every: int
) -> None:
    """Also where transforms that lead elsewhere are thrown away now and then."""
    monkeypatch.setattr(scan, "_PRUNE_EVERY", prune_every)
    times = stamps(6)
    turn = rotations.exp(np.array([0.0, 0.3, 0.0]))
    q = rotations.to_quaternion(turn)
    with SampleBag(tmp_path / "bag") as bag:
        bag.tf(START, "base", "cam_optical", (0.1, 0, 0), q, topic="/tf_static")
        for i, ns in enumerate(times):
            bag.image(pictures(6)[i], ns)
        for i in range(5):
            bag.tf(START - 10**7 + i * 50_000_000, "map", "base", (i, 2 * i, 0), (1, 0, 0, 0))
            bag.tf(START + i, "base", "elsewhere", (i, 0, 0), (1, 0, 0, 0))
    index = index_of(tmp_path / "bag")
    assert index.topics["world_frame"] == "map"
    share = (np.array(times) - START + 10**7) / 50_000_000
    truth = frames.rigid(turn, np.stack([share + 0.1, 2 * share, 0 * share], -1))
    assert np.allclose(index.whole.T_world_camera, truth, atol=1e-9)
    assert index_of(tmp_path / "bag", world_frame="none").whole.T_world_camera is None
    with pytest.raises(CalibrationError, match=r"'mop'.*Did you mean 'map'"):
        index_of(tmp_path / "bag", world_frame="mop")


@pytest.mark.parametrize("sign", [1, -1])
def test_between_transforms_rotations_are_interpolated_as_tf2_does(
    tmp_path: Path, sign: int
) -> None:
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
        x, y, z = np.array([0, 1, 0]), np.array([-c, 0, s]), np.array([s, 0, c])
        assert np.allclose(pose[:3, 0], x, atol=1e-9)
        assert np.allclose(pose[:3, 1], -z, atol=1e-9)
        assert np.allclose(pose[:3, 2], y, atol=1e-9)
        assert np.allclose(pose[:3, 3], [i - 2 * c, 2 * i, 2 * s], atol=1e-9)


def test_camera_poses_from_odometry(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        bag.tf(START, "base_link", "cam_optical", (0, 0, 1), (1, 0, 0, 0), topic="/tf_static")
        for i, ns in enumerate(stamps(4)):
            bag.image(pictures(4)[i], ns)
            bag.odometry(ns, "odom", "base_link", (i, 0, 0), (1, 0, 0, 0))
    index = index_of(tmp_path / "bag")
    assert index.topics["world_frame"] == "odom"
    assert np.allclose(index.whole.T_world_camera[:, :3, 3], [[i, 0, 1] for i in range(4)])


def test_transforms_that_do_not_cover_the_pictures_are_left_out(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(stamps(30)):
            bag.image(pictures(30)[i], ns)
            if i < 5:
                bag.tf(ns, "map", "cam_optical", (i, 0, 0), (1, 0, 0, 0))
    index = index_of(tmp_path / "bag")
    assert index.whole.T_world_camera is None
    assert any(
        "no camera poses" in note and "map -> cam_optical" in note for note in index.whole.notes
    )
    with pytest.raises(CalibrationError, match="known from"):
        index_of(tmp_path / "bag", world_frame="map")


def test_of_two_eyes_the_left_is_read(tmp_path: Path) -> None:
    left, right = pictures(2), pictures(2, seed=90)
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(stamps(2)):
            bag.image(right[i], ns, topic="/stereo/right/image_raw")
            bag.image(left[i], ns, topic="/stereo/left/image_raw")
            bag.camera_info(ns, k=(44, 44, 15, 11), topic="/stereo/left/camera_info")
            bag.camera_info(ns, k=(55, 55, 15, 11), topic="/stereo/right/camera_info")
    index = index_of(tmp_path / "bag")
    assert_same(index, left)
    assert index.whole.camera.fx == 44
    assert any("stereo" in note for note in index.whole.notes)
    other = index_of(tmp_path / "bag", image_topic="/stereo/right/image_raw")
    assert_same(other, right)
    assert other.whole.camera.fx == 55


def test_one_camera_in_two_forms_is_no_choice(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(2), stamps(2), strict=True):
            bag.compressed(image, ns, "jpeg")
            bag.image(image, ns)
            bag.image(image, ns, topic="/cam/depth/image_raw")
    assert index_of(tmp_path / "bag").topics["image"] == TOPIC


def test_bag_info_counts(tmp_path: Path) -> None:
    simple_bag(tmp_path / "bag", 5)
    info = bag_info(tmp_path / "bag")
    assert info.messages == 10 and info.storage == "mcap" and info.image == TOPIC
    assert info.camera_info == "/cam/camera_info"
    assert info.duration_s == pytest.approx(4 / 30, abs=1e-6)
    assert info.to_json()["topics"][TOPIC] == {
        "type": "sensor_msgs/msg/Image", "messages": 5, "known_type": True,
    }  # fmt: skip


def test_a_split_bag_is_one_recording(tmp_path: Path) -> None:
    images = simple_bag(tmp_path / "bag", 6)
    first = tmp_path / "bag" / "bag.mcap"
    with SampleBag(tmp_path / "more") as more:
        for image, ns in zip(images, stamps(6, start=START + 10**9), strict=True):
            more.image(image, ns)
    first.rename(tmp_path / "bag" / "bag_0.mcap")
    (tmp_path / "more" / "more.mcap").rename(tmp_path / "bag" / "bag_1.mcap")
    (tmp_path / "bag" / "metadata.yaml").unlink()
    index = index_of(tmp_path / "bag")
    assert_same(index, images + images)
    assert any("metadata.yaml is missing" in note for note in index.whole.notes)
    with Bag(tmp_path / "bag") as bag:
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
