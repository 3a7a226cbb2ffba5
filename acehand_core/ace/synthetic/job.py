"""Fills a store with synthetic clips, in parallel processes; finished clips are skipped."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acehand_core.ace.labelled.clips.media import SENSOR_DEPTH
from acehand_core.ace.labelled.clips.schema import ClipInfo, Split, StoreInfo, Supervision, clip_id
from acehand_core.ace.labelled.clips.store import ClipStore, ClipWriter, changed_settings, made_from
from acehand_core.ace.synthetic.episode import VERSION, SynthOptions, make_episode
from acehand_core.ace.synthetic.real_motion import RealMotion, read_real_motion
from acehand_core.ace.synthetic.rendering import objects_of, render_episode, truth_of
from acehand_core.errors import (
    AcehandError,
    InputError,
    MissingDependencyError,
    OutputError,
    SchemaError,
)
from acehand_core.processes import in_processes, thread_count
from acehand_core.settings import check_values, group, setting

DATASET = "synthetic"
_LICENCE = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class SynthJob:
    """A store to make: clips ``first`` to ``first + clips - 1`` of a seed."""

    output: Path = setting(..., "store of clips", metavar="DIR")
    clips: int = setting(..., "number of clips", low=1)
    seed: int = setting(0, "random seed", metavar="S", low=0)
    first: int = setting(0, "index of the first clip", metavar="I", low=0)
    split: Split = setting("train", "subjects and scenes")
    options: SynthOptions = group(SynthOptions)
    motion: Path | None = setting(
        None, "hand motion: a HandMotion table, or an npz of joints_world", metavar="FILE"
    )
    processes: int = setting(1, "worker processes; 0: one per core", low=0)
    overwrite: bool = setting(False, "remove clips made with other settings")

    def __post_init__(self) -> None:
        check_values(self)
        options = self.options
        if options.width % 32 or options.height % 32 or min(options.width, options.height) < 32:
            raise InputError(f"size {options.width}x{options.height}: multiples of 32 are valid.")
        if options.frames < 1 or options.frames % 4 != 1:
            raise InputError(f"{options.frames} frames: valid: 1, 5, 9, ... (4k + 1).")

    def name(self, index: int) -> str:
        return clip_id("synth", self.seed, f"{index:06d}")


@dataclass(frozen=True, slots=True)
class SynthReport:
    """Names of new clips and of skipped ones, and errors by name."""

    written: tuple[str, ...]
    kept: tuple[str, ...]
    errors: dict[str, str]


def run(
    job: SynthJob, progress: Callable[[int, int], None] = lambda done, total: None
) -> SynthReport:
    """Make every missing clip; an interrupted job resumes from the finished ones.

    Raises:
        InputError, SchemaError: unusable motion, a folder of something else, or a store made with
            other settings, unless ``job.overwrite``.
        OutputError: the store cannot be written, or a process was killed.
        MissingDependencyError: no rendering on this machine.
    """
    real = read_real_motion(job.motion) if job.motion else None

    info = _store_info(job, real)
    changed = changed_settings(job.output, info)
    if changed and not job.overwrite:
        raise SchemaError(
            f"{job.output}: holds clips made with other settings ({'; '.join(changed)}); use the "
            "same, another `output`, or `overwrite` to remove them."
        )
    if changed:
        store = ClipStore(job.output)
        ClipWriter(job.output, store.info).remove(store.ids())
    writer = ClipWriter(job.output, info)
    indices = range(job.first, job.first + job.clips)
    done = {i: writer.has(job.name(i), _key(job, i, real)) for i in indices}
    missing, kept = [i for i in done if not done[i]], [job.name(i) for i in done if done[i]]
    progress(len(kept), job.clips)

    written, errors = [], {}
    for index, error in _render_all(job, missing, real):
        if error is None:
            written.append(job.name(index))
        else:
            errors[job.name(index)] = error
        progress(len(kept) + len(written) + len(errors), job.clips)

    writer.write_index()
    return SynthReport(tuple(sorted(written)), tuple(kept), errors)


def make_clip(job: SynthJob, index: int, real: RealMotion | None) -> ClipInfo:
    """Render one clip into the store."""
    episode = make_episode(job.seed, index, job.options, real)
    clip, motion = truth_of(episode)
    drawn = render_episode(episode, clip, motion)

    options, camera = job.options, episode.camera
    info = ClipInfo(
        id=job.name(index),
        dataset=DATASET,
        split=job.split,
        kind="video" if options.frames > 1 else "image",
        frames=options.frames,
        fps=options.fps,
        width=options.width,
        height=options.height,
        camera=camera,
        hand_model="acehand",
        supervision=Supervision(pinhole_fit=camera.model == "pinhole"),
        source={
            "seed": job.seed, "index": index, "story": episode.scenario, "lens": camera.model,
            "head_motion": options.head_motion,
        },
        made_from=_key(job, index, real),
        views=episode.rig,
        depth=episode.depth_camera,
    )  # fmt: skip
    sight = {"joints_seen": drawn.seen, "out_of_sight": drawn.out_of_sight}
    extra: dict[str, Any] = {"sight": sight}

    if drawn.masks is not None:
        extra |= {"masks": {"hands": drawn.masks}, "depth": {"depth": drawn.depth}}
    if drawn.readings is not None:
        extra[SENSOR_DEPTH] = {"millimetres": drawn.readings}
    writer = ClipWriter(job.output, _store_info(job, real))
    objects = objects_of(clip)
    return writer.write(info, motion, drawn.frames, extra, "visual", drawn.views, objects)


def _render_all(
    job: SynthJob, indices: list[int], real: RealMotion | None
) -> Iterator[tuple[int, str | None]]:
    """Yield (index, error or None) of finished clips; OutputError ends everything."""
    attempt = functools.partial(_attempt, job, real=real)
    processes = job.processes or thread_count()
    if processes == 1 or len(indices) < 2:
        return ((index, attempt(index)) for index in indices)
    return in_processes(attempt, indices, processes, job.name, job.output, _one_thread)


def _one_thread() -> None:
    os.environ.setdefault("LP_NUM_THREADS", "1")  # of OpenGL without a GPU


def _attempt(job: SynthJob, index: int, real: RealMotion | None) -> str | None:
    try:
        make_clip(job, index, real)
    except (OutputError, MissingDependencyError):  # the same for all clips
        raise
    except AcehandError as error:
        return str(error)
    return None


def _settings(job: SynthJob, real: RealMotion | None) -> dict[str, Any]:
    return {
        "generator": VERSION,
        "seed": job.seed,
        **job.options.to_json(),
        "motion_sha256": real.sha256 if real else None,
    }


def _key(job: SynthJob, index: int, real: RealMotion | None) -> str:
    return made_from(job.name(index), {**_settings(job, real), "split": job.split})


def _store_info(job: SynthJob, real: RealMotion | None) -> StoreInfo:
    return StoreInfo(DATASET, job.split, "acehand synth", _LICENCE, _settings(job, real))
