"""Bags of ROS 1 (.bag), written by rosbags, also as RealSense's viewer writes them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from acehand_core.errors import InputError
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.records import BagOptions
from acehand_core.recordings.bags.topics import bag_info
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from helpers.bag_samples import DELAY, START, TOPIC, assert_same, index_of, pictures, stamps
from helpers.ros1_samples import TRANSFORMS, Ros1Bag

RIGHT = "/right/image_raw"
HALF = 2**-0.5


@pytest.mark.parametrize("compression", ["none", "bz2", "lz4"])
def test_pictures_camera_and_times(tmp_path: Path, compression: str) -> None:
    """In any order, from several chunks."""
    images = pictures(6)
    with Ros1Bag(tmp_path / "a.bag", compression, chunk=4000) as bag:
        for image, ns in zip(images, stamps(6), strict=True):
            bag.image(image, ns)
            bag.camera_info(ns, d=(0.1, -0.2, 0.01, 0.02, 0.05))
        assert len(bag._writer.chunks) > 3
    index = index_of(tmp_path / "a.bag")
    assert_same(index, images)
    for frame in (5, 0, 3):
        assert (index.whole.frames.at(frame) == images[frame]).all()
    assert index.whole.timestamps_ns.tolist() == stamps(6)
    assert index.log_ns.tolist() == [ns + DELAY for ns in stamps(6)]
    camera = index.whole.camera
    assert (camera.model, camera.fx, camera.fy) == ("brown_conrady", 40.0, 41.0)
    assert (camera.cx, camera.cy, camera.width, camera.height) == (15.5, 11.5, 32, 24)
    assert camera.distortion[:5] == (0.1, -0.2, 0.01, 0.02, 0.05)
    assert index.whole.camera_frame == "cam_optical" and not index.dropped.by_topic


def test_compressed_pictures(tmp_path: Path) -> None:
    image = pictures(1)[0]
    with Ros1Bag(tmp_path / "a.bag") as bag:
        bag.compressed(image, START, "png")
    assert_same(index_of(tmp_path / "a.bag"), [image])


def test_an_index_that_points_to_the_definition_before_a_message(tmp_path: Path) -> None:
    path, image = tmp_path / "a.bag", pictures(1)[0]
    with Ros1Bag(path) as bag:
        bag.image(image, START)
        (((_, offset),),) = bag._writer.chunks[0].connections.values()
    received = START + DELAY
    entry = struct.pack("<III", received // 10**9, received % 10**9, offset)
    data = path.read_bytes()
    assert offset > 0 and data.count(entry) == 1
    path.write_bytes(data.replace(entry, entry[:8] + bytes(4)))
    assert_same(index_of(path), [image])


def test_a_second_camera_and_the_world(tmp_path: Path) -> None:
    """Of ``tf_static``, and of the old type ``tf/tfMessage``."""
    left, right = pictures(3), pictures(3, seed=50)
    with Ros1Bag(tmp_path / "a.bag") as bag:
        old = {"msgdef": TRANSFORMS, "md5sum": "0" * 32}
        bag._connections["/tf"] = bag._writer.add_connection("/tf", "tf/msg/tfMessage", **old)
        for i, ns in enumerate(stamps(3)):
            bag.image(left[i], ns)
            bag.image(right[i], ns, topic=RIGHT, frame="right_optical")
            bag.tf(ns, "map", "base", (i, 0, 0), (1, 0, 0, 0))
        bag.camera_info(START)
        bag.camera_info(START, topic="/right/camera_info", frame="right_optical")
        still = {"topic": "/tf_static"}
        bag.tf(START, "base", "cam_optical", (0, 0, 2), (HALF, 0, 0, HALF), **still)
        bag.tf(START, "cam_optical", "right_optical", (0.1, 0, 0), (1, 0, 0, 0), **still)
    index = index_of(tmp_path / "a.bag", image_topic=TOPIC, views="right")
    assert [view.name for view in index.whole.views] == ["right"]
    view = index.whole.views[0]
    np.testing.assert_allclose(view.T_camera_view[:3], np.eye(4)[:3] + _along_x(0.1), atol=1e-12)
    assert (view.recording.frames.at(1) == right[1]).all()
    assert index.topics["world_frame"] == "map"
    # A quarter turn about z: the camera's x is the base's y.
    third = [[0, -1, 0, 2], [1, 0, 0, 0], [0, 0, 1, 2], [0, 0, 0, 1]]
    np.testing.assert_allclose(index.whole.T_world_camera[2], third, atol=1e-12)


def _along_x(distance: float) -> np.ndarray:
    change = np.zeros((3, 4))
    change[0, 3] = distance
    return change


def test_what_is_in_it(tmp_path: Path) -> None:
    """Messages of a type that ROS 2 lacks are counted, and kept as stored."""
    with Ros1Bag(tmp_path / "a.bag") as bag:
        bag.images(pictures(4))
        bag.raw("/arm", "maker_msgs/msg/Arm", START, bytes([7, 0, 0, 0]))
        bag.topic("/empty", "std_msgs/msg/String")
    info = bag_info(tmp_path / "a.bag")
    assert (info.storage, info.compression, info.messages) == ("rosbag1", "", 5)
    assert {t.name: (t.messages, t.known_type) for t in info.topics} == {
        TOPIC: (4, True), "/arm": (1, False), "/empty": (0, True),
    }  # fmt: skip
    assert info.image == TOPIC and info.lost_messages == {}
    assert info.start_ns == START and info.end_ns == stamps(4)[-1] + DELAY
    with Bag(tmp_path / "a.bag") as bag:
        dropped = DroppedMessages()
        (message,) = bag.messages({"/arm"}, dropped)
        assert bytes(message.data) == bytes([7, 0, 0, 0])
        assert bytes(bag.read(message.file, message.place)) == bytes([7, 0, 0, 0])


def test_a_folder_of_parts(tmp_path: Path) -> None:
    """``rosbag record --split`` numbers them."""
    images = pictures(6)
    for part in (0, 1):
        with Ros1Bag(tmp_path / f"walk_{part}.bag") as bag:
            bag.images(images[3 * part :][:3], start=START + part * 10**8)
    assert_same(index_of(tmp_path), images)
    assert Registry().expand([tmp_path]) == [tmp_path]


def encrypted(data: bytes) -> bytes:
    """The bag header's padding gives way to the field that names an encryptor."""
    (size,) = struct.unpack_from("<I", data, 13)
    extra = b"encryptor=rosbag/AesCbcEncryptor"
    extra = struct.pack("<I", len(extra)) + extra
    header = struct.pack("<I", size + len(extra)) + data[17 : 17 + size] + extra
    (padding,) = struct.unpack_from("<I", data, 17 + size)
    rest = data[17 + size + 4 + len(extra) :]
    return data[:13] + header + struct.pack("<I", padding - len(extra)) + rest


