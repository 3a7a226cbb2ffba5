"""Replay an episode of a dataset or a table of hands as joint states and trajectories.

ros2 launch acehand_ros replay.launch.py source:=dataset episode:=0 rate:=0.5
"""

from pathlib import Path

from launch.actions import OpaqueFunction
from launch_ros.actions import Node

from acehand_ros import launching
from launch import LaunchDescription

HIDDEN = ("publish_description",)
OWN = (
    launching.NAMESPACE,
    ("fixed_frame", "", "RViz's fixed frame, without frame_prefix; empty: the source's camera"),
    ("picture_topic", "", "images that RViz shows, if published; empty: the source's"),
    ("robot_state_publisher", "true", "publish link frames, if installed", "true", "false"),
    ("view", "auto", launching.VIEW_TEXT, *launching.VIEWS),
)


def start(context):
    """Start the player, link frames and a viewer; end with the player."""
    from acehand_core.pipeline.bag_write import seen_by

    given = context.launch_configurations
    sim_time = given["stamps"] == "recorded" and given["publish_clock"] == "true"
    namespace, prefix = given["namespace"], given["frame_prefix"]
    links = given["robot_state_publisher"] == "true"
    published = links and launching.installed("robot_state_publisher")
    own = launching.values(launching.shown("trajectory_player", without=HIDDEN), given)
    player = Node(
        package=launching.PACKAGE,
        executable="trajectory_player",
        name="trajectory_player",
        namespace=namespace,
        output="screen",
        # robot_state_publisher, if started, publishes the descriptions too.
        parameters=[own, {"publish_description": not published}],
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


@launching.with_libraries
def generate_launch_description():
    own = launching.shown("trajectory_player", without=HIDDEN)
    arguments = [*launching.arguments(own, required=("source",)), *launching.declared(*OWN)]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
