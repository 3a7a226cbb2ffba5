"""``acehand dataset info|merge|check|filter|trim``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from acehand_core.atomic import atomic_path
from acehand_core.cli import console
from acehand_core.errors import InputError
from acehand_core.settings import setting

if TYPE_CHECKING:
    from acehand_core.lerobot.edit import Removal
    from acehand_core.lerobot.repair import RepairPlan
    from acehand_core.lerobot.trim import Trimming


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Print the contents of a LeRobot dataset.

    `feature` adds exact statistics of a feature over all frames; `card` writes a dataset card:
    contents, origin, licences, quality.
    """

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    feature: str | None = setting(None, "e.g. action", metavar="KEY", default_text="none")
    card: Path | None = setting(
        None, "write a card for the Hugging Face Hub", metavar="FILE", default_text="none"
    )
    license: str | None = setting(
        None, "for `card`: licence, e.g. cc-by-4.0", metavar="ID", default_text="not stated"
    )
    consent: str | None = setting(
        None, "for `card`: consent of the recorded people", default_text="not stated"
    )
    overwrite: bool = setting(False, "for `card`: replace the file")

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.lerobot.summary import card, summarize

        if self.card is None and (self.license or self.consent or self.overwrite):
            raise InputError("`license`, `consent` and `overwrite` require `card`.")
        if self.card is not None:
            text = card(self.folder, self.license, self.consent)
            with atomic_path(self.card, self.overwrite) as partial:
                partial.write_text(text, "utf-8")
        summary = summarize(self.folder)
        console.say(
            f"{self.folder}: {summary.episodes} episodes of {summary.recordings} recordings, "
            f"{summary.frames} frames at {summary.fps} fps, {summary.seconds / 60:.1f} minutes, "
            f"{summary.bytes / 1e6:.1f} MB, robot {summary.robot}"
        )
        for task, n in summary.tasks.items():
            console.say(f"  task {task!r}: {n['episodes']} episodes, {n['frames']} frames")
        for what in ("verdict", "subject", "tracker"):
            counts = getattr(summary, f"{what}s")
            console.say(f"  {what}: {', '.join(f'{n} {name}' for name, n in counts.items())}")
        for key, video in summary.videos.items():
            console.say(f"  video {key}: {video['width']} x {video['height']}, {video['codec']}")
        for text in summary.licenses:
            console.say(f"  licence: {text}")
        report = asdict(summary)
        if self.feature is not None:
            report |= {"feature": self.feature, "stats": self._say_stats(self.feature)}
        if self.card is not None:
            console.say(f"wrote {self.card}")
            report["card"] = str(self.card)
        terminal.print_json(report)
        return console.EXIT_OK

    def _say_stats(self, feature: str) -> dict[str, dict[str, float]]:
        from acehand_core.lerobot.summary import exact_quantiles

        stats = exact_quantiles(self.folder, feature)
        wide = max(map(len, stats))
        columns = next(iter(stats.values()))
        console.say(f"{'':<{wide}} " + " ".join(f"{name:>10}" for name in columns))
        for name, values in stats.items():
            console.say(f"{name:<{wide}} " + " ".join(f"{v:>10.4g}" for v in values.values()))
        return stats


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge LeRobot datasets into a new one."""

    folders: tuple[Path, ...] = setting(
        ..., "datasets, in the order of their episodes", metavar="DATASET", positional=True
    )
    output: Path = setting(..., "the merged dataset", metavar="DIR")
    hard_links: bool = setting(
        False, "link videos and extra files instead of copying; a change in place changes both"
    )

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.lerobot.edit import merge_datasets

        merger = merge_datasets(
            self.folders, self.output, hard_links=self.hard_links, progress=terminal.bars
        )
        for source in merger.sources:
            last = source["first"] + source["episodes"] - 1
            console.say(f"{source['dataset']}: now episodes {source['first']} to {last}")
        console.say(f"{self.output}: {merger.episodes} episodes, {merger.frames} frames")
        terminal.print_json({"dataset": str(self.output), **asdict(merger)})
        return console.EXIT_OK


@dataclass(frozen=True, slots=True)
class CheckDataset:
    """Find the faults of a LeRobot dataset, or repair it.

    `repair` finishes the work of a killed writer and keeps the complete episodes of a broken
    dataset. Before it loses episodes it asks, or without a terminal needs `yes`; their files are
    kept in DATASET/.unreferenced.
    """

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    repair: bool = setting(False, "repair it")
    yes: bool = setting(False, "for `repair`: lose episodes without asking")
    dry_run: bool = setting(False, "for `repair`: print the steps, and change nothing")

    def run(self, terminal: console.Terminal) -> int:
        """Print the problems, after any repair; the exit code is 0 only without problems."""
        from acehand_core.lerobot.check import check_dataset
        from acehand_core.lerobot.repair import plan_repair, repair

        if self.dry_run and self.repair:
            plan = plan_repair(self.folder)
            _say_plan(plan)
            if not plan.steps:
                console.say(f"{self.folder}: nothing to repair")
            terminal.print_json({"to_do": plan.steps, "lost": plan.lost})
            return console.EXIT_SOME_FAILED if plan.steps else console.EXIT_OK
        if not self.repair and (self.yes or self.dry_run):
            raise InputError("`yes` and `dry_run` require `repair`.")
        done = repair(self.folder, self._agree) if self.repair else []
        for line in done:
            console.say(f"repaired: {line}")
        problems = [str(problem) for problem in check_dataset(self.folder)]
        for problem in problems:
            console.say(f"problem: {problem}")
        if not problems:
            console.say(f"{self.folder}: no problem found")
        terminal.print_json({"repaired": [*done], "problems": problems})
        return console.EXIT_SOME_FAILED if problems else console.EXIT_OK

    def _agree(self, plan: RepairPlan) -> bool:
        """Print the plan, and ask if it loses episodes. Raises InputError."""
        _say_plan(plan)
        if not plan.lost or self.yes:
            return True
        if sys.stdin.isatty():
            console.say(f"{len(plan.lost)} would go to {self.folder}/.unreferenced. Repair? [y/N]")
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        raise InputError(
            f"{self.folder}: not repaired, episodes would be lost: {'; '.join(plan.lost)}. `yes` "
            "repairs it anyway; their files are kept in .unreferenced."
        )


def _say_plan(plan: RepairPlan) -> None:
    for line in plan.steps:
        console.say(f"to do: {line}")
    for line in plan.lost:
        console.say(f"lost: {line}")


@dataclass(frozen=True, slots=True)
class Filter:
    """Remove episodes of a LeRobot dataset by number, rules, or the decisions of a review.

    Later episodes are renumbered. Episodes trimmed in the review are cut.
    """

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    episodes: tuple[int, ...] = setting(
        (), "episode numbers", metavar="EPISODE", positional=True, default_text="none"
    )
    rules: Path | None = setting(
        None, "file of rules (docs/formats.md)", metavar="YAML", default_text="none"
    )
    decisions: Path | None = setting(
        None, "decisions of acehand review (docs/review.md)", metavar="JSON", default_text="none"
    )
    keep: Literal["undecided", "doubt", "accept"] = setting(
        "undecided",
        "with `decisions`, keep all but rejected, doubted and accepted, or accepted episodes",
    )
    dry_run: bool = setting(False, "print the episodes to remove, and change nothing")
    delete: bool = setting(False, "do not keep them as a dataset in DATASET/.unreferenced")

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.lerobot.edit import filter_episodes, remove_episodes
        from acehand_core.lerobot.rules import read_rules

        given = (bool(self.episodes), self.rules is not None, self.decisions is not None)
        if sum(given) != 1:
            raise InputError(
                "acehand dataset filter needs either episode numbers, `rules` or `decisions`."
            )
        verb = "would remove" if self.dry_run else "removed"
        if self.decisions is None:
            remove = partial(remove_episodes, self.folder, self.episodes)
            if self.rules is not None:
                remove = partial(filter_episodes, self.folder, read_rules(self.rules))
            removal = remove(delete=self.delete, dry_run=self.dry_run)
            _say_removal(self.folder, removal, verb)
            terminal.print_json({"dataset": str(self.folder), **asdict(removal)})
            return console.EXIT_OK

        from acehand_core.review.decisions import apply_decisions, read_decisions

        applied = apply_decisions(
            self.folder, read_decisions(self.decisions), keep=self.keep, progress=terminal.bars,
            delete=self.delete, dry_run=self.dry_run,
        )  # fmt: skip
        if applied.stale:
            console.say(
                f"{applied.stale} decisions match no episode of {self.folder}: they belong to "
                "another dataset, or the episodes were removed or changed since"
            )
        if applied.removal is not None:
            _say_removal(self.folder, applied.removal, verb)
        if applied.trimming is not None:
            _say_trimming(self.folder, applied.trimming, self.dry_run)
        if applied.removal is None and applied.trimming is None:
            console.say(f"{self.folder}: nothing to remove or to trim")
        terminal.print_json({
            "dataset": str(self.folder), "stale": applied.stale,
            "removal": None if applied.removal is None else asdict(applied.removal),
            "trimming": None if applied.trimming is None else asdict(applied.trimming),
        })  # fmt: skip
        return console.EXIT_OK


def _say_removal(folder: Path, removal: Removal, verb: str) -> None:
    for entry in removal.removed:
        tasks = ", ".join(entry["tasks"])
        console.say(f"{verb} episode {entry['episode']}: {entry['frames']} frames, {tasks}")
        for reason in entry["reasons"]:
            console.say(f"  - {reason}")
    if removal.set_aside is not None:
        console.say(f"kept as a dataset: {folder / removal.set_aside}")
    console.say(f"{folder}: {removal.episodes} episodes, {removal.frames} frames")


@dataclass(frozen=True, slots=True)
class Trim:
    """Cut idle ends, gaps, uncertain and blurred frames from episodes of a LeRobot dataset."""

    folder: Path = setting(..., "the dataset", metavar="DATASET", positional=True)
    rules: Path = setting(..., "file of rules (docs/formats.md)", metavar="YAML")
    dry_run: bool = setting(False, "print the cuts, and change nothing")
    delete: bool = setting(False, "do not keep the original episodes in DATASET/.unreferenced")

    def run(self, terminal: console.Terminal) -> int:
        from acehand_core.lerobot.trim import trim_episodes
        from acehand_core.lerobot.trim_rules import read_trim_rules
        from acehand_core.review.decisions import write_sidecars

        rules = read_trim_rules(self.rules)
        trimming = trim_episodes(
            self.folder, rules, write_sidecars, delete=self.delete, dry_run=self.dry_run,
            progress=terminal.bars,
        )  # fmt: skip
        _say_trimming(self.folder, trimming, self.dry_run)
        terminal.print_json({"dataset": str(self.folder), **asdict(trimming)})
        return console.EXIT_OK


def _say_trimming(folder: Path, trimming: Trimming, dry_run: bool) -> None:
    """Print the cuts of each episode with their reasons, and the rest."""
    verb = "would keep" if dry_run else "kept"
    for entry in trimming.trimmed:
        kept = " and ".join(f"{start} to {stop - 1}" for start, stop in entry["kept"]) or "none"
        console.say(f"episode {entry['episode']}: {verb} {kept} of {entry['frames']} frames")
        for cut in entry["cuts"]:
            start, stop = cut["frames"]
            which = f"frames {start} to {stop - 1}" if stop > start + 1 else f"frame {start}"
            console.say(f"  - {which}: {cut['reason']}")
    if trimming.set_aside is not None:
        console.say(f"original episodes, as a dataset: {folder / trimming.set_aside}")
    console.say(f"{folder}: {trimming.episodes} episodes, {trimming.frames} frames")
