"""The one place where pickles are read: MANO's official files and datasets that are pickles.

``restricted_load`` gives a pickle nothing but the inert classes of ``pickle_stubs`` and then turns
what they recorded into plain Python and numpy data. Every format has its allow-list; a file that
names anything else is refused before any of it is used. Protects against code and forged memory; a
file may still waste time.

torch tensors inside plain pickles, read as numpy arrays without torch and without running them.

``pickle.dump`` of a tensor stores its numbers as bytes in torch's old file layout: five small
pickles (a magic number, a version, facts of the machine, the storage, the list of its keys), the
count, the raw numbers. All five go through the restricted unpickler too.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from acehand_core.errors import InputError, SchemaError, UnsafeFileError
from acehand_core.files import pickle_stubs

_MAX_BYTES = 4 << 30

PLAIN = {
    ("builtins", "object"): pickle_stubs.PyObject,
    ("builtins", "set"): pickle_stubs.PlainSet,
    ("builtins", "frozenset"): pickle_stubs.PlainFrozenSet,
    ("builtins", "bytes"): pickle_stubs.EmptyBytes,
    ("collections", "OrderedDict"): pickle_stubs.PlainDict,
    ("copyreg", "_reconstructor"): pickle_stubs.Reconstructor,
    ("_codecs", "encode"): pickle_stubs.Encode,
}
NUMPY = {
    ("numpy", "ndarray"): pickle_stubs.Ndarray,
    ("numpy", "dtype"): pickle_stubs.Dtype,
    ("numpy.core.multiarray", "_reconstruct"): pickle_stubs.ArrayReconstruct,
    ("numpy.core.multiarray", "scalar"): pickle_stubs.ArrayScalar,
    ("numpy.core.numeric", "_frombuffer"): pickle_stubs.ArrayFromBuffer,
}
_SCIPY = {
    ("scipy.sparse.csc", "csc_matrix"): pickle_stubs.SparseColumns,
    ("scipy.sparse.csr", "csr_matrix"): pickle_stubs.SparseRows,
    ("scipy.sparse._csc", "csc_matrix"): pickle_stubs.SparseColumns,
    ("scipy.sparse._csr", "csr_matrix"): pickle_stubs.SparseRows,
}
_CHUMPY = {
    ("chumpy.ch", "Ch"): pickle_stubs.Chumpy,
    ("chumpy.reordering", "Select"): pickle_stubs.ChumpySelect,
}
#: Names of Python 2 and of numpy 2 for the modules above.
_MODULE_ALIASES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy._core.multiarray": "numpy.core.multiarray",
    "numpy._core.numeric": "numpy.core.numeric",
}


@dataclass(frozen=True, slots=True)
class AllowList:
    """What a format may name: (module, name) to the stand-in that takes its place."""

    globals: Mapping[tuple[str, str], type]

    def names(self) -> Iterable[str]:
        """Return the dotted names, sorted."""
        return sorted(f"{module}.{name}" for module, name in self.globals)


NPY_OBJECT = AllowList({**PLAIN, **NUMPY})
MANO_PKL = AllowList({**PLAIN, **NUMPY, **_SCIPY, **_CHUMPY})


# The C unpickler reserves memory for any memo index that a file names; the Python one does not.
class RestrictedUnpickler(pickle._Unpickler):
    read: Callable[[int], bytes]  # these two are set by ``load``
    append: Callable[[Any], None]

    def __init__(self, file: io.BufferedIOBase, allow: AllowList, label: str) -> None:
        super().__init__(file, encoding="latin1")
        self._allow, self._label = allow, label

    def find_class(self, module: Any, name: Any) -> type:
        stub = self._allow.globals.get((_MODULE_ALIASES.get(module, module), name))
        if stub is None:
            raise UnsafeFileError(
                f"{self._label} names {module}.{name}; nothing was run and the file is refused. "
                f"Valid there: {', '.join(self._allow.names())}."
            )
        return stub

    def load_bytearray8(self) -> None:
        # The original reserves whatever length the file announces.
        (length,) = struct.unpack("<Q", self.read(8))
        data = self.read(length)
        if len(data) != length:
            raise EOFError("a byte array ends early")
        self.append(bytearray(data))

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }

    def get_extension(self, code: int) -> None:
        raise UnsafeFileError(f"{self._label} uses the registered extension {code}; refused.")

    def persistent_load(self, key: Any) -> None:
        raise UnsafeFileError(f"{self._label} refers to an object outside the file; refused.")


def restricted_load(
    path_or_file: Path | io.BufferedIOBase, allow: AllowList, format_name: str
) -> Any:
    """Return the data in a pickle of protocol 0 to 5 without running anything it asks for.

    Args:
        path_or_file: a path, or a binary file positioned at the pickle.
        allow: the format's allow-list.
        format_name: what the file should be, for messages ("MANO .pkl").

    Returns:
        Dicts, lists, tuples, sets, numbers, strings and numpy arrays. Python 2 byte strings are
        decoded as latin1; chumpy objects are their arrays; sparse matrices are scipy's.

    Raises:
        UnsafeFileError: the file names something that is not listed, or uses what is listed in a
            way that data does not.
        SchemaError: it is truncated or no pickle. InputError: it cannot be read or is too big.
    """
    data, name = _read(path_or_file)
    label = f"{name}: this {format_name}"
    try:
        return pickle_stubs.Resolver()(RestrictedUnpickler(io.BytesIO(data), allow, label).load())
    except UnsafeFileError:
        raise
    except pickle_stubs.StandInError as error:
        raise UnsafeFileError(f"{label} is refused: {error}.") from error
    except (EOFError, pickle.UnpicklingError, struct.error, LookupError, ValueError) as error:
        raise SchemaError(
            f"{label} is truncated or not a pickle ({type(error).__name__}: {error})."
        ) from error
    except Exception as error:
        # Only files made by hand get here: they call data, or change a class.
        raise UnsafeFileError(
            f"{label} is refused: it does not only hold data ({error})."
        ) from error


def load_npy_object(
    path: Path, allow: AllowList = NPY_OBJECT, format_name: str = ".npy of objects"
) -> np.ndarray:
    """Return the object array of a pickled ``.npy`` file, read as ``restricted_load`` does.

    Raises: as ``restricted_load``; SchemaError if it is no ``.npy`` of objects.
    """
    data, name = _read(path)
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read_header(stream)
    except (ValueError, KeyError) as error:
        raise SchemaError(f"{name}: not a .npy file of version 1 or 2 ({error}).") from error

    if dtype != np.dtype(object):
        raise SchemaError(f"{name}: holds {dtype}, not objects; read it with numpy.load.")
    stream.name = name
    value = restricted_load(stream, allow, format_name)
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        raise SchemaError(f"{name}: the pickle does not hold the array that its header announces.")

    return value


def _read(path_or_file: Path | io.BufferedIOBase) -> tuple[bytes, str]:
    """Return the bytes and a name for messages."""
    if not isinstance(path_or_file, Path):
        return path_or_file.read(), str(getattr(path_or_file, "name", "<stream>"))
    try:
        size = path_or_file.stat().st_size
        if size > _MAX_BYTES:
            raise InputError(f"{path_or_file}: {size} bytes; at most {_MAX_BYTES} are read.")
        return path_or_file.read_bytes(), str(path_or_file)
    except OSError as error:
        raise InputError(f"{path_or_file}: cannot be read ({error.strerror}).") from error


_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001


class _Storage(pickle_stubs.StandIn):
    """Base of the storage types; ``code`` is numpy's name of the numbers, little-endian."""

    code: ClassVar[str]


