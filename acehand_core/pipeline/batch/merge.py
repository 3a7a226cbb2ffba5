"""The recordings that a batch has finished, as one dataset."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError, OutputError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.edit import merge_datasets
from acehand_core.pipeline.batch.folder import BatchFolder, write_json
from acehand_core.recordings.lerobot_video import is_dataset
from acehand_core.types import Progress, no_progress


def merge(
    folder: BatchFolder,
    *,
    per_layout: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> None:
    """Make one dataset of all finished recordings, in the manifest's order.

    Its bytes depend on the recordings and the settings, not on the workers. Videos are hard links
    to those of the batch's folder.

    Args:
        per_layout: one dataset for each size and rate, in folders of the output.
        overwrite: replace a dataset that is there, also one that this batch did not leave so.

    Raises:
        InputError: nothing is finished, or recordings of several sizes or rates do not fit into one
            dataset. OutputError: the output is there and not as the batch left it, or cannot be
            written.
    """
    finished = [
        (row["id"], result.key)
        for row, result in folder.results()
        if result is not None and result.state == "done"
    ]
    if not finished:
        raise InputError(
            f"{folder.output}: no recording is finished, so there is nothing to merge."
        )

    groups: dict[str, list[str]] = defaultdict(list)
    keys = dict(finished)
    for name, _ in finished:
        groups[_layout_of(folder.recording(name) / "dataset")].append(name)
    if len(groups) > 1 and not per_layout:
        kinds = "; ".join(f"{len(names)} of {kind}" for kind, names in groups.items())
        raise InputError(
            f"{folder.output}: the recordings do not fit into one dataset: {kinds}. Run the same "
            "command with --image-size and --fps (hands are not tracked again), or take one "
            "dataset for each: --per-layout."
        )

    if per_layout and is_dataset(folder.output):
        raise OutputError(
            f"{folder.output} is a dataset, so there is no room in it for others; move it away."
        )

    known = layout.read_json(folder.merged) if folder.merged.is_file() else {}
    ours = as_left(folder)
    if ours and per_layout:  # a size that no recording has any more
        for name in known.get("datasets", {}).keys() - {k.replace(" ", "-") for k in groups}:
            shutil.rmtree(folder.output / name, ignore_errors=True)

    for kind, names in groups.items():
        target = folder.output / kind.replace(" ", "-") if per_layout else folder.output
        content = [[name, keys[name]] for name in names]
        before = known.get("datasets", {}).get(target.name)
        if ours and target.exists() and before == content:
            continue
        sources = [folder.recording(name) / "dataset" for name in names]
        merge_datasets(
            sources, target, hard_links=True, overwrite=overwrite or ours, progress=progress
        )
        datasets = {**known.get("datasets", {}), target.name: content}
        known = {"datasets": datasets, "files": _listing(folder.output)}
        write_json(folder.merged, known)


def as_left(folder: BatchFolder) -> bool:
    """Whether the output is as the batch left it, or not there: then it may be replaced."""
    if not folder.output.exists():
        return True
    if not folder.merged.is_file():
        return False
    return bool(layout.read_json(folder.merged)["files"] == _listing(folder.output))


def _listing(root: Path) -> str:
    """Return a hash of the names, sizes and times of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            stat = path.stat()
            name = path.relative_to(root).as_posix()
            digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _layout_of(dataset: Path) -> str:
    """Return what the episodes of a dataset share with those of no other kind, for people."""
    info: dict[str, Any] = layout.read_json(dataset / layout.INFO_PATH)
    videos = layout.video_keys(info["features"])
    sizes = [info["features"][key]["shape"] for key in videos]
    size = " ".join(f"{shape[1]}x{shape[0]}" for shape in sizes) or "no pictures"
    frame = info["features"]["observation.state"].get("info", {}).get("frame", "camera")
    return f"{size} {info['fps']}fps" + ("" if frame == "camera" else f" {frame}")
