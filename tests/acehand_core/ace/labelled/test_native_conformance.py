"""Every reader gives the same thing: native pictures, camera-frame joints, times, flags, splits.

The fixtures of ``native_samples`` pose the labels by smplx in each dataset's own convention; the
readers convert the parameters. Both must meet to a hundredth of a millimetre.
"""

import json
import os
import pickle
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from acehand_core.ace.labelled.clips.store import ClipStore
from acehand_core.ace.labelled.readers import run as registry
from acehand_core.ace.labelled.readers.base import Convention, ManoTrack, ReadOptions, hashed_split
from acehand_core.ace.labelled.readers.conventions import to_camera
from acehand_core.ace.labelled.readers.convert import RunOptions, hand_motion, mano_source
from acehand_core.ace.labelled.readers.pictures import ClipOptions
from acehand_core.cli.main import main
from acehand_core.errors import Interrupted, MissingDependencyError, UnsafeFileError
from acehand_core.geometry import rotations
from acehand_core.hand.mano import load_mano
from acehand_core.unpickling import TORCH_PKL, restricted_load
from helpers import native_samples
from helpers.native_samples import convert, every_clip, rewrite_tar

pytest.importorskip("smplx")
torch = pytest.importorskip("torch")

NAMES = tuple(native_samples.WRITERS)
TOLERANCE_M = 1e-5


class GrayFrames:
    """Stands for a VRS recording: one picture per time, its grey level from the time's index."""

    def __init__(self, path, stream, timestamps_ns):
        quest = (path.parent / "camera_models.json").is_file()
        self.shape = (1408, 1408, 3) if quest or stream == "214-1" else (480, 640, 3)
        self.count = len(timestamps_ns)

    def __len__(self):
        return self.count

    def at(self, index):
        image = np.full(self.shape, native_samples.level(index), np.uint8)
        image[:10] = 0  # the stored top must become the right side
        return image

    def read(self, start, stop):
        return map(self.at, range(start, stop))


@pytest.fixture(scope="module")
def mano(mano_file):
    return lambda fixed: load_mano(mano_file, left_shapedirs_fixed=fixed, dtype="float64")


@pytest.mark.parametrize("name", NAMES)
def test_conformance(name, datasets, mano):
    root, truths = datasets[name]
    reader = registry.find_reader(name)
    options = ReadOptions(open_frames=GrayFrames)
    items = reader.items(root, options)
    assert sorted(item.name for item in items) == sorted(truths)
    assert all(item.dataset == name for item in items)
    for item in items:
        check_recording(reader, item, truths[item.name], options, mano)


@pytest.mark.parametrize(
    ("name", "view"),
    [("arctic", "3"), ("arctic", "8"), ("hot3d", "1201-1"), ("hot3d", "1201-2"),
     ("oakink2", "allocentric_top")],
)  # fmt: skip
def test_other_views_have_cameras_of_their_own(name, view, datasets, mano):
    root, truths = datasets[name]
    reader = registry.find_reader(name)
    options = ReadOptions(view=view, open_frames=GrayFrames)
    found = {item.name: item for item in reader.items(root, options)}
    checked = 0
    for recording, truth in truths.items():
        if view in truth.other_views:
            main = recording.rpartition("_")[2]
            other = "view" + view if name == "arctic" else view
            item = found[recording.removesuffix(main) + other]
            check_recording(reader, item, truth.other_views[view], options, mano)
            checked += 1
    assert checked == (1 if name == "hot3d" else 2)


def check_recording(reader, item, truth, options, mano):
    native = reader.read(item, options)
    check_native(item, native, truth)
    if truth.mano:
        hands = to_camera(native.mano, mano)
        check_hands(hands, native, truth, mano)
    else:
        assert native.mano is None
    check_pixels(native, truth)
    check_pictures(native, truth)
    assert all(path is not None for path in reader.sources(item))


