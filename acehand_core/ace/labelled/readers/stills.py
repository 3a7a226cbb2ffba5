"""Datasets of still images, each a recording of one frame: FreiHAND and RHD.

FreiHAND: right hands with MANO and 21 joints in the camera frame. Layout:
``training/rgb/00000000.jpg``, ``training_{K,mano,xyz}.json``, ``evaluation...``. The 32560 training
samples have four versions of their picture: picture number = sample + 32560 * version.

RHD, the Rendered Hand Pose dataset: 2 x 21 joints in the camera frame, no MANO. Layout:
``{training,evaluation}/color/00000.png`` and ``anno_<part>.pickle``. Fingers are stored from tip to
base. The pickle is read by the restricted unpickler.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.media import ImageFiles
from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.pictures import image_size
from acehand_core.errors import SchemaError
from acehand_core.geometry import rotations
from acehand_core.unpickling import NPY_OBJECT, restricted_load
from acehand_core.user_files import read_json

FREIHAND_CONVENTION = base.Convention("vectors", False, "middle_knuckle", False, "camera")
_PARTS: dict[str, base.Split] = {"training": "train", "evaluation": "test"}
_FREIHAND_SIZE = 224

#: K (N, 3, 3), MANO (N, 61) and xyz (N, 21, 3); None without the file.
_FreiHandLabels = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]

_RHD_SIZE = 320
#: Stored joint of each of ours: fingers are reversed.
_RHD_ORDER = (0, 4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13, 20, 19, 18, 17)
_MAX_REPROJECTION_PX = 1.0


def _still(item: base.Item, path: Path, side: int, K: np.ndarray) -> base.NativeRecording:
    """Return a recording of one picture without labels, ``side`` pixels square if missing."""
    exists = path.is_file()
    size = image_size(path) if exists else (side, side)
    return base.NativeRecording(
        item=item,
        timestamps_ns=np.zeros(1, np.int64),
        fps=30.0,
        size=size,
        frames=ImageFiles([path]) if exists else None,
        camera=base.pinhole(K, size),
        present=np.zeros((1, 2), bool),
        still=True,
        findings=() if exists else (f"{path.name} is missing; no picture.",),
    )


def _right(value: np.ndarray) -> np.ndarray:
    """Return a right hand's value as (1, 2, ...), NaN for the left."""
    return np.stack([np.full_like(value, np.nan), value])[None]


