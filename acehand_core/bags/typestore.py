"""From serialized messages to objects and back, with the types of a ROS distribution.

Only types known here are decoded: definitions inside a bag are carried along as text and never
compiled, since the library would run code made from them.
"""

from __future__ import annotations

import functools
from typing import Any

from acehand_core.bags.records import Data, needs_rosbags
from acehand_core.errors import InputError, SchemaError, nearest

#: Distributions whose types can be written, oldest first.
DISTROS = ("humble", "iron", "jazzy", "kilted", "lyrical")
OLDEST, LATEST = DISTROS[0], DISTROS[-1]

FFMPEG_PACKET = "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"
COMPRESSED_VIDEO = "foxglove_msgs/msg/CompressedVideo"
_EXTRA = {
    FFMPEG_PACKET: "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\n"
    "uint64 pts\nuint8 flags\nbool is_bigendian\nuint8[] data\n",
    COMPRESSED_VIDEO: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\n"
    "string format\n",
}


@functools.cache
def typestore(distro: str = LATEST) -> Any:
    """Return the types of a distribution, and those of video packets.

    Raises:
        InputError: unknown distribution. MissingDependencyError: rosbags is not installed.
    """
    try:
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    except ImportError as error:
        raise needs_rosbags("a bag") from error
    if distro not in DISTROS:
        raise InputError(f"ROS distribution {distro!r}; {nearest(distro, DISTROS)}")
    store = get_typestore(Stores[f"ROS2_{distro.upper()}"])
    for name, definition in _EXTRA.items():
        store.register(get_types_from_msg(definition, name))
    return store


def type_hash(msgtype: str, definition: str) -> str | None:
    """Return the REP-2011 hash of a definition's text, or None where it cannot be parsed.

    The text is parsed, not compiled.
    """
    from rosbags.typesys import TypesysError, get_types_from_msg
    from rosbags.typesys.store import Typestore

    try:
        store = Typestore()
        store.fielddefs.update(get_types_from_msg(definition, msgtype))
        return store.hash_rihs01(msgtype)
    except (TypesysError, KeyError, ValueError, RecursionError):
        return None


def store_for(distro: str) -> Any:
    """Return the types of the distribution that wrote a bag; the newest where it is not known."""
    return typestore(distro if distro in DISTROS else LATEST)


def decode(data: Data, msgtype: str) -> Any:
    """Return a message as an object with its fields.

    The layout of every type read here is the same from Humble to the newest distribution.

    Raises:
        SchemaError: unknown type, or bytes that are not such a message.
    """
    from rosbags.serde import SerdeError

    store = typestore()
    if msgtype not in store.fielddefs:
        raise SchemaError(f"Message type {msgtype!r} is not known here.")
    try:
        return store.deserialize_cdr(data, msgtype)
    except (SerdeError, IndexError, AssertionError, MemoryError, OverflowError) as error:
        raise SchemaError(f"no {msgtype}: {error}") from error
