"""Hands in the pictures of a sequence, by MediaPipe's two networks (``networks``).

As in MediaPipe's own graph a hand that was seen in one picture is looked for in the next one where
it was, and palms are searched only while there is room for another hand. Its handedness labels
assume a mirrored, selfie image; recordings are not mirrored.

Partial results of a long detection pass are kept, so that an interrupted run resumes where it
stopped. A segment's key is a hash of the pictures (file and how it was read), the networks and the
detector's settings: never of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.errors import InputError, OutputError
from acehand_core.files.safe_files import safe_load_npz
from acehand_core.trackers.mediapipe.networks import Crop, Look, crop_of, hand_networks
from acehand_core.types import ImageRgb

MAX_HANDS = 2
#: Thresholds of the first look at a recording: of a palm, and of a hand in its crop.
DETECTION_CONFIDENCE = TRACKING_CONFIDENCE = 0.5
#: A palm in a crop that overlaps a known hand's by this share is that hand's.
SAME_HAND = 0.5


@dataclass(frozen=True, slots=True)
class Detection:
    """One hand seen in one frame.

    Attributes:
        pixels: of the source image, integer coordinates at pixel centres.
        world: metres from the middle of the hand, in the axes of the image (x right, y down).
        p_right: the network's probability of a right hand.
        look: the pass that saw it.
        presence: how sure the network is that there is a hand, 0 to 1.
        covariance: of each landmark over several crops, px^2; None where there was one crop.
    """

    pixels: Float[np.ndarray, "21 2"]
    world: Float[np.ndarray, "21 3"]
    p_right: float
    look: str
    presence: float = 1.0
    covariance: Float[np.ndarray, "21 2 2"] | None = None

    @property
    def confidence(self) -> float:
        """How sure the network is of the side."""
        return max(self.p_right, 1 - self.p_right)

    @property
    def size(self) -> float:
        """Rms distance of the landmarks from their mean, pixels."""
        centred = self.pixels - self.pixels.mean(0)
        return float(np.sqrt(np.mean(np.sum(centred**2, axis=1))))


class Detector:
    """Follows hands from picture to picture. Not thread-safe: give each thread its own."""

    def __init__(
        self,
        *,
        still: bool = False,
        detection_confidence: float = DETECTION_CONFIDENCE,
        tracking_confidence: float = TRACKING_CONFIDENCE,
        max_hands: int = MAX_HANDS,
    ) -> None:
        self._networks = hand_networks()
        self._still, self._max_hands = still, max_hands
        self._palm_confidence, self._hand_confidence = detection_confidence, tracking_confidence
        self._crops: list[Crop] = []

    def reset(self) -> None:
        """Forget the hands of the last image: the next one starts a new sequence."""
        self._crops = []

    def __call__(self, image: ImageRgb, look: str) -> list[Detection]:
        """Return the hands in an image; pixels are those of ``image``."""
        image = np.ascontiguousarray(image)
        seen = [self._networks.look(image, crop) for crop in self._crops]
        seen = [hand for hand in seen if hand.presence >= self._hand_confidence]
        if len(seen) < self._max_hands:
            seen += self._new_hands(image, seen)
        self._crops = [] if self._still else [crop_of(hand.pixels) for hand in seen]
        return [Detection(s.pixels, s.world, s.p_right, look, s.presence) for s in seen]

    def _new_hands(self, image: ImageRgb, seen: list[Look]) -> list[Look]:
        """Return hands whose palms are found beside those that are known."""
        known = [crop_of(hand.pixels) for hand in seen]
        fresh = []
        for palm in self._networks.palms(image, self._palm_confidence):
            if len(known) == self._max_hands:
                break
            if any(palm.crop.overlap(crop) > SAME_HAND for crop in known):
                continue
            hand = self._networks.look(image, palm.crop)
            if hand.presence >= self._hand_confidence:
                known.append(crop_of(hand.pixels))
                fresh.append(hand)
        return fresh


class SegmentCache:
    """Detections per segment in a folder; with no folder nothing is kept."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"detections-{digest[:24]}"

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None. A damaged file counts as absent."""
        path = self._path(start, stop)
        if path is None or not path.is_file():
            return None

        try:
            data = safe_load_npz(path)
            flat = [
                Detection(pixels, world, float(p_right), str(look), float(presence))
                for pixels, world, p_right, look, presence in zip(
                    data["pixels"], data["world"], data["p_right"], data["look"],
                    data["presence"], strict=True,
                )
            ]  # fmt: skip
            ends = np.cumsum(data["count"])
            if len(ends) != stop - start or ends[-1] != len(flat):
                return None
        except (InputError, EOFError, KeyError, ValueError):
            return None

        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        path = self._path(start, stop)
        if path is None:
            return
        flat = [d for detections in frames for d in detections]

        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    count=np.array([len(d) for d in frames]),
                    pixels=np.array([d.pixels for d in flat]).reshape(-1, 21, 2),
                    world=np.array([d.world for d in flat]).reshape(-1, 21, 3),
                    p_right=np.array([d.p_right for d in flat]),
                    look=np.array([d.look for d in flat], dtype="U16"),
                    presence=np.array([d.presence for d in flat]),
                )
            partial.replace(path)
        except OSError as error:
            raise OutputError(
                f"{path.parent}: partial results cannot be written: {error.strerror or error}."
            ) from error

    def _path(self, start: int, stop: int) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{start:09d}-{stop:09d}.npz"
