"""``acehand robots list|check|show|init|calibrate``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acehand_core.atomic import check_free
from acehand_core.cli import console
from acehand_core.cli.console import OVERWRITE
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import like, setting
from acehand_core.types import Side

if TYPE_CHECKING:
    from retarget.robots.hand_spec import HandSpec
    from retarget.robots.robot import Robot

_MARKS = {True: "ok", False: "FAILED", None: "skipped"}


@dataclass(frozen=True, slots=True)
class ListRobots:
    """List robots: joints, commands in the controller's order, licence, reach of fingertips.

    Also: acehand robots check, show, init and calibrate.
    """

    names: tuple[str, ...] = setting(
        (), "NAME, NAME:VARIANT or robot.yaml", metavar="ROBOT", positional=True, default_text="all"
    )
    robot_model: Path | None = like(JobSettings, "robot_model", None)

    def run(self, terminal: console.Terminal) -> int:
        robots = self.robots()
        for robot in robots:
            _describe(robot)
        terminal.print_json(lambda: {"robots": {robot.label: _details(robot) for robot in robots}})
        return console.EXIT_OK

    def robots(self) -> list[Robot]:
        """Return the named robots, else all. Raises as ``load_robot``."""
        from retarget.robots.robot import load_robot, robot_names

        return [load_robot(name, models=self.robot_model) for name in self.names or robot_names()]


@dataclass(frozen=True, slots=True)
class CheckRobots(ListRobots):
    """Compare the models of robots with their robot.yaml. Exit code 1 if a check fails."""

    def run(self, terminal: console.Terminal) -> int:
        checks, failed = _checked(self.robots())
        terminal.print_json({"robots": checks, "failed": failed})
        return console.EXIT_SOME_FAILED if failed else console.EXIT_OK


@dataclass(frozen=True, slots=True)
class ShowRobot:
    """Draw a robot: open, closed, base frame, fingertips."""

    name: str = setting(..., "NAME, NAME:VARIANT or robot.yaml", metavar="ROBOT", positional=True)
    robot_model: Path | None = like(JobSettings, "robot_model", None)
    output: Path | None = setting(None, "picture", metavar="PNG", default_text="ROBOT.png")
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.drawing.robot_sheet import draw_robot
        from retarget.robots.robot import load_robot

        robot = load_robot(self.name, models=self.robot_model)
        output = self.output or Path(f"{robot.label.replace(':', '-')}.png")
        draw_robot(robot, output, self.overwrite)
        _describe(robot)
        console.say(str(output))
        terminal.print_json(
            lambda: {"robots": {robot.label: _details(robot)}, "output": str(output)}
        )
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class InitRobot:
    """Draft a robot.yaml from your own MJCF or URDF, draw the robot and check it."""

    model: Path = setting(..., "MJCF or URDF file", metavar="MODEL", positional=True)
    output: Path | None = setting(None, "folder", metavar="DIR", default_text="the model's name")
    side: Side | None = setting(None, "side of the model", default_text="from its names and shape")
    left: Path | None = setting(None, "model of the left hand", metavar="FILE")
    root: str | None = setting(
        None, "link that carries the hand", metavar="LINK", default_text="found"
    )
    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.drawing.robot_sheet import draw_robot
        from acehand_core.errors import MissingDependencyError, SchemaError
        from retarget.robots.draft_text import checks_of, robot_name, write_draft
        from retarget.robots.robot import load_robot

        folder = self.output or Path(robot_name(self.model))
        picture = folder / "robot.png"
        check_free(picture, self.overwrite)
        path = write_draft(self.model, folder, self.left, self.side, self.root, self.overwrite)
        open_questions = checks_of(path.read_text(encoding="utf-8"))
        for question in open_questions:
            console.say(f"CHECK {question}")
        record: dict[str, Any] = {"file": str(path), "picture": None, "open": open_questions}
        try:
            robot = load_robot(path)
        except SchemaError as error:
            console.say(f"{path} is written and needs changes: {error}")
            terminal.print_json(record | {"robots": {}, "failed": 1})
            return console.EXIT_SOME_FAILED
        _describe(robot)
        try:
            draw_robot(robot, picture, self.overwrite)
            record["picture"] = str(picture)
        except MissingDependencyError as error:
            console.say(f"no picture: {error}")

        checks, failed = _checked([robot])
        console.say(f"written: {path}" + (f" and {picture}" if record["picture"] else ""))
        console.say(f"after a change: acehand robots check {path}")
        if not failed:
            console.say(f"then: `acehand retarget` VIDEO `robot={path}`")
        terminal.print_json(record | {"robots": checks, "failed": failed})
        return console.EXIT_SOME_FAILED if failed else console.EXIT_OK


@dataclass(frozen=True, slots=True)
class CalibrateRobots(ListRobots):
    """Fit robots to canonical hand poses and write calibration.json next to their robot.yaml.

    A file that is up to date stays.
    """

    overwrite: bool = setting(False, OVERWRITE)

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.atomic import atomic_path
        from retarget.robots.kinematics import KinematicTree
        from retarget.solve.calibration import fingerprint, fitted_robot, stored_calibration
        from retarget.solve.calibration_file import calibration_text

        files = []
        for robot in self.robots():
            pairs = {side: (hand, KinematicTree.of(hand)) for side, hand in robot.hands.items()}
            path = next(iter(robot.hands.values())).calibration_path
            if path is None or any(hand.tracks == "opening" for hand, _ in pairs.values()):
                console.say(f"{robot.label}: a gripper; nothing to calibrate")
                continue
            same = all(
                (kept := stored_calibration(hand)) is not None
                and kept.sha256 == fingerprint(hand, tree)
                for hand, tree in pairs.values()
            )
            if not same or self.overwrite:
                with atomic_path(path, overwrite=self.overwrite) as partial:
                    fitted = {side: fitted_robot(*pair) for side, pair in pairs.items()}
                    partial.write_text(calibration_text(robot, fitted), encoding="utf-8")
            files.append(str(path))
            console.say(f"{robot.label}: {path}" + (" is up to date" if same else ""))
        terminal.print_json({"files": files})
        return console.EXIT_OK


def _details(robot: Robot) -> dict[str, Any]:
    return {
        "title": robot.title,
        "license": robot.license,
        "variants": list(robot.variants),
        "sides": {
            side: {
                "joints": list(hand.joint_names),
                "commands": list(hand.command_names),
                "fingers": list(hand.fingers),
                "pinch_reach_mm": {f: round(mm, 1) for f, mm in _pinch_reach_mm(hand).items()},
                "user_model": str(hand.user_model) if hand.user_model else None,
            }
            for side, hand in robot.hands.items()
        },
    }


def _pinch_reach_mm(hand: HandSpec) -> dict[str, float]:
    """Return the least distance of each fingertip to the thumb's; empty for a gripper."""
    from retarget.robots.kinematics import KinematicTree
    from retarget.solve.pinch import tip_reach

    if hand.tracks == "opening":
        return {}
    reach = tip_reach(hand, KinematicTree.of(hand)) * 1e3
    pairs = zip(hand.fingers[1:], reach[1:].tolist(), strict=True)
    return {finger: mm for finger, mm in pairs if math.isfinite(mm)}


