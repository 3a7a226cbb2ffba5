"""Plug-ins of other packages: examples/plugins as pip lays it down, and broken ones."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from acehand_core import plugins
from acehand_core.cli import retarget
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.pipeline.settings import JobSettings
from acehand_core.settings import leaves
from helpers import ROOT
from helpers.commands import hands_file
from helpers.plugins import installed, lay_down

EXAMPLE = ROOT / "examples/plugins"
GROUPS = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """A folder of 40 arrays, and what the glove said next to it: closed in the middle."""
    folder = tmp_path / "pinch"
    folder.mkdir()
    for number in range(40):
        np.save(folder / f"{number:03}.npy", np.full((96, 128, 3), 5 * number, np.uint8))
    np.savetxt(tmp_path / "pinch.csv", np.sin(np.arange(40) / 39 * np.pi))
    return folder


def test_each_recipe_is_short() -> None:
    counts = {}
    for recipe in ("arrays.py", "glove.py", "pincher"):
        path = EXAMPLE / "my_plugins" / recipe
        files = path.iterdir() if path.is_dir() else [path]
        counts[recipe] = sum(len(file.read_text().splitlines()) for file in files)
    assert all(0 < count < 60 for count in counts.values()), counts


def test_a_format_a_tracker_and_a_robot_of_another_package(frames: Path, tmp_path: Path) -> None:
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
    job = episode_job(output)
    assert job["glove"] == {"glove-depth": 0.5} and job["ace"] is None
    # The index finger closes and opens with the glove.
    table = read_table(output)
    index = table[:, list(info["features"]["action"]["names"]).index("right_index")]
    assert 10 < index.argmax() < 30 and index.max() - index[[0, -1]].max() > 0.3


def episode_job(dataset: Path) -> dict:
    (report,) = dataset.rglob("report.json")
    return json.loads(report.read_text())["provenance"]["job"]["settings"]


def read_table(dataset: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    (file,) = (dataset / "data").rglob("*.parquet")
    return np.stack(pq.read_table(file)["action"].to_pylist())


def test_flags_of_plugins_come_and_go(tmp_path: Path) -> None:
    ours = {leaf.flag for leaf in leaves(JobSettings)}
    assert {"weights", "image-topic"} < ours and "glove-depth" not in ours
    with installed(shutil.copytree(EXAMPLE, tmp_path / "site"), GROUPS):
        assert {leaf.flag for leaf in leaves(JobSettings)} - ours == {"array-rate", "glove-depth"}
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
def odd(tmp_path: Path):
    (tmp_path / "odd_plugins.py").write_text(ODD)
    groups = {
        "acehand.methods": {"second": "odd_plugins:Second"},
        "acehand.exports": {"count": "odd_plugins:write_count"},
        "acehand.commands": {"odd": "odd_plugins:COMMANDS"},
    }
    with installed(tmp_path, groups):
        yield
    sys.modules.pop("odd_plugins", None)


def test_a_method_an_export_and_commands(odd, tmp_path: Path, capsys) -> None:
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
    told = capsys.readouterr()
    assert "pieces" in json.loads(told.out)
    assert "acehand.methods second: odd_plugins:Second of others" in told.err


def test_a_plugin_that_does_not_load_is_named_and_others_work(tmp_path: Path, capsys) -> None:
    groups = {"acehand.commands": {"bad": "no_such_module:COMMANDS"}}
    with installed(tmp_path, groups):
        assert acehand(["robots", "list"]) == 0  # ours are not looked for among others
        assert acehand(["nothing"]) == 2
        assert "'bad' (acehand.commands) of others cannot be loaded" in capsys.readouterr().err
    with installed(tmp_path / "b", {"acehand.recordings": {"bad": "no_such_module:Format"}}):
        assert retarget.main([str(tmp_path / "a.mp4")]) == 2
        assert "'bad' (acehand.recordings) of others cannot be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("recordings", "json:loads", "is not a subclass of RecordingFormat"),
        ("commands", "json:loads", "is not a table of commands"),
        ("trackers.settings", "json:loads", "is not a dataclass of settings"),
        ("methods", "builtins:bool", "returns no Retargeter"),
        ("trackers", "builtins:repr", "returns what lacks name, placed"),
    ],
)
def test_what_is_not_of_its_group_is_named(
    group: str, value: str, message: str, tmp_path: Path, capsys
) -> None:
    hands = hands_file(tmp_path / "hands.npz")
    words = {"methods": ["--method", "bad"], "trackers": ["--tracker", "bad"]}.get(group, [])
    video = ROOT / "examples/two_hands.mp4"
    with installed(tmp_path / "site", {f"acehand.{group}": {"bad": value}}):
        if group == "commands":
            code = acehand(["nothing"])
        else:
            path = video if group == "trackers" else hands
            code = retarget.main([str(path), *words, "--output", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert code == 2 and f"'bad' (acehand.{group}) of others: {value!r} {message}" in said


def test_a_flag_of_two_settings_is_refused(tmp_path: Path, capsys) -> None:
    """Otherwise the plug-in's value would count for acehand's own setting."""
    (tmp_path / "taken_flag.py").write_text(
        "from dataclasses import dataclass\n"
        "from acehand_core.settings import setting\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    output: str = setting('x', 'another output')\n"
    )
    with installed(tmp_path, {"acehand.trackers.settings": {"mine": "taken_flag:Mine"}}):
        assert retarget.main(["a.mp4"]) == 2
    assert "--output is the flag of two settings: job.output and job.trackers.mine.output" in (
        capsys.readouterr().err
    )


def test_a_name_of_two_packages_is_refused_and_ours_stay(tmp_path: Path) -> None:
    lay_down(tmp_path / "a", {"acehand.methods": {"x": "json:loads"}}, "first")
    entries = {"acehand.methods": {"x": "json:dumps", "trajectory": "json:dumps"}}
    with pytest.MonkeyPatch.context() as patch, installed(tmp_path / "b", entries, "second"):
        assert plugins.load("methods", "trajectory") is not json.dumps
        patch.syspath_prepend(str(tmp_path / "a"))
        with pytest.raises(InputError, match=r"'x' is installed twice, by (first|second) and"):
            plugins.names("methods")


def test_an_installation_from_before_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingDependencyError, match=r"pip install -e \."):
        plugins.names("trackers")
    with pytest.raises(MissingDependencyError, match=r"own recordings are missing"):
        plugins.settings_of("recordings")


def test_the_docs_name_every_kind() -> None:
    kinds = set(re.findall(r"``acehand\.(\w+)``", plugins.__doc__ or ""))
    assert kinds == {*plugins.Kind.__args__}
    assert kinds <= set(re.findall(r"`acehand\.(\w+)`", (ROOT / "docs/api.md").read_text()))
