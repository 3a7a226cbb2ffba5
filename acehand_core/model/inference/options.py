"""Frames as the model reads them: at its rate, at the encoded size, a few at a time.

How a recording is reconstructed, and with which weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Literal, TypeVar

import cv2
import numpy as np
from jaxtyping import Int, UInt8

from acehand_core.errors import InputError
from acehand_core.model.config import AS_RELEASED, InferenceConfig, Precision, Variant
from acehand_core.model.inference.windows import (
    DEFAULT_ENCODE_WIDTH,
    MIN_FRAMES,
    PAPER_LATENTS,
    frames_padded,
    frames_used,
    latents_of,
)
from acehand_core.model.network import RELEASED, SolveOptions
from acehand_core.motion import Recording
from acehand_core.recordings.selection import at_rate
from acehand_core.types import Picture

Tail = Literal["repeat", "drop"]
Chunk = UInt8[np.ndarray, "n H W 3"]
Item = TypeVar("Item")

#: The rate of the paper's training clips.
MODEL_FPS = 30
#: A recording is read as it is while its rate is this near, and this share of its frames regular.
_RATE_TOLERANCE = 0.1
_REGULAR_SHARE = 0.9
#: Frames decoded and encoded at once.
CHUNK_FRAMES = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """How a recording goes into the model.

    ``recording`` is at the model's rate, with M frames; frame k shows frame ``shown[k]`` of the
    recording as it was. ``size`` (width, height) is that of the encoded image. ``count`` frames
    are encoded: M brought to 4k + 1.
    """

    recording: Recording
    shown: Int[np.ndarray, "M"]
    resampled: bool
    size: tuple[int, int]
    count: int

    @property
    def latents(self) -> int:
        """Latents that the frames make."""
        return latents_of(self.count)

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Yield frames ``start`` to ``count - 1``, RGB at the encoded size, ``CHUNK_FRAMES`` each.

        Beyond the recording's end its last frame is repeated. One chunk is decoded ahead, in
        another thread.
        """
        frames, have = self.recording.frames, len(self.recording)
        assert frames is not None
        first = min(start, have - 1)
        images = map(self._resized, frames.read(first, min(have, self.count)))
        images = islice(_last_repeated(images), start - first, self.count - first)
        return _ahead(_stacked(images, CHUNK_FRAMES))

    def _resized(self, image: Picture) -> Picture:
        width, height = self.size
        if image.shape[:2] == (height, width):
            return image
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def plan_reading(
    recording: Recording, size: tuple[int, int], tail: Tail, every_frame: bool = False
) -> Reading:
    """Return how to read a recording.

    Footage whose rate is not within 10 % of 30 fps, or irregular, is read at 30 fps (the frame
    nearest in time).

    Args:
        tail: what to do with frames beyond the last multiple of four: "repeat" the last frame
            until they fill a latent, or "drop" them as the released code does.
        every_frame: read the recording's own frames whatever its rate, as training reads a
            dataset's and as tables are scored.

    Raises:
        InputError: there are no images, or too few frames for "drop".
    """
    if recording.frames is None:
        raise InputError(f"{recording.source}: the ace tracker needs a video; this input has none.")
    view, shown = recording, np.arange(len(recording))
    resampled = not (every_frame or _is_near_model_rate(recording.timestamps_ns))
    if resampled:
        view, shown = at_rate(recording, MODEL_FPS)
    if tail == "drop" and len(view) < MIN_FRAMES:
        raise InputError(
            f"{recording.source}: {len(view)} frames at {view.fps:.3g} fps; the model needs "
            f"{MIN_FRAMES} or more. Without dropping the tail a shorter clip is filled up."
        )
    count = frames_used(len(view)) if tail == "drop" else frames_padded(len(view))
    return Reading(view, shown, resampled, size, count)


def _is_near_model_rate(timestamps_ns: Int[np.ndarray, "T"]) -> bool:
    if len(timestamps_ns) < 2:
        return True
    off = np.abs(np.diff(timestamps_ns) * MODEL_FPS / 1e9 - 1)
    return bool((off <= _RATE_TOLERANCE).mean() >= _REGULAR_SHARE)


def _last_repeated(images: Iterator[Picture]) -> Iterator[Picture]:
    """Yield images, then the last one for ever."""
    last = next(images)
    yield last
    for image in images:
        last = image
        yield last
    yield from repeat(last)


def _stacked(images: Iterator[Picture], length: int) -> Iterator[Chunk]:
    for first in images:
        yield np.stack([first, *islice(images, length - 1)])


def _ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield items while the next one is being made in another thread."""
    with ThreadPoolExecutor(1, "decode") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """Which weights: a name for people, the hash of their content, what binds their users."""

    name: str
    sha256: str
    licenses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InferenceOptions:
    """How a recording is reconstructed.

    Attributes:
        windows: see ``windows.plan_windows``.
        window_latents: length of a window.
        encode_width: width in pixels that frames are encoded at; 0 for the video's own.
        tail: what to do with frames beyond the last multiple of four (see ``plan_reading``).
        every_frame: read the recording's own frames, not 30 a second.
        solve: how hands are placed; None as the released code does for the variant, and by rigid
            PnP where there is no hand model.
        second_opinion: also look at the mirrored clip, and multiply presence and visibility.
        hands: which hands to look for.
        every_slot: also give the pose of hands that count as absent, and anchors that are out of
            sight, as the paper scores them (section "Metric Definitions and Penalty Protocol").
        batch: windows read by the network at once.
        precision: what the backbone computes in; part of the settings that results depend on.
    """

    windows: str = "paper"
    window_latents: int = PAPER_LATENTS
    encode_width: int = DEFAULT_ENCODE_WIDTH
    tail: Tail = "repeat"
    every_frame: bool = False
    solve: SolveOptions | None = None
    second_opinion: bool = False
    hands: Literal["both", "left", "right"] = "both"
    every_slot: bool = False
    batch: int = 1
    precision: Precision = "bfloat16"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"{self.batch} windows at once; valid: 1 or more.")

    @property
    def wanted(self) -> tuple[bool, bool]:
        """Which slots to look for."""
        return self.hands != "right", self.hands != "left"


def solve_options(
    variant: Variant, has_hand_model: bool, trained: InferenceConfig = AS_RELEASED
) -> SolveOptions:
    """Return how to place hands: as recorded in the weights, and as released where nothing is.

    Without a hand model the network's own joints are placed by all their anchors (rigid PnP) in
    place of the mixed PnP, which needs articulated ones.
    """
    released = RELEASED[variant]
    solve = trained.solve or released.solve
    if solve == "mixed" and not has_hand_model:
        solve = "rigid"
    return SolveOptions(
        trained.bearings or released.bearings,
        solve,
        trained.fallback or released.fallback,
        trained.fit_guards or released.fit_guards,
        trained.ray_cells or released.ray_cells,
    )
