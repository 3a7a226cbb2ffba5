"""Whole conversions that run into trouble: moved splits, bad recordings, inputs that change."""

import io
import json
import os
import pickle
import re
import shutil
import signal
import tarfile
import time
from dataclasses import replace

import native_samples
import numpy as np
import pytest

from acehand_core import atomic
from acehand_core.data.clips import store
from acehand_core.data.clips.store import ClipStore
from acehand_core.data.native import run as native_run
from acehand_core.data.native.clip_pictures import ClipOptions
from acehand_core.data.native.protocol import ReadOptions
from acehand_core.data.native.registry import find_reader
from acehand_core.data.native.run import RunOptions, run
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.evaluation.ground_truth import open_ground_truth
from acehand_core.evaluation.models import HandLibrary
from acehand_core.evaluation.run import Options, evaluate_predictions
from acehand_core.export.table import write_hand_motion

pytest.importorskip("smplx")
pytest.importorskip("torch")

MANO = "mano_hand_pose_trajectory.jsonl"
SUBJECTS = ("subject1_h1_0_cam4", "subject4_h1_0_cam4")


@pytest.fixture(scope="module")
def samples(mano_file, tmp_path_factory):
    """Returns a fresh copy of a dataset; each is written once."""
    hands, folder = native_samples.Hands(mano_file), tmp_path_factory.mktemp("samples")

    def copy(name, target):
        source = folder / name
        if not source.is_dir():
            source.mkdir()
            native_samples.WRITERS[name](source, hands)
        return shutil.copytree(source, target / name)

    return copy


def convert(name, root, output, **changes):
    """Convert without pictures and return the report."""
    options = RunOptions(root, output, clips=ClipOptions(images="none"))
    return run(name, replace(options, **changes), lambda *step: None)


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
    root, output = samples("h2o", tmp_path), tmp_path / "out"
    assert convert("h2o", root, output).moved == {}
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
    assert report.moved == {("test", "train"): 1, ("test", "val"): 1}
    from acehand_core.cli.main import main

    splits.write_text(json.dumps({"test": list(SUBJECTS)}))
    assert main(["data", "convert", "h2o", "--root", str(root), "--output", str(output), "--images",
                 "none", "--split-file", str(splits), "-q"]) == 0  # fmt: skip
    assert "removed from train: 1 clips that belong to test" in capsys.readouterr().err


