"""OakInk2: mocap-fitted hands as quaternions, one pickle of torch tensors per sequence.

Layout: ``anno_preview/<token>.pkl`` and ``data/<token>/<camera serial>/<frame>.png|jpg``. Frame
numbers count mocap frames at 120 Hz; about every fourth has a picture. Pictures without a camera or
an entry in ``raw_mano`` are unlabelled frames. Hand translations are wrist positions. The pickle is
read by the restricted unpickler, without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from acehand_core.ace.labelled.clips.media import ImageFiles
from acehand_core.ace.labelled.readers import base
from acehand_core.ace.labelled.readers.pictures import image_size, numbered_images
from acehand_core.errors import InputError, SchemaError, nearest
from acehand_core.geometry import frames, rotations
from acehand_core.unpickling import TORCH_PKL, restricted_load

CONVENTION = base.Convention("rotations", True, "wrist", False, "world")
_MOCAP_HZ = 120.0
_VIEWER_SIZE = (848, 480)
_LABELS = ("anno_preview", "data/anno_preview")
_PREFIXES = ("lh__", "rh__")


class OakInk2Reader:
    """``Reader`` of OakInk2, split by hash of the token: the paper's split is not published."""

    name = "oakink2"
    title = "OakInk2"
    views = ("egocentric", "allocentric_top", "allocentric_left", "allocentric_right")

    def items(self, root: Path, options: base.ReadOptions) -> Sequence[base.Item]:
        """List sequences: one pickle each."""
        folder = base.need_folder(root, _LABELS, self.title)
        view = options.view or self.views[0]
        return [
            base.Item(
                self.name, base.safe_name(token.replace("++", "__"), view),
                base.hashed_split(token, self.name), root, {"token": token, "view": view},
            )
            for token in (path.stem for path in sorted(folder.glob("*.pkl")))
        ]  # fmt: skip

    def sources(self, item: base.Item) -> Sequence[Path]:
        token = item.key["token"]
        folder = base.need_folder(item.path, _LABELS, self.title)
        cameras = base.subfolders(item.path / "data" / token) + base.subfolders(item.path / token)
        return [folder / f"{token}.pkl", *cameras]

    def read(self, item: base.Item, options: base.ReadOptions) -> base.NativeRecording:
        token, view = item.key["token"], item.key["view"]
        path = base.need_folder(item.path, _LABELS, self.title) / f"{token}.pkl"
        labels, where = restricted_load(path, TORCH_PKL, "OakInk2 annotation"), str(path)
        serial, intrinsics, extrinsics, findings = _camera_tables(labels, view, where)
        listed = base.get(labels, "frame_id_list", where)
        if not isinstance(listed, list | tuple | np.ndarray):
            kind = type(listed).__name__
            raise SchemaError(f"{where} frame_id_list: a list is needed, not {kind}.")
        ids = [base.integer(number, f"{where} frame_id_list") for number in listed]
        tops = (item.path / "data" / token, item.path / token)
        folders = [top / name for top in tops for name in (serial, view)]
        images = next((numbered for f in folders if (numbered := numbered_images(f))), {})

        shown = sorted(images) if images else sorted(set(ids))
        posed = [n for n in shown if n in extrinsics and n in intrinsics]
        if not posed:
            raise InputError(f"{where}: no frame of {view} has a camera and a picture.")
        findings += _frame_findings(ids, shown, posed, images)

        K = np.stack([base.array(intrinsics[n], (3, 3), f"{where} cam_intr") for n in posed])
        T = np.full((len(shown), 4, 4), np.nan)
        for row, number in zip(np.searchsorted(shown, posed), posed, strict=True):
            T[row] = base.array(extrinsics[number], (4, 4), f"{where} cam_extr")
        size = image_size(images[shown[0]]) if images else _VIEWER_SIZE
        if np.ptp(K, axis=0).max() > 0:
            findings.append(f"intrinsics change by up to {np.ptp(K, axis=0).max():.3g} px.")

        raw = base.mapping(base.get(labels, "raw_mano", where), f"{where} raw_mano")
        track, unit = _hands(raw, shown, T, where)
        findings += unit
        labelled = np.array([n in raw for n in shown]) & np.isfinite(T).all((-1, -2))
        step = float(np.median(np.diff(shown))) if len(shown) > 1 else 4.0  # pictures come at 30 Hz

        return base.NativeRecording(
            item=item,
            timestamps_ns=base.frame_times(np.array(shown), _MOCAP_HZ),
            fps=_MOCAP_HZ / step,
            size=size,
            frames=ImageFiles([images[n] for n in shown]) if images else None,
            camera=base.pinhole(K[len(K) // 2], size),
            present=track.present,
            mano=track,
            T_world_camera=frames.inverse(T),
            licences=("OakInk2: CC BY-NC-SA 4.0 for data, https://oakink.net/v2",),
            findings=tuple(findings),
            unlabelled_presence=base.unknown_unless(labelled),
            left_out=len(set(ids) - set(shown)),
        )


def _frame_findings(
    ids: list[int], shown: list[int], posed: list[int], images: dict[int, Path]
) -> list[str]:
    """Report differences between listed frames, frames of the clip and frames with a camera."""
    steps = sorted(set(np.diff(shown).tolist())) if len(shown) > 1 else []
    findings = [f"frame numbers step by {', '.join(map(str, steps)) or 'nothing'} at 120 Hz."]
    if len(posed) < len(shown):
        findings.append(
            f"{len(shown) - len(posed)} of {len(shown)} frames have no camera and so no label."
        )
    if not images:
        width, height = _VIEWER_SIZE
        return [*findings, f"no pictures; a size of {width} x {height} is assumed."]

    suffixes = sorted({path.suffix for path in images.values()})
    return [
        *findings,
        f"pictures are {', '.join(suffixes)}; {len(set(ids) - set(shown))} of {len(ids)} listed "
        f"frames lack one and are left out; {len(set(shown) - set(ids))} pictures are not listed.",
    ]


def _camera_tables(
    labels: base.Record, view: str, where: str
) -> tuple[str, base.Record, base.Record, list[str]]:
    """Return serial, K by frame, ``T_camera_world`` by frame, and findings."""
    named = base.mapping(base.get(labels, "cam_def", where), f"{where} cam_def")
    names = {str(k): str(v) for k, v in named.items()}
    serials = [serial for serial, name in names.items() if name == view]
    if not serials:
        raise InputError(f"{where}: no camera {view!r}; {nearest(view, names.values())}")

    intrinsics, extrinsics = (
        base.mapping(base.get(labels, name, where), f"{where} {name}")
        for name in ("cam_intr", "cam_extr")
    )
    for key, how in ((view, "name"), (serials[0], "serial number")):
        if key in intrinsics and key in extrinsics:
            return (
                serials[0],
                base.mapping(intrinsics[key], f"{where} cam_intr {key}"),
                base.mapping(extrinsics[key], f"{where} cam_extr {key}"),
                [f"cameras are keyed by {how}."],
            )

    raise SchemaError(f"{where}: cam_intr and cam_extr have neither {view!r} nor {serials[0]!r}.")


def _hands(
    raw: base.Record, shown: list[int], T: np.ndarray, where: str
) -> tuple[base.ManoTrack, list[str]]:
    """Return the labels of each frame and findings; a hand needs the frame's camera."""
    count = len(shown)
    quaternion = np.full((count, 2, 16, 4), np.nan)

    wrist, betas = np.full((count, 2, 3), np.nan), np.full((count, 2, 10), np.nan)
    for row, number in enumerate(shown):
        at = f"{where} raw_mano[{number}]"
        labels = base.mapping(raw.get(number, {}), at)
        for slot, prefix in enumerate(_PREFIXES):
            if f"{prefix}pose_coeffs" not in labels:
                continue  # the format has no other sign of a missing hand
            coefficients = base.entry(labels, f"{prefix}pose_coeffs", 64, at)
            quaternion[row, slot] = coefficients.reshape(16, 4)
            wrist[row, slot] = base.entry(labels, f"{prefix}tsl", 3, at)
            betas[row, slot] = base.entry(labels, f"{prefix}betas", 10, at)

    present = np.isfinite(wrist).all(-1) & np.isfinite(T).all((-1, -2))[:, None]
    length = np.linalg.norm(quaternion[present], axis=-1)
    if length.size and abs(length - 1).max() > 1e-2:
        raise SchemaError(f"{where}: quaternions of length {length.min():.3f}..{length.max():.3f}.")
    quaternion[np.isnan(wrist).any(-1)] = (1.0, 0.0, 0.0, 0.0)
    matrices = rotations.from_quaternion(quaternion)
    findings = []

    if present.any():
        distances = np.linalg.norm(frames.apply(T, np.nan_to_num(wrist))[present], axis=-1)
        distance = float(np.median(distances))
        findings.append(
            f"wrists lie {distance:.2f} m from the camera in the median, so the unit is the metre."
            if 0.05 < distance < 5
            else f"wrists lie {distance:.2f} units from the camera in the median: not plausible "
            "metres."
        )
    findings.append(
        f"hand missing in {int((~present[:, 0]).sum())} (left) and {int((~present[:, 1]).sum())} "
        f"(right) of {count} frames."
    )

    return base.ManoTrack(
        CONVENTION, present, matrices[:, :, 0], matrices[:, :, 1:], betas, wrist, T
    ), findings
