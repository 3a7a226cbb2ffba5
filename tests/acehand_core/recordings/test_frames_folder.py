"""Folders of pictures as recordings: order, times, sizes, and the main job over them."""

import hashlib
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.errors import InputError, VideoError
from acehand_core.recordings.registry import Registry, open_recording
from helpers import ROOT
from helpers.commands import GripperRun as Run
from helpers.commands import hands_file
from helpers.plugins import installed


def colour(number: int) -> np.ndarray:
    """RGB of a picture of this number; its left side is white."""
    image = np.full((48, 64, 3), (10 * number, 40, 200 - 10 * number), np.uint8)
    image[:, :8] = 255
    return image


def folder_of(folder: Path, names: list[str]) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        assert cv2.imwrite(str(folder / name), colour(number)[..., ::-1])
    return folder


def test_names_of_another_encoding_are_read(tmp_path: Path) -> None:
    """As an archive from elsewhere leaves them: e acute in Latin-1 is no UTF-8."""
    folder = folder_of(tmp_path / "a", [f"{number}.png" for number in range(3)])
    for number in range(3):
        try:
            (folder / f"{number}.png").rename(folder / f"\udce9_{number}.png")
        except OSError:
            pytest.skip("this file system takes UTF-8 only")
    recording = open_recording(folder, frame_rate=25)
    assert len(recording) == 3 and recording.frames.at(2)[0, -1, 0] == 20
    whole = b""
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        whole += digest.encode() + b" " + os.fsencode(path.name) + b"\n"
    assert recording.sha256 == hashlib.sha256(whole).hexdigest()


