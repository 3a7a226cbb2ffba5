"""The on-screen gate and the boxes around projected meshes.

Which predicted hand is which hand of the ground truth.

Where hands are absolutely: wrist-aligned errors leave it out, and so does the paper.

Errors of one hand against another, many hands at once. Metres in, the unit of the table out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from acehand_core.geometry import rotations
from acehand_core.geometry.cameras import Camera
from acehand_core.types import JointsCamera, PerHand, PerHandFlag

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
    out = np.full((len(points), 4), np.nan)
    if not len(points):
        return out
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
        out[some, axis] = low.min(-1)[some]
        out[some, axis + 2] = high.max(-1)[some]
    return out


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
class Placement:
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


def placement(predicted: JointsCamera, truth: JointsCamera, wanted: PerHandFlag) -> Placement:
    """Return the absolute errors of the wanted hand-frames, camera frame, metres."""
    values = {name: np.full(wanted.shape, np.nan) for name in Placement.__slots__}
    a, b = predicted[wanted], truth[wanted]
    wrist_a, wrist_b = a[:, 0], b[:, 0]
    far_a, far_b = np.linalg.norm(wrist_a, axis=-1), np.linalg.norm(wrist_b, axis=-1)
    values["wrist_m"][wanted] = np.linalg.norm(wrist_a - wrist_b, axis=-1)
    values["camera_m"][wanted] = np.linalg.norm(a - b, axis=-1).mean(-1)
    sine = np.linalg.norm(np.cross(wrist_a, wrist_b), axis=-1)
    angle = np.arctan2(sine, (wrist_a * wrist_b).sum(-1))
    values["bearing_deg"][wanted] = np.degrees(angle)
    values["range_m"][wanted] = far_a - far_b
    return Placement(**values)


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
    edges = np.flatnonzero(np.diff(np.concatenate([[False], matched, [False]]).astype(int)))
    out = []
    for start, stop in edges.reshape(-1, 2):
        if stop - start >= 3:
            second = np.linalg.norm(np.diff(assembled[start:stop], 2, axis=0), axis=-1)
            out.append((1e3 * float(second.mean()), int(stop - start - 2)))
    return out
