"""Repeat the main job while other processes keep every core busy: does a run ever stall?

The other processes only count. The peer is the same job with BLAS kept to one thread from outside
(``OPENBLAS_NUM_THREADS=1``), every run of it next to one of ours.

``--tracks N`` counts instead how many of N short runs of the tracker, each a process with two
workers, have not ended within ``LIMIT_S``; it prints where their threads were.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import provenance
from benchmarks.main_job import ROOT, timed_job

COUNT = "while True: pass"
#: Beyond the tracker's own limit, so that a stalled inference is an error first.
LIMIT_S = 120
TRACK = f"""
import faulthandler, os, sys
faulthandler.dump_traceback_later({LIMIT_S}, file=os.fdopen(os.dup(2), "w"), exit=True)
from acehand_core.cli.main import main
from acehand_core.trackers.mediapipe import redetection
redetection.SEGMENT_FRAMES = 5
sys.exit(main(["reconstruct", *sys.argv[1:], "--duration", "0.34", "--quiet"]))
"""


def main() -> int:
    """Run the benchmark; 1 if a run hung or took more than 1.5 times the median."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", nargs="?", type=Path, default=ROOT / "examples" / "two_hands.mp4")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--tracks", type=int, metavar="N")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(cores)]
    try:
        measure = short_tracks if arguments.tracks else whole_jobs
        result, fine = measure(arguments.video, arguments.tracks or arguments.runs)
    finally:
        for process in busy:
            process.kill()
    result = {"input": arguments.video.name, "busy_processes": cores, **result}
    provenance.publish(run, result, arguments.output)
    return int(not fine)


def whole_jobs(video: Path, runs: int) -> tuple[dict[str, Any], bool]:
    """Time the main job, and the same of one BLAS thread."""
    times: dict[str, list[float]] = {"ours": [], "bounded": []}
    for _ in range(runs):
        for name, seconds in times.items():
            os.environ.pop("OPENBLAS_NUM_THREADS", None)
            if name == "bounded":
                os.environ["OPENBLAS_NUM_THREADS"] = "1"
            seconds.append(timed_job(video, 1, "--no-overlay")[0])
    ours, bounded = times["ours"], times["bounded"]
    result = {
        "runs": runs,
        "median_s": round(median(ours), 2),
        "slowest_s": round(max(ours), 2),
        "slowest_to_median": round(max(ours) / median(ours), 3),
        "bounded_slowest_to_median": round(max(bounded) / median(bounded), 3),
        "median_to_bounded": round(median(ours) / median(bounded), 3),
    }
    return result, max(ours) <= 1.5 * median(ours)


def short_tracks(video: Path, runs: int) -> tuple[dict[str, Any], bool]:
    """Track ten frames in a new process each time; return how many runs hung or failed."""
    times, hung, failed = [], 0, 0
    for number in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", TRACK, str(video), "--output", f"{folder}/a.parquet"]
            started = time.perf_counter()
            try:
                done = subprocess.run(
                    command, cwd=ROOT, capture_output=True, text=True, timeout=1.2 * LIMIT_S
                )
                stacks, code = done.stderr, done.returncode
            except subprocess.TimeoutExpired:
                stacks, code = "no answer, not even from faulthandler\n", None
            times.append(time.perf_counter() - started)
        if code != 0:
            late = times[-1] >= LIMIT_S
            hung, failed = hung + late, failed + (not late)
            print(f"run {number}: exit code {code}\n{stacks}", file=sys.stderr, flush=True)
    result = {
        "tracks": runs,
        "hung": hung,
        "failed": failed,
        "median_s": round(median(times), 2),
        "slowest_s": round(max(times), 2),
    }
    return result, hung + failed == 0


if __name__ == "__main__":
    sys.exit(main())
