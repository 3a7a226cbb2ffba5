"""What the documentation states is what the code does."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from acehand_core.cli import console, retarget
from acehand_core.cli.main import main as acehand
from acehand_core.data.calibration import POSE_COLUMNS
from acehand_core.data.hand_table import COLUMNS
from acehand_core.export.features import Layout, features
from acehand_core.trackers.files import JOINT_FILE_KEYS
from retarget.robot import load_robot

DOCS = Path(__file__).resolve().parent.parent / "docs"
FORMATS = (DOCS / "formats.md").read_text("utf-8")


def table(header: str) -> list[list[str]]:
    """Return the cells of the table whose header starts so."""
    lines = FORMATS[FORMATS.index(header) :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_flags() -> None:
    parser = argparse.ArgumentParser()
    retarget.add_arguments(parser)
    console.add_common_arguments(parser)
    stated = {row[0].strip("`"): row[1].strip("`") for row in table("| flag | default")}
    actual = {a.option_strings[-1]: a for a in parser._actions if a.option_strings}
    actual["--overlay"] = actual.pop("--no-overlay")
    assert set(stated) == set(actual) - {"--help", "--version"}
    for flag in ("--robot", "--hands", "--tracker", "--solver", "--task", "--output"):
        assert stated[flag] == str(actual[flag].default)


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
    assert stated == set(JOINT_FILE_KEYS)


def test_camera_pose_columns() -> None:
    assert ", ".join(POSE_COLUMNS) in FORMATS


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"`acehand (\w+)", FORMATS)) | {"retarget"})
)
def test_documented_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        acehand([command, "--help"])
    assert stop.value.code == 0
    assert "usage: acehand" in capsys.readouterr().out
