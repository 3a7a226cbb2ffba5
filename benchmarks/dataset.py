"""Datasets: writing episodes against lerobot's own writer, and merging many datasets.

Writing: the same pictures and numbers from memory to a finished dataset on disk, ours and lerobot's
``LeRobotDataset`` (its Python is ``$ACEHAND_LEROBOT_PYTHON``; without it only ours is measured), in
turn; the median of each counts. Both encode h264 with the same preset, crf, distance of key frames
and no B-frames; lerobot in every way it offers: PNG files by one, several threads or processes, all
episodes encoded together, frames encoded as they come. ``as_installed`` is lerobot with its own
codec (SVT-AV1), which is not what we are compared with. A way that fails is named with its error.
Pairs are wall and CPU seconds.

Merging: N datasets of one episode each, milliseconds per episode.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import provenance

ROOT = provenance.ROOT
VIDEO = ROOT / "examples" / "two_hands.mp4"
#: Wall seconds and CPU seconds: the latter are the same however busy the machine is.
Spent = tuple[float, float]
FPS, KEY = 30, "observation.images.ego"
#: Names and lengths of a demonstration's vectors (docs/formats.md), but those of one or two values.
VECTORS = {
    "observation.state": 30, "action": 30, "observation.joints.robot": 24, "action.register": 12,
    "observation.hand.joints_camera": 126, "observation.hand.hand_pose": 180,
    "hand.joint_sigma": 84,
}  # fmt: skip
#: The peer's ways: arguments of ``LeRobotDataset.create``.
MODES: Mapping[str, Mapping[str, Any]] = {
    "png": {},
    "png_4_threads": {"image_writer_threads": 4},
    "png_2_processes": {"image_writer_processes": 2, "image_writer_threads": 2},
    "batch": {"image_writer_threads": 4, "metadata_buffer_size": 1},
    "streaming": {"streaming_encoding": True, "encoder_queue_maxsize": 100_000},
    "as_installed": {"own_codec": False},
}
_PEER = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from lerobot.configs.video import RGBEncoderConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset

folder, root, mode = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
frames, vectors = np.load(folder / "frames.npy"), dict(np.load(folder / "vectors.npz"))
key, fps, episodes = mode.pop("key"), mode.pop("fps"), mode.pop("episodes")
if mode.pop("own_codec", True):
    mode["rgb_encoder"] = RGBEncoderConfig(
        vcodec="h264", crf=23, preset="ultrafast", g=10, extra_options={"bf": 0}
    )
features = {name: {"dtype": "float32", "shape": values.shape[1:], "names": None}
            for name, values in vectors.items()}
axes = ["height", "width", "channels"]
features[key] = {"dtype": "video", "shape": frames.shape[1:], "names": axes}
def spent():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF,
                                                             resource.RUSAGE_CHILDREN))
started, before = time.perf_counter(), spent()
dataset = LeRobotDataset.create("local/x", fps, features, root, "inspire", use_videos=True, **mode)
for _ in range(episodes):
    for k in range(len(frames)):
        dataset.add_frame({key: frames[k], **{n: v[k] for n, v in vectors.items()}, "task": "t"})
    dataset.save_episode()
dataset.finalize()
seconds, cpu_s = time.perf_counter() - started, spent() - before
whole = LeRobotDataset("local/x", root=root)
assert len(whole) == episodes * len(frames), "frames were lost"
import av
for path in root.glob("videos/*/*/*.mp4"):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        counted = sum(1 for packet in container.demux(stream) if packet.size)
        codec = stream.codec_context.name
print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "codec": codec}))
"""


