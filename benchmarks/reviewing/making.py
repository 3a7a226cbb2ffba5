"""A batch of one lab in which some recordings went wrong, and the truth of which.

Recordings are healthy if the main job finds each hand in 70 % of the frames or more, and its own
verdict on the clip is not "fail"; others are passed over, as a lab records them again. Then, with
the settings of a user's batch, everything is converted once more, with what went wrong. The
acceptance report is not asked for any of this.
"""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core import JobSettings
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import finger_keypoints
from acehand_core.lerobot import format as layout
from acehand_core.pipeline.batch.engines import EngineSettings, LocalEngine
from acehand_core.pipeline.batch.folder import BatchFolder
from acehand_core.pipeline.batch.manifest import read_manifest
from acehand_core.pipeline.batch.run import merge, run_batch
from benchmarks.reviewing import damages as damaging
from benchmarks.reviewing.damages import DAMAGES, KINDS, Damage, Stored
from benchmarks.reviewing.recordings import (
    CAMERA,
    SUBJECTS,
    Clip,
    clips,
    episode_of,
    read_video,
    record,
    write_video,
)

COVERAGE = 0.7
#: So many are drawn for each that is needed: the tracker loses a hand in some.
SPARE = 1.4
DATASET, TRUTH = "dataset", "truth.json"


