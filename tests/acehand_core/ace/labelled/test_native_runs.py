"""Whole conversions that run into trouble: moved splits, bad recordings, inputs that change."""

import functools
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

from acehand_core import atomic
from acehand_core.ace.labelled.clips import store
from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.readers import run as native_run
from acehand_core.ace.labelled.readers.base import ReadOptions
from acehand_core.ace.labelled.readers.conventions import to_camera
from acehand_core.ace.labelled.readers.pictures import ClipOptions
from acehand_core.ace.labelled.readers.run import find_reader
from acehand_core.cli.main import main
from acehand_core.errors import InputError, OutputError, SchemaError
from helpers import native_samples
from helpers.native_samples import convert, every_clip, rewrite_tar

pytest.importorskip("smplx")
pytest.importorskip("torch")

MANO = "mano_hand_pose_trajectory.jsonl"
SUBJECTS = ("subject1_h1_0_cam4", "subject4_h1_0_cam4")


def clips_of(output):
    """Return split to the names of its clips, by folder and by index; they must agree."""
    out = {}
    for path in sorted(output.glob("*/store.json")):
        store = ClipStore(path.parent)
        index = json.loads((path.parent / "index.json").read_text())["clips"]
        assert sorted(index) == store.ids()
        out[path.parent.name] = store.ids()
    return out


def test_a_split_file_moves_clips_out_of_the_other_store(samples, tmp_path, capsys):
    """Else the same recording would be in train and in test."""
    root, output = samples("h2o"), tmp_path / "out"
    assert convert("h2o", root, output).changed_split == {}
    splits = tmp_path / "splits.json"
    splits.write_text(json.dumps({"test": list(SUBJECTS)}))
    report = convert("h2o", root, output, split_file=splits)
    assert clips_of(output) == {"train": [], "test": list(SUBJECTS)}
    assert report.to_json()["moved"] == [{"from": "train", "to": "test", "clips": 1}]
    stored = json.loads((output / "conversion-h2o.json").read_text())
    assert stored == {**report.to_json(), "output": "out"}
    # Also where the new split is not converted itself: a test recording may not stay in train.
    splits.write_text(json.dumps({"train": [SUBJECTS[0]], "val": [SUBJECTS[1]]}))
    report = convert("h2o", root, output, split_file=splits, splits=("train",))
    assert clips_of(output) == {"train": [SUBJECTS[0]], "test": []}
    assert report.changed_split == {("test", "train"): 1, ("test", "val"): 1}
    splits.write_text(json.dumps({"test": list(SUBJECTS)}))
    assert main(["data", "convert", "h2o", "--root", str(root), "--output", str(output), "--images",
                 "none", "--split-file", str(splits), "-q"]) == 0  # fmt: skip
    assert "removed from train: 1 " in capsys.readouterr().err


