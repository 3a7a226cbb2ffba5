"""The acceptance page: what is in it, its server, and a browser that uses it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acehand_core.errors import MissingDependencyError, OutputError
from acehand_core.review import page, serve
from acehand_core.review.decisions import read_decisions
from acehand_core.review.episode import DatasetReader
from acehand_core.review.inspect import Inspection, inspect, robot_of
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
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return true_dataset(tmp_path_factory.mktemp("page") / "blocks", overlay=True)


@pytest.fixture(scope="module")
def inspection(dataset: Path) -> Inspection:
    return inspect((dataset,), looks=0)


@pytest.fixture(scope="module")
def report(inspection: Inspection, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def test_a_block_holds_the_dataset_to_its_rounding(dataset: Path) -> None:
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


def test_the_page_needs_its_folder_and_the_videos(report: Path, dataset: Path) -> None:
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


def test_an_episode_without_overlay_plays_its_part_of_the_datasets_video(
    dataset: Path, tmp_path: Path
) -> None:
    from acehand_core.lerobot.edit import merge_datasets

    merge_datasets((dataset, shutil.copytree(dataset, tmp_path / "copy")), tmp_path / "both")
    reader = DatasetReader(tmp_path / "both")
    for overlay in (tmp_path / "both").glob("acehand/*/overlay.mp4"):
        overlay.unlink()
    for number in reader.numbers:
        place = reader.video(number)
        assert page.video_of(reader, number) == (place.video, place.start_s)


def test_without_plotly_the_page_says_what_to_install(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"acehand\[view\]"):
        page.plotly_bundle()
    refused = Acehand(capsys, "inspect", dataset, "--output", tmp_path / "r", "--looks", 0)
    assert refused.code != 0 and not (tmp_path / "r").exists()
    done = Acehand(capsys, "inspect", dataset, "--output", tmp_path / "r", "--looks", 0,
                   "--no-page")  # fmt: skip
    assert done.code == 0 and (tmp_path / "r/report.json").is_file()


# The server


@pytest.fixture
def served(inspection: Inspection, tmp_path: Path) -> Iterator[tuple[serve.ReviewServer, int]]:
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


def test_the_server_is_for_this_machine_only(served: tuple[serve.ReviewServer, int]) -> None:
    review, port = served
    assert ask(port, "GET", "/")[0] == 200
    assert ask(port, "GET", "/", Host="evil.example:80")[0] == 403
    entry = {"fingerprint": review.inspection.episodes[0].fingerprint, "decision": "reject"}
    assert ask(port, "POST", "/decisions", entry)[0] == 403
    assert ask(port, "POST", "/decisions", entry, X_Acehand_Token="guess")[0] == 403
    assert ask(port, "POST", "/other", entry, X_Acehand_Token=review.token)[0] == 404
    for path in (
        "/../etc/passwd",
        "/files/9-0.js",
        "/files/0-99.js",
        "/files/../page.js",
        "/video/9/0",
        "/video/0/x",
        "/decisions",
    ):
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


def test_decisions_are_saved_changed_and_taken_back(served: tuple[serve.ReviewServer, int]) -> None:
    review, port = served
    fingerprint = review.inspection.episodes[0].fingerprint

    def decide(**entry: Any) -> int:
        return ask(port, "POST", "/decisions", {"fingerprint": fingerprint, **entry},
                   X_Acehand_Token=review.token)[0]  # fmt: skip

    assert decide(decision="doubt", trim=[3, None]) == 200
    saved = read_decisions(review.decisions)[fingerprint]
    assert (saved.decision, saved.trim) == ("doubt", (3, None))
    assert decide(decision="maybe") == 400
    assert decide(decision="reject", fingerprint="0" * 32) == 400
    assert read_decisions(review.decisions)[fingerprint].decision == "doubt"
    # What somebody else decided meanwhile stays.
    other = {**json.loads(review.decisions.read_text())["decisions"][0], "fingerprint": "other"}
    content = json.loads(review.decisions.read_text())
    content["decisions"].append(other)
    review.decisions.write_text(json.dumps(content))
    assert decide(decision=None) == 200
    assert set(read_decisions(review.decisions)) == {"other"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"Content-Length": "x"}, b""),
        ({}, b"[" * 100_000),
        ({}, b"\xff"),
        ({"X-Acehand-Token": "é"}, b"{}"),
    ],
)
def test_what_is_no_request_is_answered(
    served: tuple[serve.ReviewServer, int], headers: dict[str, str], body: bytes
) -> None:
    review, port = served
    said = {"Content-Length": str(len(body)), "X-Acehand-Token": review.token} | headers
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/decisions", body, said)
    assert connection.getresponse().status == (403 if "é" in said["X-Acehand-Token"] else 400)
    assert ask(port, "GET", "/")[0] == 200


def test_a_decision_that_cannot_be_saved_is_said(served: tuple[serve.ReviewServer, int]) -> None:
    review, port = served
    review.decisions.mkdir()
    code, said, _ = ask(port, "POST", "/decisions",
                        {"fingerprint": review.inspection.episodes[0].fingerprint,
                         "decision": "accept"}, X_Acehand_Token=review.token)  # fmt: skip
    assert code == 500 and b"decisions.json" in said


def test_videos_are_sent_in_parts(served: tuple[serve.ReviewServer, int], dataset: Path) -> None:
    _, port = served
    content = (dataset / "acehand/episode_000000/overlay.mp4").read_bytes()
    assert ask(port, "GET", "/video/0/0")[1] == content
    code, part, headers = ask(port, "GET", "/video/0/0", Range="bytes=100-199")
    assert (code, part) == (206, content[100:200])
    assert headers["Content-Range"] == f"bytes 100-199/{len(content)}"
    assert ask(port, "GET", "/video/0/0", Range="bytes=-50")[1] == content[-50:]
    assert ask(port, "GET", "/video/0/0", Range=f"bytes={len(content)}-")[0] == 416


def test_a_port_that_is_taken_is_said(served: tuple[serve.ReviewServer, int]) -> None:
    review, port = served
    with pytest.raises(OutputError, match="--port"):
        serve.server_of(review, port)


def test_review_runs_until_it_is_interrupted(dataset: Path, tmp_path: Path) -> None:
    import signal

    command = subprocess.Popen(
        [sys.executable, "-m", "acehand_core.cli.main", "review", str(dataset), "--output",
         str(tmp_path / "r"), "--looks", "0", "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert command.stdout is not None
        found = None
        for line in command.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                break
        assert found is not None
        assert b"<title>blocks</title>" in ask(int(found[1]), "GET", "/")[1]
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=20) == 0
    finally:
        command.kill()


# The browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture
def shown(browser: Browser, report: Path) -> Browser:
    browser.errors.clear()
    browser.open(report.as_uri(), offline=True)
    browser.run("open(report.episodes[0], 0)")
    browser.wait("block && document.querySelector('#space canvas')")
    return browser


def test_the_page_works_from_a_file_without_a_network(shown: Browser) -> None:
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
    assert shown.run("frame") == 31
    assert shown.errors == []


def test_playing_moves_hands_and_curves(shown: Browser) -> None:
    shown.wait("document.getElementById('video').readyState >= 2")
    shown.key(" ", "Space")
    shown.wait("frame > 5")
    shown.key(" ", "Space")
    assert shown.run("document.getElementById('video').paused")
    assert shown.errors == []


def test_the_robot_stands_where_the_kinematics_say(shown: Browser, dataset: Path) -> None:
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


def test_the_view_turns(shown: Browser) -> None:
    eye = (
        "JSON.stringify(document.getElementById('space')._fullLayout.scene._scene.getCamera().eye)"
    )
    before = json.loads(shown.run(eye))
    place = shown.run("""(() => { const box = document.getElementById('space')
      .getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()""")
    shown.drag(int(place[0]), int(place[1]), (120, 40))
    shown.wait(f"JSON.stringify(JSON.parse({eye})) !== {json.dumps(json.dumps(before))}", 10)
    after = json.loads(shown.run(eye))
    assert np.linalg.norm([before[k] - after[k] for k in "xyz"]) > 0.1
    # It stays turned while the clip plays on.
    shown.run("seek(40)")
    time.sleep(0.5)
    kept = json.loads(shown.run(eye))
    assert np.linalg.norm([kept[k] - after[k] for k in "xyz"]) < 0.05
    assert shown.errors == []


def test_keys_decide_and_the_server_saves(
    browser: Browser, served: tuple[serve.ReviewServer, int]
) -> None:
    review, port = served
    browser.errors.clear()
    browser._call("Network.enable")
    browser._call("Network.emulateNetworkConditions", offline=False, latency=0,
                  downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
    browser.open(f"http://127.0.0.1:{port}/")
    browser.run("open(report.episodes[0], 0)")
    browser.wait("block && document.querySelector('#space canvas')")
    fingerprint = review.inspection.episodes[0].fingerprint

    def saved() -> Any:
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
    assert "doubtful" in browser.run("document.querySelector('#list .badge').textContent")
    assert browser.errors == []


def test_j_and_k_go_through_the_list(
    browser: Browser, inspection: Inspection, tmp_path: Path
) -> None:
    one = inspection.episodes[0]
    many = replace(inspection, episodes=tuple(
        replace(one, fingerprint=f"{n:032x}") for n in range(3)
    ))  # fmt: skip
    path = tmp_path / "report.html"
    page.write_report(many, path, "three")
    browser.errors.clear()
    browser.open(path.as_uri())
    at = (
        "[current?.index ?? null, document.querySelector('#list [aria-selected=true]')?.id ?? null]"
    )
    assert browser.run(at) == [None, None]
    for key, index in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        browser.key(key)
        assert browser.run(at) == [index, f"row-{index}"]
        browser.wait(HAND_DRAWN)
    for key in "oj":  # back to the batch before the episode was read
        browser.key(key)
    browser.run("showBatch()")
    assert browser.run(at) == [None, None]
    browser.run("new Promise((done) => setTimeout(done, 300))")
    assert browser.run(at) == [None, None]
    assert browser.run("document.getElementById('episode').hidden")
    assert browser.errors == []


def test_a_page_of_one_episode_has_no_list(browser: Browser, dataset: Path, tmp_path: Path) -> None:
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


def test_frames_without_hands_show_none(browser: Browser, report: Path) -> None:
    browser.errors.clear()
    browser.open(report.as_uri())
    browser.key("j")
    browser.wait(HAND_DRAWN)
    for name in ("joints", "base"):
        browser.run(f"block.{name}.values.fill(NaN, 5 * block.{name}.width); 0")
    browser.run("seek(5)")
    browser.wait(f"!({HAND_DRAWN}) && !space.busy")
    browser.run("seek(0)")
    browser.wait(HAND_DRAWN)
    assert browser.errors == []


def test_400_episodes_load_within_three_seconds(
    browser: Browser, inspection: Inspection, tmp_path: Path
) -> None:
    one = inspection.episodes[0]
    many = replace(inspection, episodes=tuple(
        replace(one, fingerprint=f"{n:032x}", number=n, task=f"task {n % 7}", measures=tuple(
            replace(m, value=m.value + 1e-4 * n) for m in one.measures
        )) for n in range(400)
    ))  # fmt: skip
    readers = [DatasetReader(dataset) for dataset in inspection.datasets]
    path = tmp_path / "report.html"
    folder = tmp_path / "report_files"
    folder.mkdir()
    (folder / "plotly.js").write_bytes(page.plotly_bundle())
    path.write_text(page.page_text("many", page.page_data(many, {}, readers, {}, folder.name)))
    begun = time.monotonic()
    browser.open(path.as_uri())
    browser.wait(
        "document.querySelector('#distributions .main-svg') || !Object.keys(report.reasons)"
    )
    loaded = time.monotonic() - begun
    assert browser.run("document.querySelectorAll('#list li').length") == 400
    begun = time.monotonic()
    for _ in range(20):
        browser.key("j")
    assert browser.run("current.index") == 19
    stepped = (time.monotonic() - begun) / 20
    assert loaded < 3.0, loaded
    assert stepped < 0.1, stepped


def test_a_screen_reader_finds_names_for_everything(shown: Browser) -> None:
    reachable = ("button", "combobox", "listbox", "option", "slider", "checkbox", "link", "Video")
    nameless = [node for node in shown.labels() if node["role"] in reachable and not node["name"]]
    assert nameless == []
    roles = {node["role"] for node in shown.labels()}
    assert {"banner", "main", "complementary", "slider", "listbox", "heading"} <= roles
    text = shown.run("document.getElementById('scrubber').getAttribute('aria-valuetext')")
    assert text.startswith("frame ")


def test_the_focus_goes_from_the_filters_to_the_list_to_the_decision(shown: Browser) -> None:
    shown.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
    seen = []
    for _ in range(24):
        shown.key("Tab")
        seen.append(shown.run("document.activeElement.id || document.activeElement.dataset.decision"
                              " || document.activeElement.tagName"))  # fmt: skip
    wanted = ["show-batch", "by-status", "list", "accept", "reject", "trim", "play", "scrubber"]
    places = [seen.index(name) for name in wanted]
    assert places == sorted(places), seen


def test_text_stands_out_from_its_ground() -> None:
    style = (Path(page.__file__).parent / "page_files/page.css").read_text()
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", style))

    def light(colour: str) -> float:
        # WCAG 2.2, relative luminance.
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for name in ("text", "quiet", "good", "doubt", "bad", "left", "right"):
        for ground in ("#ffffff", "#dbe7fb", colours["soft"]):  # the page, a chosen row, boxes
            pair = sorted((light(colours[name]), light(ground)))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, (name, ground)
