"""Objects from the command line to the verdict, and an episode's grasps simulated again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from acehand_core.ace.synthetic.episode import SynthOptions, make_episode
from acehand_core.ace.synthetic.rendering import objects_of, truth_of
from acehand_core.cli.main import main, retarget
from acehand_core.recordings.hands_file import write_hand_motion
from acehand_core.recordings.objects import write_objects


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grasps")
    posed, motion = truth_of(make_episode(1, 2, SynthOptions(frames=161, fast=True)))
    write_hand_motion(motion, folder / "hands.parquet")
    track = objects_of(posed)
    write_objects(track, folder / "objects.json")
    resting = tuple(
        replace(o, T_frame_object=np.tile(o.T_frame_object[0], (161, 1, 1))) for o in track.objects
    )
    write_objects(replace(track, objects=resting), folder / "resting.json")
    return folder


@pytest.fixture(scope="module")
def dataset(inputs: Path) -> Path:
    output = inputs / "dataset"
    hands, objects = str(inputs / "hands.parquet"), str(inputs / "objects.json")
    assert retarget([hands, "--objects", objects, "--output", str(output), "--quiet"]) == 0
    return output


def test_the_report_has_the_grasps(dataset: Path) -> None:
    (report,) = dataset.glob("**/report.json")
    grasps = json.loads(report.read_text())["grasps"]
    assert [grasp["side"] for grasp in grasps] == ["right", "left"]
    assert all(grasp["held"] and grasp["fault"] is None for grasp in grasps)


def test_a_dataset_is_checked_again(
    inputs: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = str(inputs / "objects.json")
    assert main(["grasp-check", str(dataset), "--objects", objects, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["grasps"]
    (report,) = dataset.glob("**/report.json")
    for one, other in zip(json.loads(report.read_text())["grasps"], again, strict=True):
        # Columns are stored in single precision.
        assert one["fault"] == other["fault"] is None
        assert one["position_error_m"] == pytest.approx(other["position_error_m"], abs=3e-3)


def test_plain_fingers_drop_them(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hands, objects = str(inputs / "hands.parquet"), str(inputs / "objects.json")
    output = str(inputs / "plain")
    assert retarget([hands, "--objects", objects, "--no-contacts", "--output", output]) == 0
    assert main(["grasp-check", output, "--objects", objects]) == 1
    assert "0 of 2 grasps hold" in capsys.readouterr().err


def test_objects_that_nobody_lifts(
    inputs: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resting = str(inputs / "resting.json")
    assert main(["grasp-check", str(dataset), "--objects", resting]) == 2
    assert "own_left" in capsys.readouterr().err
