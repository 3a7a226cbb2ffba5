"""Make every result again, one benchmark after the other: run it on an idle machine.

    python -m benchmarks.all               # all but the slow ones, about 50 minutes on two cores
    python -m benchmarks.all NAME ...      # these alone
    python -m benchmarks.all --list

Results go to benchmarks/results/NAME.json. One that was made by the same command at this very
commit, by unchanged files, is kept: after an interruption the same command resumes. Each result
says whether the machine was idle while it was made. At the end the numbers of the documentation are
written from the results (documents.py).
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import documents, provenance


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A result: the script that makes it, with arguments, and its minutes on two idle cores.

    ``slow`` ones run only when they are named.
    """

    name: str
    script: str
    minutes: float
    slow: bool = False

    @property
    def result(self) -> Path:
        return provenance.RESULTS / f"{self.name}.json"

    @property
    def command(self) -> str:
        """The whole command line."""
        output = self.result.relative_to(provenance.ROOT).as_posix()
        return f"python -m benchmarks.{self.script} --output {output}"


BENCHMARKS = (
    Benchmark("main_job", "main_job --minutes 2 10", 20, slow=True),
    Benchmark("encoding", "encoding", 0.5),
    Benchmark("busy_machine", "busy_machine", 40, slow=True),
    Benchmark("retarget", "retarget --ablation", 8),
    Benchmark("retarget_hour", "retarget_hour", 1.5),
    Benchmark("solver", "solver", 0.3),
    Benchmark("grasps", "grasps --grasps 40", 25),
    Benchmark("robot_video", "robot_video", 9),
    # Need an environment with DexSuite: see benchmarks/policy.
    Benchmark("dexsuite", "policy.replay --count 20 --tracked 10", 16, slow=True),
    Benchmark(
        "dexsuite_pick_place",
        "policy.replay --task pick_place --count 20 --tracked 0 --paces 1.0 0.8", 5,
        slow=True,
    ),
    Benchmark("dexsuite_policy", "policy.learn --clips 50", 20, slow=True),
    Benchmark("dexsuite_act", "policy.act --clips 50 200", 40, slow=True),
    # Needs an environment with DexJoCo: see benchmarks/policy/dexjoco.py.
    Benchmark("dexjoco", "policy.dexjoco", 21, slow=True),
    Benchmark("gap_filling", "gap_filling", 3),
    Benchmark("fit_guards", "fit_guards", 0.6),
    Benchmark("evaluate", "evaluate", 0.1),
    Benchmark("reconstruct", "reconstruct", 1.5),
    Benchmark("camera_estimate", "camera_estimate", 30, slow=True),
    Benchmark("train_step", "train_step --clips 2", 0.2),
    Benchmark("bag", "bag", 25),
    # Needs an environment with lerobot: see benchmarks/dataset.py.
    Benchmark("dataset", "dataset", 9, slow=True),
    # Its clips are rendered beforehand: see benchmarks/camera_motion.py.
    Benchmark("camera_motion", "camera_motion --clips out/camera_motion", 12, slow=True),
    Benchmark("moving_camera", "moving_camera --clips out/camera_motion", 6, slow=True),
    # Its clips: see benchmarks/tracker.py.
    Benchmark("tracker", "tracker --clips out/tracker --retarget inspire", 10, slow=True),
    Benchmark("photographs", "photographs", 4),
    # Its clips: see benchmarks/agreement.py.
    Benchmark("agreement", "agreement --trials 12 --seed 3 --clips out/stereo", 15, slow=True),
    # Its clips: see benchmarks/rig.py.
    Benchmark("rig", "rig --worse --clips out/rig/stereo", 15, slow=True),
    Benchmark("rig_aria", "rig --clips out/rig/aria", 15, slow=True),
    # Clips of 21 frames: the rate of frames is what counts, and full-size ones take seconds each.
    Benchmark("synth", "synth --clips 8 --frames 21", 1.6),
    Benchmark("overfit", "overfit --draw 11 --steps 1500", 2),
    Benchmark("overfit_kfree", "overfit --draw 11 --kfree --steps 2500", 4),
    Benchmark("batch", "batch", 10),
    Benchmark("batch_faults", "batch --faults 50", 5),
    # Needs Ray, which make test does not install.
    Benchmark("batch_faults_ray", "batch --faults 50 --engine ray", 6, slow=True),
    # A video of one's own.
    Benchmark("batch_cost", "batch --cost VIDEO", 1, slow=True),
    Benchmark("recovery", "recovery --seeds 8", 2),
    # 40 clips are drawn and converted, most of them twice.
    Benchmark("review", "review --clips 30 --seed 2", 20, slow=True),
    # Files of arms may not be passed on; see benchmarks/arms.py.
    Benchmark("arms", "arms --models out/models", 3, slow=True),
    # 184 clips are rendered and six networks trained.
    Benchmark(
        "tiny_study", "tiny_study --steps 1200 --clips 2 --runs out/tiny_study", 75,
        slow=True,
    ),
    # Needs checkouts of public models.
    Benchmark("own_robots", "own_robots", 20, slow=True),
)  # fmt: skip


def main() -> int:
    """Run what is asked for; the exit code is 1 where a benchmark's is not 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    known = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    parser.add_argument("names", nargs="*", metavar="NAME", help="of --list; default all fast ones")
    parser.add_argument("--list", action="store_true", help="say what there is, run nothing")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [known[name] for name in options.names] or [b for b in BENCHMARKS if not b.slow]
    if options.list:
        for benchmark in BENCHMARKS:
            named = "  (only when named)" if benchmark.slow else ""
            print(f"{benchmark.name:<14} {benchmark.minutes:>5} min  {benchmark.command}{named}")
        return 0
    if provenance.commit()["dirty"] is not False:
        print("Not a clean checkout: results will say so, and none is kept.", file=sys.stderr)
    codes = {benchmark.name: run(benchmark) for benchmark in chosen}
    documents.main()
    failed = [name for name, code in codes.items() if code]
    print(f"failed: {', '.join(failed)}" if failed else "all done")
    return 1 if failed else 0


def run(benchmark: Benchmark) -> int:
    """Run one benchmark unless its result is there; return its exit code."""
    if is_current(benchmark):
        print(f"{benchmark.name:<14} kept", flush=True)
        return 0
    started = time.monotonic()
    print(f"{benchmark.name:<14} {benchmark.command}", flush=True)
    done = subprocess.run(
        [sys.executable, *shlex.split(benchmark.command)[1:]], cwd=provenance.ROOT,
        stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    minutes = (time.monotonic() - started) / 60
    print(f"{benchmark.name:<14} exit code {done.returncode}, {minutes:.1f} min", flush=True)
    return done.returncode


def is_current(benchmark: Benchmark) -> bool:
    """Tell whether the result was made by this command, at this commit, by unchanged files."""
    here = provenance.commit()
    if here["dirty"] is not False or not benchmark.result.is_file():
        return False
    made = json.loads(benchmark.result.read_text("utf-8")).get("provenance", {})
    same = all(made.get(key) == here[key] for key in ("commit", "dirty"))
    return same and made.get("command") == benchmark.command


if __name__ == "__main__":
    sys.exit(main())
