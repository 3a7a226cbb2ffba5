"""``acehand``: the parts of the main job one by one, and what is installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module

from acehand_core import __version__, plugins
from acehand_core.cli import console
from acehand_core.errors import AcehandError, MissingDependencyError, exit_code, nearest

#: What each command does, and its class, loaded when it is used (``plugins``: acehand.commands).
COMMANDS: Mapping[str, tuple[str, str]] = {
    "reconstruct": ("hands of a video as a table", "acehand_core.cli.hands:Reconstruct"),
    "export": (
        "a table of hands in another form, or as robot commands",
        "acehand_core.cli.hands:Export",
    ),
    "view": (
        "an episode or a table of hands in a viewer, or pictures",
        "acehand_core.cli.hands:View",
    ),
    "render": ("film and strip of hands and robot", "acehand_core.cli.render:Render"),
    "robots": ("list, check or draw the robots", "acehand_core.cli.robots:Robots"),
    "camera show": ("what a camera file says, and a picture of it", "acehand_core.cli.camera:Show"),
    "camera presets": (
        "kinds of cameras by their published fields of view",
        "acehand_core.cli.camera:Presets",
    ),
    "camera estimate": (
        "the focal length of a video from its pictures",
        "acehand_core.cli.camera:Estimate",
    ),
    "camera convert": ("a camera file of any format as ours", "acehand_core.cli.camera:Convert"),
    "batch run": (
        "many recordings into one dataset, with many workers",
        "acehand_core.cli.batch:Run",
    ),
    "inspect": (
        "which episodes are good enough, as a page and JSON",
        "acehand_core.cli.review:Inspect",
    ),
    "review": ("look through episodes in a browser, and decide", "acehand_core.cli.review:Review"),
    "dataset info": (
        "what a dataset holds, and statistics of a feature",
        "acehand_core.cli.dataset:Info",
    ),
    "dataset merge": ("several datasets as one", "acehand_core.cli.dataset:Merge"),
    "dataset check": (
        "what is wrong with a dataset; with --repair mend it",
        "acehand_core.cli.dataset:Check",
    ),
    "dataset filter": ("remove episodes, by number or by rules", "acehand_core.cli.dataset:Filter"),
    "dataset trim": (
        "cut idle ends, gaps and bad frames off episodes",
        "acehand_core.cli.dataset:Trim",
    ),
    "bag info": ("what is in a ROS 2 bag, and what is damaged", "acehand_core.cli.bag:Info"),
    "bag convert": (
        "a bag into a dataset and, if wanted, another bag",
        "acehand_core.cli.bag:Convert",
    ),
    "bag write": ("a dataset or a table of hands into a bag", "acehand_core.cli.bag:Write"),
    "doctor": (
        "what is installed and what each missing piece would add",
        "acehand_core.cli.doctor:Doctor",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``acehand``; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Flags that all commands have may stand before the action's name.
    names = [word for word in words[:3] if not word.startswith("-")]
    spelled = (" ".join(names[:2]), *names[:1])
    try:
        known = COMMANDS if any(map(COMMANDS.__contains__, spelled)) else all_commands()
    except AcehandError as error:
        console.say_error(error, "--verbose" in words)
        return exit_code(error)

    for name in spelled:
        if name in known:
            for word in name.split():
                words.remove(word)
            return console.run(f"acehand {name}", words, partial(_loaded, name, known[name][1]))
    return _other(names, words, known)


def all_commands() -> dict[str, tuple[str, str]]:
    """Return the commands of this package and of plug-ins; ours cannot be replaced."""
    found = dict(COMMANDS)
    for plugin in plugins.names("commands"):
        table = plugins.load("commands", plugin)
        if not isinstance(table, Mapping):
            raise plugins.unfit("commands", plugin, "is not a table of commands")
        found = {**table, **found}
    return dict(sorted(found.items(), key=lambda row: row[0] not in COMMANDS))


def _loaded(name: str, place: str) -> type[console.Runnable]:
    """Return the class of a command. Raises MissingDependencyError: it cannot be loaded."""
    module, _, kind = place.partition(":")
    try:
        loaded: type[console.Runnable] = getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"acehand {name} cannot be loaded from {place!r}: {error}."
        ) from error
    return loaded


def _other(
    names: Sequence[str], words: Sequence[str], commands: Mapping[str, tuple[str, str]]
) -> int:
    """Say which commands there are, or what is wrong with the one that was given."""
    if "--version" in words:
        print(f"acehand {__version__}")
        return console.EXIT_OK
    group = names[0] if names and any(name.startswith(f"{names[0]} ") for name in commands) else ""
    there = {name: text for name, (text, _) in commands.items() if name.startswith(group)}
    if {"-h", "--help"} & {*words}:
        print(f"usage: acehand {group or '...'} ... [--help]\n")
        for name, text in there.items():
            print(f"  {name:<16} {text}")
        return console.EXIT_OK

    given = " ".join(names[:2] if group else names[:1])
    wrong = f"acehand {given}: no such command" if given else "acehand: say which command"
    console.say(f"error: {wrong}; {nearest(given, there)}")
    return console.EXIT_INPUT


if __name__ == "__main__":
    sys.exit(main())
