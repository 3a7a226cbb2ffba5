"""Stores of clips: written one folder at a time, by many processes, and read in parallel.

```
STORE/store.json              dataset, split, made by, licence, settings
STORE/index.json              copy of all clip.json for fast listing; rebuilt when out of date
STORE/clips/ID/clip.json      metadata, flags, SHA-256 of the other files
STORE/clips/ID/hands.parquet  HandMotion table
STORE/clips/ID/video.mp4      or image.png, or nothing (a reference to an external file)
STORE/clips/ID/objects.json   tracked objects, if known
STORE/clips/ID/view_NAME.mp4  or .png: another camera of a rig
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
from acehand_core.ace.labelled.clips.media import SENSOR_DEPTH, DepthFile, ImageFiles, Quality
from acehand_core.ace.labelled.clips.schema import Clip, ClipInfo, StoreInfo, check_name
from acehand_core.atomic import atomic_folder, remove_folder
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.motion import Depth, FrameSource, HandMotion, ObjectTrack, Recording, View
from acehand_core.recordings.hands_file import read_hand_motion, to_table
from acehand_core.recordings.objects import read_objects, write_objects
from acehand_core.safe_files import content_sha256
from acehand_core.types import ImageRgb
from acehand_core.user_files import read_json

_HANDS = "hands.parquet"
_CLIP = "clip.json"
_OBJECTS = "objects.json"
_INDEX = "index.json"


def made_from(source_sha256: str | Iterable[str], settings: Mapping[str, Any]) -> str:
    """Return the key of a conversion: hash of the inputs' hashes and the settings."""
    inputs = [source_sha256] if isinstance(source_sha256, str) else list(source_sha256)
    text = json.dumps([inputs, dict(settings)], sort_keys=True, default=schema.plain)
    return hashlib.sha256(text.encode()).hexdigest()


