"""Full disks and killed writers: finished episodes stay, unfinished ones leave nothing."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from acehand_core.atomic import LockedError, atomic_folder, atomic_path
from acehand_core.errors import InputError, OutputError, SchemaError, UnsafeFileError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot import transaction
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import create, open_for_append, read_provenance
from acehand_core.lerobot.edit import merge_datasets, remove_episodes
from acehand_core.lerobot.repair import repair
from acehand_core.lerobot.transaction import STAGING
from helpers import lerobot_samples as samples
from helpers.commands import run_helper
from helpers.lerobot_samples import FullDisk

EPISODES, MORE = samples.EPISODES, samples.MORE


def test_a_full_disk_at_any_step_of_appending_changes_nothing(dataset, tmp_path):
    failed = []
    for at in range(13):
        root = shutil.copytree(dataset, tmp_path / str(at) / "data")
        before, disk = samples.snapshot(root), FullDisk(at)
        with (
            samples.steps_to(disk),
            open_for_append(root, 30, samples.FEATURES, samples.ROBOT) as writer,
        ):
            with pytest.raises(OutputError, match="No space left"):
                samples.add(writer, *MORE, seed=3)
            assert samples.snapshot(root) == before and samples.names_in(root.parent) == ["data"]
            failed.append(disk.seen[at])
            if at % 4 == 0:
                assert samples.add(writer, *MORE, seed=3) == 3, "the same writer still works"
        assert check_dataset(root) == []
    assert "journal" in failed and failed[-1] == f"place {layout.INFO_PATH}"


def test_an_undo_that_fails_is_finished_by_the_next_writer(own, monkeypatch):
    before = samples.snapshot(own)

    def broken(*arguments):
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


def test_a_full_disk_while_tidying_up_is_no_failure(own):
    disk = FullDisk(13)
    with samples.steps_to(disk):
        samples.append(own)
    assert disk.seen[13] == "clean" and check_dataset(own) == []


def test_a_full_disk_while_starting_a_dataset_leaves_nothing(tmp_path):
    for at in (0, 6, 12, 15):
        full = samples.steps_to(FullDisk(at))
        with full, pytest.raises(OutputError, match="No space left"):
            samples.write(tmp_path / "data")
        assert samples.names_in(tmp_path) == []


@pytest.mark.parametrize("limit", [500, 15000])
def test_no_room_for_a_file_is_an_output_error(own, limit):
    before = samples.snapshot(own)
    done = run_helper("lerobot_samples", "full", own, str(limit))
    assert done.stdout.startswith("OutputError") and "File too large" in done.stdout, done.stderr
    assert samples.snapshot(own) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="two writers at once need fork")
@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_of_two_writers_of_a_new_dataset_one_is_refused(tmp_path, locks):
    tries = 50 if os.environ.get("ACEHAND_SLOW") else 6
    done = run_helper("lerobot_samples", "race", tmp_path, tries, int(locks))
    codes = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(codes) == tries, done.stderr
    for number, by_name in enumerate(codes):
        assert sorted(by_name.values()) == [0, 4], (number, by_name)
        winner, loser = sorted(by_name, key=by_name.__getitem__)
        root = tmp_path / str(number) / "data"
        assert str(root) in (tmp_path / f"{number}-{loser}").read_text()
        assert samples.check_every_frame(root) == [] and layout.read_tasks(root) == [winner]
        assert samples.names_in(root.parent) == ["data"]


def test_a_dataset_that_is_being_made_or_replaced_has_one_writer(own, tmp_path):
    """The others: of a new one, with any command; of a dataset to be overwritten, all."""
    new = tmp_path / "new"
    with create(new, 30, samples.FEATURES, samples.ROBOT, overwrite=True) as writer:
        for overwrite in (False, True):
            with pytest.raises(LockedError, match="new"):
                samples.write(new, overwrite=overwrite)
            with pytest.raises(LockedError, match="new"):
                merge_datasets([own], new, overwrite=overwrite)
        samples.add(writer, *MORE, seed=3)
        with pytest.raises(LockedError):  # it exists, and gets more episodes
            samples.write(new, overwrite=True)
    samples.assert_holds(new, [MORE], [3])

    with create(own, 30, samples.FEATURES, samples.ROBOT, overwrite=True) as writer:
        for refused in (samples.append, lambda root: samples.write(root, overwrite=True),
                        lambda root: remove_episodes(root, [1])):  # fmt: skip
            with pytest.raises(LockedError):
                refused(own)
        samples.assert_holds(own, EPISODES, [0, 1, 2])
    samples.append(own)


def test_what_a_killed_writer_leaves_blocks_nobody(dataset, tmp_path):
    """It holds no lock; a folder of the name of one, with anything in it, is none."""
    left = tmp_path / ".data.partial-new"
    shutil.copytree(dataset, left)
    samples.write(tmp_path / "data", [MORE])
    samples.assert_holds(tmp_path / "data", [MORE], [0])
    assert samples.names_in(tmp_path) == ["data"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_or_folder_that_appears_meanwhile_stays(tmp_path, kind):
    path = tmp_path / "out"
    write_atomically = atomic_path if kind == "file" else atomic_folder
    with pytest.raises(OutputError, match="exists"), write_atomically(path) as partial:
        for place, text in ((partial, "second"), (path, "first")):
            if kind == "folder":
                place.mkdir(exist_ok=True)
                place /= "content"
            place.write_text(text)
    assert (path if kind == "file" else path / "content").read_text() == "first"
    assert samples.names_in(tmp_path) == ["out"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
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


#: Episodes and their seeds before and after what was interrupted.
OLD_OR_NEW = {
    "create": (([], []), ([EPISODES[0]], [0])),
    "append": ((EPISODES, [0, 1, 2]), ([*EPISODES, MORE], [0, 1, 2, 3])),
    "replace": ((EPISODES, [0, 1, 2]), ([MORE], [0])),
}


@pytest.mark.slow
def test_a_writer_killed_anywhere_leaves_only_whole_episodes(killed, tmp_path):
    outcomes = set()
    for name, step in killed[1]:
        kind = name.split("-")[0]
        root = shutil.copytree(killed[0] / name, tmp_path / name) / "data"

        def assert_old_or_new(count, root=root, kind=kind):
            (state,) = [state for state in OLD_OR_NEW[kind] if len(state[0]) == count]
            samples.assert_holds(root, *state)

        if root.exists():
            info = json.loads((root / layout.INFO_PATH).read_text())
            assert_old_or_new(info["total_episodes"])
        else:
            assert kind == "create" or step == "publish: rename", step
        if kind == "create" and not root.exists():
            with pytest.raises(InputError):
                repair(root)
        else:
            repair(root)
            assert check_dataset(root) == [] and repair(root) == [], step
            count = len(layout.read_episode_rows(root))
            assert_old_or_new(count)
            outcomes.add((kind, count))
        assert set(samples.names_in(root.parent)) <= {"data"}, step
    assert outcomes == {("create", 1), ("append", 3), ("append", 4), ("replace", 3), ("replace", 1)}


@pytest.mark.parametrize(("step", "episodes"), [
    ("stage info", 4), ("journal", 4), ("place data/chunk-000/file-003.parquet", 5),
    (f"place {layout.INFO_PATH}", 5), ("clean", 5),
])  # fmt: skip
def test_the_next_writer_tidies_up_by_itself(killed, tmp_path, step, episodes):
    root = left_at(killed, step, tmp_path)
    assert any(problem.path == STAGING for problem in check_dataset(root))
    samples.append(root)
    assert check_dataset(root) == []
    extra = episodes - 3
    samples.assert_holds(root, [*EPISODES, *[MORE] * extra], [0, 1, 2, *[3] * extra])


def test_provenance_lists_what_the_next_writer_will_find(killed, tmp_path):
    sources = ["0.mp4", "1.mp4", "2.mp4", "3.mp4"]
    for step, count in (("journal", 3), ("place data/chunk-000/file-003.parquet", 4)):
        root = left_at(killed, step, tmp_path / str(count))
        assert [entry["source"] for entry in read_provenance(root)] == sources[:count]
        with open_for_append(root, 30, samples.FEATURES, samples.ROBOT) as writer:
            assert writer.total_episodes == count
            samples.video(writer.scratch_video(samples.EGO), 3, 0)
            assert len(read_provenance(root)) == count, "a running writer is left alone"
            assert writer.scratch_video(samples.EGO).exists()


def test_an_old_addition_is_dropped_when_somebody_else_has_written_since(killed, tmp_path):
    root = left_at(killed, "place data/chunk-000/file-003.parquet", tmp_path)
    info = json.loads((root / layout.INFO_PATH).read_text())
    (root / layout.INFO_PATH).write_text(json.dumps(info | {"note": "changed"}))
    assert "has changed since" in repair(root)[0]
    assert check_dataset(root) == []
    samples.assert_holds(root, list(EPISODES), [0, 1, 2])


def test_a_journal_cannot_reach_outside_the_dataset(killed, tmp_path):
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
