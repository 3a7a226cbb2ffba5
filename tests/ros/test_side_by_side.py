"""Two robots on one ROS graph, each in a namespace with a frame prefix of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_process import Launched, Process, needs, spin_until
from test_player import TRUTH, Heard, stamp_ns

from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion

#: When each robot's recording began: a day apart.
STARTS = {"one": 1_700_000_000 * 10**9, "two": 1_700_086_400 * 10**9}
SIDES = ("left", "right")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    motion, out = read_hand_motion(TRUTH), {}
    for name, start in STARTS.items():
        out[name] = tmp_path_factory.mktemp(name) / "hands.parquet"
        moved = motion.at(np.arange(60), start + motion.timestamps_ns[:60], motion.fps)
        write_hand_motion(moved, out[name], False)
    return out


class Frames:
    """What transforms say: the parents of each frame, and the stamps by prefix."""

    def __init__(self, node: Any) -> None:
        from rclpy.qos import DurabilityPolicy, QoSProfile
        from tf2_msgs.msg import TFMessage

        self.parents: dict[str, set[str]] = {}
        self.stamps: dict[str, list[int]] = {}
        fixed = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        node.create_subscription(TFMessage, "/tf", self._got, 1000)
        node.create_subscription(TFMessage, "/tf_static", self._got, fixed)

    def _got(self, message: Any) -> None:
        for one in message.transforms:
            self.parents.setdefault(one.child_frame_id, set()).add(one.header.frame_id)
            self.stamps.setdefault(one.child_frame_id.partition("/")[0], []).append(stamp_ns(one))

    def root(self, frame: str) -> str:
        """Return where the tree of a frame begins."""
        while frame in self.parents:
            (frame,) = self.parents[frame]
        return frame


def test_two_robots_do_not_meet(
    node: Any, launch: Callable[..., Launched], tables: dict[str, Path]
) -> None:
    from diagnostic_msgs.msg import DiagnosticArray
    from rclpy.qos import qos_profile_sensor_data
    from rosgraph_msgs.msg import Clock
    from sensor_msgs.msg import JointState

    needs("robot_state_publisher")
    frames, told = Frames(node), Heard(node, DiagnosticArray, "/diagnostics")
    states = {
        (name, side): Heard(node, JointState, f"/{name}/{side}_hand/joint_states")
        for name in STARTS
        for side in SIDES
    }
    clocks = {
        name: Heard(node, Clock, f"/{name}/clock", qos_profile_sensor_data) for name in STARTS
    }
    for name, table in tables.items():
        launch(
            "replay", source=table, namespace=name, frame_prefix=f"{name}/", loop=True, view="none"
        )
    links = [f"{name}/{side}_index_intermediate" for name in STARTS for side in SIDES]
    spin_until(node, lambda: all(len(heard.all) > 30 for heard in states.values()), 60)
    spin_until(node, lambda: all(link in frames.parents for link in links), 60)
    names = {status.name for message in told.messages for status in message.status}
    for name, start in STARTS.items():
        for side in SIDES:
            stamps = [stamp_ns(message) for message in states[name, side].messages]
            assert start <= min(stamps) and max(stamps) < start + 3 * 10**9
            # From the fingers' links to the world, all of it under the robot's own prefix.
            assert frames.root(f"{name}/{side}_index_intermediate") == f"{name}/world"
        times = [m.clock.sec * 10**9 + m.clock.nanosec for m in clocks[name].messages]
        assert start <= min(times) and max(times) < start + 3 * 10**9
        assert f"{name}/trajectory_player" in names
        assert all(at == 0 or start <= at < start + 3 * 10**9 for at in frames.stamps[name])
    assert set(frames.stamps) == set(STARTS)
    shared = {"/diagnostics", "/tf", "/tf_static", "/rosout", "/parameter_events"}
    for topic, _ in node.get_topic_names_and_types():
        for publisher in node.get_publishers_info_by_topic(topic):
            own = publisher.node_namespace.strip("/").split("/")[0]
            if own in STARTS:
                assert topic.split("/")[1] == own or topic in shared
    for name in STARTS:
        (publisher,) = node.get_publishers_info_by_topic(f"/{name}/left_hand/joint_states")
        assert publisher.node_namespace == f"/{name}"


@pytest.mark.parametrize(
    ("remap", "given", "image", "info"),
    [
        (
            {"__ns": "/cell"},
            "camera/image_raw",
            "/cell/camera/image_raw",
            "/cell/camera/camera_info",
        ),
        ({"image": "/front/image_raw"}, "image", "/front/image_raw", "/front/camera_info"),
        (
            {"image": "/front/image_raw", "/front/camera_info": "/calibration"},
            "image",
            "/front/image_raw",
            "/calibration",
        ),
    ],
)
def test_camera_info_is_next_to_the_remapped_images(
    node: Any,
    start: Callable[..., Process],
    tmp_path: Path,
    remap: dict[str, str],
    given: str,
    image: str,
    info: str,
) -> None:
    start("clip_recorder", remap, output_dir=tmp_path, image_topic=given, image_type="raw")
    spin_until(node, lambda: node.count_subscribers(image) == 1, 60)
    spin_until(node, lambda: node.count_subscribers(info) == 1, 5)
