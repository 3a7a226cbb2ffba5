"""HOT3D-Clips: five seconds per tar, with pictures, cameras and hands of every frame.

Nothing is unpacked. The test clips have no hands and are not listed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.hot3d import CONVENTION, LICENCES
from acehand_core.ace.labelled.readers.hot3d_files import fisheye624, read_pose
from acehand_core.ace.labelled.readers.pictures import (
    TarImages,
    list_tar,
    read_member,
    upright_image,
)
from acehand_core.errors import SchemaError
from acehand_core.geometry import frames, rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.motion import ChangedFrames, FrameSource
from acehand_core.recordings.vrs import UPRIGHT
from acehand_core.types import SIDES
from acehand_core.user_files import read_json

_FPS = 30.0
_FOLDERS = ("train_aria", "train_quest3")
_SHAPES = "__hand_shapes.json__"


class Hot3dClipsReader:
    """``Reader`` of HOT3D-Clips. A clip has its recording's split, see ``Hot3dReader``."""

    name = "hot3d_clips"
    title = "HOT3D-Clips"
    views = ("main", "214-1", "1201-1", "1201-2")

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List clips of the training participants."""
        view = options.view or self.views[0]
        path = root / "clip_definitions.json"
        definitions = base.mapping(read_json(path), str(path)) if path.is_file() else {}

        items = []
        for folder in _FOLDERS:
            device = folder.removeprefix("train_")
            stream = ("214-1" if device == "aria" else "1201-1") if view == "main" else view
            if device == "quest3" and stream == "214-1":
                continue
            for archive in sorted((root / folder).glob("clip-*.tar")):
                number = archive.stem.removeprefix("clip-").lstrip("0") or "0"
                definition = base.mapping(definitions.get(number, {}), f"{path} {number}")
                sequence = str(definition.get("sequence_id") or definition.get("sequence", ""))
                split = base.hashed_split(sequence or archive.stem, "hot3d")
                key = {"stream": stream, "device": device, "sequence": sequence}
                name = base.safe_name(archive.stem, stream)
                items.append(
                    base.Item(self.name, name, split, archive, key, sequence.split("_")[0])
                )

        archives = "train_aria/clip-*.tar or train_quest3/clip-*.tar"
        return base.need_items(items, root, self.title, archives)

    def sources(self, item: base.Item) -> Sequence[Path]:
        return [item.path]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        stream, archive = item.key["stream"], item.path
        members = list_tar(archive)
        image = f".image_{stream}.jpg"
        every = sorted({n.split(".")[0] for n in members if n.endswith((".cameras.json", image))})
        pictures = [key for key in every if key + image in members]
        keys = pictures or every
        if not any(f"{key}.cameras.json" in members for key in keys):
            raise SchemaError(f"{archive}: no frame with .cameras.json.")

        def load(name: str) -> base.Record | None:
            if name not in members:
                return None
            where = f"{archive}:{name}"
            try:
                value = json.loads(read_member(archive, members[name]).decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise SchemaError(f"{where}: not JSON ({error}).") from error
            return base.mapping(value, where)

        cameras, T_world_camera, findings = _cameras(
            {f"{archive}:{key}.cameras.json": load(f"{key}.cameras.json") for key in keys}, stream
        )
        posed = np.isfinite(T_world_camera).all((-1, -2))
        shapes = load(_SHAPES)
        track, visible, unlabelled_presence = _hands(
            [load(f"{key}.hands.json") for key in keys], shapes, stream, archive
        )
        labelled = any(f"{key}.hands.json" in members for key in keys)
        if not labelled:
            findings.append("no hands.json: nothing is labelled.")
        elif not track[0].any():
            findings.append("no hands in this clip.")

        times, notes = _times([load(f"{key}.info.json") for key in keys], stream)
        findings += notes
        camera = cameras[len(cameras) // 2]
        focal = np.ptp([c.fx for c in cameras])
        if focal > 0:
            findings.append(f"the focal length changes by {focal:.3g} px; the middle one is used.")
        source: FrameSource = TarImages(archive, [members[key + image] for key in pictures])
        if len(pictures) < len(every):
            findings.append(f"{len(every) - len(pictures)} of {len(every)} frames have no picture.")
        if item.key["device"] == "aria":
            camera, T_world_camera = camera.rotated(90), T_world_camera @ UPRIGHT
            source = ChangedFrames(source, upright_image)

        present, orient, fingers, betas, translation = track
        unlabelled_presence[~posed] = np.maximum(
            unlabelled_presence[~posed], np.where(present[~posed], 1, 0.5)
        )
        present = present & posed[:, None]
        mano = base.ManoTrack(
            CONVENTION, present, orient, fingers, betas, translation, frames.inverse(T_world_camera)
        )

        return base.NativeRecording(
            item=item,
            timestamps_ns=times,
            fps=_FPS,
            size=(camera.width, camera.height),
            frames=source if pictures else None,
            camera=camera,
            present=present,
            mano=mano if labelled else None,
            visible=visible,
            unlabelled_presence=unlabelled_presence,
            T_world_camera=T_world_camera,
            licences=LICENCES,
            undistort=True,
            findings=tuple(findings),
            left_out=len(every) - len(keys),
        )


def _cameras(
    entries: dict[str, base.Record | None], stream: str
) -> tuple[list[Camera], np.ndarray, list[str]]:
    """Return the cameras of a stream, ``T_world_camera`` per frame (NaN without one) and findings.

    ``entries`` are contents by file name.
    """
    cameras, poses = [], np.full((len(entries), 4, 4), np.nan)
    for row, (name, frame) in enumerate(entries.items()):
        if frame is None:
            continue
        where = f"{name} {stream}"
        view = base.get(frame, stream, where)
        cameras.append(fisheye624(base.get(view, "calibration", where), where))
        poses[row] = read_pose(base.get(view, "T_world_from_camera", where), where)
    findings = [f"{len(entries)} frames."]
    if len(cameras) < len(entries):
        lost = len(entries) - len(cameras)
        findings.append(f"{lost} of {len(entries)} frames have no cameras.json and so no label.")
    return cameras, poses, findings


def _hands(
    hands: list[base.Record | None], shapes: base.Record | None, stream: str, archive: Path
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """Return (present, orientation, components, betas, translation), visible, unlabelled presence.

    A hand without a pose exists if the clip marks it partly visible; in a frame without
    ``hands.json`` both hands are unknown.
    """
    count = len(hands)
    values = np.full((count, 2, 21), np.nan)
    visible = np.zeros((count, 2), np.float32)

    unlabelled_presence = np.zeros((count, 2), np.float32)
    for row, frame in enumerate(hands):
        unlabelled_presence[row] = 0.5 if frame is None else 0
        for slot, side in enumerate(SIDES):
            where = f"{archive}: hands of frame {row}, {side}"
            hand = base.mapping((frame or {}).get(side) or {}, where)
            pose = hand.get("mano_pose")
            field = f"{where} visibilities_modeled"
            ratio = base.mapping(hand.get("visibilities_modeled") or {}, field).get(stream)
            if ratio is not None:
                visible[row, slot] = np.clip(base.array(ratio, (), field), 0, 1)
            if pose is None:
                if visible[row, slot] > 0:
                    unlabelled_presence[row, slot] = 1
                continue
            if ratio is None:
                visible[row, slot] = 1
            thetas = base.entry(pose, "thetas", (15,), where)
            values[row, slot] = np.concatenate([base.entry(pose, "wrist_xform", 6, where), thetas])

    present = np.isfinite(values).all(-1)
    betas = np.zeros(10)

    if present.any():
        if shapes is None:
            raise SchemaError(f"{archive}: hands but no {_SHAPES}.")
        betas = base.entry(shapes, "mano", (10,), f"{archive}:{_SHAPES}")

    orient = rotations.exp(np.nan_to_num(values[..., :3]))
    every = np.broadcast_to(betas, (count, 2, 10))
    return (present, orient, values[..., 6:], every, values[..., 3:6]), visible, unlabelled_presence


def _times(infos: list[base.Record | None], stream: str) -> tuple[np.ndarray, list[str]]:
    """Return the times of a stream, else of frame numbers at 30 Hz."""
    times = []
    for info in infos:
        stamps = (info or {}).get("image_timestamps_ns") or (info or {}).get("timestamps_ns")
        stamp = stamps.get(stream) if isinstance(stamps, dict) else None
        if isinstance(stamp, int):
            times.append(stamp)
    if len(times) == len(infos) and (np.diff(times) > 0).all():
        return np.array(times, np.int64), []
    note = "no usable times in info.json; 30 frames per second are assumed."
    return base.frame_times(np.arange(len(infos)), _FPS), [note]
