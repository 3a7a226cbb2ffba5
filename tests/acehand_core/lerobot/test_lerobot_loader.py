"""Our datasets in the real lerobot, which lives in an environment of its own.

Set ``ACEHAND_LEROBOT_PYTHON`` to a Python 3.12 that has lerobot and pytest, and acehand for the
test that has both in one process.
"""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.cli import retarget
from acehand_core.errors import InputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import create
from acehand_core.lerobot.edit import filter_episodes, merge_datasets, remove_episodes
from acehand_core.lerobot.format import HANDS
from acehand_core.lerobot.repair import repair
from acehand_core.lerobot.rules import Rule
from acehand_core.lerobot.trim import trim_episodes
from acehand_core.lerobot.trim_rules import Gaps, Idle, TrimRules
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.review.decisions import write_sidecars
from helpers import ROOT, trim_samples
from helpers import lerobot_samples as samples
from helpers.commands import hands_file, run_helper
from helpers.example_video import EXAMPLE
from helpers.lerobot_samples import check_every_frame
from helpers.video_fixtures import write_video

PYTHON = os.environ.get("ACEHAND_LEROBOT_PYTHON")
NONE = "ACEHAND_LEROBOT_PYTHON names no Python with lerobot"
pytestmark = [pytest.mark.lerobot, pytest.mark.skipif(PYTHON is None, reason=NONE)]


def test_the_real_loader_reads_whatever_a_writer_leaves(tmp_path, monkeypatch):
    folder = tmp_path / "datasets"
    episodes = [*samples.EPISODES, samples.MORE]
    samples.write(folder / "finished")
    samples.append(samples.write(folder / "appended"))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "CHUNK_SIZE", 2)
        samples.append(samples.write(folder / "chunked"))
    _leave_interrupted(tmp_path, folder)
    for root in list(folder.iterdir()):
        np.savez(root.with_suffix(".npz"), **samples.expected(episodes))
    assert len(list(folder.iterdir())) >= 2 * 10
    # Another episode at the end is removed: the same again.
    edited = samples.append(shutil.copytree(folder / "finished", folder / "edited"))
    remove_episodes(edited, [len(samples.EPISODES)])
    shutil.copy(folder / "finished.npz", folder / "edited.npz")
    # And merged of two.
    with create(tmp_path / "last", samples.FPS, samples.FEATURES, samples.ROBOT) as writer:
        samples.add(writer, *samples.MORE, seed=len(samples.EPISODES))
    first = samples.write(tmp_path / "first")
    merge_datasets([first, tmp_path / "last"], folder / "merged")
    shutil.copy(folder / "finished.npz", folder / "merged.npz")

    kept = tmp_path / "kept"
    kept.mkdir()
    _judge(folder, tmp_path / "cache", ACEHAND_LEROBOT_KEEP=str(kept))

    # And the other way round: what lerobot wrote is sound to our validator, and can be added to.
    assert check_every_frame(kept / "recorded") == [] and check_every_frame(kept / "resumed") == []
    samples.append(kept / "resumed")
    assert check_every_frame(kept / "resumed") == []
    assert repair(kept / "recorded") == []


def test_edits_of_ours_and_of_lerobots_in_turn(tmp_path):
    """Merged, filtered, trimmed; then by lerobot's tools; then merged and trimmed again."""
    folder, edited = tmp_path / "datasets", tmp_path / "edited"
    edited.mkdir()
    more = [
        (trim_samples.columns(n, (0, n), [("right", 30, n - 35)]), "wave", ()) for n in (85, 45)
    ]
    parts = [trim_samples.write(tmp_path / "a", trim_samples.EPISODES),
             trim_samples.write(tmp_path / "b", more)]  # fmt: skip
    merge_datasets(parts, root := folder / "chain")
    filter_episodes(root, [Rule.of("task", "wave", "rules"), Rule.of("frames", {"min": 46}, "")])
    rules = TrimRules(idle=Idle(), gaps=Gaps(0.5))
    trimming = trim_episodes(root, rules, write_sidecars)
    assert [entry["kept"] for entry in trimming.trimmed] == [[[18, 73]], [[0, 30], [50, 85]]]
    wanted = [(trim_samples.EPISODES[0], 18, 73), (trim_samples.EPISODES[2], 0, 50),
              (more[0], 0, 30), (more[0], 50, 85)]  # fmt: skip
    values = {key: np.concatenate([episode[0][key][a:b] for episode, a, b in wanted])
              for key in wanted[0][0][0]}  # fmt: skip
    np.savez(folder / "chain.npz", task=["wave"] * (55 + 50 + 30 + 35), **values)
    _judge(folder, tmp_path / "cache", ACEHAND_LEROBOT_EDITED=str(edited))

    # lerobot's results are sound to our validator, and our tools take them.
    for name in ("delete_episodes", "split/train", "split/val"):
        assert check_every_frame(edited / f"chain-{name}") == [], name
    again = tmp_path / "again" / "datasets"
    merge_datasets([edited / "chain-delete_episodes", edited / "chain-split" / "val"], again / "x")
    with pytest.raises(InputError, match="no episode"):
        trim_episodes(again / "x", TrimRules(min_seconds=2), write_sidecars)
    trimmed = trim_episodes(again / "x", TrimRules(min_seconds=1.1), write_sidecars)
    assert [entry["episode"] for entry in trimmed.trimmed] == [1]
    values = {key: np.concatenate([value[55:105], value[135:], value[135:]])
              for key, value in values.items()}  # fmt: skip
    np.savez(again / "x.npz", task=["wave"] * (50 + 35 + 35), **values)
    assert check_every_frame(again / "x") == []
    _judge(again, tmp_path / "cache")


