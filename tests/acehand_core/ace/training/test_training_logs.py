"""What a run leaves to read: provenance, files that others may open."""

import os
import subprocess

import pytest
import torch

pytest.importorskip("accelerate")

from acehand_core.ace.training import checkpoints, run_folder
from acehand_core.ace.training.config import CheckpointConfig


def git(folder, *words):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_package(tmp_path):
    package = tmp_path / "acehand_core"
    file = package / "ace" / "training" / "logs.py"
    file.parent.mkdir(parents=True)
    file.write_text("code")
    git(tmp_path, "init", "-q")
    (tmp_path / "other.txt").write_text("someone else's project")
    git(tmp_path, "add", "other.txt")
    git(tmp_path, "commit", "-qm", "other")
    assert run_folder._git(file) is None  # installed below another project's checkout
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "ours")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "notes.txt").write_text("not of the package")
    assert run_folder._git(file) == {"commit": commit, "changed": False}
    (package / "new.py").write_text("a module that was not added")
    assert run_folder._git(file) == {"commit": commit, "changed": True}


@pytest.mark.skipif(os.name == "nt", reason="no such permissions")
def test_checkpoints_have_the_permissions_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        tensors = {"x": torch.ones(2)}
        path = checkpoints.save(tmp_path, 1, None, tensors, tensors, CheckpointConfig())
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert len(modes) == 3 and set(modes.values()) == {0o640}
