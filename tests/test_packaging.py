"""The files that name the package say the same, and everything it depends on is pinned."""

import importlib
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points, version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import acehand_core
from helpers import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT = PYPROJECT["project"]
SETUP = (ROOT / "setup.py").read_text("utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / file).read_text("utf-8").splitlines()
    return {normal(name): pinned for name, _, pinned in (line.partition("==") for line in lines)}


#: Pinned, but no part of the test environment: projectaria-tools brings some ninety packages, a
#: notebook server among them, and the tests inject the pictures that it would read; Ray and rerun
#: are large; mutmut comes with ``make mutants``.
NOT_INSTALLED = {"mutmut", "projectaria-tools", "ray", "rerun-sdk"}


def requirements() -> list[str]:
    extras = PROJECT["optional-dependencies"].values()
    return [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]


def test_one_version():
    package = ElementTree.parse(ROOT / "package.xml")
    assert package.findtext("version") == PROJECT["version"]
    assert re.findall(r'version="([^"]+)"', SETUP) == [PROJECT["version"]]
    assert acehand_core.__version__ == PROJECT["version"] == version("acehand")


def test_pip_and_colcon_install_the_same_commands():
    """Both take setup.py's: setuptools warns of a list in two places, in every colcon build."""
    installed = {one.name: one.value for one in entry_points(group="console_scripts")}
    scripts = SETUP.split('"console_scripts": [')[1].split("],")[0]
    named = dict(re.findall(r'"([\w-]+) = ([\w.]+:\w+)"', scripts))
    assert {"acehand", "offline_bag", "clip_recorder", "trajectory_player"} <= named.keys()
    assert named.keys() <= installed.keys()
    assert "scripts" not in PROJECT and {"scripts", "entry-points"} <= set(PROJECT["dynamic"])
    for target in named.values():
        module, name = target.split(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("requirement", requirements())
def test_every_dependency_is_pinned(requirement):
    name = normal(re.match(r"[\w.-]+", requirement)[0])
    assert name in pins(), f"constraints.txt has no {name}"


def test_what_is_installed_is_what_is_pinned():
    """... and of what packages declare only what mediapipe does not need is missing."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    problems = set(listing.stdout.splitlines()) - {"No broken requirements found."}
    exceptions = ("jax", "jaxlib", "opencv-contrib-python", "sounddevice")
    allowed = {f"requires {name}, which is not installed." for name in exceptions}
    assert {p for p in problems if p.split(" ", 2)[2] not in allowed} == set()
    for requirement in requirements():
        name = re.match(r"[\w.-]+", requirement)[0]
        if name in NOT_INSTALLED:
            continue
        assert version(name).partition("+")[0] == pins()[normal(name)], name


#: What pip 26.3 installs for ``lerobot[dataset]==0.6.1`` of the packages that we need, too.
LEROBOT_HAS = {
    "av": "15.1.0", "huggingface-hub": "1.33.0", "numpy": "2.2.6", "pyyaml": "6.0.3",
    "opencv-python-headless": "4.13.0.92", "pyarrow": "26.0.1", "safetensors": "0.8.0",
    "torch": "2.11.0", "tqdm": "4.70.1", "attrs": "26.1.0",
}  # fmt: skip


def test_what_lerobot_has_is_good_enough():
    ours = [line for line in map(Requirement, requirements()) if normal(line.name) in LEROBOT_HAS]
    assert {normal(line.name) for line in ours} == set(LEROBOT_HAS)
    refused = [str(line) for line in ours if LEROBOT_HAS[normal(line.name)] not in line.specifier]
    assert refused == []


def test_the_lowest_versions_are_the_bounds():
    """... of everything that runs without torch: what ``make test-lowest`` installs."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["mediapipe"], *extras["ros"]]
    lowest = pins("constraints-lowest.txt")
    lowest = {name: version for name, version in lowest.items() if version}
    bounds = {}
    for line in map(Requirement, lines):
        (bound,) = (spec.version for spec in line.specifier if spec.operator == ">=")
        bounds[normal(line.name)] = bound
    assert lowest.keys() == bounds.keys()
    for name, bound in bounds.items():
        pinned = Version(lowest[name]).release[: len(Version(bound).release)]
        assert pinned == Version(bound).release, name
