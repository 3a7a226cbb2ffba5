"""The Bidirectional Spatiotemporal Decoder (paper section 3.2).

The 48 tokens of a latent frame (2 hands, 42 joints, 4 registers) attend four times to their frame's
patches and to each other over the whole clip. Readout heads turn hands into pose, depth and
presence, joints into 2D anchors and 3D joints, and the clip into one shape per hand.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional

from acehand_core.ace.model.batch import Readout
from acehand_core.ace.model.config import BETAS, FINGER_JOINTS, JOINTS, SLOTS, DecoderConfig
from acehand_core.errors import InputError
from acehand_core.geometry import rotations_torch

Tokens = Float[torch.Tensor, "B F S D"]
Angles = Float[torch.Tensor, "F half"]

_ROTARY_BASE = 10000.0

RayField = Float[torch.Tensor, "B 3 h w"]

_TOKEN_SCALE = 0.02

Features = Float[torch.Tensor, "B C F h w"]


def rotary_angles(frames: int, head_width: int, device: torch.device) -> Angles:
    """Return the angle of every pair of channels at every latent frame, radians."""
    pair = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)
    speed = 1.0 / (_ROTARY_BASE ** (pair / head_width))
    return torch.arange(frames, device=device, dtype=torch.float32)[:, None] * speed


def rotate(x: Float[torch.Tensor, "B H F S d"], angles: Angles) -> Float[torch.Tensor, "B H F S d"]:
    """Turn adjacent channel pairs by their frame's angles."""
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class TemporalLayer(nn.Module):
    """Pre-norm self-attention over all tokens of all frames, no mask, and an MLP.

    ``angles`` make positions relative (rotary), for any number of frames. Without
    ``temporal_attention`` tokens attend within their frame only.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.width * config.mlp_ratio
        self.num_heads = config.num_heads
        self.across_frames = config.temporal_attention
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, tokens: Tokens, angles: Angles | None) -> Tokens:
        normed = self.norm1(tokens)
        query, key, value = (
            layer(normed).unflatten(-1, (self.num_heads, -1)).permute(0, 3, 1, 2, 4)
            for layer in (self.query, self.key, self.value)
        )
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        if self.across_frames:
            query, key, value = (x.flatten(2, 3) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        if not self.across_frames:
            mixed = mixed.flatten(2, 3)
        tokens = tokens + self.output(mixed.transpose(1, 2).flatten(2)).view_as(tokens)
        return tokens + self.mlp(self.norm2(tokens))


class Round(nn.Module):
    """Tokens attend to the patches of their frame, then to each other (paper section 3.2)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(config.width)
        self.context_norm = nn.LayerNorm(config.width)
        self.spatial = nn.MultiheadAttention(config.width, config.num_heads, batch_first=True)
        self.temporal = TemporalLayer(config)

    def forward(
        self, tokens: Tokens, patches: Float[torch.Tensor, "B F P D"], angles: Angles | None
    ) -> Tokens:
        context = self.context_norm(patches).flatten(0, 1)
        query = self.query_norm(tokens).flatten(0, 1)
        read, _ = self.spatial(query, context, context, need_weights=False)
        return self.temporal(tokens + read.view_as(tokens), angles)


def ray_angles(rays: RayField) -> Float[torch.Tensor, "B 2 h w"]:
    """Return azimuth and elevation of each ray, radians; rays need not have unit length."""
    depth = rays[:, 2].abs().clamp_min(1e-6)
    return torch.atan2(rays[:, :2], depth[:, None])


