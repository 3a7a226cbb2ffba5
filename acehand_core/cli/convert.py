"""``acehand bag`` and ``acehand batch``: conversions of bags, and of many recordings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from acehand_core.cli import console
from acehand_core.cli.retarget import Retarget, summarise
from acehand_core.errors import InputError
from acehand_core.pipeline.bag_convert import ConvertOptions
from acehand_core.pipeline.bag_write import WriteOptions
from acehand_core.pipeline.batch.engines import EngineSettings
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import group, setting

if TYPE_CHECKING:
    from acehand_core.pipeline.batch.folder import BatchFolder


@dataclass(frozen=True, slots=True)
class BagInfo:
    """Print topics, times and damage of a bag."""

    bag: Path = setting(..., "rosbag2 folder, .mcap, .db3 or .bag", metavar="BAG", positional=True)

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
            used = dict.fromkeys(info.views, "  <- view")
            used |= dict.fromkeys(info.depth, "  <- depth")
            used |= {info.image or "": "  <- pictures", info.camera_info or "": "  <- camera"}
            strange = "" if topic.known_type else " (unknown type)"
            about = f"{topic.msgtype}  {topic.messages}{strange}{used.get(topic.name, '')}"
            console.say(f"  {topic.name}  {about}")
        for note in (*info.notes, *([info.remark] if info.remark else [])):
            console.say(f"  - {note}")
        terminal.print_json(info.to_json)
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class ConvertBag:
    """Convert a bag into a dataset, and optionally into another bag."""

    options: ConvertOptions = group(ConvertOptions)

    json_of_nothing: ClassVar[dict[str, Any]] = {
        **Retarget.json_of_nothing, "bag": None, "topics": {}, "lost_messages": {}
    }  # fmt: skip

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.bag_convert import convert_bag

        report = convert_bag(self.options, terminal.bars)
        terminal.bars.close()
        # The copy into another bag may have lost more messages.
        job = replace(report.job, lost_messages=report.lost_messages, notes=report.notes)
        summarise(job, terminal)
        if report.bag is not None and not terminal.quiet:
            console.say(f"bag: {report.bag}")
        terminal.print_json(report.to_json)
        return report.job.exit_code


@dataclass(frozen=True, slots=True)
class WriteBag:
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


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Convert many recordings into one LeRobot dataset; the same command resumes.

    MANIFEST is a folder of recordings, or a CSV or Parquet table with a column "recording" and, for
    settings of single recordings, columns named like flags (task, subject, hand_length, camera,
    ...). Finished episodes and tracked hands are in OUTPUT.batch (docs/scale.md).

    exit codes: 0 all done; 1 some recordings failed, the others are merged; 2 usage or input
    error; 3 no hand in any recording; 4 output could not be written; 130 interrupted
    """

    manifest: Path = setting(..., "recordings", metavar="MANIFEST", positional=True)
    job: JobSettings = group(JobSettings)
    batch: EngineSettings = group(EngineSettings, "workers")
    per_layout: bool = setting(False, "one dataset in OUTPUT for each picture size and frame rate")
    retry: bool = setting(False, "retry failed and quarantined recordings")
    merge: bool = setting(False, "only merge finished recordings")
    status: bool = setting(False, "only print progress and problems, also of a running batch")

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.batch.engines import open_engine
        from acehand_core.pipeline.batch.folder import BatchFolder, retry
        from acehand_core.pipeline.batch.manifest import read_manifest
        from acehand_core.pipeline.batch.run import merge, run_batch

        job = self.job
        if job.existing in ("append", "resume") or job.dry_run:
            raise InputError(
                "acehand batch run always resumes; `append`, `resume` and `dry_run` do not apply."
            )
        overwrite = job.existing == "overwrite"
        folder = BatchFolder(job.output)
        if self.status:
            _report(folder, terminal)
            return console.EXIT_OK
        if self.retry:
            for name in retry(folder):
                console.say(f"retry: {name}")
        done = self.merge
        if not self.merge:
            entries = read_manifest(self.manifest, replace(job, existing="refuse"))
            results = run_batch(
                self.manifest, entries, folder, lambda: open_engine(self.batch),
                terminal.bars, overwrite=overwrite,
            )  # fmt: skip
            terminal.bars.close()
            done = any(result.state == "done" for result in results.values())
        if done:
            merge(folder, per_layout=self.per_layout, overwrite=overwrite, progress=terminal.bars)
            terminal.bars.close()
        return _report(folder, terminal)


def _report(folder: BatchFolder, terminal: console.Terminal) -> int:
    """Print the state of a batch; return its exit code."""
    from acehand_core.pipeline.batch.folder import summary

    totals = summary(folder)
    states = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in totals["states"].items())
    console.say(f"{folder.output}: {totals['recordings']} recordings: {states}")
    verdicts = ", ".join(f"{n} {name}" for name, n in totals["verdicts"].items())
    if verdicts:
        minutes = totals["recorded_seconds"] / 60
        console.say(f"  {totals['episodes']} episodes, {minutes:.1f} minutes: {verdicts}")
    for problem in totals["problems"]:
        state = problem["state"].replace("_", " ")
        console.say(f"  {problem['id']}: {state}: {problem['reason']}")
    states = totals["states"]
    if {"failed", "quarantined"} & states.keys():
        console.say("  acehand batch run with `retry` retries the failed ones")
    terminal.print_json(totals)
    if "done" not in states:
        none = set(states) == {"no_hand"}
        return console.EXIT_NO_HAND if none else console.EXIT_SOME_FAILED
    return console.EXIT_SOME_FAILED if totals["problems"] else console.EXIT_OK
