"""Downloading the weights of others from the Hugging Face hub into its own cache.

Interrupted downloads go on where they stopped; ``HF_HOME`` and ``HF_HUB_OFFLINE`` are honoured.
Every file is compared with the SHA-256 that the hub, the cache or the caller states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.weights import hub, licences


@dataclass(frozen=True, slots=True)
class Source:
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

SOURCES: dict[str, Source] = {
    "official-k": Source(
        _RELEASE, ("ace_ego_hand_k.pt",), ("ace_ego_hand_k.pt",), 0.7, licences.CHECKPOINT,
        "released checkpoint for footage with a calibration",
    ),
    "official-kfree": Source(
        _RELEASE, ("ace_ego_hand_kfree.pt",), ("ace_ego_hand_kfree.pt",), 0.7,
        licences.CHECKPOINT, "released checkpoint for footage without a calibration",
    ),
    "wan-base": Source(
        "alibaba-pai/Wan2.2-Fun-5B-Control", _WAN_FILES, ("config.json", "Wan2.2_VAE.pth"), 12.8,
        licences.BASE, "base transformer and video VAE that the released checkpoints need",
    ),
    "caption": Source(
        _REPACKAGED, (_CAPTION,), (_CAPTION,), 0.001, licences.RELEASED,
        "caption embedding that the released checkpoints need",
    ),
    "repackaged": Source(
        _REPACKAGED, ("dit/*", "vae/*", "k/*", "kfree/*", _CAPTION),
        ("dit/model.safetensors", "vae/model.safetensors", _CAPTION), 6.5, licences.RELEASED,
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


def fetch(
    name: str,
    revision: str | None = None,
    expected: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> Fetched:
    """Fetch a source, or find it in the cache when the hub is switched off; check every hash.

    Args:
        revision: branch, tag or commit; default the repository's main branch.
        expected: file name -> SHA-256 that the caller demands.

    Raises:
        InputError: unknown name, no connection, or not in the cache.
        SchemaError: a file's hash is wrong, after one more download.
        MissingDependencyError: huggingface_hub is not installed.
    """
    if name not in SOURCES:
        raise InputError(f"no weights are called {name!r}; {nearest(name, SOURCES)}")
    source, library = SOURCES[name], hub.client()
    if quiet:
        library.utils.disable_progress_bars()
    files, digests = {}, {}
    try:
        snapshot = hub.describe(
            source.repo, revision, source.files, lambda file: _matches(source, file)
        )
        _check_names(name, source, [remote.name for remote in snapshot.remotes], expected or {})
        for remote in snapshot.remotes:
            path, digest = hub.obtain(snapshot, remote)
            files[remote.name], digests[remote.name] = path, digest
            wanted = (expected or {}).get(remote.name, digest).lower()
            if digest != wanted:
                raise SchemaError(f"{path}: SHA-256 is {digest}, not {wanted} as demanded.")
    except (library.errors.HTTPError, OSError) as error:
        raise InputError(_not_here(name, source, error)) from error
    stated = {r.name for r in snapshot.remotes if r.sha256 or r.git_sha1}
    return Fetched(
        name, source.repo, snapshot.commit, _root(files), files, digests,
        tuple(sorted(files.keys() - stated)), source.licence,
    )  # fmt: skip


def hashes_for(names: list[str], stated: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return per source the demanded hashes of its files. Raises InputError for one of none."""
    out: dict[str, dict[str, str]] = {name: {} for name in names}
    for file, digest in stated.items():
        owners = [name for name in names if name in SOURCES and _matches(SOURCES[name], file)]
        if not owners:
            raise InputError(f"--sha256 {file}: {', '.join(names)} has no such file.")
        for name in owners:
            out[name][file] = digest
    return out


def _matches(source: Source, name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in source.files)


def _check_names(name: str, source: Source, found: list[str], expected: Mapping[str, str]) -> None:
    for needed in source.needed:
        if needed not in found:
            listed = ", ".join(sorted(found)) or "nothing"
            raise InputError(f"{name}: {source.repo} has no {needed} (found: {listed}).")
    for wanted in expected:
        if wanted not in found:
            raise InputError(f"{name}: no file {wanted!r} to compare; {nearest(wanted, found)}")


def _root(files: Mapping[str, Path]) -> Path:
    """Return the snapshot's folder, which is named after its commit."""
    name, path = next(iter(files.items()))
    return path.parents[len(Path(name).parts) - 1]


def _not_here(name: str, source: Source, error: Exception) -> str:
    reason = str(error).strip().split("\n", 1)[0]
    return (
        f"{name}: cannot get {source.repo} ({reason}). With HF_HUB_OFFLINE set, only what is in "
        "the cache (HF_HOME) can be had; else check the connection and run again: downloads "
        "resume."
    )
