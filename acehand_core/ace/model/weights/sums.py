"""SHA-256 of weight files, and licences of weights. Needs no torch."""

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
NOT_BUNDLED = "The weights are third-party work, not part of acehand; their licences apply."

#: Hashes of this process by file state. The change time of an inode cannot be set, so changed
#: content has another state.
_known: dict[tuple[str, int, int, int, int, int], str] = {}
#: Resolution of file time stamps: younger files may change without a change of their stamps.
_SETTLED_S = 3.0


def write_sums(folder: Path) -> None:
    """Write ``SHA256SUMS`` over all files of a folder, for ``sha256sum --check``."""
    files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file()}
    lines = (f"{digest}  {name}\n" for name, digest in sha256s(files).items())
    (folder / SUMS_FILE).write_text("".join(lines), "utf-8")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal, cached until it changes. Raises InputError."""
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
    """Return what changes with a file: path, device, inode, size, and both times of change."""
    state = os.fstat(descriptor)
    times = state.st_mtime_ns, state.st_ctime_ns
    return str(path), state.st_dev, state.st_ino, state.st_size, *times


def sha256s(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the SHA-256 of several files, by the given labels, read in parallel."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(files, pool.map(sha256, files.values()), strict=True))


def joint_sha256(digests: Iterable[str]) -> str:
    """Return one hash for several files, independent of names and order."""
    return hashlib.sha256(json.dumps(sorted(digests)).encode()).hexdigest()


def licence_text(licence: str) -> str:
    """Return the text of ``LICENSE.txt`` for converted weights."""
    return (
        f"Licence of the weights in this folder:\n\n    {licence or 'not stated by the source'}\n\n"
        "They were converted to another file format and not changed otherwise. The licence of\n"
        "the software that converted them (Apache-2.0) does not apply to them.\n"
    )
