"""Datasets of single pictures, each a recording of one frame: FreiHAND and RHD.

FreiHAND: right hands with MANO and 21 joints in the camera frame. Layout:
``training/rgb/00000000.jpg``, ``training_{K,mano,xyz}.json``, ``evaluation...``. Each of the 32560
training samples has four versions of its picture: picture number = sample + 32560 times version.

RHD, the Rendered Hand Pose dataset: 2 x 21 joints in the camera frame, no MANO. Layout:
``{training,evaluation}/color/00000.png`` and ``anno_<part>.pickle``. Fingers are stored from tip to
base. The pickle is read by the restricted unpickler.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.datasets.readers.base import (
    Convention,
    Item,
    ManoTrack,
    NativeRecording,
    ReadOptions,
    array,
    get,
    numbers,
    read_json,
    safe_name,
)
from acehand_core.datasets.readers.pictures import ImageFiles, image_size
from acehand_core.errors import InputError, SchemaError
from acehand_core.files.unpickling import NPY_OBJECT, restricted_load
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera

FREIHAND_CONVENTION = Convention("vectors", False, "middle_knuckle", False, "camera")
_FREIHAND_PARTS = {"training": "train", "evaluation": "test"}
_RIGHT = 1
_FREIHAND_SIZE = 224


#: K (N, 3, 3), MANO (N, 61) and xyz (N, 21, 3); None where there is no such file.
_FreiHandLabels = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]


class FreiHandReader:
    """``Reader`` of FreiHAND. A sample is a recording of one frame; views are picture versions."""

    name = "freihand"
    title = "FreiHAND"
    views = ("gs", "hom", "sample", "auto")

    def __init__(self) -> None:
        self._annotations: dict[tuple[Path, str], _FreiHandLabels] = {}

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List samples of one picture version; evaluation has only the first."""
        view = options.view or self.views[0]
        out = []
        for part, split in _FREIHAND_PARTS.items():
            if not (root / f"{part}_K.json").is_file():
                continue
            if part == "evaluation" and view != "gs":
                continue
            for index in range(len(self._read(root, part)[0])):
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
        return [*labels, self._picture(item, len(self._read(item.path, part)[0]))]

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one sample."""
        part, index = item.key["part"], int(item.key["index"])
        K_all, mano_all, xyz_all = self._read(item.path, part)
        K, where = K_all[index], f"{item.path} {part} {index}"
        path = self._picture(item, len(K_all))
        size = image_size(path) if path.is_file() else (_FREIHAND_SIZE, _FREIHAND_SIZE)
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
            # 61 stored numbers as MANO: root position from pixel and scale, as the authors do.
            values = mano_all[index]
            scale = values[60]
            if not scale > 0:
                raise SchemaError(f"{where}: scale is {scale}; it must be above 0.")
            focal = (K[0, 0] + K[1, 1]) / 2
            root = np.array([*(values[58:60] - K[:2, 2]), focal]) / scale

            def both(value: np.ndarray) -> np.ndarray:
                return np.stack([np.full_like(value, np.nan), value])[None]

            orient = rotations.exp(values[None, :3])[0]
            track = ManoTrack(
                FREIHAND_CONVENTION,
                np.array([[False, True]]),
                both(orient),
                both(values[3:48]),
                both(values[48:58]),
                both(root),
            )

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

    def _read(self, root: Path, part: str) -> _FreiHandLabels:
        """Return the labels of all samples, read once."""
        if (root, part) in self._annotations:
            return self._annotations[root, part]

        arrays: list[np.ndarray | None] = []
        for name, shape in (("K", (3, 3)), ("mano", (61,)), ("xyz", (21, 3))):
            path = root / f"{part}_{name}.json"
            if not path.is_file():
                if name == "K":
                    raise InputError(f"{path}: not there.")
                arrays.append(None)
                continue
            values = numbers(read_json(path), str(path))
            if name == "mano" and values.ndim == 3:  # each sample's numbers lie in a list of one
                values = array(values, (None, 1, *shape), str(path))[:, 0]
            arrays.append(array(values, (None, *shape), str(path)))

        lengths = {len(value) for value in arrays if value is not None}
        if len(lengths) != 1:
            raise SchemaError(f"{root}: {part}_*.json differ in length: {sorted(lengths)}.")
        self._annotations[root, part] = arrays[0], arrays[1], arrays[2]
        return self._annotations[root, part]


_RHD_PARTS = {"training": "train", "evaluation": "test"}
_RHD_SIZE = 320
#: Joint of a stored hand for each of ours: the wrist stays, each finger is reversed.
_RHD_ORDER = (0, 4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13, 20, 19, 18, 17)
_MAX_REPROJECTION_PX = 1.0


class RhdReader:
    """``Reader`` of RHD. A picture is a recording of one frame."""

    name = "rhd"
    title = "RHD"
    views = ("color",)

    def __init__(self) -> None:
        self._annotations: dict[tuple[Path, str], dict[int, dict]] = {}

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List pictures, all of them."""
        out = []
        for part, split in _RHD_PARTS.items():
            if not (root / part / f"anno_{part}.pickle").is_file():
                continue
            for index in sorted(self._read(root, part)):
                name = safe_name(part, f"{index:05d}")
                out.append(Item(self.name, name, split, root, {"part": part, "index": str(index)}))
        if not out:
            raise InputError(
                f"{root}: this does not look like RHD; no training/anno_training.pickle or "
                "evaluation/anno_evaluation.pickle."
            )
        return out

    def sources(self, item: Item) -> Sequence[Path]:
        """Return the files and folders that a recording is read from."""
        part = item.key["part"]
        return [item.path / part / f"anno_{part}.pickle", self._picture(item)]

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one picture."""
        part, index = item.key["part"], int(item.key["index"])
        where = f"anno_{part}.pickle {index}"
        entry = self._read(item.path, part)[index]
        K = array(get(entry, "K", where), (3, 3), f"{where} K")
        pixels = array(get(entry, "uv_vis", where), (42, 3), f"{where} uv_vis")
        points = array(get(entry, "xyz", where), (42, 3), f"{where} xyz")
        path = self._picture(item)
        size = image_size(path) if path.is_file() else (_RHD_SIZE, _RHD_SIZE)
        camera = Camera("pinhole", *size, *map(float, (K[0, 0], K[1, 1], *K[:2, 2])))

        order = [side * 21 + joint for side in range(2) for joint in _RHD_ORDER]
        joints = points[order].reshape(1, 2, 21, 3)
        image = pixels[order, :2].reshape(1, 2, 21, 2)
        seen = (pixels[order, 2] == 1).reshape(1, 2, 21)
        present = np.ones((1, 2), bool)
        findings = [] if path.is_file() else [f"{path.name} is missing; no picture."]
        if not seen.any():
            findings.append("no joint of either hand is visible.")

        # What only others state: that K, xyz and uv belong together, and the order of joints.
        error = np.linalg.norm(camera.project(joints) - image, axis=-1)
        worst = float(error[joints[..., 2] > 0].max(initial=0.0))
        if worst > _MAX_REPROJECTION_PX:
            findings.append(f"xyz projected with K lies up to {worst:.1f} px from uv.")
        # From the wrist, a finger's base is nearer than its tip unless it is bent flat.
        fingers = joints[:, :, 5:].reshape(1, 2, 4, 4, 3) - joints[:, :, :1, None]
        distance = np.linalg.norm(fingers, axis=-1)
        if (distance[..., 3] < distance[..., 0]).mean() > 0.75:
            findings.append(
                "most fingertips lie nearer to the wrist than the bases: order doubtful."
            )

        return NativeRecording(
            item=item,
            timestamps_ns=np.zeros(1, np.int64),
            fps=30.0,
            width=size[0],
            height=size[1],
            frames=ImageFiles([path]) if path.is_file() else None,
            camera=camera,
            mano=None,
            joints_camera=joints,
            joints_image=np.where(seen[..., None], image, np.nan),
            present=present,
            visible=seen.mean(axis=-1).astype(np.float32),
            still=True,
            licences=("RHD: research only, https://lmb.informatik.uni-freiburg.de",),
            findings=tuple(findings),
        )

    def _picture(self, item: Item) -> Path:
        return item.path / item.key["part"] / "color" / f"{int(item.key['index']):05d}.png"

    def _read(self, root: Path, part: str) -> dict[int, dict]:
        """Return the labels of all pictures, read once."""
        if (root, part) not in self._annotations:
            path = root / part / f"anno_{part}.pickle"
            value = restricted_load(path, NPY_OBJECT, "RHD annotation")
            if not isinstance(value, dict) or not all(isinstance(key, int) for key in value):
                raise SchemaError(f"{path}: must be a dict of picture numbers.")
            self._annotations[root, part] = value
        return self._annotations[root, part]
