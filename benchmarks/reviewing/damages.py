"""What goes wrong with recordings of hands in the field, done on purpose.

Some things go wrong before the main job runs: in the pictures, or in the calibration that is
given. Others go wrong after it, when another tool or a converter with a bug rewrites the dataset.
The latter leave the dataset sound as a dataset: its numbers agree, and statistics are
those of the numbers. Nothing else is computed again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acehand_core.geometry.cameras import Camera
from acehand_core.lerobot import format as layout
from acehand_core.lerobot.check import read_rows
from acehand_core.lerobot.stats import feature_stats
from acehand_core.recordings.hands_file import read_hand_motion, write_hand_motion
from acehand_core.recordings.selection import part
from acehand_core.recordings.video import open_video
from acehand_core.recordings.video_encode import encode_video
from acehand_core.types import ImageRgb

#: Columns with a half for each hand.
HANDS = (
    *(f"observation.hand.{name}" for name in (
        "joints_camera", "global_orient", "hand_pose", "betas", "translation", "confidence",
        "visible", "filled",
    )),
    "hand.valid", "hand.joint_sigma",
)  # fmt: skip
ROBOT = ("observation.state", "action", "observation.joints.robot", "action.register")
#: What a hand's pose and place are, of columns and of the table of hands.
POSE = tuple(
    f"observation.hand.{name}"
    for name in ("joints_camera", "global_orient", "hand_pose", "translation")
)
MOTION_POSE = ("global_orient", "hand_pose", "translation", "joints_camera", "joints_image")
MOTION_HANDS = (*MOTION_POSE, "presence", "visible", "quality", "observed", "filled", "fill_frame",
                "joint_sigma")  # fmt: skip

Pictures = list[ImageRgb]


class Stored:
    """The one episode of a dataset: columns with a half for each hand, and its table of hands.

    ``columns[key]`` has shape (T, 2, N); slot 0 is the left hand. ``save`` writes both, and the
    statistics of what the columns hold now.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._row = read_rows(root)[0]
        self._features = layout.read_json(root / layout.INFO_PATH)["features"]
        self._table = layout.read_parquet(root / layout.data_file(self._row))
        self.columns = {
            key: layout.column_values(self._table[key], self._features[key]["shape"])
            .reshape(len(self._table), 2, -1)
            .copy()
            for key in (*HANDS, *ROBOT)
        }
        self._hands = root / layout.episode_folder(0) / layout.HANDS
        self.motion = read_hand_motion(self._hands)

    def __len__(self) -> int:
        return len(self._table)

    def set_motion(self, **values: Any) -> None:
        """Replace arrays of the table of hands."""
        self.motion = replace(self.motion, **values)

    def of_motion(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return copies of those arrays of the table of hands that there are."""
        values = {name: getattr(self.motion, name) for name in names}
        return {name: value.copy() for name, value in values.items() if value is not None}

    def save(self) -> None:
        """Write everything."""
        table, row = self._table, dict(self._row)
        path = row.pop("path")
        for key, values in self.columns.items():
            shape, dtype = self._features[key]["shape"], self._features[key]["dtype"]
            stored = values.reshape(len(values), *shape).astype(dtype)
            field = table.schema.field(key)
            column = layout.column_array(stored, dtype, shape).cast(field.type)
            table = table.set_column(table.schema.get_field_index(key), field, column)
            stats = feature_stats(stored)
            row |= {f"stats/{key}/{name}": value.tolist() for name, value in stats.items()}
        layout.write_parquet(table, self.root / layout.data_file(row))
        schema = layout.read_parquet(self.root / path).schema
        layout.write_parquet(pa.Table.from_pylist([row], schema), self.root / path)
        write_hand_motion(self.motion, self._hands, overwrite=True)


@dataclass(frozen=True, slots=True)
class Damage:
    """One way in which a recording or its episode goes wrong.

    ``checks``: a finding of one of these says what is wrong. Of what is not None, ``pictures``
    makes other pictures of the recording's, ``camera`` another calibration of the true one (None:
    none is given), ``data`` rewrites the episode; ``robot`` is whose commands it gets, ``named``
    with its own records, and hands are ``late`` by frames. All draw from the generator they get.
    """

    kind: str
    variant: str
    checks: tuple[str, ...]
    pictures: Callable[[Pictures, np.random.Generator], Pictures] | None = None
    camera: Callable[[Camera], Camera | None] | None = None
    data: Callable[[Stored, np.random.Generator], None] | None = None
    robot: str | None = None
    named: bool = False
    late: int = 0


# --- before the main job -----------------------------------------------------------------------


def mirrored(pictures: Pictures, rng: np.random.Generator) -> Pictures:
    """A selfie video that is not declared as one."""
    return [np.ascontiguousarray(picture[:, ::-1]) for picture in pictures]


def lost_in_bursts(pictures: Pictures, rng: np.random.Generator) -> Pictures:
    """The recorder lost three runs of pictures; the file plays on at a constant rate."""
    gone = _bursts(len(pictures), rng)
    return [picture for k, picture in enumerate(pictures) if k not in gone]


def lost_here_and_there(pictures: Pictures, rng: np.random.Generator) -> Pictures:
    """The recorder lost one picture in eight; the file plays on at a constant rate."""
    gone = set(1 + rng.choice(len(pictures) - 2, len(pictures) // 8, replace=False))
    return [picture for k, picture in enumerate(pictures) if k not in gone]


def lost_and_repeated(pictures: Pictures, rng: np.random.Generator) -> Pictures:
    """The recorder lost three runs of pictures, and wrote the last one in their place."""
    gone, shown = _bursts(len(pictures), rng), list(pictures)
    for k in sorted(gone):
        shown[k] = shown[k - 1]
    return shown


def _bursts(count: int, rng: np.random.Generator) -> set[int]:
    """Return three runs of 5 to 10 frames, in a third of the clip each."""
    gone: set[int] = set()
    for third in range(3):
        length = int(rng.integers(5, 11))
        first = int(rng.integers(third * count // 3 + 2, (third + 1) * count // 3 - length))
        gone |= set(range(first, first + length))
    return gone


def longer_lens(camera: Camera) -> Camera:
    """The calibration of another camera, whose focal length is 1.6 times as long."""
    return replace(camera, fx=camera.fx * 1.6, fy=camera.fy * 1.6)


def shorter_lens(camera: Camera) -> Camera:
    """The calibration of another camera, whose focal length is 0.65 times as long."""
    return replace(camera, fx=camera.fx * 0.65, fy=camera.fy * 0.65)


def larger_picture(camera: Camera) -> Camera:
    """The calibration of this camera for pictures of 800 x 600."""
    scale = 1.25
    cx, cy = ((c + 0.5) * scale - 0.5 for c in (camera.cx, camera.cy))
    return replace(camera, fx=camera.fx * scale, fy=camera.fy * scale, cx=cx, cy=cy)


def cut_picture(camera: Camera) -> Camera:
    """The calibration of this camera for pictures of 640 x 360, cut off above and below."""
    return replace(camera, cy=camera.cy - 60)


def no_camera(camera: Camera) -> None:
    """The calibration is missing."""


# --- after the main job ------------------------------------------------------------------------


def swapped_from_the_middle(stored: Stored, rng: np.random.Generator) -> None:
    """Left and right are exchanged in the second half of the clip, the robot's are not."""
    middle = len(stored) // 2
    for key in HANDS:
        stored.columns[key][middle:] = stored.columns[key][middle:, ::-1]
    arrays = stored.of_motion(MOTION_HANDS)
    for values in arrays.values():
        values[middle:] = values[middle:, ::-1]
    stored.set_motion(**arrays)


