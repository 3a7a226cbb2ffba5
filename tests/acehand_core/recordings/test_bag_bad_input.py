"""Damaged and unclear bags: the rest is read, and every loss is counted and noted."""

import gc
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from acehand_core.errors import CalibrationError, InputError, OutputError
from acehand_core.recordings.bag import BagIndex
from acehand_core.recordings.bags.bag import Bag
from helpers.bag_samples import (
    COMPRESSED_TOPIC,
    IMAGE,
    START,
    TOPIC,
    SampleBag,
    assert_same,
    bag_of,
    encoded_as,
    index_of,
    pictures,
    read_images,
    simple_bag,
    stamps,
)


def big_bag(path: Path, count: int = 40, **options: str) -> list[np.ndarray]:
    """A bag of several chunks: each picture is noise of 100 kB that can be compressed."""
    rng = np.random.default_rng(0)
    images = [16 * rng.integers(0, 16, (160, 208, 3), dtype=np.uint8) for _ in range(count)]
    bag_of(path, images, **options)
    return images


def assert_in_place(index: BagIndex, images: list[np.ndarray]) -> None:
    """Each frame shows the picture of its time."""
    shown = [images[stamps(len(images)).index(t)] for t in index.whole.timestamps_ns]
    assert_same(index, shown)


def cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize(
    ("storage", "compression", "name"),
    [
        ("mcap", "none", "bag.mcap"),
        ("mcap", "storage", "bag.mcap"),
        ("mcap", "file", "bag.mcap.zstd"),
        ("sqlite3", "none", "bag.db3"),
    ],
)
def test_a_truncated_bag_gives_what_is_there(tmp_path, storage, compression, name) -> None:
    images = big_bag(tmp_path / "bag", storage=storage, compression=compression)
    file = tmp_path / "bag" / name
    cut(file, 0.6)
    index = index_of(tmp_path / "bag")
    count = len(index.whole.frames)
    assert 15 <= count <= 30
    assert_in_place(index, images)
    # metadata.yaml has how many there were.
    assert index.dropped.by_topic == {TOPIC: 40 - count}
    note = "bag.mcap.zstd: damaged" if compression == "file" else "cut off or damaged at byte"
    assert any(note in n for n in index.whole.notes) or storage == "sqlite3"
    if storage == "mcap" and compression != "file":
        (tmp_path / "bag" / "metadata.yaml").unlink()
        bare = index_of(file)
        assert len(bare.whole.frames) == count and bare.dropped.by_topic["*"] >= 1
    if compression == "file":
        cut(file, 0.001)
        with pytest.raises(InputError, match=r"bag/bag\.mcap\.zstd: .*damaged"):
            Bag(tmp_path / "bag")


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
    assert_in_place(index, images)


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


@pytest.mark.parametrize("content", [None, "other: keys\n", "{broken: [\n"])
def test_metadata_missing_or_damaged(tmp_path: Path, content: str | None) -> None:
    images = simple_bag(tmp_path / "bag", 4)
    path = tmp_path / "bag" / "metadata.yaml"
    path.unlink() if content is None else path.write_text(content)
    index = index_of(tmp_path / "bag")
    assert_same(index, images)
    assert any("metadata.yaml is" in note for note in index.whole.notes)


def test_a_listed_file_that_is_missing(tmp_path: Path) -> None:
    simple_bag(tmp_path / "bag", 4)
    path = tmp_path / "bag" / "metadata.yaml"
    path.write_text(path.read_text().replace("- bag.mcap", "- bag.mcap\n  - bag_1.mcap"))
    index = index_of(tmp_path / "bag")
    assert len(index.whole.frames) == 4 and index.dropped.by_topic["*"] == 1
    (tmp_path / "bag" / "bag.mcap").unlink()
    with pytest.raises(InputError, match="none of the files"):
        index_of(tmp_path / "bag")


def other_sizes(bag: SampleBag) -> tuple[list[int], str]:
    bag.images([*pictures(8), *pictures(3, 48, 32)])
    return stamps(8), "48 x 32, not 32 x 24"


def impossible_times_of_receipt(bag: SampleBag) -> tuple[list[int], str]:
    times = stamps(6)
    for image, ns, last in zip(pictures(6), times, (0, 0, 64, 63, 64, 0), strict=True):
        bag.image(image, ns, log_ns=2**last - 1 if last else None)
    return [*times[:2], times[5]], ""


def messages_that_do_not_decode(bag: SampleBag) -> tuple[list[int], str]:
    bag.images(pictures(8))
    for i, data in enumerate((b"\x00\x01\x00\x00rubbish", b"", b"\x00")):
        bag.raw(TOPIC, IMAGE, START + 10**9 + i, data)
    return stamps(8), ""


def the_same_stamp(bag: SampleBag) -> tuple[list[int], str]:
    for image, ns in zip(pictures(7), [*stamps(4), *[stamps(4)[3]] * 3], strict=True):
        bag.image(image, ns)
    return stamps(4), ""


@pytest.mark.parametrize("compression", ["none", "storage"])
@pytest.mark.parametrize(
    "write", [other_sizes, impossible_times_of_receipt, messages_that_do_not_decode, the_same_stamp]
)
def test_three_messages_are_lost(tmp_path: Path, write: Callable, compression: str) -> None:
    with SampleBag(tmp_path / "bag", compression=compression) as bag:
        kept, note = write(bag)
    index = index_of(tmp_path / "bag")
    assert index.whole.timestamps_ns.tolist() == kept
    assert index.dropped.by_topic == {TOPIC: 3}
    assert note in " ".join(index.whole.notes)


