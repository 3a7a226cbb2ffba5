"""Evaluations of predictions or a tracker against ground truth.

The JSON of an evaluation (docs/evaluation.md) is checked on reading.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from acehand_core import __version__
from acehand_core.ace.evaluation.inputs import (
    SUFFIX,
    GroundTruth,
    check_prediction,
    find_predictions,
    read_prediction,
)
from acehand_core.ace.evaluation.protocol import HandLibrary, Protocol, picture_size
from acehand_core.ace.evaluation.segment import SegmentScore, score_segment
from acehand_core.ace.evaluation.summary import METRICS, summarise
from acehand_core.ace.evaluation.tracking import (
    ONE_PASS,
    Decoding,
    ScoredTracker,
    suited,
    throughput,
    track_segments,
)
from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError, SchemaError
from acehand_core.motion import HandMotion
from acehand_core.processes import thread_count
from acehand_core.provenance import Provenance
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.types import Progress, no_progress
from acehand_core.user_files import Count, read_json, structured, without_header

FORMAT = "acehand-evaluation"
FORMAT_VERSION = 1
#: Written next to kept predictions: tracker and settings, so that only the same run resumes.
_RUN_RECORD = "made_by.json"

#: A segment's score and its prediction's provenance.
_Scored = tuple[SegmentScore, Provenance]

_Number = float | None
_PLACES = ("wrist_m", "wrist_median_m", "camera_mm", "bearing_deg", "range_error_m", "range_bias_m")
_PLACEMENT = {"count": Count, "emitted": Count} | dict.fromkeys(_PLACES, _Number)
#: Entries of every evaluation.
_NEEDED: dict[str, Any] = {
    "protocol": str,
    "dataset": str,
    "hand_model": str,
    "segments": {"name": str, "sha256": str, "count": Count},
    "method": {"label": str, "trackers": tuple[str, ...], "weights": tuple[str, ...]},
    "metrics": dict.fromkeys(METRICS, _Number),
    "counts": dict.fromkeys(("tp", "fp", "fn", "iv", "oos", "frames"), Count),
}
_OPTIONAL: dict[str, Any] = {
    "anchors": str,
    "pictures": [{"width": Count, "height": Count, "segments": Count}],
    "matched": {"count": Count} | dict.fromkeys(("mpjpe", "pa", "epe", "go", "ct"), _Number),
    "translation_m": {"iv": _Number, "oos": _Number},
    "out_of_sight_placement": _PLACEMENT,
    "in_view_placement": _PLACEMENT,
    "radius": [
        {"from": float, "to": _Number, "count": Count}
        | dict.fromkeys(("share", "mpjpe", "ct"), _Number)
    ],
    "decoded_length": [{"frames": Count, "segments": Count, "mpjpe_p": _Number, "jitter": _Number}],
    "throughput": {"machine": str, "fps": _Number, "hands_per_frame": _Number},
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of scoring.

    Attributes:
        label: name of the method in reports; default its tracker.
        picture: see ``protocol.picture_size``.
    """

    protocol: Protocol = field(default_factory=Protocol)
    library: HandLibrary = field(default_factory=HandLibrary)
    label: str | None = None
    picture: str = "paper"

    def score(
        self, segment: str, motion: HandMotion, target: HandMotion, dataset: str
    ) -> SegmentScore:
        """Return the score of one segment."""
        size = None
        if target.camera is not None:
            size = picture_size(self.picture, dataset, target.camera.width, target.camera.height)
        return score_segment(segment, motion, target, self.library, self.protocol, size)


def evaluate_predictions(
    folder: Path, truth: GroundTruth, options: Options, progress: Progress = no_progress
) -> dict[str, Any]:
    """Return the evaluation of a folder of predictions.

    Raises:
        InputError, SchemaError: see ``inputs.find_predictions`` and ``inputs.read_prediction``.
    """
    files = find_predictions(folder, truth.segments)
    scored: list[_Scored] = []
    models: dict[str, str] = {}
    for done, segment in enumerate(truth.segments):
        progress("scoring", done, len(truth.segments))
        target = truth.truth(segment)
        _one_hand_model(models, segment, target)
        motion = read_prediction(files[segment], target, options.library)
        scored.append((options.score(segment, motion, target, truth.dataset), motion.provenance))
    progress("scoring", len(scored), len(scored))
    return _result(scored, next(iter(models)), truth, options)


