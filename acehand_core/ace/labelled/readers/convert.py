"""Conversion of one recording of a dataset to one clip."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips.schema import (
    CONVERTED_BY,
    ClipInfo,
    StoreInfo,
    Supervision,
    clip_id,
)
from acehand_core.ace.labelled.clips.store import ClipStore, ClipWriter, made_from
from acehand_core.ace.labelled.readers import pictures
from acehand_core.ace.labelled.readers.base import Item, NativeRecording, Reader, ReadOptions, Split
from acehand_core.ace.labelled.readers.conventions import CameraHands, ManoSource, to_camera
from acehand_core.errors import AcehandError, InputError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mano import ManoHand, load_mano
from acehand_core.motion import HandMotion
from acehand_core.provenance import Provenance
from acehand_core.safe_files import content_sha256
from acehand_core.settings import group, setting

#: Larger files are identified by size and time, not by content.
_HASHED_BYTES = 64 << 20


#: 4: unlabelled frames stay, masks of HOT3D, one definition of ``visible``; 3: hands that exist
#: without a pose; 2: empty clips keep their hand model.
_VERSION = 4


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Settings of ``acehand data convert``; several ``jobs`` need a picklable ``open_frames``."""

    root: Path = setting(..., "folder of the dataset", metavar="DIR")
    output: Path = setting(..., "folder for the stores", metavar="DIR")
    splits: tuple[Split, ...] = setting((), "splits to convert", flag="split", default_text="all")
    split_file: Path | None = setting(
        None, "recordings of each split, replaces the dataset's", metavar="JSON"
    )
    jobs: int = setting(1, "processes", low=1)
    clips: pictures.ClipOptions = group(pictures.ClipOptions)
    read: ReadOptions = group(ReadOptions)


class ItemConverter:
    """Converts recordings of one dataset; caches MANO, file hashes and stores. One per process.

    Raises: InputError, SchemaError, MissingDependencyError when MANO cannot be loaded.
    """

    def __init__(self, reader: Reader, options: RunOptions) -> None:
        self.reader, self.options = reader, options
        self.mano = mano_source(options.clips.mano)
        if self.mano is not None:
            self.mano(False)  # errors come before any work
        self._hashes: dict[tuple[Path, int, int], str] = {}
        self._writers: dict[str, ClipWriter] = {}

    def writer(self, split: Split) -> ClipWriter:
        """Return the writer of a split's store."""
        if split not in self._writers:
            folder = self.options.output / split
            self._writers[split] = ClipWriter(folder, self.store_info(split), other_settings=True)
        return self._writers[split]

    def store_info(self, split: Split) -> StoreInfo:
        """Return the metadata of a split's store."""
        clips = self.options.clips
        settings = {name: getattr(clips, name) for name in ("images", "width", "quality")}
        settings |= {"mano": clips.mano is not None, "view": self.options.read.view}
        licence = f"that of {self.reader.title}"
        return StoreInfo(self.reader.name, split, CONVERTED_BY, licence, settings)

    def convert(self, item: Item) -> tuple[ClipInfo, bool] | InputError:
        """Write one recording as a clip; return its metadata and whether it was kept unchanged.

        Returns the recording's error; errors of all recordings (disk full, package missing) are
        raised.
        """
        try:
            return self._converted(item, self.writer(item.split))
        except InputError as error:
            return error
        except AcehandError:
            raise
        except Exception as error:  # an unforeseen file must not end the conversion
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            return InputError(f"could not be read: {type(error).__name__}: {error} (in {where}).")

    def _converted(self, item: Item, writer: ClipWriter) -> tuple[ClipInfo, bool]:
        options, key = self.options.clips, self._key(item)
        name = clip_id(item.name)
        if writer.has(name, key):
            return ClipStore(writer.root).info_of(name), True

        native = self.reader.read(item, self.options.read)
        hands, findings = None, list(native.findings)
        if native.mano is not None:
            hands = to_camera(native.mano, self.mano)
            findings += hands.findings
            labelled = native.mano.present
            without = native.present & ~labelled
            if self.mano is not None and labelled.any() and without.any():
                # They become unlabelled: a clip has one hand model throughout.
                findings.append(
                    f"{int(without.sum())} hands have joints but no MANO; they count as "
                    "unlabelled (see native.npz)."
                )
                known = native.unlabelled_presence
                presence = np.where(without, 1, 0 if known is None else known).astype(np.float32)
                native = replace(native, present=labelled, unlabelled_presence=presence)
            findings += _agreement(native, hands)

        reference = pictures.reference(native, options)
        if reference is None:
            frames, camera, size, done = pictures.pictures(native, options)
        else:
            frames, camera, size, done = None, native.camera, native.size, []
        motion, complete = hand_motion(native, hands, camera, size, self.mano is not None)

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
            media="none" if reference is None else "reference",
            reference=reference,
            hand_model=motion.hand_model,
            supervision=_supervision(native, motion, complete, camera),
            left_shapedirs_fixed=motion.left_shapedirs_fixed,
            source=_source(native, motion, done, findings),
            made_from=key,
        )
        extra = _native_arrays(native)
        return writer.write(info, motion, frames, extra=extra, quality=options.quality), False

    def _key(self, item: Item) -> str:
        """Return the hash of a clip's inputs, settings and MANO."""
        options = self.options.clips
        settings: dict[str, Any] = {
            "version": _VERSION,
            "item": [item.dataset, item.name, item.split],
            "pictures": self.options.read.pictures,
        }
        settings |= {n: getattr(options, n) for n in ("images", "width", "quality", "media")}
        files = [self._fingerprint(path) for path in self.reader.sources(item)]
        mano = [] if options.mano is None else [self._fingerprint(options.mano)]
        return made_from([*files, "mano", *mano], settings)

    def _fingerprint(self, path: Path) -> str:
        """Return a line that changes with a file or folder; "absent" if it is missing.

        Files by content, large ones by size and time; folders by their files' names, sizes and
        times.
        """
        if path.is_dir():
            lines = sorted(
                f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}"
                for p in path.iterdir()
                if p.is_file()
            )
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
        if not path.is_file():
            return "absent"

        status = path.stat()
        if status.st_size > _HASHED_BYTES:
            return f"{path.name} {status.st_size} {status.st_mtime_ns}"
        key = path, status.st_size, status.st_mtime_ns
        if key not in self._hashes:  # items of an image dataset share their files of labels
            self._hashes[key] = content_sha256(path)
        return self._hashes[key]


