"""Mutation testing by mutmut, one module at a time: ``[tool.mutants]`` of pyproject.toml has them.

    make mutants [MODULE=acehand_core/geometry/cameras.py [ONLY='*[369]']]

Each has a folder below ``mutants/``, with mutmut's configuration, verdicts and ``log``. Another run
checks survivors and changed functions; delete the folder after a change of other modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES, OTHERS = ["acehand_core", "acehand_ros", "retarget", "robots"], ["benchmarks", "tools"]


def main() -> None:
    """Run mutmut on one module, or one after another on all, and print what survives."""
    os.environ.setdefault("ACEHAND_SHARED", str(ROOT.parent / "shared"))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = tomllib.loads(project)["tool"]["mutants"]

    for module in sys.argv[1:2] or listed:
        folder = ROOT / "mutants" / module.removesuffix(".py").replace("/", ".")
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*SOURCES, *OTHERS, "tests"):
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(ROOT / name)

        settings = {
            "source_paths": SOURCES,
            "also_copy": OTHERS,
            "only_mutate": [module],
            # Tests match what an error names, not its words.
            "do_not_mutate_patterns": [r"\braise \w+\("],
            "pytest_add_cli_args": ["-p", "no:cacheprovider", "--hypothesis-seed=0"],
            "pytest_add_cli_args_test_selection": listed[module]["tests"],
        }
        table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        (folder / "pyproject.toml").write_text(f"{project}\n[tool.mutmut]\n{table}\n", "utf-8")
        with contextlib.chdir(folder):
            check(module, sys.argv[2:] or listed[module].get("only", []))


def check(module: str, only: list[str]) -> None:
    """Check a module's mutants, but not the killed ones again, and print the others."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    verdicts = Path("mutants") / f"{module}.meta"
    if verdicts.is_file():
        kept = json.loads(verdicts.read_text("utf-8"))
        for name, code in kept["exit_code_by_key"].items():
            if status_by_exit_code[code] != "killed":
                kept["exit_code_by_key"][name] = None
        verdicts.write_text(json.dumps(kept), "utf-8")
        Path("mutants/mutmut-stats.json").unlink(missing_ok=True)  # which tests reach what

    command = [sys.executable, "-m", "mutmut", "run", "--max-children=2", *only]
    with Path("log").open("w") as log:
        subprocess.run(command, stdout=log, check=True)

    codes = json.loads(verdicts.read_text("utf-8"))["exit_code_by_key"]
    found = {name: status_by_exit_code[code] for name, code in codes.items() if code is not None}
    for name, status in found.items():
        if status not in ("killed", "timeout"):
            diff = get_diff_for_mutant(name, path=Path(module)).splitlines()[3:]
            print(f"{name}: {status}", *(d for d in diff if d[:1] in "+-"), sep="\n    ")
    print(f"{module}: {len(found)} mutants, {dict(Counter(found.values()))}", flush=True)


if __name__ == "__main__":
    main()
