"""ARCTIC: Vicon-fitted MANO of both hands in the world frame, one egocentric and 8 fixed cameras.

Layout: ``raw_seqs/<subject>/<sequence>.{mano,egocam.dist}.npy``, ``meta/misc.json`` and optionally
``images/<subject>/<sequence>/<view>/00001.jpg``. An image number is its row of labels plus the
subject's ``ioi_offset``; images outside the rows are unlabelled frames. Pictures of view 0 are
distorted and keep their lens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips.media import ImageFiles
from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.pictures import image_size, numbered_images, rescaled_to
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.types import SIDES
from acehand_core.user_files import read_json

CONVENTION = base.Convention("vectors", False, "mano", False, "world")
_FPS = 30.0
_TEST_SUBJECT = "s05"


class ArcticReader:
    """``Reader`` of ARCTIC. Test is subject s05, as in the paper; ARCTIC's site calls it val."""

    name = "arctic"
    title = "ARCTIC"
    views = tuple(str(view) for view in range(9))

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List sequences with labels; those of s03 are withheld by the authors."""
        labels = base.need_folder(
            root, ("raw_seqs", "data/raw_seqs", "arctic_data/data/raw_seqs"), self.title
        )
        view = options.view or "0"
        items = []
        for subject in base.subfolders(labels):
            for path in sorted(subject.glob("*.mano.npy")):
                sequence = path.name.removesuffix(".mano.npy")
                split: base.Split = "test" if subject.name == _TEST_SUBJECT else "train"
                name = base.safe_name(subject.name, sequence, f"view{view}")
                key = {"subject": subject.name, "sequence": sequence, "view": view}
                items.append(base.Item(self.name, name, split, labels.parent, key, subject.name))
        return items

    def sources(self, item: base.Item) -> Sequence[Path]:
        subject, sequence, view = (item.key[k] for k in ("subject", "sequence", "view"))
        labels = item.path / "raw_seqs" / subject
        return [
            labels / f"{sequence}.mano.npy",
            labels / f"{sequence}.egocam.dist.npy",
            item.path / "meta" / "misc.json",
            item.path / "images" / subject / sequence / view,
            item.path / "cropped_images" / subject / sequence / view,
        ]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        subject, sequence, view = (item.key[k] for k in ("subject", "sequence", "view"))
        path = item.path / "raw_seqs" / subject / f"{sequence}.mano.npy"
        labels, where = base.read_npy_dict(path, "ARCTIC .mano.npy"), str(path)
        sides = [_read_side(base.get(labels, side, where), f"{where} {side}") for side in SIDES]
        count = min(len(pose) for pose, *_ in sides)
        path = item.path / "meta" / "misc.json"
        misc = base.get(read_json(path), subject, str(path))
        camera, T_camera_world = _camera(item.path, subject, sequence, int(view), misc, count)
        count = min(count, len(T_camera_world))
        rows, source, size, findings = _pictures(item, misc, count)
        labelled = (rows >= 0) & (rows < count)

        if size is not None:
            camera = rescaled_to(camera, size, findings)
        if len(sides[0][0]) != len(sides[1][0]):
            findings.append("the two hands have different numbers of rows; the shorter counts.")
        findings.append("30 frames per second are assumed: no file states the rate.")

        pose, translation, betas = (
            _at_rows(np.stack([side[k][:count] for side in sides], 1), rows) for k in range(3)
        )
        present = np.isfinite(pose).all(-1) & np.isfinite(translation).all(-1)
        if view == "0":
            T_camera_world = _at_rows(T_camera_world, rows)
        else:  # a fixed camera has a pose in unlabelled frames too
            T_camera_world = np.repeat(T_camera_world[:1], len(rows), axis=0)

        return base.NativeRecording(
            item=item,
            timestamps_ns=base.frame_times(rows, _FPS),
            fps=_FPS,
            size=(camera.width, camera.height),
            frames=source,
            camera=camera,
            mano=base.ManoTrack.of_vectors(
                CONVENTION, present, pose, betas, translation, T_camera_world
            ),
            present=present,
            T_world_camera=frames.inverse(T_camera_world),
            licences=("ARCTIC: non-commercial research, https://arctic.is.tue.mpg.de",),
            findings=tuple(findings),
            unlabelled_presence=base.unknown_unless(labelled),
            left_out=count - int(labelled.sum()),
            undistort=True,
        )


def _at_rows(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the values of these rows, NaN for missing rows."""
    inside = (rows >= 0) & (rows < len(values))
    chosen = np.full((len(rows), *values.shape[1:]), np.nan)
    chosen[inside] = values[rows[inside]]
    return chosen


