"""FreiHAND: single pictures of right hands with MANO and 21 joints in the camera frame.

Layout: ``training/rgb/00000000.jpg``, ``training_{K,mano,xyz}.json``, ``evaluation...``. Each of
the 32560 training samples has four versions of its picture: picture number = sample + 32560 times
version.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.datasets.readers.files import array, numbers, read_json, safe_name
from acehand_core.datasets.readers.pictures import ImageFiles, image_size
from acehand_core.datasets.readers.protocol import (
    Convention,
    Item,
    ManoTrack,
    NativeRecording,
    ReadOptions,
)
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera

CONVENTION = Convention("vectors", False, "middle_knuckle", False, "camera")
_PARTS = {"training": "train", "evaluation": "test"}
_RIGHT = 1
_SIZE = 224


class FreiHandReader:
    """``Reader`` of FreiHAND. A sample is a recording of one frame; views are picture versions."""

    name = "freihand"
    title = "FreiHAND"
    views = ("gs", "hom", "sample", "auto")

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List samples of one picture version; evaluation has only the first."""
        view = options.view or self.views[0]
        out = []
        for part, split in _PARTS.items():
            if not (root / f"{part}_K.json").is_file():
                continue
            if part == "evaluation" and view != "gs":
                continue
            for index in range(len(_read(root, part)[0])):
                key = {"part": part, "index": str(index), "view": view}
                name = safe_name(part, f"{index:08d}", view)
                out.append(Item(self.name, name, split, root, key))
        if not out:
            raise InputError(
                f"{root}: this does not look like FreiHAND; no training_K.json or "
                "evaluation_K.json."
            )
        return out

    def sources(self, item: Item) -> Sequence[Path]:
        """Return the files and folders that a recording is read from."""
        part = item.key["part"]
        labels = [item.path / f"{part}_{name}.json" for name in ("K", "mano", "xyz")]
        return [*labels, self._picture(item, len(_read(item.path, part)[0]))]

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one sample."""
        part, index = item.key["part"], int(item.key["index"])
        K_all, mano_all, xyz_all = _read(item.path, part)
        K, where = K_all[index], f"{item.path} {part} {index}"
        path = self._picture(item, len(K_all))
        size = image_size(path) if path.is_file() else (_SIZE, _SIZE)
        camera = Camera("pinhole", *size, *map(float, (K[0, 0], K[1, 1], *K[:2, 2])))
        findings = [] if path.is_file() else [f"{path.name} is missing; no picture."]
        joints = None
        present = np.zeros((1, 2), bool)
        if xyz_all is not None:
            joints = np.full((1, 2, 21, 3), np.nan)
            joints[0, _RIGHT] = xyz_all[index]
            present[0, _RIGHT] = True
        track = None
        if mano_all is not None:
            track = _track(mano_all[index], K, where)
            present |= track.present
            if joints is not None:
                away = np.linalg.norm(track.translation[0, _RIGHT] - joints[0, _RIGHT, 9])
                if away > 5e-3:
                    findings.append(
                        f"the root from uv_root and scale lies {away * 1e3:.1f} mm from xyz."
                    )
        return NativeRecording(
            item=item,
            timestamps_ns=np.zeros(1, np.int64),
            fps=30.0,
            width=size[0],
            height=size[1],
            frames=ImageFiles([path]) if path.is_file() else None,
            camera=camera,
            mano=track,
            joints_camera=joints,
            joints_image=None,
            present=present,
            visible=None,
            slots=(False, True),
            still=True,
            licences=("FreiHAND: research only, https://lmb.informatik.uni-freiburg.de",),
            findings=tuple(findings),
        )

    def _picture(self, item: Item, samples: int) -> Path:
        number = int(item.key["index"]) + samples * self.views.index(item.key["view"])
        return item.path / item.key["part"] / "rgb" / f"{number:08d}.jpg"


def _track(values: np.ndarray, K: np.ndarray, where: str) -> ManoTrack:
    """Return 61 stored numbers as MANO: root position from pixel and scale, as the authors do."""
    scale = values[60]
    if not scale > 0:
        raise SchemaError(f"{where}: scale is {scale}; it must be above 0.")
    focal = (K[0, 0] + K[1, 1]) / 2
    root = np.array([*(values[58:60] - K[:2, 2]), focal]) / scale

    def both(value: np.ndarray) -> np.ndarray:
        return np.stack([np.full_like(value, np.nan), value])[None]

    orient = rotations.exp(values[None, :3])[0]
    return ManoTrack(
        CONVENTION,
        np.array([[False, True]]),
        both(orient),
        both(values[3:48]),
        both(values[48:58]),
        both(root),
    )


@functools.lru_cache(maxsize=4)
def _read(root: Path, part: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return K (N, 3, 3), MANO (N, 61) and xyz (N, 21, 3); None where there is no such file."""
    out: list[np.ndarray | None] = []
    for name, shape in (("K", (3, 3)), ("mano", (61,)), ("xyz", (21, 3))):
        path = root / f"{part}_{name}.json"
        if not path.is_file():
            if name == "K":
                raise InputError(f"{path}: not there.")
            out.append(None)
            continue
        values = numbers(read_json(path), str(path))
        if name == "mano" and values.ndim == 3:  # each sample's numbers lie in a list of one
            values = array(values, (None, 1, *shape), str(path))[:, 0]
        out.append(array(values, (None, *shape), str(path)))
    lengths = {len(value) for value in out if value is not None}
    if len(lengths) != 1:
        raise SchemaError(f"{root}: {part}_*.json differ in length: {sorted(lengths)}.")
    return out[0], out[1], out[2]
