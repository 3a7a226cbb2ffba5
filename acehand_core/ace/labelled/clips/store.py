"""Stores of clips: written one folder at a time, by many processes, and read in parallel.

```
STORE/store.json              dataset, split, made by, licence, settings
STORE/index.json              copy of all clip.json for fast listing; rebuilt when out of date
STORE/clips/ID/clip.json      description, flags, SHA-256 of the other files
STORE/clips/ID/hands.parquet  HandMotion table
STORE/clips/ID/video.mp4      or image.png, or nothing (a reference to the user's own file)
STORE/clips/ID/NAME.npz       further arrays with one row per frame: masks, depth, latents
```
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from acehand_core.ace.labelled.clips import media, schema
from acehand_core.ace.labelled.clips.media import ImageFrames, Quality
from acehand_core.ace.labelled.clips.schema import (
    Clip,
    ClipInfo,
    Kind,
    StoreInfo,
    check_extra,
    check_name,
)
from acehand_core.atomic import atomic_folder, remove_folder
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.motion import FrameSource, HandMotion
from acehand_core.recordings.hands_file import read_hand_motion, to_table
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb

_HANDS = "hands.parquet"
_CLIP = "clip.json"
_INDEX = "index.json"


def made_from(source_sha256: str | Iterable[str], settings: Mapping[str, Any]) -> str:
    """Return the key of a conversion: hash of the inputs' contents and the settings."""
    inputs = [source_sha256] if isinstance(source_sha256, str) else list(source_sha256)
    text = json.dumps([inputs, dict(settings)], sort_keys=True, default=schema.plain)
    return hashlib.sha256(text.encode()).hexdigest()


class ClipWriter:
    """Adds clips to a store; several processes may do so at once, each with other clips.

    A store that holds clips keeps the settings they were made with. ``other_settings`` takes new
    ones: for callers that make every clip again.

    Raises:
        SchemaError: the folder holds another dataset or split, clips of other settings, or
            something else. OutputError: not writable.
    """

    def __init__(self, root: Path, info: StoreInfo, other_settings: bool = False) -> None:
        self.root = root
        path = root / "store.json"
        # Asked first: another process may write store.json just now.
        filled = root.is_dir() and any(p for p in root.iterdir() if p.name[:1] != ".")
        if path.exists():
            there = StoreInfo.from_json(schema.read_json(path), str(path))
            if (there.dataset, there.split) != (info.dataset, info.split):
                raise SchemaError(
                    f"{root}: holds {there.dataset} {there.split}, not {info.dataset} "
                    f"{info.split}; choose another folder."
                )
            changed = changed_settings(root, info)
            if changed and not other_settings:
                raise SchemaError(
                    f"{root}: holds clips made with other settings ({'; '.join(changed)}); use the "
                    "same, or another folder."
                )
        elif filled:
            raise SchemaError(f"{root}: not empty and not a store of clips; choose another.")

        if not path.exists() or schema.read_json(path) != _as_read(info.to_json()):
            schema.write_json(path, info.to_json())
        (root / "clips").mkdir(exist_ok=True)

    def has(self, clip: str, key: str) -> bool:
        """Tell whether this clip is there whole, made from the same input and settings.

        Its files are looked up, not read; ``ClipStore.verify`` compares what they hold.
        """
        folder = self.root / "clips" / clip
        path = folder / _CLIP
        if not path.exists():
            return False

        try:
            info = ClipInfo.from_json(schema.read_json(path), str(path))
        except SchemaError:
            return False

        if info.made_from != key:
            return False
        for name in info.files:
            file, size = folder / Path(name).name, info.sizes.get(name)
            if not file.is_file():
                return False
            length = file.stat().st_size
            if length != size and (size is not None or length == 0):
                return False

        return True

    def write(
        self,
        info: ClipInfo,
        motion: HandMotion,
        frames: Iterable[ImageRgb] | None = None,
        extra: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        quality: Quality = "visual",
    ) -> ClipInfo:
        """Write one clip, replacing one of the same name; return its complete description.

        Args:
            info: ``media`` (unless "reference"), ``files`` and ``sizes`` are filled in here.
            motion: T frames; its camera, hand model and flags must be those of ``info``.
            frames: T pictures of ``info.width`` x ``info.height``, or None.
            extra: name -> arrays with T rows, each name a file ``NAME.npz``.
            quality: of the video; images are always lossless.

        Raises:
            SchemaError: the parts do not fit together. OutputError: not writable.
        """
        _check(info, motion)
        if frames is not None and info.media == "reference":
            raise SchemaError(f"clip {info.id}: frames and a reference; give one of them.")

        with atomic_folder(self.root / "clips" / info.id, overwrite=True) as folder:
            pq.write_table(
                to_table(motion), folder / _HANDS, compression="zstd", write_page_checksum=True
            )
            if frames is not None:
                info = replace(info, media=_write_frames(folder, info, frames, quality))
            for name, arrays in (extra or {}).items():
                check_extra(name, arrays, info.frames)
                # numpy's stub takes any keyword for its own flag.
                columns: dict[str, Any] = dict(arrays)
                np.savez_compressed(folder / f"{name}.npz", **columns)
            files = sorted(folder.iterdir())
            hashes = {file.name: content_sha256(file) for file in files}
            sizes = {file.name: file.stat().st_size for file in files}
            info = replace(info, files=hashes, sizes=sizes)
            schema.write_json(folder / _CLIP, info.to_json())

        return info

    def remove(self, clips: Collection[str]) -> None:
        """Take clips out of the store: first out of the index, then each folder at once.

        Whenever it is stopped the index names no clip that is not there.

        Raises:
            OutputError: not writable; what is not removed yet is still whole.
        """
        gone = set(clips)
        ClipStore(self.root).refresh_index(without=gone)
        for name in sorted(gone):
            check_name(name, "clip")
            remove_folder(self.root / "clips" / name)

    def write_index(self) -> int:
        """Write the index; called once at the end, by one process. Return the number of clips."""
        return len(ClipStore(self.root).refresh_index())


