"""Packaging for pip and, as the ament_python package acehand_ros, for colcon.

colcon's symlink install does not see pyproject.toml, so name, version and scripts stand here too.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROS_PACKAGE = "acehand_ros"
DEX_MODES = ("vector", "dexpilot", "position")


def files(folder: str, pattern: str) -> list[str]:
    """Return the files of a folder that match, as data_files wants them."""
    return sorted(str(file) for file in Path(folder).glob(pattern))


setup(
    name="acehand",
    version="0.1.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["acehand_core*", "acehand_ros*", "retarget*", "robots*"]),
    # All data is named below; without this setuptools takes each of its folders for a package.
    include_package_data=False,
    package_data={
        "acehand_core.ace.evaluation": ["*.json"],
        "acehand_core.hand": ["assets/*.npz"],
        "acehand_core.recordings": ["*.yaml"],
        "acehand_core.review": ["page_files/*"],
        "acehand_ros": ["config/*", "config/controllers/*.yaml"],
        "acehand_core.ace.training": ["conf/*.yaml", "conf/*/*.yaml"],
        "retarget": ["*.json"],
        "retarget.replay": ["*.yaml"],
        "robots": ["*/*.yaml", "*/*.xml", "*/*.urdf", "*/*.json"],
    },
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{ROS_PACKAGE}"]),
        (f"share/{ROS_PACKAGE}", ["package.xml"]),
        (f"share/{ROS_PACKAGE}/launch", files("launch", "*.launch.py")),
        (f"share/{ROS_PACKAGE}/config", files("acehand_ros/config", "acehand.*")),
        (
            f"share/{ROS_PACKAGE}/config/controllers",
            files("acehand_ros/config/controllers", "*.yaml"),
        ),
    ],
    entry_points={
        "console_scripts": [
            "acehand = acehand_core.cli.main:main",
            "acehand-retarget = acehand_core.cli.main:retarget",
            # The nodes: ros2 run acehand_ros NAME.
            "clip_recorder = acehand_ros.entry:clip_recorder",
            "offline_bag = acehand_ros.entry:offline_bag",
            "trajectory_player = acehand_ros.entry:trajectory_player",
            "acehand-train = acehand_core.ace.training.main:main",
        ],
        # See acehand_core/plugins.py.
        "acehand.recordings": [
            "clip = acehand_core.ace.recording:StoreClip",
            "hands = acehand_core.recordings.registry:HandsFile",
            "lerobot = acehand_core.recordings.registry:LeRobotDataset",
            "lerobot_episode = acehand_core.recordings.registry:LeRobotEpisode",
            "bag = acehand_core.recordings.registry:BagFile",
            "aria = acehand_core.recordings.vrs:AriaRecording",
            "pictures = acehand_core.recordings.registry:FramesFolder",
            "video = acehand_core.recordings.registry:VideoFile",
        ],
        "acehand.recordings.settings": ["bag = acehand_core.recordings.bags.records:BagOptions"],
        "acehand.trackers": [
            "ace = acehand_core.ace.tracker:AceTracker",
            "mediapipe = acehand_core.trackers.mediapipe.tracker:MediaPipeTracker",
        ],
        "acehand.trackers.settings": ["ace = acehand_core.ace.settings:AceSettings"],
        "acehand.robots": ["acehand = robots"],
        "acehand.methods": [
            "trajectory = retarget.solve.methods:TrajectoryRetargeter",
            *(f"dex-{mode} = retarget.solve.methods:dex_{mode}" for mode in DEX_MODES),
        ],
        "acehand.exports": [
            "csv = acehand_core.recordings.hands_file:write_hand_motion",
            "parquet = acehand_core.recordings.hands_file:write_hand_motion",
            "npz = acehand_core.recordings.hands_file:write_joints_file",
        ],
        "acehand.commands": [
            "acehand = acehand_core.cli.main:COMMANDS",
            "ace = acehand_core.ace.commands:COMMANDS",
        ],
    },
    zip_safe=False,
)
