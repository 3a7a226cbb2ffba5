"""A HandMotion as a file: to the last bit and back, and every way such a file can be wrong."""

import csv
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.errors import AcehandError, InputError, OutputError, SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.hands_file import (
    COLUMNS,
    read_hand_motion,
    read_motion_file,
    to_table,
    write_hand_motion,
    write_joints_file,
)
from helpers.fake_motion import CAMERA, assert_same_bits, random_motion


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(1, 9),
    model=st.sampled_from(["mano", "acehand", "none"]),
    camera=st.sampled_from([None, CAMERA, Camera.nominal(1280, 720)]),
    posed=st.booleans(),
    placed=st.booleans(),
)
def test_round_trip_is_exact(tmp_path_factory, seed, frames, model, camera, posed, placed):
    motion = random_motion(seed, frames, model, camera, posed, placed)
    path = tmp_path_factory.mktemp("table") / "motion.parquet"
    write_hand_motion(motion, path)
    assert_same_bits(read_hand_motion(path), motion)


def test_odd_numbers_and_settings_survive(tmp_path):
    """Signed zero, denormal, largest, infinity, a NaN of one's own; settings that JSON lacks."""
    motion = random_motion(1, 4, "none")
    joints = motion.joints_camera.copy()
    joints[0, 0, :2] = [[-0.0, 5e-324, 1.7976931348623157e308], [np.inf, -np.inf, 0]]
    joints.view(np.uint64)[0, 0, 2, 0] = 0x7FF8_0000_0000_1234
    odd = {"path": tmp_path, "number": np.float32(0.5), "array": np.arange(3)}
    motion = replace(motion, joints_camera=joints)
    written = replace(motion, provenance=replace(motion.provenance, settings=odd))
    # Table readers take "hand=left" in a path for data of their own.
    path = tmp_path / "hand=left" / "frame=7" / "m.parquet"
    write_hand_motion(written, path)
    plain = {"path": str(tmp_path), "number": 0.5, "array": [0, 1, 2]}
    wanted = replace(motion, provenance=replace(motion.provenance, settings=plain))
    assert_same_bits(read_hand_motion(path), wanted)


def headed(table, header):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return table.replace_schema_metadata({b"acehand": content})


def changed(name, **values):
    """A mutation of the metadata; the value None removes the entry."""

    def change(table):
        header = json.loads(table.schema.metadata[b"acehand"])
        entries = header[name] if name else header
        entries |= values
        for key in [key for key, value in values.items() if value is None]:
            del entries[key]
        return headed(table, header)

    return change


def set_column(name, values, kind=None):
    def change(table):
        index = table.column_names.index(name)
        array = pa.array(values, kind or table.schema.field(name).type)
        return table.set_column(index, pa.field(name, array.type), array)

    return change


def nulled(name, row=3, column=None):
    def change(table):
        values = table[name].to_pylist()
        if column is None:
            values[row] = None
        else:
            values[row][column] = None
        return set_column(name, values)(table)

    return change


WRONG = [
    (lambda t: t.replace_schema_metadata(None), "no 'acehand' metadata"),
    (lambda t: headed(t, b"{"), "damaged"),
    (lambda t: headed(t, b"\xff\xfe\x00"), "damaged"),
    (lambda t: headed(t, [1]), "list"),
    (changed("", format="another"), "'another' version 1"),
    (changed("", version=2), "version 2"),
    (changed("", version=None), "version None"),
    (changed("", fps=None), "'fps'"),
    (changed("", fps="fast"), "fast"),
    (changed("", fps=-1.0), "fps must be a positive"),
    (changed("", betas=[[0.0] * 9] * 2), "damaged"),
    (changed("", hand_model="mono"), "Did you mean 'mano'"),
    (changed("", provenance=None), "'provenance'"),
    (changed("", provenance="me"), "damaged"),
    (changed("provenance", colour="red"), "colour"),
    (changed("provenance", licenses=None), "licenses"),
    (changed("camera", width=None), "'width' is missing"),
    (changed("", camera="wide"), "camera"),
    (lambda t: t.drop_columns(["quality"]), "'quality' is missing"),
    (set_column("observed", [1] * 10, pa.int64()), "'observed' is int64"),
    (set_column("translation", [[0.0] * 2] * 10, pa.list_(pa.float64(), 2)), "'translation'"),
    (lambda t: t.slice(0, 9), "alternate left and right"),
    (lambda t: t.take([*range(1, 10), 0]), "alternate left and right"),
    (set_column("timestamp_ns", list(range(10))), "the same timestamp_ns"),
    (set_column("timestamp_ns", [1] * 10), "frame 1"),
    (lambda t: t.slice(0, 0), "at least one frame"),
    (nulled("observed"), "'observed' has 1 empty"),
    (nulled("hand"), "'hand' has 1 empty"),
    (nulled("joints_camera"), "'joints_camera' has 1 empty"),
    (nulled("T_world_camera"), "'T_world_camera' is empty for one"),
    (
        set_column("T_world_camera", [[1.0, None] + [0.0] * 14] * 10),
        "'T_world_camera' has 10 empty",
    ),
    (nulled("joints_image", 2, 5), "'joints_image' has 1 empty"),
    (set_column("quality", [1.5] * 10), "quality must lie in 0..1"),
    (lambda t: set_column("filled", [True] * 10)(set_column("observed", [True] * 10)(t)), "filled"),
]


