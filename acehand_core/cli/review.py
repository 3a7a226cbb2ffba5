"""``acehand inspect`` and ``acehand review``: is a batch good enough, and what people decide."""

from __future__ import annotations

import webbrowser
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acehand_core.cli import console
from acehand_core.settings import check_values, like, setting

if TYPE_CHECKING:
    from acehand_core.review.inspect import Inspection

_DATASETS = "LeRobot datasets with hands, or folders of them"
#: In the folder of a review: what was measured, kept for the next time.
_WORK = ".work"


@dataclass(frozen=True, slots=True)
class Inspect:
    """Say which episodes of datasets are good enough, and why others are not."""

    folders: tuple[Path, ...] = setting(..., _DATASETS, metavar="DATASET", positional=True)
    output: Path | None = setting(
        None, "folder of the report", metavar="DIR", default_text="DATASET.review"
    )
    limits: Path | None = setting(
        None, "file of other limits (docs/review.md)", metavar="YAML", default_text="the usual ones"
    )
    looks: int = setting(
        12, "in how many frames of each episode hands are searched for again; 0: in none", low=0
    )
    page: bool = setting(True, "write report.html, not only report.json", pair=True)
    max_rejected: float | None = setting(
        None, "exit code 1 where more than this share of the episodes is rejected", low=0, high=1,
        default_text="no limit", metavar="SHARE",
    )  # fmt: skip
    max_doubtful: float | None = setting(
        None, "exit code 1 where more than this share is doubtful or rejected", low=0, high=1,
        default_text="no limit", metavar="SHARE",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Write the report; the exit code is 1 where a gate is passed."""
        from acehand_core.review.decisions import read_decisions
        from acehand_core.review.inspect import write_json
        from acehand_core.review.page import plotly_bundle, write_report

        if self.page:
            plotly_bundle()  # missing, it would be missed after minutes of work

        output, decided = _places(self.folders, self.output)
        inspection = _inspected(self.folders, output, self.limits, self.looks, terminal)
        report = output / "report.json"
        write_json(inspection, report)
        files = [report]
        if self.page:
            made = read_decisions(decided) if decided.is_file() else {}
            files.append(output / "report.html")
            write_report(inspection, files[-1], _title(self.folders), made, progress=terminal.bars)

        _say(inspection)
        for file in files:
            console.say(str(file))

        total = max(len(inspection.episodes), 1)
        rejected = inspection.count("rejected") / total
        doubtful = rejected + inspection.count("doubtful") / total

        passed = (self.max_rejected is None or rejected <= self.max_rejected) and (
            self.max_doubtful is None or doubtful <= self.max_doubtful
        )
        if not passed:
            console.say(f"the gate is not passed: {rejected:.0%} rejected, "
                        f"{doubtful - rejected:.0%} doubtful")  # fmt: skip
        counts = {status: inspection.count(status)
                  for status in ("accepted", "doubtful", "rejected")}  # fmt: skip
        terminal.print_json({
            "output": str(output), "episodes": len(inspection.episodes), **counts,
            "passed": passed, "files": [str(file) for file in files],
        })  # fmt: skip
        return console.EXIT_OK if passed else console.EXIT_SOME_FAILED


@dataclass(frozen=True, slots=True)
class Review:
    """Look through datasets in a browser on this machine; decisions are saved as they are made."""

    folders: tuple[Path, ...] = setting(..., _DATASETS, metavar="DATASET", positional=True)
    output: Path | None = like(Inspect, "output", None)
    limits: Path | None = like(Inspect, "limits", None)
    looks: int = like(Inspect, "looks", 12)
    port: int = setting(0, "of the page on 127.0.0.1", low=0, high=65535, default_text="a free one")
    browser: bool = setting(True, "open the page", pair=True)

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Inspect, then serve the page until it is interrupted."""
        from acehand_core.review import serve
        from acehand_core.review.page import plotly_bundle

        plotly_bundle()
        output, decided = _places(self.folders, self.output)
        inspection = _inspected(self.folders, output, self.limits, self.looks, terminal)
        _say(inspection)
        review = serve.ReviewServer(inspection, decided, _title(self.folders))
        with serve.server_of(review, self.port) as server:
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            console.say(f"{address}  decisions: {decided}  (Ctrl-C ends it)")
            if self.browser:
                webbrowser.open(address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.say("ended")
        return console.EXIT_OK


def _places(folders: tuple[Path, ...], given: Path | None) -> tuple[Path, Path]:
    """Return the folder of the report and the file of decisions."""
    output = given
    if output is None:
        first = folders[0].resolve()
        output = first.with_name(f"{first.name}.review")
    return output, output / "decisions.json"


def _title(folders: tuple[Path, ...]) -> str:
    return ", ".join(folder.resolve().name for folder in folders)


def _inspected(
    folders: tuple[Path, ...],
    output: Path,
    limits: Path | None,
    looks: int,
    terminal: console.Terminal,
) -> Inspection:
    from acehand_core.review.inspect import inspect
    from retarget.replay.judgements import JUDGEMENTS, read_gates

    chosen = JUDGEMENTS if limits is None else read_gates(limits)
    return inspect(folders, chosen, looks, output / _WORK, terminal.bars)


def _say(inspection: Inspection) -> None:
    """Print the counts, and of each check how many episodes it found."""
    total = len(inspection.episodes)
    console.say(f"{total} episodes: " + ", ".join(
        f"{inspection.count(status)} {status}" for status in ("accepted", "doubtful", "rejected")
    ))  # fmt: skip

    for note in inspection.notes:
        console.say(f"  {note}")
    levels: dict[str, Counter[str]] = {}
    for episode in inspection.episodes:
        for check, level in {(f.check, f.level) for f in episode.findings if f.level != "note"}:
            levels.setdefault(check, Counter())[level] += 1
    for check, counts in sorted(levels.items(), key=lambda item: -sum(item[1].values())):
        console.say(f"  {check}: " + ", ".join(f"{n} {level}" for level, n in counts.items()))
    for episode in inspection.episodes:
        if episode.status == "rejected":
            first = next(f for f in episode.findings if f.level == "rejected")
            name = inspection.datasets[episode.dataset].name
            console.say(f"  rejected: {name} episode {episode.number}: {first.text}")
