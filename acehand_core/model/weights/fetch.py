"""Downloading the weights of others from the Hugging Face hub into its own cache.

The hub's client starts an interrupted file anew in every process. Large files are therefore
fetched here, into a partial file that the next run resumes, and handed to the client's cache when
their SHA-256 is right. ``HF_HOME`` and ``HF_HUB_OFFLINE`` are honoured; every file is compared with
the SHA-256 that the hub or the cache states.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acehand_core.errors import InputError, MissingDependencyError, SchemaError, nearest
from acehand_core.model.weights import sums
from acehand_core.model.weights.sums import sha256

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
    """Resume a partial file until it is whole and right, then make it a blob of the cache."""
    hub = client()
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = blob.with_name(blob.name + _PARTIAL)
    url = hub.hf_hub_url(snapshot.repo, remote.name, revision=snapshot.commit)
    metadata = hub.get_hf_file_metadata(url)
    headers = hub.utils.build_hf_headers()
    if urlsplit(metadata.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # not for the storage behind the hub

    with hub.utils.WeakFileLock(partial.with_suffix(".lock")), partial.open("ab") as stream:
        hub.file_download.http_get(
            metadata.location, stream, resume_size=stream.tell(), headers=headers,
            expected_size=metadata.size, displayed_filename=remote.name,
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


@dataclass(frozen=True, slots=True)
class Download:
    """Something to fetch. ``files`` are patterns, ``needed`` are names that must be there."""

    repo: str
    files: tuple[str, ...]
    needed: tuple[str, ...]
    gigabytes: float
    licence: str
    about: str


_RELEASE = "acerobotics2025/ACE-Ego-Hand"
_REPACKAGED = "blanchon/ACE-Ego-Hand-Safetensors"
_WAN_FILES = ("config.json", "diffusion_pytorch_model*.safetensors*", "Wan2.2_VAE.pth")
_CAPTION = "caption_embedding.safetensors"

SOURCES: dict[str, Download] = {
    "official-k": Download(
        _RELEASE, ("ace_ego_hand_k.pt",), ("ace_ego_hand_k.pt",), 0.7, sums.CHECKPOINT,
        "released checkpoint for footage with a calibration",
    ),
    "official-kfree": Download(
        _RELEASE, ("ace_ego_hand_kfree.pt",), ("ace_ego_hand_kfree.pt",), 0.7,
        sums.CHECKPOINT, "released checkpoint for footage without a calibration",
    ),
    "wan-base": Download(
        "alibaba-pai/Wan2.2-Fun-5B-Control", _WAN_FILES, ("config.json", "Wan2.2_VAE.pth"), 12.8,
        sums.BASE, "base transformer and video VAE that the released checkpoints need",
    ),
    "caption": Download(
        _REPACKAGED, (_CAPTION,), (_CAPTION,), 0.001, sums.RELEASED,
        "caption embedding that the released checkpoints need",
    ),
    "repackaged": Download(
        _REPACKAGED, ("dit/*", "vae/*", "k/*", "kfree/*", _CAPTION),
        ("dit/model.safetensors", "vae/model.safetensors", _CAPTION), 6.5, sums.RELEASED,
        "both released models as safetensors, only what runs; needs nothing else",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the files are. ``unchecked`` are those that nobody states a hash for."""

    name: str
    repo: str
    revision: str
    folder: Path
    files: dict[str, Path]
    sha256s: dict[str, str]
    unchecked: tuple[str, ...]
    licence: str

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "name": self.name, "repo": self.repo, "revision": self.revision,
            "folder": str(self.folder), "sha256": self.sha256s,
            "unchecked": list(self.unchecked), "licence": self.licence,
        }  # fmt: skip


def fetch(name: str, revision: str | None = None, quiet: bool = False) -> Fetched:
    """Fetch a source, or find it in the cache when the hub is switched off; check every hash.

    Args:
        revision: branch, tag or commit; default the repository's main branch.

    Raises:
        InputError: unknown name, no connection, or not in the cache.
        SchemaError: a file's hash is wrong, after one more download.
        MissingDependencyError: huggingface_hub is not installed.
    """
    if name not in SOURCES:
        raise InputError(f"no weights are called {name!r}; {nearest(name, SOURCES)}")
    source, library = SOURCES[name], client()
    if quiet:
        library.utils.disable_progress_bars()
    files, digests = {}, {}
    try:
        snapshot = describe(
            source.repo, revision, source.files, lambda file: _matches(source, file)
        )
        names = [remote.name for remote in snapshot.remotes]
        for needed in source.needed:
            if needed not in names:
                listed = ", ".join(sorted(names)) or "nothing"
                raise InputError(f"{name}: {source.repo} has no {needed} (found: {listed}).")

        for remote in snapshot.remotes:
            files[remote.name], digests[remote.name] = obtain(snapshot, remote)
    except (library.errors.HTTPError, OSError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise InputError(
            f"{name}: cannot get {source.repo} ({reason}). With HF_HUB_OFFLINE set, only what is "
            "in the cache (HF_HOME) can be had; else check the connection and run again: downloads "
            "resume."
        ) from error

    stated = {r.name for r in snapshot.remotes if r.sha256 or r.git_sha1}
    # The snapshot's folder, which is named after its commit.
    first, path = next(iter(files.items()))
    folder = path.parents[len(Path(first).parts) - 1]
    return Fetched(
        name, source.repo, snapshot.commit, folder, files, digests,
        tuple(sorted(files.keys() - stated)), source.licence,
    )  # fmt: skip


def _matches(download: Download, name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in download.files)
