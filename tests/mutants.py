"""Damage the code on purpose, one line at a time, and see that the tests notice.

    python tests/mutants.py [--only AREA] [--jobs N]

``tests/mutants/AREA.yaml`` lists mutants: ``file``, the text ``old`` that occurs exactly once in
it, its damaged replacement ``new``, the ``tests`` (files or node ids) that must then fail, and
``why`` the line matters. The tracked files are copied to a temporary folder. There every set of
tests must pass unchanged; then each mutant is applied alone and its tests must fail. The exit code
is 1 where a mutant survives or could not be tried. This is no part of ``make test``:
``make mutants``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
_KEYS = {"file", "old", "new", "tests", "why"}
# An endless loop is noticed too: nobody waits longer for tests that pass in seconds.
_LIMIT_S = 900
_TESTS_FAILED = 1


@dataclass(frozen=True)
class Mutant:
    """One damaged line; ``place`` names it in what is printed."""

    area: str
    place: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def damaged(self, text: str) -> str:
        """Return the file's text with the damage done.

        Raises:
            ValueError: ``old`` does not occur exactly once, or the result is no Python.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"'old' occurs {count} times in {self.file}, not once")
        if self.old == self.new:
            raise ValueError("'new' is the same as 'old'")
        changed = text.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                compile(changed, self.file, "exec")
            except SyntaxError as error:
                raise ValueError(f"not Python any more: {error}") from None
        return changed


def main() -> int:
    """Try the mutants; print one line for each and the survivors again at the end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="AREA", help="name of a list, or part of a file's path")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at the same time")
    arguments = parser.parse_args()
    try:
        mutants = [m for path in sorted(LISTS.glob("*.yaml")) for m in read_list(path)]
    except ValueError as error:
        parser.error(str(error))
    if arguments.only:
        mutants = [m for m in mutants if arguments.only == m.area or arguments.only in m.file]
    if not mutants:
        parser.error(f"no mutants for {arguments.only}" if arguments.only else "no mutants")

    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        return run(mutants, Path(name), max(1, arguments.jobs))


def read_list(path: Path) -> list[Mutant]:
    """Read one list of mutants.

    Raises:
        ValueError: an entry has other keys than a mutant's, or fits nothing in the tree.
    """
    mutants = []
    try:
        entries = yaml.safe_load(path.read_text()) or []
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is no YAML (quote text with ': '): {error}") from None
    for i, entry in enumerate(entries):
        where = f"{path.name}, entry {i}"
        if not isinstance(entry, dict) or set(entry) != _KEYS:
            raise ValueError(f"{where}: the keys must be {', '.join(sorted(_KEYS))}")
        tests = entry["tests"]
        if not isinstance(tests, list) or not tests:
            raise ValueError(f"{where}: 'tests' must be a list of pytest files or node ids")
        for test in [entry["file"], *tests]:
            if not (ROOT / str(test).split("::")[0]).is_file():
                raise ValueError(f"{where}: {test} does not exist")
        text = (ROOT / entry["file"]).read_text()
        line = text[: text.find(entry["old"])].count("\n") + 1
        mutant = Mutant(
            path.stem, f"{entry['file']}:{line}", entry["file"], str(entry["old"]),
            str(entry["new"]), tuple(tests), str(entry["why"]),
        )  # fmt: skip
        try:
            mutant.damaged(text)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        mutants.append(mutant)
    return mutants


def run(mutants: list[Mutant], folder: Path, jobs: int) -> int:
    """Run the tests unchanged, then every mutant in a copy that no other uses meanwhile."""
    clean = folder / "clean"
    copy_tree(clean)
    with ThreadPoolExecutor(jobs) as pool:
        sets = list(dict.fromkeys(m.tests for m in mutants))
        unchanged = dict(
            zip(sets, pool.map(lambda tests: passes_unchanged(clean, tests), sets), strict=True)
        )

        # The copies hold the compiled files of the runs above.
        copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(jobs):
            copies.put(Path(shutil.copytree(clean, folder / f"copy_{i}")))

        def attempt(mutant: Mutant) -> str:
            if unchanged[mutant.tests]:
                return f"not tried, its tests {unchanged[mutant.tests]}"
            copy = copies.get()
            try:
                return try_mutant(copy, mutant)
            finally:
                copies.put(copy)

        missed = []
        for mutant, outcome in zip(mutants, pool.map(attempt, mutants), strict=True):
            line = f"{outcome}: {mutant.place} ({mutant.area}: {mutant.why})"
            print(line, flush=True)
            if not outcome.startswith("killed"):
                missed.append(line)

    print(f"{len(mutants)} mutants, {len(mutants) - len(missed)} killed, {len(missed)} not")
    for line in missed:
        print(f"  {line}")
    return 1 if missed else 0


def copy_tree(target: Path) -> None:
    """Copy the tracked files as they are now."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def passes_unchanged(tree: Path, tests: tuple[str, ...]) -> str:
    """Return "" where the tests pass, else what is wrong with them."""
    try:
        code, output = pytest_in(tree, tests, compiled=True)
    except subprocess.TimeoutExpired:
        return f"take more than {_LIMIT_S} s unchanged"
    if code != 0:
        print(output, file=sys.stderr)
        return "do not pass unchanged"
    if not re.search(r"\b\d+ passed", output):
        return "all skip"
    return ""


def try_mutant(tree: Path, mutant: Mutant) -> str:
    """Damage one file, run its tests, put the file back; say what came of it."""
    path, original = tree / mutant.file, ROOT / mutant.file
    path.write_text(mutant.damaged(path.read_text()))
    started = time.monotonic()
    try:
        code, output = pytest_in(tree, mutant.tests, compiled=False)
    except subprocess.TimeoutExpired:
        return f"killed (no end after {_LIMIT_S} s)"
    finally:
        # With its old time: the compiled file fits it again.
        shutil.copy2(original, path)

    if code == _TESTS_FAILED:
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return f"killed in {time.monotonic() - started:.0f} s by {failed[1] if failed else '?'}"
    if code == 0:
        return "SURVIVED"
    print(output, file=sys.stderr)
    return f"pytest ended with {code}, which is no failed test"


def pytest_in(tree: Path, tests: tuple[str, ...], compiled: bool) -> tuple[int, str]:
    """Run tests with the tree's own code; return pytest's exit code and output.

    ``compiled=False`` leaves no compiled file of a mutant behind for the next one.
    """
    environment = {
        "ACEHAND_SHARED": str(ROOT.parent / "shared"),
        "OMP_NUM_THREADS": "1",
        "ACEHAND_SLOW": "1",  # as continuous integration runs them
        **os.environ,
        "PYTHONPATH": str(tree),
    }
    if not compiled:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-p", "no:cacheprovider", *tests],
        cwd=tree, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
