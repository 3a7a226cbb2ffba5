"""Plain messages against the ROS types, and what viewers are told to show."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from acehand_core.errors import CalibrationError, SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.pipeline.bag_write import load_demonstrations
from acehand_core.recordings.bags.images import camera_info_fields, camera_of
from acehand_core.recordings.bags.library import DISTROS, typestore
from acehand_core.recordings.bags.messages import (
    TOPICS,
    Demonstration,
    diagnostics_messages,
    frame_messages,
    latched_messages,
    trajectory_messages,
)
from acehand_core.recordings.bags.writer import build
from helpers import ROOT
from helpers.retarget_samples import moving_hands

CONFIG = ROOT / "acehand_ros" / "config"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demonstration:
    path = tmp_path_factory.mktemp("hands") / "hands.npz"
    joints = moving_hands(6)
    joints[3, 0] = np.nan  # the left hand is away for a frame
    np.savez(path, joints=joints, fps=30, frame="camera")
    demo, _ = next(load_demonstrations(path))
    return replace(demo, camera=Camera.nominal(64, 48))


def said(demo: Demonstration) -> list:
    frames = [m for i in range(len(demo)) for m in frame_messages(demo, i)]
    return [
        *latched_messages(demo), *trajectory_messages(demo), *frames, *diagnostics_messages(demo),
    ]  # fmt: skip


@pytest.mark.parametrize("distro", DISTROS)
def test_every_message_is_of_its_type(demo: Demonstration, distro: str) -> None:
    store = typestore(distro)
    for message in said(demo):
        assert message.msgtype == TOPICS[message.topic].msgtype
        built = build(store, message.msgtype, message.fields)
        data = store.serialize_cdr(built, message.msgtype)
        again = store.deserialize_cdr(data, message.msgtype)
        assert bytes(store.serialize_cdr(again, message.msgtype)) == bytes(data)
    with pytest.raises(SchemaError, match="no field 'dato'"):
        build(store, "std_msgs/msg/String", {"dato": "x"})


def test_all_topics_are_said(demo: Demonstration) -> None:
    assert {m.topic for m in said(demo)} == set(TOPICS)


def test_a_hand_that_is_away(demo: Demonstration) -> None:
    topics = {m.topic: m for m in frame_messages(demo, 3)}
    assert "/left_hand/wrist_pose" not in topics and "/left_hand/joints" not in topics
    assert "/right_hand/wrist_pose" in topics
    markers = topics["/left_hand/skeleton"].fields["markers"]
    assert [m["action"] for m in markers] == [2, 2]
    children = {t["child_frame_id"] for t in topics["/tf"].fields["transforms"]}
    assert children == {"right_wrist", "right_base"}
    assert "/left_hand/joint_states" not in topics
    assert len(topics["/right_hand/joint_states"].fields["position"]) == 12


def test_messages_hold_plain_floats(demo: Demonstration) -> None:
    """rclpy with checks on takes Python's floats only."""

    def check(value: object, where: str) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                check(one, f"{where}.{key}")
        elif isinstance(value, list):
            for one in value:
                check(one, where)
        else:
            assert type(value) in (float, int, str, bool), f"{where}: {type(value)}"

    for message in said(demo):
        check(message.fields, message.topic)


def test_cameras_survive_the_way_through_ros() -> None:
    store = typestore()
    for camera in (
        Camera("pinhole", 64, 48, 50.0, 51.0, 31.0, 23.0),
        Camera("brown_conrady", 64, 48, 50.0, 51.0, 31.0, 23.0, (0.1, 0.01, 1e-3, 2e-3, 0.02)),
        Camera("kannala_brandt", 64, 48, 50.0, 51.0, 31.0, 23.0, (0.1, 0.01, 1e-3, 2e-3)),
    ):
        fields = camera_info_fields(camera)
        assert camera_of(build(store, "sensor_msgs/msg/CameraInfo", fields)) == camera
    with pytest.raises(CalibrationError, match="fisheye624"):
        camera_info_fields(Camera("fisheye624", 64, 48, 50.0, 51.0, 31.0, 23.0, (0.0,) * 12))


@given(
    width=st.integers(60, 70), height=st.integers(40, 50),
    across=st.integers(1, 4), down=st.integers(1, 4),
)  # fmt: skip
def test_a_binned_pixel_is_the_middle_of_its_bin(
    width: int, height: int, across: int, down: int
) -> None:
    """Also where the bins do not fill the picture."""
    whole = Camera("pinhole", width, height, 50.0, 51.0, 31.0, 23.0)
    fields = camera_info_fields(whole) | {"binning_x": across, "binning_y": down}
    info = SimpleNamespace(**fields | {"roi": SimpleNamespace(**fields["roi"])})
    binned = camera_of(info)
    assert (binned.width, binned.height) == (width // across, height // down)
    middle = np.array([7 * across + (across - 1) / 2, 5 * down + (down - 1) / 2])
    np.testing.assert_allclose(
        binned.unproject(np.array([7.0, 5.0])), whole.unproject(middle), atol=1e-12
    )


def test_viewers_show_topics_that_there_are() -> None:
    rviz = yaml.safe_load((CONFIG / "acehand.rviz").read_text())
    displays = rviz["Visualization Manager"]["Displays"]
    shown = {
        d[key]["Value"] for d in displays for key in ("Topic", "Description Topic") if key in d
    }
    layout = json.loads((CONFIG / "acehand.foxglove.json").read_text())
    shown |= set(layout["configById"]["3D!hands"]["topics"])
    shown |= {layer["topic"] for layer in layout["configById"]["3D!hands"]["layers"].values()
              if "topic" in layer}  # fmt: skip
    assert shown - {""} <= set(TOPICS)  # pictures: the recording's own
    assert {f"/{s}_hand/skeleton" for s in ("left", "right")} <= shown
    panels = json.dumps(layout["layout"])
    assert all(f'"{name}"' in panels for name in layout["configById"])


def test_the_plots_show_the_driven_joints(demo: Demonstration) -> None:
    layout = json.loads((CONFIG / "acehand.foxglove.json").read_text())
    for path in layout["configById"]["Plot!right"]["paths"]:
        number = int(path["value"].split("[")[1].rstrip("]"))
        assert demo.joint_names[number] == path["label"]
