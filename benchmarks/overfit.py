"""Overfit one batch: every loss term must come down to a tenth, or to what the truth itself scores.

    acehand synth --fast --size 128x96 --cameras pinhole --frames 33 --clips 6 --seed 3 \\
        --output STORE
    python benchmarks/overfit.py STORE --draw 11

One JSON line last: first value, last value and the truth's own value of every term, and which terms
pass ``last <= max(0.1 first, 1.05 truth + 1e-3)``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import torch

from acehand_core.batch import Readout
from acehand_core.losses.objective import TERMS, Masks, term_sums
from acehand_core.losses.targets import Prediction, Targets
from acehand_core.training.loop import Run
from acehand_core.training.main import compose
from acehand_core.training.step import optimise


def truth(t: Targets) -> Prediction:
    """Return a prediction that says what the targets say."""
    canonical = t.joints - t.translation[..., None, :]
    camera = torch.zeros_like(t.translation)
    readout = Readout(
        t.global_orient, t.hand_pose, t.betas, t.anchors, t.joints - t.joints[..., :1, :],
        t.joints[..., 0, :], camera, t.presence, t.visible, t.rays[:, :, None],
        torch.zeros(len(t.betas), 1),
    )  # fmt: skip
    size, valid = t.camera.size, torch.ones(len(t.betas), dtype=torch.bool)
    return Prediction(readout, canonical, t.translation, t.camera.focal / size,
                      t.camera.centre / size, valid)  # fmt: skip


def main() -> int:
    """Run the benchmark; exit code 1 where a term does not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--draw", type=int, default=0, help="number of the batch")
    parser.add_argument("--clips", type=int, default=2)
    parser.add_argument("--latents", type=int, default=3, help="of each clip, 4 frames each")
    parser.add_argument("--rate", type=float, default=0.0015)
    parser.add_argument("--kfree", action="store_true")
    parser.add_argument("overrides", nargs="*", help="more settings, as acehand-train has them")
    arguments = parser.parse_args()
    more = ["model.variant=kfree", "solver=fitted", "losses.fit=5.0", "losses.fit_warmup_steps=50"]
    with tempfile.TemporaryDirectory() as folder:
        config = compose([
            "experiment=smoke", f"data.sources.synthetic.root={arguments.store.resolve()}",
            f"run={folder}/run", f"optim.steps={arguments.steps}", "optim.warmup_steps=20",
            f"optim.lr_decoder={arguments.rate}", "optim.weight_decay=0.0",
            f"data.window.latents={arguments.latents}",
            *(more if arguments.kfree else []), *arguments.overrides,
        ])  # fmt: skip
        run = Run(config, lambda *_: None)
        batch = run.reader.read(run.plan.mixture.draw(arguments.draw, 0, arguments.clips))
        first, last, started = None, None, time.perf_counter()
        for step in range(arguments.steps):
            last = optimise(run.accelerator, run.model, run.optimizer, [batch], config.losses,
                            config.optim, step, 0)  # fmt: skip
            first = first or last
            if step % 100 == 0:
                sys.stderr.write(f"{step} {last.loss:.4f} {last.terms['img_anchors']:.4f}\n")
    assert first is not None and last is not None
    targets = batch.targets
    counts = Masks.of(targets).counts()
    own = {n: float(v / counts[n].clamp(min=1)) for n, v in
           term_sums(truth(targets), targets).items()}  # fmt: skip
    rows = {
        name: {
            "first": round(first.terms[name], 5), "last": round(last.terms[name], 5),
            "truth": round(own[name], 5),
            "passes": last.terms[name] <= max(0.1 * first.terms[name], 1.05 * own[name] + 1e-3),
        }
        for name in TERMS
    }  # fmt: skip
    failed = [n for n, r in rows.items() if not r["passes"]]
    hidden = targets.hand & (targets.visible == 0)
    sys.stdout.write(json.dumps({
        "benchmark": "overfit", "steps": arguments.steps, "rate": arguments.rate,
        "seconds": round(time.perf_counter() - started, 1),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, no GPU",
        "clips": [f"{s.clip}@{s.start}" for s in batch.samples],
        "frames": targets.hand.shape[1], "pixels": targets.camera.size[0].tolist(),
        "out_of_sight": round(float(hidden.sum() / targets.hand.sum()), 3),
        "loss": [first.loss, last.loss], "failed": failed, "terms": rows,
    }) + "\n")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
