"""Many recordings at once: how much faster two workers are, and what survives when processes die.

    python -m benchmarks.batch                        200 recordings, one worker and two
    python -m benchmarks.batch --faults 50            40 recordings, and 50 SIGKILLs meanwhile
    python -m benchmarks.batch --faults 50 --engine ray
    python -m benchmarks.batch --cost VIDEO           time, memory and storage of an hour

Recordings are parts of ``examples/two_hands.mp4`` of 15 frames, each with pictures of its own. The
peer is the main job over the same recordings in one process that computes with one thread, and in
two independent ones side by side: what this machine has to gain.

With ``--faults`` processes of the batch are killed at random moments, one in five times the driver,
which is then started again; what is quarantined for that is tried again at the end. Its output is
compared, byte for byte, with that of a batch that nothing happened to. ``--cost`` runs a batch of
one video with the default settings, one worker of one thread, with and without overlays.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from acehand_core import JobSettings, TrackerSettings
from acehand_core.pipeline.batch.engines import EngineName, EngineSettings, LocalEngine
from acehand_core.pipeline.batch.folder import BatchFolder, retry, summary
from acehand_core.pipeline.batch.manifest import read_manifest
from acehand_core.pipeline.batch.run import merge, run_batch
from benchmarks import provenance

EXAMPLE = provenance.ROOT / "examples" / "two_hands.mp4"
FRAMES = 15
#: Marks the processes of one disturbed batch.
MARK = "ACEHAND_BENCHMARK_BATCH"
FLAGS = ("--quality", "fast", "--camera-motion", "off", "--no-overlay")
QUICK = JobSettings(tracking=TrackerSettings(quality="fast", camera_motion="off"), overlay=False)
#: Seconds between two kills.
CALM_S = (0.3, 2.5)
DRIVER_SHARE = 0.2


def make_recordings(folder: Path, count: int) -> None:
    """Write videos of parts of the example, each a little brighter than the one before."""
    folder.mkdir(parents=True)
    with av.open(str(EXAMPLE)) as container:
        stream = container.streams.video[0]
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        rate = round(float(stream.average_rate or 30))
    for number in range(count):
        first = number % (len(pictures) - FRAMES)
        brighter = number // (len(pictures) - FRAMES)
        with av.open(str(folder / f"r{number:04d}.mp4"), "w") as container:
            out = container.add_stream("libx264", rate=rate, options={"crf": "20"})
            out.height, out.width = pictures[0].shape[:2]
            out.pix_fmt = "yuv420p"
            for k, picture in enumerate(pictures[first : first + FRAMES]):
                lit = np.clip(picture.astype(np.int16) + brighter, 0, 255).astype(np.uint8)
                frame = av.VideoFrame.from_ndarray(lit, format="rgb24")
                frame.pts, frame.time_base = k, Fraction(1, rate)
                container.mux(out.encode(frame))
            container.mux(out.encode())


def size_mb(*folders: Path) -> float:
    """Return how much files take, each counted once, whatever its names."""
    stats = {(s := file.stat()).st_ino: s.st_size for folder in folders
             for file in folder.rglob("*") if file.is_file()}  # fmt: skip
    return sum(stats.values()) / 1e6


def tree(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a folder."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


# --- speed -------------------------------------------------------------------------------------


def timed(
    recordings: Path, output: Path, workers: int, settings: JobSettings = QUICK
) -> dict[str, Any]:
    """Run a batch; return its times."""
    settings = replace(settings, output=output)
    entries, folder = read_manifest(recordings, settings), BatchFolder(output)
    engine = EngineSettings(workers=workers)
    started = time.perf_counter()
    results = run_batch(recordings, entries, folder, lambda: LocalEngine(engine))
    wall = time.perf_counter() - started
    started = time.perf_counter()
    merge(folder)
    merged = time.perf_counter() - started
    worked = sum(result.seconds for result in results.values())
    states = Counter(result.state for result in results.values())
    return {
        "workers": workers, "states": dict(states), "wall_s": wall, "worker_s": worked,
        "overhead_ms_per_recording": 1e3 * (wall * workers - worked) / len(entries),
        "merge_s": merged, "merge_ms_per_recording": 1e3 * merged / len(entries),
        "peak_mb": max(result.peak_mb for result in results.values()),
    }  # fmt: skip


def main_jobs(recordings: Path, output: Path, processes: int) -> float:
    """Return the seconds of the main job over all recordings, a share to each process."""
    names = ("ACEHAND_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LP_NUM_THREADS")
    files = sorted(map(str, recordings.iterdir()))
    started = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "acehand_core.cli.retarget", *files[share::processes],
             "--output", f"{output}{share}", *FLAGS, "--quiet"],
            env=os.environ | dict.fromkeys(names, "1"), stderr=subprocess.DEVNULL,
        ) for share in range(processes)
    ]  # fmt: skip
    if any(process.wait() for process in running):
        raise SystemExit("the main job failed")
    return time.perf_counter() - started


def speed(folder: Path, count: int) -> dict[str, Any]:
    """Measure one and two workers, and the main job."""
    make_recordings(folder / "in", count)
    one, two = (main_jobs(folder / "in", folder / f"peer{n}-", n) for n in (1, 2))
    runs = [timed(folder / "in", folder / f"out{workers}", workers) for workers in (1, 2)]
    same = tree(folder / "out1") == tree(folder / "out2")
    return {
        "recordings": count, "frames_each": FRAMES, "runs": runs,
        "main_job_s": one, "two_main_jobs_s": two,
        "speedup_of_two_main_jobs": one / two,
        "speedup_of_two_workers": runs[0]["wall_s"] / runs[1]["wall_s"],
        "one_worker_over_main_job": runs[0]["wall_s"] / one, "same_bytes": same,
    }  # fmt: skip


def cost(folder: Path, video: Path) -> dict[str, Any]:
    """Return what an hour of recordings like this one takes."""
    (folder / "in").mkdir(parents=True)
    shutil.copy(video, folder / "in" / video.name)
    result: dict[str, Any] = {"video": video.name}
    for name, settings in (("plain", JobSettings(overlay=False)), ("overlay", JobSettings())):
        output = folder / name
        ran = timed(folder / "in", output, 1, settings)
        state = BatchFolder(output)
        hours = summary(state)["recorded_seconds"] / 3600
        result["recorded_s"] = 3600 * hours
        result[name] = {
            "core_hours_per_hour": ran["worker_s"] / 3600 / hours,
            "peak_mb": ran["peak_mb"],
            "dataset_gb_per_hour": size_mb(output) / 1e3 / hours,
            "batch_folder_beyond_it_gb_per_hour":
                (size_mb(output, state.root) - size_mb(output)) / 1e3 / hours,
            "files_per_recording": sum(path.is_file() for path in output.rglob("*")),
        }  # fmt: skip
    return result


# --- faults ------------------------------------------------------------------------------------


def processes(mark: str) -> dict[int, str]:
    """Return the command lines of the processes with this mark in their environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = words.decode(errors="replace")
    return found


