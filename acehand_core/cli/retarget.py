"""``acehand-retarget INPUT... --robot inspire``: the main job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acehand_core.cli import ace, console, robots

if TYPE_CHECKING:
    from acehand_core.pipeline import JobSettings
    from acehand_core.pipeline.report import JobReport
    from acehand_core.recordings.registry import RecordingOptions
    from retarget.solve.arm_attachment import ArmSettings

DEFAULT_OUTPUT = "acehand_dataset"
_DESCRIPTION = """\
Turn recordings of human hands into a LeRobot v3 dataset of a robot hand doing the same.
INPUT is a video, a folder of pictures, a bag (rosbag2 folder, .mcap, .db3), a folder of any of
these, a LeRobot dataset with videos or one episode of it (DATASET/episode_000003), or a file of
hands (HandMotion .parquet, joints .npz)."""
_EXIT_CODES = """\
exit codes: 0 all done; 1 some inputs failed, the good ones are written; 2 usage or input error,
nothing written; 3 no hand in any input; 4 output could not be written; 130 interrupted"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the main job's flags."""
    nothing = {"dataset": None, "seconds": 0.0, "realtime_factor": 0.0, "episodes": []}
    parser.set_defaults(json_of_nothing=nothing)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT")
    _add_job_flags(parser)


def add_job_arguments(parser: argparse.ArgumentParser, name: str, metavar: str) -> None:
    """Add one input of that name, and the main job's flags."""
    parser.add_argument(name, type=Path, metavar=metavar)
    _add_job_flags(parser)


def _add_job_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--robot", default="inspire", help="robot name, NAME:VARIANT or robot.yaml (%(default)s)"
    )
    robots.add_model_argument(parser)
    add_arm_arguments(parser)
    parser.add_argument("--hands", choices=("both", "left", "right"), default="both")
    parser.add_argument(
        "--tracker", default="auto", metavar="NAME|FILE",
        help="auto (ace if weights are given, else mediapipe), ace, mediapipe, an "
        "installed tracker, or a file of hands",
    )  # fmt: skip
    parser.add_argument(
        "--solver", default="trajectory", metavar="NAME",
        help="trajectory, dex-vector, dex-dexpilot or dex-position (%(default)s)",
    )  # fmt: skip
    add_calibration_argument(parser)
    parser.add_argument(
        "--gates", type=Path, metavar="FILE",
        help="YAML with other limits for the verdict (docs/formats.md)",
    )  # fmt: skip
    add_latency_argument(parser)
    parser.add_argument(
        "--no-second-pass", dest="second_pass", action="store_false",
        help="keep commands that the replay could not follow",
    )  # fmt: skip
    add_reading_arguments(parser)
    add_hand_length_argument(parser)
    ace.add_ace_arguments(parser)
    parser.add_argument(
        "--task", metavar="TEXT",
        help="what the hands do; default what the recording says, else 'hand motion'",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path(DEFAULT_OUTPUT), metavar="DIR")
    parser.add_argument("--fps", type=int, metavar="N", help="dataset rate; default the source's")

    existing = parser.add_mutually_exclusive_group()
    for name, text in (
        ("append", "add episodes to the dataset at --output"),
        ("overwrite", "replace the dataset at --output"),
        ("resume", "resume an interrupted run"),
    ):
        existing.add_argument(
            f"--{name}", dest="existing", action="store_const", const=name, default="refuse",
            help=text,
        )  # fmt: skip

    parser.add_argument(
        "--overlay", action=argparse.BooleanOptionalAction, default=True,
        help="write an overlay video per episode (on)",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="report verdicts, write nothing")


def add_calibration_argument(parser: argparse.ArgumentParser) -> None:
    """Add the file of a calibration that is known already."""
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE",
        help="a calibration.json of the same subject and robot; default: fitted to each recording",
    )  # fmt: skip


def add_latency_argument(parser: argparse.ArgumentParser) -> None:
    """Add what is done about the hand's delay from command to motion."""
    parser.add_argument(
        "--latency", default="off", choices=("off", "on", "ahead"),
        help="replay without or with the hand's delay, or send commands ahead by it (%(default)s)",
    )  # fmt: skip


