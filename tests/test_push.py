"""What goes to the Hugging Face Hub, what never does, and what is refused. No network."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pyarrow.parquet as pq
import pytest

from acehand_core.lerobot.edit import remove_episodes
from helpers import lerobot_samples as samples
from helpers.commands import Acehand

huggingface_hub = pytest.importorskip("huggingface_hub")
REPO = "somebody/cups"
CARD = ["--license", "cc-by-4.0", "--consent", "All signed form B."]


@pytest.fixture
def dataset(tmp_path: Path, capsys) -> Path:
    """A dataset with a card, an episode set aside, and what else may lie about."""
    root = samples.write(tmp_path / "data")
    for number in range(3):
        folder = root / f"acehand/episode_{number:06d}"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text("{}")
        (folder / "contact_sheet.png").write_bytes(b"sheet")
        (folder / "hand_motion.parquet").write_bytes(b"hands")
    remove_episodes(root, [1])
    (root / "LICENSE.txt").write_text("mine")
    for name in (
        "notes.txt",
        ".env",
        "acehand/episode_000000/private.mov",
        "data/x.lock",
    ):
        (root / name).write_text("SECRET")
    assert Acehand(capsys, "dataset", "card", root, *CARD).code == 0
    return root


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The Hub's client with the signatures of the real one; it has another version's files."""
    api = create_autospec(huggingface_hub.HfApi, instance=True)
    api.list_repo_files.return_value = [
        ".gitattributes", "README.md", "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-099.parquet", "videos/old/chunk-000/file-000.mp4", "picture.png",
    ]  # fmt: skip
    info = SimpleNamespace(oid="0123abcd", commit_url=f"https://hub/{REPO}/commit/0123abcd")
    api.create_commit.return_value = info
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda *a, **k: api)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_token")
    return api


#: By hand: two episodes of three are left, the second of them was the third.
UPLOADED = sorted([
    "LICENSE.txt", "README.md", "meta/info.json", "meta/stats.json", "meta/tasks.parquet",
    *(f"{folder}/chunk-000/file-00{k}.{kind}" for k in (0, 2) for folder, kind in
      (("data", "parquet"), ("meta/episodes", "parquet"), (f"videos/{samples.EGO}", "mp4"))),
    *(f"acehand/episode_00000{k}/{name}" for k in (0, 1) for name in
      ("report.json", "contact_sheet.png", "hand_motion.parquet")),
])  # fmt: skip


def test_what_is_uploaded_and_what_never_is(dataset: Path, hub, capsys) -> None:
    dry = Acehand(capsys, "dataset", "push", dataset, REPO, "--dry-run")
    assert dry.code == 0 and hub.mock_calls == [] and dry.json["url"] is None
    assert sorted(entry["name"] for entry in dry.json["files"]) == UPLOADED
    assert set(dry.json["left_out"]) == {
        ".env", ".unreferenced", "acehand/episode_000000/private.mov", "data/x.lock", "notes.txt"
    }  # fmt: skip
    assert all(e["bytes"] == (dataset / e["name"]).stat().st_size for e in dry.json["files"])

    run = Acehand(capsys, "dataset", "push", dataset, REPO, "--private")
    assert run.code == 0 and run.json["files"] == dry.json["files"], run.err
    assert run.json["url"].endswith("0123abcd")
    hub.create_repo.assert_called_once_with(REPO, repo_type="dataset", private=True, exist_ok=True)
    hub.create_branch.assert_not_called()
    (call,) = hub.create_commit.call_args_list
    added = [o for o in call.args[1] if isinstance(o, huggingface_hub.CommitOperationAdd)]
    gone = [o for o in call.args[1] if isinstance(o, huggingface_hub.CommitOperationDelete)]
    assert sorted(o.path_in_repo for o in added) == UPLOADED
    for operation in added:
        with operation.as_file() as file:
            assert file.read() == (dataset / operation.path_in_repo).read_bytes()
    removed = ["data/chunk-000/file-099.parquet", "videos/old/chunk-000/file-000.mp4"]
    assert [o.path_in_repo for o in gone] == removed == run.json["removed"]
    hub.create_tag.assert_called_once_with(
        REPO, tag="v3.0", revision="0123abcd", repo_type="dataset"
    )


def test_a_branch_gets_no_version_tag(dataset: Path, hub, capsys) -> None:
    run = Acehand(capsys, "dataset", "push", dataset, REPO, "--revision", "next")
    assert run.code == 0, run.err
    hub.create_branch.assert_called_once_with(
        REPO, branch="next", repo_type="dataset", exist_ok=True
    )
    assert hub.create_commit.call_args.kwargs["revision"] == "next"
    assert hub.create_repo.call_args.kwargs["private"] is False
    hub.create_tag.assert_not_called()


