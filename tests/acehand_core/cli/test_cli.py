"""The main job from the command line: what comes out, what is refused, what is left behind."""

import contextlib
import ctypes
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from acehand_core.cli import console, main, retarget
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.lerobot.writer import LeRobotWriter
from acehand_core.recordings.hands_file import read_hand_motion, read_motion_file
from acehand_core.recordings.registry import Registry
from helpers import ROOT
from helpers.commands import Acehand, GripperRun, Run, first_run, hands_file, video_and_hands
from helpers.controller_rules import check_dataset_limits
from helpers.example_video import empty_frames, example_frames
from helpers.lerobot_samples import check_every_frame
from helpers.retarget_samples import moving_hands
from helpers.video_fixtures import write_video
from retarget.retargeting import retarget_motion
from retarget.robots.robot import find_robot_file, load_robot

X264 = {"preset": "ultrafast", "crf": "18"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A short clip with both hands."""
    path = tmp_path_factory.mktemp("clip") / "hands.mp4"
    return write_video(path, example_frames(), options=X264)


@dataclass(frozen=True)
class Made:
    """A dataset of the clip, and what the command said about it."""

    dataset: Path
    report: dict

    @property
    def extras(self) -> Path:
        return self.dataset / "acehand" / "episode_000000"

    @property
    def calibration(self) -> tuple[str, Path]:
        """Arguments of further runs that are not about calibrating."""
        return "--calibration", self.extras / "calibration.json"


@pytest.fixture(scope="module")
def made(clip, tmp_path_factory):
    """The main job as a user first runs it."""
    out = tmp_path_factory.mktemp("made") / "out"
    return Made(out, first_run(clip, "--robot", "inspire", "--task", "lift", "--output", out))


def left_behind(folder: Path) -> list[str]:
    """Return everything in a folder but the inputs that tests put there."""
    return sorted(p.name for p in folder.iterdir() if p.suffix not in (".mp4", ".npz", ".json"))


def test_a_clip_becomes_a_dataset(made):
    assert made.report["dataset"] == str(made.dataset)
    (episode,) = made.report["episodes"]
    assert episode["frames"] == 12 and episode["fps"] == 30 and episode["tracker"] == "mediapipe"
    assert episode["coverage"] == {"left": 1.0, "right": 1.0} and episode["filled_share"] == 0
    assert episode["limit_violations"] == episode["speed_violations"] == 0
    assert check_dataset_limits(made.dataset) == 2
    assert episode["coupling_residual_rad"] < 1e-6
    assert episode["verdict"] in ("pass", "warn") and isinstance(episode["reasons"], list)
    assert check_every_frame(made.dataset) == []
    names = {"hand_motion.parquet", "report.json", "contact_sheet.png", "overlay.mp4",
             "calibration.json"}  # fmt: skip
    assert {p.name for p in made.extras.iterdir()} == names
    assert left_behind(made.dataset.parent) == ["out"]
    (record,) = read_provenance(made.dataset)
    assert record["source_sha256"] and record["tracker"] == "mediapipe"
    assert any("intrinsics" in note for note in record["notes"])
    assert any("hand length" in note for note in record["notes"])


def test_several_inputs_and_appending(clip, made, tmp_path, capsys):
    folder, out, known = tmp_path / "videos", tmp_path / "out", ("--no-overlay", *made.calibration)
    folder.mkdir()
    write_video(folder / "a.mp4", example_frames(5), options=X264)
    write_video(folder / "b.mp4", example_frames(4, 60), options=X264)
    run = Run(capsys, folder, "--output", out, *known, "--task", "one")
    assert [e["frames"] for e in run.json["episodes"]] == [5, 4] and run.code == 0
    run = Run(capsys, folder / "b.mp4", "--output", out, "--append", *known, "--task", "two")
    assert run.code == 0 and run.json["episodes"][0]["episode_index"] == 2
    # Another robot rate would not be the same dataset.
    run = Run(capsys, clip, "--output", out, "--append", "--fps", "15", "--no-overlay")
    assert run.code == 2 and "fps is 15" in run.messages
    assert check_every_frame(out) == []


def test_joints_without_a_place_have_no_wrist(joints_file, tmp_path, capsys):
    joints = np.load(joints_file)["joints"][:40]
    np.savez(tmp_path / "joints.npz", joints=joints)
    run = Run(capsys, tmp_path / "joints.npz", "--output", tmp_path / "out")
    assert run.code == 2 and "`hands=left|right`" in run.messages
    run = Run(capsys, tmp_path / "joints.npz", "--hands", "right", "--output", tmp_path / "out")
    assert run.code == 0 and run.json["episodes"][0]["reprojection_px"]["median"] is None
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["shape"] == [12]
    assert "observation.hand.joints_wrist" in info["features"]


def test_world_frame(clip, made, tmp_path, capsys):
    rows = [f"{round(i * 1e9 / 30)},{0.01 * i},0,0,1,0,0,0" for i in range(12)]
    poses, moved = tmp_path / "poses.csv", tmp_path / "moved"
    poses.write_text("\n".join(["timestamp_ns,x,y,z,qw,qx,qy,qz", *rows]))
    known = ("--no-overlay", *made.calibration)
    run = Run(capsys, clip, "--output", moved, "--camera-poses", poses, *known)
    assert run.code == 0
    info = json.loads((moved / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["info"]["frame"] == "world"
    a, b = (_column(dataset, "observation.state")[:, 0] for dataset in (moved, made.dataset))
    np.testing.assert_allclose(a - b, 0.01 * np.arange(12), atol=1e-6)


def test_hand_length_fixes_the_scale(clip, made, tmp_path, capsys):
    """As large as its distance: 0.20 m is 1.25 times 0.16 m, in the main job and alone."""
    out, table = tmp_path / "out", tmp_path / "hands.parquet"
    known = ("--no-overlay", *made.calibration)
    assert Run(capsys, clip, "--hand-length", 0.16, "--output", out, *known).code == 0
    alone = ("reconstruct", clip, "--hand-length", 0.20, "--output", table)
    assert Acehand(capsys, *alone).code == 0
    stored = out / "acehand" / "episode_000000" / "hand_motion.parquet"
    near, far = (
        read_hand_motion(path).joints_camera[:, :, 0, 2].mean() for path in (stored, table)
    )
    assert far / near == pytest.approx(1.25, rel=0.02)


def _column(dataset: Path, name: str) -> np.ndarray:
    import pyarrow.parquet as pq

    table = pq.read_table(dataset / "data" / "chunk-000" / "file-000.parquet")
    return np.array(table[name].to_pylist())


def _variable(folder: Path, frames: int | list = 6, **options) -> Path:
    images = frames if isinstance(frames, list) else example_frames(frames)
    return write_video(folder / "v.mp4", images, options=X264, **options)


ODD = {
    "variable rate": (lambda f: _variable(f, times=np.cumsum([0, *([1 / 30, 1 / 20] * 3)])[:6]),
                      None, (480, 640)),
    "rotated": (lambda f: _variable(f, [np.rot90(i, -1) for i in example_frames(6)], rotation=90),
                6, (480, 640)),
    "odd size": (lambda f: _variable(f, [i[:-1, :-1] for i in example_frames(6)],
                                     pix_fmt="yuv444p"), 6, (478, 638)),
    "4K": (lambda f: _variable(f, [np.kron(i, np.ones((6, 6, 1), np.uint8))[:2160]
                                   for i in example_frames(4, 60)]), 4, (2160, 3840)),
    "one frame": (lambda f: _variable(f, 1), 1, (480, 640)),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ODD)
def test_odd_videos(name, made, tmp_path, capsys):
    make, frames, size = ODD[name]
    out = tmp_path / "out"
    run = Run(capsys, make(tmp_path), "--output", out, "--no-overlay", *made.calibration)
    assert run.code == 0, run.err
    (episode,) = run.json["episodes"]
    assert frames is None or episode["frames"] == frames
    assert min(episode["coverage"].values()) > 0.9
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert tuple(info["features"]["observation.images.ego"]["shape"][:2]) == size
    assert check_every_frame(tmp_path / "out") == []


def _file(folder: Path, content: bytes) -> Path:
    (folder / "v.mp4").write_bytes(content)
    return folder / "v.mp4"


def _dot(path: Path) -> Path:
    image = np.zeros((1, 1, 3), np.uint8)
    return write_video(path, [image], codec="ffv1", pix_fmt="bgr0")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f / "nowhere.mp4", "nowhere.mp4: no such file"),
        (lambda f: (f / "bare").mkdir() or f / "bare", "bare"),
        (lambda f: _file(f, b"this is no video\n" * 100), "v.mp4"),
        (lambda f: os.mkfifo(f / "v.mp4") or f / "v.mp4", "pipe"),
        (lambda f: _dot(f / "v.mp4"), "1 x 1 px"),
    ],
    ids=["missing", "folder", "text", "pipe", "1x1"],
)
def test_unusable_inputs(make, message, tmp_path, capsys):
    run = Run(capsys, make(tmp_path), "--output", tmp_path / "out")
    assert run.code == 2 and message in run.messages and run.json.get("dataset") is None
    assert f"error: {run.messages}" in run.err
    assert [name for name in left_behind(tmp_path) if name != "bare"] == []


def test_no_hands_at_all(tmp_path, capsys):
    video = write_video(tmp_path / "v.mp4", empty_frames(), options=X264)
    run = Run(capsys, video, "--output", tmp_path / "out")
    assert run.code == 3 and "no hand" in run.messages and "12 frames" in run.messages
    assert run.json["episodes"] == [] and left_behind(tmp_path) == []


def test_unusable_settings(clip, tmp_path, capsys):
    camera = {"model": "pinhole", "width": 1280, "height": 720, "fx": 900, "fy": 900, "cx": 640,
              "cy": 360, "distortion": []}  # fmt: skip
    (tmp_path / "wide.json").write_text(json.dumps(camera))
    for flag, value, message in (
        ("--intrinsics", "500,500,320", "fx,fy,cx,cy"),
        ("--intrinsics", "500,500,3200,240", "500,500,3200,240"),
        # 0.044 and 11.5 times 640 px.
        ("--intrinsics", "1e9,1e9,319.5,239.5", "valid: 28 to 7360 px"),
        ("--intrinsics", "600,20,319.5,239.5", "fy 20 px"),
        ("--camera", tmp_path / "wide.json", "1280"),  # a camera of another shape
        ("--robot", "inspir", "'inspire'"),
        ("--tracker", "mediapip", "'mediapipe'"),
        ("--method", "dexvector", "'dex-vector'"),
        ("--hand-length", "18", "0.05 to 0.35"),
        ("--start", "99", "99"),
        ("--fps", "0", "1"),
        ("--fps", "1000", "valid: 1 to 300"),
        ("--task", " ", "task"),
    ):
        run = Run(capsys, clip, flag, value, "--output", tmp_path / "out")
        assert run.code == 2 and message in run.messages, (flag, value)
        assert left_behind(tmp_path) == []


def test_an_existing_output_is_safe(clip, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    run = Run(capsys, clip, "--output", out)
    assert run.code == 4 and "overwrite" in run.messages
    run = Run(capsys, clip, "--output", out, "--overwrite")
    assert run.code == 4 and "not a LeRobot dataset" in run.messages
    run = Run(capsys, clip, "--output", out, "--append")
    assert run.code == 2 and "no LeRobot dataset" in run.messages
    assert (out / "precious").read_text() == "mine" and left_behind(tmp_path) == ["out"]


def test_usage_errors_exit_with_two(capsys):
    with pytest.raises(SystemExit) as stop:
        retarget.main(["v.mp4", "--ovrlay"])
    assert stop.value.code == 2 and "--overlay, --no-overlay" in capsys.readouterr().err
    assert retarget.main([]) == 2 and "INPUT" in capsys.readouterr().err


@pytest.mark.parametrize("end", [[], ["--help"]], ids=["", "help"])
def test_commands_that_do_not_exist(end, capsys):
    for words, valid, invalid in (
        (["retargett"], "Did you mean 'retarget'?", "none"),
        (["data", "convrt"], "Did you mean 'data convert'?", "dataset merge"),
    ):
        assert acehand([*words, *end]) == 2
        said = capsys.readouterr()
        assert said.out == "" and valid in said.err and invalid not in said.err
    assert acehand(["data", "--help"]) == 0 and "dataset merge" not in capsys.readouterr().out


def test_the_main_job_is_a_command_too(tmp_path, capsys):
    hands = hands_file(tmp_path / "a.npz")
    run = Acehand(capsys, "retarget", hands, "--robot", "panda_gripper", "--dry-run")
    assert run.code == 0 and run.json["episodes"][0]["source"] == str(hands)
    assert acehand(["--help"]) == 0 and "acehand-retarget" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["cli.main", "--help"],
        ["cli.main", "camera", "presets", "--json"],
        ["cli.retarget", "--help"],
        ["ace.training.main", "--help"],
    ],
    ids=" ".join,
)
def test_a_reader_that_has_seen_enough(words):
    """``| head`` closes the pipe."""
    read, write = os.pipe()
    os.close(read)
    program, *flags = words
    done = subprocess.run(
        [sys.executable, "-m", f"acehand_core.{program}", *flags],
        stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, "Error" in done.stderr) == (console.EXIT_OUTPUT, False), done.stderr


def _child(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "acehand_core.cli.retarget", *map(str, arguments), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options,
    )  # fmt: skip


@pytest.mark.parametrize("error", [OutputError("out: cannot write"), KeyboardInterrupt()])
def test_an_output_that_fails_keeps_what_was_finished(error, tmp_path, capsys, monkeypatch):
    hands = [hands_file(tmp_path / f"{n}.npz", n) for n in (4, 5, 6)]
    add = LeRobotWriter.add_episode

    def fails_at_the_third(writer, *arguments):
        if writer.total_episodes == 2:
            raise error
        return add(writer, *arguments)

    monkeypatch.setattr(LeRobotWriter, "add_episode", fails_at_the_third)
    run = GripperRun(capsys, *hands, "--output", tmp_path / "out")
    assert run.code == (4 if isinstance(error, OutputError) else 130)
    assert run.json["dataset"] == str(tmp_path / "out")
    assert [episode["source"] for episode in run.json["episodes"]] == [*map(str, hands[:2])]
    assert [error["source"] for error in run.json["errors"]] == [str(hands[2])]
    assert check_every_frame(tmp_path / "out") == [], "its statistics are exact, too"
    assert left_behind(tmp_path) == ["out"]


def test_outputs_without_a_name_of_their_own(tmp_path, capsys, monkeypatch):
    hands, here = hands_file(tmp_path / "h.npz", 6), tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    monkeypatch.chdir(here)
    for output in (".", "", "folder/.."):
        run = Run(capsys, hands, "--output", output)
        assert run.code in (2, 4) and run.messages
        assert left_behind(here) == ["folder"] and left_behind(tmp_path) == ["here"]
    # In a dataset its own folder is one.
    assert GripperRun(capsys, hands, "--output", here / "out").code == 0
    monkeypatch.chdir(here / "out")
    run = GripperRun(capsys, hands, "--output", ".", "--append", "--task", "another")
    assert run.code == 0 and run.json["episodes"][0]["episode_index"] == 1
    assert check_every_frame(here / "out") == [] and left_behind(here) == ["folder", "out"]


@pytest.mark.slow
def test_nothing_is_in_a_dataset_twice(tmp_path, capsys):
    hands, out = hands_file(tmp_path / "h.npz"), tmp_path / "out"
    run = Run(capsys, hands, tmp_path / "." / "h.npz", "--output", out)
    assert run.code == 2 and f"{hands} is given twice" in run.messages and not out.exists()

    assert Run(capsys, hands, "--output", out, "--task", "one").code == 0
    assert Run(capsys, hands, "--output", out, "--append", "--task", "two").code == 0
    renamed = shutil.copy(hands, tmp_path / "renamed.npz")
    new = hands_file(tmp_path / "new.npz", 14)
    run = Run(capsys, renamed, new, "--output", out, "--append", "--task", "two")
    assert run.code == 1 and "episode 1 of the dataset is this recording already" in run.messages
    assert [e["source"] for e in run.json["episodes"]] == [str(new)]

    # A part of it is another episode, and so is all of it made otherwise.
    for words in (("--duration", "0.2"), ("--method", "dex-vector"), ("--task", "three")):
        assert Run(capsys, hands, "--output", out, "--append", "--task", "two", *words).code == 0
    assert check_every_frame(out) == [] and len(read_provenance(out)) == 6


@pytest.mark.slow
def test_verbose_adds_tracebacks_and_changes_nothing_else(tmp_path, capsys):
    """A bad input does not stop a good one."""
    bad, hands = _file(tmp_path, b"no video"), hands_file(tmp_path / "h.npz")
    for words, code in (([tmp_path / "nowhere.mp4"], 2), ([bad], 2), ([bad, hands], 1)):
        plain = Run(capsys, *words, "--output", tmp_path / "plain", "--no-overlay")
        run = Run(capsys, *words, "--output", tmp_path / "out", "--no-overlay", "-v")
        assert run.code == plain.code == code and run.messages == plain.messages
        assert f"error: {run.messages}" in run.err and "Traceback" not in plain.err
        assert run.err.count("Traceback (most recent call last)") >= 1
    assert len(run.json["episodes"]) == 1 and run.json["errors"][0]["source"] == str(bad)
    assert check_every_frame(tmp_path / "out") == []


def test_a_robot_with_one_hand_follows_that_hand(tmp_path, capsys, monkeypatch):
    hands, robot = hands_file(tmp_path / "h.npz"), ROOT / "examples" / "own_robot"
    run = Run(capsys, hands, "--robot", robot, "--output", tmp_path / "out")
    assert run.code == 0 and run.json["episodes"][0]["coverage"] == {"left": 0.0, "right": 1.0}
    note = "robot three_fingers has a right hand only: the other is not tracked"
    assert run.json["notes"] == [note]
    again = Run(capsys, hands, "--robot", robot, "--output", tmp_path / "out", "--resume")
    assert again.code == 0 and again.json["skipped"] == [str(hands)]
    assert Acehand(capsys, "view", hands, "--robot", robot, "--output", tmp_path / "v").code == 0

    def worked(*_):
        raise AssertionError("it should have been refused first")

    monkeypatch.setattr(Registry, "open", worked)
    for asked in ("both", "left"):
        run = Run(capsys, hands, "--robot", robot, "--hands", asked, "--output", tmp_path / "no")
        assert run.code == 2 and "give `hands=right`" in run.messages
        assert not (tmp_path / "no").exists()
    with pytest.raises(InputError, match="hands=right"):
        retarget_motion(read_motion_file(hands, "both"), load_robot(robot))


@pytest.mark.parametrize(
    ("steps_a_second", "shown"),
    # 1000 s, a tenth in 100 s; 100 s, a tenth in 10 s; 10 s in all.
    [(1, range(0, 101, 10)), (10, (30, 60, 90)), (100, ())],
)
def test_a_log_has_few_lines_of_progress(steps_a_second, shown, monkeypatch):
    """A file of 1000 steps: not as many lines. A terminal gets a bar, which rewrites its line."""
    now = 0.0
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    log, terminal = io.StringIO(), io.StringIO()
    terminal.isatty = lambda: True
    for stream in (log, terminal):
        with console.Bars(False, stream) as bars:
            for done in range(1001):
                now = done / steps_a_second
                bars("track", done, 1000)
            bars("a remark", 0, 0)
            for done in (0, 1):
                bars("moment", done, 1)
    percent = [f"track: {n} %" for n in shown]
    assert log.getvalue().splitlines() == [*percent, "a remark"]
    assert "\r" in terminal.getvalue()


def test_quiet_keeps_the_verdict(tmp_path, capsys):
    hands = [hands_file(tmp_path / f"{name}.npz") for name in "ab"]
    assert retarget.main([*map(str, hands), "--dry-run", "-q"]) == 0
    said = capsys.readouterr()
    for path, line in zip(hands, said.err.splitlines(), strict=True):
        file = re.escape(str(path))
        assert re.fullmatch(rf"{file}: (pass|warn|fail) \(left .*, right .*\)", line)
    assert said.out == "" and left_behind(tmp_path) == []


def test_nothing_is_overwritten_without_leave(tmp_path, capsys, monkeypatch):
    """Nor is anything read before that is known."""
    hands, video = hands_file(tmp_path / "h.npz", 6), tmp_path / "v.mp4"
    write_video(video, example_frames(6), options=X264)
    targets = {
        "reconstruct": ([video, "--output", tmp_path / "r.csv"], tmp_path / "r.csv"),
        "export": ([hands, tmp_path / "e.csv"], tmp_path / "e.csv"),
        "view": ([hands, "--output", tmp_path / "view"], tmp_path / "view/contact_sheet.png"),
        "robots show": (["inspire", "--output", tmp_path / "r.png"], tmp_path / "r.png"),
    }
    (tmp_path / "view").mkdir()
    for name, (words, target) in targets.items():
        target.write_text("mine")
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "open", None)
            run = Acehand(capsys, *name.split(), *words)
        assert run.code == 4 and "overwrite" in run.messages, name
        assert target.read_text() == "mine"
        assert Acehand(capsys, *name.split(), *words, "--overwrite").code == 0
        assert target.read_bytes() != b"mine"
    monkeypatch.setattr(Registry, "open", None)
    for words in (["reconstruct", video, "--output"], ["export", hands]):
        run = Acehand(capsys, *words, tmp_path / "hands.xlsx")
        assert run.code == 2 and ".parquet" in run.messages and ".csv" in run.messages


def test_robots(tmp_path, capsys):
    assert acehand(["robots", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["robots"]
    assert {"inspire", "allegro", "leap", "shadow", "ability", "panda_gripper"} <= {*listed}
    assert listed["inspire"]["variants"] == ["default", "other"] and listed["leap"]["license"]
    left = listed["inspire"]["sides"]["left"]
    assert len(left["joints"]) == 12 and left["commands"][0] == "pinky"
    assert left["pinch_reach_mm"]["middle"] == pytest.approx(18.6, abs=0.2)
    assert listed["panda_gripper"]["sides"]["right"]["pinch_reach_mm"] == {}
    picture = tmp_path / "ability.png"
    assert acehand(["robots", "show", "ability", "--output", str(picture)]) == 0
    assert picture.stat().st_size > 10_000
    for words, code, message in (
        (["list", "inspire:other"], 0, "left fingertips"), (["inspire"], 0, "inspire: "),
        (["check", "inspir"], 2, "'inspire'"),
        (["show", "leap", "--robot-model", str(tmp_path)], 2, str(tmp_path)),
    ):  # fmt: skip
        assert acehand(["robots", *words]) == code and message in capsys.readouterr().err

    assert acehand(["robots", "check", "panda_gripper", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["failed"] == 0 and set(record["robots"]["panda_gripper"]) == {"left", "right"}
    source = find_robot_file("panda_gripper").parent
    robot = Path(shutil.copytree(source, tmp_path / "gripper"))
    model = robot / "right.xml"
    model.write_text(model.read_text().replace('range="0 0.04"', 'range="0 0.05"', 1))
    assert acehand(["robots", "check", str(robot)]) == 1
    assert "right limits: FAILED, thumb_jaw has [0, 0.05]" in capsys.readouterr().err


def test_export_of_robot_commands(tmp_path, capsys):
    """In the vendor's order and unit; only hands that appear; whole numbers where they must be."""
    hands = hands_file(tmp_path / "hands.npz", joints=moving_hands(20, sides=("right",)))
    output = tmp_path / "commands.csv"
    words = ["export", str(hands), str(output), "--robot"]
    assert acehand([*words, "inspire", "--json"]) == 0
    header, *rows = output.read_text().splitlines()
    assert header == ("time_s,right_pinky,right_ring,right_middle,right_index,right_thumb_bend,"
                      "right_thumb_rotation,right_active")  # fmt: skip
    assert json.loads(capsys.readouterr().out)["columns"] == header.split(",")
    values = np.array([row.split(",") for row in rows], float)
    assert values.shape == (20, 8) and values[:, 0] == pytest.approx(np.arange(20) / 30, abs=1e-6)
    assert (values[:, 1:7] == values[:, 1:7].round()).all() and np.ptp(values[:, 4]) > 50
    assert values[:, 1:7].min() >= 0 and values[:, 1:7].max() <= 1000 and (values[:, 7] == 1).all()
    assert acehand([*words, "panda_gripper"]) == 4
    assert output.read_text().splitlines() == [header, *rows]
    assert acehand([*words, "panda_gripper", "--overwrite"]) == 0
    assert output.read_text().startswith("time_s,right_gripper,right_active\n0.000000,0.0")
    for name, more, code, message in (("c.txt", [], 2, "c.txt"),
                                      ("d.csv", ["--hands", "left"], 4, "left")):  # fmt: skip
        words = ["export", str(hands), str(tmp_path / name), "--robot", "leap", *more]
        assert acehand(words) == code and message in capsys.readouterr().err


@pytest.mark.parametrize("library", ["disable", "osmesa"])
def test_pictures_without_opengl(library, tmp_path):
    """Everything but the robot's pictures works, and the message names the packages.

    The bindings of OSMesa fail on import of MuJoCo itself, which the replay needs.
    """
    video, hands = video_and_hands(tmp_path)
    inputs = (video, "--tracker", hands) if library == "disable" else (hands,)
    if library == "osmesa":
        for name in ("libOSMesa.so.8", "libOSMesa.so"):
            with contextlib.suppress(OSError):
                pytest.skip(f"OSMesa is here: {ctypes.CDLL(name)}")
    environment = {**os.environ, "MUJOCO_GL": library}
    child = _child(*inputs, "--output", tmp_path / "out", env=environment)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0 and "Traceback" not in err
    assert ("libegl1" if library == "disable" else "no pictures of the robot") in err
    assert check_every_frame(tmp_path / "out") == []
    extras = tmp_path / "out" / "acehand" / "episode_000000"
    assert (extras / "contact_sheet.png").exists()
    assert (extras / "overlay.mp4").exists() == (library == "disable")


def test_ctrl_c_while_a_command_is_imported(monkeypatch, capsys):
    """What is imported before errors are handled is soon imported."""
    code = "import sys; import acehand_core.cli.main; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n"

    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "import_module", interrupted)
    assert main.retarget([]) == main.main(["doctor"]) == 130
    assert "Interrupted" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished_and_resume_makes_the_rest(made, tmp_path, capsys):
    frames = example_frames(120)
    first = write_video(tmp_path / "a.mp4", frames[:6], options=X264)
    second = write_video(tmp_path / "b.mp4", frames, options=X264)
    out = tmp_path / "out"
    words = (first, second, "--output", out, "--no-overlay", *made.calibration)
    command = [sys.executable, "-m", "acehand_core.cli.retarget", *map(str, words)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)

    deadline = time.monotonic() + 100
    while not (out / "acehand" / "episode_000000" / "contact_sheet.png").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)  # into the second input
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Traceback" not in err
    assert check_every_frame(out) == []

    run = Run(capsys, *words, "--resume")
    assert run.code == 0 and run.json["skipped"] == [str(first)]
    assert [e["frames"] for e in run.json["episodes"]] == [120]
    assert check_every_frame(out) == [] and left_behind(tmp_path) == ["out"]
