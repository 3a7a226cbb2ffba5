"""Downloads, with the real client against a hub on this machine."""

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "c0ffee" + 34 * "0"
LARGE = random.Random(0).randbytes(299_999) + b"!"
FILES = {"ace_ego_hand_k.pt": LARGE, "ace_ego_hand_kfree.pt": LARGE[::-1], "README.md": b"read me"}
RUN = """
import json, sys
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 10_000  # what arrives is written in such pieces
from acehand_core.ace.model.weights.fetch import fetch
from acehand_core.errors import AcehandError
for arguments in json.loads(sys.argv[1]):
    try:
        print(json.dumps(fetch(quiet=True, **arguments).to_json()))
    except AcehandError as error:
        print(json.dumps({"error": type(error).__name__, "message": str(error)}))
assert "torch" not in sys.modules
"""


class Hub(ThreadingHTTPServer):
    """One repository whose contents a test may change or cut short."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.stated: dict[str, str] = {}
        self.cut_after = None
        self.sent = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def sha256(self, name):
        return self.stated.get(name, hashlib.sha256(self.files[name]).hexdigest())


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        name = path.rsplit("/", 1)[-1]
        if path.startswith("/api/models/"):
            entries = [self.entry(name) for name in self.server.files]
            described = {"id": "a/b", "sha": COMMIT, "tags": [], "private": False}
            data = json.dumps(entries if "/tree/" in path else described).encode()
            self.answer(200, data, {"Content-Type": "application/json"})
        elif name in self.server.files:
            self.file(name)
        else:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def entry(self, name):
        size = len(self.server.files[name])
        lfs = {"oid": self.server.sha256(name), "size": size, "pointerSize": 134}
        more = {"lfs": lfs} if name.endswith(".pt") else {}
        return {"type": "file", "path": name, "size": size, "oid": 40 * "1"} | more

    def file(self, name):
        content = self.server.files[name]
        asked = self.headers.get("Range", "bytes=0-").removeprefix("bytes=")
        start, size = int(asked.split("-")[0]), len(content)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self.server.sha256(name)}"',
                   "Accept-Ranges": "bytes"}  # fmt: skip
        if start:
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
        self.answer(206 if start else 200, content[start:], headers, self.server.cut_after)

    def answer(self, code, data, headers, cut=None):
        """Send headers, and after a GET the data or their first ``cut`` bytes."""
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[:cut])
            self.server.sent += len(data[:cut]) if "ETag" in headers else 0
            self.close_connection = len(data[:cut]) < len(data)


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def run(home, url, *steps, offline=False):
    """Return the outcome of each step, of a process of its own"""
    environment = {
        **os.environ, "HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1" if offline else "0",
        "HF_HUB_ETAG_TIMEOUT": "5", "HF_HUB_DOWNLOAD_TIMEOUT": "30", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(steps)],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


NOWHERE = "http://127.0.0.1:9"
K, KFREE = {"name": "official-k"}, {"name": "official-kfree"}


def test_download_then_cache_then_damage(hub, tmp_path):
    first, second = run(tmp_path, hub.url, K, K)
    assert first["sha256"] == {"ace_ego_hand_k.pt": hashlib.sha256(LARGE).hexdigest()}
    assert first["revision"] == COMMIT and "CC BY-NC" in first["licence"]
    folder = Path(first["folder"])
    assert folder.is_relative_to(tmp_path) and folder.name == COMMIT
    assert [p.name for p in folder.iterdir()] == ["ace_ego_hand_k.pt"]  # nothing that was not asked
    assert second == first and hub.sent == len(LARGE)  # the cache was enough

    assert run(tmp_path, NOWHERE, K, offline=True) == [first]
    blob = (folder / "ace_ego_hand_k.pt").resolve()
    blob.write_bytes(LARGE[:-1] + b"?")
    (broken,) = run(tmp_path, NOWHERE, K, offline=True)
    assert broken["error"] == "SchemaError" and "ace_ego_hand_k.pt" in broken["message"]
    assert run(tmp_path, hub.url, K) == [first]  # downloaded once more
    assert blob.read_bytes() == LARGE


def test_a_dropped_connection_is_taken_up_again(hub, tmp_path):
    hub.cut_after = 100_000
    (result,) = run(tmp_path, hub.url, K)
    assert result["sha256"]["ace_ego_hand_k.pt"] == hashlib.sha256(LARGE).hexdigest()
    assert hub.sent == len(LARGE)


def test_wrong_contents_are_refused(hub, tmp_path):
    hub.stated["ace_ego_hand_kfree.pt"] = 64 * "a"
    (bad,) = run(tmp_path, hub.url, KFREE)
    assert bad["error"] == "SchemaError" and "ace_ego_hand_kfree.pt" in bad["message"]
    # Nothing is left in the cache of what was wrong.
    assert not any(p.name.startswith(64 * "a") and p.suffix != ".lock" for p in tmp_path.rglob("*"))


def test_what_cannot_be_had_is_explained(hub, tmp_path):
    (nothing,) = run(tmp_path, hub.url, K, offline=True)
    assert nothing["error"] == "InputError" and "HF_HOME" in nothing["message"]
    (unreachable,) = run(tmp_path, NOWHERE, K)
    assert unreachable["error"] == "InputError" and "run again" in unreachable["message"]
    del hub.files["ace_ego_hand_k.pt"]
    absent, unknown = run(tmp_path, hub.url, K, {"name": "oficial-k"})
    assert absent["error"] == "InputError" and "ace_ego_hand_k.pt" in absent["message"]
    assert "official-k" in unknown["message"]
