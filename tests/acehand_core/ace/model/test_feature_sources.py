"""Feature sources: one grid for all, the right pixels in every token, frozen, strictly loaded."""

import itertools
import json
import sys

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from acehand_core.ace.model.batch import FeatureSource  # noqa: E402
from acehand_core.ace.model.config import ModelConfig, TrunkConfig  # noqa: E402
from acehand_core.ace.model.encoder.sources import (  # noqa: E402
    Rgb,
    VaeLatent,
    make_source,
    source_kind,
)
from acehand_core.ace.model.encoder.video_backbones import (  # noqa: E402
    PIXEL_MEAN,
    PIXEL_STD,
    VideoMae,
    VJepa2,
    window_starts,
)
from acehand_core.errors import InputError, MissingDependencyError, SchemaError  # noqa: E402

FRAME_SOURCES = ("rgb", "vjepa2", "videomae")
BACKBONES = {"vjepa2": VJepa2, "videomae": VideoMae}


def tiny_model(kind, seed=0, **changes):
    """A random model of transformers: 32-pixel training images, windows of 4 or 3 latents."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    if kind == "vjepa2":
        sizes = {
            "crop_size": 32, "frames_per_clip": 8, "hidden_size": 24, "num_attention_heads": 2,
            "num_hidden_layers": 2, "pred_hidden_size": 24, "pred_num_attention_heads": 2,
            "pred_num_hidden_layers": 1, "initializer_range": 0.3,
        }  # fmt: skip
        return transformers.VJEPA2Model(transformers.VJEPA2Config(**sizes | changes))
    sizes = {
        "image_size": 32, "num_frames": 6, "hidden_size": 12, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 24, "use_mean_pooling": False,
        "decoder_num_hidden_layers": 1, "decoder_hidden_size": 12, "initializer_range": 0.3,
        "decoder_num_attention_heads": 2, "decoder_intermediate_size": 12,
    }  # fmt: skip
    config = transformers.VideoMAEConfig(**sizes | changes)
    if changes.get("pretraining"):
        return transformers.VideoMAEForPreTraining(config)
    return transformers.VideoMAEModel(config)


def averaging(kind, **changes):
    """A source whose backbone only averages the colours of each patch: no layers, no positions."""
    size = {"hidden_size": 12} if kind == "videomae" else {}
    model = tiny_model(kind, num_hidden_layers=0, **size | changes)
    if kind == "videomae":
        model.layernorm = nn.Identity()
        model.embeddings.position_embeddings.zero_()
        projection = model.embeddings.patch_embeddings.projection
    else:
        model.encoder.layernorm = nn.Identity()
        projection = model.encoder.embeddings.patch_embeddings.proj
    with torch.no_grad():
        projection.weight.zero_()
        projection.bias.zero_()
        for channel in range(3):
            projection.weight[channel, channel] = 1 / projection.weight[0, 0].numel()
    return BACKBONES[kind](model)


def colours(kind, clip):
    """Mean colour (B, 3, F, h, w) in -1..1 that a source sees in each token."""
    if kind == "rgb":
        features = Rgb()(clip)
        return features.unflatten(1, (4, 3, 256)).mean((1, 3))
    source = averaging(
        kind, **({"image_size": 224, "num_frames": 16} if kind == "videomae" else {})
    )
    shape = (1, 3, 1, 1, 1)
    mean, std = (torch.tensor(v).view(shape) for v in (PIXEL_MEAN, PIXEL_STD))
    return 2 * (source(clip)[:, :3] * std + mean) - 1


def ramp(frames, height, width):
    """A clip whose red is the column, green the row and blue the frame, each in -1..1."""
    axes = [(torch.arange(n) + 0.5) / n * 2 - 1 for n in (width, height)]
    clip = torch.empty(1, 3, frames, height, width)
    clip[:, 0] = axes[0]
    clip[:, 1] = axes[1][:, None]
    clip[:, 2] = torch.linspace(-1, 1, frames)[:, None, None]
    return clip


def tiny_source(kind):
    return Rgb() if kind == "rgb" else BACKBONES[kind](tiny_model(kind))


def test_what_cannot_be_a_source_is_refused(monkeypatch):
    with pytest.raises(InputError, match=r"vjepa2, wan, wan_frozen.*'videomae'"):
        make_source(ModelConfig(source="videomea"))
    for size in ((3, 4), (4, 5)):
        with pytest.raises(InputError, match="even"):
            VaeLatent(2)(torch.zeros(1, 2, 1, *size))
    with pytest.raises(SchemaError, match="tubelet_size is 3"):
        VideoMae(tiny_model("videomae", tubelet_size=3))
    monkeypatch.setitem(sys.modules, "transformers", None)
    for kind in BACKBONES:
        with pytest.raises(MissingDependencyError, match=f"'{kind}' needs transformers"):
            make_source(ModelConfig(source=kind))


@pytest.mark.parametrize("name", ["vae_latent", "rgb"])
def test_sources_without_weights_by_name(name):
    source = make_source(ModelConfig(source=name))
    assert isinstance(source, FeatureSource)
    assert (source.name, source.needs) == (name, source_kind(name).needs)
    assert not list(source.parameters())
    assert source.feature_dim == {"vae_latent": 192, "rgb": 3072}[name]


def test_wan_without_a_loader_allocates_nothing():
    pytest.importorskip("diffusers")
    config = TrunkConfig(dim=24, ffn_dim=32, num_heads=2, num_layers=4, tap=1, text_dim=8)
    source = make_source(ModelConfig(source="wan_frozen", trunk=config))
    assert source.feature_dim == 24 and isinstance(source, FeatureSource)
    assert {p.device.type for p in source.parameters()} == {"meta"}


@pytest.mark.parametrize("kind", FRAME_SOURCES)
@pytest.mark.parametrize(
    ("frames", "height", "width"),
    [(1, 32, 32), (5, 64, 96), (5, 96, 32), (17, 32, 160), (81, 32, 64)],
)
def test_shape(kind, frames, height, width):
    source = tiny_source(kind)
    features = source(torch.rand(2, 3, frames, height, width) * 2 - 1)
    expected = (2, source.feature_dim, 1 + frames // 4, height // 32, width // 32)
    assert features.shape == expected and features.dtype == torch.float32
    assert features.isfinite().all()
    assert isinstance(source, FeatureSource) and source.needs == source_kind(kind).needs


@pytest.mark.parametrize("kind", FRAME_SOURCES)
@pytest.mark.parametrize("shape", [(4, 32, 32), (5, 48, 32), (5, 32, 33)])
def test_wrong_clips_are_refused(kind, shape):
    with pytest.raises(InputError, match=r"valid: 1, 5, 9|multiples of 32"):
        tiny_source(kind)(torch.zeros(1, 3, *shape))


@pytest.mark.parametrize("kind", FRAME_SOURCES)
@pytest.mark.parametrize(("height", "width"), [(96, 160), (480, 672)])
def test_every_token_sees_its_own_pixels(kind, height, width):
    """Column and row of what a token sees are those of its 32 x 32 pixels, aspect regardless."""
    rows, columns = height // 32, width // 32
    seen = (colours(kind, ramp(1, height, width))[0, :2, 0] + 1) / 2
    off_x = seen[0] * columns - (torch.arange(columns) + 0.5)
    off_y = seen[1] * rows - (torch.arange(rows)[:, None] + 0.5)
    # In tokens. A filter that is cut by the image's border leans inwards.
    border = 0.01 if kind != "videomae" else 0.26
    for off in (off_x, off_y.T):
        assert off[:, 1:-1].abs().max() < 0.015
        assert off.abs().max() < border


@pytest.mark.parametrize("kind", FRAME_SOURCES)
def test_latents_stand_for_their_frames(kind):
    """A source without attention over time sees frames 4i - 3 to 4i in latent i, in any window."""
    seen = colours(kind, ramp(81, 32, 32))[0, 2].mean((1, 2))
    frame = (seen + 1) / 2 * 80
    offset = 1.5 if kind == "rgb" else 1.0
    expected = torch.cat([torch.zeros(1), 4.0 * torch.arange(1, 21) - offset])
    assert (frame - expected).abs().max() < 1e-3


@pytest.mark.parametrize("kind", FRAME_SOURCES)
def test_a_change_at_a_frame_reaches_its_latent_alone(kind):
    source = Rgb() if kind == "rgb" else averaging(kind)
    clip = torch.rand(1, 3, 29, 32, 32) * 2 - 1
    before = source(clip)
    for frame in (0, 1, 4, 6, 14, 28):
        changed = clip.clone()
        changed[:, :, frame] += 0.5
        moved = (source(changed) - before).abs().amax((0, 1, 3, 4)) > 1e-6
        latent = (frame + 3) // 4
        read = kind == "rgb" or frame % 2 == 0
        assert moved.nonzero().flatten().tolist() == [latent] * read


def test_vae_latent_definition():
    latents = torch.randn(2, 5, 3, 4, 6)
    folded = VaeLatent(5)(latents)
    assert folded.shape == (2, 20, 3, 2, 3)
    for channel, row, column in itertools.product(range(5), (0, 1), (0, 1)):
        part = folded[:, 4 * channel + 2 * row + column]
        torch.testing.assert_close(part, latents[:, channel, :, row::2, column::2])


def test_rgb_definition():
    clip = torch.rand(1, 3, 9, 64, 96) * 2 - 1
    patch, scale = 16, 2
    features = Rgb()(clip).unflatten(1, (4, 3, patch, patch))
    rng = np.random.default_rng(0)
    for _ in range(20):
        latent, position, colour = rng.integers(3), rng.integers(4), rng.integers(3)
        i, j, row, column = *rng.integers(patch, size=2), rng.integers(2), rng.integers(3)
        top, left = 32 * row + scale * i, 32 * column + scale * j
        frame = max(0, 4 * latent - 3 + position)
        block = clip[0, colour, frame, top : top + scale, left : left + scale]
        value = features[0, position, colour, i, j, latent, row, column]
        torch.testing.assert_close(value, block.mean())


@pytest.mark.parametrize("kind", BACKBONES)
def test_deterministic_and_frozen(kind):
    dropout = {"attention_probs_dropout_prob": 0.5}
    if kind == "videomae":
        dropout["hidden_dropout_prob"] = 0.5
    source = BACKBONES[kind](tiny_model(kind, **dropout))
    clip = torch.rand(1, 3, 17, 64, 32, requires_grad=True)
    first = source(clip)
    source.train()
    assert not any(module.training for module in source.modules())
    assert not any(p.requires_grad for p in source.parameters())
    source.requires_grad_(True)
    again = source(clip)
    assert torch.equal(first, again) and not again.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(first, source(clip))
    low = source.to(torch.bfloat16)(clip)
    assert low.dtype == torch.float32 and (low - first).abs().mean() < 0.1 * first.abs().mean()


@pytest.mark.parametrize("kind", BACKBONES)
def test_on_one_window_a_source_equals_transformers(kind):
    """With frames normalised as the models' own preprocessing does."""
    sizes = {"crop_size": 64} if kind == "vjepa2" else {"image_size": 64}
    model = tiny_model(kind, **sizes).eval()
    chosen = [0, 0, 2, 4, 6, 8, 10, 12] if kind == "vjepa2" else [0, 0, 2, 4, 6, 8]
    clip = torch.rand(2, 3, chosen[-1] + 1, 128, 128) * 2 - 1
    images = nn.functional.interpolate(
        clip[:, :, chosen].transpose(1, 2).flatten(0, 1), 64, mode="bilinear", antialias=True
    )
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (PIXEL_MEAN, PIXEL_STD))
    video = (((images + 1) / 2 - mean) / std).unflatten(0, (2, -1))
    with torch.no_grad():
        found = model.get_vision_features(video) if kind == "vjepa2" else model(video)[0]
    expected = found.transpose(1, 2).unflatten(2, (-1, 4, 4))
    torch.testing.assert_close(BACKBONES[kind](model)(clip), expected, atol=1e-5, rtol=1e-5)


