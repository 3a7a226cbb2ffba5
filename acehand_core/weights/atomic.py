"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from acehand_core.errors import OutputError

_CHOOSE = "choose another name or allow overwriting (--overwrite)."
_HINT = "Free some space or check the permissions, then run again."


@contextlib.contextmanager
def whole_file(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling that becomes ``path``; on any failure it is removed.

    Raises OutputError when ``path`` exists and ``overwrite`` is false, or on a write error.
    """
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; {_CHOOSE}")
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with _output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path, overwrite: bool, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield a new sibling folder that becomes ``path``; on any failure it is removed.

    An existing folder is replaced only with ``overwrite`` and only if ``is_ours`` says that it is
    of the same kind, so that a mistyped path costs nobody their files. Raises OutputError.
    """
    if path.exists():
        if not overwrite:
            raise OutputError(f"{path} exists; {_CHOOSE}")
        if not is_ours(path):
            raise OutputError(f"{path} is not such a folder and is not replaced; choose another.")
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    with _output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            if path.exists():
                path.rename(old)
            try:
                temporary.rename(path)
            except OSError:
                if old.exists():
                    old.rename(path)
                raise
            _sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _output_errors(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{where}: cannot write: {reason}. {_HINT}") from error


def _sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
