"""HOT3D sequences: every transform in the right direction, MANO motion read, bad lines named.

Tests run on a made-up sequence of the same layout and on the published sample, if it is at hand.
"""

import json
import os
import shutil

import numpy as np
import pytest

from acehand_core.ace.labelled.readers import hot3d, hot3d_files
from acehand_core.ace.labelled.readers.base import ReadOptions
from acehand_core.ace.labelled.readers.conventions import to_camera
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.hand.mano import load_mano
from helpers import native_samples

SEQUENCE = "hot3d_aria_P0003_c701bd11"


@pytest.fixture(scope="module")
def made_up(mano_file, tmp_path_factory):
    """A sequence of 34 moments in which the left hand has no pose at the second, and its truths."""
    present = np.ones((34, 2), bool)
    present[1, 0] = False
    folder = tmp_path_factory.mktemp("hot3d") / "P0003_cccccccc"
    truths = native_samples.write_hot3d_sequence(
        folder, native_samples.Hands(mano_file), present, 3
    )
    return folder, truths


@pytest.fixture(scope="module")
def published(request):
    """The sample that its authors publish."""
    path = request.getfixturevalue("shared") / "data" / SEQUENCE
    if not path.is_dir():
        pytest.skip(f"no HOT3D sample at {path}")
    return path


@pytest.fixture(scope="module", params=["made up", "published"])
def folder(request):
    if request.param == "published":
        return request.getfixturevalue("published")
    return request.getfixturevalue("made_up")[0]


@pytest.fixture(scope="module")
def synthetic(mano_file):
    """A made-up MANO: its joints are not the sample's, but they must move with its motion."""
    return load_mano(mano_file, left_shapedirs_fixed=True, dtype="float64")


def stream_poses(folder, stream="214-1"):
    """Return a stream's moments, and what had to be assumed."""
    return hot3d.stream_poses(folder, stream, hot3d_files.read_boxes(folder))


def joints_world(folder, mano, stream="214-1"):
    """Return times, which hands are labelled, and joints as the reader's labels give them."""
    options = ReadOptions(view=stream, pictures=False)
    (item,) = hot3d.Hot3dReader().items(folder, options)
    native = hot3d.Hot3dReader().read(item, options)
    joints = to_camera(native.mano, lambda fixed: mano if fixed else None).joints_camera
    T_world_camera = native.T_world_camera[:, None]
    return native.timestamps_ns, native.present, frames.apply(T_world_camera, joints)


def wrists_in_boxes(folder, direction):
    """Count non-empty boxes and those that contain the UmeTrack wrist."""
    boxes, wrists = hot3d_files.read_boxes(folder), hot3d_files.read_umetrack(folder)
    inside = total = 0
    for stream in hot3d_files.STREAMS:
        poses, _ = stream_poses(folder, stream)
        for row in boxes.of_stream(stream):
            if np.isnan(boxes.box[row]).any():
                continue
            moment = np.flatnonzero(poses.timestamps_ns == boxes.timestamps_ns[row])[0]
            track = np.flatnonzero(wrists.timestamps_ns == boxes.timestamps_ns[row])[0]
            point = wrists.T_world_hand[track, boxes.slot[row], :3, 3]
            transform = poses.T_world_camera[moment]
            if direction == "right":
                transform = frames.inverse(transform)
            pixel = poses.cameras[moment].project(frames.apply(transform, point))
            low, high = boxes.box[row, :2], boxes.box[row, 2:]
            total += 1
            inside += bool((pixel >= low).all() and (pixel <= high).all())
    return inside, total


def test_umetrack_wrists_project_into_every_hand_box(folder, request):
    boxes = 184 if "published" in request.node.callspec.id else 2 * 34 * 3 - 3
    assert wrists_in_boxes(folder, "right") == (boxes, boxes)
    assert wrists_in_boxes(folder, "wrong") == (0, boxes)


