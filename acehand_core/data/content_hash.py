"""The identity of a file: a hash of what it holds, never its name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from acehand_core.errors import InputError

_BLOCK = 1 << 20


def content_sha256(path: Path, read: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file's content, or of a folder's files, in hexadecimal.

    Of a folder the names and contents of the files directly in it count. ``read`` is told how many
    bytes more were read, and may raise to stop. Raises InputError.
    """
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
            lines = [f"{content_sha256(file, read)} {file.name}\n" for file in files]
            return hashlib.sha256("".join(lines).encode()).hexdigest()
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(_BLOCK):
                digest.update(block)
                if read is not None:
                    read(len(block))
            return digest.hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
