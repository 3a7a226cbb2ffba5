"""Replay of commands on the simulated hand, and commands that it can follow.

Commands are interpolated to the simulation's time step and followed no faster than each driven
joint can move, as on the real hand. Pads and torques act in the replay only, so ``second_pass``
moves commands to where the simulated hand got.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError
from acehand_core.motion import ReplayReport
from acehand_core.mujoco_gl import import_mujoco, quiet_mujoco
from acehand_core.types import Latency
from retarget.robots.hand_spec import Commands, HandSpec
from retarget.robots.kinematics import load_mjcf
from retarget.targets import CommandTarget

if TYPE_CHECKING:
    import mujoco

_Active = Bool[np.ndarray, "T"]
Solver = Callable[[CommandTarget], Commands]
_Slides = Bool[np.ndarray, "C"]
#: Deeper contacts count as penetration.
PENETRATION_LIMIT_M = 1e-3

#: A joint further than this from all its commands of the last moments did not follow. A slide's
#: limit moves a fingertip about as far as 0.03 rad do.
UNFOLLOWED_RAD, UNFOLLOWED_M, LAG_S = 0.03, 0.003, 0.1
#: Pull to where the hand got, against 1 per (10 mm)^2 of a fingertip on a lever of about 100 mm.
PULL = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The report, and all simulated joints per frame (rad, m); ``slides`` marks driven slides."""

    report: ReplayReport
    joints: Float[np.ndarray, "T Q"]
    slides: _Slides


def replay(
    hand: HandSpec,
    commands: Float[np.ndarray, "T C"],
    timestamps_s: Float[np.ndarray, "T"],
    active: _Active | None = None,
    sent: Float[np.ndarray, "T C"] | None = None,
    latency_s: float = 0.0,
    contact: bool = True,
) -> Replay:
    """Simulate the hand from rest at the first command.

    Args:
        commands: driven joints in command order, rad (m for slides).
        timestamps_s: increasing.
        active: frames that count in the report; default all.
        sent: commands for the simulated hand where they differ from the wanted ``commands``.
        latency_s: delay from command to motion, e.g. ``HandSpec.latency_s``; 0: the servo alone.
        contact: whether links stop each other.

    Returns:
        The report compares simulated and commanded driven joints at the frames. Saturation is the
        share of (step, actuator) pairs at the torque limit, the coupling residual the largest over
        all steps, both over intervals that end in an active frame. A step with a NaN or a MuJoCo
        warning is unstable; the simulation restarts from the command of that moment.

    Raises:
        InputError: commands or times that are not finite, do not increase or have wrong lengths.
    """
    active = np.ones(len(commands), bool) if active is None else active
    sent = commands if sent is None else sent
    for values in (commands, sent):
        _check(hand, values, timestamps_s, active)

    sim = _Simulation(hand, contact)
    sim.reset(commands[0])  # at rest where the motion begins
    joints = np.empty((len(commands), len(hand.joint_names)))
    penetration = np.empty(len(commands))
    if latency_s:
        sent = _sampled(sent, timestamps_s - latency_s, timestamps_s)

    with quiet_mujoco():
        joints[0], penetration[0] = sim.joints(), sim.penetration()
        for frame in range(1, len(commands)):
            seconds = float(timestamps_s[frame] - timestamps_s[frame - 1])
            sim.advance(sent[frame - 1], sent[frame], seconds, bool(active[frame]))
            joints[frame], penetration[frame] = sim.joints(), sim.penetration()
    return Replay(sim.report(commands, joints, penetration, active), joints, sim.slides)


def _sampled(commands: np.ndarray, at: np.ndarray, times: np.ndarray) -> np.ndarray:
    return np.stack([np.interp(at, times, column) for column in commands.T], axis=1)


def self_penetration(hand: HandSpec, joints: Float[np.ndarray, "T Q"]) -> Float[np.ndarray, "T"]:
    """Return the depth of the deepest self-contact at given joint angles, metres, >= 0."""
    mujoco = import_mujoco()
    sim = _Simulation(hand)
    depths = np.empty(len(joints))
    for row, angles in enumerate(joints):
        sim.data.qpos[sim.qpos] = angles
        mujoco.mj_kinematics(sim.model, sim.data)
        mujoco.mj_comPos(sim.model, sim.data)
        mujoco.mj_collision(sim.model, sim.data)
        depths[row] = sim.penetration()
    return depths