class FreiHandReader:
    """``Reader`` of FreiHAND. A sample is a recording of one frame; views are picture versions."""

    name = "freihand"
    title = "FreiHAND"
    views = ("gs", "hom", "sample", "auto")

    def __init__(self) -> None:
        self._read = functools.cache(_freihand_labels)

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List samples of one picture version; evaluation has only the first."""
        view = options.view or self.views[0]
        items = []
        for part, split in _PARTS.items():
            if not (root / f"{part}_K.json").is_file() or (part == "evaluation" and view != "gs"):
                continue
            for index in range(len(self._read(root, part)[0])):
                key = {"part": part, "index": str(index), "view": view}
                name = base.safe_name(part, f"{index:08d}", view)
                items.append(base.Item(self.name, name, split, root, key))
        return base.need_items(items, root, self.title, "training_K.json or evaluation_K.json")

    def sources(self, item: base.Item) -> Sequence[Path]:
        part = item.key["part"]
        labels = [item.path / f"{part}_{name}.json" for name in ("K", "mano", "xyz")]
        return [*labels, self._picture(item, len(self._read(item.path, part)[0]))]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        part, index = item.key["part"], int(item.key["index"])
        K_all, mano_all, xyz_all = self._read(item.path, part)
        K, where = K_all[index], f"{item.path} {part} {index}"
        still = _still(item, self._picture(item, len(K_all)), _FREIHAND_SIZE, K)

        joints = track = None
        if xyz_all is not None:
            joints = _right(xyz_all[index])
        if mano_all is not None:
            # 61 numbers: MANO's 58, then root pixel and scale, unprojected as the authors do.
            values = mano_all[index]
            scale = values[60]
            if not scale > 0:
                raise SchemaError(f"{where}: scale is {scale}; it must be above 0.")
            focal = (K[0, 0] + K[1, 1]) / 2
            root = np.array([*(values[58:60] - K[:2, 2]), focal]) / scale
            orient = rotations.exp(values[None, :3])[0]
            hand = map(_right, (orient, values[3:48], values[48:58], root))
            track = base.ManoTrack(FREIHAND_CONVENTION, np.array([[False, True]]), *hand)

        findings = still.findings
        if track is not None and joints is not None:
            away = np.linalg.norm(track.translation[0, 1] - joints[0, 1, 9])
            if away > 5e-3:
                text = f"the root from uv_root and scale lies {away * 1e3:.1f} mm from xyz."
                findings = (*findings, text)
        return replace(
            still,
            present=np.array([[False, track is not None or joints is not None]]),
            mano=track,
            joints_camera=joints,
            slots=(False, True),
            licences=("FreiHAND: research only, https://lmb.informatik.uni-freiburg.de",),
            findings=findings,
        )

    def _picture(self, item: base.Item, samples: int) -> Path:
        number = int(item.key["index"]) + samples * self.views.index(item.key["view"])
        return item.path / item.key["part"] / "rgb" / f"{number:08d}.jpg"


def _freihand_labels(root: Path, part: str) -> _FreiHandLabels:
    """Return the labels of all samples."""
    arrays: dict[str, np.ndarray] = {}
    for name, shape in (("K", (3, 3)), ("mano", (61,)), ("xyz", (21, 3))):
        path = root / f"{part}_{name}.json"
        if name != "K" and not path.is_file():
            continue
        values = base.numbers(read_json(path), str(path))
        if name == "mano" and values.ndim == 3:  # a list of one per sample
            values = base.array(values, (None, 1, *shape), str(path))[:, 0]
        arrays[name] = base.array(values, (None, *shape), str(path))

    lengths = {len(value) for value in arrays.values()}
    if len(lengths) != 1:
        raise SchemaError(f"{root}: {part}_*.json differ in length: {sorted(lengths)}.")
    return arrays["K"], arrays.get("mano"), arrays.get("xyz")


class RhdReader:
    """``Reader`` of RHD. A picture is a recording of one frame."""

    name = "rhd"
    title = "RHD"
    views = ("color",)

    def __init__(self) -> None:
        self._read = functools.cache(_rhd_labels)

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List all pictures."""
        items = []
        for part, split in _PARTS.items():
            if not (root / part / f"anno_{part}.pickle").is_file():
                continue
            for index in sorted(self._read(root, part)):
                name, key = (
                    base.safe_name(part, f"{index:05d}"),
                    {"part": part, "index": str(index)},
                )
                items.append(base.Item(self.name, name, split, root, key))
        files = "training/anno_training.pickle or evaluation/anno_evaluation.pickle"
        return base.need_items(items, root, self.title, files)

    def sources(self, item: base.Item) -> Sequence[Path]:
        part = item.key["part"]
        return [item.path / part / f"anno_{part}.pickle", self._picture(item)]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        part, index = item.key["part"], int(item.key["index"])
        where, labels = f"anno_{part}.pickle {index}", self._read(item.path, part)[index]
        pixels = base.entry(labels, "uv_vis", (42, 3), where)
        points = base.entry(labels, "xyz", (42, 3), where)
        still = _still(item, self._picture(item), _RHD_SIZE, base.entry(labels, "K", (3, 3), where))

        order = [side * 21 + joint for side in range(2) for joint in _RHD_ORDER]
        joints = points[order].reshape(1, 2, 21, 3)
        image = pixels[order, :2].reshape(1, 2, 21, 2)
        seen = (pixels[order, 2] == 1).reshape(1, 2, 21)
        findings = list(still.findings)
        if not seen.any():
            findings.append("no joint of either hand is visible.")

        # Checks of what the dataset does not state: agreement of K, xyz and uv, order of joints.
        assert still.camera is not None
        error = np.linalg.norm(still.camera.project(joints) - image, axis=-1)
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

        return replace(
            still,
            present=np.ones((1, 2), bool),
            joints_camera=joints,
            joints_image=np.where(seen[..., None], image, np.nan),
            visible=seen.mean(axis=-1).astype(np.float32),
            licences=("RHD: research only, https://lmb.informatik.uni-freiburg.de",),
            findings=tuple(findings),
        )

    def _picture(self, item: base.Item) -> Path:
        return item.path / item.key["part"] / "color" / f"{int(item.key['index']):05d}.png"


def _rhd_labels(root: Path, part: str) -> dict[int, base.Record]:
    """Return the labels of all pictures."""
    path = root / part / f"anno_{part}.pickle"
    value = restricted_load(path, NPY_OBJECT, "RHD annotation")
    if not isinstance(value, dict) or not all(isinstance(key, int) for key in value):
        raise SchemaError(f"{path}: must be a dict of picture numbers.")
    return value
