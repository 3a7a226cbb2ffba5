"""The commands of the paper's system: weights, labelled clips, synthetic clips, evaluation."""

from collections.abc import Mapping

#: As ``cli.main.COMMANDS``.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "weights fetch": ("download weights of the model or a tracker", f"{__name__}.weights:Fetch"),
    "weights convert": (
        "convert weights, or export a training run",
        f"{__name__}.weights:ConvertWeights",
    ),
    "weights inspect": ("describe and check weights", f"{__name__}.weights:InspectWeights"),
    "data convert": ("convert a dataset to stores of clips", f"{__name__}.clips:ConvertClips"),
    "evaluate": ("score hands by the paper's protocol, or report", f"{__name__}.evaluate:Evaluate"),
    "synth": ("render clips of hands with ground truth", f"{__name__}.clips:Synth"),
}
