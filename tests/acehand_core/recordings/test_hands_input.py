"""Files of hands as inputs: what flags mean for them, and what is in them that cannot be hands."""

from pathlib import Path

import numpy as np
import pytest

from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.keypoint_files import read_joints_file
from helpers.commands import Acehand, hands_file
from helpers.commands import GripperRun as Run
from helpers.example_video import example_frames
from helpers.retarget_samples import motion_of, moving_hands
from helpers.video_fixtures import write_video


def motion_in(dataset: Path):
    return read_hand_motion(dataset / "acehand" / "episode_000000" / "hand_motion.parquet")


def test_start_and_duration_cut_the_hands(tmp_path: Path, capsys) -> None:
    hands = hands_file(tmp_path / "h.npz", 30)
    run = Run(capsys, hands, "--start", 0.2, "--duration", 0.5, "--output", tmp_path / "out")
    assert run.code == 0 and run.json["episodes"][0]["frames"] == 15
    np.testing.assert_array_equal(motion_in(tmp_path / "out").joints_camera, moving_hands(30)[6:21])
    run = Run(capsys, hands, "--start", 2, "--output", tmp_path / "late")
    assert run.code == 2 and "0 to 1.000 s" in run.messages


def test_camera_poses_give_the_world(tmp_path: Path, capsys) -> None:
    poses = tmp_path / "poses.csv"
    rows = [f"{round(i * 1e9 / 30)},{0.01 * i},0,0,1,0,0,0" for i in range(12)]
    poses.write_text("\n".join(["timestamp_ns,x,y,z,qw,qx,qy,qz", *rows]))
    runs = {}
    for frame in ("camera", "wrist", "world"):
        hands = hands_file(tmp_path / f"{frame}.npz", frame=frame)
        runs[frame] = Run(capsys, hands, "--camera-poses", poses, "--output", tmp_path / frame)
    assert runs["camera"].code == 0 and runs["wrist"].code == runs["world"].code == 2
    world = motion_in(tmp_path / "camera").T_world_camera
    np.testing.assert_allclose(world[:, 0, 3], 0.01 * np.arange(12), atol=1e-12)
    assert "relative to the wrist" in runs["wrist"].messages
    assert "world frame" in runs["world"].messages


@pytest.mark.parametrize(
    "flags",
    [
        "--intrinsics 500,500,320,240",
        "--camera camera.json",
        "--mirrored",
        "--tracker mediapipe",
        "--camera camera.json --mirrored",
        "--hand-length 0.18",
    ],
)
def test_flags_for_videos_are_refused(flags: str, tmp_path: Path, capsys) -> None:
    words = flags.split()
    run = Run(capsys, hands_file(tmp_path / "h.npz"), *words, "--output", tmp_path / "out")
    flags_given = (word.removeprefix("--") for word in words if word.startswith("--"))
    names = ", ".join(f"`{flag.replace('-', '_')}`" for flag in flags_given)
    assert run.code == 2 and not (tmp_path / "out").exists()
    assert f": {names}." in run.messages


def test_a_hand_length_does_not_apply_to_a_tracker_file(tmp_path: Path, capsys) -> None:
    video = write_video(tmp_path / "v.mp4", example_frames(6))
    words = [video, "--tracker", hands_file(tmp_path / "h.npz", 6), "--output", tmp_path / "out"]
    run = Run(capsys, *words, "--hand-length", "0.18")
    assert run.code == 2 and ": `hand_length`." in run.messages
    assert Run(capsys, *words, "--no-overlay").code == 0


def test_one_hand_is_named_for_view_and_export(tmp_path: Path, capsys) -> None:
    hands, table = tmp_path / "h.npz", tmp_path / "h.parquet"
    np.savez(hands, joints=moving_hands(6)[:, 1], frame="camera")
    view = ["view", hands, "--output", tmp_path / "view", "--no-overlay"]
    for words in (view, ["export", hands, table]):
        run = Acehand(capsys, *words)
        assert run.code == 2 and "`hands=left|right`" in run.messages
        assert Acehand(capsys, *words, "--hands", "right").code == 0
    known = read_hand_motion(table).known
    assert known[:, 1].all() and not known[:, 0].any()

    # Of both hands one.
    words = [hands_file(tmp_path / "both.npz"), tmp_path / "l.npz", "--hands", "left"]
    assert Acehand(capsys, "export", *words).code == 0
    known = read_joints_file(tmp_path / "l.npz").known
    assert known[:, 0].all() and not known[:, 1].any()


def test_view_refuses_flags_for_videos(tmp_path: Path, capsys) -> None:
    hands, folder = hands_file(tmp_path / "h.npz"), tmp_path / "view"
    with pytest.raises(SystemExit) as stop:
        Acehand(capsys, "view", hands, "--hand-length", "0.18")
    assert stop.value.code == 2
    for flags in (["--intrinsics", "500,500,320,240"], ["--mirrored"]):
        run = Acehand(capsys, "view", hands, *flags, "--output", folder)
        assert run.code == 2 and flags[0][2:] in run.messages and not folder.exists()
    cut = ["--start", 0.1, "--duration", 0.2]
    assert Acehand(capsys, "view", hands, *cut, "--output", folder).code == 0
    run = Acehand(capsys, "view", tmp_path / "video.mp4", "--output", tmp_path / "no")
    assert run.code == 2 and "HandMotion table" in run.messages


@pytest.mark.parametrize("scale", [1000, 100, 1e299])
def test_another_unit_is_refused(scale: float, tmp_path: Path, capsys) -> None:
    hands = hands_file(tmp_path / "h.npz", joints=moving_hands(6) * scale)
    run = Run(capsys, hands, "--output", tmp_path / "out")
    assert run.code == 2 and "must be in metres" in run.messages
    for size in (0.3, 1.8):
        small = hands_file(tmp_path / "h.npz", joints=moving_hands(6) * size)
        assert read_joints_file(small).known.all()


def test_zeros_are_no_hand(tmp_path: Path, capsys) -> None:
    joints = moving_hands(6)
    joints[:, 0] = 0.0
    joints[2, 1] = 1e300
    motion = read_joints_file(hands_file(tmp_path / "h.npz", joints=joints))
    assert not motion.known[:, 0].any() and motion.known[:, 1].tolist() == [1, 1, 0, 1, 1, 1]
    assert any("7 hands" in note for note in motion.provenance.notes)
    nothing = hands_file(tmp_path / "zeros.npz", joints=0 * moving_hands(6))
    run = Run(capsys, nothing, "--output", tmp_path / "out")
    assert run.code == 3 and "in 6 frames" in run.messages


def test_hands_that_span_no_palm_make_no_episode(tmp_path: Path, capsys) -> None:
    """A table may hold what no check of its own refuses: all joints in one place."""
    table = tmp_path / "h.parquet"
    write_hand_motion(motion_of(np.zeros((6, 2, 21, 3))), table)
    run = Run(capsys, table, "--output", tmp_path / "out")
    assert run.code == 3 and run.json["episodes"] == [] and not (tmp_path / "out").exists()
