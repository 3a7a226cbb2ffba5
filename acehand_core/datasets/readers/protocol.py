"""What every reader of a dataset offers, and what it gives for one recording.

A reader lists the recordings under a dataset's folder without opening them, and reads one into
arrays: the pictures by index, the camera, and the labels as they stand in the files, with the
conventions that say what they mean. ``conventions.to_camera`` does the rest for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import FrameSource
from acehand_core.types import CameraPoses, JointsCamera, JointsImage, PerHand, TimestampsNs

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

#: Opens the pictures of a recording file that needs a package of its own (VRS): path, stream,
#: times in ns. Tests pass one that needs no such package.
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
            Datasets mean different things by it, so it is kept as stored, and a clip asks it only
            of hands without keypoints (see ``convert.hand_motion``).
        T_world_camera: NaN in frames whose camera pose is not known; no hand is ``present`` there
            whose label is in the world.
        unposed: of hands that are not ``present``: 1 where the dataset says that the hand is there
            all the same, 0.5 where it says nothing of the hand, 0 where no label is taken for no
            hand. None: 0 everywhere. Only 0 is taught as absence.
        stored: further arrays of the dataset with a row per frame, kept beside the clip as stored.
        left_out: frames of the dataset that are not here: they have a label and no picture while
            others have one, and a clip has a picture for every frame or for none.
        slots: which of left and right are labelled at all.
        still: an image dataset.
        licences: what binds a user of the data.
        findings: what was checked at run time and came out, one sentence each.
    """

    item: Item
    timestamps_ns: TimestampsNs
    fps: float
    width: int
    height: int
    frames: FrameSource | None
    camera: Camera | None
    mano: ManoTrack | None
    joints_camera: JointsCamera | None
    joints_image: JointsImage | None
    present: Bool[np.ndarray, "T 2"]
    visible: PerHand | None
    T_world_camera: CameraPoses | None = None
    still: bool = False
    slots: tuple[bool, bool] = (True, True)
    licences: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    unposed: PerHand | None = None
    stored: Mapping[str, np.ndarray] = field(default_factory=dict)
    left_out: int = 0


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
