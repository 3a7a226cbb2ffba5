"""What a store of clips holds: one recording (or one image) per clip, hands, camera, and flags.

numpy only. A store is one dataset and one split. docs/formats.md describes the files.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from acehand_core.atomic import atomic_path
from acehand_core.errors import SchemaError, nearest
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource, HandModelName, HandMotion, Recording


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON that appears whole or not at all. Raises OutputError."""
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(value, indent=1, default=plain) + "\n", "utf-8")


def read_json(path: Path) -> Any:
    """Read JSON. Raises SchemaError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: not readable as JSON: {error}.") from error


def plain(value: Any) -> Any:
    """Return what JSON can hold of a setting: numbers of numpy, else text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


STORE_FORMAT = "acehand-clips"
CLIP_FORMAT = "acehand-clip"
VERSION = 1

#: ``made_by`` of stores of published datasets.
CONVERTED_BY = "acehand data convert"
#: Datasets whose pictures are rendered: our own and the Rendered Hand Pose dataset.
RENDERED_DATASETS = ("synthetic", "rhd")

Kind = Literal["video", "image"]
Media = Literal["video", "image", "reference", "none"]
Split = Literal["train", "val", "test", "all"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,180}")


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the labels of a clip may teach.

    ``rotations``, ``shape``, ``translation``: parameters of the hand model. ``joints``: 3D
    keypoints. ``anchors``: keypoints in the image. ``presence``: whether a hand is there.
    ``camera``: intrinsics, hence rays. ``pinhole_fit``: a pinhole may be fitted to the rays (never
    for fisheye pictures). ``slots``: which of left and right; an unlabelled slot teaches nothing,
    not even absence.
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

    def __post_init__(self) -> None:
        for name in _names(Supervision):
            value = getattr(self, name)
            flags = value if name == "slots" else (value,)
            if not all(isinstance(flag, bool) for flag in flags):
                raise SchemaError(f"supervision {name} is {value!r}; true or false is needed.")
        if len(self.slots) != 2:
            raise SchemaError(f"supervision slots {self.slots}: left and right are needed.")


@dataclass(frozen=True, slots=True)
class Reference:
    """Frames ``first`` to ``stop - 1`` of the user's own video file, which is not copied.

    ``path`` is absolute or relative to the store; ``sha256`` is the file's content.
    """

    path: str
    sha256: str
    first: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.stop:
            raise SchemaError(
                f"{self.path}: frames {self.first} to {self.stop}: none; the first must be 0 or "
                "more and below the stop."
            )


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """Everything about a clip but its arrays; the content of ``clip.json``.

    Attributes:
        id: unique in the store; letters, digits, ``.``, ``_``, ``-`` (see ``clip_id``).
        frames: T of the hands; 1 for an image.
        camera: of the stored pictures, at ``width`` x ``height``; None where not known.
        mean_pose_included: MANO means are in ``hand_pose``; always true here, said for readers.
        source: where it came from, as the dataset names it: subject, sequence, view, device,
            "native_fps", files, and what the conversion changed.
        made_from: content hash of the input and the settings; equal means: nothing to redo.
        files: SHA-256 of each file of the folder but ``clip.json``.
        sizes: bytes of each of them; empty in a store written before they were recorded.
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

    def __post_init__(self) -> None:
        check_name(self.id, "clip")
        check_name(self.dataset, "dataset")

        kinds = {"kind": Kind, "split": Split, "media": Media, "hand_model": HandModelName}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                valid = nearest(str(getattr(self, name)), get_args(kind))
                raise SchemaError(f"clip {self.id}: {name} {getattr(self, name)!r}; {valid}")

        if self.frames < 1 or self.width < 1 or self.height < 1 or not self.fps > 0:
            raise SchemaError(
                f"clip {self.id}: {self.frames} frames of {self.width} x {self.height} at "
                f"{self.fps} fps; all must be above 0."
            )

        if self.kind == "image" and self.frames != 1:
            raise SchemaError(f"clip {self.id}: an image has one frame, not {self.frames}.")
        if (self.media == "reference") != (self.reference is not None):
            raise SchemaError(f"clip {self.id}: media {self.media!r} and its reference disagree.")
        if self.reference and self.reference.stop - self.reference.first != self.frames:
            raise SchemaError(f"clip {self.id}: the reference is not {self.frames} frames long.")

        size = (self.width, self.height)
        if self.camera and (self.camera.width, self.camera.height) != size:
            raise SchemaError(
                f"clip {self.id}: a camera of {self.camera.width} x {self.camera.height} for "
                f"pictures of {self.width} x {self.height}; rescale it first."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``clip.json``."""
        fields = {name: getattr(self, name) for name in _names(ClipInfo)}
        fields["camera"] = self.camera.to_json() if self.camera else None
        fields["supervision"] = dataclasses.asdict(self.supervision)
        fields["reference"] = dataclasses.asdict(self.reference) if self.reference else None
        return {"format": CLIP_FORMAT, "version": VERSION, **fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> ClipInfo:
        """Return what ``to_json`` wrote. Raises SchemaError."""
        fields = dict(known_fields(value, CLIP_FORMAT, _names(cls), where))
        try:
            camera, reference = fields["camera"], fields["reference"]
            flags = dict(fields["supervision"])
            flags["slots"] = tuple(flags["slots"])
            fields["supervision"] = Supervision(**flags)
            fields["camera"] = Camera.from_json(camera, where) if camera else None
            fields["reference"] = Reference(**reference) if reference else None
            return cls(**fields)
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"{where}: not a description of a clip: {error!r}.") from error


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The content of ``store.json``: which dataset and split, who made it how, and its licence."""

    dataset: str
    split: Split
    made_by: str
    license: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pictures(self) -> Literal["real", "synthetic", "unknown"]:
        """Whether its clips were recorded or rendered; "unknown" for a store of another maker."""
        if self.dataset in RENDERED_DATASETS:
            return "synthetic"
        return "real" if self.made_by == CONVERTED_BY else "unknown"

    def __post_init__(self) -> None:
        check_name(self.dataset, "dataset")
        if self.split not in get_args(Split):
            raise SchemaError(f"split {self.split!r}; {nearest(self.split, get_args(Split))}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``store.json``."""
        fields = {name: getattr(self, name) for name in _names(StoreInfo)}
        return {"format": STORE_FORMAT, "version": VERSION, **fields}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> StoreInfo:
        """Return what ``to_json`` wrote. Raises SchemaError."""
        try:
            return cls(**known_fields(value, STORE_FORMAT, _names(cls), where))
        except TypeError as error:
            raise SchemaError(f"{where}: not a description of a store: {error!r}.") from error


