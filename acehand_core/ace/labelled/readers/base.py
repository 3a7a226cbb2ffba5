"""What a reader of a dataset offers, what it returns for one recording, and how it reads files.

A reader lists the recordings under a dataset's folder without opening them, and reads one into
arrays: the pictures by index, the camera, and the labels as stored in the files, with the
conventions that say what they mean. ``conventions.to_camera`` does the rest for all of them. To add
a dataset, write one module with a class that follows ``Reader`` and list the class in
``run.READERS``. The functions below read and check files; their errors name file and entry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.types import CameraPoses, JointsCamera, JointsImage, PerHand, TimestampsNs
from acehand_core.unpickling import load_npy_object

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

#: A mapping in a dataset's file, by name or by frame number.
Record = dict[Any, Any]

#: Opens the pictures of a recording file that needs a package of its own (VRS): path, stream,
#: times in ns. Tests pass one that does without.
OpenFrames = Callable[[Path, str, TimestampsNs], FrameSource]


@dataclass(frozen=True, slots=True)
class Item:
    """One recording as a reader lists it.

    ``name`` is unique in the dataset, stable, and a safe file name. ``key`` is what the reader
    needs to find it again; ``group`` the person, where the dataset names one.
    """

    dataset: str
    name: str
    split: Split
    path: Path
    key: Mapping[str, str] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a dataset.

    Attributes:
        view: which of the reader's ``views``; None for the first of them.
        open_frames: see ``OpenFrames``; None for the real packages.
        pictures: False where they are not wanted: then no package is needed for them.
    """

    view: str | None = None
    open_frames: OpenFrames | None = None
    pictures: bool = True


@dataclass(frozen=True, slots=True)
class Convention:
    """What a dataset's MANO numbers mean.

    Attributes:
        fingers: "vectors" are 45 rotation vectors, "components" principal components, "rotations"
            15 matrices, always absolute.
        flat_hand_mean: False says that the stored vectors or components leave out the mean pose.
        translation: what the three numbers place: "mano" the model (the wrist is ``J0 + t``),
            "wrist" the wrist, "middle_knuckle" the posed joint 9.
        left_shapedirs_fixed: whether left betas belong to MANO with repaired left shape directions;
            None where the dataset does not say (read as not repaired).
        frame: of orientation and translation.
    """

    fingers: Literal["vectors", "components", "rotations"]
    flat_hand_mean: bool
    translation: Literal["mano", "wrist", "middle_knuckle"]
    left_shapedirs_fixed: bool | None
    frame: Literal["camera", "world"]


@dataclass(frozen=True, slots=True)
class ManoTrack:
    """MANO labels as stored, slot 0 left, NaN where a hand is absent; metres, radians.

    ``fingers`` is (T, 2, 45), (T, 2, n) or (T, 2, 15, 3, 3), see ``Convention``.
    ``T_camera_world`` (T, 4, 4) is given where the frame is the world.
    """

    convention: Convention
    present: Bool[np.ndarray, "T 2"]
    global_orient: Float[np.ndarray, "T 2 3 3"]
    fingers: Float[np.ndarray, "T 2 *pose"]
    betas: Float[np.ndarray, "T 2 10"]
    translation: Float[np.ndarray, "T 2 3"]
    T_camera_world: Float[np.ndarray, "T 4 4"] | None = None

    def __post_init__(self) -> None:
        if (self.convention.frame == "world") != (self.T_camera_world is not None):
            raise SchemaError("Labels in the world frame need camera poses, and only those do.")

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
    """One recording as its dataset stores it: T native frames, labelled or not, none repeated.

    Attributes:
        fps: nominal native rate; of a still image the rate its clip is played at, by convention 30.
        frames: the pictures as stored, or None where there are none.
        camera: of those pictures, lens distortion included.
        mano: labels that are MANO parameters, or None.
        joints_camera: (T, 2, 21, 3) joints that the dataset itself gives, camera frame, NaN where
            none; None where it gives no joints.
        present: where the dataset labels a hand, through either.
        visible: what the dataset itself says of how much of the hand is seen, 0 to 1, else None.
            Datasets mean different things by it, so it is kept as stored, and a clip uses it only
            of hands without keypoints (see ``convert.hand_motion``).
        T_world_camera: NaN in frames whose camera pose is not known; no hand is ``present`` there
            whose label is in the world.
        unlabelled_presence: of hands that are not ``present``: 1 where the dataset says that the
            hand is present nonetheless, 0.5 where it does not mention the hand, 0 where no label is
            taken for no hand. None: 0 everywhere. Only 0 is taught as absence.
        stored: further arrays of the dataset with a row per frame, kept beside the clip as stored.
        left_out: frames of the dataset that are not here: they have a label and no picture while
            others have one, and a clip has a picture for every frame or for none.
        slots: which of left and right are labelled at all.
        still: an image dataset.
        undistort: the paper feeds the pictures of this dataset undistorted.
        plain: nothing but a video: a clip refers to it rather than copies it.
        licences: what binds a user of the data.
        findings: results of the checks at run time, one sentence each.
    """

    item: Item
    timestamps_ns: TimestampsNs
    fps: float
    width: int
    height: int
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
    """A dataset on disk in its native layout."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        ...

    @property
    def title(self) -> str:
        """What its authors call it."""
        ...

    @property
    def views(self) -> tuple[str, ...]:
        """Cameras or image versions that can be read; the first is the default."""
        ...

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List every recording with labels, sorted by name.

        Raises: InputError when ``root`` is not such a dataset, with what was looked for.
        """
        ...

    def sources(self, item: Item) -> Sequence[Path]:
        """Return the files and folders that a recording is read from; they tell when it changed."""
        ...

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one recording. Raises SchemaError or InputError with the file named."""
        ...


_MAX_JSON_BYTES = 4 << 30


def read_json(path: Path) -> Any:
    """Return a JSON file's content. Raises InputError or SchemaError with the file named."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InputError(f"{path}: larger than {_MAX_JSON_BYTES} bytes.")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: not JSON ({error}).") from error


