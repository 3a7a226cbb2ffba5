"""ROS 1 bags with known content for tests, written with rosbags alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rosbags.rosbag1 import Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from helpers.bag_samples import INFO, TF, SampleBag

TRANSFORMS = "geometry_msgs/TransformStamped[] transforms\n"


class Ros1Bag(SampleBag):
    """A ``SampleBag`` of ROS 1; ``compression`` of chunks is none, bz2 or lz4."""

    def __init__(self, path: Path, compression: str = "none", chunk: int = 1 << 20) -> None:
        self.store = get_typestore(Stores.ROS1_NOETIC)
        self.store.register(get_types_from_msg(TRANSFORMS, TF))
        self.path = path
        self._writer = Writer(path)
        self._writer.chunk_threshold = chunk
        if compression != "none":
            self._writer.set_compression(Writer.CompressionFormat[compression.upper()])
        self._writer.open()
        self._connections: dict[str, Any] = {}

    def topic(self, name: str, kind: str) -> Any:
        if name not in self._connections:
            options: dict[str, Any] = {"typestore": self.store}
            if kind not in self.store.fielddefs:
                options = {"msgdef": "int32 value\n", "md5sum": "0" * 32}
            self._connections[name] = self._writer.add_connection(name, kind, **options)
        return self._connections[name]

    def put(self, topic: str, kind: str, log_ns: int, message: Any) -> None:
        self.raw(topic, kind, log_ns, bytes(self.store.serialize_ros1(message, kind)))

    def make(self, kind: str, **fields: Any) -> Any:
        if kind == INFO:
            fields = {name.upper() if name in "dkrp" else name: v for name, v in fields.items()}
        if kind == "std_msgs/msg/Header":
            fields["seq"] = 258
        return super().make(kind, **fields)
