"""The plan of a run: bytes worked out by hand, operations as torch counts them."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from test_clips import info, motion, pictures

pytest.importorskip("hydra")
pytest.importorskip("diffusers")
pytest.importorskip("peft")

from acehand_core.datasets.clips.schema import StoreInfo
from acehand_core.datasets.clips.store import ClipWriter
from acehand_core.model.config import ModelConfig, TrunkConfig
from acehand_core.model.decoder import Decoder
from acehand_core.model.encoder.trunk import Trunk, add_adapters
from acehand_core.training.compose import compose
from acehand_core.training.estimate import trunk_flops
from acehand_core.training.main import main as entry_point
from acehand_core.training.plan import GPUS, plan


@functools.cache
def planned(*overrides: str, gpu: str = "a100", mfu: float = 0.35) -> dict:
    """The plan of some overrides."""
    return plan(compose(list(overrides)), gpu, mfu)


def by_source(value: dict) -> dict[str, dict]:
    return {row["source"]: row for row in value["storage"]["latent_cache"]}


def test_the_latent_cache_of_the_papers_mixture_by_hand() -> None:
    """Frames and clips of the paper's table; 48 channels of 2 bytes per 16 x 16 pixels."""
    value = planned("experiment=standard")
    rows = by_source(value)
    assert {name: row["size"] for name, row in rows.items()} == {
        "arctic": [672, 480], "hot3d": [480, 480], "h2o": [832, 480], "oakink2": [832, 480],
        "reinterhand": None, "freihand": [224, 224], "rhd": [320, 320],
    }  # fmt: skip
    # ARCTIC: 267 recordings, 184373 frames; one latent per 4 frames and one of the first frame, so
    # between 184373 / 4 and that plus 3 / 4 per recording.
    assert 46_093.25 <= rows["arctic"]["latents"] <= 46_093.25 + 267 * 0.75
    assert rows["arctic"]["bytes"] == 48 * 2 * 42 * 30 * rows["arctic"]["latents"]
    assert rows["oakink2"]["bytes"] == pytest.approx(48 * 2 * 52 * 30 * 935_260 / 4, rel=2e-3)
    # A picture is five frames, hence two latents of 14 x 14 or 20 x 20 cells.
    assert rows["freihand"]["bytes"] == 32_560 * 2 * 48 * 2 * 14 * 14
    assert rows["rhd"]["bytes"] == 41_251 * 2 * 48 * 2 * 20 * 20
    assert value["storage"]["unknown"] == ["reinterhand"] and rows["reinterhand"]["bytes"] is None
    assert value["storage"]["latent_cache_bytes"] == pytest.approx(57e9, abs=0.5e9)
    assert not any(row["counted"] for row in rows.values())
    # 63.1 frames a second of 672 x 480, 72 % of it the VAE: 87.6 of that size.
    alone = planned("experiment=standard", "mixture=arctic")["storage"]
    assert alone["encoding_a100_hours"] == pytest.approx(184_373 / 87.64 / 3600, rel=1e-3)


def test_a_given_size_counts_towards_storage_memory_and_time() -> None:
    value = plan(compose([]), "a100", 0.35, {"reinterhand": (512, 512)})
    row = by_source(value)["reinterhand"]
    # 21315 frames of 43 recordings, 32 x 32 cells.
    assert row["bytes"] == pytest.approx(48 * 2 * 32 * 32 * 21_315 / 4, rel=7e-3)
    assert not value["storage"]["unknown"]
    assert [512, 512] in [row["size"] for row in value["memory"]]
    assert not any("not known" in text for text in value["assumptions"])
    assert any("not known: reinterhand" in text for text in planned()["assumptions"])


