"""Files and folders that appear whole or not at all, and one writer per folder."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from acehand_core.errors import OutputError

fcntl: ModuleType | None = None
with contextlib.suppress(ImportError):  # Windows: one writer at a time is up to the user
    fcntl = importlib.import_module("fcntl")

_HINT = "Free some space or check the permissions, then run again."


@contextlib.contextmanager
def output_errors(where: Path) -> Iterator[None]:
    """Turn every OSError inside into an OutputError that names ``where``."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{where}: cannot write: {reason}. {_HINT}") from error


def check_free(path: Path, overwrite: bool) -> None:
    """Raise OutputError when ``path`` exists and ``overwrite`` is false."""
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; choose another name or allow overwriting (--overwrite).")


@contextlib.contextmanager
def atomic_path(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling; on success it becomes ``path``, on any failure it is removed.

    Raises OutputError when ``path`` exists and ``overwrite`` is false, or when it cannot be
    written.
    """
    check_free(path, overwrite)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}{path.suffix}")
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(
    path: Path, overwrite: bool = False, is_ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yield a new sibling folder that becomes ``path``; on any failure it is removed.

    An existing folder is replaced only with ``overwrite`` and, where ``is_ours`` is given, only if
    that says that it is of the same kind, so that a mistyped path costs nobody their files. Raises
    OutputError.
    """
    check_free(path, overwrite)
    if is_ours is not None and path.exists() and not is_ours(path):
        raise OutputError(f"{path} is not such a folder and is not replaced; choose another.")
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            if path.exists():
                path.rename(old)
            try:
                temporary.rename(path)
            except OSError:
                if old.exists():
                    old.rename(path)
                raise
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder; one that is there is whole, whenever this is stopped. Raises OutputError."""
    hidden = path.with_name(f".{path.name}.old-{os.getpid()}")
    with output_errors(path):
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        sync(path.parent)
        shutil.rmtree(hidden)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk. Raises OSError."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LockedError(OutputError):
    """Another process, or another writer of this one, is writing to the folder."""


class DirectoryLock:
    """One writer per folder, across processes. Released by ``release`` or by the process' end.

    The lock belongs to the folder itself, so it leaves no file and survives a rename. Raises
    LockedError at once when somebody else has it.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if fcntl is None:
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise LockedError(
                f"{folder}: another process is writing to it; wait for it to end."
            ) from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return
        self._descriptor = descriptor

    @property
    def held(self) -> bool:
        """Whether the system granted a lock; False where it has none."""
        return self._descriptor is not None

    def release(self) -> None:
        """Let others write. Safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def abandoned(path: Path, kind: str) -> Iterator[Path]:
    """Yield the folders ``.NAME.KIND-*`` that killed writers of ``path`` left beside it.

    Each is locked while the caller has it. Folders that a running process holds are left out, and
    all of them where the system has no locks to tell. Raises OSError.
    """
    if not path.parent.is_dir():
        return
    prefix = f".{path.name}.{kind}-"
    with os.scandir(path.parent) as entries:  # quick, for a thousand datasets beside each other
        names = sorted(entry.name for entry in entries if entry.name.startswith(prefix))
    for folder in (path.parent / name for name in names):
        if not folder.is_dir():
            continue
        try:
            lock = DirectoryLock(folder)
        except LockedError:
            continue
        with lock:
            if lock.held:
                yield folder
