"""``acehand``: the parts of the main job one by one, and what is installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module

from acehand_core import __version__
from acehand_core.cli import console
from acehand_core.errors import nearest

#: Commands and their actions: what each does, and where it is in acehand_core. Loaded when used.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "reconstruct": ("hands of a video as a table", "cli.hands:Reconstruct"),
    "export": ("a table of hands in another form, or as robot commands", "cli.hands:Export"),
    "view": ("an episode or a table of hands in a viewer, or pictures", "cli.hands:View"),
    "render": ("film and strip of hands and robot", "cli.render:Render"),
    "robots": ("list, check or draw the robots", "cli.robots:Robots"),
    "camera show": ("what a camera file says, and a picture of it", "cli.camera:Show"),
    "camera presets": ("kinds of cameras by their published fields of view", "cli.camera:Presets"),
    "camera estimate": ("the focal length of a video from its pictures", "cli.camera:Estimate"),
    "camera convert": ("a camera file of any format as ours", "cli.camera:Convert"),
    "batch run": ("many recordings into one dataset, with many workers", "cli.batch:Run"),
    "inspect": ("which episodes are good enough, as a page and JSON", "cli.review:Inspect"),
    "review": ("look through episodes in a browser, and decide", "cli.review:Review"),
    "dataset info": ("what a dataset holds, and statistics of a feature", "cli.dataset:Info"),
    "dataset merge": ("several datasets as one", "cli.dataset:Merge"),
    "dataset check": ("what is wrong with a dataset; with --repair mend it", "cli.dataset:Check"),
    "dataset filter": ("remove episodes, by number or by rules", "cli.dataset:Filter"),
    "dataset trim": ("cut idle ends, gaps and bad frames off episodes", "cli.dataset:Trim"),
    "bag info": ("what is in a ROS 2 bag, and what is damaged", "cli.bag:Info"),
    "bag convert": ("a bag into a dataset and, if wanted, another bag", "cli.bag:Convert"),
    "bag write": ("a dataset or a table of hands into a bag", "cli.bag:Write"),
    "weights fetch": (
        "download released weights, or the mediapipe tracker's",
        "ace.commands.weights:Fetch",
    ),
    "weights convert": (
        "write weights, also of a training run, in a layout",
        "ace.commands.weights:Convert",
    ),
    "weights inspect": (
        "what weights hold, and whether all of it is right",
        "ace.commands.weights:Inspect",
    ),
    "data convert": (
        "a dataset in its native layout as stores of clips",
        "ace.commands.data:Convert",
    ),
    "evaluate": (
        "scores by the paper's protocol, and reports of them",
        "ace.commands.evaluate:Evaluate",
    ),
    "synth": ("render clips of hands with ground truth, to train on", "ace.commands.synth:Synth"),
    "doctor": ("what is installed and what each missing piece would add", "cli.doctor:Doctor"),
}
#: Commands that are gone: what to do instead.
REMOVED: Mapping[str, str] = {
    "retarget": "acehand-retarget with the same flags",
    "camera motion": "acehand reconstruct or acehand-retarget, which find it by themselves",
    "batch retry": "acehand batch run MANIFEST ... --retry",
    "batch merge": "acehand batch run MANIFEST ... --merge",
    "batch status": "acehand batch run MANIFEST --output OUTPUT --status",
    "golden-check": "python -m tools.golden_check DIR in a clone, where the cases are",
    "data segments": "acehand evaluate --ground-truth STORE --write-segments FILE",
    "evaluate import": "acehand evaluate --predictions DIR --method NAME --keep DIR",
    "report": "acehand evaluate FILE ... --report DIR",
    "dataset card": "acehand dataset info DATASET --card DATASET/README.md",
    "dataset repair": "acehand dataset check DATASET --repair",
    "dataset task": "lerobot-edit-dataset, --operation.type modify_tasks (docs/formats.md)",
    "dataset stats": "acehand dataset info DATASET --feature KEY",
    "dataset push": "hf upload OWNER/NAME DATASET . --repo-type dataset (docs/formats.md)",
    "dataset remove": "acehand dataset filter DATASET EPISODE ...",
    "dataset split": "acehand dataset filter on copies, or lerobot-edit-dataset (docs/formats.md)",
    "dataset restore": "acehand dataset merge DATASET DATASET/.unreferenced/NAME --output DIR",
    "dataset annotate": "acehand-retarget DATASET, which makes a dataset of its own of the hands",
    "weights hands": "acehand weights fetch hands",
    "weights export": "acehand weights convert RUN --to acehand --output DIR",
    "weights verify": "acehand weights inspect PATH",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``acehand``; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Flags that all commands have may stand before the action's name.
    names = [word for word in words[:3] if not word.startswith("-")]
    for name in (" ".join(names[:2]), *names[:1]):
        if name in REMOVED:
            break
        if name in COMMANDS:
            for word in name.split():
                words.remove(word)
            return console.run(f"acehand {name}", words, partial(command_named, name))
    return _other(names, words)


def command_named(name: str) -> type[console.Runnable]:
    """Return the class of a command."""
    module, _, kind = COMMANDS[name][1].partition(":")
    loaded: type[console.Runnable] = getattr(import_module(f"acehand_core.{module}"), kind)
    return loaded


def _other(names: Sequence[str], words: Sequence[str]) -> int:
    """Say which commands there are, or what is wrong with the one that was given."""
    if "--version" in words:
        print(f"acehand {__version__}")
        return console.EXIT_OK
    group = names[0] if names and any(name.startswith(f"{names[0]} ") for name in COMMANDS) else ""
    there = {name: text for name, (text, _) in COMMANDS.items() if name.startswith(group)}
    if {"-h", "--help"} & {*words}:
        print(f"usage: acehand {group or '...'} ... [--help]\n")
        for name, text in there.items():
            print(f"  {name:<16} {text}")
        return console.EXIT_OK

    for name in (" ".join(names[:2]), *names[:1]):
        if name in REMOVED:
            console.say(f"error: acehand {name} is gone; instead: {REMOVED[name]}")
            return console.EXIT_INPUT
    given = " ".join(names[:2] if group else names[:1])
    wrong = f"acehand {given}: no such command" if given else "acehand: say which command"
    console.say(f"error: {wrong}; {nearest(given, there)}")
    return console.EXIT_INPUT


if __name__ == "__main__":
    sys.exit(main())
