"""HOT3D recordings of Project Aria and Quest 3; ``hot3d_files`` reads their files.

A sequence stores every moment twice, about 90 microseconds apart: at the time of the colour image
and at that of the two grey ones. A stream's moments are the times of its boxes; poses are looked up
at exactly these times. Pictures come from ``recording.vrs`` through an optional package. Aria's are
stored on their side; pictures, lens and camera frame are rotated upright, which is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from acehand_core.ace.labelled.readers import base, hot3d_files
from acehand_core.ace.labelled.readers.hot3d_files import (
    CAMERAS_FILE,
    HEADSET_FILE,
    MANO_FILE,
    STREAMS,
    HandBoxes,
    HandStream,
    find_rows,
)
from acehand_core.ace.labelled.readers.pictures import VrsImages, upright_image
from acehand_core.errors import InputError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames
from acehand_core.recordings.vrs import UPRIGHT
from acehand_core.user_files import read_json

CONVENTION = base.Convention("components", False, "mano", True, "world")
_FPS = 30.0
#: Participants with withheld labels.
_WITHHELD = ("P0004", "P0005", "P0006", "P0008", "P0016", "P0020")
LICENCES = ("HOT3D: the dataset's own licence, https://www.projectaria.com/datasets/hot3d",)


@dataclass(frozen=True, slots=True)
class StreamPoses:
    """A stream's moments: times, cameras and poses, NaN if unknown."""

    timestamps_ns: Int[np.ndarray, "M"]
    cameras: tuple[Camera, ...]
    T_world_camera: Float[np.ndarray, "M 4 4"]


