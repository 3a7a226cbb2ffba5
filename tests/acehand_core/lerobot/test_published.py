"""What is written for others does not say where its maker keeps files."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.lerobot.dataset import JOB, read_provenance
from acehand_core.motion import Recording
from acehand_core.provenance import Provenance, without_folder
from acehand_core.recordings.hands_file import read_hand_motion
from helpers import lerobot_samples as samples
from helpers.commands import Acehand, video_and_hands
from helpers.commands import GripperRun as Run

#: A folder that no other file names.
MAKER = "jane-q-maker"
COUNT = 6


@pytest.fixture
def maker(tmp_path):
    """The maker's folder with a video and the hands in it."""
    folder = tmp_path / MAKER / "takes"
    folder.mkdir(parents=True)
    video_and_hands(folder, COUNT)
    return folder


def said(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield all bytes of all files, and what is compressed or coded in them, decoded."""
    for name, content in samples.snapshot(root).items():
        yield name, name.encode() + content
        path = root / name
        if path.suffix == ".parquet":
            table = pq.read_table(path, partitioning=None)
            texts = [str(table.schema.metadata)]
            texts += [str(c.to_pylist()) for c in table.columns if "string" in str(c.type)]
            yield f"{name}, decoded", " ".join(texts).encode()
        elif path.suffix == ".mp4":
            with av.open(str(path)) as container:
                tags = [container.metadata, *(stream.metadata for stream in container.streams)]
            yield f"{name}, tags", str(tags).encode()


def assert_silent(root: Path) -> None:
    found = dict(said(root))
    assert len(found) > 4
    assert [name for name, content in found.items() if MAKER.encode() in content] == []


@pytest.mark.slow
def test_the_main_job(maker, tmp_path, capsys, monkeypatch):
    root, hands = tmp_path / "data", maker / "hands.npz"
    job = [maker / "v.mp4", "--tracker", hands, "--output", root]
    run = Run(capsys, *job)
    assert run.code == 0 and run.json["episodes"][0]["source"] == str(maker / "v.mp4")
    # A folder of videos, the hands alone, and a calibration that lies next to them.
    kept = shutil.copy(root / "acehand/episode_000000/calibration.json", maker / "c.json")
    assert Run(capsys, maker, *job[1:], "--append", "--calibration", kept).code == 0
    monkeypatch.chdir(maker)
    assert (
        Run(capsys, f"../../{MAKER}/takes/v.mp4", *job[1:], "--append", "--task", "again").code == 0
    )
    assert_silent(root)
    records = read_provenance(root)
    assert [record[JOB]["input"] for record in records] == ["v.mp4"] * 3
    assert len({record[JOB]["input_sha256"] for record in records}) == 1
    # And it is known again from elsewhere.
    moved = shutil.move(maker / "v.mp4", tmp_path / "other.mp4")
    run = Run(capsys, moved, *job[1:], "--resume")
    assert run.json["skipped"] == [str(moved)]


def test_hands_and_what_is_made_of_them(maker, tmp_path, capsys):
    root = tmp_path / "data"
    assert Run(capsys, maker / "hands.npz", "--output", root).code == 0
    assert_silent(root)
    table = tmp_path / "table" / "hands.parquet"
    video = ["reconstruct", maker / "v.mp4", "--tracker", maker / "hands.npz"]
    assert Acehand(capsys, *video, "--output", table).code == 0
    assert read_hand_motion(table).provenance.source == "hands.npz"
    assert not [name for name, content in said(table.parent) if MAKER.encode() in content]


@pytest.mark.parametrize("source", ["data", "table"])
def test_bags(source, maker, tmp_path, capsys):
    pytest.importorskip("rosbags")
    path = maker / "hands.npz"
    if source == "data":
        path = maker / "data"
        assert Run(capsys, maker / "hands.npz", "--output", path).code == 0
    bag = tmp_path / "bag"
    assert Acehand(capsys, "bag", "write", path, "--output", bag, "--storage", "sqlite3").code == 0
    assert MAKER.encode() not in b"".join(samples.snapshot(bag).values())


def test_an_episode_of_a_dataset_is_named_with_it(maker, tmp_path, capsys):
    source = samples.write(maker / "cups", [("wave", COUNT)])
    job = [source, "--tracker", maker / "hands.npz", "--output", tmp_path / "data"]
    assert Run(capsys, *job).code == 0
    assert_silent(tmp_path / "data")
    (record,) = read_provenance(tmp_path / "data")
    assert record[JOB]["input"] == "cups/episode_000000"


def test_no_tracker_can_tell():
    for source, name in (
        ("/home/jane/v.mp4", "v.mp4"), (r"C:\Users\jane\v.mp4", "v.mp4"), ("v.mp4", "v.mp4"),
        (r"\\server\jane\v.mp4", "v.mp4"), ("arctic/s01-box", "arctic/s01-box"),
    ):  # fmt: skip
        assert without_folder(source) == Provenance(source, None, "theirs").source == name
    recording = Recording("jane/v.mp4", None, np.arange(2), 30.0, 64, 48, None)
    assert recording.name == "v.mp4" and recording.source == "jane/v.mp4"
