"""The training objective (paper section 3.4); docs/training.md lists what the paper leaves open.

A new term is one entry of ``TERMS`` and one field of ``LossWeights``.

An element is one rotation, hand, joint, clip or cell. Distances are means over the numbers of an
element and sums over the unmasked elements; the caller divides by the count over the whole step.
Masks depend on the targets alone, so any cut of a step into batches gives the same gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch.nn import functional

from acehand_core.ace.model.batch import Readout
from acehand_core.ace.model.camera_fit import token_centres
from acehand_core.ace.training.targets import Prediction, Targets
from acehand_core.errors import InputError
from acehand_core.settings import setting

#: Clamp of cosines, away from 1 and -1 where the arc cosine has no gradient: 1.4e-3 rad.
COSINE_MARGIN = 1e-6
#: Clamp of probabilities, away from 0 and 1.
PROBABILITY_MARGIN = 1e-6
#: Least depth of projected points.
MIN_DEPTH_M = 0.05
#: Shorter rays get a loss above that of their direction; bounds the gradient of a zero field.
MIN_RAY_LENGTH = 0.1

Scalar = Float[torch.Tensor, ""]
Rotation = Float[torch.Tensor, "*batch 3 3"]
Mask = Bool[torch.Tensor, "*batch"]

#: Joints of the three joint terms: the joint and wrist heads' (direct), the hand model's, or both.
JointReading = Literal["both", "direct", "hand"]
#: By term.
Sums = dict[str, Float[torch.Tensor, ""]]


def geodesic(predicted: Rotation, true: Rotation, mask: Mask) -> Scalar:
    """Angle between rotations, radians; ``arccos((tr(P^T T) - 1) / 2)`` (appendix "Loss Weights").

    Clamped by ``COSINE_MARGIN``: at equality the value is 1.4e-3, the gradient 0.
    """
    cosine = ((predicted * true).sum((-1, -2)) - 1) / 2
    limit = 1 - COSINE_MARGIN
    return _sum(torch.acos(cosine.clamp(-limit, limit)), mask)


def matrix_squared(predicted: Rotation, true: Rotation, mask: Mask) -> Scalar:
    """Mean squared difference of the nine numbers of a rotation."""
    return _sum((predicted - true).square().mean((-1, -2)), mask)


def absolute(
    predicted: Float[torch.Tensor, "*batch k"], true: Float[torch.Tensor, "*batch k"], mask: Mask
) -> Scalar:
    """Mean absolute difference of the k numbers of an element, in their unit."""
    return _sum((predicted - true).abs().mean(-1), mask)


def cross_entropy(
    probability: Float[torch.Tensor, "*batch"], label: Float[torch.Tensor, "*batch"], mask: Mask
) -> Scalar:
    """Binary cross-entropy, nats, of probabilities (clamped by ``PROBABILITY_MARGIN``)."""
    logit = torch.logit(probability, eps=PROBABILITY_MARGIN)
    return _sum(functional.binary_cross_entropy_with_logits(logit, label, reduction="none"), mask)


def acceleration(
    joints: Float[torch.Tensor, "B N 2 21 3"], mask: Bool[torch.Tensor, "B N-2 2"]
) -> Scalar:
    """Second difference over frames, metres per frame squared; an element is one hand."""
    second = joints[:, 2:] - 2 * joints[:, 1:-1] + joints[:, :-2]
    return _sum(second.abs().mean((-1, -2)), mask)


def rays(
    field: Float[torch.Tensor, "B 3 h w"],
    true: Float[torch.Tensor, "B 3 h w"],
    mask: Bool[torch.Tensor, "B"],
) -> Scalar:
    """One minus the cosine to the calibrated unit ray, mean over the cells (equation (ray)).

    Below ``MIN_RAY_LENGTH`` the length of ``field`` counts too. Cells with a zero true ray are
    outside the lens.
    """
    length = field.norm(dim=1).clamp(min=MIN_RAY_LENGTH)
    cosine = (field * true).sum(1) / length
    known = true.norm(dim=1) > 0.5
    distance = torch.where(known, 1 - cosine, 0.0).sum((-1, -2))
    return _sum(distance / known.sum((-1, -2)).clamp(min=1), mask)


def bearings(
    focal: Float[torch.Tensor, "B 2"],
    centre: Float[torch.Tensor, "B 2"],
    true_focal: Float[torch.Tensor, "B 2"],
    true_centre: Float[torch.Tensor, "B 2"],
    grid: tuple[int, int],
    mask: Bool[torch.Tensor, "B"],
) -> Scalar:
    """Absolute difference of the bearings x/z, y/z of two pinholes at the token centres (L_fit).

    Focal lengths and centres are shares of the image.
    """
    places = token_centres(focal.new_empty(grid)).flatten(0, 1)

    def bearing(f: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (places - c[:, None]) / f[:, None]

    difference = bearing(focal, centre) - bearing(true_focal, true_centre)
    return _sum(difference.abs().mean((-1, -2)), mask)


def project(
    joints: Float[torch.Tensor, "B *rest 3"],
    focal: Float[torch.Tensor, "B 2"],
    centre: Float[torch.Tensor, "B 2"],
) -> Float[torch.Tensor, "B *rest 2"]:
    """Return camera-frame points as shares of the image, from depth ``MIN_DEPTH_M`` up."""
    view = (-1,) + (1,) * (joints.ndim - 2) + (2,)
    depth = joints[..., 2:].clamp(min=MIN_DEPTH_M)
    return joints[..., :2] / depth * focal.view(view) + centre.view(view)


def _sum(element: torch.Tensor, mask: torch.Tensor) -> Scalar:
    # where, not a product: masked elements may be infinite.
    return torch.where(mask, element, 0.0).sum()


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the terms (paper, appendix "Loss Weights")."""

    rotation_geodesic: float = setting(1.0, "Angle of hand orientation and finger rotations.")
    rotation_matrix: float = setting(1.0, "Squared difference of the same rotations' matrices.")
    shape: float = setting(0.1, "Shape parameters.")
    joint_relative: float = setting(10.0, "3D joints relative to the wrist, per joint reading.")
    joint_camera: float = setting(5.0, "3D joints in the camera frame, per joint reading.")
    joint_wrist: float = setting(2.0, "3D wrist in the camera frame, per joint reading.")
    anchors: float = setting(1.0, "2D anchors.")
    reprojected: float = setting(1.0, "Joints of the placed hand, projected into the image.")
    image_wrist: float = setting(0.5, "The projected wrist, in addition.")
    translation: float = setting(1.0, "Translation of the solve.")
    presence: float = setting(0.5, "Presence of a hand.")
    visible: float = setting(0.25, "Visibility of a hand.")
    acceleration: float = setting(0.5, "Second difference of the placed joints.")
    rays: float = setting(1.0, "Ray field against the calibrated rays.")
    fit: float = setting(0.0, "Pinhole fitted to the ray field; 5 in the K-free configuration.")
    fit_warmup_steps: int = setting(
        500, "Steps over which the weight of `fit` grows linearly from 0."
    )
    joint_readings: JointReading = setting(
        "both",
        "Joints that the joint terms see: the heads' (direct), the hand model's (hand), or both.",
    )

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) and not 0 <= value < math.inf:
                raise InputError(f"{field.name} is {value}; 0 or more, finite.")

    def of(self, term: str, step: int | None) -> float:
        """Return a term's weight at a step from 0; None is the end of the run."""
        entry = TERMS[term]
        return getattr(self, entry.weight) * entry.scale(self, step)


