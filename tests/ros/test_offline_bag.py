"""offline_bag: a bag in, a dataset and a bag out, told on /diagnostics; start, cancel, launch."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_process import Launched, Process, spin_until, trigger

from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.format import HANDS, episode_folder
from acehand_core.recordings.bags.messages import PlainMessage
from acehand_core.recordings.bags.writer import BagWriter
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.recordings.video import open_video
from helpers.rgbd_bag import DEPTH_TOPIC, write_rgbd

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_hands.mp4"
START, STEP = 1_700_000_000_000_000_000, 33_333_333
IMAGE = "sensor_msgs/msg/Image"
Start = Callable[..., Process]


def image_fields(image: np.ndarray, stamp_ns: int) -> dict[str, Any]:
    height, width = image.shape[:2]
    stamp = {"sec": stamp_ns // 10**9, "nanosec": stamp_ns % 10**9}
    return {
        "header": {"stamp": stamp, "frame_id": "camera_optical_frame"},
        "height": height,
        "width": width,
        "encoding": "rgb8",
        "is_bigendian": 0,
        "step": 3 * width,
        "data": np.ascontiguousarray(image).reshape(-1),
    }


def write_bag(path: Path, frames: int) -> Path:
    with BagWriter(path) as writer:
        for index, image in enumerate(open_video(EXAMPLE).frames.read(0, frames)):
            stamp = START + index * STEP
            fields = image_fields(image, stamp)
            writer.write(PlainMessage("/camera/image_raw", IMAGE, stamp, fields))
    return path


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bag(tmp_path_factory.mktemp("bags") / "short", 12)


class Told:
    """What a node says about itself on /diagnostics."""

    def __init__(self, node: Any, name: str) -> None:
        from diagnostic_msgs.msg import DiagnosticArray

        self.name, self.all = name, []
        node.create_subscription(DiagnosticArray, "/diagnostics", self._got, 100)

    def _got(self, array: Any) -> None:
        for status in array.status:
            if status.name == self.name:
                self.all.append({v.key: v.value for v in status.values})

    @property
    def state(self) -> str | None:
        return self.all[-1].get("state") if self.all else None


def test_a_bag_becomes_a_dataset_and_a_bag(
    node: Any, start: Start, bag: Path, tmp_path: Path
) -> None:
    told = Told(node, "offline_bag")
    work = start("offline_bag", bag=bag, output_dir=tmp_path / "data", task="wave")
    spin_until(node, lambda: work.popen.poll() is not None, 240)
    code, output = work.wait(5)
    assert code == 0, output
    spin_until(node, lambda: told.state == "done", 5)
    assert "running" in {values["state"] for values in told.all}
    assert told.all[-1]["episodes"] == "1" and told.all[-1]["lost_messages"] == "0"
    assert list(check_dataset(tmp_path / "data")) == []
    assert (tmp_path / "data_bag" / "metadata.yaml").is_file()
    shutil.rmtree(tmp_path / "data_bag")
    again = start(
        "offline_bag", bag=bag, output_dir=tmp_path / "data", task="wave",
        existing="resume",
    )  # fmt: skip
    code, output = again.wait(120)
    assert code == 0 and f"bag {tmp_path / 'data_bag'}" in output, output
    assert (tmp_path / "data_bag" / "metadata.yaml").is_file()


def test_start_and_cancel_by_service(node: Any, start: Start, tmp_path: Path) -> None:
    bag, told = write_bag(tmp_path / "long", 100), Told(node, "offline_bag")
    work = start(
        "offline_bag", bag=bag, output_dir=tmp_path / "data", autostart=False,
        exit_when_done=True,
    )  # fmt: skip
    refused = trigger(node, "/offline_bag/cancel")
    assert not refused.success and "No conversion is running" in refused.message
    assert told.state in (None, "idle")
    assert trigger(node, "/offline_bag/start").success
    again = trigger(node, "/offline_bag/start")
    assert not again.success and "already running" in again.message
    spin_until(node, lambda: "percent" in (told.all or [{}])[-1], 60)
    assert trigger(node, "/offline_bag/cancel").success
    spin_until(node, lambda: work.popen.poll() is not None, 60)
    code, output = work.wait(5)
    assert code == 130, output
    assert "Traceback" not in output


def test_it_starts_again_with_other_parameters(
    node: Any, start: Start, bag: Path, tmp_path: Path
) -> None:
    from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
    from rcl_interfaces.srv import SetParameters

    def set_text(name: str, value: object) -> Any:
        given = ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=str(value))
        request = SetParameters.Request(parameters=[Parameter(name=name, value=given)])
        future = client.call_async(request)
        spin_until(node, future.done, 20)
        return future.result().results[0]

    client = node.create_client(SetParameters, "/offline_bag/set_parameters")
    told = Told(node, "offline_bag")
    work = start(
        "offline_bag", bag=tmp_path / "none", output_dir=tmp_path / "one",
        exit_when_done=False, bag_output="none",
    )  # fmt: skip
    spin_until(node, lambda: told.state == "failed", 60)
    assert client.wait_for_service(timeout_sec=20)
    refused = set_text("storage", "tape")
    assert not refused.successful and "mcap" in refused.reason
    assert set_text("bag", bag).successful
    assert set_text("output_dir", tmp_path / "two").successful
    assert trigger(node, "/offline_bag/start").success
    spin_until(node, lambda: told.state == "running", 20)
    spin_until(node, lambda: told.state == "done", 120)
    assert list(check_dataset(tmp_path / "two")) == []
    work.popen.send_signal(signal.SIGINT)
    code, output = work.wait(20)
    assert code == 0, output


def test_what_is_wrong_is_said_and_is_the_exit_code(
    start: Start, bag: Path, tmp_path: Path
) -> None:
    missing = start("offline_bag", bag=tmp_path / "none", output_dir=tmp_path / "a")
    topic = start("offline_bag", bag=bag, output_dir=tmp_path / "b", image_topic="/wrong")
    (tmp_path / "taken").mkdir()
    taken = start("offline_bag", bag=bag, output_dir=tmp_path / "taken")
    fast = start("offline_bag", bag=bag, output_dir=tmp_path / "c", quality="fasst")
    turns = start("offline_bag", bag=bag, output_dir=tmp_path / "d", camera_motion="ful")
    for process, code, sentence in (
        (missing, 2, "none"), (topic, 2, "/wrong"), (taken, 4, "use existing:=append"),
        (fast, 2, "quality:='fasst'; "), (turns, 2, "camera_motion:='ful'; "),
    ):  # fmt: skip
        ended, output = process.wait(120)
        assert ended == code, output
        assert sentence in output and "Traceback" not in output and "--" not in output
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()


def test_the_launch_file(launch: Callable[..., Launched], bag: Path, tmp_path: Path) -> None:
    """``ros2 launch`` of the colcon-installed package finishes by itself."""
    made = tmp_path / "data"
    given = {"task": 12, "overlay": False, "quality": "fast", "camera_motion": "off"}
    code, output = launch("offline_bag", bag=bag, output_dir=made, **given).wait(240)
    assert code == 0, output
    assert "process has finished cleanly" in output
    assert list(check_dataset(made)) == []
    provenance = read_hand_motion(made / episode_folder(0) / HANDS).provenance
    told = {name: provenance.settings[name] for name in ("quality", "camera_motion")}
    assert told == {"quality": "fast", "camera_motion": "off"}


def test_the_launch_file_takes_depth(launch: Callable[..., Launched], tmp_path: Path) -> None:
    """Colour and unregistered depth, written by rosbags."""
    made, bag = tmp_path / "data", write_rgbd(tmp_path / "bag")
    given = {"overlay": False, "quality": "fast", "keep_depth": True}
    code, output = launch("offline_bag", bag=bag, output_dir=made, **given).wait(240)
    assert code == 0, output
    assert f"depth of {DEPTH_TOPIC} is used" in output and "WARN" not in output
    assert list(check_dataset(made)) == []
    assert (made / "videos/observation.images.depth").is_dir()
    hands = read_hand_motion(made / episode_folder(0) / HANDS)
    assert hands.evidence is not None and (hands.evidence == 1 + 4).all()  # camera and depth


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [("quality", "fasst", "balanced"), ("camera_motion", "ful", "rotation")],
)
def test_the_launch_file_refuses_what_is_no_choice(
    launch: Callable[..., Launched], bag: Path, tmp_path: Path, name: str, value: str, valid: str
) -> None:
    given = {"bag": bag, "output_dir": tmp_path / "data", name: value}
    code, output = launch("offline_bag", **given).wait(60)
    assert code == 1, output
    assert f'"{name}" provided value "{value}"' in output and f"'{valid}'" in output
    assert "Traceback" not in output and not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("offline_bag", {"bag": "/nonexist", "output_dir": "data"}),
        ("replay", {"source": "/nonexist", "view": "none"}),
        ("clip", {"device": "cuda", "output_dir": "clips"}),
    ],
)
def test_launch_exits_with_an_error_where_the_node_does(
    launch: Callable[..., Launched], tmp_path: Path, name: str, arguments: dict[str, str]
) -> None:
    if "output_dir" in arguments:
        arguments = {**arguments, "output_dir": str(tmp_path / arguments["output_dir"])}
    code, output = launch(name, **arguments).wait(120)
    assert code == 1, output
    assert "ended with exit code 2" in output and "Traceback" not in output
