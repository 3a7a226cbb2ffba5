"""Importers on fabricated outputs: what was written in another convention is the hand it was."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from acehand_core.ace.evaluation.importing import METHODS, full_translation, import_predictions
from acehand_core.ace.evaluation.inputs import open_ground_truth
from acehand_core.ace.evaluation.protocol import HandLibrary
from acehand_core.ace.evaluation.run import Options, evaluate_predictions
from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.geometry import rotations
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.types import SIDES
from helpers.commands import Acehand
from helpers.evaluation_samples import CAMERA, motion_of

M = np.diag([-1.0, 1.0, 1.0])
FRAMES = 5


class FakeMano(CapsuleHand):
    """A hand whose left is exactly its mirrored right, standing in for the user's MANO."""

    name = "mano"


LIBRARY = HandLibrary(models={("mano", True): FakeMano(), ("mano", False): FakeMano()})


@pytest.fixture
def truth(tmp_path):
    """A segment of two moving, turning hands in a folder, and the motion."""
    rng = np.random.default_rng(1)
    at = rng.normal(0, 0.02, (FRAMES, 2, 3)) + np.array([[-0.1, 0, 0.6], [0.1, 0, 0.7]])
    betas = rng.normal(0, 0.5, (2, 10))
    turn = rotations.exp(rng.normal(0, 1, (FRAMES, 2, 3)))
    bend = rotations.exp(rng.normal(0, 0.3, (FRAMES, 2, 15, 3)))
    motion = motion_of(at, turn, bend, betas, model=FakeMano())
    motion = replace(motion, hand_model="mano", left_shapedirs_fixed=True)
    write_hand_motion(motion, tmp_path / "truth" / "seg.parquet")
    return motion


def imported(tmp_path, method, library=LIBRARY):
    """Import what is in raw; return the motion and the notes."""
    opened, out = open_ground_truth(tmp_path / "truth"), tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    report = import_predictions(method, tmp_path / "raw", opened, out, library)
    assert report["segments"] == 1
    return read_hand_motion(out / "seg.parquet"), " ".join(report["notes"])


def assert_same(found, truth, rows=slice(None), exact=1e-6):
    for name in ("global_orient", "hand_pose", "translation", "joints_camera"):
        assert np.allclose(getattr(found, name)[rows], getattr(truth, name)[rows], atol=exact), name


def crops(truth, camera=CAMERA):
    """What HaMeR's network would give for every hand, in its own conventions."""
    frame, slot = (a.ravel() for a in np.indices((FRAMES, 2)))
    left = slot == 0
    turn = truth.global_orient[frame, slot]
    bend = truth.hand_pose[frame, slot]
    x, y, z = truth.translation[frame, slot].T
    rng = np.random.default_rng(2)
    centre = rng.uniform(50, 200, (len(frame), 2))
    side = rng.uniform(60, 120, len(frame))
    scale = 2 * camera.fx / (side * z)
    tx = x - 2 * (centre[:, 0] - camera.cx) / (side * scale)
    ty = y - 2 * (centre[:, 1] - camera.cy) / (side * scale)
    out = {
        "frame": frame, "right": slot, "box_center": centre, "box_size": side,
        "pred_cam": np.stack([scale, np.where(left, -tx, tx), ty], axis=1),
        "global_orient": np.where(left[:, None, None], M @ turn @ M, turn)[:, None],
        "hand_pose": np.where(left[:, None, None, None], M @ bend @ M, bend),
        "betas": truth.betas[slot],
    }  # fmt: skip
    joints = [
        FakeMano().joints("right", t, b, beta)
        for t, b, beta in zip(out["global_orient"][:, 0], out["hand_pose"], out["betas"],
                              strict=True)
    ]  # fmt: skip
    return out, np.stack(joints)


def save(tmp_path, **entries):
    (tmp_path / "raw").mkdir(exist_ok=True)
    np.savez(tmp_path / "raw" / "seg.npz", **entries)


