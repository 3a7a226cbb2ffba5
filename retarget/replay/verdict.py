"""Pass, warn or fail, and why: what a conversion says of a clip, by the judgements of everybody."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from acehand_core.motion import HandMotion, RobotTrajectory, Verdict
from acehand_core.types import SIDES, Side, TimestampsNs
from retarget.replay.clip import Clip, clip_measures, clip_of
from retarget.replay.judgements import JUDGEMENTS, Judgements, Measure, findings, status_of
from retarget.robots.robot import Robot

#: Of these the reason says all: there is no number of which a limit would tell more.
_PLAIN = ("one_frame", "frame_s", "absent", "wrong_side", "joint_limits", "speed_limits",
          "unstable", "cannot")  # fmt: skip


def judge(
    motion: HandMotion,
    trajectory: RobotTrajectory,
    gates: Judgements = JUDGEMENTS,
    robot: Robot | None = None,
    source_ns: TimestampsNs | None = None,
) -> Verdict:
    """Return the verdict over both hands of one clip.

    A hand that never appears is no fault; a clip without any hand fails. Frames of confidence 0
    are named among the reasons even where they are too few to change the status.

    Args:
        robot: that of the trajectory, to measure how far its hands are from the human ones.
        source_ns: stamps of the source's frames; None: those of the motion.
    """
    if not trajectory.active.any():
        return Verdict("fail", ("no hand was found",))
    clip = Clip(**clip_of(motion, trajectory, source_ns))
    counted = {"joint_limits": (trajectory.limit_violations, "outside the joint limits"),
               "speed_limits": (trajectory.speed_violations, "faster than the hand")}  # fmt: skip
    measures = [Measure(name, count, f"{count} joint-frames are {what}")
                for name, (count, what) in counted.items()]  # fmt: skip
    measures += [Measure("cannot", 1, note) for note in trajectory.notes]
    measures += [
        measure
        for measure in clip_measures(clip, robot, trajectory.tip_error_m)
        if measure.check not in counted  # exactly, before they were stored
    ]
    for slot, side in enumerate(SIDES):
        if clip.valid[:, slot].any():
            measures += _replay_measures(trajectory, slot, side)

    found, reasons = findings(measures, gates), []
    for finding in found:
        limit = getattr(gates[finding.check], finding.level, None)
        named = limit is not None and finding.check not in _PLAIN
        reasons.append(f"{finding.text} (limit {limit:g})" if named else finding.text)
    words = {"accepted": "pass", "doubtful": "warn", "rejected": "fail"}
    return Verdict(words[status_of(found)], tuple(reasons))  # type: ignore[arg-type]


def _replay_measures(trajectory: RobotTrajectory, slot: int, side: Side) -> Iterator[Measure]:
    if (flexion := trajectory.flexion[slot]) is not None:
        # The finger that bends least like the human's: a mean would hide one of four.
        worst = int(np.argmax(flexion.error_deg))
        degrees, finger = float(flexion.error_deg[worst]), flexion.fingers[worst]
        text = f"the {side} robot's {finger} finger is bent {degrees:.0f} degrees otherwise than "
        text += f"the human's (mean {flexion.robot_deg[worst]:.0f} and "
        yield Measure("flexion_deg", degrees, f"{text}{flexion.human_deg[worst]:.0f})", side)
    if (replay := trajectory.replay[slot]) is None:
        return
    turning, sliding = replay.rms_tracking_rad, replay.rms_tracking_m
    depth = max(replay.max_penetration_mm, replay.commanded_penetration_mm)
    share, follows = replay.saturation_share, f"the simulated {side} hand follows with"
    for name, value, text in (
        ("tracking_rad", turning, f"{follows} {turning:.2f} rad rms error"),
        ("tracking_m", sliding, f"{follows} {sliding * 1e3:.1f} mm rms error"),
        ("penetration_mm", depth, f"the {side} hand would reach {depth:.1f} mm into itself"),
        ("saturation", share, f"{share:.0%} of the {side} hand's actuator steps are saturated"),
        ("unstable", replay.unstable_steps,
         f"the {side} simulation was unstable in {replay.unstable_steps} steps"),
    ):  # fmt: skip
        yield Measure(name, value, text, side)
