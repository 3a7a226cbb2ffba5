"""A picture of a store of clips: some frames of some clips, with their truth drawn into a few."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from acehand_core.ace.labelled.clips.schema import Clip
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.drawing.overlay import write_png
from acehand_core.errors import InputError
from acehand_core.hand.skeleton import BONES
from acehand_core.types import ImageRgb, Picture

#: Clips, pictures of each, how many get the truth drawn in, and their width (px).
_ROWS, _COLUMNS, _MARKED, _WIDTH = 8, 6, 2, 224
_COLOURS = ((255, 190, 60), (80, 220, 255))  # left, right


def write_sheet(store: ClipStore, path: Path) -> None:
    """Write a png with one row per clip, spread over the store.

    Raises:
        InputError: the store is empty. OutputError: it cannot be written.
    """
    names = store.ids()
    if not names:
        raise InputError(f"{store.root}: no clips to show.")
    chosen = [names[i] for i in np.linspace(0, len(names) - 1, min(_ROWS, len(names))).astype(int)]
    write_png(np.concatenate([_row(store.open(name)) for name in chosen]), path)


def _row(clip: Clip) -> Picture:
    if clip.frames is None:
        raise InputError(f"clip {clip.info.id} has no pictures.")
    moments = np.linspace(0, clip.info.frames - 1, _COLUMNS).astype(int)

    cells = []
    for column, frame in enumerate(moments):
        image = clip.frames.at(int(frame))
        scale = _WIDTH / image.shape[1]
        # Small pictures are shown as they are: pixels, not a blur.
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        cell = cv2.resize(image, (_WIDTH, round(image.shape[0] * scale)), interpolation=how)
        if column >= _COLUMNS - _MARKED:
            _mark(cell, clip.motion.joints_image[frame], scale)
        cells.append(cell)
    return np.concatenate(cells, axis=1)


def _mark(cell: ImageRgb, joints: np.ndarray, scale: float) -> None:
    """Draw both skeletons into a picture; what is outside is cut off."""
    for slot in (0, 1):
        points = (joints[slot] + 0.5) * scale - 0.5
        for a, b in BONES:
            if np.isfinite(points[[a, b]]).all() and np.abs(points[[a, b]]).max() < 1e4:
                ends = [tuple(int(v) for v in np.round(points[k])) for k in (a, b)]
                cv2.line(cell, ends[0], ends[1], _COLOURS[slot], 1, cv2.LINE_AA)
