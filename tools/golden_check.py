"""Are we still the released model? Every case of a manifest, compared tensor by tensor.

    python -m tools.golden_check DIR [--case NAME ...]

Prints one line per tensor and a JSON summary; exits with 0 only if every case passes. Weights are
drawn by the manifest's recipe, under official names, and compared by checksum first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acehand_core.errors import AcehandError, SchemaError, nearest
from acehand_core.hand.mano import ManoHand, load_mano
from acehand_core.safe_files import safe_load_npz
from tools import golden_cases

RECIPE_FORMAT = "ace-golden-recipe-1"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the cases; 1 where one fails, 2 where the manifest cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest", type=Path, help="folder with manifest.json, or that file")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this case")
    wanted = parser.parse_args(arguments)
    results = []
    try:
        for name, checks in check_manifest(wanted.manifest, wanted.case):
            results.append(checks)
            for check in checks:
                state = "pass" if check.passed else "FAIL"
                about = f"largest {check.largest:.2e}, {check.ratio:.2f} of tolerance"
                print(f"{state} {name} {check.tensor} {check.problem or about}", flush=True)
    except AcehandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    passed = sum(all(check.passed for check in checks) for checks in results)
    worst = max((check for checks in results for check in checks), key=lambda check: check.ratio)
    print(json.dumps({"cases": len(results), "passed": passed, "worst": worst.to_json()}))
    return int(passed != len(results))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Scale rules per component, and the shapes of every case."""

    rules: Mapping[str, list[dict[str, Any]]]
    shapes: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Recipe:
        """Read ``recipe.json`` and ``shapes.json``. Raises SchemaError for another format."""
        recipe = read_json(folder / "recipe.json")
        if recipe.get("format") != RECIPE_FORMAT:
            raise SchemaError(
                f"{folder / 'recipe.json'}: format {recipe.get('format')!r}; "
                f"{RECIPE_FORMAT!r} is needed."
            )
        return cls(recipe["components"], read_json(folder / "shapes.json"))

    def component(
        self, case: str, component: str, seed: int, overrides: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        """Return one component's tensors; ``override/<component>/<name>`` replaces a drawn one."""
        tensors = {}
        prefix = f"override/{component}/"
        listed = self.shapes[case].get(component, {})
        # A component that is nothing but overrides has a remark in place of its list.
        names = dict(listed) if isinstance(listed, Mapping) else {}
        names.update({k[len(prefix) :]: v.shape for k, v in overrides.items() if prefix in k})
        for name, shape in names.items():
            replaced = overrides.get(prefix + name)
            if replaced is None:
                replaced = self.draw(component, name, tuple(shape), seed)
            tensors[name] = torch.from_numpy(np.array(replaced))
        return tensors

    def draw(self, component: str, name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """Return one tensor, float32: base + scale * normal, by the first rule that matches.

        Raises SchemaError where no rule does.
        """
        stream = zlib.crc32(f"{component}/{name}".encode()) ^ seed
        normal = np.random.Generator(np.random.PCG64(stream)).standard_normal(shape, np.float32)
        for rule in self.rules[component]:
            if re.search(rule["match"], name):
                break
        else:
            raise SchemaError(f"recipe: no rule of component {component!r} matches {name!r}.")
        scale = rule["gain"]
        if rule["kind"] == "fan_in":
            scale = scale / np.sqrt(np.prod(shape[1:]))
        base = np.resize(np.asarray(rule.get("base", 0.0), np.float32), shape)
        return base + np.float32(scale) * normal


def checksum(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return number of tensors and parameters, and the running CRC-32 in order of names."""
    crc = parameters = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].numpy().astype(np.float32).tobytes(), crc)
        parameters += tensors[name].numel()
    return {"tensors": len(tensors), "parameters": parameters, "crc32": crc}


def read_json(path: Path) -> Any:
    """Return a JSON file's content. Raises SchemaError naming the file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: not readable as JSON: {error}.") from error


def draw(
    case: str, entry: Mapping[str, Any], recipe: Recipe, inputs: Mapping[str, np.ndarray]
) -> dict[str, dict[str, torch.Tensor]]:
    """Return every component of a case, overrides applied."""
    components = {key.split("/")[1] for key in inputs if key.startswith("override/")}
    components |= set(recipe.shapes.get(case, {}))
    return {c: recipe.component(case, c, entry["seed"], inputs) for c in sorted(components)}


def retrained(
    entry: Mapping[str, Any], recipe: Recipe, dit: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint's ``backbone_trainable`` redraws with another seed."""
    names = entry.get("trained_delta", {}).get("seed_plus_1_for", ())
    return {
        name: torch.from_numpy(recipe.draw("dit", name, tuple(dit[name].shape), entry["seed"] + 1))
        for name in names
    }


MANIFEST_FORMAT = "ace-golden-1"
#: How far bfloat16 may be from its reference, in units of that reference's own distance from
#: float32: the rounding differs between machines.
BF16_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One compared tensor. ``ratio`` is the difference in units of what is tolerated: the largest
    difference, or for bfloat16 the worse of median and 95th percentile.
    """

    case: str
    tensor: str
    largest: float
    ratio: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether it is within tolerance and nothing else is wrong."""
        return not self.problem and self.ratio <= 1

    def to_json(self) -> dict[str, Any]:
        """Return the check as a summary shows it; what could not be compared has no numbers."""
        known = np.isfinite(self.largest)
        return {
            "case": self.case, "tensor": self.tensor, "problem": self.problem,
            "largest": self.largest if known else None, "ratio": self.ratio if known else None,
        }  # fmt: skip


def check_manifest(
    folder: Path, only: Sequence[str] | None = None
) -> Iterator[tuple[str, list[TensorCheck]]]:
    """Yield each case's name and its checks, in the manifest's order.

    Args:
        folder: holds ``manifest.json`` and the files it names, or is that manifest.
        only: names of the cases to run; default all.

    Raises:
        SchemaError: no readable manifest of the known format, or no case of such a name.
    """
    path = folder / "manifest.json" if folder.is_dir() else folder
    manifest = read_json(path)
    if manifest.get("format") != MANIFEST_FORMAT:
        raise SchemaError(
            f"{path}: format {manifest.get('format')!r}; {MANIFEST_FORMAT!r} is needed."
        )

    recipe = Recipe.read(path.parent)
    mano = load_mano(path.parent / manifest["mano"])

    entries = {entry["name"]: entry for entry in manifest["cases"]}
    for name in only or ():
        if name not in entries:
            raise SchemaError(f"{path}: no case {name!r}; {nearest(name, entries)}")

    for name in only or entries:
        try:
            yield name, list(_check_case(path.parent, entries[name], entries, recipe, mano))
        except (AcehandError, KeyError, RuntimeError, ValueError) as error:
            yield name, [_failure(name, "", f"{type(error).__name__}: {error}")]


def _check_case(
    folder: Path,
    entry: Mapping[str, Any],
    entries: Mapping[str, Mapping[str, Any]],
    recipe: Recipe,
    mano: ManoHand,
) -> Iterator[TensorCheck]:
    name = entry["name"]
    outputs = _read(folder, entry)

    # A bfloat16 case shares weights and inputs with a float32 one.
    source = entry
    if "inputs_from" in entry:
        source = next(e for e in entries.values() if e["file"] == entry["inputs_from"])
    inputs = outputs if source is entry else _read(folder, source)
    drawn = draw(source["name"], source, recipe, inputs)

    for component, expected in source["recipe_check"].items():
        if (ours := checksum(drawn[component])) != expected:
            yield _failure(name, component, f"recipe checksum {ours}, not {expected}")
            return

    trained = retrained(source, recipe, drawn.get("dit", {}))
    case = golden_cases.Case(name, entry["kind"], source["config"], inputs, drawn, trained)
    results = golden_cases.run(case, mano)
    stated = {key for key in entry["tensors"] if key.startswith("out/")}
    stored = {key for key in outputs if key.startswith("out/")}
    computed = {f"out/{key}" for key in results}

    for names, problem in (
        (stated - computed, "not computed"),
        (stated - stored, "not in the file"),
        (stored - stated, "in the file, but not in the manifest"),
    ):
        for key in sorted(names):
            yield _failure(name, key.removeprefix("out/"), problem)

    for key in sorted(stated & stored & computed):
        short, about = key.removeprefix("out/"), entry["tensors"][key]
        yield _compare(name, short, results[short], outputs[key], about, inputs)


def _read(folder: Path, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return a case's arrays. Raises SchemaError for a file that is not the manifest's."""
    path = folder / entry["file"]
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise SchemaError(f"{path}: cannot be read: {error.strerror}.") from error
    if digest != entry["sha256"]:
        raise SchemaError(f"{path}: SHA-256 is {digest}, not {entry['sha256']}.")
    return safe_load_npz(path)


def _compare(
    case: str,
    key: str,
    ours: np.ndarray,
    theirs: np.ndarray,
    about: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
) -> TensorCheck:
    if ours.shape != theirs.shape:
        return _failure(case, key, f"shape {ours.shape}, not {theirs.shape}")
    error = np.abs(ours.astype(np.float64) - theirs)
    if not np.isfinite(error).all():
        return _failure(case, key, "not finite")

    if "suggested_atol" in about:
        largest, tolerance = float(error.max()), float(about["suggested_atol"])
        return TensorCheck(case, key, largest, _share(largest, tolerance))

    fragile = inputs.get(f"dbg/{key.rpartition('/')[0]}/fragile")
    if key.endswith("cam_trans") and fragile is not None:
        error = error[~fragile]  # rows whose gates rounding may flip
    median = BF16_FACTOR * about["bf16_vs_f32_median_abs"]
    p95 = BF16_FACTOR * about["bf16_vs_f32_p95_abs"]
    ratio = max(_share(np.median(error), median), _share(np.quantile(error, 0.95), p95))

    return TensorCheck(case, key, float(error.max()), ratio)


def _failure(case: str, tensor: str, problem: str) -> TensorCheck:
    return TensorCheck(case, tensor, np.inf, np.inf, problem)


def _share(value: float, tolerated: float) -> float:
    """Return value / tolerated, where nothing is all of a tolerance of nothing."""
    return float(value / tolerated) if tolerated > 0 else (1.0 if value <= 0 else np.inf)


if __name__ == "__main__":
    sys.exit(main())