def counted(trunk: TrunkConfig, latents: int, rows: int, columns: int, checkpointing: bool):
    """Operations of a forward pass, and of a training step, as torch counts them."""
    built = Trunk(trunk, checkpointing).to("meta").requires_grad_(False)
    built.patch_embedding.requires_grad_(True)
    add_adapters(built)
    built.to("meta")
    built.modulation = torch.zeros(1, 6, trunk.dim, device="meta")
    built.context = torch.zeros(1, trunk.text_length, trunk.dim, device="meta")
    clip = torch.zeros(1, 48, latents, 2 * rows, 2 * columns, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as forward:
        built(clip)
    with FlopCounterMode(display=False) as step:
        built(clip).sum().backward()
    return forward.get_total_flops(), step.get_total_flops()


SMALL = TrunkConfig(dim=48, ffn_dim=112, num_heads=2, num_layers=4, text_dim=32, text_length=7,
                    tap=2, lora_rank=5)  # fmt: skip


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("trunk", "latents", "rows", "columns"),
    [
        pytest.param(SMALL, 3, 2, 3, id="small"),
        pytest.param(replace(SMALL, tap=0), 2, 5, 4, id="one block"),
        pytest.param(TrunkConfig(), 21, 15, 21, id="real", marks=pytest.mark.slow),
    ],
)
def test_operations_are_those_that_torch_counts(
    trunk, latents, rows, columns, checkpointing, monkeypatch
) -> None:
    """On the meta device, where attention is two plain products and so has four backwards."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    forward, step = counted(trunk, latents, rows, columns, checkpointing)
    found = trunk_flops(trunk, 48, latents, (32 * columns, 32 * rows), checkpointing)
    assert found.forward == forward
    # Fused kernels make one of attention's two products again: five backwards, not four.
    assert found.total == step + found.attention // 2


def test_the_decoder_is_a_small_part_of_the_operations() -> None:
    with torch.device("meta"):
        decoder = Decoder(ModelConfig().decoder)
        features = torch.zeros(1, 3072, 21, 15, 21, requires_grad=True)
        rays = torch.zeros(1, 3, 21, 15, 21)
        with FlopCounterMode(display=False) as counter:
            out = decoder(features, rays)
            parts = (out.global_orient, out.hand_pose, out.betas, out.anchors, out.camera,
                     out.joints_relative, out.wrist, out.presence, out.visible)  # fmt: skip
            sum(part.sum() for part in parts).backward()
    trunk = trunk_flops(TrunkConfig(), 48, 21, (672, 480), True)
    assert 0 < counter.get_total_flops() < 0.002 * trunk.total


def test_hours_by_hand() -> None:
    """ARCTIC alone: 20000 steps of 4 clips per GPU."""
    value = planned("mixture=arctic")["time"]
    (row,) = value["clips"]
    # N = 21 x 15 x 21 tokens, M = 512, D = 3072, E = 14336, r = 64, 16 blocks.
    n, m, d, e, r = 6615, 512, 3072, 14336, 64
    linear = 16 * (2 * n * (6 * d * d + 2 * d * e) + 4 * m * d * d)
    attention = 16 * 4 * n * (n + m) * d
    adapters = 16 * 2 * r * (n * (12 * d + 2 * (d + e)) + 4 * m * d)
    again = linear + attention + adapters
    backward = linear - 64 * m * d * d + 2 * adapters - 64 * r * m * d + attention * 5 // 2
    flops = 2 * again + backward + 2 * (2 * n * d * 192)
    assert row["flops_per_clip"]["total"] == flops
    assert value["hours"] == pytest.approx(20_000 * 4 * flops / (0.35 * 312e12) / 3600)
    assert value["gpu_hours"] == pytest.approx(16 * value["hours"])
    assert 20 < value["hours"] < 40


def test_time_follows_the_configuration() -> None:
    standard, kfree = planned("experiment=standard")["time"], planned("experiment=kfree")["time"]
    assert kfree["hours"] == pytest.approx(standard["hours"])
    assert kfree["gpu_hours"] == pytest.approx(standard["gpu_hours"] / 2)
    # Of a batch all clips are of one source: the weights are the shares of the steps.
    each = {row["source"]: row["flops_per_clip"]["total"] for row in standard["clips"]}
    weights = {"arctic": 14, "hot3d": 18, "h2o": 10, "oakink2": 14, "reinterhand": 16,
               "freihand": 14, "rhd": 14}  # fmt: skip
    mean = sum(weights[name] * flops for name, flops in each.items()) / 100
    assert standard["flops_per_step_and_gpu"] == pytest.approx(4 * mean)
    for overrides, factor in (
        (("optim.steps=10000",), 0.5), (("optim.accumulation=3",), 3),
        (("optim.clips_per_process=8",), 2),
    ):  # fmt: skip
        assert planned(*overrides)["time"]["hours"] == pytest.approx(factor * standard["hours"])
    faster = planned(gpu="h200", mfu=0.7)["time"]
    assert faster["hours"] == pytest.approx(standard["hours"] * 312 / 989 / 2)
    unchecked = planned("optim.checkpointing=false")["time"]
    assert unchecked["hours"] < 0.75 * standard["hours"]


def test_memory_at_both_sizes_with_checkpointing_and_without() -> None:
    rows = {(tuple(r["size"]), r["checkpointing"]): r for r in planned()["memory"]}
    for size in ((672, 480), (832, 480)):
        kept, whole = rows[size, True], rows[size, False]
        assert kept["fits"] and not whole["fits"] and kept["frames"] == 81
        # What checkpointing keeps between blocks: 16 float32 streams of 3072 channels of 4 clips.
        tokens = 21 * (size[0] // 32) * 15
        assert kept["activations_bytes"] > 16 * 4 * 4 * tokens * 3072
        assert whole["activations_bytes"] > 6 * kept["activations_bytes"]
    assert rows[(320, 320), True]["frames"] == 5
    roomy = {tuple(r["size"]): r for r in planned(gpu="h200")["memory"] if not r["checkpointing"]}
    assert roomy[672, 480]["fits"] and not roomy[832, 480]["fits"]
    shared = planned("optim.parallel=fsdp")["memory"]
    for one, whole in zip(shared, planned()["memory"], strict=True):
        assert one["weights_bytes"] == whole["weights_bytes"] // 16
        assert one["optimiser_bytes"] == whole["optimiser_bytes"] // 16
        assert one["activations_bytes"] == whole["activations_bytes"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two recordings of 32 x 24 that are long enough, one that is not, and a picture."""
    writer = ClipWriter(tmp_path / "store", StoreInfo("arctic", "train", "test", "none", {}))
    for name, frames in (("a", 9), ("b", 6), ("short", 4)):
        writer.write(info(name, frames), motion(frames), pictures(frames))
    writer.write(info("still", 1, kind="image"), motion(1), pictures(1))
    return tmp_path / "store"