def check_native(item, native, truth):
    sequence = item.key.get("token") or item.key.get("sequence")
    sequence = item.path.name if item.dataset == "hot3d" else sequence
    split = truth.split or hashed_split(sequence, item.dataset.split("_")[0])
    assert item.split == split
    np.testing.assert_array_equal(native.present, truth.present)
    unlabelled = np.zeros_like(truth.present) if truth.unlabelled is None else truth.unlabelled
    presence = native.unlabelled_presence
    presence = np.zeros(unlabelled.shape) if presence is None else presence
    np.testing.assert_array_equal(~native.present & (presence > 0), unlabelled)
    assert native.left_out == truth.left_out
    if truth.T_world_camera is None:
        assert native.T_world_camera is None
    else:
        same_poses(native.T_world_camera, truth.T_world_camera)
    start = native.timestamps_ns[0] - truth.timestamps_ns[0]
    assert np.abs(native.timestamps_ns - truth.timestamps_ns - start).max() <= 1
    assert native.licences
    if native.joints_camera is not None:
        np.testing.assert_allclose(native.joints_camera, truth.joints, atol=TOLERANCE_M)


def same_poses(found, expected):
    """Known in the same frames, and equal there."""
    known = np.isfinite(expected).all((1, 2))
    np.testing.assert_array_equal(np.isfinite(found).all((1, 2)), known)
    np.testing.assert_allclose(found[known], expected[known], atol=1e-7)


def check_hands(hands, native, truth, mano):
    np.testing.assert_allclose(hands.joints_camera, truth.joints, atol=TOLERANCE_M)
    assert hands.left_shapedirs_fixed == truth.left_shapedirs_fixed
    for slot, side in enumerate(("left", "right")):
        rows = truth.present[:, slot]
        posed = mano(hands.left_shapedirs_fixed).joints(
            side, hands.global_orient[rows, slot], hands.hand_pose[rows, slot], hands.betas[slot]
        )
        posed = posed + hands.translation[rows, slot][:, None]
        np.testing.assert_allclose(posed, truth.joints[rows, slot], atol=TOLERANCE_M)
        assert np.isnan(hands.translation[~rows, slot]).all()


def check_pixels(native, truth):
    """The camera must be that of the stored picture: compared with OpenCV's or written-out lens."""
    if truth.pixels is None:
        return
    seen = truth.present[..., None] & np.isfinite(truth.pixels).all(-1)
    assert seen.any()
    np.testing.assert_allclose(
        native.camera.project(truth.joints)[seen], truth.pixels[seen], atol=2e-3
    )
    assert (native.camera.width, native.camera.height) == native.size
    if native.joints_image is not None:
        np.testing.assert_allclose(native.joints_image[seen], truth.pixels[seen], atol=2e-3)


def check_pictures(native, truth):
    if truth.gray is None:
        assert native.frames is None
        return
    assert len(native.frames) == len(truth.gray) == len(truth.present)
    for index, image in enumerate(native.frames.read(0, len(native.frames))):
        assert image.shape == (*native.size[::-1], 3)
        assert abs(int(np.median(image)) - int(truth.gray[index])) <= 2
    last = len(truth.gray) - 1
    np.testing.assert_array_equal(native.frames.at(last), image)


def test_wrong_conventions_do_not_pass(datasets, mano):
    """Each flag matters in each dataset: turned around, joints move by far more than allowed."""
    for name in ("arctic", "hot3d", "h2o", "oakink2", "interhand", "freihand", "hoi4d"):
        root, truths = datasets[name]
        reader, options = registry.find_reader(name), ReadOptions(pictures=False)
        item = next(i for i in reader.items(root, options) if truths[i.name].mano)
        track, truth = reader.read(item, options).mano, truths[item.name]
        wrong = [("translation", "wrist" if track.convention.translation == "mano" else "mano")]
        if track.convention.fingers != "rotations":
            wrong.append(("flat_hand_mean", not track.convention.flat_hand_mean))
        if truth.present[:, 0].any():
            wrong.append(("left_shapedirs_fixed", not track.convention.left_shapedirs_fixed))
        for field, value in wrong:
            bad = replace(track, convention=replace(track.convention, **{field: value}))
            error = np.nanmax(np.abs(to_camera(bad, mano).joints_camera - truth.joints))
            assert error > 1e-3, (name, field)


