"""Shape checks on, shared data found, and nothing else."""

import os
from pathlib import Path

from jaxtyping import install_import_hook

# Before anything of ours is imported: every annotated array is checked on every call.
_HOOK = install_import_hook(["acehand_core", "retarget"], "beartype.beartype")

import pytest  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of shared reference data, or skip."""
    folder = Path(os.environ.get("ACEHAND_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"shared data not found at {folder}; set ACEHAND_SHARED")
    return folder


@pytest.fixture(scope="session")
def mano_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up MANO file whose left shape directions are wrong, as in the real ones."""
    import native_samples

    path = tmp_path_factory.mktemp("mano") / "mano.npz"
    native_samples.write_mano(path)
    return path
