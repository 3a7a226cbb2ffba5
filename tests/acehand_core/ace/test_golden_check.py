"""``tools.golden_check``: all public cases pass, and everything that can be wrong is noticed."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from helpers import DATA
from tools.golden_check import main


def check(folder, capsys, *flags):
    """Return exit code, JSON and the lines before it."""
    capsys.readouterr()
    code = main([str(folder), *flags])
    *lines, last = capsys.readouterr().out.splitlines()
    return code, json.loads(last), lines


@pytest.mark.few(1)
@pytest.mark.parametrize("every", [False, True], ids=["those of tests/data", "all"])
def test_every_public_case_passes(every, golden_folder, capsys):
    golden_folder = golden_folder if every else DATA / "golden"
    code, summary, lines = check(golden_folder, capsys)
    failed = [line for line in lines if not line.startswith("pass")]
    assert failed == [] and code == 0
    manifest = json.loads((golden_folder / "manifest.json").read_text())
    assert summary["cases"] == summary["passed"] == len(manifest["cases"])
    assert 0 < summary["worst"]["ratio"] <= 1
    wanted = {
        (case["name"], tensor.removeprefix("out/"))
        for case in manifest["cases"]
        for tensor in case["tensors"]
        if tensor.startswith("out/")
    }
    assert {tuple(line.split()[1:3]) for line in lines} == wanted


def one_case(golden, folder, name):
    """A manifest of one case and what it needs."""
    for file in ("recipe.json", "shapes.json", "mano_synthetic.npz", f"{name}.npz"):
        shutil.copy(golden / file, folder / file)
    manifest = json.loads((golden / "manifest.json").read_text())
    manifest["cases"] = [case for case in manifest["cases"] if case["name"] == name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def copy(golden_folder, tmp_path):
    return one_case(golden_folder, tmp_path, "pnp_public")


def edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["cases"][0])
    path.write_text(json.dumps(manifest))


def replace_arrays(folder, **arrays):
    """Change arrays of the case's file, and its hash with it."""
    path = folder / "pnp_public.npz"
    with np.load(path) as data:
        kept = {**data, **arrays}
    np.savez(path, **{k: v for k, v in kept.items() if v is not None})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    edit(folder, lambda case: case.update(sha256=digest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda case: case.update(sha256="0" * 64), "SHA-256"),
        (lambda case: case["tensors"].pop("out/k/cam_trans"), "not in the manifest"),
        (lambda case: case["tensors"].update({"out/k/more": {}}), "not computed"),
        (lambda case: case.update(kind="mystery"), "mystery"),
        (lambda case: case.update(file="gone.npz"), "gone.npz"),
        (lambda case: case.update(recipe_check={"vae": {"tensors": 1}}), "vae"),
        (lambda case: case["tensors"]["out/k/cam_trans"].update(suggested_atol=1e-12), "FAIL"),
    ],
)  # fmt: skip
def test_what_is_wrong_fails(copy, capsys, change, message):
    assert check(copy, capsys)[0] == 0
    edit(copy, change)
    code, summary, lines = check(copy, capsys)
    assert code == 1 and summary["passed"] == 0 and summary["worst"]["case"] == "pnp_public"
    assert any(line.startswith("FAIL") and message in line for line in lines)


def test_what_cannot_be_checked_is_named(copy, capsys):
    assert main([str(copy), "--case", "pnp_publik"]) == 2
    assert "Did you mean 'pnp_public'" in capsys.readouterr().err
    for text, named in (("{", "JSON"), ('{"format": "other"}', "ace-golden-1")):
        (copy / "manifest.json").write_text(text)
        assert main([str(copy)]) == 2
        assert named in capsys.readouterr().err


def test_changed_numbers_fail(copy, capsys):
    with np.load(copy / "pnp_public.npz") as data:
        changed = data["out/kfree/cam_trans"].copy()
    changed[3, 1, 0] += 1e-3
    replace_arrays(copy, **{"out/kfree/cam_trans": changed})
    code, _, lines = check(copy, capsys)
    assert code == 1
    assert [line.split()[2] for line in lines if line.startswith("FAIL")] == ["kfree/cam_trans"]
    replace_arrays(copy, **{"out/k/cam_trans": None})
    assert check(copy, capsys)[0] == 1


def test_a_changed_recipe_fails(golden_folder, tmp_path, capsys):
    folder = one_case(golden_folder, tmp_path, "vae_public_f17")
    recipe = json.loads((folder / "recipe.json").read_text())
    recipe["components"]["vae"][0]["gain"] = 0.2
    (folder / "recipe.json").write_text(json.dumps(recipe))
    code, _, lines = check(folder, capsys)
    assert code == 1 and "recipe checksum" in lines[0]