def hand_motion(
    native: NativeRecording,
    hands: CameraHands | None,
    camera: Camera | None,
    size: tuple[int, int],
    with_mano: bool,
) -> tuple[HandMotion, bool]:
    """Return the labels as a HandMotion, and whether MANO's parameters are complete.

    Joints are MANO's if complete, else the dataset's own; then the hand model is "none" and known
    parameters stay. ``with_mano``: a recording of a MANO dataset without any hand is a MANO clip,
    because a store has one hand model.

    ``visible`` is the share of keypoints inside the picture, occluded or not; without keypoints 1
    for a hand that is labelled or, by the dataset, partly visible.
    """
    present = native.present
    hands = CameraHands.unknown(len(present), False) if hands is None else hands
    joints = hands.joints_camera
    known = np.isfinite(joints).all((-1, -2))
    complete = native.mano is not None and bool(known[present].all())
    complete &= with_mano or bool(present.any())
    if not complete and native.joints_camera is not None:
        joints = native.joints_camera
    orient, pose = hands.global_orient, hands.hand_pose
    if complete:
        orient = np.where(present[..., None, None], orient, np.eye(3))
        pose = np.where(present[..., None, None, None], pose, np.eye(3))

    image = np.full((len(present), 2, 21, 2), np.nan)
    if native.joints_image is not None:
        scale = np.array(size) / native.size
        image = (native.joints_image + 0.5) * scale - 0.5
    given = native.joints_image is not None
    if camera is not None and not (given and camera.model == pictures.native_model(native)):
        image = camera.project(joints)

    presence = present.astype(np.float32)
    if native.unlabelled_presence is not None:
        presence = np.where(present, presence, native.unlabelled_presence).astype(np.float32)

    visible = _visible(native, joints, image, camera, size) * (presence > 0.5)
    licences = ("MANO: non-commercial, https://mano.is.tue.mpg.de",) if complete else ()
    motion = HandMotion(
        timestamps_ns=native.timestamps_ns,
        fps=native.fps,
        presence=presence,
        visible=visible.astype(np.float32),
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
        provenance=Provenance(
            source=native.item.name,
            source_sha256=None,
            tracker=f"{native.item.dataset} ground truth",
            licenses=(*native.licences, *licences),
        ),
        left_shapedirs_fixed=hands.left_shapedirs_fixed,
        camera=camera,
        T_world_camera=native.T_world_camera,
    )
    return motion, complete


