"""Clips per minute of ``acehand synth``: one process, and as many as there are cores.

The peer of many processes is a single one making the same clips in the same run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from acehand_core.ace.synthetic.episode import SynthOptions
from acehand_core.ace.synthetic.job import SynthJob, run
from benchmarks import provenance

CASES = {
    "fast 128x96": SynthOptions(128, 96, frames=81, fast=True),
    "full 640x480": SynthOptions(640, 480, frames=81),
}


def main() -> None:
    """Time both, print one JSON line."""
    started = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=8, help="of each case; full size a quarter")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    provenance.add_output(parser)
    arguments = parser.parse_args()
    result = {
        "benchmark": "synth",
        "frames_per_clip": arguments.frames,
        "processes": arguments.processes,
    }
    for name in arguments.cases:
        options = SynthOptions(
            CASES[name].width, CASES[name].height, arguments.frames, fast=CASES[name].fast
        )
        count = arguments.clips if options.fast else max(2, arguments.clips // 4)
        single = timed(options, count, 1)
        many = timed(options, count, arguments.processes)
        result[name] = {
            "clips": count,
            "clips_per_minute_single": round(60 * count / single, 2),
            "clips_per_minute": round(60 * count / many, 2),
            "ratio_to_single": round(single / many, 2),
            "frames_per_second": round(count * arguments.frames / many, 1),
        }
    provenance.publish(started, result, arguments.output)


def timed(options: SynthOptions, clips: int, processes: int) -> float:
    """Return the seconds that so many clips take, start of the processes included."""
    with tempfile.TemporaryDirectory() as folder:
        job = SynthJob(Path(folder) / "store", clips, 7, options=options, processes=processes)
        started = time.perf_counter()
        report = run(job)
        if report.errors:
            sys.exit(f"failed: {report.errors}")
        return time.perf_counter() - started


if __name__ == "__main__":
    main()
