"""``acehand batch``: a manifest's recordings become one dataset, whatever dies on the way."""

from __future__ import annotations

import csv
import hashlib
import json
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
def hands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four files of hands, which differ."""
    folder = tmp_path_factory.mktemp("hands")
    for number in range(4):
        joints = moving_hands(FRAMES + 8)[2 * number :][:FRAMES]
        hands_file(folder / f"h{number}.npz", joints=joints)
    return folder


@pytest.fixture(scope="module")
def manifest(hands: Path) -> Path:
    """Three of them, with tasks; two are of one subject."""
    rows = [
        {"recording": "h0.npz", "task": "pour", "subject": "a"},
        {"recording": "h1.npz", "task": "pick", "subject": "a"},
        {"recording": "h2.npz"},
    ]
    return table(hands / "manifest.csv", rows)


@pytest.fixture(scope="module")
def undisturbed(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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


# Manifests.


def test_a_row_says_what_only_its_recording_has(hands: Path, tmp_path: Path):
    rows = [
        {"recording": hands / "h0.npz", "task": "pour", "subject": "anna"},
        {"recording": hands / "h1.npz", "start": "0.1", "duration": "0.2", "mirrored": "no"},
    ]
    entries = read_manifest(table(tmp_path / "m.csv", rows), JobSettings(task="all", fps=30))
    first, second = (entry.settings for entry in entries)
    assert (first.task, first.subject, first.fps) == ("pour", "anna", 30)
    assert (second.task, second.subject, second.cut) == ("all", None, (0.1, 0.2))
    assert not second.reading.mirrored


def test_a_parquet_manifest_and_a_folder(hands: Path, tmp_path: Path):
    listed = {"recording": [str(hands / "h1.npz")], "hand_length": [0.19]}
    path = tmp_path / "m.parquet"
    pq.write_table(pa.table(listed), path)
    (entry,) = read_manifest(path, JobSettings())
    assert entry.path == hands / "h1.npz" and entry.settings.hand_length_m == 0.19

    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("b.mp4", "a.mp4"):
        write_video(videos / name)
    found = read_manifest(videos, JobSettings())
    assert [entry.path.name for entry in found] == ["a.mp4", "b.mp4"]


def test_two_parts_of_one_recording(hands: Path, tmp_path: Path):
    rows = [{"recording": hands / "h0.npz", "start": s, "duration": 0.2} for s in ("0", "0.2")]
    first, second = read_manifest(table(tmp_path / "m.csv", rows), JobSettings())
    assert first.id != second.id and first.path == second.path
    assert (first.settings.cut, second.settings.cut) == ((0.0, 0.2), (0.2, 0.2))


def test_files_of_a_row_are_beside_the_manifest(hands: Path, tmp_path: Path):
    rows = [{"recording": hands / "h0.npz", "calibration": "anna.json"}]
    (entry,) = read_manifest(table(tmp_path / "m.csv", rows), JobSettings())
    assert entry.settings.calibration == tmp_path / "anna.json"


def test_names_of_recordings_stay_when_others_are_added(hands: Path, tmp_path: Path):
    rows = [{"recording": hands / f"h{n}.npz"} for n in range(3)]
    few = read_manifest(table(tmp_path / "few.csv", rows[1:2]), JobSettings())
    many = read_manifest(table(tmp_path / "many.csv", rows), JobSettings())
    assert few[0].id == many[1].id


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"recording": "no.mp4"}], "row 1: .*no.mp4: no such file"),
        ([{"recording": ""}], "has no recording"),
        ([{"recording": "h0.npz", "colour": "red"}], "column 'colour'"),
        ([{"recording": "h0.npz", "robot": "shadow"}], "column 'robot'"),
        ([{"recording": "h0.npz", "start": "soon"}], "row 1: start 'soon'"),
        ([{"recording": "h0.npz", "mirrored": "maybe"}], "neither true nor false"),
        ([{"recording": "h0.npz", "hand_length": "9"}], "row 1: .*hand length of 9"),
        ([{"recording": "h0.npz"}, {"recording": "h0.npz"}], "row 2: .*listed twice"),
        ([], "has no recording"),
    ],
)
def test_a_manifest_that_is_wrong(hands: Path, rows: list[dict[str, object]], said: str):
    path = table(hands / "wrong.csv", rows or [])
    with pytest.raises((InputError, SchemaError), match=said):
        read_manifest(path, JobSettings())


# What comes of it.


def test_status_says_what_a_recording_is_in(manifest: Path, tmp_path: Path, capsys):
    folder = BatchFolder(tmp_path / "out")
    entries = read_manifest(manifest, JobSettings())
    folder.begin(manifest, entries)

    def states() -> dict[str, int]:
        return Acehand(
            capsys, "batch", "run", manifest, "--output", tmp_path / "out", "--status"
        ).json["states"]

    assert states() == {"waiting": 3}
    first, second, _ = (folder.recording(entry.id) for entry in entries)
    for place in (first, second):
        place.mkdir(parents=True)
        Attempts(place).add("start", "track")
    Attempts(second).add("end", "track")
    assert states() == {"in track": 1, "after track": 1, "waiting": 1}
    Attempts(second).add("start", "convert")
    Attempts(first).add("retry", "convert")
    assert states() == {"waiting": 2, "in convert": 1}


def test_a_batch_is_the_dataset_of_the_main_job(
    undisturbed: Path, hands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Values, tasks and pictures are those of acehand-retarget over the same recordings."""
    single = tmp_path / "single"
    (shared,) = undisturbed.with_name("out.batch").glob("subjects/*/calibration.json")
    of_subject = ("--subject", "a", "--calibration", shared)
    for n, said in enumerate(
        (("--task", "pour", *of_subject), ("--task", "pick", *of_subject), ())
    ):
        first_run(hands / f"h{n}.npz", "--output", single, *said, *(["--append"] if n else []))

    assert Acehand(capsys, "dataset", "check", undisturbed).code == 0
    for file in sorted(single.glob("data/*/*.parquet")):
        ours = pq.read_table(undisturbed / file.relative_to(single))
        assert ours.equals(pq.read_table(file))
    beside = {path.relative_to(single) for path in (single / "acehand").rglob("*")}
    ours = (undisturbed / "acehand").rglob("*")
    assert beside == {path.relative_to(undisturbed) for path in ours}
    for picture in single.rglob("*.png"):
        assert (undisturbed / picture.relative_to(single)).read_bytes() == picture.read_bytes()


