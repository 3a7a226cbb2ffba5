"""HOT3D sequences (Project Aria): camera poses of a stream, and MANO motion as a HandMotion.

A sequence stores every moment twice, about 90 microseconds apart: once at the time of the colour
image and once at that of the two grey ones. A stream's moments are the times of its own boxes, and
every pose is looked up at exactly that time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.datasets.readers.hot3d_files import (
    BOXES_FILE,
    CALIBRATION_FILE,
    HEADSET_FILE,
    MANO_FILE,
    STREAMS,
    HandBoxes,
    HandTrack,
    HeadsetTrajectory,
    read_boxes,
    read_calibration,
    read_headset,
    read_mano,
)
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mano import ManoHand
from acehand_core.hand.mapping import change_frame
from acehand_core.hand.shape import rest_shape, shaped
from acehand_core.motion import HandMotion, Provenance
from acehand_core.types import SIDES

_FPS = 30.0


@dataclass(frozen=True, slots=True)
class StreamPoses:
    """A stream's moments: times, the camera of each, and where it was; NaN where not known."""

    timestamps_ns: Int[np.ndarray, "M"]
    cameras: tuple[Camera, ...]
    T_world_camera: Float[np.ndarray, "M 4 4"]


@dataclass(frozen=True, slots=True)
class Hot3dManoMotion:
    """MANO motion as HOT3D stores it, which is no hand pose without the user's MANO files.

    World frame, slot 0 left, NaN where a hand is absent. ``pca`` are 15 coefficients in MANO's own
    basis, mean pose left out; ``translation`` is MANO's, so the wrist is ``J0(betas) +
    translation``; both hands share ``betas``, which belong to MANO with repaired left shape
    directions.
    """

    timestamps_ns: Int[np.ndarray, "T"]
    present: Bool[np.ndarray, "T 2"]
    global_orient: Float[np.ndarray, "T 2 3 3"]
    pca: Float[np.ndarray, "T 2 15"]
    betas: Float[np.ndarray, "10"]
    translation: Float[np.ndarray, "T 2 3"]

    def at(self, timestamps_ns: Int[np.ndarray, "M"]) -> Hot3dManoMotion:
        """Return the rows of exactly these times; both hands are absent where there is none."""
        rows, found = find_rows(self.timestamps_ns, timestamps_ns)

        def taken(values: np.ndarray) -> np.ndarray:
            return np.where(found.reshape(-1, *[1] * (values.ndim - 1)), values[rows], np.nan)

        return Hot3dManoMotion(
            timestamps_ns, self.present[rows] & found[:, None], taken(self.global_orient),
            taken(self.pca), self.betas, taken(self.translation),
        )  # fmt: skip

    def hand_pose(self, mano: ManoHand) -> Float[np.ndarray, "T 2 15 3 3"]:
        """Return absolute finger rotations: components expanded, mean pose added."""
        _check_flag(mano)
        return np.stack(
            [
                mano.absolute_pose(
                    side, mano.expand_pca(side, self.pca[:, slot]), flat_hand_mean=False
                )
                for slot, side in enumerate(SIDES)
            ],
            axis=1,
        )

    def joints_world(self, mano: ManoHand) -> Float[np.ndarray, "T 2 21 3"]:
        """Return the 21 keypoints in metres, OpenPose order."""
        return _joints(mano, self.global_orient, self.hand_pose(mano), self.betas, self.translation)


def read_mano_motion(folder: Path) -> Hot3dManoMotion:
    """Read a sequence's MANO motion; without a hand in any line its shape is MANO's mean.

    Raises SchemaError with file and line, or InputError.
    """
    track = read_mano(folder)
    return Hot3dManoMotion(
        timestamps_ns=track.timestamps_ns,
        present=track.present,
        global_orient=track.T_world_hand[..., :3, :3],
        pca=track.numbers,
        betas=np.zeros(10) if track.betas is None else track.betas,
        translation=track.T_world_hand[..., :3, 3],
    )


def motion_at(
    folder: Path, timestamps_ns: Int[np.ndarray, "M"]
) -> tuple[Hot3dManoMotion, list[str]]:
    """Return a sequence's MANO motion at these times, and how many of them have no line.

    Raises: as ``read_mano_motion``; InputError where no time has one.
    """
    motion = read_mano_motion(folder)
    _, found = find_rows(motion.timestamps_ns, timestamps_ns)
    if not found.any():
        raise InputError(f"{folder / MANO_FILE}: no line at the time of any frame.")
    notes = []
    if not found.all():
        notes.append(
            f"{int((~found).sum())} of {len(found)} frames have no line in {MANO_FILE}: neither "
            "hand is labelled there."
        )
    return motion.at(timestamps_ns), notes


