"""HOT3D recordings of Project Aria and Quest 3 as a dataset: see ``hot3d`` for their files.

Pictures come from ``recording.vrs`` through an optional package. Those of Aria are stored lying on
their side; they, their lens and the camera frame are turned upright here, which is exact.

Quest 3 sequences of HOT3D: cameras that do not change over the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.datasets.readers import hot3d, hot3d_files
from acehand_core.datasets.readers.files import (
    array,
    get,
    integer,
    mapping,
    read_json,
    safe_name,
    subfolders,
)
from acehand_core.datasets.readers.hot3d import StreamPoses, headset_poses, moments
from acehand_core.datasets.readers.hot3d_files import HandBoxes, read_headset
from acehand_core.datasets.readers.pictures import TURN, TurnedFrames, open_vrs, turned_camera
from acehand_core.datasets.readers.protocol import (
    Convention,
    Item,
    ManoTrack,
    NativeRecording,
    ReadOptions,
)
from acehand_core.datasets.readers.splits import hashed_split
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import RigidTransform

CAMERAS_FILE = "camera_models.json"


def read_quest_camera(folder: Path, stream: str) -> tuple[Camera, RigidTransform]:
    """Return a stream's camera and ``T_device_camera``. Raises SchemaError with the file."""
    path = folder / CAMERAS_FILE
    entries = read_json(path)
    if not isinstance(entries, list):
        raise SchemaError(f"{path}: a list of cameras is needed, not {type(entries).__name__}.")
    where = f"{path} {stream}"
    found = [e for e in entries if get(e, "stream_id", str(path)) == stream]
    if len(found) != 1:
        raise SchemaError(f"{path}: {len(found)} cameras of stream {stream!r}; one is needed.")
    return fisheye624(found[0], where), _pose(get(found[0], "T_Device_Camera", where), where)


def fisheye624(entry: dict, where: str) -> Camera:
    """Return the camera of a HOT3D calibration entry with 15 (one focal length) or 16 numbers.

    Accepts the spelling of recordings (``projectionParams``) and of clips (``projection_params``).
    """
    entry = mapping(entry, where)
    spelled = "projectionParams" if "projectionParams" in entry else "projection_params"
    numbers = array(get(entry, spelled, where), (None,), f"{where} {spelled}")
    kind = str(entry.get("projectionModelType", entry.get("projection_model_type", "")))
    if not kind.endswith("FISHEYE624") or len(numbers) not in (15, 16):
        raise SchemaError(
            f"{where}: projection {kind!r} with {len(numbers)} numbers; FISHEYE624 with 15 or 16 "
            "is needed."
        )
    if len(numbers) == 15:
        numbers = np.concatenate([numbers[:1], numbers])
    width, height = (
        integer(get(entry, name, where), f"{where} {name}")
        for name in (
            "imageWidth" if "imageWidth" in entry else "image_width",
            "imageHeight" if "imageHeight" in entry else "image_height",
        )
    )
    fx, fy, cx, cy, *lens = map(float, numbers)
    return Camera("fisheye624", width, height, fx, fy, cx, cy, tuple(lens))


def stream_poses(folder: Path, stream: str, boxes: HandBoxes) -> tuple[StreamPoses, list[str]]:
    """Return the moments of a stream, its camera at each, and where it was; and what was found.

    Raises: as ``hot3d.stream_poses``.
    """
    camera, T_device_camera = read_quest_camera(folder, stream)
    headset = read_headset(folder)
    times = moments(boxes, stream)
    T_world_device, notes = headset_poses(folder, headset, times)
    return StreamPoses(times, (camera,) * len(times), T_world_device @ T_device_camera), notes


def _pose(value: dict, where: str) -> RigidTransform:
    quaternion = array(get(value, "quaternion_wxyz", where), (4,), f"{where} quaternion_wxyz")
    translation = array(get(value, "translation_xyz", where), (3,), f"{where} translation_xyz")
    return frames.rigid(rotations.from_quaternion(quaternion), translation)


read_pose = _pose


