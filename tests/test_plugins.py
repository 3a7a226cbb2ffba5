"""Plug-ins of other packages: examples/plugins as pip lays it down, and broken ones."""

import json
import os
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pyarrow.parquet as pq
import pytest

from acehand_core import plugins
from acehand_core.cli import retarget
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.pipeline.settings import JobSettings
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import open_recording
from acehand_core.settings import leaves
from helpers import ROOT
from helpers.commands import hands_file
from helpers.plugins import installed, lay_down

EXAMPLE = ROOT / "examples/plugins"
GROUPS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.fixture
def frames(tmp_path):
    """A folder of 40 arrays, and what the glove said next to it: closed in the middle."""
    folder = tmp_path / "pinch"
    folder.mkdir()
    for number in range(40):
        np.save(folder / f"{number:03}.npy", np.full((96, 128, 3), 5 * number, np.uint8))
    np.savetxt(tmp_path / "pinch.csv", np.sin(np.arange(40) / 39 * np.pi))
    return folder


def test_each_recipe_has_under_60_lines():
    for recipe in ("arrays.py", "glove.py", "pincher"):
        path = EXAMPLE / "my_plugins" / recipe
        files = path.iterdir() if path.is_dir() else [path]
        assert 0 < sum(len(file.read_text().splitlines()) for file in files) < 60, recipe


