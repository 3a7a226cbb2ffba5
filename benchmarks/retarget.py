"""Our retargeting against dex-retargeting's three modes, on several robots and recordings.

    python -m benchmarks.retarget [--robots NAME ...] [--recordings NAME ...] [--ablation]
    python -m benchmarks.retarget --joints FILE.npz [--palm-frame]
    python -m benchmarks.retarget --markdown     # the tables of results/retarget.json, no run

Every method gets the same joints and the same robot on one thread and is scored on common ground:
after the one similarity of the human tips that fits its own output best. dex-retargeting runs with
the settings that it ships, and with the scale that gives this recording the least tip error:
with its filter, without, and with the filter run both ways and clamped to limits ("offline").
Times are CPU time of solving; ours shows its calibration apart. Recordings: ``joints``, one hand
that dex-retargeting's authors recorded; ``hot3d``, two real hands; ``synthetic``, hands of clips of
``acehand synth``. Tables go to standard error, one JSON line to standard output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: One thread for everybody, set before any library counts the cores.
os.environ.update({f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")})

import argparse
import functools
import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from acehand_core.errors import AcehandError, InputError
from acehand_core.types import SIDES
from benchmarks import provenance
from benchmarks.retargeting import dex_modes, ours, recordings, scores, tables
from benchmarks.retargeting.recordings import Take
from retarget.robots.hand_spec import HandSpec
from retarget.robots.kinematics import KinematicTree
from retarget.robots.robot import load_robot
from retarget.solve import methods

RECORDINGS = ("joints", "hot3d", "synthetic")
RESULT = provenance.RESULTS / "retarget.json"
#: Synthetic tips nearer than this touch.
TOUCHING_M = 1e-3


def main() -> int:
    run = provenance.start(__file__)
    options = parse()
    if options.markdown:
        return print_markdown()
    try:
        takes = read_takes(options)
        robots, seen = compare_all(options, takes), {}
        for take in takes:
            seen.setdefault(take.recording, []).append(take)
        hand = load_robot(options.robots[0]).hand(takes[0].side)
        gestures = score_gestures(hand, takes[0].fps) if options.synthetic else {}
        ablation = score_ablation(hand, takes[0]) if options.ablation else {}
    except AcehandError as error:
        print(f"benchmarks.retarget: {error}", file=sys.stderr)
        return 2
    first = robots[options.robots[0]][takes[0].recording]
    ratio = first["vector shipped"]["ms_per_frame"] / first["ours"]["ms_per_frame"]
    result = {
        "recordings": {name: _described(hands) for name, hands in seen.items()},
        "scales_tried": [*dex_modes.SCALES, f"+-{dex_modes.FINER}"],
        "scales_compared_on_every": dex_modes.TUNING_STRIDE,
        "shipped": {
            robot: {mode: dex_modes.shipped(robot, "right", mode).to_json()
                    for mode in methods.DEX_MODES}
            for robot in options.robots
        },
        "robots": robots,
        "speed_ratio_vs_dex_vector": ratio,
        "gestures": gestures,
        "ablation": ablation,
    }  # fmt: skip
    provenance.publish(run, result, options.output)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # always printed
    parser.add_argument(
        "--robots", "--robot", nargs="+", metavar="NAME", default=list(dex_modes.ROBOTS),
        help="robots that dex-retargeting ships settings for (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--recordings", nargs="+", choices=RECORDINGS, default=list(RECORDINGS))
    parser.add_argument(
        "--joints", type=Path, metavar="FILE.npz",
        help="only this joints file (docs/formats.md) instead of the recordings",
    )  # fmt: skip
    parser.add_argument("--side", choices=SIDES, help="with --joints; default the one in the file")
    parser.add_argument(
        "--palm-frame", action="store_true",
        help="with --joints: turn the joints into the palm frame; default: the file's axes are x "
        "out of the palm and z from the wrist to the fingers",
    )  # fmt: skip
    parser.add_argument("--frames", type=int, metavar="N", help="only the first N frames of each")
    parser.add_argument("--seed", type=int, default=20260, help="of the synthetic hands")
    parser.add_argument("--hands", type=int, default=20, help="synthetic hands")
    parser.add_argument("--hand-frames", type=int, default=33, help="frames of each, 4k + 1")
    parser.add_argument(
        "--synthetic", action=argparse.BooleanOptionalAction, default=True,
        help="score made-up gestures on the first robot as well (on)",
    )  # fmt: skip
    parser.add_argument("--ablation", action="store_true", help="score ours without each part")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", type=Path, metavar="DIR", help="write each method's joints, npz")
    parser.add_argument(
        "--markdown", action="store_true",
        help="print the tables of the result that is there, results/retarget.json; nothing is run",
    )  # fmt: skip
    provenance.add_output(parser)
    return parser.parse_args()


def read_takes(options: argparse.Namespace) -> list[Take]:
    """Return every hand of every recording that was asked for.

    Raises:
        InputError: a file that is missing or does not follow its format.
    """
    if options.joints:
        found = recordings.from_joints_file(options.joints, options.side, options.palm_frame)
        return [found.first(options.frames)]
    shared, takes = provenance.shared_folder(), []
    if "joints" in options.recordings:
        takes.append(recordings.from_joints_file(_needed(shared / recordings.JOINTS_FILE)))
    if "hot3d" in options.recordings:
        takes += recordings.hot3d_pair(_needed(shared / recordings.HOT3D_FILE))
    if "synthetic" in options.recordings:
        takes += recordings.synthetic_hands(options.seed, options.hands, options.hand_frames)
    return [take.first(options.frames) for take in takes]


def _needed(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give --joints FILE.npz, or set ACEHAND_SHARED.")
    return path


def compare_all(
    options: argparse.Namespace, takes: list[Take]
) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Return scores by robot, recording and method; those of several hands pooled."""
    for robot in options.robots:  # wrong names are found before anything is measured
        dex_modes.shipped(robot, "right", "vector")
    jobs = [(robot, take) for robot in options.robots for take in takes]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (robot, take), rows in zip(jobs, _each(jobs, options), strict=True):
        found.setdefault((robot, take.recording), []).append(rows)
        print(f"{robot}, {take.recording}, {take.unit}: done", file=sys.stderr)
    out: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for (robot, recording), hands in found.items():
        rows = provenance.clean(
            {method: scores.pooled([hand[method] for hand in hands]) for method in hands[0]}
        )
        out.setdefault(robot, {})[recording] = rows
        print(f"\n{robot}, {recording}\n{tables.table(rows)}", file=sys.stderr)
    return out


