"""A headless Chromium that tests drive over a pipe, by the DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str:
    """Return the browser's name; skip the test where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    return found


class Browser:
    """One page of a browser; a context manager. ``errors``: what the page said on its console."""

    def __init__(self, width: int = 1400, height: int = 1000) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        here, theirs_out = os.pipe()
        theirs_in, there = os.pipe()
        # The browser reads commands from file 3 and writes answers to file 4.
        script = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, chromium(), "--headless", "--no-sandbox",
             "--disable-gpu-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
             "--disable-quic",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--autoplay-policy=no-user-gesture-required",
             "--remote-debugging-pipe", f"--window-size={width},{height}",
             f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._read, self._write = here, there
        self._buffer, self._next, self._events = b"", 0, []
        self.errors: list[str] = []
        self._session: str | None = None
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._folder.cleanup()

    def open(self, address: str, offline: bool = False) -> None:
        """Load a page and wait until its script has run."""
        if offline:
            self._call("Network.enable")
            self._call("Network.emulateNetworkConditions", offline=True, latency=0,
                       downloadThroughput=0, uploadThroughput=0)  # fmt: skip
        self._call("Page.navigate", url=address)
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """Return the value of an expression, awaited; raise what it throws."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True,
                            returnByValue=True)  # fmt: skip
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 30.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}; {self.errors}"
            time.sleep(0.05)

    def key(self, key: str, code: str | None = None, shift: bool = False) -> None:
        """Press a key as a user does."""
        text = {"text": key} if len(key) == 1 else {}
        common = {"key": key, "code": code or key, "modifiers": 8 if shift else 0}
        self._call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def labels(self) -> list[dict[str, str]]:
        """Return role and name of everything that a screen reader can reach."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            {"role": node.get("role", {}).get("value", ""),
             "name": node.get("name", {}).get("value", "")}
            for node in nodes if not node.get("ignored")
        ]  # fmt: skip

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        self._next += 1
        number = self._next
        message = {"id": number, "method": method, "params": arguments}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._notice(answer)

    def _notice(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and said["type"] in (
            "error", "warning", "assert"
        ):  # fmt: skip
            self.errors.append(str([a.get("value", a.get("description")) for a in said["args"]]))
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"] + " " + said["entry"].get("url", ""))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
