"""The VAE stream, the truncated trunk, and its adapters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft.tuners.lora import LoraLayer

from acehand_core.ace.model.config import TrunkConfig
from acehand_core.ace.model.encoder.trunk import (
    Trunk,
    adapter_parameters,
    add_adapters,
    merge_adapters,
)
from acehand_core.errors import InputError, SchemaError
from helpers import tiny_model


@pytest.fixture(scope="module")
def frames():
    return np.random.default_rng(0).integers(0, 256, (21, 32, 48, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def encoder():
    return tiny_model.encoder()


@pytest.fixture(scope="module")
def latents(encoder, frames):
    return encoder.encode(frames, chunk=4, round_to_half=False)


@pytest.fixture(scope="module")
def exact(frames):
    """An encoder that computes in float64, and its latents, which come out in float32."""
    encoder = tiny_model.encoder().double()
    return encoder, encoder.encode(frames, chunk=4, round_to_half=False)


@pytest.mark.parametrize("chunk", [4, 8, 12, 16, 64])
@pytest.mark.parametrize("pushes", [(21,), (1, 20), (3, 1, 7, 10), (1,) * 21])
def test_a_stream_equals_one_call(frames, exact, chunk, pushes):
    encoder, latents = exact
    stream = encoder.stream(chunk, round_to_half=False)
    parts, start = [], 0
    for count in pushes:
        parts.append(stream.push(frames[start : start + count]))
        start += count
    got = torch.cat([*parts, stream.finish()], dim=1)
    torch.testing.assert_close(got, latents, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8, 9, 17])
def test_a_prefix_has_the_same_latents(encoder, frames, latents, count):
    got = encoder.encode(frames[:count], chunk=4, round_to_half=False)
    assert got.shape[1] == 1 + (count - 1) // 4
    torch.testing.assert_close(got, latents[:, : got.shape[1]], rtol=0, atol=0)
    rounded = encoder.encode(frames[:count], chunk=4)  # as released
    torch.testing.assert_close(rounded, got.half().float(), rtol=0, atol=0)
    with pytest.raises(InputError, match="multiples of 16"):
        encoder.encode(np.zeros((5, 30, 48, 3), np.uint8))


def test_diffusers_encodes_the_same(encoder, frames, latents):
    """One plain call of the whole autoencoder's ``_encode`` on the same weights."""
    from acehand_core.ace.model.encoder.vae import LATENT_MEAN, LATENT_STD

    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None].float() / 255 * 2 - 1
    vae = encoder.vae
    vae._cached_conv_counts["decoder"] = 0
    with torch.no_grad():
        mean = vae._encode(pixels)[:, :48]
    shape = (1, -1, 1, 1, 1)
    expected = (mean - torch.tensor(LATENT_MEAN).view(shape)) / torch.tensor(LATENT_STD).view(shape)
    torch.testing.assert_close(latents, expected[0], rtol=0, atol=1e-5)


def test_what_a_stream_keeps_does_not_grow(encoder, frames):
    stream = encoder.stream(chunk=4)
    kept = []
    for _ in range(4):
        stream.push(frames)
        cached = sum(c.untyped_storage().nbytes() for c in stream._caches if c is not None)
        kept.append((cached, sum(len(w) for w in stream._waiting)))
    assert kept[1][0] == kept[3][0] and max(waiting for _, waiting in kept) < 4


@pytest.fixture(scope="module")
def clip():
    return torch.randn(2, 48, 3, 4, 6, generator=torch.Generator().manual_seed(3))


def test_the_whole_transformer_has_the_same_hidden_states(clip):
    """diffusers' full model, 100 zero channels and time 0 included, read by a hook."""
    from diffusers import WanTransformer3DModel

    config, tensors = tiny_model.TRUNK, tiny_model.trunk_tensors()
    full = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=24, in_channels=148, out_channels=48,
        text_dim=32, freq_dim=256, ffn_dim=64, num_layers=config.num_layers,
    ).eval()  # fmt: skip
    missing, unexpected = full.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(m.startswith(("blocks.3", "blocks.4", "proj_out", "scale_shift")) for m in missing)
    seen = []
    full.blocks[config.tap].register_forward_hook(lambda m, x, y: seen.append(y))
    caption = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    padded = torch.cat([caption, torch.zeros(11, 32)])[None].expand(2, -1, -1)
    padding = torch.zeros(2, 100, 3, 4, 6)
    with torch.no_grad():
        full(torch.cat([clip, padding], dim=1), torch.zeros(2), padded)
        features = tiny_model.trunk()(clip)
    assert features.shape == (2, 48, 3, 2, 3)
    torch.testing.assert_close(features.flatten(2).transpose(1, 2), seen[0], rtol=0, atol=5e-6)


def test_skipped_blocks_do_not_exist():
    for tap in (0, 2, 4):
        names = Trunk(replace(tiny_model.TRUNK, tap=tap)).state_dict()
        assert {n.split(".")[1] for n in names if n.startswith("blocks.")} == {
            str(i) for i in range(tap + 1)
        }
        assert not any("proj_out" in n or "condition" in n for n in names)


def test_a_tensor_too_many_or_too_few_and_impossible_sizes_are_refused():
    for change in ({"tap": 5}, {"sigma": 2.0}, {"num_heads": 7}):
        with pytest.raises(InputError):
            replace(tiny_model.TRUNK, **change)
    tensors, caption = tiny_model.trunk_tensors(), torch.zeros(5, 32)
    for change in ({"blocks.7.norm2.weight": torch.zeros(48)}, {"blocks.0.norm2.weight": None}):
        changed = {k: v for k, v in {**tensors, **change}.items() if v is not None}
        with pytest.raises(RuntimeError, match=next(iter(change))):
            Trunk.from_tensors(tiny_model.TRUNK, changed, caption)


