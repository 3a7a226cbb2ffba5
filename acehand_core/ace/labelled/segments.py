"""Lists of segments to score: the same frames for every method, named and hashed.

The paper's lists are not published. Here every clip of a store is cut from frame 0 into pieces of
81 frames; a shorter rest is left out. A shorter list is drawn by a seeded hash of the names, so it
does not depend on order, platform or library.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acehand_core.ace.labelled.clips import schema
from acehand_core.ace.labelled.clips.schema import check_name
from acehand_core.atomic import check_free
from acehand_core.errors import InputError, SchemaError
from acehand_core.user_files import read_json, structured, without_header

FORMAT = "acehand.segments"
VERSION = 1
LENGTH = 81


@dataclass(frozen=True, slots=True)
class Segment:
    """Frames ``start`` to ``stop - 1`` of a clip; its prediction is ``<id>.parquet``."""

    id: str
    clip: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SegmentList:
    """Segments of one dataset and split, and the rule that made them."""

    name: str
    dataset: str
    split: str
    length: int
    stride: int
    seed: int
    count_wanted: int | None
    segments: tuple[Segment, ...]
    version: int = VERSION

    def __post_init__(self) -> None:
        check_name(self.name, "segment list")
        if self.length < 1 or self.stride < 1:
            raise SchemaError(f"{self.name}: length and stride must be at least 1.")
        if not self.segments:
            raise SchemaError(f"{self.name}: has no segments.")

        seen: set[str] = set()
        for segment in self.segments:
            check_name(segment.id, "segment")
            if segment.id in seen:
                raise SchemaError(f"{self.name}: the segment {segment.id!r} is listed twice.")
            seen.add(segment.id)
            if segment.start < 0 or segment.stop - segment.start != self.length:
                raise SchemaError(
                    f"{self.name}: segment {segment.id!r} is frames {segment.start} to "
                    f"{segment.stop}; {self.length} frames are needed."
                )

    @property
    def sha256(self) -> str:
        """Hash of all but the name: lists of equal hash score the same frames."""
        text = json.dumps(_content(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return the list's entry in reports."""
        return {
            "name": self.name, "sha256": self.sha256, "count": len(self.segments),
            "split": self.split, "frames": self.length,
        }  # fmt: skip

    def by_id(self) -> dict[str, Segment]:
        """Return the segments by identifier."""
        return {segment.id: segment for segment in self.segments}


def make_segments(
    clips: Sequence[tuple[str, int]],
    name: str,
    dataset: str,
    split: str,
    length: int = LENGTH,
    stride: int | None = None,
    count: int | None = None,
    seed: int = 0,
) -> SegmentList:
    """Cut clips into segments.

    Args:
        clips: name and number of frames of each, in any order.
        stride: frames from one start to the next; default ``length``, no overlap.
        count: how many to draw; None for all.
        seed: of the draw.

    Raises:
        InputError: no clip is long enough, or there are fewer than ``count`` segments.
    """
    stride = length if stride is None else stride
    if length < 1 or stride < 1:
        raise InputError(f"length {length} and stride {stride} must be at least 1.")
    segments = [
        Segment(f"{dataset}--{clip}--{start:06d}", clip, start, start + length)
        for clip, frames in sorted(clips)
        for start in range(0, frames - length + 1, stride)
    ]
    if not segments:
        longest = max((frames for _, frames in clips), default=0)
        raise InputError(
            f"{dataset} {split}: no clip has {length} frames; the longest of {len(clips)} has "
            f"{longest}."
        )

    if count is not None:
        if not 1 <= count <= len(segments):
            raise InputError(
                f"{dataset} {split}: {count} of {len(segments)} segments; valid: 1 to "
                f"{len(segments)}."
            )

        def draw(segment: Segment) -> str:
            text = f"acehand segments {VERSION} {seed} {segment.id}"
            return hashlib.sha256(text.encode()).hexdigest()

        segments = sorted(sorted(segments, key=draw)[:count], key=lambda s: s.id)
    return SegmentList(name, dataset, split, length, stride, seed, count, tuple(segments))


def segment_place(segment: str, dataset: str) -> tuple[str, int]:
    """Return clip and first frame of a segment named by ``make_segments``. Raises InputError."""
    clip, _, first = segment.removeprefix(f"{dataset}--").rpartition("--")
    if not segment.startswith(f"{dataset}--") or not clip or not first.isdecimal():
        raise InputError(
            f"segment {segment!r}: the name does not say which frames of which clip it is; valid: "
            f"{dataset}--CLIP--FIRSTFRAME."
        )
    return clip, int(first)


def write_segments(segments: SegmentList, path: Path, overwrite: bool = False) -> None:
    """Write a list as one JSON file, atomically. Raises OutputError."""
    check_free(path, overwrite)
    content = {"name": segments.name, **_content(segments), "sha256": segments.sha256}
    schema.write_json(path, {"format": FORMAT, **content})


def read_segments(path: Path) -> SegmentList:
    """Read a list and check its hash. Raises InputError, SchemaError."""
    content = without_header(read_json(path), FORMAT, VERSION, str(path))
    stated = content.pop("sha256", None)
    segments = structured(SegmentList, content, path)
    if segments.sha256 != stated:
        raise SchemaError(
            f"{path}: changed since it was written: its content has SHA-256 {segments.sha256}, the "
            f"file states {stated}."
        )
    return segments


def _content(segments: SegmentList) -> dict[str, Any]:
    value = dataclasses.asdict(segments)
    del value["name"]
    return value
