"""What keeps a run from starting is found before anything is loaded or written."""

import dataclasses
import json
import os
import signal

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("hydra")

from safetensors.torch import save_file

from acehand_core.ace.model.config import ModelConfig
from acehand_core.ace.model.weights import official
from acehand_core.ace.model.weights.own import load_own
from acehand_core.ace.training import batches, build, checkpoints
from acehand_core.ace.training.config import compose
from acehand_core.ace.training.loop import Run, train
from acehand_core.errors import AcehandError, InputError, OutputError, SchemaError
from helpers import tiny_model
from helpers.training_samples import HANDS, quiet, smoke, store

LATENTS = ["source=vae_latent", f"model.vae.base_dim={tiny_model.VAE.base_dim}",
           "data.window.aligned=true"]  # fmt: skip


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return store(tmp_path_factory.mktemp("data") / "train", frames=13)


def settings(clips, run, *more):
    return compose(smoke(clips, run, "validation.sources.synthetic.weight=0", *more))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["hand=mano"], "mano=FOLDER"),
        (["hand=mano", "mano=/nothing"], "are 'acehand', this run's 'mano'; use hand=acehand"),
        (LATENTS, r"data\.latent_cache=FOLDER"),
        ([*LATENTS, "data.latent_cache=cache"], r"start\.vae=FILE"),
        (["source=wan_frozen", "data.latent_cache=cache"], r"give start\.weights=MODEL, start\.b"),
        (["source=wan_frozen", "data.latent_cache=cache", "start.base=b", "start.caption=c"],
         r"start\.vae=FILE"),
    ],
)  # fmt: skip
def test_what_a_run_lacks_is_named_before_anything_loads(
    clips, tmp_path, monkeypatch, more, message
):
    def refuse(*_):
        raise AssertionError("weights were read")

    monkeypatch.setattr(build, "read_start", refuse)
    with pytest.raises(InputError, match=message):
        train(settings(clips, tmp_path / "run", *more), quiet)
    assert not list(tmp_path.iterdir())


def test_weights_without_a_video_encoder_are_refused(clips, tmp_path):
    config = settings(clips, tmp_path / "run", *LATENTS, f"data.latent_cache={tmp_path / 'cache'}")
    start = dataclasses.replace(build.random_weights(config.model), vae=None)
    with pytest.raises(InputError, match="no video encoder"):
        Run(config, quiet, start)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_not_replaced_by_a_cpu(clips, tmp_path):
    with pytest.raises(InputError, match="device is 'cuda'"):
        train(settings(clips, tmp_path / "run", "device=cuda"), quiet)


def test_folded_latents_need_the_video_encoder_alone(clips, tmp_path):
    shapes = official.vae(tiny_model.VAE)
    vae = {name: 0.05 * torch.randn(shape) for name, shape in shapes.items()}
    save_file(vae, tmp_path / "vae.safetensors")
    report = train(
        settings(clips, tmp_path / "run", *LATENTS, f"data.latent_cache={tmp_path / 'cache'}",
                 f"start.vae={tmp_path / 'vae.safetensors'}", "optim.steps=1"),
        quiet,
    )  # fmt: skip
    assert report.steps == 1 and len(list((tmp_path / "cache").iterdir())) == 2
    weights = load_own(report.weights)
    assert weights.config.source == "vae_latent" and weights.trunk is None
    assert weights.vae.keys() == build.random_weights(ModelConfig(source="vae_latent")).vae.keys()


def test_a_folder_of_something_else_is_left_alone(clips, tmp_path):
    run = tmp_path / "mine"
    (run / "weights").mkdir(parents=True)
    (run / "config.json").write_text('{"name": "mine", "optim": 1}')
    (run / "weights" / "my.txt").write_text("mine")
    for config in ('{"name": "mine", "optim": 1}', "[[]]", "1", "not json", None):
        if config is None:
            (run / "config.json").unlink()
        else:
            (run / "config.json").write_text(config)
        before = sorted((p, p.stat().st_mtime_ns) for p in run.rglob("*"))
        with pytest.raises(OutputError, match="not empty"):
            train(settings(clips, run), quiet)
        assert before == sorted((p, p.stat().st_mtime_ns) for p in run.rglob("*"))


def test_a_run_killed_before_its_provenance_resumes(clips, tmp_path):
    run = tmp_path / "run"
    config = settings(clips, run, "optim.steps=1")
    run.mkdir()
    (run / ".config.json.partial-1.json").write_text("{")
    (run / "config.json").write_text(json.dumps(config.to_json()))
    assert train(config, quiet).steps == 1 and checkpoints.listed(run)


class _Dies(batches.ClipReader):
    """A reader whose process is killed, as by a system short of memory."""

    def read(self, samples):
        os.kill(os.getpid(), signal.SIGKILL)


def _stream(clips, kind=batches.ClipReader):
    config = settings(clips, "run", "data.workers=1")
    stores = batches.open_stores(config.data.used())
    mixture = batches.make_mixture(config.data, config.data.used(), stores)
    plan = batches.SamplingPlan(mixture, 0, 2, 1, 1, 1, 0)
    return batches.batches(kind(stores, "tiny", HANDS), plan, 0, 1)


@pytest.mark.slow
def test_errors_of_loader_processes_are_one_sentence(tmp_path):
    clips = store(tmp_path / "one", clips=1, frames=13)
    (clips / "clips" / "clip0" / "video.mp4").unlink()
    with pytest.raises(InputError) as caught:
        next(_stream(clips))
    assert "video.mp4" in str(caught.value) and len(str(caught.value).splitlines()) == 1
    path = clips / "clips" / "clip0" / "hands.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SchemaError) as caught:
        next(_stream(clips))
    assert "hands.parquet" in str(caught.value) and "Traceback" not in str(caught.value)


@pytest.mark.slow
def test_a_killed_loader_process_is_reported(clips):
    with pytest.raises(AcehandError, match=r"fewer data\.workers"):
        next(_stream(clips, _Dies))
