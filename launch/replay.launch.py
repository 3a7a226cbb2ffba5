"""An episode of a dataset, a table of hands or a bag, replayed as joint states and trajectories.

ros2 launch acehand_ros replay.launch.py source:=dataset episode:=0 rate:=0.5
"""

from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch_ros.actions import Node

from acehand_ros import launching
from acehand_ros.parameters import PLAYER
from launch import LaunchDescription

SHOWN = launching.pick(
    PLAYER,
    (
        "source", "robot", "episode", "rate", "loop", "paused", "position", "stamps",
        "publish_clock", "clock_rate", "publish_tf", "markers", "mesh", "wait_for_subscriber",
        "exit_when_done", "output", "controllers", "hands", "left_controller", "right_controller",
        "wait_for_controller", "path_tolerance",
    ),
)  # fmt: skip


def start(context):
    """Start the player, the link frames and a viewer; end with the player."""
    given = context.launch_configurations
    sim_time = given["stamps"] == "recorded" and given["publish_clock"] == "true"
    player = Node(
        package=launching.PACKAGE,
        executable="trajectory_player",
        name="trajectory_player",
        output="screen",
        parameters=[launching.values(SHOWN)],
    )
    ended = EmitEvent(event=Shutdown(reason="trajectory_player has ended"))
    links = given["robot_state_publisher"] == "true"
    return [
        player,
        RegisterEventHandler(OnProcessExit(target_action=player, on_exit=[ended])),
        *(launching.state_publishers(given["robot"], sim_time) if links else ()),
        *launching.viewer(given["view"], sim_time),
    ]


def generate_launch_description():
    """Return the arguments and the nodes."""
    return LaunchDescription(
        [
            *launching.arguments(SHOWN, required=("source",)),
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
