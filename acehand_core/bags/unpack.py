"""Storage files that are compressed as a whole: decompressed once, for everyone who reads them."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from acehand_core.bags.records import Losses, zstd_module
from acehand_core.errors import InputError, OutputError

_BLOCK = 1 << 20
_lock = threading.Lock()
#: Every thread that reads frames opens the bag for itself; the copy on disk is one for all.
_held: weakref.WeakValueDictionary[tuple[Path, int, int], Unpacked] = weakref.WeakValueDictionary()


class Unpacked:
    """A decompressed copy beside the system's other temporary files; gone with its last user.

    ``path`` is the copy, ``problem`` what is wrong with the compressed file, "" for nothing.
    """

    def __init__(self, file: Path, still: Callable[[], None] | None) -> None:
        try:
            folder = tempfile.mkdtemp(prefix="acehand-bag-")
        except OSError as error:
            raise _no_room(file, error) from error
        weakref.finalize(self, shutil.rmtree, folder, True)
        self.path = Path(folder) / file.stem
        self.problem = _decompress(file, self.path, still)


def unpacked(file: Path, losses: Losses, still: Callable[[], None] | None = None) -> Unpacked:
    """Return the decompressed copy of a file, made now unless someone holds it already.

    ``still`` is called now and then, and may raise to stop.

    Raises:
        InputError: the file cannot be read. OutputError: the copy cannot be written.
        MissingDependencyError: zstd is not installed.
    """
    try:
        state = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    key = file.absolute(), state.st_size, state.st_mtime_ns
    with _lock:
        copy = _held.get(key)
        if copy is None:
            copy = _held[key] = Unpacked(file, still)
    if copy.problem:
        losses.remark(f"{file.name}: damaged compression ({copy.problem})")
        losses.lose("*", "behind the damaged part of a compressed file")
    return copy


def _decompress(file: Path, target: Path, still: Callable[[], None] | None) -> str:
    zstd = zstd_module()
    try:
        source, out = zstd.ZstdFile(file), target.open("wb")
    except OSError as error:
        raise _unreadable(file, error) from error
    with source, out:
        while True:
            if still is not None:
                still()
            try:
                block = source.read1(_BLOCK)
            except (zstd.ZstdError, EOFError) as error:
                problem = str(error)
                break
            except OSError as error:
                raise _unreadable(file, error) from error
            if not block:
                problem = ""
                break
            try:
                out.write(block)
                out.flush()
            except OSError as error:
                raise _no_room(file, error) from error
    return problem


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(f"{file}: cannot be read ({error.strerror or error}).")


def _no_room(file: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{file}: compressed as a whole, and cannot be decompressed into {tempfile.gettempdir()}: "
        f"{error.strerror or error}. TMPDIR names another place for it."
    )
