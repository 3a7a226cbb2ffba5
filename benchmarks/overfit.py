"""Overfit one batch: every loss term must come down to a tenth, or to what the truth itself scores.

    python -m benchmarks.overfit --draw 11 [STORE]

Without STORE the clips are made first, as by ``acehand synth --fast --size 128x96 --cameras pinhole
--frames 33 --clips 6 --seed 3 --output STORE``.

One JSON line last: first value, last value and the truth's own value of every term, and which
terms pass ``last <= max(0.1 first, 1.05 truth + 1e-3)``. The first value of a term that starts
later (a fit whose guards do not hold yet) is its first above 0, with its step. A term that is 0
throughout was not exercised: it neither passes nor fails. Also how far the ray field ends from the
truth and from its own pinhole.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from acehand_core.ace.model.batch import Readout
from acehand_core.ace.model.camera_fit import guarded_pinhole
from acehand_core.ace.synthetic.episode import SynthOptions
from acehand_core.ace.synthetic.job import SynthJob
from acehand_core.ace.synthetic.job import run as synth
from acehand_core.ace.training.batches import Batch
from acehand_core.ace.training.config import compose
from acehand_core.ace.training.loop import Run
from acehand_core.ace.training.losses import TERMS, counts_of, term_sums
from acehand_core.ace.training.step import MIN_RAY_DEPTH, optimise
from acehand_core.ace.training.targets import Prediction, Targets
from benchmarks import provenance

#: The clips of which two are learned.
CLIPS = SynthOptions(128, 96, frames=33, cameras="pinhole", fast=True)


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


def judged(
    first: dict[str, tuple[int, float]], last: dict[str, float], own: dict[str, float]
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """Return a row per term that was ever above 0, and the names of those that were not.

    Args:
        first: step and value of a term when it was above 0 for the first time.
        last, own: its value at the end, and at the truth.
    """
    rows = {
        name: {
            "first": round(first[name][1], 5), "first_step": first[name][0],
            "last": round(last[name], 5), "truth": round(own[name], 5),
            "passes": last[name] <= max(0.1 * first[name][1], 1.05 * own[name] + 1e-3),
        }
        for name in TERMS if name in first
    }  # fmt: skip
    return rows, [name for name in TERMS if name not in first]


@torch.no_grad()
def field(run: Run, batch: Batch) -> dict[str, object]:
    """Return how far the ray field is from the truth and from its fitted pinhole, per clip."""
    rays = run.bare.model(batch.clips).rays
    rays = torch.cat([rays[:, :2], rays[:, 2:].clamp(min=MIN_RAY_DEPTH)], 1)
    fit = guarded_pinhole(rays, run.config.solver.fit_guards)
    cosine = torch.cosine_similarity(rays, batch.targets.rays, dim=1)
    angle = torch.rad2deg(torch.acos(cosine.clamp(-1, 1))).flatten(1)
    return {
        "mean_degrees": [round(v, 2) for v in angle.mean(1).tolist()],
        "median_degrees": [round(v, 2) for v in angle.median(1).values.tolist()],
        "misfit_degrees": [round(v, 2) for v in torch.rad2deg(fit.misfit).tolist()],
        "placed_by_fit": fit.valid.tolist(),
    }


def main() -> int:
    """Run the benchmark; exit code 1 where a term that has a weight does not pass or is idle."""
    begun = provenance.start(__file__)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path, nargs="?")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--draw", type=int, default=0, help="number of the batch")
    parser.add_argument("--clips", type=int, default=2)
    parser.add_argument("--latents", type=int, default=3, help="of each clip, 4 frames each")
    parser.add_argument("--rate", type=float, default=0.0015)
    parser.add_argument("--kfree", action="store_true")
    parser.add_argument("overrides", nargs="*", help="more settings, as acehand-train has them")
    provenance.add_output(parser)
    arguments = parser.parse_args()
    more = ["model.variant=kfree", "solver=fitted", "losses.fit=5.0", "losses.fit_warmup_steps=50"]
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or Path(folder) / "store"
        if arguments.store is None:
            synth(SynthJob(store, clips=6, seed=3, options=CLIPS))
        config = compose([
            "experiment=smoke", f"data.sources.synthetic.root={store.resolve()}",
            f"run={folder}/run", f"optim.steps={arguments.steps}",
            f"optim.warmup_steps={min(20, arguments.steps)}", f"optim.lr_decoder={arguments.rate}",
            "optim.weight_decay=0.0", f"data.window.latents={arguments.latents}",
            *(more if arguments.kfree else []), *arguments.overrides,
        ])  # fmt: skip
        run = Run(config, lambda *_: None)
        batch = run.reader.read(run.plan.mixture.draw(arguments.draw, 0, arguments.clips))
        first: dict[str, tuple[int, float]] = {}
        losses, last, started = [], None, time.perf_counter()
        for step in range(arguments.steps):
            last = optimise(run.accelerator, run.model, run.optimizer, [batch], config.losses,
                            config.optim, step, 0)  # fmt: skip
            losses.append(last.loss)
            first = {n: (step, v) for n, v in last.terms.items() if v > 0} | first
            if step % 100 == 0:
                sys.stderr.write(
                    f"{step} {last.loss:.4f} {last.terms['img_anchors']:.4f} "
                    f"{last.terms['fit']:.4f}\n"
                )
        seen = field(run, batch)
    assert last is not None
    targets = batch.targets
    counts = counts_of(targets)
    own = {n: float(v / counts[n].clamp(min=1)) for n, v in
           term_sums(truth(targets), targets).items()}  # fmt: skip
    rows, idle = judged(first, last.terms, own)
    failed = [n for n, r in rows.items() if not r["passes"]]
    missing = [n for n in idle if config.losses.of(n, arguments.steps) > 0]
    hidden = targets.hand & (targets.visible == 0)
    result = {
        "benchmark": "overfit", "steps": arguments.steps, "rate": arguments.rate,
        "seconds": round(time.perf_counter() - started, 1),
        "clips": [f"{s.clip}@{s.start}" for s in batch.samples],
        "frames": targets.hand.shape[1], "pixels": targets.camera.size[0].tolist(),
        "out_of_sight": round(float(hidden.sum() / targets.hand.sum()), 3),
        "loss": [losses[0], last.loss], "failed": failed, "not_exercised": idle, "ray_field": seen,
        "terms": rows,
    }  # fmt: skip
    provenance.publish(begun, result, arguments.output)
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