def parse_json(data: bytes, where: str) -> Any:
    """Return the content of JSON bytes; ``where`` names them in errors."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where}: not JSON ({error}).") from error


def read_text(path: Path) -> str:
    """Return a text file's content. Raises InputError with the file named."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}).") from error


def read_numbers(path: Path, count: int) -> np.ndarray:
    """Return ``count`` numbers separated by white space. Raises SchemaError for another count."""
    try:
        values = np.array([float(word) for word in read_text(path).split()])
    except ValueError as error:
        raise SchemaError(f"{path}: not only numbers ({error}).") from error
    if len(values) != count:
        raise SchemaError(f"{path}: {len(values)} numbers, {count} are needed.")
    return values


def get(value: Any, key: str, where: str) -> Any:
    """Return an entry of a mapping. Raises SchemaError that names the key and what is there."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where}: a mapping with {key!r} is needed, not {type(value).__name__}.")
    if key not in value:
        present = ", ".join(sorted(map(str, value))[:20])
        raise SchemaError(f"{where}: {key!r} is missing; it has: {present or 'nothing'}.")
    return value[key]


def numbers(value: Any, where: str) -> np.ndarray:
    """Return float64 numbers of any shape, NaN included. Raises SchemaError with ``where``."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: not an array of numbers ({error}).") from error


def array(value: Any, shape: tuple[int | None, ...], where: str) -> np.ndarray:
    """Return finite float64 numbers of a shape; None stands for any length of an axis.

    Raises SchemaError with ``where``.
    """
    values = numbers(value, where)
    fits = values.ndim == len(shape) and all(
        length in (None, actual) for actual, length in zip(values.shape, shape, strict=True)
    )
    if not fits:
        valid = " x ".join("any" if n is None else str(n) for n in shape) or "one number"
        raise SchemaError(f"{where}: has shape {values.shape}; {valid} is needed.")
    if not np.isfinite(values).all():
        raise SchemaError(f"{where}: holds NaN or infinite numbers.")
    return values


def flat(value: Any, count: int, where: str) -> np.ndarray:
    """Return ``count`` finite float64 numbers of any nesting. Raises SchemaError with ``where``."""
    return array(numbers(value, where).ravel(), (count,), where)


def integer(value: Any, where: str) -> int:
    """Return a whole number. Raises SchemaError with ``where`` for anything else."""
    number = isinstance(value, int | float | np.integer | np.floating | np.ndarray)
    if number and not isinstance(value, bool) and np.size(value) == 1:
        plain = float(np.ravel(value)[0])
        if plain.is_integer() and abs(plain) < 2**53:
            return int(plain)
    raise SchemaError(f"{where}: a whole number is needed, not {str(value)[:60]!r}.")


