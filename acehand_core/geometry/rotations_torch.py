"""Differentiable rotations in torch; ``rotations`` has the numpy ones."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch.nn import functional

Rotation = Float[torch.Tensor, "*batch 3 3"]
RotationVector = Float[torch.Tensor, "*batch 3"]


def from_6d(six: Float[torch.Tensor, "*batch 6"]) -> Rotation:
    """Return the rotation with the Gram-Schmidt basis of two vectors (Zhou et al., CVPR 2019)."""
    a, b = six[..., :3], six[..., 3:]
    x = functional.normalize(a, dim=-1)
    y = functional.normalize(b - (x * b).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def skew(vector: RotationVector) -> Rotation:
    """Return the matrix of the cross product with ``vector``."""
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).unflatten(-1, (3, 3))


def exp(vector: RotationVector) -> Rotation:
    """Return the rotation about ``vector`` by its length in radians (Rodrigues)."""
    square = vector.square().sum(-1)[..., None, None]
    # The gradient of a norm is infinite at zero.
    angle = torch.where(square > 0, square, 1.0).sqrt() * (square > 0)
    K = skew(vector)
    eye = torch.eye(3, dtype=vector.dtype, device=vector.device)
    half = torch.sinc(angle / (2 * torch.pi))
    return eye + torch.sinc(angle / torch.pi) * K + 0.5 * half.square() * (K @ K)


def log(rotation: Rotation) -> RotationVector:
    """Return the rotation vector in radians, up to pi, with finite gradients below pi."""
    R = rotation
    sine = torch.stack([R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0],
                        R[..., 1, 0] - R[..., 0, 1]], dim=-1) / 2  # fmt: skip
    cosine = (R.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    square = sine.square().sum(-1)
    length = torch.where(square > 0, square, 1.0).sqrt() * (square > 0)
    angle = torch.atan2(length, cosine)
    small = length < 1e-6
    scale = torch.where(small, 1.0, angle / torch.where(small, 1.0, length))
    vector = scale[..., None] * sine
    return torch.where((small & (cosine < 0))[..., None], _half_turn(R), vector)


def _half_turn(rotation: Rotation) -> RotationVector:
    """Return the vector of a rotation by pi; its axis is the largest column of R + 1."""
    eye = torch.eye(3, dtype=rotation.dtype, device=rotation.device)
    columns = (rotation + eye).detach()
    largest = columns.diagonal(dim1=-2, dim2=-1).argmax(-1)
    axis = columns.gather(-1, largest[..., None, None].expand(*largest.shape, 3, 1))[..., 0]
    return torch.pi * functional.normalize(axis, dim=-1)
