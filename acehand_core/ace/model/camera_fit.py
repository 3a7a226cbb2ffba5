"""A pinhole or a radial (fisheye) lens fitted to a predicted ray field. torch, differentiable.

A ray field is one direction per token, through the token's centre: column j of w is at ``(j + 0.5)
/ w`` of the image. Directions have any length.

The paper fits a pinhole in closed form and leaves a radial model as future work. The one here maps
the image to rays in closed form, without inversion: with ``s`` the distance of an image point from
the centre in focal lengths,

    psi = arctan(sqrt(q) s) / sqrt(q),    theta = psi + a psi^5,

theta the angle to the optical axis. ``q`` covers the classical lenses: 1 is the pinhole, 1/4
stereographic, 0 equidistant, slightly below 0 equisolid (arctan becomes artanh); ``a`` takes the
rest. An odd polynomial of the angle alone would only approximate a pinhole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, nearest

#: Least variance of the bearings along an axis (paper, appendix "Architecture"). Below it a field
#: spans less than about 2 degrees, as before training.
VARIANCE_FLOOR = 1e-4
#: Bracket on the focal length in image sides: 136 to 11 degrees of view along that side. A fisheye
#: beyond 180 degrees fits to almost 0.
FOCAL_BRACKET = (0.2, 5.0)
#: Least depth, as in the released report of the fit.
MIN_RAY_DEPTH = 1e-6

Regression = Literal["bearing_on_pixel", "pixel_on_bearing"]
Rays = Float[torch.Tensor, "B 3 h w"]

#: Largest angle to the optical axis of a vote: bearings grow like its tangent.
MAX_BEARING_ANGLE = 85 * torch.pi / 180
STEPS = 10
#: Weak prior on the bend (q, a) around the pinhole: makes narrow or noisy fields well-posed.
_PRIOR_Q, _PRIOR_Q_SIGMA, _PRIOR_A_SIGMA = 1.0, 0.5, 0.05
#: Noise of one token, and the misfit that halves its weight, first and last.
_NOISE = 2 * torch.pi / 180
_KERNEL = (30 * torch.pi / 180, 4 * torch.pi / 180)
_START_Q = 0.25
_Q_RANGE = (-0.4, 1.5)
#: Largest median misfit of a valid fit; noise of 3 degrees per token and axis gives 3.6.
MAX_MISFIT_DEGREES = 5.0
_SMALL = 1e-3
#: Largest excess misfit of a pinhole; an equidistant lens with a field of 60 degrees gives 0.6.
MAX_EXCESS_DEGREES = 0.7
#: Side of a patch in tokens: the least extent of a hand, which reading it averages over.
_PATCH = 3

Guards = Literal["paper", "excess"]
Unknowns = Float[torch.Tensor, "B 6"]
Plane = Float[torch.Tensor, "B n 2"]
PerToken = Float[torch.Tensor, "B n"]


@dataclass(frozen=True, slots=True)
class FittedPinhole:
    """One pinhole per clip in shares of the image: ``bearing = (anchor - centre) / focal``.

    Always finite. ``misfit`` is the mean angle in radians between the field and the pinhole's rays,
    without a gradient. ``within``: inside the paper's two guards, so that L_fit may supervise the
    fit; ``valid``: the fit may place hands (see ``guarded_pinhole``).
    """

    focal: Float[torch.Tensor, "B 2"]
    centre: Float[torch.Tensor, "B 2"]
    valid: Bool[torch.Tensor, "B"]
    misfit: Float[torch.Tensor, "B"]
    within: Bool[torch.Tensor, "B"]

    def rays(self, anchors: Float[torch.Tensor, "B n 2"]) -> Float[torch.Tensor, "B n 3"]:
        """Return rays of depth 1; anchors are 0..1 of the image."""
        bearing = (anchors - self.centre[:, None]) / self.focal[:, None]
        return torch.cat([bearing, torch.ones_like(bearing[..., :1])], dim=-1)


def token_centres(like: Float[torch.Tensor, "*batch h w"]) -> Float[torch.Tensor, "h w 2"]:
    """Return the token centres of a field, 0..1 of the image."""
    h, w = like.shape[-2:]
    columns = (torch.arange(w, device=like.device, dtype=like.dtype) + 0.5) / w
    rows = (torch.arange(h, device=like.device, dtype=like.dtype) + 0.5) / h
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)


def fit_pinhole(rays: Rays, regression: str = "bearing_on_pixel") -> FittedPinhole:
    """Fit focal lengths and principal point by one linear regression per axis.

    Paper, section "Mixed-PnP translation" and appendix "Architecture": a closed-form,
    differentiable per-axis regression over the token grid in normalised image units, guarded by a
    variance floor of 1e-4 and a bracket on the focal length. By default bearings are regressed on
    pixels: token centres are exact, and a noisy regressor shrinks the slope (docs/model.md). Tokens
    are unweighted; weights that undo the tangent's stretch gain 10 % at 110 degrees of view and
    lose as much under strong noise. Medium fisheyes pass these guards: see ``guarded_pinhole``.
    Raises InputError for an unknown ``regression``.
    """
    if regression not in get_args(Regression):
        raise InputError(f"regression {regression!r}; {nearest(regression, get_args(Regression))}")
    bearing = rays[:, :2] / rays[:, 2:].clamp(min=MIN_RAY_DEPTH)
    bearing = bearing.permute(0, 2, 3, 1).flatten(1, 2)
    pixel = token_centres(rays).flatten(0, 1).expand_as(bearing)
    mean_b, mean_p = bearing.mean(1), pixel.mean(1)
    spread_b, spread_p = bearing - mean_b[:, None], pixel - mean_p[:, None]
    covariance = (spread_b * spread_p).mean(1)
    variance = spread_b.square().mean(1)

    # Clamped beyond the bracket: the guard fails and nothing is infinite.
    low, high = FOCAL_BRACKET
    if regression == "bearing_on_pixel":
        slope = covariance / spread_p.square().mean(1).clamp(min=1e-12)
        focal = 1 / slope.clamp(1 / (2 * high), 1 / (0.5 * low))
    else:
        focal = (covariance / variance.clamp(min=VARIANCE_FLOOR)).clamp(0.5 * low, 2 * high)

    centre = mean_p - focal * mean_b
    within = ((variance >= VARIANCE_FLOOR) & (focal > low) & (focal < high)).all(1)
    fit = FittedPinhole(focal, centre, within, torch.zeros_like(focal[:, 0]), within)
    with torch.no_grad():
        return replace(fit, misfit=angles(rays, fit.rays(pixel)).mean(1))


def angles(rays: Rays, model: Float[torch.Tensor, "B n 3"]) -> Float[torch.Tensor, "B n"]:
    """Return the angles between a field and other rays of its tokens, of any length; radians."""
    field = rays.flatten(2).transpose(1, 2)
    across = torch.linalg.cross(field, model).norm(dim=-1)
    return torch.atan2(across, (field * model).sum(-1))


def reported_intrinsics(
    ray_map: Float[torch.Tensor, "B 3 F h w"], width: float | int, height: float | int
) -> Float[torch.Tensor, "B 4"]:
    """Return (fx, fy, cx, cy) in pixels as the released code reports them.

    Over all latent frames (of all windows, concatenated): unit rays, depth at least 1e-6, least
    squares of token centre on bearing per axis, in float64. Without spread the focal length is 0.
    The solve does not use it.
    """
    unit = torch.nn.functional.normalize(ray_map.double(), dim=1)
    bearing = unit[:, :2] / unit[:, 2:].clamp(min=MIN_RAY_DEPTH)
    size = bearing.new_tensor([width, height]).view(2, 1, 1, 1)
    pixel = token_centres(bearing[:, :, 0]).permute(2, 0, 1)[:, None] * size
    bearing, pixel = bearing.flatten(2), pixel.expand_as(bearing).flatten(2)
    mean_b, mean_p = bearing.mean(2), pixel.mean(2)
    spread = bearing - mean_b[..., None]
    covariance = (spread * (pixel - mean_p[..., None])).mean(2)
    focal = covariance / spread.square().mean(2).clamp(min=1e-24)
    return torch.cat([focal, mean_p - focal * mean_b], dim=1).to(ray_map.dtype)


@dataclass(frozen=True, slots=True)
class RadialFit:
    """One radial lens per clip; ``focal`` and ``centre`` in shares of the image.

    ``misfit`` is the median angle in radians between the field and the lens, without a gradient.
    """

    focal: Float[torch.Tensor, "B 2"]
    centre: Float[torch.Tensor, "B 2"]
    bend: Float[torch.Tensor, "B 2"]  # q, a
    valid: Bool[torch.Tensor, "B"]
    misfit: Float[torch.Tensor, "B"]

    def plane(self, anchors: Float[torch.Tensor, "B *n 2"]) -> Float[torch.Tensor, "B *n 2"]:
        """Return each anchor's direction from the axis times its angle to it, radians."""
        view = (-1,) + (1,) * (anchors.ndim - 2) + (2,)
        d = (anchors - self.centre.view(view)) / self.focal.view(view)
        q, a = self.bend.view(view).unbind(-1)
        return d * _gain(d.square().sum(-1), q, a)[0][..., None]

    def rays(self, anchors: Float[torch.Tensor, "B *n 2"]) -> Float[torch.Tensor, "B *n 3"]:
        """Return unit rays, also beyond 90 degrees; anchors are 0..1 of the image."""
        plane = self.plane(anchors)
        angle = _length(plane)
        side = plane * torch.sinc(angle / torch.pi)
        return torch.cat([side, torch.cos(angle)], dim=-1)

    def bearing(
        self, anchors: Float[torch.Tensor, "B *n 2"]
    ) -> tuple[Float[torch.Tensor, "B *n 2"], Bool[torch.Tensor, "B *n"]]:
        """Return (x/z, y/z), clamped to ``MAX_BEARING_ANGLE``, and which anchors are within it."""
        plane = self.plane(anchors)
        angle = _length(plane)
        near = angle.clamp(max=MAX_BEARING_ANGLE)
        return plane / angle * torch.tan(near), (angle < MAX_BEARING_ANGLE)[..., 0]