def evaluate_tracker(
    tracker: ScoredTracker,
    truth: GroundTruth,
    options: Options,
    settings: Mapping[str, Any],
    decoding: Decoding = ONE_PASS,
    keep: Path | None = None,
    timing_passes: int = 0,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Return the evaluation of a tracker on the ground truth's recordings.

    Args:
        settings: of the tracker, to recognise kept predictions.
        decoding: see ``tracking.Decoding``; defaults in ``tracking.suited``.
        keep: folder for predictions; an interrupted run resumes from them.
        timing_passes: passes to time on the first segment, 0 for none.

    Raises:
        InputError: ``keep`` holds predictions of another tracker, setting or list of segments.
    """
    decoding = suited(tracker, truth, decoding)
    kept: dict[str, Path] = {}
    if keep is not None:
        _claim(keep, {
            "tracker": tracker.name, "settings": dict(settings), "version": __version__,
            "segments": dict(truth.summary), "decoding": asdict(decoding),
        })  # fmt: skip
        kept = {segment: keep / f"{segment}{SUFFIX}" for segment in truth.segments}
    missing = [s for s in truth.segments if s not in kept or not kept[s].is_file()]
    models: dict[str, str] = {}
    for segment in truth.segments:
        _one_hand_model(models, segment, truth.truth(segment))

    done: dict[str, _Scored] = {}

    def score(segment: str, motion: HandMotion, target: HandMotion) -> None:
        done[segment] = options.score(segment, motion, target, truth.dataset), motion.provenance
        progress("tracking", len(done), len(truth.segments))

    progress("tracking", 0, len(truth.segments))
    for segment in truth.segments:
        if segment not in missing:
            target = truth.truth(segment)
            score(segment, read_prediction(kept[segment], target, options.library), target)
    for segment, motion in track_segments(tracker, truth, missing, decoding):
        target = truth.truth(segment)
        check_prediction(motion, target, f"{tracker.name}: {segment}", options.library)
        if segment in kept:
            write_hand_motion(motion, kept[segment])
        score(segment, motion, target)

    scored = [done[segment] for segment in truth.segments]
    result = _result(scored, next(iter(models)), truth, options)
    if timing_passes:
        progress("timing", 0, 1)
        timed = throughput(tracker, truth, truth.segments[0], timing_passes)
        machine = f"{thread_count()} cores, {platform.machine()}"
        result["throughput"] = timed | {"machine": machine}
        progress("timing", 1, 1)
    return result


def write_evaluation(value: Mapping[str, Any], path: Path, overwrite: bool = False) -> None:
    """Write an evaluation atomically. Raises OutputError."""
    with atomic_path(path, overwrite) as partial:
        partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return an evaluation written by ``write_evaluation``.

    Raises:
        InputError: unreadable. SchemaError: not an evaluation, or with a malformed entry.
    """
    value = read_json(path)
    given = without_header(value, FORMAT, FORMAT_VERSION, str(path))
    optional = {name: form for name, form in _OPTIONAL.items() if given.get(name) is not None}
    structured(_NEEDED | optional, given, path)
    return value


def _one_hand_model(first_of: dict[str, str], segment: str, target: HandMotion) -> None:
    """Note a segment's hand model: misses are charged with it, so all segments share one."""
    first_of.setdefault(target.hand_model, segment)
    if len(first_of) > 1:
        (model, first), (other, second) = first_of.items()
        raise SchemaError(
            f"{second}: the hand model of the ground truth is {other!r}, that of {first} is "
            f"{model!r}; all segments need the same one. Score them apart, with `segments`, or "
            "convert again with MANO files."
        )


def _result(
    scored: Sequence[_Scored], model: str, truth: GroundTruth, options: Options
) -> dict[str, Any]:
    origins = [provenance for _, provenance in scored]
    trackers = sorted({origin.tracker for origin in origins})
    weights = sorted({str(origin.weights) for origin in origins if origin.weights is not None})
    sizes = [origin.settings.get("encode_size") for origin in origins]
    encoded = sorted({tuple(size) for size in sizes if isinstance(size, list | tuple)})
    summary = summarise([score for score, _ in scored], options.protocol, truth.summary, model)

    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "dataset": truth.dataset,
        "method": {
            "label": options.label or " + ".join(trackers),
            "trackers": trackers,
            "weights": weights,
            "encode_sizes": [list(size) for size in encoded],
            "acehand": __version__,
        },
        **summary,
    }


def _claim(folder: Path, run: Mapping[str, Any]) -> None:
    """Record the run in a folder of predictions, or check that it is the recorded one."""
    path = folder / _RUN_RECORD
    text = json.dumps(run, indent=1, sort_keys=True, default=str) + "\n"
    if path.is_file():
        if path.read_text("utf-8") != text:
            raise InputError(
                f"{folder}: holds predictions of another tracker, setting or list of segments "
                f"(see {_RUN_RECORD}); choose another folder."
            )
        return

    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: not empty and without {_RUN_RECORD}; choose another folder.")
    with atomic_path(path) as partial:
        partial.write_text(text, "utf-8")