def disturbed(
    recordings: Path, output: Path, engine: EngineName, faults: int, seed: int
) -> dict[str, Any]:
    """Run a batch while its processes are killed; return what was killed and what was lost."""
    rng, mark = random.Random(seed), uuid.uuid4().hex
    run = [sys.executable, "-m", "acehand_core.cli.main", "batch", "run", str(recordings),
           "--output", str(output), "--workers", "2", "--engine", engine, *FLAGS,
           "--quiet"]  # fmt: skip
    environment = os.environ | {MARK: mark}
    killed: Counter[str] = Counter()
    finished: dict[Path, int] = {}
    redone, starts, retries = 0, 0, 0

    def note_finished() -> None:
        nonlocal redone
        for path in output.with_name(f"{output.name}.batch").glob("recordings/*/convert.json"):
            if '"done"' in path.read_text():
                stamp = path.stat().st_mtime_ns
                redone += finished.setdefault(path, stamp) != stamp

    while True:
        starts += 1
        driver = subprocess.Popen(run, env=environment, stderr=subprocess.DEVNULL)
        while driver.poll() is None and killed.total() < faults:
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(rng.uniform(*CALM_S))
            note_finished()
            there = processes(mark)
            kinds = ("batch.worker", "ray::run_task")
            workers = [p for p, words in there.items() if any(kind in words for kind in kinds)]
            if not workers:
                continue
            if driver.poll() is None and rng.random() < DRIVER_SHARE:
                driver.send_signal(signal.SIGKILL)
                killed["driver"] += 1
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim := rng.choice(workers), signal.SIGKILL)
                    kind = "worker" if "batch.worker" in there[victim] else "ray worker"
                    killed[kind] += 1
        driver.wait()
        note_finished()
        said = summary(BatchFolder(output))
        if "quarantined" in said["states"]:
            retries += said["states"]["quarantined"]
            retry(BatchFolder(output))
        elif driver.returncode == 0:
            break

    return {
        "engine": engine, "kills": dict(killed), "starts_of_driver": starts,
        "quarantined_and_retried": retries, "finished_then_done_again": redone,
        "states": said["states"],
    }  # fmt: skip


def faulty(folder: Path, count: int, engine: EngineName, faults: int, seed: int) -> dict[str, Any]:
    """Compare a disturbed batch with one that nothing happened to."""
    make_recordings(folder / "in", count)
    timed(folder / "in", folder / "calm", 2)
    result = disturbed(folder / "in", folder / "disturbed", engine, faults, seed)
    result["same_bytes"] = tree(folder / "calm") == tree(folder / "disturbed")
    return {"recordings": count, **result}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and publish the result."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recordings", type=int)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--cost", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    provenance.add_output(parser)
    options = parser.parse_args(words)

    folder = Path(tempfile.mkdtemp(prefix="acehand-batch-"))
    try:
        if options.cost:
            result = cost(folder, options.cost)
        elif options.faults:
            count = options.recordings or 40
            result = faulty(folder, count, options.engine, options.faults, options.seed)
        else:
            result = speed(folder, options.recordings or 200)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    provenance.publish(run, result, options.output)


if __name__ == "__main__":
    main()
