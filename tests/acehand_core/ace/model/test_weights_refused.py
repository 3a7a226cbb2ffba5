"""What strict loading refuses, with the tensor or the file named."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from acehand_core.ace.model.weights.inspection import inspect
from acehand_core.ace.model.weights.load import convert, load_weights, sort_sources
from acehand_core.errors import AcehandError, InputError, SchemaError, UnsafeFileError
from helpers import ROOT
from helpers import weights_samples as samples
from helpers.weights_samples import TINY, release, write_repackaged


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return release().write(tmp_path / "release")


@pytest.fixture
def own_folder(checkpoint: Path, tmp_path: Path) -> Path:
    convert(sort_sources([checkpoint]), "acehand", tmp_path / "own")
    return tmp_path / "own"


def rename(part: dict[str, Any], name: str) -> None:
    part[name.replace("weight", "wieght")] = part.pop(name)


def drop(part: dict[str, Any], name: str) -> None:
    del part[name]


def add(part: dict[str, Any], name: str) -> None:
    part[f"{name}.extra"] = torch.ones(2)


def reshape(part: dict[str, Any], name: str) -> None:
    part[name] = torch.ones(3, 5)


def integers(part: dict[str, Any], name: str) -> None:
    part[name] = torch.ones(part[name].shape, dtype=torch.int32)


CHANGES = [rename, drop, add, reshape, integers]
SPOTS = [
    ("projectors", "l1.hand_fuse.1.weight"),
    ("projectors", "l1.temporal_encoder.layers.0.linear1.weight"),  # not even run
    ("raymap_heads", "l1.weight"),
    ("backbone_trainable", "blocks.1.cross_attn.k.lora_B.default.weight"),
    ("backbone_trainable", "blocks.3.ffn.2.lora_A.default.weight"),
    ("backbone_trainable", "patch_embedding.weight"),
    ("backbone_trainable", "head.head.weight"),
    ("dit", "blocks.0.self_attn.q.weight"),
    ("dit", "blocks.3.ffn.0.weight"),
    ("dit", "patch_embedding.weight"),
    ("vae", "encoder.conv1.weight"),
    ("vae", "encoder.middle.1.to_qkv.weight"),
]


@pytest.mark.parametrize(
    "change, record, spots",
    [(drop, True, SPOTS), (reshape, False, SPOTS)]
    + [(change, True, SPOTS[1::3]) for change in (rename, add, integers)]
    + [(change, False, SPOTS[::5]) for change in (rename, drop)],
)
def test_a_changed_tensor_is_named(tmp_path: Path, change: Any, record: bool, spots: Any) -> None:
    for number, (part, name) in enumerate(spots):
        made = release()
        change({**made.parts, "dit": made.dit, "vae": made.vae}[part], name)
        path = made.write(tmp_path / str(number), record=record)
        with pytest.raises(SchemaError) as caught:
            load_weights(path, config=None if record else TINY)
        message = str(caught.value)
        assert name in message, (part, name, message)
        files = {"dit": "diffusion_pytorch_model.safetensors", "vae": "Wan2.2_VAE.pth"}
        assert files.get(part, samples.CHECKPOINT) in message
        assert message.count("tensor '") <= 2, message  # only the culprit
        if record and part not in files:
            assert any(name in problem for problem in inspect(path).problems)


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_changed_tensor_of_converted_weights_is_named(
    own_folder: Path, tmp_path: Path, change: Any
) -> None:
    write_repackaged(tmp_path / "r", load_weights(own_folder))
    for folder, file, name in (
        (own_folder, "trunk.safetensors", "blocks.0.attn1.to_q.weight"),
        (own_folder, "decoder.safetensors", "ray_head.weight"),
        (tmp_path / "r", "kfree/projector/model.safetensors", "hand_fuse.1.weight"),
        (tmp_path / "r", "dit/model.safetensors", "blocks.1.self_attention.key.weight"),
    ):
        path = folder / file
        kept = path.read_bytes()
        tensors = {n: t.clone() for n, t in load_file(path).items()}
        change(tensors, name)
        save_file(tensors, path)
        with pytest.raises(SchemaError) as caught:
            load_weights(folder, check_hashes=False)
        assert name in str(caught.value) and file in str(caught.value)
        assert any(name in p for p in inspect(folder).problems)
        path.write_bytes(kept)
    assert inspect(own_folder).problems == inspect(tmp_path / "r").problems == []


def test_other_ray_frequencies_are_another_model(tmp_path: Path) -> None:
    made = release()
    made.parts["projectors"]["l1.ray_pe.freq_bands"][3] *= 1.5
    with pytest.raises(SchemaError, match="freq_bands"):
        load_weights(made.write(tmp_path))


def test_damaged_files_are_named(checkpoint: Path, own_folder: Path, tmp_path: Path) -> None:
    base, made = checkpoint.parent / "Wan2.2-Fun-5B-Control", release()
    for path, whole in (
        (checkpoint, checkpoint),
        (base / "diffusion_pytorch_model.safetensors", checkpoint),
        (base / "Wan2.2_VAE.pth", checkpoint),
        (checkpoint.parent / "caption_embed.pt", checkpoint),
        (own_folder / "trunk.safetensors", own_folder),
        (own_folder / "config.json", own_folder),
    ):
        kept = path.read_bytes()
        for size in (len(kept) - 9, len(kept) // 2, 70, 0):
            path.write_bytes(kept[:size])
            with pytest.raises(SchemaError) as caught:
                load_weights(whole, check_hashes=False)
            assert str(path) in str(caught.value)
        path.write_bytes(kept)
    # Whole again, the very numbers come back that the release was made of: of its three trained
    # parts, of the base and of the VAE one tensor each, under the names that run.
    for folder in (checkpoint, own_folder):
        loaded = load_weights(folder)
        for ours, theirs in (
            (loaded.trunk["blocks.1.ffn.net.2.weight"], made.dit["blocks.1.ffn.2.weight"]),
            (loaded.trunk["patch_embedding.weight"],
             made.parts["backbone_trainable"]["patch_embedding.weight"]),
            (loaded.vae["encoder.conv_in.weight"], made.vae["encoder.conv1.weight"]),
            (loaded.decoder["hand_fuse.1.weight"],
             made.parts["projectors"]["l1.hand_fuse.1.weight"]),
            (loaded.ray_head["weight"], made.parts["raymap_heads"]["l1.weight"]),
            (loaded.caption, made.caption),
        ):  # fmt: skip
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "name", ["vae.safetensors", "caption_embedding.safetensors", "LICENSE.txt"]
)
def test_a_flipped_bit_is_found_by_its_hash(name: str, own_folder: Path) -> None:
    data = bytearray((own_folder / name).read_bytes())
    data[-3] ^= 1
    (own_folder / name).write_bytes(data)
    with pytest.raises(SchemaError, match=rf"{re.escape(name)}: SHA-256"):
        load_weights(own_folder)


def test_a_missing_or_unlisted_file_is_named(own_folder: Path) -> None:
    (own_folder / "LICENSE.txt").unlink()
    with pytest.raises(SchemaError, match=r"LICENSE\.txt"):
        load_weights(own_folder)
    config = own_folder / "config.json"
    data = json.loads(config.read_text())
    del data["files"]["LICENSE.txt"], data["files"]["trunk.safetensors"]
    config.write_text(json.dumps(data))
    assert any("trunk.safetensors" in p for p in inspect(own_folder).problems)


class Attack:
    """Runs a command when unpickled, if it is let."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_code_in_a_pickle_is_refused_and_not_run(checkpoint: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    attack, made = Attack(mark), release()
    base = checkpoint.parent / "Wan2.2-Fun-5B-Control"
    for path, data in (
        (checkpoint, {**made.checkpoint, "extra": attack}),
        (base / "Wan2.2_VAE.pth", {**made.vae, "x": attack}),
        (checkpoint.parent / "caption_embed.pt", {"embed": made.caption, "x": attack}),
    ):
        kept = path.read_bytes()
        for write in (
            lambda path, data: torch.save(data, path),
            lambda path, data: torch.save(data, path, _use_new_zipfile_serialization=False),
            lambda path, data: path.write_bytes(
                pickle.dumps(data["x" if "x" in data else "extra"])
            ),
        ):
            write(path, data)
            with pytest.raises(UnsafeFileError, match=path.name):
                load_weights(checkpoint)
            with pytest.raises(UnsafeFileError, match=path.name):
                inspect(path)
        path.write_bytes(kept)
    assert not mark.exists()


