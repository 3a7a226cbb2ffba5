"""torch tensors inside plain pickles, read as numpy arrays without torch and without running them.

``pickle.dump`` of a tensor stores its numbers as bytes in torch's old file layout: five small
pickles (a magic number, a version, facts of the machine, the storage, the list of its keys), the
count, the raw numbers. All five go through the restricted unpickler too.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from typing import Any, ClassVar

import numpy as np

from acehand_core.data import standins
from acehand_core.data.unpickle import NUMPY, PLAIN, AllowList, RestrictedUnpickler
from acehand_core.errors import UnsafeFileError

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001


class _Storage(standins.StandIn):
    """Base of the storage types; ``code`` is numpy's name of the numbers, little-endian."""

    code: ClassVar[str]


def _storage(name: str, code: str) -> type:
    return type(_Storage)(name, (_Storage,), {"code": code})


_STORAGES = {
    ("torch", f"{name}Storage"): _storage(f"{name}Storage", code)
    for name, code in (
        ("Float", "<f4"), ("Double", "<f8"), ("Half", "<f2"), ("Long", "<i8"), ("Int", "<i4"),
        ("Short", "<i2"), ("Char", "i1"), ("Byte", "u1"), ("Bool", "?"),
    )
}  # fmt: skip
_INNER = AllowList({**PLAIN, **_STORAGES})


class _InnerUnpickler(RestrictedUnpickler):
    """One of the five pickles; the only outside object it may name is the storage of this file."""

    def persistent_load(self, key: Any) -> Any:
        if type(key) is not tuple or len(key) < 5 or key[0] != "storage":
            raise UnsafeFileError("A tensor refers to an object outside the file; refused.")
        kind, count = key[1], key[4]
        if not (isinstance(kind, type) and issubclass(kind, _Storage) and type(count) is int):
            raise UnsafeFileError("A tensor's storage is of no listed type; refused.")
        return kind, count


class StorageBytes(standins.StandIn):
    """``torch.storage._load_from_bytes``: the numbers of a tensor."""

    def value(self, resolve: standins.Resolver) -> np.ndarray:
        raw = self.args[0] if len(self.args) == 1 else None
        if type(raw) not in (bytes, bytearray):
            raise standins.StandInError("a tensor lacks its bytes")
        stream = io.BytesIO(raw)
        try:
            parts = [_InnerUnpickler(stream, _INNER, "a tensor").load() for _ in range(5)]
            (count,) = struct.unpack("<q", stream.read(8))
        except (EOFError, pickle.UnpicklingError, struct.error, LookupError, ValueError) as error:
            raise standins.StandInError(f"a tensor is damaged ({error})") from error
        magic, version, machine, storage, _ = parts
        if magic != _MAGIC or version != _VERSION:
            raise standins.StandInError("a tensor is not in torch's old layout")
        if type(machine) is not dict or machine.get("little_endian") is not True:
            raise standins.StandInError("a tensor is not little-endian")
        if type(storage) is not tuple or storage[1] != count:
            raise standins.StandInError("a tensor announces two lengths")
        dtype = np.dtype(storage[0].code)
        data = stream.read()
        if len(data) != count * dtype.itemsize:
            raise standins.StandInError(f"a tensor of {count} numbers has {len(data)} bytes")
        return np.frombuffer(data, dtype)


class Tensor(standins.StandIn):
    """``torch._utils._rebuild_tensor_v2``: shape and strides over a storage."""

    def value(self, resolve: standins.Resolver) -> np.ndarray:
        if len(self.args) < 4 or not isinstance(self.args[0], StorageBytes):
            raise standins.StandInError("a tensor is not described")
        flat, (offset, size, stride) = resolve(self.args[0]), self.args[1:4]
        whole = type(offset) is int and type(size) is tuple and type(stride) is tuple
        if not whole or any(type(n) is not int or n < 0 for n in (offset, *size, *stride)):
            raise standins.StandInError("a tensor's shape is not a shape")
        if len(size) != len(stride):
            raise standins.StandInError("a tensor's shape and strides differ in length")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) > flat.size or (math.prod(size) and last >= flat.size):
            raise standins.StandInError("a tensor reaches past its numbers")
        view = np.lib.stride_tricks.as_strided(
            flat[offset:], size, [step * flat.itemsize for step in stride], writeable=False
        )
        return view.copy()


#: Pickles that hold numpy arrays and torch tensors.
TORCH_PKL = AllowList(
    {
        **PLAIN,
        **NUMPY,
        ("torch._utils", "_rebuild_tensor_v2"): Tensor,
        ("torch.storage", "_load_from_bytes"): StorageBytes,
    }
)
