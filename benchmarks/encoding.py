"""Encoder settings for a dataset's video: time, size, error, and the time to load any frame.

    python -m benchmarks.encoding [VIDEO ...]

The first 120 frames of each video are encoded by presets of x264 as a dataset's are (key frame
every 10, no B-frames, crf 23). ``cpu_ms`` is that of a frame, its decoding included; ``access_ms``
the CPU time to seek and decode one of 40 random frames, as a data loader does. The peer is
``superfast``; ratios are to it.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from acehand_core.recordings.selection import part
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import VideoEncoding, encode_video
from benchmarks import provenance

PRESETS, PEER = ("ultrafast", "superfast", "veryfast"), "superfast"
FRAMES, ACCESSES = 120, 40


def main() -> None:
    """Encode, print one JSON line."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    data = provenance.shared_folder() / "data"
    known = [data / "human_hand_video.mp4", data / "stereo_hand" / "camera0.mp4"]
    default = [path for path in known if path.is_file()]
    default += [provenance.ROOT / "examples" / "two_hands.mp4"]
    parser.add_argument("videos", nargs="*", type=Path, default=default)
    provenance.add_output(parser)
    options = parser.parse_args()
    videos = {}
    for video in options.videos:
        rows = {preset: measured(video, preset) for preset in PRESETS}
        for row in rows.values():
            for name in ("cpu_ms", "megabytes", "access_ms"):
                row[f"ratio_{name}"] = row[name] / rows[PEER][name]
        videos[video.name] = rows
    provenance.publish(run, {"frames": FRAMES, "videos": videos}, options.output)


def measured(video: Path, preset: str) -> dict[str, Any]:
    """Return times, size and error of a preset."""
    recording = open_video(video)
    recording = part(recording, 0, min(FRAMES, len(recording)))
    count, fps, spent = len(recording), round(recording.fps), dict[str, float]()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        spent[name] = 1e3 * (time.process_time() - started)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "encoded.mp4"
        with timed("encode"):
            encode_video(recording, path, fps, VideoEncoding(preset=preset))
        pairs = zip(decoded(video, count), decoded(path, count), strict=True)
        squared = [np.mean((a.astype(float) - b) ** 2) for a, b in pairs]

        with timed("access"), av.open(path) as container:
            stream = container.streams.video[0]
            assert stream.time_base is not None
            for number in np.random.default_rng(0).integers(0, count, ACCESSES).tolist():
                wanted = Fraction(number, fps)
                container.seek(int(wanted / stream.time_base), stream=stream)
                for frame in container.decode(stream):
                    if frame.pts is not None and frame.pts * stream.time_base >= wanted:
                        break
        return {
            "cpu_ms": spent["encode"] / count,
            "megabytes": path.stat().st_size / 1e6,
            "psnr_db": float(10 * np.log10(255**2 / np.mean(squared))),
            "access_ms": spent["access"] / ACCESSES,
        }


def decoded(path: Path, count: int) -> Iterator[np.ndarray]:
    """Yield the brightness of the first frames."""
    with av.open(path) as container:
        for frame in itertools.islice(container.decode(video=0), count):
            yield frame.to_ndarray(format="gray")


if __name__ == "__main__":
    main()
