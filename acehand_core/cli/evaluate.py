"""``acehand evaluate``: scores of predictions or a tracker, and importing predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acehand_core.cli import ace, console
from acehand_core.cli.retarget import add_hand_length_argument

if TYPE_CHECKING:
    from acehand_core.evaluation.inputs import GroundTruth

#: Of the table for people: key, heading, digits.
_SHOWN = (
    ("facc", "FAcc", 3), ("recall", "Recall", 3), ("f1", "F1", 3), ("mpjpe_p", "MPJPE-p mm", 2),
    ("pa_p", "PA-p mm", 2), ("epe_p", "EPE2D-p px", 2), ("go_p", "GO-p deg", 2),
    ("ct_p", "CT-p m", 3), ("jitter", "Jitter mm/f2", 2), ("mpjpe_iv", "MPJPE in view mm", 2),
    ("mpjpe_oos", "MPJPE-OOS mm", 2), ("mpjpe_plus_oos", "MPJPE+OOS mm", 2),
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``acehand evaluate`` and the action ``import``."""
    source = parser.add_argument_group("what is scored")
    source.add_argument(
        "--predictions", type=Path, metavar="DIR", help="one HandMotion table per segment"
    )
    source.add_argument("--tracker", metavar="NAME", help="run this tracker, or do-nothing")
    _add_ground_truth(parser, required=False)
    parser.add_argument("--protocol", default="paper", metavar="NAME")
    parser.add_argument(
        "--anchors", choices=("auto", "own", "reprojected"), default="auto",
        help="2D joints that EPE scores (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--picture-size", default="paper", metavar="SIZE",
        help="pixels that EPE counts: paper (its size for its datasets), stored, or WxH "
        "(%(default)s)",
    )  # fmt: skip
    parser.add_argument("--label", metavar="TEXT", help="name of the method in reports")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the JSON there too")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    _add_tracker(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    text = "turn another method's output into predictions"
    action = actions.add_parser("import", help=text, description=text[0].upper() + text[1:] + ".")
    _add_import(action)


def _add_tracker(parser: argparse.ArgumentParser) -> None:
    """Add what only a tracker takes."""
    group = parser.add_argument_group("with --tracker")
    group.add_argument(
        "--keep", type=Path, metavar="DIR",
        help="keep predictions there; the same command again resumes from them",
    )  # fmt: skip
    group.add_argument(
        "--decode-frames",
        type=int,
        metavar="N",
        help="frames that the tracker sees at once, 0 for the whole recording (the segment's; "
        "with --windows the recording is cut as in any other run)",
    )
    group.add_argument(
        "--time", type=int, default=0, metavar="N", help="time N passes over the first segment"
    )
    group.add_argument("--hands", choices=("both", "left", "right"), default="both")
    add_hand_length_argument(parser)
    ace.add_ace_arguments(parser)


