"""The commands of the paper's system: weights, labelled clips, synthetic clips, evaluation."""

from collections.abc import Mapping

#: As ``cli.main.COMMANDS``.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "weights fetch": (
        "download released weights, or the mediapipe tracker's",
        "acehand_core.ace.commands.weights:Fetch",
    ),
    "weights convert": (
        "write weights, also of a training run, in a layout",
        "acehand_core.ace.commands.weights:Convert",
    ),
    "weights inspect": (
        "what weights hold, and whether all of it is right",
        "acehand_core.ace.commands.weights:Inspect",
    ),
    "data convert": (
        "a dataset in its native layout as stores of clips",
        "acehand_core.ace.commands.data:Convert",
    ),
    "evaluate": (
        "scores by the paper's protocol, and reports of them",
        "acehand_core.ace.commands.evaluate:Evaluate",
    ),
    "synth": (
        "render clips of hands with ground truth, to train on",
        "acehand_core.ace.commands.synth:Synth",
    ),
}