def mapping(value: Any, where: str) -> Record:
    """Return a mapping as it is. Raises SchemaError with ``where`` for anything else."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where}: a mapping is needed, not {type(value).__name__}.")
    return value


def entry_of(value: Any, index: int, where: str) -> Any:
    """Return an entry of a list or array. Raises SchemaError where there is none."""
    listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if listed and 0 <= index < len(value):
        return value[index]
    kind = type(value).__name__
    raise SchemaError(f"{where}: a list with an entry {index} is needed, not this {kind}.")


def read_npy(path: Path) -> np.ndarray:
    """Return a plain ``.npy`` array; a pickled one is refused."""
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, EOFError) as error:
        raise SchemaError(f"{path}: not a plain .npy array ({error}).") from error


def read_npy_dict(path: Path, format_name: str) -> Record:
    """Return the dict in a pickled ``.npy``, read by the restricted unpickler."""
    value = load_npy_object(path, format_name)
    if value.shape != () or not isinstance(value.item(), dict):
        raise SchemaError(f"{path}: this {format_name} does not hold one dict.")
    return value.item()


def pinhole(K: Float[np.ndarray, "3 3"], size: tuple[int, int]) -> Camera:
    """Return the camera of a matrix in pixels, for pictures of (width, height) ``size``."""
    return Camera("pinhole", *size, float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2]))


def frame_times(numbers: Int[np.ndarray, "T"], rate_hz: float) -> TimestampsNs:
    """Return the times of frames that are numbered at a rate; the first is at 0."""
    return np.round((numbers - numbers[0]) * 1e9 / rate_hz).astype(np.int64)


def unknown_unless(labelled: Bool[np.ndarray, "T"]) -> PerHand:
    """Return ``unlabelled_presence`` where a frame without a label leaves both hands unknown."""
    return np.where(labelled, 0, 0.5)[:, None].repeat(2, 1).astype(np.float32)


def need_items(items: list[Item], root: Path, title: str, looked_for: str) -> list[Item]:
    """Return the items. Raises InputError where there are none, with what was looked for."""
    if not items:
        raise InputError(f"{root}: this does not look like {title}; no {looked_for}.")
    return items


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; hidden ones left out."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def need_folder(root: Path, choices: Iterable[str], title: str) -> Path:
    """Return the first folder of ``choices`` under ``root``.

    Raises InputError that says what the dataset looks like.
    """
    names = list(choices)
    for name in names:
        if (root / name).is_dir():
            return root / name
    looked = ", ".join(f"{name}/" for name in names)
    raise InputError(f"{root}: this does not look like {title}; it has none of {looked}.")


def safe_name(*parts: str) -> str:
    """Return a file name made of parts: letters, digits, ``_``, ``-`` and ``.`` stay."""
    text = "_".join(part for part in parts if part)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)


# Which recordings are for testing: by hash where neither the dataset nor the paper names them.

#: Share of recordings for testing, as in the paper's table: 72 of 198, 77 of 627.
TEST_SHARE = {"hot3d": 72 / 198, "oakink2": 77 / 627}
VERSION = 1


def hashed_split(recording: str, dataset: str) -> Split:
    """Return a recording's split from a hash of its name.

    It does not change when recordings are added or missing. The paper splits HOT3D by recording and
    OakInk2 by sequence but does not say which; the shares are its own.
    """
    digest = hashlib.sha256(f"acehand split {VERSION} {dataset} {recording}".encode()).digest()
    return "test" if int.from_bytes(digest[:8]) / 2**64 < TEST_SHARE[dataset] else "train"


def read_split_file(path: Path, items: list[Item]) -> dict[str, Split]:
    """Return item name to split from a user's own JSON: split to a list of item names.

    Raises: SchemaError for another form; InputError for a name that is not in the dataset or is
        given twice.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not set(content) <= set(SPLITS):
        raise SchemaError(f"{path}: must be an object of lists under {', '.join(SPLITS)}.")
    known = {item.name for item in items}

    split_of: dict[str, Split] = {}
    for split, names in content.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise SchemaError(f"{path}: {split!r} must be a list of names of recordings.")
        for name in names:
            if name not in known:
                raise InputError(f"{path}: no recording {name!r}; {nearest(str(name), known)}")
            if name in split_of:
                raise InputError(f"{path}: {name!r} is listed twice.")
            split_of[name] = split

    return split_of
