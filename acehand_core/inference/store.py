"""What the network said, window by window, in files: memory stays flat and a run can be resumed.

A file's name is a hash of the pictures, the weights and the settings that the numbers depend on:
never of a name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acehand_core.atomic import atomic_path
from acehand_core.data.safe_files import safe_load_npz
from acehand_core.errors import InputError

Arrays = dict[str, np.ndarray]


class WindowStore:
    """Named arrays per window in a folder."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self._prefix = f"windows-{digest[:24]}"

    def get(self, start: int, stop: int) -> Arrays | None:
        """Return the arrays of the window of latents ``start`` to ``stop - 1``, or None.

        A damaged file counts as absent.
        """
        path = self._path(start, stop)
        if not path.is_file():
            return None
        try:
            return safe_load_npz(path)
        except (InputError, EOFError, ValueError):
            return None

    def put(self, start: int, stop: int, arrays: Mapping[str, torch.Tensor]) -> None:
        """Write a window; it appears whole or not at all.

        Raises OutputError when the folder cannot be written.
        """
        with atomic_path(self._path(start, stop), overwrite=True) as partial:
            np.savez(partial, **{name: value.numpy() for name, value in arrays.items()})

    def _path(self, start: int, stop: int) -> Path:
        return self._folder / f"{self._prefix}-{start:06d}-{stop:06d}.npz"