def _source(
    native: NativeRecording, motion: HandMotion, changed: list[str], findings: list[str]
) -> dict[str, Any]:
    """Return ``ClipInfo.source``; ``changed`` lists what was done to the pictures."""
    item = native.item
    unlabelled = (motion.presence > 0) & ~motion.observed
    slots = np.array(native.slots)

    return {
        "recording": item.name,
        "group": item.group,
        **{k: v for k, v in item.key.items() if not Path(v).is_absolute()},
        "native_fps": native.fps,
        "native_size": list(native.size),
        "native_camera": native.camera.to_json() if native.camera else None,
        "convention": dataclasses.asdict(native.mano.convention) if native.mano else None,
        "pictures": changed,
        "unlabelled_frames": int((unlabelled[:, slots].all(1) & slots.any()).sum()),
        "left_out_frames": native.left_out,
        "findings": findings,
    }


def mano_source(path: Path | None) -> ManoSource | None:
    """Return a cached loader of MANO for ``to_camera``; None without files."""
    if path is None:
        return None
    if not path.exists():
        raise InputError(f"{path}: no such file or folder of MANO.")

    @functools.cache
    def load(left_shapedirs_fixed: bool) -> ManoHand:
        return load_mano(path, left_shapedirs_fixed=left_shapedirs_fixed, dtype="float64")

    return load


def _visible(
    native: NativeRecording,
    joints: np.ndarray,
    image: np.ndarray,
    camera: Camera | None,
    size: tuple[int, int],
) -> np.ndarray:
    """Return ``HandMotion.visible`` as ``hand_motion`` defines it; ``image`` in stored pixels."""
    if camera is not None:
        posed = np.isfinite(joints).any((-1, -2), keepdims=True)
        image = np.where(posed, camera.project(joints), image)
    inside = (image >= -0.5).all(-1) & (image < np.array(size) - 0.5).all(-1)
    inside &= ~(joints[..., 2] <= 0)
    known = np.isfinite(image).any((-1, -2))
    labelled = native.present if native.visible is None else native.visible > 0
    return np.where(known, inside.mean(-1), labelled)


def _supervision(
    native: NativeRecording, motion: HandMotion, complete: bool, camera: Camera | None
) -> Supervision:
    present = native.present
    taught = complete and bool(present.any())  # a clip without hands teaches only absence
    joints = bool(np.isfinite(motion.joints_camera[present]).all()) and bool(present.any())
    fisheye = camera is not None and camera.model in ("kannala_brandt", "fisheye624")

    return Supervision(
        rotations=taught,
        shape=taught,
        translation=taught,
        joints=joints,
        anchors=bool(np.isfinite(motion.joints_image[present]).any()),
        presence=native.mano is not None or native.joints_camera is not None,
        camera=camera is not None,
        pinhole_fit=camera is not None and not fisheye,
        slots=native.slots,
    )


def _agreement(native: NativeRecording, hands: CameraHands) -> list[str]:
    """Report the distance of MANO's joints from the dataset's own, in 3D and in the picture."""
    findings = []
    if native.joints_camera is not None:
        distance = np.linalg.norm(hands.joints_camera - native.joints_camera, axis=-1)
        if np.isfinite(distance).any():
            findings.append(
                f"MANO's joints lie {np.nanmean(distance) * 1e3:.2f} mm (mean) from the dataset's."
            )

    if native.joints_image is not None and native.camera is not None:
        pixels = native.camera.project(hands.joints_camera) - native.joints_image
        distance = np.linalg.norm(pixels, axis=-1)
        if np.isfinite(distance).any():
            mean = np.nanmean(distance)
            findings.append(f"MANO's joints project {mean:.2f} px (mean) from kps2D.")
    return findings


def _native_arrays(native: NativeRecording) -> dict[str, dict[str, np.ndarray]]:
    """Return the labels as stored, for ``native.npz``."""
    arrays: dict[str, np.ndarray | None] = {}
    if native.mano is not None:
        for name in ("present", "global_orient", "fingers", "betas", "translation"):
            arrays[f"mano_{name}"] = np.array(getattr(native.mano, name))
        arrays["T_camera_world"] = native.mano.T_camera_world
    for name in ("joints_camera", "joints_image", "visible"):
        arrays[name] = getattr(native, name)
    stored = {n: a for n, a in (arrays | dict(native.stored)).items() if a is not None}
    return {"native": stored} if stored else {}
