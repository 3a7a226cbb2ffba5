"""The identity of a file: a hash of what it holds, never its name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from acehand_core.errors import InputError


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, or of a folder's files, in hexadecimal.

    Of a folder the names and contents of the files directly in it count. Raises InputError.
    """
    try:
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file())
            lines = [f"{content_sha256(file)} {file.name}\n" for file in files]
            return hashlib.sha256("".join(lines).encode()).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
