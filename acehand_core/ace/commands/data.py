"""``acehand data``: conversion of datasets to clips."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from acehand_core.cli import console
from acehand_core.settings import check_values, setting

Split = Literal["train", "val", "test"]


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
        _say(report)
        terminal.print_json(report)
        if report["errors"] and not report["splits"]:
            return console.EXIT_INPUT
        return console.EXIT_SOME_FAILED if report["errors"] else console.EXIT_OK


def _say(report: dict[str, Any]) -> None:
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