def test_a_source_with_a_root_is_counted(store: Path) -> None:
    root = f"data.sources.arctic.root={store}"
    small = ("mixture=arctic_hot3d", "data.window.latents=2", "data.sources.arctic.encode_width=64")
    value = planned(root, *small)
    rows = [r for r in value["storage"]["latent_cache"] if r["source"] == "arctic"]
    # 64 x 48 is rounded to tokens of 32: 64 x 64, as 1.5 goes to the even number.
    assert all(row["counted"] and row["size"] == [64, 64] for row in rows)
    found = {(row["clips"], row["frames"], row["latents"], row["bytes"]) for row in rows}
    # 9 and 6 frames are 3 and 2 latents, 4 frames are too few; the picture is five frames.
    assert found == {(2, 15, 5, 5 * 48 * 2 * 16), (1, 5, 2, 2 * 48 * 2 * 16)}
    # Drawn by recording: two of ARCTIC's three clips are videos; HOT3D is the paper's.
    shares = sorted(row["share"] for row in value["time"]["clips"])
    assert shares == pytest.approx([14 / 32 / 3, 14 / 32 * 2 / 3, 18 / 32])
    said = " ".join(value["assumptions"])
    assert "paper's table: hot3d;" in said and "counted in their stores" in said
    watched = planned(root, *small, f"validation.sources.arctic.root={store}",
                      "validation.sources.arctic.encode_width=96")  # fmt: skip
    extra = sum(r["bytes"] for r in watched["storage"]["latent_cache"])
    assert extra - sum(r["bytes"] for r in value["storage"]["latent_cache"]) == 7 * 48 * 2 * 24
    assert watched["time"]["hours"] == value["time"]["hours"], "validation is no step"
    assert watched["memory"] == value["memory"]
    assert by_source(planned(root, "mixture=arctic", "data.window.latents=2"))["arctic"]["counted"]