def test_one_shape_per_recording_leaves_the_wrist_where_it_was_labelled(mano_file, mano):
    """Pseudo labels have betas per frame; the clip has their median, and wrists must not move."""
    random, hands, count = np.random.default_rng(5), native_samples.Hands(mano_file), 5
    betas = np.cumsum(random.normal(0, 0.8, (count, 2, 10)), axis=0)
    T = native_samples.camera_path(random, count)
    orient = random.normal(0, 0.7, (count, 2, 3))
    fingers = random.normal(0, 0.2, (count, 2, 45))
    translation = random.normal(0, 0.3, (count, 2, 3))
    track = ManoTrack(
        Convention("vectors", False, "mano", False, "world"), np.ones((count, 2), bool),
        rotations.exp(orient), fingers, betas, translation, T,
    )  # fmt: skip
    out = to_camera(track, mano)
    for slot, side in enumerate(native_samples.SIDES):

        def posed(shape, slot=slot, side=side):
            world = hands.pose(
                side, orient[:, slot], fingers[:, slot], shape, translation[:, slot], flat=False
            )
            return np.einsum("tij,tnj->tni", T[:, :3, :3], world) + T[:, None, :3, 3]

        labelled, median = posed(betas[:, slot]), np.median(betas[:, slot], axis=0)
        assert np.linalg.norm(median - betas[:, slot].mean(0)) > 0.1
        np.testing.assert_allclose(out.betas[slot], median, atol=1e-12)
        one = posed(median)
        # Moved so that the wrist is the labelled one; else it is millimetres off.
        apart = np.linalg.norm((one - labelled)[:, 0], axis=-1)
        assert apart.max() > 3e-3
        one += (labelled - one)[:, :1]
        np.testing.assert_allclose(out.joints_camera[:, slot], one, atol=1e-6)
        again = mano(False).joints(
            side, out.global_orient[:, slot], out.hand_pose[:, slot], out.betas[slot]
        )
        np.testing.assert_allclose(again + out.translation[:, slot, None], one, atol=1e-6)
        worst = np.linalg.norm(one - labelled, axis=-1).max()
        assert any(f"{side} betas" in t and f"at most {1e3 * worst:.2f} mm" in t
                   for t in out.findings)  # fmt: skip


def test_rotated_pictures_show_the_rotated_camera(datasets):
    """A point's pixel in the stored Aria picture lands on its pixel in the upright one."""
    root, _ = datasets["hot3d"]
    reader, options = registry.find_reader("hot3d"), ReadOptions(open_frames=GrayFrames)
    item = next(i for i in reader.items(root, options) if i.key["device"] == "aria")
    image = reader.read(item, options).frames.at(0)
    assert (image[:, -10:] == 0).all()
    assert (image[:, :-10] != 0).all()


def test_vrs_needs_its_extra(datasets, monkeypatch):
    """Without the package the message names the extra; without pictures it is not needed."""
    monkeypatch.setitem(sys.modules, "projectaria_tools", None)
    root, _ = datasets["hot3d"]
    reader = registry.find_reader("hot3d")
    item = reader.items(root, ReadOptions())[0]
    with pytest.raises(MissingDependencyError, match="'vrs'"):
        reader.read(item, ReadOptions())
    assert reader.read(item, ReadOptions(pictures=False)).frames is None


