"""Evaluations from folders: predictions or a tracker against ground truth.

The form of an evaluation's JSON (docs/evaluation.md) is checked where it is read back.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Mapping
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
from acehand_core.atomic import atomic_path, output_errors
from acehand_core.errors import InputError, SchemaError
from acehand_core.motion import HandMotion
from acehand_core.processes import thread_count
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.types import Progress

FORMAT = "acehand-evaluation"
FORMAT_VERSION = 1
#: Beside kept predictions: what made them, so that a second run knows whether they are its own.
_MADE_BY = "made_by.json"


def silent(stage: str, done: int, total: int) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to score.

    Attributes:
        label: names the method in reports; without one its tracker does.
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
    folder: Path, truth: GroundTruth, options: Options, progress: Progress = silent
) -> dict[str, Any]:
    """Return the evaluation of a folder of predictions.

    Raises:
        InputError, SchemaError: see ``predictions``; nothing is scored unless every file is sound
            up to there.
    """
    files = find_predictions(folder, truth.segments)
    scores, motions = [], []
    models: dict[str, str] = {}
    for done, segment in enumerate(truth.segments):
        progress("scoring", done, len(truth.segments))
        target = truth.truth(segment)
        _one_hand_model(models, segment, target)
        motion = read_prediction(files[segment], target, options.library)
        scores.append(options.score(segment, motion, target, truth.dataset))
        motions.append(_made_by(motion))
    progress("scoring", len(scores), len(scores))
    return _result(scores, motions, next(iter(models)), truth, options)


def evaluate_tracker(
    tracker: ScoredTracker,
    truth: GroundTruth,
    options: Options,
    settings: Mapping[str, Any],
    decoding: Decoding = ONE_PASS,
    keep: Path | None = None,
    timing_passes: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Return the evaluation of a tracker that runs over the ground truth's recordings.

    Args:
        settings: of the tracker; kept predictions are recognised by them, among others.
        decoding: see ``tracking.Decoding``, and ``tracking.suited`` for what is done by default.
        keep: folder for predictions; those of an interrupted run of the same kind are taken from
            there.
        timing_passes: passes to time on the first segment, 0 for none.

    Raises:
        InputError: ``keep`` holds what another tracker, setting or list of segments made.
    """
    decoding = suited(tracker, truth, decoding)
    made_by = {"tracker": tracker.name, "settings": dict(settings), "version": __version__,
               "segments": dict(truth.summary), "decoding": asdict(decoding)}  # fmt: skip
    if keep is not None:
        _claim(keep, made_by)
    kept = {} if keep is None else {s: keep / f"{s}{SUFFIX}" for s in truth.segments}
    missing = [s for s in truth.segments if s not in kept or not kept[s].is_file()]
    models: dict[str, str] = {}
    for segment in truth.segments:
        _one_hand_model(models, segment, truth.truth(segment))

    done: dict[str, tuple[SegmentScore, MadeBy]] = {}

    def score(segment: str, motion: HandMotion, target: HandMotion) -> None:
        done[segment] = options.score(segment, motion, target, truth.dataset), _made_by(motion)
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

    scores = [done[segment][0] for segment in truth.segments]
    motions = [done[segment][1] for segment in truth.segments]
    result = _result(scores, motions, next(iter(models)), truth, options)
    if timing_passes:
        progress("timing", 0, 1)
        timed = throughput(tracker, truth, truth.segments[0], timing_passes)
        result["throughput"] = timed | {"machine": machine()}
        progress("timing", 1, 1)
    return result


def machine() -> str:
    """Return the class of this machine, for measured times."""
    return f"{thread_count()} cores, {platform.machine()}"


def write_evaluation(value: Mapping[str, Any], path: Path, overwrite: bool = False) -> None:
    """Write an evaluation; the file appears whole or not at all. Raises OutputError."""
    with atomic_path(path, overwrite) as partial:
        partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return an evaluation that ``write_evaluation`` wrote.

    Raises:
        InputError: the file cannot be read. SchemaError: it is not an evaluation, or an entry of
            it is damaged; the entry is named.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: not JSON ({error}).") from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise SchemaError(f"{path}: not an evaluation of acehand (format {FORMAT!r} is needed).")
    if value.get("version") != FORMAT_VERSION:
        raise SchemaError(f"{path}: version {value.get('version')!r}; {FORMAT_VERSION} is needed.")
    check_evaluation(value, str(path))
    return value


def _one_hand_model(first_of: dict[str, str], segment: str, target: HandMotion) -> None:
    """Note a segment's hand model; misses are charged with its hand, so there can be only one."""
    first_of.setdefault(target.hand_model, segment)
    if len(first_of) > 1:
        (model, first), (other, second) = first_of.items()
        raise SchemaError(
            f"{second}: the hand model of the ground truth is {other!r}, that of {first} is "
            f"{model!r}; all segments need the same one. Score them apart, with --segments, or "
            "convert again with MANO files."
        )