def test_the_real_loader_reads_what_the_main_job_writes(tmp_path):
    """Episodes of videos and of joints alone, and the shared video if there is one.

    lerobot's edit tools work on them, and what they make is sound to our validator, too.
    """
    folder = tmp_path / "datasets"
    two = [str(EXAMPLE), "--output", str(folder / "two"), "--no-overlay", "-q"]
    assert retarget.main([*two, "--duration", "1", "--task", "first"]) == 0
    assert retarget.main([*two, "--start", "2", "--append", "--task", "second"]) == 0
    hands = _with_doubtful(folder / "two" / "acehand" / "episode_000001" / HANDS, tmp_path)
    joints = [str(hands), "--output", str(folder / "joints"), "-q"]
    assert retarget.main(joints) == 0
    assert retarget.main([*joints, "--append", "--task", "again"]) == 0
    _expect_doubt(hands, folder / "joints.npz", ["hand motion", "again"])
    shared = Path(os.environ.get("ACEHAND_SHARED", ROOT.parent / "shared"))
    video = shared / "data" / "human_hand_video.mp4"
    if video.is_file():
        job = [str(video), "--robot", "inspire", "--output", str(folder / "real"), "--no-overlay"]
        assert retarget.main([*job, "--task", "hand gestures", "-q"]) == 0
    edited = tmp_path / "edited"
    edited.mkdir()
    _judge(folder, tmp_path / "cache", ACEHAND_LEROBOT_EDITED=str(edited))
    _check_edited(edited)
    _check_same_edits(folder / "two", edited, tmp_path / "ours")
    kept = edited / "two-delete_episodes"
    assert retarget.main([*two, "--duration", "0.5", "--append", "--output", str(kept)]) == 0
    assert check_dataset(kept) == []


def test_the_real_loader_reads_other_views_and_depth(tmp_path):
    """Depth comes out of the unmodified loader in the millimetres that went in."""
    seconds = np.arange(12) / 30
    depth = 400 + 7 * np.arange(12)[:, None, None] + np.arange(64 * 96).reshape(64, 96) % 300
    video, other = (write_video(tmp_path / f"{n}.mp4", k) for n, k in (("a", 12), ("b", 13)))
    (tmp_path / "depth").mkdir()
    depth[:, :4] = 0  # no reading
    for second, counts in zip(seconds, depth, strict=True):
        cv2.imwrite(str(tmp_path / f"depth/{second:.6f}.png"), counts.astype(np.uint16))
    lens = {"width": 96, "height": 64, "fx": 80.0, "fy": 80.0, "cx": 47.5, "cy": 31.5}
    poses = [np.eye(4).tolist() for _ in range(2)]
    poses[1][0][3] = 0.1
    rig = {"cameras": {n: {**lens, "T_rig_camera": p} for n, p in zip("ab", poses, strict=True)}}
    (tmp_path / "rig.json").write_text(json.dumps(rig))
    hands = hands_file(tmp_path / "hands.npz", 12)
    words = [video, "--rig", tmp_path / "rig.json", "--view", f"b={other}", "--depth",
             tmp_path / "depth", "--tracker", hands, "--keep-views", "--keep-depth",
             "--output", tmp_path / "datasets" / "rig", "-q"]  # fmt: skip
    assert retarget.main([*map(str, words)]) == 0
    np.savez(tmp_path / "datasets" / "rig.npz", task=["hand motion"] * 12, depth=depth)
    _run_there(
        ["test_real_loader.py"],
        tmp_path / "cache",
        ACEHAND_LEROBOT_DATASETS=str(tmp_path / "datasets"),
    )


def test_lerobot_trains_without_one_hand(tmp_path):
    video = write_video(tmp_path / "a.mp4", 12)
    words = [video, "--tracker", hands_file(tmp_path / "hands.npz", 12), "--hands", "right",
             "--output", tmp_path / "datasets" / "one_hand", "-q"]  # fmt: skip
    assert retarget.main([*map(str, words)]) == 0
    _run_there(
        ["test_training.py"],
        tmp_path / "cache",
        ACEHAND_LEROBOT_DATASETS=str(tmp_path / "datasets"),
    )


