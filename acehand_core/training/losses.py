"""The whole objective: which term sees what, masks and routing, weights (paper section 3.4).

Masks depend on the targets alone, so the number of elements of a step is known before the model
runs and can be summed over processes and accumulated batches: any way to cut a step's clips into
batches then gives the same gradient. docs/training.md lists what the paper leaves open.

The terms, one pure function each: the sum of its elements where a mask allows them. torch.

An element is one rotation, hand, joint, clip or cell, as each function says; an l1 or squared
distance is the mean over an element's numbers. Sums, not means: the caller divides by how many
elements the whole step has over all processes. A masked element gives neither value nor gradient,
and needs no meaningful numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch.nn import functional

from acehand_core.errors import InputError
from acehand_core.training.targets import Prediction, Targets

#: Cosines of angles are kept this far from 1 and -1, where the arc cosine has no gradient. The
#: least angle told apart is thus 1.4e-3 rad.
COSINE_MARGIN = 1e-6
#: Probabilities are kept this far from 0 and 1.
PROBABILITY_MARGIN = 1e-6
#: Points are projected from this depth at least.
MIN_DEPTH_M = 0.05
#: Rays shorter than this count as shorter than unit rays, so that a field that starts at zero has
#: a gradient of bounded size.
MIN_RAY_LENGTH = 0.1

Scalar = Float[torch.Tensor, ""]
Rotation = Float[torch.Tensor, "*batch 3 3"]
Mask = Bool[torch.Tensor, "*batch"]


def geodesic(predicted: Rotation, true: Rotation, mask: Mask) -> Scalar:
    """Angle between rotations, radians; ``arccos((tr(P^T T) - 1) / 2)`` (appendix "Loss Weights").

    The cosine is clamped (``COSINE_MARGIN``): at equality the value is 1.4e-3 and the gradient 0.
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

    ``field`` may have any length; below ``MIN_RAY_LENGTH`` the length counts too. Cells whose true
    ray is zero lie outside the lens and do not count.
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
    """Absolute difference of the bearings of two pinholes at the token centres (L_fit).

    Focal lengths and centres in shares of the image; bearings are x/z and y/z. ``grid``: h, w.
    """
    h, w = grid
    columns = (torch.arange(w, device=focal.device, dtype=focal.dtype) + 0.5) / w
    rows = (torch.arange(h, device=focal.device, dtype=focal.dtype) + 0.5) / h
    places = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).flatten(0, 1)

    def bearing(f: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (places - c[:, None]) / f[:, None]

    difference = bearing(focal, centre) - bearing(true_focal, true_centre)
    return _sum(difference.abs().mean((-1, -2)), mask)


def project(
    joints: Float[torch.Tensor, "B *rest 3"],
    focal: Float[torch.Tensor, "B 2"],
    centre: Float[torch.Tensor, "B 2"],
) -> Float[torch.Tensor, "B *rest 2"]:
    """Return points of the camera frame in shares of the image; depths from ``MIN_DEPTH_M`` up."""
    view = (-1,) + (1,) * (joints.ndim - 2) + (2,)
    depth = joints[..., 2:].clamp(min=MIN_DEPTH_M)
    return joints[..., :2] / depth * focal.view(view) + centre.view(view)


def _sum(element: torch.Tensor, mask: torch.Tensor) -> Scalar:
    # Chosen, not multiplied: what is masked may be infinite.
    return torch.where(mask, element, 0.0).sum()


JointReading = Literal["both", "direct", "hand"]
Sums = dict[str, Float[torch.Tensor, ""]]

#: Name of each term -> the weight that it takes. Two readings of joints carry the weight each.
TERMS: Mapping[str, str] = {
    "rot_orient": "rotation_geodesic",
    "rot_pose": "rotation_geodesic",
    "rot_orient_matrix": "rotation_matrix",
    "rot_pose_matrix": "rotation_matrix",
    "shape": "shape",
    "joint_relative_hand": "joint_relative",
    "joint_camera_hand": "joint_camera",
    "joint_wrist_hand": "joint_wrist",
    "joint_relative_direct": "joint_relative",
    "joint_camera_direct": "joint_camera",
    "joint_wrist_direct": "joint_wrist",
    "img_anchors": "anchors",
    "img_reprojected": "reprojected",
    "img_wrist": "image_wrist",
    "cam": "translation",
    "pres": "presence",
    "pres_visible": "visible",
    "tmp": "acceleration",
    "ray": "rays",
    "fit": "fit",
}


@dataclass(frozen=True, slots=True)
class LossWeights:
    """The weights of the paper's appendix "Loss Weights"; ``fit`` is 5 in the K-free configuration.

    ``fit`` grows linearly from 0 over ``fit_warmup_steps``. ``joint_readings``: whose joints the
    three joint terms see, the joint and wrist heads' ("direct"), the hand model's, or both.
    """

    rotation_geodesic: float = 1.0
    rotation_matrix: float = 1.0
    shape: float = 0.1
    joint_relative: float = 10.0
    joint_camera: float = 5.0
    joint_wrist: float = 2.0
    anchors: float = 1.0
    reprojected: float = 1.0
    image_wrist: float = 0.5
    translation: float = 1.0
    presence: float = 0.5
    visible: float = 0.25
    acceleration: float = 0.5
    rays: float = 1.0
    fit: float = 0.0
    fit_warmup_steps: int = 500
    joint_readings: str = "both"

    def __post_init__(self) -> None:
        if self.joint_readings not in ("both", "direct", "hand"):
            raise InputError(
                f"losses: joint_readings {self.joint_readings!r}; valid: both, direct, hand."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "joint_readings" and not value >= 0:
                raise InputError(f"losses: {field.name} is {value}; 0 or more is needed.")

    def of(self, term: str, step: int) -> float:
        """Return the weight of a term at a step; step 0 is the first."""
        weight = getattr(self, TERMS[term])
        if term == "fit" and self.fit_warmup_steps:
            weight *= min(1.0, step / self.fit_warmup_steps)
        reading = term.rpartition("_")[2]
        if reading in ("hand", "direct") and self.joint_readings not in ("both", reading):
            return 0.0
        return weight


@dataclass(frozen=True, slots=True)
class Masks:
    """Which elements of a batch teach which term; see ``Targets`` for the axes."""

    values: dict[str, torch.Tensor]

    @classmethod
    def of(cls, t: Targets) -> Masks:
        """Derive the masks from the targets."""
        model = t.hand & t.rotations[:, None, None]
        placed = model & t.translation_taught[:, None, None]
        joints = (t.hand & t.joints_taught[:, None, None])[..., None] & t.joints_known
        wrist = joints[..., 0]
        relative = joints & wrist[..., None]
        inside = t.hand[..., None] & t.joints_known & t.inside
        seen = placed[..., None] & inside & t.pinhole[:, None, None, None]
        told = t.presence_taught
        hand_joints = placed[..., None] & joints
        values = {
            "rot_orient": model,
            "rot_pose": model[..., None].expand(*model.shape, 15),
            "shape": t.hand.any(1) & t.shape,
            "joint_relative_hand": model[..., None] & relative,
            "joint_camera_hand": hand_joints,
            "joint_wrist_hand": hand_joints[..., 0],
            "joint_relative_direct": relative,
            "joint_camera_direct": relative,
            "joint_wrist_direct": wrist,
            "img_anchors": inside & t.anchors_taught[:, None, None, None],
            "img_reprojected": seen,
            "img_wrist": seen[..., 0],
            "cam": placed,
            "pres": told,
            "pres_visible": told,
            "tmp": placed[:, 2:] & placed[:, 1:-1] & placed[:, :-2],
            "ray": t.rays_taught,
            "fit": t.rays_taught & t.pinhole & t.pinhole_fit,
        }
        values["rot_orient_matrix"] = values["rot_orient"]
        values["rot_pose_matrix"] = values["rot_pose"]
        return cls(values)

    def counts(self) -> Sums:
        """Return the number of elements of every term."""
        return {name: self.values[name].sum().float() for name in TERMS}


def term_sums(p: Prediction, t: Targets) -> Sums:
    """Return the sum of every term over its elements; unweighted."""
    m, r = Masks.of(t).values, p.readout
    focal, centre = t.camera.focal / t.camera.size, t.camera.centre / t.camera.size
    relative = t.joints - t.joints[..., :1, :]
    camera = p.joints_camera
    image = project(camera, focal, centre)
    sums = {
        "rot_orient": geodesic(r.global_orient, t.global_orient, m["rot_orient"]),
        "rot_pose": geodesic(r.hand_pose, t.hand_pose, m["rot_pose"]),
        "rot_orient_matrix": matrix_squared(r.global_orient, t.global_orient, m["rot_orient"]),
        "rot_pose_matrix": matrix_squared(r.hand_pose, t.hand_pose, m["rot_pose"]),
        "shape": absolute(r.betas, t.betas, m["shape"]),
        "img_anchors": absolute(r.anchors, t.anchors, m["img_anchors"]),
        "img_reprojected": absolute(image, t.anchors, m["img_reprojected"]),
        "img_wrist": absolute(image[..., 0, :], t.anchors[..., 0, :], m["img_wrist"]),
        "cam": absolute(p.translation, t.translation, m["cam"]),
        "pres": cross_entropy(r.presence, t.presence, m["pres"]),
        "pres_visible": cross_entropy(r.visible, t.visible, m["pres_visible"]),
        "tmp": acceleration(camera, m["tmp"]),
        "ray": rays(r.rays, t.rays, m["ray"]),
        "fit": _fit(p, t, m["fit"], focal, centre),
    }
    readings = {
        "hand": (p.joints - p.joints[..., :1, :], camera, camera[..., 0, :]),
        "direct": (r.joints_relative, r.joints_relative + r.wrist[..., None, :], r.wrist),
    }
    truths = (relative, t.joints, t.joints[..., 0, :])
    for reading, values in readings.items():
        for kind, value, truth in zip(("relative", "camera", "wrist"), values, truths, strict=True):
            name = f"joint_{kind}_{reading}"
            sums[name] = absolute(value, truth, m[name])
    return sums


def total(
    sums: Mapping[str, torch.Tensor],
    counts: Mapping[str, torch.Tensor],
    weights: LossWeights,
    step: int,
) -> Float[torch.Tensor, ""]:
    """Return the weighted sum of the terms, each divided by its count (at least 1)."""
    parts = [weights.of(name, step) * sums[name] / counts[name].clamp(min=1.0) for name in TERMS]
    return torch.stack(parts).sum()


def _fit(
    p: Prediction, t: Targets, mask: torch.Tensor, focal: torch.Tensor, centre: torch.Tensor
) -> torch.Tensor:
    if p.fit_focal is None:
        return p.translation.new_zeros(())
    # A field outside the paper's guards is taught by its rays; its fit says nothing yet.
    grid = tuple(t.rays.shape[-2:])
    return bearings(p.fit_focal, p.fit_centre, focal, centre, grid, mask & p.fit_within)