@dataclass(frozen=True, slots=True)
class Elements:
    """Masks shared by several terms; axes as in ``Targets``.

    Attributes:
        posed: hands with known rotations; ``placed``: and known translation.
        joints: labelled keypoints; ``relative``: of hands with a labelled wrist.
        inside: labelled keypoints inside the image; ``seen``: of placed hands, pinhole cameras.
    """

    t: Targets
    posed: Bool[torch.Tensor, "B N 2"]
    placed: Bool[torch.Tensor, "B N 2"]
    joints: Bool[torch.Tensor, "B N 2 21"]
    relative: Bool[torch.Tensor, "B N 2 21"]
    inside: Bool[torch.Tensor, "B N 2 21"]
    seen: Bool[torch.Tensor, "B N 2 21"]

    @classmethod
    def of(cls, t: Targets) -> Elements:
        posed = t.hand & t.rotations[:, None, None]
        placed = posed & t.translation_taught[:, None, None]
        joints = (t.hand & t.joints_taught[:, None, None])[..., None] & t.joints_known
        inside = t.hand[..., None] & t.joints_known & t.inside
        relative = joints & joints[..., :1]
        seen = placed[..., None] & inside & t.pinhole[:, None, None, None]
        return cls(t, posed, placed, joints, relative, inside, seen)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prediction and its ground truth, with values shared by several terms.

    Attributes:
        joints: the hand model's joints in the camera frame; ``image``: projected.
        focal, centre: of the true pinhole, shares of the image.
        relative: the true joints relative to their wrist.
    """

    p: Prediction
    t: Targets
    readout: Readout
    joints: Float[torch.Tensor, "B N 2 21 3"]
    image: Float[torch.Tensor, "B N 2 21 2"]
    focal: Float[torch.Tensor, "B 2"]
    centre: Float[torch.Tensor, "B 2"]
    relative: Float[torch.Tensor, "B N 2 21 3"]

    @classmethod
    def of(cls, p: Prediction, t: Targets) -> Comparison:
        focal, centre = t.camera.focal / t.camera.size, t.camera.centre / t.camera.size
        joints = p.joints_camera
        relative = t.joints - t.joints[..., :1, :]
        image = project(joints, focal, centre)
        return cls(p, t, p.readout, joints, image, focal, centre, relative)


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the objective: ``distance`` summed over the elements of ``mask``.

    ``weight`` names a field of ``LossWeights``; ``scale`` returns its factor at a step.
    """

    name: str
    weight: str
    mask: Callable[[Elements], torch.Tensor]
    distance: Callable[[Comparison, torch.Tensor], Scalar]
    scale: Callable[[LossWeights, int | None], float] = lambda weights, step: 1.0


