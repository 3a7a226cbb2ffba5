"""A radial (fisheye) lens fitted to a predicted ray field. torch, differentiable, batched.

The paper fits a pinhole and leaves a radial bearing model as future work. This one maps the image
to rays in closed form, so that bearings need no inversion: with ``s`` the distance of an image
point from the centre in focal lengths,

    psi = arctan(sqrt(q) s) / sqrt(q),    theta = psi + a psi^5,

theta the angle to the optical axis. ``q`` walks through the classical lenses: 1 is the pinhole,
1/4 stereographic, 0 equidistant, a little below 0 equisolid (arctan becomes artanh); ``a`` takes
what is left. An odd polynomial of the angle alone would be a pinhole only approximately.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, nearest
from acehand_core.model.placement.camera_fit import (
    VARIANCE_FLOOR,
    FittedPinhole,
    angles,
    fit_pinhole,
    token_centres,
)

#: Beyond this angle to the optical axis a ray has no vote: bearings grow like its tangent.
MAX_BEARING_ANGLE = 85 * torch.pi / 180
STEPS = 10
#: What is believed of the bend (q, a) before a field is seen: as little as gives a narrow or noisy
#: field one answer, and the pinhole if it has the choice.
_PRIOR_Q, _PRIOR_Q_SIGMA, _PRIOR_A_SIGMA = 1.0, 0.5, 0.05
#: Noise of one token, and the misfit that halves its weight, first and last.
_NOISE = 2 * torch.pi / 180
_KERNEL = (30 * torch.pi / 180, 4 * torch.pi / 180)
_START_Q = 0.25
_Q_RANGE = (-0.4, 1.5)
#: Median misfit above which a fit is refused; noise of 3 degrees per token and axis leaves 3.6.
MAX_MISFIT_DEGREES = 5.0
_SMALL = 1e-3
#: What a pinhole may add to the misfit of an exact field; an equidistant lens of 60 degrees across
#: makes it add 0.6.
MAX_EXCESS_DEGREES = 0.7
#: Tokens on each side of a patch: a hand covers as many or more, so reading it averages over them.
_PATCH = 3

Guards = Literal["paper", "excess"]
Rays = Float[torch.Tensor, "B 3 h w"]
Unknowns = Float[torch.Tensor, "B 6"]


@dataclass(frozen=True, slots=True)
class RadialFit:
    """One radial lens per clip; ``focal`` and ``centre`` in shares of the image.

    ``misfit`` is the median angle in radians between the field and the lens, no gradient.
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
        """Return (x/z, y/z), and which anchors have one.

        Beyond ``MAX_BEARING_ANGLE`` there is none to speak of: False, and as a finite stand-in the
        bearing of the ray at that angle on the same side.
        """
        plane = self.plane(anchors)
        angle = _length(plane)
        near = angle.clamp(max=MAX_BEARING_ANGLE)
        return plane / angle * torch.tan(near), (angle < MAX_BEARING_ANGLE)[..., 0]


def fit_radial(rays: Rays, steps: int = STEPS) -> RadialFit:
    """Fit focal lengths, centre and bend to a ray field by robust least squares.

    Gauss-Newton on the difference of field and lens in the plane of direction times angle, where a
    degree is a degree at any angle; Cauchy weights whose width shrinks over the first half of the
    steps; weak priors on the bend. The steps are unrolled: gradients are those of the numbers
    returned, through every step. The start is a linear fit of a stereographic lens.

    A clip is not valid if its field is collapsed (variance below the pinhole fit's floor), the fit
    misses it by more than ``MAX_MISFIT_DEGREES``, or the lens folds within the image.
    """
    # Direction times angle of a field's rays, and 1 where there is a direction.
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
        misfit, sound = _judge(unknowns, field, pixel)
        spread = field.var(dim=1, correction=0).min(dim=1).values
        valid = (spread >= VARIANCE_FLOOR) & sound
        valid &= misfit <= torch.pi / 180 * MAX_MISFIT_DEGREES
    return RadialFit(focal, centre, bend, valid, misfit)


