"""Hand placement from 2D anchors: bearings under any camera, then PnP. torch, differentiable.

A bearing is the pair (x/z, y/z) of a ray, under a given, fitted or radial camera or from the ray
field. Mixed PnP trusts the predicted depth and solves two numbers in closed form. Rigid PnP also
solves depth, from the hand's size in the image with the prediction as prior; it also places the
decoder's wrist-relative joints, without a hand model. ``trackers.mediapipe.pnp`` is mixed PnP in
numpy, for any camera model and missing anchors.

Axes: B clips, N video frames, 2 slots, 21 joints; metres, camera frame (OpenCV axes). Anchors are
0..1 over the image; ``uv`` is the camera head's wrist position in -1..1, read only by the released
fallback. Votes and gates are constants: gradients flow through the numbers they choose.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import get_args

import torch
from jaxtyping import Bool, Float

from acehand_core.ace.model.camera_fit import MIN_RAY_DEPTH, FittedPinhole, RadialFit
from acehand_core.ace.model.config import Fallback
from acehand_core.errors import InputError, nearest

#: Share of the frame by which voting anchors are inside it (paper, appendix "Architecture").
IMAGE_MARGIN = 0.02

Anchors = Float[torch.Tensor, "B N 2 21 2"]
Wrists = Float[torch.Tensor, "B N 2 2"]
PerClip = Float[torch.Tensor, "B 2"]
Rays = Float[torch.Tensor, "B 3 h w"]
Joints = Float[torch.Tensor, "B N 2 21 3"]
PerHand = Float[torch.Tensor, "B N 2"]
Points = Float[torch.Tensor, "B N 2 3"]
Votes = Bool[torch.Tensor, "B N 2 21"]

#: Gates of the paper's appendix "Architecture" as the released code has them.
MIN_DEPTH_M = 0.05
MIN_VOTES = 6
MAX_RMS_PX = 15.0
MAX_RMS_DIAGONAL = 0.25
#: Least sum of squared weights: that of a hand tens of kilometres away.
MIN_WEIGHT = 1e-8

Residual = Float[torch.Tensor, "B N 2 21 2"]
#: (t_x / t_z, t_y / t_z, log t_z, log size).
Unknowns = Float[torch.Tensor, "B N 2 4"]

#: Largest step of a bearing or a logarithm.
_MAX_STEP = 0.5
_DAMPING = 1e-6


@dataclass(frozen=True, slots=True)
class Bearings:
    """Anchors as bearings, for the solve.

    ``scale`` turns bearings into the (pseudo) pixels of the residual gate: the focal lengths, or
    the image width on both axes for a bare ray field. ``usable`` marks anchors that may vote:
    inside the margin, and with a bearing.
    """

    joints: Anchors
    fallback: Wrists
    usable: Votes
    scale: PerClip

    @property
    def pixels(self) -> Anchors:
        """The anchors in the residual's units, up to a shift per clip."""
        return self.joints * self.scale[:, None, None, None]


def inside_margin(anchors: Anchors) -> Votes:
    """Return which anchors lie strictly inside the frame by ``IMAGE_MARGIN`` on every side."""
    return ((anchors > IMAGE_MARGIN) & (anchors < 1 - IMAGE_MARGIN)).all(-1)


def calibrated_bearings(
    anchors: Anchors, uv: Wrists, focal: PerClip, centre: PerClip, size: PerClip
) -> Bearings:
    """Return bearings under a given pinhole, in pixels of an image that spans 0 to ``size``.

    Paper, section "Mixed-PnP translation": ``((u - cx) / fx, (v - cy) / fy)``, without the half
    pixel between the conventions (see ``PinholeBatch``).
    """

    def bearing(place: torch.Tensor) -> torch.Tensor:
        view = (-1,) + (1,) * (place.ndim - 2) + (2,)
        return (place * size.view(view) - centre.view(view)) / focal.view(view)

    return Bearings(bearing(anchors), bearing((uv + 1) / 2), inside_margin(anchors), focal)


