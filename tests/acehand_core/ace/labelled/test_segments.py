"""Lists of segments: fixed by rule, hashed, drawn without regard to order, refused when changed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acehand_core.ace.labelled.segments import make_segments, read_segments, write_segments
from acehand_core.cli.main import main
from acehand_core.errors import InputError, OutputError, SchemaError
from helpers import evaluation_samples


def test_the_tiling_of_the_paper_on_hoi4d():
    """166 recordings of 300 frames give the paper's 498 segments."""
    segments = make_segments([(f"c{i:03d}", 300) for i in range(166)], "a", "hoi4d", "test")
    assert len(segments.segments) == 498
    first = segments.segments[0]
    assert (first.id, first.clip, first.start, first.stop) == ("hoi4d--c000--000000", "c000", 0, 81)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    length=st.integers(1, 90),
    stride=st.integers(1, 120),
)
def test_segments_tile_their_clips(lengths, length, stride):
    clips = [(f"c{i}", n) for i, n in enumerate(lengths)]
    expected = sum(max(0, (n - length) // stride + 1) for n in lengths)
    if expected == 0:
        with pytest.raises(InputError, match="no clip has"):
            make_segments(clips, "a", "d", "test", length, stride)
        return
    made = make_segments(clips, "a", "d", "test", length, stride)
    assert len(made.segments) == expected
    assert make_segments(clips[::-1], "b", "d", "test", length, stride).sha256 == made.sha256
    for segment in made.segments:
        assert segment.start >= 0 and segment.stop <= dict(clips)[segment.clip]


def test_a_draw_is_fixed_by_its_seed():
    clips = [(f"c{i}", 400) for i in range(20)]
    full = make_segments(clips, "a", "d", "test")
    drawn = [make_segments(clips, "a", "d", "test", count=10, seed=seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] and drawn[0].sha256 != drawn[2].sha256
    assert set(drawn[0].segments) < set(full.segments)
    # This must never change: other people's results name it.
    assert drawn[0].sha256.startswith("3bcf684fa7cdb3e9")
    with pytest.raises(InputError, match="81 of 80"):
        make_segments(clips, "a", "d", "test", count=81)


def test_files_come_back_and_changes_are_noticed(tmp_path):
    made = make_segments([("c0", 200)], "d-test-81", "d", "test")
    path = tmp_path / "segments.json"
    write_segments(made, path)
    assert read_segments(path) == made
    assert made.summary() == {
        "name": "d-test-81", "sha256": made.sha256, "count": 2, "split": "test", "frames": 81,
    }  # fmt: skip
    assert made.by_id()["d--c0--000081"].start == 81
    with pytest.raises(OutputError, match="exists"):
        write_segments(made, path)
    value = json.loads(path.read_text())
    for change, words in (
        ({"seed": 3}, "changed"),
        ({"segments": value["segments"] * 2}, "twice"),
        ({"segments": []}, "no segments"),
        ({"segments": [{**value["segments"][0], "stop": 90}]}, "81 frames are needed"),
        ({"segments": [{**value["segments"][0], "id": "../x"}]}, "segment name"),
        ({"segments": [{"id": "a"}]}, r"segments\[0\]\.\w+ is missing"),
        ({"format": "other"}, "acehand.segments"),
        ({"version": 9}, "version 9"),
        ({"colour": 1}, "colour"),
    ):
        path.write_text(json.dumps({**value, **change}))
        with pytest.raises(SchemaError, match=words):
            read_segments(path)


def test_command_line(tmp_path, capsys):
    evaluation_samples.store(tmp_path / "store", {"long": 170, "short": 80}, name="toy")
    arguments = ["evaluate", "--ground-truth", str(tmp_path / "store"), "--write-segments",
                 str(tmp_path / "s.json"), "--json"]  # fmt: skip
    assert main(arguments) == 0
    out = json.loads(capsys.readouterr().out.splitlines()[-1])
    made = read_segments(tmp_path / "s.json")
    assert out == {**made.summary(), "output": str(tmp_path / "s.json")}
    assert [s.id for s in made.segments] == ["toy--long--000000", "toy--long--000081"]
    assert main(arguments) == 4
    assert main([*arguments, "--overwrite", "--segment-count", "3"]) == 2
    assert "3 of 2 segments" in capsys.readouterr().err
