"""SHA-256 of weight files, and licences of weights. Needs no torch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from acehand_core.atomic import atomic_path
from acehand_core.errors import InputError, OutputError

SUMS_FILE = "SHA256SUMS"
CHECKPOINT = (
    "ACE-Ego-Hand checkpoint: CC BY-NC 4.0 (no commercial use; derived from MANO and research "
    "datasets)"
)
BASE = "Wan2.2-Fun-5B-Control transformer and Wan 2.2 VAE: Apache-2.0"
RELEASED = f"{CHECKPOINT}; {BASE}"
NOT_BUNDLED = "The weights are third-party work, not part of acehand; their licences apply."

#: Hashes by file state: its change time cannot be set, so changed content has another state.
_known: dict[Path, str] = {}
#: Smaller files are read as fast as their records.
_RECORDED_BYTES = 1 << 24
#: Resolution of file time stamps: younger files may change without a change of their stamps.
_SETTLED_S = 3.0


def write_sums(folder: Path) -> None:
    """Write ``SHA256SUMS`` over all files of a folder, for ``sha256sum --check``."""
    files = {f.relative_to(folder).as_posix(): f for f in sorted(folder.rglob("*")) if f.is_file()}
    lines = (f"{digest}  {name}\n" for name, digest in sha256s(files).items())
    (folder / SUMS_FILE).write_text("".join(lines), "utf-8")


def sha256(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal, recorded until it changes. Raises InputError."""
    try:
        with path.open("rb") as stream:
            record, state = _record(path, stream), os.fstat(stream.fileno())
            if record not in _known:
                with contextlib.suppress(OSError, ValueError):
                    _known[record] = record.read_text("utf-8")
            if record in _known:
                return _known[record]
            started = time.time()
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            settled = started - max(state.st_mtime, state.st_ctime) > _SETTLED_S
            if settled and _record(path, stream) == record:
                _known[record] = digest
                if state.st_size >= _RECORDED_BYTES:  # without a cache to write, all processes read
                    with contextlib.suppress(OutputError), atomic_path(record, True) as new:
                        new.write_text(digest, "utf-8")
            return digest
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _record(path: Path, stream: IO[bytes]) -> Path:
    """Return where a file's hash is kept, by its state; not next to it, where others write."""
    at, cache = os.fstat(stream.fileno()), Path(os.devnull)
    with contextlib.suppress(RuntimeError):  # no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    state = str(path.resolve()), at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns
    return cache / "acehand" / "sha256" / hashlib.sha256(repr(state).encode()).hexdigest()


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
