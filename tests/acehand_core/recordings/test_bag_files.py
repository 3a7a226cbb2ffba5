"""Which files make a bag, and what of its messages is lost, counted by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from acehand_core.errors import InputError
from acehand_core.motion import DroppedMessages
from acehand_core.recordings.bags.bag import Bag
from acehand_core.recordings.bags.library import UnpackedFiles
from acehand_core.recordings.bags.records import Message
from helpers.bag_samples import TOPIC, simple_bag


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A bag with 2 pictures and 2 camera infos."""
    simple_bag(tmp_path / "bag", 2)
    return tmp_path / "bag"


def change(bag: Path, **values: object) -> None:
    """Change entries of a bag's metadata.yaml."""
    path = bag / "metadata.yaml"
    content = yaml.safe_load(path.read_text())
    content["rosbag2_bagfile_information"] |= values
    path.write_text(yaml.safe_dump(content))


def file_of(counts: dict[str, int] | None, *messages: tuple[str, int]) -> SimpleNamespace:
    """A storage file that counts messages and reads some."""
    read = [Message(topic, log_ns, b"", 0, (0, 0, 0)) for topic, log_ns in messages]
    return SimpleNamespace(
        counts=counts,
        messages=lambda topics, dropped: iter(m for m in read if not topics or m.topic in topics),
        close=lambda: None,
    )


def test_messages_that_a_file_counts_and_does_not_hold(small: Path) -> None:
    with Bag(small) as bag:
        for file in bag._files:
            file.close()
        bag._files = [
            file_of({"a": 3, "b": 1}, ("a", 5), ("b", 6)),
            file_of({"a": 2}, ("a", 7)),
            file_of(None, ("a", 8)),
        ]
        dropped = DroppedMessages()
        dropped.count("a", "of before", unread=True)
        read = list(bag.messages(None, dropped))
        assert [(m.topic, m.log_ns, m.file) for m in read] == [
            ("a", 5, 0), ("b", 6, 0), ("a", 7, 1), ("a", 8, 2),
        ]  # fmt: skip
        assert dropped.by_topic == {"a": 1 + 2 + 1} and dropped.unread == {"a": 4}
        assert sum("file" in reason for reason in dropped.reasons) == 1

        some = DroppedMessages()
        assert [m.topic for m in bag.messages({"b"}, some)] == ["b"]
        assert some.by_topic == {}


def test_times_of_receipt_after_2116_are_damage(small: Path) -> None:
    with Bag(small) as bag:
        bag._files[0].close()
        times = (2**62, 2**62 + 1, -(2**62), -(2**62) - 1)
        bag._files = [file_of({"a": 4}, *(("a", log_ns) for log_ns in times))]
        dropped = DroppedMessages()
        assert [m.log_ns for m in bag.messages(None, dropped)] == [2**62, -(2**62)]
        assert dropped.by_topic == dropped.unread == {"a": 2}
        assert list(dropped.reasons.values()) == [2]


def test_messages_that_metadata_lists_and_files_do_not_hold(small: Path) -> None:
    with Bag(small) as bag:
        dropped = DroppedMessages()
        dropped.count("*", "cut off", unread=True)
        dropped.count(TOPIC, "cut off", unread=True)
        bag.count_missing({TOPIC, "/cam/camera_info"}, Counter({TOPIC: 1}), dropped)
        # 1 picture read and 1 known to be lost; of 2 camera infos nothing is known.
        assert dropped.by_topic == {TOPIC: 1, "/cam/camera_info": 2}
        assert any("metadata.yaml" in reason for reason in dropped.reasons)

        dropped = DroppedMessages()
        dropped.count("*", "cut off", unread=True)
        bag.count_missing({TOPIC, "/other"}, Counter({TOPIC: 2}), dropped)
        assert dropped.by_topic == {"*": 1}
        bag.count_missing({TOPIC, "/other"}, Counter({TOPIC: 1}), dropped)
        assert dropped.by_topic == {TOPIC: 1}


