"""``acehand-train``: hydra composes the configuration, this checks it and runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acehand_core.errors import AcehandError, InputError, OutputError
from acehand_core.training.config import TrainConfig

CONF = Path(__file__).with_name("conf")
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
        raise InputError(f"configuration: {str(error).splitlines()[0]}") from error
    return TrainConfig.from_json(plain)


def compose(overrides: Sequence[str]) -> TrainConfig:
    """Return the configuration of some overrides, as the command line would. Raises InputError."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return checked(hydra_compose("config", list(overrides)))
    except HydraException as error:
        raise InputError(f"configuration: {error}") from error


def main() -> None:
    """Entry point of ``acehand-train``."""
    import hydra

    register()
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(_run)()


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
        sys.stderr.write(f"acehand-train: {error}\n")
        sys.exit(_EXIT_OUTPUT if isinstance(error, OutputError) else _EXIT_INPUT)
    bar.close()
    bar.say(f"{report.run}: {report.steps} steps, loss {report.loss}, weights {report.weights}")


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
