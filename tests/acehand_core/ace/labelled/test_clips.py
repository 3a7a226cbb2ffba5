"""The store of clips: what is written is read, whole or not at all, and nothing is done twice."""

import dataclasses
import hashlib
import json
import multiprocessing

import numpy as np
import pytest

from acehand_core.ace.labelled.clips import media
from acehand_core.ace.labelled.clips import store as clips
from acehand_core.ace.labelled.clips.schema import (
    ClipInfo,
    Reference,
    StoreInfo,
    Supervision,
    clip_id,
)
from acehand_core.ace.labelled.clips.store import ClipStore, ClipWriter
from acehand_core.errors import InputError, OutputError, SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.recordings.options import RecordingOptions
from acehand_core.recordings.registry import Registry
from acehand_core.safe_files import content_sha256
from acehand_core.trackers.base import TrackerSettings
from acehand_core.trackers.choose import open_tracked
from helpers.fake_motion import assert_same_bits, random_motion

STORE = StoreInfo("arctic", "train", "test", "none", {"width": 32})
CAMERA = Camera("pinhole", 32, 24, 30.0, 30.0, 15.5, 11.5)


def motion(frames=5):
    return random_motion(seed=3, frames=frames, camera=CAMERA)


def info(name="s01__box__0", frames=5, **changes):
    values = {
        "id": name, "dataset": "arctic", "split": "train", "kind": "video", "frames": frames,
        "fps": 30.0, "width": 32, "height": 24, "camera": CAMERA, "hand_model": "acehand",
        "left_shapedirs_fixed": motion(frames).left_shapedirs_fixed, "made_from": "key",
    }  # fmt: skip
    return ClipInfo(**{**values, **changes})


def pictures(frames=5):
    return np.random.default_rng(1).integers(0, 255, (frames, 24, 32, 3)).astype(np.uint8)


def test_what_is_written_is_read(tmp_path):
    writer = ClipWriter(tmp_path / "store", STORE)
    images, hands = pictures(), motion()
    flags = Supervision(shape=False, slots=(False, True))
    written = writer.write(
        info(supervision=flags, source={"subject": "s01"}), hands, images,
        extra={"depth": {"depth": np.ones((5, 2, 2), np.float16)}}, quality="lossless",
    )  # fmt: skip
    store = ClipStore(tmp_path / "store")
    clip = store.open("s01__box__0")
    assert clip.info == written and clip.info.supervision == flags
    assert set(written.files) == {"hands.parquet", "video.mp4", "depth.npz"}
    assert_same_bits(clip.motion, hands)
    np.testing.assert_array_equal(np.stack(list(clip.frames.read(0, 5))), images)
    np.testing.assert_array_equal(clip.frames.at(3), images[3])
    assert store.extra("s01__box__0", "depth")["depth"].dtype == np.float16
    assert clip.recording().camera == CAMERA
    store.verify("s01__box__0")
    (tmp_path / "store/clips/s01__box__0/depth.npz").write_bytes(b"")
    with pytest.raises(SchemaError, match=r"depth\.npz"):
        store.verify("s01__box__0")


def test_opening_a_clip_hashes_no_video(tmp_path, monkeypatch):
    """Its description has the hash: reading whole recordings would hold up every sample."""
    ClipWriter(tmp_path, STORE).write(info(), motion(), pictures())
    opened = []
    monkeypatch.setattr(hashlib, "sha256", lambda *data: opened.append(data) or 1 / 0)
    assert len(ClipStore(tmp_path).open("s01__box__0").frames) == 5 and not opened
    assert ClipStore(tmp_path).open("s01__box__0", pictures=False).frames is None


def test_an_image_and_a_reference(tmp_path):
    root = tmp_path / "store"
    writer = ClipWriter(root, STORE)
    writer.write(info(), motion(), pictures(), quality="lossless")
    image = pictures(1)
    writer.write(info("one", 1, kind="image"), motion(1), image)
    video = root / "clips/s01__box__0/video.mp4"
    reference = Reference("clips/s01__box__0/video.mp4", content_sha256(video), 1, 4)
    writer.write(info("part", 3, media="reference", reference=reference), motion(3))
    store = ClipStore(root)
    np.testing.assert_array_equal(store.open("one").frames.at(0), image[0])
    np.testing.assert_array_equal(store.open("part").frames.at(0), pictures()[1])
    store.verify("part")
    assert store.ids() == ["one", "part", "s01__box__0"]


@pytest.mark.parametrize("kind", ["video", "image"])
def test_pictures_of_another_size_are_refused(tmp_path, kind):
    count = 5 if kind == "video" else 1
    ClipWriter(tmp_path, STORE).write(info(frames=count, kind=kind), motion(count), pictures(count))
    wide = np.zeros((count, 24, 64, 3), np.uint8)
    folder = tmp_path / "clips/s01__box__0"
    if kind == "video":
        media.write_video(folder / media.VIDEO, wide, 30.0, "visual")
    else:
        media.write_image(folder / media.IMAGE, wide[0])
    with pytest.raises(SchemaError, match=rf"{kind}\.\w+: .*64 x 24.*32 x 24"):
        ClipStore(tmp_path).open("s01__box__0").frames.at(0)


def _write(arguments):
    root, name = arguments
    ClipWriter(root, STORE).write(info(name), motion())


