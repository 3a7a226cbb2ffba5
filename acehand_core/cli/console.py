"""What the commands share: progress bars, quiet native libraries, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from acehand_core import __version__
from acehand_core.errors import (
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_NO_HAND,
    EXIT_OK,
    EXIT_OUTPUT,
    EXIT_SOME_FAILED,
    AcehandError,
    MissingDependencyError,
    exit_code,
)
from acehand_core.progress import Bars, Stream
from acehand_core.settings import leaves, setting

#: The commands' exit codes, here as ``console.EXIT_...`` for all of them.
__all__ = ["EXIT_INPUT", "EXIT_INTERRUPTED", "EXIT_NO_HAND", "EXIT_OK", "EXIT_OUTPUT",
           "EXIT_SOME_FAILED"]  # fmt: skip


#: Help of ``--overwrite``.
OVERWRITE = "replace what is there"


@contextlib.contextmanager
def quiet_native_libraries(verbose: bool) -> Iterator[Stream]:
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


def _writes_to(stream: Stream, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):
        return False  # captured in memory: nothing to move out of the way


@dataclass(frozen=True, slots=True)
class Common:
    """What every command takes."""

    json: bool = setting(False, "print one JSON object as the last line of standard output")
    verbose: bool = setting(
        False, "show tracebacks and what native libraries print", short="v", either="volume"
    )
    quiet: bool = setting(
        False, "no progress, of a clip one line with its verdict", short="q", either="volume"
    )


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command reports: progress, lines for people, and one JSON object if wanted."""

    bars: Bars
    json: bool
    verbose: bool
    quiet: bool

    def print_json(self, report: Any) -> None:
        """Print a JSON object, or what a function returns, if the user wants one."""
        if self.json:
            print_json(report() if callable(report) else report)


@runtime_checkable
class Runnable(Protocol):
    """A command: settings, and what they do."""

    def run(self, terminal: Terminal) -> int:
        """Do it; return the exit code. Raises AcehandError."""
        ...


def run(program: str, argv: Sequence[str] | None, load: Callable[[], type[Runnable]]) -> int:
    """Run a command with its flags; turn errors into messages and exit codes (docs/formats.md).

    ``load`` returns the class of the command, a dataclass of settings.
    """
    words = sys.argv[1:] if argv is None else argv
    if "--version" in words:
        print(f"acehand {__version__}")
        return EXIT_OK

    # Needed before the settings are, since those may be refused.
    json_wanted, verbose = "--json" in words, bool({"-v", "--verbose"} & {*words})
    quiet = bool({"-q", "--quiet"} & {*words})
    nothing: Mapping[str, Any] = {}
    with quiet_native_libraries(verbose) as stream, Bars(quiet, stream) as bars:
        try:
            kind = load()
            nothing = getattr(kind, "json_of_nothing", {})
            command, common = _parsed(program, words, kind)
            return command.run(Terminal(bars, common.json, common.verbose, common.quiet))
        except KeyboardInterrupt as stop:
            bars.close()
            if json_wanted:
                report = getattr(stop, "report", None)
                print_json(_nothing(nothing, "interrupted") if report is None else report.to_json())
            print("Interrupted; finished episodes stay.", file=stream)
            return EXIT_INTERRUPTED
        except AcehandError as error:
            bars.close()
            if json_wanted:
                print_json(_nothing(nothing, str(error)))
            say_error(error, verbose)
            return exit_code(error)


def _parsed(program: str, words: Sequence[str], kind: type[Runnable]) -> tuple[Runnable, Common]:
    try:
        from acehand_core.cli.flags import parse
    except ImportError as error:
        if leaves(kind):
            raise MissingDependencyError(
                f"The commands need tyro ({error}); pip install . in the checkout."
            ) from error
        return kind(), Common(json="--json" in words)  # the doctor, who says what is missing
    command, common = parse(program, words, kind, Common)
    return command, common


def _nothing(report: Mapping[str, Any], message: str) -> dict[str, Any]:
    """Return the JSON object of a command that gave nothing."""
    return {**report, "errors": [{"source": None, "message": message}]}


def say_error(error: Exception, verbose: bool) -> None:
    """Print an error for people; with ``verbose`` where it came from before it."""
    if verbose:
        say("".join(traceback.format_exception(error)).rstrip())
    say(f"error: {error}")


def say(text: str) -> None:
    """Print a line for people on standard error, which leaves standard output to ``--json``."""
    print(text, file=sys.stderr)


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)