@pytest.mark.parametrize("name", NAMES)
def test_without_mano_what_is_exact_stays(name, datasets, mano):
    root, _ = datasets[name]
    reader = registry.find_reader(name)
    for item in reader.items(root, ReadOptions(pictures=False)):
        native = reader.read(item, ReadOptions(pictures=False))
        if native.mano is None:
            continue
        known, bare = to_camera(native.mano, mano), to_camera(native.mano, None)
        np.testing.assert_allclose(bare.global_orient, known.global_orient, atol=1e-9)
        assert np.isnan(bare.joints_camera).all()
        for field in ("hand_pose", "translation"):
            value = getattr(bare, field)
            if np.isfinite(value).any():
                np.testing.assert_allclose(value, getattr(known, field), atol=1e-9)
        absolute = name in ("oakink2", "h2o", "hoi4d")
        assert np.isfinite(bare.hand_pose[native.present]).all() == absolute
        assert np.isfinite(bare.translation[native.present]).all() == (name in ("h2o", "hoi4d"))
        assert any("without MANO" in text for text in bare.findings)


@pytest.mark.parametrize("name", NAMES)
def test_converted_clips_round_trip(name, datasets, mano_file, tmp_path):
    """Native files to a store and back; the second run keeps all."""
    root, truths = datasets[name]
    options = RunOptions(
        root, tmp_path / "out", clips=ClipOptions(mano=mano_file, images="keep", width=160),
        read=ReadOptions(open_frames=GrayFrames),
    )  # fmt: skip
    done = []
    report = registry.run(name, options, lambda *step: done.append(step[1:]))
    assert not report.errors
    assert done[-1] == (len(truths), len(truths))
    found = {}
    for split in report.clips:
        store = ClipStore(tmp_path / "out" / split)
        assert store.info.split == split
        found |= {store.info_of(key).source["recording"]: store.open(key) for key in store.ids()}
    assert sorted(found) == sorted(truths)
    for recording, clip in found.items():
        check_clip(name, clip, truths[recording])
    again = registry.run(name, options, lambda *step: None)
    assert again.kept == len(truths)
    assert again.to_json()["splits"] == report.to_json()["splits"]
    stored = json.loads((tmp_path / "out" / f"conversion-{name}.json").read_text())
    assert stored == {**again.to_json(), "output": "out"}


def check_clip(name, clip, truth):
    motion, info = clip.motion, clip.info
    np.testing.assert_allclose(motion.joints_camera, truth.joints, atol=TOLERANCE_M)
    np.testing.assert_array_equal(motion.observed, truth.present)
    unlabelled = np.zeros_like(truth.present) if truth.unlabelled is None else truth.unlabelled
    np.testing.assert_array_equal(motion.presence, truth.present + 0.5 * unlabelled)
    assert info.source["unlabelled_frames"] == truth.unlabelled_frames
    assert info.source["left_out_frames"] == truth.left_out
    if truth.T_world_camera is not None:
        same_poses(motion.T_world_camera, truth.T_world_camera)
    labelled = truth.mano and truth.present.any()
    assert motion.hand_model == ("mano" if labelled else "none")
    assert info.left_shapedirs_fixed == truth.left_shapedirs_fixed
    assert info.supervision.rotations == labelled
    assert info.width == 160
    if clip.frames is not None and truth.gray is not None:
        for index in range(info.frames):
            assert abs(int(np.median(clip.frames.at(index))) - int(truth.gray[index])) <= 3
    if truth.pixels is not None:
        # One meaning in all datasets, whatever the datasets store: keypoints in the picture.
        inside = info.camera.contains(info.camera.project(truth.joints)).mean(-1)
        np.testing.assert_allclose(motion.visible, inside * truth.present, atol=1e-6)
    if name == "rhd" and truth.split == "train":
        assert not info.supervision.rotations and info.supervision.joints
    if name == "freihand":
        assert info.supervision.slots == (False, True) and info.kind == "image"
    if name == "interhand":
        assert not info.supervision.pinhole_fit and info.height % 2 == 0