def _fit(c: Comparison, mask: torch.Tensor) -> Scalar:
    p = c.p
    if p.fit_focal is None or p.fit_centre is None or p.fit_within is None:
        return p.translation.new_zeros(())
    # Outside the paper's guards the rays alone teach the field.
    h, w = c.t.rays.shape[-2:]
    return bearings(p.fit_focal, p.fit_centre, c.focal, c.centre, (h, w), mask & p.fit_within)


def _warming_up(weights: LossWeights, step: int | None) -> float:
    if step is None or not weights.fit_warmup_steps:
        return 1.0
    return min(1.0, step / weights.fit_warmup_steps)


def _reads(reading: JointReading, weights: LossWeights, step: int | None) -> float:
    return float(weights.joint_readings in ("both", reading))


_HAND, _DIRECT = partial(_reads, "hand"), partial(_reads, "direct")

#: The objective, in the order in which logs list it.
TERMS: dict[str, Term] = {term.name: term for term in (
    Term("rot_orient", "rotation_geodesic", lambda e: e.posed,
         lambda c, m: geodesic(c.readout.global_orient, c.t.global_orient, m)),
    Term("rot_pose", "rotation_geodesic", lambda e: e.posed[..., None].expand(-1, -1, -1, 15),
         lambda c, m: geodesic(c.readout.hand_pose, c.t.hand_pose, m)),
    Term("rot_orient_matrix", "rotation_matrix", lambda e: e.posed,
         lambda c, m: matrix_squared(c.readout.global_orient, c.t.global_orient, m)),
    Term("rot_pose_matrix", "rotation_matrix", lambda e: e.posed[..., None].expand(-1, -1, -1, 15),
         lambda c, m: matrix_squared(c.readout.hand_pose, c.t.hand_pose, m)),
    Term("shape", "shape", lambda e: e.t.hand.any(1) & e.t.shape,
         lambda c, m: absolute(c.readout.betas, c.t.betas, m)),

    # Two readings of 3D joints: the placed hand model's, and the heads'.
    Term("joint_relative_hand", "joint_relative", lambda e: e.posed[..., None] & e.relative,
         lambda c, m: absolute(c.p.joints - c.p.joints[..., :1, :], c.relative, m), _HAND),
    Term("joint_camera_hand", "joint_camera", lambda e: e.placed[..., None] & e.joints,
         lambda c, m: absolute(c.joints, c.t.joints, m), _HAND),
    Term("joint_wrist_hand", "joint_wrist", lambda e: e.placed & e.joints[..., 0],
         lambda c, m: absolute(c.joints[..., 0, :], c.t.joints[..., 0, :], m), _HAND),
    Term("joint_relative_direct", "joint_relative", lambda e: e.relative,
         lambda c, m: absolute(c.readout.joints_relative, c.relative, m), _DIRECT),
    Term("joint_camera_direct", "joint_camera", lambda e: e.relative,
         lambda c, m: absolute(c.readout.joints_relative + c.readout.wrist[..., None, :],
                               c.t.joints, m), _DIRECT),
    Term("joint_wrist_direct", "joint_wrist", lambda e: e.joints[..., 0],
         lambda c, m: absolute(c.readout.wrist, c.t.joints[..., 0, :], m), _DIRECT),

    Term("img_anchors", "anchors", lambda e: e.inside & e.t.anchors_taught[:, None, None, None],
         lambda c, m: absolute(c.readout.anchors, c.t.anchors, m)),
    Term("img_reprojected", "reprojected", lambda e: e.seen,
         lambda c, m: absolute(c.image, c.t.anchors, m)),
    Term("img_wrist", "image_wrist", lambda e: e.seen[..., 0],
         lambda c, m: absolute(c.image[..., 0, :], c.t.anchors[..., 0, :], m)),
    Term("cam", "translation", lambda e: e.placed,
         lambda c, m: absolute(c.p.translation, c.t.translation, m)),

    Term("pres", "presence", lambda e: e.t.presence_taught,
         lambda c, m: cross_entropy(c.readout.presence, c.t.presence, m)),
    Term("pres_visible", "visible", lambda e: e.t.presence_taught,
         lambda c, m: cross_entropy(c.readout.visible, c.t.visible, m)),
    Term("tmp", "acceleration", lambda e: e.placed[:, 2:] & e.placed[:, 1:-1] & e.placed[:, :-2],
         lambda c, m: acceleration(c.joints, m)),
    Term("ray", "rays", lambda e: e.t.rays_taught,
         lambda c, m: rays(c.readout.rays, c.t.rays, m)),
    Term("fit", "fit", lambda e: e.t.rays_taught & e.t.pinhole & e.t.pinhole_fit,
         _fit, _warming_up),
)}  # fmt: skip


def masks_of(t: Targets) -> dict[str, torch.Tensor]:
    """Return the elements of a batch that teach each term."""
    elements = Elements.of(t)
    return {name: term.mask(elements) for name, term in TERMS.items()}


def counts_of(t: Targets) -> Sums:
    """Return the number of elements of each term."""
    return {name: mask.sum().float() for name, mask in masks_of(t).items()}


def term_sums(p: Prediction, t: Targets) -> Sums:
    """Return each term's unweighted sum over its elements."""
    compared, masks = Comparison.of(p, t), masks_of(t)
    return {name: term.distance(compared, masks[name]) for name, term in TERMS.items()}


def total(
    sums: Mapping[str, torch.Tensor],
    counts: Mapping[str, torch.Tensor],
    weights: LossWeights,
    step: int | None,
) -> Float[torch.Tensor, ""]:
    """Return the sum of the terms, weighted for ``step``, each divided by its count."""
    parts = [weights.of(name, step) * sums[name] / counts[name].clamp(min=1.0) for name in TERMS]
    return torch.stack(parts).sum()
