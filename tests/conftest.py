"""Shape checks on, shared data found, and nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxtyping import install_import_hook

# Before anything of ours is imported: every annotated array is checked on every call.
_HOOK = install_import_hook(["acehand_core", "retarget"], "beartype.beartype")

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
SHARED = Path(os.environ.get("ACEHAND_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of shared reference data, or skip."""
    if not SHARED.is_dir():
        pytest.skip(f"shared data not found at {SHARED}; set ACEHAND_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """Reference outputs of the released code: all of them, or the few that tests/data keeps."""
    folder = SHARED / "golden"
    return folder if (folder / "manifest.json").is_file() else DATA / "golden"


@pytest.fixture(scope="session")
def golden_case(golden_folder: Path) -> Callable[[str], tuple[dict[str, Any], Path]]:
    """From a case's name to its entry in the manifest and its file, or skip."""
    cases = json.loads((golden_folder / "manifest.json").read_text("utf-8"))["cases"]
    entries = {case["name"]: case for case in cases}

    def find(name: str) -> tuple[dict[str, Any], Path]:
        if name not in entries:
            pytest.skip(f"case {name} is not among those in {golden_folder}; set ACEHAND_SHARED")
        return entries[name], golden_folder / entries[name]["file"]

    return find


@pytest.fixture(scope="session")
def joints_file() -> Path:
    """A real right hand's joints over 621 frames (see tests/data/README.md)."""
    path = SHARED / "data" / "human_joint_right.npz"
    return path if path.is_file() else DATA / path.name


@pytest.fixture(scope="session")
def mano_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up MANO file whose left shape directions are wrong, as in the real ones."""
    import native_samples

    path = tmp_path_factory.mktemp("mano") / "mano.npz"
    native_samples.write_mano(path)
    return path
