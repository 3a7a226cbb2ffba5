"""Clips of a live camera in, one trajectory, one bag and one episode per clip out.

ros2 launch acehand_ros clip.launch.py image_topic:=/camera/image_raw output_dir:=clips
ros2 service call /clip_recorder/start std_srvs/srv/Trigger
ros2 service call /clip_recorder/stop std_srvs/srv/Trigger
"""

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch_ros.actions import LifecycleNode

from acehand_ros import launching
from acehand_ros.parameters import CLIP_RECORDER
from launch import LaunchDescription

SHOWN = launching.pick(
    CLIP_RECORDER,
    (
        "image_topic", "image_type", "camera_info_topic", "output_dir", "duration", "robot",
        "hands", "tracker", "weights", "task", "device", "hand_length", "camera_motion", "quality",
        "overlay", "autostart", "record_at_start", "exit_when_done",
    ),
)  # fmt: skip


def start(context):
    """Start the node and a viewer, and end with the node."""
    given = context.launch_configurations
    sim_time, namespace = given["use_sim_time"] == "true", given["namespace"]
    recorder = LifecycleNode(
        package=launching.PACKAGE,
        executable="clip_recorder",
        name="clip_recorder",
        namespace=namespace,
        output="screen",
        parameters=[launching.values(SHOWN, given), {"use_sim_time": sim_time}],
        remappings=launching.own_clock(namespace),
    )
    topic = given["image_topic"]
    pictures = topic if topic.startswith("/") else f"{namespace and '/'}{namespace}/{topic}"
    scene = launching.LaunchScene(namespace, image_topic=pictures)
    viewer = launching.viewer(given["view"], sim_time, scene)
    return [recorder, launching.end_with(recorder, "clip_recorder", viewer), *viewer]


def generate_launch_description():
    """Return the arguments and the nodes."""
    return LaunchDescription(
        [
            *launching.arguments(SHOWN),
            launching.namespace_argument(),
            DeclareLaunchArgument(
                "use_sim_time",
                default_value="false",
                description="take time from /clock",
                choices=("true", "false"),
            ),
            DeclareLaunchArgument(
                "view",
                default_value="none",
                description="what shows the topics, if it is installed",
                choices=("none", "auto", *launching.VIEWERS),
            ),
            OpaqueFunction(function=start),
        ]
    )
