"""``acehand bag info|convert|write``: ROS 2 bags in and out, without ROS."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from acehand_core.cli import console, retarget, robots

_EPISODES = (
    "whole, gaps (after pauses of a second), topic (marked by a Bool or String topic), or a csv "
    "file with start_s,end_s[,task] or start_ns,end_ns[,task] (%(default)s)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the three commands."""
    commands = parser.add_subparsers(dest="bag_command", required=True, metavar="COMMAND")
    for name, text, add, command in (
        ("info", "topics, times and what is damaged", _add_info, _info),
        ("convert", "a bag into a dataset and, if wanted, another bag", _add_convert, _convert),
        ("write", "a dataset or a table of hands into a bag", _add_write, _write),
    ):
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add(sub)
        console.add_common_arguments(sub)
        sub.set_defaults(bag_run=command)


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run one of the three."""
    return arguments.bag_run(arguments, bars)


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bag", type=Path, metavar="BAG", help="rosbag2 folder, .mcap or .db3")


def _info(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.bags.topics import bag_info

    info = bag_info(arguments.bag, progress=bars)
    bars.close()
    kind = f"{info.storage}{f', {info.compression} compression' if info.compression else ''}"
    console.say(
        f"{info.path}: {kind}, {info.messages} messages in {info.duration_s:.1f} s"
        f"{f', recorded on {info.distro}' if info.distro else ''}"
    )
    for topic in info.topics:
        read = {info.image: "  <- pictures", info.camera_info: "  <- camera"}.get(topic.name, "")
        strange = "" if topic.known_type else " (type not known here)"
        console.say(f"  {topic.name}  {topic.msgtype}  {topic.messages}{strange}{read}")
    for note in (*info.notes, *([info.remark] if info.remark else [])):
        console.say(f"  - {note}")
    if arguments.json:
        console.print_json(info.to_json())
    return console.EXIT_OK


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--storage", choices=("mcap", "sqlite3"), default="mcap",
                        help="of the written bag (%(default)s)")  # fmt: skip
    parser.add_argument("--mesh", action=argparse.BooleanOptionalAction, default=True,
                        help="write the hands' surfaces, too (on)")  # fmt: skip


def _add_convert(parser: argparse.ArgumentParser) -> None:
    nothing: dict[str, Any] = {
        "dataset": None, "seconds": 0.0, "realtime_factor": 0.0, "episodes": [], "bag": None,
        "topics": {}, "lost_messages": {},
    }  # fmt: skip
    parser.set_defaults(json_of_nothing=nothing)
    retarget.add_job_arguments(parser, "bag", "BAG")
    parser.add_argument(
        "--bag-output", type=Path, metavar="OUT",
        help="write a bag (.mcap file or folder) with the original topics and ours",
    )  # fmt: skip
    parser.add_argument("--episodes", default="whole", metavar="HOW", help=_EPISODES)
    parser.add_argument("--episode-topic", metavar="TOPIC", help="for --episodes topic")
    _add_storage(parser)


def _convert(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.pipeline.bag_convert import ConvertOptions, convert_bag

    options = ConvertOptions(
        bag=arguments.bag,
        job=retarget.settings_of(arguments),
        bag_output=arguments.bag_output,
        episodes=arguments.episodes,
        episode_topic=arguments.episode_topic,
        storage=arguments.storage,
        mesh=arguments.mesh,
    )
    report = convert_bag(options, bars)
    bars.close()
    # The copy into another bag may have lost more than the main job noticed.
    job = replace(report.job, lost_messages=report.lost_messages, notes=report.notes)
    retarget.summarise(job, arguments.quiet, arguments.verbose)
    if report.bag is not None and not arguments.quiet:
        console.say(f"bag: {report.bag}")
    if arguments.json:
        console.print_json(report.to_json())
    return report.job.exit_code


def _add_write(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="DATASET",
                        help="LeRobot dataset, HandMotion .parquet or joints .npz")  # fmt: skip
    parser.add_argument("--output", type=Path, required=True, metavar="OUT",
                        help=".mcap file, or folder of a rosbag2")  # fmt: skip
    parser.add_argument(
        "--robot", metavar="NAME|FILE",
        help="follows a table's hands (inspire); a dataset's own robot.yaml",
    )  # fmt: skip
    robots.add_model_argument(parser)

    parser.add_argument("--episode", type=int, action="append", metavar="N",
                        help="only this episode; may be repeated")  # fmt: skip
    parser.add_argument("--distro", default=None, metavar="NAME",
                        help="whose message definitions: humble to the newest")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    _add_storage(parser)


def _write(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.bags.typestore import LATEST
    from acehand_core.pipeline.bag_write import WriteOptions, write_bag

    options = WriteOptions(
        source=arguments.source,
        output=arguments.output,
        robot=arguments.robot,
        robot_model=arguments.robot_model,
        episodes=tuple(arguments.episode) if arguments.episode else None,
        storage=arguments.storage,
        mesh=arguments.mesh,
        overwrite=arguments.overwrite,
        distro=arguments.distro or LATEST,
    )
    report = write_bag(options, bars)
    bars.close()
    for note in report.notes:
        console.say(f"  - {note}")
    console.say(f"{report.bag}: {report.messages} messages on {len(report.topics)} topics")
    if arguments.json:
        console.print_json(report.to_json())
    return console.EXIT_OK
