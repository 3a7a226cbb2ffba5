"""An episode of a dataset or a table of hands, replayed as joint states and trajectories.

ros2 launch acehand_ros replay.launch.py source:=dataset episode:=0 rate:=0.5
"""

from pathlib import Path

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import Node

from acehand_core.pipeline.bag_write import seen_by
from acehand_ros import launching
from acehand_ros.parameters import PLAYER
from launch import LaunchDescription

SHOWN = launching.pick(
    PLAYER,
    (
        "source", "robot", "episode", "rate", "loop", "paused", "position", "stamps",
        "publish_clock", "clock_rate", "publish_tf", "frame_prefix", "markers",
        "wait_for_subscriber",
        "exit_when_done", "output", "command_rate", "controllers", "hands", "left_controller",
        "right_controller", "wait_for_controller", "path_tolerance",
    ),
)  # fmt: skip


def start(context):
    """Start the player, the link frames and a viewer; end with the player."""
    given = context.launch_configurations
    sim_time = given["stamps"] == "recorded" and given["publish_clock"] == "true"
    namespace, prefix = given["namespace"], given["frame_prefix"]
    links = given["robot_state_publisher"] == "true"
    published = links and launching.installed("robot_state_publisher")
    player = Node(
        package=launching.PACKAGE,
        executable="trajectory_player",
        name="trajectory_player",
        namespace=namespace,
        output="screen",
        # robot_state_publisher publishes the descriptions, too, where it is started.
        parameters=[launching.values(SHOWN, given), {"publish_description": not published}],
        remappings=launching.own_clock(namespace),
    )
    frame, pictures = seen_by(Path(given["source"]).expanduser(), int(given["episode"]))
    scene = launching.LaunchScene(
        namespace,
        prefix,
        given["fixed_frame"] or frame,
        given["picture_topic"] or pictures or "",
    )
    others = [
        *(launching.state_publishers(given["robot"], sim_time, namespace, prefix) if links else ()),
        *launching.viewer(given["view"], sim_time, scene),
    ]
    return [player, launching.end_with(player, "trajectory_player", others), *others]


def generate_launch_description():
    """Return the arguments and the nodes."""
    return LaunchDescription(
        [
            *launching.arguments(SHOWN, required=("source",)),
            launching.namespace_argument(),
            *launching.scene_arguments(),
            DeclareLaunchArgument(
                "robot_state_publisher",
                default_value="true",
                description="publish the frames of the robot's links, if it is installed",
                choices=("true", "false"),
            ),
            DeclareLaunchArgument(
                "view",
                default_value="auto",
                description="what shows the topics, if it is installed",
                choices=("none", "auto", *launching.VIEWERS),
            ),
            OpaqueFunction(function=start),
        ]
    )
