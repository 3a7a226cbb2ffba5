"""Names and shapes of the released files, of the running model and of the re-packaging; counts."""

import json

import pytest
import torch

from acehand_core.ace.model.config import DecoderConfig, ModelConfig, TrunkConfig, VaeConfig
from acehand_core.ace.model.weights import official, repackaged, tables
from acehand_core.ace.model.weights.inspection import account, table
from acehand_core.ace.model.weights.state import state_shapes
from acehand_core.ace.model.weights.tables import shapes_of

VARIANTS = [
    {},
    {"spatial_encoding": False},
    {"queries": "pooled"},
    {"shape_from": "registers"},
    {"temporal_encoding": "absolute"},
]
SMALL = {"feature_dim": 48, "width": 48, "num_layers": 2, "max_latents": 8}


def read(golden_folder, name):
    return json.loads((golden_folder / name).read_text())


def same(found, listed):
    return found == {name: tuple(shape) for name, shape in listed.items()}


def test_lists_at_released_sizes(golden_folder):
    listed = read(golden_folder, "official_tensors.json")
    trunk, decoder = TrunkConfig(), DecoderConfig()
    assert same(official.dit(trunk), listed["dit"])
    assert same(official.backbone_trainable(trunk), listed["backbone_trainable"])
    assert same(official.projectors(decoder, 15), listed["projectors"])
    assert same(official.raymap_heads(3072, 15), listed["raymap_heads"])
    decoding = official.VAE_DECODER_PREFIXES
    encoder = {n: shape for n, shape in listed["vae"].items() if not n.startswith(decoding)}
    assert len(encoder) == 86
    assert same(official.vae(VaeConfig()), encoder)


def test_lists_of_every_reference_case(golden_folder):
    shapes, checked = read(golden_folder, "shapes.json"), set()
    for case in read(golden_folder, "manifest.json")["cases"]:
        config, listed = case["config"], shapes.get(case["name"], {})
        tap = 15 if "hidden_dim" in config else 0
        trunk = TrunkConfig(**config.get("dit", {}), lora_rank=config.get("lora_rank", 0), tap=tap)
        width = config.get("hidden_dim", 48)
        features = config.get("feature_dim", trunk.dim)
        decoder = DecoderConfig(feature_dim=features, width=width, num_heads=4)
        base = config.get("base_dim") or config.get("rgb", {}).get("base_dim", 16)
        ours = {
            "dit": official.dit(trunk),
            "lora": official.lora(trunk),
            "vae": official.vae(VaeConfig(base_dim=base)),
            "projectors": official.projectors(decoder, 15),
        }
        for component, expected in listed.items():
            if isinstance(expected, dict):
                assert same(ours[component], expected), (case["name"], component)
                checked.add(component)
    assert checked == set(ours)


def test_diffusers_names(golden_folder):
    for file, renaming in (
        ("map_dit_diffusers.json", tables.TRUNK), ("map_vae_diffusers.json", tables.VAE)
    ):  # fmt: skip
        listed = read(golden_folder, file)
        ours = {n: d for n, d in listed.items() if not n.startswith(official.VAE_DECODER_PREFIXES)}
        assert len(ours) in (827, 86)
        assert {name: renaming.inside(name) for name in ours} == ours
        assert {diffusers: renaming.outside(diffusers) for diffusers in ours.values()} == {
            diffusers: name for name, diffusers in ours.items()
        }


def test_repackaged_names_and_shapes(golden_folder):
    listed = read(golden_folder, "reimplementation_tensors.json")
    for variant in ("k", "kfree"):
        lists = repackaged.sections(ModelConfig(variant=variant))
        for file, section in lists.items():
            key = file.replace(f"{variant}/", "<variant>/", 1)
            expected = {name: tuple(entry["shape"]) for name, entry in listed[key].items()}
            assert section.shapes == expected, file