@pytest.mark.parametrize("stop", ["rename", "rmtree", "write"])
def test_a_move_that_is_stopped_leaves_one_whole_clip_or_none(samples, tmp_path, monkeypatch, stop):
    """Wherever it ends: never in both splits, and no index names a clip that is not there."""
    root, output = samples("h2o"), tmp_path / "out"
    convert("h2o", root, output)
    splits = tmp_path / "splits.json"
    splits.write_text(json.dumps({"test": [SUBJECTS[0]]}))

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stop == "rename":
            patch.setattr(store, "remove_folder", interrupted)
        elif stop == "rmtree":  # the folder is out of place already, its files are not gone
            patch.setattr(atomic.shutil, "rmtree", lambda p, **_: p.exists() and interrupted())
        else:
            patch.setattr("acehand_core.ace.labelled.readers.convert.hand_motion", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert("h2o", root, output, split_file=splits)
    found = {split: ClipStore(output / split).ids() for split in ("train", "test")}
    assert found["test"] == [SUBJECTS[1]]
    assert found["train"] == ([SUBJECTS[0]] if stop == "rename" else [])
    index = json.loads((output / "train" / "index.json").read_text())["clips"]
    assert index == {}
    convert("h2o", root, output, split_file=splits)
    assert clips_of(output) == {"train": [], "test": list(SUBJECTS)}


#: Dataset, file, and what changes when the file comes later than the first conversion.
LATER = [
    ("hoi4d", "intrin.npy", lambda clip: clip.info.camera is not None),
    ("freihand", "00000001.jpg", lambda clip: clip.frames is not None),
    ("rhd", "00001.png", lambda clip: clip.frames is not None),
    ("interhand", "truncation_ratio.json",
     lambda clip: not any("no truncation" in f for f in clip.info.source["findings"])),
    ("arctic", "box_grab_01/0", lambda clip: clip.frames is not None),
    ("h2o", "rgb", lambda clip: clip.frames is not None),
    ("oakink2", "104422070969", lambda clip: clip.frames is not None),
]  # fmt: skip
#: Dataset, what its first recording lacks, and the finding that this makes.
LACKING = [
    ("interhand", None, "1 pictures of the capture are in no segment of frame_list.txt."),
    ("h2o", "cam_pose/000003.txt", "1 of 5 frames have no file in cam_pose: no camera poses are"),
    ("hoi4d", "output.log", "no 3Dseg/output.log: no camera poses."),
]


@pytest.mark.parametrize(("name", "pattern", "finding"), LACKING)
def test_what_is_not_used_is_a_finding(samples, tmp_path, name, pattern, finding):
    root = samples(name)
    if pattern:
        sorted(root.rglob(pattern))[0].unlink()
    assert any(text.startswith(finding) for text in convert(name, root, tmp_path / "o").findings)


@pytest.mark.parametrize(("name", "pattern", "complete"), LATER, ids=[row[0] for row in LATER])
def test_what_was_added_since_is_converted(samples, tmp_path, name, pattern, complete):
    """Pictures and cameras are separate downloads: the same command must take them in."""
    root, output = samples(name), tmp_path / "out"
    path = sorted(root.rglob(pattern))[0]
    aside = path.rename(tmp_path / "aside")
    options = {"clips": ClipOptions(images="keep", width=64)}
    first = convert(name, root, output, **options)
    assert not first.errors and sum(first.clips.values()) > 0
    before = {clip.info.id: complete(clip) for clip in every_clip(output)}
    aside.rename(path)
    again = convert(name, root, output, **options)
    after = {clip.info.id: complete(clip) for clip in every_clip(output)}
    assert not all(before.values()) and all(after.values())
    changed = sum(before[key] != after[key] for key in after)
    assert 1 <= changed <= sum(again.clips.values()) - again.kept
    assert convert(name, root, output, **options).kept == len(after)


def test_a_changed_picture_costs_one_clip_and_a_replaced_camera_is_noticed(samples, tmp_path):
    hoi4d, output = samples("hoi4d"), tmp_path / "hoi4d-out"
    convert("hoi4d", hoi4d, output)
    (path,) = hoi4d.rglob("intrin.npy")
    np.save(path, np.load(path) * np.array([[1.1, 1, 1], [1, 1.1, 1], [1, 1, 1]]))
    convert("hoi4d", hoi4d, output)
    (clip,) = every_clip(output)
    assert clip.info.camera.fx == pytest.approx(110)
    root, output = samples("freihand"), tmp_path / "out"
    options = {"clips": ClipOptions(images="keep")}
    convert("freihand", root, output, **options)
    native_samples.write_image(root / "training" / "rgb" / "00000002.jpg", 7, (224, 224))
    report = convert("freihand", root, output, **options)
    assert sum(report.clips.values()) - report.kept == 1


@pytest.mark.parametrize("name", ["h2o", "hot3d"])
def test_a_recording_without_hands_keeps_its_hand_model(samples, mano_file, tmp_path, name):
    root = samples(name)
    if name == "h2o":
        empty = "subject4_h1_0_cam4"
        for path in (root / "subject4" / "h1" / "0" / "cam4").glob("hand_pose*/*.txt"):
            path.write_text(" ".join("0" for _ in path.read_text().split()))
    else:
        empty = "P0001_aaaaaaaa_214-1"
        for path in (root / "P0001_aaaaaaaa").glob("*_hand_pose_trajectory.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(x | {"hand_poses": {}}) + "\n" for x in lines))
    clips = ClipOptions(images="none", mano=mano_file)
    report = convert(name, root, tmp_path / "out", clips=clips)
    assert not report.errors
    found = {clip.info.source["recording"]: clip for clip in every_clip(tmp_path / "out")}
    assert len(found) == 2 and not found[empty].motion.observed.any()
    for clip in found.values():
        assert clip.info.hand_model == "mano"
        assert clip.info.left_shapedirs_fixed == (name == "hot3d")
    flags = found[empty].info.supervision
    assert flags.presence and not (flags.rotations or flags.joints or flags.translation)
    # Without MANO no clip has a hand model, this one neither.
    bare = tmp_path / "bare"
    convert(name, root, bare, clips=replace(clips, mano=None))
    assert {clip.info.hand_model for clip in every_clip(bare)} == {"none"}


def test_a_frame_of_a_hot3d_clip_without_a_camera_has_no_label(samples, tmp_path):
    root = samples("hot3d_clips")
    (path,) = root.rglob("*.tar")
    reader, options = find_reader("hot3d_clips"), ReadOptions()
    (item,) = reader.items(root, options)
    whole = reader.read(item, options)

    def read_without(end):
        rewrite_tar(path, lambda name, data: None if name.endswith(end) else data)
        return reader.read(item, options)

    native = read_without("000001.cameras.json")
    assert len(native.frames) == 3
    np.testing.assert_array_equal(native.timestamps_ns, whole.timestamps_ns)
    np.testing.assert_array_equal(native.present, [[True, True], [False, False], [True, True]])
    np.testing.assert_array_equal(native.unlabelled_presence[1], [0.5, 1])
    assert np.isnan(native.T_world_camera[1, :3]).all()
    np.testing.assert_array_equal(native.T_world_camera[[0, 2]], whole.T_world_camera[[0, 2]])
    assert any("1 of 3" in f and "cameras.json" in f for f in native.findings)
    # A label without a picture is left out where others have one; without any all are frames.
    native = read_without("000002.image_214-1.jpg")
    assert len(native.frames) == len(native.present) == 2 and native.left_out == 1
    assert any("1 of 3" in f and "picture" in f for f in native.findings)
    native = read_without(".jpg")
    assert native.frames is None and len(native.present) == 2 and native.left_out == 0
    with pytest.raises(SchemaError, match=r"\.cameras\.json"):
        read_without("cameras.json")


@pytest.mark.parametrize("labelled", [True, False])
def test_a_clip_of_hot3d_without_hands_is_a_mano_clip(samples, mano_file, tmp_path, labelled):
    """Unless it has no labels at all: then hands are unknown."""
    root = samples("hot3d_clips")
    (path,) = root.rglob("*.tar")

    def change(member, data):
        if member == "__hand_shapes.json__" or (member.endswith(".hands.json") and not labelled):
            return None
        return b"{}" if member.endswith(".hands.json") else data

    rewrite_tar(path, change)
    report = convert("hot3d_clips", root, tmp_path / "out",
                     clips=ClipOptions(images="none", mano=mano_file))  # fmt: skip
    assert any("no hands in" in finding for finding in report.findings) == labelled
    (clip,) = every_clip(tmp_path / "out")
    assert clip.info.hand_model == ("mano" if labelled else "none")
    assert clip.info.left_shapedirs_fixed == clip.info.supervision.presence == labelled
    assert not clip.motion.observed.any()


ARIA, QUEST = "P0001_aaaaaaaa", "P0002_bbbbbbbb"


def read_hot3d(root, device, **options):
    """One sequence as its reader gives it, without pictures."""
    reader, options = find_reader("hot3d"), ReadOptions(pictures=False, **options)
    (item,) = (item for item in reader.items(root, options) if device in item.name)
    return reader.read(item, options)


@pytest.mark.parametrize("device", [ARIA, QUEST])
def test_moments_of_hot3d_without_a_pose(samples, device):
    """Frame 1 has no headset pose, frame 2 no line of MANO: both stay as frames without a label."""
    root = samples("hot3d")
    whole = read_hot3d(root, device)
    each = 1 if device == QUEST else 2  # Aria stores every moment twice
    head, mano = (root / device / n for n in ("headset_trajectory.csv", MANO))
    lines = head.read_text().splitlines()
    head.write_text("\n".join(lines[: 1 + each] + lines[1 + 2 * each :]) + "\n")
    lines = mano.read_text().splitlines()
    mano.write_text("\n".join(lines[:-each]) + "\n")
    native = read_hot3d(root, device)
    np.testing.assert_array_equal(native.timestamps_ns, whole.timestamps_ns)
    np.testing.assert_array_equal(native.present, [[True, True], [False, False], [False, False]])
    np.testing.assert_array_equal(native.T_world_camera[[0, 2]], whole.T_world_camera[[0, 2]])
    assert np.isnan(native.T_world_camera[1, :3]).all()
    np.testing.assert_array_equal(native.mano.translation[0], whole.mano.translation[0])
    # The box file has a hand there anyway, but no left one in frame 1.
    np.testing.assert_allclose(native.visible, [[0.5, 0.75], [0, 0.75], [0.5, 0.75]])
    np.testing.assert_array_equal(native.unlabelled_presence[1:], [[0.5, 1], [1, 1]])
    assert native.left_out == 0
    for file in ("headset pose in headset_trajectory.csv", f"line in {MANO}"):
        assert any(f"1 of 3 frames have no {file}" in text for text in native.findings)
    # Conversion to the camera frame leaves them empty, and does not mention poses that are not.
    hands = to_camera(native.mano, None)
    assert np.isfinite(hands.global_orient[0]).all() and np.isnan(hands.global_orient[1:]).all()
    assert not any("rigid" in text for text in hands.findings)
    # Times of another clock are no gaps.
    mano.write_text("".join(line.replace('_ns": ', '_ns": 7') + "\n" for line in lines))
    with pytest.raises(InputError, match=f"{device}.*{MANO}: no line"):
        read_hot3d(root, device)


#: Mask that is False in frames 0 and 1 -> which hands (left, right) stay labelled in each frame.
#: By the dataset's README: a pose of both hands, of the headset, people's check, exposure of what
#: is seen, and whether any hand is seen. In frame 1 only the right hand has a pose.
MASKED = {
    "hand_pose_available": [[False, False], [False, True], [True, True]],
    "headset_pose_available": [[False, False], [False, False], [True, True]],
    "qa_pass": [[False, False], [False, False], [True, True]],
    "good_exposure": [[False, False], [False, False], [True, True]],
    "hand_visible": [[True, True], [False, True], [True, True]],
    "object_pose_available": [[True, True], [False, True], [True, True]],
    "object_visible": [[True, True], [False, True], [True, True]],
}


def put_mask(folder, name, good):
    """Write a mask of all streams: ``good`` has the value of each frame."""
    lines = (folder / "masks" / "mask_object_visible.csv").read_text().splitlines()
    streams = [line.split(",")[1] for line in lines[1:]]
    rows = [streams[:n].count(stream) for n, stream in enumerate(streams)]
    out = [
        line.rsplit(",", 1)[0] + f",{good[row]}" for line, row in zip(lines[1:], rows, strict=True)
    ]
    (folder / "masks" / f"mask_{name}.csv").write_text("\n".join([lines[0], *out]) + "\n")


@pytest.mark.parametrize("device", [ARIA, QUEST])
@pytest.mark.parametrize("name", MASKED)
def test_masks_of_hot3d_take_labels_away(samples, name, device):
    root = samples("hot3d")
    put_mask(root / device, name, [False, False, True])
    native = read_hot3d(root, device)
    np.testing.assert_array_equal(native.present, MASKED[name])
    assert len(native.timestamps_ns) == 3
    # A hand with a pose is there; of the left one in frame 1 nothing is known.
    unlabelled = ~native.present
    there = np.array([[1, 1], [0.5, 1], [1, 1]])
    np.testing.assert_array_equal(native.unlabelled_presence[unlabelled], there[unlabelled])
    if name == "hand_visible":  # then no box counts, and labels of hands out of sight stay
        np.testing.assert_allclose(native.visible, [[0, 0], [0, 0], [0.5, 0.75]])
    found = any(f"mask_{name}.csv" in f and "2 of 3" in f for f in native.findings)
    assert found == (not name.startswith("object"))
    lost = 5 - int(native.present.sum())
    counted = f"{lost} hands" in " ".join(native.findings)
    assert counted == (lost > 0)


def test_a_hand_out_of_the_picture_is_not_over_exposed(samples):
    """Exposure is that of what is seen: the label of a hand that is not stays."""
    root = samples("hot3d")
    folder = root / ARIA
    put_mask(folder, "good_exposure", [False, False, False])
    boxes = folder / "box2d_hands.csv"
    lines = boxes.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("214-1,1,"))
    lines[place] = ",".join(lines[place].split(",")[:3]) + ",,,,,0.0"
    boxes.write_text("\n".join(lines) + "\n")
    present = read_hot3d(root, ARIA).present
    np.testing.assert_array_equal(present, [[False, True], [False, False], [False, False]])


def test_a_mask_of_another_camera_does_not_count(samples):
    """Aria's two grey cameras have the same times: their rows differ in the stream alone."""
    root = samples("hot3d")
    path = root / ARIA / "masks" / "mask_good_exposure.csv"
    path.write_text(path.read_text().replace(",1201-2,True", ",1201-2,False"))
    for view, labelled in (("1201-1", 5), ("1201-2", 0)):
        assert read_hot3d(root, ARIA, view=view).present.sum() == labelled


def test_masks_with_gaps_or_nonsense(samples):
    root = samples("hot3d")
    path = root / QUEST / "masks" / "mask_good_exposure.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n")
    (path.parent / "mask_hand_visible.csv").unlink()
    native = read_hot3d(root, QUEST)
    assert native.present.sum() == 5
    findings = " ".join(native.findings)
    assert "mask_good_exposure.csv" in findings and "2 of 3 frames" in findings
    assert "hand_visible, qa_pass" in findings
    for row, message in ((lines[1].replace("True", "yes"), "'yes'; valid: True, False"),
                         (lines[1] + ",1", "4 values for 3 columns"),
                         ("x" + lines[1], "not a whole number")):  # fmt: skip
        path.write_text("\n".join([lines[0], row]) + "\n")
        with pytest.raises(SchemaError, match=rf"mask_good_exposure\.csv:2: .*{message}"):
            read_hot3d(root, QUEST)