@pytest.mark.parametrize("method", ["hamer", "wilor", "hamba"])
def test_crops_of_both_hands(tmp_path, truth, method):
    """With the network's joints no MANO is needed; of two detections the surer stays."""
    entries, joints = crops(truth)
    save(tmp_path, **entries, pred_keypoints_3d=joints)
    found, _ = imported(tmp_path, method, HandLibrary(models={}))
    assert np.allclose(found.joints_camera, truth.joints_camera, atol=1e-7)
    twice = {name: np.concatenate([value, value]) for name, value in entries.items()}
    twice["pred_cam"][: len(entries["frame"]), 2] += 0.5
    save(tmp_path, **twice, score=np.repeat([0.4, 0.9], len(entries["frame"])))
    assert_same(imported(tmp_path, method)[0], truth, exact=1e-7)
    save(tmp_path, **entries)
    found, _ = imported(tmp_path, method)
    assert_same(found, truth, exact=1e-7)
    assert found.left_shapedirs_fixed and found.hand_model == "mano"
    assert found.provenance.tracker == method
    scores = evaluate_predictions(
        tmp_path / "out", open_ground_truth(tmp_path / "truth"), Options(library=LIBRARY)
    )
    assert scores["metrics"]["ct_p"] < 1e-6 and scores["metrics"]["facc"] == 1


def test_hands_that_were_not_found_are_absent(tmp_path, truth):
    entries, _ = crops(truth)
    some = entries["frame"] != 2
    save(tmp_path, **{name: value[some] for name, value in entries.items()})
    found, _ = imported(tmp_path, "hamer")
    assert not found.presence[2].any() and np.isnan(found.joints_camera[2]).all()
    save(tmp_path, **{name: value[:0] for name, value in entries.items()})
    assert not imported(tmp_path, "hamer")[0].presence.any()


def test_the_depth_of_a_crop_by_hand():
    """A crop of 100 px at scale 2, focal length 300 px: 2 * 300 / 200 = 3 m."""
    centre = np.array([[CAMERA.cx + 50, CAMERA.cy]])
    cam, side = np.array([[2.0, 0.1, -0.2]]), np.array([100.0])
    right = full_translation(cam, centre, side, np.ones(1, int), CAMERA)
    left = full_translation(cam, centre, side, np.zeros(1, int), CAMERA)
    assert np.allclose(right, [[0.1 + 0.5, -0.2, 3.0]])
    assert np.allclose(left, [[-0.1 + 0.5, -0.2, 3.0]])


def test_hawor_chunks(tmp_path, truth):
    """Frames 0 to 2 and 4 of the left hand, all of the right; frame 3 was lost."""
    for slot, spans in ((0, [(0, 2), (4, 4)]), (1, [(0, 4)])):
        folder = tmp_path / "raw" / "seg" / "cam_space" / str(slot)
        folder.mkdir(parents=True)
        for first, last in spans:
            rows = slice(first, last + 1)
            chunk = {
                "init_root_orient": truth.global_orient[rows, slot][None].tolist(),
                "init_hand_pose": truth.hand_pose[rows, slot][None].tolist(),
                "init_trans": truth.translation[rows, slot][None].tolist(),
                "init_betas": [[truth.betas[slot].tolist()] * (last - first + 1)],
            }
            (folder / f"{first}_{last}.json").write_text(json.dumps(chunk))
    (tmp_path / "raw" / "seg" / "est_focal.txt").write_text("600.0")
    found, notes = imported(tmp_path, "hawor")
    assert_same(found, truth, rows=[0, 1, 2, 4])
    assert found.presence[3].tolist() == [0, 1]
    assert "600" in " ".join(found.provenance.notes) and "ends" not in notes
    (folder / "0_4.json").unlink()
    (folder.parent / "0" / "4_4.json").unlink()
    assert "ends 2 frames before" in imported(tmp_path, "hawor")[1]
    (folder / "0_9.json").write_text(json.dumps(chunk))
    with pytest.raises(SchemaError, match=r"0_9\.json: 'init_root_orient'"):
        imported(tmp_path, "hawor")