def test_vjepa2_numbers_rows_and_columns_of_any_grid():
    source = VJepa2(tiny_model("vjepa2"))
    attention, seen = source.backbone.layer[0].attention, []
    original = attention.get_position_ids

    def spy(x, masks=None):
        seen.append(original(x, masks=masks))
        return seen[-1]

    attention.get_position_ids = spy
    source(torch.rand(1, 3, 9, 64, 160))
    positions = torch.stack(seen[0])[:, 0, 0].T
    assert positions.tolist() == [list(p) for p in itertools.product(range(3), range(2), range(5))]


def test_videomae_holds_the_last_frames_of_a_short_clip():
    """A five-frame clip is read as if its end stood still; what was added is not returned."""
    source = VideoMae(tiny_model("videomae"))
    short = torch.rand(1, 3, 5, 32, 32)
    held = torch.cat([short, short[:, :, -1:].expand(-1, -1, 4, -1, -1)], 2)
    torch.testing.assert_close(source(short), source(held)[:, :, :2])


def test_overlapping_windows_are_blended():
    """Between windows features cross over; each end belongs to its only window."""
    source = VideoMae(tiny_model("videomae", num_frames=8))
    clip = torch.rand(1, 3, 25, 32, 32)
    assert window_starts(7, 4) == [0, 3]
    for count, window in itertools.product(range(1, 130), (1, 3, 8, 32)):
        starts = window_starts(count, window)
        assert starts[0] == 0 and starts[-1] == max(0, count - window)
        steps = np.diff(starts)
        assert (steps > 0).all() and (steps <= window - window // 4).all()
    first, second = source(clip[:, :, :13]), source._window(clip, 3, 4, (1, 1))
    whole = source(clip)
    torch.testing.assert_close(whole[:, :, :3], first[:, :, :3])
    torch.testing.assert_close(whole[:, :, 4:], second[:, :, 1:])
    torch.testing.assert_close(whole[:, :, 3], (first[:, :, 3] + second[:, :, 0]) / 2)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """The hub's cache is an empty folder and nothing may be fetched."""
    pytest.importorskip("transformers")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def save(kind, folder, seed=1):
    """Write a model as published: with what pre-training needed beyond the encoder."""
    changes = {"pretraining": True} if kind == "videomae" else {}
    model = tiny_model(kind, seed, **changes)
    model.save_pretrained(folder)
    return getattr(model, "videomae", model)


@pytest.mark.parametrize("kind", BACKBONES)
def test_a_folder_gives_the_same_features(kind, offline):
    expected = BACKBONES[kind](save(kind, offline / "weights"))
    source = BACKBONES[kind].from_pretrained(str(offline / "weights"))
    clip = torch.rand(1, 3, 9, 64, 32)
    assert torch.equal(source(clip), expected(clip))
    assert not any(p.requires_grad for p in source.parameters())
    held = sum(p.numel() for p in source.parameters())
    assert held == sum(p.numel() for p in expected.parameters())


def test_the_cache_is_used_offline(offline):
    commit = "0123456789abcdef0123456789abcdef01234567"
    root = offline / "hub" / "models--MCG-NJU--videomae-large"
    expected = VideoMae(save("videomae", root / "snapshots" / commit))
    clip = torch.rand(1, 3, 5, 32, 32)
    asked = ModelConfig(source="videomae")
    with pytest.raises(InputError, match="MCG-NJU/videomae-large"):
        make_source(asked)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    assert torch.equal(make_source(asked)(clip), expected(clip))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop("videomae.layernorm.bias"), "missing.*layernorm.bias"),
        (lambda tensors: tensors.update(extra=torch.ones(2)), "unexpected.*extra"),
        (
            lambda tensors: tensors.update({"videomae.layernorm.bias": torch.ones(5)}),
            r"layernorm.bias \(5,\)",
        ),
    ],
)
def test_tensors_are_accounted_for(offline, change, named):
    save("videomae", offline / "weights")
    path = offline / "weights" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(SchemaError, match=named):
        VideoMae.from_pretrained(str(offline / "weights"))


def test_absent_or_unreadable_weights_are_named(offline):
    with pytest.raises(InputError, match="nowhere/there: no weights"):
        VJepa2.from_pretrained("nowhere/there")
    folder = offline / "weights"
    save("videomae", folder)
    with pytest.raises(SchemaError, match="videomae model; valid: vjepa2"):
        VJepa2.from_pretrained(str(folder))
    save("vjepa2", folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for step in (
        lambda: None,
        lambda: path.rename(folder / "pytorch_model.bin"),
        lambda: (folder / "config.json").write_text(json.dumps({"model_type": "nonsense"})),
    ):
        step()
        with pytest.raises(InputError, match="no weights"):
            VJepa2.from_pretrained(str(folder))