def test_masks_reach_the_clip_and_a_changed_one_is_converted_anew(samples, tmp_path):
    """Without MANO there are no keypoints: ``visible`` is whether any hand is, kept as stored."""
    root, output = samples("hot3d"), tmp_path / "out"
    convert("hot3d", root, output, read=ReadOptions(pictures=False))
    put_mask(root / ARIA, "hand_visible", [True, True, False])
    assert convert("hot3d", root, output, read=ReadOptions(pictures=False)).kept == 1
    (clip,) = (one for one in every_clip(output) if ARIA in one.info.source["recording"])
    np.testing.assert_array_equal(clip.motion.visible, [[1, 1], [0, 1], [0, 0]])
    (folder,) = output.glob(f"*/clips/{clip.info.id}")
    stored = ClipStore(folder.parents[1]).extra(clip.info.id, "native")
    np.testing.assert_allclose(stored["visible"], [[0.5, 0.75], [0, 0.75], [0, 0]])
    np.testing.assert_array_equal(stored["mask_hand_visible"], [True, True, False])
    np.testing.assert_array_equal(stored["mask_hand_pose_available"], [True, False, True])


def test_splits_of_h2o_are_the_authors(tmp_path):
    """As its README lists them: by subject, and of subject 3 by scene."""
    scenes = ("h1", "h2", "k1", "k2", "o1", "o2")
    for subject, scene in itertools.product((1, 2, 3, 4), scenes):
        folder = tmp_path / f"subject{subject}" / scene / "0" / "cam4" / "hand_pose"
        folder.mkdir(parents=True)
    found = {item.name: item.split for item in find_reader("h2o").items(tmp_path, ReadOptions())}
    train = {(1, s) for s in scenes} | {(2, s) for s in scenes} | {(3, s) for s in scenes[:3]}
    assert found == {
        f"subject{subject}_{scene}_0_cam4":
        "train" if (subject, scene) in train else "val" if subject == 3 else "test"
        for subject, scene in itertools.product((1, 2, 3, 4), scenes)
    }  # fmt: skip