def test_undistorted_clips_show_what_a_pinhole_would(datasets, mano_file, tmp_path):
    """ARCTIC by default: the stored camera is a pinhole, the native one is kept next to it."""
    root, truths = datasets["arctic"]
    convert("arctic", root, tmp_path, splits=("train",), clips=ClipOptions(mano=mano_file))
    (clip,) = every_clip(tmp_path)
    assert clip.info.camera.model == "pinhole"
    assert clip.info.source["native_camera"]["model"] == "brown_conrady"
    truth = truths[clip.info.source["recording"]]
    rays = truth.joints / truth.joints[..., 2:]  # NaN in frames without a label
    assert np.isfinite(rays).all((1, 2, 3)).sum() == 6
    K = clip.info.camera.K
    np.testing.assert_allclose(clip.motion.joints_image, (rays @ K.T)[..., :2], atol=1e-6)
    assert clip.info.source["pictures"]


def test_plain_videos_are_referred_to(datasets, tmp_path):
    root, truths = datasets["egocentric"]
    assert not convert("holoassist", root, tmp_path, clips=ClipOptions()).errors
    clips = every_clip(tmp_path)
    for clip in clips:
        assert clip.info.media == "reference"
        assert clip.info.supervision.slots == (False, False)
        ClipStore(tmp_path / "test").verify(clip.info.id)
        shown = [int(np.median(image)) for image in clip.frames.read(0, 4)]
        np.testing.assert_allclose(shown, truths[clip.info.source["recording"]].gray, atol=2)
    assert [clip.info.camera is not None for clip in clips] == [True, False]


def test_undistorting_lowers_what_is_in_view(datasets, mano_file, tmp_path):
    """HOT3D's share of a hand in view is that of the fisheye picture; a pinhole shows less."""
    root, _ = datasets["hot3d"]
    shown = {}
    for images in ("keep", "undistort"):
        options = ClipOptions(images=images, mano=mano_file, width=200)
        convert("hot3d", root, tmp_path / images, clips=options, read=ReadOptions(pictures=False))
        clips = every_clip(tmp_path / images)
        shown[images] = np.concatenate([c.motion.visible for c in clips])
        assert {c.info.camera.model == "pinhole" for c in clips} == {images == "undistort"}
    assert (shown["undistort"] <= shown["keep"] + 1e-6).all()


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["arctic", "oakink2", "rhd", "hoi4d"])
def test_a_malicious_pickle_runs_nothing(name, samples, tmp_path):
    root, marker = samples(name), tmp_path / "ran"
    pattern = {"arctic": "*.mano.npy", "oakink2": "*.pkl", "rhd": "anno_*.pickle",
               "hoi4d": "0.pickle"}[name]  # fmt: skip
    for path in root.rglob(pattern):
        if name == "arctic":
            np.save(path, np.array({"right": Evil(marker)}, dtype=object), allow_pickle=True)
        else:
            path.write_bytes(pickle.dumps({0: Evil(marker)}, protocol=2))
    reader = registry.find_reader(name)
    with pytest.raises(UnsafeFileError, match="mkdir"):
        for item in reader.items(root, ReadOptions()):
            reader.read(item, ReadOptions())
    assert not marker.exists()


def test_tensors_inside_pickles_are_read_and_nothing_else(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    value = {
        "strided": base.t()[1:, ::2], "flags": torch.tensor([True, False]), "one": torch.tensor(3),
        "empty": torch.zeros(0, 3), "half": torch.ones(2, dtype=torch.float16), "again": base,
    }  # fmt: skip
    path = tmp_path / "a.pkl"
    for protocol in range(6):
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        found = restricted_load(path, TORCH_PKL, "test")
        for key, tensor in value.items():
            np.testing.assert_array_equal(found[key], tensor.numpy())
            assert found[key].dtype == tensor.numpy().dtype
    marker = tmp_path / "ran"

    class Inside:
        """A tensor whose inner pickle asks for code."""

        def __reduce__(self):
            return torch.storage._load_from_bytes, (pickle.dumps(Evil(marker)),)

    class Outer:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Inside(), 0, (1,), (1,), False, {})

    path.write_bytes(pickle.dumps({"a": Outer()}))
    with pytest.raises(UnsafeFileError, match="mkdir"):
        restricted_load(path, TORCH_PKL, "test")
    assert not marker.exists()
    # A tensor that reaches beyond its storage: 40 rows where 4 were stored, or rows 102 apart.
    good = pickle.dumps(base, protocol=2)
    path.write_bytes(good)
    assert restricted_load(path, TORCH_PKL, "test").shape == (4, 6)
    for old, new in ((b"K\x04K\x06", b"K\x28K\x06"), (b"K\x06K\x01", b"KfK\x01")):
        assert good.count(old) == 1
        path.write_bytes(good.replace(old, new))
        with pytest.raises(UnsafeFileError, match="reaches past its numbers"):
            restricted_load(path, TORCH_PKL, "test")