class _Simulation:
    """One simulation of one hand, with running counts."""

    def __init__(self, hand: HandSpec, contact: bool = True) -> None:
        self._mujoco: Any = import_mujoco()
        self.hand = hand
        self.model: mujoco.MjModel = load_mjcf(hand.mjcf_path)
        self.model.opt.gravity[:] = 0.0
        if not contact:
            self.model.opt.disableflags |= int(self._mujoco.mjtDisableBit.mjDSBL_CONTACT)
        self._timestep = float(self.model.opt.timestep)
        self.data = self._mujoco.MjData(self.model)
        self.qpos = self._ids("joint", hand.joint_names, "qposadr")
        self._ctrl = self._ids("actuator", hand.command_names, "id")

        kinds = self._ids("joint", hand.command_joints, "type")
        self.slides = kinds == int(self._mujoco.mjtJoint.mjJNT_SLIDE)
        self._torque = self.model.actuator_forcerange[self._ctrl, 1] * (1 - 1e-6)
        limited = self.model.actuator_forcelimited[self._ctrl].astype(bool)
        self._torque[~limited] = np.inf
        self._target = np.zeros(len(self._ctrl))
        self.steps = self.saturated = self.unstable = 0
        self.coupling_residual = 0.0

    def _ids(self, kind: str, names: tuple[str, ...], field: str) -> np.ndarray:
        get = getattr(self.model, kind)
        try:
            rows = [getattr(get(self.hand.full_name(name)), field) for name in names]
        except KeyError as error:
            raise InputError(f"{self.hand.mjcf_path}: {error.args[0]}") from error
        return np.array([np.ravel(row)[0] for row in rows], int)

    def reset(self, command: np.ndarray) -> None:
        self._mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self.qpos] = self.hand.expand(command)
        self.data.ctrl[self._ctrl] = command
        self._target = command.copy()
        self._mujoco.mj_forward(self.model, self.data)

    def advance(self, start: np.ndarray, end: np.ndarray, seconds: float, counting: bool) -> None:
        """Advance by ``seconds`` in equal steps; the command moves from start to end."""
        model, data, step = self.model, self.data, self._mujoco.mj_step
        steps = max(1, math.ceil(seconds / self._timestep - 1e-6))
        model.opt.timestep = seconds / steps
        stride = self.hand.command_velocity * model.opt.timestep
        joints = np.empty((steps, len(self.qpos)))

        torques = np.empty((steps, len(self._ctrl)))
        for row, share in enumerate(np.arange(1, steps + 1) / steps):
            command = start + share * (end - start)
            self._target = self._target + np.clip(command - self._target, -stride, stride)
            data.ctrl[self._ctrl] = self._target
            step(model, data)
            joints[row], torques[row] = data.qpos[self.qpos], data.actuator_force[self._ctrl]
            if data.warning.number.any() or not np.isfinite(joints[row]).all():
                self.unstable += 1
                self.reset(command)
                joints[row], torques[row] = self.joints(), 0.0

        if counting:
            self.steps += steps
            self.saturated += int((np.abs(torques) >= self._torque).sum())
            residual = self.hand.coupling_residual(joints)
            self.coupling_residual = max(self.coupling_residual, residual)

    def joints(self) -> np.ndarray:
        return self.data.qpos[self.qpos].copy()

    def penetration(self) -> float:
        contacts = self.data.contact.dist
        return float(max(0.0, -contacts.min())) if self.data.ncon else 0.0

    def report(
        self, commands: np.ndarray, joints: np.ndarray, depth: np.ndarray, active: np.ndarray
    ) -> ReplayReport:
        """Compare simulated joints and commands over the active frames."""
        if not active.any():
            return ReplayReport(0.0, 0.0, 0.0, 0.0, 0.0, self.unstable)
        hand = self.hand
        error = (hand.reduce(joints) - commands)[active]
        penetrating = self_penetration(hand, hand.expand(commands[active]))
        return ReplayReport(
            rms_tracking_rad=_rms(error[:, ~self.slides]),
            rms_tracking_m=_rms(error[:, self.slides]),
            max_penetration_mm=float(depth[active].max() * 1e3),
            commanded_penetration_mm=float(penetrating.max() * 1e3),
            saturation_share=self.saturated / max(1, self.steps * len(hand.command_names)),
            coupling_residual_rad=self.coupling_residual,
            unstable_steps=self.unstable,
        )


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _check(hand: HandSpec, commands: np.ndarray, times: np.ndarray, active: np.ndarray) -> None:
    if len(commands) == 0:
        raise InputError("Nothing to replay: no commands.")
    if commands.shape[1] != len(hand.command_names):
        raise InputError(
            f"{commands.shape[1]} commands per frame; the {hand.side} hand of {hand.robot} takes "
            f"{len(hand.command_names)}: {', '.join(hand.command_names)}."
        )

    if len(times) != len(commands) or len(active) != len(commands):
        raise InputError(
            f"{len(commands)} commands, {len(times)} times and {len(active)} flags: their numbers "
            "must be equal."
        )
    if len(bad := np.argwhere(~np.isfinite(commands))):
        frame, column = bad[0]
        raise InputError(
            f"Command {hand.command_names[column]!r} is {commands[frame, column]} at frame "
            f"{frame}; commands must be finite angles in radians."
        )

    if not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise InputError("Times of commands must be finite and increase from frame to frame.")


