"""``acehand dataset annotate``: hands beside a dataset's own columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from acehand_core.cli import console
from acehand_core.cli.ace import usable_weights
from acehand_core.pipeline.annotate import AnnotateSettings
from acehand_core.settings import group, setting


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write a LeRobot dataset again with the hands that its video shows, as columns of its own.

    An interrupted run resumes where the same command is given again.
    """

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    output: Path = setting(..., "where the annotated dataset is written", metavar="DIR")
    hard_links: bool = setting(False, "as of acehand dataset merge")
    settings: AnnotateSettings = group(AnnotateSettings)

    def run(self, terminal: console.Terminal) -> int:
        """Annotate and say which features there are now."""
        from acehand_core.pipeline.annotate import annotate

        settings = self.settings
        settings = replace(settings, ace=usable_weights(settings.ace, settings.tracker))
        made = annotate(
            self.folder, self.output, settings, hard_links=self.hard_links, progress=terminal.bars
        )
        without = ", ".join(map(str, made.without_hands))
        console.say(f"{self.output}: {made.episodes} episodes, {made.frames} frames")
        console.say(f"added: {', '.join(made.features)}")
        if without:
            console.say(f"no hand was found in episodes: {without}")
        terminal.print_json({"dataset": str(self.output), **made.to_json()})
        return console.EXIT_OK
