"""Every column, written and read; and hands that leave, come late, or never appear."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.skeleton import FINGER_JOINT_NAMES, KEYPOINT_NAMES
from acehand_core.lerobot import columns
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.columns import Column, Form, Layout, Sources, features
from acehand_core.motion import HandMotion
from helpers import ROOT
from helpers.commands import GripperRun as Run
from helpers.commands import hands_file
from helpers.retarget_samples import motion_of, moving_hands
from retarget.retargeting import retarget_motion
from retarget.robots.robot import load_robot

COUNT = 30
IDENTITY = [1.0, 0, 0, 0, 1, 0]
LAYOUT = Layout(("a", "b"), ("c",), ("a",), "camera", "acehand", (64, 48))
#: The axes of each column's values in a dataset of ``ARMS``, and what they are.
VALUES = {
    "observation.state": ((2, 10), "number"),
    "action": ((2, 10), "number"),
    "observation.joints.robot": ((2, 2), "number"),
    "action.register": ((2, 1), "number"),
    "observation.hand.joints_camera": ((2, 21, 3), "number"),
    "observation.hand.joints_wrist": ((2, 21, 3), "number"),
    "observation.hand.global_orient": ((2, 3, 3), "rotation"),
    "observation.hand.hand_pose": ((2, 15, 3, 3), "rotation"),
    "observation.hand.betas": ((2, 10), "number"),
    "observation.hand.translation": ((2, 3), "number"),
    "observation.hand.confidence": ((2,), "number"),
    "observation.hand.visible": ((2,), "number"),
    "observation.hand.filled": ((2,), "flag"),
    "observation.arm.joints": ((2, 3), "number"),
    "observation.arm.reached": ((2,), "flag"),
    "observation.arm.clearance": ((2,), "number"),
    "observation.camera": ((6,), "number"),
    "observation.source_timestamp_ns": ((1,), "time"),
    "hand.valid": ((2,), "flag"),
    "hand.joint_sigma": ((2, 21, 2), "sigma"),
}
ARMS = replace(LAYOUT, arm_joints=("j1", "j2", "j3"))


def values_of(axes: tuple[int, ...], kind: str, count: int, seed: int) -> np.ndarray:
    """Return random values (count, *axes) that float32 holds exactly, but for rotations."""
    rng = np.random.default_rng(seed)
    if kind == "rotation":
        return rotations.exp(rng.uniform(-3, 3, (count, *axes[:-1])))
    if kind == "flag":
        return rng.random((count, *axes)) < 0.5
    if kind == "time":
        return rng.integers(0, 2**62, (count, *axes))
    values = rng.normal(size=(count, *axes)).astype(np.float32).astype(float)
    return np.where(values < 0, np.nan, values) if kind == "sigma" else values


@given(count=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_what_is_written_is_read(count, seed):
    """Of every column, with its feature's shape today, and in an older dataset."""
    assert {column.name for column in columns.COLUMNS} == {*VALUES}
    for column in columns.COLUMNS:
        axes, kind = VALUES[column.name]
        values = values_of(axes, kind, count, seed)
        stored = column.write(values)
        assert np.isfinite(stored).all()
        for flat in (True, False):
            spec = column.spec(ARMS, flat)
            assert stored.dtype == spec.dtype
            read = columns.read({column.name: stored.reshape(count, *spec.shape)}, (column,))[
                column
            ]
            if kind == "rotation":
                np.testing.assert_allclose(read, values, atol=1e-6)
            else:
                np.testing.assert_array_equal(read, values)


@pytest.mark.parametrize("frame", ["camera", "none"])
def test_a_state_is_poses_and_joints(frame):
    rng = np.random.default_rng(0)
    poses = np.tile(np.eye(4), (4, 2, 1, 1))
    poses[..., :3, :3] = rotations.exp(rng.uniform(-1, 1, (4, 2, 3)))
    poses[..., :3, 3] = rng.uniform(-1, 1, (4, 2, 3))
    driven = rng.uniform(-1, 1, (4, 2, 6))
    robot = SimpleNamespace(T_frame_base=None if frame == "none" else poses, commands=driven)
    state, following = (
        columns.read({c.name: c.write(c.make(Sources(None, robot)))}, (c,))[c]
        for c in (columns.STATE, columns.ACTION)
    )
    bases, joints = columns.split_states(state, frame)
    np.testing.assert_allclose(joints, driven, atol=1e-6)
    assert (bases is None) == (frame == "none")
    if bases is not None:
        np.testing.assert_allclose(bases, poses, atol=1e-6)
    np.testing.assert_array_equal(following, state[[1, 2, 3, 3]])


