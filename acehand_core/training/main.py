"""``acehand-train``: hydra composes the configuration, this checks it and runs it.

``acehand-train plan`` says beforehand what a run needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acehand_core.errors import AcehandError, InputError, OutputError
from acehand_core.training.config import TrainConfig

CONF = Path(__file__).with_name("conf")
#: hydra's flags for another folder or file of settings.
_CONFIG_FLAGS = ("-cp", "-cn", "-cd")
_EXIT_INPUT, _EXIT_OUTPUT, _EXIT_INTERRUPTED = 2, 4, 130


def register() -> None:
    """Make the schema's defaults known to hydra; the dataclasses stay the ones that check."""
    from hydra.core.config_store import ConfigStore

    defaults = {**TrainConfig().to_json(), "run": "runs/${name}"}
    ConfigStore.instance().store(name="schema", node=defaults)


def checked(composed: Any) -> TrainConfig:
    """Return what hydra composed as a checked configuration. Raises InputError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        plain = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise _one_line(error) from error
    return TrainConfig.from_json(plain)


def compose(overrides: Sequence[str]) -> TrainConfig:
    """Return the configuration of some overrides, as the command line would. Raises InputError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return checked(hydra_compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise _one_line(error) from error


def main() -> None:
    """Entry point of ``acehand-train``."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    register()
    # hydra hands its errors on, instead of printing them and ending with exit code 1.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        if sys.argv[1:2] == ["plan"]:
            from acehand_core.training import plan

            plan.run(sys.argv[2:])
            return
        _check_shown(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_run)()
    except (HydraException, OmegaConfBaseException) as error:
        _fail(_one_line(error))
    except AcehandError as error:
        _fail(error)


def _check_shown(arguments: Sequence[str]) -> None:
    """Check what ``--cfg`` is about to print: hydra prints it without asking us."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg", "-c")
    parser.add_argument("--package", "-p")
    parser.add_argument("--multirun", "-m", action="store_true")
    known, rest = parser.parse_known_args(arguments)
    elsewhere = any(word.startswith("--config") or word in _CONFIG_FLAGS for word in rest)
    if known.cfg in ("job", "all") and not (known.multirun or elsewhere):
        compose([word for word in rest if not word.startswith("-")])


def _one_line(error: Exception) -> InputError:
    """Return what hydra says in one line, without the folders that it searched."""
    text = str(error).partition("Config search path")[0]
    return InputError(f"configuration: {' '.join(text.split())}")


def _fail(error: Exception) -> None:
    sys.stderr.write(f"acehand-train: {error}\n")
    sys.exit(_EXIT_OUTPUT if isinstance(error, OutputError) else _EXIT_INPUT)


def _run(composed: Any) -> None:
    """Run one composed configuration; with ``--multirun`` hydra calls this for each."""
    from acehand_core.training import loop

    bar = _Bar(os.environ.get("RANK", "0") == "0")
    try:
        report = loop.train(checked(composed), bar)
    except KeyboardInterrupt:
        bar.close()
        sys.stderr.write("interrupted; the same command goes on from the last checkpoint\n")
        sys.exit(_EXIT_INTERRUPTED)
    except AcehandError as error:
        bar.close()
        _fail(error)
    bar.close()
    loss = "nothing left to train" if report.loss is None else f"loss {report.loss}"
    bar.say(f"{report.run}: {report.steps} steps, {loss}, weights {report.weights}")


class _Bar:
    """A progress bar with the time left, on standard error, of the first process."""

    def __init__(self, shown: bool) -> None:
        self._shown, self._bar = shown, None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self._shown:
            return
        if total == 0:
            self.say(stage)
            return
        from tqdm import tqdm

        if self._bar is None or self._bar.total != total:
            self.close()
            self._bar = tqdm(total=total, initial=done - 1, file=sys.stderr, dynamic_ncols=True)
        self._bar.set_description(stage, refresh=False)
        self._bar.update(done - self._bar.n)

    def say(self, text: str) -> None:
        """Print a line."""
        if self._shown:
            sys.stderr.write(f"{text}\n")

    def close(self) -> None:
        """Finish the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


if __name__ == "__main__":
    main()
