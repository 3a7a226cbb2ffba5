"""What the review benchmark damages, it damages as it says, and leaves sound datasets behind."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from acehand_core import JobSettings, run_job
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.edit import merge_datasets
from acehand_core.lerobot.format import read_episode_rows
from acehand_core.recordings.hands_file import write_hand_motion
from benchmarks.reviewing import damages, recordings
from benchmarks.reviewing.damages import DAMAGES, KINDS, Stored
from benchmarks.reviewing.making import of_variant

JOINTS = "observation.hand.joints_camera"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A dataset of one episode without pictures: 97 frames of both hands."""
    folder = tmp_path_factory.mktemp("healthy")
    motion = recordings.truth(recordings.Clip(1, 2, "anna", "", 97))
    betas = np.zeros((2, 10))  # a swap is to be seen in what differs between the hands
    write_hand_motion(replace(motion, betas=betas), folder / "hands.parquet")
    run_job([folder / "hands.parquet"], JobSettings(output=folder / "dataset"))
    return folder / "dataset"


@pytest.fixture
def dataset(healthy, tmp_path):
    """A copy to damage."""
    return shutil.copytree(healthy, tmp_path / "dataset")


def damaged(dataset, damage):
    """Return the episode as it was, and as it is read again after the damage."""
    before, stored = Stored(dataset), Stored(dataset)
    damage(stored, np.random.default_rng(3))
    stored.save()
    return before, Stored(dataset)


@pytest.mark.few(2)
@pytest.mark.parametrize("damage", [d.data for d in DAMAGES if d.data], ids=lambda d: d.__name__)
def test_a_damaged_dataset_is_sound_as_a_dataset(dataset, tmp_path, damage):
    before, after = damaged(dataset, damage)

    merge_datasets([dataset], tmp_path / "merged")

    problems = [str(problem) for problem in check_dataset(tmp_path / "merged")]
    assert problems == []
    (row,) = read_episode_rows(tmp_path / "merged")
    highest = after.columns[JOINTS].reshape(97, -1).max(axis=0)
    np.testing.assert_allclose(row[f"stats/{JOINTS}/max"], highest, rtol=1e-6)
    assert not np.array_equal(before.columns[JOINTS], after.columns[JOINTS])
    # The columns and the table next to them say the same.
    both = after.columns["hand.valid"][..., 0]
    table = after.motion.joints_camera.reshape(after.columns[JOINTS].shape)
    np.testing.assert_allclose(table[both], after.columns[JOINTS][both], rtol=1e-5, atol=1e-6)


def test_units_are_those_of_the_damage(dataset):
    before, after = damaged(dataset, damages.in_millimetres)

    np.testing.assert_allclose(after.columns[JOINTS], 1000 * before.columns[JOINTS], rtol=1e-6)
    place = "observation.hand.translation"
    np.testing.assert_allclose(after.columns[place], 1000 * before.columns[place], rtol=1e-6)


def test_hands_are_swapped_from_the_middle_on(dataset):
    before, after = damaged(dataset, damages.swapped_from_the_middle)

    old, new = before.columns[JOINTS], after.columns[JOINTS]
    np.testing.assert_array_equal(new[:48], old[:48])
    np.testing.assert_array_equal(new[48:, 0], old[48:, 1])
    np.testing.assert_array_equal(new[48:, 1], old[48:, 0])
    np.testing.assert_array_equal(after.columns["action"], before.columns["action"])


def test_a_frozen_hand_keeps_still_for_two_seconds_and_stays_valid(dataset):
    before, after = damaged(dataset, damages.frozen_with_robot)

    moved = np.abs(np.diff(after.columns[JOINTS], axis=0)).max(-1)
    frozen = moved == 0
    assert frozen.sum(axis=0).max() == 59  # 60 frames at 30 a second
    assert (np.abs(np.diff(before.columns[JOINTS], axis=0)).max(-1)[frozen.any(1)] > 0).any()
    np.testing.assert_array_equal(after.columns["hand.valid"], before.columns["hand.valid"])
    slot = int(np.argmax(frozen.sum(axis=0)))
    commands = np.abs(np.diff(after.columns["action.register"][:, slot], axis=0)).max(-1)
    assert (commands[frozen[:, slot]] == 0).all()


def test_noise_has_the_deviation_it_is_said_to_have(dataset):
    before, after = damaged(dataset, damages.jittery)

    noise = after.columns[JOINTS] - before.columns[JOINTS]
    assert noise.std() == pytest.approx(0.006, rel=0.03)  # of 12,222 numbers
    assert abs(np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1]) < 0.03


def test_another_robots_numbers_fill_the_columns_by_shape_alone(dataset):
    ours, theirs = Stored(dataset), Stored(dataset)
    theirs.columns["observation.state"] = np.ones((97, 2, 25))  # 9 of the base, 16 joints
    theirs.columns["action.register"] = np.ones((97, 2, 4))

    damages.give_commands_of(ours, theirs)

    assert (ours.columns["observation.state"] == np.ones((97, 2, 15))).all()
    assert (ours.columns["action.register"] == [1, 1, 1, 1, 0, 0]).all()


def test_lost_pictures_are_missing_or_repeated():
    pictures = [np.full((2, 2, 3), k, np.uint8) for k in range(97)]

    left = [int(p[0, 0, 0]) for p in damages.lost_in_bursts(pictures, np.random.default_rng(1))]
    steps = np.diff(left)
    assert (steps > 1).sum() == 3
    assert all(6 <= step <= 11 for step in steps[steps > 1])  # 5 to 10 are gone between two

    repeated = damages.lost_and_repeated(pictures, np.random.default_rng(1))
    shown = [int(p[0, 0, 0]) for p in repeated]
    assert len(shown) == 97
    assert sorted(set(shown)) == left

    single = damages.lost_here_and_there(pictures, np.random.default_rng(1))
    assert len(single) == 97 - 12


def test_each_kind_comes_once_before_any_comes_again():
    ten = of_variant(2, 10)

    assert len(KINDS) == 10
    assert [damage.kind for damage in ten] == list(KINDS)
    assert len({(d.kind, d.variant) for d in DAMAGES}) == len(DAMAGES)
    other = of_variant(1, 10)
    assert all(
        a.variant != b.variant
        for a, b in zip(ten, other, strict=True)
        if sum(d.kind == a.kind for d in DAMAGES) > 1
    )
