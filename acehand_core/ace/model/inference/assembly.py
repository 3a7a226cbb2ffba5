"""From readouts of windows to the motion of the recording: placed hands, frames, flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from acehand_core.ace.model.batch import Readout, pinhole_batch
from acehand_core.ace.model.camera_fit import (
    RadialFit,
    fit_radial,
    guarded_pinhole,
    reported_intrinsics,
)
from acehand_core.ace.model.config import SolveOptions
from acehand_core.ace.model.inference.blend import GATE, HandFrames, merge, mix
from acehand_core.ace.model.inference.reading import ModelInput, WindowView
from acehand_core.ace.model.inference.windows import Window, encode_camera
from acehand_core.ace.model.network import place
from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.hands_torch import TorchHands
from acehand_core.hand.mapping import fit_to_joints
from acehand_core.types import SIDES, TimestampsNs

#: Trust in a hand with rejected anchors, placed by depth and wrist ray alone.
_REFUSED_TRUST = 0.5
#: Distance of two views' anchors, in diagonals of the hand's anchors, that halves trust.
_AGREEMENT = 0.25
#: Least diagonal of a hand, in image widths.
_MIN_DIAGONAL = 0.02
#: Frames posed at once.
ROWS = 256
#: Quality of an occluded hand at full presence.
FILLED_QUALITY = 0.25
#: Frames that the default hand's shape is fitted to.
_SHAPE_FRAMES = 100


def predicted_camera(
    readout: Readout, size: tuple[int, int], options: SolveOptions
) -> Camera | None:
    """Return the camera of one clip's rays, or None if they fit none.

    The fitted pinhole or radial lens of the bearings, else the linear fit reported by the released
    code; pixels as in ``PinholeBatch``. ``size`` is width and height of the recording.
    """
    width, height = size
    try:
        if options.bearings == "radial":
            radial = fit_radial(readout.rays)
            return _kannala_brandt(radial, width, height) if bool(radial.valid[0]) else None

        if options.bearings == "pinhole":
            fit = guarded_pinhole(readout.rays, options.fit_guards)
            if not bool(fit.valid[0]):
                return None
            scale = torch.tensor([width, height])
            numbers = torch.cat([fit.focal[0] * scale, fit.centre[0] * scale]).tolist()
        else:
            numbers = reported_intrinsics(readout.ray_map, width, height)[0].tolist()
        return Camera("pinhole", width, height, *numbers)
    except CalibrationError:
        return None  # rays without spread, as before training


def _kannala_brandt(fit: RadialFit, width: int, height: int) -> Camera:
    """Return the fisheye model of a fitted radial lens: its inverse, by least squares."""
    focal, centre = fit.focal[0].double().numpy(), fit.centre[0].double().numpy()
    corner = float(np.linalg.norm(np.maximum(abs(centre), abs(1 - centre)) / focal))
    s = np.linspace(0, corner, 200)[1:]
    along = np.stack([centre[0] + s * focal[0], np.full_like(s, centre[1])], axis=-1)
    plane = fit.plane(torch.tensor(along[None], dtype=fit.focal.dtype))[0].double().numpy()
    angle = plane[:, 0]
    powers = angle[:, None] ** np.array([3, 5, 7, 9])
    bend, *_ = np.linalg.lstsq(powers, s - angle, rcond=None)

    (fx, fy), (cx, cy) = focal * (width, height), centre * (width, height)
    return Camera("kannala_brandt", width, height, fx, fy, cx, cy, tuple(bend.tolist()))


@dataclass(frozen=True, slots=True)
class HandPlacements:
    """The frames of some windows from frame ``offset`` on, and statistics.

    ``camera`` is in pixels of the recording: that of the predicted rays, median over windows, or
    None. ``exchanged`` counts frames in which two windows agree better with left and right
    exchanged. ``accepted_share`` is the share of present hands with accepted anchors.
    """

    frames: HandFrames
    offset: int
    camera: Camera | None
    exchanged: int
    accepted_share: float


@dataclass(frozen=True, slots=True)
class PlacingSetup:
    """The inputs of placement besides the readouts.

    ``hands`` None places the network's own joints. ``camera`` is the recording's pinhole, if known;
    ``source_size`` and ``size`` are width and height of the recording and of the encoded image.
    """

    hands: TorchHands | None
    betas: Float[np.ndarray, "2 10"] | None
    camera: Camera | None
    source_size: tuple[int, int]
    size: tuple[int, int]
    options: SolveOptions


def place_windows(
    windows: Sequence[Window], views: Sequence[WindowView], setup: PlacingSetup
) -> HandPlacements:
    """Place the hands of every window and merge the windows."""
    offset = windows[0].first_frame
    frames = HandFrames.empty(windows[-1].stop_frame - offset, setup.hands is not None)
    exchanged, accepted, cameras = 0, [], []
    for window in windows:
        arrays = views[0].arrays(window)
        readout = Readout(**{f.name: torch.from_numpy(arrays[f.name]) for f in fields(Readout)})
        values, share = _place(readout, setup)
        for other in views[1:]:
            values = second_opinion(values, other.arrays(window))
        exchanged += merge(frames, window, values, offset)
        accepted.append(share)
        cameras.append(predicted_camera(readout, setup.source_size, setup.options))

    # Every number of the camera is the median over windows.
    known, camera = [c for c in cameras if c is not None], None
    if known:
        rows = [[c.fx, c.fy, c.cx, c.cy, *c.distortion] for c in known]
        fx, fy, cx, cy, *bend = np.median(rows, axis=0).tolist()
        camera = replace(known[0], fx=fx, fy=fy, cx=cx, cy=cy, distortion=tuple(bend))
    return HandPlacements(frames, offset, camera, exchanged, float(np.mean(accepted)))


def second_opinion(values: HandFrames, mirrored: Mapping[str, np.ndarray]) -> HandFrames:
    """Return the frames with presence and visibility confirmed by the mirrored view.

    Slots are exchanged and anchors mirrored back. The views' probabilities are multiplied; trust
    falls with the distance of their anchors.
    """
    presence, visible = (mirrored[name][0][:, ::-1] for name in ("presence", "visible"))
    flip, shift = np.array([[-1, 1], [1, 0]], np.float32)
    anchors = mirrored["anchors"][0][:, ::-1] * flip + shift
    distance = np.median(np.linalg.norm(anchors - values.anchors, axis=-1), axis=-1)
    box = values.anchors.max(2) - values.anchors.min(2)
    diagonal = np.maximum(np.linalg.norm(box, axis=-1), _MIN_DIAGONAL)
    agreement = 1 / (1 + (distance / (_AGREEMENT * diagonal)) ** 2)

    return replace(
        values,
        presence=values.presence * presence,
        visible=values.visible * visible,
        trust=(values.trust * agreement).astype(np.float32),
    )


def posed_joints(
    hands: TorchHands,
    rotations: Float[torch.Tensor, "N 2 16 3 3"],
    betas: Float[np.ndarray, "2 10"],
) -> Float[torch.Tensor, "N 2 21 3"]:
    """Return canonical joints, a few frames at a time."""
    shape = torch.tensor(betas, dtype=torch.float32)[None]
    parts = (part[None] for part in rotations.split(ROWS))
    return torch.cat([hands.joints(p[:, :, :, 0], p[:, :, :, 1:], shape)[0] for p in parts])


def _place(readout: Readout, setup: PlacingSetup) -> tuple[HandFrames, float]:
    rotations = torch.cat([readout.global_orient[..., None, :, :], readout.hand_pose], dim=-3)[0]
    if setup.hands is None:
        joints = readout.joints_relative[0]
        rotations = rotations[:, :, :0]
    else:
        assert setup.betas is not None
        joints = posed_joints(setup.hands, rotations, setup.betas)

    size = torch.tensor([setup.size], dtype=torch.float32)
    camera = None
    if setup.options.bearings == "intrinsics" and setup.camera is not None:
        camera = pinhole_batch([encode_camera(setup.camera, *setup.size)])

    placement = place(readout, joints[None], size, camera, setup.options)
    accepted = placement.accepted[0].numpy()
    values = HandFrames(
        presence=readout.presence[0].numpy(),
        visible=readout.visible[0].numpy(),
        trust=np.where(accepted, 1.0, _REFUSED_TRUST).astype(np.float32),
        anchors=readout.anchors[0].numpy(),
        wrist=(joints[:, :, 0] + placement.translation[0]).numpy(),
        arms=(joints - joints[:, :, :1]).numpy(),
        rotations=rotations.numpy(),
    )
    present = values.present
    return values, float(accepted[present].mean()) if present.any() else 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """The arrays of a ``HandMotion`` of T frames, float32; NaN for absent hands.

    ``anchors`` are 0..1 of the image and NaN for hands that are not visible. ``fit_error_m`` is the
    mean distance of the default hand from the network's own joints, None if not fitted.
    """

    presence: Float[np.ndarray, "T 2"]
    visible: Float[np.ndarray, "T 2"]
    quality: Float[np.ndarray, "T 2"]
    observed: Bool[np.ndarray, "T 2"]
    filled: Bool[np.ndarray, "T 2"]
    global_orient: Float[np.ndarray, "T 2 3 3"]
    hand_pose: Float[np.ndarray, "T 2 15 3 3"]
    betas: Float[np.ndarray, "2 10"]
    translation: Float[np.ndarray, "T 2 3"]
    joints: Float[np.ndarray, "T 2 21 3"]
    anchors: Float[np.ndarray, "T 2 21 2"]
    fit_error_m: float | None


@dataclass(frozen=True, slots=True)
class HandPoses:
    """Poses of a hand model in N frames: absolute rotations, joints and translation."""

    global_orient: Float[np.ndarray, "N 2 3 3"]
    hand_pose: Float[np.ndarray, "N 2 15 3 3"]
    translation: Float[np.ndarray, "N 2 3"]
    joints: Float[np.ndarray, "N 2 21 3"]
    error_m: Float[np.ndarray, "N 2"]


def assemble(
    frames: HandFrames,
    offset: int,
    source: SourceFrames,
    requested: range,
    hands: TorchHands | None,
    betas: Float[np.ndarray, "2 10"] | None,
    slots: tuple[bool, bool],
    keep_tail: bool,
    progress: Callable[[int, int], None],
    every_slot: bool = False,
) -> Result:
    """Return the hands in the ``requested`` frames of the recording, T of them.

    A hand is present from a presence of 0.5 on (``GATE``); then it is observed if its visibility
    also reaches 0.5, else filled: the network's estimate of an occluded hand. Quality is presence x
    visibility x trust if observed, 0.25 x presence if filled, else 0.

    Args:
        frames: at the model's rate, from its frame ``offset`` on.
        hands: the model of the rotations; None fits the default hand to the joints.
        betas: the shape; by default (default hand only) estimated from the joints.
        slots: whether to use left and right.
        keep_tail: False drops frames after the last encoded one.
        every_slot: also return poses of absent hands, and anchors of occluded ones.
    """
    total = len(requested)
    if betas is None:
        assert hands is None, "rotations need a shape"
        betas = _default_shapes(frames)

    def nan(*shape: int) -> np.ndarray:
        return np.full((total, 2, *shape), np.nan, np.float32)

    numbers, flags = ("presence", "visible", "quality"), ("observed", "filled")
    arrays = {name: np.zeros((total, 2), np.float32) for name in numbers}
    arrays |= {name: np.zeros((total, 2), bool) for name in flags}
    poses = {"global_orient": nan(3, 3), "hand_pose": nan(15, 3, 3), "translation": nan(3)}
    poses |= {"joints": nan(21, 3)}
    anchors = nan(21, 2)

    errors = []
    for start in range(0, total, ROWS):
        rows = slice(start, min(start + ROWS, total))
        recorded = slice(requested.start + rows.start, requested.start + rows.stop)
        part = source.rows(frames, recorded, offset)
        requested_slots = np.array(slots) & (keep_tail | source.encoded[recorded, None])
        rated = _rated(part, requested_slots)
        for name, values in rated.items():
            arrays[name][rows] = values
        present = rated["observed"] | rated["filled"]

        given = np.broadcast_to(requested_slots, present.shape) if every_slot else present
        posed = _default_hand(betas, part, given) if hands is None else _pose(hands, betas, part)
        for name, values in poses.items():
            values[rows][given] = getattr(posed, name)[given]
        seen = given if every_slot else rated["observed"]
        anchors[rows][seen] = part.anchors[seen]
        errors.append(posed.error_m[present])
        progress(rows.stop, total)

    error = np.concatenate(errors)
    fit_error = float(error.mean()) if hands is None and len(error) else None
    return Result(**arrays, **poses, anchors=anchors, betas=betas, fit_error_m=fit_error)


def _rated(part: HandFrames, requested: Bool[np.ndarray, "N 2"]) -> dict[str, np.ndarray]:
    """Return presence, flags and quality by name: see ``assemble``."""
    presence = np.where(requested, np.clip(part.presence, 0, 1), 0.0)
    visible = np.where(requested, np.clip(part.visible, 0, 1), 0.0)
    present = presence >= GATE
    observed = present & (visible >= GATE)
    seen_quality = presence * visible * part.trust
    unseen_quality = np.where(present, FILLED_QUALITY * presence, 0.0)
    return {
        "presence": presence,
        "visible": visible,
        "observed": observed,
        "filled": present & ~observed,
        "quality": np.where(observed, seen_quality, unseen_quality),
    }


class SourceFrames:
    """Maps frames of the recording, at ``timestamps_ns``, to frames that the model read."""

    def __init__(self, reading: ModelInput, timestamps_ns: TimestampsNs) -> None:
        encoded = min(reading.count, len(reading.shown))
        shown = reading.shown[:encoded]
        frames = np.arange(len(timestamps_ns))
        first = np.searchsorted(shown, frames, "left")  # the first that shows it, or a later one
        last = np.searchsorted(shown, frames, "right") - 1  # the last that shows it, or an earlier
        self.encoded: Bool[np.ndarray, "T"] = frames <= shown[-1]
        before, after = np.minimum(last, encoded - 1), np.minimum(first, encoded - 1)

        # A frame that was read, once or several times: the reading nearest to its own time.
        ticks = reading.recording.timestamps_ns[:encoded]
        nearest = np.searchsorted(ticks[:-1] + np.diff(ticks) // 2, timestamps_ns)
        own = np.clip(nearest, np.minimum(first, last), np.maximum(first, last))
        read = shown[before] == frames
        span = timestamps_ns[shown[after]] - timestamps_ns[shown[before]]
        share = (timestamps_ns - timestamps_ns[shown[before]]) / np.maximum(span, 1)
        self._before: Int[np.ndarray, "T"] = np.where(read, np.minimum(own, encoded - 1), before)
        self._after: Int[np.ndarray, "T"] = np.where(read, self._before, after)
        self._share = np.where(self._before == self._after, 0.0, np.clip(share, 0, 1))

    def needed(self, first: int, stop: int) -> tuple[int, int]:
        """Return start and stop of the model's frames for some frames of the recording."""
        return int(self._before[first:stop].min()), int(self._after[first:stop].max()) + 1

    def rows(self, frames: HandFrames, rows: slice, offset: int) -> HandFrames:
        """Return the hands in some frames of the recording; ``frames`` start at ``offset``."""
        before, after = self._before[rows] - offset, self._after[rows] - offset
        share = self._share[rows]
        if not share.any():
            return frames.rows(before)
        return mix(frames.rows(before), frames.rows(after), share)


