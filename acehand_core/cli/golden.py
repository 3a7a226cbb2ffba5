"""``acehand golden-check DIR``: are we still the released model? Reference outputs, reproduced."""

from __future__ import annotations

import argparse
from pathlib import Path

from acehand_core.cli import console

EXIT_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "manifest", type=Path, metavar="DIR", help="folder with manifest.json, or that file"
    )
    parser.add_argument("--case", action="append", metavar="NAME", help="only this case")


def command(arguments: argparse.Namespace, bars: console.Bars) -> int:
    """Print one line per tensor and a JSON summary; exit 0 only if every case passes."""
    from acehand_core.model.golden.check import check_manifest

    cases = passed = 0
    worst = None
    for name, checks in check_manifest(arguments.manifest, arguments.case):
        cases += 1
        passed += all(check.passed for check in checks)
        for check in checks:
            state = "pass" if check.passed else "FAIL"
            detail = check.problem or f"largest {check.largest:.2e}, {check.ratio:.2f} of tolerance"
            print(f"{state} {name} {check.tensor} {detail}", flush=True)
            if worst is None or check.ratio > worst.ratio:
                worst = check
    console.print_json({"cases": cases, "passed": passed, "worst": worst and worst.to_json()})
    return console.EXIT_OK if cases and passed == cases else EXIT_FAILED