def swapped_throughout(stored: Stored, rng: np.random.Generator) -> None:
    """A converter that takes right for left, of hands and robots alike."""
    for key in (*HANDS, *ROBOT):
        stored.columns[key] = stored.columns[key][:, ::-1]
    arrays = stored.of_motion((*MOTION_HANDS, "betas"))
    axis = dict.fromkeys(arrays, 1) | {"betas": 0}
    stored.set_motion(**{name: np.flip(values, axis[name]) for name, values in arrays.items()})


def in_millimetres(stored: Stored, rng: np.random.Generator) -> None:
    """Joints and places of hands are millimetres."""
    _scale(stored, 1000.0)


def in_centimetres(stored: Stored, rng: np.random.Generator) -> None:
    """Joints and places of hands are centimetres."""
    _scale(stored, 100.0)


def _scale(stored: Stored, factor: float) -> None:
    for name in ("joints_camera", "translation"):
        stored.columns[f"observation.hand.{name}"] *= np.float32(factor)
        stored.set_motion(**{name: getattr(stored.motion, name) * factor})


def frozen_with_robot(stored: Stored, rng: np.random.Generator) -> None:
    """A hand that keeps its pose and place for two seconds, and its robot with it."""
    _freeze(stored, 2.0, (*POSE, *ROBOT))


