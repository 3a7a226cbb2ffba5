"""The hands under ros2_control, moved by the player, on mock hardware or a driver.

ros2 launch acehand_ros inspire_ros2_control.launch.py source:=dataset
ros2 launch acehand_ros inspire_ros2_control.launch.py source:=dataset hardware:=PACKAGE/PLUGIN
ros2 launch acehand_ros inspire_ros2_control.launch.py source:=dataset namespace:=left_robot
"""

import yaml
from launch.actions import OpaqueFunction, RegisterEventHandler, UnregisterEventHandler
from launch.event_handlers import OnProcessExit
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

from acehand_ros import launching
from launch import LaunchDescription

SHOWN = (
    "source", "robot", "hands", "episode", "rate", "loop", "paused", "position", "output",
    "wait_for_controller", "markers", "frame_prefix", "exit_when_done",
)  # fmt: skip
OWN = (
    ("hardware", launching.MOCK, "ros2_control plugin of the hands"),
    ("hardware_parameters", "", "parameters of the plugin: NAME=VALUE,left.NAME=VALUE"),
    ("update_rate", "100", "rate of the controllers in Hz"),
    ("path_tolerance", "0.2", "largest error on the way, in rad, beyond which a goal is aborted"),
    ("goal_tolerance", "0.05", "largest error at the end, in rad"),
    (
        "forward_controller",
        "forward",
        "controllers of output:=forward",
        "forward",
        "position_group",
    ),
    ("player", "true", "false: controllers only, for another player", "true", "false"),
    ("view", "none", launching.VIEW_TEXT, *launching.VIEWS),
    launching.NAMESPACE,
)
DEFAULTS = {"source": "", "output": "action", "wait_for_controller": "30.0", "markers": "false"}


def start(context):
    """Start the controllers, then the player; end with the player."""
    from acehand_ros import control
    from retarget.robots.robot import load_robot

    given = context.launch_configurations
    robot, namespace = load_robot(given["robot"]), launching.full_namespace(given)
    hardware = control.hardware_parameters(given["hardware_parameters"])
    urdf = control.description(robot, given["hands"], given["hardware"], hardware)
    kind = given["forward_controller"] if given["output"] == "forward" else "action"
    parameters = control.controller_parameters(
        robot, given["hands"], kind, int(given["update_rate"]),
        float(given["path_tolerance"]), float(given["goal_tolerance"]),
    )  # fmt: skip
    file = launching.temporary("controllers.yaml", yaml.safe_dump(parameters))
    publisher = Node(
        package="robot_state_publisher",
        executable="robot_state_publisher",
        namespace=namespace,
        parameters=[
            {
                "robot_description": ParameterValue(urdf, value_type=str),
                "frame_prefix": given["frame_prefix"],
            }
        ],
    )
    manager = Node(
        package="controller_manager",
        executable="ros2_control_node",
        namespace=namespace,
        parameters=[file],
        output="screen",
    )
    maps = control.choose_hands(control.own_names(robot), given["hands"])
    names = [one.controller for one in maps.values()]
    spawner = Node(
        package="controller_manager",
        executable="spawner",
        namespace=namespace,
        arguments=["joint_state_broadcaster", *names, "--param-file", file],
        output="screen",
    )
    player = Node(
        package=launching.PACKAGE,
        executable="trajectory_player",
        name="trajectory_player",
        namespace=namespace,
        output="screen",
        parameters=[
            launching.values(launching.shown("trajectory_player", *SHOWN), given),
            {
                "stamps": "now",
                "publish_clock": False,
                "publish_tf": False,
                "command_rate": float(given["update_rate"]),
            },
        ],
    )

    started = [player] if given["player"] == "true" else []

    def spawned(event, context):
        if context.is_shutdown:
            return []
        if event.returncode != 0:
            raise RuntimeError(f"the controllers did not start: exit code {event.returncode}")
        return started

    viewer = launching.viewer(
        given["view"], False, launching.LaunchScene(namespace, given["frame_prefix"])
    )
    others = (publisher, spawner, player, *viewer)
    managed = launching.end_with(manager, "ros2_control_node", others)
    # Once the player is done, the manager's own end is no failure.
    then = [UnregisterEventHandler(managed.event_handler)]
    return [
        publisher,
        manager,
        spawner,
        RegisterEventHandler(OnProcessExit(target_action=spawner, on_exit=spawned)),
        managed,
        launching.end_with(player, "trajectory_player", (publisher, manager, *viewer), then),
        *viewer,
    ]


@launching.with_libraries
def generate_launch_description():
    own = launching.shown("trajectory_player", *SHOWN)
    arguments = [*launching.arguments(own, defaults=DEFAULTS), *launching.declared(*OWN)]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
