"""``acehand data convert`` and ``acehand synth``: stores of clips from datasets, or rendered."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2
import numpy as np

from acehand_core.ace.labelled.clips.schema import Clip
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.cli import console
from acehand_core.drawing.overlay import write_png
from acehand_core.errors import InputError
from acehand_core.hand.skeleton import BONES
from acehand_core.processes import thread_count
from acehand_core.settings import check_values, setting
from acehand_core.types import ImageRgb, Picture

if TYPE_CHECKING:
    from acehand_core.ace.synthetic.job import SynthJob

Split = Literal["train", "val", "test"]

#: Clips, pictures of each, those with the ground truth drawn, and their width (px).
_ROWS, _COLUMNS, _MARKED, _WIDTH = 8, 6, 2, 224
_COLOURS = ((255, 190, 60), (80, 220, 255))  # left, right


@dataclass(frozen=True, slots=True)
class Convert:
    """Convert a dataset in its native layout to stores of clips."""

    name: str = setting(..., "dataset (docs/datasets.md)", metavar="NAME", positional=True)
    root: Path = setting(..., "folder of the dataset", metavar="DIR")
    output: Path = setting(..., "folder for the stores", metavar="DIR")
    split: tuple[Split, ...] = setting((), "splits to convert", default_text="all")
    split_file: Path | None = setting(None, "recordings of each split", metavar="JSON")
    view: str | None = setting(None, "camera or image version", metavar="NAME")
    images: Literal["auto", "keep", "undistort", "none"] = setting(
        "auto", "undistort to a pinhole, keep the lens, or no pictures"
    )
    width: int | None = setting(None, "width to resize to", metavar="PX", low=2)
    quality: Literal["visual", "lossless"] = setting("visual", "of stored video")
    media: Literal["auto", "copy", "reference"] = setting(
        "auto", "copy pictures, or reference the dataset's unchanged videos"
    )
    mano: Path | None = setting(
        None, "folder with MANO_LEFT and MANO_RIGHT", default_text="$ACEHAND_MANO"
    )
    jobs: int = setting(1, "processes", low=1)

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Convert and report."""
        from acehand_core.ace.labelled.readers.base import ReadOptions
        from acehand_core.ace.labelled.readers.convert import RunOptions
        from acehand_core.ace.labelled.readers.pictures import ClipOptions
        from acehand_core.ace.labelled.readers.run import run
        from acehand_core.hand.mano import ENVIRONMENT_VARIABLE, find_mano

        mano = None
        if self.mano is not None or os.environ.get(ENVIRONMENT_VARIABLE):
            mano = find_mano(self.mano)
        else:
            terminal.bars("no MANO files: joints and parameters that need them are missing", 0, 0)
        clips = ClipOptions(self.images, self.width, self.quality, self.media, mano)
        read = ReadOptions(view=self.view)
        options = RunOptions(
            self.root, self.output, self.split, self.split_file, self.jobs, clips, read
        )
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


@dataclass(frozen=True, slots=True)
class Synth:
    """Render clips of hands with ground truth, to train on."""

    clips: int = setting(..., "number of clips")
    output: Path = setting(..., "store of clips", metavar="DIR")
    seed: int = setting(0, "random seed", metavar="S")
    first: int = setting(0, "index of the first clip", metavar="I")
    split: Literal["train", "val", "test", "all"] = setting("train", "subjects and scenes")
    frames: int = setting(121, "of each clip, 4k + 1")
    size: str | None = setting(
        None, "multiples of 32", metavar="WxH", default_text="640x480; 128x96 with `fast`"
    )
    cameras: Literal["mixed", "pinhole", "fisheye"] = setting("mixed", "lenses")
    head_motion: Literal["ordinary", "walking", "looking-back", "bending"] = setting(
        "ordinary", "motion of the head and its camera"
    )
    rig: Literal["none", "stereo", "aria"] = setting("none", "further cameras")
    depth: Literal["none", "aligned", "unaligned"] = setting(
        "none", "a depth camera: registered to the pictures, or 15 mm to the right"
    )
    motion: Path | None = setting(
        None, "hand motion: a HandMotion table, or an npz of joints_world", metavar="FILE"
    )
    real_share: float | None = setting(
        None, "share of clips with `motion`", metavar="P", low=0, high=1, default_text="0.4"
    )
    fast: bool = setting(False, "small clips without masks and depth, simpler light")
    clean: bool = setting(False, "no blur, no noise, even exposure")
    processes: int = setting(0, "worker processes; 0: one per core")
    overwrite: bool = setting(False, "remove clips made with other settings")
    sheet: bool = setting(False, "also write a contact sheet, sheet.png")

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Render and report."""
        from acehand_core.ace.synthetic import job

        work = self._job()
        report = job.run(work, lambda done, total: terminal.bars("clips", done, total))
        sheet = None
        if self.sheet:
            sheet = self.output / "sheet.png"
            write_sheet(ClipStore(self.output), sheet)
        for name, message in report.errors.items():
            console.say(f"error: {name}: {message}")
        console.say(f"{self.output}: {len(report.made)} clips made, {len(report.kept)} kept")
        result: dict[str, Any] = {
            "output": str(self.output),
            "made": list(report.made),
            "kept": list(report.kept),
            "sheet": str(sheet) if sheet else None,
        }
        if report.errors:
            result["errors"] = [{"source": n, "message": m} for n, m in report.errors.items()]
        terminal.print_json(result)
        return console.EXIT_SOME_FAILED if report.errors else console.EXIT_OK

    def _job(self) -> SynthJob:
        from acehand_core.ace.synthetic.episode import SynthOptions
        from acehand_core.ace.synthetic.job import SynthJob

        text = self.size or ("128x96" if self.fast else "640x480")
        size = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
        if size is None:
            raise InputError(f"`size={text!r}`: WxH in pixels, for example 640x480.")
        share = self.real_share
        if share is not None and self.motion is None:
            raise InputError("`real_share` is the share of clips with `motion`; give that too.")
        options = SynthOptions(
            width=int(size[1]),
            height=int(size[2]),
            frames=self.frames,
            cameras=self.cameras,
            real_share=SynthOptions().real_share if share is None else share,
            clean=self.clean,
            fast=self.fast,
            head_motion=self.head_motion,
            rig=self.rig,
            depth=self.depth,
        )
        return SynthJob(
            self.output, self.clips, self.seed, self.first, self.split,
            options, self.motion, self.processes or thread_count(),
            self.overwrite,
        )  # fmt: skip


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
