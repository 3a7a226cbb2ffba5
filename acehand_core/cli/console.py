"""What the commands share: progress bars, quiet native libraries, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from acehand_core import __version__
from acehand_core.errors import (
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_NO_HAND,
    EXIT_OK,
    EXIT_OUTPUT,
    EXIT_SOME_FAILED,
    AcehandError,
    exit_code,
)

#: The commands' exit codes, here as ``console.EXIT_...`` for all of them.
__all__ = ["EXIT_INPUT", "EXIT_INTERRUPTED", "EXIT_NO_HAND", "EXIT_OK", "EXIT_OUTPUT",
           "EXIT_SOME_FAILED"]  # fmt: skip


class Bars:
    """One progress bar per stage on standard error; silent when ``quiet``."""

    def __init__(self, quiet: bool, stream: io.TextIOBase) -> None:
        self._quiet, self._stream = quiet, stream
        self._bar: Any = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show ``done`` of ``total``; a total of 0 is a remark."""
        if self._quiet:
            return
        if total == 0:
            self.close()
            print(stage, file=self._stream)
            return
        from tqdm import tqdm  # here, so that the doctor can say that it is missing

        if stage != self._stage or self._bar is None or self._bar.total != total:
            self.close()
            self._stage = stage
            self._bar = tqdm(
                total=total, desc=stage, file=self._stream, unit="", dynamic_ncols=True,
                leave=total > 1,
            )  # fmt: skip
        self._bar.update(done - self._bar.n)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Finish the current bar."""
        if self._bar is not None:
            self._bar.close()
        self._bar, self._stage = None, ""

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def quiet_native_libraries(verbose: bool) -> Iterator[io.TextIOBase]:
    """Yield standard error while what C++ libraries print there is dropped.

    They write to file descriptor 2 from threads of their own and have no switch that works. With
    ``verbose`` everything is shown.
    """
    if verbose:
        yield sys.stderr
        return

    sys.stderr.flush()
    python_stderr = sys.stderr
    own, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    if _writes_to(python_stderr, 2):
        sys.stderr = os.fdopen(os.dup(own), "w", buffering=1, encoding="utf-8", errors="replace")

    try:
        yield sys.stderr
    finally:
        if sys.stderr is not python_stderr:
            sys.stderr.close()
            sys.stderr = python_stderr
        os.dup2(own, 2)
        os.close(own)


def _writes_to(stream: io.TextIOBase, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False  # captured in memory: nothing to move out of the way


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-v", "--verbose", action="store_true", help="say more, show tracebacks")
    volume.add_argument("-q", "--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--version", action="version", version=version_text())


def run(arguments: argparse.Namespace, command: Callable[..., int]) -> int:
    """Run a command and turn errors into messages and exit codes (docs/formats.md)."""
    with (
        quiet_native_libraries(arguments.verbose) as stream,
        Bars(arguments.quiet, stream) as bars,
    ):
        try:
            return command(arguments, bars)
        except KeyboardInterrupt as stop:
            bars.close()
            if arguments.json:
                report = getattr(stop, "report", None)
                print_json(
                    _nothing(arguments, "interrupted") if report is None else report.to_json()
                )
            print("Interrupted; finished episodes stay.", file=stream)
            return EXIT_INTERRUPTED
        except AcehandError as error:
            bars.close()
            if arguments.json:
                print_json(_nothing(arguments, str(error)))
            say_error(error, arguments.verbose)
            return exit_code(error)


def _nothing(arguments: argparse.Namespace, message: str) -> dict[str, Any]:
    """Return the JSON object of a command that gave nothing."""
    errors = [{"source": None, "message": message}]
    return {**getattr(arguments, "json_of_nothing", {}), "errors": errors}


def say_error(error: Exception, verbose: bool) -> None:
    """Print an error for people; with ``verbose`` where it came from before it."""
    if verbose:
        say("".join(traceback.format_exception(error)).rstrip())
    say(f"error: {error}")


def say(text: str) -> None:
    """Print a line for people on standard error, which leaves standard output to ``--json``."""
    print(text, file=sys.stderr)


def version_text() -> str:
    """Return what ``--version`` prints."""
    return f"acehand {__version__}"


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)
