"""Full disks and killed writers: finished episodes stay, unfinished ones leave nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from acehand_core.errors import InputError, OutputError, SchemaError, UnsafeFileError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import transaction
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import open_for_append, read_provenance
from acehand_core.lerobot.repair import repair
from acehand_core.lerobot.transaction import STAGING
from helpers import lerobot_samples as samples
from helpers.commands import run_helper

EPISODES, MORE = samples.EPISODES, samples.MORE


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished dataset of three episodes; not to be changed."""
    return samples.write(tmp_path_factory.mktemp("finished") / "data")


@pytest.fixture
def own(dataset: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(dataset, tmp_path / "data")


class FullDisk:
    """A disk that is full at one of the steps it is asked about, once."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, []

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) == self.at + 1:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_any_step_of_appending_changes_nothing(
    dataset: Path, tmp_path: Path
) -> None:
    failed = []
    for at in range(13):
        root = shutil.copytree(dataset, tmp_path / str(at) / "data")
        before, disk = samples.snapshot(root), FullDisk(at)
        with (
            samples.steps_to(disk),
            open_for_append(root, 30, samples.FEATURES, samples.ROBOT) as writer,
        ):
            with pytest.raises(OutputError, match="No space left on device"):
                samples.add(writer, *MORE, seed=3)
            assert samples.snapshot(root) == before and samples.names_in(root.parent) == ["data"]
            failed.append(disk.seen[at])
            if at % 4 == 0:
                assert samples.add(writer, *MORE, seed=3) == 3, "the same writer can go on"
        assert check_dataset(root) == []
    assert "journal" in failed and failed[-1] == f"place {layout.INFO_PATH}"


def test_an_undo_that_fails_is_finished_by_the_next_writer(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = samples.snapshot(own)

    def broken(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(transaction, "_undo", broken)
        patch.setattr(transaction, "step", FullDisk(11))
        writer = open_for_append(own, 30, samples.FEATURES, samples.ROBOT)
        with pytest.raises(OutputError, match="Input/output error"):
            samples.add(writer, *MORE, seed=3)
        with pytest.raises(OutputError, match="closed"):
            samples.add(writer, *MORE, seed=3)
    samples.assert_holds(own, EPISODES, [0, 1, 2])
    assert "undid" in repair(own)[0]
    assert samples.snapshot(own) == before


def test_a_full_disk_while_tidying_up_is_no_failure(own: Path) -> None:
    disk = FullDisk(13)
    with samples.steps_to(disk):
        samples.append(own)
    assert disk.seen[13] == "clean" and check_dataset(own) == []


def test_a_full_disk_while_starting_a_dataset_leaves_nothing(tmp_path: Path) -> None:
    for at in (0, 3, 6, 9, 12, 14, 15):
        full = samples.steps_to(FullDisk(at))
        with full, pytest.raises(OutputError, match="No space left on device"):
            samples.write(tmp_path / "data")
        assert samples.names_in(tmp_path) == []


@pytest.mark.parametrize("limit", [500, 4000, 15000])
def test_no_room_for_a_file_is_an_output_error(own: Path, limit: int) -> None:
    before = samples.snapshot(own)
    done = run_helper("lerobot_samples", "full", own, str(limit))
    assert done.stdout.startswith("OutputError") and "File too large" in done.stdout, done.stderr
    assert samples.snapshot(own) == before


# Killed writers


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    """Folders that writers left which were killed, one per step."""
    if not hasattr(os, "fork"):
        pytest.skip("killing a writer needs fork")
    folder = tmp_path_factory.mktemp("killed")
    done = run_helper("lerobot_samples", "die", folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads((folder / "steps.json").read_text())


def left_at(killed: tuple[Path, list[list[str]]], step: str, to: Path) -> Path:
    """Return a copy of the dataset that was being appended to when its writer died."""
    folder, steps = killed
    name = next(name for name, own in steps if name.startswith("append") and own == step)
    return shutil.copytree(folder / name, to / name) / "data"


@pytest.mark.slow
def test_a_writer_killed_anywhere_leaves_only_whole_episodes(
    killed: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    old = {"create": [], "append": list(EPISODES), "replace": list(EPISODES)}
    new = {"create": [EPISODES[0]], "append": [*EPISODES, MORE], "replace": [MORE]}
    seeds = {"create": [0], "append": [0, 1, 2, 3], "replace": [0]}

    def assert_old_or_new(root: Path, kind: str, count: int) -> None:
        assert count in (len(old[kind]), len(new[kind]))
        is_new = count == len(new[kind])
        samples.assert_holds(
            root, (new if is_new else old)[kind], seeds[kind] if is_new else [0, 1, 2]
        )

    outcomes = set()
    for name, step in killed[1]:
        kind = name.split("-")[0]
        root = shutil.copytree(killed[0] / name, tmp_path / name) / "data"
        if root.exists():
            count = json.loads((root / layout.INFO_PATH).read_text())["total_episodes"]
            assert_old_or_new(root, kind, count)
        else:
            assert kind == "create" or step == "publish: rename", step
        if kind == "create" and not root.exists():
            with pytest.raises(InputError):
                repair(root)
        else:
            repair(root)
            assert check_dataset(root) == [], step
            count = len(layout.read_episode_rows(root))
            assert_old_or_new(root, kind, count)
            assert repair(root) == []
            outcomes.add((kind, count))
        assert set(samples.names_in(root.parent)) <= {"data"}, step
    assert outcomes == {("create", 1), ("append", 3), ("append", 4), ("replace", 3), ("replace", 1)}


@pytest.mark.parametrize(
    ("step", "episodes"),
    [
        ("stage info", 4),
        ("journal", 4),
        ("place data/chunk-000/file-003.parquet", 5),
        (f"place {layout.INFO_PATH}", 5),
        ("clean", 5),
    ],
)
def test_the_next_writer_tidies_up_by_itself(
    killed: tuple[Path, list[list[str]]], tmp_path: Path, step: str, episodes: int
) -> None:
    root = left_at(killed, step, tmp_path)
    assert any(problem.path == STAGING for problem in check_dataset(root))
    samples.append(root)
    assert check_dataset(root) == []
    extra = episodes - 3
    samples.assert_holds(root, [*EPISODES, *[MORE] * extra], [0, 1, 2, *[3] * extra])


def test_provenance_lists_what_the_next_writer_will_find(
    killed: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    sources = ["0.mp4", "1.mp4", "2.mp4", "3.mp4"]
    for step, count in (("journal", 3), ("place data/chunk-000/file-003.parquet", 4)):
        root = left_at(killed, step, tmp_path / str(count))
        assert [entry["source"] for entry in read_provenance(root)] == sources[:count]
        with open_for_append(root, 30, samples.FEATURES, samples.ROBOT) as writer:
            assert writer.total_episodes == count
            samples.video(writer.scratch_video(samples.EGO), 3, 0)
            assert len(read_provenance(root)) == count, "a running writer is left alone"
            assert writer.scratch_video(samples.EGO).exists()


def test_an_old_addition_is_dropped_when_somebody_else_has_written_since(
    killed: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    root = left_at(killed, "place data/chunk-000/file-003.parquet", tmp_path)
    info = json.loads((root / layout.INFO_PATH).read_text())
    (root / layout.INFO_PATH).write_text(json.dumps(info | {"note": "changed"}))
    assert "has changed since" in repair(root)[0]
    assert check_dataset(root) == []
    samples.assert_holds(root, list(EPISODES), [0, 1, 2])


def test_a_journal_cannot_reach_outside_the_dataset(
    killed: tuple[Path, list[list[str]]], tmp_path: Path
) -> None:
    root = left_at(killed, "place data/chunk-000/file-003.parquet", tmp_path)
    path = root / STAGING / "journal.json"
    journal = json.loads(path.read_text())
    for target in ("../stolen", "/stolen", "data/../../stolen"):
        journal["moves"][1]["target"] = target
        path.write_text(json.dumps(journal))
        with pytest.raises(UnsafeFileError, match="outside"):
            repair(root)
    path.write_text("{}")
    with pytest.raises(SchemaError, match="not a journal"):
        repair(root)
    assert not (tmp_path / "stolen").exists()