MALFORMED = {
    "arctic": [
        ("misc.json", ("s01", "ioi_offset"), None, "ioi_offset"),
        ("misc.json", ("s01", "image_size"), [], "image_size"),
        ("misc.json", ("s01", "image_size"), [["a", 2]], "image_size"),
        ("*.egocam.dist.npy", ("T_k_cam_np",), None, "T_k_cam_np"),
        ("*.mano.npy", ("left", "rot"), "x", "rot"),
        ("*.mano.npy", ("left", "shape"), None, "shape"),
        ("*.mano.npy", ("left", "shape"), [[1.0], [1.0, 2.0]], "shape"),
    ],
    "oakink2": [
        ("*.pkl", ("cam_def",), None, "cam_def"),
        ("*.pkl", ("frame_id_list",), "x", "frame_id_list"),
        ("*.pkl", ("cam_intr",), None, "cam_intr"),
        ("*00.pkl", ("cam_intr", "egocentric"), None, "cam_intr"),
        ("*.pkl", ("raw_mano",), [], "raw_mano"),
        ("*.pkl", ("raw_mano", 0), 3, r"raw_mano\[0\]"),
        ("*.pkl", ("raw_mano", 0, "rh__pose_coeffs"), [1.0], "pose_coeffs"),
    ],
    "hot3d": [
        ("metadata.json", (), [], "mapping"),
        ("camera_models.json", (), None, "list"),
        ("camera_models.json", (0,), 3, "stream_id"),
        ("camera_models.json", (0, "imageHeight"), "x", "imageHeight"),
    ],
    "hot3d_clips": [
        ("clip_definitions.json", (), [], "mapping"),
        ("clip_definitions.json", ("1",), None, " 1: a mapping"),
    ],
    "interhand": [
        ("000010.json", ("t", 0), [], " t:"),
        ("000010.json", ("focal", 0), [], "focal"),
        ("10_right.json", ("pose", 0), [], "pose"),
        ("truncation_ratio.json", (), [], "mapping"),
        ("truncation_ratio.json", ("000010",), "x", "000010"),
    ],
    "freihand": [
        ("training_K.json", (), {}, "numbers"),
        ("training_mano.json", (), None, "shape"),
        ("training_mano.json", (0, 0), [1.0], "numbers"),
    ],
    "hoi4d": [
        ("0.pickle", ("beta",), [[1.0], [1.0, 2.0]], "beta"),
        ("0.pickle", ("poseCoeff",), [[1.0], [1.0, 2.0]], "poseCoeff"),
    ],
}  # fmt: skip


