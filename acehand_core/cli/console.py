"""Shared by all commands: progress bars, quiet native libraries, messages, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

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
from acehand_core.settings import Leaf, Setting, leaves, respelled, setting

#: The commands' exit codes, here as ``console.EXIT_...`` for all of them.
__all__ = ["EXIT_INPUT", "EXIT_INTERRUPTED", "EXIT_NO_HAND", "EXIT_OK", "EXIT_OUTPUT",
           "EXIT_SOME_FAILED"]  # fmt: skip

#: Standard error or its replacement.
Stream = TextIO | io.TextIOBase
#: At least between lines of progress in a log, in seconds.
LOG_S = 30.0
#: Help of ``--overwrite``.
OVERWRITE = "replace existing output"
#: Another command in a message, whose settings may follow.
_COMMAND = re.compile(r"(?=`acehand ([a-z ]+)`)")


@dataclass(slots=True)
class _Names:
    """Settings that messages name: the running command's, and those of another by its name."""

    running: tuple[Leaf, ...] = ()
    settings_of: Callable[[str], tuple[Leaf, ...]] = lambda command: ()


_NAMES = _Names()


class Bars:
    """A progress bar per stage on a terminal, a line per tenth and ``LOG_S`` in a log, or none."""

    def __init__(self, quiet: bool, stream: Stream) -> None:
        self._quiet, self._stream = quiet, stream
        self._bar: Any = None
        self._stage, self._logged_at = "", time.monotonic()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show ``done`` of ``total``; a total of 0 is a remark. A stage may end in ", DETAIL"."""
        if self._quiet:
            return
        if total == 0:
            self.close()
            print(as_flags(stage), file=self._stream)
            return
        name = stage.partition(",")[0]
        if not self._stream.isatty():
            part, now = f"{name}: {10 * (10 * done // total)} %", time.monotonic()
            if total > 1 and part != self._stage and now - self._logged_at >= LOG_S:
                print(part + stage.removeprefix(name), file=self._stream, flush=True)
                self._stage, self._logged_at = part, now
            return
        from tqdm import tqdm  # here, so that the doctor can report that it is missing

        if name != self._stage or self._bar is None or self._bar.total != total:
            self.close()
            self._stage = name
            self._bar = tqdm(
                total=total, initial=max(done - 1, 0), file=self._stream, unit="",
                dynamic_ncols=True, leave=total > 1,
            )  # fmt: skip
        self._bar.set_description(stage, refresh=False)
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
def quiet_native_libraries(verbose: bool) -> Iterator[Stream]:
    """Yield standard error while the output of C++ libraries is dropped, unless ``verbose``.

    They write to file descriptor 2 from their own threads and have no switch that works.
    """
    if verbose:
        yield sys.stderr
        return

    sys.stderr.flush()
    python_stderr = sys.stderr
    own, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    with contextlib.suppress(OSError, ValueError):  # it may be captured in memory
        if python_stderr.fileno() == 2:
            sys.stderr = os.fdopen(os.dup(own), "w", 1, encoding="utf-8", errors="replace")
    try:
        yield sys.stderr
    finally:
        if sys.stderr is not python_stderr:
            sys.stderr.close()
            sys.stderr = python_stderr
        os.dup2(own, 2)
        os.close(own)


@dataclass(frozen=True, slots=True)
class Common:
    """Flags of every command."""

    json: bool = setting(False, "print one JSON object as the last line of standard output")
    verbose: bool = setting(
        False, "show tracebacks and the output of native libraries", short="v", either="volume"
    )
    quiet: bool = setting(
        False, "no progress, and one line per clip, with its verdict", short="q", either="volume"
    )


@dataclass(frozen=True, slots=True)
class Terminal:
    """Progress bars, and the user's choice of output."""

    bars: Bars
    json: bool
    verbose: bool
    quiet: bool

    def print_json(self, report: Any) -> None:
        """With ``--json`` print a JSON object, or the one that a function returns."""
        if self.json:
            print_json(report() if callable(report) else report)


@runtime_checkable
class Runnable(Protocol):
    """A command: a dataclass of settings with ``run``."""

    def run(self, terminal: Terminal) -> int:
        """Run it; return the exit code. Raises AcehandError."""
        ...