def sampled_bearings(
    rays: Rays, anchors: Anchors, uv: Wrists, size: PerClip, cell_centres: bool = False
) -> Bearings:
    """Read bearings off the ray field at the anchors (bilinear, zeros outside the field).

    As the released K-free code: outer cells on the image's edges (``align_corners``), ``uv`` as
    grid coordinates, residuals in image widths on both axes.

    Args:
        rays: any length; depth counts by its absolute value, at least ``MIN_RAY_DEPTH``.
        cell_centres: cells at their centres, as in the fit and the ray targets; bearings are
            constant beyond the outer centres.
    """

    def bearing(place: torch.Tensor) -> torch.Tensor:
        """Sample at -1..1 image coordinates of any shape (B, ..., 2)."""
        if cell_centres:
            cells = place.new_tensor([rays.shape[3], rays.shape[2]])
            # Half a cell at either end lies outside the outer centres.
            place = place * cells / (cells - 1).clamp(min=1)
        grid = place.reshape(len(place), -1, 1, 2)
        read = torch.nn.functional.grid_sample(rays, grid, align_corners=True)[..., 0]
        direction = read[:, :2] / read[:, 2:].abs().clamp(min=MIN_RAY_DEPTH)
        return direction.transpose(1, 2).reshape(place.shape)

    scale = size[:, :1].expand(-1, 2)
    return Bearings(bearing(anchors * 2 - 1), bearing(uv), inside_margin(anchors), scale)


def fitted_bearings(
    fit: FittedPinhole, rays: Rays, anchors: Anchors, uv: Wrists, size: PerClip
) -> Bearings:
    """Return bearings under the pinhole fitted to the ray field (the paper's K-free solve).

    Clips with a failed fit read the ray field, cells at their centres; the paper's appendix
    "Architecture" names this fallback but not where cells lie.
    """
    fitted = calibrated_bearings(anchors, uv, fit.focal, fit.centre, torch.ones_like(size))
    sampled = sampled_bearings(rays, anchors, uv, size, cell_centres=True)
    return _where(fit.valid, replace(fitted, scale=fit.focal * size), sampled)


def radial_bearings(
    fit: RadialFit, rays: Rays, anchors: Anchors, uv: Wrists, size: PerClip
) -> Bearings:
    """Return bearings under a radial lens fitted to the ray field.

    Anchors beyond ``camera_fit.MAX_BEARING_ANGLE`` from the optical axis have no vote; their
    bearing is clamped to that angle. Clips with a failed fit read the field.
    """
    joints, seen = fit.bearing(anchors)
    wrist, _ = fit.bearing((uv + 1) / 2)
    fitted = Bearings(joints, wrist, inside_margin(anchors) & seen, fit.focal * size)
    return _where(fit.valid, fitted, sampled_bearings(rays, anchors, uv, size, cell_centres=True))


