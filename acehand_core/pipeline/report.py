"""Reports of episodes and runs, as JSON and in words; commands as a table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core import errors
from acehand_core.atomic import atomic_path
from acehand_core.errors import OutputError
from acehand_core.hand.skeleton import FINGERS, TIPS, finger_keypoints
from acehand_core.lerobot.dataset import EpisodeKey
from acehand_core.motion import (
    FILL_FRAMES,
    ArmMotion,
    FlexionReport,
    HandMotion,
    Recording,
    RobotTrajectory,
)
from acehand_core.pipeline.settings import TASK
from acehand_core.types import SIDES, Side

#: Measures of the replay, of which the worst hand's are reported, with their digits.
_PHYSICS = {
    "rms_tracking_rad": 5,
    "rms_tracking_m": 6,
    "max_penetration_mm": 3,
    "commanded_penetration_mm": 3,
    "saturation_share": 5,
}


@dataclass(frozen=True, slots=True)
class EpisodeReport:
    """One finished episode; ``json`` is its entry in the run's report."""

    source: str
    episode_index: int | None
    verdict: str
    reasons: tuple[str, ...]
    json: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that gave no episode, and why."""

    source: str
    error: Exception


@dataclass(frozen=True, slots=True)
class JobReport:
    """A whole run.

    Attributes:
        skipped: inputs, or parts of them, that the resumed dataset has.
        lost_messages: of bags, by topic.
        notes: sentences about what was found, decided and lost while reading the inputs.
        skipped_episodes: numbers of the episodes that the resumed dataset has.
        cuts: an entry per recording that was cut (docs/cutting.md).
    """

    dataset: str | None
    seconds: float
    recorded_seconds: float
    episodes: tuple[EpisodeReport, ...]
    failures: tuple[Failure, ...] = ()
    skipped: tuple[str, ...] = ()
    lost_messages: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped_episodes: tuple[int, ...] = ()
    cuts: tuple[Mapping[str, Any], ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of a command or node (docs/formats.md)."""
        if not self.failures:
            return errors.EXIT_OK
        codes = {errors.exit_code(failure.error) for failure in self.failures}
        if errors.EXIT_OUTPUT in codes:
            return errors.EXIT_OUTPUT
        if self.episodes or self.skipped:
            return errors.EXIT_SOME_FAILED
        return errors.EXIT_NO_HAND if codes == {errors.EXIT_NO_HAND} else errors.EXIT_INPUT

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON (docs/formats.md)."""
        factor = self.recorded_seconds / self.seconds if self.seconds > 0 else 0.0
        out: dict[str, Any] = {
            "dataset": self.dataset,
            "seconds": round(self.seconds, 3),
            "realtime_factor": round(factor, 3),
            "episodes": [episode.json for episode in self.episodes],
        }
        more: dict[str, Any] = {
            "cuts": [dict(entry) for entry in self.cuts],
            "lost_messages": dict(self.lost_messages),
            "notes": list(self.notes),
            "skipped": list(self.skipped),
            "errors": [{"source": f.source, "message": str(f.error)} for f in self.failures],
        }
        return out | {name: value for name, value in more.items() if value}


@dataclass(frozen=True, slots=True, eq=False)
class PlannedEpisode:
    """T frames of an input that become an episode, or are one that an interrupted run began.

    Attributes:
        view: at the dataset's times and size.
        key: identifies it for a resumed run.
        cut: where and why it was cut out of a longer recording.
        number: its number in the dataset; None: to be made.
        missing: its files that the dataset lacks.
    """

    view: Recording
    task: str = TASK
    key: EpisodeKey | None = None
    cut: Mapping[str, Any] | None = None
    number: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RetargetedEpisode:
    """An episode with its hands and the robot that follows them.

    ``calibration``: text of the calibration file, if there is one.
    """

    planned: PlannedEpisode
    hands: HandMotion
    trajectory: RobotTrajectory
    calibration: str | None = None


def episode_report(episode: RetargetedEpisode, number: int | None) -> EpisodeReport:
    """Measure one episode; ``number`` is its index in the dataset. Unknown values are None."""
    motion, trajectory, planned = episode.hands, episode.trajectory, episode.planned
    key, cut = planned.key, planned.cut
    subject = None if key is None else key.settings.get("subject")
    error_mm = trajectory.tip_error_m[trajectory.active] * 1e3
    reports = [report for report in trajectory.replay if report is not None]
    verdict = trajectory.verdict
    assert verdict is not None
    entry: dict[str, Any] = {
        "source": planned.view.source,
        "frames": len(motion),
        "fps": int(motion.fps) if float(motion.fps).is_integer() else motion.fps,
        "tracker": motion.provenance.tracker,
        **measures_of_hands(motion),
        "tip_error_mm": _spread(error_mm, ("mean", "p95")),
        "flexion_deg": {
            side: _flexion(one) for side, one in zip(SIDES, trajectory.flexion, strict=True)
        },
        "limit_violations": trajectory.limit_violations,
        "speed_violations": trajectory.speed_violations,
        "coupling_residual_rad": trajectory.coupling_residual_rad,
        "physics": {
            name: _number(max(getattr(one, name) for one in reports), digits) if reports else None
            for name, digits in _PHYSICS.items()
        },
        "verdict": verdict.status,
        "reasons": list(verdict.reasons),
        "notes": list(motion.provenance.notes),
    }
    if motion.provenance.assumed:
        entry["assumed"] = dict(motion.provenance.assumed)
    if motion.provenance.agreement:
        entry["agreement"] = [asdict(one) for one in motion.provenance.agreement]
    if trajectory.grasps:
        entry["grasps"] = [asdict(grasp) for grasp in trajectory.grasps]
    if any(trajectory.arms):
        entry["arm"] = {
            side: _arm(arm, trajectory.active[:, slot])
            for slot, (side, arm) in enumerate(zip(SIDES, trajectory.arms, strict=True))
        }
    if subject is not None:
        entry["subject"] = subject
    if cut is not None:
        entry["cut"] = dict(cut)
    if number is not None:
        entry["episode_index"] = number
    return EpisodeReport(planned.view.source, number, verdict.status, verdict.reasons, entry)


def measures_of_hands(motion: HandMotion) -> dict[str, Any]:
    """Return the entries of an episode's report about the human hands."""
    seen = np.isfinite(motion.joints_camera).all(-1) & motion.observed[..., None]
    # Of each finger the joints beyond the knuckle.
    fingers = {f: seen[..., finger_keypoints(f)[1:]] for f in FINGERS}
    measures: dict[str, Any] = {
        "coverage": {
            side: _number(motion.observed[:, slot].mean(), 4) for slot, side in enumerate(SIDES)
        },
        "finger_coverage": {
            side: {f: _number(joints[:, slot].mean(), 4) for f, joints in fingers.items()}
            for slot, side in enumerate(SIDES)
        },
        "filled_share": _number(motion.filled.sum() / max(int(motion.known.sum()), 1), 4),
        **uncertainty_summary(motion),
        "reprojection_px": _spread(reprojection_px(motion), ("median", "p95")),
    }
    if (gaps := filled_gaps(motion)) is not None:
        measures["filled_gaps"] = gaps
    if (placed_by := motion.evidence) is not None:  # see its bits
        cameras = placed_by & 3
        counts = {
            "one_camera": (cameras == 1) | (cameras == 2),
            "several_cameras": cameras == 3,
            "depth": placed_by & 4 > 0,
        }
        measures["evidence"] = {
            side: {name: int(is_so[:, slot].sum()) for name, is_so in counts.items()}
            for slot, side in enumerate(SIDES)
        }
    return measures


