"""Where a hand is: mixed PnP in closed form, its ablations, and full rigid PnP. torch.

Mixed PnP trusts the predicted depth and solves two numbers. In rigid PnP depth is a third unknown
that the size of the hand in the image constrains, and the prediction is a prior; it also places
joints that come without a hand model, the decoder's wrist-relative ones.

The numpy twin of mixed PnP, for any camera model and missing anchors, is
``trackers.mediapipe.pnp``. Axes: B clips, N video frames, 2 slots, 21 joints; metres, camera frame
(OpenCV axes). Votes and gates are constants: gradients flow through the numbers they choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float

from acehand_core.ace.model.bearings import Bearings
from acehand_core.errors import InputError, nearest

#: Gates of the paper's appendix "Architecture" as the released code has them.
MIN_DEPTH_M = 0.05
MIN_VOTES = 6
MAX_RMS_PX = 15.0
MAX_RMS_DIAGONAL = 0.25
#: Least sum of squared weights; only a hand tens of kilometres away has less.
MIN_WEIGHT = 1e-8

Fallback = Literal["released", "paper"]
Joints = Float[torch.Tensor, "B N 2 21 3"]
PerHand = Float[torch.Tensor, "B N 2"]
Points = Float[torch.Tensor, "B N 2 3"]
Votes = Bool[torch.Tensor, "B N 2 21"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Translations to add to canonical joints, and how they came about.

    ``solved`` and ``fallback`` are both answers for every row, ``translation`` is the one that
    ``accepted`` selects. ``rms`` and ``threshold`` are in the bearings' (pseudo) pixels, without a
    gradient; rows without votes have rms 0 and the least threshold.
    """

    translation: Points
    accepted: Bool[torch.Tensor, "B N 2"]
    votes: Votes
    rms: PerHand
    threshold: PerHand
    solved: Points
    fallback: Points


def mixed_pnp(
    joints: Joints, log_depth: PerHand, bearings: Bearings, fallback: str = "released"
) -> Placement:
    """Solve the in-plane translation in closed form at the predicted depth ``exp(log_depth)``.

    Paper, section "Mixed-PnP translation", equation (pnp). A joint votes when it is strictly more
    than 5 cm away and its anchor is usable. A row is accepted with at least six votes and a refit
    residual of at most 15 px or a quarter of the diagonal of the box of its voting anchors. The
    depth of the translation is always ``exp(log_depth)``.

    Args:
        joints: canonical joints: oriented to the camera, not placed.
        log_depth: logarithm of the translation's depth in metres.
        fallback: what a refused row gets. "released": the translation itself lies on the ray that
            the camera head points to, ``t = (b_x t_z, b_y t_z, t_z)``, so the wrist is off that
            ray by the canonical wrist. "paper": the wrist (joint 0) lies on the ray of its own
            anchor at its own depth ``z_0 = max(J_0z + t_z, 5 cm)``, so ``t_x = b_0x z_0 - J_0x``.

    Raises:
        InputError: an unknown ``fallback``.
    """
    if fallback not in get_args(Fallback):
        raise InputError(f"fallback {fallback!r}; {nearest(str(fallback), get_args(Fallback))}")
    depth = log_depth.exp()
    z_raw = joints[..., 2] + depth[..., None]
    inverse = 1 / z_raw.clamp(min=MIN_DEPTH_M)
    votes = (z_raw > MIN_DEPTH_M) & bearings.usable
    weight = votes * inverse
    offset = bearings.joints - joints[..., :2] * inverse[..., None]
    total = (weight * inverse).sum(-1, keepdim=True).clamp(min=MIN_WEIGHT)
    shift = (weight[..., None] * offset).sum(-2) / total
    solved = torch.cat([shift, depth[..., None]], dim=-1)

    with torch.no_grad():
        error = offset - shift[..., None, :] * inverse[..., None]
        rms, threshold, accepted = residual_gate(error, votes, bearings)

    other = _on_ray(bearings.fallback, depth)
    if fallback == "paper":
        wrist_depth = z_raw[..., 0].clamp(min=MIN_DEPTH_M)[..., None]
        in_plane = bearings.joints[..., 0, :] * wrist_depth - joints[..., 0, :2]
        other = torch.cat([in_plane, depth[..., None]], dim=-1)

    translation = torch.where(accepted[..., None], solved, other)
    return Placement(translation, accepted, votes, rms, threshold, solved, other)


