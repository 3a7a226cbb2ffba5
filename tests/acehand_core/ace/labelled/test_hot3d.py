"""HOT3D sequences: every transform in the right direction, MANO motion read, bad lines named.

Tests run on a made-up sequence of the same layout and on the published sample, if it is at hand.
"""

import json
import shutil

import numpy as np
import pytest

from acehand_core.ace.labelled.readers import hot3d, hot3d_files
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from helpers import native_samples

SEQUENCE = "hot3d_aria_P0003_c701bd11"


@pytest.fixture(scope="module")
def made_up(mano_file, tmp_path_factory):
    """A sequence of 34 moments in which the left hand has no pose at the second."""
    present = np.ones((34, 2), bool)
    present[1, 0] = False
    folder = tmp_path_factory.mktemp("hot3d") / "P0003_cccccccc"
    native_samples.write_hot3d_sequence(folder, native_samples.Hands(mano_file), present, 3)
    return folder


@pytest.fixture(scope="module", params=["made up", "published"])
def folder(request):
    """The made-up sequence, and the sample that its authors publish."""
    if request.param == "made up":
        return request.getfixturevalue("made_up")
    path = request.getfixturevalue("shared") / "data" / SEQUENCE
    if not path.is_dir():
        pytest.skip(f"no HOT3D sample at {path}")
    return path


def stream_poses(folder, stream="214-1"):
    """Return a stream's moments, and what had to be assumed."""
    return hot3d.stream_poses(folder, stream, hot3d_files.read_boxes(folder))


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
            values, known = found
            assert known.all() and values.shape == (34,)
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


@pytest.fixture
def copy(made_up, tmp_path):
    return shutil.copytree(made_up, tmp_path / "P0003_cccccccc")


def of_left(change):
    return lambda line: change(line["hand_poses"]["0"])


def of_right(change):
    return lambda line: change(line["hand_poses"]["1"])


def of_colour(change):
    return lambda line: change(
        next(e for e in line["CameraCalibrations"] if e["Label"] == "camera-rgb")
    )


#: File, its line, a change of the line's text or of its JSON, and what the error names behind it.
MANO, HEADSET, BOXES, CALIBRATION = (
    hot3d_files.MANO_FILE, hot3d_files.HEADSET_FILE, hot3d_files.BOXES_FILE,
    hot3d_files.CALIBRATION_FILE,
)  # fmt: skip
DAMAGE = [
    (MANO, 17, of_left(lambda hand: hand["pose"].pop()), ""),
    (MANO, 17, of_left(lambda hand: hand["pose"].__setitem__(3, "x")), ""),
    (MANO, 17, of_right(lambda hand: hand["wrist_xform"].update(t_xyz=[float("nan")] * 3)), ""),
    (MANO, 17, of_right(lambda hand: hand["wrist_xform"].update(q_wxyz=[0] * 4)), ""),
    (MANO, 17, of_right(lambda hand: hand.pop("wrist_xform")), ""),
    (MANO, 17, lambda line: line["hand_poses"].update({"2": {}}), ""),
    (MANO, 17, lambda line: line.update(hand_poses=[]), ""),
    (MANO, 17, of_left(lambda hand: hand["betas"].__setitem__(0, 9.0)), ""),
    (MANO, 17, lambda line: line.pop("timestamp_ns"), ""),
    (MANO, 5, ("{", "["), "not a JSON object"),
    (HEADSET, 1, ("t_wo_x[m]", "t_wo_x"), r"wrong columns \(t_wo_x, t_wo_x\[m\]\)"),
    (HEADSET, 9, (",", ",,"), "10 values for 9 columns"),
    (HEADSET, 9, ("0.", "zero."), "pose: not an array of numbers"),
    (HEADSET, 9, ("567", "x567"), "the timestamp"),
    (BOXES, 3, ("214-1,1", "214-1,2"), "hand_index"),
    (CALIBRATION, 2, of_colour(lambda e: e["Projection"]["Params"].pop()), r"Params: .*\(14,\)"),
    (CALIBRATION, 2, of_colour(lambda e: e["Projection"].update(Name="Linear")), "'Linear'"),
    (CALIBRATION, 2, of_colour(lambda e: e.update(Label="camera-x")), "0 .* of 'camera-rgb'"),
    (CALIBRATION, 2,
     of_colour(lambda e: e["T_Device_Camera"].update(UnitQuaternion=[1, 2, 3])), "UnitQuaternion"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "number", "change", "named"), DAMAGE)
def test_a_damaged_line_is_named(copy, file, number, change, named):
    lines = (copy / file).read_text().splitlines()
    if callable(change):
        value = json.loads(lines[number - 1])
        change(value)
        lines[number - 1] = json.dumps(value)
    else:
        assert change[0] in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(*change, 1)
    (copy / file).write_text("\n".join(lines) + "\n")
    with pytest.raises(SchemaError, match=rf":{number}: .*{named}"):
        hot3d_files.read_mano(copy)
        hot3d_files.read_headset(copy)
        stream_poses(copy)


def test_moments_that_do_not_pair_up_are_paired_by_place(copy):
    path = copy / hot3d_files.CALIBRATION_FILE
    whole, _ = stream_poses(copy)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    poses, (note,) = stream_poses(copy)
    assert note.startswith("34 moments of stream 214-1 but 33 lines of calibration")
    assert poses.cameras[0] == whole.cameras[0] and poses.cameras[-1] == whole.cameras[-2]


def test_missing_file_and_unknown_stream(copy):
    with pytest.raises(InputError, match=r"214-2.*valid"):
        stream_poses(copy, "214-2")
    (copy / hot3d_files.MANO_FILE).unlink()
    with pytest.raises(InputError, match=hot3d_files.MANO_FILE):
        hot3d_files.read_mano(copy)
