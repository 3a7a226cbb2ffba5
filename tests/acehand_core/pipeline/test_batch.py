"""``acehand batch``: a manifest's recordings become one dataset, whatever dies on the way."""

import csv
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core import JobSettings
from acehand_core.atomic import DirectoryLock
from acehand_core.errors import InputError, SchemaError
from acehand_core.pipeline.batch.folder import (
    Attempts,
    BatchFolder,
    Task,
    TaskResult,
    retry,
    write_result,
)
from acehand_core.pipeline.batch.manifest import read_manifest
from helpers import ROOT
from helpers.commands import Acehand, first_run, hands_file
from helpers.example_video import example_frames
from helpers.plugins import lay_down
from helpers.retarget_samples import moving_hands
from helpers.video_fixtures import write_video

FRAMES = 12


def tree(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a folder."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def table(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write a manifest."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def hands(tmp_path_factory):
    """A folder with four files of hands, which differ."""
    folder = tmp_path_factory.mktemp("hands")
    for number in range(4):
        joints = moving_hands(FRAMES + 8)[2 * number :][:FRAMES]
        hands_file(folder / f"h{number}.npz", joints=joints)
    return folder


@pytest.fixture(scope="module")
def manifest(hands):
    """Three of them, with tasks; two are of one subject."""
    rows = [
        {"recording": "h0.npz", "task": "pour", "subject": "a"},
        {"recording": "h1.npz", "task": "pick", "subject": "a"},
        {"recording": "h2.npz"},
    ]
    return table(hands / "manifest.csv", rows)


@pytest.fixture(scope="module")
def undisturbed(manifest, tmp_path_factory):
    """The output of a batch of one worker that nothing happened to."""
    output = tmp_path_factory.mktemp("whole") / "out"
    assert acehand("batch", "run", manifest, "--output", output, "--workers", "1") == 0
    return output


def acehand(*words: object, **environment: str) -> int:
    """Run a command in a process of its own; return its exit code."""
    return subprocess.run(
        [sys.executable, "-m", "acehand_core.cli.main", *map(str, words), "--quiet"],
        env=os.environ | environment, check=False, timeout=600,
    ).returncode  # fmt: skip


def test_a_row_says_what_only_its_recording_has(hands, tmp_path):
    rows = [
        {"recording": hands / "h0.npz", "task": "pour", "subject": "anna", "calibration": "a.json"},
        {"recording": hands / "h1.npz", "start": "0.1", "duration": "0.2", "mirrored": "no"},
        {"recording": hands / "h1.npz", "start": "0.3", "duration": "0.1"},
    ]
    all_of_them = JobSettings(task="all", fps=30)
    entries = read_manifest(table(tmp_path / "m.csv", rows), all_of_them)
    first, second, third = (entry.settings for entry in entries)
    assert (first.task, first.subject, first.fps) == ("pour", "anna", 30)
    assert first.calibration == tmp_path / "a.json", "next to the manifest"
    assert (second.task, second.subject, second.extent) == ("all", None, (0.1, 0.2))
    assert third.extent == (0.3, 0.1) and not second.reading.mirrored
    assert len({entry.id for entry in entries}) == 3
    # A recording's name stays when others are added.
    (alone,) = read_manifest(table(tmp_path / "few.csv", rows[1:2]), all_of_them)
    assert alone.id == entries[1].id


def test_a_parquet_manifest_and_a_folder(hands, tmp_path):
    path, videos = tmp_path / "m.parquet", tmp_path / "videos"
    pq.write_table(pa.table({"recording": [str(hands / "h1.npz")], "hand_length": [0.19]}), path)
    (entry,) = read_manifest(path, JobSettings())
    assert entry.path == hands / "h1.npz" and entry.settings.tracking.hand_length_m == 0.19
    videos.mkdir()
    for name in ("b.mp4", "a.mp4"):
        write_video(videos / name)
    found = read_manifest(videos, JobSettings())
    assert [entry.path.name for entry in found] == ["a.mp4", "b.mp4"]


def test_a_manifest_that_is_wrong(hands):
    for rows, said in (
        ([{"recording": "no.mp4"}], r"row 1: .*no\.mp4"),
        ([{"recording": ""}], "recording"),
        ([{"recording": "h0.npz", "colour": "red"}], "column 'colour'"),
        ([{"recording": "h0.npz", "robot": "shadow"}], "column 'robot'"),
        ([{"recording": "h0.npz", "start": "soon"}], "row 1: start 'soon'"),
        ([{"recording": "h0.npz", "mirrored": "maybe"}], "'maybe'"),
        ([{"recording": "h0.npz", "hand_length": "9"}], "row 1: .*9"),
        ([{"recording": "h0.npz"}, {"recording": "h0.npz"}], "row 2: .*twice"),
        ([], "recording"),
    ):
        with pytest.raises((InputError, SchemaError), match=said):
            read_manifest(table(hands / "wrong.csv", rows), JobSettings())


def test_status_says_what_a_recording_is_in(manifest, tmp_path, capsys):
    folder = BatchFolder(tmp_path / "out")
    entries = read_manifest(manifest, JobSettings())
    folder.begin(manifest, entries)
    words = ("batch", "run", manifest, "--output", tmp_path / "out", "--status")
    first, second, _ = (folder.recording(entry.id) for entry in entries)
    for place in (first, second):
        place.mkdir(parents=True)
    steps = [
        ({"waiting": 3}, [(first, "start", "track"), (second, "start", "track"),
                          (second, "end", "track")]),
        ({"in track": 1, "after track": 1, "waiting": 1},
         [(second, "start", "convert"), (first, "retry", "convert")]),
        ({"waiting": 2, "in convert": 1}, []),
    ]  # fmt: skip
    for states, events in steps:
        assert Acehand(capsys, *words).json["states"] == states
        for place, *event in events:
            Attempts(place).add(*event)


def test_a_batch_is_the_dataset_of_the_main_job(undisturbed, hands, tmp_path, capsys):
    """Values, tasks and pictures are those of acehand-retarget over the same recordings."""
    single = tmp_path / "single"
    (shared,) = undisturbed.with_name("out.batch").glob("subjects/*/calibration.json")
    of_subject = ("--subject", "a", "--calibration", shared)
    rows = (("--task", "pour", *of_subject), ("--task", "pick", *of_subject), ())
    for n, said in enumerate(rows):
        first_run(hands / f"h{n}.npz", "--output", single, *said, *(["--append"] if n else []))

    assert Acehand(capsys, "dataset", "check", undisturbed).code == 0
    for file in sorted(single.glob("data/*/*.parquet")):
        assert pq.read_table(undisturbed / file.relative_to(single)).equals(pq.read_table(file))
    ours, theirs = tree(undisturbed / "acehand"), tree(single / "acehand")
    assert ours.keys() == theirs.keys()
    assert all(ours[name] == theirs[name] for name in theirs if name.endswith(".png"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", [(), ("--engine", "ray")], ids=["processes", "ray"])
def test_bytes_do_not_depend_on_workers_or_folders(engine, manifest, undisturbed, tmp_path):
    if engine:
        pytest.importorskip("ray", reason="Ray is not installed")
    output = tmp_path / "elsewhere"
    assert acehand("batch", "run", manifest, "--output", output, "--workers", "3", *engine) == 0
    assert tree(output) == tree(undisturbed)


@pytest.mark.slow
def test_the_same_command_again_does_nothing(manifest, hands, tmp_path, capsys):
    output = tmp_path / "out"
    words = ("batch", "run", manifest, "--output", output, "--workers", "2")
    assert Acehand(capsys, *words).code == 0
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    second = Acehand(capsys, *words)
    assert second.code == 0 and second.json["states"] == {"done": 3}
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before

    # Another setting makes another output of it. One that somebody has changed is kept.
    assert Acehand(capsys, *words, "--latency", "on").code == 0
    assert Acehand(capsys, "dataset", "filter", output, 0).code == 0
    changed, refused = tree(output), Acehand(capsys, *words)
    assert refused.code == 4 and "--overwrite" in refused.err and tree(output) == changed
    assert Acehand(capsys, *words, "--latency", "on", "--overwrite").code == 0

    # A recording that is added is converted alone.
    log = next(output.with_name("out.batch").glob("recordings/h0-*/attempts.jsonl"))
    starts = log.read_text().count('"start"')
    with manifest.open(newline="") as stream:
        more = table(hands / "more.csv", [*csv.DictReader(stream), {"recording": "h3.npz"}])
    grown = Acehand(capsys, "batch", "run", more, *words[3:], "--latency", "on")
    assert grown.json["states"] == {"done": 4} and log.read_text().count('"start"') == starts


@pytest.mark.slow
def test_a_changed_setting_of_the_robot_does_not_track_again(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "v.mp4", example_frames(6))
    words = ("batch", "run", tmp_path / "in", "--output", tmp_path / "out", "--quality")
    used = tmp_path / "out/acehand/episode_000000/hand_motion.parquet"
    assert Acehand(capsys, *words, "fast").code == 0
    (kept,) = (tmp_path / "out.batch/cache").rglob("*.parquet")
    motion = pq.read_table(kept)
    assert motion.equals(pq.read_table(used))

    # A mark in the kept table shows whether it was read.
    column = motion.schema.get_field_index("quality")
    marked = pa.array(np.full(len(motion), 0.5), motion.field(column).type)
    pq.write_table(motion.set_column(column, motion.field(column), marked), kept)
    assert Acehand(capsys, *words, "fast", "--latency", "on").code == 0
    assert set(pq.read_table(used)["quality"].to_pylist()) == {0.5}

    # Another setting of the tracker is another entry.
    assert Acehand(capsys, *words, "balanced", "--latency", "on").code == 0
    assert len(list((tmp_path / "out.batch/cache").rglob("*.parquet"))) == 2


@pytest.mark.slow
def test_recordings_of_two_sizes(tmp_path, capsys):
    videos, output = tmp_path / "in", tmp_path / "out"
    videos.mkdir()
    frames = example_frames(6)
    write_video(videos / "a.mp4", frames)
    write_video(videos / "b.mp4", [frame[::2, ::2] for frame in frames])
    words = ("batch", "run", videos, "--output", output, "--quality", "fast")
    refused, size = Acehand(capsys, *words), "x".join(map(str, frames[0].shape[1::-1]))
    assert refused.code == 2 and size in refused.err and "--image-size" in refused.err
    assert not output.exists()

    assert Acehand(capsys, *words, "--merge", "--per-layout").code == 0
    assert [Acehand(capsys, "dataset", "check", one).code for one in output.iterdir()] == [0, 0]
    # One output of one size; a size of which there is no recording any more goes.
    both = (*words[:4], tmp_path / "both", *words[5:])
    whole = Acehand(capsys, *both, "--image-size", "320x240")
    assert whole.code == 0 and whole.json["episodes"] == 2
    inside = Acehand(capsys, *both, "--merge", "--per-layout")
    assert inside.code == 4 and "is a dataset" in inside.err
    (videos / "b.mp4").unlink()
    assert Acehand(capsys, *words, "--per-layout").code == 0
    assert [path.name.partition("-")[0] for path in output.iterdir()] == [size]


# Recordings that end their workers.

TRACKER = """
import os, signal, time
from acehand_core.trackers.choose import FileTracker


class Odd:
    name, placed, hand_model = "odd", True, "none"

    def __init__(self, settings):
        pass

    def track(self, recording, progress=None):
        if "poison" in recording.name:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "hang" in recording.name:
            time.sleep(40)
        if "greedy" in recording.name:
            self.kept = bytearray(10**9)
            self.kept[::4096] = bytes([1]) * len(self.kept[::4096])
            time.sleep(40)
        if "bug" in recording.name:
            raise RuntimeError("a fault of ours")
        from helpers.retarget_samples import motion_of, moving_hands

        return motion_of(moving_hands(len(recording)))
"""


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The environment of commands that have a tracker which some recordings are too much for."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_tracker.py").write_text(TRACKER)
    lay_down(folder, {"acehand.trackers": {"odd": "odd_tracker:Odd"}})
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "tests"), str(ROOT)])}


