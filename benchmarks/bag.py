"""Bags: the cost of reading against rosbags alone, and memory of a long bag against a short one.

Time: all pictures of one bag, in order, as the tracker gets them (index, seek, decode), against
rosbags reading and decoding the same messages once; and a whole conversion against that, and
against the main job on a video of the same frames. Memory: the peak of ``acehand bag convert`` with
``--bag-output`` as the system counts it, for one minute and for a longer bag of the same pictures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

from benchmarks import provenance

ROOT = provenance.ROOT
VIDEO = ROOT / "examples" / "two_hands.mp4"
_TOPIC = "/cam/image_raw"
#: Between capture and receipt.
_RECEIPT_NS = 4_000_000
_CHILD = """
import json, resource, sys, time
started = time.perf_counter()
from acehand_core.cli import main, retarget
words = sys.argv[1:]
code = retarget.main(words[1:]) if words[0] == "retarget" else main.main(words)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"code": code, "peak_mb": peak, "seconds": time.perf_counter() - started}))
"""


def main() -> int:
    """Run the benchmark; the exit code is 1 where memory grows beyond the bound."""
    run = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--memory", nargs="*", default=["jpeg:10", "bgr8:2"], metavar="KIND:MINUTES",
        help="long bags whose memory is measured against one minute; none: memory is not measured",
    )  # fmt: skip
    parser.add_argument("--fps", type=int, default=30, help="of the bags whose memory is measured")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480), help="of their pictures")
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each; the median counts")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["reading"] = {
            kind: reading(folder, kind, arguments.runs) for kind in ("bgr8", "jpeg")
        }
        result["converting"] = converting(folder, result["reading"]["bgr8"]["rosbags_s"])
        size = tuple(arguments.size)
        result["memory"] = {
            kind: memory(folder, kind, float(minutes), arguments.fps, size)
            for kind, minutes in (word.split(":") for word in arguments.memory)
        }
    provenance.publish(run, result, arguments.output)
    return 0 if all(one["within_bound"] for one in result["memory"].values()) else 1


def stamps(count: int, fps: float = 30.0) -> list[int]:
    """Return capture times in ns."""
    return [1_700_000_000_123_456_789 + round(i * 1e9 / fps) for i in range(count)]


def write_bag(path: Path, images: list[np.ndarray], times: list[int], kind: str) -> None:
    """Write pictures, repeated until every time has one, as ``bgr8`` or ``jpeg``, in MCAP."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    make = store.types
    name, topic = "sensor_msgs/msg/Image", _TOPIC
    pictures = [np.ascontiguousarray(image[..., ::-1]) for image in images]
    height, width = pictures[0].shape[:2]
    if kind == "jpeg":
        name, topic = "sensor_msgs/msg/CompressedImage", f"{_TOPIC}/compressed"
        pictures = [cv2.imencode(".jpg", picture)[1] for picture in pictures]

    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        connection = bag.add_connection(topic, name, typestore=store)
        for i, ns in enumerate(times):
            # Forwards and backwards, so that hands move without a jump.
            turn = i % (2 * len(pictures) - 2)
            data = pictures[min(turn, 2 * len(pictures) - 2 - turn)].reshape(-1)
            stamp = make["builtin_interfaces/msg/Time"](ns // 10**9, ns % 10**9)
            header = make["std_msgs/msg/Header"](stamp, "cam_optical")
            if kind == "jpeg":
                message = make[name](header, "bgr8; jpeg compressed bgr8", data)
            else:
                message = make[name](header, height, width, "bgr8", 0, 3 * width, data)
            bag.write(connection, ns + _RECEIPT_NS, store.serialize_cdr(message, name))


def source_images() -> list[np.ndarray]:
    """Return the frames of the rendered example."""
    from acehand_core.recordings.video import open_video

    recording = open_video(VIDEO)
    return list(recording.frames.read(0, len(recording)))


def reading(folder: Path, kind: str, runs: int) -> dict[str, float]:
    """Time reading every picture once: rosbags alone, and as a Recording."""
    from acehand_core.recordings.bag import index_bag
    from acehand_core.recordings.bags.records import BagOptions

    path = folder / f"reading_{kind}"
    write_bag(path, source_images(), stamps(300), kind)
    raw, ours = [], []
    for _ in range(runs):
        started = time.perf_counter()
        count = rosbags_alone(path, kind)
        raw.append(time.perf_counter() - started)
        started = time.perf_counter()
        index = index_bag(path, BagOptions())
        read = sum(1 for _ in index.whole.frames.read(0, len(index.whole.frames)))
        ours.append(time.perf_counter() - started)
        assert read == count == 300
    raw_s, ours_s = float(np.median(raw)), float(np.median(ours))
    return {
        "frames": 300,
        "size": [index.whole.width, index.whole.height],
        "rosbags_s": round(raw_s, 3),
        "recording_s": round(ours_s, 3),
        "ratio": round(ours_s / raw_s, 3),
    }


def rosbags_alone(path: Path, kind: str) -> int:
    """Read and decode every picture with rosbags and OpenCV; return how many."""
    from rosbags.highlevel import AnyReader

    count = 0
    with AnyReader([path]) as reader:
        for connection, _, data in reader.messages():
            message = reader.deserialize(data, connection.msgtype)
            if kind == "jpeg":
                bgr = cv2.imdecode(message.data, cv2.IMREAD_COLOR)
            else:
                bgr = message.data.reshape(message.height, message.width, 3)
            cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)
            count += 1
    return count


