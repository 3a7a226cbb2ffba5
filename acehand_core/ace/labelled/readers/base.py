"""The reader protocol, the recording a reader returns, and checked file access.

A reader lists the recordings under a dataset's folder without opening them, and reads one into
arrays: pictures by index, camera, and labels as stored, with their convention.
``conventions.to_camera`` converts the labels of every dataset. To add a dataset, write a module
with a ``Reader`` class and list it in ``run.READERS``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.settings import setting
from acehand_core.types import CameraPoses, JointsCamera, JointsImage, PerHand, TimestampsNs
from acehand_core.unpickling import load_npy_object
from acehand_core.user_files import read_json, structured

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

#: A mapping in a dataset's file, keyed by name or frame number.
Record = dict[Any, Any]

#: Opens pictures of a VRS recording: path, stream, times in ns. Tests replace it.
OpenFrames = Callable[[Path, str, TimestampsNs], FrameSource]

#: Share of test recordings, as in the paper's table: 72 of 198, 77 of 627.
TEST_SHARE = {"hot3d": 72 / 198, "oakink2": 77 / 627}
VERSION = 1


@dataclass(frozen=True, slots=True)
class Item:
    """One listed recording.

    ``name`` is unique in the dataset, stable, and a safe file name. ``key`` holds what the reader
    needs to find it again; ``group`` is the person, if the dataset names one.
    """

    dataset: str
    name: str
    split: Split
    path: Path
    key: Mapping[str, str] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a reader.

    Attributes:
        open_frames: see ``OpenFrames``; None: ``pictures.VrsImages``.
        pictures: False skips pictures and the packages they need.
    """

    view: str | None = setting(
        None, "camera or image version", metavar="NAME", default_text="the first"
    )
    open_frames: OpenFrames | None = None
    pictures: bool = True


@dataclass(frozen=True, slots=True)
class Convention:
    """MANO convention of a dataset.

    Attributes:
        fingers: "vectors" are 45 rotation vectors, "components" principal components, "rotations"
            15 absolute matrices.
        flat_hand_mean: False if the stored vectors or components exclude the mean pose.
        translation: the translated point: "mano" the model (the wrist is ``J0 + t``), "wrist" the
            wrist, "middle_knuckle" the posed joint 9.
        left_shapedirs_fixed: left betas belong to MANO with repaired left shape directions; None
            if the dataset does not say (read as not repaired).
        frame: of orientation and translation.
    """

    fingers: Literal["vectors", "components", "rotations"]
    flat_hand_mean: bool
    translation: Literal["mano", "wrist", "middle_knuckle"]
    left_shapedirs_fixed: bool | None
    frame: Literal["camera", "world"]


@dataclass(frozen=True, slots=True)
class ManoTrack:
    """MANO labels as stored, slot 0 left, NaN for absent hands; metres, radians.

    ``fingers`` is (T, 2, 45), (T, 2, n) or (T, 2, 15, 3, 3), see ``Convention``.
    ``T_camera_world`` (T, 4, 4) is given for labels in the world frame.
    """

    convention: Convention
    present: Bool[np.ndarray, "T 2"]
    global_orient: Float[np.ndarray, "T 2 3 3"]
    fingers: Float[np.ndarray, "T 2 *pose"]
    betas: Float[np.ndarray, "T 2 10"]
    translation: Float[np.ndarray, "T 2 3"]
    T_camera_world: Float[np.ndarray, "T 4 4"] | None = None

    @classmethod
    def of_vectors(
        cls,
        convention: Convention,
        present: Bool[np.ndarray, "T 2"],
        pose: Float[np.ndarray, "T 2 48"],
        betas: Float[np.ndarray, "T 2 10"],
        translation: Float[np.ndarray, "T 2 3"],
        T_camera_world: Float[np.ndarray, "T 4 4"] | None = None,
    ) -> ManoTrack:
        """Return a track of 16 rotation vectors per hand, the orientation's first."""
        orient = rotations.exp(np.nan_to_num(pose[..., :3]))
        return cls(convention, present, orient, pose[..., 3:], betas, translation, T_camera_world)


