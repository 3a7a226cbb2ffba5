"""Each hand seen in several crops: a better mean, and how far the crops disagree.

The landmark network answers differently when its crop is turned, mirrored or of another size. Where
it is sure, little; where it guesses, a lot. The mean is better than any one of the answers, and
their covariance tells how well a landmark is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.motion import FrameSource
from acehand_core.trackers.mediapipe import search
from acehand_core.trackers.mediapipe.linking import Slots
from acehand_core.trackers.mediapipe.networks import (
    Crop,
    HandNetworks,
    Look,
    crop_of,
    hand_networks,
)
from acehand_core.trackers.mediapipe.redetection import SegmentCache, in_segments
from acehand_core.trackers.mediapipe.search import Detection
from acehand_core.types import ImageRgb, Progress, Quality

#: A crop that shows no hand says nothing; a mean this far off, in hand sizes, is of another hand.
LEAST_PRESENCE, SAME = 0.3, 0.75


@dataclass(frozen=True, slots=True)
class Variant:
    """How a crop differs from the upright one around a hand: turned (degrees), scaled, mirrored."""

    degrees: float | int = 0
    scale: float = 1.0
    mirrored: bool = False

    def of(self, crop: Crop) -> Crop:
        """Return the crop changed in this way."""
        angle = crop.angle + np.radians(self.degrees)
        return replace(crop, side=crop.side * self.scale, angle=angle, mirrored=self.mirrored)


#: A hand was found in a crop like this: what was seen there counts, it is not looked at again.
AS_FOUND = Variant()
#: Crops of the size that MediaPipe follows hands with. Tighter ones would shut out another hand
#: that is near, and put wrists further out: by 3 % of the hand's length at 0.9 of the side.
#: Half of them are mirrored, else a hand and its mirror image would be seen differently.
VARIANTS: dict[Quality, tuple[Variant, ...]] = {
    "fast": (),
    "balanced": (
        AS_FOUND, Variant(mirrored=True), Variant(20), Variant(-20, mirrored=True),
    ),
    "best": tuple(
        Variant(degrees, scale, mirrored)
        for mirrored in (False, True)
        for degrees, scale in ((0, 0.93), (0, 1.07), (12, 1.0), (-12, 1.0), (24, 1.0), (-24, 1.0))
    ),
}  # fmt: skip

#: Where the first two looks are no further apart (``search.apart``) the others are left out. On a
#: real video so are those of six hands in seven; what they would add there is little.
AGREED: dict[Quality, float] = {"fast": 0.0, "balanced": 0.05, "best": 0.0}


def refine(
    frames: FrameSource,
    slots: Slots,
    quality: Quality,
    progress: Progress,
    work_dir: Path | None,
    key: dict[str, Any],
) -> Slots:
    """Return the hands with their landmarks merged over several crops.

    Args:
        slots: where to look: the hands of every frame, one entry a side.
        work_dir: where finished parts are kept; None: nowhere.
        key: of the pictures (``SegmentCache``).

    A hand that fewer than two crops confirm is left as it was, with no covariance.
    """
    variants = VARIANTS[quality]
    if not variants:
        return slots
    networks = hand_networks()

    def look(frame: int, image: ImageRgb) -> list[Detection]:
        hands = [hand for hand in slots[frame] if hand is not None]
        return [_refined(networks, image, hand, variants, AGREED[quality]) for hand in hands]

    places = hashlib.sha256()
    for pair in slots:
        for hand in pair:
            places.update(b"-" if hand is None else hand.pixels.tobytes())
    crops = [[v.degrees, v.scale, v.mirrored] for v in variants]
    cache = SegmentCache(
        work_dir, {**key, "crops": crops, "agreed": AGREED[quality], "hands": places.hexdigest()}
    )
    found = in_segments(frames, lambda: look, "refine", progress, cache)

    refined: Slots = []
    for pair, hands in zip(slots, found, strict=True):
        left = iter(hands)
        refined.append([None if hand is None else next(left) for hand in pair])
    return refined


def _refined(
    networks: HandNetworks,
    image: ImageRgb,
    hand: Detection,
    variants: Sequence[Variant],
    agreed: float,
) -> Detection:
    crop = crop_of(hand.pixels)
    looks: list[Look] = []
    for variant in variants:
        if len(looks) == 2 and search.apart(*looks) < agreed:
            break
        look = Look(hand.pixels, hand.world, hand.p_right, hand.presence)
        if variant != AS_FOUND:
            look = networks.look(image, variant.of(crop))
        if look.presence > LEAST_PRESENCE:
            looks.append(look)
    if len(looks) < 2:
        return hand
    found = merged(looks, hand)
    return found if search.apart(found, hand) < SAME else hand


def merged(looks: Sequence[Look], first: Detection) -> Detection:
    """Return what the looks say together; ``first`` names hand and pass.

    Each landmark is the mean of the looks, with less weight to those that are far from the others.
    """
    pixels = np.stack([look.pixels for look in looks])
    world = np.stack([look.world for look in looks])
    presence = np.array([look.presence for look in looks])

    # Weights by distance from the median, in units of the median distance over all landmarks.
    weights = np.repeat(presence[:, None], 21, axis=1)
    off = np.linalg.norm(pixels - np.median(pixels, axis=0), axis=-1)
    scale = max(float(np.median(off)), 1e-3 * first.size)
    weights = weights / (1 + (off / (2 * scale)) ** 2)
    weights = weights / weights.sum(0)

    mean = np.einsum("kj,kjc->jc", weights, pixels)
    apart = pixels - mean
    # Weighted sample covariance, unbiased for weights of one sum.
    unbiased = 1 - (weights**2).sum(0)
    covariance = np.einsum("kj,kjc,kjd->jcd", weights, apart, apart) / unbiased[:, None, None]
    return replace(
        first,
        pixels=mean,
        world=np.einsum("kj,kjc->jc", weights, world),
        p_right=float(np.average([look.p_right for look in looks], weights=presence)),
        presence=float(presence.mean()),
        covariance=covariance,
    )