def format_evidence(evidence: Mapping[str, Mapping[str, int]]) -> str:
    """Return the ``evidence`` of an episode's report as a line."""
    return "frames placed: " + "; ".join(
        f"{side} {n['one_camera']} by one camera, {n['several_cameras']} by several, "
        f"{n['depth']} with depth"
        for side, n in evidence.items()
    )


def filled_gaps(motion: HandMotion) -> dict[str, int] | None:
    """Return how many gaps of both hands were filled in which frame; None: unknown."""
    if motion.fill_frame is None:
        return None
    before = np.concatenate([np.zeros((1, 2), int), motion.fill_frame[:-1]])
    begun = motion.fill_frame[motion.fill_frame != before]
    return {frame: int((begun == n).sum()) for n, frame in enumerate(FILL_FRAMES, start=1)}


def uncertainty_summary(motion: HandMotion) -> dict[str, Any]:
    """Return the share of known hands that are doubtful, and the uncertainty of fingertips.

    ``tip_sigma_mm``: medians over followed hands of the standard deviation across and along the
    line of sight; None if the tracker has none.
    """
    share = motion.doubtful.sum() / max(int(motion.known.sum()), 1)
    out: dict[str, Any] = {"doubtful_share": _number(share, 4), "tip_sigma_mm": None}
    followed = motion.observed & (motion.quality > 0)
    if motion.joint_sigma is not None and followed.any():
        across, along = 1e3 * np.nanmedian(motion.joint_sigma[followed][:, TIPS], axis=(0, 1))
        out["tip_sigma_mm"] = {"across": _number(across, 1), "along": _number(along, 1)}
    return out