def test_rows_pair_up(folder, request):
    (times, _), boxes = hot3d_files.read_headset(folder), hot3d_files.read_boxes(folder)
    assert len(times) == 68
    assert len(boxes.slot) == 204
    empty = 20 if "published" in request.node.callspec.id else 3
    assert np.isnan(boxes.box).all(axis=1).sum() == empty
    assert ((boxes.box[:, 0] < boxes.box[:, 2]) | np.isnan(boxes.box[:, 0])).all()
    (colour, _), (grey, _) = stream_poses(folder), stream_poses(folder, "1201-2")
    assert len(colour.timestamps_ns) == len(grey.timestamps_ns) == len(colour.cameras) == 34
    gap = grey.timestamps_ns - colour.timestamps_ns
    assert ((gap > 50_000) & (gap < 150_000)).all()
    camera = colour.cameras[0]
    assert (camera.model, camera.width, camera.height) == ("fisheye624", 1408, 1408)
    assert (grey.cameras[0].width, grey.cameras[0].height) == (640, 480)


def test_mano_motion(folder, request):
    motion = hot3d_files.read_mano(folder)
    assert motion.present.shape == (68, 2)
    absent = [] if "published" in request.node.callspec.id else [[2, 0], [3, 0]]
    assert np.argwhere(~motion.present).tolist() == absent
    assert motion.numbers.shape == (68, 2, 15)
    lines = (folder / hot3d_files.MANO_FILE).read_text().splitlines()
    hand = json.loads(lines[41])["hand_poses"]["1"]
    np.testing.assert_array_equal(motion.numbers[41, 1], hand["pose"])
    np.testing.assert_array_equal(motion.betas, hand["betas"])
    np.testing.assert_array_equal(motion.T_world_hand[41, 1, :3, 3], hand["wrist_xform"]["t_xyz"])


def test_masks_pair_up_with_moments(folder):
    """Of the published sample all masks are True; the made-up one lacks a pose at one moment."""
    for stream in hot3d_files.STREAMS:
        times = stream_poses(folder, stream)[0].timestamps_ns
        for name in hot3d_files.MASKS:
            found = hot3d_files.read_mask(folder, name, stream, times)
            if name == "qa_pass":  # not every sequence has every mask
                assert found is None
                continue
            values, told = found
            assert told.all() and values.shape == (34,)
            lost = [1] if name == "hand_pose_available" and folder.name == "P0003_cccccccc" else []
            assert np.flatnonzero(~values).tolist() == lost


def test_mano_translation_is_a_constant_offset_from_the_wrist(folder):
    """The translation is MANO's: world axes, J0 away from the wrist however the hand turns."""
    motion, wrists = hot3d_files.read_mano(folder), hot3d_files.read_umetrack(folder)
    np.testing.assert_array_equal(motion.timestamps_ns, wrists.timestamps_ns)
    offset = (wrists.T_world_hand - motion.T_world_hand)[..., :3, 3]
    most = 0.0
    for slot, sign in ((0, -1), (1, 1)):
        rows = motion.present[:, slot]
        known = offset[rows, slot]
        np.testing.assert_allclose(known, np.broadcast_to(known.mean(0), known.shape), atol=1e-3)
        orient = motion.T_world_hand[rows, slot, :3, :3]
        turned = rotations.angle_between(np.broadcast_to(orient[0], orient.shape), orient)
        most = max(most, np.degrees(turned.max()))
        # Two mirrored hands: the rest wrists lie on opposite sides.
        assert (sign * known[:, 0] > 0.05).all()
    assert most > 5


