"""Shape checks on, shared data found, Ctrl-C heard, and nothing else.

Every function of ours checks the arrays it is given and returns. In a loop that costs more than the
work itself, so a function is checked in its first calls of every test. With ``ACEHAND_SLOW=1``
(``make test-all``) jaxtyping itself checks all calls, and all types, not only those of arrays.
Tests marked ``slow`` run only then, and of a test marked ``few(n)`` the cases after the first n:
faster ones run the same code.
"""

import collections
import dataclasses
import functools
import gc
import inspect
import json
import os
import signal
import typing
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import beartype
import jaxtyping

from helpers import DATA, ROOT, SLOW

# Collecting finds no garbage in what is being imported, which stays: a fourth of the time it takes.
gc.disable()

# A shell has what it runs in the background ignore Ctrl-C, and so would every process of a test.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Calls of one function that are checked in one test.
CHECKED_CALLS = 40

# mutmut runs pytest several times in a process.
_jaxtyped = getattr(jaxtyping.jaxtyped, "replaces", jaxtyping.jaxtyped)
_beartyped = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))
_calls = collections.Counter[int]()


def _array_hint(hint: Any, function: FunctionType) -> Any:
    """Return an annotation that has arrays with axes, or Any; mypy checks the others."""

    def has_array(part: Any) -> bool:
        if isinstance(part, type) and issubclass(part, jaxtyping.AbstractArray):
            return True
        return any(map(has_array, typing.get_args(part)))

    try:
        known = eval(hint, function.__globals__) if isinstance(hint, str) else hint
    except (NameError, TypeError):  # imported for mypy only
        return Any
    return known if has_array(known) else Any


def _checked(function: FunctionType) -> Callable[..., Any]:
    """Return a function with its arrays checked, or as it is if its annotations have none."""
    hints = {name: _array_hint(hint, function) for name, hint in function.__annotations__.items()}
    if inspect.isgeneratorfunction(function):
        hints.pop("return", None)
    if all(hint is Any for hint in hints.values()):
        return function
    copy = FunctionType(function.__code__, function.__globals__, closure=function.__closure__)
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    copy.__name__, copy.__qualname__ = function.__name__, function.__qualname__
    copy.__module__, copy.__annotations__ = function.__module__, hints
    checked = _beartyped(copy)

    def call(*arguments: Any, **named: Any) -> Any:
        with _jaxtyped("context"):  # letters of axes mean the same within one call
            return checked(*arguments, **named)

    return call


def _checked_at_first(**_: Any) -> Callable[[Any], Any]:
    """Stand in for ``jaxtyped``, which the import hook puts before every function and class."""

    def decorate(function: Any) -> Any:
        if isinstance(function, type):
            if dataclasses.is_dataclass(function) and "__init__" in vars(function):
                function.__init__ = decorate(function.__init__)
            return function
        checked, key = None, id(function.__code__)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal checked
            if checked is function or _calls[key] >= CHECKED_CALLS:
                return function(*arguments, **named)
            _calls[key] += 1
            checked = checked or _checked(function)
            return checked(*arguments, **named)

        return call

    return decorate


# Before anything of ours is imported.
if not SLOW:
    _checked_at_first.replaces = _jaxtyped
    jaxtyping.jaxtyped = _checked_at_first
_HOOK = jaxtyping.install_import_hook(["acehand_core", "retarget"], "beartype.beartype")

import hypothesis  # noqa: E402
import pytest  # noqa: E402

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

SHARED = Path(os.environ.get("ACEHAND_SHARED", ROOT.parent / "shared"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all but the first cases of a test marked ``few`` as slow."""
    cases = collections.Counter[str]()
    for item in items:
        if few := item.get_closest_marker("few"):
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] > few.args[0]:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among what was imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave slow tests out; check the first calls again."""
    _calls.clear()
    if item.get_closest_marker("slow") and not SLOW:
        pytest.skip("slow: make test-all")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Run only the tests on ROS where colcon does: the others need what its environment lacks."""
    ros = Path(__file__).resolve().parent / "ros"
    if config.getoption("junitprefix", None) != "acehand_ros":  # what colcon calls the package
        return None
    within = collection_path == ros or ros in collection_path.parents
    return None if within or collection_path in ros.parents else True


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
    from helpers import native_samples

    path = tmp_path_factory.mktemp("mano") / "mano.npz"
    native_samples.write_mano(path)
    return path