@dataclass(frozen=True, slots=True)
class NativeRecording:
    """One recording as stored: T native frames, labelled or not, none repeated.

    Attributes:
        fps: nominal native rate; 30 for a still image.
        size: (width, height).
        frames: the pictures as stored, or None.
        camera: of those pictures, lens distortion included.
        present: hands labelled by MANO or joints.
        mano: MANO labels, or None.
        joints_camera: (T, 2, 21, 3) the dataset's own joints, camera frame, NaN if unlabelled.
        visible: the dataset's own visible share of a hand, 0 to 1, or None. Datasets define it
            differently: kept as stored, a clip uses it only for hands without keypoints (see
            ``convert.hand_motion``).
        T_world_camera: NaN in frames with an unknown camera pose, in which no hand labelled in the
            world frame is ``present``.
        unlabelled_presence: of hands that are not ``present``: 1 known to exist, 0.5 unknown,
            0 absent (the only one taught as absence). None: all 0.
        stored: further arrays with a row per frame, kept with the clip as stored.
        left_out: labels without a picture in a recording with pictures; not in a clip.
        slots: whether left and right are labelled at all.
        still: a still image.
        undistort: the paper undistorts this dataset.
        plain: unlabelled video, referenced by a clip rather than copied.
        licences: of the data.
        findings: results of checks on reading, one sentence each.
    """

    item: Item
    timestamps_ns: TimestampsNs
    fps: float
    size: tuple[int, int]
    frames: FrameSource | None
    camera: Camera | None
    present: Bool[np.ndarray, "T 2"]
    mano: ManoTrack | None = None
    joints_camera: JointsCamera | None = None
    joints_image: JointsImage | None = None
    visible: PerHand | None = None
    T_world_camera: CameraPoses | None = None
    still: bool = False
    slots: tuple[bool, bool] = (True, True)
    licences: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    unlabelled_presence: PerHand | None = None
    stored: Mapping[str, np.ndarray] = field(default_factory=dict)
    left_out: int = 0
    undistort: bool = False
    plain: bool = False


@runtime_checkable
class Reader(Protocol):
    """A dataset on disk in its native layout.

    ``name`` is its name on the command line, ``title`` its published name, ``views`` the cameras or
    image versions, default first.
    """

    name: str
    title: str

    @property
    def views(self) -> tuple[str, ...]: ...

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List every recording with labels, in a fixed order.

        Raises InputError, with the expected layout, when ``root`` is not such a dataset.
        """
        ...

    def sources(self, item: Item) -> Sequence[Path]:
        """Return the files and folders of a recording, to detect changes."""
        ...

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one recording. Raises SchemaError or InputError with the file named."""
        ...


def read_text(path: Path) -> str:
    """Return a text file's content. Raises InputError with the file named."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}).") from error


def read_numbers(path: Path, count: int) -> np.ndarray:
    """Return ``count`` numbers separated by white space. Raises SchemaError for another count."""
    values = numbers(read_text(path).split(), str(path))
    if len(values) != count:
        raise SchemaError(f"{path}: {len(values)} numbers, {count} are needed.")
    return values


def get(value: Any, key: str, where: str) -> Any:
    """Return an entry of a mapping. Raises SchemaError that names the key and those present."""
    if key not in mapping(value, f"{where}: {key!r}"):
        present = ", ".join(sorted(map(str, value))[:20])
        raise SchemaError(f"{where}: {key!r} is missing; it has: {present or 'nothing'}.")
    return value[key]


def numbers(value: Any, where: str) -> np.ndarray:
    """Return float64 numbers of any shape, NaN included. Raises SchemaError with ``where``."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: not an array of numbers ({error}).") from error


def has_shape(values: np.ndarray, shape: tuple[int | None, ...]) -> bool:
    """Return whether an array has a shape; None is any length of an axis."""
    return len(values.shape) == len(shape) and all(
        length in (None, actual) for actual, length in zip(values.shape, shape, strict=True)
    )


def array(value: Any, shape: int | tuple[int | None, ...], where: str) -> np.ndarray:
    """Return finite float64 numbers of a shape (see ``has_shape``). Raises SchemaError.

    A plain count accepts any nesting and returns one axis.
    """
    values = numbers(value, where)
    if isinstance(shape, int):
        values, shape = values.ravel(), (shape,)
    if not has_shape(values, shape):
        valid = " x ".join("any" if n is None else str(n) for n in shape) or "one number"
        raise SchemaError(f"{where}: has shape {values.shape}; {valid} is needed.")
    if not np.isfinite(values).all():
        raise SchemaError(f"{where}: holds NaN or infinite numbers.")
    return values