def changed_settings(root: Path, info: StoreInfo) -> list[str]:
    """Return what differs between the settings of a store's clips and new ones, in words.

    Nothing where there is no such store or no clip in it yet. Raises SchemaError.
    """
    path, clips = root / "store.json", root / "clips"
    if not path.exists():
        return []
    there = StoreInfo.from_json(schema.read_json(path), str(path))
    if (there.dataset, there.split) != (info.dataset, info.split):
        return []
    old = dict(there.settings)
    new = _as_read(info.settings)
    changed = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return changed if changed and clips.is_dir() and _visible(clips) else []


class ClipStore:
    """A store for reading; may be shared between threads and sent to other processes.

    Raises:
        InputError: no such folder. SchemaError: not a store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not root.is_dir():
            raise InputError(f"{root}: no such folder; give a store of clips.")
        path = root / "store.json"
        self.info = StoreInfo.from_json(schema.read_json(path), str(path))
        self._infos: dict[str, ClipInfo] | None = None

    def __len__(self) -> int:
        return len(self.infos())

    def ids(self) -> list[str]:
        """Return the names of all clips, sorted."""
        return list(self.infos())

    def infos(self) -> dict[str, ClipInfo]:
        """Return the descriptions of all clips by name, sorted; as the folder was when first asked.

        The index saves reading a file per clip; entries whose ``clip.json`` changed are read again.
        """
        if self._infos is None:
            self._infos = self._list()
        return self._infos

    def info_of(self, clip: str) -> ClipInfo:
        """Return the description of one clip. Raises SchemaError for an unknown name."""
        path = self.folder(clip) / _CLIP
        return ClipInfo.from_json(schema.read_json(path), str(path))

    def folder(self, clip: str) -> Path:
        """Return a clip's folder. Raises SchemaError for an unknown name."""
        check_name(clip, "clip")
        folder = self.root / "clips" / clip
        if not folder.is_dir():
            names = [entry.name for entry in (self.root / "clips").iterdir()]
            close = nearest(clip, names) if len(names) <= 20 else f"it has {len(names)} clips."
            raise SchemaError(f"{self.root}: no clip {clip!r}; {close}")
        return folder

    def open(self, clip: str, pictures: bool = True) -> Clip:
        """Return a clip: hands in memory, pictures read when asked for.

        Opening a video lists its packets, so without ``pictures`` no media file is opened and
        ``frames`` is None.

        Raises:
            SchemaError: unknown name, or files that do not follow the format.
        """
        folder = self.folder(clip)
        info = self.info_of(clip)
        motion = read_hand_motion(folder / _HANDS)
        _check(info, motion)
        return Clip(info, motion, self._frames(folder, info) if pictures else None)

    def hands(self, clip: str) -> HandMotion:
        """Return the hands of a clip alone."""
        return read_hand_motion(self.folder(clip) / _HANDS)

    def extra(self, clip: str, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of ``NAME.npz``. Raises SchemaError where there is none."""
        check_name(name, "extra file")
        path = self.folder(clip) / f"{name}.npz"
        if not path.exists():
            there = [file.stem for file in path.parent.glob("*.npz")]
            raise SchemaError(f"clip {clip}: no {name!r}; {nearest(name, there)}")
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)

    def verify(self, clip: str) -> None:
        """Raise SchemaError unless every file of a clip is there with its recorded content."""
        folder, info = self.folder(clip), self.info_of(clip)
        for name, expected in info.files.items():
            path = folder / Path(name).name
            if not path.is_file() or content_sha256(path) != expected:
                raise SchemaError(f"{path}: missing or changed since it was written.")
        if info.reference is not None:
            path = self.root / info.reference.path
            if not path.is_file() or content_sha256(path) != info.reference.sha256:
                raise SchemaError(f"{path}: missing or not the file that clip {clip} refers to.")

    def refresh_index(self, without: Collection[str] = ()) -> dict[str, ClipInfo]:
        """Rewrite ``index.json`` without some clips and return the descriptions."""
        infos = {name: info for name, info in self._list().items() if name not in without}
        entries = {name: [*_stamp(self._clip_file(name)), i.to_json()] for name, i in infos.items()}
        schema.write_json(self.root / _INDEX, {"clips": entries})
        self._infos = infos
        return infos

    def _clip_file(self, name: str) -> Path:
        return self.root / "clips" / name / _CLIP

    def _list(self) -> dict[str, ClipInfo]:
        index: Mapping[str, Any] = {}
        if (self.root / _INDEX).exists():
            try:
                index = schema.read_json(self.root / _INDEX)["clips"]
            except (SchemaError, KeyError, TypeError):  # it is only a copy
                index = {}

        infos = {}
        for name in _visible(self.root / "clips"):
            path = self._clip_file(name)
            entry = index.get(name)
            if isinstance(entry, list) and entry[:2] == list(_stamp(path)):
                value = entry[2]
            else:
                value = schema.read_json(path)
            infos[name] = ClipInfo.from_json(value, str(path))
            if infos[name].id != name:
                raise SchemaError(f"{path}: describes clip {infos[name].id!r}; folder renamed?")

        return infos

    def _frames(self, folder: Path, info: ClipInfo) -> FrameSource | None:
        size = (info.width, info.height)
        if info.media == "image":
            return ImageFrames(folder / media.IMAGE, size)
        if info.media == "video":
            frames = media.open_frames(folder / media.VIDEO, size)
        elif info.reference is not None:
            path = self.root / info.reference.path
            frames = media.open_frames(path, size, info.reference.first, info.reference.stop)
        else:
            return None
        if len(frames) != info.frames:
            raise SchemaError(f"{folder}: {len(frames)} pictures for {info.frames} frames.")
        return frames


def _as_read(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a JSON file gives back."""
    return json.loads(json.dumps(dict(value), default=schema.plain))


def _check(info: ClipInfo, motion: HandMotion) -> None:
    """Raise SchemaError unless the hands belong to the description."""
    pairs = {
        "frames": (info.frames, len(motion)),
        "hand_model": (info.hand_model, motion.hand_model),
        "left_shapedirs_fixed": (info.left_shapedirs_fixed, motion.left_shapedirs_fixed),
        "camera": (info.camera, motion.camera),
    }
    for name, (described, actual) in pairs.items():
        if described != actual:
            raise SchemaError(f"clip {info.id}: {name} is {described}, that of its hands {actual}.")


def _write_frames(
    folder: Path, info: ClipInfo, frames: Iterable[ImageRgb], quality: Quality
) -> Kind:
    size = (info.height, info.width)

    def checked() -> Iterator[ImageRgb]:
        for number, image in enumerate(frames):
            if image.shape[:2] != size:
                raise SchemaError(
                    f"clip {info.id}: frame {number} is {image.shape[1]} x {image.shape[0]}, not "
                    f"{info.width} x {info.height}."
                )
            yield image

    if info.kind == "image":
        images = list(checked())
        if len(images) == 1:
            media.write_image(folder / media.IMAGE, images[0])
        count = len(images)
    else:
        count = media.write_video(folder / media.VIDEO, checked(), info.fps, quality)
    if count != info.frames:
        raise SchemaError(f"clip {info.id}: {count} pictures for {info.frames} frames.")
    return info.kind


def _visible(folder: Path) -> list[str]:
    """Return the folders in place; hidden ones are being written or were left by a crash."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise SchemaError(f"{path}: missing; remove the folder or write the clip again.") from error
    return status.st_size, status.st_mtime_ns
