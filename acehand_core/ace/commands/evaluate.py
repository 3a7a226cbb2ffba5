"""``acehand evaluate``: scores of predictions or a tracker, lists of segments, reports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acehand_core.ace.settings import AceSettings
from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE, Bars
from acehand_core.errors import InputError
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import check_values, group, leaves, like, setting
from acehand_core.trackers.base import TrackerSettings
from acehand_core.types import Hands

if TYPE_CHECKING:
    from acehand_core.ace.evaluation.inputs import GroundTruth


@dataclass(frozen=True, slots=True)
class Truth:
    """Ground truth and its segments."""

    ground_truth: Path | None = setting(
        None,
        "store of clips, or folder with a HandMotion table per segment",
        metavar="DIR",
        common=True,
    )
    segments: Path | None = setting(None, "list of segments", metavar="FILE", common=True)
    segment_length: int = setting(81, "without `segments`: frames of a segment")
    segment_stride: int | None = setting(
        None, "frames from one segment to the next", default_text="no overlap"
    )
    segment_count: int | None = setting(None, "number to draw", default_text="all")
    segment_seed: int = setting(0, "of the draw")
    write_segments: Path | None = setting(None, "write the list of segments", metavar="FILE")
    mano: Path | None = setting(None, "your MANO", default_text="$ACEHAND_MANO")

    def open(self) -> GroundTruth:
        """Return the ground truth. Raises InputError."""
        from acehand_core.ace.evaluation.inputs import open_ground_truth

        if self.ground_truth is None:
            raise InputError("`ground_truth=DIR` is needed.")
        return open_ground_truth(
            self.ground_truth, self.segments, length=self.segment_length,
            stride=self.segment_stride, count=self.segment_count, seed=self.segment_seed,
        )  # fmt: skip

    def write_list(self, truth: GroundTruth, path: Path, overwrite: bool) -> dict[str, Any]:
        """Write the list of segments; return its summary. Raises InputError, OutputError."""
        from acehand_core.ace.evaluation.inputs import StoreTruth
        from acehand_core.ace.labelled.segments import write_segments

        if not isinstance(truth, StoreTruth):
            raise InputError("`write_segments` needs a store of clips.")
        write_segments(truth.listed, path, overwrite)
        made = truth.listed.summary()
        console.say(
            f"{path}: {made['count']} segments of {made['frames']} frames, {made['name']} "
            f"{made['sha256'][:12]}"
        )
        return {**made, "output": str(path)}


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score predictions or a tracker by the paper's protocol.

    `method` reads another method's output. `report` makes tables of evaluations with the paper's
    numbers.
    """

    evaluations: tuple[Path, ...] = setting(
        (), "for `report`: JSON of `output`", metavar="FILE", positional=True
    )
    predictions: Path | None = setting(None, "one HandMotion table per segment", metavar="DIR")
    method: str | None = setting(
        None, "the predictions are this method's output (docs/evaluation.md)", metavar="NAME"
    )
    tracker: str | None = setting(None, "tracker to run, or do-nothing", metavar="NAME")
    anchors: Literal["auto", "own", "reprojected"] = setting("auto", "2D joints that EPE scores")
    picture_size: str = setting(
        "paper", "size for EPE in pixels: paper, stored, or WxH", metavar="SIZE"
    )
    label: str | None = setting(None, "name of the method in reports")
    output: Path | None = setting(None, "JSON file to write", metavar="FILE")
    overwrite: bool = setting(False, OVERWRITE)
    truth: Truth = group(Truth, "ground truth")
    keep: Path | None = setting(
        None, "keep predictions, from which `tracker` resumes", metavar="DIR"
    )
    decode_frames: int | None = setting(
        None, "frames in one pass, 0 for the whole recording", default_text="the segment's"
    )
    time: int = setting(0, "passes over the first segment to time", low=0)
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    tracking: TrackerSettings = group(TrackerSettings, "tracking")
    report: Path | None = setting(None, "folder for report.md and report.json", metavar="DIR")
    row: tuple[tuple[str, str, str], ...] = setting(
        (),
        "for `report`: a row of a study: features, decoder, tap or sigma",
        metavar="STUDY LABEL FILE",
        repeat=True,
    )

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Score and report."""
        from acehand_core.ace.evaluation.importing import import_predictions
        from acehand_core.ace.evaluation.protocol import HandLibrary, Protocol, picture_size
        from acehand_core.ace.evaluation.run import Options, evaluate_predictions, write_evaluation
        from acehand_core.ace.evaluation.tables import COLUMNS
        from acehand_core.atomic import check_free

        if self.report is not None:
            if self.predictions is not None or self.tracker is not None:
                raise InputError("`report` needs files of evaluations, not predictions to score.")
            return _report(self.report, self.evaluations, self.row, self.overwrite, terminal)
        if self.evaluations or self.row:
            raise InputError("evaluations and `row` are for `report=DIR`.")
        only_list = self.truth.write_segments is not None and not (self.predictions or self.tracker)
        if not only_list and (self.predictions is None) == (self.tracker is None):
            raise InputError("give either `predictions=DIR` or `tracker=NAME`.")
        if self.method is not None and self.predictions is None:
            raise InputError("`method` is for `predictions=DIR`, the method's output.")
        if self.tracker is None:
            self._check_no_tracker_flags()
        if self.output is not None:
            check_free(self.output, self.overwrite)
        protocol = Protocol(anchors=self.anchors)
        library = HandLibrary(self.truth.mano)
        options = Options(protocol, library, self.label, self.picture_size)
        picture_size(options.picture, "", 1, 1)  # refused before any work
        truth = self.truth.open()
        if self.truth.write_segments is not None:
            listed = self.truth.write_list(truth, self.truth.write_segments, self.overwrite)
            if only_list:
                terminal.print_json(listed)
                return console.EXIT_OK
        if self.tracker is not None:
            result = self._track(self.tracker, truth, options, terminal.bars)
        elif self.predictions is not None:
            with tempfile.TemporaryDirectory() as made:
                folder = self.predictions
                if self.method is not None:
                    folder = self.keep or Path(made)
                    report = import_predictions(
                        self.method, self.predictions, truth, folder, library, self.overwrite,
                        terminal.bars,
                    )  # fmt: skip
                    console.say(f"{self.method}: {report['segments']} predictions")
                    for note in report["notes"]:
                        console.say(f"  {note}")
                result = evaluate_predictions(folder, truth, options, terminal.bars)
        if self.output is not None:
            write_evaluation(result, self.output, self.overwrite)
            console.say(str(self.output))

        segments, counts = result["segments"], result["counts"]
        console.say(
            f"{result['method']['label']} on {segments['name']} ({segments['count']} segments, "
            f"{counts['frames']} frames, list sha256 {segments['sha256'][:12]})"
        )
        for key, value in result["metrics"].items():
            console.say(f"  {COLUMNS[key][0]:17} {'n/a' if value is None else f'{value:.3f}'}")
        terminal.print_json(result)
        return console.EXIT_OK

    def _check_no_tracker_flags(self) -> None:
        """Raise InputError for a given flag of trackers."""
        of_trackers = {"decode_frames", "time", "hands", "tracking"}
        if self.method is None:
            of_trackers.add("keep")
        for leaf in leaves(Evaluate):
            if leaf.path[0] in of_trackers and leaf.value(self) != leaf.default:
                raise InputError(f"`{leaf.parameter}` is for `tracker`, not for predictions.")

    def _track(self, tracker: str, truth: GroundTruth, options: Any, bars: Bars) -> dict[str, Any]:
        from acehand_core.ace.evaluation.protocol import PAPER_WIDTHS
        from acehand_core.ace.evaluation.run import evaluate_tracker
        from acehand_core.ace.evaluation.tracking import Decoding, DoNothing
        from acehand_core.trackers.base import make_tracker

        settings = replace(self.tracking, hands=self.hands).with_environment(tracker, bars)
        ace: AceSettings = settings.own["ace"]
        if ace.weights is not None:
            # The second scoring pass needs every slot; labels are of the source's frames.
            ace = replace(ace, every_slot=True, read_rate=ace.read_rate or "source")
            width = PAPER_WIDTHS.get(truth.dataset)
            if width and ace.run_as.applied_to(ace.trained())[0].encode_width is None:
                ace = replace(ace, run_as=replace(ace.run_as, encode_width=width))
            settings = replace(settings, own={**settings.own, "ace": ace})
        made = DoNothing() if tracker == DoNothing.name else make_tracker(tracker, settings)
        decoding = Decoding(self.decode_frames, in_windows=ace.windows is not None)
        used = asdict(settings)
        return evaluate_tracker(made, truth, options, used, decoding, self.keep, self.time, bars)


def _report(
    output: Path,
    evaluations: Sequence[Path],
    rows: Sequence[tuple[str, str, str]],
    overwrite: bool,
    terminal: console.Terminal,
) -> int:
    """Write report.md, and its tables as report.json."""
    from acehand_core.ace.evaluation.run import read_evaluation
    from acehand_core.ace.evaluation.tables import (
        TableEntry,
        build_tables,
        check_study,
        differences,
        markdown,
    )
    from acehand_core.atomic import atomic_path, check_free

    entries = [TableEntry(path.name, read_evaluation(path)) for path in evaluations]
    for study, label, file in rows:
        path = Path(file)
        entries.append(TableEntry(path.name, read_evaluation(path), check_study(study), label))
    files = [output / "report.md", output / "report.json"]
    for path in files:
        check_free(path, overwrite)

    tables = build_tables(entries)
    for entry in entries:
        for other in differences(entry):
            console.say(f"warning: {entry.file} does not compare with the quoted rows: {other}")
    data = json.dumps([asdict(table) for table in tables], indent=1) + "\n"
    for path, text in zip(files, (markdown(tables, entries), data), strict=True):
        with atomic_path(path, overwrite) as partial:
            partial.write_text(text, "utf-8")
        console.say(str(path))

    own = sum(not row.quoted for t in tables for block in t.blocks.values() for row in block)
    terminal.print_json({"files": [str(path) for path in files], "rows": own})
    return console.EXIT_OK