def entry(value: Any, key: str, shape: int | tuple[int | None, ...], where: str) -> np.ndarray:
    """Return the ``array`` under a key of a mapping. Raises SchemaError with ``where`` and key."""
    return array(get(value, key, where), shape, f"{where}: {key}")


def integer(value: Any, where: str) -> int:
    """Return a whole number. Raises SchemaError with ``where`` for anything else."""
    number = float(array(value, 1, where)[0])
    if not number.is_integer():
        raise SchemaError(f"{where}: a whole number is needed, not {number}.")
    return int(number)


def mapping(value: Any, where: str) -> Record:
    """Return a mapping as it is. Raises SchemaError with ``where`` for anything else."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where}: a mapping is needed, not {type(value).__name__}.")
    return value


def read_npy_dict(path: Path, format_name: str) -> Record:
    """Return the dict in a pickled ``.npy``, read by the restricted unpickler."""
    value = load_npy_object(path, format_name)
    if value.shape != () or not isinstance(value.item(), dict):
        raise SchemaError(f"{path}: this {format_name} does not hold one dict.")
    return value.item()


def pinhole(K: Float[np.ndarray, "3 3"], size: tuple[int, int]) -> Camera:
    """Return the pinhole camera of an intrinsic matrix for (width, height) ``size``."""
    return Camera("pinhole", *size, float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]))


def frame_times(numbers: Int[np.ndarray, "T"], rate_hz: float) -> TimestampsNs:
    """Return the times of numbered frames; the first is at 0."""
    return np.round((numbers - numbers[0]) * 1e9 / rate_hz).astype(np.int64)


def unknown_unless(labelled: Bool[np.ndarray, "T"]) -> PerHand:
    """Return ``unlabelled_presence``: 0.5 for both hands of an unlabelled frame."""
    return np.where(labelled, 0, 0.5)[:, None].repeat(2, 1).astype(np.float32)


def need_items(items: list[Item], root: Path, title: str, looked_for: str) -> list[Item]:
    """Return the items. Raises InputError, with the expected layout, if there are none."""
    if not items:
        raise InputError(f"{root}: this does not look like {title}; no {looked_for}.")
    return items


def subfolders(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, sorted."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def need_folder(root: Path, choices: Sequence[str], title: str) -> Path:
    """Return the first folder of ``choices`` under ``root``. Raises InputError with all of them."""
    for name in choices:
        if (root / name).is_dir():
            return root / name
    looked = ", ".join(f"{name}/" for name in choices)
    raise InputError(f"{root}: this does not look like {title}; it has none of {looked}.")


def safe_name(*parts: str) -> str:
    """Return a file name made of parts: letters, digits, ``_``, ``-`` and ``.`` stay."""
    text = "_".join(part for part in parts if part)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)


def hashed_split(recording: str, dataset: str) -> Split:
    """Return a recording's split from a hash of its name, independent of other recordings.

    The paper splits HOT3D by recording and OakInk2 by sequence but does not name them; the shares
    are the paper's.
    """
    digest = hashlib.sha256(f"acehand split {VERSION} {dataset} {recording}".encode()).digest()
    return "test" if int.from_bytes(digest[:8]) / 2**64 < TEST_SHARE[dataset] else "train"


def read_split_file(path: Path, items: list[Item]) -> dict[str, Split]:
    """Return item name to split from a user's JSON: split to a list of item names.

    Raises: SchemaError for another form; InputError for an unknown or repeated name.
    """
    content = structured(dict[Split, tuple[str, ...]], read_json(path), path)
    known = {item.name for item in items}

    split_of: dict[str, Split] = {}
    for split, names in content.items():
        for name in names:
            if name not in known:
                raise InputError(f"{path}: no recording {name!r}; {nearest(name, known)}")
            if name in split_of:
                raise InputError(f"{path}: {name!r} is listed twice.")
            split_of[name] = split

    return split_of
