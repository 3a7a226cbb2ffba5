"""``acehand inspect`` and ``acehand review``."""

from __future__ import annotations

import webbrowser
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acehand_core.cli import console
from acehand_core.settings import like, setting

if TYPE_CHECKING:
    from acehand_core.review.inspect import Inspection
    from retarget.replay.checks import Status

_DATASETS = "LeRobot datasets with hands, or folders of them"
#: Cache of measures in the folder of a review.
_WORK = ".work"
STATUSES: tuple[Status, ...] = ("pass", "warn", "fail")
_SHARE: Mapping[str, Any] = {"low": 0, "high": 1, "default_text": "no limit", "metavar": "SHARE"}


@dataclass(frozen=True, slots=True)
class Inspect:
    """Report which episodes of datasets are good enough, and what is wrong with the others."""

    folders: tuple[Path, ...] = setting(..., _DATASETS, metavar="DATASET", positional=True)
    output: Path | None = setting(
        None, "folder of the report", metavar="DIR", default_text="DATASET.review"
    )
    limits: Path | None = setting(
        None, "file of limits (docs/review.md)", metavar="YAML", default_text="acehand's"
    )
    looks: int = setting(12, "frames per episode in which hands are detected again", low=0)
    page: bool = setting(True, "write report.html, not only report.json", pair=True)
    max_failed: float | None = setting(
        None, "exit code 1 above this share of failed episodes", **_SHARE
    )
    max_warned: float | None = setting(
        None, "exit code 1 above this share of failed or warned episodes", **_SHARE
    )

    def run(self, terminal: console.Terminal) -> int:
        """Write the report; the exit code is 1 above a maximum."""
        from acehand_core.review.decisions import read_decisions
        from acehand_core.review.inspect import write_json
        from acehand_core.review.page import plotly_bundle, write_report

        if self.page:
            plotly_bundle()  # before minutes of work

        output, decided = _places(self.folders, self.output)
        inspection = _inspected(self, output, terminal)
        files = [output / "report.json"]
        write_json(inspection, files[0])
        if self.page:
            known = read_decisions(decided) if decided.is_file() else {}
            files.append(output / "report.html")
            write_report(inspection, files[-1], _title(self.folders), known, progress=terminal.bars)

        _say(inspection)
        total = max(len(inspection.episodes), 1)
        failed = inspection.count("fail") / total
        warned = inspection.count("warn") / total
        passed = (self.max_failed is None or failed <= self.max_failed) and (
            self.max_warned is None or failed + warned <= self.max_warned
        )
        if not passed:
            console.say(f"too many: {failed:.0%} fail, {warned:.0%} warn")
        counts = {status: inspection.count(status) for status in STATUSES}
        episodes = len(inspection.episodes)
        console.say_files(
            files, terminal, output=str(output), episodes=episodes, **counts, passed=passed
        )
        return console.EXIT_OK if passed else console.EXIT_SOME_FAILED


@dataclass(frozen=True, slots=True)
class GraspCheck:
    """Simulate the grasps of an episode's tracked objects; exit code 1 if one fails."""

    dataset: Path = setting(..., "LeRobot dataset with hands", metavar="DATASET", positional=True)
    objects: Path = setting(..., "file of tracked objects (docs/grasps.md)", metavar="FILE")
    episode: int = setting(0, "its number", low=0)

    def run(self, terminal: console.Terminal) -> int:
        """Print each grasp."""
        from acehand_core.review.grasps import check_grasps

        reports = check_grasps(self.dataset, self.episode, self.objects)
        failed = sum(report.fault is not None for report in reports)
        for report in reports:
            console.say(
                f"{report.object}, {report.side} hand, frames {report.first} to {report.last}: "
                f"{report.fault or 'held'}, {report.position_error_m * 1e3:.0f} mm and "
                f"{report.angle_error_deg:.0f} degrees off, slips by {report.slip_m * 1e3:.0f} mm, "
                f"{report.force_n:.0f} N"
            )
        console.say(f"{len(reports) - failed} of {len(reports)} grasps hold")
        terminal.print_json({"grasps": [asdict(report) for report in reports]})
        return console.EXIT_SOME_FAILED if failed else console.EXIT_OK


@dataclass(frozen=True, slots=True)
class Review:
    """Review datasets in a browser on this machine; decisions are saved immediately."""

    folders: tuple[Path, ...] = setting(..., _DATASETS, metavar="DATASET", positional=True)
    output: Path | None = like(Inspect, "output", None)
    limits: Path | None = like(Inspect, "limits", None)
    looks: int = like(Inspect, "looks", 12)
    port: int = setting(0, "port on 127.0.0.1", low=0, high=65535, default_text="a free one")
    browser: bool = setting(True, "open the page", pair=True)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.review import serve
        from acehand_core.review.page import plotly_bundle

        plotly_bundle()
        output, decided = _places(self.folders, self.output)
        inspection = _inspected(self, output, terminal)
        _say(inspection)
        review = serve.ReviewServer(inspection, decided, _title(self.folders))
        with serve.server_of(review, self.port) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            console.say(f"{address}  decisions: {decided}  (Ctrl-C to stop)")
            if self.browser:
                webbrowser.open(address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.say("ended")
        return console.EXIT_OK


def _places(folders: tuple[Path, ...], given: Path | None) -> tuple[Path, Path]:
    """Return the folder of the report and the file of decisions."""
    first = folders[0].resolve()
    output = given or first.with_name(f"{first.name}.review")
    return output, output / "decisions.json"


def _title(folders: tuple[Path, ...]) -> str:
    return ", ".join(folder.resolve().name for folder in folders)


def _inspected(of: Inspect | Review, output: Path, terminal: console.Terminal) -> Inspection:
    from acehand_core.review.inspect import inspect
    from retarget.replay.checks import CHECKS, read_limits

    limits = CHECKS if of.limits is None else read_limits(of.limits)
    return inspect(of.folders, limits, of.looks, output / _WORK, terminal.bars)


def _say(inspection: Inspection) -> None:
    """Print the number of episodes by status, and by check and level."""
    counts = ", ".join(f"{inspection.count(status)} {status}" for status in STATUSES)
    console.say(f"{len(inspection.episodes)} episodes: {counts}")
    for note in inspection.notes:
        console.say(f"  {note}")
    levels: dict[str, Counter[str]] = {}
    for episode in inspection.episodes:
        for check, level in {(f.check, f.level) for f in episode.findings if f.level != "note"}:
            levels.setdefault(check, Counter())[level] += 1
    for check, levels_of in sorted(levels.items(), key=lambda item: -item[1].total()):
        console.say(f"  {check}: " + ", ".join(f"{n} {level}" for level, n in levels_of.items()))
    for episode in inspection.episodes:
        if episode.status == "fail":
            first = next(f for f in episode.findings if f.level == "fail")
            name = inspection.datasets[episode.dataset].name
            console.say(f"  fail: {name} episode {episode.number}: {first.text}")