def _describe(robot: Robot) -> None:
    hand = next(iter(robot.hands.values()))
    console.say(
        f"{robot.label}: {robot.title} ({' and '.join(robot.hands)}; {len(hand.joint_names)} "
        f"joints; commands {', '.join(hand.command_names)})"
    )
    others = [name for name in robot.variants if name != robot.variant]
    if others:
        console.say(f"  variants: {', '.join(f'{robot.name}:{name}' for name in others)}")

    for side, one in robot.hands.items():
        reach = ", ".join(f"{finger} {mm:.1f} mm" for finger, mm in _pinch_reach_mm(one).items())
        if reach:
            console.say(f"  {side} fingertips, least distance to the thumb's: {reach}")
        if one.user_model is not None:
            console.say(f"  {side} model: {one.user_model}")

    console.say(f"  licence: {robot.license}")


def _checked(robots: list[Robot]) -> tuple[dict[str, Any], int]:
    """Check robots and print the findings; return them and the number of failed checks."""
    from retarget.check import check_hand

    record: dict[str, Any] = {}
    failed = 0
    for robot in robots:
        for side, hand in robot.hands.items():
            findings = list(check_hand(hand, hands=tuple(robot.hands.values())))
            failed += sum(finding.passed is False for finding in findings)
            for finding in findings:
                mark = _MARKS[finding.passed]
                console.say(f"{robot.label} {side} {finding.name}: {mark}, {finding.detail}")
            record.setdefault(robot.label, {})[side] = {
                finding.name: {"passed": finding.passed, "detail": finding.detail}
                for finding in findings
            }
    console.say(f"{failed} checks failed" if failed else "no check failed")
    return record, failed
