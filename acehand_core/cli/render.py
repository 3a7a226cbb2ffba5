"""``acehand render HANDS|DATASET``: videos and film strips of hands and robot."""

from __future__ import annotations

import argparse
from pathlib import Path

from acehand_core.cli import console, retarget, robots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``acehand render``."""
    parser.add_argument(
        "inputs", type=Path, nargs="+", metavar="HANDS|DATASET",
        help="HandMotion .parquet, joints .npz, a folder of predictions, or a dataset with "
        "--episode; several of one recording stand side by side",
    )  # fmt: skip
    parser.add_argument(
        "--label", action="append", default=[], metavar="TEXT",
        help="over an input's column, once per input; default their names",
    )  # fmt: skip
    parser.add_argument("--episode", type=int, default=0, metavar="N", help="of a dataset (0)")
    parser.add_argument("--video", type=Path, metavar="VIDEO", help="what the hands were seen in")
    parser.add_argument("--segment", metavar="NAME", help="which table of a folder of predictions")
    parser.add_argument(
        "--clips", type=Path, metavar="STORE",
        help="store that the segment is from: its pictures, camera and true hands",
    )  # fmt: skip
    parser.add_argument(
        "--panels", metavar="LIST",
        help="of source, mesh, robot, both, third, head, robot-third, robot-head "
        "(source,mesh,robot,robot-third; of several inputs mesh,third)",
    )  # fmt: skip
    parser.add_argument("--robot", default="inspire", help="robot name (%(default)s)")
    robots.add_model_argument(parser)
    retarget.add_calibration_argument(parser)
    parser.add_argument("--hands", choices=("both", "left", "right"), default="both")
    parser.add_argument(
        "--depth", type=Path, metavar="DIR",
        help="16-bit PNG in millimetres, one per frame: what is nearer hides the robot",
    )  # fmt: skip
    parser.add_argument(
        "--moving", action=argparse.BooleanOptionalAction, default=True,
        help="write the video, not only the strip",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("acehand_render"), metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    retarget.add_reading_arguments(parser)


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run ``acehand render``."""
    from acehand_core.drawing.films import RenderSettings, render
    from acehand_core.drawing.panels import panel_names

    settings = RenderSettings(
        output=arguments.output,
        panels=None if arguments.panels is None else panel_names(arguments.panels),
        robot=arguments.robot,
        robot_model=arguments.robot_model,
        calibration=arguments.calibration,
        hands=arguments.hands,
        video=arguments.video,
        episode=arguments.episode,
        depth=arguments.depth,
        moving=arguments.moving,
        overwrite=arguments.overwrite,
        reading=retarget.reading_of(arguments),
        labels=tuple(arguments.label),
        segment=arguments.segment,
        clips=arguments.clips,
    )
    files = render(arguments.inputs, settings, bars)
    bars.close()
    for file in files:
        console.say(str(file))
    if arguments.json:
        console.print_json({"files": [str(file) for file in files]})
    return console.EXIT_OK
