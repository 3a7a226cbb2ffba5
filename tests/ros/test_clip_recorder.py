"""clip_recorder with a live camera that the test plays."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_process import Process, call, spin_until, trigger
from rosbags.rosbag2 import Reader
from test_offline_bag import EXAMPLE, IMAGE, START, STEP, Told, image_fields

from acehand_core.lerobot.check import check_dataset
from acehand_core.recordings.bags.messages import PlainMessage
from acehand_core.recordings.video import open_video
from acehand_ros.clip_recorder import ClipFolder
from acehand_ros.messages import to_ros
from helpers.controller_rules import check_controller_takes
from retarget.robots.robot import load_robot

Start = Callable[..., Process]
TOPIC = "/camera/image_raw"


class Camera:
    """Publishes frames of the example with sensor-data QoS, one every ``period_s``.

    Those that ``lost`` numbers are left out; the others keep their stamps.
    """

    def __init__(
        self, node: Any, frames: int, lost: Collection[int] = (), period_s: float = 0.1
    ) -> None:
        from rclpy.qos import qos_profile_sensor_data
        from sensor_msgs.msg import Image

        images = open_video(EXAMPLE).frames.read(0, frames)
        kind = "sensor_msgs/msg/Image"
        self.messages = [
            to_ros(PlainMessage(TOPIC, kind, 0, image_fields(image, START + index * STEP)))
            for index, image in enumerate(images)
            if index not in lost
        ]
        self.sent = 0
        self.publisher = node.create_publisher(Image, TOPIC, qos_profile_sensor_data)
        self.timer = node.create_timer(period_s, self._tick)
        self.timer.cancel()

    def _tick(self) -> None:
        if self.sent < len(self.messages):
            self.publisher.publish(self.messages[self.sent])
            self.sent += 1


def test_a_clip_between_start_and_stop(node: Any, start: Start, tmp_path: Path) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from trajectory_msgs.msg import JointTrajectory

    got: list[Any] = []
    volatile = QoSProfile(depth=5, durability=DurabilityPolicy.VOLATILE)
    for side in ("left", "right"):
        topic = f"/{side}_hand/joint_trajectory"
        node.create_subscription(JointTrajectory, topic, got.append, volatile)
    told, camera = Told(node, "clip_recorder"), Camera(node, 12)
    start("clip_recorder", output_dir=tmp_path, image_topic=TOPIC)
    spin_until(node, lambda: camera.publisher.get_subscription_count() == 1, 60)
    refused = trigger(node, "/clip_recorder/stop")
    assert not refused.success and "No clip" in refused.message
    assert trigger(node, "/clip_recorder/start").success
    camera.timer.reset()
    spin_until(node, lambda: camera.sent == 12, 30)
    spin_until(node, lambda: told.all[-1].get("images") == "12", 10)
    stopped = trigger(node, "/clip_recorder/stop")
    assert stopped.success and "12 images" in stopped.message
    spin_until(node, lambda: told.state == "done", 240)
    spin_until(node, lambda: len(got) == 2, 10)
    for trajectory in got:
        assert len(trajectory.points) == 13
        side = trajectory.joint_names[0].split("_")[0]
        check_controller_takes(trajectory, load_robot("inspire").hand(side))
    assert list(check_dataset(tmp_path / "dataset")) == []


def test_it_ends_though_the_clock_has_stopped(node: Any, start: Start, tmp_path: Path) -> None:
    """As when ``ros2 bag play --clock`` is over before the clip is converted."""
    from rosgraph_msgs.msg import Clock

    def tick() -> None:
        nonlocal time_ns
        time_ns += STEP
        message = Clock()
        message.clock.sec, message.clock.nanosec = divmod(time_ns, 10**9)
        clock.publish(message)

    time_ns, clock = START, node.create_publisher(Clock, "/clock", 10)
    ticking, camera = node.create_timer(0.02, tick), Camera(node, 12)
    recorder = start(
        "clip_recorder", output_dir=tmp_path, image_topic=TOPIC, record_at_start=True,
        exit_when_done=True, use_sim_time=True,
    )  # fmt: skip
    told = Told(node, "clip_recorder")
    spin_until(node, lambda: camera.publisher.get_subscription_count() == 1, 60)
    spin_until(node, lambda: clock.get_subscription_count() == 1, 10)
    camera.timer.reset()
    spin_until(node, lambda: (told.all or [{}])[-1].get("images") == "12", 30)
    ticking.cancel()
    assert trigger(node, "/clip_recorder/stop").success
    spin_until(node, lambda: recorder.popen.poll() is not None, 240)
    code, output = recorder.wait(5)
    assert code == 0 and "done: 1 episode" in output, output


def test_the_first_clip_begins_with_the_first_image(
    node: Any, start: Start, tmp_path: Path
) -> None:
    """At 100 Hz: the queue holds a twentieth of a second, less than loading rosbags takes."""
    from rclpy.serialization import deserialize_message

    camera = Camera(node, 1, period_s=0.01)
    small = np.zeros((8, 8, 3), np.uint8)
    fields = [image_fields(small, START + index * STEP) for index in range(30)]
    camera.messages = [to_ros(PlainMessage(TOPIC, IMAGE, 0, one)) for one in fields]
    recorder = start("clip_recorder", output_dir=tmp_path, image_topic=TOPIC, record_at_start=True)
    spin_until(node, lambda: camera.publisher.get_subscription_count() == 1, 60)
    camera.timer.reset()
    spin_until(node, lambda: camera.sent == 30, 30)
    recorder.stop()
    with Reader(tmp_path / "clips" / "clip_000000") as reader:
        _, _, data = next(iter(reader.messages()))
    assert deserialize_message(bytes(data), type(camera.messages[0])) == camera.messages[0]


def test_no_image_and_the_life_cycle(node: Any, start: Start, tmp_path: Path) -> None:
    from lifecycle_msgs.msg import Transition
    from lifecycle_msgs.srv import ChangeState, GetState

    def change(transition: int) -> bool:
        request = ChangeState.Request(transition=Transition(id=transition))
        return call(node, ChangeState, "/clip_recorder/change_state", request).success

    def state() -> str:
        request = GetState.Request()
        return call(node, GetState, "/clip_recorder/get_state", request).current_state.label

    start(
        "clip_recorder", output_dir=tmp_path, image_topic=TOPIC, autostart=False,
        image_type="raw",
    )  # fmt: skip
    assert state() == "unconfigured"
    assert not trigger(node, "/clip_recorder/start").success
    assert change(Transition.TRANSITION_CONFIGURE) and state() == "inactive"
    assert change(Transition.TRANSITION_ACTIVATE) and state() == "active"
    assert trigger(node, "/clip_recorder/start").success
    empty = trigger(node, "/clip_recorder/stop")
    assert not empty.success and "no image received" in empty.message
    assert list((tmp_path / "clips").iterdir()) == []
    assert trigger(node, "/clip_recorder/start").success
    assert change(Transition.TRANSITION_DEACTIVATE) and state() == "inactive"
    assert list((tmp_path / "clips").iterdir()) == []
    # Whoever cleans up lets another have the folder.
    second = start("clip_recorder", output_dir=tmp_path, image_topic=TOPIC)
    code, output = second.wait(60)
    assert code == 4 and "another clip_recorder" in output, output
    assert "Traceback" not in output
    assert change(Transition.TRANSITION_CLEANUP) and state() == "unconfigured"
    ClipFolder(tmp_path).close()


def test_a_killed_recorder_loses_no_clip(node: Any, start: Start, tmp_path: Path) -> None:
    """Its clip is there, under its own number, when the next recorder has started."""
    told, camera = Told(node, "clip_recorder"), Camera(node, 6)
    killed = start("clip_recorder", output_dir=tmp_path, image_topic=TOPIC)
    spin_until(node, lambda: camera.publisher.get_subscription_count() == 1, 60)
    assert trigger(node, "/clip_recorder/start").success
    camera.timer.reset()
    spin_until(node, lambda: (told.all or [{}])[-1].get("images") == "6", 30)
    killed.popen.kill()
    killed.wait(10)
    assert [path.name[:12] for path in (tmp_path / "clips").iterdir()] == [".clip_000000"]

    again = start(
        "clip_recorder", output_dir=tmp_path, image_topic=TOPIC, exit_when_done=True,
        record_at_start=True,
    )  # fmt: skip
    spin_until(node, lambda: "clip_000001" in told.all[-1].get("clip", ""), 60)
    again.popen.send_signal(signal.SIGINT)
    _, output = again.wait(60)
    assert "clip_000000: recovered " in output and "clip discarded" in output, output
    assert [path.name for path in (tmp_path / "clips").iterdir()] == ["clip_000000"]
    assert not (tmp_path / "dataset").exists()  # who wants it converts it
    with Reader(tmp_path / "clips" / "clip_000000") as reader:
        frames = sum(1 for _ in reader.messages())
    # What is in memory is lost: at most 1 MiB, which is less than two of these pictures.
    assert 4 <= frames <= 6


@pytest.mark.parametrize(
    "parameters",
    [{"device": "cuda"}, {"duration": -1.0}, {"quality": "fasst"}, {"camera_motion": "ful"}],
)
def test_bad_parameters_end_the_node(start: Start, parameters: dict[str, Any]) -> None:
    code, output = start("clip_recorder", **parameters).wait(60)
    assert code == 2, output
    assert next(iter(parameters)) in output and "Traceback" not in output