def residual_gate(
    error: Float[torch.Tensor, "B N 2 21 2"], votes: Votes, bearings: Bearings
) -> tuple[PerHand, PerHand, Bool[torch.Tensor, "B N 2"]]:
    """Return rms residual, its limit, and which rows have votes enough and a residual within it.

    Args:
        error: observed minus fitted bearing per joint.
    """
    count = votes.sum(-1)
    squared = (error * bearings.scale[:, None, None, None]).square().sum(-1)
    rms = (torch.where(votes, squared, 0.0).sum(-1) / count.clamp(min=1)).sqrt()
    pixels, mask = bearings.pixels, votes[..., None]
    high = pixels.masked_fill(~mask, -torch.inf).amax(-2)
    low = pixels.masked_fill(~mask, torch.inf).amin(-2)
    box = torch.where(count[..., None] > 0, high - low, 0.0)
    threshold = (MAX_RMS_DIAGONAL * box.norm(dim=-1)).clamp(min=MAX_RMS_PX)
    return rms, threshold, (count >= MIN_VOTES) & (rms <= threshold)


def inverse_projection(joints: Joints, camera: Points, bearings: Bearings) -> Placement:
    """Unproject the camera head's point (u, v, log z); no joint is asked (the paper's ablation).

    The same as the released fallback in every row. ``accepted`` is False: nothing was solved.
    """
    return _unsolved(joints, _on_ray(bearings.fallback, camera[..., 2].exp()))


def direct(joints: Joints, camera: Points) -> Placement:
    """Take the camera head's three numbers as (t_x / t_z, t_y / t_z, log t_z) (the ablation).

    The paper does not say how its direct regression reads the head; the released code has one
    reading without a camera, and it is this.
    """
    depth = camera[..., 2:].exp()
    return _unsolved(joints, torch.cat([camera[..., :2] * depth, depth], dim=-1))


def _unsolved(joints: Joints, translation: Points) -> Placement:
    """A placement without any vote."""
    votes = torch.zeros(joints.shape[:-1], dtype=torch.bool, device=joints.device)
    zero = torch.zeros_like(translation[..., 0]).detach()
    return Placement(translation, votes[..., 0], votes, zero, zero, translation, translation)


def _on_ray(bearing: Float[torch.Tensor, "B N 2 2"], depth: PerHand) -> Points:
    return torch.cat([bearing * depth[..., None], depth[..., None]], dim=-1)


Residual = Float[torch.Tensor, "B N 2 21 2"]
#: (t_x / t_z, t_y / t_z, log t_z, log size).
Unknowns = Float[torch.Tensor, "B N 2 4"]

#: No step changes a bearing or a logarithm by more.
_MAX_STEP = 0.5
_DAMPING = 1e-6


@dataclass(frozen=True, slots=True)
class RigidSettings:
    """How much is believed. All are standard deviations; infinity switches a prior off.

    A joint's bearing is off by its anchor (pixels of the bearings' scale) and by its own position
    (metres, over its depth). All joints together are off by the hand's size, which no image can
    tell from depth: the size is solved for under its prior, so that depth prior and depth seen are
    weighed as they deserve. ``robust`` is the residual, in these units, whose weight is a quarter
    (Geman-McClure); infinity makes it least squares.
    """

    depth_sigma: float = 0.1  # of log t_z
    size_sigma: float = 0.03  # of the logarithm of the hand's size
    anchor_sigma_px: float = 5.0
    joint_sigma_m: float = 0.006
    robust: float = 4.0
    steps: int = 8

    def __post_init__(self) -> None:
        for name in ("depth_sigma", "size_sigma", "anchor_sigma_px", "robust"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}: valid: above 0.")
        if not self.joint_sigma_m >= 0 or self.steps < 1:
            raise InputError(
                f"joint_sigma_m {self.joint_sigma_m}, steps {self.steps}: valid: 0 or more metres, "
                "at least 1 step."
            )


@dataclass(frozen=True, slots=True)
class RigidPlacement:
    """``joints_camera = joints + translation``.

    Where not ``accepted`` the start's translation stands. ``size`` is the factor by which the hand
    would be larger; it is reported, not applied. ``rms`` is the residual of the voting joints in
    the bearings' (pseudo) pixels, without a gradient.
    """

    translation: Points
    size: PerHand
    accepted: Bool[torch.Tensor, "B N 2"]
    votes: Bool[torch.Tensor, "B N 2 21"]
    rms: PerHand


