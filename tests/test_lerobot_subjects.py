"""Who is recorded is kept with every episode, and no subject is in two parts of a drawn split."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.dataset import create, read_provenance
from helpers import lerobot_samples as samples
from helpers.commands import Acehand, Run, hands_file

#: Per episode: recording, subject, task. Cat's recording 6 also shows dan.
SHOWN = [
    ("a.mp4", "ann", "wave"), ("b.mp4", "ben", "wave"), ("c.mp4", "ann", "stir"),
    ("d.mp4", None, "wave"), ("d.mp4", None, "stir"), ("e.mp4", "Cat/1", "wave"),
    ("f.mp4", "Cat/1", "wave"), ("f.mp4", "dan", "wave"), ("g.mp4", "dan", "stir"),
    ("h.mp4", None, "wave"), ("i.mp4", "ben", "stir"), ("j.mp4", "eve", "wave"),
]  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of ``SHOWN``, episodes of three frames."""
    root = tmp_path / "data"
    with create(root, samples.FPS, samples.FEATURES, samples.ROBOT) as writer:
        for number, (name, subject, task) in enumerate(SHOWN):
            video = samples.video(writer.scratch_video(samples.EGO), 3, number)
            record = {"job": {"input": name, "input_sha256": f"{ord(name[0]):064x}"}}
            writer.add_episode(samples.columns(3, number), task, {samples.EGO: video}, record)
            folder = root / "acehand" / f"episode_{number:06d}"
            folder.mkdir(parents=True)
            said = {"episode_index": number} | ({"subject": subject} if subject else {})
            (folder / "report.json").write_text(json.dumps(said))
            (folder / "contact_sheet.png").write_bytes(b"sheet")
            (folder / "hand_motion.parquet").write_bytes(b"hands")
    return root


def parts(capsys, root: Path, *arguments: object) -> dict[str, list[int]]:
    run = Acehand(capsys, "dataset", "split", root, *arguments)
    assert run.code == 0, run.err
    return {part["name"]: part["episodes"] for part in run.json["parts"]}


@pytest.mark.parametrize(
    ("by", "wanted"),
    [
        ("subject", {"ann": [0, 2], "ben": [1, 10], "d-mp4": [3, 4], "cat-1": [5, 6],
                     "dan": [7, 8], "h-mp4": [9], "eve": [11]}),
        ("recording", {"a-mp4": [0], "b-mp4": [1], "c-mp4": [2], "d-mp4": [3, 4], "e-mp4": [5],
                       "f-mp4": [6, 7], "g-mp4": [8], "h-mp4": [9], "i-mp4": [10], "j-mp4": [11]}),
        ("task", {"wave": [0, 1, 3, 5, 6, 7, 9, 11], "stir": [2, 4, 8, 10]}),
        (None, {"wave": [0, 1, 3, 5, 6, 7, 9, 11], "stir": [2, 4, 8, 10]}),
    ],
)  # fmt: skip
def test_a_dataset_of_each(dataset: Path, tmp_path: Path, capsys, by: str | None, wanted) -> None:
    output = tmp_path / "parts"
    by_what = [] if by is None else ["--by", by]
    assert parts(capsys, dataset, "--output", output, *by_what) == wanted
    assert samples.names_in(output) == sorted(wanted)
    for name, episodes in wanted.items():
        assert check_dataset(output / name) == []
        reports = sorted((output / name).glob("acehand/*/report.json"))
        said = [json.loads(path.read_text()).get("subject") for path in reports]
        assert said == [SHOWN[number][1] for number in episodes]