def add_arm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which arm carries each hand."""
    parser.add_argument(
        "--arm", type=Path, metavar="FILE", help="your MJCF or URDF of an arm that carries the hand"
    )
    parser.add_argument("--arm-link", metavar="NAME", help="its link or site with the hand")
    parser.add_argument(
        "--arm-mount", type=numbers, metavar="X,Y,Z,R,P,Y", default=(0.0,) * 6,
        help="pose of the hand's base on that link (m, rad)",
    )  # fmt: skip
    parser.add_argument(
        "--arm-up", type=numbers, metavar="X,Y,Z",
        help="direction of the arm's base z (camera frame: 0,-1,0; world: 0,0,1)",
    )  # fmt: skip


def numbers(text: str) -> tuple[float, ...]:
    """Return numbers that are separated by commas. Raises ValueError."""
    return tuple(float(word) for word in text.split(","))


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says how to read an input."""
    camera = parser.add_mutually_exclusive_group()
    camera.add_argument("--intrinsics", metavar="FX,FY,CX,CY", help="pinhole, pixels of the video")
    camera.add_argument("--camera", type=Path, metavar="FILE", help="camera file (JSON)")
    parser.add_argument("--camera-poses", type=Path, metavar="FILE", help="gives the world frame")
    parser.add_argument("--mirrored", action="store_true", help="selfie video")
    parser.add_argument("--start", type=float, metavar="S", help="skip the first S seconds")
    parser.add_argument("--duration", type=float, metavar="S", help="read S seconds")
    parser.add_argument(
        "--video-key",
        metavar="KEY",
        help="video feature of a LeRobot dataset; default its only one",
    )
    parser.add_argument(
        "--frame-rate", type=float, metavar="HZ",
        help="of a folder of pictures whose names are not times; default 30",
    )  # fmt: skip
    bag = parser.add_argument_group("bags", "found by type where not named")
    bag.add_argument("--image-topic", metavar="TOPIC", help="the pictures")
    bag.add_argument("--camera-info-topic", metavar="TOPIC", help="their calibration")
    bag.add_argument(
        "--world-frame", metavar="FRAME",
        help="frame the camera moves in, or none; default map, world or odom where there is one",
    )  # fmt: skip


def add_hand_length_argument(parser: argparse.ArgumentParser) -> None:
    """Add what a tracker of videos may be told about the hand."""
    parser.add_argument(
        "--hand-length", type=float, metavar="M",
        help="wrist to middle fingertip in metres: fixes the scale",
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``acehand-retarget``; return its exit code."""
    return console.run(build_parser().parse_args(argv), command)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of ``acehand-retarget``."""
    parser = argparse.ArgumentParser(
        prog="acehand-retarget",
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    console.add_common_arguments(parser)
    return parser


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Run the main job and report."""
    from acehand_core.pipeline import run_job

    report = run_job(arguments.inputs, settings_of(arguments), bars)
    bars.close()
    summarise(report, arguments.quiet, arguments.verbose)
    if arguments.json:
        console.print_json(report.to_json())
    return report.exit_code


def settings_of(arguments: argparse.Namespace) -> JobSettings:
    """Return the job's settings for parsed flags."""
    from acehand_core.pipeline import JobSettings

    return JobSettings(
        output=arguments.output,
        robot=arguments.robot,
        robot_model=arguments.robot_model,
        arm=arm_of(arguments),
        solver=arguments.solver,
        calibration=arguments.calibration,
        gates=arguments.gates,
        latency=arguments.latency,
        second_pass=arguments.second_pass,
        tracker=arguments.tracker,
        hands=arguments.hands,
        hand_length_m=arguments.hand_length,
        ace=ace.ace_settings_of(arguments),
        task=arguments.task,
        reading=reading_of(arguments),
        fps=arguments.fps,
        existing=arguments.existing,
        overlay=arguments.overlay,
        dry_run=arguments.dry_run,
    )


def arm_of(arguments: argparse.Namespace) -> ArmSettings | None:
    """Return the arm for parsed flags, or None."""
    from acehand_core.errors import InputError
    from retarget.solve.arm_attachment import ArmSettings

    if arguments.arm is None:
        if arguments.arm_link or arguments.arm_up or any(arguments.arm_mount):
            raise InputError("--arm-link, --arm-mount and --arm-up say how to use --arm FILE.")
        return None
    return ArmSettings(arguments.arm, arguments.arm_link, arguments.arm_mount, arguments.arm_up)


def reading_of(arguments: argparse.Namespace) -> RecordingOptions:
    """Return how to read recordings for parsed flags."""
    from acehand_core.bags.records import BagOptions
    from acehand_core.recordings.registry import RecordingOptions

    return RecordingOptions(
        intrinsics=arguments.intrinsics,
        camera=arguments.camera,
        camera_poses=arguments.camera_poses,
        mirrored=arguments.mirrored,
        start_s=arguments.start,
        duration_s=arguments.duration,
        video_key=arguments.video_key,
        frame_rate=arguments.frame_rate,
        bag=BagOptions(arguments.image_topic, arguments.camera_info_topic, arguments.world_frame),
    )


def summarise(report: JobReport, quiet: bool, verbose: bool) -> None:
    """Say on standard error how each input went."""
    for episode in report.episodes:
        coverage = episode.json["coverage"]
        seen = ", ".join(f"{side} {share:.0%}" for side, share in coverage.items())
        if not quiet:
            console.say(f"{episode.source}: {episode.verdict} ({seen})")
            for reason in episode.reasons:
                console.say(f"  - {reason}")

    for source in report.skipped:
        console.say(f"{source}: already in the dataset")
    lost = sum(report.lost_messages.values())
    if lost or not quiet:
        for note in report.notes:
            console.say(f"  - {note}")

    if lost:
        console.say(f"{lost} messages were lost")
    for failure in report.failures:
        console.say_error(failure.error, verbose)
    if report.dataset is not None and not quiet:
        console.say(f"dataset: {report.dataset} ({report.seconds:.1f} s)")


if __name__ == "__main__":
    sys.exit(main())
