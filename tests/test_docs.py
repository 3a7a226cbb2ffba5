"""What the documentation states is what the code does."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args

import pytest

from acehand_core.cli import console, retarget
from acehand_core.cli.flags import parse
from acehand_core.cli.main import all_commands
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera, CameraModel
from acehand_core.lerobot.features import Layout, features
from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.report import Failure, JobReport
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.cameras import POSE_COLUMNS
from acehand_core.recordings.hands_file import COLUMNS
from acehand_core.recordings.keypoints.joints import ENTRIES, REACHES_M
from acehand_core.trackers.base import Tracker
from helpers import ROOT
from helpers.commands import hands_file
from retarget.robots.robot import load_robot
from tools import docs_site

DOCS = ROOT / "docs"
FORMATS = docs_site.with_tables((DOCS / "formats.md").read_text("utf-8"))


def table(header: str, which: int = 0) -> list[list[str]]:
    """Return the cells of the table whose header starts so, the first one or a later one."""
    start = [match.start() for match in re.finditer(re.escape(header), FORMATS)][which]
    lines = FORMATS[start:].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_links_and_tables_of_the_site() -> None:
    page = "[the code](../acehand_core/types.py) [a page](formats.md#json)"
    assert docs_site.on_page_markdown(page) == (
        "the code (`acehand_core/types.py`) [a page](formats.md#json)"
    )
    with pytest.raises(FileNotFoundError):
        docs_site.on_page_markdown("[gone](../acehand_core/tipes.py)")
    table = docs_site.on_page_markdown("All flags: --help. <!-- table review -->\nMore.")
    assert table.startswith("| flag |") and table.endswith("|\nMore.") and "`--port`" in table
    with pytest.raises(KeyError):
        docs_site.on_page_markdown("<!-- table nothing -->")


def test_flags() -> None:
    """Names and defaults that were published stay; written down by hand."""
    rows = {row[0].strip("`"): row[1].strip("`") for row in table("| flag | default")}
    for flag, default in {
        "--robot": "inspire", "--hands": "both", "--tracker": "auto", "--latency": "off",
        "--output": "acehand_dataset", "--no-second-pass": "off", "--overlay": "on",
        "--resume": "off", "--arm-mount": "0,0,0,0,0,0", "--quiet": "off", "--start": "0",
    }.items():  # fmt: skip
        assert rows[flag] == default


def test_the_help_offers_what_the_docs_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a flag more or less, as ``--help`` spells them."""
    with pytest.raises(SystemExit):
        retarget.main(["--help"])
    boxes = re.findall(r"^\W? +((?:-\w, )?--[a-z].*)", capsys.readouterr().out, re.MULTILINE)
    offered = {flag for line in boxes for flag in re.findall(r"--[\w-]+", line.split("  ")[0])}
    rows = [*table("| flag | default"), *table("| flag | default", 1)]
    stated = {row[0].strip("`") for row in rows}
    assert offered - stated == {"--help", "--no-overlay"} and stated <= offered


def test_exit_codes() -> None:
    stated = [int(row[0]) for row in table("| exit code")]
    named = [value for name, value in vars(console).items() if name.startswith("EXIT_")]
    assert stated == sorted(named)


def test_dataset_features() -> None:
    hand = load_robot("inspire").hand("right")
    layout = Layout(
        hand.joint_names, hand.command_names, hand.command_joints, "camera", "acehand", (1280, 720)
    )
    actual = [[f"`{f.key}`", f.dtype, ", ".join(map(str, f.shape))] for f in features(layout)]
    assert [row[:3] for row in table("| feature | dtype")] == actual


def test_hand_motion_columns() -> None:
    actual = [[f"`{name}`", f"`{kind}`", text] for name, kind, text in COLUMNS]
    assert table("| column | type") == actual


def test_joints_file_entries() -> None:
    stated = {row[0].strip("`") for row in table("| entry | shape")}
    assert stated == set(ENTRIES)


