"""Hands in pictures: searched for, confirmed, and followed from picture to picture.

The palm network sees hands that are neither small nor turned far from upright. So squares of the
picture are searched, parts of it and turned ones. What it takes for a palm is looked at
twice by the landmark network, the second time mirrored: of a hand both tell the same, and it is as
long as a hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from acehand_core.trackers.mediapipe import search
from acehand_core.trackers.mediapipe.networks import (
    Crop,
    HandNetworks,
    Look,
    crop_of,
    hand_networks,
)
from acehand_core.types import ImageRgb, Quality

#: Hands that are followed, other people's too; and those that are searched for thoroughly.
MAX_HANDS, WANTED_HANDS = 4, 2
#: Longest pause between searches: while fewer hands are seen than were before, or none, and else.
SEARCH_MISSING_S, SEARCH_EVERY_S = 0.25, 1.0


# Hands in the pictures of a sequence, by MediaPipe's two networks (``networks``).
#
# As in MediaPipe's own graph a hand that was seen in one picture is looked for in the next one
# where it was. Palms are searched now and then only, since a search takes as long as
# following a hand: one that comes into view is found up to a second late, and followed back from
# there (``redetection``).


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


#: Of palms that are looked at.
PALM_CONFIDENCE = 0.3
#: Of a hand in its crop: sure by itself; less takes a second look; even less is none.
PRESENCE, LOW_PRESENCE = 0.5, 0.2
#: Log odds of a hand (``log_odds``) that is new, and of one where one was seen just before.
NEW_HAND, KNOWN_HAND = 0.0, -1.5
#: What landmarks that are apart by the hand's size take from the log odds, and each metre by which
#: the palm is too short. Both from candidates in rendered clips: of 1187 hands 87 % pass 0, of 69
#: false ones 7 %.
APART, SHORT = 4.0, 40.0
PALM_LENGTH_M = 0.09
#: A palm in a crop that overlaps a known hand's by this share is that hand's; landmarks of one hand
#: are closer than this share of their size. (Duplicates of a real clip lie within 0.6; clasped
#: hands on renders stay beyond 1.)
SAME_CROP, SAME_HAND = 0.5, 0.75
#: Sides of the squares of a thorough search, shares of the longer side; they overlap by 0.3 of it.
TILES: dict[Quality, tuple[float, ...]] = {"fast": (), "balanced": (0.6,), "best": (0.6, 0.4)}
#: Turns of the whole picture in it.
TURNS: dict[Quality, tuple[float, ...]] = {
    "fast": (), "balanced": (np.pi,), "best": (np.pi, np.pi / 2, -np.pi / 2),
}  # fmt: skip
TILE_STEP = 0.7
#: A hand that was lost is looked for in a square of this many times its crop's side.
SURROUNDINGS = 2.0
#: Share of its landmarks that must lie in the picture.
MIN_INSIDE = 1 / 3


def whole(image: ImageRgb) -> Crop:
    """Return the square around a picture."""
    height, width = image.shape[:2]
    return Crop((width - 1) / 2, (height - 1) / 2, float(max(width, height)), 0.0)


def squares(image: ImageRgb, quality: Quality) -> list[Crop]:
    """Return what a thorough search looks at beside the whole upright picture."""
    height, width = image.shape[:2]
    full = whole(image)
    out = [replace(full, angle=angle) for angle in TURNS[quality]]
    for share in TILES[quality]:
        side = share * full.side
        out += [
            Crop(x, y, side, 0.0) for y in _middles(height, side) for x in _middles(width, side)
        ]
    return out


def _middles(length: int, side: float) -> list[float]:
    """Return where squares lie along a side of the picture."""
    if length <= side:
        return [(length - 1) / 2]
    count = 1 + int(np.ceil((length - side) / (TILE_STEP * side)))
    return np.linspace(side / 2 - 0.5, length - side / 2 - 0.5, count).tolist()


def new_hands(
    networks: HandNetworks,
    image: ImageRgb,
    around: Sequence[Crop],
    known: Sequence[Look],
    room: int,
) -> list[Look]:
    """Return up to ``room`` hands that lie in some squares of a picture and are not known yet."""
    fresh: list[Look] = []
    for square in around:
        for palm in networks.palms(image, PALM_CONFIDENCE, square):
            if len(fresh) == room:
                return fresh
            others = [*known, *fresh]
            if any(palm.crop.overlap(crop_of(hand.pixels)) > SAME_CROP for hand in others):
                continue
            hand = confirmed(networks, image, palm.crop)
            if hand is not None and all(apart(hand, other) > SAME_HAND for other in others):
                fresh.append(hand)
    return fresh


def confirmed(networks: HandNetworks, image: ImageRgb, crop: Crop) -> Look | None:
    """Return the hand in a crop where it is looked at again upright and still one; else None."""
    first = networks.look(image, crop)
    if first.presence < LOW_PRESENCE or not in_picture(first, image):
        return None
    upright = networks.look(image, crop_of(first.pixels))
    best = first if upright.presence < min(PRESENCE, first.presence) else upright
    return best if seen_twice(networks, image, best) > NEW_HAND else None


def followed(networks: HandNetworks, image: ImageRgb, crop: Crop) -> Look | None:
    """Return the hand in the crop where it was a moment ago, or None."""
    hand = networks.look(image, crop)
    if hand.presence < LOW_PRESENCE or not in_picture(hand, image):
        return None
    if hand.presence < PRESENCE and seen_twice(networks, image, hand) <= KNOWN_HAND:
        return None
    return hand


def seen_twice(networks: HandNetworks, image: ImageRgb, hand: Look) -> float:
    """Return the log odds of a hand, with another look at it, mirrored."""
    crop = replace(crop_of(hand.pixels), mirrored=True)
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
    # Called for every pair of hands: NumPy's own mean and sum take three times as long.
    centred = pixels - pixels.sum(0) / len(pixels)
    return math.sqrt(np.vdot(centred, centred) / len(pixels))


def in_picture(hand: Look, image: ImageRgb) -> bool:
    """Whether enough of a hand lies in the picture."""
    height, width = image.shape[:2]
    inside = (hand.pixels > -0.5) & (hand.pixels < [width - 0.5, height - 0.5])
    return bool(inside.all(1).mean() >= MIN_INSIDE)
