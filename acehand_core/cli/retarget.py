"""``acehand-retarget``: the main job."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from acehand_core.cli import console
from acehand_core.cli.main import retarget as main
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import group, setting

if TYPE_CHECKING:
    from acehand_core.pipeline.report import JobReport


@dataclass(frozen=True, slots=True)
class Retarget:
    """Retarget recordings of human hands to a robot hand, as a LeRobot v3 dataset.

    INPUT is a video, a picture, a folder of pictures, a bag (rosbag2 folder, .mcap, .db3; ROS 1
    .bag), an Aria recording (.vrs), a folder of any of these, a LeRobot dataset with videos or one
    of its episodes (DATASET/episode_000003), a clip of a store (STORE/clips/ID), or a file of hands
    (HandMotion .parquet, or keypoints: .npz, .npy, .csv, .json, .parquet).

    exit codes: 0 all done; 1 some inputs failed, the others are written; 2 usage or input error,
    nothing written; 3 no hand in any input; 4 output could not be written; 130 interrupted
    """

    inputs: tuple[Path, ...] = setting(..., "recordings", metavar="INPUT", positional=True)
    job: JobSettings = group(JobSettings)

    json_of_nothing: ClassVar[dict[str, Any]] = {
        "dataset": None, "seconds": 0.0, "realtime_factor": 0.0, "episodes": []
    }  # fmt: skip

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.pipeline.job import run_job

        report = run_job(self.inputs, self.job, terminal.bars)
        terminal.bars.close()
        summarise(report, terminal)
        terminal.print_json(report.to_json)
        return report.exit_code


def summarise(report: JobReport, terminal: console.Terminal) -> None:
    """Print the result of each input, with ``quiet`` one line each."""
    from acehand_core.pipeline.report import format_cuts, format_evidence, format_uncertainty

    quiet = terminal.quiet
    for entry in () if quiet else report.cuts:
        for line in format_cuts(entry):
            console.say(line)
    for episode in report.episodes:
        coverage = episode.json["coverage"]
        seen = ", ".join(f"{side} {share:.0%}" for side, share in coverage.items())
        cut = episode.json.get("cut")
        where = f" {cut['start_s']:.1f} to {cut['end_s']:.1f} s" if cut else ""
        doubts = format_uncertainty(episode.json)
        console.say(f"{episode.source}{where}: {episode.verdict} ({seen}{doubts})")
        if "evidence" in episode.json and not quiet:
            console.say(f"  - {format_evidence(episode.json['evidence'])}")
        for sentence in () if quiet else (*episode.reasons, *episode.json["notes"]):
            console.say(f"  - {sentence}")

    for source in report.skipped:
        console.say(f"{source}: already in the dataset")
    lost = sum(report.lost_messages.values())
    if lost or not quiet:
        shown = [] if quiet else [n for episode in report.episodes for n in episode.json["notes"]]
        for note in report.notes:
            if note not in shown:
                console.say(f"  - {note}")

    if lost:
        console.say(f"{lost} messages were lost")
    for failure in report.failures:
        console.say_error(failure.error, terminal.verbose)
    if report.dataset is not None and not quiet:
        console.say(f"dataset: {report.dataset} ({report.seconds:.1f} s)")


if __name__ == "__main__":
    sys.exit(main())
