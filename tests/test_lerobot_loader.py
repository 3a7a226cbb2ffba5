"""Our datasets in the real lerobot, which lives in an environment of its own.

Set ``ACEHAND_LEROBOT_PYTHON`` to a Python 3.12 that has lerobot and pytest.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lerobot_samples as samples
import numpy as np
import pytest

from acehand_core.export import lerobot_format as layout
from acehand_core.export.lerobot_check import check_dataset
from acehand_core.export.lerobot_repair import repair

pytestmark = pytest.mark.lerobot
HERE = Path(__file__).resolve().parent
PYTHON = os.environ.get("ACEHAND_LEROBOT_PYTHON")


@pytest.mark.skipif(PYTHON is None, reason="ACEHAND_LEROBOT_PYTHON names no Python with lerobot")
def test_the_real_loader_reads_whatever_a_writer_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "datasets"
    episodes = [*samples.EPISODES, samples.MORE]
    samples.write(folder / "finished")
    samples.append(samples.write(folder / "appended"))
    with monkeypatch.context() as patch:
        patch.setattr(layout, "CHUNK_SIZE", 2)
        samples.append(samples.write(folder / "chunked"))
    _leave_interrupted(tmp_path, folder)
    for root in list(folder.iterdir()):
        np.savez(root.with_suffix(".npz"), **samples.expected(episodes))
    assert len(list(folder.iterdir())) >= 2 * 10

    kept = tmp_path / "kept"
    kept.mkdir()
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-x", str(HERE / "lerobot_real")],
        env=os.environ
        | {
            "ACEHAND_LEROBOT_DATASETS": str(folder),
            "ACEHAND_LEROBOT_KEEP": str(kept),
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": "1",
        },
        cwd=HERE / "lerobot_real",
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]

    # And the other way round: what lerobot wrote is sound to our validator, and can be added to.
    assert check_dataset(kept / "recorded", decode_all=True) == []
    assert check_dataset(kept / "resumed", decode_all=True) == []
    samples.append(kept / "resumed")
    assert check_dataset(kept / "resumed") == []
    assert repair(kept / "recorded") == []


def _leave_interrupted(scratch: Path, folder: Path) -> None:
    """Put a dataset into ``folder`` for each moment of appending at which a writer was killed."""
    dead = scratch / "dead"
    dead.mkdir()
    subprocess.run(
        [sys.executable, str(HERE / "lerobot_samples.py"), "die", str(dead)],
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        check=True,
        timeout=120,
    )
    for name, step in json.loads((dead / "steps.json").read_text()):
        if name.startswith("append") and step.startswith(("journal", "place", "clean")):
            shutil.copytree(dead / name / "data", folder / name)
