"""Record what the commands of README and docs make of small inputs; compare two records.

    python -m tools.command_record run FOLDER [--only WORD ...]
    python -m tools.command_record compare BEFORE AFTER

``run`` makes FOLDER: what each command wrote, and ``commands.json`` with exit codes and what was
printed. ``compare`` names each file or answer that differs and exits with 1 if any does: numbers by
more than 1e-6 (relative, or absolute below 1), pictures and film by more than 2 grey levels,
everything else at all. Times, dates, versions and hashes of source code are left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_typestore

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
GREY_LEVELS = 2
TOLERANCE = 1e-6

KNOWN = "--intrinsics 561.0,561.0,320.0,240.0 --hand-length 0.19"
COMMANDS = f"""
acehand-retarget video.mp4 --robot inspire --task "pour water" {KNOWN} --output my_dataset
acehand-retarget video.mp4 --robot inspire --split auto --output cut
acehand-retarget truth.parquet --robot inspire --task "from truth" --output from_truth
acehand-retarget truth.parquet --robot leap --hands right --method dex-position --output leap
acehand-retarget video.mp4 --dry-run --json
acehand reconstruct video.mp4 --output hands.parquet
acehand reconstruct nothing.mp4 --output nothing.parquet
acehand export truth.parquet commands.csv --robot inspire
acehand export hands.parquet joints.npz
acehand-retarget joints.npz --robot inspire --output from_joints
acehand render my_dataset --episode 0 --output film
acehand render hands.parquet truth.parquet --video video.mp4 --output both
acehand view hands.parquet --output pictures
acehand robots --json
acehand robots check inspire shadow
acehand robots show inspire --output inspire.png
acehand robots init own_robot/hand.xml --output my_robot
acehand camera presets
acehand camera show gopro_wide video.mp4 --output gopro.png
acehand camera convert phone --size 1280x720 --output phone.json
acehand batch run recordings.csv --robot inspire --output kitchen
acehand batch run recordings.csv --output kitchen --status --json
acehand inspect my_dataset --json
acehand dataset info my_dataset --json
acehand dataset info my_dataset --feature observation.state
acehand dataset merge cut my_dataset --output week
acehand dataset check week --json
acehand dataset trim cut --rules trim.yaml --json
acehand dataset filter week --rules rules.yaml --json
acehand dataset info my_dataset --card my_dataset/README.md
acehand bag write my_dataset --output demonstrations.mcap
acehand bag info recording --json
acehand bag convert recording --robot inspire --output from_bag --bag-output again.mcap
acehand synth --clips 2 --seed 1 --fast --cameras pinhole --output small
acehand evaluate --ground-truth small --write-segments list.json
acehand evaluate --tracker mediapipe --ground-truth small --output mp.json
acehand evaluate mp.json --report report
acehand-train experiment=tiny --cfg job
"""

# What differs between two runs of the same command.
VOLATILE = re.compile(
    r"seconds|_s$|date|created|modified|version|commit|command|host|machine|platform|packages|"
    r"elapsed|wall|rate_hz|speed_up|fingerprint|code|pid|mtime|attempt|started|ended|memory|key$|realtime|peak_mb|^files$"
)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
TIMES = re.compile(
    r"\d+(?:\.\d+)? ?(?:s|ms|min|minutes|it/s|frames/s|MB/s)\b|\d{4}-\d\d-\d\dT[\d:.+Z]+"
)


def main() -> int:
    """Record or compare; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    recording = parts.add_parser("run")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", nargs="*", default=[])
    comparing = parts.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()

    if arguments.part == "run":
        record(arguments.folder.resolve(), arguments.only)
        return 0
    differences = list(compare(arguments.before, arguments.after))
    print(*differences, sep="\n", end="\n" if differences else "")
    return int(bool(differences))


def record(folder: Path, only: list[str]) -> None:
    """Run every command (those that hold a word of ``only``) in ``folder``, in order."""
    folder.mkdir(parents=True)
    inputs = {"video.mp4": "two_hands.mp4", "truth.parquet": "two_hands_truth.parquet"}
    for name, example in (inputs | {"own_robot": "own_robot"}).items():
        (folder / name).symlink_to(ROOT / "examples" / example)
    (folder / "recordings.csv").write_text(
        "recording,task,start,duration\nvideo.mp4,pour,0,1\nvideo.mp4,wave,1,1\n"
    )
    (folder / "trim.yaml").write_text("gaps: {seconds: 0.5}\n")
    (folder / "rules.yaml").write_text("verdict: [pass, warn]\nframes: {min: 10}\n")
    _write_bag(folder / "recording", folder / "video.mp4")

    answers = []
    for line in COMMANDS.strip().splitlines():
        if only and not any(word in line for word in only):
            continue
        program, *words = shlex.split(line)
        start = time.perf_counter()
        # A package of another checkout is tried by PYTHONPATH.
        done = subprocess.run(
            [sys.executable, "-P", str(BIN / program), *words],
            cwd=folder,
            capture_output=True,
            text=True,
            env=os.environ | {"COLUMNS": "100"},
        )
        print(f"{done.returncode} {time.perf_counter() - start:6.1f} s  {line}", flush=True)
        answers.append({
            "command": line, "exit": done.returncode, "out": done.stdout,
            "error": done.stderr if done.returncode else "",
        })  # fmt: skip
    (folder / "commands.json").write_text(json.dumps(answers, indent=1))


