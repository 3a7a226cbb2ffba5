"""Converter and review judge alike: clips whose faults are known by construction, through both."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from acehand_core.lerobot.episode import DatasetReader
from acehand_core.motion import RobotTrajectory
from acehand_core.pipeline import converter as main_run
from acehand_core.review.inspect import robot_of
from acehand_core.review.measures import episode_measures
from helpers.commands import GripperRun as Run
from helpers.commands import hands_file
from helpers.retarget_samples import moving_hands
from retarget.replay.checks import CHECKS, findings, status_of
from retarget.retargeting import judge

COUNT = 60


def stamps(*missing: int, fps: float = 30.0, count: int = COUNT) -> dict[str, Any]:
    """Return entries of a file with times; ``missing`` frames never came."""
    kept = np.delete(np.arange(count), missing)
    times = np.round(kept * 1e9 / fps).astype(np.int64)
    return {"joints": moving_hands(count)[kept], "timestamps_ns": times, "fps": min(fps, 30)}


def absent(slot: int, first: int) -> dict[str, Any]:
    joints = moving_hands(COUNT)
    joints[first:, slot] = np.nan
    return {"joints": joints}


def elsewhere() -> dict[str, Any]:
    """The right hand is 0.4 m away in two frames: there and back twice, at 12 m/s."""
    joints = moving_hands(COUNT)
    joints[[20, 40], 1] += [0.4, 0, 0]
    return {"joints": joints}


def far_base(made: RobotTrajectory) -> RobotTrajectory:
    assert made.T_frame_base is not None
    poses = made.T_frame_base.copy()
    poses[..., 2, 3] += 0.3
    return dataclasses.replace(made, T_frame_base=poses)


def outside(made: RobotTrajectory) -> RobotTrajectory:
    """Every joint of the left hand is 10 rad beyond anything that a robot does, in 3 frames."""
    joints = made.joints.copy()
    joints[10:13, 0] += 10.0
    count = 3 * joints.shape[2]
    return dataclasses.replace(made, joints=joints, limit_violations=count)


#: By clip: what its file holds, what goes wrong with the robot, and what is to be found of it.
CLIPS = {
    "fine": ({}, None, set()),
    # Nothing was recorded for 2 s at a time: every frame is an episode of its own.
    "half a frame a second": (stamps(fps=0.5, count=3), None, {"few_frames warn"}),
    "two frames a second": (stamps(fps=2, count=12), None, {"frame_s warn"}),
    "one frame": ({"joints": moving_hands(1)}, None, {"few_frames warn"}),
    # 20 of 60 frames: 0.7 s from one to the next, 0.67 more than usual.
    "a hole in time": (stamps(*range(20, 40)), None, {"stamp_gaps fail"}),
    "a hand that is mostly missing": (absent(1, 20), None, {"absent warn"}),
    "a hand that never appears": (absent(1, 0), None, set()),
    "a wrist that jumps": (elsewhere(), None, {"speed fail"}),
    "a far base": ({}, far_base, {"base fail"}),
    "joints outside their limits": ({}, outside, {"joint_limits fail"}),
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CLIPS)
def test_a_clip_is_judged_alike(name, tmp_path, capsys, monkeypatch):
    entries, damage, wanted = CLIPS[name]
    real, trajectories = main_run.retarget_motion, []

    def retargeted(motion, robot, *given, **named):
        made = real(motion, robot, *given, **named)
        if damage is not None:
            made = damage(made)
            verdict = judge(motion, made, robot=robot, source_ns=named["source_ns"])
            made = dataclasses.replace(made, verdict=verdict)
        trajectories.append(made)
        return made

    monkeypatch.setattr(main_run, "retarget_motion", retargeted)
    file = hands_file(tmp_path / "hands.npz", COUNT, **entries)
    output = tmp_path / "dataset"
    run = Run(capsys, file, "--output", output, "--no-overlay")
    assert run.code == 0, run.err
    verdict = trajectories[0].verdict
    assert verdict is not None

    reader = DatasetReader(output)
    measures = [m for m in episode_measures(reader.read(0), robot_of(reader))
                if CHECKS[m.check].source == "clip"]  # fmt: skip
    found = findings(measures)
    assert wanted <= {f"{f.check} {f.level}" for f in found}
    if not wanted:
        assert status_of(found) == "pass"
    # All that the page finds is among the converter's reasons, and nothing else but of the replay.
    said = {reason.split(" (limit")[0] for reason in verdict.reasons}
    # Of joints beyond their limits the converter counts both hands, before they were stored.
    assert {f.text for f in found if f.check != "joint_limits"} <= said
    assert any(f.check == "joint_limits" for f in found) == any(
        "outside the joint limits" in reason for reason in said
    )
    order = ["pass", "warn", "fail"]
    assert order.index(verdict.status) >= order.index(status_of(found))
    if len(said) == len({f.text for f in found}):
        assert verdict.status == status_of(found)