def test_torch_load_is_only_called_for_tensors_and_plain_values() -> None:
    calls = []
    for path in (ROOT / "acehand_core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                calls.append(path)
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert given.get("weights_only") == "True", path
    assert calls


def test_paths_out_of_the_folder_are_refused(checkpoint: Path, own_folder: Path) -> None:
    base = checkpoint.parent / "Wan2.2-Fun-5B-Control"
    (base / "diffusion_pytorch_model.safetensors").unlink()
    index = base / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))
    with pytest.raises(UnsafeFileError, match="passwd"):
        load_weights(checkpoint)
    config = own_folder / "config.json"
    data = json.loads(config.read_text())
    data["files"]["../x"] = {"sha256": 64 * "0"}
    config.write_text(json.dumps(data))
    with pytest.raises(UnsafeFileError, match=r"\.\./x"):
        load_weights(own_folder)


def test_shards_that_disagree_with_their_index(tmp_path: Path) -> None:
    checkpoint = release().write(tmp_path, shards=2)
    base = checkpoint.parent / "Wan2.2-Fun-5B-Control"
    index = base / "diffusion_pytorch_model.safetensors.index.json"
    data = json.loads(index.read_text())
    name = "blocks.0.self_attn.q.weight"
    good = data["weight_map"][name]
    data["weight_map"][name] = next(f for f in data["weight_map"].values() if f != good)
    index.write_text(json.dumps(data))
    with pytest.raises(SchemaError, match=r"blocks\.0\.self_attn\.q\.weight"):
        load_weights(checkpoint)
    data["weight_map"][name] = good
    index.write_text(json.dumps(data))
    (base / good).unlink()
    with pytest.raises(InputError, match=good):
        load_weights(checkpoint)


def test_unknown_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    torch.save({"a": torch.ones(2)}, tmp_path / "other.pt")
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    for name in ("empty", "other.pt", "other.safetensors", "nothing"):
        with pytest.raises(AcehandError, match=name):
            load_weights(tmp_path / name)


def test_config_of_our_format_is_checked(own_folder: Path) -> None:
    config = own_folder / "config.json"
    good = json.loads(config.read_text())
    for path, value, message in (
        (("version",), 2, "version"),
        (("config", "decoder", "queries"), "joints", "joint"),
        (("config", "trunk", "dim"), "48", "whole number"),
        (("config", "trunk", "dims"), 48, "dim"),
        (("config", "variant"), "q", "kfree"),
        (("files",), [], "files"),
    ):
        data = json.loads(json.dumps(good))
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        config.write_text(json.dumps(data))
        with pytest.raises(AcehandError, match=message):
            load_weights(own_folder)
