"""The verdict: every gate at both levels, what it says, and what is no fault."""

import dataclasses

import numpy as np
import pytest

from acehand_core.errors import SchemaError
from acehand_core.motion import FlexionReport, ReplayReport, RobotTrajectory
from acehand_core.provenance import Agreement, Provenance
from helpers.retarget_samples import motion_of, moving_hands
from retarget.replay.checks import CHECKS, read_limits
from retarget.retargeting import judge

COUNT = 100
CALM = ReplayReport(0.01, 0.0, 0.0, 0.0, 1e-4, 0)


@pytest.fixture(scope="module")
def motion():
    return motion_of(moving_hands(COUNT))


def perfect(motion) -> RobotTrajectory:
    count = len(motion)
    return RobotTrajectory(
        robot="test", timestamps_ns=motion.timestamps_ns, fps=motion.fps, joint_names=("a",),
        command_names=("a",), command_joints=("a",),
        joints=np.linspace(0, 1, 2 * count).reshape(count, 2, 1),
        commands=np.zeros((count, 2, 1)), registers=np.zeros((count, 2, 1)), frame="camera",
        T_frame_base=np.tile(np.eye(4), (count, 2, 1, 1)), confidence=np.ones((count, 2)),
        active=np.ones((count, 2), bool), tip_error_m=np.zeros((count, 2, 5)),
        calibration=(None, None), limit_violations=0, speed_violations=0,
        coupling_residual_rad=0.0, method="test", solve_seconds=0.0,
        provenance=Provenance("test", None, "test"), replay=(CALM, CALM),
    )  # fmt: skip


@pytest.fixture
def trajectory(motion):
    return perfect(motion)


def with_report(trajectory, slot, **values):
    reports = list(trajectory.replay)
    reports[slot] = dataclasses.replace(CALM, **values)
    return dataclasses.replace(trajectory, replay=tuple(reports))


def assert_verdict(verdict, status, *parts):
    assert verdict.status == status
    assert len(verdict.reasons) == (1 if parts else 0)
    for part in parts:
        assert part in verdict.reasons[0]


def test_a_good_clip_passes(motion, trajectory):
    assert_verdict(judge(motion, trajectory), "pass")


@pytest.mark.parametrize(("fps", "reasons"), [(5.0, ()), (4.0, ("4 frames per second",))])
def test_a_slow_recording_does_not_pass(motion, trajectory, fps, reasons):
    times = {"fps": fps, "timestamps_ns": np.round(np.arange(COUNT) / fps * 1e9).astype(np.int64)}
    slow = dataclasses.replace(trajectory, **times)
    slower = dataclasses.replace(motion, **times)
    assert_verdict(judge(slower, slow), "warn" if reasons else "pass", *reasons)


@pytest.mark.parametrize(("count", "status"), [(1, "pass"), (45, "warn"), (60, "fail")])
def test_frames_of_confidence_0_are_a_reason_and_count_as_filled(motion, trajectory, count, status):
    quality = np.ones((COUNT, 2))
    quality[:count, 1] = 0
    error = np.where(quality[..., None] > 0, trajectory.tip_error_m, np.nan)
    unsure = dataclasses.replace(motion, quality=quality)
    verdict = judge(unsure, dataclasses.replace(trajectory, tip_error_m=error))
    named = [f"{count}.0% of the right" in r for r in verdict.reasons]
    assert (verdict.status, sum(named)) == (status, 1)


def hardly_known(motion, trajectory, count):
    sigma = np.full((COUNT, 2, 21, 2), 0.05)  # of the hand's place: no fingertip is off in its palm
    sigma[:, 1, [4, 8, 12, 16, 20]] = np.hypot(0.05, 0.029)
    sigma[:count, 1, [4, 8, 12, 16, 20]] = np.hypot(0.05, 0.031)
    return dataclasses.replace(motion, joint_sigma=sigma), trajectory


def far_off(motion, trajectory, count):
    error = trajectory.tip_error_m.copy()
    error[:, 1] = 0.0299
    error[:count, 1] = 0.0301
    return motion, dataclasses.replace(trajectory, tip_error_m=error)


def seldom_seen(motion, trajectory, count):
    known = np.ones((COUNT, 2), bool)
    known[count:, 1] = False
    error = np.where(known[..., None], trajectory.tip_error_m, np.nan)
    seen = dataclasses.replace(trajectory, active=known, tip_error_m=error)
    return dataclasses.replace(motion, observed=known), seen


def filled(motion, trajectory, count):
    rows = np.zeros((COUNT, 2), bool)
    rows[:count, 0] = True
    return dataclasses.replace(motion, filled=rows, observed=~rows), trajectory


