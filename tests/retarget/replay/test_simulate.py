"""Replay on the simulated hand: it follows what it can, and says so when it cannot."""

import dataclasses

import mujoco
import numpy as np
import pytest

from acehand_core.errors import InputError
from retarget.replay import simulate
from retarget.replay.simulate import replay, self_penetration
from retarget.robots.kinematics import load_mjcf
from retarget.robots.robot import load_robot

FPS = 30


def times(count):
    return np.arange(count) / FPS


def open_hand(hand, count, **angles):
    commands = np.tile(np.clip(0.0, hand.command_lower, hand.command_upper), (count, 1))
    for name, values in angles.items():
        commands[:, hand.command_names.index(name)] = values
    return commands


def slow_sine(hand, seconds=6.0):
    """Fingers and thumb bend in a sine at 0.8 of their speed limits, thumb rotated out."""
    t = times(int(seconds * FPS))
    low, high = hand.command_lower, hand.command_upper
    rate = 0.8 * hand.command_velocity / ((high - low) / 2)
    commands = (low + high) / 2 - (high - low) / 2 * np.cos(np.minimum(rate, 1.5) * t[:, None])
    commands[:, hand.command_names.index("thumb_rotation")] = low[-1]
    commands[:, hand.command_names.index("thumb_bend")] *= 0.4
    return commands, t


def test_slow_motion_is_followed(hand):
    commands, t = slow_sine(hand)
    result = replay(hand, commands, t)
    report = result.report
    assert report.rms_tracking_rad < 0.05
    assert report.coupling_residual_rad < 0.01
    assert report.unstable_steps == 0
    # The report is about what the simulated joints did.
    error = hand.reduce(result.joints) - commands
    assert report.rms_tracking_rad == pytest.approx(np.sqrt(np.mean(error**2)))


def as_fast_as_its_servos(hand):
    return dataclasses.replace(hand, command_velocity=np.full(len(hand.rest), np.inf))


def with_springs(monkeypatch, stiffness):
    """Pull every joint to 1 rad; ``stiffness`` in N m/rad."""

    def load(path):
        model = load_mjcf(path)
        model.jnt_stiffness[:], model.qpos_spring[:] = stiffness, 1.0
        return model

    monkeypatch.setattr(simulate, "load_mjcf", load)


#: Rise (10 to 90 %) and settle (2 %) times that were measured on the hand, register 1000 to 500 at
#: full speed, s.
MEASURED = {"index": (0.181, 0.280), "thumb_bend": (0.298, 0.431), "thumb_rotation": (0.236, 0.340)}


def step_response(hand, name, latency_s=0.0):
    """Return rise and settle time, and the simulated share of the step, at 1 kHz."""
    k, t = hand.command_names.index(name), np.arange(900) / 1000
    registers = np.full(6, 1000.0)
    before = hand.controller.to_angles(registers)
    registers[k] = 500.0
    after = hand.controller.to_angles(registers)
    commands = np.where(t[:, None] < 0.1, before, after)
    joints = hand.reduce(replay(hand, commands, t, latency_s=latency_s).joints)
    share = (joints[:, k] - before[k]) / (after[k] - before[k])
    rise = t[np.argmax(share > 0.9)] - t[np.argmax(share > 0.1)]
    settle = t[np.flatnonzero(np.abs(share - 1) > 0.02)[-1] + 1] - t[np.argmax(t >= 0.1)]
    return rise, settle, share


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MEASURED)
def test_step_response_is_the_measured_one(side, name):
    hand = load_robot("inspire").hand(side)
    rise, settle, share = step_response(hand, name)
    assert rise == pytest.approx(MEASURED[name][0], rel=0.06)
    assert settle == pytest.approx(MEASURED[name][1], rel=0.06)
    assert share.max() < 1.005  # no overshoot
    # A rate limit: the middle of the way is a straight line at the hand's speed.
    k = hand.command_names.index(name)
    span = 0.5 * (hand.command_upper[k] - hand.command_lower[k])
    middle = (share > 0.4) & (share < 0.6)
    speed = np.gradient(share, 1e-3)[middle] * span
    assert speed == pytest.approx(hand.command_velocity[k], rel=0.03)


def test_without_the_rate_limit_the_step_is_too_fast(right):
    rise, _, _ = step_response(as_fast_as_its_servos(right), "index")
    assert rise < 0.5 * MEASURED["index"][0]


def test_the_latency_comes_before_the_step(right):
    _, _, prompt = step_response(right, "index")
    _, _, late = step_response(right, "index", right.latency_s)
    assert np.argmax(late > 0.5) - np.argmax(prompt > 0.5) == pytest.approx(66, abs=2)


