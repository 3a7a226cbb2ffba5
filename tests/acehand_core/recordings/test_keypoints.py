"""Keypoints of other programs: orders, files, and missing joints."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from acehand_core import motion_from_joints
from acehand_core.errors import InputError, SchemaError
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import KEYPOINT_NAMES
from acehand_core.motion import HandMotion
from acehand_core.recordings.hands_file import read_motion_file
from acehand_core.recordings.keypoints.joints import ENTRIES
from acehand_core.recordings.keypoints.mapping import PRESETS, keypoint_named, load_map
from helpers import keypoint_files as made
from helpers.commands import GripperRun as Run
from helpers.retarget_samples import moving_hands

MOVING = moving_hands(45)
RIGHT = MOVING[:, 1]
PUBLISHED = {
    "openpose": tuple(range(21)), "mediapipe": tuple(range(21)), "mano": made.MANO,
    "minimal_hand": made.MINIMAL_HAND, "interhand": made.INTERHAND, "aria": made.ARIA,
    "avp25": made.ARKIT, "avp27": (*made.ARKIT, -1, -1), "webxr25": made.ARKIT,
    "manus": made.ARKIT, "openxr26": made.OPENXR, "mano16": made.MANO[:16],
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_orders_are_the_published_ones(name: str) -> None:
    theirs = made.written(RIGHT, PUBLISHED[name])
    if name == "mano16":
        with pytest.raises(SchemaError, match=r"fingertips.*the wrist"):
            motion_from_joints(theirs, order=name, side="right")
        return
    motion = motion_from_joints(theirs, order=name, side="right", fps=30)
    known = np.isin(np.arange(21), PUBLISHED[name])
    np.testing.assert_array_equal(motion.joints_camera[:, 1, known], RIGHT[:, known])
    assert np.isnan(motion.joints_camera[:, 1, ~known]).all()
    assert motion.known[:, 1].all() and not motion.known[:, 0].any()


NAMES = [
    ("right_index_mcp", "right", 5),
    ("rightIndexFingerKnuckle", "right", 5),  # ARKit, EgoDex
    ("rightHand", "right", 0),
    ("thumbIntermediateBase", None, 2),
    ("littleIntermediateTip", None, 19),
    ("Thumb_CMC", None, 1),  # MANUS
    ("Thumb_DIP", None, 3),
    ("Index_CMC", None, None),
    ("INDEX_FINGER_PIP", None, 6),  # MediaPipe
    ("XR_HAND_JOINT_LITTLE_PROXIMAL_EXT", None, 17),  # OpenXR
    ("XR_HAND_JOINT_PALM_EXT", None, None),
    ("XR_HAND_JOINT_INDEX_DISTAL_EXT", None, 7),
    ("thumb-phalanx-distal", None, 3),  # WebXR
    ("ring-finger-metacarpal", None, None),
    ("left_index1", "left", 5),  # MANO
    ("Pinky_4", None, 20),  # InterHand2.6M
    ("forearmWrist", None, None),
]


def test_names_of_joints() -> None:
    assert [(name, *keypoint_named(name)) for name, _, _ in NAMES] == NAMES
    for name in ("head", "index_flex", "Hand_Velocity", "cam", "left", ""):
        with pytest.raises(KeyError):
            keypoint_named(name)


def test_some_joints_by_name() -> None:
    names = ["index_tip", "-", "wrist", "index_mcp", "ring_mcp", "thumb_tip"]
    theirs = RIGHT[:, [8, 3, 0, 5, 13, 4]]
    motion = motion_from_joints(theirs, order=names, side="right")
    known = np.isfinite(motion.joints_camera[:, 1]).all((0, 2))
    # The knuckles in between follow from the palm of the mean hand.
    assert np.flatnonzero(known).tolist() == [0, 4, 5, 8, 9, 13, 17]
    for first, message in (("indx_tip", "'indx_tip'.*mean 'index_tip"), ("wrist", "wrist more")):
        with pytest.raises(SchemaError, match=message):
            motion_from_joints(theirs, order=[first, *names[1:]], side="right")


def same(motion: HandMotion, joints: np.ndarray = MOVING, atol: float = 1e-6) -> None:
    """``joints`` of both hands, or of the right hand only."""
    if joints.ndim == 3:
        joints = np.stack([np.full_like(joints, np.nan), joints], axis=1)
    np.testing.assert_allclose(motion.joints_camera, joints, atol=atol)
    assert motion.timestamps_ns[1] - motion.timestamps_ns[0] == pytest.approx(1e9 / 60, abs=1e4)


def mapped(path: Path, text: str, *arguments: str) -> HandMotion:
    """Read a file with a mapping."""
    mapping = path.parent / "m.yaml"
    mapping.write_text(text)
    return read_motion_file(path, *arguments, keypoints=str(mapping))


def test_vision_pro(tmp_path: Path) -> None:
    npz = made.avp_npz(tmp_path / "avp.npz", RIGHT, "right", 60)
    motion = read_motion_file(npz, keypoints="avp25")
    same(motion, RIGHT)
    assert motion.placed and (motion.T_world_camera == np.eye(4)).all()
    same(read_motion_file(made.avp_jsonl(tmp_path / "t.jsonl", MOVING, 60), keypoints="avp25"))


def test_manus_csv(tmp_path: Path) -> None:
    path = made.manus_csv(tmp_path / "right.csv", RIGHT, 60)
    motion = read_motion_file(path, "right", keypoints="manus")
    same(motion, RIGHT, 1e-5)
    assert not motion.placed
    with pytest.raises(SchemaError, match=r"`hands=left\|right`"):
        read_motion_file(path, keypoints="manus")


def test_long_csv_and_parquet(tmp_path: Path) -> None:
    joints, mapping = MOVING.copy(), "unit: mm\nframe: camera\n"
    joints[10:30, 0, 7] = np.nan
    path = made.long_csv(tmp_path / "long.csv", joints, 60)
    motion = mapped(path, mapping)
    same(motion, joints)
    assert motion.placed
    pq.write_table(pa_csv.read_csv(path), tmp_path / "long.parquet")
    same(mapped(tmp_path / "long.parquet", mapping), joints)


ROWS = 45 * 21


def long_table(kind: pa.DataType | None = None) -> pa.Table:
    """Return a row per frame and joint of a right hand, joints by name."""
    frame, joint = np.divmod(np.arange(ROWS), 21)
    names = pa.array([KEYPOINT_NAMES[k] for k in joint]).cast(kind or pa.string())
    places = dict(zip("xyz", RIGHT.reshape(-1, 3).T, strict=True))
    return pa.table({"time_s": frame / 60, "frame": frame, "joint": names, **places})


def read_table(path: Path, table: pa.Table, *arguments: str) -> HandMotion:
    pq.write_table(table, path / "a.parquet")
    return read_motion_file(path / "a.parquet", *arguments)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_rows_come_in_any_order_and_names_as_any_text(kind: pa.DataType, tmp_path: Path) -> None:
    """pandas 3 writes large strings."""
    shuffled = np.random.default_rng(0).permutation(ROWS)
    same(read_table(tmp_path, long_table(kind).take(shuffled), "right"), RIGHT)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(again=st.integers(0, ROWS - 1), at=st.integers(0, ROWS))
def test_a_joint_that_occurs_twice_is_refused(again: int, at: int, tmp_path: Path) -> None:
    """Which row counts would depend on their order."""
    rows = np.insert(np.arange(ROWS), at, again)
    message = f"'{KEYPOINT_NAMES[again % 21]}' .*frame {again // 21};"
    with pytest.raises(SchemaError, match=message):
        read_table(tmp_path, long_table().take(rows), "right")


@pytest.mark.parametrize("column", ["joint", "frame"])
@pytest.mark.parametrize("names", [True, False])
def test_an_empty_cell_of_a_joint_or_frame_is_refused(column, names, tmp_path) -> None:
    rows = long_table().to_pylist()
    for number, row in enumerate(rows):
        row["joint"] = row["joint"] if names else number % 21
    rows[30][column] = None
    with pytest.raises(SchemaError, match=f"'{column}' has 1 empty"):
        read_table(tmp_path, pa.Table.from_pylist(rows), "right")


PATTERNS = ("{side}_{joint}_{axis}", "{joint}.{axis}", "{axis}{joint}", "p{joint}/{axis}")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_wide_columns(pattern: str, tmp_path: Path) -> None:
    columns: dict[str, np.ndarray] = {"timestamp": 7.5 + np.arange(45) / 60}
    for joint, name in enumerate(KEYPOINT_NAMES):
        for k, axis in enumerate("xyz"):
            named = name if pattern[1:5] in ("side", "join") else str(joint)
            columns[pattern.format(side="right", joint=named, axis=axis)] = RIGHT[:, joint, k]
    path = tmp_path / "w.parquet"
    pq.write_table(pa.table(columns), path)
    if pattern == "p{joint}/{axis}":
        same(mapped(path, json.dumps({"columns": pattern}), "right"), RIGHT)
    else:
        same(read_motion_file(path, "right"), RIGHT)


def test_joints_with_names_of_their_own(tmp_path: Path) -> None:
    """Markers of an optical system, millimetres, semicolons, -9999 where one is hidden."""
    order = {"W": 0, "I1": 5, "M1": 9, "R1": 13, "T4": 4, "I4": 8, "M4": 12, "R4": 16}
    joints, used = RIGHT.copy(), list(order.values())
    joints[20:25, 8] = np.nan
    header = ";".join(f"{name}:{axis}" for name in [*order, "Box"] for axis in "XYZ")
    places = np.nan_to_num(1000 * joints[:, [*used, 0]], nan=-9999).reshape(45, -1)
    rows = [";".join(f"{v:.4f}" for v in row) for row in places]
    path = tmp_path / "markers.csv"
    path.write_text("\n".join(["# exported", header, *rows]))
    names = {name: KEYPOINT_NAMES[k] for name, k in order.items()}
    mapping = {"columns": "{joint}:{axis}", "names": names, "unit": "mm", "missing": -9999}
    motion = mapped(path, json.dumps(mapping | {"side": "right", "rate": 60}))
    np.testing.assert_allclose(motion.joints_camera[:, 1, used], joints[:, used], atol=1e-6)
    assert motion.known[:, 1].all() and motion.fps == 60


def test_a_misspelt_column_is_named(tmp_path: Path) -> None:
    """A name that is nearly a joint without columns; other columns are not joints."""
    names = [name.replace("index_mcp", "indx_mcp") for name in KEYPOINT_NAMES]
    header = [f"right_{name}_{axis}" for name in names for axis in "xyz"]
    header += ["right_palm_normal_x", "right_index_tip_velocity_x"]
    rows = [header, *([*row.ravel(), 0, 0] for row in RIGHT)]
    path, text = tmp_path / "a.csv", "\n".join(",".join(map(str, row)) for row in rows)
    path.write_text(text)
    with pytest.raises(SchemaError, match=r"'right_indx_mcp_x'.*index_mcp"):
        read_motion_file(path)
    absent = mapped(path, "names: {right_indx_mcp: '-'}").joints_camera
    path.write_text(text.replace("indx", "index"))
    there = read_motion_file(path).joints_camera
    at = KEYPOINT_NAMES.index("index_mcp")
    assert np.isfinite(there[:, 1, at]).all() and np.array_equal(there[:, 1, 0], absent[:, 1, 0])


def test_json_and_npy(tmp_path: Path) -> None:
    lists = [{"timestamp_ns": int(i * 1e9 / 60), "left": a.tolist(), "right": b.tolist()}
             for i, (a, b) in enumerate(MOVING)]  # fmt: skip
    named = [{"time": i / 60, "joints": dict(zip(made.MEDIAPIPE_NAMES, b.tolist(), strict=True))}
             for i, b in enumerate(RIGHT)]  # fmt: skip
    named[3]["joints"] = None
    (tmp_path / "lists.json").write_text(json.dumps({"frames": lists, "frame": "camera"}))
    (tmp_path / "named.json").write_text(json.dumps(named))
    same(read_motion_file(tmp_path / "lists.json"))
    missing = RIGHT.copy()
    missing[3] = np.nan
    same(read_motion_file(tmp_path / "named.json", "right"), missing)
    np.save(tmp_path / "mano.npy", made.written(MOVING, made.MANO) * 100)
    same(mapped(tmp_path / "mano.npy", "{order: mano, unit: cm, rate: 60}"))


COLUMNS = [f"{name}_{axis}" for name in KEYPOINT_NAMES for axis in "xyz"]


@pytest.mark.parametrize("again", ["wrist_x", "Wrist_X", "hand_x"])
@pytest.mark.parametrize("place", [0, 63])
def test_two_columns_of_one_joint_and_axis_are_refused(again, place, tmp_path) -> None:
    """Which one counts would depend on the order of the columns."""
    rows = [[*COLUMNS], *RIGHT.reshape(45, -1).tolist()]
    for row in rows:
        row.insert(place, again if row is rows[0] else 0.25)
    (tmp_path / "a.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    with pytest.raises(SchemaError, match=r"a\.csv.*wrist_x") as error:
        read_motion_file(tmp_path / "a.csv", "right")
    assert repr(again) in str(error.value)


def test_a_column_with_a_raised_digit_is_no_joint(tmp_path: Path) -> None:
    columns = dict(zip(COLUMNS, RIGHT.reshape(45, -1).T, strict=True))
    table = pa.table({**columns, "x\u00b2": RIGHT[:, 0, 0] ** 2})
    found = read_table(tmp_path, table, "right").joints_camera
    np.testing.assert_allclose(found[:, 1], RIGHT)


@pytest.mark.parametrize("side", ["right", "Right", "RIGHT"])
def test_json_names_a_side_as_tables_do(side: str, tmp_path: Path) -> None:
    """MediaPipe's handedness is "Left" or "Right"; it comes before the user's --hands."""
    frames = [{"hand": side, "joints": joints} for joints in RIGHT.tolist()]
    (tmp_path / "a.json").write_text(json.dumps(frames))
    table = long_table().append_column("hand", pa.array([side] * ROWS))
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("a.json", "a.parquet"):
        found = read_motion_file(tmp_path / name).joints_camera
        np.testing.assert_allclose(found[:, 1], RIGHT, atol=1e-9)
        assert np.isnan(found[:, 0]).all()
        assert not read_motion_file(tmp_path / name, "left").known.any()


#: What a JSON file may hold, a number that float64 cannot hold included.
SCALARS = st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats()
ANY_JSON = st.recursive(
    SCALARS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entry=st.sampled_from([*ENTRIES, "t", 0]), value=ANY_JSON, alone=st.booleans())
@example(entry="missing", value=None, alone=False)
@example(entry="wrist_pose", value="none", alone=False)
@example(entry="confidence", value=[1, [2]], alone=False)
@example(entry="t", value=10**400, alone=True)
@example(entry="joints", value=[[10**400, 0, 0]] * 21, alone=True)
@example(entry="joints", value=5, alone=True)
@example(entry=0, value=5, alone=True)
def test_any_json_is_read_or_refused(entry, value, alone, tmp_path) -> None:
    frames: list = [{"joints": joints, "t": t / 60} for t, joints in enumerate(RIGHT[:2].tolist())]
    content: object = frames if alone else {"frames": frames, "side": "right", entry: value}
    if alone:
        frames[1] = value if entry == 0 else {**frames[1], entry: value}
    (tmp_path / "a.json").write_text(json.dumps(content))
    try:
        assert len(read_motion_file(tmp_path / "a.json", "right")) >= 1
    except SchemaError as error:
        assert "a.json" in str(error)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json"])
def test_times_since_1970_keep_every_nanosecond(suffix: str, tmp_path: Path) -> None:
    """A float64 holds them in steps of 256 ns."""
    path, stamps = tmp_path / f"a{suffix}", 1_700_000_000_123_456_789 + np.arange(45) * 16_666_667
    columns = {"timestamp_ns": stamps.tolist()}
    columns |= dict(zip(COLUMNS, RIGHT.reshape(45, -1).T.tolist(), strict=True))
    if suffix == ".csv":
        rows = [columns, *zip(*columns.values(), strict=True)]
        path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    elif suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        frames = zip(stamps.tolist(), RIGHT.tolist(), strict=True)
        path.write_text(json.dumps([{"timestamp_ns": t, "joints": joints} for t, joints in frames]))
    motion = read_motion_file(path, "right")
    assert motion.timestamps_ns.tolist() == stamps.tolist()
    same(motion, RIGHT)


def test_an_npz_may_have_order_and_unit_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", joints=made.written(MOVING, made.MANO) * 1000, order="mano",
             unit="mm", fps=60, frame="world")  # fmt: skip
    motion = read_motion_file(tmp_path / "a.npz")
    same(motion)
    assert (motion.T_world_camera == np.eye(4)).all()
    with pytest.raises(SchemaError, match=r"\['mano'\].*\['openpose'\]"):
        read_motion_file(tmp_path / "a.npz", keypoints="openpose")


def test_zeros_and_confidence_of_joints(tmp_path: Path) -> None:
    def missing(motion: HandMotion) -> list:
        return np.argwhere(np.isnan(motion.joints_camera[:20, 1]).all(-1)).tolist()

    joints = RIGHT - RIGHT[:, :1]
    joints[5:9, 12] = joints[20] = 0
    np.savez(tmp_path / "a.npz", joints=joints, missing="zeros", side="right")
    motion = read_motion_file(tmp_path / "a.npz")
    assert missing(motion) == [[t, 12] for t in range(5, 9)]
    assert not motion.known[20, 1] and motion.known[19, 1]
    confidence = np.ones((45, 21))
    confidence[7, 3], confidence[8, 4] = 0.2, 0.6
    np.savez(tmp_path / "b.npz", joints=RIGHT, confidence=confidence, side="right")
    motion = mapped(tmp_path / "b.npz", "min_confidence: 0.5")
    assert missing(motion) == [[7, 3]] and motion.quality[8, 1] == pytest.approx(20.6 / 21)


LETTERS = "wrist_x,wrist_y,wrist_z\na,b,c\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "time,foo,bar\n0,1,2\n", "time, foo, bar"),
        ("a.csv", "wrist_x,wrist_y,wrist_z\n", "row"),
        ("a.csv", "", "not a table"),
        ("a.csv", LETTERS, "column 'wrist_x'"),
        ("a.csv", "frame,joint,x,y,z\n0,ear,1,2,3\n", "'ear'"),
        ("a.csv", "joint,x,y,z\nwrist,1,2,3\n", "needs a column frame"),
        ("a.csv", f"time,time,{','.join(COLUMNS)}\n{'0,' * 64}0\n", "'time' occurs twice"),
        *(
            (
                "a.csv",
                f"frame,time,hand,joint,x,y,z,{name}\n0,0,left,wrist,1,2,3,0\n",
                f"'{name}' occurs twice",
            )
            for name in ("frame", "time", "hand", "joint", "x")
        ),
        ("a.json", "{", "not JSON"),
        ("a.json", "{}", "no frames; valid"),
        ("a.json", "[[[1,2,3]],[[1,2,3],[4,5,6]]]", "the same number of joints"),
        ("a.npy", "abc", "pickled"),
        ("a.json", json.dumps([[[0.1, 0, 0]] * 25] * 3), "25 joints: avp25"),
    ],
)
def test_wrong_files_are_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        read_motion_file(tmp_path / name, "right")
    assert str(tmp_path / name) in str(error.value)


def test_the_command_names_wrong_files_and_keeps_the_order(tmp_path: Path, capsys) -> None:
    out = ("--output", tmp_path / "out")
    (tmp_path / "a.csv").write_text(LETTERS)
    run = Run(capsys, tmp_path / "a.csv", "--hands", "right", *out)
    assert run.code == 2 and "column 'wrist_x'" in run.messages and not (tmp_path / "out").exists()
    assert Run(capsys, tmp_path / "v.mp4", "--keypoints", "mano", *out).code == 2
    np.savez(tmp_path / "a.npz", joints=made.written(MOVING, made.MANO), fps=30)
    assert Run(capsys, tmp_path / "a.npz", "--keypoints", "mano", *out).code == 0
    other = Run(capsys, tmp_path / "a.npz", *out, "--resume")
    assert other.code == 2 and "keypoints" in str(other.json) + other.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ordr: mano", "ordr .*'order'"),
        ("order: manno", "'manno'.*Did you mean 'mano'"),
        ("unit: feet", "'feet'; valid: cm, in, m, mm"),
        ("missing: none", "'none'.*'zeros'"),
        ("rate: fast", "'fast'"),
        ("columns: '{joint}'", "{joint} and {axis}"),
        ("names: {W: 0}", r"names\.W .*0"),
        ("names: {0: wrist}", r"names\.0 "),
        ("rate: 2026-02-30", "YAML"),
        ("names: {W: wirst}", "'wirst'"),
        ("joints: {middle: a}", r"joints\.middle .*left, right"),
        ("- a", "list"),
        ("a: [", "YAML"),
    ],
)
def test_mistakes_in_mappings_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as error:
        load_map(str(path))
    assert str(error.value).startswith(str(path))
    with pytest.raises(InputError, match=r"`keypoints=.*'manus'"):
        load_map("mannus")


def test_a_knuckle_that_is_never_given_is_that_of_the_mean_hand() -> None:
    """The hand here is the mean hand, half as large again."""
    joints = 1.2 * RIGHT
    missing = joints.copy()
    missing[:, 17:] = np.nan
    motion = motion_from_joints(missing, side="right")
    np.testing.assert_allclose(motion.joints_camera[:, 1, 17], joints[:, 17], atol=1e-9)
    assert np.isnan(motion.joints_camera[:, 1, 18:]).all() and motion.known[:, 1].all()
    assert any("knuckle of the right hand" in n for n in motion.provenance.notes)
    rest = CapsuleHand().rest_keypoints("right", np.zeros(10))
    spread = np.linalg.norm(rest[17] - rest[5]) * 1.2
    measured = np.linalg.norm(motion.joints_camera[0, 1, 17] - joints[0, 5])
    assert measured == pytest.approx(spread)


def test_the_wrist_is_interpolated_over_short_gaps() -> None:
    joints = RIGHT.copy()
    joints[5:8, 0] = joints[10:20, 0] = joints[25:, 0] = np.nan
    motion = motion_from_joints(joints, side="right", fps=30)
    off = np.linalg.norm(motion.joints_camera[:, 1, 0] - RIGHT[:, 0], axis=-1)
    assert off[:8].max() < 0.001 and 0 < off[10:20].max() < 0.008
    assert motion.known[:25, 1].all() and not motion.known[25:, 1].any()
    assert any("wrist of the right hand" in n for n in motion.provenance.notes)


@pytest.mark.parametrize(
    ("lacking", "name"),
    [([0], "the wrist"), ([5, 9, 13], "knuckles"), ([0, 5, 9, 13, 17], "the wrist and knuckles")],
)
def test_the_palm_must_be_given(lacking: list[int], name: str) -> None:
    joints = RIGHT.copy()
    joints[:, lacking] = np.nan
    with pytest.raises(SchemaError, match=f"right hand {name} .*the least"):
        motion_from_joints(joints, side="right")
