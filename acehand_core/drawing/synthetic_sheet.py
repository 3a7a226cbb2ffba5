"""A contact sheet of a store's clips: moments of each, the last columns with the truth drawn in."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from acehand_core.datasets.clips.schema import Clip
from acehand_core.datasets.clips.store import ClipStore
from acehand_core.errors import InputError, OutputError
from acehand_core.hand.skeleton import BONES
from acehand_core.types import ImageRgb, Picture

_COLUMNS, _MARKED = 6, 2
_WIDTH = 224
_COLOURS = ((255, 190, 60), (80, 220, 255))  # left, right


def write_sheet(store: ClipStore, path: Path, rows: int = 8) -> None:
    """Write a png with one row per clip, spread over the store.

    Raises:
        InputError: the store is empty. OutputError: it cannot be written.
    """
    names = store.ids()
    if not names:
        raise InputError(f"{store.root}: no clips to show.")
    chosen = [names[i] for i in np.linspace(0, len(names) - 1, min(rows, len(names))).astype(int)]
    sheet = np.concatenate([_row(store.open(name)) for name in chosen])
    done, data = cv2.imencode(".png", cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR))
    try:
        if not done:
            raise OSError("the picture could not be encoded")
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise OutputError(f"{path}: cannot write: {error}.") from error


def _row(clip: Clip) -> Picture:
    if clip.frames is None:
        raise InputError(f"clip {clip.info.id} has no pictures.")
    moments = np.linspace(0, clip.info.frames - 1, _COLUMNS).astype(int)

    cells = []
    for column, frame in enumerate(moments):
        image = clip.frames.at(int(frame))
        scale = _WIDTH / image.shape[1]
        size = (_WIDTH, round(image.shape[0] * scale))
        # Small pictures are shown as they are: pixels, not a blur.
        how = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
        cell = cv2.resize(image, size, interpolation=how)
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