def test_recordings_drawn_by_length_are_weighed_by_length(store: Path) -> None:
    value = planned(f"data.sources.arctic.root={store}", "mixture=arctic",
                    "data.window.latents=2", "data.window.weighting=frame")  # fmt: skip
    shares = sorted(row["share"] for row in value["time"]["clips"])
    assert shares == pytest.approx([1 / 16, 15 / 16])


def test_sources_of_other_features_have_no_estimate() -> None:
    value = planned("source=vjepa2", "mixture=arctic")
    assert value["storage"] is None and value["memory"] is None and value["time"] is None
    assert planned("lora=none")["storage"] and planned("lora=none")["time"] is None
    assert any("only for 'wan'" in text for text in value["assumptions"])


def acehand_train(monkeypatch, capsys, *arguments: str) -> tuple[str, str]:
    monkeypatch.setattr("sys.argv", ["acehand-train", *arguments])
    entry_point()
    return capsys.readouterr()


def test_the_command_prints_what_it_knows(monkeypatch, capsys) -> None:
    monkeypatch.setattr("acehand_core.training.loop.train", None)
    said, _ = acehand_train(monkeypatch, capsys, "plan", "experiment=kfree", "--gpu", "h100",
                            "optim.steps=1000", "--mfu", "0.4", "--json")  # fmt: skip
    value = json.loads(said)
    assert value == plan(compose(["experiment=kfree", "optim.steps=1000"]), "h100", 0.4)
    assert value["batch"]["clips"] == 32
    said, _ = acehand_train(monkeypatch, capsys, "plan", "--size", "reinterhand=512x500")
    for text in ("16 GPUs x 4 clips", "184373 frames", "512 x 512", "312 TFLOP/s", "35%",
                 "not measured", "does not fit", "without the allocator's slack"):  # fmt: skip
        assert text in said
    hours = planned()["time"]
    plain, _ = acehand_train(monkeypatch, capsys, "plan")
    assert f"{hours['hours']:.1f} hours on 16 x a100, {hours['gpu_hours']:.0f} GPU hours" in plain
    assert "57.3 GB without reinterhand" in plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "v100"], "--gpu v100: valid: a100, h100, h200"),
        (["--mfu", "0"], "--mfu 0: above 0, up to 1"),
        (["--mfu", "35"], "--mfu 35"),
        (["--size", "reinterhand"], "SOURCE=WIDTHxHEIGHT"),
        (["--size", "reinterhand=8x512"], "32 pixels or more"),
        (["--size", "reinterhnd=512x512"], "Did you mean 'reinterhand'"),
        (["optim.stepz=1"], "optim.stepz"),
        (["experiment=tiny"], "data.sources.synthetic: no root, and the paper"),
        (["mixture=arctic", "data.sources.arctic.weight=0"], "nothing to plan"),
        (["data.sources.arctic.root=/nowhere"], "/nowhere: no such folder"),
    ],
)
def test_mistakes_take_one_line(arguments, message, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["acehand-train", "plan", *arguments])
    with pytest.raises(SystemExit) as stop:
        entry_point()
    said = capsys.readouterr()
    assert stop.value.code == 2 and said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("acehand-train: ") and message in line


def test_the_documentation_says_what_is_printed() -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "training.md").read_text("utf-8")
    section = re.split(r"\n## ", text.split("## Before a run")[1])[0]
    for name, (tflops, memory) in GPUS.items():
        assert f"| `{name}` | {tflops:.0f} | {memory:.0f} |" in section
    for experiment in ("standard", "kfree"):
        hours = [planned(f"experiment={experiment}", gpu=gpu)["time"] for gpu in GPUS]
        row = " | ".join(f"{h['hours']:.1f} / {h['gpu_hours']:.0f}" for h in hours)
        assert f"| `{experiment}` | {row} |" in section
    for row in planned()["memory"]:
        if row["size"][0] in (672, 832):
            assert f"{row['total_bytes'] / 1e9:.1f} GB" in section
    assert f"{planned()['storage']['latent_cache_bytes'] / 1e9:.1f} GB" in section
    assert all(f"`{key}`" in section for key in planned())
