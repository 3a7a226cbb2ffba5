"""Time the main job as its user sees it: process start to exit, without and with overlay.

The peers are measured in the same run: one plain MediaPipe pass over the same frames (one thread,
no second look), as the job does that and everything else; and for the overlay, decoding the video
and encoding it in the size of the overlay, with nothing drawn.

``short``: the same for the video's first four seconds in 1920 x 1080, as ratios to its length, or
for ``--short FILE``. ``help_s``: ``acehand --help``. ``minutes``: time and memory of the video
repeated to ``--minutes``, without overlay.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from acehand_core.drawing.contact_sheet import picture_size
from acehand_core.recordings.video import VideoFrames, open_video
from acehand_core.recordings.video_encode import OVERLAY_ENCODING, even_size
from benchmarks import provenance

ROOT = provenance.ROOT
HELP = "import sys; from acehand_core.cli.main import main; sys.exit(main())"


def main() -> int:
    """Run the benchmark; the exit code is the job's."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    default = provenance.shared_folder() / "data" / "human_hand_video.mp4"
    if not default.is_file():
        default = ROOT / "examples" / "two_hands.mp4"
    parser.add_argument("video", nargs="?", type=Path, default=default)
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each; the median counts")
    parser.add_argument("--short", type=Path, help="a short clip of 1920 x 1080 pixels")
    parser.add_argument("--minutes", type=float, nargs="*", default=[], help="of long videos")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # first: the peak is that of all jobs so far
        lengths = sorted(arguments.minutes)
        long = [long_job(arguments.video, Path(folder), minutes) for minutes in lengths]
    plain, plain_cpu, report = timed_job(arguments.video, arguments.runs, "--no-overlay")
    overlay, overlay_cpu, _ = timed_job(arguments.video, arguments.runs, "--overlay")
    peer, frames, seconds = mediapipe_alone(arguments.video)
    encoded = encoded_alone(arguments.video)
    helped = [timed([sys.executable, "-c", HELP, "--help"]) for _ in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        short = arguments.short or repeated(arguments.video, Path(folder), 4.0, (1920, 1080))
        lasts = len(open_video(short)) / open_video(short).fps
        flags = "--no-overlay", "--overlay"
        short_s = [timed_job(short, arguments.runs, flag)[0] for flag in flags]
    result = {
        "input": arguments.video.name,
        "frames": frames,
        "clip_s": round(seconds, 2),
        "no_overlay_s": round(plain, 2),
        "overlay_s": round(overlay, 2),
        "overlay_adds_s": round(overlay - plain, 2),
        "overlay_adds_cpu_s": round(overlay_cpu - plain_cpu, 2),
        "mediapipe_alone_s": round(peer, 2),
        "encoded_alone_s": round(encoded, 2),
        "ratio_to_clip": round(plain / seconds, 3),
        "ratio_to_mediapipe_alone": round(plain / peer, 3),
        "ratio_of_overlay_to_encoded_alone": round((overlay - plain) / encoded, 3),
        "short": {
            "clip_s": round(lasts, 2),
            "ratio_no_overlay": round(short_s[0] / lasts, 2),
            "ratio_overlay": round(short_s[1] / lasts, 2),
        },
        "help_s": round(sorted(helped)[2], 3),
        "minutes": long,
        "episode": {**report["episodes"][0], "source": arguments.video.name},
    }
    provenance.publish(run, result, arguments.output)
    return 0


def timed_job(video: Path, runs: int, *flags: str) -> tuple[float, float, dict]:
    """Return the median wall and CPU times of the command and its last JSON."""
    times, cpu_times, report = [], [], {}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "acehand_core.cli.retarget", str(video), "--robot",
                       "inspire", "--task", "benchmark", "--json", "--quiet", *flags,
                       "--output", str(Path(folder) / "out")]  # fmt: skip
            started, used = time.perf_counter(), cpu_of_children()
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            times.append(time.perf_counter() - started)
            cpu_times.append(cpu_of_children() - used)
            report = json.loads(done.stdout.splitlines()[-1])
    middle = runs // 2
    return sorted(times)[middle], sorted(cpu_times)[middle], report


def timed(command: list[str]) -> float:
    """Return the seconds that a command takes."""
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - started


def repeated(
    video: Path, folder: Path, seconds: float, size: tuple[int, int] | None = None
) -> Path:
    """Return a video of a length, of another one's frames again and again, in a size."""
    source = open_video(video)
    width, height = size or (source.width, source.height)
    path, fps = folder / f"{seconds:g}.mp4", round(source.fps)
    assert isinstance(source.frames, VideoFrames)
    with av.open(path, "w") as container:
        options = {"preset": "ultrafast", "crf": "20"}
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(round(seconds * fps)):
            frame = source.frames.decoded_at(index % len(source))
            sized = frame.reformat(width=width, height=height, format="yuv420p")
            sized.pts, sized.time_base, sized.pict_type = index, Fraction(1, fps), 0
            container.mux(stream.encode(sized))
        container.mux(stream.encode())
    return path


def long_job(video: Path, folder: Path, minutes: float) -> dict[str, float]:
    """Return the time and peak memory of the job on a long video."""
    path = repeated(video, folder, 60 * minutes)
    seconds, cpu_s, _ = timed_job(path, 1, "--no-overlay")
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    per_s = seconds / (60 * minutes)
    return {"minutes": minutes, "ratio_to_clip": per_s, "cpu_s": cpu_s, "peak_mb": peak_mb}


def cpu_of_children() -> float:
    """Return the seconds of CPU time of the programs that were run and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mediapipe_alone(video: Path) -> tuple[float, int, float]:
    """Return the time of one pass of MediaPipe, the number of frames and the clip's length."""
    import mediapipe.python.solutions.hands as hands

    recording = open_video(video)
    assert recording.frames is not None
    with hands.Hands(max_num_hands=2, model_complexity=1) as peer:
        images = recording.frames.read(0, len(recording))
        peer.process(next(images))  # the networks load with the first image
        started = time.perf_counter()
        for image in images:
            peer.process(np.ascontiguousarray(image))
        return time.perf_counter() - started, len(recording), len(recording) / recording.fps


def encoded_alone(video: Path) -> float:
    """Return the time of decoding a video and encoding it in the overlay's size, nothing drawn."""
    recording = open_video(video)
    width, height = picture_size(recording)
    frames, started = recording.frames, time.perf_counter()
    assert isinstance(frames, VideoFrames)
    with tempfile.TemporaryDirectory() as folder, av.open(f"{folder}/alone.mp4", "w") as container:
        options = {"preset": "ultrafast", "crf": str(OVERLAY_ENCODING.crf)}
        stream = container.add_stream("libx264", rate=round(recording.fps), options=options)
        stream.width, stream.height = even_size(2 * width, height)
        stream.pix_fmt, stream.codec_context.gop_size = "yuv420p", OVERLAY_ENCODING.gop
        stream.codec_context.max_b_frames = 0
        for index, frame in enumerate(frames.decode(0, len(recording))):
            sized = frame.reformat(width=stream.width, height=stream.height, format="yuv420p")
            sized.pts, sized.time_base = index, Fraction(1, round(recording.fps))
            sized.pict_type = 0
            container.mux(stream.encode(sized))
        container.mux(stream.encode())
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