def test_noise_is_drawn_only_when_asked_for(clip):
    clean = tiny_model.trunk()
    torch.testing.assert_close(clean(clip), clean(clip), rtol=0, atol=0)
    noisy = tiny_model.trunk(replace(tiny_model.TRUNK, sigma=0.5))
    a, b, c = (noisy(clip, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert (a - c).abs().max() > 1e-2
    assert (noisy.modulation - clean.modulation).abs().max() > 1e-2  # its time step is 500


def test_low_precision_is_near_and_keeps_its_islands(clip):
    low, high = tiny_model.trunk(precision="bfloat16"), tiny_model.trunk()
    assert low.dtype == torch.bfloat16 and low.patch_embedding.weight.dtype == torch.float32
    assert low.modulation.dtype == torch.float32 and low.context.dtype == torch.bfloat16
    with torch.no_grad():
        a, b = low(clip), high(clip)
    assert a.dtype == torch.float32
    assert 1e-4 < (a - b).abs().mean() / b.abs().mean() < 2e-2


def adapted(precision="float32", seed=5):
    trunk = tiny_model.trunk(precision=precision)
    add_adapters(trunk)
    if seed is not None:
        for name, parameter in adapter_parameters(trunk):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
            parameter.data = 0.3 * drawn / parameter.shape[-1] ** 0.5
            seed += 1
            assert parameter.dtype == torch.float32, name
    return trunk


def test_adapters_start_as_identities(clip):
    with torch.no_grad():
        torch.testing.assert_close(
            adapted(seed=None)(clip), tiny_model.trunk()(clip), rtol=0, atol=0
        )


def test_ten_linears_per_block_are_adapted():
    names = [name for name, _ in adapter_parameters(adapted())]
    assert len(names) == 3 * 10 * 2
    assert "blocks.0.attn1.to_q.lora_A.default.weight" in names
    assert "blocks.2.ffn.net.0.proj.lora_B.default.weight" in names


def test_only_adapters_and_the_patch_embedding_are_trained(clip):
    trunk = adapted()
    trunk(clip).square().mean().backward()
    reached = {n for n, p in trunk.named_parameters() if p.grad is not None}
    expected = {name for name, _ in adapter_parameters(trunk)}
    assert reached == expected | {"patch_embedding.weight", "patch_embedding.bias"}
    assert reached == {n for n, p in trunk.named_parameters() if p.requires_grad}
    gradient = trunk.patch_embedding.weight.grad
    assert gradient[:, :48].abs().min() > 0 and gradient[:, 48:].abs().max() == 0


def test_merging_in_float32_changes_nothing(clip):
    trunk = adapted()
    with torch.no_grad():
        live = trunk(clip)
        merge_adapters(trunk)
        torch.testing.assert_close(trunk(clip), live, rtol=0, atol=5e-6)
    assert not any(isinstance(module, LoraLayer) for module in trunk.modules())
    assert trunk.state_dict().keys() == tiny_model.trunk().state_dict().keys()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_merged_weights_are_sums_rounded_once(precision):
    config = replace(tiny_model.TRUNK, dim=96, ffn_dim=150, lora_rank=8, lora_alpha=4.0)
    tensors = tiny_model.trunk_tensors(config)
    caption = torch.zeros(1, config.text_dim)
    given = {name: tensor.to(getattr(torch, precision)) for name, tensor in tensors.items()}
    kept = {name: tensor.clone() for name, tensor in given.items()}
    trunk = Trunk.from_tensors(config, given, caption, precision)
    add_adapters(trunk)
    drawn = {}
    for seed, (name, parameter) in enumerate(adapter_parameters(trunk)):
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
        drawn[name] = parameter.detach().clone().double().numpy()
    merge_adapters(trunk)
    for name, weight in trunk.state_dict().items():
        stem = name.removesuffix(".weight")
        if f"{stem}.lora_A.default.weight" not in drawn:
            continue
        down, up = (drawn[f"{stem}.lora_{side}.default.weight"] for side in "AB")
        exact = kept[name].double().numpy() + 4.0 / 8 * up @ down
        step = 2.0**-24 if precision == "float32" else 2.0**-8
        # Half a unit in the last place, and the float32 sum of nine terms.
        limit = step * np.abs(exact) + 9 * 2.0**-24 * (np.abs(up) @ np.abs(down) + np.abs(exact))
        assert (np.abs(weight.double().numpy() - exact) <= limit).all(), name
    # The tensors may be a map of the file, or be used again.
    assert all(torch.equal(given[name], tensor) for name, tensor in kept.items())


def test_adapter_tensors_are_strict():
    tensors = {n: p.detach() for n, p in adapter_parameters(adapted())}
    add_adapters(tiny_model.trunk(), tensors)
    name = "blocks.1.attn2.to_v.lora_A.default.weight"
    for change, message in (
        ({name: None}, name),
        ({name: torch.zeros(3, 48)}, r"\(4, 48\) is needed"),
        ({"blocks.9.x": torch.zeros(1)}, "blocks.9.x"),
    ):
        changed = {k: v for k, v in {**tensors, **change}.items() if v is not None}
        with pytest.raises(SchemaError, match=message):
            add_adapters(tiny_model.trunk(), changed)


def test_released_sizes_on_the_meta_device():
    """Blocks that run, and nothing else, at the released size."""
    trunk = Trunk(TrunkConfig())
    counted = sum(p.numel() for p in trunk.parameters())
    assert counted == 16 * 163_656_704 + 1_821_696
    assert all(p.is_meta for p in trunk.parameters())
