"""Hands in pictures: search, confirmation, and following from picture to picture.

The palm network misses small hands and those far from upright, so turned squares of the picture and
parts of it are searched. The landmark network looks at each palm twice, the second time mirrored:
for a hand both agree, on a hand's length. As in MediaPipe's own graph a hand is looked for where it
was in the last picture, and palms are searched only now and then: a new hand is found up to a
second late, and followed back from there (``redetection``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float

from acehand_core.geometry.cameras import Camera
from acehand_core.trackers.mediapipe import search
from acehand_core.trackers.mediapipe.crops import Crop, crop_of
from acehand_core.trackers.mediapipe.networks import HandNetworks, Look, at_once, hand_networks
from acehand_core.types import ImageRgb, Quality

#: Hands that are followed, including other people's, and those searched for thoroughly.
MAX_HANDS, WANTED_HANDS = 4, 2
#: Longest pause between searches with fewer hands than before, or none, and otherwise.
SEARCH_MISSING_S, SEARCH_EVERY_S = 0.25, 1.0

#: Least confidence of a palm.
PALM_CONFIDENCE = 0.3
#: Presence of a certain hand; down to the second a hand takes a second look.
PRESENCE, LOW_PRESENCE = 0.5, 0.2
#: Least log odds (``log_odds``) of a new hand, and of one seen just before.
NEW_HAND, KNOWN_HAND = 0.0, -1.5
#: Log odds lost by landmarks apart by the hand's size, and per metre of a too short palm. (Of
#: candidates in rendered clips 87 % of 1187 hands pass 0, and 7 % of 69 false ones.)
APART, SHORT = 4.0, 40.0
PALM_LENGTH_M = 0.09
#: Overlap of a palm with the crop of its known hand, and distance of one hand's landmarks in hand
#: sizes. (Duplicates of a real clip lie within 0.6, clasped hands beyond 1.)
SAME_CROP, SAME_HAND = 0.5, 0.75
#: Sides of a thorough search's squares, in shares of the longer side; they overlap by 0.3.
TILES: dict[Quality, tuple[float, ...]] = {"fast": (), "balanced": (0.6,), "best": (0.6, 0.4)}
#: Side of the square in the middle of a wide picture; those around span as many degrees.
MIDDLE = 0.4
#: Pictures of fewer levels show nothing: a covered lens, a fade.
BLANK = 10
#: Turns of the whole picture in it.
TURNS: dict[Quality, tuple[float, ...]] = {
    "fast": (),
    "balanced": (np.pi,),
    "best": (np.pi, np.pi / 2, -np.pi / 2),
}
TILE_STEP = 0.7
#: Side of the square in which a lost hand is looked for, in its crop's sides.
SURROUNDINGS = 2.0
#: Least share of a hand's landmarks in the picture.
MIN_INSIDE = 1 / 3


@dataclass(frozen=True, slots=True)
class Detection:
    """One hand seen in one frame: a ``Look``, the pass that saw it, and its covariance.

    ``covariance`` is that of each landmark over several crops, px^2; None for one crop.
    """

    pixels: Float[np.ndarray, "21 2"]
    world: Float[np.ndarray, "21 3"]
    p_right: float
    look: str
    presence: float = 1.0
    covariance: Float[np.ndarray, "21 2 2"] | None = None

    @property
    def confidence(self) -> float:
        """Probability of the likelier side."""
        return max(self.p_right, 1 - self.p_right)

    @property
    def size(self) -> float:
        """Rms distance of the landmarks from their mean, pixels."""
        return search.size(self.pixels)


class Detector:
    """Follower of hands from picture to picture, which searches for others; not thread-safe."""

    def __init__(
        self, fps: float, quality: Quality = "balanced", lens: Camera | None = None
    ) -> None:
        self._networks = hand_networks().through(lens)
        self._quality = quality
        self._fps = fps
        self._crops: list[Crop] = []
        self._most = 1
        self._changed()

    def __call__(self, image: ImageRgb, look: str, mirrored: bool = False) -> list[Detection]:
        """Return the hands in an image; known ones are looked at in ``mirrored`` crops."""
        image = np.ascontiguousarray(image)
        seen: list[Look] = []
        crops = [replace(crop, mirrored=mirrored) for crop in self._crops]
        for hand in at_once(partial(search.followed, self._networks, image), crops):
            if hand is None or any(search.apart(hand, s) < search.SAME_HAND for s in seen):
                self._changed()
            else:
                seen.append(hand)
        if self._wait <= 0 and len(seen) < MAX_HANDS:
            seen += self._new_hands(image, seen)
        self._wait -= 1
        self._most = max(self._most, min(len(seen), WANTED_HANDS))
        self._crops = [crop_of(hand.pixels, self._networks.lens) for hand in seen]
        return [Detection(s.pixels, s.world, s.p_right, look, s.presence) for s in seen]

    def _changed(self) -> None:
        """Search at once: at the beginning, or after a lost hand."""
        self._wait, self._searches = 0, 0

    def _new_hands(self, image: ImageRgb, seen: list[Look]) -> list[Look]:
        """Search, and schedule the next search."""
        squares, room = self._squares(image, seen), MAX_HANDS - len(seen)
        fresh = search.new_hands(self._networks, image, squares, seen, room)
        known = len(seen) + len(fresh)
        pause = round((SEARCH_MISSING_S if known < self._most else SEARCH_EVERY_S) * self._fps)
        if known < WANTED_HANDS:
            # After one frame, two more, four more, up to the longest pause.
            pause = min(2 ** min(self._searches, 10), pause)
        self._wait = max(1, pause)
        self._searches += 1
        return fresh

    def _squares(self, image: ImageRgb, seen: list[Look]) -> list[Crop]:
        """Return what to search: all squares for a lost or first hand, else one of them in turn."""
        if len(seen) >= WANTED_HANDS:
            return [search.whole(image)]
        parts = search.squares(image, self._quality, self._networks.lens)
        if self._searches > 0 and len(seen) >= self._most and parts:
            parts = [parts[self._searches % len(parts)]]
        return [search.whole(image), *parts]


def whole(image: ImageRgb) -> Crop:
    """Return the square around a picture."""
    height, width = image.shape[:2]
    return Crop((width - 1) / 2, (height - 1) / 2, float(max(width, height)), 0.0)


def squares(image: ImageRgb, quality: Quality, lens: Camera | None = None) -> list[Crop]:
    """Return the squares of a thorough search, besides the whole upright picture."""
    height, width = image.shape[:2]
    full = whole(image)
    out = [replace(full, angle=angle) for angle in TURNS[quality]]
    for side in (share * full.side for share in TILES[quality]):
        middles = itertools.product(_middles(height, side), _middles(width, side))
        out += [Crop(x, y, side, 0.0, lens=lens) for y, x in middles]
    if lens is not None and TILES[quality]:
        # A wide picture has fewest pixels per degree here, where those have only their corners.
        out.append(replace(full, side=MIDDLE * full.side, lens=lens))
    return out


def _middles(length: int, side: float) -> list[float]:
    """Return the middles of squares along a side of the picture."""
    if length <= side:
        return [(length - 1) / 2]
    count = 1 + int(np.ceil((length - side) / (TILE_STEP * side)))
    return np.linspace(side / 2 - 0.5, length - side / 2 - 0.5, count).tolist()


def new_hands(
    networks: HandNetworks,
    image: ImageRgb,
    crops: Sequence[Crop],
    known: Sequence[Look | Detection],
    room: int,
) -> list[Look]:
    """Return up to ``room`` unknown hands in some squares of a picture."""
    fresh: list[Look] = []
    if np.ptp(image[::8, ::8], axis=(0, 1)).max() < BLANK:
        return fresh
    lens = networks.lens
    for palms in at_once(partial(networks.palms, image, PALM_CONFIDENCE), crops):
        for palm in palms:
            if len(fresh) == room:
                return fresh
            others = [*known, *fresh]
            if any(palm.overlap(crop_of(hand.pixels, lens)) > SAME_CROP for hand in others):
                continue
            hand = confirmed(networks, image, palm)
            if hand is not None and all(apart(hand, other) > SAME_HAND for other in others):
                fresh.append(hand)
    return fresh


def confirmed(networks: HandNetworks, image: ImageRgb, crop: Crop) -> Look | None:
    """Return the hand in a crop if a second, upright look confirms it, else None."""
    first = networks.look(image, crop)
    if first.presence < LOW_PRESENCE or not in_picture(first, image):
        return None
    upright = networks.look(image, crop_of(first.pixels, networks.lens))
    best = first if upright.presence < min(PRESENCE, first.presence) else upright
    return best if seen_twice(networks, image, best, mirrored=True) > NEW_HAND else None


def followed(networks: HandNetworks, image: ImageRgb, crop: Crop) -> Look | None:
    """Return the hand in the crop of a moment ago, or None."""
    hand = networks.look(image, crop)
    if hand.presence < LOW_PRESENCE or not in_picture(hand, image):
        return None
    if hand.presence < PRESENCE:
        odds = seen_twice(networks, image, hand, mirrored=not crop.mirrored)
        return hand if odds > KNOWN_HAND else None
    return hand


def seen_twice(networks: HandNetworks, image: ImageRgb, hand: Look, mirrored: bool) -> float:
    """Return the log odds of a hand by a second look."""
    crop = replace(crop_of(hand.pixels, networks.lens), mirrored=mirrored)
    return log_odds(hand, networks.look(image, crop))


def log_odds(hand: Look, again: Look) -> float:
    """Return the log odds that two looks at one thing show a hand."""
    p = np.clip([hand.presence, again.presence], 0.001, 0.999)
    palm = float(np.linalg.norm(hand.world[9] - hand.world[0]))
    too_short = max(PALM_LENGTH_M - palm, 0.0)
    return float(np.log(p / (1 - p)).mean()) - APART * apart(hand, again) - SHORT * too_short


def apart(a: Look | Detection, b: Look | Detection) -> float:
    """Return the mean distance of two hands' landmarks over their mean size."""
    gap = np.linalg.norm(a.pixels - b.pixels, axis=1).mean()
    return float(gap / max(0.5 * (size(a.pixels) + size(b.pixels)), 1e-6))


def size(pixels: Float[np.ndarray, "21 2"]) -> float:
    """Return the rms distance of landmarks from their mean."""
    # Called for every pair of hands: NumPy's mean and sum take three times as long.
    centred = pixels - pixels.sum(0) / len(pixels)
    return math.sqrt(np.vdot(centred, centred) / len(pixels))


def in_picture(hand: Look, image: ImageRgb) -> bool:
    """Whether enough of a hand is in the picture."""
    height, width = image.shape[:2]
    inside = (hand.pixels > -0.5) & (hand.pixels < [width - 0.5, height - 0.5])
    return bool(inside.all(1).mean() >= MIN_INSIDE)
