"""``acehand``: the parts of the main job one by one, and what is installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from acehand_core.cli import (
    ace,
    bag,
    console,
    data,
    doctor,
    evaluate,
    golden,
    render,
    report,
    retarget,
    robots,
    synth,
    weights,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``acehand``; return its exit code."""
    arguments = build_parser().parse_args(argv)
    return console.run(arguments, arguments.run)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``acehand``."""
    parser = argparse.ArgumentParser(
        prog="acehand", description="Recordings of human hands in, robot demonstrations out."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text, add, command in (
        ("reconstruct", "hands of a video as a table", _add_reconstruct, _reconstruct),
        ("retarget", "the main job, as acehand-retarget", retarget.add_arguments, retarget.command),
        ("export", "a table of hands in another form, or as robot commands", _add_export, _export),
        ("view", "pictures of a table of hands", _add_view, _view),
        ("render", "film and strip of hands and robot", render.add_arguments, render.command),
        ("robots", "list, check or draw the robots", robots.add_arguments, robots.command),
        ("dataset", "check or repair a dataset", _add_dataset, _dataset),
        ("bag", "ROS 2 bags: what is in one, into a dataset, out of a dataset",
         bag.add_arguments, bag.command),
        ("weights", "fetch, convert, inspect and verify weights",
         weights.add_arguments, weights.command),
        ("data", "datasets into clips, clips into lists of segments",
         data.add_arguments, data.command),
        ("golden-check", "reproduce reference outputs of the released model",
         golden.add_arguments, golden.command),
        ("evaluate", "score predictions or a tracker by the paper's protocol",
         evaluate.add_arguments, evaluate.command),
        ("report", "tables and plots of evaluations, beside the paper's numbers",
         report.add_arguments, report.command),
        ("synth", "render clips of hands with ground truth, to train on",
         synth.add_arguments, synth.command),
        ("doctor", "what is installed and what each missing piece would add",
         doctor.add_arguments, doctor.command),
    ):  # fmt: skip
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add(sub)
        console.add_common_arguments(sub)
        sub.set_defaults(run=command)

    parser.add_argument("--version", action="version", version=console.version_text())
    return parser


def _add_hands(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hands", choices=("both", "left", "right"), default="both")


def _add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def _add_reconstruct(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", type=Path, metavar="VIDEO")
    parser.add_argument("--tracker", default="auto", metavar="NAME")
    _add_hands(parser)
    parser.add_argument("--output", type=Path, metavar="FILE", help=".parquet or .csv")
    _add_overwrite(parser)
    retarget.add_reading_arguments(parser)
    retarget.add_hand_length_argument(parser)
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR",
        help="keep partial results there; the same command again resumes from them",
    )  # fmt: skip
    ace.add_ace_arguments(parser)


def _reconstruct(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.errors import NoHandError
    from acehand_core.recordings.hand_table import (
        TABLE_SUFFIXES,
        check_table_path,
        write_hand_motion,
    )
    from acehand_core.trackers.base import TrackerSettings
    from acehand_core.trackers.choose import open_input

    output = arguments.output or arguments.input.with_suffix(".hands.parquet")
    check_table_path(output, arguments.overwrite, TABLE_SUFFIXES)
    settings = TrackerSettings(
        hands=arguments.hands,
        hand_length_m=arguments.hand_length,
        work_dir=arguments.work_dir,
        ace=ace.ace_settings_of(arguments),
    )
    reading = retarget.reading_of(arguments)
    recording, tracker = open_input(arguments.input, arguments.tracker, settings, reading)
    motion = tracker.track(recording, bars)
    if not motion.known.any():
        raise NoHandError(f"{arguments.input}: no hand was found in {len(motion)} frames.")
    write_hand_motion(motion, output, arguments.overwrite)
    left, right = motion.observed.mean(0)
    console.say(f"{output}: {len(motion)} frames, left {left:.0%}, right {right:.0%}")
    if arguments.json:
        console.print_json(
            {
                "output": str(output),
                "frames": len(motion),
                "coverage": {"left": left, "right": right},
            }
        )
    return console.EXIT_OK


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input", type=Path, metavar="HANDS", help="HandMotion .parquet or joints .npz"
    )
    parser.add_argument("output", type=Path, metavar="FILE", help=".csv, .parquet or joints .npz")
    parser.add_argument(
        "--robot", metavar="NAME",
        help="write this robot's commands instead, in its controller's order and unit (.csv)",
    )  # fmt: skip
    robots.add_model_argument(parser)
    retarget.add_calibration_argument(parser)
    retarget.add_latency_argument(parser)
    _add_hands(parser)
    _add_overwrite(parser)


def _export_commands(arguments: argparse.Namespace) -> int:
    from acehand_core.pipeline.report import write_commands
    from acehand_core.recordings.hand_table import check_table_path
    from acehand_core.recordings.hands_file import read_motion_file
    from acehand_core.types import SIDES
    from retarget.replay.simulate import Physics
    from retarget.retargeting import retarget_motion
    from retarget.robots.robot import load_robot
    from retarget.solve.robot_calibration import known_calibrations

    robot = load_robot(arguments.robot, models=arguments.robot_model)
    known = known_calibrations(arguments.calibration, robot)
    check_table_path(arguments.output, arguments.overwrite, (".csv",))
    motion = read_motion_file(arguments.input, arguments.hands)
    physics = Physics(latency=arguments.latency)
    trajectory = retarget_motion(motion, robot, calibrations=known, physics=physics)
    sides = SIDES if arguments.hands == "both" else (arguments.hands,)
    units = next(iter(robot.hands.values())).controller
    columns = write_commands(trajectory, arguments.output, sides, units.whole, arguments.overwrite)
    console.say(
        f"{arguments.output}: {len(motion)} frames, unit: {units.unit}; "
        f"verdict {trajectory.verdict.status if trajectory.verdict else 'none'}"
    )
    if arguments.json:
        console.print_json(
            {"output": str(arguments.output), "frames": len(motion), "robot": robot.label,
             "unit": units.unit, "columns": columns}
        )  # fmt: skip
    return console.EXIT_OK


def _export(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.errors import InputError

    if arguments.robot is not None:
        return _export_commands(arguments)
    if arguments.calibration or arguments.robot_model or arguments.latency != "off":
        raise InputError(
            "--robot-model, --calibration and --latency say how a robot follows: they need --robot."
        )
    from acehand_core.recordings.hand_table import (
        TABLE_SUFFIXES,
        check_table_path,
        write_hand_motion,
        write_joints_file,
    )
    from acehand_core.recordings.hands_file import read_motion_file

    check_table_path(arguments.output, arguments.overwrite, (*TABLE_SUFFIXES, ".npz"))
    motion = read_motion_file(arguments.input, arguments.hands, as_stored=True)
    write = write_joints_file if arguments.output.suffix == ".npz" else write_hand_motion
    write(motion, arguments.output, arguments.overwrite)
    console.say(f"{arguments.output}: {len(motion)} frames")
    if arguments.json:
        console.print_json({"output": str(arguments.output), "frames": len(motion)})
    return console.EXIT_OK


def _add_view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input", type=Path, metavar="HANDS", help="HandMotion .parquet or joints .npz"
    )
    parser.add_argument("--video", type=Path, metavar="VIDEO", help="what the hands were seen in")
    _add_hands(parser)
    parser.add_argument("--robot", default="inspire")
    parser.add_argument("--output", type=Path, default=Path("acehand_view"), metavar="DIR")
    _add_overwrite(parser)
    parser.add_argument(
        "--overlay", action=argparse.BooleanOptionalAction, default=True,
        help="write a video, not only a contact sheet",
    )  # fmt: skip
    retarget.add_reading_arguments(parser)


def _view(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.pipeline import JobSettings, view_hands

    settings = JobSettings(
        output=arguments.output,
        robot=arguments.robot,
        hands=arguments.hands,
        reading=retarget.reading_of(arguments),
        existing="overwrite" if arguments.overwrite else "refuse",
        overlay=arguments.overlay,
    )
    files = view_hands(arguments.input, arguments.video, settings, bars)
    for file in files:
        console.say(str(file))
    if arguments.json:
        console.print_json({"files": [str(file) for file in files]})
    return console.EXIT_OK


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "repair"))
    parser.add_argument("folder", type=Path, metavar="DATASET")


def _dataset(arguments: argparse.Namespace, bars: console.Bars) -> int:
    from acehand_core.lerobot.check import check_dataset
    from acehand_core.lerobot.repair import repair

    done = repair(arguments.folder) if arguments.action == "repair" else []
    for line in done:
        console.say(f"repaired: {line}")
    problems = [str(problem) for problem in check_dataset(arguments.folder)]
    for problem in problems:
        console.say(f"problem: {problem}")
    if not problems:
        console.say(f"{arguments.folder}: no problem found")
    if arguments.json:
        console.print_json({"repaired": [str(line) for line in done], "problems": problems})
    return console.EXIT_SOME_FAILED if problems else console.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
