"""What of a prediction may be compared with the ground truth: rotations, translation, anchors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acehand_core.evaluation.models import HandLibrary
from acehand_core.evaluation.protocol import Anchors
from acehand_core.geometry.cameras import Camera
from acehand_core.hand.mapping import convert
from acehand_core.motion import HandMotion
from acehand_core.types import SIDES, PerHandFlag, PointCamera, RotationsCamera


@dataclass(frozen=True, slots=True)
class Pose:
    """Orientation and translation in the ground truth's hand model; NaN where not comparable.

    ``error_mm`` is the mean joint error of a conversion between two hand models, None without one.
    """

    global_orient: RotationsCamera
    translation: PointCamera
    comparable: bool
    error_mm: float | None = None


def comparable_pose(
    prediction: HandMotion, truth: HandMotion, emitted: PerHandFlag, library: HandLibrary
) -> Pose:
    """Return the prediction's orientation and translation as the truth's hand model has them.

    Joints alone have neither. Two different hand models are joined by ``hand.mapping`` where both
    are there; otherwise they are not comparable.
    """
    if prediction.hand_model == truth.hand_model:
        return Pose(prediction.global_orient, prediction.translation, True)
    orient = np.full((len(prediction), 2, 3, 3), np.nan)
    translation = np.full((len(prediction), 2, 3), np.nan)
    source = library.find(prediction.hand_model, prediction.left_shapedirs_fixed)
    target = library.find(truth.hand_model, truth.left_shapedirs_fixed)
    if source is None or target is None:
        return Pose(orient, translation, False)
    errors = [np.zeros(0)]
    for slot, side in enumerate(SIDES):
        rows = emitted[:, slot]
        if not rows.any():
            continue
        fit = convert(
            source, target, side, prediction.global_orient[rows, slot],
            prediction.hand_pose[rows, slot], prediction.betas[slot],
            prediction.translation[rows, slot],
        )  # fmt: skip
        orient[rows, slot], translation[rows, slot] = fit.global_orient, fit.translation
        errors.append(fit.error_m)
    found = np.concatenate(errors)
    return Pose(orient, translation, True, float(1e3 * found.mean()) if len(found) else None)


def uses_own_anchors(prediction: HandMotion, camera: Camera, anchors: Anchors) -> bool:
    """Return whether EPE scores the tracker's own 2D joints rather than projected ones.

    "auto" projects where the prediction says that no intrinsics were used (paper, "One case needs
    stating separately"), and where its 2D joints belong to another image than the ground truth's.
    """
    if anchors != "auto":
        return anchors == "own"
    settings = prediction.provenance.settings
    solve = settings.get("solve")
    bearings = solve.get("bearings", "intrinsics") if isinstance(solve, dict) else "intrinsics"
    if bearings != "intrinsics" or settings.get("intrinsics_used") is False:
        return False
    return prediction.camera is None or _same_image(prediction.camera, camera)


def _same_image(a: Camera, b: Camera) -> bool:
    return (a.model, a.width, a.height) == (b.model, b.width, b.height)