def test_no_subject_is_in_two_drawn_parts(dataset: Path, tmp_path: Path, capsys) -> None:
    drawn, leaks = set(), 0
    for seed in range(6):
        shares = ["--shares", "train=0.7,test=0.3", "--seed", seed]
        made = parts(capsys, dataset, *shares, "--output", tmp_path / f"s{seed}")
        assert sorted(made["train"] + made["test"]) == list(range(12))
        for shown in (0, 1):  # neither a recording nor a subject
            sides = [{SHOWN[k][shown] for k in made[part]} - {None} for part in ("train", "test")]
            assert not sides[0] & sides[1]
        drawn.add(tuple(made["test"]))

        # Subjects are not asked for: recordings alone stay together.
        shares += ["--by", "recording", "--output", tmp_path / f"r{seed}"]
        made = parts(capsys, dataset, *shares)
        sides = [{SHOWN[k][0] for k in made[part]} for part in ("train", "test")]
        assert not sides[0] & sides[1]
        leaks += bool({SHOWN[k][1] for k in made["train"]} & {SHOWN[k][1] for k in made["test"]})
    assert len(drawn) > 1 and leaks


def test_tasks_stay_together_where_that_is_asked(dataset: Path, tmp_path: Path, capsys) -> None:
    shares = ["--shares", "a=0.6,b=0.4", "--by", "task", "--output", tmp_path / "parts"]
    made = parts(capsys, dataset, *shares)
    assert sorted(len(episodes) for episodes in made.values()) == [4, 8]


def test_subjects_that_nobody_named_are_refused(dataset: Path, tmp_path: Path, capsys) -> None:
    for path in dataset.glob("acehand/*/report.json"):
        path.write_text("{}")
    for shares in ([], ["--shares", "train=0.7,test=0.3"]):
        run = Acehand(
            capsys, "dataset", "split", dataset, "--by", "subject", *shares,
            "--output", tmp_path / "parts",
        )  # fmt: skip
        assert run.code == 2 and "no episode has a subject" in run.err and "--subject" in run.err
        assert samples.names_in(tmp_path) == ["data"]


def test_the_main_job_keeps_the_subject(tmp_path: Path, capsys) -> None:
    root, joints = tmp_path / "out", hands_file(tmp_path / "joints.npz")
    refused = Run(capsys, joints, "--output", root, "--subject", " ")
    assert refused.code == 2 and "--subject is empty" in refused.err and not root.exists()
    dry = Run(capsys, joints, "--output", root, "--subject", "s01", "--dry-run")
    run = Run(capsys, joints, "--output", root, "--subject", "s01")
    assert run.code == 0 and run.json["episodes"][0]["subject"] == "s01"
    assert dry.json["episodes"][0]["subject"] == "s01"
    assert Run(capsys, joints, "--output", root, "--append").code == 0

    reports = [json.loads(path.read_text()) for path in sorted(root.glob("acehand/*/report.json"))]
    assert reports[0]["subject"] == "s01" and "subject" not in reports[1]
    settings = [record["job"]["settings"] for record in read_provenance(root)]
    assert settings[0]["subject"] == "s01" and "subject" not in settings[1]

    # Another subject is another episode; an interrupted run is resumed as it was.
    again = Run(capsys, joints, "--output", root, "--subject", "s01", "--resume")
    assert again.code == 0 and again.json["skipped"]
    other = Run(capsys, joints, "--output", root, "--subject", "s02", "--resume")
    assert other.code == 2 and "--subject is 's02', not " in other.err

    info = Acehand(capsys, "dataset", "info", root)
    assert info.json["subjects"] == {"s01": 1, "unknown": 1} and "subject: 1 s01" in info.err
    (tmp_path / "rules.yaml").write_text("subject: [s01]")
    rules = ["--rules", tmp_path / "rules.yaml", "--dry-run"]
    assert Acehand(capsys, "dataset", "filter", root, *rules).json["removed"][0]["episode"] == 1

    # A card tells how many, not who.
    assert Acehand(capsys, "dataset", "card", root).code == 0
    text = (root / "README.md").read_text()
    assert "2 episodes of 1 recordings of 1 subject and others," in text
    assert "s01" not in text
    assert Acehand(capsys, "dataset", "remove", root, 1).code == 0
    assert Acehand(capsys, "dataset", "card", root, "--overwrite").code == 0
    text = (root / "README.md").read_text()
    assert "1 episodes of 1 recordings of 1 subject," in text and "- robot: `inspire`" in text
    assert "s01" not in text
