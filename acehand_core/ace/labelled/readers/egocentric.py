"""Folders of unlabelled egocentric video: HoloAssist, Xperience-10M and similar.

Every video file below the folder is a recording. Its camera is a camera file (docs/formats.md)
named ``<video>.camera.json``, or ``camera.json`` next to the video or in a folder above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.readers.base import Item, NativeRecording, ReadOptions, safe_name
from acehand_core.errors import InputError
from acehand_core.recordings.camera_files import load_camera
from acehand_core.recordings.cameras import fit_camera_to
from acehand_core.recordings.video import EXTENSIONS, open_video


class EgocentricReader:
    """``Reader`` of unlabelled video; each of ``NAMES`` has the same layout."""

    NAMES = ("egocentric", "holoassist", "xperience10m")
    title = "egocentric video"
    views = ("video",)

    def __init__(self, name: str = NAMES[0]) -> None:
        self.name = name

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List videos, by path."""
        videos = [
            p for p in sorted(root.rglob("*")) if p.suffix.lower() in EXTENSIONS and p.is_file()
        ]
        if not videos:
            raise InputError(f"{root}: it has no video ({', '.join(EXTENSIONS)}).")

        names = [safe_name(*p.relative_to(root).with_suffix("").parts) for p in videos]
        items = []
        for name, path in zip(names, videos, strict=True):
            if names.count(name) > 1:  # files that differ in suffix alone
                name = safe_name(name, path.suffix[1:])
            items.append(Item(self.name, name, "test", path, {"root": str(root)}))
        return items

    def sources(self, item: Item) -> Sequence[Path]:
        camera = _camera_file(item)
        return [item.path] if camera is None else [item.path, camera]

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Open one video; frames are read on demand."""
        recording = open_video(item.path)
        size = recording.width, recording.height
        path = _camera_file(item)
        camera, note = None, "no camera file; the camera is not known."
        if path is not None:
            camera = fit_camera_to(load_camera(path), *size)
            note = f"camera: {path.relative_to(item.key['root'])}."
        return NativeRecording(
            item=item,
            timestamps_ns=recording.timestamps_ns,
            fps=recording.fps,
            size=size,
            frames=recording.frames,
            camera=camera,
            present=np.zeros((len(recording), 2), bool),
            slots=(False, False),
            plain=True,
            licences=("unlabelled video: its own terms",),
            findings=(*recording.notes, note),
        )


def _camera_file(item: Item) -> Path | None:
    root = Path(item.key["root"])
    names = [item.path.with_suffix(".camera.json")]
    for folder in item.path.parents:
        names.append(folder / "camera.json")
        if folder == root:
            break
    return next((path for path in names if path.is_file()), None)
