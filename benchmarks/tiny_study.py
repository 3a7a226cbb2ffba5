"""The tiny model on synthetic clips: against a constant mean pose, and without temporal attention.

    python -m benchmarks.tiny_study --runs work/runs --steps 1200 --clips 2

Without --train and --val the clips are made first, as by

    acehand synth --clips 160 --seed 1 --frames 97 --fast --cameras pinhole --output RUNS/train
    acehand synth --clips 24 --seed 1001 --frames 81 --fast --cameras pinhole --split val \\
        --output RUNS/val

Every run is ``acehand-train experiment=tiny``; an interrupted study resumes with the same command.
Held-out clips come from other seeds. Scored on frames 0 to 80 of each, per hand and frame, means:

    wrist_aligned_mm   21 joints after moving the predicted wrist onto the true one; in view (a
                       keypoint projects into the picture) and out of sight (none does)
    wrist_mm           distance between predicted and true wrist
    anchors_px         2D keypoints that project into the picture, pixels of the training size
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips.schema import Split
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.synthetic.episode import SynthOptions
from acehand_core.ace.synthetic.job import SynthJob
from acehand_core.ace.synthetic.job import run as synth
from benchmarks import provenance

FRAMES = 81
VARIANTS = {"temporal": (), "frame_only": ("temporal=none",)}
METRICS = (
    "wrist_aligned_mm_in_view", "wrist_aligned_mm_out_of_sight",
    "wrist_mm_in_view", "wrist_mm_out_of_sight", "anchors_px",
)  # fmt: skip


def main() -> None:
    """Train, score, print one JSON line."""
    begun = provenance.start(__file__)
    arguments = parse()
    import torch

    torch.set_num_threads(arguments.threads)
    arguments.train = arguments.train or made(arguments.runs / "train", 160, 1, 97, "train")
    arguments.val = arguments.val or made(arguments.runs / "val", 24, 1001, 81, "val")
    train, val = ClipStore(arguments.train), ClipStore(arguments.val)
    result: dict[str, Any] = {
        "benchmark": "tiny_study", "steps": arguments.steps,
        "clips_per_step": arguments.clips, "train_clips": len(train), "val_clips": len(val),
        "settings": {"train": dict(train.info.settings), "val": dict(val.info.settings)},
        "constant": score_constant(train, val), "runs": [],
    }  # fmt: skip
    for seed in arguments.seeds:
        for name, overrides in VARIANTS.items():
            run = arguments.runs / f"{name}-{arguments.steps}-{seed}"
            started = time.time()
            trained = train_one(run, seed, overrides, arguments)
            scores = score_model(run, trained, val)
            entry = {"variant": name, "seed": seed, "seconds": time.time() - started, **scores}
            result["runs"].append(entry)
            sys.stderr.write(f"{json.dumps(entry)}\n")
    result["summary"] = summary(result["runs"])
    provenance.publish(begun, result, arguments.output)


def parse() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, help="store; default made below --runs")
    parser.add_argument("--val", type=Path, help="the same")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--clips", type=int, default=4, help="per step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    provenance.add_output(parser)
    return parser.parse_args()


def made(folder: Path, clips: int, seed: int, frames: int, split: Split) -> Path:
    """Make a store of small clips, or resume making it."""
    options = SynthOptions(128, 96, frames, cameras="pinhole", fast=True)
    report = synth(SynthJob(folder, clips, seed, split=split, options=options,
                            processes=os.cpu_count() or 1))  # fmt: skip
    if report.errors:
        sys.exit(f"{folder}: {report.errors}")
    return folder


def train_one(
    run: Path, seed: int, overrides: tuple[str, ...], arguments: argparse.Namespace
) -> Any:
    """Train one network, or go on; return its configuration."""
    from acehand_core.ace.training.config import compose
    from acehand_core.ace.training.loop import train

    config = compose(
        [
            "experiment=tiny", *overrides, f"run={run}", f"seed={seed}",
            f"data.sources.synthetic.root={arguments.train}",
            f"validation.sources.synthetic.root={arguments.val}",
            f"optim.steps={arguments.steps}", f"optim.clips_per_process={arguments.clips}",
            f"optim.warmup_steps={max(1, min(200, arguments.steps // 10))}",
            # All networks are compared at the same, last, step.
            f"validation.every={max(1, arguments.steps // 4)}", "validation.windows=8",
            "checkpoints.every=100",
        ]
    )  # fmt: skip

    def progress(stage: str, done: int, total: int) -> None:
        if total and done % 50 == 0:
            sys.stderr.write(f"{run.name}: {stage} {done}/{total}\n")

    train(config, progress)
    return config


def score_model(run: Path, config: Any, val: ClipStore) -> dict[str, float]:
    """Return the metrics of a run's last checkpoint."""
    import torch

    from acehand_core.ace.labelled.clips.windows import Sample
    from acehand_core.ace.training.batches import ClipReader
    from acehand_core.ace.training.loop import Run

    whole = Run(config, lambda stage, done, total: None)  # resumes at the last step
    assert whole.step == config.optim.steps, f"{run}: at step {whole.step}"
    model = whole.bare.eval()
    reader = ClipReader({"synthetic": val}, "tiny", whole.bare.hands)
    tally = Tally()
    for name, info in val.infos().items():
        sample = Sample("synthetic", name, 0, FRAMES, (info.width, info.height))
        batch = reader.read([sample])
        with torch.no_grad():
            said = model.predict(batch.clips, batch.targets)
        joints = (said.joints + said.translation[..., None, :])[0].double().numpy()
        size = np.array([info.width, info.height])
        anchors = said.readout.anchors[0].double().numpy() * size
        tally.add(val, name, joints, anchors)
    return tally.means()