def read_stream(folder: Path, stream: str = "214-1") -> StreamPoses:
    """Return the cameras of one stream and their poses in the world.

    Raises: InputError for an unknown stream or a moment without a headset pose; SchemaError where
    calibration and moments do not pair up.
    """
    return _paired(folder, stream, read_boxes(folder))


def to_hand_motion(folder: Path, mano: ManoHand, stream: str = "214-1") -> HandMotion:
    """Return a sequence's MANO motion in the camera frame of one stream.

    Args:
        folder: the sequence folder.
        mano: the user's MANO, loaded with ``left_shapedirs_fixed=True``.
        stream: "214-1" colour, "1201-1" and "1201-2" grey left and right.

    Raises: as ``read_stream``; InputError for a MANO without the repair.
    """
    _check_flag(mano)
    boxes = read_boxes(folder)
    poses = _paired(folder, stream, boxes)
    motion, missing = motion_at(folder, poses.timestamps_ns)
    T_camera_world = frames.inverse(poses.T_world_camera)
    orient, translation = np.empty_like(motion.global_orient), np.empty_like(motion.translation)
    for slot, side in enumerate(SIDES):
        wrist = shaped(*rest_shape(mano, side), motion.betas)[0]
        orient[:, slot], translation[:, slot] = change_frame(
            T_camera_world,
            motion.global_orient[:, slot],
            motion.translation[:, slot],
            np.broadcast_to(wrist, (len(orient), 3)),
        )
    hand_pose = motion.hand_pose(mano)
    joints = _joints(mano, orient, hand_pose, motion.betas, translation)
    present = motion.present.astype(np.float32)
    inside = [
        camera.contains(camera.project(points))
        for camera, points in zip(poses.cameras, joints, strict=True)
    ]
    return HandMotion(
        timestamps_ns=poses.timestamps_ns,
        fps=_FPS,
        presence=present,
        visible=np.mean(inside, axis=-1, dtype=np.float32) * present,
        quality=present,
        observed=motion.present,
        filled=np.zeros_like(motion.present),
        global_orient=orient,
        hand_pose=hand_pose,
        betas=np.tile(motion.betas, (2, 1)),
        translation=translation,
        joints_camera=joints,
        joints_image=np.full((*present.shape, 21, 2), np.nan),
        hand_model="mano",
        provenance=_provenance(folder, stream, poses, missing),
        left_shapedirs_fixed=True,
        camera=poses.cameras[len(poses.cameras) // 2],
        T_world_camera=poses.T_world_camera,
    )


def stream_poses(folder: Path, stream: str, boxes: HandBoxes) -> tuple[StreamPoses, list[str]]:
    """Return the moments of a stream and what had to be assumed.

    Calibration is stored in device time, which only the recording itself relates to the others.
    Where lines and moments are as many they pair up; else they are paired by place in the file.
    At moments without a headset pose nothing says where the camera was.

    Raises: InputError for an unknown stream or one without any headset pose; SchemaError.
    """
    if stream not in STREAMS:
        raise InputError(f"HOT3D has no stream {stream!r}; {nearest(stream, STREAMS)}")
    calibration, headset = read_calibration(folder, stream), read_headset(folder)
    times = moments(boxes, stream)
    lines, notes = np.arange(len(times)), []
    if len(times) != len(calibration.cameras):
        last = len(calibration.cameras) - 1
        lines = np.round(np.linspace(0, last, len(times))).astype(int)
        notes.append(
            f"{len(times)} moments of stream {stream} but {last + 1} lines of calibration: "
            "paired by place."
        )
    T_world_device, lost = headset_poses(folder, headset, times)
    T_world_camera = T_world_device @ calibration.T_device_camera[lines]
    cameras = tuple(calibration.cameras[line] for line in lines)
    return StreamPoses(times, cameras, T_world_camera), notes + lost


def moments(boxes: HandBoxes, stream: str) -> Int[np.ndarray, "M"]:
    """Return the times of a stream: those of its boxes."""
    return np.unique(boxes.timestamps_ns[boxes.of_stream(stream)])


def headset_poses(
    folder: Path, headset: HeadsetTrajectory, times: Int[np.ndarray, "M"]
) -> tuple[Float[np.ndarray, "M 4 4"], list[str]]:
    """Return ``T_world_device`` at these times, NaN where there is no row, and what to say.

    Raises: InputError where no time has one.
    """
    rows, found = find_rows(headset.timestamps_ns, times)
    if not found.any():
        raise InputError(f"{folder / HEADSET_FILE}: no row at the time of any frame.")
    poses = np.where(found[:, None, None], headset.T_world_device[rows], np.nan)
    if found.all():
        return poses, []
    return poses, [
        f"{int((~found).sum())} of {len(found)} frames have no headset pose in {HEADSET_FILE}: "
        "neither hand is labelled there."
    ]


def wrists_in_boxes(
    wrists: HandTrack, boxes: HandBoxes, stream: str, poses: StreamPoses
) -> tuple[int, int]:
    """Return how many UmeTrack wrists project into the box of their hand, and how many boxes.

    Boxes are in the stored picture, so ``poses`` must be of it too.
    """
    inside = total = 0
    T_camera_world = frames.inverse(poses.T_world_camera)
    for row in boxes.of_stream(stream):
        box = boxes.box[row]
        track = np.flatnonzero(wrists.timestamps_ns == boxes.timestamps_ns[row])
        if np.isnan(box).any() or not len(track):
            continue
        found = np.flatnonzero(poses.timestamps_ns == boxes.timestamps_ns[row])
        if not len(found):
            continue
        moment = int(found[0])
        if np.isnan(T_camera_world[moment]).any():
            continue
        point = wrists.T_world_hand[track[0], boxes.slot[row], :3, 3]
        pixel = poses.cameras[moment].project(frames.apply(T_camera_world[moment], point))
        total += 1
        inside += bool((pixel >= box[:2]).all() and (pixel <= box[2:]).all())
    return inside, total


def _paired(folder: Path, stream: str, boxes: HandBoxes) -> StreamPoses:
    poses, notes = stream_poses(folder, stream, boxes)
    lost = np.isnan(poses.T_world_camera).any((-1, -2))
    if lost.any():
        raise InputError(
            f"{folder / HEADSET_FILE}: no row at {poses.timestamps_ns[lost][0]} ns; times must "
            "match exactly."
        )
    if notes:
        raise SchemaError(
            f"{folder}: {notes[0].rstrip('.')}; in {BOXES_FILE} and {CALIBRATION_FILE} they must "
            "pair up."
        )
    return poses


def find_rows(
    available: Int[np.ndarray, "N"], wanted: Int[np.ndarray, "M"]
) -> tuple[Int[np.ndarray, "M"], Bool[np.ndarray, "M"]]:
    """Return the rows of exactly these times, and where there is one; elsewhere any row."""
    rows = np.minimum(np.searchsorted(available, wanted), len(available) - 1)
    return rows, available[rows] == wanted


def _check_flag(mano: ManoHand) -> None:
    if not mano.left_shapedirs_fixed:
        raise InputError(
            "HOT3D's betas belong to MANO with repaired left shape directions; load it with "
            "left_shapedirs_fixed=True."
        )


def _joints(
    mano: ManoHand,
    global_orient: np.ndarray,
    hand_pose: np.ndarray,
    betas: np.ndarray,
    translation: np.ndarray,
) -> np.ndarray:
    """Return keypoints (T, 2, 21, 3); NaN in, NaN out."""
    shape = np.broadcast_to(betas, (len(translation), 10))
    joints = [
        mano.joints(side, global_orient[:, slot], hand_pose[:, slot], shape)
        for slot, side in enumerate(SIDES)
    ]
    return np.stack(joints, axis=1) + translation[:, :, None]


def visibility(boxes: HandBoxes, stream: str, times: np.ndarray) -> np.ndarray:
    """Return the share of each hand's surface that is seen (T, 2), 0 to 1, by the box file."""
    out = np.zeros((len(times), 2), np.float32)
    rows = boxes.of_stream(stream)
    moment, found = find_rows(times, boxes.timestamps_ns[rows])
    rows, moment = rows[found], moment[found]
    out[moment, boxes.slot[rows]] = np.clip(boxes.visibility[rows], 0, 1)
    return out


def _provenance(folder: Path, stream: str, poses: StreamPoses, notes: list[str]) -> Provenance:
    focal = np.array([camera.fx for camera in poses.cameras])
    return Provenance(
        source=f"{folder.name}/{MANO_FILE}",
        source_sha256=hashlib.sha256((folder / MANO_FILE).read_bytes()).hexdigest(),
        tracker="HOT3D ground truth (MANO)",
        licenses=(
            "HOT3D: the dataset's own licence",
            "MANO: non-commercial, https://mano.is.tue.mpg.de",
        ),
        settings={"stream": stream},
        notes=(
            "The camera is the one of the middle moment; over the recording its focal length "
            f"changes by {np.ptp(focal):.3g} px.",
            *notes,
        ),
    )
