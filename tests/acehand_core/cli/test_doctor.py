"""What `acehand doctor` finds, also where next to nothing is installed."""

import importlib
import json
import subprocess
import sys

from acehand_core.cli import doctor
from helpers import ROOT
from helpers.commands import Acehand


def found(capsys) -> dict[str, str | None]:
    run = Acehand(capsys, "doctor")
    return {piece["name"]: piece["found"] for piece in run.json["pieces"]}


def test_every_dependency_is_examined():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        line.split(">")[0].split("=")[0]
        for line in (
            *project["dependencies"], *extras["mediapipe"], *extras["dex"], *extras["ros"]
        )
    }  # fmt: skip
    # six is dex-retargeting's own affair.
    assert wanted - {"six"} <= {piece.name for piece in doctor.examine()}


def test_nothing_installed():
    """Only the standard library: the doctor still says what is missing."""
    code = (
        "import sys\n"
        "sys.path.insert(0, '.')\n"
        "from acehand_core.cli.main import main\n"
        "raise SystemExit(main(['doctor', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["ready"] is False
    missing = {piece["name"] for piece in report["pieces"] if piece["found"] is None}
    assert {"numpy", "tqdm", "jaxtyping", "scipy", "openvino", "hand networks", "OpenGL"} <= missing
    assert "The main job cannot run" in done.stderr


def test_what_does_not_load_is_missing(capsys, monkeypatch, tmp_path):
    """Packages are there, but what they need is not; the networks are others."""
    load = importlib.import_module

    def broken(name):
        if name in ("openvino", "piqp"):
            raise ImportError("libtbb.so.12: cannot open shared object file")
        return load(name)

    monkeypatch.setattr(importlib, "import_module", broken)
    for name in ("palm_detection/palm_detection_full", "hand_landmark/hand_landmark_full"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.tflite").write_bytes(b"another")
    monkeypatch.setenv("ACEHAND_HAND_NETWORKS", str(tmp_path))
    there = found(capsys)
    assert there["openvino"] is there["piqp"] is there["hand networks"] is None
