"""What strict loading refuses, with the tensor or the file named."""

import ast
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from acehand_core.ace.model.weights.inspection import inspect
from acehand_core.ace.model.weights.load import load_weights
from acehand_core.errors import AcehandError, InputError, SchemaError, UnsafeFileError
from helpers import ROOT
from helpers import weights_samples as samples
from helpers.weights_samples import TINY, release, write_repackaged

INDEX = "diffusion_pytorch_model.safetensors.index.json"
CHANGES: dict[str, Callable[[dict[str, Any], str], Any]] = {
    "rename": lambda part, name: part.update({name[:-1] + "x": part.pop(name)}),
    "drop": lambda part, name: part.pop(name),
    "add": lambda part, name: part.update({f"{name}.extra": torch.ones(2)}),
    "reshape": lambda part, name: part.update({name: torch.ones(3, 5)}),
    "integers": lambda part, name: part.update({name: part[name].to(torch.int32)}),
}
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
    [("drop", True, SPOTS), ("reshape", False, SPOTS[::2])]
    + [(change, True, SPOTS[1::4]) for change in ("rename", "add", "integers")]
    + [(change, False, SPOTS[::5]) for change in ("rename", "drop")],
)
def test_a_changed_tensor_is_named(tmp_path, change, record, spots):
    for number, (part, name) in enumerate(spots):
        made = release()
        CHANGES[change]({**made.parts, "dit": made.dit, "vae": made.vae}[part], name)
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


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_tensor_of_converted_weights_is_named(own_folder, tmp_path, change):
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
        CHANGES[change](tensors, name)
        save_file(tensors, path)
        with pytest.raises(SchemaError) as caught:
            load_weights(folder, check_hashes=False)
        assert name in str(caught.value) and file in str(caught.value)
        assert any(name in p for p in inspect(folder).problems)
        path.write_bytes(kept)
    assert inspect(own_folder).problems == inspect(tmp_path / "r").problems == []


def test_other_ray_frequencies_are_another_model(tmp_path):
    made = release()
    made.parts["projectors"]["l1.ray_pe.freq_bands"][3] *= 1.5
    with pytest.raises(SchemaError, match="freq_bands"):
        load_weights(made.write(tmp_path))


def test_damaged_files_are_named(checkpoint, base, own_folder):
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
            with pytest.raises(SchemaError, match=re.escape(str(path))):
                load_weights(whole, check_hashes=False)
        path.write_bytes(kept)


def test_a_flipped_missing_or_unlisted_file_is_named(own_folder):
    for name in ("vae.safetensors", "caption_embedding.safetensors", "LICENSE.txt"):
        kept = (own_folder / name).read_bytes()
        (own_folder / name).write_bytes(kept[:-3] + bytes([kept[-3] ^ 1]) + kept[-2:])
        with pytest.raises(SchemaError, match=rf"{re.escape(name)}: SHA-256"):
            load_weights(own_folder)
        (own_folder / name).write_bytes(kept)
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


def test_code_in_a_pickle_is_refused_and_not_run(checkpoint, base, tmp_path):
    attack, made = Attack(tmp_path / "ran"), release()
    for path, data in (
        (checkpoint, {**made.checkpoint, "x": attack}),
        (base / "Wan2.2_VAE.pth", {**made.vae, "x": attack}),
        (checkpoint.parent / "caption_embed.pt", {"embed": made.caption, "x": attack}),
    ):
        kept = path.read_bytes()
        for write in (
            lambda path, data: torch.save(data, path),
            lambda path, data: torch.save(data, path, _use_new_zipfile_serialization=False),
            lambda path, data: path.write_bytes(pickle.dumps(data["x"])),
        ):
            write(path, data)
            for read in (lambda path: load_weights(checkpoint), inspect):
                with pytest.raises(UnsafeFileError, match=path.name):
                    read(path)
        path.write_bytes(kept)
    assert not (tmp_path / "ran").exists()


def test_torch_load_is_only_called_for_tensors_and_plain_values():
    calls = []
    for path in (ROOT / "acehand_core").rglob("*.py"):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text if "torch.load" in text else "")):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                calls.append(path)
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert given.get("weights_only") == "True", path
    assert calls


def test_paths_out_of_the_folder_are_refused(checkpoint, base, own_folder):
    (base / "diffusion_pytorch_model.safetensors").unlink()
    (base / INDEX).write_text(json.dumps({"weight_map": {"x": "../../etc/passwd"}}))
    with pytest.raises(UnsafeFileError, match="passwd"):
        load_weights(checkpoint)
    config = own_folder / "config.json"
    data = json.loads(config.read_text())
    data["files"]["../x"] = {"sha256": 64 * "0"}
    config.write_text(json.dumps(data))
    with pytest.raises(UnsafeFileError, match=r"\.\./x"):
        load_weights(own_folder)


def test_shards_that_disagree_with_their_index(tmp_path):
    checkpoint = release().write(tmp_path, shards=2)
    base, name = checkpoint.parent / "Wan2.2-Fun-5B-Control", "blocks.0.self_attn.q.weight"
    data = json.loads((base / INDEX).read_text())
    good = data["weight_map"][name]
    other = next(f for f in data["weight_map"].values() if f != good)
    (base / INDEX).write_text(json.dumps({"weight_map": data["weight_map"] | {name: other}}))
    with pytest.raises(SchemaError, match=re.escape(name)):
        load_weights(checkpoint)
    (base / INDEX).write_text(json.dumps(data))
    (base / good).unlink()
    with pytest.raises(InputError, match=good):
        load_weights(checkpoint)


def test_unknown_things_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    torch.save({"a": torch.ones(2)}, tmp_path / "other.pt")
    save_file({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    for name in ("empty", "other.pt", "other.safetensors", "nothing"):
        with pytest.raises(AcehandError, match=name):
            load_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("version",), 2, "version"),
        (("config", "decoder", "queries"), "joints", "joint"),
        (("config", "trunk", "dim"), "48", "whole number"),
        (("config", "trunk", "dims"), 48, "dim"),
        (("config", "variant"), "q", "kfree"),
        (("files",), [], "files"),
        (("inference",), "rays", "inference: .*mapping"),
        (("inference",), {"bearing": "rays"}, "'bearings'"),
        (("inference", "bearings"), "ray", "bearings is 'ray'.*'rays'"),
        (("inference", "hand_model"), 3, "hand_model is 3"),
        (("inference", "fit_guards"), "papers", "fit_guards is 'papers'.*'paper'"),
        (("inference", "ray_cells"), "edge", "ray_cells is 'edge'.*'edges'"),
        (("inference", "encode_width"), "832", "whole number"),
        (("inference", "window_latents"), 1, "window_latents is 1; .*2 or more"),
        (("training_data",), "synthetic", "training_data: .*list"),
        (("training_data",), [{"name": "a", "kind": "rendered"}], "real, synthetic, unknown"),
        (("training_data",), [{"name": "a", "kind": "real", "clip": 3}], "clip is not .*'clips'"),
        (("training_data",), [{"name": "a", "kind": "real", "clips": "3"}], "clips is"),
        (("training_data",), [{"name": "a"}], "kind is missing"),
    ],
)
def test_config_of_our_format_is_checked(own_folder, keys, value, message):
    config = own_folder / "config.json"
    data = inner = json.loads(config.read_text())
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
    inner[keys[-1]] = value
    config.write_text(json.dumps(data))
    with pytest.raises(AcehandError, match=message):
        load_weights(own_folder)
