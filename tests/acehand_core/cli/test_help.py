"""The help of every command, as a user reads it; after a change: ``pytest --snapshot-update``."""

import pytest

from acehand_core.cli import retarget
from acehand_core.cli.main import all_commands
from acehand_core.cli.main import main as acehand

COMMANDS = sorted({*all_commands()} - {"retarget"})  # that is acehand-retarget
GROUPS = sorted({name.split()[0] for name in COMMANDS if " " in name})


@pytest.mark.parametrize("command", ["acehand-retarget", "", *GROUPS, *COMMANDS])
def test_help(command, snapshot, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    if command in ("", *GROUPS):
        assert acehand([*command.split(), "--help"]) == 0
    else:
        with pytest.raises(SystemExit) as stop:
            if command == "acehand-retarget":
                retarget.main(["--help"])
            else:
                acehand([*command.split(), "--help"])
        assert stop.value.code == 0
    assert capsys.readouterr().out == snapshot
