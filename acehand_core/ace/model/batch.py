"""Inputs and outputs of the model. torch.

Axes: B clips, F latent frames, N = 4 (F - 1) + 1 video frames, h w token rows and columns. Hand
slots are 0 left, 1 right. Frames and units: ``acehand_core.types``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Float
from torch import nn

from acehand_core.errors import SchemaError
from acehand_core.geometry.cameras import Camera


@dataclass(frozen=True, slots=True)
class PinholeBatch:
    """One pinhole per clip, in pixels of the encoded image.

    As in the released code the image spans 0 to ``size`` and calibrations are used unchanged,
    although their integers are pixel centres: the weights were trained with this half-pixel shift.
    """

    focal: Float[torch.Tensor, "B 2"]
    centre: Float[torch.Tensor, "B 2"]
    size: Float[torch.Tensor, "B 2"]  # width, height


@dataclass(frozen=True, slots=True)
class ClipBatch:
    """Clips of equal length and size, and their camera.

    ``latents`` are clean and normalised; ``frames`` are RGB in -1..1 for sources that read pixels.
    ``camera`` is None for K-free clips with unknown intrinsics; ``size`` is (width, height) of the
    encoded image.
    """

    latents: Float[torch.Tensor, "B 48 F H W"] | None
    size: Float[torch.Tensor, "B 2"]
    camera: PinholeBatch | None = None
    frames: Float[torch.Tensor, "B 3 N rows columns"] | None = None


class FeatureSource(nn.Module):
    """A module that returns float32 features (B, C, F, H/32, W/32) of a clip, C = ``feature_dim``.

    ``needs`` names its input: "latents", clean and normalised, (B, 48, F, H/16, W/16), or "frames",
    RGB in -1..1, (B, 3, 4 (F - 1) + 1, H, W). H and W are multiples of 32.
    """

    name: str
    needs: Literal["latents", "frames"]
    feature_dim: int


@dataclass(frozen=True, slots=True)
class Readout:
    """The decoder's output for B clips.

    ``hand_pose`` is relative to the hand model's mean pose, as MANO's with
    ``flat_hand_mean=False``. ``camera`` is (u, v, log z): a wrist position in -1..1 image
    coordinates, used by the fallback alone, and the log depth in metres.
    """

    global_orient: Float[torch.Tensor, "B N 2 3 3"]
    hand_pose: Float[torch.Tensor, "B N 2 15 3 3"]
    betas: Float[torch.Tensor, "B 2 10"]
    anchors: Float[torch.Tensor, "B N 2 21 2"]  # 0..1 of the image
    joints_relative: Float[torch.Tensor, "B N 2 21 3"]  # to the wrist, camera axes, metres
    wrist: Float[torch.Tensor, "B N 2 3"]  # direct regression, camera frame, metres
    camera: Float[torch.Tensor, "B N 2 3"]
    presence: Float[torch.Tensor, "B N 2"]  # 0..1
    visible: Float[torch.Tensor, "B N 2"]  # 0..1
    ray_map: Float[torch.Tensor, "B 3 F h w"]  # raw, not of unit length
    shape_token: Float[torch.Tensor, "B D"]

    @property
    def rays(self) -> Float[torch.Tensor, "B 3 h w"]:
        """The ray field of each clip: the raw mean over its latent frames."""
        return self.ray_map.mean(dim=2)

    def detached(self) -> Readout:
        """Return the readout on the CPU, without a graph."""
        return Readout(**{f.name: getattr(self, f.name).detach().cpu() for f in fields(self)})


def pinhole_batch(cameras: list[Camera], device: torch.device | str = "cpu") -> PinholeBatch:
    """Stack pinholes of encoded images. Raises SchemaError for other camera models."""
    for camera in cameras:
        if camera.model != "pinhole":
            raise SchemaError(
                f"a {camera.model} camera: the model takes a pinhole; undistort the video first."
            )
    rows = [[c.fx, c.fy, c.cx, c.cy, c.width, c.height] for c in cameras]
    table = torch.tensor(rows, dtype=torch.float32, device=device)
    return PinholeBatch(table[:, :2], table[:, 2:4], table[:, 4:])