def of_odd(folder: Path, name: str) -> tuple[object, ...]:
    """Write a good and an odd recording; return the words of their batch."""
    (folder / "in").mkdir()
    for video in ("good", name):
        write_video(folder / "in" / f"{video}.mp4", FRAMES)
    return "batch", "run", folder / "in", "--tracker", "odd", "--output", folder / "out"


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "limits", "reason"),
    [
        ("poison", (), "SIGSEGV"),
        ("hang", ("--stall-limit", "8"), "no progress for 8 s"),
        ("hang", ("--time-limit", "9"), "took more than 9 s"),
        pytest.param("greedy", ("--memory-limit", "900"), "of 900 MB", marks=LINUX),
    ],
)
def test_a_recording_that_kills_its_worker_twice_is_quarantined(
    name, limits, reason, odd, tmp_path, capsys
):
    words, output = of_odd(tmp_path, name), tmp_path / "out"
    for _ in range(2):  # the second time it is not tried
        assert acehand(*words, *limits, **odd) == 1
        log = next((tmp_path / "out.batch/recordings").glob(f"{name}-*")) / "attempts.jsonl"
        assert log.read_text().count('"start"') == 2
    status = Acehand(capsys, "batch", "run", "x.csv", "--output", output, "--status")
    assert status.json["states"] == {"done": 1, "quarantined": 1}
    (problem,) = status.json["problems"]
    assert problem["recording"].endswith(f"{name}.mp4") and reason in problem["reason"]
    assert Acehand(capsys, "dataset", "check", output).code == 0
    assert retry(BatchFolder(output)) == [problem["id"]]
    assert retry(BatchFolder(output)) == []


