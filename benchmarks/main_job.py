"""Time the main job as its user sees it: process start to exit, without and with overlay.

The peer is one plain MediaPipe pass over the same frames (one thread, no second look), measured in
the same run: the job does that and everything else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import provenance

ROOT = provenance.ROOT


def main() -> int:
    """Run the benchmark; the exit code is the job's."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    default = provenance.shared_folder() / "data" / "human_hand_video.mp4"
    if not default.is_file():
        default = ROOT / "examples" / "two_hands.mp4"
    parser.add_argument("video", nargs="?", type=Path, default=default)
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each; the median counts")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    plain, report = timed_job(arguments.video, arguments.runs, "--no-overlay")
    overlay, _ = timed_job(arguments.video, 1, "--overlay")
    peer, frames, seconds = mediapipe_alone(arguments.video)
    result = {
        "input": arguments.video.name,
        "frames": frames,
        "clip_s": round(seconds, 2),
        "no_overlay_s": round(plain, 2),
        "overlay_adds_s": round(overlay - plain, 2),
        "mediapipe_alone_s": round(peer, 2),
        "ratio_to_clip": round(plain / seconds, 3),
        "ratio_to_mediapipe_alone": round(plain / peer, 3),
        "episode": {**report["episodes"][0], "source": arguments.video.name},
    }
    provenance.publish(run, result, arguments.output)
    return 0


def timed_job(video: Path, runs: int, *flags: str) -> tuple[float, dict]:
    """Return the median wall time of the command and its last JSON."""
    times, report = [], {}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "acehand_core.cli.retarget", str(video), "--robot",
                       "inspire", "--task", "benchmark", "--json", "--quiet", *flags,
                       "--output", str(Path(folder) / "out")]  # fmt: skip
            started = time.perf_counter()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            times.append(time.perf_counter() - started)
            report = json.loads(done.stdout.splitlines()[-1])
    return sorted(times)[len(times) // 2], report


def mediapipe_alone(video: Path) -> tuple[float, int, float]:
    """Return the time of one pass of MediaPipe, the number of frames and the clip's length."""
    from acehand_core.recordings.video import open_video
    from acehand_core.trackers.mediapipe.detector import Detector

    recording = open_video(video)
    assert recording.frames is not None
    with Detector() as detector:
        images = recording.frames.read(0, len(recording))
        detector(next(images), "peer")  # the networks load with the first image
        started = time.perf_counter()
        for image in images:
            detector(image, "peer")
        return time.perf_counter() - started, len(recording), len(recording) / recording.fps


if __name__ == "__main__":
    sys.exit(main())
