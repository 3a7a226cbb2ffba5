"""The main job from the command line: what comes out, what is refused, what is left behind."""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from acehand_core.cli import console, retarget
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot.dataset import read_provenance
from acehand_core.lerobot.writer import LeRobotWriter
from acehand_core.recordings.hands_file import read_hand_motion, read_motion_file
from acehand_core.recordings.registry import Registry
from helpers import ROOT
from helpers.commands import Acehand, Run, first_run, hands_file
from helpers.controller_rules import check_dataset_limits
from helpers.example_video import empty_frames, example_frames
from helpers.lerobot_samples import check_every_frame
from helpers.retarget_samples import moving_hands
from helpers.video_fixtures import write_audio, write_video
from retarget.retargeting import retarget_motion
from retarget.robots.robot import find_robot_file, load_robot

X264 = {"preset": "ultrafast", "crf": "18"}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def made(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The main job as a user first runs it."""
    out = tmp_path_factory.mktemp("made") / "out"
    return Made(out, first_run(clip, "--robot", "inspire", "--task", "lift", "--output", out))


def left_behind(folder: Path) -> list[str]:
    """Return everything in a folder but the inputs that tests put there."""
    return sorted(p.name for p in folder.iterdir() if p.suffix not in (".mp4", ".npz", ".json"))


# What comes out.


def test_a_clip_becomes_a_dataset(made: Made) -> None:
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


def test_several_inputs_and_appending(clip: Path, made: Made, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    write_video(folder / "a.mp4", example_frames(8), options=X264)
    write_video(folder / "b.mp4", example_frames(4, 60), options=X264)
    out, known = tmp_path / "out", ("--no-overlay", *made.calibration)
    run = Run(capsys, folder, "--output", out, *known, "--task", "one")
    assert [e["frames"] for e in run.json["episodes"]] == [8, 4] and run.code == 0
    run = Run(capsys, folder / "b.mp4", "--output", out, "--append", *known, "--task", "two")
    assert run.code == 0 and run.json["episodes"][0]["episode_index"] == 2
    assert check_every_frame(out) == []
    # Another robot rate would not be the same dataset.
    run = Run(capsys, clip, "--output", out, "--append", "--fps", "15", "--no-overlay")
    assert run.code == 2 and "fps is 15" in run.messages
    assert check_every_frame(out) == []


def test_one_hand_only(clip: Path, made: Made, tmp_path: Path, capsys) -> None:
    run = Run(
        capsys, clip, "--hands", "right", "--output", tmp_path / "out", "--no-overlay",
        *made.calibration,
    )  # fmt: skip
    assert run.code == 0 and run.json["episodes"][0]["coverage"] == {"left": 0.0, "right": 1.0}
    motion = read_hand_motion(tmp_path / "out/acehand/episode_000000/hand_motion.parquet")
    assert not motion.known[:, 0].any() and np.isnan(motion.joints_camera[:, 0]).all()


def test_a_saved_motion_is_an_input(clip: Path, made: Made, tmp_path: Path, capsys) -> None:
    hands, (first,) = made.extras / "hand_motion.parquet", made.report["episodes"]
    alone = Run(capsys, hands, "--output", tmp_path / "b")
    assert alone.code == 0 and not (tmp_path / "b" / "videos").exists()
    with_video = Run(capsys, clip, "--tracker", hands, "--output", tmp_path / "c", "--no-overlay")
    assert with_video.code == 0 and (tmp_path / "c" / "videos").exists()
    for run in (alone, with_video):
        entry = run.json["episodes"][0]
        assert entry["tip_error_mm"] == first["tip_error_mm"]
        assert entry["flexion_deg"] == first["flexion_deg"]


def test_joints_without_a_place_have_no_wrist(joints_file: Path, tmp_path: Path, capsys) -> None:
    joints = np.load(joints_file)["joints"][:40]
    np.savez(tmp_path / "joints.npz", joints=joints)
    run = Run(capsys, tmp_path / "joints.npz", "--output", tmp_path / "out")
    assert run.code == 2 and "--hands left|right" in run.messages
    run = Run(capsys, tmp_path / "joints.npz", "--hands", "right", "--output", tmp_path / "out")
    assert run.code == 0 and run.json["episodes"][0]["reprojection_px"]["median"] is None
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["shape"] == [12]
    assert "observation.hand.joints_wrist" in info["features"]


def test_dry_run_writes_nothing(clip: Path, made: Made, tmp_path: Path, capsys) -> None:
    run = Run(capsys, clip, "--output", tmp_path / "out", "--dry-run", *made.calibration)
    assert run.code == 0 and run.json["dataset"] is None
    assert run.json["episodes"][0]["verdict"] in ("pass", "warn")
    assert left_behind(tmp_path) == []


def test_world_frame(clip: Path, made: Made, tmp_path: Path, capsys) -> None:
    stamps = [round(i * 1e9 / 30) for i in range(12)]
    rows = [f"{t},{0.01 * i},0,0,1,0,0,0" for i, t in enumerate(stamps)]
    poses = tmp_path / "poses.csv"
    poses.write_text("\n".join(["timestamp_ns,x,y,z,qw,qx,qy,qz", *rows]))
    plain, moved = made.dataset, tmp_path / "moved"
    run = Run(capsys, clip, "--output", moved, "--camera-poses", poses, "--no-overlay")
    assert run.code == 0
    info = json.loads((moved / "meta" / "info.json").read_text())
    assert info["features"]["observation.state"]["info"]["frame"] == "world"
    column = "observation.state"
    shift = _column(moved, column)[:, 0] - _column(plain, column)[:, 0]
    np.testing.assert_allclose(shift, 0.01 * np.arange(12), atol=1e-6)


def test_a_selfie_is_turned_back(made: Made, tmp_path: Path, capsys) -> None:
    mirrored = [frame[:, ::-1] for frame in example_frames()]
    selfie = write_video(tmp_path / "selfie.mp4", mirrored, options=X264)
    run = Run(
        capsys, selfie, "--mirrored", "--output", tmp_path / "a", "--no-overlay",
        *made.calibration,
    )  # fmt: skip
    assert run.code == 0
    joints = "observation.hand.joints_camera"
    a, b = _column(tmp_path / "a", joints), _column(made.dataset, joints)
    # The two encodings differ a little, and in depth of a frame more; the hands are 0.4 m apart.
    assert np.percentile(np.abs(a - b), 95) < 0.02 and np.abs(a - b).max() < 0.1


def test_hand_length_fixes_the_scale(clip: Path, made: Made, tmp_path: Path, capsys) -> None:
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


# Odd but usable videos.


def _variable_rate(folder: Path) -> Path:
    times = np.cumsum([0, *([1 / 30, 1 / 20] * 3)])[:6]
    return write_video(folder / "v.mp4", example_frames(6), times=times, options=X264)


def _rotated(folder: Path) -> Path:
    turned = [np.rot90(frame, -1) for frame in example_frames(6)]
    return write_video(folder / "v.mp4", turned, rotation=90, options=X264)


def _odd(folder: Path) -> Path:
    frames = [frame[:-1, :-1] for frame in example_frames(6)]
    return write_video(folder / "v.mp4", frames, pix_fmt="yuv444p", options=X264)


def _ten_bit(folder: Path) -> Path:
    return write_video(folder / "v.mp4", example_frames(6), pix_fmt="yuv420p10le", options=X264)


def _large(folder: Path) -> Path:
    frames = example_frames(4, 60)
    big = [np.kron(f, np.ones((6, 6, 1), np.uint8))[:2160] for f in frames]
    return write_video(folder / "v.mp4", big, options=X264)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "frames", "size"),
    [
        (_variable_rate, None, (480, 640)),
        (_rotated, 6, (480, 640)),
        (_odd, 6, (478, 638)),
        (_ten_bit, 6, (480, 640)),
        (_large, 4, (2160, 3840)),
        (lambda f: write_video(f / "v.mp4", example_frames(1), options=X264), 1, (480, 640)),
        (
            lambda f: write_video(
                f / "v.mp4", example_frames(6), fps=Fraction(30000, 1001), options=X264
            ),
            6,
            (480, 640),
        ),
    ],
    ids=["variable rate", "rotated", "odd size", "10 bit", "4K", "one frame", "29.97"],
)
def test_odd_videos(make, frames: int | None, size, made: Made, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    run = Run(capsys, make(tmp_path), "--output", out, "--no-overlay", *made.calibration)
    assert run.code == 0, run.err
    (episode,) = run.json["episodes"]
    assert frames is None or episode["frames"] == frames
    assert min(episode["coverage"].values()) > 0.9
    info = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    assert tuple(info["features"]["observation.images.ego"]["shape"][:2]) == size
    assert check_every_frame(tmp_path / "out") == []


def test_a_truncated_video_gives_what_is_there(made: Made, tmp_path: Path, capsys) -> None:
    whole = write_video(
        tmp_path / "whole.mp4", example_frames(16), options={**X264, "g": "2"},
        container_options={"movflags": "faststart"},
    )  # fmt: skip
    content = whole.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: len(content) // 2])
    out = tmp_path / "out"
    run = Run(capsys, tmp_path / "cut.mp4", "--output", out, "--no-overlay", *made.calibration)
    assert run.code == 0 and 3 < run.json["episodes"][0]["frames"] < 16
    (record,) = read_provenance(tmp_path / "out")
    assert any("frames are lost" in note for note in record["notes"])


# What is refused.


def _text(folder: Path) -> Path:
    path = folder / "v.mp4"
    path.write_text("this is no video\n" * 100)
    return path


def _headless(folder: Path) -> Path:
    whole = write_video(folder / "w.mp4", example_frames(), options=X264).read_bytes()
    path = folder / "v.mp4"
    path.write_bytes(whole[: len(whole) // 2])
    return path


def _empty(folder: Path) -> Path:
    (folder / "v.mp4").touch()
    return folder / "v.mp4"


def _bare_folder(folder: Path) -> Path:
    (folder / "bare").mkdir()
    return folder / "bare"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f / "nowhere.mp4", "no such file"),
        (_bare_folder, "has no video"),
        (_empty, "empty"),
        (_text, "v.mp4"),
        (_headless, "v.mp4"),
        (lambda f: write_video(f / "v.mkv", 0), "v.mkv"),
        (lambda f: write_audio(f / "v.mp4"), "only audio"),
    ],
    ids=["missing", "folder", "empty", "text", "no index", "no frames", "audio"],
)
def test_unusable_inputs(make, message: str, tmp_path: Path, capsys) -> None:
    run = Run(capsys, make(tmp_path), "--output", tmp_path / "out")
    assert run.code == 2 and message in run.messages and run.json.get("dataset") is None
    assert f"error: {run.messages}" in run.err
    assert [name for name in left_behind(tmp_path) if name != "bare"] == []


def test_no_hands_at_all(tmp_path: Path, capsys) -> None:
    video = write_video(tmp_path / "v.mp4", empty_frames(), options=X264)
    run = Run(capsys, video, "--output", tmp_path / "out")
    assert run.code == 3 and "no hand was found in 12 frames" in run.messages
    assert run.json["episodes"] == [] and left_behind(tmp_path) == []


@pytest.mark.slow
def test_a_bad_input_does_not_stop_the_good_one(
    clip: Path, made: Made, tmp_path: Path, capsys
) -> None:
    bad = _text(tmp_path)
    known = ("--no-overlay", *made.calibration)
    run = Run(capsys, bad, clip, "--output", tmp_path / "out", *known)
    assert run.code == 1 and len(run.json["episodes"]) == 1
    assert [error["source"] for error in run.json["errors"]] == [str(bad)]
    assert check_every_frame(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--intrinsics", "500,500,320"], "fx,fy,cx,cy"),
        (["--intrinsics", "500,500,3200,240"], "500,500,3200,240"),
        (["--robot", "inspir"], "Did you mean 'inspire'"),
        (["--tracker", "mediapip"], "Did you mean 'mediapipe'"),
        (["--method", "dexvector"], "Did you mean 'dex-vector'"),
        (["--hand-length", "18"], "0.05 to 0.35"),
        (["--start", "99"], "outside the recording"),
        (["--fps", "0"], "1"),
        (["--fps", "1000"], "where the source has 30; valid: 1 to 300"),
        # 0.044 and 11.5 times 640 px.
        (["--intrinsics", "1e9,1e9,319.5,239.5"], "valid: 28 to 7360 px"),
        (["--intrinsics", "600,20,319.5,239.5"], "fy 20 px"),
        (["--task", " "], "task"),
    ],
)
def test_unusable_settings(arguments, message, clip: Path, tmp_path: Path, capsys) -> None:
    run = Run(capsys, clip, *arguments, "--output", tmp_path / "out")
    assert run.code == 2 and message in run.messages
    assert left_behind(tmp_path) == []


def test_a_camera_of_another_shape(clip: Path, tmp_path: Path, capsys) -> None:
    camera = {"model": "pinhole", "width": 1280, "height": 720, "fx": 900, "fy": 900, "cx": 640,
              "cy": 360, "distortion": []}  # fmt: skip
    (tmp_path / "camera.json").write_text(json.dumps(camera))
    run = Run(capsys, clip, "--camera", tmp_path / "camera.json", "--output", tmp_path / "out")
    assert run.code == 2 and "1280" in run.messages and "640" in run.messages


def test_an_existing_output_is_safe(clip: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    run = Run(capsys, clip, "--output", out)
    assert run.code == 4 and "--overwrite" in run.messages
    run = Run(capsys, clip, "--output", out, "--overwrite")
    assert run.code == 4 and "not a LeRobot dataset" in run.messages
    run = Run(capsys, clip, "--output", out, "--append")
    assert run.code == 2 and "no LeRobot dataset" in run.messages
    assert (out / "precious").read_text() == "mine" and left_behind(tmp_path) == ["out"]


def test_usage_errors_exit_with_two(capsys) -> None:
    for arguments, message in (
        (["v.mp4", "--hands", "three"], "invalid choice 'three'"),
        (["v.mp4", "--append", "--overwrite"], "not allowed together"),
        (["v.mp4", "--ovrlay"], "--overlay, --no-overlay"),
        (["v.mp4", "--fps", "x"], "Error parsing --fps"),
    ):
        with pytest.raises(SystemExit) as stop:
            retarget.main(arguments)
        assert stop.value.code == 2
        told = " ".join(capsys.readouterr().err.split())
        assert message in told and "acehand-retarget --help" in told
    assert retarget.main([]) == 2
    assert "INPUT is missing; see --help" in capsys.readouterr().err


# What a full disk or an interruption leaves.


def _child(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "acehand_core.cli.retarget", *map(str, arguments), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options,
    )  # fmt: skip


def _no_large_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


@pytest.mark.slow
def test_full_disk(clip: Path, tmp_path: Path) -> None:
    child = _child(
        clip, "--output", tmp_path / "out", "--quiet",
        preexec_fn=_no_large_files, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    out, err = child.communicate(timeout=120)
    assert child.returncode == 4, err
    message = json.loads(out.splitlines()[-1])["errors"][0]["message"]
    assert "cannot write" in message and str(tmp_path / "out") in message
    assert left_behind(tmp_path) == []


def test_an_output_that_fails_keeps_what_was_finished(
    made: Made, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_video(tmp_path / "a.mp4", example_frames(4), options=X264)
    second = write_video(tmp_path / "b.mp4", example_frames(5), options=X264)
    third = write_video(tmp_path / "c.mp4", example_frames(6), options=X264)
    add = LeRobotWriter.add_episode

    def full_at_the_second(writer: LeRobotWriter, *arguments: object) -> int:
        if writer.total_episodes == 1:
            raise OutputError(f"{tmp_path / 'out'}: cannot write: no space left")
        return add(writer, *arguments)

    monkeypatch.setattr(LeRobotWriter, "add_episode", full_at_the_second)
    known = ("--no-overlay", *made.calibration)
    run = Run(capsys, first, second, third, "--output", tmp_path / "out", *known)
    assert run.code == 4 and run.json["dataset"] == str(tmp_path / "out")
    assert [episode["source"] for episode in run.json["episodes"]] == [str(first)]
    assert [error["source"] for error in run.json["errors"]] == [str(second)]
    assert check_every_frame(tmp_path / "out") == []
    assert left_behind(tmp_path) == ["out"]


@pytest.mark.slow
def test_interrupting_and_resuming(made: Made, tmp_path: Path, capsys) -> None:
    frames = example_frames(120)
    first = write_video(tmp_path / "a.mp4", frames[:6], options=X264)
    second = write_video(tmp_path / "b.mp4", frames, options=X264)
    out = tmp_path / "out"
    words = (first, second, "--output", out, "--no-overlay", *made.calibration)
    child = _child(*words)
    deadline = time.monotonic() + 100
    while not (out / "acehand" / "episode_000000" / "contact_sheet.png").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)  # into the second input
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 130 and "Interrupted" in err and "Traceback" not in err
    assert check_every_frame(out) == []
    assert set(left_behind(tmp_path)) <= {"out", ".out.acehand-work"}
    run = Run(capsys, *words, "--resume")
    assert run.code == 0 and run.json["skipped"] == [str(first)]
    assert [e["frames"] for e in run.json["episodes"]] == [120]
    assert check_every_frame(out) == [] and left_behind(tmp_path) == ["out"]


@pytest.mark.parametrize("output", [".", "", "folder/.."])
def test_an_output_without_a_name_of_its_own(
    output: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands = hands_file(tmp_path / "h.npz", 6)
    here = tmp_path / "here"
    (here / "folder").mkdir(parents=True)
    monkeypatch.chdir(here)
    run = Run(capsys, hands, "--output", output)
    assert run.code in (2, 4) and run.messages
    assert left_behind(here) == ["folder"] and left_behind(tmp_path) == ["here"]


@pytest.mark.slow
def test_nothing_is_in_a_dataset_twice(tmp_path: Path, capsys) -> None:
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


def test_the_dataset_one_stands_in(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = hands_file(tmp_path / "h.npz", 6)
    assert Run(capsys, hands, "--output", tmp_path / "out").code == 0
    monkeypatch.chdir(tmp_path / "out")
    run = Run(capsys, hands, "--output", ".", "--append", "--task", "another")
    assert run.code == 0 and run.json["episodes"][0]["episode_index"] == 1
    assert check_every_frame(tmp_path / "out") == [] and left_behind(tmp_path) == ["out"]


@pytest.mark.slow
def test_verbose_adds_tracebacks_and_changes_nothing_else(tmp_path: Path, capsys) -> None:
    nowhere, bad = tmp_path / "nowhere.mp4", _text(tmp_path)
    for words, code in (([nowhere], 2), ([bad], 2), ([bad, hands_file(tmp_path / "h.npz")], 1)):
        plain = Run(capsys, *words, "--output", tmp_path / "plain", "--no-overlay")
        run = Run(capsys, *words, "--output", tmp_path / "out", "--no-overlay", "-v")
        assert run.code == plain.code == code and run.messages == plain.messages
        assert f"error: {run.messages}" in run.err and "Traceback" not in plain.err
        assert run.err.count("Traceback (most recent call last)") >= 1


def test_interrupted_before_anything(
    clip: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Registry, "expand", interrupt)
    run = Run(capsys, clip, "--output", tmp_path / "out")
    assert run.code == 130 and run.json["dataset"] is None and run.messages == "interrupted"


# A robot with one hand.


def test_a_robot_with_one_hand_follows_that_hand(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, robot = hands_file(tmp_path / "h.npz"), ROOT / "examples" / "own_robot"
    run = Run(capsys, hands, "--robot", robot, "--output", tmp_path / "out")
    assert run.code == 0 and run.json["episodes"][0]["coverage"] == {"left": 0.0, "right": 1.0}
    note = "robot three_fingers has a right hand only: the other is not looked for"
    assert run.json["notes"] == [note]
    again = Run(capsys, hands, "--robot", robot, "--output", tmp_path / "out", "--resume")
    assert again.code == 0 and again.json["skipped"] == [str(hands)]
    assert Acehand(capsys, "view", hands, "--robot", robot, "--output", tmp_path / "v").code == 0

    def worked(*_: object) -> None:
        raise AssertionError("it should have been refused first")

    monkeypatch.setattr(Registry, "open", worked)
    for asked in ("both", "left"):
        run = Run(capsys, hands, "--robot", robot, "--hands", asked, "--output", tmp_path / "no")
        assert run.code == 2 and "give --hands right" in run.messages
        assert not (tmp_path / "no").exists()
    with pytest.raises(InputError, match="hands='right' of track"):
        retarget_motion(read_motion_file(hands, "both"), load_robot(robot))


def test_a_log_has_a_line_for_every_tenth() -> None:
    """A file of 1000 steps: not as many lines. A terminal gets a bar, which rewrites its line."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        with console.Bars(False, stream) as bars:
            for done in range(1001):
                bars("track", done, 1000)
            bars("a remark", 0, 0)
            for done in (0, 1):
                bars("moment", done, 1)
    assert log.getvalue().splitlines() == [
        *(f"track: {n} %" for n in range(0, 101, 10)),
        "a remark",
    ]
    assert "\r" in terminal.getvalue()


def test_quiet_keeps_the_verdict(tmp_path: Path, capsys) -> None:
    hands = [hands_file(tmp_path / f"{name}.npz") for name in "ab"]
    words = [*map(str, hands), "--dry-run", "-q"]
    assert retarget.main(words) == 0
    said = capsys.readouterr()
    for path, line in zip(hands, said.err.splitlines(), strict=True):
        assert re.fullmatch(
            rf"{re.escape(str(path))}: (pass|warn|fail) \(left .*, right .*\)", line
        )
    assert said.out == ""


# The other commands.


@pytest.mark.slow
def test_the_parts_one_by_one(clip: Path, tmp_path: Path, capsys) -> None:
    hands = tmp_path / "hands.parquet"
    assert acehand(["reconstruct", str(clip), "--output", str(hands), "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["coverage"] == {"left": 1.0, "right": 1.0}
    assert acehand(["export", str(hands), str(tmp_path / "hands.csv"), "-q"]) == 0
    assert acehand(["export", str(hands), str(tmp_path / "joints.npz"), "-q"]) == 0
    assert acehand(["view", str(hands), "--video", str(clip), "--output", str(tmp_path / "view"),
                    "--no-overlay", "-q"]) == 0  # fmt: skip
    assert (tmp_path / "view" / "contact_sheet.png").stat().st_size > 10_000
    out = tmp_path / "out"
    assert retarget.main([str(tmp_path / "joints.npz"), "--output", str(out), "-q"]) == 0
    assert acehand(["dataset", "check", str(out), "-q"]) == 0
    (out / "meta" / "info.json").write_text("{}")
    assert acehand(["dataset", "check", str(out), "--json", "-q"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["problems"]


def test_an_output_that_cannot_be_is_refused_first(
    clip: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acehand_core.recordings import keypoint_files

    def worked(*_: object) -> None:
        raise AssertionError("the output should have been looked at first")

    monkeypatch.setattr(Registry, "open", worked)
    monkeypatch.setattr(keypoint_files, "read_joints_file", worked)
    hands, csv = hands_file(tmp_path / "h.npz"), tmp_path / "hands.csv"
    for words in (["reconstruct", clip, "--output"], ["export", hands]):
        run = Acehand(capsys, *words, tmp_path / "hands.xlsx")
        assert run.code == 2 and ".parquet" in run.messages and ".csv" in run.messages
        csv.write_text("mine")
        run = Acehand(capsys, *words, csv)
        assert run.code == 4 and "--overwrite" in run.messages and csv.read_text() == "mine"


def test_nothing_is_overwritten_without_leave(tmp_path: Path, capsys) -> None:
    hands, video = hands_file(tmp_path / "h.npz", 6), tmp_path / "v.mp4"
    write_video(video, example_frames(6), options=X264)
    targets = {
        "reconstruct": ([video, "--output", tmp_path / "r.csv"], tmp_path / "r.csv"),
        "export": ([hands, tmp_path / "e.csv"], tmp_path / "e.csv"),
        "view": ([hands, "--output", tmp_path / "view"], tmp_path / "view/contact_sheet.png"),
        "robots": (["inspire", "--output", tmp_path / "r.png"], tmp_path / "r.png"),
    }
    (tmp_path / "view").mkdir()
    for name, (words, target) in targets.items():
        target.write_text("mine")
        run = Acehand(capsys, name, *words)
        assert run.code == 4 and "--overwrite" in run.messages, name
        assert target.read_text() == "mine"
        assert Acehand(capsys, name, *words, "--overwrite").code == 0
        assert target.read_bytes() != b"mine"


def test_robots_and_doctor(tmp_path: Path, capsys) -> None:
    picture = tmp_path / "robot.png"
    assert acehand(["robots", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["robots"]
    assert {"inspire", "allegro", "leap", "shadow", "ability", "panda_gripper"} <= {*listed}
    assert listed["inspire"]["variants"] == ["default", "other"] and listed["leap"]["license"]
    left = listed["inspire"]["sides"]["left"]
    assert len(left["joints"]) == 12 and left["commands"][0] == "pinky"
    assert left["pinch_reach_mm"]["middle"] == pytest.approx(18.6, abs=0.2)
    assert listed["panda_gripper"]["sides"]["right"]["pinch_reach_mm"] == {}
    assert acehand(["robots", "inspire", "--output", str(picture)]) == 0 and picture.exists()
    assert acehand(["robots", "show", "ability", "--output", str(tmp_path / "ability.png")]) == 0
    assert (tmp_path / "ability.png").stat().st_size > 10_000
    assert acehand(["robots", "list", "inspire:other"]) == 0
    said = capsys.readouterr().err
    assert "inspire:other" in said and "left fingertips" in said and "index" in said
    assert acehand(["robots", "show"]) == 2 and acehand(["robots", "check", "inspir"]) == 2
    assert "Did you mean 'inspire'" in capsys.readouterr().err
    assert acehand(["robots", "show", "leap", "--robot-model", str(tmp_path)]) == 2
    assert "no model file" in capsys.readouterr().err
    assert acehand(["doctor", "--json"]) == 0
    pieces = json.loads(capsys.readouterr().out)["pieces"]
    assert {p["name"]: p["found"] for p in pieces}["hand networks"] == "mediapipe 0.10.14"
    assert all(p["adds"] and p["get"] for p in pieces)


def test_robots_check_tells_what_is_wrong(tmp_path: Path, capsys) -> None:
    assert acehand(["robots", "check", "panda_gripper", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["failed"] == 0 and set(record["robots"]["panda_gripper"]) == {"left", "right"}
    source = find_robot_file("panda_gripper").parent
    robot = Path(shutil.copytree(source, tmp_path / "gripper"))
    model = robot / "right.xml"
    model.write_text(model.read_text().replace('range="0 0.04"', 'range="0 0.05"', 1))
    assert acehand(["robots", "check", str(robot)]) == 1
    assert "right limits: FAILED, thumb_jaw has [0, 0.05]" in capsys.readouterr().err


def test_export_of_robot_commands(tmp_path: Path, capsys) -> None:
    """In the vendor's order and unit; only hands that appear; whole numbers where they must be."""
    joints = np.full((20, 2, 21, 3), np.nan)
    joints[:, 1] = moving_hands(20)[:, 1]
    hands, output = tmp_path / "hands.npz", tmp_path / "commands.csv"
    np.savez(hands, joints=joints, fps=30, frame="camera")
    assert acehand(["export", str(hands), str(output), "--robot", "inspire", "--json"]) == 0
    header, *rows = output.read_text().splitlines()
    assert header == ("time_s,right_pinky,right_ring,right_middle,right_index,right_thumb_bend,"
                      "right_thumb_rotation,right_active")  # fmt: skip
    assert json.loads(capsys.readouterr().out)["columns"] == header.split(",")
    values = np.array([row.split(",") for row in rows], float)
    assert values.shape == (20, 8) and values[:, 0] == pytest.approx(np.arange(20) / 30, abs=1e-6)
    assert (values[:, 1:7] == values[:, 1:7].round()).all() and np.ptp(values[:, 4]) > 50
    assert values[:, 1:7].min() >= 0 and values[:, 1:7].max() <= 1000 and (values[:, 7] == 1).all()
    gripper = ["export", str(hands), str(output), "--robot", "panda_gripper"]
    assert acehand(gripper) == 4 and output.read_text().splitlines() == [header, *rows]
    assert acehand([*gripper, "--overwrite"]) == 0
    assert output.read_text().startswith("time_s,right_gripper,right_active\n0.000000,0.0")
    assert acehand(["export", str(hands), str(tmp_path / "c.txt"), "--robot", "inspire"]) == 2
    leap, other = ["--robot", "leap", "--hands", "left"], str(tmp_path / "other.csv")
    assert acehand(["export", str(hands), other, *leap]) == 4
    assert "no left hand appears" in capsys.readouterr().err


def test_a_library_that_mujoco_gl_names_and_that_is_not_there(tmp_path: Path) -> None:
    """The bindings of OSMesa fail on import of MuJoCo itself, which the replay needs."""
    if _can_load("libOSMesa.so.8") or _can_load("libOSMesa.so"):
        pytest.skip("OSMesa is here")
    child = _child(
        hands_file(tmp_path / "h.npz"), "--output", tmp_path / "out",
        env={**os.environ, "MUJOCO_GL": "osmesa"},
    )  # fmt: skip
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0 and "Traceback" not in err
    assert check_every_frame(tmp_path / "out") == []
    assert "no pictures of the robot" in err and "libosmesa" not in err


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def test_pictures_without_opengl(clip: Path, tmp_path: Path) -> None:
    """Everything but the robot's pictures works, and the message names the packages."""
    child = _child(clip, "--output", tmp_path / "out", env={**os.environ, "MUJOCO_GL": "disable"})
    _, err = child.communicate(timeout=120)
    assert child.returncode == 0 and "libegl1" in err
    extras = tmp_path / "out" / "acehand" / "episode_000000"
    assert (extras / "contact_sheet.png").exists() and (extras / "overlay.mp4").exists()