def dynhamr(truth, seed=3):
    """The hands as Dyn-HaMR stores them: in a world, left ones in its mirror image."""
    rng = np.random.default_rng(seed)
    R = rotations.exp(rng.normal(0, 0.5, (FRAMES, 3)))
    t = rng.normal(0, 1, (FRAMES, 3))
    out = {name: [] for name in ("trans", "root_orient", "pose_body", "betas", "is_right")}
    for slot, side in enumerate(SIDES):
        world = (truth.joints_camera[:, slot] - t[:, None]) @ R
        turn = np.swapaxes(R, 1, 2) @ truth.global_orient[:, slot]
        rest = FakeMano().rest_keypoints(side, truth.betas[slot])[0]
        trans, bend = world[:, 0] - rest, truth.hand_pose[:, slot]
        if side == "left":
            turn, bend, trans = M @ turn @ M, M @ bend @ M, trans @ M
        out["trans"].append(trans)
        out["root_orient"].append(rotations.log(turn))
        out["pose_body"].append(rotations.log(bend).reshape(FRAMES, 45))
        out["betas"].append(truth.betas[slot])
        out["is_right"].append(np.full(FRAMES, slot))
    arrays = {name: np.stack(values) for name, values in out.items()}
    return arrays | {"cam_R": np.stack([R, R]), "cam_t": np.stack([t, t])}


def test_dynhamr_world_to_camera(tmp_path, truth):
    folder = tmp_path / "raw" / "seg" / "smooth_fit"
    folder.mkdir(parents=True)
    early = dynhamr(truth)
    early["trans"] = early["trans"] + 1
    np.savez(folder / "seg_000010_world_results.npz", **early)
    np.savez(folder / "seg_000060_world_results.npz", **dynhamr(truth))
    assert_same(imported(tmp_path, "dynhamr")[0], truth)
    other = tmp_path / "raw" / "seg" / "prior"
    other.mkdir()
    np.savez(other / "seg_000200_world_results.npz", **early)
    with pytest.raises(SchemaError, match="several stages"):
        imported(tmp_path, "dynhamr")
    early["cam_t"][1] += 1
    save(tmp_path, **early)
    with pytest.raises(SchemaError, match="cam_t"):
        imported(tmp_path, "dynhamr")


def generic(truth):
    return {
        "global_orient": rotations.log(truth.global_orient), "transl": truth.translation,
        "hand_pose": rotations.log(truth.hand_pose).reshape(FRAMES, 2, 45), "betas": truth.betas,
        "flat_hand_mean": True, "left": "true", "left_shapedirs_fixed": True,
        "translation": "mano", "unit": "m",
    }  # fmt: skip


def test_generic_parameters_and_wrists_in_millimetres_in_the_mirror(tmp_path, truth):
    """Every convention turned over at once, in another frame."""
    save(tmp_path, **generic(truth))
    assert_same(imported(tmp_path, "generic")[0], truth)
    R = rotations.exp(np.array([0.2, -1.0, 0.4]))
    t = np.array([0.3, 0.1, -0.2])
    T = np.tile(np.block([[R, t[:, None]], [np.zeros((1, 3)), np.ones((1, 1))]]), (FRAMES, 1, 1))
    wrist = (truth.joints_camera[:, :, 0] - t) @ R
    turn = R.T @ truth.global_orient
    bend = truth.hand_pose.copy()
    turn[:, 0], bend[:, 0], wrist[:, 0] = M @ turn[:, 0] @ M, M @ bend[:, 0] @ M, wrist[:, 0] @ M
    entries = generic(truth) | {
        "global_orient": turn, "hand_pose": bend, "transl": 1e3 * wrist, "left": "mirrored",
        "translation": "wrist", "unit": "mm", "T_camera_world": T,
    }  # fmt: skip
    save(tmp_path, **entries)
    assert_same(imported(tmp_path, "mint")[0], truth)


