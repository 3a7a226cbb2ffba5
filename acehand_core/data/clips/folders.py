"""The JSON files of stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acehand_core.atomic import atomic_path
from acehand_core.errors import SchemaError


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write JSON that appears whole or not at all. Raises OutputError."""
    with atomic_path(path, overwrite=True) as partial:
        partial.write_text(json.dumps(value, indent=1, default=plain) + "\n", "utf-8")


def read_json(path: Path) -> Any:
    """Read JSON. Raises SchemaError."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SchemaError(f"{path}: not readable as JSON: {error}.") from error


def plain(value: Any) -> Any:
    """Return what JSON can hold of a setting: numbers of numpy, else text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