@contextlib.contextmanager
def pipeable() -> Iterator[None]:
    """Exit with ``EXIT_OUTPUT`` when the reader of standard output has seen enough (``| head``)."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout, 0)
        if not output.poll(0):  # the broken pipe is another one
            raise
        # The rest of the buffer goes nowhere; Python would complain about it at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_OUTPUT)


def run(
    program: str,
    argv: Sequence[str] | None,
    load: Callable[[], type[Runnable]],
    settings_of: Callable[[str], tuple[Leaf, ...]] = lambda command: (),
) -> int:
    """Run the command of the class that ``load`` returns; return its exit code.

    Errors become messages and exit codes (docs/formats.md). ``settings_of`` returns the settings of
    another command that a message names.
    """
    words = sys.argv[1:] if argv is None else argv
    if "--version" in words:
        print(f"acehand {__version__}")
        return EXIT_OK

    # Needed before the flags are parsed, which may fail.
    json_wanted, verbose = "--json" in words, bool({"-v", "--verbose"} & {*words})
    quiet = bool({"-q", "--quiet"} & {*words})
    empty: Mapping[str, Any] = {}
    _NAMES.running, _NAMES.settings_of = (), settings_of
    with quiet_native_libraries(verbose) as stream, Bars(quiet, stream) as bars:
        try:
            kind = load()
            _NAMES.running = (*leaves(kind), *leaves(Common))
            empty = getattr(kind, "json_of_nothing", {})
            command, common = _parsed(program, words, kind)
            return command.run(Terminal(bars, common.json, common.verbose, common.quiet))
        except (KeyboardInterrupt, AcehandError) as error:
            bars.close()
            if json_wanted and (report := getattr(error, "report", None)) is not None:
                print_json(report.to_json())
            elif json_wanted:
                message = str(error) or "interrupted"
                print_json({**empty, "errors": [{"source": None, "message": message}]})
            if isinstance(error, KeyboardInterrupt):
                print("Interrupted; finished episodes are kept.", file=stream)
                return EXIT_INTERRUPTED
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
        return kind(), Common(json="--json" in words)  # the doctor, which reports what is missing
    command, common = parse(program, words, kind, Common)
    return command, common


def say_files(files: Sequence[Path], terminal: Terminal, **entries: Any) -> int:
    """Print the files that a command wrote, in JSON after ``entries``; return exit code 0."""
    terminal.bars.close()
    for file in files:
        say(str(file))
    terminal.print_json({**entries, "files": [str(file) for file in files]})
    return EXIT_OK


def say_error(error: Exception, verbose: bool) -> None:
    """Print an error on standard error, after its traceback if ``verbose``."""
    if verbose:
        say("".join(traceback.format_exception(error)).rstrip())
    say(f"error: {error}")


def say(text: str) -> None:
    """Print a line on standard error, with flags; standard output is for ``--json``."""
    print(as_flags(text), file=sys.stderr)


def as_flags(text: str) -> str:
    """Return a message with settings as flags: the running command's, then the named command's."""
    start, *others = _COMMAND.split(text)
    parts = [respelled(start, _NAMES.running, flag)]
    for command, part in zip(others[::2], others[1::2], strict=True):
        settings = (*_NAMES.running, *_NAMES.settings_of(command))
        parts.append(respelled(part, settings, flag))
    return "".join(parts)


def flag(leaf: Leaf, value: str | None = None) -> str:
    """Return a setting as typed in a command."""
    about = leaf.setting
    if about.positional:
        return value or about.metavar or leaf.flag.upper()
    if about.switches is not None:
        return " or ".join(f"--{name}" for name in ([value] if value else about.switches))
    if isinstance(leaf.default, bool):
        off = value == "False" if value else leaf.default and not about.pair
        return f"--no-{leaf.flag}" if off else f"--{leaf.flag}"
    return f"--{leaf.flag} {value}" if value else f"--{leaf.flag}"


def print_json(value: Any) -> None:
    """Print one JSON object on one line of standard output."""
    print(json.dumps(value, allow_nan=False), flush=True)


def described(leaf: Leaf, known: Sequence[Leaf]) -> Setting:
    """Return a setting's description with the settings that it names as flags."""
    about = leaf.setting
    values = {name: respelled(text, known, flag) for name, text in (about.switches or {}).items()}
    help, default = (t and respelled(t, known, flag) for t in (about.help, about.default_text))
    return replace(about, help=help or "", default_text=default, switches=values or None)
