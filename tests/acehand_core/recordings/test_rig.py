"""Rigs and depth: other cameras of a recording, their poses, and depth pictures."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from acehand_core.recordings.registry import open_recording
from helpers.video_fixtures import read_number, write_video

WIDTH, HEIGHT = 96, 64
LENS = {"width": WIDTH, "height": HEIGHT, "fx": 80.0, "fy": 82.0, "cx": 47.0, "cy": 32.0}


def pose(x: float, y: float = 0.0, z: float = 0.0, turn: tuple[float, ...] = (0, 0, 0)) -> Any:
    T = np.eye(4)
    T[:3, :3] = cv2.Rodrigues(np.array(turn, float))[0]
    T[:3, 3] = x, y, z
    return T


def our_rig(path: Path, **cameras: Any) -> Path:
    """Our YAML; a camera is its pose, or fields with one."""
    entries = {
        name: {**LENS, **({"T_rig_camera": c.tolist()} if isinstance(c, np.ndarray) else c)}
        for name, c in cameras.items()
    }
    path.write_text(yaml.safe_dump({"cameras": entries}))
    return path


def depth_folder(folder: Path, values: list[float], names: list[str] | None = None) -> Path:
    """16-bit pictures of one value each, with a hole in the corner."""
    folder.mkdir()
    for number, value in enumerate(values):
        image = np.full((HEIGHT, WIDTH), value, np.uint16)
        image[0, 0] = 0
        cv2.imwrite(str(folder / f"{names[number] if names else number}.png"), image)
    return folder


@pytest.fixture
def videos(tmp_path: Path) -> tuple[Path, Path]:
    return write_video(tmp_path / "a.mp4", 10), write_video(tmp_path / "b.mp4", 12)


def test_views_and_depth_of_a_rig(videos, tmp_path):
    turned = pose(0.1, 0.02, 0.0, (0, 0.3, 0))
    rig = our_rig(tmp_path / "rig.yaml", first=pose(1.0, 0.5), second=pose(1.0, 0.5) @ turned)
    depth = depth_folder(tmp_path / "depth", [500 + i for i in range(10)])
    opened = open_recording(
        videos[0],
        rig=rig,
        view={"second": videos[1]},
        view_offset={"second": 0.1},
        depth=depth,
        start_s=0.2,
        duration_s=0.1,
    )
    assert [read_number(image) for image in opened.frames.read(0, 3)] == [6, 7, 8]
    assert (opened.camera.fx, opened.camera.cy) == (80.0, 32.0)

    (view,) = opened.views
    assert view.name == "second" and len(view.recording) == 12
    np.testing.assert_allclose(view.T_camera_view, turned, atol=1e-12)
    assert view.recording.timestamps_ns[3] == 0 and read_number(view.recording.frames.at(3)) == 3

    assert len(opened.depth.frames) == 10 and opened.depth.timestamps_ns[6] == 200_000_000
    image = opened.depth.frames.at(6)
    assert (
        image.dtype == np.float32
        and np.isnan(image[0, 0])
        and (image[1:] == np.float32(0.506)).all()
    )
    np.testing.assert_array_equal(opened.depth.T_camera_depth, np.eye(4))
