"""Fixed lists of segments to score: the same frames for everyone, named and hashed.

The lists of the paper are not published. These are made from a store of clips by rule: pieces of
81 frames one after the other from frame 0 of every clip, a shorter rest left out. A list of fewer
than all is drawn by a seeded hash of the names, so it does not depend on order, platform or
library.
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
from acehand_core.ace.labelled.clips.schema import check_name, known_fields
from acehand_core.errors import InputError, OutputError, SchemaError

FORMAT = "acehand.segments"
VERSION = 1
LENGTH = 81


@dataclass(frozen=True, slots=True)
class Segment:
    """Frames ``start`` to ``stop - 1`` of a clip.

    ``id`` is a safe file name: the prediction of the segment is ``<id>.parquet``.
    """

    id: str
    clip: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SegmentList:
    """Segments of one dataset and split, and the rule that made them.

    ``sha256`` is the hash of everything but the list's name: lists of equal hash score the same
    frames.
    """

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
        if self.version != VERSION:
            raise SchemaError(f"{self.name}: version {self.version} of lists; {VERSION} is valid.")
        if self.length < 1 or self.stride < 1:
            raise SchemaError(f"{self.name}: length and stride must be at least 1.")

        seen: set[str] = set()
        for segment in self.segments:
            check_name(segment.id, "segment")
            if segment.id in seen:
                raise SchemaError(f"{self.name}: the segment {segment.id!r} is there twice.")
            seen.add(segment.id)
            if segment.start < 0 or segment.stop - segment.start != self.length:
                raise SchemaError(
                    f"{self.name}: segment {segment.id!r} is frames {segment.start} to "
                    f"{segment.stop}; {self.length} frames are needed."
                )

    @property
    def sha256(self) -> str:
        """The hash of the list's content."""
        text = json.dumps(_content(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """Return what every report says about the list."""
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
        clips: name and number of frames of each; their order does not matter.
        stride: frames from one start to the next; default ``length``, no overlap.
        count: how many to draw; None for all.
        seed: of the draw.

    Raises:
        InputError: no clip is long enough, or there are fewer than ``count``.
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
            raise InputError(f"{dataset} {split}: {count} of {len(segments)} segments asked for.")

        def draw(segment: Segment) -> str:
            text = f"acehand segments {VERSION} {seed} {segment.id}"
            return hashlib.sha256(text.encode()).hexdigest()

        drawn = sorted(segments, key=draw)[:count]
        segments = sorted(drawn, key=lambda s: s.id)
    return SegmentList(name, dataset, split, length, stride, seed, count, tuple(segments))


def segment_place(segment: str, dataset: str) -> tuple[str, int]:
    """Return clip and first frame of a segment that is named as ``make_segments`` names it.

    Raises:
        InputError: it is not.
    """
    clip, _, first = segment.removeprefix(f"{dataset}--").rpartition("--")
    if not segment.startswith(f"{dataset}--") or not clip or not first.isdecimal():
        raise InputError(
            f"segment {segment!r}: the name does not say which frames of which clip it is; valid: "
            f"{dataset}--CLIP--FIRSTFRAME."
        )
    return clip, int(first)


def write_segments(segments: SegmentList, path: Path, overwrite: bool = False) -> None:
    """Write a list as one JSON file, whole or not at all. Raises OutputError."""
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; choose another name or allow overwriting (--overwrite).")
    value = {
        "format": FORMAT,
        "name": segments.name,
        **_content(segments),
        "sha256": segments.sha256,
    }
    schema.write_json(path, value)


def read_segments(path: Path) -> SegmentList:
    """Read a list and check its hash.

    Raises: SchemaError naming file and field; InputError or SchemaError where it cannot be read.
    """
    value = schema.read_json(path)
    names = (*(f.name for f in dataclasses.fields(SegmentList) if f.name != "version"), "sha256")
    fields = known_fields(value, FORMAT, names, str(path))
    stated = fields.pop("sha256", None)

    try:
        fields["segments"] = tuple(Segment(**entry) for entry in fields["segments"])
        segments = SegmentList(**fields)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise SchemaError(f"{path}: not a list of segments: {error}.") from error

    if segments.sha256 != stated:
        raise SchemaError(
            f"{path}: the content has SHA-256 {segments.sha256}, the file says {stated}; it was "
            "changed."
        )
    return segments


def _content(segments: SegmentList) -> dict[str, Any]:
    value = dataclasses.asdict(segments)
    del value["name"]
    return value
