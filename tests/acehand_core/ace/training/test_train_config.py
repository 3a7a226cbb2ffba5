"""The recipe against the paper, number by number; every ablation composes; typos are refused."""

import functools

import pytest
import torch

pytest.importorskip("hydra")

from acehand_core.ace.model.config import SolveOptions
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.encoder.sources import make_source
from acehand_core.ace.model.encoder.video_backbones import VideoMae, VJepa2
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.training.config import CONF, TrainConfig, compose
from acehand_core.ace.training.main import main as entry_point
from acehand_core.ace.training.step import factor, rate
from acehand_core.errors import AcehandError
from acehand_core.user_files import structured

#: Transcribed from the paper: appendix "Optimization", "Loss Weights", "Architecture", "Datasets".
PAPER = {
    "optim.steps": 20_000, "optim.warmup_steps": 200, "optim.weight_decay": 1e-2,
    "optim.gradient_clip": 1.0, "optim.lr_decoder": 2e-4, "optim.lr_lora": 1e-4,
    "optim.lr_patch_embedding": 2e-5, "optim.clips_per_process": 4, "optim.processes": 16,
    "optim.batch": 64, "optim.accumulation": 1, "optim.precision": "bfloat16",
    "losses.rotation_geodesic": 1, "losses.rotation_matrix": 1, "losses.shape": 0.1,
    "losses.joint_relative": 10, "losses.joint_camera": 5, "losses.joint_wrist": 2,
    "losses.anchors": 1, "losses.reprojected": 1, "losses.image_wrist": 0.5,
    "losses.translation": 1, "losses.presence": 0.5, "losses.visible": 0.25,
    "losses.acceleration": 0.5, "losses.rays": 1, "losses.fit": 0,
    "data.window.latents": 21, "data.window.image_frames": 5, "validation.every": 500,
    "model.source": "wan", "model.variant": "k", "model.trunk.num_layers": 30,
    "model.trunk.dim": 3072, "model.trunk.ffn_dim": 14336, "model.trunk.in_channels": 148,
    "model.trunk.out_channels": 48, "model.trunk.tap": 15, "model.trunk.sigma": 0,
    "model.trunk.lora_rank": 64, "model.trunk.lora_alpha": 64, "model.decoder.width": 384,
    "model.decoder.num_layers": 4, "model.decoder.num_registers": 4,
    "model.decoder.ray_frequencies": 8, "model.decoder.spatial_grid": 16,
    "solver.bearings": "intrinsics", "solver.solve": "mixed",
}  # fmt: skip
WEIGHTS = {"arctic": 14, "hot3d": 18, "h2o": 10, "oakink2": 14, "reinterhand": 16,
           "freihand": 14, "rhd": 14}  # fmt: skip
WIDTHS = {"arctic": 672, "hot3d": 480, "h2o": 832, "oakink2": 832}
KFREE = {
    "model.variant": "kfree", "solver.bearings": "pinhole", "losses.fit": 5,
    "losses.fit_warmup_steps": 500, "optim.processes": 8, "optim.batch": 32,
}  # fmt: skip


@functools.cache
def row(overrides):
    """A recipe that several tests read; composing takes a tenth of a second."""
    return compose(overrides.split())


def composed(experiment):
    return row(f"experiment={experiment}")


def look_up(config, path):
    for name in filter(None, path.split(".")):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(("experiment", "changes"), [("standard", {}), ("kfree", KFREE)])
def test_the_recipe_is_the_papers(experiment, changes):
    config = composed(experiment)
    for path, expected in {**PAPER, **changes}.items():
        assert look_up(config, path) == expected, path
    weights = {name: source.weight for name, source in config.data.sources.items()}
    assert weights == WEIGHTS and sum(weights.values()) == 100
    for name, width in WIDTHS.items():
        assert config.data.sources[name].encode_width == width
    # Validation is off until it gets a root, and then encodes as training does.
    assert config.validation.sources.keys() == config.data.sources.keys()
    for name, source in config.validation.sources.items():
        assert source.root is None
        assert source.encode_width == config.data.sources[name].encode_width


def test_every_setting_of_the_recipe_is_in_the_table_or_named_here():
    """A new setting must be compared with the paper, or be listed as ours."""
    ours = {
        "optim.beta1", "optim.beta2", "optim.checkpointing", "optim.max_skipped",
        "losses.fit_warmup_steps", "losses.joint_readings", "solver.fallback",
        "solver.fit_guards", "solver.ray_cells",
    }  # fmt: skip
    config = composed("standard").to_json()
    for group in ("optim", "losses", "solver"):
        for name in config[group]:
            assert f"{group}.{name}" in PAPER or f"{group}.{name}" in ours, name


def test_rates_over_the_run():
    optim = composed("standard").optim
    assert rate(optim, "decoder", 199) == 2e-4
    assert rate(optim, "lora", 0) == pytest.approx(1e-4 / 200)
    assert factor(optim, 200) == 1.0 and factor(optim, 10_100) == pytest.approx(0.5)
    assert rate(optim, "patch_embedding", 19_999) < 1e-12
    steps = [factor(optim, s) for s in range(200, 20_000, 100)]
    assert steps == sorted(steps, reverse=True) and len(set(steps)) == len(steps)