@dataclass(frozen=True, slots=True)
class Physics:
    """How commands are replayed.

    ``latency`` "off" replays without the hand's delay, "on" with it, and "ahead" also sends every
    command earlier by it. ``second_pass`` lowers commands that were not followed.
    """

    latency: Latency = "off"
    second_pass: bool = True


def sent_commands(hand: HandSpec, commands: Commands, fps: float, latency: Latency) -> Commands:
    """Return the commands to send at each frame; limits hold, and the last pose is held."""
    if latency != "ahead" or hand.latency_s == 0:
        return commands
    times = np.arange(len(commands)) / fps
    return _sampled(commands, times + hand.latency_s, times)


def play(
    hand: HandSpec, commands: Commands, fps: float, active: _Active, latency: Latency
) -> Replay:
    """Replay commanded angles; the report compares with these even where others are sent."""
    times = np.arange(len(commands)) / fps
    late = 0.0 if latency == "off" else hand.latency_s
    sent = sent_commands(hand, commands, fps, latency)
    return replay(hand, commands, times, active, sent, late)


def second_pass(
    hand: HandSpec, commands: Commands, fps: float, active: _Active, solve: Solver
) -> Commands:
    """Return commands that are followed better, else the given ones; ``solve`` takes a new pull."""
    first = play(hand, commands, fps, active, "off")
    done = hand.reduce(first.joints)
    weight = unfollowed(commands, done, active, fps, first.slides) * PULL
    if not weight.any():
        return commands
    lowered = solve(CommandTarget(np.clip(done, hand.command_lower, hand.command_upper), weight))
    again = play(hand, lowered, fps, active, "off")
    better = _misfit(again.report) < _misfit(first.report)
    return lowered if better else commands


def _misfit(report: ReplayReport) -> float:
    """Return the tracking error of hinges and slides together."""
    slid = report.rms_tracking_m * UNFOLLOWED_RAD / UNFOLLOWED_M
    return math.hypot(report.rms_tracking_rad, slid)


def unfollowed(
    commands: Commands, done: Commands, active: _Active, fps: float, slides: _Slides
) -> Float[np.ndarray, "T C"]:
    """Return 0 where a joint followed, rising to 1 at twice the limit; ``slides`` are in metres.

    A servo lags: a joint follows at any angle that was commanded within ``LAG_S``.
    """
    window = 1 + math.ceil(LAG_S * fps)
    before = np.concatenate([np.repeat(commands[:1], window - 1, axis=0), commands])
    recent = np.lib.stride_tricks.sliding_window_view(before, window, axis=0)
    limit = np.where(slides, UNFOLLOWED_M, UNFOLLOWED_RAD)
    excess = np.maximum(recent.min(-1) - done, done - recent.max(-1)) / limit - 1
    return np.clip(excess, 0, 1) * active[:, None]
