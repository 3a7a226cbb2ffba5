"""Folders and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from acehand_core.errors import OutputError, SchemaError

_HINT = "Free some space or check the permissions, then run again."


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden sibling that becomes ``path`` (replacing a folder there), or is removed.

    Raises OutputError on a write error.
    """
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        _sync(path.parent)
    except OSError as error:
        if old.exists() and not path.exists():
            old.rename(path)
        reason = error.strerror or str(error)
        raise OutputError(f"{path}: cannot write: {reason}. {_HINT}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder; one that is there is whole, whenever this is stopped.

    Raises OutputError on a write error.
    """
    hidden = path.with_name(f".{path.name}.old-{os.getpid()}")
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        _sync(path.parent)
        shutil.rmtree(hidden)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path}: cannot remove: {reason}. {_HINT}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON that appears whole or not at all. Raises OutputError."""
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value, indent=1, default=plain) + "\n", "utf-8")
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path}: cannot write: {reason}. {_HINT}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read JSON. Raises SchemaError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: not readable as JSON: {error}.") from error


def plain(value: Any) -> Any:
    """Return what JSON can hold of a setting: numbers of numpy, else text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
