"""``acehand data convert`` and ``acehand synth``: stores of clips from datasets, or rendered."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from acehand_core.ace.labelled.clips.schema import Clip
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.readers.convert import RunOptions
from acehand_core.ace.synthetic.episode import SynthOptions
from acehand_core.ace.synthetic.job import SynthJob
from acehand_core.cli import console
from acehand_core.drawing.overlay import write_png
from acehand_core.errors import InputError
from acehand_core.hand.skeleton import BONES
from acehand_core.settings import like, pixels, setting
from acehand_core.types import ImageRgb, Picture

#: Clips, pictures of each, those with the ground truth drawn, and their width (px).
_ROWS, _COLUMNS, _MARKED, _WIDTH = 8, 6, 2, 224
_COLOURS = ((255, 190, 60), (80, 220, 255))  # left, right


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertClips(RunOptions):
    """Convert a dataset in its native layout to stores of clips."""

    name: str = setting(..., "dataset (docs/datasets.md)", metavar="NAME", positional=True)

    def run(self, terminal: console.Terminal) -> int:
        """Convert and report."""
        from acehand_core.ace.labelled.readers.run import run
        from acehand_core.hand.mano import ENVIRONMENT_VARIABLE, find_mano

        mano = None
        if self.clips.mano is not None or os.environ.get(ENVIRONMENT_VARIABLE):
            mano = find_mano(self.clips.mano)
        else:
            terminal.bars("no MANO files: joints and parameters that need them are missing", 0, 0)
        options = replace(self, clips=replace(self.clips, mano=mano))
        report = run(self.name, options, terminal.bars).to_json()
        _say_conversion(report)
        terminal.print_json(report)
        if report["errors"] and not report["splits"]:
            return console.EXIT_INPUT
        return console.EXIT_SOME_FAILED if report["errors"] else console.EXIT_OK


def _say_conversion(report: dict[str, Any]) -> None:
    for split, counts in report["splits"].items():
        console.say(
            f"{report['dataset']} {split}: {counts['clips']} clips, {counts['frames']} frames"
        )
        if unlabelled := counts["unlabelled_frames"]:
            console.say(f"{split}: {unlabelled} frames without a label, not trained on or scored")
        if left_out := counts["left_out_frames"]:
            console.say(f"{split}: {left_out} labels without a picture are left out")
    for entry in report["moved"]:
        console.say(
            f"removed from {entry['from']}: {entry['clips']} clips that belong to {entry['to']}"
        )
    for finding in report["findings"][:20]:
        console.say(f"found in {finding['clips']} clips: {finding['text']}")
    if len(report["findings"]) > 20:
        console.say(f"and {len(report['findings']) - 20} further findings; see the clips' source.")
    for error in report["errors"]:
        console.say(f"failed: {error['source']}: {error['message']}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Synth(SynthJob):
    """Render clips of hands with ground truth, to train on."""

    size: tuple[int, int] | None = setting(
        None,
        "multiples of 32",
        metavar="WxH",
        default_text="640x480; 128x96 with `fast`",
        parse=pixels,
    )
    processes: int = like(SynthJob, "processes", 0)
    sheet: bool = setting(False, "also write a contact sheet, sheet.png")

    def run(self, terminal: console.Terminal) -> int:
        """Render and report."""
        from acehand_core.ace.synthetic import job

        if self.motion is None and self.options.real_share != SynthOptions().real_share:
            raise InputError("`real_share` is the share of clips with `motion`; give that too.")
        width, height = self.size or ((128, 96) if self.options.fast else (640, 480))
        work = replace(self, options=replace(self.options, width=width, height=height))
        report = job.run(work, lambda done, total: terminal.bars("clips", done, total))
        sheet = None
        if self.sheet:
            sheet = self.output / "sheet.png"
            write_sheet(ClipStore(self.output), sheet)
        for name, message in report.errors.items():
            console.say(f"error: {name}: {message}")
        console.say(f"{self.output}: {len(report.written)} clips made, {len(report.kept)} kept")
        result: dict[str, Any] = {
            "output": str(self.output),
            "made": list(report.written),
            "kept": list(report.kept),
            "sheet": str(sheet) if sheet else None,
        }
        if report.errors:
            result["errors"] = [{"source": n, "message": m} for n, m in report.errors.items()]
        terminal.print_json(result)
        return console.EXIT_SOME_FAILED if report.errors else console.EXIT_OK


def write_sheet(store: ClipStore, path: Path) -> None:
    """Write a png with one row per clip, spread over the store. Raises InputError, OutputError."""
    names = store.ids()
    if not names:
        raise InputError(f"{store.root}: no clips to show.")
    chosen = [names[i] for i in np.linspace(0, len(names) - 1, min(_ROWS, len(names))).astype(int)]
    write_png(np.concatenate([_row(store.open(name)) for name in chosen]), path)


def _row(clip: Clip) -> Picture:
    if clip.frames is None:
        raise InputError(f"clip {clip.info.id} has no pictures.")
    moments = np.linspace(0, clip.info.frames - 1, _COLUMNS).astype(int)

    cells = []
    for column, frame in enumerate(moments):
        image = clip.frames.at(int(frame))
        scale = _WIDTH / image.shape[1]
        # Small pictures show their pixels.
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        cell = cv2.resize(image, (_WIDTH, round(image.shape[0] * scale)), interpolation=how)
        if column >= _COLUMNS - _MARKED:
            _mark(cell, clip.motion.joints_image[frame], scale)
        cells.append(cell)
    return np.concatenate(cells, axis=1)


def _mark(cell: ImageRgb, joints: np.ndarray, scale: float) -> None:
    """Draw both skeletons into a picture."""
    for slot in (0, 1):
        points = (joints[slot] + 0.5) * scale - 0.5
        for a, b in BONES:
            if np.isfinite(points[[a, b]]).all() and np.abs(points[[a, b]]).max() < 1e4:
                ends = [tuple(int(v) for v in np.round(points[k])) for k in (a, b)]
                cv2.line(cell, ends[0], ends[1], _COLOURS[slot], 1, cv2.LINE_AA)