class ClipWriter:
    """Writer of a store; several processes may write different clips of one store.

    ``other_settings`` allows other settings than those of the store's clips: for callers that make
    every clip again.

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
            stored = _store_info(root)
            if (stored.dataset, stored.split) != (info.dataset, info.split):
                raise SchemaError(
                    f"{root}: holds {stored.dataset} {stored.split}, not {info.dataset} "
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

        if not path.exists() or read_json(path) != _as_read(info.to_json()):
            schema.write_json(path, info.to_json())
        (root / "clips").mkdir(exist_ok=True)

    def has(self, clip: str, key: str) -> bool:
        """Return whether a clip with this ``made_from`` is complete.

        Compares file sizes, not contents; see ``ClipStore.verify``.
        """
        folder = self.root / "clips" / clip
        try:
            info = _clip_info(folder)
        except InputError:
            return False

        for name in info.files:
            file, size = folder / Path(name).name, info.sizes.get(name)
            if not file.is_file():
                return False
            length = file.stat().st_size
            if length != size and (size is not None or length == 0):
                return False
        return info.made_from == key

    def write(
        self,
        info: ClipInfo,
        motion: HandMotion,
        frames: Iterable[ImageRgb] | None = None,
        extra: Mapping[str, Mapping[str, np.ndarray]] | None = None,
        quality: Quality = "visual",
        views: Mapping[str, Iterable[ImageRgb]] | None = None,
        objects: ObjectTrack | None = None,
    ) -> ClipInfo:
        """Write one clip, replacing one of the same name; return its complete metadata.

        Args:
            info: ``media`` (unless "reference"), ``files`` and ``sizes`` are filled in here.
            motion: T frames; camera, hand model and flags as in ``info``.
            frames: T pictures of ``info.width`` x ``info.height``, or None.
            extra: name -> arrays with T rows, written as ``NAME.npz``.
            quality: of the video; images are always lossless.
            views: T pictures of each camera of ``info.views``.
            objects: of the recording.

        Raises:
            SchemaError: the parts do not fit together. OutputError: not writable.
        """
        _check(info, motion)
        if frames is not None and info.media == "reference":
            raise SchemaError(f"clip {info.id}: frames and a reference; give one of them.")
        views, extra = views or {}, extra or {}
        if views.keys() != info.views.keys() or (SENSOR_DEPTH in extra) != bool(info.depth):
            raise SchemaError(
                f"clip {info.id}: pictures of views {sorted(views)} and arrays {sorted(extra)} for "
                f"views {sorted(info.views)} and depth {info.depth}; they must agree."
            )

        with atomic_folder(self.root / "clips" / info.id, overwrite=True) as folder:
            pq.write_table(
                to_table(motion), folder / _HANDS, compression="zstd", write_page_checksum=True
            )
            if frames is not None:
                info = replace(info, media=info.kind)
                _write_frames(folder, info, frames, quality)
            for name, pictures in views.items():
                _write_frames(folder, info, pictures, quality, name)
            for name, arrays in extra.items():
                check_name(name, "extra file")
                for key, array in arrays.items():
                    if array.dtype.hasobject or len(array) != info.frames:
                        raise SchemaError(
                            f"extra {name!r}: array {key!r} {array.dtype} {array.shape}; numbers "
                            f"with {info.frames} rows, one per frame, are needed."
                        )
                # numpy's stub takes any keyword for its own flag.
                columns: dict[str, Any] = dict(arrays)
                np.savez_compressed(folder / f"{name}.npz", **columns)
            if objects is not None:
                write_objects(objects, folder / _OBJECTS)
            files = sorted(folder.iterdir())
            hashes = {file.name: content_sha256(file) for file in files}
            sizes = {file.name: file.stat().st_size for file in files}
            info = replace(info, files=hashes, sizes=sizes)
            schema.write_json(folder / _CLIP, info.to_json())

        return info

    def remove(self, clips: Collection[str]) -> None:
        """Remove clips, first from the index: interrupted, it names no missing clip.

        Raises:
            OutputError: not writable; clips not yet removed are still whole.
        """
        ClipStore(self.root).refresh_index(without=clips)
        for name in sorted(set(clips)):
            check_name(name, "clip")
            remove_folder(self.root / "clips" / name)

    def write_index(self) -> int:
        """Write the index, once at the end, in one process. Return the number of clips."""
        return len(ClipStore(self.root).refresh_index())


def changed_settings(root: Path, info: StoreInfo) -> list[str]:
    """Describe how ``info`` differs from the settings of a store's clips; empty without clips.

    Raises SchemaError.
    """
    if not (root / "store.json").exists():
        return []
    stored = _store_info(root)
    if (stored.dataset, stored.split) != (info.dataset, info.split):
        return []
    old, new = dict(stored.settings), _as_read(info.settings)
    changed = [
        f"{name}: {old.get(name)!r} there, {new.get(name)!r} now"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    clips = root / "clips"
    return changed if clips.is_dir() and _visible(clips) else []


class ClipStore:
    """A store for reading; may be shared between threads and sent to other processes.

    Raises:
        InputError: no such folder. SchemaError: not a store.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        if not root.is_dir():
            raise InputError(f"{root}: no such folder; give a store of clips.")
        self.info = _store_info(root)
        self._infos: dict[str, ClipInfo] | None = None

    def __len__(self) -> int:
        return len(self.infos())

    def ids(self) -> list[str]:
        """Return the names of all clips, sorted."""
        return list(self.infos())

    def infos(self) -> dict[str, ClipInfo]:
        """Return the metadata of all clips by name, sorted; listed once.

        Entries of the index with a changed ``clip.json`` are read again.
        """
        if self._infos is None:
            self._infos = self._list()
        return self._infos

    def info_of(self, clip: str) -> ClipInfo:
        """Return the metadata of one clip. Raises SchemaError for an unknown name."""
        return _clip_info(self.folder(clip))

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
        """Return a clip with its hands in memory and its pictures on disk.

        Without ``pictures`` no media file is opened (which lists a video's packets) and ``frames``
        is None.

        Raises:
            SchemaError: unknown name, or malformed files.
        """
        folder, info, motion = self.folder(clip), self.info_of(clip), self.hands(clip)
        _check(info, motion)
        if not pictures:
            return Clip(info, motion, None)

        times, views, depth = motion.timestamps_ns, [], None
        for name, mounted in info.views.items():
            path, size = _pictures(folder, info, name)
            frames = _open_frames(folder, info, name)
            seen = Recording(str(path), None, times, info.fps, *size, frames, mounted.camera)
            views.append(View(name, seen, mounted.T_camera_view))
        if info.depth is not None:
            camera, pose = info.depth.camera, info.depth.T_camera_view
            shape = (info.frames, camera.height, camera.width)
            readings = DepthFile(folder / f"{SENSOR_DEPTH}.npz", shape)
            depth = Depth(readings, times, camera, pose, info.depth.sigma_per_m)
        objects = folder / _OBJECTS
        return Clip(
            info,
            motion,
            self._frames(folder, info),
            tuple(views),
            depth,
            read_objects(objects) if objects.is_file() else None,
        )

    def hands(self, clip: str) -> HandMotion:
        """Return the hands of a clip."""
        return read_hand_motion(self.folder(clip) / _HANDS)

    def extra(self, clip: str, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of ``NAME.npz``. Raises SchemaError if it is missing."""
        check_name(name, "extra file")
        path = self.folder(clip) / f"{name}.npz"
        if not path.exists():
            available = [file.stem for file in path.parent.glob("*.npz")]
            raise SchemaError(f"clip {clip}: no {name!r}; {nearest(name, available)}")
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)

    def verify(self, clip: str) -> None:
        """Raise SchemaError if a file of a clip is missing or has another hash."""
        folder, info = self.folder(clip), self.info_of(clip)
        hashes = {folder / Path(name).name: sha256 for name, sha256 in info.files.items()}
        if info.reference is not None:
            hashes[self.root / info.reference.path] = info.reference.sha256
        for path, expected in hashes.items():
            if not path.is_file() or content_sha256(path) != expected:
                raise SchemaError(f"{path}: missing or changed since clip {clip} was written.")

    def refresh_index(self, without: Collection[str] = ()) -> dict[str, ClipInfo]:
        """Rewrite ``index.json`` without some clips; return the others' metadata."""
        infos = {name: info for name, info in self._list().items() if name not in without}
        clips = self.root / "clips"
        entries = {n: [*_stamp(clips / n / _CLIP), info.to_json()] for n, info in infos.items()}
        schema.write_json(self.root / _INDEX, {"clips": entries})
        self._infos = infos
        return infos

    def _list(self) -> dict[str, ClipInfo]:
        index: Mapping[str, Any] = {}
        if (self.root / _INDEX).exists():
            try:
                index = read_json(self.root / _INDEX)["clips"]
            except (InputError, KeyError, TypeError):  # it is only a copy
                index = {}

        infos = {}
        for name in _visible(self.root / "clips"):
            path = self.root / "clips" / name / _CLIP
            entry = index.get(name)
            if isinstance(entry, list) and entry[:2] == list(_stamp(path)):
                value = entry[2]
            else:
                value = read_json(path)
            infos[name] = ClipInfo.from_json(value, str(path))
            if infos[name].id != name:
                raise SchemaError(f"{path}: describes clip {infos[name].id!r}; folder renamed?")

        return infos

    def _frames(self, folder: Path, info: ClipInfo) -> FrameSource | None:
        if info.media in ("image", "video"):
            return _open_frames(folder, info)
        if info.reference is None:
            return None
        path, size = self.root / info.reference.path, (info.width, info.height)
        return media.open_frames(path, size, info.reference.first, info.reference.stop)


def _store_info(root: Path) -> StoreInfo:
    path = root / "store.json"
    return StoreInfo.from_json(read_json(path), str(path))


def _clip_info(folder: Path) -> ClipInfo:
    path = folder / _CLIP
    return ClipInfo.from_json(read_json(path), str(path))


def _as_read(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value after a round trip through JSON."""
    return json.loads(json.dumps(dict(value), default=schema.plain))


def _check(info: ClipInfo, motion: HandMotion) -> None:
    """Raise SchemaError unless the hands match the metadata."""
    pairs = {
        "frames": (info.frames, len(motion)),
        "hand_model": (info.hand_model, motion.hand_model),
        "left_shapedirs_fixed": (info.left_shapedirs_fixed, motion.left_shapedirs_fixed),
        "camera": (info.camera, motion.camera),
    }
    for name, (described, actual) in pairs.items():
        if described != actual:
            raise SchemaError(f"clip {info.id}: {name} is {described}, that of its hands {actual}.")


def _pictures(
    folder: Path, info: ClipInfo, view: str | None = None
) -> tuple[Path, tuple[int, int]]:
    """Return file and (width, height) of a clip's pictures, or of a view's."""
    name = media.IMAGE if info.kind == "image" else media.VIDEO
    if view is None:
        return folder / name, (info.width, info.height)
    camera = info.views[view].camera
    return folder / f"view_{view}{Path(name).suffix}", (camera.width, camera.height)


def _open_frames(folder: Path, info: ClipInfo, view: str | None = None) -> FrameSource:
    path, size = _pictures(folder, info, view)
    if info.kind == "image":
        return ImageFiles([path], size)
    frames = media.open_frames(path, size)
    if len(frames) != info.frames:
        raise SchemaError(f"{path}: {len(frames)} pictures for {info.frames} frames.")
    return frames


def _write_frames(
    folder: Path,
    info: ClipInfo,
    frames: Iterable[ImageRgb],
    quality: Quality,
    view: str | None = None,
) -> None:
    path, size = _pictures(folder, info, view)

    def checked() -> Iterator[ImageRgb]:
        for number, image in enumerate(frames):
            if image.shape[1::-1] != size:
                raise SchemaError(
                    f"clip {info.id}: frame {number} of {path.name} is {image.shape[1]} x "
                    f"{image.shape[0]}, not {size[0]} x {size[1]}."
                )
            yield image

    if info.kind == "image":
        images = list(checked())
        if len(images) == 1:
            media.write_image(path, images[0])
        count = len(images)
    else:
        count = media.write_video(path, checked(), info.fps, quality)
    if count != info.frames:
        raise SchemaError(f"{info.id}/{path.name}: {count} pictures for {info.frames} frames.")


def _visible(folder: Path) -> list[str]:
    """Return the clip folders in place; hidden ones are unfinished."""
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise SchemaError(f"{path}: missing; remove the folder or write the clip again.") from error
    return status.st_size, status.st_mtime_ns