def test_hands_of_older_datasets_are_valid_where_known():
    """They lack the column: a hand that is measured with confidence, or filled in, is valid."""
    confidence, filled = np.array([[0.5, 0], [0, 0]]), np.array([[0, 0], [0, 1.0]])
    stored = {"observation.hand.confidence": confidence}
    assert columns.read(stored, columns.COLUMNS)[columns.VALID].tolist() == [
        [True, False],
        [False, False],
    ]
    stored["observation.hand.filled"] = filled
    assert columns.read(stored, columns.COLUMNS)[columns.VALID].tolist() == [
        [True, False],
        [False, True],
    ]
    stored["hand.valid"] = np.array([[False, True], [True, False]])
    assert (
        columns.read(stored, columns.COLUMNS)[columns.VALID].tolist()
        == stored["hand.valid"].tolist()
    )


def test_columns_are_named_in_one_place():
    """No other module has the name of a column; "action" alone also means other things."""
    names = {column.name for column in columns.COLUMNS} - {"action"}
    own = Path(columns.__file__)
    for folder in ("acehand_core", "acehand_ros", "retarget", "robots"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            assert path == own or not [name for name in names if f'"{name}' in text], path


def motion(leaves: int, comes: int) -> HandMotion:
    """A left hand that is gone from frame ``leaves`` on, a right hand there from ``comes`` on."""
    rng = np.random.default_rng(0)
    known = np.stack([np.arange(COUNT) < leaves, np.arange(COUNT) >= comes], axis=1)
    turns = rotations.exp(rng.uniform(-1, 1, (COUNT, 2, 16, 3)))
    turns[~known] = np.nan
    joints = np.where(known[..., None, None], moving_hands(COUNT), np.nan)
    hands = motion_of(joints, betas=np.full((2, 10), 0.5), camera=Camera.nominal(640, 480))
    place = np.where(known[..., None], joints[:, :, 0], np.nan)
    orient, pose = turns[:, :, 0], turns[:, :, 1:]
    return replace(
        hands, hand_model="acehand", global_orient=orient, hand_pose=pose, translation=place
    )


#: How docs/formats.md says to take each vector apart.
AXES = {"joints_camera": (2, 21, 3), "joints_wrist": (2, 21, 3), "global_orient": (2, 6)}
AXES |= {"hand_pose": (2, 15, 6), "betas": (2, 10), "translation": (2, 3)}


def stored(source: HandMotion) -> dict[str, np.ndarray]:
    """Return the columns, those of hands taken apart."""
    robot = load_robot("inspire")
    trajectory, hand = retarget_motion(source, robot), robot.hand("left")
    names = hand.joint_names, hand.command_names, hand.command_joints
    layout = Layout(*names, trajectory.frame, source.hand_model, None)
    out = columns.write(features(layout), Sources(source, trajectory, source.timestamps_ns))
    assert all(value.ndim == 2 for value in out.values())
    for name, axes in AXES.items():
        if f"observation.hand.{name}" in out:
            out[f"observation.hand.{name}"] = out[f"observation.hand.{name}"].reshape(-1, *axes)
    return out


@pytest.mark.slow
def test_doubt_of_joints_is_kept_and_never_nan():
    """Negative, which no standard deviation is, where nothing is known of it."""
    source = motion(20, 5)
    assert (stored(source)["hand.joint_sigma"] == -1).all()
    sigma = np.random.default_rng(0).uniform(0.001, 0.1, (COUNT, 2, 21, 2))
    sigma[~source.known] = np.nan
    found = stored(replace(source, joint_sigma=sigma))["hand.joint_sigma"].reshape(sigma.shape)
    known = np.where(source.known[..., None, None], sigma, -1)
    np.testing.assert_allclose(found, known, rtol=1e-6)
    (feature,) = [f for f in features(LAYOUT) if f.key == "hand.joint_sigma"]
    assert feature.shape == (84,) and feature.names[:2] == ("left_wrist_across", "left_wrist_along")


def test_an_absent_hand_holds_everything():
    source = motion(20, 5)
    out = stored(source)
    prefix = "observation.hand."
    expected = {
        "joints_camera": source.joints_camera,
        "global_orient": rotations.to_6d(source.global_orient),
        "hand_pose": rotations.to_6d(source.hand_pose),
        "translation": source.translation,
    }
    for name, values in expected.items():
        column = out[prefix + name]
        np.testing.assert_allclose(column[:20, 0], values[:20, 0], rtol=1e-6)
        np.testing.assert_array_equal(column[20:, 0], np.repeat(column[19:20, 0], 10, 0))
        np.testing.assert_allclose(column[5:, 1], values[5:, 1], rtol=1e-6)
        np.testing.assert_array_equal(column[:5, 1], np.repeat(column[5:6, 1], 5, 0))
    confidence = out[prefix + "confidence"]
    assert (confidence[20:, 0] == 0).all() and (confidence[:5, 1] == 0).all()
    valid = out["hand.valid"]
    assert valid.dtype == bool and valid[:20, 0].all() and valid[5:, 1].all()
    assert not valid[20:, 0].any() and not valid[:5, 1].any()
    # The base of the robot stays with the hand.
    base = out["observation.state"][:, :9]
    np.testing.assert_array_equal(base[20:], np.repeat(base[19:20], 10, 0))


@pytest.mark.parametrize("placed", [True, False])
def test_a_hand_that_never_appears_is_the_flat_hand(placed):
    source = replace(motion(0, 0), placed=placed)
    out = {key.removeprefix("observation.hand."): value for key, value in stored(source).items()}
    rest = CapsuleHand().rest_keypoints("left", source.betas[0])
    if placed:
        np.testing.assert_allclose(out["joints_camera"][7, 0], rest, atol=1e-7)
        assert (out["translation"][:, 0] == 0).all()
        np.testing.assert_array_equal(out["global_orient"][3, 0], IDENTITY)
        np.testing.assert_array_equal(out["hand_pose"][3, 0], [IDENTITY] * 15)
    else:
        np.testing.assert_allclose(out["joints_wrist"][7, 0], rest - rest[0], atol=1e-7)
    assert (out["confidence"][:, 0] == 0).all() and not out["hand.valid"][:, 0].any()
    hand = load_robot("inspire").hand("left")
    joints = out["observation.joints.robot"][:, :12]
    np.testing.assert_allclose(joints, np.tile(hand.expand(hand.rest), (COUNT, 1)), atol=1e-6)


def test_a_hand_that_is_left_out_is_never_valid(tmp_path, capsys):
    """In the file itself, and the check finds what contradicts it."""
    hands, data = hands_file(tmp_path / "hands.npz"), tmp_path / "data"
    assert Run(capsys, hands, "--hands", "right", "--output", data).code == 0
    (path,) = data.glob("data/*/*.parquet")
    table = pq.read_table(path, partitioning=None)
    assert table["hand.valid"].to_pylist() == [[False, True]] * 12
    assert check_dataset(data) == []

    confidence = "observation.hand.confidence"
    rows = table[confidence].to_pylist()
    rows[3][0] = rows[3][1]
    number = table.column_names.index(confidence)
    lying = pa.array(rows, table.schema.field(number).type)
    pq.write_table(table.set_column(number, confidence, lying), path)
    problems = [str(problem) for problem in check_dataset(data)]
    assert any("at row 3" in p and "'hand.valid'" in p for p in problems)


def test_every_entry_of_a_vector_has_its_own_name():
    """The names of entry [h, j, a] of an array are those of h, j and a, as numpy flattens it."""
    shapes = {spec.key: spec for spec in features(LAYOUT)}
    assert all(len(s.shape) == 1 for s in shapes.values() if s.dtype != "video")
    for name, (hands, joints, axes) in {
        "joints_camera": (2, KEYPOINT_NAMES, ("x", "y", "z")),
        "hand_pose": (2, FINGER_JOINT_NAMES, ("r11", "r21", "r31", "r12", "r22", "r32")),
    }.items():
        spec = shapes[f"observation.hand.{name}"]
        names = np.array(spec.names).reshape(hands, len(joints), len(axes))
        for hand, joint, axis in np.ndindex(names.shape):
            side = ("left", "right")[hand]
            assert names[hand, joint, axis] == f"{side}_{joints[joint]}_{axes[axis]}"
        stated = spec.info["axes"]
        assert list(stated) == ["hand", "joint", {"x": "axis", "r11": "rotation"}[axes[0]]]
        assert [len(labels) for labels in stated.values()] == list(AXES[name])
    assert shapes["observation.hand.betas"].names[9:11] == ("left_beta9", "right_beta0")
    assert shapes["observation.hand.translation"].names[2:4] == ("left_z", "right_x")
    assert shapes["observation.hand.global_orient"].names[5:7] == ("left_r32", "right_r11")


def test_a_new_column_is_one_entry(tmp_path, capsys, monkeypatch):
    """CONTRIBUTING.md: it is written, described, checked, and read back."""
    tips = Column(
        "hand.span",
        lambda sources: np.linalg.norm(
            sources.hands.joints_camera[:, :, 8] - sources.hands.joints_camera[:, :, 4], axis=-1
        ),
        "m",
    )
    monkeypatch.setattr(columns, "COLUMNS", (*columns.COLUMNS, tips))
    hands, data = hands_file(tmp_path / "hands.npz"), tmp_path / "data"
    assert Run(capsys, hands, "--output", data).code == 0
    assert check_dataset(data) == []
    info = json.loads((data / "meta/info.json").read_text())["features"]["hand.span"]
    assert (info["shape"], info["names"], info["info"]) == ([2], ["left", "right"], {"unit": "m"})

    (path,) = data.glob("data/*/*.parquet")
    stored = np.array(pq.read_table(path, partitioning=None)["hand.span"].to_pylist())
    joints = np.load(hands)["joints"]
    expected = np.linalg.norm(joints[..., 8, :] - joints[..., 4, :], axis=-1)
    np.testing.assert_allclose(
        columns.read({"hand.span": stored}, [tips])[tips], expected, atol=1e-6
    )


def test_an_export_is_a_table_of_columns():
    """CONTRIBUTING.md: other names and forms, here SciPy's quaternions, on what is stored."""

    def to_xyzw(values):
        return (
            Rotation.from_matrix(values.reshape(-1, 3, 3)).as_quat().reshape(*values.shape[:-2], 4)
        )

    quaternions = Form(to_xyzw, lambda stored: stored)
    rotation = {"hand": ("left", "right"), "rotation": ("x", "y", "z", "w")}
    theirs = {
        replace(columns.GLOBAL_ORIENT, name="state.wrist", axes=rotation, form=quaternions):
            columns.GLOBAL_ORIENT,
        replace(columns.FILLED, name="state.filled"): columns.FILLED,
    }  # fmt: skip
    turns = Rotation.from_rotvec(np.random.default_rng(0).uniform(-2, 2, (6, 3)))
    stored = {
        columns.GLOBAL_ORIENT.name: columns.GLOBAL_ORIENT.write(
            turns.as_matrix().reshape(3, 2, 3, 3)
        ),
        columns.FILLED.name: np.array([[0, 1], [1, 0], [0, 0]], np.float32),
    }
    values = columns.read(stored, list(theirs.values()))
    out = {column.name: column.write(values[ours]) for column, ours in theirs.items()}
    error = turns.inv() * Rotation.from_quat(out["state.wrist"].reshape(6, 4))
    assert error.magnitude().max() < 1e-6
    np.testing.assert_array_equal(out["state.filled"], stored[columns.FILLED.name])
    (wrist, _) = (column.spec(LAYOUT) for column in theirs)
    assert wrist.shape == (8,) and wrist.names[:4] == ("left_x", "left_y", "left_z", "left_w")
