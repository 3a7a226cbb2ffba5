"""Every message of ours, built as the checked classes of a real ROS 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acehand_core.pipeline.bag_write import load_demonstrations
from acehand_core.recordings.bags.messages import (
    TOPICS,
    Demonstration,
    PlainMessage,
    diagnostics_messages,
    frame_messages,
    latched_messages,
    trajectory_messages,
)
from acehand_core.recordings.bags.writer import BagWriter
from acehand_ros.messages import quality, to_ros
from acehand_ros.worker import JobStatus, job_diagnostics

TRUTH = Path(__file__).parents[2] / "examples" / "two_hands_truth.parquet"


@pytest.fixture(scope="module")
def demonstration() -> Demonstration:
    demo, _ = next(iter(load_demonstrations(TRUTH)))
    return demo


def messages(demonstration: Demonstration) -> list[Any]:
    return [
        *latched_messages(demonstration),
        *trajectory_messages(demonstration),
        *diagnostics_messages(demonstration),
        *frame_messages(demonstration, 39),
    ]


def test_field_checks_are_on() -> None:
    from sensor_msgs.msg import JointState

    with pytest.raises(AssertionError):
        JointState().position = ["not a number"]


def test_every_message_passes_the_field_checks(demonstration: Demonstration) -> None:
    plain = messages(demonstration)
    assert {message.topic for message in plain} == set(TOPICS)
    for message in plain:
        as_sent(message)


def as_sent(message: PlainMessage) -> Any:
    """Return the message as a subscriber of a real ROS gets it: numbers as wide as its fields."""
    from rclpy.serialization import deserialize_message, serialize_message

    built = to_ros(message)
    return deserialize_message(serialize_message(built), type(built))


def test_messages_of_the_nodes_pass_the_field_checks() -> None:
    status = JobStatus("failed", "track", 3, 9, "no such topic")
    built = to_ros(job_diagnostics("offline_bag", status, 1_700_000_000_000_000_001))
    assert built.status[0].level == b"\x02" and built.header.stamp.nanosec == 1
    assert {v.key: v.value for v in built.status[0].values}["percent"] == "33"


def test_stamps_can_be_replaced(demonstration: Demonstration) -> None:
    for plain in frame_messages(demonstration, 3):
        built = to_ros(plain, 5_000_000_007)
        inner = getattr(built, "transforms", None) or getattr(built, "markers", None) or [built]
        assert all((m.header.stamp.sec, m.header.stamp.nanosec) == (5, 7) for m in inner)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_ros_reads_what_our_bags_hold(
    demonstration: Demonstration, tmp_path: Path, storage: str
) -> None:
    """Bytes written without ROS, decoded by ROS: equal to the same message built by ROS."""
    from rclpy.serialization import deserialize_message
    from rosbags.rosbag2 import Reader

    plain = messages(demonstration)
    with BagWriter(tmp_path / "bag", storage=storage) as writer:
        for message in plain:
            writer.write(message)
    expected: dict[str, list[Any]] = {}
    for message in plain:
        expected.setdefault(message.topic, []).append(as_sent(message))
    with Reader(tmp_path / "bag") as reader:
        for connection, _, data in reader.messages():
            kind = type(expected[connection.topic][0])
            decoded = deserialize_message(bytes(data), kind)
            assert decoded in expected[connection.topic], connection.topic
            expected[connection.topic].remove(decoded)
    assert not any(expected.values())


def test_quality_of_service_as_documented() -> None:
    from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

    for side in ("left", "right"):
        states = quality(TOPICS[f"/{side}_hand/joint_states"])
        assert (states.depth, states.reliability) == (10, ReliabilityPolicy.RELIABLE)
        assert states.durability == DurabilityPolicy.VOLATILE
        latched = quality(TOPICS[f"/{side}_hand/robot_description"])
        assert latched.durability == DurabilityPolicy.TRANSIENT_LOCAL
    assert quality(TOPICS["/tf_static"]).durability == DurabilityPolicy.TRANSIENT_LOCAL


def test_numbers_are_exact(demonstration: Demonstration) -> None:
    from acehand_core.recordings.bags.messages import joint_state

    built = to_ros(joint_state(demonstration, 17, 1))
    assert np.array_equal(built.position, demonstration.joints[17, 1])
