"""What the launch files share: arguments out of the parameter tables, viewers that are installed.

``launch`` and ``launch_ros`` are imported in the functions, as rclpy is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from acehand_core.errors import InputError, nearest
from acehand_ros.parameters import Parameter, Table

PACKAGE = "acehand_ros"
VIEWERS: Mapping[str, tuple[str, str]] = {
    "rviz": ("rviz2", "rviz2"),
    "foxglove": ("foxglove_bridge", "foxglove_bridge"),
}


def pick(table: Table, names: Iterable[str]) -> list[Parameter]:
    """Return parameters of a table by name, in the order of the names.

    Raises:
        InputError: the table has no such parameter.
    """
    known = {parameter.name: parameter for parameter in table}
    for name in (names := list(names)):
        if name not in known:
            raise InputError(f"No parameter {name!r}; {nearest(name, known)}")
    return [known[name] for name in names]


def arguments(
    parameters: Iterable[Parameter],
    required: Iterable[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """Return launch arguments with the parameters' names, defaults, descriptions and choices.

    ``defaults`` are other ones than the nodes'.
    """
    from launch.actions import DeclareLaunchArgument

    required = set(required)
    out = []
    for parameter in parameters:
        choices: tuple[str, ...] | None = parameter.choices or None
        if isinstance(parameter.default, bool):
            choices = ("true", "false")
        out.append(
            DeclareLaunchArgument(
                parameter.name,
                default_value=(
                    None
                    if parameter.name in required
                    else defaults.get(parameter.name, text(parameter.default))
                ),
                description=description(parameter),
                choices=choices,
            )
        )
    return out


def text(value: Any) -> str:
    """Return a default as launch files write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def description(parameter: Parameter) -> str:
    """Return a parameter's description with its range."""
    if parameter.low is None or parameter.high is None:
        return parameter.description
    return f"{parameter.description} ({parameter.low:g} to {parameter.high:g})"


def values(parameters: Iterable[Parameter]) -> dict[str, Any]:
    """Return what to give a node for these launch arguments: each as its own type.

    Without the type a task called 12 would arrive as a number.
    """
    from launch.substitutions import LaunchConfiguration
    from launch_ros.parameter_descriptions import ParameterValue

    return {
        p.name: ParameterValue(LaunchConfiguration(p.name), value_type=p.type) for p in parameters
    }


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


def viewer(choice: str, use_sim_time: bool) -> list[Any]:
    """Return what shows the topics: the viewer chosen, or the first one that is installed."""
    from launch.actions import LogInfo
    from launch_ros.actions import Node

    if choice == "none":
        return []
    wanted = list(VIEWERS) if choice == "auto" else [choice]
    for name in wanted:
        package, executable = VIEWERS[name]
        if installed(package):
            config = ["-d", str(share("config", "acehand.rviz"))] if name == "rviz" else []
            return [
                Node(
                    package=package,
                    executable=executable,
                    arguments=config,
                    parameters=[{"use_sim_time": use_sim_time}],
                )
            ]
    packages = " or ".join(VIEWERS[name][0] for name in wanted)
    return [LogInfo(msg=f"No viewer is started: install {packages} for one.")]


def state_publishers(robot: str, use_sim_time: bool) -> list[Any]:
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
            namespace=f"{side}_hand",
            parameters=[
                {
                    "robot_description": ParameterValue(urdf, value_type=str),
                    "use_sim_time": use_sim_time,
                    "publish_frequency": 100.0,
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
    from retarget.robot import load_robot

    hands = load_robot(robot).hands
    return {side: hand.urdf_path.read_text("utf-8") for side, hand in hands.items()}
