"""Whether retargeted hands hold what the human held: grasps repeated in MuJoCo with free objects.

    python -m benchmarks.grasps [--grasps 40] [--robots inspire leap] [--seed 9100]

Hands and objects are those of ``acehand synth`` episodes, without tracking (nothing is rendered):
pinches of boxes and balls, mugs and bowls held by the rim, cans and bottles. Objects weigh 150 g,
friction is 1. A grasp is held while the object does not come back to its support before the human's
does (``retarget/replay/grasps.py``); ``pose`` if it also ends within 30 mm and 30 degrees.

Ours plain, and closing on contacts; dex-retargeting's three modes as shipped and unfiltered, at
scales of 1, 1.15 and 1.3. What follows no contacts is also squeezed by 0.1 and 0.2 rad, and the
best row of each is the one that is compared. Contacts are also tried with objects that are heavier,
slippery, or 5 mm from where they were tracked, in a random horizontal direction.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import objects_of, truth_of
from acehand_core.motion import GraspReport, HandMotion, ObjectTrack
from acehand_core.types import SIDES
from benchmarks import provenance
from retarget import load_robot, retarget
from retarget.replay.grasps import Grasp, GraspScene, find_grasps, in_frame, replay_grasp, upright
from retarget.robots.hand_spec import CommandLimits, HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import Robot
from retarget.solve.methods import DEX_MODES, build_dex, drive_dex, robot_targets

FRAMES = 161
SQUEEZES = (0.0, 0.1, 0.2)
SCALES = (1.0, 1.15, 1.3)
OTHER = {"400 g": (0.4, 1.0, 0.0), "friction 0.5": (0.15, 0.5, 0.0), "5 mm off": (0.15, 1.0, 0.005)}


@dataclass(frozen=True)
class Case:
    """An episode whose hands grasp objects."""

    index: int
    motion: HandMotion
    track: ObjectTrack
    kinds: dict[str, str]


def main() -> int:
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grasps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=9100)
    parser.add_argument("--robots", nargs="+", default=["inspire"])
    parser.add_argument("--model", type=Path, help="model file of the robot, of others")
    provenance.add_output(parser)
    options = parser.parse_args()

    result: dict = {"grasps": options.grasps, "robots": {}}
    for name in options.robots:
        robot = load_robot(name, models=options.model)
        rows: dict[str, list[tuple[str, GraspReport]]] = {}
        for case in cases(options.seed, options.grasps, robot):
            for row, kind, report in measured(case, robot):
                rows.setdefault(row, []).append((kind, report))
        result["robots"][name] = {row: summary(reports) for row, reports in rows.items()}
    provenance.publish(run, result, options.output)
    return 0


def cases(seed: int, grasps: int, robot: Robot) -> Iterator[Case]:
    """Yield episodes until they have enough grasps by hands that the robot has."""
    index = found = 0
    while found < grasps:
        episode = make_episode(seed, index, SynthOptions(frames=FRAMES, fast=True))
        index += 1
        if episode.scenario != "objects":
            continue
        posed, motion = truth_of(episode)
        track = objects_of(posed)
        if track is None:
            continue
        case = Case(index, motion, track, {prop.name: prop.kind for prop in episode.script.props})
        count = sum(SIDES[grasp.slot] in robot.hands for grasp in grasps_of(case))
        if count:
            found += count
            yield case


def grasps_of(case: Case) -> tuple[Grasp, ...]:
    motion = case.motion
    joints = in_frame(motion, "world", case.track)
    return find_grasps(case.track, motion.timestamps_ns, motion.fps, joints)


def measured(case: Case, robot: Robot) -> Iterator[tuple[str, str, GraspReport]]:
    """Yield row, kind of object and outcome of each grasp."""
    motion, grasps, up = case.motion, grasps_of(case), upright(case.track.up)
    plain = retarget(motion, robot, objects=case.track, contacts=False)
    closing = retarget(motion, robot, objects=case.track)
    rng = np.random.default_rng(case.index)
    dex = {}
    for slot, side in enumerate(SIDES):
        targets = robot_targets(motion, robot, side)
        for mode in DEX_MODES if targets is not None else ():
            for scale in SCALES if mode != "position" else (1.0,):
                for filtered in (True, False):
                    hand = robot.hand(side)
                    driver = build_dex(hand, mode, filtered, scale)
                    drive = drive_dex(driver, hand, targets)
                    drive = CommandLimits.of(hand, motion.fps).enforce(drive)
                    dex[slot, f"dex-{mode}", f"{scale}{', filtered' * filtered}"] = drive

    for grasp, base in zip(grasps, closing.grasps, strict=True):
        kind, hand = case.kinds[grasp.object.name], robot.hand(SIDES[grasp.slot])
        bases = plain.T_frame_base[:, grasp.slot]
        scene = GraspScene(hand, grasp.object)
        drives = {("ours, plain", ""): plain.commands[:, grasp.slot]}
        drives |= {(row, how): d for (slot, row, how), d in dex.items() if slot == grasp.slot}
        for (row, how), drive in drives.items():
            for squeeze in SQUEEZES:
                pressed = squeezed(hand, drive, grasp, squeeze, motion.fps)
                report = replay_grasp(scene, grasp, pressed, bases, motion.fps, up)
                yield f"{row}: {how or 'plain'}, squeezed {squeeze}", kind, report

        yield "ours, contacts", kind, base
        for row, (mass, friction, off) in OTHER.items():
            angle = rng.uniform(0, 2 * np.pi)
            moved = grasp.T_frame_object.copy()
            moved[:, :2, 3] += off * np.array([np.cos(angle), np.sin(angle)])
            item = replace(grasp.object, mass_kg=mass, friction=friction)
            other = replace(grasp, object=item, T_frame_object=moved)
            drive, bases = closing.commands[:, grasp.slot], closing.T_frame_base[:, grasp.slot]
            report = replay_grasp(GraspScene(hand, item), other, drive, bases, motion.fps, up)
            yield f"ours, contacts: {row}", kind, report


def squeezed(hand: HandSpec, drive: np.ndarray, grasp: Grasp, by: float, fps: float) -> np.ndarray:
    """Return commands that close by some radians while the object is moved."""
    tree, middle = KinematicTree.of(hand), drive[grasp.first]
    moved = middle + 0.05 * np.concatenate([np.zeros((1, len(middle))), np.eye(len(middle))])
    tips = tree.points(hand.expand(moved), hand.tip_names)
    apart = np.linalg.norm(tips[:, :1] - tips[:, 1:], axis=-1).sum(1)
    closes = np.where(np.abs(apart[1:] - apart[0]) > 5e-4, -np.sign(apart[1:] - apart[0]), 0.0)
    at = [grasp.first - 0.1 * fps, grasp.first, grasp.last, grasp.last + 0.2 * fps]
    share = np.interp(np.arange(len(drive)), at, [0.0, 1.0, 1.0, 0.0])[:, None]
    return np.clip(drive + by * share * closes, hand.command_lower, hand.command_upper)


def summary(reports: list[tuple[str, GraspReport]]) -> dict:
    """Return shares of held and of well held grasps, with Wilson's 95 % intervals, and faults."""
    held = [report.held for _, report in reports]
    posed = [report.fault is None for _, report in reports]
    kinds = Counter(kind for kind, _ in reports)
    return {
        "count": len(reports),
        "held": float(np.mean(held)),
        "held_95": wilson(sum(held), len(held)),
        "pose": float(np.mean(posed)),
        "pose_95": wilson(sum(posed), len(posed)),
        "held_without_bowls": float(np.mean([r.held for kind, r in reports if kind != "bowl"])),
        "faults": Counter(report.fault for _, report in reports if report.fault),
        "held_of": {
            kind: f"{sum(r.held for other, r in reports if other == kind)}/{count}"
            for kind, count in sorted(kinds.items())
        },
        "median_slip_mm": 1e3 * float(np.median([r.slip_m for _, r in reports if r.held] or [0])),
        "deepest_mm": 1e3 * max(report.penetration_m for _, report in reports),
    }


def wilson(successes: int, count: int) -> list[float]:
    z, share = 1.96, successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count)
    half *= math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return [max(0.0, centre - half), min(1.0, centre + half)]


if __name__ == "__main__":
    sys.exit(main())
