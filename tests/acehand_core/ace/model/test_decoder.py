"""The decoder: what it is equivariant to, its variants, and its outputs before training."""

import math
from dataclasses import replace

import pytest
import torch

from acehand_core.ace.model.config import DecoderConfig
from acehand_core.ace.model.decoder import (
    Decoder,
    RayEncoding,
    over_time,
    rotary_angles,
    rotate,
    soft_argmax,
)
from acehand_core.errors import InputError

TINY = DecoderConfig(feature_dim=24, width=32, num_heads=2)
VARIANTS = {
    "paper": TINY,
    "no spatial encoding": replace(TINY, spatial_encoding=False),
    "pooled queries": replace(TINY, queries="pooled"),
    "shape from registers": replace(TINY, shape_from="registers"),
    "absolute positions": replace(TINY, temporal_encoding="absolute"),
}


def make(config=TINY, seed=0, trained=True):
    """Return a decoder; ``trained`` ones have no layer that is still zero."""
    torch.manual_seed(seed)
    decoder = Decoder(config).eval()
    if trained:
        for parameter in decoder.parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape)
    return decoder


def inputs(frames=4, height=3, width=5, batch=2):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(batch, 24, frames, height, width, generator=generator)
    rays = torch.randn(batch, 3, frames, height, width, generator=generator)
    rays[:, 2] = rays[:, 2].abs() + 1
    return features, rays


@torch.no_grad()
def decode(decoder, features, rays):
    return decoder(features, rays)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_decodes_and_trains(name):
    decoder = make(VARIANTS[name])
    features, rays = inputs()
    readout = decoder(features, rays)
    assert readout.hand_pose.shape == (2, 13, 2, 15, 3, 3) and readout.betas.shape == (2, 2, 10)
    turn = readout.hand_pose
    torch.testing.assert_close(turn @ turn.mT, torch.eye(3).expand_as(turn), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.linalg.det(turn), torch.ones(turn.shape[:-2]))
    assert readout.joints_relative[..., 0, :].abs().max() == 0
    outputs = [readout.global_orient, readout.hand_pose, readout.betas, readout.anchors,
               readout.joints_relative, readout.wrist, readout.camera, readout.presence,
               readout.visible]  # fmt: skip
    sum(value.square().sum() * (i + 1) for i, value in enumerate(outputs)).backward()
    unreached = {n for n, p in decoder.named_parameters() if p.grad is None}
    assert unreached == ({"shape_norm.weight", "shape_norm.bias"} if name != "shape from registers"
                         else set())  # fmt: skip


def test_variants_hold_only_what_they_use():
    names = {name: set(make(config).state_dict()) for name, config in VARIANTS.items()}
    paper = names["paper"]
    assert paper - names["no spatial encoding"] == {"spatial_encoding"}
    assert names["absolute positions"] - paper == {"temporal_encoding"}
    assert names["shape from registers"] == paper
    pooled = {n.split(".")[0] for n in names["pooled queries"] - paper}
    assert pooled == {"head_joints_relative", "head_anchors"}


def test_pooled_anchors_stay_inside_the_image():
    """By a sigmoid, as the released code has it: however far a head goes, and halfway at 0."""
    decoder = make(VARIANTS["pooled queries"])
    last = [module for module in decoder.head_anchors if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.0, math.log(3)]).repeat(len(last.bias) // 2))
    anchors = decode(decoder, *inputs()).anchors
    torch.testing.assert_close(anchors, torch.tensor([0.5, 0.75]).expand_as(anchors))


def test_released_and_impossible_sizes():
    decoder = Decoder(DecoderConfig())
    assert sum(p.numel() for p in decoder.parameters()) == 12_286_773
    with pytest.raises(InputError, match="5 heads"):
        replace(TINY, num_heads=5)


def test_before_training_the_heads_are_constant():
    readout = decode(make(trained=False), *inputs())
    assert readout.betas.abs().max() == 0
    torch.testing.assert_close(readout.camera, torch.tensor([0.0, 0.0, -0.693]).expand(2, 13, 2, 3))
    torch.testing.assert_close(readout.wrist, torch.tensor([0.0, 0.0, 0.5]).expand(2, 13, 2, 3))
    for score in (readout.presence, readout.visible):
        torch.testing.assert_close(score, torch.full_like(score, 0.26894143))
    _, rays = inputs()
    encoding = RayEncoding(TINY)(rays.mean(2))
    assert encoding.shape == (2, 15, 32) and encoding.abs().max() == 0


def test_every_frame_sees_past_and_future():
    decoder, (features, rays) = make(), inputs(frames=5)
    features.requires_grad_(True)
    readout = decoder(features, rays)
    readout.global_orient[:, 8].sum().backward()  # video frame 8 is latent 2
    per_latent = features.grad.abs().amax(dim=(0, 1, 3, 4))
    assert (per_latent > 0).all()


def test_rotary_positions_are_relative():
    """Scores of two tokens depend on how far apart they are, not on where."""
    query, key = torch.randn(1, 1, 1, 1, 16), torch.randn(1, 1, 1, 1, 16)
    angles = rotary_angles(40, 16, torch.device("cpu"))

    def score(a, b):
        return (rotate(query, angles[a : a + 1]) * rotate(key, angles[b : b + 1])).sum()

    torch.testing.assert_close(score(3, 10), score(29, 36), rtol=1e-4, atol=1e-5)
    assert (score(3, 10) - score(3, 20)).abs() > 1e-3


def test_reversing_time_matters_and_absolute_positions_end():
    features, rays = inputs(frames=4)
    forward, backward = (decode(make(), f, rays) for f in (features, features.flip(2)))
    # Relative positions are signed: earlier is not later.
    assert (forward.anchors - backward.anchors.flip(1)).abs().max() > 1e-6
    config = replace(TINY, temporal_encoding="absolute", max_latents=3)
    with pytest.raises(InputError, match=r"4 latent.* 3\b"):
        make(config)(features, rays)


def test_anchors_are_means_over_the_grid():
    heat = torch.zeros(4, 5)
    for row, column, expected in ((0, 0, (0, 0)), (3, 4, (1, 1)), (1, 2, (0.5, 1 / 3))):
        one = heat.clone()
        one[row, column] = 0.7  # any scale
        torch.testing.assert_close(soft_argmax(one), torch.tensor(expected, dtype=torch.float32))
    blob = torch.rand(6, 4, 5)
    anchors = soft_argmax(blob)
    assert (anchors > 0).all() and (anchors < 1).all()


def test_latents_stand_at_every_fourth_frame():
    values = torch.randn(2, 5, 2, 3)
    out = over_time(values, 17)
    torch.testing.assert_close(out[:, ::4], values)
    torch.testing.assert_close(out[:, 2], (values[:, 0] + values[:, 1]) / 2)
    assert over_time(values[:, :1], 1).shape == (2, 1, 2, 3)
