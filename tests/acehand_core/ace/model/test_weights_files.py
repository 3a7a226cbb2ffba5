"""Reading, converting and writing weights; and what is refused, with the tensor or file named."""

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from acehand_core.ace.model.config import DecoderConfig, InferenceConfig, ModelConfig
from acehand_core.ace.model.weights import official, official_files, own, sums, tables
from acehand_core.ace.model.weights.inspection import damaged, inspect
from acehand_core.ace.model.weights.load import (
    convert,
    detect,
    identity,
    load_weights,
    recorded,
    sort_sources,
)
from acehand_core.ace.model.weights.official_files import save_official
from acehand_core.ace.model.weights.state import TrainingSource
from acehand_core.ace.model.weights.storage import store_of
from acehand_core.ace.settings import AceSettings
from acehand_core.ace.tracker import AceTracker
from acehand_core.cli.main import main
from acehand_core.errors import AcehandError, InputError, OutputError, SchemaError
from acehand_core.trackers.base import TrackerSettings
from acehand_core.user_files import structured
from helpers import fake_ace
from helpers import weights_samples as samples
from helpers.weights_samples import TINY, equal, release, write_repackaged

TARGETS = ("official", "acehand")


def same_weights(left, right):
    """Whether two sets of weights hold the same bits and describe the same model."""
    return (
        left.config == right.config
        and left.parts().keys() == right.parts().keys()
        and all(equal(left.parts()[part], right.parts()[part]) for part in left.parts())
        and equal({"": left.caption}, {"": right.caption})
        and left.licence == right.licence
        and left.inference == right.inference
    )


