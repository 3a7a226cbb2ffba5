"""The one place where pickles are read: MANO's official files and datasets that are pickles.

``restricted_load`` gives a pickle nothing but the inert classes of ``standins`` and then turns what
they recorded into plain Python and numpy data. Every format has its allow-list; a file that names
anything else is refused before any of it is used. Protects against code and forged memory; a file
may still waste time.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from acehand_core.data import standins
from acehand_core.errors import InputError, SchemaError, UnsafeFileError

_MAX_BYTES = 4 << 30

PLAIN = {
    ("builtins", "object"): standins.PyObject,
    ("builtins", "set"): standins.PlainSet,
    ("builtins", "frozenset"): standins.PlainFrozenSet,
    ("builtins", "bytes"): standins.EmptyBytes,
    ("collections", "OrderedDict"): standins.PlainDict,
    ("copyreg", "_reconstructor"): standins.Reconstructor,
    ("_codecs", "encode"): standins.Encode,
}
NUMPY = {
    ("numpy", "ndarray"): standins.Ndarray,
    ("numpy", "dtype"): standins.Dtype,
    ("numpy.core.multiarray", "_reconstruct"): standins.ArrayReconstruct,
    ("numpy.core.multiarray", "scalar"): standins.ArrayScalar,
    ("numpy.core.numeric", "_frombuffer"): standins.ArrayFromBuffer,
}
_SCIPY = {
    ("scipy.sparse.csc", "csc_matrix"): standins.SparseColumns,
    ("scipy.sparse.csr", "csr_matrix"): standins.SparseRows,
    ("scipy.sparse._csc", "csc_matrix"): standins.SparseColumns,
    ("scipy.sparse._csr", "csr_matrix"): standins.SparseRows,
}
_CHUMPY = {
    ("chumpy.ch", "Ch"): standins.Chumpy,
    ("chumpy.reordering", "Select"): standins.ChumpySelect,
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
class RestrictedUnpickler(pickle._Unpickler):  # type: ignore[name-defined]
    def __init__(self, file: io.BufferedIOBase, allow: AllowList, label: str) -> None:
        super().__init__(file, encoding="latin1")
        self._allow, self._label = allow, label

    def find_class(self, module: Any, name: Any) -> type:
        found = self._allow.globals.get((_MODULE_ALIASES.get(module, module), name))
        if found is None:
            raise UnsafeFileError(
                f"{self._label} names {module}.{name}; nothing was run and the file is refused. "
                f"Valid there: {', '.join(self._allow.names())}."
            )
        return found

    def load_bytearray8(self) -> None:
        # The original reserves whatever length the file announces.
        (length,) = struct.unpack("<Q", self.read(8))
        data = self.read(length)
        if len(data) != length:
            raise EOFError("a byte array ends early")
        self.append(bytearray(data))

    dispatch: ClassVar = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: load_bytearray8}

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
        return standins.Resolver()(RestrictedUnpickler(io.BytesIO(data), allow, label).load())
    except UnsafeFileError:
        raise
    except standins.StandInError as error:
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
