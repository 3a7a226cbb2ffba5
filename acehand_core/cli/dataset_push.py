"""``acehand dataset push``: a dataset on the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from acehand_core.cli import console
from acehand_core.settings import setting


@dataclass(frozen=True, slots=True)
class Push:
    """Publish a LeRobot dataset and its card on the Hugging Face Hub."""

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    repo_id: str = setting(..., "OWNER/NAME on the Hub", metavar="REPO_ID", positional=True)
    private: bool = setting(False, "nobody else may read it, where the repository is made now")
    revision: str | None = setting(
        None, "branch to push to, made where it is not there", metavar="BRANCH",
        default_text="the main one, which then gets lerobot's version tag",
    )  # fmt: skip
    allow: tuple[Literal["no-licence", "no-consent", "licence-chain"], ...] = setting(
        (), "what may be left open: that the card says no licence, nothing of the people's "
        "consent, or a licence that what it was made with does not allow", repeat=True,
        default_text="nothing",
    )  # fmt: skip
    dry_run: bool = setting(False, "check and list what would be uploaded, without the network")

    def run(self, terminal: console.Terminal) -> int:
        """Push it and say where it is."""
        from acehand_core.lerobot.push import push_dataset

        pushed = push_dataset(
            self.folder, self.repo_id, private=self.private, revision=self.revision,
            allowed=self.allow, dry_run=self.dry_run, progress=terminal.bars,
        )  # fmt: skip
        if self.dry_run:
            for name, size in pushed.files:
                console.say(f"{size:>12} {name}")
        for name in pushed.left_out:
            console.say(f"left out: {name}")
        for name in pushed.removed:
            console.say(f"removed from the repository: {name}")
        total = sum(size for _, size in pushed.files)
        verb = "would upload" if self.dry_run else "uploaded"
        console.say(f"{verb} {len(pushed.files)} files, {total / 1e6:.1f} MB, to {self.repo_id}")
        if pushed.url is not None:
            console.say(pushed.url)
        terminal.print_json({"dataset": str(self.folder), "repo": self.repo_id, **pushed.to_json()})
        return console.EXIT_OK