class RayEncoding(nn.Module):
    """Sines and cosines of the ray's angles at doubling frequencies, through an MLP.

    Zero at the start of training (paper appendix "Architecture").
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.frequencies = config.ray_frequencies
        width = config.width
        self.projection = _head(4 * self.frequencies, width, width, start=(0.0,) * width)

    def forward(self, rays: RayField) -> Float[torch.Tensor, "B P D"]:
        """Return one encoding per patch, in row order."""
        angles = ray_angles(rays).flatten(2)
        scale = 2.0 ** torch.arange(self.frequencies, device=rays.device, dtype=rays.dtype)
        waves = angles[..., None] * scale
        azimuth, elevation = waves.unbind(1)
        parts = [azimuth.sin(), azimuth.cos(), elevation.sin(), elevation.cos()]
        return self.projection(torch.cat(parts, dim=-1))


class Decoder(nn.Module):
    """Features and rays in, ``Readout`` out, in all variants of ``DecoderConfig``."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.patch_projection = nn.Sequential(
            nn.Linear(config.feature_dim, width), nn.LayerNorm(width)
        )
        if config.spatial_encoding:
            self.spatial_encoding = _tokens(1, width, config.spatial_grid, config.spatial_grid)
        self.ray_encoding = RayEncoding(config)
        self.slot_embedding = _tokens(SLOTS, width)

        self.hand_token = _tokens(1, SLOTS, width)
        self.register_token = _tokens(1, config.num_registers, width)
        if config.temporal_encoding == "absolute":
            self.temporal_encoding = _tokens(1, config.max_latents, width)
        self.layers = nn.ModuleList(Round(config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(width)
        self.shape_norm = nn.LayerNorm(width)
        self.hand_fuse = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self._build_heads()

    def _build_heads(self) -> None:
        config = self.config
        width, hidden = config.width, config.head_width
        if config.queries == "joint":
            self.joint_token = _tokens(1, SLOTS * JOINTS, width)
            self.readout_query_norm = nn.LayerNorm(width)
            self.readout_context_norm = nn.LayerNorm(width)
            self.readout = nn.MultiheadAttention(width, config.num_heads, batch_first=True)
            self.head_joint_3d = _head(width, hidden, 3, normed=True)
        else:
            self.head_joints_relative = _head(width, hidden, 3 * JOINTS)
            self.head_anchors = _head(width, hidden, 2 * JOINTS)

        self.head_global_orient = _head(width, hidden, 6)
        self.head_hand_pose = _head(width, hidden, 6 * FINGER_JOINTS)

        # Constant before training: half a metre away, rather absent, the mean shape.
        self.head_camera = _head(width, hidden, 3, start=(0.0, 0.0, -0.693))
        self.head_wrist = _head(width, hidden, 3, start=(0.0, 0.0, 0.5))
        self.head_presence = _head(width, hidden, 1, start=(-1.0,))
        self.head_visible = _head(width, hidden, 1, start=(-1.0,))
        self.head_betas = _head(width, hidden, BETAS, normed=True, start=(0.0,) * BETAS)

    def forward(self, features: Features, ray_map: Float[torch.Tensor, "B 3 F h w"]) -> Readout:
        """Decode clips of F latent frames to N = 4 (F - 1) + 1 video frames.

        Raises InputError for a clip longer than the absolute positions of that variant.
        """
        frames = features.shape[2]
        patches = self._patches(features, ray_map.mean(dim=2))
        tokens = self._run(self._queries(len(features), frames), patches)
        count = 4 * (frames - 1) + 1
        hands = over_time(tokens[:, :, :SLOTS], count)
        hands = hands + self.hand_fuse(hands)
        registers = tokens[:, :, tokens.shape[2] - self.config.num_registers :]
        shape_token = self.shape_norm(registers.mean(dim=(1, 2)))
        anchors, relative = self._joints(tokens, patches, hands, features.shape[-2:])
        fingers = self.head_hand_pose(hands).unflatten(-1, (FINGER_JOINTS, 6))
        if self.config.shape_from == "registers":
            betas = self.head_betas(shape_token)[:, None].expand(-1, SLOTS, -1)
        else:
            betas = self.head_betas(hands.mean(dim=1))

        return Readout(
            global_orient=rotations_torch.from_6d(self.head_global_orient(hands)),
            hand_pose=rotations_torch.from_6d(fingers),
            betas=betas,
            anchors=anchors,
            joints_relative=relative,
            wrist=self.head_wrist(hands),
            camera=self.head_camera(hands),
            presence=self.head_presence(hands)[..., 0].sigmoid(),
            visible=self.head_visible(hands)[..., 0].sigmoid(),
            ray_map=ray_map,
            shape_token=shape_token,
        )

    def _patches(self, features: Features, rays: RayField) -> Float[torch.Tensor, "B F P D"]:
        """Paper equation (token)."""
        height, width = features.shape[-2:]
        patches = self.patch_projection(features.flatten(3).permute(0, 2, 3, 1))
        if self.config.spatial_encoding:
            # The learned grid, corners on corners.
            grid = functional.interpolate(
                self.spatial_encoding, (height, width), mode="bilinear", align_corners=True
            )
            patches = patches + grid[0].flatten(1).T
        return patches + self.ray_encoding(rays)[:, None]

    def _queries(self, batch: int, frames: int) -> Tokens:
        parts = [self.hand_token + self.slot_embedding]
        if self.config.queries == "joint":
            parts.append(self.joint_token)
        tokens = torch.cat([*parts, self.register_token], dim=1)
        tokens = tokens[:, None].expand(batch, frames, -1, -1)
        if self.config.temporal_encoding == "absolute":
            if frames > self.config.max_latents:
                most = self.config.max_latents
                raise InputError(f"{frames} latent frames; absolute positions cover 1 to {most}.")
            tokens = tokens + self.temporal_encoding[:, :frames, None]
        return tokens

    def _run(self, tokens: Tokens, patches: Float[torch.Tensor, "B F P D"]) -> Tokens:
        angles = None
        if self.config.temporal_encoding == "rotary":
            head_width = self.config.width // self.config.num_heads
            angles = rotary_angles(tokens.shape[1], head_width, tokens.device)
        for layer in self.layers:
            tokens = layer(tokens, patches, angles)
        return self.final_norm(tokens)

    def _joints(
        self,
        tokens: Tokens,
        patches: Float[torch.Tensor, "B F P D"],
        hands: Float[torch.Tensor, "B N 2 D"],
        grid: torch.Size,
    ) -> tuple[Float[torch.Tensor, "B N 2 21 2"], Float[torch.Tensor, "B N 2 21 3"]]:
        """Return 2D anchors in 0..1 and wrist-relative joints in metres."""
        if self.config.queries == "pooled":
            relative = self.head_joints_relative(hands).unflatten(-1, (JOINTS, 3))
            anchors = self.head_anchors(hands).sigmoid().unflatten(-1, (JOINTS, 2))
            return anchors, relative - relative[..., :1, :]

        joints = tokens[:, :, SLOTS : SLOTS + SLOTS * JOINTS]
        context = self.readout_context_norm(patches).flatten(0, 1)
        query = self.readout_query_norm(joints).flatten(0, 1)
        read, heat = self.readout(query, context, context, need_weights=True)
        anchors = soft_argmax(heat.unflatten(-1, tuple(grid)))
        shape = (*tokens.shape[:2], SLOTS, JOINTS)
        relative = self.head_joint_3d(read).view(*shape, 3)
        relative = relative - relative[..., :1, :]
        count = hands.shape[1]
        return over_time(anchors.view(*shape, 2), count), over_time(relative, count)


def soft_argmax(heat: Float[torch.Tensor, "*batch h w"]) -> Float[torch.Tensor, "*batch 2"]:
    """Return the mean position (u, v) in 0..1 under each heatmap (paper equation (softargmax)).

    The first cell is at 0 and the last at 1, as the released weights were trained; the paper has
    cell centres.
    """
    height, width = heat.shape[-2:]
    total = heat.sum(dim=(-1, -2)).clamp_min(1e-6)
    columns = torch.linspace(0, 1, width, device=heat.device, dtype=heat.dtype)
    rows = torch.linspace(0, 1, height, device=heat.device, dtype=heat.dtype)
    u = (heat.sum(-2) * columns).sum(-1) / total
    v = (heat.sum(-1) * rows).sum(-1) / total
    return torch.stack([u, v], dim=-1)


def over_time(
    values: Float[torch.Tensor, "B F ..."], frames: int
) -> Float[torch.Tensor, "B N ..."]:
    """Interpolate linearly from latent frames to video frames; video frame 4 i is latent i."""
    flat = values.flatten(2).transpose(1, 2)
    flat = functional.interpolate(flat, frames, mode="linear", align_corners=True)
    return flat.transpose(1, 2).unflatten(-1, values.shape[2:])


def _tokens(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) * _TOKEN_SCALE)


def _head(
    width: int, hidden: int, out: int, normed: bool = False, start: tuple[float, ...] = ()
) -> nn.Sequential:
    """Return Linear, GELU, Linear; ``start`` is its constant output before training."""
    first, last = nn.Linear(width, hidden), nn.Linear(hidden, out)
    if start:
        nn.init.zeros_(last.weight)
        last.bias.data = torch.tensor(start)
    norm = [nn.LayerNorm(width)] if normed else []
    return nn.Sequential(*norm, first, nn.GELU(), last)