def format_uncertainty(known: Mapping[str, Any]) -> str:
    """Return ``uncertainty_summary`` as the end of a sentence, or ""."""
    words = ""
    if (sigma := known["tip_sigma_mm"]) is not None:
        words = f"; fingertips +-{sigma['across']:.0f} mm across the line of sight, "
        words += f"+-{sigma['along']:.0f} along it"
    if known["doubtful_share"]:
        words += f"; {known['doubtful_share']:.1%} doubtful"
    return words


def format_cuts(entry: Mapping[str, Any]) -> list[str]:
    """Return the lines of an entry of ``JobReport.cuts``: where and why a recording was cut."""
    parts, rules = entry["demonstrations"], entry.get("rules")
    head = f"{entry['source']}: {len(parts)} demonstration{'s' if len(parts) != 1 else ''}"
    if rules:
        moves, rests = rules["speeds"]
        noise = entry["noise_m_s"]
        beyond = "" if noise is None else f" beyond a noise of {noise:.2f}"
        head += f" (moving above {moves:g} m/s, resting below {rests:g}{beyond}; a pause of "
        head += f"{rules['pause_s']:g} s, {rules['hold_s']:g} s where fingertips meet, ends one)"
    named = [(str(n), part, f"{part['starts']}; {part['ends']}") for n, part in enumerate(parts)]
    named += [("left out", part, part["reason"]) for part in entry["left_out"]]
    return [head] + [
        f"  {name}: {part['start_s']:.2f} to {part['end_s']:.2f} s, "
        f"frames {part['first_frame']} to {part['last_frame']}: {why}"
        for name, part, why in sorted(named, key=lambda line: line[1]["first_frame"])
    ]


def _flexion(report: FlexionReport | None) -> dict[str, dict[str, float]] | None:
    if report is None:
        return None
    columns = zip(report.human_deg, report.robot_deg, report.error_deg, strict=True)
    return {
        finger: {"human": _number(human, 1), "robot": _number(robot, 1), "error": _number(error, 1)}
        for finger, (human, robot, error) in zip(report.fingers, columns, strict=True)
    }


