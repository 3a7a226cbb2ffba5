"""Plain messages against the ROS types, and the topics that viewers show."""

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


def messages_of(demo: Demonstration) -> list:
    frames = [m for i in range(len(demo)) for m in frame_messages(demo, i)]
    once = [*latched_messages(demo), *trajectory_messages(demo), *diagnostics_messages(demo)]
    return once + frames


@pytest.mark.parametrize("distro", DISTROS)
def test_every_message_is_of_its_type(demo: Demonstration, distro: str) -> None:
    store, messages = typestore(distro), messages_of(demo)
    assert {m.topic for m in messages} == set(TOPICS)
    for message in messages:
        assert message.msgtype == TOPICS[message.topic].msgtype
        built = build(store, message.msgtype, message.fields)
        data = store.serialize_cdr(built, message.msgtype)
        again = store.deserialize_cdr(data, message.msgtype)
        assert bytes(store.serialize_cdr(again, message.msgtype)) == bytes(data)
    with pytest.raises(SchemaError, match="'dato'"):
        build(store, "std_msgs/msg/String", {"dato": "x"})


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

    def values(of: object) -> list:
        of = list(of.values()) if isinstance(of, dict) else of
        return [v for one in of for v in values(one)] if isinstance(of, list) else [of]

    for message in messages_of(demo):
        kinds = {type(value) for value in values(message.fields)}
        assert kinds <= {float, int, str, bool}, message.topic


@pytest.mark.parametrize(
    ("model", "distortion"),
    [
        ("pinhole", ()),
        ("brown_conrady", (0.1, 0.01, 1e-3, 2e-3, 0.02)),
        ("kannala_brandt", (0.1, 0.01, 1e-3, 2e-3)),
        ("fisheye624", (0.0,) * 12),
    ],
)
def test_cameras_survive_the_way_through_ros(model: str, distortion: tuple[float, ...]) -> None:
    camera = Camera(model, 64, 48, 50.0, 51.0, 31.0, 23.0, distortion)
    if model == "fisheye624":
        with pytest.raises(CalibrationError, match=model):
            camera_info_fields(camera)
    else:
        message = build(typestore(), "sensor_msgs/msg/CameraInfo", camera_info_fields(camera))
        assert camera_of(message) == camera


@given(st.integers(60, 70), st.integers(40, 50), st.integers(1, 4), st.integers(1, 4))
def test_a_binned_pixel_is_the_middle_of_its_bin(width, height, across, down) -> None:
    """Also where the bins do not fill the picture."""
    whole = Camera("pinhole", width, height, 50.0, 51.0, 31.0, 23.0)
    fields = camera_info_fields(whole) | {"binning_x": across, "binning_y": down}
    binned = camera_of(SimpleNamespace(**fields | {"roi": SimpleNamespace(**fields["roi"])}))
    assert (binned.width, binned.height) == (width // across, height // down)
    middle = np.array([7 * across + (across - 1) / 2, 5 * down + (down - 1) / 2])
    ray = binned.unproject(np.array([7.0, 5.0]))
    np.testing.assert_allclose(ray, whole.unproject(middle), atol=1e-12)


def test_viewers_show_topics_that_there_are(demo: Demonstration) -> None:
    rviz = yaml.safe_load((CONFIG / "acehand.rviz").read_text())
    displays = rviz["Visualization Manager"]["Displays"]
    keys = ("Topic", "Description Topic")
    shown = {display[key]["Value"] for display in displays for key in keys if key in display}
    layout = json.loads((CONFIG / "acehand.foxglove.json").read_text())
    panels = layout["configById"]
    shown |= {layer.get("topic", "") for layer in panels["3D!hands"]["layers"].values()}
    shown |= set(panels["3D!hands"]["topics"])
    assert shown - {""} <= set(TOPICS)  # pictures: the recording's own
    assert {f"/{s}_hand/skeleton" for s in ("left", "right")} <= shown
    assert all(f'"{name}"' in json.dumps(layout["layout"]) for name in panels)
    for path in panels["Plot!right"]["paths"]:
        number = int(path["value"].split("[")[1].rstrip("]"))
        assert demo.joint_names[number] == path["label"]
