"""Files of tensors: opened without reading the values or running code."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.user_files import read_object

INDEX_SUFFIX = ".index.json"
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True, slots=True)
class TensorStore:
    """Named tensors of a file, or of all its shards; values are read on demand.

    Tensors of a safetensors file are private memory maps: untouched pages are never read, and
    writes do not reach the file.
    """

    where: str
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    files: tuple[Path, ...]
    fetch: Callable[[str], torch.Tensor]

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Return these tensors."""
        return {name: self.fetch(name) for name in names}


def open_safetensors(path: Path) -> TensorStore:
    """Open a safetensors file, or the shards of a ``*.index.json``.

    Raises SchemaError for a damaged file or index, UnsafeFileError for a shard outside the index's
    folder, InputError for a missing file.
    """
    if path.name.endswith(INDEX_SUFFIX):
        return _open_shards(path)
    try:
        handle = safe_open(str(path), framework="pt", device="cpu")
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise SchemaError(f"{path}: damaged or no safetensors file ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error
    shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
    dtypes = {n: _DTYPES.get(part.get_dtype(), part.get_dtype()) for n, part in slices.items()}
    return TensorStore(str(path), shapes, dtypes, (path,), handle.get_tensor)


def _open_shards(index: Path) -> TensorStore:
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(f, str) for f in files.values()):
        raise SchemaError(f"{index}: 'weight_map' must map tensor names to file names.")

    stores = {}
    for file in sorted(set(files.values())):
        if Path(file).name != file:
            raise UnsafeFileError(f"{index}: names the file {file!r}; valid are plain file names.")
        if not (index.parent / file).is_file():
            raise InputError(f"{index}: the shard {file} is missing.")
        stores[file] = open_safetensors(index.parent / file)

    for file, store in stores.items():
        listed = {name for name, where in files.items() if where == file}
        for name in sorted(listed ^ store.shapes.keys()):
            lacks = "lists a tensor it lacks" if name in listed else "does not list its tensor"
            raise SchemaError(f"{store.where}: the index {index.name} {lacks}: {name!r}.")
    return TensorStore(
        str(index),
        {name: stores[file].shapes[name] for name, file in files.items()},
        {name: stores[file].dtypes[name] for name, file in files.items()},
        (index, *(index.parent / file for file in stores)),
        lambda name: stores[files[name]].fetch(name),
    )


def open_pickle(path: Path) -> Any:
    """Return the object in a ``torch.save`` file of tensors (private memory maps) and plain values.

    Raises UnsafeFileError for any other content, SchemaError for a damaged file, InputError for an
    unreadable one.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    lazily = zipfile.is_zipfile(path)

    try:
        with warnings.catch_warnings():  # about pickles that are refused anyway
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"asks for {match[1]}" if match else "holds more than tensors and plain values"
        raise UnsafeFileError(
            f"{path}: {what}, which could run code; valid: a torch.save file of tensors and plain "
            "values, or safetensors."
        ) from error
    except PermissionError as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error
    except (OSError, RuntimeError, EOFError, LookupError, ValueError, TypeError) as error:
        reason = str(error).split("\n", 1)[0][:120] or type(error).__name__
        raise SchemaError(f"{path}: damaged or no torch.save file ({reason}).") from error


def store_of(tensors: Mapping[str, Any], where: str, files: tuple[Path, ...] = ()) -> TensorStore:
    """Return tensors in memory as a store. Raises SchemaError for a value that is no tensor."""
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise SchemaError(f"{where}: {name!r} is a {type(value).__name__}, not a tensor.")
        if value.layout != torch.strided or value.is_quantized:
            raise SchemaError(f"{where}: tensor {name!r} is sparse or quantized; dense is needed.")
    return TensorStore(
        where,
        {name: tuple(value.shape) for name, value in tensors.items()},
        {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()},
        files,
        lambda name: tensors[name].detach(),
    )


def save_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file. Raises OSError."""
    dense = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    path.touch()  # the library would restrict the file's permissions
    mode = path.stat().st_mode
    try:
        save_file(dense, str(path), metadata={"format": "pt"})
        path.chmod(mode)
    except SafetensorError as error:  # a full disk
        raise OSError(str(error)) from error
