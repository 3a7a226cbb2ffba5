"""Whether the files of a recording are the same as before."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from acehand_core.data.content_hash import content_sha256

#: Files above this size are told apart by size and time, not by content.
_HASHED_BYTES = 64 << 20


def fingerprints(paths: Sequence[Path]) -> list[str]:
    """Return one line per file or folder; "absent" where there is none.

    Files by content, large ones by size and time; folders by the names, sizes and times in them.
    """
    out = []
    for path in paths:
        if path.is_dir():
            lines = sorted(
                f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}"
                for p in path.iterdir()
                if p.is_file()
            )
            out.append(hashlib.sha256("\n".join(lines).encode()).hexdigest())
        elif path.is_file():
            status = path.stat()
            out.append(_file_fingerprint(path, status.st_size, status.st_mtime_ns))
        else:
            out.append("absent")
    return out


@functools.lru_cache(maxsize=64)
def _file_fingerprint(path: Path, size: int, mtime_ns: int) -> str:
    if size > _HASHED_BYTES:
        return f"{path.name} {size} {mtime_ns}"
    return content_sha256(path)
