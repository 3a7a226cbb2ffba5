"""The help of every command, as a user reads it; after a change: ``pytest --snapshot-update``."""

import pytest

from acehand_core.cli import retarget
from acehand_core.cli.main import all_commands
from acehand_core.cli.main import main as acehand

COMMANDS = sorted({*all_commands()} - {"retarget"})  # that is acehand-retarget
GROUPS = sorted({name.split()[0] for name in COMMANDS if " " in name} - {*COMMANDS})
#: With so many flags that ``--help`` shows only those that most people need first.
LONG = ("acehand-retarget", "bag convert", "batch run", "evaluate", "reconstruct", "render")


@pytest.mark.parametrize(
    ("command", "help"),
    [(name, "--help") for name in ("acehand-retarget", "", *GROUPS, *COMMANDS)]
    + [(name, "--help-all") for name in LONG],
)
def test_help(command, help, snapshot, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in ("FORCE_COLOR", "PY_COLORS", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    if command in ("", *GROUPS):
        assert acehand([*command.split(), help]) == 0
    else:
        with pytest.raises(SystemExit) as stop:
            if command == "acehand-retarget":
                retarget.main([help])
            else:
                acehand([*command.split(), help])
        assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert shown == snapshot
    assert ("--help-all" in shown) == (command in LONG and help == "--help")
