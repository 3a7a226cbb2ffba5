"""npz files without pickles, a cache of such files, and hashes of contents."""

from __future__ import annotations

import hashlib
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError, SchemaError, UnsafeFileError

_MAX_BYTES = 16 << 30
_BLOCK = 1 << 20


def safe_load_npz(path: Path, max_bytes: int = _MAX_BYTES) -> dict[str, np.ndarray]:
    """Return every array of an npz; never a pickled one.

    Raises UnsafeFileError: an array holds pickled objects, or all unpack to more than
    ``max_bytes``. SchemaError: not an npz. InputError: it cannot be read.
    """
    loaded, key = {}, None
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
            if size > max_bytes:
                raise UnsafeFileError(
                    f"{path}: unpacks to {size} bytes; at most {max_bytes} are allowed."
                )
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays.files:
                loaded[key] = arrays[key]
    except zipfile.BadZipFile as error:
        raise SchemaError(f"{path}: not an npz file ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, EOFError, MemoryError, RuntimeError, zlib.error, lzma.LZMAError) as error:
        if "allow_pickle" in str(error):
            raise UnsafeFileError(
                f"{path}: {key!r} holds pickled Python objects, which could run code; valid: "
                "arrays of numbers and strings."
            ) from error
        raise SchemaError(f"{path}: {key!r} is damaged ({error}).") from error

    for key, value in loaded.items():
        if not isinstance(value, np.ndarray):
            raise SchemaError(f"{path}: the member {key!r} is not an array.")
    return loaded


class ArrayCache:
    """Arrays of a recording's finished segments in a folder; without a folder nothing is kept.

    A file is named by the kind of arrays, a hash of ``key`` (all that decides its content) and the
    segment.
    """

    def __init__(self, folder: Path | None, kind: str, key: Mapping[str, Any]) -> None:
        self._folder = folder
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        self._prefix = f"{kind}-{digest[:24]}"

    def get(self, start: int, stop: int) -> dict[str, np.ndarray] | None:
        """Return the arrays of a segment; None if they are missing or damaged."""
        path = self._path(start, stop)
        try:
            return safe_load_npz(path) if path is not None and path.is_file() else None
        except InputError:
            return None

    def put(self, start: int, stop: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the arrays of a finished segment atomically. Raises OutputError."""
        path = self._path(start, stop)
        if path is not None:
            columns: dict[str, Any] = dict(arrays)  # numpy's stub takes any keyword for its own
            with atomic_path(path, overwrite=True) as partial, partial.open("wb") as file:
                np.savez_compressed(file, **columns)

    def _path(self, start: int, stop: int) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{self._prefix}-{start:09d}-{stop:09d}.npz"


def content_sha256(path: Path, read: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file, or of names and contents of the files directly in a folder.

    ``read`` is called with the number of bytes in each block, and may raise to stop. Raises
    InputError.
    """
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
            lines = [f"{content_sha256(file, read)} {file.name}\n" for file in files]
            return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK):
                digest.update(block)
                if read is not None:
                    read(len(block))
            return digest.hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
