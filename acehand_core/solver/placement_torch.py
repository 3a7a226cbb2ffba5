"""Where a hand is: mixed PnP in closed form, and the ablations without it. torch, differentiable.

The numpy twin of the same equation, for any camera model and missing anchors, is ``solver.pnp``.
Axes: B clips, N video frames, 2 slots, 21 joints; metres, camera frame (OpenCV axes). Votes and
gates are constants: gradients flow through the numbers they choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, nearest
from acehand_core.solver.bearings_torch import Bearings

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

    ``solved`` and ``fallback`` are both answers for every row, ``translation`` takes the one that
    ``accepted`` says. ``rms`` and ``threshold`` are in the bearings' (pseudo) pixels, without a
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
        other = _wrist_on_ray(joints, bearings.joints[..., 0, :], depth)
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
    """Take the camera head's three numbers as (t_x, t_y, log t_z) in metres (the ablation).

    The paper does not say how its direct regression reads the head; depth stays a logarithm, so
    that the variants differ in nothing but the in-plane part.
    """
    return _unsolved(joints, torch.cat([camera[..., :2], camera[..., 2:].exp()], dim=-1))


def _unsolved(joints: Joints, translation: Points) -> Placement:
    """A placement that no vote took part in."""
    nobody = torch.zeros(joints.shape[:-1], dtype=torch.bool, device=joints.device)
    zero = torch.zeros_like(translation[..., 0]).detach()
    return Placement(translation, nobody[..., 0], nobody, zero, zero, translation, translation)


def _on_ray(bearing: Float[torch.Tensor, "B N 2 2"], depth: PerHand) -> Points:
    return torch.cat([bearing * depth[..., None], depth[..., None]], dim=-1)


def _wrist_on_ray(
    joints: Joints, bearing: Float[torch.Tensor, "B N 2 2"], depth: PerHand
) -> Points:
    z = (joints[..., 0, 2] + depth).clamp(min=MIN_DEPTH_M)
    shift = bearing * z[..., None] - joints[..., 0, :2]
    return torch.cat([shift, depth[..., None]], dim=-1)
