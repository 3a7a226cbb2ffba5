"""The nodes' parameters: a settings class each, which the launch files use too.

``check`` needs no ROS; ``declare`` passes descriptions and ranges to ``ros2 param describe``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from acehand_core import ConvertOptions, JobSettings
from acehand_core.errors import AcehandError, InputError, nearest
from acehand_core.recordings.bags.records import BagOptions
from acehand_core.settings import Leaf, built, check_value, group, leaves, like, respelled, setting
from retarget.robots.robot import load_robot

#: A node's parameters, named by ``Leaf.parameter``.
Table = tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class WorkParameters:
    """The main job's settings in the nodes that make datasets; "" and 0 are unset."""

    robot: str = like(JobSettings, "robot", "inspire")
    hands: str = like(JobSettings, "hands", "auto", choices=("auto", "both", "left", "right"))
    tracker: str = like(JobSettings, "tracker", "auto")
    weights: str = like(JobSettings, "weights", "", "weights of the ace tracker")
    device: str = like(
        JobSettings, "device", "auto", "device of the ace tracker", choices=("auto", "cpu", "cuda")
    )
    task: str = like(JobSettings, "task", "hand motion")
    hand_length: float = like(
        JobSettings, "hand_length", 0.0, "wrist to middle fingertip, m; 0: mean", low=0.0
    )
    camera_motion: str = like(JobSettings, "camera_motion", "rotation")
    quality: str = like(JobSettings, "quality", "balanced")
    overlay: bool = like(JobSettings, "overlay", False)


@dataclass(frozen=True, slots=True)
class BagParameters:
    """Parameters of offline_bag."""

    bag: str = like(ConvertOptions, "bag", "")
    output_dir: str = setting("", "folder of the LeRobot dataset to make")
    work: WorkParameters = group(WorkParameters)
    image_topic: str = like(BagOptions, "image_topic", "")
    camera_info_topic: str = like(BagOptions, "camera_info_topic", "")
    world_frame: str = like(BagOptions, "world_frame", "")
    depth_topic: str = like(BagOptions, "depth_topic", "")
    views: str = like(JobSettings, "views", "")
    keep_views: bool = like(JobSettings, "keep_views", False)
    keep_depth: bool = like(JobSettings, "keep_depth", False)
    robot_video: bool = like(JobSettings, "robot_video", False)
    robot_mask: bool = like(JobSettings, "robot_mask", False)
    bag_output: str = setting(
        "", "bag to write: the recording's topics and ours; empty: OUTPUT_DIR_bag; none: no bag"
    )
    episode_topic: str = like(ConvertOptions, "episode_topic", "")
    existing: str = setting(
        "refuse", "if the dataset exists", choices=("refuse", "append", "overwrite", "resume")
    )
    storage: str = like(ConvertOptions, "storage", "mcap")
    autostart: bool = setting(True, "start at once; otherwise wait for ~/start")
    exit_when_done: bool = setting(True, "end the node, with an exit code, after the job")


@dataclass(frozen=True, slots=True)
class RecorderParameters:
    """Parameters of clip_recorder."""

    image_topic: str = setting("camera/image_raw", "images of the live camera")
    image_type: str = setting(
        "auto", "type of the images; auto: as published", choices=("auto", "raw", "compressed")
    )
    camera_info_topic: str = setting("", "its CameraInfo; empty: camera_info next to the images")
    output_dir: str = setting("acehand_clips", "folder of clips (bags) and their dataset")
    work: WorkParameters = group(WorkParameters)
    duration: float = setting(
        0.0, "length of a clip in seconds; 0: until ~/stop", low=0.0, high=600.0, changeable=True
    )
    autostart: bool = setting(True, "configure and activate at once")
    record_at_start: bool = setting(False, "begin the first clip with the first image")
    exit_when_done: bool = setting(False, "end the node after the first clip")


