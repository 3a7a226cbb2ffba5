"""How heavy imports are. Who may import whom: the contracts in pyproject.toml, ``make lint``."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from acehand_core.cli import retarget
from helpers import ROOT
from helpers.commands import GRIPPER, hands_file

PACKAGES = ("acehand_core", "retarget", "acehand_ros")

#: Libraries that a package may import only inside the function that needs them.
LAZY = {
    *("torch", "diffusers", "peft", "transformers", "safetensors", "huggingface_hub", "smplx"),
    *("mediapipe", "mujoco", "pinocchio", "dex_retargeting", "rclpy", "rosbags", "skimage"),
    *("hydra", "omegaconf", "accelerate", "tensorboard", "wandb", "ray"),
}

HEAVY = ("torch", "diffusers", "peft", "transformers", "dex_retargeting", "pandas")

#: What is torch through and through: these folders, and ``*_torch.py`` elsewhere.
OF_TORCH = [ROOT / "acehand_core" / "ace" / name for name in ("model", "training")]
#: What these may import at the top: the libraries that they wrap.
TORCH_LIBRARIES = {"torch", "diffusers", "peft", "safetensors"}


@functools.cache
def modules() -> dict[Path, ast.Module]:
    paths = sorted(p for name in PACKAGES for p in (ROOT / name).rglob("*.py"))
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


#: What reads flags before they are settings, prints a message's settings as flags, or runs hydra.
COMMANDS = ("cli/main.py", "cli/console.py", "cli/flags.py", "cli/doctor.py", "training/main.py",
            "acehand_ros/entry.py")  # fmt: skip
#: Options of pip, git, hydra, torchrun, Kalibr, rerun and ros2; the part of a recording's hash.
NOT_OURS = {
    *("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", "--python-version"),
    *("--platform", "--dest", "--error-unmatch", "--porcelain", "--check", "--cfg", "--models"),
    *(
        "--nproc-per-node",
        "--serve-web",
        "--bind",
        "--port",
        "--ros-args",
        "--show-args",
        "--depth",
    ),
}


def test_messages_name_settings_and_not_flags():
    for path, tree in modules().items():
        if str(path).endswith(COMMANDS):
            continue
        texts = [node.value for node in ast.walk(tree)
                 if isinstance(node, ast.Constant) and isinstance(node.value, str)]  # fmt: skip
        flags = {f for text in texts for f in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)}
        assert flags <= NOT_OURS, path


def imports(path: Path) -> list[tuple[str, bool, int]]:
    """Return (dotted name, at module level, line) of every import of a file.

    ``from a import b`` counts as ``a.b``. What stands under TYPE_CHECKING is for readers only.
    """
    found = []

    def visit(node, top):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Import):
                found.extend((alias.name, top, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative import"
                found.extend((f"{child.module}.{a.name}", top, child.lineno) for a in child.names)
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            visit(child, top and not inner)

    visit(modules()[path], True)
    return found


def test_heavy_libraries_are_imported_where_they_are_needed():
    for path in modules():
        of_torch = path.stem.endswith("_torch") or not set(OF_TORCH).isdisjoint(path.parents)
        for target, top, line in imports(path):
            library = target.split(".")[0]
            if library in LAZY and not (of_torch and library in TORCH_LIBRARIES):
                assert not top, f"{path}:{line}: {target} must be imported where it is needed"


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("acehand_core, retarget; acehand_core.track, retarget.load_robot", ("torch", "mujoco")),
        ("acehand_core.pipeline, acehand_core.cli.main", HEAVY),
        ("acehand_core.trackers.mediapipe.tracker, acehand_core.hand.mano", HEAVY),
    ],
)
def test_the_cpu_path_loads_no_model_libraries(statement, heavy):
    code = f"import {statement}\nimport sys\nprint([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_launch_is_not_a_package():
    """An ``__init__.py`` there would shadow ROS's own ``launch``."""
    assert not (ROOT / "launch" / "__init__.py").exists()


def test_the_walk_of_an_input_is_what_runs(tmp_path):
    """Each step of docs/architecture.md names a function; they run first in its order."""
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = page.split("## The walk of an input")[1].split("\n## ")[0]
    steps = re.findall(r"^\d+\. \[`([\w.]+)`\]\(\.\./([\w/.]+)\)", section, re.MULTILINE)
    assert 5 < len(steps) <= 10
    wanted = {(str(ROOT / file), name.split(".")[-1]): (name, file) for name, file in steps}
    ran: list[tuple[str, str]] = []

    def seen(frame, event, _):
        code = frame.f_code
        step = wanted.get((code.co_filename, code.co_name)) if event == "call" else None
        if step is not None and step not in ran and code.co_qualname == step[0]:
            ran.append(step)

    hands = hands_file(tmp_path / "hands.npz", 6)
    words = [str(hands), "--output", str(tmp_path / "out"), "-q", *GRIPPER]
    sys.setprofile(seen)
    try:
        code = retarget.main(words)
    finally:
        sys.setprofile(None)
    assert code == 0 and ran == steps