def test_written_by_two_processes_and_resumed(tmp_path):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(_write, [(tmp_path, f"c{i}") for i in range(6)])
    writer = ClipWriter(tmp_path, STORE)
    assert writer.write_index() == 6
    assert writer.has("c0", "key") and not writer.has("c0", "other") and not writer.has("x", "key")
    writer.write(info("c0", made_from="new"), motion())  # the index is behind now
    assert ClipStore(tmp_path).infos()["c0"].made_from == "new"


def test_a_clip_with_a_missing_or_cut_file_is_not_there(tmp_path):
    writer, folder = ClipWriter(tmp_path, STORE), tmp_path / "clips/s01__box__0"
    video, described = folder / "video.mp4", folder / "clip.json"
    for damage, recorded in (("missing", True), ("cut", True), ("", True), ("", False)):
        writer.write(info(), motion(), pictures())
        if not recorded:  # as in stores of before sizes were
            sizes = json.loads(described.read_text())
            described.write_text(json.dumps({k: v for k, v in sizes.items() if k != "sizes"}))
        assert writer.has("s01__box__0", "key")
        video.write_bytes(video.read_bytes()[:100] if damage == "cut" else b"")
        if damage == "missing":
            video.unlink()
        assert not writer.has("s01__box__0", "key"), damage


def test_nothing_half_written(tmp_path):
    writer = ClipWriter(tmp_path, STORE)

    def broken():
        yield pictures()[0]
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        writer.write(info(), motion(), broken())
    assert ClipStore(tmp_path).ids() == [] and list((tmp_path / "clips").iterdir()) == []


def test_bad_names_and_files_are_refused(tmp_path):
    for changes, named in (
        ({"frames": 4}, "frames is 4"),
        ({"hand_model": "mano"}, "hand_model"),
        ({"camera": None}, "camera is None"),
    ):
        with pytest.raises(SchemaError, match=named):
            ClipWriter(tmp_path / "s", STORE).write(info(**changes), motion())
    assert clip_id("s05", "box grab/01", 0) == "s05__box-grab-01__0"
    for name in ("../x", "", ".hidden", "a/b"):
        with pytest.raises(SchemaError, match="letters"):
            info(name)
    with pytest.raises(SchemaError, match="one frame"):
        info(kind="image")
    with pytest.raises(InputError, match="no such folder"):
        ClipStore(tmp_path / "none")
    writer = ClipWriter(tmp_path / "s", STORE)
    writer.write(info(), motion())
    with pytest.raises(SchemaError, match="arctic train"):
        ClipWriter(tmp_path / "s", StoreInfo("hot3d", "train", "t", "none"))
    wider = dataclasses.replace(STORE, settings={"width": 64})
    with pytest.raises(SchemaError, match="width: 32 there, 64 now"):
        ClipWriter(tmp_path / "s", wider)
    assert ClipStore(tmp_path / "s").info == STORE
    ClipWriter(tmp_path / "s", wider, other_settings=True)
    assert ClipStore(tmp_path / "s").info == wider
    with pytest.raises((SchemaError, OutputError), match="not empty"):
        ClipWriter(tmp_path, STORE)
    path = tmp_path / "s/clips/s01__box__0/clip.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "fsp": 1}))
    with pytest.raises(SchemaError, match="fsp"):
        ClipStore(tmp_path / "s").open("s01__box__0")
    assert clips.made_from("a", {"x": 1}) != clips.made_from("b", {"x": 1})


def test_a_clip_is_an_input_with_the_hands_that_it_is_labelled_with(tmp_path):
    stamps = np.arange(9) * 33_333_333
    labels = dataclasses.replace(motion(9), timestamps_ns=stamps)
    writer = ClipWriter(tmp_path / "store", StoreInfo("arctic", "train", "test", "none", {}))
    writer.write(info(frames=9), labels, pictures(9), quality="lossless")
    clip = tmp_path / "store/clips/s01__box__0"
    segment = tmp_path / "store/arctic--s01__box__0--000004"

    registry = Registry()
    assert registry.expand([clip, segment]) == [clip, segment]
    for path, first in ((clip, 0), (segment, 4)):
        opened = registry.open(path, RecordingOptions())
        assert len(opened) == 9 - first
        assert opened.sha256 == registry.sha256(path, RecordingOptions())
        np.testing.assert_array_equal(opened.frames.at(0), pictures(9)[first])
        np.testing.assert_array_equal(opened.hands.joints_camera, labels.joints_camera[first:])
    # A part has the hands of its frames; the other side is left out.
    late = registry.open(clip, RecordingOptions(start_s=0.09, hands="left"))
    assert len(late) == len(late.hands) == 6
    np.testing.assert_array_equal(late.hands.joints_camera[:, 0], labels.joints_camera[3:, 0])
    assert not late.hands.known[:, 1].any()

    # Its labels are the hands, unless a tracker is named.
    recording, tracker = open_tracked(clip, "auto", TrackerSettings(), RecordingOptions())
    np.testing.assert_array_equal(tracker.track(recording).joints_camera, labels.joints_camera)
    _, tracker = open_tracked(clip, "mediapipe", TrackerSettings(), RecordingOptions())
    assert tracker.name == "mediapipe"
    with pytest.raises(InputError, match="frames of which clip"):
        registry.open(tmp_path / "store/other", RecordingOptions())
    with pytest.raises(InputError, match="leave out: `mirrored`"):
        registry.open(clip, RecordingOptions(mirrored=True))
