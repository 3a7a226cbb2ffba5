"""The frozen Wan 2.2 video VAE as a stream: frames in, clean normalised latents out.

The encoder of diffusers' ``AutoencoderKLWan`` with its causal caches kept between calls, so memory
does not grow with the clip (paper section 3.1, equation (encoder): z = E(V)). ``PixelEncoder``
replaces it for feature sources that read frames: entry i of its stream holds the frames of latent
i.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AutoencoderKLWan,
    WanCausalConv3d,
    patchify,
)
from jaxtyping import Float, UInt8
from torch import nn

from acehand_core.ace.model.config import SPATIAL_STRIDE, TEMPORAL_STRIDE, Precision, VaeConfig
from acehand_core.errors import InputError

_PATCH = 2

Frames = UInt8[np.ndarray, "n H W 3"]
Latents = Float[torch.Tensor, "48 k h w"]

Packed = UInt8[torch.Tensor, "4 3 k H W"]


def _floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


#: Mean and standard deviation of each latent channel, published with the Wan 2.2 VAE.
LATENT_MEAN = _floats("""
    -0.2289 -0.0052 -0.1323 -0.2339 -0.2799 0.0174 0.1838 0.1557 -0.1382 0.0542 0.2813 0.0891 0.1570
    -0.0098 0.0375 -0.1825 -0.2246 -0.1207 -0.0698 0.5109 0.2665 -0.2108 -0.2158 0.2502 -0.2055
    -0.0322 0.1109 0.1567 -0.0729 0.0899 -0.2799 -0.1230 -0.0313 -0.1649 0.0117 0.0723 -0.2839
    -0.2083 -0.0520 0.3748 0.0152 0.1957 0.1433 -0.2944 0.3573 -0.0548 -0.1681 -0.0667
""")
LATENT_STD = _floats("""
    0.4765 1.0364 0.4514 1.1677 0.5313 0.4990 0.4818 0.5013 0.8158 1.0344 0.5894 1.0901 0.6885
    0.6165 0.8454 0.4978 0.5759 0.3523 0.7135 0.6804 0.5833 1.4146 0.8986 0.5659 0.7069 0.5338
    0.4889 0.4917 0.4069 0.4999 0.6866 0.4093 0.5709 0.6065 0.6415 0.4944 0.5726 1.2042 0.5458
    1.6887 0.3971 1.0600 0.3943 0.5537 0.5444 0.4089 0.7468 0.7744
""")


class VideoEncoder(nn.Module):
    """The VAE's encoder. ``state_dict`` has diffusers' names, under ``vae.``."""

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config

        channels = 3 * _PATCH**2
        with torch.device("meta"):
            self.vae = AutoencoderKLWan(
                base_dim=config.base_dim,
                z_dim=config.z_dim,
                is_residual=True,
                in_channels=channels,
                out_channels=channels,
                patch_size=_PATCH,
                latents_mean=list(LATENT_MEAN),
                latents_std=list(LATENT_STD),
            )

        del self.vae.decoder, self.vae.post_quant_conv
        self._caches = sum(isinstance(m, WanCausalConv3d) for m in self.vae.encoder.modules())

    @classmethod
    def from_tensors(
        cls,
        config: VaeConfig,
        tensors: Mapping[str, torch.Tensor],
        precision: Precision = "bfloat16",
        device: torch.device | str = "cpu",
    ) -> VideoEncoder:
        """Return the encoder with weights in diffusers' names; strict."""
        encoder = cls(config)
        encoder.vae.load_state_dict(tensors, strict=True, assign=True)
        return encoder.to(device, getattr(torch, precision)).eval().requires_grad_(False)

    def stream(self, chunk: int = 16, round_to_half: bool = True) -> EncoderStream:
        """Start a clip, encoded ``chunk`` frames (a multiple of 4) at a time."""
        return EncoderStream(self, chunk, round_to_half)

    def encode(self, frames: Frames, chunk: int = 16, round_to_half: bool = True) -> Latents:
        """Encode a whole clip of 4k + 1 frames; extra frames are dropped."""
        stream = self.stream(chunk, round_to_half)
        return torch.cat([stream.push(frames), stream.finish()], dim=1)


