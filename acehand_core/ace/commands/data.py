"""``acehand data``: datasets into clips."""

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
    """Turn a dataset in its native layout into stores of clips."""

    name: str = setting(
        ..., "dataset, e.g. arctic (docs/datasets.md)", metavar="NAME", positional=True
    )
    root: Path = setting(..., "the dataset", metavar="DIR")
    output: Path = setting(..., "where stores of clips are written", metavar="DIR")
    split: tuple[Split, ...] = setting((), "which splits", default_text="all")
    split_file: Path | None = setting(
        None, "split to recordings, in place of our own", metavar="JSON"
    )
    view: str | None = setting(None, "camera or picture version", metavar="NAME")
    images: Literal["auto", "keep", "undistort", "none"] = setting(
        "auto", "undistort to a pinhole, keep the lens, or no pictures"
    )
    width: int | None = setting(None, "make pictures this wide", metavar="PX", low=2)
    quality: Literal["visual", "lossless"] = setting("visual", "of stored video")
    media: Literal["auto", "copy", "reference"] = setting(
        "auto",
        "copy pictures, or refer to the dataset's own videos where they are unchanged",
    )
    mano: Path | None = setting(
        None, "folder with MANO_LEFT and MANO_RIGHT", default_text="$ACEHAND_MANO"
    )
    jobs: int = setting(1, "processes", low=1)

    def __post_init__(self) -> None:
        check_values(self)

    def run(self, terminal: console.Terminal) -> int:
        """Convert, and say what came of it."""
        from acehand_core.ace.labelled.readers.base import ReadOptions
        from acehand_core.ace.labelled.readers.pictures import ClipOptions
        from acehand_core.ace.labelled.readers.run import RunOptions, run

        options = RunOptions(
            root=self.root,
            output=self.output,
            splits=self.split,
            split_file=self.split_file,
            jobs=self.jobs,
            clips=ClipOptions(
                images=self.images,
                width=self.width,
                quality=self.quality,
                media=self.media,
                mano=find_named_mano(self.mano),
            ),
            read=ReadOptions(view=self.view),
        )
        if options.clips.mano is None:
            terminal.bars(
                "no MANO files: joints and parameters that need them will be missing", 0, 0
            )
        report = run(self.name, options, terminal.bars).to_json()
        _say(report)
        terminal.print_json(report)
        if report["errors"] and not report["splits"]:
            return console.EXIT_INPUT
        return console.EXIT_SOME_FAILED if report["errors"] else console.EXIT_OK


def find_named_mano(mano: Path | None) -> Path | None:
    """Return the folder of MANO files, None where nobody named one. Raises InputError."""
    from acehand_core.hand.mano import ENVIRONMENT_VARIABLE, find_mano

    if mano is None and not os.environ.get(ENVIRONMENT_VARIABLE):
        return None
    return find_mano(mano)


def _say(report: dict[str, Any]) -> None:
    for split, counts in report["splits"].items():
        console.say(
            f"{report['dataset']} {split}: {counts['clips']} clips, {counts['frames']} frames"
        )
        if counts["unlabelled_frames"]:
            console.say(
                f"{split}: {counts['unlabelled_frames']} frames have no label; they teach nothing "
                "and are not scored"
            )
        if counts["left_out_frames"]:
            console.say(
                f"{split}: {counts['left_out_frames']} frames have a label but no picture and are "
                "left out"
            )
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