def test_ablations_of_the_paper():
    assert row(f"{VDM} source=vae_latent").model.decoder.feature_dim == 192
    only = compose(["mixture=arctic", "data.sources.arctic.root=x"]).data.used()
    assert set(only) == {"arctic"}
    # A source that no recipe has, and whose settings are checked like any other's.
    assert compose(["+data.sources.mine.root=x"]).data.sources["mine"].weight == 1
    watched = compose(["validation.sources.arctic.root=x"]).validation.sources["arctic"]
    assert watched.root == "x" and watched.encode_width == 672
    rays = compose(["experiment=kfree", "solver=rays"])
    assert rays.losses.fit == 0 and rays.solver.bearings == "rays"
    # Ours, unless the paper's guards or the released reading of the field are asked for.
    options = composed("kfree").solver
    assert options == SolveOptions("pinhole", "mixed", "released", "excess", "centres")
    papers = compose(["experiment=kfree", "solver.fit_guards=paper", "solver.ray_cells=edges"])
    assert papers.solver == SolveOptions("pinhole", "mixed", "released", "paper", "edges")


#: Every row of the paper's tables of ablations: overrides; then bearings, solve, weight of L_fit,
#: number of sources, steps, clips per step; and what else the row changes.
VDM = "mixture=arctic optim.steps=10000"
DECODER = "experiment=kfree solver=rays"
TAP = "mixture=arctic_hot3d solve=inverse optim.processes=4"
OF_VDM = ("intrinsics", "mixed", 0, 1, 10_000, 64)
OF_DECODER = ("rays", "mixed", 0, 7, 20_000, 32)
OF_HALF = ("rays", "mixed", 0, 7, 20_000, 16)
OF_TAP = ("intrinsics", "inverse", 0, 2, 20_000, 16)
OF_STANDARD = ("intrinsics", "mixed", 0, 7, 20_000, 64)
ROWS = [
    (VDM, OF_VDM, {"model.source": "wan"}),
    (f"{VDM} lora=none", OF_VDM, {"model.source": "wan_frozen"}),
    (f"{VDM} source=vjepa2", OF_VDM, {"model.source": "vjepa2"}),
    (f"{VDM} source=videomae", OF_VDM, {"model.source": "videomae"}),
    (f"{VDM} source=vae_latent", OF_VDM, {"model.source": "vae_latent"}),
    (f"{VDM} source=rgb", OF_VDM, {"model.source": "rgb"}),
    ("experiment=standard", OF_STANDARD, {"model.variant": "k"}),
    (DECODER, OF_DECODER, {"model.variant": "kfree"}),
    (f"{DECODER} solve=inverse", ("rays", "inverse", 0, 7, 20_000, 32), {}),
    (f"{DECODER} solve=direct", ("rays", "direct", 0, 7, 20_000, 32), {}),
    (f"{DECODER} decoder=no_spatial_encoding", OF_DECODER,
     {"model.decoder.spatial_encoding": False}),
    (f"{DECODER} decoder=pooled optim.processes=4", OF_HALF, {"model.decoder.queries": "pooled"}),
    (f"{DECODER} decoder=shape_from_registers", OF_DECODER,
     {"model.decoder.shape_from": "registers"}),
    (f"{DECODER} decoder=absolute optim.processes=4", OF_HALF,
     {"model.decoder.temporal_encoding": "absolute"}),
    (f"{TAP} tap=block10", OF_TAP, {"model.trunk.tap": 10}),
    (f"{TAP} tap=block15", OF_TAP, {"model.trunk.tap": 15}),
    (f"{TAP} tap=block20", OF_TAP, {"model.trunk.tap": 20}),
    (f"{TAP} tap=block24", OF_TAP, {"model.trunk.tap": 24}),
    ("sigma=clean", OF_STANDARD, {"model.trunk.sigma": 0}),
    ("sigma=half", OF_STANDARD, {"model.trunk.sigma": 0.5}),
    ("experiment=kfree", ("pinhole", "mixed", 5, 7, 20_000, 32), {"losses.fit_warmup_steps": 500}),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "expected", "changes"), ROWS, ids=[r[0] for r in ROWS])