def test_a_changed_label_or_mano_is_converted_anew(samples, mano_file, tmp_path):
    root, output = samples("h2o"), tmp_path / "out"
    assert convert("h2o", root, output, splits=("test",)).kept == 0
    (clip,) = every_clip(output)
    assert clip.motion.hand_model == "none"
    assert np.isfinite(clip.motion.joints_camera[clip.motion.observed]).all()
    assert "mano_fingers" in ClipStore(output / "test").extra(clip.info.id, "native")
    full = RunOptions(root, output, clips=ClipOptions(images="none", mano=mano_file))
    messages = []
    assert registry.run("h2o", full, lambda text, *_: messages.append(text)).kept == 0
    assert "mano: False there, True now" in messages[0]
    assert {clip.motion.hand_model for clip in every_clip(output)} == {"mano"}
    path = root / "subject4" / "h1" / "0" / "cam4" / "hand_pose" / "000000.txt"
    path.write_text(path.read_text() + " ")
    assert registry.run("h2o", full, lambda *step: None).kept == 1


@pytest.mark.parametrize("name", ["hot3d", "hot3d_clips"])
def test_a_hand_that_is_seen_without_a_pose_is_there(name, samples, mano_file):
    """HOT3D's boxes and clips mark a visible hand, whether or not MANO was fitted."""
    root = samples(name)
    if name == "hot3d":
        shutil.rmtree(root / "P0001_aaaaaaaa")
        boxes = root / "P0002_bbbbbbbb" / "box2d_hands.csv"
        lines = boxes.read_text().splitlines()
        place = next(n for n, line in enumerate(lines) if ",0," in line and line.endswith(",0.0"))
        lines[place] = lines[place].removesuffix(",,,,,0.0") + ",1,9,1,9,0.7"
        boxes.write_text("\n".join(lines) + "\n")
    else:
        left = {"left": {"visibilities_modeled": {"214-1": 0.7}}}
        rewrite_tar(
            root / "train_aria" / "clip-000001.tar",
            lambda name, data: json.dumps(json.loads(data) | left).encode()
            if name == "000001.hands.json" else data,
        )  # fmt: skip
    reader = registry.find_reader(name)
    (item,) = reader.items(root, ReadOptions())
    native = reader.read(item, ReadOptions(pictures=False))
    hands = to_camera(native.mano, mano_source(mano_file))
    motion, _ = hand_motion(native, hands, native.camera, native.size, True)
    assert motion.presence[1, 0] == 1 and motion.visible[1, 0] == 1  # seen; no keypoints to count
    assert native.visible[1, 0] == pytest.approx(0.7)
    assert not motion.known[1, 0] and motion.known.sum() == 5


