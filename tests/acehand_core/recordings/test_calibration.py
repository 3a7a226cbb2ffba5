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

FISHEYE = {
    "model": "kannala_brandt", "width": 848, "height": 800, "fx": 286, "fy": 286.2, "cx": 421.3,
    "cy": 402.0, "distortion": [-0.004, 0.03, -0.03, 0.006],
}  # fmt: skip


def test_camera_file(tmp_path) -> None:
    path = tmp_path / "cam.json"
    path.write_text(json.dumps(FISHEYE))
    camera = load_camera(path)
    assert camera == Camera(
        "kannala_brandt", 848, 800, 286.0, 286.2, 421.3, 402.0, (-0.004, 0.03, -0.03, 0.006)
    )
    path.write_text(json.dumps(camera.to_json()))
    assert load_camera(str(path)) == camera


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("", "it has no fields"),
        ("{'model': 1}", "is not JSON"),
        ("[1, 2]", "it has no fields"),
        (json.dumps(FISHEYE | {"model": "kanala_brandt"}), "Did you mean 'kannala_brandt'"),
        (json.dumps({k: v for k, v in FISHEYE.items() if k != "fx"}), "'fx' is missing"),
        (json.dumps(FISHEYE | {"fx": math.nan}), "fx is nan"),
        (b"\xff\xfe\x00", "neither text nor COLMAP's cameras.bin"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_camera_files_say_why(tmp_path, content, message: str) -> None:
    path = tmp_path / "cam.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["type", "fx", "width", "k1"])
@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, 10**400, [[1]], {}, "no"],
    ids=["null", "true", "half", "huge", "list", "mapping", "text"],
)
def test_any_value_of_a_camera_file_is_read_or_refused(tmp_path, name: str, value) -> None:
    ours = {"model": "pinhole", "width": 640, "height": 480, "fx": 500, "fy": 500, "cx": 320,
            "cy": 240}  # fmt: skip
    orb = {"Camera.type": "PinHole", "Camera.fx": 500, "Camera.fy": 500, "Camera.cx": 320,
           "Camera.cy": 240, "Camera.width": 640, "Camera.height": 480}  # fmt: skip
    for content in (ours | {name.replace("type", "model"): value}, orb | {f"Camera.{name}": value}):
        (tmp_path / "c.json").write_text(json.dumps(content))
        try:
            assert load_camera(tmp_path / "c.json").height == 480
        except CalibrationError as error:
            assert "c.json" in str(error)


def test_camera_file_is_no_folder(tmp_path) -> None:
    with pytest.raises(CalibrationError, match="is a folder; give a camera file"):
        load_camera(tmp_path)