def test_size_of_hands_in_a_joints_file() -> None:
    low, high = REACHES_M
    assert f"{low} to {high} m from the wrist" in FORMATS


def keys_of(value: object) -> object:
    """Return the shape of a JSON value: keys of objects, and of the objects in lists."""
    if isinstance(value, dict):
        return {key: keys_of(entry) for key, entry in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys_of(value[0])]
    return None


def test_json_report(tmp_path: Path) -> None:
    """Every key, at every depth, of a real run that also failed and skipped."""
    block = re.search(r"## JSON\n\n```json\n(.*?)```", FORMATS, re.DOTALL)
    assert block is not None
    run = run_job([hands_file(tmp_path / "h.npz", 6)], JobSettings(tmp_path / "out"))
    failed = Failure("other.mp4", InputError("broken"))
    report = JobReport(run.dataset, run.seconds, 0.2, run.episodes, (failed,), ("done.mp4",))
    assert keys_of(json.loads(block[1])) == keys_of(report.to_json())


def test_camera_file() -> None:
    section = FORMATS.split("## Camera file (JSON)")[1].split("\n## ")[0]
    stated = re.search(r"`(\{.*?\})`", section, re.DOTALL)
    assert stated is not None
    names = re.findall(r'"([\w|]+)"', stated[1])
    models = names[1].split("|")
    assert [names[0], *names[2:]] == list(Camera.nominal(64, 48).to_json())
    assert models == list(get_args(CameraModel))
    # Each model takes as many coefficients as the text lists.
    counts = {"pinhole": 0, "brown_conrady": 8, "kannala_brandt": 4, "fisheye624": 12}
    assert "k1 k2 p1 p2 k3 k4 k5 k6" in section and "k1..k6 p1 p2 s1..s4" in section
    for model in models:
        camera = Camera(model, 64, 48, 50.0, 50.0, 31.5, 23.5, (0.0,) * counts[model])
        assert Camera.from_json(camera.to_json(), "docs") == camera


def test_no_page_has_marks_of_a_merge() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")):
        assert not re.search(r"^(<{7}|={7}|>{7})( |$)", page.read_text("utf-8"), re.MULTILINE), page


def command_lines() -> list[str]:
    """Return our commands in the shell blocks of README and the first tutorial."""
    text = "".join(p.read_text("utf-8") for p in (ROOT / "README.md", DOCS / "first_dataset.md"))
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("acehand")]


@pytest.mark.parametrize("line", command_lines())
def test_commands_of_the_readme_parse(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "acehand-train":
        pytest.importorskip("hydra")
        from acehand_core.ace.training.config import compose

        compose(words)  # refuses what it does not know
        return
    command: type = retarget.Retarget
    if program == "acehand":
        commands = all_commands()
        names = [name for name in commands if words[: name.count(" ") + 1] == name.split()]
        command, words = resolve_name(commands[names[-1]][1]), words[names[-1].count(" ") + 1 :]
    parse(program, words, command, console.Common)


def test_what_a_third_partys_tracker_needs() -> None:
    """The architecture names every member that ``make_tracker`` asks for."""
    text = (DOCS / "architecture.md").read_text("utf-8").split("`acehand.trackers`")[1]
    paragraph = text.split("\n\n")[0]
    stated = set(re.findall(r"`(\w+)(?:\(\w+, \w+\))?`", paragraph)) - {"TrackerSettings"}
    assert stated == {*Tracker.__annotations__, "track"}


def test_the_readme_has_commands() -> None:
    assert len(command_lines()) >= 20


def test_camera_pose_columns() -> None:
    assert ", ".join(POSE_COLUMNS) in FORMATS


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"`acehand (\w+)", FORMATS)) | {"retarget"})
)
def test_documented_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert acehand([command, "--help"]) == 0  # of a command with actions
    except SystemExit as stop:
        assert stop.code == 0
    assert "usage: acehand" in capsys.readouterr().out
