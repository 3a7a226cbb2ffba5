"""Shape checks on, shared data found, and nothing else.

Every function of ours checks the arrays it is given and returns. In a loop that costs more than the
work itself, so a function is checked in its first calls of every test, and in all of them with
``ACEHAND_SLOW=1`` (``make test SLOW=1``, as in continuous integration).
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtyping

#: Calls of one function that are checked in one test.
CHECKED_CALLS = 40

_jaxtyped = jaxtyping.jaxtyped
_tests_begun = 0


def _checked_at_first(*, typechecker: Any) -> Callable[[Any], Any]:
    """Stand in for ``jaxtyped``, which the import hook puts before every function and class."""
    check = _jaxtyped(typechecker=typechecker)

    def decorate(function: Any) -> Any:
        checked = check(function)
        if isinstance(function, type):
            return checked
        test, calls = -1, 0

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal test, calls
            if test != _tests_begun:
                test, calls = _tests_begun, 0
            if calls < CHECKED_CALLS:
                calls += 1
                return checked(*arguments, **named)
            return function(*arguments, **named)

        return call

    return decorate


# Before anything of ours is imported.
if not os.environ.get("ACEHAND_SLOW"):
    jaxtyping.jaxtyped = _checked_at_first
_HOOK = jaxtyping.install_import_hook(["acehand_core", "retarget"], "beartype.beartype")

import hypothesis  # noqa: E402
import pytest  # noqa: E402

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Check the first calls again."""
    global _tests_begun
    _tests_begun += 1


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of shared reference data, or skip."""
    folder = Path(os.environ.get("ACEHAND_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"shared data not found at {folder}; set ACEHAND_SHARED")
    return folder


@pytest.fixture(scope="session")
def mano_file(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up MANO file whose left shape directions are wrong, as in the real ones."""
    import native_samples

    path = tmp_path_factory.mktemp("mano") / "mano.npz"
    native_samples.write_faulty_mano(shared / "golden" / "mano_synthetic.npz", path)
    return path
