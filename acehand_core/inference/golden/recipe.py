"""Weights drawn by a manifest's recipe, under official names, and their checksums."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acehand_core.errors import SchemaError

RECIPE_FORMAT = "ace-golden-recipe-1"


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
        out = {}
        prefix = f"override/{component}/"
        listed = self.shapes[case].get(component, {})
        # A component that is nothing but overrides has a remark in place of its list.
        names = dict(listed) if isinstance(listed, Mapping) else {}
        names.update({k[len(prefix) :]: v.shape for k, v in overrides.items() if prefix in k})
        for name, shape in names.items():
            replaced = overrides.get(prefix + name)
            if replaced is None:
                replaced = self.draw(component, name, tuple(shape), seed)
            out[name] = torch.from_numpy(np.array(replaced))
        return out

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