class Hot3dReader:
    """``Reader`` of HOT3D recordings. "main" is the colour camera of Aria, the left one of Quest 3.

    Recordings are split by hash of the name: the paper's list is not published.
    """

    name = "hot3d"
    title = "HOT3D"
    views = ("main", *STREAMS)

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List sequences with MANO labels."""
        view = options.view or self.views[0]
        items = []
        above = [root, *base.subfolders(root)]

        for folder in (root, *(p for f in above for p in base.subfolders(f))):
            labels = folder / MANO_FILE
            if not labels.is_file() or not labels.stat().st_size:
                continue
            recording = _recording_name(folder)
            participant = recording.split("_")[0]
            if participant in _WITHHELD:
                continue
            quest = (folder / CAMERAS_FILE).is_file()
            stream = ("1201-1" if quest else "214-1") if view == "main" else view
            if quest and stream == "214-1":
                continue
            key = {"stream": stream, "device": "quest3" if quest else "aria"}
            split, name = base.hashed_split(recording, "hot3d"), base.safe_name(recording, stream)
            items.append(base.Item(self.name, name, split, folder, key, participant))

        looked_for = f"sequence folder with a non-empty {MANO_FILE}"
        return base.need_items(items, root, self.title, looked_for)

    def sources(self, item: base.Item) -> Sequence[Path]:
        return [item.path / name for name in ("", "mps/slam", "masks", MANO_FILE)]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        stream, quest = item.key["stream"], item.key["device"] == "quest3"
        boxes = hot3d_files.read_boxes(item.path)
        poses, findings = stream_poses(item.path, stream, boxes)
        findings.append(_version_of_labels(item.path / "metadata.json"))
        motion, missing = motion_at(item.path, poses.timestamps_ns)
        masks, notes = _masks(item.path, stream, poses.timestamps_ns)
        findings += missing + notes

        visible = visibility(boxes, stream, poses.timestamps_ns)
        visible[~masks["hand_visible"]] = 0
        if boxed := int(((visible > 0) & ~motion.present).sum()):
            findings.append(f"{boxed} hands have a visible box but no MANO pose.")
        posed = motion.present & np.isfinite(poses.T_world_camera).all((-1, -2))[:, None]

        # ``hand_pose_available`` is also False if one hand lacks its pose: the other keeps its
        # label. If both have one, either may be invalid and neither is labelled. ``good_exposure``
        # removes labels of visible hands only, ``hand_visible`` none: hands out of sight are
        # labelled.
        present = posed & (masks["headset_pose_available"] & masks["qa_pass"])[:, None]
        present &= (masks["hand_pose_available"] | ~posed.all(1))[:, None]
        present &= masks["good_exposure"][:, None] | (visible == 0)
        if lost := int((posed & ~present).sum()):
            findings.append(f"{lost} hands with a pose are unlabelled, because of masks.")

        camera, T_world_camera = poses.cameras[len(poses.cameras) // 2], poses.T_world_camera
        if change := np.ptp([c.fx for c in poses.cameras]):
            findings.append(
                "the camera is calibrated per frame; the one of the middle frame is used (the "
                f"focal length changes by {change:.3g} px over the recording)."
            )
        if (item.path / hot3d_files.UMETRACK_FILE).is_file():
            # A check of every transform.
            wrists = hot3d_files.read_umetrack(item.path)
            inside, total = wrists_in_boxes(wrists, boxes, stream, poses)
            findings.append(f"UmeTrack wrists lie inside {inside} of {total} non-empty boxes.")
        else:
            findings.append("no UmeTrack poses to check boxes with.")

        pictures = None
        path = item.path / "recording.vrs"
        if path.is_file() and options.pictures:
            pictures = (options.open_frames or VrsImages)(path, stream, poses.timestamps_ns)
        elif not path.is_file():
            findings.append("no recording.vrs; no pictures.")
        if not quest:
            camera, T_world_camera = camera.rotated(90), T_world_camera @ UPRIGHT
            pictures = None if pictures is None else ChangedFrames(pictures, upright_image)

        return base.NativeRecording(
            item=item,
            timestamps_ns=poses.timestamps_ns,
            fps=_FPS,
            size=(camera.width, camera.height),
            frames=pictures,
            camera=camera,
            present=present,
            mano=base.ManoTrack(
                CONVENTION, present, motion.T_world_hand[..., :3, :3], motion.numbers,
                np.broadcast_to(motion.betas, (len(present), 2, 10)),
                motion.T_world_hand[..., :3, 3], frames.inverse(T_world_camera),
            ),
            visible=visible,
            # A missing pose may be lost, so it is no sign of absence.
            unlabelled_presence=np.where(motion.present | (visible > 0), 1, 0.5).astype(np.float32),
            stored={f"mask_{name}": values for name, values in masks.items()},
            T_world_camera=T_world_camera,
            licences=LICENCES,
            undistort=True,
            findings=tuple(findings),
        )  # fmt: skip


def _version_of_labels(path: Path) -> str:
    """Report the version of the labels in ``metadata.json``."""
    if not path.is_file():
        return "no metadata.json: the version of the labels is not known."
    values = base.mapping(read_json(path), str(path))
    if version := values.get("dataset_version", values.get("version")):
        return f"labels of version {version}."
    return "metadata.json names no version of the labels; MANO thumbs of version 1 are wrong."


def _masks(folder: Path, stream: str, times: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return each of ``MASKS`` at these times, True without an entry, and findings."""
    masks, findings, missing = {}, [], []
    for name in hot3d_files.MASKS:
        mask = hot3d_files.read_mask(folder, name, stream, times)
        if mask is None:
            masks[name] = np.ones(len(times), bool)
            missing.append(name)
            continue
        values, known = mask
        masks[name] = values
        if not known.all():
            findings.append(
                f"mask_{name}.csv has no entry for {int((~known).sum())} of {len(times)} frames; "
                "they are taken as good."
            )
        if not values.all():
            findings.append(
                f"mask_{name}.csv is False in {int((~values).sum())} of {len(times)} frames."
            )

    if missing:
        findings.append(f"no masks of {', '.join(missing)}.")
    return masks, findings


def _recording_name(folder: Path) -> str:
    """Return the name in metadata.json, on which the split depends, else the folder's."""
    path = folder / "metadata.json"
    try:
        values = read_json(path) if path.is_file() else {}
    except InputError:  # reported when this recording is read
        values = {}
    name = values.get("recording_name") if isinstance(values, dict) else None
    return name if isinstance(name, str) and name else folder.name