def unindexed(data: bytes) -> bytes:
    at = data.index(b"index_pos=") + len(b"index_pos=")
    return data[:at] + bytes(8) + data[at + 8 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "seems to be empty"),
        (lambda data: b"RIFF" * 100, "not a readable ROS 1 bag"),
        (lambda data: b"#ROSBAG V1.2\n" + data[13:], "version 102 is not supported"),
        (lambda data: data[: len(data) * 9 // 10], "not a readable ROS 1 bag"),
        (lambda data: data[:4000], "index looks damaged"),
        (encrypted, "encryption 'rosbag/AesCbcEncryptor' is not supported"),
        (unindexed, "not indexed, reindex before reading"),
    ],
)
def test_bags_that_cannot_be_read(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "a.bag"
    with Ros1Bag(path) as bag:
        bag.images(pictures(4))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"a\.bag: .*{message}.*valid: version 2\.0"):
        index_of(path)


@pytest.mark.parametrize("compression", ["bz2", "lz4"])
def test_a_damaged_chunk(tmp_path: Path, compression: str) -> None:
    """Its messages, two pictures of 2.4 kB, are counted as lost; the others are read."""
    path, images = tmp_path / "a.bag", pictures(8)
    with Ros1Bag(path, compression, chunk=4000) as bag:
        bag.images(images)
        second = bag._writer.chunks[1].pos
    data = bytearray(path.read_bytes())
    data[second + 150 : second + 550] = bytes(400)
    path.write_bytes(data)
    index = index_of(path)
    assert index.dropped.by_topic == {TOPIC: 2}
    assert any("cannot be read" in remark for remark in index.dropped.remarks)
    assert_same(index, [*images[:2], *images[4:]])


COLOR, DEPTH = "/device_0/sensor_1/Color_0", "/device_0/sensor_0/Depth_0"
TRANSFORM = "geometry_msgs/msg/Transform"
# Depth to colour, as rs2_extrinsics: a quarter turn about z, then 15, 1 and 2 mm.
TO_COLOR = np.array([[0, -1, 0, 0.015], [1, 0, 0, 0.001], [0, 0, 1, 0.002], [0, 0, 0, 1]])


