"""The commands run in this process, and small inputs for them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acehand_core.cli import retarget
from acehand_core.cli.main import main as acehand
from helpers.example_video import example_frames
from helpers.retarget_samples import moving_hands
from helpers.video_fixtures import write_video

GRIPPER = ("--robot", "panda_gripper")


class Run:
    """One run of acehand-retarget: exit code, JSON, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        self.code, self.json, self.err = _run(capsys, retarget.main, *arguments)

    @property
    def messages(self) -> str:
        """All error messages of the JSON object."""
        assert self.json is not None
        return " ".join(error["message"] for error in self.json["errors"])


class Acehand(Run):
    """One run of acehand."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        self.code, self.json, self.err = _run(capsys, acehand, *arguments)


class GripperRun(Run):
    """A run of the robot that takes least time, for tests of everything else."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: object) -> None:
        super().__init__(capsys, *arguments, *GRIPPER)


def _run(capsys, main, *arguments: object):
    capsys.readouterr()
    words = [*map(str, arguments), "--json"]
    code = main(words if "-v" in words else [*words, "--quiet"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]) if out else None, err


def first_run(*arguments: object) -> dict:
    """Run acehand-retarget for a fixture of wider scope than one test; return its JSON."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert retarget.main([*map(str, arguments), "--json", "--quiet"]) == 0
    return json.loads(said.getvalue().splitlines()[-1])


def run_helper(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a module of this folder as a program, in a process of its own."""
    here = Path(__file__).resolve().parent
    return subprocess.run(
        [sys.executable, str(here / f"{name}.py"), *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, here.parents[:2]))},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


def hands_file(path: Path, count: int = 12, fps: int = 30, **entries: object) -> Path:
    """Write joints of both hands, moving before a camera."""
    values = {"joints": moving_hands(count), "fps": fps, "frame": "camera", **entries}
    np.savez(path, **values)
    return path


def video_and_hands(folder: Path, count: int = 6) -> list[Path]:
    """Write a video and the hands that are seen in it."""
    video = write_video(folder / "v.mp4", example_frames(count))
    return [video, hands_file(folder / "hands.npz", count)]