def _where(valid: Bool[torch.Tensor, "B"], yes: Bearings, no: Bearings) -> Bearings:
    """Choose per clip."""
    pairs = [(getattr(yes, f.name), getattr(no, f.name)) for f in fields(Bearings)]
    return Bearings(*(torch.where(valid.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))


@dataclass(frozen=True, slots=True)
class Placement:
    """Translations to add to canonical joints, and how they were chosen.

    ``solved`` and ``fallback`` hold every row of mixed PnP, ``translation`` the result that
    ``accepted`` selects. ``rms`` and ``threshold`` are in the bearings' (pseudo) pixels, without a
    gradient; rows without votes have rms 0 and the least threshold. ``size`` is rigid PnP's scale
    estimate of the hand, not applied.
    """

    translation: Points
    accepted: Bool[torch.Tensor, "B N 2"]
    votes: Votes
    rms: PerHand
    threshold: PerHand
    solved: Points
    fallback: Points
    size: PerHand | None = None


def mixed_pnp(
    joints: Joints, log_depth: PerHand, bearings: Bearings, fallback: str = "released"
) -> Placement:
    """Solve the in-plane translation in closed form at the predicted depth ``exp(log_depth)``.

    Paper, section "Mixed-PnP translation", equation (pnp). A joint votes if it is more than 5 cm
    away and its anchor is usable. A row is accepted with at least six votes and a refit residual of
    at most 15 px or a quarter of the diagonal of the box of its voting anchors. Raises InputError:
    an unknown ``fallback``.

    Args:
        joints: canonical joints: oriented to the camera, not placed.
        log_depth: logarithm of the translation's depth in metres.
        fallback: for refused rows. "released": the translation lies on the camera head's ray, ``t =
            (b_x t_z, b_y t_z, t_z)``, so the wrist is off that ray by the canonical wrist. "paper":
            the wrist (joint 0) lies on the ray of its own anchor at its own depth ``z_0 = max(J_0z
            + t_z, 5 cm)``, so ``t_x = b_0x z_0 - J_0x``.
    """
    if fallback not in get_args(Fallback):
        raise InputError(f"fallback {fallback!r}; {nearest(fallback, get_args(Fallback))}")
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
    """Return rms of the bearing errors, its limit, and which rows have enough votes and pass it."""
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
    """Unproject the camera head's point: the released fallback (the paper's ablation)."""
    return _unsolved(joints, _on_ray(bearings.fallback, camera[..., 2].exp()))


def direct(joints: Joints, camera: Points) -> Placement:
    """Take the camera head's three numbers as (t_x / t_z, t_y / t_z, log t_z) (the ablation).

    The paper does not define its direct regression; this is the released code's reading without a
    camera.
    """
    depth = camera[..., 2:].exp()
    return _unsolved(joints, torch.cat([camera[..., :2] * depth, depth], dim=-1))


def _unsolved(joints: Joints, translation: Points) -> Placement:
    """Return a placement without votes."""
    votes = torch.zeros(joints.shape[:-1], dtype=torch.bool, device=joints.device)
    zero = torch.zeros_like(translation[..., 0]).detach()
    return Placement(translation, votes[..., 0], votes, zero, zero, translation, translation)


def _on_ray(bearing: Float[torch.Tensor, "B N 2 2"], depth: PerHand) -> Points:
    return torch.cat([bearing * depth[..., None], depth[..., None]], dim=-1)


@dataclass(frozen=True, slots=True)
class RigidSettings:
    """Noise and priors of rigid PnP: standard deviations; infinity disables a prior.

    A joint's bearing has noise from its anchor (pixels of the bearings' scale) and its own position
    (metres, over its depth). The hand's size, which an image cannot separate from depth, is solved
    under its own prior. ``robust`` is the residual, in standard deviations, of weight one quarter
    (Geman-McClure); infinity is least squares.
    """

    depth_sigma: float = 0.1  # of log t_z
    size_sigma: float = 0.03  # of the logarithm of the hand's size
    anchor_sigma_px: float = 5.0
    joint_sigma_m: float = 0.006
    robust: float = 4.0
    steps: int = 8


def rigid_pnp(
    joints: Joints,
    log_depth: PerHand,
    bearings: Bearings,
    start: Placement,
    settings: RigidSettings = RigidSettings(),
) -> Placement:
    """Solve the translation under its priors.

    A fixed number of unrolled robust Gauss-Newton steps from mixed PnP's solution (also a refused
    one: most are refused for a wrong depth); gradients are exact, votes and gates constant. The
    unknowns are the translation's bearing and log depth, so it stays before the camera.

    Refused are rows with too few votes or too large a residual for mixed PnP, with a voting joint
    nearer than 5 cm, or without a finite solution; they keep the translation of ``start``.

    Args:
        joints: canonical or wrist-relative joints, camera axes, metres.
        log_depth: predicted log depth of the translation, the mean of its prior.
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
    return replace(start, translation=translation, accepted=accepted, rms=rms, size=size)


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
