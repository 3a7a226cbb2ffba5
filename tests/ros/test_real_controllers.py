"""The player against ros2_control itself: mock hardware, a joint_trajectory_controller per hand."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_process import ROOT, Launched, Process, call, needs, spin_until, trigger
from test_clip_recorder import TOPIC, Camera
from test_offline_bag import Told

from acehand_core.pipeline.bag_write import WriteOptions, load_demonstrations, write_bag
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.types import SIDES
from retarget.robots.robot import load_robot

TRUTH = ROOT / "examples" / "two_hands_truth.parquet"
ROBOT = load_robot("inspire")
Start = Callable[..., Process]


class Hands:
    """The launch file, without its player unless that is asked for."""

    def __init__(self, folder: Path, **arguments: str) -> None:
        self.log, self.temporary = folder / "launch.log", folder / "temporary"
        self.temporary.mkdir()
        environment = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        environment["TMPDIR"] = str(self.temporary)
        given = [f"{name}:={value}" for name, value in ({"player": "false"} | arguments).items()]
        launch = str(ROOT / "launch" / "inspire_ros2_control.launch.py")
        with self.log.open("w") as out:
            self.popen = subprocess.Popen(
                [shutil.which("ros2") or "ros2", "launch", launch, *given],
                env={**os.environ, **environment},
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 60
        while self.text.count("Configured and activated") < 3:
            assert self.popen.poll() is None and time.monotonic() < until, self.text
            time.sleep(0.1)

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    @property
    def files(self) -> list[Path]:
        """What our launch file has left in the temporary folder by now."""
        return list(self.temporary.glob("acehand_*/*"))

    def close(self) -> None:
        self.popen.send_signal(signal.SIGINT)
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait(5)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    needs("controller_manager", "joint_trajectory_controller", "robot_state_publisher")


@pytest.fixture(scope="module")
def hands(tmp_path_factory: pytest.TempPathFactory, installed: None) -> Iterator[Hands]:
    running = Hands(tmp_path_factory.mktemp("hands"))
    yield running
    running.close()


def set_parameter(node: Any, of: str, name: str, value: Any) -> Any:
    """Set a parameter of another node; return what it says."""
    from rcl_interfaces.srv import SetParameters
    from rclpy.parameter import Parameter

    request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
    return call(node, SetParameters, f"{of}/set_parameters", request).results[0]


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
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a clip_recorder that saw two seconds of a camera which loses a fifth."""
    import rclpy

    folder = tmp_path_factory.mktemp("recorded")
    lost = np.random.default_rng(2).choice(np.arange(1, 59), 12, replace=False)
    node = rclpy.create_node("camera_and_observer")
    camera, told = Camera(node, 60, lost), Told(node, "clip_recorder")
    recorder = Process("clip_recorder", {"output_dir": folder, "image_topic": TOPIC})
    try:
        spin_until(node, lambda: camera.publisher.get_subscription_count() == 1, 60)
        assert trigger(node, "/clip_recorder/start").success
        camera.timer.reset()
        spin_until(node, lambda: camera.sent == 48, 30)
        until = time.monotonic() + 2
        spin_until(node, lambda: time.monotonic() > until, 5)
        stopped = trigger(node, "/clip_recorder/stop")
        # Best effort: pictures of 2.8 MB may be lost on the way, too.
        assert stopped.success and 36 <= int(re.search(r"(\d+) images", stopped.message)[1]) <= 48
        spin_until(node, lambda: told.state == "done", 240)
    finally:
        recorder.popen.send_signal(signal.SIGINT)
        recorder.wait(20)
        node.destroy_node()
    return folder


