"""A pinhole fitted to a predicted ray field, in closed form. torch, differentiable, batched.

A ray field is one direction per token, seen through the token's centre: column j of w stands at
``(j + 0.5) / w`` of the image. Directions have any length; only ``dx / dz`` and ``dy / dz`` count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float

from acehand_core.errors import InputError, nearest

#: Least variance of the bearings along an axis: the guard of the paper's appendix "Architecture".
#: Below it a field spans less than about 2 degrees, as it does before training, and says nothing
#: about the lens.
VARIANCE_FLOOR = 1e-4
#: Bracket on the focal length in image sides: 136 down to 11 degrees of view along that side. A
#: field that reaches sideways (a fisheye) fits to a focal length of almost 0.
FOCAL_BRACKET = (0.2, 5.0)
#: Depths count from here up, as in the released report of the fit.
MIN_RAY_DEPTH = 1e-6

Regression = Literal["bearing_on_pixel", "pixel_on_bearing"]
Rays = Float[torch.Tensor, "B 3 h w"]


@dataclass(frozen=True, slots=True)
class FittedPinhole:
    """One pinhole per clip in shares of the image: ``bearing = (anchor - centre) / focal``.

    Every number is finite, whether or not the clip is ``valid``. ``misfit`` is the mean
    angle in radians between the field and the pinhole's rays, without a gradient. ``within``: the
    paper's two guards hold, the floor and the bracket, so that L_fit may teach it; ``valid``: hands
    may be placed by the fit, which ``radial.guarded_pinhole`` may ask more for.
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
    """Return where the tokens of a field stand, 0..1 of the image."""
    h, w = like.shape[-2:]
    columns = (torch.arange(w, device=like.device, dtype=like.dtype) + 0.5) / w
    rows = (torch.arange(h, device=like.device, dtype=like.dtype) + 0.5) / h
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)


def fit_pinhole(
    rays: Rays,
    regression: str = "bearing_on_pixel",
    variance_floor: float = VARIANCE_FLOOR,
    bracket: tuple[float, float] = FOCAL_BRACKET,
) -> FittedPinhole:
    """Fit focal lengths and principal point by one linear regression per axis.

    Paper, section "Mixed-PnP translation" and appendix "Architecture": a closed-form,
    differentiable per-axis regression over the token grid in normalised image units, guarded by a
    variance floor of 1e-4 and a bracket on the focal length. What the paper leaves open, and why
    it is as it is:

    - Quantities: x/z and y/z of the tokens against their centres' image coordinates, every token
      alike. Weights that undo the tangent's stretch gain 10 % at 110 degrees of view and lose as
      much where noise is strong.
    - Direction: bearings on pixels by default. The noise is in the rays, token centres are exact,
      and a noisy regressor shrinks the slope: with 3 degrees of independent noise per token the
      other direction finds the focal length 2 to 6 % too short. (The floor suggests that the paper
      regresses pixels on bearings, as the released report of the fit does; with trained, averaged
      fields the two agree.)
    - The floor guards the variance of the bearings along their axis in either direction, though
      with bearings on pixels the bracket already implies it.

    These are the paper's two guards and no more: medium fisheyes pass, see
    ``radial.guarded_pinhole``.

    Raises:
        InputError: an unknown ``regression``.
    """
    if regression not in get_args(Regression):
        raise InputError(
            f"regression {regression!r}; {nearest(str(regression), get_args(Regression))}"
        )

    bearing = rays[:, :2] / rays[:, 2:].clamp(min=MIN_RAY_DEPTH)
    bearing = bearing.permute(0, 2, 3, 1).flatten(1, 2)
    pixel = token_centres(rays).flatten(0, 1).expand_as(bearing)
    mean_b, mean_p = bearing.mean(1), pixel.mean(1)
    spread_b, spread_p = bearing - mean_b[:, None], pixel - mean_p[:, None]
    covariance = (spread_b * spread_p).mean(1)
    variance = spread_b.square().mean(1)

    # Clamped one step outside the bracket, so that the guard fails and nothing is infinite.
    low, high = 0.5 * bracket[0], 2 * bracket[1]
    if regression == "bearing_on_pixel":
        slope = covariance / spread_p.square().mean(1).clamp(min=1e-12)
        focal = 1 / slope.clamp(1 / high, 1 / low)
    else:
        focal = (covariance / variance.clamp(min=variance_floor)).clamp(low, high)

    centre = mean_p - focal * mean_b
    within = ((variance >= variance_floor) & (focal > bracket[0]) & (focal < bracket[1])).all(1)
    fit = FittedPinhole(focal, centre, within, torch.zeros_like(focal[:, 0]), within)
    with torch.no_grad():
        misfit = angles(rays, fit.rays(pixel)).mean(1)

    return replace(fit, misfit=misfit)


def angles(rays: Rays, model: Float[torch.Tensor, "B n 3"]) -> Float[torch.Tensor, "B n"]:
    """Return the angles between a field and other rays of its tokens, of any length; radians."""
    field = rays.flatten(2).transpose(1, 2)
    across = torch.linalg.cross(field, model).norm(dim=-1)
    return torch.atan2(across, (field * model).sum(-1))


def reported_intrinsics(
    ray_map: Float[torch.Tensor, "B 3 F h w"], width: float | int, height: float | int
) -> Float[torch.Tensor, "B 4"]:
    """Return (fx, fy, cx, cy) in pixels as the released code reports them.

    All latent frames of all windows (concatenated by the caller) count alike: unit rays, depth at
    least 1e-6, then ordinary least squares of the token centre's pixel on the bearing, per axis.
    The solve never uses it. An axis without any spread has focal length 0. Computed in float64.
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