def test_a_format_a_tracker_and_a_robot_of_another_package(frames, tmp_path):
    """The main job in a process of its own, with the flags that they bring."""
    site = lay_down(shutil.copytree(EXAMPLE, tmp_path / "site"), GROUPS, "my-acehand-plugins")
    output = tmp_path / "out"
    command = [
        sys.executable, "-m", "acehand_core.cli.retarget", frames, "--array-rate", "20",
        "--tracker", "glove", "--glove-depth", "0.5", "--robot", "pincher", "--output", output,
        "--intrinsics", "120,120,64,48", "--json", "-q",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (episode,) = json.loads(done.stdout)["episodes"]
    assert episode["frames"] == 40

    info = json.loads((output / "meta/info.json").read_text())
    assert info["fps"] == 20 and info["robot_type"] == "pincher"
    (report,) = output.rglob("report.json")
    job = json.loads(report.read_text())["provenance"]["job"]["settings"]
    assert job["glove"] == {"glove-depth": 0.5} and job["ace"] is None
    # The index finger closes and opens with the glove.
    (file,) = (output / "data").rglob("*.parquet")
    table = np.stack(pq.read_table(file)["action"].to_pylist())
    index = table[:, list(info["features"]["action"]["names"]).index("right_index")]
    assert 10 < index.argmax() < 30 and index.max() - index[[0, -1]].max() > 0.3


def test_flags_of_plugins_come_and_go(frames, tmp_path):
    ours = {leaf.flag for leaf in leaves(JobSettings)}
    assert {"weights", "image-topic"} < ours and "glove-depth" not in ours
    with installed(shutil.copytree(EXAMPLE, tmp_path / "site"), GROUPS):
        assert {leaf.flag for leaf in leaves(JobSettings)} - ours == {"array-rate", "glove-depth"}
        assert open_recording(frames, array_rate=20).fps == 20
        assert open_recording(frames, RecordingOptions(own={}), array_rate=20).fps == 20
    assert {leaf.flag for leaf in leaves(JobSettings)} == ours


ODD = '''
from dataclasses import dataclass
from pathlib import Path
from acehand_core.errors import EXIT_OK
from retarget.solve.methods import TrajectoryRetargeter

class Second(TrajectoryRetargeter):
    name = "second"

def write_count(motion, path, overwrite):
    Path(path).write_text(str(len(motion)))

@dataclass
class Greet:
    """Say hello."""
    def run(self, terminal):
        terminal.print_json({"hello": "world"})
        return EXIT_OK

COMMANDS = {"greet": ("say hello", "odd_plugins:Greet"),
            "lost": ("is not there", "odd_plugins:No"),
            "doctor": ("may not be replaced", "odd_plugins:Greet")}
'''


@pytest.fixture
def odd(tmp_path):
    (tmp_path / "odd_plugins.py").write_text(ODD)
    groups = {
        "acehand.methods": {"second": "odd_plugins:Second"},
        "acehand.exports": {"count": "odd_plugins:write_count"},
        "acehand.commands": {"odd": "odd_plugins:COMMANDS"},
    }
    with installed(tmp_path, groups):
        yield
    sys.modules.pop("odd_plugins", None)


def test_a_method_an_export_and_commands(odd, tmp_path, capsys):
    hands = hands_file(tmp_path / "hands.npz")
    output = tmp_path / "out"
    assert retarget.main([str(hands), "--method", "second", "--output", str(output), "-q"]) == 0
    (report,) = output.rglob("report.json")
    assert json.loads(report.read_text())["provenance"]["job"]["settings"]["method"] == "second"

    table = tmp_path / "hands.count"
    assert acehand(["export", str(hands), str(table)]) == 0
    assert table.read_text() == str(len(np.load(hands)["joints"]))

    capsys.readouterr()
    assert acehand(["greet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"hello": "world"}
    assert acehand(["--help"]) == 0 and "  greet            say hello" in capsys.readouterr().out
    assert acehand(["lost"]) == 2 and "'odd_plugins:No'" in capsys.readouterr().err
    acehand(["doctor", "--json"])
    said = capsys.readouterr()
    assert "pieces" in json.loads(said.out)
    assert "second: odd_plugins:Second of others" in said.err


def test_a_plugin_that_does_not_load_is_named_and_others_work(tmp_path, capsys):
    groups = {"acehand.commands": {"bad": "no_such_module:COMMANDS"}}
    with installed(tmp_path, groups):
        assert acehand(["robots", "list"]) == 0  # ours are not looked for among others
        assert acehand(["nothing"]) == 2
        assert "'bad' (acehand.commands) of others" in capsys.readouterr().err
    with installed(tmp_path / "b", {"acehand.recordings": {"bad": "no_such_module:Format"}}):
        assert retarget.main([str(tmp_path / "a.mp4")]) == 2
        assert "'bad' (acehand.recordings) of others" in capsys.readouterr().err


@pytest.mark.parametrize(("group", "value", "words"), [
    ("recordings", "json:loads", ["hands.npz"]),
    ("commands", "json:loads", None),
    ("trackers.settings", "json:loads", ["hands.npz"]),
    ("methods", "builtins:bool", ["hands.npz", "--method", "bad"]),
    ("trackers", "builtins:repr", [ROOT / "examples/two_hands.mp4", "--tracker", "bad"]),
])  # fmt: skip
def test_what_is_not_of_its_group_is_named(group, value, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hands_file(tmp_path / "hands.npz")
    with installed(tmp_path / "site", {f"acehand.{group}": {"bad": value}}):
        if words is None:
            code = acehand(["nothing"])
        else:
            code = retarget.main([*map(str, words), "--output", "out"])
    said = capsys.readouterr().err
    assert code == 2 and f"'bad' (acehand.{group}) of others: {value!r}" in said


def test_a_flag_of_two_settings_is_refused(tmp_path, capsys):
    """Otherwise the plug-in's value would count for acehand's own setting."""
    (tmp_path / "taken_flag.py").write_text("""
from dataclasses import dataclass
from acehand_core.settings import setting
@dataclass(frozen=True)
class Mine:
    output: str = setting('x', 'another output')
""")
    with installed(tmp_path, {"acehand.trackers.settings": {"mine": "taken_flag:Mine"}}):
        assert retarget.main(["a.mp4"]) == 2
    said = capsys.readouterr().err
    assert "--output" in said and "job.tracking.own.mine.output" in said


def test_a_name_of_two_packages_is_refused_and_ours_stay(tmp_path):
    lay_down(tmp_path / "a", {"acehand.methods": {"x": "json:loads"}}, "first")
    entries = {"acehand.methods": {"x": "json:dumps", "trajectory": "json:dumps"}}
    with pytest.MonkeyPatch.context() as patch, installed(tmp_path / "b", entries, "second"):
        assert plugins.load("methods", "trajectory") is not json.dumps
        patch.syspath_prepend(str(tmp_path / "a"))
        with pytest.raises(InputError, match=r"'x' .*twice.*(first|second) and"):
            plugins.names("methods")


def test_an_installation_from_before_says_what_to_do(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingDependencyError, match=r"pip install -e \."):
        plugins.names("trackers")
    with pytest.raises(MissingDependencyError, match=r"own recordings are missing"):
        plugins.settings_of("recordings")
