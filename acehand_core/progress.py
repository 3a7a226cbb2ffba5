"""Progress on standard error: a bar for people, lines for logs."""

from __future__ import annotations

import io
from typing import Any, TextIO

#: Standard error, or what stands in for it.
Stream = TextIO | io.TextIOBase


class Bars:
    """One progress bar per stage on standard error, in a log a line per tenth; or ``quiet``."""

    def __init__(self, quiet: bool, stream: Stream) -> None:
        self._quiet, self._stream = quiet, stream
        self._bar: Any = None
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show ``done`` of ``total``; a total of 0 is a remark. A stage may end in ", DETAIL"."""
        if self._quiet:
            return
        if total == 0:
            self.close()
            print(stage, file=self._stream)
            return
        name = stage.partition(",")[0]
        if not self._stream.isatty():
            part = f"{name}: {10 * (10 * done // total)} %"
            if total > 1 and part != self._stage:
                print(part + stage.removeprefix(name), file=self._stream, flush=True)
                self._stage = part
            return
        from tqdm import tqdm  # here, so that the doctor can say that it is missing

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