def put(path, keys, new):
    """Put a value into a JSON or pickled file: at ``keys``, or as the whole content."""
    if path.suffix == ".json":
        value, write = json.loads(path.read_text()), lambda v: path.write_text(json.dumps(v))
    elif path.suffix == ".npy":
        value = np.load(path, allow_pickle=True).item()
        write = functools.partial(native_samples.save_object, path)
    else:
        value, write = pickle.loads(path.read_bytes()), lambda v: path.write_bytes(pickle.dumps(v))
    holder = {"all": value}
    *outer, last = "all", *keys
    functools.reduce(lambda inner, key: inner[key], outer, holder)[last] = new
    write(holder["all"])


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_named_with_their_field(samples, tmp_path, name):
    """Never a TypeError or the like from inside a reader."""
    root, options = samples(name), ReadOptions(pictures=False)
    reader = find_reader(name)
    for number, (pattern, keys, value, field) in enumerate(MALFORMED[name]):
        bad = shutil.copytree(root, tmp_path / str(number))  # another place: some files are cached
        path = sorted(bad.rglob(pattern))[0]
        put(path, keys, value)
        with pytest.raises(SchemaError, match=rf"(?s){re.escape(path.name)}.*{field}"):
            for item in reader.items(bad, options):
                reader.read(item, options)


