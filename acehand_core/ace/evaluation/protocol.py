"""The protocol: parameters, hand models, on-screen gate, matching and errors of hands.

Errors compare N hands pairwise: metres in, the table's unit out. Source: paper, "Metric Definitions
and Penalty Protocol"; docs/evaluation.md lists our choices where it is silent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.mano import ManoHand, load_mano
from acehand_core.hand.shape import HandModel
from acehand_core.motion import HandModelName, runs
from acehand_core.types import HandPose, JointsCamera, Keypoints, PerHand, PerHandFlag, Side

Anchors = Literal["auto", "own", "reprojected"]

#: Picture width of the paper's evaluation by dataset; none is given for HOI4D (appendix "Datasets,
#: Splits, and Preprocessing").
PAPER_WIDTHS = {"arctic": 672, "hot3d": 480, "hot3d_clips": 480, "h2o": 832, "oakink2": 832}
#: Sides are multiples of this, "so that every dataset yields an even latent grid".
_EVEN_GRID = 32

#: x0 y0 x1 y1 in pixels; NaN for a hand behind the camera.
Boxes = Float[np.ndarray, "*batch 4"]

Hands = Float[np.ndarray, "N 21 3"]
PerRow = Float[np.ndarray, "N"]


class HandLibrary:
    """Hand models by name, loaded on first use.

    Args:
        mano: folder or file of the user's MANO; default $ACEHAND_MANO.
        models: loaded models by (name, left_shapedirs_fixed).
    """

    def __init__(
        self, mano: Path | None = None, models: dict[tuple[str, bool], HandModel] | None = None
    ) -> None:
        self._mano = mano
        self._models: dict[tuple[str, bool], HandModel] = dict(models or {})

    def get(self, name: HandModelName, left_shapedirs_fixed: bool = False) -> HandModel:
        """Return a model. Raises MissingDependencyError for MANO if it is not configured."""
        if name == "none":
            raise ValueError("joints alone have no hand model")
        key = (name, name == "mano" and left_shapedirs_fixed)
        if key not in self._models:
            if name == "mano":
                self._models[key] = load_mano(self._mano, left_shapedirs_fixed, "float64")
            else:
                self._models[key] = CapsuleHand()
        return self._models[key]

    def find(self, name: HandModelName, left_shapedirs_fixed: bool = False) -> HandModel | None:
        """Return a model; None for joints alone and if MANO is not configured."""
        try:
            return None if name == "none" else self.get(name, left_shapedirs_fixed)
        except MissingDependencyError:
            return None


def rest_pose(model: HandModel, side: Side) -> HandPose:
    """Return the model's zero articulation: MANO's mean pose, else a flat hand."""
    if isinstance(model, ManoHand):
        return model.absolute_pose(side, np.zeros(45), flat_hand_mean=False)
    return np.broadcast_to(np.eye(3), (15, 3, 3)).copy()


def canonical_joints(model: HandModel, side: Side) -> Keypoints:
    """Return the hand charged for a miss: (21, 3) metres, at the camera's origin.

    Identity orientation, zero articulation, mean shape, zero translation (paper, "Coverage
    penalty").
    """
    return model.joints(side, np.eye(3), rest_pose(model, side), np.zeros(10)).astype(float)


@dataclass(frozen=True, slots=True)
class Protocol:
    """Parameters of a score.

    Attributes:
        name: "paper", or another name for changed values.
        presence_above: hands of higher presence are active.
        z_min_m: joints and vertices of larger depth are in front of the camera, metres.
        dilation: share by which a ground-truth box grows about its centre.
        anchors: 2D joints that EPE scores: "own" the tracker's (projected if it has none),
            "reprojected" projected joints, "auto" own unless predicted without intrinsics.
        radius_edges: bin edges of the normalised distance from the principal point.
    """

    name: str = "paper"
    presence_above: float = 0.5
    z_min_m: float = 0.01
    dilation: float = 0.10
    anchors: Anchors = "auto"
    radius_edges: tuple[float, ...] = (0.25, 0.5, 0.75)


def picture_size(asked: str, dataset: str, width: int, height: int) -> tuple[int, int]:
    """Return the (width, height) in pixels at which image errors are measured.

    Args:
        asked: "paper" (as stored for other datasets than the paper's), "stored" or WIDTHxHEIGHT.
        dataset, width, height: of the ground truth's pictures.

    Raises InputError for anything else.
    """
    if asked == "stored" or (asked == "paper" and dataset not in PAPER_WIDTHS):
        return width, height
    if asked == "paper":
        wide = PAPER_WIDTHS[dataset]
        return wide, round(height * wide / width / _EVEN_GRID) * _EVEN_GRID
    sides = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", asked)
    if sides is None:
        raise InputError(f"`picture_size={asked}`; valid: paper, stored, or WIDTHxHEIGHT.")
    return int(sides[1]), int(sides[2])


def joints_in_image(
    joints: Float[np.ndarray, "*batch 21 3"], camera: Camera, z_min_m: float
) -> Bool[np.ndarray, "*batch 21"]:
    """Return which joints project into [0, W) x [0, H) at a depth above ``z_min_m``; NaN never.

    Source: paper, "On-screen gate", literally: from 0, although the image of integer pixel centres
    begins at -0.5.
    """
    pixels = camera.project(joints)
    with np.errstate(invalid="ignore"):
        inside = (pixels >= 0).all(-1) & (pixels < (camera.width, camera.height)).all(-1)
        return inside & (joints[..., 2] > z_min_m)


def boxes_around(
    points: Float[np.ndarray, "N V 3"], camera: Camera, z_min_m: float
) -> Float[np.ndarray, "N 4"]:
    """Return each row's box of projected points deeper than ``z_min_m``, not clipped to the image.

    Points are in metres in the camera frame; NaN for a row without such points.
    """
    boxes = np.full((len(points), 4), np.nan)
    front = points[..., 2] > z_min_m
    if camera.model == "pinhole":
        inverse = 1 / np.where(front, points[..., 2], 1.0)
        coordinates = [
            points[..., axis] * inverse * focal + centre
            for axis, focal, centre in ((0, camera.fx, camera.cx), (1, camera.fy, camera.cy))
        ]
    else:
        pixels = camera.project(points)
        front = front & np.isfinite(pixels).all(-1)
        coordinates = [pixels[..., 0], pixels[..., 1]]

    whole = front.all(-1)
    some = front.any(-1)
    for axis, values in enumerate(coordinates):
        low, high = values, values
        if not whole.all():
            low, high = np.where(front, values, np.inf), np.where(front, values, -np.inf)
        boxes[some, axis] = low.min(-1)[some]
        boxes[some, axis + 2] = high.max(-1)[some]

    return boxes


def dilated(boxes: Boxes, share: float) -> Boxes:
    """Return boxes grown by ``share`` of width and height about their centres."""
    low, high = boxes[..., :2], boxes[..., 2:]
    grow = 0.5 * share * (high - low)
    return np.concatenate([low - grow, high + grow], axis=-1)


def overlap(a: Boxes, b: Boxes) -> Float[np.ndarray, "*batch"]:
    """Return the intersection over union; 0 for boxes that are NaN or empty."""
    size = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    with np.errstate(invalid="ignore"):
        shared = np.where((size > 0).all(-1), size.prod(-1), 0.0)
    areas = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1)
    return np.asarray(np.where(shared > 0, shared / np.where(shared > 0, areas - shared, 1), 0.0))


def match(
    predicted_boxes: Float[np.ndarray, "T 2 4"],
    shown: PerHandFlag,
    truth_boxes: Float[np.ndarray, "T 2 4"],
    on_screen: PerHandFlag,
) -> PerHandFlag:
    """Return which predictions match the ground-truth hand of their slot.

    A shown prediction selects the on-screen ground-truth hand, of either side, with the largest
    overlap (its own side on a tie); it matches if the overlap is above zero and the sides agree.
    With one slot per side the paper's rule for two predictions of one hand never applies.

    Args:
        predicted_boxes: pixels; used where ``shown``.
        shown: active predictions that pass the on-screen gate.
        truth_boxes: dilated boxes; used where ``on_screen``.
        on_screen: ground-truth hands that pass the gate.
    """
    own = np.where(on_screen, overlap(predicted_boxes, truth_boxes), 0.0)
    other = np.where(on_screen[:, ::-1], overlap(predicted_boxes, truth_boxes[:, ::-1]), 0.0)
    return shown & on_screen & (own > 0) & (own >= other)


def placement(
    predicted: JointsCamera, truth: JointsCamera, counted: PerHandFlag
) -> dict[str, PerHand]:
    """Return absolute errors of the counted hand-frames, NaN elsewhere; not in the paper.

    ``wrist_m``: distance of the wrists. ``camera_m``: mean distance of the 21 joints, unaligned.
    ``bearing_deg``: angle between the directions to the wrists. ``range_m``: predicted minus true
    distance of the wrist from the camera.
    """
    a, b = predicted[counted], truth[counted]
    wrist_a, wrist_b = a[:, 0], b[:, 0]
    far_a, far_b = np.linalg.norm(wrist_a, axis=-1), np.linalg.norm(wrist_b, axis=-1)
    sine = np.linalg.norm(np.cross(wrist_a, wrist_b), axis=-1)
    errors = {
        "wrist_m": np.linalg.norm(wrist_a - wrist_b, axis=-1),
        "camera_m": np.linalg.norm(a - b, axis=-1).mean(-1),
        "bearing_deg": np.degrees(np.arctan2(sine, (wrist_a * wrist_b).sum(-1))),
        "range_m": far_a - far_b,
    }
    values = {name: np.full(counted.shape, np.nan) for name in errors}
    for name, error in errors.items():
        values[name][counted] = error
    return values


def mpjpe_mm(predicted: Hands, truth: Hands) -> PerRow:
    """Return the mean distance of the wrist-relative joints."""
    a, b = predicted - predicted[:, :1], truth - truth[:, :1]
    return 1e3 * np.linalg.norm(a - b, axis=-1).mean(-1)


def pa_mm(predicted: Hands, truth: Hands) -> PerRow:
    """Return the mean distance after Procrustes alignment (similarity) of the prediction.

    A prediction of coincident joints has no scale: it is compared as a point.
    """
    a = predicted - predicted.mean(1, keepdims=True)
    b = truth - truth.mean(1, keepdims=True)
    u, singular, vt = np.linalg.svd(np.swapaxes(b, 1, 2) @ a)
    flip = np.ones((len(a), 3))
    flip[:, 2] = np.where(np.linalg.det(u @ vt) < 0, -1.0, 1.0)
    rotation = (u * flip[:, None]) @ vt
    size = (a**2).sum((1, 2))
    scale = np.where(size > 1e-12, (singular * flip).sum(1) / np.where(size > 1e-12, size, 1), 0.0)
    aligned = scale[:, None, None] * (a @ np.swapaxes(rotation, 1, 2))
    return 1e3 * np.linalg.norm(aligned - b, axis=-1).mean(-1)


def epe_px(
    predicted: Float[np.ndarray, "N 21 2"],
    truth: Float[np.ndarray, "N 21 2"],
    counted: Bool[np.ndarray, "N 21"],
    diagonal: float,
) -> Float[np.ndarray, "N 21"]:
    """Return the distance of every counted joint in pixels, NaN of the others.

    A joint predicted behind the camera is charged the image diagonal, as those of missed hands.
    """
    distance = np.linalg.norm(predicted - truth, axis=-1)
    distance = np.where(np.isfinite(distance), distance, diagonal)
    return np.where(counted, distance, np.nan)


def go_deg(predicted: Float[np.ndarray, "N 3 3"], truth: Float[np.ndarray, "N 3 3"]) -> PerRow:
    """Return the geodesic angle between two orientations."""
    return np.degrees(rotations.angle_between(predicted, truth)).reshape(len(predicted))


def jitter_runs(
    assembled: Float[np.ndarray, "T 21 3"], matched: Bool[np.ndarray, "T"]
) -> list[tuple[float, int]]:
    """Return (mean, number) of second differences per run of three or more matched frames.

    In mm per frame squared, mean over joints. ``assembled`` are wrist-relative joints plus the
    translation, metres.
    """
    means = []
    for start, stop in runs(matched):
        if stop - start >= 3:
            second = np.linalg.norm(np.diff(assembled[start:stop], 2, axis=0), axis=-1)
            means.append((1e3 * float(second.mean()), stop - start - 2))
    return means