def _add_ground_truth(parser: argparse.ArgumentParser, required: bool) -> None:
    group = parser.add_argument_group("ground truth")
    group.add_argument(
        "--ground-truth", type=Path, metavar="DIR", required=required,
        help="store of clips, or folder of one HandMotion table per segment",
    )  # fmt: skip
    group.add_argument("--segments", type=Path, metavar="FILE", help="list of segments")
    group.add_argument(
        "--segment-length",
        type=int,
        default=81,
        metavar="N",
        help="without --segments: frames of a segment (%(default)s)",
    )
    group.add_argument("--mano", type=Path, metavar="PATH", help="your MANO ($ACEHAND_MANO)")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD", help="see docs/evaluation.md, or 'list'")
    parser.add_argument("source", nargs="?", type=Path, metavar="DIR", help="the method's output")
    _add_ground_truth(parser, required=False)
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of predictions")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    # Suppressed defaults leave alone what stood before the action's name.
    for flags in (("--json",), ("-v", "--verbose"), ("-q", "--quiet")):
        parser.add_argument(*flags, action="store_true", default=argparse.SUPPRESS)


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run ``acehand evaluate`` or its action."""
    if arguments.action == "import":
        return _import(arguments, bars)
    return _evaluate(arguments, bars)


def _ground_truth(arguments: argparse.Namespace) -> GroundTruth:
    from acehand_core.errors import InputError
    from acehand_core.evaluation.inputs import open_ground_truth

    if arguments.ground_truth is None:
        raise InputError("--ground-truth DIR is needed.")
    return open_ground_truth(arguments.ground_truth, arguments.segments, arguments.segment_length)


def _evaluate(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from dataclasses import replace

    from acehand_core.atomic import check_free
    from acehand_core.errors import InputError
    from acehand_core.evaluation.protocol import HandLibrary, picture_size, protocol_named
    from acehand_core.evaluation.run import Options, evaluate_predictions, write_evaluation

    if (arguments.predictions is None) == (arguments.tracker is None):
        raise InputError("give either --predictions DIR or --tracker NAME.")
    if arguments.tracker is None:
        _check_no_tracker_flags(arguments)
    if arguments.output is not None:
        check_free(arguments.output, arguments.overwrite)
    protocol = replace(protocol_named(arguments.protocol), anchors=arguments.anchors)
    library = HandLibrary(arguments.mano)
    options = Options(protocol, library, arguments.label, arguments.picture_size)
    picture_size(options.picture, "", 1, 1)  # refused before any work
    truth = _ground_truth(arguments)
    if arguments.tracker is not None:
        result = _track(arguments, truth, options, bars)
    else:
        result = evaluate_predictions(arguments.predictions, truth, options, bars)
    if arguments.output is not None:
        write_evaluation(result, arguments.output, arguments.overwrite)
        console.say(str(arguments.output))
    _say(result)
    if arguments.json:
        console.print_json(result)
    return console.EXIT_OK


def _check_no_tracker_flags(arguments: argparse.Namespace) -> None:
    """Raise InputError for a flag of trackers that says something else than its default."""
    from acehand_core.errors import InputError

    parser = argparse.ArgumentParser()
    _add_tracker(parser)
    for flag, default in vars(parser.parse_args([])).items():
        if getattr(arguments, flag) != default:
            name = "--" + flag.replace("_", "-")
            raise InputError(f"{name} is for --tracker; predictions are scored as they are.")


def _track(arguments: argparse.Namespace, truth: GroundTruth, options: Any, bars: console.Bars):
    from dataclasses import replace

    from acehand_core.errors import InputError
    from acehand_core.evaluation.protocol import PAPER_WIDTHS
    from acehand_core.evaluation.run import evaluate_tracker
    from acehand_core.evaluation.tracking import Decoding, DoNothing
    from acehand_core.trackers.base import TrackerSettings, make_tracker

    if arguments.time < 0:
        raise InputError(f"--time {arguments.time}: valid are 0 or more passes.")
    chosen = ace.ace_settings_of(arguments)
    if chosen is not None:
        # The second scoring pass takes whatever a slot holds, present or not. Labels are of the
        # dataset's own frames.
        rate = chosen.read_rate or "source"
        chosen = replace(chosen, every_slot=True, read_rate=rate)
        width = PAPER_WIDTHS.get(truth.dataset)
        if width and chosen.encode_width is None and chosen.trained().encode_width is None:
            chosen = replace(chosen, encode_width=str(width))
    settings = TrackerSettings(
        hands=arguments.hands, hand_length_m=arguments.hand_length, ace=chosen
    )
    tracker = (
        DoNothing() if arguments.tracker == DoNothing.name
        else make_tracker(arguments.tracker, settings)
    )  # fmt: skip
    decoding = Decoding(arguments.decode_frames, in_windows=arguments.windows is not None)
    told = {"hands": settings.hands, "hand_length_m": settings.hand_length_m, "ace": settings.ace}
    return evaluate_tracker(
        tracker, truth, options, told, decoding, arguments.keep, arguments.time, bars,
    )  # fmt: skip


def _say(result: dict[str, Any]) -> None:
    segments, counts = result["segments"], result["counts"]
    console.say(
        f"{result['method']['label']} on {segments['name']} ({segments['count']} segments, "
        f"{counts['frames']} frames, list sha256 {segments['sha256'][:12]})"
    )
    for key, heading, digits in _SHOWN:
        value = result["metrics"][key]
        console.say(f"  {heading:17} {'n/a' if value is None else f'{value:.{digits}f}'}")


def _import(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.errors import InputError
    from acehand_core.evaluation.importing import METHODS, import_predictions
    from acehand_core.evaluation.protocol import HandLibrary

    if arguments.method == "list":
        for name, method in METHODS.items():
            console.say(f"{name}: {method.about}")
        if arguments.json:
            console.print_json({"methods": {n: m.about for n, m in METHODS.items()}})
        return console.EXIT_OK
    if arguments.source is None or arguments.output is None:
        raise InputError("DIR, the method's output, and --output DIR are needed.")
    truth = _ground_truth(arguments)
    report = import_predictions(
        arguments.method, arguments.source, truth, arguments.output,
        HandLibrary(arguments.mano), arguments.overwrite, bars,
    )  # fmt: skip
    console.say(f"{arguments.output}: {report['segments']} predictions")
    for note in report["notes"]:
        console.say(f"  {note}")
    if arguments.json:
        console.print_json(report)
    return console.EXIT_OK