@dataclass(frozen=True, slots=True)
class Player:
    """Parameters of trajectory_player."""

    source: str = setting("", "LeRobot dataset, or table of hands (.parquet, .npz)")
    robot: str = like(JobSettings, "robot", "inspire")
    episode: int = setting(0, "which episode of a dataset", low=0, high=1000000)
    rate: float = setting(1.0, "speed; 0.5 is half as fast", low=0.01, high=10.0, changeable=True)
    loop: bool = setting(False, "start again at the end", changeable=True)
    paused: bool = setting(False, "pause; setting it to false resumes", changeable=True)
    position: float = setting(
        0.0, "seconds from the start; settable", low=0.0, high=1000000.0, changeable=True
    )
    stamps: str = setting(
        "recorded", "stamps: capture time (with /clock), or now", choices=("recorded", "now")
    )
    publish_clock: bool = setting(True, "publish /clock in the recording's time (stamps:=recorded)")
    clock_rate: float = setting(100.0, "rate of /clock in Hz", low=1.0, high=1000.0)
    publish_tf: bool = setting(True, "publish the camera, wrist and base frames")
    publish_description: bool = setting(True, "publish the robot_description of each hand")
    frame_prefix: str = setting("", "prefix of every frame, for example robot1/")
    markers: bool = setting(True, "publish the skeleton, 21 joints and camera of the human hand")
    wait_for_subscriber: float = setting(
        0.0, "seconds to wait for a subscriber before starting", low=0.0, high=60.0
    )
    exit_when_done: bool = setting(False, "end the node at the end of the episode")
    output: str = setting(
        "topics",
        "how the hands move: topics, goals (action) for trajectory controllers, commands (forward) "
        "for forward_command and position groups",
        choices=("topics", "action", "forward"),
    )
    command_rate: float = setting(
        100.0, "output:=forward: commands per second, the controllers' rate", low=1.0, high=1000.0
    )
    controllers: str = setting(
        "", "joint map: inspire, renesas_inspire_rh56 or a YAML file; empty: our names"
    )
    hands: str = setting(
        "both", "which hands output:=action or forward moves", choices=("both", "left", "right")
    )
    left_controller: str = setting("", "the left hand's controller; empty: the joint map's")
    right_controller: str = setting("", "the right hand's controller; empty: the joint map's")
    wait_for_controller: float = setting(
        10.0, "seconds to wait for controllers and joint states", low=0.0, high=600.0
    )
    path_tolerance: float = setting(
        0.0,
        "output:=action: largest error on the way, in the controller's unit, beyond which the goal "
        "is aborted; 0: the controller's own",
        low=0.0,
        high=10000.0,
    )


#: All but autostart may change and apply to the next start.
OFFLINE_BAG: Table = tuple(
    replace(leaf, setting=replace(leaf.setting, changeable=leaf.name != "autostart"))
    for leaf in leaves(BagParameters)
)
CLIP_RECORDER: Table = leaves(RecorderParameters)
PLAYER: Table = leaves(Player)

TABLES = {"offline_bag": OFFLINE_BAG, "clip_recorder": CLIP_RECORDER, "trajectory_player": PLAYER}

_KNOWN = {leaf.parameter: leaf for leaf in (*CLIP_RECORDER, *OFFLINE_BAG)}
_KNOWN["output"] = _KNOWN["output_dir"]


def as_parameters(text: str) -> str:
    """Return a message with settings as parameters; it says which ones the nodes lack."""
    lacking: dict[str, None] = {}

    def spell(leaf: Leaf, value: str | None) -> str:
        parameter = _KNOWN.get(leaf.parameter)
        if parameter is None:
            lacking[leaf.parameter] = None
            return leaf.parameter if value is None else f"{leaf.parameter}={value}"
        if isinstance(parameter.default, bool):
            value = (value or "true").lower()
        return f"{parameter.parameter}:={value or ''}"

    out = respelled(text, leaves(ConvertOptions), spell)
    if not lacking:
        return out
    return (
        f"{out} ({', '.join(lacking)}: only for the acehand commands; the nodes have no such "
        "parameter.)"
    )


def check(table: Table, values: Mapping[str, Any]) -> None:
    """Raise InputError with a sentence per bad value, or SchemaError for the robot's file."""
    known = {leaf.parameter: leaf for leaf in table}
    unknown = [name for name in values if name not in known]
    wrong = [f"{name!r} is no parameter; {nearest(name, known)}" for name in unknown]

    def spell(leaf: Leaf, value: str | None) -> str:
        return f"{leaf.parameter}:={value}"

    for leaf in (known[name] for name in values if name in known):
        value, wanted = values[leaf.parameter], type(leaf.default)
        if type(value) is not wanted and (type(value), wanted) != (int, float):
            wrong.append(f"{leaf.parameter}: {value!r} is not of type {wanted.__name__}.")
            continue
        try:
            check_value(leaf, value)
        except InputError as error:
            wrong.append(respelled(str(error), [leaf], spell))
    if wrong:
        raise InputError(" ".join(sorted(wrong)))
    if "robot" in values:
        load_robot(values["robot"])  # at once, not when the hands are found


def described(leaf: Leaf) -> str:
    """Return the help of a parameter, with what no value means, and its range."""
    low, high, usual = leaf.setting.low, leaf.setting.high, leaf.setting.default_text
    empty = f"; empty: {usual}" if usual and leaf.default == "" else ""
    bounds = "" if low is None or high is None else f" ({low:g} to {high:g})"
    return as_parameters(leaf.setting.help + empty) + bounds