def _read_side(side: object, where: str) -> tuple[np.ndarray, ...]:
    """Return pose (48), translation and betas per row; NaN is missing."""
    parts = []
    for key, width in (("rot", 3), ("pose", 45), ("trans", 3)):
        values = base.numbers(base.get(side, key, where), f"{where} {key}")
        base.array(np.nan_to_num(values), (None, width), f"{where} {key}")
        parts.append(values)
    rot, pose, translation = parts
    if not len(rot) == len(pose) == len(translation):
        raise InputError(f"{where}: rot, pose and trans differ in length.")
    shape = base.numbers(base.get(side, "shape", where), f"{where} shape")
    if shape.size == 10:
        betas = np.tile(base.array(shape, 10, f"{where} shape"), (len(rot), 1))
    else:
        betas = base.array(shape, (len(rot), 10), f"{where} shape")
    return np.concatenate([rot, pose], axis=1), translation, betas


def _camera(
    data: Path, subject: str, sequence: str, view: int, misc: base.Record, count: int
) -> tuple[Camera, np.ndarray]:
    """Return a view's camera and ``T_camera_world`` per row of labels."""
    where = f"{data / 'meta' / 'misc.json'} {subject} view {view}"

    def of_view(name: str, index: int) -> Any:
        values = base.get(misc, name, where)
        listed = isinstance(values, list | tuple) or getattr(values, "ndim", 0) > 0
        if not listed or index >= len(values):
            raise SchemaError(f"{where} {name}: a list with an entry {index} is needed.")
        return values[index]

    size = base.array(of_view("image_size", view), 2, f"{where} image_size")
    width, height = (base.integer(side, f"{where} image_size") for side in size)
    if view > 0:
        K = base.array(of_view("intris_mat", view - 1), (3, 3), f"{where} intris_mat")
        pose = base.array(of_view("world2cam", view - 1), (4, 4), f"{where} world2cam")
        return base.pinhole(K, (width, height)), np.broadcast_to(pose, (count, 4, 4)).copy()
    path = data / "raw_seqs" / subject / f"{sequence}.egocam.dist.npy"
    values = base.read_npy_dict(path, "ARCTIC .egocam.dist.npy")
    lens = base.entry(values, "dist8", 8, str(path))  # in OpenCV's order, as is Camera's
    R = base.entry(values, "R_k_cam_np", (None, 3, 3), str(path))
    t = base.entry(values, "T_k_cam_np", 3 * len(R), str(path)).reshape(-1, 3)
    camera = base.pinhole(base.entry(values, "intrinsics", (3, 3), str(path)), (width, height))
    camera = replace(camera, model="brown_conrady", distortion=tuple(map(float, lens)))
    return camera, frames.rigid(R, t)


def _pictures(
    item: base.Item, misc: base.Record, count: int
) -> tuple[np.ndarray, ImageFiles | None, tuple[int, int] | None, list[str]]:
    """Return each picture's row of labels, the pictures, their size and findings.

    Unlabelled pictures have a row below 0 or from ``count`` on. Without pictures, every row of
    labels is a frame.
    """
    subject, sequence, view = (item.key[k] for k in ("subject", "sequence", "view"))
    where = f"{item.path / 'meta' / 'misc.json'} {subject}"
    offset = base.integer(base.get(misc, "ioi_offset", where), f"{where} ioi_offset")

    # For view 0 cropped_images holds whole pictures, made smaller.
    for name in ("images", "cropped_images") if view == "0" else ("images",):
        folder = item.path / name / subject / sequence / view
        images = numbered_images(folder)
        if not images:
            continue
        rows, paths = np.array(list(images)) - offset, list(images.values())
        labelled = int(((rows >= 0) & (rows < count)).sum())
        if not labelled:
            raise InputError(
                f"{folder}: no picture has a row of labels; {len(images)} pictures from number "
                f"{min(images)}, offset {offset}, {count} rows."
            )
        findings = [
            f"{len(images)} pictures, {count} rows of labels, offset {offset}: {labelled} match, "
            f"{len(images) - labelled} pictures have no label, {count - labelled} rows no picture."
        ]
        if (np.diff(rows) != 1).any():
            findings.append(f"{int((np.diff(rows) - 1).sum())} pictures are missing in between.")
        return rows, ImageFiles(paths), image_size(paths[0]), findings

    return np.arange(count), None, None, ["no pictures; every row of labels is a frame."]
