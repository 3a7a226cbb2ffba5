"""Runs: resumed, killed, split over processes, and what they leave."""

import dataclasses
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("hydra")

from accelerate import Accelerator
from safetensors.torch import load_file

from acehand_core import user_files
from acehand_core.ace.model.batch import ClipBatch
from acehand_core.ace.model.config import SolveOptions
from acehand_core.ace.model.network import AceModel
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.ace.training import checkpoints, config
from acehand_core.ace.training.batches import Batch
from acehand_core.ace.training.config import compose
from acehand_core.ace.training.loop import Run, train
from acehand_core.ace.training.losses import (
    TERMS,
    LossWeights,
    Term,
    absolute,
    counts_of,
    term_sums,
    total,
)
from acehand_core.ace.training.step import DivergedError, TrainingModel, validate
from acehand_core.errors import InputError, OutputError, SchemaError
from helpers.training_samples import HANDS, quiet, smoke, store, targets, truth


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two clips to learn from and one to watch."""
    root = tmp_path_factory.mktemp("data")
    store(root / "train")
    store(root / "val", clips=1, seed=9)
    return root


def overrides(data, run, *more):
    # Three windows do not divide by two processes.
    watched = f"validation.sources.synthetic.root={data / 'val'}"
    return smoke(data / "train", run, watched, "validation.windows=3", *more)


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def starts_of(run):
    return json.loads((run / "provenance.json").read_text())["starts"]


def moments_of(run):
    return load_file(checkpoints.listed(run)[-1].path / "optimizer.safetensors")


def final(run):
    return load_file(checkpoints.listed(run)[-1].path / "trained.safetensors")


def assert_same(a, b, tolerance=0.0):
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=tolerance, msg=name)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """An uninterrupted run of four steps."""
    run = tmp_path_factory.mktemp("whole") / "run"
    report = train(compose(overrides(data, run)), quiet)
    return run, report


def test_two_steps_and_two_more_are_four(data, tmp_path, whole):
    run = tmp_path / "run"
    settings = compose(overrides(data, run))
    assert train(settings, quiet, stop_at=2).weights is None
    report = train(settings, quiet)
    assert_same(final(run), final(whole[0]))
    assert report.loss == whole[1].loss
    assert rows_of(run) == rows_of(whole[0])
    assert [row["step"] for row in rows_of(run)] == [1, 2, 2, 3, 4, 4]


def test_a_run_describes_itself(data, whole):
    run, report = whole
    config = json.loads((run / "config.json").read_text())
    assert config["optim"]["steps"] == 4 and config["losses"]["joint_relative"] == 10
    (facts,) = starts_of(run)
    assert facts["seed"] == 0 and facts["versions"]["torch"]
    assert facts["data"]["synthetic"]["clips"] == 2
    assert len(facts["data"]["synthetic"]["clips_sha256"]) == 64
    assert list((run / "tensorboard").iterdir())
    model = AceModel.from_weights(load_weights(report.weights))
    best = load_file(report.best / "trained.safetensors")
    torch.testing.assert_close(
        model.decoder.state_dict()["final_norm.weight"], best["model.decoder.final_norm.weight"]
    )
    last = AceModel.from_weights(load_weights(run / "weights-last")).decoder.state_dict()
    for name, value in last.items():  # the last step's, whichever was the best
        if f"model.decoder.{name}" in final(run):
            assert torch.equal(value, final(run)[f"model.decoder.{name}"]), name
    assert {"train/rot_orient", "gradient_norm", "rate/decoder"} <= rows_of(run)[0].keys()


def _child(arguments, rank, world, port):
    """A process of its own."""
    if world > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    torch.set_num_threads(1)
    train(compose(arguments), quiet)


def _launch(arguments, world=1):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")  # what it imports, it imports once
    context.set_forkserver_preload(["acehand_core.ace.training.main"])
    processes = []
    for rank in range(world):
        arguments_of = (arguments, rank, world, port)
        processes.append(context.Process(target=_child, args=arguments_of, daemon=True))
        processes[-1].start()
    return processes


#: Their true gradient is zero (a shift of all joints, of all keys), so AdamW steps along rounding.
NO_GRADIENT = ("head_joint_3d.3.bias", "key.bias", "in_proj_bias")


def assert_equivalent(run, reference):
    """The same run up to the order of sums."""
    for mine, other in zip(rows_of(run), rows_of(reference), strict=True):
        for name, value in other.items():
            close = value if isinstance(value, str) else pytest.approx(value, rel=2e-3, abs=1e-4)
            assert mine[name] == close, name
    found, expected = final(run), final(reference)
    first, second = ({name: v.shape for name, v in moments_of(r).items()} for r in (run, reference))
    assert first == second
    kept = [name for name in expected if not name.endswith(NO_GRADIENT)]
    moved = total = 0
    for name in kept:
        difference = (found[name] - expected[name]).abs()
        moved, total = moved + int((difference > 1e-5).sum()), total + difference.numel()
        assert difference.max() < 5e-4, name
    assert moved < 0.01 * total


@pytest.mark.slow
def test_two_processes_are_one_with_twice_the_batch(data, tmp_path, whole):
    split = ["optim.processes=2", "optim.clips_per_process=1"]
    processes = _launch(overrides(data, tmp_path / "run", *split), 2)
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    assert_equivalent(tmp_path / "run", whole[0])


def test_accumulation_is_a_larger_batch(data, tmp_path, whole):
    split = ["optim.accumulation=2", "optim.clips_per_process=1"]
    train(compose(overrides(data, tmp_path / "run", *split)), quiet)
    assert_equivalent(tmp_path / "run", whole[0])


@pytest.mark.slow
def test_killed_at_random_moments(data, tmp_path, whole):
    run, dice, kills = tmp_path / "run", random.Random(5), []
    arguments = overrides(data, run, "checkpoints.every=1")
    for target in ("half-written", "checkpoint", "anywhere"):
        (process,) = _launch(arguments)
        before, wait = len(checkpoints.listed(run)), dice.uniform(0.1, 0.6)
        started = time.monotonic()
        while process.is_alive() and time.monotonic() - started < 30:
            names = [path.name for path in (run / checkpoints.FOLDER).glob("*")]
            if {
                "half-written": any(name.startswith(".step") for name in names),
                "checkpoint": len(names) > before,
                "anywhere": time.monotonic() - started > wait,
            }[target]:
                process.kill()
                kills.append(target)
                break
            time.sleep(0.001)
        process.join(10)
    train(compose(arguments), quiet)
    assert "half-written" in kills
    assert_same(final(run), final(whole[0]))
    assert not list((run / checkpoints.FOLDER).glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_saves_and_resumes_exactly(data, tmp_path, whole, number, code):
    """As Slurm does before a job's end: the signal goes to all processes, loaders included."""
    run = tmp_path / "run"
    arguments = overrides(data, run, "data.workers=1")
    command = [sys.executable, "-m", "acehand_core.ace.training.main", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None and not (run / "tensorboard").exists():  # the steps begin
        time.sleep(0.01)
    os.killpg(process.pid, number)
    printed = process.communicate(timeout=120)[1]
    assert process.returncode == code, printed
    saved = checkpoints.listed(run)[-1]
    assert saved.step < 4 and f"stopped after step {saved.step}, saved" in printed
    train(compose(arguments), quiet)
    assert_same(final(run), final(whole[0]))


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(data, tmp_path):
    run = tmp_path / "run"
    split = ["optim.processes=2", "optim.clips_per_process=1", "optim.steps=400"]
    processes = _launch(overrides(data, run, *split, "optim.warmup_steps=1"), 2)
    while processes[0].is_alive() and not (run / "metrics.jsonl").exists():
        time.sleep(0.01)
    os.kill(processes[1].pid, signal.SIGTERM)
    for process in processes:
        process.join(120)
        assert process.exitcode == 0  # without acehand-train, which makes a code of the report
    (saved,) = checkpoints.listed(run)
    assert 0 < saved.step < 400


def test_another_configuration_is_not_resumed(data, tmp_path):
    run = tmp_path / "run"
    train(compose(overrides(data, run)), quiet, stop_at=2)
    with pytest.raises(InputError, match=r"optim\.lr_decoder: 0\.001 then, 0\.1 now"):
        train(compose(overrides(data, run, "optim.lr_decoder=0.1")), quiet)
    printed = []
    calmer = overrides(data, run, "optim.lr_decoder=0.0005", "data.leave_out=[synthetic/clip1]")
    train(compose(calmer), lambda stage, *_: printed.append(stage), stop_at=3)
    assert any("optim.lr_decoder: 0.001 then, 0.0005 now" in text for text in printed)
    changes = starts_of(run)[-1]["changes"]
    assert len(changes) == 2 and "data.leave_out: None then, ['synthetic/clip1'] now" in changes
    with pytest.raises(InputError, match=r"data\.leave_out: \['synthetic/clip1'\] then, None now"):
        train(compose(overrides(data, run, "optim.lr_decoder=0.0005")), quiet)
    with pytest.raises(InputError, match="'synthetic/absent'"):
        train(compose([*overrides(data, run), "data.leave_out=[synthetic/absent]"]), quiet)
    with pytest.raises(InputError, match=r"clips per step: 2 .*3"):
        train(compose([*calmer, "optim.clips_per_process=3"]), quiet)
    newest = checkpoints.listed(run)[-1].path
    (newest / "trained.safetensors").write_bytes(b"damaged")
    with pytest.raises(SchemaError, match="damaged"):
        train(compose(calmer), quiet)


def test_a_source_may_be_dropped_but_not_taken_in_again(data, tmp_path):
    run, other = tmp_path / "run", store(tmp_path / "other", clips=1, seed=4)
    both = [*overrides(data, run), f"+data.sources.other.root={other}"]
    train(compose(both), quiet, stop_at=1)
    train(compose([*both, "+data.sources.other.weight=0"]), quiet, stop_at=2)
    assert starts_of(run)[-1]["changes"] == ["data.sources.other.weight: 1.0 then, 0.0 now"]
    with pytest.raises(InputError, match=r"data\.sources\.other\.weight: 0\.0 then, 1\.0 now"):
        train(compose(both), quiet)


def test_other_data_is_refused_and_every_start_is_kept(data, tmp_path):
    run = tmp_path / "run"
    train(compose(overrides(data, run)), quiet, stop_at=1)
    before = (run / "provenance.json").read_bytes()
    for group in ("data", "validation"):
        other = f"{group}.sources.synthetic.root={store(tmp_path / group, clips=2, seed=5)}"
        with pytest.raises(InputError, match=rf"{group}\.sources\.synthetic: other clips"):
            train(compose([*overrides(data, run), other]), quiet, stop_at=2)
    assert (run / "provenance.json").read_bytes() == before
    moved = shutil.copytree(data / "train", tmp_path / "moved")
    elsewhere = f"data.sources.synthetic.root={moved}"
    train(compose([*overrides(data, run), elsewhere]), quiet, stop_at=2)
    steps = [(start["step"], start["data"]["synthetic"]["root"]) for start in starts_of(run)]
    assert steps == [(0, str(data / "train")), (1, str(moved))]
    without = "validation.sources.synthetic.root=null"
    assert train(compose([*overrides(data, run), without]), quiet, stop_at=3).steps == 3


def test_a_folder_takes_one_training_at_a_time(data, tmp_path):
    with pytest.raises(InputError, match=r"optim\.processes is 2, but 1 run.*accumulation=2"):
        train(compose(overrides(data, tmp_path / "run", "optim.processes=2")), quiet)
    assert not (tmp_path / "run").exists()
    settings, refused = compose(overrides(data, tmp_path / "run")), []

    def second(stage, done, total):
        if not refused:
            with pytest.raises(OutputError, match="another process"):
                train(settings, quiet)
            refused.append(stage)

    assert train(settings, second, stop_at=1).steps == 1 and refused
    assert train(settings, quiet, stop_at=2).steps == 2


def test_a_loss_that_is_not_a_number_stops_without_an_update(data, tmp_path):
    run = Run(compose(overrides(data, tmp_path / "run", "optim.max_skipped=1")), quiet)
    with torch.no_grad():
        run.bare.model.ray_head.bias.fill_(float("nan"))
    before = run.bare.model.decoder.hand_token.clone()
    with pytest.raises(DivergedError, match=r"step 2.*max_skipped is 1.*synthetic/clip"):
        run.go()
    assert torch.equal(before, run.bare.model.decoder.hand_token)


def test_a_gradient_that_is_not_finite_costs_its_own_step_only(data, tmp_path, monkeypatch):
    real, calls = Accelerator.clip_grad_norm_, iter(range(1, 100))

    def clip(self, parameters, *rest):
        parameters = list(parameters)
        if next(calls) in (2, 4):
            next(p for p in parameters if p.grad is not None).grad.fill_(math.inf)
        return real(self, parameters, *rest)

    monkeypatch.setattr(Accelerator, "clip_grad_norm_", clip)
    run, messages = tmp_path / "run", []
    settings = compose(overrides(data, run, "optim.max_skipped=1", "log.every=1"))
    report = train(settings, lambda stage, *_: messages.append(stage), stop_at=3)
    assert train(settings, quiet).steps == 4 == report.steps + 1
    assert any("step 2 skipped" in text and "synthetic/clip" in text for text in messages)
    key = "train/skipped_steps"
    counts = {row["step"]: row[key] for row in rows_of(run) if key in row}
    assert counts == {1: 0, 2: 1, 3: 1, 4: 2}  # over the resume, too
    assert all(torch.isfinite(value).all() for value in final(run).values())
    assert {int(v) for name, v in moments_of(run).items() if name.endswith("|step")} == {2}


def test_validation_measures_joints_from_the_wrist(monkeypatch):
    """A wrist that is a metre off counts nothing; five tips 3-4-5 mm off, 5 mm in 5 of 21."""
    t = targets()
    t = dataclasses.replace(t, joints_known=torch.ones_like(t.joints_known))
    p = truth(t)
    joints = p.joints + torch.tensor([1.0, 0.0, 0.0])
    joints[..., [4, 8, 12, 16, 20], :] += torch.tensor([0.003, 0.0, 0.004])
    empty = AceModel.__new__(AceModel)
    torch.nn.Module.__init__(empty)
    model = TrainingModel(empty, HANDS, SolveOptions("intrinsics"))
    monkeypatch.setattr(model, "predict", lambda *_: dataclasses.replace(p, joints=joints))
    alone = SimpleNamespace(device=torch.device("cpu"), reduce=lambda table, reduction: table)

    def validated(targets):
        batch = Batch(ClipBatch(None, t.camera.size, t.camera), targets, ())
        return validate(alone, model, [(batch, True), (batch, False)], LossWeights())

    found = validated(t)
    assert found["wrist_aligned_mm"] == pytest.approx(5 * 5 / 21, rel=1e-4)
    assert found["loss"] > 0 and model.training
    blind = dataclasses.replace(t, joints_taught=torch.zeros_like(t.joints_taught))
    assert validated(blind)["wrist_aligned_mm"] == math.inf


@pytest.mark.parametrize("every", [1, 2])
def test_a_checkpoint_has_the_score_of_its_own_step(data, tmp_path, every):
    """Validated at other steps than saved: no score is taken over, and the best one is not lost."""
    run = tmp_path / "run"
    more = [f"validation.every={every}", "checkpoints.every=3", "checkpoints.keep_last=9"]
    train(compose(overrides(data, run, "optim.lr_decoder=0.0001", *more)), quiet, stop_at=3)
    measure = "validation/wrist_aligned_mm"
    scores = {row["step"]: row[measure] for row in rows_of(run) if measure in row}
    assert all(5 < score < 500 for score in scores.values())  # a hand's size, in millimetres
    assert sorted(scores) == list(range(every, 4, every))
    found = {c.step: c.score for c in checkpoints.listed(run)}
    assert found == {step: scores.get(step) for step in found}
    assert min(scores, key=scores.get) in found and 3 in found


def test_no_checkpoint_is_chosen_by_test_recordings(data, tmp_path):
    """With the same validation of another split the weights are the first step's, see below."""
    ends = {}
    for split in ("val", "test"):
        run, watched = tmp_path / split, shutil.copytree(data / "val", tmp_path / f"store-{split}")
        described = json.loads((watched / "store.json").read_text())
        (watched / "store.json").write_text(json.dumps({**described, "split": split}))
        root = f"validation.sources.synthetic.root={watched}"
        # A rate that spoils the model: the first step is the best.
        more = [root, "validation.every=1", "optim.lr_decoder=3", "optim.warmup_steps=2"]
        report = train(compose([*overrides(data, run), *more]), quiet)
        scores = [r["validation/wrist_aligned_mm"] for r in rows_of(run) if "validation/loss" in r]
        ends[split] = int(report.best.name[-8:])
        assert len(scores) == 4 and scores[3] > min(scores)
    assert ends["val"] < 4 == ends["test"]


@dataclasses.dataclass(frozen=True, slots=True)
class WeightsWithDepth(LossWeights):
    wrist_depth: float = 3.0


def test_a_new_term_is_one_entry_and_its_weight(data, tmp_path, monkeypatch):
    """The wrist head's depth: settings, objective, logs and resuming know it by these two alone."""
    depth = Term(
        "depth", "wrist_depth", lambda e: e.joints[..., 0],
        lambda c, m: absolute(c.readout.wrist[..., 2:], c.t.joints[..., 0, 2:], m),
    )  # fmt: skip
    monkeypatch.setitem(TERMS, depth.name, depth)
    monkeypatch.setattr(config, "LossWeights", WeightsWithDepth)
    monkeypatch.setattr(user_files, "_entries", user_files._entries.__wrapped__)  # not cached

    # One wrist of six is 0.3 m too deep: 0.05 m in the mean.
    t = targets(clips=1, frames=3)
    t = dataclasses.replace(t, joints_known=torch.ones_like(t.joints_known))
    p = truth(t)
    wrist = p.readout.wrist.clone()
    wrist[0, 2, 1, 2] += 0.3
    p = dataclasses.replace(p, readout=dataclasses.replace(p.readout, wrist=wrist))
    sums, counts = term_sums(p, t), counts_of(t)
    with_it, without = (
        float(total(sums, counts, WeightsWithDepth(wrist_depth=w), 0)) for w in (3.0, 0.0)
    )
    assert with_it - without == pytest.approx(3 * 0.05, rel=1e-4)

    run = tmp_path / "run"
    settings = compose(overrides(data, run, "losses.wrist_depth=2.5"))
    assert settings.losses.wrist_depth == 2.5
    train(settings, quiet, stop_at=2)
    rows = rows_of(run)
    assert rows[0]["train/depth"] > 0 and rows[-1]["validation/depth"] > 0
    with pytest.raises(InputError, match=r"losses.wrist_depth: 2.5 then, 1.5 now"):
        train(compose(overrides(data, run, "losses.wrist_depth=1.5")), quiet)
    with pytest.raises(InputError, match=r"losses.wrist_depth is -1.0; 0 or more"):
        compose(overrides(data, run, "losses.wrist_depth=-1"))


def test_only_the_newest_and_the_best_are_kept(tmp_path):
    settings = compose(["experiment=tiny", "checkpoints.keep_last=1"]).checkpoints
    for step, score in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 4.0)):
        tensors = {"x": torch.tensor([float(step)])}
        checkpoints.save(tmp_path, step, score, tensors, tensors, settings)
    assert [c.step for c in checkpoints.listed(tmp_path)] == [2, 5]
    assert checkpoints.best(tmp_path).step == 2
