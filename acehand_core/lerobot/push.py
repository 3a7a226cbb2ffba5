"""Publish a LeRobot v3 dataset on the Hugging Face Hub, with the card that says what it is.

One commit has all of it, and removes data files of an earlier version that it has no more: readers
see the one version or the other. A dataset whose card leaves open what others may do with it is
refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from acehand_core.errors import InputError, MissingDependencyError, OutputError, SchemaError
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.card import NO_CONSENT
from acehand_core.lerobot.check import check_dataset
from acehand_core.lerobot.edit import opened
from acehand_core.lerobot.summary import summarize
from acehand_core.lerobot.trim import TRIM
from acehand_core.types import Progress, no_progress

CARD = "README.md"
#: What can be left open all the same.
Allowance = Literal["no-licence", "no-consent", "licence-chain"]

#: Folders that are all the dataset's own; of ``layout.EXTRAS`` only what is ours.
_FOLDERS = ("data", "meta", "videos", "images")
_BESIDE = (layout.HANDS, layout.REPORT, layout.CALIBRATION, layout.SHEET, layout.OVERLAY, TRIM)
_AT_TOP = re.compile(r"README\.md|(LICEN[CS]E|NOTICE)(\.\w+)?", re.IGNORECASE)
#: Licences that bind users to non-commercial use, and those that nobody knows.
_NON_COMMERCIAL = re.compile(
    r"non-?commercial|no commercial|\bnc\b|research (use )?only", re.IGNORECASE
)
_UNKNOWN = re.compile(r"unknown|unlicen[cs]ed|no licen[cs]e|states none|not stated", re.IGNORECASE)
#: What ``card`` says of how much there is.
_COUNTS = re.compile(r"(\d+) episodes of \d+ recordings[^,]*, (\d+) frames")


@dataclass(frozen=True, slots=True)
class Push:
    """What ``push_dataset`` uploaded, or would.

    ``files`` has name and bytes of each, ``left_out`` what else lies in the dataset, and
    ``removed`` what the repository had of an earlier version. ``url`` None: nothing was uploaded.
    """

    files: tuple[tuple[str, int], ...]
    left_out: tuple[str, ...]
    removed: tuple[str, ...] = ()
    url: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``acehand dataset push --json`` prints."""
        return {**asdict(self), "files": [{"name": n, "bytes": b} for n, b in self.files]}


def push_dataset(
    root: Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    allowed: Sequence[Allowance] = (),
    dry_run: bool = False,
    progress: Progress = no_progress,
) -> Push:
    """Upload a dataset and its card to ``repo_id`` of the Hub, which is made where it is not there.

    Args:
        private: of a repository that is made.
        revision: a branch, made where it is not there; None: the main one, which then gets the
            version tag by which lerobot finds it.
        allowed: what the card may leave open.
        dry_run: check and list, without the network.

    Raises:
        InputError: there is no such dataset, no card, a card that is of another state of the
            dataset or leaves something open, a wrong name, or no token. SchemaError: it needs the
            repair first. MissingDependencyError: huggingface_hub is missing. OutputError: the Hub
            refuses, or it cannot be reached.
    """
    root = root.resolve()
    summary = summarize(root)
    if problems := check_dataset(root):
        raise SchemaError(
            f"{root}: {problems[0]}; run acehand dataset repair first"
            f"{f' ({len(problems)} problems)' if len(problems) > 1 else ''}."
        )
    open_points = _open_points(root / CARD, summary.licenses, summary.episodes, summary.frames)
    for point, message in open_points:
        if point not in allowed:
            raise InputError(f"{root / CARD}: {message}, or give --allow {point}.")

    with opened(root):  # nobody edits it meanwhile
        files, left_out = _files(root)
        sized = tuple((name, (root / name).stat().st_size) for name in files)
        if dry_run:
            return Push(sized, left_out)
        return _upload(root, repo_id, private, revision, Push(sized, left_out), progress)