def test_mirrored_and_damaged_pictures(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", ["1.png", "2.png", "3.png"])
    (folder / "2.png").write_bytes(b"no picture")
    cv2.imwrite(str(folder / "3.png"), np.zeros((20, 30, 3), np.uint8))
    recording = open_recording(folder, mirrored=True, intrinsics=(60, 60, 20, 24))
    np.testing.assert_array_equal(recording.frames.at(0), colour(0)[:, ::-1])
    assert recording.camera.cx == 63 - 20
    for index, message in ((1, r"2\.png"), (2, r"3\.png: 30 x 20 pixels.* 64 x 48")):
        with pytest.raises(VideoError, match=message):
            recording.frames.at(index)


def test_pictures_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", [f"frame_{number}.png" for number in range(12)])
    (folder / "notes.txt").write_text("not a picture")
    recording = open_recording(folder, frame_rate=25)
    assert (len(recording), recording.width, recording.height) == (12, 64, 48)
    assert recording.timestamps_ns.tolist() == [40_000_000 * k for k in range(12)]
    assert recording.fps == 25 and recording.notes == ()
    for number, image in enumerate(recording.frames.read(0, 12)):
        np.testing.assert_array_equal(image, colour(number))
    assumed = open_recording(folder)
    assert assumed.fps == 30 and assumed.timestamps_ns[1] == 33_333_333
    assert "30 frames per second assumed" in assumed.notes[0]
    for rate in (0.0, -1.0, 5000.0):
        with pytest.raises(InputError, match="above 0, up to 1000"):
            open_recording(folder, frame_rate=rate)
    with pytest.raises(InputError, match=r"leave out: `frame_rate`"):
        open_recording(hands_file(tmp_path / "hands.npz"), frame_rate=30.0)


@pytest.mark.parametrize(
    ("first", "second", "step"),
    [
        # EuRoC names pictures by nanoseconds, TUM RGB-D by seconds.
        ("1403636579763555584.png", "1403636579813555456.png", 49_999_872),
        ("1305031102.175304.png", "1305031102.211214.png", 35_910_000),
    ],
)
def test_names_that_are_times(tmp_path: Path, first: str, second: str, step: int) -> None:
    folder = folder_of(tmp_path / "a", [first, second])
    recording = open_recording(folder)
    start = int(first.removesuffix(".png").replace(".", "").ljust(19, "0"))
    assert recording.timestamps_ns.tolist() == [start, start + step]
    assert recording.fps == pytest.approx(1e9 / step)
    with pytest.raises(InputError, match="`frame_rate`"):
        open_recording(folder, frame_rate=30)


def test_a_format_of_a_plug_in_may_stand_anywhere_among_the_others(tmp_path, monkeypatch):
    """One of its folders may hold pictures, too."""
    monkeypatch.syspath_prepend(str(ROOT / "examples/plugins"))
    for name in "bac":
        (tmp_path / "all" / name).mkdir(parents=True)
    for number in range(3):
        np.save(tmp_path / f"all/a/{number}.npy", colour(number))
    np.save(tmp_path / "all/b/0.npy", colour(7))
    for name in "bc":
        cv2.imwrite(str(tmp_path / f"all/{name}/0.png"), colour(0))
    with pytest.raises(VideoError):
        open_recording(tmp_path / "all/a")

    entries = {
        "acehand.recordings": "ArraysFolder",
        "acehand.recordings.settings": "ArraysSettings",
    }
    groups = {group: {"arrays": f"my_plugins.arrays:{name}"} for group, name in entries.items()}
    with installed(tmp_path / "package", groups):
        from my_plugins.arrays import ArraysFolder

        for order in (0, 45, 55):
            monkeypatch.setattr(ArraysFolder, "order", order)
            recording = open_recording(tmp_path / "all/a", duration_s=0.06)
            assert (len(recording), recording.fps) == (2, 30)
            np.testing.assert_array_equal(recording.frames.at(1), colour(1))
            inside = Registry().expand([tmp_path / "all"])
            assert inside == [tmp_path / "all" / name for name in "abc"]
            with pytest.raises(InputError, match=r"leave out: `frame_rate`"):
                open_recording(tmp_path / "all/a", frame_rate=30)


def test_folders_in_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        folder_of(tmp_path / "set" / name, ["1.png"])
    first = tmp_path / "set" / "a"
    assert Registry().expand([tmp_path / "set"]) == [first, tmp_path / "set" / "b"]
    assert Registry().expand([first]) == [first]
    (tmp_path / "empty").mkdir()
    with pytest.raises(VideoError, match="no video"):
        Registry().expand([tmp_path / "empty"])


def test_a_photograph_gives_hands_and_a_picture_and_is_no_trajectory(tmp_path, capsys):
    pytest.importorskip("openvino")
    photo = tmp_path / "Photo 1.JPG"
    image = open_recording(ROOT / "examples/two_hands.mp4").frames.at(40)
    assert cv2.imwrite(str(photo), image[..., ::-1])
    assert Registry().expand([photo]) == [photo]
    run = Run(capsys, photo, "--robot", "inspire", "--output", tmp_path / "out")
    (episode,) = run.json["episodes"]
    assert episode["frames"] == 1
    assert any("trajectory" in reason for reason in episode["reasons"])
    (sheet,) = (tmp_path / "out").rglob("contact_sheet.png")
    assert cv2.imread(str(sheet)).any()


def test_the_main_job_and_its_resume(tmp_path: Path, capsys) -> None:
    folder = folder_of(tmp_path / "frames", [f"{number:03d}.png" for number in range(6)])
    words = (folder, "--tracker", hands_file(tmp_path / "hands.npz", 6), "--no-overlay")
    words += ("--output", tmp_path / "out", "--frame-rate")
    run = Run(capsys, *words, 20)
    assert run.code == 0 and run.json["episodes"][0]["frames"] == 6
    assert run.json["episodes"][0]["fps"] == 20
    again = Run(capsys, *words, 20, "--resume")
    assert again.code == 0 and again.json["skipped"] == [str(folder)]
    other = Run(capsys, *words, 25, "--resume")
    assert other.code == 2 and "`frame_rate` is 25.0, not 20.0" in other.messages
