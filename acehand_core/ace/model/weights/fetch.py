"""Downloads of released weights from the Hugging Face hub into its own cache.

Every file is verified against the hash that the hub states and its cache is keyed by: SHA-256 for
large files, git's for small ones. ``HF_HOME`` and ``HF_HUB_OFFLINE`` apply.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acehand_core.ace.model.weights import sums
from acehand_core.ace.model.weights.sums import sha256
from acehand_core.errors import InputError, MissingDependencyError, SchemaError, nearest

_RELEASE = "acerobotics2025/ACE-Ego-Hand"
_REPACKAGED = "blanchon/ACE-Ego-Hand-Safetensors"
_WAN_FILES = ("config.json", "diffusion_pytorch_model*.safetensors*", "Wan2.2_VAE.pth")
_CAPTION = "caption_embedding.safetensors"


@dataclass(frozen=True, slots=True)
class Download:
    """A download. ``files`` are patterns, ``needed`` are required names."""

    repo: str
    files: tuple[str, ...]
    needed: tuple[str, ...]
    gigabytes: float
    licence: str
    about: str


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
class FetchedWeights:
    """The downloaded files. ``unchecked`` are those without a stated hash."""

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


def fetch(name: str, revision: str | None = None, quiet: bool = False) -> FetchedWeights:
    """Fetch a source, or find it in the cache when offline, and check every hash.

    ``revision`` is a branch, tag or commit. Raises InputError for an unknown name or no connection,
    SchemaError for a wrong hash after a second download, and MissingDependencyError.
    """
    if name not in SOURCES:
        raise InputError(f"no weights are called {name!r}; {nearest(name, SOURCES)}")
    source = SOURCES[name]
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingDependencyError(
            "weights fetch needs huggingface_hub: pip install '.[ace]' in the checkout."
        ) from error

    hub: Any = huggingface_hub  # untyped exports
    if quiet:
        hub.utils.disable_progress_bars()

    try:
        patterns = list(source.files)
        folder = Path(
            hub.snapshot_download(source.repo, revision=revision, allow_patterns=patterns)
        )
        # The folder also has other downloads from the same repository.
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        wanted = hub.utils.filter_repo_objects(names, allow_patterns=patterns)
        files = {file: folder / file for file in wanted}
        for needed in source.needed:
            if needed not in files:
                listed = ", ".join(files) or "nothing"
                raise InputError(f"{name}: {source.repo} has no {needed} (found: {listed}).")
        for file, path in files.items():
            if _is_right(path) is False and not hub.is_offline_mode():
                hub.hf_hub_download(source.repo, file, revision=revision, force_download=True)
            if _is_right(path) is False:
                if not hub.is_offline_mode():
                    path.resolve().unlink()
                raise SchemaError(f"{path}: damaged: its hash differs from the hub's.")
    except (hub.errors.HTTPError, OSError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise InputError(
            f"{name}: cannot get {source.repo} ({reason}). With HF_HUB_OFFLINE only the cache "
            "(HF_HOME) is used; else check the connection and run again to resume."
        ) from error

    digests = {file: sha256(path) for file, path in files.items()}
    unchecked = tuple(file for file, path in files.items() if _is_right(path) is None)
    return FetchedWeights(
        name, source.repo, folder.name, folder, files, digests, unchecked, source.licence
    )


def _is_right(path: Path) -> bool | None:
    """Return whether a cached file has the hash it is keyed by; None without one."""
    stated = path.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", stated):
        return sha256(path) == stated
    if re.fullmatch(r"[0-9a-f]{40}", stated):
        content = path.read_bytes()
        header = f"blob {len(content)}\0".encode()
        return hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == stated
    return None
