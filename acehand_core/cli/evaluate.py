"""``acehand evaluate``: scores of predictions or a tracker, and importing predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acehand_core.cli import console
from acehand_core.cli.ace import usable_weights
from acehand_core.cli.console import OVERWRITE
from acehand_core.errors import InputError
from acehand_core.pipeline.settings import JobSettings
from acehand_core.progress import Bars
from acehand_core.settings import check_values, group, leaves, like, setting
from acehand_core.trackers.ace_settings import AceSettings
from acehand_core.types import Hands, Quality, TurnsMode

if TYPE_CHECKING:
    from acehand_core.evaluation.inputs import GroundTruth

#: Of the table for people: key, heading, digits.
_SHOWN = (
    ("facc", "FAcc", 3), ("recall", "Recall", 3), ("f1", "F1", 3), ("mpjpe_p", "MPJPE-p mm", 2),
    ("pa_p", "PA-p mm", 2), ("epe_p", "EPE2D-p px", 2), ("go_p", "GO-p deg", 2),
    ("ct_p", "CT-p m", 3), ("jitter", "Jitter mm/f2", 2), ("mpjpe_iv", "MPJPE in view mm", 2),
    ("mpjpe_oos", "MPJPE-OOS mm", 2), ("mpjpe_plus_oos", "MPJPE+OOS mm", 2),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Truth:
    """Where the true hands are."""

    ground_truth: Path | None = setting(
        None, "store of clips, or folder of one HandMotion table per segment", metavar="DIR"
    )
    segments: Path | None = setting(None, "list of segments", metavar="FILE")
    segment_length: int = setting(81, "without --segments: frames of a segment")
    mano: Path | None = setting(None, "your MANO", default_text="$ACEHAND_MANO")

    def open(self) -> GroundTruth:
        """Open it. Raises InputError."""
        from acehand_core.evaluation.inputs import open_ground_truth

        if self.ground_truth is None:
            raise InputError("--ground-truth DIR is needed.")
        return open_ground_truth(self.ground_truth, self.segments, self.segment_length)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Score predictions or a tracker by the paper's protocol.

    `acehand evaluate import METHOD DIR` turns another method's output into predictions.
    """

    predictions: Path | None = setting(None, "one HandMotion table per segment", metavar="DIR")
    tracker: str | None = setting(None, "run this tracker, or do-nothing", metavar="NAME")
    anchors: Literal["auto", "own", "reprojected"] = setting("auto", "2D joints that EPE scores")
    picture_size: str = setting(
        "paper",
        "pixels that EPE counts: paper (its size for its datasets), stored, or WxH",
        metavar="SIZE",
    )
    label: str | None = setting(None, "name of the method in reports")
    output: Path | None = setting(None, "write the JSON there too", metavar="FILE")
    overwrite: bool = setting(False, OVERWRITE)
    truth: Truth = group(Truth, "ground truth")
    keep: Path | None = setting(
        None,
        "with --tracker: keep predictions there; the same command again resumes from them",
        metavar="DIR",
    )
    decode_frames: int | None = setting(
        None,
        "frames that the tracker sees at once, 0 for the whole recording (the segment's; with "
        "--windows the recording is cut as in any other run)",
    )
    time: int = setting(0, "time N passes over the first segment", low=0)
    hands: Hands = like(JobSettings, "hands", "both", "which hands to look for")
    hand_length_m: float | None = like(JobSettings, "hand_length_m", None)
    camera_motion: TurnsMode = like(JobSettings, "camera_motion", "rotation")
    quality: Quality = like(JobSettings, "quality", "balanced")
    ace: AceSettings = group(AceSettings, "tracker ace")

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Score and report."""
        from acehand_core.atomic import check_free
        from acehand_core.evaluation.protocol import HandLibrary, Protocol, picture_size
        from acehand_core.evaluation.run import Options, evaluate_predictions, write_evaluation

        if (self.predictions is None) == (self.tracker is None):
            raise InputError("give either --predictions DIR or --tracker NAME.")
        if self.tracker is None:
            self._check_no_tracker_flags()
        if self.output is not None:
            check_free(self.output, self.overwrite)
        protocol = Protocol(anchors=self.anchors)
        library = HandLibrary(self.truth.mano)
        options = Options(protocol, library, self.label, self.picture_size)
        picture_size(options.picture, "", 1, 1)  # refused before any work
        truth = self.truth.open()
        if self.predictions is not None:
            result = evaluate_predictions(self.predictions, truth, options, terminal.bars)
        elif self.tracker is not None:
            result = self._track(self.tracker, truth, options, terminal.bars)
        if self.output is not None:
            write_evaluation(result, self.output, self.overwrite)
            console.say(str(self.output))
        _say(result)
        terminal.print_json(result)
        return console.EXIT_OK

    def _check_no_tracker_flags(self) -> None:
        """Raise InputError for a flag of trackers that says something else than its default."""
        of_trackers = {
            "keep", "decode_frames", "time", "hands", "hand_length_m", "camera_motion",
            "quality", "ace",
        }  # fmt: skip
        for leaf in leaves(Evaluate):
            if leaf.path[0] in of_trackers and leaf.value(self) != leaf.default:
                raise InputError(
                    f"{leaf.spelled} is for --tracker; predictions are scored as they are."
                )

    def _track(self, tracker: str, truth: GroundTruth, options: Any, bars: Bars) -> dict[str, Any]:
        from acehand_core.evaluation.protocol import PAPER_WIDTHS
        from acehand_core.evaluation.run import evaluate_tracker
        from acehand_core.evaluation.tracking import Decoding, DoNothing
        from acehand_core.trackers.base import TrackerSettings, make_tracker

        chosen = usable_weights(self.ace, tracker)
        if chosen.weights is not None:
            # The second scoring pass takes whatever a slot holds, present or not. Labels are of the
            # dataset's own frames.
            rate = chosen.read_rate or "source"
            chosen = replace(chosen, every_slot=True, read_rate=rate)
            width = PAPER_WIDTHS.get(truth.dataset)
            if width and chosen.encode_width is None and chosen.trained().encode_width is None:
                chosen = replace(chosen, encode_width=str(width))
        settings = TrackerSettings(
            hands=self.hands,
            hand_length_m=self.hand_length_m,
            ace=chosen.if_weights,
            camera_motion=self.camera_motion,
            quality=self.quality,
        )
        made = DoNothing() if tracker == DoNothing.name else make_tracker(tracker, settings)
        decoding = Decoding(self.decode_frames, in_windows=self.ace.windows is not None)
        used = {
            "hands": settings.hands,
            "hand_length_m": settings.hand_length_m,
            "camera_motion": settings.camera_motion,
            "quality": settings.quality,
            "ace": settings.ace,
        }
        return evaluate_tracker(
            made, truth, options, used, decoding, self.keep, self.time, bars,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Import:
    """Turn another method's output into predictions."""

    method: str = setting(
        ..., "see docs/evaluation.md, or 'list'", metavar="METHOD", positional=True
    )
    source: Path | None = setting(None, "the method's output", metavar="DIR", positional=True)
    truth: Truth = group(Truth, "ground truth")
    output: Path | None = setting(None, "folder of predictions", metavar="DIR")
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        """Import them, or list the methods."""
        from acehand_core.evaluation.importing import METHODS, import_predictions
        from acehand_core.evaluation.protocol import HandLibrary

        if self.method == "list":
            for name, method in METHODS.items():
                console.say(f"{name}: {method.about}")
            terminal.print_json({"methods": {n: m.about for n, m in METHODS.items()}})
            return console.EXIT_OK
        if self.source is None or self.output is None:
            raise InputError("DIR, the method's output, and --output DIR are needed.")
        truth = self.truth.open()
        report = import_predictions(
            self.method, self.source, truth, self.output,
            HandLibrary(self.truth.mano), self.overwrite, terminal.bars,
        )  # fmt: skip
        console.say(f"{self.output}: {report['segments']} predictions")
        for note in report["notes"]:
            console.say(f"  {note}")
        terminal.print_json(report)
        return console.EXIT_OK


def _say(result: dict[str, Any]) -> None:
    segments, counts = result["segments"], result["counts"]
    console.say(
        f"{result['method']['label']} on {segments['name']} ({segments['count']} segments, "
        f"{counts['frames']} frames, list sha256 {segments['sha256'][:12]})"
    )
    for key, heading, digits in _SHOWN:
        value = result["metrics"][key]
        console.say(f"  {heading:17} {'n/a' if value is None else f'{value:.{digits}f}'}")
