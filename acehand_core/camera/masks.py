"""Which pixels show hands and forearms, which move by themselves, from landmarks."""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Bool, Float, UInt8

Mask = Bool[np.ndarray, "H W"]

#: Borders: what never gets brighter than this (grey levels), is grown by this share of the width.
_BLACK, _BORDER = 18, 0.02
#: Grown by this share of the hand's length (wrist to middle fingertip when stretched).
_MARGIN = 0.25
#: How far a forearm is covered, and half its width, in lengths of the palm (wrist to knuckles).
_FOREARM, _HALF_WIDTH = 3.5, 0.55


def hand_mask(landmarks: Float[np.ndarray, "S 21 2"], width: int, height: int) -> Mask:
    """Return the pixels that S hands and their forearms may cover, (height, width).

    Args:
        landmarks: OpenPose order, pixels of the picture. A hand with a NaN, or with no landmark in
            the picture, is not there.
        width, height: of the picture.

    A hand is the convex hull of its landmarks, grown by a quarter of its length. Its forearm goes
    on from the wrist, away from the knuckles, and gets wider: by 27 degrees each way, for wrists
    that are bent.
    """
    mask = np.zeros((height, width), np.uint8)
    for hand in landmarks:
        if not np.isfinite(hand).all():
            continue
        inside = (hand >= -0.5).all(1) & (hand < (width - 0.5, height - 0.5)).all(1)
        if not inside.any():
            continue
        wrist, knuckles = hand[0], hand[[5, 9, 13, 17]].mean(0)
        palm = float(np.linalg.norm(knuckles - wrist))
        length = max(palm * 2.0, float(np.linalg.norm(np.ptp(hand, axis=0))))
        # Coordinates far outside the picture would overflow the drawing's integers.
        hull = cv2.convexHull(np.clip(hand, -1e4, 1e4).round().astype(np.int32))
        grown = max(1, round(_MARGIN * length))
        cv2.fillConvexPoly(mask, hull, 255)
        cv2.polylines(mask, [hull], True, 255, thickness=min(2 * grown, 32_000))
        if palm < 1.0:
            continue
        away = (wrist - knuckles) / palm
        across = np.array([-away[1], away[0]])
        half, far = _HALF_WIDTH * palm, _FOREARM * palm
        near = [wrist + half * across, wrist - half * across]
        end = [wrist + far * away + s * (half + 0.5 * far) * across for s in (-1.0, 1.0)]
        arm = np.clip(np.array([*near, *end]), -1e4, 1e4).round().astype(np.int32)
        cv2.fillConvexPoly(mask, cv2.convexHull(arm), 255)
    return np.asarray(mask > 0)


class DarkBorder:
    """What of the pictures stays dark and touches their edge: bars, the outside of a lens.

    Its outline stands still however the camera turns, and so it must not be looked at.
    """

    def __init__(self) -> None:
        self._brightest: np.ndarray | None = None

    def add(self, grey: UInt8[np.ndarray, "H W"]) -> Mask:
        """Take a picture; return the border as all pictures so far show it."""
        height, width = grey.shape
        small = cv2.resize(
            grey, (max(1, width // 4), max(1, height // 4)), None, 0, 0, cv2.INTER_AREA
        )
        bright = cv2.blur(small, (3, 3))
        if self._brightest is not None:
            bright = np.maximum(bright, self._brightest)
        self._brightest = bright
        dark = (bright < _BLACK).astype(np.uint8)
        if not dark.any():
            return np.zeros(grey.shape, bool)
        # Around it everything is outside.
        outside = cv2.copyMakeBorder(dark, 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=1)
        _, labels = cv2.connectedComponents(outside, connectivity=4)
        border = (labels == labels[0, 0])[1:-1, 1:-1].astype(np.uint8)
        reach = 2 * max(1, round(_BORDER * width / 4)) + 1
        border = cv2.dilate(border, np.ones((reach, reach), np.uint8))
        return np.asarray(cv2.resize(border, (width, height), None, 0, 0, cv2.INTER_NEAREST) > 0)
