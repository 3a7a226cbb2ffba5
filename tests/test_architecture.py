"""Who may import whom, and how heavy that is. docs/architecture.md states the same table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import acehand_core

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("acehand_core", "retarget", "acehand_ros")

#: Package -> packages it may import; what ``FREE`` names is free for all.
ALLOWED = {
    "geometry": set(),
    "motion": {"geometry", "keypoints"},
    "keypoints": {"motion", "geometry", "hand"},
    "files": set(),
    "hand": {"geometry", "files"},
    "bags": {"motion", "geometry", "files", "hand"},
    "self_calibration": {"motion", "geometry"},
    "recordings": {
        "motion",
        "keypoints",
        "geometry",
        "files",
        "hand",
        "bags",
        "self_calibration",  # opening gives a recording its camera, also an estimated one
    },
    "datasets": {"motion", "geometry", "files", "hand", "recordings"},
    "camera_motion": {"motion", "geometry", "files"},
    "synthetic": {"motion", "geometry", "files", "hand", "recordings", "datasets"},
    "lerobot": {"motion", "geometry", "files", "hand", "recordings"},
    "model": {"motion", "geometry", "files", "hand", "recordings"},
    "training": {
        "motion",
        "geometry",
        "files",
        "hand",
        "recordings",
        "datasets",
        "model",
        "synthetic",  # motions that the network of bone directions learns from
        "trackers",  # that network
    },
    "trackers": {
        "motion",
        "geometry",
        "files",
        "hand",
        "recordings",
        "camera_motion",
        "model",
    },
    "retarget": {"motion", "geometry", "hand.skeleton"},
    "drawing": {
        "motion",
        "geometry",
        "hand",
        "recordings",
        "datasets",
        "lerobot",
        "trackers",
        "retarget",
    },
    "evaluation": {"motion", "geometry", "files", "hand", "recordings", "datasets"},
    "pipeline": {
        "motion",
        "camera_motion",
        "geometry",
        "hand",
        "bags",
        "recordings",
        "lerobot",
        "trackers",
        "retarget",
        "drawing",
        "self_calibration",  # its version is part of what a resumed run compares
    },
    "batch": {"motion", "recordings", "lerobot", "trackers", "retarget", "pipeline"},
    "review": {
        "motion",
        "geometry",
        "hand",
        "recordings",
        "lerobot",
        "trackers",
        "retarget",
        "drawing",
        "pipeline",
    },
    "cli": {
        "review",
        "batch",
        "motion",
        "geometry",
        "camera_motion",
        "hand",
        "bags",
        "recordings",
        "datasets",
        "synthetic",
        "lerobot",
        "model",
        "training",
        "trackers",
        "retarget",
        "drawing",
        "evaluation",
        "pipeline",
        "self_calibration",
    },
    "acehand_ros": {"motion", "bags", "recordings", "trackers", "retarget", "pipeline"},
}
#: Names of the public API, and the modules that they are in.
API = acehand_core._HOME
FREE = {"types", "errors", "settings", "atomic", "processes", "provenance", "mujoco_gl", "progress"}
FREE |= {"version", "__version__"}
#: Libraries that a package may import only inside the function that needs them.
LAZY = {
    "torch",
    "diffusers",
    "peft",
    "transformers",
    "safetensors",
    "huggingface_hub",
    "smplx",
    "mediapipe",
    "mujoco",
    "pinocchio",
    "dex_retargeting",
    "rclpy",
    "rosbags",
    "skimage",
    "hydra",
    "omegaconf",
    "accelerate",
    "tensorboard",
    "wandb",
    "ray",
}

#: Packages that are torch: they, and ``*_torch.py`` elsewhere, may import it at the top.
TORCH_PACKAGES = {"model", "training"}
#: What of that the packages of torch may import at the top: the libraries that they wrap.
TORCH_LIBRARIES = {"torch", "diffusers", "peft", "safetensors"}


def modules() -> list[Path]:
    return sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))


def package(name: str) -> str:
    """Return the package of a dotted module name of ours."""
    parts = name.split(".")
    if parts[0] != "acehand_core":
        return parts[0]
    if len(parts) == 1:
        return "version"
    return parts[1]


def imports(path: Path) -> list[tuple[str, bool, int]]:
    """Return (dotted name, at module level, line) of every import of a file.

    ``from a import b`` counts as ``a.b``. What stands under TYPE_CHECKING is for readers only.
    """
    found = []

    def visit(node: ast.AST, top: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, top, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                found.extend((f"{child.module}.{a.name}", top, child.lineno) for a in child.names)
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            visit(child, top and not inner)

    visit(ast.parse(path.read_text("utf-8")), True)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_table(path: Path) -> None:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    own = package(name)
    for target, top, line in imports(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        library = target.split(".")[0]
        free = library in TORCH_LIBRARIES and (
            own in TORCH_PACKAGES or path.stem.endswith("_torch")
        )
        if library in LAZY and not free:
            assert not top, f"{where}: {target} must be imported where it is needed"
        if target.split(".")[0] not in PACKAGES or own in FREE:
            continue
        exported = target.removeprefix("acehand_core.")
        if exported in API:  # a name of the public API counts as what it is in
            target = f"acehand_core.{API[exported]}.{exported}"
        other = package(target)
        if other in FREE or other == own:
            continue
        allowed = other in ALLOWED[own] or any(
            target.startswith(f"acehand_core.{entry}.") for entry in ALLOWED[own] if "." in entry
        )
        assert allowed, f"{where}: {own} may not import {other}"


def test_documentation_states_the_same_table() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", text, re.MULTILINE)
    stated = {name: set(re.findall(r"`([\w.]+)`", cell)) for name, cell in rows}
    assert {name: stated.get(name) for name in ALLOWED} == ALLOWED


@pytest.mark.parametrize(
    "statement",
    ["import acehand_core", "import retarget", "import acehand_core.pipeline",
     "import acehand_core.cli.main",
     "import acehand_core.trackers.mediapipe.tracker", "import acehand_core.hand.mano"],
)  # fmt: skip
def test_the_cpu_path_loads_no_model_libraries(statement: str) -> None:
    heavy = ("torch", "diffusers", "peft", "transformers", "dex_retargeting", "pandas")
    code = f"{statement}\nimport sys\nprint([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_wrong_shape_is_refused() -> None:
    """The suite runs with shape checks on; without them this array would pass."""
    import numpy as np

    from acehand_core.geometry.rotations import to_6d

    with pytest.raises(Exception, match="3 3"):
        to_6d(np.zeros((4, 3, 2)))


def test_launch_is_not_a_package() -> None:
    """An ``__init__.py`` there would shadow ROS's own ``launch``."""
    assert not (ROOT / "launch" / "__init__.py").exists()