@pytest.mark.parametrize("stop", ["rename", "rmtree", "write"])
def test_a_move_that_is_stopped_leaves_one_whole_clip_or_none(samples, tmp_path, monkeypatch, stop):
    """Wherever it ends: never in both splits, and no index names a clip that is not there."""
    root, output = samples("h2o", tmp_path), tmp_path / "out"
    convert("h2o", root, output)
    splits = tmp_path / "splits.json"
    splits.write_text(json.dumps({"test": [SUBJECTS[0]]}))

    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stop == "rename":
            patch.setattr(store, "remove_folder", interrupted)
        elif stop == "rmtree":  # the folder is out of place already, its files are not gone
            real = shutil.rmtree
            patch.setattr(
                atomic.shutil,
                "rmtree",
                lambda p, **named: interrupted() if p.exists() else real(p, **named),
            )
        else:
            patch.setattr("acehand_core.data.native.convert.hand_motion", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert("h2o", root, output, split_file=splits)
    found = {split: ClipStore(output / split).ids() for split in ("train", "test")}
    assert found["test"] == [SUBJECTS[1]]
    assert found["train"] == ([SUBJECTS[0]] if stop == "rename" else [])
    index = json.loads((output / "train" / "index.json").read_text())["clips"]
    assert index == {}
    convert("h2o", root, output, split_file=splits)
    assert clips_of(output) == {"train": [], "test": list(SUBJECTS)}


def edit(path, change):
    """Put ``change`` into a JSON or pickled file: a replacement by keys, or the whole content."""
    if path.suffix == ".json":
        value = json.loads(path.read_text())
    elif path.suffix == ".npy":
        value = np.load(path, allow_pickle=True).item()
    else:
        value = pickle.loads(path.read_bytes())
    keys, new = change
    inner = value
    for key in keys[:-1]:
        inner = inner[key]
    if keys:
        inner[keys[-1]] = new
    else:
        value = new
    if path.suffix == ".json":
        path.write_text(json.dumps(value))
    elif path.suffix == ".npy":
        np.save(path, np.array(value, dtype=object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(value))


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


@pytest.mark.parametrize(("name", "pattern", "complete"), LATER, ids=[row[0] for row in LATER])
def test_what_was_added_since_is_converted(samples, tmp_path, name, pattern, complete):
    """Pictures and cameras are separate downloads: the same command must take them in."""
    root, output = samples(name, tmp_path), tmp_path / "out"
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


def every_clip(output):
    stores = [ClipStore(path.parent) for path in sorted(output.glob("*/store.json"))]
    return [store.open(key) for store in stores for key in store.ids()]


def test_one_added_picture_costs_one_clip(samples, tmp_path):
    """Of an image dataset the other clips are kept; a changed picture counts too."""
    root, output = samples("freihand", tmp_path), tmp_path / "out"
    options = {"clips": ClipOptions(images="keep")}
    convert("freihand", root, output, **options)
    native_samples.write_image(root / "training" / "rgb" / "00000002.jpg", 7, (224, 224))
    report = convert("freihand", root, output, **options)
    assert sum(report.clips.values()) - report.kept == 1


def test_a_replaced_camera_of_hoi4d_is_noticed(samples, tmp_path):
    root, output = samples("hoi4d", tmp_path), tmp_path / "out"
    convert("hoi4d", root, output)
    (path,) = root.rglob("intrin.npy")
    np.save(path, np.load(path) * np.array([[1.1, 1, 1], [1, 1.1, 1], [1, 1, 1]]))
    convert("hoi4d", root, output)
    (clip,) = every_clip(output)
    assert clip.info.camera.fx == pytest.approx(110)


def hide_hands(root, name):
    """Take every hand out of one recording; return its name."""
    if name == "h2o":
        for path in (root / "subject4" / "h1" / "0" / "cam4").glob("hand_pose*/*.txt"):
            path.write_text(" ".join("0" for _ in path.read_text().split()))
        return "subject4_h1_0_cam4"
    folder = root / "P0001_aaaaaaaa"
    for file in ("mano", "umetrack"):
        path = folder / f"{file}_hand_pose_trajectory.jsonl"
        lines = [json.loads(line) | {"hand_poses": {}} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "P0001_aaaaaaaa_214-1"


@pytest.mark.parametrize("name", ["h2o", "hot3d"])
def test_a_recording_without_hands_keeps_its_hand_model(samples, mano_file, tmp_path, name):
    root = samples(name, tmp_path)
    empty = hide_hands(root, name)
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


@pytest.mark.parametrize("labelled", [True, False])
def test_a_clip_of_hot3d_without_hands_is_a_mano_clip(samples, mano_file, tmp_path, labelled):
    """Unless it has no labels at all: then nobody knows whether there are hands."""
    root = samples("hot3d_clips", tmp_path)
    (path,) = root.rglob("*.tar")
    with tarfile.open(path) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}
    with tarfile.open(path, "w") as archive:
        for member, data in members.items():
            if member.endswith(".hands.json"):
                data = b"{}"
            left_out = member.endswith(".hands.json") and not labelled
            if member != "__hand_shapes.json__" and not left_out:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    report = convert("hot3d_clips", root, tmp_path / "out",
                     clips=ClipOptions(images="none", mano=mano_file))  # fmt: skip
    assert ("no hands in this clip." in report.findings) == labelled
    (clip,) = every_clip(tmp_path / "out")
    assert clip.info.hand_model == ("mano" if labelled else "none")
    assert clip.info.left_shapedirs_fixed == clip.info.supervision.presence == labelled
    assert not clip.motion.observed.any()


def test_empty_recordings_count_in_scores(samples, mano_file, tmp_path):
    """Frames without hands are right where nothing is found, and a hand there is spurious."""
    root = samples("h2o", tmp_path)
    hide_hands(root, "h2o")
    splits = tmp_path / "splits.json"
    splits.write_text(json.dumps({"test": list(SUBJECTS)}))
    convert("h2o", root, tmp_path / "out", split_file=splits,
            clips=ClipOptions(images="none", mano=mano_file))  # fmt: skip
    truth = open_ground_truth(tmp_path / "out" / "test", length=5)
    options = Options(library=HandLibrary(mano_file))
    shown, empty = (truth.truth(segment) for segment in truth.segments)
    for name, guesses in (("right", (shown, empty)), ("spurious", (shown, shown))):
        for segment, guess in zip(truth.segments, guesses, strict=True):
            guess = replace(guess, timestamps_ns=truth.truth(segment).timestamps_ns)
            write_hand_motion(guess, tmp_path / name / f"{segment}.parquet")
    result = evaluate_predictions(tmp_path / "right", truth, options)
    assert result["hand_model"] == "mano" and result["metrics"]["facc"] == 1
    assert result["counts"]["frames"] == 10
    result = evaluate_predictions(tmp_path / "spurious", truth, options)
    # Nine hands are shown, one frame lacks the left: all of them are spurious in the empty clip.
    assert result["counts"]["fp"] == 9 and result["metrics"]["facc"] == 0.5
    assert result["metrics"]["recall"] == 1 and result["metrics"]["f1"] == pytest.approx(18 / 27)


@pytest.mark.parametrize("device", ["P0001_aaaaaaaa", "P0002_bbbbbbbb"])
def test_moments_of_hot3d_without_a_pose(samples, tmp_path, device):
    """Frame 1 has no headset pose, frame 2 no line of MANO: one is left out, one has no label."""
    root, quest = samples("hot3d", tmp_path), device.startswith("P0002")
    reader, options = find_reader("hot3d"), ReadOptions(pictures=False)
    (item,) = (i for i in reader.items(root, options) if device in i.name)
    whole = reader.read(item, options)
    each = 1 if quest else 2  # Aria stores every moment twice
    head, mano = (root / device / n for n in ("headset_trajectory.csv", MANO))
    lines = head.read_text().splitlines()
    head.write_text("\n".join(lines[: 1 + each] + lines[1 + 2 * each :]) + "\n")
    lines = mano.read_text().splitlines()
    mano.write_text("\n".join(lines[:-each]) + "\n")
    native = reader.read(item, options)
    np.testing.assert_array_equal(native.timestamps_ns, whole.timestamps_ns[[0, 2]])
    np.testing.assert_array_equal(native.present, [[True, True], [False, False]])
    np.testing.assert_array_equal(native.T_world_camera, whole.T_world_camera[[0, 2]])
    np.testing.assert_array_equal(native.mano.translation[0], whole.mano.translation[0])
    np.testing.assert_allclose(native.visible, [[0.5, 0.75], [0.5, 0.75]])
    np.testing.assert_array_equal(native.unposed, [[0, 0], [1, 1]])  # both are seen all the same
    assert "1 of 3 frames have no headset pose in headset_trajectory.csv and are left out." in (
        native.findings
    )
    assert any(f"1 of 2 frames have no line in {MANO}" in text for text in native.findings)
    # Times of another clock are no gaps.
    shifted = [json.loads(line) for line in lines]
    mano.write_text(
        "".join(json.dumps(v | {"timestamp_ns": v["timestamp_ns"] + 7}) + "\n" for v in shifted)
    )
    with pytest.raises(InputError, match=f"{device}.*{MANO}: no line at the time of any frame"):
        reader.read(item, options)


def test_missing_camera_poses_are_said(samples, tmp_path):
    """H2O and HOI4D have them for all frames of a recording or not at all."""
    h2o, hoi4d = samples("h2o", tmp_path), samples("hoi4d", tmp_path)
    (h2o / "subject1" / "h1" / "0" / "cam4" / "cam_pose" / "000003.txt").unlink()
    report = convert("h2o", h2o, tmp_path / "a")
    assert report.findings["1 of 5 frames have no file in cam_pose: no camera poses are used."] == 1
    for file in hoi4d.rglob("output.log"):
        file.unlink()
    report = convert("hoi4d", hoi4d, tmp_path / "b")
    assert report.findings["no 3Dseg/output.log: no camera poses."] == 1


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
        ("*.pkl", ("frame_id_list",), None, "frame_id_list"),
        ("*.pkl", ("frame_id_list",), "x", "frame_id_list"),
        ("*.pkl", ("cam_intr",), None, "cam_intr"),
        ("*00.pkl", ("cam_intr", "egocentric"), None, "cam_intr"),
        ("*.pkl", ("raw_mano",), [], "raw_mano"),
        ("*.pkl", ("raw_mano", 0), 3, r"raw_mano\[0\]"),
        ("*.pkl", ("raw_mano", 0, "rh__pose_coeffs"), [1.0], "pose_coeffs"),
    ],
    "hot3d": [
        ("metadata.json", (), None, "mapping"),
        ("metadata.json", (), [], "mapping"),
        ("camera_models.json", (), None, "list"),
        ("camera_models.json", (0,), 3, "stream_id"),
        ("camera_models.json", (0, "imageWidth"), None, "imageWidth"),
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
        ("truncation_ratio.json", ("000010",), None, "000010"),
    ],
    "freihand": [
        ("training_K.json", (), {}, "numbers"),
        ("training_mano.json", (), "a", "numbers"),
        ("training_mano.json", (), None, "shape"),
        ("training_mano.json", (0, 0), [1.0], "numbers"),
    ],
    "hoi4d": [
        ("0.pickle", ("beta",), [[1.0], [1.0, 2.0]], "beta"),
        ("0.pickle", ("poseCoeff",), [[1.0], [1.0, 2.0]], "poseCoeff"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_named_with_their_field(samples, tmp_path, name):
    """Never a TypeError or the like from inside a reader."""
    root, options = samples(name, tmp_path), ReadOptions(pictures=False)
    reader = find_reader(name)
    for number, (pattern, keys, value, field) in enumerate(MALFORMED[name]):
        bad = shutil.copytree(root, tmp_path / str(number))  # another place: some files are cached
        path = sorted(bad.rglob(pattern))[0]
        edit(path, (keys, value))
        with pytest.raises(SchemaError, match=rf"(?s){re.escape(path.name)}.*{field}"):
            for item in reader.items(bad, options):
                reader.read(item, options)


def test_one_malformed_recording_of_arctic_does_not_stop_the_other(samples, tmp_path, capsys):
    """On the command line: reported, exit code 1, the report written."""
    from acehand_core.cli.main import main

    root, output = samples("arctic", tmp_path), tmp_path / "out"
    edit(next(root.rglob("misc.json")), (("s01", "ioi_offset"), None))
    assert main(["data", "convert", "arctic", "--root", str(root), "--output", str(output),
                 "--images", "none", "--json", "-q"]) == 1  # fmt: skip
    printed = json.loads(capsys.readouterr().out)
    assert printed["splits"] == {"test": {"clips": 1, "frames": 6}}
    (error,) = printed["errors"]
    assert error["source"] == "s01_box_grab_01_view0" and "ioi_offset" in error["message"]
    stored = json.loads((output / "conversion-arctic.json").read_text())
    assert str(root) in error["message"] and "misc.json" in stored["errors"][0]["message"]
    assert str(tmp_path) not in json.dumps(stored)
    assert stored == {**printed, "output": "out", "errors": stored["errors"]}


@pytest.mark.parametrize("name", ["hot3d", "interhand"])
def test_a_recording_that_cannot_be_listed_does_not_hide_the_others(samples, tmp_path, name):
    """Its name or segments stand in a file of its own, which is broken."""
    root = samples(name, tmp_path)
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
    root = samples("h2o", tmp_path)
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


@pytest.mark.parametrize("value", [{"test": 3}, {"test": "abc"}, {"test": [1]}, []])
def test_a_malformed_split_file_is_refused(samples, tmp_path, value):
    path = tmp_path / "splits.json"
    path.write_text(json.dumps(value))
    with pytest.raises(SchemaError, match=r"splits\.json"):
        convert("h2o", samples("h2o", tmp_path), tmp_path / "out", split_file=path)


def _killed(reader, item, options):
    """The process is ended, as by a system short of memory, once another clip is there."""
    while item.name == SUBJECTS[1] and not list(options.output.glob("*/clips/*/clip.json")):
        time.sleep(0.02)
    if item.name == SUBJECTS[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    return native_run._convert(reader, item, options)


def test_a_killed_process_is_said_and_converted_clips_stay(samples, tmp_path, monkeypatch):
    root, output = samples("h2o", tmp_path), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(native_run, "_convert", _killed)
        with pytest.raises(OutputError, match=f"memory may be short.*{SUBJECTS[1]}"):
            convert("h2o", root, output, jobs=2)
    assert list(output.glob(f"*/clips/{SUBJECTS[0]}/clip.json"))
    report = convert("h2o", root, output)
    assert report.kept >= 1 and not report.errors
    assert {name for names in clips_of(output).values() for name in names} >= {*SUBJECTS}
