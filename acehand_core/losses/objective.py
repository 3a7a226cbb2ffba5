"""The whole objective: which term sees what, masks and routing, weights (paper section 3.4).

Masks depend on the targets alone, so the number of elements of a step is known before the model
runs and can be summed over processes and accumulated batches: any way to cut a step's clips into
batches then gives the same gradient. docs/training.md lists what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Float

from acehand_core.errors import InputError
from acehand_core.losses import terms
from acehand_core.losses.targets import Prediction, Targets

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
    image = terms.project(camera, focal, centre)
    sums = {
        "rot_orient": terms.geodesic(r.global_orient, t.global_orient, m["rot_orient"]),
        "rot_pose": terms.geodesic(r.hand_pose, t.hand_pose, m["rot_pose"]),
        "rot_orient_matrix": terms.matrix_squared(
            r.global_orient, t.global_orient, m["rot_orient"]
        ),
        "rot_pose_matrix": terms.matrix_squared(r.hand_pose, t.hand_pose, m["rot_pose"]),
        "shape": terms.absolute(r.betas, t.betas, m["shape"]),
        "img_anchors": terms.absolute(r.anchors, t.anchors, m["img_anchors"]),
        "img_reprojected": terms.absolute(image, t.anchors, m["img_reprojected"]),
        "img_wrist": terms.absolute(image[..., 0, :], t.anchors[..., 0, :], m["img_wrist"]),
        "cam": terms.absolute(p.translation, t.translation, m["cam"]),
        "pres": terms.cross_entropy(r.presence, t.presence, m["pres"]),
        "pres_visible": terms.cross_entropy(r.visible, t.visible, m["pres_visible"]),
        "tmp": terms.acceleration(camera, m["tmp"]),
        "ray": terms.rays(r.rays, t.rays, m["ray"]),
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
            sums[name] = terms.absolute(value, truth, m[name])
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
    return terms.bearings(p.fit_focal, p.fit_centre, focal, centre, grid, mask & p.fit_within)