def jerked(motion, trajectory, metres_per_s2):
    """One jerk of the base over three frames: x'' = (x0 - 2 x1 + x2) fps^2."""
    poses = trajectory.T_frame_base.copy()
    poses[50, 1, :3, 3] = np.array([0.6, 0.0, 0.8]) * metres_per_s2 / motion.fps**2 / 2
    return motion, dataclasses.replace(trajectory, T_frame_base=poses)


@pytest.mark.parametrize(
    ("change", "passes", "warns", "fails", "text"),
    [
        (hardly_known, (40,), (45, 50), (55,), "{}% of the right human fingertips"),
        (far_off, (25,), (26, 35), (36,), "{}% of the right robot fingertips are over 30 mm"),
        (seldom_seen, (50,), (49, 1), (), "in only {}% of the frames"),
        (filled, (40,), (41, 50), (51,), "{}% of the left"),
        (jerked, (29,), (31, 59), (61,), "right wrist accelerates with {} m/s2"),
    ],
)
def test_limits(motion, trajectory, change, passes, warns, fails, text):
    for status, values in (("pass", passes), ("warn", warns), ("fail", fails)):
        for value in values:
            verdict = judge(*change(motion, trajectory, value))
            named = [text.format(value) in reason for reason in verdict.reasons]
            assert (verdict.status, sum(named)) == (status, status != "pass"), value


def test_no_hand_fails(motion, trajectory):
    empty = dataclasses.replace(trajectory, active=np.zeros((COUNT, 2), bool), replay=(None, None))
    assert_verdict(judge(motion, empty), "fail", "no hand was found")


@pytest.mark.parametrize("slot", [0, 1])
def test_an_absent_hand_is_no_fault(motion, trajectory, slot):
    seen = np.tile(np.arange(2) != slot, (COUNT, 1))
    poses = trajectory.T_frame_base.copy()
    poses[::2, slot, 0, 3] = 100.0
    values = {"tip_error_m": np.where(seen[..., None], trajectory.tip_error_m, np.nan)}
    values["replay"] = tuple(None if i == slot else CALM for i in range(2))
    alone = dataclasses.replace(trajectory, active=seen, T_frame_base=poses, **values)
    assert_verdict(judge(dataclasses.replace(motion, observed=seen), alone), "pass")


@pytest.mark.parametrize("field", ["limit_violations", "speed_violations"])
def test_broken_limits_fail(motion, trajectory, field):
    broken = dataclasses.replace(trajectory, **{field: 7})
    assert_verdict(judge(motion, broken), "fail", "7 joint-frames")


@pytest.mark.parametrize(("slot", "side"), [(0, "left"), (1, "right")])
@pytest.mark.parametrize(
    ("field", "gate", "text"),
    [
        ("rms_tracking_rad", "tracking_rad", "the simulated {side} hand follows with"),
        ("rms_tracking_m", "tracking_m", "the simulated {side} hand follows with"),
        ("max_penetration_mm", "penetration_mm", "the {side} hand would reach"),
        ("commanded_penetration_mm", "penetration_mm", "the {side} hand would reach"),
        ("saturation_share", "saturation", "of the {side} hand's actuator steps are saturated"),
    ],
)
def test_simulation_gates(motion, trajectory, slot, side, field, gate, text):
    warn, fail = CHECKS[gate].warn, CHECKS[gate].fail
    text = text.format(side=side)
    for value, status, named in (
        (warn, "pass", ()), (warn * 1.01, "warn", (text, f"(limit {warn:g})")),
        (fail, "warn", (text,)), (fail * 1.01, "fail", (text, f"(limit {fail:g})")),
    ):  # fmt: skip
        report = with_report(trajectory, slot, **{field: value})
        assert_verdict(judge(motion, report), status, *named)


def test_a_simulation_that_goes_deep_is_unstable_or_is_missing(motion, trajectory):
    deep = with_report(trajectory, 1, max_penetration_mm=3.0, commanded_penetration_mm=12.0)
    assert_verdict(judge(motion, deep), "warn", "12.0 mm into itself")
    shaky = with_report(trajectory, 0, unstable_steps=3)
    assert_verdict(judge(motion, shaky), "fail", "left simulation was unstable in 3 steps")
    bare = dataclasses.replace(trajectory, replay=(None, None))
    assert_verdict(judge(motion, bare), "pass")