def score_constant(train: ClipStore, val: ClipStore) -> dict[str, float]:
    """Return the metrics of the training clips' mean hand, the same in every frame."""
    joints, anchors = [], []
    for name in train.ids():
        motion = train.hands(name)
        known = motion.presence > 0
        joints.append(np.where(known[..., None, None], motion.joints_camera, np.nan))
        inside = train.info_of(name).camera.contains(motion.joints_image)
        anchors.append(np.where(inside[..., None], motion.joints_image, np.nan))
    everything = np.concatenate(joints)
    wrist = everything[:, :, :1]
    # Poses and places are averaged apart: joints about the wrist, and the wrist.
    mean = np.nanmean(everything - wrist, axis=0) + np.nanmean(wrist, axis=0)
    mean_anchors = np.nanmean(np.concatenate(anchors), axis=0)
    tally = Tally()
    for name in val.ids():
        tally.add(
            val, name, np.tile(mean, (FRAMES, 1, 1, 1)), np.tile(mean_anchors, (FRAMES, 1, 1, 1))
        )
    return tally.means()


class Tally:
    """Errors of single hands in single frames, pooled."""

    def __init__(self) -> None:
        self.errors: dict[str, list[np.ndarray]] = {name: [] for name in METRICS}

    def add(self, store: ClipStore, name: str, joints: np.ndarray, anchors: np.ndarray) -> None:
        """Compare a clip's (81, 2, 21, 3) joints and (81, 2, 21, 2) pixels with the truth."""
        motion = store.hands(name)
        true, pixels = motion.joints_camera[:FRAMES], motion.joints_image[:FRAMES]
        present, visible = motion.presence[:FRAMES] > 0, motion.visible[:FRAMES] > 0
        aligned = (joints - joints[:, :, :1]) - (true - true[:, :, :1])
        pose = 1e3 * np.linalg.norm(aligned, axis=-1).mean(-1)
        place = 1e3 * np.linalg.norm(joints[:, :, 0] - true[:, :, 0], axis=-1)
        for where, rows in (("in_view", present & visible), ("out_of_sight", present & ~visible)):
            self.errors[f"wrist_aligned_mm_{where}"].append(pose[rows])
            self.errors[f"wrist_mm_{where}"].append(place[rows])
        camera = store.info_of(name).camera
        inside = camera.contains(pixels) & present[..., None]
        self.errors["anchors_px"].append(np.linalg.norm(anchors - pixels, axis=-1)[inside])

    def means(self) -> dict[str, float]:
        """Return the means, and how many hands in frames they are over."""
        pooled = {name: np.concatenate(parts) for name, parts in self.errors.items()}
        out = {name: float(values.mean()) for name, values in pooled.items() if len(values)}
        out["hands_in_view"] = len(pooled["wrist_mm_in_view"])
        out["hands_out_of_sight"] = len(pooled["wrist_mm_out_of_sight"])
        return out


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and spread (largest minus smallest) over seeds of every variant."""
    out = {}
    for name in VARIANTS:
        mine = [run for run in runs if run["variant"] == name]
        if mine:
            values = {metric: [run[metric] for run in mine if metric in run] for metric in METRICS}
            out[name] = {
                metric: {"mean": float(np.mean(v)), "spread": float(np.ptp(v)), "seeds": len(v)}
                for metric, v in values.items()
                if v
            }
    return out


if __name__ == "__main__":
    main()