@pytest.fixture(scope="module")
def sources(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The example, the example with a fifth of its frames lost, bags of both, a recorded clip."""
    folder = tmp_path_factory.mktemp("sources")
    motion = read_hand_motion(TRUTH)
    kept = np.flatnonzero(np.random.default_rng(1).random(len(motion)) >= 0.2)
    lost = motion.at(kept, motion.timestamps_ns[kept], motion.fps)
    write_hand_motion(lost, folder / "lost.parquet", False)
    out = {"example": TRUTH, "lost": folder / "lost.parquet"}
    for name in ("example", "lost"):
        out[f"bag of {name}"] = folder / f"{name}.mcap"
        write_bag(WriteOptions(source=out[name], output=out[f"bag of {name}"]))
    (bag,) = (recorded / "bags").iterdir()
    return {**out, "clip": recorded / "dataset", "bag of clip": bag}


@pytest.mark.parametrize("name", ["example", "lost", "clip"])
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


@pytest.mark.parametrize("name", ["bag of example", "bag of lost", "bag of clip"])
def test_a_bag_is_played_into_the_controllers(
    node: Any, hands: Hands, sources: dict[str, Path], name: str
) -> None:
    """Without any node of ours: the bag's trajectories start when they come."""
    probe = subprocess.run(["ros2", "bag", "play", "--help"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("needs ros2 bag")
    measured = Measured(node)
    topics = [f"/{side}_hand/joint_trajectory" for side in SIDES]
    bag = subprocess.Popen(
        ["ros2", "bag", "play", str(sources[name]), "--topics", *topics, "--delay", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip

    def done() -> bool:
        if len(measured.rows) < 300:
            return False
        paths = [measured.of(side)[1] for side in SIDES]
        moved = all(np.abs(path - path[0]).max() > 0.1 for path in paths)
        return moved and all(np.ptp(path[-50:], axis=0).max() < 1e-6 for path in paths)

    spin_until(node, done, 30)
    output, _ = bag.communicate(timeout=20)
    assert bag.returncode == 0, output
    measured.check_limits()
    check_tracked(measured, sources[name])


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
    assert "lft/follow_joint_trajectory" in output
    assert "/left_hand/follow_joint_trajectory" in output
    other = start(
        "trajectory_player", source=TRUTH, output="action", hands="right",
        controllers="renesas_inspire_rh56", right_controller="right_hand", wait_for_controller=2.0,
    )  # fmt: skip
    code, output = other.wait(30)
    assert code == 1 and "thumb_proximal_yaw_joint" in output
    assert "left_index_intermediate" in output


def test_another_rate_while_the_hands_follow_goals(node: Any, start: Start, hands: Hands) -> None:
    """The goals are cancelled, and others begin where the hands then are, within the limits."""
    measured = Measured(node)
    goals = hands.text.count("Accepted new action goal")
    cancelled = hands.text.count("Canceling active action goal")
    player = start(
        "trajectory_player", source=TRUTH, output="action", exit_when_done=True, markers=False
    )
    spin_until(node, lambda: hands.text.count("Accepted new action goal") == goals + 2, 30)
    measured.hear(node, 2.0)
    change = set_parameter(node, "/trajectory_player", "rate", 2.0)
    assert change.successful, change.reason
    spin_until(node, lambda: player.popen.poll() is not None, 30)
    code, output = player.wait(5)
    assert code == 0, output
    assert hands.text.count("Accepted new action goal") == goals + 4
    assert hands.text.count("Canceling active action goal") == cancelled + 2
    measured.hear(node, 0.1)
    measured.check_limits()
    demonstration, _ = next(iter(load_demonstrations(TRUTH)))
    for slot, side in enumerate(SIDES):
        _, path = measured.of(side)
        np.testing.assert_allclose(path[-1], demonstration.commands[-1, slot], atol=0.06)


def test_a_loop_sends_a_goal_per_round(node: Any, start: Start, hands: Hands) -> None:
    measured = Measured(node)
    goals = hands.text.count("Accepted new action goal")
    player = start("trajectory_player", source=TRUTH, output="action", loop=True, markers=False)
    spin_until(node, lambda: hands.text.count("Accepted new action goal") == goals + 6, 60)
    assert player.popen.poll() is None
    assert set_parameter(node, "/trajectory_player", "loop", False).successful
    succeeded = hands.text.count("Goal reached, success!")
    spin_until(node, lambda: hands.text.count("Goal reached, success!") == succeeded + 2, 30)
    measured.hear(node, 1.0)
    measured.check_limits()
    last = measured.rows[-1][0] - 6.0  # seconds: the third round, and not all of the second
    measured.rows = [row for row in measured.rows if row[0] > last]
    check_tracked(measured, TRUTH)
    assert hands.text.count("Accepted new action goal") == goals + 6


@pytest.mark.parametrize("kind", ["forward", "position_group"])
def test_commands_for_controllers_that_forward_them(
    node: Any, start: Start, tmp_path: Path, hands: Hands, kind: str
) -> None:
    from std_msgs.msg import Float64MultiArray

    hands.close()  # both would have the same names
    running = Hands(tmp_path, output="forward", forward_controller=kind)
    commands: dict[str, list[Any]] = {side: [] for side in SIDES}
    for side, got in commands.items():
        node.create_subscription(Float64MultiArray, f"/{side}_hand/commands", got.append, 1000)
    try:
        measured = Measured(node)
        player = start(
            "trajectory_player", source=TRUTH, output="forward", exit_when_done=True, markers=False
        )
        spin_until(node, lambda: player.popen.poll() is not None, 60)
        code, output = player.wait(5)
        assert code == 0, output
        measured.hear(node, 0.5)
        assert [path.name for path in running.files] == ["controllers.yaml"]
    finally:
        running.close()
    assert running.files == []
    check_tracked(measured, TRUTH)
    for side in SIDES:
        hand = ROBOT.hand(side)
        _, path = measured.of(side)
        # A cycle of 0.01 s meets one command; where the player was late, up to three.
        assert (np.abs(np.diff(path, axis=0)) <= hand.command_velocity * 0.03 * 1.01).all()
        sent = np.array([message.data for message in commands[side]])
        assert (np.abs(np.diff(sent, axis=0)) <= hand.command_velocity * 0.01 * 1.001).all()


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
        assert "PATH_TOLERANCE_VIOLATED" in output
        assert "The hands hold" in output and "Traceback" not in output
        measured.hear(node, 1.0)
        text = running.text
    finally:
        running.close()
    assert text.count("Accepted new action goal") == 2
    assert "[right_hand]: Canceling active action goal" in text
    assert np.ptp(measured.of("right")[1][-50:], axis=0).max() < 1e-9


CELL = """
from launch import LaunchDescription
from launch.actions import GroupAction, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import PushRosNamespace


def generate_launch_description():
    file = PythonLaunchDescriptionSource({file!r})
    robots = []
    for name in ("left_robot", "right_robot"):
        given = dict(namespace=name, frame_prefix=name + "/", source={source!r})
        given |= dict(exit_when_done="true", markers="false")
        include = IncludeLaunchDescription(file, launch_arguments=given.items())
        robots.append(GroupAction([PushRosNamespace("cell"), include]))
    return LaunchDescription(robots)
"""


def test_two_robots_of_one_launch_file_each_reach_their_goals(tmp_path: Path) -> None:
    """In namespaces of a group; the robot that is done first leaves the other alone."""
    file = str(ROOT / "launch" / "inspire_ros2_control.launch.py")
    (tmp_path / "cell.launch.py").write_text(CELL.format(file=file, source=str(TRUTH)), "utf-8")
    launched = Launched(tmp_path / "cell.launch.py", {})
    try:
        code, output = launched.wait(120)
    finally:
        launched.stop()
    assert code == 0 and "Traceback" not in output, output
    for name in ("left_robot", "right_robot"):
        for side in SIDES:
            assert f"[cell.{name}.{side}_hand]: Goal reached, success!" in output, output
    for number in (7, 8):  # after a publisher, a manager and a spawner of each
        assert f"[trajectory_player-{number}]: process has finished cleanly" in output, output


@pytest.mark.parametrize("times", [1, 2, 3])
def test_ctrl_c_in_the_terminal_ends_the_player_cleanly(
    tmp_path: Path, hands: Hands, times: int
) -> None:
    hands.close()
    running = Hands(tmp_path, player="true", source=str(TRUTH), loop="true", markers="false")
    try:
        until = time.monotonic() + 60
        while running.text.count("Accepted new action goal") < 2:
            assert running.popen.poll() is None and time.monotonic() < until, running.text
            time.sleep(0.1)
        for _ in range(times):
            os.killpg(running.popen.pid, signal.SIGINT)
            time.sleep(0.2)
        assert running.popen.wait(40) == 0, running.text
    finally:
        running.close()
    assert "[trajectory_player-4]: process has finished cleanly" in running.text