_STORAGES = {
    ("torch", f"{name}Storage"): type(f"{name}Storage", (_Storage,), {"code": code})
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


class StorageBytes(pickle_stubs.StandIn):
    """``torch.storage._load_from_bytes``: the numbers of a tensor."""

    def value(self, resolve: pickle_stubs.Resolver) -> np.ndarray:
        raw = self.args[0] if len(self.args) == 1 else None
        if not isinstance(raw, bytes | bytearray):
            raise pickle_stubs.StandInError("a tensor lacks its bytes")

        stream = io.BytesIO(raw)
        try:
            parts = [_InnerUnpickler(stream, _INNER, "a tensor").load() for _ in range(5)]
            (count,) = struct.unpack("<q", stream.read(8))
        except (EOFError, pickle.UnpicklingError, struct.error, LookupError, ValueError) as error:
            raise pickle_stubs.StandInError(f"a tensor is damaged ({error})") from error

        magic, version, machine, storage, _ = parts
        if magic != _MAGIC or version != _VERSION:
            raise pickle_stubs.StandInError("a tensor is not in torch's old layout")
        if type(machine) is not dict or machine.get("little_endian") is not True:
            raise pickle_stubs.StandInError("a tensor is not little-endian")
        if type(storage) is not tuple or storage[1] != count:
            raise pickle_stubs.StandInError("a tensor announces two lengths")
        dtype = np.dtype(storage[0].code)
        data = stream.read()
        if len(data) != count * dtype.itemsize:
            raise pickle_stubs.StandInError(f"a tensor of {count} numbers has {len(data)} bytes")

        return np.frombuffer(data, dtype)


class Tensor(pickle_stubs.StandIn):
    """``torch._utils._rebuild_tensor_v2``: shape and strides over a storage."""

    def value(self, resolve: pickle_stubs.Resolver) -> np.ndarray:
        if len(self.args) < 4 or not isinstance(self.args[0], StorageBytes):
            raise pickle_stubs.StandInError("a tensor is not described")
        flat, (offset, size, stride) = resolve(self.args[0]), self.args[1:4]
        whole = type(offset) is int and type(size) is tuple and type(stride) is tuple
        if not whole or any(type(n) is not int or n < 0 for n in (offset, *size, *stride)):
            raise pickle_stubs.StandInError("a tensor's shape is not a shape")
        if len(size) != len(stride):
            raise pickle_stubs.StandInError("a tensor's shape and strides differ in length")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) > flat.size or (math.prod(size) and last >= flat.size):
            raise pickle_stubs.StandInError("a tensor reaches past its numbers")
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