def fit_radial(rays: Rays, steps: int = STEPS) -> RadialFit:
    """Fit focal lengths, centre and bend to a ray field by robust least squares.

    Gauss-Newton in the plane of direction times angle, where residuals are angles; Cauchy weights
    with a width that shrinks over the first half of the steps; weak priors on the bend; started
    from a linear stereographic fit. The steps are unrolled, so gradients are exact.

    A fit is invalid for a collapsed field (variance below the pinhole fit's floor), a misfit above
    ``MAX_MISFIT_DEGREES``, or a lens that folds within the image.
    """
    # Direction times angle of a field's rays; rays of length 0 have weight 0.
    ray = rays.flatten(2).transpose(1, 2)
    side = _length(ray[..., :2])
    angle = torch.atan2(side, ray[..., 2:])
    known = ray.square().sum(-1) > 1e-12
    field = torch.where(known[..., None], ray[..., :2] / side * angle, 0.0)
    weight = known.to(rays.dtype)

    pixel = token_centres(rays).flatten(0, 1).expand_as(field)
    unknowns = _start(field, pixel)
    for step in range(steps):
        share = min(2 * step / steps, 1.0)
        kernel = _KERNEL[0] * (_KERNEL[1] / _KERNEL[0]) ** share
        unknowns = _improve(unknowns, field, weight, pixel, kernel)
    focal, centre, bend = unknowns[:, :2].exp(), unknowns[:, 2:4], unknowns[:, 4:]
    with torch.no_grad():
        model, _ = _lens(unknowns, pixel)
        misfit = (field - model).norm(dim=-1).median(1).values

        # Monotonic up to the image's corner.
        far = (torch.maximum(centre.abs(), (1 - centre).abs()) / focal).square().sum(1)
        q, a = bend.unbind(1)
        psi = (far * _arctan_ratio((q * far).clamp(min=-0.95))[0] ** 2).sqrt()
        grows = (q * far > -0.95) & (1 + 5 * a * psi**4 > 0)

        spread = field.var(dim=1, correction=0).min(dim=1).values
        valid = (spread >= VARIANCE_FLOOR) & grows & torch.isfinite(unknowns).all(1)
        valid &= misfit <= torch.pi / 180 * MAX_MISFIT_DEGREES
    return RadialFit(focal, centre, bend, valid, misfit)


