"""The hands that are furthest off, drawn: the true hand in white, the tracked one in colours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from acehand_core.drawing.overlay import contact_sheet, draw_skeleton, put_caption, write_png
from acehand_core.hand.skeleton import BONES
from acehand_core.motion import HandMotion
from benchmarks.tracking.clips import Case
from benchmarks.tracking.score import Comparison

#: Two hands of one clip and side are at least so many frames apart; a clip has at most so many.
APART, OF_ONE_CLIP = 15, 4
SIDE, COLUMNS = 300, 5

Found = tuple[Case, HandMotion, Comparison]


def write_worst(found: Sequence[Found], path: Path, count: int) -> None:
    """Write a picture of the worst hands: wrong sides first, then palms furthest off."""
    ranked = []
    for number, (_, _, compared) in enumerate(found):
        off = np.where(compared.right, np.nan_to_num(compared.palm_deg), 0.0)
        off[compared.wrong_side | compared.nothing_there] = 180.0
        for frame, slot in np.argwhere(off > 0).tolist():
            ranked.append((float(off[frame, slot]), number, frame, slot))
    ranked.sort(reverse=True)

    chosen: list[tuple[float, int, int, int]] = []
    for off, number, frame, slot in ranked:
        near = any(
            (number, slot) == (other[1], other[3]) and abs(frame - other[2]) < APART
            for other in chosen
        )
        if not near and sum(other[1] == number for other in chosen) < OF_ONE_CLIP:
            chosen.append((off, number, frame, slot))
        if len(chosen) == count:
            break

    title = f"the {len(chosen)} hands that are furthest off: true (white), tracked (colours)"
    pictures = [_drawn(found[number], frame, slot) for _, number, frame, slot in chosen]
    write_png(contact_sheet(pictures, COLUMNS, title), path)


def _drawn(found: Found, frame: int, slot: int) -> np.ndarray:
    case, motion, compared = found
    truth, camera = case.truth.motion, case.truth.motion.camera
    assert camera is not None and case.recording.frames is not None
    image = case.recording.frames.at(frame).copy()
    true = camera.project(truth.joints_camera[frame, slot])
    tracked = camera.project(motion.joints_camera[frame, slot])

    points = (np.nan_to_num(true) * 16).round().astype(int).tolist()
    for parent, child in BONES:
        cv2.line(image, points[parent], points[child], (255, 255, 255), 2, cv2.LINE_AA, 4)
    draw_skeleton(image, tracked)

    known = tracked[np.isfinite(tracked).all(1)]
    low, high = known.min(0), known.max(0)
    reach = float((high - low).max()) + 10
    middle = (low + high) / 2
    scale = SIDE / (2 * reach)
    shift = SIDE / 2 - scale * middle
    matrix = np.array([[scale, 0, shift[0]], [0, scale, shift[1]]])
    picture = cv2.warpAffine(image, matrix, (SIDE, SIDE), flags=cv2.INTER_AREA)

    right = bool(compared.right[frame, slot])
    wrong = "wrong side" if compared.wrong_side[frame, slot] else "no hand there"
    said = f"{compared.palm_deg[frame, slot]:.0f} deg" if right else wrong
    put_caption(picture, f"{case.name[-6:]} {frame} {said}")
    return picture
