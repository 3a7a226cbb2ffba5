"""The network of ``trackers.mediapipe.prior.answer`` in torch, and its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acehand_core.trackers.mediapipe.prior import BONES, DILATIONS, FEATURES

WIDTH, WIDTH_OF_FRAME = 192, 384


class _Block(nn.Module):
    def __init__(self, apart: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, dilation=apart, padding=apart)
        self.out = nn.Conv1d(WIDTH, WIDTH, 1)
        with torch.no_grad():
            self.out.weight *= 0.3

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(torch.relu(self.conv(torch.relu(x))))


class Network(nn.Module):
    """(B, T, 70) in; unit directions (B, T, 20, 3) and logarithms of their sigma (B, T, 20) out."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, WIDTH_OF_FRAME)
        self.b = nn.Linear(WIDTH_OF_FRAME, WIDTH)
        self.blocks = nn.ModuleList(_Block(apart) for apart in DILATIONS)
        self.o = nn.Linear(WIDTH, 4 * BONES)

    def forward(self, told: Tensor) -> tuple[Tensor, Tensor]:
        x = self.b(torch.relu(self.a(told))).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        said = self.o(torch.relu(x.transpose(1, 2)))
        direction = said[..., : 3 * BONES].unflatten(-1, (BONES, 3))
        direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return direction, said[..., 3 * BONES :].clamp(-5, 1)

    @torch.no_grad()
    def forget_neighbours(self) -> None:
        """Leave each frame to itself: an ablation."""
        for block in self.blocks:
            block.get_submodule("conv").get_parameter("weight")[..., ::2] = 0.0


def loss(direction: Tensor, log_sigma: Tensor, true: Tensor) -> Tensor:
    """Likelihood of a normal error in both directions across the bone, and the error itself."""
    squared = ((direction - true) ** 2).sum(-1)
    likelihood = 2 * log_sigma + squared * torch.exp(-2 * log_sigma) / 2
    return (likelihood + 3 * torch.sqrt(squared + 1e-4)).mean()


def rolled(told: Tensor, true: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Turn stretches (B, T, ...) about the line of sight by ``angle`` (B,)."""
    c, s = torch.cos(angle), torch.sin(angle)
    R = torch.stack([c, -s, s, c], -1).reshape(-1, 1, 2, 2)
    flat = told[..., :42].unflatten(-1, (21, 2)) @ R.transpose(-1, -2)
    turn = (R @ told[..., 66:68, None])[..., 0]
    told = torch.cat([flat.flatten(-2), told[..., 42:66], turn, told[..., 68:]], dim=-1)
    across = true[..., :2] @ R.transpose(-1, -2)
    return told, torch.cat([across, true[..., 2:]], dim=-1)