def test_names_and_texts_that_are_no_text(tmp_path):
    """Without checksums, as other programs write: Unicode is what gives damage away."""
    path = tmp_path / "m.parquet"
    pq.write_table(to_table(random_motion(6)), path, compression="none", use_dictionary=False)
    content = path.read_bytes()
    for old, new in ((b"visible", b"visibl\xff"), (b"left", b"lef\xff")):
        assert old in content
        path.write_bytes(content.replace(old, new))
        with pytest.raises(SchemaError, match=r"m\.parquet"):
            read_hand_motion(path)


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_wrong_file_is_refused(tmp_path, change, message):
    path = tmp_path / "wrong.parquet"
    pq.write_table(change(to_table(random_motion(6))), path)
    with pytest.raises(AcehandError) as error:
        read_hand_motion(path)
    assert str(path) in str(error.value) and message in str(error.value)


def test_frames_without_a_camera_pose_are_empty_rows(tmp_path):
    motion = random_motion(6)
    poses = np.tile(np.eye(4), (len(motion), 1, 1)) + np.arange(len(motion))[:, None, None]
    poses[1] = np.nan
    poses[3, 0, 3] = np.nan  # a pose that is known in part is not known
    path = tmp_path / "m.parquet"
    pq.write_table(to_table(replace(motion, T_world_camera=poses)), path)
    assert pq.read_table(path)["T_world_camera"].is_null().to_pylist()[::2] == [
        False, True, False, True, False,
    ]  # fmt: skip
    found = read_hand_motion(path).T_world_camera
    np.testing.assert_array_equal(found[[0, 2, 4]], poses[[0, 2, 4]])
    assert np.isnan(found[[1, 3]]).all()
    # A robot follows in one frame: poses with gaps are not used, with a note.
    read = read_motion_file(path)
    assert read.T_world_camera is None
    assert "2 of 5 frames" in read.provenance.notes[-1]
    np.testing.assert_array_equal(read_motion_file(path, as_stored=True).T_world_camera, found)


def test_damage_anywhere_is_refused_or_harmless(tmp_path):
    """Cut short it is always refused; wrong bytes are found by checksums, but not in metadata."""
    path, whole = tmp_path / "m.parquet", tmp_path / "whole.parquet"
    write_hand_motion(random_motion(8), whole)
    content = whole.read_bytes()
    short = [content[:length] for length in np.linspace(0, len(content) - 1, 40).astype(int)]
    for data in (None, b"text", b"PAR1" + bytes(100) + b"PAR1", *short):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(SchemaError, match=r"m\.parquet"):
            read_hand_motion(path)
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        broken = bytearray(content)
        for place in rng.integers(0, len(broken), 3):
            broken[place] = rng.integers(0, 256)
        path.write_bytes(broken)
        try:
            read_hand_motion(path)
        except AcehandError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 280


