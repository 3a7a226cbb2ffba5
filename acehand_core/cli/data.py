"""``acehand data``: datasets into clips, clips into lists of segments."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from acehand_core.cli import console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text, add, command in (
        ("convert", "a dataset in its native layout as stores of clips", _add_convert, _convert),
        ("segments", "a fixed list of segments of a store", _add_segments, _segments),
    ):
        sub = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add(sub)
        _add_common(sub)
        sub.set_defaults(data_command=command)


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run the chosen subcommand."""
    return arguments.data_command(arguments, bars)


def _add_common(parser: argparse.ArgumentParser) -> None:
    # Suppressed defaults leave alone what stood before the action's name.
    for flags, text in (
        (("--json",), "print one JSON object at the end"),
        (("-v", "--verbose"), "say more, show tracebacks"),
        (("-q", "--quiet"), "no progress bars"),
    ):
        parser.add_argument(*flags, action="store_true", default=argparse.SUPPRESS, help=text)


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="dataset, e.g. arctic (docs/datasets.md)")
    parser.add_argument("--root", type=Path, required=True, metavar="DIR", help="the dataset")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--split", nargs="+", choices=("train", "val", "test"), default=())
    parser.add_argument(
        "--split-file", type=Path, metavar="JSON", help="split to recordings, in place of our own"
    )
    parser.add_argument("--view", metavar="NAME", help="camera or picture version")
    parser.add_argument("--images", choices=("auto", "keep", "undistort", "none"), default="auto")
    parser.add_argument("--width", type=int, metavar="PX", help="make pictures this wide")
    parser.add_argument("--quality", choices=("visual", "lossless"), default="visual")
    parser.add_argument(
        "--media", choices=("auto", "copy", "reference"), default="auto",
        help="copy pictures, or refer to the dataset's own videos where they are unchanged",
    )  # fmt: skip
    parser.add_argument(
        "--mano", type=Path, metavar="PATH",
        help="folder with MANO_LEFT and MANO_RIGHT; default $ACEHAND_MANO",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")


def _convert(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.datasets.readers.base import ReadOptions
    from acehand_core.datasets.readers.pictures import ClipOptions
    from acehand_core.datasets.readers.run import RunOptions, run
    from acehand_core.errors import InputError

    if arguments.jobs < 1 or (arguments.width is not None and arguments.width < 2):
        raise InputError("--jobs must be at least 1 and --width at least 2.")
    options = RunOptions(
        root=arguments.root,
        output=arguments.output,
        splits=tuple(arguments.split),
        split_file=arguments.split_file,
        jobs=arguments.jobs,
        clips=ClipOptions(
            images=arguments.images,
            width=arguments.width,
            quality=arguments.quality,
            media=arguments.media,
            mano=_mano_of(arguments),
        ),
        read=ReadOptions(view=arguments.view),
    )
    if options.clips.mano is None:
        bars("no MANO files: joints and parameters that need them will be missing", 0, 0)
    report = run(arguments.name, options, bars).to_json()
    _say(report)
    if arguments.json:
        console.print_json(report)
    if report["errors"] and not report["splits"]:
        return console.EXIT_INPUT
    return console.EXIT_SOME_FAILED if report["errors"] else console.EXIT_OK


def _mano_of(arguments: argparse.Namespace) -> Path | None:
    from acehand_core.hand.mano import ENVIRONMENT_VARIABLE, find_mano

    if arguments.mano is None and not os.environ.get(ENVIRONMENT_VARIABLE):
        return None
    return find_mano(arguments.mano)


def _say(report: dict[str, Any]) -> None:
    for entry in report["paper"]:
        paper = (
            f"paper {entry['paper_clips']} and {entry['paper_frames']}"
            if entry["paper_clips"] is not None
            else "not in the paper"
        )
        console.say(
            f"{report['dataset']} {entry['split']}: {entry['clips']} clips, {entry['frames']} "
            f"frames ({paper})"
        )
        for line in entry["explanation"]:
            console.say(f"  {line}")
    for split, counts in report["splits"].items():
        if counts["unlabelled_frames"]:
            console.say(
                f"{split}: {counts['unlabelled_frames']} frames have no label; they teach nothing "
                "and are not scored"
            )
        if counts["left_out_frames"]:
            console.say(
                f"{split}: {counts['left_out_frames']} frames have a label but no picture and are "
                "left out"
            )
    for entry in report["moved"]:
        console.say(
            f"removed from {entry['from']}: {entry['clips']} clips that belong to {entry['to']}"
        )
    for finding in report["findings"][:20]:
        console.say(f"found in {finding['clips']} clips: {finding['text']}")
    if len(report["findings"]) > 20:
        console.say(f"and {len(report['findings']) - 20} further findings; see the clips' source.")
    for error in report["errors"]:
        console.say(f"failed: {error['source']}: {error['message']}")


def _add_segments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clips", type=Path, required=True, metavar="DIR", help="a store of clips")
    parser.add_argument("--output", type=Path, required=True, metavar="JSON")
    parser.add_argument("--name", help="of the list; default made from dataset, split and length")
    parser.add_argument("--length", type=int, default=81, metavar="N")
    parser.add_argument("--stride", type=int, metavar="N", help="default: no overlap")
    parser.add_argument("--count", type=int, metavar="N", help="draw so many; default all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def _segments(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.datasets.clips.store import ClipStore
    from acehand_core.datasets.segments import make_segments, write_segments

    store = ClipStore(arguments.clips)
    info = store.info
    drawn = "" if arguments.count is None else f"-{arguments.count}-seed{arguments.seed}"
    segments = make_segments(
        [(name, clip.frames) for name, clip in store.infos().items()],
        arguments.name or f"{info.dataset}-{info.split}-{arguments.length}{drawn}",
        info.dataset,
        info.split,
        arguments.length,
        arguments.stride,
        arguments.count,
        arguments.seed,
    )
    write_segments(segments, arguments.output, arguments.overwrite)
    summary = segments.summary()
    console.say(
        f"{arguments.output}: {summary['count']} segments of {arguments.length} frames, "
        f"{summary['name']} {summary['sha256'][:12]}"
    )
    if arguments.json:
        console.print_json({**summary, "output": str(arguments.output)})
    return console.EXIT_OK
