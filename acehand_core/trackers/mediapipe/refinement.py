"""Refinement of each hand by several crops: their mean and covariance.

The landmark network's answers for turned, mirrored and scaled crops differ little where it is sure
and a lot where it guesses. Their mean is better than any of them, and their covariance measures the
certainty of a landmark.
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

#: Least presence in a crop, and distance in hand sizes of a mean that is of another hand.
LEAST_PRESENCE, SAME = 0.3, 0.75


@dataclass(frozen=True, slots=True)
class Variant:
    """The difference of a crop from the upright one around a hand: turned, scaled, mirrored."""

    degrees: float | int = 0
    scale: float = 1.0
    mirrored: bool = False

    def of(self, crop: Crop) -> Crop:
        """Return the changed crop."""
        angle = crop.angle + np.radians(self.degrees)
        return replace(crop, side=crop.side * self.scale, angle=angle, mirrored=self.mirrored)


#: The crop in which a hand was found counts without another look.
AS_FOUND = Variant()
#: Crops of the size in which MediaPipe follows hands. Tighter ones would exclude near hands, and
#: move wrists out: by 3 % of the hand's length at 0.9 of the side. Half are mirrored, for equal
#: results of a hand and its mirror image.
VARIANTS: dict[Quality, tuple[Variant, ...]] = {
    "fast": (),
    "balanced": (AS_FOUND, Variant(mirrored=True), Variant(20), Variant(-20, mirrored=True)),
    "best": tuple(
        Variant(degrees, scale, mirrored)
        for mirrored in (False, True)
        for degrees, scale in ((0, 0.93), (0, 1.07), (12, 1.0), (-12, 1.0), (24, 1.0), (-24, 1.0))
    ),
}

#: Distance of the first two looks (``search.apart``) below which the others are skipped, as for six
#: hands in seven of a real video, with little effect.
AGREED: dict[Quality, float] = {"fast": 0.0, "balanced": 0.05, "best": 0.0}


def refine(
    frames: FrameSource,
    slots: Slots,
    quality: Quality,
    progress: Progress,
    work_dir: Path | None,
    key: dict[str, Any],
) -> Slots:
    """Return the hands of every frame with landmarks merged over several crops.

    A hand that fewer than two crops confirm stays as it was, without covariance. ``work_dir`` and
    ``key`` (of the pictures) are those of ``SegmentCache``.
    """
    variants = VARIANTS[quality]
    if not variants:
        return slots
    networks = hand_networks()

    def look(frame: int, image: ImageRgb) -> list[Detection]:
        hands = [hand for hand in slots[frame] if hand is not None]
        return [_refined(networks, image, hand, quality) for hand in hands]

    places = hashlib.sha256()
    for pair in slots:
        for hand in pair:
            places.update(b"-" if hand is None else hand.pixels.tobytes())
    crops = [[v.degrees, v.scale, v.mirrored] for v in variants]
    own = {"crops": crops, "agreed": AGREED[quality], "hands": places.hexdigest()}
    cache = SegmentCache(work_dir, {**key, **own})
    found = in_segments(frames, lambda: look, "refine", progress, cache)

    refined: Slots = []
    for pair, hands in zip(slots, found, strict=True):
        left = iter(hands)
        refined.append([None if hand is None else next(left) for hand in pair])
    return refined


def _refined(
    networks: HandNetworks, image: ImageRgb, hand: Detection, quality: Quality
) -> Detection:
    crop = crop_of(hand.pixels)
    looks: list[Look] = []
    for variant in VARIANTS[quality]:
        if len(looks) == 2 and search.apart(*looks) < AGREED[quality]:
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
    """Return the means of looks, with less weight for outliers; ``first`` names hand and pass."""
    pixels = np.stack([look.pixels for look in looks])
    world = np.stack([look.world for look in looks])
    presence = np.array([look.presence for look in looks])

    # Weights by distance from the median, in median distances over all landmarks.
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
