"""Shared parts of the launch files: arguments from the parameter tables, and viewers.

``launch``, ``launch_ros`` and acehand's libraries are imported inside the functions.
"""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from acehand_ros.parameters import Table

PACKAGE, MOCK = "acehand_ros", "mock_components/GenericSystem"
#: Viewers and their packages; the executables have the packages' names.
VIEWERS: Mapping[str, str] = {"rviz": "rviz2", "foxglove": "foxglove_bridge"}
#: Rows of ``declared``.
NAMESPACE = ("namespace", "", "ROS namespace of nodes, topics and /clock, for example robot1")
VIEW_TEXT, VIEWS = "viewer to start, if installed", ("none", "auto", *VIEWERS)


def with_libraries(generate: Callable[[], Any]) -> Callable[[], Any]:
    """Return ``generate_launch_description`` that says if acehand's libraries are not found."""

    def generated() -> Any:
        from launch.actions import OpaqueFunction

        from launch import LaunchDescription  # type: ignore[attr-defined]

        try:
            return generate()
        except ImportError as error:
            problem = RuntimeError(
                f"ros2's Python, {sys.executable}, lacks libraries of acehand ({error}); in the "
                "environment that has them, run: export PYTHONPATH=$PYTHONPATH:"
                """$(python -c 'import site; print(*site.getsitepackages(), sep=":")')"""
            )

        if {"-s", "--show-args"} & {*sys.argv}:  # ros2 would print "No arguments" and exit with 0
            sys.exit(str(problem))

        def fail(context: Any) -> None:
            raise problem

        # Raised while the file is loaded, launch would call it a syntax error.
        return LaunchDescription([OpaqueFunction(function=fail)])

    return generated


def shown(node: str, *names: str, without: Collection[str] = ()) -> Table:
    """Return the parameters of a node, or those of ``names``."""
    from acehand_ros.parameters import TABLES

    names_shown = names or {leaf.parameter for leaf in TABLES[node]} - {*without}
    return tuple(leaf for leaf in TABLES[node] if leaf.parameter in names_shown)


def declared(*rows: tuple[str | None, ...]) -> list[Any]:
    """Return launch arguments: name, default, description and choices, if any, of each row."""
    from launch.actions import DeclareLaunchArgument

    return [
        DeclareLaunchArgument(
            name, default_value=default, description=text, choices=choices or None
        )
        for name, default, text, *choices in rows
    ]


def arguments(
    parameters: Table,
    required: Collection[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """Return launch arguments for parameters; ``defaults`` override those of the nodes."""
    from acehand_ros.parameters import described

    rows = []
    for leaf in parameters:
        name, switch = leaf.parameter, isinstance(leaf.default, bool)
        usual = str(leaf.default).lower() if switch else str(leaf.default)
        default = None if name in required else defaults.get(name, usual)
        choices = ("true", "false") if switch else leaf.choices
        rows.append((name, default, described(leaf), *choices))
    return declared(*rows)


def values(parameters: Table, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of launch arguments for a node, each with its own type.

    Untyped, a task called 12 would arrive as a number. Values are resolved now: a node started by
    a later event no longer sees the group that its launch file was included in.
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
    """Return an event handler that ends the other nodes with a node; then run ``then`` on success.

    Only these nodes end: the launch may hold another robot. ``ros2 launch`` exits with 1 if an
    event handler raises, otherwise with 0, whatever the node's exit code. The exit code of a
    third-party node on Ctrl-C is ignored.
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
    """Whether a ROS package is on the ament path."""
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


def _camera_link() -> str:
    from acehand_core.recordings.bags.messages import CAMERA_LINK

    return CAMERA_LINK


@dataclass(frozen=True, slots=True)
class LaunchScene:
    """What a viewer shows: the topics of a namespace, a fixed frame and images if any."""

    namespace: str = ""
    frame_prefix: str = ""
    fixed_frame: str = field(default_factory=_camera_link)
    image_topic: str = ""


def rviz_config(scene: LaunchScene) -> dict[str, Any]:
    """Return this package's RViz configuration for a scene."""
    config = yaml.safe_load((Path(__file__).parent / "config" / "acehand.rviz").read_text("utf-8"))
    manager = config["Visualization Manager"]
    manager["Global Options"]["Fixed Frame"] = scene.frame_prefix + scene.fixed_frame
    namespace = scene.namespace.strip("/")

    displays = []
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
        displays.append(display)
    manager["Displays"] = displays
    return config


def foxglove_layout(scene: LaunchScene) -> dict[str, Any]:
    """Return this package's Foxglove layout for a scene, to import in Foxglove."""
    from acehand_ros.messages import live_topic

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
    """Return the nodes of the chosen viewer; ``auto`` takes the first installed one."""
    from launch.actions import LogInfo
    from launch_ros.actions import Node

    if choice == "none":
        return []
    wanted = list(VIEWERS) if choice == "auto" else [choice]
    name = next((name for name in wanted if installed(VIEWERS[name])), None)
    if name is None:
        packages = " or ".join(VIEWERS[name] for name in wanted)
        return [LogInfo(msg=f"No viewer is started: install {packages} for one.")]
    config, hints = [], []
    if name == "rviz":
        text = yaml.safe_dump(rviz_config(scene), sort_keys=False)
        config = ["-d", temporary("acehand.rviz", text)]
    else:
        path = temporary("acehand.foxglove.json", json.dumps(foxglove_layout(scene), indent=1))
        hints = [LogInfo(msg=f"Foxglove layout to import, removed at the end: {path}")]
    node = Node(
        package=VIEWERS[name],
        executable=VIEWERS[name],
        namespace=scene.namespace,
        arguments=config,
        remappings=own_clock(scene.namespace),
        parameters=[{"use_sim_time": use_sim_time}],
    )
    return [*hints, node]


def temporary(name: str, text: str) -> str:
    """Return a new file, removed with the process: a failing launch may have no shutdown event."""
    folder = Path(tempfile.mkdtemp(prefix="acehand_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


def full_namespace(given: Mapping[str, str]) -> str:
    """Return a launch's namespace inside those of the groups around it; "" is none."""
    around, own = given.get("ros_namespace", "").rstrip("/"), given["namespace"].rstrip("/")
    if not own or own.startswith("/"):
        return own or around
    return f"{around}/{own}"


def own_clock(namespace: str) -> list[tuple[str, str]]:
    """Return remappings that give a namespace, whose recording has its own time, its own /clock."""
    namespace = namespace.strip("/")
    return [("/clock", f"/{namespace}/clock")] if namespace else []


def state_publishers(
    robot: str, use_sim_time: bool, namespace: str, frame_prefix: str
) -> list[Any]:
    """Return a robot_state_publisher per hand: joint states to link frames."""
    from launch.actions import LogInfo
    from launch_ros.actions import Node
    from launch_ros.parameter_descriptions import ParameterValue

    from retarget.robots.robot import load_robot

    if not installed("robot_state_publisher"):
        return [LogInfo(msg="No link frames: robot_state_publisher is not installed.")]
    nodes = []
    common = {"publish_frequency": 100.0, "frame_prefix": frame_prefix}
    for side, hand in load_robot(robot).hands.items():
        urdf = ParameterValue(hand.urdf_path.read_text("utf-8"), value_type=str)
        parameters = {"robot_description": urdf, "use_sim_time": use_sim_time, **common}
        nodes.append(
            Node(
                package="robot_state_publisher",
                executable="robot_state_publisher",
                namespace=f"{namespace}/{side}_hand" if namespace else f"{side}_hand",
                remappings=own_clock(namespace),
                parameters=[parameters],
            )
        )
    return nodes