def test_a_hand_with_joints_alone_does_not_cost_the_clip_its_mano(
    datasets, samples, mano_file, tmp_path
):
    root, truths = samples("h2o"), datasets["h2o"][1]
    path = root / "subject4" / "h1" / "0" / "cam4" / "hand_pose_mano" / "000001.txt"
    numbers = path.read_text().split()
    path.write_text(" ".join(["0"] * 62 + numbers[62:]))
    clips = ClipOptions(images="none", mano=mano_file)
    report = convert("h2o", root, tmp_path / "o", splits=("test",), clips=clips)
    (motion,) = (clip.motion for clip in every_clip(tmp_path / "o"))
    expected = truths["subject4_h1_0_cam4"].present.copy()
    expected[1, 0] = False
    assert motion.hand_model == "mano"
    np.testing.assert_array_equal(motion.observed, expected)
    assert motion.presence[1, 0] == 1  # it has joints: it is there, and not known
    assert any("1 hands" in text and "no MANO" in text for text in report.findings)


def test_parallel_jobs_give_the_same_clips(datasets, mano_file, tmp_path):
    root, clips = datasets["freihand"][0], ClipOptions(mano=mano_file)
    one, two = (
        convert("freihand", root, tmp_path / str(jobs), jobs=jobs, clips=clips) for jobs in (1, 2)
    )
    assert one.findings == two.findings
    one, two = ([clip.info for clip in every_clip(tmp_path / jobs)] for jobs in "12")
    assert [(i.id, i.files) for i in one] == [(i.id, i.files) for i in two]


def test_command_line(datasets, mano_file, tmp_path, capsys):
    root, _ = datasets["hoi4d"]
    arguments = ["data", "convert", "hoi4d", "--root", str(root), "--output", str(tmp_path / "o"),
                 "--mano", str(mano_file), "--json", "-q"]  # fmt: skip
    assert main(arguments) == 0
    out = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert out["splits"] == {
        "test": {"clips": 1, "frames": 8, "unlabelled_frames": 5, "left_out_frames": 1}
    }
    texts = " ".join(finding["text"] for finding in out["findings"])
    for part in ("1 damaged", "3 of 8", "intrin.npy", "output.log", "kps2D", "1 labels lie beyond"):
        assert part in texts, part
    assert main(["data", "convert", "hoi4", "--root", str(root), "--output", "x"]) == 2
    assert "Did you mean 'hoi4d'" in capsys.readouterr().err
    assert main([*arguments[:3], "--root", str(tmp_path), "--output", str(tmp_path / "p")]) == 2
    assert "refinehandpose_right" in capsys.readouterr().err
    assert main([*arguments, "--split", "train"]) == 2
    assert main([*arguments, "--view", "cam"]) == 2


def test_ctrl_c_keeps_what_is_done_and_the_next_run_resumes(datasets, mano_file, tmp_path):
    root, _ = datasets["freihand"]
    options = RunOptions(root, tmp_path / "o", clips=ClipOptions(mano=mano_file))

    def stop_after_two(stage, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stop:
        registry.run("freihand", options, stop_after_two)
    assert sum(stop.value.report.clips.values()) == 2
    assert len(ClipStore(tmp_path / "o" / "train").ids()) == 2
    assert registry.run("freihand", options, lambda *step: None).kept == 2
    assert not [p for p in (tmp_path / "o").rglob(".*")]


def test_millimetres_are_noticed(samples):
    reader = registry.find_reader("interhand")
    item = reader.items(samples("interhand"), ReadOptions())[0]
    before = reader.read(item, ReadOptions()).mano.translation
    for path in (item.path / "mano_fits" / "params").glob("*.json"):
        value = json.loads(path.read_text())
        value["trans"] = [1000 * x for x in value["trans"]]
        path.write_text(json.dumps(value))
    native = reader.read(item, ReadOptions())
    np.testing.assert_allclose(native.mano.translation, before, atol=1e-9)
    assert any("millimetres" in text for text in native.findings)


def test_freihand_versions(datasets):
    reader, options = registry.find_reader("freihand"), ReadOptions(view="auto")
    items = reader.items(datasets["freihand"][0], options)
    assert len(items) == 3  # evaluation has the first version only
    image = reader.read(items[1], options).frames.at(0)
    assert abs(int(image.mean()) - native_samples.level(1 + 3 * 3)) <= 2
