"""Camera files, inline intrinsics and camera poses."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from scipy.spatial.transform import Rotation, Slerp

from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.camera_files import load_camera
from acehand_core.recordings.cameras import (
    POSE_COLUMNS,
    fit_camera_to,
    load_camera_poses,
    parse_intrinsics,
)

FISHEYE = dict(model="kannala_brandt", width=848, height=800, fx=286, fy=286.2, cx=421.3, cy=402.0)
FISHEYE["distortion"] = [-0.004, 0.03, -0.03, 0.006]


def test_camera_file(tmp_path) -> None:
    path, k = tmp_path / "cam.json", (-0.004, 0.03, -0.03, 0.006)
    path.write_text(json.dumps(FISHEYE))
    camera = load_camera(path)
    assert camera == Camera("kannala_brandt", 848, 800, 286.0, 286.2, 421.3, 402.0, k)
    path.write_text(json.dumps(camera.to_json()))
    assert load_camera(str(path)) == camera


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (tuple(), "is a folder"),
        ("", "no fields"),
        ("{'model': 1}", "not JSON"),
        ("[1, 2]", "no fields"),
        (json.dumps(FISHEYE | {"model": "kanala_brandt"}), "Did you mean 'kannala_brandt'"),
        (json.dumps({k: v for k, v in FISHEYE.items() if k != "fx"}), "'fx' is missing"),
        (json.dumps(FISHEYE | {"fx": math.nan}), "fx is nan"),
        (b"\xff\xfe\x00", "neither text nor COLMAP"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_camera_files_are_named(tmp_path, content, message: str) -> None:
    path = tmp_path / "cam.json"
    if content == ():
        path.mkdir()
    elif content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["type", "fx", "width", "k1"])
@pytest.mark.parametrize(
    "value", [None, True, 1.5, 10**400, [[1]], {}, "no"], ids=lambda v: str(v)[:5]
)
def test_any_value_of_a_camera_file_is_read_or_refused(tmp_path, name: str, value) -> None:
    values = {"fx": 500, "fy": 500, "cx": 320, "cy": 240, "width": 640, "height": 480}
    ours = values | {"model": "pinhole"} | {name.replace("type", "model"): value}
    orb = {
        f"Camera.{key}": entry for key, entry in (values | {"type": "PinHole", name: value}).items()
    }
    for content in (ours, orb):
        (tmp_path / "c.json").write_text(json.dumps(content))
        try:
            assert load_camera(tmp_path / "c.json").height == 480
        except CalibrationError as error:
            assert "c.json" in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("900,900,640", "four numbers"),
        ("900,900,640,360,0", "four numbers"),
        ("a,b,c,d", "four numbers"),
        ("", "four numbers"),
        ("-900,900,640,360", "above 0"),
        ("nan,900,640,360", "fx is nan"),
        ("900,900,6400,360", "1280 x 720"),
    ],
)
def test_bad_intrinsics_are_refused(text: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        parse_intrinsics(text, 1280, 720)


@pytest.mark.parametrize("offset", [-40.0, 0.0, 40.0])
@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_intrinsics_of_another_size_are_refused(scale: float, offset: float) -> None:
    """Calibrated at twice or half the size; the lens may sit off the middle.

    The message names the size whose middle the principal point would be.
    """
    camera = Camera("pinhole", 1280, 720, 900.0, 900.0, 639.5 + offset, 359.5)
    other = camera.rescaled(round(1280 * scale), round(720 * scale))
    text = f"{other.fx},{other.fy},{other.cx},{other.cy}"
    size = f"{(1280 + 2 * offset) * scale:.0f} x {720 * scale:.0f}"
    with pytest.raises(CalibrationError, match=f"about {size}"):
        parse_intrinsics(text, 1280, 720)
    assert parse_intrinsics(text, other.width, other.height) == other
    assert parse_intrinsics(f"900, 900,{639.5 + offset},359.5", 1280, 720) == camera


def test_camera_is_rescaled_to_a_resized_video() -> None:
    camera = Camera("pinhole", 1920, 1080, 1400.0, 1400.0, 959.5, 539.5)
    assert fit_camera_to(camera, 1920, 1080) is camera
    half = fit_camera_to(camera, 960, 540)
    assert (half.fx, half.cx, half.width) == (700.0, 479.5, 960)
    assert fit_camera_to(camera, 854, 480).width == 854  # 480p rounds 853.3 up
    assert fit_camera_to(camera, 1920, 1088).height == 1088  # padded to whole macroblocks
    for width, height in ((1440, 1080), (1280, 800), (1080, 1080)):
        with pytest.raises(CalibrationError, match=f"1920 x 1080.*{width} x {height}"):
            fit_camera_to(camera, width, height)
    with pytest.raises(CalibrationError, match="The video is turned"):
        fit_camera_to(camera, 1080, 1920)


def pose_rows(count: int = 20, step_ns: int = 50_000_000, start: int = 10**18) -> np.ndarray:
    rng = np.random.default_rng(3)
    turn = Rotation.from_rotvec(np.cumsum(rng.normal(0, 0.2, (count, 3)), axis=0))
    position = np.cumsum(rng.normal(0, 0.05, (count, 3)), axis=0)
    rows = np.empty(count, dtype=[(n, "i8" if n == "timestamp_ns" else "f8") for n in POSE_COLUMNS])
    rows["timestamp_ns"] = start + np.arange(count) * step_ns
    values = np.concatenate([position, turn.as_quat()], axis=1)
    for name, column in zip(("x", "y", "z", "qx", "qy", "qz", "qw"), values.T, strict=True):
        rows[name] = column
    return rows


def write_poses(path, rows: np.ndarray):
    if path.suffix == ".csv":
        lines = [",".join(rows.dtype.names), *(",".join(map(repr, row.tolist())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        table = pa.table({name: rows[name] for name in rows.dtype.names})
        pa.parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_poses_are_interpolated(tmp_path, suffix: str) -> None:
    """As scipy does; q and -q are one rotation, and rounded ones are made units."""
    rows = pose_rows()
    stored = rows.copy()
    for name in ("qw", "qx", "qy", "qz"):
        stored[name][::2] *= -1
        stored[name] = np.round(stored[name], 7)
    path = write_poses(tmp_path / f"poses{suffix}", stored)
    first, last = rows["timestamp_ns"][[0, -1]]
    times = np.random.default_rng(0).integers(first, last, 50)
    times = np.unique(np.concatenate([times, rows["timestamp_ns"]]))
    poses = load_camera_poses(path, times)
    quaternion = np.stack([rows[n] for n in ("qx", "qy", "qz", "qw")], axis=1)
    seconds = (rows["timestamp_ns"] - first) / 1e9
    slerp = Slerp(seconds, Rotation.from_quat(quaternion))((times - first) / 1e9)
    R = poses[:, :3, :3]
    np.testing.assert_allclose(R, slerp.as_matrix(), atol=1e-6)
    np.testing.assert_allclose(R @ R.swapaxes(1, 2) - np.eye(3), 0, atol=1e-12)
    for i, name in enumerate("xyz"):
        expected = np.interp((times - first) / 1e9, seconds, rows[name])
        np.testing.assert_allclose(poses[:, i, 3], expected, atol=1e-9)
    np.testing.assert_array_equal(poses[:, 3], np.tile([0, 0, 0, 1], (len(times), 1)))


def test_one_frame_outside_holds_the_nearest_pose(tmp_path) -> None:
    rows, frame = pose_rows(), 33_333_333
    path = write_poses(tmp_path / "poses.csv", rows)
    first, last = rows["timestamp_ns"][[0, -1]]
    times = np.arange(first - frame, last + frame + 1, frame)
    poses = load_camera_poses(path, times)
    np.testing.assert_array_equal(poses[0], load_camera_poses(path, times[1:2])[0])
    for shifted in (times - 5 * frame, times + 5 * frame):
        with pytest.raises(CalibrationError, match=rf"{first} to {last} ns"):
            load_camera_poses(path, shifted)


def test_a_single_pose_is_constant(tmp_path) -> None:
    rows = pose_rows(1)
    path = write_poses(tmp_path / "poses.csv", rows)
    times = rows["timestamp_ns"][0] + np.array([-30, 0, 30]) * 1_000_000
    poses = load_camera_poses(path, times)
    np.testing.assert_array_equal(poses[0], poses[2])
    assert load_camera_poses(path, times[1:2]).shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("name", "row", "value", "message"),
    [
        ("timestamp_ns", 7, 0, "pose 7 .* is not later"),
        ("timestamp_ns", 7, pose_rows()["timestamp_ns"][6], "pose 7 .* is not later"),
        ("qw", 3, 1.7, "pose 3 .* length is not 1"),
        ("x", 5, np.nan, "pose 5 .*finite"),
        ("x", None, 0, "has no pose"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_bad_rows_are_named(tmp_path, name, row, value, message: str, suffix: str) -> None:
    rows = pose_rows(0 if row is None else 20)
    if row is not None:
        rows[name][row] = value
    path = write_poses(tmp_path / f"poses{suffix}", rows)
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera_poses(path, pose_rows()["timestamp_ns"])
    assert str(path) in str(error.value)


HEADER = "timestamp_ns,x,y,z,qw,qx,qy,qz"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", None, "does not exist"),
        ("p.txt", "x", r"\.csv or \.parquet"),
        ("p.csv", "", "table"),
        ("p.parquet", "not parquet", "table"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy\n1,0,0,0,1,0,0\n", "'qz'"),
        ("p.csv", f"{HEADER},quality\n1,0,0,0,1,0,0,0,1\n", "'quality'"),
        ("p.csv", "timestamp,x,y,z,qw,qx,qy,qz\n1,0,0,0,1,0,0,0\n", "mean 'timestamp_ns'"),
        ("p.csv", f"{HEADER}\n1.5,0,0,0,1,0,0,0\n", "whole nanoseconds"),
        ("p.csv", f"{HEADER}\n,0,0,0,1,0,0,0\n1,0,0,0,1,0,0,0\n", "whole"),
        ("p.csv", f"{HEADER}\n1,a,0,0,1,0,0,0\n", "numbers"),
        ("p.csv", f"{HEADER}\n1,,0,0,1,0,0,0\n", "pose 0 .* missing"),
        ("p.csv", f"{HEADER}\n1,0,0\n", "table"),
        ("p.csv", f"{HEADER},gr\u00f6\u00dfe\n1,0,0,0,1,0,0,0,1\n".encode("latin-1"), r"p\.csv"),
        ("p.csv", f"{HEADER},gr\u00f6\u00dfe\n1,0,0,0,1,0,0,0,1\n".encode("utf-16"), r"p\.csv"),
    ],
)
def test_bad_pose_files_are_named(tmp_path, name, content, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera_poses(path, np.array([1], np.int64))
    assert str(path) in str(error.value)