def _files(root: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return what belongs to a dataset, and what else lies there (hidden folders by name)."""
    files: list[str] = []
    left_out: list[str] = []
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        name, parts = place.as_posix(), place.parts
        hidden = [n for n, part in enumerate(parts) if part.startswith(".")]
        if hidden:
            if hidden == [len(parts) - 1]:
                left_out.append(name)
        elif path.is_file():
            beside = parts[0] == layout.EXTRAS and len(parts) == 3 and parts[2] in _BESIDE
            at_top = len(parts) == 1 and _AT_TOP.fullmatch(name)
            whole = parts[0] in _FOLDERS and path.suffix != ".lock"
            taken = beside or at_top or whole
            (files if taken else left_out).append(name)
    return files, tuple(left_out)


def _open_points(
    card: Path, chain: Sequence[str], episodes: int, frames: int
) -> Iterator[tuple[Allowance, str]]:
    """Yield what a card leaves open. Raises InputError where it is missing or of another state."""
    if not card.is_file():
        raise InputError(
            f"{card} is missing; acehand dataset card {card.parent} --license ID --consent TEXT "
            "writes it."
        )
    text = card.read_text("utf-8")
    try:
        head = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else None
    except (yaml.YAMLError, IndexError) as error:
        raise InputError(f"{card}: its head is not YAML: {error}.") from error
    if not isinstance(head, dict):
        raise InputError(f"{card} has no head (YAML between two lines of ---); write it again.")
    counted = _COUNTS.search(text)
    if counted and (int(counted[1]), int(counted[2])) != (episodes, frames):
        raise InputError(
            f"{card} is of {counted[1]} episodes and {counted[2]} frames, the dataset has "
            f"{episodes} and {frames}; write it again with acehand dataset card --overwrite."
        )

    own = str(head.get("license") or "")
    if not own or _UNKNOWN.search(own) or (own == "other" and not head.get("license_name")):
        yield (
            "no-licence",
            (
                "says no licence of the recordings; write it again with --license ID (or name "
                "yours as license_name beside license: other)"
            ),
        )
    people = re.search(r"^## People\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if people is None or not people[1].strip() or people[1].strip() == NO_CONSENT:
        yield (
            "no-consent",
            (
                "does not say whether the people in the recordings agreed; write it again with "
                "--consent TEXT"
            ),
        )
    for line in chain:
        bound = _NON_COMMERCIAL.search(line) and not _NON_COMMERCIAL.search(own)
        if bound or _UNKNOWN.search(line):
            yield (
                "licence-chain",
                (
                    f"is published as {own or 'nothing'}, but the dataset was made with {line!r}; "
                    "choose a licence that fits"
                ),
            )


def _upload(
    root: Path, repo_id: str, private: bool, revision: str | None, push: Push, progress: Progress
) -> Push:
    try:
        import huggingface_hub as hub
        import huggingface_hub.errors as hub_errors
        import huggingface_hub.utils as hub_utils
    except ImportError as error:
        raise MissingDependencyError(
            "Publishing needs huggingface_hub: pip install 'acehand[hub]'."
        ) from error
    validate: Any = hub_utils.validate_repo_id  # type: ignore[attr-defined]
    try:
        validate(repo_id)
    except hub_errors.HFValidationError as error:
        raise InputError(f"{repo_id!r} is no name of a repository: {error}.") from error
    if hub.get_token() is None:
        raise InputError(
            "There is no token of the Hugging Face Hub; run hf auth login, or set HF_TOKEN."
        )

    http_error: type[Exception] = getattr(hub_errors, "HTTPError", OSError)  # of its HTTP library
    api = hub.HfApi()
    try:
        api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repo_id, branch=revision, repo_type="dataset", exist_ok=True)
        theirs = api.list_repo_files(repo_id, revision=revision, repo_type="dataset")
        own = {name for name, _ in push.files}
        stale = tuple(
            name for name in sorted({*theirs} - own)
            if name.split("/")[0] in (*_FOLDERS, layout.EXTRAS)
        )  # fmt: skip
        adding = [hub.CommitOperationAdd(name, root / name) for name, _ in push.files]
        removing = [hub.CommitOperationDelete(name) for name in stale]
        progress("upload", 0, 1)
        info = api.create_commit(
            repo_id, [*adding, *removing], repo_type="dataset", revision=revision,
            commit_message=f"acehand dataset push: {len(adding)} files",
        )  # fmt: skip
        if revision is None:
            with contextlib.suppress(hub_errors.RevisionNotFoundError):
                api.delete_tag(repo_id, tag=layout.CODEBASE_VERSION, repo_type="dataset")
            api.create_tag(
                repo_id, tag=layout.CODEBASE_VERSION, revision=info.oid, repo_type="dataset"
            )
        progress("upload", 1, 1)
    except (hub_errors.HfHubHTTPError, http_error, OSError) as error:
        raise OutputError(f"{repo_id}: the Hub refused or was not reached: {error}") from error
    return Push(push.files, push.left_out, stale, str(info.commit_url))
