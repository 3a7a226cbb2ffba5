"""Hands in the pictures of a sequence, by MediaPipe's two networks (``networks``).

As in MediaPipe's own graph a hand that was seen in one picture is looked for in the next one where
it was. Palms are searched now and then only (``search``), since a search takes as long as following
a hand: one that comes into view is found up to a second late, and followed back from there
(``redetection``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from acehand_core.trackers.mediapipe import search
from acehand_core.trackers.mediapipe.networks import Crop, Look, crop_of, hand_networks
from acehand_core.types import ImageRgb, Quality

#: Hands that are followed, other people's too; and those that are searched for thoroughly.
MAX_HANDS, WANTED_HANDS = 4, 2
#: Longest pause between searches: while fewer hands are seen than were before, or none, and else.
SEARCH_MISSING_S, SEARCH_EVERY_S = 0.25, 1.0


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
        return search.size(self.pixels)


class Detector:
    """Follows hands from picture to picture, and searches for others now and then.

    Not thread-safe: give each thread its own.
    """

    def __init__(self, fps: float, quality: Quality = "balanced") -> None:
        self._networks = hand_networks()
        self._quality = quality
        self._fps = fps
        self.reset()

    def reset(self) -> None:
        """Forget the hands of the last image: the next one starts a new sequence."""
        self._crops: list[Crop] = []
        self._most = 1
        self._changed()

    def __call__(self, image: ImageRgb, look: str) -> list[Detection]:
        """Return the hands in an image; pixels are those of ``image``."""
        image = np.ascontiguousarray(image)
        seen: list[Look] = []
        for crop in self._crops:
            hand = search.followed(self._networks, image, crop)
            if hand is None or any(search.apart(hand, s) < search.SAME_HAND for s in seen):
                self._changed()
            else:
                seen.append(hand)
        if self._wait <= 0 and len(seen) < MAX_HANDS:
            seen += self._new_hands(image, seen)
        self._wait -= 1
        self._most = max(self._most, min(len(seen), WANTED_HANDS))
        self._crops = [crop_of(hand.pixels) for hand in seen]
        return [Detection(s.pixels, s.world, s.p_right, look, s.presence) for s in seen]

    def _changed(self) -> None:
        """Search at once: at the beginning, and where a hand was lost."""
        self._wait, self._searches = 0, 0

    def _new_hands(self, image: ImageRgb, seen: list[Look]) -> list[Look]:
        """Search, and say when to search again."""
        fresh = search.new_hands(
            self._networks, image, self._squares(image, seen), seen, MAX_HANDS - len(seen)
        )
        known = len(seen) + len(fresh)
        pause = round((SEARCH_MISSING_S if known < self._most else SEARCH_EVERY_S) * self._fps)
        if known < WANTED_HANDS:
            # After one frame, two more, four more: up to the longest pause.
            pause = min(2 ** min(self._searches, 10), pause)
        self._wait = max(1, pause)
        self._searches += 1
        return fresh

    def _squares(self, image: ImageRgb, seen: list[Look]) -> list[Crop]:
        """Return what to search: everywhere where a hand is lost or none was seen yet.

        Else the whole picture and one of its squares in turn.
        """
        if len(seen) >= WANTED_HANDS:
            return [search.whole(image)]
        parts = search.squares(image, self._quality)
        if self._searches > 0 and len(seen) >= self._most and parts:
            parts = [parts[self._searches % len(parts)]]
        return [search.whole(image), *parts]