def test_another_count_of_numbers_is_named(samples, tmp_path):
    root = samples("h2o")
    (root / "subject1/h1/0/cam4/hand_pose_mano/000003.txt").write_text("1 2 3")
    (error,) = convert("h2o", root, tmp_path / "out").errors
    assert error["source"] == SUBJECTS[0]
    assert "000003.txt" in error["message"] and "124" in error["message"]


def test_one_malformed_recording_of_arctic_does_not_stop_the_other(samples, tmp_path, capsys):
    """On the command line: reported, exit code 1, the report written."""
    root, output = samples("arctic"), tmp_path / "out"
    put(next(root.rglob("misc.json")), ("s01", "ioi_offset"), None)
    assert main(["data", "convert", "arctic", "--root", str(root), "--output", str(output),
                 "--images", "none", "--json", "-q"]) == 1  # fmt: skip
    printed = json.loads(capsys.readouterr().out)
    assert printed["splits"] == {
        "test": {"clips": 1, "frames": 9, "unlabelled_frames": 3, "left_out_frames": 48}
    }
    (error,) = printed["errors"]
    assert error["source"] == "s01_box_grab_01_view0" and "ioi_offset" in error["message"]
    stored = json.loads((output / "conversion-arctic.json").read_text())
    assert str(root) in error["message"] and "misc.json" in stored["errors"][0]["message"]
    assert str(tmp_path) not in json.dumps(stored)
    assert stored == {**printed, "output": "out", "errors": stored["errors"]}