@pytest.mark.parametrize("change", range(4))
def test_released_weights_are_told_apart_by_content(checkpoint, base, tmp_path, change):
    """Not by name, size or time: any of the files a checkpoint needs may be another."""
    caption = checkpoint.parent / "caption_embed.pt"
    known = identity(checkpoint)
    assert known == identity(checkpoint.parent) == identity(checkpoint)
    shutil.copytree(checkpoint.parent, tmp_path / "elsewhere")
    assert identity(tmp_path / "elsewhere") == known
    assert identity(checkpoint, base=tmp_path / "elsewhere" / base.name, caption=caption) == known
    path = (checkpoint, base / "diffusion_pytorch_model.safetensors", base / "Wan2.2_VAE.pth",
            caption)[change]  # fmt: skip
    samples.flip_bit(path, path.stat().st_size // 2)
    assert identity(checkpoint) != known
    path.unlink()
    with pytest.raises(InputError):
        identity(checkpoint)


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    path, reads = tmp_path / "weights", []
    path.write_bytes(b"one")
    digest = hashlib.file_digest

    def counted(stream, name):
        reads.append(stream.name)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    one = hashlib.sha256(b"one").hexdigest()
    assert [sums.sha256(path) for _ in range(2)] == [one] * 2
    assert len(reads) == 2  # too young: it might change again within a tick of the clock
    monkeypatch.setattr(sums, "_SETTLED_S", -1.0)
    assert [sums.sha256(path) for _ in range(3)] == [one] * 3 and len(reads) == 3
    samples.flip_bit(path, 0)
    assert sums.sha256(path) == hashlib.sha256(b"nne").hexdigest()


@pytest.fixture
def new_process(tmp_path, monkeypatch):
    """Forget what this process has read, but not the user's cache; return the names it reads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sums, "_SETTLED_S", -1.0)
    monkeypatch.setattr(sums, "_RECORDED_BYTES", 3)
    digest, reads = hashlib.file_digest, []
    monkeypatch.setattr(
        hashlib, "file_digest", lambda s, name: reads.append(Path(s.name).name) or digest(s, name)
    )

    def start():
        monkeypatch.setattr(sums, "_known", {})
        reads.clear()
        return reads

    return start


def test_a_later_process_reads_only_what_changed(tmp_path, new_process):
    folder = tmp_path / "weights"
    folder.mkdir()
    path = folder / "a"

    def read_again():
        reads = new_process()
        assert sums.sha256(path) == hashlib.sha256(path.read_bytes()).hexdigest()
        return bool(reads)

    def touch(at_ns):
        os.utime(path, ns=(at_ns, at_ns))

    path.write_bytes(b"one")
    assert read_again() and not read_again()
    assert sums.sha256(folder / ".." / "weights" / "a") == sums.sha256(path) and not read_again()
    for change in (
        lambda: path.write_bytes(b"two"),  # the same size
        lambda: touch(1_700_000_000_000_000_000),
        lambda: samples.flip_bit(path, 1),  # the same time too
        lambda: path.write_bytes(b"longer"),
        lambda: shutil.copy2(path, folder / "b") and (folder / "b").rename(path),  # another inode
    ):
        change()
        assert read_again() and not read_again()
    path.write_bytes(b"in")  # too small for a record
    assert read_again() and read_again()
    assert [file.name for file in folder.iterdir()] == ["a"]  # nothing is left next to weights


def test_no_record_but_the_users_own_is_believed(tmp_path, new_process, monkeypatch):
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    one = hashlib.sha256(b"one").hexdigest()
    for name in ("weights.sha256", "SHA256SUMS"):
        (tmp_path / name).write_text(f"{64 * '0'}  weights\n")
    assert sums.sha256(path) == one
    # Without a cache that can be written, or a home, every process reads.
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))
    assert [sums.sha256(path) for reads in (new_process(), new_process())] == [one] * 2
    assert new_process() == [] and sums.sha256(path) == one
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    new_process()
    assert sums.sha256(path) == one


@pytest.mark.parametrize("layout", ["official", "wan-base", "acehand", "repackaged"])
def test_files_are_read_on_demand(checkpoint, base, own_folder, tmp_path, new_process, layout):
    write_repackaged(tmp_path / "r", load_weights(own_folder))
    path, file = {
        "official": (checkpoint, checkpoint),
        "wan-base": (base, base / "diffusion_pytorch_model.safetensors"),
        "acehand": (own_folder, own_folder / "vae.safetensors"),
        "repackaged": (tmp_path / "r", tmp_path / "r" / "dit" / "model.safetensors"),
    }[layout]
    command = ["weights", "inspect", str(path), "--check-files"]
    new_process()
    plain = main(command[:-1])  # sizes of the released base differ from those of the tiny one
    known = sums.sha256(file)
    assert damaged(inspect(path), path) == []
    # The disk, not a program, changes a bit: the record of the file's state is that of before.
    samples.flip_bit(file, file.stat().st_size - 3)
    with file.open("rb") as stream:
        sums._record(file, stream).write_text(known)
    new_process()
    assert sums.sha256(file) == known and main(command[:-1]) == plain
    (problem,) = damaged(inspect(path), path)
    assert str(file) in problem and known in problem
    assert main(command) == 1


def test_what_headers_show_is_refused_before_files_are_hashed(
    checkpoint, own_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(hashlib, "file_digest", None)
    monkeypatch.delenv("ACEHAND_MANO", raising=False)
    shutil.copytree(own_folder, tmp_path / "reshaped")
    tensors = load_file(tmp_path / "reshaped" / "trunk.safetensors")
    tensors["blocks.0.attn1.to_q.weight"] = torch.ones(3, 5)
    save_file(tensors, tmp_path / "reshaped" / "trunk.safetensors")
    (own_folder / "LICENSE.txt").unlink()
    (checkpoint.parent / "caption_embed.pt").unlink()
    made = release()
    made.dit["blocks.0.self_attn.q.weight"] = torch.ones(3, 5)
    for path, message in (
        (own_folder, "LICENSE.txt: the file is missing"),
        (tmp_path / "reshaped", "has shape 3 x 5"),
        (checkpoint, "no caption_embed.pt"),
        (made.write(tmp_path / "wrong"), "has shape 3 x 5"),
    ):
        tracker = AceTracker(TrackerSettings(own={"ace": AceSettings(path)}))
        for load in (lambda: load_weights(path), lambda: tracker.track(fake_ace.recording(5))):  # noqa: B023
            with pytest.raises(AcehandError, match=message):
                load()


def test_every_layout_keeps_what_the_model_was_trained_on_and_how_it_is_run(
    checkpoint, base, tmp_path
):
    data = (TrainingSource("synthetic", "synthetic", "ab" * 32, "cd" * 32, 7, "ours"),)
    run = InferenceConfig("pinhole", "rigid", "paper", "acehand", 672, 21, "paper", "centres")
    theirs = release().write(tmp_path / "released", record=False)
    assert [source.kind for source in recorded(theirs)[0]] == ["real"]
    # The record keeps what ours were trained on apart from the released files they look like.
    for target in TARGETS:
        made = replace(load_weights(checkpoint), training_data=data, inference=run)
        own.save_own(tmp_path / "own", made, overwrite=True)
        assert recorded(tmp_path / "own")[0] == data
        folder = tmp_path / target
        convert(sort_sources([tmp_path / "own"]), target, folder)
        pieces = {"base": base} if target == "official" else {}
        loaded = load_weights(folder, **pieces)
        assert (loaded.training_data, loaded.inference) == (data, run)
        assert recorded(folder)[1] == run
        described = inspect(folder).to_json()
        assert described["training_data"][0]["clips"] == 7
        assert described["inference"]["window_latents"] == 21
        # None of ours, and nothing recorded: not known. Never taken for a released one.
        own.save_own(tmp_path / "own", replace(made, training_data=None), overwrite=True)
        convert(sort_sources([tmp_path / "own"]), target, tmp_path / f"mute-{target}")
        assert load_weights(tmp_path / f"mute-{target}", **pieces).training_data is None


def test_weights_from_before_anything_was_recorded(tmp_path, capsys):
    theirs, own_folder = release().write(tmp_path, record=False), tmp_path / "own"
    convert(sort_sources([theirs]), "acehand", own_folder, config=TINY)
    config = own_folder / "config.json"
    data = json.loads(config.read_text())
    (entry,) = data["training_data"]
    assert (entry["name"], entry["kind"], entry["clips"]) == ("ACE-Ego-Hand release", "real", 0)
    data["inference"] = {"solve": "direct", "encode_width": None}
    config.write_text(json.dumps(data))
    assert main(["weights", "inspect", str(own_folder)]) == 0
    assert "run as: solve direct\n" in capsys.readouterr().err
    del data["training_data"], data["inference"]
    config.write_text(json.dumps(data))
    found = load_weights(own_folder)
    assert found.training_data is None and found.inference == InferenceConfig()


def test_only_what_runs_is_read(checkpoint):
    weights, made, asked = load_weights(checkpoint), release(), []

    def listening(tensors, where):
        return replace(
            store_of(tensors, where), fetch=lambda name: asked.append(name) or tensors[name]
        )

    parts = {"dit": made.dit, **made.parts}
    official_files.assemble(TINY, {part: listening(t, part) for part, t in parts.items()})
    assert len(asked) == len(set(asked))
    skipped = ("blocks.2.", "blocks.3.", "head.", "ref_conv.")
    assert not any(name.startswith(skipped) or "temporal_encoder" in name for name in asked)
    sections = official.sections(TINY)
    trunk = sections["dit"].write(weights.parts())
    assert {int(name.split(".")[1]) for name in trunk if name.startswith("blocks.")} == {0, 1}
    assert not any(name.startswith(("head.", "ref_conv.")) for name in trunk)
    adapters = sections["backbone_trainable"].write({"adapters": weights.adapters})
    assert len(adapters) == 2 * 10 * 2
    assert all(torch.equal(adapters[n], made.parts["backbone_trainable"][n]) for n in adapters)
    # The retrained patch embedding replaces the base's; precisions are as stored.
    for name, tensor in trunk.items():
        trained = name.startswith("patch_embedding.")
        source = made.parts["backbone_trainable"] if trained else made.dit
        assert torch.equal(tensor, source[name]) and tensor.dtype == source[name].dtype
    assert weights.ray_head.keys() == {"weight", "bias"}
    assert torch.equal(weights.caption, made.caption)
    assert set(weights.sha256s) == {
        samples.CHECKPOINT, "Wan2.2_VAE.pth", "caption_embed.pt",
        "diffusion_pytorch_model.safetensors",
    }  # fmt: skip


def test_the_report_has_what_is_not_used(checkpoint):
    reports = {c.component: c for c in load_weights(checkpoint).report.components}
    assert reports["checkpoint"].ignored == ("step",)
    assert reports["vae"].ignored == ("decoder.conv1.weight",)
    assert "patch_embedding.weight" in reports["dit"].unused
    assert "l1.frame_pool_query" in reports["projectors"].unused
    total = sum(len(r.read) + len(r.unused) for r in reports.values())
    expected = [official.dit(TINY.trunk), official.vae(TINY.vae), *release().parts.values()]
    assert total == sum(map(len, expected))


def test_pieces_in_every_form(checkpoint, tmp_path):
    made, expected = release(), load_weights(checkpoint)
    prefixed = {f"model.{name}": tensor for name, tensor in made.vae.items()}
    torch.save(prefixed, tmp_path / "vae.pth")
    save_file(made.vae, tmp_path / "vae.safetensors")
    torch.save(made.caption, tmp_path / "bare.pt")
    torch.save({"embed": made.caption}, tmp_path / "dict.pt")
    save_file({"caption_embedding": made.caption}, tmp_path / "c.safetensors")
    for piece, names in (
        ("vae", ("vae.pth", "vae.safetensors")),
        ("caption", ("bare.pt", "dict.pt", "c.safetensors")),
    ):
        for name in names:
            assert detect(tmp_path / name) == ("wan-vae" if piece == "vae" else piece)
            found = load_weights(checkpoint, **{piece: tmp_path / name})
            assert same_weights(found, expected), name
    shards = load_weights(made.write(tmp_path / "many", shards=3))
    assert same_weights(shards, expected)
    assert sum(name.endswith(".safetensors") for name in shards.sha256s) == 3
    torch.save(made.caption[:, :-1].clone(), tmp_path / "narrow.pt")
    with pytest.raises(SchemaError, match=r"\(5, 31\)"):
        load_weights(checkpoint, caption=tmp_path / "narrow.pt")


def test_missing_pieces_are_named(checkpoint, base):
    with pytest.raises(InputError, match="only a piece"):
        load_weights(base)
    for path, flag in (
        (checkpoint.parent / "caption_embed.pt", "caption=FILE"),
        (base / "Wan2.2_VAE.pth", "vae=FILE"),
        (base, "base="),
    ):
        shutil.rmtree(path) if path == base else path.unlink()
        with pytest.raises(InputError, match=flag):
            load_weights(checkpoint)


def test_a_checkpoint_without_a_record_has_the_released_sizes(tmp_path):
    checkpoint = release().write(tmp_path, record=False)
    with pytest.raises(SchemaError, match=r"'blocks\.4\.modulation' is missing"):
        load_weights(checkpoint)
    assert inspect(checkpoint).config == ModelConfig(variant="kfree")
    other = replace(TINY, decoder=replace(TINY.decoder, num_heads=4))
    assert load_weights(checkpoint, config=other).config == other


def test_variant_from_name_record_or_argument(checkpoint, tmp_path):
    with pytest.raises(InputError, match="variant kfree, not k"):
        load_weights(checkpoint, "k")
    folder = checkpoint.parent
    release().write(folder, record=False).rename(folder / "mine.pt")
    with pytest.raises(InputError, match="`variant="):
        load_weights(folder / "mine.pt")
    assert load_weights(folder / "mine.pt", "k", config=TINY).config.variant == "k"


def test_every_layout_and_back_is_the_same_bits(checkpoint, base, tmp_path):
    first, _ = convert(sort_sources([checkpoint]), "acehand", tmp_path / "0")
    path = tmp_path / "1"
    convert(sort_sources([tmp_path / "0"]), "acehand", path)
    assert same_weights(load_weights(path), first)
    assert inspect(path).problems == []
    convert(sort_sources([path]), "official", tmp_path / "back", seed=3)
    again = load_weights(tmp_path / "back", base=base)
    assert inspect(tmp_path / "back").problems == []
    # The base is not part of a checkpoint, so it has its own precision.
    for part in ("adapters", "decoder", "ray_head"):
        assert equal(again.parts()[part], first.parts()[part])
    for name in ("patch_embedding.weight", "patch_embedding.bias"):
        assert torch.equal(again.trunk[name], first.trunk[name])
    assert again.config == first.config


@pytest.mark.parametrize(
    "changes",
    [{"spatial_encoding": False}, {"queries": "pooled"}, {"shape_from": "registers"},
     {"temporal_encoding": "absolute"}],
    ids=str,
)  # fmt: skip
def test_ablations_convert_too(tmp_path, changes):
    config = replace(TINY, decoder=replace(TINY.decoder, **changes))
    checkpoint = release(config).write(tmp_path / "release")
    weights, _ = convert(sort_sources([checkpoint]), "acehand", tmp_path / "own")
    convert(sort_sources([tmp_path / "own"]), "official", tmp_path / "back")
    again = load_weights(tmp_path / "back", base=checkpoint.parent / "Wan2.2-Fun-5B-Control")
    assert same_weights(again, weights)


def test_the_repackaging_has_the_same_numbers_but_no_wrist_head(checkpoint, tmp_path):
    released = load_weights(checkpoint)
    write_repackaged(tmp_path / "r", released)
    assert inspect(tmp_path / "r").problems == []
    assert [source.kind for source in recorded(tmp_path / "r")[0]] == ["real"]
    weights = load_weights(tmp_path / "r")
    for part, tensors in released.parts().items():
        held = {n: t for n, t in tensors.items() if n not in weights.report.filled}
        again = {n: t for n, t in weights.parts()[part].items() if n not in weights.report.filled}
        assert equal(again, held), part
    assert {name.split(".")[0] for name in weights.report.filled} == {"shape_norm", "head_wrist"}
    # Filled with a neutral value: half a metre ahead, whatever the hand.
    assert not weights.decoder["head_wrist.2.weight"].any()
    assert weights.decoder["head_wrist.2.bias"].tolist() == [0.0, 0.0, 0.5]
    # Blocks beyond the tap are not stored, so their number is not known.
    assert weights.config.trunk.num_layers == weights.config.trunk.executed
    convert(sort_sources([tmp_path / "r"]), "acehand", tmp_path / "own")
    assert load_weights(tmp_path / "own").report.filled == weights.report.filled


def test_nothing_is_overwritten_unasked(checkpoint, own_folder, tmp_path):
    for target in TARGETS:
        with pytest.raises(OutputError, match="exists"):
            convert(sort_sources([checkpoint]), target, own_folder)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "one.jpg").write_text("dear")
    for target in TARGETS:
        with pytest.raises(OutputError, match="not replaced"):
            convert(sort_sources([checkpoint]), target, other, overwrite=True)
    assert (other / "one.jpg").read_text() == "dear"
    # Onto itself: what is being read stays readable until it is replaced.
    before = load_weights(own_folder)
    convert(sort_sources([own_folder]), "acehand", own_folder, overwrite=True)
    assert same_weights(load_weights(own_folder), before)
    assert {p.name for p in tmp_path.iterdir()} == {"release", "own", "photos"}


def test_a_failed_write_leaves_nothing(checkpoint, tmp_path, monkeypatch):
    def full(path, tensors):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own, "save_safetensors", full)
    monkeypatch.setattr(torch, "save", lambda data, path: full(path, data))
    for target in TARGETS:
        with pytest.raises(OutputError, match="No space left"):
            convert(sort_sources([checkpoint]), target, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["release"]


def test_export_fills_what_the_model_does_not_hold(checkpoint, base, tmp_path):
    def exported(folder, seed):
        save_official(tmp_path / "out", load_weights(checkpoint), folder, seed)
        data = torch.load(tmp_path / "out" / samples.CHECKPOINT, weights_only=True)
        shutil.rmtree(tmp_path / "out")
        return data

    data, made = exported(base, 0), release()
    for part, shapes in (
        ("projectors", official.projectors(TINY.decoder, 1)),
        ("backbone_trainable", official.backbone_trainable(TINY.trunk)),
        ("raymap_heads", official.raymap_heads(48, 1)),
    ):
        assert tables.shapes_of(data[part]) == shapes
        assert {t.dtype for t in data[part].values()} == {torch.float32}
    trained = data["backbone_trainable"]
    for name, tensor in trained.items():
        if official.runs_in_dit(name, TINY.trunk):
            assert torch.equal(tensor, made.parts["backbone_trainable"][name])
        elif ".lora_B." in name:
            assert not tensor.any()
        elif ".lora_A." in name:
            # A linear layer's start: uniform within 1 / sqrt(inputs), and it fills that range.
            bound = tensor.shape[1] ** -0.5
            assert 0.8 * bound < tensor.abs().max() <= bound
        else:
            assert torch.equal(tensor, made.dit[name].float())
    record = data["acehand"]
    assert structured(ModelConfig, record["config"], "record") == TINY
    assert set(record["from_base"]) == {"head.modulation", "head.head.weight", "head.head.bias"}
    drawn = {entry.split(": ")[1] for entry in record["drawn"]}
    unused = {n for n in data["projectors"] if not official.runs_in_projectors(n[3:], TINY.decoder)}
    assert {n for n in drawn if n.startswith("l1.")} == unused | {"l1.ray_pe.freq_bands"}
    assert data["projectors"]["l1.ray_pe.freq_bands"].tolist() == [2.0**i for i in range(8)]
    # What is drawn depends on the seed and the name alone.
    first, again, other = (exported(None, seed)["backbone_trainable"] for seed in (1, 1, 2))
    assert equal(first, again) and not first["head.head.weight"].any()  # no base given
    name = "blocks.3.ffn.0.lora_A.default.weight"
    assert not torch.equal(first[name], other[name])
    assert not torch.equal(first[name], first[name.replace("3", "2", 1)])


def test_initial_values_are_those_of_fresh_layers():
    """Against layers of PyTorch itself, by their spread."""
    from acehand_core.ace.model.weights.official_files import initial

    config = DecoderConfig(feature_dim=96, width=96, num_layers=2)
    shapes = official.projectors(config, 1)
    values = {name.removeprefix("l1."): initial(name, shapes, 5) for name in shapes}
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(96, 8, 384)
    for name, fresh in layer.state_dict().items():
        ours = values[f"temporal_encoder.layers.0.{name}"]
        assert torch.equal(ours, values[f"temporal_encoder.layers.1.{name}"])
        assert ours.std() == pytest.approx(fresh.std().item(), rel=0.25), name
        assert ours.abs().max() == pytest.approx(fresh.abs().max().item(), rel=0.1), name
    assert values["frame_pool_query"].std() == pytest.approx(0.02, rel=0.3)
    assert values["head_exists_2d.2.bias"].tolist() == [-1.0]
    for name in ("head_betas_segment.3", "ray_pe.ray_proj.2", "head_cam_trans.2"):
        assert not values[f"{name}.weight"].any()
    assert (values["alternating_encoder.final_norm.weight"] == 1).all()


def test_inspection_describes(checkpoint, own_folder):
    for path, layout in ((checkpoint, "official"), (own_folder, "acehand")):
        found = inspect(path)
        data = json.loads(json.dumps(found.to_json()))
        assert (data["layout"], data["variant"], data["tap"]) == (layout, "kfree", 1)
        assert data["problems"] == [] and data["config"]["decoder"]["width"] == 48
        assert "CC BY-NC" in data["licence"]
    parts = {part.name: part for part in inspect(own_folder).parts}
    assert parts["trunk"].dtypes == {"bfloat16": 64, "float32": 2}
    assert "CC BY-NC" in (own_folder / "LICENSE.txt").read_text()