def test_rows_of_the_papers_tables(overrides, expected, changes):
    config = row(overrides)
    sources = sum(source.weight > 0 for source in config.data.sources.values())
    assert expected == (
        config.solver.bearings, config.solver.solve, config.losses.fit, sources,
        config.optim.steps, config.optim.batch,
    )  # fmt: skip
    for path, value in changes.items():
        assert look_up(config, path) == value, path
    docs = (CONF.parents[3] / "docs" / "training.md").read_text("utf-8")
    assert f"`{overrides}`" in docs  # what is documented is what is tested


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("optim.steps=many", "optim.steps: .*'many'"),
        ("optim.stepz=1", r"'optim.stepz'.*'steps'"),
        ("sourc=rgb", r"'sourc'; valid: .*'source'"),
        ("model.trunk.tapp=3", r"'model.trunk.tapp'.*'tap'"),
        ("data.sources.arctic.rot=x", "sources.arctic.rot'; valid: encode_width, root, weight"),
        ("data.sources.mine.root=x", r"valid: arctic, .*\+data.sources.mine.root="),
        ("optim.steps=null", "optim.steps: null"),
        ("+data.sources.mine.rot=x", "mine.rot.*valid: encode_width, root, weight"),
        ("optim=3", "optim: a group"),
        ("+optim.stepz=1", "optim.stepz.*'steps'"),
        ("experiment=kfree solver=intrinsics", "valid: pinhole"),
        ("optim.beta1=2", r"optim\.beta1 is 2\.0"),
    ],
)
def test_what_is_wrong_is_named_before_anything_loads(arguments, named):
    with pytest.raises(AcehandError, match=named):
        compose(arguments.split())


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("optim.precision", "fp8", "valid: bfloat16, float32"),
        ("optim.steps", 0, "is 0; .*above 0"),
        ("losses.joint_readings", "all", "is 'all'; valid: both, direct, hand"),
        ("model.decoder.queries", "joints", "valid: joint, pooled.*'joint'"),
        ("model.trunk.tap", 40, "tap 40: valid: 0 to 29"),
        ("data.window.latents", 1, "is 1.*2 or more"),
        ("hand", "robot", "valid: acehand, mano"),
        ("device", "banana", "is 'banana'; valid: auto, cpu, cuda"),
        ("seed", -1, "is -1; valid: 0 to"),
        ("optim.beta1", 2.0, r"is 2\.0; .*0 to below 1"),
        ("optim.lr_decoder", float("inf"), "is inf"),
        ("optim.warmup_steps", 50_000, r"is 50000 of optim\.steps 20000"),
        ("data.workers", -1, "is -1"),
        ("losses.rays", float("inf"), "is inf"),
        ("losses.fit", 5.0, r"is 5\.0 with solver\.bearings"),
        ("run", "", "is ''"),
        ("data.sources.arctic.weight", -1.0, "is -1"),
        ("data.sources.arctic.weight", float("inf"), "is inf"),
        ("validation.sources.arctic.weight", -1.0, "is -1"),
        ("solver.ray_cells", "centers", "is 'centers'.*'centres'"),
        ("data.window.weighting", "foo", "is 'foo'; valid: .*recording"),
        ("data.window.dataset_per", "gpu", "valid: process, step"),
        ("data.window.image_frames", -3, "is -3"),
    ],
)
def test_a_value_that_is_not_valid_is_named(path, value, named):
    config = composed("standard").to_json()
    *groups, name = path.split(".")
    look_up(config, ".".join(groups))[name] = value
    with pytest.raises(AcehandError, match=rf"{name}.*{named}|{named}"):
        structured(TrainConfig, config, "settings")


def test_the_command_prints_the_recipe_or_one_line_of_what_is_wrong(monkeypatch, capsys):
    def refuse(*_):
        raise AssertionError("training was started")

    monkeypatch.setattr("acehand_core.ace.training.loop.train", refuse)
    monkeypatch.setattr("sys.argv", ["acehand-train", "experiment=standard", "--cfg", "job"])
    entry_point()
    printed = capsys.readouterr().out
    assert "lr_patch_embedding: 2.0e-05" in printed and "weight: 18" in printed
    assert structured(TrainConfig, composed("standard").to_json(), "settings") == composed(
        "standard"
    )
    for arguments, named in (
        (["optim.stepz=1"], "optim.stepz"),
        (["experiment=standart"], "standart"),
        (["optim.steps=0", "--cfg", "job"], "optim.steps is 0"),
        (["optim.steps=(", "--cfg", "all"], "optim.steps"),
    ):
        monkeypatch.setattr("sys.argv", ["acehand-train", *arguments])
        with pytest.raises(SystemExit) as stop:
            entry_point()
        printed = capsys.readouterr()
        (line,) = printed.err.splitlines()
        assert stop.value.code == 2 and printed.out == ""
        assert line.startswith("acehand-train: ") and named in line


#: Of the published weights that the rows name: V-JEPA 2 ViT-L and VideoMAE ViT-L.
VIT_L = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}


@pytest.mark.few(6)
@pytest.mark.parametrize("overrides", [row[0] for row in ROWS])
def test_rows_of_the_papers_tables_are_built(overrides):
    """Every source, tap, sigma, decoder and solver at its declared sizes, without values."""
    pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    model = row(overrides).model
    with torch.device("meta"):
        if model.source == "vjepa2":
            source = VJepa2(transformers.VJEPA2Model(transformers.VJEPA2Config(**VIT_L)))
        elif model.source == "videomae":
            config = transformers.VideoMAEConfig(**VIT_L, intermediate_size=4096)
            source = VideoMae(transformers.VideoMAEModel(config))
        else:
            source = make_source(model)
        built = AceModel(model, source, Decoder(model.decoder))
    assert built.source.feature_dim == built.ray_head.in_channels == model.decoder.feature_dim
