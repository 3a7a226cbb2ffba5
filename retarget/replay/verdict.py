"""Pass, warn or fail, and why: every gate is a number that was measured on the clip."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acehand_core.hand.skeleton import TIPS
from acehand_core.motion import HandMotion, ReplayReport, RobotTrajectory, Verdict
from acehand_core.types import SIDES
from retarget.robots.parameters import read_yaml
from retarget.solve.targets import palm_sigma


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits of one quantity: above ``warn`` the clip is doubtful, above ``fail`` unusable."""

    warn: float
    fail: float


#: Fail limits of wrist acceleration, far tips and penetration are those in use elsewhere for
#: accepting retargeted clips; the warn limits are ours.
GATES = {
    "filled": Gate(0.20, 0.50),
    "uncertain_tips": Gate(0.20, 0.50),
    "far_tips": Gate(0.15, 0.35),
    "flexion_deg": Gate(20.0, 40.0),
    "tracking_rad": Gate(0.10, 0.30),
    "tracking_m": Gate(0.003, 0.01),
    "penetration_mm": Gate(1.0, 20.0),
    "saturation": Gate(0.05, 0.30),
    "wrist_acceleration": Gate(30.0, 60.0),
}
FAR_TIP_M = 0.030
LOW_COVERAGE = 0.5
#: Slower recordings do not show how a hand moves.
MIN_FPS = 5.0

Gates = Mapping[str, Gate]
#: Level ("note", "warn" or "fail") and reason.
_Finding = tuple[str, str]


def read_gates(path: Path) -> dict[str, Gate]:
    """Read limits from YAML, ``{gate: {warn, fail}}``; what the file leaves out stays as it is.

    Raises:
        InputError: the file cannot be read. SchemaError: it breaks the schema.
    """
    root = read_yaml(path)
    root.only(" ".join(GATES))
    gates = dict(GATES)
    for name in root:
        entry = root.section(name)
        entry.only("warn fail")
        gate = Gate(entry.number("warn", gates[name].warn), entry.number("fail", gates[name].fail))
        if not 0 <= gate.warn <= gate.fail:
            root.fail(name, f"must have 0 <= warn <= fail, not {gate.warn:g} and {gate.fail:g}.")
        gates[name] = gate
    return gates


def judge(motion: HandMotion, trajectory: RobotTrajectory, gates: Gates = GATES) -> Verdict:
    """Return the verdict over both hands of one clip.

    A hand that never appears is no fault; a clip without any hand fails. Frames of confidence 0
    are named among the reasons even where they are too few to change the status.
    """
    if not trajectory.active.any():
        return Verdict("fail", ("no hand was found",))
    findings: list[_Finding] = []
    if count := trajectory.limit_violations:
        findings.append(("fail", f"{count} joint-frames are outside the joint limits"))
    if count := trajectory.speed_violations:
        findings.append(("fail", f"{count} joint-frames are faster than the hand"))
    if len(trajectory) < 2:
        findings.append(("warn", "one frame is no trajectory"))
    elif trajectory.fps < MIN_FPS:
        findings.append(("warn", f"{trajectory.fps:g} frames per second do not show a motion"))
    findings += [("warn", note) for note in trajectory.notes]
    for slot, side in enumerate(SIDES):
        if trajectory.active[:, slot].any():
            findings += _hand_findings(motion, trajectory, slot, side, gates)

    levels = {level for level, _ in findings} - {"note"}
    reasons = tuple(reason for _, reason in findings)
    if not levels:
        return Verdict("pass", reasons)
    return Verdict("fail" if "fail" in levels else "warn", reasons)