@pytest.mark.parametrize(("slot", "side"), [(0, "left"), (1, "right")])
@pytest.mark.parametrize(
    ("error", "status"), [(20, "pass"), (20.1, "warn"), (40, "warn"), (40.1, "fail")]
)
def test_flexion(motion, trajectory, slot, side, error, status):
    """The worst finger decides: the mean over these four would be a fourth of it."""
    report = FlexionReport(
        ("index", "middle", "ring", "pinky"), np.array([10.0, 10, 58, 10]),
        np.array([10.0, 10, 25, 10]), np.array([0.0, 0, error, 0]),
    )  # fmt: skip
    both = [None, None]
    both[slot] = report
    verdict = judge(motion, dataclasses.replace(trajectory, flexion=tuple(both)))
    reason = (f"the {side} robot's ring finger bends {error:.0f} degrees", "25 and 58")
    assert_verdict(verdict, status, *(reason if status != "pass" else ()))


def test_a_jump_across_an_absence_is_no_acceleration(motion, trajectory):
    poses = trajectory.T_frame_base.copy()
    poses[50:, 1, 0, 3] = 5.0
    active = trajectory.active.copy()
    active[49, 1] = False
    moved = dataclasses.replace(trajectory, T_frame_base=poses, active=active)
    # Frames 48, 49, 50: never three active ones in a row across the jump ...
    assert_verdict(judge(motion, moved), "pass")
    # ... and without the absence it is one.
    assert judge(motion, dataclasses.replace(trajectory, T_frame_base=poses)).status == "fail"


def test_without_a_place_no_acceleration(motion, trajectory):
    nowhere = dataclasses.replace(trajectory, frame="none", T_frame_base=None)
    assert_verdict(judge(motion, nowhere), "pass")


def test_the_worst_finding_decides_and_all_are_said(motion, trajectory):
    bad = with_report(trajectory, 0, rms_tracking_rad=0.2, saturation_share=0.5)
    bad = dataclasses.replace(bad, limit_violations=1)
    verdict = judge(motion, bad)
    assert verdict.status == "fail" and len(verdict.reasons) == 3


@pytest.mark.parametrize("count", [1, 2, 9, 10])
def test_very_short_clips(count):
    motion = motion_of(moving_hands(12)[:count])
    reasons = ("no trajectory",) if count < 10 else ()
    assert_verdict(judge(motion, perfect(motion)), "warn" if reasons else "pass", *reasons)


@pytest.mark.parametrize(
    "used, doubt, status",
    [(30, "", "pass"), (25, "", "pass"), (10, "", "warn"), (0, "depth", "warn")],
)
def test_what_was_given_and_not_used_is_a_reason(motion, trajectory, used, doubt, status):
    one = Agreement("depth", frames=30, used=used, doubt=doubt)
    changed = dataclasses.replace(motion.provenance, agreement=(one,))
    verdict = judge(dataclasses.replace(motion, provenance=changed), trajectory)
    assert verdict.status == status
    assert bool(verdict.reasons) == (used < 30) and all("depth" in r for r in verdict.reasons)


def test_what_was_assumed_is_a_reason(motion, trajectory):
    changed = dataclasses.replace(motion.provenance, assumed={"lens": 0.35, "hand length": 0.063})
    verdict = judge(dataclasses.replace(motion, provenance=changed), trajectory)
    (reason,) = verdict.reasons
    assert verdict.status == "pass" and "lens" in reason and "35%" in reason and "6%" in reason

    changed = dataclasses.replace(changed, assumed={"single picture": 1.0})
    verdict = judge(dataclasses.replace(motion, provenance=changed), trajectory)
    assert verdict.status == "warn" and "single picture" in verdict.reasons[0]


def test_limits_from_a_file(motion, trajectory, tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text("tracking_rad: {warn: 0.01, fail: 0.02}\nfilled: {warn: 0.1}\n")
    limits = read_limits(path)
    assert (limits["tracking_rad"].warn, limits["tracking_rad"].fail) == (0.01, 0.02)
    filled = dataclasses.replace(CHECKS["filled"], warn=0.1)
    assert limits == CHECKS | {"tracking_rad": limits["tracking_rad"], "filled": filled}
    late = with_report(trajectory, 0, rms_tracking_rad=0.03)
    assert judge(motion, late).status == "pass"
    assert_verdict(judge(motion, late, limits), "fail", "0.03 rad", "(limit 0.02)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trackin_rad: {warn: 1}", "trackin_rad .*'tracking_rad'"),
        ("filled: {worn: 1}", "filled.worn"),
        ("filled: {warn: 0.6}", "filled .*0.6 and 0.5"),
        ("filled: {warn: -1}", "filled .*-1"),
        ("filled: {warn: .nan}", "filled.warn"),
        ("filled: 0.2", "filled"),
        ("- filled", "mapping"),
    ],
)
def test_bad_limits_say_why(tmp_path, text, message):
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as error:
        read_limits(path)
    assert str(path) in str(error.value)
