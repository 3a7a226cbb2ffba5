"""A recorded bag in, a LeRobot dataset and a bag out; with play:=true the result is replayed.

ros2 launch acehand_ros offline_bag.launch.py bag:=recording output_dir:=dataset
"""

from launch.actions import (
    DeclareLaunchArgument,
    GroupAction,
    IncludeLaunchDescription,
    OpaqueFunction,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from acehand_ros import launching
from acehand_ros.parameters import OFFLINE_BAG, PLAYER
from launch import LaunchDescription

SHOWN = launching.pick(
    OFFLINE_BAG,
    (
        "bag", "output_dir", "robot", "hands", "tracker", "weights", "device", "image_topic",
        "camera_info_topic", "bag_output", "task", "episode_topic", "world_frame",
        "hand_length", "camera_motion", "quality", "existing", "overlay", "storage",
    ),
)  # fmt: skip
PLAY = ("play", "false", "replay the result when it is done", ("true", "false"))


def start(context):
    """Start the node; when it is done, replay or end, and end at once when it fails."""
    given = context.launch_configurations
    convert = Node(
        package=launching.PACKAGE,
        executable="offline_bag",
        name="offline_bag",
        namespace=given["namespace"],
        output="screen",
        parameters=[launching.values(SHOWN, given)],
    )
    replay = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(str(launching.share("launch", "replay.launch.py"))),
        launch_arguments={
            "source": given["output_dir"],
            "robot": given["robot"],
            "namespace": launching.full_namespace(given),
            "frame_prefix": given["frame_prefix"],
        }.items(),
    )
    # By itself: hands:=auto, which is for the conversion, is no choice of the replay.
    then = [GroupAction([replay], forwarding=False)] if given["play"] == "true" else []
    return [convert, launching.end_with(convert, "offline_bag", (), then)]


def generate_launch_description():
    """Return the arguments and the node."""
    name, default, description, choices = PLAY
    return LaunchDescription(
        [
            *launching.arguments(SHOWN, required=("bag", "output_dir")),
            launching.namespace_argument(),
            *launching.arguments(launching.pick(PLAYER, ("frame_prefix",))),
            DeclareLaunchArgument(
                name, default_value=default, description=description, choices=choices
            ),
            OpaqueFunction(function=start),
        ]
    )
