"""``acehand bag info|convert|write``: ROS 2 bags without ROS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from acehand_core.cli import console
from acehand_core.cli.retarget import Retarget, summarise, with_weights
from acehand_core.pipeline.bag_convert import ConvertOptions
from acehand_core.pipeline.bag_write import WriteOptions
from acehand_core.settings import group, setting


@dataclass(frozen=True, slots=True)
class Info:
    """Print topics, times and damage of a bag."""

    bag: Path = setting(..., "rosbag2 folder, .mcap or .db3", metavar="BAG", positional=True)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.recordings.bags.topics import bag_info

        info = bag_info(self.bag, progress=terminal.bars)
        terminal.bars.close()
        kind = f"{info.storage}{f', {info.compression} compression' if info.compression else ''}"
        console.say(
            f"{info.path}: {kind}, {info.messages} messages in {info.duration_s:.1f} s"
            f"{f', recorded on {info.distro}' if info.distro else ''}"
        )
        for topic in info.topics:
            used = {info.image: "  <- pictures", info.camera_info: "  <- camera"}
            strange = "" if topic.known_type else " (unknown type)"
            said = f"{topic.msgtype}  {topic.messages}{strange}{used.get(topic.name, '')}"
            console.say(f"  {topic.name}  {said}")
        for note in (*info.notes, *([info.remark] if info.remark else [])):
            console.say(f"  - {note}")
        terminal.print_json(info.to_json)
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Convert:
    """Convert a bag into a dataset, and optionally into another bag."""

    options: ConvertOptions = group(ConvertOptions)

    json_of_nothing: ClassVar[dict[str, Any]] = {
        **Retarget.json_of_nothing, "bag": None, "topics": {}, "lost_messages": {}
    }  # fmt: skip

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.bag_convert import convert_bag

        options = replace(self.options, job=with_weights(self.options.job))
        report = convert_bag(options, terminal.bars)
        terminal.bars.close()
        # The copy into another bag may have lost more messages.
        job = replace(report.job, lost_messages=report.lost_messages, notes=report.notes)
        summarise(job, terminal)
        if report.bag is not None and not terminal.quiet:
            console.say(f"bag: {report.bag}")
        terminal.print_json(report.to_json)
        return report.job.exit_code


@dataclass(frozen=True, slots=True)
class Write:
    """Write a dataset or a table of hands as a bag."""

    options: WriteOptions = group(WriteOptions)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.bag_write import write_bag

        report = write_bag(self.options, terminal.bars)
        terminal.bars.close()
        for note in report.notes:
            console.say(f"  - {note}")
        console.say(f"{report.bag}: {report.messages} messages on {len(report.topics)} topics")
        terminal.print_json(report.to_json)
        return console.EXIT_OK
