"""The terms, one pure function each: the sum of its elements where a mask allows them. torch.

An element is one rotation, hand, joint, clip or cell, as each function says; an l1 or squared
distance is the mean over an element's numbers. Sums, not means: the caller divides by how many
elements the whole step has over all processes. A masked element gives neither value nor gradient,
and needs no meaningful numbers.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch.nn import functional

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