def usage(name: str) -> str:
    """Return a node's help: its parameters with choices and defaults."""
    lines = [f"usage: ros2 run acehand_ros {name} --ros-args -p NAME:=VALUE ...", ""]
    for leaf in TABLES[name]:
        valid = f" ({', '.join(leaf.choices)})" if leaf.choices else ""
        lines.append(f"  {leaf.parameter}: {described(leaf)}{valid}; default: {leaf.default!r}")
    return "\n".join(lines)


def declare(node: Any, table: Table) -> dict[str, Any]:
    """Declare a table's parameters on an rclpy node; return their values. Raises InputError."""
    from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException

    values: dict[str, Any] = {}
    for leaf in table:
        try:
            declared = node.declare_parameter(leaf.parameter, leaf.default, _descriptor(leaf))
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            raise InputError(f"{leaf.parameter}: {error}") from error
        values[leaf.parameter] = declared.value
    check(table, values)
    return values


def refuse_bad_values(node: Any, table: Table, apply: Any) -> None:
    """Check changed parameters; ``apply(name, value)`` takes each and may raise InputError."""
    from rcl_interfaces.msg import SetParametersResult

    known = {leaf.parameter for leaf in table}

    def on_set(changes: Sequence[Any]) -> Any:
        try:
            given = [change for change in changes if change.name in known]
            check(table, {change.name: change.value for change in given})
            for change in given:
                apply(change.name, change.value)
        except AcehandError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    node.add_on_set_parameters_callback(on_set)


def _descriptor(leaf: Leaf) -> Any:
    from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

    low, high = leaf.setting.low, leaf.setting.high
    descriptor = ParameterDescriptor(
        description=described(leaf),
        additional_constraints=f"one of: {', '.join(leaf.choices)}" if leaf.choices else "",
        read_only=not leaf.setting.changeable,
    )
    if low is not None and high is not None:
        if isinstance(leaf.default, int):
            whole = IntegerRange(from_value=int(low), to_value=int(high), step=1)
            descriptor.integer_range = [whole]
        else:
            span = FloatingPointRange(from_value=float(low), to_value=float(high))
            descriptor.floating_point_range = [span]
    return descriptor


def offline_options(values: Mapping[str, Any]) -> ConvertOptions:
    """Return the conversion that offline_bag's parameters describe. Raises InputError."""
    for name in ("bag", "output_dir"):
        if not values[name].strip():
            raise InputError(f"The parameter {name!r} is empty; give {name}:=PATH.")
    output = Path(values["output_dir"]).expanduser()
    bag_output: Path | None = output.with_name(f"{output.name}_bag")
    if values["bag_output"]:
        named = values["bag_output"]
        bag_output = None if named == "none" else Path(named).expanduser()
    return _options(
        values, Path(values["bag"]).expanduser(), output, bag_output, values["existing"]
    )


def clip_options(
    values: Mapping[str, Any], clip: Path, bag_output: Path, camera_info: str
) -> ConvertOptions:
    """Return the conversion of a recorded clip into the next episode of its dataset."""
    output = Path(values["output_dir"]).expanduser() / "dataset"
    existing = "append" if output.exists() else "refuse"
    values = {**values, "camera_info_topic": camera_info}
    return _options(values, clip, output, bag_output, existing)


def _options(
    values: Mapping[str, Any], bag: Path, output: Path, bag_output: Path | None, existing: Any
) -> ConvertOptions:
    check_ace(values)
    own = {"bag": bag, "output": output, "bag_output": bag_output, "existing": existing}
    values = {**values, **own}
    given: dict[tuple[str, ...], Any] = {}
    for leaf in leaves(ConvertOptions):
        value = values.get(leaf.parameter)
        # Parameters cannot be None: "", 0 and device "auto" represent it.
        if value is None or value == "" or (leaf.default is None and value in (0.0, "auto")):
            continue
        is_path = Path in (leaf.type, *get_args(leaf.type))
        given[leaf.path] = Path(value).expanduser() if is_path else value
    return built(ConvertOptions, given)


def check_ace(values: Mapping[str, Any]) -> None:
    """Raise InputError for weights or a GPU without the ace tracker, or ace without weights."""
    device, weights, tracker = values["device"], values["weights"], values["tracker"]
    if tracker == "ace" and not weights:
        raise InputError("tracker: 'ace' needs its weights; give weights:=PATH.")
    if tracker != "ace" and weights:
        raise InputError(f"weights: given for the tracker {tracker!r}; they belong to 'ace'.")
    if tracker != "ace" and device == "cuda":
        raise InputError(
            f"device: 'cuda', but the tracker {tracker!r} runs on the CPU; valid: auto, cpu."
        )
