"""Anybody's LeRobot dataset gets hands beside its own columns, and those stay as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import acehand_core as ah
from acehand_core.errors import NoHandError, OutputError
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import FeatureSpec, create, video_feature
from acehand_core.lerobot.extend import add_features
from acehand_core.recordings.selection import part
from acehand_core.recordings.video_encode import encode_video
from acehand_core.trackers.mediapipe.tracker import MediaPipeTracker
from helpers import lerobot_samples as samples
from helpers.commands import Acehand
from helpers.example_video import EXAMPLE

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
LENGTHS = (12, 6, 9)
HANDS = {"observation.hand.confidence", "observation.hand.joints_camera", "hand.valid",
         "hand.joint_sigma", "observation.hand.translation"}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of an arm before two cameras; hands are in front of one, but in the second none."""
    recording = ah.open_recording(EXAMPLE, duration_s=1.0)
    height, width = recording.height, recording.width
    features = (
        video_feature(WRIST, samples.HEIGHT, samples.WIDTH),
        video_feature(FRONT, height, width),
        FeatureSpec("observation.state", "float32", (6,), tuple("abcdef")),
        FeatureSpec("action", "float32", (6,), tuple("abcdef")),
    )
    root = tmp_path_factory.mktemp("foreign") / "arm"
    random = np.random.default_rng(0)
    with create(root, 30, features, "so101") as writer:
        for number, frames in enumerate(LENGTHS):
            values = random.normal(size=(frames, 6)).astype(np.float32)
            front = writer.scratch_video(FRONT)
            if number == 1:
                samples.video(front, frames, 1, size=(width, height))
            else:
                encode_video(part(recording, number, number + frames), front, 30)
            wrist = samples.video(writer.scratch_video(WRIST), frames, number)
            writer.add_episode(
                {"observation.state": values, "action": -values},
                ("pick", "place", "pick")[number], {WRIST: wrist, FRONT: front},
            )  # fmt: skip
    # As lerobot leaves it: all rows in one data file, which describes itself.
    files = sorted(root.glob("data/*/*.parquet"))
    value = {"dtype": "float32", "_type": "Value"}
    described = {"info": {"features": {
        "action": {"feature": value, "length": 6, "_type": "List"},
        "index": {"dtype": "int64", "_type": "Value"},
    }}}  # fmt: skip
    table = pa.concat_tables([pq.read_table(file) for file in files])
    table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    for file in files[1:]:
        file.unlink()
    pq.write_table(table, files[0])
    for path in root.glob("meta/episodes/*/*.parquet"):
        rows = pq.read_table(path)
        place = rows.schema.get_field_index("data/file_index")
        rows = rows.set_column(place, "data/file_index", pa.array([0] * len(rows), pa.int64()))
        pq.write_table(rows, path)
    (root / "README.md").write_text("---\nlicense: mit\n---\n")
    (root / ".cache").mkdir()
    (root / ".cache" / "lock").write_text("")
    assert check_dataset(root, decode_all=True) == []
    return root