def test_inline_intrinsics() -> None:
    camera = parse_intrinsics("900, 901.5,640,360", 1280, 720)
    assert camera == Camera("pinhole", 1280, 720, 900.0, 901.5, 640.0, 360.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("900,900,640", "give four numbers"),
        ("900,900,640,360,0", "give four numbers"),
        ("a,b,c,d", "give four numbers"),
        ("", "give four numbers"),
        ("-900,900,640,360", "above 0"),
        ("nan,900,640,360", "fx is nan"),
        ("900,900,6400,360", "far from the middle of the 1280 x 720 video"),
    ],
)
def test_bad_intrinsics_say_why(text: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        parse_intrinsics(text, 1280, 720)


@pytest.mark.parametrize(
    ("scale", "offset", "size"),
    [(2.0, -40.0, "2400 x 1440"), (2.0, 0.0, "2560 x 1440"), (2.0, 40.0, "2720 x 1440"),
     (0.5, -40.0, "600 x 360"), (0.5, 0.0, "640 x 360"), (0.5, 40.0, "680 x 360")],
)  # fmt: skip
def test_intrinsics_of_another_size_are_refused(scale: float, offset: float, size: str) -> None:
    """What a user has who calibrated at twice or half the size; the lens may sit off the middle.

    The message names the size whose middle the principal point would be.
    """
    camera = Camera("pinhole", 1280, 720, 900.0, 900.0, 639.5 + offset, 359.5)
    other = camera.rescaled(round(1280 * scale), round(720 * scale))
    text = f"{other.fx},{other.fy},{other.cx},{other.cy}"
    with pytest.raises(CalibrationError, match="far from the middle") as error:
        parse_intrinsics(text, 1280, 720)
    assert f"about {size}." in str(error.value)
    assert parse_intrinsics(text, other.width, other.height) == other
    assert parse_intrinsics(f"900,900,{639.5 + offset},359.5", 1280, 720) == camera


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


# Camera poses.


def pose_rows(count: int = 20, step_ns: int = 50_000_000, start: int = 10**18) -> np.ndarray:
    rng = np.random.default_rng(3)
    turn = Rotation.from_rotvec(np.cumsum(rng.normal(0, 0.2, (count, 3)), axis=0))
    position = np.cumsum(rng.normal(0, 0.05, (count, 3)), axis=0)
    rows = np.empty(count, dtype=[(n, "i8" if n == "timestamp_ns" else "f8") for n in POSE_COLUMNS])
    rows["timestamp_ns"] = start + np.arange(count) * step_ns
    for i, name in enumerate(("x", "y", "z")):
        rows[name] = position[:, i]
    for i, name in enumerate(("qx", "qy", "qz", "qw")):
        rows[name] = turn.as_quat()[:, i]
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
    rows = pose_rows()
    path = write_poses(tmp_path / f"poses{suffix}", rows)
    first, last = rows["timestamp_ns"][[0, -1]]
    times = np.sort(np.random.default_rng(0).integers(first, last, 50))
    times = np.unique(np.concatenate([times, rows["timestamp_ns"]]))
    poses = load_camera_poses(path, times)
    quaternion = np.stack([rows[n] for n in ("qx", "qy", "qz", "qw")], axis=1)
    seconds = (rows["timestamp_ns"] - first) / 1e9
    slerp = Slerp(seconds, Rotation.from_quat(quaternion))((times - first) / 1e9)
    np.testing.assert_allclose(poses[:, :3, :3], slerp.as_matrix(), atol=1e-9)
    for i, name in enumerate("xyz"):
        expected = np.interp((times - first) / 1e9, seconds, rows[name])
        np.testing.assert_allclose(poses[:, i, 3], expected, atol=1e-9)
    np.testing.assert_array_equal(poses[:, 3], np.tile([0, 0, 0, 1], (len(times), 1)))


def test_quaternion_signs_do_not_matter(tmp_path) -> None:
    rows = pose_rows()
    flipped = rows.copy()
    for name in ("qw", "qx", "qy", "qz"):
        flipped[name][::2] *= -1
    times = rows["timestamp_ns"][:-1] + 20_000_000
    np.testing.assert_allclose(
        load_camera_poses(write_poses(tmp_path / "a.csv", rows), times),
        load_camera_poses(write_poses(tmp_path / "b.csv", flipped), times),
        atol=1e-12,
    )


def test_one_frame_outside_holds_the_nearest_pose(tmp_path) -> None:
    rows = pose_rows()
    path = write_poses(tmp_path / "poses.csv", rows)
    first, last = rows["timestamp_ns"][[0, -1]]
    frame = 33_333_333
    times = np.arange(first - frame, last + frame + 1, frame)
    poses = load_camera_poses(path, times)
    np.testing.assert_array_equal(poses[0], load_camera_poses(path, times[1:2])[0])
    for shifted in (times - 5 * frame, times + 5 * frame):
        with pytest.raises(CalibrationError, match=rf"covers {first} to {last} ns"):
            load_camera_poses(path, shifted)


def test_a_single_pose_is_constant(tmp_path) -> None:
    rows = pose_rows(1)
    path = write_poses(tmp_path / "poses.csv", rows)
    times = rows["timestamp_ns"][0] + np.array([-30, 0, 30]) * 1_000_000
    poses = load_camera_poses(path, times)
    np.testing.assert_array_equal(poses[0], poses[2])
    assert load_camera_poses(path, times[1:2]).shape == (1, 4, 4)


def _changed(name: str, row: int, value) -> np.ndarray:
    rows = pose_rows()
    rows[name][row] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (_changed("timestamp_ns", 7, 0), "pose 7 .* is not later"),
        (_changed("timestamp_ns", 7, pose_rows()["timestamp_ns"][6]), "pose 7 .* is not later"),
        (_changed("qw", 3, 1.7), "pose 3 .* length is not 1"),
        (_changed("x", 5, np.nan), "pose 5 .*finite"),
        (pose_rows(0), "has no pose"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_bad_rows_are_named(tmp_path, rows, message: str, suffix: str) -> None:
    path = write_poses(tmp_path / f"poses{suffix}", rows)
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera_poses(path, pose_rows()["timestamp_ns"])
    assert str(path) in str(error.value)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_pose_tables_that_are_not_utf8_are_refused(tmp_path, encoding: str) -> None:
    path = tmp_path / "p.csv"
    path.write_text("timestamp_ns,x,y,z,qw,qx,qy,qz,gr\u00f6\u00dfe\n1,0,0,0,1,0,0,0,1\n", encoding)
    with pytest.raises(CalibrationError, match=r"p\.csv"):
        load_camera_poses(path, np.array([1], np.int64))


def test_slightly_rounded_quaternions_are_normalised(tmp_path) -> None:
    rows = pose_rows()
    for name in ("qw", "qx", "qy", "qz"):
        rows[name] = np.round(rows[name], 4)
    poses = load_camera_poses(write_poses(tmp_path / "poses.csv", rows), rows["timestamp_ns"])
    product = poses[:, :3, :3] @ np.swapaxes(poses[:, :3, :3], 1, 2)
    np.testing.assert_allclose(product, np.broadcast_to(np.eye(3), product.shape), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", None, "does not exist"),
        ("p.txt", "x", r"must be a \.csv or \.parquet"),
        ("p.csv", "", "cannot be read as a table"),
        ("p.parquet", "not parquet", "cannot be read as a table"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy\n1,0,0,0,1,0,0\n", "column 'qz'"),
        (
            "p.csv",
            "timestamp_ns,x,y,z,qw,qx,qy,qz,quality\n1,0,0,0,1,0,0,0,1\n",
            "column 'quality'",
        ),
        ("p.csv", "timestamp,x,y,z,qw,qx,qy,qz\n1,0,0,0,1,0,0,0\n", "mean 'timestamp_ns'"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy,qz\n1.5,0,0,0,1,0,0,0\n", "whole nanoseconds"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy,qz\n,0,0,0,1,0,0,0\n1,0,0,0,1,0,0,0\n", "whole"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy,qz\n1,a,0,0,1,0,0,0\n", "must be numbers"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy,qz\n1,,0,0,1,0,0,0\n", "pose 0 .* missing"),
        ("p.csv", "timestamp_ns,x,y,z,qw,qx,qy,qz\n1,0,0\n", "cannot be read as a table"),
    ],
)
def test_bad_pose_files_say_why(tmp_path, name, content, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(CalibrationError, match=message) as error:
        load_camera_poses(path, np.array([1], np.int64))
    assert str(path) in str(error.value)
