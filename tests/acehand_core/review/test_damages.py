"""One list of damages, which ``acehand dataset check`` and ``acehand inspect`` must both find."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acehand_core.errors import AcehandError
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.edit import merge_datasets
from acehand_core.recordings.video import open_video
from acehand_core.review.inspect import inspect
from helpers.lerobot_samples import DATA, ROWS, VIDEO
from helpers.review_samples import true_dataset
from helpers.video_fixtures import write_video

INFO, TASKS, STATS = "meta/info.json", "meta/tasks.parquet", "meta/stats.json"
FOLDER = "acehand/episode_00000{}"
Damage = Callable[[Path], object]


def exchanged(*keys: str, places: tuple[int, int] = (30, 31)) -> Damage:
    """Return a damage that exchanges two names of features in info.json."""

    def damage(root):
        info, (a, b) = json.loads((root / INFO).read_text()), places
        for key in keys:
            names = info["features"][key]["names"]
            names[a % len(names)], names[b % len(names)] = (
                names[b % len(names)], names[a % len(names)]
            )  # fmt: skip
        (root / INFO).write_text(json.dumps(info))

    return damage


def info_with(**changes: object) -> Damage:
    return lambda root: (root / INFO).write_text(
        json.dumps(json.loads((root / INFO).read_text()) | changes)
    )


def column(key: str, change: Callable[[list], list], file: str = DATA.format(1)) -> Damage:
    """Return a damage to a column of the second episode's data, or of another file."""

    def damage(root):
        table = pq.read_table(root / file, partitioning=None)
        place, field = table.column_names.index(key), table.schema.field(key)
        values = pa.array(change(table[key].to_pylist()), field.type)
        pq.write_table(table.set_column(place, field, values), root / file)

    return damage


def filmed(change: Callable[[np.ndarray, int], np.ndarray]) -> Damage:
    """Return a damage that changes every picture of the second episode's video."""

    def damage(root):
        path = root / VIDEO.format(1)
        video = open_video(path)
        pictures = [change(image, k) for k, image in enumerate(video.frames.read(0, len(video)))]
        write_video(path, pictures, fps=round(video.fps))

    return damage


def of_another(name: str) -> Damage:
    """Return a damage that gives the second episode a file of another recording's."""

    def damage(root):
        content = (root / FOLDER.format(0) / name).read_bytes()
        if name.endswith(".json"):
            content = content.replace(b'"scale": 1.', b'"scale": 2.')
        (root / FOLDER.format(1) / name).write_bytes(content)

    return damage


def stale_statistics(root: Path) -> None:
    stats = json.loads((root / STATS).read_text())
    stats["action"]["max"][0] += 1
    (root / STATS).write_text(json.dumps(stats))


CHECK_READS_NO_VALUES = "check is of any LeRobot dataset: values are what the user says they are"
#: Damage; the command that cannot see it, and why.
DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "another robot": (info_with(robot_type="ability"), "", ""),
    "task index of another task": (column("task_index", lambda v: [0] * len(v)), "", ""),
    "black video": (filmed(lambda image, k: np.zeros_like(image)), "", ""),
    "blurred video": (filmed(lambda image, k: cv2.GaussianBlur(image, (0, 0), 20)), "", ""),
    "two names of action": (exchanged("action"), "", ""),
    "two names of action and state": (exchanged("action", "observation.state"), "", ""),
    "two names of registers": (exchanged("action.register", places=(1, 2)), "", ""),
    "two names of robot joints": (exchanged("observation.joints.robot", places=(1, 2)), "", ""),
    "two names of keypoints": (exchanged("observation.hand.joints_camera"), "", ""),
    "left and right": (exchanged("observation.hand.confidence", places=(0, 1)), "", ""),
    "no robot": (info_with(robot_type=""), "", ""),
    "another rate": (info_with(fps=29), "", ""),
    "another count": (info_with(total_frames=200), "", ""),
    "task index of no task": (column("task_index", lambda v: [7] * len(v)), "", ""),
    "task of another episode": (column("tasks", lambda v: [v[0]] * 2, ROWS.format(0)), "", ""),
    "tasks exchanged": (column("task", lambda v: v[::-1], TASKS), "", ""),
    "episode index": (column("episode_index", lambda v: [0] * len(v)), "", ""),
    "frame index": (column("frame_index", lambda v: v[::-1]), "", ""),
    "index": (column("index", lambda v: [0] * len(v)), "", ""),
    "timestamp": (column("timestamp", lambda v: [1.01 * t for t in v]), "", ""),
    "stale statistics": (stale_statistics, "", ""),
    "desk": (filmed(lambda image, k: np.full_like(image, 128)), "", ""),
    "test pattern": (filmed(lambda image, k: np.indices(image.shape).sum(0).astype(np.uint8)), "",
                     ""),
    "no hands": (lambda root: (root / FOLDER.format(1) / "hand_motion.parquet").unlink(), "", ""),
    "action backwards": (column("action", lambda v: v[::-1]), "check", CHECK_READS_NO_VALUES),
    "hands backwards": (column("observation.hand.joints_camera", lambda v: v[::-1]), "check",
                        CHECK_READS_NO_VALUES),
    "another calibration": (of_another("calibration.json"), "check", "check reads LeRobot's files"),
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Two episodes of the same recording, with tasks of their own."""
    root = true_dataset(tmp_path_factory.mktemp("damages") / "sound")
    merged = root.with_name("two")
    other = shutil.copytree(root, root.with_name("other"))
    for path, key, value in ((TASKS, "task", ["lift"]), (ROWS.format(0), "tasks", [["lift"]])):
        column(key, lambda _, value=value: value, path)(other)
    merge_datasets((root, other), merged)
    return merged


def statuses(root: Path) -> list[str]:
    try:
        return [episode.status for episode in inspect((root,), looks=0).episodes]
    except AcehandError:
        return ["fail", "refused"]


def test_a_sound_dataset_is_accepted(dataset):
    assert check_dataset(dataset) == []
    found = [{f.check for f in e.findings} - {"batch_twice"}
             for e in inspect((dataset,), looks=0).episodes]  # fmt: skip
    assert found == [set(), set()]


@pytest.mark.few(5)
@pytest.mark.parametrize("name", DAMAGES)
def test_both_commands_find(dataset, tmp_path, name):
    root = shutil.copytree(dataset, tmp_path / "two")
    damage, blind, why = DAMAGES[name]
    damage(root)
    assert bool(check_dataset(root)) == (blind != "check"), why
    levels = {"stale statistics": "warn", "no hands": "warn",
              "another calibration": "warn"}  # fmt: skip
    assert levels.get(name, "fail") in statuses(root), why
