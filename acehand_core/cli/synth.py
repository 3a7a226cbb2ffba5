"""``acehand synth``: render clips of hands with ground truth, to train and test on."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from acehand_core.cli import console
from acehand_core.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``acehand synth``."""
    parser.add_argument("--clips", type=int, required=True, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--first", type=int, default=0, metavar="I", help="index of the first clip")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="store of clips")
    parser.add_argument("--split", choices=("train", "val", "test", "all"), default="train")
    parser.add_argument("--frames", type=int, default=121, help="of each clip, 4k + 1")
    parser.add_argument(
        "--size", metavar="WxH", help="multiples of 32 (default 640x480; 128x96 with --fast)"
    )
    parser.add_argument("--cameras", choices=("mixed", "pinhole", "fisheye"), default="mixed")
    parser.add_argument(
        "--motion", type=Path, metavar="FILE",
        help="hands to move by: a HandMotion table, or an npz of joints_world",
    )  # fmt: skip
    parser.add_argument("--real-share", type=float, metavar="P",
                        help="share of the clips that move by --motion (default 0.4)")  # fmt: skip
    parser.add_argument(
        "--fast", action="store_true",
        help="small clips for training: no masks or depth, simpler light",
    )  # fmt: skip
    parser.add_argument("--clean", action="store_true", help="no blur, no noise, even exposure")
    parser.add_argument("--processes", type=int, default=0, metavar="N", help="0: one per core")
    parser.add_argument("--overwrite", action="store_true",
                        help="remove the clips of a store made with other settings")  # fmt: skip
    parser.add_argument(
        "--sheet", action="store_true", help="also write a contact sheet, sheet.png"
    )


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run ``acehand synth``."""
    from acehand_core.datasets.clips.store import ClipStore
    from acehand_core.drawing.synthetic_sheet import write_sheet
    from acehand_core.synthetic import job

    work = _job(arguments)
    report = job.run(work, lambda done, total: bars("clips", done, total))
    sheet = None
    if arguments.sheet:
        sheet = arguments.output / "sheet.png"
        write_sheet(ClipStore(arguments.output), sheet)
    for name, message in report.errors.items():
        console.say(f"error: {name}: {message}")
    console.say(f"{arguments.output}: {len(report.made)} clips made, {len(report.kept)} kept")
    if arguments.json:
        result: dict[str, Any] = {
            "output": str(arguments.output), "made": list(report.made),
            "kept": list(report.kept), "sheet": str(sheet) if sheet else None,
        }  # fmt: skip
        if report.errors:
            result["errors"] = [{"source": n, "message": m} for n, m in report.errors.items()]
        console.print_json(result)
    return console.EXIT_SOME_FAILED if report.errors else console.EXIT_OK


def _job(arguments: argparse.Namespace) -> Any:
    from acehand_core.synthetic.episode import SynthOptions
    from acehand_core.synthetic.job import SynthJob

    text = arguments.size or ("128x96" if arguments.fast else "640x480")
    size = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if size is None:
        raise InputError(f"--size {text!r}: WxH in pixels, for example 640x480.")
    share = arguments.real_share
    if share is not None and not 0 <= share <= 1:
        raise InputError(f"--real-share {share}: 0 to 1.")
    if share is not None and arguments.motion is None:
        raise InputError("--real-share is the share of clips that move by --motion; give that too.")
    options = SynthOptions(
        width=int(size[1]),
        height=int(size[2]),
        frames=arguments.frames,
        cameras=arguments.cameras,
        real_share=SynthOptions().real_share if share is None else share,
        clean=arguments.clean,
        fast=arguments.fast,
    )
    return SynthJob(
        arguments.output, arguments.clips, arguments.seed, arguments.first, arguments.split,
        options, arguments.motion, arguments.processes or os.cpu_count() or 1,
        arguments.overwrite,
    )  # fmt: skip
