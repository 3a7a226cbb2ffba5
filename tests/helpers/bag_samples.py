"""Bags with known content for tests, written with rosbags alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer

from acehand_core.recordings.bag import BagIndex, index_bag
from acehand_core.recordings.bags import library
from acehand_core.recordings.bags.library import COMPRESSED_VIDEO, FFMPEG_PACKET
from acehand_core.recordings.bags.records import BagOptions

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
INFO, TF = "sensor_msgs/msg/CameraInfo", "tf2_msgs/msg/TFMessage"
ODOMETRY = "nav_msgs/msg/Odometry"
START = 1_700_000_000_123_456_789
#: Between capture and receipt.
DELAY = 4_000_000
TOPIC = "/cam/image_raw"
COMPRESSED_TOPIC = f"{TOPIC}/compressed"


def stamps(count: int, fps: float = 30.0, start: int = START) -> list[int]:
    return [start + round(i * 1e9 / fps) for i in range(count)]


def pictures(count: int, width: int = 32, height: int = 24, seed: int = 0) -> list[np.ndarray]:
    """Smooth colours that differ from frame to frame and corner to corner."""
    y, x = np.mgrid[:height, :width]
    out = []
    for i in range(count):
        planes = [(x * 5 + i * 11 + seed) % 256, (y * 7 + i * 3) % 256, (x * 2 + y * 3 + i) % 256]
        out.append(np.stack(planes, axis=-1).astype(np.uint8))
    return out


class SampleBag:
    """A bag being written. Messages are given as rosbags objects."""

    def __init__(
        self, path: Path, storage="mcap", distro="jazzy", compression="none", version: int = 9
    ) -> None:
        self.store = library.typestore(distro)
        self.path = path
        plugin = StoragePlugin.MCAP if storage == "mcap" else StoragePlugin.SQLITE3
        self._writer = Writer(path, version=version, storage_plugin=plugin)
        mode = CompressionMode[compression.upper()]
        self._writer.set_compression(mode, CompressionFormat.ZSTD)
        self._writer.open()
        self._connections: dict[str, Any] = {}

    def __enter__(self) -> SampleBag:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def topic(self, name: str, kind: str) -> Any:
        if name not in self._connections:
            options = {"typestore": self.store}
            if kind not in self.store.fielddefs:
                definition = "int32 value\n"
                options = {"msgdef": definition, "rihs01": library.type_hash(kind, definition)}
            self._connections[name] = self._writer.add_connection(name, kind, **options)
        return self._connections[name]

    def raw(self, topic: str, kind: str, log_ns: int, data: bytes) -> None:
        self._writer.write(self.topic(topic, kind), log_ns, data)

    def put(self, topic: str, kind: str, log_ns: int, message: Any) -> None:
        self.raw(topic, kind, log_ns, bytes(self.store.serialize_cdr(message, kind)))

    def make(self, kind: str, **fields: Any) -> Any:
        return self.store.types[kind](**fields)

    def time(self, ns: int) -> Any:
        return self.make("builtin_interfaces/msg/Time", sec=ns // 10**9, nanosec=ns % 10**9)

    def header(self, ns: int, frame: str = "cam_optical") -> Any:
        return self.make("std_msgs/msg/Header", stamp=self.time(ns), frame_id=frame)

    def image(self, rgb: np.ndarray, ns: int, encoding: str = "rgb8", **more: Any) -> None:
        self.pixels(encoded(rgb, encoding), rgb.shape[:2], ns, encoding, **more)

    def pixels(
        self,
        pixels: np.ndarray,
        shape: Any,
        ns: int,
        encoding: str,
        topic: str = TOPIC,
        **more: Any,
    ) -> None:
        """A message of pixels as they are stored; ``more``: log_ns, padding, big_endian, frame."""
        rows = pixels.reshape(pixels.shape[0], -1).view(np.uint8)
        rows = np.pad(rows, ((0, 0), (0, more.get("padding", 0))), constant_values=7)
        message = self.make(
            IMAGE, header=self.header(ns, more.get("frame", "cam_optical")), height=shape[0],
            width=shape[1], encoding=encoding,
            is_bigendian=more.get("big_endian", 0), step=rows.shape[1], data=rows.reshape(-1),
        )  # fmt: skip
        self.put(topic, IMAGE, more.get("log_ns") or ns + DELAY, message)

    def images(self, images: Sequence[np.ndarray], start: int = START, **more: Any) -> None:
        """Pictures at 30 Hz."""
        for image, ns in zip(images, stamps(len(images), start=start), strict=True):
            self.image(image, ns, **more)

    def compressed(
        self, rgb: np.ndarray, ns: int, kind: str, topic: str = COMPRESSED_TOPIC
    ) -> None:
        self.compressed_bytes(encoded_as(kind, rgb), ns, f"bgr8; {kind} compressed bgr8", topic)

    def compressed_bytes(
        self,
        data: np.ndarray,
        ns: int,
        text: str,
        topic: str = COMPRESSED_TOPIC,
        frame: str = "cam_optical",
    ) -> None:
        message = self.make(COMPRESSED, header=self.header(ns, frame), format=text, data=data)
        self.put(topic, COMPRESSED, ns + DELAY, message)

    def packet(self, data: bytes, ns: int, key: bool, kind: str, size: tuple[int, int]) -> None:
        array = np.frombuffer(data, np.uint8)
        if kind == FFMPEG_PACKET:
            message = self.make(
                kind, header=self.header(ns), width=size[0], height=size[1], encoding="h264",
                pts=ns // 1000, flags=int(key), is_bigendian=False, data=array,
            )  # fmt: skip
        else:
            message = self.make(
                COMPRESSED_VIDEO, timestamp=self.time(ns), frame_id="cam", data=array, format="h264"
            )
        self.put("/cam/image_raw/ffmpeg", kind, ns + DELAY, message)

    def camera_info(
        self,
        ns: int,
        model: str = "plumb_bob",
        d: Sequence[float] = (0.0,) * 5,
        k: Sequence[float] = (40.0, 41.0, 15.5, 11.5),
        size: tuple[int, int] = (32, 24),
        topic: str = "/cam/camera_info",
        binning: int = 0,
        roi: tuple[int, int, int, int] = (0, 0, 0, 0),
        p: Sequence[float] | None = None,
        frame: str = "cam_optical",
    ) -> Any:
        """Put a CameraInfo into the bag; return it."""
        fx, fy, cx, cy = k
        projection = p if p is not None else (fx, 0, cx, 0, 0, fy, cy, 0, 0, 0, 1, 0)
        message = self.make(
            INFO, header=self.header(ns, frame), width=size[0], height=size[1],
            distortion_model=model,
            d=np.array(d, float), k=np.array([fx, 0, cx, 0, fy, cy, 0, 0, 1], float),
            r=np.eye(3).reshape(-1), p=np.array(projection, float), binning_x=binning,
            binning_y=binning,
            roi=self.make(
                "sensor_msgs/msg/RegionOfInterest", x_offset=roi[0], y_offset=roi[1], width=roi[2],
                height=roi[3], do_rectify=False,
            ),
        )  # fmt: skip
        self.put(topic, INFO, ns + DELAY, message)
        return message

    def vector(self, xyz: Sequence[float], kind: str = "Vector3") -> Any:
        x, y, z = (float(value) for value in xyz)
        return self.make(f"geometry_msgs/msg/{kind}", x=x, y=y, z=z)

    def quaternion(self, wxyz: Sequence[float]) -> Any:
        w, x, y, z = (float(value) for value in wxyz)
        return self.make("geometry_msgs/msg/Quaternion", x=x, y=y, z=z, w=w)

    def tf(self, ns: int, parent: str, child: str, xyz: Any, wxyz: Any, topic: str = "/tf") -> None:
        place = {"translation": self.vector(xyz), "rotation": self.quaternion(wxyz)}
        transform = self.make("geometry_msgs/msg/Transform", **place)
        fields = {"header": self.header(ns, parent), "child_frame_id": child}
        kind = "geometry_msgs/msg/TransformStamped"
        stamped = self.make(kind, **fields, transform=transform)
        self.put(topic, TF, ns + DELAY, self.make(TF, transforms=[stamped]))

    def odometry(self, ns: int, parent: str, child: str, xyz: Any, wxyz: Any) -> None:
        place = {"position": self.vector(xyz, "Point"), "orientation": self.quaternion(wxyz)}
        zero = self.vector((0, 0, 0))
        pose = self.make("geometry_msgs/msg/Pose", **place)
        twist = self.make("geometry_msgs/msg/Twist", linear=zero, angular=zero)
        kind, unknown = "geometry_msgs/msg/{}WithCovariance", {"covariance": np.zeros(36)}
        fields = {
            "pose": self.make(kind.format("Pose"), pose=pose, **unknown),
            "twist": self.make(kind.format("Twist"), twist=twist, **unknown),
        }
        header = self.header(ns, parent)
        message = self.make(ODOMETRY, header=header, child_frame_id=child, **fields)
        self.put("/odom", ODOMETRY, ns + DELAY, message)

    def text(self, topic: str, log_ns: int, text: str) -> None:
        self.put(topic, "std_msgs/msg/String", log_ns, self.make("std_msgs/msg/String", data=text))

    def flag(self, topic: str, log_ns: int, value: bool) -> None:
        self.put(topic, "std_msgs/msg/Bool", log_ns, self.make("std_msgs/msg/Bool", data=value))


def index_of(path: Path, **reading: str) -> BagIndex:
    return index_bag(path, BagOptions(**reading))


def read_images(index: BagIndex) -> list[np.ndarray]:
    return list(index.whole.frames.read(0, len(index.whole.frames)))


def assert_same(index: BagIndex, images: Sequence[np.ndarray]) -> None:
    for number, (ours, truth) in enumerate(zip(read_images(index), images, strict=True)):
        assert np.array_equal(ours, truth), number


def encoded_as(kind: str, rgb: np.ndarray) -> np.ndarray:
    """A picture as a file: png or jpeg."""
    ok, data = cv2.imencode(f".{kind}", rgb[..., ::-1])
    assert ok
    return data


_BAYER = {"rggb": (0, 1, 1, 2), "bggr": (2, 1, 1, 0), "gbrg": (1, 2, 0, 1), "grbg": (1, 0, 2, 1)}


def encoded(rgb: np.ndarray, encoding: str) -> np.ndarray:
    """Return pixels as a camera driver would store them, without OpenCV's conversions."""
    if encoding.endswith("16"):
        narrow = encoded(rgb, encoding[:-2] + "8").astype("<u2")
        return narrow * 257
    alpha = np.full((*rgb.shape[:2], 1), 9, np.uint8)
    if encoding in ("rgb8", "rgba8"):
        return rgb if encoding == "rgb8" else np.concatenate([rgb, alpha], -1)
    if encoding in ("bgr8", "8UC3", "bgra8", "8UC4"):
        bgr = np.ascontiguousarray(rgb[..., ::-1])
        return np.concatenate([bgr, alpha], -1) if encoding in ("bgra8", "8UC4") else bgr
    if encoding in ("mono8", "8UC1"):
        return np.ascontiguousarray(rgb[..., 0])
    if encoding.startswith("bayer_"):
        pattern = _BAYER[encoding[6:10]]
        out = np.empty(rgb.shape[:2], np.uint8)
        for i, channel in enumerate(pattern):
            out[i // 2 :: 2, i % 2 :: 2] = rgb[i // 2 :: 2, i % 2 :: 2, channel]
        return out
    y, u, v = _yuv(rgb)
    u, v = (np.repeat(c[:, ::2], 2, axis=1) for c in (u, v))
    chroma = np.where(np.arange(rgb.shape[1]) % 2 == 0, u, v)
    if encoding in ("yuyv", "yuv422_yuy2"):
        return np.stack([y, chroma], -1)
    if encoding in ("uyvy", "yuv422"):
        return np.stack([chroma, y], -1)
    assert encoding in ("nv12", "nv21")
    half = chroma[::2] if encoding == "nv12" else np.where(
        np.arange(rgb.shape[1]) % 2 == 0, v, u)[::2]  # fmt: skip
    return np.concatenate([y, half])


def _yuv(rgb: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """BT.601, limited range."""
    r, g, b = (rgb[..., i].astype(float) for i in range(3))
    y = 16 + 0.257 * r + 0.504 * g + 0.098 * b
    u = 128 - 0.148 * r - 0.291 * g + 0.439 * b
    v = 128 + 0.439 * r - 0.368 * g - 0.071 * b
    return tuple(np.clip(np.round(c), 0, 255).astype(np.uint8) for c in (y, u, v))


def simple_bag(path: Path, count: int = 12, **options: Any) -> list[np.ndarray]:
    """Write pictures and CameraInfo at 30 Hz; return the pictures."""
    images = pictures(count)
    bag_of(path, images, camera=True, **options)
    return images


def bag_of(path: Path, images: Sequence[np.ndarray], camera: bool = False, **options: Any) -> None:
    with SampleBag(path, **options) as bag:
        for image, ns in zip(images, stamps(len(images)), strict=True):
            bag.image(image, ns)
            if camera:
                bag.camera_info(ns)
