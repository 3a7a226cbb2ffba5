"""What the protocol counts: its numbers, the on-screen gate, matching, and errors of hands.

Errors are of one hand against another, many hands at once: metres in, the unit of the table out.
``HandLibrary`` has the hand models that predictions and ground truth are posed with. Source: paper,
"Metric Definitions and Penalty Protocol". Choices where it is silent are listed in
docs/evaluation.md.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, MissingDependencyError
from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.capsule import CapsuleHand
from acehand_core.hand.mano import ManoHand
from acehand_core.hand.shape import HandModel
from acehand_core.motion import HandModelName, runs
from acehand_core.types import SIDES, HandPose, JointsCamera, Keypoints, PerHand, PerHandFlag, Side


class HandLibrary:
    """Hand models by name, loaded when first asked for.

    Args:
        mano: folder or file of the user's MANO, else $ACEHAND_MANO counts.
        models: models that are there already, by (name, left_shapedirs_fixed).
    """

    def __init__(
        self,
        mano: Path | None = None,
        models: dict[tuple[str, bool], HandModel] | None = None,
    ) -> None:
        self._mano = mano
        self._models: dict[tuple[str, bool], HandModel] = dict(models or {})

    def get(self, name: HandModelName, left_shapedirs_fixed: bool = False) -> HandModel:
        """Return a model. Raises MissingDependencyError for MANO where it is not configured."""
        if name == "acehand":
            left_shapedirs_fixed = False
        key = (name, left_shapedirs_fixed)
        if key not in self._models:
            if name == "acehand":
                self._models[key] = CapsuleHand()
            elif name == "mano":
                from acehand_core.hand.mano import load_mano

                self._models[key] = load_mano(self._mano, left_shapedirs_fixed, "float64")
            else:
                raise ValueError("joints alone have no hand model")
        return self._models[key]

    def find(self, name: HandModelName, left_shapedirs_fixed: bool = False) -> HandModel | None:
        """Return a model, or None for joints alone and for a MANO that is not configured."""
        try:
            return None if name == "none" else self.get(name, left_shapedirs_fixed)
        except MissingDependencyError:
            return None


def rest_pose(model: HandModel, side: Side) -> HandPose:
    """Return zero articulation as the model defines it: MANO's mean pose, else a flat hand."""
    if isinstance(model, ManoHand):
        return model.absolute_pose(side, np.zeros(45), flat_hand_mean=False)
    return np.broadcast_to(np.eye(3), (15, 3, 3)).copy()


def canonical_joints(model: HandModel, side: Side) -> Keypoints:
    """Return the hand that a miss is charged with: (21, 3) metres, at the camera's origin.

    Identity orientation, zero articulation, mean shape, zero translation (paper, "Coverage
    penalty").
    """
    return model.joints(side, np.eye(3), rest_pose(model, side), np.zeros(10)).astype(float)


def both_canonical(model: HandModel) -> Keypoints:
    """Return the canonical hands of both slots, (2, 21, 3)."""
    return np.stack([canonical_joints(model, side) for side in SIDES])


Anchors = Literal["auto", "own", "reprojected"]

#: Width of the pictures that the paper evaluates on, by the dataset's name; of HOI4D it says none
#: (appendix "Datasets, Splits, and Preprocessing").
PAPER_WIDTHS = {"arctic": 672, "hot3d": 480, "hot3d_clips": 480, "h2o": 832, "oakink2": 832}
#: Sides are multiples of this, "so that every dataset yields an even latent grid".
_EVEN_GRID = 32


@dataclass(frozen=True, slots=True)
class Protocol:
    """What a score depends on besides predictions and ground truth.

    Attributes:
        name: "paper", or another name for changed values.
        presence_above: a hand is active where its presence is above this.
        z_min_m: a joint or vertex counts as in front of the camera above this depth, metres.
        dilation: share by which width and height of a ground-truth box grow about its centre.
        anchors: which 2D joints EPE scores: "own" the tracker's (projected joints where it has
            none), "reprojected" always projected joints, "auto" own unless the prediction says
            that it was made without intrinsics.
        radius_edges: borders between the bins of the normalised distance from the principal point.
    """

    name: str = "paper"
    presence_above: float = 0.5
    z_min_m: float = 0.01
    dilation: float = 0.10
    anchors: Anchors = "auto"
    radius_edges: tuple[float, ...] = (0.25, 0.5, 0.75)

    def to_json(self) -> dict[str, Any]:
        """Return all values."""
        return asdict(self) | {"radius_edges": list(self.radius_edges)}


