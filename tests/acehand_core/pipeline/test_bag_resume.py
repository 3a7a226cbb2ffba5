"""Conversions of bags that were interrupted or killed: resumed, dataset and bag are complete."""

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rosbags.rosbag2 import Reader

from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot.check import check_dataset
from acehand_core.pipeline.bag_convert import convert_bag
from acehand_core.pipeline.converter import Converter
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.writer import BagWriter, clean_siblings
from acehand_ros import offline_bag
from acehand_ros.parameters import OFFLINE_BAG, offline_options
from acehand_ros.worker import JobLog, JobWorker
from helpers import dying_runs
from helpers.bag_samples import START, SampleBag, pictures, stamps
from helpers.commands import GRIPPER, Acehand, hands_file, run_helper
from helpers.lerobot_samples import names_in, snapshot

#: Frames of each of the two episodes.
COUNT = 4


def moments(fast: str) -> list[object]:
    """All moments of a conversion, all but one of them slow."""
    slow = [m for m in dying_runs.BAG if m != fast]
    return [fast, *(pytest.param(m, marks=pytest.mark.slow) for m in slow)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A bag of two episodes with a pause between them, and the hands of either."""
    folder = tmp_path_factory.mktemp("inputs")
    times = [*stamps(COUNT), *stamps(COUNT, start=START + 5 * 10**9)]
    with SampleBag(folder / "bag") as bag:
        for image, ns in zip(pictures(2 * COUNT), times, strict=True):
            bag.image(image, ns)
            bag.camera_info(ns)
    return folder / "bag", hands_file(folder / "hands.npz", 2 * COUNT)


def job(inputs: tuple[Path, Path], folder: Path, *more: object, out: str = "out") -> list[object]:
    bag, hands = inputs
    return ["bag", "convert", bag, "--tracker", hands, "--output", folder / "dataset",
            "--bag-output", folder / out, "--no-overlay", *GRIPPER, *more]  # fmt: skip


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """What an undisturbed run writes: dataset/, out/, out.mcap."""
    folder = tmp_path_factory.mktemp("whole")
    assert acehand([*map(str, job(inputs, folder)), "--quiet"]) == 0
    again = job(inputs, folder, "--resume", out="out.mcap")
    assert acehand([*map(str, again), "--quiet"]) == 0
    return folder


def assert_complete(
    capsys, inputs: tuple[Path, Path], folder: Path, whole: Path, *more: object, out: str = "out"
) -> None:
    """Resume, compare all bytes with an uninterrupted run, and see that once more changes none."""
    run = Acehand(capsys, *job(inputs, folder, "--resume", *more, out=out))
    assert run.code == 0 and run.json["bag"] == str(folder / out), run.err
    assert run.json["dataset"] == str(folder / "dataset")
    assert names_in(folder) == ["dataset", out], "nothing hidden is left"
    made = snapshot(folder)
    tops = ("dataset", out)
    expected = {n: data for n, data in snapshot(whole).items() if n.split("/")[0] in tops}
    assert made == expected
    assert check_dataset(folder / "dataset") == []

    again = Acehand(capsys, *job(inputs, folder, "--resume", *more, out=out))
    assert again.code == 0 and len(again.json["skipped"]) == 2
    assert any(f"{folder / out}: already" in note for note in again.json["notes"])
    assert again.json["topics"]["written"] == {
        **again.json["topics"]["written"], "/cam/image_raw": 2 * COUNT,
        "/left_hand/joint_states": 2 * COUNT,
    }  # fmt: skip
    assert snapshot(folder) == made


def messages(bag: Path) -> list[tuple[str, int, bytes]]:
    """Read a bag with rosbags' own reader."""
    with Reader(bag) as reader:
        return [
            (connection.topic, time, bytes(data)) for connection, time, data in reader.messages()
        ]


def interrupt() -> None:
    # Shells have what runs in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("moment", moments("placed"))
def test_an_interrupted_conversion_is_completed(
    moment, inputs, whole, tmp_path, capsys, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(*dying_runs.at(moment, interrupt))
        run = Acehand(capsys, *job(inputs, tmp_path))
    assert run.code == 130 and run.json["bag"] is None
    # What is there has its final name: nothing but the work of an unfinished tracking is hidden.
    assert set(names_in(tmp_path)) <= {"dataset", "out", ".dataset.acehand-work"}
    assert (tmp_path / "out").exists() == (moment == "placed")
    assert_complete(capsys, inputs, tmp_path, whole)


@pytest.mark.slow
def test_bags_of_sqlite_are_completed_too(inputs, tmp_path, capsys, monkeypatch):
    sqlite, whole, stopped = ("--storage", "sqlite3"), tmp_path / "whole", tmp_path / "stopped"
    assert Acehand(capsys, *job(inputs, whole, *sqlite)).code == 0
    assert [path.suffix for path in (whole / "out").iterdir() if path.is_file()].count(".db3") == 1
    with monkeypatch.context() as patch:
        patch.setattr(*dying_runs.at("write", interrupt))
        assert Acehand(capsys, *job(inputs, stopped, *sqlite)).code == 130
    assert_complete(capsys, inputs, stopped, whole, *sqlite)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.parametrize("moment", moments("write"))
def test_a_killed_conversion_is_completed(moment, inputs, whole, tmp_path, capsys):
    words = job(inputs, tmp_path, out="out.mcap")
    done = run_helper("dying_runs", moment, *words, "--quiet")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "out.mcap").exists() == (moment == "placed")
    assert_complete(capsys, inputs, tmp_path, whole, out="out.mcap")


def refused(capsys, arguments: list[object], folder: Path, text: str) -> None:
    """See that a resumed run ends with exit code 4 and this text, and changes nothing."""
    before = snapshot(folder)
    run = Acehand(capsys, *arguments)
    assert run.code == 4 and run.json["bag"] is None, run.err
    assert str(folder / "out") in run.messages and text in run.messages, run.messages
    assert snapshot(folder) == before


def test_another_bag_in_its_place_is_refused(inputs, whole, tmp_path, capsys):
    shutil.copytree(whole / "dataset", tmp_path / "dataset")
    place, resume = tmp_path / "out", job(inputs, tmp_path, "--resume")
    place.mkdir()
    (place / "mine.txt").write_text("not a bag")
    refused(capsys, resume, tmp_path, "cannot complete it")
    shutil.rmtree(place)
    with BagWriter(place) as writer:
        writer.write_raw("/x", "std_msgs/msg/String", 1, bytes(12))
    refused(capsys, resume, tmp_path, "cannot complete it")
    shutil.rmtree(place)

    # Another storage, another recording, a dataset of other episodes.
    shutil.copytree(whole / "out", place)
    with SampleBag(tmp_path / "another") as bag:
        for image, ns in zip(pictures(COUNT), stamps(COUNT), strict=True):
            bag.image(image, ns)
    another = job((tmp_path / "another", inputs[1]), tmp_path, "--resume")
    for words in ([*resume, "--storage", "sqlite3"], another):
        refused(capsys, words, tmp_path, "not the bag of this conversion")
    shutil.rmtree(tmp_path / "dataset")
    refused(capsys, resume, tmp_path, "not the bag of this conversion")


@pytest.mark.slow
def test_a_bag_without_the_newest_episodes_is_written_anew(
    inputs, whole, tmp_path, capsys, monkeypatch
):
    retarget = Converter.retarget

    def fails_later(converter, episode, hands):
        if episode.view.timestamps_ns[0] > stamps(COUNT)[-1]:
            raise InputError("not now")
        return retarget(converter, episode, hands)

    with monkeypatch.context() as patch:
        patch.setattr(Converter, "retarget", fails_later)
        assert Acehand(capsys, *job(inputs, tmp_path)).code == 1
    topics = [topic for topic, _, _ in messages(tmp_path / "out")]
    assert topics.count("/left_hand/joint_states") == COUNT
    run = Acehand(capsys, *job(inputs, tmp_path, "--resume"))
    assert run.code == 0 and [e["episode_index"] for e in run.json["episodes"]] == [1]
    assert any("written anew" in note for note in run.json["notes"])
    assert names_in(tmp_path) == ["dataset", "out"]
    assert messages(tmp_path / "out") == messages(whole / "out")


@pytest.mark.slow
def test_an_interrupted_append_has_its_own_episodes_only(
    inputs, whole, tmp_path, capsys, monkeypatch
):
    """The dataset has the same recording already, with another task."""
    for name in ("whole", "stopped"):
        shutil.copytree(whole / "dataset", tmp_path / name / "dataset")
    again = ("--task", "again")
    assert Acehand(capsys, *job(inputs, tmp_path / "whole", "--append", *again)).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(*dying_runs.at("copy", interrupt))
        assert Acehand(capsys, *job(inputs, tmp_path / "stopped", "--append", *again)).code == 130
    run = Acehand(capsys, *job(inputs, tmp_path / "stopped", "--resume", *again))
    assert run.code == 0 and run.json["topics"]["written"]["/left_hand/joint_states"] == 2 * COUNT
    assert snapshot(tmp_path / "stopped" / "out") == snapshot(tmp_path / "whole" / "out")


@pytest.mark.parametrize("existing", ["--append", "--resume"])
def test_a_bag_without_hands_gives_no_bag(existing, inputs, whole, tmp_path, capsys):
    """Also where the dataset has episodes of others: nothing of ours could be in it."""
    shutil.copytree(whole / "dataset", tmp_path / "dataset")
    nowhere = hands_file(tmp_path / "nowhere.npz", COUNT, joints=np.full((COUNT, 2, 21, 3), np.nan))
    with SampleBag(tmp_path / "empty") as bag:
        for image, ns in zip(pictures(COUNT), stamps(COUNT), strict=True):
            bag.image(image, ns)
    run = Acehand(capsys, *job((tmp_path / "empty", nowhere), tmp_path, existing))
    assert run.code == 3 and run.json["bag"] is None and "no hand" in run.messages, run.err
    assert not (tmp_path / "out").exists()


def test_a_bag_that_was_set_aside_comes_back(whole, tmp_path):
    """Killed while it replaced a bag: the old one is whole, under its name, at the next look."""
    before = snapshot(whole / "out")
    shutil.copytree(whole / "out", tmp_path / ".out.replaced-1")
    shutil.copytree(whole / "out", tmp_path / ".out.partial-1")
    clean_siblings(tmp_path / "out")
    assert names_in(tmp_path) == ["out"] and snapshot(tmp_path / "out") == before


def test_a_bag_that_another_process_writes_is_left_alone(tmp_path):
    with BagWriter(tmp_path / "out") as writer:
        writer.write_raw("/x", "std_msgs/msg/String", 1, bytes(12))
        clean_siblings(tmp_path / "out")
        with pytest.raises(OutputError, match="another process"):
            BagWriter(tmp_path / "out")
    assert Bag(tmp_path / "out").counts == {"/x": 1}
    # What came meanwhile is not replaced.
    writer = BagWriter(tmp_path / "late")
    writer.write_raw("/x", "std_msgs/msg/String", 1, bytes(12))
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "theirs").write_text("came first")
    with pytest.raises(OutputError, match="exists"):
        writer.close()
    assert names_in(tmp_path) == ["late", "out"] and names_in(tmp_path / "late") == ["theirs"]