class EncoderStream:
    """The stream of one clip: t frames give ``1 + (t - 1) // 4`` latents, for any pushes."""

    def __init__(self, encoder: VideoEncoder, chunk: int, round_to_half: bool) -> None:
        self._encoder, self._chunk, self._round = encoder, chunk, round_to_half
        self._caches: list[torch.Tensor | None] = [None] * encoder._caches
        self._waiting: list[Frames] = []
        self._started = False
        weight = encoder.vae.quant_conv.weight
        self._dtype, self._device = weight.dtype, weight.device
        # Mean and reciprocal deviation are cast to the working precision, as released.
        shape = (1, -1, 1, 1, 1)
        self._mean = torch.tensor(LATENT_MEAN).to(weight).view(shape)
        self._scale = (1 / torch.tensor(LATENT_STD)).to(weight).view(shape)

    @torch.no_grad()
    def push(self, frames: Frames) -> Latents:
        """Take the next frames; return the finished latents, float32. Raises InputError."""
        height, width = frames.shape[1:3]
        if height % SPATIAL_STRIDE or width % SPATIAL_STRIDE:
            raise InputError(f"frames of {width} x {height}: both must be multiples of 16.")
        self._waiting.append(frames)
        return self._encode_waiting(self._chunk)

    @torch.no_grad()
    def finish(self) -> Latents:
        """Return the remaining latents; one to three frames short of a latent are dropped."""
        return self._encode_waiting(TEMPORAL_STRIDE)

    def _encode_waiting(self, unit: int) -> Latents:
        """Encode all whole units that are waiting."""
        waiting = np.concatenate(self._waiting) if self._waiting else np.empty((0, 16, 16, 3), "u1")
        latents, used = [], 0
        if not self._started and len(waiting):
            self._started, used = True, 1
            latents.append(self._encode(waiting[:1]))
        while (left := len(waiting) - used) >= unit:
            length = min(self._chunk, left // unit * unit)
            latents.append(self._encode(waiting[used : used + length]))
            used += length

        # A copy, since a view would keep all pushed frames.
        self._waiting = [waiting[used:].copy()]
        height, width = (n // SPATIAL_STRIDE for n in waiting.shape[1:3])
        empty = torch.empty(self._encoder.config.z_dim, 0, height, width, device=self._device)
        return torch.cat([empty, *latents], dim=1)

    def _encode(self, frames: Frames) -> Latents:
        pixels = torch.from_numpy(np.ascontiguousarray(frames)).to(self._device)
        x = (pixels.permute(3, 0, 1, 2)[None].float() / 255 * 2 - 1).to(self._dtype)
        vae = self._encoder.vae
        hidden = vae.encoder(patchify(x, _PATCH), feat_cache=self._caches, feat_idx=[0])
        mean = vae.quant_conv(hidden)[:, : self._encoder.config.z_dim]
        latents = (mean - self._mean) * self._scale
        return (latents.half() if self._round else latents).float()[0]


class PixelEncoder:
    """Frames in, the same frames out in groups of four."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device

    def stream(self) -> PixelStream:
        """Start a clip."""
        return PixelStream(self._device)


class PixelStream:
    """The stream of one clip: the first frame four times, then groups of four."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._waiting: UInt8[np.ndarray, "n H W 3"] | None = None

    def push(self, frames: UInt8[np.ndarray, "n H W 3"]) -> Packed:
        """Take the next frames; return the complete groups."""
        if self._waiting is None:
            frames = np.concatenate([frames[:1]] * (TEMPORAL_STRIDE - 1) + [frames])
        else:
            frames = np.concatenate([self._waiting, frames])
        whole = len(frames) // TEMPORAL_STRIDE * TEMPORAL_STRIDE
        self._waiting = frames[whole:].copy()
        groups = torch.from_numpy(frames[:whole].copy()).to(self._device)
        groups = groups.unflatten(0, (-1, TEMPORAL_STRIDE)) if whole else groups[:, None][:0]
        return groups.expand(-1, TEMPORAL_STRIDE, -1, -1, -1).permute(1, 4, 0, 2, 3)

    def finish(self) -> Packed:
        """Return nothing: an incomplete group is dropped, as by the VAE."""
        assert self._waiting is not None
        height, width = self._waiting.shape[1:3]
        return torch.empty((4, 3, 0, height, width), dtype=torch.uint8, device=self._device)


def unpack(packed: Packed) -> Float[torch.Tensor, "3 N H W"]:
    """Return the video frames of a window, RGB in -1..1: N = 4 (k - 1) + 1."""
    frames = packed.permute(1, 2, 0, 3, 4).flatten(1, 2)
    return frames[:, TEMPORAL_STRIDE - 1 :].float() / 255 * 2 - 1
