"""The small encoder: grid, causality, one clip with another length, its weights on disk."""

import dataclasses

import pytest
import torch

from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.config import DecoderConfig, ModelConfig, TinyConfig
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.encoder.sources import TinySource, make_source, rotary_angles, rotate
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.model.weights.own import save_own
from acehand_core.ace.model.weights.state import LoadedWeights
from acehand_core.errors import InputError


def tiny_config(variant="k", temporal_attention=True):
    """Return sizes for images of about 128 x 96 pixels."""
    decoder = DecoderConfig(
        feature_dim=TinyConfig().dim, width=96, num_heads=4, num_layers=2, spatial_grid=8,
        temporal_attention=temporal_attention,
    )  # fmt: skip
    tiny = TinyConfig(temporal_attention=temporal_attention)
    return ModelConfig(variant=variant, source="tiny", decoder=decoder, tiny=tiny)


def build(config, seed=0):
    torch.manual_seed(seed)
    source = make_source(config)
    return AceModel(config, source, Decoder(config.decoder)).eval()


def clip(frames, seed=1, height=32, width=64):
    noise = torch.Generator().manual_seed(seed)
    return torch.rand(1, 3, frames, height, width, generator=noise) * 2 - 1


def batch_of(frames):
    size = torch.tensor([[float(frames.shape[-1]), float(frames.shape[-2])]])
    return ClipBatch(None, size, frames=frames)


@pytest.mark.parametrize("frames", [1, 5, 13])
@torch.no_grad()
def test_layout_and_causality(frames):
    torch.manual_seed(0)
    source = TinySource()
    whole = source.encoder(clip(13))
    assert whole.shape == (1, 48, 4, 4, 8)
    start = source.encoder(clip(13)[:, :, :frames])
    # Latent i depends on frames 0 to 4i alone ...
    assert torch.allclose(start, whole[:, :, : start.shape[2]], atol=1e-5)
    assert start.shape[2] == 1 + frames // 4
    # ... and on each of them.
    for frame in range(9, 13):
        changed = clip(13)
        changed[:, :, frame] += 0.5
        diff = (source.encoder(changed) - whole).abs().amax((0, 1, 3, 4))
        assert diff[:3].max() < 1e-6 < diff[3]
    assert source(clip(13)).shape == (1, 96, 4, 2, 4)
    for wrong, named in ((clip(4), "1, 5, 9"), (clip(5, height=24), "multiples of 16")):
        with pytest.raises(InputError, match=named):
            source(wrong)


@torch.no_grad()
def test_rotary_positions_are_relative():
    config = tiny_config().tiny
    width = config.dim // config.num_heads
    x = torch.randn(1, 1, 3 * 2 * 4, width, generator=torch.Generator().manual_seed(0))
    same = x[:, :, :1].expand(-1, -1, 24, -1)
    turned = rotate(same, rotary_angles(3, 2, 4, config, x.device))[0, 0].unflatten(0, (3, 2, 4))
    product = torch.einsum("thwd,sijd->thwsij", turned, turned)
    assert torch.allclose(product[0, 0, 0, 1, 1, 1], product[1, 0, 2, 2, 1, 3], atol=1e-4)
    for step in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):  # every axis turns something
        assert product[0, 0, 0][step] < product[0, 0, 0, 0, 0, 0] - 1e-3


@pytest.mark.parametrize("temporal", [True, False])
@torch.no_grad()
def test_only_temporal_attention_looks_ahead(temporal):
    model = build(tiny_config(temporal_attention=temporal))
    a, b = clip(17), clip(17)
    b[:, :, 13:] = -b[:, :, 13:]
    first, second = (model(batch_of(x)).anchors[:, :9] for x in (a, b))
    # Latents 0 to 2 are of frames 0 to 8; what differs is in latent 4.
    assert torch.allclose(first, second, atol=1e-6) is not temporal


def test_both_variants_have_the_same_parameters_and_every_one_learns():
    with_time, without = (build(tiny_config(temporal_attention=t)) for t in (True, False))
    assert {n: p.shape for n, p in with_time.named_parameters()} == {
        n: p.shape for n, p in without.named_parameters()
    }
    assert sum(p.numel() for p in with_time.parameters()) * 4 < 10e6
    for model in (with_time, without):
        torch.nn.init.normal_(model.ray_head.weight, std=0.01)
        for parameter in model.decoder.parameters():  # heads and encodings that start at zero
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.01)
        readout = model(batch_of(clip(9)))
        total = sum(getattr(readout, f.name).square().sum() for f in dataclasses.fields(readout))
        total.backward()
        for name, parameter in model.named_parameters():
            if name == "decoder.head_joint_3d.3.bias":
                continue  # cancels: joints are relative to the wrist
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_weights_survive_the_disk(tmp_path):
    config = tiny_config("kfree", temporal_attention=False)
    model = build(config)
    parts = {"decoder": model.decoder, "ray_head": model.ray_head, "tiny": model.source}
    tensors = {name: part.state_dict() for name, part in parts.items()}
    save_own(tmp_path / "tiny", LoadedWeights(config, **tensors, licence="Apache-2.0"))
    loaded = load_weights(tmp_path / "tiny")
    assert loaded.config == config
    again = AceModel.from_weights(loaded, "float32")
    frames = batch_of(clip(9))
    assert torch.equal(again(frames).anchors, model(frames).anchors)
    size = sum(p.stat().st_size for p in (tmp_path / "tiny").iterdir())
    assert size < 10e6
