"""Small LeRobot datasets for tests; run as a program, writers that are killed or run out of disk.

python tests/helpers/lerobot_samples.py COMMAND

die FOLDER        one folder per step at which a writer was killed
die-editing FOLDER  the same of who removes episodes, renames a task or repairs
full ROOT BYTES   append under a limit on file sizes; print the error
race FOLDER TRIES LOCKS   two writers of one new dataset; LOCKS 0: without file locks
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core.atomic import fcntl
from acehand_core.errors import AcehandError, OutputError, exit_code
from acehand_core.lerobot import edit, transaction
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import create, open_for_append
from acehand_core.lerobot.format import FeatureSpec, video_feature
from acehand_core.lerobot.repair import repair
from acehand_core.lerobot.writer import LeRobotWriter
from helpers.video_fixtures import write_video

FPS = 30
HEIGHT, WIDTH = 48, 64
EGO = "observation.images.ego"
DATA = "data/chunk-000/file-{:03d}.parquet"
ROWS = "meta/episodes/chunk-000/file-{:03d}.parquet"
VIDEO = f"videos/{EGO}/chunk-000/file-{{:03d}}.mp4"
ROBOT = "inspire"
STATE = ("a", "b", "c", "d")
SIDES = ("left", "right")
JOINTS = {"joint": tuple(f"joint_{i}" for i in range(21)), "axis": ("x", "y", "z")}
FEATURES = (
    video_feature(EGO, HEIGHT, WIDTH),
    FeatureSpec("observation.state", "float32", (4,), STATE, {"unit": "rad"}),
    FeatureSpec("observation.orient", "float32", (2, 6), {"hand": SIDES, "entry": tuple("abcdef")}),
    FeatureSpec("observation.joints", "float32", (2, 21, 3), {"hand": SIDES, **JOINTS}),
    FeatureSpec("observation.known", "bool", (2,), SIDES),
    FeatureSpec("observation.ns", "int64", (1,), ("ns",)),
)
#: Tasks and lengths of the episodes that ``write`` makes.
EPISODES = (("wave", 13), ("grasp a cup", 7), ("wave", 5))
MORE = ("let go", 9)


def columns(frames: int, seed: int) -> dict[str, np.ndarray]:
    """Return one episode's columns."""
    random = np.random.default_rng(seed)
    return {
        "observation.state": random.normal(size=(frames, 4)).astype(np.float32),
        "observation.orient": random.normal(size=(frames, 2, 6)).astype(np.float32),
        "observation.joints": random.normal(size=(frames, 2, 21, 3)).astype(np.float32),
        "observation.known": random.random((frames, 2)) > 0.5,
        "observation.ns": 10**18 + np.arange(frames, dtype=np.int64) + 1000 * seed,
    }


def gray(frame: int, seed: int) -> int:
    """Return the grey level of a frame of ``video``."""
    return 20 + (11 * frame + 29 * seed) % 200


def video(
    path: Path,
    frames: int,
    seed: int,
    rate: int = FPS,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    group: int = 4,
) -> Path:
    """Write an mp4 whose frames are plain grey, each another grey; every ``group``-th is a key."""
    images = [np.full((size[1], size[0], 3), gray(k, seed), np.uint8) for k in range(frames)]
    options = {"crf": "10", "bf": "0", "sc_threshold": "0", "g": str(group)}
    return write_video(path, images, fps=rate, options=options)


def add(writer: LeRobotWriter, task: str, frames: int, seed: int) -> int:
    """Add one sample episode."""
    path = video(writer.scratch_video(EGO), frames, seed)
    return writer.add_episode(columns(frames, seed), task, {EGO: path}, {"source": f"{seed}.mp4"})


def write(
    root: Path, episodes: Sequence[tuple[str, int]] = EPISODES, overwrite: bool = False
) -> Path:
    """Write a new dataset; episode k has seed k."""
    with create(root, FPS, FEATURES, ROBOT, overwrite=overwrite) as writer:
        for seed, (task, frames) in enumerate(episodes):
            add(writer, task, frames, seed)
    return root


def append(root: Path) -> Path:
    """Add one episode, ``MORE``, with seed 3."""
    with open_for_append(root, FPS, FEATURES, ROBOT) as writer:
        add(writer, *MORE, seed=3)
    return root