def _hand_findings(
    motion: HandMotion, trajectory: RobotTrajectory, slot: int, side: str, gates: Gates
) -> Iterator[_Finding]:
    active = trajectory.active[:, slot]
    coverage = float(motion.observed[:, slot].mean())
    if coverage < LOW_COVERAGE:
        yield "warn", f"{side} hand was seen in only {coverage:.0%} of the frames"

    # Frames that gap filling wrote, or that nothing is trusted of: both are guesses.
    filled = motion.filled[:, slot] & active
    doubtful = (motion.quality[:, slot] == 0) & active & ~filled
    share = [float(flags.sum()) / int(active.sum()) for flags in (filled, doubtful)]
    reason = f"{share[0]:.0%} of the {side} hand's frames are filled in"
    if share[1]:
        guess = f"{share[1]:.1%} of the {side} hand's frames have confidence 0 and are not followed"
        reason = f"{guess}, {share[0]:.0%} are filled in" if share[0] else guess
    exceeded = _gate(gates, "filled", sum(share), reason)
    yield from exceeded or ([("note", reason)] if share[1] else [])

    seen = motion.observed[:, slot] & (motion.quality[:, slot] > 0) & active
    if motion.joint_sigma is not None and seen.any():
        sigma = palm_sigma(motion.joint_sigma[seen, slot])[:, TIPS]
        vague = float((sigma > FAR_TIP_M).mean())
        reason = f"{vague:.0%} of the {side} human fingertips are not known to 30 mm in the palm"
        yield from _gate(gates, "uncertain_tips", vague, reason)

    error = trajectory.tip_error_m[active, slot]
    error = error[np.isfinite(error)]
    far = float((error > FAR_TIP_M).mean()) if len(error) else 0.0
    yield from _gate(
        gates, "far_tips", far, f"{far:.0%} of the {side} robot fingertips are over 30 mm off"
    )
    if (flexion := trajectory.flexion[slot]) is not None:
        # The finger that bends least like the human's: a mean would hide one of four.
        worst = int(np.argmax(flexion.error_deg))
        degrees, finger = float(flexion.error_deg[worst]), flexion.fingers[worst]
        yield from _gate(
            gates, "flexion_deg", degrees,
            f"the {side} robot's {finger} finger is bent {degrees:.0f} degrees otherwise than the "
            f"human's (mean {flexion.robot_deg[worst]:.0f} and {flexion.human_deg[worst]:.0f})",
        )  # fmt: skip
    if (replay := trajectory.replay[slot]) is not None:
        yield from _replay_findings(replay, side, gates)

    acceleration = _wrist_acceleration(trajectory, slot)
    reason = f"the {side} wrist accelerates with {acceleration:.0f} m/s2"
    yield from _gate(gates, "wrist_acceleration", acceleration, reason)


def _replay_findings(replay: ReplayReport, side: str, gates: Gates) -> Iterator[_Finding]:
    turning, sliding = replay.rms_tracking_rad, replay.rms_tracking_m
    depth = max(replay.max_penetration_mm, replay.commanded_penetration_mm)
    share, follows = replay.saturation_share, f"the simulated {side} hand follows with"
    for name, value, reason in (
        ("tracking_rad", turning, f"{follows} {turning:.2f} rad rms error"),
        ("tracking_m", sliding, f"{follows} {sliding * 1e3:.1f} mm rms error"),
        ("penetration_mm", depth, f"the {side} hand would reach {depth:.1f} mm into itself"),
        ("saturation", share, f"{share:.0%} of the {side} hand's actuator steps are saturated"),
    ):
        yield from _gate(gates, name, value, reason)
    if replay.unstable_steps:
        yield "fail", f"the {side} simulation was unstable in {replay.unstable_steps} steps"


def _gate(gates: Gates, name: str, value: float, reason: str) -> list[_Finding]:
    gate = gates[name]
    if value > gate.fail:
        return [("fail", f"{reason} (limit {gate.fail:g})")]
    return [("warn", f"{reason} (limit {gate.warn:g})")] if value > gate.warn else []


def _wrist_acceleration(trajectory: RobotTrajectory, slot: int) -> float:
    """Largest acceleration of the base over three consecutive active frames, m/s^2."""
    if trajectory.T_frame_base is None or len(trajectory) < 3:
        return 0.0
    active = trajectory.active[:, slot]
    together = active[:-2] & active[1:-1] & active[2:]
    second = np.diff(trajectory.T_frame_base[:, slot, :3, 3], 2, axis=0) * trajectory.fps**2
    return float(np.linalg.norm(second[together], axis=1).max(initial=0.0))