def test_joints_are_of_each_frames_own_shape(tmp_path, truth):
    betas = truth.betas + 0.5 * (np.arange(FRAMES) == 4)[:, None, None]  # mean and median differ
    save(tmp_path, **generic(truth) | {"betas": betas})
    found, _ = imported(tmp_path, "generic")
    assert np.allclose(found.betas, truth.betas + 0.1)
    for slot, side in enumerate(SIDES):
        turns = truth.global_orient[:, slot], truth.hand_pose[:, slot]
        joints = FakeMano().joints(side, *turns, betas[:, slot]) + truth.translation[:, slot, None]
        assert np.allclose(found.joints_camera[:, slot], joints, atol=1e-6)


@pytest.mark.parametrize("count", [FRAMES - 1, FRAMES + 2])
def test_another_number_of_frames_is_refused(tmp_path, truth, count):
    """Rows without frame numbers would else be scored against other frames than their own."""
    rows = np.arange(count) % FRAMES
    dense = ("global_orient", "transl", "hand_pose")
    entries = {k: v[rows] if k in dense else v for k, v in generic(truth).items()}
    joints = truth.joints_camera[rows].copy()
    joints[FRAMES:] = np.nan
    tracks = {
        name: value if name == "betas" else value[:, rows] for name, value in dynhamr(truth).items()
    }
    for method, field, saved in (
        ("generic", "global_orient", entries),
        ("vidihand", "joints", {"joints": joints, "unit": "m", "joint_order": "openpose"}),
        ("dynhamr", "root_orient", tracks),
    ):
        save(tmp_path, **saved)
        message = rf"seg\.npz: '{field}' has {count} frames; the segment has {FRAMES}"
        with pytest.raises(SchemaError, match=message):
            imported(tmp_path, method)


def test_generic_adds_the_mean_pose_of_mano(tmp_path, truth, golden_folder):
    pytest.importorskip("smplx")
    library = HandLibrary(golden_folder / "mano_synthetic.npz")
    mano = library.get("mano", True)
    stored = generic(truth) | {"flat_hand_mean": False}
    means = np.stack([mano.arrays[side].hands_mean for side in SIDES])
    stored["hand_pose"] = stored["hand_pose"] - means
    save(tmp_path, **stored)
    found, _ = imported(tmp_path, "vidihand", library)
    assert np.allclose(found.hand_pose, truth.hand_pose, atol=1e-6)
    # InterWild's conventions are known: its file may leave them out.
    for name in ("flat_hand_mean", "left", "left_shapedirs_fixed"):
        del stored[name]
    save(tmp_path, **stored)
    found, _ = imported(tmp_path, "interwild", library)
    assert np.allclose(found.hand_pose, truth.hand_pose, atol=1e-6)


@pytest.mark.parametrize("order", ["openpose", "mano"])
def test_generic_joints(tmp_path, truth, order):
    joints = truth.joints_camera.copy()
    if order == "mano":
        # Wrist, index, middle, pinky, ring, thumb, three each, then the tips thumb to pinky.
        tree = [0, 5, 6, 7, 9, 10, 11, 17, 18, 19, 13, 14, 15, 1, 2, 3, 4, 8, 12, 16, 20]
        joints = joints[:, :, tree]
    joints[2, 0] = np.nan
    save(tmp_path, joints=joints, unit="m", joint_order=order)
    found, _ = imported(tmp_path, "egoforce")
    assert found.hand_model == "none" and found.presence[2].tolist() == [0, 1]
    seen = found.presence > 0
    assert np.allclose(found.joints_camera[seen], truth.joints_camera[seen])
    assert np.isnan(found.global_orient).all() and np.isnan(found.translation).all()


