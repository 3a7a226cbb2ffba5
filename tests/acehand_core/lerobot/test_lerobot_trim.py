"""Frames are cut off episodes by rules, in every file alike, and can be brought back."""

import json
import os
import re
import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acehand_core.errors import SchemaError
from acehand_core.lerobot.columns import read
from acehand_core.lerobot.repair import repair
from acehand_core.lerobot.rules import read_rules
from acehand_core.lerobot.trim import trim_episodes
from acehand_core.lerobot.trim_rules import (
    RULE_COLUMNS,
    Blur,
    TrimRules,
    find_cuts,
    read_trim_rules,
    speeds,
)
from acehand_core.recordings.hands_file import read_hand_motion
from acehand_core.review.decisions import write_sidecars
from helpers import lerobot_samples as samples
from helpers import trim_samples
from helpers.commands import Acehand, Run, run_helper
from helpers.example_video import EXAMPLE
from helpers.lerobot_samples import check_every_frame, rows_of

FPS = samples.FPS
EPISODES = trim_samples.EPISODES
RULES = "idle: {seconds: 0.5, speed: 0.05}\ngaps: {seconds: 0.5}\nblur: {below: 0.3}\n"
#: What they leave: first frame and the one after the last, by hand.
KEPT = {0: [(18, 73)], 1: [(0, 40), (60, 100)], 3: [(0, 30), (41, 64)]}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Not to be changed."""
    return trim_samples.write(tmp_path_factory.mktemp("finished") / "data", EPISODES)


def trim(capsys, root: Path, rules: str, *more: object) -> Acehand:
    file = root.parent / "rules.yaml"
    file.write_text(rules)
    return Acehand(capsys, "dataset", "trim", root, "--rules", file, *more)


def data_of(root: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(f) for f in sorted(root.glob("data/*/*.parquet"))])


def video_of(root: Path, row: dict) -> np.ndarray:
    key = f"videos/{samples.EGO}"
    place = f"chunk-{row[f'{key}/chunk_index']:03d}/file-{row[f'{key}/file_index']:03d}.mp4"
    assert row[f"{key}/from_timestamp"] == 0
    assert row[f"{key}/to_timestamp"] == pytest.approx(row["length"] / FPS)
    return trim_samples.decoded(root / "videos" / samples.EGO / place)


def assert_trimmed(root: Path, dataset: Path, kept: list[tuple[int, int, int]]) -> None:
    """Check every number and picture against slices of the dataset: (episode, start, stop)."""
    assert check_every_frame(root) == []
    for path in root.glob("videos/*/*/*.mp4"):  # copied or encoded again
        with av.open(str(path)) as video:
            assert video.streams.video[0].time_base == Fraction(1, 90000), "as trim_samples writes"
    before, after = data_of(dataset), data_of(root)
    starts = np.cumsum([0, *(len(values["hand.valid"]) for values, _, _ in EPISODES)])
    wanted = pa.concat_tables([before.slice(starts[e] + a, b - a) for e, a, b in kept])
    counted = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    for key in (key for key in before.column_names if key not in counted):
        assert after[key].equals(wanted[key]), key
    lengths = [b - a for _, a, b in kept]
    frames = np.concatenate([np.arange(n) for n in lengths])
    assert after["frame_index"].to_pylist() == frames.tolist()
    assert after["index"].to_pylist() == [*range(sum(lengths))]
    np.testing.assert_array_equal(after["timestamp"].to_numpy(), (frames / FPS).astype("f4"))

    originals = {row["episode_index"]: row for row in rows_of(dataset)}
    for row, (episode, a, b) in zip(rows_of(root), kept, strict=True):
        assert row["tasks"] == originals[episode]["tasks"] and row["length"] == b - a
        source, cut = video_of(dataset, originals[episode])[a:b], video_of(root, row)
        assert cut.shape == source.shape
        error = np.abs(cut.astype(int) - source).mean(axis=(1, 2))
        assert error.max() < 1.5, "another frame would differ by more than 10"
        if a % 10 == 0:  # a key frame: the pictures are the very same
            assert (cut == source).all()
        state = np.array(wanted.slice(row["dataset_from_index"], b - a)["observation.state"]
                         .to_pylist())  # fmt: skip
        np.testing.assert_allclose(row["stats/observation.state/mean"], state.mean(axis=0))
        np.testing.assert_allclose(row["stats/observation.state/max"], state.max(axis=0))
        mean = np.array(row[f"stats/{samples.EGO}/mean"]).mean()
        assert mean == pytest.approx(source.mean() / 255, abs=0.02)


def test_frames_that_rules_name_go_from_every_file(own, dataset, capsys):
    before = samples.snapshot(own)
    dry = trim(capsys, own, RULES, "--dry-run")
    assert dry.code == 0 and samples.snapshot(own) == before
    run = trim(capsys, own, RULES)
    assert run.code == 0 and run.json["trimmed"] == dry.json["trimmed"]
    assert (run.json["episodes"], run.json["frames"]) == (6, 55 + 40 + 40 + 50 + 30 + 23)
    kept = {entry["episode"]: entry["kept"] for entry in run.json["trimmed"]}
    assert kept == {number: [[*p] for p in pieces] for number, pieces in KEPT.items()}
    order = [(0, 18, 73), (1, 0, 40), (1, 60, 100), (2, 0, 50), (3, 0, 30), (3, 41, 64)]
    assert_trimmed(own, dataset, order)

    # Each range has its reason, on the terminal and next to the episodes as they were.
    reasons = {e["episode"]: [c["reason"] for c in e["cuts"]] for e in run.json["trimmed"]}
    assert [c["frames"] for c in run.json["trimmed"][0]["cuts"]] == [[0, 18], [73, 90]]
    assert reasons[0][0].startswith("idle for 0.60 s at the start: no hand is valid and as fast")
    assert reasons[0][1].startswith("idle for 0.57 s at the end")
    assert reasons[1] == ["left hand not observed for 0.67 s"]
    assert reasons[3][0].startswith("blurred for 0.37 s: sharpness down to 0.0")
    assert all(reason in run.err for own_reasons in reasons.values() for reason in own_reasons)
    aside = own / run.json["set_aside"]
    assert json.loads((aside / "removed.json").read_text())["removed"] == run.json["trimmed"]
    assert check_every_frame(aside) == [] and len(rows_of(aside)) == 3

    # What lies next to an episode, and its provenance, say of what it is a piece.
    folder = own / "acehand/episode_000002"
    report = json.loads((folder / "report.json").read_text())
    assert report["trimmed"] == {"frames": [60, 100], "of": 100, "of_the_whole_episode": []}
    assert (report["frames"], report["episode_index"]) == (40, 2)
    (piece,) = json.loads((folder / "trim.json").read_text())["pieces"]
    assert (piece["episode"], piece["frames"], piece["of"]) == (1, [60, 100], 100)
    record = pq.read_schema(own / "data/chunk-000/file-002.parquet").metadata
    record = json.loads(record[b"acehand.provenance"])
    assert record["source"] == "1" and record["trimmed"] == [piece]
    assert not (own / "acehand/episode_000003/trim.json").exists()
    assert samples.names_in(own.parent) == ["data", "rules.yaml"]
    other = shutil.copytree(dataset, own.parent / "elsewhere" / "other")
    assert trim(capsys, other, RULES).code == 0
    assert samples.snapshot(other) == samples.snapshot(own), "the same every time"

    # Once is enough; and what is not kept is gone.
    shutil.copytree(dataset, own.parent / "gone" / "data")
    gone = trim(capsys, own.parent / "gone" / "data", RULES, "--delete")
    assert gone.code == 0 and gone.json["set_aside"] is None
    left = samples.snapshot(own.parent / "gone" / "data")
    assert left == {k: v for k, v in samples.snapshot(own).items() if not k.startswith(".unref")}
    shutil.rmtree(own.parent / "gone")
    again = trim(capsys, own, RULES)
    assert again.json["trimmed"] == [] and again.json["set_aside"] is None


def test_av1_is_cut_too(tmp_path, capsys):
    """As lerobot encodes: at an even frame the packets are copied, at an odd one encoded again."""
    episodes = [(trim_samples.columns(60, (0, 60), [("right", 20, 41)]), "wave", ()),
                (trim_samples.columns(60, (0, 60), [("right", 20, 40)]), "wave", ())]  # fmt: skip
    root = trim_samples.write(tmp_path / "data", episodes, "libsvtav1")
    before = [video_of(root, row) for row in rows_of(root)]
    assert trim(capsys, root, "gaps: {seconds: 0.5}").code == 0
    assert check_every_frame(root) == []
    odd, even = [video_of(root, row) for row in rows_of(root)][1::2]
    error = np.abs(odd.astype(int) - before[0][41:])
    assert error.mean(axis=(1, 2)).max() < 2
    assert (even == before[1][40:]).all()


def test_a_piece_that_was_cut_again_is_still_one_of_the_first(own, dataset, capsys):
    """Of frames 18 to 72 those go that are slower than 0.22 m/s: to 21, and from 69 on.

    From 18 on a hand has gone 6 cm at frame 26, 8 frames on: 0.225 m/s around frame 22; around 21
    5 cm in 7 frames. From 64 to 72 it goes 6 cm, from 65 to 72 5 cm.
    """
    assert trim(capsys, own, "idle: {}").code == 0
    run = trim(capsys, own, "idle: {seconds: 0.08, speed: 0.22}")
    assert [entry["kept"] for entry in run.json["trimmed"]] == [[[4, 51]]]
    assert_trimmed(own, dataset, [(0, 22, 69), (1, 0, 100), (2, 0, 50), (3, 0, 64)])
    pieces = json.loads((own / "acehand/episode_000000/trim.json").read_text())["pieces"]
    assert [piece["frames"] for piece in pieces] == [[18, 73], [4, 51]]

    # Without its piece the episode comes back whole, as the last one.
    assert Acehand(capsys, "dataset", "filter", own, 0).code == 0
    aside, whole = own / ".unreferenced/trimmed-000", own.with_name("whole")
    assert Acehand(capsys, "dataset", "merge", own, aside, "--output", whole).code == 0
    assert_trimmed(whole, dataset, [(1, 0, 100), (2, 0, 50), (3, 0, 64), (0, 0, 90)])


def cuts_of(folder, rule, columns=EPISODES[0][0], frames=90):
    (folder / "rules.yaml").write_text(rule)
    rules = read_trim_rules(folder / "rules.yaml")
    return find_cuts(rules, read(columns, RULE_COLUMNS), None, frames, FPS)


def test_idle_ends(tmp_path):
    """The hand goes 1 cm a frame from frame 20 to 70; speeds are over 8 frames, 4 on either side.

    At frame 18 it has gone 2 cm from frame 14 to 22, in 8/30 s: 0.075 m/s; at 17, 0.0375 m/s.
    """
    joints = EPISODES[0][0]["observation.hand.joints_camera"].reshape(90, 2, 21, 3)
    assert speeds(joints, FPS)[[17, 18, 40, 72, 73], 1] == pytest.approx(
        [0.0375, 0.075, 0.3, 0.075, 0.0375], rel=1e-4
    )
    cuts, pieces = cuts_of(tmp_path, "idle: {keep: 0.1}")
    assert pieces == [(15, 76)] and [(c.start, c.stop) for c in cuts] == [(0, 15), (76, 90)]
    # 18 frames are 0.6 s, 17 are 0.567.
    assert cuts_of(tmp_path, "idle: {seconds: 0.58}")[1] == [(18, 90)]
    still = trim_samples.columns(60, (60, 60))
    cuts, pieces = cuts_of(tmp_path, "idle: {seconds: 0.58}", still, 60)
    assert pieces == [] and cuts[0].reason.startswith("idle throughout")


def test_gaps_and_confidence(tmp_path):
    """By hand: left absent 10 to 30, right filled in 20 to 30 and left 60 to 69.

    Unsure are both for three frames, then the right one alone.
    """
    gaps = {"absent": [("left", 10, 30)], "filled": [("right", 20, 30), ("left", 60, 69)]}
    unsure = {"unsure": [("left", 20, 23), ("right", 20, 26), ("right", 40, 46)]}
    for marked, rule, wanted in (
        (gaps, "gaps: {seconds: 0.2}", [(0, 10), (30, 60), (69, 80)]),
        (gaps, "gaps: {seconds: 0.4}", [(0, 10), (30, 80)]),
        (gaps, "gaps: {seconds: 0.2, hands: both}", [(0, 20), (30, 80)]),
        (unsure, "confidence: {min: 0.3}", [(0, 20), (26, 40), (46, 80)]),
        (unsure, "confidence: {min: 0.3, hands: both}", [(0, 20), (23, 80)]),
        (unsure, "confidence: {min: 0.3, seconds: 0.2}", [(0, 80)]),
    ):
        columns = trim_samples.columns(80, (0, 80), sides=("left", "right"), **marked)
        assert cuts_of(tmp_path, rule, columns, 80)[1] == wanted


@given(fps=st.sampled_from([10, 15, 24, 25, 30, 50, 60, 100]), frames=st.integers(1, 400))
@example(fps=25, frames=7)  # 0.28 * 25 is 7.000000000000001
@example(fps=50, frames=29)  # 0.58 * 50 is 28.999999999999996
def test_a_stretch_as_long_as_a_rule_says_is_not_longer(fps, frames):
    seconds = frames / fps
    assert find_cuts(TrimRules(min_seconds=seconds), {}, None, frames, fps) == ([], [(0, frames)])
    sharpness = np.ones(3 * frames + 1)
    sharpness[:frames] = 0
    rules = TrimRules(blur=Blur(seconds=seconds))
    assert find_cuts(rules, {}, sharpness, len(sharpness), fps)[0] == []
    _, pieces = find_cuts(rules, {}, np.r_[0.0, sharpness], len(sharpness) + 1, fps)
    assert pieces == [(frames + 1, len(sharpness) + 1)]


@pytest.mark.parametrize("read", [read_trim_rules, read_rules])
def test_a_date_that_is_none_is_no_rule(read, tmp_path):
    """YAML reads it as a date and then fails."""
    (tmp_path / "rules.yaml").write_text("min_seconds: 2026-02-30")
    with pytest.raises(SchemaError, match=r"rules\.yaml"):
        read(tmp_path / "rules.yaml")


def test_what_cannot_be_trimmed_is_refused(own, capsys):
    before = samples.snapshot(own)
    for rules, message in (
        ("idel: {}", "idel .*'idle'"), ("idle: {speed: fast}", "'fast'"),
        ("idle: {spede: 1}", "idle.spede .*'speed'"), ("gaps: {hands: left}", "valid: any, both"),
        ("confidence: {}", "min"), ("blur: {video: front}", "'front'"), ("idle: [", "YAML"),
        ("min_seconds: 10", "no episode would be left"), ("- idle", "mapping"),
    ):  # fmt: skip
        run = trim(capsys, own, rules)
        assert run.code == 2 and samples.snapshot(own) == before, rules
        assert re.search(message, run.err), run.err
    (own / "acehand/episode_000000/contact_sheet.png").unlink()
    run = trim(capsys, own, RULES)
    assert run.code == 2 and "episode 0 is unfinished" in run.err
    run = trim(capsys, samples.write(own.parent / "plain"), "idle: {}")
    assert run.code == 2 and "observation.hand" in run.err


@pytest.mark.slow
def test_a_full_disk_changes_nothing(dataset, tmp_path):
    (tmp_path / "rules.yaml").write_text("gaps: {seconds: 0.5}")
    rules = read_trim_rules(tmp_path / "rules.yaml")
    steps = samples.fail_at_each_step(
        tmp_path, lambda root: trim_episodes(root, rules, write_sidecars), dataset
    )
    assert "cut episode 1" in steps and len(steps) > 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="killing a process needs fork")
def test_a_killed_trim_is_undone_or_finished_by_the_repair(tmp_path):
    whole = samples.snapshot(trim_samples.write(tmp_path / "base" / "data", EPISODES[:1]))
    (tmp_path / "rules.yaml").write_text("idle: {}")
    done = run_helper("trim_samples", tmp_path, tmp_path / "rules.yaml")
    assert done.returncode == 0, done.stderr
    for number, step in enumerate(trim_samples.DEATHS):
        root = tmp_path / str(number) / "data"
        repair(root)
        assert check_every_frame(root) == [] and samples.names_in(root.parent) == ["data"], step
        if step == trim_samples.DEATHS[-1]:
            assert [row["length"] for row in rows_of(root)] == [55]
        else:
            assert samples.snapshot(root) == whole, step


@pytest.mark.slow
def test_an_episode_of_the_main_job_is_cut_with_all_its_files(tmp_path, capsys):
    root = tmp_path / "out"
    assert Run(capsys, EXAMPLE, "--output", root, "--duration", "1.2").code == 0
    folder = root / "acehand/episode_000000"
    hands, report = folder / "hand_motion.parquet", json.loads((folder / "report.json").read_text())
    before, overlay = read_hand_motion(hands), trim_samples.decoded(folder / "overlay.mp4")
    state = data_of(root)["observation.state"]
    frames = len(before)

    # The first eight frames blurred, as the cutter sees it: the video itself stays sharp.
    def sharpness(recording):
        return np.where(np.arange(len(recording)) < 8, 0.0, 100.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acehand_core.lerobot.trim.sharpness_of", sharpness)
        run = trim(capsys, root, "blur: {}")
    assert run.code == 0 and run.json["frames"] == frames - 8
    assert check_every_frame(root) == []
    after = read_hand_motion(hands)
    assert np.array_equal(after.joints_camera, before.joints_camera[8:], equal_nan=True)
    assert np.array_equal(after.timestamps_ns, before.timestamps_ns[8:])
    cut = trim_samples.decoded(folder / "overlay.mp4")
    assert len(cut) == len(overlay) - 8
    assert np.abs(cut.astype(int) - overlay[8:]).mean() < 2
    assert np.abs(cut.astype(int) - overlay[:-8]).mean() > 2, "any frames would pass"
    assert data_of(root)["observation.state"].equals(state.slice(8))

    new = json.loads((folder / "report.json").read_text())
    assert new["frames"] == frames - 8 and new["verdict"] == report["verdict"]
    assert new["coverage"]["right"] == pytest.approx(before.observed[8:, 1].mean(), abs=1e-4)
    assert {"verdict", "physics", "tip_error_mm"} <= {*new["trimmed"]["of_the_whole_episode"]}
    assert "coverage" not in new["trimmed"]["of_the_whole_episode"]

    # A run that is resumed takes the piece for the episode.
    resumed = Run(capsys, EXAMPLE, "--output", root, "--duration", "1.2", "--resume")
    assert resumed.code == 0 and resumed.json["skipped"] and len(rows_of(root)) == 1
