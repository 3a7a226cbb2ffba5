"""Scores of one segment's hand-frames, before averaging."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from acehand_core.ace.evaluation.protocol import (
    Anchors,
    HandLibrary,
    Protocol,
    boxes_around,
    canonical_joints,
    dilated,
    epe_px,
    go_deg,
    jitter_runs,
    joints_in_image,
    match,
    mpjpe_mm,
    pa_mm,
    placement,
)
from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mapping import convert
from acehand_core.motion import HandMotion
from acehand_core.types import (
    SIDES,
    JointsCamera,
    PerHand,
    PerHandFlag,
    PointCamera,
    RotationsCamera,
)


def comparable_pose(
    prediction: HandMotion, truth: HandMotion, emitted: PerHandFlag, library: HandLibrary
) -> tuple[RotationsCamera, PointCamera, bool, float | None]:
    """Return the prediction's orientation and translation in the truth's hand model.

    ``hand.mapping`` converts between two configured hand models; joints alone are not comparable
    (False, and NaN). Last, the mean joint error of a conversion, mm.
    """
    if prediction.hand_model == truth.hand_model:
        return prediction.global_orient, prediction.translation, True, None
    orient = np.full((len(prediction), 2, 3, 3), np.nan)
    translation = np.full((len(prediction), 2, 3), np.nan)
    source = library.find(prediction.hand_model, prediction.left_shapedirs_fixed)
    target = library.find(truth.hand_model, truth.left_shapedirs_fixed)
    if source is None or target is None:
        return orient, translation, False, None

    errors = [np.zeros(0)]
    for slot, side in enumerate(SIDES):
        rows = emitted[:, slot]
        if not rows.any():
            continue
        pose = prediction.global_orient[rows, slot], prediction.hand_pose[rows, slot]
        placed = prediction.betas[slot], prediction.translation[rows, slot]
        fit = convert(source, target, side, *pose, *placed)
        orient[rows, slot], translation[rows, slot] = fit.global_orient, fit.translation
        errors.append(fit.error_m)

    error_m = np.concatenate(errors)
    error_mm = float(1e3 * error_m.mean()) if len(error_m) else None
    return orient, translation, True, error_mm


def uses_own_anchors(prediction: HandMotion, camera: Camera, anchors: Anchors) -> bool:
    """Return whether EPE scores the tracker's own 2D joints instead of projected ones.

    "auto" projects predictions made without intrinsics (paper, "One case needs stating
    separately") or on another image than the ground truth's.
    """
    if anchors != "auto":
        return anchors == "own"
    settings = prediction.provenance.settings
    solve = settings.get("solve")
    bearings = solve.get("bearings", "intrinsics") if isinstance(solve, dict) else "intrinsics"
    if bearings != "intrinsics" or settings.get("intrinsics_used") is False:
        return False
    other = prediction.camera
    return other is None or (
        (other.model, other.width, other.height) == (camera.model, camera.width, camera.height)
    )


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """Input of one pass of a tracker: frames, latents, and whether it is the whole recording."""

    frames: int
    latents: int | None
    whole: bool


@dataclass(frozen=True, slots=True)
class SegmentScore:
    """Errors and flags of one segment of T frames.

    Errors are those of matched hands, charges of missed ones, and NaN elsewhere. ``gated`` ones are
    of the second pass, which gates by the ground truth alone: NaN without a true hand. ``go_deg``,
    ``ct_m`` and ``gated_ct_m`` are NaN for hand models that are not ``pose_comparable``.

    Attributes:
        exists: hand-frames of the ground truth.
        on_screen: those that pass the gate.
        unlabelled: hand-frames of unknown presence; not scored.
        shown: active predictions that pass the gate.
        matched: true positives.
        emitted: predicted hand-frames, active or not.
        epe_px: mean over the ``epe_joints`` joints in the image.
        radius: distance of the hand's projected centre from the principal point over half the
            image diagonal, on-screen hands.
        jitter: (mean, number of second differences) per run and hand.
        placement: see ``protocol.placement``, second pass.
        picture: width and height in pixels at which EPE is measured.
        decoded: the tracker's input, if the prediction states it.
        conversion_mm: mean joint error of the conversion between hand models.
    """

    identifier: str
    exists: PerHandFlag
    on_screen: PerHandFlag
    unlabelled: PerHandFlag
    shown: PerHandFlag
    matched: PerHandFlag
    emitted: PerHandFlag
    mpjpe_mm: PerHand
    pa_mm: PerHand
    epe_px: PerHand
    epe_joints: PerHand
    go_deg: PerHand
    ct_m: PerHand
    gated_mpjpe_mm: PerHand
    gated_ct_m: PerHand
    radius: PerHand
    jitter: tuple[tuple[float, int], ...]
    placement: Mapping[str, PerHand]
    pose_comparable: bool
    own_anchors: bool
    picture: tuple[int, int]
    conversion_mm: float | None = None
    decoded: DecodedPart | None = None

    @property
    def missed(self) -> PerHandFlag:
        """False negatives."""
        return self.on_screen & ~self.matched

    @property
    def spurious(self) -> PerHandFlag:
        """False positives."""
        return self.shown & ~self.matched


def score_segment(
    identifier: str,
    prediction: HandMotion,
    truth: HandMotion,
    library: HandLibrary,
    protocol: Protocol,
    picture: tuple[int, int] | None = None,
) -> SegmentScore:
    """Score one segment.

    Args:
        identifier: of the segment, for messages.
        prediction: checked by ``inputs.check_prediction``.
        truth: with a camera; a hand exists if known with presence above 0.5, and is unlabelled if
            unknown with presence above 0.
        picture: width and height in pixels at which EPE is measured; None: the camera's.

    Raises:
        SchemaError: the ground truth has no camera, hand model or placement.
    """
    camera, given = truth.camera, f"{identifier}: the ground truth"
    if camera is None:
        raise SchemaError(f"{given} has no camera; projection needs intrinsics.")
    if truth.hand_model == "none":
        raise SchemaError(
            f"{given} has joints only; boxes, orientation and the charge of misses need a hand "
            "model."
        )
    if not truth.placed:
        raise SchemaError(f"{given} is relative to the wrist; the camera frame is needed.")

    model = library.get(truth.hand_model, truth.left_shapedirs_fixed)
    canonical = np.stack([canonical_joints(model, side) for side in SIDES])
    exists = truth.known & (truth.presence > 0.5)
    unlabelled = ~truth.known & (truth.presence > 0)
    emitted = np.isfinite(prediction.joints_camera).all((-1, -2))
    active = emitted & (prediction.presence > protocol.presence_above)
    in_image = joints_in_image(truth.joints_camera, camera, protocol.z_min_m)
    on_screen = exists & in_image.any(-1)
    seen = joints_in_image(prediction.joints_camera, camera, protocol.z_min_m)
    shown = active & seen.any(-1) & ~unlabelled
    matched = match(
        _mesh_boxes(prediction, shown, camera, library, protocol),
        shown,
        dilated(_mesh_boxes(truth, on_screen, camera, library, protocol), protocol.dilation),
        on_screen,
    )

    stand_in = np.broadcast_to(canonical, truth.joints_camera.shape)
    penalised = np.where(matched[..., None, None], prediction.joints_camera, stand_in)
    second = np.where(emitted[..., None, None], prediction.joints_camera, stand_in)
    orient, translation, comparable, error_mm = comparable_pose(prediction, truth, emitted, library)
    # A miss has the angle of the identity.
    orient = np.where(matched[..., None, None], orient, np.eye(3))
    turned = np.isfinite(orient).all((-1, -2))
    own = uses_own_anchors(prediction, camera, protocol.anchors)
    picture = picture or (camera.width, camera.height)
    epe = _epe(prediction, truth, in_image, matched, own, picture)

    # Jitter is of wrist-relative joints plus the translation; of joints alone, of camera joints:
    # they differ by the constant rest wrist.
    path = prediction.joints_camera
    if prediction.hand_model != "none":
        path = path - path[:, :, :1] + prediction.translation[:, :, None]
    runs = (jitter_runs(path[:, slot], matched[:, slot]) for slot in (0, 1))

    joints = in_image.sum(-1).astype(float)
    return SegmentScore(
        identifier,
        exists, on_screen, unlabelled, shown, matched, emitted,
        mpjpe_mm=_rows(mpjpe_mm, penalised, truth.joints_camera, on_screen),
        pa_mm=_rows(pa_mm, penalised, truth.joints_camera, on_screen),
        epe_px=np.where(on_screen, epe, np.nan),
        epe_joints=np.where(on_screen, joints, 0.0),
        go_deg=_rows(go_deg, orient, truth.global_orient, on_screen & turned),
        ct_m=_translation(translation, truth, matched, on_screen),
        gated_mpjpe_mm=_rows(mpjpe_mm, second, truth.joints_camera, exists),
        gated_ct_m=_translation(translation, truth, emitted, exists),
        radius=_radius(truth.joints_camera, in_image, camera, on_screen),
        jitter=tuple(itertools.chain.from_iterable(runs)),
        placement=placement(prediction.joints_camera, truth.joints_camera, emitted & exists),
        pose_comparable=comparable,
        own_anchors=own,
        picture=picture,
        conversion_mm=error_mm,
        decoded=_decoded(prediction.provenance.settings),
    )  # fmt: skip


def _decoded(settings: Mapping[str, Any]) -> DecodedPart | None:
    frames, latents = settings.get("decoded_frames"), settings.get("decoded_latents")
    if not isinstance(frames, int):
        return None
    latents = latents if isinstance(latents, int) else None
    return DecodedPart(frames, latents, settings.get("decoded_whole") is True)


def _epe(
    prediction: HandMotion,
    truth: HandMotion,
    in_image: np.ndarray,
    matched: PerHandFlag,
    own: bool,
    picture: tuple[int, int],
) -> PerHand:
    """Return the mean distance over a hand's joints in the image; the diagonal for a miss."""
    camera, diagonal = truth.camera, math.hypot(*picture)
    assert camera is not None
    # Plain ratios: the pixel-centre shift cancels in a difference.
    scale = np.array(picture) / (camera.width, camera.height)
    errors = np.full(matched.shape, diagonal)
    if matched.any():
        pixels = camera.project(prediction.joints_camera[matched])
        if own:
            anchors = prediction.joints_image[matched]
            pixels = np.where(np.isfinite(anchors).all(-1, keepdims=True), anchors, pixels)
        target = camera.project(truth.joints_camera[matched])
        distance = epe_px(pixels * scale, target * scale, in_image[matched], diagonal)
        errors[matched] = np.nanmean(distance, axis=-1)
    return errors


def _mesh_boxes(
    motion: HandMotion,
    counted: PerHandFlag,
    camera: Camera,
    library: HandLibrary,
    protocol: Protocol,
) -> Float[np.ndarray, "T 2 4"]:
    """Return boxes of the counted hands: of their mesh, or of the joints without a hand model."""
    boxes = np.full((*counted.shape, 4), np.nan)
    model = library.find(motion.hand_model, motion.left_shapedirs_fixed)
    for slot, side in enumerate(SIDES):
        rows = counted[:, slot]
        if not rows.any():
            continue
        points = motion.joints_camera[rows, slot]
        if model is not None:
            pose = motion.global_orient[rows, slot], motion.hand_pose[rows, slot]
            points = model.vertices(side, *pose, motion.betas[slot])
            points = points + motion.translation[rows, slot, None]
        boxes[rows, slot] = boxes_around(points.astype(float), camera, protocol.z_min_m)
    return boxes


def _rows(
    error: Callable[[np.ndarray, np.ndarray], np.ndarray],
    predicted: np.ndarray,
    truth: np.ndarray,
    counted: PerHandFlag,
) -> PerHand:
    """Return an error of joints or rotations at the counted hand-frames, NaN elsewhere."""
    errors = np.full(counted.shape, np.nan)
    errors[counted] = error(predicted[counted], truth[counted])
    return errors


def _translation(
    predicted: np.ndarray, truth: HandMotion, taken: PerHandFlag, counted: PerHandFlag
) -> PerHand:
    """Return the distance to the true translation; of the origin where not ``taken``."""
    translation = np.where(taken[..., None], predicted, 0.0)
    distance = np.linalg.norm(translation - truth.translation, axis=-1)
    return np.where(counted, distance, np.nan)


def _radius(
    joints: JointsCamera, in_image: np.ndarray, camera: Camera, on_screen: PerHandFlag
) -> PerHand:
    """Return the normalised distance of projected centres from the principal point.

    The centre is the mean of the 21 joints; if it does not project, the mean of the projected
    joints in the image.
    """
    centre = camera.project(joints.mean(-2))
    count = np.maximum(in_image.sum(-1), 1)[..., None]
    seen = np.where(in_image[..., None], camera.project(joints), 0.0).sum(-2) / count
    centre = np.where(np.isfinite(centre).all(-1, keepdims=True), centre, seen)
    half = math.hypot(camera.width, camera.height) / 2
    radius = np.linalg.norm(centre - (camera.cx, camera.cy), axis=-1) / half
    return np.where(on_screen, radius, np.nan)