#: Tracker, weights, and the size of picture that a network saw; None where there is none.
MadeBy = tuple[str, str | None, tuple[int, ...] | None]


def _made_by(motion: HandMotion) -> MadeBy:
    provenance = motion.provenance
    size = provenance.settings.get("encode_size")
    return (
        provenance.tracker,
        provenance.weights,
        tuple(size) if isinstance(size, list | tuple) else None,
    )


def _result(
    scores: list[SegmentScore],
    motions: list[MadeBy],
    model: str,
    truth: GroundTruth,
    options: Options,
) -> dict[str, Any]:
    trackers = sorted({name for name, _, _ in motions})
    weights = sorted({str(w) for _, w, _ in motions if w is not None})
    sizes = sorted({size for _, _, size in motions if size is not None})
    summary = summarise(scores, options.protocol, truth.summary, model)

    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "dataset": truth.dataset,
        "method": {
            "label": options.label or " + ".join(trackers),
            "trackers": trackers,
            "weights": weights,
            "encode_sizes": [list(size) for size in sizes],
            "acehand": __version__,
        },
        **summary,
    }


def _claim(folder: Path, made_by: Mapping[str, Any]) -> None:
    """Record in a folder what its predictions are made by, or check what it records."""
    path = folder / _MADE_BY
    text = json.dumps(made_by, indent=1, sort_keys=True, default=str) + "\n"
    if path.is_file():
        if path.read_text("utf-8") != text:
            raise InputError(
                f"{folder}: holds predictions of another tracker, setting or list of segments "
                f"(see {_MADE_BY}); choose another folder."
            )
        return

    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty and does not say what made it; choose another.")
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        partial.write_text(text, "utf-8")


#: Returns what is needed instead, or None where the value will do.
Check = Callable[[Any], str | None]


def _finite(value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return None if number and math.isfinite(value) else "a number"


def _number(value: Any) -> str | None:
    return "a number or null" if value is not None and _finite(value) else None


def _count(value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if whole else "a whole number, 0 or more"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


def _texts(value: Any) -> str | None:
    listed = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return None if listed else "a list of texts"


_COUNTS = dict.fromkeys(("tp", "fp", "fn", "iv", "oos"), _count)
_PLACES = ("wrist_m", "wrist_median_m", "camera_mm", "bearing_deg", "range_error_m", "range_bias_m")
_PLACEMENT = {"count": _count, "emitted": _count} | dict.fromkeys(_PLACES, _number)
#: What every evaluation has. A dict is an object with at least these entries.
_NEEDED: dict[str, Any] = {
    "protocol": _text,
    "dataset": _text,
    "hand_model": _text,
    "segments": {"name": _text, "sha256": _text, "count": _count},
    "method": {"label": _text, "trackers": _texts, "weights": _texts},
    "metrics": {name: _number for name, _, _ in METRICS},
    "counts": _COUNTS | {"frames": _count},
}
#: What it may have. A list of one dict is a list of any number of such objects.
_FURTHER: dict[str, Any] = {
    "anchors": _text,
    "pictures": [{"width": _count, "height": _count, "segments": _count}],
    "matched": {"count": _count} | dict.fromkeys(("mpjpe", "pa", "epe", "go", "ct"), _number),
    "translation_m": {"iv": _number, "oos": _number},
    "out_of_sight_placement": _PLACEMENT,
    "in_view_placement": _PLACEMENT,
    "radius": [
        {"from": _finite, "to": _number, "count": _count}
        | dict.fromkeys(("share", "mpjpe", "ct"), _number)
    ],
    "decoded_length": [
        {"frames": _count, "segments": _count, "mpjpe_p": _number, "jitter": _number}
    ],
    "throughput": {"machine": _text, "fps": _number, "hands_per_frame": _number},
}


def check_evaluation(value: Mapping[str, Any], where: str) -> None:
    """Raise SchemaError, naming ``where`` and the entry, unless tables can be made of it."""
    for name, form in _NEEDED.items():
        if name not in value:
            raise SchemaError(f"{where}: {name!r} is missing.")
        _check(value[name], form, name, where)
    for name, form in _FURTHER.items():
        if value.get(name) is not None:
            _check(value[name], form, name, where)


def _check(value: Any, form: Any, name: str, where: str) -> None:
    if isinstance(form, list):
        if not isinstance(value, list):
            _refuse(value, name, "a list", where)
        for number, entry in enumerate(value):
            _check(entry, form[0], f"{name}[{number}]", where)
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            _refuse(value, name, "an object", where)
        for key, inner in form.items():
            if key not in value:
                raise SchemaError(f"{where}: '{name}.{key}' is missing.")
            _check(value[key], inner, f"{name}.{key}", where)
    elif needed := form(value):
        _refuse(value, name, needed, where)


def _refuse(value: Any, name: str, needed: str, where: str) -> None:
    raise SchemaError(f"{where}: {name!r} is {str(value)[:60]!r}; {needed} is needed.")