def test_both_live_in_one_environment(tmp_path):
    here = [PYTHON, "-c", "import acehand_core"]
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if subprocess.run(here, env=alone, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("acehand is not installed next to lerobot")
    report = _run_there(["test_side_by_side.py"], tmp_path / "cache")
    assert "skipped" not in report, report


def _with_doubtful(table: Path, folder: Path) -> Path:
    """Return a table like this one in which a hand is doubtful for a while."""
    motion = read_hand_motion(table)
    assert motion.joint_sigma is not None and motion.observed[5:10, 1].all()
    quality = motion.quality.copy()
    quality[5:10, 1] = 0.0
    write_hand_motion(replace(motion, quality=quality), folder / HANDS)
    return folder / HANDS


def _expect_doubt(table: Path, path: Path, tasks: list[str]) -> None:
    """Leave what the real loader must find of how far joints may be off, read with pyarrow."""
    columns = pq.read_table(table).to_pydict()  # a row per frame and hand
    sigma = np.array(columns["joint_sigma"], np.float32).reshape(-1, 2 * 21 * 2)
    assert (sigma > 0).any() and len(sigma) > 10
    keys = ("quality", "observed", "filled")
    flags = {key: np.array(columns[key]).reshape(-1, 2) for key in keys}
    every = {
        "hand.joint_sigma": np.where(np.isnan(sigma), np.float32(-1), sigma),
        "hand.valid": flags["observed"] | flags["filled"],
        "observation.hand.confidence": flags["quality"].astype(np.float32),
    }
    np.savez(
        path,
        task=np.repeat(tasks, len(sigma)),
        **{key: np.tile(value, (len(tasks), 1)) for key, value in every.items()},
    )


def _check_edited(edited: Path) -> None:
    """Hold lerobot's results against our validator; what it says of them is true of them."""
    found = {path.parent.parent for path in edited.rglob("meta/info.json")}
    assert len(found) == 2 * 9
    for root in found:
        problems = [str(problem) for problem in check_every_frame(root)]
        if root.name.endswith(("add_features", "modify_features")):
            # These tools leave the new features without statistics.
            assert problems and all("stats/" in p or "q99 missing" in p for p in problems)
        elif root.name.endswith("merge"):
            # Rows of one file still name the file that they came from.
            assert problems and all("as its own file" in p for p in problems)
        else:
            assert problems == [], root


def _check_same_edits(source: Path, edited: Path, ours: Path) -> None:
    """Hold our edits of a dataset against what lerobot's tools made of it."""
    remove_episodes(shutil.copytree(source, ours / "delete_episodes"), [0])
    mine, theirs = ours / "delete_episodes", edited / f"{source.name}-delete_episodes"
    assert layout.read_tasks(mine) == layout.read_tasks(theirs)
    infos = [layout.read_json(root / layout.INFO_PATH) for root in (mine, theirs)]
    counts = ("total_episodes", "total_frames", "total_tasks", "splits", "fps")
    assert all(infos[0][key] == infos[1][key] for key in counts)
    tables = [pq.read_table(root / "data", partitioning=None) for root in (mine, theirs)]
    for key in tables[0].column_names:
        assert tables[0][key].to_pylist() == tables[1][key].to_pylist(), key
    rows = [layout.read_episode_rows(root) for root in (mine, theirs)]
    for one, other in zip(*rows, strict=True):
        places = [key for key in one if not key.startswith(("stats/", "meta/"))]
        assert {key: one[key] for key in places} == {key: other[key] for key in places}


def _judge(folder: Path, cache: Path, **more: str) -> None:
    """Hold every dataset in a folder against the real loader and its edit tools."""
    files = ["test_real_loader.py", "test_edit_tools.py"]
    _run_there(files, cache, ACEHAND_LEROBOT_DATASETS=str(folder), **more)


def _run_there(files: list[str], cache: Path, **more: str) -> str:
    """Run tests of the folder lerobot_real by the Python that has lerobot; return its report."""
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-x", *files],
        env=os.environ | {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"} | more,
        cwd=ROOT / "tests" / "lerobot_real",
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def _leave_interrupted(scratch: Path, folder: Path) -> None:
    """Put a dataset into ``folder`` for each moment of appending at which a writer was killed."""
    dead = scratch / "dead"
    dead.mkdir()
    done = run_helper("lerobot_samples", "die", dead)
    assert done.returncode == 0, done.stderr
    for name, step in json.loads((dead / "steps.json").read_text()):
        if name.startswith("append") and step.startswith(("journal", "place", "clean")):
            shutil.copytree(dead / name / "data", folder / name)
