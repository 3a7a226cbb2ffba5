"""What the launch files share: arguments out of the parameter tables, viewers that are installed.

``launch`` and ``launch_ros`` are imported in the functions, as rclpy is elsewhere.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from acehand_core.errors import InputError, nearest
from acehand_core.recordings.bags.messages import CAMERA_LINK
from acehand_ros.messages import live_topic
from acehand_ros.parameters import Table, described

PACKAGE = "acehand_ros"
#: The packages of viewers, whose executables are called the same.
VIEWERS: Mapping[str, str] = {"rviz": "rviz2", "foxglove": "foxglove_bridge"}


def pick(table: Table, names: Iterable[str]) -> Table:
    """Return parameters of a table by name, in the order of the names.

    Raises:
        InputError: the table has no such parameter.
    """
    known = {leaf.parameter: leaf for leaf in table}
    for name in (names := list(names)):
        if name not in known:
            raise InputError(f"No parameter {name!r}; {nearest(name, known)}")
    return tuple(known[name] for name in names)


def arguments(
    parameters: Table,
    required: Collection[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """Return launch arguments with the parameters' names, defaults, descriptions and choices.

    ``defaults`` are other ones than the nodes'.
    """
    from launch.actions import DeclareLaunchArgument

    out = []
    for leaf in parameters:
        name, switch = leaf.parameter, isinstance(leaf.default, bool)
        usual = str(leaf.default).lower() if switch else str(leaf.default)
        out.append(
            DeclareLaunchArgument(
                name,
                default_value=None if name in required else defaults.get(name, usual),
                description=described(leaf),
                choices=("true", "false") if switch else leaf.choices or None,
            )
        )
    return out


def values(parameters: Table, given: Mapping[str, str]) -> dict[str, Any]:
    """Return what to give a node for these launch arguments: each as its own type.

    Without the type a task called 12 would arrive as a number. The values are those of now: a node
    that an event starts later is out of the group that its launch file was included in.
    """
    from launch.substitutions import TextSubstitution
    from launch_ros.parameter_descriptions import ParameterValue

    return {
        leaf.parameter: ParameterValue(
            TextSubstitution(text=given[leaf.parameter]), value_type=type(leaf.default)
        )
        for leaf in parameters
    }


def end_with(node: Any, name: str, others: Iterable[Any], then: Iterable[Any] = ()) -> Any:
    """Return what ends the other nodes with a node; ``then`` is done where it went well.

    These alone, and not all of the launch, which may hold another robot: it ends with its last
    node. ``ros2 launch`` exits with 1 where an event handler raises, and with 0 for any other end,
    whatever the node's own exit code. How somebody else's node ends on Ctrl-C is its own.
    """
    from launch.actions import EmitEvent, RegisterEventHandler
    from launch.event_handlers import OnProcessExit
    from launch.events.process import ShutdownProcess

    ended, following = tuple(others), tuple(then)

    def done(event: Any, context: Any) -> list[Any]:
        ours = node.node_package == PACKAGE
        if event.returncode != 0 and (ours or not context.is_shutdown):
            raise RuntimeError(f"{name} ended with exit code {event.returncode}")
        shutdown = ShutdownProcess(process_matcher=lambda process: process in ended)
        return [EmitEvent(event=shutdown), *following]

    return RegisterEventHandler(OnProcessExit(target_action=node, on_exit=done))


def installed(package: str) -> bool:
    """Return whether a ROS package is on the ament path."""
    from ament_index_python.packages import PackageNotFoundError, get_package_prefix

    try:
        get_package_prefix(package)
    except PackageNotFoundError:
        return False
    return True


def share(*parts: str) -> Path:
    """Return a file in this package's share folder."""
    from ament_index_python.packages import get_package_share_directory

    return Path(get_package_share_directory(PACKAGE), *parts)


@dataclass(frozen=True, slots=True)
class LaunchScene:
    """What a viewer shows: topics of a namespace, seen from a frame, and pictures if any."""

    namespace: str = ""
    frame_prefix: str = ""
    fixed_frame: str = CAMERA_LINK
    image_topic: str = ""


def rviz_config(scene: LaunchScene) -> dict[str, Any]:
    """Return the RViz configuration of this package for a scene."""
    config = yaml.safe_load((Path(__file__).parent / "config" / "acehand.rviz").read_text("utf-8"))
    manager = config["Visualization Manager"]
    manager["Global Options"]["Fixed Frame"] = scene.frame_prefix + scene.fixed_frame
    namespace = scene.namespace.strip("/")
    kept = []
    for display in manager["Displays"]:
        topic = display.get("Topic") or display.get("Description Topic")
        if display["Class"].endswith("/Image"):
            if not scene.image_topic:
                continue
            topic["Value"] = scene.image_topic
        elif topic is not None and namespace:
            topic["Value"] = f"/{namespace}{topic['Value']}"
        if "TF Prefix" in display:
            display["TF Prefix"] = scene.frame_prefix.rstrip("/")  # RViz adds the slash
        kept.append(display)
    manager["Displays"] = kept
    return config


