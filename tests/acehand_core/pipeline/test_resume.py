"""Going on with an interrupted run: nothing is lost, nothing is made twice, nothing is mixed."""

import json
from pathlib import Path

import numpy as np
import pytest

from acehand_core.lerobot.dataset import JOB, read_provenance
from acehand_core.lerobot.transaction import claim
from acehand_core.pipeline import plan
from helpers.commands import GripperRun as Run
from helpers.commands import hands_file
from helpers.dying_runs import stop_at
from helpers.example_video import example_frames
from helpers.lerobot_samples import check_every_frame
from helpers.video_fixtures import write_video


def stamps(dataset: Path) -> list[int]:
    import pyarrow.parquet as pq

    files = sorted(dataset.glob("data/*/*.parquet"))
    name = "observation.source_timestamp_ns"
    return [int(np.ravel(v)[0]) for f in files for v in pq.read_table(f)[name].to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("finished", [1, 2])
def test_the_missing_parts_of_a_split_recording_are_made(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(plan, "max_episode_frames", lambda fps: 10)
    hands, out = hands_file(tmp_path / "long.npz", 26), tmp_path / "out"
    with monkeypatch.context() as patch:
        stop_at(patch, finished)
        assert Run(capsys, hands, "--output", out).code == 130
    assert len(read_provenance(out)) == finished
    run = Run(capsys, hands, "--output", out, "--resume")
    assert run.code == 0
    assert [e["frames"] for e in run.json["episodes"]] == [10, 10, 6][finished:]
    assert run.json["skipped"] == [f"{hands}: {finished} of 3 parts"]
    assert stamps(out) == [round(k * 1e9 / 30) for k in range(26)]
    assert check_every_frame(out) == []
    again = Run(capsys, hands, "--output", out, "--resume")
    assert again.code == 0 and again.json["skipped"] == [str(hands)]
    assert len(read_provenance(out)) == 3


@pytest.mark.parametrize("existing", ["", "--resume", "--overwrite", "--dry-run"])
def test_a_run_leaves_the_work_of_another_that_makes_its_output(existing, tmp_path, capsys):
    hands, out = hands_file(tmp_path / "h.npz"), tmp_path / "out"
    work = tmp_path / ".out.acehand-work/segment.npz"
    work.parent.mkdir()
    work.touch()
    base, lock = claim(out)  # as the other run does
    with lock:
        run = Run(capsys, hands, "--output", out, *existing.split())
    assert run.code == (0 if existing == "--dry-run" else 4) and work.exists() and base.exists()
    base.rmdir()
    assert Run(capsys, hands, "--output", out).code == 0 and not work.exists()


CHANGES = {"hands": "left", "method": "dex-vector", "task": "another", "fps": "15"}


def test_other_settings_are_not_mixed_in(tmp_path, capsys):
    hands, out = hands_file(tmp_path / "h.npz"), tmp_path / "out"
    assert Run(capsys, hands, "--output", out).code == 0
    new = hands_file(tmp_path / "new.npz", 14)
    for name, value in CHANGES.items():
        run = Run(capsys, new, hands, "--output", out, "--resume", f"--{name}", value)
        assert run.code == 2 and "skipped" not in run.json
        assert [other for other in CHANGES if f"--{other} is" in run.err] == [name]
    assert len(read_provenance(out)) == 1  # the new input would have been made otherwise


def test_datasets_of_older_versions_resume(tmp_path, capsys, monkeypatch):
    hands, out = hands_file(tmp_path / "h.npz"), tmp_path / "out"
    assert Run(capsys, hands, "--output", out).code == 0
    (record,) = read_provenance(out)
    settings = record[JOB]["settings"]
    settings["solver"], settings["prior"] = settings.pop("method"), "off"
    settings["gates"] = settings.pop("limits")
    monkeypatch.setattr("acehand_core.lerobot.dataset.read_provenance", lambda _: [record])
    run = Run(capsys, hands, "--output", out, "--resume")
    assert run.code == 0 and run.json["skipped"] == [str(hands)]


def test_settings_of_the_camera_and_the_hand_count(tmp_path, capsys):
    video, camera = write_video(tmp_path / "v.mp4", example_frames(6)), tmp_path / "camera.json"
    values = {"model": "pinhole", "width": 640, "height": 480, "fx": 600, "fy": 600, "cx": 319.5,
              "cy": 239.5, "distortion": []}  # fmt: skip
    camera.write_text(json.dumps(values))
    arguments = [video, "--output", tmp_path / "out", "--no-overlay"]
    assert Run(capsys, *arguments, "--camera", camera).code == 0
    changed = ["--intrinsics", "600,600,319.5,239.5", "--mirrored", "--hand-length", "0.18"]
    run = Run(capsys, *arguments, "--resume", *changed)
    assert run.code == 2
    for name in ("intrinsics", "camera", "mirrored", "hand_length"):
        assert f"`{name}` is" in run.messages
    # The same content under another name is the same camera; mediapipe is what auto stands for.
    other = camera.rename(tmp_path / "other.json")
    run = Run(capsys, *arguments, "--resume", "--camera", other, "--tracker", "mediapipe")
    assert run.code == 0 and run.json["skipped"] == [str(video)]
    other.write_text(json.dumps({**values, "fx": 610}))
    run = Run(capsys, *arguments, "--resume", "--camera", other)
    assert run.code == 2 and "`camera` is 'file" in run.messages


def test_an_episode_whose_task_lerobot_changed_is_known(tmp_path, capsys):
    import pyarrow.parquet as pq

    out = tmp_path / "out"
    words = (hands_file(tmp_path / "h.npz"), "--output", out)
    assert Run(capsys, *words).code == 0
    before = read_provenance(out)
    for path in out.glob("data/*/*.parquet"):  # modify_tasks of lerobot 0.6.1 leaves no metadata
        pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
    assert read_provenance(out) == before
    assert Run(capsys, *words, "--resume").json["skipped"] == [str(words[0])]


@pytest.mark.slow
def test_inputs_are_known_by_their_own_content(tmp_path, capsys):
    """Hands that were made from a video are not that video, nor is a tracker file its video."""
    video = write_video(tmp_path / "v.mp4", example_frames(6))
    out = tmp_path / "a"
    assert Run(capsys, video, "--output", out, "--no-overlay").code == 0
    hands = out / "acehand" / "episode_000000" / "hand_motion.parquet"
    run = Run(capsys, hands, "--output", tmp_path / "b")
    (record,) = read_provenance(tmp_path / "b")
    assert run.json["episodes"][0]["source"] == str(hands)
    assert record[JOB]["input"] == "hand_motion.parquet" and record["source"] == "v.mp4"
    assert Run(capsys, hands, "--output", tmp_path / "b", "--resume").json["skipped"]
    both = [video, "--tracker", hands, "--output", tmp_path / "c", "--no-overlay"]
    assert Run(capsys, *both).code == 0
    run = Run(capsys, *both, "--resume")
    assert run.json["skipped"] == [str(video)] and len(read_provenance(tmp_path / "c")) == 1