@dataclass(frozen=True, slots=True)
class Clip:
    """A clip as read: its description, hands, pictures by index, and further arrays by name.

    ``frames`` is None where ``info.media`` is "none". ``motion.joints_image`` are the labelled
    keypoints in pixels of the stored picture (NaN where none); ``motion.visible`` is the share of
    the keypoints inside it, hidden or not.
    """

    info: ClipInfo
    motion: HandMotion
    frames: FrameSource | None

    def recording(self) -> Recording:
        """Return the clip as a recording, as trackers take it."""
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
        )


def clip_id(*parts: str | int) -> str:
    """Return an identifier from a dataset's own names: joined by ``__``, other signs become ``-``.

    ``clip_id("s05", "box_grab_01", 0)`` is ``s05__box_grab_01__0``.
    """
    return "__".join(re.sub(r"[^A-Za-z0-9._-]", "-", str(part)) for part in parts)


def check_name(name: str, what: str) -> None:
    """Raise SchemaError unless the name can be a folder's everywhere."""
    if not _NAME.fullmatch(name):
        raise SchemaError(
            f"{what} name {name!r}: letters, digits, '.', '_' and '-' are valid, beginning with a "
            "letter or digit; see clip_id."
        )


def known_fields(
    value: Mapping[str, Any], kind: str, names: tuple[str, ...], where: str
) -> dict[str, Any]:
    """Return the fields of a JSON object of ours. Raises SchemaError for another kind or names."""
    if not isinstance(value, Mapping) or value.get("format") != kind:
        raise SchemaError(f"{where}: not of format {kind!r}.")
    if value.get("version") != VERSION:
        raise SchemaError(f"{where}: version {value.get('version')}; {VERSION} is needed.")
    fields = {key: entry for key, entry in value.items() if key not in ("format", "version")}
    for key in fields:
        if key not in names:
            raise SchemaError(f"{where}: unknown entry {key!r}; {nearest(key, names)}")
    return fields


def check_extra(name: str, arrays: Mapping[str, np.ndarray], frames: int) -> None:
    """Raise SchemaError unless all arrays of an extra file have one row per frame."""
    check_name(name, "extra file")
    for key, array in arrays.items():
        if array.dtype.hasobject or len(array) != frames:
            raise SchemaError(
                f"extra {name!r}: array {key!r} {array.dtype} {array.shape}; plain numbers with "
                f"{frames} rows, one per frame, are needed."
            )


def _names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))
