"""Weights of a run at any checkpoint: unfinished, from a backbone, and of a video transformer."""

import dataclasses
import hashlib
import json

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("hydra")

from safetensors.torch import load_file

from acehand_core.ace.labelled.clips.schema import StoreInfo
from acehand_core.ace.model.config import InferenceConfig
from acehand_core.ace.model.decoder import Decoder
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights import own
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.settings import AceSettings
from acehand_core.ace.training import build, checkpoints
from acehand_core.ace.training.config import TrainConfig, compose
from acehand_core.ace.training.loop import Run, train
from acehand_core.cli.main import main as acehand
from acehand_core.errors import InputError
from acehand_core.trackers.base import resolved_name
from acehand_core.user_files import structured
from helpers import tiny_model
from helpers.training_samples import quiet, smoke, store

SIZES = tiny_model.MODEL


def run(*words):
    return acehand(["weights", *map(str, words)])


def test_weights_of_an_unfinished_run(tmp_path, capsys):
    folder = tmp_path / "run"
    more = ("checkpoints.whole=false", "checkpoints.every=1")
    settings = compose(smoke(store(tmp_path / "clips"), folder, *more))
    assert train(settings, quiet, stop_at=2).weights is None
    ours = ("--to", "acehand", "--output")
    assert run("convert", folder, *ours, tmp_path / "newest", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    one = folder / "checkpoints" / "step-00000001"
    assert run("convert", one, *ours, tmp_path / "one") == 0
    assert run("convert", folder, "--step", 1, *ours, tmp_path / "same") == 0
    for name, step in (("newest", 2), ("one", 1), ("same", 1)):
        trained = load_file(folder / f"checkpoints/step-{step:08d}/trained.safetensors")
        model = AceModel.from_weights(load_weights(tmp_path / name))
        state = {f"model.{key}": value for key, value in model.state_dict().items()}
        assert trained.keys() <= state.keys()
        for key, value in trained.items():
            assert torch.equal(state[key], value), key
    assert run("convert", folder, "--step", 7, *ours, tmp_path / "none") == 2
    assert "no checkpoint 7; there: 1, 2" in capsys.readouterr().err
    assert run("convert", tmp_path, *ours, tmp_path / "none") == 2
    assert run("convert", one, "--to", "official", "--output", tmp_path / "none") == 2
    assert "--to acehand" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def settings(folder, *sources, more=()):
    """A run of one step on stores that are (name, maker); the folder of each is its name."""
    names = [name for name, _ in sources]
    for name, maker in sources:
        if not (folder / name).exists():
            store(folder / name, name=name, made_by=maker)
    off = [] if "synthetic" in names else ["data.sources.synthetic.weight=0"]
    return compose([
        "experiment=smoke", *(f"++data.sources.{n}.root={folder / n}" for n in names), *off,
        f"run={folder / '-'.join((*names, 'run'))}", "optim.steps=1",
        "optim.warmup_steps=0", "data.window.latents=2", *more,
    ])  # fmt: skip


def chosen(weights):
    """What ``--tracker auto`` takes where these weights are configured."""
    return resolved_name("auto", {"ace": AceSettings(weights)})


SYNTHETIC, REAL = ("synthetic", "acehand synth"), ("arctic", "acehand data convert")


def test_weights_say_what_they_were_trained_on_and_auto_heeds_it(tmp_path, capsys, monkeypatch):
    """Two tiny models: of rendered clips, and of a fabricated store of a recorded dataset."""
    made = {}
    for source, kind, tracker in ((SYNTHETIC, "synthetic", "mediapipe"), (REAL, "real", "ace")):
        report = train(settings(tmp_path, source), quiet)
        exported = tmp_path / f"exported-{kind}"
        assert run("convert", report.run, "--to", "acehand", "--output", exported) == 0
        for folder in (report.weights, report.best / "weights", exported):
            assert chosen(folder) == tracker, folder
        capsys.readouterr()
        assert run("inspect", exported, "--json") == 0
        printed = capsys.readouterr()
        assert f"trained on: {source[0]} ({kind}, 2 clips, store " in printed.err
        (entry,) = json.loads(printed.out)["training_data"]
        digest = hashlib.sha256((tmp_path / source[0] / "store.json").read_bytes()).hexdigest()
        assert (entry["kind"], entry["store_sha256"]) == (kind, digest)
        made[kind] = exported

    named = AceSettings(made["synthetic"])
    with pytest.raises(InputError, match=r"synthetic.*`tracker=ace`"):
        named.with_environment("auto")
    assert named.with_environment("ace") == (named, "")
    # Set for all commands: those run without, with a note.
    monkeypatch.setenv("ACEHAND_WEIGHTS", str(made["synthetic"]))
    unchanged, note = AceSettings().with_environment("auto")
    assert unchanged == AceSettings() and "synthetic" in note and "`tracker=ace`" in note
    monkeypatch.setenv("ACEHAND_WEIGHTS", str(made["real"]))
    assert AceSettings().with_environment("auto") == (AceSettings(made["real"]), "")


def test_weights_say_how_they_were_trained_to_be_run(tmp_path):
    """The solver, the hand model, the width of the pictures and the length of windows."""
    ways = {
        "rays": ["model.variant=kfree", "solver=rays"],
        "fitted": ["model.variant=kfree", "solver=fitted", "solver.fit_guards=paper"],
        "direct": ["solve=direct", "solver.ray_cells=edges"],
    }
    for name, more in ways.items():
        more = [f"run={tmp_path / name}", *more]
        report = train(settings(tmp_path, SYNTHETIC, more=more), quiet)
        exported = tmp_path / f"exported-{name}"
        assert run("convert", report.run, "--to", "acehand", "--output", exported) == 0
        expected = InferenceConfig(
            bearings={"rays": "rays", "fitted": "pinhole", "direct": "intrinsics"}[name],
            solve="direct" if name == "direct" else "mixed", fallback="released",
            hand_model="acehand", encode_width=64, window_latents=2,
            fit_guards="paper" if name == "fitted" else "excess",
            ray_cells="edges" if name == "direct" else "centres",
        )  # fmt: skip
        for folder in (report.weights, exported):
            assert load_weights(folder).inference == expected
    # Pictures of two widths: the one to run at is not known.
    wide = settings(tmp_path, SYNTHETIC, REAL, more=["++data.sources.arctic.encode_width=32"])
    found = load_weights(train(wide, quiet).weights).inference
    assert found.encode_width is None and found.window_latents == 2


def test_what_a_run_started_from_counts_as_well(tmp_path):
    first = train(settings(tmp_path, SYNTHETIC), quiet).weights
    on = train(settings(tmp_path, REAL, more=[f"start.weights={first}"]), quiet).weights
    assert [(s.name, s.kind) for s in load_weights(on).training_data] == [
        ("synthetic", "synthetic"), ("arctic", "real"),
    ]  # fmt: skip
    assert chosen(on) == "ace"
    # A start without a record is not taken for rendered, nor for recorded.
    own.save_own(tmp_path / "mute", dataclasses.replace(load_weights(first), training_data=None))
    assert chosen(tmp_path / "mute") == "mediapipe"
    more = [f"start.weights={tmp_path / 'mute'}", f"run={tmp_path / 'from-mute'}"]
    on = train(settings(tmp_path, SYNTHETIC, more=more), quiet).weights
    assert [s.kind for s in load_weights(on).training_data] == ["unknown", "synthetic"]
    assert chosen(on) == "mediapipe"


@pytest.mark.parametrize(
    ("name", "maker", "kind"),
    [
        (*SYNTHETIC, "synthetic"),
        (*REAL, "real"),
        ("rhd", "acehand data convert", "synthetic"),  # the Rendered Hand Pose dataset
        ("arctic", "somebody", "unknown"),
    ],
)
def test_which_stores_are_rendered(name, maker, kind):
    assert StoreInfo(name, "train", maker, "none").pictures == kind


def test_weights_on_a_backbone_reach_the_released_layout(tmp_path):
    settings = {
        "hand": "acehand", "model": dataclasses.asdict(SIZES), "start": {"random": True},
        "optim": {"precision": "float32", "processes": 1},
    }  # fmt: skip
    config = structured(TrainConfig, settings, "settings")
    model = build.build_model(config, build.read_start(SIZES, config.start))
    trained = {
        f"model.{name}": torch.randn(parameter.shape)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(config.to_json()))
    checkpoints.save(tmp_path / "run", 3, None, trained, {}, config.checkpoints)
    assert run("convert", tmp_path / "run", "--to", "acehand", "--output", tmp_path / "own") == 0
    loaded = load_weights(tmp_path / "own")
    for name, value in loaded.adapters.items():
        assert torch.equal(value, trained[f"model.source.{name}"]), name
    for name, value in loaded.decoder.items():
        assert torch.equal(value, trained[f"model.decoder.{name}"]), name
    assert run("convert", tmp_path / "own", "--to", "official", "--output", tmp_path / "r") == 0
    assert list((tmp_path / "r").glob("ace_ego_hand*.pt"))


@pytest.mark.parametrize("source", ["vjepa2", "videomae"])
def test_what_a_video_transformer_taught_is_kept(tmp_path, source):
    """The frozen transformer is not written; decoder and ray head are."""
    sizes = dataclasses.replace(SIZES, source=source)
    model = AceModel(sizes, None, Decoder(sizes.decoder))
    run = Run.__new__(Run)  # a whole one would need the transformer's files
    run.config, run.start = TrainConfig(model=sizes), None
    run._write_weights(tmp_path / "own", model)
    loaded = load_weights(tmp_path / "own")
    assert loaded.config == sizes
    for part in ("decoder", "ray_head"):
        for name, value in getattr(model, part).state_dict().items():
            assert torch.equal(getattr(loaded, part)[name], value), name
