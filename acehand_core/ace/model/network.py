"""The model: feature source, decoder and placement, in the order of the data.

``AceModel`` turns clips into a ``Readout``; ``place`` puts the hands before the camera.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import nn

from acehand_core.ace.model import pnp
from acehand_core.ace.model.batch import ClipBatch, FeatureSource, PinholeBatch, Readout
from acehand_core.ace.model.camera_fit import FittedPinhole, fit_radial, guarded_pinhole
from acehand_core.ace.model.config import ModelConfig, Precision, SolveOptions, TrunkConfig
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.encoder.sources import TRUNK_SOURCES, make_source
from acehand_core.ace.model.encoder.trunk import Trunk, add_adapters, merge_adapters
from acehand_core.ace.model.pnp import Bearings, Placement
from acehand_core.ace.model.weights.state import LoadedWeights
from acehand_core.errors import InputError, SchemaError

Joints = Float[torch.Tensor, "B N 2 21 3"]


class AceModel(nn.Module):
    """Feature source, ray head and decoder. Raises InputError if their widths differ."""

    def __init__(self, config: ModelConfig, source: FeatureSource | None, decoder: Decoder) -> None:
        super().__init__()
        width = config.decoder.feature_dim
        if source is not None and source.feature_dim != width:
            raise InputError(
                f"source {source.name!r} has {source.feature_dim} channels; the decoder's "
                f"feature_dim is {width}."
            )
        self.config = config
        self.source = source
        #: Rays start at zero (paper section 3.3).
        self.ray_head = nn.Conv3d(width, 3, kernel_size=1)
        for parameter in self.ray_head.parameters():
            nn.init.zeros_(parameter)
        self.decoder = decoder

    @classmethod
    def from_weights(
        cls,
        weights: LoadedWeights,
        precision: Precision = "bfloat16",
        device: torch.device | str = "cpu",
        merge: bool = True,
    ) -> AceModel:
        """Return the model with its weights; ``merge`` merges the adapters.

        Without trunk weights there is no source, only a decoder of features.
        """
        config, source = weights.config, None
        if weights.trunk is not None or config.source not in TRUNK_SOURCES:
            source = make_source(config, partial(load_trunk, weights, precision, device, merge))
            if weights.tiny is not None:
                source.load_state_dict(weights.tiny, strict=True, assign=True)
                source.float().to(device)
        model = cls(config, source, Decoder(config.decoder))
        model.decoder.load_state_dict(weights.part("decoder"), strict=True, assign=True)
        model.ray_head.load_state_dict(weights.part("ray_head"), strict=True, assign=True)
        # Decoder and ray head run in float32 whatever the source does.
        model.decoder.float().to(device)
        model.ray_head.float().to(device)
        return model.eval()

    def forward(self, batch: ClipBatch) -> Readout:
        """Read clips. Raises InputError if the batch lacks the source's input."""
        if self.source is None:
            raise InputError("the model has no feature source; give features to its decoder.")
        clip = batch.frames if self.source.needs == "frames" else batch.latents
        if clip is None:
            raise InputError(f"source {self.source.name!r} reads {self.source.needs}; none given.")
        features = self.source(clip)
        return self.decoder(features, self.ray_head(features))


def load_trunk(
    weights: LoadedWeights,
    precision: Precision = "bfloat16",
    device: torch.device | str = "cpu",
    merge: bool = True,
    config: TrunkConfig | None = None,
) -> Trunk:
    """Return the trunk with its adapters, live or merged. Raises SchemaError without weights."""
    config = config or weights.config.trunk
    if weights.caption is None:
        raise SchemaError("the weights have no caption embedding, which a trunk needs.")
    trunk = Trunk.from_tensors(config, weights.part("trunk"), weights.caption, precision, device)
    if weights.adapters and config.lora_rank:
        add_adapters(trunk, weights.adapters)
        if merge:
            merge_adapters(trunk)
    return trunk


def place(
    readout: Readout,
    joints: Joints,
    size: Float[torch.Tensor, "B 2"],
    camera: PinholeBatch | None,
    options: SolveOptions,
) -> Placement:
    """Place canonical joints before the camera (paper section 3.3, equation (pnp)).

    Args:
        joints: posed and camera-oriented, not yet placed; metres.
        size: width and height of the encoded image.
        camera: needed for bearings from intrinsics, else InputError.
    """
    bearings = bearings_of(readout, readout.rays, size, camera, options)
    return place_with(readout, joints, bearings, options)


def place_with(
    readout: Readout, joints: Joints, bearings: Bearings, options: SolveOptions
) -> Placement:
    """Place canonical joints under given bearings."""
    if options.solve == "direct":
        return pnp.direct(joints, readout.camera)
    if options.solve == "inverse":
        return pnp.inverse_projection(joints, readout.camera, bearings)
    mixed = pnp.mixed_pnp(joints, readout.camera[..., 2], bearings, options.fallback)
    if options.solve == "rigid":
        return pnp.rigid_pnp(joints, readout.camera[..., 2], bearings, mixed)
    return mixed


def bearings_of(
    readout: Readout,
    rays: Float[torch.Tensor, "B 3 h w"],
    size: Float[torch.Tensor, "B 2"],
    camera: PinholeBatch | None,
    options: SolveOptions,
    fit: FittedPinhole | None = None,
) -> Bearings:
    """Return the bearings of the anchors by the source in ``options``; arguments as for ``place``.

    ``rays`` are the predicted field, ``fit`` is the pinhole fitted to them, if known.
    """
    anchors, head = readout.anchors, readout.camera[..., :2]
    if options.bearings == "intrinsics":
        if camera is None:
            raise InputError("bearings from intrinsics need a camera, or use kfree weights.")
        return pnp.calibrated_bearings(anchors, head, camera.focal, camera.centre, size)
    if options.bearings == "pinhole":
        fit = guarded_pinhole(rays, options.fit_guards) if fit is None else fit
        return pnp.fitted_bearings(fit, rays, anchors, head, size)
    if options.bearings == "radial":
        return pnp.radial_bearings(fit_radial(rays), rays, anchors, head, size)
    return pnp.sampled_bearings(rays, anchors, head, size, options.ray_cells == "centres")