def expected(episodes: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Return what a reader must find: columns end to end, grey levels and tasks per frame."""
    parts = [columns(frames, seed) for seed, (_, frames) in enumerate(episodes)]
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    joined["gray"] = np.array(
        [gray(k, seed) for seed, (_, frames) in enumerate(episodes) for k in range(frames)]
    )
    joined["task"] = np.array([task for task, frames in episodes for _ in range(frames)])
    return joined


def reader_view(root: Path) -> dict[str, np.ndarray]:
    """Return what the reader hands out: the first ``total_frames`` rows, by its own rules."""
    info = json.loads((root / layout.INFO_PATH).read_text())
    tasks = layout.read_tasks(root)
    rows = layout.read_episode_rows(root)[: info["total_episodes"]]
    files = [pq.read_table(path, partitioning=None) for path in layout.parquet_files(root / "data")]
    view = {}
    for key, feature in info["features"].items():
        if feature["dtype"] != "video":
            parts = [layout.column_values(file[key], feature["shape"]) for file in files]
            view[key] = np.concatenate(parts)[: info["total_frames"]]
    for number, row in enumerate(rows):
        assert row["episode_index"] == number
        part = slice(row["dataset_from_index"], row["dataset_to_index"])
        assert (view["episode_index"][part] == number).all()
        assert (root / layout.video_file(row, EGO)).is_file()
    assert len(view["index"]) == info["total_frames"] == rows[-1]["dataset_to_index"]
    view["task"] = np.array([tasks[index] for index in view["task_index"][:, 0]])
    return view


def assert_holds(root: Path, episodes: Sequence[tuple[str, int]], seeds: Sequence[int]) -> None:
    """Check that a reader finds exactly these episodes."""
    view = reader_view(root)
    for key in columns(1, 0):
        wanted = [columns(n, seed)[key] for (_, n), seed in zip(episodes, seeds, strict=True)]
        wanted = np.concatenate(wanted)
        assert np.array_equal(view[key].reshape(wanted.shape), wanted), key
    assert view["task"].tolist() == [task for task, n in episodes for _ in range(n)]


def rows_of(root: Path) -> list[dict]:
    """Return the rows of all episodes."""
    files = sorted(root.glob("meta/episodes/*/*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def check_every_frame(root: Path) -> list[str]:
    """Return the faults of a dataset: also of frames within episodes that do not decode."""
    faults = [str(problem) for problem in check_dataset(root)]
    for path in sorted((root / "videos").rglob("*.mp4")):
        with av.open(str(path)) as container:
            packets = sum(packet.size > 0 for packet in container.demux(video=0))
        with av.open(str(path)) as container:
            decoded = sum(not frame.is_corrupt for frame in container.decode(video=0))
        if decoded != packets:
            faults.append(f"{path}: {decoded} of {packets} frames can be decoded")
    return faults


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file's content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def names_in(folder: Path) -> list[str]:
    """Return the sorted names of what a folder holds, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


def steps_to(step: Callable[[str], None]) -> contextlib.AbstractContextManager[object]:
    """Call ``step`` with a name before everything that touches a dataset's disk."""
    return mock.patch.object(transaction, "step", step)


class FullDisk:
    """A disk that is full at one of the steps it is asked about, once."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, []

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) == self.at + 1:
            raise OSError(errno.ENOSPC, "No space left on device")


def fail_at_each_step(folder: Path, act: Callable[[Path], object], sources: Path) -> list[str]:
    """Run an act on copies of a dataset while the disk is full at each of its steps in turn.

    All but the last one, which removes the old dataset, fail and change nothing.
    """
    steps: list[str] = []
    with steps_to(steps.append):
        act(shutil.copytree(sources, folder / "trial" / "data"))
    shutil.rmtree(folder / "trial")
    for at, name in enumerate(steps):
        root = shutil.copytree(sources, folder / str(at) / "data")
        with steps_to(FullDisk(at)):
            if name == "publish: remove the old dataset":  # the new one stands
                act(root)
            else:
                with pytest.raises(OutputError, match="No space left"):
                    act(root)
                assert snapshot(root) == snapshot(sources), name
                assert names_in(root.parent) == ["data"]
        shutil.rmtree(root.parent)
    return steps


def _killed_at(number: int) -> Callable[[str], None]:
    seen = []

    def step(name: str) -> None:
        seen.append(name)
        if len(seen) == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


WRITING = {
    "create": lambda root: write(root, EPISODES[:1]),
    "append": append,
    "replace": lambda root: write(root, [MORE], overwrite=True),
}


def break_and_repair(root: Path) -> None:
    (root / "data/chunk-000/file-001.parquet").unlink()
    repair(root)


EDITING = {
    "remove": lambda root: edit.remove_episodes(root, [1]),
    "repair": break_and_repair,
}


def die_everywhere(folder: Path, kinds: dict[str, Callable[[Path], object]]) -> None:
    """Kill a process at every step of what it does to a dataset.

    Leaves ``folder/<kind>-<step number>/data`` and a list of [name, step] in ``folder/steps.json``.
    """
    base = folder / "base" / "data"
    _in_child(lambda: write(base))

    def start(name: str, kind: str) -> Path:
        root = folder / name / "data"
        root.parent.mkdir()
        if kind != "create":
            shutil.copytree(base, root)
        return root

    made = []
    for kind, run in kinds.items():
        names: list[str] = []
        trial, listed = start(f"{kind}-trial", kind), folder / "names.json"

        def rehearse(run=run, trial=trial, names=names, listed=listed) -> None:
            with steps_to(names.append):
                run(trial)
            listed.write_text(json.dumps(names))

        _in_child(rehearse)
        shutil.rmtree(trial.parent)
        names = json.loads(listed.read_text())
        # Early steps differ between the kinds only in what they leave behind.
        first = names.index("journal") if kind in ("create", "replace") else 0
        for number, name in list(enumerate(names))[first:]:
            others = name.startswith("write") and name != f"write {layout.INFO_PATH}"
            if kinds is EDITING and others:
                continue  # of files next to the dataset one is like the other
            root = start(f"{kind}-{number}", kind)

            def die(run=run, root=root, at=number) -> None:
                with steps_to(_killed_at(at)):
                    run(root)

            if not _in_child(die):
                raise SystemExit(f"{kind} was not killed at step {number}, {name}")
            made.append([root.parent.name, name])
        listed.unlink()
    (folder / "steps.json").write_text(json.dumps(made))


def _in_child(run: Callable[[], object]) -> bool:
    """Run in a fork, so that no library has started a thread here; return whether it was killed."""
    if os.fork() == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    _, status = os.wait()
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a child failed")
    return os.WIFSIGNALED(status)


def race(folder: Path, tries: int, locks: bool) -> None:
    """Let two processes write ``folder/<try>/data`` at once; print what became of each.

    The second starts at once, or while the first one writes. Each writes a task of its name.
    """
    began = time.monotonic()
    write(folder / "alone" / "data", [MORE])
    takes = time.monotonic() - began
    random = np.random.default_rng(0)
    for number in range(tries):
        root, delay = folder / str(number) / "data", random.uniform(0, takes) * (number % 3 > 0)
        children = {}
        for name, wait in (("first", 0.0), ("second", delay)):
            if (child := os.fork()) == 0:
                time.sleep(wait)
                with mock.patch("acehand_core.atomic.fcntl", fcntl if locks else None):
                    try:
                        write(root, [(name, 9)])
                        os._exit(0)
                    except AcehandError as error:
                        (folder / f"{number}-{name}").write_text(str(error))
                        os._exit(exit_code(error))
            children[child] = name
        ended = [os.wait() for _ in children]
        codes = {children[child]: os.waitstatus_to_exitcode(status) for child, status in ended}
        print(json.dumps(codes))


def append_with_little_room(root: Path, limit: int) -> None:
    """Append while no file may grow beyond ``limit`` bytes; print the error's type and text."""
    import resource

    path = video(root.with_suffix(".mp4"), MORE[1], seed=3)
    sys.dont_write_bytecode = True  # a cut-off .pyc would break every later process
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with open_for_append(root, FPS, FEATURES, ROBOT) as writer:
            writer.add_episode(columns(MORE[1], seed=3), MORE[0], {EGO: path})
    except AcehandError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    if sys.argv[1] == "race":
        race(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
    elif sys.argv[1].startswith("die"):
        die_everywhere(Path(sys.argv[2]), WRITING if sys.argv[1] == "die" else EDITING)
    else:
        append_with_little_room(Path(sys.argv[2]), int(sys.argv[3]))