def stream_poses(folder: Path, stream: str, boxes: HandBoxes) -> tuple[StreamPoses, list[str]]:
    """Return the moments of a stream with its cameras, and assumptions.

    Cameras of Quest 3 are constant. Aria's calibration is in device time, which only the recording
    relates to the other times: lines and moments of equal number pair up, others are paired by
    position in the file. Camera poses are NaN without a headset pose.

    Raises: InputError for an unknown stream or one without any headset pose; SchemaError.
    """
    times, notes = np.unique(boxes.timestamps_ns[boxes.of_stream(stream)]), []
    if (folder / CAMERAS_FILE).is_file():
        camera, T_device_camera = hot3d_files.read_quest_camera(folder, stream)
        cameras = (camera,) * len(times)
    else:
        stored, T_device_camera = hot3d_files.read_calibration(folder, stream)
        lines = np.arange(len(times))
        if len(times) != len(stored):
            last = len(stored) - 1
            lines = np.round(np.linspace(0, last, len(times))).astype(int)
            notes.append(
                f"{len(times)} moments of stream {stream} but {last + 1} lines of calibration: "
                "paired by place."
            )
        T_device_camera = T_device_camera[lines]
        cameras = tuple(stored[line] for line in lines)

    headset_times, T_world_device = hot3d_files.read_headset(folder)
    rows, known = find_rows(headset_times, times)
    notes += _missing_rows(folder / HEADSET_FILE, known, "row", "headset pose")
    poses = np.where(known[:, None, None], T_world_device[rows], np.nan)
    return StreamPoses(times, cameras, poses @ T_device_camera), notes


def motion_at(folder: Path, timestamps_ns: Int[np.ndarray, "M"]) -> tuple[HandStream, list[str]]:
    """Return a sequence's MANO motion at these times, and a note on times without a line.

    Raises: SchemaError with file and line; InputError if no time has a line.
    """
    track = hot3d_files.read_mano(folder)
    _, known = find_rows(track.timestamps_ns, timestamps_ns)
    return track.at(timestamps_ns), _missing_rows(folder / MANO_FILE, known, "line", "line")


def _missing_rows(path: Path, known: Bool[np.ndarray, "M"], row: str, what: str) -> list[str]:
    """Report frames without a row in a file. Raises InputError if no frame has one."""
    if not known.any():
        raise InputError(f"{path}: no {row} at the time of any frame.")
    if known.all():
        return []
    lost = f"{int((~known).sum())} of {len(known)} frames have no {what} in {path.name}"
    return [f"{lost}: neither hand is labelled there."]


def wrists_in_boxes(
    wrists: HandStream, boxes: HandBoxes, stream: str, poses: StreamPoses
) -> tuple[int, int]:
    """Return the number of UmeTrack wrists that project into their hand's box, and of boxes.

    ``poses`` are of the stored picture, as boxes are.
    """
    inside = total = 0
    T_camera_world = frames.inverse(poses.T_world_camera)
    every = boxes.of_stream(stream)
    tracks, tracked = find_rows(wrists.timestamps_ns, boxes.timestamps_ns[every])
    moments, posed = find_rows(poses.timestamps_ns, boxes.timestamps_ns[every])
    posed &= np.isfinite(T_camera_world[moments]).all((-1, -2))
    for n in np.flatnonzero(tracked & posed & np.isfinite(boxes.box[every]).all(-1)):
        row, moment = every[n], moments[n]
        point = wrists.T_world_hand[tracks[n], boxes.slot[row], :3, 3]
        pixel = poses.cameras[moment].project(frames.apply(T_camera_world[moment], point))
        low, high = boxes.box[row].reshape(2, 2)
        total += 1
        inside += bool((pixel >= low).all() and (pixel <= high).all())

    return inside, total


def visibility(boxes: HandBoxes, stream: str, times: np.ndarray) -> np.ndarray:
    """Return the visible share of each hand's surface (T, 2), 0 to 1, from the box file."""
    share = np.zeros((len(times), 2), np.float32)
    rows = boxes.of_stream(stream)
    moment, exact = find_rows(times, boxes.timestamps_ns[rows])
    rows, moment = rows[exact], moment[exact]
    share[moment, boxes.slot[rows]] = np.clip(boxes.visibility[rows], 0, 1)
    return share