@pytest.mark.slow
def test_bytes_do_not_depend_on_workers_or_folders(
    manifest: Path, undisturbed: Path, tmp_path: Path
):
    output = tmp_path / "elsewhere"
    assert acehand("batch", "run", manifest, "--output", output, "--workers", "3") == 0
    assert tree(output) == tree(undisturbed)


@pytest.mark.slow
def test_the_same_command_again_does_nothing(
    manifest: Path, hands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
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
    changed = tree(output)
    refused = Acehand(capsys, *words)
    assert refused.code == 4 and "--overwrite" in refused.err
    assert tree(output) == changed
    assert Acehand(capsys, *words, "--latency", "on", "--overwrite").code == 0

    # A recording that is added is converted alone.
    log = next(output.with_name("out.batch").glob("recordings/h0-*/attempts.jsonl"))
    starts = log.read_text().count('"start"')
    with manifest.open(newline="") as stream:
        rows = [*csv.DictReader(stream), {"recording": "h3.npz"}]
    more = table(hands / "more.csv", rows)
    grown = Acehand(capsys, "batch", "run", more, "--output", output, "--workers", "2",
                    "--latency", "on")  # fmt: skip
    assert grown.json["states"] == {"done": 4}
    assert log.read_text().count('"start"') == starts


@pytest.mark.slow
def test_recordings_of_a_subject_share_one_calibration(hands: Path, tmp_path: Path):
    rows = [{"recording": f"h{n}.npz", "subject": s} for n, s in enumerate(("a", "a", "b", ""))]
    output = tmp_path / "out"
    made = table(hands / "subjects.csv", rows)
    assert acehand("batch", "run", made, "--output", output, "--workers", "2") == 0
    files = [output / f"acehand/episode_{n:06d}/calibration.json" for n in range(4)]
    said = [json.loads(file.read_text()) for file in files]
    assert said[0]["hands"] == said[1]["hands"]
    assert said[0]["hands"] != said[2]["hands"] and said[2]["hands"] != said[3]["hands"]
    assert said[0]["source"] == "subject a, 2 recordings" and said[3]["source"] == "h3.npz"


@pytest.mark.slow
def test_a_result_that_is_out_of_date_is_not_merged(
    hands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of a recording that cannot be read any more the earlier episodes are not taken."""
    for n in range(2):
        (tmp_path / f"h{n}.npz").write_bytes((hands / f"h{n}.npz").read_bytes())
    rows = [{"recording": f"h{n}.npz", "subject": "a", "task": f"task {n}"} for n in range(2)]
    made, output = table(tmp_path / "m.csv", rows), tmp_path / "out"
    words = ("batch", "run", made, "--output", output)
    assert Acehand(capsys, *words).json["states"] == {"done": 2}

    (tmp_path / "h1.npz").write_bytes(b"no hands")
    again = Acehand(capsys, *words)
    assert again.code == 1 and again.json["states"] == {"done": 1, "failed": 1}
    assert list(Acehand(capsys, "dataset", "info", output).json["tasks"]) == ["task 0"]


@pytest.mark.slow
def test_task_text_of_a_file(hands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each row of a table of narrations is an episode; a changed text makes it anew."""
    rows = [
        {"recording": "h0.npz", "start": 0, "end": 0.2, "task": "grasp"},
        {"recording": "h0.npz", "start": 0.2, "end": 0.4, "task": "pour"},
        {"recording": "h1.npz", "start": 0, "end": 0.4, "task": "turn"},
    ]
    told, output = table(tmp_path / "told.csv", rows), tmp_path / "out"
    made = table(tmp_path / "m.csv", [{"recording": hands / f"h{n}.npz"} for n in range(2)])
    words = ("batch", "run", made, "--output", output, "--split", "tasks", "--task-file", told)
    assert Acehand(capsys, *words).json["episodes"] == 3
    info = Acehand(capsys, "dataset", "info", output).json
    assert {task: n["episodes"] for task, n in info["tasks"].items()} == {
        "grasp": 1, "pour": 1, "turn": 1
    }  # fmt: skip

    table(told, [*rows[:2], rows[2] | {"task": "twist"}])
    assert Acehand(capsys, *words).code == 0
    assert "twist" in Acehand(capsys, "dataset", "info", output).json["tasks"]


@pytest.mark.slow
def test_a_changed_setting_of_the_robot_does_not_track_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "v.mp4", example_frames(6))
    output = tmp_path / "out"
    words = ("batch", "run", tmp_path / "in", "--output", output, "--quality", "fast")
    assert Acehand(capsys, *words).code == 0
    (kept,) = (tmp_path / "out.batch/cache").rglob("*.parquet")
    assert pq.read_table(kept).equals(
        pq.read_table(output / "acehand/episode_000000/hand_motion.parquet")
    )

    # A mark in the kept table shows whether it was read.
    motion = pq.read_table(kept)
    quality = np.full(len(motion), 0.5, np.float64)
    column = motion.schema.get_field_index("quality")
    kind = motion.field(column)
    pq.write_table(motion.set_column(column, kind, pa.array(quality, kind.type)), kept)
    assert Acehand(capsys, *words, "--latency", "on").code == 0
    used = pq.read_table(output / "acehand/episode_000000/hand_motion.parquet")
    assert set(used["quality"].to_pylist()) == {0.5}

    # Another setting of the tracker is another entry.
    other = (*words[:-1], "balanced")
    assert Acehand(capsys, *other, "--latency", "on").code == 0
    assert len(list((tmp_path / "out.batch/cache").rglob("*.parquet"))) == 2


@pytest.mark.slow
def test_recordings_of_two_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "in").mkdir()
    write_video(tmp_path / "in" / "a.mp4", example_frames(6))
    small = [frame[::2, ::2] for frame in example_frames(6)]
    write_video(tmp_path / "in" / "b.mp4", small, size=small[0].shape[1::-1])
    output = tmp_path / "out"
    words = ("batch", "run", tmp_path / "in", "--output", output, "--quality", "fast")
    refused = Acehand(capsys, *words)
    size = f"{example_frames(1)[0].shape[1]}x{example_frames(1)[0].shape[0]}"
    assert refused.code == 2 and size in refused.err and "--image-size" in refused.err
    assert not output.exists()

    each = Acehand(capsys, *words, "--merge", "--per-layout")
    assert each.code == 0 and len(list(output.iterdir())) == 2
    for one in output.iterdir():
        assert Acehand(capsys, "dataset", "check", one).code == 0

    # A size that there is no recording of any more goes with its dataset.
    (tmp_path / "in" / "b.mp4").unlink()
    assert Acehand(capsys, *words, "--per-layout").code == 0
    assert [path.name.partition("-")[0] for path in output.iterdir()] == [size]
    write_video(tmp_path / "in" / "b.mp4", small, size=small[0].shape[1::-1])

    both = Acehand(capsys, *words[:4], tmp_path / "both", *words[5:], "--image-size", "320x240")
    assert both.code == 0 and both.json["episodes"] == 2
    inside = Acehand(capsys, *words[:4], tmp_path / "both", *words[5:], "--merge", "--per-layout")
    assert inside.code == 4 and "is a dataset" in inside.err


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
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of commands that have a tracker which some recordings are too much for."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd_tracker.py").write_text(TRACKER)
    lay_down(folder, {"acehand.trackers": {"odd": "odd_tracker:Odd"}})
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "tests"), str(ROOT)])}


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
)  # fmt: skip
def test_a_recording_that_kills_its_worker_twice_is_quarantined(
    name: str, limits: tuple[str, ...], reason: str, odd: dict[str, str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    videos, output = tmp_path / "in", tmp_path / "out"
    videos.mkdir()
    for video in ("good", name):
        write_video(videos / f"{video}.mp4", FRAMES)
    words = ("batch", "run", videos, "--tracker", "odd", "--output", output, *limits)
    assert acehand(*words, **odd) == 1

    status = Acehand(capsys, "batch", "run", "x.csv", "--output", output, "--status")
    assert status.json["states"] == {"done": 1, "quarantined": 1}
    (problem,) = status.json["problems"]
    assert problem["recording"].endswith(f"{name}.mp4") and reason in problem["reason"]
    assert Acehand(capsys, "dataset", "check", output).code == 0
    log = next((tmp_path / "out.batch/recordings").glob(f"{name}-*")) / "attempts.jsonl"
    assert log.read_text().count('"start"') == 2

    # Not tried again by itself; after retry it is.
    assert acehand(*words, **odd) == 1
    assert log.read_text().count('"start"') == 2
    assert retry(BatchFolder(output)) == [problem["id"]]
    (videos / f"{name}.mp4").write_bytes((videos / "good.mp4").read_bytes())
    os.utime(videos / f"{name}.mp4", ns=(0, 0))
    assert retry(BatchFolder(output)) == []


@pytest.mark.slow
def test_a_fault_of_ours_costs_one_recording(
    odd: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    videos, output = tmp_path / "in", tmp_path / "out"
    videos.mkdir()
    for video in ("good", "bug"):
        write_video(videos / f"{video}.mp4", FRAMES)
    (videos / "broken.mp4").write_bytes(b"no video")
    assert acehand("batch", "run", videos, "--tracker", "odd", "--output", output, **odd) == 1
    status = Acehand(capsys, "batch", "run", "x.csv", "--output", output, "--status")
    assert status.json["states"] == {"done": 1, "failed": 2}
    said = {Path(p["recording"]).name: p["reason"] for p in status.json["problems"]}
    assert "a fault of ours" in said["bug.mp4"] and "broken.mp4" in said["broken.mp4"]
    folder = next((tmp_path / "out.batch/recordings").glob("bug-*"))
    assert "RuntimeError" in (folder / "log.txt").read_text()
    words = ("batch", "run", videos, "--tracker", "odd", "--output", output)
    for flags, starts in (((), 1), (("--retry",), 2)):
        assert acehand(*words, *flags, **odd) == 1
        assert (folder / "attempts.jsonl").read_text().count('"start"') == starts


# The driver.


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
def test_a_driver_that_is_ended(
    end: signal.Signals, manifest: Path, undisturbed: Path, tmp_path: Path
):
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


def test_a_second_driver_is_refused(manifest: Path, tmp_path: Path):
    """... and what the first one works on stays as it is."""
    (tmp_path / "out.batch").mkdir()
    (tmp_path / "out.batch/batch.json").write_text("the first one's")
    with DirectoryLock(tmp_path / "out.batch"):
        assert acehand("batch", "run", manifest, "--output", tmp_path / "out") == 4
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.batch/batch.json").read_text() == "the first one's"


@pytest.mark.slow
def test_a_disk_that_is_full(manifest: Path, undisturbed: Path, tmp_path: Path):
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


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_an_output_that_cannot_be_written(manifest: Path, tmp_path: Path):
    (tmp_path / "shut").mkdir(mode=0o500)
    assert acehand("batch", "run", manifest, "--output", tmp_path / "shut/out") == 4


def test_starts_without_an_end_count_as_lost(tmp_path: Path):
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


def test_hands_that_are_gone_are_tracked_again(tmp_path: Path):
    hands = tmp_path / "hands.parquet"
    hands.touch()
    tracked = TaskResult("x", "track", "done", "key", hands=str(hands))
    write_result(tmp_path / "track.json", tracked)
    task = Task("x", "track", "key", tmp_path, tmp_path, JobSettings())
    assert task.kept() == tracked
    hands.unlink()
    assert task.kept() is None


def test_parts_of_a_recording_that_failed_are_said(
    hands: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of two demonstrations one shows no hand: the other is there, and it is said."""
    joints = moving_hands(2 * FRAMES)
    joints[FRAMES:] = np.nan
    hands_file(tmp_path / "h.npz", joints=joints)
    rows = [{"recording": "h.npz", "start": s, "end": s + 0.4, "task": f"at {s}"} for s in (0, 0.4)]
    table(tmp_path / "told.csv", rows)
    made = table(tmp_path / "m.csv", [{"recording": "h.npz"}])
    words = ("--split", "tasks", "--task-file", tmp_path / "told.csv")
    done = Acehand(capsys, "batch", "run", made, "--output", tmp_path / "out", *words)
    assert done.code == 1 and done.json["states"] == {"done": 1} and done.json["episodes"] == 1
    (problem,) = done.json["problems"]
    assert problem["state"] == "done" and "no hand was found" in problem["reason"]


def test_a_result_of_other_settings_does_not_count(tmp_path: Path):
    folder = BatchFolder(tmp_path / "out")
    assert folder.subject("a/b").parent == folder.subject("a_b").parent
    assert folder.subject("a/b") != folder.subject("a_b")
    write_result(tmp_path / "convert.json", TaskResult("x", "convert", "done", "key"))
    task = Task("x", "convert", "key", tmp_path, tmp_path, JobSettings())
    assert task.kept() is not None
    other = Task("x", "convert", "other", tmp_path, tmp_path, JobSettings())
    assert other.kept() is None
    (tmp_path / "convert.json").write_text("{")
    assert task.kept() is None


# Clusters.


@pytest.mark.slow
def test_ray(manifest: Path, undisturbed: Path, tmp_path: Path):
    pytest.importorskip("ray", reason="Ray is not installed")
    output = tmp_path / "out"
    words = ("batch", "run", manifest, "--output", output, "--workers", "2", "--engine", "ray")
    assert acehand(*words) == 0
    assert tree(output) == tree(undisturbed)


def test_an_engine_that_is_not_installed(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ("batch", "run", manifest, "--output", tmp_path / "out", "--engine", "ray")
    done = Acehand(capsys, *words)
    assert done.code == 2 and "'.[ray]'" in done.err


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
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return not state.stdout.startswith("Z") and bool(state.stdout.strip())
