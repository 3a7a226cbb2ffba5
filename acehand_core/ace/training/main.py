"""``acehand-train``: runs the configuration that hydra composes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from acehand_core.ace.training.config import CONF, checked, compose, readable, register
from acehand_core.cli.console import Bars, pipeable
from acehand_core.errors import AcehandError, InputError, exit_code

#: hydra's flags for another folder or file of settings.
_CONFIG_FLAGS = ("-cp", "-cn", "-cd")
_EXIT_INTERRUPTED = 130


@pipeable()
def main() -> None:
    """Entry point of ``acehand-train``."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    register()
    # hydra then raises its errors instead of printing them and exiting with 1.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        if sys.argv[1:2] == ["plan"]:
            raise InputError(
                "plan is gone; --cfg job prints a recipe, and python -m benchmarks.train_step "
                "--size real measures one of its steps on a GPU."
            )
        _check_shown(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_run)()
    except (HydraException, OmegaConfBaseException) as error:
        _fail(readable(error))
    except AcehandError as error:
        _fail(error)


def _check_shown(arguments: Sequence[str]) -> None:
    """Check what ``--cfg`` will print; hydra prints it unchecked."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--package", "-p")
    parser.add_argument("--multirun", "-m", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    elsewhere = any(word.startswith("--config") or word in _CONFIG_FLAGS for word in rest)
    if known.cfg in ("job", "all") and not (known.multirun or elsewhere):
        compose([word for word in rest if not word.startswith("-")])


def _fail(error: Exception) -> None:
    sys.stderr.write(f"acehand-train: {error}\n")
    sys.exit(exit_code(error))


def _run(composed: Any) -> None:
    """Run one composed configuration; with ``--multirun`` hydra calls this for each."""
    from acehand_core.ace.training import loop

    quiet = os.environ.get("RANK", "0") != "0"  # the first of several processes reports
    bar = Bars(quiet, sys.stderr)
    try:
        report = loop.train(checked(composed), bar)
    except KeyboardInterrupt:
        bar.close()
        sys.stderr.write("interrupted; the same command resumes from the last checkpoint\n")
        sys.exit(_EXIT_INTERRUPTED)
    except AcehandError as error:
        bar.close()
        _fail(error)

    bar.close()
    if report.signal is not None:
        stopped = f"stopped after step {report.steps}, saved; the same command resumes"
        bar(f"{report.run}: {stopped}", 0, 0)
        sys.exit(128 + report.signal)
    loss = "nothing left to train" if report.loss is None else f"loss {report.loss}"
    bar(f"{report.run}: {report.steps} steps, {loss}, weights {report.weights}", 0, 0)


if __name__ == "__main__":
    main()
