"""Files of the Hugging Face hub in its own cache, with downloads that survive being interrupted.

The hub's client starts a file anew in every process. Large files are therefore fetched here, into a
partial file that the next run goes on with, and handed to the client's cache when their SHA-256 is
right; the client then finds them there as if it had fetched them itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acehand_core.errors import MissingDependencyError, SchemaError
from acehand_core.weights.hashes import sha256

_PARTIAL = ".acehand-partial"


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as the hub describes it. Large ones have a SHA-256, small ones git's hash, or none."""

    name: str
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of one commit; ``folder`` when they are in the cache already.

    ``asked`` is the revision as the caller named it: under that name the cache finds it again.
    """

    repo: str
    asked: str | None
    commit: str
    folder: Path | None
    remotes: list[Remote]


def client() -> Any:
    """Return ``huggingface_hub``. Raises MissingDependencyError."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.file_download
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingDependencyError(
            "fetching weights needs huggingface_hub: pip install '.[ace]' in the checkout."
        ) from error
    return huggingface_hub


def describe(
    repo: str, revision: str | None, patterns: tuple[str, ...], matches: Callable[[str], bool]
) -> Snapshot:
    """Ask the hub which files there are, or, where it is switched off, look into the cache."""
    hub = client()
    if not hub.is_offline_mode():
        info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
        remotes = []
        for file in info.siblings or ():
            if matches(file.rfilename):
                large = file.lfs.sha256 if file.lfs is not None else None
                remotes.append(Remote(file.rfilename, large, None if large else file.blob_id))
        return Snapshot(repo, revision, info.sha, None, remotes)
    folder = Path(
        hub.snapshot_download(
            repo, revision=revision, allow_patterns=list(patterns), local_files_only=True
        )
    )
    remotes = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and matches(name):
            # The cache names a file's contents by its hash: SHA-256 of large ones, git's of others.
            blob = path.resolve().name
            large = blob if re.fullmatch(r"[0-9a-f]{64}", blob) else None
            small = blob if re.fullmatch(r"[0-9a-f]{40}", blob) else None
            remotes.append(Remote(name, large, small))
    return Snapshot(repo, revision, folder.name, folder, remotes)


def obtain(snapshot: Snapshot, remote: Remote) -> tuple[Path, str]:
    """Return a file of the cache and its SHA-256, fetching it first where that is allowed.

    A damaged copy is fetched once more. Raises SchemaError when it is still damaged.
    """
    for again in (False, True):
        if snapshot.folder is not None:
            path = snapshot.folder / remote.name
        else:
            path = _download(snapshot, remote, again)
        digest = sha256(path)
        if _is_right(path, digest, remote):
            return path, digest
        if snapshot.folder is not None:
            break
    raise SchemaError(f"{path}: its hash is not the one that the hub states: damaged.")


def _download(snapshot: Snapshot, remote: Remote, again: bool) -> Path:
    hub = client()
    if remote.sha256 is not None:
        folder = hub.file_download.repo_folder_name(repo_id=snapshot.repo, repo_type="model")
        blobs = Path(hub.constants.HF_HUB_CACHE) / folder / "blobs"
        blob = blobs / remote.sha256
        if again:
            blob.unlink(missing_ok=True)
        if not blob.exists():
            _resume(snapshot, remote, blob)
    path = hub.hf_hub_download(
        snapshot.repo, remote.name, revision=snapshot.asked,
        force_download=again and remote.sha256 is None,
    )  # fmt: skip
    return Path(path)


def _resume(snapshot: Snapshot, remote: Remote, blob: Path) -> None:
    """Go on with a partial file until it is whole and right, then make it a blob of the cache."""
    hub = client()
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(blob.name + _PARTIAL)
    url = hub.hf_hub_url(snapshot.repo, remote.name, revision=snapshot.commit)
    found = hub.get_hf_file_metadata(url)
    headers = hub.utils.build_hf_headers()
    if urlsplit(found.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # not for the storage behind the hub
    with hub.utils.WeakFileLock(partial.with_suffix(".lock")), partial.open("ab") as stream:
        hub.file_download.http_get(
            found.location, stream, resume_size=stream.tell(), headers=headers,
            expected_size=found.size, displayed_filename=remote.name,
        )  # fmt: skip
    if sha256(partial) != remote.sha256:
        partial.unlink()
        raise SchemaError(
            f"{remote.name} of {snapshot.repo}: what arrived is not what the hub states (SHA-256 "
            f"{remote.sha256}); it was removed. Run again."
        )
    partial.replace(blob)


def _is_right(path: Path, digest: str, remote: Remote) -> bool:
    if remote.sha256 is not None:
        return digest == remote.sha256
    if remote.git_sha1 is not None:
        content = path.read_bytes()
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == remote.git_sha1
    return True