def guarded_pinhole(rays: Rays, guards: str = "excess") -> FittedPinhole:
    """Fit a pinhole, and decide which clips' fits may place hands.

    ``guards``: "paper": the floor and the bracket of ``fit_pinhole``. "excess": additionally no
    sign of another lens. With ``p`` and ``r`` the RMS angles of the field to the pinhole and to a
    fitted radial lens, the excess ``sqrt(p^2 - r^2)`` may be ``MAX_EXCESS_DEGREES``, plus (in
    quadrature) the error of reading a hand off the field: the RMS residual of the lens averaged
    over 3 x 3 tokens. Noise of single tokens hardly adds to either, smooth errors add to both.
    Guards have no gradient. Raises InputError: unknown ``guards``.
    """
    if guards not in get_args(Guards):
        raise InputError(f"guards {guards!r}; {nearest(guards, get_args(Guards))}")
    fit = fit_pinhole(rays)
    if guards == "paper":
        return fit

    with torch.no_grad():
        anchors = token_centres(rays).flatten(0, 1).expand(len(rays), -1, -1)
        lens = fit_radial(rays).rays(anchors)
        p2, r2 = (angles(rays, model).square().mean(1) for model in (fit.rays(anchors), lens))

        # The error of the field averaged over a hand.
        unit = torch.nn.functional.normalize(rays, dim=1)
        left = unit - lens.transpose(1, 2).reshape(unit.shape)
        h, w = rays.shape[2:]
        patches = torch.nn.functional.avg_pool2d(left, (min(_PATCH, h), min(_PATCH, w)), stride=1)
        squared_error = patches.square().sum(1).mean((1, 2))

        limit = (torch.pi / 180 * MAX_EXCESS_DEGREES) ** 2 + squared_error
        return replace(fit, valid=fit.within & (p2 - r2 <= limit))