def viewer_bag(path: Path, version: str, units: float = 1e-3) -> np.ndarray:
    """A recording of RealSense's viewer; return its depth in counts.

    ``version`` is in the headers' frame_id; from "1" on ``units`` stand behind each picture
    (librealsense: ros_writer.cpp, sensor_msgs/Image.h).
    """
    counts = (1000 + np.arange(32 * 24).reshape(24, 32)).astype(np.uint16)
    with Ros1Bag(path) as bag:
        for ns in stamps(3):
            for topic, encoding, pixels in (
                (COLOR, "rgb8", pictures(1)[0]), (DEPTH, "mono16", counts)
            ):  # fmt: skip
                message = bag.make(
                    "sensor_msgs/msg/Image", header=bag.header(ns, version), height=24, width=32,
                    encoding=encoding, is_bigendian=0, step=pixels.nbytes // 24,
                    data=pixels.reshape(24, -1).view(np.uint8).reshape(-1),
                )  # fmt: skip
                data = bytes(bag.store.serialize_ros1(message, "sensor_msgs/msg/Image"))
                after = units if topic == DEPTH else 0.0
                data += struct.pack("<f", after) if version == "1" else b""
                bag.raw(f"{topic}/image/data", "sensor_msgs/msg/Image", ns, data)
        for topic in (COLOR, DEPTH):
            info = f"{topic}/info/camera_info"
            lens = (0.1, -0.05, 0.001, 0.002, 0.01) if topic == COLOR else (0.0,) * 5
            bag.camera_info(0, "Brown Conrady", d=lens, topic=info, frame="")
            place = {"translation": bag.vector((0, 0, 0)), "rotation": bag.quaternion((1, 0, 0, 0))}
            if topic == COLOR:
                place["translation"] = bag.vector(TO_COLOR[:3, 3])
                place["rotation"] = bag.quaternion((HALF, 0, 0, HALF))
            bag.put(f"{topic}/tf/0", TRANSFORM, 1, bag.make(TRANSFORM, **place))
    return counts


@pytest.mark.parametrize("version", ["0", "1"])
def test_realsense_viewer(tmp_path: Path, version: str) -> None:
    counts = viewer_bag(tmp_path / "a.bag", version)
    index = index_of(tmp_path / "a.bag")
    assert index.topics["image"] == f"{COLOR}/image/data" and not index.dropped.by_topic
    assert index.topics["camera_info"] == f"{COLOR}/info/camera_info"
    assert (index.whole.frames.at(2) == pictures(1)[0]).all()
    assert index.whole.camera.distortion[:5] == (0.1, -0.05, 0.001, 0.002, 0.01)
    depth = index.whole.depth
    np.testing.assert_allclose(depth.T_camera_depth, TO_COLOR, atol=1e-12)
    np.testing.assert_allclose(depth.frames.at(1), counts / 1000, rtol=1e-6)
    assert (depth.camera.model, depth.camera.fx, depth.camera.cx) == ("pinhole", 40.0, 15.5)


def test_realsense_depth_in_other_units(tmp_path: Path) -> None:
    """An L515 counts quarters of a millimetre."""
    viewer_bag(tmp_path / "a.bag", "1", 0.00025)
    index = index_of(tmp_path / "a.bag")
    assert len(index.whole) == 3 and index.whole.depth is None
    assert any("0.00025 m" in remark for remark in index.dropped.remarks)


def test_an_ordinary_frame_called_1(tmp_path: Path) -> None:
    with Ros1Bag(tmp_path / "a.bag") as bag:
        bag.image(pictures(1)[0], START, frame="1")
    assert_same(index_of(tmp_path / "a.bag"), pictures(1))


def test_options_of_bags_apply(tmp_path: Path) -> None:
    with Ros1Bag(tmp_path / "a.bag") as bag:
        bag.images(pictures(4))
        bag.images(pictures(4, seed=9), topic=RIGHT)
    named = RecordingOptions(own={"bag": BagOptions(image_topic=RIGHT)})
    recording = open_recording(tmp_path / "a.bag", named)
    assert (recording.frames.at(2) == pictures(4, seed=9)[2]).all()


def test_a_real_recording_of_the_viewer() -> None:
    """librealsense's unit-tests/resources/single_depth_color_640x480.bag; numbers of its SDK."""
    folder = Path(os.environ.get("ACEHAND_ROS1", "/nonexistent"))
    if not (path := folder / "single_depth_color_640x480.bag").is_file():
        pytest.skip("ACEHAND_ROS1 names no folder with single_depth_color_640x480.bag")
    recording = open_recording(path)
    assert (recording.width, recording.height) == (640, 480)
    assert recording.camera.fx == pytest.approx(613.2036743) and recording.depth is not None
    place = recording.depth.T_camera_depth[:3, 3]
    assert place == pytest.approx([0.0143113136, 0.000602306, 0.000610804], abs=1e-9)
    assert float(np.nanmedian(recording.depth.frames.at(0))) == pytest.approx(1.471, abs=1e-3)
