"""Bearings of 2D anchors from whichever camera there is: given, fitted, radial or a bare ray field.

A bearing is the dimensionless pair (x/z, y/z) of a ray. The builders below differ; what they return
does not, so the solve never asks where bearings came from. torch, differentiable, batched.

Axes: B clips, N video frames, 2 slots, 21 joints. Anchors are 0..1 over the image; ``uv`` is the
camera head's wrist position in -1..1, read only by the fallback of the released code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float

from acehand_core.ace.model.camera_fit import FittedPinhole, RadialFit

#: A joint votes with its anchor strictly inside the frame by this share of it (paper, appendix
#: "Architecture").
IMAGE_MARGIN = 0.02
#: The released code divides a ray by its depth, but never by less.
MIN_RAY_DEPTH = 1e-6

Anchors = Float[torch.Tensor, "B N 2 21 2"]
Wrists = Float[torch.Tensor, "B N 2 2"]
PerClip = Float[torch.Tensor, "B 2"]
Rays = Float[torch.Tensor, "B 3 h w"]


@dataclass(frozen=True, slots=True)
class Bearings:
    """What the solve needs to know about a camera and its anchors.

    ``scale`` turns bearings into the (pseudo) pixels of the residual gate: the focal lengths where
    there is a camera, the image width on both axes where there is only a ray field. ``usable``
    marks anchors that may vote: inside the margin, and with a bearing at all.
    """

    joints: Anchors
    fallback: Wrists
    usable: Bool[torch.Tensor, "B N 2 21"]
    scale: PerClip

    @property
    def pixels(self) -> Anchors:
        """The anchors in the residual's units, up to a shift per clip."""
        return self.joints * self.scale[:, None, None, None]


def inside_margin(anchors: Anchors) -> Bool[torch.Tensor, "B N 2 21"]:
    """Return which anchors lie strictly inside the frame by ``IMAGE_MARGIN`` on every side."""
    return ((anchors > IMAGE_MARGIN) & (anchors < 1 - IMAGE_MARGIN)).all(-1)


def calibrated_bearings(
    anchors: Anchors, uv: Wrists, focal: PerClip, centre: PerClip, size: PerClip
) -> Bearings:
    """Return bearings under a given pinhole, in pixels of an image that spans 0 to ``size``.

    Paper, section "Mixed-PnP translation": ``((u - cx) / fx, (v - cy) / fy)``. As in the released
    code the calibration is taken as it stands, without the half pixel between the conventions.
    """

    def bearing(place: torch.Tensor) -> torch.Tensor:
        view = (-1,) + (1,) * (place.ndim - 2) + (2,)
        return (place * size.view(view) - centre.view(view)) / focal.view(view)

    return Bearings(bearing(anchors), bearing((uv + 1) / 2), inside_margin(anchors), focal)


def sampled_bearings(
    rays: Rays, anchors: Anchors, uv: Wrists, size: PerClip, cell_centres: bool = False
) -> Bearings:
    """Read bearings off the ray field at the anchors (bilinear, zeros outside the field).

    The released K-free code: outer cells stand on the image's edge (``align_corners``), ``uv`` is
    read as grid coordinates as it is, residuals count in image widths on both axes.

    Args:
        rays: any length; a depth counts by its absolute value, at least ``MIN_RAY_DEPTH``.
        cell_centres: cells stand at their centres, as the fit and the ray targets have it. Beyond
            the centres of the outer cells their bearing is held.
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

    A clip whose fit failed reads the ray field instead, cells at their centres: the paper's
    appendix "Architecture" names the fall-back, not where cells stand; the fit and the ray targets
    use their centres.
    """
    fitted = calibrated_bearings(anchors, uv, fit.focal, fit.centre, torch.ones_like(size))
    return _where(
        fit.valid,
        Bearings(fitted.joints, fitted.fallback, fitted.usable, fit.focal * size),
        sampled_bearings(rays, anchors, uv, size, cell_centres=True),
    )


def radial_bearings(
    fit: RadialFit, rays: Rays, anchors: Anchors, uv: Wrists, size: PerClip
) -> Bearings:
    """Return bearings under a radial lens fitted to the ray field.

    Anchors further than ``camera_fit.MAX_BEARING_ANGLE`` from the optical axis have no vote; their
    bearing is that of the last ray on their way out. A clip whose fit failed reads the field.
    """
    joints, seen = fit.bearing(anchors)
    wrist, _ = fit.bearing((uv + 1) / 2)
    usable = inside_margin(anchors) & seen
    return _where(
        fit.valid,
        Bearings(joints, wrist, usable, fit.focal * size),
        sampled_bearings(rays, anchors, uv, size, cell_centres=True),
    )


def _where(valid: Bool[torch.Tensor, "B"], yes: Bearings, no: Bearings) -> Bearings:
    """Choose per clip."""
    names = ("joints", "fallback", "usable", "scale")
    pairs = [(getattr(yes, name), getattr(no, name)) for name in names]
    return Bearings(*(torch.where(valid.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in pairs))
