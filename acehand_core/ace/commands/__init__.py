"""The commands of the paper's system: weights, labelled clips, synthetic clips, evaluation."""

from collections.abc import Mapping

_WEIGHTS = "acehand_core.ace.commands.weights"
#: As ``cli.main.COMMANDS``.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "weights fetch": ("download weights of the model or a tracker", f"{_WEIGHTS}:Fetch"),
    "weights convert": ("convert weights, or export a training run", f"{_WEIGHTS}:Convert"),
    "weights inspect": ("describe and check weights", f"{_WEIGHTS}:Inspect"),
    "data convert": (
        "convert a dataset to stores of clips",
        "acehand_core.ace.commands.data:Convert",
    ),
    "evaluate": (
        "score hands by the paper's protocol, make reports",
        "acehand_core.ace.commands.evaluate:Evaluate",
    ),
    "synth": ("render clips of hands with ground truth", "acehand_core.ace.commands.synth:Synth"),
}