def test_repackaged_values_come_from_the_right_rows(golden_folder):
    """The reference lists the official tensor and rows of each one."""
    config = ModelConfig(decoder=DecoderConfig(feature_dim=12, width=16, num_heads=4))
    given, parts = {}, {}
    for part in ("projectors", "raymap_heads"):
        section = official.sections(config)[part]
        given[part] = {name: torch.randn(shape) for name, shape in section.shapes.items()}
        runs = {name for name in given[part] if section.runs(name) and name not in section.computed}
        parts |= section.read({name: given[part][name] for name in runs})
    made = repackaged.sections(config)["k/projector/model.safetensors"].write(parts)
    listed = read(golden_folder, "reimplementation_tensors.json")[
        "<variant>/projector/model.safetensors"
    ]
    for name, entry in listed.items():
        if name == repackaged.RAY_FREQUENCIES:
            continue
        part, _, source = entry["official"].partition(": ")
        source, _, rows = source.partition(" rows ")
        expected = given.get(part, given["projectors"])[source]
        if rows:
            first = int(rows[1])
            expected = expected[first * 16 : (first + 1) * 16]
        assert torch.equal(made.pop(name), expected), name
    assert not made


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_decoder_names_are_those_of_the_running_module(changes):
    from acehand_core.ace.model.decoder import Decoder

    for config in (DecoderConfig(**changes), DecoderConfig(**SMALL, **changes)):
        with torch.device("meta"):
            running = Decoder(config).state_dict()
        assert state_shapes(ModelConfig(decoder=config))["decoder"] == shapes_of(running)


def test_encoder_names_are_those_of_the_running_modules():
    from acehand_core.ace.model.encoder.trunk import Trunk, adapter_parameters, add_adapters
    from acehand_core.ace.model.encoder.vae import VideoEncoder

    vae = VaeConfig(base_dim=8)
    assert state_shapes(ModelConfig(vae=vae))["vae"] == shapes_of(
        VideoEncoder(vae).vae.state_dict()
    )
    config = TrunkConfig(dim=48, num_heads=2, ffn_dim=64, num_layers=4, tap=1, lora_rank=4)
    trunk = Trunk(config)
    listed = state_shapes(ModelConfig(trunk=config))
    expected = {
        name: shape
        for name, shape in listed["trunk"].items()
        if not name.startswith("condition_embedder.")  # constants of the weights, kept as such
    }
    assert expected == shapes_of(trunk.state_dict())
    add_adapters(trunk)
    assert listed["adapters"] == shapes_of(dict(adapter_parameters(trunk)))


def test_accounting_is_the_papers():
    counted = account(ModelConfig())
    rows = list(counted.values())[:11]
    assert {row.name: (row.parameters, row.tensors) for row in rows} == {
        "dit": (5_001_609_408, 827),
        "vae_encoder": (149_637_088, 86),
        "patch_embedding": (1_821_696, 2),
        "lora": (161_218_560, 600),
        "lora_executed": (85_983_232, 320),
        "decoder_registered": (20_346_664, 236),
        "decoder_used": (12_286_773, 161),
        "ray_head": (9_219, 2),
        "output_head": (596_160, 3),
        "optimiser": (183_992_299, 843),
        "reached_by_gradient": (100_100_920, 485),
    }
    assert counted["live_trained"].parameters == counted["reached_by_gradient"].parameters
    assert len(table(counted)) == len(counted)
    shallow = account(ModelConfig(trunk=TrunkConfig(tap=7)))
    assert shallow["lora_executed"].parameters * 2 == counted["lora_executed"].parameters
    assert shallow["dit"] == counted["dit"]
    bare = account(ModelConfig(trunk=TrunkConfig(lora_rank=0)))
    assert bare["optimiser"].parameters == 183_992_299 - 161_218_560


@pytest.mark.parametrize("source", ["wan", "wan_frozen", "vae_latent", "rgb", "tiny"])
def test_parts_follow_the_feature_source(source):
    parts = set(state_shapes(ModelConfig(source=source)))
    expected = {
        "wan": {"vae", "trunk", "adapters"}, "wan_frozen": {"vae", "trunk"},
        "vae_latent": {"vae"}, "rgb": set(), "tiny": {"tiny"},
    }[source]  # fmt: skip
    assert parts == expected | {"decoder", "ray_head"}
