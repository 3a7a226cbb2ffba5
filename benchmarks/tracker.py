"""Tracked hands against rendered truth, plain MediaPipe against them; real videos without truth.

    acehand synth --clips 3 --frames 81 --seed 1812 --cameras pinhole --output out/tracker/pinhole
    acehand synth --first 3 --clips 2 --frames 81 --seed 1812 --cameras pinhole
        --motion $ACEHAND_SHARED/data/hot3d_bimanual_joints.npz --real-share 1
        --output out/tracker/natural
    acehand synth --first 5 --clips 2 --frames 81 --seed 1812 --cameras fisheye
        --output out/tracker/fisheye
    acehand synth --first 7 --clips 1 --frames 81 --seed 1812 --cameras pinhole
        --head-motion walking --output out/tracker/walking
    python -m benchmarks.tracker --clips out/tracker

Of each clip and the example both get the pictures as they are, the true camera and the true length
of the hand. What is measured: ``tracking/score.py``; the peer: ``tracking/peer.py``, in all of its
modes, its best one by ``good``. ``rendered`` has the clips together and one by one. ``--before``
takes the result of another commit and adds what has become of its numbers: ``ratio``. Over the
hands that are right in both, ours first: ``same_hands_peer`` against the best peer, and, with what
another commit has kept with ``--hands``, ``same_hands_before``.

``--retarget inspire`` adds what tracking costs a robot (``tracking/robot_tips.py``).

``photographs``: real hands with truth (``benchmarks.photographs``).

Of real videos: ``misfit_percent``, rms distance of projected joints from the tracker's own 2D
evidence, over the hand's length at its distance; ``jitter_mm``, mean length of the second
difference of joints from frame to frame, and ``jitter_relative_mm`` of joints less the wrist;
``no_hand_percent`` of frames in which no hand is observed; and ``mirrored``: how far off hands are
if the pictures are mirrored first, ``only_one_percent``: hands observed in only one of both runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from acehand_core.geometry.cameras import Camera
from acehand_core.motion import HandMotion, Recording
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from benchmarks import photographs, provenance
from benchmarks.tracking import peer
from benchmarks.tracking.clips import Case, cases, mirrored, videos
from benchmarks.tracking.robot_tips import RobotTips, tip_measures
from benchmarks.tracking.score import (
    Comparison,
    Errors,
    bone_length,
    errors_of,
    measures,
    same_hands,
)
from benchmarks.tracking.worst import Found, write_worst
from retarget.robots.robot import Robot, load_robot

#: Measures whose ratio to those of another commit is given.
RATIOS = (
    "joints_mm", "wrist_mm", "wrist_depth_mm", "wrist_lateral_mm", "palm_deg", "over_30", "jitter",
    "jitter_relative", "jitter_error", "recall", "recall_mostly_seen", "precision", "good",
    "within_30", "filled_joints_mm", "filled_wrist_mm", "excess_tips_mm", "cpu_s_per_frame",
)  # fmt: skip


def main() -> None:
    """Measure all clips and videos; print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--clips", type=Path, nargs="+", default=[], help="stores, or folders of stores"
    )
    parser.add_argument("--quality", nargs="+", default=qualities(), help="default: all there are")
    parser.add_argument("--videos", type=Path, nargs="*", help="without truth; default: those here")
    parser.add_argument("--no-peer", action="store_true", help="leave MediaPipe out")
    parser.add_argument("--retarget", metavar="ROBOT", help="also compare a robot's fingertips")
    parser.add_argument("--before", type=Path, help="result of another commit to compare with")
    parser.add_argument("--hands", type=Path, help="keep how far off each hand is, for another run")
    parser.add_argument("--worst", type=Path, help="picture of the 20 hands furthest off (.png)")
    parser.add_argument("--hands-before", type=Path, help="what another commit kept so")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    modes = () if arguments.no_peer else peer.MODES
    robot = load_robot(arguments.retarget) if arguments.retarget else None
    rendered, found, tracks = rendered_clips(arguments.clips, arguments.quality, modes, robot)
    if arguments.worst:
        write_worst(tracks, arguments.worst, 20)
    result: dict[str, Any] = {
        "benchmark": "tracker",
        "rendered": rendered,
        "photographs": photographs.measured(),
        "videos": [
            {
                "video": video.name,
                "quality": quality,
                **without_truth(video, quality),
            }
            for video in videos(arguments.videos)
            for quality in arguments.quality
        ],
    }
    theirs = [entry for entry in rendered if entry["method"] not in arguments.quality]
    if theirs:
        best = max(theirs, key=lambda entry: entry["all"]["good"] or 0)
        result["best_peer"] = best["method"]
        result["ratio_to_peer"] = compared(rendered, best)
        result["same_hands_peer"] = [
            {"method": kind, **same_hands(found[kind], found[best["method"]])}
            for kind in arguments.quality
        ]
    if arguments.before:
        before = json.loads(arguments.before.read_text("utf-8"))
        result["before"] = before["provenance"]["commit"]
        result["ratio"] = compared(rendered, before["rendered"][0])
    if arguments.hands_before:
        kept = read_hands(arguments.hands_before, [row["clip"] for row in rendered[0]["clips"]])
        result["same_hands_before"] = [
            {"method": kind, **same_hands(found[kind], kept)} for kind in arguments.quality
        ]
    if arguments.hands:
        names = [row["clip"] for row in rendered[0]["clips"]]
        write_hands(arguments.hands, names, found[arguments.quality[0]])
    provenance.publish(started, result, arguments.output)


