"""``acehand doctor``."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from acehand_core import __version__, plugins
from acehand_core.cli import console

_HERE = "pip install . in the checkout"
_MEDIAPIPE = "pip install '.[mediapipe]' && acehand weights fetch hands"
_TORCH = "pip install torch==2.13.0"
#: How to install: distribution, import name and what it adds.
_PACKAGES = {
    _HERE: [
        ("numpy", "numpy", "everything"),
        ("av", "av", "video"),
        ("opencv-python-headless", "cv2", "images"),
        ("mujoco", "mujoco", "replay and pictures of the robot"),
        ("piqp", "piqp", "the trajectory solver"),
        ("pyarrow", "pyarrow", "datasets and tables"),
        ("pyyaml", "yaml", "robot files"),
        ("scipy", "scipy", "smoothing and the trajectory solver"),
        ("threadpoolctl", "threadpoolctl", "small solves in one thread"),
        ("tqdm", "tqdm", "progress bars"),
        ("tyro", "tyro", "the commands' flags"),
        ("jaxtyping", "jaxtyping", "array types"),
    ],
    _MEDIAPIPE: [("openvino", "openvino", "--tracker mediapipe, which needs no weights of ours")],
    _TORCH: [("torch", "torch", "what the model, dex-retargeting and smplx need")],
    f"{_TORCH} && pip install '.[ace]'": [
        ("diffusers", "diffusers", "--tracker ace: video encoder and transformer"),
        ("peft", "peft", "--tracker ace: adapters"),
        ("safetensors", "safetensors", "weight files"),
        ("transformers", "transformers", "feature sources vjepa2 and videomae"),
    ],
    "pip install '.[hub]'": [("huggingface_hub", "huggingface_hub", "acehand weights fetch")],
    f"{_TORCH} && pip install '.[dex]'": [
        ("dex-retargeting", "dex_retargeting", "--method dex-vector, dex-dexpilot, dex-position"),
        ("pin", "pinocchio", "the robot model of dex-retargeting"),
    ],
    f"{_TORCH} && pip install '.[mano]'": [("smplx", "smplx", "MANO hands from your own files")],
    f"{_TORCH} && pip install '.[ace,train]'": [
        ("accelerate", "accelerate", "acehand-train"),
        ("hydra-core", "hydra", "acehand-train: its configuration"),
        ("tensorboard", "tensorboard", "acehand-train: curves"),
    ],
    "pip install '.[ros]'": [
        ("rosbags", "rosbags", "bags, read and written without ROS"),
        ("mcap", "mcap", "ROS 2 bags that are .mcap files"),
    ],
    "ROS 2 Jazzy or newer, then source its setup.bash": [
        ("rclpy", "rclpy", "ROS 2 nodes and launch files")
    ],
    "pip install '.[ray]'": [("ray", "ray", "acehand batch run --engine ray: many machines")],
    "pip install '.[view]'": [
        ("plotly", "plotly", "the page of acehand inspect and acehand review"),
        ("rerun-sdk", "rerun", "acehand view: a viewer of episodes and hands"),
    ],
    "pip install '.[vrs]'": [
        ("projectaria-tools", "projectaria_tools", "Aria recordings (.vrs), pictures of HOT3D")
    ],
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A package, library or file; the main job needs those that are ``needed``."""

    name: str
    needed: bool
    found: str | None
    adds: str
    get: str


@dataclass(frozen=True, slots=True)
class Doctor:
    """Print installed and missing packages, with what each adds and how to install it."""

    def run(self, terminal: console.Terminal) -> int:
        """Print the findings; the exit code is 0 if the main job can run."""
        pieces = examine()
        width = max(len(piece.name) for piece in pieces)
        console.say(f"acehand {__version__}, Python {platform.python_version()}")

        for piece in pieces:
            mark = piece.found or ("MISSING" if piece.needed else "not installed")
            console.say(f"  {piece.name:<{width}}  {mark}")
            if piece.found is None:
                console.say(f"  {'':<{width}}    adds: {piece.adds}")
                console.say(f"  {'':<{width}}    get:  {piece.get}")

        others = plugins.of_others()
        for name, state in others.items():
            console.say(f"  plug-in {name}: {state}")

        ready = all(piece.found for piece in pieces if piece.needed)
        console.say("The main job can run." if ready else "The main job cannot run: see MISSING.")
        report = {"ready": ready, "pieces": [asdict(piece) for piece in pieces], "plugins": others}
        terminal.print_json({"acehand": __version__, **report})
        return console.EXIT_OK if ready else console.EXIT_SOME_FAILED


def examine() -> list[Piece]:
    """Look for packages, OpenGL and the user's model files."""
    pieces = [
        Piece(name, needed := get in (_HERE, _MEDIAPIPE), _version(name, module, needed), adds, get)
        for get, packages in _PACKAGES.items()
        for name, module, adds in packages
    ]
    adds, get = "--tracker mediapipe: the hand detector", "acehand weights fetch hands"
    pieces.append(Piece("hand networks", True, _hand_networks(), adds, get))
    adds = "pictures of the robot"
    get = "apt-get install libegl1 libgl1-mesa-dri (MUJOCO_GL unset or egl)"
    pieces.append(Piece("OpenGL", False, _opengl(), adds, get))
    adds = "MANO meshes and parameters (non-commercial licence)"
    get = "https://mano.is.tue.mpg.de, then set ACEHAND_MANO to the folder"
    pieces.append(Piece("MANO files", False, _path_in("ACEHAND_MANO"), adds, get))
    adds = "--tracker ace (non-commercial licence)"
    get = "acehand weights fetch, then set ACEHAND_WEIGHTS to the folder"
    pieces.append(Piece("model weights", False, _path_in("ACEHAND_WEIGHTS"), adds, get))
    return pieces


def _path_in(variable: str) -> str | None:
    path = os.environ.get(variable, "")
    return path if path and Path(path).exists() else None


def _version(distribution: str, module: str, needed: bool) -> str | None:
    """Return the version of a package, or None if it cannot be used.

    Needed packages are imported, since their own dependencies may be missing; others are only
    looked for, since they may be slow to load.
    """
    try:
        if module == "openvino":
            from acehand_core.trackers.mediapipe.networks import openvino

            openvino()
        elif needed:
            importlib.import_module(module)
        elif importlib.util.find_spec(module) is None:
            return None
    except Exception:  # a broken package raises anything
        return None
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "installed"


def _hand_networks() -> str | None:
    """Return the version of the mediapipe tracker's networks."""
    from acehand_core.errors import InputError

    try:
        from acehand_core.trackers.mediapipe import networks

        files = networks.installed()
        if files is None:
            return None
        networks.check(files)
        return f"mediapipe {networks.VERSION}"
    except (ImportError, InputError):
        return None


def _opengl() -> str | None:
    """Return the name of the OpenGL backend that opens."""
    from acehand_core.errors import MissingDependencyError

    try:
        from acehand_core.mujoco_gl import open_context

        context = open_context(16, 16)
        context.free()
        return type(context).__module__.rsplit(".", 1)[-1]
    except (ImportError, MissingDependencyError):
        return None
