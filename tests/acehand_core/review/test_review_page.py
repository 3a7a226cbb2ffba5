"""The acceptance page: what is in it, its server, and a browser that uses it."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acehand_core.errors import MissingDependencyError, OutputError
from acehand_core.lerobot.episode import DatasetReader
from acehand_core.review import page, serve
from acehand_core.review.decisions import read_decisions
from acehand_core.review.inspect import inspect, robot_of
from acehand_core.review.page import curves, episode_block
from acehand_core.types import SIDES
from helpers.browser import Browser
from helpers.commands import Acehand
from helpers.review_samples import true_dataset
from retarget.replay.clip import in_camera
from retarget.robots.kinematics import KinematicTree

pytest.importorskip("plotly", reason="plotly is not installed (extra view)")

#: True once the joints of a hand are drawn in 3D.
HAND_DRAWN = "block && document.getElementById('space').data?.[0].x.length"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return true_dataset(tmp_path_factory.mktemp("page") / "blocks", overlay=True)


@pytest.fixture(scope="module")
def inspection(dataset):
    return inspect((dataset,), looks=0)


@pytest.fixture(scope="module")
def report(inspection, tmp_path_factory):
    """The page of one true episode."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    page.write_report(inspection, path, "blocks & more")
    return path


def unpacked(block: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a block as payload.py says that it is written."""
    content = zlib.decompress(block)
    size = int.from_bytes(content[:4], "little")
    head, at, arrays = json.loads(content[4 : 4 + size]), 4 + size, {}
    for entry in head["arrays"]:
        count, frames = int(np.prod(entry["shape"])), entry["shape"][0]
        steps = np.frombuffer(content[at : at + 2 * count], "<i2").reshape(-1, frames)
        whole = np.cumsum(steps.astype(np.int64), axis=1).astype(np.int16).T.astype(float)
        whole[whole == -32768] = np.nan
        arrays[entry["name"]] = (whole * entry["scale"]).reshape(entry["shape"])
        at += 2 * count
    assert at == len(content)
    return head, arrays


@pytest.mark.slow
def test_a_block_holds_the_dataset_to_its_rounding(dataset):
    reader = DatasetReader(dataset)
    episode = reader.read(0)
    valid = episode.valid.copy()
    valid[10:20, 0] = False
    episode = replace(episode, valid=valid, joints=np.where(
        valid[..., None, None], episode.joints, np.nan))  # fmt: skip
    head, arrays = unpacked(episode_block(episode, robot_of(reader)))
    assert np.array_equal(np.isnan(arrays["joints"]), np.isnan(episode.joints))
    assert np.nanmax(np.abs(arrays["joints"] - episode.joints)) <= 0.5 * 3e-4 + 1e-9
    poses = in_camera(episode)
    assert np.nanmax(np.abs(arrays["base"][..., :3] - poses[..., :3, 3])) <= 0.5 * 3e-4 + 1e-9
    assert np.nanmax(np.abs(arrays["robot"] - episode.robot.joints)) <= 0.5e-3 + 1e-9
    assert np.isnan(arrays["base"][10:20, 0]).all()
    drawn = curves(episode, robot_of(reader))
    assert [c["plot"] for c in head["curves"]] == [curve.plot for curve in drawn]
    for index, curve in enumerate(drawn):
        largest = max(np.nanmax(np.abs(curve.values)), 1e-9)
        assert np.nanmax(np.abs(arrays[f"curve{index}"] - curve.values)) <= largest / 2000
    assert np.array_equal(arrays["state"], np.where(valid, 1, 0))


def test_the_page_needs_its_folder_and_the_videos(report, dataset):
    text = report.read_text()
    # No address that a browser would load by itself.
    assert not re.search(r"""(src|href)=["'](?!#|data:,)""", text)
    assert "http" not in text.replace("http-equiv", "")
    assert "<two>" not in text  # the task is in the data, where no element may begin
    assert "blocks &amp; more" in text
    folder = report.with_name("report_files")
    assert {file.name for file in folder.iterdir()} == {"plotly.js", "robots.js", "0-0.js"}
    data = json.loads(re.search(r'id="report">(.*?)</script>', text, re.DOTALL)[1])
    assert data["files"] == "report_files"
    video, start = data["episodes"][0]["video"]
    overlay = dataset / "acehand/episode_000000/overlay.mp4"
    assert (report.parent / video).resolve() == overlay.resolve() and start == 0


def test_without_plotly_the_page_says_what_to_install(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"acehand\[view\]"):
        page.plotly_bundle()
    refused = Acehand(capsys, "inspect", dataset, "--output", tmp_path / "r", "--looks", 0)
    assert refused.code != 0 and not (tmp_path / "r").exists()
    done = Acehand(capsys, "inspect", dataset, "--output", tmp_path / "r", "--looks", 0,
                   "--no-page")  # fmt: skip
    assert done.code == 0 and (tmp_path / "r/report.json").is_file()


@pytest.fixture
def served(inspection, tmp_path):
    review = serve.ReviewServer(inspection, tmp_path / "decisions.json", "blocks")
    with serve.server_of(review) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield review, server.server_address[1]
        server.shutdown()
        thread.join()


def ask(
    port: int, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {k.replace("_", "-"): v for k, v in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_the_server_is_for_this_machine_only(served):
    review, port = served
    assert ask(port, "GET", "/")[0] == 200
    assert ask(port, "GET", "/", Host="evil.example:80")[0] == 403
    entry = {"fingerprint": review.inspection.episodes[0].fingerprint, "decision": "reject"}
    assert ask(port, "POST", "/decisions", entry)[0] == 403
    assert ask(port, "POST", "/decisions", entry, X_Acehand_Token="guess")[0] == 403
    assert ask(port, "POST", "/other", entry, X_Acehand_Token=review.token)[0] == 404
    for path in ("/../etc/passwd", "/files/9-0.js", "/files/0-99.js", "/files/../page.js",
                 "/video/9/0", "/video/0/x", "/decisions"):  # fmt: skip
        assert ask(port, "GET", path)[0] == 404
    assert not review.decisions.exists()
    # Other addresses of this machine do not answer.
    with socket.socket() as other, pytest.raises(OSError):
        other.settimeout(2)
        other.connect((_own_address(), port))


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but the loopback one")
        return probe.getsockname()[0]


def test_decisions_are_saved_changed_and_taken_back(served):
    review, port = served
    fingerprint = review.inspection.episodes[0].fingerprint

    def decide(**entry):
        return ask(port, "POST", "/decisions", {"fingerprint": fingerprint, **entry},
                   X_Acehand_Token=review.token)[0]  # fmt: skip

    assert decide(decision="doubt", trim=[3, None]) == 200
    assert decide(decision="maybe") == decide(decision="reject", fingerprint="0" * 32) == 400
    saved = read_decisions(review.decisions)[fingerprint]
    assert (saved.decision, saved.trim) == ("doubt", (3, None))
    # What somebody else decided meanwhile stays.
    content = json.loads(review.decisions.read_text())
    content["decisions"].append({**content["decisions"][0], "fingerprint": "other"})
    review.decisions.write_text(json.dumps(content))
    assert decide(decision=None) == 200
    assert set(read_decisions(review.decisions)) == {"other"}


def test_what_is_no_request_is_answered(served):
    review, port = served
    for headers, body, status in (
        ({"Content-Length": "x"}, b"", 400), ({}, b"[" * 100_000, 400), ({}, b"\xff", 400),
        ({"X-Acehand-Token": "é"}, b"{}", 403),
    ):  # fmt: skip
        said = {"Content-Length": str(len(body)), "X-Acehand-Token": review.token} | headers
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/decisions", body, said)
        assert connection.getresponse().status == status
        assert ask(port, "GET", "/")[0] == 200


def test_what_cannot_be_saved_or_served_is_said(served):
    review, port = served
    review.decisions.mkdir()
    entry = {"fingerprint": review.inspection.episodes[0].fingerprint, "decision": "accept"}
    code, said, _ = ask(port, "POST", "/decisions", entry, X_Acehand_Token=review.token)
    assert code == 500 and b"decisions.json" in said
    with pytest.raises(OutputError, match="`port`"):
        serve.server_of(review, port)


def test_videos_are_sent_in_parts(served, dataset):
    _, port = served
    content = (dataset / "acehand/episode_000000/overlay.mp4").read_bytes()
    assert ask(port, "GET", "/video/0/0")[1] == content
    code, part, headers = ask(port, "GET", "/video/0/0", Range="bytes=100-199")
    assert (code, part) == (206, content[100:200])
    assert headers["Content-Range"] == f"bytes 100-199/{len(content)}"
    assert ask(port, "GET", "/video/0/0", Range="bytes=-50")[1] == content[-50:]
    assert ask(port, "GET", "/video/0/0", Range=f"bytes={len(content)}-")[0] == 416


def test_review_runs_until_it_is_interrupted(dataset, tmp_path):
    words = [sys.executable, "-m", "acehand_core.cli.main", "review", dataset, "--output",
             tmp_path / "r", "--looks", "0", "--no-browser"]  # fmt: skip
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        found = None
        while found is None:
            line = command.stdout.readline()
            assert line, "it has ended"
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert b"<title>blocks</title>" in ask(int(found[1]), "GET", "/")[1]
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=20) == 0
    finally:
        command.kill()


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture
def shown(browser, report):
    browser.errors.clear()
    browser.open(report.as_uri(), offline=True)
    browser.run("open(report.episodes[0], 0)")
    browser.wait("block && document.querySelector('#space canvas')")
    return browser


def test_the_page_works_from_a_file_without_a_network(shown):
    shown.wait("document.getElementById('video').readyState >= 2")
    shown.run("seek(60)")
    shown.wait("Math.abs(document.getElementById('video').currentTime - 60.5 / 30) < 0.02")
    assert shown.run("document.getElementById('time').textContent") == "frame 60 of 120, 2.00 s"
    # The line over the curves is at 2 of 3.97 seconds.
    share = shown.run("""(() => {
      const axis = $('curves')._fullLayout.xaxis;
      return (parseFloat($('cursor').style.left) - axis._offset) / axis._length;
    })()""")
    assert share == pytest.approx(60 / 119, abs=0.005)
    assert shown.run("document.getElementById('curves').data.length") >= 8
    shown.key("ArrowRight")
    shown.key("ArrowLeft", shift=True)
    assert shown.run("frame") == 31 and shown.errors == []


def test_playing_moves_hands_and_curves(shown):
    shown.wait("document.getElementById('video').readyState >= 2")
    shown.key(" ", "Space")
    shown.wait("frame > 5")
    shown.key(" ", "Space")
    assert shown.run("document.getElementById('video').paused") and shown.errors == []


def test_the_robot_stands_where_the_kinematics_say(shown, dataset):
    reader = DatasetReader(dataset)
    episode, robot = reader.read(0), robot_of(reader)
    assert episode.robot is not None and robot is not None
    poses = in_camera(episode)
    for at, slot in ((0, 0), (77, 1)):
        hand = robot.hands[SIDES[slot]]
        tree = KinematicTree.of(hand)
        tips = tree.points(episode.robot.joints[at : at + 1, slot], hand.tip_names)[0]
        tips = tips @ poses[at, slot, :3, :3].T + poses[at, slot, :3, 3]
        shown.run(f"frame = {at}")
        points = np.array(shown.run(f"robotAt('{SIDES[slot]}', {slot})")).T
        # Every fingertip of the kinematics lies on the drawn surface, which is 8 mm thick there.
        away = np.linalg.norm(points[:, None] - tips, axis=-1).min(0)
        assert away.max() < 0.010, away
        joints = np.array(shown.run(f"handAt({slot})"), float).T
        drawn = joints[~np.isnan(joints).any(1)]
        assert (
            np.linalg.norm(drawn[:, None] - episode.joints[at, slot], axis=-1).min(0).max() < 5e-4
        )


def test_keys_decide_and_the_server_saves(browser, served):
    review, port = served
    browser.errors.clear()
    browser._call("Network.enable")
    browser._call("Network.emulateNetworkConditions", offline=False, latency=0,
                  downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
    browser.open(f"http://127.0.0.1:{port}/")
    browser.run("open(report.episodes[0], 0)")
    browser.wait("block && document.querySelector('#space canvas')")
    fingerprint = review.inspection.episodes[0].fingerprint

    def saved():
        browser.wait("document.getElementById('said').textContent.includes('saved)')")
        assert "NOT" not in browser.run("document.getElementById('said').textContent")
        found = read_decisions(review.decisions).get(fingerprint)
        return found and (found.decision, found.trim)

    browser.key("r")
    assert saved() == ("reject", None)
    browser.key("a")
    browser.wait("document.querySelector('[data-decision=accept]').ariaPressed === 'true'")
    assert saved() == ("accept", None)
    browser.run("seek(30)")
    browser.key("t")
    assert saved() == ("accept", (30, None))
    browser.run("seek(89)")
    browser.key("t")
    assert saved() == ("accept", (30, 90))
    browser.key("t")
    browser.key("a")
    assert saved() is None
    browser.key("d")
    assert saved() == ("doubt", None)
    # Loaded again, the page knows.
    browser.open(f"http://127.0.0.1:{port}/")
    assert "warn" in browser.run("document.querySelector('#list .badge').textContent")
    assert browser.errors == []


def test_a_page_of_one_episode_has_no_list(browser, dataset, tmp_path):
    path = tmp_path / "an episode.html"
    page.write_episode_page(DatasetReader(dataset), 0, path)
    browser.errors.clear()
    browser.open(path.as_uri())
    browser.wait(HAND_DRAWN)
    browser.key("o")
    shown = "['list', 'show-batch', 'episode'].map((id) => $(id).offsetParent !== null)"
    assert browser.run(shown) == [False, False, True]
    browser.key("a")
    assert browser.run("$('said').textContent").startswith("You said: accepted")
    assert browser.errors == []


@pytest.mark.slow
def test_400_episodes_load_within_seconds(browser, inspection, tmp_path):
    one, readers = inspection.episodes[0], [DatasetReader(root) for root in inspection.datasets]
    many = replace(inspection, episodes=tuple(
        replace(one, fingerprint=f"{n:032x}", number=n, task=f"task {n % 7}", measures=tuple(
            replace(measure, value=measure.value + 1e-4 * n) for measure in one.measures
        )) for n in range(400)
    ))  # fmt: skip
    path, files = tmp_path / "report.html", tmp_path / "report_files"
    files.mkdir()
    (files / "plotly.js").write_bytes(page.plotly_bundle())
    path.write_text(page.page_text("many", page.page_data(many, {}, readers, {}, files.name)))
    browser.errors.clear()
    browser.open(path.as_uri())
    browser.wait("document.querySelector('#distributions .main-svg')", 10)
    loaded = time.monotonic()
    assert browser.run("document.querySelectorAll('#list li').length") == 400
    for _ in range(20):
        browser.key("j")
    assert browser.run("current.index") == 19 and browser.errors == []
    assert time.monotonic() - loaded < 20 * 0.3


def test_a_screen_reader_finds_names_for_everything(shown):
    reachable = ("button", "combobox", "listbox", "option", "slider", "checkbox", "link", "Video")
    nameless = [node for node in shown.labels() if node["role"] in reachable and not node["name"]]
    assert nameless == []
    roles = {node["role"] for node in shown.labels()}
    assert {"banner", "main", "complementary", "slider", "listbox", "heading"} <= roles
    text = shown.run("document.getElementById('scrubber').getAttribute('aria-valuetext')")
    assert text.startswith("frame ")