def make_batch(
    folder: Path,
    count: int,
    damaged: int,
    seed: int,
    *,
    variant: int | None = None,
    workers: int = 2,
    overlay: bool = True,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Make ``folder/dataset`` of ``count`` episodes and ``folder/truth.json``; return the latter.

    Args:
        folder: also holds the recordings and the batch's own files; what is there is kept.
        damaged: how many went wrong, of each kind in turn.
        variant: which variants of the kinds; None: those of the seed.
    """
    variant = seed if variant is None else variant
    healthy = healthy_clips(folder, count, seed, workers, say)
    rng = np.random.default_rng((seed, variant, 5))
    chosen = sorted(rng.choice(count, damaged, replace=False))
    fates: list[Damage | None] = [None] * count
    for place, damage in zip(rng.permutation(chosen), of_variant(variant, damaged), strict=True):
        fates[place] = damage

    lab = folder / "lab"
    shutil.rmtree(lab, ignore_errors=True)
    lab.mkdir()
    rows = [
        _prepared(folder, lab, clip, fate, np.random.default_rng((seed, variant, clip.index)))
        for clip, fate in zip(healthy, fates, strict=True)
    ]
    output = folder / DATASET
    for old in (output, BatchFolder(output).root):
        shutil.rmtree(old, ignore_errors=True)
    say(f"converting {count} recordings, {damaged} of them damaged")
    settings = JobSettings(output=output, cache=folder / "cache", overlay=overlay)
    datasets = _converted(lab / "manifest.csv", rows, settings, workers)
    for clip, fate, row, dataset in zip(healthy, fates, rows, datasets, strict=True):
        if fate is not None:
            rng = np.random.default_rng((seed, variant, clip.index, 6))
            _spoil(folder, clip, fate, row, dataset, rng)
    merge(BatchFolder(output), overwrite=True)

    truth = {
        "seed": seed, "variant": variant, "camera": asdict(CAMERA),
        "episodes": {str(k): fate.kind if fate else None for k, fate in enumerate(fates)},
        "variants": {str(k): fate.variant for k, fate in enumerate(fates) if fate},
        "recordings": {str(k): clip.name for k, clip in enumerate(healthy)},
    }  # fmt: skip
    (folder / TRUTH).write_text(json.dumps(truth, indent=2) + "\n", "utf-8")
    return truth


def of_variant(variant: int, count: int) -> list[Damage]:
    """Return as many damages, one of each kind in turn; each round has the next variants."""
    chosen = []
    for k in range(count):
        kind = [damage for damage in DAMAGES if damage.kind == KINDS[k % len(KINDS)]]
        chosen.append(kind[(variant + k // len(KINDS)) % len(kind)])
    return chosen


def healthy_clips(
    folder: Path, count: int, seed: int, workers: int, say: Callable[[str], None]
) -> list[Clip]:
    """Record until there are ``count`` healthy recordings, in ``folder/recordings``."""
    source = clips(seed)
    healthy: list[Clip] = []
    passed_over: list[Clip] = []
    wanted = round(count * SPARE)
    while len(healthy) < count:
        more = list(itertools.islice(source, wanted))
        say(f"recording clips {more[0].index} to {more[-1].index}")
        record(more, folder / "recordings", workers)
        rows = [_row(clip, folder / "recordings" / f"{clip.name}.mp4") for clip in more]
        for row in rows:
            del row["subject"]  # each by itself: nothing follows from which are tried together
        name = f"tried_{more[0].index:04d}"
        settings = JobSettings(output=folder / name, cache=folder / "cache", overlay=False)
        datasets = _converted(folder / f"{name}.csv", rows, settings, workers)
        for clip, dataset in zip(more, datasets, strict=True):
            report = layout.read_report(dataset, 0) if dataset.is_dir() else {}
            found = report.get("coverage", {}).values()
            good = found and min(found) >= COVERAGE and report["verdict"] != "fail"
            (healthy if good else passed_over).append(clip)
        wanted = count - len(healthy) + 1
    say(f"{len(passed_over)} of {len(healthy) + len(passed_over)} recordings are not healthy")
    return healthy[:count]


def _row(clip: Clip, recording: Path) -> dict[str, Any]:
    """Return what the manifest says of a healthy recording."""
    row = {"recording": recording, "task": clip.task, "subject": clip.subject,
           "intrinsics": _written(CAMERA), "hand_length": ""}  # fmt: skip
    if clip.subject == SUBJECTS[0]:  # the one who was measured
        betas = episode_of(clip).script.betas[1]
        joints = CapsuleHand().rest_keypoints("right", betas)[[0, *finger_keypoints("middle")]]
        length = np.linalg.norm(np.diff(joints, axis=0), axis=1).sum()
        row["hand_length"] = f"{length:.3f}"
    return row


def _written(camera: Any) -> str:
    return f"{camera.fx},{camera.fy},{camera.cx},{camera.cy}"


def _prepared(
    folder: Path, lab: Path, clip: Clip, fate: Damage | None, rng: np.random.Generator
) -> dict[str, Any]:
    """Put a recording into the lab's folder as it was found there; return its row."""
    healthy, here = folder / "recordings" / f"{clip.name}.mp4", lab / f"{clip.name}.mp4"
    row = _row(clip, here)
    if fate is not None and fate.pictures is not None:
        write_video(fate.pictures(read_video(healthy), rng), here)
    elif fate is not None and fate.late:
        write_video(read_video(healthy)[: -fate.late], here)
    else:
        here.hardlink_to(healthy)
    if fate is not None and fate.camera is not None:
        given = fate.camera(CAMERA)
        row["intrinsics"] = _written(given) if given else ""
    return row


def _spoil(
    folder: Path, clip: Clip, fate: Damage, row: dict[str, Any], dataset: Path,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Do to an episode what happens after the main job."""
    if fate.data is not None:
        stored = Stored(dataset)
        fate.data(stored, rng)
        stored.save()
    if fate.late:
        damaging.show_later(dataset, folder / "recordings" / f"{clip.name}.mp4", fate.late)
    if fate.robot is not None:
        output = folder / f"{clip.name}_{fate.robot}"
        settings = JobSettings(
            output=output, cache=folder / "cache", robot=fate.robot, overlay=False
        )
        manifest = folder / f"{output.name}.csv"
        (other,) = _converted(manifest, [row], settings, workers=1)
        stored = Stored(dataset)
        damaging.give_commands_of(stored, Stored(other))
        stored.save()
        if fate.named:
            damaging.give_records_of(dataset, other)


def _converted(
    manifest: Path, rows: Sequence[dict[str, Any]], settings: JobSettings, workers: int
) -> list[Path]:
    """Run a batch; return the dataset of each recording, of which there is none without hands."""
    with manifest.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0].keys())
        writer.writeheader()
        writer.writerows([{**row, "recording": row["recording"].absolute()} for row in rows])
    entries, batch = read_manifest(manifest, settings), BatchFolder(settings.output)
    engine = EngineSettings(workers=workers)
    results = run_batch(manifest, entries, batch, lambda place: LocalEngine(engine))
    for name, result in results.items():
        if result.state not in ("done", "no_hand"):
            raise SystemExit(f"{name}: {result.state}: {result.reason}")
    return [batch.recording(entry.id) / "dataset" for entry in entries]
