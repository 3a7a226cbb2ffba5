"""Archives that cannot reach outside: npz without pickles, zip and tar without escapes.

The identity of a file: a hash of what it holds, never its name.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

import numpy as np

from acehand_core.errors import InputError, SchemaError, UnsafeFileError

_MAX_BYTES = 16 << 30


def safe_load_npz(path: Path, max_bytes: int = _MAX_BYTES) -> dict[str, np.ndarray]:
    """Return every array of an npz; never a pickled one.

    Raises:
        UnsafeFileError: an array holds pickled objects, or they unpack to over ``max_bytes``.
        SchemaError: not an npz. InputError: it cannot be read.
    """
    out = {}
    key = None
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(path, sum(info.file_size for info in archive.infolist()), max_bytes)
        with np.load(path, allow_pickle=False) as arrays:
            for key in arrays.files:
                out[key] = arrays[key]
    except zipfile.BadZipFile as error:
        raise SchemaError(f"{path}: not an npz file ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, MemoryError, RuntimeError, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise UnsafeFileError(
                f"{path}: {key!r} holds pickled Python objects, which could run code; only plain "
                "number and string arrays are read."
            ) from error
        raise SchemaError(f"{path}: {key!r} is damaged ({error}).") from error
    for key, value in out.items():
        if not isinstance(value, np.ndarray):
            raise SchemaError(f"{path}: the member {key!r} is not an array.")
    return out


def safe_extract(archive: Path, folder: Path, max_bytes: int = _MAX_BYTES) -> list[Path]:
    """Unpack a zip or tar into ``folder`` and return the files written.

    Every member is checked before the first byte is written: only plain files and folders with
    relative paths that stay inside; no links, devices or two members of one name. Nothing that
    already exists is overwritten.

    Raises:
        UnsafeFileError: a member breaks the rules, or they unpack to over ``max_bytes``.
        SchemaError: neither zip nor tar. InputError: it cannot be read, or a file exists.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                return _write(archive, folder, list(_zip_members(archive, packed)), max_bytes)
        with tarfile.open(archive) as packed:
            return _write(archive, folder, list(_tar_members(archive, packed)), max_bytes)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, RuntimeError, zlib.error) as error:
        raise SchemaError(f"{archive}: not a readable zip or tar file ({error}).") from error
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked ({error}).") from error


def check_member(archive: Path, name: str) -> PurePosixPath:
    """Return a member's path, or raise UnsafeFileError if it leaves the folder on any system."""
    path = PurePosixPath(name)
    windows = PureWindowsPath(name)
    if path.is_absolute() or windows.anchor or ".." in windows.parts or "\0" in name or not name:
        raise UnsafeFileError(
            f"{archive}: the member {name!r} would be written outside the folder; valid are "
            "relative paths without '..'."
        )
    return path


class _Member(NamedTuple):
    """One plain file of an archive: its checked path, size and how to open it."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]


def _zip_members(archive: Path, packed: zipfile.ZipFile) -> Iterator[_Member]:
    for info in packed.infolist():
        kind = info.external_attr >> 28
        path = check_member(archive, info.filename)
        if kind not in (0, 0o4, 0o10):
            _refuse_kind(archive, info.filename)
        if not info.is_dir():
            yield _Member(path, info.file_size, lambda info=info: packed.open(info))


def _tar_members(archive: Path, packed: tarfile.TarFile) -> Iterator[_Member]:
    for info in packed:
        path = check_member(archive, info.name)
        if not (info.isreg() or info.isdir()):
            _refuse_kind(archive, info.name)
        if info.isreg():
            yield _Member(path, info.size, lambda info=info: packed.extractfile(info))


def _refuse_kind(archive: Path, name: str) -> None:
    raise UnsafeFileError(
        f"{archive}: the member {name!r} is a link or device; valid are plain files and folders."
    )


def _write(archive: Path, folder: Path, members: list[_Member], max_bytes: int) -> list[Path]:
    _check_size(archive, sum(member.size for member in members), max_bytes)
    root = folder.resolve()
    targets = [root / member.path for member in members]
    seen = set()
    for target in targets:
        if target in seen:
            raise UnsafeFileError(f"{archive}: two members are named {target.relative_to(root)}.")
        seen.add(target)
        if not target.resolve().is_relative_to(root):
            raise UnsafeFileError(f"{archive}: {target} leads outside {root} through a link.")
        if target.exists():
            raise InputError(f"{archive}: {target} already exists; unpack into a new folder.")
    for member, target in zip(members, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source, target.open("xb") as out:
            shutil.copyfileobj(source, out)
    return targets


def _check_size(path: Path, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise UnsafeFileError(f"{path}: unpacks to {size} bytes; at most {max_bytes} are allowed.")


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
