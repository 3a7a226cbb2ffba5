"""H2O: two hands and objects in the camera frame; one text file per frame and kind of label.

Layout: ``subject<n>/<scene>/<index>/cam<0..4>/{rgb,cam_pose,hand_pose,hand_pose_mano}/000000.*``
and ``cam_intrinsics.txt``. cam4 is the egocentric camera; all pictures are pinhole ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.media import ImageFiles
from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.pictures import image_size, numbered_images, rescaled_to
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera

CONVENTION = base.Convention("vectors", True, "mano", False, "camera")
_FPS = 30.0
_PER_HAND = 62  # flag, translation 3, pose 48, betas 10
_MANO_FOLDERS = ("hand_pose_mano", "hand_pose_MANO", "hand_pose_mano_v1_1")


class H2OReader:
    """``Reader`` of H2O. Test is subject 4, as in the paper and the authors' lists."""

    name = "h2o"
    title = "H2O"
    views = ("cam4", "cam0", "cam1", "cam2", "cam3")

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List recordings: one folder of a subject, scene and index."""
        view = options.view or self.views[0]
        subjects = [p for p in base.subfolders(root) if p.name.startswith("subject")]
        if not subjects:
            raise InputError(f"{root}: this does not look like H2O; no subject1/ .. subject4/.")

        items = []
        scenes = [(subject, scene) for subject in subjects for scene in base.subfolders(subject)]
        for subject, scene in scenes:
            split: base.Split = "train"
            if subject.name == "subject4":
                split = "test"
            elif subject.name == "subject3" and scene.name in ("k2", "o1", "o2"):
                split = "val"
            for index in base.subfolders(scene):
                folder = index / view
                if (folder / "hand_pose").is_dir() or _mano_folder(folder) is not None:
                    name = base.safe_name(subject.name, scene.name, index.name, view)
                    key = {"view": view}
                    items.append(base.Item(self.name, name, split, folder, key, subject.name))

        return items

    def sources(self, item: base.Item) -> Sequence[Path]:
        names = ("rgb", "rgb256", "cam_pose", "hand_pose", *_MANO_FOLDERS, "cam_intrinsics.txt")
        return [item.path / name for name in names]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        mano_folder, joint_folder = _mano_folder(item.path), item.path / "hand_pose"
        labels = _numbered_text(mano_folder) | _numbered_text(joint_folder)
        images = numbered_images(item.path / "rgb") or numbered_images(item.path / "rgb256")
        numbers = sorted(images) if images else sorted(labels)
        left_out = len(set(labels) - set(numbers))
        if not numbers:
            raise InputError(f"{item.path}: neither pictures nor labels.")

        hands = _read_all(mano_folder, numbers, 2 * _PER_HAND).reshape(-1, 2, _PER_HAND)
        joints = _read_all(joint_folder, numbers, 128).reshape(-1, 2, 64)
        has_mano, has_joints = hands[..., 0] == 1, joints[..., 0] == 1

        values = map(float, base.read_numbers(item.path / "cam_intrinsics.txt", 6))
        fx, fy, cx, cy, width, height = values
        camera = Camera("pinhole", round(width), round(height), fx, fy, cx, cy)
        findings: list[str] = []
        if images:
            camera = rescaled_to(camera, image_size(images[numbers[0]]), findings)
        else:
            findings.append("no pictures; every file of labels is a frame.")
        if differ := int((has_joints != has_mano).sum()):
            findings.append(f"{differ} hands have joints or MANO but not both.")

        unlabelled = len(set(images) - set(labels)) if images else 0
        findings.append(f"{unlabelled} of {len(numbers)} pictures have no file of labels.")
        if left_out:
            findings.append(f"{left_out} labels have no picture and are left out.")
        findings.append("30 frames per second are assumed: no file states the rate.")

        T_world_camera = None
        files = _numbered_text(item.path / "cam_pose")
        missing = sum(n not in files for n in numbers)
        if missing:
            findings.append(
                f"{missing} of {len(numbers)} frames have no file in cam_pose: no camera poses are "
                "used."
            )
        else:
            T_world_camera = np.stack(
                [base.read_numbers(files[n], 16).reshape(4, 4) for n in numbers]
            )

        return base.NativeRecording(
            item=item,
            timestamps_ns=base.frame_times(np.array(numbers), _FPS),
            fps=_FPS,
            size=(camera.width, camera.height),
            frames=ImageFiles([images[n] for n in numbers]) if images else None,
            camera=camera,
            present=has_mano | has_joints,
            mano=base.ManoTrack.of_vectors(
                CONVENTION, has_mano, hands[..., 4:52], hands[..., 52:62], hands[..., 1:4]
            ),
            joints_camera=np.where(
                has_joints[..., None, None], joints[..., 1:].reshape(-1, 2, 21, 3), np.nan
            ),
            T_world_camera=T_world_camera,
            licences=("H2O: non-commercial research, https://taeinkwon.com/projects/h2o",),
            findings=tuple(findings),
            # The flag 0 means "not annotated", not "no hand".
            unlabelled_presence=np.full(has_mano.shape, 0.5, np.float32),
            left_out=left_out,
        )


def _mano_folder(folder: Path) -> Path | None:
    return next((folder / name for name in _MANO_FOLDERS if (folder / name).is_dir()), None)


def _numbered_text(folder: Path | None) -> dict[int, Path]:
    if folder is None:
        return {}
    files = (p for p in folder.glob("*.txt") if p.stem.isdecimal())
    return dict(sorted((int(p.stem), p) for p in files))


def _read_all(folder: Path | None, numbers: list[int], count: int) -> np.ndarray:
    """Return a row of numbers per frame; NaN without a file."""
    files = _numbered_text(folder)
    values = np.full((len(numbers), count), np.nan)
    for row, number in enumerate(numbers):
        if number in files:
            values[row] = base.read_numbers(files[number], count)
    return values