def test_a_missing_file_loses_what_metadata_counts_of_it(small: Path) -> None:
    change(
        small,
        relative_file_paths=["bag.mcap", "sub/gone_1.mcap", "gone_2.mcap"],
        files=[{"path": n, "message_count": c} for n, c in (("bag.mcap", 4), ("gone_1.mcap", 9))],
    )
    with Bag(small) as bag:
        assert [path.name for path in bag.storage_paths] == ["bag.mcap"]
        assert bag.dropped.by_topic == {"*": 9 + 1}  # at least one
        assert [remark.split(":")[0] for remark in bag.dropped.remarks] == [
            "gone_1.mcap", "gone_2.mcap",
        ]  # fmt: skip
        assert all("metadata.yaml" in remark for remark in bag.dropped.remarks)
        assert any("missing file" in reason for reason in bag.dropped.reasons)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("nothing: of ours\n", "rosbag2_bagfile_information"),
        ("{broken: [\n", "while parsing"),
        ("rosbag2_bagfile_information: {relative_file_paths: [bag.mcap], "
         "topics_with_message_count: [{topic_metadata: {name: /a}, message_count: many}]}", "many"),
    ],
)  # fmt: skip
def test_damaged_metadata_says_why(small: Path, content: str, named: str) -> None:
    (small / "metadata.yaml").write_text(content)
    with Bag(small) as bag:
        (remark,) = bag.dropped.remarks
        assert "metadata.yaml" in remark and named in remark and "\n" not in remark
        assert bag.promised == {} and bag.storage_paths == [small / "bag.mcap"]
        assert sum(1 for _ in bag.messages(None, bag.dropped)) == 4


def test_several_bags_in_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Bag(tmp_path)
    assert "metadata.yaml" not in str(error.value) and ".db3" in str(error.value)
    for name in ("b.mcap", "a.mcap", "note.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"metadata\.yaml: a\.mcap, b\.mcap;"):
        Bag(tmp_path)
    with pytest.raises(InputError, match=r"note\.txt"):
        Bag(tmp_path / "note.txt")


def test_a_file_that_cannot_be_opened_is_lost(small: Path) -> None:
    (small / "bad.mcap").write_bytes(b"nothing of the kind")
    change(small, relative_file_paths=["bad.mcap", "bag.mcap"])
    with Bag(small) as bag:
        assert bag.dropped.by_topic == {"*": 1}
        (remark,) = bag.dropped.remarks
        assert "bad.mcap" in remark
        assert sum(1 for _ in bag.messages(None, bag.dropped)) == 4
    (small / "bag.mcap").unlink()
    with pytest.raises(InputError, match=r"bad\.mcap"):
        Bag(small)
    change(small, relative_file_paths=["bad.mcap"])
    with pytest.raises(InputError, match=r"bad\.mcap"):
        Bag(small)
    (small / "more.mcap").write_bytes(b"nor this")
    change(small, relative_file_paths=["bad.mcap", "more.mcap"])
    with pytest.raises(InputError, match=r"bad\.mcap.*more\.mcap"):
        Bag(small)


@pytest.mark.parametrize(
    ("storage", "compression"),
    [("mcap", "none"), ("mcap", "message"), ("sqlite3", "none"), ("sqlite3", "message")],
)
def test_messages_are_found_again_by_their_place(
    tmp_path: Path, storage: str, compression: str
) -> None:
    """Of a folder and of its file alone."""
    images = simple_bag(tmp_path / "bag", 2, storage=storage, compression=compression)
    for path in (tmp_path / "bag", *(tmp_path / "bag").glob("bag.*")):
        with Bag(path) as bag:
            assert bag.dropped.by_topic == {}
            listed = list(bag.messages({TOPIC}, bag.dropped))
            assert [bytes(bag.read(m.file, m.place)) for m in listed] == [
                bytes(m.data) for m in listed
            ]
            assert bag.dropped.by_topic == {} and bag.storage == storage
        assert all(
            image.tobytes() in bytes(m.data) for image, m in zip(images, listed, strict=True)
        )


@pytest.mark.parametrize("shared", [False, True])
def test_copies_go_with_whoever_owns_them(tmp_path: Path, shared: bool) -> None:
    simple_bag(tmp_path / "bag", 2, compression="file")
    copies = UnpackedFiles() if shared else None
    heard = []
    with Bag(tmp_path / "bag", lambda: heard.append(1), copies) as bag:
        (opened,) = (file.path for file in bag._files)
        assert opened.name == "bag.mcap" and opened.is_file() and heard
        assert sum(1 for _ in bag.messages(None, bag.dropped)) == 4
    assert opened.is_file() == shared
    if copies:
        copies.remove()
        assert not opened.exists()
