"""Repeat the main job while other processes keep every core busy: does a run ever stall?

The other processes only count. The peer is the same job with BLAS kept to one thread from outside
(``OPENBLAS_NUM_THREADS=1``), every run of it next to one of ours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from benchmarks import provenance
from benchmarks.main_job import ROOT, timed_job

COUNT = "while True: pass"


def main() -> int:
    """Run the benchmark; 1 where the slowest run took more than 1.5 times the median."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("video", nargs="?", type=Path, default=ROOT / "examples" / "two_hands.mp4")
    parser.add_argument("--runs", type=int, default=50)
    provenance.add_output(parser)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    busy = [subprocess.Popen([sys.executable, "-c", COUNT]) for _ in range(cores)]
    times: dict[str, list[float]] = {"ours": [], "bounded": []}
    try:
        for _ in range(arguments.runs):
            for name, seconds in times.items():
                os.environ.pop("OPENBLAS_NUM_THREADS", None)
                if name == "bounded":
                    os.environ["OPENBLAS_NUM_THREADS"] = "1"
                seconds.append(timed_job(arguments.video, 1, "--no-overlay")[0])
    finally:
        for process in busy:
            process.kill()

    ours, bounded = times["ours"], times["bounded"]
    result = {
        "input": arguments.video.name,
        "runs": arguments.runs,
        "busy_processes": cores,
        "median_s": round(median(ours), 2),
        "slowest_s": round(max(ours), 2),
        "slowest_to_median": round(max(ours) / median(ours), 3),
        "bounded_slowest_to_median": round(max(bounded) / median(bounded), 3),
        "median_to_bounded": round(median(ours) / median(bounded), 3),
    }
    provenance.publish(run, result, arguments.output)
    return int(max(ours) > 1.5 * median(ours))


if __name__ == "__main__":
    sys.exit(main())
