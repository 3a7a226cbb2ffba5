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
with contextlib.suppress(ImportError):  # Windows has no file locks
    fcntl = importlib.import_module("fcntl")


@contextlib.contextmanager
def output_errors(where: Path) -> Iterator[None]:
    """Turn an OSError into an OutputError that names ``where``."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{where}: cannot write: {error.strerror or error}. Free some space or check the "
            "permissions, then run again."
        ) from error


def check_free(path: Path, overwrite: bool) -> None:
    """Raise OutputError when ``path`` exists and ``overwrite`` is false."""
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; choose another name or allow overwriting (`overwrite`).")


@contextlib.contextmanager
def atomic_path(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling that becomes ``path`` on success and is removed on failure.

    Raises OutputError: ``path`` exists without ``overwrite``, or cannot be written.
    """
    check_free(path, overwrite)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}{path.suffix}")
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            sync(temporary)
            check_free(path, overwrite)  # another process may have made it meanwhile
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(
    path: Path, overwrite: bool = False, is_ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yield a new sibling folder that becomes ``path`` on success and is removed on failure.

    ``overwrite`` replaces an existing folder, but only one that ``is_ours``: a mistyped path must
    not cost files. Raises OutputError.
    """
    check_free(path, overwrite)
    if is_ours is not None and path.exists() and not is_ours(path):
        raise OutputError(f"{path} is another kind of folder and is not replaced; choose another.")
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            rename_folder(temporary, path, overwrite)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def rename_folder(
    made: Path, path: Path, replaces: bool, step: Callable[[str], None] = lambda name: None
) -> None:
    """Rename a folder to ``path``; ``replaces``: a folder there, locked by the caller.

    Undone on OSError; ``step`` is called before each. Raises OutputError if another process has
    made ``path``.
    """
    aside = path.with_name(f".{path.name}.replaced-{os.getpid()}")
    step("set the old dataset aside")
    if replaces and path.exists():
        path.rename(aside)
    try:
        step("rename")
        with contextlib.suppress(OSError):
            path.rmdir()  # Windows renames to no existing folder, be it empty
        made.rename(path)  # to one with content no system does
    except BaseException as error:
        if aside.exists():
            aside.rename(path)
        elif path.exists() and isinstance(error, OSError):
            raise OutputError(f"{path} exists: another process made it.") from error
        raise

    with contextlib.suppress(OSError):  # a later writer tidies up
        step("remove the old dataset")
        if aside.exists():
            shutil.rmtree(aside)


def remove_folder(path: Path) -> None:
    """Remove a folder; if interrupted, it is whole or gone. Raises OutputError."""
    hidden = path.with_name(f".{path.name}.old-{os.getpid()}")
    with output_errors(path):
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        sync(path.parent)
        shutil.rmtree(hidden)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk. Raises OSError."""
    path.write_bytes(content)
    sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
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
    """One writer per folder, across processes, until ``release`` or the end of the process.

    The lock is on the folder: it leaves no file and survives a rename. Raises LockedError at once,
    for what ``named`` says, if another writer has it or has moved the folder away.
    """

    def __init__(self, folder: Path, named: Path | None = None) -> None:
        self._descriptor: int | None = None
        if fcntl is None:
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), folder.stat()):
                raise FileNotFoundError
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            raise LockedError(
                f"{named or folder}: another process is writing to it; wait for it to end."
            ) from None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return
        self._descriptor = descriptor

    @property
    def held(self) -> bool:
        """Whether the system granted a lock; False on systems without locks."""
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
    """Yield the folders ``.NAME.KIND-*`` next to ``path`` that killed writers left.

    Each is locked while the caller has it. Folders in use are left out, as are all on systems
    without locks. Raises OSError.
    """
    if not path.parent.is_dir():
        return
    prefix = f".{path.name}.{kind}-"
    with os.scandir(path.parent) as entries:  # fast among a thousand datasets
        names = sorted(entry.name for entry in entries if entry.name.startswith(prefix))
    for folder in (path.parent / name for name in names):
        if folder.is_dir():
            with contextlib.suppress(LockedError, FileNotFoundError), DirectoryLock(folder) as lock:
                if lock.held:
                    yield folder