def test_the_node_resumes(inputs, whole, tmp_path):
    """offline_bag with existing:=resume, stopped while it writes messages; without ROS."""
    bag, hands = inputs
    values = {leaf.parameter: leaf.default for leaf in OFFLINE_BAG} | {
        "bag": str(bag), "output_dir": str(tmp_path / "dataset"), "tracker": str(hands),
        "bag_output": str(tmp_path / "out"), "existing": "resume", "robot": GRIPPER[1],
    }  # fmt: skip

    def run(stop_at=""):
        worker, said = JobWorker(), []

        def work(progress, cancel):
            def reported(stage, done, total):
                progress(stage, done, total)
                if stage == stop_at:
                    worker.cancel()

            return convert_bag(offline_options(values), reported, cancel)

        log = JobLog(SimpleNamespace(info=said.append, warning=said.append), worker)
        worker.start(work)
        worker.join()
        log.update()
        return offline_bag.exit_code(worker.status), " ".join(said)

    assert run("write messages")[0] == 130 and names_in(tmp_path) == ["dataset"]
    code, said = run()
    assert code == 0 and str(tmp_path / "out") in said and str(tmp_path / "dataset") in said
    assert messages(tmp_path / "out") == messages(whole / "out")
    before = snapshot(tmp_path)
    assert run()[0] == 0 and snapshot(tmp_path) == before