def _arm(arm: ArmMotion | None, active: Bool[np.ndarray, "T"]) -> dict[str, Any] | None:
    if arm is None:
        return None
    return {
        "model": arm.model,
        "link": arm.link,
        "reached_share": _number(arm.reached[active].mean(), 4),
        "unreached_frames": int((active & ~arm.reached).sum()),
        "unreached_alone_frames": int((active & ~arm.reached_alone).sum()),
        "position_error_mm": _spread(arm.position_error_m * 1e3, ("mean", "p95")),
        "collision_frames": int((arm.clearance_m < 0).sum()),
        "smallest_distance_mm": {
            "other_arm": _number(1e3 * arm.to_other_m.min(), 1),
            "itself": _number(1e3 * arm.to_itself_m.min(), 1),
            "table": _number(1e3 * arm.to_table_m.min(), 1),
        },
        "T_frame_arm": arm.T_frame_arm.round(6).tolist(),
        "T_frame_table": None if arm.T_frame_table is None else arm.T_frame_table.round(6).tolist(),
        "notes": list(arm.notes),
    }


def episode_provenance(
    motion: HandMotion, trajectory: RobotTrajectory, robot_license: str
) -> dict[str, Any]:
    """Return the provenance that every file of an episode has."""
    record = asdict(motion.provenance)
    record["licenses"] = [*record["licenses"], f"robot model {trajectory.robot}: {robot_license}"]
    record |= {"robot": trajectory.robot, "solver": trajectory.method, "frame": trajectory.frame}
    record["calibration"] = {
        side: None if c is None else {
            "scale": c.scale,
            "rotation": c.rotation.tolist(),
            "translation": c.translation.tolist(),
            "residual_m": c.residual_m,
            "anchors_m": dict(zip(FINGERS, c.finger_offsets.tolist(), strict=True)),
            "lengths": dict(zip(FINGERS, c.lengths.tolist(), strict=True)),
        }
        for side, c in zip(SIDES, trajectory.calibration, strict=True)
    }  # fmt: skip
    return record


def reprojection_px(motion: HandMotion) -> Float[np.ndarray, "N"]:
    """Return the distances, in source pixels, of fitted joints from the tracker's 2D evidence.

    Of observed hands; empty without 2D evidence or placement.
    """
    if motion.camera is None or not motion.placed:
        return np.zeros(0)
    projected = motion.camera.project(motion.joints_camera[motion.observed])
    distance = np.linalg.norm(projected - motion.joints_image[motion.observed], axis=-1)
    return distance[np.isfinite(distance)]


def _spread(values: np.ndarray, names: tuple[str, str]) -> dict[str, float | None]:
    values = values[np.isfinite(values)]
    measures: dict[str, Callable[[np.ndarray], Any]] = {
        "median": np.median,
        "mean": np.mean,
        "p95": lambda v: np.percentile(v, 95),
    }
    return {n: _number(measures[n](values), 3) if len(values) else None for n in names}


def _number(value: float, digits: int) -> float:
    return round(float(value), digits)


def write_commands(
    trajectory: RobotTrajectory,
    path: Path,
    sides: Sequence[Side] = SIDES,
    whole: bool = False,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Write ``.csv``: one row per frame, one column per command in the vendor's order and unit.

    The first column is ``time_s`` since the first frame. Only hands that appear are written; while
    one is absent it keeps its last pose and ``{side}_active`` is 0. ``whole`` rounds to whole
    numbers. Returns the column names. Raises OutputError for another suffix, no such hand or an
    existing file.
    """
    if path.suffix != ".csv":
        raise OutputError(f"{path}: commands are written as .csv.")
    slots = [SIDES.index(side) for side in sides]
    slots = [slot for slot in slots if trajectory.active[:, slot].any()]
    if not slots:
        raise OutputError(f"{path}: no {' or '.join(sides)} hand appears, so nothing is written.")
    names = ["time_s"]
    columns = [(trajectory.timestamps_ns - trajectory.timestamps_ns[0]) / 1e9]
    for slot in slots:
        names += [f"{SIDES[slot]}_{name}" for name in (*trajectory.command_names, "active")]
        columns += [*trajectory.registers[:, slot].T, trajectory.active[:, slot]]
    with (
        atomic_path(path, overwrite) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for time, *values in zip(*columns, strict=True):
            cells = (
                str(round(float(v))) if whole or isinstance(v, np.bool_) else f"{v:.6g}"
                for v in values
            )
            writer.writerow([f"{time:.6f}", *cells])
    return tuple(names)
