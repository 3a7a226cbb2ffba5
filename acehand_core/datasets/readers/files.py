"""Small files of datasets: JSON, numbers in text, plain and pickled arrays, checked and named."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from acehand_core.errors import InputError, SchemaError
from acehand_core.files.unpickling import NPY_OBJECT, load_npy_object

_MAX_JSON_BYTES = 4 << 30


def read_json(path: Path) -> Any:
    """Return a JSON file's content. Raises InputError or SchemaError with the file named."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InputError(f"{path}: larger than {_MAX_JSON_BYTES} bytes.")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: not JSON ({error}).") from error


def parse_json(data: bytes, where: str) -> Any:
    """Return the content of JSON bytes; ``where`` names them in errors."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where}: not JSON ({error}).") from error


def read_text(path: Path) -> str:
    """Return a text file's content. Raises InputError with the file named."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}).") from error


def read_numbers(path: Path, count: int) -> np.ndarray:
    """Return ``count`` numbers separated by white space. Raises SchemaError for another count."""
    try:
        values = np.array([float(word) for word in read_text(path).split()])
    except ValueError as error:
        raise SchemaError(f"{path}: not only numbers ({error}).") from error
    if len(values) != count:
        raise SchemaError(f"{path}: {len(values)} numbers, {count} are needed.")
    return values


def get(value: Any, key: str, where: str) -> Any:
    """Return an entry of a mapping. Raises SchemaError that names the key and what is there."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where}: a mapping with {key!r} is needed, not {type(value).__name__}.")
    if key not in value:
        there = ", ".join(sorted(map(str, value))[:20])
        raise SchemaError(f"{where}: {key!r} is missing; there is: {there or 'nothing'}.")
    return value[key]


def numbers(value: Any, where: str) -> np.ndarray:
    """Return float64 numbers of any shape, NaN included. Raises SchemaError with ``where``."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: not an array of numbers ({error}).") from error


def array(value: Any, shape: tuple[int | None, ...], where: str) -> np.ndarray:
    """Return finite float64 numbers of a shape; None stands for any length of an axis.

    Raises SchemaError with ``where``.
    """
    out = numbers(value, where)
    fits = out.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(out.shape, shape, strict=True)
    )
    if not fits:
        wanted = " x ".join("any" if n is None else str(n) for n in shape) or "one number"
        raise SchemaError(f"{where}: has shape {out.shape}; {wanted} is needed.")
    if not np.isfinite(out).all():
        raise SchemaError(f"{where}: holds NaN or infinite numbers.")
    return out


def flat(value: Any, count: int, where: str) -> np.ndarray:
    """Return ``count`` finite float64 numbers of any nesting. Raises SchemaError with ``where``."""
    return array(numbers(value, where).ravel(), (count,), where)


def integer(value: Any, where: str) -> int:
    """Return a whole number. Raises SchemaError with ``where`` for anything else."""
    number = isinstance(value, int | float | np.integer | np.floating | np.ndarray)
    if number and not isinstance(value, bool) and np.size(value) == 1:
        plain = float(np.ravel(value)[0])
        if plain.is_integer() and abs(plain) < 2**53:
            return int(plain)
    raise SchemaError(f"{where}: a whole number is needed, not {str(value)[:60]!r}.")


def mapping(value: Any, where: str) -> dict:
    """Return a mapping as it is. Raises SchemaError with ``where`` for anything else."""
    if not isinstance(value, dict):
        raise SchemaError(f"{where}: a mapping is needed, not {type(value).__name__}.")
    return value


def entry_of(value: Any, index: int, where: str) -> Any:
    """Return an entry of a list or array. Raises SchemaError where there is none."""
    listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)
    if listed and 0 <= index < len(value):
        return value[index]
    kind = type(value).__name__
    raise SchemaError(f"{where}: a list with an entry {index} is needed, not this {kind}.")


def read_npy(path: Path) -> np.ndarray:
    """Return a plain ``.npy`` array; a pickled one is refused."""
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, EOFError) as error:
        raise SchemaError(f"{path}: not a plain .npy array ({error}).") from error


def read_npy_dict(path: Path, format_name: str) -> dict:
    """Return the dict in a pickled ``.npy``, read by the restricted unpickler."""
    value = load_npy_object(path, NPY_OBJECT, format_name)
    if value.shape != () or not isinstance(value.item(), dict):
        raise SchemaError(f"{path}: this {format_name} does not hold one dict.")
    return value.item()


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; hidden ones left out."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def need_folder(root: Path, choices: Iterable[str], title: str) -> Path:
    """Return the first folder of ``choices`` under ``root``.

    Raises InputError that says what the dataset looks like.
    """
    names = list(choices)
    for name in names:
        if (root / name).is_dir():
            return root / name
    looked = ", ".join(f"{name}/" for name in names)
    raise InputError(f"{root}: this does not look like {title}; none of {looked} is there.")


def safe_name(*parts: str) -> str:
    """Return a file name made of parts: letters, digits, ``_``, ``-`` and ``.`` stay."""
    text = "_".join(part for part in parts if part)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
