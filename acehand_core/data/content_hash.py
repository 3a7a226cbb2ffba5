"""The identity of a file: a hash of what it holds, never its name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from acehand_core.errors import InputError


def content_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal. Raises InputError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