def converting(folder: Path, raw_s: float) -> dict[str, float]:
    """Time whole conversions of the same frames: from the bag, and from a video."""

    images = source_images()
    path = folder / "convert"
    write_bag(path, images, stamps(len(images)), "bgr8")
    bag = command("bag", "convert", path, "--output", folder / "a",
                  "--bag-output", folder / "out.mcap", "--no-overlay")  # fmt: skip
    plain = command("bag", "convert", path, "--output", folder / "b", "--no-overlay")
    video = command("retarget", VIDEO, "--output", folder / "c", "--no-overlay")
    raw = raw_s * len(images) / 300
    return {
        "frames": len(images),
        "bag_and_bag_output_s": round(bag["seconds"], 2),
        "bag_s": round(plain["seconds"], 2),
        "video_s": round(video["seconds"], 2),
        "ratio_to_video": round(plain["seconds"] / video["seconds"], 3),
        "ratio_to_rosbags_alone": round(plain["seconds"] / raw, 2),
    }


def memory(
    folder: Path, kind: str, minutes: float, fps: int, size: tuple[int, int]
) -> dict[str, object]:
    """Measure the peak memory of converting a bag of one minute and a long one."""

    images = [cv2.resize(image, size) for image in source_images()]
    peaks = {}
    for length in (1.0, minutes):
        path = folder / f"memory_{kind}_{length:g}"
        write_bag(path, images, stamps(round(60 * length * fps), fps), kind)
        peaks[length] = command(
            "bag", "convert", path, "--output", folder / f"{path.name}_set", "--no-overlay",
            "--bag-output", folder / f"{path.name}.mcap",
        )  # fmt: skip
        shutil.rmtree(path)  # a long one takes gigabytes
        (folder / f"{path.name}.mcap").unlink()
    short, long = peaks[1.0]["peak_mb"], peaks[minutes]["peak_mb"]
    bound = 1.1 * short + 50
    return {
        "fps": fps,
        "frames": [round(60 * fps), round(60 * minutes * fps)],
        "minutes": [1.0, minutes],
        "size": list(size),
        "peak_mb": [round(short), round(long)],
        "bound_mb": round(bound),
        "within_bound": bool(long <= bound),
        "seconds": [round(peak["seconds"], 1) for peak in peaks.values()],
    }


def command(*words: object) -> dict[str, float]:
    """Run an acehand command in a process of its own; return time and peak memory."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *map(str, words), "--quiet"],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {"code": -1}
    if answer["code"] != 0:
        raise SystemExit(f"{words}: exit code {answer['code']}\n{done.stderr}")
    return answer


if __name__ == "__main__":
    sys.exit(main())