def test_joints_are_those_of_smplx(folder, synthetic):
    """15 components, mean pose added, orientation, betas and translation through smplx alone."""
    smplx, torch = pytest.importorskip("smplx"), pytest.importorskip("torch")
    from smplx.utils import Struct

    times, present, joints = joints_world(folder, synthetic)
    motion = hot3d_files.read_mano(folder).at(times)
    np.testing.assert_array_equal(present, motion.present)
    for slot, side in enumerate(("left", "right")):
        arrays = synthetic.arrays[side]
        data = {name: getattr(arrays, name) for name in type(arrays).__slots__}
        layer = smplx.MANO(
            "", data_struct=Struct(**data), is_rhand=slot == 1, use_pca=True, num_pca_comps=15,
            batch_size=34, dtype=torch.float64,
        )  # fmt: skip
        rows = motion.present[:, slot]
        pose = np.where(rows[:, None, None], motion.T_world_hand[:, slot], np.eye(4))
        inputs = {
            "global_orient": rotations.log(pose[:, :3, :3]),
            "hand_pose": motion.numbers[:, slot],
            "betas": np.tile(motion.betas, (34, 1)),
            "transl": pose[:, :3, 3],
        }
        out = layer(**{key: torch.from_numpy(value) for key, value in inputs.items()})
        wrist_and_index = joints[rows, slot][:, [0, 5, 6, 7]]
        posed = out.joints.detach().numpy()[rows, :4]
        np.testing.assert_allclose(wrist_and_index, posed, atol=1e-6)
        assert np.isnan(joints[~rows, slot]).all()


def test_all_joints_with_the_users_mano(published, shared):
    """Against UmeTrack's joints, from which the dataset fitted MANO."""
    if not os.environ.get("ACEHAND_MANO"):
        pytest.skip("set ACEHAND_MANO to a folder with your MANO_LEFT.pkl and MANO_RIGHT.pkl")
    mano = load_mano(left_shapedirs_fixed=True, dtype="float64")
    with np.load(shared / "data" / "hot3d_bimanual_joints.npz") as data:
        times, expected = data["timestamps_ns"], data["joints_world"]
    moments, _, joints = joints_world(published, mano)
    expected = expected[np.isin(times, moments)]
    assert len(expected) == len(moments)
    error = np.linalg.norm(joints - expected, axis=-1)
    assert np.isnan(error[:, :, 1]).all()
    error = np.delete(error, 1, axis=2)
    for slot in (0, 1):
        assert np.median(error[:, slot]) < 0.010
        assert error[:, slot].max() < 0.030


@pytest.fixture
def copy(made_up, tmp_path):
    folder, out = made_up[0], tmp_path / "P0003_cccccccc"
    out.mkdir()
    for path in (hot3d_files.MANO_FILE, hot3d_files.UMETRACK_FILE, hot3d_files.HEADSET_FILE,
                 hot3d_files.BOXES_FILE, hot3d_files.CALIBRATION_FILE):  # fmt: skip
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, out / path)
    return out


def edit_json(path, number, change):
    lines = path.read_text().splitlines()
    value = json.loads(lines[number - 1])
    change(value)
    lines[number - 1] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def edit_text(path, number, old, new):
    lines = path.read_text().splitlines()
    assert old in lines[number - 1]
    lines[number - 1] = lines[number - 1].replace(old, new, 1)
    path.write_text("\n".join(lines) + "\n")


