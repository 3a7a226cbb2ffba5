"""Re:InterHand: relit captures of two hands, rendered by an egocentric fisheye camera.

Layout per capture: ``frame_list.txt`` ("segment frame" per line, 30 fps), ``Ego_cameras/<lighting>/
{images,cam_params}/000000.*``, ``mano_fits/params/<frame>_<side>.json`` and
``orig_fits/<side>/Keypoints/keypoint-000000.json``. MANO is in metres, keypoints and cameras in
millimetres. Pictures keep their Kannala-Brandt lens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.ace.labelled.clips.media import ImageFiles
from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.pictures import image_size, numbered_images
from acehand_core.errors import InputError, SchemaError
from acehand_core.geometry import frames
from acehand_core.geometry.cameras import Camera
from acehand_core.types import SIDES
from acehand_core.user_files import read_json

CONVENTION = base.Convention("vectors", False, "mano", True, "world")
_FPS = 30.0
#: Captures that the authors' loader tests on.
_TEST = ("RNS217", "NKC880", "QZX685")
#: Their 24 keypoints to our 21, without thumb 0, pinky 0 and forearm.
_KEYPOINTS = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21, 22)


class ReInterHandReader:
    """``Reader`` of Re:InterHand's egocentric renderings; one recording per capture and segment."""

    name = "interhand"
    title = "Re:InterHand"
    views = ("envmap_per_segment", "envmap_per_frame")

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List segments of captures."""
        data = root / "data" if (root / "data").is_dir() else root
        view = options.view or self.views[0]

        items = []
        for capture in base.subfolders(data):
            if not (capture / "frame_list.txt").is_file():
                continue
            split: base.Split = "test" if any(code in capture.name for code in _TEST) else "train"
            person = capture.name.split("--")[3] if capture.name.count("--") > 3 else ""
            try:
                segments = list(_segments(capture))
            except InputError:  # reported when this capture is read
                segments = [""]
            for segment in segments:
                name = base.safe_name(capture.name, segment, view)
                key = {"segment": segment, "view": view}
                items.append(base.Item(self.name, name, split, capture, key, person))

        return base.need_items(items, root, self.title, "capture folder with frame_list.txt")

    def sources(self, item: base.Item) -> Sequence[Path]:
        ego = item.path / "Ego_cameras" / item.key["view"]
        return [
            item.path / "frame_list.txt",
            ego / "images",
            ego / "cam_params",
            ego / "truncation_ratio.json",
            item.path / "mano_fits" / "params",
            *(item.path / "orig_fits" / side / "Keypoints" for side in SIDES),
        ]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        ego = item.path / "Ego_cameras" / item.key["view"]
        segments = _segments(item.path)
        listed = segments[item.key["segment"]]
        images = numbered_images(ego / "images")
        shown = [n for n in listed if (not images or n in images)]
        posed = {n for n in shown if (ego / "cam_params" / f"{n:06d}.json").is_file()}
        if not posed:
            raise InputError(
                f"{ego}: no frame of segment {item.key['segment']} has a picture and cam_params."
            )
        size = image_size(images[shown[0]]) if images else None
        camera, T_camera_world, findings = _cameras(ego / "cam_params", shown, posed, size)

        step = float(np.median(np.diff(shown))) if len(shown) > 1 else 1.0
        findings.append(
            f"{len(shown)} of {len(listed)} listed frames have a picture; numbers step by {step:g} "
            f"at 30 Hz, so {_FPS / step:g} frames per second (the paper states 10)."
        )
        if unlisted := len(set(images) - {n for numbers in segments.values() for n in numbers}):
            findings.append(
                f"{unlisted} pictures of the capture are in no segment of frame_list.txt."
            )

        mano, keypoints = _labels(item.path, shown)
        scale, unit = _translation_unit(mano[..., 58:61], keypoints[:, :, 0])
        findings.append(unit)

        known = np.isfinite(T_camera_world).all((-1, -2))
        present = np.isfinite(mano).all(-1) & known[:, None]
        joints = keypoints[:, :, list(_KEYPOINTS)]
        joints = frames.apply(T_camera_world, joints.reshape(len(shown), -1, 3))
        joints = joints.reshape(len(shown), 2, 21, 3)
        seen = present | np.isfinite(joints).all((-1, -2))

        findings.append(_truncation(ego / "truncation_ratio.json", shown))
        pose, betas, translation = mano[..., :48], mano[..., 48:58], mano[..., 58:61] * scale
        track = base.ManoTrack.of_vectors(
            CONVENTION, present, pose, betas, translation, T_camera_world
        )

        return base.NativeRecording(
            item=item,
            timestamps_ns=base.frame_times(np.array(shown), _FPS),
            fps=_FPS / step,
            size=(camera.width, camera.height),
            frames=ImageFiles([images[n] for n in shown]) if images else None,
            camera=camera,
            present=seen,
            mano=track,
            joints_camera=joints,
            T_world_camera=frames.inverse(T_camera_world),
            licences=("Re:InterHand: CC BY-NC 4.0",),
            findings=tuple(findings),
            unlabelled_presence=base.unknown_unless(seen.any(1)),
            left_out=len(listed) - len(shown),
        )


def _segments(capture: Path) -> dict[str, list[int]]:
    """Return segment name to frame numbers, in order."""
    path = capture / "frame_list.txt"
    segments: dict[str, list[int]] = {}
    for number, line in enumerate(base.read_text(path).splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 or not words[1].isdecimal():
            raise SchemaError(f"{path}:{number}: must be 'segment frame', got {line!r}.")
        segments.setdefault(words[0], []).append(int(words[1]))
    return {segment: sorted(set(numbers)) for segment, numbers in segments.items()}


def _cameras(
    folder: Path, shown: list[int], posed: set[int], size: tuple[int, int] | None
) -> tuple[Camera, np.ndarray, list[str]]:
    """Return the middle frame's camera, ``T_camera_world`` per frame (NaN without) and findings."""
    lenses, poses = [], np.full((len(shown), 4, 4), np.nan)
    for row, number in enumerate(shown):
        if number not in posed:
            continue
        path = folder / f"{number:06d}.json"
        values, where = read_json(path), str(path)
        R, t = base.entry(values, "R", (3, 3), where), base.entry(values, "t", 3, where) / 1000
        poses[row] = frames.rigid(R, t)
        lenses.append(_joined(values, {"focal": 2, "princpt": 2, "D": 4}, where))

    lens = np.stack(lenses)
    middle = lens[len(lens) // 2]

    findings = []
    if len(lenses) < len(shown):
        findings.append(
            f"{len(shown) - len(lenses)} of {len(shown)} frames have no cam_params and so no label."
        )

    if np.ptp(lens, axis=0).max() > 0:
        findings.append(f"lens numbers change by up to {np.ptp(lens, axis=0).max():.3g}.")
    if size is None:
        size = (round(2 * middle[2]), round(2 * middle[3]))
        findings.append("no pictures; the size is taken as twice the principal point.")
    else:
        findings.append(f"pictures are {size[0]} x {size[1]}.")

    fx, fy, cx, cy, *rest = map(float, middle)
    return Camera("kannala_brandt", *size, fx, fy, cx, cy, tuple(rest)), poses, findings


def _joined(values: Any, counts: dict[str, int], where: str) -> np.ndarray:
    """Return entries of a mapping, of these lengths, in one array."""
    return np.concatenate([base.entry(values, key, count, where) for key, count in counts.items()])


def _truncation(path: Path, shown: list[int]) -> str:
    """Report the number of frames that the authors' loader leaves out as truncated."""
    if not path.is_file():
        return "no truncation_ratio.json."
    ratios = base.mapping(read_json(path), str(path))
    names = [f"{number:06d}" for number in shown]
    low = sum(float(base.array(ratios.get(n, 1.0), (), f"{path} {n}")) < 0.2 for n in names)
    return f"{low} of {len(shown)} frames have a truncation ratio below 0.2; they are kept."


def _labels(capture: Path, shown: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return pose, shape and translation (T, 2, 61) and keypoints (T, 2, 24, 3) in metres."""
    mano = np.full((len(shown), 2, 61), np.nan)
    keypoints = np.full((len(shown), 2, 24, 3), np.nan)
    for row, number in enumerate(shown):
        for slot, side in enumerate(SIDES):
            path = capture / "mano_fits" / "params" / f"{number}_{side}.json"
            if path.is_file():
                counts = {"pose": 48, "shape": 10, "trans": 3}
                mano[row, slot] = _joined(read_json(path), counts, str(path))
            path = capture / "orig_fits" / side / "Keypoints" / f"keypoint-{number:06d}.json"
            if path.is_file():
                keypoints[row, slot] = base.array(read_json(path), (24, 3), str(path)) / 1000

    return mano, keypoints


def _translation_unit(translation: np.ndarray, wrist: np.ndarray) -> tuple[float, str]:
    """Return the factor of MANO's translation to metres, and a finding.

    The translation lies within 0.3 m of the wrist. Other converters divide it by 1000.
    """
    known = np.isfinite(translation).all(-1) & np.isfinite(wrist).all(-1)
    if not known.any():
        return 1.0, "the unit of trans could not be checked; metres are assumed."
    apart = [
        float(np.median(np.linalg.norm(translation[known] * scale - wrist[known], axis=-1)))
        for scale in (1.0, 1e-3)
    ]
    if apart[1] < 0.3 <= apart[0]:
        return 1e-3, f"trans is in millimetres: it lies {apart[1]:.3f} m from the wrist."
    return 1.0, f"trans read as metres lies {apart[0]:.3f} m from the wrist in the median."
