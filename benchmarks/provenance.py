"""What every benchmark writes into its result: which code, which command, where and when.

    run = provenance.start(__file__)
    parser = ...; provenance.add_output(parser); options = parser.parse_args()
    ...
    provenance.publish(run, result, options.output)

A benchmark prints its result as one JSON line, the last of standard output; with ``--output FILE``
it also writes it there. NaN becomes null.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
#: Libraries whose version may change a result; those that are installed are written down.
PACKAGES = (
    "accelerate", "av", "dex-retargeting", "diffusers", "mediapipe", "mujoco", "nlopt", "numpy",
    "opencv-python-headless", "pin", "piqp", "pyarrow", "rosbags", "scipy", "torch", "transformers",
)  # fmt: skip
#: What others may do meanwhile for the machine to count as idle, in cores.
IDLE_CORES = 0.1
#: Digits of a float in a result: more than any of them is worth.
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Start:
    """The moment a benchmark started: its file and commit, the load, CPU time spent until then."""

    script: Path
    code: dict[str, Any]
    at: float
    load: float
    busy_s: float | None
    own_s: float


def start(script: str) -> Start:
    """Note the start of a benchmark; call it before anything is measured."""
    load, code = os.getloadavg()[0], commit()  # a branch may move on while it runs
    return Start(Path(script).resolve(), code, time.time(), load, _busy_seconds(), _own_seconds())


def shared_folder() -> Path:
    """Return the folder of reference data: ``ACEHAND_SHARED``, else ``../shared``."""
    return Path(os.environ.get("ACEHAND_SHARED", ROOT.parent / "shared"))


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option that all benchmarks have."""
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the JSON line there as well"
    )


def publish(run: Start, result: dict[str, Any], output: Path | None = None) -> dict[str, Any]:
    """Print a result with its provenance, write it to ``output`` if given, and return it."""
    whole = clean({**result, "provenance": record(run)})
    text = json.dumps(whole, allow_nan=False)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f".{output.name}.partial")
        partial.write_text(text + "\n", "utf-8")
        partial.replace(output)
    print(text)
    return whole


def record(run: Start) -> dict[str, Any]:
    """Return where, when and by what a result was made.

    ``others_cores`` is how many cores other programs kept busy in the mean while the benchmark ran
    (None where the system does not count it); ``idle`` says whether that was next to nothing.
    ``load_at_start`` is the system's load of the minute before, which an earlier benchmark raises.
    """
    wall = time.time() - run.at
    busy, others = _busy_seconds(), None
    if busy is not None and run.busy_s is not None:
        own = _own_seconds() - run.own_s
        others = max(0.0, busy - run.busy_s - own) / max(wall, 1e-3)
    return {
        **run.code,
        "command": command(run.script),
        "date": datetime.fromtimestamp(run.at, UTC).isoformat(timespec="seconds"),
        "seconds": round(wall, 1),
        "python": platform.python_version(),
        "packages": versions(),
        "machine": machine(),
        "load_at_start": round(run.load, 2),
        "others_cores": None if others is None else round(others, 2),
        "idle": None if others is None else others <= IDLE_CORES,
    }


def commit() -> dict[str, Any]:
    """Return the checkout's commit, and whether its files differ from it (results and docs apart).

    Both are None outside of a checkout.
    """
    try:
        head = _ask("git", "-C", str(ROOT), "rev-parse", "HEAD")
        changed = _ask("git", "-C", str(ROOT), "status", "--porcelain", "--", ".",
                       ":(exclude)benchmarks/results", ":(exclude)docs")  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    return {"commit": head, "dirty": bool(changed)}


def command(script: Path) -> str:
    """Return the command line, without what only says where somebody keeps files."""
    module = ".".join(script.relative_to(ROOT).with_suffix("").parts)
    words = ["python", "-m", module, *(_portable(word) for word in sys.argv[1:])]
    return " ".join(word if word.startswith("$") else shlex.quote(word) for word in words)


def _portable(word: str) -> str:
    path = Path(word)
    if not path.is_absolute():
        return word
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    if path.is_relative_to(shared_folder()):
        return f"$ACEHAND_SHARED/{path.relative_to(shared_folder()).as_posix()}"
    return path.name


def versions() -> dict[str, str]:
    """Return the versions of ``PACKAGES`` that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return the class of this machine: processor, usable cores, memory, GPUs."""
    return {
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpu": _gpus(),
    }  # fmt: skip


def clean(value: Any) -> Any:
    """Return plain JSON values: floats rounded to ``DIGITS`` digits, NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return clean(value.tolist()) if hasattr(value, "tolist") else value  # numpy's


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _gpus() -> list[str]:
    try:
        return _ask("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def _ask(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _busy_seconds() -> float | None:
    """CPU time that all programs of the machine have taken since it started; None: not counted."""
    try:
        fields = Path("/proc/stat").read_text("utf-8").splitlines()[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