def test_what_a_card_leaves_open_is_refused(dataset: Path, hub, capsys) -> None:
    push, card = ["dataset", "push", dataset, REPO], dataset / "README.md"
    text = card.read_text()
    report = dataset / "acehand/episode_000000/report.json"

    def refused(message: str, *more: str) -> None:
        for flags in ((), ("--dry-run",)):
            run = Acehand(capsys, *push, *more, *flags)
            assert run.code == 2 and re.search(message, run.err), run.err
        assert hub.mock_calls == []

    card.write_text(text.replace("license: cc-by-4.0", "license: other"))
    refused("says no licence.*--allow no-licence", "--allow", "no-consent")
    assert Acehand(capsys, *push, "--dry-run", "--allow", "no-licence").code == 0
    named = text.replace("license: cc-by-4.0", "license: other\nlicense_name: lab-terms")
    card.write_text(named)
    assert Acehand(capsys, *push, "--dry-run").code == 0

    assert Acehand(capsys, "dataset", "card", dataset, "--overwrite", *CARD[:2]).code == 0
    refused("whether the people in the recordings agreed.*--allow no-consent")
    card.write_text(text.split("## People")[0])
    refused("whether the people in the recordings agreed")
    assert Acehand(capsys, *push, "--dry-run", "--allow", "no-consent").code == 0

    card.write_text(text)
    for line, fits in (
        ("ACE-Ego-Hand checkpoint: CC BY-NC 4.0 (no commercial use)", "cc-by-nc-4.0"),
        ("weights: licence unknown", None),
    ):
        report.write_text(json.dumps({"provenance": {"licenses": [line]}}))
        for path in sorted(dataset.glob("data/*/*.parquet")):  # then the report counts
            pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)
        refused("is published as cc-by-4.0, but the dataset was made with .*licence-chain")
        assert Acehand(capsys, *push, "--dry-run", "--allow", "licence-chain").code == 0
        if fits is not None:
            card.write_text(text.replace("license: cc-by-4.0", f"license: {fits}"))
            assert Acehand(capsys, *push, "--dry-run").code == 0
            card.write_text(text)
    report.write_text("{}")

    card.write_text(text.replace("2 episodes of", "3 episodes of"))
    refused("is of 3 episodes and 18 frames, the dataset has 2 and 18; write it again")
    card.write_text("# Cups")
    refused("has no head")
    card.unlink()
    refused("README.md is missing; acehand dataset card")


def test_a_broken_dataset_is_refused(dataset: Path, hub, capsys) -> None:
    stats = dataset / "meta/stats.json"
    stats.write_text(stats.read_text().replace('"index"', '"indx"'))
    run = Acehand(capsys, "dataset", "push", dataset, REPO)
    assert run.code == 2 and "run acehand dataset repair first" in run.err
    assert hub.mock_calls == []


def test_the_hub_says_no(dataset: Path, hub, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, RevisionNotFoundError

    httpx = import_module(HTTPError.__module__.split(".")[0])  # whichever it uses

    push = ["dataset", "push", dataset, REPO]
    answer = httpx.Response(403, request=httpx.Request("POST", "https://hub"))
    hub.create_commit.side_effect = HfHubHTTPError("403 Forbidden", response=answer)
    run = Acehand(capsys, *push)
    assert run.code == 4 and "403 Forbidden" in run.err and "hf_token" not in run.err
    hub.create_tag.assert_not_called()
    hub.create_commit.side_effect = httpx.ConnectError("no route")
    run = Acehand(capsys, *push)
    assert run.code == 4 and "not reached: no route" in run.err

    # A new repository has no tag yet.
    hub.create_commit.side_effect = None
    hub.delete_tag.side_effect = RevisionNotFoundError("no tag", response=answer)
    assert Acehand(capsys, *push).code == 0
    hub.create_tag.assert_called_once()

    run = Acehand(capsys, "dataset", "push", dataset, "a/b/c")
    assert run.code == 2 and "'a/b/c' is no name of a repository" in run.err
    hub.reset_mock()
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    run = Acehand(capsys, *push)
    assert run.code == 2 and "HF_TOKEN" in run.err and hub.mock_calls == []
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    run = Acehand(capsys, *push)
    assert run.code == 2 and "pip install 'acehand[hub]'" in run.err
