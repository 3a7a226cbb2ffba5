"""Plain messages (``recordings.bags.messages``) as rclpy messages, and their publishers."""

from __future__ import annotations

import array
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from acehand_core.recordings.bags.messages import SHARED, TOPICS, PlainMessage, TopicSpec, time_of

DIAGNOSTICS = "/diagnostics"


def to_ros(message: PlainMessage, stamp_ns: int | None = None) -> Any:
    """Return the rclpy message of a plain one, restamped if ``stamp_ns`` is given.

    Arrays become lists and octets become bytes, as the fields' setters require.
    """
    from rosidl_runtime_py.utilities import get_message

    return _filled(get_message(message.msgtype), message.fields, stamp_ns)


def _filled(kind: Any, fields: Mapping[str, Any], stamp_ns: int | None) -> Any:
    if stamp_ns is not None and fields.keys() == {"stamp", "frame_id"}:
        fields = {**fields, "stamp": time_of(stamp_ns)}
    nested, octets = _plan(kind)
    values = {}
    for name, value in fields.items():
        inner = nested.get(name)
        if inner is None:
            values[name] = bytes([value]) if name in octets else _plain(value)
        elif isinstance(value, Mapping):
            values[name] = _filled(inner, value, stamp_ns)
        else:
            values[name] = [_filled(inner, item, stamp_ns) for item in value]
    return kind(**values)


@functools.cache
def _plan(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the types of a message's nested messages, and the names of its octet fields.

    ``rosidl_runtime_py.set_message_fields`` looks these up for every value, which is too slow for
    the thousands of points of a hand's surface.
    """
    from rosidl_runtime_py.utilities import get_message

    types = kind.get_fields_and_field_types()
    names = {field: re.search(r"(\w+)/(\w+)", text) for field, text in types.items()}
    nested = {f: get_message(f"{n[1]}/msg/{n[2]}") for f, n in names.items() if n is not None}
    return nested, frozenset(field for field, text in types.items() if text == "octet")


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return array.array("B", value.tobytes())
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def live_topic(topic: str) -> str:
    """Return a bag topic's live name: relative, except for /diagnostics, /tf and /tf_static."""
    return topic if topic in SHARED else topic.removeprefix("/")


def in_namespace(message: PlainMessage, namespace: str) -> PlainMessage:
    """Put the node's namespace before status names on /diagnostics, which all nodes share."""
    prefix = namespace.strip("/")
    if message.topic != DIAGNOSTICS or not prefix:
        return message
    status = [{**one, "name": f"{prefix}/{one['name']}"} for one in message.fields["status"]]
    return replace(message, fields={**message.fields, "status": status})


def quality(spec: TopicSpec) -> Any:
    """Return the QoS profile of a topic."""
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

    kinds = DurabilityPolicy
    durability = kinds.TRANSIENT_LOCAL if spec.latched else kinds.VOLATILE
    return QoSProfile(
        depth=spec.depth, reliability=ReliabilityPolicy.RELIABLE, durability=durability
    )


class Outlet:
    """Publishes plain messages; topics have their names in a bag, see ``live_topic``.

    ROS keeps latched messages by depth, so a topic with several (/tf_static) must fit its depth.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._publishers: dict[str, Any] = {}

    def open(self, topics: Iterable[str]) -> None:
        """Advertise topics before their first message."""
        for topic in topics:
            self._publisher(topic, TOPICS[topic].msgtype)

    def prepare(self, messages: Iterable[PlainMessage]) -> None:
        """Advertise topics and load their types, so that the first message is not late."""
        for message in messages:
            self._publisher(message.topic, message.msgtype)
            to_ros(message)

    def publish(self, messages: Iterable[PlainMessage], stamp_ns: int | None = None) -> None:
        """Publish messages, restamped if ``stamp_ns`` is given."""
        namespace = self._node.get_namespace()
        for message in messages:
            ros_message = to_ros(in_namespace(message, namespace), stamp_ns)
            self._publisher(message.topic, message.msgtype).publish(ros_message)

    def has_subscriber(self, topic: str) -> bool:
        publisher = self._publishers.get(topic)
        return publisher is not None and publisher.get_subscription_count() > 0

    def close(self) -> None:
        for publisher in self._publishers.values():
            self._node.destroy_publisher(publisher)
        self._publishers = {}

    def _publisher(self, topic: str, msgtype: str) -> Any:
        if topic not in self._publishers:
            from rosidl_runtime_py.utilities import get_message

            profile = quality(TOPICS[topic]) if topic in TOPICS else 10
            kind = get_message(msgtype)
            self._publishers[topic] = self._node.create_publisher(kind, live_topic(topic), profile)
        return self._publishers[topic]
