"""Errors with messages for users, and the exit codes of commands and nodes.

Each message says what is wrong, where, and what would be valid.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

EXIT_OK, EXIT_SOME_FAILED, EXIT_INPUT, EXIT_NO_HAND, EXIT_OUTPUT = 0, 1, 2, 3, 4
EXIT_INTERRUPTED = 130


class AcehandError(Exception):
    """Base of all errors with a message for users."""


class InputError(AcehandError):
    """An input file or argument cannot be used."""


class VideoError(InputError):
    """A video cannot be opened or decoded."""


class CalibrationError(InputError):
    """A camera file, camera poses or inline intrinsics are not usable."""


class SchemaError(InputError):
    """A table, dataset or parameter file does not follow its documented schema."""


class UnsafeFileError(InputError):
    """A file would run code, or names a path outside its folder."""


class NoHandError(AcehandError):
    """No hand was found in any input."""


class OutputError(AcehandError):
    """The output cannot be written."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run; ``report`` is about the finished part."""

    def __init__(self, report: Any) -> None:
        super().__init__()
        self.report = report


class MissingDependencyError(AcehandError):
    """An optional package or system library is missing."""


def exit_code(error: Exception) -> int:
    """Return the exit code for an error that ended a command (docs/formats.md)."""
    if isinstance(error, NoHandError):
        return EXIT_NO_HAND
    return EXIT_OUTPUT if isinstance(error, OutputError) else EXIT_INPUT


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a sentence with the valid names and the closest one."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"valid: {', '.join(names) or 'none'}.{hint}"
