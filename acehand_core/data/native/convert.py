"""One recording of a dataset as one clip of the shared format."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from acehand_core.data.clips.schema import ClipInfo, Supervision, clip_id
from acehand_core.data.clips.store import ClipStore, ClipWriter, made_from
from acehand_core.data.content_hash import content_sha256
from acehand_core.data.native.conventions import CameraHands, ManoSource, to_camera
from acehand_core.data.native.mano_files import load_mano
from acehand_core.data.native.protocol import Item, NativeRecording, Reader, ReadOptions
from acehand_core.data.undistort import UndistortedFrames
from acehand_core.errors import InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mano import ManoHand
from acehand_core.motion import FrameSource, HandMotion, Provenance
from acehand_core.types import ImageRgb

Images = Literal["auto", "keep", "undistort", "none"]
#: Datasets whose distorted pictures the paper feeds undistorted; Re:InterHand's stay fisheye.
_UNDISTORTED = ("arctic", "hot3d", "hot3d_clips")
#: Files above this size are told apart by size and time, not by content.
_HASHED_BYTES = 64 << 20
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """How recordings become clips.

    Attributes:
        images: "keep" pictures with their lens, "undistort" them to a pinhole of the same focal
            length, "none" at all; "auto" does as the paper does with each dataset.
        width: pictures are made this wide, camera rescaled; None keeps the native size.
        quality: of stored video, see ``ClipWriter.write``.
        mano: the user's MANO files; None converts without (see ``conventions.to_camera``).
    """

    images: Images = "auto"
    width: int | None = None
    quality: Literal["visual", "lossless"] = "visual"
    mano: Path | None = None


def convert_item(
    reader: Reader, item: Item, writer: ClipWriter, options: ClipOptions, read: ReadOptions
) -> tuple[ClipInfo, bool]:
    """Write one recording as a clip; return its description and whether it was there already.

    Raises: what the reader raises; OutputError.
    """
    key = _key(reader, item, options, read)
    name = clip_id(item.name)
    if writer.has(name, key):
        return ClipStore(writer.root).info_of(name), True
    if options.images == "none":
        read = replace(read, pictures=False)
    native = reader.read(item, read)
    hands = None
    mano = mano_source(options.mano)
    if native.mano is not None:
        hands = to_camera(native.mano, mano)
    frames, camera, size, done = pictures(native, options)
    motion, complete = hand_motion(native, hands, camera, size)
    findings = [*native.findings, *(hands.findings if hands else ()), *_agreement(native, hands)]
    info = ClipInfo(
        id=name,
        dataset=item.dataset,
        split=item.split,
        kind="image" if native.still else "video",
        frames=len(motion),
        fps=native.fps,
        width=size[0],
        height=size[1],
        camera=camera,
        hand_model=motion.hand_model,
        supervision=_supervision(native, motion, complete, camera),
        left_shapedirs_fixed=motion.left_shapedirs_fixed,
        source={
            "recording": item.name,
            "group": item.group,
            **{k: v for k, v in item.key.items() if not Path(v).is_absolute()},
            "native_fps": native.fps,
            "native_size": [native.width, native.height],
            "native_camera": native.camera.to_json() if native.camera else None,
            "convention": dataclasses.asdict(native.mano.convention) if native.mano else None,
            "pictures": done,
            "findings": findings,
        },
        made_from=key,
    )
    info = writer.write(info, motion, frames, extra=_native_arrays(native), quality=options.quality)
    return info, False


def hand_motion(
    native: NativeRecording,
    hands: CameraHands | None,
    camera: Camera | None,
    size: tuple[int, int],
) -> tuple[HandMotion, bool]:
    """Return the labels as a HandMotion, and whether MANO's parameters are complete.

    Joints are MANO's where MANO is known, else the dataset's own. Without complete parameters the
    hand model is "none"; what is known of them stays.
    """
    count, present = len(native.timestamps_ns), native.present
    if hands is None:
        nan = np.full((count, 2), np.nan)
        hands = CameraHands(
            nan[..., None, None].repeat(3, 2).repeat(3, 3), np.full((count, 2, 15, 3, 3), np.nan),
            np.zeros((2, 10)), nan[..., None].repeat(3, 2), np.full((count, 2, 21, 3), np.nan),
            False,
        )  # fmt: skip
    joints = hands.joints_camera
    known = np.isfinite(joints).all((-1, -2))
    complete = bool(known[present].all()) and native.mano is not None and bool(present.any())
    if not complete and native.joints_camera is not None:
        joints = native.joints_camera
    orient, pose = hands.global_orient, hands.hand_pose
    if complete:
        orient = np.where(present[..., None, None], orient, np.eye(3))
        pose = np.where(present[..., None, None, None], pose, np.eye(3))
    image = native.joints_image
    scale = np.array(size) / (native.width, native.height)
    if image is not None:
        image = (image + 0.5) * scale - 0.5
    if camera is not None and (image is None or camera.model != native_model(native)):
        image = camera.project(joints)
    if image is None:
        image = np.full((count, 2, 21, 2), np.nan)
    visible = native.visible
    if visible is None:
        visible = _share_in_view(joints, image, size, present)
    motion = HandMotion(
        timestamps_ns=native.timestamps_ns,
        fps=native.fps,
        presence=present.astype(np.float32),
        visible=np.clip(visible * present, 0, 1).astype(np.float32),
        quality=present.astype(np.float32),
        observed=present,
        filled=np.zeros_like(present),
        global_orient=orient,
        hand_pose=pose,
        betas=hands.betas,
        translation=hands.translation,
        joints_camera=joints,
        joints_image=image,
        hand_model="mano" if complete else "none",
        provenance=_provenance(native, complete),
        left_shapedirs_fixed=hands.left_shapedirs_fixed,
        camera=camera,
        T_world_camera=native.T_world_camera,
    )
    return motion, complete


def native_model(native: NativeRecording) -> str:
    """Return the camera model of the native pictures, or "" where it is not known."""
    return native.camera.model if native.camera else ""


def pictures(
    native: NativeRecording, options: ClipOptions
) -> tuple[Iterator[ImageRgb] | None, Camera | None, tuple[int, int], list[str]]:
    """Return pictures to store, their camera and size, and what was done to them."""
    camera, source = native.camera, native.frames
    size, done = (native.width, native.height), []
    undistort = options.images == "undistort" or (
        options.images == "auto" and native.item.dataset in _UNDISTORTED
    )
    if undistort and camera is not None and camera.model != "pinhole":
        done.append(f"undistorted from {camera.model} to a pinhole of the same focal length")
        source = None if source is None else UndistortedFrames(source, camera)
        camera = camera.pinhole_like()
    target = size
    if options.width is not None and options.width != size[0]:
        height = max(2, round(options.width * size[1] / size[0] / 2) * 2)
        target = (options.width, height)
        done.append(f"resized from {size[0]} x {size[1]} to {target[0]} x {target[1]}")
        camera = None if camera is None else camera.rescaled(*target)
    even = (target[0] - target[0] % 2, target[1] - target[1] % 2)
    if not native.still and options.quality == "visual" and even != target:
        done.append("the last column or row was cut off: the video format needs even sizes")
    else:
        even = target
    camera = None if camera is None else camera.cropped(0, 0, *even)
    if source is None or options.images == "none":
        return None, camera, even, done
    return _prepared(source, target, even), camera, even, done


def _prepared(
    source: FrameSource, target: tuple[int, int], even: tuple[int, int]
) -> Iterator[ImageRgb]:
    for image in source.read(0, len(source)):
        if (image.shape[1], image.shape[0]) != target:
            smaller = target[0] < image.shape[1]
            how = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
            image = cv2.resize(image, target, interpolation=how)
        yield np.ascontiguousarray(image[: even[1], : even[0]])


def mano_source(path: Path | None) -> ManoSource | None:
    """Return how ``to_camera`` gets MANO; None without files."""
    return None if path is None else functools.partial(_mano, path)


@functools.lru_cache(maxsize=4)
def _mano(path: Path, left_shapedirs_fixed: bool) -> ManoHand:
    return load_mano(path, left_shapedirs_fixed=left_shapedirs_fixed, dtype="float64")


def _share_in_view(
    joints: np.ndarray, image: np.ndarray, size: tuple[int, int], present: np.ndarray
) -> np.ndarray:
    """Return the share of keypoints inside the picture; 1 where no keypoint is known."""
    inside = (image >= -0.5).all(-1) & (image < np.array(size) - 0.5).all(-1)
    inside &= ~(joints[..., 2] <= 0)
    known = np.isfinite(image).any((-1, -2)) | np.isfinite(joints).any((-1, -2))
    return np.where(known, inside.mean(-1), present)


def _supervision(
    native: NativeRecording, motion: HandMotion, complete: bool, camera: Camera | None
) -> Supervision:
    present = native.present
    joints = bool(np.isfinite(motion.joints_camera[present]).all()) and bool(present.any())
    anchors = bool(np.isfinite(motion.joints_image[present]).any())
    labelled = native.mano is not None or native.joints_camera is not None
    fisheye = camera is not None and camera.model in ("kannala_brandt", "fisheye624")
    return Supervision(
        rotations=complete,
        shape=complete,
        translation=complete,
        joints=joints,
        anchors=anchors,
        presence=labelled,
        camera=camera is not None,
        pinhole_fit=camera is not None and not fisheye,
        slots=native.slots,
    )


def _agreement(native: NativeRecording, hands: CameraHands | None) -> list[str]:
    """Say how far MANO's joints lie from the dataset's own, in 3D or in the picture."""
    if hands is None or not np.isfinite(hands.joints_camera).any():
        return []
    out = []
    if native.joints_camera is not None:
        distance = np.linalg.norm(hands.joints_camera - native.joints_camera, axis=-1)
        if np.isfinite(distance).any():
            out.append(
                f"MANO's joints lie {np.nanmean(distance) * 1e3:.2f} mm (mean) from the dataset's."
            )
    if native.joints_image is not None and native.camera is not None:
        pixels = native.camera.project(hands.joints_camera) - native.joints_image
        distance = np.linalg.norm(pixels, axis=-1)
        if np.isfinite(distance).any():
            out.append(f"MANO's joints project {np.nanmean(distance):.2f} px (mean) from kps2D.")
    return out


def _native_arrays(native: NativeRecording) -> dict[str, dict[str, np.ndarray]]:
    """Return the labels as stored, beside the converted ones: nothing of them is lost."""
    out: dict[str, np.ndarray] = {}
    if native.mano is not None:
        for name in ("present", "global_orient", "fingers", "betas", "translation"):
            out[f"mano_{name}"] = np.array(getattr(native.mano, name))
        if native.mano.T_camera_world is not None:
            out["T_camera_world"] = native.mano.T_camera_world
    if native.joints_camera is not None:
        out["joints_camera"] = native.joints_camera
    if native.joints_image is not None:
        out["joints_image"] = native.joints_image
    return {"native": out} if out else {}


def _provenance(native: NativeRecording, complete: bool) -> Provenance:
    licences = native.licences
    if complete:
        licences = (*licences, "MANO: non-commercial, https://mano.is.tue.mpg.de")
    return Provenance(
        source=native.item.name,
        source_sha256=None,
        tracker=f"{native.item.dataset} ground truth",
        licenses=licences,
    )


def _key(reader: Reader, item: Item, options: ClipOptions, read: ReadOptions) -> str:
    """Return what decides whether a clip must be made anew: inputs, settings and MANO."""
    settings: dict[str, Any] = {
        "version": _VERSION,
        "item": [item.dataset, item.name, item.split],
        "images": options.images,
        "width": options.width,
        "quality": options.quality,
        "pictures": read.pictures,
    }
    mano = [] if options.mano is None else _fingerprints([options.mano])
    return made_from([*_fingerprints(reader.sources(item)), "mano", *mano], settings)


def _fingerprints(paths: Sequence[Path]) -> list[str]:
    out = []
    for path in paths:
        if path.is_dir():
            lines = sorted(
                f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}"
                for p in path.iterdir()
                if p.is_file()
            )
            out.append(hashlib.sha256("\n".join(lines).encode()).hexdigest())
        elif path.is_file():
            status = path.stat()
            out.append(_file_fingerprint(path, status.st_size, status.st_mtime_ns))
        else:
            out.append("absent")
    return out


@functools.lru_cache(maxsize=64)
def _file_fingerprint(path: Path, size: int, mtime_ns: int) -> str:
    if size > _HASHED_BYTES:
        return f"{path.name} {size} {mtime_ns}"
    return content_sha256(path)


def check_mano(path: Path | None) -> None:
    """Load MANO once before any work. Raises InputError, SchemaError or MissingDependencyError."""
    if path is not None:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder of MANO.")
        _mano(path, False)