def frozen_hand_alone(stored: Stored, rng: np.random.Generator) -> None:
    """A hand that keeps its pose and place for one and a half seconds; its robot moves on."""
    _freeze(stored, 1.5, POSE)


def _freeze(stored: Stored, seconds: float, keys: Sequence[str]) -> None:
    """Freeze the hand that would move most, where it would; it stays valid and confident."""
    count = round(seconds * stored.motion.fps)
    joints, valid = stored.columns[POSE[0]], stored.columns["hand.valid"][..., 0]
    steps = np.linalg.norm(np.diff(joints, axis=0).reshape(len(joints) - 1, 2, 21, 3), axis=-1)
    best = (-1.0, 0, 0)
    for start in range(len(stored) - count):
        for slot in (0, 1):
            if valid[start : start + count, slot].all():
                moved = float(steps[start : start + count, slot].mean(-1).sum())
                best = max(best, (moved, start, slot))
    moved, start, slot = best
    if moved < 0:
        raise SystemExit(f"{stored.root}: no hand is valid for {seconds} s")

    inside = slice(start, start + count)
    for key in keys:
        stored.columns[key][inside, slot] = stored.columns[key][start, slot]
    arrays = stored.of_motion(MOTION_POSE)
    for values in arrays.values():
        values[inside, slot] = values[start, slot]
    stored.set_motion(**arrays)


def jittery(stored: Stored, rng: np.random.Generator) -> None:
    """Keypoints with noise of 6 mm in each direction, each frame its own."""
    noise = rng.normal(0, 0.006, (len(stored), 2, 21, 3))
    column = stored.columns[POSE[0]]
    column += noise.reshape(column.shape).astype(column.dtype)
    stored.set_motion(joints_camera=stored.motion.joints_camera + noise)


def jittery_wrist(stored: Stored, rng: np.random.Generator) -> None:
    """Whole hands with noise of 6 mm in each direction, fingers and robot base with them."""
    noise = rng.normal(0, 0.006, (len(stored), 2, 1, 3))
    joints, place = stored.columns[POSE[0]], stored.columns["observation.hand.translation"]
    joints += np.broadcast_to(noise, (len(stored), 2, 21, 3)).reshape(joints.shape)
    place += noise[:, :, 0]
    state, action = (stored.columns[key] for key in ROBOT[:2])
    state[..., :3] += noise[:, :, 0]
    action[..., :3] += np.concatenate([noise[1:], noise[-1:]])[:, :, 0]
    motion = stored.motion
    stored.set_motion(
        joints_camera=motion.joints_camera + noise, translation=motion.translation + noise[:, :, 0]
    )


def give_commands_of(stored: Stored, other: Stored) -> None:
    """Put another robot's numbers into the columns, as a merge that looks at shapes alone does.

    What there is too much of is cut off, what is missing is zero.
    """
    for key in ROBOT:
        ours, theirs = stored.columns[key], other.columns[key]
        width = min(ours.shape[-1], theirs.shape[-1])
        ours[...] = 0
        ours[..., :width] = theirs[..., :width]