def test_pictures_that_are_cut_off_or_of_no_known_kind(tmp_path: Path) -> None:
    jpeg, png = (encoded_as(kind, pictures(1)[0]) for kind in ("jpg", "png"))
    bent, noise, times = png.copy(), np.arange(50, dtype=np.uint8), stamps(6)
    bent[60] ^= 255
    with SampleBag(tmp_path / "bag") as bag:
        for data, ns in zip((jpeg, jpeg[:200], png[:200], bent, noise, jpeg), times, strict=True):
            bag.compressed_bytes(data, ns, "jpeg")
    index = index_of(tmp_path / "bag")
    assert index.whole.timestamps_ns.tolist() == [times[0], times[5]]
    assert index.dropped.by_topic == {COMPRESSED_TOPIC: 4}
    text = " ".join(index.whole.notes)
    assert "cut off" in text and "damaged png" in text and "neither jpeg nor png" in text


def test_damage_that_only_decoding_shows(tmp_path: Path) -> None:
    """The picture before stands in, and the loss is counted once however often it is read."""
    images = pictures(3, 64, 48)
    files = [encoded_as(kind, i) for kind, i in zip(("png", "jpg", "png"), images, strict=True)]
    table = bytes(files[1]).index(b"\xff\xc4")  # the Huffman tables
    files[1][table + 4 : table + 40] = 255
    with SampleBag(tmp_path / "bag") as bag:
        for data, ns in zip(files, stamps(3), strict=True):
            bag.compressed_bytes(data, ns, "jpeg")
    index = index_of(tmp_path / "bag")
    for _ in range(2):
        assert_same(index, [images[0], images[0], images[2]])
    assert index.dropped.by_topic == {COMPRESSED_TOPIC: 1}


def test_encodings_that_are_no_picture(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for i, encoding in enumerate(("32FC1", "bayer_rggb16", "rgb9")):  # OpenCV needs 3 x 3
            bag.pixels(np.zeros((2, 8), np.uint8), (2, 2), START + i, encoding)
    with pytest.raises(
        InputError, match=r"32FC1.*distances(.|\n)*2 x 2 .*rggb16(.|\n)*rgb9.*'rgb8'"
    ):
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


def test_without_header_stamps_the_time_of_receipt_counts(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        for image, ns in zip(pictures(4), stamps(4), strict=True):
            bag.image(image, 0, log_ns=ns)
    index = index_of(tmp_path / "bag")
    assert index.whole.timestamps_ns.tolist() == stamps(4)
    assert any("no header stamps" in note for note in index.whole.notes)


def test_topics_without_pictures_or_without_a_choice(tmp_path: Path) -> None:
    with SampleBag(tmp_path / "none") as bag:
        bag.text("/chatter", START, "hello")
    with SampleBag(tmp_path / "empty") as bag:
        bag.topic(TOPIC, IMAGE)
        bag.text("/chatter", START, "hello")
    with SampleBag(tmp_path / "many") as bag:
        bag.image(pictures(1)[0], START, topic="/head/image_raw")
        bag.image(pictures(1)[0], START, topic="/chest/image_raw")
        bag.topic("/unused/image_raw", IMAGE)
    for name, topic, message in (
        ("none", None, "std_msgs/msg/String"),
        ("empty", None, "zero messages"),
        ("many", None, "/chest/image_raw.*`image_topic`"),
        ("many", "/heat/image_raw", "Did you mean '/head/image_raw'"),
        ("many", "/unused/image_raw", "zero messages"),
    ):
        with pytest.raises(InputError, match=message):
            index_of(tmp_path / name, **({"image_topic": topic} if topic else {}))
    assert len(index_of(tmp_path / "many", image_topic="/head/image_raw").whole.frames) == 1


@pytest.mark.parametrize(
    "options",
    [
        None,
        {"size": (64, 24)},
        {"k": (0, 0, 0, 0)},
        {"model": "thin_prism", "d": (1.0,)},
        {"model": "rational_polynomial", "d": (0.1,) * 12},
        {"model": "rational_polynomial", "d": (0.1,) * 6},
    ],
)
def test_camera_info_that_gives_no_camera(tmp_path: Path, options: dict | None) -> None:
    with SampleBag(tmp_path / "bag") as bag:
        bag.image(pictures(1)[0], START)
        if options is not None:
            bag.camera_info(START, **options)
    index = index_of(tmp_path / "bag")
    assert index.whole.camera is None
    assert any("camera" in note for note in index.whole.notes)
    if options is not None:
        with pytest.raises(CalibrationError):
            index_of(tmp_path / "bag", camera_info_topic="/cam/camera_info")


@pytest.mark.parametrize("name", ["a.mcap", "a.db3", "folder", "nowhere.mcap", "pipe.mcap"])
def test_what_is_no_bag_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "metadata.yaml").write_text("rosbag2_bagfile_information: {}")
    elif name == "pipe.mcap":
        os.mkfifo(path)
    elif name != "nowhere.mcap":
        path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=name):
        index_of(path)


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
            count = len(read_images(index))
        except (InputError, CalibrationError):
            outcomes.add("refused")
            continue
        assert count == 6 or index.dropped.by_topic.total() > 0, (trial, count, index.whole.notes)
        outcomes.add("whole" if count == 6 else "partial")
    assert outcomes >= {"refused", "whole", "partial"}
