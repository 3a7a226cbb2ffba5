"""Partial results of a long detection pass, so that an interrupted run goes on where it stopped.

A segment's key is a hash of the pictures (file and how it was read), the library and the detector's
settings: never of a name.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.data.safe_files import safe_load_npz
from acehand_core.errors import InputError, OutputError
from acehand_core.trackers.mediapipe.detector import Detection


class SegmentCache:
    """Detections per segment in a folder; with no folder nothing is kept."""

    def __init__(self, folder: Path | None, key: dict[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"detections-{digest[:24]}"

    def get(self, start: int, stop: int) -> list[list[Detection]] | None:
        """Return a finished segment, or None. A damaged file counts as absent."""
        path = self._path(start, stop)
        if path is None or not path.is_file():
            return None
        try:
            data = safe_load_npz(path)
            flat = [
                Detection(pixels, world, float(p_right), str(look))
                for pixels, world, p_right, look in zip(
                    data["pixels"], data["world"], data["p_right"], data["look"], strict=True
                )
            ]
            ends = np.cumsum(data["count"])
            if len(ends) != stop - start or ends[-1] != len(flat):
                return None
        except (InputError, EOFError, KeyError, ValueError):
            return None
        return [flat[end - count : end] for end, count in zip(ends, data["count"], strict=True)]

    def put(self, start: int, stop: int, frames: list[list[Detection]]) -> None:
        """Write a finished segment; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        path = self._path(start, stop)
        if path is None:
            return
        flat = [d for detections in frames for d in detections]
        partial = path.with_suffix(f".{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez_compressed(
                    file,
                    count=np.array([len(d) for d in frames]),
                    pixels=np.array([d.pixels for d in flat]).reshape(-1, 21, 2),
                    world=np.array([d.world for d in flat]).reshape(-1, 21, 3),
                    p_right=np.array([d.p_right for d in flat]),
                    look=np.array([d.look for d in flat], dtype="U16"),
                )
            partial.replace(path)
        except OSError as error:
            raise OutputError(
                f"{path.parent}: partial results cannot be written: {error.strerror or error}."
            ) from error

    def _path(self, start: int, stop: int) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{start:09d}-{stop:09d}.npz"