@pytest.mark.slow
def test_a_fault_of_ours_costs_one_recording(odd, tmp_path, capsys):
    words = of_odd(tmp_path, "bug")
    (tmp_path / "in" / "broken.mp4").write_bytes(b"no video")
    # Once, not again, and once more when that is asked for.
    for flags, starts in (((), 1), ((), 1), (("--retry",), 2)):
        assert acehand(*words, *flags, **odd) == 1
        folder = next((tmp_path / "out.batch/recordings").glob("bug-*"))
        assert (folder / "attempts.jsonl").read_text().count('"start"') == starts
    status = Acehand(capsys, "batch", "run", "x.csv", "--output", tmp_path / "out", "--status")
    assert status.json["states"] == {"done": 1, "failed": 2}
    said = {Path(p["recording"]).name: p["reason"] for p in status.json["problems"]}
    assert "a fault of ours" in said["bug.mp4"] and "broken.mp4" in said["broken.mp4"]
    assert "RuntimeError" in (folder / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
def test_a_driver_that_is_ended(end, manifest, undisturbed, tmp_path):
    """Its workers end with it, and the same command resumes: what is finished stays."""
    output = tmp_path / "out"
    words = ["batch", "run", str(manifest), "--output", str(output), "--workers", "1", "--quiet"]
    command = [sys.executable, "-m", "acehand_core.cli.main", *words]
    driver = subprocess.Popen(command)
    first = tmp_path / "out.batch/recordings"
    wait_for(lambda: list(first.glob("*/convert.json")))
    workers = children(driver.pid)
    assert workers
    driver.send_signal(end)
    assert driver.wait() == (130 if end == signal.SIGINT else -signal.SIGKILL)
    wait_for(lambda: not any(alive(worker) for worker in workers))

    finished = {path: path.stat().st_mtime_ns for path in first.glob("*/convert.json")}
    assert 1 <= len(finished) < 3 and not output.exists()
    assert acehand(*words) == 0
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert tree(output) == tree(undisturbed)


@pytest.mark.slow
def test_a_disk_that_is_full(manifest, undisturbed, tmp_path):
    """No file may be larger than 20 kB: the batch ends, says so, and resumes with more room."""
    output = tmp_path / "out"
    words = ["batch", "run", str(manifest), "--output", str(output), "--workers", "1", "--quiet"]
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "from acehand_core.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *words], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # a .pyc would be cut off too
    )  # fmt: skip
    assert done.returncode == 4 and "cannot write" in done.stderr
    assert not output.exists()
    assert acehand(*words) == 0
    assert tree(output) == tree(undisturbed)


