"""Hands in the pictures of a sequence, by MediaPipe's two networks (``networks``).

As in MediaPipe's own graph a hand that was seen in one picture is looked for in the next one where
it was, and palms are searched only while there is room for another hand. Its handedness labels
assume a mirrored, selfie image; recordings are not mirrored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

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