def rendered_clips(
    stores: list[Path],
    kinds: list[str],
    modes: tuple[peer.Mode, ...],
    robot: Robot | None,
) -> tuple[list[dict[str, Any]], dict[str, list[Errors]], list[Found]]:
    """Return the measures of every method, over all clips and of each, and its hands' errors.

    And the hands of the last quality themselves. ``robot`` is one that follows all hands.
    """
    found: dict[str, list[_Clip]] = {}
    tracks: list[Found] = []
    for case in cases(stores):
        for name, motion, seconds in tracked(case, kinds, modes):
            compared = Comparison.of(motion, case.truth)
            tips = None if robot is None else RobotTips.of(motion, case.truth, robot)
            found.setdefault(name, []).append(_Clip(case, compared, seconds / len(motion), tips))
            if name == kinds[-1]:
                tracks.append((case, motion, compared))
            one = measures([compared])
            said = ("joints_mm", "wrist_mm", "palm_deg", "over_30", "recall_mostly_seen")
            print(case.store, case.name, name, {key: one[key] for key in said}, flush=True)
    table = [
        {
            "method": name,
            "all": _row(rows),
            "rendered_only": _row([row for row in rows if row.case.store != "example"]),
            "clips": [{"store": r.case.store, "clip": r.case.name} | _row([r]) for r in rows],
        }
        for name, rows in found.items()
    ]
    errors = {name: [row.errors() for row in rows] for name, rows in found.items()}
    return table, errors, tracks


def tracked(
    case: Case, kinds: list[str], modes: tuple[peer.Mode, ...]
) -> Iterator[tuple[str, HandMotion, float]]:
    """Yield the hands by our tracker, in each quality, and by the peer, with their CPU time."""
    for kind in kinds:
        begin = time.process_time()
        settings = TrackerSettings(hand_length_m=case.hand_length_m)
        motion = MediaPipeTracker(_of(settings, kind)).track(case.recording)
        yield kind, motion, time.process_time() - begin
    for mode in modes:
        begin = time.process_time()
        motion = peer.track(case.recording, case.hand_length_m, mode)
        yield mode.name, motion, time.process_time() - begin


def qualities() -> list[str]:
    """Return the values of ``TrackerSettings.quality``; one of no name before there was any."""
    hints = get_type_hints(TrackerSettings)
    named = [get_args(hints[field.name]) for field in fields(TrackerSettings)
             if field.name == "quality"]  # fmt: skip
    return list(named[0]) if named else ["default"]


def write_hands(path: Path, names: list[str], clips: list[Errors]) -> None:
    """Keep the errors of the hands of some clips for ``read_hands``."""
    arrays: dict[str, Any] = {
        f"{name}/{key}": values
        for name, clip in zip(names, clips, strict=True)
        for key, values in clip.items()
    }
    np.savez_compressed(path, **arrays)


def read_hands(path: Path, names: list[str]) -> list[Errors]:
    """Return what ``write_hands`` has kept of these clips; KeyError where one is not there."""
    with np.load(path, allow_pickle=False) as arrays:
        keys = list(dict.fromkeys(key.split("/")[1] for key in arrays))
        return [{key: arrays[f"{name}/{key}"] for key in keys} for name in names]