def _write_bag(folder: Path, video: Path) -> None:
    """Write two seconds of ``video`` as JPEG pictures, with their camera, into a bag."""
    types = get_typestore(Stores.ROS2_JAZZY)
    picture_type = types.types["sensor_msgs/msg/CompressedImage"]
    camera_type = types.types["sensor_msgs/msg/CameraInfo"]
    header, stamp = types.types["std_msgs/msg/Header"], types.types["builtin_interfaces/msg/Time"]
    region = types.types["sensor_msgs/msg/RegionOfInterest"](0, 0, 0, 0, False)
    matrix = np.array([561.0, 0, 320, 0, 561, 240, 0, 0, 1])
    projection = np.insert(matrix, [3, 6, 9], 0.0)

    with Writer(folder, version=9) as bag, av.open(str(video)) as film:
        pictures = bag.add_connection(
            "/camera/compressed", picture_type.__msgtype__, typestore=types
        )
        cameras = bag.add_connection(
            "/camera/camera_info", camera_type.__msgtype__, typestore=types
        )
        for index, frame in enumerate(itertools.islice(film.decode(video=0), 60)):
            ns = 10**18 + index * 10**9 // 30
            head = header(stamp(ns // 10**9, ns % 10**9), "camera")
            jpeg = cv2.imencode(".jpg", frame.to_ndarray(format="bgr24"))[1].ravel()
            camera = camera_type(
                head, frame.height, frame.width, "plumb_bob", np.zeros(5), matrix,
                np.eye(3).ravel(), projection, 0, 0, region,
            )  # fmt: skip
            for connection, message in (
                (pictures, picture_type(head, "jpeg", jpeg)), (cameras, camera),
            ):  # fmt: skip
                data = types.serialize_cdr(message, message.__msgtype__)
                bag.write(connection, ns, data)


def compare(before: Path, after: Path) -> Iterator[str]:
    """Yield a line for each answer and file that two records do not share."""
    old, new = (
        {answer["command"]: answer for answer in json.loads((folder / "commands.json").read_text())}
        for folder in (before, after)
    )
    for command in old.keys() | new.keys():
        if command not in old or command not in new:
            yield f"{command}: only {'before' if command in old else 'after'}"
            continue
        for part in ("exit", "out", "error"):
            contents = [
                _content(str(answer[command][part]).replace(str(folder.resolve()), ""))
                for answer, folder in ((old, before), (new, after))
            ]
            yield from (f"$ {command}: {part}: {text}" for text in _differences(*contents))

    files = [
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
        - {Path("commands.json")}
        for folder in (before, after)
    ]
    for name in sorted(files[0] ^ files[1]):
        yield f"{name}: only {'before' if name in files[0] else 'after'}"
    for name in sorted(files[0] & files[1]):
        one, other = before / name, after / name
        if one.read_bytes() != other.read_bytes():
            yield from (f"{name}: {text}" for text in _differences(_read(one), _read(other)))


def _content(text: str) -> Any:
    """Return JSON as values, anything else as lines without times."""
    try:
        return json.loads(text)
    except ValueError:
        return TIMES.sub("TIME", text).splitlines()


def _read(path: Path) -> Any:
    suffix = path.suffix
    if suffix == ".parquet":
        return pq.read_table(path).to_pydict()
    if suffix in (".png", ".jpg"):
        picture = cv2.imread(str(path))
        return None if picture is None else [picture.astype(np.int16)]
    if suffix == ".mp4":
        with av.open(str(path)) as film:
            return [
                frame.to_ndarray(format="rgb24").astype(np.int16) for frame in film.decode(video=0)
            ]
    if suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name].tolist() for name in arrays.files}
    data = path.read_bytes()
    if suffix == ".csv":
        return list(csv.reader(io.StringIO(data.decode())))
    try:
        return _content(data.decode())
    except UnicodeDecodeError:
        return data


def _differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield where two values differ, the first difference of each list only."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys(), key=str):
            place = f"{where}.{key}"
            if VOLATILE.search(str(key)):
                continue
            if key not in one or key not in other:
                yield f"{place}: only {'before' if key in one else 'after'}"
            else:
                yield from _differences(one[key], other[key], place)
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{where}: {len(one)} became {len(other)} entries"
            return
        for index, pair in enumerate(zip(one, other, strict=True)):
            if first := next(_differences(*pair, f"{where}[{index}]"), None):
                yield first
                return
    elif isinstance(one, np.ndarray):
        off = GREY_LEVELS + 1 if one.shape != other.shape else int(np.abs(one - other).max())
        if off > GREY_LEVELS:
            yield f"{where}: {one.shape} became {other.shape}, {off} or more grey levels"
    elif isinstance(one, str) and isinstance(other, str):
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (one, other)]
        same_words = NUMBER.sub("#", one) == NUMBER.sub("#", other)
        if not same_words or any(map(_apart, *numbers)):
            yield f"{where}: {one[:120]!r} became {other[:120]!r}"
    elif isinstance(one, int | float) and isinstance(other, int | float):
        if _apart(one, other):
            yield f"{where}: {one} became {other}"
    elif one != other:
        yield f"{where}: differs"


def _apart(one: float, other: float) -> bool:
    return not np.isclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


if __name__ == "__main__":
    sys.exit(main())
