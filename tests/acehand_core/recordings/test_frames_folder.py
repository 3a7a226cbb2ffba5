"""Folders of pictures as recordings: order, times, sizes, and the main job over them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

import acehand_core.recordings.registry as registry
from acehand_core.errors import InputError, VideoError
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry, open_recording
from acehand_core.recordings.video import FolderFrames
from helpers.commands import Run, hands_file
from helpers.plugins import installed


def colour(number: int) -> np.ndarray:
    """RGB of a picture that tells its number and which side is left."""
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
    lines = [
        hashlib.sha256(path.read_bytes()).hexdigest().encode() + b" " + os.fsencode(path.name)
        for path in sorted(folder.iterdir())
    ]
    whole = b"".join(line + b"\n" for line in lines)
    assert recording.sha256 == hashlib.sha256(whole).hexdigest()


def test_pictures_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", [f"frame_{number}.png" for number in range(12)])
    (folder / "notes.txt").write_text("not a picture")
    recording = open_recording(folder, frame_rate=25)
    assert (len(recording), recording.width, recording.height) == (12, 64, 48)
    # 1 / 25 s is 40 ms.
    assert recording.timestamps_ns.tolist() == [40_000_000 * k for k in range(12)]
    assert recording.fps == 25 and recording.notes == ()
    for number, image in enumerate(recording.frames.read(0, 12)):
        np.testing.assert_array_equal(image, colour(number))


def test_without_a_rate_thirty_is_assumed_and_said(tmp_path: Path) -> None:
    recording = open_recording(folder_of(tmp_path / "a", ["1.jpg", "2.jpg"]))
    assert recording.fps == 30 and recording.timestamps_ns[1] == 33_333_333
    assert recording.notes == ("no frame rate given: 30 frames per second assumed",)
    for rate in (0.0, -1.0, 5000.0):
        with pytest.raises(InputError, match="above 0, up to 1000"):
            open_recording(tmp_path / "a", frame_rate=rate)


@pytest.mark.parametrize(
    ("names", "times"),
    [
        # EuRoC names pictures by nanoseconds, TUM RGB-D by seconds.
        (["1403636579763555584.png", "1403636579813555456.png"], [0, 49_999_872]),
        (["1305031102.175304.png", "1305031102.211214.png"], [0, 35_910_000]),
    ],
)
def test_names_that_are_times(tmp_path: Path, names: list[str], times: list[int]) -> None:
    folder = folder_of(tmp_path / "a", names)
    recording = open_recording(folder)
    assert (recording.timestamps_ns - recording.timestamps_ns[0]).tolist() == times
    digits = names[0].removesuffix(".png").replace(".", "").ljust(19, "0")
    assert recording.timestamps_ns[0] == int(digits)
    assert recording.fps == pytest.approx(1e9 / times[1])
    with pytest.raises(InputError, match="--frame-rate does not apply"):
        open_recording(folder, frame_rate=30)


def test_a_selfie_is_turned_back(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", ["1.png"])
    camera = open_recording(folder, mirrored=True, intrinsics=(60, 60, 20, 24))
    np.testing.assert_array_equal(camera.frames.at(0), colour(0)[:, ::-1])
    assert camera.camera.cx == 63 - 20


class ArrayFrames(FolderFrames):
    """Frames that are .npy arrays."""

    def at(self, index: int) -> np.ndarray:
        return np.load(self.paths[index])


class ArraysFolder(registry.FramesFolder):
    """A format of one's own: a folder of .npy frames, 50 a second."""

    noun = "a folder of arrays"
    option = None

    @staticmethod
    def matches(path: Path) -> bool:
        return path.is_dir() and any(path.glob("*.npy"))

    def open(self, path: Path, options: RecordingOptions, progress: object) -> registry.InputPart:
        frames = ArrayFrames(sorted(path.glob("*.npy")), (64, 48))
        times = 20_000_000 * np.arange(len(frames))
        return registry.InputPart(registry.Recording(str(path), None, times, 50.0, 64, 48, frames))


def test_a_new_format_is_one_class_and_one_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands among the others; one of its folders may hold pictures, too."""
    for name in ("b", "a", "c"):
        (tmp_path / "all" / name).mkdir(parents=True)
    for number in range(3):
        np.save(tmp_path / f"all/a/{number}.npy", colour(number))
    np.save(tmp_path / "all/b/0.npy", colour(7))
    for name in ("b", "c"):
        cv2.imwrite(str(tmp_path / f"all/{name}/0.png"), colour(0))
    with pytest.raises(VideoError):
        open_recording(tmp_path / "all/a")

    entry = {"acehand.recordings": {"arrays": f"{__name__}:ArraysFolder"}}
    with installed(tmp_path / "package", entry):
        for order in (0, 45, 55):
            monkeypatch.setattr(ArraysFolder, "order", order)
            recording = open_recording(tmp_path / "all/a", duration_s=0.04)
            assert (len(recording), recording.fps) == (2, 50)
            np.testing.assert_array_equal(recording.frames.at(1), colour(1))
            inside = Registry().expand([tmp_path / "all"])
            assert inside == [tmp_path / "all" / name for name in "abc"]
            with pytest.raises(InputError, match=r"not a folder of pictures.*--frame-rate"):
                open_recording(tmp_path / "all/a", frame_rate=30)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", ["1.png", "2.png", "3.png"])
    (folder / "2.png").write_bytes(b"no picture")
    cv2.imwrite(str(folder / "3.png"), np.zeros((20, 30, 3), np.uint8))
    recording = open_recording(folder)
    with pytest.raises(VideoError, match=r"2\.png: is damaged"):
        recording.frames.at(1)
    with pytest.raises(VideoError, match=r"3\.png: 30 x 20 pixels, but the first .* 64 x 48"):
        recording.frames.at(2)


def test_other_inputs_refuse_a_rate(tmp_path: Path) -> None:
    hands = hands_file(tmp_path / "hands.npz")
    with pytest.raises(InputError, match=r"not a folder of pictures.*--frame-rate"):
        open_recording(hands, RecordingOptions(frame_rate=30.0))


def test_folders_in_a_folder_are_found(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "set" / "b", ["1.png"])
    second = folder_of(tmp_path / "set" / "a", ["1.png"])
    folder_of(tmp_path / "set" / ".hidden", ["1.png"])
    assert Registry().expand([tmp_path / "set"]) == [second, first]
    assert Registry().expand([first]) == [first]
    (tmp_path / "empty").mkdir()
    with pytest.raises(VideoError, match="no video"):
        Registry().expand([tmp_path / "empty"])


def test_the_main_job_and_its_resume(tmp_path: Path, capsys) -> None:
    folder = folder_of(tmp_path / "frames", [f"{number:03d}.png" for number in range(6)])
    hands = hands_file(tmp_path / "hands.npz", 6)
    words = (folder, "--tracker", hands, "--output", tmp_path / "out", "--frame-rate", 20)
    run = Run(capsys, *words, "--no-overlay")
    assert run.code == 0 and run.json["episodes"][0]["frames"] == 6
    assert run.json["episodes"][0]["fps"] == 20
    again = Run(capsys, *words, "--no-overlay", "--resume")
    assert again.code == 0 and again.json["skipped"] == [str(folder)]
    words = (*words[:-1], 25)
    other = Run(capsys, *words, "--no-overlay", "--resume")
    assert other.code == 2 and "--frame-rate is 25.0, not 20.0" in other.messages
