"""The local server of ``acehand review``: the review page, and saving decisions.

It listens on the loopback address, refuses requests to another host name (DNS rebinding), and takes
decisions only with the token of its page.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from acehand_core.errors import AcehandError, OutputError, SchemaError
from acehand_core.lerobot.episode import DatasetReader
from acehand_core.review.decisions import Decision, read_decisions, write_decisions
from acehand_core.review.inspect import Inspection
from acehand_core.review.page import page_data, page_file, page_text, video_of
from acehand_core.user_files import structured

_LONGEST_REQUEST = 1_000_000
_PART = 1 << 20


@dataclass(slots=True)
class ReviewServer:
    """An inspection under review; decisions go to the file ``decisions``, which may not exist."""

    inspection: Inspection
    decisions: Path
    title: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    _saved: dict[str, Decision] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.decisions.is_file():
            self._saved = read_decisions(self.decisions)

    def decide(self, entry: Mapping[str, Any]) -> None:
        """Take a decision and write all. Raises SchemaError, OutputError."""
        decision = structured(Decision, entry, "the page")
        if decision.fingerprint not in {e.fingerprint for e in self.inspection.episodes}:
            raise SchemaError("the page: the decision matches none of its episodes.")
        with self._lock:
            # Another reviewer's page may have changed the file.
            saved = (
                read_decisions(self.decisions) if self.decisions.is_file() else dict(self._saved)
            )
            saved.pop(decision.fingerprint, None)
            if decision.decision or decision.trim:
                saved[decision.fingerprint] = decision
            write_decisions(self.decisions, saved)
            self._saved = saved

    def page(self) -> bytes:
        """Return the page, which requests its episodes."""
        readers = self.readers()
        videos = {}
        for place, episode in enumerate(self.inspection.episodes):
            dataset, number = episode.dataset, episode.number
            if episode.fingerprint and (video := video_of(readers[dataset], number)):
                videos[place] = f"/video/{dataset}/{number}", video[1]
        with self._lock:
            saved = dict(self._saved)
        data = page_data(self.inspection, saved, readers, videos, "/files", token=self.token)
        return page_text(self.title, data).encode()

    def readers(self) -> list[DatasetReader]:
        return [DatasetReader(dataset) for dataset in self.inspection.datasets]


def server_of(review: ReviewServer, port: int = 0) -> ThreadingHTTPServer:
    """Return a server on the loopback address; ``port`` 0: a free one. Raises OutputError."""
    handler = type("Handler", (_Handler,), {"review": review})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise OutputError(
            f"port {port} cannot be used ({error.strerror}); choose another with `port`."
        ) from error
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    review: ReviewServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if not self._is_here():
            return
        file = re.fullmatch(r"/files/(plotly|robots|\d{1,6}-\d{1,9})\.js", self.path)
        video = re.fullmatch(r"/video/(\d{1,6})/(\d{1,9})", self.path)
        try:
            if self.path == "/":
                self._send(self.review.page(), "text/html; charset=utf-8")
            elif file is not None:
                self._send(page_file(self.review.readers(), file[1]), "text/javascript")
            elif video is not None:
                found = video_of(self.review.readers()[int(video[1])], int(video[2]))
                self._send_video(None if found is None else found[0])
            else:
                self._refuse(404, "no such page")
        except ConnectionError:  # a player closed the connection
            self.close_connection = True
        except (AcehandError, OSError, IndexError) as error:
            self._refuse(404, str(error))

    def do_POST(self) -> None:
        if not self._is_here():
            return
        try:
            size = int(self.headers.get("Content-Length") or 0)
            given = self.headers.get("X-Acehand-Token") or ""
            if self.path != "/decisions" or not 0 < size <= _LONGEST_REQUEST:
                self._refuse(404, "valid: decisions, to /decisions")
            elif not secrets.compare_digest(given.encode(), self.review.token.encode()):
                self._refuse(403, "the page belongs to another server; reload it")
            else:
                self.review.decide(json.loads(self.rfile.read(size)))
                self._send(b"{}", "application/json")
        except (ValueError, RecursionError) as error:
            self._refuse(400, f"not a decision: {error}")
        except AcehandError as error:
            self._refuse(500 if isinstance(error, OutputError) else 400, str(error))

    def _is_here(self) -> bool:
        """Refuse a request to another host name."""
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if name in ("127.0.0.1", "localhost"):
            return True
        self._refuse(403, "valid hosts: 127.0.0.1, localhost")
        return False

    def _send(self, content: bytes, kind: str, code: int = 200) -> None:
        self._head(code, kind, len(content))
        self.wfile.write(content)

    def _refuse(self, code: int, text: str) -> None:
        self.close_connection = True  # the request's body may be unread
        self._send(text.encode(), "text/plain; charset=utf-8", code)

    def _head(self, code: int, kind: str, size: int, **more: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send_video(self, path: Path | None) -> None:
        """Send a file or the requested range."""
        if path is None:
            self._refuse(404, "this episode has no video")
            return
        size = path.stat().st_size
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        first, last = 0, size - 1
        if asked and (asked[1] or asked[2]):
            first = int(asked[1]) if asked[1] else max(size - int(asked[2]), 0)
            last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
            if first > last:
                self._head(416, "text/plain", 0, Content_Range=f"bytes */{size}")
                return
            span, length = f"bytes {first}-{last}/{size}", last - first + 1
            self._head(206, "video/mp4", length, Accept_Ranges="bytes", Content_Range=span)
        else:
            self._head(200, "video/mp4", size, Accept_Ranges="bytes")
        with path.open("rb") as file:
            file.seek(first)
            left = last - first + 1
            while left > 0 and (part := file.read(min(_PART, left))):
                self.wfile.write(part)
                left -= len(part)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal is the reviewer's."""
