"""What the documentation states is what the code does."""

import itertools
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
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera, CameraModel
from acehand_core.lerobot.columns import Layout, features
from acehand_core.pipeline.bag_convert import ConvertOptions
from acehand_core.pipeline.job import run_job
from acehand_core.pipeline.report import Failure, JobReport
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.cameras import POSE_COLUMNS
from acehand_core.recordings.hands_file import COLUMNS
from acehand_core.recordings.keypoints.joints import ENTRIES, REACHES_M
from acehand_core.settings import leaves
from helpers import ROOT
from helpers.commands import hands_file
from helpers.retarget_samples import moving_hands
from retarget.robots.robot import load_robot
from tools import docs_site

DOCS = ROOT / "docs"
FORMATS = docs_site.with_tables((DOCS / "formats.md").read_text("utf-8"))


def table(header: str) -> list[list[str]]:
    """Return the cells of the table whose header starts so."""
    lines = FORMATS[FORMATS.index(header) :].splitlines()[2:]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_links_and_tables_of_the_site():
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


def test_what_is_read_of_bags_is_named_by_flags():
    section = (DOCS / "ros2.md").read_text("utf-8").split("### What is read")[1]
    rows = section.split("\n- ")[0]
    named = set(re.findall(r"\(`(--[a-z-]+)", rows))
    assert "--depth-topic" in named and named <= {
        console.flag(leaf) for leaf in leaves(ConvertOptions)
    }


def test_exit_codes():
    stated = [int(row[0]) for row in table("| exit code")]
    named = [value for name, value in vars(console).items() if name.startswith("EXIT_")]
    assert stated == sorted(named)


def test_dataset_features():
    hand = load_robot("inspire").hand("right")
    layout = Layout(
        hand.joint_names, hand.command_names, hand.command_joints, "camera", "acehand", (1280, 720)
    )
    specs, rows = features(layout), table("| feature | dtype")
    actual = [[f"`{f.key}`", f.dtype, ", ".join(map(str, f.shape))] for f in specs]
    assert [row[:3] for row in rows] == actual
    # Units, and the number of labels of each axis where there are several.
    for spec, (*_, text) in zip(specs, rows, strict=True):
        unit = spec.info.get("unit", "")
        assert unit not in ("m", "rad", "px") or re.search(rf"\b{unit}\b", text), spec.key
        for labels in spec.info.get("axes", {}).values():
            count = len(labels)
            assert str(count) in text or count in (2, 3) or ", ".join(labels) in text, spec.key


def test_hand_motion_columns():
    actual = [[f"`{name}`", f"`{kind}`", text] for name, kind, text in COLUMNS]
    assert table("| column | type") == actual


def test_joints_file_entries():
    assert {row[0].strip("`") for row in table("| entry | shape")} == set(ENTRIES)
    low, high = REACHES_M
    assert f"{low} to {high} m from the wrist" in FORMATS and ", ".join(POSE_COLUMNS) in FORMATS


def keys_of(value: object) -> object:
    """Return the shape of a JSON value: keys of objects, and of the objects in lists."""
    if isinstance(value, dict):
        return {key: keys_of(entry) for key, entry in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys_of(value[0])]
    return None


def test_json_report(tmp_path):
    """Every key, at every depth, of a real run that also failed and skipped."""
    block = re.search(r"## JSON\n\n```json\n(.*?)```", FORMATS, re.DOTALL)
    assert block is not None
    run = run_job([hands_file(tmp_path / "h.npz", 6)], JobSettings(tmp_path / "out"))
    failed = Failure("other.mp4", InputError("broken"))
    report = JobReport(run.dataset, run.seconds, 0.2, run.episodes, (failed,), ("done.mp4",))
    assert keys_of(json.loads(block[1])) == keys_of(report.to_json())


def test_camera_file():
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


@pytest.mark.parametrize("page", ["first_dataset.md", "my_keypoints.md"])
def test_keypoints_of_one_hand(page, tmp_path, monkeypatch):
    """The page's command, on a file that has no side."""
    hands_file(tmp_path / "joints.npz", 6, joints=moving_hands(6)[:, 1])
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^acehand-retarget (joints.npz .*)$", (DOCS / page).read_text(), re.M)
    words = shlex.split(lines[-1], comments=True)
    assert retarget.main([*words, "--output", "out", "--quiet"]) == 0
    assert json.loads(Path("out/meta/info.json").read_text())["total_frames"] == 6


def command_lines() -> list[str]:
    """Return our commands in the shell blocks of README and the first tutorial."""
    text = "".join(p.read_text("utf-8") for p in (ROOT / "README.md", DOCS / "first_dataset.md"))
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("acehand")]


@pytest.mark.parametrize("line", command_lines())
def test_commands_of_the_readme_parse(line):
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
