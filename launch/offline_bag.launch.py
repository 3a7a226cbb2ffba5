"""A recorded bag in, a LeRobot dataset and a bag out; with play:=true the result is replayed.

ros2 launch acehand_ros offline_bag.launch.py bag:=recording output_dir:=dataset
"""

from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from acehand_ros import launching
from acehand_ros.parameters import OFFLINE_BAG
from launch import LaunchDescription

SHOWN = launching.pick(
    OFFLINE_BAG,
    (
        "bag", "output_dir", "robot", "hands", "tracker", "weights", "device", "image_topic",
        "camera_info_topic", "bag_output", "task", "episodes", "episode_topic", "world_frame",
        "hand_length", "existing", "overlay", "storage", "mesh",
    ),
)  # fmt: skip
PLAY = ("play", "false", "replay the result when it is done", ("true", "false"))


def start(context):
    """Start the node; when it is done, replay or end, and end at once when it fails."""
    configurations = context.launch_configurations
    convert = Node(
        package=launching.PACKAGE,
        executable="offline_bag",
        name="offline_bag",
        output="screen",
        parameters=[launching.values(SHOWN)],
    )

    def done(event, _):
        if event.returncode != 0:
            reason = f"offline_bag ended with exit code {event.returncode}"
            return [EmitEvent(event=Shutdown(reason=reason))]
        if configurations["play"] == "false":
            return [EmitEvent(event=Shutdown(reason="offline_bag is done"))]
        return [
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(str(launching.share("launch", "replay.launch.py"))),
                launch_arguments={
                    "source": configurations["output_dir"],
                    "robot": configurations["robot"],
                }.items(),
            )
        ]

    return [convert, RegisterEventHandler(OnProcessExit(target_action=convert, on_exit=done))]


def generate_launch_description():
    """Return the arguments and the node."""
    name, default, description, choices = PLAY
    return LaunchDescription(
        [
            *launching.arguments(SHOWN, required=("bag", "output_dir")),
            DeclareLaunchArgument(
                name, default_value=default, description=description, choices=choices
            ),
            OpaqueFunction(function=start),
        ]
    )
