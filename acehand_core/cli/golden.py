"""``acehand golden-check DIR``: are we still the released model? Reference outputs, reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from acehand_core.cli import console
from acehand_core.settings import setting

EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class GoldenCheck:
    """Reproduce reference outputs of the released model: one line per tensor, and a JSON summary.

    The exit code is 0 only if every case passes.
    """

    manifest: Path = setting(
        ..., "folder with manifest.json, or that file", metavar="DIR", positional=True
    )
    case: tuple[str, ...] = setting((), "only this case", metavar="NAME", repeat=True)

    def run(self, terminal: console.Terminal) -> int:
        """Check the cases."""
        from acehand_core.model.golden_check import check_manifest

        cases = passed = 0
        worst = None
        for name, checks in check_manifest(self.manifest, self.case or None):
            cases += 1
            passed += all(check.passed for check in checks)
            for check in checks:
                state = "pass" if check.passed else "FAIL"
                detail = (
                    check.problem or f"largest {check.largest:.2e}, {check.ratio:.2f} of tolerance"
                )
                print(f"{state} {name} {check.tensor} {detail}", flush=True)
                if worst is None or check.ratio > worst.ratio:
                    worst = check
        console.print_json({"cases": cases, "passed": passed, "worst": worst and worst.to_json()})
        return console.EXIT_OK if cases and passed == cases else EXIT_FAILED
