"""What is done in recordings: tables of task text; and cutting by their rows."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acehand_core.errors import InputError
from acehand_core.lerobot.dataset import JOB, read_provenance
from acehand_core.pipeline.narration import Narration, TaskSegment, seconds, task_of
from helpers.bag_samples import SampleBag, pictures, stamps
from helpers.commands import GRIPPER, Acehand, hands_file
from helpers.commands import GripperRun as Run
from helpers.drawn_hands import drawn

#: The columns of EPIC-KITCHENS-100 (EPIC_100_train.csv); its rows are not in the order of time.
EPIC = (
    "narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,"
    "start_frame,stop_frame,narration,verb,verb_class,noun,noun_class,all_nouns,all_noun_classes\n"
    "P01_01_10,P01,P01_01,00:01:02.500,00:01:02.10,00:01:04.45,3726,3867,wash cup,wash,2,cup,13,"
    "['cup'],[13]\n"
    "P01_01_0,P01,P01_01,00:00:01.089,00:00:00.14,00:00:03.37,8,202,open door,open,3,door,3,"
    "['door'],[3]\n"
    'P02_03_4,P02,P02_03,01:00:09.500,01:00:09.00,01:00:10.25,1,2,"take cup, plate",take,0,cup,'
    "13,\"['cup', 'plate']\",\"[13, 2]\"\n"
)


def tasks_in(path: Path, text: str | bytes, recording: str = "talk.mp4") -> list[tuple]:
    """Write a file and return its tasks of a recording: start, end, task."""
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    found = Narration.read(str(path)).of(path.parent / recording)
    return [(one.start_s, one.end_s, one.task) for one in found]


def test_tables_with_the_columns_of_published_ones(tmp_path):
    path = tmp_path / "train.csv"
    assert tasks_in(path, EPIC, "videos/P01_01.MP4") == [
        (0.14, 3.37, "open door"), (62.1, 64.45, "wash cup"),
    ]  # fmt: skip
    assert tasks_in(path, EPIC, "P02_03.MP4") == [(3609.0, 3610.25, "take cup, plate")]
    assert tasks_in(path, EPIC, "P01_011.MP4") == []


@given(spaces=st.lists(st.sampled_from(["", " ", "  ", "\t"]), min_size=8, max_size=8))
def test_spaces_around_names_of_columns_change_nothing(spaces, tmp_path_factory):
    names = ("recording", "start", "end", "task")
    header = ",".join(a + n + b for n, a, b in zip(names, spaces[:4], spaces[4:], strict=True))
    path = tmp_path_factory.mktemp("tables") / "tasks.csv"
    text = f"{header}\ntalk.mp4,1,2,pour\nother.mp4,3,4,stir\n"
    assert tasks_in(path, text) == [(1.0, 2.0, "pour")]


def test_tables_of_our_own(tmp_path):
    path = tmp_path / "tasks.csv"
    rows = [(0.5, 2.0, "pour water"), (61.5, 62.0, "put it down")]
    comma = (
        "recording,start,end,task\na/talk.mp4,0.5,2,pour water\na/talk.mp4,01:01.5,62,put it down\n"
    )
    assert tasks_in(path, comma, "a/talk.mp4") == rows
    assert tasks_in(path, comma, "b/talk.mp4") == [], "another folder's recording of that name"
    # A mark before the first column, other columns, CRLF, quotes.
    other = "\ufefftask,who,start,end,recording\r\n pour  water ,ann,0.5,2,talk\r\n"
    other += '"put it down",ben,61.5,62,talk\r\n'
    assert tasks_in(path, other) == rows
    assert tasks_in(path, "recording,task\ntalk,fold a towel\nother,x\n") == [
        (None, None, "fold a towel")
    ]
    assert tasks_in(path, "recording,start,end,task\ntalk,1,2,\ntalk,3,4,b\n") == [(3.0, 4.0, "b")]
    # Unicode: one character, or a letter and its accent.
    for table, file in (("caf\u00e9", "cafe\u0301.mp4"), ("cafe\u0301.mp4", "caf\u00e9.mp4")):
        assert tasks_in(path, f"recording,task\n{table},a\n", file) == [(None, None, "a")]


@pytest.mark.parametrize(
    ("text", "value"),
    [("12.5", 12.5), (3, 3.0), ("1:02", 62.0), ("00:01:02,250", 62.25), ("10:00:00.5", 36000.5),
     (" 0 ", 0.0), *[(text, None) for text in ("", "-1", "nan", "1:2:3:4", "00:00:1d.890", True,
     "0:99", "1:60", "1:75:00")], ("1:59:59.9", 7199.9), ("90:00", 5400.0)],
)  # fmt: skip
def test_times(text, value):
    if value is not None:
        assert seconds(text) == pytest.approx(value)
    else:
        with pytest.raises(ValueError, match="not a time"):
            seconds(text)


def test_files_that_are_wrong(tmp_path):
    header = "recording,start,end,task\n"
    for name, text, said in (
        ("a.csv", f"{header}talk,1:xx,2,a\n", "line 2: '1:xx'"),
        ("a.csv", f"{header}talk,3,2,a\n", "ends at 2, before its start, 3"),
        ("a.csv", f"{header}talk,,2,a\n", "one of start and end"),
        ("a.csv", "recording,start,task\ntalk,1,a\n", "recording, start, task; valid"),
        ("a.csv", "recording,begin,what\ntalk,1,a\n", "recording, begin, what; valid"),
        ("a.csv", "recording,task\ntalk,a\ntalk,b\n", "talk.mp4"),
        ("a.csv", "task,start,end,start\na,1,2,3\n", "task, start, end, start; valid"),
        ("a.csv", "recording,task\ntalk,a,b\n", "line 2"),
        ("a.csv", 'recording,task\ntalk,"a\n', "unexpected end"),
        ("a.csv", "", "first line"),
        ("a.csv", "recording,task\n", "task"),
        ("a.csv", b"recording,task\ntalk,f\xfcllen\n", "UTF-8 text (byte 21"),
        ("a.csv", "task\nx\n".encode("utf-16"), "UTF-8"),
        ("a.csv", "recording;task\ntalk;a\n", "commas"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\nx\n", ".csv"),
        ("a.json", '{"segments": []}', "EPIC-KITCHENS-100"),
        ("a.docx", "x", "task_file"),
    ):
        with pytest.raises(InputError) as raised:
            tasks_in(tmp_path / name, text)
        assert said in str(raised.value) and name in str(raised.value)


def test_the_task_that_overlaps_most():
    def row(start, end, task):
        return TaskSegment(start, end, task, "here")

    rows = [row(0.0, 4.0, "a"), row(3.0, 9.0, "b"), row(None, None, "all")]
    assert task_of(rows, 0.0, 5.0) == "a"  # 4 s against 2
    assert task_of(rows, 2.0, 6.0) == "b"  # 2 against 3
    assert task_of(rows, 1.0, 6.0) == "a"  # 3 s each: the earlier
    assert task_of(rows, 9.0, 12.0) == "all" and task_of(rows[:2], 9.0, 12.0) is None


def tasks_of(dataset: Path) -> list[str]:
    files = sorted((dataset / "meta" / "episodes").rglob("*.parquet"))
    return [tasks[0] for file in files for tasks in pq.read_table(file)["tasks"].to_pylist()]


@pytest.fixture
def hands(tmp_path):
    """Moves from 1 to 3.4 s and from 5.9 to 7.4 s."""
    joints = drawn(9.0, [(1.0, 2.0), (2.4, 3.4), (5.9, 7.4)]).joints_camera
    np.savez(tmp_path / "long.npz", joints=joints, fps=30, frame="camera")
    return tmp_path / "long.npz"


def test_demonstrations_get_their_tasks(hands, tmp_path, capsys):
    rows = tmp_path / "tasks.csv"
    rows.write_text("recording,start,end,task\nlong,0,4,lift\nlong,3.5,5,wait\n")
    out = [hands, "--output", tmp_path / "out", "--task-file", rows, "--split", "auto"]
    run = Run(capsys, *out, "--task", "something")
    assert run.code == 0, run.err
    assert tasks_of(tmp_path / "out") == ["lift", "something"]
    assert run.json["notes"] == [f"{hands}: `task_file` has no task for demonstrations 1"]
    rows.write_text("recording,task\nelse,a\n")
    brief = ("--start", 1, "--duration", 0.5)
    run = Run(capsys, hands, "--output", tmp_path / "none", "--task-file", rows, *brief)
    assert run.code == 0 and tasks_of(tmp_path / "none") == ["hand motion"]
    assert run.json["notes"] == [f"{hands}: `task_file={rows}` has no row for it"]
    # From 2 s on the recording's times are others, the file's are not.
    rows.write_text("recording,start,end,task\nlong,0,1.9,lift\nlong,5.5,9,put down\n")
    run = Run(capsys, hands, "--output", tmp_path / "late", "--task-file", rows, "--start", "2")
    assert run.code == 0 and tasks_of(tmp_path / "late") == ["put down"]


@pytest.mark.slow
def test_a_resumed_run_with_other_tasks(hands, tmp_path, capsys):
    rows, out = tmp_path / "tasks.csv", tmp_path / "out"
    text = "recording,start,end,task\nlong,0,4,lift\nlong,5,8,put down\n"
    for split in ("auto", "tasks", "none"):
        job = [hands, "--output", out, "--task-file", rows, "--split", split]
        rows.write_text(text)
        assert Run(capsys, *job, "--overwrite").code == 0
        count = len(read_provenance(out))
        rows.write_text(text + "other,1,2,x\n")  # a row of another recording changes nothing
        again = Run(capsys, *job, "--resume")
        assert again.code == 0 and again.json["skipped"], (split, again.err)
        rows.write_text(text.replace("lift", "raise"))
        other = Run(capsys, *job, "--resume")
        assert other.code in (1, 2) and "episode 0 of the dataset" in other.messages
        assert len(read_provenance(out)) == count
    assert read_provenance(out)[0][JOB]["settings"]["task"] == "lift"


def test_one_episode_per_row(hands, tmp_path, capsys):
    """Times are in seconds of 30 frames: 1.0 to 3.5 s are frames 30 to 104."""
    rows, out = tmp_path / "tasks.csv", tmp_path / "out"
    rows.write_text(
        "recording,start,end,task\nlong,5,00:00:06.5,b\nlong,1,3.5,a\nlong,6,99,c\nlong,10,11,d\n"
        "long,8.00,8.01,e\n"
    )
    run = Run(capsys, hands, "--output", out, "--task-file", rows, "--split", "tasks")
    assert run.code == 0, run.err
    assert tasks_of(out) == ["a", "b", "c"]
    frames = [(e["cut"]["first_frame"], e["cut"]["last_frame"]) for e in run.json["episodes"]]
    assert frames == [(30, 104), (150, 194), (180, 269)]
    assert [e["frames"] for e in run.json["episodes"]] == [75, 45, 90]
    assert run.json["cuts"][0]["demonstrations"][0]["starts"] == f"{rows}, line 3"
    notes = " ".join(run.json["notes"])
    assert f"1 of 5 rows begin after its end, 9.0 s ({rows}, line 5)" in notes
    assert "2 rows overlap the next" in notes  # b and c, c and e
    assert f"{rows}, line 6: has fewer than two frames" in notes
    again = Run(capsys, hands, "--output", out, "--task-file", rows, "--split", "tasks", "--resume")
    assert again.code == 0 and again.json["skipped"] == [str(hands)] * 3


def test_what_is_refused_before_anything_is_done(hands, tmp_path, capsys):
    other, out = hands_file(tmp_path / "other.npz"), tmp_path / "out"
    rows, tasks = tmp_path / "tasks.csv", ["--split", "tasks"]
    for text, more, message in (
        (None, [], "tasks.csv"),
        ("start,end,task\n1,2,a\n", [other], "a column recording"),
        ("recording,start,end,task\nlong,1,xx,a\n", [], "line 2: 'xx'"),
        ("recording,start,end,task\nlong,99,100,a\n", [], "another recording"),
        ("recording,task\nlong,a\n", tasks, "no row with start and end"),
        ("recording,task\nelse,a\n", tasks, "no row with start and end"),
    ):
        if text:
            rows.write_text(text)
        run = Run(capsys, hands, *more, "--output", out, "--task-file", rows)
        assert run.code == 2 and message in run.messages, (text, run.err)
        assert not out.exists()


def test_a_file_next_to_each_recording(hands, tmp_path, capsys):
    other, out = hands_file(tmp_path / "other.npz"), tmp_path / "out"
    (tmp_path / "long.npz.task.csv").write_text("task\nlift\n")
    job = [hands, other, "--output", out, "--task-file", "sidecar", "--duration", 1]
    run = Run(capsys, *job)
    assert run.code == 2 and "other.task.csv" in run.messages
    (tmp_path / "other.task.csv").write_text("start,end,task\n0,1,fold\n")
    assert Run(capsys, *job).code == 0
    assert tasks_of(tmp_path / "out") == ["lift", "fold"]


def test_bags_are_cut_by_rows_too(tmp_path, capsys):
    count = 12
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(count), stamps(count), strict=True):
            bag.image(image, ns)
            bag.camera_info(ns)
    hands = hands_file(tmp_path / "hands.npz", count)
    rows, out = tmp_path / "tasks.csv", tmp_path / "out"
    rows.write_text("start,end,task\n0,0.1,a\n0.2,0.4,b\n")
    job = ["bag", "convert", tmp_path / "bag", "--tracker", hands, "--output", out, "--no-overlay",
           "--task-file", rows, "--split", "tasks", *GRIPPER]  # fmt: skip
    refused = Acehand(capsys, *job, "--episode-topic", "/episode")
    assert refused.code == 2 and "--split tasks and --episode-topic both cut" in refused.err
    run = Acehand(capsys, *job)
    assert run.code == 0, run.err
    assert tasks_of(out) == ["a", "b"]
    assert [e["frames"] for e in run.json["episodes"]] == [3, 6]
