"""``acehand dataset trim``: frames off episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acehand_core.cli import console
from acehand_core.settings import setting

if TYPE_CHECKING:
    from acehand_core.lerobot.trim import Trimming


@dataclass(frozen=True, slots=True)
class Trim:
    """Cut idle ends, gaps, unsure and blurred frames off the episodes of a LeRobot dataset."""

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    rules: Path = setting(..., "file of rules (docs/formats.md)", metavar="YAML")
    dry_run: bool = setting(False, "say what would be cut, and change nothing")
    delete: bool = setting(
        False, "do not keep the episodes as they were as a dataset in DATASET/.unreferenced"
    )

    def run(self, terminal: console.Terminal) -> int:
        """Trim it, and say what was cut and why."""
        from acehand_core.lerobot.trim import trim_episodes
        from acehand_core.lerobot.trim_rules import read_trim_rules
        from acehand_core.pipeline.trimming import write_beside

        rules = read_trim_rules(self.rules)
        trimming = trim_episodes(
            self.folder, rules, write_beside, delete=self.delete, dry_run=self.dry_run,
            progress=terminal.bars,
        )  # fmt: skip
        say_trimming(self.folder, trimming, self.dry_run)
        terminal.print_json({"dataset": str(self.folder), **trimming.to_json()})
        return console.EXIT_OK


def say_trimming(folder: Path, trimming: Trimming, dry_run: bool) -> None:
    """Print what was cut off which episode and why, and what is left."""
    for entry in trimming.trimmed:
        kept = " and ".join(f"{start} to {stop - 1}" for start, stop in entry["kept"])
        would = "would keep" if dry_run else "kept"
        console.say(f"episode {entry['episode']}: {would} {kept or 'none'} "
                    f"of {entry['frames']} frames")  # fmt: skip
        for cut in entry["cuts"]:
            start, stop = cut["frames"]
            which = f"frames {start} to {stop - 1}" if stop > start + 1 else f"frame {start}"
            console.say(f"  - {which}: {cut['reason']}")
    if trimming.set_aside is not None:
        console.say(
            f"episodes as they were, a dataset that acehand dataset merge takes: "
            f"{folder / trimming.set_aside}"
        )
    console.say(f"{folder}: {trimming.episodes} episodes, {trimming.frames} frames")