CONVENTION = Convention("components", False, "mano", True, "world")
_FPS = 30.0
#: Participants whose labels the authors keep.
_WITHHELD = ("P0004", "P0005", "P0006", "P0008", "P0016", "P0020")
LICENCES = ("HOT3D: the dataset's own licence, https://www.projectaria.com/datasets/hot3d",)


class Hot3dReader:
    """``Reader`` of HOT3D recordings. "main" is the colour camera of Aria, the left one of Quest 3.

    The paper's 126 and 72 recordings are not published; ours are split by hash of the name.
    """

    name = "hot3d"
    title = "HOT3D"
    views = ("main", *hot3d_files.STREAMS)

    def items(self, root: Path, options: ReadOptions) -> Sequence[Item]:
        """List sequences with MANO labels."""
        view = options.view or self.views[0]
        out = []
        folders = [root, *subfolders(root), *(p for f in subfolders(root) for p in subfolders(f))]
        for folder in folders:
            labels = folder / hot3d_files.MANO_FILE
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
            split = hashed_split(recording, "hot3d")
            name = safe_name(recording, stream)
            out.append(Item(self.name, name, split, folder, key, participant))
        if not out:
            raise InputError(
                f"{root}: this does not look like HOT3D; no sequence folder with a non-empty "
                f"{hot3d_files.MANO_FILE}."
            )
        return sorted(out, key=lambda item: item.name)

    def sources(self, item: Item) -> Sequence[Path]:
        """Return the files and folders that a recording is read from."""
        return [item.path, *(item.path / name for name in ("mps/slam", "masks")),
                item.path / hot3d_files.MANO_FILE]  # fmt: skip

    def read(self, item: Item, options: ReadOptions) -> NativeRecording:
        """Read one sequence as seen by one camera."""
        stream, quest = item.key["stream"], item.key["device"] == "quest3"
        boxes = hot3d_files.read_boxes(item.path)
        poses, findings = _poses(item.path, stream, boxes, quest)
        findings += _metadata(item.path)
        motion, missing = hot3d.motion_at(item.path, poses.timestamps_ns)
        findings += missing
        masks, found = _masks(item.path, stream, poses.timestamps_ns)
        findings += found
        visible = hot3d.visibility(boxes, stream, poses.timestamps_ns)
        visible[~masks["hand_visible"]] = 0
        unposed = (visible > 0) & ~motion.present
        if unposed.any():
            findings.append(f"{int(unposed.sum())} hands have a visible box but no MANO pose.")
        posed = np.isfinite(poses.T_world_camera).all((-1, -2))
        present, found = _trusted(motion.present & posed[:, None], visible, masks)
        findings += found
        camera = poses.cameras[len(poses.cameras) // 2]
        findings += _lens_changes(poses.cameras)
        findings += _wrists_in_boxes(item.path, stream, boxes, poses)
        T_world_camera = poses.T_world_camera
        source = None
        path = item.path / "recording.vrs"
        if path.is_file() and options.pictures:
            source = (options.open_frames or open_vrs)(path, stream, poses.timestamps_ns)
        elif not path.is_file():
            findings.append("no recording.vrs; no pictures.")
        if not quest:
            camera, T_world_camera = turned_camera(camera), T_world_camera @ TURN
            source = None if source is None else TurnedFrames(source)
        count = len(poses.timestamps_ns)
        return NativeRecording(
            item=item,
            timestamps_ns=poses.timestamps_ns,
            fps=_FPS,
            width=camera.width,
            height=camera.height,
            frames=source,
            camera=camera,
            mano=ManoTrack(
                CONVENTION,
                present,
                motion.global_orient,
                motion.pca,
                np.broadcast_to(motion.betas, (count, 2, 10)),
                motion.translation,
                frames.inverse(T_world_camera),
            ),
            joints_camera=None,
            joints_image=None,
            present=present,
            visible=visible,
            # No label is no sign of absence: poses get lost. A hand with one is there.
            unposed=np.where(motion.present | (visible > 0), 1, 0.5).astype(np.float32),
            stored={f"mask_{name}": values for name, values in masks.items()},
            T_world_camera=T_world_camera,
            licences=LICENCES,
            findings=tuple(findings),
        )


def _poses(
    folder: Path, stream: str, boxes: hot3d_files.HandBoxes, quest: bool
) -> tuple[hot3d.StreamPoses, list[str]]:
    if quest:
        return stream_poses(folder, stream, boxes)
    return hot3d.stream_poses(folder, stream, boxes)


def _masks(folder: Path, stream: str, times: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return each of ``MASKS`` at these times, True where it says nothing, and what to say."""
    out, findings, missing = {}, [], []
    for name, meaning in hot3d_files.MASKS.items():
        found = hot3d_files.read_mask(folder, name, stream, times)
        values, told = found or (np.ones(len(times), bool), np.ones(len(times), bool))
        out[name] = values
        if found is None:
            missing.append(name)
        if not told.all():
            findings.append(
                f"mask_{name}.csv says nothing of {int((~told).sum())} of {len(times)} frames; "
                "they are taken as good."
            )
        if not values.all():
            findings.append(
                f"mask_{name}.csv is False in {int((~values).sum())} of {len(times)} frames (True: "
                f"{meaning})."
            )
    if missing:
        findings.append(f"no masks of {', '.join(missing)}.")
    return out, findings


def _trusted(
    posed: np.ndarray, visible: np.ndarray, masks: dict[str, np.ndarray]
) -> tuple[np.ndarray, list[str]]:
    """Return which hands with a pose are labelled, by the masks (T, 2), and what to say.

    ``hand_pose_available`` is also False where one hand lacks its pose: the other keeps its label.
    Where it is False and both have one, nothing says which of them is not valid. Exposure concerns
    what is seen: a hand out of the picture keeps its label. ``hand_visible`` takes no label away,
    for hands out of sight are labelled.
    """
    out = posed & (masks["headset_pose_available"] & masks["qa_pass"])[:, None]
    out &= (masks["hand_pose_available"] | ~posed.all(1))[:, None]
    out &= masks["good_exposure"][:, None] | (visible == 0)
    lost = int((posed & ~out).sum())
    return out, [f"{lost} hands with a pose are unlabelled, because of masks."] if lost else []


def _recording_name(folder: Path) -> str:
    """Return the name in metadata.json, which a renamed folder does not change; else the folder's.

    A recording's split hangs on it.
    """
    path = folder / "metadata.json"
    try:
        values = read_json(path) if path.is_file() else {}
    except InputError:  # of this recording alone: reading it says so, the others are listed
        values = {}
    name = values.get("recording_name") if isinstance(values, dict) else None
    return name if isinstance(name, str) and name else folder.name


def _metadata(folder: Path) -> list[str]:
    path = folder / "metadata.json"
    if not path.is_file():
        return ["no metadata.json: the version of the labels is not known."]
    values = mapping(read_json(path), str(path))
    version = values.get("dataset_version", values.get("version"))
    if version is None:
        return ["metadata.json names no version of the labels; MANO thumbs of version 1 are wrong."]
    return [f"labels of version {version}."]


def _lens_changes(cameras: tuple[Camera, ...]) -> list[str]:
    focal = np.array([camera.fx for camera in cameras])
    if np.ptp(focal) == 0:
        return []
    return [
        f"the camera is calibrated per frame; the one of the middle frame is used (the focal "
        f"length changes by {np.ptp(focal):.3g} px over the recording)."
    ]


def _wrists_in_boxes(
    folder: Path, stream: str, boxes: hot3d_files.HandBoxes, poses: hot3d.StreamPoses
) -> list[str]:
    """Say how many UmeTrack wrists project into the hand's box: tests every transform at once."""
    if not (folder / hot3d_files.UMETRACK_FILE).is_file():
        return ["no UmeTrack poses to check boxes with."]
    inside, total = hot3d.wrists_in_boxes(hot3d_files.read_umetrack(folder), boxes, stream, poses)
    return [f"UmeTrack wrists lie inside {inside} of {total} non-empty boxes."]
