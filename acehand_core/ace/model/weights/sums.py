"""SHA-256 of weight files, lists of them, and whose weights they are. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from acehand_core.errors import InputError

SUMS_FILE = "SHA256SUMS"
CHECKPOINT = (
    "ACE-Ego-Hand checkpoint: CC BY-NC 4.0 (no commercial use; derived from MANO and research "
    "datasets)"
)
BASE = "Wan2.2-Fun-5B-Control transformer and Wan 2.2 VAE: Apache-2.0"
RELEASED = f"{CHECKPOINT}; {BASE}"
NOT_BUNDLED = (
    "The weights are the work of others and are not part of acehand; you fetch them yourself and "
    "their licences bind what you do with them."
)

#: What is known of files in this process, by all that the system reports of them. The time of
#: the last change of an inode cannot be set, so other content is never taken for this.
_known: dict[tuple[str, int, int, int, int, int], str] = {}
#: Time stamps of file systems are this coarse at most: a file as young as that may change again
#: and keep its stamps.
_SETTLED_S = 3.0


def write_sums(folder: Path) -> None:
    """Write ``SHA256SUMS`` over all files of a folder, as ``sha256sum --check`` reads it."""
    files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file()}
    lines = (f"{digest}  {name}\n" for name, digest in sha256s(files).items())
    (folder / SUMS_FILE).write_text("".join(lines), "utf-8")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raises InputError.

    A file of gigabytes is read once in a process, unless it changes.
    """
    try:
        with path.open("rb") as stream:
            before = _state(path, stream.fileno())
            if before in _known:
                return _known[before]
            started = time.time()
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            settled = started - max(before[4], before[5]) / 1e9 > _SETTLED_S
            if settled and _state(path, stream.fileno()) == before:
                _known[before] = digest
            return digest
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _state(path: Path, descriptor: int) -> tuple[str, int, int, int, int, int]:
    """Return what changes when a file does: path, device, inode, size, and both times of change."""
    state = os.fstat(descriptor)
    times = state.st_mtime_ns, state.st_ctime_ns
    return str(path), state.st_dev, state.st_ino, state.st_size, *times


def sha256s(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of several files, by the given labels; they are read side by side."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(files, pool.map(sha256, files.values()), strict=True))


def joint_sha256(digests: Iterable[str]) -> str:
    """Return one hash for several files, whatever they are called and in whatever order."""
    return hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()


def licence_text(licence: str) -> str:
    """Return the text of ``LICENSE.txt`` beside converted weights."""
    return (
        f"Licence of the weights in this folder:\n\n    {licence or 'not stated by the source'}\n\n"
        "They were converted to another file format and not changed otherwise. The licence of\n"
        "the software that converted them (Apache-2.0) does not apply to them.\n"
    )
