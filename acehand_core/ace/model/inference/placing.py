"""Readouts to hands before the camera, window by window, once the recording's shape is known.

Articulation does not depend on the shape: with another one only the canonical joints and the
placement are computed again, never the network. Also the camera that predicted rays describe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float

from acehand_core.ace.model.batch import Readout, pinhole_batch
from acehand_core.ace.model.camera_fit import (
    RadialFit,
    fit_radial,
    guarded_pinhole,
    reported_intrinsics,
)
from acehand_core.ace.model.inference.blend import GATE, HandFrames, merge
from acehand_core.ace.model.inference.reading import WindowView
from acehand_core.ace.model.inference.windows import Window, encode_camera
from acehand_core.ace.model.network import SolveOptions, place
from acehand_core.errors import CalibrationError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.hands_torch import TorchHands


def predicted_camera(
    readout: Readout, size: tuple[int, int], options: SolveOptions
) -> Camera | None:
    """Return the camera of one clip's rays, or None where they describe none.

    With bearings from a fitted pinhole or a radial lens it is that fit; else the linear fit that
    the released code reports. Pixels are counted as the given calibrations are (see
    ``PinholeBatch``).

    Args:
        size: width and height of the recording.
    """
    width, height = size
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

    try:
        return Camera("pinhole", width, height, *numbers)
    except CalibrationError:
        return None  # rays without any spread, as before training


def _kannala_brandt(fit: RadialFit, width: int, height: int) -> Camera | None:
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
    try:
        return Camera("kannala_brandt", width, height, fx, fy, cx, cy, tuple(bend.tolist()))
    except CalibrationError:
        return None


#: Trust in a hand whose anchors do not fit its joints, so that only depth and wrist ray place it.
_REFUSED_TRUST = 0.5
#: Distance of two views' anchors, in diagonals of the hand's anchors, at which trust is halved.
_AGREEMENT = 0.25
#: Smaller hands (of the image's width) are not told apart better than this.
_MIN_DIAGONAL = 0.02
#: Frames posed at once.
ROWS = 256


@dataclass(frozen=True, slots=True)
class HandPlacements:
    """All frames of some windows, from frame ``offset`` on, and what was found out on the way.

    ``camera`` is in pixels of the recording: what the predicted rays describe, the median over
    windows; None where they describe nothing. ``exchanged`` counts frames in which two windows
    agree better with left and right exchanged. ``accepted_share`` is the share of present hands
    whose anchors were accepted.
    """

    frames: HandFrames
    offset: int
    camera: Camera | None
    exchanged: int
    accepted_share: float


@dataclass(frozen=True, slots=True)
class PlacingSetup:
    """What placing needs beside the readouts.

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
    """Place the hands of every window and lay the windows together."""
    offset = windows[0].first_frame
    frames = HandFrames.empty(windows[-1].stop_frame - offset, setup.hands is not None)
    exchanged, accepted, cameras = 0, [], []
    for window in windows:
        arrays = _arrays(views[0], window)
        readout = Readout(**{f.name: torch.from_numpy(arrays[f.name]) for f in fields(Readout)})
        values, share = _place(readout, setup)
        for other in views[1:]:
            values = second_opinion(values, _arrays(other, window))
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
    """Return the frames with presence and visibility that the mirrored view confirms.

    In the mirror a left hand is a right one, so slots are exchanged and anchors turned back. The
    two views' probabilities are multiplied, and trust falls with the distance of their anchors.
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
    parts = [
        hands.joints(part[None, :, :, 0], part[None, :, :, 1:], shape)[0]
        for part in rotations.split(ROWS)
    ]
    return torch.cat(parts)


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
    wrist = joints[:, :, 0] + placement.translation[0]
    arms = joints - joints[:, :, :1]
    accepted = placement.accepted[0].numpy()
    there = readout.presence[0].numpy() >= GATE
    values = HandFrames(
        presence=readout.presence[0].numpy(),
        visible=readout.visible[0].numpy(),
        trust=np.where(accepted, 1.0, _REFUSED_TRUST).astype(np.float32),
        anchors=readout.anchors[0].numpy(),
        wrist=wrist.numpy(),
        arms=arms.numpy(),
        rotations=rotations.numpy(),
    )

    return values, float(accepted[there].mean()) if there.any() else 1.0


def _arrays(view: WindowView, window: Window) -> Mapping[str, np.ndarray]:
    arrays = view.store.get(window.start, window.stop)
    assert arrays is not None, "every window was read before"
    return arrays
