"""Damaged and unclear bags: the rest is read, the loss is counted, nothing goes unsaid."""

from __future__ import annotations

import gc
import resource
import struct
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from acehand_core.errors import CalibrationError, InputError, OutputError
from acehand_core.recordings.bag import BagIndex, index_bag
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.records import BagOptions
from acehand_core.recordings.bags.topics import bag_info
from helpers.bag_samples import IMAGE, START, TOPIC, SampleBag, pictures, simple_bag, stamps


def index_of(path: Path, **reading: str) -> BagIndex:
    return index_bag(path, BagOptions(**reading))


def big_bag(path: Path, count: int = 40, **options: str) -> list[np.ndarray]:
    """A bag of several chunks: each picture is noise of 100 kB that can be compressed."""
    rng = np.random.default_rng(0)
    images = [16 * rng.integers(0, 16, (160, 208, 3), dtype=np.uint8) for _ in range(count)]
    with SampleBag(path, **options) as bag:
        for image, ns in zip(images, stamps(count), strict=True):
            bag.image(image, ns)
    return images


def cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize("compression", ["none", "storage"])
def test_a_truncated_mcap_gives_what_is_there(tmp_path: Path, compression: str) -> None:
    images = big_bag(tmp_path / "bag", compression=compression)
    cut(tmp_path / "bag" / "bag.mcap", 0.6)
    index = index_of(tmp_path / "bag")
    read = list(index.whole.frames.read(0, len(index.whole.frames)))
    assert 20 <= len(read) <= 25
    assert all(np.array_equal(a, b) for a, b in zip(read, images, strict=False))
    # metadata.yaml knows how many there were.
    assert index.dropped.by_topic == {TOPIC: 40 - len(read)}
    assert any("cut off or damaged at byte" in note for note in index.whole.notes)
    (tmp_path / "bag" / "metadata.yaml").unlink()
    bare = index_of(tmp_path / "bag" / "bag.mcap")
    assert len(bare.whole.frames) == len(read)
    assert bare.dropped.by_topic["*"] >= 1


def test_an_mcap_without_index(tmp_path: Path) -> None:
    images = simple_bag(tmp_path / "bag")
    path = tmp_path / "bag" / "bag.mcap"
    data = path.read_bytes()
    # The footer's offset of the summary: 0 means that there is none.
    at = len(data) - 8 - 20
    path.write_bytes(data[:at] + struct.pack("<QQI", 0, 0, 0) + data[-8:])
    index = index_of(tmp_path / "bag")
    assert len(index.whole.frames) == 12 and np.array_equal(index.whole.frames.at(7), images[7])
    assert index.dropped.by_topic.total() == 0
    assert any("no index" in note for note in index.whole.notes)


def test_a_damaged_chunk_is_left_out_and_counted(tmp_path: Path) -> None:
    images = big_bag(tmp_path / "bag", compression="storage")
    path = tmp_path / "bag" / "bag.mcap"
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4000] = bytes(4000)
    path.write_bytes(bytes(data))
    index = index_of(tmp_path / "bag")
    lost = index.dropped.by_topic[TOPIC]
    assert 5 <= lost <= 15 and len(index.whole.frames) == 40 - lost
    assert any("in a damaged chunk" in note for note in index.whole.notes)
    shown = [int((np.array(stamps(40)) == t).argmax()) for t in index.whole.timestamps_ns]
    for frame, number in enumerate(shown):
        assert np.array_equal(index.whole.frames.at(frame), images[number])


def test_a_truncated_database_gives_what_is_there(tmp_path: Path) -> None:
    images = big_bag(tmp_path / "bag", storage="sqlite3")
    cut(tmp_path / "bag" / "bag.db3", 0.6)
    index = index_of(tmp_path / "bag")
    assert 15 <= len(index.whole.frames) <= 30
    assert index.dropped.by_topic[TOPIC] == 40 - len(index.whole.frames)
    shown = [int((np.array(stamps(40)) == t).argmax()) for t in index.whole.timestamps_ns]
    for frame, number in enumerate(shown):
        assert np.array_equal(index.whole.frames.at(frame), images[number])