def test_a_torque_too_small_saturates(right, monkeypatch):
    commands = open_hand(right, 30)
    calm = replay(right, commands, times(30)).report
    assert calm.saturation_share == 0 and calm.rms_tracking_rad < 1e-4
    with_springs(monkeypatch, 100.0)
    pressed = replay(right, commands, times(30)).report
    assert pressed.saturation_share > 0.3 and pressed.rms_tracking_rad > 0.3


def test_fingers_through_the_thumb_are_reported(right):
    """Thumb in front of the palm, then a fist: the index closes onto the thumb."""
    t = times(60)
    closing = np.clip(t - 0.3, 0, 1) * 1.47
    commands = open_hand(right, 60, thumb_rotation=0.8, thumb_bend=0.6, index=closing)
    commanded = self_penetration(right, right.expand(commands))
    report = replay(right, commands, t).report
    assert commanded[0] == 0 and commanded.max() > 8e-3
    # Contact holds the fingers apart: hardly any depth, but the command is not followed.
    assert 0.1 < report.max_penetration_mm < 2
    assert report.rms_tracking_rad > 0.1 and report.saturation_share > 0.05


def test_an_open_and_a_closed_hand_do_not_touch_themselves(right):
    open_and_fist = np.stack([np.zeros(6), np.array([1.47, 1.47, 1.47, 1.47, 0.0, 0.0])])
    assert self_penetration(right, right.expand(open_and_fist)).tolist() == [0, 0]


def test_an_exploding_simulation_is_counted_and_leaves_no_log(right, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_springs(monkeypatch, 1e14)
    result = replay(right, open_hand(right, 3), times(3))
    assert result.report.unstable_steps > 0
    assert np.isfinite(result.joints).all()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_commands_that_are_not_finite_are_refused(right, value):
    commands = open_hand(right, 5)
    commands[3, right.command_names.index("thumb_bend")] = value
    with pytest.raises(InputError, match=r"'thumb_bend' is (nan|inf) .*3"):
        replay(right, commands, times(5))


def test_times_and_counts_are_checked(right):
    commands = open_hand(right, 5)
    with pytest.raises(InputError, match="increase"):
        replay(right, commands, times(5)[::-1].copy())
    with pytest.raises(Exception, match=r"equal numbers|Type-check|violates"):
        replay(right, commands, times(4), active=np.ones(4, bool))
    with pytest.raises(InputError, match="takes 6: pinky"):
        replay(right, commands[:, :5], times(5))
    with pytest.raises(InputError, match="no commands"):
        replay(right, commands[:0], times(0))


#: Published couplings of the hand: joint, the driven one, factor, offset.
COUPLINGS = [
    *((f"{finger}_intermediate", f"{finger}_proximal", 1.06399, -0.04545)
      for finger in ("index", "middle", "ring", "pinky")),
    ("thumb_intermediate", "thumb_proximal_pitch", 1.334, 0.0),
    ("thumb_distal", "thumb_proximal_pitch", 0.667, 0.0),
]  # fmt: skip


def test_the_coupling_residual_is_the_largest_of_any_step(right):
    """Against MuJoCo itself: a finger commanded to jump bends its coupled joint late."""
    t = times(16)
    commands = open_hand(right, 16, index=np.where(t < 0.2, 0.0, 1.0))
    model = mujoco.MjModel.from_xml_path(str(right.mjcf_path))
    model.opt.gravity[:] = 0
    per_frame = int(np.ceil(1 / FPS / model.opt.timestep))
    model.opt.timestep = 1 / FPS / per_frame
    data = mujoco.MjData(model)
    expanded = dict(zip(right.joint_names, right.expand(commands[0]), strict=True))
    for name, angle in expanded.items():
        data.joint(f"right_{name}").qpos[0] = angle
    worst = np.zeros(len(t))
    for frame in range(1, len(t)):
        for share in np.arange(1, per_frame + 1) / per_frame:
            wanted = commands[frame - 1] + share * (commands[frame] - commands[frame - 1])
            for name, angle in zip(right.command_names, wanted, strict=True):
                data.actuator(f"right_{name}").ctrl[0] = angle
            mujoco.mj_step(model, data)
            at = {name: data.joint(f"right_{name}").qpos[0] for name in expanded}
            residual = max(abs(at[q] - (k * at[s] + b)) for q, s, k, b in COUPLINGS)
            worst[frame] = max(worst[frame], residual)
    assert 0 < worst.argmax() < len(t) - 1 and worst.max() > 2 * worst[-1]
    free = as_fast_as_its_servos(right)
    report = replay(free, commands, t).report
    assert report.coupling_residual_rad == pytest.approx(worst.max(), rel=1e-6)
    # Over intervals that end in an active frame.
    active = np.arange(len(t)) > worst.argmax()
    report = replay(free, commands, t, active).report
    assert report.coupling_residual_rad == pytest.approx(worst[active].max(), rel=1e-6)
