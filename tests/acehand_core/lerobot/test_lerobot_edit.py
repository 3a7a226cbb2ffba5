"""Episodes are removed and tasks renamed; a repair loses no whole episode, and none unasked."""

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from acehand_core.errors import InputError, OutputError, SchemaError, VideoError
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import create
from acehand_core.lerobot.edit import merge_datasets, remove_episodes
from acehand_core.lerobot.repair import plan_repair, repair
from helpers import lerobot_samples as samples
from helpers.commands import Acehand, run_helper
from helpers.lerobot_samples import DATA, ROWS, VIDEO, check_every_frame, rows_of

#: Four episodes of 13, 7, 5 and 9 frames: wave, grasp a cup, wave, let go.
FOUR = [*samples.EPISODES, samples.MORE]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of ``FOUR`` with a report next to each episode; not to be changed."""
    root = write_some(tmp_path_factory.mktemp("finished") / "data", range(4))
    (root / "README.md").write_text("mine")
    return root


@pytest.fixture
def shared(own):
    """The same as lerobot writes it: all episodes in one data, one video and one metadata file."""
    data = pa.concat_tables([pq.read_table(own / DATA.format(k)) for k in range(4)])
    rows, schema, start = rows_of(own), pq.read_schema(own / ROWS.format(0)), 0
    for row in rows:
        for place in ("data", "meta/episodes", f"videos/{samples.EGO}"):
            row[f"{place}/file_index"] = 0
        row[f"videos/{samples.EGO}/from_timestamp"] = start / samples.FPS
        start += row["length"]
        row[f"videos/{samples.EGO}/to_timestamp"] = start / samples.FPS
    with av.open(str(own / "joined.mp4"), "w") as container:
        stream, frames = None, 0
        for k in range(4):
            with av.open(str(own / VIDEO.format(k))) as part:
                stream = stream or container.add_stream_from_template(part.streams.video[0])
                for packet in filter(lambda packet: packet.size, part.demux(video=0)):
                    packet.time_base, packet.stream = Fraction(1, samples.FPS), stream
                    packet.pts = packet.dts = frames
                    packet.duration = 1
                    container.mux(packet)
                    frames += 1
    for k in range(1, 4):
        for name in (DATA, ROWS, VIDEO):
            (own / name.format(k)).unlink()
    (own / "joined.mp4").replace(own / VIDEO.format(0))
    pq.write_table(data, own / DATA.format(0))
    pq.write_table(pa.Table.from_pylist(rows, schema), own / ROWS.format(0))
    assert check_every_frame(own) == []
    return own


def pictures_of(root: Path, row: dict) -> np.ndarray:
    """Return the frames (T, H, W, 3) of an episode, decoded by PyAV at the times its row names."""
    begin = round(row[f"videos/{samples.EGO}/from_timestamp"] * samples.FPS)
    with av.open(str(root / VIDEO.format(row[f"videos/{samples.EGO}/file_index"]))) as container:
        frames = {round(float(f.time) * samples.FPS): f for f in container.decode(video=0)}
    places = range(begin, begin + row["length"])
    return np.stack([frames[k].to_ndarray(format="rgb24") for k in places])


def assert_is(root: Path, source: Path, numbers: Sequence[int], tasks: Sequence[str]) -> None:
    """Check that a dataset holds episodes of another, in every pixel, and counts them from 0 on."""
    assert check_every_frame(root) == []
    info = json.loads((root / "meta/info.json").read_text())
    lengths = [FOUR[number][1] for number in numbers]
    assert info["total_episodes"] == len(numbers) and info["total_frames"] == sum(lengths)
    assert info["splits"] == {"train": f"0:{len(numbers)}"}
    assert pq.read_table(root / "meta/tasks.parquet")["task"].to_pylist() == [*tasks]
    assert info["total_tasks"] == len(tasks)

    files = sorted(root.glob("data/*/*.parquet"))
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table["index"].to_pylist() == list(range(sum(lengths)))
    assert table["episode_index"].to_numpy().tolist() == [
        place for place, length in enumerate(lengths) for _ in range(length)
    ]
    stats = json.loads((root / "meta/stats.json").read_text())
    for key in ("index", "observation.ns", "task_index", "episode_index"):
        values = table[key].to_numpy()
        assert stats[key]["mean"] == [pytest.approx(values.mean(), rel=1e-12)]
        assert stats[key]["q90"] == [pytest.approx(np.quantile(values, 0.9), rel=1e-12)]

    before = {row["episode_index"]: row for row in rows_of(source)}
    for row, number in zip(rows_of(root), numbers, strict=True):
        assert np.array_equal(pictures_of(root, row), pictures_of(source, before[number]))
        own = table.slice(row["dataset_from_index"], row["length"])
        assert row["stats/index/min"] == [own["index"][0].as_py()]
        assert row["stats/episode_index/max"] == [row["episode_index"]]
        wanted = samples.columns(FOUR[number][1], number)["observation.state"]
        assert np.array_equal(np.array(own["observation.state"].to_pylist(), np.float32), wanted)


def assert_extras(root: Path, numbers: Sequence[int]) -> None:
    """Check the files next to episodes that were others of the dataset."""
    folders = sorted((root / "acehand").iterdir())
    for place, (folder, number) in enumerate(zip(folders, numbers, strict=True)):
        assert folder.name == f"episode_{place:06d}"
        assert json.loads((folder / "report.json").read_text()) == {"episode_index": place}
        assert (folder / "contact_sheet.png").read_bytes() == b"sheet %d" % number


@pytest.mark.parametrize("layout", ["own", "shared"])
def test_removed_episodes_are_gone_and_the_rest_is_as_it_was(
    layout, dataset, tmp_path, request, capsys
):
    root = request.getfixturevalue(layout)
    run = Acehand(capsys, "dataset", "filter", root, 1, 2)
    assert run.code == 0 and run.json["set_aside"] == ".unreferenced/removed-000"
    assert [entry["episode"] for entry in run.json["removed"]] == [1, 2]
    assert (run.json["episodes"], run.json["frames"]) == (2, 22)
    assert "episode 1: 7 frames" in run.err
    assert_is(root, dataset, [0, 3], ["wave", "let go"])
    assert_is(root / run.json["set_aside"], dataset, [1, 2], ["wave", "grasp a cup"])

    # Files next to the episodes follow them, whatever else is there stays.
    assert_extras(root, [0, 3])
    assert (root / "README.md").read_text() == "mine" and samples.names_in(tmp_path) == ["data"]
    shutil.rmtree(root / "acehand")  # the writer of samples makes none
    samples.append(root)
    assert check_every_frame(root) == []
    samples.assert_holds(root, [FOUR[0], FOUR[3], FOUR[3]], [0, 3, 3])


def test_deleted_episodes_leave_nothing(own, dataset, capsys):
    run = Acehand(capsys, "dataset", "filter", own, 0, "--delete")
    assert run.code == 0 and run.json["set_aside"] is None
    assert_is(own, dataset, [1, 2, 3], ["wave", "grasp a cup", "let go"])
    gone = (dataset / VIDEO.format(0)).read_bytes()
    assert all(path.read_bytes() != gone for path in own.rglob("*") if path.is_file())


def test_what_cannot_be_removed_is_refused_and_nothing_changes(shared):
    before = samples.snapshot(shared)
    for wrong, message in (([4], "no episode 4; it has 0 to 3"), (range(4), "no episode would be")):
        with pytest.raises(InputError, match=message):
            remove_episodes(shared, list(wrong))
    with pytest.raises(InputError, match="not a LeRobot dataset"):
        remove_episodes(shared / "data", [0])
    # Encoded in one go, so that the second episode begins between two key frames.
    samples.video(shared / VIDEO.format(0), sum(length for _, length in FOUR), 0)
    whole = samples.snapshot(shared)
    with pytest.raises(VideoError, match="key frame"):
        remove_episodes(shared, [0])
    assert samples.snapshot(shared) == whole and samples.names_in(shared.parent) == ["data"]
    (shared / VIDEO.format(0)).write_bytes(before[VIDEO.format(0)])
    shutil.copy(shared / DATA.format(0), shared / DATA.format(5))
    with pytest.raises(SchemaError, match=r"file-005\.parquet .*repair"):
        remove_episodes(shared, [0])


def test_a_full_disk_changes_nothing(dataset, tmp_path):
    samples.fail_at_each_step(tmp_path, lambda root: remove_episodes(root, [1]), dataset)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="killing a process needs fork")
def test_a_killed_edit_is_undone_or_finished_by_the_repair(tmp_path):
    done = run_helper("lerobot_samples", "die-editing", tmp_path)
    assert done.returncode == 0, done.stderr
    outcomes = set()
    for name, step in json.loads((tmp_path / "steps.json").read_text()):
        kind, root = name.split("-")[0], tmp_path / name / "data"
        repair(root)
        assert check_every_frame(root) == [], (name, step)
        is_new = kind == "repair" or len(rows_of(root)) == 2
        kept = [0, 2] if is_new else [0, 1, 2]
        samples.assert_holds(root, [samples.EPISODES[seed] for seed in kept], kept)
        assert samples.names_in(root.parent) == ["data"] and repair(root) == []
        assert (root / ".unreferenced").exists() == is_new
        outcomes.add((kind, is_new))
    assert outcomes >= {("remove", False), ("remove", True)}


@pytest.fixture
def eleven(tmp_path):
    """Eleven episodes of three frames, of which the fifth has lost its data file."""
    root = samples.write(tmp_path / "data", [("wave", 3)] * 11)
    (root / DATA.format(4)).unlink()
    return root


def test_one_lost_file_costs_one_episode_and_only_with_leave(eleven, capsys):
    before = samples.snapshot(eleven)
    dry = Acehand(capsys, "dataset", "check", eleven, "--repair", "--dry-run")
    assert dry.code == 1 and samples.snapshot(eleven) == before
    assert dry.json["lost"] == [f"episode 4: {DATA.format(4)} is missing"]
    assert f"move {VIDEO.format(4)} to .unreferenced" in dry.json["to_do"]
    assert "10 whole episodes, 30 frames" in dry.json["to_do"][-1]

    run = Acehand(capsys, "dataset", "check", eleven, "--repair")  # without a terminal
    assert run.code == 2 and samples.snapshot(eleven) == before
    assert "episode 4" in run.messages and "`yes`" in run.messages
    assert "10 whole episodes" in run.err

    run = Acehand(capsys, "dataset", "check", eleven, "--repair", "--yes")
    assert run.code == 0 and run.json["problems"] == []
    samples.assert_holds(eleven, [("wave", 3)] * 10, [0, 1, 2, 3, 5, 6, 7, 8, 9, 10])
    aside = samples.snapshot(eleven / ".unreferenced")
    assert aside == {name.format(4): before[name.format(4)] for name in (ROWS, VIDEO)}
    assert Acehand(capsys, "dataset", "check", eleven, "--repair").json["repaired"] == []
    assert plan_repair(eleven).steps == ()


@pytest.mark.parametrize(("answer", "code", "kept"), [("y\n", 0, 10), ("\n", 2, 11)])
def test_on_a_terminal_it_asks(answer, code, kept, eleven, capsys, monkeypatch):
    terminal = SimpleNamespace(isatty=lambda: True, readline=lambda: answer)
    monkeypatch.setattr(sys, "stdin", terminal)
    run = Acehand(capsys, "dataset", "check", eleven, "--repair")
    assert run.code == code and "[y/N]" in run.err and len(rows_of(eleven)) == kept


def test_nothing_that_was_set_aside_is_replaced(own, dataset):
    for number in (1, 1):  # the same number twice: another episode each time
        (own / DATA.format(rows_of(own)[number]["data/file_index"])).unlink()
        repair(own)
        shutil.copy(dataset / DATA.format(0), own / DATA.format(9))
        repair(own)
    names = set(samples.snapshot(own / ".unreferenced"))
    assert {DATA.format(9), "data/chunk-000/file-009-1.parquet"} <= names
    assert {"acehand/episode_000001/report.json", "acehand/episode_000001-1/report.json"} <= names
    samples.assert_holds(own, [FOUR[0], FOUR[3]], [0, 3])


def test_episodes_whose_rows_are_misplaced_are_whole(shared, dataset):
    """Wrong counts and numbers are mended; the parts of a shared file are all kept."""
    rows = rows_of(shared)
    rows[2]["dataset_from_index"], rows[2]["dataset_to_index"] = 0, 5
    schema = pq.read_schema(shared / ROWS.format(0))
    pq.write_table(pa.Table.from_pylist(rows, schema), shared / ROWS.format(0))
    assert check_dataset(shared) != [] and plan_repair(shared).lost == ()
    repair(shared)
    assert_is(shared, dataset, [0, 1, 2, 3], ["wave", "grasp a cup", "let go"])
    # A row of one episode gone: its frames are cut out, the files as they were are kept.
    before = (shared / DATA.format(0)).read_bytes(), (shared / VIDEO.format(0)).read_bytes()
    rows = [row for row in rows_of(shared) if row["episode_index"] != 1]
    pq.write_table(pa.Table.from_pylist(rows, schema), shared / ROWS.format(0))
    assert plan_repair(shared).lost == ("1 that meta/info.json counts: not in meta/episodes",)
    repair(shared)
    assert_is(shared, dataset, [0, 2, 3], ["wave", "let go"])
    aside = shared / ".unreferenced"
    assert ((aside / DATA.format(0)).read_bytes(), (aside / VIDEO.format(0)).read_bytes()) == before


def write_some(root: Path, numbers: Sequence[int]) -> Path:
    """A dataset of some of the ``FOUR``, with a report next to each episode."""
    with create(root, samples.FPS, samples.FEATURES, samples.ROBOT) as writer:
        for number in numbers:
            samples.add(writer, *FOUR[number], seed=number)
    for place, number in enumerate(numbers):
        folder = root / "acehand" / f"episode_{place:06d}"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps({"episode_index": place}))
        (folder / "contact_sheet.png").write_bytes(b"sheet %d" % number)
        (folder / "hand_motion.parquet").write_bytes(b"hands %d" % number)
    return root


def test_merged_datasets_are_as_if_written_in_one_go(dataset, tmp_path, capsys):
    first, second = write_some(tmp_path / "a", [0, 1]), write_some(tmp_path / "b", [2, 3])
    both, before = tmp_path / "both", samples.snapshot(tmp_path)
    run = Acehand(capsys, "dataset", "merge", first, second, "--output", both)
    assert run.code == 0 and (run.json["episodes"], run.json["frames"]) == (4, 34)
    assert f"{second}: now episodes 2 to 3" in run.err
    assert_is(both, dataset, [0, 1, 2, 3], ["wave", "grasp a cup", "let go"])
    assert_extras(both, [0, 1, 2, 3])
    for k in range(4):
        assert (both / VIDEO.format(k)).read_bytes() == (dataset / VIDEO.format(k)).read_bytes()
        record = json.loads(pq.read_schema(both / DATA.format(k)).metadata[b"acehand.provenance"])
        assert record == {"source": f"{k}.mp4"}

    # Sources stay as they are and share no file with it; it can be added to.
    assert before.items() <= samples.snapshot(tmp_path).items()
    assert all(path.stat().st_nlink == 1 for path in both.rglob("*") if path.is_file())
    moved = [shutil.copytree(part, tmp_path / "elsewhere" / part.name) for part in (first, second)]
    merge_datasets(moved, tmp_path / "again", hard_links=True)
    assert samples.snapshot(tmp_path / "again") == samples.snapshot(both), "wherever they are"
    shutil.rmtree(both / "acehand")
    samples.append(both)
    samples.assert_holds(both, [*FOUR, samples.MORE], [0, 1, 2, 3, 3])


def test_sources_that_share_files_are_merged_without_coding_anew(shared, dataset, tmp_path):
    other = write_some(tmp_path / "b", [3, 0])
    merger = merge_datasets([other, shared], tmp_path / "both", hard_links=True)
    assert [entry["first"] for entry in merger.sources] == [0, 2]
    assert_is(tmp_path / "both", dataset, [3, 0, 0, 1, 2, 3], ["let go", "wave", "grasp a cup"])
    linked = tmp_path / "both" / VIDEO.format(2)
    assert linked.samefile(shared / VIDEO.format(0))
    # Row files hold many episodes: readers open each of them.
    assert [p.name for p in (tmp_path / "both").glob("meta/episodes/*/*")] == ["file-000.parquet"]


def test_datasets_that_do_not_fit_are_not_merged(own, dataset, tmp_path):
    info = own / "meta/info.json"
    info.write_text(info.read_text().replace('"robot_type": "inspire"', '"robot_type": "leap"'))
    for sources, message in (
        ([dataset, own], "data does not fit .*: robot_type is 'leap', the dataset has 'inspire'"),
        ([dataset, dataset], "is given twice"),
        ([dataset, tmp_path], "not a LeRobot dataset"),
        ([], "nothing to merge"),
    ):
        with pytest.raises(InputError, match=message):
            merge_datasets(sources, tmp_path / "both")
    with pytest.raises(OutputError, match="exists"):
        merge_datasets([dataset], own)
    assert samples.names_in(tmp_path) == ["data"]


def test_a_full_disk_leaves_no_merged_dataset(dataset, tmp_path):
    other, steps = write_some(tmp_path / "b", [1]), []
    with samples.steps_to(steps.append):
        merge_datasets([dataset, other], tmp_path / "trial")
    shutil.rmtree(tmp_path / "trial")
    for at in range(len(steps) - 1):  # the last one finds no old dataset to remove
        full = samples.steps_to(samples.FullDisk(at))
        with full, pytest.raises(OutputError, match="No space left"):
            merge_datasets([dataset, other], tmp_path / "both")
        assert samples.names_in(tmp_path) == ["b"]


def test_what_a_dataset_holds(own, capsys):
    report = own / "acehand/episode_000001/report.json"
    report.write_text(json.dumps({"episode_index": 1, "verdict": "pass"}))
    run = Acehand(capsys, "dataset", "info", own)
    assert run.code == 0
    said = run.json
    assert (said["episodes"], said["frames"], said["fps"], said["robot"]) == (4, 34, 30, "inspire")
    assert said["seconds"] == pytest.approx(34 / 30)
    assert said["tasks"]["wave"] == {"episodes": 2, "frames": 18}
    assert said["verdicts"] == {"unknown": 3, "pass": 1}
    assert said["videos"][samples.EGO] == {"width": 64, "height": 48, "codec": "h264"}
    assert said["bytes"] == sum(len(content) for content in samples.snapshot(own).values())


def test_statistics_of_a_feature_are_exact(shared, capsys):
    words = ("dataset", "info", shared, "--feature")
    stats = Acehand(capsys, *words, "observation.state").json["stats"]
    values = samples.expected(FOUR)["observation.state"].astype(float)
    for row, name in zip(values.T, samples.STATE, strict=True):
        wanted = {"q10": np.quantile(row, 0.1), "std": row.std(), "max": row.max()}
        assert {k: stats[name][k] for k in wanted} == pytest.approx(wanted, rel=1e-12)
    run = Acehand(capsys, *words, "observation.stat")
    assert run.code == 2 and "observation.state" in run.err


@pytest.fixture
def judged(own):
    """The dataset with a verdict and measures next to three of its four episodes."""
    for number, verdict, px in ((0, "pass", 2.0), (1, "warn", 3.5), (2, "fail", None)):
        report = {
            "episode_index": number, "verdict": verdict, "reprojection_px": {"median": px},
            "reasons": ["x"], "provenance": {"robot": "inspire"},
        }  # fmt: skip
        (own / f"acehand/episode_{number:06d}/report.json").write_text(json.dumps(report))
    return own


def filtered(capsys, root: Path, rules: str, *more: object) -> Acehand:
    file = root.parent / "rules.yaml"
    file.write_text(rules)
    return Acehand(capsys, "dataset", "filter", root, "--rules", file, *more)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("rules", "removed"),
    [
        ("verdict: [pass, warn]", {2: "verdict is fail, not one of pass, warn",
                                   3: "verdict is not known"}),
        ("verdict: pass", {1: "verdict is warn, not one of pass", 2: "verdict is fail, not one of",
                           3: "verdict is not known"}),
        ("reprojection_px.median: {max: 3}", {1: "reprojection_px.median is 3.5, more than 3",
                                              2: "reprojection_px.median is not known",
                                              3: "reprojection_px.median is not known"}),
        ("frames: {min: 7}", {2: "frames is 5, less than 7"}),
        ("seconds: {min: 0.2, max: 0.4}", {0: "seconds is 0.433333, more than 0.4",
                                           2: "seconds is 0.166667, less than 0.2"}),
        ("task: {matches: 'wave|let .*'}", {1: "task is 'grasp a cup', which does not match"}),
    ],
)  # fmt: skip
def test_episodes_that_break_rules_are_removed_with_the_reason(
    judged, dataset, capsys, rules, removed
):
    before = samples.snapshot(judged)
    dry = filtered(capsys, judged, rules, "--dry-run")
    assert dry.code == 0 and samples.snapshot(judged) == before
    run = filtered(capsys, judged, rules)
    assert run.code == 0 and run.json["removed"] == dry.json["removed"]
    assert [entry["episode"] for entry in run.json["removed"]] == list(removed)
    for entry, reason in zip(run.json["removed"], removed.values(), strict=True):
        assert len(entry["reasons"]) == 1 and entry["reasons"][0].startswith(reason)
        assert entry["reasons"][0] in run.err
    kept = [number for number in range(4) if number not in removed]
    assert_is(judged, dataset, kept, list(dict.fromkeys(FOUR[number][0] for number in kept)))

    # What was removed says why, and both together are the dataset again.
    aside = judged / run.json["set_aside"]
    assert json.loads((aside / "removed.json").read_text())["removed"] == run.json["removed"]
    merge_datasets([judged, aside], judged.parent / "again")
    again = judged.parent / "again"
    tasks = list(dict.fromkeys(FOUR[number][0] for number in [*kept, *removed]))
    assert_is(again, dataset, [*kept, *removed], tasks)


def test_rules_that_cannot_be_meant(judged, capsys):
    before = samples.snapshot(judged)
    for rules, message in (
        ("verdikt: pass", "'verdikt'; valid: .*'verdict'"),
        ("frames: {least: 3}", "valid: matches, max, min"),
        ("frames: {min: three}", "min is 'three'"),
        ("task: {matches: '('}", "regular expression"),
        ("verdict: {max: 3}", "no episode would be left"),  # a text is never within limits
        ("- verdict", "mapping"),
        ("a: [", "YAML"),
        ("task: nothing", "no episode would be left"),
    ):
        run = filtered(capsys, judged, rules)
        assert run.code == 2 and re.search(message, run.err) and samples.snapshot(judged) == before
    run = filtered(capsys, judged, "frames: {min: 1}\ntask: {matches: .*}")
    assert run.code == 0 and run.json["removed"] == [] and samples.snapshot(judged) == before


def test_a_card_says_what_is_in_a_dataset(judged, capsys):
    card = ["dataset", "info", judged, "--card", judged / "README.md"]
    run = Acehand(capsys, *card)
    assert run.code == 4 and "README.md exists" in run.err
    card.append("--overwrite")
    run = Acehand(capsys, *card, "--license", "cc-by-4.0", "--consent", "All three signed form B.")
    text = (judged / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    assert run.code == 0 and yaml.safe_load(head) == {
        "license": "cc-by-4.0", "task_categories": ["robotics"],
        "tags": ["LeRobot", "acehand", "inspire"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }  # fmt: skip
    assert "4 episodes" in body and "34 frames at 30" in body and "1.1 seconds" in body
    assert "| wave | 2 | 18 |" in body and "| let go | 1 | 9 |" in body
    assert "1 pass, 1 warn, 1 fail, 1 unknown" in body
    # Of 2.0 and 3.5, the only ones that are known.
    assert ", px | 2.15 | 2.75 | 3.35 | 2 |" in body
    assert "- recordings: cc-by-4.0" in body and body.endswith("All three signed form B.\n")
    assert check_dataset(judged) == []

    assert Acehand(capsys, *card).code == 0
    text = (judged / "README.md").read_text()
    assert "license: other" in text and "before you publish" in text

    run = Acehand(capsys, "dataset", "info", judged, "--license", "cc-by-4.0")
    assert run.code == 2 and "require --card" in run.err
