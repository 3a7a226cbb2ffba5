"""A run that ended between an episode and what follows it: found, said, and finished."""

import errno
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core import atomic
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import open_for_append
from acehand_core.lerobot.repair import repair
from acehand_core.lerobot.transaction import STAGING
from acehand_core.recordings.video import VideoFrames
from helpers import lerobot_samples as samples
from helpers.commands import GRIPPER, Acehand, Run, hands_file, run_helper, video_and_hands

FIRST = "acehand/episode_000000"
SHARES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return video_and_hands(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """What an uninterrupted run writes."""
    from acehand_core.cli import retarget

    root = tmp_path_factory.mktemp("whole") / "data"
    assert retarget.main([*job(inputs, root), "--quiet"]) == 0
    return root


def job(inputs: list[Path], output: Path) -> list[str]:
    video, hands = inputs
    return [str(video), "--tracker", str(hands), "--output", str(output), *GRIPPER]


def killed_at(moment: str, *arguments: object) -> None:
    done = run_helper("dying_runs", moment, *arguments, "--quiet")
    assert done.returncode == -signal.SIGKILL, done.stderr


def assert_same_extras(root: Path, whole: Path) -> None:
    """Check that an episode has all of its files, and the ones of an uninterrupted run."""
    ours, theirs = samples.snapshot(root / FIRST), samples.snapshot(whole / FIRST)
    assert set(ours) == set(theirs) == {
        "hand_motion.parquet", "report.json", "calibration.json", "contact_sheet.png",
        "overlay.mp4",
    }  # fmt: skip
    for name in ("hand_motion.parquet", "report.json", "calibration.json", "contact_sheet.png"):
        assert ours[name] == theirs[name], name


def test_the_sheet_alone_takes_its_pictures_from_the_dataset(inputs, tmp_path, monkeypatch):
    """An input may have one key frame every ten seconds."""
    from acehand_core.cli import retarget

    read, decoded_at = [], VideoFrames.decoded_at

    def noted(self, index):
        read.append(self.path)
        return decoded_at(self, index)

    monkeypatch.setattr(VideoFrames, "decoded_at", noted)
    root = tmp_path / "data"
    assert retarget.main([*job(inputs, root), "--no-overlay", "--quiet"]) == 0
    assert read and all(path.is_relative_to(root) for path in read)


@pytest.mark.few(1)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.parametrize("moment", ["drawing", "sheet", "overlay"])
def test_a_run_killed_before_its_pictures_is_finished_by_resume(
    moment, inputs, whole, tmp_path, capsys
):
    root = tmp_path / "data"
    killed_at(moment, *job(inputs, root))
    names = samples.names_in(root / FIRST)
    assert "overlay.mp4" not in names and "hand_motion.parquet" in names and "report.json" in names
    (problem,) = (p for p in check_dataset(root) if p.path == FIRST)
    assert "overlay.mp4" in str(problem) and "existing=resume" in str(problem)

    # The repair removes what was half written and says that the recording is needed.
    repaired = Acehand(capsys, "dataset", "check", root, "--repair")
    assert repaired.code == 1 and any(
        "existing=resume" in text for text in repaired.json["problems"]
    )
    half = [text for text in repaired.json["repaired"] if "never completed" in text]
    # The sheet is written while the overlay is.
    assert len(half) == {"drawing": 0, "sheet": 2, "overlay": 1}[moment]

    data = samples.snapshot(root / "data")
    run = Run(capsys, *job(inputs, root), "--resume")
    assert run.code == 0 and run.json["skipped"] == [str(inputs[0])]
    assert "episode 0 was interrupted" in run.json["notes"][0]
    assert_same_extras(root, whole)
    assert samples.snapshot(root / "data") == data
    assert check_dataset(root) == [] and repair(root) == []
    again = Run(capsys, *job(inputs, root), "--resume")
    assert again.code == 0 and "notes" not in again.json

    # Whoever resumes without overlays gets none.
    (root / FIRST / layout.OVERLAY).unlink()
    assert check_dataset(root) == [], "removed on purpose"
    (root / FIRST / layout.PENDING).write_bytes(layout.pending_bytes(["overlay.mp4"]))
    assert Run(capsys, *job(inputs, root), "--resume", "--no-overlay").code == 0
    assert check_dataset(root) == [] and not (root / FIRST / layout.OVERLAY).exists()


def test_a_disk_that_is_full_when_pictures_are_drawn(inputs, whole, tmp_path, capsys, monkeypatch):
    root, sync = tmp_path / "data", atomic.sync

    def full(path):
        if "overlay.mp4.partial" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync", full)
        run = Run(capsys, *job(inputs, root))
    assert run.code == 4 and "No space left" in run.messages
    assert [str(p) for p in check_dataset(root) if "overlay.mp4" in str(p)]
    assert Run(capsys, *job(inputs, root), "--resume").code == 0
    assert_same_extras(root, whole)
    assert check_dataset(root) == []


@pytest.mark.parametrize("lost", [[layout.SHEET], [layout.HANDS, layout.REPORT, layout.SHEET]])
def test_what_an_older_version_left_out_is_made_again(lost, inputs, whole, tmp_path, capsys):
    """It wrote hands and report after the episode, and nothing that says what is to come."""
    root = shutil.copytree(whole, tmp_path / "data")
    for name in [*lost, layout.OVERLAY]:
        (root / FIRST / name).unlink()
    (problem,) = check_dataset(root)
    assert all(name in str(problem) for name in lost)
    assert Run(capsys, *job(inputs, root), "--resume").code == 0
    assert_same_extras(root, whole)
    # Published without that folder, a dataset is whole.
    shutil.rmtree(root / "acehand")
    assert check_dataset(root) == []


def test_an_episode_that_is_dropped_takes_its_pictures_along(whole, tmp_path):
    root = shutil.copytree(whole, tmp_path / "data")
    shutil.copytree(root / FIRST, root / "acehand" / "episode_000001")
    assert any("acehand/episode_000001 to .unreferenced" in done for done in repair(root))
    assert samples.names_in(root / "acehand") == ["episode_000000"]
    assert (root / ".unreferenced" / "acehand" / "episode_000001" / "report.json").is_file()


def assert_exact(root: Path) -> None:
    """Check stats.json against numpy's over all rows of the data files."""
    stats = json.loads((root / "meta" / "stats.json").read_text())
    tables = [pq.read_table(f, partitioning=None) for f in sorted(root.glob("data/*/*.parquet"))]
    for key in tables[0].column_names:
        values = np.concatenate([np.array(table[key].to_pylist(), np.float64) for table in tables])
        values = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
        wanted = {name: np.quantile(values, share, axis=0) for name, share in SHARES.items()}
        wanted |= {name: getattr(values, name)(0) for name in ("min", "max", "mean", "std")}
        for name, numbers in wanted.items():
            np.testing.assert_allclose(stats[key][name], numbers, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_run_killed_before_its_statistics_is_finished(tmp_path, capsys):
    both = [hands_file(tmp_path / "a.npz", 9), hands_file(tmp_path / "b.npz", 5)]
    root = tmp_path / "data"
    killed_at("statistics", *both, "--output", root, *GRIPPER)
    with pytest.raises(AssertionError):
        assert_exact(root)
    (problem,) = check_dataset(root)
    assert problem.path == "meta/stats.json" and "existing=resume" in str(problem)
    other = shutil.copytree(root, tmp_path / "other")
    run = Run(capsys, *both, "--output", root, "--resume", *GRIPPER)
    assert run.code == 0 and run.json["skipped"] == [str(path) for path in both]
    repaired = Acehand(capsys, "dataset", "check", other, "--repair")
    assert repaired.code == 0 and "quantiles" in repaired.json["repaired"][0]
    for whole in (root, other):
        assert_exact(whole)
        assert check_dataset(whole) == [] and repair(whole) == []


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.few(2)
@pytest.mark.parametrize(("step", "failure", "code"), [
    ("place meta/stats.json", FULL, 4), ("stage stats", KeyboardInterrupt(), 130),
    ("journal", KeyboardInterrupt(), 130), ("stage stats", FULL, 4),
])  # fmt: skip
def test_a_failure_while_exact_statistics_are_written(step, failure, code, tmp_path, capsys):
    """After both episodes: the averaged statistics stay whole, the next run replaces them."""
    both = [hands_file(tmp_path / "a.npz", 9), hands_file(tmp_path / "b.npz", 5)]
    root, seen = tmp_path / "data", []

    def fail(name):
        seen.append(name)
        if name == step and seen.count("stage stats") == 3:  # once per episode, then over all
            raise failure

    with samples.steps_to(fail):
        run = Run(capsys, *both, "--output", root, *GRIPPER)
    assert run.code == code and len(run.json["episodes"]) == 2
    assert seen[-1] == step and STAGING not in samples.names_in(root)
    assert [problem.path for problem in check_dataset(root)] == ["meta/stats.json"]
    mended = shutil.copytree(root, tmp_path / "mended")
    repair(mended)
    assert Run(capsys, *both, "--output", root, "--resume", *GRIPPER).code == 0
    for whole in (root, mended):
        assert_exact(whole)
        assert check_dataset(whole) == []


def test_statistics_of_an_appended_episode(tmp_path):
    """Exact ones of the old episodes, averaged with the new one's: as wrong, less visibly."""
    root = samples.write(tmp_path / "data")
    assert_exact(root)
    writer = open_for_append(root, samples.FPS, samples.FEATURES, samples.ROBOT)
    samples.add(writer, "one frame more", 1, seed=3)
    writer.close()
    assert [problem.path for problem in check_dataset(root)] == ["meta/stats.json"]
    # A writer that adds nothing finishes it, too.
    open_for_append(root, samples.FPS, samples.FEATURES, samples.ROBOT).finish()
    assert_exact(root)
    assert check_dataset(root) == []