def _length(vector: Float[torch.Tensor, "*n 2"]) -> Float[torch.Tensor, "*n 1"]:
    """Return the length, never exactly 0, with a gradient everywhere."""
    tiny = torch.finfo(vector.dtype).tiny ** 0.5
    return (vector.square().sum(-1, keepdim=True) + tiny**2 * 4).sqrt()


def _start(field: Plane, pixel: Plane) -> Unknowns:
    """Return the linear fit of a stereographic lens."""
    angle = _length(field)
    plane = field / angle * 2 * torch.tan((angle / 2).clamp(max=1.2))
    mean, middle = plane.mean(1), pixel.mean(1)
    spread = plane - mean[:, None]
    covariance = (spread * (pixel - middle[:, None])).mean(1)
    focal = (covariance / spread.square().mean(1).clamp(min=VARIANCE_FLOOR)).clamp(0.05, 20.0)
    q = torch.full_like(focal[:, :1], _START_Q)
    return torch.cat([focal.log(), middle - focal * mean, q, torch.zeros_like(q)], dim=1)


def _improve(
    unknowns: Unknowns, field: Plane, weight: PerToken, pixel: Plane, kernel: float
) -> Unknowns:
    """Take one Gauss-Newton step of bounded length."""
    model, jacobian = _lens(unknowns, pixel)
    residual = field - model
    trust = weight / (1 + residual.square().sum(-1) / kernel**2) / _NOISE**2
    weighted = jacobian * trust[..., None, None]
    normal = torch.einsum("bnij,bnik->bjk", weighted, jacobian)
    right = torch.einsum("bnij,bni->bj", weighted, residual)
    mean = unknowns.new_tensor([0, 0, 0, 0, _PRIOR_Q, 0.0])
    prior = unknowns.new_tensor([0, 0, 0, 0, _PRIOR_Q_SIGMA**-2, _PRIOR_A_SIGMA**-2])
    damping = 1e-6 * normal.diagonal(dim1=1, dim2=2) + 1e-3
    normal = normal + torch.diag_embed(prior + damping)
    step = torch.linalg.solve(normal, right + prior * (mean - unknowns))
    step = step.clamp(-0.5, 0.5)
    moved = unknowns + step
    return torch.cat([moved[:, :4], moved[:, 4:5].clamp(*_Q_RANGE), moved[:, 5:]], dim=1)


def _lens(unknowns: Unknowns, pixel: Plane) -> tuple[Plane, Float[torch.Tensor, "B n 2 6"]]:
    """Return direction times angle of the lens at image points, and its derivative."""
    focal, centre = unknowns[:, None, :2].exp(), unknowns[:, None, 2:4]
    d = (pixel - centre) / focal
    gain, by_square, by_q, by_a = _gain(d.square().sum(-1), unknowns[:, 4:5], unknowns[:, 5:])
    eye = torch.eye(2, dtype=d.dtype, device=d.device)
    outer = d[..., :, None] * d[..., None, :]
    by_d = gain[..., None, None] * eye + 2 * by_square[..., None, None] * outer
    by_focal = -by_d * d[..., None, :]
    by_centre = -by_d / focal[..., None, :]
    by_bend = torch.stack([by_q, by_a], dim=-1)[..., None, :] * d[..., None]
    return d * gain[..., None], torch.cat([by_focal, by_centre, by_bend], dim=-1)


def _gain(
    square: torch.Tensor, q: torch.Tensor, a: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return theta / s at ``s^2 = square``, and its derivatives by s^2, q and a."""
    # artanh ends at 1: a lens with negative q is clamped before it.
    ratio, slope = _arctan_ratio((q * square).clamp(min=-0.95))
    psi2 = square * ratio**2
    psi4 = psi2**2
    # theta / s = ratio (1 + a psi^4)
    by_ratio = 1 + 5 * a * psi4
    by_square = by_ratio * slope * q + 2 * a * ratio * psi2 * ratio**2
    return ratio * (1 + a * psi4), by_square, by_ratio * slope * square, ratio * psi4


def _arctan_ratio(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return arctan(sqrt x) / sqrt x and its derivative; smooth through 0, artanh below it."""
    small = x.abs() < _SMALL
    up = torch.where(small | (x < 0), 1.0, x).sqrt()
    down = torch.where(small | (x > 0), 0.5, -x).sqrt()
    ratio = torch.where(x > 0, torch.arctan(up) / up, torch.arctanh(down) / down)
    series = 1 - x / 3 + x**2 / 5 - x**3 / 7 + x**4 / 9
    ratio = torch.where(small, series, ratio)
    safe = torch.where(small, 1.0, x)
    slope = (1 / (1 + x) - ratio) / (2 * safe)
    return ratio, torch.where(small, -1 / 3 + 2 * x / 5 - 3 * x**2 / 7 + 4 * x**3 / 9, slope)