def _pose(hands: TorchHands, betas: Float[np.ndarray, "2 10"], frames: HandFrames) -> HandPoses:
    """Pose a hand model with the network's rotations."""
    rotations = torch.from_numpy(frames.rotations)
    joints = posed_joints(hands, rotations, betas).numpy()
    fingers = hands.absolute_pose(rotations[None, :, :, 1:])[0].numpy()
    translation = frames.wrist - joints[:, :, 0]
    placed, error = joints + translation[:, :, None], np.zeros((len(frames), 2))
    return HandPoses(frames.rotations[:, :, 0], fingers, translation, placed, error)


def _default_hand(
    betas: Float[np.ndarray, "2 10"], frames: HandFrames, wanted: Bool[np.ndarray, "N 2"]
) -> HandPoses:
    """Fit the default hand to the network's own joints."""
    model, shapes = CapsuleHand(), ((3, 3), (15, 3, 3), (3,), (21, 3))
    orient, pose, translation, joints = (
        np.full((*wanted.shape, *shape), np.nan, np.float32) for shape in shapes
    )
    hands = HandPoses(orient, pose, translation, joints, np.zeros(wanted.shape))

    for slot, side in enumerate(SIDES):
        rows = np.flatnonzero(wanted[:, slot])
        if not len(rows):
            continue
        target = (frames.wrist[rows, slot, None] + frames.arms[rows, slot]).astype(float)
        fit = fit_to_joints(model, side, target, betas=betas[slot])
        for name in ("global_orient", "hand_pose", "translation", "error_m"):
            getattr(hands, name)[rows, slot] = getattr(fit, name)
        shape = np.broadcast_to(betas[slot], (len(rows), 10))
        posed = model.joints(side, fit.global_orient, fit.hand_pose, shape)
        hands.joints[rows, slot] = posed + fit.translation[:, None]
    return hands


def _default_shapes(frames: HandFrames) -> Float[np.ndarray, "2 10"]:
    """Return the default hand's betas from frames with the most certain hands."""
    betas = np.zeros((2, 10))
    for slot, side in enumerate(SIDES):
        sure = frames.present[:, slot] & (frames.visible[:, slot] >= GATE)
        rows = np.flatnonzero(sure if sure.any() else frames.present[:, slot])
        if len(rows):
            spread = np.linspace(0, len(rows) - 1, min(len(rows), _SHAPE_FRAMES)).astype(int)
            joints = frames.arms[rows[np.unique(spread)], slot].astype(float)
            betas[slot] = fit_to_joints(CapsuleHand(), side, joints).betas
    return betas