def rigid_pnp(
    joints: Joints,
    log_depth: PerHand,
    bearings: Bearings,
    start: Placement,
    settings: RigidSettings = RigidSettings(),
) -> RigidPlacement:
    """Solve the translation under its priors.

    Robust Gauss-Newton from mixed PnP's closed form (also where that was refused: a wrong depth is
    why most are), a fixed number of steps, unrolled: gradients are those of the numbers returned,
    through every step; only votes and gates are constants. Unknowns are the bearing and the
    logarithm of depth of the translation, so it cannot pass behind the camera.

    Refused are rows with fewer votes than mixed PnP needs, with a voting joint nearer than 5 cm
    after the solve, with a residual above mixed PnP's limit, or with no finite answer.

    Args:
        joints: canonical or wrist-relative joints, camera axes, metres.
        log_depth: predicted logarithm of the translation's depth, the mean of its prior.
        start: from ``mixed_pnp`` on the same joints, depth and bearings.
    """
    solved = start.solved
    depth = solved[..., 2:]
    unknowns = torch.cat([solved[..., :2] / depth, depth.log(), torch.zeros_like(depth)], dim=-1)

    # One over the standard deviation of each bearing, 0 where a joint has no vote.
    anchor = settings.anchor_sigma_px / bearings.scale[:, None, None, None]
    joint = settings.joint_sigma_m / depth[..., None]
    inverse = start.votes[..., None] / (anchor.square() + joint.square()).sqrt()

    for _ in range(settings.steps):
        unknowns = _improve(unknowns, joints, log_depth, bearings.joints, inverse, settings)
    with torch.no_grad():
        points, seen, _ = _project(unknowns, joints, bearings.joints)
        rms, _, accepted = residual_gate(seen, start.votes, bearings)
        accepted &= ((points[..., 2] > MIN_DEPTH_M) | ~start.votes).all(-1)
        accepted &= torch.isfinite(unknowns).all(-1)
    translation = _on_ray(unknowns[..., :2], unknowns[..., 2].exp())
    translation = torch.where(accepted[..., None], translation, start.translation)
    size = torch.where(accepted, unknowns[..., 3].exp(), 1.0)
    return RigidPlacement(translation, size, accepted, start.votes, rms)


def _improve(
    unknowns: Unknowns,
    joints: Joints,
    log_depth: PerHand,
    bearing: Residual,
    inverse: Residual,
    settings: RigidSettings,
) -> Unknowns:
    """Take one Gauss-Newton step of the maximum a posteriori."""
    _, residual, jacobian = _project(unknowns, joints, bearing)
    residual, jacobian = residual * inverse, jacobian * inverse[..., None]
    weight = (1 + residual.square().sum(-1) / settings.robust**2) ** -2
    weighted = jacobian * weight[..., None, None]
    normal = torch.einsum("...jci,...jck->...ik", weighted, jacobian)
    right = torch.einsum("...jci,...jc->...i", weighted, residual)
    sigma = [torch.inf, torch.inf, settings.depth_sigma, settings.size_sigma]
    prior = unknowns.new_tensor(sigma) ** -2
    mean = torch.zeros_like(unknowns)
    mean[..., 2] = log_depth
    damping = _DAMPING * normal.diagonal(dim1=-2, dim2=-1) + 1e-9
    normal = normal + torch.diag_embed(prior + damping)
    step = torch.linalg.solve(normal, right + prior * (mean - unknowns))

    return unknowns + step.clamp(-_MAX_STEP, _MAX_STEP)


def _project(
    unknowns: Unknowns, joints: Joints, bearing: Residual
) -> tuple[Joints, Residual, Float[torch.Tensor, "B N 2 21 2 4"]]:
    """Return placed joints, observed minus fitted bearings, and the fitted ones' derivative."""
    translation = _on_ray(unknowns[..., :2], unknowns[..., 2].exp())
    wrist = joints[..., :1, :]
    arms = (joints - wrist) * unknowns[..., None, 3:].exp()
    points = arms + wrist + translation[..., None, :]
    inverse = 1 / points[..., 2:].clamp(min=MIN_DEPTH_M)
    fitted = points[..., :2] * inverse
    share = translation[..., None, 2:] * inverse  # t_z / z
    eye = torch.eye(2, dtype=joints.dtype, device=joints.device)
    by_place = share[..., None] * eye
    by_depth = share * (unknowns[..., None, :2] - fitted)
    by_point = torch.cat([inverse[..., None] * eye, (-fitted * inverse)[..., None]], dim=-1)
    parts = [by_place, by_depth[..., None], by_point @ arms[..., None]]
    return points, bearing - fitted, torch.cat(parts, dim=-1)