@pytest.fixture
def compressed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bag that is compressed as a whole, and a place of its own for decompressed copies."""
    simple_bag(tmp_path / "bag", 12, compression="file")
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    return tmp_path / "bag"


def test_a_compressed_file_is_decompressed_once(compressed_file: Path) -> None:
    copies = compressed_file.parent / "copies"
    index = index_of(compressed_file)
    (copy,) = copies.glob("*/bag.mcap")
    before = copy.stat().st_mtime_ns
    for mirrored in (False, True):
        frames = index.recording(mirrored).frames
        assert sum(1 for _ in frames.read(0, 12)) == 12
    with index.bag() as again:
        assert sum(1 for _ in again.messages(None, again.dropped)) == 24
    assert [path.stat().st_mtime_ns for path in copies.glob("*/bag.mcap")] == [before]
    with Bag(compressed_file):  # opened alone
        assert len(list(copies.iterdir())) == 2
    assert index.whole.frames.at(0).any() and len(list(copies.iterdir())) == 1
    del index, frames, again
    gc.collect()
    assert list(copies.iterdir()) == []


def test_no_room_to_decompress(compressed_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a .pyc would be cut off too
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"bag.mcap.zstd.*TMPDIR"):
            Bag(compressed_file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((compressed_file.parent / "copies").iterdir()) == []


def test_a_compressed_file_that_is_cut_off(tmp_path: Path) -> None:
    big_bag(tmp_path / "bag", 10, compression="file")
    file = tmp_path / "bag" / "bag.mcap.zstd"
    cut(file, 0.6)
    index = index_of(tmp_path / "bag")
    assert 0 < len(index.whole.frames) < 10
    assert index.dropped.by_topic == {TOPIC: 10 - len(index.whole.frames)}
    assert any("bag.mcap.zstd: damaged compression" in note for note in index.whole.notes)
    cut(file, 0.001)
    with pytest.raises(InputError, match=r"bag/bag.mcap.zstd: .*damaged compression"):
        Bag(tmp_path / "bag")


@pytest.mark.parametrize("content", [None, "nothing: of ours\n", "{broken: [\n"])
def test_metadata_missing_or_damaged(tmp_path: Path, content: str | None) -> None:
    images = simple_bag(tmp_path / "bag", 4)
    path = tmp_path / "bag" / "metadata.yaml"
    path.unlink()
    if content is not None:
        path.write_text(content)
    index = index_of(tmp_path / "bag")
    assert np.array_equal(index.whole.frames.at(3), images[3])
    assert any("metadata.yaml is" in note for note in index.whole.notes)


def test_a_listed_file_that_is_missing(tmp_path: Path) -> None:
    simple_bag(tmp_path / "bag", 4)
    path = tmp_path / "bag" / "metadata.yaml"
    text = path.read_text().replace("- bag.mcap", "- bag.mcap\n  - bag_1.mcap")
    path.write_text(text)
    index = index_of(tmp_path / "bag")
    assert len(index.whole.frames) == 4
    assert index.dropped.by_topic["*"] == 1
    (tmp_path / "bag" / "bag.mcap").unlink()
    with pytest.raises(InputError, match="none of the files"):
        index_of(tmp_path / "bag")


def test_the_size_changes_mid_bag(tmp_path: Path) -> None:
    small, large = pictures(8), pictures(3, 48, 32)
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(stamps(11)):
            bag.image(small[i] if i < 8 else large[i - 8], ns)
    index = index_of(tmp_path / "bag")
    assert (index.whole.width, index.whole.height, len(index.whole.frames)) == (32, 24, 8)
    assert index.dropped.by_topic == {TOPIC: 3}
    assert any("48 x 32, not 32 x 24" in note for note in index.whole.notes)


@pytest.mark.parametrize("compression", ["none", "storage"])
def test_a_time_of_receipt_that_cannot_be(tmp_path: Path, compression: str) -> None:
    with SampleBag(tmp_path / "bag", compression=compression) as bag:
        for i, (image, ns) in enumerate(zip(pictures(6), stamps(6), strict=True)):
            bag.image(image, ns, log_ns={2: 2**64 - 1, 3: 2**62, 4: 2**63 - 1}.get(i))
    index = index_of(tmp_path / "bag" / "bag.mcap")
    assert len(index.whole.frames) == 4 and index.dropped.by_topic == {TOPIC: 2}
    assert (np.diff(index.whole.timestamps_ns) > 0).all()
    assert bag_info(tmp_path / "bag").lost_messages == {TOPIC: 2}


def test_messages_that_do_not_decode(tmp_path: Path) -> None:
    images = pictures(8)
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(stamps(8)):
            if i == 2:
                bag.raw(TOPIC, IMAGE, ns, b"\x00\x01\x00\x00rubbish")
            else:
                bag.image(images[i], ns)
        bag.raw(TOPIC, IMAGE, START + 10**9, b"")
    index = index_of(tmp_path / "bag")
    assert index.dropped.by_topic == {TOPIC: 2}
    assert index.whole.timestamps_ns.tolist() == [t for i, t in enumerate(stamps(8)) if i != 2]


def test_pictures_that_are_cut_off_or_of_no_known_kind(tmp_path: Path) -> None:
    images = pictures(6)
    ok, jpeg = cv2.imencode(".jpg", images[0])
    ok2, png = cv2.imencode(".png", images[0])
    assert ok and ok2
    bent = png.copy()
    bent[60] ^= 255
    times = stamps(6)
    with SampleBag(tmp_path / "bag") as bag:
        bag.compressed_bytes(jpeg, times[0], "jpeg")
        bag.compressed_bytes(jpeg[:200], times[1], "jpeg")
        bag.compressed_bytes(png[:200], times[2], "png")
        bag.compressed_bytes(bent, times[3], "png")
        bag.compressed_bytes(np.arange(50, dtype=np.uint8), times[4], "jpeg")
        bag.compressed_bytes(jpeg, times[5], "jpeg")
    index = index_of(tmp_path / "bag")
    assert index.whole.timestamps_ns.tolist() == [times[0], times[5]]
    assert index.dropped.by_topic == {f"{TOPIC}/compressed": 4}
    text = " ".join(index.whole.notes)
    assert "cut off" in text and "damaged png" in text and "neither jpeg nor png" in text


def test_damage_that_only_decoding_shows(tmp_path: Path) -> None:
    """The picture before stands in, and the loss is counted once however often it is read."""
    images = pictures(3, 64, 48)
    ok, jpeg = cv2.imencode(".jpg", images[1][..., ::-1])
    assert ok
    broken = jpeg.copy()
    table = bytes(jpeg).index(b"\xff\xc4")  # the Huffman tables
    broken[table + 4 : table + 40] = 255
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(stamps(3)):
            if i == 1:
                bag.compressed_bytes(broken, ns, "jpeg")
            else:
                bag.compressed(images[i], ns, "png")
    index = index_of(tmp_path / "bag")
    for _ in range(2):
        read = list(index.whole.frames.read(0, 3))
        assert np.array_equal(read[1], images[0]) and np.array_equal(read[2], images[2])
    assert index.dropped.by_topic == {f"{TOPIC}/compressed": 1}


def test_encodings_that_are_no_picture(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for i, encoding in enumerate(("32FC1", "rgb9")):
            message = bag.make(
                IMAGE, header=bag.header(START + i), height=2, width=2, encoding=encoding,
                is_bigendian=0, step=8, data=np.zeros(16, np.uint8),
            )  # fmt: skip
            bag.put(TOPIC, IMAGE, START + i, message)
    with pytest.raises(InputError, match=r"32FC1.*distances(.|\n)*rgb9.*Did you mean 'rgb8'"):
        index_of(tmp_path / "bag")


def test_stamps_that_jump_backwards(tmp_path: Path) -> None:
    images, times = pictures(20), stamps(20)
    with SampleBag(tmp_path / "bag") as bag:
        for i, ns in enumerate(times):
            # After frame 9 the clock is an hour behind; messages come in as before.
            bag.image(images[i], ns - (3600 * 10**9 if i > 9 else 0), log_ns=ns + 10**6)
    index = index_of(tmp_path / "bag")
    assert len(index.whole.frames) == 20 and index.dropped.by_topic.total() == 0
    assert np.abs(index.whole.timestamps_ns - times).max() < 2
    assert index.header_ns[10] == times[10] - 3600 * 10**9
    assert any("jump backwards at frame 10" in note for note in index.whole.notes)


def test_the_same_stamp_twice_and_no_stamps(tmp_path: Path) -> None:
    images, times = pictures(4), stamps(4)
    with SampleBag(tmp_path / "twice") as bag:
        for i, ns in enumerate((times[0], times[1], times[1], times[3])):
            bag.image(images[i], ns)
    index = index_of(tmp_path / "twice")
    assert len(index.whole.frames) == 3 and index.dropped.by_topic == {TOPIC: 1}
    with SampleBag(tmp_path / "none") as bag:
        for i, ns in enumerate(times):
            bag.image(images[i], 0, log_ns=ns)
    index = index_of(tmp_path / "none")
    assert index.whole.timestamps_ns.tolist() == times
    assert any("no header stamps" in note for note in index.whole.notes)


def test_topics_without_pictures_or_without_a_choice(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "none") as bag:
        bag.text("/chatter", START, "hello")
    with pytest.raises(InputError, match=r"no topic with pictures.*std_msgs/msg/String"):
        index_of(tmp_path / "none")
    with SampleBag(tmp_path / "empty") as bag:
        bag.topic(TOPIC, IMAGE)
        bag.text("/chatter", START, "hello")
    with pytest.raises(InputError, match="zero messages"):
        index_of(tmp_path / "empty")
    with SampleBag(tmp_path / "many") as bag:
        bag.image(pictures(1)[0], START, topic="/head/image_raw")
        bag.image(pictures(1)[0], START, topic="/chest/image_raw")
        bag.topic("/unused/image_raw", IMAGE)
    with pytest.raises(InputError, match=r"several.*/chest/image_raw.*--image-topic"):
        index_of(tmp_path / "many")
    assert len(index_of(tmp_path / "many", image_topic="/head/image_raw").whole.frames) == 1
    with pytest.raises(InputError, match="Did you mean '/head/image_raw'"):
        index_of(tmp_path / "many", image_topic="/heat/image_raw")
    with pytest.raises(InputError, match="has zero messages"):
        index_of(tmp_path / "many", image_topic="/unused/image_raw")


def test_camera_info_missing_of_another_size_or_not_calibrated(tmp_path: Path) -> None:
    for name, options in (
        ("missing", None),
        ("other", {"size": (64, 24)}),
        ("none", {"k": (0, 0, 0, 0)}),
        ("odd", {"model": "thin_prism", "d": (1.0,)}),
    ):
        with SampleBag(tmp_path / name) as bag:
            bag.image(pictures(1)[0], START)
            if options is not None:
                bag.camera_info(START, **options)
        index = index_of(tmp_path / name)
        assert index.whole.camera is None
        assert any("camera" in note for note in index.whole.notes), name
        if options is not None:
            with pytest.raises(CalibrationError):
                index_of(tmp_path / name, camera_info_topic="/cam/camera_info")


def test_unknown_types_are_listed_and_do_no_harm(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        bag.image(pictures(1)[0], START)
        bag.raw("/arm", "maker_msgs/msg/Arm", START, b"\x00\x01\x00\x00\x05\x00\x00\x00")
    info = bag_info(tmp_path / "bag")
    assert info.to_json()["topics"]["/arm"]["known_type"] is False
    assert len(index_of(tmp_path / "bag").whole.frames) == 1


@pytest.mark.parametrize("name", ["a.mcap", "a.db3", "folder"])
def test_what_is_no_bag_says_so(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "metadata.yaml").write_text("rosbag2_bagfile_information: {}")
    else:
        path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=name):
        index_of(path)
    with pytest.raises(InputError, match="no such bag"):
        index_of(tmp_path / "nowhere.mcap")


@pytest.mark.parametrize(("storage", "compression"), [("mcap", "none"), ("mcap", "storage"),
                                                     ("sqlite3", "none")])  # fmt: skip
def test_random_damage_is_never_silent(tmp_path: Path, storage: str, compression: str) -> None:
    """Whatever bytes change: a clear error, or every picture there or counted."""
    simple_bag(tmp_path / "bag", 6, storage=storage, compression=compression)
    source = next(p for p in (tmp_path / "bag").iterdir() if p.suffix in (".mcap", ".db3"))
    good, rng = source.read_bytes(), np.random.default_rng(7)
    outcomes = set()
    for trial in range(60):
        data = bytearray(good)
        for at in rng.integers(0, len(data), rng.choice([1, 3, 20])):
            data[at] = rng.integers(256)
        if trial % 3 == 0:
            data = data[: rng.integers(1, len(data))]
        path = tmp_path / f"damaged{source.suffix}"
        path.write_bytes(bytes(data))
        try:
            index = index_of(path)
            count = sum(1 for _ in index.whole.frames.read(0, len(index.whole.frames)))
        except (InputError, CalibrationError):
            outcomes.add("refused")
            continue
        assert count == 6 or index.dropped.by_topic.total() > 0, (trial, count, index.whole.notes)
        outcomes.add("whole" if count == 6 else "partial")
    assert outcomes >= {"refused", "whole", "partial"}