def picture_size(asked: str, dataset: str, width: int, height: int) -> tuple[int, int]:
    """Return the width and height in pixels that errors in the image are measured at.

    Args:
        asked: "paper", the paper's for its datasets and what is stored for others; "stored"; or
            WIDTHxHEIGHT.
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
        raise InputError(f"--picture-size {asked!r}; valid: paper, stored, or WIDTHxHEIGHT.")
    return int(sides[1]), int(sides[2])


#: x0 y0 x1 y1 in pixels; NaN where nothing lies in front of the camera.
Boxes = Float[np.ndarray, "*batch 4"]


def joints_in_image(
    joints: Float[np.ndarray, "*batch 21 3"], camera: Camera, z_min_m: float
) -> Bool[np.ndarray, "*batch 21"]:
    """Return which joints project into [0, W) x [0, H) at a depth above ``z_min_m``.

    Source: paper, "On-screen gate", taken by the letter: pixel coordinates from 0 to the size,
    although the image of integer pixel centres begins at -0.5. NaN joints are not in the image.
    """
    pixels = camera.project(joints)
    with np.errstate(invalid="ignore"):
        inside = (pixels >= 0).all(-1) & (pixels < (camera.width, camera.height)).all(-1)
        return inside & (joints[..., 2] > z_min_m)


def boxes_around(
    points: Float[np.ndarray, "N V 3"], camera: Camera, z_min_m: float
) -> Float[np.ndarray, "N 4"]:
    """Return the box of each row's projected points in front of the camera, not cut at the image.

    Points are in metres in the camera frame. Those not deeper than ``z_min_m`` have no meaningful
    pixel and are left out; a row without any other is NaN.
    """
    boxes = np.full((len(points), 4), np.nan)
    if not len(points):
        return boxes

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
    """Return boxes whose width and height grew by ``share`` about their centres."""
    low, high = boxes[..., :2], boxes[..., 2:]
    grow = 0.5 * share * (high - low)
    return np.concatenate([low - grow, high + grow], axis=-1)


def overlap(a: Boxes, b: Boxes) -> Float[np.ndarray, "*batch"]:
    """Return the intersection over union; 0 where a box is NaN or has no area."""
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
    """Return where the prediction of a slot is the ground-truth hand of that slot.

    Each shown prediction takes the on-screen ground-truth hand, of either side, that its box
    overlaps most; it is matched if that overlap is above zero and the sides agree. A tie between
    the sides goes to its own. With one slot per side no two predictions can select the same hand
    and both be on its side, so the paper's tie rule never acts here.

    Args:
        predicted_boxes: pixels; rows that are not ``shown`` are ignored.
        shown: active predictions that pass the on-screen gate.
        truth_boxes: dilated boxes; rows that are not ``on_screen`` are ignored.
        on_screen: ground-truth hands that pass the gate.
    """
    own = np.where(on_screen, overlap(predicted_boxes, truth_boxes), 0.0)
    other = np.where(on_screen[:, ::-1], overlap(predicted_boxes, truth_boxes[:, ::-1]), 0.0)
    return shown & on_screen & (own > 0) & (own >= other)


@dataclass(frozen=True, slots=True)
class ImagePlacement:
    """Errors of the wrist of one segment's hand-frames; NaN where the tracker emits nothing.

    Attributes:
        wrist_m: distance of the wrists. camera_m: mean distance of the 21 joints, nothing aligned.
        bearing_deg: angle between the directions to the wrists.
        range_m: predicted minus true distance of the wrist from the camera.
    """

    wrist_m: PerHand
    camera_m: PerHand
    bearing_deg: PerHand
    range_m: PerHand


def placement(predicted: JointsCamera, truth: JointsCamera, counted: PerHandFlag) -> ImagePlacement:
    """Return the absolute errors of the counted hand-frames, camera frame, metres.

    Wrist-aligned errors leave these out, and so does the paper.
    """
    values = {name: np.full(counted.shape, np.nan) for name in ImagePlacement.__slots__}
    a, b = predicted[counted], truth[counted]
    wrist_a, wrist_b = a[:, 0], b[:, 0]
    far_a, far_b = np.linalg.norm(wrist_a, axis=-1), np.linalg.norm(wrist_b, axis=-1)
    values["wrist_m"][counted] = np.linalg.norm(wrist_a - wrist_b, axis=-1)
    values["camera_m"][counted] = np.linalg.norm(a - b, axis=-1).mean(-1)
    sine = np.linalg.norm(np.cross(wrist_a, wrist_b), axis=-1)
    angle = np.arctan2(sine, (wrist_a * wrist_b).sum(-1))
    values["bearing_deg"][counted] = np.degrees(angle)
    values["range_m"][counted] = far_a - far_b
    return ImagePlacement(**values)


Hands = Float[np.ndarray, "N 21 3"]
PerRow = Float[np.ndarray, "N"]


def mpjpe_mm(predicted: Hands, truth: Hands) -> PerRow:
    """Return the mean distance of the joints, each hand relative to its own wrist."""
    a, b = predicted - predicted[:, :1], truth - truth[:, :1]
    return 1e3 * np.linalg.norm(a - b, axis=-1).mean(-1)


def pa_mm(predicted: Hands, truth: Hands) -> PerRow:
    """Return the mean distance after the best rotation, translation and scale of the prediction.

    A prediction whose joints coincide has no size to scale: it is compared as a point.
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

    A joint that the prediction puts nowhere in the image plane (behind the camera) is charged the
    image diagonal, like a joint of a missed hand.
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
    """Return, per run of three or more matched frames, its mean second difference and their number.

    In mm per frame squared, mean over joints. ``assembled`` are joints relative to the wrist plus
    the translation, metres; frames that are not matched end a run and are not read.
    """
    found = []
    for start, stop in runs(matched):
        if stop - start >= 3:
            second = np.linalg.norm(np.diff(assembled[start:stop], 2, axis=0), axis=-1)
            found.append((1e3 * float(second.mean()), stop - start - 2))
    return found