@pytest.mark.parametrize("name", ["hot3d", "interhand"])
def test_a_recording_that_cannot_be_listed_does_not_hide_the_others(samples, tmp_path, name):
    """Its name or segments stand in a file of its own, which is broken."""
    root = samples(name)
    good = len(find_reader(name).items(root, ReadOptions()))
    if name == "hot3d":
        sorted(root.rglob("metadata.json"))[0].write_text("{")
    else:
        capture = next((root / "data").iterdir())
        other = shutil.copytree(capture, capture.with_name("m--1--2--ABC123--broken"))
        (other / "frame_list.txt").write_text("one\n")
        good += 1
    report = convert(name, root, tmp_path / "out", read=ReadOptions(pictures=False))
    assert len(report.errors) == 1 and sum(report.clips.values()) == good - 1
    file = "metadata.json" if name == "hot3d" else "frame_list.txt"
    assert file in report.errors[0]["message"]


def test_what_no_reader_foresaw_is_that_recordings_error(samples, tmp_path, monkeypatch):
    root = samples("h2o")
    reader = find_reader("h2o")
    real = type(reader).read

    def failing(kind):
        def read(self, item, options):
            if item.name == SUBJECTS[0]:
                raise kind("out of nowhere")
            return real(self, item, options)

        return read

    monkeypatch.setattr(type(reader), "read", failing(ZeroDivisionError))
    report = convert("h2o", root, tmp_path / "out")
    assert report.clips == {"test": 1}
    (error,) = report.errors
    assert error["source"] == SUBJECTS[0]
    assert "ZeroDivisionError: out of nowhere" in error["message"]
    for kind in (KeyboardInterrupt, OutputError):  # these end the run
        monkeypatch.setattr(type(reader), "read", failing(kind))
        with pytest.raises(kind):
            convert("h2o", root, tmp_path / "out")


@pytest.mark.parametrize(
    ("value", "error", "named"),
    [({"test": 3}, SchemaError, r"splits\.json"), ({"test": "abc"}, SchemaError, r"splits\.json"),
     ({"test": [1]}, SchemaError, r"splits\.json"), ([], SchemaError, r"splits\.json"),
     ({"val": ["subject9"]}, InputError, "subject9")],
)  # fmt: skip
def test_a_split_file_that_does_not_fit_is_refused(datasets, tmp_path, value, error, named):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(value))
    with pytest.raises(error, match=named):
        convert("h2o", datasets["h2o"][0], tmp_path / "out", split_file=path)


def _killed(item):
    """The process is ended, as by a system short of memory, once another clip is there."""
    options = native_run._here.options
    ready = f"*/clips/{SUBJECTS[0]}/clip.json"
    while item.name == SUBJECTS[1] and not list(options.output.glob(ready)):
        time.sleep(0.02)
    if item.name == SUBJECTS[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return native_run._convert_here(item)


def test_a_killed_process_is_reported_and_converted_clips_stay(samples, tmp_path, monkeypatch):
    root, output = samples("h2o"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(native_run, "_convert_here", _killed)
        with pytest.raises(OutputError, match=f"memory may be short.*{SUBJECTS[1]}"):
            convert("h2o", root, output, jobs=2)
    assert list(output.glob(f"*/clips/{SUBJECTS[0]}/clip.json"))
    report = convert("h2o", root, output)
    assert report.kept >= 1 and not report.errors
    assert {name for names in clips_of(output).values() for name in names} >= {*SUBJECTS}