def test_starts_without_an_end_count_as_lost(tmp_path):
    attempts = Attempts(tmp_path)
    for event, text in (("start", ""), ("start", ""), ("end", "SIGKILL"), ("start", "")):
        attempts.add(event, "convert", text)
    with (tmp_path / "attempts.jsonl").open("a") as stream:
        stream.write('{"event": "st')  # the driver was killed here
    assert attempts.deaths() == (["SIGKILL"], 1)
    with (tmp_path / "attempts.jsonl").open("a") as stream:
        stream.write("\n")
    attempts.add("retry", "convert")
    assert attempts.deaths() == ([], 0)


def test_results_that_count(tmp_path):
    """Of the same settings, whole, and with hands that are still there."""
    hands = tmp_path / "hands.parquet"
    hands.touch()
    tracked = TaskResult("x", "track", "done", "key", hands=str(hands))
    write_result(tmp_path / "track.json", tracked)
    task = Task("x", "track", "key", tmp_path, tmp_path, JobSettings())
    assert task.kept() == tracked
    assert Task("x", "track", "other", tmp_path, tmp_path, JobSettings()).kept() is None
    hands.unlink()
    assert task.kept() is None
    (tmp_path / "track.json").write_text("{")
    assert task.kept() is None
    folder = BatchFolder(tmp_path / "out")
    assert folder.subject("a/b").parent == folder.subject("a_b").parent
    assert folder.subject("a/b") != folder.subject("a_b")


