"""``acehand``: the commands other than ``acehand-retarget``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module

from acehand_core import __version__, plugins
from acehand_core.cli import console
from acehand_core.errors import AcehandError, MissingDependencyError, exit_code, nearest
from acehand_core.settings import Leaf, leaves

_CLI = "acehand_core.cli"
#: What each command does, and its class, loaded when it is used (``plugins``: acehand.commands).
COMMANDS: Mapping[str, tuple[str, str]] = {
    "retarget": ("the main job, as acehand-retarget", f"{_CLI}.retarget:Retarget"),
    "reconstruct": ("hands of a video as a table", f"{_CLI}.hands:Reconstruct"),
    "export": ("hands in another format, or robot commands", f"{_CLI}.hands:Export"),
    "view": ("an episode or hands in a viewer, or pictures", f"{_CLI}.hands:ViewHands"),
    "render": ("video and strip of hands and robot", f"{_CLI}.hands:Render"),
    "robots": ("the robots, as robots list", f"{_CLI}.robots:ListRobots"),
    "robots list": ("joints, commands and licences", f"{_CLI}.robots:ListRobots"),
    "robots check": ("does a model fit its robot.yaml?", f"{_CLI}.robots:CheckRobots"),
    "robots show": ("a picture of a robot", f"{_CLI}.robots:ShowRobot"),
    "robots init": ("draft a robot.yaml from a model", f"{_CLI}.robots:InitRobot"),
    "robots calibrate": ("fit robots to canonical poses", f"{_CLI}.robots:CalibrateRobots"),
    "camera show": ("contents of a camera file, with a picture", f"{_CLI}.camera:ShowCamera"),
    "camera presets": ("camera models and fields of view", f"{_CLI}.camera:Presets"),
    "camera estimate": ("the focal length of a video", f"{_CLI}.camera:Estimate"),
    "camera convert": ("a camera file of any format as ours", f"{_CLI}.camera:ConvertCamera"),
    "batch run": ("many recordings into one dataset", f"{_CLI}.convert:RunBatch"),
    "inspect": ("which episodes are good enough, and why", f"{_CLI}.review:Inspect"),
    "grasp-check": ("would the robot hold what the human held?", f"{_CLI}.review:GraspCheck"),
    "review": ("accept or reject episodes in a browser", f"{_CLI}.review:Review"),
    "dataset info": ("contents and statistics of a dataset", f"{_CLI}.dataset:DatasetInfo"),
    "dataset merge": ("several datasets as one", f"{_CLI}.dataset:Merge"),
    "dataset check": ("find and repair faults of a dataset", f"{_CLI}.dataset:CheckDataset"),
    "dataset filter": ("remove episodes, by number or by rules", f"{_CLI}.dataset:Filter"),
    "dataset trim": ("cut idle ends, gaps and bad frames", f"{_CLI}.dataset:Trim"),
    "bag info": ("contents and damage of a ROS 2 bag", f"{_CLI}.convert:BagInfo"),
    "bag convert": ("a bag into a dataset or another bag", f"{_CLI}.convert:ConvertBag"),
    "bag write": ("a dataset or a table of hands into a bag", f"{_CLI}.convert:WriteBag"),
    "doctor": ("what is installed and what is missing", f"{_CLI}.doctor:Doctor"),
}


@console.pipeable()
def main(argv: Sequence[str] | None = None) -> int:
    """Run ``acehand``; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Flags of all commands may stand before the command's name.
    names = [word for word in words[:3] if not word.startswith("-")]
    spelled = (" ".join(names[:2]), *names[:1])
    try:
        known = COMMANDS if any(name in COMMANDS for name in spelled) else all_commands()
    except AcehandError as error:
        console.say_error(error, "--verbose" in words)
        return exit_code(error)

    for name in spelled:
        if name in known:
            for word in name.split():
                words.remove(word)
            program = f"acehand {name}"
            return console.run(
                program, words, partial(_loaded, program, known[name][1]), settings_of
            )

    if "--version" in words:
        print(f"acehand {__version__}")
        return console.EXIT_OK
    group = names[0] if names and any(name.startswith(f"{names[0]} ") for name in known) else ""
    prefix, given = f"{group} " if group else "", " ".join(names[:2] if group else names[:1])
    listed = {name: text for name, (text, _) in known.items() if name.startswith(prefix)}
    if given == group and {"-h", "--help"} & {*words}:
        print(f"usage: acehand {group or '...'} ... [--help]\n")
        for name, text in listed.items():
            print(f"  {name:<16} {text}")
        return console.EXIT_OK
    wrong = "a command is missing" if given == group else "no such command"
    console.say(f"error: acehand{given and ' '}{given}: {wrong}; {nearest(given, listed)}")
    return console.EXIT_INPUT


@console.pipeable()
def retarget(argv: Sequence[str] | None = None) -> int:
    """Run ``acehand-retarget``; return its exit code, 130 for Ctrl-C while it is imported too."""
    program, place = "acehand-retarget", "acehand_core.cli.retarget:Retarget"
    return console.run(program, argv, partial(_loaded, program, place), settings_of)


def all_commands() -> dict[str, tuple[str, str]]:
    """Return the commands of this package, then those of plug-ins under other names."""
    commands = dict(COMMANDS)
    for plugin in plugins.names("commands"):
        table = plugins.load("commands", plugin)
        if not isinstance(table, Mapping):
            raise plugins.unfit("commands", plugin, "is not a table of commands")
        commands = {**table, **commands}
    return dict(sorted(commands.items(), key=lambda row: row[0] not in COMMANDS))


def settings_of(command: str) -> tuple[Leaf, ...]:
    """Return the settings of a command; none for what is no command or cannot be loaded."""
    with contextlib.suppress(AcehandError, KeyError):
        table = COMMANDS if command in COMMANDS else all_commands()
        return leaves(_loaded(command, table[command][1]))
    return ()


def _loaded(program: str, place: str) -> type[console.Runnable]:
    """Return the class of a command. Raises MissingDependencyError."""
    module, _, kind = place.partition(":")
    try:
        loaded: type[console.Runnable] = getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        message = f"{program} cannot be loaded from {place!r}: {error}."
        raise MissingDependencyError(message) from error
    return loaded


if __name__ == "__main__":
    sys.exit(main())