def guarded_pinhole(rays: Rays, guards: str = "excess") -> FittedPinhole:
    """Fit a pinhole, and say by which clips' fits hands may be placed.

    Args:
        guards: "paper": the floor and the bracket of ``fit_pinhole``, nothing else. "excess": also,
            the field must not show another lens. Of ``p`` and ``r``, the RMS angles of the field to
            the pinhole and to a radial lens fitted to it, ``sqrt(p^2 - r^2)`` is what the pinhole
            itself adds. It may be ``MAX_EXCESS_DEGREES`` at most, and as much more (in quadrature)
            as reading a hand off the field would be wrong: the RMS of what the lens leaves,
            averaged over 3 x 3 tokens. Noise of single tokens hardly adds to either, smooth errors
            add to both. Guards have no gradient.

    Raises:
        InputError: unknown ``guards``.
    """
    if guards not in get_args(Guards):
        raise InputError(f"guards {guards!r}; {nearest(str(guards), get_args(Guards))}")
    fit = fit_pinhole(rays)
    if guards == "paper":
        return fit
    with torch.no_grad():
        squared_excess, squared_error = _excess(rays, fit)
        limit = (torch.pi / 180 * MAX_EXCESS_DEGREES) ** 2 + squared_error
        return replace(fit, valid=fit.within & (squared_excess <= limit))


def _excess(
    rays: Rays, fit: FittedPinhole
) -> tuple[Float[torch.Tensor, "B"], Float[torch.Tensor, "B"]]:
    """Return the square of the excess, and of what is wrong with a field where a hand is read."""
    anchors = token_centres(rays).flatten(0, 1).expand(len(rays), -1, -1)
    lens = fit_radial(rays).rays(anchors)
    missed = [angles(rays, model).square().mean(1) for model in (fit.rays(anchors), lens)]
    unit = torch.nn.functional.normalize(rays, dim=1)
    left = unit - lens.transpose(1, 2).reshape(unit.shape)
    h, w = rays.shape[2:]
    patches = torch.nn.functional.avg_pool2d(left, (min(_PATCH, h), min(_PATCH, w)), stride=1)
    return missed[0] - missed[1], patches.square().sum(1).mean((1, 2))


def _length(vector: Float[torch.Tensor, "*n 2"]) -> Float[torch.Tensor, "*n 1"]:
    """Return the length, never quite 0, with a gradient everywhere."""
    tiny = torch.finfo(vector.dtype).tiny ** 0.5
    return (vector.square().sum(-1, keepdim=True) + tiny**2 * 4).sqrt()


def _start(field: Float[torch.Tensor, "B n 2"], pixel: Float[torch.Tensor, "B n 2"]) -> Unknowns:
    """Regress the tokens' places on the field as a stereographic lens has it."""
    angle = _length(field)
    plane = field / angle * 2 * torch.tan((angle / 2).clamp(max=1.2))
    mean, middle = plane.mean(1), pixel.mean(1)
    spread = plane - mean[:, None]
    covariance = (spread * (pixel - middle[:, None])).mean(1)
    focal = (covariance / spread.square().mean(1).clamp(min=VARIANCE_FLOOR)).clamp(0.05, 20.0)
    q = torch.full_like(focal[:, :1], _START_Q)
    return torch.cat([focal.log(), middle - focal * mean, q, torch.zeros_like(q)], dim=1)


def _improve(
    unknowns: Unknowns,
    field: Float[torch.Tensor, "B n 2"],
    weight: Float[torch.Tensor, "B n"],
    pixel: Float[torch.Tensor, "B n 2"],
    kernel: float,
) -> Unknowns:
    """Take one Gauss-Newton step, bounded so that a bad one does no harm."""
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
    q = (unknowns[:, 4:5] + step[:, 4:5]).clamp(*_Q_RANGE)
    moved = unknowns + step

    return torch.cat([moved[:, :4], q, moved[:, 5:]], dim=1)


def _lens(
    unknowns: Unknowns, pixel: Float[torch.Tensor, "B n 2"]
) -> tuple[Float[torch.Tensor, "B n 2"], Float[torch.Tensor, "B n 2 6"]]:
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
    # artanh ends at 1: with a negative q the lens is held there.
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


def _judge(
    unknowns: Unknowns, field: Float[torch.Tensor, "B n 2"], pixel: Float[torch.Tensor, "B n 2"]
) -> tuple[Float[torch.Tensor, "B"], Bool[torch.Tensor, "B"]]:
    """Return the misfit, and which lenses are finite and grow outwards up to the image's corner."""
    model, _ = _lens(unknowns, pixel)
    misfit = (field - model).norm(dim=-1).median(1).values
    focal, centre = unknowns[:, :2].exp(), unknowns[:, 2:4]
    far = (torch.maximum(centre.abs(), (1 - centre).abs()) / focal).square().sum(1)
    q, a = unknowns[:, 4], unknowns[:, 5]
    psi = (far * _arctan_ratio((q * far).clamp(min=-0.95))[0] ** 2).sqrt()
    grows = (q * far > -0.95) & (1 + 5 * a * psi**4 > 0)
    return misfit, grows & torch.isfinite(unknowns).all(1)
