"""The player against ros2_control itself: mock hardware, a joint_trajectory_controller per hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_process import ROOT, Process, spin_until, trigger

from acehand_core.pipeline.bag_write import WriteOptions, load_demonstrations, write_bag
from acehand_core.recordings.hand_table import read_hand_motion, write_hand_motion
from acehand_core.types import SIDES
from retarget.robot import load_robot

TRUTH = ROOT / "examples" / "two_hands_truth.parquet"
ROBOT = load_robot("inspire")
Start = Callable[..., Process]


class Hands:
    """The launch file without its player."""

    def __init__(self, folder: Path, **arguments: str) -> None:
        self.log = folder / "launch.log"
        given = [f"{name}:={value}" for name, value in arguments.items()]
        launch = str(ROOT / "launch" / "inspire_ros2_control.launch.py")
        with self.log.open("w") as out:
            self.popen = subprocess.Popen(
                [shutil.which("ros2") or "ros2", "launch", launch, "player:=false", *given],
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 60
        while self.text.count("Configured and activated") < 3:
            assert self.popen.poll() is None and time.monotonic() < until, self.text
            time.sleep(0.1)

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def close(self) -> None:
        self.popen.send_signal(signal.SIGINT)
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait(5)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    packages = pytest.importorskip("ament_index_python.packages", reason="needs ROS 2")
    for name in ("controller_manager", "joint_trajectory_controller", "robot_state_publisher"):
        try:
            packages.get_package_prefix(name)
        except packages.PackageNotFoundError:
            pytest.skip(f"needs {name}")


@pytest.fixture(scope="module")
def hands(tmp_path_factory: pytest.TempPathFactory, installed: None) -> Iterator[Hands]:
    running = Hands(tmp_path_factory.mktemp("hands"))
    yield running
    running.close()


class Measured:
    """Joint states of the hands as the broadcaster tells them, every cycle."""

    def __init__(self, node: Any) -> None:
        from sensor_msgs.msg import JointState

        self.rows: list[tuple[float, dict[str, float]]] = []
        node.create_subscription(JointState, "/joint_states", self._got, 1000)

    def _got(self, message: Any) -> None:
        at = message.header.stamp.sec + message.header.stamp.nanosec / 1e9
        self.rows.append((at, dict(zip(message.name, message.position, strict=True))))

    def hear(self, node: Any, seconds: float) -> None:
        """Spin until states of so much later have come: a busy machine's come late."""
        until = time.time() + seconds
        spin_until(node, lambda: bool(self.rows) and self.rows[-1][0] > until, seconds + 20)

    def of(self, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Return times (N,) and driven angles (N, C)."""
        names = [f"{side}_{name}" for name in ROBOT.hand(side).command_joints]
        return (
            np.array([at for at, _ in self.rows]),
            np.array([[row[name] for name in names] for _, row in self.rows]),
        )

    def check_limits(self) -> None:
        """No angle outside, and no change of a cycle beyond what the limit of speed allows."""
        for side in SIDES:
            hand = ROBOT.hand(side)
            times, path = self.of(side)
            assert len(times) > 100
            assert (path >= hand.command_lower - 1e-6).all()
            assert (path <= hand.command_upper + 1e-6).all()
            period = np.diff(times)
            # States are those of the command of the cycle before, whose length may differ.
            longest = np.max([period, np.roll(period, 1), np.roll(period, -1)], axis=0)
            allowed = hand.command_velocity * longest[:, None] * 1.01 + 1e-6
            assert (np.abs(np.diff(path, axis=0)) <= allowed).all()


def check_tracked(measured: Measured, source: Path) -> None:
    """The hands did what the clip says, from some moment on, and stand where it ends."""
    demonstration, _ = next(iter(load_demonstrations(source)))
    clip = np.arange(len(demonstration)) / demonstration.fps
    off = {}
    for slot, side in enumerate(SIDES):
        times, path = measured.of(side)
        wanted = demonstration.commands[:, slot]
        np.testing.assert_allclose(path[-1], wanted[-1], atol=0.06)
        shifts = np.arange(times[0], times[-1] - clip[-1] + 0.05, 0.005)
        worst = [
            max(np.abs(np.interp(clip + shift, times, q) - w).max()
                for q, w in zip(path.T, wanted.T, strict=True))
            for shift in shifts
        ]  # fmt: skip
        # Coming from rest and to rest costs a frame or two of it.
        assert min(worst) < 0.12
        off[side] = shifts[int(np.argmin(worst))]
    assert off["left"] == pytest.approx(off["right"], abs=0.05)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The example, the example with a fifth of its frames lost, and a bag of it."""
    folder = tmp_path_factory.mktemp("sources")
    motion = read_hand_motion(TRUTH)
    kept = np.flatnonzero(np.random.default_rng(1).random(len(motion)) >= 0.2)
    lost = motion.at(kept, motion.timestamps_ns[kept], motion.fps)
    write_hand_motion(lost, folder / "lost.parquet", False)
    write_bag(WriteOptions(source=TRUTH, output=folder / "bag.mcap", mesh=False))
    return {"example": TRUTH, "lost": folder / "lost.parquet", "bag": folder / "bag.mcap"}


@pytest.mark.parametrize("name", ["example", "lost", "bag"])
def test_the_controllers_take_and_track(
    node: Any, start: Start, hands: Hands, sources: dict[str, Path], name: str
) -> None:
    accepted = hands.text.count("Goal reached, success!")
    measured = Measured(node)
    player = start(
        "trajectory_player", source=sources[name], output="action", exit_when_done=True,
        markers=False, publish_clock=False,
    )  # fmt: skip
    spin_until(node, lambda: player.popen.poll() is not None, 60)
    code, output = player.wait(5)
    assert code == 0, output
    assert hands.text.count("Goal reached, success!") == accepted + 2
    measured.hear(node, 0.1)
    measured.check_limits()
    check_tracked(measured, sources[name])


def test_a_bag_is_played_into_the_controllers(
    node: Any, hands: Hands, sources: dict[str, Path]
) -> None:
    """Without any node of ours: the bag's trajectories start when they come."""
    probe = subprocess.run(["ros2", "bag", "play", "--help"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("needs ros2 bag")
    measured = Measured(node)
    topics = [f"/{side}_hand/joint_trajectory" for side in SIDES]
    bag = subprocess.Popen(
        ["ros2", "bag", "play", str(sources["bag"]), "--topics", *topics, "--delay", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def done() -> bool:
        if len(measured.rows) < 700:
            return False
        return all(np.ptp(measured.of(side)[1][-50:], axis=0).max() < 1e-6 for side in SIDES)

    spin_until(node, done, 30)
    output, _ = bag.communicate(timeout=20)
    assert bag.returncode == 0, output
    measured.check_limits()
    check_tracked(measured, sources["bag"])


def test_pause_stops_the_hands_and_resume_goes_on_from_there(
    node: Any, start: Start, hands: Hands
) -> None:
    measured = Measured(node)
    player = start(
        "trajectory_player", source=TRUTH, output="action", exit_when_done=True, markers=False
    )
    goals = hands.text.count("Accepted new action goal")
    spin_until(node, lambda: hands.text.count("Accepted new action goal") == goals + 2, 30)
    measured.hear(node, 2.5)
    assert trigger(node, "/trajectory_player/pause").success
    measured.hear(node, 1.0)
    assert np.ptp(measured.of("right")[1][-50:], axis=0).max() < 1e-9
    assert trigger(node, "/trajectory_player/resume").success
    spin_until(node, lambda: player.popen.poll() is not None, 30)
    code, output = player.wait(5)
    assert code == 0, output
    assert hands.text.count("Accepted new action goal") == goals + 4
    measured.check_limits()


def test_ctrl_c_cancels_the_goals(node: Any, start: Start, hands: Hands) -> None:
    measured = Measured(node)
    cancelled = hands.text.count("Canceling active action goal")
    goals = hands.text.count("Accepted new action goal")
    player = start("trajectory_player", source=TRUTH, output="action", markers=False)
    spin_until(node, lambda: hands.text.count("Accepted new action goal") == goals + 2, 30)
    measured.hear(node, 2.0)
    player.popen.send_signal(signal.SIGINT)
    code, output = player.wait(10)
    assert code == 0 and "Traceback" not in output, output
    measured.hear(node, 1.0)
    assert hands.text.count("Canceling active action goal") == cancelled + 2
    assert np.ptp(measured.of("right")[1][-50:], axis=0).max() < 1e-9


def test_what_is_missing_is_named(start: Start, hands: Hands) -> None:
    absent = start(
        "trajectory_player", source=TRUTH, output="action", left_controller="lft",
        wait_for_controller=2.0,
    )  # fmt: skip
    code, output = absent.wait(30)
    assert code == 1 and "Traceback" not in output
    assert "lft/follow_joint_trajectory: no such action" in output
    assert "/left_hand/follow_joint_trajectory" in output
    other = start(
        "trajectory_player", source=TRUTH, output="action", hands="right",
        controllers="renesas_inspire_rh56", right_controller="right_hand", wait_for_controller=2.0,
    )  # fmt: skip
    code, output = other.wait(30)
    assert code == 1 and "joint_states: no position of thumb_proximal_yaw_joint" in output
    assert "it has those of left_index_intermediate" in output


def test_commands_for_controllers_that_forward_them(
    node: Any, start: Start, tmp_path: Path, hands: Hands
) -> None:
    hands.close()  # one controller manager at a time
    running = Hands(tmp_path, output="forward")
    try:
        measured = Measured(node)
        player = start(
            "trajectory_player", source=TRUTH, output="forward", exit_when_done=True, markers=False
        )
        spin_until(node, lambda: player.popen.poll() is not None, 60)
        code, output = player.wait(5)
        assert code == 0, output
        measured.hear(node, 0.5)
    finally:
        running.close()
    check_tracked(measured, TRUTH)
    for side in SIDES:
        hand = ROBOT.hand(side)
        _, path = measured.of(side)
        # A command of 30 Hz is a step for a controller of 100 Hz: as far as 1 / 30 s allows.
        assert (np.abs(np.diff(path, axis=0)) <= hand.command_velocity / 30 * 1.01).all()


def test_one_hand_off_its_path_stops_both_and_the_player(
    node: Any, start: Start, tmp_path: Path, hands: Hands
) -> None:
    """A left hand that stands 0.3 rad from where it is told to be, where 0.2 are allowed."""
    hands.close()
    running = Hands(tmp_path, hardware_parameters="left.position_state_following_offset=0.3")
    try:
        measured = Measured(node)
        player = start(
            "trajectory_player", source=TRUTH, output="action", exit_when_done=True, markers=False
        )
        spin_until(node, lambda: player.popen.poll() is not None, 60)
        code, output = player.wait(5)
        assert code == 1, output
        assert "left hand: left_hand ended the goal: PATH_TOLERANCE_VIOLATED" in output
        assert "The hands hold" in output and "Traceback" not in output
        measured.hear(node, 1.0)
        text = running.text
    finally:
        running.close()
    assert text.count("Accepted new action goal") == 2
    assert "[right_hand]: Canceling active action goal" in text
    assert np.ptp(measured.of("right")[1][-50:], axis=0).max() < 1e-9