@pytest.fixture(scope="module")
def annotated(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("annotated") / "arm"
    from acehand_core.cli.main import main

    words = ["dataset", "annotate", dataset, "--output", output, "--video-key", FRONT, "-q"]
    assert main([*map(str, words)]) == 0
    return output


def test_what_it_had_stays_as_it_was(dataset: Path, annotated: Path) -> None:
    assert check_dataset(annotated, decode_all=True) == []
    before, after = samples.snapshot(dataset), samples.snapshot(annotated)
    for name in before:
        if name.startswith("videos/") or name in ("README.md", "meta/tasks.parquet"):
            assert after[name] == before[name], name
    assert not (annotated / ".cache").exists()
    assert samples.names_in(annotated.parent) == ["arm"]

    data = "data/chunk-000/file-000.parquet"
    own, more = pq.read_table(dataset / data), pq.read_table(annotated / data)
    assert more.select(own.column_names).equals(own)
    assert {*more.column_names} - {*own.column_names} >= HANDS
    for path in sorted(dataset.glob("meta/episodes/*/*.parquet")):
        rows = pq.read_table(path)
        now = pq.read_table(annotated / path.relative_to(dataset))
        assert now.select(rows.column_names).equals(rows)
    stats, info = (json.loads(before[f"meta/{name}.json"]) for name in ("stats", "info"))
    new_stats, new_info = (json.loads(after[f"meta/{name}.json"]) for name in ("stats", "info"))
    assert {key: new_stats[key] for key in stats} == stats
    features = info.pop("features")
    assert {key: new_info["features"][key] for key in features} == features
    assert {key: new_info[key] for key in info} == info

    # What Hugging Face's datasets read of the columns names the new ones, too.
    described = json.loads(more.schema.metadata[b"huggingface"])["info"]["features"]
    assert described["hand.valid"] == {
        "feature": {"dtype": "bool", "_type": "Value"}, "length": 2, "_type": "List"
    }  # fmt: skip
    assert described["observation.hand.joints_camera"]["length"] == 126


def test_hands_are_those_of_the_video_alone(dataset: Path, annotated: Path) -> None:
    """The same hands as of the video file by itself, which no dataset is needed to read."""
    video = dataset / "videos" / FRONT / "chunk-000/file-000.mp4"
    truth = ah.track(ah.open_recording(video), "mediapipe")
    assert truth.observed[:, 1].mean() > 0.5
    table = pq.read_table(annotated / "data/chunk-000/file-000.parquet")
    joints = np.array(table["observation.hand.joints_camera"].to_pylist(), np.float32)
    first = joints[:12].reshape(12, 2, 21, 3)
    known = truth.known
    np.testing.assert_array_equal(first[known], truth.joints_camera.astype("f4")[known])
    valid = np.array(table["hand.valid"].to_pylist())
    confidence = np.array(table["observation.hand.confidence"].to_pylist(), np.float32)
    np.testing.assert_array_equal(valid[:12], known)
    np.testing.assert_array_equal(
        confidence[:12], np.where(known, truth.quality, 0).astype(np.float32)
    )

    # Nobody is in the second episode: that is no error.
    assert not valid[12:18].any() and not confidence[12:18].any() and valid[18:].any()
    assert np.isfinite(joints).all()
    report = json.loads((annotated / "acehand/episode_000001/report.json").read_text())
    assert report["coverage"] == {"left": 0.0, "right": 0.0}
    rows = [r for f in sorted(annotated.glob("meta/episodes/*/*.parquet"))
            for r in pq.read_table(f).to_pylist()]  # fmt: skip
    np.testing.assert_allclose(
        rows[0]["stats/observation.hand.joints_camera/mean"], joints[:12].mean(0), atol=1e-6
    )
    stats = json.loads((annotated / "meta/stats.json").read_text())
    np.testing.assert_allclose(
        stats["observation.hand.joints_camera"]["max"], joints.max(0), atol=1e-6
    )


def test_the_rest_of_the_commands_work_on_it(annotated: Path, tmp_path: Path, capsys) -> None:
    root = shutil.copytree(annotated, tmp_path / "data")
    info = Acehand(capsys, "dataset", "info", root).json
    assert info["trackers"] == {"mediapipe": 3} and info["robot"] == "so101"
    assert Acehand(capsys, "dataset", "card", root, "--overwrite").code == 0
    text = (root / "README.md").read_text()
    assert "Episodes of so101, with human hands that acehand found: 3 episodes" in text
    (tmp_path / "rules.yaml").write_text("gaps: {seconds: 0.1, hands: both}")
    trim = ["dataset", "trim", root, "--rules", tmp_path / "rules.yaml"]
    run = Acehand(capsys, *trim)
    assert run.code == 0 and [e["episode"] for e in run.json["trimmed"]] == [1], run.err
    assert check_dataset(root, decode_all=True) == []


def test_an_interrupted_run_resumes(
    dataset: Path, annotated: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    track = MediaPipeTracker.track

    def tracked(self, recording, progress=None):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(recording.name)
        if len(seen) == 2:
            raise_no_hand = NoHandError("nobody is there")
            raise raise_no_hand
        return track(self, recording, progress) if progress else track(self, recording)

    monkeypatch.setattr(MediaPipeTracker, "track", tracked)
    words = ["dataset", "annotate", dataset, "--output", tmp_path / "out", "--video-key", FRONT]
    run = Acehand(capsys, *words, "--hard-links")
    assert run.code == 130 and seen == ["arm/episode_000000", "arm/episode_000001"]
    assert not (tmp_path / "out").exists()

    def last(self, recording, progress=None):
        seen.append(recording.name)
        return track(self, recording, progress) if progress else track(self, recording)

    monkeypatch.setattr(MediaPipeTracker, "track", last)
    run = Acehand(capsys, *words, "--hard-links")
    assert run.code == 0 and run.json["without_hands"] == [1]
    assert seen[2:] == ["arm/episode_000002"] and samples.names_in(tmp_path) == ["out"]
    data = "data/chunk-000/file-000.parquet"
    assert pq.read_table(tmp_path / "out" / data).equals(pq.read_table(annotated / data))
    video = "videos/" + FRONT + "/chunk-000/file-000.mp4"
    assert (tmp_path / "out" / video).samefile(dataset / video)


def test_what_cannot_be_annotated_is_refused(
    dataset: Path, annotated: Path, tmp_path: Path, capsys
) -> None:
    out = ["--output", tmp_path / "out"]
    for words, message in (
        ([dataset, *out], "choose by --video-key"),
        ([dataset, *out, "--video-key", "fron"], "'fron' is not a video"),
        ([annotated, *out, "--video-key", FRONT], "has 'observation.hand.joints_camera' already"),
        ([dataset, *out, "--video-key", FRONT, "--start", 1], "--start: of one recording"),
        ([tmp_path, *out], "not a LeRobot dataset"),
    ):
        run = Acehand(capsys, "dataset", "annotate", *words)
        assert run.code == 2 and message in run.err, run.err
        assert not (tmp_path / "out").exists()
    run = Acehand(capsys, "dataset", "annotate", dataset, "--output", annotated)
    assert run.code == 4 and "exists" in run.err


def test_a_full_disk_leaves_nothing(dataset: Path, tmp_path: Path) -> None:
    spec = FeatureSpec("reward", "float32", (1,), ("reward",))

    def columns_of(row, folder: Path):
        return {"reward": np.arange(row["length"], dtype=np.float32)}

    steps: list[str] = []
    add_features(dataset, tmp_path / "trial", [spec], columns_of, on_step=steps.append)
    assert check_dataset(tmp_path / "trial") == []
    shutil.rmtree(tmp_path / "trial")
    for at in range(len(steps) - 1):
        seen: list[str] = []

        def full(step: str, seen: list[str] = seen, at: int = at) -> None:
            seen.append(step)
            if len(seen) == at + 1:
                raise OSError(28, "No space left on device")

        with pytest.raises(OutputError, match="No space left on device"):
            add_features(dataset, tmp_path / "out", [spec], columns_of, on_step=full)
        assert samples.names_in(tmp_path) == []