REFUSED = [
    ("wildhands", {"unit": "foot"}, "'unit' is 'foot'"),
    ("wildhands", {"unit": None}, "'unit'"),
    ("wildhands", {"left": None}, "'left'"),
    ("wildhands", {"betas": np.zeros(9)}, "'betas' has shape"),
    ("wildhands", {"transl": None}, "'transl' is missing"),
    ("wildhands", {"translation": "root"}, "'translation' is"),
    ("wildhands", {"global_orient": np.full((FRAMES, 2, 3, 3), 2.0)}, "not rotations"),
    ("egoforce", {"joints": np.zeros((FRAMES, 2, 16, 3)), "joint_order": "mano16"}, "mano16"),
    ("hamer", {"frame": np.arange(10) + 1}, "'frame'"),
    ("hamer", {"right": np.full(10, 0.5)}, "0 or 1"),
    ("hamer", {"box_size": np.ones(9)}, "'box_size' has shape"),
    ("hamer", {"betas": np.full((10, 10), np.nan)}, "'betas'"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "change", "named"), REFUSED)
def test_files_that_are_refused(tmp_path, truth, method, change, named):
    good = crops(truth)[0] if method == "hamer" else generic(truth)
    save(tmp_path, **{name: v for name, v in (good | change).items() if v is not None})
    with pytest.raises(SchemaError, match=named):
        imported(tmp_path, method)
    np.savez(tmp_path / "raw" / "seg.npz", frame=np.array([object()], dtype=object))
    with pytest.raises(UnsafeFileError):
        imported(tmp_path, "hamer")
    (tmp_path / "raw" / "seg.npz").unlink()
    with pytest.raises(InputError, match=r"seg\.npz"):
        imported(tmp_path, "hamer")


def test_an_import_that_fails_leaves_nothing_behind(tmp_path, truth, monkeypatch):
    """A later segment is bad, or writing stops: the same command works once that is mended."""
    write_hand_motion(truth, tmp_path / "truth" / "tail.parquet")
    joints = {"joints": truth.joints_camera, "unit": "m", "joint_order": "openpose"}
    save(tmp_path, **joints)
    out = tmp_path / "out"

    def run():
        opened = open_ground_truth(tmp_path / "truth")
        return import_predictions("generic", tmp_path / "raw", opened, out, LIBRARY)

    with pytest.raises(InputError, match="tail"):
        run()
    assert not out.exists()
    np.savez(tmp_path / "raw" / "tail.npz", **joints)
    calls = []

    def stopping(motion, path, overwrite):
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write_hand_motion(motion, path, overwrite)

    with monkeypatch.context() as patch:
        patch.setattr("acehand_core.ace.evaluation.importing.write_hand_motion", stopping)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert len(calls) == 2 and not list(out.iterdir())
    assert run()["segments"] == 2 and len(list(out.iterdir())) == 2


def test_every_method_of_the_paper_has_an_importer():
    named = {"hamer", "wilor", "hawor", "dynhamr", "hamba", "interwild", "wildhands", "omnihands",
             "egoforce", "vidihand", "mint", "generic"}  # fmt: skip
    assert set(METHODS) == named


def test_import_on_the_command_line(capsys, tmp_path, truth):
    save(tmp_path, joints=truth.joints_camera, unit="m", joint_order="openpose")
    words = ["evaluate", "--predictions", tmp_path / "raw", "--ground-truth", tmp_path / "truth",
             "--keep", tmp_path / "out", "--method"]  # fmt: skip
    run = Acehand(capsys, *words, "egoforce")
    # Kept before they are scored, which this ground truth needs MANO for.
    assert "1 predictions" in run.err and "MANO is needed" in run.err
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert Acehand(capsys, *words, "egoforce").code == 4  # it exists
    assert "1 predictions" in Acehand(capsys, *words, "egoforce", "--overwrite").err
    run = Acehand(capsys, *words, "egoforse")
    assert run.code == 2 and "Did you mean 'egoforce'" in run.err
    run = Acehand(capsys, "evaluate", "--tracker", "do-nothing", *words[3:], "egoforce")
    assert run.code == 2 and "--method is for --predictions" in run.err
