"""Which pixels show hands and forearms, which move by themselves, from landmarks."""

from __future__ import annotations

import cv2
import numpy as np
from jaxtyping import Bool, Float

#: Grown by this share of the hand's length (wrist to middle fingertip when stretched).
_MARGIN = 0.25
#: How far a forearm is covered, and half its width, in lengths of the palm (wrist to knuckles).
_FOREARM, _HALF_WIDTH = 3.5, 0.55


def hand_mask(
    landmarks: Float[np.ndarray, "S 21 2"], width: int, height: int
) -> Bool[np.ndarray, "H W"]:
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
