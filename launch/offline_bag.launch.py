"""Convert a recorded bag to a LeRobot dataset and a bag; play:=true replays the result.

ros2 launch acehand_ros offline_bag.launch.py bag:=recording output_dir:=dataset
"""

from launch.actions import GroupAction, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node

from acehand_ros import launching
from launch import LaunchDescription

HIDDEN = ("autostart", "exit_when_done")
PLAY = ("play", "false", "replay the result", "true", "false")


def start(context):
    """Start the node; replay its result or end; end at once if it fails."""
    given = context.launch_configurations
    convert = Node(
        package=launching.PACKAGE,
        executable="offline_bag",
        name="offline_bag",
        namespace=given["namespace"],
        output="screen",
        parameters=[launching.values(launching.shown("offline_bag", without=HIDDEN), given)],
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
    # Not forwarded: hands:=auto of the conversion is no choice of the replay.
    then = [GroupAction([replay], forwarding=False)] if given["play"] == "true" else []
    return [convert, launching.end_with(convert, "offline_bag", (), then)]


@launching.with_libraries
def generate_launch_description():
    own = launching.shown("offline_bag", without=HIDDEN)
    arguments = [
        *launching.arguments(own, required=("bag", "output_dir")),
        *launching.arguments(launching.shown("trajectory_player", "frame_prefix")),
        *launching.declared(launching.NAMESPACE, PLAY),
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