def test_csv_has_one_column_per_number(tmp_path):
    motion = random_motion(9)
    write_hand_motion(motion, tmp_path / "m.csv")
    with (tmp_path / "m.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = []
    for name, kind, _ in COLUMNS:
        many = pa.types.is_fixed_size_list(kind)
        expected += [f"{name}_{i}" for i in range(kind.list_size)] if many else [name]
    assert list(rows[0]) == expected
    assert [r["frame"] + r["hand"] for r in rows[:3]] == ["0left", "0right", "1left"]
    joints = np.array([[float(r[f"joints_camera_{i}"] or "nan") for i in range(63)] for r in rows])
    np.testing.assert_array_equal(joints.reshape(-1, 2, 21, 3), motion.joints_camera)
    poses = np.array([[float(r[f"T_world_camera_{i}"]) for i in range(16)] for r in rows[::2]])
    np.testing.assert_array_equal(poses.reshape(-1, 4, 4), motion.T_world_camera)
    assert [r["observed"] for r in rows] == [str(v).lower() for v in motion.observed.ravel()]
    assert [int(r["timestamp_ns"]) for r in rows[::2]] == motion.timestamps_ns.tolist()

    write_hand_motion(random_motion(10, posed=False), tmp_path / "bare.csv")
    header = (tmp_path / "bare.csv").read_text().splitlines()[0]
    assert "T_world_camera" not in header and "joints_image_41" in header


@pytest.mark.parametrize("placed", [True, False])
def test_a_joints_file_is_read_back(tmp_path, placed):
    motion = random_motion(11, 8, placed=placed)
    size = np.random.default_rng(11).normal(size=motion.joints_camera.shape) * 0.05
    motion = replace(motion, joints_camera=np.where(np.isnan(motion.joints_camera), np.nan, size))
    write_joints_file(motion, tmp_path / "j.npz")
    read = read_motion_file(tmp_path / "j.npz")
    for name in ("joints_camera", "timestamps_ns", "quality"):
        np.testing.assert_array_equal(getattr(read, name), getattr(motion, name))
    np.testing.assert_array_equal(read.observed, motion.known)
    assert read.fps == motion.fps and read.placed == placed and read.hand_model == "none"


def test_writing_where_one_cannot(tmp_path):
    motion = random_motion(12)
    with pytest.raises(InputError, match=r"\.parquet or \.csv"):
        write_hand_motion(motion, tmp_path / "m.json")
    (tmp_path / "file").write_text("")
    for name in ("m.parquet", "m.csv", "m.npz"):
        write = write_joints_file if name == "m.npz" else write_hand_motion
        with pytest.raises(OutputError):
            write(motion, tmp_path / "file" / name)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_existing_file_stays_without_leave(tmp_path):
    motion = random_motion(15)
    for write, name in ((write_hand_motion, "m.parquet"), (write_joints_file, "m.npz")):
        (tmp_path / name).write_text("mine")
        with pytest.raises(OutputError, match=r"exists.*overwrite"):
            write(motion, tmp_path / name)
        assert (tmp_path / name).read_text() == "mine"
        write(motion, tmp_path / name, overwrite=True)
    assert_same_bits(read_hand_motion(tmp_path / "m.parquet"), motion)


@pytest.mark.parametrize("rows", [7, 4096, 100_000])
def test_groups_of_rows_of_any_size(tmp_path, rows):
    """Other programs choose their own and add columns; one may end between the hands of a frame."""
    motion = random_motion(9, frames=2100)
    table = to_table(motion).append_column("mine", pa.array(range(4200)))
    table = table.replace_schema_metadata({**table.schema.metadata, b"other": b"tool"})
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=rows)
    assert_same_bits(read_hand_motion(tmp_path / "m.parquet"), motion)


def test_a_long_table_is_written_and_read_in_pieces(tmp_path):
    """Besides the values themselves no more memory is taken than for a short one."""
    usual, peaks = pa.default_memory_pool(), []
    for frames in (4000, 12_000):
        path, motion = tmp_path / "m.parquet", random_motion(10, frames=frames)
        pool = pa.proxy_memory_pool(usual)
        pa.set_memory_pool(pool)
        try:
            write_hand_motion(motion, path, overwrite=True)
            written = pool.max_memory()
            again = read_hand_motion(path)
        finally:
            pa.set_memory_pool(usual)
        assert_same_bits(again, motion)
        peaks.append((written, pool.max_memory()))
    # The values of the longest column are 17 MB more.
    assert (np.array(peaks[1]) - peaks[0] < 3e6).all(), peaks