def without_truth(video: Recording, quality: str) -> dict[str, Any]:
    """Return what can be measured of hands without truth."""
    begin = time.process_time()
    settings = _of(TrackerSettings(), quality)
    motion = MediaPipeTracker(settings).track(video)
    spent = time.process_time() - begin
    other = turned_back(MediaPipeTracker(settings).track(mirrored(video)))
    both = motion.observed & other.observed
    off = 1e3 * np.linalg.norm(motion.joints_camera - other.joints_camera, axis=-1)
    wrists = (m.joints_camera - m.joints_camera[:, :, :1] for m in (motion, other))
    relative = 1e3 * np.linalg.norm(np.subtract(*wrists), axis=-1)
    either = motion.observed | other.observed
    jitter, jitter_relative = jitter_mm(motion)
    return {
        "frames": len(motion),
        "hands": int(motion.observed.sum()),
        "misfit_percent": misfit_percent(motion),
        "jitter_mm": jitter,
        "jitter_relative_mm": jitter_relative,
        "no_hand_percent": float(100 * (~motion.observed.any(axis=1)).mean()),
        "cpu_s_per_frame": spent / len(motion),
        "mirrored": {
            "joints_mm": float(relative[both].mean()),
            "wrist_mm": float(off[both][:, 0].mean()),
            "only_one_percent": float(100 * (either & ~both).sum() / either.sum()),
        },
    }


def misfit_percent(motion: HandMotion) -> float:
    """Return the rms distance of projected joints from the 2D evidence over the hand's size."""
    assert motion.camera is not None
    camera: Camera = motion.camera
    joints, seen = motion.joints_camera, motion.observed
    distance = np.linalg.norm(joints.mean(2), axis=-1)
    size = bone_length(joints) / distance * (camera.fx + camera.fy) / 2
    off = np.sum((camera.project(joints) - motion.joints_image) ** 2, axis=-1)
    return float(100 * (np.sqrt(np.nanmean(off[seen], axis=-1)) / size[seen]).mean())


def jitter_mm(motion: HandMotion) -> tuple[float, float]:
    """Return mean second differences of joints, and of joints less the wrist, mm per frame^2."""
    joints, seen = motion.joints_camera, motion.observed
    three = seen[:-2] & seen[1:-1] & seen[2:]
    lengths = [
        1e3 * np.linalg.norm(np.diff(points, n=2, axis=0), axis=-1)[three]
        for points in (joints, joints - joints[:, :, :1])
    ]
    return float(lengths[0].mean()), float(lengths[1].mean())


def turned_back(motion: HandMotion) -> HandMotion:
    """Return the joints of a mirrored recording as they are in the one that is not."""
    return replace(
        motion,
        joints_camera=motion.joints_camera[:, ::-1] * [-1.0, 1.0, 1.0],
        observed=motion.observed[:, ::-1],
        filled=motion.filled[:, ::-1],
    )


def compared(rendered: list[dict[str, Any]], other: dict[str, Any]) -> list[dict[str, Any]]:
    """Return ratios of all methods to another one; None where that is 0 or not known."""
    rows = []
    for entry in rendered:
        row: dict[str, Any] = {"method": entry["method"]}
        for name in ("all", "rendered_only"):
            made, was = entry[name], other[name]
            row[name] = {
                key: made[key] / was[key] if made.get(key) is not None and was.get(key) else None
                for key in RATIOS
            }
        rows.append(row)
    return rows


@dataclass(frozen=True, slots=True)
class _Clip:
    """What was found in one clip, with CPU time per frame; ``tips`` where a robot follows."""

    case: Case
    compared: Comparison
    seconds: float
    tips: RobotTips | None

    def errors(self) -> Errors:
        more = {} if self.tips is None else {"excess_tips_mm": self.tips.excess}
        return errors_of(self.compared) | more


def _row(rows: list[_Clip]) -> dict[str, Any]:
    if not rows:
        return {key: None for key in RATIOS}
    out = measures([row.compared for row in rows])
    if followed := [row.tips for row in rows if row.tips is not None]:
        out |= tip_measures(followed)
    return out | {"cpu_s_per_frame": float(np.mean([row.seconds for row in rows]))}


def _of(settings: TrackerSettings, quality: str) -> TrackerSettings:
    """Return the settings of a quality; unchanged where there is none to choose."""
    if quality == "default":
        return settings
    chosen: dict[str, Any] = {"quality": quality}
    return replace(settings, **chosen)


if __name__ == "__main__":
    main()