def test_parts_of_a_recording_that_failed_are_said(hands, tmp_path, capsys):
    """Of two demonstrations one shows no hand; a changed text makes the other anew."""
    joints = moving_hands(2 * FRAMES)
    joints[FRAMES:] = np.nan
    hands_file(tmp_path / "h.npz", joints=joints)
    rows = [{"recording": "h.npz", "start": s, "end": s + 0.4, "task": f"at {s}"} for s in (0, 0.4)]
    table(tmp_path / "tasks.csv", rows)
    made = table(tmp_path / "m.csv", [{"recording": "h.npz"}])
    words = ("--split", "tasks", "--task-file", tmp_path / "tasks.csv")
    done = Acehand(capsys, "batch", "run", made, "--output", tmp_path / "out", *words)
    assert done.code == 1 and done.json["states"] == {"done": 1} and done.json["episodes"] == 1
    (problem,) = done.json["problems"]
    assert problem["state"] == "done" and "no hand was found" in problem["reason"]
    table(tmp_path / "tasks.csv", [{**rows[0], "task": "twist"}])
    Acehand(capsys, "batch", "run", made, "--output", tmp_path / "out", *words)
    assert "twist" in Acehand(capsys, "dataset", "info", tmp_path / "out").json["tasks"]


def test_what_stops_a_batch_at_its_beginning(manifest, tmp_path, capsys, monkeypatch):
    """Ray is not installed; another driver works there, and its files stay as they are."""
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("batch", "run", manifest, "--output", tmp_path / "out")
    done = Acehand(capsys, *words, "--engine", "ray")
    assert done.code == 2 and "'.[ray]'" in done.err
    kept = tmp_path / "out.batch/batch.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("the first one's")
    with DirectoryLock(tmp_path / "out.batch"):
        assert Acehand(capsys, *words).code == 4
    assert not (tmp_path / "out").exists() and kept.read_text() == "the first one's"


def wait_for(condition, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


def alive(process: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")
