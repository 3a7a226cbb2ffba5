"""Record clips of a live camera; each becomes a trajectory, a bag and an episode.

ros2 launch acehand_ros clip.launch.py image_topic:=/camera/image_raw output_dir:=clips
ros2 service call /clip_recorder/start std_srvs/srv/Trigger
ros2 service call /clip_recorder/stop std_srvs/srv/Trigger
"""

from launch.actions import OpaqueFunction
from launch_ros.actions import LifecycleNode

from acehand_ros import launching
from launch import LaunchDescription


def start(context):
    """Start the node and a viewer; end with the node."""
    given = context.launch_configurations
    sim_time, namespace = given["use_sim_time"] == "true", given["namespace"]
    own = launching.values(launching.shown("clip_recorder"), given)
    recorder = LifecycleNode(
        package=launching.PACKAGE,
        executable="clip_recorder",
        name="clip_recorder",
        namespace=namespace,
        output="screen",
        parameters=[own, {"use_sim_time": sim_time}],
        remappings=launching.own_clock(namespace),
    )
    topic = given["image_topic"]
    pictures = topic if topic.startswith("/") else f"{namespace and '/'}{namespace}/{topic}"
    scene = launching.LaunchScene(namespace, image_topic=pictures)
    viewer = launching.viewer(given["view"], sim_time, scene)
    return [recorder, launching.end_with(recorder, "clip_recorder", viewer), *viewer]


@launching.with_libraries
def generate_launch_description():
    rows = (
        launching.NAMESPACE,
        ("use_sim_time", "false", "take time from /clock", "true", "false"),
        ("view", "none", launching.VIEW_TEXT, *launching.VIEWS),
    )
    arguments = launching.arguments(launching.shown("clip_recorder"))
    arguments += launching.declared(*rows)
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])
