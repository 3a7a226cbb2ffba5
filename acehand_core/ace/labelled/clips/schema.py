"""Contents of a store of clips: one recording or image per clip, with hands, camera and flags.

A store is one dataset and one split. docs/formats.md describes the files. Needs numpy alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import (
    Depth,
    FrameSource,
    HandModelName,
    HandMotion,
    ObjectTrack,
    Recording,
    View,
)
from acehand_core.types import RigidTransform
from acehand_core.user_files import Valid, structured, without_header

STORE_FORMAT = "acehand-clips"
CLIP_FORMAT = "acehand-clip"
VERSION = 1

#: ``made_by`` of stores of published datasets.
CONVERTED_BY = "acehand data convert"
#: Datasets with rendered pictures.
RENDERED_DATASETS = ("synthetic", "rhd")

Kind = Literal["video", "image"]
Media = Literal["video", "image", "reference", "none"]
Split = Literal["train", "val", "test", "all"]
_Pose = Annotated[
    tuple[tuple[float, ...], ...],
    Valid("4 x 4 numbers", lambda rows: [len(row) for row in rows] == [4] * 4),
]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically. Raises OutputError."""
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(value, indent=1, default=plain) + "\n", "utf-8")


def plain(value: Any) -> Any:
    """Return a JSON form of a setting: numpy values as numbers, others as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@dataclass(frozen=True, slots=True)
class Supervision:
    """Labels of a clip that may be trained on.

    ``rotations``, ``shape``, ``translation``: parameters of the hand model. ``joints``: 3D
    keypoints. ``anchors``: keypoints in the image. ``presence``: existence of a hand. ``camera``:
    intrinsics, hence rays. ``pinhole_fit``: a pinhole may be fitted to the rays (never for fisheye
    pictures). ``slots``: left and right; an unlabelled slot teaches nothing, not even absence.
    """

    rotations: bool = True
    shape: bool = True
    translation: bool = True
    joints: bool = True
    anchors: bool = True
    presence: bool = True
    camera: bool = True
    pinhole_fit: bool = True
    slots: tuple[bool, bool] = (True, True)


@dataclass(frozen=True, slots=True)
class Reference:
    """Frames ``first`` to ``stop - 1`` of an external video file, not copied into the store.

    ``path`` is absolute or relative to the store; ``sha256`` is the file's hash.
    """

    path: str
    sha256: str
    first: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop:
            raise SchemaError(
                f"{self.path}: frames {self.first} to {self.stop}; 0 <= first < stop is needed."
            )


@dataclass(frozen=True, slots=True)
class Mounted:
    """A further camera of a rig, or a depth camera, fixed to the clip's camera.

    ``pose``: rows of its 4 x 4 pose in the clip's camera, metres. ``grey``: of its pictures.
    ``sigma_per_m``: of depth, see ``Depth``.
    """

    camera: Camera
    pose: _Pose
    grey: bool = False
    sigma_per_m: float = 0.0

    @property
    def T_camera_view(self) -> RigidTransform:
        """The pose as an array."""
        return np.array(self.pose)


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """Metadata of a clip; the content of ``clip.json``.

    Attributes:
        id: unique in the store; letters, digits, ``.``, ``_``, ``-`` (see ``clip_id``).
        frames: T of the hands; 1 for an image.
        camera: of the stored pictures, at ``width`` x ``height``; None if unknown.
        mean_pose_included: ``hand_pose`` includes MANO's mean pose; always true.
        source: the dataset's own names (subject, sequence, view, device), "native_fps", files and
            the changes of the conversion.
        made_from: hash of input and settings; a clip with an equal one is not made again.
        files: SHA-256 of each file in the folder except ``clip.json``.
        sizes: their bytes; empty in older stores.
        views: the further cameras of a rig by name, with pictures of their cameras' sizes.
        depth: the camera of ``sensor_depth.npz``, or None.
    """

    id: str
    dataset: str
    split: Split
    kind: Kind
    frames: int
    fps: float
    width: int
    height: int
    camera: Camera | None
    hand_model: HandModelName
    supervision: Supervision = field(default_factory=Supervision)
    media: Media = "none"
    reference: Reference | None = None
    left_shapedirs_fixed: bool = False
    mean_pose_included: bool = True
    source: Mapping[str, Any] = field(default_factory=dict)
    made_from: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    views: Mapping[str, Mounted] = field(default_factory=dict)
    depth: Mounted | None = None

    def __post_init__(self) -> None:
        check_name(self.id, "clip")
        check_name(self.dataset, "dataset")
        for name in self.views:
            check_name(name, "view")

        size, camera, reference = (self.width, self.height), self.camera, self.reference
        wrong = None
        if self.frames < 1 or min(size) < 1 or not self.fps > 0:
            wrong = (
                f"{self.frames} frames of {self.width} x {self.height} at {self.fps} fps; all "
                "must be above 0"
            )
        elif self.kind == "image" and self.frames != 1:
            wrong = f"an image has one frame, not {self.frames}"
        elif (self.media == "reference") != (reference is not None):
            wrong = f"media {self.media!r} and its reference disagree"
        elif reference and reference.stop - reference.first != self.frames:
            wrong = f"the reference is not {self.frames} frames long"
        elif camera and (camera.width, camera.height) != size:
            wrong = (
                f"a camera of {camera.width} x {camera.height} for pictures of {self.width} x "
                f"{self.height}; rescale it first"
            )

        if wrong:
            raise SchemaError(f"clip {self.id}: {wrong}.")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``clip.json``."""
        fields = dataclasses.asdict(self)
        fields["camera"] = self.camera.to_json() if self.camera else None
        for name in ("views", "depth"):  # unknown to older versions
            if not fields[name]:
                del fields[name]
        return {"format": CLIP_FORMAT, "version": VERSION, **fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> ClipInfo:
        """Return the clip of a ``clip.json``. Raises SchemaError."""
        return structured(cls, without_header(value, CLIP_FORMAT, VERSION, where), where)


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The content of ``store.json``: dataset, split, maker, licence and settings."""

    dataset: str
    split: Split
    made_by: str
    license: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pictures(self) -> Literal["real", "synthetic", "unknown"]:
        """Recorded or rendered; "unknown" for a store of another maker."""
        if self.dataset in RENDERED_DATASETS:
            return "synthetic"
        return "real" if self.made_by == CONVERTED_BY else "unknown"

    def __post_init__(self) -> None:
        check_name(self.dataset, "dataset")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``store.json``."""
        return {"format": STORE_FORMAT, "version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> StoreInfo:
        """Return the store of a ``store.json``. Raises SchemaError."""
        return structured(cls, without_header(value, STORE_FORMAT, VERSION, where), where)


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip in memory: metadata, hands and frames.

    ``frames`` is None if ``info.media`` is "none". ``motion.joints_image`` are the labelled
    keypoints in pixels of the stored picture, NaN without a label; ``motion.visible`` is the share
    of keypoints inside the picture, occluded or not. ``views`` and ``depth`` are what the other
    cameras of a rig saw.
    """

    info: ClipInfo
    motion: HandMotion
    frames: FrameSource | None
    views: tuple[View, ...] = ()
    depth: Depth | None = None
    objects: ObjectTrack | None = None

    def recording(self) -> Recording:
        """Return the clip as a tracker's input."""
        return Recording(
            source=f"{self.info.dataset}/{self.info.id}",
            sha256=None,
            timestamps_ns=self.motion.timestamps_ns,
            fps=self.info.fps,
            width=self.info.width,
            height=self.info.height,
            frames=self.frames,
            camera=self.info.camera,
            T_world_camera=self.motion.T_world_camera,
            name=f"{self.info.dataset}/{self.info.id}",
            views=self.views,
            depth=self.depth,
            objects=self.objects,
        )


def clip_id(*parts: str | int) -> str:
    """Return the parts joined by ``__``, invalid characters as ``-``.

    ``clip_id("s05", "box_grab_01", 0)`` is ``s05__box_grab_01__0``.
    """
    return "__".join(re.sub(r"[^A-Za-z0-9._-]", "-", str(part)) for part in parts)


def check_name(name: str, what: str) -> None:
    """Raise SchemaError unless the name is a portable folder name."""
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"{what} name {name!r}; valid: letters, digits, '.', '_' and '-', starting with a "
            "letter or digit."
        )
