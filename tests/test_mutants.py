"""The lists of ``tests/mutants.py`` fit the code: a line that changed would be tried no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
LISTS = sorted((ROOT / "tests" / "mutants").glob("*.yaml"))


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_damaged_line_and_its_tests_exist(path: Path) -> None:
    for mutant in yaml.safe_load(path.read_text("utf-8")):
        text = (ROOT / mutant["file"]).read_text("utf-8")
        assert text.count(mutant["old"]) == 1, f"{mutant['file']}: {mutant['old']!r}"
        for test in mutant["tests"]:
            file, _, name = test.partition("::")
            function = name.split("[")[0]
            assert f"def {function}" in (ROOT / file).read_text("utf-8"), test
