"""The parameters of the nodes: one table per node, from which the launch files take theirs too.

``check`` needs no ROS; ``declare`` hands a table to a node, so that ``ros2 param describe`` shows
what each is for and what it may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acehand_core.errors import InputError, nearest
from acehand_core.pipeline.bag_episodes import MODES

Value = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its default, what it is for, and what it may be.

    Attributes:
        choices: the values that a text may have; empty for any.
        low, high: the range of a number.
        changeable: whether it may be set while the node runs.
    """

    name: str
    default: Value
    description: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    changeable: bool = False

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with a value, or None."""
        wanted = type(self.default)
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            return f"{self.name}: {value!r} is not of type {wanted.__name__}."
        if self.choices and value not in self.choices:
            return f"{self.name}: {value!r}; {nearest(value, self.choices)}"
        if self.low is not None and self.high is not None and not self.low <= value <= self.high:
            return f"{self.name}: {value}; valid: {self.low:g} to {self.high:g}."
        return None

    @property
    def type(self) -> type:
        """The type of its values."""
        return type(self.default)


Table = tuple[Parameter, ...]

ROBOT = Parameter("robot", "inspire", "robot name, or the path of a robot.yaml")

_WORK: Table = (
    ROBOT,
    Parameter("hands", "both", "which hands to look for", ("both", "left", "right")),
    Parameter("tracker", "auto", "auto, mediapipe, ace, an installed one, or a file of hands"),
    Parameter("weights", "", "weights of the ace tracker; empty for the others"),
    Parameter(
        "device", "auto", "where the ace tracker runs; the others run on the cpu",
        ("auto", "cpu", "cuda"),
    ),
    Parameter("task", "hand motion", "what the hands do, in a few words: LeRobot's task"),
    Parameter(
        "hand_length", 0.0, "wrist to middle fingertip in metres; 0 for an adult's mean",
        low=0.0, high=0.35,
    ),
    Parameter("overlay", False, "also write an overlay video per episode"),
)  # fmt: skip

_TOPICS: Table = (
    Parameter("image_topic", "", "sensor_msgs/Image or CompressedImage; empty: the only one"),
    Parameter("camera_info_topic", "", "sensor_msgs/CameraInfo; empty: the one beside the images"),
    Parameter(
        "world_frame",
        "",
        "TF frame in which the camera moves; empty: map, world or odom where "
        "they lead to the camera; none: leave transforms alone",
    ),
)

_OFFLINE_BAG: Table = (
    Parameter("bag", "", "the recording: a rosbag2 folder (mcap or sqlite3) or a bare .mcap file"),
    Parameter("output_dir", "", "folder of the LeRobot dataset to make"),
    *_WORK,
    *_TOPICS,
    Parameter(
        "bag_output", "", "bag to write: the recording's topics and ours; empty: OUTPUT_DIR_bag "
        "beside the dataset; none: no bag",
    ),
    Parameter(
        "episodes", "whole", "how the recording is cut: whole, gaps, topic, or a times.csv",
    ),
    Parameter("episode_topic", "", "the topic that marks episodes, for episodes:=topic"),
    Parameter(
        "existing", "refuse", "what to do where the dataset exists",
        ("refuse", "append", "overwrite", "resume"),
    ),
    Parameter("storage", "mcap", "storage of the written bag", ("mcap", "sqlite3")),
    Parameter("mesh", True, "also write the hand's surface as markers"),
    Parameter("autostart", True, "start at once; otherwise wait for ~/start"),
    Parameter("exit_when_done", True, "end the node, with an exit code, when the job has ended"),
)  # fmt: skip

#: All but autostart hold for the next start.
OFFLINE_BAG: Table = tuple(replace(p, changeable=p.name != "autostart") for p in _OFFLINE_BAG)

CLIP_RECORDER: Table = (
    Parameter("image_topic", "camera/image_raw", "images of the live camera"),
    Parameter(
        "image_type", "auto", "message type of the images; auto: as published",
        ("auto", "raw", "compressed"),
    ),
    Parameter(
        "camera_info_topic", "",
        "its CameraInfo; empty: camera_info beside the images' topic",
    ),
    Parameter("output_dir", "acehand_clips", "folder of clips (bags) and of their dataset"),
    *_WORK,
    Parameter(
        "duration", 0.0, "length of a clip in seconds; 0: until ~/stop", low=0.0, high=600.0,
        changeable=True,
    ),
    Parameter("autostart", True, "configure and activate at once; otherwise by the life cycle"),
    Parameter("record_at_start", False, "begin the first clip with the first image"),
    Parameter("exit_when_done", False, "end the node after the first clip"),
)  # fmt: skip

PLAYER: Table = (
    Parameter("source", "", "LeRobot dataset, table of hands (.parquet, .npz), or bag of ours"),
    ROBOT,
    Parameter("episode", 0, "which episode of a dataset", low=0, high=1_000_000),
    Parameter("rate", 1.0, "speed; 0.5 is half as fast", low=0.01, high=10.0, changeable=True),
    Parameter("loop", False, "start again at the end", changeable=True),
    Parameter("paused", False, "pause; setting it to false resumes", changeable=True),
    Parameter(
        "position", 0.0, "seconds from the start; setting it moves there", low=0.0, high=1e6,
        changeable=True,
    ),
    Parameter(
        "stamps", "recorded", "stamp of a message: its capture time (with /clock), or now",
        ("recorded", "now"),
    ),
    Parameter("publish_clock", True, "publish /clock in the recording's time (stamps:=recorded)"),
    Parameter("clock_rate", 100.0, "rate of /clock in Hz", low=1.0, high=1000.0),
    Parameter("publish_tf", True, "publish the camera, wrist and base frames"),
    Parameter("publish_description", True, "publish the robot_description of each hand"),
    Parameter("frame_prefix", "", "put before the name of every frame, for example robot1/"),
    Parameter("markers", True, "publish the skeleton, 21 joints and camera of the human hand"),
    Parameter("mesh", False, "publish the surface of the human hand as well"),
    Parameter("wait_for_subscriber", 0.0, "wait up to so many seconds for one before starting",
              low=0.0, high=60.0),
    Parameter("exit_when_done", False, "end the node at the end of the episode"),
    Parameter(
        "output", "topics", "what moves the hands: topics for whoever listens, goals (action) for "
        "trajectory controllers, commands (forward) for forward_command and position groups",
        ("topics", "action", "forward"),
    ),
    Parameter(
        "controllers", "",
        "joint map: inspire, renesas_inspire_rh56 or a YAML file; empty: our names",
    ),
    Parameter("hands", "both", "which hands output:=action or forward moves",
              ("both", "left", "right")),
    Parameter("left_controller", "", "the left hand's controller; empty: the joint map's"),
    Parameter("right_controller", "", "the right hand's controller; empty: the joint map's"),
    Parameter("wait_for_controller", 10.0, "seconds to wait for controllers and joint states",
              low=0.0, high=600.0),
    Parameter("path_tolerance", 0.0, "output:=action: largest error on the way in the controller's "
              "unit, beyond which it ends the goal; 0: the controller's own", low=0.0, high=1e4),
)  # fmt: skip


_KNOWN = {parameter.name: parameter for parameter in (*CLIP_RECORDER, *OFFLINE_BAG)}
_EXISTING = _KNOWN["existing"].choices
#: An option of a command, and a value if one seems to follow.
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)(?: ('[^']*'|[\w.]+))?")


def as_parameters(text: str) -> str:
    """Return a message of the acehand commands with parameters of a node for their options.

    An option that is no parameter stays, and the message then ends with a sentence that says so.
    """
    others: list[str] = []

    def name(match: re.Match[str]) -> str:
        option, value = match[1], match[2] or ""
        left = f" {value}" if value else ""
        if option in _EXISTING:
            return f"existing:={option}{left}"
        parameter = _KNOWN.get("output_dir" if option == "output" else option.replace("-", "_"))
        if parameter is None:
            others.append(f"--{option}")
            return match[0]
        words = MODES if parameter.name == "episodes" else parameter.choices
        if value[:1].isdigit() or value[:1] == "'" or value.isupper() or value in words:
            return f"{parameter.name}:={value}"
        return f"{parameter.name}:={left}"

    out = _OPTION.sub(name, text)
    if not others:
        return out
    return (
        f"{out} ({', '.join(dict.fromkeys(others))}: only for the acehand commands; "
        "the nodes have no such parameter.)"
    )


def check(table: Table, values: Mapping[str, Any]) -> None:
    """Refuse values that a table does not allow.

    Raises:
        InputError: with all that is wrong, one sentence each.
    """
    known = {parameter.name: parameter for parameter in table}
    unknown = [name for name in values if name not in known]
    wrong = [f"{name!r} is no parameter; {nearest(name, known)}" for name in unknown]
    wrong += [
        problem
        for name, value in values.items()
        if name in known and (problem := known[name].problem(value)) is not None
    ]
    if wrong:
        raise InputError(" ".join(sorted(wrong)))


def declare(node: Any, table: Table) -> dict[str, Value]:
    """Declare a table's parameters on an rclpy node; return their values.

    Raises:
        InputError: a value that was given is of another type, outside its range, or no choice.
    """
    from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException

    values: dict[str, Value] = {}
    for parameter in table:
        try:
            declared = node.declare_parameter(
                parameter.name, parameter.default, _descriptor(parameter)
            )
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            raise InputError(f"{parameter.name}: {error}") from error
        values[parameter.name] = declared.value
    check(table, values)
    return values


def refuse_bad_values(node: Any, table: Table, apply: Any) -> None:
    """Let a node's changeable parameters be set: ``apply(name, value)`` may raise InputError."""
    from rcl_interfaces.msg import SetParametersResult

    known = {parameter.name: parameter for parameter in table}

    def on_set(changes: Sequence[Any]) -> Any:
        try:
            given = [change for change in changes if change.name in known]
            check(table, {change.name: change.value for change in given})
            for change in given:
                apply(change.name, change.value)
        except InputError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(on_set)


def _descriptor(parameter: Parameter) -> Any:
    from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

    choices = f"one of: {', '.join(parameter.choices)}" if parameter.choices else ""
    out = ParameterDescriptor(
        description=parameter.description,
        additional_constraints=choices,
        read_only=not parameter.changeable,
    )
    if parameter.low is not None and parameter.high is not None:
        if parameter.type is int:
            low, high = int(parameter.low), int(parameter.high)
            out.integer_range = [IntegerRange(from_value=low, to_value=high, step=1)]
        else:
            low, high = float(parameter.low), float(parameter.high)
            out.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
    return out
