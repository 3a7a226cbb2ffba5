"""Anybody's keypoints: orders, files, and what is missing. What they are like: helpers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
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
from helpers.commands import Run
from helpers.retarget_samples import moving_hands

MOVING = moving_hands(45)
RIGHT = MOVING[:, 1]
PUBLISHED = {
    "openpose": tuple(range(21)), "mediapipe": tuple(range(21)), "mano": made.MANO,
    "minimal_hand": made.MINIMAL_HAND, "interhand": made.INTERHAND, "aria": made.ARIA,
    "avp25": made.ARKIT, "avp27": (*made.ARKIT, -1, -1), "webxr25": made.ARKIT,
    "manus": made.ARKIT, "openxr26": made.OPENXR,
}  # fmt: skip


# Orders and names.


@pytest.mark.parametrize("name", PUBLISHED)
def test_orders_are_the_published_ones(name: str) -> None:
    theirs = made.written(RIGHT, PUBLISHED[name])
    motion = motion_from_joints(theirs, order=name, side="right", fps=30)
    known = np.isin(np.arange(21), PUBLISHED[name])
    np.testing.assert_array_equal(motion.joints_camera[:, 1, known], RIGHT[:, known])
    assert np.isnan(motion.joints_camera[:, 1, ~known]).all()
    assert motion.known[:, 1].all() and not motion.known[:, 0].any()


def test_every_preset_was_compared() -> None:
    assert set(PRESETS) == {*PUBLISHED, "mano16"}


def test_mano_without_tips_says_what_is_missing() -> None:
    theirs = made.written(RIGHT, made.MANO[:16])
    with pytest.raises(SchemaError, match=r"fingertips are never given; the least is the wrist"):
        motion_from_joints(theirs, order="mano16", side="right")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("right_index_mcp", ("right", 5)),
        ("rightIndexFingerKnuckle", ("right", 5)),  # ARKit, EgoDex
        ("rightHand", ("right", 0)),
        ("thumbIntermediateBase", (None, 2)),
        ("littleIntermediateTip", (None, 19)),
        ("Thumb_CMC", (None, 1)),  # MANUS
        ("Thumb_DIP", (None, 3)),
        ("Index_CMC", (None, None)),
        ("INDEX_FINGER_PIP", (None, 6)),  # MediaPipe
        ("XR_HAND_JOINT_LITTLE_PROXIMAL_EXT", (None, 17)),  # OpenXR
        ("XR_HAND_JOINT_PALM_EXT", (None, None)),
        ("XR_HAND_JOINT_INDEX_DISTAL_EXT", (None, 7)),
        ("thumb-phalanx-distal", (None, 3)),  # WebXR
        ("ring-finger-metacarpal", (None, None)),
        ("left_index1", ("left", 5)),  # MANO
        ("Pinky_4", (None, 20)),  # InterHand2.6M
        ("forearmWrist", (None, None)),
    ],
)
def test_names_of_joints(name: str, expected: tuple[str | None, int | None]) -> None:
    assert keypoint_named(name) == expected


@pytest.mark.parametrize("name", ["head", "index_flex", "Hand_Velocity", "cam", "left", ""])
def test_other_names_are_no_joints(name: str) -> None:
    with pytest.raises(KeyError):
        keypoint_named(name)


def test_some_joints_by_name() -> None:
    names = ["index_tip", "-", "wrist", "index_mcp", "ring_mcp", "thumb_tip"]
    theirs = np.stack([RIGHT[:, k] for k in (8, 3, 0, 5, 13, 4)], axis=1)
    motion = motion_from_joints(theirs, order=names, side="right")
    known = np.isfinite(motion.joints_camera[:, 1]).all((0, 2))
    # The knuckles in between follow from the palm of the mean hand.
    assert np.flatnonzero(known).tolist() == [0, 4, 5, 8, 9, 13, 17]
    with pytest.raises(
        SchemaError, match=r"'indx_tip', which is no joint.*Did you mean 'index_tip"
    ):
        motion_from_joints(theirs, order=["indx_tip", *names[1:]], side="right")
    with pytest.raises(SchemaError, match="wrist more than once"):
        motion_from_joints(theirs, order=["wrist", *names[1:]], side="right")


# Files. Each holds the same motion.


def same(motion: HandMotion, joints: np.ndarray = MOVING, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(motion.joints_camera, joints, atol=atol)
    assert motion.timestamps_ns[1] - motion.timestamps_ns[0] == pytest.approx(1e9 / 60, abs=1e4)


def only_right(joints: np.ndarray = RIGHT) -> np.ndarray:
    both = np.full((len(joints), 2, 21, 3), np.nan)
    both[:, 1] = joints
    return both


def test_vision_pro(tmp_path: Path) -> None:
    npz = made.avp_npz(tmp_path / "avp.npz", RIGHT, "right", 60)
    motion = read_motion_file(npz, keypoints="avp25")
    same(motion, only_right())
    assert motion.placed and (motion.T_world_camera == np.eye(4)).all()
    same(read_motion_file(made.avp_jsonl(tmp_path / "t.jsonl", MOVING, 60), keypoints="avp25"))


def test_manus_csv(tmp_path: Path) -> None:
    path = made.manus_csv(tmp_path / "right.csv", RIGHT, 60)
    motion = read_motion_file(path, "right", keypoints="manus")
    same(motion, only_right(), 1e-5)
    assert not motion.placed
    with pytest.raises(SchemaError, match=r"--hands left\|right"):
        read_motion_file(path, keypoints="manus")


def test_long_csv_and_parquet(tmp_path: Path) -> None:
    joints = MOVING.copy()
    joints[10:30, 0, 7] = np.nan
    (tmp_path / "m.yaml").write_text("unit: mm\nframe: camera\n")
    path = made.long_csv(tmp_path / "long.csv", joints, 60)
    motion = read_motion_file(path, keypoints=str(tmp_path / "m.yaml"))
    same(motion, joints)
    assert motion.placed
    import pyarrow.csv as pa_csv

    pq.write_table(pa_csv.read_csv(path), tmp_path / "long.parquet")
    same(read_motion_file(tmp_path / "long.parquet", keypoints=str(tmp_path / "m.yaml")), joints)


def long_table(kind: pa.DataType) -> pa.Table:
    """Return a row per frame and joint of a right hand, joints by name."""
    frame, joint = np.divmod(np.arange(45 * 21), 21)
    names = pa.array([KEYPOINT_NAMES[k] for k in joint]).cast(kind)
    places = dict(zip("xyz", RIGHT.reshape(-1, 3).T, strict=True))
    return pa.table({"time_s": frame / 60, "frame": frame, "joint": names, **places})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_rows_come_in_any_order_and_names_as_any_text(kind: pa.DataType, tmp_path: Path) -> None:
    """pandas 3 writes large strings."""
    shuffled = np.random.default_rng(0).permutation(45 * 21)
    pq.write_table(long_table(kind).take(shuffled), tmp_path / "a.parquet")
    same(read_motion_file(tmp_path / "a.parquet", "right"), only_right())


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(again=st.integers(0, 45 * 21 - 1), at=st.integers(0, 45 * 21))
def test_a_joint_that_occurs_twice_is_refused(again: int, at: int, tmp_path: Path) -> None:
    """Which row counts would depend on their order."""
    rows = np.insert(np.arange(45 * 21), at, again)
    pq.write_table(long_table(pa.string()).take(rows), tmp_path / "a.parquet")
    message = f"'{KEYPOINT_NAMES[again % 21]}' .*frame {again // 21};"
    with pytest.raises(SchemaError, match=message):
        read_motion_file(tmp_path / "a.parquet", "right")


@pytest.mark.parametrize("column", ["joint", "frame"])
@pytest.mark.parametrize("names", [True, False])
def test_an_empty_cell_of_a_joint_or_frame_is_refused(
    column: str, names: bool, tmp_path: Path
) -> None:
    rows = long_table(pa.string()).to_pylist()
    for number, row in enumerate(rows):
        row["joint"] = row["joint"] if names else number % 21
    rows[30][column] = None
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=f"'{column}' has 1 empty"):
        read_motion_file(tmp_path / "a.parquet", "right")


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [("{side}_{joint}_{axis}", False), ("{joint}.{axis}", False), ("{axis}{joint}", True),
     ("p{joint}/{axis}", True)],
)  # fmt: skip
def test_wide_columns(pattern: str, numbers: bool, tmp_path: Path) -> None:
    columns: dict[str, np.ndarray] = {"timestamp": 7.5 + np.arange(45) / 60}
    for joint, name in enumerate(KEYPOINT_NAMES):
        for k, axis in enumerate("xyz"):
            said = str(joint) if numbers else name
            column = pattern.format(side="right", joint=said, axis=axis)
            columns[column] = RIGHT[:, joint, k]
    pq.write_table(pa.table(columns), tmp_path / "w.parquet")
    (tmp_path / "m.yaml").write_text(json.dumps({"columns": pattern}))
    usual = pattern != "p{joint}/{axis}"
    mapping = None if usual else str(tmp_path / "m.yaml")
    same(read_motion_file(tmp_path / "w.parquet", "right", keypoints=mapping), only_right())


def test_joints_with_names_of_their_own(tmp_path: Path) -> None:
    """Markers of an optical system, millimetres, semicolons, -9999 where one is hidden."""
    order = {"W": 0, "I1": 5, "M1": 9, "R1": 13, "T4": 4, "I4": 8, "M4": 12, "R4": 16}
    joints = RIGHT.copy()
    joints[20:25, 8] = np.nan
    header = ";".join(f"{name}:{axis}" for name in [*order, "Box"] for axis in "XYZ")
    places = np.concatenate([joints[:, list(order.values())], joints[:, :1]], axis=1) * 1000
    rows = [
        ";".join(f"{v:.4f}" for v in row)
        for row in np.nan_to_num(places, nan=-9999).reshape(45, -1)
    ]
    (tmp_path / "markers.csv").write_text("\n".join(["# exported", header, *rows]))
    names = {name: KEYPOINT_NAMES[k] for name, k in order.items()}
    mapping = {"columns": "{joint}:{axis}", "names": names, "unit": "mm", "missing": -9999,
               "side": "right", "rate": 60}  # fmt: skip
    (tmp_path / "m.yaml").write_text(json.dumps(mapping))
    motion = read_motion_file(tmp_path / "markers.csv", keypoints=str(tmp_path / "m.yaml"))
    used = list(order.values())
    np.testing.assert_allclose(motion.joints_camera[:, 1, used], joints[:, used], atol=1e-6)
    assert motion.known[:, 1].all() and motion.fps == 60


def test_a_misspelt_column_is_named(tmp_path: Path) -> None:
    """What is nearly a joint that has no columns; other columns are of something else."""
    names = [name.replace("index_mcp", "indx_mcp") for name in KEYPOINT_NAMES]
    header = [f"right_{name}_{axis}" for name in names for axis in "xyz"]
    more = ["right_palm_normal_x", "right_index_tip_velocity_x"]
    rows = [[*row.ravel(), 0, 0] for row in RIGHT]
    text = "\n".join(",".join(map(str, row)) for row in ([*header, *more], *rows))
    path, mapping = tmp_path / "a.csv", tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=r"'right_indx_mcp_x' is of no joint.*mean index_mcp"):
        read_motion_file(path)
    mapping.write_text("names: {right_indx_mcp: '-'}")
    absent = read_motion_file(path, keypoints=str(mapping)).joints_camera
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
    same(read_motion_file(tmp_path / "named.json", "right"), only_right(missing))
    np.save(tmp_path / "mano.npy", made.written(MOVING, made.MANO) * 100)
    (tmp_path / "m.yaml").write_text("{order: mano, unit: cm, rate: 60}")
    same(read_motion_file(tmp_path / "mano.npy", keypoints=str(tmp_path / "m.yaml")))


@pytest.mark.parametrize("again", ["wrist_x", "Wrist_X", "hand_x"])
@pytest.mark.parametrize("first", [True, False])
def test_two_columns_of_one_joint_and_axis_are_refused(
    again: str, first: bool, tmp_path: Path
) -> None:
    """Which one counts would depend on the order of the columns."""
    header = [f"{name}_{axis}" for name in KEYPOINT_NAMES for axis in "xyz"]
    place = 0 if first else len(header)
    rows = [[*header], *RIGHT.reshape(45, -1).tolist()]
    for row in rows:
        row.insert(place, again if row is rows[0] else 0.25)
    (tmp_path / "a.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    with pytest.raises(SchemaError, match=r"a\.csv.*wrist_x") as error:
        read_motion_file(tmp_path / "a.csv", "right")
    assert repr(again) in str(error.value)


def test_a_column_with_a_raised_digit_is_no_joint(tmp_path: Path) -> None:
    axes = [f"{name}_{axis}" for name in KEYPOINT_NAMES for axis in "xyz"]
    columns = dict(zip(axes, RIGHT.reshape(45, -1).T, strict=True))
    pq.write_table(pa.table({**columns, "x\u00b2": RIGHT[:, 0, 0] ** 2}), tmp_path / "a.parquet")
    motion = read_motion_file(tmp_path / "a.parquet", "right")
    np.testing.assert_allclose(motion.joints_camera, only_right())


@pytest.mark.parametrize("spelled", [str.lower, str.title, str.upper])
def test_json_names_a_side_as_tables_do(spelled: Callable[[str], str], tmp_path: Path) -> None:
    """MediaPipe's handedness is "Left" or "Right"; it comes before the user's --hands."""
    frames = [{"hand": spelled("right"), "joints": joints} for joints in RIGHT.tolist()]
    (tmp_path / "a.json").write_text(json.dumps(frames))
    rows = long_table(pa.string()).append_column("hand", pa.array([spelled("right")] * 45 * 21))
    pq.write_table(rows, tmp_path / "a.parquet")
    for name in ("a.json", "a.parquet"):
        motion = read_motion_file(tmp_path / name)
        np.testing.assert_allclose(motion.joints_camera, only_right(), atol=1e-9)
        assert not read_motion_file(tmp_path / name, "left").known.any()


#: What a JSON file may hold, a number that float64 cannot hold included.
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=3),
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
def test_any_json_is_read_or_refused(
    entry: str | int, value: object, alone: bool, tmp_path: Path
) -> None:
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
    for joint, name in enumerate(KEYPOINT_NAMES):
        columns |= {f"{name}_{axis}": RIGHT[:, joint, k].tolist() for k, axis in enumerate("xyz")}
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
    same(motion, only_right())


def test_an_npz_may_say_it_itself(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", joints=made.written(MOVING, made.MANO) * 1000, order="mano",
             unit="mm", fps=60, frame="world")  # fmt: skip
    motion = read_motion_file(tmp_path / "a.npz")
    same(motion)
    assert (motion.T_world_camera == np.eye(4)).all()
    with pytest.raises(SchemaError, match=r"order is \['mano'\] in the file and \['openpose'\]"):
        read_motion_file(tmp_path / "a.npz", keypoints="openpose")


def test_zeros_and_confidence_of_joints(tmp_path: Path) -> None:
    joints = RIGHT - RIGHT[:, :1]
    joints[5:9, 12] = 0
    joints[20] = 0
    np.savez(tmp_path / "a.npz", joints=joints, missing="zeros", side="right")
    motion = read_motion_file(tmp_path / "a.npz")
    missing = np.isnan(motion.joints_camera[:, 1]).all(-1)
    assert np.argwhere(missing[:20]).tolist() == [[t, 12] for t in range(5, 9)]
    assert not motion.known[20, 1] and motion.known[19, 1]
    confidence = np.ones((45, 21))
    confidence[7, 3], confidence[8, 4] = 0.2, 0.6
    (tmp_path / "m.yaml").write_text("min_confidence: 0.5")
    np.savez(tmp_path / "b.npz", joints=RIGHT, confidence=confidence, side="right")
    motion = read_motion_file(tmp_path / "b.npz", keypoints=str(tmp_path / "m.yaml"))
    missing = np.isnan(motion.joints_camera[:, 1]).all(-1)
    assert np.argwhere(missing).tolist() == [[7, 3]]
    assert motion.quality[8, 1] == pytest.approx(20.6 / 21)


WRONG = {
    "other columns": (
        "a.csv",
        "time,foo,bar\n0,1,2\n",
        "no columns of joints among time, foo, bar",
    ),
    "no row": ("a.csv", "wrist_x,wrist_y,wrist_z\n", "row"),
    "empty": ("a.csv", "", "not a table"),
    "text": ("a.csv", "wrist_x,wrist_y,wrist_z\na,b,c\n", "column 'wrist_x' does not hold numbers"),
    "unknown joint": ("a.csv", "frame,joint,x,y,z\n0,ear,1,2,3\n", "'ear', which is no joint"),
    "no frames": ("a.csv", "joint,x,y,z\nwrist,1,2,3\n", "needs a column frame"),
    "not json": ("a.json", "{", "not JSON"),
    "no list": ("a.json", "{}", "no frames; valid"),
    "ragged": ("a.json", "[[[1,2,3]],[[1,2,3],[4,5,6]]]", "the same number of joints"),
    "no array": ("a.npy", "abc", "pickled"),
    "twenty": ("a.json", json.dumps([[[0.1, 0, 0]] * 25] * 3), "Orders with 25 joints: avp25"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_say_what_is_wrong(case: str, tmp_path: Path, capsys) -> None:
    name, content, message = WRONG[case]
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as error:
        read_motion_file(tmp_path / name, "right")
    assert str(tmp_path / name) in str(error.value) and message in str(error.value)
    run = Run(capsys, tmp_path / name, "--hands", "right", "--output", tmp_path / "out")
    assert run.code == 2 and message in run.messages and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ordr: mano", "unknown key 'ordr'; .*Did you mean 'order'"),
        ("order: manno", "order is 'manno'.*Did you mean 'mano'"),
        ("unit: feet", "unit is 'feet'; valid: cm, in, m, mm"),
        ("missing: none", "missing is 'none'; valid: numbers, or 'zeros'"),
        ("rate: fast", "rate is 'fast'; int or float is needed"),
        ("columns: '{joint}'", "needs {joint} and {axis}"),
        ("names: {W: 0}", "names has 'W': 0"),
        ("names: {0: wrist}", "names has 0: 'wrist'"),
        ("rate: 2026-02-30", "not YAML"),
        ("names: {W: wirst}", "'wirst', which is no joint"),
        ("joints: {middle: a}", "must name an entry for left, for right"),
        ("- a", "holds list; keys and values are needed"),
        ("a: [", "not YAML"),
    ],
)
def test_wrong_mappings_say_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as error:
        load_map(str(path))
    assert str(error.value).startswith(str(path))
    with pytest.raises(InputError, match=r"--keypoints .*Did you mean 'manus'"):
        load_map("mannus")


def test_keypoints_are_for_files_of_hands(tmp_path: Path, capsys) -> None:
    run = Run(capsys, tmp_path / "v.mp4", "--keypoints", "mano", "--output", tmp_path / "out")
    assert run.code == 2
    np.savez(tmp_path / "a.npz", joints=made.written(MOVING, made.MANO), fps=30)
    arguments = [tmp_path / "a.npz", "--keypoints", "mano", "--output", tmp_path / "out"]
    assert Run(capsys, *arguments).code == 0
    other = Run(capsys, *arguments[:1], *arguments[3:], "--resume")
    assert other.code == 2 and "keypoints" in str(other.json) + other.err


# The palm.


def test_a_knuckle_that_is_never_given_is_that_of_the_mean_hand() -> None:
    """The hand here is the mean hand, half as large again."""
    joints = 1.2 * RIGHT
    missing = joints.copy()
    missing[:, 17:] = np.nan
    motion = motion_from_joints(missing, side="right")
    np.testing.assert_allclose(motion.joints_camera[:, 1, 17], joints[:, 17], atol=1e-9)
    assert np.isnan(motion.joints_camera[:, 1, 18:]).all() and motion.known[:, 1].all()
    assert any("a knuckle of the right hand was estimated" in n for n in motion.provenance.notes)
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
    assert any("wrist of the right hand was estimated" in n for n in motion.provenance.notes)
    for lacking, name in (
        ([0], "the wrist"),
        ([5, 9, 13], "knuckles"),
        ([0, 5, 9, 13, 17], "the wrist and knuckles"),
    ):
        joints = RIGHT.copy()
        joints[:, lacking] = np.nan
        with pytest.raises(
            SchemaError, match=f"of the right hand {name} are never given; the least"
        ):
            motion_from_joints(joints, side="right")
