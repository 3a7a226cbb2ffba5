"""RHD, the Rendered Hand Pose dataset: single pictures, 2 x 21 joints in the camera frame, no MANO.

Layout: ``{training,evaluation}/color/00000.png`` and ``anno_<part>.pickle``. Fingers are stored
from tip to base. The pickle is read by the restricted unpickler.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.datasets.readers.files import array, get, safe_name
from acehand_core.datasets.readers.pictures import ImageFiles, image_size
from acehand_core.datasets.readers.protocol import Item, NativeRecording, ReadOptions
from acehand_core.errors import InputError, SchemaError
from acehand_core.files.unpickling import NPY_OBJECT, restricted_load
from acehand_core.geometry.cameras import Camera

_PARTS = {"training": "train", "evaluation": "test"}
_SIZE = 320
#: Joint of a stored hand for each of ours: the wrist stays, each finger is turned around.
_ORDER = (0, 4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9, 16, 15, 14, 13, 20, 19, 18, 17)
_MAX_REPROJECTION_PX = 1.0


class RhdReader:
    """``Reader`` of RHD. A picture is a recording of one frame."""

    name = "rhd"
    title = "RHD"
    views = ("color",)

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List pictures, all of them."""
        out = []
        for part, split in _PARTS.items():
            if not (root / part / f"anno_{part}.pickle").is_file():
                continue
            for index in sorted(_read(root, part)):
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
        return [item.path / part / f"anno_{part}.pickle", _picture(item)]

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one picture."""
        part, index = item.key["part"], int(item.key["index"])
        where = f"anno_{part}.pickle {index}"
        entry = _read(item.path, part)[index]
        K = array(get(entry, "K", where), (3, 3), f"{where} K")
        pixels = array(get(entry, "uv_vis", where), (42, 3), f"{where} uv_vis")
        points = array(get(entry, "xyz", where), (42, 3), f"{where} xyz")
        path = _picture(item)
        size = image_size(path) if path.is_file() else (_SIZE, _SIZE)
        camera = Camera("pinhole", *size, *map(float, (K[0, 0], K[1, 1], *K[:2, 2])))
        order = [side * 21 + joint for side in range(2) for joint in _ORDER]
        joints = points[order].reshape(1, 2, 21, 3)
        image = pixels[order, :2].reshape(1, 2, 21, 2)
        seen = (pixels[order, 2] == 1).reshape(1, 2, 21)
        present = np.ones((1, 2), bool)
        findings = [] if path.is_file() else [f"{path.name} is missing; no picture."]
        if not seen.any():
            findings.append("no joint of either hand is visible.")
        findings += _checks(camera, joints, image)
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


def _picture(item: Item) -> Path:
    return item.path / item.key["part"] / "color" / f"{int(item.key['index']):05d}.png"


def _checks(camera: Camera, joints: np.ndarray, image: np.ndarray) -> list[str]:
    """Check what only others state: that K, xyz and uv belong together, and the joint order."""
    out = []
    front = joints[..., 2] > 0
    error = np.linalg.norm(camera.project(joints) - image, axis=-1)
    worst = float(error[front].max(initial=0.0))
    if worst > _MAX_REPROJECTION_PX:
        out.append(f"xyz projected with K lies up to {worst:.1f} px from uv.")
    # From the wrist, a finger's base is nearer than its tip unless it is bent flat.
    fingers = joints[:, :, 5:].reshape(1, 2, 4, 4, 3) - joints[:, :, :1, None]
    distance = np.linalg.norm(fingers, axis=-1)
    if (distance[..., 3] < distance[..., 0]).mean() > 0.75:
        out.append("most fingertips lie nearer to the wrist than the bases: order doubtful.")
    return out


@functools.lru_cache(maxsize=4)
def _read(root: Path, part: str) -> dict[int, dict]:
    path = root / part / f"anno_{part}.pickle"
    value = restricted_load(path, NPY_OBJECT, "RHD annotation")
    if not isinstance(value, dict) or not all(isinstance(key, int) for key in value):
        raise SchemaError(f"{path}: must be a dict of picture numbers.")
    return value