def main() -> int:
    """Run the benchmark; the exit code is 0."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=5, help="that are written")
    parser.add_argument("--frames", type=int, default=150, help="of each")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480), help="of the pictures")
    parser.add_argument("--runs", type=int, default=3, help="of each; the median counts")
    parser.add_argument("--merge", type=int, nargs="*", default=[100, 300, 1000])
    provenance.add_output(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result: dict[str, Any] = {
            "writing": writing(folder, arguments.episodes, arguments.frames,
                               (arguments.size[0], arguments.size[1]), arguments.runs),
            "merging": merging(folder, arguments.merge, arguments.runs),
        }  # fmt: skip
    provenance.publish(run, result, arguments.output)
    return 0


def writing(
    folder: Path, episodes: int, count: int, size: tuple[int, int], runs: int
) -> dict[str, Any]:
    """Time writing the same episodes by ours and by lerobot."""
    frames = source_frames(count, size)
    random = np.random.default_rng(0)
    vectors = {k: random.normal(size=(count, n)).astype("f4") for k, n in VECTORS.items()}
    np.save(folder / "frames.npy", frames)
    np.savez(folder / "vectors.npz", **vectors)

    python = os.environ.get("ACEHAND_LEROBOT_PYTHON")
    ours: list[Spent] = []
    theirs: dict[str, list[Spent]] = {mode: [] for mode in MODES} if python else {}
    megabytes: dict[str, float] = {}
    codecs: dict[str, str] = {}
    failed: dict[str, str] = {}
    for turn in range(runs):
        root = folder / f"ours-{turn}"
        ours.append(write_ours(root, frames, vectors, episodes))
        megabytes["ours"] = size_of(root)
        shutil.rmtree(root)
        for mode, times in theirs.items():
            root = folder / f"{mode}-{turn}"
            together = {"batch_encoding_size": episodes} if mode == "batch" else {}
            said = {**MODES[mode], **together, "key": KEY, "fps": FPS, "episodes": episodes}
            done = subprocess.run(
                [str(python), "-c", _PEER, str(folder), str(root), json.dumps(said)],
                capture_output=True, text=True, check=False,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")},
            )  # fmt: skip
            if done.returncode:
                failed[mode] = done.stderr.strip().splitlines()[-1]
                continue
            answer = json.loads(done.stdout.splitlines()[-1])
            times.append((answer["seconds"], answer["cpu_s"]))
            codecs[mode] = answer["codec"]
            megabytes[mode] = size_of(root)
            shutil.rmtree(root)

    total = episodes * count
    result: dict[str, Any] = {
        "episodes": episodes, "frames_of_each": count, "size": list(size),
        "encoder": "h264, preset ultrafast, crf 23, key frame every 10, no B-frames",
        "ours_frames_per_s": total / median(ours, 0), "ours_s": ours,
        "ours_cpu_ms_per_frame": 1e3 * median(ours, 1) / total,
    }  # fmt: skip
    if theirs:
        result["lerobot"] = version(str(python))
        modes = {
            mode: {
                "mode": mode, "codec": codecs[mode], "megabytes": megabytes[mode], "mode_s": own,
                "frames_per_s": total / median(own, 0),
                "cpu_ms_per_frame": 1e3 * median(own, 1) / total,
            }
            for mode, own in theirs.items() if own
        }  # fmt: skip
        result["lerobot_modes"] = [*modes.values()]
        result["lerobot_failed"] = [{"mode": m, "error": text} for m, text in failed.items()]
        peers = [mode for mode in modes if mode != "as_installed"]
        best = max(peers, key=lambda mode: modes[mode]["frames_per_s"])
        result["lerobot_best_mode"] = best
        rate, cpu = result["ours_frames_per_s"], result["ours_cpu_ms_per_frame"]
        result["times_faster_than_best"] = rate / modes[best]["frames_per_s"]
        result["times_faster_than_png"] = rate / modes["png"]["frames_per_s"]
        result["cpu_of_best_over_ours"] = modes[best]["cpu_ms_per_frame"] / cpu
        result["cpu_of_png_over_ours"] = modes["png"]["cpu_ms_per_frame"] / cpu
    return result | {"ours_megabytes": megabytes["ours"]}


def median(measured: list[Spent], which: int) -> float:
    """Return the median of wall seconds (0) or CPU seconds (1)."""
    return statistics.median(one[which] for one in measured)


def spent(started: Spent = (0.0, 0.0)) -> Spent:
    """Return wall and CPU seconds, of all threads, since a moment that this function gave."""
    return time.perf_counter() - started[0], time.process_time() - started[1]


def source_frames(count: int, size: tuple[int, int]) -> np.ndarray:
    """Return frames (T, H, W, 3) of the rendered example, forwards and backwards."""
    import cv2

    from acehand_core.recordings.video import open_video

    recording = open_video(VIDEO)
    assert recording.frames is not None
    some = [
        cv2.resize(image, size) for image in recording.frames.read(0, min(count, len(recording)))
    ]
    turn = [*range(len(some)), *range(len(some) - 2, 0, -1)]
    return np.stack([some[turn[k % len(turn)]] for k in range(count)])


def write_ours(
    root: Path, frames: np.ndarray, vectors: Mapping[str, np.ndarray], episodes: int
) -> Spent:
    """Write a dataset as the main job does; return wall and CPU seconds."""
    from acehand_core.lerobot.dataset import create
    from acehand_core.lerobot.format import FeatureSpec, video_feature
    from acehand_core.motion import Recording
    from acehand_core.recordings.video_encode import encode_video

    count, height, width, _ = frames.shape
    specs = [FeatureSpec(name, "float32", (size,), [f"v{k}" for k in range(size)])
             for name, size in VECTORS.items()]  # fmt: skip
    stamps = np.round(np.arange(count) * 1e9 / FPS).astype(np.int64)
    recording = Recording(
        source="frames", sha256=None, timestamps_ns=stamps, fps=float(FPS), width=width,
        height=height, frames=Frames(frames), camera=None, T_world_camera=None,
    )  # fmt: skip
    started = spent()
    with create(root, FPS, [*specs, video_feature(KEY, height, width)], "inspire") as writer:
        for _ in range(episodes):
            path = writer.scratch_video(KEY)
            encode_video(recording, path, FPS)
            writer.add_episode(dict(vectors), "t", {KEY: path})
    return spent(started)


class Frames:
    """Pictures in memory as a source of frames."""

    def __init__(self, frames: np.ndarray) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def read(self, start: int, stop: int) -> Any:
        yield from self._frames[start:stop]

    def at(self, index: int) -> np.ndarray:
        picture: np.ndarray = self._frames[index]
        return picture


def merging(folder: Path, counts: list[int], runs: int) -> list[dict[str, Any]]:
    """Time merging N datasets of one episode each."""
    from acehand_core.lerobot.edit import merge_datasets

    frames = source_frames(30, (64, 48))
    random = np.random.default_rng(0)
    vectors = {k: random.normal(size=(30, n)).astype("f4") for k, n in VECTORS.items()}
    write_ours(folder / "one", frames, vectors, 1)
    sources = [folder / "sources" / f"{k:05d}" for k in range(max(counts, default=0))]
    for source in sources:
        shutil.copytree(folder / "one", source)

    times: dict[int, list[Spent]] = {count: [] for count in counts}
    for turn in range(runs):
        for count, own in times.items():
            output = folder / f"merged-{count}-{turn}"
            started = spent()
            merge_datasets(sources[:count], output)
            own.append(spent(started))
            shutil.rmtree(output)
    return [
        {"merged_episodes": count, "merge_s": own,
         "ms_per_episode": 1e3 * median(own, 0) / count,
         "cpu_ms_per_episode": 1e3 * median(own, 1) / count}
        for count, own in times.items()
    ]  # fmt: skip


def size_of(root: Path) -> float:
    """Return megabytes of a folder."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) / 1e6


def version(python: str) -> str:
    """Return which lerobot a Python has."""
    code = "from importlib.metadata import version as v; print(*(n + ' ' + v(n) for n in names))"
    code = "names = ('lerobot', 'av', 'torch'); " + code
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
