"""Files of tracked objects: what is read is what was written, and errors name the place."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation, Slerp

from acehand_core.errors import SchemaError
from acehand_core.recordings.objects import read_objects, write_objects
from helpers import ROOT
from retarget import load_robot
from retarget.replay.grasps import GraspScene

EXAMPLES = ROOT / "examples"

QUARTER = [np.cos(np.pi / 4), 0.0, 0.0, np.sin(np.pi / 4)]


def content(**changes: Any) -> dict[str, Any]:
    item = {
        "name": "mug", "mass_kg": 0.3, "parts": [{"shape": "cylinder", "size": [0.04, 0.05]}],
        "timestamps_ns": [0, 100_000_000], "poses": [[0, 0, 0, 1, 0, 0, 0], [0.1, 0, 0, *QUARTER]],
    }  # fmt: skip
    top = {k: changes.pop(k) for k in ("frame", "up") if k in changes}
    return {"format": "acehand-objects", "version": 1, "frame": "world",
            "objects": [item | changes]} | top  # fmt: skip


def written(folder: Path, value: dict[str, Any]) -> Path:
    path = folder / "objects.json"
    path.write_text(json.dumps(value))
    return path


def test_poses_are_interpolated_as_scipy_does(tmp_path: Path) -> None:
    track = read_objects(written(tmp_path, content()))
    (mug,) = track.objects
    assert track.up.tolist() == [0, 0, 1] and mug.friction == 1.0
    poses = mug.at(np.array([25_000_000, 100_000_000, 500_000_000]))
    turns = Slerp([0, 1], Rotation.from_quat([[0, 0, 0, 1], np.roll(QUARTER, -1)]))
    np.testing.assert_allclose(poses[0, :3, :3], turns(0.25).as_matrix(), atol=1e-9)
    np.testing.assert_allclose(poses[:2, 0, 3], [0.025, 0.1])
    assert np.isnan(poses[2]).all()


def test_long_gaps_are_unknown(tmp_path: Path) -> None:
    value = content(timestamps_ns=[0, 1_000_000_000])
    (mug,) = read_objects(written(tmp_path, value)).objects
    poses = mug.at(np.array([0, 500_000_000]))
    assert np.isfinite(poses[0]).all() and np.isnan(poses[1]).all()


def test_a_written_file_is_read_again(tmp_path: Path) -> None:
    track = read_objects(written(tmp_path, content(frame="camera", up=[0, -2, 0])))
    assert track.frame == "camera" and track.up.tolist() == [0, -1, 0]
    write_objects(track, tmp_path / "again.json")
    again = read_objects(tmp_path / "again.json")
    assert again.objects[0].parts == track.objects[0].parts
    np.testing.assert_allclose(
        again.objects[0].T_frame_object, track.objects[0].T_frame_object, atol=1e-8
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"frame": "camera"}, "up"),
        ({"frame": "wrld"}, "world"),
        ({"up": [0, 0, 0]}, "up"),
        ({"mass_kg": 0}, "mass_kg"),
        ({"parts": []}, "parts"),
        ({"parts": [{"shape": "cylinder", "size": [0.04]}]}, "2 numbers"),
        ({"parts": [{"shape": "mesh", "size": [1.0]}]}, "mesh"),
        ({"parts": [{"shape": "mesh", "size": [1.0], "mesh": "no.stl"}]}, "no.stl"),
        ({"timestamps_ns": [0]}, r"\(2, 7\)"),
        ({"timestamps_ns": [5, 5]}, "timestamps_ns"),
        ({"timestamps_ns": [0.5, 1]}, "timestamps_ns"),
        ({"poses": [[0] * 7, [0] * 7]}, "pose 0"),
        ({"poses": [[0, 0, 0, 1, 0, 0, 0], [float("nan"), 0, 0, 1, 0, 0, 0]]}, "pose 1"),
        ({"poses": "none"}, "poses"),
    ],
)
def test_bad_files(tmp_path: Path, changes: dict[str, Any], names: str) -> None:
    path = written(tmp_path, content(**changes))
    with pytest.raises(SchemaError, match=names) as error:
        read_objects(path)
    assert str(path) in str(error.value)


def test_objects_of_a_hot3d_recording(
    tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = shared / "data" / "hot3d_aria_P0003_c701bd11"
    if not recording.is_dir():
        pytest.skip("no HOT3D recording in the shared data")
    uid = 228358276546933
    (tmp_path / f"{uid}.obj").write_text(
        "v 0 0 0\nv 0.1 0 0\nv 0 0.1 0\nv 0 0 0.1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    )
    output = tmp_path / "objects.json"
    runpy.run_path(str(EXAMPLES / "hot3d_objects.py"))["main"](recording, tmp_path, output)
    assert "left out" in capsys.readouterr().out
    (item,) = read_objects(output).objects
    # The file's first row of this object.
    pose = item.at(np.array([56752108188860]))[0]
    np.testing.assert_allclose(pose[:3, 3], [-0.06537463, -0.16220627, -0.33062553], atol=1e-7)
    turn = Rotation.from_quat([0.39203265, -0.71724925, -0.00507116, 0.57605398])
    np.testing.assert_allclose(pose[:3, :3], turn.as_matrix(), atol=1e-6)
    model = GraspScene(load_robot("inspire").hand("right"), item).model
    assert model.body_mass[model.body("object").id] == pytest.approx(0.3)