def foxglove_layout(scene: LaunchScene) -> dict[str, Any]:
    """Return the Foxglove layout of this package for a scene; import it there."""
    path = Path(__file__).parent / "config" / "acehand.foxglove.json"
    layout = json.loads(path.read_text("utf-8"))
    namespace = scene.namespace.strip("/")

    def live(topic: str) -> str:
        name = live_topic(topic)
        return f"/{namespace}/{name}" if namespace and name != topic else topic

    for name, panel in layout["configById"].items():
        kind = name.partition("!")[0]
        if kind in ("3D", "Image"):
            panel["topics"] = {live(topic): shown for topic, shown in panel["topics"].items()}
        if kind == "3D":
            panel["followTf"] = scene.frame_prefix + scene.fixed_frame
            for layer in panel["layers"].values():
                if "topic" in layer:
                    layer["topic"] = live(layer["topic"])
                    layer["framePrefix"] = scene.frame_prefix
        elif kind == "Image":
            mode = panel["imageMode"]
            mode["imageTopic"] = scene.image_topic
            mode["calibrationTopic"] = live(mode["calibrationTopic"])
        elif kind == "Plot":
            for one in panel["paths"]:
                topic, dot, field = one["value"].partition(".")
                one["value"] = live(topic) + dot + field
    return layout


def viewer(choice: str, use_sim_time: bool, scene: LaunchScene) -> list[Any]:
    """Return what shows the topics: the viewer chosen, or the first one that is installed."""
    from launch.actions import LogInfo
    from launch_ros.actions import Node

    if choice == "none":
        return []
    wanted = list(VIEWERS) if choice == "auto" else [choice]
    for name in wanted:
        if installed(package := VIEWERS[name]):
            if name == "rviz":
                text = yaml.safe_dump(rviz_config(scene), sort_keys=False)
                config, hints = ["-d", temporary("acehand.rviz", text)], []
            else:
                text = json.dumps(foxglove_layout(scene), indent=1)
                path = temporary("acehand.foxglove.json", text)
                config = []
                hints = [LogInfo(msg=f"A layout for Foxglove, as long as this runs: {path}")]
            return [
                *hints,
                Node(
                    package=package,
                    executable=package,
                    namespace=scene.namespace,
                    arguments=config,
                    remappings=own_clock(scene.namespace),
                    parameters=[{"use_sim_time": use_sim_time}],
                ),
            ]
    packages = " or ".join(VIEWERS[name] for name in wanted)
    return [LogInfo(msg=f"No viewer is started: install {packages} for one.")]


def temporary(name: str, text: str) -> str:
    """Return the path of a new file of this name, which is removed when the launch has ended.

    At the end of the process, not at launch's shutdown event: a launch that fails may have none.
    """
    folder = Path(tempfile.mkdtemp(prefix="acehand_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def scene_arguments() -> list[Any]:
    """Return the launch arguments of a scene that the source can answer, too."""
    from launch.actions import DeclareLaunchArgument

    return [
        DeclareLaunchArgument(
            "fixed_frame",
            default_value="",
            description="RViz's fixed frame, without frame_prefix; empty: the source's camera",
        ),
        DeclareLaunchArgument(
            "picture_topic",
            default_value="",
            description="pictures that RViz shows, if somebody plays them; empty: the source's",
        ),
    ]


def namespace_argument() -> Any:
    """Return the launch argument ``namespace``: two robots side by side need one each."""
    from launch.actions import DeclareLaunchArgument

    return DeclareLaunchArgument(
        "namespace",
        default_value="",
        description="ROS namespace of nodes and topics, for example robot1; /clock goes there too",
    )


def full_namespace(given: Mapping[str, str]) -> str:
    """Return the namespace of a launch with those of the groups around it; empty: none."""
    around, own = given.get("ros_namespace", "").rstrip("/"), given["namespace"].rstrip("/")
    if not own or own.startswith("/"):
        return own or around
    return f"{around}/{own}"


def own_clock(namespace: str) -> list[tuple[str, str]]:
    """Return the remappings of a launch in a namespace: its time is its own.

    Nodes listen to /clock, whatever their namespace; two recordings have two times.
    """
    namespace = namespace.strip("/")
    return [("/clock", f"/{namespace}/clock")] if namespace else []


def state_publishers(
    robot: str, use_sim_time: bool, namespace: str, frame_prefix: str
) -> list[Any]:
    """Return a robot_state_publisher per hand: joint states in, frames of all links out."""
    from launch.actions import LogInfo
    from launch_ros.actions import Node
    from launch_ros.parameter_descriptions import ParameterValue

    if not installed("robot_state_publisher"):
        return [LogInfo(msg="No link frames: robot_state_publisher is not installed.")]
    return [
        Node(
            package="robot_state_publisher",
            executable="robot_state_publisher",
            namespace=f"{namespace}/{side}_hand" if namespace else f"{side}_hand",
            remappings=own_clock(namespace),
            parameters=[
                {
                    "robot_description": ParameterValue(urdf, value_type=str),
                    "use_sim_time": use_sim_time,
                    "publish_frequency": 100.0,
                    "frame_prefix": frame_prefix,
                }
            ],
        )
        for side, urdf in descriptions(robot).items()
    ]


def descriptions(robot: str) -> dict[str, str]:
    """Return the URDF text of each hand of a robot.

    Raises:
        InputError: there is no such robot.
    """
    from retarget.robots.robot import load_robot

    hands = load_robot(robot).hands
    return {side: hand.urdf_path.read_text("utf-8") for side, hand in hands.items()}