def give_records_of(dataset: Path, other: Path) -> None:
    """Put another dataset's record of where its first episode comes from, and its files."""
    places = [root / layout.data_file(read_rows(root)[0]) for root in (dataset, other)]
    ours, theirs = (layout.read_parquet(place) for place in places)
    metadata = dict(ours.schema.metadata or {})
    metadata[layout.PROVENANCE_KEY] = (theirs.schema.metadata or {})[layout.PROVENANCE_KEY]
    layout.write_parquet(ours.replace_schema_metadata(metadata), places[0])
    for path in (other / layout.episode_folder(0)).iterdir():
        shutil.copy2(path, dataset / layout.episode_folder(0) / path.name)


def show_later(dataset: Path, recording: Path, frames: int) -> None:
    """Let an episode show its recording that many frames later: its hands are late.

    The episode is of all frames of the recording but the last ``frames``.
    """
    whole = open_video(recording)
    row = read_rows(dataset)[0]
    (key,) = layout.video_keys(layout.read_json(dataset / layout.INFO_PATH)["features"])
    later = part(whole, frames, len(whole))
    if len(later) != row["length"]:
        raise SystemExit(f"{dataset}: {row['length']} frames, {len(later)} to show")
    encode_video(later, dataset / layout.video_file(row, key), round(whole.fps))


_OFF = ("picture_agreement", "picture_lag")
_CAMERA = ("camera", "batch_camera", "field_of_view", "principal_point", "depth_size",
           "batch_hand_size")  # fmt: skip
_SIDES = ("identity_swaps", "wrong_side", "batch_side", "picture_sides", "picture_agreement")
_LOST = ("repeated_pictures", "picture_jumps", "uneven_pictures", "stamp_gaps", "stamp_repeats")
_UNIT = ("hand_size", "distance")
_ROBOT = ("robot", "joint_limits", "coupling", "register", "far_tips", "calibration")
_NOISE = ("jitter", "batch_jitter", "bone_length")

#: All that there is; the kinds are in the order in which batches take them.
DAMAGES = (
    Damage("swapped hands", "from the middle", _SIDES, data=swapped_from_the_middle),
    Damage("swapped hands", "throughout, robots too", _SIDES, data=swapped_throughout),
    Damage("wrong intrinsics", "focal length x 1.6", _CAMERA, camera=longer_lens),
    Damage("wrong intrinsics", "of 800 x 600", _CAMERA, camera=larger_picture),
    Damage("wrong intrinsics", "of 640 x 360", _CAMERA, camera=cut_picture),
    Damage("wrong intrinsics", "focal length x 0.65", _CAMERA, camera=shorter_lens),
    Damage("dropped frames", "in bursts", _LOST, pictures=lost_in_bursts),
    Damage("dropped frames", "repeated", _LOST, pictures=lost_and_repeated),
    Damage("dropped frames", "here and there", _LOST, pictures=lost_here_and_there),
    Damage("wrong unit", "millimetres", _UNIT, data=in_millimetres),
    Damage("wrong unit", "centimetres", _UNIT, data=in_centimetres),
    Damage("frozen hand", "2 s, robot too", ("frozen",), data=frozen_with_robot),
    Damage("frozen hand", "1.5 s", ("frozen",), data=frozen_hand_alone),
    Damage("mirrored video", "all of it", _SIDES, pictures=mirrored),
    Damage("other robot", "ability", _ROBOT, robot="ability", named=True),
    Damage("other robot", "ability, its records lost", _ROBOT, robot="ability"),
    Damage("other robot", "leap, its records lost", _ROBOT, robot="leap"),
    Damage("missing calibration", "60 degrees assumed", _CAMERA, camera=no_camera),
    Damage("jitter", "keypoints, 6 mm", _NOISE, data=jittery),
    Damage("jitter", "whole hands, 6 mm", _NOISE, data=jittery_wrist),
    Damage("shifted time stamps", "5 frames late", _OFF, late=5),
    Damage("shifted time stamps", "3 frames late", _OFF, late=3),
)
KINDS = tuple(dict.fromkeys(damage.kind for damage in DAMAGES))
