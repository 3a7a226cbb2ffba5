"""Overfit one batch: every loss term must come down to a tenth, or to what the truth itself scores.

    python benchmarks/overfit.py STORE [steps] [kfree]

One JSON line last: first value, last value and the truth's own value of every term, and which terms
pass ``last <= max(0.1 first, 1.05 truth + 1e-3)``.
"""

from __future__ import annotations

import json
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


def main() -> None:
    store, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 600
    more = ["model.variant=kfree", "solver=fitted", "losses.fit=5.0", "losses.fit_warmup_steps=50"]
    with tempfile.TemporaryDirectory() as folder:
        config = compose([
            "experiment=smoke", f"data.sources.synthetic.root={Path(store).resolve()}",
            f"run={folder}/run", f"optim.steps={steps}", "optim.warmup_steps=20",
            "optim.lr_decoder=0.003", "optim.weight_decay=0.0",
            *(more if "kfree" in sys.argv else []),
        ])  # fmt: skip
        run = Run(config, lambda *_: None)
        batch = run.reader.read(run.plan.mixture.draw(0, 0, 2))
        first, last, started = None, None, time.perf_counter()
        for step in range(steps):
            last = optimise(run.accelerator, run.model, run.optimizer, [batch], config.losses,
                            config.optim, step, 0)  # fmt: skip
            first = first or last
            if step % 100 == 0:
                sys.stderr.write(f"{step} {last.loss:.4f}\n")
    assert first is not None and last is not None
    counts = Masks.of(batch.targets).counts()
    own = {n: float(v / counts[n].clamp(min=1)) for n, v in
           term_sums(truth(batch.targets), batch.targets).items()}  # fmt: skip
    rows = {
        name: {
            "first": round(first.terms[name], 5), "last": round(last.terms[name], 5),
            "truth": round(own[name], 5),
            "passes": last.terms[name] <= max(0.1 * first.terms[name], 1.05 * own[name] + 1e-3),
        }
        for name in TERMS
    }  # fmt: skip
    sys.stdout.write(json.dumps({
        "benchmark": "overfit", "steps": steps, "seconds": round(time.perf_counter() - started, 1),
        "loss": [first.loss, last.loss], "failed": [n for n, r in rows.items() if not r["passes"]],
        "terms": rows,
    }) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