def _each(
    jobs: list[tuple[str, Take]], options: argparse.Namespace
) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the scores of each job in order."""
    work = functools.partial(compare, save=options.save)
    if options.processes == 1:
        yield from map(work, *zip(*jobs, strict=True))
        return
    # Fresh processes: libraries that count threads at their start must see one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        yield from pool.map(work, *zip(*jobs, strict=True))


def compare(robot: str, take: Take, save: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return the scores of every method on one hand."""
    _one_torch_thread()
    hand = load_robot(robot).hand(take.side)
    mine = ours.solve(hand, take)
    rows = {"ours": scores.score(hand, take, mine.commands, mine.seconds)}
    rows["ours"]["calibration_ms_per_frame"] = mine.calibration_seconds / len(mine.commands) * 1e3
    commands = {"ours": mine.commands}
    for mode in methods.DEX_MODES:
        for variant, made in dex_modes.variants(hand, take, mode).items():
            name = f"{mode} {variant}"
            commands[name] = made["commands"]
            rows[name] = scores.score(hand, take, made["commands"], made["seconds"])
            rows[name]["scale"] = made["scale"]
    if save:
        _save(save / robot / take.recording / take.unit, hand, take.fps, commands)
    return rows


def score_gestures(hand: HandSpec, fps: float) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the scores of ours and of the shipped main modes on motions that are made here."""
    _one_torch_thread()
    out = {}
    for take in recordings.gestures(hand, KinematicTree.of(hand), fps):
        mine = ours.solve(hand, take)
        answers = {"ours": (mine.commands, mine.seconds)}
        for mode in ("vector", "dexpilot"):
            default = dex_modes.shipped(hand.robot, hand.side, mode)
            commands, seconds = dex_modes.solved(hand, take, mode, default.scale)
            commands = dex_modes.filtered(hand, take, commands, default.alpha, "filtered")
            answers[f"{mode} shipped"] = (commands, seconds)
        rows = {}
        for name, (commands, seconds) in answers.items():
            rows[name] = scores.score(hand, take, commands, seconds)
            rows[name]["touch_mm"] = scores.touching_mm(hand, take, commands, TOUCHING_M)
        rows = out[take.unit] = provenance.clean(rows)
        print(f"\n{take.unit}\n{tables.table(rows)}", file=sys.stderr)
    return out


def score_ablation(hand: HandSpec, take: Take) -> dict[str, dict[str, Any]]:
    """Score our solver with one part left out at a time; see docs/retargeting.md."""
    rows = provenance.clean(
        {
            name: scores.score(hand, take, found.commands, found.seconds)
            for name, found in ours.ablations(hand, take).items()
        }
    )
    print(f"\nablation\n{tables.table(rows, 'ours')}", file=sys.stderr)
    return rows


def print_markdown() -> int:
    """Print all tables of the result that is there; benchmarks.documents puts them into docs."""
    print(tables.document(json.loads(RESULT.read_text("utf-8"))))
    return 0


def _described(hands: list[Take]) -> dict[str, Any]:
    return {
        "hands": [take.unit for take in hands],
        "frames": sum(len(take.targets.joints_hand) for take in hands),
        "fps": hands[0].fps,
    }


def _one_torch_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _save(folder: Path, hand: HandSpec, fps: float, commands: dict[str, np.ndarray]) -> None:
    """Write ``<method>.npz``: joints (T, Q) in rad, their names with side, and the rate."""
    folder.mkdir(parents=True, exist_ok=True)
    names = np.array([hand.full_name(name) for name in hand.joint_names])
    for method, angles in commands.items():
        np.savez_compressed(
            folder / f"{method}.npz", joints=hand.expand(angles), joint_names=names, fps=fps
        )


if __name__ == "__main__":
    sys.exit(main())