MANO_DAMAGE = {
    "short pose": lambda line: line["hand_poses"]["0"]["pose"].pop(),
    "text in pose": lambda line: line["hand_poses"]["0"]["pose"].__setitem__(3, "x"),
    "nan": lambda line: line["hand_poses"]["1"]["wrist_xform"].update(t_xyz=[float("nan")] * 3),
    "zero quaternion": lambda line: line["hand_poses"]["1"]["wrist_xform"].update(q_wxyz=[0] * 4),
    "missing wrist": lambda line: line["hand_poses"]["1"].pop("wrist_xform"),
    "unknown hand": lambda line: line["hand_poses"].update({"2": {}}),
    "hands as a list": lambda line: line.update(hand_poses=[]),
    "other betas": lambda line: line["hand_poses"]["0"]["betas"].__setitem__(0, 9.0),
    "no time": lambda line: line.pop("timestamp_ns"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MANO_DAMAGE)
def test_damaged_mano_line_is_named(copy, kind):
    edit_json(copy / hot3d_files.MANO_FILE, 17, MANO_DAMAGE[kind])
    with pytest.raises(SchemaError, match=rf"{hot3d_files.MANO_FILE}:17: "):
        hot3d_files.read_mano(copy)


def test_line_that_is_no_json(copy):
    edit_text(copy / hot3d_files.MANO_FILE, 5, "{", "[")
    with pytest.raises(SchemaError, match=r":5: not a JSON object"):
        hot3d_files.read_mano(copy)


@pytest.mark.parametrize(
    ("line", "old", "new", "message"),
    [
        (1, "t_wo_x[m]", "t_wo_x", r":1: wrong columns \(t_wo_x, t_wo_x\[m\]\)"),
        (9, ",", ",,", r":9: 10 values for 9 columns"),
        (9, "0.", "zero.", r":9: pose: not an array of numbers"),
        (9, "567", "x567", r":9: the timestamp"),
    ],
)
def test_damaged_headset_csv(copy, line, old, new, message):
    edit_text(copy / hot3d_files.HEADSET_FILE, line, old, new)
    with pytest.raises(SchemaError, match=message):
        hot3d_files.read_headset(copy)


def test_damaged_boxes(copy):
    edit_text(copy / hot3d_files.BOXES_FILE, 3, "214-1,1", "214-1,2")
    with pytest.raises(SchemaError, match=r"box2d_hands\.csv:3: hand_index"):
        hot3d_files.read_boxes(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e["Projection"]["Params"].pop(), r":2: Params: has shape \(14,\); 15 is needed"),
        (lambda e: e["Projection"].update(Name="Linear"), r":2: projection 'Linear'"),
        (lambda e: e.update(Label="camera-x"), r":2: 0 calibrations of 'camera-rgb'"),
        (lambda e: e["T_Device_Camera"].update(UnitQuaternion=[1, 2, 3]), r":2: UnitQuaternion"),
    ],
)
def test_damaged_calibration(copy, change, message):
    def of_colour(line):
        change(next(e for e in line["CameraCalibrations"] if e["Label"] == "camera-rgb"))

    edit_json(copy / hot3d_files.CALIBRATION_FILE, 2, of_colour)
    with pytest.raises(SchemaError, match=message):
        stream_poses(copy)


def test_moments_that_do_not_pair_up_are_paired_by_place(copy):
    path = copy / hot3d_files.CALIBRATION_FILE
    whole, _ = stream_poses(copy)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    poses, (note,) = stream_poses(copy)
    assert note.startswith("34 moments of stream 214-1 but 33 lines of calibration")
    assert poses.cameras[0] == whole.cameras[0] and poses.cameras[-1] == whole.cameras[-2]


def test_a_moment_without_a_headset_row_has_no_pose(copy):
    """Times must match exactly: the next row is about 90 microseconds away."""
    path = copy / hot3d_files.HEADSET_FILE
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:5] + lines[6:]) + "\n")
    poses, (note,) = stream_poses(copy)
    assert note.startswith("1 of 34 frames have no headset pose")
    lost = np.isnan(poses.T_world_camera).any((-1, -2))
    assert poses.timestamps_ns[lost].tolist() == [int(lines[5].split(",")[1])]


def test_absent_hands_are_absent(copy):
    """A missing hand is a missing key; its slot is not present and holds no numbers."""
    for number in (1, 2):
        edit_json(copy / hot3d_files.MANO_FILE, number, lambda line: line["hand_poses"].pop("0"))
    motion = hot3d_files.read_mano(copy)
    assert list(motion.present[0]) == [False, True]
    assert motion.present[4:].all()
    assert np.isnan(motion.numbers[0, 0]).all() and np.isnan(motion.T_world_hand[0, 0]).all()
    assert np.isfinite(motion.numbers[0, 1]).all()


def test_missing_file_and_unknown_stream(copy):
    with pytest.raises(InputError, match=r"214-2.*valid"):
        stream_poses(copy, "214-2")
    (copy / hot3d_files.MANO_FILE).unlink()
    with pytest.raises(InputError, match=hot3d_files.MANO_FILE):
        hot3d_files.read_mano(copy)
